#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantized weights to numbers and back, beside `cp` of what they become.

    python3 scripts/bench_quantized.py --ckpt build/bin/ckpt --gib 1

A command and the copy of its target take turns on warm page cache; cp's time /
ckpt's, by the best and the median of the rounds. One run is one table: on a
shared machine only what stands in it can be compared.
"""

import argparse
import json
import shutil
import struct
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from bench import Prepared, files_of, run, warm
from bench_cases import quantized

SIZES = {"F8_E4M3": 1, "U8": 1, "F16": 2, "BF16": 2, "F32": 4, "I32": 4}


def raw(size, seed, keep=0xFF, add=0):
    """Random bytes, of whose bits `keep` says which to keep."""
    words = np.random.SFC64(seed).random_raw(-(-size // 8)).view(np.uint8)
    return ((words[:size] & keep) | add).tobytes()


def save(path, tensors, config, layers):
    """Saves {name: (dtype, shape, bytes)} of a layer, once for each layer."""
    path.mkdir()
    entries, at = {}, 0
    for layer in range(layers):
        for name, (dtype, shape, data) in tensors.items():
            entries[f"model.layers.{layer}.{name}"] = {
                "dtype": dtype, "shape": list(shape),
                "data_offsets": [at, at + len(data)]}
            at += len(data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with open(path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(layers):
            for _, _, data in tensors.values():
                file.write(data)
    (path / "config.json").write_text(json.dumps(
        {"num_hidden_layers": layers, "dtype": "bfloat16", **config}))


def tensors_of(kind, rows=8192, columns=4096):
    """A layer, its elements, and what config.json says."""
    name = "mlp.up_proj."
    groups = rows // 128
    if kind == "fp8":
        return {name + "weight": ("F8_E4M3", (rows, columns),
                                  raw(rows * columns, 1, 0xB7)),
                name + "weight_scale_inv": (
                    "F32", (rows // 128, columns // 128),
                    np.full(rows * columns >> 14, 0.01, "<f4").tobytes())
                }, rows * columns, {"quant_method": "fp8", "fmt": "e4m3",
                                    "weight_block_size": [128, 128]}
    if kind == "mxfp4":  # gpt-oss 20b's down_proj and gate_up_proj, 4 experts
        made, count = {}, 0
        for part, height in (("gate_up_proj", 5760), ("down_proj", 2880)):
            size = 4 * height * 90
            made[f"mlp.experts.{part}_blocks"] = (
                "U8", (4, height, 90, 16), raw(size * 16, 2))
            made[f"mlp.experts.{part}_scales"] = (
                "U8", (4, height, 90), raw(size, 3, 7, 0x78))
            count += size * 32
        return made, count, {"quant_method": "mxfp4"}
    if kind == "bf16":
        return {name + "weight": ("BF16", (rows, columns), np.frombuffer(
            raw(rows * columns * 2, 4), "<u2") & 0x81FF | 0x3C00)
        }, rows * columns, None
    scales = np.full(groups * columns, 0.01, "<f2").tobytes()
    zeros = ("I32", (groups, columns // 8), raw(groups * columns // 2, 5))
    gptq = kind == "gptq"
    shape = (rows // 8, columns) if gptq else (rows, columns // 8)
    made = {name + "qweight": ("I32", shape, raw(rows * columns // 2, 6)),
            name + "qzeros": zeros,
            name + "scales": ("F16", (groups, columns), scales)}
    if gptq:
        made[name + "g_idx"] = ("I32", (rows,), (
            np.arange(rows, dtype="<i4") // 128).tobytes())
    said = {"quant_method": kind, "bits": 4, "group_size": 128}
    said.update({"desc_act": False, "sym": True, "checkpoint_format": "gptq"}
                if gptq else {"version": "gemm", "zero_point": True})
    return made, rows * columns, said


def make(path, kind, size):
    tensors, elements, said = tensors_of(kind)
    tensors = {name: (dtype, shape, bytes(data))
               for name, (dtype, shape, data) in tensors.items()}
    config = {"model_type": "gpt_oss" if kind == "mxfp4" else "llama"}
    if said:
        config["quantization_config"] = said
    save(path, tensors, config, max(1, size // (2 * elements)))


def sample(argv, out):
    shutil.rmtree(out, ignore_errors=True)
    return run(argv)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", default="build/bin/ckpt")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("-k", default="", help="only labels that contain it")
    options = parser.parse_args()
    size = int(options.gib * 2**30)
    print("| work | GiB | ckpt | cp | best | median | promised |\n"
          "|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = Path(folder)
        at = {kind: str(folder / kind)
              for kind in ("fp8", "mxfp4", "gptq", "awq", "bf16")}
        for label, source, argv, wanted in quantized(options.ckpt, at):
            if options.k not in label:
                continue
            make(folder / source, source, size)
            out, model, copy = (folder / x for x in ("out", "model", "copy"))
            argv = [str(out) if word == "OUT" else word for word in argv]
            run([str(model) if word == str(out) else word for word in argv])
            target = sum(p.stat().st_size for p in files_of(model))
            prepared = Prepared(target)
            ours, theirs = [], []
            for i in range(options.rounds + 1):  # the first does not count
                for path in (folder / source, model):
                    warm(path)
                turns = [(ours, argv, out),
                         (theirs, ["cp", "-r", str(model), str(copy)], copy)]
                for times, command, path in turns if i % 2 else turns[::-1]:
                    times.append(sample(command, path))
            prepared.close()
            best = min(theirs[1:]) / min(ours[1:])
            middle = median(theirs[1:]) / median(ours[1:])
            print(f"| {label} | {target / 2**30:.2f} | {min(ours[1:]):.2f} s "
                  f"| {min(theirs[1:]):.2f} s | {best:.2f} | {middle:.2f} | "
                  f"{1 / wanted:g}{'' if best * wanted >= 1 else ' (missed)'} |",
                  flush=True)
            for path in (out, model, copy, folder / source):
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
