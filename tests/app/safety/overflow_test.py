#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Casts that lose values, and values that would run code, on their way into
new files: refused, or done as asked and said.

What a cast should lose is counted by torch.
"""

import io
import json
import shutil
import signal
import subprocess
import zipfile

from support import DATA, HANG, Skip, Suite, check, check_equal, load_pt, until
from scan_test import EVIL, PLAIN, proto, torch_zip

CKPT = None


def values(torch, count=40_000):
    """Floats of all sizes, including the edges of each type."""
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-2**31, 2**31 - 1, (count,), generator=generator,
                         dtype=torch.int64).to(torch.int32)
    edges = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -70000.0, 448.0, 464.0,
             465.0, 1e9, 57344.0, 61439.0, 61440.0, 3.39e38, 3.4e38, 2**-25,
             2**-24, 2**-10, 2**-9, 1e-45, float("inf"), float("-inf"),
             float("nan")]
    return torch.cat([torch.tensor(edges), bits.view(torch.float32)])


# Types of eight bits are refused (asked_test.py).
TYPES = {"f16": "float16", "bf16": "bfloat16"}


def save(torch, path, **tensors):
    from safetensors.torch import save_file
    save_file(tensors, path)


def lost(torch, tensor, dtype):
    """(too large, became zero), from torch's own result."""
    wide = tensor.to(torch.float64)
    narrow = tensor.to(dtype).to(torch.float64)
    most = torch.finfo(dtype).max
    large = wide.isfinite() & ~narrow.isfinite()
    zero = (wide != 0) & (narrow == 0)
    return int(large.sum()), int(zero.sum()), most


def plural(count):
    return f"{count} value" + "s" * (count != 1)


def test_counts(folder, source_type, target):
    import torch
    tensor = values(torch).to(getattr(torch, source_type))
    dtype = getattr(torch, TYPES[target])
    save(torch, folder / "a.safetensors", w=tensor.reshape(-1, 1),
         ok=tensor[:1].clone())
    large, zero, most = lost(torch, tensor, dtype)
    out = folder / "out.safetensors"
    result = CKPT.run("convert", folder / "a.safetensors", out, "--to",
                      "safetensors", "--dtype", target)
    if large:
        result.want(5)
        check(f"w: {plural(large)} too large" in result.err,
              f"{large}\n{result}")
        check(not out.exists(), "published")
        check_equal([p.name for p in folder.iterdir()], ["a.safetensors"],
                    "left behind")
    else:
        result.want(0)
    for mode in ("saturate", "inf"):
        result = CKPT.ok("convert", folder / "a.safetensors", out, "--to",
                         "safetensors", "--dtype", target, "--allow-overflow",
                         mode, "--overwrite", "-v")
        if zero:
            check(f"w: {plural(zero)} rounded to zero" in result.err,
                  f"{zero} become zero\n{result}")
        from safetensors.torch import load_file
        got = load_file(out)["w"].reshape(-1)
        want = tensor.to(dtype)
        if mode == "saturate":
            wide = tensor.to(torch.float64)
            large_ones = wide.isfinite() & ~want.to(torch.float64).isfinite()
            want = torch.where(large_ones, torch.tensor(most).to(dtype).to(
                torch.float32) * wide.sign().to(torch.float32),
                want.to(torch.float32)).to(dtype)
        same = (got.view(torch.int16) == want.view(torch.int16)
                ) | tensor.isnan()
        check(bool(same.all()), f"{mode}: {int((~same).sum())} differ")


def test_many(folder):
    """Every tensor is named, with sizes that are not a multiple of a block."""
    import torch
    tensors = {f"t{i}": torch.full((1 << 19,), 1.0) for i in range(12)}
    for i, tensor in enumerate(tensors.values()):
        tensor[100_003 * (i % 5)] = 70000.0 + i
    save(torch, folder / "a.safetensors", **tensors)
    result = CKPT.run("convert", folder / "a.safetensors", folder / "o",
                      "--to", "safetensors", "--dtype", "f16").want(5)
    for name in list(tensors)[:4]:
        check(name in result.err, f"{name}\n{result}")
    check("tensors more" in result.err, f"counts the rest\n{result}")


def test_views(folder):
    """Rows and columns of ranks: each element is counted once."""
    import torch
    tensor = torch.ones(512, 768)
    tensor[::7, ::5] = -1e6
    tensor[1::7, ::5] = 1e-12
    large, zero, _ = lost(torch, tensor, torch.float16)
    rules = {"shard_dims": {"w": 1, "v": 0}}
    save(torch, folder / "a.safetensors", w=tensor, v=tensor.clone())
    shards = folder / "rules.json"
    shards.write_text(__import__("json").dumps(rules["shard_dims"]))
    out = folder / "out"
    for extra in ([], ["--no-manifest"]):
        result = CKPT.run("convert", folder / "a.safetensors", out, "--to",
                          "fairseq2", "--tp", "4", "--shard-dims", shards,
                          "--dtype", "f16", *extra)
        if result.code == 2 or "no rule" in result.err:
            raise Skip(str(result))
        result.want(5)
        for name in ("w", "v"):
            check(f"{name}: {large} values" in result.err
                  or f"{name}: {large}, the largest" in result.err,
                  f"{name} {large}\n{result}")


def test_resume(folder):
    """Losses counted before a kill still count."""
    import torch
    big = torch.ones(48 << 20)
    big[5] = 70000.0
    big[-5] = 80000.0
    save(torch, folder / "a.safetensors", w=big)
    argv = ["convert", folder / "a.safetensors", folder / "out.safetensors",
            "--to", "safetensors", "--dtype", "f16", "-j", "1",
            "--max-mem", "64MiB"]
    journal = folder / ".out.safetensors.ckpt-staging/journal"
    child = subprocess.Popen(
        [CKPT.path, *map(str, argv), "--max-rate", "32MiB"],
        stderr=subprocess.DEVNULL)
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2,
          "some of it is done", child)
    child.kill()
    check_equal(child.wait(), -signal.SIGKILL, "status")
    result = CKPT.run(*argv, "--resume").want(5)
    check("w: 2 values" in result.err and "80000" in result.err, str(result))


def test_ranks(folder):
    import torch
    if not shutil.which("mpirun"):
        raise Skip("no mpirun")
    tensors = {f"t{i}": torch.ones(3 << 20) for i in range(4)}
    for i, tensor in enumerate(tensors.values()):
        tensor[:: 100_000] = -70000.0
    save(torch, folder / "a.safetensors", **tensors)
    run = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
         CKPT.path, "convert", folder / "a.safetensors", folder / "o", "--to",
         "safetensors", "--dtype", "f16"], capture_output=True, text=True,
        timeout=HANG)
    if "MPI" in run.stderr and "70000" not in run.stderr:
        raise Skip(run.stderr[:200])
    check(run.returncode == 5, f"exit {run.returncode}: {run.stderr}")
    for name in tensors:
        check(name in run.stderr, f"{name}: {run.stderr}")
    check("32 values" in run.stderr, run.stderr)
    check(not (folder / "o").exists(), "published")


# ------------------------------------------- values that would run code
def evil_pt(torch, path):
    """A state dict beside a call to os.system, never loaded."""
    torch.save({"w": torch.arange(4.0), "step": 7}, path)
    with zipfile.ZipFile(path) as archive:
        records = [(r.filename, archive.read(r)) for r in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in records:
            if name.endswith("data.pkl"):
                at = data.index(b"K\x07")  # the step
                data = data[:at] + b"cos\nsystem\n(X\x04\0\0\0truetR" + data[at + 2:]
            archive.writestr(name, data)
    path.write_bytes(out.getvalue())


def test_os_system(folder):
    import torch
    evil_pt(torch, folder / "x.pt")
    CKPT.run("scan", folder / "x.pt").want(8)
    result = CKPT.ok("unshard", folder / "x.pt", folder / "y.pt")
    check("os.system" in result.err and "step" in result.err, str(result))
    check(b"system" not in (folder / "y.pt").read_bytes(), "carried along")
    CKPT.ok("scan", folder / "y.pt")
    CKPT.ok("verify", folder / "y.pt")
    check_equal(list(load_pt(folder / "y.pt")), ["w"], "what is left")
    CKPT.ok("unshard", folder / "x.pt", folder / "z.pt",
            "--keep-unknown-globals")
    check(b"system" in (folder / "z.pt").read_bytes(), "asked for")
    CKPT.run("scan", folder / "z.pt").want(8)
    CKPT.run("verify", folder / "z.pt").want(1)


def test_sidecar(folder):
    shutil.copytree(DATA / "safetensors/hf_sharded/ckpt", folder / "c")
    (folder / "c" / "training_args.bin").write_bytes(torch_zip(proto(EVIL)))
    (folder / "c" / "other.bin").write_bytes(torch_zip(proto(PLAIN)))
    CKPT.ok("unshard", folder / "c", folder / "o")
    CKPT.ok("scan", folder / "o")
    check(not (folder / "o/training_args.bin").exists(), "carried along")


def test_carried(folder):
    """Objects of a DCP directory, which are carried over byte for byte."""
    bad = DATA / "bad/dcp/evil_bytes_entry"
    for argv in (["convert", bad, folder / "o", "--to", "dcp"],
                 ["unshard", bad, folder / "o.pt"]):
        result = CKPT.run(*argv)
        check(result.code in (0, 8), str(result))
        if result.code == 0:
            CKPT.ok("scan", argv[2])
        check("posix.system" in result.err, f"names it\n{result}")


def test_module(folder):
    """Tensors inside an unknown class: the nesting is lost, they stay."""
    source = DATA / "torch_pt/whole_module/ckpt/model.pt"
    result = CKPT.ok("unshard", source, folder / "o.pt")
    check("TinyModule" in result.err, str(result))
    CKPT.ok("scan", folder / "o.pt")
    check_equal(len(load_pt(folder / "o.pt")), 3, "tensors")
    CKPT.ok("verify", source, folder / "o.pt")


def test_sizes(folder, shape):
    """Sizes beyond 63 bits, in a tensor of no values: each format takes them,
    or they are refused."""
    header = json.dumps({"x": {"dtype": "F32", "shape": shape,
                               "data_offsets": [0, 0]}}).encode()
    source = folder / "a.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header)
    for target in ("safetensors", "torch", "dcp"):
        out = folder / target
        done = CKPT.run("convert", source, out, "--to", target)
        if done.code == 0:
            CKPT.ok("verify", out)
        else:
            check_equal(done.code, 5, done.err)
            check("no sizes like" in done.err, done.err)
            check(not out.exists(), "something was written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for source in ("float32", "float64", "bfloat16", "float16",
                   "float8_e4m3fn", "float8_e5m2"):
        for target in TYPES:
            if TYPES[target] != source:
                suite.add(f"{source} to {target}", test_counts, source, target)
    for shape in ([0, 2**63], [2**63, 0], [0, 3, 2**63 - 1], [0, 2**63 - 1]):
        suite.add(f"sizes {shape}", test_sizes, shape)
    suite.add("many tensors", test_many)
    suite.add("views", test_views)
    suite.add("resume", test_resume)
    suite.add("ranks", test_ranks)
    suite.add("os.system is not carried", test_os_system)
    suite.add("a sidecar that runs code", test_sidecar)
    suite.add("carried objects", test_carried)
    suite.add("a module of an unknown class", test_module)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
