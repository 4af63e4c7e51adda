# SPDX-License-Identifier: Apache-2.0
"""Real loaders resume a step: what runs_write_test.py starts in processes.

    runs_peer.py KIND DIR OUT WORLD RANK PORT

Each resumes DIR, takes one more step over one batch that all ranks share, and
rank 0 saves loss and parameters. So the result doesn't depend on the number of
ranks. The loaders are those of accelerate, transformers and torch. For a
trainer that doesn't install here, its own few lines are repeated in its order
of calls.
"""

import os
import sys
from pathlib import Path

KIND, DIR, OUT, WORLD, RANK, PORT = sys.argv[1:7]
WORLD, RANK = int(WORLD), int(RANK)
PEER = Path(sys.prefix) / "transformers_5.12.1"
os.environ.update(
    HF_HUB_OFFLINE="1", TQDM_DISABLE="1", GLOO_SOCKET_IFNAME="lo",
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
if WORLD > 1 or "fsdp" in KIND:
    os.environ.update(
        RANK=str(RANK), LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD),
        LOCAL_WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT)
sys.path.insert(0, str(PEER))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from peer import program  # noqa: E402

torch.set_num_threads(1)
TOKENS = torch.arange(4, 12)


def batch(count=1):
    ids = TOKENS[None].repeat(count, 1)
    return {"input_ids": ids, "labels": ids.clone()}


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


def qwen2(**extra):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(7)  # other weights than any file's
    return Qwen2ForCausalLM(Qwen2Config(**{**dict(
        vocab_size=53, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2), **extra}))


def llama(kind, layers=1):
    from transformers import (
        LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification)

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=24,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, num_labels=1)
    return (LlamaForTokenClassification if kind == "critic"
            else LlamaForCausalLM)(config)


def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().clone().cpu()


def finish(model, loss):
    found = {name: whole(p) for name, p in model.state_dict().items()}
    if RANK == 0:
        torch.save({"loss": float(loss), "model": found}, OUT)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def accelerate_fsdp2():
    """accelerate's load_state, all of it."""
    allow_cpu()
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Qwen2DecoderLayer"],
        state_dict_type="SHARDED_STATE_DICT", cpu_ram_efficient_loading=False,
        reshard_after_forward=True)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = qwen2(tie_word_embeddings=True, num_hidden_layers=1)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer.optimizer, lambda i: 1 / (i + 1))
    scheduler = accelerator.prepare(scheduler)

    class Count:
        n = None

        def state_dict(self):
            return {"n": self.n}

        def load_state_dict(self, state):
            self.n = state["n"]

    count = Count()
    accelerator.register_for_checkpointing(count)
    accelerator.load_state(DIR)
    assert count.n == 2, count.n
    assert scheduler.scheduler.last_epoch > 0
    loss = model(**batch()).loss
    accelerator.backward(loss)
    optimizer.step()
    finish(model, loss)


def trainer(model, **extra):
    """Trainer.train(resume_from_checkpoint=DIR)."""
    from transformers import Trainer, TrainingArguments

    step = int(Path(DIR, "trainer_state.json").read_text().split(
        '"global_step": ')[1].split(",")[0])
    seen = []

    class Watched(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            seen.append(float(loss))
            return loss

    arguments = TrainingArguments(
        str(Path(OUT).parent / f"run{RANK}"), max_steps=step + 1,
        save_strategy="no", report_to=[], per_device_train_batch_size=1,
        use_cpu=True, weight_decay=0.1, logging_steps=100,
        learning_rate=1e-2, warmup_steps=2, disable_tqdm=True,
        ignore_data_skip=True, **extra)
    data = [{k: v[0] for k, v in batch().items()} for _ in range(64)]
    one = Watched(model=model, args=arguments, train_dataset=data)
    one.train(resume_from_checkpoint=DIR)
    assert len(seen) == 1 and one.state.global_step == step + 1, seen
    assert one.optimizer.state, "a fresh optimizer"
    finish(one.accelerator.unwrap_model(one.model), seen[0])


def trainer_plain():
    trainer(qwen2())


def trainer_fsdp2():
    allow_cpu()
    trainer(qwen2(num_hidden_layers=1), fsdp=True, fsdp_config={
        "version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": False})


def verl_manager():
    """verl's own FSDPCheckpointManager; None if it is not installed. Its
    packages are imported without their __init__, which needs ray and more."""
    import importlib
    import types

    home = Path(sys.prefix) / "verl"
    if not (home / "verl").is_dir():
        return None
    sys.path.append(str(home))
    for name in ("verl", "verl.utils", "verl.utils.checkpoint"):
        module = types.ModuleType(name)
        module.__path__ = [str(home / name.replace(".", "/"))]
        sys.modules[name] = module
    sys.modules["verl.utils"].hf_processor = lambda *a, **k: None
    sys.modules["verl.utils"].hf_tokenizer = lambda *a, **k: None
    return importlib.import_module(
        "verl.utils.checkpoint.fsdp_checkpoint_manager").FSDPCheckpointManager


def verl(model, context):
    """What verl 0.9.1's FSDPCheckpointManager.load_checkpoint does, or (where
    it is not installed) the same again: three files of its own world size and
    rank, torch.load of each, then load_state_dict."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.5, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1.0)
    manager = verl_manager()
    if manager is not None:
        manager(model=model, optimizer=optimizer, lr_scheduler=scheduler,
                processing_class=object()).load_checkpoint(DIR)
    else:
        def load(what):
            path = Path(DIR, f"{what}_world_size_{WORLD}_rank_{RANK}.pt")
            return torch.load(path, weights_only=False)

        with context():
            model.load_state_dict(load("model"))
            optimizer.load_state_dict(load("optim"))
        extra = load("extra_state")
        scheduler.load_state_dict(extra["lr_scheduler"])
        torch.set_rng_state(extra["rng"]["cpu"])
    assert scheduler.last_epoch > 0, scheduler.last_epoch
    assert optimizer.param_groups[0]["lr"] != 0.5, "options did not come in"
    for one, state in optimizer.state.items():
        assert state["exp_avg"].shape == one.shape, (state, one.shape)
    out = model(input_ids=batch()["input_ids"])
    loss = out.logits.float().pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def verl_fsdp2():
    import contextlib

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    model = llama(Path(DIR).name)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    finish(model, verl(model, contextlib.nullcontext))


def verl_fsdp1(original=False, size=-1, model=None):
    """verl's default: FSDP1 with flat parameters. `size`: verl's fsdp_size, of
    which it makes the mesh (create_device_mesh, get_sharding_strategy)."""
    import functools

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FullyShardedDataParallel, ShardedOptimStateDictConfig,
        ShardedStateDictConfig, ShardingStrategy, StateDictType)
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    hybrid = 0 <= size < WORLD
    mesh = init_device_mesh(
        "cpu", (WORLD // size, size) if hybrid else (WORLD,),
        mesh_dim_names=("ddp", "fsdp") if hybrid else ("fsdp",))
    model = FullyShardedDataParallel(
        model or (tiny_llama() if original else llama("actor", 2)),
        use_orig_params=original,
        auto_wrap_policy=with_leaves(functools.partial(
            transformer_auto_wrap_policy,
            transformer_layer_cls={LlamaDecoderLayer})),
        device_id=torch.device("cpu"), device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid
        else ShardingStrategy.FULL_SHARD,
        sync_module_states=False, forward_prefetch=False)
    loss = verl(model, lambda: FullyShardedDataParallel.state_dict_type(
        model, StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(offload_to_cpu=True),
        ShardedOptimStateDictConfig(offload_to_cpu=True)))
    with FullyShardedDataParallel.state_dict_type(
            model, StateDictType.FULL_STATE_DICT):
        finish(model, loss)


def with_leaves(layers):
    """As get_fsdp_wrap_policy(is_lora=True): leaves with a trainable weight,
    too."""
    import functools

    from torch.distributed.fsdp.wrap import (
        _or_policy, lambda_auto_wrap_policy)

    def is_adapter(module):
        return not list(module.children()) and getattr(
            module, "weight", None) is not None and module.weight.requires_grad

    if "lora" not in KIND:
        return layers
    return functools.partial(_or_policy, policies=[
        functools.partial(lambda_auto_wrap_policy, lambda_fn=is_adapter),
        layers])


def tiny_llama():
    """Of tests/data/verl/fsdp1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    return LlamaForCausalLM(LlamaConfig.from_json_file(
        Path(DIR, "huggingface/config.json")))


def verl_fsdp1_orig():
    verl_fsdp1(True)


def verl_fsdp1_orig_rows():
    verl_fsdp1(True, 2)


def lora(original):
    from peft import LoraConfig, TaskType, get_peft_model

    model = tiny_llama()
    model.enable_input_require_grads()
    verl_fsdp1(original, model=get_peft_model(model, LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=2, lora_alpha=4, bias="none",
        target_modules=["q_proj", "v_proj", "down_proj"])))


def verl_fsdp1_lora():
    lora(False)


def verl_fsdp1_lora_orig():
    lora(True)


def verl_fsdp1_rows():
    verl_fsdp1(False, 2, tiny_llama())


def bag(shapes):
    """A module with parameters of these names, in nested modules."""
    root = torch.nn.Module()
    for name, shape in shapes.items():
        *above, last = name.split(".")
        module = root
        for part in above:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(
            last, torch.nn.Parameter(torch.zeros(shape)))
    return root


def by_name(model_prefix, optimizer_prefix, flat):
    """torch's own DCP and state_dict functions, as torchtitan 0.3 (flat) and
    Lightning 2.6's ModelParallelStrategy call them: dcp.load into the state
    dicts of sharded modules. The tensors that came in are saved."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
        set_model_state_dict, set_optimizer_state_dict)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    known = FileSystemReader(DIR).read_metadata().state_dict_metadata
    shapes, live = {}, {}
    beginning = optimizer_prefix + ".state."
    for key, entry in known.items():
        if not hasattr(entry, "size"):
            continue
        if key.startswith(beginning):
            if key.endswith(".exp_avg"):
                live[key[len(beginning):-len(".exp_avg")]] = entry.size
        elif key.startswith(model_prefix):
            shapes[key[len(model_prefix):]] = entry.size
    model, trained = bag(shapes), bag(live)
    for one in (model, trained):
        fully_shard(one, mesh=mesh)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights = get_model_state_dict(model)
    moments = get_optimizer_state_dict(trained, optimizer, options=options)
    if flat:
        state = {**weights, "optimizer": moments}
    else:
        state = {model_prefix[:-1]: weights, optimizer_prefix: moments}
    dcp.load(state, checkpoint_id=DIR)
    set_model_state_dict(model, weights)
    set_optimizer_state_dict(trained, optimizer, moments, options=options)
    names = {id(p): name for name, p in trained.named_parameters()}
    found = {f"{names[id(p)]}.{key}": whole(value)
             for p, values in optimizer.state.items()
             for key, value in values.items()}
    found.update({name: whole(p) for name, p in model.state_dict().items()})
    if RANK == 0:
        torch.save({"loss": 0.0, "model": found}, OUT)
    dist.barrier()
    dist.destroy_process_group()


def torchtitan_fsdp2():
    by_name("", "optimizer", True)


def lightning_fsdp2():
    by_name("state_dict.", "optimizer_0", False)


program(globals()[KIND])
