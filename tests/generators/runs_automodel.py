# SPDX-License-Identifier: Apache-2.0
"""NeMo Automodel's BaseRecipe.save_checkpoint with its Checkpointer, StatefulRNG, StepScheduler and LoRA on gloo ranks.  python runs_automodel.py CASE...  (AUTOMODEL_PATH: where pip install --no-deps --target put nemo-automodel==0.7.0, torchdata and what they import)

Stored: full_w2, lora_w2. The others were loaded back, too; their optimizer's numbers have no names in ckpt.

full_w2   fully sharded over two ranks, safetensors and consolidated, a tied head
torch_w2  the same as DCP (model_save_format torch_save), no consolidated files
lora_w2   an adapter of LoRA
parts_w2  an adapter over pipeline stages as Automodel cuts them: a state dict of the optimizer for each (optimizer_parts)
twice_w2  the same with two stages for each rank
"""
import os, sys
from runs_lib import *

def automodel():
    for p in [str(Path(sys.prefix) / "transformers_5.12.1"), *os.environ["AUTOMODEL_PATH"].split(":")]: sys.path.insert(0, p)

def build(kind, rank, world, folder):
    """A recipe as train_ft.py sets one up: what BaseRecipe saves are its attributes."""
    automodel()
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchdata.stateful_dataloader import StatefulDataLoader
    from transformers import LlamaConfig, LlamaForCausalLM
    from nemo_automodel.components.checkpoint.config import CheckpointingConfig
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.components.optim.scheduler import OptimizerParamScheduler
    from nemo_automodel.components.training.rng import StatefulRNG
    from nemo_automodel.components.training.step_scheduler import StepScheduler
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
    from nemo_automodel.recipes.base_recipe import BaseRecipe
    if not dist.is_initialized(): dist.init_process_group("gloo", rank=rank, world_size=world)
    lora, parts, twice = kind in ("lora", "parts", "twice"), kind in ("parts", "twice"), kind == "twice"
    class Recipe(BaseRecipe): pass
    r = Recipe(); r.peft_config = PeftConfig(target_modules=["*.q_proj", "*.down_proj"], dim=2, alpha=4) if lora else None
    r.cfg = ConfigNode({"model": {"pretrained_model_name_or_path": "tiny"}, "step_scheduler": {"global_batch_size": 2 * world}})
    r.rng = StatefulRNG(seed=3, ranked=True); torch.manual_seed(0)
    c = LlamaConfig(vocab_size=23, hidden_size=8, intermediate_size=12, num_hidden_layers=4 if twice else 3 if parts else 1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=kind == "full", architectures=["LlamaForCausalLM"])
    m = LlamaForCausalLM(c)
    if lora: apply_lora_to_linear_modules(m, r.peft_config)
    if parts:
        import types
        from nemo_automodel.components.distributed.pipelining.functional import split_model_into_stages
        pp = init_device_mesh("cpu", (world,), mesh_dim_names=("pp",))
        stages, r.model_parts = split_model_into_stages(m, pp, "pp", "interleaved1f1b" if twice else "1f1b", torch.device("cpu"), layers_per_stage=1 if twice else None)
        r.pp = types.SimpleNamespace(info=types.SimpleNamespace(stages=stages))
        next(r.model_parts[0].modules()).ep_size = 2          # what makes Automodel save each optimizer's own state dict: experts over ranks, or a quantized base
        r.device_mesh = init_device_mesh("cpu", (world, 1, 1), mesh_dim_names=("pp", "dp", "tp"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for layer in m.model.layers: fully_shard(layer, mesh=mesh)
        fully_shard(m, mesh=mesh); r.model_parts = [m]; r.pp = None; r.device_mesh = None
    r.checkpointer = CheckpointingConfig(checkpoint_dir=folder, model_save_format="torch_save" if kind == "torch" else "safetensors", model_cache_dir="cache", model_repo_id="tiny", save_consolidated="every" if kind == "full" else "false", is_peft=lora).build(dp_rank=0 if parts else rank, tp_rank=0, pp_rank=rank if parts else 0, pp_group=r._get_pp_group())
    r.tokenizer = tokenizer(23)
    r.optimizer = [torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], lr=1e-2) for one in r.model_parts]
    r.dataloader = StatefulDataLoader(tokens(23), batch_size=2)
    r.step_scheduler = StepScheduler(2 * world, 2, world, r.dataloader, ckpt_every_steps=1, max_steps=20, num_epochs=2, preemption_signal=None)
    r.lr_scheduler = [OptimizerParamScheduler(o, 0.0, 1e-2, 1e-3, 2, 20, "cosine", 0.01, 0.01, 20, "constant") for o in r.optimizer]
    return r

def train(r, steps, rank, parts, start=0):
    for s in range(start, start + steps):
        if parts:
            g = torch.Generator().manual_seed(100 * s + rank)
            for one in r.model_parts:
                for p in one.parameters():
                    if p.requires_grad: p.grad = torch.randn(p.shape, generator=g)
        else:
            b = tokens(23)[(2 * s + rank) % 64]; r.model_parts[0](input_ids=b["input_ids"][None]).logits.float().pow(2).mean().backward()
        for o in r.optimizer: o.step(); o.zero_grad()
        for one in r.lr_scheduler: one.step(1)
        r.step_scheduler.step = s + 1

def live(r, kind):
    import torch.distributed as dist
    lora = kind in ("lora", "parts", "twice"); model, optim = {}, {}
    for one, o in zip(r.model_parts, r.optimizer):
        model |= {n: t for n, t in model_by_name(one).items() if not lora or "lora_" in n}; optim |= optim_by_name(one, o)
    if kind in ("parts", "twice"):
        every = [None] * dist.get_world_size(); dist.all_gather_object(every, (model, optim))
        for a, b in every: model |= a; optim |= b
    if kind == "full": model.pop("lm_head.weight")
    if lora: model, optim = ({"base_model.model." + n: t for n, t in d.items()} for d in (model, optim))
    return model, optim

def rank_main(rank, world, case, kind, what):
    import torch.distributed as dist
    r = build(kind, rank, world, "run"); steps = 3
    for s in range(1, steps + 1):
        train(r, 1, rank, kind in ("parts", "twice"), s - 1)
        if s == steps: r.save_checkpoint(0, s, 1.5 / s, {"default": 2.0 / s})
    model, optim = live(r, kind)
    if rank == 0:
        newest = f"epoch_0_step_{steps}"; root = Path("run") / newest
        files = [str(p.relative_to(root)) for p in sorted(root.rglob("*")) if p.is_file()]
        of = lambda *heads: [f for f in files if f.startswith(heads)]
        parts = {"model": of("model/"), "optimizer, scheduler": of("optim/"), "rng": of("rng/"), "dataloader": of("dataloader/"), "trainer": of("step_scheduler.pt", "losses.json"), "config": of("config.yaml")}
        links = {p.name: os.readlink(p) for p in sorted(Path('run').iterdir()) if p.is_symlink()}
        for name in links: (Path('run') / name).unlink()
        # Its program is no test data: only the name counts.
        for program in Path("run").rglob("consolidate.sh"):
            program.write_text("#!/usr/bin/env bash\n# Automodel writes a program here that merges the shards.\n")
        finish(where(f"../writers/automodel/{case}"), "run", {"trainer": "NeMo Automodel", "peer": "nemo-automodel 0.7.0", "newest": newest, "step": steps, "topology": {"ranks": world}, "name": "automodel", "links": links, "ranks": ["rng/*", "dataloader/*"], "spare": ["config.yaml", "losses.json", "model/.hf_metadata/*", "model/consolidate*", "model/consolidated/*", "model/automodel_peft_config.json", "model/*token*", "dataloader/dataloader_dp_rank_1.pt"], "parts": parts, "what": what}, model, optim)
    dist.barrier(); r._finalize_and_close_checkpointer(); dist.destroy_process_group()

def run(world, *a): neutral("automodel"); spawn(rank_main, world, *a)
CASES = {
 "full_w2": lambda: run(2, "full_w2", "full", "FSDP2 over two ranks, safetensors shards of DCP and consolidated files; the head is tied to the embedding"),
 "torch_w2": lambda: run(2, "torch_w2", "torch", "FSDP2 over two ranks, model_save_format torch_save: DCP without consolidated files"),
 "lora_w2": lambda: run(2, "lora_w2", "lora", "an adapter of LoRA (q_proj, down_proj), FSDP2 over two ranks; names of the adapter's file"),
 "parts_w2": lambda: run(2, "parts_w2", "parts", "an adapter over two pipeline stages of 2 and 1 layers: the optimizer is each stage's own state dict, numbered"),
 "twice_w2": lambda: run(2, "twice_w2", "twice", "the same over four stages, two for each rank (interleaved1f1b)"),
}
if __name__ == "__main__":
    for c in sys.argv[1:] or CASES: CASES[c]()
