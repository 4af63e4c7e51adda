#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Zarr checkpoints: ckpt reads what zarr-python writes, with any codec, and
zarr-python and torch read what ckpt writes."""

import json
import random

import numpy
import torch
from safetensors.torch import save_file

from golden_cases import expected
from support import (
    DATA, Skip, Suite, Tensor, check, check_equal, compare, from_torch,
    read_safetensors)

try:
    import numcodecs
    import zarr
except ImportError:
    zarr = numcodecs = None

CKPT = None
CASES = DATA / "megatron_zarr"
CONFIG = ('{"sharded_backend": "zarr", "sharded_backend_version": 1, '
          '"common_backend": "torch", "common_backend_version": 1}')
TYPES = ["|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2",
         "<f4", "<f8", "<c8", ">i2", ">i4", ">f4", ">f8", ">u8"]
TORCH = {"b1": torch.bool, "u1": torch.uint8, "i1": torch.int8,
         "i2": torch.int16, "i4": torch.int32, "i8": torch.int64,
         "u2": torch.uint16, "u4": torch.uint32, "u8": torch.uint64,
         "f2": torch.float16, "f4": torch.float32, "f8": torch.float64,
         "c8": torch.complex64}


def need_zarr():
    if zarr is None:
        raise Skip("zarr and numcodecs are not in .venv (scripts/test.sh)")


def codecs():
    blosc = numcodecs.Blosc
    return [None, numcodecs.Zlib(6), numcodecs.GZip(1), numcodecs.BZ2(1),
            numcodecs.Zstd(3), numcodecs.Zstd(1, checksum=True),
            numcodecs.LZ4(1), numcodecs.LZ4(9),
            blosc("lz4", 5, blosc.SHUFFLE), blosc("zstd", 3, blosc.BITSHUFFLE),
            blosc("blosclz", 9, blosc.NOSHUFFLE), blosc("zlib", 1),
            blosc("lz4hc", 5, blosc.SHUFFLE, blocksize=1024)]


def start(folder):
    """An empty checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / "metadata.json").write_text(CONFIG)
    torch.save({"iteration": 1}, folder / "common.pt")
    return folder


# -------------------------------------------------------------------- reading
def random_array(rng, dtype):
    """Shape, chunks, and values in runs, so that codecs have work."""
    rank = rng.randrange(4)
    shape = [rng.choice((1, 2, 3, 7, 40)) for _ in range(rank)]
    chunks = [rng.randrange(1, n + 3) for n in shape]
    item = numpy.dtype(dtype).itemsize
    count = int(numpy.prod(shape)) * item
    data = b"".join(bytes([rng.randrange(256)]) * rng.randrange(1, 9)
                    for _ in range(count))[:count]
    if dtype == "|b1":
        data = bytes(b & 1 for b in data)
    return shape, chunks, numpy.frombuffer(data, dtype).reshape(shape)


def random_fill(rng, dtype):
    if dtype[1] in "fc":
        return rng.choice((0, 1.5, -2.25))
    return rng.choice((0, 1))


def random_filters(rng, dtype):
    """Delta, where it is lossless."""
    return ([numcodecs.Delta(dtype)]
            if dtype[0] in "<|" and dtype[1] in "iu" and rng.random() < 0.5
            else None)


def write_array(rng, path, dtype, codec):
    """Writes an array with zarr-python and removes some of its chunks. Returns
    what zarr-python itself reads from it."""
    shape, chunks, values = random_array(rng, dtype)
    fill = rng.choice((None, random_fill(rng, dtype)))
    separator = rng.choice("./")
    array = zarr.open_array(
        str(path), mode="w", shape=shape, chunks=chunks, dtype=dtype,
        compressor=codec, fill_value=fill,
        filters=random_filters(rng, dtype), order=rng.choice("CF"),
        dimension_separator=separator, write_empty_chunks=True)
    array[...] = values
    files = sorted(p for p in path.rglob("*")
                   if p.is_file() and not p.name.startswith("."))
    for file in files:
        if fill is not None and rng.random() < 0.3:
            file.unlink()
    return numpy.array(zarr.open_array(str(path), mode="r")[...])


def as_tensor(array):
    native = array.astype(array.dtype.newbyteorder("="))
    dtype = TORCH[array.dtype.str[1:]]
    shape = array.shape
    return from_torch(torch.frombuffer(
        bytearray(native.tobytes()), dtype=dtype).reshape(shape))


def test_read(folder, seed):
    need_zarr()
    rng = random.Random(seed)
    source = start(folder / "ckpt")
    want = {}
    for i, dtype in enumerate(TYPES):
        for codec in rng.sample(codecs(), 3):
            name = f"w.{i}.{dtype[1:]} ({len(want)})"
            want[name] = as_tensor(
                write_array(rng, source / name, dtype, codec))
    out = folder / "out.pt"  # safetensors has no names for some types
    CKPT.ok("unshard", source, out, "--max-mem", "32MiB")
    got = {name: from_torch(tensor)
           for name, tensor in torch.load(out).items() if name != "iteration"}
    compare(got, want, "what zarr-python wrote")
    CKPT.ok("verify", source, "--deep")


def test_golden_variants(folder):
    """Every feature that zarr has."""
    source = CASES / "zarr_v2_variants_emulated" / "ckpt"
    out = folder / "out.safetensors"
    CKPT.ok("unshard", source, out)
    compare(read_safetensors(out), expected(source.parent), "variants")


def test_refused_filters(folder):
    """What can't be read is still listed, and named when it is needed."""
    need_zarr()
    source = start(folder / "ckpt")
    filters = [numcodecs.FixedScaleOffset(0, 10, "<f4")]
    array = zarr.open_array(str(source / "w"), mode="w", shape=[4], chunks=[2],
                            dtype="<f4", compressor=None, filters=filters)
    array[...] = [1, 2, 3, 4]
    CKPT.ok("inspect", source)
    said = CKPT.run("unshard", source, folder / "out.safetensors").want(7)
    check("w" in said.err and "fixedscaleoffset" in said.err, said.err)


def test_damaged_delta(folder):
    """A truncated chunk of differences."""
    need_zarr()
    for codec in (None, numcodecs.LZ4(1)):
        source = start(folder / f"ckpt{codec is None}")
        array = zarr.open_array(
            str(source / "w"), mode="w", shape=[400], chunks=[400],
            dtype="<i4", compressor=codec, filters=[numcodecs.Delta("<i4")])
        array[...] = numpy.arange(400)
        CKPT.ok("verify", source, "--deep")
        chunk = source / "w" / "0"
        chunk.write_bytes(chunk.read_bytes()[:-1])
        CKPT.run("verify", source, "--deep").want(1)


# -------------------------------------------------------------------- writing
WRITABLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
            torch.int64, torch.float16, torch.float32, torch.float64,
            torch.bfloat16]


def random_model(rng):
    """Keys that Megatron's table knows, and one that it doesn't."""
    def tensor(dtype, *shape):
        count = int(numpy.prod(shape))
        item = torch.empty(0, dtype=dtype).element_size()
        data = rng.randbytes(count * item)
        if dtype == torch.bool:
            data = bytes(b & 1 for b in data)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(
            dtype).reshape(shape)

    layers, hidden, rows = 3, 8, 16
    out = {}
    for dtype in rng.sample(WRITABLE, 3):
        prefix = rng.choice(("", "module.", "model."))
        out |= {
            f"{prefix}decoder.layers.self_attention.linear_qkv.weight":
                tensor(dtype, layers, rows, hidden),
            f"{prefix}decoder.layers.self_attention.linear_proj.weight":
                tensor(dtype, layers, hidden, rows),
            f"{prefix}decoder.final_layernorm.weight": tensor(dtype, hidden),
            f"{prefix}embedding.word_embeddings.weight":
                tensor(dtype, 128, hidden),
        }
    out["a tensor (of mine), with spaces"] = tensor(torch.float32, 5, 3)
    return out


def read_with_zarr(folder):
    """All arrays, read by zarr-python; bfloat16, Megatron's own name, as
    unsigned integers of the same size."""
    out = {}
    for path in sorted(folder.glob("*/.zarray")):
        about = json.loads(path.read_text())
        if about["dtype"] == "bfloat16":
            path.write_text(json.dumps(about | {"dtype": "<u2"}))
        array = zarr.open_array(str(path.parent), mode="r")
        check_equal(array.nchunks_initialized, array.nchunks, "chunks")
        tensor = as_tensor(array[...])
        if about["dtype"] == "bfloat16":
            tensor = Tensor("bf16", tensor.shape, tensor.data)
        out[path.parent.name] = tensor
    return out


def test_write(folder, seed, tp):
    need_zarr()
    rng = random.Random(seed)
    model = random_model(rng)
    save_file(model, folder / "in.safetensors")
    CKPT.ok("convert", folder / "in.safetensors", folder / "out", "--to",
            "megatron_zarr", "--tp", tp)
    want = {name: from_torch(tensor) for name, tensor in model.items()}
    CKPT.ok("verify", folder / "out")
    CKPT.ok("unshard", folder / "out", folder / "back.safetensors")
    compare(read_safetensors(folder / "back.safetensors"), want, "back again")
    for name in model:
        about = json.loads((folder / "out" / name / ".zarray").read_text())
        split = [n // c for n, c in zip(about["shape"], about["chunks"])]
        key = name.split("decoder.layers.")[-1]
        cuts = {"self_attention.linear_qkv.weight": [3, tp, 1],
                "self_attention.linear_proj.weight": [3, 1, tp]}
        if name.endswith("word_embeddings.weight"):
            cuts[key] = [tp, 1]
        check_equal(split, cuts.get(key, [1] * len(split)), name)
    compare(read_with_zarr(folder / "out"), want, "what zarr-python reads")


def objects_of(folder):
    return {str(p.relative_to(folder)): torch.load(p, weights_only=False)
            for p in folder.glob("*/shard_*.pt")}


def test_objects(folder):
    """Objects with tensors in them through the other backend and back."""
    source = CASES / "handmade_zarr_w4_v0090" / "ckpt"
    CKPT.ok("convert", source, folder / "dist", "--to", "megatron_torch_dist")
    CKPT.ok("convert", folder / "dist", folder / "zarr", "--to",
            "megatron_zarr")
    want, got = objects_of(source), objects_of(folder / "zarr")
    check_equal(sorted(got), sorted(want), "names of objects")
    for name, value in want.items():
        check(same_value(got[name], value),
              f"{name}: {got[name]!r}, expected {value!r}")


def same_value(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_value(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(
            map(same_value, a, b))
    if hasattr(a, "getvalue"):  # io.BytesIO
        return a.getvalue() == b.getvalue()
    return type(a) is type(b) and a == b


def test_refused(folder):
    """What Megatron's zarr can't express is named."""
    rows = [
        ("w", torch.tensor(1.0), "0-d"),
        ("w", torch.zeros(0, 3), "empty"),
        ("w", torch.zeros(2, dtype=torch.float8_e4m3fn), "f8_e4m3"),
        ("w", torch.zeros(2, dtype=torch.uint16), "u16"),
        ("a/b", torch.zeros(2), "/"),
        ("..", torch.zeros(2), "directory"),
        ("k" * 256, torch.zeros(2), "256 bytes"),
    ]
    for number, (name, tensor, why) in enumerate(rows):
        source = folder / f"{number}.safetensors"
        save_file({name: tensor, "good": torch.zeros(2)}, source)
        out = folder / f"out{number}"
        result = CKPT.run("convert", source, out, "--to", "megatron_zarr")
        result.want(5)
        check(name[:20] in result.err and why in result.err, result.err)
        check(not out.exists(), f"{out} is there")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for seed in range(6):
        suite.add(f"read/{seed}", test_read, seed)
    suite.add("read/variants", test_golden_variants)
    suite.add("read/refused_filters", test_refused_filters)
    suite.add("read/damaged_delta", test_damaged_delta)
    for seed, tp in enumerate((1, 2, 4, 8)):
        suite.add(f"write/tp{tp}", test_write, seed, tp)
    suite.add("objects", test_objects)
    suite.add("refused", test_refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
