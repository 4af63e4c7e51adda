# SPDX-License-Identifier: Apache-2.0
"""What tests of distributed checkpoints share: an independent reader of
.metadata, loading by torch in one process, and groups of processes."""

import collections
import io
import math
import multiprocessing
import pickle
import traceback
import warnings
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    _EmptyStateDictLoadPlanner)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import (
    compute_local_shape_and_global_offset)
from torch.distributed.tensor.placement_types import _StridedShard

from support import (
    HANG, TORCH_NAMES, Failure, check, check_equal, from_torch, short)

TYPES = {name: getattr(torch, row) for row, name in TORCH_NAMES.items()}
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


# ------------------------------------------------------ .metadata, our reading
MODULE = "torch.distributed.checkpoint.metadata"
CLASSES = {
    (MODULE, name) for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata",
        "ChunkStorageMetadata", "MetadataIndex", "TensorProperties",
        "StorageMeta", "_MEM_FORMAT_ENCODING")
} | {("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
     ("torch", "Size"), ("torch.serialization", "_get_layout")}


class Record:
    """Any class of .metadata: what was called, and its fields."""

    def __new__(cls, *args):
        self = object.__new__(cls)
        self.args = args
        return self

    def __setstate__(self, state):
        self.state = state
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __hash__(self):
        return hash((self.fqn, tuple(getattr(self, "offset", ((None,),)))))

    def __eq__(self, other):
        return self.__dict__ == other.__dict__


class MetadataReader(pickle.Unpickler):
    """Accepts the globals that torch 2.13 writes, and no others."""

    def find_class(self, module, name):
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) in CLASSES:
            return type(name, (Record,), {})
        if module == "torch" and name in TORCH_NAMES:
            return TORCH_NAMES[name]
        raise Failure(f".metadata names {module} {name}")


Index = collections.namedtuple("Index", "tensors objects planner stored")


def read_index(folder):
    """tensors: name -> (dtype, size, [(offsets, sizes)]); stored:
    (name, offsets or None) -> (file, offset, length)."""
    with open(folder / ".metadata", "rb") as f:
        root = MetadataReader(f).load()
    check_equal(type(root).__name__, "Metadata", "root class")
    check_equal(root.version, "1.0.0", "version")
    check_equal(root.storage_meta.checkpoint_id, None, "checkpoint_id")
    check(len(root.storage_meta.save_id) == 36, "save_id is a UUID")
    tensors, objects = {}, []
    for name, entry in root.state_dict_metadata.items():
        if type(entry).__name__ == "BytesStorageMetadata":
            objects.append(name)
            continue
        tensors[name] = (
            entry.properties.state[0], tuple(entry.size),
            [(tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks])
    stored = {}
    for index, info in root.storage_data.items():
        offset = getattr(index, "offset", None)
        if offset is None:
            check_equal(index.index, None, f"index of {index.fqn}")
        else:
            offset = tuple(offset)
            check_equal(tensors[index.fqn][2][index.index][0], offset,
                        f"chunk {index.index} of {index.fqn}")
        stored[index.fqn, offset] = (
            info.relative_path, info.offset, info.length)
    return Index(tensors, objects, root.planner_data, stored)


def check_files(folder):
    """Items fill their files without gaps, and each is a separate archive that
    torch can map."""
    index = read_index(folder)
    wanted = {(name, None) for name in index.objects}
    wanted |= {(name, offset) for name, row in index.tensors.items()
               for offset, _ in row[2]}
    check_equal(set(index.stored), wanted, "items")
    check_equal(sorted(index.planner), sorted(
        [*index.objects, *index.tensors]), "keys of planner_data")
    rows = collections.defaultdict(list)
    for key, (file, offset, length) in index.stored.items():
        rows[file].append((offset, length, key))
    files = {p.name for p in folder.iterdir() if p.suffix == ".distcp"}
    check_equal(files >= set(rows), True, "files are there")
    for file in files:
        data = (folder / file).read_bytes()
        at = 0
        for offset, length, key in sorted(rows[file]):
            check_equal(offset, at, f"begin of {key} in {file}")
            at += length
            check_equal(data[offset:offset + 4], b"PK\3\4", f"item {key}")
        check_equal(at, len(data), f"end of {file}")
        first = [r for r in sorted(rows[file])]
        kinds = [key[1] is not None for _, _, key in first]
        check_equal(kinds, sorted(kinds), f"objects first in {file}")
    for (name, offset), (file, begin, length) in index.stored.items():
        if offset is not None:
            check_item(folder / file, begin, length, name,
                       index.tensors[name], offset)
    return index


def check_item(path, begin, length, name, row, offset):
    dtype, _, chunks = row
    with open(path, "rb") as f:
        f.seek(begin)
        item = f.read(length)
    check(b"archive/data.pkl" in item[:100], f"{name}: root of the archive")
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        check_equal(archive.testzip(), None, f"{name}: record with wrong CRC")
        info = archive.getinfo("archive/data/0")
        extra = int.from_bytes(
            item[info.header_offset + 28:info.header_offset + 30], "little")
        at = info.header_offset + 30 + len(info.filename) + extra
        check_equal(at % 64, 0, f"{name}: alignment of the payload")
    tensor = torch.load(io.BytesIO(item), weights_only=True)
    check_equal(TORCH_NAMES[str(tensor.dtype).split(".")[1]], dtype,
                f"dtype of {name}")
    check_equal(tuple(tensor.shape), dict(chunks)[offset],
                f"shape of {name} {offset}")
    check(tensor.is_contiguous(), f"{name} is contiguous")


# --------------------------------------------------------- reading with torch
def load_nested(folder):
    """Everything, nested as it was saved."""
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(folder),
                     planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def load_plain(folder, want):
    """Loads into tensors that the caller made, as a trainer would."""
    state = {name: torch.empty(t.shape, dtype=TYPES[t.dtype])
             for name, t in want.items()}
    try:
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder),
                 no_dist=True,
                 planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
    except CheckpointException as error:  # a BaseException
        raise Failure(f"torch can't load {folder.name}: {error}") from error
    return {name: from_torch(t) for name, t in state.items()}


def differences(got, want, path=""):
    """Where two nested values differ, types included."""
    if isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor):
        if from_torch(got) != from_torch(want):
            yield f"{path}: other content"
    elif isinstance(got, dict) and isinstance(want, dict):
        if list(map(str, got)) != list(map(str, want)):
            a, b = set(map(str, got)), set(map(str, want))
            if a != b:
                yield f"{path}: only here {short(a - b)}, there {short(b - a)}"
        other = {str(k): v for k, v in want.items()}
        for key, value in got.items():
            if str(key) in other:
                yield from differences(value, other[str(key)], f"{path}.{key}")
    elif type(got) is not type(want):
        yield f"{path}: {type(got).__name__}, expected {type(want).__name__}"
    elif isinstance(got, (list, tuple)):
        if len(got) != len(want):
            yield f"{path}: {len(got)} elements, expected {len(want)}"
        for i, (a, b) in enumerate(zip(got, want)):
            yield from differences(a, b, f"{path}.{i}")
    elif hasattr(got, "__dict__") and not isinstance(got, (type, float)):
        yield from differences(got.__dict__, want.__dict__, path)
    elif repr(got) != repr(want):
        yield f"{path}: {short(got)}, expected {short(want)}"


def check_same(got, want, what):
    problems = list(differences(got, want))
    if problems:
        raise Failure(f"{what}: " + "\n  ".join(problems[:10]))


# ------------------------------------------------------------------- processes
def each_rank(rank, world, folder, function, jobs, queue):
    """One process of a job of `world` ranks; reports what went wrong."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/init",
                                rank=rank, world_size=world)
        for job in jobs:
            function(*job)
        dist.destroy_process_group()
        queue.put(None)
    except BaseException:
        queue.put(f"rank {rank} of {world}: {traceback.format_exc(limit=-3)}")


def placements_of(shape, mesh_shape):
    if not shape:
        return [Replicate()] * len(mesh_shape)
    if len(mesh_shape) == 1:
        return [Shard(0)]
    if len(shape) > 1 and shape[0] % 2:  # rowwise
        return [Shard(0), Shard(1)]
    return [_StridedShard(0, split_factor=mesh_shape[1]), Shard(0)]


def load_sharded(path, mesh_shape, tensors):
    mesh = init_device_mesh("cpu", mesh_shape)
    state, boxes = {}, {}
    for name, want in tensors.items():
        placements = placements_of(want.shape, mesh_shape)
        size, offset = compute_local_shape_and_global_offset(
            torch.Size(want.shape), mesh, placements)
        local = torch.empty(size, dtype=TYPES[want.dtype])
        strides = [math.prod(want.shape[d + 1:])
                   for d in range(len(want.shape))]
        state[name] = DTensor.from_local(
            local, mesh, placements, run_check=False,
            shape=torch.Size(want.shape), stride=tuple(strides))
        boxes[name] = (size, offset)
    dcp.load(state, storage_reader=dcp.FileSystemReader(path),
             planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
    for name, want in tensors.items():
        size, offset = boxes[name]
        whole = torch.frombuffer(
            bytearray(want.data or b"\0" * 16), dtype=torch.uint8)
        if not want.data or 0 in size:
            continue
        part = whole.view(TYPES[want.dtype]).reshape(want.shape)
        for d, (begin, count) in enumerate(zip(offset, size)):
            part = part.narrow(d, begin, count)
        check_equal(from_torch(state[name].to_local()) == from_torch(part),
                    True, f"{name} on rank {dist.get_rank()} of {path}")


def run_ranks(folder, world, function, jobs):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=each_rank,
                             args=(rank, world, folder, function, jobs,
                                   queue))
             for rank in range(world)]
    for process in ranks:
        process.start()
    try:
        said = [queue.get(timeout=HANG) for _ in ranks]
    finally:
        for process in ranks:
            process.join(timeout=HANG)
            if process.is_alive():
                process.kill()
    said = [text for text in said if text]
    check(not said, "\n".join(said))
