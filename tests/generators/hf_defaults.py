# SPDX-License-Identifier: Apache-2.0
"""Writes models/families/hf_defaults.json: what transformers takes for a key
that a config.json does not have, for each model type.

    python tests/generators/hf_defaults.py > models/families/hf_defaults.json

Needs transformers 5.12.1. tests/app/facts/facts_test.py holds the file against the
installed classes.
"""

import importlib
import json
import sys

from transformers import CONFIG_MAPPING, PretrainedConfig

TYPES = ("llama qwen2 qwen3 mistral mixtral qwen2_moe qwen3_moe deepseek_v2 "
         "deepseek_v3 gemma gemma2 gemma3_text gpt2 gpt_neox olmo olmo2 olmo3 "
         "olmoe phi3 starcoder2 falcon ministral3 ministral granite granitemoe "
         "granitemoeshared smollm3 seed_oss exaone4 cohere cohere2 glm glm4 "
         "stablelm apertus nemotron arcee jais2 helium ernie4_5 "
         "hunyuan_v1_dense phi phimoe gptj gpt_bigcode glm4_moe dots1 "
         "solar_open minimax_m2 ernie4_5_moe hunyuan_v1_moe llama4_text "
         "gpt_oss glm4_moe_lite glm_moe_dsa deepseek_v32 youtu qwen2_vl_text "
         "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text "
         "glm4v_moe_text flex_olmo qwen3_next qwen3_5_text qwen3_5_moe_text "
         "nemotron_h mamba2 bamba granitemoehybrid falcon_h1 cwm persimmon "
         "exaone_moe hy_v3 opt bloom megatron-bert t5 mt5 gemma4_text").split()
# Lists that follow from other keys, as T5's last three do, and what no model is
# without.
DERIVED = ["layer_types", "layers_block_type", "mtp_layers_block_type",
           "mlp_only_layers", "transformers_version", "architectures",
           "scale_decoder_outputs", "dense_act_fn", "is_gated_act"]


def theta(config):
    """Rope base and fraction of a class, in the spelling of its v4; and the
    scaling that it has where a config.json has neither rope_parameters nor
    rope_scaling."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    scaled = rope if rope.get("rope_type", "default") != "default" else {}
    return {**scaled, "rope_theta": rope.get("rope_theta", 10000.0),
            "partial_rotary_factor": rope.get("partial_rotary_factor")}


def reads_fraction(config_class):
    """Whether the class turns only a part of each head where positions are not
    scaled: what its own code makes of the key. (What scales them is common to all
    classes, and reads it.)"""
    module = importlib.import_module(
        config_class.__module__.replace("configuration_", "modeling_"))
    turning = [one for name, one in vars(module).items()
               if name.endswith("RotaryEmbedding") and "Vision" not in name
               and hasattr(one, "compute_default_rope_parameters")]
    counts = set()
    for fraction in (1.0, 0.5):
        config = config_class()
        rope = {"rope_type": "default", "rope_theta": 10000.0,
                "partial_rotary_factor": fraction}
        layers = "full_attention" in (config.rope_parameters or {})
        config.rope_parameters = {"full_attention": rope} if layers else rope
        for one in turning:
            kwargs = {"layer_type": "full_attention"} if layers else {}
            angles, _ = one.compute_default_rope_parameters(config, **kwargs)
            counts.add((one.__name__, len(angles)))
    return len(counts) > len(turning)


def as_saved(value):
    """As save_pretrained has it: JSON knows no infinity."""
    if isinstance(value, (list, tuple)):
        return [as_saved(item) for item in value]
    if value == float("inf"):
        return {"__float__": "Infinity"}
    return value


def changed(config_class, config):
    """Keys whose default follows from others: heads of keys from heads, a list
    by layer from the layers. They have none of their own."""
    follow = set()
    for key, value in config.items():
        if type(value) is not int or key.endswith("_token_id"):
            continue
        try:
            other = config_class(**{key: value * 2}).to_dict()
        except Exception:  # the class has no such model
            continue
        follow.update(k for k in config if k not in (key, "rope_parameters")
                      and other.get(k) != config[k])
    return follow


def defaults():
    general = set(PretrainedConfig().to_dict())
    table = {}
    for name in TYPES:
        config_class = CONFIG_MAPPING[name]
        config = config_class().to_dict()
        config.update(dict.fromkeys(changed(config_class, config)))
        if "use_sliding_window" in config:  # else it is none
            config["sliding_window"] = config_class(
                use_sliding_window=True).sliding_window
        own = {key: as_saved(value) for key, value in config.items()
               if (key not in general or key == "tie_word_embeddings")
               and key not in DERIVED and key != "rope_parameters"}
        own["rope"] = theta(config)
        # Bamba's class sets a part for older versions, whatever its code reads.
        part = own["rope"]["partial_rotary_factor"] or 1
        if hasattr(config_class(), "rope_parameters") and part == 1:
            own["rope"]["reads_fraction"] = reads_fraction(config_class)
        if "layer_types" in config:
            own["layer_types"] = None
        table[name] = own
    return table


def main():
    text = ["{"]
    rows = sorted(defaults().items())
    for at, (name, row) in enumerate(rows):
        text.append(f'  "{name}": ' + json.dumps(row, sort_keys=True) +
                    ("," if at + 1 < len(rows) else ""))
    sys.stdout.write("\n".join(text + ["}"]) + "\n")


if __name__ == "__main__":
    main()
