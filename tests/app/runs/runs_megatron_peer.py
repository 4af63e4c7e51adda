#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One more step of a trainer's run, by megatron-core and by transformers.

    {"path": checkpoint, "out": folder, "tp": 2, "dp": 1,
     "ep": 1, "vocabulary": rows, "lr": 1e-2}
        GPTModel and the distributed optimizer load what ckpt wrote, step, and
        save themselves

    runs_megatron_peer.py '{"path": the Trainer's folder, "out": file, "lr": …}'
        in a process of its own, without what megatron-core needs on a CPU: the
        model and torch's AdamW load what the Trainer wrote, and step

The model, loss and batch are the same. No clipping; the learning rate is the
job's, everything else comes from the checkpoints.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import logits_peer
from megatron_peer import import_optimizer, metadata_of
from peer import on_processes, serve

IDS = list(range(4, 12))


def initialize(rank, rendezvous, job):
    import torch.distributed as dist
    from megatron.core import parallel_state

    dist.init_process_group(
        "gloo", rank=rank, world_size=job["tp"] * job["dp"],
        init_method="file://" + rendezvous)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=job["tp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["ep"] > 1 else job["tp"])


def build(job):
    from megatron.core.distributed import (
        DistributedDataParallel, DistributedDataParallelConfig)
    from megatron.core.optimizer import (
        OptimizerConfig, get_megatron_optimizer)
    import torch

    path, args = logits_peer.named(job["path"], None, {})
    logits_peer.PLACE.update(
        tensor_model_parallel_size=job["tp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["ep"] > 1 else job["tp"])
    model = logits_peer.built(args)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    ddp = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(
            use_distributed_optimizer=True, grad_reduce_in_fp32=True,
            overlap_grad_reduce=False), model)
    # Values that no file has.
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=0.5, weight_decay=0.7, clip_grad=0.0,
        use_distributed_optimizer=True, params_dtype=torch.float32), [ddp])
    # As after a step, since the optimizer counts its states when asked.
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in one.optimizer.param_groups:
            for p in group["params"]:
                one.optimizer.state[p] = {
                    "exp_avg": torch.ones_like(p),
                    "exp_avg_sq": torch.ones_like(p)}
    return path, args, model, ddp, optimizer


def on_rank(rank, rendezvous, job):
    import argparse

    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    initialize(rank, rendezvous, job)
    path, args, model, ddp, optimizer = build(job)
    metadata = metadata_of("fully_reshardable")

    def sharded(**options):
        of_model = model.sharded_state_dict(metadata=metadata)
        return {"model": of_model, "optimizer": optimizer.sharded_state_dict(
            {"model": of_model}, metadata=metadata, **options)}

    state = sharded(is_loading=True)
    logits_peer.name_as_transformer_engine(state, path)
    loaded, left, unknown = dist_checkpointing.load(state, path,
                                                    strict="return_all")
    left = [key for key in left if not key.endswith("_extra_state")]
    if left or unknown:
        raise AssertionError(f"not of the model: {left}; not there: {unknown}")
    model.load_state_dict(loaded["model"], strict=True)
    optimizer.load_state_dict(loaded["optimizer"])
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in one.optimizer.param_groups:
            group["lr"] = job["lr"]
    tokens = torch.tensor([IDS])
    places = torch.arange(len(IDS))[None]
    ahead = torch.triu(torch.ones(len(IDS), len(IDS), dtype=torch.bool), 1)
    ddp.zero_grad_buffer()
    logits = ddp(tokens, places, ahead[None, None])
    loss = logits[..., :job["vocabulary"]].float().pow(2).mean()
    loss.backward()
    ddp.finish_grad_sync()
    optimizer.step()
    state = sharded()
    state["args"] = argparse.Namespace(**vars(torch.load(
        Path(path, "common.pt"), weights_only=False)["args"]))
    state["args"].transformer_impl = "local"
    state["iteration"] = job["step"] + 1
    state["checkpoint_version"] = 3.0
    state["content_metadata"] = {
        k: v for k, v in metadata.items() if k != "dp_cp_group"}
    out = Path(job["out"], f"iter_{job['step'] + 1:07}")
    if rank == 0:
        out.mkdir(parents=True)
        Path(job["out"], "latest_checkpointed_iteration.txt").write_text(
            str(job["step"] + 1))
        Path(job["out"], "loss").write_text(repr(float(loss.detach())))
    dist.barrier()
    dist_checkpointing.save(state, str(out))
    dist.barrier()
    dist.destroy_process_group()


def step_of_transformers(job):
    """What the Trainer does, without its loop: its groups, its own files."""
    sys.path.insert(0, str(Path(sys.prefix) / "transformers_5.12.1"))
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, Trainer

    path = Path(job["path"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    decay = Trainer.get_decay_parameter_names(None, model)
    names = [[n for n, _ in model.named_parameters() if n in decay],
             [n for n, _ in model.named_parameters() if n not in decay]]
    params = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [params[n] for n in group]} for group in names], lr=0.5)
    optimizer.load_state_dict(torch.load(path / "optimizer.pt",
                                         weights_only=True))
    for group in optimizer.param_groups:
        group["lr"] = job["lr"]
    model.train()
    loss = model(input_ids=torch.tensor([IDS])).logits.float().pow(2).mean()
    loss.backward()
    optimizer.step()
    found = {"loss": loss.detach().reshape(1)}
    for group in names:
        for name in group:
            p = params[name]
            found[name] = p.detach().clone()
            for state, value in optimizer.state[p].items():
                found[f"{name}.{state}"] = value.detach().clone()
    save_file(found, job["out"])


def apex_step(self, closure=None):
    """Apex's bookkeeping (the count is the group's), torch's arithmetic."""
    import torch
    from torch.optim.adamw import adamw

    del closure
    with torch.no_grad():
        for group in self.param_groups:
            group["step"] += 1
            params = [p for p in group["params"] if p.grad is not None]
            states = [self.state[p] for p in params]
            beta1, beta2 = group["betas"]
            adamw(params, [p.grad for p in params],
                  [s["exp_avg"] for s in states],
                  [s["exp_avg_sq"] for s in states], [],
                  [torch.tensor(group["step"] - 1.0) for _ in params],
                  foreach=False, amsgrad=False, beta1=beta1, beta2=beta2,
                  lr=group["lr"], weight_decay=group["weight_decay"],
                  eps=group["eps"], maximize=False)


def run_job(job):
    """None, or what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        return on_processes(on_rank, job["tp"] * job["dp"],
                            os.path.join(scratch, "rendezvous"), job)


def prepare():
    import importlib

    import_optimizer()  # before anything else imports it
    logits_peer.prepare()
    importlib.import_module("megatron.core.distributed")
    from megatron.core.optimizer.distrib_optimizer import Adam

    Adam.step = apex_step


if __name__ == "__main__":
    if len(sys.argv) > 1:
        step_of_transformers(json.loads(sys.argv[1]))
    else:
        serve(prepare, run_job)
