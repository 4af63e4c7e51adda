#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--device cuda writes the bytes that --device cpu writes.

    cuda_test.py --ckpt build/bin/ckpt [--gpu]

Without --gpu, a double of the module made of plain loops stands in for the GPU
(reshard/cuda/abi.h), so that the whole path runs on any machine. With --gpu the
real one is used; the exit status is 77 if there is none.
"""

import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import DATA, until

# Every kind of job: rows, columns, transposes, gathers, padding, casts up and
# down, late checksums of torch's archives.
TO_ALL = [
    ["convert", "--to", "torch"],
    ["convert", "--to", "dcp", "--dp", "3"],
    ["reshard", "--tp", "2"],
]
CASES = [(f"{folder}/*", row) for folder in (
    "dcp", "fairseq2_native", "megatron_torch_dist", "megatron_legacy", "meta",
    "modelopt", "deepspeed", "olmo_core_v1", "torch_pt", "vllm", "hf/llama*")
    for row in TO_ALL] + [
    ("hf/*", ["convert", "--to", "megatron_torch_dist", "--tp", "2"]),
    ("hf/gpt2*", ["convert", "--to", "fairseq2", "--tp", "2"]),
    ("hf/qwen2_*", ["convert", "--to", "megatron_legacy", "--tp", "2"]),
    ("hf/llama", ["convert", "--to", "meta", "--tp", "2", "--dtype", "f16"]),
    ("hf/llama", ["convert", "--to", "dcp", "--dp", "3", "--dtype", "f64"]),
    ("hf/gpt2_f32", ["convert", "--to", "megatron_torch_dist", "--tp", "2",
                     "--dtype", "bf16"]),
    ("hf/qwen3_bf16", ["convert", "--to", "torch", "--dtype", "f16"]),
    ("hf/mixtral_f32", ["convert", "--to", "fairseq2", "--tp", "2", "--dtype",
                        "f16"]),
    ("dcp/fsdp2_w4_uneven_bf16", ["unshard", "--dtype", "f32"]),
    ("megatron_torch_dist/gpt_tp2_pp2_v0161", ["reshard", "--tp", "4",
                                               "--dtype", "f32"]),
]

# Random bits include numbers that become infinities in bf16.
BF16 = ["--dtype", "bf16", "--allow-overflow", "inf"]


class Tests:
    def __init__(self, ckpt, folder, gpu):
        self.ckpt, self.folder = str(Path(ckpt).resolve()), folder
        self.environment = dict(os.environ)
        self.environment.pop("CKPT_CUDA_HOST", None)
        self.bare = dict(self.environment)
        if gpu:
            self.environment["CKPT_CUDA_LEAST"] = "0"
        else:
            self.environment["CKPT_CUDA_HOST"] = "1"
        self.gpu = gpu
        self.passed = self.failed = 0

    def check(self, good, what):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print("FAIL", what)

    def run(self, *argv, environment=None):
        return subprocess.run([self.ckpt, *map(str, argv)], text=True,
                              capture_output=True,
                              env=environment or self.environment)

    def fresh(self, name):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        for old in (path, Path(f"{path}.ckpt-manifest.json")):
            if old.is_dir():
                shutil.rmtree(old)
            elif old.exists():
                old.unlink()
        return path

    def both(self, row, source, *more):
        """Runs the row on both devices: what they printed, what they wrote."""
        command, *options = row
        results = []
        for device in ("cpu", "cuda"):
            target = self.fresh(f"{device}/out")
            done = self.run(command, source, target, *options, *more,
                            "--device", device, "--no-fsync", "-q")
            said = done.stderr.replace(f"/{device}/", "/")
            results.append((done.returncode, said, target))
        return results

    def differences(self, a, b):
        if a.is_file() or b.is_file():
            return [] if filecmp.cmp(a, b, False) else [a.name]
        names = {p.relative_to(d) for d in (a, b) for p in d.rglob("*")}
        return [str(n) for n in sorted(names) if not (a / n).is_dir() and
                not ((a / n).exists() and (b / n).exists() and
                     filecmp.cmp(a / n, b / n, False))]

    def test_goldens(self):
        """Both write the same bytes, or refuse with the same words."""
        written = 0
        for pattern, row in CASES:
            for case in sorted(DATA.glob(pattern)):
                source = case / "ckpt"
                if not source.exists():
                    continue
                what = f"{case.relative_to(DATA)} {' '.join(row)}"
                cpu, cuda = self.both(row, source, "-j", "2")
                self.check(cpu[:2] == cuda[:2], f"{what}: {cpu} {cuda}")
                if cpu[0] == 0 and cuda[0] == 0:
                    found = self.differences(cpu[2], cuda[2])
                    self.check(not found, f"{what}: {found} differ")
                    written += 1
        self.check(written > 200, f"only {written} cases were written")
        return f"{written} targets"

    def test_device_works(self):
        """Casts and cuts run on the device, by its own account."""
        trace = self.folder / "trace.json"
        source = self.make_source("small.safetensors", 4)
        for row, waits in [
                (["convert", "--to", "torch", "--dtype", "f64"], True),
                (["convert", "--to", "torch"], False)]:  # nothing to do for it
            target = self.fresh("traced.pt")
            done = self.run(row[0], source, target, *row[1:], "--device",
                            "cuda", "--trace", trace)
            names = {e["name"]
                     for e in json.loads(trace.read_text())["traceEvents"]}
            self.check(done.returncode == 0 and
                       ("wait for GPU" in names) == waits,
                       f"{row}: {done.stderr} {names}")

    def make_source(self, name, mib):
        rng = random.Random(name)
        header, end, payload = {}, 0, []
        while end < mib << 20:
            rows, columns = rng.randrange(100, 3000), rng.randrange(1, 600)
            size = rows * columns * 4
            header[f"layers.{len(payload)}.weight"] = {
                "dtype": "F32", "shape": [rows, columns],
                "data_offsets": [end, end + size]}
            payload.append(rng.randbytes(size))
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = self.folder / name
        path.write_bytes(struct.pack("<Q", len(text)) + text +
                         b"".join(payload))
        return path

    def test_large(self):
        """Blocks in flight, several per item, with little memory and much."""
        source = self.folder / "large.safetensors"
        for options in (["-j", "1", "--max-mem", "16MiB"], ["-j", "3"]):
            for row in (["convert", "--to", "dcp", "--dp", "3"],
                        ["convert", "--to", "torch", *BF16],
                        ["convert", "--to", "safetensors", "--dtype", "f64"]):
                cpu, cuda = self.both(row, source, *options)
                self.check(cpu[:2] == cuda[:2] == (0, ""), f"{cpu} {cuda}")
                self.check(not self.differences(cpu[2], cuda[2]),
                           f"{row} {options}")

    def test_resume(self):
        """A killed run resumes, on either device, to the same bytes."""
        source = self.folder / "large.safetensors"
        whole = self.fresh("whole/out.pt")
        argv = ["--to", "torch", *BF16, "-j", "1", "-q",
                "--no-fsync", "--max-mem", "16MiB"]
        self.run("convert", source, whole, *argv)
        stopped = 0
        for i in range(6):
            target = self.fresh("resumed/out.pt")
            how = [signal.SIGKILL, signal.SIGTERM][i % 2]
            child = subprocess.Popen(
                [self.ckpt, "convert", source, target, *argv, "--device",
                 "cuda"], env=self.environment, stderr=subprocess.DEVNULL)
            journal = (target.parent / f".{target.name}.ckpt-staging" /
                       "journal")
            until(lambda child=child, journal=journal, lines=i + 1:
                  child.poll() is not None or journal.exists() and
                  journal.read_bytes().count(b"\n") > lines,
                  "some of it is done")
            child.send_signal(how)
            stopped += child.wait() != 0
            if not target.exists():
                done = self.run("convert", source, target, *argv, "--resume",
                                "--device", ["cpu", "cuda"][i // 2 % 2])
                self.check(done.returncode == 0, done.stderr)
            self.check(filecmp.cmp(whole, target, False), f"resumed after {i}")
        return f"{stopped} of 6 stopped on their way"

    def test_reading(self):
        """verify and inspect --digest give the same answers."""
        for case in ("dcp/fsdp2_w4_uneven_bf16", "torch_pt/views", "hf/llama",
                     "megatron_torch_dist/gpt_tp2_pp2_v0161"):
            source = DATA / case / "ckpt"
            for command in (["inspect", "--digest", "--json"],
                            ["verify", "--deep", "--json"]):
                said = [self.run(command[0], source, *command[1:], "--device",
                                 device) for device in ("cpu", "cuda")]
                self.check(said[0].stdout == said[1].stdout and
                           said[0].returncode == said[1].returncode,
                           f"{case} {command} {said}")

    def test_ranks(self):
        """Three ranks with a device each, through their own files or
        messages."""
        mpi = [line for line in self.run("--version").stdout.splitlines()
               if line.strip().startswith("mpi")]
        if not shutil.which("mpirun") or "not available" in mpi[0]:
            return "skipped: no MPI"
        source = DATA / "hf/mixtral_f32/ckpt"
        alone = self.fresh("alone/out")
        row = ["--to", "dcp", "--dp", "3", "--dtype", "bf16", "-q"]
        self.run("convert", source, alone, *row)
        environment = dict(self.environment, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1")
        for more in ([], ["--exchange", "send"]):
            target = self.fresh("together/out")
            done = subprocess.run(
                ["mpirun", "-n", "3", self.ckpt, "convert", str(source),
                 str(target), *row, *more, "--device", "cuda"],
                env=environment, capture_output=True, text=True)
            self.check(done.returncode == 0 and
                       not self.differences(alone, target),
                       f"{more}: {done.stderr}")

    def test_dry_run(self):
        source = self.folder / "large.safetensors"
        target = self.fresh("never.pt")
        done = self.run("convert", source, target, "--to", "torch", "-n",
                        "--json", "--device", "cuda", "--max-mem", "64MiB")
        # This includes the program's own 16 MiB.
        self.check(done.returncode == 0 and not target.exists() and
                   json.loads(done.stdout)["peak_memory"] < 88 << 20,
                   done.stdout + done.stderr)

    def test_no_gpu(self):
        """Without module, driver or GPU: exit 7, with what to do instead."""
        if self.gpu:
            return "there is one"
        done = self.run("convert", self.folder / "large.safetensors",
                        self.folder / "no.pt", "--to", "torch", "--device",
                        "cuda", environment=self.bare)
        if done.returncode == 0:
            return "there is one"
        self.check(done.returncode == 7 and "--device cpu" in done.stderr and
                   not (self.folder / "no.pt").exists(), done.stderr)

    def has_gpu(self):
        source = self.make_source("probe.safetensors", 1)
        done = self.run("convert", source, self.folder / "probe.pt", "--to",
                        "torch", "--device", "cuda")
        if done.returncode == 7:
            print("skipped:", done.stderr.strip())
        return done.returncode != 7


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(options.ckpt, Path(folder), options.gpu)
        tests.make_source("large.safetensors", 48)
        if options.gpu and not tests.has_gpu():
            return 77
        names = ["device_works", "large", "resume", "ranks", "reading",
                 "dry_run", "no_gpu", "goldens"]
        for name in names:
            if options.k in name:
                begin = time.time()
                said = getattr(tests, "test_" + name)()
                print(name, said or "", f"{time.time() - begin:.1f} s",
                      flush=True)
    print(f"{tests.passed} passed, {tests.failed} failed")
    return 1 if tests.failed else 0


if __name__ == "__main__":
    sys.exit(main())
