#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `ckpt` where checkpoints are largest, against what is promised: rows
11 to 14 of the table of promises.

Called by scripts/bench.sh --scale. 405B parameters over 16,384 ranks, as four
formats leave them: torch's DCP (one index, 1.4 million items), DCP's
safetensors shards and fairseq2's ranks (16,384 headers, 1.2 million tensors;
shards with optimizer state: 4.7 million). Medians. "cold": the page cache is
dropped before each run, which only root can do.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import bench_make as make
from bench import run

HERE = Path(__file__).parent
GRID = ["--model", "405b", "--tp", "8", "--pp", "16", "--dp", "128"]
GIB = 2**30

# name: what makes it
SOURCES = {
    "dcp": ["make_sparse.py", "--model", "405b", "--ranks", "16384", "--tp",
            "8", "--pp", "16", "--replicate", "2"],
    "shards": ["make_rank_files.py", "--kind", "safetensors", *GRID],
    "shards_optimizer": ["make_rank_files.py", "--kind", "safetensors", *GRID,
                         "--optimizer"],
    "fairseq2": ["make_rank_files.py", "--kind", "fairseq2", *GRID],
}

# The promised clock seconds and peak RSS bytes; None: no promise.
Row = namedtuple("Row", "number label words seconds bytes cold",
                 defaults=(None, False))
WHOLE = ["OUT.safetensors", "--to", "safetensors", "--dry-run", "-q"]
ROWS = [
    Row(11, "--help", ["--help"], 0.010),
    Row(11, "inspect, 1,000 tensors in a file", ["inspect", "n1000"], 0.020),
    Row(11, "inspect, 100,000 tensors in a file", ["inspect", "n100000"],
        0.080),
    Row(12, "inspect, 16,384 shards", ["inspect", "shards"], 0.8),
    Row(12, "the same, cold", ["inspect", "shards"], 2, cold=True),
    Row(12, "inspect, 16,384 ranks of fairseq2", ["inspect", "fairseq2"], 0.8),
    Row(12, "the same, cold", ["inspect", "fairseq2"], 2, cold=True),
    Row(13, "dry run, 0.9 M pieces of shards", ["convert", "shards", *WHOLE],
        2, GIB // 2),
    Row(13, "dry run, 1.2 M pieces of fairseq2",
        ["convert", "fairseq2", *WHOLE], 2, GIB // 2),
    Row(13, "dry run, 4.7 M pieces of shards",
        ["convert", "shards_optimizer", *WHOLE], 6, 3 * GIB // 2),
    Row(13, "dry run, 1.4 M items of dcp, --dp 8",
        ["reshard", "dcp", "OUT", "--dp", "8", "--dry-run", "-q"], 2, GIB // 2),
    Row(14, "inspect, .metadata of 239 MiB", ["inspect", "dcp"], 2, GIB),
    Row(14, "the same, cold", ["inspect", "dcp"], None, GIB, True),
]


def make_all(folder):
    at = {}
    for name, words in SOURCES.items():
        path = at[name] = folder / name
        if path.exists():
            continue
        print(f"making {name}", file=sys.stderr, flush=True)
        unfinished = folder / f"{name}.unfinished"
        subprocess.run(["rm", "-rf", str(unfinished)], check=True)
        subprocess.run([sys.executable, str(HERE / words[0]), str(unfinished),
                        *words[1:]], check=True)
        unfinished.rename(path)
    for count in (1000, 100000):
        path = at[f"n{count}"] = folder / f"n{count}.safetensors"
        if not path.exists():
            make.many(path, count)
    return at


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def sample(row, argv):
    if row.cold:
        drop_caches()
    return run(argv)


def measure(row, argv, rounds):
    if not row.cold:
        run(argv)  # warms the cache
    samples = [sample(row, argv) for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*samples)]


def time_of(seconds):
    return f"{seconds:.2f} s" if seconds >= 0.2 else f"{seconds * 1000:.1f} ms"


def mib(size):
    return f"{size / 2**20:.0f} MiB"


def promised(row):
    limits = ([time_of(row.seconds)] if row.seconds else []) + (
        [mib(row.bytes)] if row.bytes else [])
    return ", ".join(limits)


def missed(row, clock, peak):
    return bool(row.seconds and clock > row.seconds or
                row.bytes and peak > row.bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=int, help="a row of the promises")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    at = make_all(options.folder)
    print(f"load when it began: {os.getloadavg()[0]:.1f}; medians of "
          f"{options.rounds}\n")
    print("| # | work | clock | processor | peak RSS | promised | |")
    print("|---|---|---|---|---|---|---|")
    over = []
    for row in ROWS:
        if options.only not in (None, row.number):
            continue
        if row.cold and os.geteuid() != 0:
            continue
        argv = [options.ckpt] + [
            str(options.folder / word) if word.startswith("OUT")
            else str(at.get(word, word)) for word in row.words]
        clock, processor, peak = measure(row, argv, options.rounds)
        bad = missed(row, clock, peak)
        print(f"| {row.number} | {row.label} | {time_of(clock)} | "
              f"{time_of(processor)} | {mib(peak)} | {promised(row)} | "
              f"{'missed' if bad else ''} |", flush=True)
        if bad:
            over.append(row.label)
    if over:
        sys.exit("over the limit: " + ", ".join(over))


if __name__ == "__main__":
    main()
