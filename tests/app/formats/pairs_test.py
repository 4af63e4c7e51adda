#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every ordered pair of formats: ckpt writes the one from the other, says that
both are the same, and the way back has the source's bytes.

Tables: a model of transformers' in each format (`model`), one with experts and
latent attention (`experts`, with --full alone), and checkpoints of trainers
with their optimizer, as their own programs wrote them (`run`). docs/pairs.md
has what comes out; --write makes it anew. A pair that is refused
is refused with status 5, and the page says why.

The bytes are compared without ckpt where another reader is at hand (torch,
safetensors, DCP's index, zarr's chunks), else by way of a safetensors file
that holds the names as they are.
"""

import re
import shutil
import sys
from pathlib import Path

from dist_readers import read_dcp, read_zarr
from support import (
    DATA, Suite, check, check_equal, compare, load_any,
    read_safetensors, torch_tensors)

PAGE = Path(__file__).resolve().parents[3] / "docs/pairs.md"
CKPT = None  # set by prepare
FORMATS = ("safetensors", "torch", "fairseq2", "megatron_torch_dist",
           "megatron_zarr", "megatron_legacy", "dcp", "olmo_core_v1",
           "olmo_core", "meta", "modelopt", "vllm", "deepspeed")
MODELS = {"model": DATA / "hf/llama/ckpt",
          "experts": DATA / "hf/deepseek_v3_bf16/ckpt"}
# The formats that the table's model can start in.
ROWS = {"model": [f for f in FORMATS if f != "deepspeed"],  # its own alone
        "experts": ["safetensors", "torch", "megatron_torch_dist",
                    "megatron_zarr", "megatron_legacy", "dcp", "modelopt",
                    "vllm"]}
# Name: the format, the checkpoint, the options that ask for its topology.
RUNS = {
    "fairseq2": ("fairseq2", "fairseq2_native/llama_tp2dp1_blocking", "--tp 2"),
    "megatron_torch_dist": (
        "megatron_torch_dist",
        "megatron_torch_dist/gpt_optim_fully_reshardable_v0161",
        "--tp 2 --dp 2"),
    "megatron_zarr": (
        "megatron_zarr", "megatron_zarr/gpt_zarr_optim_model_space_v0090",
        "--tp 2 --dp 2"),
    "megatron_legacy": (
        "megatron_legacy", "megatron_legacy/llama_te_tp2_pp2", "--tp 2 --pp 2"),
    "megatron_legacy, distributed": (
        "megatron_legacy", "megatron_legacy/llama_te_tp2_dp2_distopt",
        "--tp 2 --dp 2"),
    "dcp": ("dcp", "dcp/fsdp2_w2_adamw", "--dp 2"),
    "olmo_core_v1": ("olmo_core_v1", "olmo_core_v1/fsdp_olmo_w2", "--dp 2"),
    "olmo_core": ("olmo_core", "olmo_core_dcp/trainer_fsdp_w2", "--dp 2"),
    "modelopt": ("modelopt", "modelopt/sharded_llama_tied_w2", "--pp 2"),
    "vllm": ("vllm", "vllm/tp2", "--tp 2"),
    "meta": ("meta", "meta/llama", "--tp 2"),
    "deepspeed": ("deepspeed", "deepspeed/zero3_dp2", ""),
}
CELLS = {}  # (table, row, column) -> what came out
REASONS = {}  # (table, row, column) -> why it is refused


def files(folder, pattern):
    return sorted(p for p in folder.rglob(pattern) if p.is_file())


def merged(parts):
    out = {}
    for part in parts:
        for name, tensor in part.items():
            check(name not in out or out[name] == tensor, f"{name} twice")
            out[name] = tensor
    return out


def per_rank(folder):
    return {f"{p.name.split('-part')[0]}.{n}": t
            for p in files(folder, "*.safetensors")
            for n, t in read_safetensors(p).items()}


def of_torch(folder):
    paths = [folder] if folder.is_file() else [
        p for end in ("*.pt", "*.pth", "*.bin") for p in files(folder, end)]
    return merged(torch_tensors(load_any(p)) for p in paths)


def of_meta(folder):
    return {f"{p.name}.{n}": t for p in files(folder, "consolidated.*.pth")
            for n, t in torch_tensors(load_any(p)).items()}


def of_dcp(folder):
    [index] = files(folder, ".metadata")
    return read_dcp(index.parent)[0]


def of_zarr(folder):
    [index] = files(folder, "metadata.json")
    return read_zarr(index.parent)


READERS = {
    "safetensors": lambda f: merged(
        read_safetensors(p) for p in files(f, "*.safetensors")),
    "modelopt": lambda f: merged(
        read_safetensors(p) for p in files(f, "*.safetensors")),
    "vllm": per_rank,
    "torch": of_torch,
    "meta": of_meta,
    "dcp": of_dcp,
    "olmo_core": of_dcp,
    "megatron_torch_dist": of_dcp,
    "megatron_zarr": of_zarr,
}


def content(format, path, folder, options):
    """Names and bytes of a checkpoint. Main weights have the name that today's
    Megatron-Core gives them: state from older versions comes back in today's
    form."""
    if format in READERS and "--model-only" not in options:
        found = READERS[format](path)
        return {n.replace("state.fp32_param.", "state.param."): t
                for n, t in found.items()}
    shutil.rmtree(folder, ignore_errors=True)
    CKPT.ok("convert", path, folder, "--to", "safetensors", "--dialect",
            "keep", "--keys", "*", "-q", *options)
    found = READERS["safetensors"](folder)
    # The key of a state dict is no part of its names. Alone, it is like one.
    if all(name.startswith("model.") for name in found):
        found = {n.removeprefix("model."): t for n, t in found.items()}
    return found


def outcome(table, source, format, topology, target, folder):
    """What a pair gives: "same" (all of it), "model" (without the optimizer),
    either with "one way" if the way back is refused, or ""; and why."""
    there, back = folder / "there", folder / "back"
    for options, word in (((), "same"), (("--model-only",), "model")):
        result = CKPT.run("convert", source, there, "--to", target, "-q",
                          *options, *way_there(table, format, target))
        if result.code == 0:
            break
        check_equal(result.code, 5, f"status of\n{result}\n")
        if "optimizer" not in result.err:
            break
    if result.code:
        return "", reason(result.err)
    CKPT.ok("verify", source, there, *options)
    # If ranks' files are compared, there must be equally many.
    grid = topology.split() if format in READERS else ()
    result = CKPT.run("convert", there, back, "--to", format, "-q", *options,
                      *way_back(table, format, target), *grid)
    if result.code == 5:
        return word + ", one way", reason(result.err)
    result.want(0)
    compare(content(format, back, folder / "got", options),
            content(format, source, folder / "want", options), "the way back")
    return word, ""


DIALECTS = {"fairseq2": "fairseq2", "olmo_core_v1": "olmo_core",
            "olmo_core": "olmo_core", "meta": "meta"}


def way_there(table, format, target):
    """DCP's own files have no configuration, and vLLM's fuse by it: fused
    tensors are split before the configuration is gone."""
    if table in MODELS and (format, target) == ("dcp", "vllm"):
        return ["--config-from", MODELS[table]]
    if table in MODELS and (format, target) == ("vllm", "dcp"):
        return ["--dialect", "hf"]
    return []


def way_back(table, format, target):
    """The options that the way back needs: names, for a container of any names;
    the configuration, if the target has none."""
    options = []
    if table not in MODELS:
        return options
    if format in ("safetensors", "torch", "dcp"):
        options += ["--dialect", "hf"]
    else:
        options += way_there(table, target, format)
    if target.startswith("olmo_core") and not format.startswith("olmo_core"):
        options += ["--config-from", MODELS[table]]
    return options


def reason(text):
    """An error without paths and tensors."""
    line = text.split("error: ")[1].splitlines()[0]
    return plain(re.sub(r" \(in [^)]*\)$", "", line))


def plain(line):
    return re.sub(r"^/\S+: (is of format \w+: )?|^is of format \w+: ", "", line)


def pair(folder, table, row, source, format, topology, column):
    cell, why = outcome(table, source, format, topology, column,
                        folder)
    CELLS[table, row, column] = cell
    REASONS[table, row, column] = why
    if "--write" not in ARGUMENTS:
        known = written()[table, row, column]
        check_equal(cell or "-", known, f"{PAGE.name} (--write makes it anew)")


def notes_of(lines):
    """(table, number) -> why."""
    notes, table = {}, None
    for line in lines:
        if line.startswith("## "):
            table = line[3:].split()[0].lower()
        elif found := re.match(r"(\d+)\. (.*)", line):
            notes[table, found[1]] = found[2]
    return notes


def keep_written():
    """Cells of the page that -k leaves out stay there."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    notes = notes_of(lines)
    for key, (cell, number) in numbered().items():
        if key not in CELLS and cell != "?":
            CELLS[key] = cell.strip("-")
            REASONS[key] = plain(notes.get((key[0], number), ""))


def written():
    """The cells of the page."""
    return {key: cell for key, (cell, _) in numbered().items()}


def numbered():
    """The same, and the number of the reason or ""."""
    cells, table, columns = {}, None, []
    for line in PAGE.read_text().splitlines() if PAGE.exists() else ():
        if line.startswith("## "):
            table = line[3:].split()[0].lower()
        row = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| from"):
            columns = row[1:]
        elif line.startswith("| ") and len(row) == len(columns) + 1:
            for column, cell in zip(columns, row[1:]):
                word, _, number = cell.partition("[")
                cells[table, row[0], column] = word, number.strip("]")
    return cells


def model_in(folder, model, format):
    """A transformers model in a format, as ckpt converts it."""
    if format == "safetensors":
        return model
    path = folder / "source"
    if format == "torch":  # as torch itself saves it
        import torch
        from safetensors.torch import load_file

        path.mkdir()
        state = merged_torch(load_file, model)
        torch.save(state, path / "pytorch_model.bin")
        for name in ("config.json", "generation_config.json"):
            if (model / name).exists():
                shutil.copy(model / name, path)
        return path
    CKPT.ok("convert", model, path, "--to", format, "-q")
    return path


def merged_torch(load_file, folder):
    state = {}
    for path in files(folder, "*.safetensors"):
        state.update(load_file(path))
    return state


def test_model(folder, table, format, column):
    source = model_in(folder, MODELS[table], format)
    pair(folder, table, format, source, format, "", column)


def test_run(folder, name, column):
    format, case, topology = RUNS[name]
    source = DATA / case / "ckpt"
    pair(folder, "run", name, source, format, topology, column)


HEAD = """# Pairs of formats

Each row is converted to each column, `ckpt verify SRC DST` says `same`, and
converting back gives the row's bytes. `tests/app/formats/pairs_test.py` does this, and
`--write` makes this page from the results (with `-k ROW`, for that row; the
table of experts with `--full`).

| cell | |
|---|---|
| same | all of it, with the optimizer if there is one |
| model | with `--model-only`: the optimizer has no place there |
| one way | the way back is refused with exit status 5; the reason is below |
| - | refused with exit status 5; the reason is below |

A Megatron run without a config.json does not name its family. With --family NAME,
the model's table applies. vLLM's shards go to DCP with --dialect hf, which splits
fused tensors: a DCP has no configuration that would say how to do so later.
"""


def page():
    lines = [HEAD]
    for table, title, rows in (
            ("model", "Model of transformers' in each format",
             ROWS["model"]),
            ("experts", "Experts of DeepSeek V3 in each format",
             ROWS["experts"]),
            ("run", "Run with its optimizer, as its own program wrote it",
             list(RUNS))):
        lines += [f"## {title}", "",
                  "| from | " + " | ".join(FORMATS) + " |",
                  "|---" * (len(FORMATS) + 1) + "|"]
        notes = {}
        for row in rows:
            if any((table, row, column) not in CELLS for column in FORMATS):
                continue  # not run, or a cell failed
            cells = []
            for column in FORMATS:
                cell = CELLS.get((table, row, column), "?")
                why = REASONS.get((table, row, column), "")
                if why:
                    number = notes.setdefault(why, len(notes) + 1)
                    cell = f"{cell or '-'}[{number}]"
                cells.append(cell)
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        lines.append("")
        for why, number in notes.items():
            lines.append(f"{number}. {why}")
        lines.append("")
    return "\n".join(lines)


def wanted(table, row, column, known):
    """All of them for --write, otherwise those on the page."""
    if table == "experts" and "--full" not in ARGUMENTS:
        return False
    return "--write" in ARGUMENTS or (table, row, column) in known


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    known = written()
    for table, rows in ROWS.items():
        for format in rows:
            for column in FORMATS:
                if wanted(table, format, column, known):
                    suite.add(f"{table} {format} to {column}", test_model,
                              table, format, column)
    for name in RUNS:
        for column in FORMATS:
            if wanted("run", name, column, known):
                suite.add(f"run {name} to {column}", test_run, name, column)


ARGUMENTS = set(sys.argv)

if __name__ == "__main__":
    sys.argv = [a for a in sys.argv if a != "--write"]
    try:
        Suite(__doc__).main(prepare)
    finally:
        if "--write" in ARGUMENTS:
            keep_written()
            PAGE.write_text(page())
