# SPDX-License-Identifier: Apache-2.0
"""config.json files of real models, with all of their keys and values, at the
sizes of tiny models: what a class's own defaults would never show.

Sizes, ids of tokens and lists by layer are cut; everything else (spellings of
several releases of transformers, leftovers, keys of the hub's own code) is
what the published file has.
"""

from hub_configs_common import COMMON, less
from hub_configs_newer import NEWER

LLAMA = dict(
    COMMON, architectures=["LlamaForCausalLM"], attention_bias=False,
    hidden_act="silu", model_type="llama", mlp_bias=False, pretraining_tp=1,
    rms_norm_eps=1e-05, rope_scaling=None, rope_theta=500000.0,
    max_position_embeddings=131072, tie_word_embeddings=False)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192, rope_type="llama3")
QWEN = dict(
    COMMON, hidden_act="silu", max_position_embeddings=32768,
    max_window_layers=28, rms_norm_eps=1e-06, rope_theta=1000000.0,
    sliding_window=131072, tie_word_embeddings=False,
    use_sliding_window=False)
QWEN3_MOE = dict(
    QWEN, architectures=["Qwen3MoeForCausalLM"], attention_bias=False,
    decoder_sparse_step=1, head_dim=8, max_window_layers=94,
    mlp_only_layers=[], model_type="qwen3_moe", moe_intermediate_size=8,
    norm_topk_prob=True, num_experts=8, num_experts_per_tok=2,
    output_router_logits=False, rope_scaling=None,
    router_aux_loss_coef=0.001, sliding_window=None)
DEEPSEEK = dict(
    COMMON, attention_bias=False, aux_loss_alpha=0.001, ep_size=1,
    first_k_dense_replace=1, hidden_act="silu", kv_lora_rank=8,
    max_position_embeddings=163840, moe_intermediate_size=8,
    moe_layer_freq=1, n_group=4, n_routed_experts=8, n_shared_experts=1,
    norm_topk_prob=True, num_experts_per_tok=4, num_key_value_heads=8,
    num_nextn_predict_layers=1, pretraining_tp=1, q_lora_rank=12,
    qk_nope_head_dim=8, qk_rope_head_dim=4, rms_norm_eps=1e-06,
    rope_theta=10000, routed_scaling_factor=2.5, scoring_func="sigmoid",
    seq_aux=True, tie_word_embeddings=False, topk_group=2,
    topk_method="noaux_tc", v_head_dim=6)
V3 = dict(
    DEEPSEEK, architectures=["DeepseekV3ForCausalLM"],
    model_type="deepseek_v3",
    auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    rope_scaling=dict(beta_fast=32, beta_slow=1, factor=40, mscale=1.0,
                      mscale_all_dim=1.0,
                      original_max_position_embeddings=4096, type="yarn"))
V2 = dict(
    DEEPSEEK, architectures=["DeepseekV2ForCausalLM"],
    model_type="deepseek_v2", norm_topk_prob=False, scoring_func="softmax",
    topk_method="group_limited_greedy", routed_scaling_factor=16.0,
    rope_scaling=dict(beta_fast=32, beta_slow=1, factor=40, mscale=0.707,
                      mscale_all_dim=0.707,
                      original_max_position_embeddings=4096, type="yarn"))
MISTRAL = dict(
    COMMON, architectures=["MistralForCausalLM"], hidden_act="silu",
    max_position_embeddings=32768, model_type="mistral", rms_norm_eps=1e-05,
    rope_theta=10000.0, sliding_window=8, tie_word_embeddings=False)
GEMMA = dict(
    COMMON, attention_bias=False, head_dim=8, max_position_embeddings=8192,
    pad_token_id=0, rms_norm_eps=1e-06, rope_theta=10000.0)
GEMMA2 = dict(
    GEMMA, architectures=["Gemma2ForCausalLM"], model_type="gemma2",
    attn_logit_softcapping=50.0, cache_implementation="hybrid",
    final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=144,
    sliding_window=8, sliding_window_size=8)
PHI3 = dict(
    COMMON, architectures=["Phi3ForCausalLM"], attention_bias=False,
    embd_pdrop=0.0, hidden_act="silu", max_position_embeddings=131072,
    model_type="phi3", num_key_value_heads=8,
    original_max_position_embeddings=4096, pad_token_id=0, resid_pdrop=0.0,
    rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0,
    sliding_window=None, tie_word_embeddings=False,
    auto_map={"AutoConfig": "configuration_phi3.Phi3Config"})
GRANITE = dict(
    COMMON, architectures=["GraniteForCausalLM"], attention_bias=False,
    attention_multiplier=0.015625, embedding_multiplier=12.0,
    hidden_act="silu", logits_scaling=8.0, max_position_embeddings=131072,
    mlp_bias=False, model_type="granite", pad_token_id=0,
    residual_multiplier=0.22, rms_norm_eps=1e-05, rope_scaling=None,
    rope_theta=10000000.0, tie_word_embeddings=True)
STARCODER2 = dict(
    COMMON, activation_function="gelu", architectures=[
        "Starcoder2ForCausalLM"], attention_softmax_in_fp32=True,
    embedding_dropout=0.1, hidden_act="gelu_pytorch_tanh",
    layer_norm_epsilon=1e-05, max_position_embeddings=16384,
    mlp_type="default", model_type="starcoder2", norm_epsilon=1e-05,
    norm_type="layer_norm", residual_dropout=0.1, rope_theta=1000000,
    scale_attention_softmax_in_fp32=True, scale_attn_weights=True,
    sliding_window=8, use_bias=True)
OLMO3 = dict(
    COMMON, architectures=["Olmo3ForCausalLM"], attention_bias=False,
    hidden_act="silu", layer_types=["sliding_attention"] * 3 + [
        "full_attention"], max_position_embeddings=65536, model_type="olmo3",
    num_hidden_layers=4, pad_token_id=0, rms_norm_eps=1e-06,
    rope_theta=500000, sliding_window=8, tie_word_embeddings=False)
SIGLIP = dict(hidden_size=16, image_size=16, intermediate_size=24,
              model_type="siglip_vision_model", num_attention_heads=2,
              num_hidden_layers=2, patch_size=4, vision_use_head=False)

GEMMA3_4B = dict(
    architectures=["Gemma3ForConditionalGeneration"], boi_token_index=61,
    eoi_token_index=62, eos_token_id=[1, 2], image_token_index=60,
    initializer_range=0.02, mm_tokens_per_image=4, model_type="gemma3",
    text_config=dict(
        hidden_size=32, intermediate_size=48, model_type="gemma3_text",
        num_hidden_layers=6, vocab_size=64, sliding_window=8,
        rope_scaling={"factor": 8.0, "rope_type": "linear"}),
    torch_dtype="float32", transformers_version="4.50.0.dev0",
    vision_config=SIGLIP)


HUB = {
    "Llama 2": less(LLAMA, "attention_bias", "mlp_bias", "rope_theta",
                    max_position_embeddings=4096, torch_dtype="float16"),
    "Llama 2 of 80,000 positions": dict(
        LLAMA, rope_scaling={"type": "linear", "factor": 8.0},
        rope_theta=10000.0),
    "Llama with dynamic positions": dict(
        LLAMA, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "Code Llama": less(LLAMA, "attention_bias", "mlp_bias", "rope_scaling",
                       rope_theta=1000000),
    "Llama 3.1 70B": dict(LLAMA, rope_scaling=LLAMA3,
                          eos_token_id=[2, 3, 4]),
    "Llama 3.2 1B": dict(LLAMA, head_dim=8, tie_word_embeddings=True,
                         rope_scaling=dict(LLAMA3, factor=32.0)),
    "Llama of transformers 5": less(
        LLAMA, "rope_scaling", "rope_theta", "torch_dtype",
        dtype="bfloat16", transformers_version="5.1.0",
        rope_parameters=dict(LLAMA3, rope_theta=500000.0)),
    "Llama of both spellings": dict(
        LLAMA, rope_scaling=LLAMA3, rope_theta=10000.0,
        rope_parameters=dict(LLAMA3, rope_theta=500000.0, factor=16.0)),
    "Llama with yarn": dict(LLAMA, rope_scaling={
        "rope_type": "yarn", "factor": 16.0,
        "original_max_position_embeddings": 8192, "finetuned": True}),
    "Qwen 2.5 72B": dict(QWEN, architectures=["Qwen2ForCausalLM"],
                         model_type="qwen2", max_window_layers=80),
    "Qwen 2.5 with yarn": dict(
        QWEN, architectures=["Qwen2ForCausalLM"], model_type="qwen2",
        rope_scaling={"factor": 4.0, "type": "yarn",
                      "original_max_position_embeddings": 32768}),
    "Qwen 2 with windows": dict(
        QWEN, architectures=["Qwen2ForCausalLM"], model_type="qwen2",
        use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "Qwen 2 with windows in no layer": dict(
        QWEN, architectures=["Qwen2ForCausalLM"], model_type="qwen2",
        use_sliding_window=True, sliding_window=8, max_window_layers=2),
    "Qwen 1.5 MoE": dict(
        QWEN, architectures=["Qwen2MoeForCausalLM"], decoder_sparse_step=1,
        max_window_layers=21, model_type="qwen2_moe", moe_intermediate_size=8,
        norm_topk_prob=False, num_experts=8, num_experts_per_tok=2,
        output_router_logits=False, qkv_bias=True,
        router_aux_loss_coef=0.001, shared_expert_intermediate_size=20,
        sliding_window=32768),
    "Qwen 3 8B": dict(
        QWEN, architectures=["Qwen3ForCausalLM"], attention_bias=False,
        head_dim=8, model_type="qwen3", rope_scaling=None,
        sliding_window=None),
    "Qwen 3 with yarn": dict(
        QWEN, architectures=["Qwen3ForCausalLM"], attention_bias=False,
        head_dim=8, model_type="qwen3", sliding_window=None,
        rope_scaling={"rope_type": "yarn", "factor": 4.0,
                      "original_max_position_embeddings": 32768}),
    "Qwen 3 235B": QWEN3_MOE,
    "Qwen 3 Coder": dict(QWEN3_MOE, qkv_bias=False, use_qk_norm=True,
                         rope_theta=10000000, shared_expert_intermediate_size=0),
    "Qwen 3 Next": dict(
        less(QWEN, "max_window_layers", "sliding_window",
             "use_sliding_window"), architectures=["Qwen3NextForCausalLM"],
        attention_bias=False, decoder_sparse_step=1, full_attention_interval=4,
        head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=6,
        linear_num_key_heads=4, linear_num_value_heads=8,
        linear_value_head_dim=5, mlp_only_layers=[], model_type="qwen3_next",
        moe_intermediate_size=8, norm_topk_prob=True, num_experts=8,
        num_experts_per_tok=2, num_hidden_layers=4,
        output_router_logits=False, partial_rotary_factor=0.25,
        rope_scaling=None, router_aux_loss_coef=0.001,
        shared_expert_intermediate_size=16),
    "DeepSeek V2 Lite": dict(V2, n_group=1, q_lora_rank=None, topk_group=1,
                             routed_scaling_factor=1.0, topk_method="greedy"),
    "DeepSeek V3.1": V3,
    "Kimi K2": dict(
        V3, n_group=1, topk_group=1, rope_theta=50000.0,
        routed_scaling_factor=2.827, num_nextn_predict_layers=0,
        rope_scaling=dict(V3["rope_scaling"], beta_fast=1.0, beta_slow=1.0,
                          factor=32.0)),
    "Moonlight": less(V3, "rope_scaling", n_group=1, topk_group=1,
                      q_lora_rank=None, routed_scaling_factor=2.446,
                      rope_theta=50000.0, num_nextn_predict_layers=0),
    "Mistral 0.1": MISTRAL,
    "Mistral Nemo": dict(MISTRAL, head_dim=6, sliding_window=None,
                         rope_theta=1000000.0,
                         max_position_embeddings=131072),
    "Mixtral": dict(
        MISTRAL, architectures=["MixtralForCausalLM"], model_type="mixtral",
        num_experts_per_tok=2, num_local_experts=4, rope_theta=1e6,
        output_router_logits=False, router_aux_loss_coef=0.02,
        router_jitter_noise=0.0, sliding_window=None),
    "Gemma 7B": dict(GEMMA, architectures=["GemmaForCausalLM"],
                     hidden_act="gelu", model_type="gemma",
                     hidden_activation=None),
    "Gemma 7B, first release": dict(
        GEMMA, architectures=["GemmaForCausalLM"], hidden_act="gelu",
        model_type="gemma"),
    "Gemma 2 27B": GEMMA2,
    "Gemma 3 1B": dict(
        GEMMA, architectures=["Gemma3ForCausalLM"],
        attn_logit_softcapping=None, cache_implementation="hybrid",
        final_logit_softcapping=None, hidden_activation="gelu_pytorch_tanh",
        max_position_embeddings=32768, model_type="gemma3_text",
        num_hidden_layers=6, query_pre_attn_scalar=256,
        rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000,
        sliding_window=8, sliding_window_pattern=6),
    "Gemma 3 of transformers 5": dict(
        less(GEMMA, "rope_theta"), architectures=["Gemma3ForCausalLM"],
        hidden_activation="gelu_pytorch_tanh", model_type="gemma3_text",
        query_pre_attn_scalar=256, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0,
                               "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default",
                                  "rope_theta": 10000.0}}),
    "Phi 3 mini": dict(PHI3, sliding_window=7, max_position_embeddings=4096),
    "Phi 3 mini 128k": dict(PHI3, rope_scaling={
        "long_factor": [1.5, 2.0], "short_factor": [1.0, 1.25],
        "type": "longrope"}),
    "Phi 4 mini": dict(
        PHI3, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False,
        mlp_bias=False, hidden_size=64, num_key_value_heads=2,
        partial_rotary_factor=0.75, tie_word_embeddings=True, rope_scaling={
            "long_factor": [1.5, 2.0, 2.5], "short_factor": [1.0, 1.0, 1.0],
            "type": "longrope"}),
    "Phi 4": dict(PHI3, num_key_value_heads=2, rope_theta=250000,
                  max_position_embeddings=16384,
                  original_max_position_embeddings=16384),
    "OLMo 7B": dict(
        COMMON, architectures=["OlmoForCausalLM"], attention_bias=False,
        clip_qkv=8.0, hidden_act="silu", max_position_embeddings=2048,
        model_type="olmo", num_key_value_heads=8, pad_token_id=1,
        rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False),
    "OLMo 2": dict(
        COMMON, architectures=["Olmo2ForCausalLM"], attention_bias=False,
        hidden_act="silu", max_position_embeddings=4096, model_type="olmo2",
        pad_token_id=0, rms_norm_eps=1e-06, rope_scaling=None,
        rope_theta=500000, tie_word_embeddings=False),
    "OLMo 3 base": dict(OLMO3, max_position_embeddings=8192,
                        rope_scaling=None),
    "GPT-OSS": dict(
        COMMON, architectures=["GptOssForCausalLM"], attention_bias=True,
        experts_per_token=2, head_dim=8, hidden_act="silu",
        initial_context_length=4096, layer_types=[
            "sliding_attention", "full_attention"],
        max_position_embeddings=131072, model_type="gpt_oss",
        num_experts_per_tok=2, num_local_experts=4,
        output_router_logits=False, pad_token_id=0, rms_norm_eps=1e-05,
        rope_scaling={
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn",
            "truncate": False},
        rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=8,
        swiglu_limit=7.0, tie_word_embeddings=False),
    "GLM 4.5": dict(
        COMMON, architectures=["Glm4MoeForCausalLM"], attention_bias=True,
        first_k_dense_replace=1, head_dim=8, hidden_act="silu",
        max_position_embeddings=131072, model_type="glm4_moe",
        moe_intermediate_size=8, n_group=1, n_routed_experts=8,
        n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=2,
        num_nextn_predict_layers=1, pad_token_id=0,
        partial_rotary_factor=0.5, rms_norm_eps=1e-05, rope_scaling=None,
        rope_theta=1000000, routed_scaling_factor=2.5,
        tie_word_embeddings=False, topk_group=1, use_qk_norm=True),
    "GLM 4 9B": dict(
        COMMON, architectures=["GlmForCausalLM"], attention_bias=True,
        head_dim=8, hidden_act="silu", max_position_embeddings=131072,
        model_type="glm", pad_token_id=0, partial_rotary_factor=0.5,
        rms_norm_eps=1.5625e-07, rope_theta=10000.0,
        tie_word_embeddings=False),
    "Granite 3": GRANITE,
    "Granite 3 MoE": dict(
        GRANITE, architectures=["GraniteMoeForCausalLM"],
        model_type="granitemoe", num_experts_per_tok=2, num_local_experts=4,
        output_router_logits=False, router_aux_loss_coef=0.001),
    "Command R": dict(
        less(COMMON, "torch_dtype"), architectures=["CohereForCausalLM"],
        attention_bias=False, hidden_act="silu", layer_norm_eps=1e-05,
        logit_scale=0.0625, max_position_embeddings=131072,
        model_type="cohere", model_max_length=131072, pad_token_id=0,
        pretraining_tp=1, rope_theta=8000000.0, use_qk_norm=False,
        torch_dtype="float16"),
    "Command R plus": dict(
        COMMON, architectures=["CohereForCausalLM"], attention_bias=False,
        hidden_act="silu", layer_norm_eps=1e-05, logit_scale=0.8333333333333334,
        max_position_embeddings=131072, model_type="cohere", pad_token_id=0,
        rope_theta=75000000.0, use_qk_norm=True),
    "Command R7B": dict(
        COMMON, _sliding_window_pattern=4, architectures=[
            "Cohere2ForCausalLM"], attention_bias=False,
        cache_implementation="hybrid", hidden_act="silu", layer_norm_eps=1e-05,
        layer_switch=4, logit_scale=0.25, max_position_embeddings=8192,
        model_type="cohere2", num_hidden_layers=4,
        order_of_interleaved_layers="local_attn_first", pad_token_id=0,
        position_embedding_type="rope_gptj", rope_scaling=None,
        rope_theta=50000, rotary_pct=1.0, sliding_window=8,
        sliding_window_pattern=4, use_embedding_sharing=True,
        use_gated_activation=True, use_parallel_block=True,
        use_parallel_embedding=True),
    "EXAONE 4": dict(
        COMMON, architectures=["Exaone4ForCausalLM"], head_dim=8,
        hidden_act="silu", layer_types=["sliding_attention"] * 3 + [
            "full_attention"], max_position_embeddings=131072,
        model_type="exaone4", num_hidden_layers=4, pad_token_id=0,
        rms_norm_eps=1e-05, rope_scaling=dict(LLAMA3, factor=16.0),
        rope_theta=1000000, sliding_window=8, sliding_window_pattern="LLLG",
        tie_word_embeddings=False),
    "StarCoder 2 7B": STARCODER2,
    "Nemotron Minitron": dict(
        COMMON, architectures=["NemotronForCausalLM"], attention_bias=False,
        head_dim=4, hidden_act="relu2", max_position_embeddings=4096,
        mlp_bias=False, model_type="nemotron", norm_eps=1e-05,
        partial_rotary_factor=0.5, rope_theta=10000.0,
        tie_word_embeddings=False),
    "Pythia": dict(
        architectures=["GPTNeoXForCausalLM"], bos_token_id=0,
        classifier_dropout=0.1, eos_token_id=0, hidden_act="gelu",
        hidden_size=32, initializer_range=0.02, intermediate_size=48,
        layer_norm_eps=1e-05, max_position_embeddings=2048,
        model_type="gpt_neox", num_attention_heads=4, num_hidden_layers=2,
        rotary_emb_base=10000, rotary_pct=0.25, tie_word_embeddings=False,
        torch_dtype="float16", transformers_version="4.24.0", use_cache=True,
        use_parallel_residual=True, vocab_size=64),
    "GPT-2": dict(
        activation_function="gelu_new", architectures=["GPT2LMHeadModel"],
        attn_pdrop=0.1, bos_token_id=1, embd_pdrop=0.1, eos_token_id=1,
        initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2",
        n_ctx=1024, n_embd=32, n_head=4, n_layer=2, n_positions=64,
        resid_pdrop=0.1, summary_activation=None,
        summary_first_dropout=0.1, summary_proj_to_labels=True,
        summary_type="cls_index", summary_use_proj=True,
        task_specific_params={"text-generation": {"do_sample": True}},
        vocab_size=64),
    "Phi 2": dict(
        less(COMMON, "num_key_value_heads"), architectures=[
            "PhiForCausalLM"], embd_pdrop=0.0, hidden_act="gelu_new",
        layer_norm_eps=1e-05, max_position_embeddings=2048, model_type="phi",
        num_key_value_heads=8, partial_rotary_factor=0.5,
        qk_layernorm=False, resid_pdrop=0.1, rope_scaling=None,
        rope_theta=10000.0, tie_word_embeddings=False),
    "StableLM 2": dict(
        COMMON, architectures=["StableLmForCausalLM"], hidden_act="silu",
        layer_norm_eps=1e-05, max_position_embeddings=4096,
        model_type="stablelm", norm_eps=1e-05, partial_rotary_factor=0.5,
        rope_scaling=None, rope_theta=10000, rotary_scaling_factor=1.0,
        tie_word_embeddings=False, use_qkv_bias=True),
    "SmolLM 3": dict(
        COMMON, architectures=["SmolLM3ForCausalLM"], attention_bias=False,
        hidden_act="silu", layer_types=["full_attention"] * 4,
        max_position_embeddings=65536, max_window_layers=28, mlp_bias=False,
        model_type="smollm3", no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0], num_hidden_layers=4, pad_token_id=0,
        pretraining_tp=2, rms_norm_eps=1e-06, rope_scaling=None,
        rope_theta=5000000.0, sliding_window=None, use_sliding_window=False),
    "Seed OSS": dict(
        COMMON, architectures=["SeedOssForCausalLM"], attention_bias=True,
        attention_out_bias=False, head_dim=8, hidden_act="silu",
        max_position_embeddings=524288, mlp_bias=False,
        model_type="seed_oss", pad_token_id=0, residual_dropout=0.1,
        rms_norm_eps=1e-06, rope_scaling={"rope_type": "default"},
        rope_theta=10000000.0, tie_word_embeddings=False),
    "Falcon 7B": dict(
        alibi=False, apply_residual_connection_post_layernorm=False,
        architectures=["FalconForCausalLM"], attention_dropout=0.0,
        bias=False, bos_token_id=1, eos_token_id=1, hidden_dropout=0.0,
        hidden_size=32, initializer_range=0.02, layer_norm_epsilon=1e-05,
        model_type="falcon", multi_query=True, new_decoder_architecture=False,
        num_attention_heads=4, num_hidden_layers=2, parallel_attn=True,
        torch_dtype="bfloat16", use_cache=True, vocab_size=64),
}
HUB.update(NEWER)
# What GPTModel has no argument for, allowed with --allow-unsaid.
UNSAID = {
    "Granite 3": "config.*", "Granite 3 MoE": "config.*",
    "Command R": "*", "Command R7B": "*",
    "Phi 2": "parallel_residual", "Phi 4 mini": "lm_head_bias",
    **dict.fromkeys((
        "Llama 4 Scout's text", "Granite 4 Tiny", "Granite 4 Micro",
        "Hunyuan A13B", "ERNIE 4.5 21B", "Ministral 3's text", "Apertus",
        "Falcon H1"), "*"),
}
# What no dialect but transformers' has: to each of them, or to one.
NOWHERE = {
    "Llama with dynamic positions": "rope_type is dynamic",
    "Hunyuan 7B": "rope_type is dynamic",
    "Phi 3 mini 128k": "longrope", "Phi 4 mini": "longrope",
    "OLMo 7B": "clip_qkv", "Pythia": "parallel_residual",
    "Command R plus": "a norm for each head",
}

# Rare but valid keys on top of those: each goes to every format, or is refused
# there with the reason.
CHANGES = {
    "Llama 3.1 70B": [
        dict(rope_scaling={"type": "linear", "factor": 2.0}),
        dict(rope_scaling={"rope_type": "default"}),
        dict(rope_scaling={"rope_type": "llama3", "factor": 8,
             "low_freq_factor": 1, "high_freq_factor": 4,
             "original_max_position_embeddings": 8192, "rope_theta": 300.0}),
        dict(rope_theta=500000),
        dict(head_dim=None),
        dict(pretraining_tp=2),
        dict(attention_bias=True),
        dict(mlp_bias=True),
        dict(hidden_act="gelu_new"),
        dict(hidden_act="quick_gelu"),
        dict(use_cache=False, is_decoder=True, tie_encoder_decoder=False,
             max_length=20,
             temperature=0.5, top_p=0.5, num_beams=4, repetition_penalty=1.5),
        dict(num_key_value_heads=None),
    ],
    "Qwen 2.5 72B": [
        dict(use_sliding_window=True, sliding_window=3, max_window_layers=0),
        dict(use_sliding_window=True, sliding_window=3, max_window_layers=1),
        dict(layer_types=["sliding_attention", "full_attention"],
             use_sliding_window=True, sliding_window=3),
        dict(attention_bias=False, qkv_bias=False),
    ],
    "Qwen 3 8B": [
        dict(attention_bias=True),
        dict(use_qk_norm=False),
        dict(layer_types=["full_attention", "sliding_attention"],
             use_sliding_window=True, sliding_window=3),
    ],
    "Qwen 3 235B": [
        dict(norm_topk_prob=False),
        dict(decoder_sparse_step=2),
        dict(mlp_only_layers=[0]),
    ],
    "Mistral 0.1": [
        dict(sliding_window=2),
        dict(attention_bias=True),
        dict(rope_scaling={"type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 16, "mscale": 1.0,
             "mscale_all_dim": 1.0}),
        dict(rope_scaling={"rope_type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 16, "truncate": False}),
    ],
    "Mixtral": [
        dict(sliding_window=2),
        dict(router_jitter_noise=0.5),
        dict(num_experts_per_tok=1),
    ],
    "Gemma 2 27B": [
        dict(attn_logit_softcapping=None),
        dict(final_logit_softcapping=None),
        dict(query_pre_attn_scalar=7),
        dict(use_bidirectional_attention=True),
    ],
    "Gemma 3 1B": [
        dict(rope_scaling={"rope_type": "linear", "factor": 8.0}),
        dict(sliding_window_pattern=2),
        dict(_sliding_window_pattern=2),
        dict(rope_local_base_freq=77.0),
        dict(final_logit_softcapping=3.0),
        dict(attn_logit_softcapping=3.0),
        dict(use_bidirectional_attention=True),
    ],
    "Gemma 7B": [
        dict(hidden_act="gelu"),
        dict(hidden_activation="gelu"),
    ],
    "Phi 3 mini": [
        dict(partial_rotary_factor=0.5),
        dict(original_max_position_embeddings=16),
    ],
    "Phi 2": [
        dict(qk_layernorm=True),
    ],
    "DeepSeek V3.1": [
        dict(first_k_dense_replace=0),
        dict(moe_layer_freq=2),
        dict(rope_interleave=False),
        dict(attention_bias=True),
        dict(q_lora_rank=None),
        dict(n_shared_experts=2),
    ],
    "DeepSeek V2 Lite": [
        dict(norm_topk_prob=True),
        dict(moe_layer_freq=2),
    ],
    "OLMo 7B": [
        dict(clip_qkv=None),
    ],
    "OLMo 2": [
        dict(attention_bias=True),
    ],
    "OLMo 3 base": [
        dict(layer_types=None),
    ],
    "Granite 3": [
        dict(logits_scaling=2.0),
    ],
    "SmolLM 3": [
        dict(no_rope_layers=[0, 0, 0, 0]),
        dict(no_rope_layers=None, no_rope_layer_interval=2),
        dict(use_sliding_window=True, sliding_window=3),
        dict(no_rope_layers=None),
        dict(no_rope_layers=[0, 1, 1, 1]),
        dict(no_rope_layers=None, no_rope_layer_interval=1),
    ],
    "Command R": [
        dict(use_qk_norm=True),
    ],
    "GPT-OSS": [
        dict(swiglu_limit=1.0),
        dict(swiglu_alpha=1.5),
        dict(sliding_window=2),
    ],
    "GLM 4.5": [
        dict(use_qk_norm=True),
        dict(partial_rotary_factor=1.0),
    ],
    "GLM 4 9B": [
        dict(attention_bias=False),
        dict(partial_rotary_factor=1.0),
    ],
    "GPT-2": [
        dict(scale_attn_weights=False),
        dict(scale_attn_by_inverse_layer_idx=True),
        dict(activation_function="relu"),
    ],
    "Pythia": [
        dict(rotary_pct=1.0, use_parallel_residual=False),
        dict(attention_bias=False, use_parallel_residual=False),
    ],
    "StarCoder 2 7B": [
        dict(use_bias=False),
    ],
    "StableLM 2": [
        dict(use_qkv_bias=True),
        dict(qk_layernorm=True),
    ],
}
