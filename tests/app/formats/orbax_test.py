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
# The same tree in each way that Orbax stores it.
CASES = ("pytree_zarr2", "pytree_zarr3", "pytree_ocdbt", "pytree_ocdbt_zarr3",
         "pytree_ocdbt_deep")


def wanted():
    return read_safetensors(GOLDEN / "expected.safetensors")


def copy(folder, name="ckpt", case="pytree_zarr2"):
    return shutil.copytree(DATA / "orbax" / case / "ckpt", folder / name)


def refused(path, code, *words):
    said = CKPT.run("inspect", path).want(code)
    for word in words:
        check(word in said.err, f"no '{word}' in {said}")


def test_golden(folder, case):
    source = DATA / "orbax" / case / "ckpt"
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


def test_equal(_):
    """One tree, whatever it is stored in; a step of a run is found."""
    for case in CASES[1:]:
        CKPT.ok("verify", GOLDEN / "ckpt", DATA / "orbax" / case / "ckpt")


def test_manager(folder):
    for case in CASES:
        for step in (5, 40):
            copy(folder, f"{case}/{step}/default", case)
        shown = CKPT.inspect(folder / case)
        check(shown["path"].endswith("40/default"), shown["path"])


def reads_as(path, want):
    """True if what is read is the tree; an error is an answer, too."""
    out = path.parent / "out.safetensors"
    out.unlink(missing_ok=True)
    said = CKPT.run("convert", path, out, "--to", "safetensors")
    check(said.code in (0, 3, 4, 5, 7, 8), str(said))
    return said.code == 0 and compare(read_safetensors(out), want, "arrays") \
        is None


def test_database_damaged(folder):
    """Nodes have checksums, and a value of another size or place is found: a
    flipped bit is an error wherever a node is, and never another name."""
    want = wanted()
    rng = random.Random(3)
    for case in CASES[2:]:
        path = copy(folder, case, case)
        files = sorted(p for p in path.rglob("*") if p.is_file() and (
            p.name == "manifest.ocdbt" or p.parent.name == "d"))
        used = 0
        for file in files:
            data = file.read_bytes()
            for _ in range(12):
                bad = bytearray(data)
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
                file.write_bytes(bad)
                said = CKPT.run("inspect", path)
                check(said.code in (0, 3, 4, 5, 7, 8), str(said))
                if said.code == 0:
                    names = {t["name"] for t in CKPT.inspect(path)["tensors"]}
                    check_equal(names, set(want), "names")
                else:
                    used += 1
            file.write_bytes(data)
        check(used > 20, f"{case}: {used} errors")
        check(reads_as(path, want), "the way back")
        top = path / "manifest.ocdbt"
        data = top.read_bytes()
        top.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        refused(path, 4, "manifest.ocdbt", "CRC-32C")
        top.write_bytes(data)
        # Versions before the newest have files that nothing needs.
        needed = 0
        for file in files:
            if file.match("ocdbt.process_0/manifest.ocdbt"):
                continue  # the common one has its nodes
            data = file.read_bytes()
            for rest in (None, data[:20]):
                file.write_bytes(rest) if rest else file.unlink()
                said = CKPT.run("inspect", path)
                if said.code == 0:
                    check(reads_as(path, want), f"{file.name}: other bytes")
                    continue
                needed += 1
                check_equal(said.code, 4, str(said))
                check(file.name in said.err, str(said))
            file.write_bytes(data)
        check(needed >= 2, f"{needed} files are needed")


def test_shards(folder):
    """A shard's index has a checksum; what it points to is looked at."""
    shards = "params.out/c/0/0"
    path = copy(folder, "index", "pytree_zarr3")
    data = bytearray((path / shards).read_bytes())
    for at in range(len(data) - 4 * 16 - 4, len(data)):
        bad = bytearray(data)
        bad[at] ^= 1
        (path / shards).write_bytes(bad)
        refused(path, 4, "params.out", "CRC-32C")
    (path / shards).write_bytes(data[:30])
    refused(path, 4, "index has 4 chunks")
    (path / shards).unlink()
    CKPT.ok("inspect", path)  # the fill value, as zarr has it
    said = CKPT.run("verify", path)
    check("fill value" in CKPT.ok("inspect", path, "-v").err + said.out,
          str(said))


def test_described(folder):
    """What a description can say and ckpt can't read is named."""
    path = copy(folder, "ckpt", "pytree_zarr3")
    file = path / "params.dense.kernel/zarr.json"
    plain = json.loads(file.read_text())
    inner = plain["codecs"][0]["configuration"]
    for change, code, word in (
            ({"zarr_format": 4}, 4, "zarr_format 4"),
            ({"node_type": "group"}, 4, "not an array"),
            ({"data_type": "string"}, 5, "string"),
            ({"chunk_grid": {"name": "rectangular", "configuration": {}}}, 4,
             "rectangular"),
            ({"codecs": [{"name": "transpose", "configuration": {
                "order": [1, 0]}}, *inner["codecs"]]}, 7, "transpose"),
            ({"codecs": []}, 7, "bytes"),
            ({"shape": [6, 4, 2]}, 4, "dimensions"),
            ({"codecs": [{"name": "sharding_indexed", "configuration": {
                **inner, "chunk_shape": [2, 4]}}]}, 4, "do not divide")):
        file.write_text(json.dumps({**plain, **change}))
        refused(path, code, word)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        suite.add("golden " + case, test_golden, case)
    for test in (test_equal, test_manager, test_steps, test_damaged,
                 test_database_damaged, test_shards, test_described):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
