#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON that nests 100,000 levels deep, in each kind of JSON file that a
checkpoint has, in place of each member of it: every command ends by itself, with
a status of its own. A library that copies or prints values by recursion needs
more than a stack for these.
"""

import json
import random
import shutil

from support import DATA, Suite, check

CKPT = None  # set by prepare
DEPTH = 100_000
LISTS = "[" * DEPTH + "]" * DEPTH
OBJECTS = '{"a":' * DEPTH + "1" + "}" * DEPTH
# Beside goldens that have none: what converters look into.
BESIDE = {"tokenizer_config.json": {"added_tokens_decoder": {}},
          "tokenizer.json": {"added_tokens": [], "model": {}},
          "generation_config.json": {"eos_token_id": 1, "suppress_tokens": []},
          "special_tokens_map.json": {"eos_token": ""}}
COMMANDS = (("inspect", "{}"), ("verify", "{}"), ("scan", "{}"),
            ("convert", "{}", "{}.out", "-n"),
            ("convert", "{}", "{}.out", "-n", "--to", "megatron_torch_dist"),
            ("convert", "{}", "{}.out", "-n", "--to", "safetensors"))


def kinds():
    """{name of a JSON file: (checkpoint, path in it)}, the first of each."""
    found = {}
    for path in sorted(DATA.glob("*/*/ckpt/**/*")):
        if path.suffix != ".json" and path.name != ".zarray":
            continue
        root = next(p for p in path.parents if p.name == "ckpt")
        found.setdefault(path.name, (root, path.relative_to(root)))
    llama = DATA / "hf/llama/ckpt"
    for name in BESIDE:
        found[name] = (llama, name)
    return found


def with_member(members, key, text):
    """JSON of a dict, the value of a key in other words."""
    return "{" + ",".join(
        json.dumps(name) + ":" + (text if name == key else json.dumps(value))
        for name, value in {**members, key: None}.items()) + "}"


def test_kind(folder, name, root, path):
    copy = folder / "ckpt"
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    target = copy / path
    members = BESIDE.get(name) or json.loads(target.read_text())
    check(isinstance(members, dict), f"{path} is no object")
    keys = [*members, "another"]
    some = random.Random(name).sample(keys, min(4, len(keys)))
    for number, key in enumerate(keys if CKPT.full else some):
        deep = OBJECTS if number % 2 else LISTS
        target.write_text(with_member(members, key, deep))
        look_at(copy, f"{name}: {key}", COMMANDS)
    target.write_text(LISTS)
    look_at(copy, name, COMMANDS[:4])


def look_at(copy, what, commands):
    for command in commands:
        done = CKPT.run(*(word.format(copy) for word in command), "-q")
        check(done.code in range(9), f"{what}: {done}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    CKPT.full = suite.full
    for name, (root, path) in kinds().items():
        suite.add(name, test_kind, name, root, path)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
