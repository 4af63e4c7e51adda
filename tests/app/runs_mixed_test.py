#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step with files of two saves: whatever else its trainer may call a model
or an optimizer is put beside what is there. It is refused or named; never is
one of two taken without a word.

The names are those of trainers.json: a new one is tried, too.
"""

import json
import shutil
from pathlib import Path

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
RUNS = DATA / "runs"
TRAINERS = DATA.parents[1] / "formats/runs/trainers.json"
QWEN = RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10"
FSDP = RUNS / "hf_trainer_fsdp2_w2/ckpt/checkpoint-3"
ZERO = RUNS / "hf_trainer_zero3_w2/ckpt/checkpoint-3"
LORA = RUNS / "hf_trainer_lora/ckpt/checkpoint-4"
ACCELERATE = RUNS / "accelerate_fsdp2_w2/ckpt/checkpoints/checkpoint_10"
STEPS = {"hf_trainer": (QWEN, FSDP, ZERO, LORA), "accelerate": (ACCELERATE,)}


def trainer(name):
    known = json.loads(TRAINERS.read_text())
    return next(t for t in known["trainers"] if t["name"] == name)


def plain(pattern, number=0):
    return pattern.replace("{i}", str(number)).replace(
        "{_i}", f"_{number}" if number else "")


def put(source, step, optimizer, number):
    """Puts there what a save of that kind leaves. Returns the file names."""
    import torch

    name = plain(source["file"], number)
    path = step / name
    if path.exists() or (step / plain(source["file"])).exists():
        return []  # or a second model of the same save
    if source["read"] == "deepspeed":
        if source["file"] != "latest":
            return []  # Accelerate's DeepSpeed has a folder of its own
        shutil.copytree(ZERO / "global_step3", step / "global_step3",
                        dirs_exist_ok=True)
        shutil.copy(ZERO / "latest", path)
        return ["global_step3", "latest"]
    if source["read"] == "dcp":
        shutil.copytree(FSDP / ("optimizer_0" if optimizer
                                else "pytorch_model_fsdp_0"), path.parent)
        return [path.parent.name]
    if name.endswith(".index.json"):
        part = name[:-len(".index.json")]
        stem, _, ending = part.rpartition(".")
        shard = f"{stem}-00001-of-00001.{ending}"
        path.write_text(json.dumps({"metadata": {}, "weight_map": {
            "model.norm.weight": shard}}))
        path = step / shard
    weights = {"model.norm.weight": torch.zeros(3)}
    if optimizer:
        shutil.copy(QWEN / "optimizer.pt", path)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(weights, str(path))
    else:
        torch.save(weights, path)
    return [path.name, name]


def test_beside(folder, name, case, kind, index, number):
    step = folder / case.name
    shutil.copytree(case, step)
    source = trainer(name)[kind][index]
    before = {str(p.relative_to(step)) for p in step.rglob("*")}
    names = put(source, step, kind == "optimizers", number)
    if {str(p.relative_to(step)) for p in step.rglob("*")} == before:
        return
    result = CKPT.run("inspect", step, "--json")
    if result.code != 0:
        check_equal(result.code, 4, f"{result}")
        return
    said = [p for p in result.json()["problems"]
            if p["kind"] != "absent_part"]
    check(any(word in p["file"] + p["message"]
              for p in said for word in names),
          f"{names} beside {case.name}: {said}")


def test_other_step(folder):
    """trainer_state.json of another step than the folder's."""
    step = folder / QWEN.name
    shutil.copytree(QWEN, step)
    path = step / "trainer_state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "global_step": 77}))
    found = CKPT.inspect(step)
    check([p for p in found["problems"] if p["kind"] == "stale_part"
           and Path(p["file"]).name == path.name], f"{found['problems']}")


# ------------------------------------------------------- counts of the steps
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
NANOTRON = RUNS / "nanotron_tp2/ckpt/10"
LIGHTNING = RUNS / "lightning_mp_w2/ckpt/checkpoints/epoch=0-step=4.ckpt"
VERL = RUNS / "verl_fsdp2_w2/ckpt/global_step_10"


def edit(path, change):
    import torch

    value = torch.load(path, weights_only=False)
    change(value)
    torch.save(value, path)


def less(by):
    """Of an optimizer, for each parameter."""
    def change(value):
        for state in value["state"].values():
            state["step"] -= by
    return change


def epoch(by):
    return lambda value: value.update(last_epoch=value["last_epoch"] - by)


def state(step, number):
    path = step / "trainer_state.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "global_step": number}))


def counted(step, code=0):
    """The files that verify finds to be of another step."""
    document = CKPT.run("verify", step, "--json").want(code).json()
    return sorted(Path(p["file"]).name for p in document["problems"]
                  if p["kind"] in ("stale_part", "mixed_steps"))


def copied(folder, step, *edits):
    copy = folder / str(len(list(folder.iterdir()))) / step.name
    shutil.copytree(step, copy)
    for name, change in edits:
        edit(copy / name, change)
    return copy


def test_goldens(folder):
    for case in sorted(RUNS.glob("*/ckpt")):
        check_equal(counted(case), [], case.parent.name)


def test_written_counts(folder):
    """Of another trainer's step, whose scheduler stood elsewhere."""
    source = copied(folder, ACCELERATE, ("scheduler.bin", epoch(3)))
    written = folder / "checkpoint-2"  # by the optimizer's count
    CKPT.ok("convert", source, written, "--to", "run", "--trainer",
            "hf_trainer", "--config-from", QWEN)
    check_equal(counted(written), [], "written")
    for manifest in written.glob("*.json"):
        if "manifest" in manifest.name:
            manifest.unlink()
    check_equal(counted(written), [SCHEDULER], "as if the Trainer wrote it")


def test_hf_counts(folder):
    """Optimizer, scheduler and state of Hugging Face's Trainer: whatever two of
    them agree on, the third is of another save."""
    def of(*edits):
        return copied(folder, QWEN, *edits)

    check_equal(counted(of((OPTIMIZER, less(4)))), [OPTIMIZER], "optimizer")
    check_equal(counted(of((SCHEDULER, epoch(4)))), [SCHEDULER], "scheduler")
    both = (OPTIMIZER, less(4)), (SCHEDULER, epoch(4))
    check_equal(counted(of(*both)), [OPTIMIZER], "both")
    check_equal(counted(of((OPTIMIZER, less(3)), (SCHEDULER, epoch(4)))),
                [OPTIMIZER], "all differ")
    newer = folder / "checkpoint-20"
    shutil.copytree(QWEN, newer)
    state(newer, 20)
    check_equal(counted(newer), [OPTIMIZER], "a newer model and state")
    deep = copied(folder, ZERO).rename(folder / "checkpoint-9")
    state(deep, 9)
    check_equal(len(counted(deep)), 1, "DeepSpeed's")
    # One that FSDP wrote as DCP, beside another's scheduler.
    check_equal(counted(copied(folder, FSDP, (SCHEDULER, epoch(2)))),
                [SCHEDULER], "scheduler beside DCP")


def test_hf_honest_counts(folder):
    """What the Trainer may leave without mixing saves."""
    import torch

    both = (OPTIMIZER, less(4)), (SCHEDULER, epoch(4))
    # Scaled gradients overflow: neither steps, the Trainer counts on. A scaler
    # need not be saved; without the arguments nobody knows.
    scaled = copied(folder, QWEN, *both)
    torch.save({"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
               scaled / "scaler.pt")
    check_equal(counted(scaled), [], "with a scaler")
    unknown = copied(folder, QWEN, *both)
    (unknown / "training_args.bin").unlink()
    check_equal(counted(unknown), [], "without arguments")
    # TRL's PPO steps several times; a second train() keeps the optimizer.
    check_equal(counted(copied(folder, QWEN, (OPTIMIZER, less(-30)))), [],
                "more steps")

    def some(value):
        for number, one in value["state"].items():
            one["step"] -= number % 3

    check_equal(counted(copied(folder, QWEN, (OPTIMIZER, some))), [],
                "parameters that joined later")

    def plateau(value):
        value.clear()
        value.update(factor=0.1, patience=10, best=1.0, last_epoch=2)

    check_equal(counted(copied(folder, QWEN, (SCHEDULER, plateau))), [],
                "a scheduler of evaluations")

    def without(value):  # Muon, Lion
        for one in value["state"].values():
            one.pop("step")

    check_equal(counted(copied(folder, QWEN, (OPTIMIZER, without))), [],
                "no count")


def test_other_counts(folder):
    def at(number):
        return lambda value: value.update(global_step=number)

    check_equal(counted(copied(folder, LIGHTNING, ("meta.pt", at(9)))),
                [".metadata"], "Lightning")

    def half(value):
        value.update(global_step=9, MixedPrecision={"scale": 2.0})

    check_equal(counted(copied(folder, LIGHTNING, ("meta.pt", half))), [],
                "Lightning with a scaler")
    check_equal(counted(copied(folder, LIGHTNING, ("meta.pt", at(2)))), [],
                "optimizers that are stepped by hand")
    scheduler = "lr_scheduler/lr_scheduler.pt"
    check_equal(counted(copied(folder, NANOTRON, (scheduler, epoch(4)))),
                ["lr_scheduler.pt"], "nanotron's scheduler")
    ranks = sorted(str(p.relative_to(NANOTRON))
                   for p in (NANOTRON / "optimizer").glob("optimizer_pp*.pt"))
    found = counted(copied(folder, NANOTRON,
                           *((name, less(4)) for name in ranks)))
    check_equal(found, [Path(ranks[0]).name], "nanotron's optimizer")
    # Accelerate's own counts say nothing: scripts step as they like.
    check_equal(counted(copied(folder, ACCELERATE, ("scheduler.bin",
                                                    epoch(-4)))), [], "script")
    # Ranks of one save agree.
    mixed = copied(folder, NANOTRON)
    whole = mixed / scheduler
    for rank in range(2):
        path = whole.with_name(
            f"lr_scheduler_pp-0-of-1_tp-{rank}-of-2_exp-0-of-1.pt")
        shutil.copy(whole, path)
    whole.unlink()
    check_equal(counted(mixed), [], "a scheduler for each rank")
    edit(path, epoch(1))
    check("mixed_steps" in CKPT.run("verify", mixed).want(1).out, "nanotron")

    def schedule(value):
        value["lr_scheduler"]["last_epoch"] -= 1

    for ranks, code in (((1,), 1), ((0, 1), 0)):  # the actor alone: no mix
        names = [(f"actor/extra_state_world_size_2_rank_{r}.pt", schedule)
                 for r in ranks]
        check_equal(len(counted(copied(folder, VERL, *names), code)), code,
                    f"verl's ranks {ranks}")


def test_numbers(folder):
    """DCP of an optimizer's own state dict: numbers are not names."""
    import torch
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()

    def save(value, path):
        dcp.save(value, checkpoint_id=str(path), no_dist=True)

    both = {"optimizer": optimizer.state_dict()}
    step = folder / "checkpoint_3"
    step.mkdir()
    torch.save({"step": 0}, step / "random_states_0.pkl")
    save({"model": model.state_dict()}, step / "pytorch_model_fsdp_0")
    save(both, step / "optimizer_0")
    titan = folder / "checkpoint" / "step-3"
    save({**model.state_dict(), **both, "train_state": {"step": 3}}, titan)
    composer = folder / "ep1-ba8"
    save({"state": {"model": model.state_dict(),
                    "optimizers": {"AdamW": optimizer.state_dict()},
                    "timestamp": {"Timestamp": {"epoch": 1, "batch": 8}},
                    "rank_zero_seed": 3}, "rng": [{"a": 1}]}, composer)
    for path in (step, titan, composer):
        found = CKPT.inspect(path)
        check(found["trainer"], f"{path}: of no trainer")
        names = [t["name"] for t in found["tensors"] if t["kind"] == "optim"]
        check(len(names) == 12 and all(
            n.startswith("optimizer.state.") for n in names), f"{names}")
        check([p for p in found["problems"] if p["kind"] == "numbered_state"],
              f"{path}: {found['problems']}")
        for to in ("hf_trainer", "lightning"):
            result = CKPT.run("convert", path, folder / "out", "--to", "run",
                              "--trainer", to)
            check(result.code == 5 and not (folder / "out").exists(),
                  f"{result}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, cases in STEPS.items():
        for case in cases:
            for kind in ("models", "optimizers"):
                for index, source in enumerate(trainer(name)[kind]):
                    numbers = (0, 1) if "i}" in source["file"] else (0,)
                    for number in numbers:
                        suite.add(f"{plain(source['file'], number)} beside "
                                  f"{name}'s {case.parents[1].name}",
                                  test_beside, name, case, kind, index, number)
    suite.add("a state of another step", test_other_step)
    suite.add("DCP by number", test_numbers)
    for test in (test_goldens, test_written_counts, test_hf_counts,
                 test_hf_honest_counts, test_other_counts):
        suite.add(test.__name__[5:].replace("_", " "), test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
