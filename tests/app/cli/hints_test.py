#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A hint leads on: what it names is done with the input that printed it, and
succeeds, or says something else.

The inputs are the refusals of the matrix (each format and trainer into each
target), of files that lack, mix or misspell something, and of what the commands
are given by mistake. Of a hint, what a reader can do without further knowledge
is followed: options with a value or without one, and commands in backticks.
"""

import json
import re
import shlex

import torch
from matrix_test import SOURCES, TARGETS
from safetensors.torch import load_file, save_file

from support import DATA, Suite, check

CKPT = None
LLAMA = DATA / "hf/llama/ckpt"
STEPS = 5  # that lead to an end
FLAGS = ("--model-only", "--with-optimizer", "--allow-nonfinite", "--overwrite",
         "--allow-replica-mismatch")
VALUES = re.compile(
    r"(--(?:dialect|from|to|pp|tp|ep|dtype|quantize|trainer|optim)) "
    r"([a-z0-9][\w-]*)")
# Options that say what the reader wants lost: GLOB is what the message names.
GLOBS = re.compile(r"(--(?:allow-missing|drop|exclude)) GLOB")
COMMANDS = re.compile(r"`ckpt ((?:family list|inspect|verify)[^`]*)`")
# A command of another model's: its options are not this one's.
OTHERS = re.compile(r"ckpt convert (?:BASE|ADAPTER|SRC|DIR)\b.*")
# Where an option is left out, or given another value.
LEFT_OUT = re.compile(r"(?:leave (--[a-z-]+) out|without (--[a-z-]+))")


def said(done):
    """The message without its paths and its hint; the hint."""
    text = done.err or done.out
    error, _, hint = text.partition("hint: ")
    error = re.sub(r"\S*/\S*", "PATH", error.split("error: ")[-1]).strip()
    return error, " ".join(hint.split())


def without(argv, option):
    """argv without the option and its value."""
    if option not in argv:
        return None
    at = argv.index(option)
    end = at + 1
    while end < len(argv) and not str(argv[end]).startswith("--"):
        end += 1
    return argv[:at] + argv[end:]


def with_option(argv, option, *value):
    rest = without(argv, option) or argv
    return [*rest, option, *value]


def ways_of(argv, error, hint):
    """Each command line that the hint leads to."""
    text = OTHERS.sub("", LEFT_OUT.sub("", hint))
    before = argv
    for one in LEFT_OUT.findall(hint):
        argv = without(argv, one[0] or one[1]) or argv
    ways = [argv] if argv != before else []
    ways += [[*argv, flag] for flag in FLAGS
             if flag in text and flag not in argv]
    pairs = VALUES.findall(COMMANDS.sub("", text))
    if len(dict(pairs)) == len(pairs) > 1:  # they go together
        both = argv
        for pair in pairs:
            both = with_option(both, *pair)
        ways.append(both)
    else:
        ways += [with_option(argv, *pair) for pair in pairs]
    ways += [with_option(argv, option, "*") for option in GLOBS.findall(text)]
    for command in COMMANDS.findall(text):
        words = shlex.split(command)
        if words[0] != "family":
            words = [words[0], str(argv[1]), *words[1:]]
        ways.append(words)
    if len(ways) > 1 and ways[0] == argv:
        ways = ways[1:]  # something instead of it
    return ways


def follow(argv, seen, depth, told):
    """Follows each hint to its end; a message that was there is no step."""
    done = CKPT.run(*argv)
    if done.code in (0, 1) or "hint: " not in done.err:
        return
    error, hint = said(done)
    check((error, hint) not in seen,
          f"the hint leads back to where it came from, after\n"
          f"{seen[-1] if seen else ''}\n{done}")
    check(depth < STEPS, f"no end after {depth} hints\n{done}")
    told.add(hint)
    for way in ways_of([str(word) for word in argv], error, hint):
        follow(way, [*seen, (error, hint)], depth + 1, told)


def test_target(folder, source, target):
    path = DATA / source
    if path.is_dir():
        path /= "ckpt"
    told = set()
    for more in ((), ("--model-only",), ("--layers", "0"),
                 ("--dtype", "f8_e4m3")):
        follow(["convert", path, folder / target, *TARGETS[target], *more, "-n"],
               [], 0, told)


def changed(folder, change):
    folder.mkdir()
    state = load_file(next(LLAMA.glob("*.safetensors")))
    change(state)
    save_file({k: v.contiguous() for k, v in state.items()},
              folder / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text((LLAMA / name).read_text())
    return folder


def drop(*parts):
    def change(state):
        for name in [n for n in state if any(part in n for part in parts)]:
            del state[name]
    return change


def quantized(state):
    """As bitsandbytes stores nf4: its name for the method is not known."""
    name = "model.layers.0.mlp.up_proj.weight"
    count = state[name].numel()
    state[name] = torch.zeros(count // 2, 1, dtype=torch.uint8)
    state[name + ".absmax"] = torch.ones(count // 64)
    state[name + ".quant_map"] = torch.ones(16)


def test_files(folder):
    """Models that lack something, have too much, or have other numbers."""
    rows = {
        "head": drop("lm_head"), "embedding": drop("embed_tokens"),
        "layer": drop("layers.0."), "norm": drop("model.norm"),
        "codes": quantized,
        "extra": lambda s: s.update({"model.layers.0.extra": torch.ones(2)}),
        "flat": lambda s: s.update({"lm_head.weight": s["lm_head.weight"].flatten()}),
        "infinite": lambda s: s["model.norm.weight"].fill_(float("inf")),
    }
    told = set()
    for what, change in rows.items():
        source = changed(folder / what, change)
        for target, words in TARGETS.items():
            follow(["convert", source, folder / f"out {what}" / target, *words,
                    "-n"], [], 0, told)
        for argv in (["unshard", source, folder / "u.safetensors", "-n"],
                     ["reshard", source, folder / "r", "-n", "--tp", "2"],
                     ["salvage", source, folder / "s", "-n"]):
            follow(argv, [], 0, told)
    check(told, "no hint at all")


def test_mistakes(folder):
    """What a command is given by mistake."""
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("none")
    (folder / "taken").mkdir()
    (folder / "taken/config.json").write_text(json.dumps({"model_type": "x"}))
    told = set()
    for argv in (
            ["inspect", folder / "absent"], ["inspect", folder / "empty"],
            ["inspect", folder / "notes.txt"], ["verify", folder / "empty"],
            ["convert", LLAMA, folder / "taken", "--to", "safetensors", "-n"],
            ["convert", LLAMA, folder / "taken/x.safetensors", "--dtype",
             "bf16"],
            ["convert", LLAMA, folder / "x", "--to", "safetensor"],
            ["convert", LLAMA, folder / "x", "--with-optimizer", "--to", "hf"],
            ["convert", LLAMA, folder / "x", "--to", "dcp", "--layers", "7"],
            ["convert", LLAMA, folder / "x", "--to", "dcp", "--keys", "no.*"],
            ["convert", LLAMA, folder / "x", "--to", "dcp", "--experts", "0"],
            ["convert", LLAMA, folder / "x", "--to", "megatron_torch_dist",
             "--tp", "7", "-n"],
            ["verify", LLAMA, "--quick", "--deep"],
            ["verify", LLAMA, "--rtol", "1e-3"],
            ["diff", LLAMA, folder / "absent"]):
        follow(argv, [], 0, told)
    check(len(told) > 3, f"few hints: {told}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for source in SOURCES:
        for target in TARGETS:
            suite.add(f"{source} to {target}", test_target, source, target)
    suite.add("files", test_files)
    suite.add("mistakes", test_mistakes)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
