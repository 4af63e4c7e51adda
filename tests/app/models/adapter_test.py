#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters (PEFT) added to weights: the same bits as peft's merge_and_unload.

peft makes each adapter here, loads it and merges it. What it computes is
defined again below, in numpy: the products are summed in the order of the rank,
with one rounding each. Where this machine's BLAS does that (MKL does for ranks
up to 128 and matrices that are not tiny), ckpt must give peft's bits; elsewhere
it must give those of the definition. DoRA's lengths are sums of squares in an
order known only to BLAS, so both are compared with float64.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

from support import (DATA, Skip, Suite, check, check_equal,
                     read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "transformers_5.12.1"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
          "down_proj"]


def peers():
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    try:
        import peft
        import torch
        import transformers
    except ImportError as error:
        raise Skip(f"{error.name} is not installed") from error
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return torch, transformers, peft


# ------------------------------------------------------------ what is merged
def make_base(folder, kind, dtype):
    torch, transformers, _ = peers()
    torch.manual_seed(11)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=160, n_positions=32, n_embd=64, n_layer=2, n_head=4)
    else:
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=512 if kind == "large" else 64,
            intermediate_size=1100 if kind == "large" else 160, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
            attention_bias=kind == "bias", tie_word_embeddings=kind == "tied")
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def make_adapter(folder, base, seed=3, dtype="float32", saved=False, **options):
    """As training leaves it: all tensors are random. `saved`: "auto" writes
    embeddings and heads that have factors, too."""
    torch, transformers, peft = peers()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif parameter.requires_grad:
                parameter.normal_(std=0.1)
    model.to(getattr(torch, dtype)).save_pretrained(
        folder, save_embedding_layers=saved)
    return folder


def merged_by_peft(base, adapter, weight=1):
    torch, transformers, peft = peers()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype="auto")
    model = peft.PeftModel.from_pretrained(model, adapter)
    for module in model.modules():
        if weight != 1 and hasattr(module, "set_scale"):
            module.set_scale("default", weight)
    model = model.merge_and_unload()
    return {name: tensor.detach() for name, tensor in
            model.state_dict().items()}


def read_model(folder):
    import torch

    kinds = {"f32": torch.float32, "bf16": torch.bfloat16,
             "f16": torch.float16}
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        for name, t in read_safetensors(path).items():
            tensors[name] = torch.frombuffer(
                bytearray(t.data), dtype=kinds[t.dtype]).reshape(t.shape)
    return tensors


# ------------------------------------------------------------ the definition
def product(left, right):
    """In the order of the rank, each step rounded once (fma)."""
    import numpy as np

    out = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for k in range(left.shape[1]):
        step = (left[:, k:k + 1].astype(np.longdouble)
                * right[k:k + 1].astype(np.longdouble))
        out = (out.astype(np.longdouble) + step).astype(np.float32)
    return out


def blas_sums_in_order():
    """Whether torch's product has these bits for the sizes used here."""
    torch, _, _ = peers()
    torch.manual_seed(1)
    for rows, rank, columns in ((64, 8, 64), (160, 8, 64), (64, 4, 160),
                                (32, 8, 64), (256, 8, 64), (64, 16, 256)):
        left, right = torch.randn(rows, rank), torch.randn(rank, columns)
        if ((left @ right).numpy()
                != product(left.numpy(), right.numpy())).any():
            return False
    return True


def defined(base, adapter, weight=1.0):
    """base + scale * B A of one plain adapter, according to its file."""
    import numpy as np
    import torch

    config = json.loads((Path(adapter) / "adapter_config.json").read_text())
    factors = read_model(adapter)
    result = dict(base)
    for name in factors:
        if not name.endswith(".lora_A.weight"):
            continue
        module = name[len("base_model.model."):-len(".lora_A.weight")]
        left = factors[name.replace("lora_A", "lora_B")].float().numpy()
        right = factors[name].float().numpy()
        scale = np.float32(weight * config["lora_alpha"] / config["r"])
        delta = torch.from_numpy(product(left, right) * scale)
        old = base[module + ".weight"]
        result[module + ".weight"] = (old.float() + delta).to(old.dtype)
    return result


# ------------------------------------------------------------------ the cases
def compare(got, want, what):
    import torch

    # A tied head is in a state dict and not in a file.
    want = {k: v for k, v in want.items() if k in got
            or k not in ("lm_head.weight",)}
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check_equal(got[name].dtype, tensor.dtype, f"{name}: dtype")
        if not torch.equal(got[name], tensor):
            differ = (got[name] != tensor).sum().item()
            apart = (got[name].double() - tensor.double()).abs().max().item()
            check(False, f"{name}: {differ} of {tensor.numel()} elements are "
                         f"not {what}'s, by {apart:.3g} at most")


def changed(got, base):
    import torch

    return {k for k in got if not torch.equal(got[k], base[k])}


def merge(base, out, adapters, *options):
    named = [x for a in adapters for x in ("--adapter", a)]
    CKPT.ok("convert", base, out, "-q", "--to", "safetensors", *named,
            *options)
    return read_model(out)


def as_peft(folder, kind, dtype, count, options, stored="float32"):
    base = make_base(folder / "base", kind, dtype)
    adapter = make_adapter(folder / "adapter", base, dtype=stored, **options)
    got = merge(base, folder / "out", [adapter])
    check_equal(len(changed(got, read_model(base))), count,
                "tensors that changed")
    if not blas_sums_in_order():
        if kind == "llama" and set(options) <= {"r", "target_modules"}:
            compare(got, defined(read_model(base), adapter), "the definition")
        raise Skip("this machine's BLAS does not sum in the order of the rank")
    compare(got, merged_by_peft(base, adapter), "peft")


def by_definition(folder):
    """Cases that no BLAS affects."""
    base = make_base(folder / "base", "llama", "float32")
    adapter = make_adapter(folder / "adapter", base, r=24, lora_alpha=7,
                           target_modules=LINEAR)
    got = merge(base, folder / "out", [adapter], "--adapter-weight", "0.3")
    compare(got, defined(read_model(base), adapter, 0.3), "the definition")


def weighted(folder):
    base = make_base(folder / "base", "llama", "bfloat16")
    first = make_adapter(folder / "first", base, seed=1, r=4,
                         target_modules=["q_proj", "down_proj"])
    second = make_adapter(folder / "second", base, seed=2, r=8,
                          target_modules=["q_proj", "v_proj"])
    got = merge(base, folder / "out", [first, second], "--adapter-weight",
                "0.7", "--adapter-weight", "-1.3")
    if not blas_sums_in_order():
        raise Skip("this machine's BLAS does not sum in the order of the rank")
    # One at a time: peft 0.18 rounds the factors of a second adapter to the
    # base's dtype when it is loaded next to a first.
    between = folder / "between"
    shutil.copytree(base, between)
    _, transformers, _ = peers()
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.load_state_dict(merged_by_peft(base, first, 0.7))
    model.save_pretrained(between)
    compare(got, merged_by_peft(between, second, -1.3), "peft")


def lengths(folder, kind, dtype, options):
    """DoRA: at least as close to float64 as peft is; its own rounding."""
    import torch

    base = make_base(folder / "base", kind, dtype)
    adapter = make_adapter(folder / "adapter", base, use_dora=True, **options)
    got = merge(base, folder / "out", [adapter])
    want = merged_by_peft(base, adapter)
    before = read_model(base)
    # In float64, by peft itself.
    _, transformers, peft = peers()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float64)
    model = peft.PeftModel.from_pretrained(model, adapter,
                                           autocast_adapter_dtype=False)
    exact = model.double().merge_and_unload().state_dict()
    moved = changed(got, before)
    check(moved, "nothing changed")
    for name in moved:
        error = (got[name].double() - exact[name]).abs()
        most = 4 * torch.finfo(torch.float32).eps * exact[name].abs().max()
        if dtype != "float32":
            most = most + exact[name].abs() * torch.finfo(
                want[name].dtype).eps / 2
        check((error <= most).all(), f"{name}: off by {error.max():.3g}")
        same = (got[name] == want[name]).double().mean()
        check(same > (0.2 if dtype == "float32" else 0.995),
              f"{name}: {same:.4f} of the elements are peft's")


def any_base(folder):
    """However the base is stored, the sum is the same."""
    base = make_base(folder / "base", "llama", "bfloat16")
    adapter = make_adapter(folder / "adapter", base, r=4,
                           target_modules=LINEAR, modules_to_save=["lm_head"])
    want = merge(base, folder / "want", [adapter])
    check(changed(want, read_model(base)) >= {"lm_head.weight"},
          "lm_head is not the adapter's")
    for name, options in (("shards", ["--to", "safetensors",
                                      "--max-shard-size", "20KB"]),
                          ("torch", ["--to", "torch"]),
                          ("megatron", ["--to", "megatron_legacy", "--tp", 2]),
                          ("dcp", ["--to", "megatron_torch_dist", "--tp", 2,
                                   "--pp", 2])):
        CKPT.ok("convert", base, folder / name, "-q", *options)
        compare(merge(folder / name, folder / f"{name}_out", [adapter],
                      "--max-shard-size", "50KB"), want, "the same base")
    # To another format and dialect in one command.
    CKPT.ok("convert", base, folder / "there", "-q", "--to", "megatron_legacy",
            "--tp", 2, "--pp", 2, "--adapter", adapter, "--verify")
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors")
    compare(read_model(folder / "back"), want, "the same base")
    CKPT.ok("convert", base, folder / "f32", "-q", "--to", "safetensors",
            "--adapter", adapter, "--dtype", "f32")
    compare(read_model(folder / "f32"),
            {k: v.float() for k, v in want.items()}, "the sum, cast")


def other_prefix(folder):
    """A base whose names lack `model.`: patterns are for the adapter's names."""
    torch, transformers, _ = peers()
    base = make_base(folder / "base", "llama", "float32")
    q_proj = "model.layers.1.self_attn.q_proj"
    adapter = make_adapter(folder / "adapter", base, r=4, lora_alpha=6,
                           target_modules=["q_proj", "v_proj"],
                           rank_pattern={q_proj: 2}, alpha_pattern={
                               f"^{q_proj}": 9})
    transformers.AutoModel.from_pretrained(
        base, dtype=torch.float32).save_pretrained(folder / "bare")
    want = merge(base, folder / "want", [adapter])
    got = merge(folder / "bare", folder / "out", [adapter])
    compare(got, {k.removeprefix("model."): v for k, v in want.items()
                  if k != "lm_head.weight"}, "the whole model")


def any_block(folder):
    """Tiles, threads and parts of rows make no difference."""
    base = make_base(folder / "base", "large", "bfloat16")
    adapter = make_adapter(folder / "adapter", base, r=16, lora_alpha=32,
                           target_modules=LINEAR + ["embed_tokens"])
    want = merge(base, folder / "one", [adapter], "-j", 1)
    for name, options in (("many", ["-j", 4, "--max-mem", "64MB"]),
                          ("direct", ["--io", "direct"])):
        compare(merge(base, folder / name, [adapter], *options), want,
                "one thread")
    CKPT.ok("convert", base, folder / "tp", "-q", "--to", "megatron_legacy",
            "--tp", 4, "--adapter", adapter)
    CKPT.ok("convert", folder / "tp", folder / "back", "-q", "--to",
            "safetensors")
    compare(read_model(folder / "back"), want, "one thread")
    plain = CKPT.ok("convert", base, folder / "plain", "-q", "--to",
                    "safetensors", "-j", 2, "--max-mem", "64MB")
    added = CKPT.ok("convert", base, folder / "added", "-q", "--to",
                    "safetensors", "-j", 2, "--max-mem", "64MB", "--adapter",
                    adapter)
    if not CKPT.sanitized:
        check(added.rss - plain.rss < 24 << 20,
              f"{added.rss >> 20} MiB with an adapter, "
              f"{plain.rss >> 20} MiB without")


def from_trainer(folder):
    run = DATA / "runs/hf_trainer_lora/ckpt/checkpoint-4"
    out = CKPT.ok("inspect", run)
    check("LoRA of base-model: rank 4, alpha 8; down_proj, q_proj, v_proj; "
          "whole: lm_head" in out.out, out.out[:800])
    said = CKPT.inspect(run)["adapter"]
    check_equal((said["type"], said["rank"], said["alpha"], said["base"],
                 said["modules_to_save"]),
                ("LORA", 4, 8.0, "base-model", ["lm_head"]), "adapter")
    check_equal(CKPT.inspect(DATA / "hf/llama_tied_bf16/ckpt")["adapter"],
                None, "adapter of a model")


def carried(folder):
    """An adapter itself, rewritten: peft loads it as before."""
    base = make_base(folder / "base", "llama", "float32")
    adapter = make_adapter(folder / "adapter", base, r=4,
                           target_modules=["q_proj"])
    want = merge(base, folder / "want", [adapter])
    CKPT.ok("convert", adapter, folder / "again", "-q", "--to", "safetensors")
    check((folder / "again/adapter_config.json").read_bytes()
          == (adapter / "adapter_config.json").read_bytes(),
          "adapter_config.json is not carried")
    check((folder / "again/adapter_model.safetensors").exists(),
          f"no adapter_model.safetensors: {os.listdir(folder / 'again')}")
    compare(merge(base, folder / "out", [folder / "again"]), want, "before")
    merged_by_peft(base, folder / "again")
    refused = CKPT.run("convert", adapter, folder / "no", "--to",
                       "megatron_legacy")
    check_equal(refused.code, 5, f"exit status\n{refused}")
    check("adapter" in refused.err, str(refused))


def watched(folder):
    """A base with a manifest is checked, though it isn't what is written."""
    made = make_base(folder / "made", "llama", "float32")
    base = folder / "base"
    CKPT.ok("convert", made, base, "-q", "--to", "safetensors")
    adapter = make_adapter(folder / "adapter", base, r=4,
                           target_modules=["q_proj"])
    merge(base, folder / "out", [adapter])
    CKPT.ok("verify", folder / "out")
    file = base / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    bad = CKPT.run("convert", base, folder / "bad", "--to", "safetensors",
                   "--adapter", adapter)
    check_equal(bad.code, 4, f"exit status\n{bad}")
    check(not (folder / "bad").exists(), "it was written all the same")


def edit(folder, name, change):
    path = folder / name
    config = json.loads(path.read_text())
    config.update(change)
    path.write_text(json.dumps(config))


def refusals(folder):
    base = make_base(folder / "base", "tied", "float32")
    other = make_base(folder / "other", "gpt2", "float32")
    good = make_adapter(folder / "good", base, r=4,
                        target_modules=["q_proj"])

    def refused(code, said, source, adapter, *options):
        run = CKPT.run("convert", source, folder / "out", "--to",
                       "safetensors", "--adapter", adapter, *options)
        check_equal(run.code, code, f"exit status\n{run}")
        check(said in run.err, f"not said: {said}\n{run}")
        check(not (folder / "out").exists(), "written all the same")

    refused(5, "the base doesn't have this tensor, nor 1 more", other, good)
    refused(3, "no adapter", base, base)
    refused(2, "--adapter-weight", base, good, "--adapter-weight", "1",
            "--adapter-weight", "2")
    refused(2, "whole model", base, good, "--keys", "*q_proj*")
    for change, code, said in (
            ({"peft_type": "IA3"}, 5, "type IA3"),
            ({"init_lora_weights": "pissa"}, 5, "pissa"),
            ({"init_lora_weights": "loftq"}, 5, "changes at load"),
            ({"init_lora_weights": "newest"}, 5, "not known"),
            ({"layer_replication": [[0, 2]]}, 5, "layer_replication"),
            ({"target_parameters": ["mlp.experts"]}, 5, "target_parameters"),
            ({"use_dora": True}, 4, "lora_magnitude_vector"),
            ({"r": 5}, 4, "ranks 4 and 4"),
            ({"rank_pattern": {"q_proj": 3}}, 4, "says 3"),
            ({"rank_pattern": {"q_(proj": 4}}, 4, "expression"),
            ({"r": "four"}, 4, "wrong kind")):
        bad = folder / "bad"
        shutil.copytree(good, bad)
        edit(bad, "adapter_config.json", change)
        refused(code, said, base, bad)
        shutil.rmtree(bad)
    # The same factors, scaled in another way, are another adapter.
    for change, name in (({"lora_alpha": 99}, "adapter.lora_alpha"),
                         ({"use_rslora": True}, "adapter.use_rslora"),
                         ({"alpha_pattern": {"q_proj": 3}},
                          "adapter.alpha_pattern"),
                         ({"lora_dropout": 0.5}, None)):
        other = folder / "other_scale"
        shutil.copytree(good, other)
        edit(other, "adapter_config.json", change)
        run = CKPT.run("verify", good, other).want(1 if name else 0)
        check(not name or f"fact: {name}:" in run.out, str(run))
        shutil.rmtree(other)
    # What a newer peft may have: said, or refused.
    shutil.copytree(good, folder / "newer")
    edit(folder / "newer", "adapter_config.json",
         {"use_novel_lora": True, "novel_config": None})
    refused(5, "use_novel_lora", base, folder / "newer", "--strict-config")
    run = CKPT.ok("convert", base, folder / "warned", "--to", "safetensors",
                  "--adapter", folder / "newer")
    check("not known: use_novel_lora;" in run.err, run.err)
    # peft keeps the old embedding as the head.
    whole = make_adapter(folder / "whole", base, r=4, target_modules=["q_proj"],
                         modules_to_save=["embed_tokens"])
    refused(5, "head is tied to this embedding", base, whole)
    rows = make_adapter(folder / "rows", base, r=4,
                        target_modules=["embed_tokens"])
    run = CKPT.ok("convert", base, folder / "said", "--to", "safetensors",
                  "--adapter", rows)
    check("tied to this embedding and changes with it" in run.err, run.err)
    # A tied head is in no file, so there is nothing to add to.
    head = make_adapter(folder / "head", make_base(
        folder / "untied", "llama", "float32"), r=4,
        target_modules=["q_proj"], modules_to_save=["lm_head"])
    refused(5, "lm_head.weight", base, head)


def untied(folder):
    """Modules of their own on a tied base: what peft's merged model computes,
    in a folder whose config.json no longer says that the two are one."""
    torch, transformers, _ = peers()
    base = make_base(folder / "base", "tied", "float32")
    for saved in (["lm_head"], ["embed_tokens"], ["lm_head", "embed_tokens"]):
        name = "_".join(saved)
        adapter = make_adapter(folder / name, base, r=4, target_modules=[
            "q_proj", "down_proj"], modules_to_save=saved)
        out = folder / f"{name}_out"
        CKPT.ok("convert", base, out, "--to", "safetensors", "--adapter",
                adapter, "--untie")
        want = merged_by_peft(base, adapter)
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        got = model.state_dict()
        check_equal(sorted(got), sorted(want), f"{name}: names")
        for key, tensor in want.items():
            torch.testing.assert_close(got[key], tensor, msg=lambda m: f"{key}: {m}")
        check(model.lm_head.weight is not model.model.embed_tokens.weight,
              f"{name}: tied")


def quantized(folder, kind, arguments):
    """Weights that --dtype decodes in the same run: the sum of the decoded
    numbers, in f32 or rounded to bf16, has the bits of two separate runs."""
    import quantized_peer
    import torch
    from safetensors.torch import load_file, save_file

    base = make_base(folder / "base", "llama", "bfloat16")
    adapter = make_adapter(folder / "adapter", base, r=8, lora_alpha=12,
                           target_modules=LINEAR)
    codes = folder / "codes"
    shutil.copytree(base, codes)
    tensors = load_file(codes / "model.safetensors")
    numbers = {}
    g = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        parts, _, number, said = getattr(quantized_peer, kind)(
            g, *tensors.pop(name).shape, *arguments)
        numbers[name] = number
        tensors |= {name[:-len("weight")] + end: part.contiguous()
                    for end, part in parts.items()}
    save_file(tensors, codes / "model.safetensors", {"format": "pt"})
    edit(codes, "config.json", {"quantization_config": said})
    run = CKPT.run("convert", codes, folder / "no", "--to", "safetensors",
                   "--adapter", adapter).want(5)
    check("--dtype bf16 dequantizes" in run.err, run.err)
    check(not (folder / "no").exists(), "written all the same")
    rest = {k: v for k, v in tensors.items() if k.endswith(("norm.weight",
            "embed_tokens.weight", "lm_head.weight"))}
    for dtype, made in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        plain = {k: v.to(made) for k, v in {**rest, **numbers}.items()}
        got = merge(codes, folder / dtype, [adapter], "--dtype", dtype)
        compare(got, defined(plain, adapter), f"the definition in {dtype}")
        check("quantization_config" not in json.loads(
            (folder / dtype / "config.json").read_text()), "still quantized")
        CKPT.ok("convert", codes, folder / f"{dtype}_plain", "-q", "--to",
                "safetensors", "--dtype", dtype)
        compare(merge(folder / f"{dtype}_plain", folder / f"{dtype}_two",
                      [adapter]), got, "the same in one run")
    # The sum of the numbers is cast: f16 has no room for all codes before.
    got = merge(codes, folder / "f16", [adapter], "--dtype", "f16")
    compare(got, {k: v.half() for k, v in read_model(folder / "f32").items()},
            "the sum, cast")
    # By rows and columns of ranks, in small blocks.
    CKPT.ok("convert", codes, folder / "there", "-q", "--to",
            "megatron_legacy", "--tp", 2, "--pp", 2, "--adapter", adapter,
            "--dtype", "bf16", "--max-mem", "32MiB", "--verify")
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors")
    compare(read_model(folder / "back"), read_model(folder / "bf16"),
            "the same by ranks")


def holes(folder):
    """Nothing is added to a base that lacks part of a weight: the result would
    look whole."""
    import pickle
    base = make_base(folder / "base", "llama", "float32")
    good = make_adapter(folder / "good", base, r=4, target_modules=["q_proj"])
    CKPT.ok("convert", base, folder / "dcp", "--to", "dcp", "--dp", "2", "-q",
            "--no-manifest")
    index = folder / "dcp" / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    name = next(one for one in metadata.state_dict_metadata
                if one.endswith("layers.1.self_attn.q_proj.weight"))
    lost = metadata.state_dict_metadata[name].chunks.pop()
    for at in list(metadata.storage_data):
        if at.fqn == name and at.offset == lost.offsets:
            del metadata.storage_data[at]
    index.write_bytes(pickle.dumps(metadata))
    run = CKPT.run("convert", folder / "dcp", folder / "out", "--to",
                   "safetensors", "--adapter", good)
    check(run.code in (4, 5), f"exit status {run.code}\n{run}")
    check("q_proj" in run.err, f"the weight is not named\n{run}")
    check(not (folder / "out").exists(), "written all the same")


def hubs_names(folder, model_type, saved):
    """peft names what transformers' modules are called; save_pretrained wrote
    the base in the names that the Hub has."""
    peers()
    import model_types

    model, _ = model_types.small_config(model_type)
    as_merged(folder, model, r=4, target_modules=["q_proj", "v_proj"],
              modules_to_save=saved)


HEADS = {
    "Bert, sequences": ("BertForSequenceClassification", "SEQ_CLS"),
    "Bert, tokens": ("BertForTokenClassification", "TOKEN_CLS"),
    "Qwen2, sequences": ("Qwen2ForSequenceClassification", "SEQ_CLS"),
    "Qwen2, tokens": ("Qwen2ForTokenClassification", "TOKEN_CLS"),
}


def heads(folder, what, bias):
    """peft saves a classifier's head whole, under whichever name it has; with
    bias="all" its bias once more, as it is trained and as it was."""
    _, transformers, _ = peers()
    kind, task = HEADS[what]
    model = getattr(transformers, kind)
    sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2,
                 num_attention_heads=2, num_key_value_heads=2, num_labels=3,
                 intermediate_size=32, pad_token_id=0)
    said = as_merged(folder, model(model.config_class(**sizes)), r=2,
                     task_type=task, bias=bias)
    check("modules_to_save" not in said, said)


def as_merged(folder, model, **options):
    """Merged like peft: by merge_and_unload() and save_pretrained()."""
    torch, _, peft = peers()
    model.save_pretrained(folder / "base")
    tuned = peft.get_peft_model(model, peft.LoraConfig(**options))
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    tuned.save_pretrained(folder / "adapter")
    # From the file: bias="lora_only" trains biases that peft does not save.
    peft.PeftModel.from_pretrained(
        type(model).from_pretrained(folder / "base"),
        folder / "adapter").merge_and_unload().save_pretrained(folder / "merged")
    out = folder / "out"
    said = CKPT.run("convert", folder / "base", out, "--to", "safetensors",
                    "--adapter", folder / "adapter", "--no-fsync").want(0).err
    got, want = read_model(out), read_model(folder / "merged")
    check_equal(sorted(got), sorted(want), "names")
    before = read_model(folder / "base")
    changed = {n for n in want if not torch.equal(want[n], before[n])}
    check(len(changed) > 2, f"{changed}")
    for name, tensor in want.items():
        check(torch.allclose(got[name], tensor, atol=1e-6), name)
        check_equal(torch.equal(got[name], before[name]), name not in changed, name)
    return said


def names_of_no_adapter(folder):
    """PEFT leaves the base as it is where the factors have other names, or its
    numbers are none: verify says so."""
    torch, transformers, peft = peers()
    from safetensors.torch import load_file, save_file

    base = make_base(folder / "base", "llama", "float32")
    adapter = make_adapter(folder / "adapter", base, r=4, target_modules=["q_proj"])
    before, file = read_model(base), adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    own, live = "base_model.model.", ("lora_A.weight", "lora_A.default.weight")
    ways = {"own": lambda n: n, "bare": lambda n: n.removeprefix(own),
            "twice": lambda n: own + n, "wrapped": lambda n: "module." + n,
            "compiled": lambda n: n.replace(own, own + "_orig_mod."),
            "live": lambda n: n.replace(*live).replace("lora_B", "lora_B.default")}
    for what, way in ways.items():
        save_file({way(n): t for n, t in tensors.items()}, file)
        merged = merged_by_peft(base, adapter)
        same = all(torch.equal(before[n], t) for n, t in merged.items() if n in before)
        check_equal(same, what != "own", what)
        said = CKPT.run("verify", adapter, "--json")
        check_equal(said.json()["verdict"], "mismatch" if same else "ok", f"{what}: {said}")
    save_file(tensors, file)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": None}))
    CKPT.run("verify", adapter).want(1)


def tied_by_default(folder):
    """A head that no rule knows is tied where config.json does not say no."""
    torch, transformers, peft = peers()
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_mel_bins=4, max_source_positions=8,
        max_target_positions=8, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=0))
    model.save_pretrained(folder / "base")
    peft.get_peft_model(model, peft.LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"],
    )).save_pretrained(folder / "adapter")
    for options in ((), ("--untie",)):
        CKPT.run("convert", folder / "base", folder / "out", "--to", "safetensors",
                 "--adapter", folder / "adapter", *options).want(5)
        check(not (folder / "out").exists(), f"{options}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    small = {"r": 8, "lora_alpha": 12, "target_modules": LINEAR}
    for dtype in ("float32", "bfloat16", "float16"):
        suite.add(f"LoRA in {dtype}", as_peft, "llama", dtype, 14, small)
    suite.add("an adapter in bf16", as_peft, "llama", "bfloat16", 14, small,
              "bfloat16")
    rows = {
        "rsLoRA": ("llama", 14, {**small, "use_rslora": True}),
        "ranks and alphas by pattern": (
            "llama", 8, {"r": 8, "lora_alpha": 16,
                         "target_modules": ["q_proj", "v_proj", "o_proj",
                                            "down_proj"],
                         "rank_pattern": {"v_proj": 4,
                                          r"layers\.1\..*down_proj": 16},
                         "alpha_pattern": {"0.self_attn.q_proj": 3}}),
        "some layers": ("llama", 2, {"r": 4, "target_modules": ["q_proj",
                                                                "v_proj"],
                                     "layers_to_transform": [1]}),
        "whole modules": ("llama", 4, {"r": 4, "target_modules": ["q_proj"],
                                       "modules_to_save": ["lm_head",
                                                           "embed_tokens"]}),
        "embeddings": ("llama", 3, {"r": 8, "target_modules": [
            "embed_tokens", "q_proj"]}),
        "tied embeddings": ("tied", 3, {"r": 8, "target_modules": [
            "embed_tokens", "q_proj"]}),
        "embeddings and heads, as saved": ("llama", 4, {
            "r": 8, "saved": "auto",
            "target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
        "all biases": ("bias", 12, {"r": 8, "bias": "all",
                                   "target_modules": ["q_proj", "v_proj"]}),
        "Conv1D": ("gpt2", 8, {"r": 8, "fan_in_fan_out": True,
                               "target_modules": ["c_attn", "c_proj",
                                                  "c_fc"]}),
        "biases of factors": ("bias", 8, {"r": 8, "lora_bias": True,
                                          "target_modules": ["q_proj",
                                                             "v_proj"]}),
    }
    for name, (kind, count, options) in rows.items():
        suite.add(name, as_peft, kind, "float32", count, options)
        suite.add(f"{name}, bf16", as_peft, kind, "bfloat16", count, options)
    suite.add("by definition", by_definition)
    suite.add("several, with weights", weighted)
    for name, kind, options in (
            ("DoRA", "llama", small),
            ("DoRA of embeddings", "llama",
             {"r": 8, "target_modules": ["embed_tokens", "v_proj"]}),
            ("DoRA of Conv1D", "gpt2", rows["Conv1D"][2])):
        for dtype in ("float32", "bfloat16"):
            suite.add(f"{name} in {dtype}", lengths, kind, dtype, options)
    suite.add("any base", any_base)
    suite.add("other prefix", other_prefix)
    suite.add("any block", any_block)
    suite.add("a run of transformers' Trainer", from_trainer)
    suite.add("an adapter is carried", carried)
    suite.add("a base with a manifest", watched)
    suite.add("a base with a hole", holes)
    for kind, arguments in (("fp8_block", ((32, 64),)), ("int8", (True, 32)),
                            ("gptq", (4, 32, True)), ("awq", (32,))):
        suite.add(f"a base in {kind}", quantized, kind, arguments)
    suite.add("refusals", refusals)
    suite.add("untied", untied)
    suite.add("names of no adapter", names_of_no_adapter)
    suite.add("tied by default", tied_by_default)
    for what in HEADS:
        for bias in ("none", "all", "lora_only"):
            suite.add(f"{what}: biases of {bias}", heads, what, bias)
    for model_type, saved in (("qwen2_5_vl", None), ("qwen2_vl", ["lm_head"]),
                              ("mixtral", ["gate"])):
        suite.add(f"the Hub's names of {model_type}", hubs_names, model_type, saved)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
