#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimizers other than Adam in the folder of a step: named by parameter where
counts and shapes of every state agree, else numbered, and said.

torch's own optimizers make the states over a golden's model in its trainer's
order; transformers' Adafactor and bitsandbytes' 8-bit Adam are not here, their
states have the names and shapes that their sources give them.
"""

import json
import shutil

from support import DATA, Suite, check, check_equal, digest

CKPT = None  # set by prepare
CASE = DATA / "runs" / "hf_trainer_qwen2"


def order():
    return json.loads((CASE / "case.json").read_text())["optimizer_order"]


def parameters():
    import torch
    from safetensors.torch import load_file

    found = load_file(CASE / "ckpt/checkpoint-10/model.safetensors")
    return {n: torch.nn.Parameter(found[n].float().clone())
            for group in order() for n in group}


def stepped(optimizer):
    import torch

    torch.manual_seed(5)
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.randn_like(one)
    optimizer.step()
    return optimizer.state_dict()


def by_torch(kind, **options):
    import torch

    known = parameters()
    groups = [{"params": [known[n] for n in group]} for group in order()]
    return stepped(getattr(torch.optim, kind)(groups, **options))


def made(states_of):
    """A state dict like torch.optim's, with custom states."""
    known, number = parameters(), 0
    states, groups = {}, []
    for group in order():
        numbers = []
        for name in group:
            states[number] = states_of(known[name])
            numbers.append(number)
            number += 1
        groups.append({"params": numbers, "lr": 1e-3})
    return {"state": states, "param_groups": groups}


def adafactor_of_transformers(one):
    """transformers.Adafactor, factored from two dimensions on."""
    import torch

    state = {"step": 1, "RMS": 0.5}
    if one.dim() >= 2:
        state["exp_avg_sq_row"] = torch.rand(one.shape[:-1])
        state["exp_avg_sq_col"] = torch.rand(
            one.shape[:-2] + one.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.rand(one.shape)
    return state


def adam_of_8_bits(one, block=256):
    """bitsandbytes' Optimizer2State, block-wise: codes of the parameter's
    shape, a maximum for each block, a table of 256."""
    import torch

    blocks = -(-one.numel() // block)
    return {"step": 1, **{
        f"{what}{i}": value for i in (1, 2) for what, value in (
            ("state", torch.randint(256, one.shape, dtype=torch.uint8)),
            ("qmap", torch.rand(256)), ("absmax", torch.rand(blocks)))}}


def schedule_free(one):
    """AdamWScheduleFree: z is the parameter before the average."""
    import torch

    return {"z": torch.rand(one.shape), "exp_avg_sq": torch.rand(one.shape)}


MAKERS = {
    "Adafactor of torch": lambda: by_torch("Adafactor"),
    "SGD": lambda: by_torch("SGD", momentum=0.9),
    "RMSprop": lambda: by_torch("RMSprop", momentum=0.9, centered=True),
    "Adagrad": lambda: by_torch("Adagrad"),
    "NAdam": lambda: by_torch("NAdam"),
    "AdamW with amsgrad": lambda: by_torch("AdamW", amsgrad=True),
    "Adafactor of transformers": lambda: made(adafactor_of_transformers),
    "Adam of 8 bits": lambda: made(adam_of_8_bits),
    "schedule-free": lambda: made(schedule_free),
}


def save(folder, states):
    import torch

    step = folder / "checkpoint-10"
    shutil.copytree(CASE / "ckpt/checkpoint-10", step)
    torch.save(states, step / "optimizer.pt")
    return step


def tensors_of(states, names):
    import torch

    return {f"{names[number]}.{key}": value
            for number, state in states["state"].items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)}


def check_named(path, states, names, *options):
    found = CKPT.inspect(path, "--digest", *options)
    got = {t["name"]: t for t in found["tensors"] if t["kind"] == "optim"}
    want = tensors_of(states, names)
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check_equal((tuple(got[name]["shape"]), got[name]["digest"]),
                    (tuple(tensor.shape),
                     digest(tensor.contiguous().numpy().tobytes())), name)


def check_numbered(path):
    found = CKPT.inspect(path)
    names = [t["name"] for t in found["tensors"] if t["kind"] == "optim"]
    check(names and all(n.startswith("optimizer.state.") for n in names),
          names[:3])
    said = [p for p in found["problems"] if p["kind"] == "numbered_state"]
    check(said, f"{found['problems']}")
    return said[0]["message"]


def test_named(folder, kind):
    states = MAKERS[kind]()
    check_named(save(folder, states), states,
                [n for group in order() for n in group])


# A state of the first parameter with another shape belongs to another model.
WRONG = {
    "Adafactor of torch": ("row_var", lambda t: t[1:]),
    "Adafactor of transformers": ("exp_avg_sq_col", lambda t: t[1:]),
    "Adam of 8 bits": ("absmax1", lambda t: t.repeat(9)),
    "SGD": ("momentum_buffer", lambda t: t.t()),
}


def test_refuted(folder, kind):
    states = MAKERS[kind]()
    key, change = WRONG[kind]
    states["state"][0][key] = change(states["state"][0][key]).contiguous()
    check_numbered(save(folder, states))


def test_half(folder):
    """Rows without columns don't prove a shape."""
    states = MAKERS["Adafactor of torch"]()
    del states["state"][3]["col_var"]
    check("unlike" in check_numbered(save(folder, states)), "message")


def test_muon(folder):
    """Only matrices, in one group, which no Trainer rule produces. A list of
    names replaces the unknown order."""
    import torch

    known = parameters()
    names = [n for group in order() for n in group if known[n].dim() == 2]
    states = stepped(torch.optim.Muon([known[n] for n in names]))
    step = save(folder, states)
    check_numbered(step)
    listing = folder / "order.txt"
    listing.write_text("\n".join(names))
    check_named(step, states, names, "--assume-order", listing)
    listing.write_text("\n".join(reversed(names)))
    CKPT.run("inspect", step, "--assume-order", listing).want(2)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for kind in MAKERS:
        suite.add(f"{kind}: by name", test_named, kind)
    for kind in WRONG:
        suite.add(f"{kind}: another shape", test_refuted, kind)
    suite.add("half of Adafactor's sums", test_half)
    suite.add("Muon", test_muon)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
