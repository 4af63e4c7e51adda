#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each step of the goldens as a step of each trainer: the second table of "From
one trainer to another" in docs/formats/runs.md.

A cell that says `all` is run: the target has, under the names of the source,
each tensor that the source's live objects had, bit for bit; where names or
arrangement are others (torchtitan's) the way back to Accelerate has. A cell
with a letter is refused, in the words that the letter stands for.

    runs_targets_test.py --write     writes the table anew
"""

import json
import re
import sys
from pathlib import Path

from support import (
    DATA, Ckpt, Failure, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "runs.md"
TARGETS = [("hf_trainer", 1), ("hf_trainer", 2), ("accelerate", 1),
           ("accelerate", 2), ("lightning", 2), ("torchtitan", 2),
           ("verl", 1), ("verl", 2)]
# Keys on the page, and what the refusal says.
REASONS = [
    ("groups", "in one group with"),
    ("order", "order of the model's modules|no module of"),
    ("arch", "llama and qwen3 are known"),
    ("adapter", "an adapter"),
]


def facts(case):
    return json.loads((GOLDENS / case / "case.json").read_text())


def step_of(case):
    one = facts(case)
    path = GOLDENS / case / "ckpt" / one["newest"] / one.get("newest_file", "")
    return path / "actor" if case == "verl_fsdp2_w2" else path


# For steps without a configuration: that of the golden's model.
SIZES = dict(vocab_size=53, hidden_size=16, intermediate_size=24,
             num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32)
CONFIGS = {
    "accelerate_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1,
        tie_word_embeddings=True),
    "hf_trainer_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1),
    "torchtitan_w2": dict(SIZES, model_type="llama", num_hidden_layers=1,
                          tie_word_embeddings=False),
}


def convert(case, folder, out, trainer, ranks):
    command = ["convert", step_of(case), out, "--to", "run", "--trainer",
               trainer, "--dp", ranks]
    if case in CONFIGS:
        home = folder / "config"
        home.mkdir(exist_ok=True)
        (home / "config.json").write_text(json.dumps(CONFIGS[case]))
        command += ["--config-from", home]
    return CKPT.run(*command)


def wanted(case):
    if case == "verl_fsdp2_w2":  # one of two roles, without its prefix
        return {t["name"]: t["digest"] for t in CKPT.inspect(
            step_of(case), "--digest")["tensors"]}
    return {name: digest(tensor.data)
            for what in ("expected", "expected_optim")
            for name, tensor in read_safetensors(
                GOLDENS / case / f"{what}.safetensors").items()}


def cell(case, folder, trainer, ranks):
    """What the table says: "all", or the key of a reason."""
    source = CKPT.inspect(step_of(case))["trainer"]["name"]
    if source == trainer:
        return "own"
    result = convert(case, folder, folder / "out", trainer, ranks)
    if result.code == 0:
        return "all"
    check_equal(result.code, 5, f"{result}")
    check("hint" in result.err, f"no next step: {result}")
    check(not (folder / "out").exists(), "something was written")
    for key, words in REASONS:
        if re.search(words, result.err):
            return key
    raise Failure(f"a reason that the page has not: {result}")


def test_cell(folder, case, trainer, ranks, says):
    check_equal(cell(case, folder, trainer, ranks), says, "the cell")
    if says != "all":
        return
    out = folder / "out"
    moved = case == "torchtitan_w2" or trainer == "torchtitan"
    if case == "torchtitan_w2":  # home again
        home = folder / "home"
        CKPT.ok("convert", out, home, "--to", "run", "--trainer", "torchtitan",
                "--config-from", folder / "config")
        out = home
    elif moved and has_hf_names(case):
        home = folder / "home"
        config = folder / "home_config"
        config.mkdir()
        (config / "config.json").write_text(json.dumps(
            CONFIGS.get(case) or config_of(case)))
        CKPT.ok("convert", out, home, "--to", "run", "--trainer", "accelerate",
                "--dp", 2, "--config-from", config)
        out = home
    got = {t["name"]: t["digest"]
           for t in CKPT.inspect(out, "--digest")["tensors"]}
    fused = case == "hf_trainer_moe_qwen3"
    for name, one in wanted(case).items():
        if fused and ".experts." in name and name not in got:
            continue  # stacked: runs_cross_test checks them
        check_equal(got.get(name), one, name)


def has_hf_names(case):
    return any(".self_attn." in name for name in wanted(case))


def config_of(case):
    for path in (step_of(case) / "huggingface/config.json",
                 step_of(case) / "actor/huggingface/config.json",
                 step_of(case) / "config.json"):
        if path.is_file():
            return json.loads(path.read_text())
    return {}


def test_through_dcp(folder):
    """A Trainer's step becomes Megatron's, DCP and another trainer's: the head
    that is not tied and the states stay what they are."""
    first, mcore, dcp = folder / "first", folder / "mcore", folder / "dcp"
    convert("torchtitan_w2", folder, first, "accelerate", 2).want(0)
    config = ["--config-from", folder / "config"]
    CKPT.ok("convert", first, mcore, "--to", "megatron_torch_dist", *config)
    CKPT.ok("convert", mcore, dcp, "--to", "dcp", "--dialect", "hf", *config)
    CKPT.ok("convert", first, folder / "at once", "--to", "dcp", *config)

    def tensors(path):
        return {(t["name"], t["kind"]): t["digest"]
                for t in CKPT.inspect(path, "--digest")["tensors"]}

    want = tensors(first)
    for source in (dcp, folder / "at once"):
        check_equal(sorted(kind for _, kind in tensors(source)),
                    sorted(kind for _, kind in want), source.name)
        for trainer in ("accelerate", "lightning"):
            out = folder / f"{source.name} {trainer}"
            CKPT.ok("convert", source, out, "--to", "run", "--trainer",
                    trainer, "--dp", 2, *config)
            check_equal(tensors(out), want, out.name)
    back = folder / "back"
    CKPT.ok("convert", dcp, back, "--to", "megatron_torch_dist", *config)
    check_equal(tensors(back), tensors(mcore), "Megatron's again")


def test_weights(folder):
    """torchtitan's step as a directory that transformers loads. The weights
    equal those of its step as a Trainer's, which the way back has proven."""
    from safetensors.torch import load_file

    case = "torchtitan_w2"
    convert(case, folder, folder / "trainer", "hf_trainer", 1).want(0)
    CKPT.ok("convert", step_of(case), folder / "out", "--to", "safetensors",
            "--config-from", folder / "config")
    got, want = (load_file(folder / name / "model.safetensors")
                 for name in ("out", "trainer"))
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check((got[name] == tensor).all(), name)
    check((folder / "out/config.json").is_file(), "no config.json")
    said = CKPT.ok("convert", step_of(case), folder / "plain", "--to",
                   "safetensors").err
    check("--config-from" in said, said)


def table():
    rows = {}
    for line in PAGE.read_text().splitlines():
        found = re.match(r"\| `(\w+)` +\|(.*)\|$", line)
        if found and (GOLDENS / found[1]).is_dir():
            cells = [c.strip(" `") for c in found[2].split("|")]
            if len(cells) == len(TARGETS):
                rows[found[1]] = cells
    return rows


def write(folder):
    lines = []
    for case in sorted(p.name for p in GOLDENS.iterdir()):
        cells = []
        for trainer, ranks in TARGETS:
            here = folder / f"{case}_{trainer}_{ranks}"
            here.mkdir()
            cells.append(cell(case, here, trainer, ranks))
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    print("\n".join(lines))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    rows = table()
    check_equal(sorted(rows), sorted(p.name for p in GOLDENS.iterdir()),
                "rows of the table")
    suite.add("through Megatron and DCP", test_through_dcp)
    suite.add("torchtitan's weights for transformers", test_weights)
    for case, cells in rows.items():
        for (trainer, ranks), says in zip(TARGETS, cells):
            suite.add(f"{case} as {trainer} of {ranks}: {says}", test_cell,
                      case, trainer, ranks, says)


if __name__ == "__main__":
    if "--write" in sys.argv:
        import tempfile

        CKPT = Ckpt(sys.argv[sys.argv.index("--ckpt") + 1])
        with tempfile.TemporaryDirectory() as temporary:
            write(Path(temporary))
    else:
        Suite(__doc__).main(prepare)
