#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Directories of whole tensors as OLMo-core's own unshard writes them: one
file of each kind, one file for each tensor, chunks.

The expected files are the peer's (unsharded/ in its goldens). That OLMo-core
itself unshards to the same is in olmo_core_test.
"""

from golden_test import plain
from support import (
    DATA, Suite, check, check_equal, compare, load_pt, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "olmo_core_dcp"
V1 = DATA / "olmo_core_v1"
CASES = ("state_unflat_w2", "model_only_w1")


def files_of(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*")
                  if p.is_file() and not p.name.startswith("."))


def load(path):
    return plain(load_pt(path))


def test_one_file(folder, case):
    """model.pt and optim.pt like the peer's, and the same as safetensors, which
    open as one checkpoint."""
    source, peer = GOLDENS / case / "ckpt", GOLDENS / case / "unsharded"
    out = folder / "pt"
    CKPT.ok("unshard", source, out, "--verify", "--to", "torch")
    check_equal(files_of(out), files_of(peer / "pt"), "files")
    for name in files_of(out):
        check_equal(load(out / name), load(peer / "pt" / name), name)
    out = folder / "safetensors"
    CKPT.ok("unshard", source, out, "--verify")
    compare(read_safetensors(out / "model.safetensors"),
            read_safetensors(peer / "safetensors/model.safetensors"),
            "model.safetensors")
    if (peer / "pt/optim.pt").exists():
        compare(read_safetensors(out / "optim.safetensors"), read_safetensors(
            GOLDENS / case / "expected_optim.safetensors"), "the optimizer")
        check_equal(load(out / "objects.pt")["param_groups"],
                    load(peer / "pt/optim.pt")["param_groups"], "objects.pt")
    CKPT.ok("verify", out)
    CKPT.ok("verify", source, out)


def test_per_tensor(folder, case):
    """The peer's file names, and one tensor in each."""
    source, peer = GOLDENS / case / "ckpt", GOLDENS / case / "unsharded"
    out = folder / "out"
    CKPT.ok("unshard", source, out, "--per-tensor", "--model-only", "--verify")
    want = peer / "per_tensor"
    check_equal(files_of(out), files_of(want), "files")
    for name in files_of(want):
        compare(read_safetensors(out / name), read_safetensors(want / name),
                name)
    CKPT.ok("unshard", source, folder / "pt", "--per-tensor", "--model-only",
            "--to", "torch")
    for name in files_of(want):
        got = load_pt(folder / "pt" / name.replace(".safetensors", ".pt"))
        check_equal(list(got), list(read_safetensors(want / name)), name)


def test_chunks(folder, case):
    """The peer's chunks; the folder opens as one checkpoint."""
    source, peer = GOLDENS / case / "ckpt", GOLDENS / case / "unsharded"
    want = peer / "chunks/model"
    sizes = [sum(len(t.data) for t in read_safetensors(want / n).values())
             for n in files_of(want)]
    limit = max(sizes)
    out = folder / "out"
    CKPT.ok("unshard", source, out, "--model-only", "--max-shard-size",
            f"{limit}B", "--verify")
    names = [n for n in files_of(out / "model") if n.endswith(".safetensors")]
    merged, expected = {}, {}
    for name in names:
        chunk = read_safetensors(out / "model" / name)
        size = sum(len(t.data) for t in chunk.values())
        check(size <= limit or len(chunk) == 1, f"{name}: {size} bytes")
        merged |= chunk
    for name in files_of(want):
        expected |= read_safetensors(want / name)
    compare(merged, expected, "all chunks")
    if sum(sizes) > limit:
        check(len(names) > 1, "one chunk holds all")
    document = CKPT.inspect(out / "model")
    check_equal({t["name"] for t in document["tensors"]}, set(expected),
                "what inspect finds")
    CKPT.ok("verify", out / "model")


def test_optimizer(folder, options):
    """The optimizer, including its non-tensor values, in the other forms."""
    case = "state_unflat_w2"
    source, peer = GOLDENS / case / "ckpt", GOLDENS / case / "unsharded"
    out = folder / "out"
    CKPT.ok("unshard", source, out, *options, "--verify")
    got = {}
    for path in (out / "optim").glob("*.safetensors"):
        got |= read_safetensors(path)
    compare(got, read_safetensors(
        GOLDENS / case / "expected_optim.safetensors"), "optimizer")
    check_equal(load(out / "objects.pt")["param_groups"],
                load(peer / "pt/optim.pt")["param_groups"], "objects.pt")


def test_v1(folder, case):
    """Generation 1: the numbered state that its unshard_optim_state returns."""
    out, pt, lone = folder / "out", folder / "pt", folder / "optim.pt"
    source = V1 / case / "ckpt"
    CKPT.ok("unshard", source, out, "--verify")
    for part, want in (("model", "expected"), ("optim", "expected_optim")):
        compare(read_safetensors(out / f"{part}.safetensors"),
                read_safetensors(V1 / case / f"{want}.safetensors"), part)
    CKPT.ok("unshard", source, pt, "--verify", "--to", "torch")
    check_equal(files_of(pt), ["model.pt", "optim.pt"], "files")
    CKPT.ok("unshard", source, lone, "--optim-only")
    check_equal(load(pt / "optim.pt"), load(lone), "optim.pt")


def test_others(folder, case):
    """Any other format, one file for each tensor."""
    source, out = DATA / case / "ckpt", folder / "out"
    CKPT.ok("unshard", source, out, "--per-tensor", "--verify", "--model-only")
    got = {}
    for path in out.rglob("*.safetensors"):
        got |= read_safetensors(path)
    whole = folder / "whole.safetensors"
    CKPT.ok("unshard", source, whole, "--model-only")
    compare(got, read_safetensors(whole), "all files")


def test_refusals(folder):
    source = GOLDENS / "state_unflat_w2/ckpt"
    for target, options in (
            ("a.pt", ("--per-tensor",)), ("a.pt", ("--to", "torch")),
            ("a", ("--to", "dcp")),
            ("a", ("--per-tensor", "--max-shard-size", "1MB"))):
        CKPT.run("unshard", source, folder / target, *options).want(2)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        suite.add(f"{case}: one file of each kind", test_one_file, case)
        suite.add(f"{case}: a file for each tensor", test_per_tensor, case)
        suite.add(f"{case}: chunks", test_chunks, case)
    for options in (("--per-tensor",), ("--max-shard-size", "20kB")):
        suite.add(f"the optimizer: {' '.join(options)}", test_optimizer,
                  options)
    for case in ("fsdp_olmo_w2", "plain_w1"):
        suite.add(f"olmo_core_v1 {case}", test_v1, case)
    for case in ("dcp/fsdp2_w2_adamw", "megatron_torch_dist/gpt_tp2_pp2_v0161"):
        suite.add(f"{case}: a file for each tensor", test_others, case)
    suite.add("refusals", test_refusals)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
