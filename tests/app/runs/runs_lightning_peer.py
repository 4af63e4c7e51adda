# SPDX-License-Identifier: Apache-2.0
"""Lightning itself resumes a step: what runs_lightning_test.py starts in
processes.

    runs_lightning_peer.py MODEL DIR OUT WORLD RANK PORT

Trainer.fit(ckpt_path=DIR) with ModelParallelStrategy on gloo, or of a single file
without a strategy; one more step over one batch that all ranks share. Rank 0 saves loss, parameters and moments.
"""

import os
import sys
from pathlib import Path

MODEL, DIR, OUT, WORLD, RANK, PORT = sys.argv[1:7]
WORLD, RANK = int(WORLD), int(RANK)
ONE_FILE = Path(DIR).is_file()
os.environ.update(
    HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1",
    GLOO_SOCKET_IFNAME="lo", RANK=str(RANK), LOCAL_RANK=str(RANK),
    NODE_RANK="0", WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
    MASTER_PORT=PORT)
sys.path[:0] = [str(Path(sys.prefix) / name)
                for name in ("lightning", "transformers_5.12.1")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
import lightning  # noqa: E402
from lightning.pytorch.strategies import ModelParallelStrategy  # noqa: E402
from peer import program  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

IDS = torch.arange(4, 12)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """The model of tests/data/runs/lightning_mp_w2."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(53, 12)
        self.blocks = nn.ModuleList([Block(12)])
        self.register_buffer("scale", torch.zeros(12))
        self.head = nn.Linear(12, 53)

    def forward(self, ids):
        x = self.emb(ids) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.seen = []
        if MODEL == "net":
            self.net = Net()
            return
        from transformers import LlamaConfig, LlamaForCausalLM
        made = LlamaForCausalLM(LlamaConfig(
            vocab_size=53, hidden_size=16, intermediate_size=24,
            num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, num_hidden_layers=1))
        # A Lightning module with the model's own names.
        self.model, self.lm_head = made.model, made.lm_head

    def forward(self, ids):
        if MODEL == "net":
            return self.net(ids)
        return self.lm_head(self.model(input_ids=ids).last_hidden_state)

    def configure_model(self):
        if ONE_FILE:
            return
        if any("DTensor" in type(p).__name__ for p in self.parameters()):
            return
        mesh = self.device_mesh["data_parallel"]
        layers = self.net.blocks if MODEL == "net" else self.model.layers
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        if MODEL == "net":
            fully_shard(self.net, mesh=mesh)
        else:
            fully_shard(self.model, mesh=mesh)
            fully_shard(self.lm_head, mesh=mesh)

    def training_step(self, batch, index):
        loss = self(IDS[None]).float().pow(2).mean()
        self.seen.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.5)
        rates = torch.optim.lr_scheduler
        scheduler = (rates.StepLR(optimizer, 2) if MODEL == "net" else
                     rates.LambdaLR(optimizer, lambda i: 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": scheduler, "interval": "step"}}


def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().clone().cpu()


def main():
    module = Module()
    values = Path(DIR) if ONE_FILE else Path(DIR, "meta.pt")
    step = torch.load(values, weights_only=False)["global_step"]
    trainer = lightning.Trainer(
        max_steps=step + 1, accelerator="cpu", devices=WORLD, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, use_distributed_sampler=False,
        default_root_dir=str(Path(OUT).parent),
        strategy="auto" if ONE_FILE else ModelParallelStrategy(
            data_parallel_size=WORLD, tensor_parallel_size=1))
    data = torch.utils.data.DataLoader([0] * 64, batch_size=1)
    trainer.fit(module, data, ckpt_path=DIR, weights_only=False)
    assert trainer.global_step == step + 1 and len(module.seen) == 1, (
        trainer.global_step, module.seen)
    names = {id(p): name for name, p in module.named_parameters()}
    found = {name: whole(t) for name, t in module.state_dict().items()}
    for param, state in trainer.optimizers[0].state.items():
        for key, value in state.items():
            found[f"{names[id(param)]}.{key}"] = whole(value)
    if RANK == 0:
        torch.save({"loss": module.seen[0], "model": found}, OUT)


program(main)
