#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verify says whether a reader will find its model: transformers is asked.

A tiny model of each type is spoilt in one way after the other: each tensor
dropped, renamed, emptied, flattened, transposed, given whole numbers; each
number of config.json changed. transformers loads the result and says what is
missing, unexpected or mismatched; where it says so, verify must not say "ok".
By default some of the ways for few types; --full has all of them.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

import whole_files
from support import DATA, ROOT, Skip, Suite, check, check_equal

CKPT = None
FULL = False
FEW = ("llama", "qwen3_moe", "gpt2")
# What was taken for whole once: the way of spoiling, for each kind of tensor and
# number that only some types have.
ONCE = {
    "bamba": {"model.layers.0.mamba.A_log": "integer"},
    "deepseek_v32": {},
    "gpt_oss": {"model.layers.0.mlp.experts.down_proj": "integer",
                "model.layers.0.self_attn.sinks": "integer"},
    "llama4_text": {"model.layers.1.feed_forward.shared_expert.down_proj.weight":
                    "transposed"},
    "nemotron_h": {"backbone.layers.4.mixer.experts.0.up_proj.weight":
                   "transposed"},
    "opt": {},
    "qwen3_next": {"model.layers.0.mlp.shared_expert_gate.weight": "flattened"},
}
PEER = Path(sys.prefix) / "transformers_5.12.1"
WAYS = ("dropped", "renamed", "emptied", "flattened", "transposed", "integer")


def peer():
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def saved(model_type, folder):
    """A tiny model, and what transformers wrote of it."""
    peer()
    from safetensors.torch import load_file

    import model_types

    model, _ = model_types.small_config(model_type)
    model.save_pretrained(folder)
    return type(model), load_file(folder / "model.safetensors")


def write(folder, tensors):
    from safetensors.torch import save_file

    save_file({k: v.contiguous().clone() for k, v in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


def complaint(kind, folder):
    """What transformers does not find or can't use; "" if it loads all."""
    try:
        _, info = kind.from_pretrained(
            str(folder), output_loading_info=True, local_files_only=True,
            ignore_mismatched_sizes=True)
    except Exception as error:  # it refuses, which is an answer too
        return f"{type(error).__name__}: {error}"[:120]
    said = {what: sorted(map(str, info[what])) for what in
            ("missing_keys", "unexpected_keys", "mismatched_keys")}
    return "; ".join(f"{what} {names[:2]}" for what, names in said.items() if names)


def complaint_of(folder):
    return complaint(peer().LlamaForCausalLM, folder)


def spoilt(tensors, name, way):
    """The tensors with one changed; None where the change is none."""
    import torch

    out, value = dict(tensors), tensors[name]
    if way == "dropped":
        del out[name]
    elif way == "renamed":
        out[name + "_x"] = out.pop(name)
    elif way == "emptied":
        out[name] = value.new_zeros((0,))
    elif way == "flattened":
        if value.dim() < 2:
            return None
        out[name] = value.flatten()
    elif way == "transposed":
        if value.dim() != 2 or value.shape[0] == value.shape[1]:
            return None
        out[name] = value.t()
    elif way == "added":
        out[name + "_x"] = value.clone()
    elif way == "integer":
        out[name] = torch.zeros(value.shape, dtype=torch.int8)
    return out


def verdict(folder, *options):
    said = CKPT.run("verify", folder, "--quick", "--json", *options)
    check(said.code in (0, 1), f"neither ok nor not ok\n{said}")
    report = json.loads(said.out)
    check_equal(report["ok"], said.code == 0, "ok and the status")
    return report


def spoil(folder, model_type):
    """Whatever transformers complains of, verify finds."""
    kind, tensors = saved(model_type, folder / "hf")
    check_equal(complaint(kind, folder / "hf"), "", "the model as it is")
    check_equal(verdict(folder / "hf")["verdict"], "ok", "the model as it is")
    counts, silent = dict.fromkeys(("found", "can't tell", "silent"), 0), []
    chosen = [(name, way) for name in tensors for way in WAYS]
    if not FULL:
        chosen = random.Random(7).sample(chosen, min(30, len(chosen)))
        if model_type in ONCE:
            chosen = list(ONCE[model_type].items())
    for name, way in chosen:
        changed = spoilt(tensors, name, way)
        if changed is None:
            continue
        write(folder / "hf", changed)
        report = verdict(folder / "hf")
        if not report["ok"]:
            counts["found"] += 1
        elif report["verdict"] == "cant_tell":
            counts["can't tell"] += 1
        elif way == "integer" or complaint(kind, folder / "hf"):
            counts["silent"] += 1
            silent.append(f"{name} {way}")
    print(f"  {model_type}: {counts}")
    check(not silent, f"{len(silent)} silent: {silent[:10]}")


def spoil_files(folder, case):
    """The same of other dialects: nothing that is gone, has another name or
    shape is "ok"."""
    whole_files.copied(CKPT, folder / "as it is", case).write()
    check_equal(verdict(folder / "as it is")["verdict"], "ok", "as it is")
    names = sorted(whole_files.copied(CKPT, folder / "names", case).places())
    counts, silent = dict.fromkeys(("found", "can't tell", "silent"), 0), []
    chosen = [(name, way) for name in names for way in (*WAYS, "added")]
    if not FULL:
        chosen = random.Random(7).sample(chosen, min(9, len(chosen)))
    for name, way in chosen:
        spoilt_files = whole_files.copied(CKPT, folder / "x", case)
        changes = 0
        for holder, key in spoilt_files.places()[name]:
            changed = spoilt({key: holder[key]}, key, way)
            if changed is not None:
                del holder[key]
                holder.update(changed)
                changes += 1
        if changes:
            spoilt_files.write()
            report = verdict(folder / "x")
            said = ("found" if not report["ok"] else "can't tell"
                    if report["verdict"] == "cant_tell" else "silent")
            counts[said] += 1
            if said == "silent":
                silent.append(f"{name} {way}")
        shutil.rmtree(folder / "x")
    print(f"  {case}: {counts}")
    check(not silent, f"{len(silent)} silent: {silent[:10]}")


def change(folder, model_type):
    """The same for config.json; what no name or shape shows is listed."""
    kind, _ = saved(model_type, folder / "hf")
    path = folder / "hf" / "config.json"
    config = json.loads(path.read_text())
    unseen, silent = [], []
    for key, value in config.items():
        if type(value) is not int or key.endswith("token_id"):
            continue
        path.write_text(json.dumps({**config, key: value + max(1, value)}))
        report = verdict(folder / "hf")
        if not report["ok"] or report["verdict"] == "cant_tell":
            continue
        (silent if complaint(kind, folder / "hf") else unseen).append(key)
    print(f"  {model_type}: not checkable from one folder: {unseen}")
    check(not silent, f"silent: {silent}")


# ------------------------------------------------- what a report may not say
def llama(folder, **changes):
    """Llama as files alone: no peer is needed for these."""
    import torch

    config = dict(architectures=["LlamaForCausalLM"], model_type="llama",
                  hidden_size=16, intermediate_size=24, num_hidden_layers=4,
                  num_attention_heads=4, num_key_value_heads=2, vocab_size=32,
                  rms_norm_eps=1e-6, tie_word_embeddings=False,
                  torch_dtype="float32", max_position_embeddings=64,
                  hidden_act="silu") | changes
    shapes = {"model.embed_tokens.weight": (32, 16), "lm_head.weight": (32, 16),
              "model.norm.weight": (16,)}
    for layer in range(4):
        for name, shape in {
                "self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16),
                "self_attn.v_proj": (8, 16), "self_attn.o_proj": (16, 16),
                "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16),
                "mlp.down_proj": (16, 24), "input_layernorm": (16,),
                "post_attention_layernorm": (16,)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(shape, generator=generator)
               for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def lost(tensors, *words):
    return {k: v for k, v in tensors.items() if not any(w in k for w in words)}


def class_of_losses(folder):
    """Layers, embedding, head, norm, a projection: each is missed, in verify,
    convert and salvage."""
    tensors = llama(folder / "hf")
    rows = {
        "layer 2": (".layers.2.",), "first layers": (".layers.0.", ".layers.1."),
        "last layer": (".layers.3.",), "embedding": ("embed_tokens",),
        "head": ("lm_head",), "final norm": ("model.norm",),
        "a projection": (".layers.1.self_attn.q_proj",),
        "each o_proj": ("o_proj",)}
    for what, words in rows.items():
        write(folder / "hf", lost(tensors, *words))
        report = verdict(folder / "hf")
        check_equal(report["verdict"], "incomplete", what)
        named = {p["tensor"] for p in report["problems"]
                 if p["kind"] == "missing_tensor"}
        check_equal(named, {k for k in tensors if any(w in k for w in words)},
                    what)
        for argv in (("convert", folder / "hf", folder / "out", "--to", "torch"),
                     ("convert", folder / "hf", folder / "out", "--to", "dcp")):
            done = CKPT.run(*argv)
            done.want(5)
            check(not (folder / "out").exists(), f"{what}: written\n{done}")
        CKPT.run("salvage", folder / "hf", folder / "out", "-n").want(5)
    write(folder / "hf", lost(tensors, ".layers.2."))
    for options in (("--allow-missing", "*"), ("--keys", "*"),
                    ("--layers", "0-1")):
        out = folder / ("out" + options[0])
        CKPT.ok("convert", folder / "hf", out, "--to", "torch", *options)


def class_of_mismatches(folder):
    """A stray tensor, another vocabulary, codes, flat weights: told."""
    import torch

    tensors = llama(folder / "hf")
    name = "model.layers.1.mlp.up_proj.weight"
    rows = {
        "unknown_tensor": tensors | {"model.layers.1.mlp.extra.weight":
                                     torch.ones(3)},
        "shape": tensors | {name: tensors[name].flatten()},
        "dtype": tensors | {name: tensors[name].to(torch.int8)},
        "empty_tensor": tensors | {name: torch.zeros(0)},
    }
    for kind, changed in rows.items():
        write(folder / "hf", changed)
        report = verdict(folder / "hf")
        check(not report["ok"], f"{kind}: ok")
        check(kind in {p["kind"] for p in report["problems"]
                       if p["tensor"] in (name, "model.layers.1.mlp.extra.weight")},
              f"{kind}: {report['problems'][:3]}")
    write(folder / "hf", {k: v[:31] if v.shape[0] == 32 else v
                          for k, v in tensors.items()})
    check_equal(verdict(folder / "hf")["verdict"], "mismatch", "vocabulary")


def a_tied_head_of_its_own(folder):
    """transformers 4 and vLLM drop it for the embedding, transformers 5 uses
    it; a copy of the embedding is no harm."""
    path = folder / "hf"

    def read():
        return json.loads(CKPT.run("verify", path, "--json").out)

    for tied in (True, False):
        tensors = llama(path, tie_word_embeddings=tied)
        report = read()
        named = [p["tensor"] for p in report["problems"]
                 if p["kind"] == "configuration"]
        check_equal((report["verdict"], named),
                    ("mismatch", ["lm_head.weight"]) if tied else ("ok", []),
                    f"tied: {tied}")
    config = json.loads((path / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (path / "config.json").write_text(json.dumps(config))
    CKPT.run("convert", path, folder / "out", "--to", "vllm").want(5)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write(path, tensors)
    check_equal(read()["verdict"], "ok", "a copy")


def arrays_of_numpy(folder):
    """A state dict of NumPy's arrays is values alone: no file without a tensor
    is written for it."""
    import torch

    tensors = llama(folder / "hf")
    (folder / "hf/model.safetensors").unlink()
    torch.save({k: v.numpy() for k, v in tensors.items()},
               folder / "hf/pytorch_model.bin")
    for target in ("safetensors", "hf"):
        for out in (folder / "out", folder / "out.safetensors"):
            done = CKPT.run("convert", folder / "hf", out, "--to", target)
            done.want(5)
            check(not out.exists(), f"{target}: written\n{done}")
            check("torch.from_numpy" in done.err, done.err)


def verdicts(folder):
    """One word, in the line and in the document; --strict makes it count."""
    import torch

    llama(folder / "hf")
    said = CKPT.ok("verify", folder / "hf")
    check(said.out.startswith("ok: "), said.out)
    check("values not proven: no checksums" in said.out, said.out)
    check("--quick" in CKPT.ok("verify", folder / "hf", "--quick").out, "quick")
    llama(folder / "hf", torch_dtype="bfloat16")
    said = CKPT.ok("verify", folder / "hf")
    check("ok, 1 warning" in said.out and "problem" not in
          said.out.splitlines()[-1], said.out)
    check_equal(verdict(folder / "hf")["verdict"], "warnings", "f32")
    check_equal(verdict(folder / "hf", "--strict")["ok"], False, "--strict")
    torch.save({"a.weight": torch.ones(2, 3)}, folder / "own.pt")
    said = CKPT.ok("verify", folder / "own.pt")
    check(said.out.splitlines()[-1].startswith("can't tell: "), said.out)
    check_equal(verdict(folder / "own.pt")["verdict"], "cant_tell", "own module")
    check_equal(verdict(folder / "own.pt", "--strict")["ok"], False, "--strict")


def optimizers(tensors):
    """What a script puts beside its model: one optimizer or several, by number
    and by name, under any key."""
    import torch

    def state(keys):
        return {"state": {key: {"step": torch.tensor(3.0),
                                "exp_avg": torch.ones_like(tensor)}
                          for key, tensor in zip(keys, tensors.values())},
                "param_groups": [{"lr": 0.1, "params": list(keys)}]}

    numbered, named = state(range(len(tensors))), state(tensors)
    for key in ("optimizer", "optimizer_state_dict", "opt"):
        for one in (numbered, named):
            yield {key: one}
    yield {"optimizers": [numbered, named]}
    yield {"opt_g": numbered, "opt_d": named}
    yield {"training": {"optimizer": numbered, "epoch": 3}}


def a_scripts_optimizer(folder):
    """Beside a config.json the model is alone: transformers would ignore the
    rest, and verify call it a mismatch."""
    import torch
    from safetensors.torch import load_file

    tensors = llama(folder / "hf")
    for at, beside in enumerate(optimizers(tensors)):
        torch.save({"model": tensors, **beside}, folder / f"{at}.pt")
        done = CKPT.ok("convert", folder / f"{at}.pt", folder / f"out{at}",
                       "--to", "safetensors", "--config-from", folder / "hf")
        check("optimizer" in done.err, f"not named\n{done}")
        got = {}
        for file in (folder / f"out{at}").glob("*.safetensors"):
            got |= load_file(file)
        check_equal(sorted(got), sorted(tensors), f"{list(beside)}: names")
        check(all(torch.equal(got[k], v) for k, v in tensors.items()), "values")
        CKPT.ok("verify", folder / f"out{at}")
        CKPT.ok("verify", folder / f"{at}.pt", folder / f"out{at}")


def an_average(folder):
    """torch's AveragedModel is the model and a count, plain or compiled."""
    import torch
    from safetensors.torch import load_file

    tensors = llama(folder / "hf")
    count = {"n_averaged": torch.tensor(5)}
    for at, prefix in enumerate(("module.", "module._orig_mod.")):
        torch.save({"swa": count | {prefix + name: tensor for name, tensor
                                    in tensors.items()}}, folder / f"{at}.pt")
        done = CKPT.ok("convert", folder / f"{at}.pt", folder / f"out{at}",
                       "--to", "safetensors", "--config-from", folder / "hf")
        check("prefix ''" not in done.err, str(done))
        got = {}
        for file in (folder / f"out{at}").glob("*.safetensors"):
            got |= load_file(file)
        check_equal(sorted(got), sorted(tensors), f"{prefix}: names")
        CKPT.ok("verify", folder / f"out{at}")


def without_rules(folder):
    """A type that nobody has rules for: numbers in names, and config.json's."""
    tensors = llama(folder / "hf", model_type="nobodys", architectures=["Own"])
    check_equal(verdict(folder / "hf")["verdict"], "cant_tell", "whole")
    for what, words in {"layer 2": (".layers.2.",),
                        "first layers": (".layers.0.", ".layers.1."),
                        "last layer": (".layers.3.",),
                        "a projection": (".layers.1.self_attn.q_proj",)}.items():
        write(folder / "hf", lost(tensors, *words))
        check_equal(verdict(folder / "hf")["ok"], False, what)
    name = "model.layers.1.mlp.up_proj.weight"
    write(folder / "hf", tensors | {name: tensors[name].t()})
    check_equal(verdict(folder / "hf")["verdict"], "mismatch", "transposed")


def a_configuration_that_means_others(folder):
    """config.json is never put beside names that its model has no place for."""
    tensors = llama(folder / "cfg")
    import torch

    rows = {"a wrapper": {"pretrained_model." + k: v for k, v in tensors.items()}
            | {"v_head.summary.weight": torch.ones(1, 16)},
            "Meta's under a key": {"model": {
                k.replace("model.", "").replace("self_attn.q_proj", "attention.wq")
                .replace("embed_tokens", "tok_embeddings"): v
                for k, v in tensors.items()}},
            "names of nobody": {"net." + k.replace("self_attn", "sa"): v
                                for k, v in tensors.items()}}
    for what, state in rows.items():
        torch.save(state, folder / "x.pt")
        done = CKPT.run("convert", folder / "x.pt", folder / "out", "--to",
                        "safetensors", "--config-from", folder / "cfg")
        check(done.code in (2, 5), f"{what}\n{done}")
        check(not (folder / "out").exists(), what)


def holes(folder):
    """A tensor of zeros is told; numbers of config.json come first."""
    import torch

    tensors = llama(folder / "hf")
    name = "model.layers.1.mlp.up_proj.weight"
    write(folder / "hf", tensors | {name: torch.zeros(24, 16)})
    report = json.loads(CKPT.ok("verify", folder / "hf", "--json").out)
    check_equal([(p["kind"], p["tensor"]) for p in report["problems"]],
                [("zeros", name)], "a hole")


def stale_index(folder):
    """An index of another save is told as that, and its hint works."""
    tensors = llama(folder / "hf")
    (folder / "hf" / "model.safetensors").unlink()
    from safetensors.torch import save_file

    names = sorted(tensors)
    for part, half in enumerate((names[::2], names[1::2]), 1):
        save_file({k: tensors[k] for k in half},
                  folder / "hf" / f"model-0000{part}-of-00002.safetensors",
                  metadata={"format": "pt"})
    (folder / "hf" / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map":
         {k: f"model-0000{1 + i % 3}-of-00003.safetensors"
          for i, k in enumerate(names)}}))
    said = CKPT.run("verify", folder / "hf").want(1)
    check("of another save" in said.out and "ckpt salvage" in said.out, said.out)
    CKPT.ok("salvage", folder / "hf", folder / "out")
    check_equal(verdict(folder / "out")["verdict"], "ok", "salvaged")


def a_lost_head(folder):
    """transformers makes up a classifier's head that no file has."""
    import torch

    heads = {"LlamaForSequenceClassification": ["score.weight"],
             "LlamaForTokenClassification": ["score.weight", "score.bias"],
             "MistralForSequenceClassification": ["score.weight"],
             "MistralForQuestionAnswering": ["qa_outputs.weight",
                                             "qa_outputs.bias"]}
    path = folder / "hf"
    for name, head in heads.items():
        whole = llama(path, architectures=[name], num_labels=2,
                      model_type=name.split("For")[0].lower())
        del whole["lm_head.weight"]
        write(path, whole)
        if PEER.is_dir():
            said = complaint(getattr(peer(), name), path)
            check(head[0] in said, f"{name}: {said}")
        report = verdict(path)
        check_equal((report["verdict"], [p["tensor"] for p in report["problems"]]),
                    ("incomplete", [head[0]]), name)
        CKPT.run("convert", path, folder / "out", "--to", "torch").want(5)
        whole |= {one: torch.ones(2, 16) if "weight" in one else torch.ones(2)
                  for one in head}
        write(path, whole)
        check_equal(verdict(path)["verdict"], "ok", f"{name}: with its head")
        for one, wrong in ((head[-1], torch.ones(3, 16)[:, 0] if "bias" in head[-1]
                            else torch.ones(3, 16)), (head[-1], None)):
            write(path, {n: t for n, t in whole.items() if n != one} |
                  ({one: wrong} if wrong is not None else {}))
            if PEER.is_dir():
                check(complaint(getattr(peer(), name), path), f"{name}: {one}")
            check_equal(verdict(path)["verdict"],
                        "incomplete" if wrong is None else "mismatch",
                        f"{name}: {one}")


def classes(transformers, model_type):
    """A tiny model of each class that transformers has for a type."""
    import model_types
    import torch

    model, _ = model_types.small_config(model_type)
    kinds = {}
    for task in ("", "ForSequenceClassification", "ForTokenClassification",
                 "ForQuestionAnswering", "ForPreTraining"):
        mapping = getattr(transformers, "AutoModel" + task)._model_mapping
        if type(model.config) in mapping:
            kind = mapping[type(model.config)]
            kinds.setdefault(kind[0] if isinstance(kind, tuple) else kind)
    for kind in kinds:
        torch.manual_seed(0)
        config = type(model.config).from_dict(model.config.to_dict())
        try:
            yield kind(config)
        except (AttributeError, ValueError):  # the class asks for other numbers
            continue


def each_head(folder, model_type):
    """Whatever class a model is saved by, verify does not call it incomplete;
    without a layer's tensor it does."""
    import torch

    transformers = peer()
    found = 0
    for model in classes(transformers, model_type):
        name = type(model).__name__
        found += 1
        path = folder / name
        model.save_pretrained(path)
        check(verdict(path)["ok"], name)
        live = folder / f"{name}_live"
        model.config.save_pretrained(live)
        tensors = model.state_dict()
        torch.save(tensors, live / "pytorch_model.bin")
        if name == "MixtralForQuestionAnswering":  # no table has its live names
            continue
        check(verdict(live)["ok"], f"{name}, .bin")
        embedding = model.get_input_embeddings().weight.data_ptr()
        for what, lost in (
                ("an embedding", {n for n, t in tensors.items()
                                  if t.data_ptr() == embedding}),
                ("a matrix", {next(n for n in sorted(tensors) if ".1." in n and
                                   tensors[n].dim() == 2)})):
            torch.save({n: t for n, t in tensors.items() if n not in lost},
                       live / "pytorch_model.bin")
            check(not verdict(live)["ok"], f"{name} without {what}: {lost}")
    check(found > 1, f"{found} classes")


# Their first or last layer is of another kind, and no key says so.
ENDS_DIFFER = ("gpt_neox_japanese", "hrm_text", "modernbert", "modernbert-decoder",
               "rwkv")


def layers_anew(folder, model_type):
    """What --layers writes as a model, transformers opens as one."""
    import model_types

    peer()
    model, _ = model_types.small_config(model_type)
    model.save_pretrained(folder / "hf")
    for layers in ("last:1", "0,0", "0-0"):
        out = folder / layers.replace(":", "_")
        made = CKPT.run("convert", folder / "hf", out, "--layers", layers)
        if made.code == 0:
            check_equal(complaint(type(model), out), "", layers)
        else:
            made.want(5)
            if "--keys" in made.err:  # the hint leads on
                CKPT.ok("convert", folder / "hf", out, "--keys", "*.0.*")


def a_depth_without_a_key(folder):
    """A configuration that says its depth in a word of its own can't follow, and
    does not stay as it was."""
    llama(folder / "hf")
    path = folder / "hf" / "config.json"
    config = json.loads(path.read_text())
    config["deepness"] = config.pop("num_hidden_layers")
    path.write_text(json.dumps(config | {"model_type": "mine"}))
    for layers in ("last:1", "0,0"):
        said = CKPT.run("convert", folder / "hf", folder / "out", "--layers",
                        layers).want(5).err
        check("config.json" in said and "--keys" in said, said)
    CKPT.ok("convert", folder / "hf", folder / "out", "--keys", "*layers.3.*")


def what_transformers_leaves_aside(folder):
    """Names of the base model, layers for tokens after the next, files of other
    programs beside: transformers loads all of these."""
    import torch

    path = folder / "hf"
    whole = llama(path, tie_word_embeddings=True)
    del whole["lm_head.weight"]
    base = {n.removeprefix("model."): t for n, t in whole.items()}
    untied = llama(folder / "untied")
    loads = {"base": (base, "ok"),
             "mtp": (whole | {"model.mtp_proj.weight": torch.ones(16, 32)}, "cant_tell"),
             "value": (whole | {"v_head.summary.weight": torch.ones(1, 16),
                                "v_head.summary.bias": torch.ones(1)}, "cant_tell"),
             "next": (whole | {"model.layers.4.eh_proj.weight": torch.ones(16, 32)},
                      "cant_tell")}
    for what, (tensors, wanted) in loads.items():
        llama(path, tie_word_embeddings=True,
              num_nextn_predict_layers=int(what == "next"))
        write(path, tensors)
        check_equal(verdict(path)["verdict"], wanted, what)
        if what == "base" and PEER.is_dir():
            check_equal(complaint(peer().LlamaForCausalLM, path), "", what)
        CKPT.ok("convert", path, folder / what, "--dtype", "bf16")
    for name in base:
        write(path, {n: t for n, t in base.items() if n != name})
        check_equal(verdict(path)["verdict"], "incomplete", name)
    llama(path)
    write(path, {n.removeprefix("model."): t for n, t in untied.items()})
    check_equal(verdict(path)["verdict"], "ok", "untied")
    if PEER.is_dir():
        check_equal(complaint(peer().LlamaForCausalLM, path), "", "untied")
    write(path, base)
    check_equal(verdict(path)["verdict"], "incomplete", "without its head")

    transformers = peer()
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4))
    t5.config.save_pretrained(folder / "t5")
    torch.save(t5.state_dict() | {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight":
        torch.ones(32, 4)}, folder / "t5" / "pytorch_model.bin")
    check_equal(complaint(type(t5), folder / "t5"), "", "t5")
    check_equal(verdict(folder / "t5")["verdict"], "ok", "t5")

    llama(path)
    (path / "openvino").mkdir()
    (path / "openvino" / "openvino_model.bin").write_bytes(b"\x13\x37" * 500)
    (path / "optimizer.pt").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "a" +
        "\nsize 9\n")
    report = verdict(path)
    check_equal((report["ok"], report["verdict"], len(report["problems"])),
                (True, "warnings", 2), f"{report}")
    (path / "openvino" / "openvino_model.bin").rename(path / "training_args.bin")
    check_equal(verdict(path)["verdict"], "unsafe", "a pickle that is none")


def what_its_loader_refuses(folder):
    """transformers unpickles weights alone, opens no set of files without an
    index, and asks the index for its metadata."""
    import argparse
    import pathlib

    import numpy
    import torch

    # Megatron-Core adds its own, and is imported by other cases.
    torch.serialization.clear_safe_globals()
    tensors = llama(folder / "hf")
    (folder / "hf" / "model.safetensors").unlink()
    for protocol, answer in ((2, "ok"), (3, "ok"), (4, "mismatch"), (5, "mismatch")):
        for zipped in (True, False):
            torch.save(tensors, folder / "hf" / "pytorch_model.bin",
                       pickle_protocol=protocol,
                       _use_new_zipfile_serialization=zipped)
            if PEER.is_dir():
                check_equal(bool(complaint_of(folder / "hf")), answer != "ok",
                            f"protocol {protocol}")
            check_equal(verdict(folder / "hf")["verdict"], answer,
                        f"protocol {protocol}")
    for value in (numpy.float64(1), argparse.Namespace(a=1), pathlib.PurePosixPath("x")):
        what = type(value).__name__
        torch.save(tensors | {"args": value}, folder / "hf" / "pytorch_model.bin")
        if PEER.is_dir():
            check("Weights only" in complaint_of(folder / "hf"), what)
        report = verdict(folder / "hf")
        check_equal((report["verdict"], [p["kind"] for p in report["problems"]]),
                    ("mismatch", ["refused_pickle"]), what)
        CKPT.ok("convert", folder / "hf", folder / "out", "--to", "safetensors")
        check_equal(verdict(folder / "out")["verdict"], "ok", what)
        shutil.rmtree(folder / "out")
        # A file that its owner opens with other options.
        (folder / "hf" / "pytorch_model.bin").rename(folder / "state.pt")
        check_equal(verdict(folder / "state.pt")["verdict"], "cant_tell", what)

    llama(folder / "hf")
    for form, stem in (("safetensors", "model"), ("torch", "pytorch_model")):
        for size in ("10KB", "1GB"):
            out = folder / "out"
            CKPT.ok("convert", folder / "hf", out, "--to", form,
                    "--max-shard-size", size, "--no-manifest")
            alone = [*out.glob("model.safetensors"), *out.glob("pytorch_model.bin")]
            for one in alone:
                one.rename(out / f"{stem}-00001-of-00001{one.suffix}")
            for index in out.glob("*.index.json"):
                said = json.loads(index.read_text())
                for metadata in ({}, None):
                    index.write_text(json.dumps(
                        {"weight_map": said["weight_map"]} |
                        ({} if metadata is None else {"metadata": metadata})))
                    if PEER.is_dir():
                        check_equal("KeyError" in complaint_of(out),
                                    metadata is None, index.name)
                    kinds = [p["kind"] for p in verdict(out)["problems"]]
                    check_equal(kinds, ["index_metadata"] * (metadata is None), form)
                index.unlink()
            if PEER.is_dir():
                check("OSError" in complaint_of(out), f"{form} {size}")
            report = verdict(out)
            check_equal((report["verdict"], [p["kind"] for p in report["problems"]]),
                        ("warnings", ["no_index"]), f"{form} {size}")
            CKPT.ok("convert", out, folder / "again", "--to", "safetensors")
            check_equal(verdict(folder / "again")["verdict"], "ok", form)
            shutil.rmtree(out)
            shutil.rmtree(folder / "again")


def variants(folder):
    """Weights that a loader opens only if asked for by their variant."""
    llama(folder / "hf")
    index = {"safetensors": "model.safetensors.index.fp16.json",
             "bin": "pytorch_model.bin.index.fp16.json"}
    for form, stem, ending in (("safetensors", "model", "safetensors"),
                               ("torch", "pytorch_model", "bin")):
        for size in ("1GB", "10KB"):
            out = folder / f"{form}_{size}"
            CKPT.ok("convert", folder / "hf", out, "--to", form,
                    "--max-shard-size", size, "--no-manifest")
            for file in out.glob(f"{stem}*.{ending}"):
                file.rename(out / file.name.replace(stem, f"{stem}.fp16", 1))
            for file in out.glob("*.index.json"):
                said = json.loads(file.read_text())
                said["weight_map"] = {
                    n: f.replace(stem, f"{stem}.fp16", 1)
                    for n, f in said["weight_map"].items()}
                (out / index[ending]).write_text(json.dumps(said))
                file.unlink()
            if PEER.is_dir():
                check("OSError" in complaint_of(out), f"{form} {size}")
            report = verdict(out)
            check_equal((report["verdict"],
                         [p["kind"] for p in report["problems"]]),
                        ("warnings", ["variant_alone"]), f"{form} {size}")
            check('variant="fp16"' in report["problems"][0]["message"],
                  f"{report}")
    old = folder / "safetensors_1GB"
    (old / "model.fp16.safetensors").rename(old / "weights.safetensors")
    if PEER.is_dir():
        check("OSError" in complaint_of(old), "MLX's")
    report = verdict(old)
    check_equal([p["kind"] for p in report["problems"]], ["variant_alone"],
                "MLX's")
    CKPT.ok("convert", old, folder / "again", "--to", "safetensors")
    check_equal(verdict(folder / "again")["verdict"], "ok", "MLX's")


def layers_that_differ(folder):
    """Two layers are no rule for each other: that is what is said."""
    path = folder / "hf"
    tensors = llama(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(
        config | {"model_type": "mine", "architectures": ["Mine"],
                  "num_hidden_layers": 2}))
    two = {n: t for n, t in tensors.items() if ".layers." not in n or
           n.split(".")[2] in "01"}
    write(path, two)
    check("the layers are all there" in verdict(path)["cant_tell"], "as it was")
    # Two keys count, and one of them layers of two halves.
    (path / "config.json").write_text(json.dumps(
        json.loads((path / "config.json").read_text()) |
        {"num_hidden_layers": 4, "num_layers": 2}))
    check("the layers are all there" in verdict(path)["cant_tell"], "halves")
    for name in two:
        if ".layers." in name:
            write(path, {n: t for n, t in two.items() if n != name})
            check("differ" in verdict(path)["cant_tell"], name)


def an_index_of_a_folder(folder):
    """transformers joins what weight_map names: ./FILE and FOLDER/FILE load."""
    llama(folder / "one")
    CKPT.ok("convert", folder / "one", folder / "hf", "--max-shard-size", "10KB",
            "--no-manifest")
    index = folder / "hf" / "model.safetensors.index.json"
    named = index.read_text()
    (folder / "hf" / "weights").mkdir()
    for words in ("./", "weights/"):
        index.write_text(named.replace('"model-', f'"{words}model-'))
        if words == "weights/":
            for shard in (folder / "hf").glob("model-*"):
                shard.rename(folder / "hf" / "weights" / shard.name)
        if PEER.is_dir():
            check_equal(complaint(peer().LlamaForCausalLM, folder / "hf"), "", words)
        check_equal(verdict(folder / "hf")["verdict"], "ok", words)
        for verb, *options in (("convert",), ("convert", "--to", "torch"),
                               ("reshard",), ("salvage",)):
            out = folder / "out"
            CKPT.ok(verb, folder / "hf", out, *options)
            CKPT.ok("verify", folder / "one", out)
            shutil.rmtree(out)


def two_models_of_a_folder(folder):
    """Accelerate saves models side by side: --part takes one, and whose a
    config.json there is nobody knows."""
    import torch
    from safetensors.torch import load_file, save_file

    step = folder / "checkpoint_3"
    step.mkdir()
    models = {name: {f"layers.{i}.weight": torch.full((size, size), float(size))
                     for i in range(2)}
              for name, size in (("model", 8), ("model_1", 4))}
    for name, tensors in models.items():
        save_file(tensors, step / f"{name}.safetensors", {"format": "pt"})
    torch.save({"state": {}, "param_groups": []}, step / "optimizer.bin")
    torch.save({"step": 3}, step / "scheduler.bin")
    torch.save({"torch_manual_seed": torch.get_rng_state()},
               step / "random_states_0.pkl")
    (step / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
         "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 8, "vocab_size": 8}))
    check(verdict(step)["ok"], f"{verdict(step)}")
    (step / "config.json").unlink()
    for name, tensors in models.items():
        CKPT.ok("convert", step, folder / name, "--part", name)
        got = load_file(folder / name / "model.safetensors")
        check_equal(sorted(got), sorted(tensors), name)
        check(all(torch.equal(got[n], t) for n, t in tensors.items()), name)


def wrapped_names(folder):
    """transformers finds nothing in a pytorch_model.bin whose names have a
    wrapper's words before them, and makes up the whole model."""
    import torch

    tensors = llama(folder / "hf")
    (folder / "hf" / "model.safetensors").unlink()
    path = folder / "hf" / "pytorch_model.bin"
    for words in ("module.", "_orig_mod.", "module._orig_mod.", "state_dict"):
        torch.save({words: tensors} if words == "state_dict" else
                   {words + name: one for name, one in tensors.items()}, path)
        if PEER.is_dir():
            check(complaint(peer().LlamaForCausalLM, folder / "hf"), words)
        report = verdict(folder / "hf")
        check_equal((report["verdict"], [p["kind"] for p in report["problems"]]),
                    ("mismatch", ["wrapped_names"]), words)
        said = CKPT.run("convert", folder / "hf", folder / "out").want(5)
        check("--to hf" in said.err, f"{words}: {said}")
        CKPT.ok("convert", folder / "hf", folder / "out", "--to", "hf")
        check_equal(verdict(folder / "out")["verdict"], "ok", words)
        shutil.rmtree(folder / "out")
    if not PEER.is_dir():
        return
    bert = peer().BertModel(peer().BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, intermediate_size=24,
        num_attention_heads=4, max_position_embeddings=16))
    path = folder / "bert" / "pytorch_model.bin"
    bert.config.architectures = ["BertModel"]
    bert.config.save_pretrained(path.parent)
    for words in ("", "module.", "_orig_mod."):
        torch.save({words + name: one for name, one in bert.state_dict().items()},
                   path)
        check_equal(bool(complaint(type(bert), path.parent)), bool(words), words)
        report = verdict(path.parent)
        check_equal([p["kind"] for p in report["problems"]],
                    ["wrapped_names"] if words else [], words)
        if words:
            CKPT.run("convert", path.parent, folder / "out").want(5)


def first_words(folder):
    """Classes without rules: their names behind any words are none of theirs, and
    names of their backbone alone are. The hint's --rename brings them home."""
    from safetensors.torch import load_file, save_file

    transformers = peer()
    small = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
             "num_hidden_layers": 2, "num_attention_heads": 4}
    for name in ("BertModel", "BertForSequenceClassification", "DebertaV2Model",
                 "RobertaForMaskedLM", "Wav2Vec2Model", "LlamaModel", "T5Model",
                 "BloomModel", "GPT2Model", "Qwen2ForSequenceClassification"):
        kind = getattr(transformers, name)
        config = kind.config_class(**small)
        if not hasattr(config, "word_embed_proj_dim"):
            config.pad_token_id = config.eos_token_id = config.bos_token_id = 0
        if getattr(config, "num_key_value_heads", None):
            config.num_key_value_heads = 4
        kind(config).save_pretrained(folder / "hf")
        file = folder / "hf" / "model.safetensors"
        tensors = load_file(file)
        own = verdict(folder / "hf")
        check_equal((own["ok"], own["problems"]), (True, []), name)
        inner = {n.removeprefix(f"{kind.base_model_prefix}."): t
                 for n, t in tensors.items()}
        for before, stored in (("", inner), ("backbone.", tensors), ("0.auto_model.", inner),
                               ("net.zz.", tensors), ("net.", {"own.x": next(iter(tensors.values()))})):
            save_file({before + n: t for n, t in stored.items()}, file, {"format": "pt"})
            report = verdict(folder / "hf")
            if not before:
                check_equal(report["problems"], [], f"{name}, its backbone")
                continue
            found = complaint(kind, folder / "hf")
            check("missing_keys" in found, f"{name}, {before}: {found}")
            check_equal(report["verdict"], "mismatch", f"{name}, {before}")
            done = CKPT.run("convert", folder / "hf", folder / "out", "--to",
                            "safetensors")
            if done.code == 0:  # rules found the names behind the words
                check_equal(complaint(kind, folder / "out"), "", f"{name}, {before}")
                shutil.rmtree(folder / "out")
                continue
            said = done.want(5).err
            if before == "net.":
                continue
            check(f"--rename {before}= " in said, said)
            CKPT.ok("convert", folder / "hf", folder / "out", "--rename", f"{before}=")
            check_equal(load_file(folder / "out" / "model.safetensors").keys(),
                        stored.keys(), f"{name}, {before}")
            shutil.rmtree(folder / "out")
        # Those of the layers alone, which are most of them.
        save_file({("x." if "layer" in n else "") + n: t for n, t in inner.items()},
                  file, {"format": "pt"})
        if sum("layer" in n for n in inner) > len(inner) / 2:
            check_equal(verdict(folder / "hf")["verdict"], "mismatch", name)
        shutil.rmtree(folder / "hf")


def words_of_classes(folder):
    """The table is what transformers' classes have."""
    peer()
    sys.path.insert(0, str(ROOT / "tests/generators"))
    import hf_words

    rows = json.loads((ROOT / "models/families/hf_words.json").read_text())["words"]
    words = {name: row["first"] for row in rows for name in row["classes"]}
    check_equal(sorted(words), sorted(set(words) & set(hf_words.classes())), "classes")
    chosen = sorted(words) if FULL else random.Random(3).sample(sorted(words), 12)
    for name in chosen:
        check_equal(hf_words.first_words(hf_words.kind_of(name)), words[name], name)


def uneven_layers(folder):
    """No class of transformers, as it is made, has lost anything: those whose
    layers differ by design are in a table, and a sample of the others."""
    transformers = peer()
    sys.path.insert(0, str(ROOT / "tests/generators"))
    import hf_uneven
    import hf_words
    from transformers.models.auto import modeling_auto

    table = json.loads((ROOT / "models/families/hf_words.json").read_text())
    of = {kind: name for key, names in vars(modeling_auto).items()
          if key.startswith("MODEL_") and key.endswith("MAPPING_NAMES")
          for kind, name in names.items()
          if isinstance(name, str) and hasattr(transformers, name)}
    missing = set(table["uneven"]) - set(of)
    check(not missing, f"no class of {missing}")
    # Defaults that no model has: heads that don't divide, levels that are none;
    # and names that no file has.
    odd = ("Glm4Moe", "Glm4vMoe", "LwDetr", "ShieldGemma2")
    words = sorted(n for row in table["words"] for n in row["classes"]
                   if not n.startswith(odd))
    chosen = words if FULL else random.Random(4).sample(words, 8)
    for name in ["OlmoHybridForCausalLM", "DINOv3ViTModel", *chosen,
                 *(of[kind] for kind in table["uneven"])]:
        below = folder / name
        below.mkdir()
        try:
            model = hf_words.made(hf_words.kind_of(name), own_depth=True)
        except Exception:  # not with the defaults of its configuration
            continue
        check_equal(hf_uneven.refused(CKPT.path, name, model, below), "", name)
        shutil.rmtree(below)


def parts_of_a_pipeline(folder):
    """Each model of a diffusers pipeline is judged like its folder."""
    from safetensors.torch import load_file, save_file

    transformers = peer()
    config = transformers.T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=24,
                                   num_layers=2, num_heads=4)
    pipe = folder / "pipe"
    for name in ("text_encoder", "text_encoder_2"):
        transformers.T5EncoderModel(config).save_pretrained(pipe / name)
    (pipe / "model_index.json").write_text(json.dumps({
        "_class_name": "StableDiffusion3Pipeline", "_diffusers_version": "0.31.0",
        "text_encoder": ["transformers", "T5EncoderModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"]}))
    check_equal(verdict(pipe)["verdict"], "ok", "the pipeline")
    CKPT.ok("convert", pipe, folder / "alone", "--part", "text_encoder_2")
    CKPT.ok("verify", pipe / "text_encoder_2", folder / "alone")
    check_equal(complaint(transformers.T5EncoderModel, folder / "alone"), "", "alone")
    path = pipe / "text_encoder_2" / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        save_file({n: t for n, t in tensors.items() if n != name}, path,
                  {"format": "pt"})
        report = verdict(pipe)
        check_equal((report["verdict"], [p["tensor"] for p in report["problems"]]),
                    ("incomplete", [f"text_encoder_2.{name}"]), name)
        CKPT.run("convert", pipe, folder / "out").want(5)
    shutil.rmtree(path.parent)
    check_equal(verdict(pipe)["verdict"], "incomplete", "without its folder")
    said = CKPT.run("convert", pipe, folder / "out").want(5).err
    check("text_encoder_2" in said and "--allow-missing" in said, said)
    CKPT.ok("convert", pipe, folder / "out", "--allow-missing", "text_encoder_2.*")


def roles_of_a_step(folder):
    """The models of verl's step are judged by their own configurations."""
    step = folder / "global_step_10"
    shutil.copytree(DATA / "runs" / "verl_fsdp2_w2" / "ckpt" / "global_step_10", step)
    check_equal(verdict(step)["verdict"], "ok", "both roles")
    for role in ("actor", "critic"):
        path = step / role / "huggingface" / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"num_hidden_layers": 2}))
        report = verdict(step)
        check_equal(report["verdict"], "incomplete", role)
        check(all(p["tensor"].startswith(f"{role}.model.layers.1.")
                  for p in report["problems"]), f"{report['problems']}")
        CKPT.run("convert", step, folder / "out").want(5)
        path.write_text(json.dumps(config))
    for role in ("actor", "critic"):
        for target in ("safetensors", "torch", "dcp"):
            out = folder / f"{role}_{target}"
            CKPT.ok("convert", step, out, "--part", role, "--to", target)
            check_equal(json.loads((out / "config.json").read_text()),
                        json.loads((step / role / "huggingface/config.json")
                                   .read_text()), role)
            check_equal(verdict(out)["verdict"], "ok", f"{role}, {target}")
            CKPT.ok("verify", step / role, out, "--model-only")
    shutil.copytree(step, folder / "bare")
    shutil.rmtree(folder / "bare/critic/huggingface")
    CKPT.ok("convert", folder / "bare", folder / "alone", "--part", "critic")
    check(not (folder / "alone/config.json").exists(), "the actor's configuration")
    found = CKPT.ok("inspect", step, "--json").json()["models"]
    check_equal([(one["name"], one["parameters"]) for one in found],
                [("actor", 3664), ("critic", 2833)], "inspect")
    said = CKPT.run("convert", step, folder / "out", "--part", "ref").want(5).err
    check("there are actor, critic" in said, said)


def files_of_epochs(folder):
    """torchtune's checkpointers numbered files by shard and epoch once."""
    import torch

    tensors = llama(folder / "hf")
    names = sorted(tensors)
    (folder / "hf" / "model.safetensors").unlink()
    for epoch in (0, 1):
        for number, half in enumerate((names[:9], names[9:]), 1):
            torch.save({n: tensors[n] + epoch for n in half},
                       folder / "hf" / f"hf_model_{number:04}_{epoch}.pt")
    from safetensors.torch import load_file
    for state in (False, True):  # that training goes on from
        if state:
            torch.save({"optimizer": {}, "epochs_run": 2, "seed": 1},
                       folder / "hf" / "recipe_state.pt")
        check_equal(verdict(folder / "hf")["verdict"], "ok", "two epochs")
        CKPT.ok("convert", folder / "hf", folder / "out", "--to", "hf",
                "--model-only")
        back = load_file(folder / "out" / "model.safetensors")
        check(set(back) == set(names) and
              all(torch.equal(back[n], tensors[n] + 1) for n in names),
              "the last epoch's")
        shutil.rmtree(folder / "out")
    (folder / "hf" / "recipe_state.pt").unlink()
    (folder / "hf" / "hf_model_0002_1.pt").unlink()
    check_equal(verdict(folder / "hf")["verdict"], "incomplete", "a lost file")
    (folder / "hf" / "hf_model_0002_0.pt").rename(
        folder / "hf" / "hf_model_0003_1.pt")
    check_equal(verdict(folder / "hf")["verdict"], "damaged", "a gap")
    CKPT.run("convert", folder / "hf", folder / "no").want(4)


def second_copies(folder):
    """A tensor in two files is the same in both, or no answer is certain:
    transformers keeps the last, whatever the index says."""
    import torch
    from safetensors.torch import save_file

    name = "model.norm.weight"
    for ending in (".safetensors", ".bin"):
        stem = "model" if ending == ".safetensors" else "pytorch_model"
        tensors = llama(folder / "hf")
        (folder / "hf" / "model.safetensors").unlink()
        files = [f"{stem}-0000{i}-of-00002{ending}" for i in (1, 2)]
        names = sorted(tensors)
        halves = [{k: tensors[k] for k in half}
                  for half in (names[::2], names[1::2])]
        home = 0 if name in halves[0] else 1
        (folder / "hf" / f"{stem}{ending}.index.json").write_text(json.dumps(
            {"metadata": {}, "weight_map":
             {k: files[0 if k in halves[0] else 1] for k in names}}))
        for what, copy in {"equal": tensors[name].clone(),
                           "changed": tensors[name] + 1,
                           "longer": torch.ones(17),
                           "narrower": tensors[name].half()}.items():
            for file, half in zip(files, halves):
                held = half if half is halves[home] else half | {name: copy}
                if ending == ".bin":
                    torch.save(held, folder / "hf" / file)
                else:
                    save_file(held, folder / "hf" / file, {"format": "pt"})
            said = CKPT.run("verify", folder / "hf", "--json")
            report = json.loads(said.out)
            check({"duplicate_tensor", "damaged"} &
                  {p["kind"] for p in report["problems"]
                   if p["tensor"] == name}, f"{ending}, {what}: {said}")
            check_equal(report["ok"], what == "equal", f"{ending}, {what}: {said}")
            out = folder / "out"
            done = CKPT.run("convert", folder / "hf", out, "--to", "dcp")
            check_equal(done.code == 0, what == "equal",
                        f"{ending}, {what}: {done}")
            shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(folder / "hf")


def unfinished_downloads(folder):
    """What a downloader has only made room for is of the right size."""
    for ending in (".aria2", ".st", ".lftp-pget-status"):
        llama(folder / "hf")
        control = folder / "hf" / f"model.safetensors{ending}"
        control.write_bytes(b"state")
        report = verdict(folder / "hf")
        check_equal((report["verdict"], [p["kind"] for p in report["problems"]]),
                    ("damaged", ["unfinished_file"]), ending)
        for source in (folder / "hf", folder / "hf" / "model.safetensors"):
            for command in ("convert", "merge"):
                out = folder / "out"
                said = CKPT.run(command, source,
                                *([source] if command == "merge" else []), out,
                                "--to", "dcp").want(4)
                check("download is not finished" in said.err and
                      not out.exists(), f"{ending}: {said}")
        control.unlink()
        check_equal(verdict(folder / "hf")["verdict"], "ok", ending)


def encoders_and_copies(folder):
    """T5's encoder alone, as diffusers' pipelines have it, and T5's .bin, in
    which three tensors are the embedding."""
    transformers = peer()
    import torch

    config = transformers.T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=24,
                                   num_layers=2, num_heads=4)
    encoder = folder / "encoder"
    transformers.T5EncoderModel(config).save_pretrained(encoder)
    check_equal(verdict(encoder)["verdict"], "ok", "an encoder")
    CKPT.ok("convert", encoder, folder / "dcp", "--to", "dcp")
    both = folder / "both"
    model = transformers.T5ForConditionalGeneration(config)
    model.save_pretrained(both)
    (both / "model.safetensors").unlink()
    tensors = model.state_dict()
    torch.save(tensors, both / "pytorch_model.bin")
    check_equal(verdict(both)["verdict"], "ok", "copies")
    lost = "encoder.block.1.layer.0.SelfAttention.q.weight"
    for path, rest in ((encoder, {n: t for n, t in tensors.items()
                                  if n.startswith(("encoder", "shared"))}),
                       (both, tensors)):
        for file in path.glob("*.safetensors"):
            file.unlink()
        torch.save({n: t for n, t in rest.items() if n != lost},
                   path / "pytorch_model.bin")
        check_equal(verdict(path)["verdict"], "incomplete", f"{path.name}, lost")


def a_manifest_of_a_part(folder):
    """Digests prove bytes, not that nothing is missing."""
    transformers = peer()
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=24)
    transformers.BertModel(config).save_pretrained(folder / "bert")
    CKPT.ok("convert", folder / "bert", folder / "part", "--to", "safetensors",
            "--exclude", "*layer.1.attention.self.query.weight")
    check_equal(verdict(folder / "part")["verdict"], "cant_tell", "a part")


def an_adapter_beside_its_base(folder):
    """transformers loads both, and fails where only the configuration is."""
    import torch
    from safetensors.torch import save_file

    llama(folder / "hf")
    (folder / "hf" / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 2, "lora_alpha": 4,
         "target_modules": ["q_proj"], "base_model_name_or_path": "x"}))
    factor = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({factor: torch.ones(2, 16)},
              folder / "hf" / "adapter_model.safetensors")
    CKPT.ok("convert", folder / "hf", folder / "out", "--to", "safetensors")
    check_equal({p.name for p in folder.glob("out/adapter_*")},
                {"adapter_config.json", "adapter_model.safetensors"}, "beside")


def an_index_beside_one_file(folder):
    """Loaders differ in which of the two they take."""
    tensors = llama(folder / "hf")
    index = folder / "hf" / "model.safetensors.index.json"
    for file, answer in (("model.safetensors", "ok"),
                         ("model-00001-of-00001.safetensors", "warnings")):
        index.write_text(json.dumps({"metadata": {}, "weight_map":
                                     dict.fromkeys(tensors, file)}))
        check_equal(verdict(folder / "hf")["verdict"], answer, file)


def a_file_of_its_own(folder):
    """A value head beside the model goes along, as .bin does; a second form of
    the model does not."""
    import torch
    from safetensors.torch import save_file

    head = {"v_head.summary.weight": torch.ones(1, 16)}
    rows = (("value_head.safetensors", head, True),
            ("value_head.bin", head, True),
            ("other.safetensors", {"model.norm.weight": torch.ones(16)}, False),
            ("consolidated.safetensors", {"norm.weight": torch.ones(16)}, False))
    for name, tensors, kept in rows:
        shutil.rmtree(folder / "hf", ignore_errors=True)
        llama(folder / "hf")
        file = folder / "hf" / name
        if name.endswith(".bin"):
            torch.save(tensors, file)
        else:
            save_file(tensors, file)
        for form in ("safetensors", "dcp"):
            out = folder / "out"
            done = CKPT.ok("convert", folder / "hf", out, "--to", form, "--json")
            [fate] = [f["fate"] for f in done.json()["files"]
                      if f["path"] == name]
            check_equal(fate, "carried" if kept else "left_out", f"{name}, {form}")
            check_equal((out / name).exists() and
                        (out / name).read_bytes() == file.read_bytes(), kept,
                        f"{name}, {form}")
            shutil.rmtree(out)


# Files that something else names: an index, or the numbers of the others.
NAMED = {"safetensors/hf_sharded": "*.safetensors",
         "modelopt/converter_qwen2_w1": "**/block_*.safetensors",
         "dcp/plain_w1": "*.distcp",
         "megatron_torch_dist/gpt_tp2_pp2_v0161": "**/*.distcp",
         "megatron_legacy/lm_llama_pp2_bf16": "**/*.pt",
         "olmo_core_dcp/hf_llama": "**/*.distcp",
         "olmo_core_v1/checkpointer_mixed_w4": "**/rank_*.safetensors",
         "meta/llama": "*.00.pth",
         "orbax/pytree_zarr2": "**/0.0"}


def lost_file(folder, case):
    """A whole file that is gone is none that is damaged."""
    names = sorted((DATA / case / "ckpt").glob(NAMED[case]))
    check(names, f"{case}: no {NAMED[case]}")
    for path in {names[0], names[-1]}:
        there = folder / "there"
        shutil.copytree(DATA / case / "ckpt", there)
        (there / path.relative_to(DATA / case / "ckpt")).unlink()
        report = verdict(there)
        check_equal(report["verdict"], "incomplete", f"{path.name}: {report}")
        shutil.rmtree(there)


def prepare(suite, ckpt):
    global CKPT, FULL
    CKPT, FULL = ckpt, suite.full
    types = (*FEW, *ONCE)
    if FULL and PEER.is_dir():
        peer()
        import families2026_models
        import hybrid_models

        types = sorted({*types, *families2026_models.TYPES, *hybrid_models.TYPES})
    for model_type in types:
        suite.add(f"each tensor of {model_type} spoilt", spoil, model_type)
        suite.add(f"each number of {model_type} changed", change, model_type)
    for case in (*whole_files.CASES, *whole_files.MADE):
        suite.add(f"each tensor of {case} spoilt", spoil_files, case)
    for case in NAMED:
        suite.add(f"a lost file of {case}", lost_file, case)
    heads = ("llama", "gpt_neox", "t5", "mixtral", "opt", "qwen3_5",
             "gemma3")
    for model_type in types if FULL else heads:
        suite.add(f"each head of {model_type}", each_head, model_type)
    anew = ("bart", "moonshine", "nemotron_h", "t5", "whisper")
    for model_type in types if FULL else anew:
        if model_type not in ENDS_DIFFER:
            suite.add(f"layers of {model_type} anew", layers_anew, model_type)
    for case in (wrapped_names, parts_of_a_pipeline, files_of_epochs,
                 encoders_and_copies, a_manifest_of_a_part,
                 an_adapter_beside_its_base, class_of_losses, class_of_mismatches, a_tied_head_of_its_own,
                 arrays_of_numpy,
                 verdicts, without_rules,
                 a_scripts_optimizer, an_average,
                 a_configuration_that_means_others, holes, stale_index,
                 what_transformers_leaves_aside,
                 a_depth_without_a_key, two_models_of_a_folder,
                 what_its_loader_refuses, layers_that_differ, first_words, variants,
                 words_of_classes, uneven_layers,
                 a_lost_head, an_index_of_a_folder, roles_of_a_step, second_copies, unfinished_downloads,
                 an_index_beside_one_file, a_file_of_its_own):
        suite.add(case.__name__.replace("_", " "), case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
