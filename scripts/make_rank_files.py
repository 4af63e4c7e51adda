#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a checkpoint of any size with a file for each rank; payload is holes.

    scripts/make_rank_files.py DST [--kind fairseq2|safetensors]
        [--model 405b] [--tp 8] [--pp 16] [--dp 128] [--optimizer]

fairseq2: model/pp_XX/tp_XX/sdp_XX.pt as torch.save writes them; --optimizer
adds optimizer/pp_XX/tp_XX/sdp_XX.pt with exp_avg, exp_avg_sq and a step for
each parameter. safetensors: shard-XXXXX-model-00001-of-00001.safetensors with
DCP_SHARDING_INFO, as torch's HuggingFaceStorageWriter writes them; --optimizer
adds a main weight and two moments for each parameter.

405B parameters over tp 8, pp 16, dp 128 are 16,384 files and 1.2 million
tensors in them; with optimizer state 4.6 million. All headers are real; the
elements are zeros that the file system does not store. make_sparse.py makes
the formats that have one index.

Needs Python 3.9 or later and nothing else.
"""

import argparse
import functools
import json
import os
import struct
import time
from pathlib import Path

from make_sparse import MODELS, parts
from sparse_bytes import ALIGNMENT, STORAGE, crc_of_zeros, number, tuple_of


def rows(model, stage, stages):
    """(name, shape, dimension of tensor parallelism) of a pipeline stage"""
    kv = model.dim // model.heads * model.groups
    if stage == 0:
        yield "decoder_frontend.embed.weight", (model.vocab, model.dim), 0
    for i in range(model.layers):
        if i * stages // model.layers != stage:
            continue
        p = f"decoder.layers.{i}."
        for name, shape, dim in (
                ("self_attn_layer_norm", (model.dim,), None),
                ("self_attn.q_proj", (model.dim, model.dim), 0),
                ("self_attn.k_proj", (kv, model.dim), 0),
                ("self_attn.v_proj", (kv, model.dim), 0),
                ("self_attn.output_proj", (model.dim, model.dim), 1),
                ("ffn_layer_norm", (model.dim,), None),
                ("ffn.gate_proj", (model.ffn, model.dim), 0),
                ("ffn.inner_proj", (model.ffn, model.dim), 0),
                ("ffn.output_proj", (model.dim, model.ffn), 1)):
            yield f"{p}{name}.weight", shape, dim
    if stage == stages - 1:
        yield "decoder.layer_norm.weight", (model.dim,), None
        yield "final_proj.weight", (model.vocab, model.dim), 0


def part_of(shape, dim, options, tp, dp):
    """(offsets, sizes): tensor parallelism first, then rows over dp."""
    offsets, sizes = [0] * len(shape), list(shape)
    if dim is not None:
        offsets[dim], sizes[dim] = parts(shape[dim], options.tp)[tp]
    begin, count = parts(sizes[0], options.dp)[dp]
    return tuple([offsets[0] + begin] + offsets[1:]), (count, *sizes[1:])


# --- torch.save

def text(value):
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


class Pickle:
    """A state dict of contiguous tensors, as torch.save pickles it (without
    the memo, which nothing here refers to)."""

    def __init__(self):
        self.storages = []  # bytes

    def tensor(self, dtype, shape):
        storage, size = STORAGE[dtype]
        count, strides = 1, []
        for n in reversed(shape):
            strides.insert(0, count)
            count *= n
        self.storages.append(count * size)
        return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
                b"ctorch\n" + storage.encode() + b"Storage\n" +
                text(str(len(self.storages) - 1)) + text("cpu") +
                number(count) + b"tQK\0" + tuple_of(shape) +
                tuple_of(strides) + b"\x89ccollections\nOrderedDict\n)RtR")

    @staticmethod
    def items(pairs):
        return b"(" + b"".join(key + value for key, value in pairs) + b"u"


def segments(pickled, storages):
    """[(offset, bytes)] and the size of the archive; storages are left out."""
    out, at, directory = [], 0, b""
    small = [("data.pkl", pickled), (".format_version", b"1"),
             (".storage_alignment", b"64"), ("byteorder", b"little")]
    last = [("version", b"3\n"), (".data/serialization_id", b"0" * 40)]
    records = small + [(f"data/{i}", n) for i, n in enumerate(storages)] + last
    for name, data in records:
        name = f"archive/{name}".encode()
        size = data if isinstance(data, int) else len(data)
        crc = crc_of_zeros(size) if isinstance(data, int) else zlib_crc(data)
        begin, fill = at, -(at + 30 + len(name) + 4) % ALIGNMENT
        flags = 0x0808 if size else 0x0800
        head = struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0,
                           0, len(name), fill + 4)
        head += name + b"FB" + fill.to_bytes(2, "little") + b"Z" * fill
        if not isinstance(data, int):
            head += data
        out.append((at, head))
        at = begin + 30 + len(name) + 4 + fill + size
        if size:
            out.append((at, struct.pack("<IIII", 0x08074B50, crc, size, size)))
            at += 16
        if at >= 2**32:
            raise ValueError("needs 64-bit records")
        directory += struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, crc, size,
            size, len(name), 0, 0, 0, 0, 0, begin) + name
    count, end = len(records), at + len(directory)
    directory += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45, 0, 0,
                             count, count, len(directory), at)
    directory += struct.pack("<IIQI", 0x07064B50, 0, end, 1)
    directory += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count,
                             end - at, at, 0)
    return joined(out + [(at, directory)])


def joined(pieces):
    whole = []
    for at, data in pieces:
        if whole and whole[-1][0] + len(whole[-1][1]) == at:
            whole[-1] = (whole[-1][0], whole[-1][1] + data)
        else:
            whole.append((at, data))
    return whole


def zlib_crc(data):
    import zlib
    return zlib.crc32(data)


@functools.lru_cache(maxsize=64)
def model_file(tensors):
    """tensors: ((name, shape), …)"""
    pickle = Pickle()
    body = Pickle.items([(text(name), pickle.tensor("bfloat16", shape))
                         for name, shape in tensors])
    return segments(b"\x80\x02ccollections\nOrderedDict\n)R" + body + b".",
                    pickle.storages)


@functools.lru_cache(maxsize=64)
def optimizer_file(tensors, flat):
    """What torch.optim.AdamW.state_dict() holds; with FSDP, flat slices."""
    pickle, state = Pickle(), []
    for i, (_, shape) in enumerate(tensors):
        if flat:
            shape = (functools.reduce(int.__mul__, shape, 1),)
        state.append((number(i), b"}" + Pickle.items(
            [(text("step"), pickle.tensor("float32", ())),
             (text("exp_avg"), pickle.tensor("float32", shape)),
             (text("exp_avg_sq"), pickle.tensor("float32", shape))])))
    group = b"}" + Pickle.items(
        [(text("lr"), b"G" + struct.pack(">d", 1e-4)),
         (text("params"), b"](" + b"".join(
             number(i) for i in range(len(tensors))) + b"e")])
    body = b"}" + Pickle.items(
        [(text("state"), b"}" + Pickle.items(state)),
         (text("param_groups"), b"](" + group + b"e")])
    return segments(b"\x80\x02" + body + b".", pickle.storages)


def model_yaml(model):
    config = {
        "model_dim": model.dim, "max_seq_len": 8192, "vocab_size": model.vocab,
        "tied_embeddings": "false", "num_layers": model.layers,
        "num_attn_heads": model.heads, "num_key_value_heads": model.groups,
        "ffn_inner_dim": model.ffn, "ffn_inner_dim_scale": 1.0,
        "ffn_inner_dim_multiple_of": 1024, "shard_embed_dim": "false"}
    lines = ["name: checkpoint", "model_family: llama", "model_config:"]
    return "\n".join(
        lines + [f"  {key}: {value}" for key, value in config.items()]) + "\n"


def write_fairseq2(dst, model, options):
    (dst / "model.yaml").write_text(model_yaml(model))
    count = 0
    for pp, tp, dp in ranks(options):
        tensors = tuple((name, part_of(shape, dim, options, tp, dp)[1])
                        for name, shape, dim in rows(model, pp, options.pp))
        where = f"pp_{pp:02}/tp_{tp:02}/sdp_{dp:02}.pt"
        write_segments(dst / "step_1/model" / where, model_file(tensors))
        count += len(tensors)
        if options.optimizer:
            write_segments(dst / "step_1/optimizer" / where,
                           optimizer_file(tensors, options.dp > 1))
            count += 3 * len(tensors)
    return count


def write_segments(path, pieces):
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    for at, data in pieces:
        os.pwrite(handle, data, at)
    os.close(handle)


def ranks(options):
    for pp in range(options.pp):
        for tp in range(options.tp):
            for dp in range(options.dp):
                yield pp, tp, dp


# --- safetensors

def write_safetensors(dst, model, options):
    kinds = [("", "BF16", 2)]
    if options.optimizer:
        kinds += [(f"optim.{s}.", "F32", 4)
                  for s in ("main", "exp_avg", "exp_avg_sq")]
    count = 0
    for rank, (pp, tp, dp) in enumerate(ranks(options)):
        header, info, at = {}, {}, 0
        for prefix, dtype, size in kinds:
            for name, shape, dim in rows(model, pp, options.pp):
                if dim is None and tp:
                    continue
                offsets, sizes = part_of(shape, dim, options, tp, dp)
                end = at + size * functools.reduce(int.__mul__, sizes, 1)
                header[prefix + name] = {"dtype": dtype, "shape": sizes,
                                         "data_offsets": [at, end]}
                info[prefix + name] = {"saved_offsets": offsets}
                at = end
        count += len(header)
        meta = {"format": "pt", "DCP_VERSION": "1.0",
                "DCP_SHARDING_INFO": json.dumps(info)}
        data = json.dumps({"__metadata__": meta, **header},
                          separators=(",", ":")).encode()
        data += b" " * (-len(data) % 8)
        name = f"shard-{rank:05}-model-00001-of-00001.safetensors"
        with open(dst / name, "wb") as file:
            file.write(struct.pack("<Q", len(data)) + data)
            file.truncate(8 + len(data) + at)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dst", type=Path)
    parser.add_argument("--kind", default="fairseq2",
                        choices=("fairseq2", "safetensors"))
    parser.add_argument("--model", default="tiny", choices=MODELS)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--dp", type=int, default=4)
    parser.add_argument("--optimizer", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    options.dst.mkdir(parents=True)
    write = (write_fairseq2 if options.kind == "fairseq2"
             else write_safetensors)
    count = write(options.dst, MODELS[options.model], options)
    print(f"{count} tensors in {options.tp * options.pp * options.dp} ranks' "
          f"files, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
