# SPDX-License-Identifier: Apache-2.0
"""Meta's own inference code: llama-models' Llama 3 over fairscale's parallel
layers, one process per file. Loads as its generation.py does, but on the CPU:
params.json to ModelArgs, consolidated.NN.pth of its rank, and nothing may be
missing or left over.
"""

import json
import sys
from pathlib import Path

from peer import on_processes, serve

sys.path.insert(0, str(Path(sys.prefix) / "llama_models"))


def prepare():
    global torch, dist, initialize_model_parallel, ModelArgs, Transformer
    import torch
    import torch.distributed as dist
    from fairscale.nn.model_parallel.initialize import (
        initialize_model_parallel)
    from models.llama3.args import ModelArgs
    from models.llama3.model import Transformer

    torch.set_num_threads(1)


def rank_of(rank, job):
    world, path = job["ranks"], Path(job["path"])
    dist.init_process_group("gloo", rank=rank, world_size=world,
                            init_method=f"file://{job['out']}.meet")
    initialize_model_parallel(world)
    files = sorted(path.glob("*.pth"))
    assert len(files) == world, f"{len(files)} files"
    params = json.loads((path / "params.json").read_text())
    tokens = torch.tensor(job["tokens"])
    model = Transformer(ModelArgs(max_seq_len=tokens.shape[1],
                                  max_batch_size=tokens.shape[0], **params))
    model.load_state_dict(
        torch.load(files[rank], map_location="cpu", mmap=True,
                   weights_only=True), strict=True)
    logits = model.forward(tokens, 0)
    if rank == 0:
        torch.save(logits, job["out"])
    dist.barrier()
    dist.destroy_process_group()


def run(job):
    return on_processes(rank_of, job["ranks"], job)


if __name__ == "__main__":
    serve(prepare, run)
