#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Main weights that are not their weights. megatron-core 0.19.2 itself saves
fully_reshardable optimizer states of several padded buckets, each after the
first shifted: `verify` finds it in every format that such a checkpoint is
carried into, and writers say so. What it saves in one bucket is sound."""

import sys
from pathlib import Path

from peer import Peer
from support import Skip, Suite, check, check_equal

CKPT = None
CORE = Path(sys.prefix) / "megatron_core_0.19.2"
PROGRAM = Peer("megatron_peer.py", PYTHONPATH=str(CORE))
MODEL = {"layers": 2, "hidden": 24, "heads": 4, "groups": 2, "ffn": 40,
         "vocab": 96, "seq": 16, "swiglu": True, "bias": True, "tied": False,
         "pos": "rope"}
BUCKET = 3000  # elements; padding to 128 follows each

TARGETS = {
    "torch_dist": ("megatron_torch_dist", "--tp", 2, "--pp", 1, "--dp", 1),
    "zarr": ("megatron_zarr",), "dcp": ("dcp",), "torch": ("torch",),
    "safetensors": ("safetensors",),
    "legacy": ("megatron_legacy", "--tp", 1, "--pp", 1),
}


def save(folder, topology, bucket):
    if not CORE.exists():
        raise Skip("megatron-core 0.19 is not installed")
    path = folder / "saved"
    path.mkdir()
    sizes = {"tp": 1, "pp": 1, **topology}
    job = {"kind": "save", "path": str(path), "expected": [], "model": MODEL,
           "topology": topology, "world": 2 * sizes["tp"] * sizes["pp"]}
    if bucket:
        job["bucket"] = bucket
    wrong = PROGRAM.ask(job)
    check(not wrong, f"megatron-core saves: {wrong}")
    return path


def wrong_weights(path, folder):
    """How many main weights do not round to their weights, as torch sees
    them: of all parameters that have such an element, their names."""
    from safetensors.torch import load_file

    plain = folder / "plain.safetensors"
    CKPT.ok("unshard", path, plain, "--no-manifest")
    tensors = load_file(plain)
    prefix = "optimizer.state.param."
    return {name.removeprefix(prefix) for name, main in tensors.items()
            if name.startswith(prefix)
            and (main.bfloat16() != tensors[name.removeprefix(prefix)]).any()}


def named(path, *options):
    report = CKPT.run("verify", path, "--json", *options).want(1).json()
    kinds = {}
    for problem in report["problems"]:
        kinds.setdefault(problem["kind"], []).append(problem)
    return kinds


def test_shifted(folder, topology):
    path = save(folder, topology, BUCKET)
    wrong = wrong_weights(path, folder)
    check(wrong, "megatron-core shifts them")
    kinds = named(path, "--deep")
    check_equal({p["tensor"] for p in kinds["main_weight"]}, wrong, "names")
    (bug,) = kinds["shifted_optimizer"]
    check("0.19.2" in bug["message"] and "5077" in bug["message"],
          f"names the bug and its versions: {bug}")
    check("shifted_optimizer" in named(path), "found without --deep")
    CKPT.ok("verify", path, "--quick")
    CKPT.ok("convert", path, folder / "model", "--to", "megatron_torch_dist",
            "--model-only")
    CKPT.ok("verify", folder / "model", "--deep")


def test_carried(folder):
    path = save(folder, {}, BUCKET)
    for target, options in TARGETS.items():
        result = CKPT.ok("convert", path, folder / target, "--to", *options,
                         "--json")
        check("shifted_optimizer" in {p["kind"] for p in
                                      result.json()["problems"]},
              f"the writer of {target} warns\n{result}")
        kinds = named(folder / target, "--deep")
        check(kinds["main_weight"], f"found in {target}: {kinds}")


def test_sound(folder, topology):
    path = save(folder, topology, None)
    check(not wrong_weights(path, folder), "one bucket is sound")
    result = CKPT.ok("verify", path, "--deep")
    check("no problems found" in result.out, str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for topology in ({}, {"tp": 2}):
        suite.add(f"several buckets at {topology}", test_shifted, topology)
    suite.add("carried into every format", test_carried)
    for topology in ({}, {"pp": 2}):
        suite.add(f"one bucket at {topology}", test_sound, topology)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
