#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning's own Trainer resumes what ckpt wrote: a step of its own for other
ranks, and a step of verl's as its. Loss, parameters and moments after one more
step are those of the unchanged step.
"""

import subprocess
import sys
from pathlib import Path

from runs_write_test import same
from peer import find
from support import DATA, HANG, Failure, Skip, Suite, check, held_port

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PEER = Path(sys.prefix) / "lightning"


def fit(model, directory, out, ranks):
    import torch

    if not (PEER / "lightning").is_dir():
        raise Skip("lightning is not installed (scripts/test.sh does it)")
    port = str(held_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", find("runs_lightning_peer.py"),
         model, str(directory), str(out), str(ranks), str(rank), port],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    for one in running:
        try:
            said = one.communicate(timeout=HANG)[0]
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{ranks} ranks hang") from None
        check(one.returncode == 0, f"{ranks} ranks: {said[-3000:]}")
    return torch.load(out, weights_only=True)


def test_own(folder, ranks):
    step = (GOLDENS / "lightning_mp_w2/ckpt/checkpoints/epoch=0-step=4.ckpt")
    want = fit("net", step, folder / "want.pt", 2)
    CKPT.ok("convert", step, folder / "out.ckpt", "--to", "run", "--dp",
            ranks)
    same(fit("net", folder / "out.ckpt", folder / "got.pt", ranks), want,
         f"2 and {ranks} ranks")
    if ranks != 1:
        return
    # The folder as the one file that a single device loads.
    out = folder / "file.ckpt"
    CKPT.ok("convert", step, out, "--to", "run", "--trainer", "lightning",
            "--dp", 1)
    check(out.is_file(), "no file")
    same(fit("net", out, folder / "file.pt", 1), want, "2 ranks and a file")


def test_verl(folder, ranks):
    """verl's files, and Lightning's made from them, for other ranks."""
    step = GOLDENS / "verl_fsdp2_w2/ckpt/global_step_10/actor"
    found = []
    for count in (1, ranks):
        out = folder / f"{count}.ckpt"
        CKPT.ok("convert", step, out, "--to", "run", "--trainer", "lightning",
                "--dp", count)
        found.append(fit("llama", out, folder / f"{count}.pt", count))
    same(found[1], found[0], f"1 and {ranks} ranks")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("a step of Lightning's for 1 rank", test_own, 1)
    if suite.full:
        suite.add("a step of Lightning's for 3 ranks", test_own, 3)
        suite.add("a step of verl's with 2 ranks", test_verl, 2)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
