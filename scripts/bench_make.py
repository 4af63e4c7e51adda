# SPDX-License-Identifier: Apache-2.0
"""Makes what the benchmark reads: checkpoints of a given size, with random
bytes.

Every folder is made once and kept until the benchmark removes all of them.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CHUNK = 64 << 20


def quietly(argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def fairseq2(path, gib):
    """A llama-like model, tensor-parallel over 4."""
    quietly([sys.executable, str(HERE / "make_fairseq2.py"), str(path),
             "--gib", str(gib), "--tp", "4"])


def converted(ckpt, source, path, *options):
    # No manifest: every run would make digests to compare with it.
    quietly([ckpt, "convert", str(source), str(path), "--no-fsync", "-q",
             "--no-manifest", *options])


def random_bytes(file, size, seed=1):
    """Finite as bf16, f16 and f32, as exponents stay in the middle."""
    generator = np.random.SFC64(seed)
    while size:
        part = min(size, CHUNK)
        raw = generator.random_raw(-(-part // 8)).view(np.uint16)
        raw &= 0x81FF
        raw |= 0x3C00
        file.write(raw.tobytes()[:part])
        size -= part


def header(tensors):
    """The first bytes of a .safetensors file, and where its data ends."""
    entries, at = {}, 0
    for name, dtype, shape in tensors:
        size = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
        for dim in shape:
            size *= dim
        entries[name] = {"dtype": dtype, "shape": list(shape),
                         "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def safetensors(path, tensors, sparse=False):
    """One file; its data random, or a hole."""
    first, size = header(tensors)
    with open(path, "wb") as f:
        f.write(first)
        if sparse:
            f.truncate(len(first) + size)
        else:
            random_bytes(f, size)


def many(path, count):
    """A header of that many tensors."""
    safetensors(path, [(f"model.layers.{i // 9}.part_{i % 9}.weight", "U8",
                        [64]) for i in range(count)], sparse=True)


def columns(path, size, piece):
    """fairseq2, tp 4: matrices cut along dimension 1, so that tp 8 has rows of
    `piece` bytes."""
    import torch
    width = piece  # elements of bf16, two of them a target's row of bytes
    rows = 8192 * 2048 // piece
    layers = max(1, size // (4 * rows * width * 2))
    path.mkdir(parents=True)
    (path / "model.yaml").write_text(
        "name: checkpoint\nmodel_family: llama\nmodel_config:\n"
        f"  model_dim: {rows}\n  num_layers: {layers}\n")
    for rank in range(4):
        part = {}
        for i in range(layers):
            raw = np.random.SFC64([rank, i]).random_raw(
                rows * width // 4).view(np.int16)
            raw &= 0x3FFF
            part[f"decoder.layers.{i}.ffn.output_proj.weight"] = (
                torch.from_numpy(raw).view(torch.bfloat16)
                .reshape(rows, width))
        file = path / f"step_1/model/pp_00/tp_{rank:02}/sdp_00.pt"
        file.parent.mkdir(parents=True)
        with open(file, "wb") as f:
            torch.save(part, f, pickle_protocol=2)


def sharded_safetensors(source, path):
    """What torch's HuggingFaceStorageWriter leaves on 4 ranks: each tensor in 4
    parts along dimension 0, with the offsets of the parts."""
    from safetensors import safe_open
    from safetensors.torch import save_file
    path.mkdir(parents=True)
    names = {}
    files = sorted(source.glob("*.safetensors"))
    for rank in range(4):
        part, offsets = {}, {}
        for file in files:
            with safe_open(file, "pt") as f:
                for name in f.keys():
                    whole = f.get_slice(name)
                    rows = whole.get_shape()[0]
                    begin, end = rows * rank // 4, rows * (rank + 1) // 4
                    part[name] = whole[begin:end].contiguous()
                    offsets[name] = {"saved_offsets": [begin] + [0] * (
                        len(whole.get_shape()) - 1)}
                    names[name] = 1
        save_file(part, path / f"shard-{rank:05}-model-00001-of-00001"
                  ".safetensors",
                  metadata={"DCP_SHARDING_INFO": json.dumps(offsets),
                            "DCP_VERSION": "1.0", "format": "pt"})
    (path.parent / (path.name + ".names.json")).write_text(json.dumps(names))


def loop_xfs(image, mount, size):
    """True if an XFS with reflinks is mounted there."""
    if os.geteuid() != 0:
        return False
    mount.mkdir(exist_ok=True)
    with open(image, "wb") as f:
        f.truncate(size)
    try:
        quietly(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)])
        quietly(["mount", "-o", "loop", str(image), str(mount)])
    except (OSError, subprocess.CalledProcessError):
        image.unlink()
        return False
    return True


def unmount(image, mount):
    subprocess.run(["umount", str(mount)], check=False)
    image.unlink(missing_ok=True)
