#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in vLLM's sharded_state, held against vLLM itself: names, shapes and
values of every rank are those that vLLM 0.33.0's model classes had after they
loaded the same Hugging Face model, and the way back is bit for bit.

vLLM needs some hundred packages, so what it held is in tests/data/vllm/models:
each tensor of each rank by its dtype, shape and SHA-256.
`generators/vllm_models.py` wrote them. The values of a model follow from the
names of its tensors (`filled`), so that no weights are stored.
"""

import hashlib
import json
import math

from support import (
    DATA, Suite, check, check_equal, compare, from_torch, read_safetensors)

CKPT = None  # set by prepare
MODELS = DATA / "vllm/models"


def filled(name, dtype, shape):
    """Finite 16-bit numbers, with the name as seed."""
    import torch

    data = hashlib.shake_128(name.encode()).digest(2 * math.prod(shape))
    bits = torch.frombuffer(bytearray(data), dtype=torch.int16) & ~0x4000
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32}
    return bits.view(torch.bfloat16).reshape(shape).to(kinds[dtype])


def write_source(folder, truth):
    from safetensors.torch import save_file

    folder.mkdir()
    save_file({n: filled(n, *t) for n, t in truth["tensors"].items()},
              folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(truth["config"]))
    return folder


def values(tensor, dtype):
    """The values as that dtype: vLLM keeps some routers in f32 and copies what
    is stored."""
    import torch

    kinds = {"bf16": torch.bfloat16, "f32": torch.float32}
    own = torch.frombuffer(bytearray(tensor.data), dtype=kinds[tensor.dtype])
    return own.to(kinds[dtype]).view(torch.uint8).numpy().tobytes()


def check_ranks(folder, want, ranks):
    for rank in range(ranks):
        got = {}
        for path in sorted(folder.glob(f"model-rank-{rank}-part-*")):
            got.update(read_safetensors(path))
        check_equal(sorted(got), sorted(want), f"rank {rank}: names")
        for name, (dtype, shape, digests) in want.items():
            tensor = got[name]
            check_equal(list(tensor.shape), shape, f"rank {rank}: {name}")
            digest = hashlib.sha256(values(tensor, dtype)).hexdigest()
            check(digest.startswith(digests[rank]),
                  f"rank {rank}: {name} has other values")
    check(not list(folder.glob(f"model-rank-{ranks}-*")), "another rank")


def check_back(folder, source, hf):
    CKPT.ok("verify", source, "--deep")
    CKPT.ok("convert", source, folder / "back", "-q", "--to", "safetensors")
    got = {}
    for path in (folder / "back").glob("*.safetensors"):
        got.update(read_safetensors(path))
    want = read_safetensors(hf / "model.safetensors")
    check_equal(sorted(got), sorted(want), "back: names")
    for name, tensor in want.items():
        check_equal((got[name].dtype, got[name].shape, got[name].data),
                    (tensor.dtype, tensor.shape, tensor.data), name)


def test_model(folder, path):
    """To every number of ranks that vLLM was asked for, each from the one
    before."""
    truth = json.loads(path.read_text())
    hf = source = write_source(folder / "hf", truth)
    for spec, want in truth["ranks"].items():
        ranks, whole = int(spec.rstrip("e")), spec.endswith("e")
        out = folder / f"out{spec}"
        CKPT.ok("convert", source, out, "-q", "--to", "vllm", "--tp", ranks,
                "--ep", ranks if whole else 1, "--verify")
        check_ranks(out, want, ranks)
        source = out
    CKPT.ok("convert", source, folder / "one", "-q", "--to", "vllm",
            "--tp", 1)
    check_back(folder, folder / "one", hf)


GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 64, "num_hidden_layers": 1, "num_local_experts": 4}
EXPERTS = "model.layers.0.mlp.experts."


def gpt_oss(folder):
    """Transformers' names and shapes; E, F, H = 4, 32, 64."""
    a = "model.layers.0.self_attn."
    shapes = {
        "model.embed_tokens.weight": (64, 64), "lm_head.weight": (64, 64),
        "model.norm.weight": (64,), a + "sinks": (4,),
        a + "o_proj.weight": (64, 64), a + "o_proj.bias": (64,),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.mlp.router.weight": (4, 64),
        "model.layers.0.mlp.router.bias": (4,),
        EXPERTS + "gate_up_proj": (4, 64, 64),
        EXPERTS + "gate_up_proj_bias": (4, 64),
        EXPERTS + "down_proj": (4, 32, 64),
        EXPERTS + "down_proj_bias": (4, 64)}
    for part, rows in (("q", 64), ("k", 32), ("v", 32)):
        shapes[f"{a}{part}_proj.weight"] = (rows, 64)
        shapes[f"{a}{part}_proj.bias"] = (rows,)
    truth = {"tensors": {n: ("bf16", s) for n, s in shapes.items()},
             "config": GPT_OSS}
    return write_source(folder / "hf", truth), {
        n: filled(n, "bf16", s) for n, s in shapes.items()}


def gpt_oss_rank(t, rank, whole):
    """What its loader in vLLM 0.33.0 gives one of two ranks: rows of gate and
    up alternate in w13, and only rank 0 has w2's bias."""
    import torch

    a = "model.layers.0.self_attn."

    def half(x, dim):
        return x.chunk(2, dim)[rank]

    up, down = t[EXPERTS + "gate_up_proj"], t[EXPERTS + "down_proj"]
    bias13, bias2 = (t[EXPERTS + "gate_up_proj_bias"],
                     t[EXPERTS + "down_proj_bias"])
    state = {
        "model.embedding.weight": half(t["model.embed_tokens.weight"], 0),
        "lm_head.weight": half(t["lm_head.weight"], 0),
        "model.layers.0.attn.sinks": half(t[a + "sinks"], 0),
        "model.layers.0.attn.o_proj.weight": half(t[a + "o_proj.weight"], 1),
        "model.layers.0.attn.o_proj.bias": t[a + "o_proj.bias"]}
    for what in ("weight", "bias"):
        state["model.layers.0.attn.qkv_proj." + what] = torch.cat(
            [half(t[f"{a}{x}_proj.{what}"], 0) for x in "qkv"])
    r = EXPERTS + "routed_experts."
    own = 0 if whole else 1
    state[r + "w13_weight"] = half(up.transpose(1, 2), own)
    state[r + "w13_bias"] = half(bias13, own)
    state[r + "w2_weight"] = half(down.transpose(1, 2), 0 if whole else 2)
    state[r + "w2_bias"] = (half(bias2, 0) if whole else
                            bias2 if rank == 0 else torch.zeros_like(bias2))
    state.update({n: x for n, x in t.items()
                  if "norm" in n or "router" in n})
    return state


def test_gpt_oss(folder, whole):
    hf, tensors = gpt_oss(folder)
    out = folder / "two"
    CKPT.ok("convert", hf, out, "-q", "--to", "vllm", "--tp", 2, "--ep",
            2 if whole else 1, "--verify")
    for rank in range(2):
        got = read_safetensors(
            out / f"model-rank-{rank}-part-0.safetensors")
        got = {n: x for n, x in got.items() if not n.endswith("_scale")}
        compare(got, {n: from_torch(x.contiguous()) for n, x in gpt_oss_rank(
            tensors, rank, whole).items()}, f"rank {rank}")
    check_back(folder, out, hf)


def test_bias(folder):
    """What other ranks add to the first one's bias must be zero."""
    from safetensors.torch import load_file, save_file

    hf, _ = gpt_oss(folder)
    CKPT.ok("convert", hf, folder / "two", "-q", "--to", "vllm", "--tp", 2)
    path = folder / "two/model-rank-1-part-0.safetensors"
    state = load_file(path)
    name = EXPERTS + "routed_experts.w2_bias"
    state[name][1, 3] = 1
    save_file(state, path)
    run = CKPT.run("convert", folder / "two", folder / "no", "--to", "vllm",
                   "--tp", 1)
    check(run.code in (4, 5), str(run))
    check(name in run.err, str(run))
    check(not (folder / "no").exists(), "something was written")
    (folder / "two/config.json").unlink()
    run = CKPT.run("inspect", folder / "two")
    run.want(5)
    check("config.json" in run.err, str(run))


def test_pairs(folder):
    """Llama 4's heads must be whole pairs of rows."""
    truth = json.loads((MODELS / "llama4_text.json").read_text())
    truth["config"].update(num_attention_heads=64, num_key_value_heads=16,
                           head_dim=1)  # of the same rows
    hf = write_source(folder / "hf", truth)
    run = CKPT.run("convert", hf, folder / "no", "--to", "vllm")
    run.want(5)
    check("pairs" in run.err, str(run))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for path in sorted(MODELS.glob("*.json")):
        suite.add(f"model {path.stem}", test_model, path)
    suite.add("gpt-oss", test_gpt_oss, False)
    suite.add("gpt-oss whole experts", test_gpt_oss, True)
    suite.add("bias", test_bias)
    suite.add("pairs", test_pairs)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
