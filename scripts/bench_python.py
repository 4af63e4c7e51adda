#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python costs beside the library itself, in one run.

  scripts/bench_python.py [--build build] [--gib 1] [--rounds 5]

Makes a file of that many GiB in tensors of 32 MiB, and reads all of them: by a C
program over ckpt/c.h and by the Python package with ckpt.open, each a process of
its own: the best of the rounds, taken in turn, by the clock and in processor time,
which others on the machine change less. And one Python process converts
the file by ckpt.convert and by the binary, in turn: the median, for what is
flushed to a disk takes now this and now that. The page cache is warm.
"""

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSOR = 32 << 20
PROGRAM = r"""
#include <ckpt/c.h>
#include <stdio.h>
int main(int argc, char** argv) {
  char* error = 0;
  ckpt_checkpoint* source = ckpt_open(argv[argc - 1], 0, 0, &error);
  unsigned long long sum = 0;
  if (!source) return 1;
  for (size_t i = 0; i < ckpt_tensor_count(source); ++i) {
    ckpt_tensor row;
    size_t size = 0;
    ckpt_tensor_at(source, i, &row);
    ckpt_data* data = ckpt_read(source, row.name, 0, 0, &error);
    if (!data) return 1;
    sum += *(const unsigned char*)ckpt_data_bytes(data, &size);
    ckpt_data_close(data);
  }
  printf("%llu\n", sum);
  ckpt_close(source);
  return 0;
}
"""
READ = """
import sys, ckpt
total = 0
with ckpt.open(sys.argv[1]) as source:
    for name in source:
        total += source[name].read().nbytes
print(total)
"""
CONVERT = """
import os, statistics, subprocess, sys, time
import ckpt
source, target, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
words = [os.environ["CKPT_BINARY"], "convert", source, target, "--to", "torch",
         "--if-exists", "replace", "--json"]
times = {"binary": [], "Python": []}
for number in range(2 * rounds + 2):
    begin = time.monotonic()
    if number % 2:
        ckpt.convert(source, target, to="torch", if_exists="replace")
    else:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    if number >= 2:  # the first of both make the file
        times["Python" if number % 2 else "binary"].append(
            time.monotonic() - begin)
own, python = (statistics.median(times[key]) for key in times)
print(f"convert  binary {own:.3f} s, Python {python:.3f} s: "
      f"{python / own - 1:+.1%}")
"""


def make_file(path, gib):
    count = int(gib * (1 << 30)) // TENSOR
    rows = {f"layers.{i}.weight": {
        "dtype": "U8", "shape": [TENSOR],
        "data_offsets": [i * TENSOR, (i + 1) * TENSOR]} for i in range(count)}
    text = json.dumps(rows).encode()
    block = os.urandom(TENSOR)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(block)


def timed(words, env):
    """Seconds by the clock, and of processors, that a process took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    subprocess.run([str(w) for w in words], check=True, env=env,
                   stdout=subprocess.DEVNULL)
    took = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, (after.ru_utime + after.ru_stime - before.ru_utime -
                  before.ru_stime)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    binaries = args.build.resolve() / "bin"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"),
           "CKPT_LIBRARY": str(binaries / "libckpt.so"),
           "CKPT_BINARY": str(binaries / "ckpt")}
    with tempfile.TemporaryDirectory(prefix="ckpt_bench_") as temp:
        folder = Path(temp)
        source, out = folder / "source.safetensors", folder / "out.pt"
        make_file(source, args.gib)
        (folder / "read.c").write_text(PROGRAM)
        reader = folder / "read"
        subprocess.run(["cc", "-O2", f"-I{ROOT / 'lib/include'}",
                        str(folder / "read.c"), "-o", str(reader),
                        f"-L{binaries}", "-lckpt",
                        f"-Wl,-rpath,{binaries}"], check=True)
        cases = {
            "C": [reader, source],
            "Python": [sys.executable, "-c", READ, source],
            "empty": [sys.executable, "-c", "import ckpt"],
        }
        rounds = [{name: timed(words, env) for name, words in cases.items()}
                  for _ in range(args.rounds)]
        print(f"{args.gib} GiB, best of {args.rounds}; Python without the "
              "interpreter's start and `import ckpt`")
        for at, what in enumerate(("clock", "processors")):
            best = {name: min(row[name][at] for row in rounds)
                    for name in cases}
            python = best["Python"] - best["empty"]
            print(f"read     {what}: C {best['C']:.3f} s, Python "
                  f"{python:.3f} s: {python / best['C'] - 1:+.1%}; the start "
                  f"took {best['empty']:.3f} s")
        subprocess.run([sys.executable, "-c", CONVERT, str(source), str(out),
                        str(args.rounds)], check=True, env=env)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)


if __name__ == "__main__":
    main()
