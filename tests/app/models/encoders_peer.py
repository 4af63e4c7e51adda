#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BertModel and T5Model of megatron-core on a CPU, built from a checkpoint's
args under Megatron's own names, with its weights. Writes what they compute.
Jobs are those of logits_peer.py, with "model" and its inputs:

    {"model": "BertModel", "tokens", "types", "mask": 1 for what counts}
    {"model": "T5Model", "tokens", "mask", "targets"}
    with "args" in the place of a path: one with random weights that Megatron
        saves itself, in "save"
    {"model": "bert", "weights": file, "config": {…}, …}   BERT's own tensors in
        BertModel's places: its logits, those with
        apply_residual_connection_post_layernorm, and those of layers whose
        residual is what the norm gives
    {"model": "CLIPViTModel", "subtype", "weights", "pixels"}   a tower of
        transformers in its places: what it gives, and what has no place

T5Model's local attention takes no bias. It is replaced by one that adds the
bias to the scaled scores, as Transformer Engine's does (post_scale_bias).
"""

import copy
import os
import tempfile

import logits_peer
from logits_peer import config_of, name_as_transformer_engine, named
from megatron_peer import metadata_of
from peer import on_processes, serve


def bert(args, config):
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel

    binary = args["bert_binary_head"]
    return BertModel(
        config, num_tokentypes=args.get("num_tokentypes") or (2 if binary else 0),
        transformer_layer_spec=bert_layer_local_spec,
        vocab_size=args["padded_vocab_size"],
        max_sequence_length=args["max_position_embeddings"],
        share_embeddings_and_output_weights=not args[
            "untie_embeddings_and_output_weights"],
        position_embedding_type=args["position_embedding_type"],
        add_binary_head=binary, parallel_output=False)


def biased_attention():
    from megatron.core.transformer.dot_product_attention import (
        DotProductAttention)

    class Attention(DotProductAttention):
        def forward(self, query, key, value, attention_mask, attn_mask_type=None,
                    attention_bias=None, **_):
            if attention_bias is None:
                return super().forward(query, key, value, attention_mask)
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            scores = q @ k.transpose(2, 3) * self.softmax_scale + attention_bias
            scores = scores.masked_fill(attention_mask, float("-inf"))
            return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)

    return Attention


def t5(args, config):
    import torch
    from megatron.core.models.T5 import t5_spec
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules)

    def block(layer, layers):
        layer.submodules.self_attention.submodules.core_attention = (
            biased_attention())
        return TransformerBlockSubmodules([layer] * layers,
                                          layer_norm=WrappedTorchNorm)

    if args.get("ckpt_activation") == "gelu_tanh":  # in code
        config.bias_activation_fusion = False
        config.activation_func = lambda x: torch.nn.functional.gelu(
            x, approximate="tanh")
    encoder = copy.deepcopy(config)
    encoder.num_layers = args["encoder_num_layers"]
    config.num_layers = args["decoder_num_layers"]
    return T5Model(
        config, encoder,
        block(t5_spec.encoder_model_with_local_spec(), encoder.num_layers),
        block(t5_spec.decoder_model_with_local_spec(), config.num_layers),
        vocab_size=args["padded_vocab_size"],
        max_sequence_length=args["max_position_embeddings"],
        share_embeddings_and_output_weights=not args[
            "untie_embeddings_and_output_weights"],
        position_embedding_type=args["position_embedding_type"],
        relative_attention_num_buckets=args["relative_attention_num_buckets"],
        relative_attention_max_distance=args["relative_attention_max_distance"],
        parallel_output=False)


def blank(model):
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))


def load(model, path):
    from megatron.core import dist_checkpointing

    blank(model)
    state = {"model": model.sharded_state_dict(metadata=metadata_of())}
    name_as_transformer_engine(state, path)
    loaded, left, unknown = dist_checkpointing.load(state, path,
                                                    strict="return_all")
    # What Transformer Engine keeps beside its modules: local modules have less,
    # and all that they ask for is there.
    left = [key for key in left if not key.endswith("_extra_state")]
    if left or unknown:
        raise AssertionError(f"not of the model: {left}; not there: {unknown}")
    model.load_state_dict(loaded["model"], strict=True)


def save(model, args, path):
    """As Megatron-LM's training does."""
    import argparse

    import torch
    from megatron.core import dist_checkpointing

    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    os.makedirs(path)
    dist_checkpointing.save(
        {"model": model.sharded_state_dict(metadata=metadata_of()),
         "args": argparse.Namespace(**args), "iteration": 3,
         "checkpoint_version": 3.0}, path)


def outputs_of_bert(model, job):
    import torch

    logits, binary = model(
        torch.tensor(job["tokens"]), torch.tensor(job["mask"]),
        tokentype_ids=torch.tensor(job["types"]))
    return logits if binary is None else (logits, binary)


def outputs_of_t5(model, job):
    import torch

    tokens, targets = (torch.tensor(job[k]) for k in ("tokens", "targets"))
    hidden = torch.tensor(job["mask"])[:, None, None] < 1  # True means not seen
    size = targets.shape[1]
    ahead = torch.triu(torch.ones(size, size, dtype=torch.bool), 1)[None, None]
    return model(tokens, targets, hidden, ahead, hidden)


def residual_behind_norm():
    """BERT's own order: a norm's output is the input of attention and MLP, and
    their results are added to it."""
    from megatron.core.transformer.transformer_layer import TransformerLayer

    class Layer(TransformerLayer):
        def forward(self, hidden_states, attention_mask=None, **_):
            for norm, module in ((self.input_layernorm, self.self_attention),
                                 (self.pre_mlp_layernorm, self.mlp)):
                hidden_states = norm(hidden_states)
                more = {} if module is self.mlp else dict(
                    attention_mask=attention_mask)
                result, bias = module(hidden_states, **more)
                hidden_states = hidden_states + result + bias
            return hidden_states, None

    return Layer


def rows_of_heads(parts, heads):
    """q, k and v of each head, in linear_qkv's order."""
    import torch

    cut = [part.reshape(heads, 1, -1, *part.shape[1:]) for part in parts]
    return torch.cat(cut, 1).reshape(-1, *parts[0].shape[1:])


def state_of_bert(path, layers, heads):
    """BERT's tensors where BertModel has one of that shape and place: the norm
    after one module is the one before the next."""
    from safetensors.torch import load_file

    had = load_file(path)
    state, e = {}, "bert.embeddings."

    def put(name, source):
        for what in ("weight", "bias"):
            if f"{source}.{what}" in had:
                state[f"{name}.{what}"] = had.pop(f"{source}.{what}")

    for to in ("word", "position"):
        put(f"embedding.{to}_embeddings", f"{e}{to}_embeddings")
    put("embedding.tokentype_embeddings", f"{e}token_type_embeddings")
    norms = [f"{e}LayerNorm"]
    for i in range(layers):
        h, m = f"bert.encoder.layer.{i}.", f"encoder.layers.{i}."
        a = h + "attention."
        for what in ("weight", "bias"):
            state[m + f"self_attention.linear_qkv.{what}"] = rows_of_heads(
                [had.pop(f"{a}self.{x}.{what}")
                 for x in ("query", "key", "value")], heads)
        put(m + "self_attention.linear_proj", a + "output.dense")
        put(m + "mlp.linear_fc1", h + "intermediate.dense")
        put(m + "mlp.linear_fc2", h + "output.dense")
        norms += [a + "output.LayerNorm", h + "output.LayerNorm"]
    places = [f"encoder.layers.{i}.{x}_layernorm" for i in range(layers)
              for x in ("input", "pre_mlp")] + ["encoder.final_layernorm"]
    for place, norm in zip(places, norms, strict=True):
        put(place, norm)
    put("lm_head.dense", "cls.predictions.transform.dense")
    put("lm_head.layer_norm", "cls.predictions.transform.LayerNorm")
    put("pooler.dense", "bert.pooler.dense")
    put("binary_head", "cls.seq_relationship")
    state["output_layer.bias"] = had.pop("cls.predictions.bias")
    if had:
        raise AssertionError(f"not put anywhere: {sorted(had)}")
    return state


def orders_of_bert(job):
    from megatron.core.models.bert import bert_layer_specs

    args = {**logits_peer.PARSER, **job["config"]}
    results = []
    usual = bert_layer_specs.bert_layer_local_spec
    for after, kind in ((False, None), (True, None),
                        (False, residual_behind_norm())):
        config = config_of(args)
        config.apply_residual_connection_post_layernorm = after
        spec = copy.copy(usual)
        if kind is not None:
            spec.module = kind
        bert_layer_specs.bert_layer_local_spec = spec
        model = bert(args, config)
        bert_layer_specs.bert_layer_local_spec = usual
        blank(model)
        kept = model.load_state_dict(
            state_of_bert(job["weights"], args["num_layers"],
                          args["num_attention_heads"]), strict=False)
        left = [key for key in kept.missing_keys
                if not key.endswith("_extra_state")]
        if left or kept.unexpected_keys:
            raise AssertionError(f"{left}, {kept.unexpected_keys}")
        results.append(outputs_of_bert(model.eval(), job)[0])
    return results


# transformers' names for the parts of a tower; of a layer, those after its
# number.
TOWER = {
    "class_embedding": "class_token", "cls_token": "class_token",
    "patch_embedding": "conv1", "patch_embeddings.projection": "conv1",
    "position_embedding": "position_embeddings", "pre_layrnorm": "ln_pre",
    "position_embeddings": "position_embeddings.weight"}
TOWER_LAYER = {
    "layer_norm1": "input_layernorm", "layernorm_before": "input_layernorm",
    "layer_norm2": "pre_mlp_layernorm", "layernorm_after": "pre_mlp_layernorm",
    "out_proj": "self_attention.linear_proj",
    "attention.output.dense": "self_attention.linear_proj",
    "mlp.fc1": "mlp.linear_fc1", "intermediate.dense": "mlp.linear_fc1",
    "mlp.fc2": "mlp.linear_fc2", "output.dense": "mlp.linear_fc2"}


def tower(job):
    """What CLIPViTModel computes from a tower, and the names that have no
    place."""
    import re

    import torch
    from megatron.core.models.vision.clip_vit_model import CLIPViTModel
    from megatron.core.models.vision.vit_layer_specs import (
        get_vit_layer_with_local_spec)
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from safetensors.torch import load_file

    config = config_of({**logits_peer.PARSER, **job["config"]})
    own = job["subtype"] != "siglip"
    model = CLIPViTModel(
        config, get_vit_layer_with_local_spec(), ln_pre_impl=WrappedTorchNorm,
        ln_post_impl=WrappedTorchNorm, add_class_token=own,
        class_token_len=int(own), patch_dim=8, img_h=32, img_w=32,
        model_subtype=job["subtype"])
    blank(model)
    places, state, left, qkv = model.state_dict(), {}, [], {}
    after = {"post_layernorm": "ln_post"} if job["subtype"] == "siglip" else {}
    for name, value in load_file(job["weights"]).items():
        found = re.search(r"layers?\.(\d+)\.(.*)\.(weight|bias)$", name)
        if found:
            layer, part, what = found.groups()
            prefix = f"decoder.layers.{layer}."
            which = re.search(r"(query|key|value|[qkv]_proj)$", part)
            if which:
                at = prefix + "self_attention.linear_qkv." + what
                qkv.setdefault(at, {})[which[1][0]] = value
                continue
            to = next((prefix + to + "." + what for end, to in
                       TOWER_LAYER.items() if part.endswith(end)), None)
        else:
            to = next((to + name[name.index(word) + len(word):]
                       for word, to in {**TOWER, **after}.items()
                       if re.search(rf"(^|\.){re.escape(word)}(\.|$)", name)
                       and "head" not in name), None)
        if to is None or to not in places:
            left.append(name)
        else:
            state[to] = value.reshape(places[to].shape)
    for name, parts in qkv.items():
        state[name] = rows_of_heads([parts[x] for x in "qkv"],
                                    config.num_attention_heads)
    told = model.load_state_dict(state, strict=False)
    lacking = [key for key in told.missing_keys
               if not key.endswith("_extra_state")]
    if lacking:
        raise AssertionError(f"no such tensor: {lacking}")
    seen = torch.zeros(1, 1, model.seq_length, model.seq_length,
                       dtype=torch.bool)
    return model.eval()(torch.tensor(job["pixels"]), seen), sorted(left)


def on_rank(_, rendezvous, job):
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    dist.init_process_group("gloo", rank=0, world_size=1,
                            init_method="file://" + rendezvous)
    parallel_state.initialize_model_parallel()
    with torch.no_grad():
        if job["model"] == "bert":
            outputs = orders_of_bert(job)
        elif job["model"] == "CLIPViTModel":
            outputs = tower(job)
        else:
            if "args" in job:
                args = {**logits_peer.PARSER, **job["args"]}
            else:
                path, args = named(job["path"], job["flags"], job["code"])
            if job.get("flags") is not None:  # switches not named are off
                args.setdefault("bert_binary_head", True)
                args.setdefault("encoder_num_layers", args["num_layers"])
            make, run = {"BertModel": (bert, outputs_of_bert),
                         "T5Model": (t5, outputs_of_t5)}[job["model"]]
            model = make(args, config_of(args))
            if "args" in job:
                save(model, args, job["save"])
            else:
                load(model, path)
            outputs = run(model.eval(), job)
        torch.save(outputs, job["out"])
    dist.destroy_process_group()


def run_job(job):
    """None, or what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        return on_processes(on_rank, 1, os.path.join(scratch, "rendezvous"),
                            job)


if __name__ == "__main__":
    serve(logits_peer.prepare, run_job)
