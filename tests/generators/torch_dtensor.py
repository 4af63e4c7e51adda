#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Golden generator for torch.save of DTensors, one file for each of four ranks.

  pip install torch==2.13.0 numpy==2.4.6 safetensors==0.8.0

Usage:  python torch_dtensor.py OUTDIR
Writes  OUTDIR/torch/dtensor_mesh/{case.json,ckpt/,expected.safetensors}

Four gloo processes on one machine: a mesh of 2 x 2 (dp, tp), tensors that are
distributed in all orders of Shard and Replicate, and a model under tensor
parallelism and FSDP2, whose first dimension _StridedShard cuts twice.
"""
import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

SEED = 0
# name: shape, placements over (dp, tp)
TENSORS = {
    "even2d": ((8, 6), (Shard(0), Shard(1))),
    "even00": ((8, 6), (Shard(0), Shard(0))),
    "uneven00": ((10, 3), (Shard(0), Shard(0))),
    "uneven01": ((7, 5), (Shard(1), Shard(0))),
    "repl": ((5,), (Replicate(), Replicate())),
    "rs": ((5, 4), (Replicate(), Shard(0))),
    "sr": ((3, 4), (Shard(0), Replicate())),
    "tiny": ((1, 4), (Shard(0), Shard(0))),
}


def work(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(SEED)
    whole, parts = {}, {}
    for name, (shape, placements) in TENSORS.items():
        whole[name] = torch.randn(shape)
        parts[name] = distribute_tensor(whole[name], mesh, placements)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 6))
    for name, value in model.state_dict().items():
        whole[f"m.{name}"] = value.clone()
    parallelize_module(model, mesh["tp"],
                       {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    for name, value in model.state_dict().items():
        parts[f"m.{name}"] = value
    # Before full_tensor(), which keeps hashes in the tensors' own fields.
    torch.save(parts, folder / "ckpt" / f"rank{rank}.pt")
    for name, value in parts.items():
        assert torch.equal(value.full_tensor(), whole[name]), name
    if rank == 0:
        save_file({name: value.contiguous() for name, value in whole.items()},
                  str(folder / "expected.safetensors"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder = Path(sys.argv[1]) / "torch" / "dtensor_mesh"
    (folder / "ckpt").mkdir(parents=True)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    mp.spawn(work, (port, folder), nprocs=4)
    (folder / "case.json").write_text(json.dumps({
        "format": "torch_pt", "peer": "torch",
        "peer_version": torch.__version__, "python": "3.11",
        "written_by": "peer", "topology": {"ranks": 4, "mesh": [2, 2]},
        "what": "torch.save of DTensors on a mesh of 2 x 2, one file per rank: "
                "Shard and Replicate in all orders, uneven splits, empty "
                "shards, and a model under tensor parallelism and FSDP2 "
                "(_StridedShard)",
        "note": "expected.safetensors = the tensors before they were "
                "distributed; full_tensor() gave the same",
    }, indent=2) + "\n")


if __name__ == "__main__":
    main()
