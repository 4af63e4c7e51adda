#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""This year's model types, from transformers to Megatron's names and back.

A tiny model of each type, every parameter random, as transformers saves it: to
Megatron's distributed checkpoint on one and two ranks, compared there, and back
bit for bit, with config.json beside it and with it removed. What comes back
without it computes the same logits in transformers. What GPTModel has no
argument for is refused by name, unless it is allowed by name.
"""

import json
import os
import sys

from support import DATA, Skip, Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, same_function, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare


def models():
    return models_of("families2026_models")


def allowed(model_type):
    return [word for fact in models().UNSAID.get(model_type, ())
            for word in ("--allow-unsaid", fact)]


def refused_without(source, there, model_type):
    """Each of the facts must be allowed, and each is named."""
    options = allowed(model_type)
    for at in range(0, len(options), 2):
        result = CKPT.run("convert", source, there, "--to",
                          "megatron_torch_dist", *options[:at],
                          *options[at + 2:]).want(5)
        check(options[at + 1] + " is " in result.err, result.err)
        check(" ".join(options[at:at + 2]) in result.err, result.err)
        check(not there.exists(), "something was written")


def program_of(model_type):
    """What builds the model from Megatron's args, by the table; nothing known
    builds a model that had to be allowed."""
    if models().UNSAID.get(model_type):
        return "code of your own"
    table = json.loads((DATA.parent.parent / "models/families/facts.json"
                        ).read_text())["megatron"]
    name = model_type.split(",")[0]
    name = {"granitemoeshared": "granitemoe"}.get(name, name)
    [row] = [row for row in table if name in row["families"]]
    return row["model"]


def there_and_back(folder, model_type):
    tiny = models()
    model = tiny.model_of(tiny.config_of(model_type))
    source = folder / "source"
    model.save_pretrained(source)
    want = tensors_of(source)
    refused_without(source, folder / "no", model_type)
    for tp in (1, 2):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        result = CKPT.ok("convert", source, there, "--to", "megatron_torch_dist",
                         "--tp", tp, "--strict-config", "--no-fsync",
                         *allowed(model_type))
        check_equal("can't say all of the model" in result.err,
                    bool(allowed(model_type)), result.err)
        check(result.err.count("warning") <= 1, result.err)
        said = program_of(model_type)
        check_equal("load into" in result.err, said != "GPTModel", result.err)
        check(said == "GPTModel" or f"load into {said}" in result.err,
              result.err)
        CKPT.ok("verify", source, there)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")
        check_equal(config_of(back), config_of(source), "config.json")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    alone = folder / "alone"
    CKPT.ok("convert", there, alone, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(alone), want, "without config.json")
    check_equal(config_of(alone)["model_type"], config_of(source)["model_type"],
                "model_type")
    CKPT.ok("verify", source, alone)
    same_function(tiny, type(model), source, alone)


def fewer_layers(folder, model_type):
    """The first layers of what Megatron holds, by its args alone, are the model
    of the first layers of what transformers saved."""
    import torch

    tiny = models()
    model = tiny.model_of(tiny.config_of(model_type, num_hidden_layers=8)
                          if "n_embd" not in tiny.TYPES[model_type]
                          else tiny.config_of(model_type, n_layer=8))
    source, there = folder / "source", folder / "there"
    model.save_pretrained(source)
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
            "--no-fsync", *allowed(model_type))
    for path in list(there.rglob("*config.json")):
        path.unlink()
    for name, start in (("want", source), ("got", there)):
        CKPT.ok("convert", start, folder / name, "-q", "--to", "safetensors",
                "--layers", "0-3", "--no-fsync")
    CKPT.ok("reshard", there, folder / "cut", "-q", "--pp", 1, "--layers",
            "0-3", "--no-fsync")
    CKPT.ok("convert", folder / "cut", folder / "again", "-q", "--to",
            "safetensors", "--no-fsync")
    want = tensors_of(folder / "want")
    logits = []
    for name in ("want", "got", "again"):
        compare(tensors_of(folder / name), want, name)
        loaded, told = type(model).from_pretrained(
            folder / name, dtype=torch.float32, output_loading_info=True)
        check(not told["missing_keys"], f"{name}: {told['missing_keys']}")
        logits.append(tiny.logits_of(loaded))
        off = float((logits[-1] - logits[0]).abs().max()
                    / logits[0].abs().max())
        check(off < 1e-5, f"{name}: logits differ by {off:.2g}")


def further_token(folder, model_type):
    """The layer that predicts a further token has all that its last one has,
    an indexer too."""
    import torch
    from dist_readers import read_dcp
    from safetensors.torch import load_file, save_file

    tiny = models()
    config = tiny.config_of(model_type, num_nextn_predict_layers=1)
    tiny.model_of(config).save_pretrained(folder / "source")
    path = folder / "source" / "model.safetensors"
    saved = load_file(path)
    last, layer = (f"model.layers.{config.num_hidden_layers + i}."
                   for i in (-1, 0))
    more = {name.replace(last, layer): value + 1
            for name, value in saved.items() if name.startswith(last)}
    width = config.hidden_size
    for name, shape in (("eh_proj", (width, 2 * width)), ("enorm", (width,)),
                        ("hnorm", (width,)), ("shared_head.norm", (width,))):
        more[f"{layer}{name}.weight"] = torch.randn(shape)
    # Published files have these twice.
    more[layer + "embed_tokens.weight"] = saved["model.embed_tokens.weight"] + 0
    more[layer + "shared_head.head.weight"] = saved["lm_head.weight"] + 0
    save_file({**saved, **more}, path, {"format": "pt"})
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", folder / "source", there, "-q", "--to",
            "megatron_torch_dist", "--tp", 2, "--no-fsync")
    tensors, _ = read_dcp(next(there.rglob(".metadata")).parent)
    parts = [{name.partition(f"layers.{at}self_attention.")[2]
              for name in tensors if f"layers.{at}self_attention." in name}
             for at in ("1.", "0.transformer_layer.")]
    check_equal(sorted(parts[1]), sorted(parts[0]), "names in attention")
    check("q_layernorm.weight" in parts[0], str(parts[0]))
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(back), tensors_of(folder / "source"), "back")


def layers_that_differ(folder):
    """Llama-Nemotron: blocks of different sizes, and blocks left out."""
    models()
    from nas_models import BLOCKS, model_of

    source = folder / "source"
    model_of().save_pretrained(source)
    want = tensors_of(source)
    for tp in (1, 2):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        CKPT.ok("convert", source, there, "--to", "megatron_torch_dist", "--tp",
                tp, "--pp", 2, "--strict-config", "--no-fsync")
        CKPT.ok("verify", source, there)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")
        check_equal(config_of(back), config_of(source), "config.json")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    alone = folder / "alone"
    CKPT.ok("convert", there, alone, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(alone), want, "without config.json")
    check_equal(config_of(alone)["block_configs"], BLOCKS, "blocks")
    # Fewer layers: the blocks follow.
    CKPT.ok("convert", source, folder / "cut", "-q", "--to", "safetensors",
            "--layers", "0-3", "--no-fsync")
    check_equal(config_of(folder / "cut")["block_configs"], BLOCKS[:4], "cut")
    CKPT.ok("convert", there, folder / "few", "-q", "--to", "safetensors",
            "--layers", "0-3", "--no-fsync")
    few = config_of(folder / "few")
    check_equal((few["num_hidden_layers"], few["block_configs"]),
                (4, BLOCKS[:4]), "cut by Megatron's args alone")
    compare(tensors_of(folder / "few"), tensors_of(folder / "cut"), "cut")


def gemma4_names(folder, model_type):
    """Names and values are those of Bridge's mapping, and files as on the hub,
    which have keys and values that nobody reads, are the same model."""
    import torch
    from dist_readers import read_dcp
    from gemma4_models import bridge_of
    from safetensors.torch import load_file, save_file

    tiny = models()
    config = tiny.config_of(model_type)
    tiny.model_of(config).save_pretrained(folder / "source")
    path = folder / "source" / "model.safetensors"
    saved = load_file(path)
    hf = {name.removeprefix("model."): value for name, value in saved.items()}
    unread = {
        f"model.layers.{layer}.self_attn.{part}.weight": torch.randn(8, 32)
        for layer in range(config.num_hidden_layers
                           - config.num_kv_shared_layers,
                           config.num_hidden_layers)
        for part in ("k_proj", "v_proj", "k_norm")}
    for extra in ({}, unread) if unread else ({},):
        save_file({**saved, **extra}, path, {"format": "pt"})
        there, back = folder / f"there{len(extra)}", folder / f"back{len(extra)}"
        result = CKPT.ok("convert", folder / "source", there, "--to",
                         "megatron_torch_dist", "--tp", 2, "--no-fsync")
        check_equal("does not read" in result.err, bool(extra), result.err)
        tensors, _ = read_dcp(next(there.rglob(".metadata")).parent)
        want = bridge_of(config, hf)
        check_equal(sorted(tensors), sorted(want), "names")
        for name, value in want.items():
            got = torch.frombuffer(bytearray(tensors[name].data),
                                   dtype=torch.float32
                                   ).reshape(tensors[name].shape)
            if name.startswith("embedding."):  # padded
                check(not got[len(value):].any(), "rows past the vocabulary")
                got = got[:len(value)]
            check_equal(tuple(got.shape), tuple(value.shape), name)
            check(torch.equal(got, value), name)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        check_equal(sorted(tensors_of(back)), sorted(saved), "names at home")
    CKPT.run("convert", folder / "source", folder / "no", "--to",
             "megatron_legacy", "--no-fsync").want(5)


def gemma4_layers(folder):
    """Its first layers are a model if they have keys of their own, no part in
    an embedding of all layers, and end with one without a window."""
    name = "gemma4_text, keys are values"
    kinds = ["sliding_attention", "full_attention"] * 4
    tiny = models()
    model = tiny.model_of(tiny.config_of(
        name, num_hidden_layers=8, layer_types=kinds, num_kv_shared_layers=4))
    source, there = folder / "source", folder / "there"
    model.save_pretrained(source)
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
            "--no-fsync")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    want = {name: value for name, value in tensors_of(source).items()
            if not any(f"layers.{n}." in name for n in range(4, 8))}
    for start in (source, there):
        home = folder / f"{start.name}_home"
        CKPT.ok("convert", start, home, "-q", "--to", "safetensors", "--layers",
                "0-3", "--no-fsync")
        compare(tensors_of(home), want, start.name)
        config = config_of(home)
        check_equal((config["num_hidden_layers"], config["layer_types"],
                     config.get("num_kv_shared_layers", 0)), (4, kinds[:4], 0),
                    "config.json")
        loaded, told = type(model).from_pretrained(home,
                                                   output_loading_info=True)
        check(not told["missing_keys"] and not told["unexpected_keys"]
              and not told["mismatched_keys"], str(told))
        for layers, why in (("0-5", "layer 4 has no keys of its own"),
                            ("0-2", "which has a window")):
            result = CKPT.run("convert", start, folder / "no", "--to",
                              "safetensors", "--layers", layers,
                              "--no-fsync").want(5)
            check(why in result.err, result.err)
    tiny.model_of(tiny.config_of("gemma4_text")).save_pretrained(folder / "e2b")
    result = CKPT.run("convert", folder / "e2b", folder / "no", "--to",
                      "safetensors", "--layers", "0-1", "--no-fsync").want(5)
    check("the embeddings of all 6 layers" in result.err, result.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    try:
        types = [*models().TYPES, *models().VARIANTS]
    except Skip as skip:
        print("skipped:", skip)
        sys.exit(77)
    for model_type in types:
        suite.add(model_type, there_and_back, model_type)
        if not model_type.startswith("gemma4"):
            suite.add(f"{model_type}, fewer layers", fewer_layers,
                      model_type)
    suite.always = ("glm_moe_dsa, a further token",)
    suite.add("glm_moe_dsa, a further token", further_token, "glm_moe_dsa")
    suite.add("nemotron_nas", layers_that_differ)
    for model_type in types:
        if model_type.startswith("gemma4"):
            suite.add(f"{model_type}, Bridge's names", gemma4_names, model_type)
    suite.add("gemma4_text, fewer layers", gemma4_layers)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
