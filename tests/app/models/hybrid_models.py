# SPDX-License-Identifier: Apache-2.0
"""Tiny transformers models whose fused projections have parts of different
sizes, and what each Megatron rank holds of them.

The cuts follow what the modules compute (transformers 5.12.1 on one side,
Megatron-Core 0.16.1 on the other), not ckpt's rules.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from families2026_models import BASE, with_weights

DELTA = dict(num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
             head_dim=8, linear_num_key_heads=4, linear_num_value_heads=8,
             linear_key_head_dim=6, linear_value_head_dim=5)
ROUTED = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
              shared_expert_intermediate_size=16)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=4, mamba_d_state=6)
TYPES = {
    "nemotron_h": dict(
        hybrid_override_pattern="M*-ME", mamba_num_heads=8, mamba_head_dim=8,
        n_groups=4, ssm_state_size=6, head_dim=8, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=8, num_attention_heads=8,
        num_key_value_heads=4, moe_shared_expert_intermediate_size=16),
    "mamba2": dict(num_heads=8, head_dim=8, n_groups=4, state_size=6),
    "bamba": dict(MAMBA, num_hidden_layers=4, attn_layer_indices=[1, 3],
                  num_attention_heads=8, num_key_value_heads=4),
    "falcon_h1": dict(
        MAMBA, mamba_d_ssm=64, num_attention_heads=8, num_key_value_heads=4,
        head_dim=8, mlp_multipliers=[0.5, 2.0], key_multiplier=0.5,
        ssm_multipliers=[0.5, 2.0, 1.5, 0.75, 1.25], lm_head_multiplier=0.5,
        embedding_multiplier=3.0, attention_out_multiplier=0.75,
        ssm_in_multiplier=1.25, ssm_out_multiplier=0.75),
    "granitemoehybrid": dict(
        MAMBA, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
        num_local_experts=4, num_experts_per_tok=2, num_attention_heads=8,
        num_key_value_heads=4, shared_intermediate_size=16,
        embedding_multiplier=12.0, attention_multiplier=0.25,
        residual_multiplier=0.25, logits_scaling=8.0),
    "qwen3_next": dict(DELTA, **ROUTED),
    "qwen3_5_moe_text": dict(DELTA, **ROUTED),
    "qwen3_5_text": DELTA,
}
# What Megatron's HybridModel has no argument for.
UNSAID = {
    "mamba2": ["ssm_norm_groups"], "bamba": ["ssm_norm_groups"],
    "falcon_h1": ["parallel_mixer", "config.mlp_multipliers",
                  "config.key_multiplier", "config.ssm_multipliers",
                  "config.lm_head_multiplier", "config.embedding_multiplier",
                  "config.attention_out_multiplier",
                  "config.ssm_in_multiplier", "config.ssm_out_multiplier"],
    "granitemoehybrid": ["ssm_norm_groups", "ssm_norm_epsilon",
                         "config.embedding_multiplier",
                         "config.logits_scaling", "config.residual_multiplier"],
}


def config_of(model_type, **changes):
    base = dict(BASE)
    if model_type == "mamba2":  # has no attention and no MLP
        for key in ("intermediate_size", "num_attention_heads",
                    "num_key_value_heads", "max_position_embeddings"):
            del base[key]
    return AutoConfig.for_model(model_type,
                                **{**base, **TYPES[model_type], **changes})


def model_of(config, seed=0):
    torch.manual_seed(seed)
    model = with_weights(
        AutoModelForCausalLM.from_config(config).float().eval(), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            # Megatron keeps w - 1: exact where w is near 1, as norms are.
            if name.endswith("linear_attn.norm.weight"):
                value.copy_(0.75 + torch.rand(value.shape, generator=generator))
    return model


def mtp_of(config, saved, seed=5):
    """What a checkpoint has beside the model to predict one more token: a layer
    with attention and more, which transformers doesn't load."""
    layer = max(i for i, kind in enumerate(config.layer_types)
                if kind == "full_attention")
    prefix = f"model.layers.{layer}."
    tensors = {"mtp.layers.0." + name[len(prefix):]: value + 1
               for name, value in saved.items() if name.startswith(prefix)}
    width = config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    for name, shape in (("fc", (width, 2 * width)), ("norm", (width,)),
                        ("pre_fc_norm_embedding", (width,)),
                        ("pre_fc_norm_hidden", (width,))):
        tensors[f"mtp.{name}.weight"] = torch.randn(shape, generator=generator)
    return tensors


def shares(tensor, count):
    """Equal runs of rows, one per rank."""
    return tensor.chunk(count)


def delta_net(config, state, prefix, tp):
    """What each rank's GatedDeltaNet holds, by parameter."""
    nk, nv = config.linear_num_key_heads, config.linear_num_value_heads
    dk, dv = config.linear_key_head_dim, config.linear_value_head_dim
    per = nv // nk
    if prefix + "in_proj_qkvz.weight" in state:
        # Each key head: its query, its key, its values, their gates.
        parts = {"query": [], "key": [], "value": [], "z": [], "beta": [],
                 "alpha": []}
        for head in state[prefix + "in_proj_qkvz.weight"].chunk(nk):
            for name, rows in zip(("query", "key", "value", "z"), head.split(
                    [dk, dk, per * dv, per * dv])):
                parts[name].append(rows)
        for head in state[prefix + "in_proj_ba.weight"].chunk(nk):
            parts["beta"].append(head[:per])
            parts["alpha"].append(head[per:])
        parts = {name: torch.cat(rows) for name, rows in parts.items()}
    else:
        query, key, value = state[prefix + "in_proj_qkv.weight"].split(
            [nk * dk, nk * dk, nv * dv])
        parts = {"query": query, "key": key, "value": value,
                 "z": state[prefix + "in_proj_z.weight"],
                 "beta": state[prefix + "in_proj_b.weight"],
                 "alpha": state[prefix + "in_proj_a.weight"]}
    conv = dict(zip(("query", "key", "value"), state[
        prefix + "conv1d.weight"].split([nk * dk, nk * dk, nv * dv])))
    return [{
        "in_proj.weight": torch.cat([shares(p, tp)[r] for p in parts.values()]),
        "conv1d.weight": torch.cat([shares(p, tp)[r] for p in conv.values()]),
        "A_log": shares(state[prefix + "A_log"], tp)[r],
        "dt_bias": shares(state[prefix + "dt_bias"], tp)[r],
        "out_norm.weight": state[prefix + "norm.weight"] - 1,
        "out_proj.weight": state[prefix + "out_proj.weight"].chunk(tp, 1)[r],
    } for r in range(tp)]


def gated_attention(config, state, prefix, tp):
    """Rows of linear_qkv: in each group the queries, their gates, k and v."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size, each = config.head_dim, heads // groups
    q = state[prefix + "q_proj.weight"].unflatten(0, (heads, 2, size))
    k = state[prefix + "k_proj.weight"].unflatten(0, (groups, size))
    v = state[prefix + "v_proj.weight"].unflatten(0, (groups, size))
    rows = []
    for g in range(groups):
        mine = q[g * each:(g + 1) * each]
        rows += [mine[:, 0].flatten(0, 1), mine[:, 1].flatten(0, 1), k[g], v[g]]
    return [{"linear_qkv.weight": part}
            for part in torch.cat(rows).chunk(tp)]


def mamba(numbers, state, prefix, tp):
    """What each rank's MambaMixer holds, by parameter."""
    inner = numbers["mamba_num_heads"] * numbers["mamba_head_dim"]
    states = numbers["mamba_num_groups"] * numbers["mamba_state_dim"]
    heads = numbers["mamba_num_heads"]
    sizes = [inner, inner, states, states, heads]

    def mixed(name, sizes, rank):
        parts = state[prefix + name].split(sizes)
        return torch.cat([shares(part, tp)[rank] for part in parts])

    return [{
        "in_proj.weight": mixed("in_proj.weight", sizes, r),
        "conv1d.weight": mixed("conv1d.weight", sizes[1:4], r),
        "conv1d.bias": mixed("conv1d.bias", sizes[1:4], r),
        "out_proj.weight": state[prefix + "out_proj.weight"].chunk(tp, 1)[r],
        **{name: shares(state[prefix + name], tp)[r]
           for name in ("A_log", "D", "dt_bias", "norm.weight")
           if prefix + name in state},
    } for r in range(tp)]


def delta_ranks(config, state, tp):
    ranks = [{} for _ in range(tp)]
    for layer, kind in enumerate(config.layer_types):
        there = f"decoder.layers.{layer}.self_attention."
        if kind == "linear_attention":
            found = delta_net(config, state,
                              f"model.layers.{layer}.linear_attn.", tp)
        else:
            found = gated_attention(config, state,
                                    f"model.layers.{layer}.self_attn.", tp)
        for rank, parts in zip(ranks, found):
            rank.update({there + name: value for name, value in parts.items()})
    return ranks


def mixers_of(config):
    """(Megatron's layer, prefix in transformers' files) of each mixer."""
    if config.model_type == "mamba2":
        return [(l, f"backbone.layers.{l}.mixer.")
                for l in range(config.num_hidden_layers)]
    if config.model_type == "nemotron_h":
        return [(l, f"backbone.layers.{l}.mixer.")
                for l, kind in enumerate(config.layers_block_type)
                if kind == "mamba"]
    if config.model_type == "falcon_h1":
        return [(l, f"model.layers.{l}.mamba.")
                for l in range(config.num_hidden_layers)]
    kinds = getattr(config, "layer_types", None) or [
        "attention" if l in config.attn_layer_indices else "mamba"
        for l in range(config.num_hidden_layers)]
    return [(2 * l, f"model.layers.{l}.mamba.")
            for l, kind in enumerate(kinds) if kind == "mamba"]


def numbers_of(config):
    """Megatron's arguments for a mixer."""
    names = {"nemotron_h": ("mamba_num_heads", "mamba_head_dim", "n_groups",
                            "ssm_state_size"),
             "mamba2": ("num_heads", "head_dim", "n_groups", "state_size")}.get(
        config.model_type, ("mamba_n_heads", "mamba_d_head", "mamba_n_groups",
                            "mamba_d_state"))
    return dict(zip(("mamba_num_heads", "mamba_head_dim", "mamba_num_groups",
                     "mamba_state_dim"),
                    (getattr(config, name) for name in names)))


def ranks_of(config, state, tp):
    """By rank: parameter name in the module -> what the rank has of it."""
    if hasattr(config, "linear_num_key_heads"):
        return delta_ranks(config, state, tp)
    ranks = [{} for _ in range(tp)]
    # It has its own name in Megatron-Bridge's FalconH1Model.
    module = "mamba_mixer" if config.model_type == "falcon_h1" else "mixer"
    for layer, prefix in mixers_of(config):
        for rank, parts in zip(ranks, mamba(numbers_of(config), state, prefix,
                                            tp)):
            rank.update({f"decoder.layers.{layer}.{module}.{name}": value
                         for name, value in parts.items()})
    return ranks


def layer_of(config):
    """(kind, prefix, numbers) of the first such layer, for hybrid_peer.py."""
    if not hasattr(config, "linear_num_key_heads"):
        layer, _ = mixers_of(config)[0]
        return "mamba", f"decoder.layers.{layer}.mixer.", dict(
            hidden_size=config.hidden_size, **numbers_of(config))
    layer = config.layer_types.index("linear_attention")
    return "delta", f"decoder.layers.{layer}.self_attention.", dict(
        hidden_size=config.hidden_size, gated_linear_unit=True,
        linear_attention_freq=4,
        **{key: getattr(config, key) for key in (
            "linear_conv_kernel_dim", "linear_key_head_dim",
            "linear_value_head_dim", "linear_num_key_heads",
            "linear_num_value_heads")})


def logits_of(model):
    tokens = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        return model.eval()(tokens, use_cache=False).logits
