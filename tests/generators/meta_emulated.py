#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Golden generator for Meta's consolidated.NN.pth, which no package writes.

  pip install torch==2.13.0 numpy==2.4.6 safetensors==0.8.0

Usage:  python meta_emulated.py OUTDIR [--values DIR]
Writes  OUTDIR/meta/<case>/{case.json,ckpt/,expected.safetensors,other/mp1/}

The files are torch's; what is in them follows Meta's rules: names, which
dimension model parallelism cuts (llama_models' parallel layers), rotary pairs
next to each other. Values come from DIR/<case>/expected.safetensors if given
(tests/data/meta makes the same files again), else from a seed.
"""
import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LAYERS, WIDTH, HIDDEN, ROWS, HEAD = 2, 32, 36, 60, 8
# After which dimension ranks share a tensor; norms have none.
CUTS = {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w2": 1, "w3": 0,
        "output": 0}
PARAMS = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": 0, "multiple_of": 4,
          "norm_eps": 1e-6, "vocab_size": -1,
          "ffn_dim_multiplier": 0.38823529411764707}
WHAT = " Names and rotary order by fairseq2 0.8.1's converters; files by " \
       "torch.save"
CASES = {
    # Llama 3: embeddings by rows.
    "llama": dict(
        heads=8, groups=2, dtype=torch.float32, embedding=0,
        params={"vocab_size": ROWS, "n_kv_heads": 2, "rope_theta": 10000.0},
        other={"n_kv_heads": 2},
        what="Llama 3's form (grouped queries, embeddings by rows) of a random "
             "tiny model of transformers 5.12.1; other/mp1 is one file in "
             "Llama 2's."),
    # Llama 2: embeddings by columns, frequencies in the file.
    "llama_mha_f16": dict(
        heads=4, groups=4, dtype=torch.float16, embedding=1, old=True,
        params={},
        what="Llama 2's form: embeddings by columns, one storage for all "
             "tensors of a file, rope.freqs."),
}


def shapes(heads, groups):
    """In the order of Meta's modules."""
    head = WIDTH // heads
    yield "tok_embeddings", (ROWS, WIDTH)
    yield "norm", (WIDTH,)
    yield "output", (ROWS, WIDTH)
    for layer in range(LAYERS):
        for part, shape in (
                ("attention.wq", (WIDTH, WIDTH)),
                ("attention.wk", (groups * head, WIDTH)),
                ("attention.wv", (groups * head, WIDTH)),
                ("attention.wo", (WIDTH, WIDTH)),
                ("feed_forward.w1", (HIDDEN, WIDTH)),
                ("feed_forward.w2", (WIDTH, HIDDEN)),
                ("feed_forward.w3", (HIDDEN, WIDTH)),
                ("attention_norm", (WIDTH,)), ("ffn_norm", (WIDTH,))):
            yield f"layers.{layer}.{part}", shape


def values_of(name, case, folder):
    if folder:
        return load_file(folder / name / "expected.safetensors")
    torch.manual_seed(0)
    return {f"{one}.weight": torch.randn(shape).to(case["dtype"]) * 0.1
            for one, shape in shapes(case["heads"], case["groups"])}


def part_of(name, value, rank, ranks, embedding):
    word = name.split(".")[-2]
    dim = embedding if word == "tok_embeddings" else CUTS.get(word)
    return value if dim is None else value.chunk(ranks, dim)[rank]


def frequencies():
    return 1.0 / 10000.0 ** (torch.arange(0, HEAD, 2).float() / HEAD)


def write(values, case, folder, ranks, old, params):
    folder.mkdir(parents=True)
    for rank in range(ranks):
        parts = {}
        for one, _ in shapes(case["heads"], case["groups"]):
            name = f"{one}.weight"
            parts[name] = part_of(name, values[name], rank, ranks,
                                  case["embedding"]).contiguous()
        if ranks > 1 and old:  # one storage, as FairScale's flattening left it
            flat = torch.cat([part.flatten() for part in parts.values()])
            at = 0
            for name, part in parts.items():
                parts[name] = flat[at:at + part.numel()].view(part.shape)
                at += part.numel()
        else:
            parts = {name: part.clone() for name, part in parts.items()}
        if old:
            parts["rope.freqs"] = frequencies()
        torch.save(parts, folder / f"consolidated.{rank:02}.pth")
    (folder / "params.json").write_text(json.dumps(
        {**PARAMS, "n_heads": case["heads"], **params}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--values", type=Path)
    given = parser.parse_args()
    for name, case in CASES.items():
        folder = given.out / "meta" / name
        values = values_of(name, case, given.values)
        write(values, case, folder / "ckpt", 2, case.get("old", False),
              case["params"])
        if "other" in case:
            write(values, case, folder / "other" / "mp1", 1, True,
                  case["other"])
        save_file(values, str(folder / "expected.safetensors"))
        (folder / "case.json").write_text(json.dumps({
            "format": "meta", "written_by": "emulated", "topology": {"tp": 2},
            "what": case["what"] + WHAT, "n_heads": case["heads"],
            "n_kv_heads": case["groups"]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
