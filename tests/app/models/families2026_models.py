# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers, one for each model type that this year's hubs
have: every parameter is random, so that none passes for another.
"""

import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
HEAD = dict(head_dim=8)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
              n_shared_experts=1, n_group=1, topk_group=1)
MLA = dict(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8,
           qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
INDEXER = dict(index_topk=8, index_head_dim=8, index_n_heads=2,
               first_k_dense_replace=1)
# Not what the older classes call their sizes.
GPT = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_inner=48,
           n_positions=64, bos_token_id=1, eos_token_id=2)
STACKED = dict(num_local_experts=4, num_experts_per_tok=2)
GRANITE = dict(embedding_multiplier=12.0, attention_multiplier=0.125,
               residual_multiplier=0.25, logits_scaling=8.0)
DEEP = dict(num_hidden_layers=4)
NOT_LLAMA = dict(intermediate_size=None, num_key_value_heads=None)

MIXED = dict(HEAD, global_head_dim=16, sliding_window=4, num_hidden_layers=6)
KEYS = dict(attention_k_eq_v=True, num_global_key_value_heads=1,
            hidden_size_per_layer_input=0)

# What a type's tiny model has beside BASE (GPT, where n_embd is its width).
TYPES = {
    # like Llama
    "ministral3": HEAD, "ministral": dict(HEAD, sliding_window=4),
    "granite": GRANITE,
    "granitemoe": dict(STACKED, **GRANITE),
    "granitemoeshared": dict(STACKED, **GRANITE, shared_intermediate_size=16),
    "smollm3": DEEP, "seed_oss": HEAD,
    "exaone4": dict(DEEP, sliding_window=4),
    "cohere": dict(logit_scale=0.5), "cohere2": dict(DEEP, sliding_window=4),
    "glm": HEAD, "glm4": HEAD,
    "stablelm": dict(use_qkv_bias=True),
    "apertus": {}, "nemotron": {}, "arcee": {}, "jais2": {}, "helium": HEAD,
    "ernie4_5": HEAD, "hunyuan_v1_dense": HEAD, "phi": {}, "phimoe": STACKED,
    "opt": dict(NOT_LLAMA, ffn_dim=48, word_embed_proj_dim=32),
    "bloom": dict(NOT_LLAMA, n_head=4, n_layer=2, num_hidden_layers=None,
                  num_attention_heads=None, max_position_embeddings=None),
    "gpt_neox": dict(num_key_value_heads=None),
    "gptj": dict(GPT, rotary_dim=4), "gpt_bigcode": GPT,
    "cwm": dict(HEAD, num_hidden_layers=4, sliding_window=4),
    "persimmon": dict(num_key_value_heads=None),  # it has no such key
    # mixtures
    "glm4_moe": dict(HEAD, **ROUTED, first_k_dense_replace=1, use_qk_norm=True),
    "exaone_moe": dict(HEAD, **DEEP, num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=8, sliding_window=4),
    "hy_v3": dict(HEAD, num_experts=4, num_experts_per_tok=2,
                  moe_intermediate_size=8),
    "dots1": dict(ROUTED, first_k_dense_replace=1, norm_topk_prob=True),
    "solar_open": dict(HEAD, **ROUTED),
    "minimax_m2": dict(HEAD, **STACKED),
    "ernie4_5_moe": dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=8,
                         moe_num_shared_experts=1, moe_layer_start_index=1),
    "hunyuan_v1_moe": dict(HEAD, num_experts=4, moe_topk=2),
    "llama4_text": dict(HEAD, num_local_experts=4, num_experts_per_tok=1,
                        interleave_moe_layer_step=2, intermediate_size_mlp=40,
                        num_hidden_layers=4),
    "gpt_oss": dict(HEAD, **STACKED, sliding_window=4),
    # latent attention; an epsilon that GPTModel has inside it, too
    "glm4_moe_lite": dict(MLA, **ROUTED, rms_norm_eps=1e-6),
    "glm_moe_dsa": dict(MLA, **ROUTED, **INDEXER, rms_norm_eps=1e-6),
    # It has as many experts as both keys say.
    "deepseek_v32": dict(MLA, **ROUTED, **INDEXER, num_experts=4),
    "youtu": MLA,
}
# Models whose layers are not alike: not every suite is for them. The type is
# the name before the comma.
VARIANTS = {
    # embeddings by layer, and layers that share keys
    "gemma4_text": dict(
        MIXED, num_kv_shared_layers=2, use_double_wide_mlp=True,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=64,
        layer_types=["sliding_attention", "full_attention"] * 3),
    "gemma4_text, keys are values": dict(
        MIXED, **KEYS, final_logit_softcapping=20.0),
    "gemma4_text, experts": dict(
        MIXED, **KEYS, enable_moe_block=True, num_experts=4, top_k_experts=2,
        moe_intermediate_size=8, use_bidirectional_attention="vision"),
}

# What Megatron's GPTModel has no argument for: the args hold it for the way
# back, and the conversion must be asked for (--allow-unsaid).
UNSAID = {
    "ministral3": ["rope_llama4_beta"],
    "granite": ["config.embedding_multiplier", "config.logits_scaling",
                "config.residual_multiplier"],
    "cohere": ["parallel_residual", "config.logit_scale"],
    "cohere2": ["parallel_residual", "config.logit_scale"],
    "phi": ["parallel_residual"], "gpt_neox": ["parallel_residual"],
    "bloom": ["positions", "embedding_norm"], "gptj": ["parallel_residual"],
    "falcon": ["parallel_residual", "two_norms"],
    "phimoe": ["router"], "apertus": ["activation"],
    "hunyuan_v1_dense": ["qk_norm"], "hunyuan_v1_moe": ["qk_norm"],
    "llama4_text": ["config.attention_chunk_size",
                    "config.attn_temperature_tuning"],
    "glm4": ["norm_placement"], "ernie4_5_moe": ["expert_bias"],
}
UNSAID["granitemoe"] = UNSAID["granitemoeshared"] = UNSAID["granite"]


def config_of(model_type, **changes):
    own = {**TYPES, **VARIANTS}[model_type]
    base = {} if "n_embd" in own else BASE
    keys = {**base, **own, **changes}
    return AutoConfig.for_model(
        model_type.split(",")[0], **{k: v for k, v in keys.items() if v is not None})


def with_weights(model, seed):
    """The model with every weight random, the same for each seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if value.is_floating_point() and "inv_freq" not in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return model


def model_of(config, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    return with_weights(model, seed)


def logits_of(model):
    tokens = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        return model.eval()(tokens, use_cache=False).logits
