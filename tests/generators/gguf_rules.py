#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How llama.cpp names and arranges the tensors of each family: prints the
"gguf" section of its file, as llama.cpp's own converter makes it.

    .venv/bin/python tests/generators/gguf_rules.py LLAMA_CPP TYPE [...]

LLAMA_CPP is a checkout with conversion/ and gguf-py/. A tiny random model of
the type, as transformers saves it, goes through the converter's class; each
tensor that comes out is looked up by its bytes among those that went in, as
they are, with rows in pairs, with 1 added, stacked over experts, joined or cut.
Models with and without biases and tied embeddings are tried, and a rule has the
condition that the family's rules for Megatron have.
"""

import argparse
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/app/formats"), str(ROOT / "tests/app/models"), str(ROOT / "tests/app"),
                str(ROOT / "tests/support"),
                os.path.join(sys.prefix, "transformers_5.12.1")]
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
# What published configurations have, the converter asks for, and transformers
# writes under another name, or not at all.
OLDER = {"gpt2": lambda c: {"n_ctx": c["n_positions"]},
         "gpt_neox": lambda c: {"rotary_pct": 0.25},
         "cohere2": lambda c: {"rotary_pct": 1.0},
         "minimax_m2": lambda c: {"rotary_dim": c["head_dim"] // 2}}
# What holds several tensors of llama.cpp's: the dimension, the groups that have
# a part of each, and the parts' sizes, as rules and as config.json say them.
PARTS = {
    "kv_b_proj.weight": (0, "$nh", ["$dn", "$dv"], lambda c: (
        c["num_attention_heads"], [c["qk_nope_head_dim"], c["v_head_dim"]])),
    "experts.gate_up_proj": (2, "$Fe", [1, 1], lambda c: (
        c["intermediate_size"], [1, 1])),
    "experts.gate_up_proj_bias": (1, "$Fe", [1, 1], lambda c: (
        c["intermediate_size"], [1, 1])),
    "block_sparse_moe.input_linear.weight": (1, None, ["$Fe", "$Fe"], lambda c: (
        1, [c["intermediate_size"]] * 2)),
    "shared_mlp.input_linear.weight": (0, None, ["$Fs", "$Fs"], lambda c: (
        1, [c["shared_intermediate_size"]] * 2)),
}
BIASES = ("attention_bias", "mlp_bias", "use_bias", "bias", "qkv_bias",
          "use_qkv_bias", "attention_out_bias", "add_bias_linear")


def variants(model_type):
    """Tiny models: as the configuration's class has them, with biases, and
    with the other answer to tied embeddings."""
    from gguf_test import MORE
    from model_types import small_config
    from transformers import AutoModelForCausalLM

    made, _ = small_config(model_type)
    config = made.config
    if model_type in MORE:
        config = type(config)(**{**config.to_dict(), **MORE[model_type]})
        made = AutoModelForCausalLM.from_config(config)
    yield made
    known = config.to_dict()
    on = {key: True for key in BIASES if known.get(key) is False}
    for change in (on, {"tie_word_embeddings":
                        not known.get("tie_word_embeddings", True)}):
        if not change:
            continue
        other = type(config)(**{**known, **change})
        try:
            yield AutoModelForCausalLM.from_config(other)
        except Exception as error:  # a class that can't be made so
            print(f"# {model_type} {change}: {error}", file=sys.stderr)


def peer(llama):
    for path in (llama / "gguf-py", llama):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    logging.disable(logging.CRITICAL)


def loaded_config(folder):
    """config.json as the converter has it."""
    from conversion.base import ModelBase

    path = folder / "config.json"
    config = json.loads(path.read_text())
    older = OLDER.get(config["model_type"], lambda c: {})(config)
    path.write_text(json.dumps({**older, **config}))
    # transformers' class drops what it has another name for.
    return {**older, **ModelBase.load_hparams(folder, False)}


def prepared(folder, hparams):
    """The converter's class for a model without a tokenizer: some count its
    tokens, and some expect layers for further tokens in every file."""
    from conversion import ModelType, get_model_architecture, get_model_class

    size = hparams.get("vocab_size", 0)
    (folder / "tokenizer.json").write_text(json.dumps({
        "model": {"vocab": {str(i): i for i in range(size)}},
        "added_tokens": []}))
    made = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    if hasattr(made, "no_mtp"):
        made.no_mtp = True
    return made


def converted(llama, model, folder):
    """What goes in, what comes out, and the metadata, of llama.cpp's class."""
    from safetensors.torch import load_file

    peer(llama)
    import gguf

    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter.data)
    model.float().save_pretrained(folder)
    before = load_file(folder / "model.safetensors")
    hparams = loaded_config(folder)
    made = prepared(folder, hparams)(
        folder, gguf.LlamaFileType.ALL_F32, folder / "o.gguf", eager=True,
        hparams=hparams)
    made.set_vocab = lambda: None
    after = {}
    made.gguf_writer.add_tensor = lambda name, data, **_: after.update(
        {name: torch.from_numpy(data.copy())})
    made.prepare_tensors()
    made.set_gguf_parameters()
    keys = {key: value.value for shard in made.gguf_writer.kv_data
            for key, value in shard.items()}
    return before, after, keys, hparams


def pairs(tensor, heads):
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return None
    return (tensor.reshape(heads, 2, rows // heads // 2, *tensor.shape[1:])
            .swapaxes(1, 2).reshape(tensor.shape))


def forms(name, tensor, hparams):
    """A tensor in the ways in which it may come out: (operations, tensor)."""
    yield None, tensor
    yield {"name": "add", "value": 1}, tensor + 1
    if tensor.dim() >= 2:
        yield "t", tensor.transpose(-1, -2)
    for heads, text in ((hparams.get("num_attention_heads"), "$nh"),
                        (hparams.get("num_key_value_heads"), "$ng")):
        if heads and re.search(r"[qk]_proj|query|key", name):
            turned = pairs(tensor, heads)
            if turned is not None:
                yield {"name": "rope_interleave", "heads": text}, turned


def ungrouped(name, tensor, hparams):
    """Rows that hold q, k and v of one head, or of one group of heads, after
    the other: all of q, all of k, all of v."""
    heads = hparams.get("num_attention_heads") or hparams.get("n_head")
    if not heads or "query_key_value" not in name:
        return
    groups = hparams.get("num_kv_heads") if hparams.get(
        "new_decoder_architecture") else heads
    size = hparams.get("hidden_size") // heads
    each = heads // groups
    if tensor.shape[0] != (heads + 2 * groups) * size:
        return
    parts = tensor.reshape(groups, each + 2, size, *tensor.shape[1:])
    op = {"name": "ungroup", "groups": "$nh", "sizes": [["$hd"] * 3]}
    if groups != heads or hparams.get("new_decoder_architecture"):
        op.update(groups="$ng", sizes=[["$nh / $ng * $hd", "$hd", "$hd"]])
    yield op, torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in
                         parts.split([each, 1, 1], dim=1)])


def parts(name, tensor, hparams):
    """The tensors of llama.cpp's that one holds: (operations, tensor)."""
    for ending, (dim, groups, names, sizes_of) in PARTS.items():
        if not name.endswith(ending):
            continue
        count, sizes = sizes_of(hparams)
        shape = list(tensor.shape)
        grouped = tensor.reshape(*shape[:dim], count, sum(sizes), *shape[dim + 1:])
        for at, part in enumerate(grouped.split(sizes, dim=dim + 1)):
            op = {"name": "part", **({"dim": dim} if dim else {}),
                  **({"groups": groups} if groups else {}),
                  "sizes": names, "at": at}
            flat = part.reshape(*shape[:dim], count * sizes[at], *shape[dim + 1:])
            if count > 1 and dim == 0:
                rest = {"kv_b_proj.weight": ["$rank"]}[ending]
                turn = {"name": "reshape", "to": [groups, names[at], *rest],
                        "from": [f"{groups} * {names[at]}", *rest]}
                yield [op, turn], part
                yield [op, turn, "t"], part.transpose(-1, -2)
            yield [op], flat
            yield [op, "t"], flat.transpose(-1, -2)


def key_of(tensor):
    tensor = tensor.contiguous()
    return tensor.float().numpy().tobytes()


def sources(before, hparams):
    """bytes -> (hf names, operation)."""
    found = {}
    for name, tensor in before.items():
        for op, form in (*forms(name, tensor, hparams),
                         *ungrouped(name, tensor, hparams),
                         *parts(name, tensor, hparams)):
            if isinstance(op, list) and len(op) == 1:
                op = op[0]
            found.setdefault(key_of(form), ([name], op))
    return found


def rule_of(name, tensor, found, before):
    """The rule for one tensor that came out, or None."""
    if (hit := found.get(key_of(tensor))) is not None:
        names, op = hit
        whole = before[names[0]]
        if tuple(whole.shape) != tuple(tensor.shape) and op is None:
            return names, {"name": "reshape", "to": list(tensor.shape),
                           "from": list(whole.shape)}
        return names, op
    if tensor.dim() == 3:  # experts
        slices = [found.get(key_of(one)) for one in tensor]
        if all(slices) and all(op is None for _, op in slices):
            return [names[0] for names, _ in slices], "experts"
    for op, parts in (("cat", 2), ("cat", 3)):
        for cut in cuts(tensor, before):
            hits = [found.get(key_of(one)) for one in cut]
            if all(hits) and len(hits) <= parts:
                return [names[0] for names, _ in hits], op
    # A part of a tensor that holds several.
    for hf, whole in before.items():
        if whole.dim() != tensor.dim() or tensor.dim() < 2:
            continue
        for dim in range(whole.dim()):
            for sized in (whole, whole.transpose(-1, -2)):
                for start in range(0, sized.shape[dim], tensor.shape[dim]):
                    part = sized.narrow(dim, start, min(
                        tensor.shape[dim], sized.shape[dim] - start))
                    if part.shape == tensor.shape and torch.equal(part, tensor):
                        return [hf], f"part {dim} {start}"
    return None


def cuts(tensor, before):
    """Ways to cut rows that joined tensors of the model give."""
    rows = sorted({t.shape[0] for t in before.values()
                   if t.dim() == tensor.dim()})
    total = tensor.shape[0]
    for a in rows:
        if total - a in rows:
            yield tensor.split([a, total - a])
        for b in rows:
            if total - a - b in rows and total - a - b == b:
                yield tensor.split([a, b, b])


def abstract(text, index):
    return re.sub(r"(?<=[._])(\d+)(?=\.|$)", "{" + index + "}", text, count=1)


def conditions(family):
    """hf name -> condition of the rule for it in the family's other dialects;
    None where several rules have it, or where it has none."""
    found = {}
    for name, section in family.get("dialects", {}).items():
        for rule in section.get("rules", ()) if name != "gguf" else ():
            for hf in rule.get("hf") or ():
                if not rule.get("alias"):
                    found.setdefault(hf, set()).add(rule.get("when"))
    return {hf: next(iter(whens)) if len(whens) == 1 else None
            for hf, whens in found.items()}


def family_of(model_type):
    import subprocess
    done = subprocess.run([ROOT / "build/bin/ckpt", "family", "show",
                           "--json", model_type], capture_output=True,
                          text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def section(llama, model_type):
    rules, keys, unknown = {}, {}, []
    for model in variants(model_type):
        with tempfile.TemporaryDirectory() as folder:
            before, after, found, hparams = converted(
                llama, model, Path(folder))
            keys.update(found)
        found = sources(before, hparams)
        for name, tensor in after.items():
            to = re.sub(r"^blk\.\d+\.", "blk.{l}.", name)
            if to == "rope_freqs.weight":
                continue
            hit = rule_of(name, tensor, found, before)
            if hit is None:
                unknown.append(name)
                continue
            names, op = hit
            rule = {"to": to}
            hf = [abstract(one, "l") if "blk." in name else one
                  for one in names]
            if op == "experts":
                hf = [re.sub(r"experts\.\d+\.", "experts.{e}.", hf[0])]
                rule.update(hf=hf, op="stack", each="e")
            else:
                rule["hf"] = hf
                if op is not None:
                    rule["op"] = op
            rules.setdefault(to, rule)
    return {"rules": list(rules.values())}, keys, sorted(set(unknown))


def digests(tensors):
    """Name -> dtype, shape and SHA-256 of the bytes."""
    return {name: [str(tensor.dtype).removeprefix("torch."),
                   list(tensor.shape), hashlib.sha256(
                       tensor.contiguous().view(-1).view(torch.uint8)
                       .numpy().tobytes()).hexdigest()]
            for name, tensor in sorted(tensors.items())}


def write_data(llama, model_type, folder, quantized):
    """TYPE.gguf and TYPE.json: config.json and the tensors' digests. Or the
    same model as TYPE-q8_0.gguf."""
    from gguf_test import tiny
    from safetensors.torch import load_file

    peer(llama)
    import gguf

    folder.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as home:
        source = Path(home) / model_type
        tiny(model_type).save_pretrained(source)
        hparams = loaded_config(source)
        made = prepared(source, hparams)(
            source, gguf.LlamaFileType.MOSTLY_Q8_0 if quantized else
            gguf.LlamaFileType.MOSTLY_BF16, folder / (
                model_type + ("-q8_0" if quantized else "") + ".gguf"),
            eager=True, hparams=hparams)
        made.set_vocab = lambda: None
        made.write()
        if quantized:
            return
        config = json.loads((source / "config.json").read_text())
        (folder / f"{model_type}.json").write_text(json.dumps({
            "config": config,
            "tensors": digests(load_file(source / "model.safetensors"))},
            separators=(",", ":")) + "\n")


def write_lora(llama, model_type, folder):
    """A LoRA of peft's for a tiny model, the model's config.json, and what
    llama.cpp's converter makes of them."""
    import subprocess

    from gguf_test import tiny
    from peft import LoraConfig, get_peft_model

    home = folder / "lora" / model_type
    home.mkdir(exist_ok=True, parents=True)
    torch.manual_seed(1)
    base = tiny(model_type).float()
    base.config.architectures = [type(base).__name__]
    base.config.save_pretrained(home / "base")
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "embed_tokens"]))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter.data)
    model.save_pretrained(home)
    (home / "README.md").unlink()
    paths = [str(llama / "gguf-py"), str(llama), *sys.path]
    subprocess.run([sys.executable, "-B", llama / "convert_lora_to_gguf.py",
                    "--base", home / "base", "--outfile", home / "peer.gguf",
                    home], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llama", type=Path)
    parser.add_argument("types", nargs="+")
    parser.add_argument("--data", type=Path, help="write there, for each type, "
                        "llama.cpp's file of a tiny model and what it was "
                        "made of (tests/data/gguf)")
    parser.add_argument("--quantized", action="store_true",
                        help="with --data: TYPE-q8_0.gguf alone")
    parser.add_argument("--lora", action="store_true",
                        help="with --data: lora/TYPE, an adapter and llama.cpp's "
                        "file of it, alone")
    args = parser.parse_args()
    for model_type in args.types:
        if args.data and args.lora:
            write_lora(args.llama, model_type, args.data)
            continue
        if args.data:
            write_data(args.llama, model_type, args.data, args.quantized)
            continue
        made, keys, unknown = section(args.llama, model_type)
        known = conditions(family_of(model_type))
        # What no other dialect has, no model of the family has.
        made["rules"] = [rule for rule in made["rules"]
                         if rule["hf"][0] in known]
        for rule in made["rules"]:
            when = known[rule["hf"][0]]
            if when:
                rule["when"] = when
        print(json.dumps({"type": model_type, "unknown": unknown, "keys": keys,
                          "gguf": made}, default=str))


if __name__ == "__main__":
    main()
