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


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
