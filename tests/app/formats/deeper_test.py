#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--layers 0-2,1-3: a deeper model of repeated layers.

transformers makes the deeper model: its layer i gets the weights of layer
order[i] from torch. What ckpt makes from the saved model is that model, bit for
bit, config.json included, from Hugging Face's names and from Megatron's.
"""

import os
import re
import sys

from support import (DATA, Suite, check, check_equal, compare)
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, head_dim=8)
MIXED = ["sliding_attention", "full_attention"]
# model type: (order, its list, fields, fields of the deeper model)
TYPES = {
    "llama": ([0, 1, 2, 1, 2, 3], "0-2,1-3", {}, {}),
    "qwen3": ([3, 2, 1, 0], "3,2,1,0", {}, {}),
    "qwen3_moe": ([0, 1, 0, 1, 2, 3], "0-1,0-3", dict(
        num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8,
        mlp_only_layers=[1]), dict(mlp_only_layers=[1, 3])),
    "gemma3_text": ([0, 1, 2, 3, 2, 3], "0-3,2-3", dict(
        layer_types=MIXED * 2), dict(layer_types=MIXED * 3)),
    "deepseek_v3": ([0, 1, 2, 3, 3], "0-3,3", dict(
        q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, head_dim=4,
        qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=4,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
        n_shared_experts=1, n_group=1, topk_group=1,
        first_k_dense_replace=1), {}),
}


def models():
    return models_of("families2026_models")


def save_pair(folder, model_type):
    from transformers import AutoConfig

    tiny = models()
    order, _, own, deeper = TYPES[model_type]
    fields = {**BASE, **own}
    flat = tiny.model_of(AutoConfig.for_model(model_type, **fields))
    fields.update(deeper, num_hidden_layers=len(order))
    deep = tiny.model_of(AutoConfig.for_model(model_type, **fields))
    have = flat.state_dict()

    def source(name):
        return re.sub(r"layers\.(\d+)\.",
                      lambda m: f"layers.{order[int(m[1])]}.", name)

    deep.load_state_dict({name: have[source(name)]
                          for name in deep.state_dict()})
    flat.save_pretrained(folder / "flat")
    deep.save_pretrained(folder / "deep")
    return tiny, deep


def deeper(folder, model_type):
    import torch

    tiny, deep = save_pair(folder, model_type)
    listed = TYPES[model_type][1]
    out = folder / "out"
    CKPT.ok("convert", folder / "flat", out, "--to", "safetensors", "--layers",
            listed, "--no-fsync", "--verify")
    compare(tensors_of(out), tensors_of(folder / "deep"), "from hf")
    check_equal(config_of(out), config_of(folder / "deep"), "config.json")
    loaded = type(deep).from_pretrained(out, dtype=torch.float32)
    check(torch.equal(tiny.logits_of(loaded), tiny.logits_of(deep)),
          "logits differ")
    CKPT.ok("convert", folder / "flat", folder / "mcore", "--to",
            "megatron_torch_dist", "--tp", 2, "--no-fsync", "-q")
    CKPT.ok("verify", folder / "mcore", "--layers", listed)
    for name, source in (("a", folder / "mcore"), ("b", folder / "flat")):
        CKPT.ok("convert", source, folder / name, "--to",
                "megatron_torch_dist", "--layers", listed, "--no-fsync", "-q")
        CKPT.ok("convert", folder / name, folder / f"{name}_hf", "--to",
                "safetensors", "--no-fsync", "-q")
        compare(tensors_of(folder / f"{name}_hf"), tensors_of(out), name)
        check_equal(config_of(folder / f"{name}_hf"), config_of(out), name)


def golden_optimizer(folder, case):
    """Rows of Megatron's stacked state, twice."""
    from safetensors.torch import load_file

    golden = DATA / "megatron_torch_dist" / case
    CKPT.ok("reshard", golden / "ckpt", folder / "out", "--layers", "0-1,0-1",
            "--no-fsync", "-q")
    CKPT.ok("unshard", folder / "out", folder / "o.safetensors", "--optim-only",
            "-q")
    got = load_file(folder / "o.safetensors")
    want = load_file(golden / "expected_optim.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    rows = 0
    for name, value in want.items():
        if ".layers." in name and value.dim():
            value = value[[0, 1, 0, 1]]
            rows += 1
        check(bool((got[name] == value).all()), f"{name} differs")
    check(rows >= 9, f"{rows} stacked tensors")


def refused(folder):
    """Layers whose kind follows from their number."""
    save_pair(folder, "deepseek_v3")
    run = CKPT.run("convert", folder / "flat", folder / "no", "--to",
                   "safetensors", "--layers", "1-3,0").want(5)
    check("first_k_dense_replace" in run.err, run.err)
    run = CKPT.run("convert", folder / "flat", folder / "no", "--to",
                   "safetensors", "--layers", "0-3,4").want(5)
    check("there is no layer 4" in run.err, run.err)
    check(not (folder / "no").exists(), "something was written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for model_type in TYPES:
        suite.add(model_type, deeper, model_type)
    suite.add("Megatron's optimizer", golden_optimizer,
              "moe_optim_buckets_ep2_pp2_v0161")
    suite.add("refused", refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
