#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Megatron-LM's forks and of its other layers, as their modules
cut and arrange rows: TransformerEngine's TransformerLayer, Megatron-LLM,
Megatron-DeepSpeed before it described its slices, torch_dcp of FSDP2, files of
checkpoint_version 0 without args.

Small random Llamas are cut by each peer's own rules (the classes are named
where they are), converted, and compared bit for bit. An arg that changes the
model and has no word in Megatron-LM is refused by its name; sizes that fit two
ways are refused.
"""

import argparse
import enum
import json
import random
import sys
import types
from pathlib import Path

from support import Suite, check, check_equal

CKPT = None
ROOT = Path(__file__).resolve().parents[3]
TO_HF = ("--to", "safetensors", "--family", "llama", "--config-from")


class Kind(enum.Enum):
    ODD = 7


def torch():
    import torch as module

    return module


class Llama:
    """Numbers and weights of a small model, under transformers' names."""

    def __init__(self, seed):
        pick = random.Random(seed)
        self.tp = pick.choice((1, 2, 4))
        self.groups = self.tp * pick.choice((1, 2))
        self.heads = self.groups * pick.choice((1, 2, 3))
        self.each = pick.choice((4, 8, 6))
        self.hidden = self.heads * self.each
        self.ffn = self.tp * pick.choice((5, 12, 7))
        self.rows = self.tp * pick.choice((16, 24))
        self.layers = pick.choice((1, 2, 3))
        self.random = torch().Generator().manual_seed(seed)
        self.state = self.weights()

    def make(self, *shape):
        t = torch()
        return t.randn(shape, generator=self.random).to(t.bfloat16)

    def weights(self):
        h, q, kv = self.hidden, self.heads * self.each, self.groups * self.each
        state = {"model.embed_tokens.weight": self.make(self.rows, h),
                 "model.norm.weight": self.make(h),
                 "lm_head.weight": self.make(self.rows, h)}
        for layer in range(self.layers):
            for name, shape in (
                    ("input_layernorm", (h,)), ("post_attention_layernorm", (h,)),
                    ("self_attn.q_proj", (q, h)), ("self_attn.k_proj", (kv, h)),
                    ("self_attn.v_proj", (kv, h)), ("self_attn.o_proj", (h, q)),
                    ("mlp.gate_proj", (self.ffn, h)),
                    ("mlp.up_proj", (self.ffn, h)),
                    ("mlp.down_proj", (h, self.ffn))):
                state[f"model.layers.{layer}.{name}.weight"] = self.make(*shape)
        return state

    def of(self, layer, name):
        return self.state[f"model.layers.{layer}.{name}.weight"]

    def cut(self, tensor, dim, rank):
        return tensor.chunk(self.tp, dim)[rank].contiguous()

    def fused(self, layer, turned=lambda rows: rows):
        """[q … q, k, v] of each group."""
        t, e = torch(), self.each
        q, k, v = (self.of(layer, f"self_attn.{x}_proj") for x in "qkv")
        queries, each = self.heads // self.groups, []
        for g in range(self.groups):
            each += [turned(q[i * e:(i + 1) * e])
                     for i in range(g * queries, (g + 1) * queries)]
            each += [turned(k[g * e:(g + 1) * e]), v[g * e:(g + 1) * e]]
        return t.cat(each)

    def gated(self, layer, rank, first="gate", second="up"):
        """Each rank has its part of both halves."""
        return torch().cat([self.cut(self.of(layer, f"mlp.{x}_proj"), 0, rank)
                            for x in (first, second)])

    def config(self, folder):
        (folder / "cfg").mkdir(exist_ok=True)
        (folder / "cfg/config.json").write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "head_dim": self.each,
            "num_key_value_heads": self.groups, "intermediate_size": self.ffn,
            "vocab_size": self.rows, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": False, "torch_dtype": "bfloat16"}))
        return folder / "cfg"

    def args(self):
        """Words that the forks have in common with Megatron-LM."""
        return {"num_layers": self.layers, "hidden_size": self.hidden,
                "num_attention_heads": self.heads, "kv_channels": self.each,
                "ffn_hidden_size": self.ffn, "padded_vocab_size": self.rows,
                "max_position_embeddings": 64, "seq_length": 64,
                "layernorm_epsilon": 1e-5, "tensor_model_parallel_size": self.tp,
                "pipeline_model_parallel_size": 1, "bf16": True,
                "params_dtype": torch().bfloat16, "iteration": 10}


# ---------------------------------------------------------------- the writers
def legacy(folder, model, args, language):
    """language(rank): the dict of a rank's language_model."""
    step = folder / "run/iter_0000010"
    for rank in range(model.tp):
        (step / f"mp_rank_{rank:02}").mkdir(parents=True)
        torch().save({"args": argparse.Namespace(**args),
                      "checkpoint_version": 3.0, "iteration": 10,
                      "model": {"language_model": language(rank)}},
                     step / f"mp_rank_{rank:02}/model_optim_rng.pt")
    (folder / "run/latest_checkpointed_iteration.txt").write_text("10")
    return folder / "run"


def ends(model, rank):
    cut, state = model.cut, model.state
    return (cut(state["model.embed_tokens.weight"], 0, rank),
            state["model.norm.weight"], cut(state["lm_head.weight"], 0, rank))


def te_layer(folder, model, change=None):
    """megatron.legacy with transformer_engine.pytorch.TransformerLayer:
    MultiheadAttention's layernorm_qkv and proj, LayerNormMLP's fc1 and fc2."""
    args = model.args() | {
        "swiglu": True, "normalization": "RMSNorm", "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True,
        "position_embedding_type": "rope", "rotary_base": 10000,
        "use_rotary_position_embeddings": True, "rotary_percent": 1.0,
        "group_query_attention": model.groups != model.heads,
        "num_query_groups": model.groups,
        "transformer_impl": "transformer_engine"} | (change or {})
    empty = torch().empty(0, dtype=torch().uint8)

    def language(rank):
        rows, norm, head = ends(model, rank)
        encoder = {"final_norm.weight": norm}
        for i in range(model.layers):
            at, mlp = f"layers.{i}.self_attention.", f"layers.{i}.layernorm_mlp."
            encoder |= {
                at + "layernorm_qkv.layer_norm_weight":
                    model.of(i, "input_layernorm"),
                at + "layernorm_qkv.weight": model.cut(model.fused(i), 0, rank),
                at + "layernorm_qkv._extra_state": empty,
                at + "core_attention._extra_state": empty,
                at + "proj.weight": model.cut(
                    model.of(i, "self_attn.o_proj"), 1, rank),
                mlp + "layer_norm_weight":
                    model.of(i, "post_attention_layernorm"),
                mlp + "fc1_weight": model.gated(i, rank),
                mlp + "fc2_weight": model.cut(
                    model.of(i, "mlp.down_proj"), 1, rank),
                mlp + "_extra_state": empty}
        return {"embedding": {"word_embeddings": {"weight": rows}},
                "encoder": encoder, "output_layer": {"weight": head}}
    return legacy(folder, model, args, language)


def pairs_of(rows):
    """A head's rows, halves of its rotation made pairs (apply_rotary_emb of
    Megatron-LLM views two neighbours as one complex number)."""
    half = rows.shape[0] // 2
    return torch().stack([rows[:half], rows[half:]], 1).flatten(0, 1)


def megatron_llm(folder, model, change=None):
    """epfLLM's Megatron-LLM: megatron/arguments.py, model/transformer.py,
    model/glu_activations.py (x1 * act(x2)), model/language_model.py (lm_head is
    a parameter)."""
    args = model.args() | {
        "num_attention_heads_kv": model.groups, "use_rms_norm": True,
        "glu_activation": "swiglu", "use_bias": False, "tie_embed_logits": False,
        "position_embedding_type": "PositionEmbeddingType.rotary",
        "parallel_attn": False, "parallel_layernorm": False,
        "use_post_ln": False, "rope_theta": 10000.0, "rope_scaling_factor": 1.0,
        "apply_residual_connection_post_layernorm": False,
        "sliding_window_size": None} | (change or {})

    def language(rank):
        rows, norm, head = ends(model, rank)
        encoder = {"final_layernorm.weight": norm}
        for i in range(model.layers):
            at = f"layers.{i}."
            encoder |= {
                at + "attention.query_key_value.weight": model.cut(
                    model.fused(i, pairs_of), 0, rank),
                at + "attention.dense.weight": model.cut(
                    model.of(i, "self_attn.o_proj"), 1, rank),
                at + "input_layernorm.weight": model.of(i, "input_layernorm"),
                at + "post_attention_layernorm.weight":
                    model.of(i, "post_attention_layernorm"),
                at + "mlp.dense_h_to_4h.weight": model.gated(
                    i, rank, "up", "gate"),
                at + "mlp.dense_4h_to_h.weight": model.cut(
                    model.of(i, "mlp.down_proj"), 1, rank)}
        return {"embedding": {"word_embeddings.weight": rows},
                "transformer": encoder, "lm_head": head}
    return legacy(folder, model, args, language)


def deepspeed(folder, model, change=None, whole=()):
    """Megatron-DeepSpeed with grouped queries: ParallelAttention's query and
    key_value ([np, 2 * hn], split in the last dimension). No
    universal_checkpoint_info. whole: modules that each rank has whole, as
    Falcon's key_value in the forks that replicate it."""
    args = model.args() | {
        "num_key_value_heads": model.groups, "swiglu": True,
        "normalization": "rmsnorm", "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True, "num_experts": [1],
        "use_rotary_position_embeddings": True,
        "deepspeed_config": "ds.json"} | (change or {})
    for gone in [key for key, value in args.items() if value == "absent"]:
        del args[gone]
    step = folder / "run/global_step5"
    step.mkdir(parents=True)
    (folder / "run/latest").write_text("global_step5")
    t, e = torch(), model.each
    for rank in range(model.tp):
        def cut(tensor, dim, module="", rank=rank):
            return tensor if module in whole else model.cut(tensor, dim, rank)
        rows, norm, head = ends(model, rank)
        encoder = {"final_layernorm.weight": norm}
        for i in range(model.layers):
            at = f"layers.{i}."
            k, v = (model.of(i, f"self_attn.{x}_proj") for x in "kv")
            both = t.cat([x[g * e:(g + 1) * e] for g in range(model.groups)
                          for x in (k, v)])
            encoder |= {
                at + "input_layernorm.weight": model.of(i, "input_layernorm"),
                at + "self_attention.query.weight": cut(
                    model.of(i, "self_attn.q_proj"), 0),
                at + "self_attention.key_value.weight": cut(
                    both, 0, "key_value"),
                at + "self_attention.dense.weight": cut(
                    model.of(i, "self_attn.o_proj"), 1),
                at + "post_attention_layernorm.weight":
                    model.of(i, "post_attention_layernorm"),
                at + "mlp.dense_h_to_4h.weight": model.gated(i, rank),
                at + "mlp.dense_4h_to_h.weight": cut(
                    model.of(i, "mlp.down_proj"), 1)}
        state = {"module": {"language_model": {
            "embedding": {"word_embeddings": {"weight": rows}},
            "encoder": encoder, "output_layer": {"weight": head}}},
            "buffer_names": [], "optimizer": None, "param_shapes": None,
            "frozen_param_shapes": None, "frozen_param_fragments": None,
            "shared_params": [], "lr_scheduler": None, "skipped_steps": 0,
            "global_steps": 5, "dp_world_size": 1, "mp_world_size": model.tp,
            "ds_config": {}, "ds_version": "0.10.0",
            "args": argparse.Namespace(**args), "checkpoint_version": 3.0,
            "iteration": 5}
        t.save(state, step / f"mp_rank_{rank:02}_model_states.pt")
    return folder / "run"


def pipeline(folder, model, change=None, number=lambda at: at + 3):
    """The same as PipelineModule saves it: a file for each module and rank;
    modules without parameters have a number, and no file."""
    run = deepspeed(folder, model, change)
    for file in sorted(run.glob("*/mp_rank_*_model_states.pt")):
        rank = int(file.name.split("_")[2])
        state = torch().load(file, weights_only=False)
        parts = state["module"]["language_model"]
        last = number(model.layers) + 1
        modules = {number(-1) - 1: {
            "word_embeddings.weight":
                parts["embedding"]["word_embeddings"]["weight"]},
            last: {"weight": parts["encoder"].pop("final_layernorm.weight")},
            last + 1: {"lm_head.weight": parts["output_layer"]["weight"]}}
        for name, tensor in parts["encoder"].items():
            _, layer, rest = name.split(".", 2)
            modules.setdefault(number(int(layer)), {})[rest] = tensor
        for at, module in modules.items():
            torch().save(module, file.with_name(
                f"layer_{at:02}-model_{rank:02}-model_states.pt"))
        torch().save(state | {"module": None}, file)
    return run


WRITERS = {"Megatron-DeepSpeed's pipeline": pipeline,
           "TransformerLayer": te_layer, "Megatron-LLM": megatron_llm,
           "Megatron-DeepSpeed": deepspeed}


# --------------------------------------------------------------------- checks
def load(folder):
    from safetensors.torch import load_file

    found = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def check_model(out, model, what):
    got = load(out)
    check_equal(sorted(got), sorted(model.state), f"{what}: names")
    for name, tensor in model.state.items():
        check(torch().equal(got[name], tensor), f"{what}: {name}")


def test_random(folder, write, seed):
    model = Llama(seed)
    run = write(folder, model)
    cfg = model.config(folder)
    out = folder / "hf"
    CKPT.ok("convert", run, out, *TO_HF, cfg)
    check_model(out, model, f"seed {seed}")
    CKPT.ok("verify", run)


def test_resharded(folder, write):
    """Ranks' files for other numbers of ranks keep the fork's rows and args."""
    model = Llama(5)
    check(model.tp > 1, "a seed with several ranks")
    run = write(folder, model)
    cfg = model.config(folder)
    for tp in (1, 2):
        CKPT.ok("reshard", run, folder / f"tp{tp}", "--tp", str(tp))
        CKPT.ok("convert", folder / f"tp{tp}", folder / f"hf{tp}", *TO_HF, cfg)
        check_model(folder / f"hf{tp}", model, f"tp {tp}")


# An arg of Megatron-LLM, a value, and a word of the refusal.
OTHER_MODELS = (("parallel_attn", True), ("parallel_layernorm", True),
                ("use_post_ln", True), ("use_multiquery_attn", True),
                ("apply_residual_connection_post_layernorm", True),
                ("sliding_window_size", 4096), ("glu_activation", "liglu"),
                ("glu_activation", "reglu"))
# Facts that Megatron-LM has words for: another model than the configuration.
OTHER_FACTS = (("use_rms_norm", False), ("glu_activation", "geglu"),
               ("use_bias", True), ("tie_embed_logits", True),
               ("rope_theta", 1e6), ("rope_scaling_factor", 2.0),
               ("layernorm_epsilon", 1e-6),
               ("position_embedding_type", "PositionEmbeddingType.absolute"))


def test_other(folder, key, value, named):
    model = Llama(1)
    run = megatron_llm(folder, model, {key: value})
    done = CKPT.run("convert", run, folder / "hf", *TO_HF, model.config(folder))
    done.want(5)
    check(not (folder / "hf").exists(), "written")
    if named:
        check(f"args.{key}" in done.err, f"{done}")
    elif key not in ("use_bias", "tie_embed_logits"):  # tensors tell first
        check(key in done.err, f"not the file's own word: {done}")
    CKPT.ok("inspect", run)


def test_enum(folder):
    """As training saves it: a member of an Enum of the fork's."""
    module = types.ModuleType("megatron.model.enums")
    kind = enum.Enum("PositionEmbeddingType", {"rotary": 1, "absolute": 2},
                     module="megatron.model.enums")
    module.PositionEmbeddingType = kind
    for name in ("megatron", "megatron.model"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["megatron.model.enums"] = module
    model = Llama(2)
    cfg = model.config(folder)
    for member, code in ((kind.rotary, 0), (kind.absolute, 5)):
        (folder / member.name).mkdir()
        run = megatron_llm(folder / member.name, model,
                           {"position_embedding_type": member})
        out = folder / f"hf_{member.name}"
        CKPT.run("convert", run, out, *TO_HF, cfg).want(code)
        if code == 0:
            check_model(out, model, "an Enum")


def test_kinds(folder, name):
    """An arg that is there and of no kind that the fork's parser makes is an
    error by its name, never the default and never what Python takes it for."""
    table = json.loads((ROOT / "models/families/megatron_forks.json").read_text())
    [fork] = [one for one in table["forks"] if one["name"] == name]
    odd = {"a text": (3, True, [1]), "True or False": ("abc", [1], Kind.ODD),
           "a number": ("1", [1.0], torch().bfloat16),
           "a whole number": (2.5, "2", [2], Kind.ODD),
           "a whole number or a list": (2.5, "2", Kind.ODD)}
    for kind, args in fork["kinds"].items():
        for arg in args:
            for i, value in enumerate(odd[kind]):
                at = folder / f"{arg}{i}"
                at.mkdir()
                model = Llama(7)
                run = WRITERS[name](at, model, {arg: value})
                done = CKPT.run("convert", run, at / "hf", *TO_HF,
                                model.config(at))
                check(done.code in (4, 5) and f"args.{arg} is" in done.err,
                      f"{arg} = {value!r}: {done}")
                check(not (at / "hf").exists(), f"{arg} = {value!r}: written")


def test_not_megatrons(folder):
    """Rows of a fork are never written as Megatron-Core's."""
    run = megatron_llm(folder, Llama(1))
    done = CKPT.run("convert", run, folder / "out", "--to",
                    "megatron_torch_dist").want(5)
    check("Megatron-LLM" in done.err, f"{done}")
    check(not (folder / "out").exists(), "written")
    # Other frameworks' files keep their names, but not without a word.
    done = CKPT.ok("convert", deepspeed(folder / "ds", Llama(2)),
                   folder / "names", "--to", "megatron_torch_dist")
    check("Megatron-Core will not find them" in done.err, f"{done}")
    done = CKPT.ok("verify", folder / "names")
    check("Megatron-Core will not find them" in done.out, f"{done}")


def test_whole_key_value(folder):
    """The sizes say that each rank has all of key_value: copies."""
    model = Llama(5)
    run = deepspeed(folder, model, whole={"key_value"})
    CKPT.ok("convert", run, folder / "hf", *TO_HF, model.config(folder))
    check_model(folder / "hf", model, "replicated")


# Without these numbers, slices fit more than one way; with these, none.
UNKNOWN = ({"num_key_value_heads": "absent"},
           {"padded_vocab_size": "absent", "hidden_size": "absent"},
           {"ffn_hidden_size": "absent", "hidden_size": "absent"},
           {"padded_vocab_size": 10_000_019}, {"kv_channels": 1009})


def test_unknown(folder, change):
    """Sizes that fit two ways, or none: refused, and --shard-dims is the way."""
    model = Llama(5)
    run = deepspeed(folder, model, change)
    for words in (("unshard", run, folder / "no.pt"),
                  ("reshard", run, folder / "no", "--to", "dcp")):
        done = CKPT.run(*words).want(5)
        check("--shard-dims" in done.err, f"{done}")
    CKPT.run("convert", run, folder / "no", *TO_HF,
             model.config(folder)).want(5)
    check(not list(folder.glob("no*")), "written")
    check("no rule" in CKPT.ok("inspect", run).out, "inspect")
    check_equal(CKPT.ok("verify", run, "--json").json()["verdict"], "cant_tell",
                "verdict")


def test_experts(folder):
    for experts in ([8], [1, 8], 8):
        at = folder / str(experts)
        at.mkdir()
        model = Llama(5)
        run = deepspeed(at, model, {"num_experts": experts})
        done = CKPT.run("convert", run, at / "hf", *TO_HF, model.config(at))
        check(done.code == 5 and "args.num_experts" in done.err, f"{done}")


# ------------------------------------------------------------------ torch_dcp
def torch_dcp(folder, model):
    """--use-torch-fsdp2 --ckpt-format torch_dcp: generate_state_dict's dict,
    saved by torch; the optimizer's by the names of parameters."""
    import torch.distributed.checkpoint as dcp

    t = torch()
    step = folder / "run/iter_0000010"
    step.mkdir(parents=True)
    (folder / "run/latest_checkpointed_iteration.txt").write_text("10")
    state = {"embedding.word_embeddings.weight":
                 model.state["model.embed_tokens.weight"],
             "decoder.final_layernorm.weight": model.state["model.norm.weight"],
             "output_layer.weight": model.state["lm_head.weight"]}
    for i in range(model.layers):
        at = f"decoder.layers.{i}."
        state |= {
            at + "self_attention.linear_qkv.layer_norm_weight":
                model.of(i, "input_layernorm"),
            at + "self_attention.linear_qkv.weight": model.fused(i),
            at + "self_attention.linear_proj.weight":
                model.of(i, "self_attn.o_proj"),
            at + "mlp.linear_fc1.layer_norm_weight":
                model.of(i, "post_attention_layernorm"),
            at + "mlp.linear_fc1.weight": t.cat(
                [model.of(i, "mlp.gate_proj"), model.of(i, "mlp.up_proj")]),
            at + "mlp.linear_fc2.weight": model.of(i, "mlp.down_proj")}
    moments = {name: {"step": t.tensor(10.0), "exp_avg": tensor.float() / 3,
                      "exp_avg_sq": tensor.float() ** 2}
               for name, tensor in state.items()}
    args = model.args() | {
        "swiglu": True, "normalization": "RMSNorm", "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True,
        "position_embedding_type": "rope", "rotary_base": 10000,
        "group_query_attention": model.groups != model.heads,
        "num_query_groups": model.groups, "ckpt_format": "torch_dcp"}
    dcp.save({"args": argparse.Namespace(**args), "checkpoint_version": 3.0,
              "iteration": 10, "model": state,
              "optimizer": {"state": moments, "param_groups": [
                  {"lr": 1e-4, "params": list(state)}]},
              "num_floating_point_operations_so_far": 0},
             checkpoint_id=step, no_dist=True)
    return folder / "run"


def test_torch_dcp(folder, seed):
    model = Llama(seed)
    run = torch_dcp(folder, model)
    cfg = model.config(folder)
    done = CKPT.ok("convert", run, folder / "hf", *TO_HF, cfg)
    check("optimizer" in done.err, f"what is left out: {done}")
    check_model(folder / "hf", model, "torch_dcp")
    CKPT.ok("verify", run, folder / "hf")
    # Its groups are not Megatron's: only the model can go there.
    done = CKPT.run("convert", run, folder / "no", "--to",
                    "megatron_torch_dist", "--family", "llama").want(5)
    check("--model-only" in done.err, f"{done}")
    CKPT.ok("convert", run, folder / "dist", "--to", "megatron_torch_dist",
            "--family", "llama", "--model-only")
    CKPT.ok("convert", folder / "dist", folder / "back", *TO_HF, cfg)
    check_model(folder / "back", model, "by way of torch_dist")


# ------------------------------------------------- version 0, and nothing more
def bloom(heads, layers=2, rows=32, each=8):
    """BLOOM's tensors under transformers' names; what its ranks cut."""
    generator = torch().Generator().manual_seed(heads)
    hidden, cuts = heads * each, {}

    def make(name, dim, *shape):
        cuts[name] = dim
        return torch().randn(shape, generator=generator).to(torch().bfloat16)

    shapes = [("word_embeddings.weight", 0, rows, hidden)]
    for name in ("word_embeddings_layernorm", "ln_f"):
        shapes += [(f"{name}.weight", None, hidden),
                   (f"{name}.bias", None, hidden)]
    for layer in range(layers):
        for name, dim, out, into in (
                ("self_attention.query_key_value", 0, 3 * hidden, hidden),
                ("self_attention.dense", 1, hidden, hidden),
                ("mlp.dense_h_to_4h", 0, 4 * hidden, hidden),
                ("mlp.dense_4h_to_h", 1, hidden, 4 * hidden)):
            at = f"h.{layer}.{name}."
            shapes += [(at + "weight", dim, out, into),
                       (at + "bias", 0 if dim == 0 else None, out)]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes += [(f"h.{layer}.{name}.weight", None, hidden),
                       (f"h.{layer}.{name}.bias", None, hidden)]
    state = {"transformer." + name: make("transformer." + name, dim, *shape)
             for name, dim, *shape in shapes}
    config = {"architectures": ["BloomForCausalLM"], "model_type": "bloom",
              "hidden_size": hidden, "n_layer": layers, "n_head": heads,
              "vocab_size": rows, "layer_norm_epsilon": 1e-5,
              "torch_dtype": "bfloat16"}
    return state, cuts, config


def test_bloom(folder, tp):
    """BLOOM as its own training saved it: a file for each module and rank,
    a norm behind the embedding, and biases that each rank has whole."""
    heads, layers = 4, 2
    state, cuts, config = bloom(heads, layers)
    step = folder / "run/global_step9"
    step.mkdir(parents=True)
    (folder / "run/latest").write_text("global_step9")
    (folder / "cfg").mkdir()
    (folder / "cfg/config.json").write_text(json.dumps(config))
    args = {"num_layers": layers, "hidden_size": 8 * heads,
            "num_attention_heads": heads, "ffn_hidden_size": 32 * heads,
            "padded_vocab_size": 32, "tensor_model_parallel_size": tp,
            "position_embedding_type": "PositionEmbeddingType.alibi",
            "embed_layernorm": True, "bias_gelu_fusion": True, "bf16": True,
            "layernorm_epsilon": 1e-5,
            "deepspeed_config": "ds.json", "seq_length": 64,
            "max_position_embeddings": 64}
    for rank in range(tp):
        modules = {}
        for full, tensor in state.items():
            name = full.removeprefix("transformer.")
            part = (tensor if cuts[full] is None else
                    tensor.chunk(tp, cuts[full])[rank].contiguous())
            if name.startswith("h."):
                _, layer, rest = name.split(".", 2)
                modules.setdefault(int(layer) + 3, {})[rest] = part
            elif name.startswith("ln_f."):
                modules.setdefault(layers + 4, {})[name[5:]] = part
            else:
                modules.setdefault(1, {})[name.replace(
                    "embeddings_layernorm", "embeddings.norm")] = part
        for at, module in modules.items():
            torch().save(module, step / f"layer_{at:02}-model_{rank:02}"
                                        "-model_states.pt")
        torch().save({"module": None, "optimizer": None, "mp_world_size": tp,
                      "dp_world_size": 1, "ds_version": "0.5.9",
                      "checkpoint_version": 3.0, "iteration": 9,
                      "args": argparse.Namespace(**args)},
                     step / f"mp_rank_{rank:02}_model_states.pt")
    CKPT.ok("verify", folder / "run")
    CKPT.ok("convert", folder / "run", folder / "hf", "--to", "safetensors",
            "--family", "bloom", "--config-from", folder / "cfg")
    got = load(folder / "hf")
    check_equal(sorted(got), sorted(state), "names")
    for name, tensor in state.items():
        check(torch().equal(got[name], tensor), name)


def version_0(folder, heads, hidden=24, layers=2, rows=32):
    """Each rank's rows of query_key_value: all q, all k, all v."""
    t = torch()
    g = t.Generator().manual_seed(heads)

    def make(*shape):
        return t.randn(shape, generator=g).half()

    encoder, want = {}, {}
    for i in range(layers):
        for old, new, shape in (
                ("input_layernorm.weight", "ln_1.weight", (hidden,)),
                ("input_layernorm.bias", "ln_1.bias", (hidden,)),
                ("attention.query_key_value.weight", "attn.c_attn.weight",
                 (3 * hidden, hidden)),
                ("attention.query_key_value.bias", "attn.c_attn.bias",
                 (3 * hidden,)),
                ("attention.dense.weight", "attn.c_proj.weight",
                 (hidden, hidden)),
                ("attention.dense.bias", "attn.c_proj.bias", (hidden,)),
                ("post_attention_layernorm.weight", "ln_2.weight", (hidden,)),
                ("post_attention_layernorm.bias", "ln_2.bias", (hidden,)),
                ("mlp.dense_h_to_4h.weight", "mlp.c_fc.weight",
                 (4 * hidden, hidden)),
                ("mlp.dense_h_to_4h.bias", "mlp.c_fc.bias", (4 * hidden,)),
                ("mlp.dense_4h_to_h.weight", "mlp.c_proj.weight",
                 (hidden, 4 * hidden)),
                ("mlp.dense_4h_to_h.bias", "mlp.c_proj.bias", (hidden,))):
            one = make(*shape)
            encoder[f"layers.{i}.{old}"] = one
            want[f"transformer.h.{i}.{new}"] = one.t() if one.dim() == 2 else one
    for word in ("weight", "bias"):
        encoder[f"final_layernorm.{word}"] = make(hidden)
        want[f"transformer.ln_f.{word}"] = encoder[f"final_layernorm.{word}"]
    want["transformer.wte.weight"] = make(rows, hidden)
    want["transformer.wpe.weight"] = make(16, hidden)
    embedding = {"word_embeddings": {"weight": want["transformer.wte.weight"]},
                 "position_embeddings": {
                     "weight": want["transformer.wpe.weight"]}}
    at = folder / "run/release/mp_rank_00"
    at.mkdir(parents=True)
    (folder / "run/latest_checkpointed_iteration.txt").write_text("release")
    t.save({"iteration": 0, "model": {"language_model": {
        "embedding": embedding, "transformer": encoder}}},
        at / "model_optim_rng.pt")
    return folder / "run", want


def test_version_0(folder, heads):
    run, want = version_0(folder, heads)
    check("heads" in CKPT.ok("inspect", run, "-v").err, "what is not known")
    CKPT.ok("verify", run)
    gpt2 = ("--to", "safetensors", "--family", "gpt2")
    done = CKPT.run("convert", run, folder / "no", *gpt2).want(5)
    check("--set nh=" in done.err, f"{done}")
    for words in (("reshard", run, folder / "no", "--tp", "2"),
                  ("convert", run, folder / "no", "--to", "dcp"),
                  ("convert", run, folder / "no.safetensors"),
                  ("unshard", run, folder / "no.pt"),
                  ("convert", run, folder / "no", *gpt2, "--set", "nh=5")):
        done = CKPT.run(*words)
        check(done.code in (4, 5), f"{done}")
        check(not list(folder.glob("no*")), f"written: {done}")
    CKPT.ok("convert", run, folder / "hf", *gpt2, "--set", f"nh={heads}")
    got = load(folder / "hf")
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(torch().equal(got[name], tensor), name)
    config = json.loads((folder / "hf/config.json").read_text())
    check_equal(config["n_head"], heads, "config.json")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, write in WRITERS.items():
        for seed in (0, 2, 3, 5, 6, 7, 9, 11):
            suite.add(f"{name} {seed}", test_random, write, seed)
        if write not in (deepspeed, pipeline):
            suite.add(f"{name}, other ranks", test_resharded, write)
    for key, value in OTHER_MODELS:
        suite.add(f"{key} {value}", test_other, key, value, True)
    for key, value in OTHER_FACTS:
        suite.add(f"{key} {value}, beside the configuration", test_other, key,
                  value, False)
    suite.add("an Enum in args", test_enum)
    for name in ("Megatron-LLM", "Megatron-DeepSpeed"):
        suite.add(f"kinds of args: {name}", test_kinds, name)
    suite.add("to Megatron as it is", test_not_megatrons)
    suite.add("key_value on all ranks", test_whole_key_value)
    for change in UNKNOWN:
        suite.add(f"sizes: {change}", test_unknown, change)
    suite.add("experts", test_experts)
    for tp in (1, 2, 4):
        suite.add(f"BLOOM at {tp}", test_bloom, tp)
    for seed in (0, 3):
        suite.add(f"torch_dcp {seed}", test_torch_dcp, seed)
    for heads in (1, 4, 6):
        suite.add(f"version 0, {heads} heads", test_version_0, heads)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
