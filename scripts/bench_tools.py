#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tools that people use for the same work: mergekit and ckptkit beside ckpt.

    .venv/bin/python scripts/bench_tools.py [--gib 1] [--rounds 3] [--dir DIR]
        [--peers DIR]

mergekit rewrites a model that it does not change (passthrough); ckptkit lists
and compares one file by its header. Commands take turns, page cache warm; the
medians by the clock count. Prints a table of Markdown. The two are installed
into --peers, else .venv, if they lack (pip, without dependencies that .venv
has).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench_make as make
from bench import files_of, run, warm

ROOT = Path(__file__).resolve().parents[1]
PINS = {"mergekit": ("mergekit==0.1.5", "immutables", "peft", "pydantic",
                     "pydantic_core", "annotated_types", "typing_inspection",
                     "click", "accelerate", "psutil"),
        "ckptkit": ("ckptkit==0.3.0", "click", "rich", "markdown-it-py",
                    "mdurl", "pygments")}

RECIPE = """merge_method: passthrough
dtype: bfloat16
slices:
  - sources:
      - model: {model}
        layer_range: [0, {layers}]
"""

RUN = """import sys; sys.path[:0] = {paths!r}; sys.argv[0] = {name!r}
from {module} import {function} as main
main()
"""


def install(name, peers):
    folder = peers / name
    if not (folder / name).is_dir():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q",
                        "--no-deps", "--target", folder, *PINS[name]],
                       check=True)
    return folder


def tool(name, module, function, folder):
    """The command of a package in a folder of its own."""
    peers = [str(p) for p in (ROOT / ".venv").glob("transformers_*")]
    code = RUN.format(paths=[str(install(name, folder)), *peers], name=name,
                      module=module, function=function)
    return [sys.executable, "-c", code]


def compare(title, rows, out, rounds):
    took = {name: [] for name in rows}
    for i in range(rounds):
        for name in list(rows)[::1 if i % 2 == 0 else -1]:
            shutil.rmtree(out, ignore_errors=True)
            took[name].append(run([str(a) for a in rows[name]]))
            print(f"  {name}: {took[name][-1][0]:.2f} s", file=sys.stderr)
    peer, ours = ([statistics.median(t[k] for t in took[name])
                   for k in range(3)] for name in rows)
    print(f"| {title} | {peer[0]:.2f} s | {ours[0]:.2f} s | "
          f"{peer[0] / ours[0]:.1f} | {peer[1] / ours[1]:.1f} | "
          f"{peer[2] / 2**20:.0f} MiB | {ours[2] / 2**20:.0f} MiB |",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", default=str(ROOT / "build/bin/ckpt"))
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ckpt_tools_", dir=options.dir))
    try:
        source, model, out = folder / "f2", folder / "model", folder / "out"
        make.fairseq2(source, options.gib)
        make.converted(options.ckpt, source, model, "--to", "safetensors",
                       "--max-shard-size", "500MB")
        make.converted(options.ckpt, source, folder / "one.safetensors")
        shutil.rmtree(source)
        layers = json.loads((model / "config.json").read_text())
        (folder / "recipe.yaml").write_text(RECIPE.format(
            model=model, layers=layers["num_hidden_layers"]))
        warm(model)
        size = sum(p.stat().st_size for p in files_of(model))
        print(f"{size / 2**30:.2f} GiB; medians of {options.rounds}\n\n"
              "| work | peer | ckpt | times faster | processor | peer's RSS | "
              "ckpt's RSS |\n|---|---|---|---|---|---|---|", flush=True)
        mergekit = tool("mergekit", "mergekit.scripts.run_yaml", "main",
                        options.peers)
        ckptkit = tool("ckptkit", "ckptkit.cli", "main", options.peers)
        one, copy = folder / "one.safetensors", folder / "two.safetensors"
        compare("mergekit-yaml, passthrough, shards of another size", {
            "mergekit": [*mergekit, folder / "recipe.yaml", out,
                         "--no-copy-tokenizer", "--out-shard-size", "300M",
                         "--lazy-unpickle"],
            "ckpt": [options.ckpt, "convert", model, out, "--to",
                     "safetensors", "--max-shard-size", "300MB", "--no-fsync",
                     "-q"]}, out, options.rounds)
        shutil.copy(one, copy)
        compare("ckptkit info", {
            "ckptkit": [*ckptkit, "info", one],
            "ckpt": [options.ckpt, "inspect", one]}, out, options.rounds)
        compare("ckptkit diff (names and shapes; ckpt diff: values, too)", {
            "ckptkit": [*ckptkit, "diff", one, copy],
            "ckpt": [options.ckpt, "diff", one, copy]}, out, options.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
