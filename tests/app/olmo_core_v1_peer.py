#!/usr/bin/env python3
"""OLMo-core 0.1.0 itself, on CPUs: reads what ckpt wrote. Run as a program of
its own, with the package on PYTHONPATH:

    olmo_core_v1_peer.py JOB.json

    {"kind": "unshard", "path": checkpoint, "out": folder, "optim": true}
    {"kind": "load", "path": one part of it, "world": 3,
     "expected": safetensors}

unshard  unshard_model_state and unshard_optim_state, saved by torch
load     every tensor as a flat shard of each of the processes, held against
         the truth bit by bit
"""

import json
import sys
import tempfile
import warnings

from olmo_core_peer import know_the_rest

warnings.filterwarnings("ignore")


def unshard(job):
    import torch
    from olmo_core.distributed import checkpoint as peer

    model = peer.unshard_model_state(job["path"], no_dist=True)
    torch.save(model, job["out"] + "/model.pt")
    if job["optim"]:
        optim = peer.unshard_optim_state(job["path"], no_dist=True)
        torch.save(optim, job["out"] + "/optim.pt")


def load_rank(rank, job, store):
    know_the_rest()  # this is a process of its own
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
            raise SystemExit(f"rank {rank}: {name} differs")
    dist.barrier()
    dist.destroy_process_group()


def load(job):
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(load_rank, (job, folder + "/store"), job["world"])


if __name__ == "__main__":
    know_the_rest()
    with open(sys.argv[1]) as text:
        task = json.load(text)
    {"unshard": unshard, "load": load}[task["kind"]](task)
