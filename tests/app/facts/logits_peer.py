#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPTModel of megatron-core on CPUs, built from a checkpoint's args under
Megatron's own names, with its weights. Writes its logits. Jobs:

    {"path": checkpoint, "tokens": [[…]], "out": file,
     "flags": null, or what is given beside --use-checkpoint-args,
     "code": what is set in code, as Megatron-LM has no flag for it,
     "ranks": tensor-parallel ones, or nothing for one}

Without flags the configuration is all of the checkpoint's args. With flags it
is that of Megatron-LM's training: its parser's defaults, the args that
--use-checkpoint-args reads, and the flags.
"""

import argparse
import ast
import contextlib
import dataclasses
import glob
import importlib
import os
import tempfile

from megatron_peer import leave_kernels_out, metadata_of, shim
from peer import on_processes, serve

# What load_args_from_checkpoint of Megatron-LM core_v0.16.1 reads.
READ = """num_layers hidden_size ffn_hidden_size seq_length num_attention_heads
num_query_groups group_query_attention kv_channels max_position_embeddings
position_embedding_type add_position_embedding use_rotary_position_embeddings
rotary_base rotary_percent rotary_interleaved add_bias_linear add_qkv_bias
squared_relu swiglu untie_embeddings_and_output_weights apply_layernorm_1p
normalization apply_query_key_layer_scaling num_experts moe_layer_freq
moe_ffn_hidden_size moe_router_topk moe_router_pre_softmax
moe_shared_expert_intermediate_size moe_router_score_function
moe_router_enable_expert_bias moe_router_topk_scaling_factor
heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json
moe_latent_size padded_vocab_size""".split()
# Its parser's defaults that differ from those of TransformerConfig and
# MLATransformerConfig, or for names that these don't have.
PARSER = dict(
    position_embedding_type="learned_absolute", rotary_base=10000,
    rotary_percent=1.0, rotary_scaling_factor=1.0, kv_lora_rank=32,
    q_lora_rank=None, use_rope_scaling=False, rope_scaling_factor=8.0,
    rotary_seq_len_interpolation_factor=None, swiglu=False,
    squared_relu=False, quick_geglu=False, bias_gelu_fusion=True,
    untie_embeddings_and_output_weights=False, num_experts=None,
    num_query_groups=1, group_query_attention=False, normalization="LayerNorm",
    rope_type=None, multi_latent_attention=False)
# Where a job runs, which doesn't change the function.
PLACE = dict(
    use_cpu_initialization=True, perform_initialization=False,
    gradient_accumulation_fusion=False, persist_layer_norm=False,
    bias_dropout_fusion=False, masked_softmax_fusion=False,
    apply_rope_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
    pipeline_model_parallel_size=1, expert_model_parallel_size=1,
    sequence_parallel=False,
    expert_tensor_parallel_size=1, moe_grouped_gemm=False,
    moe_token_dispatcher_type="allgather", fp16=False, bf16=False)
# The parser's forms for what isn't a string, number or switch.
FORMS = {"--window-size": lambda text: tuple(
            int(i) for i in text.strip("()").split(",")),
         "--window-attn-skip-freq": ast.literal_eval,
         "--no-rope-freq": ast.literal_eval,
         "--linear-attention-freq": ast.literal_eval,
         "--rotary-seq-len-interpolation-factor": int}


def parsed(flags):
    """The flags as Megatron-LM's parser reads them: those for a configuration's
    fields are generated from the fields."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig, TransformerConfig)

    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS,
                                     allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--use-rope-scaling", action="store_true")
    parser.add_argument("--quick-geglu", action="store_true")
    parser.add_argument("--rope-scaling-factor", type=float)
    parser.add_argument("--bert-no-binary-head", action="store_false",
                        dest="bert_binary_head")
    for flag in ("--decoder-num-layers", "--relative-attention-num-buckets",
                 "--relative-attention-max-distance"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--no-bias-gelu-fusion", action="store_false",
                        dest="bias_gelu_fusion")
    for flag, form in FORMS.items():
        parser.add_argument(flag, type=form)
    without = ("softmax_scale", "gated_linear_unit", "beta_fast", "beta_slow",
               "original_max_position_embeddings", "window_size",
               "window_attn_skip_freq", "num_moe_experts", "rotary_base",
               "rotary_percent", "persist_layer_norm", "no_rope_freq",
               "linear_attention_freq")
    general = {f.name: f for f in dataclasses.fields(TransformerConfig)}
    own = {f.name: f for f in dataclasses.fields(MLATransformerConfig)}
    for field in {**own, **general}.values():
        if field.name in without:
            continue
        meta = field.metadata.get("argparse_meta", {})
        names = meta.get("arg_names",
                         ["--" + field.name.replace("_", "-")])
        kind = str(field.type)
        if field.type is bool:
            parser.add_argument(
                *names, dest=field.name, action="store_false"
                if field.default is True else "store_true")
        else:
            parser.add_argument(
                *names, dest=field.name, type=int if "int" in kind else
                float if "float" in kind else str)
    known, unknown = parser.parse_known_args(flags)
    if unknown:
        raise AssertionError(f"Megatron-LM has no {unknown}")
    return vars(known)


def named(path, flags, code):
    """{name: value} of the model's configuration."""
    import torch

    [common] = glob.glob(os.path.join(path, "**/common.pt"), recursive=True)
    args = vars(torch.load(common, weights_only=False)["args"])
    if flags is not None:
        args = {name: args[name] for name in READ
                if args.get(name) is not None}
        args.update(parsed(flags), **code)
        args = {**PARSER, **args}
    else:
        # A missing name gets the parser's default where the class has none;
        # 0.16 stores the epsilon under the field's name.
        args = {**{k: v for k, v in PARSER.items() if k not in (
            "rotary_scaling_factor", "kv_lora_rank", "q_lora_rank")}, **args}
    return os.path.dirname(common), args


def config_of(args):
    """As core_transformer_config_from_args does."""
    import torch
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.transformer import transformer_config as classes

    kind = classes.TransformerConfig
    if args["multi_latent_attention"]:
        kind = classes.MLATransformerConfig
    if args.get("heterogeneous_layers_config_encoded_json"):
        from megatron.core.transformer.heterogeneous.heterogeneous_config import (
            HeterogeneousTransformerConfig)

        kind = HeterogeneousTransformerConfig
    known = {f.name for f in dataclasses.fields(kind)}
    values = {k: v for k, v in args.items() if k in known}
    values.update(PLACE, params_dtype=torch.float32,
                  pipeline_dtype=torch.float32, tensor_model_parallel_size=args
                  .get("tensor_model_parallel_size", 1))
    if args.get("experimental_attention_variant"):
        values.update(deterministic_mode=True, transformer_impl="local")
    values["num_moe_experts"] = args["num_experts"]
    if not args["group_query_attention"]:
        values["num_query_groups"] = None
    if values.get("window_size") is not None:
        values["window_size"] = tuple(values["window_size"])
    if args["rope_type"] is None:
        values.pop("rope_type", None)
    functional = torch.nn.functional
    values["activation_func"] = functional.gelu
    if args["swiglu"]:
        values.update(activation_func=functional.silu, gated_linear_unit=True)
    elif args["squared_relu"]:
        values["activation_func"] = squared_relu
    elif args["quick_geglu"]:
        values.update(activation_func=quick_gelu, gated_linear_unit=True)
    values["bias_activation_fusion"] = (
        not args["swiglu"] and bool(args["bias_gelu_fusion"]))
    if args.get("ckpt_activation") == "relu":  # no flag says it
        values["activation_func"] = functional.relu
    config = kind(**values)
    for name, value in args.items():
        if name.startswith("yarn_"):  # GPTModel reads them off it
            setattr(config, name, value)
    return config


def built(args):
    """As Megatron-LM's gpt_builder does, with the local modules."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel

    config = config_of(args)
    if args.get("experimental_attention_variant"):
        from megatron.core.models.gpt import (
            experimental_attention_variant_module_specs as variants)

        spec = variants.get_transformer_block_with_experimental_attention_variant_spec(
            config)
    elif args.get("heterogeneous_layers_config_encoded_json"):
        from megatron.core.models.gpt.heterogeneous import (
            heterogeneous_layer_specs)

        spec = heterogeneous_layer_specs.get_gpt_heterogeneous_layer_spec(config)
    elif args["num_experts"]:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False,
            normalization=args["normalization"])
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            None, False, config.qk_layernorm, config.multi_latent_attention,
            normalization=args["normalization"])
    if config.multi_latent_attention and (
            args.get("experimental_attention_variant") is None):
        for layer in getattr(spec, "layer_specs", [spec]):
            layer.submodules.self_attention.submodules.core_attention = (
                attention_of_two_widths())
    return GPTModel(
        config, spec, vocab_size=args["padded_vocab_size"],
        max_sequence_length=args["max_position_embeddings"],
        share_embeddings_and_output_weights=not args[
            "untie_embeddings_and_output_weights"],
        position_embedding_type=args["position_embedding_type"],
        rotary_percent=args["rotary_percent"], rotary_base=args["rotary_base"],
        rope_scaling=args["use_rope_scaling"],
        rope_scaling_factor=args["rope_scaling_factor"] or 8.0,
        seq_len_interpolation_factor=args[
            "rotary_seq_len_interpolation_factor"], parallel_output=False)


# Names of local modules, and of Transformer Engine's modules, which combine a
# norm with what comes after it: checkpoints have the latter.
FUSED_MLP = (("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."),
             ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"))
FUSED = (*FUSED_MLP,
         ("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
         ("input_layernorm.", "self_attention.in_proj.layer_norm_"),
         (".q_layernorm.", ".linear_q_up_proj.layer_norm_"),
         (".kv_layernorm.", ".linear_kv_up_proj.layer_norm_"))


def name_as_transformer_engine(state, path, sparse=False):
    """In attention with an indexer no norm is fused with anything."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.dict_utils import nested_values

    there = dist_checkpointing.load_tensors_metadata(path)
    for part in nested_values(state):
        key = getattr(part, "key", "")
        if key and key not in there:
            pairs = FUSED_MLP if sparse else FUSED
            part.key = next((key.replace(*pair) for pair in pairs
                             if key.replace(*pair) in there), key)


def norms_from_one():
    """torch's norms, with weights relative to one where the configuration says
    so: 0.16 has them only in Transformer Engine's."""
    import torch
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    made = WrappedTorchNorm.__new__

    class Shifted(torch.nn.LayerNorm):
        def forward(self, x):
            return torch.nn.functional.layer_norm(
                x, self.normalized_shape, self.weight + 1, self.bias, self.eps)

    class ShiftedRMS(torch.nn.RMSNorm):
        def forward(self, x):
            return torch.nn.functional.rms_norm(
                x, self.normalized_shape, self.weight + 1, self.eps)

    def new(cls, config, hidden_size, eps=1e-5, **more):
        if not config.layernorm_zero_centered_gamma:
            return made(cls, config=config, hidden_size=hidden_size, eps=eps,
                        **more)
        kind = Shifted if config.normalization == "LayerNorm" else ShiftedRMS
        return kind(hidden_size, eps=eps)

    WrappedTorchNorm.__new__ = new


def attention_of_two_widths():
    """0.16's own attention takes no values of another width than the keys: this
    stands in for Transformer Engine's."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self, softmax_scale, **_):
            super().__init__()
            self.scale = softmax_scale

        def forward(self, query, key, value, attention_mask, **_):
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            scores = q @ k.transpose(2, 3) * self.scale
            hidden = scores.masked_fill(attention_mask, float("-inf"))
            return (hidden.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)

    return Attention


def variants_on_cpu():
    """Delta nets and sparse attention of Megatron-Core, whose own torch code
    runs instead of kernels. Their specs are those of Transformer Engine; here
    a norm is a module beside the projection that holds it there.
    """
    import torch
    from megatron.core.models import backends
    from megatron.core.models.gpt import (
        experimental_attention_variant_module_specs as variants)
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.ssm import gated_delta_net
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer.experimental_attention_variant import dsa

    class Duplicated(torch.nn.Linear):
        """The same on all ranks."""

        def __init__(self, inputs, outputs, bias, **_):
            super().__init__(inputs, outputs, bias=bias)

        def forward(self, x):
            return super().forward(x), None

    class Modules(backends.LocalSpecProvider):
        def linear(self):
            return Duplicated

        def column_parallel_layer_norm_linear(self):
            return ColumnParallelLinear

    variant = variants.get_experimental_attention_variant_module_spec

    def alone(config, backend):
        spec = variant(config=config, backend=backend)
        spec.metainfo["fuse_input_layernorm"] = False
        return spec

    def usual(config, backend):
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            config.num_moe_experts, False, config.qk_layernorm,
            normalization=config.normalization).submodules.self_attention
        spec.metainfo["fuse_input_layernorm"] = False
        return spec

    def l2norm(x, dim=-1, eps=1e-6):
        return x / (x.square().sum(dim, keepdim=True) + eps).sqrt()

    def rotated(x):
        """Times the Hadamard matrix of its size, scaled to be orthogonal."""
        matrix = torch.ones(1, 1)
        while len(matrix) < x.shape[-1]:
            matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        return x @ matrix / x.shape[-1] ** 0.5

    variants._get_backend_spec_provider = lambda config: Modules()
    variants.get_experimental_attention_variant_module_spec = alone
    variants._get_self_attention_module_spec = usual
    for module in (gated_delta_net, getattr(gated_delta_net, "common", None)):
        if module is not None:
            module.HAVE_FLA, module.l2norm = True, l2norm
    dsa.rotate_activation = rotated
    with contextlib.suppress(ImportError):  # 0.19
        from megatron.core.transformer.experimental_attention_variant import (
            absorbed_mla)

        absorbed_mla.TELinear = Duplicated


def on_rank(rank, ranks, rendezvous, job):
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state

    dist.init_process_group("gloo", rank=rank, world_size=ranks,
                            init_method="file://" + rendezvous)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    path, args = named(job["path"], job["flags"], job["code"])
    args["tensor_model_parallel_size"] = ranks
    model = built(args)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    metadata = metadata_of()
    state = {"model": model.sharded_state_dict(metadata=metadata)}
    name_as_transformer_engine(
        state, path, args.get("experimental_attention_variant") == "dsa")
    loaded, left, unknown = dist_checkpointing.load(state, path,
                                                    strict="return_all")
    # What Transformer Engine keeps beside its modules; these have none.
    left = [key for key in left if not key.endswith("_extra_state")]
    # For a matrix in place of a block: it is empty.
    unknown = [key for key in unknown if not key.endswith("_extra_state")]
    if left or unknown:
        raise AssertionError(f"not of the model: {left}; not there: {unknown}")
    model.load_state_dict(loaded["model"], strict=True)
    model.eval()
    tokens = torch.tensor(job["tokens"])
    places = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    ahead = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1],
                                  dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        logits = model(tokens, places, ahead)
    if rank == 0:
        torch.save(logits, job["out"])
    dist.destroy_process_group()


def run_job(job):
    """None, or what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        ranks = job.get("ranks", 1)
        return on_processes(on_rank, ranks, ranks,
                            os.path.join(scratch, "rendezvous"), job)


def prepare():
    import torch

    torch.set_num_threads(1)
    shim()
    leave_kernels_out()
    for module in ("dist_checkpointing", "models.gpt.gpt_layer_specs",
                   "models.gpt.gpt_model", "tensor_parallel.random"):
        importlib.import_module("megatron.core." + module)
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    # Names that 0.16 asks for where Transformer Engine is not installed.
    import megatron.core.transformer.moe.moe_utils as moe
    import megatron.core.transformer.multi_latent_attention as mla

    moe.te_general_gemm = None
    mla.TELinear = mla.TEColumnParallelLinear = type("Absent", (), {})
    norms_from_one()
    variants_on_cpu()
    # Nothing is random: no dropout.
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()


if __name__ == "__main__":
    serve(prepare, run_job)
