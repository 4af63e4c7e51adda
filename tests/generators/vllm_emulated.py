#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Golden generator for vLLM's sharded_state, by the naming of its
ShardedStateLoader (model-rank-R-part-P.safetensors).

  pip install torch==2.13.0 numpy==2.4.6 safetensors==0.8.0

Usage:  python vllm_emulated.py OUTDIR [--values DIR]
Writes  OUTDIR/vllm/tp2/{case.json,ckpt/,expected.safetensors}

Each rank holds its part of each matrix that vLLM fuses, one after the other;
those of rank 0 fill two files. Nothing in the files says where one matrix ends:
the model's configuration does, and there is none here. Values come from
DIR/tp2/expected.safetensors if given (tests/data/vllm makes the same files
again), else from a seed.
"""
import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LAYER = "model.layers.0."
# In the order of vLLM's modules: shape, the dimension that ranks cut, and how
# many matrices of equal size are fused.
TENSORS = {
    "model.embed_tokens.weight": ((10, 4), 0, 1),
    f"{LAYER}self_attn.qkv_proj.weight": ((12, 4), 0, 3),
    f"{LAYER}self_attn.o_proj.weight": ((4, 4), 1, 1),
    f"{LAYER}mlp.gate_up_proj.weight": ((16, 4), 0, 2),
    f"{LAYER}mlp.down_proj.weight": ((4, 8), 1, 1),
    f"{LAYER}input_layernorm.weight": ((4,), None, 1),
    "lm_head.weight": ((10, 4), 0, 1),
}
FIRST_FILE = 4  # tensors of rank 0 in its first file


def part_of(value, dim, fused, rank):
    if dim is None:
        return value
    return torch.cat([one.chunk(2, dim)[rank]
                      for one in value.chunk(fused, dim)], dim).contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--values", type=Path)
    given = parser.parse_args()
    if given.values:
        values = load_file(given.values / "tp2" / "expected.safetensors")
    else:
        torch.manual_seed(0)
        values = {name: torch.randn(shape).bfloat16()
                  for name, (shape, _, _) in TENSORS.items()}
    folder = given.out / "vllm" / "tp2"
    (folder / "ckpt").mkdir(parents=True)
    for rank in range(2):
        parts = [(name, part_of(values[name], dim, fused, rank))
                 for name, (_, dim, fused) in TENSORS.items()]
        cut = FIRST_FILE if rank == 0 else len(parts)
        for number, held in enumerate((parts[:cut], parts[cut:])):
            if held:
                save_file(dict(held), str(
                    folder / "ckpt" /
                    f"model-rank-{rank}-part-{number}.safetensors"))
    save_file(values, str(folder / "expected.safetensors"))
    (folder / "case.json").write_text(json.dumps({
        "format": "vllm_sharded_state", "peer": "vllm",
        "peer_version": "file naming of ShardedStateLoader",
        "written_by": "emulated", "topology": {"tp": 2},
        "what": "model-rank-R-part-P.safetensors: every rank's post-fusion "
                "parameters; rank 0 split in two parts",
        "note": "the file set does not say which dim is split nor the fused "
                "sub-block sizes: that must come from the model config",
    }, indent=1))


if __name__ == "__main__":
    main()
