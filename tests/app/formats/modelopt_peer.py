# SPDX-License-Identifier: Apache-2.0
"""ModelOpt's own loader, puzzletron's load_and_shard_model over gloo: each rank
saves what it holds. Its packages' __init__ import hydra, datasets and more that
the loader doesn't need, so they are left out.
"""

import os
import sys
import types
from pathlib import Path

from peer import on_processes, serve

ROOT = Path(sys.prefix) / "modelopt"
PUZZLETRON = "modelopt.torch.puzzletron"
# Packages without their __init__, and modules about pruning.
BARE = ("modelopt.torch", "modelopt.torch.utils", PUZZLETRON,
        *(f"{PUZZLETRON}.{name}" for name in (
            "tools", "utils", "anymodel", "anymodel.models", "plugins",
            "pruning", "pruning.ffn_intermediate_pruning_mixin",
            "pruning.kv_heads_pruning_mixin")))


def anything(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def leave_bare(name):
    module = types.ModuleType(name)
    module.__path__ = [str(ROOT / name.replace(".", "/"))]
    module.__getattr__ = anything
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def prepare():
    global torch, dist, loader, DESCRIPTORS
    sys.path[:0] = [str(ROOT), str(Path(sys.prefix) / "transformers_5.12.1")]
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    for name in BARE:
        leave_bare(name)
    import modelopt.torch.puzzletron.tools.sharded_checkpoint_utils as loader
    import torch
    import torch.distributed as dist
    from modelopt.torch.puzzletron.anymodel.models.llama import (
        llama_model_descriptor as llama)
    from modelopt.torch.puzzletron.anymodel.models.qwen2 import (
        qwen2_model_descriptor as qwen2)

    DESCRIPTORS = {"llama": llama.LlamaModelDescriptor,
                   "qwen2": qwen2.Qwen2ModelDescriptor}
    torch.set_num_threads(1)
    loader.dist.local_rank = lambda: "cpu"  # the number of a GPU otherwise


def rank_of(rank, job):
    dist.init_process_group("gloo", rank=rank, world_size=job["ranks"],
                            init_method=f"file://{job['out']}.meet")
    model = loader.load_and_shard_model(DESCRIPTORS[job["family"]],
                                        job["path"])
    torch.save({name: one.detach().clone()
                for name, one in model.named_parameters()},
               f"{job['out']}.{rank}")
    if rank == 0:
        torch.save(loader.load_sharded_state_dict(job["path"]),
                   f"{job['out']}.all")
    dist.barrier()
    dist.destroy_process_group()


def run(job):
    return on_processes(rank_of, job["ranks"], job)


if __name__ == "__main__":
    serve(prepare, run)
