#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron-core 0.9 and its tensorstore open what ckpt writes as megatron_zarr,
whatever core wrote the source: 0.16 has values of classes that 0.9 lacks."""

import json
import sys
from pathlib import Path

from peer import Peer
from support import DATA, Failure, Skip, Suite, check

CKPT = None
FOLDER = Path(sys.prefix) / "megatron_core_0.9.0"
PROGRAM = Peer("megatron_peer.py", PYTHONPATH=str(FOLDER),
               # torch at that time read whole pickles.
               TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")


def load(kind, path, folder, topology, world, **more):
    expected = [str(folder / name) for name in (
        "expected.safetensors", "expected_optim.safetensors")
        if (folder / name).exists()]
    model = json.loads((folder / "case.json").read_text()).get("model") or {}
    step = next(iter(path.glob("iter_*")), path)
    wrong = PROGRAM.ask(dict(
        kind=kind, path=str(step), expected=expected, topology=topology,
        world=world, model=model, gated=model.get("swiglu", True), **more))
    if wrong:
        raise Failure(f"{kind} of megatron-core 0.9 on {world} processes "
                      f"({topology}): {wrong}")


# format and case, options of the conversion, (kind, topology, processes)
CASES = (
    ("megatron_torch_dist", "gpt_tp2_pp2_v0161", "--tp 4 --pp 1", (
        ("plain", {}, 1), ("keys", {"tp": 2}, 2))),
    ("megatron_torch_dist", "gpt_singleton_shards_tp2_v0161", "", (
        ("plain", {}, 1),)),
    ("megatron_torch_dist", "moe_tp1_ep2_pp2_v0161", "--tp 2", (
        ("plain", {}, 1), ("keys", {"tp": 2}, 2))),
    ("megatron_torch_dist", "gpt_optim_fully_reshardable_v0161", "--tp 1", (
        ("plain", {}, 1),)),
    ("megatron_torch_dist", "gpt_optim_dp_reshardable_v0161", "", (
        ("plain", {}, 1),)),
    ("megatron_torch_dist", "gpt_common_state_tp2_v0190", "", (
        ("plain", {}, 1),)),
    ("megatron_zarr", "gpt_zarr_tp2_pp2_v0090", "--tp 4 --pp 1", (
        ("plain", {}, 1), ("keys", {"tp": 2}, 2))),
)


def test_case(scratch, form, case, options, loads):
    if not FOLDER.exists():
        raise Skip("megatron-core 0.9 is not in .venv (scripts/test.sh)")
    out = scratch / "out"
    result = CKPT.ok("convert", DATA / form / case / "ckpt", out, "--to",
                     "megatron_zarr", *options.split(), "-v")
    if case == "gpt_tp2_pp2_v0161":
        check("AttnBackend" in result.err, f"nothing is said of it: {result}")
    CKPT.ok("verify", out)
    for kind, topology, world in loads:
        load(kind, out, DATA / form / case, topology, world)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for form, case, options, loads in CASES:
        suite.add(f"{case} {options}", test_case, form, case, options, loads)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
