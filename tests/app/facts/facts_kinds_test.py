#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Absent is not default: every key of a configuration that a fact reads, as every
type that its file can hold. The result is that of the plain value, or an error
that names the key; never another one.

The keys are those of the expressions in facts.json and in the families' files. The
values are pickled by Python with torch and numpy (Megatron's args), or are JSON
and YAML (config.json, fairseq2's model.yaml). What is equal to the plain value in
Python has to give the same; a text, a list or an Enum has to be refused. A key
counts if its absence changes the result.

Of each key that one family has shown with all types, other families show two types,
drawn by a seed; --full shows all.
"""

import argparse
import copy
import enum
import json
import random
import re
import shutil
import sys
from pathlib import Path

from support import Skip, Suite, check

CKPT = None
ROOT = Path(__file__).resolve().parents[3]
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
WORDS = {"null", "true", "false", "has", "pick", "json", "is_list", "length",
         "without", "first1", "int", "sqrt", "ceil_to", "trait", "window", "rope",
         "l", "e"}
# What an args' key holds in runs that set it, if the tiny models do not.
OTHERS = {
    "window_size": [(3, 0)], "window_attn_skip_freq": [[1, 0], 2],
    "moe_layer_freq": [[0, 1], 2], "mrope_section": [[2, 1, 1]],
    "position_embedding_type": ["none", "rope"], "softmax_type": ["learnable"],
    "normalization": ["LayerNorm", "RMSNorm"], "swiglu": [True, False],
    "rotary_percent": [0.5], "rotary_base": [500.0], "norm_epsilon": [0.5],
    "layernorm_epsilon": [0.5], "attn_logit_softcapping": [7.0],
    "final_logit_softcapping": [7.0], "softmax_scale": [0.5],
    "moe_router_score_function": ["sigmoid"],
    "moe_router_load_balancing_type": ["sinkhorn"],
}
# Keys without a default that is an int, so that ckpt takes 4.0 for 4 where
# transformers refuses it.
NO_INT = {"num_ln_in_parallel_attn", "sliding_window_pattern",
          "word_embed_proj_dim", "moe_layer_end_index", "attention_chunk_size",
          "floor_scale"}
# Seen with all types by this process: of other families two are enough.
SEEN = {"mcore": set(), "hf": set(), "fairseq2": set()}


class Kind(enum.Enum):
    VALUE = 3


# ------------------------------------------------------------------- the keys
def keys_of_expression(text):
    for name in re.findall(r"(?<![\w.$])[A-Za-z_][\w.]*",
                           re.sub(r"'[^']*'", "", text)):
        if name.split(".")[0] not in WORDS:
            yield name.split(".")[0]


def own_files(family):
    """The files whose variables the family has, by name; all for --full."""
    folder, names, todo = ROOT / "models/families", [], [family]
    if SUITE.full or not (folder / f"{family}.json").exists():
        todo = sorted(path.stem for path in folder.glob("*.json"))
    while todo:
        names.append(todo.pop())
        base = json.loads((folder / f"{names[-1]}.json").read_text()).get("extends")
        todo += [base] if base and base not in names else []
    return [folder / f"{name}.json" for name in names]


def expressions(side, family):
    """Every expression that reads a configuration of that side."""
    def said(sides):
        text = sides.get(side, sides.get(""))
        return [text["of"] if isinstance(text, dict) else text] if text else []

    table = json.loads((ROOT / "models/families/facts.json").read_text())
    for group in table["groups"]:
        for sides in group["facts"].values():
            yield from said(sides)
    for traits in table["families"].values():
        for sides in traits.get("facts", {}).values():
            yield from said(sides)
    for path in own_files(family):
        document = json.loads(path.read_text())
        for part in (document, *document.get("dialects", {}).values()):
            for sides in part.get("vars", {}).values():
                if isinstance(sides, dict):
                    yield from said(sides)


def keys_of(side, family, config):
    keys = {key for text in expressions(side, family)
            for key in keys_of_expression(text)}
    if side == "mcore":  # read by code
        keys |= {"window_size", "window_attn_skip_freq"}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        keys |= {f"rope_parameters.{key}" for key in rope}
    return sorted(key for key in keys if not key.startswith("ckpt_"))


def at(config, key):
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def changed(config, key, *value):
    """With another value, or without the key."""
    config = copy.deepcopy(config)
    *outer, last = key.split(".")
    place = config
    for part in outer:
        place = place[part]
    place.pop(last, None)
    if value:
        place[last] = value[0]
    return config


# ----------------------------------------------------------------- the values
def numbers_as(value):
    import numpy
    import torch

    number = numpy.asarray(value).dtype.type
    equal = {"numpy": number(value), "array": numpy.array(value)}
    if isinstance(value, bool):
        equal.update(int=int(value), float=float(value))
    elif isinstance(value, int):
        equal.update(float=float(value), int32=numpy.int32(value))
        if value in (0, 1):
            equal["bool"] = bool(value)
    else:
        equal["float32"] = numpy.float32(value)
        if float(equal["float32"]) != value:
            del equal["float32"]
        if value == int(value):
            equal["int"] = int(value)
    return equal, {"str": str(value), "tensor": torch.tensor(value),
                   "list": [value], "tuple": (value,), "bytes": b"3"}


def sequences_as(value):
    import numpy
    import torch

    equal = {"list": list(value), "tuple": tuple(value),
             "array": numpy.array(value)}
    if all(isinstance(item, int) for item in value):
        equal.update({"Size": torch.Size(value),
                      "items": [numpy.int64(item) for item in value]})
    return equal, {"str": str(list(value)), "tensor": torch.tensor(value)}


def pickled_as(value):
    """({type: equal in Python}, {type: not equal})"""
    import numpy
    import torch

    if isinstance(value, (bool, int, float)):
        equal, other = numbers_as(value)
    elif isinstance(value, (list, tuple)):
        equal, other = sequences_as(value)
    else:
        equal = {"str_": numpy.str_(value)}
        other = {"bytes": value.encode(), "list": [value], "tuple": (value,),
                 "int": 3}
    other.update(Enum=Kind.VALUE, Namespace=argparse.Namespace(a=1), set={3},
                 dtype=torch.bfloat16, dict={"a": 1}, type=Kind)
    return equal, other


def text_as(value):
    """The same of JSON and YAML."""
    equal, other = {}, {"object": {"a": 1}}
    if isinstance(value, bool):
        equal["int"] = int(value)
        other.update(list=[value])
    elif isinstance(value, (int, float)):
        if value == int(value):
            equal["other number"] = (float if isinstance(value, int)
                                     else int)(value)
        # Spelled so that YAML 1.1 and 1.2 both take it for a number, and quote
        # the text.
        other.update(text=f"{value:.9f}", list=[value])
    elif isinstance(value, str):
        other.update(list=[value], number=3)
    else:
        other.update(text=json.dumps(value))
    if isinstance(value, dict):
        other.pop("object")
    return equal, other


# ----------------------------------------------------------------- the trials
def exact(value):
    """For comparisons in which 1 is not True."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(one) for one in value]
    return (isinstance(value, bool), value)


class Trials:
    """`write` puts a configuration where ckpt finds it, `read` says what became of
    it in `out`."""

    def __init__(self, side, family, folder, config, write, read, options):
        self.side, self.family, self.config = side, family, config
        self.folder, self.write, self.read = folder, write, read
        self.options = options
        self.count = self.live = 0
        self.wrong = []

    def outcome(self, config):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.write(config)
        result = CKPT.run("convert", *self.options, out)
        self.count += 1
        if result.code == 0:
            return 0, exact(self.read(out)), ""
        check(result.code in (4, 5), str(result))
        return result.code, None, result.err

    def with_value(self, key, value):
        return self.outcome(changed(self.config, key, value))

    def key(self, key, values, types, few):
        absent = self.outcome(changed(self.config, key))
        for value in values:
            plain = self.with_value(key, value)
            if plain[:2] == absent[:2]:
                continue
            if isinstance(value, bool) and plain[0] != 0:
                continue  # no key of that kind: what equals it may be right
            self.live += 1
            equal, other = types(value)
            names = [(name, True) for name in equal]
            names += [(name, False) for name in other]
            draw = random.Random(f"{self.family} {key} {value}")
            for name, same in (draw.sample(names, 2) if few else names):
                got = self.with_value(key, (equal if same else other)[name])
                if not self.right(key, got, plain, same):
                    self.wrong.append(f"{key} = {value!r} as {name}: {got[2]}")
        return self.live

    @staticmethod
    def right(key, got, plain, same):
        if got[0] != 0:
            # Where the plain value is refused, its equals may be for the same.
            last = key.rsplit(".", 1)[-1]
            return last in got[2] or (same and plain[0] != 0)
        return same and got[:2] == plain[:2]


def values_for(key, now):
    """Plain values of a key: what it has, and another one."""
    values = [now] if now is not None else []
    values += OTHERS.get(key, [])
    if now is None and not values and not key.endswith("_config"):
        values = [True, 3]
    return values


def run(trials, types, values):
    seen = SEEN[trials.side]
    for key in keys_of(trials.side, trials.family, trials.config):
        few = key in seen and not SUITE.full
        before = trials.live
        trials.key(key, values(key, at(trials.config, key)), types, few)
        if trials.live > before:
            seen.add(key)
    check(not trials.wrong, f"{len(trials.wrong)} of {trials.count}:\n"
          + "\n".join(trials.wrong[:20]))
    check(trials.live >= 5, f"only {trials.live} keys have an effect")


def written_config(out):
    path = out / "config.json"
    return json.loads(path.read_text()) if path.exists() else None


def saved(folder, family):
    from facts_models import config_of, model_of

    model_of(config_of(family)).save_pretrained(folder / "source")
    return folder / "source"


def megatron(folder, family):
    """(the checkpoint, its args), without a config.json."""
    import torch

    there = folder / "there"
    result = CKPT.run("convert", saved(folder, family), there, "-q", "--to",
                      "megatron_torch_dist", "--allow-unsaid", "*")
    if result.code != 0:
        raise Skip(f"no way to Megatron: {result.err[:80]}")
    for path in there.rglob("*config.json"):
        path.unlink()
    [common] = there.rglob("common.pt")
    return there, common, torch.load(common, weights_only=False)


def args_of_megatron(folder, family):
    """Values of a pickled Namespace, into config.json."""
    import torch

    there, common, state = megatron(folder, family)

    def write(config):
        state["args"] = argparse.Namespace(**config)
        torch.save(state, common)

    trials = Trials("mcore", family, folder, dict(vars(state["args"])), write,
                    written_config,
                    ["--to", "safetensors", "--family", family, "-q", there])
    run(trials, pickled_as, values_for)


def config_of_transformers(folder, family):
    """Values of config.json, into Megatron's args."""
    import torch
    from facts_models import config_of, values_of

    source = saved(folder, family)
    path = source / "config.json"
    config = json.loads(path.read_text())
    made = config_of(family)

    def read(out):
        [common] = out.rglob("common.pt")
        args = dict(vars(torch.load(common, weights_only=False)["args"]))
        return {key: value for key, value in args.items() if key != "ckpt_config"}

    def values(key, now):
        other = values_of(made, key) if hasattr(made, key) else []
        return ([now] if now is not None else []) + other[:1]

    trials = Trials("hf", family, folder, config,
                    lambda edited: path.write_text(json.dumps(edited)), read,
                    ["--to", "megatron_torch_dist", "-q", "--allow-unsaid", "*",
                     source])
    run(trials, text_as, values)


def model_yaml(folder, family):
    """Values of fairseq2's model.yaml, into config.json."""
    import yaml

    there = folder / "there"
    CKPT.ok("convert", saved(folder, family), there, "-q", "--to", "fairseq2",
            "--allow-unsaid", "*")
    for path in there.rglob("*config.json"):
        path.unlink()
    [path] = there.rglob("model.yaml")
    # PyYAML knows YAML 1.1, where 1e-05 is a text.
    document = yaml.safe_load(path.read_text().replace("1e-05", "1.0e-05"))
    [place] = [key for key in document if "config" in key]

    def write(config):
        path.write_text(yaml.safe_dump({**document, place: config}))

    trials = Trials("fairseq2", family, folder, document[place], write,
                    written_config,
                    ["--to", "safetensors", "--dialect", "hf", "-q", there])
    run(trials, text_as, values_for)


def floats_for_sizes(folder, family):
    """A whole number as a float, which JSON tells from an int: refused by the
    key's name where transformers' class refuses it, else taken as it is."""
    import torch
    from transformers import AutoConfig

    source = saved(folder, family)
    path = source / "config.json"
    config = json.loads(path.read_text())

    def read(out):
        [common] = out.rglob("common.pt")
        return dict(vars(torch.load(common, weights_only=False)["args"]))

    trials = Trials("hf", family, folder, config,
                    lambda edited: path.write_text(json.dumps(edited)), read,
                    ["--to", "megatron_torch_dist", "-q", "--allow-unsaid", "*",
                     source])
    if trials.outcome(config)[0] != 0:
        raise Skip("no way to Megatron")
    plain, wrong = trials.outcome(config)[1], []
    for key, value in config.items():
        if type(value) is not int or key.endswith("_token_id"):
            continue
        if trials.with_value(key, value + 1)[:2] == (0, plain):
            continue  # nobody reads it
        edited = changed(config, key, float(value))
        path.write_text(json.dumps(edited))
        got = trials.outcome(edited)
        right = got[0] != 0 and key in got[2]
        try:  # a class may hold what its model can't be built with
            AutoConfig.from_pretrained(source)
            right = right or got[:2] == (0, plain)
        except Exception:  # of huggingface_hub's
            right = right or (key in NO_INT and got[:2] == (0, plain))
        if not right:
            wrong.append(f"{key}: {float(value)}: {got[0]} {got[2]}")
    check(not wrong, "\n".join(wrong))


SUITE = Suite(__doc__)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    from facts_models import FAMILIES

    for family in FAMILIES:
        suite.add(f"args of Megatron: {family}", args_of_megatron, family)
        suite.add(f"config.json: {family}", config_of_transformers, family)
        suite.add(f"floats for sizes: {family}", floats_for_sizes, family)
    for family in ("llama", "mistral", "qwen2", "olmo2"):
        suite.add(f"model.yaml: {family}", model_yaml, family)


if __name__ == "__main__":
    SUITE.main(prepare)
