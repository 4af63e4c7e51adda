# SPDX-License-Identifier: Apache-2.0
"""The two names of a tensor of transformers 5: its module's, and the one that
save_pretrained writes and the Hub has. Writes models/families/hf_names.json.

    .venv/bin/python tests/generators/hf_names.py [--only TYPE,...]

Every element of a model is a number of its own. transformers' own
revert_weight_conversion says what becomes of each; where it went is looked up,
nothing is read from patterns. Numbers in names become {}, for all layers and
experts alike; a class whose names don't follow this way is left out.
"""

import argparse
import json
import math
import os
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [os.path.join(sys.prefix, "transformers_5.12.1"),
                str(ROOT / "tests/app/models"), str(ROOT / "tests/app")]
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

OUT = ROOT / "models/families/hf_names.json"
COUNTS = {**dict.fromkeys(
    ("num_hidden_layers", "num_layers", "n_layer", "depth", "encoder_layers",
     "decoder_layers", "num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts",
                     "moe_num_experts"), 4)}
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


class Odd(Exception):
    """Names that a row can't say."""


def template(name):
    return NUMBER.sub("{}", name)


def numbers(name):
    return NUMBER.findall(name)


def numbered(model):
    """The state dict of the module with another number in every element. A few
    rows stand for all, but of experts each: the model has no memory of its own,
    and transformers counts them."""
    import torch

    state, at = {}, 1
    tiny = model.num_parameters() < 8_000_000
    for name, tensor in model.state_dict().items():
        shape = [size if tiny or dim == 0 and tensor.ndim == 3 and size < 64
                 else min(size, 4 + 2 * dim)
                 for dim, size in enumerate(tensor.shape)]
        count = math.prod(shape)
        state[name] = torch.arange(at, at + count,
                                   dtype=torch.float64).reshape(shape)
        at += count
    return state


def hub_of(model, state):
    from transformers.core_model_loading import revert_weight_conversion

    return {name: tensor for name, tensor in
            revert_weight_conversion(model, dict(state)).items()}


def place(tensor, owners):
    """(source, first element there) of a hub tensor's first element."""
    first = int(tensor.flatten()[0])
    at = max(begin for begin in owners if begin <= first)
    return owners[at]


def row_of(name, tensor, owners):
    """What one hub tensor is: (source, how)."""
    import torch

    source, whole = place(tensor, owners)
    if tensor.shape == whole.shape and torch.equal(tensor, whole):
        return source, ("same",)
    if whole.ndim == 3 and torch.equal(tensor, whole.transpose(1, 2)):
        return source, ("turned",)
    if whole.ndim == tensor.ndim + 1:
        for expert in range(whole.shape[0]):
            rows = tensor.shape[0]
            if whole.shape[1] % rows or whole.shape[2:] != tensor.shape[1:]:
                break
            parts = whole.shape[1] // rows
            for part in range(parts):
                if torch.equal(tensor, whole[expert, part * rows:
                                             (part + 1) * rows]):
                    return source, ("expert", expert, part, parts)
    raise Odd(f"{name} is no part of {source}")


def rows_of(model):
    state = numbered(model)
    owners = {int(tensor.flatten()[0]): (name, tensor)
              for name, tensor in state.items() if tensor.numel()}
    rows, seen = {}, set()
    for name, tensor in hub_of(model, state).items():
        if not tensor.numel():
            continue
        source, how = row_of(name, tensor, owners)
        seen.add(source)
        if source == name and how[0] == "same":
            continue
        if how[0] == "expert":
            told = numbers(name)
            if told[:-1] != numbers(source) or int(told[-1]) != how[1]:
                raise Odd(f"{name}: its numbers are not those of {source}")
            row = rows.setdefault(template(source), {"how": "experts",
                                                     "hub": [None] * how[3]})
            if row["how"] != "experts" or row["hub"][how[2]] not in (
                    None, template(name)):
                raise Odd(f"{name}: parts differ by layer")
            row["hub"][how[2]] = template(name)
            continue
        if numbers(name) != numbers(source):
            raise Odd(f"{name}: its numbers are not those of {source}")
        row = {"how": how[0], "hub": [template(name)]}
        if rows.setdefault(template(source), row) != row:
            raise Odd(f"{name}: layers differ")
    missing = [name for name in state if name not in seen
               and state[name].numel()]
    if missing and not set(missing) <= set(
            getattr(model, "_tied_weights_keys", None) or ()):
        raise Odd(f"{missing[0]} is not saved")
    if any(None in row["hub"] for row in rows.values()):
        raise Odd("parts of experts lack")
    # A template is one tensor's in one form alone.
    plain = {template(name) for name in state} - set(rows)
    if plain & {one for row in rows.values() for one in row["hub"]}:
        raise Odd("a name is both a module's and another's on the Hub")
    return said(rows, {template(name) for name in state})


def prefixes_of(renames, kept):
    """The renames as [module's prefix, Hub's prefix], the longest first; None
    if prefixes say more or less than the names do, in either direction."""
    pairs = set()
    for name, hub in renames.items():
        a, b = name.split("."), hub.split(".")
        while len(a) > 1 and len(b) > 1 and a[-2:] == b[-2:]:
            a, b = a[:-1], b[:-1]
        if a[-1] == b[-1] and len(a) > 1 and len(b) > 1:
            a, b = a[:-1], b[:-1]
        ends = ["." if len(cut) < len(whole.split(".")) else ""
                for cut, whole in ((a, name), (b, hub))]
        pairs.add((".".join(a) + ends[0], ".".join(b) + ends[1]))
    cut = sorted({pair for pair in pairs if not any(
        other != pair and pair[0].startswith(other[0])
        and pair[0][len(other[0]):] == pair[1][len(other[1]):]
        for other in pairs)}, reverse=True)
    every = {**renames, **{name: name for name in kept}}
    for end, way in ((0, every), (1, {hub: name for name, hub
                                      in every.items()})):
        for name, wanted in way.items():
            fits = [pair for pair in cut if name.startswith(pair[end])]
            best = max(fits, key=lambda pair: len(pair[end]), default=None)
            got = best[1 - end] + name[len(best[end]):] if best else name
            if got != wanted:
                return None
    return [list(pair) for pair in cut]


def said(rows, names):
    """The rows of a class as the file has them."""
    renames = {name: row["hub"][0] for name, row in rows.items()
               if row["how"] == "same"}
    prefixes = prefixes_of(renames, names - set(rows))
    table = {"prefixes": prefixes or [],
             "names": [] if prefixes else sorted(map(list, renames.items())),
             "kept": sorted(names - set(rows)) if renames and not prefixes
             else []}
    for how in ("experts", "turned"):
        table[how] = sorted([name, *row["hub"]] for name, row in rows.items()
                            if row["how"] == how)
    return {key: value for key, value in table.items() if value}


def configs(model_type):
    """Tiny, or as the type's class has it but for layers and experts."""
    import model_types
    from transformers import AutoConfig, PretrainedConfig

    try:
        yield model_types.small_config(model_type)[0].config
    except Exception:  # not every type can be tiny
        pass
    config = AutoConfig.for_model(model_type)
    for one in (config, *(value for value in vars(config).values()
                          if isinstance(value, PretrainedConfig))):
        for key, value in COUNTS.items():
            if isinstance(getattr(one, key, None), int):
                setattr(one, key, value)
    yield config


def models(model_type):
    """One of each class that people load."""
    import torch
    from transformers import (
        AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText,
        AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq)

    for config in configs(model_type):
        for kind in (AutoModelForCausalLM, AutoModelForImageTextToText,
                     AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq,
                     AutoModel):
            if type(config) in kind._model_mapping:
                with torch.device("meta"):
                    model = kind.from_config(config)
                yield model
        return


def late(*_):
    raise TimeoutError


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found, odd = {}, {}
    chosen = args.only.split(",") if args.only else sorted(CONFIG_MAPPING)
    signal.signal(signal.SIGALRM, late)
    for model_type in chosen:
        signal.alarm(15)
        try:
            for model in models(model_type):
                kind = type(model).__name__
                if kind in found or kind in odd:
                    continue
                try:
                    found[kind] = rows_of(model)
                except Odd as error:
                    odd[kind] = str(error)
        except Exception as error:  # not without a library, or a nested one
            print(f"{model_type}: {type(error).__name__}: {str(error)[:90]}",
                  file=sys.stderr)
    groups = {}
    for kind, table in sorted(found.items()):
        groups.setdefault(json.dumps(table), []).append(kind)
    lines = []
    for table, kinds in sorted(groups.items(), key=lambda one: one[1]):
        text = json.dumps({"classes": kinds, **json.loads(table)})
        lines.append(" " + text)
    OUT.write_text('{"tables": [\n' + ",\n".join(lines) + "\n]}\n")
    for kind, why in odd.items():
        print(f"left out: {kind}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
