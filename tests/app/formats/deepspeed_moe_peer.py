# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed itself saves a model with MoE layers, in processes that
deepspeed_moe_test.py starts.

    deepspeed_moe_peer.py save STAGE DIR OUT WORLD RANK PORT EXPERT_PARALLEL

Each rank saves what it holds as OUT.RANK, under the names that experts have
among all ranks: parameters; with ZeRO the runs of elements that it has of f32
masters and moments, as NAME@FIRST.
"""

import os
import sys
from pathlib import Path

_, STAGE, DIR, OUT, WORLD, RANK, PORT, EP = sys.argv[1:9]
STAGE, WORLD, RANK, EP = int(STAGE), int(WORLD), int(RANK), int(EP)
os.environ.update(
    DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", CCL_LOCAL_RANK="0",
    GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", RANK=str(RANK),
    LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
    MASTER_PORT=PORT)
sys.path[:0] = [str(Path(sys.prefix) / "deepspeed"),
                str(Path(sys.prefix) / "transformers_5.12.1")]

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
from peer import program  # noqa: E402

torch.set_num_threads(1)
import deepspeed  # noqa: E402
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import (  # noqa: E402
    split_params_into_different_moe_groups_for_optimizer as by_experts)

# As in deepspeed_peer.py.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
LOCAL = ".deepspeed_moe.experts.deepspeed_experts."


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(
            MoE(8, nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)),
                num_experts=experts, ep_size=EP, use_residual=residual)
            for experts, residual in ((4, False), (EP, True)))
        self.head = nn.Linear(8, 7)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.head(x).float().pow(2).mean()


def global_name(name, model):
    before, found, after = name.partition(LOCAL)
    if not found:
        return name
    number, dot, rest = after.partition(".")
    local = model.get_submodule(before).num_local_experts
    return f"{before}{LOCAL}{RANK % EP * local + int(number)}{dot}{rest}"


def fragments(optimizer, name, parameter):
    """Which elements of a parameter's master and moments this rank has."""
    if parameter._hp_mapping is None:
        return
    group = next(g for g, group in enumerate(optimizer.bit16_groups)
                 if any(parameter is one for one in group))
    master = optimizer.single_partition_of_fp32_groups[group]
    start = parameter._hp_mapping.lp_fragment_address.start
    at = parameter._hp_mapping.get_hp_fragment_address()
    states = {"": master, **{"." + key: value for key, value in
                             optimizer.optimizer.state[master].items()
                             if value.dim() > 0}}
    for state, flat in states.items():
        yield (name + state, start,
               flat.detach()[at.start:at.start + at.numel].clone())


def main():
    deepspeed.init_distributed("gloo")
    torch.manual_seed(3 + RANK)
    model = Model()
    groups = by_experts({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2),
        config={"train_micro_batch_size_per_gpu": 1,
                "zero_force_ds_cpu_optimizer": False,
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": STAGE},
                "bf16": {"enabled": STAGE > 0}})
    for _ in range(2):
        engine.backward(engine(torch.tensor([[1, 4, 2, 6]])))
        engine.step()
    engine.save_checkpoint(DIR, tag="global_step2", client_state={"epoch": 3})
    found = {global_name(name, engine.module): one.detach().clone()
             for name, one in engine.module.named_parameters()}
    if STAGE > 0:
        found = {f"{name}@{start}": part for name, one in
                 engine.module.named_parameters()
                 for name, start, part in fragments(
                     engine.optimizer, global_name(name, engine.module), one)}
    torch.save(found, f"{OUT}.{RANK}")
    torch.distributed.barrier()


if __name__ == "__main__":
    program(main)
