#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fairseq2's own loader reads what ckpt writes, at every topology.

fairseq2's native extension isn't needed to load checkpoints; an empty module
replaces it.
"""

import shutil
import sys
import types

from golden_cases import Topology, all_units, cut
from support import (DATA, Failure, Skip, Suite, check, compare, from_torch)

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
    """Written at one topology, loaded at another: each rank gets its whole
    part."""
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


def test_many_files(folder, unit):
    """From 256 files on, record headers are computed when a checkpoint is
    opened, and read before payload is. The peer's files, 512 of ours, and those
    converted back have the same bytes; a changed header is found by everything
    that reads payload."""
    many, back = folder / "many", folder / "back"
    CKPT.ok("reshard", unit.path, many, "--dp", 128)
    files = sorted(many.glob("step_*/*/pp_*/tp_*/sdp_*.pt"))
    check(len(files) >= 256, f"{len(files)} files")
    CKPT.ok("verify", unit.path, many)
    CKPT.ok("reshard", many, back, "--dp", 1)
    CKPT.ok("verify", unit.path, back)
    first = files[0].read_bytes()
    # The name in the local header of the first storage.
    at = first.rindex(b"PK\3\4", 0, first.index(b"/data/0FB")) + 30
    files[0].write_bytes(first[:at] + b"X" + first[at + 1:])
    CKPT.ok("inspect", many)
    why = "names another record"
    for words in (("verify", unit.path, many), ("verify", many),
                  ("reshard", many, folder / "out", "--dp", 1),
                  ("reshard", many, folder / "out", "--dp", 1, "--dry-run")):
        found = CKPT.run(*words)
        check(found.code != 0 and why in found.out + found.err, found)
    files[0].write_bytes(first)
    # One pickle serves many files, but only where it is the same.
    twin = files[-1].read_bytes()
    files[-1].write_bytes(twin.replace(b"_rebuild_tensor", b"_rebuild_tensoR"))
    found = CKPT.run("inspect", many).want(4)
    check(str(files[-1]) in found.err and "CRC-32" in found.err, found)
    files[-1].write_bytes(twin)
    for path in files[1:3]:
        path.write_bytes(path.read_bytes()[:-1])
    CKPT.run("inspect", many).want(4)
    check(str(files[1]) in CKPT.run("inspect", many).err,
          "the first damaged file is not the one that is told")


PAIRS = [(Topology(1, 1), Topology(2, 1)), (Topology(2, 1), Topology(1, 1)),
         (Topology(2, 1), Topology(2, 1)), (Topology(2, 3), Topology(1, 1)),
         (Topology(1, 3), Topology(2, 2))]


def can_shard(unit, tp):
    dims = unit.info["shard_dims"]
    return tp == 1 or dims and "tied" not in unit.name and all(
        unit.model[n].shape[d] % tp == 0 for n, d in dims.items()
        if n in unit.model)


def test_cut_configuration(folder):
    """ckpt refuses every truncated model.yaml that PyYAML refuses."""
    try:
        import yaml
    except ImportError as error:
        raise Skip("PyYAML is not installed") from error
    source = DATA / "fairseq2_native/llama_pp2tp2/ckpt"
    copy = folder / "ckpt"
    shutil.copytree(source, copy, symlinks=True)
    text = (source / "model.yaml").read_bytes()
    (copy / "model.yaml").unlink()
    refused = 0
    for size in range(1, len(text), 3):
        (copy / "model.yaml").write_bytes(text[:size])
        try:
            yaml.safe_load(text[:size])
            continue
        except yaml.YAMLError:
            refused += 1
        result = CKPT.run("verify", copy, "--quick")
        check(result.code not in (0, 70), f"{text[:size][-30:]}: {result}")
    check(refused > 50, f"only {refused} were refused")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("a cut model.yaml", test_cut_configuration)
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
        if unit.name.endswith(("llama_pp2tp2", "llama_tp2dp2_fsdp2")):
            suite.add(f"{unit.name}: many files", test_many_files, unit)
        # It promotes bf16 to f32 where FSDP1 left float32 empties.
        if not buffers and "fsdp1" not in unit.name and (
                "legacy046" not in unit.name):
            suite.add(f"{unit.name}: like the source", test_same_as_source,
                      unit, Topology(1, 1))


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
