#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OLMo before OLMo-core, metaseq and InternEvo: random models of
transformers' classes, written as these codes save them (the rules of their own
converters, the other way round), come home tensor by tensor.
"""

import itertools
import json
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare
HOME = Path(sys.prefix) / "transformers_5.12.1"


def libraries():
    try:
        import torch
        import transformers
        import yaml
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    return torch, transformers, yaml


def random_model(kind, **sizes):
    torch, transformers, _ = libraries()
    config = getattr(transformers, kind + "Config")(**sizes)
    torch.manual_seed(len(str(config)))
    model = getattr(transformers, kind + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 4
                            + (parameter.dim() == 1))
    return model


def check_same(model, path):
    """The folder holds that model: each tensor, and the logits of its
    config.json."""
    torch, transformers, _ = libraries()
    found, notes = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check_equal(sorted(notes[what]), [], what)
    check_equal(type(found).__name__, type(model).__name__, "class")
    want, got = model.state_dict(), found.state_dict()
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(torch.equal(got[name], tensor), name)
    model.set_attn_implementation("eager")
    tokens = torch.arange(12)[None] * 7 % 48
    with torch.no_grad():
        a, b = model(tokens).logits, found.eval()(tokens).logits
    far = (a - b).abs().max() / a.abs().max()
    check(far < 1e-5, f"logits differ by {far:.1e} of the largest")


def check_fates(result, source):
    """Each file of the source has a fate."""
    said = {Path(one["path"]).name for one in json.loads(result.out)["files"]}
    there = {path.name for path in source.rglob("*") if path.is_file()}
    check_equal(sorted(there - said), [], "files without a fate")


def converted(source, target, *more):
    return CKPT.ok("convert", source, target, "--to", "safetensors", "--json",
                   *more)


# --- OLMo ---

SIZES = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3,
         "num_attention_heads": 4, "vocab_size": 64, "pad_token_id": 1,
         "max_position_embeddings": 40}


def olmo_state(model, kind):
    """As OLMo's model has them: att_proj, ff_proj with up first, megablocks'
    experts."""
    import torch

    have, state = model.state_dict(), {}
    top = {"model.embed_tokens": "wte", "model.norm": "ln_f",
           "lm_head": "ff_out"}
    for old, new in top.items():
        if old + ".weight" in have:
            state[f"transformer.{new}.weight"] = have[old + ".weight"]
    if model.config.tie_word_embeddings:
        del state["transformer.ff_out.weight"]
    norms = {"Olmo2": ("post_attention_layernorm",
                       "post_feedforward_layernorm"),
             "Olmoe": ("input_layernorm", "post_attention_layernorm")}
    for layer in range(model.config.num_hidden_layers):
        at, to = f"model.layers.{layer}.", f"transformer.blocks.{layer}."
        of = lambda name: have[at + name + ".weight"]  # noqa: E731
        attn = "self_attn."
        state[to + "att_proj.weight"] = torch.cat(
            [of(f"{attn}{x}_proj") for x in "qkv"])
        state[to + "attn_out.weight"] = of(attn + "o_proj")
        for norm, name in zip(("attn_norm", "ff_norm"), norms.get(kind, ())):
            state[f"{to}{norm}.weight"] = of(name)
        if kind != "Olmo":
            for x in "qk":
                state[f"{to}{x}_norm.weight"] = of(f"{attn}{x}_norm")
        if kind != "Olmoe":
            state[to + "ff_proj.weight"] = torch.cat(
                [of("mlp.up_proj"), of("mlp.gate_proj")])
            state[to + "ff_out.weight"] = of("mlp.down_proj")
            continue
        state[to + "ffn.router.layer.weight"] = of("mlp.gate")
        gate_up = have[at + "mlp.experts.gate_up_proj"]
        down = have[at + "mlp.experts.down_proj"]
        gate, up = gate_up.chunk(2, 1)
        experts = to + "ffn.experts.mlp."
        state[experts + "w1"] = gate.flatten(0, 1)
        state[experts + "v1"] = up.flatten(0, 1)
        state[experts + "w2"] = down.transpose(1, 2).flatten(0, 1)
    return {name: tensor.clone() for name, tensor in state.items()}


def olmo_run(folder, kind="Olmo", rest=None, optimizer=True, **changed):
    """run/step20-unsharded, and the model in it."""
    torch, _, yaml = libraries()
    sizes = dict(SIZES, **(rest or {}))
    model = random_model(kind, **sizes)
    config = model.config
    normed = kind != "Olmo"
    said = {
        "d_model": 32, "n_heads": 4, "n_layers": 3, "mlp_ratio": 4,
        "n_kv_heads": sizes.get("num_key_value_heads"),
        "mlp_hidden_size": None if kind == "Olmoe" else 48,
        "activation_type": "swiglu", "rope": True, "alibi": False,
        "block_type": "moe" if kind == "Olmoe" else "sequential",
        "block_group_size": 1, "rope_theta": int(
            config.rope_parameters["rope_theta"]),
        "clip_qkv": getattr(config, "clip_qkv", None),
        "multi_query_attention": None, "attention_layer_norm": normed,
        "layer_norm_type": "rms" if normed else "default",
        "layer_norm_with_affine": normed, "norm_after": kind == "Olmo2",
        "layer_norm_eps": getattr(config, "rms_norm_eps", 1e-5),
        "include_bias": False, "bias_for_layer_norm": False,
        "scale_logits": False, "embedding_layer_norm": False,
        "max_sequence_length": 40, "vocab_size": 60, "embedding_size": 64,
        "weight_tying": bool(config.tie_word_embeddings), "pad_token_id": 1,
        "eos_token_id": 0, "flash_attention": True, "init_std": 0.02}
    if kind == "Olmoe":
        said |= {"moe_num_experts": 4, "moe_top_k": 2, "moe_dropless": True}
    step = folder / "run/step20-unsharded"
    step.mkdir(parents=True)
    (step / "config.yaml").write_text(yaml.safe_dump(
        {"run_name": "tiny", "seed": 1, "model": dict(said, **changed)}))
    state = olmo_state(model, kind)
    torch.save(state, step / "model.pt")
    torch.save({"epoch": 0, "global_step": 20, "rng": {}}, step / "train.pt")
    names = sorted(state)
    if optimizer:
        torch.save({"state": {name: {
            "step": torch.tensor(20.0), "exp_avg": state[name] / 2,
            "exp_avg_sq": state[name] ** 2} for name in names},
            "param_groups": [{"lr": 1e-3, "params": names,
                              "param_names": names}]}, step / "optim.pt")
    return model, step


OLMOS = {
    "olmo": ("Olmo", {}),
    "olmo, tied": ("Olmo", {"tie_word_embeddings": True}),
    "olmo with grouped keys, clipped": (
        "Olmo", {"num_key_value_heads": 2, "clip_qkv": 0.5}),
    "olmo with one key": ("Olmo", {"num_key_value_heads": 1}),
    "olmo with another base": ("Olmo", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 500000.0}}),
    "olmo2": ("Olmo2", {"rms_norm_eps": 1e-6}),
    "olmo2, tied, grouped": ("Olmo2", {"num_key_value_heads": 2,
                                       "tie_word_embeddings": True}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "olmoe, grouped, clipped": (
        "Olmoe", {"num_experts": 4, "num_experts_per_tok": 2,
                  "num_key_value_heads": 2, "clip_qkv": 0.75}),
}


def test_olmo(folder, kind, rest):
    """The root, the step, and model.pt alone."""
    model, step = olmo_run(folder, kind, rest)
    for path in (folder / "run", step, step / "model.pt"):
        out = folder / f"out_{path.stem}"
        result = converted(path, out)
        if path != step / "model.pt":
            check_fates(result, step)
        check_same(model, out)
    CKPT.ok("verify", step)


def test_olmo_optimizer(folder):
    """Its states, by the parameters' names, as OLMo has them."""
    _, step = olmo_run(folder)
    said = json.loads(CKPT.ok("inspect", step, "--json").out)
    states = [one for one in said["tensors"] if one["kind"] == "optim"]
    moments = {one["name"] for one in states if one["state"] != "step"}
    params = {one["name"] for one in said["tensors"]
              if one["kind"] == "model"}
    check_equal(moments, {f"{name}.{state}" for name in params
                          for state in ("exp_avg", "exp_avg_sq")}, "states")
    check_equal(said["trainer"], {"name": "olmo", "step": 20}, "trainer")
    CKPT.ok("convert", step, folder / "whole", "--to", "dcp")
    CKPT.ok("verify", step, folder / "whole")


OLMO_CHANGES = {
    "d_model": 16, "n_layers": 2, "n_heads": 3, "n_kv_heads": 2,
    "mlp_hidden_size": 64, "embedding_size": 128, "block_type": "llama",
    "activation_type": "gelu", "alibi": True, "rope": False,
    "include_bias": True, "bias_for_layer_norm": True, "scale_logits": True,
    "embedding_layer_norm": True, "norm_after": True,
    "attention_layer_norm": True, "layer_norm_with_affine": True,
    "layer_norm_type": "rms", "layer_norm_eps": 1e-6, "block_group_size": 3,
    "multi_query_attention": True, "weight_tying": True, "unknown_key": 3}


def test_olmo_change(folder, key):
    """One key of config.yaml: refused, or told."""
    olmo_run(folder, **{key: OLMO_CHANGES[key]})
    result = CKPT.run("convert", folder / "run", folder / "out", "--to",
                      "safetensors", "--dialect", "hf")
    if key == "unknown_key":
        check(result.code == 0 and key in result.err, str(result))
    else:
        check(result.code in (4, 5), f"{key}: {result}")
        check(not (folder / "out").exists(), "something was written")


def test_olmo_lost(folder, name):
    """Without one of its files: opened with a word about it, or refused."""
    model, step = olmo_run(folder)
    (step / name).unlink()
    result = CKPT.run("convert", step, folder / "out", "--to", "safetensors")
    # A model needs no optimizer.
    check(result.code != 0 or name in result.err or name == "optim.pt",
          str(result))
    if result.code == 0 and (folder / "out/config.json").exists():
        check_same(model, folder / "out")


def test_olmo_local(folder):
    """Flat parameters of its ranks: refused with what makes them whole."""
    torch, _, _ = libraries()
    step = folder / "run/step20"
    for part in ("model", "optim", "train"):
        (step / part).mkdir(parents=True)
        torch.save({"flat_params": {}}, step / part / "rank0.pt")
    (step / "metadata.yaml").write_text("world_size: 1\n")
    (step / "config.yaml").write_text("model:\n  d_model: 3\n")
    for path in (step, folder / "run"):
        result = CKPT.run("inspect", path)
        check(result.code == 5 and "unshard.py" in result.err, str(result))


# --- files of ranks ---

def cut(tensor, dim, ranks, parts=1):
    """The parts of ranks, each of every one of `parts`."""
    import torch

    if dim is None:
        return [tensor.clone() for _ in range(ranks)]
    pieces = [part.chunk(ranks, dim) for part in tensor.chunk(parts, dim)]
    return [torch.cat([piece[rank] for piece in pieces], dim).clone()
            for rank in range(ranks)]


def opt_parts(folder, ranks, name="reshard-model_part-{}.pt", cfg=True,
              alias=False, **changed):
    from argparse import Namespace
    torch, _, _ = libraries()
    model = random_model(
        "OPT", hidden_size=32, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=4, vocab_size=64, max_position_embeddings=16,
        word_embed_proj_dim=32, dropout=0.0, tie_word_embeddings=True,
        activation_function="relu")
    have = model.state_dict()
    state = {}

    def put(new, tensor, dim=None, parts=1):
        state[new] = cut(tensor, dim, ranks, parts)

    put("decoder.version", torch.tensor([3.0]))
    at = "model.decoder."
    put("decoder.embed_tokens.weight", have[at + "embed_tokens.weight"], 0)
    if alias:
        put("decoder.output_projection.weight",
            have[at + "embed_tokens.weight"], 0)
    put("decoder.embed_positions.weight", have[at + "embed_positions.weight"])
    for end in ("weight", "bias"):
        put("decoder.layer_norm." + end, have[f"{at}final_layer_norm.{end}"])
        row = 1 if end == "weight" else None
        for layer in range(2):
            old, new = f"{at}layers.{layer}.", f"decoder.layers.{layer}."
            put(f"{new}self_attn.qkv_proj.{end}", torch.cat(
                [have[f"{old}self_attn.{x}_proj.{end}"] for x in "kvq"]), 0, 3)
            for module, dim in (("self_attn.out_proj", row), ("fc1", 0),
                                ("fc2", row), ("self_attn_layer_norm", None),
                                ("final_layer_norm", None)):
                put(f"{new}{module}.{end}", have[f"{old}{module}.{end}"], dim)
    said = Namespace(**dict({
        "arch": "transformer_lm_megatron", "decoder_layers": 2,
        "decoder_embed_dim": 32, "decoder_ffn_embed_dim": 48,
        "decoder_attention_heads": 4, "activation_fn": "relu",
        "share_decoder_input_output_embed": True, "no_scale_embedding": True,
        "decoder_learned_pos": True, "max_target_positions": 16,
        "model_parallel_size": ranks}, **changed))
    out = folder / "opt"
    out.mkdir()
    for rank in range(ranks):
        torch.save({"cfg": {"model": said} if cfg else None,
                    "model": {key: parts[rank]
                              for key, parts in state.items()},
                    "optimizer_history": [], "extra_state": {}},
                   out / name.format(rank))
    return model, out


def test_opt(folder, ranks, name, alias):
    model, source = opt_parts(folder, ranks, name, alias=alias)
    check_fates(converted(source, folder / "out"), source)
    check_same(model, folder / "out")
    CKPT.ok("verify", source)
    said = json.loads(CKPT.ok("inspect", source, "--json").out)
    check_equal(said["topology"]["tp"], ranks, "ranks")


def test_opt_config_from(folder):
    """Without cfg: config.json of another folder says the numbers."""
    model, source = opt_parts(folder, 2, cfg=False)
    model.config.save_pretrained(folder / "cfg")
    converted(source, folder / "out", "--config-from", folder / "cfg")
    check_same(model, folder / "out")


OPT_CHANGES = {"decoder_layers": 3, "decoder_embed_dim": 64,
               "decoder_ffn_embed_dim": 40, "decoder_attention_heads": 5,
               "share_decoder_input_output_embed": False, "alibi": True,
               "no_scale_embedding": False, "decoder_learned_pos": False,
               "disable_bias": True, "activation_fn": "silu"}


def test_opt_change(folder, key):
    _, source = opt_parts(folder, 2, **{key: OPT_CHANGES[key]})
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dialect", "hf")
    check(result.code in (4, 5), f"{key}: {result}")


# InternLM's modules, of which ranks share none, rows, or columns.
INTERNLM = {"input_layernorm": ("norm1", None),
            "post_attention_layernorm": ("norm2", None),
            "self_attn.o_proj": ("mixer.out_proj", 1),
            "mlp.gate_proj": ("mlp.w1", 0)}
INTERNLM2 = {"input_layernorm": ("attention_norm", None),
             "post_attention_layernorm": ("ffn_norm", None),
             "self_attn.o_proj": ("attention.wo", 1),
             "mlp.gate_proj": ("feed_forward.w1", 0),
             "mlp.up_proj": ("feed_forward.w3", 0),
             "mlp.down_proj": ("feed_forward.w2", 1)}


def neighbours(rows, heads):
    """Rows of halves of each head as pairs."""
    shape = rows.shape
    return rows.view(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)


def internevo_layer(have, at, kind, pairs):
    """{its name: (tensor, dimension, parts)} of one layer."""
    import torch

    made = {}
    renamed = dict(INTERNLM if kind.startswith("blocks") else INTERNLM2)
    if kind.startswith("blocks"):
        up, down = ("w2", "w3") if kind == "blocks, old" else ("w3", "w2")
        renamed |= {"mlp.up_proj": (f"mlp.{up}", 0),
                    "mlp.down_proj": (f"mlp.{down}", 1)}
    for old, (new, dim) in renamed.items():
        made[new + ".weight"] = (have[f"{at}{old}.weight"], dim, 1)
    q, k, v = (have[f"{at}self_attn.{x}_proj.weight"] for x in "qkv")
    if pairs:
        q, k = neighbours(q, 4), neighbours(k, len(k) // 8)
    if kind.startswith("blocks"):
        made["mixer.Wqkv.weight"] = (torch.cat([q, k, v]), 0, 3)
        made["mixer.Wqkv.bias"] = (torch.cat(
            [have[f"{at}self_attn.{x}_proj.bias"] for x in "qkv"]), 0, 3)
        made["mixer.out_proj.bias"] = (
            have[at + "self_attn.o_proj.bias"], "first", 1)
    elif kind == "wq":
        for x, rows in zip("qkv", (q, k, v)):
            made[f"attention.w{x}.weight"] = (rows, 0, 1)
    else:
        groups = len(k) // 8
        made["attention.wqkv.weight"] = (torch.cat(
            [x.view(groups, -1, 8, 32) for x in (q, k, v)], 1).reshape(-1, 32),
            0, 1)
    return made


def internevo_run(folder, kind="wqkv", tp=2, pp=2, groups=2, pairs=True,
                  embedding="hidden", **changed):
    torch, _, _ = libraries()
    blocks = kind.startswith("blocks")
    model = random_model(
        "Llama", hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=groups, vocab_size=64,
        max_position_embeddings=40, rms_norm_eps=1e-5,
        attention_bias=blocks, tie_word_embeddings=False)
    have = model.state_dict()
    step = folder / "run/100"
    step.mkdir(parents=True)
    word = "embedding" if blocks else "tok_embeddings"
    if embedding == "words":
        word += ".word_embeddings"
    for stage in range(pp):
        whole = {}
        each = 4 // pp
        if stage == 0:
            whole[f"{word}.weight"] = (have["model.embed_tokens.weight"],
                                       1 if embedding == "hidden" else 0, 1)
        for layer in range(each):
            layers = "blocks" if blocks else "layers"
            made = internevo_layer(
                have, f"model.layers.{stage * each + layer}.", kind, pairs)
            whole |= {f"{layers}.{layer}.{name}": one
                      for name, one in made.items()}
        if stage == pp - 1:
            whole["norm.weight"] = (have["model.norm.weight"], None, 1)
            whole[("head" if blocks else "output") + ".weight"] = (
                have["lm_head.weight"], 0, 1)
        for rank in range(tp):
            state = {}
            for name, (tensor, dim, parts) in whole.items():
                if dim == "first":
                    if rank == 0:
                        state["model." + name] = tensor.clone()
                    continue
                state["model." + name] = cut(tensor, dim, tp, parts)[rank]
            at = f"tp{rank}_pp{stage}"
            torch.save(state, step / f"model_{at}.pt")
            torch.save({"base_optim_states": {"state": {0: {
                "step": 5, "exp_avg": torch.zeros(10)}}},
                "grad_scaler": {}}, step / f"optimizer_{at}_zo0.pt")
            (step / f"topo_{at}.json").write_text("{}")
    said = {"num_layers": 4, "hidden_size": 32, "vocab_size": 64,
            "num_attention_heads": 4, "mlp_ratio": 1.5, "no_bias": True,
            "num_kv_attention_heads": groups, "norm_type": "rmsnorm",
            "embed_split_hidden": embedding == "hidden",
            "dtype": torch.bfloat16, "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": 40}
    if not blocks:
        said["adapt_hf"] = not pairs
    said = {key: value for key, value in (said | changed).items()
            if value != "absent"}
    torch.save(said, step / "model_config.pt")
    for name in ("context", "sampler", "schedulder"):
        torch.save({"step_count": 100}, step / f"{name}.pt")
    return model, step


def test_internevo(folder, kind, tp, pp, groups, pairs, embedding):
    model, step = internevo_run(folder, kind, tp, pp, groups, pairs, embedding)
    check_fates(converted(folder / "run", folder / "out"), step)
    check_same(model, folder / "out")
    said = json.loads(CKPT.ok("inspect", step, "--json").out)
    check_equal([said["topology"][x] for x in ("tp", "pp")], [tp, pp], "grid")
    check_equal(said["trainer"], {"name": "internevo", "step": 100}, "trainer")


def test_internevo_pairs(folder):
    """Where nothing says how queries and keys turn, the user does."""
    model, step = internevo_run(folder, adapt_hf="absent")
    result = CKPT.run("convert", step, folder / "no", "--to", "safetensors",
                      "--dialect", "hf")
    check(result.code == 5 and "--set pairs=" in result.err, str(result))
    converted(step, folder / "out", "--set", "pairs=true")
    check_same(model, folder / "out")
    (step / "model_config.pt").unlink()
    model.config.save_pretrained(folder / "cfg")
    result = CKPT.run("convert", step, folder / "gone", "--to", "safetensors",
                      "--config-from", folder / "cfg")
    check(result.code != 0 and "model_config.pt" in result.err, str(result))


def test_internevo_optimizer(folder):
    """Vectors too large to stay inside a value: told, and left out."""
    torch, _, _ = libraries()
    model, step = internevo_run(folder)
    torch.save({"base_optim_states": {"state": {0: {
        "exp_avg": torch.zeros(5 << 20)}}}},
        step / "optimizer_tp0_pp0_zo0.pt")
    for more in ((), ("--dialect", "hf")):
        out = folder / f"out{len(more)}"
        result = CKPT.ok("convert", step, out, "--to", "safetensors", *more)
        check("1 tensors of optimizer" in result.err, result.err)
        check_same(model, out)


def test_internevo_class(folder):
    """model_config.pt as InternEvo's own dict class pickles itself."""
    import pickle
    torch, _, _ = libraries()
    model, step = internevo_run(folder)
    said = torch.load(step / "model_config.pt", weights_only=False)
    kind = type("Config", (dict,), {"__module__": "config_of_internevo"})
    module = type(sys)("config_of_internevo")
    module.Config = kind
    sys.modules["config_of_internevo"] = module
    try:
        torch.save(kind(said), step / "model_config.pt", pickle_module=pickle)
    finally:
        del sys.modules["config_of_internevo"]
    converted(step, folder / "out")
    check_same(model, folder / "out")


INTERNEVO_CHANGES = {
    "num_layers": 3, "hidden_size": 64, "vocab_size": 80,
    "num_attention_heads": 8, "num_kv_attention_heads": 4, "no_bias": False,
    "norm_type": "layernorm", "norm_head": True, "is_reward": True,
    "use_swiglu": False, "use_dynamic_ntk_rope": True, "num_experts": 4,
    "apply_post_layer_norm": True, "deepnorm": True}


def test_internevo_change(folder, key):
    _, step = internevo_run(folder, **{key: INTERNEVO_CHANGES[key]})
    result = CKPT.run("convert", step, folder / "out", "--to", "safetensors",
                      "--dialect", "hf")
    check(result.code in (4, 5), f"{key}: {result}")


def rank_files(folder, code):
    if code == "metaseq":
        return opt_parts(folder, 2)[1]
    return internevo_run(folder)[1]


def test_lost(folder, code, name):
    """Without one rank's file: refused, and the file is named."""
    source = rank_files(folder, code)
    (source / name).unlink()
    for path in (source, source.parent):
        result = CKPT.run("convert", path, folder / "out", "--to",
                          "safetensors")
        check(result.code != 0 and not (folder / "out").exists(), str(result))
    result = CKPT.run("inspect", source)
    check(result.code != 0 and ("model_part-1" in name or name in result.err),
          str(result))


def test_all_of_a_rank(folder, lost):
    """Without all files of the last rank or stage: no gap in the names, and the
    configuration tells."""
    _, step = internevo_run(folder)
    for path in step.glob(f"model_*{lost}*.pt"):
        path.unlink()
    check_equal(CKPT.run("verify", step).code, 1, "verify")
    result = CKPT.run("convert", step, folder / "out", "--to", "safetensors",
                      "--dialect", "hf")
    check(result.code in (4, 5), str(result))


def test_unlike(folder, code, file, key):
    """A copy that is unlike on one rank: found by verify and by convert."""
    import torch

    source = rank_files(folder, code)
    state = torch.load(source / file, weights_only=False)
    at = state["model"] if code == "metaseq" else state
    at[key] += 1
    torch.save(state, source / file)
    result = CKPT.run("verify", source, "--deep")
    check_equal(result.code, 1, str(result))
    check(key.split(".", 3)[-1] in result.out, result.out)
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dialect", "hf")
    # The one that is no part of the model is left out.
    check(result.code in (4, 5) or key == "decoder.version", str(result))


def test_short(folder, code, file, key):
    """A tensor that one rank has not, or in another shape."""
    import torch

    source = rank_files(folder, code)
    whole = torch.load(source / file, weights_only=False)
    for change in ("gone", "shape"):
        state = dict(whole, model=dict(whole["model"])) \
            if code == "metaseq" else dict(whole)
        at = state["model"] if code == "metaseq" else state
        if change == "gone":
            del at[key]
        else:
            at[key] = at[key][:-1].clone()
        torch.save(state, source / file)
        result = CKPT.run("convert", source, folder / "out", "--to",
                          "safetensors")
        check(result.code == 4 and key in result.err, str(result))


def test_refused(folder, name, word):
    """Other layouts of the same codes: refused by name."""
    torch, _, _ = libraries()
    source = folder / "run/100"
    source.mkdir(parents=True)
    if name.startswith("model_moe"):
        source = internevo_run(folder / "moe")[1]
    state = {"model.w": torch.zeros(4, 4)}
    if "model_part" in name:
        state = {"model": {"flat_param_0": torch.zeros(8)}}
    torch.save(state, source / name)
    result = CKPT.run("inspect", source)
    check(result.code == 5 and word in result.err, str(result))


COLUMNS = ("embed", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj",
           "up_proj", "query_key_value", "dense_h_to_4h")
ROWS = ("o_proj.weight", "down_proj.weight", "self_attention.dense.weight",
        "dense_4h_to_h.weight")
PARTS = {"Llama": dict(hidden_size=32, num_attention_heads=4,
                       num_key_value_heads=2, intermediate_size=48,
                       vocab_size=64, num_hidden_layers=4,
                       max_position_embeddings=64),
         "Bloom": dict(hidden_size=32, n_head=4, n_layer=4, vocab_size=64)}


def rank_parts(folder, kind, tp, pp, on):
    """Files of ranks and stages in transformers' names, as pipegoose saves
    them; layers are counted from 0 in each stage, or `on`."""
    torch, _, _ = libraries()
    model = random_model(kind, **PARTS[kind])
    run = folder / "run"
    run.mkdir()
    model.config.save_pretrained(run)
    layers = 4 // pp
    tied = model.config.tie_word_embeddings
    for rank in range(tp):
        stages = [{} for _ in range(pp)]
        for name, tensor in model.state_dict().items():
            if tied and name == "lm_head.weight":
                continue
            if "norm" in name:
                part = tensor
            elif any(word in name for word in COLUMNS):
                part = tensor.chunk(tp, 0)[rank].contiguous()
            elif name.endswith(ROWS):
                part = tensor.chunk(tp, 1)[rank].contiguous()
            else:
                part = tensor
            words = name.split(".")
            at = next((i for i, word in enumerate(words) if word.isdigit()),
                      None)
            if at is None:
                stage = 0 if "embed" in name else pp - 1
            else:
                stage = int(words[at]) // layers
                if not on:
                    words[at] = str(int(words[at]) % layers)
            stages[stage][".".join(words)] = part.clone()
        for stage, state in enumerate(stages):
            torch.save(state, run / f"pytorch_model_tp_{rank}_pp_{stage}.bin")
    return model, run


def test_parts(folder, kind, tp, pp, on):
    model, run = rank_parts(folder, kind, tp, pp, on)
    CKPT.ok("verify", run)
    converted(run, folder / "hf")
    check_same(model, folder / "hf")
    CKPT.ok("verify", run, folder / "hf")


def test_parts_lost(folder):
    """A rank's file, and config.json, without which nothing says the cuts."""
    _, run = rank_parts(folder, "Llama", 2, 2, True)
    config = (run / "config.json").read_text()
    for name in sorted(file.name for file in run.glob("*.bin")):
        held = (run / name).read_bytes()
        (run / name).unlink()
        check(CKPT.run("verify", run).code == 1, f"without {name}")
        result = CKPT.run("convert", run, folder / "hf", "--to", "safetensors")
        check(result.code in (4, 5) and not (folder / "hf").exists(),
              str(result))
        (run / name).write_bytes(held)
    (run / "config.json").unlink()
    result = CKPT.run("convert", run, folder / "hf", "--to", "safetensors")
    check(result.code != 0 and not (folder / "hf").exists(), str(result))
    (run / "config.json").write_text(config)
    CKPT.ok("verify", run)


def test_colossalai(folder, form):
    """The booster's sharded save: the model in a folder of its own, total_size
    in MiB, an optimizer by numbers beside it."""
    torch, _, _ = libraries()
    from safetensors.torch import save_file

    model = random_model("Llama", **PARTS["Llama"])
    step = folder / "run/epoch-0_step-10"
    (step / "optimizer").mkdir(parents=True)
    model.config.save_pretrained(step / "modeling")
    state = {name: t.contiguous() for name, t in model.state_dict().items()}
    ending = "bin" if form == "bin" else "safetensors"
    stem = "model" if form == "model.safetensors" else "pytorch_model"
    index = {}
    for at in range(2):
        file = f"{stem}-{at + 1:05}.{ending}"
        part = dict(list(state.items())[at::2])
        if form == "bin":
            torch.save(part, step / "modeling" / file)
        else:
            save_file(part, step / "modeling" / file)
        index |= dict.fromkeys(part, file)
    (step / f"modeling/{stem}.{ending}.index.json").write_text(json.dumps(
        {"metadata": {"total_size": sum(t.nbytes for t in state.values()) / 2**20},
         "weight_map": index}))
    torch.save({0: {"step": torch.tensor(3.0)}},
               step / "optimizer/pytorch_optim-00001.bin")
    torch.save({"last_epoch": 1}, step / "lr_scheduler")
    (step / "running_states.json").write_text('{"epoch": 0, "step": 10}')
    for path in (step, folder / "run"):
        shown = json.loads(CKPT.ok("inspect", path, "--json").out)
        check_equal(shown["trainer"], {"name": "colossalai", "step": 10}, path)
        CKPT.ok("verify", path)
        converted(path, folder / f"hf {path.name}")
        check_same(model, folder / f"hf {path.name}")


def add_rank_cases(suite):
    for code, files, copies, cuts in (
            ("metaseq", ("reshard-model_part-0.pt", "reshard-model_part-1.pt"),
             ("decoder.embed_positions.weight", "decoder.layer_norm.bias",
              "decoder.layers.1.self_attn.out_proj.bias",
              "decoder.layers.0.fc2.bias", "decoder.version",
              "decoder.layers.1.final_layer_norm.weight"),
             ("decoder.layers.0.fc1.weight",
              "decoder.layers.1.self_attn.qkv_proj.bias")),
            ("internevo", ("model_tp0_pp1.pt", "model_tp1_pp1.pt"),
             ("model.norm.weight", "model.layers.1.ffn_norm.weight",
              "model.layers.0.attention_norm.weight"),
             ("model.output.weight", "model.layers.1.attention.wo.weight"))):
        names = files if code == "metaseq" else (
            "model_tp0_pp0.pt", "model_tp1_pp0.pt", *files)
        for name in names:
            suite.add(f"{code} without {name}", test_lost, code, name)
        for key in copies:
            suite.add(f"{code} with {key} unlike", test_unlike, code, files[1],
                      key)
        for key in cuts:
            suite.add(f"{code} with {key} short", test_short, code, files[1],
                      key)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path.insert(1, str(HOME))
    for name, (kind, rest) in OLMOS.items():
        suite.add(name, test_olmo, kind, rest)
    suite.add("olmo's optimizer", test_olmo_optimizer)
    suite.add("olmo's local shards", test_olmo_local)
    for key in OLMO_CHANGES:
        suite.add(f"olmo with {key}", test_olmo_change, key)
    for name in ("model.pt", "optim.pt", "train.pt", "config.yaml"):
        suite.add(f"olmo without {name}", test_olmo_lost, name)
    for ranks in (1, 2, 4):
        for name in ("reshard-model_part-{}.pt",
                     "reshard-model_part-{}-shard0.pt"):
            suite.add(f"metaseq, {name} of {ranks}", test_opt, ranks, name,
                      ranks == 2)
    suite.add("metaseq without cfg", test_opt_config_from)
    for key in OPT_CHANGES:
        suite.add(f"metaseq with {key}", test_opt_change, key)
    for kind in ("wqkv", "wq", "blocks", "blocks, old"):
        blocks = kind.startswith("blocks")
        for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 4)):
            groups = 4 if blocks or tp == 4 else 2
            pairs = not blocks and pp != 2
            way = "words" if tp == 4 else "vocabulary" if pp == 2 else "hidden"
            suite.add(f"internevo, {kind}, tp {tp}, pp {pp}", test_internevo,
                      kind, tp, pp, groups, pairs, way)
    for kind, (tp, pp), on in itertools.product(
            PARTS, ((1, 2), (2, 1), (2, 2), (4, 2)), (True, False)):
        if (kind, tp) != ("Llama", 4):  # more ranks than keys
            suite.add(f"parts of {kind}, tp {tp}, pp {pp}, {on=}", test_parts,
                      kind, tp, pp, on)
    suite.add("parts that are lost", test_parts_lost)
    for form in ("bin", "safetensors", "model.safetensors"):
        suite.add(f"colossalai, {form}", test_colossalai, form)
    suite.add("internevo without adapt_hf", test_internevo_pairs)
    suite.add("internevo's own class", test_internevo_class)
    suite.add("internevo's optimizer", test_internevo_optimizer)
    for key in INTERNEVO_CHANGES:
        suite.add(f"internevo with {key}", test_internevo_change, key)
    for name, word in (
            ("model_tp0_wp0_pp0.pt", "weight parallel"),
            ("model_tp0_pp0_dp0.pt", "FSDP"),
            ("model_moe_layer0_expert0_tp0.pt", "experts"),
            ("reshard-model_part-0.pt", "reshard_fsdp")):
        suite.add(f"refused: {name}", test_refused, name, word)
    for lost in ("tp1", "pp1"):
        suite.add(f"internevo without all of {lost}", test_all_of_a_rank, lost)
    add_rank_cases(suite)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
