#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's local checkpoints: nvidia-resiliency-ext's own manager saves
what megatron-core's own classes make of a two-rank job, and ckpt reads it from
one rank's disk and from both."""

import importlib.util
import pickle
import shutil
import sys
from pathlib import Path

import torch
from dcp_support import run_ranks
from support import Skip, Suite, check, check_equal, from_torch, read_safetensors

CKPT = None
NVRX = Path(sys.prefix) / "nvidia_resiliency_ext"
GENERATOR = torch.Generator().manual_seed(7)
ROWS = torch.randn(8, 6, generator=GENERATOR)
BOTH = torch.randn(4, 6, generator=GENERATOR).bfloat16()
LAYERS = torch.randn(2, 3, 5, generator=GENERATOR)
FLIPPED = torch.randn(6, 8, generator=GENERATOR)
NAMES = {"decoder.final_layernorm.weight": BOTH,
         "output_layer.weight": ROWS,
         "decoder.layers.mlp.linear_fc2.weight": LAYERS,
         "embedding.word_embeddings.weight": FLIPPED.t()}


def state(rank):
    from megatron.core.dist_checkpointing.mapping import (
        LocalNonpersistentObject, ShardedObject, ShardedTensor)

    cut = ShardedTensor.from_rank_offsets
    return {
        "model": {
            "both": cut("decoder.final_layernorm.weight", BOTH.clone(),
                        replica_id=rank),
            "rows": cut("output_layer.weight",
                        ROWS[4 * rank:4 * rank + 4].clone(), (0, rank, 2)),
            # A view: its elements aren't in row order.
            "columns": cut("embedding.word_embeddings.weight",
                           FLIPPED[:, 4 * rank:4 * rank + 4].clone().t(),
                           (0, rank, 2)),
            "layers": [cut("decoder.layers.mlp.linear_fc2.weight",
                           LAYERS[rank].clone(), (0, rank, 2),
                           prepend_axis_num=1)]},
        "rerun": ShardedObject("rerun_state", {"rank": rank}, (2,), (rank,)),
        "rng": ShardedObject("rng_state", [torch.arange(3) + rank], (2,),
                             (rank,)),
        "mine": LocalNonpersistentObject(rank),
        "iteration": 7,
        "args": {"padded_vocab_size": 8},
    }


def save(root, algo, copies):
    """One rank's part of the job."""
    sys.path.insert(0, str(NVRX))
    from megatron.core.dist_checkpointing import tensor_aware_state_dict
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import (
        local_manager)

    rank = torch.distributed.get_rank()
    made, _ = tensor_aware_state_dict.MCoreTensorAwareStateDict.from_state_dict(
        state(rank), algo=algo)
    manager = local_manager.LocalCheckpointManager(root, session_id="run")
    manager.save(made, 7, is_async=False)
    torch.distributed.barrier()
    if copies and rank == 1:  # as replication leaves them
        other = Path(root) / "run" / "0" / "iter_0000007_0_local.pt"
        shutil.copy(other, Path(root) / "run" / "1")
    if rank == 0:  # an unfinished save
        (Path(root) / "run" / "0" / "iter_0000009_0_local.pt").write_bytes(
            other_iteration(root))


def other_iteration(root):
    return (Path(root) / "run" / "0" / "iter_0000007_0_local.pt").read_bytes()


def check_tensors(path, folder):
    out = folder / "out.safetensors"
    CKPT.ok("unshard", path, out, "--if-exists", "replace")
    got = read_safetensors(out)
    check_equal(set(got), set(NAMES), "names")
    for name, tensor in NAMES.items():
        check_equal(got[name], from_torch(tensor.contiguous()), name)


def test_read(folder):
    if not NVRX.is_dir() or importlib.util.find_spec("megatron") is None:
        raise Skip("nvidia-resiliency-ext or megatron-core is not there")
    roots = {algo: str(folder / algo) for algo in ("atomic", "fully_parallel")}
    run_ranks(folder, 2, save, [(roots["atomic"], "atomic", True),
                                (roots["fully_parallel"], "fully_parallel",
                                 False)])
    for algo, root in roots.items():
        session = Path(root) / "run"
        document = CKPT.inspect(session)
        check_equal(document["format"], "megatron_local", "format")
        problems = {p["kind"] for p in document["problems"]}
        check({"unfinished_save", "object_with_tensors"} <= problems, problems)
        check_tensors(session, folder)
        CKPT.ok("verify", session, "--deep")
        objects = {o["name"] for o in CKPT.inspect(session, "--objects")[
            "objects"]}
        check({"iteration", "args", "rerun_state/shard_0_2",
               "rerun_state/shard_1_2"} <= objects, f"{objects}")
    # A node's disk with copies of the others' files is enough.
    check_tensors(Path(roots["atomic"]) / "run" / "1", folder)
    # One without copies is not, and the error says what is missing.
    alone = Path(roots["fully_parallel"]) / "run" / "1"
    refused = CKPT.run("unshard", alone, folder / "no.safetensors")
    check(refused.code in (4, 5), f"{refused}")
    check(not (folder / "no.safetensors").exists(), "it was written")
    # As Megatron loads it.
    CKPT.ok("convert", Path(roots["atomic"]) / "run", folder / "dist", "--to",
            "megatron_torch_dist", "--tp", 1)
    hostile(folder, Path(roots["atomic"]) / "run")


def hostile(folder, session):
    """Any other class is refused, and never instantiated."""
    class Bad:
        def __reduce__(self):
            return (exec, ("open('made', 'w')",))

    bad = folder / "bad" / "0"
    bad.mkdir(parents=True)
    torch.save(Bad(), bad / "iter_0000007_0_local.pt", pickle_module=pickle)
    refused = CKPT.run("inspect", bad.parent, cwd=folder).want(4)
    check("not megatron-core's state of a rank" in refused.err, refused.err)
    check(not (folder / "made").exists(), "it was executed")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    torch.set_num_threads(1)
    suite.add("read", test_read)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
