#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nanotron's models as those of transformers: Llama, and Qwen2, which becomes
Qwen2, SmolLM3 or Llama.

transformers computes the same logits from what ckpt writes as from the weights
that were arranged as nanotron has them. Whatever is not known to be computed
alike keeps nanotron's names, with a warning.
"""

import json
import re
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare


def content(path):
    return {t["name"]: (t["dtype"], t["shape"], t["digest"])
            for t in CKPT.inspect(path, "--digest")["tensors"]}


def transformers():
    folder = Path(sys.prefix) / "transformers_5.12.1"
    if not folder.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    import transformers as package

    return package


def nanotron_name(name):
    for own, other in ((r"model.layers.(\d+).self_attn.(o_proj).weight",
                        "model.decoder.{}.pp_block.attn.{}.weight"),
                       (r"model.layers.(\d+).(\w+layernorm|mlp.down_proj)"
                        r".weight", "model.decoder.{}.pp_block.{}.weight")):
        if found := re.fullmatch(own, name):
            return other.format(*found.groups())
    return {"model.embed_tokens.weight": "model.token_position_embeddings."
            "pp_block.token_embedding.weight",
            "model.norm.weight": "model.final_layer_norm.pp_block.weight",
            "lm_head.weight": "model.lm_head.pp_block.weight"}[name]


def nanotron_weights(model):
    """A model's weights as nanotron has them, by the code of its converters from
    transformers: rows one below the other."""
    import torch

    state = model.state_dict()
    made = {}
    for i in range(model.config.num_hidden_layers):
        own, other = f"model.layers.{i}.", f"model.decoder.{i}.pp_block."
        for whole, parts in (("attn.qkv_proj", ("self_attn.q_proj",
                                                "self_attn.k_proj",
                                                "self_attn.v_proj")),
                             ("mlp.gate_up_proj", ("mlp.gate_proj",
                                                   "mlp.up_proj"))):
            for what in ("weight", "bias"):
                if f"{own}{parts[0]}.{what}" in state:
                    made[f"{other}{whole}.{what}"] = torch.cat(
                        [state.pop(f"{own}{part}.{what}") for part in parts])
    return made | {nanotron_name(name): t for name, t in state.items()}


def logits(model, adjacent):
    """Rotary pairs that are adjacent are computed by transformers' Cohere."""
    import torch
    from transformers.models.cohere.modeling_cohere import (
        apply_rotary_pos_emb)

    def rotate(q, k, cos, sin, *rest, **more):
        half = cos.shape[-1] // 2
        return apply_rotary_pos_emb(
            q, k, cos[..., :half].repeat_interleave(2, -1),
            sin[..., :half].repeat_interleave(2, -1), *rest, **more)

    module = sys.modules[type(model).__module__]
    kept = module.apply_rotary_pos_emb
    try:
        if adjacent:
            module.apply_rotary_pos_emb = rotate
        with torch.no_grad():
            return model.eval()(torch.arange(3, 20)[None],
                                use_cache=False).logits
    finally:
        module.apply_rotary_pos_emb = kept


def written(folder, model, config, tied):
    """A model's weights in nanotron's names, with its model_config.json."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(5)
    for value in model.parameters():  # norms too, which begin as ones
        value.data = torch.randn_like(value) * 0.3
    folder.mkdir()
    save_file({name: tensor.contiguous()
               for name, tensor in nanotron_weights(model).items()
               if not (tied and "lm_head" in name)},
              folder / "model.safetensors")
    (folder / "model_config.json").write_text(json.dumps(config))


def check_model(source, out, want, adjacent):
    """transformers computes from `out` what nanotron does from `source`."""
    peer = transformers()
    CKPT.ok("convert", source, out, "--to", "safetensors", "--verify")
    got, info = peer.AutoModelForCausalLM.from_pretrained(
        str(out), output_loading_info=True, local_files_only=True)
    check_equal(type(got), type(want), "class")
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not info[what], f"{what}: {sorted(info[what])[:5]}")
    apart = (logits(got, False) - logits(want, adjacent)).abs().max()
    check(apart < 1e-5, f"logits differ by {apart}")
    if adjacent:  # so that the comparison would see it
        apart = (logits(got, True) - logits(want, True)).abs().max()
        check(apart > 1e-3, f"the arrangement has no effect: {apart}")


def check_stays(folder, source, changes):
    """The names stay, with a warning, and --dialect hf refuses."""
    path = source / "model_config.json"
    config = json.loads(path.read_text())
    for i, (change, word) in enumerate(changes):
        other = {key: value for key, value in {**config, **change}.items()
                 if value is not None}
        path.write_text(json.dumps(other))
        if i == 0:
            stays = folder / "stays"
            done = CKPT.ok("convert", source, stays, "--to", "safetensors")
            check(word in done.err and "nanotron" in done.err, f"{done}")
            check_equal(content(stays), content(source), "names")
        done = CKPT.run("convert", source, folder / "no", "--to", "safetensors",
                        "--dialect", "hf").want(5)
        check(word in done.err, f"{change}: {done}")
    path.write_text(json.dumps(config))


def test_llama(folder, numbers):
    """A Llama becomes transformers', with a config.json, and computes the
    same; whatever is not known is refused, and the names stay."""
    peer = transformers()
    said = {"rope_interleaved": None, **numbers}
    own = {key: value for key, value in said.items()
           if key != "rope_interleaved"}
    want = peer.LlamaForCausalLM(peer.LlamaConfig(**own))
    source, out = folder / "nanotron", folder / "out"
    config = {key: value for key, value in said.items() if value is not None}
    config["is_llama_config"] = True
    written(source, want, config, own.get("tie_word_embeddings"))
    check_model(source, out, want, said["rope_interleaved"] is not False)
    # Its names are Megatron's through transformers', and back.
    CKPT.ok("convert", source, folder / "mcore", "--to", "megatron_torch_dist")
    CKPT.ok("convert", folder / "mcore", folder / "back", "--to", "safetensors")
    check_equal(content(folder / "back"), content(out), "by way of Megatron")
    check_stays(folder, source, (
        ({"is_llama_config": None, "is_mamba_config": True}, "another model"),
        ({"is_qwen2_config": True}, "another model"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "heads"),
        ({"num_key_value_heads": 6}, "shape"),
        ({"vocab_size": 30}, "vocab_size"),
        ({"attention_bias": True}, "attention_bias"),
        ({"no_rope_layer": 4}, "no_rope_layer"),
        ({"rope_interleaved": "no"}, "rope_interleaved"),
        ({"hidden_size": 48}, "shape")))
    (source / "model_config.json").unlink()
    CKPT.run("convert", source, folder / "no", "--to", "safetensors",
             "--dialect", "hf").want(5)
    (source / "model_config.json").write_text(json.dumps(config))
    (source / "config.yaml").write_text("  init_method:\n    use_mup: true\n")
    done = CKPT.run("convert", source, folder / "no", "--to", "safetensors",
                    "--dialect", "hf").want(5)
    check("use_mup" in done.err, f"{done}")


# What nanotron's main branch writes of a Qwen2Config besides the numbers.
QWEN2 = {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
         "initializer_range": 0.02, "is_qwen2_config": True,
         "max_position_embeddings": 64, "pad_token_id": None,
         "pretraining_tp": 2, "rms_norm_eps": 1e-5, "rope_scaling": None,
         "rope_theta": 10000.0, "rope_interleaved": False,
         "rope_seq_len_interpolation_factor": None,
         "tie_word_embeddings": False, "use_cache": True,
         "_attn_implementation": "llama3_ring_attention",
         "flex_attention_mask": None, "attention_bias": False,
         "sliding_window_size": None, "z_loss_enabled": False,
         "z_loss_coefficient": 1e-5, "no_rope_layer": None,
         "_fused_rotary_emb": True, "_fused_rms_norm": True,
         "_use_qkv_packed": True, "_use_doc_masking": True,
         "log_attn_probs": True, "ring_attn_heads_k_stride": 1,
         "moe_config": None}


def qwen2(folder, numbers, kind, more):
    """nanotron's step, and the model of transformers that it is to become."""
    peer = transformers()
    config = {**QWEN2, **numbers}
    own = {key: config[key] for key in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
        "max_position_embeddings", "pad_token_id", "tie_word_embeddings")}
    own["rope_parameters"] = {"rope_type": "default",
                              "rope_theta": config["rope_theta"]}
    want = getattr(peer, kind + "ForCausalLM")(
        getattr(peer, kind + "Config")(**{**own, **more}))
    written(folder / "nanotron", want, config, config["tie_word_embeddings"])
    return folder / "nanotron", want


def test_qwen2(folder, numbers, kind, more):
    """A Qwen2 becomes the model of transformers that computes the same."""
    source, want = qwen2(folder, numbers, kind, more)
    check_model(source, folder / "out", want, "rope_interleaved" in numbers)


def test_qwen2_stays(folder, numbers):
    """What is not known to be computed alike."""
    source, _ = qwen2(folder, numbers, "Qwen2", {})
    check_stays(folder, source, (
        ({"sliding_window_size": 20}, "sliding_window_size"),
        ({"moe_config": {"num_experts": 8, "layers": [0]}}, "moe_config"),
        ({"flex_attention_mask": "document"}, "flex_attention_mask"),
        ({"new": 1}, "new"), ({"_use_qkv_packed": None}, "_use_qkv_packed"),
        ({"rope_interleaved": None}, "rope_interleaved"),
        ({"attention_bias": False}, "3 of 3 layers"),
        ({"attention_bias": None}, "attention_bias"),
        ({"no_rope_layer": 3}, "SmolLM3"),
        ({"no_rope_layer": 0}, "no_rope_layer"),
        ({"no_rope_layer": 2}, "no_rope_layer"),
        ({"rope_seq_len_interpolation_factor": 0}, "interpolation"),
        ({"is_qwen2_config": None}, "another model")))


def test_beside(folder, numbers):
    """A config.json beside the step says the same, or is refused."""
    source, want = qwen2(folder, numbers, "SmolLM3",
                         {"no_rope_layer_interval": 3})
    said = json.loads(want.config.to_json_string())
    for change, word in (({"model_type": "llama"}, "smollm3"),
                         ({"rms_norm_eps": 1e-6}, "rms_norm_eps"),
                         ({"num_key_value_heads": 6}, "num_key_value_heads"),
                         ({"rope_parameters": {"rope_theta": 500000.0}},
                          "rope_theta"),
                         ({"rope_parameters": {"rope_type": "llama3"}},
                          "rope_type"),
                         ({"use_sliding_window": True}, "use_sliding_window"),
                         ({"no_rope_layers": [1, 1, 1]}, "no_rope_layers"),
                         ({}, "")):
        (source / "config.json").write_text(json.dumps({**said, **change}))
        done = CKPT.run("convert", source, folder / "out", "--to",
                        "safetensors", "--dialect", "hf")
        done.want(5 if change else 0)
        check(word in done.err, f"{change}: {done}")
    check_equal(json.loads((folder / "out/config.json").read_text()), said,
                "config.json")


def test_starcoder2(folder):
    """Names of nanotron's other models stay, and that is said."""
    import torch
    from safetensors.torch import save_file

    layer = "model.decoder.0.pp_block."
    source = folder / "nanotron"
    source.mkdir()
    save_file({f"{layer}attn.query_key_value.weight": torch.ones(8, 4),
               f"{layer}attn.query_key_value.bias": torch.ones(8),
               f"{layer}attn.dense.weight": torch.ones(4, 4),
               f"{layer}ln_1.weight": torch.ones(4),
               f"{layer}ff.c_fc.weight": torch.ones(8, 4)},
              source / "model.safetensors")
    (source / "model_config.json").write_text(json.dumps(
        {"is_starcoder2_config": True, "hidden_size": 4}))
    check_stays(folder, source, (({}, "another model"),))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    llama = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 20,
             "num_hidden_layers": 3, "num_attention_heads": 6,
             "num_key_value_heads": 2}
    for more in ({}, {"rope_interleaved": False, "rope_theta": 500.0,
                      "tie_word_embeddings": True}):
        suite.add(f"llama {' '.join(more)}".strip(), test_llama,
                  {**llama, **more})
    for kind, more, its in (
            ("Qwen2", {"attention_bias": True}, {}),
            ("Qwen2", {"attention_bias": True, "rope_interleaved": True,
                       "rope_theta": 500.0}, {}),
            ("SmolLM3", {"no_rope_layer": 3, "rope_interleaved": True,
                         "tie_word_embeddings": True},
             {"no_rope_layer_interval": 3}),
            ("Llama", {"rope_seq_len_interpolation_factor": 4.0},
             {"rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                  "rope_theta": 10000.0}})):
        suite.add(f"qwen2 as {kind}: {' '.join(more)}", test_qwen2,
                  {**llama, **more}, kind, its)
    suite.add("qwen2 stays", test_qwen2_stays,
              {**llama, "attention_bias": True})
    suite.add("qwen2 and config.json", test_beside,
              {**llama, "no_rope_layer": 3})
    suite.add("starcoder2", test_starcoder2)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
