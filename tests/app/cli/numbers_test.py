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
        rms = want["norm"] / math.sqrt(len(finite))
        check(abs(got["rms"] - rms) <= 1e-9 * scale, f"{row['name']} rms")
        check_quantiles(row["name"], row["dtype"], sorted(finite), got)


def check_quantiles(name, dtype, ordered, got):
    """Exact for types of up to 16 bits, else within the stated error."""
    narrow = dtype in ("f16", "bf16", "i16", "u16", "i8", "u8",
                       "bool") or dtype.startswith("f8")
    check_equal(got["quantile_error"], 0 if narrow else 1 / 256, name)
    check_equal(list(got["quantiles"]),
                ["0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95",
                 "0.99", "0.999"], name)
    for share, value in got["quantiles"].items():
        # numpy's method="inverted_cdf", without its rounding of shares.
        rank = -(-len(ordered) * round(float(share) * 1000) // 1000)
        want = ordered[rank - 1]
        error = got["quantile_error"] * abs(want)
        check(abs(value - want) <= error, f"{name} {share}: {value}, {want}")


def quantiles(folder):
    """Against numpy, which knows them too."""
    import numpy as np
    import torch
    torch.manual_seed(2)
    state = {"half": torch.randn(200, 301).half(),
             "brain": torch.randn(70001).bfloat16() * 3 - 1,
             "single": torch.randn(64, 999) * 1e-3,
             "double": torch.randn(5000, dtype=torch.float64) * 1e200}
    state["double"][::2] *= 1e-190
    torch.save(state, folder / "q.pt")
    for row in stats_of(folder / "q.pt"):
        plain = state[row["name"]].double().numpy().ravel()
        got = row["stats"]
        for share, value in got["quantiles"].items():
            want = float(np.quantile(plain, float(share),
                                     method="inverted_cdf"))
            if abs(want) > 2.0**128:
                continue  # beyond f32's exponents it is only the right side
            check(abs(value - want) <= got["quantile_error"] * abs(want),
                  f"{row['name']} {share}: {value}, numpy has {want}")
    empty = {"none": torch.zeros(0, 4), "nan": torch.full((3,), math.nan)}
    torch.save(empty, folder / "e.pt")
    for row in stats_of(folder / "e.pt"):
        check("quantiles" not in row["stats"], str(row))


def stats_of(path, *options):
    return CKPT.ok("inspect", path, "--stats", "--json",
                   *options).json()["tensors"]


def zero_lines(folder):
    """Rows and columns of zeros, of either sign, of every type."""
    import torch
    torch.manual_seed(3)
    state = {}
    for name in [*FLOATS, *INTS, "bool", *COMPLEX]:
        a = (torch.view_as_complex(torch.ones(67, 130, 2).half())
             if name == "complex32"
             else torch.ones(67, 130).to(getattr(torch, name)))
        if name == "float8_e8m0fnu":  # it has no zero
            state[name] = a
            continue
        bits = a.view(torch.uint8).reshape(67, 130, -1)
        bits[[0, 13, 66]] = 0
        bits[:, [1, 64, 129]] = 0
        if name in FLOATS and not name.endswith("fnuz"):
            bits[13, :, -1] = 0x80  # zeros with a sign
        if name in COMPLEX:
            bits[5] = 0
            bits[5, 7, -1] = 0x3c  # in one part of one element
        state[name] = a
    state["vector"] = torch.zeros(9)
    state["cube"] = torch.zeros(3, 4, 5)
    torch.save(state, folder / "z.pt")
    for row in stats_of(folder / "z.pt"):
        got = row["stats"]
        if row["name"] in ("vector", "cube"):
            check("zero_rows" not in got, row["name"])
            continue
        none = row["name"] == "float8_e8m0fnu"
        check_equal((got["zero_rows"], got["zero_columns"]),
                    (0, 0) if none else (3, 3), row["name"])
    text = CKPT.ok("inspect", folder / "z.pt", "--stats").out
    check("float32: 3 of 67 rows and 3 of 130 columns with nothing but zeros"
          in text, text)


def threads(folder):
    """No number depends on the threads, or on how a checkpoint is cut."""
    import torch
    torch.manual_seed(4)
    whole = folder / "t.safetensors"
    from safetensors.torch import save_file
    state = {"a.weight": torch.randn(1024, 4096) * 1e-3,
             "b.weight": torch.randn(3000, 2048).bfloat16(),
             "c.bias": torch.randn(4097).half()}
    state["a.weight"][17] = 0
    # Every counter is in use, and each tensor is cut over three files.
    state |= {f"bits.{i}": torch.randint(-2**31, 2**31 - 1, (200, 1024)).int()
              .view(torch.float32) for i in range(30)}
    save_file(state, whole)
    CKPT.ok("convert", whole, folder / "dcp", "--to", "dcp", "--dp", 3)
    known = {row["name"]: row["stats"] for row in stats_of(whole, "-j", 1)}
    check_equal(known["a.weight"]["zero_rows"], 1, "zero rows")
    for path in (whole, folder / "dcp"):
        for count, memory in ((1, "1GiB"), (2, "1GiB"), (7, "1GiB"),
                              (1, "24MiB"), (7, "24MiB")):
            got = {row["name"]: row["stats"] for row in stats_of(
                path, "-j", count, "--max-mem", memory)}
            check_equal(got, known, f"{path} -j {count} in {memory}")


def spectral(folder):
    """Against torch.linalg, whose singular values they are of."""
    import torch
    torch.manual_seed(5)
    state = {"wide": torch.randn(48, 300), "tall": torch.randn(257, 31).half(),
             "low": torch.randn(90, 4) @ torch.randn(4, 80),
             "brain": torch.randn(64, 64).bfloat16(), "eye": torch.eye(50),
             "zero": torch.zeros(7, 5), "one": torch.tensor([[-3.0]]),
             "double": torch.randn(20, 30, dtype=torch.float64),
             "bad": torch.full((4, 4), math.nan),
             "vector": torch.randn(9), "whole": torch.ones(3, 3).int()}
    torch.save(state, folder / "s.pt")
    rows = CKPT.ok("inspect", folder / "s.pt", "--spectral",
                   "--json").json()["tensors"]
    for row in rows:
        name, tensor = row["name"], state[row["name"]]
        if name in ("vector", "whole"):
            check("spectral" not in row, name)
            continue
        got = row["spectral"]
        if name == "bad":
            check("not finite" in got["left_out"], str(got))
            continue
        values = torch.linalg.svdvals(tensor.double())
        share = values / values.sum() if values.sum() else values
        entropy = -(share * share.clamp_min(1e-300).log()).sum()
        want = {"norm": values[0], "effective_rank": entropy.exp(),
                "stable_rank": (values / values[0]).square().sum()}
        if name == "zero":
            want = dict.fromkeys(want, 0)
        for key, value in want.items():
            check(abs(got[key] - float(value)) <= 5e-5 * (1 + float(value)),
                  f"{name} {key}: {got[key]}, torch has {float(value)}")
    text = CKPT.ok("inspect", folder / "s.pt", "--spectral").out
    check("left out: bad: it has elements that are not finite" in text, text)
    torch.save({"big": torch.randn(1500, 1500), "small": torch.eye(10)},
               folder / "m.pt")
    rows = CKPT.ok("inspect", folder / "m.pt", "--spectral", "--json",
                   "--max-mem", "32MiB").json()["tensors"]
    rows = {row["name"]: row["spectral"] for row in rows}
    check("--max-mem is 32" in rows["big"]["left_out"], str(rows["big"]))
    check_equal(rows["small"]["norm"], 1, "the small one")


def steps(folder):
    """A root's values, step by step: --all --stats."""
    import numpy as np
    from safetensors.torch import save_file
    import torch
    torch.manual_seed(6)
    root, written = folder / "root", {}
    state = {"model.layers.0.mlp.up_proj.weight": torch.randn(64, 32),
             "model.layers.1.mlp.up_proj.weight": torch.randn(64, 32),
             "model.norm.weight": torch.ones(32)}
    for step in (10, 20, 30):
        state["model.layers.1.mlp.up_proj.weight"] *= 1.5
        if step == 30:
            state["model.norm.weight"][3] = math.nan
        out = root / f"checkpoint-{step}"
        out.mkdir(parents=True)
        save_file(state, out / "model.safetensors")
        (out / "config.json").write_text('{"model_type": "llama"}')
        (out / "trainer_state.json").write_text(
            f'{{"global_step": {step}, "log_history": []}}')
        written[out.name] = np.concatenate(
            [t.double().numpy().ravel() for t in state.values()])
    got = CKPT.ok("inspect", root, "--all", "--stats", "--json").json()["steps"]
    check_equal([s["name"] for s in got], list(written), "steps")
    check_equal([s.get("values_changed") for s in got], [None, 1, 2], "changed")
    for step in got:
        values = written[step["name"]]
        finite = values[np.isfinite(values)]
        stats = step["stats"]
        check_equal(stats["nans"], len(values) - len(finite), "NaNs")
        for key, want in (("norm", np.linalg.norm(finite)),
                          ("min", finite.min()), ("max", finite.max()),
                          ("rms", np.sqrt(np.mean(finite**2)))):
            check(abs(stats[key] - want) <= 1e-9 * (1 + abs(want)),
                  f"{step['name']} {key}: {stats[key]}, numpy has {want}")
    text = CKPT.ok("inspect", root, "--all", "--stats").out
    check("Values of the model" in text and "2 of 3" in text, text)
    plain = CKPT.ok("inspect", root, "--all", "--json").json()["steps"]
    check("stats" not in plain[0], "read without --stats")
    for option in ("--digest", "--spectral", "--tree"):
        CKPT.run("inspect", root, "--all", option).want(2)
    svg = picture(root, folder, "--all")
    check_equal([title for title, _ in svg],
                ["checkpoint-30", "checkpoint-10", "checkpoint-20"],
                "the one with NaN is first")
    CKPT.ok("inspect", root, "--all", "--stats", "--html", folder / "r.html")
    check("checkpoint-20" in (folder / "r.html").read_text(), "the page")


SVG = "{http://www.w3.org/2000/svg}"


def picture(path, folder, *options):
    """[(name, {length of the norm's bar, text})] of each row of --plot."""
    import xml.etree.ElementTree
    file = folder / "p.svg"
    CKPT.ok("inspect", path, "--plot", file, "-q", "--overwrite", *options)
    top = xml.etree.ElementTree.parse(file).getroot()
    check_equal(top.tag, SVG + "svg", "the file")
    rows = []
    for row in top.iter(SVG + "g"):
        bars = [float(r.get("width")) for r in row.iter(SVG + "rect")]
        texts = [t.text for t in row.iter(SVG + "text")]
        rows.append((row.find(SVG + "title").text,
                     {"bar": bars[0], "counts": len(bars) - 1,
                      "norm": texts[1]}))
    return rows


def plot(folder):
    """A picture has each layer's norm, in order, and its magnitudes."""
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(7)
    state = {f"model.layers.{i}.w": torch.randn(40, 30) * (i + 1)
             for i in range(12)}
    state["</svg><script>&.weight"] = torch.ones(4)
    save_file(state, folder / "a.safetensors")
    rows = picture(folder / "a.safetensors", folder)
    check_equal([name for name, _ in rows],
                [f"layer {i}" for i in range(12)] + ["other"], "rows")
    norms = [float(t.double().norm()) for t in state.values()]
    for (name, row), norm in zip(rows, norms, strict=True):
        check_equal(row["norm"], f"{norm:.4g}", name)
        check(abs(row["bar"] - 230 * norm / max(norms)) < 0.02, f"{name}: {row}")
    check_equal(rows[12][1]["counts"], 1, "magnitudes of ones")
    few = {"</svg><script>&.weight": torch.ones(4), "b.weight": torch.eye(3)}
    few["b.weight"][0, 0] = math.inf
    save_file(few, folder / "b.safetensors")
    check_equal([name for name, _ in picture(folder / "b.safetensors", folder)],
                ["b.weight", "</svg><script>&.weight"], "inf is first")
    taken = folder / "taken.svg"
    taken.write_text("mine")
    done = CKPT.run("inspect", folder / "b.safetensors", "--plot", taken)
    check_equal((done.want(5).code, taken.read_text()), (5, "mine"), str(done))
    # A name that another program would open is refused, and the right one said.
    for option, ending, right in (
            ("--plot", ".png", ".svg"), ("--plot", ".PDF", ".svg"),
            ("--plot", ".html", ".svg"), ("--html", ".svg", ".html"),
            ("--html", ".png", ".html")):
        file = folder / f"p2{ending}"
        done = CKPT.run("inspect", folder / "b.safetensors", option, file)
        check(f"hint: {option} {folder}/p2{right}" in done.want(2).err, done.err)
        check(not file.exists(), "nothing is written")
    for option, ending in (("--plot", ""), ("--plot", ".v2"), ("--html", ".v2")):
        CKPT.ok("inspect", folder / "b.safetensors", option,
                folder / f"p3{option}{ending}")
    out = CKPT.ok("inspect", folder / "b.safetensors", "--plot", "-").out
    check(out.startswith("<svg "), out[:80])
    CKPT.run("inspect", folder / "b.safetensors", "--plot", "-",
             "--json").want(2)


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
    suite.add("--stats: quantiles as numpy's", quantiles)
    suite.add("--stats: rows and columns of zeros", zero_lines)
    suite.add("--stats: the same with any threads", threads)
    suite.add("--spectral as torch's", spectral)
    suite.add("--all --stats: step by step", steps)
    suite.add("--plot: norms by layer", plot)
    suite.add("--rtol and --atol as isclose", isclose)
    suite.add("differences at the edges", edges)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
