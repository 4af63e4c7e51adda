#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of a task with the peers' own tools, as one line of JSON.

    python bench_peers.py TASK SRC DST

Only the work counts: Python and torch are imported before the clock starts.
Prints {"skip": why} if the peer is not installed.
"""

import json
import os
import resource
import sys
import time
import types
from pathlib import Path

TP = 8  # of the targets


class Missing(Exception):
    pass


def row_parallel(name):
    return "output_proj" in name


def parts_of(name, tensor, count):
    """What each rank gets: fairseq2's split of llama."""
    if tensor.dim() < 2:
        return [tensor] * count
    return tensor.chunk(count, 1 if row_parallel(name) else 0)


def save_rank(target, rank, part):
    import torch
    path = Path(target) / f"tp_{rank:02}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(part, path)


def torch_load_save():
    """Four files, joined and cut again, all in memory."""
    import torch

    def work(source, target):
        ranks = [torch.load(p, mmap=True) for p in
                 sorted(Path(source).glob("step_1/model/pp_00/tp_*/*.pt"))]
        outs = [{} for _ in range(TP)]
        for name in ranks[0]:
            pieces = [rank[name] for rank in ranks]
            whole = pieces[0] if pieces[0].dim() < 2 else torch.cat(
                pieces, 1 if row_parallel(name) else 0)
            for out, part in zip(outs, parts_of(name, whole, TP)):
                out[name] = part.clone()
        for rank, out in enumerate(outs):
            save_rank(target, rank, out)

    return work


def fairseq2_lazy_load():
    """fairseq2's own loader, once for each rank of the target."""
    stub = types.ModuleType("fairseq2n")
    stub.DOC_MODE, stub.__version__ = True, "0.8.1"
    sys.modules["fairseq2n"] = stub
    try:
        from fairseq2 import io
        from fairseq2.device import CPU
        from fairseq2.file_system import NativeLocalFileSystem
        from fairseq2.gang import FakeGang, Gangs
        from fairseq2.model_checkpoint import ModelCheckpointLoadOptions
        from fairseq2.model_checkpoint.native import (
            _NativeModelCheckpointLoader)
    except ImportError as error:
        raise Missing(str(error)) from error
    import torch
    files = NativeLocalFileSystem()
    loader = _NativeModelCheckpointLoader(
        files, io._TorchTensorFileLoader(files), None)

    def gangs(rank):
        def one(r, n):
            return FakeGang(CPU, rank=r, size=n)
        return Gangs(root=one(rank, TP), dp=one(0, 1), rdp=one(0, 1),
                     sdp=one(0, 1), tp=one(rank, TP), pp=one(0, 1))

    def work(source, target):
        model = Path(source) / "step_1/model"
        first = torch.load(next(model.glob("pp_00/tp_00/*.pt")), mmap=True)
        dims = {name: 1 if row_parallel(name) else 0
                for name, tensor in first.items() if tensor.dim() == 2}
        del first
        for rank in range(TP):
            options = ModelCheckpointLoadOptions(gangs=gangs(rank))
            part = {name: tensor.clone() for name, tensor in
                    loader.lazy_load(model, dims, options)}
            save_rank(target, rank, part)

    return work


def dcp_to_torch():
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    return dcp_to_torch_save


def consolidate():
    try:
        from torch.distributed.checkpoint._consolidate_hf_safetensors import (
            consolidate_safetensors_files)
    except ImportError as error:
        raise Missing(str(error)) from error

    def work(source, target):
        Path(target).mkdir()
        names = json.loads(Path(source + ".names.json").read_text())
        consolidate_safetensors_files(source, target, names,
                                      num_threads=os.cpu_count())

    return work


def slices():
    """safetensors: each rank reads its slices and saves them."""
    try:
        from safetensors import safe_open
        from safetensors.torch import save_file
    except ImportError as error:
        raise Missing(str(error)) from error

    def cut(f, name, rank):
        tensor = f.get_slice(name)
        shape = tensor.get_shape()
        if len(shape) < 2:
            return tensor[:]
        dim = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        step = shape[dim] // 4
        if dim:
            return tensor[:, rank * step:(rank + 1) * step].contiguous()
        return tensor[rank * step:(rank + 1) * step]

    def work(source, target):
        Path(target).mkdir()
        for rank in range(4):
            part = {}
            for file in sorted(Path(source).glob("*.safetensors")):
                with safe_open(file, "pt") as f:
                    for name in f.keys():
                        part[name] = cut(f, name, rank)
            save_file(part, f"{target}/rank_{rank}.safetensors")

    return work


TASKS = {"torch_load_save": torch_load_save, "lazy_load": fairseq2_lazy_load,
         "dcp_to_torch_save": dcp_to_torch, "consolidate": consolidate,
         "get_slice": slices}


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    task, source, target = sys.argv[1:]
    import torch
    torch.set_num_threads(os.cpu_count())
    try:
        work = TASKS[task]()
    except Missing as why:
        print(json.dumps({"skip": str(why)}))
        return
    clock, processor = time.monotonic(), used()
    work(source, target)
    print(json.dumps({
        "clock": time.monotonic() - clock, "processor": used() - processor,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
