#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that PaddlePaddle's trainers saved: linears are [in, out], and in a
square matrix no shape tells. The header's "format" does, or config.json's
version of the trainer: then torch's orientation comes out, once, and twice
converted is the same. Nothing else is ever turned.
"""

import itertools
import json

from support import Suite, check, check_equal

CKPT = None  # set by prepare
SIGNS = {"pd": ("pd", {}), "np and PaddleNLP": ("np", {"paddlenlp_version": "3"}),
         "np and PaddleFormers": ("np", {"paddleformers_version": "0.1"})}


def llama(square):
    import torch

    torch.manual_seed(7)
    hidden, ffn, rows, kv = (32, 32, 32, 32) if square else (32, 48, 64, 16)
    state = {"model.embed_tokens.weight": (rows, hidden),
             "model.norm.weight": (hidden,), "lm_head.weight": (rows, hidden)}
    for layer in range(2):
        for name, shape in (
                ("input_layernorm", (hidden,)),
                ("post_attention_layernorm", (hidden,)),
                ("self_attn.q_proj", (hidden, hidden)),
                ("self_attn.k_proj", (kv, hidden)),
                ("self_attn.v_proj", (kv, hidden)),
                ("self_attn.o_proj", (hidden, hidden)),
                ("mlp.gate_proj", (ffn, hidden)), ("mlp.up_proj", (ffn, hidden)),
                ("mlp.down_proj", (hidden, ffn))):
            state[f"model.layers.{layer}.{name}.weight"] = shape
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "hidden_size": hidden, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": kv // 8,
              "head_dim": 8, "intermediate_size": ffn, "vocab_size": rows,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    return {name: torch.randn(shape).to(torch.bfloat16)
            for name, shape in state.items()}, config


def paddles(state, word):
    """As Paddle's own classes hold it."""
    def turned(name, tensor):
        linear = tensor.dim() == 2 and "embed" not in name
        return tensor.T.contiguous() if linear else tensor

    return {name.replace("model.", word, 1) if name.startswith("model.")
            else name: turned(name, tensor) for name, tensor in state.items()}


def save(folder, state, config, form, shards=1):
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    metadata = {"format": form} if form else None
    if shards == 1:
        return save_file(state, folder / "model.safetensors", metadata)
    index = {}
    for at in range(shards):
        file = f"model-{at + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(state.items())[at::shards])
        save_file(part, folder / file, metadata)
        index |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in state.values())
    return (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": index}))


def same(folder, want):
    from safetensors import safe_open

    got = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as one:
            check_equal(one.metadata()["format"], "pt", "format")
            got |= {name: one.get_tensor(name) for name in one.keys()}
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(got[name].equal(tensor), name)


def test_paddle(folder, sign, square, word, shards):
    form, more = SIGNS[sign]
    want, config = llama(square)
    save(folder / "pd", paddles(want, word), config | more, form, shards)
    CKPT.ok("verify", folder / "pd")
    CKPT.ok("convert", folder / "pd", folder / "hf", "--to", "safetensors")
    same(folder / "hf", want)
    CKPT.ok("verify", folder / "pd", folder / "hf")
    CKPT.ok("convert", folder / "hf", folder / "again", "--to", "safetensors")
    same(folder / "again", want)


def test_others(folder, form):
    """What another library saved stays as it is."""
    want, config = llama(True)
    save(folder / "in", want, config, form)
    CKPT.ok("convert", folder / "in", folder / "out.pt")
    import torch

    got = torch.load(folder / "out.pt")
    for name, tensor in want.items():
        check(got[name].equal(tensor), name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for sign, square, word, shards in itertools.product(
            SIGNS, (True, False), ("model.", "llama."), (1, 3)):
        suite.add(f"{sign}, {square=}, {word} {shards}", test_paddle, sign,
                  square, word, shards)
    for form in ("np", "pt", "mlx", None):
        suite.add(f"{form} of others", test_others, form)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
