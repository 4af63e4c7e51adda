#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own CheckpointManager loads what ckpt makes of verl's steps, and
its own adapter gives transformers' names back: model and moments are those that
verl's live objects had. What it saves then is the same step again.
"""

import subprocess
import sys
from pathlib import Path

from runs_write_test import free_port
from support import (
    DATA, Failure, Skip, Suite, check, check_equal, read_safetensors)

CKPT = None  # set by prepare
HERE = Path(__file__).resolve().parent
PEER = Path(sys.prefix) / "torchtitan"
STEP = DATA / "runs/verl_fsdp2_w2/ckpt/global_step_10/actor"


def test_load(folder, ranks):
    import torch

    if not (PEER / "torchtitan").is_dir():
        raise Skip("torchtitan is not installed")
    (folder / "checkpoint").mkdir()
    CKPT.ok("convert", STEP, folder / "checkpoint/step-10", "--to", "run",
            "--trainer", "torchtitan", "--dp", 2)
    port = str(free_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", HERE / "runs_titan_peer.py",
         str(folder), str(folder / "out.pt"), str(ranks), str(rank), port],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    for one in running:
        try:
            said = one.communicate(timeout=240)[0]
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{ranks} ranks hang") from None
        check(one.returncode == 0, f"{ranks} ranks: {said[-3000:]}")
    found = torch.load(folder / "out.pt", weights_only=True)
    check_equal(found["step"], 10, "step")
    check_equal(found["steps"], [10.0], "the optimizer's steps")
    count = 0
    for what in ("expected", "expected_optim"):
        path = DATA / f"runs/verl_fsdp2_w2/{what}.safetensors"
        for name, tensor in read_safetensors(path).items():
            role, _, rest = name.partition(".")
            if role != "actor" or rest.endswith(".step"):
                continue
            mine = found["model"].get(rest)
            check(mine is not None, f"{rest} did not come in")
            check_equal(mine.numpy().tobytes(), bytes(tensor.data), rest)
            count += 1
    check_equal(count, 36, "tensors")
    # And ckpt reads what torchtitan saves of it: nothing was trained.
    steps = [folder / f"checkpoint/step-{step}" for step in (10, 11)]
    CKPT.ok("verify", steps[1], "--deep")
    CKPT.ok("verify", *steps)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for ranks in (1, 2) if suite.full else (2,):
        suite.add(f"with {ranks} ranks", test_load, ranks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
