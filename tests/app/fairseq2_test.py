#!/usr/bin/env python3
"""fairseq2's own loader reads what ckpt writes, at every topology.

fairseq2's native extension isn't needed to load checkpoints; an empty module
stands for it.
"""

import sys
import types

from golden_cases import Topology, all_units, cut
from support import Failure, Skip, Suite, compare, from_torch

CKPT = None


def make_loader():
    """lazy_load(model directory, shard dims, gangs) of fairseq2."""
    stub = types.ModuleType("fairseq2n")
    stub.DOC_MODE, stub.__version__ = True, "0.8.1"
    sys.modules["fairseq2n"] = stub
    try:
        from fairseq2 import io
        from fairseq2.file_system import NativeLocalFileSystem
        from fairseq2.model_checkpoint import ModelCheckpointLoadOptions
        from fairseq2.model_checkpoint.native import (
            _NativeModelCheckpointLoader)
    except ImportError as error:
        raise Skip(f"fairseq2 is not installed: {error}") from error
    files = NativeLocalFileSystem()
    loader = _NativeModelCheckpointLoader(
        files, io._TorchTensorFileLoader(files), None)

    def load(path, dims, gangs):
        return loader.lazy_load(path, dims,
                                ModelCheckpointLoadOptions(gangs=gangs))

    return load


def gangs_of(topology, t, s):
    from fairseq2.device import CPU
    from fairseq2.gang import FakeGang, Gangs

    def gang(rank, size):
        return FakeGang(CPU, rank=rank, size=size)

    return Gangs(
        root=gang(s * topology.tp + t, topology.tp * topology.dp),
        dp=gang(s, topology.dp), rdp=gang(0, 1), sdp=gang(s, topology.dp),
        tp=gang(t, topology.tp), pp=gang(0, 1))


def test_loads(folder, unit, written, wanted):
    """Written at one topology, each rank of another gets its part whole."""
    load = make_loader()
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *written.options)
    model = next(out.glob("step_*/model"))
    dims = {k: v for k, v in unit.info["shard_dims"].items()
            if k in unit.model}
    for t in range(wanted.tp):
        got = {name: from_torch(tensor) for name, tensor in load(
            model, dims, gangs_of(wanted, t, 0))}
        # The loader never cuts for data parallelism: FSDP does it later.
        want = {name: cut(tensor, dims.get(name), True, wanted, t, 0)
                for name, tensor in unit.model.items()}
        compare(got, want, f"rank tp={t} of {wanted.tp}")


def test_same_as_source(folder, unit, topology):
    """The loader gives the same from the source as from what ckpt wrote."""
    load = make_loader()
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *topology.options)
    dims = unit.info["shard_dims"]
    source = next(unit.path.glob("step_*/model"))
    result = next(out.glob("step_*/model"))
    parts = [[(name, from_torch(tensor)) for name, tensor in load(
        path, dims, gangs_of(Topology(1, 1), 0, 0))]
        for path in (source, result)]
    if [n for n, _ in parts[0]] != [n for n, _ in parts[1]]:
        raise Failure("names or their order differ")
    compare(dict(parts[1]), dict(parts[0]), "ckpt's against the source")


PAIRS = [(Topology(1, 1), Topology(2, 1)), (Topology(2, 1), Topology(1, 1)),
         (Topology(2, 1), Topology(2, 1)), (Topology(2, 3), Topology(1, 1)),
         (Topology(1, 3), Topology(2, 2))]


def can_shard(unit, tp):
    dims = unit.info["shard_dims"]
    return tp == 1 or dims and "tied" not in unit.name and all(
        unit.model[n].shape[d] % tp == 0 for n, d in dims.items()
        if n in unit.model)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for unit in all_units():
        if unit.format != "fairseq2":
            continue
        buffers = unit.info.get("replicated_buffers")
        for written, wanted in PAIRS:
            if buffers and written.dp > 1:
                continue  # what the peer's loader can't read
            if can_shard(unit, written.tp) and can_shard(unit, wanted.tp):
                suite.add(f"{unit.name}: {written} to {wanted}", test_loads,
                          unit, written, wanted)
        # It promotes bf16 to f32 where FSDP1 left float32 empties.
        if not buffers and "fsdp1" not in unit.name and (
                "legacy046" not in unit.name):
            suite.add(f"{unit.name}: like the source", test_same_as_source,
                      unit, Topology(1, 1))


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
