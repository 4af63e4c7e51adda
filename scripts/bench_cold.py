#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is not in the page cache: `ckpt --io MODE` in turn with cat and cp -r,
and what a run larger than memory leaves of another file in the page cache.

Called by scripts/bench.sh --cold. Files are dropped from the page cache before
each sample (posix_fadvise, which needs no root). Medians.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import bench_make as make
from bench import Prepared, files_of, run

MODES = ("auto", "buffered", "direct", "uring")
GIB = 2**30


def chill(folder):
    """Evicts from the page cache; dirty pages are written first."""
    for path in files_of(folder) if folder.is_dir() else [folder]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path):
    """Bytes of a file that are in the page cache."""
    return int(subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)],
        check=True, capture_output=True, text=True).stdout)


def in_turn(commands, source, target, rounds):
    samples = {name: [] for name in commands}
    chill(source)
    memory = Prepared(2 * sum(p.stat().st_size for p in files_of(source)))
    for i in range(rounds):
        order = list(commands)
        for name in order if i % 2 == 0 else reversed(order):
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            chill(source)
            samples[name].append(run(commands[name]))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    memory.close()
    shutil.rmtree(target, ignore_errors=True)
    return {name: [statistics.median(column) for column in zip(*rows)]
            for name, rows in samples.items()}


def table(title, size, results):
    base = next(iter(results.values()))
    print(f"\n| {title}, {size / GIB:.2f} GiB, cold | clock | ratio | processor "
          "| ratio |\n|---|---|---|---|---|")
    for name, (clock, processor, _) in results.items():
        print(f"| {name} | {clock:.2f} s | {clock / base[0]:.2f} | "
              f"{processor:.2f} s | {processor / base[1]:.2f} |", flush=True)


def cold(ckpt, folder, gib, rounds):
    source, target = folder / "tp4", folder / "target"
    if not source.exists():
        make.fairseq2(source, gib)
    size = sum(p.stat().st_size for p in files_of(source))
    reading = {"cat": ["find", str(source), "-type", "f", "-exec", "cat", "{}",
                       "+"]}
    writing = {"cp -r": ["cp", "-r", str(source), str(target)]}
    for mode in MODES:
        reading[f"verify --deep --io {mode}"] = [
            ckpt, "verify", str(source), "--deep", "-q", "--io", mode]
        writing[f"reshard --io {mode}"] = [
            ckpt, "reshard", str(source), str(target), "--tp", "4:8",
            "--no-fsync", "-q", "--io", mode]
    table("read", size, in_turn(reading, source, target, rounds))
    table("read and written", size, in_turn(writing, source, target, rounds))


def larger_than_memory(ckpt, folder, gib):
    """The source is holes: reading it costs memory, but no disk."""
    source, target = folder / "large.safetensors", folder / "target"
    other = folder / "other"
    make.safetensors(source, [(f"layers.{i}.weight", "BF16", [8192, 65536])
                              for i in range(gib)], sparse=True)
    with open(other, "wb") as file:
        make.random_bytes(file, GIB)
    commands = {"cp": ["cp", "--sparse=never", str(source), str(target)]}
    for mode in ("auto", "buffered"):
        commands[f"convert --io {mode}"] = [
            ckpt, "convert", str(source), str(target), "--to", "safetensors",
            "--no-fsync", "-q", "--io", mode]
    print(f"\n| {gib} GiB from holes to disk | clock | processor | left of "
          "another file in the cache |\n|---|---|---|---|")
    for name, argv in commands.items():
        for path in (source, other):
            chill(path)
        warm_file(other)
        clock, processor, _ = run(argv)
        print(f"| {name} | {clock:.1f} s | {processor:.1f} s | "
              f"{cached(other) / GIB:.2f} of 1 GiB |", flush=True)
        subprocess.run(["rm", "-rf", str(target)], check=True)
    other.unlink()
    source.unlink()


def warm_file(path):
    """Reads a file twice, so that the kernel sees it as in use."""
    for _ in range(2):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, metavar="GIB",
                        help="of the run larger than memory; 0: none")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    large = (memory // GIB if options.large is None else options.large)
    print(f"load when it began: {os.getloadavg()[0]:.1f}; memory "
          f"{memory / GIB:.0f} GiB; medians of {options.rounds}")
    cold(options.ckpt, options.folder, options.gib, options.rounds)
    if large:
        larger_than_memory(options.ckpt, options.folder, large)


if __name__ == "__main__":
    main()
