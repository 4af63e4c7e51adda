# SPDX-License-Identifier: Apache-2.0
"""Tables for facts_faults_test.py and facts_others_test.py: each row is a fault
that was once silent, by name.
"""

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0,
        "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 16}
THETA = {"rope_type": "default", "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}

# There and back, config.json kept or removed.
SURVIVE = {
    "scaled rope is lost in Meta's": (
        "llama", dict(rope_parameters=LLAMA3), "meta", True),
    "scaled rope is lost in fairseq2's": (
        "llama", dict(rope_parameters=LLAMA3), "fairseq2", True),
    "scaled rope is lost in Megatron's args": (
        "llama", dict(rope_parameters=LLAMA3), "megatron_torch_dist", False),
    "linear rope is lost in Megatron's args": (
        "llama", dict(rope_parameters=LINEAR), "megatron_torch_dist", False),
    "yarn is lost in Megatron's args": (
        "llama", dict(rope_parameters=YARN), "megatron_torch_dist", False),
    "gelu of a llama becomes silu": (
        "llama", dict(hidden_act="gelu_pytorch_tanh"), "megatron_torch_dist",
        True),
    "olmo3 becomes olmo2": ("olmo3", {}, "olmo_core", True),
    "olmo3 becomes olmo2 by way of Megatron": (
        "olmo3", {}, "megatron_torch_dist", True),
    "fairseq2's use_scaled_rope is lost": (
        "llama", dict(rope_parameters=LLAMA3), "fairseq2", False),
    "args leave out windows": (
        "mistral", dict(sliding_window=None), "megatron_torch_dist", False),
    "args leave out that there is a window": (
        "mistral", dict(sliding_window=4), "megatron_torch_dist", False),
    "args leave out n_group": (
        "deepseek_v3", dict(n_group=2), "megatron_torch_dist", False),
    "args leave out topk_group": (
        "deepseek_v3", dict(topk_group=1, num_experts_per_tok=2),
        "megatron_torch_dist", False),
    "args leave out routed_scaling_factor": (
        "deepseek_v3", dict(routed_scaling_factor=3.0), "megatron_torch_dist",
        False),
    "args leave out norm_topk_prob": (
        "qwen2_moe", dict(norm_topk_prob=True), "megatron_torch_dist", False),
    "args of no layer with experts have no way home": (
        "deepseek_v3", dict(first_k_dense_replace=2), "megatron_torch_dist",
        False),
    "args leave out query_pre_attn_scalar": (
        "gemma2", dict(query_pre_attn_scalar=64), "megatron_torch_dist",
        False),
    "args leave out mixtral's head_dim": (
        "mixtral", dict(head_dim=16), "megatron_torch_dist", False),
    "args leave out that q_lora_rank is none": (
        "deepseek_v3", dict(q_lora_rank=None), "megatron_torch_dist", False),
    "the fraction of Persimmon's scaled rope has a name of GPT-NeoX's": (
        "persimmon", dict(rope_parameters=LINEAR), "megatron_torch_dist",
        False),
    "mistral's window is lost in fairseq2's": (
        "mistral", dict(sliding_window=4), "fairseq2", True),
}

# Keys that transformers' classes don't save, as people write them.
BY_HAND = {
    "layer_types of a mistral, a ministral to AutoConfig, are left out": (
        "mistral", dict(sliding_window=4),
        dict(layer_types=["sliding_attention", "full_attention"])),
    "a GPT-2, whose positions are learned, gets a rotary scaling": (
        "gpt2", {}, dict(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "a base beside that of layers with windows takes its place": (
        "gemma3_text", dict(rope_parameters={
            "full_attention": THETA, "sliding_attention": dict(
                THETA, rope_theta=70.0)}), dict(rope_local_base_freq=500.0)),
}

# What the target can't say.
REFUSED = {
    "longrope goes to Megatron without a word": (
        "phi3", dict(rope_parameters=LONG), "megatron_torch_dist", "rope"),
    "parallel residual goes to Megatron without a word": (
        "gpt_neox", dict(use_parallel_residual=True), "megatron_torch_dist",
        "parallel_residual"),
    "clip_qkv goes to Megatron without a word": (
        "olmo", dict(clip_qkv=0.05), "megatron_torch_dist", "clip_qkv"),
    "inverse layer scaling goes to Megatron without a word": (
        "gpt2", dict(scale_attn_by_inverse_layer_idx=True),
        "megatron_torch_dist", "inverse_layer_scale"),
    # Megatron's YarnRotaryEmbedding ignores rotary_percent.
    **{f"yarn turns half of a head of {model}": (
        model, dict(rope_parameters=dict(YARN, partial_rotary_factor=0.5)),
        "megatron_torch_dist", "rope_fraction")
       for model in ("glm4_moe", "nemotron", "stablelm")},
    # Megatron normalizes the scores of two experts or more.
    "one sigmoid score stays as it is in Megatron": (
        "deepseek_v3", dict(num_experts_per_tok=1, n_group=1, topk_group=1),
        "megatron_torch_dist", "router_normalized"),
    "yarn is lost in Meta's": (
        "llama", dict(rope_parameters=YARN), "meta", "rope_type"),
    "linear rope is lost in Meta's": (
        "llama", dict(rope_parameters=LINEAR), "meta", "rope_type"),
    "longrope is lost in Meta's": (
        "llama", dict(rope_parameters=LONG), "meta", "rope_type"),
    "linear rope is lost in fairseq2's": (
        "llama", dict(rope_parameters=LINEAR), "fairseq2", "rope_type"),
    "yarn is lost in fairseq2's": (
        "llama", dict(rope_parameters=YARN), "fairseq2", "rope_type"),
    "longrope is lost in fairseq2's": (
        "llama", dict(rope_parameters=LONG), "fairseq2", "rope_type"),
    "mistral's base is lost in fairseq2's": (
        "mistral", dict(rope_parameters=THETA), "fairseq2", "rope_theta"),
    "attention looks ahead by is_causal, in Megatron": (
        "llama", dict(is_causal=False), "megatron_torch_dist", "bidirectional"),
    "attention looks ahead by is_causal, in Meta's": (
        "llama", dict(is_causal=False), "meta", "bidirectional"),
    "attention looks ahead by is_causal, in fairseq2's": (
        "qwen3", dict(is_causal=False), "fairseq2", "bidirectional"),
    "attention looks ahead by is_causal, in OLMo-core's": (
        "olmo2", dict(is_causal=False), "olmo_core", "bidirectional"),
    "layers with windows lose the scaling of their own": (
        "gemma3_text", dict(rope_parameters={
            "full_attention": THETA, "sliding_attention": LINEAR}),
        "megatron_torch_dist", "rope_local_type"),
    "a window of no token becomes none": (
        "mistral", dict(sliding_window=0), "megatron_torch_dist", "window"),
    "a window of no token becomes none in Meta's": (
        "mistral", dict(sliding_window=0), "meta", "window"),
    "fairseq2 has another epsilon": (
        "llama", dict(rms_norm_eps=0.1), "fairseq2", "norm_epsilon"),
}

# What another run's args may say that a llama isn't.
OTHERS = {
    "zero-centred gamma": dict(apply_layernorm_1p=True),
    "interleaved rotary": dict(rotary_interleaved=True),
    "LayerNorm": dict(normalization="LayerNorm"),
    "squared relu": dict(swiglu=False, squared_relu=True),
    "layers without rotary": dict(no_rope_freq=4),
    "sinks": dict(softmax_type="learnable"),
    "muP's scores": dict(use_mup=True),
    "muP's embeddings": dict(
        use_mup=True, mup_embedding_mult=2.0, mup_attn_scale_power=0.5),
    "muP's logits": dict(
        use_mup=True, mup_base_hidden_size=16, mup_attn_scale_power=0.5),
}

# The same for a qwen3_moe.
OTHER_EXPERTS = {
    "gate and up in turns": dict(moe_mlp_glu_interleave_size=32),
    "shared gate and up in turns": dict(
        use_grouped_gemm_for_shared_expert=True,
        moe_shared_expert_glu_interleave_size=32),
    "a router of limited devices": dict(moe_router_topk_limited_devices=1),
}

# Args under Megatron's own names, as another run would have them, beside a
# model that has none: what transformers must then compute.
SAID = {
    "use_rope_scaling": (
        dict(use_rope_scaling=True, rope_scaling_factor=32.0), LLAMA3),
    "rotary_seq_len_interpolation_factor": (
        dict(rotary_seq_len_interpolation_factor=4), LINEAR),
    "position_embedding_type=yarn": (
        dict(position_embedding_type="yarn", yarn_rotary_scaling_factor=4.0,
             yarn_original_max_position_embeddings=16, yarn_beta_fast=32.0,
             yarn_beta_slow=1.0, yarn_mscale=1.0, yarn_mscale_all_dim=0.0,
             yarn_correction_range_round_to_int=True), YARN),
}

# What Megatron's args lacked, under its argument reader's names.
ARGS = {
    "DeepSeek V3's router": (
        "deepseek_v3", {}, dict(
            moe_router_topk_scaling_factor=2.5, moe_router_num_groups=4,
            moe_router_group_topk=2, moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True)),
    "DeepSeek V3's yarn and mscale": (
        "deepseek_v3", dict(rope_parameters=dict(
            YARN, mscale=0.7, mscale_all_dim=0.5)), dict(
                rope_type="yarn", rotary_scaling_factor=4.0, mscale=0.7,
                mscale_all_dim=0.5, original_max_position_embeddings=16)),
    "DeepSeek V2's softmax before the choice": (
        "deepseek_v2", {}, dict(moe_router_pre_softmax=True)),
    "gemma's activation, norm and window": (
        "gemma2", {}, dict(swiglu=False, apply_layernorm_1p=True,
                           norm_epsilon=1e-6, window_size=(5, 0))),
    "Qwen's epsilon": ("qwen3", {}, dict(norm_epsilon=1e-6)),
}

# A number in config.json that doesn't fit the tensors.
NUMBERS = {
    f"{key} {value}": {key: value}
    for key, values in dict(
        vocab_size=(63, 65), intermediate_size=(47, 64),
        num_attention_heads=(2, 8), head_dim=(4, 16), hidden_size=(64,),
        num_key_value_heads=(1, 4)).items()
    for value in values}

# --family, and the model type that config.json says.
OTHER_FAMILIES = {
    "llama": ("gemma", "ernie4_5", "helium"),
    "qwen2": ("llama",),
}

# What a source's own configuration says of its family, which no --family
# undoes: a family, where it goes, other families whose names fit, the key.
RECORDS = {
    "args of Granite's multipliers": (
        "granite", "megatron_torch_dist", ("llama", "mistral"),
        "ckpt_family granite"),
    "args of a ministral": (
        "ministral", "megatron_torch_dist", ("mistral", "llama"),
        "ckpt_family ministral"),
    "model.yaml of a llama, whose base a mistral has not": (
        "llama", "fairseq2", ("mistral", "qwen2"), "model_family llama"),
    "model.yaml of a qwen3": (
        "qwen3", "fairseq2", ("qwen2", "llama"), "model_family qwen"),
    "OLMo-core's config.json of a llama": (
        "llama", "olmo_core", ("qwen3", "olmo2"), "ckpt.family llama"),
}

# Megatron args once covered by a glob of those that change nothing.
UNKNOWN = ("embedding_multiplier", "embedding_scale", "embedding_norm",
           "logits_scaling", "logits_soft_cap")

# Values in config.json of the wrong type.
TYPES = {
    "a text for an epsilon": dict(rms_norm_eps="1e-05"),
    "an epsilon of zero": dict(rms_norm_eps=0),
    "an epsilon below zero": dict(rms_norm_eps=-1),
    "an epsilon that is no number": dict(rms_norm_eps=float("nan")),
    "a fraction for a count": dict(vocab_size=64.5),
    "a text for a count": dict(num_attention_heads="4"),
    "true for a count": dict(intermediate_size=True),
}

# The same for Megatron's args.
ARG_TYPES = {
    "a text for the rotary base": dict(rotary_base="500"),
    "a text for the window": dict(window_size="(4, 0)"),
}
