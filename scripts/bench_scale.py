#!/usr/bin/env python3
"""Times `ckpt inspect` and `ckpt reshard --dry-run` on a checkpoint of the
largest runs, against what is promised.

Called by scripts/bench.sh --scale. 405B parameters with optimizer state over
16,384 ranks: 1.4 million items, a .metadata of 239 MiB, made by
make_sparse.py. Medians; the page cache is warm.
"""

import argparse
import statistics
import sys
from pathlib import Path

from bench import run

LIMITS = {  # seconds by the clock, bytes of peak RSS
    "ckpt inspect": (2, 1.5 * 2**30),
    "ckpt inspect --json": (2, 1.5 * 2**30),
    "ckpt reshard --dp 8 --dry-run": (10, None),
}


def row(label, *cells):
    print(f"{label:<32}" + "".join(f"{cell:>13}" for cell in cells))


def against(value, limit, unit, scale=1):
    if limit is None:
        return f"{value / scale:.2f} {unit}", ""
    return f"{value / scale:.2f} {unit}", f"{value / limit:.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = str(options.source)
    commands = {
        "ckpt inspect": ["inspect", source],
        "ckpt inspect --json": ["inspect", source, "--json"],
        "ckpt reshard --dp 8 --dry-run": [
            "reshard", source, source + ".out", "--dp", "8", "--dry-run"],
    }
    index = (options.source / ".metadata").stat().st_size
    files = sum(1 for _ in options.source.iterdir())
    print(f".metadata {index / 2**20:.0f} MiB, {files} files, page cache warm, "
          f"medians of {options.rounds}")
    row("", "clock", "of limit", "processor", "peak RSS", "of limit")
    over = []
    for name, words in commands.items():
        run([options.ckpt, *words])  # warms the cache
        samples = [run([options.ckpt, *words]) for _ in range(options.rounds)]
        clock, processor, rss = map(statistics.median, zip(*samples))
        seconds, most = LIMITS[name]
        row(name, *against(clock, seconds, "s"), f"{processor:.2f} s",
            *against(rss, most, "GiB", 2**30))
        if clock > seconds or (most and rss > most):
            over.append(name)
    if over:
        sys.exit("over the limit: " + ", ".join(over))


if __name__ == "__main__":
    main()
