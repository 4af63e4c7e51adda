#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step that lacks what its trainer is known by.

Every trainer of trainers.json that the data have a folder of, or that the data
make one of: each file and folder that its signature names is removed, and
emptied, in the step and seen from its root. What is left opens with the loss
named, or is refused with the trainer, the file and what to do. It is neither
another trainer's step nor a stray container.
"""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

from support import DATA, HERE, Suite, check, check_equal

CKPT = None  # set by prepare
TRAINERS = {t["name"]: t for t in json.loads(
    (HERE.parent.parent / "formats/runs/trainers.json").read_text())[
        "trainers"]}
RUNS, WRITERS = DATA / "runs", DATA / "writers"
HF = RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10"
ACCELERATE = RUNS / "accelerate_fsdp2_w2/ckpt/checkpoints/checkpoint_10"
TITAN = RUNS / "torchtitan_w2/ckpt/checkpoint/step-10"
DEEPSPEED = DATA / "deepspeed/zero1_dp2/ckpt"


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def put(path, text="{}"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def megatron():
    for path in sorted((DATA / "megatron_torch_dist").rglob("metadata.json")):
        if path.with_name(".metadata").is_file():
            return path.parent
    raise AssertionError("no golden of torch_dist")


def lightning_deepspeed(step):
    [tag] = [p for p in DEEPSPEED.iterdir() if p.is_dir()]
    copy(tag, step / "checkpoint")
    put(step / "latest", "checkpoint")


def verl_megatron(step):
    copy(HF / "scheduler.pt", step / "data.pt")
    copy(megatron(), step / "actor/model/dist_ckpt")
    copy(HF / "config.json", step / "actor/model/huggingface/config.json")
    put(step / "actor/transformer_config.json")
    put(step / "actor/ckpt_contents.json", json.dumps(
        {"contents": {"model": {"path": "model/dist_ckpt"}}}))


def verl_megatron_v1(step):
    copy(HF / "scheduler.pt", step / "data.pt")
    copy(megatron(), step / "actor/dist_ckpt")
    copy(HF / "config.json", step / "actor/huggingface/config.json")
    put(step / "actor/transformer_config.json")


def torchtune(step):
    for name in ("model.safetensors", "config.json"):
        copy(HF / name, step / name)
    copy(HF / "optimizer.pt", step.parent / "recipe_state/recipe_state.pt")
    put(step.parent / "torchtune_config.yaml", "model: tiny\n")


def torchtune_inside(step):
    torchtune(step)
    (step.parent / "recipe_state/recipe_state.pt").rename(
        step / "recipe_state.pt")


def openrlhf(step):
    for role in ("_actor", "_critic"):
        copy(DEEPSPEED, step / role)


def nemo_rl(step):
    copy(ACCELERATE / "pytorch_model_fsdp_0", step / "policy/weights")
    copy(ACCELERATE / "optimizer_0", step / "policy/optimizer")
    put(step / "training_info.json", '{"step": 3}')


def nemo_rl_megatron(step):
    copy(megatron(), step / "policy/weights/iter_0000000")
    put(step / "training_info.json", '{"step": 3}')


def nemo(step):
    copy(megatron(), step / "weights")
    put(step / "context/io.json")


def megatron_bridge(step):
    copy(megatron(), step)
    put(step / "run_config.yaml", "model: tiny\n")
    copy(HF / "scheduler.pt", step / "train_state.pt")


def diffusers(step):
    copy(HF / "model.safetensors",
         step / "unet/diffusion_pytorch_model.safetensors")
    put(step / "unet/config.json")
    put(step / "scheduler/scheduler_config.json")
    put(step / "model_index.json", json.dumps({
        "unet": ["diffusers", "UNet2DModel"],
        "scheduler": ["diffusers", "DDIMScheduler"]}))


def sentence_transformers(step):
    for name in ("model.safetensors", "config.json"):
        copy(HF / name, step / name)
    copy(HF / "model.safetensors", step / "2_Dense/model.safetensors")
    put(step / "1_Pooling/config.json")
    put(step / "modules.json", json.dumps([
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"),
                           ("2_Dense", "Dense"))]))


def written(path):
    return lambda step: copy(path, step)


# Trainer, where the step is in its root, what makes it.
CASES = [
    ("hf_trainer", "checkpoint-10", written(HF)),
    ("hf_trainer", "checkpoint-4",
     written(RUNS / "hf_trainer_lora/ckpt/checkpoint-4")),
    ("hf_trainer", "checkpoint-3",
     written(RUNS / "hf_trainer_fsdp2_w2/ckpt/checkpoint-3")),
    ("hf_trainer", "checkpoint-3",
     written(RUNS / "hf_trainer_zero3_w2/ckpt/checkpoint-3")),
    ("accelerate", "checkpoints/checkpoint_10", written(ACCELERATE)),
    ("lightning", "checkpoints/epoch=0-step=4.ckpt", written(
        RUNS / "lightning_mp_w2/ckpt/checkpoints/epoch=0-step=4.ckpt")),
    ("lightning_deepspeed", "checkpoints/epoch=0-step=3.ckpt",
     lightning_deepspeed),
    ("nanotron", "10", written(RUNS / "nanotron_tp2/ckpt/10")),
    ("torchtitan", "checkpoint/step-10", written(TITAN)),
    ("verl", "global_step_4",
     written(RUNS / "verl_fsdp1_flat_w2/ckpt/global_step_4")),
    ("verl", "global_step_10",
     written(RUNS / "verl_fsdp2_w2/ckpt/global_step_10")),
    ("verl_megatron", "global_step_5", verl_megatron),
    ("verl_megatron_v1", "global_step_5", verl_megatron_v1),
    ("automodel", "epoch_0_step_3",
     written(WRITERS / "automodel/full_w2/ckpt/epoch_0_step_3")),
    ("automodel", "epoch_0_step_3",
     written(WRITERS / "automodel/lora_w2/ckpt/epoch_0_step_3")),
    ("composer_parts", "ep0-ba6",
     written(WRITERS / "composer/parts_w1/ckpt/ep0-ba6")),
    ("torchtune", "epoch_1", torchtune),
    ("torchtune", "epoch_1", torchtune_inside),
    ("openrlhf", "", openrlhf),
    ("nemo_rl", "step_3", nemo_rl),
    ("nemo_rl_megatron", "step_3", nemo_rl_megatron),
    ("nemo", "m--val_loss=1.50-step=20-last", nemo),
    ("megatron_bridge", "iter_0000020", megatron_bridge),
    ("diffusers", "", diffusers),
    ("sentence_transformers", "", sentence_transformers),
]
# By values inside of DCP, of which the data have none: only .metadata.
UNSEEN = ["torchtune_async", "composer"]
# training_codes_test.py makes steps of these, and loses each of their files.
UNSEEN += ["olmo", "olmo_local", "internevo", "internevo_isp", "metaseq",
           "parts", "colossalai"]


def glob_of(pattern):
    return re.sub(r"\*+", "*", re.sub(r"\{[^}]*\}", "*", pattern)).rstrip("/")


def signs(trainer, step):
    """The paths that the signature names, and all of a pattern's together."""
    t = TRAINERS[trainer]
    found = []
    homes = [("", t["signature"])] + [
        (f"{role}/", t.get("role_signature", t["signature"]))
        for role in t.get("roles", [])]
    for home, patterns in homes:
        for pattern in (p for one in patterns for p in one.split("|")):
            paths = sorted({Path(os.path.normpath(p))
                            for p in step.glob(home + glob_of(pattern))})
            found += [[path] for path in paths]
            if len(paths) > 1:
                found.append(paths)
        # The folder of a role, whole.
        if home and (step / home).is_dir():
            found.append([step / home.rstrip("/")])
    return [paths for i, paths in enumerate(found) if paths not in found[:i]]


def check_said(trainer, path, lost, how):
    """What `inspect` says about a step, or its root, without these files."""
    t = TRAINERS[trainer]
    result = CKPT.run("inspect", path, "--json")
    # .../weights stands for .../weights/.metadata, iter_* for iter_0000000.
    parts = {re.sub(r"\d+", "*", part) for one in lost
             for part in (str(one), str(one.parent))}
    if t.get("unsigned", {}).get("is_whole"):
        parts.update(one.name for one in lost)  # the first of its places

    def is_named(text):
        text = re.sub(r"\d+", "*", text)
        return any(part in text for part in parts)

    if result.code == 0:
        found = result.json()
        said = [p for p in found["problems"] if is_named(p["file"])]
        if how == "emptied" and not said:
            said = [p for p in CKPT.run("verify", path, "--json").json()[
                "problems"] if is_named(p["file"])]
        whole = t.get("unsigned", {}).get("is_whole")
        check([p for p in said if whole or p["severity"] != "note"],
              f"nothing is said: {found['problems']}\n{result}")
        name = found["trainer"] and found["trainer"]["name"]
        check(name == trainer or name is None and any(
            t["what"] in p["message"] or t.get("unsigned", {}).get(
                "text", "nothing") in p["message"] for p in said),
            f"{name}: {said}")
        check(found["tensors"], f"a stray container\n{result}")
        return
    check(result.code in (3, 4), f"{result}")
    error = json.loads(result.err)["error"]
    check(is_named(error["path"]), f"{error}")
    check("not a recognized" not in error["message"], f"{error}")
    check(error["hint"] or how == "emptied", f"{error}")
    if how == "removed":
        of_ranks = "ranks are there" in error["message"]
        text = t.get("unsigned", {}).get("text")
        # Files beside the roles don't tell which of verl's records it is.
        what = t["what"].split(" ")[0] if lost[0].name in t.get(
            "roles", []) else t["what"]
        check(of_ranks or what in error["message"]
              or text and text in error["message"], f"{error}")


def test_signs(folder, trainer, place, make):
    root = folder / "run"
    step = root / place if place else root
    make(step)
    tracker = TRAINERS[trainer].get("tracker")
    if tracker:
        put(root / tracker, re.sub(r"\D", "", place).lstrip("0"))
    found = CKPT.inspect(root)
    check_equal(found["trainer"]["name"], trainer, "trainer")
    check_equal([p for p in found["problems"] if p["severity"] == "damage"],
                [], "problems")
    sets = signs(trainer, step)
    recipe = root / "recipe_state/recipe_state.pt"
    if recipe.exists():
        sets.append([recipe])
    check(sets, "nothing to remove")
    for paths in sets:
        for how in ("removed", "emptied"):
            for i, path in enumerate(paths):
                aside = folder / f"aside{i}"
                path.rename(aside)
                if how == "emptied":
                    path.mkdir() if aside.is_dir() else path.touch()
            # A role's folder, lost with all files, is not missed if another
            # role is there: no file says how many there were.
            roles = TRAINERS[trainer].get("roles", [])
            others = [r for r in roles if paths[0].name != r
                      and (step / r).is_dir() and any((step / r).iterdir())]
            if not (paths[0].name in roles and others):
                for where in dict.fromkeys((step, root)):
                    try:
                        check_said(trainer, where, paths, how)
                    except Exception as error:
                        raise type(error)(f"{how} {paths}: {error}") from error
            for i, path in enumerate(paths):
                if how == "emptied":
                    path.rmdir() if path.is_dir() else path.unlink()
                (folder / f"aside{i}").rename(path)


NUMBER = r"\{_?[a-z]\}"


def numbered(pattern, number):
    """The name of such a file: all its numbers are this one, and sizes 2."""
    at_first = re.sub(r"\{_[a-z]\}", f"_{number}" if number else "", pattern)
    return re.sub(r"\{[A-Z]\}", "2",
                  re.sub(r"\{[a-z]\}", str(number), at_first))


def own_name(path):
    """What torch.save has written into the file of its name."""
    with zipfile.ZipFile(path) as file:
        return file.namelist()[0].split("/")[0]


def test_swapped(folder, trainer, place, make):
    """Files of two ranks, or of two schedulers, under each other's names. A copy
    of another's (reshard for more ranks), or a name that is none's, is no
    fault."""
    import torch

    step = folder / "run" / place
    make(step)

    def said(path):
        return [p for p in CKPT.run("verify", step, "--json").json()["problems"]
                if "another" in p["message"] and p["file"] == str(path)]

    for part in TRAINERS[trainer].get("parts", []):
        if not re.search(NUMBER, part["file"]):
            continue
        homes = [r for r in TRAINERS[trainer].get("roles", [])
                 if (step / r).is_dir() and not part.get("above")]
        for home in homes or [""]:
            pair = [step / home / numbered(part["file"], n) for n in (0, 1)]
            for number, path in enumerate(pair):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_file() or not zipfile.is_zipfile(path):
                    torch.save({"number": number}, path)
                check_equal(own_name(path), path.stem, "torch's own name")
            kept = [path.read_bytes() for path in pair]
            check_equal([said(p) for p in pair], [[], []], "as written")
            pair[1].write_bytes(kept[0])
            check_equal([said(p) for p in pair], [[], []], "a copy")
            pair[0].write_bytes(kept[1])
            for path, other in zip(pair, reversed(pair)):
                [problem] = said(path)
                check_equal(problem["severity"], "damage", path)
                check(other.stem in problem["message"], f"{problem}")
            for path, content in zip(pair, kept):
                path.write_bytes(content)


def test_all_trainers(_):
    names = {name for name, _, _ in CASES} | set(UNSEEN)
    check_equal(sorted(names), sorted(TRAINERS), "trainers")


def test_index_by_name(folder):
    """DCP of who is known by its values: without .metadata the name tells."""
    for trainer, name in (("torchtune_async", "dist_epoch_1"),
                          ("composer", "ep1-ba8")):
        step = folder / trainer / name
        copy(TITAN, step)
        (step / ".metadata").unlink()
        for path in (step, step.parent):
            check_said(trainer, path, [step / ".metadata"], "removed")


def test_renamed(folder):
    """A step under another name: its parts are still not the checkpoint."""
    step = folder / "mine"
    copy(WRITERS / "automodel/full_w2/ckpt/epoch_0_step_3", step)
    CKPT.inspect(step)
    (step / "optim/.metadata").unlink()
    check_said("automodel", step, [step / "optim/.metadata"], "removed")


def test_others(folder):
    """What is nobody's step stays so."""
    def names(at, *files):
        for name in files:
            copy(HF / name, at / name)

    names(folder / "mine", "optimizer.pt", "scheduler.pt")
    names(folder / "10/model", "model.safetensors", "config.json")
    names(folder / "values", "training_args.bin")
    put(folder / "work/weights/notes.txt", "x")
    put(folder / "work/context/notes.txt", "x")
    for name in ("mine", "10", "work"):
        result = CKPT.run("inspect", folder / name).want(3)
        check("not a recognized checkpoint" in result.err, f"{result}")
    for name in ("step_3", "epoch_1", "checkpoint-3", "iter_7"):
        names(folder / "b" / name, "model.safetensors", "config.json")
        check_equal(CKPT.inspect(folder / "b" / name)["problems"], [], name)
    # Megatron's own root has Bridge's metadata.json.
    copy(megatron(), folder / "megatron/iter_0000020")
    put(folder / "megatron/latest_checkpointed_iteration.txt", "20")
    for path in (folder / "megatron", folder / "megatron/iter_0000020"):
        check_equal([p for p in CKPT.inspect(path)["problems"]
                     if p["kind"] == "missing_part"], [], "Megatron-LM")
    # NeMo may be told to keep its context out of all steps but the last.
    step = folder / "nemo/m--step=20"
    copy(megatron(), step / "weights")
    for path in (step, step.parent):
        found = CKPT.inspect(path)
        check_equal(found["trainer"]["name"], "nemo", "trainer")
        check(Path(found["problems"][0]["file"]).name == "context", f"{found}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("all trainers", test_all_trainers)
    for number, (trainer, place, make) in enumerate(CASES):
        suite.add(f"{trainer}, {number}", test_signs, trainer, place, make)
    for trainer, place, make in {one[0]: one for one in CASES}.values():
        if any(re.search(NUMBER, part["file"])
               for part in TRAINERS[trainer].get("parts", [])):
            suite.add(f"{trainer}: swapped", test_swapped, trainer, place,
                      make)
    suite.add("an index, by name", test_index_by_name)
    suite.add("a renamed step", test_renamed)
    suite.add("nobody's", test_others)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
