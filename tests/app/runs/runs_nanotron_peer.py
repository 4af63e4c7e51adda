#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nanotron's own save and load, on gloo ranks of a CPU.

    runs_nanotron_peer.py save ROOT OUT TP DP PP PORT WORDS
    runs_nanotron_peer.py load STEP OUT TP DP PP PORT WORDS

A small model of nanotron's tensor-parallel layers. `save` takes three steps and
saves; `load` makes the model with other weights and loads the step. Both take
one more step and assemble what all ranks hold by nanotron's own slices and
ZeRO's own offsets: OUT has the whole model and its optimizer, before and after
that step.

nanotron's own build_model decides which stage has which block, by the costs of
its Llama.

WORDS, with commas: "zero" (ZeRO 1), "masters" (bf16 with f32 masters), "bias"
(of rows, which rank 0 has alone), "-".

nanotron requires CUDA and NCCL: here its groups use gloo, its buffers are on
the CPU, and its configuration (which needs more packages) is left out.
"""

import ast
import contextlib
import importlib
import os
import sys
import types
from pathlib import Path

MODE, AT, OUT, TP, DP, PP, PORT, WORDS = sys.argv[1:9]
TP, DP, PP, WORDS = int(TP), int(DP), int(PP), WORDS.split(",")
RANKS = TP * DP * PP
PEER = Path(sys.prefix) / "nanotron"
HIDDEN, ROWS, LAYERS, STEP = 12, 72, 2, 3
sys.path.insert(0, str(PEER))
os.environ.update(OMP_NUM_THREADS="1", TQDM_DISABLE="1",
                  GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=PORT, WORLD_SIZE=str(RANKS))

import torch  # noqa: E402
import torch.distributed as td  # noqa: E402
from peer import program  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)


def stub(name, **what):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(what)
    sys.modules[name] = module
    return module


def on_cpu(name):
    """A nanotron module with buffers that it would put on the GPU."""
    module = importlib.import_module(name)

    class Torch:
        def __getattr__(self, word):
            real = getattr(torch, word)
            if word not in ("empty", "zeros", "zeros_like"):
                return real
            return lambda *a, **k: real(*a, **{**k, "device": "cpu"})

    module.torch = Torch()
    return module


def nanotron():
    """Its packages; those that need others exist by name, but empty."""
    class Any:
        pass

    config = {"Config": Any, "LoggingArgs": Any}
    stub("nanotron.config", **config)
    stub("nanotron.config.config", **config)
    stub("datasets")
    stub("datasets.download")
    stub("datasets.download.streaming_download_manager", xPath=Path)
    stub("nanotron.models", NanotronModel=Any)
    stub("nanotron.s3_checkpoints", S3Mover=Any, check_path_is_local=None,
         fs_open=None)
    importlib.import_module("nanotron.distributed")
    parallel = stub("nanotron.parallel", ParallelContext=Any)
    importlib.import_module("nanotron.logging")
    assert sys.modules.pop("nanotron.parallel") is parallel
    import nanotron.parallel.context
    import nanotron.serialize  # noqa: F401

    on_cpu("nanotron.optim.gradient_accumulator")
    # The comparison of the ranks' states moves them to the GPU first.
    sys.modules["nanotron.serialize.optimizer"].check_optim_state_in_sync = (
        lambda *a: None)
    sys.modules["nanotron.distributed"].initialize_torch_distributed = (
        lambda: None)
    nanotron.parallel.context.ParallelContext.set_device = lambda self: None


def source_of(module, *names):
    """A nanotron function from its source, as the module needs more
    packages."""
    import __future__

    nodes = ast.parse((PEER / module).read_text()).body
    for name in names:
        [node] = [n for n in nodes if getattr(n, "name", None) == name]
        nodes = getattr(node, "body", [])
    node.decorator_list = []
    return compile(ast.Module([node], []), module, "exec",
                   flags=__future__.annotations.compiler_flag)


class Block:
    """A PipelineBlock that is told its stage, but never built."""

    def __init__(self, builder=None):
        self.module_builder = builder

    def build_and_set_rank(self, stage):
        self.stage = stage


def stages():
    """The stage of each block: embedding, layers, norm, head."""
    import numpy as np

    costs = {"LlamaDecoderLayer": "layer", "TensorParallelColumnLinear": "head"}
    exec(source_of("nanotron/models/llama.py", "LlamaModel",
                   "get_block_compute_costs"), costs)
    blocks = [Block(), *(Block("layer") for _ in range(LAYERS)), Block(),
              Block("head"), Block(), Block()]
    config = types.SimpleNamespace(
        hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_attention_heads=2, vocab_size=ROWS)
    model = types.SimpleNamespace(
        named_modules=lambda: [("", one) for one in blocks],
        get_block_compute_costs=lambda: costs["get_block_compute_costs"](
            types.SimpleNamespace(config=config)))
    build = {"PipelineBlock": Block, "np": np, "torch": torch,
             "log_rank": lambda *a, **k: None,
             "logger": None, "logging": types.SimpleNamespace(INFO=0),
             "init_on_device_and_dtype":
                 lambda **k: contextlib.nullcontext()}
    exec(source_of("nanotron/models/base.py", "build_model"), build)
    build["build_model"](
        model_builder=lambda: model, dtype=None,
        parallel_context=types.SimpleNamespace(
            world_pg=None, pp_pg=types.SimpleNamespace(size=lambda: PP)))
    return [one.stage for one in blocks[:LAYERS + 3]]


def make_model(group, seed, stage):
    from nanotron.parallel.parameters import NanotronParameter
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode
    from nanotron.parallel.tensor_parallel.nn import (
        TensorParallelColumnLinear, TensorParallelEmbedding,
        TensorParallelRowLinear)

    common = {"pg": group, "mode": TensorParallelLinearMode.ALL_REDUCE,
              "device": "cpu"}
    wide = HIDDEN * 2

    def tree(**children):
        one = nn.Module()
        for name, child in children.items():
            if child is not None:
                one.add_module(name, child)
        return one

    of = stages()

    def here(block, make):
        return make() if of[block] == stage else None

    def block(child):
        return tree(pp_block=child)

    def columns(size, *chunks):
        return TensorParallelColumnLinear(
            HIDDEN, size, bias=False, async_communication=False,
            contiguous_chunks=chunks or None, **common)

    def rows(size):
        return TensorParallelRowLinear(size, HIDDEN, bias="bias" in WORDS,
                                       async_communication=False, **common)

    def norm():
        return nn.LayerNorm(HIDDEN, bias=False)

    def layer():
        return block(tree(
            input_layernorm=norm(),
            attn=tree(qkv_proj=columns(3 * HIDDEN, HIDDEN, HIDDEN, HIDDEN),
                      o_proj=rows(HIDDEN)),
            post_attention_layernorm=norm(),
            mlp=tree(gate_up_proj=columns(2 * wide, wide, wide),
                     down_proj=rows(wide))))

    model = tree(model=tree(
        token_position_embeddings=here(0, lambda: block(tree(
            token_embedding=TensorParallelEmbedding(ROWS, HIDDEN, **common)))),
        decoder=tree(**{str(i): here(i + 1, layer) for i in range(LAYERS)}),
        final_layer_norm=here(LAYERS + 1, lambda: block(norm())),
        lm_head=here(LAYERS + 2, lambda: block(columns(ROWS)))))
    kind = torch.bfloat16 if "masters" in WORDS else torch.float32
    # What NanotronModel does to parameters that no tensor-parallel layer made.
    for module in list(model.modules()):
        for name, value in list(module.named_parameters(recurse=False)):
            made = NanotronParameter(value)
            made.data = made.data.to(kind)
            setattr(module, name, made)
    for name, value in model.named_parameters():
        put(value, values(name, whole_shape(value), seed))
    return model


def whole_shape(value):
    return tuple(value.get_sharded_info().unsharded_shape
                 if value.is_sharded else value.shape)


def values(name, shape, seed):
    made = torch.Generator().manual_seed(seed * 1000 + sum(name.encode()))
    return torch.randn(shape, generator=made)


def pairs(value):
    return (value.get_sharded_info().local_global_slices_pairs
            if value.is_sharded else None)


def put(value, whole, grad=False):
    """A rank's part of a whole tensor."""
    to = torch.zeros_like(value.data) if grad else value.data
    if pairs(value) is None:
        to.copy_(whole)
    else:
        for one in pairs(value):
            to[one.local_slices] = whole[one.global_slices].to(to.dtype)
    if grad:
        value.grad = to


def make_optimizer(model, context):
    from nanotron.optim.gradient_accumulator import FP32GradientAccumulator
    from nanotron.optim.named_optimizer import NamedOptimizer
    from nanotron.optim.optimizer_from_gradient_accumulator import (
        OptimizerFromGradientAccumulator)
    from nanotron.optim.zero import ZeroDistributedOptimizer

    named = list(model.named_parameters())

    def decays(name):
        return "norm" not in name and "bias" not in name

    groups = [
        {"named_params": [p for p in named if decays(p[0])],
         "weight_decay": 0.1},
        {"named_params": [p for p in named if not decays(p[0])],
         "weight_decay": 0.0}]

    def adam(groups):
        return NamedOptimizer(
            named_params_or_groups=groups,
            optimizer_builder=lambda g: torch.optim.AdamW(g, lr=1e-2))

    def with_masters(groups):
        return OptimizerFromGradientAccumulator(
            gradient_accumulator_builder=lambda params:
                FP32GradientAccumulator(named_parameters=params,
                                        grad_buckets_named_params=named),
            named_params_or_groups=groups, optimizer_builder=adam)

    build = with_masters if "masters" in WORDS else adam
    if "zero" in WORDS:
        return ZeroDistributedOptimizer(
            named_params_or_groups=groups, optimizer_builder=build,
            dp_pg=context.dp_pg)
    return build(groups)


def below(optimizer, word):
    """The first of the nested optimizers that has it."""
    while not hasattr(optimizer, word):
        optimizer = optimizer.optimizer
    return getattr(optimizer, word)


def take_step(model, optimizer, scheduler, number):
    from nanotron.optim.inherit_from_other_optimizer import (
        InheritFromOtherOptimizer)

    for name, value in model.named_parameters():
        put(value, values(name, whole_shape(value), 7 + number), grad=True)
    if "masters" in WORDS:
        accumulator = below(optimizer, "gradient_accumulator")
        for name, held in accumulator.parameters.items():
            held["fp32"].grad = held["half"].grad.float()
    # ZeRO's gather afterwards needs NCCL: finish() does it instead.
    (InheritFromOtherOptimizer.step if "zero" in WORDS
     else type(optimizer).step)(optimizer)
    scheduler.step()
    for value in model.parameters():
        value.grad = None


def held_by(model, optimizer, rank):
    """{name: (kind, tensor)} of this rank: model, state, masters, runs."""
    found = {}
    state = optimizer.state_dict()
    offsets = getattr(optimizer, "param_name_to_dp_rank_offsets", None)
    numbers = {name: i for i, name in state["names"].items()}
    masters = state.get("gradient_accumulator", {})
    for name, value in model.named_parameters():
        one = {"model": value.data.clone(), "pairs": pairs(value),
               "shape": whole_shape(value), "states": {}, "run": None}
        if offsets:
            one["run"] = offsets[name].get(rank)
        if name in numbers:
            for key, tensor in state["state"][numbers[name]].items():
                one["states"][key] = torch.as_tensor(tensor).clone()
        if name in masters:
            one["states"]["fp32"] = masters[name].detach().clone()
        found[name] = one
    return found


def together(every):
    """The whole tensors. If a ZeRO rank steps a run, the run counts."""
    made = {"model": {}, "optim": {}}
    for name in {n: None for _, found in every for n in found}:
        holders = [(d, found[name]) for d, found in every if name in found]
        first = holders[0][1]

        def whole(get, holders=holders, first=first):
            out = None
            for _, one in holders:
                tensor = get(one)
                if tensor is None:
                    continue
                if tensor.dim() == 0:
                    return tensor
                local = one["model"].shape
                mask = torch.ones(local, dtype=torch.bool)
                if one["run"]:
                    begin, end = one["run"]
                    mask = torch.zeros(local.numel(), dtype=torch.bool)
                    mask[begin:end] = True
                    mask = mask.view(local)
                    full = torch.zeros(local, dtype=tensor.dtype)
                    if tensor.shape != local:
                        full[mask] = tensor
                        tensor = full
                if out is None:
                    out = torch.full(first["shape"], float("nan"),
                                     dtype=tensor.dtype)
                for pair in one["pairs"] or [None]:
                    to = out if pair is None else out[pair.global_slices]
                    part = slice(None) if pair is None else pair.local_slices
                    to[mask[part]] = tensor[part][mask[part]]
            assert not out.isnan().any(), name
            return out

        made["model"][name] = whole(lambda one: one["model"])
        keys = {k: None for _, one in holders for k in one["states"]}
        for key in keys:
            made["optim"][f"{name}.{key}"] = whole(
                lambda one, key=key: one["states"].get(key))
    return made


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    td.init_process_group("gloo", rank=rank, world_size=RANKS)
    import nanotron.distributed as nd
    from nanotron.parallel.context import ParallelContext
    from nanotron.random import RandomStates, get_current_random_state
    from nanotron.serialize import (
        load_lr_scheduler, load_meta, load_optimizer, load_random_states,
        load_weights, save, save_random_states)

    context = ParallelContext(
        tensor_parallel_size=TP, pipeline_parallel_size=PP,
        data_parallel_size=DP)
    model = make_model(context.tp_pg, 1 if MODE == "save" else 5,
                       nd.get_rank(context.pp_pg))
    step = Path(AT) / str(STEP) if MODE == "save" else Path(AT)
    if MODE == "load":
        shards = load_weights(model=model, parallel_context=context,
                              root_folder=step)
    optimizer = make_optimizer(model, context)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer.get_base_optimizer(), lambda i: 1 / (i + 1))
    random = RandomStates({"tp_synced": get_current_random_state()})
    if MODE == "load":
        load_optimizer(
            optimizer=optimizer, parallel_context=context, root_folder=step,
            param_shard_metadata=shards, model=model)
        load_lr_scheduler(lr_scheduler=scheduler, root_folder=step)
        kept = torch.load
        torch.load = lambda *a, **k: kept(*a, **{"weights_only": False, **k})
        assert "tp_synced" in load_random_states(context, step)
        meta = load_meta(context, step)
        assert meta.metas["last_train_step"] > 0, meta
        assert (meta.tp, meta.dp) == (TP, DP), meta
    else:
        for number in range(1, STEP + 1):
            take_step(model, optimizer, scheduler, number)
            if "zero" in WORDS:
                gather(model, optimizer, context)
        step.mkdir(parents=True, exist_ok=True)
        td.barrier()
        save(config=None, model=model, optimizer=optimizer,
             lr_scheduler=scheduler, parallel_context=context,
             root_folder=step, should_save_config=False, sanity_checks=False,
             checkpoint_metadata={"last_train_step": STEP,
                                  "consumed_train_samples": 8 * STEP})
        save_random_states(random, context, step)
        if rank == 0:
            (Path(AT) / "latest.txt").write_text(str(STEP))
    before = held_by(model, optimizer, nd.get_rank(context.dp_pg))
    take_step(model, optimizer, scheduler, 9)
    after = held_by(model, optimizer, nd.get_rank(context.dp_pg))
    every = [None] * RANKS
    td.all_gather_object(every, (nd.get_rank(context.dp_pg), before, after))
    if rank == 0:
        torch.save({"before": together([(d, b) for d, b, _ in every]),
                    "after": together([(d, a) for d, _, a in every]),
                    "rate": scheduler.get_last_lr()}, OUT)
    td.barrier()
    td.destroy_process_group()


def gather(model, optimizer, context):
    """Sends each data-parallel rank's run to the others."""
    for name, value in model.named_parameters():
        runs = optimizer.param_name_to_dp_rank_offsets[name]
        flat = value.data.view(-1)
        every = [None] * DP
        mine = runs.get(td.get_rank(context.dp_pg))
        td.all_gather_object(every, mine and flat[slice(*mine)].clone(),
                             group=context.dp_pg)
        for rank, part in enumerate(every):
            if part is not None:
                flat[slice(*runs[rank])] = part


def main():
    nanotron()
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            program(lambda: run(rank))
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failed))


main()
