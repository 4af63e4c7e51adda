#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of trainers as Megatron's distributed checkpoints, with Adam's moments,
and home.

Moments have to be cut as their weights are: what Megatron gets is held against
a fusion that is written here, and what comes home against the live objects of
the trainer. With --full megatron-core itself loads it, steps and saves, and its
checkpoint is home again what torch's AdamW comes to in the trainer's model.
"""

import json
import re
import shutil
import subprocess
import sys

from peer import Peer, find
from support import (
    DATA, Failure, Skip, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PROGRAM = Peer("runs_megatron_peer.py")
SIZES = dict(vocab_size=53, hidden_size=16, intermediate_size=24,
             num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
             max_position_embeddings=32, rope_theta=10000.0)
# Steps whose folders have no configuration.
CONFIGS = {
    "accelerate_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1,
        architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True),
    "hf_trainer_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1,
        architectures=["Qwen2ForCausalLM"]),
    "torchtitan_w2": dict(
        SIZES, model_type="llama", num_hidden_layers=1,
        architectures=["LlamaForCausalLM"], tie_word_embeddings=False),
}
HOME = {"hf_trainer": 1, "accelerate": 2, "lightning": 2, "torchtitan": 2,
        "verl": 2}


def step_of(case):
    facts = json.loads((GOLDENS / case / "case.json").read_text())
    path = GOLDENS / case / "ckpt" / facts["newest"]
    return path / "actor" if case == "verl_fsdp2_w2" else path


def given(case, folder):
    if case not in CONFIGS:
        return []
    home = folder / "config"
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps(CONFIGS[case]))
    return ["--config-from", home]


def digests(path, *more):
    return {t["name"]: (t["dtype"], t["digest"])
            for t in CKPT.inspect(path, "--digest", *more)["tensors"]}


def expected(case):
    if case == "verl_fsdp2_w2":  # one of two roles, without its prefix
        return digests(step_of(case))
    return {name: (tensor.dtype, digest(tensor.data))
            for what in ("expected", "expected_optim")
            for name, tensor in read_safetensors(
                GOLDENS / case / f"{what}.safetensors").items()}


def test_round(folder, case, form, sizes, trainer):
    """To Megatron and back: each tensor of the live objects, bit for bit."""
    out, home = folder / "out", folder / "home"
    more = given(case, folder)
    CKPT.ok("convert", step_of(case), out, "--to", form, *sizes.split(), *more,
            "--verify")
    if not more:
        CKPT.ok("verify", step_of(case), out)
    said = CKPT.ok("convert", out, home, "--to", "run", "--trainer", trainer,
                   "--dp", HOME[trainer], "--verify", *more).err
    got = digests(home)
    bf16 = case == "accelerate_fsdp2_w2"
    fused = case == "hf_trainer_moe_qwen3"
    for name, (dtype, one) in expected(case).items():
        if fused and ".experts." in name and name not in got:
            continue  # trained as one, separate here: test_experts
        if bf16 and dtype == "bf16":  # weights and moments are wider here
            check_equal(got[name][0], "f32", name)
            continue
        check_equal(got.get(name), (dtype, one), name)
    check("bf16" not in said or bf16, said)


def fused(case, what, layer=0):
    """Queries, keys and values of one layer, in Megatron's groups of heads."""
    import numpy as np

    tensors = read_safetensors(GOLDENS / case / f"{what}.safetensors")
    state = "" if what == "expected" else ".exp_avg"
    parts = []
    for name, each in (("q", 2), ("k", 1), ("v", 1)):
        one = tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"
                      + state]
        rows = np.frombuffer(one.data, np.float32).reshape(one.shape)
        parts.append(rows.reshape(2, each * 4, 16))  # 2 groups, heads of 4
    return np.concatenate(parts, axis=1).reshape(-1, 16)


def test_arrangement(folder):
    """Groups of heads, and what becomes of the optimizer's groups and step."""
    case = "hf_trainer_qwen2"
    out = folder / "out"
    CKPT.ok("convert", step_of(case), out, "--to", DIST, "--tp", 2)
    got = {t["name"]: t for t in CKPT.inspect(out, "--digest")["tensors"]}
    stem = "decoder.layers.self_attention.linear_qkv.weight"
    for what, prefix in (("expected", ""), ("expected", "optimizer.state.param."),
                         ("expected_optim", "optimizer.state.exp_avg.")):
        layers = b"".join(fused(case, what, i).tobytes() for i in range(2))
        check_equal(got[prefix + stem]["digest"], digest(layers), prefix)
    import torch

    [common] = out.glob("iter_0000010/common.pt")
    common = torch.load(common, weights_only=False)
    groups = common["optimizer"]["optimizer"]["param_groups"]
    check_equal([(g["wd_mult"], g["weight_decay"], g["step"], g["max_lr"])
                 for g in groups],
                [(1.0, 0.1, 10, 0.01), (0.0, 0.0, 10, 0.01)], "groups")
    check_equal(common["iteration"], 10, "iteration")
    check_equal(common["opt_param_scheduler"]["max_lr"], 0.01, "scheduler")
    check(common["args"].use_distributed_optimizer, "args")


def test_refused(folder, case, words):
    """What can't be converted is named, with what to do next; nothing is
    written."""
    out = folder / "out"
    result = CKPT.run("convert", step_of(case), out, "--to", DIST)
    result.want(5)
    check(words in result.err and "hint" in result.err, f"{result}")
    check(not out.exists(), "something was written")


def test_other_moments(folder):
    """verify compares the state of a run with Megatron's by parameter."""
    import torch

    source, out = folder / "source", folder / "out"
    shutil.copytree(step_of("hf_trainer_qwen2"), source)
    CKPT.ok("convert", source, out, "--to", DIST, "--tp", 2)
    path = source / "optimizer.pt"
    states = torch.load(path, weights_only=True)
    for key, change in (("exp_avg", 1), ("exp_avg_sq", 2), ("step", 3)):
        number = 1 if key == "step" else 4
        states["state"][number][key].view(-1)[-1] += change
        torch.save(states, path)
        result = CKPT.run("verify", source, out).want(1)
        check(f".{key}" in result.out, f"{key} is not named\n{result}")
        states["state"][number][key].view(-1)[-1] -= change


def test_unequal(folder):
    """Step counts, options and names that Megatron can't hold."""
    import torch

    for kind, words in (("step", "others 11 times"),
                        ("options", ""),
                        ("amsgrad", "amsgrad"), ("sgd", "not Adam")):
        source = folder / kind
        shutil.copytree(step_of("hf_trainer_qwen2"), source)
        path = source / "optimizer.pt"
        states = torch.load(path, weights_only=True)
        first = states["state"][0]
        if kind == "step":
            first["step"] += 1
        elif kind == "options":
            states["param_groups"][1]["lr"] = 0.25
        elif kind == "amsgrad":
            first["max_exp_avg_sq"] = first["exp_avg_sq"].clone()
        else:
            for one in states["state"].values():
                one["momentum_buffer"] = one.pop("exp_avg")
        torch.save(states, path)
        out = folder / f"{kind}_out"
        result = CKPT.run("convert", source, out, "--to", DIST)
        if kind == "options":
            # No Trainer made them, so their order has to be given; then each
            # group keeps its own.
            result.want(5)
            check("unlike learning rates" in result.err and
                  "--assume-order" in result.err, f"{result}")
            case = GOLDENS / "hf_trainer_qwen2" / "case.json"
            order = json.loads(case.read_text())["optimizer_order"]
            listing = folder / "order.txt"
            listing.write_text("\n".join(sum(order, [])))
            CKPT.ok("convert", source, out, "--to", DIST, "--assume-order",
                    listing)
            continue
        result.want(5)
        check(words in result.err and "hint" in result.err, f"{result}")
        check(not out.exists(), "something was written")


def live(got, name):
    """A tensor under the name that is trained: experts are saved one by one and
    trained as one stack, gate above up."""
    import torch

    fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)(\..*)?",
                         name)
    if name in got or not fused:
        return got[name]
    experts, part, state = fused[1], fused[2], fused[3] or ""
    parts = {"gate_up_proj": ("gate_proj", "up_proj")}.get(part, (part,))
    stack = []
    while f"{experts}.{len(stack)}.{parts[0]}.weight{state}" in got:
        stack.append(torch.cat([
            got[f"{experts}.{len(stack)}.{one}.weight{state}"]
            for one in parts]))
    return torch.stack(stack)


def test_step(folder, case, tp, dp, ep):
    """Megatron-Core's GPTModel and distributed optimizer load what ckpt wrote,
    step and save. Converted back, it equals a step of torch's AdamW."""
    import importlib.util

    import numpy as np
    import torch

    if importlib.util.find_spec("megatron") is None:
        raise Skip("megatron-core is not installed")
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", step_of(case), there, "--to", DIST, "--tp", tp,
            "--ep", ep, "--verify")
    [step] = there.glob("iter_*")
    wrong = PROGRAM.ask(dict(
        path=str(step), out=str(back), tp=tp, dp=dp, ep=ep,
        vocabulary=53, lr=1e-2, step=int(step.name[5:])))
    if wrong:
        raise Failure(f"megatron-core: {wrong}")
    done = subprocess.run(
        [sys.executable, "-B", find("runs_megatron_peer.py"), json.dumps(dict(
            path=str(step_of(case)), out=str(folder / "want.safetensors"),
            lr=1e-2))], capture_output=True, text=True)
    check(done.returncode == 0, f"transformers: {done.stderr[-2000:]}")
    want = read_safetensors(folder / "want.safetensors")
    loss = float((back / "loss").read_text())
    told = float(np.frombuffer(want.pop("loss").data, np.float32)[0])
    check(abs(loss - told) < 1e-5 * abs(told), f"loss {loss}, not {told}")
    home = folder / "home.pt"
    CKPT.ok("convert", back, home, "--to", "torch", "--dialect", "hf",
            "--verify")
    got = torch.load(home, weights_only=False)
    worst = 0.0
    for name, tensor in want.items():
        mine = live(got, name).float().numpy()
        theirs = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        worst = max(worst, float(abs(mine - theirs).max()))
        check(np.allclose(mine, theirs, rtol=1e-4, atol=1e-6),
              f"{name}: {abs(mine - theirs).max()}")
    print(f"  {case} tp={tp} dp={dp} ep={ep}: loss {loss}, largest "
          f"difference of {len(want)} tensors {worst:.2g}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case, form, sizes, trainer in ROUNDS:
        suite.add(f"{case} as {form} {sizes} and home to {trainer}",
                  test_round, case, form, sizes, trainer)
    suite.add("arrangement, groups and step", test_arrangement)
    for case, words in REFUSED:
        suite.add(f"{case}: refused", test_refused, case, words)
    suite.add("other moments than a run's", test_other_moments)
    suite.add("unequal steps, amsgrad, another optimizer", test_unequal)
    if suite.full:
        for case, tp, dp, ep in STEPS:
            suite.add(f"{case}: a step at tp={tp} dp={dp} ep={ep}", test_step,
                      case, tp, dp, ep)


STEPS = (
    ("hf_trainer_qwen2", 1, 1, 1),
    ("hf_trainer_qwen2", 2, 1, 1),
    ("hf_trainer_qwen2", 1, 2, 1),
    ("hf_trainer_moe_qwen3", 1, 1, 1),
    ("hf_trainer_moe_qwen3", 1, 2, 2),
)
DIST, RANKS, ZARR = "megatron_torch_dist", "megatron_legacy", "megatron_zarr"
ROUNDS = (
    ("hf_trainer_qwen2", DIST, "--tp 2 --pp 2", "hf_trainer"),
    ("hf_trainer_qwen2", RANKS, "--tp 2 --pp 2", "accelerate"),
    ("hf_trainer_qwen2", ZARR, "--tp 1", "lightning"),
    ("hf_trainer_moe_qwen3", DIST, "--tp 1 --ep 2", "accelerate"),
    ("hf_trainer_fsdp2_w2", DIST, "--tp 4", "hf_trainer"),
    ("accelerate_fsdp2_w2", DIST, "--tp 2", "accelerate"),
    ("verl_fsdp2_w2", DIST, "--tp 2", "verl"),
    ("verl_fsdp1_flat_w2", RANKS, "--tp 2", "lightning"),
    ("torchtitan_w2", DIST, "--tp 2", "torchtitan"),
)


REFUSED = (
    ("hf_trainer_lora", "adapter"),
    ("hf_trainer_fsdp2_w2", "family is not known"),
)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
