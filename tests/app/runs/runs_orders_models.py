# SPDX-License-Identifier: Apache-2.0
"""Small models of each class whose module order ckpt knows, for
runs_orders_test.py: model_type -> configurations, each of which enables
parameters that others lack."""

DECODER = dict(
    vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    pad_token_id=0, bos_token_id=1, eos_token_id=2)
ENCODER = dict(
    vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=64, pad_token_id=0)
GPT = dict(vocab_size=53, n_embd=16, n_layer=2, n_head=4, n_positions=32,
           bos_token_id=1, eos_token_id=2)
BOTH = dict(
    vocab_size=53, d_model=16, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=24,
    decoder_ffn_dim=24, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1)
T5 = dict(vocab_size=53, d_model=16, d_kv=4, d_ff=24, num_layers=2,
          num_heads=4, decoder_start_token_id=0)
MOE = dict(DECODER, moe_intermediate_size=12, num_experts=4,
           num_experts_per_tok=2)
ROUTED = dict(
    DECODER, moe_intermediate_size=12, n_routed_experts=4, n_group=1,
    topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1,
    n_shared_experts=1)
LATENT = dict(ROUTED, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
              v_head_dim=4, qk_nope_head_dim=4)


def decoder(**more):
    return dict(DECODER, **more)


BIASES = decoder(attention_bias=True, mlp_bias=True)
DISENTANGLED = dict(ENCODER, relative_attention=True,
                    pos_att_type=["c2p", "p2c"])

MODELS = {
    "llama": [DECODER, BIASES], "mistral": [DECODER], "qwen2": [DECODER],
    "qwen3": [DECODER, decoder(attention_bias=True)], "gemma": [DECODER],
    "gemma2": [DECODER], "gemma3_text": [DECODER], "olmo": [DECODER],
    "olmo2": [DECODER], "olmo3": [DECODER], "phi3": [DECODER],
    "phi": [DECODER, decoder(qk_layernorm=True)], "starcoder2": [DECODER],
    "stablelm": [DECODER, decoder(qk_layernorm=True, use_qkv_bias=True)],
    "cohere": [DECODER, decoder(use_qk_norm=True)], "cohere2": [DECODER],
    "granite": [DECODER, BIASES], "glm": [DECODER], "glm4": [DECODER],
    "smollm3": [DECODER, BIASES], "nemotron": [DECODER],
    "persimmon": [DECODER], "ernie4_5": [DECODER, decoder(use_bias=True)],
    "seed_oss": [DECODER], "exaone4": [DECODER],
    "hunyuan_v1_dense": [decoder(head_dim=4)], "arcee": [DECODER],
    "helium": [DECODER], "apertus": [DECODER], "gpt_neox": [DECODER],
    "falcon": [DECODER, decoder(new_decoder_architecture=True, bias=True),
               decoder(parallel_attn=False)],
    "bloom": [decoder(n_head=4, n_layer=2)],
    "gptj": [dict(GPT, rotary_dim=4, n_inner=24)],
    "codegen": [dict(GPT, rotary_dim=4, n_inner=24)],
    "gpt_neo": [decoder(attention_types=[[["global", "local"], 1]],
                        num_layers=2, num_heads=4)],
    "gpt2": [GPT], "gpt_bigcode": [GPT],
    "opt": [decoder(ffn_dim=24, word_embed_proj_dim=16),
            decoder(ffn_dim=24, word_embed_proj_dim=8)],
    "mpt": [dict(vocab_size=53, n_heads=4, d_model=16, n_layers=2)],
    "mamba": [DECODER],
    "mamba2": [decoder(num_heads=8, head_dim=4, n_groups=1)],
    "granitemoe": [decoder(num_local_experts=4)],
    "gpt_oss": [decoder(num_local_experts=4, head_dim=4)],
    "qwen2_moe": [dict(MOE, shared_expert_intermediate_size=12),
                  dict(MOE, shared_expert_intermediate_size=12,
                       mlp_only_layers=[0])],
    "qwen3_moe": [MOE, dict(MOE, mlp_only_layers=[0], attention_bias=True)],
    "olmoe": [decoder(num_experts=4)],
    "glm4_moe": [dict(ROUTED, head_dim=4, use_qk_norm=True)],
    "deepseek_v2": [LATENT, dict(LATENT, q_lora_rank=None)],
    "deepseek_v3": [LATENT, dict(LATENT, q_lora_rank=None)],
    "bert": [ENCODER], "roberta": [ENCODER], "xlm-roberta": [ENCODER],
    "camembert": [ENCODER], "ernie": [ENCODER], "mpnet": [ENCODER],
    "albert": [dict(ENCODER, embedding_size=8)],
    "electra": [ENCODER, dict(ENCODER, embedding_size=8)],
    "distilbert": [dict(vocab_size=53, dim=16, hidden_dim=24, n_layers=2,
                        n_heads=4, max_position_embeddings=32)],
    "deberta": [ENCODER, DISENTANGLED],
    "deberta-v2": [ENCODER, dict(DISENTANGLED, position_buckets=4,
                                 norm_rel_ebd="layer_norm",
                                 conv_kernel_size=3)],
    "modernbert": [ENCODER, dict(
        ENCODER, attention_bias=True, mlp_bias=True, norm_bias=True,
        classifier_bias=True, decoder_bias=True)],
    "t5": [T5, dict(T5, feed_forward_proj="gated-gelu",
                    tie_word_embeddings=False)],
    "mt5": [T5], "bart": [BOTH], "mbart": [BOTH], "pegasus": [BOTH],
    "marian": [BOTH], "m2m_100": [BOTH],
    "whisper": [dict(BOTH, num_mel_bins=8)],
}

# The classes trained of each, by the word in transformers' lists.
HEADS = ["CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ",
         "SEQUENCE_CLASSIFICATION", "MASKED_LM", "TOKEN_CLASSIFICATION",
         "QUESTION_ANSWERING"]
