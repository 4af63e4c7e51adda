#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over DeepSpeed's checkpoints, ZeRO 0 to 3 and universal.

Expectations come from DeepSpeed's own conversions (expected*.safetensors:
zero_to_fp32 and ds_to_universal), and from the model states as torch loads them
for what these leave out.
"""

import pickle
import shutil
import types

import torch

from golden_cases import load
from dist_cases import object_difference, plain
from support import (
    DATA, Stub, Suite, Tensor, check, check_equal, compare, digest,
    from_torch, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "deepspeed"
BAD = DATA / "bad" / "deepspeed"
CASES = sorted(path.name for path in GOLDENS.iterdir())
WITH_ZERO = [name for name in CASES if name != "zero0_dp2_fp32"]


class Unpickler(pickle.Unpickler):
    """Classes of DeepSpeed stand in for themselves."""

    def find_class(self, module, name):
        if module.startswith("deepspeed"):
            return type(name, (Stub,), {})
        return super().find_class(module, name)


def load_states(path):
    module = types.ModuleType("stubbed")
    module.Unpickler, module.load = Unpickler, pickle.load
    return torch.load(path, pickle_module=module, weights_only=False,
                      map_location="cpu")


def step_folder(case):
    return GOLDENS / case / "ckpt" / "global_step2"


def model_states(folder):
    return load_states(sorted(folder.glob("*rank_0*_model_states.pt"))[0])


def wanted(case):
    """name -> Tensor of model and of optimizer."""
    model = read_safetensors(GOLDENS / case / "expected.safetensors")
    states = model_states(step_folder(case))
    trainable = {name for group in states["param_shapes"] or ()
                 for name in group}
    # What only the module holds is as stored there: frozen parameters keep
    # their 16 bits, which the peer widens.
    for name, tensor in states["module"].items():
        if name not in trainable and tensor.numel():
            model[name] = from_torch(tensor)
        elif name.startswith("frozen."):
            row = model[name]
            values = torch.frombuffer(bytearray(row.data), dtype=torch.float32)
            model[name] = from_torch(
                values.reshape(tuple(row.shape)).to(tensor.dtype))
    path = GOLDENS / case / "expected_optim.safetensors"
    optim = read_safetensors(path) if path.exists() else {}
    # The peer's conversion of ZeRO 3 has no step for each parameter.
    for name in trainable:
        optim.setdefault(f"{name}.step",
                         Tensor("f32", (), torch.tensor(2.0).numpy().tobytes()))
    if not optim:
        for number, state in states["optimizer"]["state"].items():
            for key, tensor in state.items():
                optim[f"optimizer.state.{number}.{key}"] = from_torch(tensor)
    return model, optim


# ------------------------------------------------------------------ contents
def check_rows(path, model, optim):
    document = CKPT.inspect(path, "--digest")
    check_equal(document["format"], "deepspeed", "format")
    rows = {row["name"]: row for row in document["tensors"]}
    check_equal(len(rows), len(document["tensors"]), "distinct names")
    check_equal(set(rows), set(model) | set(optim), "names")
    for name, want in {**model, **optim}.items():
        row = rows[name]
        check_equal((row["dtype"], tuple(row["shape"]), row["kind"]),
                    (want.dtype, tuple(want.shape),
                     "optim" if name in optim else "model"), name)
        check_equal(row["digest"], digest(want.data), f"digest of {name}")
        if name in optim and not name.startswith("optimizer."):
            check_equal(f'{row["param"]}.{row["state"]}', name, "its parts")
    return document


def test_contents(folder, case):
    model, optim = wanted(case)
    document = check_rows(GOLDENS / case / "ckpt", model, optim)
    for key, size in load(GOLDENS / case / "case.json")["topology"].items():
        # ZeRO 0 keeps no partitions: its ranks leave no trace.
        if key in document["topology"] and case in WITH_ZERO:
            check_equal(document["topology"][key], size, key)
    check_rows(step_folder(case), model, optim)


def test_universal(folder, case):
    """The peer's conversion holds the same."""
    model, optim = wanted(case)
    path = GOLDENS / case / "other" / "universal"
    check_rows(path, model, optim)
    CKPT.ok("verify", path, GOLDENS / case / "ckpt")


def test_unshard(folder, case):
    model, optim = wanted(case)
    source = GOLDENS / case / "ckpt"
    for option, want in (("--model-only", model), ("--optim-only", optim)):
        out = folder / f"out{option}.safetensors"
        CKPT.ok("unshard", source, out, option)
        compare(read_safetensors(out), want, option)
    out = folder / "half.safetensors"
    CKPT.ok("unshard", source, out, "--model-only", "--dtype", "bf16")
    half = read_safetensors(out)
    if len(list(step_folder(case).glob("mp_rank_*"))) != 1:
        return
    for name, tensor in model_states(step_folder(case))["module"].items():
        if tensor.dtype == torch.bfloat16:
            check_equal(half[name], from_torch(tensor), f"the copy of {name}")


def test_convert(folder, case, to):
    source, out = GOLDENS / case / "ckpt", folder / "out"
    CKPT.ok("convert", source, out, "--to", to)
    CKPT.ok("verify", out)
    CKPT.ok("verify", source, out)


def test_objects(folder, case):
    document = CKPT.inspect(GOLDENS / case / "ckpt", "--objects")
    got = {o["name"]: o["value"] for o in document["objects"]}
    check_equal(len(got), len(document["objects"]), "distinct objects")
    files = load(GOLDENS / case / "expected_objects.json")
    first = [tree for name, tree in sorted(files.items())
             if "_rank_0_mp_rank_00_" in name or "/mp_rank_00_" in name]
    for tree in first:
        below = {f"{key}": value for key, value in tree.items()}
        inner = tree.get("optimizer_state_dict", {})
        below |= {f"optimizer_state_dict.{k}": v for k, v in inner.items()}
        base = inner.get("base_optimizer_state", {})
        below |= {f"optimizer_state_dict.base_optimizer_state.{k}": v
                  for k, v in base.items()}
        for name, want in below.items():
            if name in got:
                found = object_difference(plain(got[name]), plain(want), name)
                check(not found, f"object {found}")
    for name in ("ds_config", "epoch", "note", "args", "param_shapes",
                 "global_steps"):
        check(name in got, f"no object {name}: {sorted(got)}")
    check(not any("param_slice_mappings" in name for name in got), "mappings")


# ----------------------------------------------------------------- universal
def shown(value):
    """A loaded value in comparable form."""
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    if isinstance(value, dict):
        return {key: shown(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(shown(v) for v in value)
    if isinstance(value, Stub):
        return type(value).__name__, getattr(value, "state", None)
    return value


def test_write_universal(folder, case, source):
    """File by file what ds_to_universal writes."""
    peer = GOLDENS / case / "other" / "universal"
    out = folder / "out"
    CKPT.ok("convert", GOLDENS / case / source, out, "--to", "deepspeed")
    files = {p.relative_to(out) for p in out.rglob("*") if p.is_file()}
    want = {p.relative_to(peer) for p in peer.rglob("*") if p.is_file()}
    check_equal(want - files, set(), "missing files")
    extra = {p for p in files - want if p.suffix == ".pt"}
    check_equal(extra, set(), "extra files")
    for name in sorted(want):
        if name.suffix != ".pt" or "model_states" in name.name:
            check_equal((out / name).read_bytes(), (peer / name).read_bytes(),
                        str(name))
            continue
        got, theirs = load_states(out / name), load_states(peer / name)
        if name.name == "optimizer_state.pt" and case.startswith("zero3"):
            # The peer leaves rank 0's partitions in it; nothing reads them.
            theirs.pop("fp32_flat_groups")
            state = theirs["optimizer_state_dict"]["state"]
            theirs["optimizer_state_dict"]["state"] = {
                0: {"step": state[0]["step"]}}
        check_equal(shown(got), shown(theirs), str(name))
    CKPT.ok("verify", out)
    CKPT.ok("verify", out, GOLDENS / case / "ckpt")


def test_not_written(folder):
    source, out = GOLDENS / "zero1_dp2" / "ckpt", folder / "out"
    for args, words in (
            (("--tp", 2), "any topology"),
            (("--dp", 4, "--exclude", "emb.weight"), "written whole"),
            (("--exclude", "emb.weight"), "left out"),
            (("--model-only",), "no optimizer state")):
        result = CKPT.run("convert", source, out, "--to", "deepspeed", *args)
        check_equal(result.code, 5, f"{args}\n{result}")
        check(words in result.err, f"{args}: no {words!r}\n{result}")
        check(not out.exists(), "something was written")
    other = DATA / "safetensors" / "hf_sharded" / "ckpt"
    CKPT.run("convert", other, out, "--to", "deepspeed").want(5)
    zero0 = GOLDENS / "zero0_dp2_fp32" / "ckpt"
    CKPT.run("convert", zero0, out, "--to", "deepspeed").want(5)


# --------------------------------------------------------------------- rules
def slices_of(whole, name):
    """What two tensor-parallel ranks hold, according to the rules."""
    if name == "gate":  # [a|b] each
        a, b = whole.chunk(2)
        return [torch.cat([x.chunk(2)[t] for x in (a, b)]) for t in (0, 1)]
    if name == "qkv":  # parts of 4, 2 and 2 rows
        parts = whole.split([4, 2, 2])
        return [torch.cat([x.chunk(2)[t] for x in parts]) for t in (0, 1)]
    if name == "row":
        return list(whole.chunk(2, 1))
    if name == "emb":  # 5 rows, padded to 8
        return list(torch.cat([whole, torch.zeros(3, 3)]).chunk(2))
    return [whole, whole] if name == "norm" else list(whole.chunk(2))


def test_rules(folder, ranks):
    """Every way of joining, over partitions that cut rows anywhere."""
    shapes = {"gate": (8, 3), "qkv": (8, 3), "row": (3, 6), "emb": (5, 3),
              "norm": (7,), "column": (4, 5)}
    torch.manual_seed(ranks)
    whole = {name: torch.randn(shape) for name, shape in shapes.items()}
    moments = {name: torch.randn(shape) for name, shape in shapes.items()}
    info = {"universal_checkpoint_version": 0.2, "original_vocab_size": 5,
            "tp_replicated_parameter_patterns": ["norm"],
            "parameter_with_row_parallelism_patterns": ["r.w$"],
            "parameter_with_2_sub_params_cat_dim_0": ["^gate"],
            "vocabulary_parameter_patterns": ["(emb|unembed)"],
            "parameter_with_sub_params": [
                {"patterns": ["qkv"], "shape": ((4, 2, 2), -1),
                 "partition_dim": 0}]}
    step = folder / "step"
    step.mkdir()
    for t in (0, 1):
        local = {n: slices_of(w, n)[t] for n, w in whole.items()}
        states = {"module": {n: w.bfloat16() for n, w in local.items()},
                  "buffer_names": [], "param_shapes": [
                      {n: w.shape for n, w in local.items()}],
                  "checkpoint_parallel_dimensions": {"tp_degree": 2,
                                                     "pp_degree": 1},
                  "universal_checkpoint_info": info, "ds_version": "0.16.0"}
        torch.save(states, step / f"mp_rank_0{t}_model_states.pt")
        flats = []
        for source in (whole, moments):
            flat = torch.cat([slices_of(source[n], n)[t].flatten()
                              for n in local])
            pad = -len(flat) % (2 * ranks)
            flats.append(torch.cat([flat, torch.zeros(pad)]).chunk(ranks))
        for r in range(ranks):
            torch.save({"optimizer_state_dict": {
                "zero_stage": 2, "partition_count": [ranks],
                "single_partition_of_fp32_groups": [flats[0][r].clone()],
                "base_optimizer_state": {"state": {0: {
                    "exp_avg": flats[1][r].clone()}}, "param_groups": []}}},
                step / f"zero_pp_rank_{r}_mp_rank_0{t}_optim_states.pt")
    out = folder / "out.safetensors"
    CKPT.ok("unshard", step, out)
    want = {n: from_torch(w) for n, w in whole.items()}
    want |= {f"{n}.exp_avg": from_torch(m) for n, m in moments.items()}
    compare(read_safetensors(out), want, "joined")
    CKPT.ok("verify", step, out)


# -------------------------------------------------------------------- damage
def test_flip(folder, case):
    """A flipped bit of any partition is found and named."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / case / "ckpt", copy)
    for file in sorted(copy.rglob("*_states.pt")):
        data = bytearray(file.read_bytes())
        at = data.find(b"data/0")
        payload = -(-(at + 6) // 64) * 64  # torch aligns payload to 64 bytes
        data[payload] ^= 1
        file.write_bytes(data)
        result = CKPT.run("verify", copy)
        check(result.code in (1, 4), f"not found\n{result}")
        check(file.name in result.out + result.err, f"not named\n{result}")
        data[payload] ^= 1
        file.write_bytes(data)


def refuse(path, code, *words):
    result = CKPT.run("inspect", path)
    check_equal(result.code, code, f"exit status\n{result}")
    for word in words:
        check(word in result.err, f"says nothing of {word!r}\n{result}")
    for args in (("verify", path), ("unshard", path, "/nowhere/x.pt")):
        check(CKPT.run(*args).code, f"{args[0]} does not refuse")


def test_missing_partition(folder):
    refuse(BAD / "missing_partition", 4, "partition_count", "partition 2 of 4")


def test_swapped(folder):
    refuse(BAD / "swapped_partitions", 4, "param_slice_mappings", "rank_1_")


def test_traversal(folder):
    refuse(BAD / "latest_traversal", 8, "latest", "not a plain name")


def test_last_partition_missing(folder, case):
    """No file number shows it, but partition_count does."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / case / "ckpt", copy)
    file = sorted(copy.rglob("*_optim_states.pt"))[-1]
    file.unlink()
    refuse(copy, 4, "partition")


def test_no_model_states(folder, case):
    copy = folder / "copy"
    shutil.copytree(GOLDENS / case / "ckpt", copy)
    for file in copy.rglob("*_model_states.pt"):
        file.unlink()
    refuse(copy, 4, "model_states.pt")


def test_no_optimizer(folder, case):
    """ZeRO 1 and 2 leave the module's rounded weights, with a clear warning;
    ZeRO 3 leaves nothing."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / case / "ckpt", copy)
    for file in copy.rglob("*_optim_states.pt"):
        file.unlink()
    if case.startswith("zero3"):
        refuse(copy, 4, "_optim_states.pt")
        return
    result = CKPT.ok("inspect", copy)
    check("fp32 masters are not here" in result.out + result.err, f"{result}")
    want, _ = wanted(case)
    rows = {r["name"]: r for r in CKPT.inspect(copy)["tensors"]}
    check_equal(set(rows), set(want), "names")


def test_other_case(folder, case, other):
    """A partition of the same name from another run."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / case / "ckpt", copy)
    file = sorted(copy.rglob("*_optim_states.pt"))[0]
    shutil.copy(step_folder(other) / file.name, file)
    refuse(copy, 4, file.name)


def test_unnamed_frozen(folder):
    """No rule names the frozen parameters: equal ones are replicas, others are
    joined by DeepSpeed's default; both with a warning."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / "zero1_tp2_dp2" / "ckpt", copy)
    result = CKPT.ok("inspect", copy)
    check("frozen.weight" in result.out + result.err, f"{result}")
    file = copy / "global_step2" / "mp_rank_01_model_states.pt"
    states = load_states(file)
    states["module"]["frozen.weight"] = states["module"]["frozen.weight"] + 1
    torch.save(states, file)
    rows = {r["name"]: r for r in CKPT.inspect(copy, "--digest")["tensors"]}
    first = model_states(copy / "global_step2")["module"]["frozen.weight"]
    both = torch.cat([first, states["module"]["frozen.weight"]])
    check_equal(rows["frozen.weight"]["digest"],
                digest(from_torch(both).data), "joined")
    check_equal(rows["frozen.bias"]["shape"], [3], "the replicated one")


def test_no_rules(folder):
    """Tensor-parallel ranks, and nothing says how to join them."""
    copy = folder / "copy"
    shutil.copytree(GOLDENS / "zero1_tp2_dp2" / "ckpt", copy)
    for file in copy.rglob("*_model_states.pt"):
        states = load_states(file)
        del states["universal_checkpoint_info"]
        torch.save(states, file)
    result = CKPT.run("inspect", copy).want(5)
    check("universal_checkpoint_info" in result.err, f"{result}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    check_equal(len(CASES), 6, "goldens")
    for case in CASES:
        suite.add(f"{case}: contents", test_contents, case)
        suite.add(f"{case}: unshard", test_unshard, case)
        suite.add(f"{case}: objects", test_objects, case)
        suite.add(f"{case}: a flipped bit", test_flip, case)
        for to in ("dcp", "safetensors", "torch"):
            suite.add(f"{case}: convert to {to}", test_convert, case, to)
    for case in WITH_ZERO:
        suite.add(f"{case}: the peer's universal", test_universal, case)
        suite.add(f"{case}: no model states", test_no_model_states, case)
        for source in ("ckpt", "other/universal"):
            suite.add(f"{case}: universal from {source}",
                      test_write_universal, case, source)
        suite.add(f"{case}: last partition missing",
                  test_last_partition_missing, case)
        suite.add(f"{case}: no optimizer states", test_no_optimizer, case)
    for ranks in (1, 2, 3, 7):
        suite.add(f"joined by rules, {ranks} partitions", test_rules, ranks)
    suite.add("what can't be written", test_not_written)
    suite.add("missing partition", test_missing_partition)
    suite.add("swapped partitions", test_swapped)
    suite.add("latest leads out", test_traversal)
    suite.add("a partition of another run", test_other_case, "zero1_dp2",
              "zero2_dp4")
    suite.add("a partition of another run, ZeRO 3", test_other_case,
              "zero3_dp2", "zero3_dp4_subgroups")
    suite.add("frozen parameters without a rule", test_unnamed_frozen)
    suite.add("no rules for tensor-parallel ranks", test_no_rules)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
