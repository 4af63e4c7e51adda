#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron-core itself, on CPUs: loads checkpoints on several processes and
compares every element with the truth. Its jobs:

    {"kind": see below, "path": checkpoint,
     "expected": [safetensors…], "topology": {"tp": 2, …}, "model": {…}}

plain  the whole tensors and the common part, by load_plain_tensors
keys   ShardedTensors made by hand, cut as a job of that topology cuts them
vocabulary  embeddings with less and with more rows than are stored
gpt    a GPTModel, loaded strictly
optim  the same with its distributed optimizer
legacy  ranks' files, model and optimizer
training  the same by Megatron-LM's load_checkpoint
"""

import importlib
import os
import sys
import tempfile
import types
import warnings

from peer import on_processes, serve

warnings.filterwarnings("ignore")


def shim():
    """Runs statements for a GPU on the CPU; nothing that reads is replaced."""
    import torch

    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda *a, **k: None
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.Tensor.cuda = lambda self, *a, **k: self
    kind = torch.Tensor.type

    def type_of(self, dtype=None, *args, **options):
        if dtype is None:  # the optimizer insists on cuda tensors
            return kind(self).replace("torch.", "torch.cuda.")
        return kind(self, dtype, *args, **options)

    torch.Tensor.type = type_of
    torch.nn.Parameter.type = type_of

    def on_cpu(make):
        def call(*args, **options):
            if str(options.get("device", "")).startswith("cuda"):
                options["device"] = "cpu"
            return make(*args, **options)
        return call

    for name in ("tensor", "zeros", "ones", "full", "arange", "empty",
                 "zeros_like", "empty_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


def import_optimizer():
    """Megatron's optimizer wants apex's, which keeps the step per group rather
    than per parameter; nothing steps here."""
    import torch

    class FusedAdam(torch.optim.AdamW):
        def __init__(self, params, adam_w_mode=True, bias_correction=True,
                     **options):
            super().__init__(params, **options)
            for group in self.param_groups:
                group["step"] = 1

        def __setstate__(self, state):
            torch.optim.Optimizer.__setstate__(self, state)

    apex = types.ModuleType("apex")
    apex.__path__ = []
    apex.optimizers = types.ModuleType("apex.optimizers")
    apex.optimizers.FusedAdam = FusedAdam
    apex.optimizers.FusedSGD = torch.optim.SGD
    sys.modules["apex"] = apex
    sys.modules["apex.optimizers"] = apex.optimizers
    import megatron.core.optimizer  # noqa: F401

    del sys.modules["apex"], sys.modules["apex.optimizers"]


def leave_kernels_out():
    """Later cores import kernels for GPUs that need triton; nothing here calls
    them."""
    kernels = types.ModuleType("megatron.core.transformer.moe.ops.paged_stash")
    kernels.__getattr__ = lambda name: None
    sys.modules[kernels.__name__] = kernels


def read_expected(paths):
    from safetensors import safe_open

    tensors = {}
    for path in paths:
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensors[name] = file.get_tensor(name)
    return tensors


def same(got, want):
    import torch

    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    return torch.equal(got.detach().contiguous().reshape(-1).view(torch.uint8),
                       want.contiguous().reshape(-1).view(torch.uint8))


def require(condition, text):
    if not condition:
        raise AssertionError(text)


# --------------------------------------------------------------------- plain
def run_plain(job, expected):
    from megatron.core import dist_checkpointing as dc

    path = job["path"]
    require(dc.check_is_distributed_checkpoint(path), "is not recognised")
    sizes = dc.load_tensors_metadata(path)
    require(set(sizes) == set(expected),
            f"keys differ: {sorted(set(sizes) ^ set(expected))[:6]}")
    plain = dc.load_plain_tensors(path)
    for key, want in expected.items():
        require(same(plain[key], want), f"{key} differs")
        require(tuple(sizes[key].global_shape) == tuple(want.shape), key)
    common = dc.load_common_state_dict(path)
    for key, value in job.get("common", {}).items():
        require(common.get(key) == value,
                f"common {key}: {common.get(key)!r}, not {value!r}")
    for key, value in job.get("args", {}).items():
        require(getattr(common["args"], key) == value,
                f"args.{key}: {getattr(common['args'], key)!r}, not {value!r}")


# ---------------------------------------------------------------------- keys
ROWS = ("word_embeddings.weight", "output_layer.weight", "linear_qkv.weight",
        "linear_qkv.bias")
COLUMNS = ("linear_proj.weight", "linear_fc2.weight")


def offsets_of(key, shape, rank, sizes, gated):
    """[(prepended axes, rank offsets)], one for each local part."""
    tp, size = rank["tp"], sizes["tp"]
    stacked = ".layers." in key and not any(
        part.isdigit() for part in key.split("."))
    layers = range(shape[0]) if stacked else [None]
    experts = [None]
    if ".experts.experts." in key:
        experts = range(shape[1 if stacked else 0])
    parts = []
    for layer in layers:
        for expert in experts:
            lead = [(layer, shape[0])] if layer is not None else []
            if expert is not None:
                lead.append((expert, shape[len(lead)]))
            axis = len(lead)
            own = [(i, *pair) for i, pair in enumerate(lead)]
            if key.endswith(ROWS):
                parts.append((axis, own + [(axis, tp, size)]))
            elif key.endswith(COLUMNS):
                parts.append((axis, own + [(axis + 1, tp, size)]))
            elif key.endswith(("linear_fc1.weight", "linear_fc1.bias")):
                if gated:
                    parts += [(axis, own + [(axis, tp + half * size, 2 * size)])
                              for half in (0, 1)]
                else:
                    parts.append((axis, own + [(axis, tp, size)]))
            else:
                parts.append((axis, own))
    return parts


def run_keys(job, expected, rank):
    import torch
    from megatron.core import dist_checkpointing as dc

    wanted, state = {}, {}
    for key, full in expected.items():
        parts = offsets_of(key, full.shape, rank, job["topology"],
                           job["gated"])
        for i, (lead, offsets) in enumerate(parts):
            part = full
            for axis, index, count in offsets:
                extent = full.shape[axis] // count
                part = part.narrow(axis, index * extent, extent)
            for _ in range(lead):
                part = part.squeeze(0)
            shared = any(axis >= lead for axis, _, _ in offsets)
            name = f"{key}#{i}"
            wanted[name] = part
            state[name] = dc.ShardedTensor.from_rank_offsets(
                key, torch.zeros_like(part), *offsets,
                replica_id=(0, 0 if shared else rank["tp"],
                            rank["dp"]),
                prepend_axis_num=lead)
    loaded = dc.load(state, job["path"])
    for name, want in wanted.items():
        require(same(loaded[name], want), f"{name} differs on {rank}")


# ---------------------------------------------------------------- vocabulary
def run_vocabulary(job, expected):
    import torch
    from megatron.core import dist_checkpointing as dc

    key = "embedding.word_embeddings.weight"
    full = expected[key]
    for rows in (len(full), 3 * len(full)):
        loaded = dc.load({"it": dc.ShardedTensor.from_rank_offsets(
            key, torch.ones(rows, full.shape[1], dtype=full.dtype),
            allow_shape_mismatch=True)}, job["path"])["it"]
        require(same(loaded[:len(full)], full), f"{rows} rows: {key} differs")
        require(bool((loaded[len(full):] == 0).all()), "padding is not zero")


# ----------------------------------------------------------------------- gpt
def build_gpt(model, topology):
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = model.get("experts")
    options = {}
    if experts:
        options = dict(
            num_moe_experts=experts, moe_router_topk=min(2, experts),
            expert_model_parallel_size=topology.get("ep", 1),
            moe_ffn_hidden_size=model["ffn"], moe_grouped_gemm=False,
            moe_token_dispatcher_type="allgather",
            # Required by the configuration; it changes no parameter.
            sequence_parallel=topology["tp"] > 1)
        if model.get("moe_freq"):
            options["moe_layer_freq"] = model["moe_freq"]
    silu = torch.nn.functional.silu
    config = TransformerConfig(
        num_layers=model["layers"], hidden_size=model["hidden"],
        num_attention_heads=model["heads"], num_query_groups=model["groups"],
        ffn_hidden_size=model["ffn"], use_cpu_initialization=True,
        tensor_model_parallel_size=topology["tp"],
        pipeline_model_parallel_size=topology["pp"],
        pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16, bf16=True,
        gated_linear_unit=model["swiglu"], add_bias_linear=model["bias"],
        activation_func=silu if model["swiglu"] else torch.nn.functional.gelu,
        normalization=model.get("norm", "LayerNorm"),
        kv_channels=model.get("kv"), perform_initialization=False,
        bias_activation_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False, **options)
    config.sequence_parallel = False
    if model.get("moe_freq"):
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False)
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            num_experts=experts, moe_grouped_gemm=False,
            normalization=model.get("norm"))
    gpt = GPTModel(
        config, spec, vocab_size=model["vocab"],
        max_sequence_length=model["seq"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=model["tied"],
        parallel_output=True, position_embedding_type=model["pos"])
    return config, gpt if model.get("norm_fp32") else gpt.bfloat16()


def sharded_parts(state):
    """The ShardedTensors that a sharded state dict contains."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import (
        ShardedTensor, apply_factories)

    apply_factories(state)
    return [v for v in nested_values(state) if isinstance(v, ShardedTensor)]


def compare_parts(parts, expected, what):
    from megatron.core import parallel_state

    seen = set()
    for part in parts:
        # When training continues, the last stage's copy of a tied embedding
        # takes its main weight from the first stage, not from the checkpoint.
        if ("state." in part.key and "word_embeddings" in part.key
                and not parallel_state.is_pipeline_first_stage()):
            continue
        full = expected[part.key]
        at = tuple(slice(o, o + n) for o, n in zip(
            part.global_offset[part.prepend_axis_num:], part.local_shape))
        want = full[tuple(part.global_offset[:part.prepend_axis_num]) + at]
        require(same(part.data, want), f"{part.key} differs in {what}")
        seen.add(part.key)
    return seen


def metadata_of(sharding=None):
    from megatron.core import parallel_state

    metadata = {
        "singleton_local_shards": False, "chained_optim_avoid_prefix": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(
            with_context_parallel=True)}
    if sharding:
        metadata["distrib_optim_sharding_type"] = sharding
        metadata["distrib_optim_fully_reshardable_mem_efficient"] = False
    return metadata


def run_gpt(job, expected):
    import torch
    from megatron.core import dist_checkpointing as dc

    _, gpt = build_gpt(job["model"], job["topology"])
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.fill_(7)
    metadata = metadata_of()
    metadata["singleton_local_shards"] = job.get("singleton", False)
    state = {"model": gpt.sharded_state_dict(metadata=metadata)}
    loaded = dc.load(state, job["path"], strict=job.get(
        "strict", "raise_unexpected"))
    gpt.load_state_dict(loaded["model"], strict=True)
    parts = sharded_parts(gpt.sharded_state_dict(metadata=metadata))
    compare_parts(parts, expected, "the model")
    return gpt


def with_optimizer(job):
    """The job's model, its optimizer, and what both save."""
    import torch
    from megatron.core.distributed import (
        DistributedDataParallel, DistributedDataParallelConfig)
    from megatron.core.optimizer import (
        OptimizerConfig, get_megatron_optimizer)

    flat = job.get("flat", True)
    config, gpt = build_gpt(job["model"], job["topology"])
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(
        use_distributed_optimizer=flat, grad_reduce_in_fp32=True,
        overlap_grad_reduce="bucket" in job, bucket_size=job.get("bucket")),
        gpt)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=flat), [ddp])
    # As after a step: the optimizer lists its states on request.
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in one.optimizer.param_groups:
            for p in group["params"]:
                one.optimizer.state[p] = {
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p)}
    metadata = metadata_of("fully_reshardable" if flat else None)

    def sharded(**options):
        model = gpt.sharded_state_dict(metadata=metadata)
        return {"model": model, "optimizer": optimizer.sharded_state_dict(
            {"model": model}, metadata=metadata, **options)}

    return gpt, optimizer, sharded, ddp


def run_save(job, expected):
    """Saves a model whose main weights round to it, as a training run does.
    With "bucket", its gradients are reduced in buckets of that many elements,
    and padding ends each of them; with "noise", weights are not rounded to
    nearest; with "ones", norms and biases are as a run begins with them."""
    import torch
    from megatron.core import dist_checkpointing as dc

    gpt, optimizer, sharded, _ = with_optimizer(job)
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    for number, p in enumerate(gpt.parameters()):
        seed = torch.Generator().manual_seed(number)
        main = torch.randn(p.shape, generator=seed)
        states = {"param": main, "exp_avg": main * 0.5,
                  "exp_avg_sq": main * main}
        if "ones" in job and p.dim() == 1:
            states["param"] = main = torch.ones(p.shape)
        p.data.copy_(main + main.abs() * job.get("noise", 0))
        for one in chained:
            if p not in one.model_param_group_index_map:
                continue  # another rank's
            at = one._get_model_param_range_map(p)["param"]
            found = one._get_main_param_and_optimizer_states(p)
            for name, value in states.items():
                found[name].data.copy_(value.flatten()[at.start:at.end])
    dc.save(sharded(), job["path"])


def run_optim(job, expected):
    import torch
    from megatron.core import dist_checkpointing as dc

    gpt, optimizer, sharded, _ = with_optimizer(job)
    loaded = dc.load(sharded(is_loading=True), job["path"])
    gpt.load_state_dict(loaded["model"], strict=True)
    optimizer.load_state_dict(loaded["optimizer"])
    seen = compare_parts(sharded_parts(sharded()), expected, "the optimizer")
    if torch.distributed.get_rank() == 0:
        require(any(key.startswith("optimizer.state.") for key in seen),
                "no optimizer state")
    if "step" in job:
        require_steps(optimizer, job["step"])


def whole_states(optimizer):
    """{state: {parameter: its values, gathered from all data-parallel ranks}}

    Not by sharded_state_dict: with fully_reshardable it looks for parameters
    after a padded bucket (a tied embedding's) in the wrong place."""
    import torch

    found = {}
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        flat = hasattr(one, "buffers")
        params = [p for b in one.buffers for p in b.param_index_map] if flat \
            else [p for g in one.float16_groups for p in g]
        for p in params:
            full = {}
            if not flat:
                main = p.main_param
                full = {"fp32_param": main, **one.optimizer.state[main]}
                full.pop("step", None)
            else:
                mine = p in one.model_param_group_index_map
                states = one._get_main_param_and_optimizer_states(p) \
                    if mine else {}
                for name in ("param", "exp_avg", "exp_avg_sq"):
                    full[name] = torch.zeros(p.numel())
                    if mine:
                        at = one._get_model_param_range_map(p)["param"]
                        full[name][at.start:at.end] = states[name].flatten()
                    torch.distributed.all_reduce(
                        full[name],
                        group=one.data_parallel_group)
            for name, value in full.items():
                found.setdefault(name, {})[p] = value.detach().reshape(p.shape)
    return found


def compare_states(gpt, optimizer, expected):
    """The model's own keys say which part of a golden's tensor belongs
    where."""
    states = whole_states(optimizer)
    require(len(states) == 3, f"states are {sorted(states)}")
    for name, values in states.items():
        require(set(values) == set(gpt.parameters()), f"{name}: parameters")
        for p, value in values.items():
            p.data = value
        parts = sharded_parts(gpt.sharded_state_dict(metadata=metadata_of()))
        for part in parts:
            part.key = f"optimizer.state.{name}.{part.key}"
        compare_parts(parts, expected, "ranks' files")


def run_legacy(job, expected):
    """Ranks' files, loaded as by Megatron-LM's load_checkpoint."""
    import torch
    from megatron.core import parallel_state

    gpt, optimizer, _, _ = with_optimizer(job)
    sizes = job["topology"]
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02}"
    if sizes["pp"] > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03}"
    if sizes["ep"] > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03}"
    folder = os.path.join(job["path"], name)
    state = torch.load(os.path.join(folder, "model_optim_rng.pt"),
                       weights_only=False)
    gpt.load_state_dict(state["model"], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    if job.get("flat", True):
        optimizer.load_parameter_state(
            os.path.join(folder, "distrib_optim.pt"))
    compare_states(gpt, optimizer, expected)
    require_steps(optimizer, job["step"])


def trainers_args(job, root):
    """The command line of a Megatron-LM run that continues from `root`."""
    import argparse

    import torch
    from megatron.core import parallel_state
    from megatron.training import arguments

    model, sizes = job["model"], job["topology"]
    words = ["--load", root, "--no-load-rng", "--exit-on-missing-checkpoint",
             "--auto-detect-ckpt-format", "--bf16",
             "--num-layers", model["layers"], "--hidden-size", model["hidden"],
             "--num-attention-heads", model["heads"],
             "--tensor-model-parallel-size", sizes["tp"],
             "--pipeline-model-parallel-size", sizes["pp"]]
    words += ["--use-distributed-optimizer"] if job.get("flat", True) else []
    args = arguments.add_megatron_arguments(
        argparse.ArgumentParser(allow_abbrev=False)).parse_args(
            [str(word) for word in words])
    # What its checks of arguments add.
    args.world_size = torch.distributed.get_world_size()
    args.data_parallel_size = parallel_state.get_data_parallel_world_size()
    args.use_dist_ckpt = job["form"] != "torch"
    args.add_position_embedding = True  # where a checkpoint doesn't say
    return args


def run_training(job, expected):
    """Megatron-LM's own load_checkpoint, of a run with the optimizer."""
    import typing

    import typing_extensions
    if not hasattr(typing, "override"):  # it asks for Python 3.12
        typing.override = typing_extensions.override
    from megatron.core.num_microbatches_calculator import (
        init_num_microbatches_calculator)
    from megatron.training import checkpointing, global_vars

    gpt, optimizer, sharded, ddp = with_optimizer(job)
    args = trainers_args(job, job["root"])
    global_vars.set_args(args)
    init_num_microbatches_calculator(0, None, args.data_parallel_size, 1,
                                     args.data_parallel_size)
    iteration, _ = checkpointing.load_checkpoint([ddp], optimizer, None)
    require(iteration == job["step"], f"iteration {iteration}")
    if job["form"] == "torch":
        compare_states(gpt, optimizer, expected)
    else:
        compare_parts(sharded_parts(sharded()), expected, "the trainer")
    require_steps(optimizer, job["step"])


def require_steps(optimizer, count):
    """Checks the optimizers' step counts, by group or by parameter."""
    inner = [one.optimizer for one in getattr(
        optimizer, "chained_optimizers", [optimizer])]
    values = [v for o in inner for v in (*o.param_groups, *o.state.values())]
    steps = {float(v["step"]) for v in values if "step" in v}
    require(steps == {float(count)}, f"steps are {steps}")


# ---------------------------------------------------------------------- main
def on_rank(number, world, rendezvous, job):
    import torch.distributed as dist
    from megatron.core import parallel_state

    if number != 0:  # one report is enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    dist.init_process_group("gloo", rank=number, world_size=world,
                            init_method="file://" + rendezvous)
    topology = {"tp": 1, "pp": 1, "ep": 1, **job.get("topology", {})}
    job["topology"] = topology
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=topology["tp"],
        pipeline_model_parallel_size=topology["pp"],
        expert_model_parallel_size=topology["ep"])
    expected = {
        key.replace("fp32_param", job.get("main_weight", "fp32_param")): value
        for key, value in read_expected(job["expected"]).items()}
    run = {"plain": run_plain, "vocabulary": run_vocabulary, "gpt": run_gpt,
           "optim": run_optim, "save": run_save, "legacy": run_legacy,
           "training": run_training}.get(job["kind"])
    if run:
        run(job, expected)
    else:
        run_keys(job, expected, {
            "tp": parallel_state.get_tensor_model_parallel_rank(),
            "dp": number // topology["tp"]})
    dist.barrier()
    dist.destroy_process_group()


def run_job(job):
    """None, or what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        world = job.get("world", 1)
        return on_processes(on_rank, world, world,
                            os.path.join(scratch, "rendezvous"), job)


def prepare():
    import torch

    torch.set_num_threads(1)
    shim()
    leave_kernels_out()
    import_optimizer()
    for module in ("dist_checkpointing", "models.gpt.gpt_layer_specs",
                   "models.gpt.gpt_model", "distributed", "optimizer"):
        importlib.import_module("megatron.core." + module)


if __name__ == "__main__":
    serve(prepare, run_job)
