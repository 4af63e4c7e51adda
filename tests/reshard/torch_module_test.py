#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libckpt_torch.so against torch itself: casts of every pair of types, bit by
bit."""

import ctypes
import math
import sys
import warnings

import torch

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn",
          "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e8m0fnu"]
INTS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
        "uint8"]
COMPLEX = ["complex128", "complex64", "complex32"]
TYPES = FLOATS + INTS + ["bool"] + COMPLEX
REFUSED = ["qint8", "quint8", "bits8", "float4_e2m1fn_x2", "nonsense", ""]


I, P, N = ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64


class Api(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("torch_version", ctypes.c_char_p),
        ("dtype", ctypes.CFUNCTYPE(I, ctypes.c_char_p)),
        ("cast", ctypes.CFUNCTYPE(I, I, I, P, P, N)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


def load(path):
    entry = ctypes.CDLL(path).ckpt_torch_api
    entry.restype = ctypes.POINTER(Api)
    return entry().contents


def dtype_of(name):
    return getattr(torch, name)


def raw(tensor):
    """The bytes of a tensor."""
    if tensor.numel() == 0:
        return b""
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def every_pattern(name):
    """All values of a type with at most 16 bits."""
    size = dtype_of(name).itemsize
    plain = torch.arange(1 << (8 * size), dtype=torch.int64)
    return plain.to(torch.uint8 if size == 1 else torch.uint16).view(
        dtype_of(name))


def halfway(name):
    """f64 values on, between and next to the values of a small float type."""
    values = every_pattern(name).to(torch.float64)
    values = values[values.isfinite()].unique()
    middle = (values[1:] + values[:-1]) / 2
    up = torch.full_like(middle, math.inf)
    return torch.cat([values, middle, middle.nextafter(up),
                      middle.nextafter(-up)])


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-310, -5e-324, 1e308,
           3.4028235e38, 3.4028236e38, 1e-45, 1.1754944e-38, 65504.0, 65520.0,
           448.0, 464.0, 57344.0, 61440.0, 2.0 ** -9, 2.0 ** -24, 0.1, 1e39]


def values_of(name, random):
    """Values for which rounding matters."""
    dtype = dtype_of(name)
    if name == "bool":
        return torch.tensor([True, False, True, True])
    if name in COMPLEX:
        part = {"complex128": "float64", "complex64": "float32",
                "complex32": "float16"}[name]
        parts = values_of(part, random)
        return parts[:parts.numel() // 2 * 2].view(dtype)
    if dtype.itemsize <= 2:
        return every_pattern(name)
    if name in INTS:
        bits = torch.randint(-2 ** 63, 2 ** 63 - 1, (4000,), generator=random)
        shift = torch.randint(0, 64, (4000,), generator=random)
        small = bits >> shift  # of every magnitude
        info = torch.iinfo(dtype)
        ends = torch.tensor([info.min, info.min + 1, info.max, info.max - 1],
                            dtype=dtype)
        return torch.cat([small.to(dtype), ends])
    near = torch.cat([halfway(n) for n in FLOATS if dtype_of(n).itemsize <= 2])
    if name == "float64":  # halfway between f32 values, too
        f32 = torch.randint(-2 ** 31, 2 ** 31 - 1, (4000,), dtype=torch.int32,
                            generator=random).view(torch.float32).double()
        near = torch.cat([near, f32, f32 * (1 + 2.0 ** -24), f32 * (1 + 2.0 ** -25)])
    bits = torch.randint(-2 ** 63, 2 ** 63 - 1, (4000,), generator=random)
    return torch.cat([near.to(dtype), torch.tensor(SPECIAL, dtype=dtype),
                      bits.view(dtype)])


def in_range(values, target):
    """Without what C++ leaves undefined: floats outside the integer's range."""
    if target not in INTS or not (values.is_floating_point() or
                                  values.is_complex()):
        return values
    wide = (values.real if values.is_complex() and
            values.dtype != torch.complex32 else values)
    if values.dtype == torch.complex32:
        wide = values.to(torch.complex64).real
    wide = wide.to(torch.float64)
    info = torch.iinfo(dtype_of(target))
    keep = (wide > float(info.min - 1)) & (wide < float(info.max))
    if values.dtype == torch.complex32:
        return values.to(torch.complex64)[keep].to(torch.complex32)
    if values.dtype.itemsize == 1:
        return values.view(torch.uint8)[keep].view(values.dtype)
    return values[keep]


def pointer(buffer, shift=0):
    return ctypes.addressof(buffer) + shift


def check_cast(api, values, target):
    try:
        expected = raw(values.to(dtype_of(target)))
    except RuntimeError:
        expected = None
    data, count = raw(values), values.numel()
    size = dtype_of(target).itemsize
    source_number = api.dtype(str(values.dtype)[6:].encode())
    for shift in (0, 1):  # aligned, and not
        source = ctypes.create_string_buffer(b"x" * shift + data + b"x")
        out = ctypes.create_string_buffer(count * size + shift + 1)
        status = api.cast(source_number, api.dtype(target.encode()),
                          pointer(source, shift), pointer(out, shift), count)
        if expected is None:
            assert status != 0 and api.error(), (values.dtype, target)
            continue
        assert status == 0, (values.dtype, target, api.error())
        found = out.raw[shift:shift + count * size]
        if found != expected:
            at = next(i for i in range(count)
                      if found[i * size:(i + 1) * size] !=
                      expected[i * size:(i + 1) * size])
            raise AssertionError(
                f"{values.dtype} -> {target}, element {at}: "
                f"{found[at * size:(at + 1) * size].hex()}, torch has "
                f"{expected[at * size:(at + 1) * size].hex()}")
    return expected is not None


def test_casts(api):
    random = torch.Generator().manual_seed(1)
    done = 0
    for source in TYPES:
        values = values_of(source, random)
        for target in TYPES:
            done += check_cast(api, in_range(values, target), target)
    assert done == len(TYPES) ** 2, done
    return f"{done} pairs"


def test_types(api):
    numbers = [api.dtype(name.encode()) for name in TYPES]
    assert sorted(numbers) == list(range(len(TYPES))), numbers
    for name in REFUSED:
        assert api.dtype(name.encode()) == -1, name
    assert api.cast(99, 0, None, None, 1) != 0 and b"99" in api.error()
    assert api.torch_version.decode() == torch.__version__.split("+")[0]


def main():
    warnings.simplefilter("ignore")
    api = load(sys.argv[1])
    assert api.abi == 4
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, "ok", test(api) or "")
    assert torch.get_num_threads() == 1


if __name__ == "__main__":
    main()
