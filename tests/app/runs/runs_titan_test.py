#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own CheckpointManager loads what ckpt makes of verl's steps, and
its own adapter gives transformers' names back: model and moments are those that
verl's live objects had. What it saves then is the same step again.

Each model that torchtitan registers is converted, with its adapter's own values
and transformers' logits, or refused by its name.
"""

import json
import subprocess
import sys
from pathlib import Path

from peer import find
from support import (
    DATA, HANG, Failure, Skip, Suite, check, check_equal, digest, held_port,
    read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "torchtitan"
STEP = DATA / "runs/verl_fsdp2_w2/ckpt/global_step_10/actor"


def test_load(folder, ranks):
    import torch

    if not (PEER / "torchtitan").is_dir():
        raise Skip("torchtitan is not installed")
    (folder / "checkpoint").mkdir()
    CKPT.ok("convert", STEP, folder / "checkpoint/step-10", "--to", "run",
            "--trainer", "torchtitan", "--dp", 2)
    port = str(held_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", find("runs_titan_peer.py"),
         str(folder), str(folder / "out.pt"), str(ranks), str(rank), port],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    for one in running:
        try:
            said = one.communicate(timeout=HANG)[0]
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{ranks} ranks hang") from None
        check(one.returncode == 0, f"{ranks} ranks: {said[-3000:]}")
    found = torch.load(folder / "out.pt", weights_only=True)
    check_equal(found["step"], 10, "step")
    check_equal(found["steps"], [10.0], "the optimizer's steps")
    count = 0
    for what in ("expected", "expected_optim"):
        path = DATA / f"runs/verl_fsdp2_w2/{what}.safetensors"
        for name, tensor in read_safetensors(path).items():
            role, _, rest = name.partition(".")
            if role != "actor" or rest.endswith(".step"):
                continue
            mine = found["model"].get(rest)
            check(mine is not None, f"{rest} did not come in")
            check_equal(mine.numpy().tobytes(), bytes(tensor.data), rest)
            count += 1
    check_equal(count, 36, "tensors")
    # And ckpt reads what torchtitan saves of it: nothing was trained.
    steps = [folder / f"checkpoint/step-{step}" for step in (10, 11)]
    CKPT.ok("verify", steps[1], "--deep")
    CKPT.ok("verify", *steps)
    check_ends(folder, {k: v for k, v in found["model"].items()
                        if not k.endswith(MOMENTS)})


def check_ends(folder, model):
    """Runs whose last step is the model alone: what the run is, from its root."""
    for name in ("alone", "exported"):
        root, out = folder / name, folder / f"{name}_hf"
        for path in (root, root / "checkpoint"):
            done = CKPT.ok("inspect", path)
            check("step-11" in done.err and "alone" in done.err, done.err)
            found = CKPT.inspect(path)
            check_equal(found["path"], str(root / "checkpoint/step-12"), name)
            check_equal({t["kind"] for t in found["tensors"]}, {"model"}, name)
            listed = CKPT.ok("ls", "-l", path).out.splitlines()
            check(len(listed) == 2 and "step-12" in listed[1] and not any(
                "incomplete" in line for line in listed), f"{listed}")
        CKPT.ok("verify", root, "--deep")
        CKPT.ok("convert", root, out, "--to", "safetensors", "--config-from",
                STEP / "huggingface")
        check_equal(in_checkpoint(out), digests(model), name)
        (root / "checkpoint/step-12").rename(root / "checkpoint/step-2")
        found = CKPT.inspect(root)
        check_equal(found["path"], str(root / "checkpoint/step-11"), name)
        check_equal(found["trainer"]["name"], "torchtitan", name)


# Written for a job without fuse_qkv, one saved so and two saved with it.
APART = {"llama_apart_tied", "qwen3_tied", "gpt_oss"}
MOMENTS = (".exp_avg", ".exp_avg_sq")
BIAS = "expert_bias_E"
# Without a bias of experts, or without the layers, in transformers.
NOT_THERE = {"deepseek_v2": ".e_score_correction_bias"}


def as_trained(moments):
    """The adapter's moments of single experts, as transformers trains them:
    gate above up, all experts in one."""
    import torch

    found, experts = {}, {}
    for name, one in moments.items():
        stem, _, rest = name.partition(".mlp.experts.")
        number, _, part = rest.partition(".")
        if number.isdigit():
            key = (stem, part.split(".")[0], part.rsplit(".", 1)[1])
            experts.setdefault(key, {})[int(number)] = one
        else:
            found[name] = one
    for (stem, part, state), each in experts.items():
        if part == "up_proj":
            continue
        rows = [each[e] if part == "down_proj" else torch.cat(
            [each[e], experts[stem, "up_proj", state][e]])
            for e in range(len(each))]
        fused = "down_proj" if part == "down_proj" else "gate_up_proj"
        found[f"{stem}.mlp.experts.{fused}.{state}"] = torch.stack(rows)
    return found


def digests(tensors):
    return {name: digest(one.contiguous().numpy().tobytes())
            for name, one in tensors.items()}


def in_checkpoint(path):
    return {t["name"]: t["digest"]
            for t in CKPT.inspect(path, "--digest")["tensors"]}


def refused(words, *command):
    result = CKPT.run(*command).want(5)
    for word in words:
        check(word in result.err, f"no word of {word}: {result}")


def check_model(home):
    """Weights, a Trainer's step, and by way of FSDP's home again."""
    from safetensors.torch import load_file

    name, step = home.name, home / "checkpoint/step-3"
    config = ["--config-from", home / "config"]
    expected = load_file(home / "expected.safetensors")
    model = digests({
        n: one for n, one in expected.items()
        if not n.endswith((*MOMENTS, BIAS, NOT_THERE.get(name, BIAS)))
        and n != "steps"})
    moments = digests(as_trained({
        n: one for n, one in expected.items() if n.endswith(MOMENTS)}))
    for source, out in ((step, "hf"), (home / "only", "hf_of_model")):
        CKPT.ok("convert", source, home / out, "--to", "safetensors", *config)
        check_equal(in_checkpoint(home / out), model, f"{name}: {out}")
    if "mtp" in name:
        refused(["multi-token prediction", "--model-only"], "convert", step,
                home / "trainer", "--to", "run", "--trainer", "hf_trainer",
                *config)
        return
    CKPT.ok("convert", step, home / "trainer", "--to", "run", "--trainer",
            "hf_trainer", *config)
    got = in_checkpoint(home / "trainer")
    for label, one in (model | moments).items():
        check_equal(got.get(label), one, f"{name} as a Trainer's: {label}")
    (home / "back").mkdir()
    apart = ["--fuse-qkv", "false"] if name in APART else []
    for source, out, trainer, more in (
            (step, home / "fsdp", "accelerate", []),
            (home / "fsdp", home / "back/step-3", "torchtitan", apart)):
        CKPT.ok("convert", source, out, "--to", "run", "--trainer", trainer,
                "--dp", 2, *config, *more)
    if name in ("qwen3_tied", "qwen3_apart"):
        check_arranged(home, config)


def check_arranged(home, config):
    """torchtitan's own step for another fuse_qkv is what that becomes by way of
    FSDP, which torchtitan loads."""
    step, out = home / "checkpoint/step-3", home / "arranged"
    other = ["--fuse-qkv", "false" if home.name in APART else "true"]
    CKPT.ok("convert", step, out, "--to", "run", "--trainer", "torchtitan",
            "--dp", 2, *config, *other)
    check_equal(in_checkpoint(out), in_checkpoint(home / "back/step-3"),
                f"{home.name} for another fuse_qkv")
    check(in_checkpoint(out) != in_checkpoint(step), "another arrangement")
    refused(["--fuse-qkv", "convert"], "reshard", step, home / "no", "--dp", 2,
            *other)
    refused(["--fuse-qkv", "apart"], "convert", step, home / "no", "--to",
            "run", "--trainer", "accelerate", *config, *other)
    refused(["--fuse-qkv", "--config-from"], "convert", step, home / "no",
            "--to", "run", "--trainer", "torchtitan", *other)
    CKPT.run("convert", step, home / "no", "--to", "run", "--trainer",
             "torchtitan", *config, "--fuse-qkv", "no").want(2)


def check_back(home):
    """What torchtitan's manager loaded is what it had saved."""
    got, want = (read_safetensors(home / f"{one}.safetensors")
                 for one in ("back", "expected"))
    check_equal(sorted(got), sorted(want), f"{home.name} home again")
    for name, one in want.items():
        if name != "steps":  # q, k and v have one there
            check_equal(bytes(got[name].data), bytes(one.data),
                        f"{home.name} home again: {name}")
    check_equal(set(memoryview(got["steps"].data).cast("f")), {3.0}, "steps")


def check_biased(home):
    """Experts' bias, which transformers lacks, decides who takes part."""
    command = ["convert", home / "checkpoint/step-3", home / "hf", "--to",
               "safetensors", "--config-from", home / "config"]
    refused([BIAS, "--exclude"], *command)
    CKPT.ok(*command, "--exclude", f"*.{BIAS}")


def check_refused(home, folder):
    step, name = home / "checkpoint/step-3", home.name
    config = folder / f"config_{name}"
    config.mkdir()
    (config / "config.json").write_text(json.dumps({"model_type": name}))
    out = folder / f"out_{name}"
    for target in (["safetensors"], ["run", "--trainer", "accelerate"]):
        refused([f"model_type {name}", "gpt_oss are known"], "convert", step,
                out, "--to", *target, "--config-from", config)
    said = CKPT.ok("convert", step, out, "--to", "safetensors").err
    check("names stay those of torchtitan" in said, said)


def test_models(folder):
    if not (PEER / "torchtitan").is_dir():
        raise Skip("torchtitan is not installed")
    homes = folder / "homes"
    homes.mkdir()
    peer = subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore",
         find("runs_titan_models_peer.py"), homes, str(held_port())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in peer.stdout:
            if line.strip() == "saved":
                break
            said += line
        check(peer.poll() is None, said[-3000:])
        cases = sorted(one for one in homes.iterdir() if one.name != "others")
        check(len(cases) > 8, f"{cases}")
        for home in cases:
            check_biased(home) if "biased" in home.name else check_model(home)
        others = sorted((homes / "others").iterdir())
        check_equal([one.name for one in others],
                    ["flux", "kimi_k2_7", "muse_glimmer", "qwen3_5"],
                    "models of torchtitan that are refused")
        for home in others:
            check_refused(home, folder)
        said = peer.communicate("load\n", timeout=HANG)[0]
        check(peer.returncode == 0, said[-3000:])
    finally:
        peer.kill()
        peer.wait()
    for home in cases:
        if (home / "back").is_dir():
            check_back(home)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for ranks in (1, 2) if suite.full else (2,):
        suite.add(f"with {ranks} ranks", test_load, ranks)
    suite.add("each of its models", test_models)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
