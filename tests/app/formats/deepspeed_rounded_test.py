#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed keeps 16-bit weights beside their fp32 main weights, which are what
ckpt takes for the model. Another value in one of the two is found by `verify`,
and writers warn."""

import re
import shutil

import torch

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
CASES = ("zero1_dp2", "zero1_tp2_dp2", "zero2_dp4")


def copy(case, folder):
    shutil.copytree(DATA / "deepspeed" / case / "ckpt", folder / "in")
    return folder / "in"


def spoil_module(source):
    """Another value in one weight of the module; returns its name."""
    file = min(source.rglob("*model_states.pt"))
    states = torch.load(file, weights_only=False)
    name, weight = next(
        (n, w) for n, w in states["module"].items()
        if w.dtype in (torch.bfloat16, torch.float16) and w.numel() > 8 and
        any(n in group for group in states["param_shapes"]))
    flat = weight.view(-1)
    flat[1] = flat[1] * 1.5 + 0.25
    torch.save(states, file)
    return name


def test_contradiction(folder, case):
    source = copy(case, folder)
    for more in ((), ("--deep",)):
        CKPT.ok("verify", source, *more)
    done = CKPT.ok("convert", source, folder / "sound", "--to", "safetensors")
    check("main weight" not in done.err, done.err)
    name = spoil_module(source)
    for more in ((), ("--deep",)):
        done = CKPT.run("verify", source, *more)
        check_equal(done.code, 1, str(done))
        check(re.search(f"main_weight: .*{re.escape(name)}", done.out), done.out)
    done = CKPT.ok("convert", source, folder / "out", "--to", "safetensors")
    check("contradicts its fp32 main weight" in done.err, done.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        suite.add(case, test_contradiction, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
