#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What changed between two checkpoints, in numbers that numpy has as well, and
as files that other libraries load: differences, LoRAs, and steps that are
restored byte for byte."""

import json
import math
import shutil
import sys
import warnings
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file

from support import DATA, Skip, Suite, check, check_equal

CKPT = None
LLAMA = DATA / "hf/llama/ckpt"


def restored(base, delta, out):
    return "convert", base, out, "--delta", delta


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


# --- B - A ---

def plain(folder):
    """Each tensor of B - A, rounded once, as torch has it; A + (B - A) is B."""
    torch.manual_seed(6)
    one = {f"m.{x}": torch.randn(33, 41).to(getattr(torch, x)) for x in DTYPES}
    two = {k: (v.double() + 1e-2 * torch.randn(33, 41)).to(v.dtype)
           for k, v in one.items()}
    for state in (one, two):
        state["m.count"] = torch.arange(5)
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    for words, dtype in (((), torch.float32),
                         (("--dtype", "bf16"), torch.bfloat16),
                         (("--dtype", "f64"), torch.float64)):
        out = folder / f"{dtype}.safetensors"
        done = CKPT.ok("diff", a, b, "--write", out, "--json", *words).json()
        check_equal(done["written"],
                    [{"path": out.name, "bytes": out.stat().st_size}], "files")
        delta = load_file(out)
        check_equal(set(delta), set(one), "names")
        for name, made in delta.items():
            if name == "m.count":
                check(made.dtype == torch.int64 and not made.any(), name)
                continue
            want = (two[name].double() - one[name].double()).to(dtype)
            check(made.dtype == dtype and torch.equal(made, want),
                  f"{name} in {dtype}")
    CKPT.ok("inspect", out)
    two["m.count"] = torch.arange(5) + 1
    save(folder, "b.safetensors", two)
    done = CKPT.run("diff", a, b, "--write", folder / "no.safetensors").want(5)
    check("m.count" in done.err and "i64" in done.err, done.err)
    two["more"] = torch.ones(2)
    save(folder, "b.safetensors", two)
    done = CKPT.run("diff", a, b, "--write", folder / "no.safetensors",
                    "--exclude", "m.count").want(5)
    check("more" in done.err and "--exclude more" in done.err, done.err)
    check(not (folder / "no.safetensors").exists(), "nothing is written")


def plain_folder(folder):
    """A directory has the configuration, and is a model."""
    state, after, a, b = two_models(folder)
    CKPT.ok("diff", a, b, "--write", folder / "out")
    check_equal((folder / "out/config.json").read_text(),
                (b / "config.json").read_text(), "config.json")
    delta = load_file(folder / "out/model.safetensors")
    for name, made in delta.items():
        check(torch.equal(made, after[name] - state[name]), name)
    CKPT.run("diff", a, b, "--write", folder / "out.pt").want(2)


def marked(folder):
    """A difference and a lossless delta say what they are, whoever opens
    them: inspect, verify, convert, merge."""
    state, after, a, b = two_models(folder)
    for name in ("one.safetensors", "whole"):
        out = folder / name
        CKPT.ok("diff", a, b, "--write", out)
        said = "a difference of two checkpoints (B - a), not a model"
        check(said in CKPT.ok("inspect", out).out, f"inspect {name}")
        check_equal(CKPT.ok("inspect", out, "--json").json()["delta"],
                    "difference", name)
        done = CKPT.ok("verify", out)
        check(said in done.out and "\nok: " in done.out, done.out)
        row, = [p for p in CKPT.ok("verify", out, "--json").json()["problems"]
                if p["kind"] == "delta"]
        check_equal(row["severity"], "note", str(row))
        # A loader's folder of it looks like a model; one file keeps the mark.
        done = CKPT.ok("convert", out, folder / f"{name}.dir", "--to",
                       "safetensors")
        check("not a model" in done.err and "ckpt merge BASE" in done.err,
              done.err)
        done = CKPT.ok("convert", out, folder / f"{name}.again.safetensors")
        check("not a model" not in done.err, done.err)
        for copy in (f"{name}.dir", f"{name}.again.safetensors"):
            check(said in CKPT.ok("inspect", folder / copy).out, copy)
    delta = folder / "b.delta"
    CKPT.ok("diff", a, b, "--write", delta, "--lossless")
    files = tree(b)
    said = (f"a lossless delta of {len(files)} files (", f"against {len(state)} "
            "tensors, not a model")
    done = CKPT.ok("inspect", delta)
    check(all(part in done.out for part in said), done.out)
    check("parameters" not in done.out, done.out)
    found = CKPT.ok("inspect", delta, "--json").json()
    check_equal((found["delta"], found["parameters"]), ("lossless", 0), "JSON")
    done = CKPT.ok("verify", delta)
    check(all(part in done.out for part in said), done.out)
    for words in (("merge", a, delta), ("merge", delta, a), ("convert", delta)):
        done = CKPT.run(*words, folder / "no", "--to", "safetensors").want(2)
        check("lossless delta" in done.err and "--delta " in done.err, done.err)
    check(not (folder / "no").exists(), "nothing is written")
    check("delta" not in CKPT.ok("inspect", b, "--json").json(), "a model")


# --- as a LoRA ---

def tuned(state, rank=4, seed=3):
    """What training of low rank and some noise makes of the linears, and what
    it makes of norms and embeddings."""
    torch.manual_seed(seed)
    after = {}
    for name, weight in state.items():
        if weight.ndim == 2 and "proj" in name:
            product = torch.randn(weight.shape[0], rank) @ torch.randn(
                rank, weight.shape[1])
            noise = torch.randn_like(weight)
            after[name] = weight + 1e-2 * product + 1e-3 * noise
        elif "layernorm" in name or "embed" in name:
            after[name] = weight + 1e-2 * torch.randn_like(weight)
        else:
            after[name] = weight
    return after


def two_models(folder):
    state = {k: v.float() for k, v in load_file(
        LLAMA / "model.safetensors").items()}
    after = tuned(state)
    return (state, after, model_of(folder / "a", state),
            model_of(folder / "b", after))


def left_by_torch(matrix, rank):
    values = torch.linalg.svdvals(matrix.double())
    return float(values[rank:].norm() / values.norm())


def lora(folder):
    """The error is that of torch's singular values, and of the files; peft
    loads them, and what it merges is B but for that error."""
    state, after, a, b = two_models(folder)
    for rank in (1, 4, 1000):
        out = folder / f"lora{rank}"
        done = CKPT.ok("diff", a, b, "--write", out, "--as-lora", rank,
                       "--json").json()
        rows = {r["name"] + ".weight": r for r in done["lora"]["modules"]}
        check_equal(set(rows), {k for k in state if "proj" in k}, "modules")
        errors = [r["error"] for r in done["lora"]["modules"]]
        check_equal(errors, sorted(errors, reverse=True), "order")
        factors = load_file(out / "adapter_model.safetensors")
        for name, row in rows.items():
            apart = after[name] - state[name]
            own = min(rank, *apart.shape)
            check_equal(row["rank"], own, name)
            want = left_by_torch(apart, own)
            check(abs(row["error"] - want) <= 1e-4 * want + 1e-5,
                  f"{name} rank {rank}: {row['error']}, torch leaves {want}")
            module = "base_model.model." + name.removesuffix(".weight")
            made = (factors[module + ".lora_B.weight"].double()
                    @ factors[module + ".lora_A.weight"].double())
            real = float((apart.double() - made).norm() / apart.double().norm())
            check(abs(real - row["error"]) <= 1e-4 * real + 1e-5,
                  f"{name}: the files leave {real}, not {row['error']}")
        again = folder / f"again{rank}"
        CKPT.ok("convert", a, again, "--to", "safetensors", "--adapter", out)
        merged = load_file(again / "model.safetensors")
        near(merged, state, after, rows, "convert --adapter")
        near(by_peft(a, out), state, after, rows, "peft")
    small = folder / "bf16"
    done = CKPT.ok("diff", a, b, "--write", small, "--as-lora", 4, "--dtype",
                   "bf16", "--json").json()
    factors = load_file(small / "adapter_model.safetensors")
    check({v.dtype for k, v in factors.items() if "lora_" in k}
          == {torch.bfloat16}, "factors in bf16")


def near(merged, state, after, rows, who):
    for name, weight in after.items():
        if name not in rows:
            check(torch.equal(merged[name], weight), f"{who}: {name} is B's")
            continue
        apart = (after[name] - state[name]).double()
        left = (after[name].double() - merged[name].double()).norm()
        error = float(left / apart.norm())
        check(error <= rows[name]["error"] * 1.001 + 2e-4,
              f"{who}: {name} is {error} from B, stated {rows[name]['error']}")


def by_peft(base, adapter):
    peer = Path(sys.prefix) / "transformers_5.12.1"
    if not peer.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(peer) not in sys.path:
        sys.path.insert(0, str(peer))
    import peft
    import transformers
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return dict(model.state_dict())


def large(folder):
    """A matrix whose singular values are not all computed: no worse than
    torch.svd_lowrank."""
    torch.manual_seed(5)
    one = torch.randn(1500, 1300)
    two = one + torch.randn(1500, 40) @ torch.diag(
        0.8 ** torch.arange(40.0)) @ torch.randn(40, 1300) \
        + 1e-3 * torch.randn(1500, 1300)
    a = save(folder, "a.safetensors", {"m.up_proj.weight": one})
    b = save(folder, "b.safetensors", {"m.up_proj.weight": two})
    done = CKPT.ok("diff", a, b, "--write", folder / "out", "--as-lora", 16,
                   "--json").json()
    got = done["lora"]["modules"][0]["error"]
    u, s, v = torch.svd_lowrank(two - one, q=16)
    theirs = float((two - one - u @ torch.diag(s) @ v.T).norm()
                   / (two - one).norm())
    best = left_by_torch(two - one, 16)
    check(best * (1 - 1e-4) <= got <= min(theirs, best * 1.01) * (1 + 1e-4),
          f"{got}, the best is {best}, torch.svd_lowrank's {theirs}")
    CKPT.run("diff", a, b, "--write", folder / "small", "--as-lora", 16,
             "--max-mem", "16MiB").want(7)
    check(not (folder / "small").exists(), "nothing is written")


def not_finite(folder):
    """What has no singular values is named, with its place."""
    state, after, a, _ = two_models(folder)
    name = "model.layers.1.mlp.up_proj.weight"
    for value in (math.nan, math.inf, -math.inf):
        for side in ("a", "b"):
            one, two = dict(state), dict(after)
            changed = one if side == "a" else two
            changed[name] = changed[name].clone()
            changed[name][3, 7] = value
            here, there = (model_of(folder / f"{x}{side}{value}", s)
                           for x, s in (("a", one), ("b", two)))
            out = folder / "out"
            done = CKPT.run("diff", here, there, "--write", out, "--as-lora",
                            4).want(5)
            check(name in done.err and "[3, 7]" in done.err
                  and f"--exclude {name}" in done.err, done.err)
            check("linalg" not in done.err and not out.exists(), done.err)
            CKPT.ok("diff", here, there, "--write", out, "--as-lora", 4,
                    "--exclude", name)
            shutil.rmtree(out)


# --- without loss ---

def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def lossless(folder):
    """Files come back byte for byte, from the step before in any format."""
    state, after, a, b = two_models(folder)
    delta = folder / "b.delta"
    done = CKPT.ok("diff", a, b, "--write", delta, "--lossless",
                   "--json").json()
    check_equal(done["lossless"]["bytes"],
                sum(map(len, tree(b).values())), "bytes")
    check(done["lossless"]["xored"] > 0.9 * done["lossless"]["bytes"], "XORed")
    check_equal(done["written"],
                [{"path": str(delta), "bytes": delta.stat().st_size}], "files")
    other = folder / "dcp"
    CKPT.ok("convert", a, other, "--to", "dcp", "--dialect", "keep", "--dp", 2)
    for base in (a, other):
        out = folder / f"again_{base.name}"
        CKPT.ok(*restored(base, delta, out))
        check_equal(tree(out), tree(b), f"from {base.name}")
    # One file; and a base that is not the one.
    CKPT.ok("diff", a, b / "model.safetensors", "--write", folder / "one",
            "--lossless")
    CKPT.ok(*restored(a, folder / "one", folder / "one.safetensors"))
    check((folder / "one.safetensors").read_bytes()
          == (b / "model.safetensors").read_bytes(), "one file")
    wrong = CKPT.run(*restored(b, delta, folder / "wrong")).want(5)
    check("not the base" in wrong.err and "ckpt diff A B" in wrong.err, wrong.err)
    check(not (folder / "wrong").exists(), "nothing is written")


def lossless_formats(folder):
    """Every format's files come back byte for byte: whatever of them are
    elements of tensors, XORed, or is not, packed as it is."""
    done = 0
    for source in sorted(DATA.glob("*/*/ckpt")):
        seen = CKPT.run("inspect", source, "--json")
        if seen.code != 0:
            continue
        step = Path(seen.json()["path"])  # a step of a run's folder
        kind = source.parents[1].name
        here = folder / f"{kind}_{source.parent.name}"
        here.mkdir()
        CKPT.ok("diff", source, source, "--write", here / "d", "--lossless")
        CKPT.ok(*restored(source, here / "d", here / "again"))
        check_equal(tree(here / "again"), tree(step), str(source))
        shutil.rmtree(here)
        done += 1
    check(done > 40, f"{done} checkpoints")


def lossless_is_small(folder):
    """A step that moved little takes little."""
    torch.manual_seed(0)
    one = {f"layers.{i}.weight": (0.02 * torch.randn(512, 512)).bfloat16()
           for i in range(8)}
    two = {k: (v.float() * (1 + 1e-3 * torch.randn(512, 512))).bfloat16()
           for k, v in one.items()}
    a = save(folder, "a.safetensors", one)
    b = save(folder, "b.safetensors", two)
    CKPT.ok("diff", a, b, "--write", folder / "d", "--lossless")
    share = (folder / "d").stat().st_size / b.stat().st_size
    check(share < 0.35, f"{share:.0%} of the step")


def lossless_damaged(folder):
    """Any byte that is changed is found, and nothing is written."""
    state, after, a, b = two_models(folder)
    delta = folder / "d"
    CKPT.ok("diff", a, b, "--write", delta, "--lossless")
    data = delta.read_bytes()
    rng = numpy.random.default_rng(1)
    for at in [*map(int, rng.integers(512, len(data), 12)), len(data) - 3]:
        bad = folder / "bad"
        bad.write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1:])
        done = CKPT.run(*restored(a, bad, folder / "out"))
        check(done.code in (4, 5), f"byte {at}: {done}")
        check(not (folder / "out").exists(), "nothing is written")
    (folder / "cut").write_bytes(data[:len(data) // 2])
    CKPT.run(*restored(a, folder / "cut", folder / "out")).want(4)


def dry_run(folder):
    """-n says what would be written, to the byte, or at most where only packing
    tells, refuses what a run would, and writes nothing."""
    state, after, a, b = two_models(folder)
    for name, words in (("one.safetensors", ()), ("whole", ()),
                        ("half.safetensors", ("--dtype", "bf16")),
                        ("lora", ("--as-lora", "3")),
                        ("packed", ("--lossless",))):
        out = folder / name
        line = ("diff", a, b, "--write", out, *words)
        planned = CKPT.ok(*line, "-n", "--json").json()
        text = CKPT.ok(*line, "--dry-run").out
        check(text.endswith("dry run: nothing was written\n"), text)
        check(not out.exists() and not list(folder.glob(".*")), name)
        made = CKPT.ok(*line, "--json").json()
        check_equal((planned.pop("dry_run"), made.pop("dry_run")),
                    (True, False), name)
        sizes = [one["bytes"] for one in made["written"]]
        if name == "packed":
            most = planned["written"][0]["bytes"]
            check(sizes[0] <= most < made["lossless"]["bytes"] * 1.3 + 65536,
                  f"{sizes} of at most {most}")
            check(f"at most {most} bytes" in text, text)
            planned["written"] = made["written"]
        else:
            for one in made["written"]:
                check(f"  {one['path']}: {one['bytes']} bytes\n" in text, text)
        for module in made.get("lora", {}).get("modules", []):
            del module["norm"], module["error"]
        for said in (planned, made):
            if "lora" in said:
                said["lora"]["modules"].sort(key=lambda m: m["name"])
        check_equal(planned, made, name)
        # What is in the way, and what can't be, as a run says it.
        done = CKPT.run(*line, "-n").want(5)
        check_equal(done.err, CKPT.run(*line).want(5).err, name)
        CKPT.ok(*line, "-n", "--overwrite")
    after["more"] = torch.ones(2)
    save(b, "model.safetensors", after)
    for words in ((), ("--as-lora", "3")):
        done = CKPT.run("diff", a, b, "--write", folder / "no", "-n",
                        *words).want(5)
        check("--exclude more" in done.err, done.err)
    CKPT.run("diff", a, b, "-n").want(2)


def mistakes(folder):
    one, two = torch.ones(4, 4), torch.zeros(4, 4)
    a = save(folder, "a.safetensors", {"x.weight": one})
    b = save(folder, "b.safetensors", {"x.weight": two})
    out = folder / "out"
    for words, code in (
            (("--as-lora", "4"), 2), (("--lossless",), 2), (("--to", "torch"), 2),
            (("--write", out, "--as-lora", "0"), 2),
            (("--write", out, "--as-lora", "4", "--lossless"), 2),
            (("--write", out / "lo.safetensors", "--as-lora", "4"), 2),
            (("--write", out, "--lossless", "--keys", "x*"), 2),
            (("--write", a, "--lossless"), 2)):
        CKPT.run("diff", a, b, *words).want(code)
        check(not out.exists(), "nothing is written")
    out.write_text("mine")
    CKPT.run("diff", a, b, "--write", out, "--lossless").want(5)
    check_equal(out.read_text(), "mine", "what is in the way")
    CKPT.ok("diff", a, b, "--write", out, "--lossless", "--overwrite")


CASES = [across_dtypes, by_pattern, no_leading_zeros, edges, quantized,
         model_only, renamed, plain, plain_folder, marked, lora, large, not_finite, lossless,
         lossless_formats, lossless_is_small, lossless_damaged, dry_run, mistakes]


def test_page(folder):
    """--html shows a comparison, --write computes with it."""
    done = CKPT.run("diff", folder, folder, "--write", folder / "d", "--html",
                    folder / "page.html").want(2)
    check("--html and --write exclude each other" in done.err, done.err)
    check(not (folder / "page.html").exists(), "no page")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("a page of a difference", test_page)
    for case in CASES:
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
