# SPDX-License-Identifier: Apache-2.0
"""Real loaders resume one step: what runs_cross_test.py starts in processes.

    runs_cross_peer.py LOADER MODEL DIR OUT WORLD RANK PORT

The model, loss and batch are the same for every trainer, there is no clipping,
and learning rates come from the checkpoint. So one more step must be the same
from a trainer's own files and from another trainer's. Rank 0 saves loss,
parameters and what the loader had of the scheduler.
"""

import os
import sys
from pathlib import Path

LOADER, MODEL, DIR, OUT, WORLD, RANK, PORT = sys.argv[1:8]
WORLD, RANK = int(WORLD), int(RANK)
PEER = Path(sys.prefix) / "transformers_5.12.1"
os.environ.update(
    HF_HUB_OFFLINE="1", TQDM_DISABLE="1", GLOO_SOCKET_IFNAME="lo",
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
if WORLD > 1 or not LOADER.endswith("plain"):
    os.environ.update(
        RANK=str(RANK), LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD),
        LOCAL_WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT)
sys.path.insert(0, str(PEER))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from peer import program  # noqa: E402

torch.set_num_threads(1)
IDS = torch.arange(4, 12)


def build():
    from transformers import (
        LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM)

    torch.manual_seed(7)  # other weights than any file's
    sizes = dict(
        vocab_size=53, hidden_size=16, intermediate_size=24,
        num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2)
    if MODEL == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))
    if MODEL == "qwen2_tied":
        return Qwen2ForCausalLM(Qwen2Config(
            **sizes, num_hidden_layers=1, tie_word_embeddings=True)).to(
                torch.bfloat16)
    return Qwen2ForCausalLM(Qwen2Config(
        **sizes, num_hidden_layers=int(MODEL[-1])))


def groups(model):
    """The groups that the job started with: Trainer's two for qwen2, else
    one."""
    if MODEL not in ("qwen2_1", "qwen2_2"):
        return list(model.parameters())
    from transformers import Trainer

    decay = Trainer.get_decay_parameter_names(None, model)
    return [{"params": [p for n, p in model.named_parameters() if n in decay],
             "weight_decay": 0.1},
            {"params": [p for n, p in model.named_parameters()
                        if n not in decay], "weight_decay": 0.0}]


def adamw(model):
    return torch.optim.AdamW(groups(model), lr=0.5)  # another than any file's


def wake(optimizer):
    """This golden's schedule has ended (lr 0): no state would show."""
    if MODEL == "qwen2_2":
        for group in optimizer.param_groups:
            assert group["lr"] == 0.0, group["lr"]
            group["lr"] = 1e-2


def loss_of(model):
    out = model(input_ids=IDS[None])
    return out.logits.float().pow(2).mean()


def layers(model):
    return model.model.layers


def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().clone().cpu()


def finish(model, loss, **more):
    found = {name: whole(p) for name, p in model.state_dict().items()}
    if RANK == 0:
        torch.save({"loss": float(loss), "model": found, **more}, OUT)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def allow_cpu():
    """accelerate allows FSDP on accelerators only; this lets gloo ranks
    through. Nothing else in it is changed."""
    import accelerate.state as state

    real = state.DistributedType

    class Types:
        def __getattr__(self, name):
            return getattr(
                real, "MULTI_CPU" if name == "MULTI_NEURON" else name)

        def __iter__(self):
            return iter(real)

    state.DistributedType = Types()


def accelerate(plugin=None):
    """accelerate's load_state, all of it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = build()
    optimizer = adamw(model)
    model, optimizer = accelerator.prepare(model, optimizer)
    more = {}
    if Path(DIR, "scheduler.bin").is_file():
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer.optimizer, lambda i: 1.0)
        scheduler = accelerator.prepare(scheduler)

    class Registered:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            assert state

    for _ in Path(DIR).glob("custom_checkpoint_*.pkl"):
        accelerator.register_for_checkpointing(Registered())
    accelerator.load_state(DIR)
    if Path(DIR, "scheduler.bin").is_file():
        more["position"] = scheduler.scheduler.last_epoch
    loss = loss_of(model)
    accelerator.backward(loss)
    wake(optimizer)
    optimizer.step()
    finish(accelerator.unwrap_model(model), loss, **more)


def accelerate_plain():
    accelerate()


def accelerate_fsdp2():
    allow_cpu()
    from accelerate import FullyShardedDataParallelPlugin

    accelerate(FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[
            "Qwen2DecoderLayer" if "qwen2" in MODEL else "LlamaDecoderLayer"],
        state_dict_type="SHARDED_STATE_DICT", cpu_ram_efficient_loading=False,
        reshard_after_forward=True))


def trainer(**extra):
    """Trainer.train(resume_from_checkpoint=DIR)."""
    import json

    from transformers import Trainer, TrainingArguments

    state = json.loads(Path(DIR, "trainer_state.json").read_text())
    step = state["global_step"]
    seen = []

    class Watched(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            wake(self.optimizer)
            loss = loss_of(model)
            seen.append(float(loss.detach()))
            return loss

    arguments = TrainingArguments(
        str(Path(OUT).parent / f"run{RANK}"), max_steps=step + 1,
        save_strategy="no", report_to=[], per_device_train_batch_size=1,
        use_cpu=True, weight_decay=0.5, logging_steps=100, max_grad_norm=0,
        learning_rate=0.5, disable_tqdm=True, ignore_data_skip=True, **extra)
    data = [{"input_ids": IDS, "labels": IDS} for _ in range(64)]
    one = Watched(model=build(), args=arguments, train_dataset=data)
    one.train(resume_from_checkpoint=DIR)
    assert len(seen) == 1 and one.state.global_step == step + 1, seen
    assert one.optimizer.state, "a fresh optimizer"
    finish(one.accelerator.unwrap_model(one.model), seen[0], step=step,
           position=one.lr_scheduler.last_epoch - 1)


def trainer_plain():
    trainer()


def trainer_fsdp2():
    allow_cpu()
    trainer(fsdp=True, fsdp_config={
        "version": 2, "transformer_layer_cls_to_wrap": [
            "Qwen2DecoderLayer" if "qwen2" in MODEL else "LlamaDecoderLayer"],
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": False})


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    model = build()
    for layer in layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def go_on(model, optimizer, **more):
    loss = loss_of(model)
    loss.backward()
    wake(optimizer)
    optimizer.step()
    finish(model, loss, **more)


def verl(model, made=False):
    """What verl 0.9.1's FSDPCheckpointManager.load_checkpoint does. `made`:
    files that no rank saved. Their mesh is on cuda, but otherwise this one."""
    optimizer = adamw(model)

    def of_cpu(tensor):
        mesh = tensor._spec.mesh
        assert mesh._device_type in ("cuda", "cpu"), mesh
        mesh._device_type = "cpu"
        mine = next(model.parameters()).device_mesh
        assert mesh == mine, (mesh, mine)
        return tensor

    def walk(value):
        if hasattr(value, "_spec"):
            return of_cpu(value)
        if isinstance(value, dict):
            return type(value)((k, walk(v)) for k, v in value.items())
        return value

    def load(what):
        path = Path(DIR, f"{what}_world_size_{WORLD}_rank_{RANK}.pt")
        loaded = torch.load(path, weights_only=False)
        return walk(loaded) if made else loaded

    model.load_state_dict(load("model"))
    optimizer.load_state_dict(load("optim"))
    extra = load("extra_state")
    go_on(model, optimizer, position=extra["lr_scheduler"]["last_epoch"])


def verl_fsdp2():
    verl(sharded())


def verl_made():
    verl(sharded(), made=True)


def verl_plain():
    """One rank has plain tensors, as FSDP has not wrapped its model."""
    verl(build())


def lightning_fsdp2():
    """What Lightning 2.6's ModelParallelStrategy.load_checkpoint does: dcp.load
    into the state dicts of model and optimizers, then meta.pt for the rest."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
        set_optimizer_state_dict)

    model = sharded()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0)
    options = StateDictOptions(cpu_offload=True)
    weights = {"state_dict": get_model_state_dict(model)}
    dcp.load(weights, checkpoint_id=DIR)
    model.load_state_dict(weights["state_dict"])
    moments = {"optimizer_0": get_optimizer_state_dict(
        model, optimizer, options=options)}
    dcp.load(moments, checkpoint_id=DIR)
    set_optimizer_state_dict(
        model, optimizer, optim_state_dict=moments["optimizer_0"],
        options=options)
    meta = torch.load(Path(DIR, "meta.pt"), weights_only=True)
    loops = meta["loops"]["fit_loop"]
    progress = loops["epoch_loop.automatic_optimization.optim_progress"]
    assert progress["optimizer"]["step"]["total"]["completed"] == \
        meta["global_step"], meta
    for one in meta["lr_schedulers"]:
        scheduler.load_state_dict(one)
    go_on(model, optimizer, step=meta["global_step"],
          position=scheduler.last_epoch)


def lightning_plain():
    """Trainer.fit(ckpt_path=DIR) of a single file, without a strategy."""
    sys.path.insert(0, str(Path(sys.prefix) / "lightning"))
    import lightning

    made = build()
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            # A module with the model's own names.
            self.model, self.lm_head = made.model, made.lm_head

        def training_step(self, batch, index):
            loss = loss_of(made)
            seen.append(float(loss.detach()))
            return loss

        def on_before_optimizer_step(self, optimizer):
            wake(optimizer)

        def configure_optimizers(self):
            optimizer = adamw(made)
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda i: 1.0)
            return {"optimizer": optimizer, "lr_scheduler": {
                "scheduler": scheduler, "interval": "step"}}

    step = torch.load(DIR, weights_only=True)["global_step"]
    one = lightning.Trainer(
        max_steps=step + 1, accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=str(Path(OUT).parent))
    one.fit(Module(), torch.utils.data.DataLoader([0] * 64, batch_size=1),
            ckpt_path=DIR)
    assert one.global_step == step + 1 and len(seen) == 1, (
        one.global_step, seen)
    scheduler = one.lr_scheduler_configs[0].scheduler
    finish(made, seen[0], step=step, position=scheduler.last_epoch - 1)


program(globals()[LOADER])
