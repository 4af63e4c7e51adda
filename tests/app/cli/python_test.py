#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package against torch and safetensors.

Expected values are the goldens' own (what the peers wrote), or what torch and
safetensors load; dcp.load by way of ckpt is held against torch's own reader.
"""

import gc
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from support import DATA, Skip, Suite, check, check_equal

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))

CASES = ["fairseq2_native/qwen25_tp4dp1_mixed", "safetensors/hf_sharded",
         "hf/llama", "dcp/fsdp2_w2_adamw", "meta/llama",
         "megatron_legacy/llama_te_tp2_pp2",
         "megatron_torch_dist/gpt_tp2_pp2_v0161",
         "megatron_zarr/gpt_zarr_tp2_pp2_v0090"]

ckpt = None


def expected(case):
    return load_file(DATA / case / "expected.safetensors")


def bits(tensor):
    flat = tensor.clone(memory_format=torch.contiguous_format).flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(got, want, what):
    check_equal((got.dtype, got.shape), (want.dtype, want.shape), what)
    check(bits(got) == bits(want), f"{what}: other bytes")


def shared(source, wanted):
    names = [name for name in wanted if name in source]
    check(names, "no name is that of the golden")
    return names


def whole(_folder, case):
    """Whole tensors, by torch() and by DLPack."""
    wanted = expected(case)
    with ckpt.open(DATA / case / "ckpt") as source:
        for name in shared(source, wanted):
            part = source[name].read()
            same(part.torch(), wanted[name], name)
            if part.nbytes:
                shared_by = torch.from_dlpack(part)
                same(shared_by, wanted[name], name + " (DLPack)")
                # jax copies unaligned memory.
                check_equal(shared_by.data_ptr() % 64, 0, name)


def slices(_folder, case):
    """Random boxes equal what torch's own indexing returns."""
    chosen = random.Random(case)
    wanted = expected(case)
    with ckpt.open(DATA / case / "ckpt") as source:
        for name in shared(source, wanted):
            for _ in range(4):
                key = []
                for size in wanted[name].shape:
                    a, b = sorted((chosen.randint(0, size),
                                   chosen.randint(0, size)))
                    key.append(chosen.choice(
                        [slice(a, b), slice(None), slice(a, None)] +
                        ([chosen.randrange(-size, size)] if size else [])))
                if chosen.random() < 0.3:
                    key = [..., *key[-1:]]
                if not wanted[name].shape:
                    key = [...]
                same(source[name][tuple(key)].torch(), wanted[name][tuple(key)],
                     f"{name}{key}")


def loads(_folder, case):
    """dcp.load into a live model's tensors."""
    wanted = expected(case)
    from ckpt.dcp import Reader
    reader = Reader(DATA / case / "ckpt")
    state = {name: torch.empty_like(tensor)
             for name, tensor in wanted.items()
             if name in reader._source and tensor.numel()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    for name, tensor in state.items():
        same(tensor, wanted[name], name)


# Goldens that are no one checkpoint, or whose tensors are flat without
# --flat-params.
APART = ("torch_pt/", "torch_legacy/", "fsdp/", "dcp/fsdp1_w4_local",
         "safetensors/all_dtypes")


def loads_goldens(_):
    """dcp.load from each golden whose tensors its own framework has saved."""
    from ckpt.dcp import Reader
    tried = set()
    for path in sorted(DATA.glob("*/*/expected.safetensors")):
        case = str(path.parent.relative_to(DATA))
        if case.startswith(APART):
            continue
        wanted = load_file(path)
        reader = Reader(path.parent / "ckpt")
        check(wanted.keys() <= reader._source.keys(), f"{case}: names")
        state = {name: torch.empty_like(tensor)
                 for name, tensor in wanted.items() if tensor.numel()}
        dcp.load(state, storage_reader=reader, no_dist=True)
        for name, tensor in state.items():
            same(tensor, wanted[name], f"{case}: {name}")
        tried.add(reader._source.format)
    check(len(tried) >= 14, f"only the formats {sorted(tried)}")


def alive(_):
    """Memory outlives the array, the tensor and the checkpoint it came from."""
    case = "hf/llama"
    wanted = expected(case)
    name, want = max(wanted.items(), key=lambda item: item[1].numel())
    source = ckpt.open(DATA / case / "ckpt")
    part = source[name].read()
    by_dlpack, by_bytes = torch.from_dlpack(part), part.torch()
    view = part.bytes
    capsule = part.__dlpack__()  # taken by nobody
    source.close()
    del part, source, capsule
    gc.collect()
    same(by_dlpack, want, name)
    same(by_bytes, want, name)
    check_equal(bytes(view), want.view(torch.uint8).numpy().tobytes(), name)


def saves(folder):
    """safetensors and torch load what save() writes."""
    tensors = {
        "bf16": torch.randn(3, 5).bfloat16(), "f32": torch.randn(7),
        "turned": torch.randn(4, 6).T, "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3), "i64": torch.arange(9).reshape(3, 3),
        "bool": torch.tensor([True, False]),
        "f8": torch.randn(16).to(torch.float8_e4m3fn)}
    arrays = dict(tensors, numpy=np.arange(12, dtype=np.int16).reshape(3, 4),
                  striped=np.arange(12.0)[::2])
    tensors.update(numpy=torch.from_numpy(arrays["numpy"]),
                   striped=torch.from_numpy(arrays["striped"].copy()))
    ckpt.save(arrays, folder / "a.safetensors")
    for name, got in load_file(folder / "a.safetensors").items():
        same(got, tensors[name], name)
    ckpt.save_async(arrays, folder / "a.pt").result()
    for name, got in torch.load(folder / "a.pt").items():
        same(got, tensors[name], name)
    again = ckpt.save_async(arrays, folder / "a.pt")
    check(isinstance(again.exception(), ckpt.errors.UnfaithfulError),
          f"an existing file was replaced: {again.exception()}")
    phases(folder)
    ckpt.save(arrays, folder / "dcp", "dcp")
    with ckpt.open(folder / "dcp") as source:
        check_equal(set(source), set(tensors), "names")
    try:
        ckpt.save({"a": object()}, folder / "no.safetensors")
    except ckpt.errors.UsageError as error:
        check_equal(error.tensor, "a", "which tensor")
    else:
        check(False, "an object was saved")


def phases(folder):
    """What is saved is what was there in phase 1. Without phase 2 nothing is
    saved, even when the process is killed, and the next save replaces it."""
    array = np.arange(12, dtype="f4")
    want = array.copy()
    path = folder / "phases"
    with ckpt.begin_save({"a": array}, path, "dcp"):
        array[:] = 7
        check(not path.exists(), "it is there before its second phase")
    with ckpt.open(path) as source:
        check((np.from_dlpack(source["a"].read()) == want).all(), "copied")
    path = folder / "dropped"
    ckpt.begin_save({"a": array}, path, "dcp").drop()
    child = os.fork()
    if child == 0:
        pending = ckpt.begin_save({"a": array}, path, "dcp")
        while not pending.written():
            pass
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    check(not path.exists(), "a save that was killed is there")
    ckpt.begin_save({"a": array}, path, "dcp").finish()
    check(path.exists() and not list(folder.glob(".dropped*staging")),
          "what the killed one left is in the way")


def errors(folder):
    """Each kind of error has its class, its fields and its built-in base."""
    def raised(kind, base, call, *args, **options):
        try:
            call(*args, **options)
        except kind as error:
            check(isinstance(error, base), f"{kind} is not a {base}")
            return error
        raise AssertionError(f"no {kind} from {call}")
    lost = raised(ckpt.errors.MissingError, FileNotFoundError, ckpt.open,
                  folder / "nowhere")
    check_equal((lost.status, lost.path), (3, str(folder / "nowhere")),
                "fields")
    bad = folder / "bad.safetensors"
    bad.write_bytes(b"\xff" * 64)
    raised(ckpt.errors.DamagedError, Exception, ckpt.open, bad)
    raised(ckpt.errors.UsageError, ValueError, ckpt.convert, bad, bad, to="x")
    raised(ckpt.errors.MissingError, FileNotFoundError, ckpt.reshard,
           folder / "nowhere", folder / "out", tp=2)
    with ckpt.open(DATA / "hf/llama/ckpt") as source:
        name = next(iter(source))
        raised(IndexError, Exception, source[name].__getitem__, (0, 0, 0, 0))
    raised(ckpt.errors.UsageError, ValueError, source[name].read)


def commands(folder):
    """convert, verify, diff, digest, scan; progress is reported."""
    source, out = DATA / "hf/llama/ckpt", folder / "out"
    told = []
    done = ckpt.convert(source, out, to="dcp", dp=2,
                        progress=lambda at, all: told.append((at, all)))
    check(done.written and done.tensors, f"{done}")
    check(told and told[-1][0] == told[-1][1] > 0, f"progress: {told}")
    check(ckpt.verify(out) and ckpt.verify(source, out), "verify")
    check(ckpt.diff(source, out).same, f"{ckpt.diff(source, out)}")
    check_equal(set(ckpt.digest(source).values()),
                set(ckpt.digest(out).values()), "digests")
    check(ckpt.scan(source), "scan")
    deltas(source, folder)
    cast = ckpt.convert(source, folder / "f16", to="safetensors", dtype="f64")
    check(cast.tensors and ckpt.diff(source, folder / "f16"), "a cast differs")


def deltas(source, folder):
    """What diff wrote is in fields, whatever its form."""
    tuned = folder / "tuned"
    shutil.copytree(source, tuned)
    state = load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    norm = "model.norm"
    for key in (name, norm):
        state[key + ".weight"] = state[key + ".weight"] + 1
    save_file(state, tuned / "model.safetensors", {"format": "pt"})
    for options in ({}, {"as_lora": 2}, {"lossless": True}):
        out = folder / "delta.safetensors" if not options else folder / "delta"
        planned = ckpt.diff(source, tuned, write=out, dry_run=True, **options)
        check(not out.exists(), f"{options}: nothing is written")
        made = ckpt.diff(source, tuned, write=out, **options)
        check(isinstance(made, ckpt.Delta) and made.path == str(out), f"{made}")
        sizes = [one["bytes"] for one in made.written]
        files = [out] if out.is_file() else [
            out / one["path"] for one in made.written]
        check_equal(sizes, [f.stat().st_size for f in files], "sizes")
        most = [one["bytes"] for one in planned.written]
        if options.get("lossless"):
            check(most >= sizes and made.files > 1 and made.xored > 0, f"{made}")
        else:
            check_equal(most, sizes, f"{options}: sizes of a dry run")
        if "as_lora" in options:
            check_equal([m["name"] for m in made.modules], [name], "modules")
            check(0 <= made.modules[0]["error"] < 1e-3, f"{made.modules}")
            check_equal((made.saved, planned.saved), ([norm], [norm]), "whole")
            shutil.rmtree(out)
        elif not options:
            check_equal(made.tensors, len(state), "tensors")


def shards(_):
    """A rank's shards are cut as torch.chunk cuts, and join to the whole."""
    case = "fairseq2_native/qwen25_tp4dp1_mixed"
    with ckpt.open(DATA / case / "ckpt") as source:
        ranks = [dict(source.shards(tp=2, rank=rank)) for rank in (0, 1)]
        for name, tensor in source.items():
            parts = [rank[name].torch() for rank in ranks]
            want = tensor.read().torch()
            dims = [d for d in range(want.dim())
                    if parts[0].shape[d] != want.shape[d]]
            check(len(dims) < 2, f"{name}: {parts[0].shape}")
            same(torch.cat(parts, dims[0]) if dims else parts[0], want, name)
    # With a mixture of experts, each rank has the experts and layers of
    # Megatron's files.
    case = DATA / "megatron_legacy/moe_seq_pp2_ep2_release/ckpt"
    with ckpt.open(case) as source:
        for pp, ep in ((0, 0), (0, 1), (1, 0), (1, 1)):
            file = next(case.glob(f"*/mp_rank_00_00{pp}_00{ep}/*.pt"))
            with ckpt.open(file) as peer:
                experts = sum(".experts." in name and ".weight" in name
                              and "router" not in name for name in peer)
            mine = dict(source.shards(pp=2, ep=2, pp_rank=pp, ep_rank=ep))
            check_equal(sum(".experts." in name for name in mine), experts,
                        f"experts of stage {pp}, rank {ep}")


def typed(folder):
    """mypy finds nothing."""
    mypy = ROOT / ".venv/mypy"  # tests/requirements/mypy.txt
    if not mypy.exists():
        raise Skip("mypy is not to be had; types are not checked")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir",
         str(folder / "cache"), "--follow-imports=silent",
         "--disable-error-code=no-untyped-call",
         "--disable-error-code=misc", "--disable-error-code=untyped-decorator",
         "--disable-error-code=import-not-found", str(ROOT / "python/ckpt")],
        env=dict(os.environ, PYTHONPATH=str(mypy)), capture_output=True,
        text=True)
    check_equal(ran.returncode, 0, f"mypy\n{ran.stdout}{ran.stderr}")


def prepare(suite, binary):
    global ckpt
    library = Path(binary.path).parent / "libckpt.so"
    if not library.exists():
        raise SystemExit(f"no library at {library}: build ckpt_shared")
    os.environ["CKPT_LIBRARY"] = str(library)
    os.environ["CKPT_BINARY"] = binary.path
    import ckpt as package
    import python_adapters
    import python_cases
    import python_dcp
    import python_parts
    import python_shards
    import python_use
    import python_values
    ckpt = package
    for case in CASES:
        for check_of in (whole, slices, loads):
            suite.add(f"{case}: {check_of.__name__}", check_of, case)
    for check_of in (loads_goldens, alive, saves, errors, commands, shards,
                     *python_values.CASES, *python_cases.CASES,
                     *python_adapters.CASES, *python_dcp.CASES,
                     *python_parts.CASES,
                     *python_shards.CASES, *python_use.CASES, typed):
        suite.add(check_of.__name__, check_of)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
