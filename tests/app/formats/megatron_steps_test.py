#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks' files of torch's Adam, which counts steps for each parameter, become a
distributed checkpoint, which counts them once. The source is Megatron-LM's,
with the counts where torch.optim.AdamW keeps them.
"""

import shutil

import torch
from torch.optim import AdamW

from megatron_legacy_test import ROOT, Opaque, load, step_of
from support import Suite, check, check_equal

CKPT = None  # set by prepare
CASE = ROOT / "llama_te_tp2_pp2/ckpt"
DIST = ("--to", "megatron_torch_dist")


def adam(folder, count):
    """A copy in which parameter i of rank r was updated count(r, i) times."""
    shutil.copytree(CASE, folder)
    files = sorted(step_of(folder).glob("*/model_optim_rng.pt"))
    for rank, file in enumerate(files):
        state = load(file)
        inner = state["optimizer"]["optimizer"]
        for i, values in enumerate(inner["state"].values()):
            step = count(rank, i)
            if step is not None:
                values["step"] = step
        options = AdamW([torch.zeros(1)]).param_groups[0]
        for group in inner["param_groups"]:
            del group["step"], group["bias_correction"]
            for key, value in options.items():
                group.setdefault(key, value)
        args = vars(state["args"])
        for key in [k for k, v in args.items()
                    if isinstance(v, (Opaque, list))]:
            del args[key]
        torch.save(state, file)
    return folder


def number(value, **options):
    return lambda rank, i: torch.tensor(value, **options)


def unless(when, value, other):
    """`value`, and `other` where `when(rank, parameter)` holds."""
    def count(rank, i):
        said = other if when(rank, i) else value
        return None if said is None else torch.tensor(said)
    return count


# Counts that mean 5, however they are stored.
TAKEN = {"f32": number(5.0), "i64 of shape [1]": number([5])}


def counts_of(file):
    """The counts of groups, and of parameters."""
    state = load(file)["optimizer"]
    state = state.get("optimizer", state)
    return ([group.get("step") for group in state["param_groups"]],
            [values["step"] for values in state.get("state", {}).values()
             if "step" in values])


def taken(folder, count):
    """Distributed, the groups have the count; converted back, each parameter
    does, as torch's AdamW requires, and no group."""
    source = adam(folder / "source", count)
    for to, name in (("megatron_torch_dist", "keys"),
                     ("megatron_zarr", "arrays")):
        keys, home = folder / name, folder / f"{name}-home"
        CKPT.ok("convert", source, keys, "--to", to)
        CKPT.ok("verify", source, keys)
        check_equal(counts_of(next(keys.rglob("common.pt"))), ([5, 5], []), name)
        CKPT.ok("convert", keys, home, "--to", "megatron_legacy", "--tp", 2,
                "--pp", 2)
        files = sorted(step_of(home).glob("*/model_optim_rng.pt"))
        check_equal(len(files), 4, "files")
        for file in files:
            groups, each = counts_of(file)
            check_equal(groups, [None, None], f"groups of {file.name}")
            check_equal(len(each), len(params_of(file)), "counted parameters")
            for step in each:
                check_equal((step.dtype, tuple(step.shape), step.item()),
                            (torch.float32, (), 5.0), f"a count in {file}")
            resume(file)
        if count is TAKEN["f32"]:
            CKPT.ok("verify", source, home)


def params_of(file):
    groups = load(file)["optimizer"]["optimizer"]["param_groups"]
    return [number for group in groups for number in group["params"]]


def resume(file):
    """torch's AdamW loads the state and continues counting."""
    inner = load(file)["optimizer"]["optimizer"]
    groups = [{"params": [torch.zeros(inner["state"][i]["exp_avg"].shape,
                                      requires_grad=True)
                          for i in group["params"]]}
              for group in inner["param_groups"]]
    optimizer = AdamW(groups)
    optimizer.load_state_dict(inner)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    for values in optimizer.state.values():
        check_equal(values["step"].item(), 6.0, "a count after one more step")


def in_groups(folder):
    """FusedAdam's groups count, and keep the count on the way back."""
    CKPT.ok("convert", CASE, folder / "keys", *DIST)
    CKPT.ok("convert", folder / "keys", folder / "home", "--to",
            "megatron_legacy", "--tp", 2, "--pp", 2)
    want = counts_of(next(step_of(CASE).glob("*/model_optim_rng.pt")))
    check(None not in want[0] and not want[1], f"{want}")
    for file in (folder / "home").rglob("model_optim_rng.pt"):
        check_equal(counts_of(file), want, file.name)
    CKPT.ok("verify", CASE, folder / "home")


REFUSED = {
    "one has none": (unless(lambda r, i: i == 3, 5.0, None),
                     "has no count of steps, others have 5"),
    "two disagree": (unless(lambda r, i: i == 3, 5.0, 6.0),
                     "was updated 6 times, others 5 times"),
    "stages disagree": (unless(lambda r, i: r == 1, 5.0, 6.0),
                        "was updated 6 times, others 5 times"),
    "tensor ranks disagree": (unless(lambda r, i: r >= 2, 5.0, 6.0),
                              "was updated 6 times, others 5 times"),
    "not a number": (number(float("nan")), "nan is not a count of steps"),
    "the last is none": (unless(lambda r, i: r == 3, 5.0, float("nan")),
                         "nan is not a count of steps"),
    "infinite": (number(float("inf")), "inf is not a count of steps"),
    "negative": (number(-1.0), "-1 is not a count of steps"),
    "a half": (number(5.5), "5.5 is not a count of steps"),
    "bf16": (number(5.0, dtype=torch.bfloat16), "a count of steps in bf16"),
    "bool": (number(True), "a count of steps in bool"),
}


def refused(folder, count, words):
    source = adam(folder / "source", count)
    result = CKPT.run("convert", source, folder / "keys", *DIST).want(5)
    check(words in result.err, f"no word of '{words}'\n{result}")
    check("--model-only" in result.err, f"no next step\n{result}")
    check(not (folder / "keys").exists(), "something was written")


def of_wrong_shape(folder, value):
    """The reader of the ranks' files already finds the damage."""
    source = adam(folder / "source", number(value))
    result = CKPT.run("convert", source, folder / "keys", *DIST).want(4)
    check("has shape" in result.err and "step." in result.err, str(result))


def plain_numbers(folder):
    """Counts of torch before 1.12 are numbers: left out with a warning."""
    source = adam(folder / "source", lambda rank, i: 5)
    result = CKPT.ok("convert", source, folder / "keys", *DIST)
    check('state "step" is not a tensor; skipped' in result.err,
          str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, count in TAKEN.items():
        suite.add(f"counts are taken: {name}", taken, count)
    suite.add("counts in groups", in_groups)
    for name, (count, words) in REFUSED.items():
        suite.add(f"counts are refused: {name}", refused, count, words)
    for value in ([5.0, 5.0], []):
        suite.add(f"a count of shape [{len(value)}]", of_wrong_shape, value)
    suite.add("counts that are plain numbers", plain_numbers)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
