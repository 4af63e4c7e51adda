#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python costs beside the library itself, in one run.

  scripts/bench_python.py [--build build] [--gib 1] [--rounds 9]

Makes a file of that many GiB in tensors of 32 MiB, and reads all of them, in turn:
a C program over ckpt/c.h and the Python package, each a process of its own. Both
do it once and nine times: an eighth of the difference is what a reading costs,
without the start of either. Then in one process the calls of ckpt/c.h by ctypes
and the package, also of 10,000 tensors of 64 bytes: what a tensor costs. And it
converts the file by ckpt.convert and by the binary. Each comparison has the best
of both, their medians, and the median of what neighbours in time differ by:
beside other work on the machine that one is steady where the others are not. The
page cache is warm; what is converted goes to memory.
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSOR = 32 << 20
SMALL = 10_000
TIMES = 9
PROGRAM = r"""
#include <ckpt/c.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  char* error = 0;
  ckpt_checkpoint* source = ckpt_open(argv[1], 0, 0, &error);
  unsigned long long total = 0;
  if (!source) return 1;
  for (int times = atoi(argv[argc - 1]); times; --times)
    for (size_t i = 0; i < ckpt_tensor_count(source); ++i) {
      ckpt_tensor row;
      size_t size = 0;
      ckpt_tensor_at(source, i, &row);
      ckpt_data* data = ckpt_read(source, row.name, 0, 0, &error);
      if (!data) return 1;
      ckpt_data_bytes(data, &size);
      total += size;
      ckpt_data_close(data);
    }
  printf("%llu\n", total);
  ckpt_close(source);
  return 0;
}
"""
READ = """
import sys, ckpt
total = 0
with ckpt.open(sys.argv[1]) as source:
    for _ in range(int(sys.argv[2])):
        for name in source:
            total += source[name].read().nbytes
print(total)
"""
# The same in one process, without the start of an interpreter.
CALLS = """
import ctypes, json, sys, time
import ckpt
from ckpt import _native
library, path = _native.library(), sys.argv[1]

def calls():
    error, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = library.ckpt_open(path.encode(), None, None, ctypes.byref(error))
    row, total = _native.TensorRow(), 0
    for index in range(library.ckpt_tensor_count(source)):
        library.ckpt_tensor_at(source, index, ctypes.byref(row))
        data = library.ckpt_read(source, row.name, None, None,
                                 ctypes.byref(error))
        library.ckpt_data_bytes(data, ctypes.byref(size))
        total += size.value
        library.ckpt_data_close(data)
    library.ckpt_close(source)
    return total

def package():
    total = 0
    with ckpt.open(path) as source:
        for name in source:
            total += source[name].read().nbytes
    return total

rounds = []
for number in range(int(sys.argv[2])):
    took = {}
    for call in (calls, package) if number % 2 else (package, calls):
        clock, used = time.monotonic(), time.process_time()
        call()
        took[call.__name__] = (time.monotonic() - clock,
                               time.process_time() - used)
    rounds.append(took)
print(json.dumps(rounds))
"""
CONVERT = """
import json, os, resource, subprocess, sys, time
import ckpt
source, target, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
words = [os.environ["CKPT_BINARY"], "convert", source, target, "--to", "torch",
         "--if-exists", "replace", "--no-fsync", "--json"]

def binary():
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)

def package():
    ckpt.convert(source, target, to="torch", if_exists="replace", no_fsync=True)

def used():
    return sum(sum(resource.getrusage(who)[:2]) for who in (
        resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

binary()  # makes the file
rows = []
for number in range(rounds):
    took = {}
    for call in (binary, package) if number % 2 else (package, binary):
        clock, spent = time.monotonic(), used()
        call()
        took[call.__name__] = time.monotonic() - clock, used() - spent
    rows.append(took)
print(json.dumps(rows))
"""


def make_file(path, size, tensor):
    count = size // tensor
    rows = {f"layers.{i}.weight": {
        "dtype": "U8", "shape": [tensor],
        "data_offsets": [i * tensor, (i + 1) * tensor]} for i in range(count)}
    text = json.dumps(rows).encode()
    block = os.urandom(tensor)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(block)


def timed(words, env):
    """Seconds that a process took, by the clock and of processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    subprocess.run([str(w) for w in words], check=True, env=env,
                   stdout=subprocess.DEVNULL)
    took = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, (after.ru_utime + after.ru_stime - before.ru_utime -
                  before.ru_stime)


def compare(title, rounds, one, other):
    """`rounds` has (clock, processors) of both by name."""
    for at, what in enumerate(("clock", "processors")):
        a = [row[one][at] for row in rounds]
        b = [row[other][at] for row in rounds]
        pairs = statistics.median(y / x for x, y in zip(a, b))
        print(f"{title:9}{what:11}best {min(a):.3f} {min(b):.3f} "
              f"{min(b) / min(a) - 1:+.1%}, median {statistics.median(a):.3f} "
              f"{statistics.median(b):.3f} "
              f"{statistics.median(b) / statistics.median(a) - 1:+.1%}, "
              f"pairs {pairs - 1:+.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    binaries = args.build.resolve() / "bin"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"),
           "CKPT_LIBRARY": str(binaries / "libckpt.so"),
           "CKPT_BINARY": str(binaries / "ckpt")}
    with tempfile.TemporaryDirectory(prefix="ckpt_bench_") as temp, \
            tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        folder = Path(temp)
        source, out = folder / "source.safetensors", Path(memory) / "out.pt"
        make_file(source, int(args.gib * (1 << 30)), TENSOR)
        small = folder / "small.safetensors"
        make_file(small, SMALL * 64, 64)
        (folder / "read.c").write_text(PROGRAM)
        reader = folder / "read"
        subprocess.run(["cc", "-O2", f"-I{ROOT / 'lib/include'}",
                        str(folder / "read.c"), "-o", str(reader),
                        f"-L{binaries}", "-lckpt",
                        f"-Wl,-rpath,{binaries}"], check=True)
        cases = {
            (name, times): [*words, source, times] for times in (1, TIMES)
            for name, words in (("C", [reader]),
                                ("Python", [sys.executable, "-c", READ]))}
        print(f"{args.gib} GiB, {args.rounds} rounds: seconds of the first, of "
              "the second, and what that is more")
        rounds = []
        for number in range(args.rounds):
            order = list(cases) if number % 2 else list(cases)[::-1]
            took = {case: timed(cases[case], env) for case in order}
            rounds.append({
                name: [(many - one) / (TIMES - 1) for one, many in zip(
                    took[name, 1], took[name, TIMES])]
                for name in ("C", "Python")})
        compare("process", rounds, "C", "Python")
        for title, script, names, words in (
                ("calls", CALLS, ("calls", "package"), [source]),
                ("small", CALLS, ("calls", "package"), [small]),
                ("convert", CONVERT, ("binary", "package"), [source, out])):
            rows = json.loads(subprocess.run(
                [sys.executable, "-c", script, *map(str, words),
                 str(args.rounds)], check=True, env=env, capture_output=True,
                text=True).stdout)
            compare(title, rows, *names)
            if title == "small":
                each = min(row["package"][1] for row in rows) - min(
                    row["calls"][1] for row in rows)
                print(f"         the package adds {each / SMALL * 1e6:.1f} us "
                      "of processors to a tensor")


if __name__ == "__main__":
    main()
