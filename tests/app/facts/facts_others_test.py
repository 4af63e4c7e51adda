#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that once silently turned a model into another, in what other programs
wrote: args of another run, a tower beside the language model, scaled fp8,
wrapped modules, ranks' files. Each is a separate case named after the fault, as
in facts_faults_test.py.
"""

import json
import shutil
import sys

import facts_faults_test as faults
from facts_fault_cases import LLAMA3, SAID, YARN
from facts_faults_test import (
    config_at, edit_args, model, refused, same_logits, take_config)
from support import DATA, Suite, check, check_equal, compare, read_safetensors

CKPT = None  # set by prepare
MEGATRON = ("--to", "megatron_torch_dist")
HF = ("--to", "safetensors")


def tensors_in(folder):
    return {name: tensor for path in folder.glob("*.safetensors")
            for name, tensor in read_safetensors(path).items()}


def torch_state(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


# ------------------------------------------------------------ a tower beside
def vision_tower(folder):
    """transformers' Gemma 3 with its tower: carried under any names, left out
    on request, and refused by name where it has no rule."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    config = Gemma3Config(
        text_config=dict(
            vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, head_dim=8,
            num_key_value_heads=2, sliding_window=6,
            max_position_embeddings=64),
        vision_config=dict(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, image_size=16, patch_size=4),
        mm_tokens_per_image=4, image_token_index=60, boi_token_index=61,
        eoi_token_index=62)
    source = folder / "source"
    Gemma3ForConditionalGeneration(config).float().save_pretrained(source)
    want = tensors_in(source)
    tower = [n for n in want if "vision_tower" in n or "projector" in n]
    check(len(want) - len(tower) > 20 and len(tower) == 50, sorted(want))
    CKPT.ok("convert", source, folder / "torch", "--to", "torch", "-q")
    CKPT.ok("convert", folder / "torch", folder / "back", *HF, "-q")
    compare(tensors_in(folder / "back"), want, "by way of torch")
    CKPT.ok("convert", source, folder / "megatron", *MEGATRON)
    CKPT.ok("convert", folder / "megatron", folder / "home", *HF, "-q")
    compare(tensors_in(folder / "home"), want, "by way of Megatron")
    strange = folder / "strange"
    shutil.copytree(source, strange)
    from safetensors.torch import load_file, save_file
    tensors = load_file(strange / "model.safetensors")
    tensors["model.other_tower.adapter.weight"] = next(
        iter(tensors.values())).clone()
    save_file(tensors, strange / "model.safetensors")
    refused(strange, folder / "no", *MEGATRON, word="adapter.weight")


TOWERS = ("llava, llama", "internvl, qwen2", "llama4", "aya_vision",
          "cohere2_vision")


def towers_are_said(folder, name):
    """No code builds both: a warning names what is left to whoever loads it, and
    --strict-config refuses it."""
    import facts_vision_models as models

    source, there = folder / "source", folder / "there"
    models.model_of(models.config_of(name)).save_pretrained(source)
    allow = [word for fact in models.UNSAID.get(name, ())
             for word in ("--allow-unsaid", fact) if fact != "tower"]
    result = refused(source, there, *MEGATRON, *allow, "--strict-config",
                     word="tower is a tower and a projector")
    check("--allow-unsaid tower" in result.err, result.err)
    result = CKPT.ok("convert", source, there, *MEGATRON, *allow)
    check("tower is a tower and a projector beside the language model (there: a "
          "language model alone)" in result.err, result.err)
    check("load into code of your own" in result.err, result.err)
    CKPT.ok("verify", source, there)


# ------------------------------------------------------- args of another run
def from_args(folder, family, args, changes=None):
    """A model of another run's args, without a config.json: where they are."""
    source, want = model(folder / "source", family, **(changes or {}))
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", *MEGATRON)
    take_config(there)
    edit_args(there, **args)
    return there, want


def rope_of_args(folder, args, rope):
    """What another run's args say about the rotary embedding comes along."""
    there, _ = from_args(folder, "llama", args)
    _, want = model(folder / "said", "llama", rope_parameters=rope)
    CKPT.ok("convert", there, folder / "back", *HF, "-q", "--family", "llama")
    same_logits(folder / "back", want)


def window_is_a_tuple(folder):
    """Megatron-LM's parser makes a tuple of --window-size; ours was a list."""
    there, want = from_args(folder, "mistral", dict(window_size=(3, 0)),
                            dict(sliding_window=4))
    CKPT.ok("convert", there, folder / "back", *HF, "-q", "--family", "mistral")
    check_equal(config_at(folder / "back")["sliding_window"], 4, "the window")
    same_logits(folder / "back", want)


def kinds_of_values():
    """Values that are the number in Python, and those that are none."""
    import enum
    from argparse import Namespace

    import numpy
    import torch

    same = [numpy.float64(0.5), numpy.float32(0.5)]
    other = ["0.5", [0.5], (0.5,), {0.5}, b"0.5", Namespace(a=0.5),
             torch.tensor(0.5), torch.bfloat16, {"a": 0.5},
             enum.IntEnum]
    return same, other


def values_of_another_kind(folder):
    """rotary_percent as another Python type: its value, or an error that names
    it; never the default, never a tag of ours in config.json."""
    same, other = kinds_of_values()
    there, _ = from_args(folder, "stablelm", {})
    for i, value in enumerate(same):
        edit_args(there, rotary_percent=value)
        CKPT.ok("convert", there, folder / f"same{i}", *HF, "-q", "--family",
                "stablelm")
        text = json.dumps(config_at(folder / f"same{i}"))
        check('"partial_rotary_factor": 0.5' in text and "!" not in text, text)
    for i, value in enumerate(other):
        edit_args(there, rotary_percent=value)
        result = CKPT.run("convert", there, folder / f"no{i}", *HF, "--family",
                          "stablelm")
        check(result.code in (4, 5) and "rotary_percent" in result.err,
              f"{value!r}: {result}")


ARGS = {
    "a part of each head that Llama's class turns whole": (
        "llama", dict(rotary_percent=0.5), "rope_fraction is 0.5"),
    "another softmax scale": (
        "llama", dict(softmax_scale=0.5), "query_scale is 4"),
    "a sigmoid router": (
        "mixtral", dict(moe_router_score_function="sigmoid"),
        "router_score is sigmoid"),
    "groups of experts": (
        "mixtral", dict(moe_router_num_groups=2, moe_router_group_topk=1),
        "router_groups is 2"),
    "routing by sinkhorn": (
        "mixtral", dict(moe_router_load_balancing_type="sinkhorn"),
        "router_sinkhorn"),
    "an indexer without relu": (
        "deepseek_v32", dict(dsa_indexer_scoring_relu=False), "indexer_relu"),
    "a bias of the router": (
        "mixtral", dict(moe_router_enable_expert_bias=True), "expert_bias"),
}


def args_say(folder, family, args, word):
    there, _ = from_args(folder, family, args)
    refused(there, folder / "back", *HF, "--family", family, word=word)


def latent_epsilon(folder):
    """Norms inside latent attention: 1e-6 in transformers' code, in GPTModel the
    model's. A small difference is said, a large one refused, in both ways."""
    for value, code in ((1e-6, 0), (1e-5, 0), (1e-3, 5)):
        source, want = model(folder / f"{value}", "deepseek_v3",
                             rms_norm_eps=value)
        there = folder / f"{value} there"
        result = CKPT.run("convert", source, there, *MEGATRON).want(code)
        check_equal("latent_epsilon is 1e-06" in result.err, value != 1e-6,
                    result.err)
        if value == 1e-6:
            continue
        refused(source, folder / "strict", *MEGATRON, "--strict-config",
                word="latent_epsilon")
        CKPT.ok("convert", source, folder / "vllm", "--to", "vllm", "-q",
                "--strict-config", "--overwrite")
        if code:
            continue
        CKPT.ok("verify", source, there)
        for alone in (False, True):
            if alone:
                take_config(there)
            back = folder / f"back {alone}"
            result = CKPT.ok("convert", there, back, *HF)
            check_equal("latent_epsilon" in result.err, alone, result.err)
            same_logits(back, want)
        edit_args(there, norm_epsilon=1e-3, layernorm_epsilon=1e-3)
        refused(there, folder / "no", *HF, "--dialect", "hf",
                word="latent_epsilon")


def flags_of_others(folder):
    """A run's args include Megatron's defaults for delta nets and mixers."""
    result = CKPT.ok(
        "convert", DATA / "megatron_legacy/moe_te_bias_ep2_distopt/ckpt",
        folder / "there", *MEGATRON)
    line = next(x for x in result.err.splitlines() if "load with" in x)
    check("--linear-" not in line and "--mamba-" not in line, line)


# ---------------------------------------------------------------- OLMo's own
def olmo_config(folder):
    """What comes back from OLMo-core is transformers' config.json."""
    source, want = model(folder / "source", "olmo3")
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "--to", "olmo_core", "-q")
    check("model_type" not in config_at(there), "HF's config.json in OLMo's")
    CKPT.ok("convert", there, back, *HF, "-q")
    config = config_at(back)
    check_equal(config["model_type"], "olmo3", "model_type")
    check("block" not in json.dumps(config), "OLMo's configuration")
    same_logits(back, want)


def olmo_run(folder, case):
    """OLMo-core's own checkpoint names its family: the result is that of
    OLMo-core's own export, in tensors and meaning."""
    golden, back = DATA / "olmo_core_dcp" / case, folder / "back"
    result = CKPT.ok("convert", golden / "ckpt", back, *HF)
    check("names stay" not in result.err, result.err)
    want = golden / "other/hf_f32"
    compare(tensors_in(back), tensors_in(want), case)
    CKPT.ok("verify", back, want)
    check_equal(config_at(back)["model_type"], case[3:], "model_type")


def flex_olmo(folder, place, value, word):
    """The facts of an OLMo-core mixture are in config.json, or it isn't
    converted."""
    source = folder / "source"
    shutil.copytree(DATA / "olmo_core_dcp/hf_flex_olmo/ckpt", source)
    config = config_at(source)
    part = config["model"]["block"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (source / "config.json").write_text(json.dumps(config))
    if word.startswith("="):
        CKPT.ok("convert", source, folder / "back", *HF, "-q")
        key, _, want = word[1:].partition(" ")
        check_equal(str(config_at(folder / "back")[key]), want, key)
    else:
        refused(source, folder / "back", *HF, "--dialect", "hf", word=word)


ROUTER = ("feed_forward_moe", "router")
FLEX = {
    "a scaled rope": (
        ("sequence_mixer", "rope", "scaling"),
        {"factor": 4.0, "old_context_len": 16, "beta_fast": 32, "beta_slow": 1,
         "_CLASS_": "olmo_core.nn.rope.YaRNRoPEScalingConfig"},
        "=rope_scaling {'beta_fast': 32, 'beta_slow': 1, 'factor': 4.0, "
        "'original_max_position_embeddings': 16, 'rope_type': 'yarn'}"),
    "normalized weights": (
        (*ROUTER, "normalize_expert_weights"), 1.0, "=norm_topk_prob True"),
    "weights of length 1": (
        (*ROUTER, "normalize_expert_weights"), 2.0, "router_normalized"),
    "a sigmoid": ((*ROUTER, "gating_function"), "sigmoid", "router_score"),
    "windows": (
        ("sequence_mixer", "sliding_window"),
        {"pattern": [4], "force_full_attention_on_last_layer": False},
        "window"),
}


def olmo_windows(folder, kept):
    source, want = model(folder / "source", "olmo3")
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "--to", "fairseq2", "-q")
    if not kept:
        take_config(there)
    CKPT.ok("convert", there, back, *HF, "-q")
    same_logits(back, want)
    check(4 in [config_at(back)["num_hidden_layers"]], "layers")
    check_equal(config_at(back)["sliding_window"], 6, "sliding_window")


def olmo_by_type(folder):
    """transformers 5.24 writes OLMo 3's rope for each type of layer; layers
    with windows have the same base, and never a scaling."""
    source, want = model(folder / "source", "olmo3")
    config = config_at(source)
    flat = config["rope_parameters"]

    def write(window):
        (source / "config.json").write_text(json.dumps({
            **config, "rope_parameters": {"full_attention": flat,
                                          "sliding_attention": window}}))

    write(flat)
    there, back = folder / "there", folder / "back"
    result = CKPT.ok("convert", source, there, *MEGATRON)
    check("rope" not in result.err.replace("rope_scaled", ""), result.err)
    take_config(there)
    CKPT.ok("convert", there, back, *HF, "--family", "olmo3", "-q")
    same_logits(back, want)
    for window, word in ((dict(flat, rope_theta=70.0), "rope_window_theta"),
                         (dict(flat, rope_type="linear", factor=2.0),
                          "rope_local_type")):
        write(window)
        for target in MEGATRON, ("--to", "olmo_core"), ("--to", "fairseq2"):
            refused(source, folder / "out", *target, word=word)


def olmo_yarn(folder):
    source, _ = model(folder / "source", "olmo3", rope_parameters=YARN)
    refused(source, folder / "there", "--to", "fairseq2", word="rope")


# --------------------------------------------------------- layers without rope
UNSAID = ("--allow-unsaid", "*")


def layers_by_pattern(folder, family, kept):
    """Layers that config.json counts rather than lists."""
    types = ["sliding_attention", "full_attention"] * 2
    source, want = model(folder / "source", family, layer_types=types,
                         sliding_window=4)
    config = config_at(source)
    del config["layer_types"]
    config["sliding_window_pattern"] = 2
    (source / "config.json").write_text(json.dumps(config))
    same_logits(source, want)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, *MEGATRON, "-q", *UNSAID)
    if not kept:
        take_config(there)
    CKPT.ok("convert", there, back, *HF, "-q")
    same_logits(back, want)
    CKPT.ok("verify", source, back)


def layers_all_full(folder, family):
    """No window, and therefore no rope."""
    source, want = model(folder / "source", family, sliding_window=4,
                         layer_types=["full_attention"] * 4)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, *MEGATRON, "-q", *UNSAID)
    take_config(there)
    CKPT.ok("convert", there, back, *HF, "-q")
    same_logits(back, want)


# ---------------------------------------------------------------- fp8 scales
def scaled_fp8(folder):
    """--dtype on block-scaled codes gives the weights that they mean; scales
    are never cast, kept or dropped without them."""
    import torch
    from safetensors.torch import save_file

    source, _ = model(folder / "source", "llama")
    state, plain = torch_state(source), {}
    for name, weight in list(state.items()):
        plain[name] = weight.bfloat16()
        if not name.endswith("_proj.weight"):
            continue
        scale = weight.abs().max().reshape(1, 1) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        state[name], state[name + "_scale_inv"] = codes, scale
        plain[name] = (codes.float() * scale).bfloat16()
    save_file(state, source / "model.safetensors", {"format": "pt"})
    faults.edit_config(source, quantization_config={
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
        "activation_scheme": "dynamic"})
    back = folder / "back"
    CKPT.ok("convert", source, back, *HF, "-q", "--dtype", "bf16")
    got = torch_state(back)
    check_equal(sorted(got), sorted(plain), "names")
    for name, weight in plain.items():
        check(torch.equal(got[name], weight), name)
    check("quantization_config" not in config_at(back), "still said quantized")
    for option in ("--drop", "--exclude"):
        refused(source, folder / "no", *(MEGATRON if option == "--drop"
                                         else HF), option, "*_scale_inv")


# -------------------------------------------------------------- ranks' files
VERIFIED = {
    "legacy to torch_dist": ("megatron_legacy/llama_te_tp2_pp2", MEGATRON),
    "olmo_core_v1 to olmo_core": (
        "olmo_core_v1/fsdp_olmo_w2", ("--to", "olmo_core")),
    "a rescue of flat buffers": (
        "megatron_torch_dist/gpt_flat_optim_model_space_v0140",
        (*MEGATRON, "--optim", "fully_reshardable")),
}


def verified(folder, case, options):
    CKPT.ok("convert", DATA / case / "ckpt", folder / "there", *options, "-q")
    CKPT.ok("verify", DATA / case / "ckpt", folder / "there")


def vocabulary(folder, options, rows):
    """torch_dist to torch_dist with other rows, from a run with other ranks."""
    source, want = model(folder / "source", "llama")
    CKPT.ok("convert", source, folder / "a", *MEGATRON, "-q", "--tp", 2)
    CKPT.ok("convert", folder / "a", folder / "b", *MEGATRON, "-q", *options)
    document = CKPT.ok("inspect", folder / "b", "--json").json()
    [shape] = [t["shape"] for t in document["tensors"]
               if t["name"] == "embedding.word_embeddings.weight"]
    check_equal(shape[0], rows, "rows")
    CKPT.ok("convert", folder / "b", folder / "back", *HF, "-q")
    same_logits(folder / "back", want)
    CKPT.ok("verify", source, folder / "b")


# ------------------------------------------------------------------- wrapped
PREFIXES = ("model.", "model.model.", "app.model.", "module.", "_orig_mod.",
            "_forward_module.", "state_dict.", "module._orig_mod.")


def wrapped_dcp(folder, prefix):
    """A wrapped module's state, saved by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    source, want = model(folder / "source", "llama")
    there = folder / "dcp"
    dcp.save({prefix + k: v for k, v in torch_state(source).items()},
             checkpoint_id=there, no_dist=True)
    result = CKPT.ok("convert", there, folder / "back", *HF, "--dialect", "hf",
                     "--config-from", source)
    same_logits(folder / "back", want)
    check("error" not in result.err, result.err)
    CKPT.ok("convert", there, folder / "there", *MEGATRON, "-q",
            "--config-from", source)
    CKPT.ok("verify", source, folder / "there")


def dtype_beside_dcp(folder, target):
    """--dtype is also recorded in the config.json beside a DCP."""
    import torch.distributed.checkpoint as dcp

    source, _ = model(folder / "source", "llama")
    there = folder / "dcp"
    dcp.save(torch_state(source), checkpoint_id=there, no_dist=True)
    shutil.copy(source / "config.json", there)
    result = CKPT.ok("convert", there, folder / "back", "--to", target,
                     "--dtype", "bf16")
    check_equal(config_at(folder / "back")["dtype"], "bfloat16", "dtype")
    check("left out" not in result.err, result.err)
    check_equal(config_at(there)["dtype"], "float32", "the source's dtype")


def wrapped_zero3(folder, prefix):
    """Parameters of a wrapped module, cut by DeepSpeed's stage 3."""
    import torch
    from deepspeed_test import load_states

    golden = DATA / "runs/hf_trainer_zero3_w2"
    source = folder / "source"
    shutil.copytree(golden / "ckpt/checkpoint-3", source)
    for path in source.rglob("*_model_states.pt"):
        states = load_states(path)
        states["module"] = {prefix + k: v for k, v in
                            states["module"].items()}
        states["param_shapes"] = [
            {prefix + k: v for k, v in group.items()}
            for group in states["param_shapes"]]
        torch.save(states, path)
    CKPT.ok("convert", source, folder / "back", *HF, "-q", "--model-only")
    compare(tensors_in(folder / "back"),
            read_safetensors(golden / "expected.safetensors"), "names")


# --------------------------------------------------------------------- shown
def shown_everywhere(folder):
    source, _ = model(folder / "source", "llama", rope_parameters=LLAMA3)
    for command in (("inspect", source), ("family", "check", source)):
        facts = CKPT.ok(*command, "--json").json()["facts"]
        check_equal(facts["rope_factor"]["value"], 32.0, str(command))
        check("config.json rope_parameters.factor" in
              facts["rope_factor"]["source"], facts)
    for command in (("inspect", source, "-v"), ("family", "check", source)):
        text = CKPT.ok(*command).out
        check("rope_factor" in text and "rope_parameters.factor" in text, text)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    faults.prepare(Suite(""), ckpt)  # its paths, and its ckpt
    suite.add("a vision tower vanishes", vision_tower)
    suite.add("the tuple of a window is lost", window_is_a_tuple)
    suite.add("a value of another type is a default", values_of_another_kind)
    for name in TOWERS:
        suite.add(f"the tower goes to Megatron without a word: {name}",
                  towers_are_said, name)
    for name, case in SAID.items():
        suite.add(f"{name} of the args is lost", rope_of_args, *case)
    for name, case in ARGS.items():
        suite.add(f"args that contradict the family are taken: {name}",
                  args_say, *case)
    suite.add("the epsilon inside latent attention is another", latent_epsilon)
    suite.add("flags of mixers for a model without them", flags_of_others)
    suite.add("OLMo's configuration becomes HF's config.json", olmo_config)
    for case in ("hf_llama", "hf_olmo2", "hf_olmo3", "hf_qwen3",
                 "hf_flex_olmo"):
        suite.add(f"OLMo-core's own run needs --family: {case}", olmo_run,
                  case)
    for name, case in FLEX.items():
        suite.add(f"FlexOlmo's facts are lost: {name}", flex_olmo, *case)
    for kept in (True, False):
        suite.add("OLMo 3's windows are lost in fairseq2's, config.json "
                  + ("kept" if kept else "away"), olmo_windows, kept)
    for family in ("cohere2", "exaone4"):
        for kept in (True, False):
            suite.add(f"{family}'s layers without rope are lost, config.json "
                      + ("kept" if kept else "away"), layers_by_pattern,
                      family, kept)
        suite.add(f"{family} has rope after args alone", layers_all_full,
                  family)
    suite.add("OLMo 3's yarn is lost in fairseq2's", olmo_yarn)
    suite.add("OLMo 3's rope is by type of layer", olmo_by_type)
    suite.add("scales of fp8 are rounded apart from their weights", scaled_fp8)
    for name, case in VERIFIED.items():
        suite.add(f"verify says different after {name}", verified, *case)
    for options, rows in (
            (("--make-vocab-size-divisible-by", 96), 192),  # of two ranks
            (("--make-vocab-size-divisible-by", 48, "--tp", 2), 96),
            (("--vocab-size", 64), 256)):  # 128 for each
        suite.add("a vocabulary of torch_dist can't be "
                  + " ".join(map(str, options)), vocabulary, options, rows)
    for prefix in PREFIXES:
        suite.add(f"a wrapper stops DCP: {prefix}", wrapped_dcp, prefix)
        suite.add(f"a wrapper stops ZeRO-3: {prefix}", wrapped_zero3, prefix)
    for target in ("safetensors", "dcp", "torch"):
        suite.add(f"config.json's dtype stays beside a DCP: {target}",
                  dtype_beside_dcp, target)
    suite.add("facts are not shown with their sources", shown_everywhere)


if __name__ == "__main__":
    sys.argv[0] = __file__
    Suite(__doc__).main(prepare)
