#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of ckpt on checkpoints made by their own writers."""

import shutil
import zipfile

from dist_cases import dist_units
from golden_cases import (
    NOT_SAFETENSORS, NOT_TORCH, QUANTIZED, Topology, all_units, cut, find,
    same_value, topology_of, value_leaves)
from support import (
    DATA, Failure, Suite, Tensor, check, check_equal, compare, digest,
    from_torch, load_any, load_pt, read_safetensors, torch_tensors)

CKPT = None  # set by prepare


# ------------------------------------------------------------------ inspect
def listed(unit, *options):
    """The tensors of `inspect --json`: name -> row. For a unit with its own
    names, the rows are under the expected names."""
    document = CKPT.inspect(unit.path, *options)
    rows = {row["name"]: row for row in document["tensors"]}
    check_equal(len(rows), len(document["tensors"]), "distinct names")
    if unit.own_names:
        rows = {name: row for name in unit.model for full, row in rows.items()
                if full.split(".")[-1] == name.split(".")[-1]}
    return document, rows


def test_inspect(folder, unit):
    document, rows = listed(unit)
    check_equal(document["format"], unit.format, "format")
    for name, want in unit.all.items():
        check(name in rows, f"inspect lists no {name!r}: {sorted(rows)}")
        row = rows[name]
        check_equal((row["dtype"], tuple(row["shape"]), row["bytes"]),
                    (want.dtype, want.shape, len(want.data)), name)
        check(row["pieces"] >= 1 or not want.data, f"{name}: no piece")
    for name in set(rows) - set(unit.all):
        check_equal(rows[name]["kind"], "other", f"kind of the extra {name}")
    check_equal(document["bytes"], sum(r["bytes"] for r in document["tensors"]),
                "bytes")
    if unit.format == "fairseq2":
        check_fairseq2(unit, document, rows)


def check_fairseq2(unit, document, rows):
    info = unit.info
    sizes = info["topology"]
    want = {"tp": sizes["tp"], "pp": sizes["pp"], "dp": sizes["sdp"], "ep": 1}
    check_equal(document["topology"], want, "topology")
    if (unit.path / "model.yaml").exists():
        check_equal(document["family"], info["model_family"], "family")
    for name in unit.model:
        check(rows[name]["kind"] != "optim", f"{name} is not an optimizer state")
        if sizes["tp"] > 1:
            check_equal(rows[name]["shard_dim"],
                        info["shard_dims"].get(name), f"shard_dim of {name}")
    for name in unit.optim:
        row = rows[name]
        check_equal(row["kind"], "optim", f"kind of {name}")
        check_equal(f'{row["param"]}.{row["state"]}', name, "param and state")


def test_digest(folder, unit):
    wanted, options = without(unit, ())
    _, rows = listed(unit, "--digest", *options)
    for name, want in wanted.items():
        check_equal(rows[name].get("digest"), digest(want.data),
                    f"digest of {name}")


def test_objects(folder, unit):
    document = CKPT.inspect(unit.path, "--objects")
    objects = {o["name"]: o for o in document["objects"]}
    for name, row in objects.items():
        try:
            want = find(unit.objects, name)
        except KeyError:
            last = name.split(".")[-1]
            if last.startswith("_") or last in ("quantizer", "note", "meta"):
                continue  # attributes, such as a state dict's _metadata
            raise Failure(f"no object {name!r} in the file") from None
        check(same_value(row["value"], want),
              f"object {name!r} is {row['value']!r}\n expected {want!r}")
    for path in value_leaves(unit.objects):
        parts = path.split(".")
        check(any(".".join(parts[:n]) in objects
                  for n in range(len(parts) + 1)),
              f"the value at {path!r} is shown by no object")


# ------------------------------------------------------------------ unshard
def without(unit, dtypes):
    """What a container can hold of a unit, and the --exclude options for the
    rest."""
    gone = [n for n, t in unit.all.items()
            if t.dtype in dtypes or n in unit.unreadable]
    options = [o for name in gone for o in ("--exclude", name)]
    return {n: t for n, t in unit.all.items() if n not in gone}, options


def strip(unit, tensors):
    """Renames to the expected names where the reader invents its own."""
    if not unit.own_names:
        return tensors
    return {want: tensor for want in unit.model
            for name, tensor in tensors.items()
            if name.split(".")[-1] == want.split(".")[-1]}


def extras(unit):
    """Tensors that are neither model nor optimizer (a trainer's RNG state)."""
    return [r["name"] for r in CKPT.inspect(unit.path)["tensors"]
            if r["kind"] == "other"]


def test_unshard_safetensors(folder, unit):
    want, options = without(unit, NOT_SAFETENSORS)
    out = folder / "out.safetensors"
    if options:
        refused = CKPT.run("unshard", unit.path, out)
        unread = "does not read chunks" in refused.err  # of a foreign filter
        check_equal(refused.code, 7 if unread else 5,
                    f"exit status for what can't be written\n{refused}")
        check(not out.exists(), "a refused command wrote its target")
    result = CKPT.ok("unshard", unit.path, out, *options)
    said = CKPT.ok("unshard", unit.path, folder / "again.safetensors",
                   *options, "--json").json()["problems"]
    for name, tensor in want.items():
        if tensor.dtype in QUANTIZED:
            check("warning: " in result.err and
                  any(name in str(one) for one in said),
                  f"{name}: no warning")
            want[name] = Tensor(QUANTIZED[tensor.dtype], tensor.shape,
                                tensor.data)
    compare(strip(unit, read_safetensors(out)), want, "OUT.safetensors",
            extras(unit))


def test_unshard_pt(folder, unit):
    want, options = without(unit, NOT_TORCH)
    out = folder / "out.pt"
    CKPT.ok("unshard", unit.path, out, *options)
    loaded = load_any(out)
    got = torch_tensors(loaded)
    if list(got) == [""]:
        got = {"tensor": got[""]}  # a bare tensor
    compare(strip(unit, got), want, "OUT.pt", extras(unit) + [
        name for name in got if inside_object(unit, name)])


def inside_object(unit, name):
    """A tensor in a value that is not a tensor, such as a tuple."""
    return isinstance(unit.objects, dict) and any(
        name.startswith(f"{key}.") for key in unit.objects)


def test_unshard_folder(folder, unit):
    want, options = without(unit, NOT_SAFETENSORS | NOT_TORCH)
    out = folder / "out"
    CKPT.ok("unshard", unit.path, out, *options)
    rows = {r["name"]: r for r in CKPT.inspect(out, "--digest")["tensors"]}
    for name, tensor in strip_rows(unit, rows, want):
        check_equal(tensor.get("digest"), digest(want[name].data), name)
    verify_whole(out, want)
    CKPT.ok("verify", unit.path, out, *options)


def verify_whole(out, want):
    """Nothing can show that a file without tensors is whole."""
    result = CKPT.run("verify", out, "--json").want(0 if want else 1)
    kinds = [one["kind"] for one in result.json()["problems"]]
    check_equal(kinds, [] if want else ["no_tensors"], "problems")


def strip_rows(unit, rows, want):
    renamed = strip(unit, rows)
    check(set(want) <= set(renamed), f"lost: {set(want) - set(renamed)}")
    return [(name, renamed[name]) for name in want]


def test_model_and_optim_only(folder, unit):
    model, optim = folder / "model.safetensors", folder / "optim.safetensors"
    CKPT.ok("unshard", unit.path, model, "--model-only")
    compare(read_safetensors(model), unit.model, "--model-only", extras(unit))
    CKPT.ok("unshard", unit.path, optim, "--optim-only")
    compare(read_safetensors(optim), unit.optim, "--optim-only")


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x40]))


def escaped(name):
    """As ckpt prints a name: control characters as \\x0a."""
    return "".join(f"\\x{ord(c):02x}" if ord(c) < 32 else c for c in name)


def want_damage(result, name):
    result.want(1)
    check(escaped(name) in result.out + result.err,
          f"{name} is not named\n{result}")


def test_verify(folder, unit):
    want, options = without(unit, NOT_SAFETENSORS)
    out = folder / "out.safetensors"
    CKPT.ok("unshard", unit.path, out, *options)
    CKPT.ok("verify", unit.path, out, *options)
    verify_whole(out, want)
    tensors = read_safetensors(out)
    name = max(tensors, default=None, key=lambda n: len(tensors[n].data))
    if name is None or not tensors[name].data:
        return
    before = sum(len(t.data) for n, t in tensors.items()
                 if list(tensors).index(n) < list(tensors).index(name))
    payload = sum(len(t.data) for t in tensors.values())
    begin = out.stat().st_size - payload + before
    flip(out, begin + len(tensors[name].data) // 2)
    want_damage(CKPT.run("verify", out), name)
    want_damage(CKPT.run("verify", unit.path, out, *options), name)
    document = CKPT.run("verify", out, "--json").want(1).json()
    check_equal(document["ok"], False, "ok of damaged data")
    check(name in [p["tensor"] for p in document["problems"]],
          f"no problem names {name}: {document}")


# ------------------------------------------------------------------ reshard
def shards(step, part="model"):
    """(pp, tp, sdp) -> file."""
    return {tuple(int(p.split("_")[1].split(".")[0])
                  for p in path.parts[-3:]): path
            for path in sorted((step / part).glob("pp_*/tp_*/sdp_*.pt"))}


def only_step(folder):
    steps = sorted(folder.glob("step_*"))
    check_equal(len(steps), 1, f"step folders in {folder}")
    return steps[0]


def check_state_dict(path, want, ordered=True):
    got = load_pt(path, mmap=True)
    check(all(type(k) is str for k in got), f"keys of {path}")
    if ordered:
        check_equal(list(got), list(want), f"names and order in {path.name}")
    compare({k: from_torch(v) for k, v in got.items()}, want, str(path))
    for key, tensor in got.items():
        check(tensor.is_contiguous() and tensor.storage_offset() == 0,
              f"{key}: not a plain tensor")


def test_reshard_like_peer(folder, unit, other, topology):
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *topology.options)
    peer, ours = only_step(other), only_step(out)
    check_equal(ours.name, peer.name, "step")
    check_equal(sorted(shards(ours)), sorted(shards(peer)), "model files")
    for at, path in shards(peer).items():
        want = {k: from_torch(v) for k, v in load_pt(path).items()}
        check_state_dict(shards(ours)[at], want)
    source = shards(unit.path / ours.name, "optimizer")
    for at, path in shards(peer, "optimizer").items():
        check_optimizer(shards(ours, "optimizer")[at], path,
                        source[min(source)])
    yaml = unit.path / "model.yaml"
    if yaml.exists():
        check_equal((out / "model.yaml").read_bytes(), yaml.read_bytes(),
                    "model.yaml")
    CKPT.ok("verify", out)
    CKPT.ok("verify", unit.path, out)
    break_one_shard(unit, out, ours)


def plain(value):
    """Tensors replaced by what they hold, so that trees compare."""
    import torch

    if isinstance(value, torch.Tensor):
        local = getattr(value, "_local_tensor", value)
        tensor = from_torch(local)
        return (tensor.dtype, tuple(value.shape), tensor.data)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v) for v in value)
    return value


def check_optimizer(ours, peer, source):
    """State as in the peer's file; param_groups (the current learning rate) as
    in the source."""
    got = plain(load_pt(ours, weights_only=False))
    want = plain(load_pt(peer, weights_only=False))
    check_equal(list(got), list(want), f"keys of {ours}")
    check_equal(list(got["state"]), list(want["state"]), "parameters")
    for index, state in want["state"].items():
        check_equal(list(got["state"][index]), list(state), f"state {index}")
        for key, value in state.items():
            check_equal(got["state"][index][key], value, f"{index}.{key}")
    groups = plain(load_pt(source, weights_only=False))["param_groups"]
    check_equal(got["param_groups"], groups, "param_groups")


def break_one_shard(unit, out, step):
    path = shards(step)[max(shards(step))]
    before = {k: from_torch(v) for k, v in load_pt(path).items()}
    with zipfile.ZipFile(path) as archive:
        record = max((r for r in archive.infolist() if "/data/" in r.filename),
                     key=lambda r: r.file_size)
        if record.file_size == 0:
            return
        with open(path, "rb") as f:
            f.seek(record.header_offset + 26)
            sizes = f.read(4)
    begin = record.header_offset + 30 + int.from_bytes(
        sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
    flip(path, begin + record.file_size // 2)
    after = {k: from_torch(v) for k, v in load_pt(path).items()}
    names = [k for k in before if before[k] != after[k]]
    check(names, "the test flipped nothing")
    want_damage(CKPT.run("verify", out), names[0])
    # A replica on another rank may be read instead, but it is compared.
    want_damage(CKPT.run("verify", unit.path, out), names[0])


def buffers(unit):
    return set(unit.info.get("replicated_buffers", ()))


def test_reshard_by_rule(folder, unit, topology):
    """Topologies that the peer did not write, by the format's rules."""
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *topology.options)
    dims = unit.info["shard_dims"]
    files = shards(only_step(out))
    check_equal(len(files), topology.tp * topology.dp, "model files")
    for (_, t, s), path in files.items():
        want = {name: cut(tensor, dims.get(name), name in buffers(unit),
                          topology, t, s)
                for name, tensor in unit.model.items()}
        check_state_dict(path, want, ordered=False)
    check_optimizer_parts(unit, shards(only_step(out), "optimizer"), topology)
    CKPT.ok("verify", unit.path, out)


def check_optimizer_parts(unit, files, topology):
    """All encodings join alike: each rank's flattened parts, one after another,
    are the tensor-parallel rank's flat tensor."""
    import torch.distributed.tensor  # makes its classes loadable

    assert torch
    names = unit.info.get("parameter_order", ())
    joined = {}
    for (_, t, s), path in files.items():
        for index, state in load_pt(path, weights_only=False)["state"].items():
            for key, value in state.items():
                local = getattr(value, "_local_tensor", value)
                parts = joined.setdefault((t, names[index], key), [])
                parts.append((s, tuple(value.shape), from_torch(local)))
    for (t, parameter, key), parts in joined.items():
        whole = unit.optim[f"{parameter}.{key}"]
        dim = unit.info["shard_dims"].get(parameter)
        want = cut(whole, dim if whole.shape else None, True, topology, t, 0)
        datas = [tensor.data for _, _, tensor in sorted(
            parts, key=lambda part: part[0])]
        if not whole.shape:  # `step` is on every rank
            check_equal(set(datas), {want.data}, f"{parameter}.{key}")
            continue
        check_equal(b"".join(datas), want.data, f"{parameter}.{key} of {t}")
        check_equal({tensor.dtype for _, _, tensor in parts}, {want.dtype},
                    "dtype")
    wanted = {(t, *name.rsplit(".", 1)) for name in unit.optim
              for t in range(topology.tp)}
    check_equal(set(joined), wanted if files else set(), "states")


def test_refused(folder, unit, topology):
    out = folder / "out"
    result = CKPT.run("reshard", unit.path, out, *topology.options)
    result.want(5)
    check(not out.exists(), "a refused command left its target")
    check(any(name in result.err for name in unit.info["shard_dims"]),
          f"no tensor is named\n{result}")
    check("hint:" in result.err, f"no hint\n{result}")


# ------------------------------------------------------------- single cases
def test_torchscript(folder):
    path = DATA / "torch_pt/whole_module/ckpt/torchscript.pt"
    said = CKPT.inspect(path)
    check_equal(said["version"], "zip 3 of TorchScript", "the version")
    check_equal(sorted(one["name"] for one in said["tensors"]),
                ["bias", "weight"], "names")


def test_dtensor(folder):
    """Each file holds one rank's part; only their folder is the whole."""
    case = DATA / "torch_pt/dtensor_per_rank"
    for path in sorted((case / "ckpt").iterdir()):
        result = CKPT.ok("inspect", path)
        check(": a: " in result.err and "warning: " in result.err,
              f"no warning\n{result}")
        CKPT.run("unshard", path, folder / "part.safetensors").want(5)
    out = folder / "out.safetensors"
    CKPT.ok("unshard", case / "ckpt", out)
    compare(read_safetensors(out), read_safetensors(
        case / "expected.safetensors"), "all ranks together")


def test_single_file(folder):
    """A sharded safetensors folder becomes the single file that the peer
    writes."""
    case = DATA / "safetensors/hf_sharded"
    out = folder / "model.safetensors"
    CKPT.ok("unshard", case / "ckpt", out)
    peer = case / "other/single_file/model.safetensors"
    compare(read_safetensors(out), read_safetensors(peer), "single file")
    check_equal(out.read_bytes(), peer.read_bytes(), "bytes of the file")


def test_source_untouched(folder):
    """No command writes into its source."""
    case = DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt"
    source = folder / "src"
    shutil.copytree(case, source)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size)
              for p in sorted(source.rglob("*"))}
    CKPT.ok("inspect", source, "--digest")
    CKPT.ok("reshard", source, folder / "out", "--tp", 8)
    CKPT.ok("verify", source, folder / "out")
    after = {p: (p.stat().st_mtime_ns, p.stat().st_size)
             for p in sorted(source.rglob("*"))}
    check_equal(after, before, "files of the source")


# ---------------------------------------------------------------- the table
RULE_TOPOLOGIES = [Topology(1, 1), Topology(2, 1), Topology(1, 4),
                   Topology(2, 3)]


def divides(unit, tp):
    return all(unit.model[name].shape[dim] % tp == 0
               for name, dim in unit.info["shard_dims"].items()
               if name in unit.model)


def add_fairseq2(suite, unit):
    case = unit.case
    for other in sorted((case / "other").glob("tp*")):
        topology = topology_of(other.name)
        suite.add(f"{unit.name}: reshard to {other.name}",
                  test_reshard_like_peer, unit, other, topology)
    for topology in RULE_TOPOLOGIES:
        if topology.tp > 1 and not unit.info["shard_dims"]:
            continue  # no family is known
        if topology.tp > 1 and "tied" in unit.name:
            continue  # fairseq2 refuses tied models
        if divides(unit, topology.tp):
            suite.add(f"{unit.name}: reshard by rule to tp{topology.tp}"
                      f"sdp{topology.dp}", test_reshard_by_rule, unit,
                      topology)
    for row in unit.info.get("rejected", ()):
        suite.add(f"{unit.name}: refuse {row['topology']}", test_refused,
                  unit, topology_of(row["topology"]))
    if unit.optim:
        suite.add(f"{unit.name}: --model-only, --optim-only",
                  test_model_and_optim_only, unit)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for unit in all_units() + dist_units():
        suite.add(f"{unit.name}: inspect", test_inspect, unit)
        suite.add(f"{unit.name}: digest", test_digest, unit)
        suite.add(f"{unit.name}: unshard to .safetensors",
                  test_unshard_safetensors, unit)
        suite.add(f"{unit.name}: unshard to .pt", test_unshard_pt, unit)
        suite.add(f"{unit.name}: unshard to a folder", test_unshard_folder,
                  unit)
        suite.add(f"{unit.name}: verify", test_verify, unit)
        if unit.format == "torch" and unit.objects is not None and (
                not unit.own_names):
            suite.add(f"{unit.name}: objects", test_objects, unit)
        if unit.format == "fairseq2":
            add_fairseq2(suite, unit)
    suite.add("torch_pt/whole_module: TorchScript", test_torchscript)
    suite.add("torch_pt/dtensor_per_rank", test_dtensor)
    suite.add("safetensors/hf_sharded: single file", test_single_file)
    suite.add("the source is left alone", test_source_untouched)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
