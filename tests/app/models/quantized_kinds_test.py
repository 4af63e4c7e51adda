#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that libraries quantized become the numbers that each library makes
of them. Where a key of the configuration or a tensor is damaged, they are the
numbers that the library makes of the damaged files, or ckpt refuses."""

import copy
import json
import struct

import quantized_kinds as kinds
from json_test import faults, schema_of
from support import Suite, check, check_equal, compare, from_torch, \
    read_safetensors

CKPT = None  # set by prepare
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def write(folder, tensors, config, sidecars):
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    whole = {"model_type": "llama", "torch_dtype": "float16"}
    if config is not None:
        key = "quantization_config" if "quant_method" in config \
            else "quantization"
        whole[key] = config
    (folder / "config.json").write_text(json.dumps(whole))
    for name, text in sidecars.items():
        (folder / name).write_text(text)
    save_file({**{n: t.contiguous() for n, t in tensors.items()},
               "model.norm.weight": torch.ones(8).bfloat16()},
              str(folder / "model.safetensors"))
    return folder


def run(source, out, dtype):
    return CKPT.run("convert", source, out, "--to", "safetensors", "--dtype",
                    dtype)


def check_numbers(out, numbers, dtype, what):
    import torch

    got = read_safetensors(out / "model.safetensors")
    got.pop("model.norm.weight")
    want = {n: from_torch(t.to(getattr(torch, DTYPES[dtype])))
            for n, t in numbers.items()}
    compare(got, want, what)


def test_kind(folder, name, dtype):
    """The library's numbers, and nothing of what they were made of."""
    kind = kinds.KINDS[name]
    tensors, config, sidecars = kind.make()
    source = write(folder / "src", tensors, config, sidecars)
    numbers = kind.numbers(tensors, config)
    check_equal(run(source, folder / "out", dtype).want(0).code, 0, name)
    check_numbers(folder / "out", numbers, dtype, name)
    config = json.loads((folder / "out/config.json").read_text())
    check_equal(config, {"model_type": "llama", "torch_dtype": DTYPES[dtype]},
                "config.json")
    for other in sidecars:
        check(not (folder / "out" / other).exists(), other)
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal(faults(shown, schema_of("inspect")), [], "JSON")
    check_equal(shown["parameters"], 8 + sum(
        t.numel() for t in numbers.values()), "parameters")
    check("quantized" in CKPT.ok("inspect", source).out, "not named")
    kept = folder / "kept"
    CKPT.ok("convert", source, kept, "--to", "safetensors")
    compare(read_safetensors(kept / "model.safetensors"),
            read_safetensors(source / "model.safetensors"), "kept")


def damaged(value):
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value * 2, value + 1, None]
    if isinstance(value, float):
        return [value * 2]
    if isinstance(value, str):
        return [value + "x", None, "group" if value != "group" else "channel"]
    if isinstance(value, dict):
        return [None]
    return [{"u": 1}] if value is None else []


def changes(config, path=()):
    """Each key removed, each with other values, and one more in each dict."""
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        yield (*path, key), "remove", None
        for other in damaged(value):
            yield (*path, key), "set", other
        yield from changes(value, (*path, key))
    yield (*path, "rotated"), "set", True


def changed(config, path, how, value):
    config = copy.deepcopy(config)
    at = config
    for key in path[:-1]:
        at = at[key]
    if how == "remove":
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return config


def holds(folder, kind, tensors, config, sidecars, what):
    """The library's numbers for these files, or a refusal, and then no verify
    that finds them whole."""
    source = write(folder / "src", tensors, config, sidecars)
    result = run(source, folder / "out", "f32")
    if result.code:
        check(result.code in (4, 5), f"{what}: {result}")
        check(not (folder / "out").exists(), f"{what}: something was written")
        verdict = CKPT.run("verify", source, "--json").json()["verdict"]
        check(verdict in ("incomplete", "damaged", "mismatch")
              if result.code == 4 else verdict != "ok",
              f"{what}: {verdict}, {result}")
        return False
    try:
        numbers = kind.numbers(tensors, config)
    except Exception as error:
        raise AssertionError(f"{what}: done, and its library says "
                             f"{error!r}") from error
    check_numbers(folder / "out", numbers, "f32", what)
    return True


def test_keys(folder, name):
    """A damaged configuration."""
    kind = kinds.KINDS[name]
    tensors, config, sidecars = kind.make()
    if config is None:
        config, (side,) = json.loads(*sidecars.values()), sidecars
        pairs = [(None, {side: json.dumps(changed(config, *change))}, change)
                 for change in changes(config)]
    else:
        pairs = [(changed(config, *change), sidecars, change)
                 for change in changes(config)]
    done = [holds(folder / str(i), kind, tensors, said, beside,
                  f"{name}: {change}")
            for i, (said, beside, change) in enumerate(pairs)]
    check(not all(done), f"{name}: nothing was refused")


def test_names(folder, name):
    """A tensor that is lost, or has another name."""
    kind = kinds.KINDS[name]
    tensors, config, sidecars = kind.make()
    for i, one in enumerate(tensors):
        rest = {n: t for n, t in tensors.items() if n != one}
        for j, more in enumerate(({}, {one + "x": tensors[one]})):
            holds(folder / f"{i}.{j}", kind, {**rest, **more}, config,
                  sidecars, f"{name}: {one} {sorted(more)}")


def test_torchao(folder, config):
    """A state dict of torchao's classes, in a pickle."""
    import torch
    with kinds.peer("torchao", "torchao"):
        from torchao import quantization
        layer = torch.nn.Sequential(torch.nn.Linear(128, 64, bias=False))
        layer.bfloat16()
        quantization.quantize_(layer, getattr(quantization, config)())
        source = folder / "model.pt"
        torch.save({kinds.NAME: layer[0].weight.detach(),
                    "model.norm.weight": torch.ones(8).bfloat16()}, source)
        number = layer[0].weight.dequantize()
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal(shown["parameters"], 128 * 64 + 8, "parameters")
    for dtype in DTYPES:
        out = folder / dtype
        run(source, out, dtype).want(0)
        check_numbers(out, {kinds.NAME: number}, dtype, config)


def test_torchao_header(folder, config):
    """The same classes as torchao's own safetensors have them."""
    import torch
    with kinds.peer("torchao", "torchao"):
        from torchao import quantization
        from torchao.prototype.safetensors.safetensors_support import \
            flatten_tensor_state_dict
        layer = torch.nn.Sequential(torch.nn.Linear(128, 64, bias=False))
        layer.bfloat16()
        quantization.quantize_(layer, getattr(quantization, config)())
        flat, header = flatten_tensor_state_dict(
            {kinds.NAME: layer[0].weight.detach(),
             "model.norm.weight": torch.ones(8).bfloat16()})
        number = layer[0].weight.dequantize()
    from safetensors.torch import save_file
    source = folder / "model.safetensors"
    save_file(flat, source, metadata=header)
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal(shown["parameters"], 128 * 64 + 8, "parameters")
    for dtype in DTYPES:
        out = folder / dtype
        run(source, out, dtype).want(0)
        check_numbers(out, {kinds.NAME: number}, dtype, config)
        check(b"_tensor_data_names" not in
              (out / "model.safetensors").read_bytes(), "the header stays")
    save_file(flat, source, metadata={
        **header, kinds.NAME: header[kinds.NAME].replace(
            '"block_size"', '"rotated": true, "block_size"')})
    said = run(source, folder / "refused", "bf16").want(5)
    check("rotated" in said.err, said)
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal(shown["parameters"], 128 * 64 + 8, "parameters")


def places(value, path=()):
    yield path
    for key, one in (value.items() if isinstance(value, dict) else
                     enumerate(value) if isinstance(value, list) else ()):
        yield from places(one, (*path, key))


def test_torchao_hostile(folder):
    """Each value of torchao's header is something else, or the text is cut."""
    said = {"_type": "Int8Tensor", "_tensor_data_names": ["qdata", "scale"],
            "_data": {"block_size": [1, 4], "shape": [2, 4], "dtype": {
                "_type": "torch.dtype", "_data": "bfloat16"}}}
    tensors = {"a._weight_qdata": ("I8", [2, 4], 8),
               "a._weight_scale": ("BF16", [2, 1], 4)}
    source = folder / "model.safetensors"

    def look(text):
        header, end = {"__metadata__": {"a.weight": text}}, 0
        for name, (dtype, shape, size) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape,
                            "data_offsets": [end, end := end + size]}
        head = json.dumps(header).encode()
        source.write_bytes(struct.pack("<Q", len(head)) + head + bytes(end))
        done = CKPT.run("inspect", source)
        check(done.code == 0, f"{text}: {done}")
        return done.out

    text = json.dumps(said)
    check("torchao" in look(text), "known")
    for path in list(places(said))[1:]:
        for other in (None, 5, -1, "x", [], {}, [1] * 3, True, {"_data": 7}):
            one = copy.deepcopy(said)
            parent = one
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = other
            look(json.dumps(one))
    for end in range(len(text)):
        look(text[:end] + ' "_tensor_data_names"')


def torch_quantized():
    """A tensor of each of torch's schemes, and what --dtype says of those that
    no rule makes numbers of."""
    import torch

    torch.manual_seed(5)
    flat, deep = torch.randn(64, 48), torch.randn(6, 5, 4, 3)
    one, some = torch.quantize_per_tensor, torch.quantize_per_channel
    counts = torch.arange(64) % 7 - 3
    numbers = {
        "a.weight": one(flat, 0.0173, 3, torch.quint8),
        "b.weight": one(flat, 0.0173, -5, torch.qint8),
        "c.weight": some(flat, torch.rand(64) / 9 + 0.01, counts, 0,
                         torch.qint8),
        "d.weight": some(deep, torch.rand(5) / 9 + 0.01, torch.arange(5), 1,
                         torch.quint8),
        "e.weight": some(flat, torch.rand(64) + 0.1, torch.rand(64), 0,
                         torch.quint8),
        "f": some(torch.randn(7), torch.rand(7) + 0.01, torch.zeros(7).long(),
                  0, torch.qint8),
        "g": one(torch.tensor(1.5), 0.1, 3, torch.quint8)}
    others = {
        "torch's .dequantize() does": one(flat, 0.001, 0, torch.qint32),
        "not exact in f32": some(
            flat, torch.rand(64).double() / 9 + 0.01, counts, 0, torch.qint8)}
    return numbers, others


def test_torch(folder):
    """torch's quantized tensors: numbers with --dtype, a pickle as they are,
    and nothing that would lose their scales."""
    import torch

    numbers, others = torch_quantized()
    norm = {"model.norm.weight": torch.ones(8)}
    source = folder / "model.pt"
    torch.save(numbers | norm, source)
    for dtype in DTYPES:
        run(source, folder / dtype, dtype).want(0)
        check_numbers(folder / dtype,
                      {n: t.dequantize() for n, t in numbers.items()}, dtype,
                      dtype)
    CKPT.ok("verify", source, folder / "f32")
    for to in ("safetensors", "dcp", "meta", "fairseq2", "olmo_core",
               "megatron_torch_dist", "modelopt"):
        said = CKPT.run("convert", source, folder / "lost", "--to", to).want(5)
        check("scale and the zero point" in said.err and "--dtype" in said.err,
              f"{to}: {said}")
    sizes = ("--to", "torch", "--max-shard-size", "1KB")
    CKPT.run("convert", source, folder / "lost", *sizes).want(5)
    CKPT.ok("convert", source, folder / "again.pt")
    again = torch.load(folder / "again.pt", weights_only=True)
    for name, tensor in numbers.items():
        check(torch.equal(again[name], tensor)
              and again[name].qscheme() == tensor.qscheme(), name)
    for why, tensor in others.items():
        torch.save({"a": tensor} | norm, source)
        said = run(source, folder / "lost", "f32").want(5)
        check(why in said.err, f"{why}: {said}")
        CKPT.run("convert", source, folder / "lost", "--to", "dcp").want(5)
    check(not (folder / "lost").exists(), "written")


def test_comfy(folder, marker, words):
    """ComfyUI's int8: its marker goes, or says what no rule knows."""
    import torch
    from safetensors.torch import save_file

    codes = torch.randint(-127, 128, (48, 64)).to(torch.int8)
    scale = torch.rand(48, 1) * 0.01
    tensors = {"a.weight": codes, "a.weight_scale": scale,
               "b.weight": torch.ones(8).bfloat16()}
    if marker is not None:
        tensors["a.comfy_quant"] = torch.tensor(
            list(json.dumps(marker).encode()), dtype=torch.uint8)
    source, out = folder / "a.safetensors", folder / "out.safetensors"
    save_file(tensors, str(source))
    result = CKPT.run("convert", source, out, "--dtype", "bf16")
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal(shown["parameters"], 48 * 64 + 8, "parameters")
    if words:
        check(result.want(5).err.count(words) == 1, str(result))
        return
    result.want(0)
    got = read_safetensors(out)
    compare(got, {"a.weight": from_torch((codes.float() * scale).bfloat16()),
                  "b.weight": from_torch(tensors["b.weight"])}, "ComfyUI")


def test_parted(folder):
    """A new name for codes alone is refused, for both it isn't."""
    source = write(folder / "src", *kinds.KINDS["ct int4"].make())
    for rule, code in ((f"{kinds.NAME}_packed=moved.packed", 5),
                       ("model.=m.", 0)):
        CKPT.run("convert", source, folder / str(code), "--to", "safetensors",
                 "--rename", rule).want(code)


def test_hints(folder):
    """A refusal hints at --dtype only where that works."""
    import torch
    from safetensors.torch import save_file

    kind = kinds.KINDS["bnb nf4"]
    good = write(folder / "good", *kind.make())
    bad = write(folder / "bad", *kind.make())
    save_file({kinds.STEM + "W_q": torch.ones(8, 8).byte(),
               kinds.STEM + "scale": torch.ones(8, 1)},
              str(bad / "model.safetensors"))
    for source, works in ((good, True), (bad, False)):
        result = CKPT.run("convert", source, folder / "out", "--to",
                          "safetensors", "--adapter", folder).want(5)
        check(("--dtype bf16 dequantizes" in result.err) == works, str(result))
        shown = CKPT.ok("inspect", source).out
        check("quantized" in shown, shown)


def test_active(folder):
    """A mixture's parameters that one token meets."""
    import torch
    from safetensors.torch import save_file

    source = folder / "src"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({
        "model_type": "qwen3_moe", "num_hidden_layers": 1, "hidden_size": 8,
        "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 16,
        "moe_intermediate_size": 4, "num_attention_heads": 2}))
    experts = {f"model.layers.0.mlp.experts.{i}.{w}_proj.weight":
               torch.ones(4, 8) for i in range(4) for w in ("up", "gate")}
    save_file({**experts, "model.embed_tokens.weight": torch.ones(16, 8)},
              str(source / "model.safetensors"))
    shown = CKPT.ok("inspect", source, "--json").json()
    check_equal((shown["parameters"], shown["active_parameters"]),
                (8 * 32 + 128, 4 * 32 + 128), "parameters")
    check("active 256" in CKPT.ok("inspect", source).out, "not shown")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for i, name in enumerate(kinds.KINDS):
        for j, dtype in enumerate(DTYPES):
            suite.add(f"kind {name} {dtype}", test_kind, name, dtype)
    for name in ("bnb nf4", "bnb int8", "ct int4", "ct int4 zeros",
                 "ct nvfp4", "modelopt nvfp4", "mlx 4", "quanto qint8"):
        suite.add(f"keys {name}", test_keys, name)
        suite.add(f"names {name}", test_names, name)
    suite.add("torchao's safetensors, hostile", test_torchao_hostile)
    for config in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig",
                   "IntxWeightOnlyConfig"):
        suite.add(f"torchao {config}", test_torchao, config)
        suite.add(f"torchao's safetensors, {config}", test_torchao_header,
                  config)
    suite.add("torch's own", test_torch)
    plain = {"format": "int8_tensorwise", "per_row": True}
    for name, *row in (
            ("marked", plain, None), ("not marked", None, "says how"),
            ("rotated", {**plain, "convrot": True, "convrot_groupsize": 64},
             "convrot"),
            ("of another kind", {"format": "nvfp4"}, "nvfp4"),
            ("with a new key", {**plain, "shuffled": 1}, "shuffled")):
        suite.add(f"comfy {name}", test_comfy, *row)
    suite.add("codes that are parted", test_parted)
    suite.add("hints", test_hints)
    suite.add("active parameters", test_active)


if __name__ == "__main__":
    Suite(__doc__.splitlines()[0]).main(prepare)
