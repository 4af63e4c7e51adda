# SPDX-License-Identifier: Apache-2.0
"""What each process of torchtitan's peers does first: one of `world` on gloo,
one thread, with torchtitan and transformers to be imported."""

import os
import sys
import types
from pathlib import Path


def start(port, rank=0, world=1):
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", RANK=str(rank),
        LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port))
    sys.path[:0] = [str(Path(sys.prefix) / name)
                    for name in ("torchtitan", "transformers_5.12.1")]
    import torch
    torch.set_num_threads(1)
    # Triton's kernels for experts on GPUs, a gigabyte that nothing here calls.
    kernels = types.ModuleType(
        "torchtitan.distributed.minimal_async_ep.kernels")
    kernels.__getattr__ = lambda name: None
    sys.modules[kernels.__name__] = kernels
