#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeRO's partitions for another number of ranks, held against DeepSpeed.

DeepSpeed saves a checkpoint; ckpt writes it for other ranks; DeepSpeed resumes
there, and loss, masters and moments after one more step are, bit for bit, those
of the unchanged run. Files without DeepSpeed: goldens that it wrote, read again.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from peer import find
from support import (
    DATA, HANG, Failure, Skip, Suite, check, check_equal, held_port,
    read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "deepspeed"
GOLDENS = DATA / "deepspeed"


def peer(mode, stage, directory, out, ranks, sub_group,
         script="deepspeed_peer.py"):
    if not (PEER / "deepspeed").is_dir():
        raise Skip("DeepSpeed is not installed (scripts/test.sh does it)")
    port = str(held_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", find(script), mode,
         str(stage), str(directory), str(out), str(ranks), str(rank), port,
         str(sub_group)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    for one in running:
        try:
            said = one.communicate(timeout=HANG)[0]
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{mode}: {ranks} ranks hang") from None
        check(one.returncode == 0, f"{mode} at {ranks}: {said[-3000:]}")


def resumed(stage, directory, out, ranks, sub_group, mode="resume", **script):
    import torch

    peer(mode, stage, directory, out, ranks, sub_group, **script)
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
    """DeepSpeed's masters equal what its own zero_to_fp32 made."""
    out = folder / "out"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, "--dp", ranks, "--verify")
    got = resumed(stage, out, folder / "got.pt", ranks, 0)["loaded"]
    want = read_safetensors(GOLDENS / case / "expected.safetensors")
    for name, tensor in want.items():
        if name.startswith(("frozen", "scale")):
            continue  # the peer widens them
        check_equal(got[name].numpy().tobytes(), bytes(tensor.data), name)


def test_universal(folder, case, stage, ranks):
    """DeepSpeed's engine continues from the universal checkpoint that ckpt
    makes as it does from the one that its own ds_to_universal made, and the
    masters are those of the source."""
    import torch

    out, source = folder / "out", GOLDENS / case
    CKPT.ok("convert", source / "ckpt", out, "--to", "deepspeed")
    got, want = (resumed(stage, path, folder / "state.pt", ranks, 0,
                         "universal")
                 for path in (out, source / "other/universal"))
    check_equal(got["loss"], want["loss"], "loss")
    for when in ("loaded", "stepped"):
        check_equal(sorted(got[when]), sorted(want[when]), "names")
        for name, tensor in want[when].items():
            check(torch.equal(got[when][name], tensor), f"{name}, {when}")
    for name, tensor in read_safetensors(source / "expected.safetensors").items():
        if name.startswith(("frozen", "scale")):
            continue  # not in a universal checkpoint of DeepSpeed's
        check_equal(got["loaded"][name].numpy().tobytes(), bytes(tensor.data),
                    name)


def test_golden(folder, case, stage, before, after):
    """What DeepSpeed wrote, with frozen parameters and a buffer."""
    compare(GOLDENS / case / "ckpt", stage, before, after, folder)


def test_resume(folder, stage, before, after, sub_group=0):
    source = folder / "source"
    peer("save", stage, source, "-", before, sub_group)
    compare(source, stage, before, after, folder, sub_group)


def test_trainer(folder, stage, before, after):
    """Hugging Face's Trainer resumes its step with other ranks: the masters
    equal the saved ones, and after one more step loss, masters and moments
    equal those of the unchanged run."""
    import torch

    script = {"script": "zero_trainer_peer.py"}
    run, step = folder / "run", folder / "run/checkpoint-2"
    peer("save", stage, run, "-", before, 0, **script)
    want = resumed(stage, step, folder / "want.pt", before, 0, **script)
    for ranks in after:
        out = folder / f"checkpoint-{ranks}"
        CKPT.ok("reshard", step, out, "--dp", ranks, "--verify")
        CKPT.ok("verify", step, out)
        got = resumed(stage, out, folder / f"got{ranks}.pt", ranks, 0, **script)
        check(abs(got["loss"] - want["loss"]) < 1e-5, f"{got['loss']}")
        # As above: the mean of three gradients is rounded differently.
        for when in ("loaded", "stepped") if ranks != 3 else ("loaded",):
            check_equal(sorted(got[when]), sorted(want[when]), "names")
            for name, tensor in want[when].items():
                check(torch.equal(got[when][name], tensor),
                      f"{name} at {ranks} ranks, {when}")


def test_again(folder, case, ranks):
    """A golden for other ranks and back: each file holds what DeepSpeed's
    did."""
    from deepspeed_test import load_states, step_folder

    import torch

    def same(a, b, where):
        if isinstance(b, torch.Tensor):
            # ZeRO 3 pads each part with anything; `verify` checks the rest.
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


def load_named(path):
    """Classes of DeepSpeed stand in for themselves, under their own names."""
    import pickle
    import types

    import torch

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if not module.startswith("deepspeed"):
                return super().find_class(module, name)
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                above = ".".join(parts[:end])
                home = sys.modules.setdefault(above, types.ModuleType(above))
            if not hasattr(home, name):
                base = int if name.endswith("Enum") else object
                setattr(home, name, type(name, (base,), {
                    "__module__": module}))
            return getattr(home, name)

    loader = types.ModuleType("named")
    loader.Unpickler, loader.load = Unpickler, pickle.load
    return torch.load(path, pickle_module=loader, weights_only=False)


def optimizers(change):
    """Changes each rank's optimizer state dict."""
    def run(states):
        if "optimizer_state_dict" in states:
            change(states["optimizer_state_dict"])
    return run


def zero_of(key, value):
    def run(states):
        if "ds_config" in states:
            states["ds_config"].setdefault("zero_optimization", {})[key] = value
    return run


def each_base(change):
    return optimizers(lambda s: change(
        s.get("base_optimizer_state", s.get("optimizer_state_dict"))))


def elastic(state):
    state["base_optimizer_state"] = [state["base_optimizer_state"]]


def empty_group(states):
    if states.get("param_shapes"):
        states["param_shapes"].append({})


def nameless(base):
    for one in base["state"].values():
        one[7] = 1.0


def unlike_step(base):
    for group in base["param_groups"]:
        group["params"] = [99]


# Kind, golden, the change to each file, words of the refusal.
REFUSED = [
    ("round robin", "zero1_dp2", zero_of("round_robin_gradients", True),
     "round_robin_gradients"),
    ("alignment", "zero1_dp2", optimizers(
        lambda s: s.update(param_alignment_paddings=[[0, 4]])),
     "parameter_alignment"),
    ("elastic", "zero1_dp2", optimizers(elastic), "elastic"),
    ("an empty group", "zero1_dp2", empty_group,
     "2 groups of partitions, param_shapes"),
    ("a state without a name", "zero1_dp2", each_base(nameless),
     "state without a name"),
    ("sub-groups of another size", "zero3_dp4_subgroups",
     zero_of("sub_group_size", 7), "sub_group_size 7 does not make"),
    ("no groups", "zero3_dp2", each_base(lambda b: b.pop("param_groups")),
     "no param_groups"),
    ("a group of unknown sub-groups", "zero3_dp2", each_base(unlike_step),
     "sub-groups it lacks"),
]


def test_refused(folder, case, change, words):
    """Names the problem and what to do next; nothing is written."""
    import torch

    source = folder / "source"
    shutil.copytree(GOLDENS / case / "ckpt", source)
    for path in source.glob("*/*_states.pt"):
        states = load_named(path)
        change(states)
        torch.save(states, path)
    result = CKPT.run("reshard", source, folder / "out", "--dp", 3)
    check(result.code in (4, 5), f"{result}")  # 4: the reader's own
    check(re.search(words, result.err), result.err)
    check(result.code == 4 or "hint" in result.err, result.err)
    check(not (folder / "out").exists(), "something was written")


def test_refused_form(folder):
    """Tensor parallelism, and what any number of ranks loads as it is."""
    universal = folder / "universal"
    CKPT.ok("convert", GOLDENS / "zero1_dp2" / "ckpt", universal, "--to",
            "deepspeed")
    for source, words in ((GOLDENS / "zero1_tp2_dp2" / "ckpt", "tensor"),
                          (universal, "universal checkpoint")):
        result = CKPT.run("reshard", source, folder / "out", "--dp", 3).want(5)
        check(words in result.err and "hint" in result.err, result.err)
        check(not (folder / "out").exists(), "something was written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("ZeRO 1 of 2 ranks: DeepSpeed loads it with 3", test_loaded,
              "zero1_dp2", 1, 3)
    if suite.full:
        for case, stage, ranks in (
                ("zero1_dp2", 1, 1), ("zero1_dp2", 2, 3), ("zero2_dp4", 2, 2),
                ("zero2_dp4", 1, 1), ("zero3_dp2", 3, 1), ("zero3_dp2", 3, 3)):
            suite.add(f"universal of {case}: ZeRO {stage} with {ranks}",
                      test_universal, case, stage, ranks)
        suite.add("ZeRO 1 of 2 ranks: DeepSpeed resumes with 4", test_golden,
                  "zero1_dp2", 1, 2, [4])
        suite.add("ZeRO 3 of 2 ranks: DeepSpeed resumes with 4", test_golden,
                  "zero3_dp2", 3, 2, [4])
        suite.add("ZeRO 2 of 4 ranks", test_golden, "zero2_dp4", 2, 4, [2, 3])
        suite.add("ZeRO 1 saved now", test_resume, 1, 2, [3, 4])
        suite.add("ZeRO 3 of 4 ranks", test_resume, 3, 4, [2, 3])
        suite.add("ZeRO 3, sub-groups, 2 to 4", test_resume, 3, 2, [4], 20)
        suite.add("ZeRO 3, sub-groups, 4 to 2", test_resume, 3, 4, [2], 12)
        for stage in (1, 3):
            suite.add(f"Hugging Face's Trainer, ZeRO {stage}, 2 to 4",
                      test_trainer, stage, 2, [4])
        suite.add("Hugging Face's Trainer, ZeRO 1, 2 to 3", test_trainer, 1, 2,
                  [3])
    for kind, case, change, words in REFUSED:
        suite.add(f"refused: {kind}", test_refused, case, change, words)
    suite.add("refused: tensor parallelism, universal", test_refused_form)
    for case in ("zero1_dp2", "zero2_dp4", "zero3_dp2", "zero3_dp4_subgroups"):
        for ranks in (3, 5):
            suite.add(f"{case} for {ranks} ranks and home", test_again, case,
                      ranks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
