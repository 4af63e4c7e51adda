#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--max-rate: payload moves no faster than was asked, with any threads.

A limit is a promise about the least time that bytes take, so a busy machine
can't break these checks.
"""

import json
import os
import struct

from support import Suite, check, check_equal

CKPT = None  # set by prepare
MIB = 1 << 20


def make(path, mebibytes):
    header = json.dumps({
        f"layers.{i}.w": {"dtype": "F32", "shape": [256, 1024],
                          "data_offsets": [i * MIB, (i + 1) * MIB]}
        for i in range(mebibytes)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header
                     + os.urandom(mebibytes * MIB))


def limited(folder, threads):
    make(folder / "in.safetensors", 64)
    for name, more in (("free", []), ("slow", ["--max-rate", "32MiB"])):
        run = CKPT.ok("convert", folder / "in.safetensors",
                      folder / f"{name}.safetensors", "-q", "--no-fsync", "-j",
                      threads, *more)
    check(run.seconds >= 1.9, f"64 MiB at 32 MiB/s took {run.seconds:.2f} s")
    check_equal((folder / "slow.safetensors").read_bytes(),
                (folder / "free.safetensors").read_bytes(), "bytes")


def reading(folder):
    make(folder / "in.safetensors", 8)
    run = CKPT.ok("inspect", folder / "in.safetensors", "--digest",
                  "--max-rate", "8MiB", "-q")
    check(run.seconds >= 0.9, f"8 MiB at 8 MiB/s took {run.seconds:.2f} s")


def refused(folder):
    make(folder / "in.safetensors", 1)
    for bad in ("0", "fast", "-1", "1QiB", ""):
        CKPT.run("convert", folder / "in.safetensors", folder / "o.safetensors",
                 f"--max-rate={bad}").want(2)
    check(not (folder / "o.safetensors").exists(), "something was written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for threads in (1, 4):
        suite.add(f"{threads} threads", limited, threads)
    suite.add("reading alone", reading)
    suite.add("refused", refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
