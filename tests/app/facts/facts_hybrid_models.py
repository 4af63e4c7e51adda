# SPDX-License-Identifier: Apache-2.0
"""Tiny hybrid models for the tests of facts, like facts_models.py: gated delta
nets and state space mixers.
"""

import copy

import torch
import transformers
from facts_models import ropes_for, values_of
from hybrid_models import (  # noqa: F401
    TYPES, UNSAID, config_of, logits_of, model_of)
from transformers import AutoModelForCausalLM

FAMILIES = TYPES
# Other valid values, by field; where a type is named, for that type.
OWN = {
    "hybrid_override_pattern": ["MM*-M", "*MEM-"],
    "layers_block_type": None,
    "nemotron_h.layer_types": None,
    "qwen3.layer_types": [["full_attention", "linear_attention"] * 2],
    "granitemoehybrid.layer_types": [["attention", "mamba", "attention"]],
    "attn_layer_indices": [[0, 2]],
    "time_step_limit": [[0.0, 0.05], [0.4, float("inf")]],
    "mamba_hidden_act": ["gelu", "relu"],
    "mlp_hidden_act": ["relu", "silu", "gelu"],
    "mlp_multipliers": [[1.0, 1.0], [0.5, 1.0]],
    "ssm_multipliers": [[1.0] * 5, [2.0, 0.5, 1.5, 0.75, 1.25]],
    "mamba_d_conv": [3], "conv_kernel": [3], "linear_conv_kernel_dim": [3],
    "position_embedding_type": ["rope"],
    "mlp_only_layers": [[1]], "decoder_sparse_step": [2],
    "full_attention_interval": [2],
}
GENERAL = set(transformers.PretrainedConfig().to_dict())


def fields_of(name):
    return sorted(k for k in config_of(name).to_dict()
                  if (k not in GENERAL or k == "tie_word_embeddings")
                  and not k.endswith("_token_id"))


def values_for(config, field):
    now = getattr(config, field, None)
    kind = config.model_type
    for key, values in OWN.items():
        of_type, _, name = key.rpartition(".")
        if name == field and kind.startswith(of_type):
            return [v for v in copy.deepcopy(values or []) if v != now]
    if field == "rope_parameters":  # a partial one stays partial
        part = (now or {}).get("partial_rotary_factor")
        values = [{**({"partial_rotary_factor": part} if part else {}), **v}
                  for v in ropes_for(None)]
        return [v for v in values if v != now]
    return values_of(config, field)



def logits_at(path):
    return logits_of(AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32))
