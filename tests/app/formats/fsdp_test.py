#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP's flat parameters: torch's local state dicts, in DCP and as one file per
rank, and fairscale's shards.

The expected results are the peers' own: torch's summon_full_params, fairscale's
consolidate_shard_weights (tests/data/fsdp, make.py). What ckpt writes as DCP is
loaded by torch.
"""

import json
import shutil

from support import (
    DATA, Suite, check, check_equal, compare, load_pt, read_safetensors)

CKPT = None  # set by prepare
FSDP = DATA / "fsdp"
LOCAL = DATA / "dcp/fsdp1_w4_local"


def options_of(case):
    path = FSDP / case / "flat_params.json"
    return ("--flat-params", path) if path.exists() else ()


def expected(case):
    """name -> Tensor, as in the state dict; DCP puts it below "model."."""
    return read_safetensors(FSDP / case / "expected.safetensors")


def bare(tensors):
    return {n.removeprefix("model."): t for n, t in tensors.items()}


def unshard(folder, source, *options):
    out = folder / "out.safetensors"
    CKPT.ok("unshard", source, out, *options, "--verify")
    return read_safetensors(out)


def optimizer(tensors):
    """<parameter>.<state> of names such as optimizer.state.<…>."""
    return {("." + n).rpartition(".state.")[2]: t for n, t in tensors.items()
            if not n.endswith(".step")}


# -------------------------------------------------------------------- reading
def test_model(folder, case):
    """Weights and buffers are the peer's own full ones."""
    got = unshard(folder, FSDP / case / "ckpt", *options_of(case),
                  "--model-only")
    compare(bare(got), bare(expected(case)), "model")
    CKPT.ok("verify", FSDP / case / "ckpt", *options_of(case))


def test_optimizer(folder, case):
    got = unshard(folder, FSDP / case / "ckpt", *options_of(case),
                  "--optim-only")
    want = read_safetensors(FSDP / case / "expected_optim.safetensors")
    compare(optimizer(got), want, "optimizer")
    steps = {n for n in got if n.endswith(".step")}
    check_equal(len(steps) * 2, len(want), "steps")
    params = {t["param"] for t in CKPT.inspect(
        FSDP / case / "ckpt", *options_of(case))["tensors"]
        if t["kind"] == "optim"}
    check_equal(params, {n.rpartition(".")[0] for n in want}, "param")


def test_dcp(folder):
    """LOCAL_STATE_DICT in DCP: unsharded, nested, and by its digests."""
    flat = ("--flat-params", FSDP / "local_w4/flat_params.json")
    want = read_safetensors(LOCAL / "expected.safetensors")
    compare(unshard(folder, LOCAL / "ckpt", *flat), want, "unsharded")
    CKPT.ok("unshard", LOCAL / "ckpt", folder / "out.pt", *flat)
    tree = load_pt(folder / "out.pt")
    check_equal(list(tree), ["model"], "the nest")
    check_equal(set(tree["model"]), set(bare(want)), "names in it")
    # Without the file: shown as it is, with advice on how to give one.
    result = CKPT.ok("inspect", LOCAL / "ckpt", "-v")
    check("--flat-params" in result.err, f"{result}")


def test_reshard(folder, ranks):
    """As plain DCP of any number of ranks, which torch loads."""
    import torch
    import torch.distributed.checkpoint as dcp

    flat = ("--flat-params", FSDP / "local_w4/flat_params.json")
    want = read_safetensors(LOCAL / "expected.safetensors")
    for source in (LOCAL / "ckpt", FSDP / "local_w4/ckpt"):
        out = folder / source.parent.name
        CKPT.ok("convert", source, out, "--to", "dcp", "--dp", ranks, *flat,
                "--verify")
        names = {t["name"] for t in CKPT.inspect(out)["tensors"]}
        state = {n: torch.zeros(t.shape, dtype=torch.int64 if t.dtype == "i64"
                                else torch.float32)
                 for n, t in want.items()
                 if n in names or n.removeprefix("model.") in names}
        state = {n if n in names else n.removeprefix("model."): t
                 for n, t in state.items()}
        check_equal(len(state), len(want), "tensors")
        dcp.load(state, checkpoint_id=out, no_dist=True)
        for name, tensor in state.items():
            full = want.get(name) or want["model." + name]
            check_equal(tensor.contiguous().view(-1).numpy().tobytes(),
                        full.data, name)


def test_select(folder):
    """--keys, --layers and the rest select parameters, not vectors."""
    case = "fairscale_w3"
    got = unshard(folder, FSDP / case / "ckpt", "--model-only",
                  "--layers", "1")
    check_equal({n for n in bare(got) if "layers." in n},
                {n for n in expected(case) if "layers.1." in n}, "layer 1")
    got = unshard(folder, FSDP / case / "ckpt", "--overwrite",
                  "--model-only", "--keys", "*.w1.weight")
    check_equal(set(bare(got)), {n for n in expected(case)
                                 if n.endswith("w1.weight")}, "--keys")


def test_torch_saves_alike(folder):
    """Model and optimizer of one run, each in one file per rank."""
    out = folder / "out.pt"
    CKPT.ok("unshard", FSDP / "torch_w3/ckpt", out, *options_of("torch_w3"))
    tree = load_pt(out)
    want = expected("torch_w3")
    check(set(want) <= set(tree), "not all weights are in it")


# ----------------------------------------------------- without --flat-params
def test_parts_of_state(folder):
    """Each rank's optimizer holds its part of the flat parameters: joined, and
    cut by the list afterwards, it is the peer's own."""
    source = FSDP / "torch_w3/ckpt"
    CKPT.ok("verify", source, "--deep")
    got = unshard(folder, source)
    lengths = {n: t.shape for n, t in got.items() if n.endswith("flat_param")}
    check_equal(list(lengths.values()), [(154,), (161,), (161,)], "flat")
    for state in ("exp_avg", "exp_avg_sq"):
        check_equal([got[f"state.{i}.{state}"].shape for i in range(3)],
                    list(lengths.values()), f"runs of {state}")
    CKPT.ok("convert", source, folder / "dcp", "--to", "dcp", "--verify")
    cut = folder / "cut.safetensors"
    CKPT.ok("unshard", folder / "dcp", cut, "--optim-only",
            *options_of("torch_w3"))
    want = read_safetensors(FSDP / "torch_w3/expected_optim.safetensors")
    compare(optimizer(read_safetensors(cut)), want, "optimizer")


def test_views(folder):
    """With use_orig_params=True each rank has its elements twice."""
    source = FSDP / "torch_orig_params_w3/ckpt"
    CKPT.ok("verify", source, "--deep")
    got = unshard(folder, source)
    check_equal(sorted(got), ["_flat_param", "freqs", "layers.0._flat_param",
                              "layers.1._flat_param"], "names")


def changed_optimizers(folder, change):
    """torch_w3 with change(rank, state of parameter 0)."""
    import torch

    source = folder / "src"
    shutil.copytree(FSDP / "torch_w3/ckpt", source)
    for rank in range(3):
        path = source / f"optim_rank{rank}.pt"
        tree = load_pt(path)
        change(rank, tree["state"][0])
        torch.save(tree, path)
    return source


def test_own_state(folder):
    """State of a rank's part that does not join (maxima of blocks) is kept for
    each rank, whether or not the shapes differ; nothing is lost."""
    import torch

    for same in (True, False):
        where = folder / str(same)
        where.mkdir()
        source = changed_optimizers(where, lambda rank, state: state.update(
            absmax=torch.full((3 if same else 3 + rank,), float(rank))))
        CKPT.ok("verify", source, "--deep")
        result = CKPT.ok("inspect", source, "-v")
        check("nothing says how they join" in result.err, f"{result}")
        got = unshard(where, source)
        for rank in range(3):
            name = f"optim_rank{rank}.state.0.absmax"
            check_equal(set(got[name].data), set(
                torch.tensor(float(rank)).numpy().tobytes()), name)
        check("state.0.absmax" not in got, "one rank's stands for all")
        check_equal(got["state.0.exp_avg"].shape, (154,), "the joined one")


def test_state_of_other_lengths(folder):
    """Runs that are not the flat parameter's are not joined."""
    import torch

    source = changed_optimizers(folder, lambda rank, state: state.update(
        exp_avg=torch.full((51,), float(rank))))
    got = unshard(folder, source)
    check_equal({n: t.shape for n, t in got.items() if "0.exp_avg" in n
                 and "sq" not in n},
                {f"optim_rank{r}.state.0.exp_avg": (51,) for r in range(3)},
                "kept apart")


def test_padding_of_state(folder):
    """What is cut off as padding has to be zeros."""
    def change(rank, state):
        if rank == 2:
            state["exp_avg"][-1] = 1

    source = changed_optimizers(folder, change)
    result = CKPT.run("unshard", source, folder / "out.safetensors").want(5)
    check("pads" in result.err, f"{result}")


def test_lost_rank(folder):
    """The optimizer's file of one rank; rank 0's alone may be for all."""
    source = folder / "src"
    for rank in range(3):
        shutil.copytree(FSDP / "torch_w3/ckpt", source, dirs_exist_ok=True)
        (source / f"optim_rank{rank}.pt").unlink()
        result = CKPT.run("verify", source).want(1)
        check(f"optim_rank{rank}.pt: is missing" in result.out + result.err,
              f"{result}")
    shutil.copytree(FSDP / "torch_w3/ckpt", source, dirs_exist_ok=True)
    for rank in (1, 2):
        (source / f"optim_rank{rank}.pt").unlink()
    CKPT.ok("verify", source, "--deep")


# ---------------------------------------------------------------------- wrong
def refused(source, code, why, *options):
    result = CKPT.run("inspect", source, *options).want(code)
    check(why in result.err and "hint:" in result.err, f"{result}")


def test_wrong_numbers(folder):
    """What doesn't add up is refused; nothing is guessed."""
    units = json.loads((FSDP / "local_w4/flat_params.json").read_text())

    def broken(change, code, why, source=LOCAL / "ckpt"):
        copy = json.loads(json.dumps(units))
        change(copy)
        path = folder / "flat.json"
        path.write_text(json.dumps(copy))
        refused(source, code, why, "--flat-params", path)

    layer, root = "layers.0._flat_param", "_flat_param"
    broken(lambda u: u[layer].pop(), 2, "147 elements")
    broken(lambda u: u[layer][0].update(shape=[8]), 2, "155 elements")
    broken(lambda u: u[root][0].update(shape=[-1]), 2, "expected a count")
    broken(lambda u: u[root][0].pop("name"), 2, "without a name")
    broken(lambda u: u.update({root: []}), 2, "expected a list")
    broken(lambda u: u.update({root: {"parameters": u[root], "align": 4}}), 2,
           "unknown member align")
    broken(lambda u: u.update(other=u.pop(root)), 2, "no tensor of this name")
    broken(lambda u: u[root][0].update(shape=[2**63, 4]), 2, "overflows")
    broken(lambda u: u.update({root: {"parameters": u[root],
                                      "alignment": 4}}), 2, "157 elements")


def test_wrong_files(folder):
    """Ranks that are missing, in the wrong order, or of another checkpoint."""
    source = FSDP / "fairscale_w3/ckpt"
    name = "checkpoint_1_100-shard{}.pt".format

    def copy(what):
        path = folder / what
        shutil.copytree(source, path)
        return path

    path = copy("last")
    (path / name(2)).unlink()
    result = CKPT.run("inspect", path).want(4)
    check("rank" in result.err, f"{result}")
    path = copy("swapped")
    (path / name(2)).rename(path / "x")
    (path / name(0)).rename(path / name(2))
    (path / "x").rename(path / name(0))
    result = CKPT.run("inspect", path).want(4)
    check("padding" in result.err, f"{result}")
    path = copy("gap")
    (path / name(1)).unlink()
    CKPT.run("inspect", path).want(3)


def test_padding_is_zero(folder):
    """A parameter that the list leaves out at the end is not padding."""
    units = json.loads((FSDP / "torch_w3/flat_params.json").read_text())
    source = folder / "src"
    source.mkdir()
    for path in (FSDP / "torch_w3/ckpt").glob("optim_*"):
        shutil.copy(path, source)
    units["layers.0._flat_param"][-1]["shape"] = [6]
    path = folder / "flat.json"
    path.write_text(json.dumps(units))
    CKPT.run("unshard", source, folder / "o.safetensors", "--from", "torch",
             "--flat-params", path).want(5)
    CKPT.ok("unshard", source, folder / "o.safetensors", "--from", "torch",
            *options_of("torch_w3"))


XLA = "_fsdp_wrapped_module."


def xla_files(path, model, units, ranks):
    """What torch_xla's users save: state_dict() and get_shard_metadata() of each
    rank. units: {module: (parameters in one flat one, those alone)}."""
    import torch

    path.mkdir()
    for rank in range(ranks):
        state, shards, flats = {}, {}, {}
        for module, (together, alone) in units.items():
            dot = module + "." if module else ""
            parts = {XLA + "flat_param_0": together}
            parts |= {XLA + name: [name] for name in alone}
            for original, names in parts.items():
                whole = torch.cat([model[dot + n].flatten() for n in names])
                length = -(-len(whole) // ranks)
                padded = torch.zeros(length * ranks)
                padded[:len(whole)] = whole
                name = "_fsdp_shard." + original
                state[dot + name] = padded.chunk(ranks)[rank].clone()
                flat = original.endswith("flat_param_0")
                shards.setdefault(module, {})[name] = {
                    "_orig_name": original, "_orig_size":
                    whole.shape if flat else model[dot + names[0]].shape}
                if flat:
                    flats[dot + original] = (
                        names, [model[dot + n].shape for n in names],
                        [model[dot + n].numel() for n in names])
        torch.save({"model": state, "shard_metadata": {
            "shard_info": shards, "flatten_info": flats, "buffer_info": {},
            "rank": rank, "world_size": ranks}},
            path / f"ckpt_rank-{rank:08}-of-{ranks:08}.pth")


def test_xla(folder, ranks):
    """torch_xla's shards: nested modules, padding, parameters on their own."""
    import torch

    model = {"emb.weight": torch.randn(11, 4), "head.bias": torch.randn(5),
             "layers.0.a.weight": torch.randn(3, 7),
             "layers.0.a.bias": torch.randn(3)}
    xla_files(folder / "run", model, {
        "": (["emb.weight"], ["head.bias"]),
        "layers.0": (["a.weight", "a.bias"], [])}, ranks)
    CKPT.ok("verify", folder / "run")
    check_equal(CKPT.inspect(folder / "run")["parameters"], 73, "parameters")
    CKPT.ok("unshard", folder / "run", folder / "out.pt")
    got = {name.removeprefix("model."): value for name, value in
           torch.load(folder / "out.pt").items()}
    check_equal(sorted(got), sorted(model), "names")
    for name, value in model.items():
        check(torch.equal(got[name], value), name)
    files = sorted((folder / "run").iterdir())
    files[0].rename(folder / "x")
    files[1].rename(files[0])
    (folder / "x").rename(files[1])
    result = CKPT.run("inspect", folder / "run").want(4)
    check("rank" in result.err, f"{result}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in sorted(p.name for p in FSDP.iterdir() if p.is_dir()):
        suite.add(f"{case}: the model", test_model, case)
        if (FSDP / case / "expected_optim.safetensors").exists():
            suite.add(f"{case}: the optimizer", test_optimizer, case)
    suite.add("a local state dict in DCP", test_dcp)
    for ranks in (1, 3):
        suite.add(f"as DCP of {ranks} ranks, loaded by torch", test_reshard,
                  ranks)
    suite.add("selections", test_select)
    suite.add("model and optimizer", test_torch_saves_alike)
    for test in (test_parts_of_state, test_views, test_own_state,
                 test_state_of_other_lengths, test_padding_of_state,
                 test_lost_rank):
        suite.add(test.__name__[5:].replace("_", " "), test)
    suite.add("numbers that don't add up", test_wrong_numbers)
    suite.add("files that don't fit", test_wrong_files)
    suite.add("padding is zero", test_padding_is_zero)
    for ranks in (2, 3):
        suite.add(f"torch_xla: {ranks} ranks", test_xla, ranks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
