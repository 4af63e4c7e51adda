#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verl with Megatron: what its MegatronCheckpointManager leaves (verl 0.7, and
0.9 with a container for each part), of Megatron's own containers.

And folders of roles that lack what they are known by, and FSDP1 as actors
may configure it: use_orig_params, and HYBRID_SHARD (tests/data/verl/fsdp1).
"""

import json
import pickle
import shutil

from support import (
    DATA, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
MEGATRON = DATA / "megatron_torch_dist"
RUNS = DATA / "runs"
FSDP1 = DATA / "verl/fsdp1"
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


def check_live(case, path):
    """The tensors are those of the live model and optimizer, by name."""
    found = CKPT.inspect(path, "--digest")
    check_equal(found["problems"], [], "problems")
    got = {t["name"]: (tuple(t["shape"]), t["digest"])
           for t in found["tensors"]}
    want = {}
    for what in ("expected", "expected_optim"):
        want.update(read_safetensors(FSDP1 / case / f"{what}.safetensors"))
    check_equal(got, {name: (tensor.shape, digest(tensor.data))
                      for name, tensor in want.items()}, "tensors")


def test_fsdp1(folder, case):
    check_live(case, FSDP1 / case / "ckpt")
    CKPT.ok("verify", "--deep", FSDP1 / case / "ckpt")


def test_fsdp1_reshard(folder):
    """For other ranks and back."""
    for ranks in (1, 3, 7):
        out = folder / str(ranks)
        CKPT.ok("reshard", FSDP1 / "orig_w4/ckpt", out, "--dp", ranks)
        check_live("orig_w4", out)
    CKPT.ok("reshard", folder / "7", folder / "back", "--dp", 4)
    check_live("orig_w4", folder / "back")


def meshes(path):
    """Of each rank's model file: what its DTensors say of their mesh."""
    import torch

    found = []
    for rank in range(4):
        file = next(path.rglob(f"model_world_size_4_rank_{rank}.pt"))
        for tensor in torch.load(file, weights_only=False).values():
            spec, state = vars(tensor._spec), vars(tensor._spec.mesh)
            found.append((
                {k: str(v) for k, v in state.items() if k != "_hash"},
                {k: str(v) for k, v in spec.items() if k != "_hash"},
                tensor.to_local().shape))
    return found


def test_fsdp1_lora(folder, case):
    """PEFT's LoRA, wrapped as verl does: adapters are units of their own, and
    frozen parameters are in the optimizer without states."""
    check_live(case, FSDP1 / case / "ckpt")
    for ranks in (1, 3):
        CKPT.ok("reshard", FSDP1 / case / "ckpt", folder / str(ranks), "--dp",
                ranks)
        check_live(case, folder / str(ranks))
    if case == "lora_only_w2":
        return
    # transformers knows no such names; the base alone has its own.
    command = ("convert", FSDP1 / case / "ckpt", folder / "hf", "--to",
               "safetensors")
    check("with an adapter in it" in CKPT.ok(*command).err, "unsaid")
    (folder / "base.json").write_text(json.dumps(
        {"base_model.model.*.base_layer.*": "*.*", "base_model.model.*": "*"}))
    said = CKPT.ok(*command, "--overwrite", "--exclude", "*.lora_*",
                   "--model-only", "--rename", folder / "base.json")
    check("adapter" not in said.err, f"{said}")
    want = read_safetensors(FSDP1 / case / "expected.safetensors")
    got = read_safetensors(folder / "hf/model.safetensors")
    check_equal({name: tensor.data for name, tensor in got.items()},
                {name.removeprefix("base_model.model.").replace(
                    ".base_layer.", "."): tensor.data
                 for name, tensor in want.items() if ".lora_" not in name},
                "base")


def test_fsdp1_adapter_alone(folder):
    """Without the base, numbers tell whether they are units or parameters."""
    import torch

    root = folder / "ckpt"
    shutil.copytree(FSDP1 / "lora_orig_w4/ckpt", root)
    for path in root.rglob("model_world_size_*.pt"):
        model = torch.load(path, weights_only=False)
        torch.save({k: v for k, v in model.items() if "lora_" in k}, path)
    want = read_safetensors(FSDP1 / "lora_orig_w4/expected_optim.safetensors")
    want = {name: digest(tensor.data) for name, tensor in want.items()}
    for ranks in (4, 3):
        found = CKPT.inspect(root, "--digest")
        check_equal({t["name"]: t["digest"] for t in found["tensors"]
                     if t["kind"] == "optim"}, want, f"{ranks} ranks")
        check_equal(found["problems"], [], f"{ranks} ranks")
        if ranks == 4:
            CKPT.ok("reshard", root, folder / "out", "--dp", 3)
            root = folder / "out"
    last = torch.load(root / "actor/optim_world_size_3_rank_2.pt",
                      weights_only=False)
    check_equal(len(last["param_groups"][0]["params"]), 33, "parameters")


def test_fsdp1_hybrid(folder):
    """fsdp_size stays what it was, or is what is asked for. Between meshes of
    one and of two dimensions, DTensors are as torch itself makes them."""
    hybrid, orig = FSDP1 / "hybrid_w4/ckpt", FSDP1 / "orig_w4/ckpt"
    for ranks, size in ((1, None), (2, None), (6, None), (6, 3), (3, 8)):
        out = folder / f"{ranks} {size}"
        CKPT.ok("reshard", hybrid, out, "--dp", ranks,
                *(("--fsdp-size", size) if size else ()))
        check_live("hybrid_w4", out)
    CKPT.ok("reshard", folder / "6 3", folder / "rows", "--dp", 4,
            "--fsdp-size", 2)
    CKPT.ok("reshard", orig, folder / "orig", "--dp", 4, "--fsdp-size", 2)
    CKPT.ok("reshard", hybrid, folder / "one", "--dp", 4, "--fsdp-size", 4)
    for case, out, like in (("hybrid_w4", "rows", hybrid),
                            ("orig_w4", "orig", hybrid),
                            ("hybrid_w4", "one", orig)):
        check_live(case, folder / out)
        check_equal(meshes(folder / out), meshes(like), f"meshes of {out}")
    for ranks, size in ((3, None), (4, 3), (4, 1)):
        result = CKPT.run("reshard", hybrid, folder / "no", "--dp", ranks, *((
            "--fsdp-size", size) if size else ())).want(5)
        check("--fsdp-size" in result.err, f"{result}")
    CKPT.run("reshard", RUNS / "accelerate_fsdp2_w2/ckpt", folder / "no",
             "--dp", 4, "--fsdp-size", 2).want(5)
    CKPT.run("convert", RUNS / "accelerate_fsdp2_w2/ckpt", folder / "no",
             "--to", "run", "--trainer", "verl", "--dp", 4, "--fsdp-size",
             2).want(5)


def test_fsdp1_tied(folder):
    """One rank whose optimizer lacks the head, the last parameter: it is the
    embedding. Norms are frozen, so shapes don't tell which one it lacks."""
    import torch

    root = folder / "one"
    CKPT.ok("reshard", FSDP1 / "orig_w4/ckpt", root, "--dp", 1)
    actor = root / "actor"
    optim = torch.load(actor / "optim_world_size_1_rank_0.pt",
                       weights_only=False)
    head = optim["param_groups"][0]["params"].pop()
    del optim["state"][head]
    for number, state in list(optim["state"].items()):
        if state["exp_avg"].dim() == 1:
            del optim["state"][number]
    torch.save(optim, actor / "optim_world_size_1_rank_0.pt")
    (root / ".ckpt-manifest.json").unlink()
    model_file = actor / "model_world_size_1_rank_0.pt"
    model = torch.load(model_file, weights_only=False)
    check_equal(list(model)[-1], "lm_head.weight", "the head's place")
    model["lm_head.weight"] = model["model.embed_tokens.weight"].clone()
    torch.save(model, model_file)
    found = CKPT.inspect(root)
    check_equal(found["problems"], [], "problems")
    found = [t["name"] for t in found["tensors"]]
    check("model.layers.1.mlp.down_proj.weight.exp_avg" in found, f"{found}")
    check("lm_head.weight.exp_avg" not in found, f"{found}")


def test_fsdp1_loss(folder, case):
    """Each rank's file, and each entry of a state in it. What one rank alone
    had may be frozen: a warning."""
    import torch

    root = folder / "ckpt"
    shutil.copytree(FSDP1 / case / "ckpt", root)
    sole = 0
    for rank in range(4):
        path = root / f"global_step_3/actor/optim_world_size_4_rank_{rank}.pt"
        before = path.read_bytes()
        path.unlink()
        check(path.name in CKPT.run("verify", root).want(1).out, path.name)
        path.write_bytes(before)
        whole = torch.load(path, weights_only=False)
        for number in whole["state"]:
            for state in (None, "step", "exp_avg"):
                states = dict(whole["state"])
                left = dict(states.pop(number))
                if state:
                    del left[state]
                    states[number] = left
                torch.save({**whole, "state": states}, path)
                result = CKPT.run("verify", root)
                if result.code == 0:
                    check(not state and "no_state" in result.out, f"{result}")
                    sole += 1
                else:
                    check(result.code == 1 and path.name in result.out,
                          f"{number}.{state}: {result}")
        path.write_bytes(before)
    check(sole < 20 if case == "orig_w4" else sole == 0, f"{sole} unproven")


def test_fsdp1_swapped(folder, case):
    """Files of two ranks whose parts are alike, under each other's names."""
    for kind in ("model", "optim"):
        root = folder / kind
        shutil.copytree(FSDP1 / case / "ckpt", root)
        files = [root / f"global_step_3/actor/{kind}_world_size_4_rank_{r}.pt"
                 for r in (1, 2)]
        files[0].rename(folder / "aside")
        files[1].rename(files[0])
        (folder / "aside").rename(files[1])
        for command in ("verify", root), ("inspect", root):
            result = CKPT.run(*command).want(1 if command[0] == "verify" else 4)
            check("rank_1.pt: is another rank's file" in result.out + result.err,
                  f"{result}")


def test_fsdp1_replicas(folder):
    """Ranks 1 and 3 have the same part."""
    import torch

    root = folder / "ckpt"
    shutil.copytree(FSDP1 / "hybrid_w4/ckpt", root)
    path = root / "global_step_3/actor/optim_world_size_4_rank_3.pt"
    whole = torch.load(path, weights_only=False)
    whole["state"][1]["exp_avg"][2] += 1
    torch.save(whole, path)
    result = CKPT.run("verify", root, "--deep").want(1)
    check("rank_3.pt: model.layers.0." in result.out
          and "differs" in result.out, f"{result}")


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
    for case in ("orig_w4", "hybrid_w4"):
        suite.add(f"FSDP1, {case}", test_fsdp1, case)
        suite.add(f"FSDP1, {case}: what is lost", test_fsdp1_loss, case)
        suite.add(f"FSDP1, {case}: swapped", test_fsdp1_swapped, case)
    suite.add("FSDP1, orig_w4: for other ranks", test_fsdp1_reshard)
    for case in ("lora_w2", "lora_orig_w4", "lora_only_w2"):
        suite.add(f"FSDP1, {case}", test_fsdp1_lora, case)
    suite.add("FSDP1: an adapter alone", test_fsdp1_adapter_alone)
    suite.add("FSDP1: rows of ranks", test_fsdp1_hybrid)
    suite.add("FSDP1, orig_w4: one rank, tied", test_fsdp1_tied)
    suite.add("FSDP1, hybrid_w4: replicas that differ", test_fsdp1_replicas)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
