#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each key of a config.json, changed beside the same tensors.

verify: a field of the configuration's class is set to another valid value in a
copy. `verify A B` names a fact, or transformers computes the same logits from
both, so that the key changes nothing.

sizes: a number of the configuration (heads, widths, experts …) is changed. The
conversion is refused, and so is --config-from; verify and a copy warn; or such a
model has the same tensors.

    config_keys_test.py --ckpt CKPT         the types that differ most
    config_keys_test.py --ckpt CKPT --full  all types
"""

import json
import os
import shutil
import sys
from pathlib import Path

from support import Suite, check

CKPT = None
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
# A type for each way to describe a model: fused or transposed projections,
# experts, latent attention, mixers.
CHOSEN = ("llama", "gpt2", "falcon", "opt", "phi3", "deepseek_v32", "gemma2",
          "granitemoe", "nemotron_h")
# Numbers that the tensors' shapes must fit.
SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
         "intermediate_size", "vocab_size", "num_experts", "num_local_experts",
         "n_routed_experts", "moe_intermediate_size", "n_embd", "n_head",
         "n_inner", "ffn_dim", "num_kv_heads", "q_lora_rank", "kv_lora_rank",
         "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
         "shared_expert_intermediate_size", "moe_num_experts", "n_positions",
         "num_hidden_layers", "n_layer", "mamba_num_heads", "ssm_state_size",
         "n_groups", "linear_num_key_heads", "linear_num_value_heads",
         "linear_key_head_dim", "linear_value_head_dim")


# What the base class of transformers 4.31 to 4.57 has in addition to that of
# 5.12, as written to config.json when a whole model was saved.
OF_VERSION_4 = dict(
    torchscript=False, torch_dtype="float32", use_bfloat16=False,
    tf_legacy_loss=False, pruned_heads={}, chunk_size_feed_forward=0,
    is_encoder_decoder=False, is_decoder=False, cross_attention_hidden_size=None,
    add_cross_attention=False, tie_encoder_decoder=False, finetuning_task=None,
    task_specific_params=None, tokenizer_class=None, prefix=None,
    sep_token_id=None, decoder_start_token_id=None, max_length=20, min_length=0,
    do_sample=False, early_stopping=False, num_beams=1, num_beam_groups=1,
    diversity_penalty=0.0, temperature=1.0, top_k=50, top_p=1.0, typical_p=1.0,
    repetition_penalty=1.0, length_penalty=1.0, no_repeat_ngram_size=0,
    encoder_no_repeat_ngram_size=0, bad_words_ids=None, num_return_sequences=1,
    output_scores=False, return_dict_in_generate=False, output_attentions=False,
    output_hidden_states=False, return_dict=True, forced_bos_token_id=None,
    forced_eos_token_id=None, remove_invalid_values=False,
    exponential_decay_length_penalty=None, suppress_tokens=None,
    begin_suppress_tokens=None, id2label={"0": "LABEL_0", "1": "LABEL_1"},
    label2id={"LABEL_0": 0, "LABEL_1": 1}, problem_type=None, _name_or_path="")
# Those that say how text is chosen, trained or exported: any value will do.
OF_GENERATION = dict(
    do_sample=True, early_stopping=True, num_beams=4, temperature=0.6, top_k=20,
    top_p=0.9, max_length=4096, bad_words_ids=[[3]], suppress_tokens=[4],
    begin_suppress_tokens=[5], remove_invalid_values=True, torchscript=True,
    finetuning_task="sst2", prefix="> ", use_bfloat16=True)


# Keys that a type's class reads in its own code and no dialect does: the model
# made from another value does not run. The layers after the counted ones may be
# for multi-token prediction.
APART = {
    "deepseek_v2": ("num_key_value_heads",),
    "deepseek_v3": ("num_key_value_heads", "head_dim"),
    "youtu": ("head_dim",), "hy_v3": ("num_hidden_layers",),
}


# Refused by Megatron's rules; no tensor's shape tells.
SHAPELESS = {
    "deepseek_v32": ("num_key_value_heads", "num_experts"),
    "glm4_moe_lite": ("num_key_value_heads",),
    "glm_moe_dsa": ("num_key_value_heads",), "youtu": ("num_key_value_heads",),
}


def models_of(family):
    import facts_hybrid_models
    import facts_models

    return (facts_hybrid_models if family in facts_hybrid_models.FAMILIES
            else facts_models)


def logits_at(models, folder):
    """The logits of the model that transformers loads, and whether it has a
    place for each tensor and invents none. None if it can't load it."""
    import torch
    import transformers

    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32,
            output_loading_info=True)
        fits = not any(told[key] for key in (
            "missing_keys", "unexpected_keys", "mismatched_keys"))
        return models.logits_of(model.eval()), fits
    except Exception:  # each class refuses in its own way
        return None, False


def is_same(a, b):
    return a.shape == b.shape and float(
        (a - b).abs().max()) <= 1e-6 * float(b.abs().max())


def changed(source, folder, **changes):
    """A copy that shares the tensors, with another config.json."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            os.link(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def verify(folder, family):
    models = models_of(family)
    config, source = models.config_of(family), folder / "a"
    models.model_of(config).save_pretrained(source)
    want, told, wrong = None, 0, []
    for field in models.fields_of(family):
        for value in models.values_for(config, field):
            try:
                said = models.config_of(family, **{field: value}).to_dict()
            except Exception:  # the class has no such model
                continue
            changed(source, folder / "b", **{field: said.get(field, value)})
            result = CKPT.run("verify", source, folder / "b", "--json")
            if result.code == 1:
                problems = result.json()["problems"]
                check(any(p["kind"] == "fact" for p in problems), str(problems))
                told += 1
                continue
            if result.code:
                wrong.append(f"{field} {value}: {result.code} {result.err}")
                continue
            if want is None:
                want, _ = logits_at(models, source)
            got, _ = logits_at(models, folder / "b")
            if got is not None and not is_same(got, want):
                wrong.append(f"{field} {value}: said to be the same")
    check(not wrong, "\n".join(wrong))
    check(told, "no field was told")


def sizes(folder, family):
    models = models_of(family)
    config, source = models.config_of(family), folder / "a"
    models.model_of(config).save_pretrained(source)
    said = json.loads((source / "config.json").read_text())
    allow = [word for fact in models.UNSAID.get(family, ())
             for word in ("--allow-unsaid", fact)]
    targets = [target for target in ("megatron_torch_dist", "vllm")
               if CKPT.run("convert", source, folder / "there", "--to", target,
                           "-n", "-q", *allow).code == 0]
    check(targets, "nothing takes it")
    # A file named by itself has some of the layers.
    part = folder / "model-00001-of-00002.safetensors"
    last = config.num_hidden_layers - 1
    shutil.copyfile(source / "config.json", folder / "config.json")
    CKPT.ok("convert", source, folder / "cut", "--to", "safetensors",
            "--no-fsync", "-q", "--exclude", f"*.{last}.*")
    (folder / "cut/model.safetensors").rename(part)
    CKPT.ok("verify", part)
    wrong, refused = [], 0
    for key in SIZES:
        number = said.get(key)
        if not isinstance(number, int) or isinstance(number, bool) or \
                key in APART.get(family, ()):
            continue
        for other in {number * 2, number // 2, number + 1} - {0, number}:
            changed(source, folder / "b", **{key: other})
            told = {}
            for target in targets:
                result = CKPT.run("convert", folder / "b", folder / "there",
                                  "--to", target, "-n", "-q", *allow)
                refused += result.code in (4, 5)
                told[target] = result.code in (4, 5), result
            result = CKPT.run("verify", folder / "b")
            told["verify"] = result.code == 1, result
            plain = (folder / "there", "--to", "safetensors", "-n")
            result = CKPT.run("convert", folder / "b", *plain)
            told["a copy"] = result.code == 5, result
            result = CKPT.run("convert", source, *plain, "--config-from",
                              folder / "b")
            told["--config-from"] = result.code == 5, result
            if key in SHAPELESS.get(family, ()):
                told = {target: told[target] for target in targets}
            # Half-size heads may have the same tensors.
            if all(said for said, _ in told.values()) or \
                    logits_at(models, folder / "b")[1]:
                continue
            wrong += [f"{key} {number} -> {other}, {what}: {result}"
                      for what, (said, result) in told.items() if not said]
    check(not wrong, "\n".join(wrong))
    check(refused > 4, f"{refused} refused")


def base_keys(folder, family):
    """No key that a base class writes is unknown: that of the installed
    transformers, of version 4, or of the class itself, whole."""
    import transformers

    models = models_of(family)
    config, source = models.config_of(family), folder / "a"
    models.model_of(config).save_pretrained(source)
    own = json.loads((source / "config.json").read_text())
    base = transformers.PretrainedConfig().to_dict()
    base.pop("tie_word_embeddings", None)
    # Tiny models of all types are made with some more keys.
    usual = type(config)()
    own, whole = ({key: value for key, value in table.items()
                   if key in base or hasattr(usual, key)}
                  for table in (own, json.loads(json.dumps(config.to_dict()))))
    (source / "config.json").write_text(json.dumps(own))
    for keys in (base, OF_VERSION_4, OF_GENERATION, whole):
        keys = json.loads(json.dumps(keys))
        changed(source, folder / "b", **{**keys, **own})
        changed(source, folder / "c", **{
            **keys, "model_type": own["model_type"],
            "architectures": own["architectures"]})
        for folder_of in ("b", "c")[:1 if keys is not whole else 2]:
            result = CKPT.run(
                "convert", folder / folder_of, folder / "there", "--to",
                "megatron_torch_dist", "-n", "--allow-unsaid", "*")
            check("not known" not in result.err, result.err)
    changed(source, folder / "b", pruned_heads={"0": [1]})
    result = CKPT.run("convert", folder / "b", folder / "there", "--to",
                      "megatron_torch_dist", "-n", "--allow-unsaid", "*")
    check("not known" in result.err and "pruned_heads" in result.err,
          result.err)


# What other types' classes read.
OF_OTHER_TYPES = dict(
    hidden_act="relu", hidden_activation="relu", activation_function="relu",
    activation="relu", alibi=True, attn_logit_softcapping=0.05,
    final_logit_softcapping=0.05, clip_qkv=0.05, query_pre_attn_scalar=64,
    rms_norm_eps=0.1, layer_norm_eps=0.1, layer_norm_epsilon=0.1,
    norm_epsilon=0.1, norm_eps=0.1, norm_topk_prob=True, n_group=2,
    topk_group=1, topk_method="greedy", scoring_func="sigmoid",
    routed_scaling_factor=3.0, parallel_attn=True, use_parallel_residual=True,
    scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True,
    use_bidirectional_attention=True, index_n_heads=2, index_head_dim=8,
    index_topk=4, rope_interleave=False, rope_local_base_freq=500.0,
    use_sliding_window=True, sliding_window=3, sliding_window_pattern=2,
    _sliding_window_pattern=2, max_window_layers=1, embedding_multiplier=3.0,
    logit_scale=0.5, qk_nope_head_dim=4, no_rope_layers=[0, 1])


def home_alone(folder, source, plain, family):
    """To Megatron and home by the args alone: the plain model."""
    allow = [word for fact in models_of(family).UNSAID.get(family, ())
             for word in ("--allow-unsaid", fact)]
    there, back = folder / "there", folder / "back"
    for path in (there, back):
        shutil.rmtree(path, ignore_errors=True)
    result = CKPT.run("convert", source, there, "--to", "megatron_torch_dist",
                      "--no-fsync", *allow)
    if result.code:
        return f"{result.code} {result.err}"
    for a, b in ((source, there), (plain, source), (plain, there)):
        if CKPT.run("verify", a, b).code:
            return f"{a.name} and {b.name} differ: {CKPT.run('verify', a, b)}"
    for path in there.rglob("*config.json"):
        path.unlink()
    result = CKPT.run("convert", there, back, "--to", "safetensors", "--dialect",
                      "hf", "--no-fsync")
    if result.code or CKPT.run("verify", plain, back).code:
        return f"home alone: {result} {CKPT.run('verify', plain, back)}"
    return None


def of_other_types(folder, family):
    """What the type's class does not read is no fact, however other types'
    classes read it: transformers computes the same."""
    models = models_of(family)
    config, plain = models.config_of(family), folder / "a"
    models.model_of(config).save_pretrained(plain)
    want, _ = logits_at(models, plain)
    usual, keys = type(config)(), {}
    for key, value in OF_OTHER_TYPES.items():
        if hasattr(usual, key):
            continue
        changed(plain, folder / "b", **{key: value})
        got, _ = logits_at(models, folder / "b")
        if got is None or not is_same(got, want):
            continue  # code for all types reads it
        result = CKPT.run("convert", folder / "b", folder / "there", "--to",
                          "megatron_torch_dist", "-n", "--allow-unsaid", "*")
        # It is read to be refused.
        refused = result.code == 5 and f"says {key} " in result.err
        check(refused or result.code == 0, f"{key}: {result}")
        if not refused and f"says {key} " not in result.err:
            keys[key] = value
    check(len(keys) > 8, str(keys))
    changed(plain, folder / "b", **keys)
    problem = home_alone(folder, folder / "b", plain, family)
    check(not problem, f"{keys}: {problem}")


def aliases(folder, family):
    """A second name that a class has for a key says the same, or is refused."""
    models = models_of(family)
    config, plain = models.config_of(family), folder / "a"
    models.model_of(config).save_pretrained(plain)
    said = json.loads((plain / "config.json").read_text())
    want, _ = logits_at(models, plain)
    wrong = []
    for alias, real in type(config).attribute_map.items():
        if real not in said or alias in said:
            continue
        changed(plain, folder / "b", **{alias: said[real]})
        path = folder / "b/config.json"
        table = json.loads(path.read_text())
        del table[real]
        path.write_text(json.dumps(table))
        got, _ = logits_at(models, folder / "b")
        if got is None or not is_same(got, want):
            continue
        problem = home_alone(folder, folder / "b", plain, family)
        if problem and problem[:2] not in ("4 ", "5 "):
            wrong.append(f"{alias} for {real}: {problem}")
        print(f"{family}: {alias} for {real}: "
              + ("refused" if problem else "the same"))
    check(not wrong, "\n".join(wrong))


# What a class makes of other keys where a config.json does not say it.
FOLLOWING = ("layer_types", "layers_block_type", "mlp_layer_types",
             "mlp_only_layers", "no_rope_layers", "moe_layers",
             "hybrid_override_pattern", "indexer_types")
# Lists that say how many layers there are: sizes, which must be given.
DEPTHS = {"nemotron_h": ("layers_block_type",)}


def short_form(folder, family):
    """A config.json without the lists that follow from its other keys, or from
    the class, says what transformers writes when it has read that file."""
    from transformers import AutoConfig

    models, wrong, told = models_of(family), [], 0
    plain = models.config_of(family)
    switched = {key: True for key in ("use_sliding_window",)
                if hasattr(plain, key)}
    layers = "num_hidden_layers" if hasattr(plain, "num_hidden_layers") else ""
    deep = {layers: max(4, plain.num_hidden_layers)} if layers else {}
    for changes in [{}, {**deep}, {**deep, **switched}, *(
            {**deep, **switched, field: value}
            for field in models.fields_of(family)
            for value in models.values_for(plain, field))]:
        shutil.rmtree(folder, ignore_errors=True)
        whole, short = folder / "whole", folder / "short"
        short.mkdir(parents=True)
        path = short / "config.json"
        try:
            said = models.config_of(family, **changes).to_diff_dict()
            path.write_text(json.dumps({
                key: value for key, value in said.items()
                if key not in FOLLOWING or key in DEPTHS.get(family, ())}))
            read = AutoConfig.from_pretrained(
                short, attn_implementation="eager")
            models.model_of(read).save_pretrained(whole)
            # Gemma 3 halves a window each time that it reads it.
            again = AutoConfig.from_pretrained(whole)
            if getattr(again, "sliding_window", None) != getattr(
                    read, "sliding_window", None):
                continue
        except Exception:  # the class has no such model
            continue
        os.link(whole / "model.safetensors", short / "model.safetensors")
        result = CKPT.run("verify", short, whole)
        told += 1
        if result.code:
            wrong.append(f"{changes}: {result.out} {result.err}")
    check(not wrong, "\n".join(wrong))
    check(told > 4, f"{told} models")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    import torch

    torch.set_num_threads(1)
    import facts_hybrid_models
    import facts_models

    everything = [*facts_models.FAMILIES, *facts_hybrid_models.FAMILIES]
    everything.remove("bloom")  # its sizes have names of their own there
    for family in everything if FULL else CHOSEN:
        suite.add(f"verify {family}", verify, family)
        suite.add(f"keys of the base class: {family}", base_keys, family)
        suite.add(f"sizes {family}", sizes, family)
        suite.add(f"keys of other types: {family}", of_other_types, family)
        suite.add(f"second names: {family}", aliases, family)
        suite.add(f"what follows from other keys: {family}", short_form, family)


FULL = "--full" in sys.argv

if __name__ == "__main__":
    Suite(__doc__).main(prepare)
