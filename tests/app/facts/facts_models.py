# SPDX-License-Identifier: Apache-2.0
"""Tiny transformers models for the tests of facts, with every parameter random,
so that whatever changes a model's function shows in its logits.
"""

import copy
import warnings

import torch
import transformers
from families2026_models import TYPES, UNSAID  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, attn_implementation="eager")
MLA = dict(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8,
           qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
           moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=1,
           num_experts_per_tok=4, first_k_dense_replace=1, head_dim=4)
GPT2 = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64,
            bos_token_id=1, eos_token_id=2, attn_implementation="eager")
HEAD = dict(head_dim=8)

# What each family's tiny model has beside BASE.
FAMILIES = {
    "llama": HEAD,
    "qwen2": dict(sliding_window=4, max_window_layers=1),
    "qwen3": dict(HEAD, sliding_window=4, max_window_layers=1),
    "mistral": dict(HEAD, sliding_window=None),
    "mixtral": dict(num_local_experts=4),
    "qwen2_moe": dict(moe_intermediate_size=8, num_experts=4,
                      num_experts_per_tok=2, shared_expert_intermediate_size=20),
    "qwen3_moe": dict(HEAD, sliding_window=4, moe_intermediate_size=8, num_experts=4,
                      num_experts_per_tok=2),
    "deepseek_v2": dict(MLA, topk_method="greedy", n_group=1, topk_group=1),
    "deepseek_v3": dict(MLA, n_group=4, topk_group=2),
    "gemma": HEAD,
    "gemma2": dict(HEAD, sliding_window=6),
    "gemma3_text": dict(HEAD, sliding_window=6),
    "gpt2": GPT2,
    "gpt_neox": dict(use_parallel_residual=False),
    "olmo": {},
    "olmo2": {},
    "olmo3": dict(sliding_window=6, num_hidden_layers=4),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2),
    "phi3": {},
    "starcoder2": {},
    "falcon": dict(new_decoder_architecture=True, num_kv_heads=2),
    **TYPES,
}

YARN = {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 16}
# Other valid values, by field; a callable has the model's own.
VALUES = {
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
         "low_freq_factor": 2.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
        dict(YARN, rope_theta=10000.0),
        dict(YARN, rope_theta=10000.0, beta_fast=16.0, attention_factor=1.5),
        dict(YARN, rope_theta=10000.0, mscale=0.7, mscale_all_dim=0.5),
        {"rope_type": "default", "rope_theta": 10000.0,
         "partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 10000.0,
         "partial_rotary_factor": 1.0},
    ],
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu", "silu"],
    "hidden_activation": ["gelu", "silu"],
    "activation_function": ["gelu", "relu"],
    "layer_types": [["full_attention"], ["sliding_attention"],
                    ["full_attention", "sliding_attention"]],
    "sliding_window": [4, None],
    "use_sliding_window": [True],
    "clip_qkv": [0.05],
    "query_pre_attn_scalar": [64],
    "attn_logit_softcapping": [0.05, None],
    "final_logit_softcapping": [0.05, None],
    "routed_scaling_factor": [3.0],
    "n_group": [2], "topk_group": [1],
    "topk_method": ["group_limited_greedy"],
    "scale_attn_weights": [False],
    "head_dim": [16],
    "num_key_value_heads": [1, 4],
    "q_lora_rank": [None],
    "rms_norm_eps": [0.1], "layer_norm_eps": [0.1], "norm_epsilon": [0.1],
    "layer_norm_epsilon": [0.1],
    "mlp_only_layers": [[0]], "decoder_sparse_step": [2],
    "max_window_layers": [1],
    "first_k_dense_replace": [0],
    "num_experts_per_tok": [1, 3],
    "use_bidirectional_attention": [True],
    "n_inner": [40],
    "_sliding_window_pattern": [2],
    "activation": ["relu", "gelu_pytorch_tanh"],
    "num_ln_in_parallel_attn": [1], "num_kv_heads": [1, 4],
}
SKIP = {"vocab_size", "max_position_embeddings", "n_positions"}


def config_of(family, **changes):
    own = FAMILIES[family]
    base = {} if "n_embd" in own else dict(BASE)
    # What fairseq2's code has.
    if family in ("llama", "mistral"):
        base["rms_norm_eps"] = 1e-5
    keys = {**base, **own, "attn_implementation": "eager"}
    if family == "bloom":  # its sizes have their own names
        keys = {k: v for k, v in keys.items() if v is not None}
    # Some classes write into what they are given.
    return AutoConfig.for_model(family, **copy.deepcopy({**keys, **changes}))


def values_for(config, field):
    return values_of(config, field)


def values_of(config, field):
    """Other values that the field may have."""
    now = getattr(config, field)
    if field in SKIP:
        return []
    if field == "rope_parameters":
        return [v for v in ropes_for(now) if v != now]
    if field in VALUES:
        values = [copy.deepcopy(v) for v in VALUES[field]]
        if field == "layer_types":  # one for each
            values = [(v * config.num_hidden_layers)[:config.num_hidden_layers]
                      for v in values]
        return [v for v in values if v != now]
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        return [now * 2] if now else [1]
    if isinstance(now, float):
        return [now * 3] if now else [0.25]
    return []


def ropes_for(now):
    """Rotary parameters in the form that the model has: by layer type, and with
    what the class requires."""
    now = now or {}
    if "full_attention" in now:
        local = now["sliding_attention"]
        return [dict(now, full_attention=v) for v in VALUES["rope_parameters"]
                ] + [dict(now, sliding_attention=dict(local, rope_theta=500.0))]
    needed = {k: now[k] for k in ("mrope_section", "llama_4_scaling_beta")
              if k in now}
    values = [{**needed, **v} for v in VALUES["rope_parameters"]]
    # By type of layer, which few classes read.
    values.append(dict(full_attention=dict(rope_theta=500.0),
                       sliding_attention=dict(rope_theta=300.0)))
    if "mrope_section" in now:
        first, *rest = now["mrope_section"]
        values.append(dict(now, mrope_section=[first + sum(rest), 0, 0]))
    return values


def fields_of(family):
    config = config_of(family)
    general = set(transformers.PretrainedConfig().to_dict())
    return sorted(k for k in config.to_dict()
                  if (k not in general or k == "tie_word_embeddings")
                  and not k.endswith("_token_id"))


def model_of(config, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if not value.is_floating_point() or "inv_freq" in name:
                continue
            scale = 0.5 if "norm" in name or "ln_" in name else 0.3
            value.copy_(torch.randn(value.shape, generator=generator) * scale)
    return model


def logits_of(model):
    tokens = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def logits_at(path):
    model = AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32).eval()
    return logits_of(model)
