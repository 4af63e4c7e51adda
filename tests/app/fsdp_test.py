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
    suite.add("numbers that don't add up", test_wrong_numbers)
    suite.add("files that don't fit", test_wrong_files)
    suite.add("padding is zero", test_padding_is_zero)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
