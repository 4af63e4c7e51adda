# SPDX-License-Identifier: Apache-2.0
"""torchtitan itself loads a step: what runs_titan_test.py starts in processes.

    runs_titan_peer.py DIR OUT WORLD RANK PORT

torchtitan 0.3's CheckpointManager.load, into a Llama with a fused projection
and its OptimizersContainer, then its save of the same as step 11, and of runs
that end with the model alone: DIR/alone in its own form, DIR/exported in
transformers'. Rank 0 saves model and moments under transformers' names, as
torchtitan's own adapter gives them.
"""

import sys

from runs_titan_start import start

DIR, OUT, WORLD, RANK, PORT = sys.argv[1:6]
WORLD, RANK = int(WORLD), int(RANK)
start(PORT, RANK, WORLD)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torchtitan.models.llama3 as llama3  # noqa: E402
from peer import program  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.optimizer import (  # noqa: E402
    LRSchedulersContainer, default_adamw)
from torchtitan.models.common import (  # noqa: E402
    ComplexRoPE, Embedding, Linear, RMSNorm)
from torchtitan.models.common.attention import FusedQKVLinear  # noqa: E402
from torchtitan.models.llama3.state_dict_adapter import (  # noqa: E402
    Llama3StateDictAdapter)

WIDTH, HEADS, KEYS, VOCABULARY, INNER = 16, 4, 2, 53, 24


def build():
    config = llama3.Llama3Model.Config(
        dim=WIDTH, vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=WIDTH,
            param_init=llama3._EMBEDDING_INIT),
        norm=RMSNorm.Config(
            normalized_shape=WIDTH, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=WIDTH, out_features=VOCABULARY,
            param_init=llama3._output_linear_init(WIDTH)),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True, n_layers=1, dim=WIDTH, n_heads=HEADS,
            n_kv_heads=KEYS, hidden_dim=INNER, rope=ComplexRoPE.Config(
                dim=WIDTH // HEADS, max_seq_len=32, theta=10000),
            attn_backend="flex"))
    return config, config.build()


def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().clone().cpu()


class State:
    step = 0

    def state_dict(self):
        return {"step": self.step, "ntokens_seen": 0}

    def load_state_dict(self, state):
        self.step = state["step"]


def main():
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    config, model = build()
    for one in model.parameters():
        torch.nn.init.constant_(one, 0.25)
    layers = model.layers
    for layer in layers.values() if hasattr(layers, "values") else layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    wanted = default_adamw(lr=0.5)
    wanted.implementation = "for-loop"
    optimizers = wanted.build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=20)
    state = State()
    adapter = Llama3StateDictAdapter(config, None)

    def manager_of(folder, **more):
        return CheckpointManager(
            CheckpointManager.Config(
                enable=True, folder="checkpoint", interval=1,
                exclude_from_loading=["dataloader"], **more),
            dataloader=None, model_parts=[model], optimizers=optimizers,
            lr_schedulers=schedulers, states={"train_state": state},
            sd_adapter=adapter, base_folder=folder)

    manager = manager_of(DIR)
    assert manager.load(), "nothing was loaded"
    found = adapter.to_hf({n: whole(t) for n, t in model.state_dict().items()})
    fused = next(m for m in model.modules() if isinstance(m, FusedQKVLinear))
    names = {id(p): name for name, p in model.named_parameters()}
    for one in optimizers:
        for key in ("exp_avg", "exp_avg_sq"):
            moments = {names[id(p)]: whole(values[key])
                       for p, values in one.state.items()}
            FusedQKVLinear._split_qkv_on_save(
                fused, moments, "layers.0.attention.qkv_linear.", {})
            for name, moment in adapter.to_hf(moments).items():
                found[f"{name}.{key}"] = moment
        steps = {float(values["step"]) for values in one.state.values()}
    if RANK == 0:
        torch.save({"model": {n: t.contiguous() for n, t in found.items()},
                    "step": state.step, "steps": sorted(steps)}, OUT)
    # Without training, the next step equals this one, in a folder with another
    # name.
    assert manager.save(11), "nothing was saved"
    manager.close()
    for name in ("alone", "exported"):
        ends = manager_of(f"{DIR}/{name}", last_save_model_only=True,
                          last_save_in_hf=name == "exported")
        assert ends.save(11) and ends.save(12, last_step=True), name
        ends.close()
    dist.barrier()
    dist.destroy_process_group()


program(main)
