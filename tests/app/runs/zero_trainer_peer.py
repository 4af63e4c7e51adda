# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with DeepSpeed saves a step, or resumes one: what
zero_ranks_test.py starts in processes.

    zero_trainer_peer.py save|resume STAGE DIR OUT WORLD RANK PORT

Each rank has the same batches. Rank 0 saves f32 masters as they came in, and
masters, moments and loss after one more step.
"""

import os
import sys
from pathlib import Path

MODE, STAGE, DIR, OUT, WORLD, RANK, PORT = sys.argv[1:8]
STAGE, WORLD, RANK = int(STAGE), int(WORLD), int(RANK)
os.environ.update(
    DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", CCL_LOCAL_RANK="0",
    ACCELERATE_USE_DEEPSPEED="true", HF_HUB_OFFLINE="1", TQDM_DISABLE="1",
    GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", RANK=str(RANK),
    LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD),
    MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
sys.path[:0] = [str(Path(sys.prefix) / "deepspeed"),
                str(Path(sys.prefix) / "transformers_5.12.1")]

import torch  # noqa: E402

torch.set_num_threads(1)
import accelerate.state as state  # noqa: E402
import deepspeed  # noqa: E402
import transformers.training_args as arguments  # noqa: E402
from deepspeed.utils import (  # noqa: E402
    safe_get_full_fp32_param, safe_get_full_optimizer_state)
from peer import program  # noqa: E402
from transformers import (  # noqa: E402
    Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments)

# deepspeed.comm.torch is torch itself by then. It compiles an all-reduce.
sys.modules[deepspeed.__name__ + ".comm.torch"].build_shm_op = lambda: None
# The check asks for a GPU; processors do bf16. Ranks of CPUs, which accelerate
# takes for one process each under DeepSpeed.
arguments.is_torch_bf16_gpu_available = lambda *a, **k: True
state.PartialState._prepare_backend = lambda *a, **k: (
    "gloo", state.DistributedType.MULTI_CPU)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(4, 12)
        return {"input_ids": ids, "labels": ids.clone()}


def masters(engine):
    return {n: safe_get_full_fp32_param(p).clone()
            for n, p in engine.module.named_parameters()}


class Look(TrainerCallback):
    """What came in, before the first step that is taken."""

    trainer = loaded = None

    def on_step_begin(self, args, state, control, **more):
        if self.loaded is None:
            self.loaded = masters(self.trainer.model_wrapped)


def main():
    torch.manual_seed(3 if MODE == "save" else 4)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=53, hidden_size=16, intermediate_size=24,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2))
    zero = {"stage": STAGE,
            "stage3_gather_16bit_weights_on_model_save": False}
    trainer = Trainer(
        model=model, train_dataset=Data(), args=TrainingArguments(
            DIR if MODE == "save" else OUT + ".run",
            max_steps=2 if MODE == "save" else 3,
            save_strategy="steps" if MODE == "save" else "no", save_steps=2,
            per_device_train_batch_size=1, report_to=[], weight_decay=0.1,
            learning_rate=1e-2, lr_scheduler_type="constant",
            logging_steps=1, max_grad_norm=0.0, optim="adamw_torch",
            disable_tqdm=True, bf16=True, ddp_backend="gloo",
            ignore_data_skip=True, deepspeed={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1, "zero_optimization": zero,
                "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False,
                "zero_allow_untested_optimizer": True}))
    if MODE == "save":
        trainer.train()
        return
    look = Look()
    look.trainer = trainer
    trainer.add_callback(look)
    trainer.train(resume_from_checkpoint=DIR)
    assert trainer.state.global_step == 3, trainer.state.global_step
    engine = trainer.model_wrapped
    stepped = masters(engine)
    for name, one in engine.module.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            stepped[f"{name}.{key}"] = safe_get_full_optimizer_state(
                one, key).clone()
    loss = [h["loss"] for h in trainer.state.log_history if "loss" in h][-1]
    if RANK == 0:
        torch.save({"loss": loss, "loaded": look.loaded, "stepped": stepped},
                   OUT)


def rank():
    main()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


program(rank)
