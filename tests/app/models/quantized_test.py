#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantized weights become numbers on the way: each way of quantizing, shapes
that blocks don't divide, each dtype, in one file, in many, in pieces.

What the numbers are says quantized_peer.py, in plain torch; that this is what
transformers and compressed-tensors make of the same codes is tested against
both where they are installed.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import quantized_peer as peer
from support import (
    Skip, Suite, check, check_equal, compare, from_torch, read_safetensors)

CKPT = None  # set by prepare
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
STEM = "model.layers.0.mlp.down_proj."
COMPRESSED = Path(sys.prefix) / "compressed_tensors"

# name -> (function of quantized_peer, arguments)
KINDS = {
    "fp8_128": (peer.fp8_block, (256, 384)),
    "fp8_odd": (peer.fp8_block, (300, 200)),
    "fp8_small": (peer.fp8_block, (5, 7)),
    "fp8_64x32": (peer.fp8_block, (100, 90, (64, 32))),
    "fp8_1x32": (peer.fp8_block, (9, 96, (1, 32), "float8_e8m0fnu")),
    "fp8_bf16_scale": (peer.fp8_block, (130, 257, (128, 128), "bfloat16")),
    "fp8_tensor": (peer.fp8_scaled, (33, 65, "tensor")),
    "fp8_scalar": (peer.fp8_scaled, (33, 65, "scalar", "float32")),
    "fp8_channel": (peer.fp8_scaled, (130, 65, "channel")),
    "fp8_rows": (peer.fp8_scaled, (64, 65, "rows", "float32")),
    "fp8_ct_block": (peer.fp8_scaled, (200, 300, "block")),
    "int8_channel": (peer.int8, (40, 30, False)),
    "int8_zeros": (peer.int8, (41, 64, True)),
    "int8_group": (peer.int8, (24, 96, True, 32)),
    # as many groups as 128 would make
    "int8_96": (peer.int8, (24, 192, False, 96)),
    "mxfp4": (peer.mxfp4, (3, 18, 5)),
    "mxfp4_wide": (peer.mxfp4, (2, 130, 40)),
    "gptq": (peer.gptq, (48, 256)),
    "gptq_g32": (peer.gptq, (40, 96, 4, 32)),
    "gptq_act": (peer.gptq, (64, 256, 4, 64, True)),
    "gptq_v2": (peer.gptq, (48, 128, 4, 64, False, "gptq_v2")),
    "gptq_8": (peer.gptq, (36, 64, 8, 32, True)),
    "gptq_2": (peer.gptq, (48, 64, 2, 32)),
    "gptq_bf16": (peer.gptq, (48, 128, 4, 128, True, "gptq", "bfloat16")),
    "awq": (peer.awq, (48, 256)),
    "awq_g32": (peer.awq, (264, 96, 32)),
}
# Whose names they are: compressed-tensors' and vLLM's, ModelOpt's, AutoFP8's.
CACHE_SCALES = {
    "compressed-tensors": ("k_scale", "v_scale", "q_scale"),
    "modelopt": ("k_proj.k_scale", "v_proj.v_scale"),
    "autofp8": ("kv_scale",),
}


def make(kind, seed=0):
    import torch

    function, args = KINDS[kind]
    g = torch.Generator().manual_seed(seed)
    return function(g, *args)


def others():
    """Tensors beside the quantized weights in any such model."""
    import torch

    g = torch.Generator().manual_seed(7)
    return {"model.norm.weight": torch.randn(24, generator=g).bfloat16(),
            "model.embed_tokens.weight":
                torch.randn(9, 24, generator=g).bfloat16()}


def write(folder, tensors, config, files=1):
    """A directory in Hugging Face's form."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    whole = {"model_type": "llama", "torch_dtype": "float16", "hidden_size": 24,
             "quantization_config": config, "vocab_size": 9}
    if config is None:
        del whole["quantization_config"]
    (folder / "config.json").write_text(json.dumps(whole, indent=2))
    names = sorted(tensors)
    if files == 1:
        save_file(tensors, str(folder / "model.safetensors"))
        return folder
    # Splits neighbours: codes and their scales are in different files.
    where = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = {n: tensors[n] for n in names[i::files]}
        if part:
            save_file(part, str(folder / name))
        where |= {n: name for n in part}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def source_of(folder, kind, files=1, seed=0):
    parts, name, number, config = make(kind, seed)
    tensors = {STEM + end: t.contiguous() for end, t in parts.items()}
    source = write(folder, {**tensors, **others()}, config, files)
    return source, {STEM + name: number}


def wanted(numbers, dtype):
    import torch

    to = getattr(torch, DTYPES[dtype])
    return {n: from_torch(t.to(to)) for n, t in {**numbers, **others()}.items()}


def written(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors(path)
    return tensors


def check_config(folder, dtype):
    config = json.loads((folder / "config.json").read_text())
    check_equal(config, {"model_type": "llama", "torch_dtype": DTYPES[dtype],
                         "hidden_size": 24, "vocab_size": 9}, "config.json")


def test_kind(folder, kind, dtype, files):
    """Bit for bit, by `reshard` and by `convert`; no codes are left."""
    source, numbers = source_of(folder / "src", kind, files)
    want = wanted(numbers, dtype)
    out = folder / "out"
    CKPT.ok("convert", source, out, "--to", "safetensors", "--dtype", dtype,
            "--verify", "--max-mem", "32MiB")
    compare(written(out), want, f"{kind} as {dtype}")
    check_config(out, dtype)
    CKPT.ok("verify", out)


def test_pieces(folder, kind, dtype, dp):
    """Codes and scales cut into different shards of their own."""
    source, numbers = source_of(folder / "src", kind)
    CKPT.ok("convert", source, folder / "dcp", "--to", "dcp", "--dp", dp)
    (folder / "dcp/config.json").write_bytes(
        (source / "config.json").read_bytes())
    out = folder / "out"
    CKPT.ok("unshard", folder / "dcp", out, "--dtype", dtype)
    compare(written(out), wanted(numbers, dtype), f"{kind} from {dp} shards")
    check_config(out, dtype)
    cut = folder / "cut"
    CKPT.ok("convert", folder / "dcp", cut, "--to", "dcp", "--dp", 3,
            "--dtype", dtype)
    CKPT.ok("unshard", cut, folder / "whole")
    compare(written(folder / "whole"), wanted(numbers, dtype), "cut again")


def test_large(folder, kind, args, seed):
    """Many tiles, many threads, little memory."""
    import torch

    function, _ = KINDS[kind]
    g = torch.Generator().manual_seed(seed)
    parts, name, number, config = function(g, *args)
    source = write(folder / "src", {STEM + e: t for e, t in parts.items()},
                   config)
    for threads in (1, 3):
        out = folder / f"out{threads}"
        CKPT.ok("convert", source, out, "--to", "safetensors", "--dtype",
                "bf16", "-j", threads, "--max-mem", "16MiB")
        compare(written(out), {STEM + name: from_torch(number.bfloat16())},
                f"{kind} {args}")


def test_random(folder, seed):
    """Random shapes and blocks."""
    rng = random.Random(seed)

    def size(most, of=1):
        return rng.randrange(1, most) * of

    import torch
    g = torch.Generator().manual_seed(seed)
    made = rng.choice([
        lambda: peer.fp8_block(g, size(400), size(400),
                               (rng.choice((1, 16, 128, 100)),
                                rng.choice((1, 32, 128, 7)))),
        lambda: peer.mxfp4(g, size(4), size(40), size(9)),
        lambda: peer.gptq(g, size(12, 16), size(40, 32), rng.choice((4, 8)),
                          32, rng.random() < 0.5,
                          rng.choice(("gptq", "gptq_v2"))),
        lambda: peer.awq(g, size(40, 8), size(12, 32), 32),
        lambda: peer.int8(g, size(50), size(5, 32), rng.random() < 0.5, 32)])()
    parts, name, number, config = made
    source = write(folder / "src", {
        **{STEM + e: t.contiguous() for e, t in parts.items()}, **others()},
        config, rng.choice((1, 3)))
    dtype = rng.choice(list(DTYPES))
    out = folder / "out"
    CKPT.ok("reshard", source, out, "--dtype", dtype)
    compare(written(out), wanted({STEM + name: number}, dtype), "at random")


def test_kept(folder, kind):
    """Without --dtype, codes and scales stay as they are."""
    source, _ = source_of(folder / "src", kind)
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors")
    compare(written(folder / "out"), written(source), "kept")
    config = json.loads((folder / "out/config.json").read_text())
    check("quantization_config" in config, "it went")


def test_dry_run(folder, kind):
    """A dry run knows the sizes."""
    source, _ = source_of(folder / "src", kind)
    args = ("convert", source, folder / "out", "--to", "safetensors",
            "--dtype", "bf16", "--json")
    dry = CKPT.ok(*args, "--dry-run").json()
    check(not (folder / "out").exists(), "something was written")
    CKPT.ok(*args)
    size = (folder / "out/model.safetensors").stat().st_size
    check_equal(dry["bytes_written"], size + (
        folder / "out/config.json").stat().st_size, "bytes written")


def test_manifest(folder, kind):
    """A source with a manifest: later changes are found."""
    source, numbers = source_of(folder / "src", kind)
    CKPT.ok("convert", source, folder / "ours", "--to", "safetensors")
    CKPT.ok("convert", folder / "ours", folder / "a", "--to", "safetensors",
            "--dtype", "bf16")
    compare(written(folder / "a"), wanted(numbers, "bf16"), "with a manifest")
    path = folder / "ours/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    result = CKPT.run("convert", folder / "ours", folder / "b", "--to",
                      "safetensors", "--dtype", "bf16").want(4)
    check("digest" in result.err, str(result))


def edit(source, function):
    """Rewrites the one file of a source."""
    from safetensors.torch import load_file, save_file

    path = str(source / "model.safetensors")
    tensors = load_file(path)
    function(tensors)
    save_file(tensors, path)


HOSTILE = {
    "scale missing": ("fp8_128", "weight_scale_inv", None, 4),
    "scale of another shape": ("fp8_128", "weight_scale_inv",
                               lambda t: t[:1].repeat(7, 1), 4),
    "too few blocks": ("fp8_odd", "weight_scale_inv", lambda t: t[:2, :1], 4),
    "scale NaN": ("fp8_128", "weight_scale_inv", float("nan"), 4),
    "scale infinite": ("fp8_128", "weight_scale_inv", float("inf"), 4),
    "scale zero": ("fp8_128", "weight_scale_inv", 0.0, 4),
    "scale of integers": ("fp8_128", "weight_scale_inv",
                          lambda t: t.int(), 4),
    "exponent NaN": ("mxfp4", "gate_up_proj_scales", 255, 4),
    "scales missing": ("mxfp4", "gate_up_proj_scales", None, 4),
    "groups of another size": ("mxfp4", "gate_up_proj_scales",
                               lambda t: t[..., :2].contiguous(), 4),
    "zeros missing": ("gptq", "qzeros", None, 4),
    "group beyond": ("gptq", "g_idx", 99, 4),
    "group negative": ("gptq", "g_idx", -1, 4),
    "order of another length": ("gptq", "g_idx", lambda t: t[:8], 4),
    "fewer groups of zeros": ("gptq", "qzeros", lambda t: t[:1], 4),
    "three bits": ("gptq", "qzeros", lambda t: t[:, :3].contiguous(), 5),
    "awq cut": ("awq", "qweight", lambda t: t[:, :2].contiguous(), 5),
}


def test_hostile(folder, kind, end, change, code):
    """Refused, with the tensor's name, and nothing written."""
    source, _ = source_of(folder / "src", kind)

    def hurt(tensors):
        name = STEM + end
        if change is None:
            del tensors[name]
        elif callable(change):
            tensors[name] = change(tensors[name]).contiguous()
        else:
            tensors[name].view(-1)[-1] = change

    edit(source, hurt)
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dtype", "bf16").want(code)
    check(STEM in result.err, str(result))
    check(not (folder / "out").exists(), "something was written")


# A config.json that differs from what its maker wrote, and tensors that are
# lost or added: [kind, change of quantization_config, change of the tensors,
# exit status, word].
SAID = {
    "another group size": ("gptq_g32", {"group_size": 64}, None, 4,
                           "groups of 64"),
    "another group size, AWQ": ("awq_g32", {"group_size": 16}, None, 4,
                                "groups of 16"),
    "another group size, compressed-tensors": (
        "int8_group", {"config_groups": {"group_0": {"weights": {
            "num_bits": 8, "strategy": "group", "group_size": 64}}}}, None, 4,
        "in blocks of 1x64"),
    "other bits": ("gptq", {"bits": 8}, None, 5, "codes of 8 bits"),
    "three bits said": ("gptq", {"bits": 3}, None, 5, "2, 4 and 8 bits"),
    "act-order lost": ("gptq_act", {}, lambda t: t.pop(STEM + "g_idx"), 4,
                       "g_idx: is missing"),
    "another block": ("fp8_128", {"weight_block_size": [32, 128]}, None, 4,
                      "in blocks of 32x128"),
    "Marlin": ("gptq", {"checkpoint_format": "marlin"}, None, 5, "marlin"),
    "AutoRound's": ("gptq", {"quant_method": "auto-round"}, None, 5,
                    "auto-round"),
    "AWQ gemv": ("awq", {"version": "gemv"}, None, 5, "gemv"),
    "zeros lost": ("int8_zeros", {"config_groups": {"group_0": {"weights": {
        "num_bits": 8, "symmetric": False}}}},
        lambda t: t.pop(STEM + "weight_zero_point"), 4,
        "weight_zero_point: is missing"),
    "scale lost, ModelOpt's": ("fp8_channel", {"quant_method": "modelopt"},
                               lambda t: t.pop(STEM + "weight_scale"), 4,
                               "weight_scale: is missing"),
    "turned": ("int8_channel", {"transform_config": {"config_groups": {"u": 1}}},
               None, 5, "transform_config"),
    "sparse": ("fp8_channel", {"sparsity_config": {
        "format": "sparse-24-bitmask"}}, None, 5, "sparse-24-bitmask"),
    "activations scaled": ("awq", {}, lambda t: t.update({
        "model.layers.0.mlp.act.scales": t[STEM + "scales"][0].clone()}), 5,
        "scales activations"),
    "activations scaled before": ("fp8_channel", {}, lambda t: t.update({
        STEM + "pre_quant_scale": t["model.norm.weight"].clone()}), 5,
        "scales activations"),
    "other codes beside": ("awq", {}, lambda t: t.update({
        "model.layers.0.self_attn.q_proj.W_q":
            t[STEM + "qweight"].clone()}), 5,
        "no rule makes numbers"),
}
# Unknown ways of quantizing: [method, names and dtypes].
UNKNOWN = {
    "hqq": ("hqq", {"W_q": "uint8", "scale": "float16", "zero": "float16"}),
    "aqlm": ("aqlm", {"codes": "int16", "codebooks": "float16",
                      "scales": "float16"}),
    "quanto": ("quanto", {"weight._data": "int8", "weight._scale": "bfloat16"}),
    "gptq in words of 64": ("gptq", {"qweight": "int64", "qzeros": "int64",
                                     "scales": "float16"}),
    "eetq": ("eetq", {"weight": "int8", "weight_scales": "float16"}),
    "bitnet": ("bitnet", {"weight": "uint8", "weight_scale": "bfloat16"}),
    "bitsandbytes": ("bitsandbytes", {"weight": "int8", "SCB": "float32"}),
    "bitsandbytes, nf4": ("bitsandbytes", {
        "weight": "uint8", "weight.absmax": "float32",
        "weight.quant_map": "float32"}),
    "int4, packed": ("compressed-tensors", {"weight_packed": "int32",
                                            "weight_scale": "bfloat16"}),
    "nvfp4": ("modelopt", {"weight": "uint8", "weight_scale": "float8_e4m3fn",
                           "weight_scale_2": "float32"}),
    # SpQR's codes have one dimension.
    **{f"vectors of {dtype}": ("spqr", {"dense_weights": dtype}, (128,))
       for dtype in ("int64", "int32", "int16", "int8", "uint8")},
}


def is_refused(folder, source, codes, word):
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dtype", "bf16")
    check(result.code in ([codes] if isinstance(codes, int) else codes),
          str(result))
    check(word in result.err, str(result))
    check(not (folder / "out").exists(), "something was written")
    # It can still be converted unchanged; what its library can't load, either,
    # if that is asked for.
    kept = ("convert", source, folder / "kept", "--to", "safetensors")
    result = CKPT.run(*kept)
    if result.code:
        result.want(5)
        check(CKPT.run("verify", source).code == 1, str(result))
        CKPT.ok(*kept, "--allow-missing", "*")
    compare(written(folder / "kept"), written(source), "kept")


def test_said(folder, kind, says, change, code, word):
    """Refused if config.json and the tensors don't agree, or if they are not
    the whole model."""
    source, _ = source_of(folder / "src", kind)
    path = source / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"].update(says)
    path.write_text(json.dumps(config))
    if change:
        edit(source, change)
    is_refused(folder, source, code, word)


def test_plain_floats(folder):
    """Floats of eight bits that nothing scales are numbers: cast as torch does.
    What may be a scale, by whatever name, makes them codes: refused."""
    import torch
    from safetensors.torch import save_file
    codes = torch.randn(4, 8).to(torch.float8_e4m3fn)
    norm = {"a.norm.scale": torch.randn(8).to(torch.float8_e5m2)}
    marks = {"a.other.scale_shift": torch.randn(3)}  # of another module
    source = folder / "a.safetensors"
    save_file({"a.weight": codes, **norm, **marks}, source)
    out = folder / "out.safetensors"
    for dtype in ("float32", "float16", "bfloat16"):
        CKPT.ok("convert", source, out, "--dtype", dtype, "--overwrite")
        got = read_safetensors(out)
        for name, tensor in {"a.weight": codes, **norm}.items():
            check_equal(got[name], from_torch(tensor.to(
                getattr(torch, dtype))), f"{name} in {dtype}")
    CKPT.run("convert", source, folder / "no.safetensors", "--dtype",
             "f8_e5m2").want(2)  # codes without scales
    scaled = {"b.weight": codes.clone(), "b.weight_scale": torch.ones(1)}
    for more, want in (({"a.scale_weight": torch.ones(())}, "a.scale_weight"),
                       (scaled, "without a scale")):
        save_file({"a.weight": codes, **more}, source)
        for dry in ((), ("--dry-run",)):
            result = CKPT.run("convert", source, folder / "no.safetensors",
                              "--dtype", "bf16", *dry).want(5)
            check("a.weight: --dtype bf16: " in result.err
                  and "f8_e4m3" in result.err and want in result.err,
                  str(result))
        CKPT.ok("convert", source, out, "--overwrite")  # codes are kept


def test_unknown(folder, method, parts, shape=(8, 16)):
    """A way of quantizing that is unknown, or that lacks some of its tensors:
    no scale is cast alone."""
    import torch

    tensors = {STEM + name: torch.ones(*shape, dtype=torch.float32).to(
        getattr(torch, dtype)) for name, dtype in parts.items()}
    source = write(folder / "src", {**tensors, **others()},
                   {"quant_method": method})
    is_refused(folder, source, (4, 5), STEM)


def test_overrides(folder):
    """Modules with a group size of their own (GPTQModel's `dynamic`)."""
    source, numbers = source_of(folder / "src", "gptq_g32")
    path = source / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"].update(
        group_size=128, dynamic={r"+:.*down_proj": {"group_size": 32}})
    path.write_text(json.dumps(config))
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            "--dtype", "bf16")
    compare(written(folder / "out"), wanted(numbers, "bf16"), "dynamic")


def test_experts(folder, kind, dtype):
    """Some experts of a stacked weight: as cut, then as numbers."""
    import torch

    g = torch.Generator().manual_seed(5)
    at, kept = "model.layers.0.mlp.", [1, 4]
    parts, name, number, config = peer.mxfp4(g, 6, 18, 5)
    if kind == "fp8":
        made = [peer.fp8_block(g, 40, 60, (16, 16)) for _ in range(6)]
        config, name = made[0][3], "gate_up_proj"
        parts = {name + end.removeprefix("weight"): torch.stack(
            [one[0][end] for one in made]) for end in made[0][0]}
        number = torch.stack([one[2] for one in made])
    router = torch.randn(6, 24, generator=g).to(torch.bfloat16)
    source = write(folder / "src", {
        **{at + "experts." + end: t.contiguous() for end, t in parts.items()},
        at + "router.weight": router, **others()}, config)
    path = source / "config.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()),
                                    num_local_experts=6)))
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            "--dtype", dtype, "--experts", "1,4")
    compare(written(folder / "out"), wanted({
        at + "experts." + name: number[kept], at + "router.weight":
            router[kept]}, dtype), "the kept experts")
    CKPT.ok("convert", source, folder / "codes", "--to", "safetensors",
            "--experts", "1,4")
    got = written(folder / "codes")
    for end, t in parts.items():
        check_equal(got[at + "experts." + end], from_torch(
            t[kept].contiguous()), end)


def test_cache_scales(folder, ways):
    """Scales of an fp8 cache go with the configuration that makes one, aloud."""
    import torch

    source, numbers = source_of(folder / "src", "fp8_tensor")
    scales = {f"model.layers.0.self_attn.{way}": torch.tensor([0.4])
              for way in ways}
    edit(source, lambda tensors: tensors.update(scales))
    kept = CKPT.ok("convert", source, folder / "kept", "--to", "safetensors")
    check("left out" not in kept.err, str(kept))
    check(set(scales) <= set(written(folder / "kept")), "scales are kept")
    made = CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
                   "--dtype", "bf16")
    compare(written(folder / "out"), wanted(numbers, "bf16"), "numbers")
    check(f"{len(ways)} such tensors are left out" in made.err, str(made))


def test_smaller_block(folder):
    """184 rows with two scales: 128 and 56, which transformers' own
    dequantization takes for 92 and 92. Said, since it is silent there."""
    import torch

    for rows, columns, said in ((184, 128, True), (128, 192, True),
                                (256, 128, False), (100, 60, False),
                                (184, 300, True), (184, 257, False)):
        source = write(folder / f"{rows}x{columns}", {
            STEM + "weight": torch.ones(rows, columns), **others()}, None)
        result = CKPT.ok("convert", source, folder / f"{rows}x{columns}_fp8",
                         "--to", "safetensors", "--quantize", "fp8-block")
        check_equal("takes all blocks for equal" in result.err, said,
                    f"{rows}x{columns}: {result.err}")


def test_zero_block(folder):
    """A block of zeros may have scale zero, as its maker wrote it."""
    import torch

    source, numbers = source_of(folder / "src", "fp8_128")

    def clear(tensors):
        codes = tensors[STEM + "weight"].view(torch.uint8)
        codes[:128, :128] = 0
        tensors[STEM + "weight_scale_inv"][0, 0] = 0

    edit(source, clear)
    numbers[STEM + "weight"][:128, :128] = 0
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            "--dtype", "bf16")
    compare(written(folder / "out"), wanted(numbers, "bf16"), "zeros")


def test_another_meaning(folder):
    """The same codes under another configuration are other numbers."""
    for kind, change, name in (
            ("gptq", {"checkpoint_format": "gptq_v2"}, "checkpoint_format"),
            ("gptq", {"damp_percent": 0.5}, None),
            ("fp8_64x32", {"weight_block_size": [32, 64]}, "weight_block_size"),
            ("awq", {"version": "gemv"}, "version")):
        source, _ = source_of(folder / f"{kind} {name}", kind)
        other = folder / f"{kind} {name}, changed"
        shutil.copytree(source, other)
        path = other / "config.json"
        config = json.loads(path.read_text())
        config["quantization_config"].update(change)
        path.write_text(json.dumps(config))
        result = CKPT.run("verify", source, other).want(1 if name else 0)
        check(not name or f"quantization_config.{name}:" in result.out,
              str(result))


def test_no_convention(folder):
    """GPTQ without its configuration: the zeros could follow either version."""
    source, _ = source_of(folder / "src", "gptq")
    (source / "config.json").write_text('{"model_type": "llama"}')
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dtype", "bf16").want(5)
    check("gptq_v2" in result.err, str(result))


def test_no_size(folder):
    """AWQ without its configuration, where the last group is smaller: four
    groups of 104 rows may be of 26."""
    parts, name, _, _ = peer.awq(torch_generator(), 64, 104, 32)
    tensors = {STEM + end: t.contiguous() for end, t in parts.items()}
    source = write(folder / "src", {**tensors, **others()}, None)
    is_refused(folder, source, 4, "does not fit")


def torch_generator(seed=0):
    import torch

    return torch.Generator().manual_seed(seed)


def test_too_large(folder):
    """Numbers too large for f16 are counted and refused, as in casts."""
    source, numbers = source_of(folder / "src", "fp8_128")
    edit(source, lambda t: t[STEM + "weight_scale_inv"].fill_(1000.0))
    result = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                      "--dtype", "f16").want(5)
    check("too large" in result.err, str(result))
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            "--dtype", "f16", "--allow-overflow", "saturate")


def test_inspect(folder, kind, method, bits, block):
    """One weight with these bits and blocks; parameters are the model's."""
    source, numbers = source_of(folder / "src", kind)
    shown = CKPT.inspect(source)
    (name, number), = numbers.items()
    row, = shown["quantized"]
    check_equal((row["name"], row["shape"], row["method"], row["bits"],
                 row["block"]),
                (name, list(number.shape), method, bits, block), "the weight")
    left = {t["name"] for t in shown["tensors"]} - set(row["tensors"])
    check_equal(left, set(others()), "what is no part of it")
    check_equal(shown["parameters"], number.numel() + sum(
        t.numel() for t in others().values()), "parameters")
    text = CKPT.ok("inspect", source).out
    check(f"1 weight: {method} ({bits} bits, {block})" in text, text)


def llama(dtype):
    """A tiny random Llama of transformers, its directory's files."""
    import torch
    from transformers_test import transformers

    hf = transformers()
    torch.manual_seed(3)
    config = hf.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
        max_position_embeddings=64, tie_word_embeddings=False)
    return hf.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def block_fp8(weight):
    """DeepGEMM's cast by blocks of 128x128, in plain torch."""
    import torch
    import torch.nn.functional as F

    rows, columns = weight.shape
    x = F.pad(weight, (0, -columns % 128, 0, -rows % 128)).float()
    blocks = x.view(x.shape[0] // 128, 128, x.shape[1] // 128, 128)
    amax = blocks.abs().amax((1, 3), keepdim=True).clamp(1e-4)
    codes = (blocks * (448.0 / amax)).to(torch.float8_e4m3fn)
    codes = codes.view(x.shape)[:rows, :columns].contiguous()
    return codes, (amax / 448.0).view(blocks.shape[0], blocks.shape[2])


STAY = ("lm_head.weight", "model.embed_tokens.weight", "embed_out.weight",
        "shared.weight", "model.embed_vision.embedding_projection.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "model.layers.0.mlp.gate.wg.weight", "model.layers.0.router.proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert_gate.weight",
        "model.layers.0.self_attn.indexer.weights_proj.weight",
        "model.layers.0.self_attn.q_proj.bias", "model.layers.1.eh_proj.weight",
        "visual.blocks.0.attn.qkv.weight")


def test_quantize(folder, dtype, shape, files):
    """Codes and scales with the bits of DeepGEMM's cast; the rest stays."""
    import torch

    g = torch.Generator().manual_seed(11)
    to = getattr(torch, dtype)
    # A tied head is in no file, and no fp8 layer either.
    stay = STAY[1:] if dtype == "float16" else STAY
    tensors = {name: torch.randn(*((130,) if "norm" in name or name.endswith("bias")
                                   else (130, 140)), generator=g).to(to)
               for name in stay}
    weights = {STEM + "weight": shape,
               "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (140, 30),
               "model.layers.0.mlp.experts.3.up_proj.weight": (1, 300)}
    for name, size in weights.items():
        tensors[name] = (torch.randn(*size, generator=g) * 0.05).to(to)
    tensors[STEM + "weight"][:, :5] = 0
    tensors[STEM + "weight"][0, 0] = 3
    want = {n: from_torch(t) for n, t in tensors.items()}
    for name in weights:
        codes, scales = block_fp8(tensors[name])
        want[name] = from_torch(codes)
        want[name + "_scale_inv"] = from_torch(scales)
    source = write(folder / "src", tensors, None, files)
    out = folder / "out"
    CKPT.ok("convert", source, out, "--to", "safetensors", "--quantize",
            "fp8-block", "--verify", "--max-mem", "32MiB")
    compare(written(out), want, "fp8")
    config = json.loads((out / "config.json").read_text())
    made = config.pop("quantization_config")
    check_equal(config, json.loads((source / "config.json").read_text()),
                "the rest of config.json")
    kept = made.pop("modules_to_not_convert")
    check_equal(set(kept), {n.removesuffix(".weight") for n in STAY
                            if n.endswith(".weight") and "norm" not in n},
                "modules that stay")
    check_equal(made, {"quant_method": "fp8", "fmt": "e4m3",
                       "activation_scheme": "dynamic",
                       "weight_block_size": [128, 128]}, "what it says")
    # And back, to the values of the codes.
    CKPT.ok("convert", out, folder / "back", "--to", "safetensors", "--dtype",
            "f32")
    back = written(folder / "back")
    for name in weights:
        codes, scales = block_fp8(tensors[name])
        number = codes.float() * peer.spread(scales, (128, 128), codes.shape)
        check_equal(back[name], from_torch(number), name)
    check_equal(set(back), set(tensors), "names")


def test_quantize_refused(folder):
    import torch

    tensors = {STEM + "weight": torch.ones(4, 4), **others()}
    source = write(folder / "src", tensors, None)
    out = folder / "out"
    for change, code, words in (
            (lambda t: t[STEM + "weight"].fill_(float("nan")), 4, "finite"),
            (lambda t: t.update({"model.layers.0.mlp.experts.gate_up_proj":
                                 torch.ones(2, 4, 4)}), 5, "stacked")):
        shown = folder / str(code)
        write(shown, {n: t.clone() for n, t in tensors.items()}, None)
        edit(shown, change)
        result = CKPT.run("convert", shown, out, "--to", "safetensors",
                          "--quantize", "fp8-block").want(code)
        check(words in result.err, str(result))
    CKPT.run("convert", source, out, "--to", "dcp", "--quantize",
             "fp8-block").want(5)
    for name in ("gpt2", "falcon"):  # transformers has no fp8 of their classes
        other = write(folder / name, tensors, None)
        path = other / "config.json"
        path.write_text(path.read_text().replace("llama", name))
        result = CKPT.run("convert", other, out, "--to", "safetensors",
                          "--quantize", "fp8-block").want(5)
        check(f"matrices of a {name}" in result.err, str(result))
    CKPT.run("convert", source, out, "--to", "safetensors", "--quantize",
             "int3").want(2)
    fp8, _ = source_of(folder / "fp8", "fp8_128")
    result = CKPT.run("convert", fp8, out, "--to", "safetensors", "--quantize",
                      "fp8-block").want(5)
    check("already" in result.err, str(result))
    (source / "config.json").unlink()
    CKPT.run("convert", source, out, "--to", "safetensors", "--quantize",
             "fp8-block").want(5)
    check(not out.exists(), "something was written")


def test_model(folder):
    """transformers dequantizes a model quantized here to the weights that ckpt
    makes, with the same logits."""
    import torch
    from transformers_test import transformers

    hf = transformers()
    llama("bfloat16").save_pretrained(str(folder / "hf"))
    fp8, bf16 = folder / "fp8", folder / "bf16"
    CKPT.ok("convert", folder / "hf", fp8, "--to", "safetensors", "--quantize",
            "fp8-block")
    CKPT.ok("convert", fp8, bf16, "--to", "safetensors", "--dtype", "bf16")
    config = json.loads((bf16 / "config.json").read_text())
    check("quantization_config" not in config, "quantization_config is there")
    theirs = hf.AutoModelForCausalLM.from_pretrained(
        str(fp8), local_files_only=True, dtype=torch.bfloat16,
        quantization_config=hf.FineGrainedFP8Config(dequantize=True)).eval()
    ours = hf.AutoModelForCausalLM.from_pretrained(
        str(bf16), local_files_only=True, dtype=torch.bfloat16).eval()
    state = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        check(torch.equal(tensor, state[name]), name)
    ids = torch.arange(40)[None] % 96
    with torch.no_grad():
        check(torch.equal(ours(ids).logits, theirs(ids).logits), "logits")


def test_megatron(folder, tp):
    """Dequantized on the way into Megatron's names, cut, and back: same as in
    one step."""
    from transformers_test import transformers

    transformers()
    llama("bfloat16").save_pretrained(str(folder / "hf"))
    fp8 = folder / "fp8"
    CKPT.ok("convert", folder / "hf", fp8, "--to", "safetensors", "--quantize",
            "fp8-block")
    CKPT.ok("convert", fp8, folder / "bf16", "--to", "safetensors", "--dtype",
            "bf16")
    CKPT.ok("convert", fp8, folder / "m", "--to", "megatron_torch_dist",
            "--dtype", "bf16", "--tp", tp)
    CKPT.ok("convert", folder / "m", folder / "back", "--to", "safetensors")
    compare(written(folder / "back"), written(folder / "bf16"), "by Megatron")
    # Quantizing Megatron's pieces makes the same codes.
    CKPT.ok("convert", folder / "hf", folder / "mc", "--to",
            "megatron_torch_dist", "--tp", tp)
    CKPT.ok("convert", folder / "mc", folder / "again", "--to", "safetensors",
            "--dialect", "hf", "--quantize", "fp8-block")
    compare(written(folder / "again"), written(fp8), "quantized from Megatron")
    CKPT.ok("convert", fp8, folder / "vllm", "--to", "vllm", "--tp", tp,
            "--dtype", "bf16")


def test_transformers(folder):
    """transformers' own functions decode the same codes alike."""
    import torch

    from transformers_test import transformers
    transformers()
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    for kind in ("fp8_128", "fp8_1x32"):
        parts, _, number, _ = make(kind)
        theirs = Fp8Dequantize(None)._dequantize_one(
            parts["weight"], parts["weight_scale_inv"], torch.bfloat16)
        check(torch.equal(theirs, number.bfloat16()), kind)
    for kind in ("mxfp4", "mxfp4_wide"):
        parts, _, number, _ = make(kind)
        theirs = convert_moe_packed_tensors(
            parts["gate_up_proj_blocks"], parts["gate_up_proj_scales"])
        check(torch.equal(theirs, number.bfloat16()), kind)


def test_compressed_tensors(folder):
    """compressed-tensors' dequantize() decodes the same codes alike."""
    import torch

    if not COMPRESSED.is_dir():
        raise Skip("compressed-tensors is not installed (scripts/test.sh "
                   "does it)")
    from transformers_test import transformers
    transformers()
    sys.path.insert(0, str(COMPRESSED))
    try:
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import (
            dequantize)
    except ImportError as error:
        raise Skip(f"compressed-tensors: {error}") from error
    finally:
        sys.path.remove(str(COMPRESSED))
    for kind in ("fp8_tensor", "fp8_channel", "int8_channel", "int8_zeros",
                 "int8_group"):
        parts, _, number, config = make(kind)
        weights = dict(config["config_groups"]["group_0"]["weights"])
        if kind == "int8_group":
            weights |= {"strategy": "group", "group_size": 32}
        if kind == "fp8_tensor":
            weights |= {"strategy": "tensor"}
        theirs = dequantize(
            parts["weight"], parts["weight_scale"],
            parts.get("weight_zero_point"), args=QuantizationArgs(**weights))
        check(torch.equal(theirs.bfloat16(), number.bfloat16()), kind)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for i, kind in enumerate(KINDS):
        for j, dtype in enumerate(DTYPES):
            files = 3 if (i + j) % 3 == 0 else 1
            suite.add(f"kind {kind} {dtype} {files}", test_kind, kind, dtype,
                      files)
    for kind in ("fp8_128", "fp8_odd", "fp8_channel", "int8_group", "mxfp4",
                 "gptq_act", "awq"):
        for dp in (2, 3):
            suite.add(f"pieces {kind} {dp}", test_pieces, kind, "bf16", dp)
    for kind, args in (("fp8_128", (1500, 3100)), ("mxfp4", (2, 700, 60)),
                       ("gptq", (1600, 2048, 4, 128, True)),
                       ("awq", (2048, 1600, 32)),
                       ("fp8_channel", (3000, 1100, "channel"))):
        suite.add(f"large {kind}", test_large, kind, args, 3)
    for seed in range(24):
        suite.add(f"random {seed}", test_random, seed)
    for kind in ("fp8_128", "mxfp4", "gptq", "awq", "int8_zeros"):
        suite.add(f"kept {kind}", test_kept, kind)
        suite.add(f"dry run {kind}", test_dry_run, kind)
        suite.add(f"manifest {kind}", test_manifest, kind)
    for kind, *row in (("fp8_odd", "fp8", 8, "128x128"),
                       ("fp8_channel", "fp8", 8, "channel"),
                       ("fp8_tensor", "fp8", 8, "tensor"),
                       ("int8_group", "int8", 8, "group 32"),
                       ("mxfp4", "mxfp4", 4, "group 32"),
                       ("gptq_act", "gptq", 4, "group 64"),
                       ("awq_g32", "awq", 4, "group 32")):
        suite.add(f"inspect {kind}", test_inspect, kind, *row)
    for dtype, shape, files in (("bfloat16", (256, 384), 1),
                                ("float32", (300, 257), 2),
                                ("float16", (5, 1000), 1)):
        suite.add(f"quantize {dtype}", test_quantize, dtype, shape, files)
    for tp in (1, 2):
        suite.add(f"megatron {tp}", test_megatron, tp)
    for name, row in HOSTILE.items():
        suite.add(f"hostile {name}", test_hostile, *row)
    for kind, dtype in (("mxfp4", "bf16"), ("fp8", "f32"), ("fp8", "bf16")):
        suite.add(f"experts {kind} {dtype}", test_experts, kind, dtype)
    for name, ways in CACHE_SCALES.items():
        suite.add(f"cache scales {name}", test_cache_scales, ways)
    for name, row in SAID.items():
        suite.add(f"said {name}", test_said, *row)
    for name, row in UNKNOWN.items():
        suite.add(f"unknown {name}", test_unknown, *row)
    for function in (test_overrides, test_zero_block, test_no_convention, test_another_meaning, test_no_size, test_too_large,
                     test_smaller_block,
                     test_quantize_refused, test_model, test_plain_floats,
                     test_transformers, test_compressed_tensors):
        suite.add(function.__name__[5:].replace("_", " "), function)


if __name__ == "__main__":
    Suite(__doc__.splitlines()[0]).main(prepare)
