#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeRO's partitions for another number of ranks, held against DeepSpeed.

DeepSpeed saves a checkpoint; ckpt writes it for other ranks; DeepSpeed resumes
there, and loss, masters and moments after one more step are, bit for bit, those
of the unchanged run. Files without DeepSpeed: goldens that it wrote, read again.
"""

import subprocess
import sys
from pathlib import Path

from runs_write_test import free_port
from support import (
    DATA, Failure, Skip, Suite, check, check_equal, read_safetensors)

CKPT = None  # set by prepare
HERE = Path(__file__).resolve().parent
PEER = Path(sys.prefix) / "deepspeed"
GOLDENS = DATA / "deepspeed"


def peer(mode, stage, directory, out, ranks, sub_group):
    if not (PEER / "deepspeed").is_dir():
        raise Skip("DeepSpeed is not installed (scripts/test.sh does it)")
    port = str(free_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", HERE / "deepspeed_peer.py", mode,
         str(stage), str(directory), str(out), str(ranks), str(rank), port,
         str(sub_group)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    for one in running:
        try:
            said = one.communicate(timeout=240)[0]
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{mode}: {ranks} ranks hang") from None
        check(one.returncode == 0, f"{mode} at {ranks}: {said[-3000:]}")


def resumed(stage, directory, out, ranks, sub_group):
    import torch

    peer("resume", stage, directory, out, ranks, sub_group)
    return torch.load(out, weights_only=True)


def compare(source, stage, before, after, folder, sub_group=0):
    import torch

    want = resumed(stage, source, folder / "want.pt", before, sub_group)
    for ranks in after:
        out = folder / f"out{ranks}"
        CKPT.ok("reshard", source, out, "--dp", ranks, "--verify")
        CKPT.ok("verify", source, out)
        got = resumed(stage, out, folder / f"got{ranks}.pt", ranks, sub_group)
        check_equal(got["loss"], want["loss"], f"loss at {ranks}")
        # The mean of three equal gradients is not always that gradient.
        for when in ("loaded", "stepped") if ranks != 3 else ("loaded",):
            check_equal(sorted(got[when]), sorted(want[when]), "names")
            for name, tensor in want[when].items():
                check(torch.equal(got[when][name], tensor),
                      f"{name} at {ranks} ranks, {when}")


def test_loaded(folder, case, stage, ranks):
    """DeepSpeed's masters are those that its own zero_to_fp32 gave."""
    out = folder / "out"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, "--dp", ranks, "--verify")
    got = resumed(stage, out, folder / "got.pt", ranks, 0)["loaded"]
    want = read_safetensors(GOLDENS / case / "expected.safetensors")
    for name, tensor in want.items():
        if name.startswith(("frozen", "scale")):
            continue  # the peer widens them
        check_equal(got[name].numpy().tobytes(), bytes(tensor.data), name)


def test_golden(folder, case, stage, before, after):
    """What DeepSpeed wrote, with frozen parameters and a buffer."""
    compare(GOLDENS / case / "ckpt", stage, before, after, folder)


def test_resume(folder, stage, before, after, sub_group=0):
    source = folder / "source"
    peer("save", stage, source, "-", before, sub_group)
    compare(source, stage, before, after, folder, sub_group)


def test_again(folder, case, ranks):
    """A golden for other ranks and home: each file says what DeepSpeed's did."""
    from deepspeed_test import load_states, step_folder

    import torch

    def same(a, b, where):
        if isinstance(b, torch.Tensor):
            # ZeRO 3 pads each part with anything; `verify` looks at the rest.
            padded = case.startswith("zero3") and b.dim() == 1
            if padded and "module" not in where:
                return check_equal((a.shape, a.dtype), (b.shape, b.dtype), where)
            check(torch.equal(a, b) and a.dtype == b.dtype, where)
        elif isinstance(b, dict):
            check_equal(list(a), list(b), where)
            for key in b:
                same(a[key], b[key], f"{where}.{key}")
        elif isinstance(b, (list, tuple)):
            check_equal(len(a), len(b), where)
            for i, one in enumerate(b):
                same(a[i], one, f"{where}[{i}]")
        elif hasattr(b, "__dict__"):
            same(vars(a), vars(b), where)
        else:
            check_equal(a, b, where)

    source = step_folder(case)
    before = len(list(source.glob("*_optim_states.pt")))
    away, home = folder / "away", folder / "home"
    CKPT.ok("reshard", source.parent, away, "--dp", ranks)
    CKPT.ok("verify", source, away)
    files = sorted((away / "global_step2").glob("*_optim_states.pt"))
    check_equal(len(files), ranks, "files")
    for path in files:
        load_states(path)
    CKPT.ok("reshard", away, home, "--dp", before)
    CKPT.ok("verify", source, home)
    for path in source.glob("*_states.pt"):
        same(load_states(home / "global_step2" / path.name), load_states(path),
             path.name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("ZeRO 1 of 2 ranks: DeepSpeed loads it with 3", test_loaded,
              "zero1_dp2", 1, 3)
    if suite.full:
        suite.add("ZeRO 1 of 2 ranks: DeepSpeed resumes with 4", test_golden,
                  "zero1_dp2", 1, 2, [4])
        suite.add("ZeRO 3 of 2 ranks: DeepSpeed resumes with 4", test_golden,
                  "zero3_dp2", 3, 2, [4])
        suite.add("ZeRO 2 of 4 ranks", test_golden, "zero2_dp4", 2, 4, [2, 3])
        suite.add("ZeRO 1 saved now", test_resume, 1, 2, [3, 4])
        suite.add("ZeRO 3 of 4 ranks", test_resume, 3, 4, [2, 3])
        suite.add("ZeRO 3, sub-groups, 2 to 4", test_resume, 3, 2, [4], 20)
        suite.add("ZeRO 3, sub-groups, 4 to 2", test_resume, 3, 4, [2], 12)
    for case in ("zero1_dp2", "zero2_dp4", "zero3_dp2", "zero3_dp4_subgroups"):
        for ranks in (3, 5):
            suite.add(f"{case} for {ranks} ranks and home", test_again, case,
                      ranks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
