#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run folders of trainers that are not among the goldens.

torch's own functions write them here, called as the trainers' savers call them
(read in their sources; docs/formats/runs.md says where); folders of DeepSpeed
and Megatron are goldens of these, put where the trainer puts them.
"""

import json
import pickle
import shutil
from pathlib import Path

from files_test import ONE_OF_EACH
from special_test import fifo, sock
from support import DATA, Suite, check, check_equal, digest

CKPT = None  # set by prepare
DEEPSPEED = DATA / "deepspeed" / "zero1_dp2" / "ckpt"
MEGATRON = DATA / "megatron_torch_dist"



def train(seed=3):
    """A model after two steps, and its AdamW."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def wanted(model, optimizer, prefix=""):
    names = {id(p): n for n, p in model.named_parameters()}
    found = {prefix + n: t for n, t in model.state_dict().items()}
    for p, states in optimizer.state.items():
        for key, value in states.items():
            found[f"{prefix}{names[id(p)]}.{key}"] = value
    return found


def raw(tensor):
    return digest(tensor.detach().contiguous().numpy().tobytes())


def check_run(path, trainer, tensors, step=None):
    found = CKPT.inspect(path, "--digest")
    check_equal(found["trainer"], {"name": trainer, "step": step}, "trainer")
    got = {t["name"]: t["digest"] for t in found["tensors"]}
    check_equal(sorted(got), sorted(tensors), "names")
    for name, tensor in tensors.items():
        check_equal(got[name], raw(tensor), name)
    bad = [p for p in found["problems"] if p["severity"] == "damage"]
    check_equal(bad, [], "problems")
    return found


def save_dcp(value, path):
    import torch.distributed.checkpoint as dcp

    dcp.save(value, checkpoint_id=str(path), no_dist=True)


def nemo_rl_role(folder, seed):
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict, get_optimizer_state_dict)

    model, optimizer = train(seed)
    save_dcp({"model": get_model_state_dict(model)}, folder / "weights")
    save_dcp({"optim": {"optim": get_optimizer_state_dict(model, optimizer)}},
             folder / "optimizer")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer_config.json").write_text("{}")
    return model, optimizer


def test_nemo_rl(folder):
    import torch

    step = folder / "run" / "step_7"
    policy = nemo_rl_role(step / "policy", 3)
    (step / "training_info.json").write_text('{"step": 7}')
    (step / "config.yaml").write_text("policy: tiny\n")
    torch.save({"i": 14}, step / "train_dataloader.pt")
    # A newer one that has not been renamed yet.
    shutil.copytree(step, step.with_name("tmp_step_9"))
    for path in (step, step.parent):
        found = check_run(path, "nemo_rl", wanted(*policy), 7)
    said = [p for p in found["problems"] if p["kind"] == "unfinished_save"]
    check_equal([Path(p["file"]).name for p in said], ["tmp_step_9"], "skipped")
    rows = CKPT.ok("ls", step.parent, "--json").json()["entries"]
    check_equal([(r["step"], r["complete"]) for r in rows],
                [(7, True), (9, False)], "rows")
    value = nemo_rl_role(step / "value", 5)
    found = check_run(step, "nemo_rl", {
        **wanted(*policy, "policy."), **wanted(*value, "value.")}, 7)
    parts = {Path(f["path"]).name: f["part"] for f in found["file_list"]}
    check_equal(parts["train_dataloader.pt"], "dataloader", "parts")
    (step / "policy/optimizer/.metadata").unlink()
    result = CKPT.run("inspect", step).want(4)
    check("incomplete save" in result.err, f"{result}")


def megatron_source():
    for case in sorted(MEGATRON.iterdir()):
        for path in sorted(case.rglob("metadata.json")):
            if path.with_name(".metadata").is_file():
                return path.parent
    raise AssertionError("no golden of torch_dist")


def check_as_alone(path, trainer, step):
    """Checks what Megatron's reader says about the directory, plus the
    trainer."""
    found = CKPT.inspect(path, "--digest")
    check_equal(found["trainer"], {"name": trainer, "step": step}, "trainer")
    alone = CKPT.inspect(megatron_source(), "--digest", "--trainer", "none")
    check_equal([(t["name"], t["kind"], t["digest"])
                 for t in found["tensors"]],
                [(t["name"], t["kind"], t["digest"])
                 for t in alone["tensors"]], "tensors")
    return found


def test_nemo(folder):
    root = folder / "run"
    step = root / "model--val_loss=1.50-step=20-consumed_samples=40.0-last"
    shutil.copytree(megatron_source(), step / "weights")
    (step / "context").mkdir()
    (step / "context" / "io.json").write_text("{}")
    (step / "context" / "model.yaml").write_text("model: tiny\n")
    for path in (step, root):
        check_as_alone(path, "nemo", 20)
    CKPT.ok("verify", step)
    # NeMo's mark of a save in progress is beside the folder.
    newer = root / "model--val_loss=1.25-step=30-consumed_samples=60.0"
    shutil.copytree(step, newer)
    check_equal(CKPT.inspect(root)["trainer"]["step"], 30, "step")
    mark = newer.with_name(newer.name + "-unfinished")
    mark.touch()
    said = check_as_alone(root, "nemo", 20)["problems"]
    check([p for p in said if p["kind"] == "unfinished_save"
           and mark.name in p["message"]], f"{said}")
    check(mark.name in CKPT.run("verify", newer).want(1).out, "not said")


def test_megatron_bridge(folder):
    import torch

    step = folder / "run" / "iter_0000020"
    shutil.copytree(megatron_source(), step)
    (step / "run_config.yaml").write_text("model: tiny\n")
    torch.save({"step": torch.tensor(20)}, step / "train_state.pt")
    (step.parent / "latest_checkpointed_iteration.txt").write_text("20")
    for path in (step, step.parent):
        check_as_alone(path, "megatron_bridge", 20)


def test_nemo_rl_megatron(folder):
    step = folder / "run" / "step_3"
    shutil.copytree(megatron_source(), step / "policy/weights/iter_0000000")
    (step / "training_info.json").write_text('{"step": 3}')
    check_as_alone(step.parent, "nemo_rl_megatron", 3)


def test_openrlhf(folder):
    root = folder / "ckpt"
    for role in ("_actor", "_critic"):
        shutil.copytree(DEEPSPEED, root / role)
    alone = CKPT.inspect(DEEPSPEED, "--digest", "--trainer", "none")
    want = {f"{role}.{t['name']}": t["digest"] for t in alone["tensors"]
            for role in ("actor", "critic")}
    found = CKPT.inspect(root, "--digest")
    check_equal(found["trainer"]["name"], "openrlhf", "trainer")
    got = {t["name"]: t["digest"] for t in found["tensors"]}
    check_equal(len(got), len(want), "tensors")
    models = {t["name"] for t in alone["tensors"] if t["kind"] == "model"}
    for name in models:
        check_equal(got[f"actor.{name}"], want[f"actor.{name}"], name)
        check_equal(got[f"critic.{name}"], want[f"critic.{name}"], name)
    # DeepSpeed's own folder belongs to no trainer.
    check_equal(CKPT.inspect(DEEPSPEED)["trainer"], None, "DeepSpeed alone")


def composer_state(model, optimizer, by_name):
    """Composer's State.state_dict() (read at 008dac7)."""
    states = optimizer.state_dict()
    if by_name:
        from torch.distributed.checkpoint.state_dict import (
            get_optimizer_state_dict)

        states = get_optimizer_state_dict(model, optimizer)
    return {"state": {
        "model": model.state_dict(), "optimizers": {"DecoupledAdamW": states},
        "timestamp": {"Timestamp": {"epoch": 1, "batch": 8}},
        "rank_zero_seed": 3, "run_name": "tiny"}, "rng": [{"python": 1}]}


def test_composer_file(folder):
    import torch

    root = folder / "run"
    root.mkdir()
    model, optimizer = train()
    state = composer_state(model, optimizer, False)
    older = root / "ep1-ba4-rank0.pt"
    torch.save({**state, "state": {
        **state["state"], "timestamp": {"Timestamp": {"batch": 4}}}}, older)
    step = root / "ep1-ba8-rank0.pt"
    torch.save(state, step)
    want = wanted(model, optimizer)
    for path in (step, root):
        check_run(path, "composer", want, 8)
    (root / "latest-rank0.pt").symlink_to(older.name)
    check_run(root, "composer", want, 4)
    renamed = folder / "mine.pt"
    shutil.copy(step, renamed)
    check_run(renamed, "composer", want, 8)
    out = folder / "model.safetensors"
    CKPT.ok("convert", step, out, "--model-only")
    got = {t["name"] for t in CKPT.inspect(out)["tensors"]}
    check_equal(got, set(model.state_dict()), "model")


def test_composer_weights(folder):
    """save_weights_only: the model, and where it was saved. Only the name has
    the number of the step."""
    import torch

    model, _ = train()
    state = {"state": {
        "model": model.state_dict(), "integrations": {},
        "metadata": {"composer_env_info": {"composer_version": "0.32.1"},
                     "world_size": 1}}}
    step = folder / "run" / "ep1-ba8-rank0.pt"
    step.parent.mkdir()
    torch.save(state, step)
    shards = folder / "sharded" / "ep1-ba8"
    save_dcp(state, shards)
    # What is opened by its own path is known by its values alone.
    for path, number in ((step, None), (step.parent, 8), (shards, None),
                         (shards.parent, 8)):
        check_run(path, "composer", model.state_dict(), number)


def test_composer_shards(folder):
    root = folder / "run"
    model, optimizer = train()
    save_dcp(composer_state(model, optimizer, True), root / "ep1-ba8")
    for path in (root / "ep1-ba8", root):
        check_run(path, "composer", wanted(model, optimizer), 8)
    # Its link has a file's name, and the steps are listed with it.
    (root / "latest-rank0.pt").symlink_to("ep1-ba8")
    check_run(root, "composer", wanted(model, optimizer), 8)
    rows = CKPT.ok("ls", root, "--json").json()["entries"]
    check_equal([Path(r["name"]).name for r in rows],
                ["ep1-ba8", "latest-rank0.pt"], "rows")


def resumption(batch, optimizer):
    """get_resumption_state_dict of one rank (composer/checkpoint/state_dict.py
    at 6405188): values, and random numbers in tensors."""
    import datetime
    import random

    import numpy
    import torch

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return {
        "dataset_state": {"train": None},
        "timestamp": {"epoch": 1, "batch": batch,
                      "total_wct": datetime.timedelta(seconds=3)},
        "schedulers": {"LambdaLR": scheduler.state_dict()},
        "callbacks": [("Speed", {"total": 1.5})], "rank_zero_seed": 3,
        "run_name": "tiny", "rng": [{
            "python": random.getstate(), "numpy": numpy.random.get_state(),
            "torch": torch.random.get_rng_state()}]}


def save_composer_parts(step, batch, kind):
    """save_checkpoint_to_disk (composer/checkpoint/save.py at 6405188): FSDP's
    shards are DCP; of any other model rank 0 writes all."""
    import torch
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict)

    model, optimizer = train()
    states = optimizer.state_dict()
    if kind != "numbered":
        states = get_optimizer_state_dict(model, optimizer)
    if kind == "shards":
        save_dcp(model.state_dict(), step / "model")
        save_dcp(states, step / "optim")
    else:
        (step / "model").mkdir(parents=True)
        (step / "optim").mkdir()
        torch.save(model.state_dict(), step / "model" / "model.pt")
        torch.save(states, step / "optim" / "optim.pt")
    values = resumption(batch, optimizer)
    with open(step / "resumption.pkl", "wb") as file:
        pickle.dump(values, file)
    (step / "composer_metadata.json").write_text(json.dumps({
        "composer_version": "0.32.1", "sharded_state_dict": kind == "shards",
        "precision": "fp32", "model_name": "Sequential"}, indent=4))
    return wanted(model, optimizer), values


def test_composer_parts(folder, kind):
    import torch

    root = folder / "run"
    save_composer_parts(root / "ep1-ba4", 4, kind)
    step = root / "ep1-ba10"
    want, values = save_composer_parts(step, 10, kind)
    for path in (step, root):
        check_run(path, "composer_parts", want, 10)
    renamed = folder / "mine"
    shutil.copytree(step, renamed)
    found = check_run(renamed, "composer_parts", want, 10)
    parts = {f["path"]: f["part"] for f in found["file_list"]}
    check_equal(parts["resumption.pkl"], "trainer", "part")
    CKPT.ok("verify", root)
    rows = CKPT.ok("ls", root, "--json").json()["entries"]
    check_equal([(r["step"], r["complete"]) for r in rows],
                [(4, True), (10, True)], "rows")
    # Its values go along as torch.save would have written them.
    out = folder / "out.pt"
    said = CKPT.ok("convert", step, out, "--to", "torch").err
    check("left out" not in said, said)
    kept = torch.load(out, weights_only=False)["resumption"]
    check_equal(kept["timestamp"], values["timestamp"], "timestamp")
    check_equal(kept["rng"][0]["python"], values["rng"][0]["python"], "python")
    check(torch.equal(kept["rng"][0]["torch"], values["rng"][0]["torch"]),
          "torch's random numbers")
    if kind == "shards":
        again = folder / "again"
        CKPT.ok("reshard", step, again, "--dp", "3")
        check_run(again, "composer_parts", want, 10)
        check_equal((again / "resumption.pkl").read_bytes(),
                    (step / "resumption.pkl").read_bytes(), "resumption.pkl")


def test_composer_resumption(folder):
    """resumption.pkl is a pickle: looked at, never loaded."""
    root = folder / "run"
    for batch in (4, 8):
        want, _ = save_composer_parts(root / f"ep1-ba{batch}", batch, "full")
    path = root / "ep1-ba8" / "resumption.pkl"
    whole = path.read_bytes()
    mark = folder / "ran"
    evil = pickle.dumps({"timestamp": {"batch": 8}})[:-1] + (
        b"cos\nsystem\n(X" + len(f"touch {mark}").to_bytes(4, "little")
        + f"touch {mark}".encode() + b"tR0.")
    for name, content, kind, code in (
            ("cut", whole[:-1], "part", 1),
            ("cut in a tensor", whole[:len(whole) // 2], "part", 1),
            ("no STOP, zeros", whole[:-1] + b"\0" * 9, "part", 1),
            ("more after STOP", whole + b"\0" * 9, "trailing_bytes", 0),
            ("a call", evil, "executes", 1),
            ("empty", b"", "empty_file", 1),
            ("another step's", (root / "ep1-ba4" / path.name).read_bytes(),
             "stale_part", 0)):
        path.write_bytes(content)
        said = CKPT.run("verify", path.parent, "--json").want(code).json()
        check([p for p in said["problems"] if p["kind"] == kind
               and p["file"] == str(path)], f"{name}: {said['problems']}")
        CKPT.ok("inspect", path.parent)
    check(not mark.exists(), "it was run")
    path.unlink()
    said = CKPT.run("verify", path.parent).want(1).out
    check("ep1-ba4/resumption.pkl" in said, said)


def save_weights(tensors, path):
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"format": "pt"})
    (path.parent / "config.json").write_text('{"tiny": true}')


def save_recipe(root, model, optimizer, epoch, by_name):
    """FullModelHFCheckpointer.save_checkpoint, intermediate (torchtune 0.6):
    the epoch's folder, and the recipe's state without the model."""
    import torch

    folder = root / f"epoch_{epoch}"
    name = "model-00001-of-00001.safetensors"
    save_weights({f"hf.{n}": t for n, t in model.state_dict().items()},
                 folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({
        "metadata": {"total_size": 1},
        "weight_map": {f"hf.{n}": name for n in model.state_dict()}}))
    states = optimizer.state_dict()
    if by_name:
        from torch.distributed.checkpoint.state_dict import (
            get_optimizer_state_dict)

        states = get_optimizer_state_dict(model, optimizer)
    (root / "recipe_state").mkdir(exist_ok=True)
    torch.save({"optimizer": states, "seed": 3, "epochs_run": epoch + 1,
                "total_epochs": 9, "max_steps_per_epoch": 2},
               root / "recipe_state" / "recipe_state.pt")


def test_torchtune(folder):
    """The model has Hugging Face's names, the optimizer torchtune's."""
    root = folder / "out"
    model, optimizer = train()
    for epoch in (9, 10):
        save_recipe(root, model, optimizer, epoch, True)
    want = {name if name not in model.state_dict() else f"hf.{name}": t
            for name, t in wanted(model, optimizer).items()}
    for path in (root / "epoch_10", root):
        check_run(path, "torchtune", want, 10)
    # Only the newest epoch has state.
    alone = {n: t for n, t in want.items() if n.startswith("hf.")}
    found = check_run(root / "epoch_9", "torchtune", alone, 9)
    check([p for p in found["problems"] if p["kind"] == "stale_part"],
          f"{found['problems']}")
    # By number, as nothing proves the order of torchtune's modules.
    save_recipe(root, model, optimizer, 10, False)
    found = CKPT.inspect(root)
    names = {t["name"] for t in found["tensors"] if t["kind"] == "optim"}
    check(all(n.startswith("optimizer.state.") for n in names), names)
    check([p for p in found["problems"] if p["kind"] == "numbered_state"],
          f"{found['problems']}")


def random_weights(seed, **shapes):
    import torch

    torch.manual_seed(seed)
    return {f"{name}.weight": torch.randn(shape)
            for name, shape in shapes.items()}


def trainer_state(step):
    return json.dumps({"global_step": step, "log_history": []})


def test_full_fsdp(folder):
    """FULL_STATE_DICT: one file for the model, one for the optimizer by name
    (accelerate/utils/fsdp_utils.py)."""
    import torch
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict)

    model, optimizer = train()
    states = get_optimizer_state_dict(model, optimizer)
    root = folder / "root"
    step = root / "checkpoint-2"
    step.mkdir(parents=True)
    torch.save(model.state_dict(), step / "pytorch_model_fsdp.bin")
    torch.save(states, step / "optimizer.bin")
    torch.save({"last_epoch": 2}, step / "scheduler.pt")
    (step / "trainer_state.json").write_text(trainer_state(2))
    check_run(root, "hf_trainer", wanted(model, optimizer), 2)
    CKPT.ok("verify", root)
    out = folder / "out"
    CKPT.ok("convert", root, out, "--to", "run", "--trainer", "accelerate",
            "--dp", 2)
    check_run(out, "accelerate", wanted(model, optimizer))


def test_beside(folder):
    """What LLaMA-Factory, axolotl, ms-swift and TRL add to a Trainer step is
    carried, and doesn't make it another trainer's."""
    golden = DATA / "runs" / "hf_trainer_fsdp2_w2" / "ckpt" / "checkpoint-3"
    step = folder / "checkpoint-3"
    shutil.copytree(golden, step)
    extra = {
        "args.json": '{"model_type": "qwen2"}',  # ms-swift
        "additional_config.json": "{}",
        "README.md": "---\nlibrary_name: peft\n---\n",  # TRL, axolotl
        "axolotl_config.yaml": "base_model: x\n",
        "trainer_log.jsonl": '{"current_steps": 3}\n',  # LLaMA-Factory
        "all_results.json": "{}", "training_loss.png": "png"}
    for name, text in extra.items():
        (step / name).write_text(text)
    want = CKPT.inspect(golden, "--digest")
    got = CKPT.inspect(folder, "--digest")
    check_equal(got["trainer"], want["trainer"], "trainer")
    check_equal([t["digest"] for t in got["tensors"]],
                [t["digest"] for t in want["tensors"]], "tensors")
    out = folder / "out"
    CKPT.ok("reshard", step, out, "--dp", 3)
    for name, text in extra.items():
        check_equal((out / name).read_text(), text, name)


def test_slime(folder):
    """Megatron's root, with the position in the prompts beside its iterations
    (slime/rollout/data_source.py)."""
    import torch

    golden = MEGATRON / "gpt_tp2_pp2_v0161" / "ckpt"
    [step] = golden.glob("iter_*") or [golden]
    root = folder / "root"
    shutil.copytree(step, root / step.name)
    number = int(step.name.split("_")[1])
    (root / "latest_checkpointed_iteration.txt").write_text(str(number))
    (root / "rollout").mkdir()
    torch.save({"sample_offset": 4, "epoch_id": 0},
               root / "rollout" / f"global_dataset_state_dict_{number}.pt")
    found = CKPT.inspect(root, "--digest")
    want = CKPT.inspect(step, "--digest")
    check_equal([t["digest"] for t in found["tensors"]],
                [t["digest"] for t in want["tensors"]], "tensors")
    CKPT.ok("verify", root)
    out = folder / "out"
    CKPT.ok("reshard", root, out, "--tp", 1, "--pp", 1)
    check((out / "latest_checkpointed_iteration.txt").is_file(), "no tracker")


def nanotron_shares(elements, ranks):
    """nanotron's ZeroDistributedOptimizer._partition_parameters."""
    import numpy as np

    padded = (elements - 1) // ranks + 1
    sizes = np.full(shape=ranks, fill_value=padded)
    remainder = padded * ranks - elements
    if remainder > 0:
        sizes[-remainder:] -= 1
    ends = np.cumsum(sizes)
    return list(zip([0, *ends[:-1]], ends))


def test_nanotron_zero(folder):
    """ZeRO 1 gives data-parallel ranks runs of each rank's flattened state."""
    import torch

    golden = DATA / "runs" / "nanotron_tp2" / "ckpt" / "10"
    want = CKPT.inspect(golden, "--digest")
    for ranks in (2, 3, 5):
        step = folder / f"dp{ranks}" / "10"
        shutil.copytree(golden, step)
        for path in sorted(step.glob("optimizer/*.pt")):
            one = torch.load(path, weights_only=False)
            for d in range(ranks):
                cut = {}
                for index, states in one["state"].items():
                    cut[index] = {}
                    for name, tensor in states.items():
                        flat = tensor.reshape(-1)
                        if tensor.dim():
                            a, b = nanotron_shares(len(flat), ranks)[d]
                            tensor = flat[a:b].clone()
                        cut[index][name] = tensor
                torch.save({**one, "state": cut}, path.with_name(
                    path.name.replace("_tp-", f"_dp-{d}-of-{ranks}_tp-")))
            path.unlink()
        got = CKPT.inspect(step, "--digest")
        check_equal([(t["name"], t["digest"]) for t in got["tensors"]],
                    [(t["name"], t["digest"]) for t in want["tensors"]],
                    f"tensors of {ranks}")
        CKPT.ok("verify", step)
    lost = next(step.glob("optimizer/*_dp-4-*"))
    lost.unlink()
    said = CKPT.run("inspect", step).want(4).err
    check(lost.name in said and "is missing" in said, said)


def test_diffusers(folder):
    root = folder / "model"
    parts = {"unet": random_weights(1, conv_in=(4, 3), conv_out=(3, 4)),
             "vae": random_weights(2, conv_in=(4, 3)),
             "text_encoder": random_weights(3, embed=(7, 4))}
    for name, tensors in parts.items():
        file = ("model.safetensors" if name == "text_encoder"
                else "diffusion_pytorch_model.safetensors")
        save_weights(tensors, root / name / file)
    (root / "scheduler").mkdir()
    (root / "scheduler/scheduler_config.json").write_text("{}")
    (root / "model_index.json").write_text(json.dumps({
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "safety_checker": [None, None]}))
    want = {f"{part}.{n}": t for part, tensors in parts.items()
            for n, t in tensors.items()}
    check_run(root, "diffusers", want)
    CKPT.ok("verify", root)
    CKPT.ok("convert", root, folder / "hf", "--to", "hf")
    check_run(folder / "hf", "diffusers", want)
    for to in ("gguf", "meta", "megatron_torch_dist"):
        said = CKPT.run("convert", root, folder / to, "--to", to).want(5).err
        check("3 models are in it" in said and "--part " in said, said)
    said = CKPT.run("convert", root, folder / "unet", "--to", "hf", "--part",
                    "unet").want(5).err
    check("--to safetensors keeps them" in said, said)
    CKPT.ok("convert", root, folder / "unet", "--to", "safetensors", "--part",
            "unet")
    check_missing(root, "vae/diffusion_pytorch_model.safetensors", "vae")
    shutil.rmtree(root / "scheduler")
    result = CKPT.run("verify", root).want(1)
    check("scheduler" in result.out + result.err, f"{result}")
    (root / "model_index.json").write_text(
        '{"../unet": ["diffusers", "UNet2DModel"]}')
    result = CKPT.run("inspect", root).want(4)
    check("outside" in result.err, f"{result}")


def check_missing(root, name, word):
    """A component without its weights is damage, and is named."""
    aside = root.parent / "aside"
    (root / name).rename(aside)
    result = CKPT.run("verify", root).want(1)
    check(word in result.out + result.err, f"{result}")
    aside.rename(root / name)
    CKPT.ok("verify", root)


def test_sentence_transformers(folder):
    root = folder / "model"
    parts = {"": random_weights(1, embeddings=(7, 4)),
             "2_Dense": random_weights(2, linear=(3, 4))}
    for name, tensors in parts.items():
        save_weights(tensors, root / name / "model.safetensors")
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"),
             ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    (root / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path,
         "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)]))
    want = {f"{part}.{n}" if part else n: t for part, tensors in parts.items()
            for n, t in tensors.items()}
    check_run(root, "sentence_transformers", want)
    CKPT.ok("verify", root)
    check_missing(root, "2_Dense/model.safetensors", "2_Dense")


def test_component_forms(folder):
    """Hubs have a component as safetensors, as .bin and in 16 bits: the first is
    read, the others are noted."""
    import torch

    root = folder / "model"
    tensors = random_weights(1, embeddings=(7, 4))
    save_weights(tensors, root / "model.safetensors")
    torch.save(tensors, root / "pytorch_model.bin")
    (root / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "",
         "type": "sentence_transformers.models.Transformer"}]))
    found = check_run(root, "sentence_transformers", tensors)
    said = {Path(p["file"]).name for p in found["problems"]
            if p["kind"] == "second_copy"}
    check_equal(said, {"pytorch_model.bin"}, "noted")
    CKPT.ok("verify", root)
    root, want = folder / "pipeline", {}
    for name, stem in (("unet", "diffusion_pytorch_model"),
                       ("text_encoder", "model")):
        tensors = random_weights(2, x=(3, 4))
        save_weights(tensors, root / name / f"{stem}.safetensors")
        save_weights({n: t.half() for n, t in tensors.items()},
                     root / name / f"{stem}.fp16.safetensors")
        torch.save(tensors, root / name / (
            "pytorch_model.bin" if stem == "model" else f"{stem}.bin"))
        want.update({f"{name}.{n}": t for n, t in tensors.items()})
    (root / "model_index.json").write_text(json.dumps({
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "text_encoder": ["transformers", "CLIPTextModel"]}))
    found = check_run(root, "diffusers", want)
    check_equal(sum(p["kind"] == "second_copy" for p in found["problems"]), 4,
                "noted")
    CKPT.ok("verify", root)


def test_weights_below(folder):
    """Weights in folders of a step that its trainer's model does not have: said
    in every command, of each folder."""
    runs = DATA / "runs"
    for case, below, kind in (
            ("hf_trainer_qwen2/ckpt/checkpoint-10", "2_Dense",
             "unread_weights"),
            ("hf_trainer_lora/ckpt/checkpoint-4", "second_adapter",
             "unread_weights"),
            ("accelerate_fsdp2_w2/ckpt/checkpoints/checkpoint_10",
             "unwrapped", "unread_weights"),
            ("verl_fsdp2_w2/ckpt/global_step_10", "actor/lora_adapter",
             "unread_weights"),
            ("verl_fsdp2_w2/ckpt/global_step_10", "actor/huggingface",
             "second_copy")):
        step = folder / below / Path(case).name
        shutil.copytree(runs / case, step)
        name = ("adapter_model.safetensors" if "adapter" in below
                else "model.safetensors")
        (step / below).mkdir(exist_ok=True)
        save_weights(random_weights(4, x=(3, 4)), step / below / name)
        said = [p for p in CKPT.inspect(step)["problems"] if p["kind"] == kind
                and p["file"] == str(step / below / name)]
        check(said, f"{case}, {below}: nothing")
        if kind == "unread_weights":
            said = CKPT.ok("convert", step, folder / below / "out", "--to",
                           "dcp", "-n").err
            check(name in said, f"{case}, {below}: {said}")
    # A directory of DCP, as Automodel's of averaged weights.
    step = folder / "dcp"
    shutil.copytree(runs / "accelerate_fsdp2_w2/ckpt/checkpoints/checkpoint_10",
                    step)
    shutil.copytree(step / "pytorch_model_fsdp_0", step / "ema")
    said = CKPT.inspect(step)["problems"]
    check_equal([p["file"] for p in said if p["kind"] == "unread_weights"],
                [str(step / "ema/.metadata")], "a directory of DCP")


def test_named_adapters(folder):
    """PEFT saves an adapter with a name of its own in a folder of that name;
    the step is as whole. A lost "default" is none of them."""
    golden = DATA / "runs/hf_trainer_lora/ckpt/checkpoint-4"
    files = ("adapter_model.safetensors", "adapter_config.json")
    want = {t["name"]: t["digest"]
            for t in CKPT.inspect(golden, "--digest")["tensors"]}
    step = folder / "checkpoint-4"
    shutil.copytree(golden, step)
    (step / "train").mkdir()
    for name in files:
        (step / name).rename(step / "train" / name)
    found = CKPT.inspect(step, "--digest")
    check_equal({t["name"]: t["digest"] for t in found["tensors"]}, want,
                "one adapter")
    check_equal(found["problems"], [], "one adapter")
    out = folder / "out"
    CKPT.ok("convert", step, out, "--to", "safetensors")
    for name in files:
        check((out / name).is_file(), f"{name} of one adapter")
    # DPO's: the reference has the trained one's names.
    shutil.copytree(step / "train", step / "reference")
    models = {t["name"] for t in CKPT.inspect(step)["tensors"]
              if t["kind"] == "model"}
    check_equal(models, {f"{role}.{n}" for n in want
                         for role in ("reference", "train")
                         if n.endswith((".lora_A.weight", ".lora_B.weight",
                                        "lm_head.weight"))}, "two adapters")
    for name in files[1:]:
        shutil.copy(step / "train" / name, step / name)
    said = CKPT.run("verify", step).want(1)
    check("without a model" in said.out, f"{said}")


def test_lost_model(folder):
    """A step that has lost its model and its configuration is not the adapter
    in a folder of it. transformers' save_pretrained leaves
    generation_config.json, which PEFT's does not; a neighbour tells, too, and
    the optimizer."""
    golden = DATA / "runs/hf_trainer_qwen2/ckpt/checkpoint-10"
    lora = DATA / "runs/hf_trainer_lora/ckpt/checkpoint-4"
    lost = {"config.json", "generation_config.json", "model.safetensors"}

    def lose(name, kept=(), optimizer=golden):
        step = folder / name / "checkpoint-10"
        shutil.copytree(golden, step, ignore=lambda *_: lost - set(kept))
        (step / "train").mkdir()
        for path in lora.glob("adapter_*"):
            shutil.copy(path, step / "train")
        (step / "optimizer.pt").unlink()
        if optimizer:
            shutil.copy(optimizer / "optimizer.pt", step)
        return step

    def refused(step, words):
        for path in (step, step.parent):
            said = CKPT.run("inspect", path)
            check(said.code in (3, 4) and words in said.err, f"{said}")
        check_equal(CKPT.run("verify", step).code, 1, str(step))

    trains = "trains 16 matrices, the adapters in folders of it have 13"
    refused(lose("optimizer"), trains)
    for name in ("config.json", "generation_config.json"):
        refused(lose(name, [name], None), "without a model")
    shard = lose("shard", optimizer=None)
    shutil.copy(golden / "model.safetensors",
                shard / "model-00001-of-00002.safetensors")
    refused(shard, "without a model")
    beside = lose("beside", optimizer=None)
    shutil.copytree(golden, beside.parent / "checkpoint-5")
    said = CKPT.run("verify", beside).want(1)
    check("without a model" in said.out, f"{said}")
    # With its own optimizer it is the step's model, and with none it may be.
    for step in (lose("own", optimizer=lora), lose("alone", optimizer=None)):
        found = CKPT.inspect(step)["tensors"]
        check_equal(len([t for t in found if t["kind"] == "model"]), 13,
                    str(step))


def test_batch_norm(folder):
    """torch's batch norms have averages of a parameter's shape. They are never
    trained, which the count beside them tells."""
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 5),
        torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.randn(3, 6)).square().mean().backward()
    optimizer.step()
    state = {"pytorch-lightning_version": "2.6.6", "global_step": 1,
             "state_dict": model.state_dict(),
             "optimizer_states": [optimizer.state_dict()]}
    torch.save(state, folder / "epoch=0-step=1.ckpt")
    check_run(folder, "lightning", wanted(model, optimizer), 1)
    # Without the counts they may be parameters.
    state["state_dict"] = {n: t for n, t in state["state_dict"].items()
                           if not n.endswith("num_batches_tracked")}
    torch.save(state, folder / "epoch=0-step=1.ckpt")
    found = CKPT.inspect(folder)
    check([p for p in found["problems"] if p["kind"] == "numbered_state"],
          f"{found['problems']}")


def test_lightning_deepspeed(folder):
    """DeepSpeedStrategy's folder has the tag "checkpoint" (lightning/pytorch/
    strategies/deepspeed.py)."""
    root = folder / "run"
    step = root / "checkpoints" / "epoch=0-step=3.ckpt"
    [tag] = [p for p in DEEPSPEED.iterdir() if p.is_dir()]
    shutil.copytree(tag, step / "checkpoint")
    (step / "latest").write_text("checkpoint")
    want = CKPT.inspect(DEEPSPEED, "--digest", "--trainer", "none")
    for path in (step, root):
        found = CKPT.inspect(path, "--digest")
        check_equal(found["trainer"],
                    {"name": "lightning_deepspeed", "step": 3}, "trainer")
        check_equal([(t["name"], t["digest"]) for t in found["tensors"]],
                    [(t["name"], t["digest"]) for t in want["tensors"]],
                    "tensors")
    CKPT.ok("verify", root)


def test_stray_links(folder, case):
    """What links of loggers lead to is gone once a folder is copied (wandb's
    latest-run), or was never there, and programs leave FIFOs and sockets: all
    are left out aloud, in every format."""
    root = folder / "run"
    shutil.copytree(DATA / case / "ckpt", root, symlinks=True)
    want = CKPT.inspect(root, "--digest")
    whole = CKPT.run("verify", root).code
    shards = CKPT.run("reshard", root, folder / "out", "--dry-run").code
    step = Path(want["path"])
    for below in {root, step if step.is_dir() else root}:
        (below / "wandb").mkdir(exist_ok=True)
        (below / "wandb" / "latest-run").symlink_to("run-20260101")
        (below / "dead").symlink_to("/nonexistent/x")
        (below / "circle").symlink_to("circle")
        fifo(below / "pipe")
        sock(below / "daemon.sock")
    strays = {"dead", "circle", "latest-run", "pipe", "daemon.sock"}
    found = CKPT.inspect(root, "--digest")
    check_equal(found["tensors"], want["tensors"], "tensors")
    CKPT.ok("ls", root)
    said = CKPT.run("verify", root, "--json").json()
    kinds = {Path(p["file"]).name: p["kind"] for p in said["problems"]}
    check_equal({n: kinds.get(n) for n in strays},
                {n: "special_file" if n in ("pipe", "daemon.sock")
                 else "broken_link" for n in strays}, "verify")
    check_equal(said["ok"], whole == 0, f"verify: {said['problems']}")
    for command, code in (
            (("convert", "--to", "safetensors", "--model-only"), 0),
            (("reshard",), shards)):
        out = folder / command[0]
        done = CKPT.run(command[0], root, out, *command[1:], "--json",
                        "--allow-replica-mismatch").want(code)
        if code:
            continue
        fates = done.json()["files"]
        left = {Path(f["path"]).name for f in fates if f["fate"] == "left_out"}
        check(left >= strays, f"{command}: {left}")
        names = {p.name for p in out.rglob("*")}
        check(not names & strays, f"{command}: {names}")


def test_one_file(folder):
    """reshard of Lightning's file makes a plain one aloud; --to run its own."""
    step = next((DATA / "runs/lightning_ckpt/ckpt/checkpoints").glob("*.ckpt"))
    plain, own = folder / "plain.ckpt", folder / "own.ckpt"
    said = CKPT.ok("reshard", step, plain).err
    check("lightning does not resume" in said and "--to run" in said, said)
    CKPT.ok("reshard", step, own, "--to", "run")
    check_equal(CKPT.inspect(plain)["trainer"], None, "plain")
    check_equal(CKPT.inspect(own)["trainer"]["name"], "lightning", "own")


def test_composer_link_file(folder):
    """Object stores have no links: create_symlink_file leaves a text with the
    step's path in the store, which get_file follows where no latest-rank0.pt
    is."""
    import torch

    model, optimizer = train()
    want = wanted(model, optimizer)
    files, shards = folder / "files", folder / "shards"
    files.mkdir()
    for number in (4, 8):
        name = f"ep1-ba{number}"
        state = composer_state(model, optimizer, False)
        state["state"]["timestamp"] = {"Timestamp": {"batch": number}}
        torch.save(state, files / f"{name}-rank0.pt")
        save_dcp({**state, "state": {
            **state["state"], **composer_state(model, optimizer, True)["state"],
            "timestamp": state["state"]["timestamp"]}}, shards / name)
    for root, ending in ((files, "-rank0.pt"), (shards, "")):
        check_run(root, "composer", want, 8)
        link = root / "latest-rank0.pt.symlink"
        link.write_text(f"runs/tiny/ep1-ba4{ending}")
        found = check_run(root, "composer", want, 4)
        said = [p["message"] for p in found["problems"]
                if p["kind"] == "unfinished_save"]
        check(len(said) == 1 and f"leads to ep1-ba4{ending}" in said[0],
              f"{said}")
        link.write_text("runs/tiny/ep1-ba6")
        check_run(root, "composer", want, 8)
        link.write_text(f"runs/tiny/ep1-ba4{ending}")
        (root / "latest-rank0.pt").symlink_to(f"ep1-ba8{ending}")
        check_run(root, "composer", want, 8)


# What each of Composer's compressors puts first (composer/utils/compression.py).
PACKED = {
    ".pt.bz2": b"BZh9", ".pt.gz": b"\x1f\x8b\x08", ".pt.lz4":
    b"\x04\x22\x4d\x18", ".pt.lzma": b"\x5d\0\0\x80\0\xff", ".pt.lzo":
    b"\x89LZO\0\r\n", ".pt.xz": b"\xfd7zXZ\0", ".pt.zst":
    b"\x28\xb5\x2f\xfd", ".tar": bytes(257) + b"ustar\0", ".tar.gz":
    b"\x1f\x8b\x08", ".tgz": b"\x1f\x8b\x08"}


def test_composer_packed(folder):
    """A compressed step is named, by itself and beside older ones."""
    import torch

    model, optimizer = train()
    torch.save(composer_state(model, optimizer, False),
               folder / "ep1-ba4-rank0.pt")
    for ending, magic in PACKED.items():
        packed = folder / f"ep1-ba9-rank0{ending}"
        packed.write_bytes(magic + bytes(600))
        result = CKPT.run("inspect", packed).want(3)
        check("unpack it first" in result.err, f"{result}")
        said = [p for p in CKPT.inspect(folder)["problems"]
                if p["kind"] == "unfinished_save"]
        check_equal([p["file"] for p in said], [str(packed)], ending)
        check("does not unpack; ep1-ba4-rank0.pt is read" in said[0]["message"],
              said[0]["message"])
        packed.unlink()


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("torchtune", test_torchtune)
    suite.add("NeMo-RL", test_nemo_rl)
    suite.add("NeMo-RL with Megatron", test_nemo_rl_megatron)
    suite.add("NeMo 2", test_nemo)
    suite.add("Megatron-Bridge", test_megatron_bridge)
    suite.add("OpenRLHF", test_openrlhf)
    suite.add("Composer, one file", test_composer_file)
    suite.add("Composer's weights alone", test_composer_weights)
    suite.add("Composer, shards", test_composer_shards)
    for kind in ("numbered", "full", "shards"):
        suite.add(f"Composer, a folder of parts: {kind}", test_composer_parts,
                  kind)
    suite.add("Composer's resumption.pkl", test_composer_resumption)
    suite.add("Composer's link in a file", test_composer_link_file)
    for case in [*ONE_OF_EACH.values(), "orbax/pytree_zarr2"] + sorted(
            f"runs/{p.name}" for p in (DATA / "runs").iterdir()):
        suite.add(f"stray links: {case}", test_stray_links, case)
    suite.add("Composer, compressed", test_composer_packed)
    suite.add("Lightning's file, resharded", test_one_file)
    suite.add("Trainer with FSDP, full state dicts", test_full_fsdp)
    suite.add("LLaMA-Factory, axolotl, ms-swift, TRL", test_beside)
    suite.add("slime", test_slime)
    suite.add("a lost model with an adapter", test_lost_model)
    suite.add("nanotron with ZeRO 1", test_nanotron_zero)
    suite.add("diffusers", test_diffusers)
    suite.add("sentence-transformers", test_sentence_transformers)
    suite.add("batch norms", test_batch_norm)
    suite.add("Lightning with DeepSpeed", test_lightning_deepspeed)
    suite.add("components in several forms", test_component_forms)
    suite.add("weights in folders below", test_weights_below)
    suite.add("adapters with names", test_named_adapters)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
