#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml's blocks: the numbers that the gguf package's quants.py makes of them and
the blocks that it makes of numbers, bit for bit, over random, zero, subnormal,
huge, infinite and NaN input of every type that the package has. Through the
reader that `convert` uses, by ranges that begin and end anywhere."""

import subprocess
import sys
from pathlib import Path

import numpy
import torch
from support import HANG, Skip, Suite, check, check_equal

sys.path.append(str(Path(sys.prefix) / "loaders"))
try:
    from gguf import constants, quants
except ImportError:
    quants = None

TOOL = None
NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
# Where a block has an f16 that may be a NaN.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "TQ1_0": [52], "TQ2_0": [64], "MXFP4": []}
SPECIAL = numpy.array(
    [0, 0x8000, 1, 0x8001, 0x3FF, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
     0x7C01, 0xFC01, 0x7E00, 0xFE00, 0x7FFF, 0xFFFF], "<u2").view("u1")
SPECIAL = SPECIAL.reshape(-1, 2)


def tool(*words, data=b""):
    done = subprocess.run([TOOL, *map(str, words)], input=data,
                          capture_output=True, timeout=HANG)
    check_equal(done.returncode, 0, f"{words}: {done.stderr}")
    return done.stdout


def types_of(word):
    """What the package has code for, by name."""
    return {kind.name: made for kind, made in quants._type_traits.items()
            if made.block_size > 1 and word in made.__dict__}


def test_table(_):
    """The package's sizes, but for Q8_1: ggml has a half where it has a float,
    and no file has it."""
    ours = {}
    for line in tool("types").decode().splitlines():
        number, name, elements, size, _, *does = line.split()
        ours[name] = (int(number), int(elements), int(size), does)
    check_equal(ours["Q8_1"][1:3], (32, 36), "Q8_1")
    for kind, sizes in constants.GGML_QUANT_SIZES.items():
        number, *size, does = ours[kind.name]
        check_equal(number, kind.value, f"number of {kind.name}")
        if kind.name != "Q8_1":
            check_equal(tuple(size), tuple(sizes), f"sizes of {kind.name}")
        check_equal("decodes" in does,
                    kind.name in types_of("dequantize_blocks")
                    or kind.name in ("Q1_0", "Q2_0"), f"{kind.name} decodes")
        check_equal("encodes" in does, kind.name in types_of("quantize_blocks"),
                    f"{kind.name} encodes")


def some_blocks(size):
    """Random ones, each of one byte, and those whose halves are special."""
    draw = numpy.random.default_rng(size)
    special = draw.integers(0, 256, (1200, size), dtype="u1")
    places = [at for at in (0, 2, size - 4, size - 2) if at >= 0]
    for block in special:
        for at in draw.choice(places, 2):
            block[at:at + 2] = draw.choice(SPECIAL)
    return numpy.concatenate([
        draw.integers(0, 256, (2000, size), dtype="u1"),
        numpy.repeat(numpy.arange(256, dtype="u1")[:, None], size, 1), special])


def test_decode(_, name):
    made = types_of("dequantize_blocks")[name]
    blocks = some_blocks(made.type_size)
    along = 16
    with numpy.errstate(all="ignore"):
        want = quants.dequantize(blocks, made.qtype)
    rows, columns = len(blocks) // along, along * made.block_size
    want = want.reshape(rows, columns)

    def got(dtype, step):
        return tool("read", name, "numbers", "u8", dtype, rows, columns, step,
                    data=blocks.tobytes())

    for step in (1 << 22, 5000):
        bits = numpy.frombuffer(got("f32", step), "u4").reshape(rows, columns)
        wrong = numpy.argwhere(bits != want.view("u4"))
        check(not len(wrong), f"{len(wrong)} numbers, the first at {wrong[:1]}")
    for dtype, narrow in NARROW.items():
        bits = torch.frombuffer(bytearray(got(dtype, 1 << 20)), dtype=narrow)
        rounded = torch.from_numpy(want.copy()).to(narrow).reshape(-1)
        nan = rounded.isnan()
        check(torch.equal(nan, bits.isnan()), f"{dtype}: NaNs")
        check(torch.equal(bits.view(torch.int16)[~nan],
                          rounded.view(torch.int16)[~nan]), dtype)


def finite_numbers(draw, count, width):
    """Name and numbers of each kind, in blocks."""
    shape = (count, width)
    normal = draw.standard_normal(shape)
    any_bits = draw.integers(0, 1 << 32, shape, dtype="u4")
    powers = numpy.ldexp(1.0, draw.integers(-126, 127, (count, 1)))
    near = ((numpy.log2(powers).astype("i8") + 127 << 23)
            + draw.integers(-64, 64, (count, 1))).astype("u4").view("f4")
    yield "normal", normal
    yield "small", normal * 1e-4
    yield "positive", abs(normal)
    yield "negative", -abs(normal)
    yield "alike", numpy.repeat(normal[:, :1], width, 1)
    # Of both in a block, numpy's least is one or the other as the processor has
    # wider or narrower vectors.
    yield "zero", abs(normal * 0)
    yield "minus zero", -abs(normal * 0)
    yield "halfway", draw.integers(-8, 9, shape) / 2
    yield "eighths", draw.integers(-128, 128, shape) / 8
    yield "huge", normal * 5e37
    yield "any exponent", normal * powers
    yield "many exponents", normal * numpy.ldexp(
        1.0, draw.integers(-149, 126, shape))
    yield "any bits", (any_bits & 0xBFFFFFFF).view("f4")
    yield "subnormal", ((any_bits & 0x807FFFFF)
                        >> (any_bits >> 23 & 15)).view("f4")
    # The logarithm of the largest may round up.
    beside = normal * near / abs(normal).max(1, keepdims=True) / 2
    beside[:, 3:4] = near
    yield "near powers", beside


def special_numbers(draw, count, width):
    normal = draw.standard_normal((count, width)).astype("f4")
    for value in (numpy.nan, -numpy.nan, numpy.inf, -numpy.inf):
        some = normal.copy()
        some[draw.random(some.shape) < 1 / width] = value
        yield f"some {value}", some
        yield f"all {value}", numpy.full_like(normal, value)
    mixed = normal.copy()
    for value in (numpy.nan, numpy.inf, -numpy.inf):
        mixed[draw.random(mixed.shape) < 1 / width] = value
    yield "mixed", mixed


def one_nan(blocks, name):
    """NaNs as one: numpy's largest of several depends on the processor."""
    blocks = blocks.copy()
    for at in HALVES[name]:
        halves = blocks[:, at:at + 2].copy().view("<u2")
        halves[halves & 0x7FFF > 0x7C00] = 0x7E00
        blocks[:, at:at + 2] = halves.view("u1")
    return blocks


def test_encode(_, name):
    made = types_of("quantize_blocks")[name]
    draw = numpy.random.default_rng(made.type_size)
    sizes = (400, made.block_size)
    with numpy.errstate(all="ignore"):
        for source in (finite_numbers, special_numbers):
            for kind, numbers in source(draw, *sizes):
                numbers = numbers.astype("f4")
                want = quants.quantize(numbers, made.qtype)
                got = numpy.frombuffer(
                    tool("encode", name, data=numbers.tobytes()),
                    "u1").reshape(want.shape)
                same = one_nan(got, name) == one_nan(want, name)
                wrong = numpy.argwhere(~same.all(1))
                check(not len(wrong), f"{kind}: {len(wrong)} blocks, the first "
                      f"of {numbers[wrong[:1]]}")


def test_read(_, name):
    """Blocks of what is stored in each float type."""
    made = types_of("quantize_blocks")[name]
    draw = numpy.random.default_rng(made.type_size)
    rows, columns = 37, 6 * made.block_size
    numbers = torch.from_numpy(draw.standard_normal((rows, columns))).float()
    for dtype, kind in (*NARROW.items(), ("f32", torch.float32)):
        stored = numbers.to(kind)
        want = quants.quantize(stored.float().numpy(), made.qtype)
        for step in (1 << 20, 100):
            got = tool("read", name, "blocks", dtype, "u8", rows, columns, step,
                       data=stored.view(torch.uint8).numpy().tobytes())
            check(got == want.tobytes(), f"{dtype}, {step} at once")


def test_peer(_):
    """The package is there, or nothing above was asked."""
    if quants is None:
        raise Skip("gguf is missing")


def prepare(suite, ckpt):
    global TOOL
    TOOL = str(Path(ckpt.path).with_name("ggml_tool"))
    suite.add("peer", test_peer)
    if quants is None:
        return
    suite.add("table", test_table)
    for name in types_of("dequantize_blocks"):
        suite.add(f"decode {name}", test_decode, name)
    for name in types_of("quantize_blocks"):
        suite.add(f"encode {name}", test_encode, name)
        suite.add(f"read {name}", test_read, name)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
