#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a llama-like bf16 checkpoint as fairseq2 writes it, for benchmarks.

    .venv/bin/python scripts/make_fairseq2.py DST [--gib 4] [--tp 4] [--dp 1]

The dimensions are those of LLaMA 7B; the number of layers makes the size.
Contents are pseudo-random finite numbers: zeros would flatter a file system
that compresses. torch.save writes the files, one tensor-parallel rank at a
time, so memory stays near the size of one rank's part.
"""

import argparse
import collections
from pathlib import Path

import numpy as np
import torch

DIM, FFN, VOCAB, HEADS = 4096, 11008, 32000, 32


def rows(layers):
    """(name, shape, dimension that tensor parallelism splits)"""
    yield "decoder_frontend.embed.weight", (VOCAB, DIM), 0
    for i in range(layers):
        p = f"decoder.layers.{i}."
        yield p + "self_attn_layer_norm.weight", (DIM,), None
        for q in "qkv":
            yield f"{p}self_attn.{q}_proj.weight", (DIM, DIM), 0
        yield p + "self_attn.output_proj.weight", (DIM, DIM), 1
        yield p + "ffn_layer_norm.weight", (DIM,), None
        yield p + "ffn.gate_proj.weight", (FFN, DIM), 0
        yield p + "ffn.inner_proj.weight", (FFN, DIM), 0
        yield p + "ffn.output_proj.weight", (DIM, FFN), 1
    yield "decoder.layer_norm.weight", (DIM,), None
    yield "final_proj.weight", (VOCAB, DIM), 0


def layers_for(size):
    layer = 2 * (4 * DIM * DIM + 3 * DIM * FFN + 2 * DIM)
    rest = 2 * (2 * VOCAB * DIM + DIM)
    return max(1, round((size - rest) / layer))


def random_bf16(shape, seed):
    """Values of either sign between 2^-7 and 2^-3."""
    count = int(np.prod(shape))
    raw = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.uint16)
    raw &= 0x81FF
    raw |= 0x3C00
    return torch.from_numpy(raw[:count].view(np.int16)).view(
        torch.bfloat16).reshape(shape)


def rank_part(layers, tp, rank):
    part = collections.OrderedDict()
    for index, (name, shape, dim) in enumerate(rows(layers)):
        local = list(shape)
        if dim is not None:
            local[dim] //= tp
        # Replicated tensors are equal on all ranks.
        part[name] = random_bf16(local, [index, 0 if dim is None else rank])
    return part


def model_yaml(layers):
    config = {
        "model_dim": DIM, "max_seq_len": 2048, "vocab_size": VOCAB,
        "tied_embeddings": "false", "num_layers": layers,
        "num_attn_heads": HEADS, "num_key_value_heads": HEADS,
        "ffn_inner_dim": FFN, "ffn_inner_dim_scale": 1.0,
        "ffn_inner_dim_multiple_of": 256, "shard_embed_dim": "false"}
    lines = ["name: checkpoint", "model_family: llama", "model_config:"]
    return "\n".join(
        lines + [f"  {key}: {value}" for key, value in config.items()]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dst", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--dp", type=int, default=1)
    options = parser.parse_args()
    layers = layers_for(options.gib * 2**30)
    options.dst.mkdir(parents=True)
    (options.dst / "model.yaml").write_text(model_yaml(layers))
    for t in range(options.tp):
        part = rank_part(layers, options.tp, t)
        for d in range(options.dp):
            path = (options.dst / "step_1/model/pp_00" / f"tp_{t:02}" /
                    f"sdp_{d:02}.pt")
            path.parent.mkdir(parents=True, exist_ok=True)
            chunk = {name: chunk_of(tensor, options.dp, d)
                     for name, tensor in part.items()}
            with open(path, "wb") as f:
                torch.save(chunk, f, pickle_protocol=2)


def chunk_of(tensor, parts, index):
    """Cuts like torch.chunk, but with empty parts at the end."""
    if parts == 1:
        return tensor
    rows_each = -(-tensor.shape[0] // parts)
    return tensor[index * rows_each:(index + 1) * rows_each].clone()


if __name__ == "__main__":
    main()
