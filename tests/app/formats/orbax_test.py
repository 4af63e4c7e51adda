#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Orbax's trees of zarr arrays. The golden was written by orbax-checkpoint on
two devices (tests/generators/jax_orbax.py), and holds the arrays as numpy saw
them."""

import json
import random
import shutil

import torch

from support import (
    DATA, Suite, check, check_equal, compare, read_safetensors, torch_tensors)

CKPT = None
GOLDEN = DATA / "orbax/pytree_zarr2"


def wanted():
    return read_safetensors(GOLDEN / "expected.safetensors")


def copy(folder, name="ckpt"):
    return shutil.copytree(GOLDEN / "ckpt", folder / name)


def refused(path, code, *words):
    said = CKPT.run("inspect", path).want(code)
    for word in words:
        check(word in said.err, f"no '{word}' in {said}")


def test_golden(folder):
    source = GOLDEN / "ckpt"
    shown = CKPT.inspect(source)
    check_equal(shown["format"], "orbax", "format")
    CKPT.ok("convert", source, folder / "out.safetensors", "--to",
            "safetensors")
    compare(read_safetensors(folder / "out.safetensors"), wanted(), "arrays")
    CKPT.ok("unshard", source, folder / "out.pt")
    value = torch.load(folder / "out.pt")
    compare(torch_tensors(value), wanted(), "torch's file")
    shown_text = CKPT.ok("inspect", source, "--objects").out
    check('"run"' in shown_text, shown_text)
    CKPT.ok("verify", source, "--deep")
    kinds = {t["name"]: t["kind"] for t in shown["tensors"]}
    check_equal(kinds["opt_state.0.mu"], "optim", "kind")
    check_equal(kinds["params.out"], "model", "kind")


def test_steps(folder):
    """A CheckpointManager's root: the newest step. An uncommitted one has
    another name."""
    for step in (5, 40, 7):
        copy(folder, f"run/{step}/default")
    copy(folder, "run/50.orbax-checkpoint-tmp-1/default")
    for path in (folder / "run", folder / "run/40",
                 folder / "run/40/default"):
        shown = CKPT.inspect(path)
        check(shown["path"].endswith("run/40/default")
              or path.name == "default", shown["path"])
        check_equal(len(shown["tensors"]), len(wanted()), "tensors")


def test_damaged(folder):
    path = copy(folder, "chunk")
    (path / "params.dense.kernel/1.0").unlink()
    refused(path, 4, "params.dense.kernel", "chunk 1.0 is missing")
    path = copy(folder, "array")
    shutil.rmtree(path / "params.out")
    refused(path, 4, "params.out", "has no .zarray")
    path = copy(folder, "tree")
    tree = json.loads((path / "_METADATA").read_text())
    tree["tree_metadata"]["x"] = {
        "key_metadata": [{"key": "../../etc", "key_type": 2}],
        "value_metadata": {"value_type": "jax.Array"}}
    (path / "_METADATA").write_text(json.dumps(tree))
    refused(path, 4, "don't make a file's name")
    path = copy(folder, "text")
    (path / "_strings.json").write_text("{}")
    refused(path, 4, "name: is not there")
    path = copy(folder, "cut")
    file = path / "params.dense.kernel/0.0"
    file.write_bytes(file.read_bytes()[:-3])
    CKPT.run("verify", path, "--deep").want(1)
    path = copy(folder, "bytes")
    data = (path / "_METADATA").read_bytes()
    rng = random.Random(1)
    for _ in range(40):
        bad = bytearray(data)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        (path / "_METADATA").write_bytes(bad)
        said = CKPT.run("inspect", path)
        check(said.code in (0, 3, 4, 5, 7), str(said))


def test_refused(folder):
    path = copy(folder, "three")
    (path / "step/zarr.json").write_text("{}")
    refused(path, 5, "zarr 3", "use_zarr3=False")
    path = folder / "database"
    path.mkdir()
    shutil.copy(GOLDEN / "ckpt/_METADATA", path)
    (path / "manifest.ocdbt").write_bytes(b"x")
    refused(path, 3, "orbax.checkpoint")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for test in (test_golden, test_steps, test_damaged, test_refused):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
