#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over run folders: what trainers leave, whole.

Each case of tests/data/runs was written by its trainer; the expectations are
its live objects': the model by its own names, the optimizer's state by the
names of parameters.
"""

import json
import re
import shutil
from pathlib import Path

from support import (
    DATA, Suite, check, check_equal, digest,
    read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
CASES = sorted(path.name for path in GOLDENS.iterdir())
TRAINERS = {
    "accelerate": "accelerate", "hf_trainer": "hf_trainer",
    "lightning": "lightning", "nanotron": "nanotron",
    "torchtitan": "torchtitan", "verl": "verl",
}
# Files that no loader of the trainer opens, and that no other file mentions.
CARRIED = re.compile(
    r"tokenizer(_config)?\.json$|generation_config\.json$|README\.md$"
    r"|zero_to_(fp32|torch)\.py$")
# Without these nothing is left, or only what any unfinished DCP has.
NOTHING = re.compile(r"step-\d+/\.metadata$|\.ckpt$")


def facts(case):
    return json.loads((GOLDENS / case / "case.json").read_text())


def trainer_of(case):
    return next(t for start, t in TRAINERS.items() if case.startswith(start))


def root_of(case):
    return GOLDENS / case / "ckpt"


def step_of(case):
    known = facts(case)
    step = root_of(case) / known["newest"]
    return step / known["newest_file"] if "newest_file" in known else step


def wanted(case):
    return (read_safetensors(GOLDENS / case / "expected.safetensors"),
            read_safetensors(GOLDENS / case / "expected_optim.safetensors"))


def check_contents(case, path):
    found = CKPT.inspect(path, "--digest")
    known = facts(case)
    check_equal(found["trainer"],
                {"name": trainer_of(case), "step": known["step"]}, "trainer")
    model, optim = wanted(case)
    got = {t["name"]: t for t in found["tensors"]}
    by_kind = {kind: {t["name"] for t in found["tensors"] if t["kind"] == kind}
               for kind in ("model", "optim")}
    check_equal(sorted(by_kind["model"]), sorted(model), "model")
    check_equal(sorted(by_kind["optim"]), sorted(optim), "optimizer")
    for name, tensor in {**model, **optim}.items():
        mine = got[name]
        check_equal((mine["dtype"], tuple(mine["shape"]), mine["digest"]),
                    (tensor.dtype, tensor.shape, digest(tensor.data)), name)
    for name in optim:
        check_equal(f"{got[name]['param']}.{got[name]['state']}", name, name)
    bad = [p for p in found["problems"] if p["severity"] == "damage"]
    check_equal(bad, [], "problems")
    return found


def test_contents(folder, case, path):
    check_contents(case, path)
    CKPT.ok("verify", path)


def test_convert(folder, case, to):
    source = step_of(case)
    target = folder / ("out.pt" if to == "pt" else "out")
    name = {"pt": "torch"}.get(to, to)
    said = CKPT.ok("convert", source, target, "--to", name)
    if to == "safetensors":
        check("optimizer" in said.err, f"the optimizer went unsaid: {said}")
    found = CKPT.inspect(target, "--digest")
    model, optim = wanted(case)
    got = {t["name"]: t for t in found["tensors"]}
    for name, tensor in model.items():
        check(name in got, f"{name} is not in {sorted(got)[:5]}")
        check_equal(got[name]["digest"], digest(tensor.data), name)
    if to == "safetensors":
        # transformers and vLLM take every tensor to be a weight.
        check_equal(sorted(got), sorted(model), "tensors")
        return
    states = {f"{t.get('param')}.{t.get('state')}": t
              for t in found["tensors"] if t["kind"] == "optim"}
    for name, tensor in optim.items():
        check(name in states, f"{name} is not in {sorted(states)[:5]}")
        check_equal(states[name]["digest"], digest(tensor.data), name)


def test_model_only(folder, case):
    target = folder / "model.safetensors"
    CKPT.ok("unshard", step_of(case), target, "--model-only")
    got = read_safetensors(target)
    model, _ = wanted(case)
    for name, tensor in model.items():
        check(name in got and got[name].data == tensor.data, name)
    check_equal(sorted(set(got) - set(model)), [], "more than the model")


def test_model_of_callbacks(folder):
    """Lightning's ModelCheckpoint keeps its best metric as a tensor: no weight,
    so a file of weights has it only where the rest of the state was asked for."""
    import torch

    step = folder / "step.ckpt"
    value = torch.load(step_of("lightning_ckpt"), weights_only=False)
    value["callbacks"] = {"ModelCheckpoint{'monitor': None}": {
        "kth_value": torch.tensor(0.5), "best_k_models": {}}}
    torch.save(value, step)
    for option in ("--model-only", None, "--with-optimizer"):
        target = folder / "model.safetensors"
        CKPT.ok("unshard", step, target, *([option] if option else []))
        more = set(read_safetensors(target)) - set(wanted("lightning_ckpt")[0])
        asked = option == "--with-optimizer"
        check_equal(any("kth_value" in name for name in more), asked,
                    f"{option}: {more}")
        check(asked or not more, f"{more}")
        target.unlink()


def test_unshard(folder, case):
    """From the root: the whole model under its own names. A step doesn't differ
    from its copy, but does from one with a changed byte."""
    CKPT.ok("unshard", root_of(case), folder / "out")
    got = {t["name"]: t["digest"]
           for t in CKPT.inspect(folder / "out", "--digest")["tensors"]
           if t["kind"] == "model"}
    want = read_safetensors(GOLDENS / case / "expected.safetensors")
    for name, tensor in want.items():
        check_equal(got.get(name), digest(tensor.data), name)
    copy = folder / "copy"
    shutil.copytree(root_of(case), copy)
    CKPT.ok("diff", root_of(case), copy)
    begin = max(want.values(), key=lambda t: len(t.data)).data[:16]
    for path in copy.rglob("*"):
        if path.is_file() and begin in path.read_bytes():
            data = path.read_bytes()
            path.write_bytes(data.replace(
                begin, bytes([begin[0] ^ 1]) + begin[1:]))
    CKPT.run("diff", root_of(case), copy).want(1)


def test_none(folder, case):
    """--trainer none: containers alone."""
    result = CKPT.run("inspect", step_of(case), "--trainer", "none", "--json")
    check(result.code in (0, 3, 4), f"{result}")
    if result.code == 0:
        check_equal(result.json()["trainer"], None, "trainer")


def names_it(text, name):
    """Whether the text has its name, or its rank (DeepSpeed, nanotron)."""
    base = Path(name).name
    if base in text:
        return True
    rank = re.search(r"[a-z]_rank_(\d+)_mp|tp-rank-(\d+)-of", base)
    return rank is not None and re.search(
        rf"rank(s of)? ({rank[1] or rank[2]} |0 )|zero_pp_rank_{rank[1]}_"
        rf"|of 1 data-parallel ranks", text) is not None


def answer(path):
    """Exit status and everything that verify says about a path."""
    result = CKPT.run("verify", path, "--json")
    check(result.code in (0, 1, 3, 4), f"{result}")
    return result.code, result.out + result.err


def test_drop(folder, case, root):
    """Without any one of its files: the answer names it, as damage or as one
    that the loader does without."""
    copy = folder / "ckpt"
    shutil.copytree(root_of(case), copy)
    opened = copy if root else copy / step_of(case).relative_to(root_of(case))
    older = re.compile(r"checkpoint[-_]9/|step=8\.ckpt")
    for file in sorted(p for p in copy.rglob("*") if p.is_file()):
        name = str(file.relative_to(copy))
        beside = not root and opened not in file.parents
        if beside or older.search(name) or file == opened:
            continue
        aside = folder / "aside"
        file.rename(aside)
        code, text = answer(opened)
        aside.rename(file)
        if code == 3 and root and NOTHING.search(name):
            continue
        if code != 0 or not CARRIED.search(name):
            check(names_it(text, name), f"without {name}: {code}, {text}")


def test_drop_all(folder):
    """All files of a kind, so that none is left to tell that they existed."""
    for case, pattern, code, word in (
            ("verl_fsdp2_w2", "extra_state_*", 0, "extra_state"),
            ("verl_fsdp2_w2", "latest_*", 0, "from the beginning"),
            ("hf_trainer_fsdp2_w2", "rng_state_*", 1, "fresh random"),
            ("hf_trainer_zero3_w2", "scheduler.pt", 1, "always writes it"),
            ("hf_trainer_zero3_w2", "trainer_state.json", 1, "always writes"),
            ("hf_trainer_lora", "trainer_state.json", 1, "always writes"),
            ("lightning_mp_w2", "meta.pt", 1, "always writes it"),
            ("lightning_mp_w2", ".metadata", 1, "always writes it"),
            ("nanotron_tp2", "checkpoint_metadata.json", 1, "always writes"),
            ("verl_fsdp1_flat_w2", "model_world_*", 1, "model_world_size"),
            ("nanotron_tp2", "tp-*.pt", 0, "random/tp-"),
            ("nanotron_tp2", "lr_scheduler.pt", 1, "lr_scheduler.pt"),
            ("hf_trainer_lora", "adapter_config.json", 1, "adapter_config")):
        copy = folder / case / pattern.strip("*")
        shutil.copytree(root_of(case), copy)
        for file in copy.rglob(pattern):
            file.unlink()
        got, text = answer(copy)
        check(got == code and word in text, f"{case}, {pattern}: {text}")


def test_beside(folder):
    """What the neighbouring step has was not always absent: lost if the loader
    fails without it, a warning if it doesn't."""
    for case, older, newer, name, code in (
            ("accelerate_fsdp2_w2", "checkpoints/checkpoint_9",
             "checkpoints/checkpoint_10", "scheduler.bin", 1),
            ("accelerate_fsdp2_w2", "checkpoints/checkpoint_9",
             "checkpoints/checkpoint_10", "custom_checkpoint_0.pkl", 1),
            ("hf_trainer_qwen2", "checkpoint-9", "checkpoint-10",
             "training_args.bin", 0),
            ("hf_trainer_qwen2", "checkpoint-9", "checkpoint-10",
             "tokenizer.json", 0),
            ("verl_fsdp2_w2", "global_step_9", "global_step_10",
             "actor/fsdp_config.json", 0),
            ("verl_fsdp2_w2", "global_step_9", "global_step_10",
             "actor/huggingface/tokenizer.json", 0)):
        copy = folder / case / Path(name).name
        shutil.copytree(root_of(case), copy)
        shutil.copytree(copy / newer, copy / older, dirs_exist_ok=True)
        CKPT.ok("verify", copy)
        (copy / newer / name).unlink()
        for path in (copy, copy / newer):
            result = CKPT.run("verify", path).want(code)
            check(f"{newer}/{name}" in result.out
                  and f"{older}/{name}" in result.out, f"{result}")
        check("0 problems" not in result.out, f"{result}")


def test_lost_scheduler(folder):
    """Accelerate's, in a single step: the optimizer's groups have what a
    scheduler sets."""
    import torch

    step = folder / "checkpoint_10"
    shutil.copytree(step_of("accelerate_fsdp2_w2"), step)
    CKPT.ok("verify", step)
    (step / "scheduler.bin").unlink()
    said = CKPT.ok("verify", step)
    check("initial_lr" in said.out and "scheduler.bin" in said.out, f"{said}")
    # A plain step: of an optimizer that no scheduler steps, and of one with a
    # scheduler.
    shutil.rmtree(step)
    step.mkdir()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), step / "pytorch_model.bin")
    torch.save({"step": 1}, step / "random_states_0.pkl")
    torch.save(optimizer.state_dict(), step / "optimizer.bin")
    said = CKPT.ok("verify", step)
    check("initial_lr" not in said.out + said.err, f"{said}")
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    torch.save(optimizer.state_dict(), step / "optimizer.bin")
    said = CKPT.ok("verify", step)
    check("initial_lr" in said.out + said.err, f"{said}")


def test_names(folder):
    """What is missing is named as a file, never as a pattern of
    trainers.json."""
    for case, pattern in (
            ("nanotron_tp2", "tp-*.pt"), ("nanotron_tp2", "lr_scheduler.pt"),
            ("nanotron_tp2", "optimizer_config.json"),
            ("hf_trainer_fsdp2_w2", "rng_state_*"),
            ("hf_trainer_qwen2", "model.safetensors"),
            ("hf_trainer_qwen2", "optimizer.pt"),
            ("accelerate_fsdp2_w2", "random_states_*"),
            ("accelerate_fsdp2_w2", "custom_checkpoint_*"),
            ("accelerate_fsdp2_w2", "scheduler.bin"),
            ("verl_fsdp2_w2", "data.pt"),
            ("verl_fsdp2_w2", "model_world_*"),
            ("verl_fsdp2_w2", "optim_world_*"),
            ("verl_fsdp2_w2", "extra_state_*"),
            ("verl_fsdp2_w2", "fsdp_config.json")):
        copy = folder / case / pattern.strip("*")
        shutil.copytree(root_of(case), copy)
        for file in copy.rglob(pattern):
            file.unlink()
        for command in ("verify", "inspect", "ls"):
            result = CKPT.run(command, copy)
            said = result.out + result.err
            check(not re.search(r"\{\*?_?\w*\}", said),
                  f"{command} of {case} without {pattern}: {said}")


def test_roles(folder):
    """Actor and critic in one directory of weights, which nothing loads."""
    root = root_of("verl_fsdp2_w2")
    said = CKPT.ok("convert", root, folder / "out", "--to", "safetensors")
    check("2 models" in said.err and "--part actor" in said.err, f"{said}")
    for name, at, *options in (("one", root / "global_step_10/actor"),
                               ("part", root, "--part", "actor")):
        said = CKPT.ok("convert", at, folder / name, "--to", "safetensors", *options)
        check("2 models" not in said.err, f"{said}")
    CKPT.ok("verify", folder / "one", folder / "part")
    # What has the names of one model refuses several, and says how to go on.
    for number, asked in enumerate((
            ("--to", "hf"), ("--to", "gguf"), ("--to", "meta"),
            ("--to", "vllm"), ("--to", "megatron_torch_dist", "--model-only"),
            ("--to", "torch", "--dialect", "hf"))):
        out = folder / f"refused_{number}"
        said = CKPT.run("convert", root, out, *asked).want(5).err
        check("2 models are in it (actor, critic)" in said and
              "--part actor takes one" in said, f"{asked}: {said}")
        check(not out.exists(), f"{asked}: written")
    CKPT.ok("convert", root, folder / "actor", "--to", "hf", "--part", "actor")
    CKPT.ok("verify", folder / "one", folder / "actor")
    CKPT.ok("convert", root, folder / "keys", "--to", "hf", "--keys", "actor.*")
    for to in ("dcp", "torch"):
        CKPT.ok("convert", root, folder / to, "--to", to)
        CKPT.ok("verify", root, folder / to)


def test_hole(folder):
    """Objects are numbered from 0: a hole is a missing file."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("accelerate_fsdp2_w2"), copy)
    step = copy / "checkpoints/checkpoint_10"
    (step / "custom_checkpoint_0.pkl").rename(step / "custom_checkpoint_1.pkl")
    (step / "scheduler.bin").rename(step / "scheduler_1.bin")
    result = CKPT.run("verify", copy).want(1)
    for name in ("custom_checkpoint_0.pkl", "scheduler.bin"):
        check(name in result.out + result.err, f"{name}: {result}")


def test_stranger(folder, case):
    """A stranger's pickle in the place of any file that may be one is read as
    data, never run."""
    copy, mark = folder / "ckpt", folder / "mark"
    shutil.copytree(root_of(case), copy)
    import pickle

    import torch

    class Stranger:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    aside = folder / "aside"
    for path in sorted(copy.rglob("*")):
        if not path.is_file() or path.suffix in (
                ".json", ".safetensors", ".py", ".md", ".txt"):
            continue
        path.rename(aside)
        if path.name == ".metadata":
            path.write_bytes(pickle.dumps(Stranger()))
        else:
            torch.save({"x": Stranger()}, path)
        for command in ("inspect", "verify"):
            CKPT.run(command, copy)
        CKPT.run("convert", copy, folder / "out", "--to", "dcp", "--dry-run")
        check(not mark.exists(), f"{path.name} was run")
        aside.replace(path)
    args = next(copy.rglob("training_args.bin"), None)
    if args is not None:  # all of it: carried, or said to be left out
        torch.save({"x": Stranger()}, args)
        for to in ("dcp", "safetensors"):
            CKPT.run("convert", copy, folder / to, "--to", to)
        check(not mark.exists(), "it was run")


def plain_step(folder, trainer, weights):
    """What each trainer leaves that saves a model as transformers does, by its
    signature: the folder of the weights."""
    from torch.nn import Linear
    from torch.optim import AdamW

    import torch

    optimizer = AdamW(Linear(3, 2).parameters()).state_dict()
    step = folder / {"hf_trainer": "checkpoint-10", "automodel":
                     "epoch_0_step_10", "torchtune": "epoch_1",
                     "accelerate": "checkpoint_10"}[trainer]
    step.mkdir()
    if trainer == "hf_trainer":
        (step / "trainer_state.json").write_text('{"global_step": 10}')
    elif trainer == "accelerate":
        torch.save({"step": 0}, step / "random_states_0.pkl")
    elif trainer == "torchtune":
        torch.save({"epochs_run": 2, "optimizer": optimizer},
                   step / "recipe_state.pt")
    home = step
    if trainer == "automodel":
        import torch.distributed.checkpoint as dcp

        home = step / "model"
        home.mkdir()
        dcp.save({"optim": {"state": {}}, "a": torch.ones(2)},
                 checkpoint_id=str(step / "optim"), no_dist=True)
    for name in weights:
        save_weights(home, name)
    return step


def save_weights(home, name):
    """A file of two tensors, or an index and its shards."""
    import torch
    from safetensors.torch import save_file

    tensors = {"a.weight": torch.ones(2, 3), "b.weight": torch.ones(3)}
    save = (lambda t, path: save_file(t, path, {"format": "pt"})) \
        if ".safetensors" in name else torch.save
    if not name.endswith(".index.json"):
        return save(tensors, home / name)
    stem, _, end = name[:-len(".index.json")].rpartition(".")
    shards = {n: f"{stem}-0000{i + 1}-of-00002.{end}"
              for i, n in enumerate(tensors)}
    for n, shard in shards.items():
        save({n: tensors[n]}, home / shard)
    (home / name).write_text(json.dumps(
        {"metadata": {"total_size": 36}, "weight_map": shards}))


SAFE = ("model.safetensors", "model.safetensors.index.json")
BIN = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def test_two_forms(folder, trainer):
    """safetensors beside .bin, each alone or in shards: two saves."""
    for safe in SAFE:
        for old in BIN:
            below = folder / safe / old
            below.mkdir(parents=True)
            step = plain_step(below, trainer, (safe, old))
            said = CKPT.run("inspect", step).want(4).err
            check(safe in said and old in said and "two models" in said, said)


def test_index_lists_less(folder, trainer):
    """Weights that the index does not list are reported, in a shard and as a
    shard that nothing lists."""
    for name in (SAFE[1], BIN[1]):
        if trainer == "automodel" and name == BIN[1]:
            continue  # it writes none
        below = folder / name
        below.mkdir()
        step = plain_step(below, trainer, (name,))
        [path] = step.rglob(name)
        CKPT.ok("inspect", step)
        index = json.loads(path.read_text())
        shard = index["weight_map"].pop("b.weight")
        path.write_text(json.dumps(index))
        result = CKPT.run("verify", step)
        check(shard in result.out + result.err, f"no shard: {result}")
        index["weight_map"] = {"a.weight": shard}
        path.write_text(json.dumps(index))
        result = CKPT.run("verify", step)
        check(result.code != 0 and "a.weight" in result.out + result.err,
              f"another's: {result}")


def test_index_of_golden(folder):
    """The same with the golden of transformers."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_qwen2"), copy)
    step = copy / "checkpoint-10"
    names = sorted(read_safetensors(step / "model.safetensors"))
    (step / "model.safetensors").rename(
        step / "model-00001-of-00001.safetensors")
    listed = {n: "model-00001-of-00001.safetensors" for n in names[1:]}
    (step / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": listed}))
    result = CKPT.run("verify", copy)
    check(f"{names[0]}: is not in the index" in result.out, f"{result}")


def mutants(data):
    """Bytes that a disk or a stranger may have left; must never crash."""
    half = len(data) // 2
    yield "empty", b""
    yield "half", data[:half]
    for at in (half, max(0, len(data) - 40)):
        if at < len(data):
            yield f"byte {at}", (
                data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1:])
    yield "text", b"{" * min(4096, len(data))


def test_mutants(folder, case):
    """Each file damaged in turn: an answer with a proper exit status. A
    truncated file is named, except for texts, whose end nothing tells."""
    copy = folder / "ckpt"
    shutil.copytree(root_of(case), copy)
    for file in sorted(p for p in copy.rglob("*") if p.is_file()):
        data = file.read_bytes()
        for what, bytes_ in mutants(data):
            file.write_bytes(bytes_)
            result = CKPT.run("verify", copy)
            check(result.code in (0, 1, 3, 4, 5, 8),
                  f"{file.relative_to(copy)}, {what}: {result}")
            said = result.out + result.err
            check(result.code == 0 or said.strip(),
                  f"{file.relative_to(copy)}, {what}: no message")
            if what == "half" and file.suffix not in (".md", ".py"):
                check(result.code != 0 and file.name in said,
                      f"{file.relative_to(copy)}, {what}: {result}")
        file.write_bytes(data)


def test_two_worlds(folder):
    """Files of two saves in one folder are refused."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("verl_fsdp2_w2"), copy)
    actor = copy / "global_step_10" / "actor"
    shutil.copy(actor / "model_world_size_2_rank_0.pt",
                actor / "model_world_size_4_rank_0.pt")
    result = CKPT.run("inspect", copy).want(4)
    check("world sizes" in result.err, f"{result}")


def test_two_steps(folder):
    """A rank's file from the step before, with the same world size: the
    optimizer counts its steps on each rank."""
    import torch

    for case, name in (
            ("verl_fsdp2_w2",
             "global_step_10/actor/optim_world_size_2_rank_1.pt"),
            ("nanotron_tp2", "10/optimizer/"
             "optimizer_pp-0-of-1_tp-1-of-2_exp-0-of-1.pt")):
        copy = folder / case
        shutil.copytree(root_of(case), copy)
        one = torch.load(copy / name, weights_only=False)
        for state in one["state"].values():
            state["step"] -= 1
        torch.save(one, copy / name)
        said = CKPT.run("verify", copy).want(1)
        check("step: this copy differs" in said.out, f"{said}")
        said = CKPT.run("convert", copy, folder / "out", "--to", "dcp").want(4)
        check("step: this copy differs" in said.err, f"{said}")


def test_mixed(folder):
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_qwen2"), copy)
    step = copy / "checkpoint-10"
    shutil.copy(step / "optimizer.pt", step / "pytorch_model.bin")
    result = CKPT.run("inspect", copy).want(4)
    check("two models" in result.err, f"{result}")
    CKPT.ok("inspect", step, "--trainer", "none", "--from", "safetensors")


def test_unknown_family(folder):
    """Without a proven order the state stays numbered, and says so."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_qwen2"), copy)
    step = copy / "checkpoint-10"
    config = json.loads((step / "config.json").read_text())
    config["model_type"] = "never_heard_of"
    (step / "config.json").write_text(json.dumps(config))
    found = CKPT.inspect(copy)
    names = [t["name"] for t in found["tensors"] if t["kind"] == "optim"]
    check(all(re.match(r"optimizer\.state\.\d+\.", n) for n in names), names)
    check(any(p["kind"] == "numbered_state" for p in found["problems"]),
          f"{found['problems']}")
    # A list of names replaces the unknown order.
    order = facts("hf_trainer_qwen2")["optimizer_order"]
    listing = folder / "order.txt"
    listing.write_text("\n".join(n for g in order for n in g))
    named = CKPT.inspect(copy, "--assume-order", listing)
    names = {t["name"] for t in named["tensors"] if t["kind"] == "optim"}
    check_equal(names, set(wanted("hf_trainer_qwen2")[1]), "names")
    listing.write_text("\n".join(n for g in order[:1] for n in g))
    CKPT.run("inspect", copy, "--assume-order", listing).want(2)


def test_tracker(folder):
    """A tracker wins over numbers; one that points nowhere is damage."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("verl_fsdp2_w2"), copy)
    shutil.copytree(copy / "global_step_10", copy / "global_step_20")
    found = CKPT.inspect(copy)
    check_equal(found["trainer"]["step"], 10, "step")
    check(any("global_step_20" in p["message"] for p in found["problems"]),
          f"{found['problems']}")
    tracker = copy / "latest_checkpointed_iteration.txt"
    for text in (" 10 \n", "10\r\n", "\t10"):  # Python's int() takes them
        tracker.write_bytes(text.encode())
        check_equal(CKPT.inspect(copy)["trainer"]["step"], 10, repr(text))
    for text in ("15", "", " \n", "1 0"):
        tracker.write_text(text)
        CKPT.run("inspect", copy).want(4)


def test_tag_with_blanks(folder):
    """DeepSpeed strips what `latest` says."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_zero3_w2"), copy)
    (copy / "checkpoint-3/latest").write_text(" global_step3 \r\n")
    check_equal(CKPT.inspect(copy)["trainer"]["step"], 3, "step")


def test_newest(folder, case):
    """By number, not alphabetically; an unfinished step is skipped with a
    message."""
    copy = folder / "ckpt"
    shutil.copytree(root_of(case), copy)
    step = copy / step_of(case).relative_to(root_of(case))
    number = int(re.findall(r"\d+", step.name)[-1])
    older = step.with_name(step.name.replace(str(number), str(number - 1)))
    if step.is_dir():
        shutil.copytree(step, older)
        newer = step.with_name(step.name.replace(str(number), "100"))
        newer.mkdir()
        (newer / "config.json").write_text("{}")
    else:
        shutil.copy(step, older)
        newer = None
    found = check_contents(case, copy)
    check_equal(Path(found["path"]).name, step.name, "step")
    if newer is not None and trainer_of(case) != "lightning":
        check(any(newer.name in p["message"] for p in found["problems"]),
              f"{newer.name} is not named: {found['problems']}")


# Names that Lightning's ModelCheckpoint gives, by the user's pattern, and the
# newest of them. A new run in the same folder gets a new version.
LIGHTNING_ROOTS = {
    "epochs alone": (["epoch=1-val_loss=0.25.ckpt",
                      "epoch=10-val_loss=0.30.ckpt",
                      "epoch=2-val_loss=0.15.ckpt"], 1),
    "a prefix": (["checkpoints/mnist-epoch=02-val_loss=0.32.ckpt",
                  "checkpoints/mnist-epoch=03-val_loss=0.31.ckpt"], 1),
    "steps before epochs": (["epoch=9.ckpt", "epoch=1-step=3.ckpt"], 1),
    "last": (["last.ckpt", "epoch=9-val_loss=0.1.ckpt"], 0),
    "last of three runs": (["last.ckpt", "last-v1.ckpt", "last-v10.ckpt",
                            "last-v2.ckpt", "epoch=9-step=3.ckpt"], 2),
    "logs": (["lightning_logs/version_0/checkpoints/epoch=9-step=90.ckpt",
              "lightning_logs/version_10/checkpoints/epoch=0-step=4.ckpt",
              "lightning_logs/version_10/checkpoints/epoch=0-step=3.ckpt",
              "lightning_logs/version_2/checkpoints/epoch=1-step=8.ckpt"], 1),
    "logs with last": (
        ["lightning_logs/version_1/checkpoints/last.ckpt",
         "lightning_logs/version_1/checkpoints/epoch=0-loss=4.ckpt"], 0),
    "the logs' folder": (["version_0/checkpoints/epoch=2.ckpt",
                          "version_1/checkpoints/epoch=1.ckpt"], 1),
}


def test_lightning_root(folder, case):
    names, newest = LIGHTNING_ROOTS[case]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(step_of("lightning_ckpt"), path)
    found = check_contents("lightning_ckpt", folder)
    check_equal(found["path"], str(folder / names[newest]), "the newest")


def test_link_to_nothing(folder):
    """A step's name whose target is gone is skipped aloud, and listed."""
    for case, name in (("hf_trainer_lora", "checkpoint-100"),
                       ("lightning_ckpt", "checkpoints/last.ckpt"),
                       ("lightning_mp_w2", "checkpoints/epoch=9-step=90.ckpt"),
                       ("torchtitan_w2", "checkpoint/step-100"),
                       ("accelerate_fsdp2_w2", "checkpoints/checkpoint_99")):
        copy = folder / case
        shutil.copytree(root_of(case), copy)
        (copy / name).symlink_to("nowhere")
        found = check_contents(case, copy)
        check([p for p in found["problems"] if p["kind"] == "unfinished_save"
               and p["file"] == str(copy / name)
               and "leads nowhere" in p["message"]], f"{found['problems']}")
        rows = CKPT.ok("ls", copy, "--json").json()["entries"]
        check_equal([r["why"] for r in rows if not r["complete"]],
                    ["a link that leads nowhere"], case)


def test_own_link(folder):
    """People put links of their own beside the steps: one that leads nowhere is
    skipped aloud, whatever trainer knows its name."""
    for name in ("latest", "pytorch_model.bin", "meta.pt", "last"):
        copy = folder / name
        shutil.copytree(root_of("hf_trainer_qwen2"), copy)
        (copy / name).symlink_to("nowhere")
        found = check_contents("hf_trainer_qwen2", copy)
        said = [p["file"] for p in found["problems"]
                if p["kind"] == "unfinished_save"]
        check_equal(said, [] if name in ("last", "pytorch_model.bin")
                    else [str(copy / name)], name)
        CKPT.run("inspect", copy / name).want(3)


def test_draft(folder):
    """The folder of a save that the Trainer had not renamed yet."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_qwen2"), copy)
    shutil.copytree(copy / "checkpoint-10", copy / "tmp-checkpoint-20")
    found = check_contents("hf_trainer_qwen2", copy)
    check([p for p in found["problems"] if p["kind"] == "unfinished_save"
           and "tmp-checkpoint-20" in p["message"]], f"{found['problems']}")
    shutil.copytree(copy / "checkpoint-10", copy / "checkpoint-30")
    state = copy / "checkpoint-30/trainer_state.json"
    state.write_text(state.read_text().replace(
        '"global_step": 10', '"global_step": 30'))
    said = [p["kind"] for p in CKPT.inspect(copy)["problems"]]
    check("unfinished_save" not in said, f"an older one: {said}")


def test_lost_optimizer(folder):
    """Without optimizer and scheduler a step looks as save_only_model leaves
    it, but for the step beside."""
    for case, older, newer, names in (
            ("hf_trainer_qwen2", "checkpoint-9", "checkpoint-10",
             ["optimizer.pt", "scheduler.pt"]),
            ("accelerate_fsdp2_w2", "checkpoints/checkpoint_9",
             "checkpoints/checkpoint_10", ["optimizer_0"]),
            ("verl_fsdp2_w2", "global_step_9", "global_step_10",
             ["critic/optim_world_size_2_rank_0.pt",
              "critic/optim_world_size_2_rank_1.pt"])):
        copy = folder / case
        shutil.copytree(root_of(case), copy)
        shutil.copytree(copy / newer, copy / older, dirs_exist_ok=True)
        for name in names:
            path = copy / newer / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        said = CKPT.ok("verify", copy).out
        check(f"missing_part: {copy / newer / names[0]}" in said
              and "the step beside has it" in said, f"{case}: {said}")
        shutil.rmtree(copy / older)
        said = CKPT.ok("verify", copy).out
        check("the step beside" not in said, f"{case}, alone: {said}")


def test_list(folder):
    """A root's steps: complete or not, and why not."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("hf_trainer_fsdp2_w2"), copy)
    step = copy / "checkpoint-3"
    for number in (4, 10, 20):
        shutil.copytree(step, copy / f"checkpoint-{number}")
    (copy / "checkpoint-10/optimizer_0/.metadata").unlink()
    (copy / "checkpoint-20/trainer_state.json").unlink()
    check_equal(CKPT.ok("ls", copy).out.split(), [
        f"checkpoint-{n}" for n in (3, 4, 10, 20)], "names")
    rows = {r["step"]: r for r in
            CKPT.ok("ls", copy, "--json").json()["entries"]}
    check_equal({n: r["complete"] for n, r in rows.items()},
                {3: True, 4: True, 10: False, 20: False}, "complete")
    check("optimizer_0" in rows[10]["why"], rows[10])
    check("trainer_state.json" in rows[20]["why"], rows[20])
    size = sum(p.stat().st_size for p in step.rglob("*") if p.is_file())
    check_equal(rows[3]["bytes"], size, "bytes")
    check({"model", "optim", "rng", "scheduler"} <= set(rows[3]["parts"]),
          rows[3])
    rows = {r["step"]: r for r in
            CKPT.ok("inspect", copy, "--all", "--json").json()["steps"]}
    model, optim = wanted("hf_trainer_fsdp2_w2")
    check_equal((rows[3]["model_tensors"], rows[3]["optim_tensors"]),
                (len(model), len(optim)), "tensors")
    check_equal((rows[4]["added"], rows[4]["gone"], rows[4]["changed"]),
                (0, 0, 0), "changes")
    text = CKPT.ok("inspect", copy, "--all").out
    check("checkpoint-4" in text and "incomplete" in text, text)
    CKPT.run("inspect", step, "--all").want(2)


def test_list_ranks(folder):
    """A missing rank; a step newer than the tracker says."""
    copy = folder / "ckpt"
    shutil.copytree(root_of("verl_fsdp2_w2"), copy)
    shutil.copytree(copy / "global_step_10", copy / "global_step_20")
    shutil.copytree(copy / "global_step_10", copy / "global_step_5")
    (copy / "global_step_5/critic/optim_world_size_2_rank_1.pt").unlink()
    rows = {r["step"]: r for r in
            CKPT.ok("ls", copy, "--json").json()["entries"]}
    check_equal([rows[n]["complete"] for n in (5, 10, 20)],
                [False, True, False], "complete")
    check("optim_world_size_2_rank_1.pt" in rows[5]["why"], rows[5])
    check("10" in rows[20]["why"], rows[20])


def test_no_tensors(folder):
    """Reading nothing proves nothing."""
    import torch

    torch.save({"step": 3}, folder / "values.pt")
    result = CKPT.run("verify", folder / "values.pt").want(1)
    check("no tensor" in result.out, f"{result}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    check_equal(len(CASES), 12, "goldens")
    suite.add("--model-only of a file with callbacks", test_model_of_callbacks)
    for case in CASES:
        suite.add(f"{case}: from the step", test_contents, case, step_of(case))
        suite.add(f"{case}: from the root", test_contents, case, root_of(case))
        suite.add(f"{case}: --model-only", test_model_only, case)
        suite.add(f"{case}: unshard and diff", test_unshard, case)
        suite.add(f"{case}: --trainer none", test_none, case)
        for root in (True, False):
            suite.add(f"{case}: without a file, {'root' if root else 'step'}",
                      test_drop, case, root)
        suite.add(f"{case}: the newest step", test_newest, case)
        suite.add(f"{case}: damaged files", test_mutants, case)
        suite.add(f"{case}: a stranger's pickles", test_stranger, case)
        for to in ("safetensors", "dcp", "pt"):
            suite.add(f"{case}: convert to {to}", test_convert, case, to)
    suite.add("without all files of a kind", test_drop_all)
    suite.add("what the step beside has", test_beside)
    suite.add("a lost scheduler, of a step alone", test_lost_scheduler)
    suite.add("names of what is missing", test_names)
    suite.add("two roles as weights", test_roles)
    suite.add("a hole in numbers", test_hole)
    suite.add("an index that lists less", test_index_of_golden)
    for trainer in ("accelerate", "automodel", "hf_trainer", "torchtune"):
        suite.add(f"{trainer}: an index that lists less",
                  test_index_lists_less, trainer)
        if trainer != "automodel":
            suite.add(f"{trainer}: two forms", test_two_forms, trainer)
    suite.add("files of two world sizes", test_two_worlds)
    suite.add("a rank's file of another step", test_two_steps)
    suite.add("safetensors beside .bin", test_mixed)
    suite.add("an unknown family", test_unknown_family)
    suite.add("a tracker", test_tracker)
    suite.add("a tag with blanks", test_tag_with_blanks)
    for case in LIGHTNING_ROOTS:
        suite.add(f"Lightning's names: {case}", test_lightning_root, case)
    suite.add("a link to nothing", test_link_to_nothing)
    suite.add("a link of one's own to nothing", test_own_link)
    suite.add("a save with its first name", test_draft)
    suite.add("a lost optimizer", test_lost_optimizer)
    suite.add("a list of steps", test_list)
    suite.add("a list of steps of ranks", test_list_ranks)
    suite.add("no tensors", test_no_tensors)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
