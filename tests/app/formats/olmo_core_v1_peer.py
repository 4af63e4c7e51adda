#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OLMo-core 0.1.0 itself, on CPUs: reads what ckpt wrote. Needs the package
on PYTHONPATH. Its jobs:

    {"kind": "unshard", "path": checkpoint, "out": folder, "optim": true}
    {"kind": "load", "path": one part of it, "world": 3,
     "expected": safetensors}

unshard  unshard_model_state and unshard_optim_state, saved by torch
load     every tensor as a flat shard of each of the processes, held against
         the truth bit by bit
"""

import tempfile
import warnings

from olmo_core_peer import know_the_rest
from peer import on_processes, serve

warnings.filterwarnings("ignore")


def unshard(_, job):
    import torch
    from olmo_core.distributed import checkpoint as peer

    model = peer.unshard_model_state(job["path"], no_dist=True)
    torch.save(model, job["out"] + "/model.pt")
    if job["optim"]:
        optim = peer.unshard_optim_state(job["path"], no_dist=True)
        torch.save(optim, job["out"] + "/optim.pt")


def load_rank(rank, job, store):
    import torch
    import torch.distributed as dist
    from olmo_core.distributed.checkpoint import Checkpointer
    from olmo_core.distributed.tensors import ShardedFlatTensor
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=rank, world_size=job["world"])
    state, want = {}, {}
    for name, full in load_file(job["expected"]).items():
        if full.dim() == 0 or full.numel() == 0:
            state[name], want[name] = torch.zeros_like(full), full
            continue
        shard = ShardedFlatTensor.shard(torch.zeros_like(full))
        truth = ShardedFlatTensor.shard(full)
        state[name], want[name] = shard, truth
    Checkpointer().load(job["path"], state)
    for name, got in state.items():
        parts = [t.sharded_data if isinstance(t, ShardedFlatTensor) else t
                 for t in (got, want[name])]
        if not torch.equal(parts[0].view(-1), parts[1].view(-1)):
            raise AssertionError(f"rank {rank}: {name} differs")
    dist.barrier()
    dist.destroy_process_group()


def run_job(job):
    """None, or what went wrong."""
    if job["kind"] == "unshard":
        return on_processes(unshard, 1, job)
    with tempfile.TemporaryDirectory() as folder:
        return on_processes(load_rank, job["world"], job, folder + "/store")


def prepare():
    know_the_rest()
    import olmo_core.distributed.checkpoint  # noqa: F401


if __name__ == "__main__":
    serve(prepare, run_job)
