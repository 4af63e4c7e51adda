#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt merge: sums and means against numpy, element for element; mergekit's
methods against mergekit, on its own folders; sources of several formats, as
torch and transformers write and read them; and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import (
    DATA, Skip, Suite, check, check_equal, from_torch, load_pt,
    read_safetensors)

CKPT = None  # set by prepare
LLAMA = DATA / "hf/llama/ckpt"
MERGEKIT = next(Path(sys.prefix).glob("mergekit_*"), None)
TRANSFORMERS = next(Path(sys.prefix).glob("transformers_5*"), None)


def torch_of(tensor):
    import torch

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64,
             "f16": torch.float16, "i64": torch.int64}[tensor.dtype]
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(
        tensor.shape)


def model(folder, name, seed, dtype="float32", config=LLAMA, near=None):
    """A model of the golden's names and shapes, with numbers of its own. `near`:
    those of another, changed a little."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    path = folder / name
    path.mkdir()
    for file in ("config.json", "generation_config.json"):
        if (config / file).exists():
            shutil.copy(config / file, path)
    tensors = {}
    for key, old in read_safetensors(config / "model.safetensors").items():
        made = torch.randn(old.shape)
        if near is not None:
            made = torch_of(read_safetensors(
                near / "model.safetensors")[key]).float() + made / 16
        tensors[key] = made.to(getattr(torch, dtype)).contiguous()
    save_file(tensors, str(path / "model.safetensors"), {"format": "pt"})
    text = json.loads((path / "config.json").read_text())
    text["dtype"] = dtype
    (path / "config.json").write_text(json.dumps(text))
    return path


def models(folder, count, dtype="float32"):
    return [model(folder, f"m{i}", i, dtype) for i in range(count)]


def arrays(path):
    """name -> numpy array, in f32 or wider."""
    found = {}
    for name, tensor in read_safetensors(path / "model.safetensors").items():
        value = torch_of(tensor)
        found[name] = (value if tensor.dtype == "f64" else value.float()).numpy()
    return found


def check_bits(out, want, dtype, what):
    """Each tensor is the array, rounded once."""
    import torch

    got = read_safetensors(out / "model.safetensors")
    check_equal(sorted(got), sorted(want), f"{what}: names")
    for name, array in want.items():
        rounded = from_torch(torch.from_numpy(array.copy()).to(
            getattr(torch, dtype)))
        check(got[name] == rounded, f"{what}: {name} differs")


# ------------------------------------------------------------------ sums
def weighted(paths, weights, number, divide=True):
    """As mergekit's linear does it: product by product, in order."""
    import numpy as np

    sums = None
    total = number(0)
    for path, weight in zip(paths, weights):
        each = arrays(path)
        if sums is None:
            sums = {name: np.zeros(x.shape, number) for name, x in each.items()}
        for name, x in each.items():
            sums[name] += x.astype(number) * number(weight)
        total += number(weight)
    if divide:
        sums = {name: x / total for name, x in sums.items()}
    return sums


def test_mean(folder, count, dtype):
    import numpy as np

    paths = models(folder, count, dtype)
    out = folder / "out"
    CKPT.ok("merge", *paths, out, "--verify")
    number = np.float64 if dtype == "float64" else np.float32
    check_bits(out, weighted(paths, [1] * count, number), dtype, "as a rule")
    CKPT.ok("merge", *paths, out, "--exact", "--overwrite")
    check_bits(out, weighted(paths, [1] * count, np.float64), dtype, "f64")
    for name in ("config.json", "generation_config.json"):
        check_equal((out / name).read_bytes(), (paths[0] / name).read_bytes(),
                    name)


def test_weights(folder):
    import numpy as np

    paths, out = models(folder, 3), folder / "out"
    given = ("--weights", "0.5,0.25,2")
    CKPT.ok("merge", *paths, out, *given)
    check_bits(out, weighted(paths, [0.5, 0.25, 2], np.float32), "float32",
               "weights")
    CKPT.ok("merge", *paths, out, *given, "--no-normalize", "--overwrite")
    check_bits(out, weighted(paths, [0.5, 0.25, 2], np.float32, False),
               "float32", "not divided")
    # A mean of one, two and two is that of five.
    CKPT.ok("merge", *paths, out, "--weights", "0,1,0", "--overwrite")
    check_bits(out, arrays(paths[1]), "float32", "one alone")


def test_ema(folder):
    import numpy as np

    paths, out = models(folder, 6), folder / "out"
    for decay in (0.0, 0.5, 0.9, 1.0):
        CKPT.ok("merge", *paths, out, "--ema", decay, "--exact", "--overwrite",
                "--dtype", "f32")
        average = {k: x.astype(np.float64) for k, x in arrays(paths[0]).items()}
        for path in paths[1:]:
            for name, x in arrays(path).items():
                average[name] = decay * average[name] + (1 - decay) * x
        got = arrays(out)
        for name, x in average.items():
            check(np.abs(got[name] - x).max() <= 2e-7 * max(
                1, np.abs(x).max()), f"{decay}: {name}")


def as_floats(path, number):
    return {name: x.astype(number) for name, x in arrays(path).items()}


def test_wide_dtypes(folder, dtype):
    """--dtype is what a sum is rounded to, once: not what a narrower source
    would have made of it."""
    import numpy as np

    paths, out = models(folder, 3, dtype), folder / "out"
    for wide in ("f32", "f64"):
        number = {"f32": np.float32, "f64": np.float64}[wide]
        exact = ("--exact",) if wide == "f64" else ()
        CKPT.ok("merge", *paths, out, "--dtype", wide, *exact, "--overwrite")
        check_bits(out, weighted(paths, [1] * 3, number),
                   {"f32": "float32", "f64": "float64"}[wide], wide)
        said = json.loads((out / "config.json").read_text())["dtype"]
        check_equal(said, {"f32": "float32", "f64": "float64"}[wide], "dtype")
    # 40000 + 40000 is a number of f32's.
    CKPT.ok("merge", *paths, out, "--dtype", "f32", "--weights", "7e4,1,1",
            "--no-normalize", "--overwrite")
    check_bits(out, weighted(paths, [7e4, 1, 1], np.float32, False), "float32",
               "large")


def test_rounded_once(folder):
    """A sum in f64 just above the middle of two of bf16's numbers."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    above = 1 + 2**-8 + 2**-23
    for i, x in enumerate((1 + 2**-8, 1 + 2**-8, above)):
        save_file({"w": torch.tensor([x, -x, 0.0, 1e-45, 1e-40]).repeat(7)},
                  folder / f"{i}.safetensors")
    out = folder / "out.safetensors"
    CKPT.ok("merge", *(folder / f"{i}.safetensors" for i in range(3)), out,
            "--exact", "--dtype", "bf16")
    got = torch_of(read_safetensors(out)["w"])[:5].double()
    least = 2.0**-133  # bf16's smallest
    for x, want in zip(got.tolist(), (1 + 2**-7, -1 - 2**-7, 0.0, 0.0, 1e-40)):
        check(abs(x - want) < least, f"{x}, wanted {want}")
    check(np.isfinite(got.numpy()).all(), "finite")


def test_of_two_dtypes(folder):
    """The first source's is said; a file of mergekit's has the wider."""
    import numpy as np

    a, b = model(folder, "a", 1, "bfloat16"), model(folder, "b", 2)
    done = CKPT.ok("merge", a, b, folder / "out")
    check("bf16" in done.err and "--dtype f32" in done.err, str(done))
    (folder / "m.yml").write_text(json.dumps(
        {"merge_method": "linear", "models": [
            {"model": str(x), "parameters": {"weight": 0.5}} for x in (a, b)]}))
    CKPT.ok("merge", folder / "m.yml", folder / "file")
    check_bits(folder / "file", weighted([a, b], [1, 1], np.float32), "float32",
               "file")


def test_not_finite(folder):
    """A value that is not finite is no mean, unless all sources have it."""
    import torch
    from safetensors.torch import save_file

    inf, nan = float("inf"), float("nan")
    for name, values in (("a", (1.0, -inf, 2.0)), ("b", (1.0, -inf, nan)),
                         ("c", (3e38, -inf, 2.0)), ("d", (1.0, -inf, 2.5))):
        save_file({"w": torch.tensor(values)}, folder / f"{name}.safetensors")
    a, b, c, d = (folder / f"{n}.safetensors" for n in "abcd")
    out = folder / "out.safetensors"
    CKPT.ok("merge", a, d, out)
    check_equal(torch_of(read_safetensors(out)["w"]).tolist(),
                [1.0, -inf, 2.25], "a mask")
    for argv, at in (((a, b), "[2]"), ((c, c, "--weights", "1,1",
                                        "--no-normalize"), "[0]"),
                     ((a, b, "--method", "slerp"), "[0]"),
                     ((a, b, "--method", "ties", "--base", d, "--density",
                       "0.5"), "[2]")):
        done = CKPT.run("merge", *argv[:2], folder / "no.safetensors",
                        *argv[2:]).want(5)
        check(at in done.err and "--allow-nonfinite" in done.err, str(done))
    CKPT.ok("merge", a, b, out, "--allow-nonfinite", "--overwrite")


def test_same_bits(folder):
    """Whoever reads which part: threads, memory, ranks of the target."""
    paths = models(folder, 3, "bfloat16")
    CKPT.ok("merge", *paths, folder / "one", "-j", 1)
    for name, options in (("many", ("-j", 7)), ("small", ("--max-mem", "64MiB"))):
        CKPT.ok("merge", *paths, folder / name, *options)
        check_equal(
            read_safetensors(folder / name / "model.safetensors"),
            read_safetensors(folder / "one/model.safetensors"), name)
    CKPT.ok("merge", *paths, folder / "ranks", "--to", "megatron_torch_dist",
            "--tp", 2, "--pp", 2)
    CKPT.ok("verify", folder / "one", folder / "ranks")


def test_dtypes(folder):
    """Sources of several dtypes: the first's, or what --dtype says."""
    import numpy as np

    paths = [model(folder, "a", 0, "bfloat16"), model(folder, "b", 1),
             model(folder, "c", 2, "float16")]
    want = weighted(paths, [1, 1, 1], np.float32)
    CKPT.ok("merge", *paths, folder / "out")
    check_bits(folder / "out", want, "bfloat16", "the first's")
    CKPT.ok("merge", *reversed(paths), folder / "back")
    check_bits(folder / "back", weighted(paths[::-1], [1, 1, 1], np.float32),
               "float16", "the first's")


def test_too_large(folder):
    """A sum that f16 can't hold is none of its numbers."""
    import torch
    from safetensors.torch import save_file

    for name in ("a", "b"):
        save_file({"w": torch.full((3,), 40000.0, dtype=torch.float16)},
                  str(folder / f"{name}.safetensors"))
    pair = (folder / "a.safetensors", folder / "b.safetensors")
    CKPT.ok("merge", *pair, folder / "mean.safetensors")
    done = CKPT.run("merge", *pair, folder / "sum.safetensors",
                    "--no-normalize").want(5)
    check("w: [0] of all together is 80000" in done.err, f"{done}")


# ------------------------------------------------------------------ formats
def test_formats(folder):
    """A folder of transformers, Megatron's ranks and torch's DCP of one model,
    to any of them: the mean is that of the three folders."""
    import numpy as np

    paths = models(folder, 3)
    CKPT.ok("convert", paths[1], folder / "mcore", "--to",
            "megatron_torch_dist", "--tp", 2, "--pp", 2)
    CKPT.ok("convert", paths[2], folder / "dcp", "--to", "dcp", "--dp", 3)
    mixed = (paths[0], folder / "mcore", folder / "dcp")
    want = weighted(paths, [1, 1, 1], np.float32)
    CKPT.ok("merge", *mixed, folder / "hf")
    check_bits(folder / "hf", want, "float32", "the first is hf")
    for order in ((1, 0, 2), (2, 1, 0)):
        some = [mixed[i] for i in order]
        out = folder / f"out{order[0]}"
        CKPT.ok("merge", *some, out)
        check_equal(CKPT.inspect(out)["format"],
                    CKPT.inspect(some[0])["format"], "the first's format")
        CKPT.ok("convert", out, folder / f"back{order[0]}", "--to",
                "safetensors", "--config-from", paths[0])
        want = weighted([paths[i] for i in order], [1, 1, 1], np.float32)
        check_bits(folder / f"back{order[0]}", want, "float32", f"{order}")
    CKPT.ok("merge", *mixed, folder / "meta", "--to", "meta", "--tp", 2)
    CKPT.ok("verify", folder / "hf", folder / "meta")


def test_torch_files(folder):
    """What torch.save wrote, whose records have checksums, and torch reads."""
    import torch

    want = None
    for i in range(2):
        torch.manual_seed(i)
        state = {"w": torch.randn(5, 7), "b": torch.randn(3).half(),
                 "t": torch.randn(4, 6).t(), "n": torch.arange(4)}
        want = state if want is None else {
            k: x if k == "n" else ((x.float() + want[k].float()) / 2).to(x.dtype)
            for k, x in state.items()}
        torch.save(state, folder / f"{i}.pt")
    CKPT.ok("merge", folder / "0.pt", folder / "1.pt", folder / "out.pt")
    check_equal({k: from_torch(x) for k, x in load_pt(
        folder / "out.pt").items()},
                {k: from_torch(x) for k, x in want.items()}, "mean")
    text = bytearray((folder / "1.pt").read_bytes())
    at = text.find(state["w"].numpy().tobytes())
    text[at] ^= 1
    (folder / "1.pt").write_bytes(text)
    CKPT.run("merge", folder / "0.pt", folder / "1.pt", folder / "bad.pt").want(4)
    check(not (folder / "bad.pt").exists(), "written")
    CKPT.ok("merge", folder / "0.pt", folder / "1.pt", folder / "bad.pt",
            "--ignore-checksums")


def test_rotten(folder):
    """What changed since ckpt wrote it is not merged, whichever source it is."""
    paths = models(folder, 2)
    for i, path in enumerate(paths):
        CKPT.ok("convert", path, folder / f"w{i}", "--to", "safetensors")
    written = [folder / "w0", folder / "w1"]
    CKPT.ok("merge", *written, folder / "good")
    for i in range(2):
        file = written[i] / "model.safetensors"
        text = bytearray(file.read_bytes())
        text[-3] ^= 64
        file.write_bytes(text)
        for order in (written, written[::-1]):
            CKPT.run("merge", *order, folder / "bad").want(4)
            check(not (folder / "bad").exists(), "written")
        text[-3] ^= 64
        file.write_bytes(text)


def test_tied(folder):
    """What shares a storage still does."""
    import torch

    for i in range(2):
        w = torch.full((2, 3), float(i))
        torch.save({"a": w, "b": w, "c": w.clone()}, folder / f"{i}.pt")
    CKPT.ok("merge", folder / "0.pt", folder / "1.pt", folder / "out.pt")
    out = torch.load(folder / "out.pt")
    check(out["a"].data_ptr() == out["b"].data_ptr() != out["c"].data_ptr(),
          "ties")
    check_equal(out["b"].tolist(), [[0.5] * 3] * 2, "mean")


def test_last(folder):
    """The newest steps of a run, in their order."""
    import numpy as np

    root = folder / "run"
    root.mkdir()
    paths = []
    for step in (90, 100, 1000):
        path = model(root, f"checkpoint-{step}", step)
        (path / "trainer_state.json").write_text(json.dumps(
            {"global_step": step, "log_history": []}))
        paths.append(path)
    out = folder / "out"
    CKPT.ok("merge", root, out, "--last", 2, "--weights", "1,3")
    check_bits(out, weighted(paths[1:], [1, 3], np.float32), "float32", "two")
    done = CKPT.run("merge", root, folder / "more", "--last", 4).want(2)
    check("3 complete steps" in done.err, f"{done}")
    CKPT.run("merge", *paths, folder / "more", "--last", 2).want(2)
    # A quoted glob is the steps by their numbers; a shell's order is said.
    CKPT.ok("merge", root / "checkpoint-*", out, "--weights", "1,2,3",
            "--overwrite")
    check_bits(out, weighted(paths, [1, 2, 3], np.float32), "float32", "glob")
    done = CKPT.ok("merge", paths[1], paths[2], paths[0], out, "--ema", "0.5",
                   "--overwrite")
    check("do not rise" in done.err, str(done))
    # A save that was cut off is left out, and named.
    file = paths[2] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    done = CKPT.ok("merge", root, out, "--last", 2, "--overwrite")
    check("checkpoint-1000: is not complete" in done.err, str(done))
    check_bits(out, weighted(paths[:2], [1, 1], np.float32), "float32", "cut")


def test_last_of_any(folder):
    """Steps that no trainer's rule explains, the newest cut off."""
    root = folder / "run"
    root.mkdir()
    for step in (9, 10, 11):
        shutil.copytree(DATA / "dcp/fsdp2_w2_adamw/ckpt", root / f"step-{step}")
    file = next((root / "step-11").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:64])
    (root / "step-11/.metadata").write_bytes(b"cut")
    done = CKPT.ok("merge", root, folder / "out", "--last", 2)
    check("step-11: is not complete" in done.err, str(done))
    CKPT.run("merge", root, folder / "no", "--last", 3).want(2)
    CKPT.run("merge", root / "step-9", folder / "no", "--last", 2).want(2)


def test_plan(folder):
    """A dry run's plan runs, unless a source has changed: each is one."""
    paths, out = models(folder, 3), folder / "out"
    plan = folder / "plan.json"
    CKPT.ok("merge", *paths, out, "-n", "-o", plan)
    CKPT.ok("run", plan)
    want = read_safetensors(out / "model.safetensors")
    shutil.rmtree(out)
    CKPT.ok("merge", *paths, out)
    check_equal(read_safetensors(out / "model.safetensors"), want, "tensors")
    shutil.rmtree(out)
    os.utime(paths[2] / "model.safetensors")
    CKPT.run("run", plan).want(5)


def test_take(folder):
    """Tensors of one source, unchanged; the others the first's or a mean."""
    import numpy as np

    paths, out = models(folder, 2), folder / "out"
    a, b = (read_safetensors(path / "model.safetensors") for path in paths)
    for source in ("m1", paths[1], 2):
        CKPT.ok("merge", *paths, out, "--take", f"lm_head.*={source}",
                "--take", f"*.norm*={source}", "--overwrite")
        got = read_safetensors(out / "model.safetensors")
        for name, tensor in got.items():
            taken = "lm_head" in name or ".norm" in name
            check(tensor == (b if taken else a)[name], name)
    CKPT.ok("merge", *paths, out, "--take", "lm_head.*=2", "--method", "linear",
            "--overwrite")
    want = weighted(paths, [1, 1], np.float32)
    want["lm_head.weight"] = arrays(paths[1])["lm_head.weight"]
    check_bits(out, want, "float32", "with a mean")
    # Sources that ckpt wrote have manifests, which say nothing of others.
    for i, path in enumerate(paths):
        CKPT.ok("convert", path, folder / f"w{i}", "--to", "safetensors")
    for more in ((), ("--method", "linear")):
        CKPT.ok("merge", folder / "w0", folder / "w1", out, "--take",
                "lm_head.*=2", *more, "--overwrite", "--verify")
        CKPT.ok("verify", out)
        check(read_safetensors(out / "model.safetensors")["lm_head.weight"] ==
              b["lm_head.weight"], "taken")
    for text, status in (("lm_head.*", 2), ("lm_head.*=3", 2),
                         ("lm_head.*=other", 2), ("nothing.*=2", 5)):
        CKPT.run("merge", *paths, folder / "no", "--take", text).want(status)


def test_head(folder):
    """--tie and --untie are convert's; of two models that are tied and not, the
    error says how they meet."""
    tied = DATA / "hf/llama_tied_bf16/ckpt"
    loose, again = folder / "loose", folder / "again"
    CKPT.ok("merge", tied, tied, loose, "--untie")
    check("lm_head.weight" in read_safetensors(loose / "model.safetensors"),
          "no head")
    check(not json.loads((loose / "config.json").read_text())[
        "tie_word_embeddings"], "tied")
    CKPT.ok("merge", loose, loose, again, "--tie")
    check("lm_head.weight" not in read_safetensors(again / "model.safetensors"),
          "a head")
    done = CKPT.run("merge", tied, loose, folder / "no").want(5)
    check("--untie" in done.err or "tie_word_embeddings" in done.err, str(done))


def test_deltas(folder):
    """A difference is added to its model; it is no model itself."""
    import numpy as np

    base = model(folder, "base", 1)
    tuned = model(folder, "tuned", 2, near=base)
    other = model(folder, "other", 3, near=base)
    for path in (tuned, other):
        CKPT.ok("diff", base, path, "--write", folder / f"{path.name}.d.safetensors",
                "--dtype", "f32")
    d, e = (folder / f"{x.name}.d.safetensors" for x in (tuned, other))
    out = folder / "out"
    b, t, o = arrays(base), arrays(tuned), arrays(other)
    for paths, options in (
            ((base, d), ()), ((d, base), ()), ((d,), ("--base", base)),
            ((base, d), ("--method", "task_arithmetic")),
            ((base, d), ("--weights", "1,1", "--no-normalize"))):
        done = CKPT.ok("merge", *paths, out, "--overwrite", *options)
        got = arrays(out)
        for name in b:
            check(np.abs(got[name] - t[name]).max() < 1e-6, f"{done}: {name}")
        check(not CKPT.run("verify", out).err.count("difference"), "marked")
    CKPT.ok("merge", base, d, e, out, "--overwrite", "--weights", "0.5,2")
    got = arrays(out)
    for name in b:
        want = b[name] + 0.5 * (t[name] - b[name]) + 2 * (o[name] - b[name])
        check(np.abs(got[name] - want).max() < 1e-5, name)
    for paths, options, word in (
            ((base, other, d), (), "added to one model"),
            ((base, d), ("--ema", "0.5"), "no average"),
            ((base, d), ("--method", "slerp"), "takes models"),
            ((base, other), ("--base", d, "--method", "task_arithmetic"),
             "not a base"),
            ((base, other, d), ("--method", "ties", "--base", base),
             "takes models")):
        done = CKPT.run("merge", *paths, folder / "no", *options).want(5)
        check("difference" in done.err and word in done.err, str(done))
    # What several differences amount to is one.
    CKPT.ok("merge", d, e, folder / "mean.safetensors")
    check("difference" in CKPT.run(
        "inspect", folder / "mean.safetensors").out, "no mark")


# ------------------------------------------------------------------ mergekit
def run_mergekit(folder, config):
    """mergekit over its own folders, as its command runs it."""
    if not MERGEKIT or not TRANSFORMERS:
        raise Skip("no mergekit")
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "merge.yml").write_text(text)
    code = ("import sys, json, yaml\n"
            "from mergekit.config import MergeConfiguration\n"
            "from mergekit.merge import run_merge\n"
            "from mergekit.options import MergeOptions\n"
            "config = MergeConfiguration.model_validate(yaml.safe_load(open("
            "sys.argv[1])))\n"
            "run_merge(config, sys.argv[2], MergeOptions(copy_tokenizer=False,"
            " write_model_card=False))\n")
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TQDM_DISABLE="1",
                       PYTHONPATH=os.pathsep.join(
                           [str(MERGEKIT), str(TRANSFORMERS)]))
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, folder / "merge.yml",
         folder / "mergekit"], env=environment, capture_output=True, text=True,
        cwd=folder)
    check(done.returncode == 0, done.stderr[-2000:])
    found = {}
    for file in (folder / "mergekit").glob("*.safetensors"):
        found.update(read_safetensors(file))
    return found


def family_of(folder, count):
    """A base and models that were trained from it."""
    base = model(folder, "base", 99)
    return base, [model(folder, f"t{i}", i, near=base) for i in range(count)]


METHODS = {
    "linear": ({}, ()),
    "linear, weighted": ({"weight": [0.3, 0.7, 0.5]},
                         ("--weights", "0.3,0.7,0.5")),
    "linear, not normal": ({"weight": [0.3, 0.7, 0.5], "normalize": False},
                           ("--weights", "0.3,0.7,0.5", "--no-normalize")),
    "slerp": ({"t": 0.3}, ("--t", "0.3")),
    "task_arithmetic": ({"weight": [0.8, -0.4, 0.3], "lambda": 0.9},
                        ("--weights", "0.8,-0.4,0.3", "--lambda", "0.9")),
    "task_arithmetic, normal": (
        {"weight": [0.8, 0.4, 0.3], "normalize": True},
        ("--weights", "0.8,0.4,0.3", "--normalize")),
    "ties": ({"weight": [0.8, 0.4, 0.3], "density": [0.5, 0.3, 0.9]},
             ("--weights", "0.8,0.4,0.3", "--density", "0.5,0.3,0.9")),
    "ties, not normal": (
        {"weight": [1, 1, 1], "density": [0.2] * 3, "normalize": False,
         "lambda": 1.5},
        ("--density", "0.2", "--no-normalize", "--lambda", "1.5")),
    "dare_linear": ({"weight": [0.5, 0.5, 0.5], "density": [1, 1, 1]},
                    ("--weights", "0.5,0.5,0.5")),
    "dare_ties": ({"weight": [0.5, 0.7, 0.5], "density": [1, 1, 1]},
                  ("--weights", "0.5,0.7,0.5")),
    "model_stock": ({}, ()),
}


def test_mergekit(folder, name):
    """Elements are mergekit's, but for the rounding of sums in f32."""
    parameters, options = METHODS[name]
    method = name.split(",")[0]
    base, paths = family_of(folder, 2 if method == "slerp" else 3)
    shared = {k: v for k, v in parameters.items() if not isinstance(v, list)}
    each = [{k: v[i] for k, v in parameters.items() if isinstance(v, list)}
            for i in range(len(paths))]
    if method == "linear" and "weight" not in parameters:
        each = [{"weight": 1} for _ in paths]
    config = {"merge_method": method, "dtype": "float32",
              "parameters": shared, "models": [
                  {"model": str(path), "parameters": own}
                  for path, own in zip(paths, each)]}
    with_base = method not in ("linear", "slerp")
    if with_base:
        config["base_model"] = str(base)
        options += ("--base", base)
    if method == "slerp":
        config["base_model"] = str(paths[0])
    want = run_mergekit(folder, config)
    CKPT.ok("merge", *paths, folder / "out", "--method", method, *options)
    got = read_safetensors(folder / "out/model.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    for key, tensor in want.items():
        near(torch_of(got[key]), torch_of(tensor), f"{name}: {key}")


def near(got, want, what):
    import torch

    # Sums of a few f32, in another order or fused.
    limit = 4e-7 * max(1.0, want.abs().max().item())
    apart = (got.float() - want.float()).abs().max().item()
    check(apart <= limit, f"{what}: {apart:g} apart, at most {limit:g}")
    check(torch.isfinite(got).all(), f"{what}: not finite")


def test_dare(folder, method):
    """Deltas are left out by chance, as many as asked for, the same ones
    whatever the threads and ranks, others with another seed; those that are left
    have the sum of magnitudes that all had."""
    import torch

    base, paths = family_of(folder, 1)
    one = (paths[0], "--method", method, "--base", base, "--density", "0.25")
    CKPT.ok("merge", *one[:1], folder / "a", *one[1:], "-j", 1)
    CKPT.ok("merge", *one[:1], folder / "b", *one[1:], "--to",
            "megatron_torch_dist", "--tp", 2)
    CKPT.ok("verify", folder / "a", folder / "b")
    CKPT.ok("merge", *one[:1], folder / "c", *one[1:], "--seed", 1)
    CKPT.ok("merge", *one[:1], folder / "d", *one[1:], "--no-rescale")
    values = {name: {k: torch.from_numpy(x) for k, x in arrays(
        folder / name).items()} for name in "acd"}
    old = {k: torch.from_numpy(x) for k, x in arrays(base).items()}
    new = {k: torch.from_numpy(x) for k, x in arrays(paths[0]).items()}
    kept = total = 0
    for key, x in old.items():
        delta = values["a"][key] - x
        kept += int((delta != 0).sum())
        total += delta.numel()
        sums = [d.abs().sum().item() for d in (delta, new[key] - x)]
        check(abs(sums[0] - sums[1]) <= 1e-4 * sums[1], f"{key}: {sums}")
        plain = values["d"][key]
        check(((plain == x) | ((plain - new[key]).abs() < 1e-6)).all(),
              f"{key}: changed")
    check(abs(kept / total - 0.25) < 0.02, f"kept {kept} of {total}")
    check(any((values["a"][k] != values["c"][k]).any() for k in old), "seed")


# ------------------------------------------------------------ mergekit's files
# The shapes of mergekit's own examples, and each way to say a number.
FILES = {
    "linear": """
        models:
          - model: t0
            parameters: {weight: 1.0}
          - model: ./t1
            parameters: {weight: 0.3}
          - model: t2
            parameters: {weight: 0.5}
        merge_method: linear
        dtype: float32""",
    "gradients": """
        models:
          - model: t0
            parameters:
              density: [1, 0.7, 0.1] # density gradient
              weight: 1.0
          - model: t1
            parameters:
              density: 0.5
              weight: [0, 0.3, 0.7, 1] # weight gradient
          - model: t2
            parameters:
              density: 0.33
              weight:
                - filter: mlp
                  value: 0.5
                - value: 0
        merge_method: ties
        base_model: base
        parameters:
          normalize: true
          int8_mask: true
        dtype: float32""",
    "not normal": """
        models:
          - model: base
          - model: t0
            parameters: {density: 0.5, weight: 0.5}
          - model: t1
            parameters: {density: 0.5, weight: 0.5}
        merge_method: ties
        base_model: base
        parameters: {normalize: false, int8_mask: true, lambda: [0.5, 1.5]}
        out_dtype: float32""",
    "slerp of slices": """
        slices:
          - sources:
              - model: t0
                layer_range: [0, 4]
              - model: t1
                layer_range: [0, 4]
        merge_method: slerp
        base_model: t1
        parameters:
          t:
            - filter: self_attn
              value: [0, 0.5, 0.3, 0.7, 1]
            - filter: mlp
              value: [1, 0.5, 0.7, 0.3, 0]
            - value: 0.5 # fallback for rest of tensors
        dtype: float32""",
    "slices of their own": """
        slices:
          - sources:
              - model: t0
                layer_range: [0, 3]
                parameters: {weight: [0.1, 0.9]}
              - model: t1
                layer_range: [0, 3]
          - sources:
              - model: t1
                layer_range: [3, 4]
                parameters: {weight: 0.75}
              - model: t0
                layer_range: [3, 4]
            parameters:
              weight:
                - {filter: norm, value: 0.2}
        merge_method: linear
        parameters: {weight: 2}
        dtype: float32""",
    "passthrough": """
        slices:
          - sources:
              - {model: t0, layer_range: [0, 1]}
          - sources:
              - {model: t1, layer_range: [1, 3]}
          - sources:
              - {model: t2, layer_range: [3, 4]}
        merge_method: passthrough
        dtype: float32""",
    "one number for all": """
        models: [{model: t0}, {model: t1}, {model: t2}]
        merge_method: task_arithmetic
        base_model: base
        parameters: {weight: 0.4, normalize: true, lambda: 0.7}
        dtype: float32""",
    "dare": """
        models:
          - model: t0
            parameters: {weight: [1, 0, 0.5], density: 1.0}
          - model: t1
            parameters: {weight: 0.25}
        merge_method: dare_linear
        base_model: base
        parameters: {rescale: false}
        dtype: float32""",
    "stock": """
        models: [{model: t0}, {model: base}, {model: t1}]
        merge_method: model_stock
        base_model: base
        parameters: {filter_wise: false}
        dtype: float32""",
}


def four_layers(folder):
    """The golden with each of its two layers twice."""
    from safetensors.torch import save_file

    path = folder / "four"
    path.mkdir()
    config = json.loads((LLAMA / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (path / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in read_safetensors(LLAMA / "model.safetensors").items():
        tensors[name] = torch_of(tensor)
        for old, new in (("layers.0.", "layers.2."), ("layers.1.", "layers.3.")):
            if old in name:
                tensors[name.replace(old, new)] = torch_of(tensor).clone()
    save_file(tensors, str(path / "model.safetensors"), {"format": "pt"})
    return path


def deep_family(folder):
    base = model(folder, "base", 99, config=four_layers(folder))
    for i in range(3):
        model(folder, f"t{i}", i, config=folder / "four", near=base)


def test_file(folder, name):
    """A file of mergekit's, run by both."""
    deep_family(folder)
    want = run_mergekit(folder, FILES[name])
    said = CKPT.ok("merge", "merge.yml", "out", "--verify", cwd=folder)
    check("int8_mask" not in FILES[name] or "int8_mask" in said.err, f"{said}")
    got = read_safetensors(folder / "out/model.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    for key, tensor in want.items():
        check_equal(got[key].dtype, tensor.dtype, key)
        near(torch_of(got[key]), torch_of(tensor), f"{name}: {key}")


def test_file_rounded(folder):
    """mergekit computes in the file's dtype; here it is the target's."""
    deep_family(folder)
    text = FILES["linear"].replace("float32", "bfloat16")
    (folder / "merge.yaml").write_text(text)
    said = CKPT.ok("merge", "merge.yaml", "out", cwd=folder)
    check("rounded once" in said.err, f"{said}")
    import numpy as np
    check_bits(folder / "out",
               weighted([folder / f"t{i}" for i in range(3)], [1, 0.3, 0.5],
                        np.float32), "bfloat16", "rounded once")


BAD = (
    ("merge_method: linear", "merge_method: karcher", 5, "line 9", "karcher"),
    ("merge_method: linear", "merge_methd: linear", 5, "line 9",
     "did you mean merge_method"),
    ("dtype: float32", "dtype: float8", 2, "line 10", "float8"),
    ("dtype: float32", "dtype: float32\n        chat_template: auto", 5,
     "line 11", "chat_template"),
    ("dtype: float32", "dtype: float32\n        dtype: float16", 4, "line 11",
     "twice"),
    ("dtype: float32", "tokenizer_source: union", 5, "tokenizer.json",
     "embeddings"),
    ("{weight: 0.3}", "{weight: x}", 2, "line 6", "number"),
    ("{weight: 0.3}", "{weight: []}", 2, "line 6", "number"),
    ("{weight: 0.3}", "{wieght: 0.3}", 5, "line 6", "did you mean weight"),
    ("{weight: 0.3}", "{weight: 0.3, density: 0.5}", 5, "line 6", "density"),
    ("{weight: 0.3}", "{weight: 0.3, normalize: true}", 5, "line 6",
     "normalize"),
    ("{weight: 0.3}", "{weight: [{filter: mlp, value: 1}]}", 2, "merge.yml",
     "no value"),
    ("{weight: 0.3}", "{weight: [{filter: mlp, values: 1}]}", 5, "line 6",
     "did you mean value"),
    ("{weight: 0.3}", "&a {weight: 0.3}\n            other: *a", 4, "line 7",
     "alias"),
    ("{weight: 0.3}", "!!python/name:os.system {weight: 0.3}", 4, "line 6",
     "tags"),
    ("{weight: 0.3}", "{weight: 0.3", 4, "merge.yml", "line"),
    ("./t1", "t1+lora", 5, "line 5", "--adapter"),
    ("./t1", "t0", 5, "line 5", "twice"),
    ("./t1", "t9/t9/t9", 3, "t9", ""),
    ("models:", "modules:", 5, "line 2", "modules"),
    ("dtype: float32", "base_model: base", 5, "line 10", "no base"),
    ("dtype: float32", "dtype: float32\n---\na: 1", 4, "line", "second"),
)


def test_bad_files(folder):
    """Whatever is not understood is named, with its line."""
    deep_family(folder)
    (folder / "t1/tokenizer.json").write_text("{}")
    for old, new, status, *said in BAD:
        check(old in FILES["linear"], old)
        (folder / "merge.yml").write_text(FILES["linear"].replace(old, new, 1))
        done = CKPT.run("merge", "merge.yml", "out", cwd=folder)
        check(done.code == status and all(text in done.err for text in said),
              f"{new}: expected {status}, {said}\n{done}")
        check(not (folder / "out").exists(), f"{new}: written")
    for old, new in (("[0, 3]", "[0, 2]"), ("[3, 4]", "[2, 3]"),
                     ("[3, 4]", "[3, 5]")):
        (folder / "merge.yml").write_text(
            FILES["slices of their own"].replace(old, new))
        done = CKPT.run("merge", "merge.yml", "out", cwd=folder).want(5)
        check("layers" in done.err, f"{new}: {done}")
    (folder / "merge.yml").write_text(FILES["linear"])
    for words in (("--weights", "1,1,1"), ("--method", "ties"),
                  ("--base", "base"), ("--take", "a=1")):
        CKPT.run("merge", "merge.yml", "out", *words, cwd=folder).want(2)
    CKPT.run("merge", "merge.yml", "t0", "out", cwd=folder).want(2)
    check(not (folder / "out").exists(), "written")


# ------------------------------------------------------------------ refusals
def test_wrong_options(folder):
    a, b = models(folder, 2)
    out = folder / "out"
    for words, said in (
            ([a], "required"),
            ([a, out], "nothing to merge it with"),
            ([a, b, out, "--weights", "1"], "1 weight for 2 models"),
            ([a, b, out, "--weights", "1,2,3"], "3 weights for 2 models"),
            ([a, b, out, "--weights", "nan,1"], "weight 1 is nan"),
            ([a, b, out, "--weights", "1,inf"], "weight 2 is inf"),
            ([a, b, out, "--weights", "0,0"], "add up to 0"),
            ([a, b, out, "--weights=-1,2"], "weight 1 is -1"),
            ([a, b, out, "--weights", "1,x"], ""),
            ([a, b, out, "--ema", "1.5"], "1.5"),
            ([a, b, out, "--ema", "0.5", "--weights", "1,1"], "weights"),
            ([a, b, out, "--method", "mean"], ""),
            ([a, b, out, "--method", "ties"], "--base"),
            ([a, b, out, "--base", a], "base"),
            ([a, b, out, "--method", "slerp", "--weights", "1,1"], "weights"),
            ([a, b, b, out, "--method", "slerp"], "3"),
            ([a, b, out, "--method", "model_stock"], "--base"),
            ([a, b, out, "--density", "0.5"], "density"),
            ([a, b, out, "--method", "ties", "--base", a, "--density", "2"],
             "2"),
            ([a, b, out, "--last", "0"], ""),
            ([a, b, a / "inside"], "inside")):
        done = CKPT.run("merge", *words).want(2)
        check(said in done.err and "hint: " in done.err, f"{said}\n{done}")
        check(not out.exists(), f"{words}: written")


def change(path, edit):
    """Rewrites a model with other tensors."""
    from safetensors.torch import save_file

    tensors = {k: torch_of(x) for k, x in read_safetensors(
        path / "model.safetensors").items()}
    edit(tensors)
    save_file(tensors, str(path / "model.safetensors"), {"format": "pt"})


def test_unlike(folder):
    """Another tensor, shape, fact or integer is named, with both values."""
    import torch

    def lost(tensors):
        del tensors["model.norm.weight"]

    def more(tensors):
        tensors["model.extra.weight"] = torch.zeros(2)

    def wide(tensors):
        tensors["model.norm.weight"] = torch.zeros(33)

    def integers(tensors):
        tensors["model.position_ids"] = torch.arange(7)

    def others(tensors):
        tensors["model.position_ids"] = torch.arange(7) + 1

    a = model(folder, "a", 0)
    out = folder / "out"
    for i, (edit, said) in enumerate((
            (lost, ["model.norm.weight", "is not here"]),
            (more, ["model.extra.weight", "is here"]),
            (wide, ["model.norm.weight", "[33]", "[32]"]))):
        b = model(folder, f"b{i}", 1)
        change(b, edit)
        done = CKPT.run("merge", a, b, out).want(5)
        check(all(text in done.err for text in said), f"{said}\n{done}")
    with_ints = model(folder, "i", 2), model(folder, "j", 3)
    for path in with_ints:
        change(path, integers)
        (path / "config.json").unlink()  # which has no place for them
    with_ints = [path / "model.safetensors" for path in with_ints]
    CKPT.ok("merge", *with_ints, folder / "same.safetensors")
    check_equal(read_safetensors(folder / "same.safetensors")
                ["model.position_ids"],
                from_torch(torch.arange(7)), "integers")
    change(with_ints[1].parent, others)
    done = CKPT.run("merge", *with_ints, folder / "no.safetensors").want(5)
    check("model.position_ids" in done.err and "other values" in done.err,
          f"{done}")
    CKPT.ok("merge", *with_ints, folder / "taken", "--take",
            "model.position_ids=1", "--method", "linear")
    c = model(folder, "c", 4)
    config = json.loads((c / "config.json").read_text())
    config["rms_norm_eps"] = 1e-3
    (c / "config.json").write_text(json.dumps(config))
    done = CKPT.run("merge", a, c, out).want(5)
    check("0.001" in done.err and "1e-06" in done.err, f"{done}")
    check(not out.exists(), "written")


def test_as_every_writer(folder):
    """Dry run, JSON, what is in the way, and a run that is resumed."""
    paths, out = models(folder, 2), folder / "out"
    plan = CKPT.ok("merge", *paths, out, "-n", "--json").json()
    check(not out.exists(), "a dry run wrote")
    done = CKPT.ok("merge", *paths, out, "--json").json()
    check_equal(done["command"], "merge", "command")
    check_equal(sum(f["bytes"] for f in plan["written"]),
                sum(f["bytes"] for f in done["written"] if
                    "manifest" not in f["path"]), "sizes")
    size = (paths[0] / "model.safetensors").stat().st_size
    check(done["bytes_read"] <= 2 * size, f"read {done['bytes_read']}")
    CKPT.run("merge", *paths, out).want(5)
    CKPT.ok("merge", *paths, out, "--overwrite", "--verify")
    CKPT.ok("verify", out)
    CKPT.ok("merge", *paths, folder / "a.safetensors")
    CKPT.ok("merge", folder / "a.safetensors", paths[1], folder / "b.gguf",
            "--config-from", paths[0], "--tokenizer-from", "none")


def test_adapters(folder):
    """The product of mean factors is not the mean of products, which is said;
    adapters with another scale are another model."""
    import torch
    from safetensors.torch import save_file

    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    for i, alpha in enumerate((8, 8, 16)):
        path = folder / f"a{i}"
        path.mkdir()
        save_file({at.format("A"): torch.ones(4, 16), at.format("B"):
                   torch.ones(16, 4)}, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 4, "lora_alpha": alpha,
             "target_modules": ["q_proj"], "base_model_name_or_path": "x"}))
    done = CKPT.ok("merge", folder / "a0", folder / "a1", folder / "out")
    check("product is not" in done.err and "--adapter" in done.err, str(done))
    said = CKPT.run("merge", folder / "a0", folder / "a2", folder / "no").want(5)
    check("lora_alpha is 8.0" in said.err and "16.0" in said.err, str(said))


def test_optimizer(folder):
    """Left out and named; with --with-optimizer moments are averaged, too."""
    source = DATA / "dcp/fsdp2_w2_adamw/ckpt"
    out = folder / "out"
    done = CKPT.ok("merge", source, source, out)
    check("optimizer" in done.err, f"{done}")
    kinds = {t["kind"] for t in CKPT.inspect(out)["tensors"]}
    check("optim" not in kinds, f"{kinds}")
    CKPT.ok("merge", source, source, folder / "all", "--with-optimizer")
    CKPT.ok("verify", source, folder / "all")
    # Second moments have a mean, and no difference.
    for more in (("--no-normalize",), ("--method", "slerp"),
                 ("--method", "task_arithmetic", "--base", source)):
        CKPT.run("merge", source, source, folder / "no", "--with-optimizer",
                 *more).want(2)


def scaled(value, by):
    """Tensors of more than one element, in place."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel() > 1:
            value.data.mul_(by)
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            scaled(one, by)


def test_steps_of_trainer(folder):
    """Two steps of Hugging Face's Trainer: the model alone is a folder of
    transformers'; with the optimizer it is a step that the Trainer resumes,
    of the last one's moment."""
    import torch

    root = folder / "run"
    shutil.copytree(DATA / "runs/hf_trainer_qwen2/ckpt", root)
    first, last = root / "checkpoint-9", root / "checkpoint-10"
    shutil.copytree(last, first)
    said = json.loads((first / "trainer_state.json").read_text())
    (first / "trainer_state.json").write_text(json.dumps(
        {**said, "global_step": 9}))
    state = torch.load(first / "optimizer.pt", weights_only=False)
    scaled(state, 1.5)
    for one in state["state"].values():
        one["step"].fill_(4)
    for group in state["param_groups"]:
        group["lr"] = 0.25
    torch.save(state, first / "optimizer.pt")
    for more in ((), ("--to", "run", "--trainer", "hf_trainer")):
        out = folder / f"step{len(more)}"
        CKPT.ok("merge", root, out, "--last", 2, "--with-optimizer", *more)
        CKPT.ok("verify", out)
        got = torch.load(out / "optimizer.pt", weights_only=True)
        b = torch.load(last / "optimizer.pt", weights_only=True)
        check_equal(got["param_groups"], b["param_groups"], "groups")
        for key, one in got["state"].items():
            check_equal(one["step"].item(), b["state"][key]["step"].item(),
                        "step")
            for name in ("exp_avg", "exp_avg_sq"):
                want = (state["state"][key][name] + b["state"][key][name]) / 2
                check(torch.equal(one[name], want), f"{key} {name}")
        for name in ("trainer_state.json", "scheduler.pt", "rng_state.pth"):
            check_equal((out / name).read_bytes(), (last / name).read_bytes(),
                        name)
    CKPT.ok("merge", root, folder / "model", "--last", 2)
    check(not (folder / "model/optimizer.pt").exists(), "optimizer")
    CKPT.ok("verify", folder / "model", "--strict")


def test_models_of_trainers(folder, name):
    """Without an option, the model alone of any trainer's steps."""
    source = DATA / "runs" / name / "ckpt"
    done = CKPT.ok("merge", source, source, folder / "out")
    check("optimizer" in done.err, str(done))
    kinds = {t["kind"] for t in CKPT.inspect(folder / "out")["tensors"]}
    check_equal(kinds, {"model"}, "kinds")
    CKPT.ok("verify", folder / "out")


def test_memory(folder):
    """Many sources need no more than one."""
    import torch
    from safetensors.torch import save_file

    paths = []
    for i in range(12):
        paths.append(folder / f"{i}.safetensors")
        save_file({"w": torch.full((4096, 2048), float(i))}, str(paths[-1]))
    done = CKPT.ok("merge", *paths, folder / "out.safetensors", "--max-mem",
                   "64MiB", "--no-fsync", "--json").json()
    check(done["peak_memory"] < 100 << 20, f"{done['peak_memory'] >> 20} MiB")
    got = torch_of(read_safetensors(folder / "out.safetensors")["w"])
    check((got == 5.5).all(), "mean")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for count, dtype in ((2, "float32"), (5, "bfloat16"), (32, "float16"),
                         (3, "float64")):
        suite.add(f"mean of {count} {dtype}", test_mean, count, dtype)
    suite.add("weights", test_weights)
    suite.add("ema", test_ema)
    for dtype in ("bfloat16", "float16"):
        suite.add(f"{dtype} as wider ones", test_wide_dtypes, dtype)
    suite.add("rounded once", test_rounded_once)
    suite.add("of two dtypes", test_of_two_dtypes)
    suite.add("not finite", test_not_finite)
    suite.add("the same bits", test_same_bits)
    suite.add("dtypes", test_dtypes)
    suite.add("too large", test_too_large)
    suite.add("formats", test_formats)
    suite.add("torch files", test_torch_files)
    suite.add("rotten", test_rotten)
    suite.add("tied", test_tied)
    suite.add("last steps", test_last)
    suite.add("last steps of any format", test_last_of_any)
    suite.add("plan", test_plan)
    suite.add("take", test_take)
    suite.add("head", test_head)
    suite.add("deltas", test_deltas)
    for name in METHODS:
        suite.add(f"mergekit: {name}", test_mergekit, name)
    for name in FILES:
        suite.add(f"mergekit's file: {name}", test_file, name)
    suite.add("mergekit's file, rounded", test_file_rounded)
    suite.add("bad files", test_bad_files)
    for method in ("dare_linear", "dare_ties"):
        suite.add(f"chance: {method}", test_dare, method)
    suite.add("wrong options", test_wrong_options)
    suite.add("unlike sources", test_unlike)
    suite.add("as every writer", test_as_every_writer)
    suite.add("adapters", test_adapters)
    suite.add("optimizer", test_optimizer)
    suite.add("steps of a trainer", test_steps_of_trainer)
    for path in sorted((DATA / "runs").iterdir()):
        suite.add(f"models of {path.name}", test_models_of_trainers, path.name)
    suite.add("memory", test_memory)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
