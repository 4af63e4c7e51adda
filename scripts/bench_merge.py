#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mean of many models: ckpt merge beside cat, which only reads them, and
beside mergekit.

    .venv/bin/python scripts/bench_merge.py [--sources 8] [--gib 1] [--rounds 3]
        [--dir DIR] [--peers DIR] [--no-mergekit]

The sources are out of the page cache before each command (posix_fadvise, which
needs no root), as steps of a run are. Commands take turns; medians by the clock
count. Prints a table of Markdown.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import bench_make as make
from bench import cool, files_of, run
from bench_tools import tool

ROOT = Path(__file__).resolve().parents[1]


def sources_of(ckpt, folder, count, gib):
    """Models of bf16 weights, each in files of its own."""
    first = folder / "f2"
    make.fairseq2(first, gib)
    make.converted(ckpt, first, folder / "m0", "--to", "safetensors")
    shutil.rmtree(first)
    models = [folder / "m0"]
    for i in range(1, count):
        models.append(folder / f"m{i}")
        models[-1].mkdir()
        for file in files_of(models[0]):
            if "manifest" not in file.name:
                # No reflink: each has bytes of its own on the disk.
                with open(file, "rb") as a, open(models[-1] / file.name,
                                                 "wb") as b:
                    while block := a.read(1 << 24):
                        b.write(block)
    for file in files_of(models[0]):
        if "manifest" in file.name:
            file.unlink()
    os.sync()
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", default=str(ROOT / "build/bin/ckpt"))
    parser.add_argument("--sources", type=int, default=8)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv")
    parser.add_argument("--no-mergekit", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ckpt_merge_", dir=options.dir))
    try:
        models = sources_of(options.ckpt, folder, options.sources, options.gib)
        size = sum(p.stat().st_size for m in models for p in files_of(m))
        out = folder / "out"
        (folder / "mean.yml").write_text(json.dumps({
            "merge_method": "linear", "dtype": "float32",
            "out_dtype": "bfloat16", "models": [
                {"model": str(m), "parameters": {"weight": 1}}
                for m in models]}))
        rows = {
            "cat": ["sh", "-c", "cat " + " ".join(
                f"{m}/*.safetensors" for m in models) + " > /dev/null"],
            "ckpt merge": [options.ckpt, "merge", *models, out, "--no-fsync",
                           "-q"]}
        if not options.no_mergekit:
            rows["mergekit"] = [
                *tool("mergekit", "mergekit.scripts.run_yaml", "main",
                      options.peers), folder / "mean.yml", out,
                "--no-copy-tokenizer", "--lazy-unpickle"]
        took = {name: [] for name in rows}
        for i in range(options.rounds):
            for name in list(rows)[::1 if i % 2 == 0 else -1]:
                shutil.rmtree(out, ignore_errors=True)
                for path in models:
                    cool(path)
                took[name].append(run([str(a) for a in rows[name]]))
                print(f"  {name}: {took[name][-1][0]:.2f} s", file=sys.stderr)
        print(f"{options.sources} sources, {size / 2**30:.1f} GiB; medians of "
              f"{options.rounds}\n\n| | clock | x cat | processor | peak |\n"
              "|---|---|---|---|---|")
        middle = {name: [statistics.median(t[k] for t in took[name])
                         for k in range(3)] for name in rows}
        for name, (clock, processor, peak) in middle.items():
            print(f"| {name} | {clock:.2f} s | {clock / middle['cat'][0]:.2f} | "
                  f"{processor:.1f} s | {peak / 2**20:.0f} MiB |")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
