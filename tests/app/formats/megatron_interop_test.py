#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron-core itself, the version that most goldens are from and the newest,
loads what ckpt writes as megatron_torch_dist, on one to four processes, at
other topologies than it was written for, and every element matches the
goldens."""

import importlib.util
import json
import pickle
import re
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from megatron_steps_test import adam, number
from peer import Peer
from support import DATA, Failure, Skip, Suite, check, check_equal

CKPT = None
GOLDENS = DATA / "megatron_torch_dist"


# Each has its own form of the common part, of flat buffers and of groups.
CORES = {"0.16": None, "0.19": Path(sys.prefix) / "megatron_core_0.19.2"}
PROGRAMS = {core: Peer("megatron_peer.py",
                       **({"PYTHONPATH": str(folder)} if folder else {}))
            for core, folder in CORES.items()}


def require_peer(core="0.16"):
    folder = CORES[core]
    if not (folder.exists() if folder else
            importlib.util.find_spec("megatron") is not None):
        raise Skip(f"megatron-core {core} is not installed")


def expected_files(case, data):
    names = ("expected.safetensors", "expected_optim.safetensors")
    return [str(data / case / name) for name in names
            if (data / case / name).exists()]


def iteration_of(path):
    inner = list(path.glob("iter_*"))
    return inner[0] if inner else path


def run_peer(kind, path, expected, topology, world, case, model=None,
             core="0.16", **more):
    description = json.loads((case / "case.json").read_text())
    model = model or description.get("model") or {}
    wrong = PROGRAMS[core].ask(
        dict(kind=kind, path=str(iteration_of(path)), expected=expected,
             topology=topology, world=world, model=model,
             gated=model.get("swiglu", True), **more))
    if wrong:
        raise Failure(f"{kind} of megatron-core {core} on {world} processes "
                      f"({topology}): {wrong}")


# case, what ckpt writes, (kind, topology, processes) of each load
CASES = (
    ("gpt_tp2_pp2_v0161", "--tp 4 --pp 1", (
        ("plain", {}, 1), ("gpt", {"tp": 1, "pp": 2}, 2))),
    ("gpt_tp2_pp2_v0161", "--tp 1 --pp 4 --dp 2", (
        ("gpt", {"tp": 4}, 4), ("keys", {"tp": 2}, 4))),
    ("gpt_common_state_tp2_v0190", "--tp 4 --pp 2 --dp 1", (
        ("plain", {}, 1), ("gpt", {"tp": 2, "pp": 2}, 4))),
    ("moe_tp1_ep2_pp2_v0161", "--tp 2 --pp 1 --dp 2", (
        ("gpt", {"ep": 2}, 2), ("keys", {"tp": 4}, 4))),
    ("moe_nonhomogeneous_optim_v0161", "--tp 2 --pp 2 --dp 1 --ep 1", (
        ("optim", {"ep": 2}, 2),)),
    ("gpt_optim_fully_reshardable_v0161", "--tp 1 --pp 2 --dp 2", (
        ("optim", {"tp": 2}, 4), ("keys", {"tp": 2}, 2))),
    ("gpt_optim_dp_reshardable_v0161", "--tp 2 --pp 2 --dp 1", (
        ("optim", {"tp": 2}, 4),)),
    ("gpt_singleton_shards_tp2_v0161", "--tp 4 --pp 2 --dp 1", (
        ("plain", {}, 1),)),
    ("gpt_flat_optim_model_space_v0140", "--tp 4 --pp 2 --dp 1", (
        ("plain", {}, 1), ("keys", {"tp": 2}, 4))),
    ("handmade_w4_v0161", "--dp 2", (("plain", {}, 1),)),
    ("handmade_flat_w4_v0140", "--dp 3", (("plain", {}, 1),)),
    ("handmade_w2_v0190", "--dp 1", (("plain", {}, 1),)),
    ("minimal_writer_emulated", "--tp 2 --pp 2 --dp 1", (
        ("gpt", {"tp": 4}, 4),)),
)


def test_case(scratch, core, case, options, loads):
    require_peer(core)
    out = scratch / "out"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, *options.split())
    CKPT.ok("verify", out, "--deep")
    for kind, topology, world in loads:
        run_peer(kind, out, expected_files(case, GOLDENS), topology, world,
                 GOLDENS / case, core=core)


# Optimizer state in forms that today's core no longer accepts.
RESCUES = (
    ("megatron_torch_dist", "gpt_flat_optim_model_space_v0140",
     {"tp": 2, "pp": 2}, 4),
    ("megatron_torch_dist", "gpt_optim_float16_v0161", {"tp": 2}, 2),
    ("megatron_zarr", "gpt_zarr_optim_model_space_v0090", {"tp": 2}, 2),
    ("megatron_zarr", "gpt_zarr_optim_bucket_space_v0090", {"tp": 2}, 4),
)


def test_rescue(scratch, core, form, case, topology, world):
    require_peer(core)
    out = scratch / "out"
    source = DATA / form / case
    CKPT.ok("convert", source / "ckpt", out, "--to", "megatron_torch_dist",
            "--optim", "fully_reshardable")
    run_peer("optim", out, expected_files(case, DATA / form), topology, world,
             source, main_weight="param", core=core)


# A distributed checkpoint with its optimizer, as ranks' files of a topology.
TO_RANKS = (
    ("megatron_torch_dist", "gpt_optim_fully_reshardable_v0161",
     {"tp": 2, "pp": 2}, 4),
    ("megatron_torch_dist", "gpt_optim_dp_reshardable_v0161", {"tp": 2}, 4),
    ("megatron_torch_dist", "gpt_optim_tied_buckets_tp2_pp2_v0161",
     {"pp": 2}, 2),
    ("megatron_torch_dist", "moe_nonhomogeneous_optim_v0161", {"ep": 2}, 2),
    ("megatron_torch_dist", "gpt_optim_float16_v0161", {"tp": 2}, 2),
    ("megatron_zarr", "gpt_zarr_optim_model_space_v0090", {"pp": 2}, 2),
    ("megatron_zarr", "gpt_zarr_optim_bucket_space_v0090", {"tp": 2}, 2),
)


def test_to_ranks(scratch, core, form, case, topology, world):
    """Megatron-Core's model and optimizer load ranks' files, and hold the
    golden's values: each main weight, each moment, the step count."""
    require_peer(core)
    out, source = scratch / "out", DATA / form / case
    grid = {"tp": 1, "pp": 1, **topology}
    ranks = grid["tp"] * grid["pp"]
    sizes = [part for key, size in {**grid, "dp": world // ranks}.items()
             for part in (f"--{key}", size)]
    CKPT.ok("convert", source / "ckpt", out, "--to", "megatron_legacy", *sizes)
    CKPT.ok("verify", source / "ckpt", out)
    CKPT.ok("verify", out, "--deep")
    flat = "float16" not in case
    run_peer("legacy", out, expected_files(case, DATA / form), topology, world,
             source, flat=flat, step=7, core=core,
             main_weight="param" if flat else "fp32_param")


def test_training(scratch, form, case, topology, world):
    """Megatron-LM's own load_checkpoint continues from ranks' files and from a
    distributed checkpoint: model, optimizer, iteration."""
    require_peer("0.19")
    out, source = scratch / "out", DATA / form / case
    grid = {"tp": 1, "pp": 1, **topology}
    ranks = grid["tp"] * grid["pp"]
    sizes = [part for key, size in {**grid, "dp": world // ranks}.items()
             for part in (f"--{key}", size)]
    flat = "float16" not in case
    for to, main in (("megatron_legacy", "param" if flat else "fp32_param"),
                     ("megatron_torch_dist", "param")):
        if to == "megatron_torch_dist" and not flat:
            continue
        path = out / to
        out.mkdir(exist_ok=True)
        options = ["--optim", "fully_reshardable"] if "dist" in to else []
        CKPT.ok("convert", source / "ckpt", path, "--to", to, *sizes, *options)
        run_peer("training", path, expected_files(case, DATA / form), topology,
                 world, source, core="0.19", flat=flat, step=7, root=str(path),
                 form="torch" if to == "megatron_legacy" else "torch_dist",
                 main_weight=main)


LLAMA = dict(layers=2, hidden=12, heads=6, groups=2, kv=4, ffn=20, vocab=48,
             seq=16, swiglu=True, bias=False, tied=False, pos="rope",
             norm="RMSNorm")


def stacked(paths, target):
    """The layers of a model without experts, under sharded keys."""
    layers, whole = {}, {}
    for path in paths:
        for name, tensor in load_file(path).items():
            state, key = "", name
            if not name.startswith(("decoder", "embedding", "output")):
                state, key = name.split(".", 1)
                state = f"optimizer.state.{state}."
            found = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", key)
            if found:
                layers.setdefault(f"{state}decoder.layers.{found[2]}", {})[
                    int(found[1])] = tensor
            else:
                whole[state + key] = tensor
    for key, parts in layers.items():
        whole[key] = torch.stack([parts[i] for i in range(len(parts))])
    save_file(whole, target)
    return [str(target)]


def test_legacy(scratch):
    """Years-old ranks' files, with flat buffers, become a checkpoint that
    today's model and optimizer load."""
    require_peer()
    case = DATA / "megatron_legacy/llama_te_tp2_dp2_distopt"
    out = scratch / "out"
    # Its args name a class that only later cores have.
    CKPT.ok("convert", case / "ckpt", out, "--to", "megatron_torch_dist",
            "--exclude", "args")
    expected = stacked(
        expected_files("llama_te_tp2_dp2_distopt", DATA / "megatron_legacy"),
        scratch / "expected.safetensors")
    for kind, topology, world in (("gpt", {"tp": 1, "pp": 2}, 2),
                                  ("optim", {"tp": 2, "pp": 1}, 4)):
        run_peer(kind, out, expected, topology, world, case, model=LLAMA,
                 main_weight="param")


def test_adam_steps(scratch):
    """Ranks' files whose optimizer is torch's AdamW: today's distributed
    optimizer continues counting where that stopped."""
    require_peer()
    name, out = "llama_te_tp2_pp2", scratch / "out"
    CKPT.ok("convert", adam(scratch / "source", number(5.0)), out, "--to",
            "megatron_torch_dist")
    expected = stacked(expected_files(name, DATA / "megatron_legacy"),
                       scratch / "expected.safetensors")
    model = dict(LLAMA, layers=3, hidden=16, heads=8, groups=4, vocab=32)
    run_peer("optim", out, expected, {"tp": 2}, 2,
             DATA / "megatron_legacy" / name, model=model, main_weight="param",
             step=5)


def test_to_legacy(scratch):
    """Keys become the modules of each rank: layers of a stage by their local
    numbers, both halves of a gated layer, norms under the local spec's names."""
    case = GOLDENS / "gpt_tp2_pp2_v0161"
    out = scratch / "out"
    CKPT.ok("convert", case / "ckpt", out, "--to", "megatron_legacy")
    full = load_file(case / "expected.safetensors")
    layers = "decoder.layers."
    for stage in (0, 1):
        for rank in (0, 1):
            # The args hold classes of megatron-core: only the model is read.
            model = load_model(
                out / f"iter_0000007/mp_rank_0{rank}_00{stage}"
                / "model_optim_rng.pt")
            for local in (0, 1):
                layer = 2 * stage + local
                prefix = f"{layers}{local}."
                fc1 = full[layers + "mlp.linear_fc1.weight"][layer]
                rows = [fc1[half * 12 + rank * 6:half * 12 + rank * 6 + 6]
                        for half in (0, 1)]
                proj = full[layers + "self_attention.linear_proj.weight"]
                norm = full[layers
                            + "self_attention.linear_qkv.layer_norm_weight"]
                for name, want in (
                        ("mlp.linear_fc1.weight", torch.cat(rows)),
                        ("self_attention.linear_proj.weight",
                         proj[layer][:, rank * 4:rank * 4 + 4]),
                        ("input_layernorm.weight", norm[layer])):
                    check(torch.equal(model[prefix + name], want),
                          f"{prefix + name} of stage {stage}, rank {rank}")


def load_model(path):
    """The state dict in a torch.save file, whatever classes are in it."""
    class Anything:
        def __init__(self, *args, **options):
            pass

        def __setstate__(self, state):
            pass

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if module.startswith(("torch", "collections", "_codecs")):
                return super().find_class(module, name)
            return Anything

    shim = types.ModuleType("shim")
    shim.Unpickler, shim.load = Unpickler, pickle.load
    return torch.load(path, weights_only=False, pickle_module=shim)["model"]


def test_args(scratch):
    """The common part has the new topology, and everything else as before."""
    require_peer()
    out = scratch / "out"
    case = "gpt_tp2_pp2_v0161"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, "--tp", 1, "--pp", 1,
            "--dp", 2)
    run_peer("plain", out, expected_files(case, GOLDENS), {}, 1,
             GOLDENS / case, common={"iteration": 7, "checkpoint_version": 3.0},
             args={"tensor_model_parallel_size": 1,
                   "pipeline_model_parallel_size": 1,
                   "data_parallel_size": 2, "world_size": 2,
                   "padded_vocab_size": 24, "train_samples": 2**33,
                   "data_path": ["data/part-0", "data/part-1"]})


def test_vocabulary(scratch):
    """16 ranks don't divide 24 rows: zeros are added up to the next multiple of
    8 * 16, and the model at two ranks loads without them."""
    require_peer()
    out = scratch / "out"
    case = "gpt_tp2_pp2_v0161"
    result = CKPT.run("reshard", GOLDENS / case / "ckpt", out, "--tp", 16)
    result.want(5)  # no other tensor is divided by 16
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, "--tp", 5, "--pp", 1,
            "--keys", "embedding.word_embeddings.weight")
    catalog = CKPT.inspect(out)
    check_equal([t["shape"] for t in catalog["tensors"]], [[40, 8]], "rows")
    run_peer("vocabulary", out, expected_files(case, GOLDENS), {}, 1,
             GOLDENS / case)


def test_carried(scratch):
    """Nothing changes: common.pt is the same file."""
    out = scratch / "out"
    source = GOLDENS / "gpt_tp2_pp2_v0161/ckpt"
    CKPT.ok("reshard", source, out)
    inner = "iter_0000007/common.pt"
    check((out / inner).read_bytes() == (source / inner).read_bytes(),
          "common.pt was rewritten")
    tracker = "latest_checkpointed_iteration.txt"
    check_equal((out / tracker).read_bytes(), b"7", tracker)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for core in CORES:
        for case, options, loads in CASES:
            suite.add(f"{core}: {case} {options}", test_case, core, case,
                      options, loads)
        for form, case, topology, world in RESCUES:
            suite.add(f"{core}: rescue {case}", test_rescue, core, form, case,
                      topology, world)
        for form, case, topology, world in TO_RANKS:
            suite.add(f"{core}: ranks' files of {case}", test_to_ranks, core,
                      form, case, topology, world)
    for form, case, topology, world in TO_RANKS[:3] + TO_RANKS[4:5]:
        suite.add(f"Megatron-LM continues {case}", test_training, form, case,
                  topology, world)
    suite.add("legacy", test_legacy)
    suite.add("legacy with torch's Adam", test_adam_steps)
    suite.add("to legacy", test_to_legacy)
    suite.add("args", test_args)
    suite.add("vocabulary", test_vocabulary)
    suite.add("carried", test_carried)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
