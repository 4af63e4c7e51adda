#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps memory from going back to a virtual machine's host.

    bench_memory.py BYTES

A virtual machine may return free memory to its host, and then the first touch
of a page costs up to five times more. This touches most of what is free (at
most six times BYTES) and frees it again, except for one page of each block: a
block that is not whole is not returned. All blocks, since large writes take
their pages from the largest. Prints "ready", and ends with its input.
"""

import mmap
import re
import sys
from pathlib import Path

BLOCK = 2 << 20  # the unit that is returned
SPARE = 600 << 20  # free bytes left alone
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14


def free_memory():
    found = re.search(r"MemFree:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024


def main():
    size = min(6 * int(sys.argv[1]), max(free_memory() - SPARE, BLOCK))
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(mmap.MADV_NOHUGEPAGE)
    try:
        held.madvise(POPULATE_WRITE)
    except OSError:  # an older kernel
        for at in range(0, size, mmap.PAGESIZE):
            held[at] = 1
    for at in range(0, size - BLOCK + 1, BLOCK):
        held.madvise(mmap.MADV_DONTNEED, at + mmap.PAGESIZE,
                     BLOCK - mmap.PAGESIZE)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
