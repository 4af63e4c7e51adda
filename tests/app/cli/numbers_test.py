#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ckpt says about elements as numbers, against torch, in every type that
has values: --stats, and how far two tensors are apart (--rtol, --atol)."""

import math

from support import Suite, check, check_equal

CKPT = None
FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn",
          "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e8m0fnu"]
INTS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
        "uint8"]
COMPLEX = ["complex128", "complex64", "complex32"]
EDGES = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf]


def values_of(name, count=1500):
    """Random values of a type over many magnitudes, plus its edges."""
    import torch
    dtype = getattr(torch, name)
    if name in INTS:
        info = torch.iinfo(dtype)
        low, high = max(info.min, -2**63), min(info.max, 2**63 - 1)
        return torch.cat([
            torch.randint(low, high, (count,)).to(dtype),
            torch.tensor([info.min, info.max, 0, 1], dtype=dtype)])
    if name == "bool":
        return torch.rand(count) > 0.3
    if name in COMPLEX:
        part = "float64" if name == "complex128" else "float32"
        pair = torch.stack([values_of(part, count), values_of(part, count)], 1)
        if name == "complex32":
            return torch.view_as_complex(pair.half().contiguous())
        return torch.view_as_complex(pair).to(dtype)
    scale = torch.exp2(torch.randint(-9, 9, (count,)).double())
    values = torch.randn(count, dtype=torch.float64) * scale
    return torch.cat([values, torch.tensor(EDGES).double()]).to(dtype)


def doubles(tensor):
    """The exact values as Python floats; both parts of a complex number."""
    import torch
    if tensor.is_complex():
        return torch.view_as_real(
            tensor.to(torch.complex128)).flatten().tolist()
    return [float(x) for x in tensor.tolist()]


def stats(folder):
    import torch
    torch.manual_seed(0)
    state = {name: values_of(name)
             for name in [*FLOATS, *INTS, "bool", *COMPLEX]}
    state |= {"one": torch.tensor([3.0]), "zeros": torch.zeros(5),
              "wide": torch.randn(300, 70)}
    torch.save(state, folder / "a.pt")
    rows = CKPT.ok("inspect", folder / "a.pt", "--stats",
                   "--json").json()["tensors"]
    check_equal(sorted(r["name"] for r in rows), sorted(state), "tensors")
    for row in rows:
        plain, got = doubles(state[row["name"]].flatten()), row["stats"]
        finite = [x for x in plain if math.isfinite(x)]
        mean = math.fsum(finite) / len(finite)
        want = {"min": min(finite), "max": max(finite), "mean": mean,
                "std": math.sqrt(math.fsum((x - mean)**2 for x in finite)
                                 / len(finite)),
                "norm": math.sqrt(math.fsum(x * x for x in finite))}
        scale = max(map(abs, finite)) or 1
        for key, value in want.items():
            check(abs(got[key] - value) <= 1e-9 * scale,
                  f"{row['name']} {key}: {got[key]}, expected {value}")
        for key, count in (("nans", sum(map(math.isnan, plain))),
                           ("infs", sum(map(math.isinf, plain))),
                           ("zeros", plain.count(0))):
            check_equal(got[key], count, f"{row['name']} {key}")
        # Magnitudes: two exponents per slot, from 2^-48.
        slots = [0] * 32
        for x in finite:
            if x:
                slots[min(max((math.frexp(x)[1] - 1 + 48) // 2, 0), 31)] += 1
        check_equal(got["magnitudes"], slots, f"{row['name']} magnitudes")


def compared(folder, pairs, rtol=0.0, atol=0.0):
    """What verify says about each pair, by its number; None: nothing."""
    import torch
    for side, name in enumerate(("a.pt", "b.pt")):
        torch.save({f"t{i}": pair[side] for i, pair in enumerate(pairs)},
                   folder / name)
    done = CKPT.run("verify", folder / "a.pt", folder / "b.pt",
                    "--rtol", rtol, "--atol", atol, "--json")
    rows = {p["tensor"]: p for p in done.json()["problems"]}
    check_equal(done.code, 1 if rows else 0, str(done))
    # What differs is never called identical, however close it is.
    apart = sum(bool(((x != y) & ~(x.isnan() & y.isnan())).any())
                for x, y in pairs)
    check_equal(done.json().get("within_tolerance", 0) + len(rows), apart,
                "tensors that differ")
    return [rows.get(f"t{i}") for i in range(len(pairs))]


def isclose(folder):
    import torch
    torch.manual_seed(1)
    names = [name for name in FLOATS if name != "float8_e8m0fnu"]
    pairs = []
    for name in names + COMPLEX[:2]:
        a = values_of(name)
        wide = a.to(torch.complex128 if a.is_complex() else torch.float64)
        noise = 1 + 0.005 * torch.randn(a.numel())
        pairs.append((a, (wide * noise).to(a.dtype)))
    for rtol, atol in [(0, 0), (1e-3, 0), (0, 1e-2), (1e-2, 1e-5)]:
        found = compared(folder, pairs, rtol, atol)
        for (a, b), row in zip(pairs, found, strict=True):
            kind = torch.complex128 if a.is_complex() else torch.float64
            close = torch.isclose(a.to(kind), b.to(kind), rtol, atol,
                                  equal_nan=True)
            if a.is_complex():
                # Equal in each part is equal, whatever the parts.
                x, y = torch.view_as_real(a.to(kind)), torch.view_as_real(
                    b.to(kind))
                close |= ((x == y) | (x.isnan() & y.isnan())).all(1)
            far = int((~close).sum())
            check_equal(row["differing"] if row else 0, far,
                        f"{a.dtype} rtol {rtol} atol {atol}")
            if row:
                check_equal(row["elements"], a.numel(), str(a.dtype))


def edges(folder):
    import torch
    t, nan, inf = torch.tensor, math.nan, math.inf
    rows = [  # a, b, max_abs, max_rel, how many differ
        (t([1.0, nan, inf, -inf, 0.0]), t([1.0, nan, inf, -inf, -0.0]),
         0, 0, 0),
        (t([1.0, nan]), t([1.0, 1.0]), inf, inf, 1),
        (t([inf, inf]), t([-inf, 1.0]), inf, inf, 2),
        (t([1.0]), t([inf]), inf, inf, 1),
        (t([1.0]), t([0.0]), 1, inf, 1),
        (t([3.0]), t([2.0]), 1, 0.5, 1),
        (t([2**62 + 1]), t([2**62]), 1, 2.0**-62, 1),
        (t([2**64 - 1], dtype=torch.uint64),
         t([2**64 - 2], dtype=torch.uint64), 1, 2.0**-64, 1),
        (t([-2**63]), t([2**63 - 1]), 2.0**64, 2.0, 1),
        (t([3 + 4j, 1j]), t([0j, 1j]), 5, inf, 1),
        (t([3.0 + 0j, 2.0 + 0j]), t([3 + 0j, 2 + 1j]), 1, 1 / math.sqrt(5), 1),
        (t([1.5]), t([1.5], dtype=torch.bfloat16), 0, 0, 0),
    ]
    found = compared(folder, [row[:2] for row in rows])
    for (a, b, max_abs, max_rel, differing), row in zip(rows, found,
                                                        strict=True):
        got = (0, 0, 0) if row is None else (
            float(row["max_abs"]), float(row["max_rel"]), row["differing"])
        check_equal(got, (max_abs, max_rel, differing), f"{a} {b}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("--stats in every type", stats)
    suite.add("--rtol and --atol as isclose", isclose)
    suite.add("differences at the edges", edges)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
