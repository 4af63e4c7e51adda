#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over checkpoints of OLMo-core 0.1.0: against the peer's own files byte
for byte, through a reader that is not ckpt's, damaged in ten ways, and loaded
by OLMo-core 0.1.0 itself.
"""

import json
import pickle
import re
import shutil
import struct
import sys
from pathlib import Path

from golden_test import plain
from peer import Peer
from support import (
    DATA, Skip, Suite, Tensor, check, check_equal, compare, load_pt,
    read_header, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "olmo_core_v1"
# Where scripts/test.sh installs 0.1.0, as another version has the same name.
PEER = Path(sys.prefix) / "olmo_core_0.1.0"
PROGRAM = Peer("olmo_core_v1_peer.py", PYTHONPATH=str(PEER))
FSDP = GOLDENS / "fsdp_olmo_w2"
HELPER = re.compile(r"num_param_groups|param_group\d+|state_keys")


def cases():
    return sorted(p for p in GOLDENS.iterdir())


def sources(case):
    return [case / "ckpt", *sorted((case / "other").glob("*"))]


def expected(case, part="*"):
    names = {"model": "expected.safetensors",
             "optim": "expected_optim.safetensors"}
    out = {}
    for key, name in names.items():
        if part in ("*", key) and (case / name).exists():
            out |= read_safetensors(case / name)
    return out


# -------------------------------------------------------- a reader of our own
def runs(shape, local, offset):
    """Flat ranges of a box, row by row."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    starts = [sum(o * s for o, s in zip(offset, strides))]
    for size, stride in zip(local[:-1], strides):
        starts = [b + i * stride for b in starts for i in range(size)]
    return [(b, b + local[-1]) for b in starts]


def read_part(path):
    """{name: Tensor} of one folder, by the rule that the peer reads by; the
    pickles as bytes. Copies must be equal, and every element must be in some
    file."""
    index = json.loads((path / "metadata.json").read_text())["tensors"]
    files = {p.name: (read_header(p), p.read_bytes())
             for p in path.glob("rank_*.safetensors")}
    out = {}
    for name, entry in index.items():
        shape = entry["shape"]
        count = 1
        for n in shape:
            count *= n
        size, data, seen = None, None, bytearray(count)
        for file, spec in entry["shard_spec_per_file"].items():
            ranges = spec["flattened_offsets"]
            if ranges is None:
                ranges = runs(shape, spec["local_shape"],
                              spec["global_offset"])
            total = sum(e - b for b, e in ranges)
            if total == 0:
                continue
            (header, base), content = files[file]
            row = header[name]
            check_equal(row["shape"], [total], f"stored shape of {name}")
            check_equal(row["dtype"], entry["dtype"], f"dtype of {name}")
            begin, end = row["data_offsets"]
            size = (end - begin) // total
            data = data if data is not None else bytearray(count * size)
            at = base + begin
            for b, e in ranges:
                part = content[at:at + (e - b) * size]
                for i in range(b, e):
                    if seen[i]:
                        one = part[(i - b) * size:(i - b + 1) * size]
                        check_equal(bytes(data[i * size:(i + 1) * size]), one,
                                    f"copies of {name}[{i}]")
                data[b * size:e * size] = part
                seen[b:e] = b"\1" * (e - b)
                at += (e - b) * size
        check(all(seen), f"{name} has holes")
        dtype = {"BOOL": "bool"}.get(entry["dtype"], entry["dtype"].lower())
        out[name] = Tensor(dtype, tuple(shape), bytes(data or b""))
    return out


def read_all(path):
    parts = [path / p for p in ("model", "optim") if (path / p).exists()]
    tensors, helpers = {}, {}
    for part in parts or [path]:
        for name, tensor in read_part(part).items():
            (helpers if HELPER.fullmatch(name) else tensors)[name] = tensor
    return tensors, helpers


# -------------------------------------------------------------------- reading
def test_reads(folder, case, source):
    out = folder / "out.safetensors"
    CKPT.ok("unshard", source, out)
    compare(read_safetensors(out), expected(case), "unsharded")


def test_groups(folder, case):
    """The pickles as objects; torch's form of them in a .pt file."""
    want = json.loads((case / "case.json").read_text())["param_groups"]
    document = CKPT.inspect(case / "ckpt", "--objects")
    got = {o["name"]: o["value"] for o in document["objects"]}
    check_equal(got["num_param_groups"], len(want), "num_param_groups")
    for i, group in enumerate(want):
        names = got[f"param_group{i}"]
        names = names.get("_param_names") or names.get("param_names")
        check_equal(names, group["_param_names"], f"names of group {i}")
    out = folder / "optim.pt"
    CKPT.ok("unshard", case / "ckpt", out, "--optim-only")
    tree = load_pt(out)
    check_equal(sorted(tree), ["param_groups", "state"], "keys")
    names = [n for g in want for n in g["_param_names"]]
    for group, right in zip(tree["param_groups"], want):
        right = {k: tuple(v) if k == "betas" else v for k, v in right.items()
                 if k != "_param_names"}
        check_equal(dict(group), right, "group")
    states = {f"state.{names[i]}.__{k}": v for i, s in plain(
        tree["state"]).items() for k, v in s.items()}
    wanted = {n: (t.dtype, t.shape, t.data)
              for n, t in expected(case, "optim").items()}
    check_equal(states, wanted, "states")


# -------------------------------------------------------------------- writing
def test_same_files(folder, source):
    """Rewritten for the same ranks: the peer's own bytes."""
    out = folder / "out"
    CKPT.ok("reshard", source, out)
    for path in sorted(out.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            mine = path.read_bytes()
            check(mine == (source / path.relative_to(out)).read_bytes(),
                  f"{path.relative_to(out)} is not as the peer wrote it")


def test_tp(folder, world):
    """Boxes for another number of ranks: the peer's own bytes."""
    case = GOLDENS / "tp_dtensor_w2"
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, "--tp", world, "--dp", 1)
    peer = case / f"other/tp_w{world}"
    for path in sorted(p for p in peer.rglob("*") if p.is_file()):
        check((out / path.relative_to(peer)).read_bytes() ==
              path.read_bytes(), f"{path.relative_to(peer)} differs")


def test_reshard(folder, case, dp):
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, "--dp", dp, "--tp", 1)
    tensors, helpers = read_all(out)
    compare(tensors, expected(case), "by the test's own reader")
    CKPT.ok("verify", out)
    CKPT.ok("verify", case / "ckpt", out)
    if case.name != "checkpointer_mixed_w4":
        check_equal(helpers, read_helpers(case), "pickles")
    files = sorted(p.name for p in (out / "model").glob("rank_*"))
    if files:
        check_equal(len(files), dp, "files")


def read_helpers(case):
    header, base = read_header(case / "ckpt/optim/rank_0.safetensors")
    content = (case / "ckpt/optim/rank_0.safetensors").read_bytes()
    out = {}
    for name, row in header.items():
        if HELPER.fullmatch(name):
            begin, end = row["data_offsets"]
            scalar = name == "num_param_groups"
            out[name] = Tensor("i64" if scalar else "u8",
                               () if scalar else (end - begin,),
                               content[base + begin:base + end])
    return out


def test_from_olmo_core(folder, case):
    """Generation 2 to generation 1: groups by parameters, states by names."""
    source = DATA / "olmo_core_dcp" / case
    out = folder / "out"
    CKPT.ok("convert", source / "ckpt", out, "--to", "olmo_core_v1", "--dp", 3,
            "--tp", 1)
    tensors, helpers = read_all(out)
    want = dict(read_safetensors(source / "expected.safetensors"))
    optim = read_safetensors(source / "expected_optim.safetensors")
    for name, tensor in optim.items():
        param, _, state = name.rpartition(".")
        want[f"{param}.__{state}"] = tensor
    compare(tensors, want, "converted")
    names, ids = [], []
    for i in range(struct.unpack("<q", helpers["num_param_groups"].data)[0]):
        group = pickle.loads(helpers[f"param_group{i}"].data)
        names += group["_param_names"]
        ids += group["params"]
        check("lr" in group and "betas" in group, f"options: {sorted(group)}")
    check_equal(ids, list(range(len(names))), "ids")
    params = {n.removeprefix("state.").rpartition(".")[0] for n in optim}
    check_equal(params - set(names), set(), "parameters without a group")


# --------------------------------------------------------------------- damage
def edit_index(part, change):
    path = part / "metadata.json"
    document = json.loads(path.read_text())
    change(document["tensors"])
    path.write_text(json.dumps(document))


def specs(tensors, name):
    return tensors[name]["shard_spec_per_file"]


def set_ranges(name, rank, ranges):
    def change(tensors):
        spec = specs(tensors, name)[f"rank_{rank}.safetensors"]
        spec["flattened_offsets"] = ranges
    return change


BIG = 1 << 63
W = "blocks.0.fc1.weight"
BREAKAGES = {
    # name: (change of model/'s index, exit status, words of the message)
    "hole": (set_ranges(W, 1, [[0, 2]]), 4, "are in no file"),
    "range outside": (set_ranges(W, 1, [[62, 64]]), 4, "is not inside of"),
    "range backwards": (set_ranges(W, 1, [[63, 61]]), 4, "is not inside of"),
    "huge shape": (lambda t: t[W].update(shape=[BIG, BIG]), 4,
                   "more bytes than 64 bits"),
    "other length": (set_ranges(W, 1, [[60, 63]]), 4, "has the shape"),
    "other dtype": (lambda t: t[W].update(dtype="BF16"), 4, "is f32"),
    "unknown dtype": (lambda t: t[W].update(dtype="F99"), 4, "F99"),
    "no shape": (lambda t: t[W].pop("shape"), 4, 'no "shape"'),
    "other file": (lambda t: specs(t, W).update(
        {"../x.safetensors": {"flattened_offsets": [[0, 1]]}}), 4,
        "not a rank_<r>.safetensors"),
    "both forms": (lambda t: specs(t, W)["rank_0.safetensors"].update(
        local_shape=[9, 7], global_offset=[0, 0]), 4, "needs either"),
    "box outside": (lambda t: specs(t, W)["rank_0.safetensors"].update(
        flattened_offsets=None, local_shape=[9, 7],
        global_offset=[BIG, 0]), 4, "is not inside of"),
    "name of nothing": (lambda t: t.update(new=dict(t[W])), 4,
                        "has none"),
}


def copied(folder):
    out = folder / "copy"
    shutil.copytree(FSDP / "ckpt", out)
    return out


def test_broken(folder, name):
    change, code, words = BREAKAGES[name]
    copy = copied(folder)
    edit_index(copy / "model", change)
    result = CKPT.run("inspect", copy).want(code)
    check(words in result.err, f"does not say {words!r}:\n{result}")
    result = CKPT.run("verify", copy).want(1)
    check(words in result.out + result.err, f"{result}")


def test_file_missing(folder):
    copy = copied(folder)
    (copy / "model/rank_1.safetensors").unlink()
    result = CKPT.run("inspect", copy).want(4)
    check("the file is missing" in result.err, f"{result}")


def test_unfinished(folder):
    copy = copied(folder)
    (copy / "optim/metadata.json").unlink()
    result = CKPT.run("inspect", copy).want(4)
    check("incomplete save" in result.err, f"{result}")
    CKPT.ok("inspect", copy / "model")


def test_pickle_damaged(folder):
    copy = copied(folder)
    path = copy / "optim/rank_0.safetensors"
    header, base = read_header(path)
    data = bytearray(path.read_bytes())
    data[base + header["param_group0"]["data_offsets"][1] - 1] ^= 0xff
    path.write_bytes(data)
    CKPT.run("inspect", copy).want(4)


def test_replicas_differ(folder):
    """Two ranks have the same elements, but not the same values."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / "tp_dtensor_w2/ckpt", copy)
    path = copy / "model/rank_1.safetensors"
    header, base = read_header(path)
    data = bytearray(path.read_bytes())
    data[base + header["w2.bias"]["data_offsets"][0]] ^= 1
    path.write_bytes(data)
    result = CKPT.run("unshard", copy, folder / "out.safetensors")
    check(result.code != 0 and "w2.bias" in result.err, f"{result}")


def test_flip(folder):
    """One flipped bit of what ckpt wrote."""
    out = folder / "out"
    CKPT.ok("reshard", FSDP / "ckpt", out, "--dp", 3)
    path = out / "model/rank_1.safetensors"
    header, base = read_header(path)
    data = bytearray(path.read_bytes())
    data[base + header[W]["data_offsets"][0] + 5] ^= 4
    path.write_bytes(data)
    result = CKPT.run("verify", out).want(1)
    check(W in result.out + result.err, f"{result}")
    CKPT.run("verify", FSDP / "ckpt", out).want(1)


def test_local_moment(folder):
    """One rank's part of a moment, saved as if it were all of it."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / "tp_dtensor_w2/ckpt", copy)
    name = "state.w1.weight.__exp_avg"

    def change(tensors):
        tensors[name] = {
            "shape": [5, 7], "is_sharded": False, "dtype": "F32",
            "shard_spec_per_file": {"rank_0.safetensors": {
                "flattened_offsets": [[0, 35]], "local_shape": None,
                "global_offset": None}}}
    edit_index(copy / "optim", change)
    result = CKPT.run("verify", copy)
    check(result.code in (1, 4), f"not found\n{result}")
    check(name in result.out + result.err, f"{result}")


def test_steps(folder):
    """A training run: the newest complete step."""
    for step in (5, 40, 300):
        shutil.copytree(FSDP / "ckpt", folder / f"run/step{step}")
    (folder / "run/step300/model/metadata.json").unlink()
    (folder / "run/step300/optim/metadata.json").unlink()
    document = CKPT.inspect(folder / "run")
    check(document["path"].endswith("step40"), f"{document['path']}")
    result = CKPT.ok("inspect", folder / "run")
    check("step300" in result.out + result.err, f"{result}")


def test_sidecars(folder):
    copy = copied(folder)
    (copy / "train").mkdir()
    state = pickle.dumps({"epoch": 1})
    (copy / "train/rank0.pt").write_bytes(state)
    (copy / "config.yaml").write_text("a: 1\n")
    out = folder / "out"
    CKPT.ok("reshard", copy, out, "--dp", 3)
    check_equal((out / "train/rank0.pt").read_bytes(), state, "train")
    check_equal((out / "config.yaml").read_text(), "a: 1\n", "config")


# ----------------------------------------------------------------------- peer
def ask_peer(job):
    if not PEER.exists():
        raise Skip("ai2-olmo-core 0.1.0 is not installed")
    wrong = PROGRAM.ask(job)
    check(not wrong, f"the peer fails: {wrong}")


def test_peer_unshards(folder, case, options):
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, *options)
    ask_peer({"kind": "unshard", "path": str(out), "optim": True,
              "out": str(folder)})
    want = {n: (t.dtype, t.shape, t.data)
            for n, t in expected(case, "model").items()}
    check_equal(plain(load_pt(folder / "model.pt")), want, "model")
    mine = folder / "mine.pt"
    CKPT.ok("unshard", case / "ckpt", mine, "--optim-only")
    check_equal(plain(load_pt(mine)), plain(load_pt(folder / "optim.pt")),
                "optim")


def test_peer_loads(folder, case, dp, world):
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, "--dp", dp, "--tp", 1)
    ask_peer({"kind": "load", "path": str(out / "model"),
              "world": world,
              "expected": str(case / "expected.safetensors")})


def test_peer_unshards_converted(folder, case):
    source = DATA / "olmo_core_dcp" / case
    out = folder / "out"
    CKPT.ok("convert", source / "ckpt", out, "--to", "olmo_core_v1", "--dp", 2,
            "--tp", 1)
    ask_peer({"kind": "unshard", "path": str(out), "optim": True,
              "out": str(folder)})
    want = {n: (t.dtype, t.shape, t.data) for n, t in
            read_safetensors(source / "expected.safetensors").items()}
    check_equal(plain(load_pt(folder / "model.pt")), want, "model")


def test_to_later(folder, case):
    """Groups under the keys that OLMo-core 2 and 3 ask for, which are those of
    a state that OLMo-core 2 saved; and back, as the peer unshards it."""
    asked = {o["name"].split(".", 2)[2]
             for o in CKPT.inspect(
                 DATA / "olmo_core_dcp/state_unflat_w2/ckpt")["objects"]}
    later, back = folder / "later", folder / "back"
    CKPT.ok("convert", case / "ckpt", later, "--to", "olmo_core")
    want = json.loads((case / "case.json").read_text())["param_groups"]
    got = {o["name"]: o["value"]
           for o in CKPT.inspect(later, "--objects")["objects"]}
    check_equal(sorted(got), sorted(
        f"param_groups.{i}.{option}" for i, group in enumerate(want)
        for option in group if option != "_param_names"), "keys")
    check(asked - {"initial_lr", "decoupled_weight_decay"} <= {
        name.split(".", 2)[2] for name in got}, f"of OLMo-core's: {asked}")
    for i, group in enumerate(want):
        check_equal(got[f"param_groups.{i}.params"], group["_param_names"],
                    f"names of group {i}")
    CKPT.ok("convert", later, back, "--to", "olmo_core_v1")
    for path, name in ((case / "ckpt", "first.pt"), (back, "back.pt")):
        CKPT.ok("unshard", path, folder / name, "--optim-only")
    check_equal(plain(load_pt(folder / "back.pt")),
                plain(load_pt(folder / "first.pt")), "optim")
    ask_peer({"kind": "unshard", "path": str(back), "optim": True,
              "out": str(folder)})
    check_equal(plain(load_pt(folder / "optim.pt")),
                plain(load_pt(folder / "first.pt")), "as the peer has it")


# ------------------------------------------------------------------ the table
NOT_SAME = ("legacy", "checkpointer_mixed")  # other spellings; [k, k]


def test_by_way_of_dcp(folder, case):
    """Another container holds its groups too: the optimizer comes back as an
    optimizer, in its own folder, not among the parameters. If the groups are
    lost, nothing is written."""
    CKPT.ok("convert", case / "ckpt", folder / "dcp", "--to", "dcp")
    back = folder / "back"
    CKPT.ok("convert", folder / "dcp", back, "--to", "olmo_core_v1")
    for part in ("model", "optim"):
        found = {name: tensor for name, tensor in
                 read_part(back / part).items() if not HELPER.match(name)}
        compare(found, expected(case, part), part)
    values = [{o["name"]: o["value"] for o in
               CKPT.inspect(path, "--objects")["objects"]}
              for path in (case / "ckpt", back)]
    check("param_group1" in values[0], sorted(values[0]))
    for name, value in values[0].items():  # test_groups checks them
        for group in (value, values[1].get(name)):
            if isinstance(group, dict) and "param_names" in group:
                group["_param_names"] = group.pop("param_names")
        check_equal(values[1].get(name), value, name)
    CKPT.ok("convert", case / "ckpt", folder / "flat", "--to", "safetensors")
    lost = CKPT.run("convert", folder / "flat", folder / "no", "--to",
                    "olmo_core_v1").want(5)
    check("its options are not known" in lost.err, f"{lost}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in cases():
        for source in sources(case):
            name = f"{case.name}/{source.name}"
            suite.add(f"{name}: reads", test_reads, case, source)
            if not case.name.startswith(NOT_SAME):
                suite.add(f"{name}: same files", test_same_files, source)
        if (case / "expected_optim.safetensors").exists():
            suite.add(f"{case.name}: groups", test_groups, case)
        for dp in (1, 2, 5):
            suite.add(f"{case.name}: --dp {dp}", test_reshard, case, dp)
    for world in (3, 4):
        suite.add(f"--tp {world}", test_tp, world)
    for case in ("state_unflat_w2", "trainer_fsdp_w2"):
        suite.add(f"from {case}", test_from_olmo_core, case)
        suite.add(f"from {case}: the peer unshards",
                  test_peer_unshards_converted, case)
    for case in ("fsdp_olmo_w2", "fsdp_torch_w4"):
        suite.add(f"{case}: to later ones and back", test_to_later,
                  GOLDENS / case)
        suite.add(f"{case}: by way of dcp", test_by_way_of_dcp,
                  GOLDENS / case)
    for name in BREAKAGES:
        suite.add(f"broken: {name}", test_broken, name)
    for test in (test_file_missing, test_unfinished, test_pickle_damaged,
                 test_replicas_differ, test_flip, test_local_moment,
                 test_steps, test_sidecars):
        suite.add(test.__name__.removeprefix("test_"), test)
    for case in ("fsdp_olmo_w2", "fsdp_torch_w4", "plain_w1",
                 "legacy_pair_w2"):
        suite.add(f"{case}: the peer unshards", test_peer_unshards,
                  GOLDENS / case, ["--dp", 3, "--tp", 1])
    suite.add("tp_dtensor_w2: the peer unshards", test_peer_unshards,
              GOLDENS / "tp_dtensor_w2", ["--tp", 5, "--dp", 1])
    for case, dp, world in (("fsdp_olmo_w2", 3, 2), ("fsdp_torch_w4", 5, 3)):
        suite.add(f"{case}: the peer loads dp {dp} on {world}",
                  test_peer_loads, GOLDENS / case, dp, world)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
