# SPDX-License-Identifier: Apache-2.0
"""Tiny vision models from transformers, with every parameter random."""

import warnings

import torch
import transformers
from families2026_models import with_weights
from hybrid_models import DELTA, ROUTED
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

TEXT = dict(vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, max_position_embeddings=64, bos_token_id=1,
            eos_token_id=2, pad_token_id=0)
# Qwen's towers, and those like SigLIP.
QWEN = dict(depth=2, hidden_size=16, embed_dim=16, num_heads=2,
            intermediate_size=24, patch_size=4, out_hidden_size=32)
QWEN3 = dict(QWEN, deepstack_visual_indexes=[0], num_position_embeddings=16)
SIGLIP = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, patch_size=4, image_size=16)
IDS = dict(image_token_id=60, video_token_id=61, vision_start_token_id=62,
           vision_end_token_id=63)
INDICES = dict(image_token_index=60, boi_token_index=61, eoi_token_index=62)
GLM = dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=24,
           patch_size=4, out_hidden_size=32, image_size=16)
GLM_IDS = dict(image_token_id=60, video_token_id=61, image_start_token_id=60,
               image_end_token_id=61, video_start_token_id=62,
               video_end_token_id=63)
HALF = {"rope_type": "default", "rope_theta": 500.0,
        "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
COHERE = dict(TEXT, model_type="cohere2",
              layer_types=["sliding_attention", "full_attention"])
SECTIONS = {"rope_type": "default", "rope_theta": 500.0,
            "mrope_section": [2, 1, 1]}
ROPED = dict(TEXT, rope_parameters=SECTIONS)

PARTIAL = dict(TEXT, **DELTA, rope_parameters=dict(
    HALF, mrope_interleaved=True))
QWEN3_5 = dict(QWEN, num_position_embeddings=16)


def clip(text, **more):
    return dict(text_config=dict(TEXT, model_type=text, **more),
                vision_config=dict(SIGLIP, projection_dim=16,
                                   model_type="clip_vision_model"),
                image_token_index=60, image_seq_length=16)


def pixtral(text, **more):
    return dict(text_config=dict(TEXT, model_type=text, **more),
                vision_config=dict(SIGLIP, head_dim=8), image_token_index=60)


def intern(text):
    return dict(text_config=dict(TEXT, model_type=text),
                vision_config=dict(SIGLIP, patch_size=[4, 4],
                                   image_size=[16, 16]),
                image_token_id=60, image_seq_length=4)


GEMMA4 = dict(TEXT, model_type="gemma4_text", global_head_dim=16,
              sliding_window=4, num_hidden_layers=4,
              layer_types=["sliding_attention", "full_attention"] * 2)
GEMMA4_TOWER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
GEMMA4_IDS = dict(image_token_id=60, video_token_id=61, audio_token_id=62,
                  boi_token_id=57, eoi_token_id=58, boa_token_id=56,
                  eoa_token_index=55)

# After a comma comes the language model.
TYPES = {
    "qwen2_vl": dict(text_config=ROPED, vision_config=dict(QWEN, hidden_size=32),
                     **IDS),
    "qwen2_5_vl": dict(text_config=ROPED, vision_config=dict(
        QWEN, fullatt_block_indexes=[1]), **IDS),
    "qwen3_vl": dict(text_config=ROPED, vision_config=QWEN3, **IDS),
    "qwen3_vl, tied": dict(text_config=TEXT, vision_config=QWEN3,
                           tie_word_embeddings=True, **IDS),
    "qwen3_vl_moe": dict(text_config=dict(
        ROPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8),
        vision_config=QWEN3, **IDS),
    "qwen3_5": dict(text_config=PARTIAL, vision_config=QWEN3_5, **IDS),
    "qwen3_5_moe": dict(text_config=dict(PARTIAL, **ROUTED),
                        vision_config=QWEN3_5, **IDS),
    "exaone4_5": dict(
        text_config=dict(TEXT, model_type="exaone4", num_hidden_layers=4,
                         sliding_window=4),
        vision_config=dict(QWEN, hidden_size=32, num_heads=4, window_size=8,
                           num_key_value_heads=2, fullatt_block_indexes=[1]),
        image_token_id=60, video_token_id=61),
    "qwen2_audio": dict(
        text_config=dict(TEXT, model_type="qwen2"), audio_config=dict(
            d_model=16, encoder_layers=2, encoder_attention_heads=2,
            encoder_ffn_dim=24, num_mel_bins=8, max_source_positions=16),
        audio_token_index=60),
    "gemma3": dict(text_config=dict(TEXT, sliding_window=4),
                   vision_config=SIGLIP, mm_tokens_per_image=4, **INDICES),
    "mistral3, mistral": pixtral("mistral", sliding_window=None),
    "mistral3, ministral3": pixtral("ministral3"),
    "llava, llama": clip("llama", rope_parameters={
        "rope_type": "default", "rope_theta": 500.0}),
    "llava, mistral": clip("mistral"),
    "llava, qwen2": clip("qwen2"),
    "internvl, qwen2": intern("qwen2"),
    "internvl, qwen3": intern("qwen3"),
    "internvl, llama": intern("llama"),
    "glm4v_moe": dict(text_config=dict(
        TEXT, rope_parameters=HALF, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=8, n_shared_experts=1, n_group=1, topk_group=1,
        first_k_dense_replace=1), vision_config=GLM, **GLM_IDS),
    "aya_vision": dict(text_config=COHERE, vision_config=SIGLIP,
                       image_token_index=60),
    "cohere2_vision": dict(text_config=COHERE, vision_config=SIGLIP,
                           alignment_intermediate_size=8, image_token_id=60),
    "llama4": dict(text_config=dict(
        TEXT, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=2, intermediate_size_mlp=40),
        vision_config=dict(SIGLIP, intermediate_size=64,
                           vision_output_dim=24, projector_input_dim=24,
                           projector_output_dim=24), **INDICES),
}

# Not every suite is for them, as in families2026_models.py.
VARIANTS = {
    "gemma4": dict(
        text_config=dict(GEMMA4, num_kv_shared_layers=2,
                         use_double_wide_mlp=True,
                         hidden_size_per_layer_input=8,
                         vocab_size_per_layer_input=64),
        vision_config=dict(GEMMA4_TOWER, patch_size=4, head_dim=8,
                           num_key_value_heads=2, intermediate_size=24,
                           position_embedding_size=16, standardize=True,
                           use_clipped_linears=True),
        audio_config=dict(GEMMA4_TOWER, subsampling_conv_channels=[8, 4],
                          conv_kernel_size=3, output_proj_dims=16),
        **GEMMA4_IDS),
    "gemma4, experts": dict(
        text_config=dict(GEMMA4, attention_k_eq_v=True,
                         num_global_key_value_heads=1, enable_moe_block=True,
                         num_experts=4, top_k_experts=2,
                         moe_intermediate_size=8,
                         hidden_size_per_layer_input=0,
                         use_bidirectional_attention="vision"),
        vision_config=dict(GEMMA4_TOWER, patch_size=4, head_dim=8,
                           num_key_value_heads=2, intermediate_size=24,
                           position_embedding_size=16),
        **GEMMA4_IDS),
}

# As in families2026_models.py.
UNSAID = {
    "aya_vision": ["parallel_residual", "config.logit_scale"],
    "cohere2_vision": ["parallel_residual", "config.logit_scale"],
    "mistral3, ministral3": ["rope_llama4_beta"],
    "llama4": ["config.attention_chunk_size",
               "config.attn_temperature_tuning"],
}
# No code for Megatron has a tower beside these: ckpt warns, and refuses under
# --strict-config.
for _name in TYPES:
    if _name.split(",")[0] in ("llava", "internvl", "aya_vision",
                               "cohere2_vision", "llama4"):
        UNSAID[_name] = [*UNSAID.get(_name, ()), "tower"]


def config_of(name):
    return AutoConfig.for_model(name.split(",")[0],
                                **{**TYPES, **VARIANTS}[name])


def untrained(config, **options):
    if config.model_type == "qwen2_audio":  # no auto class has it
        return transformers.Qwen2AudioForConditionalGeneration._from_config(
            config, **options)
    return AutoModelForImageTextToText.from_config(config, **options)


def publish(path):
    """Brings Qwen2-Audio's file to the names of those on the hub, which
    transformers 5.12.1 reads too: it saves one `model.` too many."""
    wrong, right = "language_model.model.model.", "language_model.model."
    save_file({right + name[len(wrong):] if name.startswith(wrong) else name:
               value for name, value in load_file(path).items()}, path,
              {"format": "pt"})


def model_of(config, seed=0):
    torch.manual_seed(seed)
    model = untrained(config)
    return near_one(with_weights(model.float().eval(), seed), seed)


def near_one(model, seed):
    """Megatron keeps a delta net's norm as w - 1: exact where w is near 1."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if name.endswith("linear_attn.norm.weight"):
                value.copy_(0.75 + torch.rand(value.shape, generator=generator))
    return model


def logits_of(model):
    tokens = torch.arange(24)[None] * 7 % 59
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False).logits
