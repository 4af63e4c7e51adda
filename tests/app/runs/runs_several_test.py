#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several models and optimizers in a step that accelerate saves: whose
parameters an optimizer counts shows by shapes, or is not known.

accelerate writes the folders; what its live optimizers hold has to come out
under the parameter, or under its number where two models fit.
"""

import os
import sys
import threading
from pathlib import Path

from support import Skip, Suite, check, check_equal, digest

CKPT = None  # set by prepare
PEERS = Path(sys.prefix) / "transformers_5.12.1"  # yaml, which it needs
SAVING = threading.Lock()  # accelerate has one state per process


def net(hidden):
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(5, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, 5))


def save(folder, models, optimizers):
    """`optimizers`: lists of (model, parameter). Returns the state of each
    parameter, by model, name and state."""
    import torch

    os.environ.update(ACCELERATE_USE_CPU="true")
    if str(PEERS) not in sys.path:
        sys.path.insert(0, str(PEERS))
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState
    except ImportError:
        raise Skip("accelerate is not installed (scripts/test.sh does it)"
                   ) from None
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    torch.manual_seed(3)
    live = [net(hidden) for hidden in models]
    known = [list(one.named_parameters()) for one in live]
    steps = [torch.optim.AdamW([known[m][p][1] for m, p in each])
             for each in optimizers]
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(*live, *steps)
    for _ in range(2):
        x = torch.randn(4, 5)
        accelerator.backward(sum(one(x).square().mean() for one in live))
        for one in steps:
            one.step()
            one.zero_grad()
    accelerator.save_state(str(folder), safe_serialization=False)
    return {(m, known[m][p][0], key): value.detach().clone()
            for one, each in zip(steps, optimizers)
            for m, p in each
            for key, value in one.state[known[m][p][1]].items()}


def all_of(model):
    return [(model, p) for p in range(4)]


# Widths of the models, what each optimizer has, which of them get names.
CASES = {
    "one of each": ([6], [all_of(0)], [True]),
    "two of each": ([6, 7], [all_of(0), all_of(1)], [True, True]),
    "crossed": ([6, 7], [all_of(1), all_of(0)], [True, True]),
    "a model that nobody trains": ([6, 7], [all_of(1)], [True]),
    "two optimizers of a model": (
        [6], [all_of(0)[:2], all_of(0)[2:]], [True, True]),
    "two models alike": ([6, 6], [all_of(0), all_of(1)], [False, False]),
    "two alike, the second is trained": ([6, 6], [all_of(1)], [False]),
    "one optimizer of both": ([6, 7], [all_of(0) + all_of(1)], [False]),
}


def expected(case, states):
    models, optimizers, named = CASES[case]
    want = {}
    for i, (each, is_named) in enumerate(zip(optimizers, named)):
        for number, (m, p) in enumerate(each):
            for (model, name, key), value in states.items():
                layer, leaf = divmod(p, 2)
                if (model, name) != (m, f"{2 * layer}."
                                     f"{('weight', 'bias')[leaf]}"):
                    continue
                role = "" if len(models) == 1 else ("model.", "model_1.")[m]
                word = "optimizer" + (f"_{i}" if i else "")
                where = (role + name if is_named
                         else f"{word}.state.{number}")
                want[f"{where}.{key}"] = digest(
                    value.reshape(-1).numpy().tobytes())
    return want


def optim(found):
    return {t["name"]: t["digest"] for t in found["tensors"]
            if t["kind"] == "optim"}


def test_owner(folder, case):
    step, again = folder / "step", folder / "again"
    with SAVING:
        states = save(step, *CASES[case][:2])
    found = CKPT.inspect(step, "--digest")
    want = expected(case, states)
    check_equal(optim(found), want, f"{found['problems']}")
    said = [p for p in found["problems"] if p["kind"] == "numbered_state"]
    check_equal(len(said), CASES[case][2].count(False), "numbered")
    models, optimizers, _ = CASES[case]
    lost = [p["file"] for p in found["problems"] if p["kind"] == "missing_part"]
    check_equal(lost, [str(step / "optimizer_1.bin")]
                if len(optimizers) < len(models) and len(optimizers[0]) == 4
                else [], "an optimizer that a model lacks")
    CKPT.ok("verify", step)
    CKPT.ok("reshard", step, again, "--dp", 2)
    check_equal(optim(CKPT.inspect(again, "--digest")), want, "again")


def test_custom(folder):
    """--assume-order takes file i to be that of model i."""
    step = folder / "step"
    with SAVING:
        states = save(step, *CASES["two models alike"][:2])
    want = {f"{('model.', 'model_1.')[m]}{name}.{key}"
            for m, name, key in states}
    found = CKPT.inspect(step, "--digest", "--assume-order", "module")
    check_equal(set(optim(found)), want, "names")


def test_hole(folder):
    """optimizer_1.bin without optimizer.bin."""
    step = folder / "step"
    with SAVING:
        save(step, *CASES["two of each"][:2])
    (step / "optimizer.bin").unlink()
    result = CKPT.run("verify", step).want(1)
    check("optimizer.bin" in result.out, f"{result}")


def of_folder(folder, *names):
    """A step as accelerate names its files, with these models."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    torch.save({"step": 3}, folder / "random_states_0.pkl")
    for name, tensors in names:
        (folder / name).parent.mkdir(exist_ok=True)
        save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def llama(seed):
    """What a Llama of one layer saves."""
    import torch

    torch.manual_seed(seed)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (9, 4), "lm_head.weight": (9, 4),
        "model.norm.weight": (4,), layer + "input_layernorm.weight": (4,),
        layer + "post_attention_layernorm.weight": (4,),
        **{f"{layer}self_attn.{which}_proj.weight": (4, 4)
           for which in "qkvo"},
        layer + "mlp.gate_proj.weight": (6, 4),
        layer + "mlp.up_proj.weight": (6, 4),
        layer + "mlp.down_proj.weight": (4, 6)}
    return {name: torch.rand(shape) for name, shape in shapes.items()}


def test_roles(folder):
    """A policy beside its reference: in one directory of weights both keep
    their roles. One that is asked for by itself has transformers' names."""
    from safetensors.torch import load_file

    policy, reference = llama(1), llama(2)
    step = of_folder(folder / "step", ("model.safetensors", policy),
                     ("model_1.safetensors", reference))
    both = folder / "both"
    done = CKPT.ok("convert", step, both, "--to", "safetensors")
    check("2 models (model, model_1)" in done.err, f"{done}")
    check_equal(sorted(load_file(both / "model.safetensors")),
                sorted([f"model.{n}" for n in policy] +
                       [f"model_1.{n}" for n in reference]), "names")
    said = CKPT.run("convert", step, folder / "hf", "--to", "hf").want(5).err
    check("2 models are in it (model, model_1)" in said and
          "--part model " in said, said)
    for role, want in (("model", policy), ("model_1", reference)):
        out = folder / role
        CKPT.ok("convert", step, out, "--to", "safetensors", "--keys",
                f"{role}.*")
        got = load_file(out / "model.safetensors")
        check_equal(sorted(got), sorted(want), f"names of {role}")
        check(all(got[n].equal(want[n]) for n in want), f"values of {role}")


def test_roots(folder):
    """Names that scripts give to steps: diffusers' and accelerate's own
    examples."""
    for new, old in (("checkpoint-10", "checkpoint-9"), ("step_10", "step_9"),
                     ("epoch_10", "epoch_9")):
        root = folder / new.rstrip("0123456789")
        for name in (new, old):
            of_folder(root / name, ("model.safetensors", llama(len(name))))
        found = CKPT.inspect(root)
        check_equal(found["trainer"]["name"], "accelerate", new)
        check_equal(Path(found["path"]).name, new, "newest")
        check_equal(CKPT.ok("ls", root).out.split(), [old, new], new)


def test_named_models(folder):
    """Models in folders, as diffusers' scripts save them: their names are
    roles."""
    weights = "diffusion_pytorch_model.safetensors"
    step = of_folder(folder / "checkpoint-4", (f"unet/{weights}", llama(1)),
                     (f"unet_ema/{weights}", llama(2)))
    names = {t["name"] for t in CKPT.inspect(step)["tensors"]}
    check_equal(names, {f"{role}.{n}" for role in ("unet", "unet_ema")
                        for n in llama(1)}, "names")
    CKPT.ok("verify", step)


def test_fewer_schedulers(folder):
    """Two optimizers that schedulers step, and one scheduler's file."""
    import torch

    step = of_folder(folder / "step", ("model.safetensors", llama(1)))
    for i in ("", "_1"):
        weight = torch.nn.Parameter(torch.rand(4, 6))
        one = torch.optim.SGD([weight], 0.1, momentum=0.9)
        weight.grad = torch.rand(4, 6)
        one.step()
        rate = torch.optim.lr_scheduler.StepLR(one, 1)
        torch.save(one.state_dict(), step / f"optimizer{i}.bin")
        torch.save(rate.state_dict(), step / f"scheduler{i}.bin")

    def said():
        return [Path(p["file"]).name for p in CKPT.inspect(step)["problems"]
                if p["kind"] == "missing_part"]

    check_equal(said(), [], "both")
    (step / "scheduler_1.bin").unlink()
    check_equal(said(), ["scheduler_1.bin"], "one")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        suite.add(case, test_owner, case)
    suite.add("what is asked", test_custom)
    suite.add("a hole", test_hole)
    suite.add("a policy and its reference", test_roles)
    suite.add("names of steps", test_roots)
    suite.add("models in folders", test_named_models)
    suite.add("fewer schedulers than optimizers", test_fewer_schedulers)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
