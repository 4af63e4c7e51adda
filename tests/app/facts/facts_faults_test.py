#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that once silently turned a model into another, each a separate case
named after the fault. The models are transformers' own, tiny and random; what
comes back has its logits, or the command refused with status 5.
"""

import copy
import json
import shutil
import sys
from pathlib import Path

from facts_fault_cases import (
    ARGS, ARG_TYPES, BY_HAND, LINEAR, LLAMA3, NUMBERS, OTHER_EXPERTS,
    OTHER_FAMILIES, OTHERS, RECORDS, REFUSED, SURVIVE, THETA, TYPES, UNKNOWN)
from support import Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
MEGATRON = ("--to", "megatron_torch_dist")
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
def model(folder, family, **changes):
    """The directory of a tiny model, and its logits."""
    from facts_models import logits_of

    return folder, logits_of(saved(folder, family, **changes))


def saved(folder, family, **changes):
    from facts_models import config_of, model_of

    # transformers adds to a dictionary that it is given, which others have too.
    made = model_of(config_of(family, **copy.deepcopy(changes)))
    made.save_pretrained(folder)
    return made


def same_logits(folder, want):
    from facts_models import logits_at

    got = logits_at(folder)
    off = float((got - want).abs().max() / want.abs().max())
    check(off < 1e-5, f"logits are off by {off:.2g}")


def take_config(folder):
    for name in ("config.json", "generation_config.json"):
        for path in folder.rglob(name):
            path.unlink()


def config_at(folder):
    return json.loads((folder / "config.json").read_text())


def edit_config(folder, **changes):
    (folder / "config.json").write_text(
        json.dumps({**config_at(folder), **changes}))


def edit_args(folder, **changes):
    """As another run of Megatron would have written them."""
    import torch

    [common] = folder.rglob("common.pt")
    state = torch.load(common, weights_only=False)
    for name, value in changes.items():
        setattr(state["args"], name, value)
    torch.save(state, common)


def refused(source, target, *options, word=""):
    result = CKPT.run("convert", source, target, *options).want(5)
    check(word in result.err, f"no word of {word}: {result.err}")
    return result


# ------------------------------------------------------ there, and back again
def survives(folder, family, changes, target, kept):
    """Logits after the way back, from config.json or from args alone."""
    source, want = model(folder / "source", family, **changes)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", target)
    if not kept:
        take_config(there)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors", "--family",
            family)
    same_logits(back, want)
    CKPT.ok("verify", source, there)


# ---------------------------------------------------------------- it says no
def says_no(folder, family, changes, target, word):
    # Some of these the class itself can't compute.
    source = folder / "source"
    saved(source, family, **changes)
    refused(source, folder / "there", "--to", target, word=word)
    check(not (folder / "there").exists(), "something was written")


def args_of_others(folder, changes, family="llama"):
    source, _ = model(folder / "source", family)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    take_config(there)
    edit_args(there, **changes)
    refused(there, folder / "back", "--to", "safetensors", "--family", family)


def beside_text_config(folder):
    """What stands beside a text_config is no part of the language model, even
    if the text_config lacks it: transformers goes by its class then."""
    from facts_vision_models import config_of, logits_at, model_of

    source = folder / "source"
    model_of(config_of("llava, llama")).save_pretrained(source)
    whole = config_at(source)
    for i, (beside, without) in enumerate((
            (dict(rope_scaling=LINEAR), ()),
            (dict(num_attention_heads=8, num_key_value_heads=8, head_dim=2,
                  hidden_size=16, vocab_size=3), ()),
            (dict(rms_norm_eps=0.5, hidden_act="gelu"),
             ("rms_norm_eps", "hidden_act")),
            (dict(rope_theta=77.0, rope_parameters=dict(THETA, rope_theta=7.0)),
             ("rope_parameters",)))):
        text = {k: v for k, v in whole["text_config"].items()
                if k not in without}
        (source / "config.json").write_text(
            json.dumps({**whole, **beside, "text_config": text}))
        there, back = folder / f"there{i}", folder / f"back{i}"
        CKPT.ok("convert", source, there, "-q", *MEGATRON)
        take_config(there)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors")
        want, got = logits_at(source), logits_at(back)
        off = float((got - want).abs().max() / want.abs().max())
        check(off < 1e-5, f"{beside}: logits are off by {off:.2g}")


def by_hand(folder, family, changes, edits):
    from facts_models import logits_at

    source, _ = model(folder / "source", family, **changes)
    edit_config(source, **edits)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", *MEGATRON)
    take_config(there)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors")
    same_logits(back, logits_at(source))


def heads_of_others(folder):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    other, _ = model(folder / "other", "llama", num_attention_heads=2,
                     head_dim=16)
    refused(there, folder / "back", "--to", "safetensors", "--config-from",
            other, word="head_dim is 8")


def numbers_of_others(folder, changes):
    """In each dialect, and through --config-from."""
    source, _ = model(folder / "source", "llama", head_dim=8,
                      num_key_value_heads=2)
    edit_config(source, **changes)
    bare = folder / "bare"
    bare.mkdir()
    shutil.copy(source / "model.safetensors", bare)
    for target in ("meta", "fairseq2", "olmo_core", "olmo_core_v1", "vllm",
                   "megatron_torch_dist"):
        there = folder / "there"
        refused(source, there, "--to", target)
        check(not there.exists(), "something was written")
    refused(bare, folder / "there", "--to", "olmo_core", "--config-from",
            source)


def rounded_sizes(folder):
    source, _ = model(folder / "source", "llama", head_dim=8)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "meta")
    [params] = there.rglob("params.json")
    said = json.loads(params.read_text())
    params.write_text(json.dumps({**said, "multiple_of": 256}))
    refused(there, folder / "back", "--to", "safetensors", word="ffn_size 256")


def family_of_others(folder, asked, own):
    source, _ = model(folder / "source", own)
    for target in ("megatron_torch_dist", "vllm"):
        refused(source, folder / "there", "--to", target, "--family", asked,
                word=f"model_type {own}")


def family_on_record(folder, family, target, others, said):
    """With the config.json taken away; with another one, too."""
    from facts_models import UNSAID, config_of

    source, want = model(folder / "source", family)
    there = folder / "there"
    allowed = [word for fact in UNSAID.get(family, ())
               for word in ("--allow-unsaid", fact)]
    CKPT.ok("convert", source, there, "-q", "--to", target, *allowed)
    if target != "olmo_core":
        take_config(there)
    home = ("--to", "safetensors", "--dialect", "hf")
    for other in others:
        refused(there, folder / "no", *home, "--family", other, word=said)
    CKPT.ok("convert", there, folder / "back", "-q", *home, "--family", family)
    same_logits(folder / "back", want)
    config_of(others[0]).save_pretrained(folder / "other")
    refused(there, folder / "no", *home, "--config-from", folder / "other")


def window_of_others(folder):
    source, _ = model(folder / "source", "llama", head_dim=8)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "meta")
    [params] = there.rglob("params.json")
    said = json.loads(params.read_text())
    params.write_text(json.dumps({**said, "sliding_window": 4}))
    take_config(there)
    refused(there, folder / "back", "--to", "safetensors", "--family", "llama",
            word="window")


def unknown_arg(folder, name):
    source, _ = model(folder / "source", "llama")
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    edit_args(there, **{name: 2})
    refused(there, back, "--to", "safetensors", "--strict-config", word=name)
    result = CKPT.ok("convert", there, back, "--to", "safetensors")
    check(name in result.err, f"not named: {result.err}")


def value_of_no_type(folder, changes):
    source, _ = model(folder / "source", "llama")
    edit_config(source, **changes)
    for target in ("meta", "fairseq2", "megatron_torch_dist"):
        result = CKPT.run("convert", source, folder / "there", "--to", target)
        check(result.code in (4, 5), f"{result.code}: {result.err}")
        [name] = changes
        check(name in result.err, f"no word of {name}: {result.err}")


def arg_of_no_type(folder, changes):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    take_config(there)
    edit_args(there, **changes)
    result = CKPT.run("convert", there, folder / "back", "--to", "safetensors",
                      "--family", "llama")
    check(result.code in (4, 5), f"{result.code}: {result.err}")
    [name] = changes
    check(name.split("_")[-1] in result.err or "window" in result.err,
          f"no word of {name}: {result.err}")


# -------------------------------------------------------------------- others
def args_of(folder):
    import torch

    [common] = folder.rglob("common.pt")
    return vars(torch.load(common, weights_only=False)["args"])


def args_by_megatrons_names(folder, family, changes, wanted):
    """GPTModel is built from these."""
    source, _ = model(folder / "source", family, **changes)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    args = args_of(there)
    for name, value in wanted.items():
        got = args.get(name)
        check_equal(tuple(got) if isinstance(got, list) else got, value, name)


def mtp_without_tensors(folder):
    """config.json counts a layer that predicts a further token, but there is
    none: Megatron's args ask for none."""
    source, want = model(folder / "source", "deepseek_v3")
    edit_config(source, num_nextn_predict_layers=1)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    check(not args_of(there).get("mtp_num_layers"), "it asks for one")
    CKPT.ok("convert", there, folder / "back", "-q", "--to", "safetensors")
    same_logits(folder / "back", want)


def generation_config_travels(folder):
    """Through each Megatron format, byte for byte."""
    source, _ = model(folder / "source", "llama")
    wanted = '{"eos_token_id": [2, 7], "temperature": 0.6}\n'
    (source / "generation_config.json").write_text(wanted)
    before = source
    for target in ("megatron_torch_dist", "megatron_zarr", "megatron_legacy",
                   "safetensors"):
        CKPT.ok("convert", before, folder / target, "-q", "--to", target)
        before = folder / target
    check_equal((before / "generation_config.json").read_text(), wanted,
                "generation_config.json")


IDS = dict(bos_token_id=5, eos_token_id=[6, 7], pad_token_id=3)


def token_ids_travel(folder, target, kept):
    """Where a text begins and ends, or a warning that nothing says where."""
    source, _ = model(folder / "source", "llama")
    edit_config(source, **IDS)
    (source / "generation_config.json").write_text(json.dumps(IDS))
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", target)
    if not kept:
        take_config(there)
    result = CKPT.ok("convert", there, back, "--to", "safetensors", "--family",
                     "llama")
    config = config_at(back)
    if kept or {key: config.get(key) for key in IDS} == IDS:
        check_equal({key: config.get(key) for key in IDS}, IDS, "config.json")
    else:
        check("bos_token_id" not in config, str(config))
        check("does not say bos_token_id and eos_token_id" in result.err,
              f"lost without a word\n{result}")


def layers_follow(folder):
    source, _ = model(folder / "source", "llama", num_hidden_layers=4)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "safetensors", "--layers",
            "0-1")
    check_equal(config_at(there)["num_hidden_layers"], 2, "num_hidden_layers")
    CKPT.ok("convert", source, folder / "args", "-q", "--to",
            "megatron_torch_dist", "--layers", "0-1")
    check_equal(args_of(folder / "args")["num_layers"], 2, "args.num_layers")


def infinity_outlasts(folder):
    """Python's json module writes what JSON has no number for: such a file is
    followed and kept as others are."""
    source, _ = model(folder / "source", "llama", num_hidden_layers=4)
    odd = {"limits": [0.0, float("inf"), -float("inf")],
           "words": ["Infinity", 'a "NaN"', "-Infinity \\"]}
    edit_config(source, **odd)
    before = config_at(source)
    for target in ("safetensors", "torch", "vllm"):
        there = folder / target
        CKPT.ok("convert", source, there, "-q", "--to", target, "--layers",
                "0-1")
        check_equal(config_at(there), {**before, "num_hidden_layers": 2},
                    target)
    CKPT.ok("convert", source, folder / "args", "-q", *MEGATRON)
    CKPT.ok("verify", source, folder / "args")
    CKPT.ok("convert", folder / "args", folder / "back", "-q", "--to",
            "safetensors")
    check_equal(config_at(folder / "back"), before, "config.json")


def config_is_rewritten(folder, parallel):
    source, _ = model(folder / "source", "gpt_neox",
                      use_parallel_residual=parallel)
    before = config_at(source)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
            "--allow-unsaid", "parallel_residual")
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors")
    check_equal(config_at(back), before, "config.json")
    check((back / "generation_config.json").exists(),
          "generation_config.json is lost")


def dtype_follows(folder):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "safetensors", "--dtype",
            "bf16")
    config = config_at(there)
    check_equal(config.get("dtype", config.get("torch_dtype")), "bfloat16",
                "dtype of config.json")


def router_bias_keeps_f32(folder):
    source, _ = model(folder / "source", "deepseek_v3")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "safetensors", "--dtype",
            "bf16")
    kinds = {name: t.dtype for p in there.glob("*.safetensors")
             for name, t in read_safetensors(p).items()
             if name.endswith("e_score_correction_bias")}
    check(kinds and set(kinds.values()) == {"f32"}, str(kinds))
    # It also does from Megatron to Megatron, to vLLM and back.
    before = folder / "args"
    CKPT.ok("convert", source, before, "-q", *MEGATRON)
    for target in ("megatron_legacy", "megatron_zarr", "vllm", "safetensors"):
        CKPT.ok("convert", before, folder / target, "-q", "--to", target,
                "--dtype", "bf16")
        tensors = CKPT.inspect(folder / target)["tensors"]
        kinds = {t["name"]: t["dtype"] for t in tensors
                 if t["name"].endswith(("_bias", ".bias"))}
        check(kinds and set(kinds.values()) == {"f32"}, f"{target} {kinds}")
        check("bf16" in {t["dtype"] for t in tensors}, "nothing was cast")
        if target.startswith("megatron"):
            before = folder / target


def rows_that_are_not_zero(folder):
    """Rows past vocab_size with values are cut only on request."""
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    take_config(there)
    edit_args(there, vocab_size=60)
    result = CKPT.run("convert", there, folder / "back", "--to", "safetensors",
                      "--family", "llama")
    check(result.code == 5, f"rows with values were cut\n{result}")


def foreign_names(folder, target):
    """70 rows, which vLLM pads."""
    source, want = model(folder / "source", "llama", vocab_size=70)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", target)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors", "--dialect",
            "hf")
    check_equal(sorted(names_in(back)), sorted(names_in(source)), "names")
    same_logits(back, want)


def verify_says_same(folder, target):
    source, _ = model(folder / "source", "llama", tie_word_embeddings=True)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", target)
    CKPT.ok("verify", source, there)


def vocabulary_of_torch_dist(folder):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist")
    CKPT.ok("reshard", there, folder / "again", "-q",
            "--make-vocab-size-divisible-by", 96)


def tied_head_through_modelopt(folder):
    source, want = model(folder / "source", "llama", tie_word_embeddings=True)
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", source, there, "-q", "--to", "modelopt", "--pp", 1)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors")
    check_equal(sorted(names_in(back)), sorted(names_in(source)), "names")
    same_logits(back, want)


def names_in(folder):
    return [name for path in folder.glob("*.safetensors")
            for name in read_safetensors(path)]


def heads_that_ranks_cannot_share(folder):
    source, _ = model(folder / "source", "llama", hidden_size=48, head_dim=8,
                      num_attention_heads=6, num_key_value_heads=3)
    result = CKPT.ok("convert", source, folder / "there", "--to",
                     "megatron_torch_dist", "--tp", 2)
    check("3 query groups" in result.err and
          "--tensor-model-parallel-size 1, 3, 6" in result.err, result.err)
    result = CKPT.ok("convert", source, folder / "fits", "--to",
                     "megatron_torch_dist", "--tp", 3)
    check("query groups" not in result.err, result.err)


def wrapped(folder, prefix):
    """The state of a wrapped module, saved by torch."""
    import torch
    from safetensors.torch import load_file

    source, want = model(folder / "source", "llama")
    state = load_file(source / "model.safetensors")
    wrapped_at = folder / "wrapped"
    wrapped_at.mkdir()
    torch.save({prefix + k: v for k, v in state.items()},
               wrapped_at / "pytorch_model.bin")
    shutil.copy(source / "config.json", wrapped_at)
    CKPT.ok("convert", wrapped_at, folder / "there", "-q", "--to",
            "megatron_torch_dist")
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors")
    same_logits(folder / "back", want)


def facts_are_shown(folder):
    source, _ = model(folder / "source", "llama", rope_parameters=LLAMA3)
    shown = CKPT.ok("inspect", source, "--json").json()["facts"]
    check_equal(shown["rope_factor"]["value"], 32.0, "rope_factor")
    check("config.json" in shown["rope_factor"]["source"], str(shown))
    result = CKPT.ok("family", "check", source)
    check("rope_factor" in result.out, f"no facts\n{result}")


# What builds the model from Megatron's args, what GPTModel lacks, and whether
# the conversion must be asked for.
PROGRAMS = {
    "gemma": ("Megatron-Bridge", ["embedding_scale"], False),
    "gemma2": ("Megatron-Bridge", ["norm_placement", "softcaps"], False),
    "gemma3_text": ("Megatron-Bridge", ["norm_placement"], False),
    "olmoe": ("Megatron-Bridge", ["qk_norm"], False),
    "minimax_m2": ("Megatron-Bridge", ["qk_norm"], False),
    "exaone4": ("Megatron-Bridge", ["norm_placement"], False),
    "olmo2": ("code of your own", ["norm_placement", "qk_norm"], False),
    "glm4": ("code of your own", ["norm_placement"], True),
    "ernie4_5_moe": ("code of your own", ["expert_bias"], True),
}


def program_is_said(folder, family, program, lacks, refused_first):
    source, _ = model(folder / "source", family)
    there, options = folder / "there", []
    if refused_first:
        result = refused(source, there, *MEGATRON, word=f"{lacks[0]} is ")
        check(f"--allow-unsaid {lacks[0]}" in result.err, result.err)
        options = ["--allow-unsaid", lacks[0]]
    result = CKPT.ok("convert", source, there, *MEGATRON, *options, "-n",
                     "--json")
    said = result.json()["load_into"]
    check_equal(said["program"], program, "program")
    check({*lacks} <= {*said["lacks"]}, str(said))
    result = CKPT.ok("convert", source, there, *MEGATRON, *options)
    check(f"load into {program}: GPTModel lacks " in result.err, result.err)
    if program == "code of your own":
        check("can't say all of the model" in result.err, result.err)
        for name in lacks:
            check(f"{name} is " in result.err, result.err)
        check(" (there: " in result.err and "(there: none)" not in result.err,
              result.err)
        refused(source, folder / "strict", *MEGATRON, "--strict-config",
                word=lacks[0])
    CKPT.ok("verify", source, there)


def config_of_another(folder, first, second):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", first)
    [config] = there.rglob("config.json")
    edit_config(config.parent, rms_norm_eps=0.25)
    refused(there, folder / "other", "--to", second, word="norm_epsilon")
    CKPT.run("reshard", there, folder / "other").want(5)
    CKPT.run("unshard", there, folder / "other").want(5)
    check(not (folder / "other").exists(), "something was written")
    CKPT.run("verify", source, there).want(1)
    CKPT.run("diff", source, there).want(1)
    config.unlink()
    CKPT.ok("convert", there, folder / "other", "-q", "--to", second)


# Formats with their own dialect, and whose names unshard keeps.
NATIVE = {"megatron_torch_dist": "Megatron", "megatron_zarr": "Megatron",
          "megatron_legacy": "Megatron", "meta": "Meta",
          "fairseq2": "fairseq2", "olmo_core": "OLMo-core", "vllm": "vLLM"}


def unshard_keeps_names(folder, form):
    """Names that stay are reported; transformers' own need no mention."""
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", form, "--no-fsync")
    said = f"names stay those of {NATIVE.get(form)}: unshard"
    for out in ("one.safetensors", "one.pt", "many"):
        result = CKPT.ok("unshard", there, folder / out, "--no-fsync")
        check_equal(said in result.err, form in NATIVE, f"{out}: {result.err}")


# fairseq2 0.4 writes Llama 3's scaling whatever its own model has.
BESIDE_FAIRSEQ2 = {
    "as fairseq2 0.4 writes it": (
        dict(rope_parameters=LLAMA3, architectures=["Fairseq2LlamaForCausalLM"]),
        "rope_factor is none ("),
    "the same of another program": (dict(rope_parameters=LLAMA3), None),
    "another scaling": (
        dict(rope_parameters=LINEAR, architectures=["Fairseq2LlamaForCausalLM"]),
        None),
    "another base, too": (
        dict(rope_parameters=dict(LLAMA3, rope_theta=500.0),
             architectures=["Fairseq2LlamaForCausalLM"]), None),
    "an epsilon": (
        dict(rms_norm_eps=0.25, architectures=["Fairseq2LlamaForCausalLM"]),
        None),
    "heads": (dict(num_key_value_heads=4), None),
    "a text": (dict(architectures="Fairseq2", rope_parameters=LLAMA3), None),
}


def config_beside_fairseq2(folder, changes, word):
    """Its own files sometimes describe two models: a warning says so where both
    go along. For any other two, nothing is written, under whatever names."""
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "fairseq2")
    [config] = there.rglob("config.json")
    edit_config(config.parent, **changes)
    refused(there, folder / "no", "--to", "safetensors", "--dialect", "hf")
    refused(there, folder / "no", "--to", "megatron_torch_dist")
    for command, to in (("reshard", []), ("unshard", []),
                        ("convert", ["--to", "fairseq2"]),
                        ("convert", ["--to", "safetensors"]),
                        ("convert", ["--to", "torch"]),
                        ("convert", ["--to", "dcp"])):
        out = folder / "_".join((command, *to[1:]))
        result = CKPT.run(command, there, out, *to).want(0 if word else 5)
        check_equal(out.exists(), bool(word), "written")
        if word:
            check(word in result.err, result.err)
            check("32.0 (config.json" in result.err, result.err)
            check("names stay" in result.err or "reads the first" in result.err,
                  result.err)


def config_beside_ranks(folder):
    source, want = model(folder / "source", "llama", attention_dropout=0.125)
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_legacy")
    for name, start in (("root", there), ("step", there / "release")):
        back = folder / name
        CKPT.ok("convert", start, back, "-q", "--to", "safetensors")
        check_equal(config_at(back), config_at(source), name)
        same_logits(back, want)
    edit_config(there, rms_norm_eps=0.25)
    refused(there, folder / "no", "--to", "safetensors", word="norm_epsilon")


def dtype_beside_ranks(folder):
    source, _ = model(folder / "source", "llama")
    there = folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_legacy", "--dtype",
            "bf16")
    check_equal(config_at(there)["dtype"], "bfloat16", "dtype")


def params_of_nobody(folder):
    source, _ = model(folder / "source", "llama")
    (source / "params.json").write_text('{"dim": 12, "n_layers": 7}')
    result = CKPT.ok("convert", source, folder / "there", *MEGATRON, "--json")
    [file] = [f for f in result.json()["files"] if f["path"] == "params.json"]
    check_equal(file["fate"], "left_out", "fate")
    check("config.json was read" in file["reason"], file["reason"])
    check("params.json" in result.err, result.err)


def head_of_its_own(folder, target):
    """config.json says it is the embedding, but it is another tensor."""
    source, _ = model(folder / "source", "llama", head_dim=8)
    edit_config(source, tie_word_embeddings=True)
    result = refused(source, folder / "there", "--to", target,
                     word="lm_head.weight")
    check("tie_word_embeddings" in result.err, result.err)


def ties_are_compared(folder):
    source, _ = model(folder / "source", "llama")
    tied = shutil.copytree(source, folder / "tied")
    edit_config(tied, tie_word_embeddings=True)
    result = CKPT.run("verify", source, tied, "--json").want(1)
    check_equal([p["name"] for p in result.json()["problems"]], ["tied"],
                "facts")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    for name, case in SURVIVE.items():
        suite.add(name, survives, *case)
    for name, case in REFUSED.items():
        suite.add(name, says_no, *case)
    for name, case in BY_HAND.items():
        suite.add(name, by_hand, *case)
    suite.add("what is beside a text_config becomes its own",
              beside_text_config)
    for name, changes in OTHER_EXPERTS.items():
        suite.add(f"args of another run, {name}", args_of_others, changes,
                  "qwen3_moe")
    for name, changes in OTHERS.items():
        suite.add(f"args that contradict the family are taken: {name}",
                  args_of_others, changes)
    suite.add("a config.json with other heads is taken", heads_of_others)
    for name, changes in NUMBERS.items():
        suite.add(f"a config.json whose numbers the tensors are not of: {name}",
                  numbers_of_others, changes)
    suite.add("multiple_of of params.json makes another size", rounded_sizes)
    for name, row in RECORDS.items():
        suite.add(f"on record: {name}", family_on_record, *row)
    for asked, others in OTHER_FAMILIES.items():
        for own in others:
            suite.add(f"--family {asked} makes a {own} another model",
                      family_of_others, asked, own)
    suite.add("a window in params.json is dropped", window_of_others)
    for name in UNKNOWN:
        suite.add(f"Megatron's {name} counts as changing nothing", unknown_arg,
                  name)
    for name, changes in TYPES.items():
        suite.add(f"config.json says {name}", value_of_no_type, changes)
    for name, changes in ARG_TYPES.items():
        suite.add(f"Megatron's args say {name}", arg_of_no_type, changes)
    for name, case in ARGS.items():
        suite.add(f"Megatron's args lack {name}", args_by_megatrons_names,
                  *case)
    suite.add("mtp_num_layers without MTP tensors", mtp_without_tensors)
    suite.add("generation_config.json is lost through Megatron",
              generation_config_travels)
    for target, kept in (("meta", True), ("meta", False), ("fairseq2", False),
                         ("megatron_torch_dist", False)):
        suite.add(f"the end of a text is lost in {target}, config.json "
                  + ("kept" if kept else "away"), token_ids_travel, target,
                  kept)
    suite.add("num_layers stays 4 after --layers 0-1", layers_follow)
    suite.add("Infinity of a config.json becomes null", infinity_outlasts)
    for parallel in (False, True):
        suite.add(f"use_parallel_residual {parallel} is rewritten",
                  config_is_rewritten, parallel)
    suite.add("config.json's dtype stays", dtype_follows)
    suite.add("the router's bias is cast", router_bias_keeps_f32)
    suite.add("rows that are not zero are cut", rows_that_are_not_zero)
    for target in ("fairseq2", "olmo_core", "vllm", "meta"):
        suite.add(f"{target} keeps foreign names in safetensors",
                  foreign_names, target)
    for target in ("vllm", "megatron_torch_dist", "olmo_core", "modelopt"):
        suite.add(f"verify says different after {target}", verify_says_same,
                  target)
    suite.add("a vocabulary of torch_dist can't be padded",
              vocabulary_of_torch_dist)
    suite.add("a tied head comes back from modelopt as another parameter",
              tied_head_through_modelopt)
    suite.add("tp that shares no heads is taken without a word",
              heads_that_ranks_cannot_share)
    for prefix in ("model.", "app.", "module.", "_orig_mod.",
                   "_forward_module."):
        suite.add(f"a wrapper stops the conversion: {prefix}", wrapped, prefix)
    suite.add("facts are not shown", facts_are_shown)
    for family, case in PROGRAMS.items():
        suite.add(f"{family} goes to Megatron without a word", program_is_said,
                  family, *case)
    for first, second in (("megatron_zarr", "megatron_torch_dist"),
                          ("megatron_legacy", "megatron_zarr"),
                          ("megatron_torch_dist", "megatron_legacy")):
        suite.add(f"another model's config.json goes along from {first} to "
                  f"{second}", config_of_another, first, second)
    suite.add("config.json does not come home from megatron_legacy",
              config_beside_ranks)
    for name, case in BESIDE_FAIRSEQ2.items():
        suite.add("fairseq2's shards beside a config.json of another model: "
                  + name, config_beside_fairseq2, *case)
    for form in (*NATIVE, "safetensors", "dcp"):
        suite.add(f"unshard says whose names stay: {form}",
                  unshard_keeps_names, form)
    suite.add("config.json's dtype stays beside megatron_legacy",
              dtype_beside_ranks)
    suite.add("a params.json that nobody read counts as converted",
              params_of_nobody)
    for target in ("vllm", "modelopt"):
        suite.add(f"a tied head that is another tensor goes to {target}",
                  head_of_its_own, target)
    suite.add("verify ties a head that is another tensor", ties_are_compared)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
