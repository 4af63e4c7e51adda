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

    name = plain(source["file"], number).replace("{*}", "other")
    path = step / name
    if "{*}" in source["file"]:
        path.parent.mkdir()
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
    config = folder / "config"
    config.mkdir()
    said = json.loads((QWEN / "config.json").read_text())
    (config / "config.json").write_text(json.dumps({
        **said, "num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    CKPT.ok("convert", source, written, "--to", "run", "--trainer",
            "hf_trainer", "--config-from", config)
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


def rate(value):
    """Of a state dict of an optimizer, as an earlier save had it."""
    for group in value["param_groups"]:
        group["lr"] = group["lr"] / 2 + 0.125


def set_last(value, key="lr_scheduler"):
    value[key]["_last_lr"] = [one / 2 + 0.125 for one in
                              value[key]["_last_lr"]]


def test_rates(folder):
    """A scheduler sets the rates of the optimizer's groups: what was saved with
    it has them, whatever the optimizer counts, or whether it does."""
    def said(step):
        found = CKPT.run("verify", step, "--json").want(0).json()
        return [p["message"] for p in found["problems"]
                if p["kind"] == "stale_part" and "learning rate" in
                p["message"]]

    def uncounted(value):
        rate(value)
        for one in value["state"].values():
            one.pop("step")

    check_equal(len(said(copied(folder, QWEN, (OPTIMIZER, uncounted)))), 1,
                "the Trainer's, without counts")
    check_equal(len(said(copied(folder, QWEN, (SCHEDULER, lambda value:
                                               set_last({"lr_scheduler":
                                                         value}))))), 1,
                "the Trainer's scheduler")
    check_equal(len(said(copied(folder, ACCELERATE, ("scheduler.bin",
                lambda value: set_last({"lr_scheduler": value}))))), 1,
                "Accelerate's beside DCP")
    names = [(f"actor/extra_state_world_size_2_rank_{r}.pt", set_last)
             for r in (0, 1)]
    step = copied(folder, VERL, *names)
    check_equal(len(said(step)), 1, "verl's actor")
    ranks = sorted(str(p.relative_to(NANOTRON))
                   for p in (NANOTRON / "optimizer").glob("optimizer_pp*.pt"))
    check_equal(len(said(copied(folder, NANOTRON,
                                *((name, rate) for name in ranks)))), 1,
                "nanotron's")

    # Schedulers within one have rates of earlier turns; a rate may be a tensor,
    # and one of two optimizers may have no scheduler.
    import torch

    def nested(value):
        value.update(_schedulers=[{"_last_lr": [0.5, 0.5], "last_epoch": 4}])

    def as_tensor(value):
        for group in value["param_groups"]:
            group["lr"] = torch.tensor(0.5)

    def of_evaluations(value):
        del value["_last_lr"]

    for edits in ((SCHEDULER, nested), (OPTIMIZER, as_tensor),
                  (SCHEDULER, of_evaluations)):
        check_equal(said(copied(folder, QWEN, edits)), [], f"{edits}")


def test_newer_tag(folder):
    """DeepSpeed writes `latest` last: a folder of a larger number beside the
    one that it names was not finished."""
    step = copied(folder, ZERO)
    tag = (step / "latest").read_text()
    stem = tag.rstrip("0123456789")
    number = int(tag[len(stem):])
    for other, newer in ((number - 1, False), (number * 10, True)):
        shutil.copytree(step / tag, step / f"{stem}{other}")
        for opened in (step, step.parent):
            found = CKPT.inspect(opened)["problems"]
            names = [Path(p["file"]).name for p in found
                     if p["kind"] == "unfinished_save"]
            check_equal(names, [f"{stem}{other}"] if newer else [],
                        f"{opened}: {found}")
    check(f"{stem}{number * 10}" in CKPT.run("verify", step).want(0).err +
          CKPT.run("verify", step).out, "verify")
    shutil.rmtree(step / f"{stem}{number * 10}")
    (step / f"{stem}{number * 10}").mkdir()  # nobody has begun
    check_equal([p for p in CKPT.inspect(step)["problems"]
                 if p["kind"] == "unfinished_save"], [], "an empty folder")


def test_broken_pointer(folder):
    """A save that broke off may leave `latest` empty, or its folder away."""
    for text in ("", "\n", "global_step77"):
        step = copied(folder, ZERO)
        (step / "latest").write_text(text)
        for opened in (step, step.parent):
            said = CKPT.run("inspect", opened).want(4).err
            check("latest" in said and (text.strip() or "empty") in said, said)
            CKPT.run("verify", opened).want(1)
            CKPT.run("convert", opened, folder / "out", "--to",
                     "dcp").want(4)


# --------------------------------------------------- the step beside tells
def step_of(case):
    known = json.loads((RUNS / case / "case.json").read_text())
    return RUNS / case / "ckpt" / known["newest"]


# Whatever a step of the trainer has of what is trained.
TRAINED = {
    "accelerate_fsdp2_w2": ["optimizer_0/__0_0.distcp",
                            "pytorch_model_fsdp_0/__1_0.distcp"],
    "hf_trainer_fsdp2_w2": ["optimizer_0/__1_0.distcp",
                            "pytorch_model_fsdp_0/__0_0.distcp"],
    "hf_trainer_lora": ["optimizer.pt", "adapter_model.safetensors"],
    "hf_trainer_moe_qwen3": ["optimizer.pt", "model.safetensors"],
    "hf_trainer_qwen2": ["optimizer.pt", "model.safetensors"],
    "hf_trainer_zero3_w2": [
        "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"],
    "lightning_mp_w2": ["__0_0.distcp", "__1_0.distcp"],
    "nanotron_tp2": [
        "optimizer/optimizer_pp-0-of-1_tp-1-of-2_exp-0-of-1.pt",
        "model/model/lm_head/pp_block/"
        "model_weight_pp-rank-0-of-1_tp-rank-0-of-2.safetensors"],
    "torchtitan_w2": ["__0_0.distcp", "__1_0.distcp"],
    "verl_fsdp1_flat_w2": ["actor/optim_world_size_2_rank_0.pt",
                           "actor/model_world_size_2_rank_1.pt"],
    "verl_fsdp2_w2": ["critic/optim_world_size_2_rank_1.pt",
                      "actor/model_world_size_2_rank_0.pt"],
}


def pair(folder, case):
    """The step, and an older one of other bytes beside it."""
    golden = step_of(case)
    if golden.suffix == ".ckpt" or (golden / "meta.pt").is_file():
        names = "epoch=0-step=3.ckpt", golden.name
    else:
        stem = golden.name.rstrip("0123456789")
        names = stem + str(int(golden.name[len(stem):]) - 1), golden.name
    older, step = folder / names[0], folder / names[1]
    for one in (older, step):
        shutil.copytree(golden, one)
    for file in older.rglob("*"):
        data = bytearray(file.read_bytes() if file.is_file() else b"")
        if data:
            data[len(data) // 2] ^= 1
            file.chmod(0o644)
            file.write_bytes(data)
    return older, step


def test_shared(folder, case):
    """A file with the bytes of the step before, among others of its own."""
    older, step = pair(folder, case)
    before = counted(step)
    check_equal(before, [], "of two whole steps")
    for name in TRAINED[case]:
        kept = (older / name).read_bytes()
        shutil.copyfile(step / name, older / name)
        said = [p for p in CKPT.run("verify", step, "--json").want(0).json()
                ["problems"] if p["kind"] == "stale_part"]
        check(len(said) == 1 and said[0]["file"] == str(step / name)
              and older.name in said[0]["message"], f"{name}: {said}")
        (older / name).write_bytes(kept)
    # A copy of the step is no mix of two.
    shutil.rmtree(older)
    shutil.copytree(step, older)
    check_equal(counted(step), [], "beside a copy")


def recount(folder, file, by):
    """DCP's items that are counts, in one file of a rank."""
    import io as memory

    import torch
    from torch.distributed.checkpoint import FileSystemReader

    path = folder / file
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    known = FileSystemReader(str(folder)).read_metadata().storage_data
    for key, at in known.items():
        if at.relative_path != file or not (
                key.fqn.startswith("optimizer.") and key.fqn.endswith(".step")):
            continue
        item = data[at.offset:at.offset + at.length]
        value = torch.load(memory.BytesIO(bytes(item)), weights_only=True)
        out = memory.BytesIO()
        torch.save(value - by, out)
        check_equal(len(out.getvalue()), at.length, "bytes of an item")
        data[at.offset:at.offset + at.length] = out.getvalue()
    path.write_bytes(data)


def test_files_of_ranks(folder):
    """A rank's file of an earlier save in a directory of DCP."""
    for case, inside in (("accelerate_fsdp2_w2", "optimizer_0"),
                         ("hf_trainer_fsdp2_w2", "optimizer_0"),
                         ("torchtitan_w2", "")):
        step = folder / case / step_of(case).name
        shutil.copytree(step_of(case), step)
        for file in ("__0_0.distcp", "__1_0.distcp"):
            kept = (step / inside / file).read_bytes()
            recount(step / inside, file, 1)
            said = CKPT.run("verify", step, "--json").want(0).json()["problems"]
            check([p for p in said if p["kind"] == "mixed_steps"
                   and Path(p["file"]).name == file], f"{case}: {said}")
            (step / inside / file).write_bytes(kept)
        for file in ("__0_0.distcp", "__1_0.distcp"):
            recount(step / inside, file, 1)
        found = {"torchtitan_w2": [".metadata"],
                 "hf_trainer_fsdp2_w2": [".metadata"]}.get(case, [])
        check_equal(counted(step), found, f"{case}: all files")


def test_left_ranks(folder):
    """What a save of more ranks left, of one alone, or of another world."""
    for case, source, left in (
            ("accelerate_fsdp2_w2", "random_states_0.pkl",
             "random_states_2.pkl"),
            ("hf_trainer_fsdp2_w2", "rng_state_0.pth", "rng_state_2.pth"),
            ("hf_trainer_fsdp2_w2", "rng_state_0.pth", "rng_state.pth"),
            ("hf_trainer_zero3_w2", "rng_state_1.pth", "rng_state_2.pth")):
        step = folder / left / case / step_of(case).name
        shutil.copytree(step_of(case), step)
        shutil.copy(step / source, step / left)
        check_equal(counted(step), [left], case)
        found = CKPT.inspect(step)
        check_equal(found["topology"]["dp"], 2, f"{case}: ranks")
    for role in ("actor", "critic"):
        step = folder / role / VERL.name
        shutil.copytree(VERL, step)
        name = f"extra_state_world_size_2_rank_{int(role == 'critic')}.pt"
        source = step / "actor" / name
        left = step / role / "extra_state_world_size_4_rank_0.pt"
        shutil.copy(source, left)
        said = CKPT.run("verify", step, "--json").want(1).json()["problems"]
        check([p for p in said if p["kind"] == "mixed_ranks"
               and p["file"] == str(left)], f"{said}")
    # DCP's own: a file that the index does not name.
    for case, inside in (("accelerate_fsdp2_w2", "optimizer_0"),
                         ("torchtitan_w2", "")):
        step = folder / "dcp" / case / step_of(case).name
        shutil.copytree(step_of(case), step)
        shutil.copy(step / inside / "__1_0.distcp",
                    step / inside / "__2_0.distcp")
        said = CKPT.ok("verify", step).out
        check("__2_0.distcp" in said, f"{case}: {said}")


def test_loops_of_ranks(folder):
    """accelerate's ranks count the steps of their loops alike."""
    step = copied(folder, ACCELERATE,
                  ("random_states_1.pkl",
                   lambda value: value.update(step=value["step"] + 3)))
    check_equal(counted(step), ["checkpoint_10"], "a rank's loop")


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


def named(result, kind):
    return [Path(p["file"]).name for p in result["problems"]
            if p["kind"] == kind]


def test_two_trainers(folder):
    """A root with steps of two trainers: one is read, the others are named."""
    root = folder / "run"
    shutil.copytree(QWEN, root / "checkpoint-10")
    check_equal(named(CKPT.inspect(root), "other_trainer"), [], "one trainer")
    shutil.copytree(ACCELERATE, root / "checkpoint_12")
    shutil.copytree(step_of("torchtitan_w2"), root / "checkpoint" / "step-7")
    found = CKPT.inspect(root)
    check_equal(found["trainer"], {"name": "hf_trainer", "step": 10}, "read")
    check_equal(sorted(named(found, "other_trainer")),
                ["checkpoint_12", "step-7"], "named")
    rows = CKPT.ok("ls", root, "--json").json()["entries"]
    check_equal(sorted((r["trainer"], r["step"], r["complete"]) for r in rows),
                [("accelerate", 12, True), ("hf_trainer", 10, True),
                 ("torchtitan", 7, True)], "rows")
    for name in ("accelerate", "torchtitan"):
        found = CKPT.inspect(root, "--trainer", name)
        check_equal(found["trainer"]["name"], name, "asked for")
        check_equal(named(found, "other_trainer"), [], name)


def test_same_step(folder):
    """Two folders of one step; which is newer nobody knows."""
    root = folder / "run"
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-0010"):
        shutil.copytree(QWEN, root / name)
    found = CKPT.inspect(root)
    names = {"checkpoint-10", "checkpoint-0010"} - {Path(found["path"]).name}
    check_equal(named(found, "same_step"), [*names], "named")


def test_number_beyond(folder):
    """A step whose number no 64 bits hold is named, not passed over."""
    for case, name in ((QWEN, "checkpoint-{}"), (ACCELERATE, "checkpoint_{}")):
        root = folder / name.format("run")
        read, beyond = name.format(12), name.format("9" * 20)
        for step in (read, beyond, name.format(2**64 - 1) + "x"):
            shutil.copytree(case, root / step)
        found = CKPT.inspect(root)
        check_equal(Path(found["path"]).name, read, "read")
        check_equal(named(found, "step_number"), [beyond], "named")
        check_equal(named(CKPT.inspect(root / beyond), "step_number"), [],
                    "by its own path")


def test_own_links(folder):
    """Links of one's own beside the steps, and a step that is one."""
    root = folder / "run"
    root.mkdir()
    shutil.copytree(QWEN, folder / "disk")
    (root / QWEN.name).symlink_to(folder / "disk")
    (root / "last").symlink_to(QWEN.name)
    (root / "best").symlink_to("checkpoint-7")
    (root / "notes.txt").symlink_to("/etc/passwd")
    found = CKPT.run("verify", root, "--json").want(0).json()
    check_equal(named(found, "broken_link"), ["best"], "verify")
    for to in ("safetensors", "run"):
        out = folder / f"as_{to}"
        files = CKPT.ok("convert", root, out, "--to", to, "--json").json()
        left = {f["path"] for f in files["files"] if f["fate"] == "left_out"}
        check(left >= {"best", "last", "notes.txt"} and QWEN.name not in left,
              f"{to}: {left}")
        check(not (out / "notes.txt").exists(), "a link was followed")


def test_fates(folder):
    """What the target can't hold is left out, and never called converted."""
    for number, case in enumerate((QWEN, FSDP, ZERO, ACCELERATE)):
        for to, holds in (("dcp", True), ("safetensors", False)):
            result = CKPT.ok("convert", case, folder / f"{number}_{to}",
                             "--to", to, "--json").json()
            fates = {f["path"]: f["fate"] for f in result["files"]}
            for path in sorted(fates):
                if Path(path).suffix in (".pth", ".pkl") or "sched" in path \
                        or path == "trainer_state.json":
                    want = "converted" if holds else "left_out"
                    check_equal(fates[path], want, f"{case.name}/{path}, {to}")
                if path.startswith("optimizer_0/"):
                    want = "converted" if holds else "left_out"
                    check_equal(fates[path], want, f"{case.name}/{path}, {to}")
                if path.startswith("pytorch_model_fsdp_0/"):
                    check_equal(fates[path], "converted", f"{path}, {to}")


def test_lost_index(folder):
    """A DCP of all parts without its index: still that trainer's step."""
    root = folder / "run"
    step = root / "checkpoint" / "step-10"
    shutil.copytree(step_of("torchtitan_w2"), step)
    (step / ".metadata").unlink()
    for path in (root, step):
        result = CKPT.run("inspect", path).want(4)
        check(".metadata" in result.err, f"{result}")


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
    for case in TRAINED:
        suite.add(f"the step beside {case}", test_shared, case)
    for test in (test_goldens, test_written_counts, test_hf_counts,
                 test_hf_honest_counts, test_other_counts, test_rates,
                 test_newer_tag, test_broken_pointer,
                 test_files_of_ranks, test_left_ranks, test_loops_of_ranks,
                 test_two_trainers, test_same_step, test_own_links, test_fates,
                 test_lost_index, test_number_beyond):
        suite.add(test.__name__[5:].replace("_", " "), test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
