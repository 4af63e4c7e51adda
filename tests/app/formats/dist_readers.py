# SPDX-License-Identifier: Apache-2.0
"""Independent readers of DCP, Megatron's torch_dist and zarr directories.

They use torch and numpy, never ckpt: the same few lines read what ckpt wrote
and what the peers wrote.
"""

import io
import json
import pickle
import sys
import types
import zipfile
from dataclasses import dataclass
from pathlib import Path

from support import Tensor, check, from_torch


def know_megatron():
    """Lets pickles name Megatron's classes without Megatron."""
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan

    name = "megatron.core.dist_checkpointing.strategies.torch"
    if name in sys.modules:
        return
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        sys.modules.setdefault(
            ".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
    for what, base in (("MCoreMetadata", Metadata), ("MCoreSavePlan", SavePlan)):
        made = type(what, (base,), {"__module__": name})
        setattr(sys.modules[name], what, made)


@dataclass
class OlmoStorageInfo:
    """OLMo-core's own class of that name, without OLMo-core."""

    relative_path: str
    offset: int
    length: int


def know_olmo_core():
    name = "olmo_core.distributed.checkpoint.filesystem"
    if name in sys.modules:
        return
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        sys.modules.setdefault(
            ".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
    OlmoStorageInfo.__module__ = name
    OlmoStorageInfo.__name__ = OlmoStorageInfo.__qualname__ = "_StorageInfo"
    sys.modules[name]._StorageInfo = OlmoStorageInfo


def read_index(path):
    """The object in `.metadata`."""
    know_megatron()
    know_olmo_core()
    return pickle.loads(Path(path).read_bytes())


@dataclass
class Item:
    """A tensor piece: where it is, and which box it holds."""

    tensor: str
    offsets: tuple
    sizes: tuple
    file: str
    offset: int
    length: int
    packed: bool  # zstd


def items(folder):
    """All tensor pieces of a DCP directory that hold something."""
    index = read_index(folder / ".metadata")
    stored = {(i.fqn, tuple(i.offset)): info
              for i, info in index.storage_data.items()
              if getattr(i, "offset", None) is not None}
    found = []
    for name, meta in index.state_dict_metadata.items():
        for chunk in getattr(meta, "chunks", ()):
            info = stored[name, tuple(chunk.offsets)]
            if 0 not in tuple(chunk.sizes):
                found.append(Item(
                    name, tuple(chunk.offsets), tuple(chunk.sizes),
                    info.relative_path, info.offset, info.length,
                    bool(getattr(info, "transform_descriptors", None))))
    return found


def boxes(folder):
    """tensor -> the set of (offsets, sizes) that hold something."""
    out = {}
    for item in items(folder):
        out.setdefault(item.tensor, set()).add((item.offsets, item.sizes))
    return out


def payload(folder, item):
    """(position in the file, size) of a piece's elements; its storage may hold
    more."""
    import torch

    with open(folder / item.file, "rb") as f:
        f.seek(item.offset)
        raw = f.read(item.length)
    begin, _ = record(io.BytesIO(raw), lambda n: n.endswith("/data/0"))
    part = torch.load(io.BytesIO(raw), weights_only=True)
    element = part.element_size()
    return (item.offset + begin + part.storage_offset() * element,
            part.numel() * element)


def record(file, wanted):
    """(position, size) of the biggest record that `wanted` accepts."""
    with zipfile.ZipFile(file) as archive:
        found = max((r for r in archive.infolist() if wanted(r.filename)),
                    key=lambda r: r.file_size)
    file = open(file, "rb") if not hasattr(file, "read") else file
    with file:
        file.seek(found.header_offset + 26)
        sizes = file.read(4)
    begin = found.header_offset + 30 + int.from_bytes(
        sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
    return begin, found.file_size


def read_dcp(folder):
    """(tensors, objects): name -> Tensor, name -> the value of its archive."""
    import torch

    from support import load_any

    index = read_index(folder / ".metadata")
    files = {}
    tensors, objects = {}, {}

    def piece(info):
        path = info.relative_path
        data = files.setdefault(path, (folder / path).read_bytes())
        return io.BytesIO(data[info.offset:info.offset + info.length])

    for key, info in index.storage_data.items():
        if getattr(key, "offset", None) is None:
            objects[key.fqn] = load_any(piece(info))
    for name, meta in index.state_dict_metadata.items():
        if name not in objects:
            whole = torch.zeros(tuple(meta.size), dtype=meta.properties.dtype)
            tensors[name] = whole.reshape(-1) if not meta.size else whole
    for key, info in index.storage_data.items():
        if key.fqn in objects:
            continue
        part = torch.load(piece(info), weights_only=True)
        if not part.numel():
            continue
        if not key.offset:
            tensors[key.fqn] = part
            continue
        box = tuple(slice(a, a + n) for a, n in zip(key.offset, part.shape))
        tensors[key.fqn][box] = part
    return {n: from_torch(restored(index, n, t))
            for n, t in tensors.items()}, objects


def restored(index, name, tensor):
    """Megatron 0.8 to 0.15 store a flattened tensor of shape (G0, …) as its
    grid of boxes plus one axis for the box's elements."""
    facts = (getattr(index, "mcore_data", None) or {}).get(name) or {}
    shape = facts.get("nd_reformulated_orig_global_shape")
    if shape is None:
        return tensor
    grid = tensor.shape[:-1]
    local = [g // n for g, n in zip(shape, grid)]
    rank = len(grid)
    order = [axis for i in range(rank) for axis in (i, rank + i)]
    return tensor.reshape(*grid, *local).permute(*order).reshape(*shape)


# ---------------------------------------------------------------------- zarr
def arrays(folder):
    """key -> .zarray of each array, without leftover locks."""
    return {p.parent.name: json.loads(p.read_text())
            for p in sorted(folder.glob("*/.zarray")) if p.stat().st_size}


def read_zarr(folder):
    """Plain arrays, as megatron-core writes them: name -> Tensor."""
    import numpy as np

    names = {"bfloat16": ("<u2", "bf16"), "|b1": ("|u1", "bool"),
             "|u1": ("|u1", "u8"), "|i1": ("|i1", "i8"), "<i2": ("<i2", "i16"),
             "<i4": ("<i4", "i32"), "<i8": ("<i8", "i64"),
             "<f2": ("<f2", "f16"), "<f4": ("<f4", "f32"),
             "<f8": ("<f8", "f64"), "<c8": ("<c8", "c64"),
             "<c16": ("<c16", "c128")}
    tensors = {}
    for key, about in arrays(folder).items():
        plain = [about[k] for k in ("compressor", "filters", "order")]
        check(plain == [None, None, "C"], f"{key} is not a plain array: {about}")
        numpy_type, dtype = names[about["dtype"]]
        whole = np.zeros(about["shape"], numpy_type)
        for path in (folder / key).iterdir():
            if path.name.startswith("."):
                continue
            at = [int(n) * c for n, c in
                  zip(path.name.split("."), about["chunks"])]
            part = np.frombuffer(path.read_bytes(), numpy_type).reshape(
                about["chunks"])
            box = tuple(slice(a, a + n) for a, n in zip(at, part.shape))
            whole[box] = part[tuple(
                slice(0, n - a) for a, n in zip(at, whole.shape))]
        tensors[key] = Tensor(dtype, whole.shape, whole.tobytes())
    return tensors
