# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed itself saves a checkpoint or resumes from one, in processes that
zero_ranks_test.py starts.

    deepspeed_peer.py save|resume|universal STAGE DIR OUT WORLD RANK PORT
        [SUB_GROUP]

"universal" resumes from a universal checkpoint.

Each rank has the same batch, so that gradients don't depend on the number of
ranks. Rank 0 saves parameters (f32 masters) and moments as loaded, and again
after one more step. The model is that of tests/data/deepspeed.
"""

import os
import sys
from pathlib import Path

MODE, STAGE, DIR, OUT, WORLD, RANK, PORT = sys.argv[1:8]
STAGE, WORLD, RANK = int(STAGE), int(WORLD), int(RANK)
SUB_GROUP = int(sys.argv[8]) if len(sys.argv) > 8 else 0
os.environ.update(
    DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", CCL_LOCAL_RANK="0",
    GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", RANK=str(RANK),
    LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
    MASTER_PORT=PORT)
sys.path[:0] = [str(Path(sys.prefix) / "deepspeed"),
                str(Path(sys.prefix) / "transformers_5.12.1")]

import torch  # noqa: E402
from peer import program  # noqa: E402
import torch.nn as nn  # noqa: E402

torch.set_num_threads(1)
import deepspeed  # noqa: E402
from deepspeed.utils import (  # noqa: E402
    safe_get_full_fp32_param, safe_get_full_optimizer_state)

# deepspeed.comm.torch is torch itself by then. It compiles an all-reduce, and
# waits for whoever compiles it, even for one that was killed.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 5)
        self.register_buffer("scale", torch.tensor([1.5, 0.5]))
        self.fc1 = nn.Linear(5, 6)
        self.norm = nn.LayerNorm(5)
        self.fc2 = nn.Linear(6, 5)
        self.frozen = nn.Linear(5, 3)
        self.head = nn.Linear(5, 7, bias=False)
        for one in self.frozen.parameters():
            one.requires_grad_(False)

    def forward(self, ids):
        x = self.emb(ids)
        x = self.norm(self.fc2(torch.tanh(self.fc1(x)))) * self.scale[0]
        return (self.head(x).float().pow(2).mean()
                + self.frozen(x).float().pow(2).mean() * self.scale[1])


def build():
    torch.manual_seed(3 if MODE == "save" else 4)
    model = Model()
    decay = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    rest = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1},
         {"params": rest, "weight_decay": 0.0}],
        lr=1e-2 if MODE == "save" else 0.5)
    zero = {"stage": STAGE, "stage3_param_persistence_threshold": 0}
    if SUB_GROUP:
        zero["sub_group_size"] = SUB_GROUP
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, dist_init_required=True,
        config={"train_micro_batch_size_per_gpu": 1,
                "zero_force_ds_cpu_optimizer": False,
                "zero_allow_untested_optimizer": True,
                "checkpoint": {"load_universal": MODE == "universal"},
                "zero_optimization": zero, "bf16": {"enabled": True}})
    return engine


def step(engine):
    loss = engine(torch.tensor([[1, 4, 2, 6]]))
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def state_of(engine, moments=True):
    """`moments`: only after a step, which links them to parameters."""
    found = {}
    for name, one in engine.module.named_parameters():
        if one.requires_grad:
            found[name] = safe_get_full_fp32_param(one).clone()
            for state in ("exp_avg", "exp_avg_sq") if moments else ():
                found[name + "." + state] = safe_get_full_optimizer_state(
                    one, state).clone()
        elif STAGE == 3:
            with deepspeed.zero.GatheredParameters([one]):
                found[name] = one.detach().clone()
        else:
            found[name] = one.detach().clone()
    found["scale"] = engine.module.scale.clone()
    for one in engine.optimizer.optimizer.state.values():
        found["step"] = one["step"].clone()
    return found


def main():
    engine = build()
    if MODE == "save":
        for _ in range(2):
            step(engine)
        engine.save_checkpoint(DIR, tag="global_step2",
                               client_state={"epoch": 3})
    else:
        where, client = engine.load_checkpoint(DIR)
        assert where and client["epoch"] == 3, (where, client)
        for group in engine.optimizer.param_groups:
            assert group["lr"] != 0.5, "the optimizer's options did not come in"
            group["lr"] = 1e-2
        # A norm is a sum whose order depends on the number of ranks.
        engine.optimizer.clip_grad = 0.0
        loaded = state_of(engine, moments=False)
        loss = step(engine)
        stepped = state_of(engine)
        # ZeRO 3 does not take the step from a universal checkpoint.
        assert MODE == "universal" or stepped["step"] == loaded["step"] + 1
        if RANK == 0:
            torch.save({"loss": loss, "loaded": loaded, "stepped": stepped},
                       OUT)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


program(main)
