#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--layers: a layer keeps its kind, or the command refuses.

What a configuration says about a layer by its number is defined here for each
key, from what transformers' and Megatron's classes make of it: lists, numbers
of layers, periods, switches, a text of kinds, modules that aren't quantized.
For random orders of eight layers, layer i of what ckpt wrote is like layer
order[i] before. The keys are those that the family files read by a layer's
number; a file that reads another one fails here until its meaning is defined.
"""

import json
import random
import re

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
LAYERS = 8
FAMILIES = DATA.parent.parent / "models/families"
KINDS = ["sliding_attention", "full_attention", "sliding_attention",
         "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "full_attention"]


def by_list(key, values, of=lambda value: value):
    return ({key: values}, lambda config, l: of(config[key])[l])


def by_numbers(key, numbers, first=0):
    return ({key: numbers}, lambda config, l: l + first in config[key])


def by_period(key, step, offset=1):
    return ({key: step}, lambda config, l: (l + offset) % config[key] == 0)


def by_switch(key, first):
    return ({key: first}, lambda config, l: l >= config[key])


def kda(config, l):
    table = config["linear_attn_config"]
    return l + 1 in table["kda_layers"], l + 1 in table["full_attn_layers"]


def left_alone(config, l):
    words = config["quantization_config"]
    return (f"model.layers.{l}.mlp.gate" in words["modules_to_not_convert"],
            f"model.layers.{l}.mlp" in words["deep"][0]["ignore"],
            words["extra_config"].get(f"model.layers.{l}.mlp.up_proj"))


def of_type(model_type, kind, **keys):
    """A kind that follows from a layer's number where no key gives it."""
    return ({"model_type": model_type, "hidden_size": 32, "vocab_size": 64,
             "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 48, "max_position_embeddings": 64,
             "rms_norm_eps": 1e-6, "head_dim": 8, **keys}, kind)


# name: (keys of config.json, what they say about a layer)
CASES = {
    "layer_types": by_list("layer_types", KINDS),
    "mlp_layer_types": by_list("mlp_layer_types", ["dense"] + ["sparse"] * 7),
    "layers_block_type": by_list("layers_block_type", list("abcdabcd")),
    "is_moe_layer": by_list("is_moe_layer", [0, 0, 1, 1, 0, 1, 1, 1]),
    "no_rope_layers": by_list("no_rope_layers", [1, 1, 1, 0, 1, 1, 1, 0]),
    "no_rope_freq": by_list("no_rope_freq", [0, 0, 0, 1, 0, 0, 0, 1]),
    "moe_layer_freq": by_list("moe_layer_freq", [0, 1, 1, 1, 1, 0, 1, 1]),
    "window_attn_skip_freq": by_list("window_attn_skip_freq",
                                     [1, 1, 1, 0, 1, 1, 1, 0]),
    "linear_attention_freq": by_list("linear_attention_freq",
                                     [1, 1, 1, 0, 1, 1, 1, 0]),
    "block_configs": by_list("block_configs", [{"n": i} for i in range(8)]),
    "inside": by_list("heterogeneous_layers_config_encoded_json", json.dumps(
        {"num_hidden_layers": 8, "block_configs": list(range(8))}),
        lambda text: json.loads(text)["block_configs"]),
    "hybrid_override_pattern": by_list("hybrid_override_pattern", "M*-ME*M-"),
    "stages": by_list("hybrid_layer_pattern", "M*-M|E*M-",
                      lambda text: text.replace("|", "")),
    "mlp_only_layers": by_numbers("mlp_only_layers", [1, 5]),
    "moe_layers": by_numbers("moe_layers", [1, 3, 5, 7]),
    "attn_layer_indices": by_numbers("attn_layer_indices", [2, 6]),
    "full_attn_idxs": by_numbers("full_attn_idxs", [0, 4, 6]),
    "linear_attn_config": ({"linear_attn_config": {
        "kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8]}}, kda),
    "decoder_sparse_step": by_period("decoder_sparse_step", 2),
    "interleave_moe_layer_step": by_period("interleave_moe_layer_step", 4),
    "moe_layer_interval": by_period("moe_layer_interval", 2),
    "moe_layer_freq, a number": by_period("moe_layer_freq", 2, 0),
    "no_rope_layer_interval": by_period("no_rope_layer_interval", 4),
    "full_attention_interval": by_period("full_attention_interval", 4),
    "sliding_window_pattern": by_period("sliding_window_pattern", 2),
    "first_k_dense_replace": by_switch("first_k_dense_replace", 3),
    "num_dense_layers": by_switch("num_dense_layers", 2),
    "moe_layer_start_index": by_switch("moe_layer_start_index", 2),
    "moe_layer_end_index": (
        {"moe_layer_end_index": 5, "moe_layer_start_index": 1},
        lambda config, l: config["moe_layer_start_index"] <= l
        <= config["moe_layer_end_index"]),
    "max_window_layers": (
        {"max_window_layers": 4, "use_sliding_window": True},
        lambda config, l: l >= config["max_window_layers"]),
    "modules": ({"quantization_config": {
        "modules_to_not_convert": [
            "lm_head", *(f"model.layers.{i}.mlp.gate" for i in (0, 3, 4))],
        "deep": [{"ignore": ["model.layers.2.mlp", "model.layers.7.mlp"]}],
        "extra_config": {f"model.layers.{i}.mlp.up_proj": {"bits": i}
                         for i in (1, 3, 6)}}},
        left_alone),
    # What no key gives: from the ledger of facts.
    "gemma2": of_type("gemma2", lambda config, l: l % 2, sliding_window=4,
                      query_pre_attn_scalar=8),
    "gemma3_text": of_type("gemma3_text", lambda config, l: (l + 1) % 6 == 0,
                           sliding_window=4),
    "smollm3": of_type("smollm3", lambda config, l: (l + 1) % 4 == 0),
    "exaone4": of_type("exaone4", lambda config, l: (l + 1) % 4 == 0,
                       sliding_window=4),
    "olmo3": of_type("olmo3", lambda config, l: (l + 1) % 4 == 0,
                     sliding_window=4),
}
# What reads a layer's number in the family files but gives no kind; and what
# litgpt's model_config.yaml says of layers, which becomes layer_types.
OTHERS = {"0", "window", "sliding_window_indices",
          "sliding_window_layer_placing"}


def write(path, config, last=None):
    """A tensor for each layer; `last`: one of a layer after them."""
    path.mkdir(parents=True)
    entries, at = {}, 0
    for layer in range(LAYERS + (last is not None)):
        end = last if layer == LAYERS else ".input_layernorm.weight"
        entries[f"model.layers.{layer}{end}"] = {
            "dtype": "U8", "shape": [4], "data_offsets": [at, at + 4]}
        at += 4
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text
        + bytes(at))
    (path / "config.json").write_text(json.dumps(
        {"num_hidden_layers": LAYERS, "eos_token_id": list(range(LAYERS)),
         **config}))


def orders(name):
    """First layers, whole periods, and random orders of eight."""
    draw = random.Random(name)
    yield list(range(5))
    yield [*range(4), *range(8)]
    yield [*range(6), *range(2, 8)]
    for _ in range(3):
        made = sorted(draw.choices(range(LAYERS), k=draw.randint(4, 9)))
        if draw.random() < 0.3:
            draw.shuffle(made)
        if len(set(made)) < len(made) or made != sorted(made):
            yield made


def kept(folder, name):
    config, kind = CASES[name]
    source = folder / "source"
    write(source, config)
    before = json.loads((source / "config.json").read_text())
    done = 0
    for at, order in enumerate(orders(name)):
        out = folder / f"out{at}"
        run = CKPT.run("convert", source, out, "--to", "safetensors",
                       "--layers", ",".join(map(str, order)), "--no-fsync")
        if run.code == 5:
            check(at != 0, f"the first layers alone: {run.err}")
            continue
        run.want(0)
        done += 1
        after = json.loads((out / "config.json").read_text())
        check_equal(after["num_hidden_layers"], len(order), f"{order}")
        check_equal(after["eos_token_id"], before["eos_token_id"], "no layers")
        for i, layer in enumerate(order):
            check_equal(kind(after, i), kind(before, layer),
                        f"{name}, {order}: layer {i}, which was {layer}")
    check(done, "all orders were refused")


def enumerated():
    """The keys that family files read by `l`: each has a case."""
    keys = set()
    for path in FAMILIES.glob("*.json"):
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', path.read_text()):
            keys.update(re.findall(r"(?:pick|has)\((\w+), l\)", text))
            keys.update(re.findall(r"\bl [<>]=? \(?(\w+)", text))
            if re.search(r"\bl\b", text):
                keys.update(re.findall(r"% \(?([a-z_]\w*)", text))
    told = {key for config, _ in CASES.values() for key in config}
    left = {key for key in keys - told - OTHERS if not key.startswith("_")}
    check_equal(left, set(), "keys without a case")
    check(len(keys) >= 15, keys)


def prediction(folder):
    """A layer that predicts one more token is left out by its number."""
    source = folder / "source"
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        write(source / key, {key: 1}, ".eh_proj")
        for layers, left in (("0-7", 0), ("0-8", 1), ("0-3,0-7", 0)):
            out = folder / f"{key}{layers}"
            CKPT.ok("convert", source / key, out, "--to", "safetensors",
                    "--layers", layers, "--no-fsync")
            config = json.loads((out / "config.json").read_text())
            check_equal(config[key], left, f"{key}, --layers {layers}")


def patterns(folder):
    """A regular expression with a layer's number is not rewritten."""
    source = folder / "source"
    write(source, {"quantization_config": {
        "ignore": ["lm_head", r"re:.*layers\.3\..*"]}})
    CKPT.ok("convert", source, folder / "a", "--to", "safetensors", "--layers",
            "0-4", "--no-fsync")
    run = CKPT.run("convert", source, folder / "b", "--to", "safetensors",
                   "--layers", "0-4,2-7", "--no-fsync").want(5)
    check("layers\\.3" in run.err and "quantization_config" in run.err, run.err)
    check(not (folder / "b").exists(), "something was written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("every key has a case", lambda folder: enumerated())
    suite.add("patterns", patterns)
    suite.add("prediction", prediction)
    for name in CASES:
        suite.add(name, kept, name)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
