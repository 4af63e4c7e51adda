#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What changed between two checkpoints, in numbers that numpy has as well, and
the names that would make them meet."""

import json
import math
import shutil

import numpy
import torch
from safetensors.torch import load_file, save_file

from support import DATA, Suite, check, check_equal

CKPT = None
LLAMA = DATA / "hf/llama/ckpt"


def save(folder, name, state):
    folder.mkdir(exist_ok=True)
    save_file({k: v.clone().contiguous() for k, v in state.items()},
              folder / name, {"format": "pt"})
    return folder / name


def f64(tensor):
    return tensor.to(torch.float64).flatten().numpy()


def numbers_of(pairs):
    """What numpy says of tensors together."""
    a = numpy.concatenate([f64(x) for x, _ in pairs])
    b = numpy.concatenate([f64(y) for _, y in pairs])
    apart = b - a
    with numpy.errstate(invalid="ignore", divide="ignore"):
        return {"elements": a.size, "differing": int((apart != 0).sum()),
                "relative_l2": numpy.linalg.norm(apart) / numpy.linalg.norm(a),
                "rms": math.sqrt((apart ** 2).mean()),
                "cosine": a @ b / (numpy.linalg.norm(a) * numpy.linalg.norm(b)),
                "max_abs": abs(apart).max()}


def check_numbers(row, want, about):
    for key, value in want.items():
        got = float(row[key])
        same = (got == value or abs(got - value) <= 1e-9 * abs(value)
                or (math.isnan(got) and math.isnan(value)))
        check(same, f"{about} {key}: {got}, expected {value}")


def differences(a, b, *options):
    return CKPT.run("diff", a, b, "--json", *options).want(1).json()


# --- numbers ---

DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn",
          "float8_e5m2"]


def across_dtypes(folder):
    """Each dtype against each: what the cast cost, exactly."""
    torch.manual_seed(0)
    one, two, pairs = {}, {}, {}
    for x in DTYPES:
        for y in DTYPES:
            left = torch.randn(37, 53).to(getattr(torch, x))
            right = (left.double() + 1e-2 * torch.randn(37, 53)).to(
                getattr(torch, y))
            name = f"m.{x}_to_{y}"
            one[name], two[name] = left, right
            pairs[name] = (left, right)
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    rows = differences(a, b)["differences"]
    check_equal({r["tensor"] for r in rows}, set(pairs), "tensors")
    for row in rows:
        check_numbers(row, numbers_of([pairs[row["tensor"]]]), row["tensor"])
    order = [r["relative_l2"] for r in rows]
    check_equal(order, sorted(order, reverse=True), "what matters most first")
    found = CKPT.run("verify", a, b, "--json").want(1).json()["problems"]
    for row in found:
        check_numbers(row, numbers_of([pairs[row["tensor"]]]), row["tensor"])


def by_pattern(folder):
    """All layers of a name together, in --json and in the text."""
    torch.manual_seed(1)
    one = {f"layers.{i}.{n}.weight": torch.randn(8, 16)
           for i in range(12) for n in ("up", "down", "gate")}
    size = {"up": 1e-4, "down": 1e-1, "gate": 1e-2}
    two = {k: v + size[k.split(".")[2]] * torch.randn_like(v)
           for k, v in one.items()}
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    rows = differences(a, b)["patterns"]
    check_equal([r["pattern"] for r in rows],
                [f"layers.#.{n}.weight" for n in ("down", "gate", "up")], "order")
    for row in rows:
        name = row["pattern"].split(".")[2]
        check_equal(row["tensors"], 12, name)
        check_numbers(row, numbers_of([(one[k], two[k]) for k in one
                                       if k.split(".")[2] == name]), name)
    lines = CKPT.run("diff", a, b).want(1).out.splitlines()
    check("relative L2" in lines[0] and "cosine" in lines[0], lines[0])
    for line, row in zip(lines[1:4], rows, strict=True):
        check(f"{row['relative_l2']:.3g}" in line and "×12" in line, line)
    said = CKPT.run("verify", a, b).want(1).out.splitlines()
    check_equal(len(said), 4, "lines")
    check(f"relative L2 {rows[0]['relative_l2']:.3g}" in said[0], said[0])


def no_leading_zeros(folder):
    """A value near zero does not lead: the tensor that moved does."""
    quiet, moved = torch.full((100,), 1e-30), torch.ones(100)
    quiet[0] = 1
    one = {"quiet": quiet, "moved": moved}
    two = {"quiet": quiet + 1e-12, "moved": moved * 1.5}
    rows = differences(save(folder, "a.safetensors", one),
                       save(folder, "b.safetensors", two))["differences"]
    check_equal([r["tensor"] for r in rows], ["moved", "quiet"], "order")


def edges(folder):
    inf, nan = math.inf, math.nan
    t = torch.tensor
    cases = {  # a, b, relative_l2, rms, cosine
        "one nan": (t([1.0, nan]), t([1.0, 1.0]), inf, inf, 1),
        "equal nan": (t([3.0, nan]), t([4.0, nan]), 1 / 3, math.sqrt(.5), 1),
        "equal inf": (t([3.0, inf]), t([4.0, inf]), 1 / 3, math.sqrt(.5), 1),
        "from zero": (t([0.0, 0.0]), t([1.0, 0.0]), inf, math.sqrt(.5), nan),
        "turned": (t([1.0, 0.0]), t([0.0, 1.0]), math.sqrt(2), 1, 0),
        "opposite": (t([1.0, 2.0]), t([-1.0, -2.0]), 2, math.sqrt(10), -1),
        "whole": (t([2 ** 40, 1]), t([2 ** 40 + 2, 1]), 2 / 2 ** 40,
                  math.sqrt(2), 1),
        "complex": (t([3 + 4j]), t([0j]), 1, 5, nan),
    }
    one = {k: v[0] for k, v in cases.items()}
    two = {k: v[1] for k, v in cases.items()}
    torch.save(one, folder / "a.pt")
    torch.save(two, folder / "b.pt")
    done = CKPT.run("verify", folder / "a.pt", folder / "b.pt", "--json").want(1)
    rows = {r["tensor"]: r for r in done.json()["problems"]}
    for name, (_, _, *want) in cases.items():
        check_numbers(rows[name], dict(zip(("relative_l2", "rms", "cosine"),
                                           want, strict=True)), name)


def model_of(folder, state, config=None):
    folder.mkdir()
    save(folder, "model.safetensors", state)
    written = json.loads((LLAMA / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def fp8(weight, block=128):
    """DeepSeek's: codes, and what each block is multiplied with."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // block), -(-columns // block))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * block, (i + 1) * block),
                  slice(j * block, (j + 1) * block))
            scales[i, j] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
    wide = scales.repeat_interleave(block, 0)[:rows].repeat_interleave(
        block, 1)[:, :columns]
    return codes, scales, codes.float() * wide


def quantized(folder):
    """Codes are compared as the numbers that they stand for, not as codes."""
    torch.manual_seed(2)
    plain = {k: v.float() for k, v in load_file(
        LLAMA / "model.safetensors").items()}
    codes, numbers = {}, {}
    for name, weight in plain.items():
        if weight.ndim == 2 and "proj" in name:
            codes[name], scale, numbers[name] = fp8(weight)
            codes[name + "_scale_inv"] = scale
        else:
            codes[name] = weight
    a = model_of(folder / "a", plain)
    b = model_of(folder / "b", codes, {"quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
        "activation_scheme": "dynamic"}})
    for done in (differences(a, b)["differences"],
                 CKPT.run("verify", a, b, "--json").want(1).json()["problems"]):
        rows = {r["tensor"]: r for r in done if "relative_l2" in r}
        check_equal(set(rows), set(numbers), "tensors")
        for name, row in rows.items():
            check_numbers(row, numbers_of([(plain[name], numbers[name])]), name)
            check("B has fp8" in row["message"], row["message"])
        check(not any("scale_inv" in r.get("tensor", "") for r in done),
              "scales are a part of their codes")


def model_only(folder):
    """A step of training against the model that was made of it."""
    run = DATA / "runs"
    found = False
    for step in sorted(run.glob("*/ckpt"))[:4]:
        out = folder / step.parent.name
        done = CKPT.run("convert", step, out, "--to", "safetensors",
                        "--model-only")
        if done.code != 0:
            continue
        found = True
        CKPT.ok("diff", step, out, "--model-only")
        check_equal(CKPT.run("diff", step, out).code, 1,
                    f"{step}: its state of training is gone")
    check(found, "no run was converted")
    shutil.rmtree(folder)
    folder.mkdir()


# --- names ---

def renamed(folder):
    """Names that share nothing: the rules that diff prints make them meet, by
    content, and by shape where training went on."""
    torch.manual_seed(4)
    one = {"model.embed.weight": torch.randn(20, 8),
           "model.norm.weight": torch.ones(8)}
    for i in range(12):
        for name in ("attn.q", "attn.k", "mlp.up"):
            one[f"model.layers.{i}.{name}.weight"] = torch.randn(8, 8)
        one[f"model.layers.{i}.mlp.down.weight"] = torch.randn(8, 24)
    one["model.layers.0.norm.weight"] = torch.ones(8)
    changes = {
        "prefix": lambda k: k.replace("model.", "decoder.", 1),
        "none before": lambda k: k.removeprefix("model."),
        "added": lambda k: "wrapped." + k,
        "inside": lambda k: k.replace("layers.", "h.").replace(
            ".attn.", ".self_attention."),
        "all": lambda k: k.replace("model.layers.", "blk.").replace(
            "model.embed", "wte").replace("model.norm", "ln_f")}
    for about, change in changes.items():
        for trained in (False, True):
            moved = {change(k): v + trained * 1e-3 * torch.randn_like(v)
                     for k, v in one.items()}
            a = save(folder, "a.safetensors", one)
            b = save(folder, "b.safetensors", moved)
            said = differences(a, b)
            rules = said.get("rename")
            # q, k and up have one shape: after training nothing tells which.
            if trained and about in ("inside", "all"):
                check(rules is None or len(one) > 1, about)
                continue
            check(rules, f"{about} {trained}: no rules")
            check(rules in CKPT.run("diff", a, b).want(1).out, about)
            CKPT.ok("convert", a, folder / "c.safetensors", "--rename", rules,
                    "--overwrite", "--dialect", "keep")
            found = load_file(folder / "c.safetensors")
            if not trained:
                check_equal(set(found), set(moved), f"{about}: names")
                CKPT.ok("diff", folder / "c.safetensors", b)
            else:
                check(set(found) & set(moved), f"{about}: names")


CASES = [across_dtypes, by_pattern, no_leading_zeros, edges, quantized,
         model_only, renamed]


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
