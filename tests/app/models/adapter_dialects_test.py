#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters in the names of each library, in each container: added to a base.

The factors are drawn here and written as each library writes them. What they
add to the base is computed by the library where it is installed (peft,
torchtune, MLX), and by its documented formula elsewhere. Each is also made
PEFT's, which peft itself then loads and merges.
"""

import json
import shutil
import sys
import types
from pathlib import Path

from adapter_test import (blas_sums_in_order, compare, make_base,
                          merged_by_peft, peers, product, read_model)
from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare
RANK, ALPHA = 4, 6.0
HEADS, GROUPS, SIZE, WIDTH, LAYERS = 4, 2, 16, 64, 2
MODULES = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64),
           "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
           "mlp.gate_proj": (160, 64), "mlp.up_proj": (160, 64),
           "mlp.down_proj": (64, 160)}


def factors(modules=None, seed=5, rank=RANK):
    """{module: (A, B)} of transformers' modules."""
    import torch

    torch.manual_seed(seed)
    return {f"model.layers.{layer}.{module}":
            (torch.randn(rank, MODULES[module][1]) / 8,
             torch.randn(MODULES[module][0], rank) / 8)
            for layer in range(LAYERS) for module in modules or MODULES}


def merged(base, pairs, scale=ALPHA / RANK):
    """base + scale * B A: the products added in the order of the rank."""
    import numpy as np
    import torch

    want = dict(base)
    for module, (a, b) in pairs.items():
        old = base[module + ".weight"]
        delta = torch.from_numpy(product(b.float().numpy(), a.float().numpy())
                                 * np.float32(scale)).reshape(old.shape)
        want[module + ".weight"] = (old.float() + delta).to(old.dtype)
    return want


# ----------------------------------------------------------------- containers
def put_safetensors(tensors, folder, name="adapter.safetensors",
                    metadata=None):
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / name,
              metadata or {"format": "pt"})
    return folder / name


def put_torch(tensors, folder, name="adapter.pt"):
    import torch

    torch.save(tensors, folder / name)
    return folder / name


def put_dcp(tensors, folder):
    import torch.distributed.checkpoint as dcp

    dcp.save(tensors, checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


def put_sharded(tensors, folder):
    """Two files of torch.save with an index, as Hugging Face's."""
    import torch

    root = folder / "bins"
    root.mkdir()
    names, where = sorted(tensors), {}
    for i in range(2):
        part = f"pytorch_model-0000{i + 1}-of-00002.bin"
        torch.save({k: tensors[k] for k in names[i::2]}, root / part)
        where.update(dict.fromkeys(names[i::2], part))
    (root / "pytorch_model.bin.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": where}))
    return root


def put_deepspeed(tensors, folder):
    """ZeRO's file of model states, wrapped as an engine wraps it."""
    import torch

    step = folder / "ds" / "global_step7"
    step.mkdir(parents=True)
    (folder / "ds" / "latest").write_text("global_step7")
    torch.save({"module": dict(tensors), "buffer_names": [],
                "optimizer": None, "param_shapes": None,
                "frozen_param_shapes": None, "shared_params": {},
                "frozen_param_fragments": None, "lr_scheduler": None,
                "sparse_tensor_module_names": [], "skipped_steps": 0,
                "global_steps": 7, "global_samples": 7, "dp_world_size": 1,
                "mp_world_size": 1, "ds_config": {}, "ds_version": "0.18.2"},
               step / "mp_rank_00_model_states.pt")
    return folder / "ds"


CONTAINERS = {"safetensors": put_safetensors, "torch": put_torch,
              "dcp": put_dcp, "sharded": put_sharded,
              "deepspeed": put_deepspeed}


# ------------------------------------------------------------------- dialects
def interleaved(rows, heads):
    """transformers' rotary halves as adjacent pairs."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(
        1, 2).reshape(rows.shape)


def as_peft(pairs, folder):
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA,
         "target_modules": sorted({m.split(".")[-1] for m in pairs})}))
    return {f"base_model.model.{m}.lora_{x}.weight": t
            for m, ab in pairs.items() for x, t in zip("AB", ab)}


def as_live(pairs, folder):
    """A model of PEFT's, with its wrappers and its base."""
    base = read_model(folder / "base")
    tensors = {k.replace(".weight", ".default.weight"): v
               for k, v in as_peft(pairs, folder).items()}
    for name, tensor in base.items():
        module = name.removesuffix(".weight")
        tensors["base_model.model." + (
            f"{module}.base_layer.weight" if module in pairs
            else name)] = tensor
    return {"module." + k: v for k, v in tensors.items()}


TUNE = {"q_proj": "attn.q_proj", "k_proj": "attn.k_proj",
        "v_proj": "attn.v_proj", "o_proj": "attn.output_proj",
        "gate_proj": "mlp.w1", "down_proj": "mlp.w2", "up_proj": "mlp.w3"}


def tune_name(module):
    _, _, layer, _, last = module.split(".")
    return f"layers.{layer}.{TUNE[last]}"


def as_torchtune(pairs, folder):
    (folder / "adapter_config.json").write_text(json.dumps(
        {"r": RANK, "lora_alpha": ALPHA, "peft_type": "LORA",
         "target_modules": sorted({m.split(".")[-1] for m in pairs})}))
    tensors = {}
    for module, (a, b) in pairs.items():
        if module.endswith("q_proj"):
            b = interleaved(b, HEADS)
        if module.endswith("k_proj"):
            b = interleaved(b, GROUPS)
        tensors[tune_name(module) + ".lora_a.weight"] = a
        tensors[tune_name(module) + ".lora_b.weight"] = b
    return tensors


def as_mlx(pairs, folder):
    (folder / "adapter_config.json").write_text(json.dumps(
        {"fine_tune_type": "lora", "num_layers": LAYERS, "model": "base",
         "lora_parameters": {"rank": RANK, "scale": ALPHA / RANK,
                             "dropout": 0.0}}))
    return {f"{m}.lora_{x}": t.t().contiguous() for m, ab in pairs.items()
            for x, t in zip("ab", ab)}


def as_litgpt(pairs, folder):
    """q, k and v in one: lora_A stacked, rows of lora_B one after the other."""
    import torch

    there = [x for x in "qkv" if f"model.layers.0.self_attn.{x}_proj" in pairs]
    (folder / "hyperparameters.yaml").write_text(
        f"checkpoint_dir: base\nlora_r: {RANK}\nlora_alpha: {ALPHA:g}\n" +
        "".join(f"lora_{n}: {'true' if n[0] in there else 'false'}\n"
                for n in ("query", "key", "value")))
    tensors = {}
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}.", f"transformer.h.{layer}."
        fused = [pairs[f"{at}self_attn.{x}_proj"] for x in there]
        if fused:
            for i, x in enumerate("AB"):
                tensors[f"{to}attn.qkv.lora_{x}"] = torch.cat(
                    [ab[i] for ab in fused])
        for hf, own in (("self_attn.o_proj", "attn.proj"),
                        ("mlp.gate_proj", "mlp.fc_1"),
                        ("mlp.up_proj", "mlp.fc_2"),
                        ("mlp.down_proj", "mlp.proj")):
            if at + hf in pairs:
                for x, t in zip("AB", pairs[at + hf]):
                    tensors[f"{to}{own}.lora_{x}"] = t
    return tensors


def grouped(q, k, v):
    """Megatron's rows: for each group its q heads, k and v."""
    import torch

    parts = [t.view(GROUPS, -1, SIZE, t.shape[1]) for t in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, q.shape[1])


BRIDGE = {"o_proj": "self_attention.linear_proj", "down_proj": "mlp.linear_fc2"}
NEMO = {"self_attention.linear_qkv": "self_attention.adapter_layer.lora_kqv_adapter",
        "self_attention.linear_proj":
            "self_attention.adapter_layer.lora_dense_attention_adapter",
        "mlp.linear_fc1": "mlp.adapter_layer.lora_hto4h_adapter",
        "mlp.linear_fc2": "mlp.adapter_layer.lora_4htoh_adapter"}


def shared(pairs):
    """q, k and v have one A, gate and up another: Bridge's LoRA."""
    made = dict(pairs)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for first, others in (("self_attn.q_proj", ("k_proj", "v_proj")),
                              ("mlp.gate_proj", ("up_proj",))):
            for other in others:
                name = at + first.split(".")[0] + "." + other
                made[name] = (pairs[at + first][0], pairs[name][1])
    return made


def megatron(pairs, named):
    """Layers stacked, as in a distributed checkpoint."""
    import torch

    tensors = {}
    for layer in range(LAYERS):
        def of(name, layer=layer):
            return pairs[f"model.layers.{layer}.{name}"]
        attention = [of(f"self_attn.{x}_proj") for x in "qkv"]
        mlp = [of("mlp.gate_proj"), of("mlp.up_proj")]
        rows = {"self_attention.linear_qkv": (
                    attention[0][0], grouped(*(ab[1] for ab in attention))),
                "mlp.linear_fc1": (mlp[0][0],
                                   torch.cat([ab[1] for ab in mlp])),
                "self_attention.linear_proj": of("self_attn.o_proj"),
                "mlp.linear_fc2": of("mlp.down_proj")}
        for module, ab in rows.items():
            for x, t in zip(("in", "out"), ab):
                tensors.setdefault(named(module, x), []).append(t)
    return {k: torch.stack(v) for k, v in tensors.items()}


def as_bridge(pairs, folder):
    (folder / "run_config.yaml").write_text(
        "model:\n  tensor_model_parallel_size: 1\npeft:\n"
        "  _target_: megatron.bridge.peft.lora.LoRA\n"
        f"  alpha: {ALPHA:g}\n  dim: {RANK}\n  dropout: 0.1\n")
    return megatron(pairs, lambda module, x:
                    f"decoder.layers.{module}.adapter.linear_{x}.weight")


def as_nemo(pairs, folder):
    (folder / "model_config.yaml").write_text(
        f"peft:\n  lora_tuning:\n    adapter_dim: {RANK}\n"
        f"    alpha: {ALPHA:g}\n")
    stacked = megatron(pairs, lambda module, x: f"{NEMO[module]}.linear_{x}")
    return {f"model.decoder.layers.{layer}.{k}.weight": v[layer].clone()
            for k, v in stacked.items() for layer in range(LAYERS)}


def as_kohya(pairs, folder):
    """Alpha of each module; another model's factors beside them."""
    import torch

    tensors = {}
    for module, (a, b) in pairs.items():
        flat = "lora_te_" + module.replace(".", "_")
        tensors[flat + ".lora_down.weight"] = a
        tensors[flat + ".lora_up.weight"] = b
        tensors[flat + ".alpha"] = torch.tensor(ALPHA)
    tensors["lora_unet_mid_block_to_q.lora_down.weight"] = torch.ones(4, 8)
    tensors["lora_unet_mid_block_to_q.lora_up.weight"] = torch.ones(8, 4)
    tensors["lora_unet_mid_block_to_q.alpha"] = torch.tensor(1.0)
    return tensors


def as_diffusers(pairs, folder):
    """Old names; alpha is the rank's by definition."""
    import torch

    scaled = {m: (a, b * (ALPHA / RANK)) for m, (a, b) in pairs.items()}
    del torch
    return {f"text_encoder.{m}.lora_linear_layer.{x}.weight": t
            for m, ab in scaled.items() for x, t in zip(("down", "up"), ab)}


# dialect: what makes it, whether it becomes PEFT's by itself
DIALECTS = {"peft": (as_peft, True), "live": (as_live, True),
            "torchtune": (as_torchtune, True), "mlx": (as_mlx, True),
            "litgpt": (as_litgpt, True), "bridge": (as_bridge, True),
            "nemo": (as_nemo, True), "kohya": (as_kohya, False),
            "diffusers": (as_diffusers, True)}
SAYS = {"peft": "peft", "live": "peft"}


def beside(path, folder):
    """Files that say alpha stand beside the container's."""
    for name in ("adapter_config.json", "hyperparameters.yaml",
                 "run_config.yaml", "model_config.yaml"):
        if path.is_dir() and (folder / name).exists():
            shutil.copy(folder / name, path)


def pairs_for(dialect):
    return shared(factors()) if dialect in ("bridge", "nemo") else factors()


def added(folder, dialect, container):
    base = make_base(folder / "base", "llama", "bfloat16")
    pairs = pairs_for(dialect)
    tensors = DIALECTS[dialect][0](pairs, folder)
    path = CONTAINERS[container](tensors, folder)
    beside(path, folder)
    said = CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
                   "--adapter", path)
    want = merged(read_model(base), pairs)
    if dialect == "diffusers":
        want = merged(read_model(base), {
            m: (a, b * (ALPHA / RANK)) for m, (a, b) in pairs.items()}, 1)
    compare(read_model(folder / "out"), want, "the formula")
    if dialect == "kohya":
        check('"unet" are for another model' in said.err, said.err)
    shown = CKPT.inspect(path)["adapter"]
    alpha = RANK if dialect == "diffusers" else ALPHA
    check_equal((shown["type"], shown["dialect"], shown["rank"],
                 shown["alpha"]),
                ("LORA", SAYS.get(dialect, dialect), RANK, alpha), "inspect")


def into_peft(folder, dialect):
    """peft loads what becomes of it, and merges the same weights."""
    base = make_base(folder / "base", "llama", "float32")
    tensors = DIALECTS[dialect][0](pairs_for(dialect), folder)
    path = put_safetensors(tensors, folder)
    CKPT.ok("convert", path, folder / "peft", "--to", "safetensors",
            "--config-from", base)
    CKPT.ok("convert", base, folder / "one", "--to", "safetensors",
            "--adapter", path)
    CKPT.ok("convert", base, folder / "two", "--to", "safetensors",
            "--adapter", folder / "peft")
    compare(read_model(folder / "two"), read_model(folder / "one"),
            "the adapter's in its own names")
    got = merged_by_peft(base, folder / "peft")
    if blas_sums_in_order():
        compare(read_model(folder / "one"), got, "peft")


# -------------------------------------------------------------- by the library
def bare_torchtune():
    peer = Path(sys.prefix) / "torchtune"
    if not peer.is_dir():
        raise Skip("torchtune is not installed (scripts/test.sh does it)")
    sys.path.insert(0, str(peer))
    for name in ("torchtune", "torchtune.models", "torchtune.models.llama2",
                 "torchtune.modules", "torchtune.modules.peft"):
        if name in sys.modules:
            continue
        module = types.ModuleType(name)
        module.__path__ = [str(peer / name.replace(".", "/"))]
        sys.modules[name] = module
    import importlib

    return importlib.import_module("torchtune.models.convert_weights")


def torchtune_itself(folder):
    """Its own conversion to PEFT's names gives the same factors."""
    convert = bare_torchtune()
    base = make_base(folder / "base", "llama", "float32")
    tensors = as_torchtune(factors(), folder)
    path = put_torch(tensors, folder, "adapter_0.pt")
    CKPT.ok("convert", path, folder / "peft", "--to", "safetensors",
            "--config-from", base)
    want = convert.tune_to_peft_adapter_weights(
        tensors, num_heads=HEADS, num_kv_heads=GROUPS, dim=WIDTH,
        head_dim=SIZE)
    got = read_model(folder / "peft")
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check((got[name] == tensor).all(), f"{name} is another")


def mlx_itself(folder):
    """W + (scale B') A', as its LoRALinear fuses them."""
    peer = Path(sys.prefix) / "mlx"
    if not peer.is_dir():
        raise Skip("mlx is not installed (scripts/test.sh does it)")
    sys.path.insert(0, str(peer))
    try:
        import mlx.core as mx
    except ImportError as error:
        raise Skip(f"{error}") from error
    import numpy as np
    import torch

    base = make_base(folder / "base", "llama", "float32")
    root = folder / "adapters"
    root.mkdir()
    tensors = as_mlx(factors(), root)
    mx.save_safetensors(str(root / "adapters.safetensors"),
                        {k: mx.array(v.numpy()) for k, v in tensors.items()})
    mx.save_safetensors(str(root / "0000100_adapters.safetensors"),
                        {"older": mx.array(np.zeros(3, np.float32))})
    CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
            "--adapter", root)
    got, before = read_model(folder / "out"), read_model(base)
    for name, tensor in tensors.items():
        if not name.endswith("lora_a"):
            continue
        weight = name.removesuffix("lora_a") + "weight"
        a = mx.array(tensor.numpy())
        b = mx.array(tensors[name.removesuffix("a") + "b"].numpy())
        delta = np.array(mx.matmul((ALPHA / RANK) * b.T, a.T))
        want = before[weight] + torch.from_numpy(delta)
        apart = (got[weight] - want).abs().max().item()
        check(apart < 1e-6, f"{weight}: {apart} apart")
    check_equal(CKPT.inspect(root)["adapter"]["dialect"], "mlx", "inspect")
    # mlx_lm of early 2024 computed scale * alpha / rank; today's, scale.
    path = root / "adapter_config.json"
    said = json.loads(path.read_text())
    scale = said["lora_parameters"].pop("scale")
    for numbers, word in (({}, "no scale"), ({"scale": scale, "alpha": 2 * RANK}, "both scale"),
                          ({"scale": scale, "alpha": RANK}, "")):
        path.write_text(json.dumps(
            said | {"lora_parameters": said["lora_parameters"] | numbers}))
        one = ("convert", base, folder / "again", "--to", "safetensors", "--adapter", root)
        if word:
            refused = CKPT.run(*one).want(5).err
            check(word in refused and "--adapter-alpha" in refused, refused)
        CKPT.ok(*one, *(("--adapter-alpha", ALPHA) if word else ()))
        for name, tensor in read_model(folder / "again").items():
            check(torch.equal(tensor, got[name]), f"{numbers}: {name}")
        shutil.rmtree(folder / "again")


# ------------------------------------------------------------------ variations
def convolutions(folder):
    """kohya's factors of 1x1 and 3x3 kernels, and a base of diffusers' names."""
    import torch

    torch.manual_seed(2)
    base = folder / "unet"
    base.mkdir()
    weights = {"conv_in.weight": torch.randn(8, 4, 3, 3),
               "mid_block.attentions.0.proj_in.weight":
                   torch.randn(8, 8, 1, 1),
               "mid_block.attentions.0.to_out.0.weight": torch.randn(8, 8)}
    put_safetensors(weights, base, "diffusion_pytorch_model.safetensors")
    (base / "config.json").write_text(json.dumps(
        {"_class_name": "UNet2DConditionModel"}))
    tensors, want = {}, dict(weights)
    for i, (name, weight) in enumerate(weights.items()):
        out, inner, *kernel = weight.shape
        rank, alpha = 2 + i, 1.0 + i
        down = torch.randn(rank, inner, *kernel)
        up = torch.randn(out, rank, *[1] * len(kernel))
        flat = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
        tensors.update({flat + ".lora_down.weight": down,
                        flat + ".lora_up.weight": up,
                        flat + ".alpha": torch.tensor(alpha)})
        delta = up.flatten(1) @ down.flatten(1)
        want[name] = weight + alpha / rank * delta.reshape(weight.shape)
    lora = put_safetensors(tensors, folder, metadata={
        "ss_network_dim": "2", "ss_network_alpha": "1.0",
        "ss_base_model_version": "sd_v1"})
    CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
            "--adapter", lora)
    got = {k: v for p in (folder / "out").glob("*.safetensors")
           for k, v in read_model(folder / "out").items()}
    for name, tensor in want.items():
        apart = (got[name] - tensor).abs().max().item()
        check(apart < 1e-5, f"{name}: {apart} apart")
    shown = CKPT.ok("inspect", lora).out
    for word in ("LoRA of sd_v1", "rank 2", "alpha 1"):
        check(word in shown, shown[:600])
    # A whole pipeline in one file has a prefix before the unet's names.
    put_safetensors({"model.diffusion_model." + k: v
                     for k, v in weights.items()}, folder, "whole.safetensors")
    CKPT.ok("convert", folder / "whole.safetensors", folder / "w.safetensors",
            "--adapter", lora)


def inside(folder):
    """A live model with its adapter: --adapter-alpha adds it."""
    import torch

    base = make_base(folder / "base", "llama", "bfloat16")
    pairs = shared(factors())
    # In Megatron's names, its layers stacked.
    CKPT.ok("convert", base, folder / "mg", "-q", "--to", "megatron_torch_dist")
    CKPT.ok("convert", folder / "mg", folder / "mg.pt", "-q", "--dialect",
            "keep", "--model-only")
    plain = torch.load(folder / "mg.pt", weights_only=True)
    while "embedding.word_embeddings.weight" not in plain:
        plain = plain.get("model") or plain["state_dict"]
    factors_of = as_bridge(pairs, folder)
    (folder / "run_config.yaml").unlink()
    wrapped = {}
    modules = {k.split(".adapter.")[0] for k in factors_of}
    for name, tensor in plain.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        for module in modules:
            if name.startswith(module + "."):
                name = name.replace(module, module + ".to_wrap")
        wrapped[name] = tensor
    put_torch({**wrapped, **factors_of}, folder, "live.pt")
    command = ("convert", folder / "live.pt", folder / "out", "--to",
               "safetensors", "--family", "llama", "--config-from", base)
    said = CKPT.run(*command).want(5)
    check("--adapter-alpha" in said.err and "--drop" not in said.err, said.err)
    CKPT.ok(*command, "--adapter-alpha", ALPHA)
    compare(read_model(folder / "out"), merged(read_model(base), pairs),
            "the formula")
    # In PEFT's, without a configuration.
    tensors = as_live(factors(), folder)
    (folder / "adapter_config.json").unlink()
    put_torch(tensors, folder, "peft.pt")
    CKPT.ok("convert", folder / "peft.pt", folder / "hf", "--to",
            "safetensors", "--config-from", base, "--adapter-alpha", ALPHA)
    compare(read_model(folder / "hf"), merged(read_model(base), factors()),
            "the formula")


def ranks(folder):
    """Canonical factors in a distributed checkpoint for two ranks."""
    base = make_base(folder / "base", "llama", "bfloat16")
    pairs = factors()
    source = put_safetensors(as_peft(pairs, folder), folder)
    CKPT.ok("convert", source, folder / "mg", "--to", "megatron_torch_dist",
            "--tp", 2, "--config-from", base)
    CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
            "--adapter", folder / "mg")
    compare(read_model(folder / "out"), merged(read_model(base), pairs),
            "the formula")
    # The base may be Megatron's, too, and the target.
    CKPT.ok("convert", base, folder / "dist", "--to", "megatron_torch_dist")
    CKPT.ok("convert", folder / "dist", folder / "sum", "--to",
            "megatron_torch_dist", "--tp", 2, "--adapter", folder / "mg")
    CKPT.ok("convert", folder / "sum", folder / "back", "--to", "safetensors")
    compare(read_model(folder / "back"), merged(read_model(base), pairs),
            "the formula")


def experts(folder):
    """One adapter for all experts of a layer, and one for each of them."""
    import torch

    _, transformers, _ = peers()
    torch.manual_seed(7)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48,
        moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_experts=4,
        num_experts_per_tok=2, max_position_embeddings=64)
    base = folder / "base"
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(base)
    before = read_model(base)
    if not any(".experts.0.gate_proj" in name for name in before):
        raise Skip("this transformers stacks experts")
    for count in (None, 4):
        root = folder / str(count)
        root.mkdir()
        axes = (2,) if count is None else (2, count)
        shapes = {"linear_fc1.adapter.linear_in": (RANK, 32),
                  "linear_fc1.adapter.linear_out": (32, RANK),
                  "linear_fc2.adapter.linear_in": (RANK, 16),
                  "linear_fc2.adapter.linear_out": (32, RANK)}
        at = "decoder.layers.mlp.experts.experts."
        tensors = {f"{at}{k}.weight": torch.randn(*axes, *shape) / 8
                   for k, shape in shapes.items()}
        path = put_dcp(tensors, root)
        (path / "run_config.yaml").write_text(
            f"peft:\n  alpha: {ALPHA:g}\n  dim: {RANK}\n")
        CKPT.ok("convert", base, root / "out", "--to", "safetensors",
                "--adapter", path)
        pairs = {}
        for layer in range(2):
            for expert in range(4):
                def of(name, layer=layer, expert=expert):
                    one = tensors[f"{at}{name}.weight"][layer]
                    return one if count is None else one[expert]
                a1, b1 = (of(f"linear_fc1.adapter.linear_{x}")
                          for x in ("in", "out"))
                name = f"model.layers.{layer}.mlp.experts.{expert}."
                pairs[name + "gate_proj"] = a1, b1[:16]
                pairs[name + "up_proj"] = a1, b1[16:]
                pairs[name + "down_proj"] = tuple(
                    of(f"linear_fc2.adapter.linear_{x}")
                    for x in ("in", "out"))
        compare(read_model(root / "out"), merged(before, pairs),
                "the formula")


def halves(folder):
    """torchtune rotates halves of Qwen's heads, as transformers does; rows of
    a model that is not known are refused."""
    base = make_base(folder / "base", "llama", "float32")
    pairs = factors(["self_attn.q_proj", "mlp.down_proj"])
    tensors = {k: v for k, v in as_torchtune(pairs, folder).items()
               if "q_proj.lora_b" not in k}
    for module, (_, b) in pairs.items():
        if module.endswith("q_proj"):
            tensors[tune_name(module) + ".lora_b.weight"] = b
    path = put_torch(tensors, folder)
    config = base / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({**said, "model_type": "qwen2",
                                  "architectures": ["Qwen2ForCausalLM"]}))
    CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
            "--adapter", path, "--allow-missing", "*")
    compare(read_model(folder / "out"), merged(read_model(base), pairs),
            "the formula")
    config.write_text(json.dumps({**said, "model_type": "olmo2"}))
    run = CKPT.run("convert", base, folder / "no", "--to", "safetensors",
                   "--adapter", path, "--allow-missing", "*").want(5)
    check("rotary rows of olmo2" in run.err, run.err)


def said_in_header(folder):
    """diffusers' own record of rank, alpha and exceptions to them."""
    import torch

    torch.manual_seed(4)
    base = folder / "transformer"
    base.mkdir()
    names = ["blocks.0.attn.to_q", "blocks.1.attn.to_q", "proj_out"]
    weights = {f"{n}.weight": torch.randn(16, 16) for n in names}
    put_safetensors(weights, base, "diffusion_pytorch_model.safetensors")
    tensors, pairs = {}, {}
    for name in names:
        rank = 8 if name == "proj_out" else RANK
        a, b = torch.randn(rank, 16) / 4, torch.randn(16, rank) / 4
        tensors[f"transformer.{name}.lora_A.weight"] = a
        tensors[f"transformer.{name}.lora_B.weight"] = b
        alpha = 3 if name == "blocks.1.attn.to_q" else ALPHA
        pairs[name] = a, b * (alpha / rank)
    record = {"transformer.r": RANK, "transformer.lora_alpha": ALPHA,
              "transformer.rank_pattern": {"proj_out": 8},
              "transformer.alpha_pattern": {"blocks.1.attn.to_q": 3},
              "transformer.target_modules": ["to_q", "proj_out"]}
    lora = put_safetensors(tensors, folder, "pytorch_lora_weights.safetensors",
                           {"lora_adapter_metadata": json.dumps(record)})
    CKPT.ok("convert", base, folder / "out", "--to", "safetensors",
            "--adapter", lora)
    got = read_model(folder / "out")
    for name, (a, b) in pairs.items():
        apart = (got[name + ".weight"] - weights[name + ".weight"]
                 - b @ a).abs().max().item()
        check(apart < 1e-5, f"{name}: {apart} apart")


def other_base(folder):
    """The frozen weights of a live model show that it had another base."""
    base = make_base(folder / "base", "llama", "bfloat16")
    tensors = as_live(factors(), folder)
    name = next(k for k in tensors if k.endswith("embed_tokens.weight"))
    tensors[name] = tensors[name][:-8].clone()
    path = put_torch(tensors, folder)
    run = CKPT.run("convert", base, folder / "no", "--to", "safetensors",
                   "--adapter", path).want(5)
    check("trained on a base in which this is" in run.err, run.err)


def refusals(folder):
    import torch

    base = make_base(folder / "base", "llama", "float32")

    def refused(words, path, *options, code=5):
        run = CKPT.run("convert", base, folder / "no", "--to", "safetensors",
                       "--adapter", path, *options)
        check_equal(run.code, code, f"exit status\n{run}")
        for word in words:
            check(word in run.err, f"not said: {word}\n{run}")
        check(not (folder / "no").exists(), "written all the same")

    one = {k: v for k, v in as_torchtune(factors(), folder).items()}
    (folder / "adapter_config.json").unlink()
    path = put_torch(one, folder)
    refused(["torchtune", "alpha", "--adapter-alpha"], path)
    CKPT.ok("convert", base, folder / "yes", "--to", "safetensors",
            "--adapter", path, "--adapter-alpha", ALPHA)
    compare(read_model(folder / "yes"), merged(read_model(base), factors()),
            "the formula")
    refused(["--adapter-alpha"], path, "--adapter-alpha", "nan", code=2)
    for name, tensors, words in (
            ("module", {"layers.0.attn.gate.lora_a.weight": torch.ones(4, 64),
                        "layers.0.attn.gate.lora_b.weight": torch.ones(4, 4)},
             ["layers.0.attn.gate", "no such module"]),
            ("oft", {"lora_te_x.oft_diag": torch.ones(4, 4),
                     "lora_te_x.lora_up.weight": torch.ones(4, 4)},
             ["OFT"]),
            ("kohya", {"lora_unet_a_b.lora_down.weight": torch.ones(4, 64),
                       "lora_unet_a_b.lora_up.weight": torch.ones(64, 4)},
             ["unet: a_b", "the base has no module"]),
            ("half", {k: v for k, v in as_kohya(factors(), folder).items()
                      if not k.endswith("layers_1_mlp_up_proj.lora_up.weight")},
             ["lora_B is missing"]),
            ("shape", {"model.layers.0.mlp.up_proj.lora_a": torch.ones(64, 4),
                       "model.layers.0.mlp.up_proj.lora_b": torch.ones(4, 9)},
             ["up_proj"])):
        code = 4 if name == "half" else 5
        refused(words, put_torch(tensors, folder, f"{name}.pt"),
                "--adapter-alpha", "4", code=code)
    refused(["no adapter"], base, code=3)


def prepare(suite, ckpt):
    global CKPT
    peers()
    CKPT = ckpt
    for container in CONTAINERS:
        for dialect in DIALECTS:
            suite.add(f"{dialect} in {container}", added, dialect, container)
    for dialect, (_, alone) in DIALECTS.items():
        if alone:
            suite.add(f"{dialect} as PEFT's", into_peft, dialect)
    suite.add("torchtune's own conversion", torchtune_itself)
    suite.add("MLX's own files and fusion", mlx_itself)
    suite.add("convolutions", convolutions)
    suite.add("inside of its base", inside)
    suite.add("factors of several ranks", ranks)
    suite.add("experts", experts)
    suite.add("torchtune's rotary rows", halves)
    suite.add("diffusers' header", said_in_header)
    suite.add("a live model of another base", other_base)
    suite.add("refusals", refusals)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
