#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DCP items that are tensor subclasses, as torchao's quantized weights are.

Real torch saves and loads them. The classes are defined here under torchao's
names and pickled like its own: by torch, with the parts in __dict__.
"""

import sys
import types
import warnings

import torch
import torch.distributed.checkpoint as dcp

from support import Suite, check, compare, from_torch, read_safetensors

warnings.filterwarnings("ignore")
CKPT = None
aten = torch.ops.aten
ROWS, COLUMNS = 96, 256


class Quantized(torch.Tensor):
    """Parts in attributes, and everything that DCP asks of a tensor."""

    @staticmethod
    def __new__(cls, dtype, shape, **parts):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, dtype, shape, **parts):
        self.block_size = [1, COLUMNS]
        self.parts = list(parts)
        for name, part in parts.items():
            setattr(self, name, part)

    def changed(self, change):
        return type(self)(self.dtype, self.shape, **{
            name: change(getattr(self, name)) for name in self.parts})

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        one = args[0]
        if func in (aten.detach.default, aten.alias.default):
            return one.changed(lambda part: part)
        if func in (aten.clone.default, aten._to_copy.default):
            return one.changed(torch.clone)
        if func in (aten.slice.Tensor, aten.view.default,
                    aten.narrow.default):
            return one
        if func is aten.copy_.default:
            for name in one.parts:
                getattr(one, name).copy_(getattr(args[1], name))
            return one
        if func is aten.is_pinned.default:
            return False
        raise NotImplementedError(func)


def make_class(module, name):
    made = type(name, (Quantized,), {"__module__": module})
    parts = module.split(".")
    for i in range(len(parts)):
        path = ".".join(parts[:i + 1])
        sys.modules.setdefault(path, types.ModuleType(path))
    setattr(sys.modules[module], name, made)
    torch.serialization.add_safe_globals([made])
    return made


Int8 = make_class("torchao.quantization", "Int8Tensor")
Int4 = make_class("torchao.quantization", "Int4Tensor")
Float8 = make_class("torchao.quantization", "Float8Tensor")
Outer = make_class("torchao.dtypes", "AffineQuantizedTensor")
Strange = make_class("somebody.else", "PackedTensor")


def numbers(*shape, dtype=torch.int8):
    return torch.randint(-100, 100, shape).to(dtype)


def state():
    """One of each; a plain tensor and a value beside them."""
    torch.manual_seed(7)
    whole = (ROWS, COLUMNS)
    scale = torch.rand(ROWS, 1)
    inner = Int8(torch.bfloat16, whole, qdata=numbers(*whole), scale=scale)
    return {"model": {
        "int8": inner.changed(torch.clone),
        "int4": Int4(torch.bfloat16, whole,
                     qdata=numbers(ROWS, COLUMNS // 2, dtype=torch.uint8),
                     scale=torch.rand(ROWS, 4).bfloat16(),
                     zero_point=torch.zeros(ROWS, 4)),
        "float8": Float8(torch.float32, whole,
                         qdata=torch.rand(whole).to(torch.float8_e4m3fn),
                         scale=scale * 2),
        "nested": Outer(torch.bfloat16, whole, tensor_impl=inner),
        "plain": torch.randn(5, 3)}, "step": 12}


def parts(tensors):
    """name -> plain tensor, as inspect must name them."""
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Quantized):
            found.update(parts({f"{name}.{part}": getattr(tensor, part)
                                for part in tensor.parts}))
        else:
            found[name] = from_torch(tensor)
    return found


def zeros(tensor):
    if isinstance(tensor, Quantized):
        return tensor.changed(zeros)
    return torch.zeros_like(tensor)


def loaded(path):
    """What torch loads from a checkpoint."""
    want = state()
    got = {"model": {n: zeros(t) for n, t in want["model"].items()},
           "step": 0}
    dcp.load(got, checkpoint_id=path)
    return got


def saved(folder):
    path = folder / "source"
    dcp.save(state(), checkpoint_id=path)
    want = parts({f"model.{n}": t for n, t in state()["model"].items()})
    compare(parts({f"model.{n}": t for n, t in loaded(path)["model"].items()}),
            want, "torch reads its own")
    return path, want


def test_read(folder):
    source, want = saved(folder)
    document = CKPT.ok("inspect", source, "--json", "--objects").json()
    got = {t["name"]: (t["dtype"], tuple(t["shape"]))
           for t in document["tensors"]}
    check(got == {n: (t.dtype, tuple(t.shape)) for n, t in want.items()},
          f"{got}")
    objects = {o["name"]: o for o in document["objects"]}
    for name in ("int8", "int4", "float8", "nested"):
        check("torchao." in str(objects[f"model.{name}"]["value"]),
              f"{name}: the class is not kept")
    CKPT.ok("verify", source)
    out = folder / "out.safetensors"
    said = CKPT.ok("unshard", source, out)
    compare(read_safetensors(out), want, "the parts, read as data")
    check("model.int8" in said.err, "not a word of the class")


def test_round_trip(folder):
    """Resharded, torch loads the subclasses again, bit for bit."""
    source, want = saved(folder)
    for name, options in (("dp1", ("--dp", 1)), ("dp3", ("--dp", 3))):
        out = folder / name
        CKPT.ok("reshard", source, out, *options)
        CKPT.ok("verify", out)
        CKPT.ok("verify", source, out)
        got = loaded(out)
        compare(parts({f"model.{n}": t for n, t in got["model"].items()}),
                want, name)
        check(got["step"] == 12, f"step is {got['step']}")
        check(type(got["model"]["nested"].tensor_impl) is Int8, "its class")
    # A cast does not cast these.
    CKPT.ok("convert", source, folder / "cast", "--to", "dcp", "--dtype",
            "f16", "--exclude", "model.plain")
    CKPT.ok("inspect", folder / "cast")


def test_selection(folder):
    source, want = saved(folder)
    refused = CKPT.run("reshard", source, folder / "cut", "--dp", 1,
                       "--exclude", "model.int8.scale").want(5)
    check("torchao.quantization.Int8Tensor" in refused.err
          and "model.int8" in refused.err, refused.err)
    check(not (folder / "cut").exists(), "a refused run left something")
    CKPT.ok("reshard", source, folder / "less", "--dp", 1, "--exclude",
            "model.int8*")
    left = CKPT.ok("inspect", folder / "less", "--json").json()["tensors"]
    check({t["name"] for t in left} == {n for n in want if "int8" not in n},
          f"{left}")


def test_unknown_class(folder):
    """Reported as running code elsewhere; its parts are still data."""
    torch.manual_seed(7)
    packed = Strange(torch.float32, (ROWS, COLUMNS),
                     codes=numbers(ROWS, COLUMNS))
    source = folder / "source"
    dcp.save({"w": packed}, checkpoint_id=source)
    refused = CKPT.run("verify", source).want(1)
    check("somebody.else.PackedTensor" in refused.out, f"{refused}")
    CKPT.run("inspect", source, "--restrict").want(8)
    kept = CKPT.ok("reshard", source, folder / "kept", "--dp", 1,
                   "--keep-unknown-globals")
    got = {"w": zeros(packed)}
    dcp.load(got, checkpoint_id=folder / "kept")
    compare(parts(got), parts({"w": packed}), f"{kept}")
    without = CKPT.ok("reshard", source, folder / "without", "--dp", 1)
    check("w: is left out" in without.err, without.err)
    names = CKPT.ok("inspect", folder / "without", "--json").json()["tensors"]
    check([t["name"] for t in names] == ["w.codes"], f"{names}")


def test_small(folder):
    """Too small for the index to show it: refused by name, never misread."""
    source = folder / "source"
    dcp.save({"w": Int8(torch.bfloat16, (2, 4), qdata=numbers(2, 4)),
              "b": torch.ones(3)}, checkpoint_id=source)
    out = folder / "out.safetensors"
    refused = CKPT.run("unshard", source, out).want(5)
    check("torchao.quantization.Int8Tensor" in refused.err, refused.err)
    CKPT.ok("unshard", source, out, "--exclude", "w")


def test_damaged(folder):
    """Cut and flipped archives are damage, whatever the class."""
    source, _ = saved(folder)
    data = source / "__0_0.distcp"
    content = data.read_bytes()
    for at in range(0, len(content), len(content) // 24):
        data.write_bytes(content[:at] + bytes([content[at] ^ 0x10])
                         + content[at + 1:])
        result = CKPT.run("verify", source)
        check(result.code in (0, 1, 4), f"byte {at}: {result}")
    data.write_bytes(content[:len(content) // 2])
    CKPT.run("verify", source).want(1)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("read as data", test_read)
    suite.add("round trip", test_round_trip)
    suite.add("selections", test_selection)
    suite.add("an unknown class", test_unknown_class)
    suite.add("small ones", test_small)
    suite.add("damaged", test_damaged)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
