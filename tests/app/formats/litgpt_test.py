#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of litgpt, each of those that its own list names, made small: GPT
computes what transformers computes from what ckpt wrote, and litgpt's own
converter gives the same tensors.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal, load_pt

HOMES = [Path(sys.prefix) / name
         for name in ("litgpt", "lightning", "loaders", "transformers_5.12.1")]
CKPT = None  # set by prepare
# One of each family of transformers, which --one-in keeps.
FAMILIES = {"Llama-3.1-8B": "llama", "Mistral-7B-v0.1": "mistral",
            "Mixtral-8x7B-v0.1": "mixtral", "Gemma-2b": "gemma",
            "Gemma-2-2b": "gemma2", "Gemma-3-4b-it": "gemma3_text",
            "Qwen2.5-0.5B": "qwen2", "Qwen3-0.6B": "qwen3",
            "Qwen3-30B-A3B": "qwen3_moe", "OLMo-1B-hf": "olmo",
            "OLMo-2-1124-7B": "olmo2", "phi-2": "phi",
            "stablelm-zephyr-3b": "stablelm", "falcon-7b": "falcon",
            "falcon-40b": "falcon", "pythia-14m": "gpt_neox"}
# Names for which litgpt's converter has other tensors, or fails.
OTHERS = {
    "OLMo-2": "it has no name for post_attention_norm",
    "Phi-3": "Phi3 joins what Llama has apart", "Phi-4": "the same",
    "phi-4": "the same",
    "Gemma": "it leaves the head out: the class may tie it",
    "CodeGemma": "the same"}
# A part of each head is turned, and of transformers' classes Phi3 alone does
# that with such norms: its tensors are joined.
REFUSED = ("Phi-4-mini-instruct", "Phi-4-mini-reasoning")


def torch_and_litgpt():
    try:
        import litgpt.model
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    return torch, litgpt


def names():
    try:
        from litgpt.config import configs
    except ImportError:
        return list(FAMILIES)
    return sorted(config["name"] for config in configs)


def small(of, **more):
    """litgpt's configuration of that name with few and small layers."""
    from litgpt.config import Config

    whole = Config.from_name(of)
    grouped = whole.n_query_groups
    sizes = {"n_layer": 3, "n_embd": 64, "n_head": 4, "head_size": 16,
             "n_query_groups":
             4 if grouped == whole.n_head else 1 if grouped == 1 else 2,
             "vocab_size": 90, "padded_vocab_size": 96, "block_size": 64,
             "intermediate_size":
             256 if whole.mlp_class_name == "GptNeoxMLP" else 48}
    if whole.n_expert:
        sizes |= {"n_expert": 4, "n_expert_per_token": 2}
    if whole.moe_intermediate_size:
        sizes["moe_intermediate_size"] = 24
    if whole.sliding_window_size:
        sizes["sliding_window_size"] = 8
    if whole.rope_adjustments and "original_max_seq_len" in \
            whole.rope_adjustments:
        sizes["rope_adjustments"] = dict(whole.rope_adjustments,
                                         original_max_seq_len=16)
    return Config.from_name(of, **(sizes | more))


def saved(folder, config, wrapped=True, older=False):
    """A model of random weights, as litgpt leaves it: lit_model.pth and
    model_config.yaml. `older`: query, key and value as before 0.5.4."""
    torch, _ = torch_and_litgpt()
    from litgpt.model import GPT
    from litgpt.scripts.convert_lit_checkpoint import qkv_reassemble
    from litgpt.utils import save_config

    torch.manual_seed(len(config.name))
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 4
                            + (parameter.dim() == 1))
    folder.mkdir(parents=True)
    save_config(config, folder)
    state = model.state_dict()
    if older:
        state = {name.replace("attn.qkv.", "attn.attn."):
                 qkv_reassemble(tensor, config) if ".attn.qkv." in name
                 else tensor for name, tensor in state.items()}
    torch.save({"model": state} if wrapped else state,
               folder / "lit_model.pth")
    return model


def check_logits(model, path):
    import torch
    from transformers import AutoModelForCausalLM

    found, notes = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check_equal(sorted(notes[what]), [], what)
    tokens = torch.arange(24)[None] * 7 % 90
    with torch.no_grad():
        want, got = model(tokens), found.eval()(tokens).logits
    far = (want - got).abs().max() / want.abs().max()
    check(far < 2e-5, f"logits differ by {far:.1e} of the largest")


def own_conversion(source, out):
    """What litgpt's converter makes."""
    from litgpt.scripts.convert_lit_checkpoint import convert_lit_checkpoint

    with contextlib.redirect_stdout(io.StringIO()):
        convert_lit_checkpoint(source, out)
    return load_pt(out / "model.pth")


def test_model(folder, name, wrapped, older):
    from safetensors.torch import load_file
    import torch

    torch_and_litgpt()
    config = small(name)
    model = saved(folder / "in", config, wrapped, older)
    if name in REFUSED:
        result = CKPT.run("convert", folder / "in", folder / "out", "--to",
                          "safetensors", "--dialect", "hf").want(5)
        check("model_config.yaml" in result.err, result.err)
        return
    CKPT.ok("convert", folder / "in", folder / "out", "--to", "safetensors")
    said = json.loads((folder / "out/config.json").read_text())
    if name in FAMILIES:
        check_equal(said["model_type"], FAMILIES[name], "the family")
    check_logits(model, folder / "out")
    CKPT.ok("verify", folder / "in", folder / "out")
    if older or any(name.startswith(one) for one in OTHERS):
        return
    want = own_conversion(folder / "in", folder / "own")
    got = load_file(folder / "out/model.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    for key, tensor in want.items():
        check(torch.equal(got[key], tensor), key)


def test_beside(folder):
    """config.json of the model that training began from: it says the same, or
    the conversion is refused."""
    torch_and_litgpt()
    config = small("Llama-3.1-8B")
    model = saved(folder / "in", config)
    CKPT.ok("convert", folder / "in", folder / "first", "--to", "safetensors")
    text = json.loads((folder / "first/config.json").read_text())
    text["bos_token_id"] = 7
    (folder / "in/config.json").write_text(json.dumps(text))
    CKPT.ok("convert", folder / "in", folder / "out", "--to", "safetensors")
    found = json.loads((folder / "out/config.json").read_text())
    check_equal(found["bos_token_id"], 7, "a key of the kept file")
    check_logits(model, folder / "out")
    for key, value in (("rope_theta", 77.0), ("rms_norm_eps", 0.25),
                       ("num_key_value_heads", 4)):
        (folder / "in/config.json").write_text(
            json.dumps(dict(text, **{key: value})))
        result = CKPT.run("convert", folder / "in", folder / key,
                          "--dialect", "hf", "--to", "safetensors")
        check_equal(result.code, 5, f"{key}: {result.err}")
        check("model_config.yaml" in result.err, result.err)


def test_alone(folder):
    """Without its configuration a model of litgpt's is refused, and what no
    rule knows (lit-llama's) keeps its names with a warning."""
    torch, _ = torch_and_litgpt()
    saved(folder / "in", small("Llama-3.1-8B"))
    (folder / "in/model_config.yaml").unlink()
    said = CKPT.run("convert", folder / "in", folder / "out", "--to", "hf")
    check_equal(said.code, 5, said.err)
    check("put that beside it" in said.err, said.err)
    layer = "transformer.h.0."
    torch.save({"transformer.wte.weight": torch.ones(8, 4),
                f"{layer}rms_1.scale": torch.ones(4),
                f"{layer}attn.c_attn.weight": torch.ones(12, 4)},
               folder / "lit-llama.pth")
    said = CKPT.ok("convert", folder / "lit-llama.pth", folder / "names",
                   "--to", "hf")
    check("config.json is missing" in said.err, said.err)


def test_tied(folder):
    """A config.json whose class has one tensor for embedding and head: both are
    the same, or the user says which."""
    torch, _ = torch_and_litgpt()
    source = folder / "in"
    model = saved(source, small("Gemma-2b"))
    CKPT.ok("convert", source, folder / "first", "--to", "safetensors")
    text = json.loads((folder / "first/config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(dict(text, tie_word_embeddings=True)))
    result = CKPT.run("convert", source, folder / "no", "--to", "safetensors")
    check_equal(result.code, 5, str(result))
    check("--set tie=false" in result.err, result.err)
    CKPT.ok("convert", source, folder / "two", "--to", "safetensors", "--set",
            "tie=false")
    check_logits(model, folder / "two")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.transformer.wte.weight)
    torch.save({"model": model.state_dict()}, source / "lit_model.pth")
    CKPT.ok("convert", source, folder / "one", "--to", "safetensors")
    check_logits(model, folder / "one")


def test_step(folder):
    """A step of pretraining, with its optimizer; and one that lacks a
    tensor."""
    torch, _ = torch_and_litgpt()
    model = saved(folder / "in", small("pythia-14m"))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
             "iter_num": 3, "step_count": 1, "train_dataloader": {}}
    torch.save(whole, folder / "in/lit_model.pth")
    CKPT.ok("verify", folder / "in")
    CKPT.ok("convert", folder / "in", folder / "torch", "--to", "torch")
    kept = CKPT.ok("convert", folder / "in", folder / "kept", "--to",
                   "safetensors")
    check("names stay those of litgpt" in kept.err, kept.err)
    CKPT.ok("convert", folder / "in", folder / "out", "--to", "safetensors",
            "--model-only")
    check_logits(model, folder / "out")
    del whole["model"]["transformer.h.1.attn.qkv.bias"]
    torch.save(whole, folder / "in/lit_model.pth")
    result = CKPT.run("verify", folder / "in")
    check(result.code == 1 and "h.1.attn.qkv.bias" in result.out, str(result))


def test_lora(folder, name, parts):
    """lit_model.pth.lora, added to lit_model.pth: litgpt's own merge."""
    torch, _ = torch_and_litgpt()
    from litgpt.lora import GPT, Config, lora_filter, merge_lora_weights

    base = saved(folder / "base", small(name), wrapped=False)
    given = {f"lora_{part}": part in parts
             for part in ("query", "key", "value", "projection", "mlp", "head")}
    model = GPT(Config.from_file(folder / "base/model_config.yaml", lora_r=4,
                                 lora_alpha=6, lora_dropout=0.0, **given))
    model.load_state_dict(base.state_dict(), strict=False)
    torch.manual_seed(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.copy_(torch.randn(parameter.shape) / 4)
    lora = folder / "lora"
    lora.mkdir()
    torch.save({"model": {key: value for key, value in
                          model.state_dict().items()
                          if lora_filter(key, value)}},
               lora / "lit_model.pth.lora")
    (lora / "hyperparameters.yaml").write_text(
        f"checkpoint_dir: {folder}/base\nlora_r: 4\nlora_alpha: 6\n"
        + "".join(f"{key}: {'true' if value else 'false'}\n"
                  for key, value in given.items()))
    CKPT.ok("convert", folder / "base", folder / "out", "--to", "safetensors",
            "--adapter", lora)
    merge_lora_weights(model)
    check_logits(model.eval(), folder / "out")


CHANGES = {"rope_interleave": True, "parallel_residual": True,
           "shared_attention_norm": True, "scale_embeddings": True,
           "attention_logit_softcapping": 30.0, "lm_head_bias": True,
           "final_logit_softcapping": 30.0, "attention_scores_scalar": 5,
           "norm_1": False, "norm_2": False, "post_mlp_norm": True,
           "rotary_percentage": 0.45, "norm_class_name": "LayerNorm",
           "name": "My-Gemma", "sliding_window_size": 8, "norm_qk": True,
           "rope_condense_ratio": 4, "rope_base": 500, "norm_eps": 0.125,
           "bias": True, "attn_bias": True, "mlp_class_name": "GemmaMLP",
           "rope_adjustments": {"factor": 4.0}}


def test_change(folder, name, key):
    """One key of the configuration: the same logits, or refused."""
    torch, _ = torch_and_litgpt()
    try:
        config = small(name, **{key: CHANGES[key]})
        model = saved(folder / "in", config)
        with torch.no_grad():
            model(torch.zeros((1, 2), dtype=torch.long))
    except Exception as error:
        raise Skip(f"litgpt has no such model: {error}") from error
    result = CKPT.run("convert", folder / "in", folder / "out",
                      "--to", "safetensors", "--dialect", "hf")
    if result.code == 0:
        check_logits(model, folder / "out")
    else:
        check_equal(result.code, 5, result.err)
        check("model_config.yaml" in result.err, result.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path[1:1] = [str(home) for home in HOMES]
    for name in names():
        for wrapped, older in ((True, False), (False, True)):
            case = f"{name}{' of an older litgpt' if older else ''}"
            suite.add(case, test_model, name, wrapped, older)
            if name in FAMILIES and wrapped:
                suite.always += (case,)
    suite.add("config.json beside", test_beside)
    suite.add("without its configuration", test_alone)
    suite.add("tied by config.json", test_tied)
    suite.add("a step of pretraining", test_step)
    for parts in (("query", "value"), ("query", "key", "value", "projection",
                                       "mlp", "head")):
        for name in ("Llama-3.1-8B", "Qwen2.5-0.5B", "Gemma-2-2b"):
            suite.add(f"{name} with a LoRA of {', '.join(parts)}", test_lora,
                      name, parts)
    for name in ("Llama-3.1-8B", "pythia-14m", "Gemma-2-2b", "Qwen3-30B-A3B"):
        for key in CHANGES:
            suite.add(f"{name} with {key}", test_change, name, key)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
