#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a sharded checkpoint of any size whose payload is holes.

    scripts/make_sparse.py DST [--kind dcp|megatron_torch_dist]
        [--model 405b] [--ranks 16384] [--tp 8] [--pp 16] [--replicate 2]
        [--no-optimizer]

Names, shapes, boxes, .metadata and the headers of every item are what the
peers write; only the elements are zeros that the file system does not store.
So everything that works on headers can be measured at the size of the largest
runs: 405B parameters with optimizer state over 16,384 ranks are 1.4 million
items and 5 TB to look at, and about 8 GB on the disk (a block for each item,
or two).

dcp: FSDP2 (rows over the ranks of a shard group) over tensor parallelism,
pipeline stages, and replicas; keys as TorchTitan names them. megatron_torch_dist:
one box for each layer and tensor-parallel rank, layers on axis 0, optimizer
state in model space, boxes spread over the data-parallel ranks.

Needs Python 3.9 or later and nothing else.
"""

import argparse
import collections
import json
import os
import sys
import time
from pathlib import Path

import sparse_bytes as bytes_of

Model = collections.namedtuple("Model", "layers dim ffn heads groups vocab")
MODELS = {
    "tiny": Model(4, 64, 160, 8, 4, 256),
    "8b": Model(32, 4096, 14336, 32, 8, 128256),
    "70b": Model(80, 8192, 28672, 64, 8, 128256),
    "405b": Model(126, 16384, 53248, 128, 8, 128256),
}

# A key: boxes are (offsets, sizes, rank that writes it).
Key = collections.namedtuple("Key", "name dtype shape boxes")


class Mesh:
    """Ranks row-major over pipeline, replicas, shards, tensor parallelism."""

    def __init__(self, options):
        self.tp, self.pp, self.replicas = (options.tp, options.pp,
                                           options.replicate)
        self.shards = options.ranks // (self.tp * self.pp * self.replicas)
        self.size = options.ranks
        if self.tp * self.pp * self.replicas * self.shards != self.size:
            sys.exit(f"--ranks {self.size} is not a multiple of tp x pp x "
                     f"replicate = {self.tp * self.pp * self.replicas}")

    def rank(self, stage, replica, shard, tp):
        return (((stage * self.replicas + replica) * self.shards + shard) *
                self.tp + tp)


def parts(size, count):
    """(offset, size) of torch.chunk's cuts, with empty parts at the end."""
    each = -(-size // count)
    return [(min(i * each, size), max(0, min(each, size - i * each)))
            for i in range(count)]


def titan_rows(model):
    """(name, shape, dimension of tensor parallelism, layer or None)"""
    kv = model.dim // model.heads * model.groups
    yield "tok_embeddings.weight", (model.vocab, model.dim), 0, 0
    for i in range(model.layers):
        for name, shape, dim in (
                ("attention.wq", (model.dim, model.dim), 0),
                ("attention.wk", (kv, model.dim), 0),
                ("attention.wv", (kv, model.dim), 0),
                ("attention.wo", (model.dim, model.dim), 1),
                ("feed_forward.w1", (model.ffn, model.dim), 0),
                ("feed_forward.w2", (model.dim, model.ffn), 1),
                ("feed_forward.w3", (model.ffn, model.dim), 0),
                ("attention_norm", (model.dim,), None),
                ("ffn_norm", (model.dim,), None)):
            yield f"layers.{i}.{name}.weight", shape, dim, i
    yield "norm.weight", (model.dim,), None, model.layers - 1
    yield "output.weight", (model.vocab, model.dim), 0, model.layers - 1


def fsdp_boxes(shape, dim, stage, mesh, turn):
    """Tensor parallelism first, then rows over the shard group. Copies go to
    the replicas in turn, as the planner's deduplication spreads them."""
    boxes = []
    turn[0] += 1
    for shard in range(mesh.shards):
        for tp in range(1 if dim is None else mesh.tp):
            offsets, sizes = [0] * len(shape), list(shape)
            if dim is not None:
                offsets[dim], sizes[dim] = parts(shape[dim], mesh.tp)[tp]
            begin, count = parts(sizes[0], mesh.shards)[shard]
            offsets[0], sizes[0] = offsets[0] + begin, count
            if not count:  # empty shards collapse into one; leave them out
                continue
            at = mesh.rank(stage, (turn[0] + shard) % mesh.replicas, shard,
                           turn[0] // mesh.replicas % mesh.tp
                           if dim is None else tp)
            boxes.append((tuple(offsets), tuple(sizes), at))
    return boxes


def titan_keys(model, mesh, optimizer):
    turn = [0]
    for name, shape, dim, layer in titan_rows(model):
        stage = layer * mesh.pp // model.layers
        yield Key(name, "float32", shape,
                  fsdp_boxes(shape, dim, stage, mesh, turn))
        if not optimizer:
            continue
        for state in ("exp_avg", "exp_avg_sq"):
            yield Key(f"optimizer.state.{name}.{state}", "float32", shape,
                      fsdp_boxes(shape, dim, stage, mesh, turn))
        yield Key(f"optimizer.state.{name}.step", "float32", (),
                  [((), (), mesh.rank(stage, 0, 0, 0))])


def mcore_rows(model):
    """(name, shape of a layer, dimension of tensor parallelism, halves)"""
    h, head = model.dim, model.dim // model.heads
    qkv = (model.heads + 2 * model.groups) * head
    attention, mlp = "decoder.layers.self_attention.", "decoder.layers.mlp."
    yield attention + "linear_proj.weight", (h, model.heads * head), 1, 1
    yield attention + "linear_qkv.layer_norm_weight", (h,), None, 1
    yield attention + "linear_qkv.weight", (qkv, h), 0, 1
    yield mlp + "linear_fc1.layer_norm_weight", (h,), None, 1
    yield mlp + "linear_fc1.weight", (2 * model.ffn, h), 0, 2
    yield mlp + "linear_fc2.weight", (h, model.ffn), 1, 1


def mcore_boxes(shape, dim, halves, layers, mesh, turn):
    """One box for each layer (none: no layer axis), tensor-parallel rank, and
    half of a gated matrix; spread over the data-parallel ranks."""
    boxes = []
    for tp in range(1 if dim is None else mesh.tp):
        for layer in range(layers or 1):
            for half in range(halves):
                offsets, sizes = [0] * len(shape), list(shape)
                if dim is not None:
                    sizes[dim] //= mesh.tp * halves
                    offsets[dim] = (half * mesh.tp + tp) * sizes[dim]
                if layers:
                    offsets, sizes = [layer] + offsets, [1] + sizes
                turn[0] += 1
                dp = turn[0] % (mesh.replicas * mesh.shards)
                stage = layer * mesh.pp // (layers or 1)
                at = (stage * mesh.replicas * mesh.shards + dp) * mesh.tp + tp
                boxes.append((tuple(offsets), tuple(sizes), at))
    return boxes


def mcore_keys(model, mesh, optimizer):
    turn, whole = [0], (model.vocab, model.dim)
    rows = [("embedding.word_embeddings.weight", whole, 0, 1, 0)]
    rows += [(*row, model.layers) for row in mcore_rows(model)]
    rows += [("decoder.final_layernorm.weight", (model.dim,), None, 1, 0),
             ("output_layer.weight", whole, 0, 1, 0)]
    states = ("exp_avg", "exp_avg_sq", "fp32_param") if optimizer else ()
    for prefix, dtype in [("", "bfloat16")] + [
            (f"optimizer.state.{state}.", "float32") for state in states]:
        for name, shape, dim, halves, layers in rows:
            stored = (layers, *shape) if layers else shape
            yield Key(prefix + name, dtype, stored,
                      mcore_boxes(shape, dim, halves, layers, mesh, turn))


def mcore_objects(model, mesh):
    """(name, pickle, rank)"""
    none = bytes_of.saved([None])
    for module in ("self_attention.linear_proj", "self_attention.linear_qkv",
                   "mlp.linear_fc1", "mlp.linear_fc2"):
        for i in range(model.layers):
            stage = i * mesh.pp // model.layers
            yield (f"decoder.layers.{module}._extra_state/shard_{i}_"
                   f"{model.layers}", none, mesh.rank(stage, 0, 0, 0))


def mcore_common(model, mesh, options):
    args = argparse.Namespace(
        tensor_model_parallel_size=mesh.tp, pipeline_model_parallel_size=mesh.pp,
        world_size=mesh.size, num_layers=model.layers, hidden_size=model.dim,
        ffn_hidden_size=model.ffn, num_attention_heads=model.heads,
        num_query_groups=model.groups, group_query_attention=True,
        padded_vocab_size=model.vocab, swiglu=True, bf16=True,
        untie_embeddings_and_output_weights=True, iteration=7,
        use_distributed_optimizer=options.optimizer)
    sharding = "fully_reshardable" if options.optimizer else None
    return {"args": args, "checkpoint_version": 3.0, "iteration": 7,
            "content_metadata": {"distrib_optim_sharding_type": sharding}}


def dcp_objects():
    for name, value in (("train_state", {"step": 7}), ("lr_scheduler", 7)):
        yield name, bytes_of.saved(value), 0


def place(keys, objects):
    """{rank: [(name, chunk, offsets, position, item)]}, with items one after
    another in plan order."""
    at, files = collections.Counter(), collections.defaultdict(list)

    def add(rank, name, chunk, offsets, item):
        files[rank].append((name, chunk, offsets, at[rank], item))
        at[rank] += len(item[0]) + item[1] + len(item[2])

    for name, pickled, rank in objects:
        add(rank, name, None, None, bytes_of.object_item(pickled))
    for key in keys:
        for i, (offsets, sizes, rank) in enumerate(key.boxes):
            add(rank, key.name, i, offsets,
                bytes_of.tensor_item(key.dtype, sizes))
    return files


def write_file(path, items):
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        at, known = 0, b""  # what to write there
        for _, _, _, begin, (head, payload, tail) in items:
            known += head  # after the tail of the previous item
            if payload:
                os.pwrite(handle, known, at)
                at, known = begin + len(head) + payload, tail
        os.pwrite(handle, known, at)
    finally:
        os.close(handle)


def file_name(rank):
    return f"__{rank}_0.distcp"


def write(dst, options):
    model, mesh = MODELS[options.model], Mesh(options)
    megatron = options.kind == "megatron_torch_dist"
    make = mcore_keys if megatron else titan_keys
    keys = list(make(model, mesh, options.optimizer))
    objects = list(mcore_objects(model, mesh) if megatron else dcp_objects())
    files = place(keys, objects)
    dst.mkdir(parents=True)
    for rank, items in files.items():
        write_file(dst / file_name(rank), items)
    planner = None
    if not megatron:
        planner = {key.name: (key.name,) for key in keys}
        planner.update({name: (name,) for name, _, _ in objects})
        for rank in range(mesh.size):  # torch leaves an empty file
            if rank not in files:
                (dst / file_name(rank)).touch()
    # torch says which chunk of its tensor an item is, Megatron does not.
    stored = [(name, None if megatron else i, offsets, file_name(rank), begin,
               len(item[0]) + item[1] + len(item[2]))
              for rank in sorted(files)
              for name, i, offsets, begin, item in files[rank]]
    with open(dst / ".metadata", "wb") as file:
        bytes_of.Metadata(file).write(
            [(key.name, key.dtype, key.shape,
              [(offsets, sizes) for offsets, sizes, _ in key.boxes])
             for key in keys],
            [name for name, _, _ in objects], planner, stored)
    if megatron:
        head, _, tail = bytes_of.archive(
            bytes_of.saved(mcore_common(model, mesh, options)), top="common")
        (dst / "common.pt").write_bytes(head + tail)
        (dst / "metadata.json").write_text(json.dumps({
            "sharded_backend": "torch_dist", "sharded_backend_version": 1,
            "common_backend": "torch", "common_backend_version": 1}))
    return len(stored)


def disk_use(folder):
    stats = [p.stat() for p in folder.iterdir()]
    return sum(s.st_blocks * 512 for s in stats), sum(s.st_size for s in stats)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dst", type=Path)
    parser.add_argument("--kind", default="dcp",
                        choices=("dcp", "megatron_torch_dist"))
    parser.add_argument("--model", default="tiny", choices=MODELS)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--replicate", type=int, default=1,
                        help="data-parallel replicas of each shard")
    parser.add_argument("--no-optimizer", dest="optimizer",
                        action="store_false")
    options = parser.parse_args()
    start = time.monotonic()
    items = write(options.dst, options)
    used, size = disk_use(options.dst)
    index = (options.dst / ".metadata").stat().st_size
    print(f"{items} items, {size / 2**40:.3f} TiB of which {used / 2**20:.0f} "
          f"MiB on the disk, .metadata {index / 2**20:.1f} MiB, "
          f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
