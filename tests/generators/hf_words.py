# SPDX-License-Identifier: Apache-2.0
"""The first words of the names that each class of transformers looks for in a
file: its own modules and those of its backbone, with and without the backbone's
name. Writes "words" in models/families/hf_words.json; "uneven" there is what
hf_uneven.py found.

    .venv/bin/python tests/generators/hf_words.py

Each class of an Auto mapping is made without memory ("meta"), with a layer or
two. Those that can't be made from their configuration's defaults are left out.
"""

import json
import os
import re
import signal
import sys
import warnings
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
OUT = ROOT / "models/families/hf_words.json"
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth",
          "encoder_layers", "decoder_layers", "num_encoder_layers",
          "num_decoder_layers")
SECONDS = 20


def classes():
    """By name, of every Auto mapping."""
    from transformers.models.auto import modeling_auto

    names = set()
    for key, mapping in vars(modeling_auto).items():
        if key.startswith("MODEL_") and key.endswith("MAPPING_NAMES"):
            for one in mapping.values():
                names.update([one] if isinstance(one, str) else one)
    return sorted(names)


def made(kind, own_depth=False):
    """An instance without memory, shallow unless its configuration insists."""
    import torch

    for shallow in (False,) if own_depth else (True, False):
        config = kind.config_class()
        parts = [config, *(v for v in vars(config).values()
                           if hasattr(v, "to_dict"))]
        for part in parts if shallow else ():
            for key in DEPTHS:
                if isinstance(getattr(part, key, None), int):
                    part.__dict__[key] = min(2, getattr(part, key))
        try:
            with torch.device("meta"):
                return kind(config)
        except Exception:
            if not shallow:
                raise
    return None


def first_words(kind):
    from transformers.conversion_mapping import get_model_conversion_mapping

    model = made(kind)
    words = {kind.base_model_prefix}
    for one in (model, model.base_model):
        words |= {name.split(".")[0] for name in one.state_dict()}
    # What transformers renames as it reads: any word of the patterns.
    for change in get_model_conversion_mapping(model, add_legacy=False):
        for pattern in (*change.source_patterns, *change.target_patterns):
            words |= set(re.findall(r"[A-Za-z_]\w*", pattern))
    return sorted(words - {""})


def kind_of(name):
    import transformers

    return getattr(transformers, name)


def too_long(*_):
    raise TimeoutError


def write_table(rows, uneven):
    """`uneven`: hf_uneven.py's."""
    OUT.write_text('{"uneven": ' + json.dumps(uneven) + ',\n "words": [\n ' +
                   ",\n ".join(map(json.dumps, rows)) + "\n]}\n")


def main():
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(50)
    signal.signal(signal.SIGALRM, too_long)
    found, left = defaultdict(list), 0
    for name in classes():
        signal.alarm(SECONDS)
        try:
            words = first_words(kind_of(name))
            found[tuple(words)].append(name)
        except Exception as error:
            left += 1
            print(f"{name}: {type(error).__name__}: {error}"[:100], flush=True)
        finally:
            signal.alarm(0)
    rows = [{"first": words, "classes": names}
            for words, names in sorted(found.items())]
    write_table(rows, json.loads(OUT.read_text())["uneven"])
    print(f"{sum(map(len, found.values()))} classes, {left} left out")


if __name__ == "__main__":
    main()
