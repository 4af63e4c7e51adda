# SPDX-License-Identifier: Apache-2.0
"""verl's FSDPCheckpointManager with FSDP1 as its actors configure it by use_orig_params and fsdp_size: what runs_verl.py does not cover.  python runs_fsdp1.py CASE...

orig_w4    use_orig_params=True: a rank lacks the states of parameters of which it holds nothing
hybrid_w4  HYBRID_SHARD over a mesh of 2 x 2: ranks 0 and 2 have one part, ranks 1 and 3 the other
lora_w2, lora_orig_w4, lora_only_w2  PEFT's LoRA, wrapped as verl's get_fsdp_wrap_policy(is_lora=True) does: adapters are units of their own; frozen parameters are in the optimizer and have no states
"""
import functools, os, sys, types
from pathlib import Path
from runs_lib import *

def manager():
    """verl without what its __init__ asks for (ray and more)."""
    import importlib
    home = Path(sys.prefix) / "verl"; sys.path.append(str(home)); sys.path.insert(0, str(Path(sys.prefix) / "transformers_5.12.1"))
    for name in ("verl", "verl.utils", "verl.utils.checkpoint"):
        m = types.ModuleType(name); m.__path__ = [str(home / name.replace(".", "/"))]; sys.modules[name] = m
    sys.modules["verl.utils"].hf_processor = sys.modules["verl.utils"].hf_tokenizer = lambda *a, **k: None
    return importlib.import_module("verl.utils.checkpoint.fsdp_checkpoint_manager").FSDPCheckpointManager

def policy(is_lora):
    """What verl.utils.fsdp_utils.get_fsdp_wrap_policy makes for Llama; with LoRA leaves with a trainable weight, too."""
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy, lambda_auto_wrap_policy, _or_policy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    layers = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    leaf = lambda m: not list(m.children()) and getattr(m, "weight", None) is not None and m.weight.requires_grad
    return functools.partial(_or_policy, policies=[functools.partial(lambda_auto_wrap_policy, lambda_fn=leaf), layers]) if is_lora else layers

def rank_main(rank, world, case, orig, shards, what, lora=""):
    Manager = manager()
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as F, ShardingStrategy as SS, StateDictType as T, FullStateDictConfig
    from transformers import LlamaConfig, LlamaForCausalLM
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",)) if shards == world else init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("ddp", "fsdp"))
    torch.manual_seed(0)
    m = LlamaForCausalLM(LlamaConfig(vocab_size=13, hidden_size=6, intermediate_size=5, num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    if lora:
        from peft import LoraConfig, TaskType, get_peft_model
        m.enable_input_require_grads(); m.name_or_path = ""
        m = get_peft_model(m, LoraConfig(task_type=TaskType.CAUSAL_LM, r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"], bias="none")); m.peft_config["default"].base_model_name_or_path = ""
        for n, p in m.named_parameters():
            if "lora_B" in n: torch.nn.init.normal_(p)
    m = F(m, use_orig_params=orig, auto_wrap_policy=policy(lora), device_id=torch.device("cpu"), sharding_strategy=SS.FULL_SHARD if shards == world else SS.HYBRID_SHARD, sync_module_states=False, device_mesh=mesh, forward_prefetch=False)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01); sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1.0)
    for step in range(1, 4):
        b = tokens(13)[(step * world + rank) % 64]
        m(input_ids=b["input_ids"][None]).logits.float().pow(2).mean().backward(); opt.step(); sch.step(); opt.zero_grad()
    Manager(model=m, optimizer=opt, lr_scheduler=sch, processing_class=None, **({"checkpoint_config": {"save_lora_only": True}} if lora == "only" else {})).save_checkpoint("run/global_step_3/actor", None, 3, None)
    with F.state_dict_type(m, T.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)): sd = {k: full(v) for k, v in m.state_dict().items()}
    if lora == "only": sd = {k: v for k, v in sd.items() if "lora_" in k}
    if orig: od = optim_of_fsdp1(m, opt, {k: v for k, v in sd.items() if not lora or "lora_" in k})
    else:                                                    # flat parameters, cut by what FSDP itself says is in them
        names = {id(p): (clean(n), p) for n, p in m.named_parameters()}
        mine = {names[id(p)][0].replace("_flat_param", ""): ([(q, tuple(s)) for q, s in zip(p._fqns, p._shapes)], {k: v.clone() for k, v in st.items()}) for p, st in opt.state.items()}
        every = [None] * world; dist.all_gather_object(every, mine); od = {}
        for unit, (inside, st) in mine.items():
            for k in st:
                parts = [e[unit][1][k] for e in every[:shards]]; at = 0; whole = parts[0] if parts[0].dim() == 0 else torch.cat(parts)
                for q, s in inside:
                    n = torch.Size(s).numel(); od[f"{unit}{q}.{k}"] = whole if whole.dim() == 0 else whole[at:at + n].view(s); at += n
    if rank == 0:
        torch.save({"_snapshot": {"_num_yielded": 3}}, "run/global_step_3/data.pt"); open("run/latest_checkpointed_iteration.txt", "w").write("3")
        W = range(world); of = lambda name: [f"actor/{name}_world_size_{world}_rank_{r}.pt" for r in W]
        finish(where(f"../verl/fsdp1/{case}"), "run", {"trainer": "verl FSDP1", "peer": "verl 0.9.1", "newest": "global_step_3", "step": 3, "topology": {"ranks": world}, "parts": {"model": of("model"), "optimizer": of("optim"), "scheduler, rng": of("extra_state"), "config": ["actor/huggingface/config.json", *(["actor/huggingface/generation_config.json"] if os.path.exists("run/global_step_3/actor/huggingface/generation_config.json") else [])], "args": ["actor/fsdp_config.json", *(["actor/lora_train_meta.json"] if lora else [])], "dataloader": ["data.pt"]},
            "models": ["actor"], "what": what, "by_hand": "data.pt, latest_checkpointed_iteration.txt: verl's trainer writes them, not its manager"}, sd, od)
    dist.barrier(); dist.destroy_process_group()

def run(world, *a): neutral("verl"); spawn(rank_main, world, *a)
CASES = {
 "orig_w4": lambda: run(4, "orig_w4", True, 4, "FSDP1 with use_orig_params=True: the optimizer numbers parameters, each rank has runs of some of them: per unit (the root, each layer) parameters begin at multiples of 16 bytes, the end is padded to a multiple of the ranks; a rank lacks the states of the rest"),
 "lora_w2": lambda: run(2, "lora_w2", False, 2, "FSDP1 with LoRA: units are the root, each layer and each matrix of an adapter; the optimizer numbers all of them, and only the adapters' have states", "whole"),
 "lora_orig_w4": lambda: run(4, "lora_orig_w4", True, 4, "FSDP1 with LoRA and use_orig_params=True: a rank has the states of those matrices of which it holds elements", "whole"),
 "lora_only_w2": lambda: run(2, "lora_only_w2", False, 2, "the same with save_lora_only: the model files lack the base", "only"),
 "hybrid_w4": lambda: run(4, "hybrid_w4", False, 2, "FSDP1 with HYBRID_SHARD (fsdp_size 2 of 4 ranks): flat parameters are cut in two; ranks 0 and 2 have the first part, ranks 1 and 3 the second"),
}
if __name__ == "__main__":
    for c in sys.argv[1:] or CASES: CASES[c]()
