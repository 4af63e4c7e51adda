#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP's checkpoints (fsdp_dtensor).

Megatron-FSDP itself needs a GPU. What it saves is made here from the tensors of
megatron-core's own goldens, under the names that its savers give, on several
processes: megatron-core 0.16.1 determines where the boxes of unevenly sharded
DTensors are, and torch's DCP writes them.
"""

import importlib
import importlib.util
import random
import re
import shutil
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from dcp_support import run_ranks
from support import (
    DATA, Skip, Suite, check, check_equal, compare, from_torch, load_pt,
    read_safetensors)

warnings.filterwarnings("ignore")
CKPT = None
GOLDENS = DATA / "megatron_torch_dist"
DENSE, EXPERTS = "gpt_tp2_pp2_v0161", "moe_tp1_ep2_pp2_v0161"
WORLD = 3


def checkpoint_of(case):
    path = GOLDENS / case / "ckpt"
    return next(iter(path.glob("iter_*")), path)


def unstacked(case):
    """A separate parameter for each layer and each expert, gate and up of
    SwiGLU apart: what Megatron's converter to this format makes from sharded
    keys (tools/checkpoint/checkpoint_inspector.py)."""
    names = {}
    for key, tensor in load_file(
            GOLDENS / case / "expected.safetensors").items():
        layers = [(key, tensor)]
        if key.startswith("decoder.layers."):
            layers = [(key.replace(".layers.", f".layers.{i}."), part)
                      for i, part in enumerate(tensor)]
        experts = []
        for name, part in layers:
            if ".experts.experts." in name:
                name = name.replace(".experts.experts.", ".experts.")
                experts += [(f"{name}{e}", one) for e, one in enumerate(part)]
            else:
                experts.append((name, part))
        names.update(experts)
    return names


def split_gates(names):
    out = {}
    for name, tensor in names.items():
        if "mlp.linear_fc1.weight" in name or "experts.linear_fc1" in name:
            gate, up = tensor.chunk(2)
            out[name + "_w"], out[name + "_v"] = gate, up
        else:
            out[name] = tensor
    return out


def uneven(tensor, mesh, rng):
    """A rank's rows; some ranks have none."""
    world = dist.get_world_size()
    cuts = sorted(rng.randrange(len(tensor) + 1) for _ in range(world - 1))
    cuts = [0, *cuts, len(tensor)]
    rank = dist.get_rank()
    local = tensor[cuts[rank]:cuts[rank + 1]].clone()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False,
                              shape=tensor.shape, stride=tensor.stride())


def options_of(rng):
    return {"lr": rng.random(), "wd_mult": 1.0, "step": 3}


def save(folder, case, stages, norm):
    """One process of the job; ranks draw the same numbers."""
    rng = random.Random(case)
    mesh = init_device_mesh("cpu", (WORLD,))
    common = torch.load(checkpoint_of(case) / "common.pt", weights_only=False)
    args = common["args"]
    args.pipeline_model_parallel_size = stages
    args.normalization = norm
    if norm == "RMSNorm":  # otherwise rows that were never padding are cut
        args.vocab_size = 24
    names = weights(case, norm)
    if stages > 1:  # the second stage's layers are named like the first's
        half = args.num_layers // stages
        names = {name: tensor for name, tensor in names.items()
                 if not re.search(rf"layers\.[{half}-9]\.", name)}
    state = {
        "args": args, "checkpoint_version": 3.0, "iteration": 7,
        "model": {f"module.{name}": uneven(tensor, mesh, rng)
                  for name, tensor in names.items()},
        "optimizer": {
            "state": {f"module.module.module.{name}": {
                word: uneven(tensor.float() * factor, mesh, rng)
                for word, factor in (("exp_avg", 2), ("exp_avg_sq", 3))}
                for name, tensor in names.items()},
            "param_to_group_meta": {
                f"module.module.module.{name}": options_of(rng)
                for name in names}},
        "opt_param_scheduler": {"max_lr": 0.5, "num_steps": 9},
        "rng_state": {"(0, 0)": [{"seed": 1}]},
    }
    uneven_dtensor().preprocess_state_dict_for_uneven_dtensor(state)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))


def weights(case, norm="LayerNorm"):
    """The tensors that savers name; no norm biases for RMSNorm."""
    return {name: tensor for name, tensor in split_gates(
        unstacked(case)).items()
        if norm == "LayerNorm" or "norm" not in name
        or not name.endswith("bias")}


def uneven_dtensor():
    return importlib.import_module("megatron.core.distributed.fsdp.src."
                                   "megatron_fsdp.uneven_dtensor")


def make(folder, case, stages=1, norm="LayerNorm"):
    """Saved once, and copied for each test."""
    if importlib.util.find_spec("megatron") is None:
        raise Skip("megatron-core is not installed")
    uneven_dtensor()  # before there are several processes
    made = folder.parent / f"{case}_{stages}_{norm}"
    if not made.exists():
        made.mkdir()
        run_ranks(made, WORLD, save, [(made / "ckpt", case, stages, norm)])
    shutil.copytree(made / "ckpt", folder / "ckpt")
    return folder / "ckpt"


def keys(names):
    """As in torch_dist with singleton_local_shards."""
    return {re.sub(r"experts\.(linear_fc\d)\.weight(\d+)",
                   r"experts.experts.\2.\1.weight", name): tensor
            for name, tensor in names.items()}


def tensors_of(names):
    return {name: from_torch(tensor) for name, tensor in names.items()}


def test_read(folder, case):
    source = make(folder, case)
    document = CKPT.inspect(source)
    check_equal(document["format"], "megatron_fsdp_dtensor", "format")
    names = keys(weights(case))
    want = tensors_of(names)
    CKPT.ok("unshard", source, folder / "out.safetensors", "--model-only")
    compare(read_safetensors(folder / "out.safetensors"), want, "the model")
    moments = {}
    for name, tensor in names.items():
        for word, factor in (("exp_avg", 2), ("exp_avg_sq", 3)):
            moments[f"optimizer.state.{word}.{name}"] = from_torch(
                tensor.float() * factor)
    CKPT.ok("unshard", source, folder / "opt.safetensors", "--optim-only")
    compare(read_safetensors(folder / "opt.safetensors"), moments, "moments")
    row = next(row for row in document["tensors"] if row["kind"] == "optim")
    check(row["param"] in want, f"param of {row}")
    CKPT.ok("verify", source, "--deep")


def check_plain(path, case):
    from megatron.core import dist_checkpointing

    got = dist_checkpointing.load_plain_tensors(str(path))
    compare(tensors_of({name: one for name, one in got.items()
                        if isinstance(one, torch.Tensor)}), tensors_of(load_file(
        GOLDENS / case / "expected.safetensors")), "sharded keys")


def test_to_torch_dist(folder, case):
    """Stacked again: the keys that megatron-core itself saved."""
    source = make(folder, case)
    out = folder / "out"
    CKPT.ok("convert", source, out, "--to", "megatron_torch_dist", "--tp", 2,
            "--pp", 1, "--model-only")
    (folder / "init").unlink(missing_ok=True)
    run_ranks(folder, 1, check_plain, [(next(
        iter(out.glob("iter_*")), out), case)])
    args = load_pt(next(iter(out.glob("**/common.pt"))),
                   weights_only=False)["args"]
    check(args is not None, "args are there")


def test_to_hf(folder, case, family):
    """Directly, and by way of torch_dist."""
    source = make(folder, case, norm="RMSNorm")
    CKPT.ok("convert", source, folder / "dist", "--to", "megatron_torch_dist",
            "--model-only")
    made = []
    for name, path in (("a", source), ("b", folder / "dist")):
        CKPT.ok("convert", path, folder / name, "--to", "safetensors",
                "--dialect", "hf", "--family", family, "--model-only")
        tensors = {}
        for file in (folder / name).glob("*.safetensors"):
            tensors |= read_safetensors(file)
        made.append(tensors)
    compare(made[0], made[1], "names of Hugging Face")
    gate = weights(case)["decoder.layers.0.mlp.linear_fc1.weight_w"]
    check_equal(made[0]["model.layers.0.mlp.gate_proj.weight"],
                from_torch(gate), "the first gate")


def test_root(folder):
    """A training root leads to its newest step."""
    source = make(folder, DENSE)
    root = folder / "save"
    root.mkdir()
    source.rename(root / "iter_0000007")
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    document = CKPT.inspect(root)
    check_equal(document["format"], "megatron_fsdp_dtensor", "format")


def test_stages(folder):
    """Stages that each number their layers from 0 have lost all but one
    stage's."""
    source = make(folder, DENSE, stages=2)
    result = CKPT.run("verify", source)
    result.want(1)
    check("names 2 of the model's 4 layers" in result.out + result.err,
          result)
    # Nor is a two-layer model written in place of a four-layer one, by any
    # command; the layers that exist are written on request.
    for command in (("unshard",), ("reshard", "--to", "megatron_torch_dist"),
                    ("convert", "--to", "megatron_torch_dist"),
                    ("convert", "--to", "safetensors", "--dialect", "keep"),
                    ("convert", "--to", "dcp")):
        out = folder / "out.safetensors"
        if command[0] != "unshard":
            out = folder / "out"
        argv = (command[0], source, out, "--model-only", *command[1:])
        for more in ((), ("--dry-run",)):
            refused = CKPT.run(*argv, *more).want(5)
            check("names 2 of the model's 4 layers" in refused.err and
                  "--keys" in refused.err, refused)
            check(not out.exists(), f"{command} wrote it")
    CKPT.ok("unshard", source, folder / "two.safetensors", "--model-only",
            "--keys", "*")
    got = read_safetensors(folder / "two.safetensors")
    check(any(".layers.1." in name for name in got), "layers that are there")


def test_optimizer_refused(folder):
    source = make(folder, DENSE)
    result = CKPT.run("convert", source, folder / "out", "--to",
                      "megatron_torch_dist")
    result.want(5)
    check("--model-only" in result.err, result)
    check(not (folder / "out").exists(), "nothing is written")
    CKPT.ok("convert", source, folder / "out", "--to", "megatron_torch_dist",
            "--model-only")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    torch.set_num_threads(1)
    for case in (DENSE, EXPERTS):
        suite.add(f"read {case}", test_read, case)
        suite.add(f"to torch_dist {case}", test_to_torch_dist, case)
    suite.add("to hf", test_to_hf, DENSE, "llama")
    suite.add("root", test_root)
    suite.add("stages", test_stages)
    suite.add("optimizer refused", test_optimizer_refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
