#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--experts of every model type of transformers that has experts.

A tiny model of each, whose number of experts divides other sizes, is cut in
torch: each parameter whose shape differs in the smaller model keeps only the
kept experts' rows of that dimension. ckpt's result is that model, bit for bit
and by its config.json; transformers opens it without complaint and computes the
same with it. The control, with other experts, computes something else. Or ckpt
refuses, with the reason given here. With --full all types are searched for
experts.
"""

import os
import sys

from support import Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
MANY, KEPT, OTHERS = 8, [1, 2, 5], [0, 2, 5]
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts",
          "moe_num_experts", "num_routed_experts")
# experts_test.py has ten more, through every container.
TYPES = [
    "afmoe", "aria_text", "cohere2_moe", "deepseek_v2", "deepseek_v32", "dots1",
    "exaone_moe", "flex_olmo", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa",
    "granitemoehybrid", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "jamba",
    "laguna", "llama4", "mellum", "minimax", "minimax_m3_vl_text", "nemotron_h",
    "olmoe", "phimoe", "qwen3_5_moe_text", "qwen3_next", "qwen3_vl_moe",
    "solar_open"]
REFUSED = {
    "jetmoe": "has no dimension of 8 experts",
    "deepseek_v4": "by their numbers"}


def sub_configs(config):
    import transformers

    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            yield from sub_configs(value)


def counts_of(config):
    return {key for one in sub_configs(config) for key in COUNTS
            if one.to_dict().get(key)}


def config_for(model_type, count):
    """Made tiny as in model_types.py; None if it has no experts."""
    import model_types
    from transformers import AutoConfig

    for module in ("families2026_models", "hybrid_models",
                   "multimodal_models"):
        tiny = models_of(module)
        if model_type in tiny.TYPES:
            config = tiny.config_of(model_type)
            break
    else:
        if not counts_of(AutoConfig.for_model(model_type)):
            return None
        made, _ = model_types.small_config(model_type)
        config = made.config
    if not counts_of(config):
        return None
    for one in sub_configs(config):
        for key in COUNTS:
            if one.to_dict().get(key):
                setattr(one, key, count)
        if one.to_dict().get("num_experts_per_tok", 1) is None:
            one.num_experts_per_tok = 2
    return config


def model_for(model_type, count):
    import model_types

    tiny = models_of("families2026_models")
    return model_types.model_of(config_for(model_type, count), tiny)


def cut_in_torch(big, small):
    import torch

    have = big.state_dict()
    made = {}
    for name, value in small.state_dict().items():
        tensor = have[name]
        for dim, (before, after) in enumerate(zip(tensor.shape, value.shape)):
            if before != after:
                tensor = tensor.index_select(dim, torch.tensor(KEPT))
        check_equal(tuple(tensor.shape), tuple(value.shape), name)
        made[name] = tensor
    small.load_state_dict(made)


def logits_of(model):
    import torch

    tokens = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False)[0]


def pair(folder, model_type):
    big, small = (model_for(model_type, n) for n in (MANY, len(KEPT)))
    cut_in_torch(big, small)
    big.save_pretrained(folder / "big")
    small.save_pretrained(folder / "small")
    return small


def kept(folder, model_type):
    import torch

    small = pair(folder, model_type)
    argv = ["convert", folder / "big", folder / "out", "--to", "safetensors",
            "--no-fsync", "--experts", ",".join(map(str, KEPT))]
    CKPT.ok(*argv)
    compare(tensors_of(folder / "out"), tensors_of(folder / "small"),
            model_type)
    check_equal(config_of(folder / "out"), config_of(folder / "small"),
                "config.json")
    loaded, told = type(small).from_pretrained(
        folder / "out", dtype=torch.float32, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not told[key], f"{key}: {told[key]}")
    want = logits_of(small)
    check(torch.equal(logits_of(loaded), want), "logits differ")
    argv[2], argv[-1] = folder / "others", ",".join(map(str, OTHERS))
    CKPT.ok(*argv)
    control = type(small).from_pretrained(folder / "others",
                                          dtype=torch.float32)
    check(not torch.equal(logits_of(control), want),
          "other experts compute the same")


def refused(folder, model_type):
    model_for(model_type, MANY).save_pretrained(folder / "big")
    run = CKPT.run("convert", folder / "big", folder / "out", "--to",
                   "safetensors", "--no-fsync", "--experts",
                   ",".join(map(str, KEPT))).want(5)
    check(REFUSED[model_type] in run.err, run.err)
    check(not (folder / "out").exists(), "something was written")


def all_types():
    import hybrid_models
    import model_types
    import multimodal_models
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *model_types.OTHERS,
                   *hybrid_models.TYPES, *multimodal_models.TYPES,
                   "switch_transformers", "nllb-moe"} - {*model_types.SKIP})


def enumerated(folder):
    """Every type with experts is in the table."""
    import experts_test

    found = set()
    for model_type in all_types():
        try:
            config = config_for(model_type, MANY)
            if config and any("expert" in name for name in model_for(
                    model_type, MANY).state_dict()):
                found.add(model_type)
        except Exception:  # a class that can't be made tiny this way
            continue
    told = {*TYPES, *REFUSED, *experts_test.TYPES}
    check_equal(sorted(found - told), [], "types with experts, not told of")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    models_of("families2026_models")
    for model_type in TYPES:
        suite.add(model_type, kept, model_type)
    for model_type in REFUSED:
        suite.add(f"{model_type} is refused", refused, model_type)
    if suite.full:
        suite.add("every type", enumerated)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
