#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verl with Megatron: what its MegatronCheckpointManager leaves (verl 0.7, and
0.9 with a container for each part), of Megatron's own containers.

And folders of roles that lack what they are known by.
"""

import json
import pickle
import shutil

from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
MEGATRON = DATA / "megatron_torch_dist"
RUNS = DATA / "runs"
STEP = "global_step_10"
FULL = "gpt_optim_fully_reshardable_v0161"
FLAT = "gpt_optim_dp_reshardable_v0161"


def golden(case):
    return next(p.parent for p in sorted((MEGATRON / case).rglob(
        "metadata.json")) if p.with_name(".metadata").is_file())


def root_at(folder, roles=("actor",)):
    root = folder / "run"
    for role in roles:
        (root / STEP / role).mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    return root, root / STEP / roles[0]


def home(at):
    """Puts there what verl does for transformers."""
    at.mkdir(parents=True)
    source = RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, at)


PARTS = {"model": lambda key: not key.startswith(("optimizer.", "rng_state")),
         "optimizer": lambda key: key.startswith("optimizer."),
         "extra": lambda key: key.startswith("rng_state")}


def save_part(source, part, wanted):
    """A container with only these of its keys, as a save of them leaves it."""
    index = pickle.loads((source / ".metadata").read_bytes())
    index.state_dict_metadata = {
        k: v for k, v in index.state_dict_metadata.items() if wanted(k)}
    index.storage_data = {
        k: v for k, v in index.storage_data.items() if wanted(k.fqn)}
    index.planner_data = None
    used = {one.relative_path for one in index.storage_data.values()}
    part.mkdir(parents=True)
    for name in used | {"metadata.json", "common.pt"}:
        shutil.copy(source / name, part)
    (part / ".metadata").write_bytes(pickle.dumps(index))


def split(source, role, parts=tuple(PARTS)):
    for part in parts:
        save_part(source, role / part / "dist_ckpt", PARTS[part])
    (role / "ckpt_contents.json").write_text(json.dumps({"contents": {
        {"extra": "rng_state"}.get(part, part): {
            "path": f"{part}/dist_ckpt", "format": "megatron_dist_checkpoint"}
        for part in parts}}))
    (role / "transformer_config.json").write_text("{}")


def content(found):
    return [(t["name"], t["kind"], t["digest"]) for t in found["tensors"]]


def test_one(folder):
    root, role = root_at(folder)
    shutil.copytree(golden(FULL), role / "dist_ckpt")
    home(role / "huggingface")
    (role / "huggingface/config.json").unlink()  # of another model
    want = CKPT.inspect(golden(FULL), "--digest")
    for path in (root, root / STEP, role):
        found = CKPT.inspect(path, "--digest")
        check_equal(found["trainer"], {"name": "verl_megatron_v1", "step": 10},
                    "trainer")
        check_equal(content(found), content(want), "tensors")
        check_equal(found["topology"], want["topology"], "topology")
    CKPT.ok("verify", root)
    listed = CKPT.ok("ls", root, "--json").json()["entries"]
    check_equal([(e["step"], e["complete"]) for e in listed], [(10, True)],
                "list")
    out = folder / "out"
    CKPT.ok("reshard", root, out, "--tp", 1)
    check((out / "metadata.json").is_file(), "the container alone")
    (role / "dist_ckpt/metadata.json").unlink()
    check(CKPT.run("inspect", root).code != 0, "an unfinished save")


def test_parts(folder, case):
    """One container per part: the optimizer's buffers belong to the model
    beside it."""
    root, role = root_at(folder)
    split(golden(case), role)
    found = CKPT.inspect(root, "--digest")
    want = CKPT.inspect(golden(case), "--digest")
    check_equal(found["trainer"], {"name": "verl_megatron", "step": 10},
                "trainer")
    check_equal(sorted(content(found)), sorted(content(want)), "tensors")
    CKPT.ok("verify", root)
    listed = CKPT.ok("ls", root, "--json").json()["entries"]
    check({"model", "optim"} <= set(listed[0]["parts"]), f"{listed}")
    out, other = folder / "out", folder / "other"
    CKPT.ok("reshard", root, out, "--tp", 2)
    CKPT.ok("reshard", golden(case), other, "--tp", 2)
    check_equal(sorted(content(CKPT.inspect(out, "--digest"))),
                sorted(content(CKPT.inspect(other, "--digest"))), "resharded")
    check(not (out / "ckpt_contents.json").exists(), "of verl's own folder")
    (role / "optimizer/dist_ckpt/metadata.json").unlink()
    result = CKPT.run("inspect", root)
    check(result.code != 0 and "incomplete save" in result.err, f"{result}")


def test_listed(folder):
    """verl lists what it saved, and leaves empty folders for the rest."""
    for part in ("optimizer", "extra"):
        root, role = root_at(folder / part)
        split(golden(FULL), role)
        at = role / part / "dist_ckpt"
        shutil.rmtree(at)
        at.mkdir()
        result = CKPT.run("verify", root).want(1)
        check(f"{part}/dist_ckpt" in result.out, f"{result}")


def test_adapter(folder):
    """LoRA: base in transformers' files, adapter in Megatron's."""
    root, role = root_at(folder)
    split(golden(FULL), role)
    home(role / "model/huggingface")
    shutil.copy(RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10/model.safetensors",
                role / "model/huggingface")
    said = [p for p in CKPT.inspect(root)["problems"]
            if p["kind"] == "second_copy"]
    check("same model" in said[0]["message"], f"{said}")
    path = role / "ckpt_contents.json"
    path.write_text(json.dumps({"contents": {"peft_adapters": {
        "path": "model/dist_ckpt"}}}))
    said = [p for p in CKPT.inspect(root)["problems"]
            if p["kind"] == "second_copy"]
    check(said[0]["severity"] == "warning" and "adapter" in said[0]["message"],
          f"{said}")


def test_home(folder):
    """To transformers, using the configuration beside the container."""
    source = RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10"
    CKPT.ok("convert", source, folder / "mg", "--to", "megatron_torch_dist",
            "--tp", 2)
    root, role = root_at(folder)
    shutil.copytree(folder / "mg/iter_0000010", role / "dist_ckpt")
    for path in (role / "dist_ckpt").glob("*.json"):
        if path.name != "metadata.json":
            path.unlink()
    home(role / "huggingface")
    check_equal(CKPT.inspect(root)["family"], "qwen2", "family")
    out = folder / "hf"
    CKPT.ok("convert", root, out, "--to", "safetensors")
    got = read_safetensors(out / "model.safetensors")
    want = read_safetensors(source / "model.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(got[name].data == tensor.data, name)
    for name in ("config.json", "tokenizer.json"):
        check((out / name).is_file(), name)


def test_weights(folder):
    """Weights in transformers' files (verl's default), the rest Megatron's."""
    root, role = root_at(folder)
    split(golden(FLAT), role, ("optimizer", "extra"))
    home(role / "model/huggingface")
    source = RUNS / "hf_trainer_qwen2/ckpt/checkpoint-10"
    shutil.copy(source / "model.safetensors", role / "model/huggingface")
    found = CKPT.inspect(root, "--digest")
    model = {t["name"] for t in found["tensors"] if t["kind"] == "model"}
    want = read_safetensors(source / "model.safetensors")
    check_equal(model, set(want), "model")
    states = [t["name"] for t in found["tensors"] if t["kind"] == "optim"]
    check(states and all(n.startswith("optimizer.") for n in states), states)
    check([p for p in found["problems"] if p["kind"] == "numbered_state"],
          f"{found['problems']}")
    CKPT.ok("verify", root)
    out = folder / "hf"
    CKPT.ok("convert", root, out, "--to", "safetensors")
    got = read_safetensors(out / "model.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    check((out / "config.json").is_file(), "config.json")


def test_roles(folder):
    root, role = root_at(folder, ("actor", "critic"))
    for one in ("actor", "critic"):
        shutil.copytree(golden(FULL), root / STEP / one / "dist_ckpt")
    want = CKPT.inspect(golden(FULL), "--digest")
    found = CKPT.inspect(root, "--digest")
    check_equal(sorted((t["name"], t["digest"]) for t in found["tensors"]),
                sorted((f"{one}.{t['name']}", t["digest"])
                       for t in want["tensors"] for one in ("actor", "critic")),
                "roles")
    CKPT.ok("verify", root)
    CKPT.run("convert", root, folder / "out", "--to", "run").want(5)
    CKPT.run("reshard", root, folder / "out", "--tp", 2).want(5)
    check(not (folder / "out").exists(), "half a target")
    CKPT.ok("reshard", role, folder / "one", "--tp", 1)


def test_lost_role(folder):
    """A role without the files that identify it is not left out."""
    root = folder / "ckpt"
    shutil.copytree(RUNS / "verl_fsdp2_w2/ckpt", root)
    critic = root / STEP / "critic"
    for path in critic.glob("model_world_size_*"):
        path.unlink()
    result = CKPT.run("verify", root).want(1)
    check("critic" in result.out, f"{result}")
    # One of another kind is reported, too.
    shutil.rmtree(critic)
    shutil.copytree(golden(FULL), critic / "dist_ckpt")
    found = CKPT.inspect(root)
    check([p for p in found["problems"] if p["kind"] == "unread_role"
           and p["file"].endswith("critic")], f"{found['problems']}")


def test_gone_role(folder):
    """The previous step has a critic. An old step may have lost its own to
    max_critic_ckpt_to_keep."""
    root = folder / "a run"
    shutil.copytree(RUNS / "verl_fsdp2_w2/ckpt", root)
    shutil.copytree(root / STEP, root / "global_step_9")
    CKPT.ok("verify", root)
    shutil.rmtree(root / STEP / "critic")
    for path in (root, root / STEP):
        result = CKPT.run("verify", path).want(1)
        check(f"{STEP}/critic" in result.out
              and "global_step_9/critic" in result.out, f"{result}")
    said = CKPT.ok("verify", root / STEP / "actor")
    check("critic" not in said.out + said.err, f"{said}")
    (root / STEP).rename(root / "global_step_8")
    (root / "latest_checkpointed_iteration.txt").write_text("9")
    CKPT.ok("verify", root)
    said = CKPT.ok("verify", root / "global_step_8")
    check("critic" in said.out + said.err, f"{said}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("one container", test_one)
    suite.add("a container for each part", test_parts, FULL)
    suite.add("a container for each part, flat buffers", test_parts, FLAT)
    suite.add("what verl's list has", test_listed)
    suite.add("an adapter beside its base", test_adapter)
    suite.add("to transformers", test_home)
    suite.add("weights of transformers, optimizer of Megatron", test_weights)
    suite.add("actor and critic", test_roles)
    suite.add("a role that is lost", test_lost_role)
    suite.add("a role whose folder is gone", test_gone_role)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
