#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names and values of models: prefixes of wrapped ones, native checkpoints,
buffers and towers, casts beside scales and pins, rows past the vocabulary.

Each case is named by what went wrong once, and looks at the bytes with other
readers than ckpt's.
"""

import itertools
import json
import struct
from pathlib import Path

from support import (
    DATA, Suite, Tensor, check, check_equal, compare, read_safetensors)

CKPT = None  # set by prepare
ROOT = Path(__file__).resolve().parents[3]
LLAMA = DATA / "hf/llama/ckpt"
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "f8_e4m3": 1, "u8": 1, "bool": 1,
         "i32": 4}
SPELLED = {"f8_e4m3": "F8_E4M3"}


def model(case="llama"):
    return read_safetensors(DATA / "hf" / case / "expected.safetensors")


def write(folder, tensors, config=None):
    """A directory as transformers writes it: one file, and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {
            "dtype": SPELLED.get(t.dtype, t.dtype.upper()),
            "shape": list(t.shape), "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.data)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def written(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out.update(read_safetensors(path))
    return out


def config_of(case="llama"):
    return json.loads((DATA / "hf" / case / "ckpt/config.json").read_text())


def as_torch(t):
    import torch

    kind = {"f32": torch.float32, "bf16": torch.bfloat16,
            "f16": torch.float16}[t.dtype]
    return torch.frombuffer(bytearray(t.data), dtype=kind).reshape(t.shape)


# ------------------------------------------------------------------ prefixes
def test_prefix(folder, prefix, inner):
    """A wrapped model in a torch file and in DCP becomes transformers'."""
    import torch
    import torch.distributed.checkpoint as dcp

    want = model()
    state = {prefix + n.replace(".self_attn.", f".{inner}self_attn."):
             as_torch(t) for n, t in want.items()}
    file = folder / "wrapped.pt"
    torch.save(state, file)
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    for source in (file, folder / "dcp"):
        out = folder / (source.name + "_hf")
        result = CKPT.ok("convert", source, out, "--to", "safetensors",
                         "--config-from", LLAMA, "-v")
        compare(written(out), want, f"{source.name} {prefix}")
        check((out / "config.json").exists(), "there is no config.json")
        if prefix:
            check(f"'{prefix}'" in result.err, f"the prefix is not told\n"
                  f"{result}")
        CKPT.ok("verify", source, out)
    mcore = folder / "mcore"
    CKPT.ok("convert", folder / "dcp", mcore, "--to", "megatron_torch_dist",
            "--config-from", LLAMA)
    CKPT.ok("verify", LLAMA, mcore)


def test_other_names(folder):
    """Names that belong to no model keep a prefix that no wrapper adds, and no
    hint leads back to the error that it is for."""
    tensors = {"other." + n.replace("q_proj", "query"): t
               for n, t in model().items()}
    source = write(folder / "src", tensors)
    CKPT.ok("convert", source, folder / "out", "--to", "torch")
    CKPT.ok("convert", source, folder / "same", "--to", "safetensors")
    compare(written(folder / "same"), tensors, "names that nobody knows")
    foreign = write(folder / "foreign", {"a.b": next(iter(tensors.values()))})
    result = CKPT.run("convert", foreign, folder / "x", "--to", "safetensors",
                      "--config-from", LLAMA).want(2)
    check("--dialect" not in result.err and "--rename" in result.err,
          f"{result}")


# ---------------------------------------------------------------- to hf names
def test_native(folder, case, options):
    """A native checkpoint becomes one that transformers opens."""
    out = folder / "out"
    CKPT.ok("convert", DATA / case / "ckpt", out, "--to", "safetensors",
            *options)
    names = set(written(out))
    check("model.embed_tokens.weight" in names, f"names: {sorted(names)[:5]}")
    config = json.loads((out / "config.json").read_text())
    if "olmo" not in case:  # its own configuration has that name
        check("num_hidden_layers" in config, "config.json is another's")
    CKPT.ok("convert", DATA / case / "ckpt", folder / "kept", "--to",
            "safetensors", "--dialect", "keep", *options)
    check(not names & set(written(folder / "kept")) - {"lm_head.weight"},
          "--dialect keep renames")


def test_native_with_optimizer(folder):
    """What can't be renamed is reported once and kept whole."""
    out = folder / "out"
    case = DATA / "fairseq2_native/llama_tp2dp1_blocking/ckpt"
    result = CKPT.ok("convert", case, out, "--to", "safetensors")
    check_equal(result.err.count("names stay"), 1, "warnings")
    check("decoder.layer_norm.weight" in written(out), "a name is lost")


def test_vllm_to_hf(folder, case):
    """qkv_proj and gate_up_proj are taken apart, rows unpadded."""
    source = DATA / "hf" / case / "ckpt"
    fused, out = folder / "vllm", folder / "hf"
    CKPT.ok("convert", source, fused, "--to", "vllm", "--tp", "2")
    CKPT.ok("verify", source, fused)
    CKPT.ok("convert", fused, out, "--to", "safetensors")
    compare(written(out), model(case), "hf to vllm and back")
    check_equal(json.loads((out / "config.json").read_text()),
                config_of(case), "config.json")


def test_tied_modelopt(folder):
    """A tied head that modelopt stores twice is not an extra tensor."""
    source = DATA / "hf/llama_tied_bf16/ckpt"
    CKPT.ok("convert", source, folder / "m", "--to", "modelopt", "--pp", "2")
    CKPT.ok("convert", folder / "m", folder / "hf", "--to", "safetensors")
    compare(written(folder / "hf"), model("llama_tied_bf16"), "the way back")
    CKPT.ok("verify", source, folder / "m")


# ----------------------------------------------------- parameters and buffers
def multimodal(folder):
    tensors = {}
    for name, t in model("gemma3_text_f32").items():
        tensors["language_model." + name] = t
    for i in range(3):
        tensors[f"vision_tower.encoder.layers.{i}.weight"] = Tensor(
            "f32", (2, 2), bytes(range(16)))
    tensors["multi_modal_projector.mm_input_projection_weight"] = Tensor(
        "f32", (2,), bytes(8))
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = Tensor(
        "f32", (2,), bytes(8))
    text = config_of("gemma3_text_f32")
    return write(folder / "mm", tensors, {
        "model_type": "gemma3", "text_config": text,
        "architectures": ["Gemma3ForConditionalGeneration"]}), tensors


def test_tower(folder):
    """A tower without rules is carried or refused, never ignored."""
    source, tensors = multimodal(folder)
    CKPT.ok("convert", source, folder / "pt", "--to", "torch")
    CKPT.ok("convert", folder / "pt", folder / "st", "--to", "safetensors")
    compare(written(folder / "st"), tensors, "hf to torch and back")
    to = ("--to", "megatron_torch_dist", "--family", "gemma3_text")
    result = CKPT.run("convert", source, folder / "m", *to).want(5)
    check("5 tensors unknown" in result.err and "vision_tower" in result.err,
          f"{result}")
    CKPT.ok("convert", source, folder / "m", *to, "--drop", "vision_tower.*",
            "--drop", "multi_modal_projector.*")


def test_ignore_lists(folder):
    """No family's pattern matches a name that a family has a rule for."""
    import fnmatch

    names, patterns = {}, {}  # of each side: only these ever meet
    for path in sorted((ROOT / "models/families").glob("*.json")):
        family = json.loads(path.read_text())
        if "dialects" not in family:  # the ledger of facts
            continue
        sides = {"hf": family.get("hf", {}), **family["dialects"]}
        for name, side in sides.items():
            patterns.setdefault(name, set()).update(side.get("ignore", ()))
            for rule in side.get("rules", ()):
                names.setdefault(name, set()).add(rule["to"])
                names.setdefault("hf", set()).update(rule["hf"] or ())
    check(len(names["hf"]) > 300 and patterns["hf"],
          "the family files are read wrongly")
    for side, all_names in names.items():
        for pattern, name in itertools.product(patterns[side], all_names):
            plain = name.replace("{", "").replace("}", "")
            check(not fnmatch.fnmatch(plain, pattern),
                  f"{pattern} takes {name}")


def test_family_file_ignores(folder):
    """A user's own family can't ignore a parameter either."""
    family = json.loads((ROOT / "models/families/llama.json").read_text())
    family["hf"]["ignore"] = ["model.vision_tower.*"]
    file = folder / "mine.json"
    file.write_text(json.dumps(family))
    result = CKPT.run("convert", LLAMA, folder / "out", "--to",
                      "megatron_torch_dist", "--family-file", file).want(2)
    check("vision_tower" in result.err or "ignore" in result.err, f"{result}")


def test_frequencies(folder):
    """Rotary frequencies are left out if they match theta."""
    import torch

    config = config_of()
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    half = config["head_dim"] // 2 if config.get("head_dim") else (
        config["hidden_size"] // config["num_attention_heads"] // 2)
    right = 1.0 / (theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half)))
    for name, values, code in (("right", right, 0), ("wrong", right * 2, 5)):
        t = Tensor("f32", (half,), values.numpy().tobytes())
        key = "model.layers.0.self_attn.rotary_emb.inv_freq"
        source = write(folder / name, {**model(), key: t}, config)
        for to in ("megatron_torch_dist", "vllm"):
            result = CKPT.run("convert", source, folder / (name + to), "--to",
                              to).want(code)
            check(code == 0 or "inv_freq" in result.err, f"{result}")
            CKPT.ok("convert", source, folder / (name + to + "2"), "--to", to,
                    "--drop", key)


def test_masks(folder):
    """A causal mask is left out if it really is one."""
    size = 8
    rows = bytes(int(j <= i) for i in range(size) for j in range(size))
    other = bytes([rows[0] ^ 1]) + rows[1:]
    config = config_of("gpt2_f32")
    prefix = "" if "wte.weight" in model("gpt2_f32") else "transformer."
    for name, data, code in (("right", rows, 0), ("wrong", other, 5)):
        extra = {f"{prefix}h.0.attn.bias": Tensor(
            "u8", (1, 1, size, size), data)}
        source = write(folder / name, {**model("gpt2_f32"), **extra}, config)
        CKPT.run("convert", source, folder / (name + "_m"), "--to",
                 "megatron_torch_dist").want(code)


# --------------------------------------------------------------------- values
def test_pins(folder):
    """The router's bias stays f32 on every path, whatever --dtype says."""
    source = DATA / "hf/deepseek_v3_bf16/ckpt"
    to_hf = ("--to", "safetensors", "--dialect", "hf", "--dtype", "f16")
    dist = ("--to", "megatron_torch_dist")
    CKPT.ok("convert", source, folder / "hf", "--to", "safetensors",
            "--dtype", "f16")
    CKPT.ok("convert", source, folder / "m", *dist)
    CKPT.ok("convert", source, folder / "m16", *dist, "--dtype", "f16")
    CKPT.ok("reshard", folder / "m", folder / "mm", "--tp", "2", "--dtype",
            "f16")
    for path in ("m", "m16", "mm"):
        CKPT.ok("convert", folder / path, folder / (path + "_hf"), *to_hf)
    for path in ("m16", "mm"):
        kinds = {t["dtype"] for t in CKPT.inspect(folder / path)["tensors"]
                 if t["name"].endswith("expert_bias")}
        check_equal(kinds, {"f32"}, f"router biases of {path}")
    for to in ("vllm", "megatron_legacy", "megatron_zarr", "dcp", "torch"):
        CKPT.ok("convert", source, folder / to, "--to", to, "--dtype", "f16")
        kinds = {(t["name"].endswith(("expert_bias", "correction_bias")),
                  t["dtype"])
                 for t in CKPT.inspect(folder / to)["tensors"]
                 if not t["name"].endswith("_scale")}  # vLLM's own
        check_equal(kinds, {(True, "f32"), (False, "f16")}, to)
    CKPT.ok("convert", folder / "vllm", folder / "vllm2", "--to", "vllm",
            "--tp", "2", "--dtype", "f16")
    check_equal({t["dtype"] for t in CKPT.inspect(folder / "vllm2")["tensors"]
                 if t["name"].endswith("correction_bias")}, {"f32"}, "again")
    for path in ("hf", "m_hf", "m16_hf", "mm_hf"):
        for name, t in written(folder / path).items():
            want = "f32" if name.endswith("correction_bias") else "f16"
            check_equal(t.dtype, want, f"{path}: {name}")
            if want == "f32":
                check_equal(t.data, model("deepseek_v3_bf16")[name].data, name)


def quantized(folder, weight, scale):
    tensors = dict(model())
    name = "model.layers.0.mlp.down_proj.weight"
    shape = tensors.pop(name).shape
    base = name.removesuffix("weight")
    tensors[base + weight[0]] = Tensor(
        weight[1], shape, bytes(shape[0] * shape[1] * SIZES[weight[1]]))
    tensors[base + scale] = Tensor("f32", (1, 1), b"\0\0\x80\x3f")
    return write(folder / "src", tensors, config_of()), tensors, base


def test_quantized(folder, weight, scale):
    """Codes and scales stay together, uncast, or nothing is written.
    quantized_test covers what --dtype makes of them."""
    source, tensors, base = quantized(folder, weight, scale)
    CKPT.ok("convert", source, folder / "pt", "--to", "torch")
    CKPT.ok("convert", folder / "pt", folder / "same", "--to", "safetensors")
    compare(written(folder / "same"), tensors, "as it was")
    if weight[1] != "f8_e4m3":  # no zeros; an unknown layout
        result = CKPT.run("convert", source, folder / "x", "--to",
                          "safetensors", "--dtype", "bf16")
        check(result.code in (4, 5) and base in result.err, f"{result}")
    result = CKPT.run("convert", source, folder / "x", "--to",
                      "megatron_torch_dist").want(5)
    check("--drop" not in result.err, f"a hint that loses scales\n{result}")
    for options in (("--exclude", "*" + scale), ("--keys", "*" + weight[0])):
        CKPT.run("convert", source, folder / "x", "--to", "safetensors",
                 *options).want(5)
    CKPT.run("convert", source, folder / "x", "--to", "megatron_torch_dist",
             "--drop", "*" + scale).want(5)


def test_config_dtype(folder):
    """config.json states the weights' dtype."""
    for to in ("safetensors", "torch", "modelopt", "vllm"):
        CKPT.ok("convert", LLAMA, folder / to, "--to", to, "--dtype", "bf16")
        config = json.loads((folder / to / "config.json").read_text())
        key = "dtype" if "dtype" in config else "torch_dtype"
        check_equal(config[key], "bfloat16", f"{to}: {key}")
        check_equal({**config, key: 0}, {**config_of(), key: 0}, "the rest")


def test_vocabulary_rows(folder):
    """Rows past the vocabulary are cut if they are zero, or on demand."""
    one = folder / "m.safetensors"
    CKPT.ok("convert", LLAMA, one, "--to", "safetensors", "--dialect", "mcore")
    names = ("embedding.word_embeddings.weight", "output_layer.weight")
    tensors = read_safetensors(one)
    rows = tensors[names[0]].shape[0]
    for kind, byte, code in (("zero", 0, 0), ("trained", 1, 5)):
        padded = dict(tensors)
        for name in names:
            t = tensors[name]
            more = bytes([byte]) * (len(t.data) // rows * 4)
            padded[name] = Tensor(t.dtype, (rows + 4, t.shape[1]),
                                  t.data + more)
        source = write(folder / kind, padded)
        to = ("--to", "safetensors", "--dialect", "hf", "--config-from", LLAMA)
        result = CKPT.run("convert", source, folder / (kind + "_hf"), *to)
        result.want(code)
        if code:
            check("--vocab-size" in result.err, f"{result}")
            CKPT.ok("convert", source, folder / (kind + "_hf"), *to,
                    "--vocab-size", rows)
        compare(written(folder / (kind + "_hf")), model(), kind)


def test_vocabulary_multiple(folder):
    """torch_dist to torch_dist with a different number of rows."""
    CKPT.ok("convert", LLAMA, folder / "a", "--to", "megatron_torch_dist")
    for command in ("convert", "reshard"):
        out = folder / command
        CKPT.ok(command, folder / "a", out, "--to", "megatron_torch_dist",
                "--make-vocab-size-divisible-by", "16", "--tp", "2")
        rows = {t["shape"][0] for t in CKPT.inspect(out)["tensors"]
                if t["name"].startswith("embedding.word")}
        check_equal(rows, {64}, "rows")
        CKPT.ok("verify", LLAMA, out)


def test_mtp_copies(folder):
    """Copies in the layers that predict further tokens come back."""
    source = DATA / "hf/deepseek_v3_mtp_bf16/ckpt"
    copies = [n for n in model("deepseek_v3_mtp_bf16")
              if n.endswith("shared_head.head.weight")]
    check(copies, "the golden has no copies")
    CKPT.ok("convert", source, folder / "m", "--to", "megatron_torch_dist")
    CKPT.ok("convert", folder / "m", folder / "hf", "--to", "safetensors",
            "--dialect", "hf")
    compare(written(folder / "hf"), model("deepseek_v3_mtp_bf16"), "back")


def test_layers(folder):
    """num_layers follows --layers, and so do lists with one value per layer."""
    config = {**config_of("gemma2_f32")}
    names = config["layer_types"]
    source = write(folder / "src", model("gemma2_f32"), config)
    CKPT.ok("convert", source, folder / "st", "--to", "safetensors",
            "--layers", "0")
    few = json.loads((folder / "st/config.json").read_text())
    check_equal(few["num_hidden_layers"], 1, "num_hidden_layers")
    check_equal(few["layer_types"], names[:1], "layer_types")
    for to in ("megatron_torch_dist", "olmo_core", "vllm", "meta"):
        CKPT.ok("convert", LLAMA, folder / to, "--to", to, "--layers", "0")
        facts = CKPT.inspect(folder / to)["facts"]
        check_equal(facts["layers"]["value"], 1, to)
    CKPT.ok("convert", folder / "megatron_torch_dist", folder / "back", "--to",
            "safetensors")
    back = json.loads((folder / "back/config.json").read_text())
    check_equal(back["num_hidden_layers"], 1, "the way back")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for prefix in ("model.", "app.model.", "module.", "_orig_mod.",
                   "_forward_module.", "state_dict.",
                   "state_dict.module._orig_mod.model."):
        suite.add(f"prefix {prefix}", test_prefix, prefix, "")
    suite.add("prefix inside", test_prefix, "model.",
              "_checkpoint_wrapped_module.")
    suite.add("names of no model", test_other_names)
    for case, options in (
            ("fairseq2_native/llama_tp2dp1_blocking", ("--model-only",)),
            ("olmo_core_dcp/trainer_fsdp_w2", ("--model-only",)),
            ("meta/llama", ())):
        suite.add(f"native {case}", test_native, case, options)
    suite.add("native with its optimizer", test_native_with_optimizer)
    for case in ("llama", "llama_tied_bf16", "qwen3_bf16", "gemma_bf16",
                 "phi3_bf16"):
        suite.add(f"vllm to hf, {case}", test_vllm_to_hf, case)
    suite.add("tied modelopt gains a head", test_tied_modelopt)
    suite.add("vision tower vanishes", test_tower)
    suite.add("ignore swallows a parameter", test_ignore_lists)
    suite.add("ignore of a family file", test_family_file_ignores)
    suite.add("inv_freq unproven", test_frequencies)
    suite.add("causal mask unproven", test_masks)
    suite.add("router bias is cast", test_pins)
    for weight, scale in (
            (("weight", "f8_e4m3"), "weight_scale_inv"),
            (("weight", "f8_e4m3"), "weight_scale"),
            (("qweight", "i32"), "scales"),
            (("weight_packed", "u8"), "weight_scale")):
        suite.add(f"quantized {weight[1]} {scale}", test_quantized, weight,
                  scale)
    suite.add("config.json's dtype stays", test_config_dtype)
    suite.add("rows that are not zero are cut", test_vocabulary_rows)
    suite.add("vocabulary of torch_dist", test_vocabulary_multiple)
    suite.add("MTP copies don't come back", test_mtp_copies)
    suite.add("num_layers after --layers", test_layers)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
