# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's own GatedDeltaNet and MambaMixer, on the CPU: each rank loads
its layer from a distributed checkpoint with Megatron's loader, and must hold
what the test says. Their kernels need a GPU and are never called.
"""

import os
import sys
import tempfile
import types
from unittest.mock import MagicMock

from megatron_peer import read_expected, require, same, shim
from peer import on_processes, serve


def stub_kernels():
    """Kernel modules whose names must be importable."""
    import torch

    class RMSNorm(torch.nn.Module):
        def __init__(self, size, **_):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size))

    norm = types.ModuleType("mamba_ssm.ops.triton.layernorm_gated")
    norm.RMSNorm = RMSNorm
    for name in ("triton", "triton.language", "mamba_ssm", "mamba_ssm.ops",
                 "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.ssd_combined",
                 "mamba_ssm.ops.triton.selective_state_update"):
        sys.modules[name] = MagicMock()
    sys.modules[norm.__name__] = norm


def layer(kind, numbers):
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm import (gated_delta_net, mamba_context_parallel,
                                   mamba_mixer)
    from megatron.core.tensor_parallel.layers import (ColumnParallelLinear,
                                                      RowParallelLinear)
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    config = TransformerConfig(
        num_layers=4, num_attention_heads=8, perform_initialization=False,
        use_cpu_initialization=True, normalization="RMSNorm",
        add_bias_linear=False, **numbers)
    groups = ProcessGroupCollection.use_mpu_process_groups(
        required_pgs=["tp", "cp", "pp"])
    # Used only by the kernels' callers.
    mamba_mixer.HAVE_EINOPS = mamba_context_parallel.HAVE_EINOPS = True
    mamba_mixer.get_cuda_rng_tracker = MagicMock  # nothing is random
    if kind == "mamba":
        return mamba_mixer.MambaMixer(
            config, mamba_mixer.MambaMixerSubmodules(
                in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
            config.hidden_size, layer_number=1, pg_collection=groups)
    gated_delta_net.HAVE_FLA = True
    return gated_delta_net.GatedDeltaNet(
        config, gated_delta_net.GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=WrappedTorchNorm,
            out_proj=RowParallelLinear),
        layer_number=1, pg_collection=groups)


def on_rank(number, world, rendezvous, job):
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state

    dist.init_process_group("gloo", rank=number, world_size=world,
                            init_method="file://" + rendezvous)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    module = layer(job["kind"], job["numbers"])
    for value in module.state_dict().values():
        if isinstance(value, torch.Tensor):
            value.fill_(float("nan"))
    prefix = job["prefix"]
    wanted = {
        name: value for name, value in
        module.sharded_state_dict(prefix, (), None).items()
        if not name.endswith("_extra_state")}
    loaded = {name: value for name, value in
              dist_checkpointing.load(wanted, job["path"]).items()
              if name.startswith(prefix)}  # args and the like come along
    expected = read_expected([job["expected"][number]])
    require({n for n in expected if n.startswith(prefix)} == set(loaded),
            f"parameters are {sorted(loaded)}")
    for name, value in loaded.items():
        require(same(value, expected[name]), f"{name} on rank {number}")
    dist.barrier()
    dist.destroy_process_group()


def run_job(job):
    """None, or what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        world = len(job["expected"])
        return on_processes(on_rank, world, world,
                            os.path.join(scratch, "rendezvous"), job)


def prepare():
    import torch

    torch.set_num_threads(1)
    shim()
    import megatron.core.dist_checkpointing  # noqa: F401
    import megatron.core.ssm.gated_delta_net  # noqa: F401

    stub_kernels()
    import megatron.core.ssm.mamba_mixer  # noqa: F401

    # torch itself checks later whether triton exists.
    del sys.modules["triton"], sys.modules["triton.language"]


if __name__ == "__main__":
    serve(prepare, run_job)
