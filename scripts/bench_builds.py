#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of ckpt, in turn: is the portable one as fast as one of this machine?

  scripts/bench_builds.py [--own build/bin/ckpt] [--other build-portable/bin/ckpt]
                          [--mib 512] [--rounds 7]

What is read and written lies in memory (/dev/shm). Each case has the best of both
in processor time, and the median of what neighbours in time differ by: other work
on the machine changes that least. Also by the clock.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = {  # what is made from the folder `in`: arguments
    "start": ["--help"],
    "inspect, 20,000 tensors": ["inspect", "many.safetensors", "--json"],
    "verify (digests)": ["verify", "in", "--deep"],
    "inspect --stats": ["inspect", "in", "--stats"],
    "convert to torch": ["convert", "in", "out", "--to", "torch"],
    "convert to dcp, dp 4": ["convert", "in", "out", "--to", "dcp", "--dp",
                             "4"],
    "convert --dtype f32": ["convert", "in", "out", "--to", "safetensors",
                            "--dtype", "f32"],
}


def make(path, shape, count):
    """bf16 of small values, written as safetensors."""
    size = 2 * shape[0] * shape[1]
    rows = {f"layers.{i}.weight": {
        "dtype": "BF16", "shape": shape,
        "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
    text = json.dumps(rows).encode()
    # No NaN or infinity: an all-ones exponent has its highest bit set, too.
    block = bytearray(os.urandom(size))
    block[1::2] = bytes(byte & 0xbf for byte in block[1::2])
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(block)


def timed(binary, words, folder):
    shutil.rmtree(folder / "out", ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run([binary, *words], cwd=folder, capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(f"{binary} {' '.join(words)}: {done.stderr}")
    took = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, (after.ru_utime + after.ru_stime - before.ru_utime -
                  before.ru_stime)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--own", type=Path, default=ROOT / "build/bin/ckpt")
    parser.add_argument("--other", type=Path,
                        default=ROOT / "build-portable/bin/ckpt")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    binaries = [str(args.own.resolve()), str(args.other.resolve())]
    print(f"{'':26}own     other   best    pairs   clock, pairs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temp:
        folder = Path(temp)
        (folder / "in").mkdir()
        make(folder / "in/model.safetensors", [1024, 4096], args.mib // 8)
        make(folder / "many.safetensors", [4, 8], 20_000)
        for name, words in CASES.items():
            rows = []
            for number in range(args.rounds + 1):
                order = (0, 1) if number % 2 else (1, 0)
                row = {at: timed(binaries[at], words, folder) for at in order}
                rows.append([row[0], row[1]])
            rows = rows[1:]
            own, other = (min(row[at][1] for row in rows) for at in (0, 1))
            pairs, clock = (statistics.median(
                row[1][what] / row[0][what] for row in rows)
                for what in (1, 0))
            print(f"{name:26}{own:.3f} s {other:.3f} s {other / own - 1:+6.1%}"
                  f" {pairs - 1:+7.1%} {clock - 1:+7.1%}", flush=True)


if __name__ == "__main__":
    main()
