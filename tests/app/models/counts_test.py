#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many model types of transformers convert to Megatron and to vLLM: the
rows of docs/families.md are those that tests convert, and their number is
right.

`tests/app/models/model_types.py` tries all types and prints the whole table, which
takes minutes. Here each type that the page names is in a suite that converts it
to Megatron and back, and each that it names for vLLM is converted there and
back.
"""

import ast
import json
import os
import re
import sys

from support import DATA, HERE, ROOT, Skip, Suite, check, check_equal

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
PAGE = ROOT / "docs/families.md"
SUITES = ("families2026_models", "multimodal_models", "hybrid_models")
MEGATRON, VLLM = 50, 30


def row(label):
    found = re.search(rf"^\| {re.escape(label)} \| (.*) \|$", PAGE.read_text(),
                      re.MULTILINE)
    check(found, f"{PAGE.name} has no row {label}")
    return found[1].split(", ")


def types_of(module):
    """The keys of TYPES and VARIANTS, without importing transformers."""
    found = {}
    for node in ast.parse((HERE / "models" / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            name = getattr(node.targets[0], "id", None)
            found[name] = {getattr(key, "value", None)
                           for key in node.value.keys}
    check("TYPES" in found, f"{module} has no TYPES")
    return found["TYPES"] | found.get("VARIANTS", set())


def goldens():
    """What families_test.py converts; OLMo 3 uses OLMo 2's class."""
    return {json.loads(path.read_text())["model_type"]
            for path in DATA.glob("hf/*/ckpt/config.json")} | {"olmo3"}


def megatron(_):
    said = row("Megatron") + row("Megatron, with `--allow-unsaid`")
    tried = goldens() | {word for module in SUITES
                         for name in types_of(module)
                         for word in name.split(", ")}
    tried |= {"megatron-bert", "mt5", "t5"}  # encoders_test.py
    check_equal(sorted(set(said) - tried), [], "named, and no suite has it")
    count = re.search(r"(\d+) go to Megatron's distributed checkpoint",
                      PAGE.read_text())
    names = set(said) - {"tied"}
    print(f"{len(names)} model types to Megatron and home")
    check(len(names) >= MEGATRON, f"{len(names)} model types")
    check(int(count[1]) >= len(names), f"the page counts {count[1]}, and names "
                                       f"{len(names)}")


def vllm(_):
    said = row("vLLM")
    check_equal(len(said), len(set(said)), "named twice")
    count = re.search(r"(\d+) to vLLM's", PAGE.read_text())
    print(f"{len(said)} model types to vLLM and home")
    check_equal(int(count[1]), len(said), "what the page counts")
    check(len(said) >= VLLM, f"{len(said)} model types")


def to_vllm(folder, model_type):
    try:
        import model_types
        import torch
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    model, _ = model_types.small_config(model_type)
    model.save_pretrained(folder / "source")
    trial = model_types.Trial(CKPT.path, folder)
    said = trial.home("vllm", (), "--to", "vllm", "--tp", 2)
    check(said is None, f"{said}\n{trial.err}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("Megatron", megatron)
    suite.add("vLLM", vllm)
    for model_type in row("vLLM"):
        suite.add(f"{model_type} to vLLM", to_vllm, model_type)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
