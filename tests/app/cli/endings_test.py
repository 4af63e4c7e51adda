#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ending of a target's name against the format that is written: no command
makes a directory with a file's name unless a trailing slash asks for one."""

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare

# What each ending is the name of; None: nothing that ckpt writes.
ENDINGS = {"safetensors": "safetensors", "ckpt": "torch", "pt": "torch",
           "pth": "torch", "bin": "torch", "gguf": None, "distcp": None,
           "npz": "numpy", "npy": "numpy"}


def a_file_of(folder, form):
    import torch
    from safetensors.torch import save_file

    tensors = {"w": torch.arange(6.0).reshape(2, 3)}
    if form == "safetensors":
        save_file(tensors, folder / "a.safetensors")
        return folder / "a.safetensors"
    torch.save(tensors, folder / "a.pt")
    return folder / "a.pt"


def test_file(folder, own, command):
    source = a_file_of(folder, own)
    for ending, form in ENDINGS.items():
        out = folder / f"out.{ending}"
        ran = CKPT.run(command, source, out)
        check_equal(ran.code == 0, own == form, f"{ran}")
        check_equal(out.is_file(), own == form, f"{ran}")
        check(not out.is_dir(), f"{ran}")


def test_step(folder):
    """A Trainer's step of an adapter, whose format is safetensors."""
    step = DATA / "runs/hf_trainer_lora/ckpt/checkpoint-4"
    for ending, form in ENDINGS.items():
        out = folder / f"lora.{ending}"
        ran = CKPT.run("reshard", step, out)
        if form == "safetensors":
            check(ran.code == 0 and out.is_file(), f"{ran}")
            continue
        ran.want(2)
        check("directory" in ran.err and not out.exists(), f"{ran}")
        CKPT.ok("reshard", step, f"{out}/")
        check(out.is_dir(), ending)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for command in ("reshard", "salvage"):
        for own in ("safetensors", "torch"):
            suite.add(f"{command} of {own}", test_file, own, command)
    suite.add("reshard of a step", test_step)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
