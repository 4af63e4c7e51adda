# SPDX-License-Identifier: Apache-2.0
"""Tiny vision models for the tests of facts: like facts_models.py, with fields
of the language model, of the tower and of the whole (text_config.hidden_act,
vision_config.hidden_act, vision_feature_layer), and an image to look at.
"""

import copy

import torch
import transformers
from facts_models import values_of
from multimodal_models import (  # noqa: F401
    TYPES, UNSAID, near_one, untrained)
from transformers import AutoConfig, AutoModelForImageTextToText

FAMILIES = TYPES
IMAGE = 60  # the token of each type that stands for a part of the image
# Other values for a field of a tower or of the whole.
OWN = {
    "vision_config.hidden_act": ["gelu", "relu", "silu"],
    "vision_config.num_heads": [4], "vision_config.num_attention_heads": [4],
    "vision_config.rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0}],
    "vision_config.layer_norm_eps": [0.1],
    "vision_config.rms_norm_eps": [0.1],
    "vision_config.norm_type": ["rms_norm"],
    "audio_config.activation_function": ["relu"],
    "audio_config.encoder_attention_heads": [4],
    "audio_config.scale_embedding": [True],
    "vision_config.num_key_value_heads": [4],
    "vision_config.fullatt_block_indexes": [[0]],
    "vision_config.window_size": [8],
    "vision_config.deepstack_visual_indexes": [[1]],
    "vision_config.use_qk_norm": [True],
    "vision_feature_layer": [-1, 1], "projector_hidden_act": ["relu"],
    "vision_feature_select_strategy": ["full"],
    "multimodal_projector_bias": [False], "downsample_ratio": [0.25],
    "adapter_layer_norm_eps": [0.1], "spatial_merge_size": [4],
    "tie_word_embeddings": [True, False],
}
GENERAL = set(transformers.PretrainedConfig().to_dict())


def config_of(name, **changes):
    own = copy.deepcopy(TYPES[name])
    for path, value in changes.items():
        part, _, field = path.rpartition(".")
        (own.setdefault(part, {}) if part else own)[field] = value
    return AutoConfig.for_model(name.split(",")[0], **own)


def parts_of(config):
    """{prefix: configuration}"""
    tower = "vision_config" if hasattr(config, "vision_config") else (
        "audio_config")
    return {"": config, "text_config.": config.text_config,
            tower + ".": getattr(config, tower)}


def fields_of(name):
    fields = []
    for prefix, config in parts_of(config_of(name)).items():
        fields += [prefix + key for key in config.to_dict()
                   if (key not in GENERAL or key == "tie_word_embeddings")
                   and not key.endswith(("_token_id", "_token_index"))
                   and not key.endswith("_config")]
    return sorted(fields)


def values_for(config, path):
    part, _, field = path.rpartition(".")
    config = parts_of(config)[part + "." if part else ""]
    if OWN.get(path):
        now = getattr(config, field)
        return [v for v in copy.deepcopy(OWN[path]) if v != now]
    return values_of(config, field)


def model_of(config, seed=0):
    torch.manual_seed(seed)
    model = untrained(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if value.is_floating_point() and "inv_freq" not in name:
                value.copy_(
                    torch.randn(value.shape, generator=generator) * 0.3)
    return near_one(model, seed)


def image_of(config):
    """The model's inputs for an image or a sound, and the tokens that stand for
    it."""
    generator = torch.Generator().manual_seed(1)
    if hasattr(config, "audio_config"):  # something to hear
        audio = config.audio_config
        frames = 2 * audio.max_source_positions
        return {"input_features": torch.randn(
            (1, audio.num_mel_bins, frames), generator=generator),
            "feature_attention_mask": torch.ones(1, frames)}, frames // 4
    kind, vision = config.model_type, config.vision_config

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    if "qwen" in kind or kind in ("glm4v_moe", "exaone4_5"):
        patch, merge = vision.patch_size, vision.spatial_merge_size
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        rows = noise(32, channels * vision.temporal_patch_size * patch * patch)
        return {"pixel_values": rows, "image_grid_thw":
                torch.tensor([[1, 4, 8]])}, 32 // merge ** 2
    size = vision.image_size
    size = size[0] if isinstance(size, (list, tuple)) else size
    pixels = {"pixel_values": noise(1, 3, size, size)}
    if kind == "mistral3":
        pixels["image_sizes"] = torch.tensor([[size, size]])
    return pixels, None


def logits_of(model):
    """Logits of text before and after an image, with as many image tokens as
    the model has features of it."""
    config = model.config
    words = torch.arange(24) * 7 % 59
    pixels, count = image_of(config)
    counts = [count] if count else (4, 16, 1, 2, 8, 17, 64, 32)
    problem = None
    for count in counts:
        tokens = torch.cat([words[:8], torch.full((count,), IMAGE),
                            words[8:]])[None]
        try:
            with torch.no_grad():
                return model(input_ids=tokens, use_cache=False, **extra(
                    config, tokens), **pixels).logits
        except ValueError as error:
            problem = error
    raise problem


def extra(config, tokens):
    kinds = (tokens == IMAGE).int()
    if config.model_type == "gemma3":
        return {"token_type_ids": kinds}
    if config.model_type == "qwen2_audio":
        return {"attention_mask": torch.ones_like(tokens)}
    if "qwen" in config.model_type or config.model_type in ("glm4v_moe",
                                                            "exaone4_5"):
        return {"mm_token_type_ids": kinds}
    return {}


def logits_at(path):
    config = AutoConfig.from_pretrained(path)
    kind = (transformers.Qwen2AudioForConditionalGeneration
            if config.model_type == "qwen2_audio"
            else AutoModelForImageTextToText)
    model = kind.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32).eval()
    return logits_of(model)
