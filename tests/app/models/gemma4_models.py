# SPDX-License-Identifier: Apache-2.0
"""What Megatron-Bridge 0.6.2 makes of a Gemma 4: each parameter of its model,
from transformers' tensors, computed here with torch.
"""

import torch

# Where an MLP's and the embeddings' parts are, whatever kind of layer it is.
WHOLE = {"embed_tokens.weight": "embedding.word_embeddings.weight",
         "norm.weight": "decoder.final_layernorm.weight",
         "embed_tokens_per_layer.weight": "per_layer_embedding.weight",
         "per_layer_model_projection.weight": "per_layer_model_proj.weight",
         "per_layer_projection_norm.weight": "per_layer_proj_norm.weight"}
LAYER = {"self_attn.q_norm.weight": "{att}.q_layernorm.weight",
         "self_attn.k_norm.weight": "{att}.k_layernorm.weight",
         "self_attn.o_proj.weight": "{att}.linear_proj.weight",
         "layer_scalar": "layer_scalar"}
SMALL = {"input_layernorm.weight": "input_layernorm.weight",
         "post_attention_layernorm.weight": "post_self_attn_layernorm.weight",
         "pre_feedforward_layernorm.weight": "pre_mlp_layernorm.weight",
         "post_feedforward_layernorm.weight": "post_mlp_layernorm.weight",
         "mlp.down_proj.weight": "mlp.linear_fc2.weight",
         "per_layer_input_gate.weight": "per_layer_input_gate.weight",
         "per_layer_projection.weight": "per_layer_projection.weight",
         "post_per_layer_input_norm.weight": "post_per_layer_input_norm.weight"}
ROUTED = {"input_layernorm.weight": "{att}.linear_qkv.layer_norm_weight",
          "post_attention_layernorm.weight":
              "{att}.linear_proj.post_layernorm.weight",
          "pre_feedforward_layernorm.weight":
              "pre_shared_expert_layernorm.weight",
          "pre_feedforward_layernorm_2.weight": "pre_mlp_layernorm.weight",
          "post_feedforward_layernorm.weight": "post_ffn_layernorm.weight",
          "post_feedforward_layernorm_1.weight":
              "mlp.post_shared_expert_layernorm.weight",
          "post_feedforward_layernorm_2.weight":
              "mlp.post_moe_layernorm.weight",
          "mlp.down_proj.weight": "mlp.shared_experts.linear_fc2.weight",
          "router.proj.weight": "mlp.router.weight",
          "router.scale": "mlp.router.scale",
          "router.per_expert_scale": "mlp.router.per_expert_scale",
          "experts.gate_up_proj": "mlp.experts.experts.linear_fc1.weight",
          "experts.down_proj": "mlp.experts.experts.linear_fc2.weight"}


def in_groups(q, k, v, groups, size):
    """A group's query heads, its key, its value, then the next group's."""
    parts = [x.reshape(groups, -1, size, x.shape[-1]) for x in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, q.shape[-1])


def bridge_of(config, hf):
    """`hf` by the names of Gemma4ForCausalLM, without `model.`."""
    made = {to: hf[name] for name, to in WHOLE.items() if name in hf}
    shared = config.num_hidden_layers - config.num_kv_shared_layers
    for layer, kind in enumerate(config.layer_types):
        full = kind == "full_attention"
        att = "self_attention_" + ("global" if full else "sliding")
        there, mine = f"decoder.layers.{layer}.", f"layers.{layer}."
        names = {**LAYER, **(ROUTED if config.enable_moe_block else SMALL)}
        for name, to in names.items():
            if mine + name in hf:
                made[there + to.format(att=att)] = hf[mine + name]
        size = config.global_head_dim if full else config.head_dim
        groups = config.num_key_value_heads
        if full and config.attention_k_eq_v:
            groups = config.num_global_key_value_heads
        q = hf[mine + "self_attn.q_proj.weight"]
        if layer >= shared:  # nobody reads them
            k = v = torch.zeros(groups * size, q.shape[1])
            made[f"{there}{att}.k_layernorm.weight"] = torch.ones(size)
        else:
            k = hf[mine + "self_attn.k_proj.weight"]
            v = hf.get(mine + "self_attn.v_proj.weight", k)
        made[f"{there}{att}.linear_qkv.weight"] = in_groups(q, k, v, groups,
                                                            size)
        fc1 = ("mlp.shared_experts." if config.enable_moe_block
               else "mlp.") + "linear_fc1.weight"
        made[there + fc1] = torch.cat(
            [hf[f"{mine}mlp.{half}_proj.weight"] for half in ("gate", "up")])
    return made
