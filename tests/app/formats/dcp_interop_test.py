#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoints that ckpt writes are loaded by torch: in one
process, as DTensors of other meshes, and by its converters."""

import argparse
import collections
import json
import math
import os
import pickle
import random
import re
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.format_utils import (
    dcp_to_torch_save, torch_save_to_dcp)
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import (
    SavePlan, TensorWriteData, WriteItem, WriteItemType)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import (
    compute_local_shape_and_global_offset)

from dcp_support import (
    check_files, check_same, load_nested, load_plain, load_sharded, run_ranks)
from golden_cases import expected
from support import (
    DATA, Skip, Suite, check, check_equal, compare, load_pt, read_safetensors)

CKPT = None
CASES = DATA / "dcp"

# What torch 2.13 can load as it is: not the zstd items, the files written
# without collectives, or Hugging Face's.
LOADABLE = ["ddp_w4", "ddp_w4_lowest_rank", "file_per_item_w2",
            "fsdp1_w2_sharded", "fsdp2_w2_adamw", "fsdp2_w4_uneven_bf16",
            "fsdp2_w8", "hsdp_tp_w8", "hsdp_w4", "noflatten_w2", "plain_w1",
            "fsdp1_w4_local", "threads3_w2", "torch2.1.2_w2", "torch2.4.1_w2",
            "torch2.7.1_w2", "torch_save_to_dcp", "tp2_fsdp2_w4",
            "tp4_fsdp2_w8_empty"]
OTHERS = ["zstd_w2", "nocollectives_w2"]
# Keys of flat parameters; what is in them is another matter.
FLAT = "fsdp1_w4_local"


def expected_tensors(case):
    """Without those that a safetensors file can't name."""
    return {**expected(case), **expected(case, "expected_optim.safetensors")}


# ---------------------------------------------------------------------- cases
def test_golden(folder, case, ranks):
    """Resharded, a golden is what the peer itself reads from it."""
    source = CASES / case / "ckpt"
    for n in ranks:
        out = folder / f"dp{n}"
        CKPT.ok("reshard", source, out, "--dp", n)
        index = check_files(out)
        written = {p.name for p in out.glob("*.distcp")}
        check_equal(written, {f"__{r}_0.distcp" for r in range(n)}, "files")
        want = {} if case == FLAT else expected_tensors(CASES / case)
        compare(load_plain(out, want), want, f"{case} to dp={n}")
        check(set(index.tensors) >= set(want), "all tensors are listed")
        if case in LOADABLE:
            check_same(load_nested(out), load_nested(source),
                       f"{case} to dp={n}, nested")


def test_topologies(folder, world, meshes):
    """Loaded as DTensors by `world` processes, however it was cut."""
    jobs = []
    for case, n in (("fsdp2_w2_adamw", 3), ("fsdp2_w4_uneven_bf16", 2),
                    ("tp4_fsdp2_w8_empty", 5), ("zstd_w2", 4)):
        out = folder / f"{case}_{n}"
        CKPT.ok("reshard", CASES / case / "ckpt", out, "--dp", n)
        jobs += [(out, mesh, expected_tensors(CASES / case))
                 for mesh in meshes]
    run_ranks(folder, world, load_sharded, jobs)


def save_mixed(folder, seed, **options):
    """Sharded and replicated tensors of many sizes, and values."""
    rng = random.Random(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {}
    for i in range(30):
        shape = tuple(rng.randrange(2, 9) for _ in range(rng.randrange(3)))
        pick = rng.random()
        if pick < 0.3:
            state[f"value{i}"] = i
        elif pick < 0.6 or not shape:
            state[f"whole{i}"] = torch.full(shape, i, dtype=torch.int32)
        else:
            size, _ = compute_local_shape_and_global_offset(
                torch.Size(shape), mesh, [Shard(0)])
            strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
            state[f"cut{i}"] = DTensor.from_local(
                torch.full(size, i, dtype=torch.float16), mesh, [Shard(0)],
                run_check=False, shape=torch.Size(shape),
                stride=tuple(strides))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), **options)


def save_apart(folder, seed):
    save_mixed(folder, seed, use_collectives=False)


def test_no_collectives(folder):
    """Ranks that plan alone: each writes an index, and all save what they all
    hold. The result is the checkpoint that they write together."""
    seed = 11
    run_ranks(folder, 3, save_mixed, [(folder / "one", seed)])
    (folder / "init").unlink(missing_ok=True)
    run_ranks(folder, 3, save_apart, [(folder / "apart", seed)])
    check_equal(sorted(p.name for p in (folder / "apart").glob("*.metadata")),
                [f"__{rank}.metadata" for rank in range(3)], "indexes")
    CKPT.ok("verify", folder / "apart", "--deep")
    CKPT.ok("verify", folder / "one", folder / "apart")
    CKPT.ok("reshard", folder / "apart", folder / "out", "--dp", 2)
    check_files(folder / "out")
    check_same(load_nested(folder / "out"), load_nested(folder / "one"),
               "resharded")
    (folder / "apart/__1.metadata").unlink()
    lost = CKPT.run("verify", folder / "apart")
    check(lost.code in (1, 4), lost)


def planned_files(folder, world):
    """Which rank writes what, by torch's own de-duplication of the plans made
    by ranks with such a state dict."""
    meta = pickle.loads((folder / ".metadata").read_bytes())
    plans = [[] for _ in range(world)]
    for name in meta.planner_data:
        row = meta.state_dict_metadata[name]
        if not hasattr(row, "chunks"):
            items = [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)]
        else:
            items = [WriteItem(MetadataIndex(name, c.offsets),
                               WriteItemType.SHARD,
                               tensor_data=TensorWriteData(
                                   c, row.properties, row.size))
                     for c in row.chunks]
        if name.startswith("cut"):
            items += [items[-1]] * (world - len(items))  # the empty one
        else:
            items *= world
        for plan, item in zip(plans, items, strict=True):
            plan.append(item)
    plans = dedup_save_plans([SavePlan(plan) for plan in plans])
    return {(item.index.fqn, item.index.offset and tuple(item.index.offset)):
            f"__{rank}_0.distcp"
            for rank, plan in enumerate(plans) for item in plan.items}


def test_placement(folder):
    """Copies and values go to the ranks that the peer gives them to."""
    world, seeds = 4, range(6)
    run_ranks(folder, world, save_mixed,
              [(folder / f"peer{seed}", seed) for seed in seeds])
    for seed in seeds:
        peer, out = folder / f"peer{seed}", folder / f"out{seed}"
        CKPT.ok("reshard", peer, out, "--dp", world)
        want = boxes_of(peer)
        for name, boxes in boxes_of(out).items():
            check_equal(boxes, want[name], f"boxes of {name}, seed {seed}")
        got = {key: row[0] for key, row in check_files(out).stored.items()}
        check_equal(got, planned_files(out, world), f"files, seed {seed}")


def boxes_of(folder):
    with open(folder / ".metadata", "rb") as f:
        rows = pickle.load(f).state_dict_metadata
    return {name: [(tuple(c.offsets), tuple(c.sizes)) for c in row.chunks]
            for name, row in rows.items() if hasattr(row, "chunks")}


def check_boxes(got, want, what, unknown=()):
    """The peer's boxes, empty ones included, in any order. One rank's file
    doesn't show which tensors are buffers (`unknown`)."""
    got, want = boxes_of(got), boxes_of(want)
    for name, boxes in want.items():
        if name in got and name not in unknown:
            check_equal(sorted(got[name]), sorted(boxes), f"{what}: {name}")


# Parallel plans of the models in the goldens.
RULES = {"*emb.weight": 0, "*out.weight": 0, "*w1.weight": 0, "*w2.weight": 1,
         "*": None}


def test_boxes(folder):
    """For the peer's topologies the boxes are the peer's own."""
    rules = folder / "rules.json"
    rules.write_text(json.dumps(RULES))
    tp = ("--shard-dims", rules)
    for source, args, peer in (
            ("fsdp2_w2_adamw/ckpt", ("--dp", 4), "fsdp2_w2_adamw/other/w4"),
            ("fsdp2_w2_adamw/ckpt", ("--dp", 1), "fsdp2_w2_adamw/other/w1"),
            ("fsdp2_w2_adamw/other/w4", (), "fsdp2_w2_adamw/other/w4"),
            ("fsdp2_w2_adamw/other/w4", ("--dp", 2), "fsdp2_w2_adamw/ckpt"),
            ("fsdp2_w4_uneven_bf16/ckpt", ("--dp", 3),
             "fsdp2_w4_uneven_bf16/other/w3"),
            ("fsdp2_w4_uneven_bf16/other/w3", ("--dp", 4),
             "fsdp2_w4_uneven_bf16/ckpt"),
            ("fsdp2_w8/ckpt", ("--dp", 2), "fsdp2_w8/other/w2"),
            ("fsdp2_w8/other/w2", ("--dp", 8), "fsdp2_w8/ckpt"),
            ("tp2_fsdp2_w4/other/w1", ("--dp", 2, "--tp", 2, *tp),
             "tp2_fsdp2_w4/ckpt"),
            ("tp2_fsdp2_w4/ckpt", ("--dp", 1, "--tp", 4, *tp),
             "tp2_fsdp2_w4/other/tp4"),
            ("tp4_fsdp2_w8_empty/ckpt", ("--dp", 2, "--tp", 4, *tp),
             "tp4_fsdp2_w8_empty/ckpt")):
        out = folder / "out"
        CKPT.ok("reshard", CASES / source, out, "--overwrite", *args)
        check_files(out)
        check_boxes(out, CASES / peer, f"{source} {args}",
                    ["model.freqs"] if source.endswith("w1") else [])


def random_tensor(rng, dtype, shape):
    count = math.prod(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    data = bytearray(rng.randbytes(count * size))
    if dtype == torch.bool:
        data = bytearray(b & 1 for b in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


SCALARS = (None, True, 7, -(2 ** 70), 0.1, "text é", (1, 2), b"bytes",
           (1, [2, {"a": 3}]), [1, 2, 3], [], torch.float32, torch.Size([2]),
           collections.OrderedDict(a=1), {3, 4}, float("nan"))
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64,
          torch.int64, torch.int8, torch.uint8, torch.bool, torch.uint16,
          torch.complex64, torch.float8_e4m3fn]


def random_tree(rng, depth=0):
    """Nested as trainers nest; every dict has something in it."""
    tree = {}
    for i in range(rng.randrange(2, 6)):
        key = rng.choice((f"k{i}", f"a.b{i}", i, f"é {i}"))
        pick = rng.random()
        if pick < 0.45:
            shape = tuple(rng.choice((0, 1, 2, 3, 5, 8, 33))
                          for _ in range(rng.randrange(5)))
            tensor = random_tensor(rng, rng.choice(DTYPES), shape)
            if len(shape) == 2 and rng.random() < 0.3:
                tensor = tensor.t()
            if tensor.is_floating_point() and rng.random() < 0.2:
                tensor = torch.nn.Parameter(tensor)
            tree[key] = tensor
        elif pick < 0.6 and depth < 3:
            tree[key] = random_tree(rng, depth + 1)
        elif pick < 0.75 and depth < 3:
            tree[key] = [random_tree(rng, depth + 1),
                         rng.choice(SCALARS), torch.ones(2)]
        else:
            tree[key] = rng.choice(SCALARS)
    tree["last"] = random_tensor(rng, torch.float32, (3, 2))
    return tree


def test_tree(folder, seed):
    """A file of torch.save becomes what torch_save_to_dcp makes of it."""
    rng = random.Random(seed)
    tree = random_tree(rng)
    torch.save(tree, folder / "in.pt")
    torch_save_to_dcp(folder / "in.pt", folder / "peer")
    n = rng.randrange(1, 6)
    CKPT.ok("convert", folder / "in.pt", folder / "out", "--to", "dcp", "--dp",
            n)
    ours, peer = check_files(folder / "out"), pickle.loads(
        (folder / "peer/.metadata").read_bytes())
    check_equal(ours.planner, peer.planner_data, "planner_data")
    rows = pickle.loads((folder / "out/.metadata").read_bytes())
    for name, row in rows.state_dict_metadata.items():
        if hasattr(row, "chunks"):
            check_equal(row.properties,
                        peer.state_dict_metadata[name].properties,
                        f"properties of {name}")
    want = load_nested(folder / "peer")
    check_same(load_nested(folder / "out"), want, "nested")
    dcp_to_torch_save(folder / "out", folder / "back.pt")
    check_same(load_pt(folder / "back.pt", weights_only=False), want,
               "dcp_to_torch_save")
    # And what torch wrote, resharded by ckpt for other ranks.
    CKPT.ok("reshard", folder / "peer", folder / "re", "--dp", n + 1,
            "--verify")
    check_files(folder / "re")
    check_same(load_nested(folder / "re"), want, "resharded")


def test_safetensors(folder):
    """Plain names become keys; converting back restores the file."""
    source = DATA / "safetensors/hf_sharded/ckpt"
    CKPT.ok("convert", source, folder / "out", "--to", "dcp", "--dp", 3)
    index = check_files(folder / "out")
    want = {}
    for path in source.glob("*.safetensors"):
        want.update(read_safetensors(path))
    compare(load_plain(folder / "out", want), want, "as torch loads it")
    paths = {name: (name,) for name in want}
    check_equal(index.planner, paths, "paths")
    CKPT.ok("verify", source, folder / "out")


def plan_of(config):
    """Name of a weight -> the dimension that transformers' own plan cuts."""
    sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
    from transformers import AutoConfig

    plan = type(AutoConfig.from_pretrained(config)).base_model_tp_plan or {}
    dims = {"colwise": 0, "rowwise": 1}
    return {re.compile(r"(model\.|transformer\.)?" + re.escape(name).replace(
        r"\*", r"\d+") + r"\.weight"): dims[how.split("_")[0]]
        for name, how in plan.items() if how.split("_")[0] in dims}


def test_plan(folder):
    """Transformers' names are cut over tp ranks as its own plans say; the peer
    loads them whole and unchanged."""
    planned = 0
    for source in sorted((DATA / "hf").iterdir()):
        out = folder / source.name
        result = CKPT.run("convert", source / "ckpt", out, "--to", "dcp",
                          "--tp", 2, "--dp", 2)
        if result.code:
            result.want(5)  # odd heads, and names without rules
            continue
        check_files(out)
        CKPT.ok("verify", source / "ckpt", out)
        want = {}
        for path in (source / "ckpt").glob("*.safetensors"):
            want.update(read_safetensors(path))
        compare(load_plain(out, want), want, source.name)
        CKPT.ok("reshard", out, folder / "again", "--tp", 2, "--dp", 1,
                "--overwrite")  # config.json is beside the files
        boxes = boxes_of(out)
        for pattern, dim in plan_of(source / "ckpt").items():
            for name in filter(pattern.fullmatch, want):
                cut = [begin[dim] for begin, _ in boxes[name]]
                half = want[name].shape[dim] // 2
                check(half in cut, f"{source.name}: {name}: {boxes[name]}")
                planned += 1
    check(planned > 100, f"{planned} weights of plans")


def test_rename(folder):
    """New names keep their place in the nesting where they fit."""
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"model.layers.*": "model.blocks.*",
                                 "model.emb.weight": "wte"}))
    source = CASES / "fsdp2_w2_adamw/ckpt"
    CKPT.ok("reshard", source, folder / "out", "--rename", rules)
    check_files(folder / "out")
    want = load_nested(source)
    model = want["model"]
    want["wte"] = model.pop("emb.weight")
    want["model"] = {re.sub("^layers", "blocks", name): tensor
                     for name, tensor in model.items()}
    check_same(load_nested(folder / "out"), want, "renamed")


def test_megatron(folder):
    """Megatron's keys are plain ones without Megatron's files."""
    source = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161"
    CKPT.ok("convert", source / "ckpt", folder / "out", "--to", "dcp", "--dp",
            3, "--verify")
    check_files(folder / "out")
    want = expected_tensors(source)
    compare(load_plain(folder / "out", want), want, "as torch loads it")
    check_equal(CKPT.inspect(folder / "out")["format"], "dcp", "format")


# torch's own flattening makes texts of keys.
MADE = {5, "5"}


def plain(value):
    """What can be compared, of values that Megatron-Core loaded."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()
                if key not in MADE}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, argparse.Namespace):
        # There is one rank on the way, and the args say so.
        return {key: plain(one) for key, one in vars(value).items()
                if not key.endswith(("_parallel_size", "world_size"))}
    return value


def test_megatron_back(folder, case):
    """Values that aren't tensors come back from DCP as Megatron-Core has them:
    objects of grids under their own keys, the common part with its nesting."""
    try:
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing import serialization
    except ImportError:
        raise Skip("megatron-core is not installed") from None
    source = DATA / "megatron_torch_dist" / case / "ckpt"
    if not (source / ".metadata").exists():
        source = next(p.parent for p in source.rglob(".metadata"))
    CKPT.ok("convert", source, folder / "dcp", "--to", "dcp")
    CKPT.ok("convert", folder / "dcp", folder / "back", "--to",
            "megatron_torch_dist")
    back = next((folder / "back").rglob("metadata.json")).parent
    if any("bucket_idx" in key
           for key in serialization.load_sharded_metadata(str(source))):
        # DCP has the optimizer by parameter, with its groups in the common
        # part; where its buckets stay, as with 0.9's, groups stay beside them.
        made = dist_checkpointing.load_common_state_dict(back)["optimizer"]
        check("param_groups" in str(made) or any(
            key.endswith("optimizer/shard_0_1")
            for key in serialization.load_sharded_metadata(str(back))),
            f"no groups: {made}")
        return
    keys = [sorted(serialization.load_sharded_metadata(str(one)))
            for one in (source, back)]
    check_equal(*keys, "keys")
    check_equal(*(plain(dist_checkpointing.load_common_state_dict(one))
                  for one in (source, back)), "the common part")


def test_same_bytes(folder):
    """Two runs write the same files, save_id included."""
    for name in "ab":
        CKPT.ok("reshard", CASES / "fsdp2_w2_adamw/ckpt", folder / name,
                "--dp", 3, "--no-manifest", "-j", 1 if name == "a" else 3)
    for path in (folder / "a").iterdir():
        check_equal(path.read_bytes(), (folder / "b" / path.name).read_bytes(),
                    path.name)


def test_refusals(folder):
    """What has no place is refused, with advice."""
    source = CASES / "fsdp2_w2_adamw/ckpt"
    for args, code, text in (
            (("--tp", 2), 5, "--shard-dims"),
            (("--pp", 2), 5, "pp=2"),
            (("--ep", 2), 5, "ep=2"),
            (("--max-shard-size", "5GB"), 2, "--dp")):
        result = CKPT.run("reshard", source, folder / "out", *args)
        result.want(code)
        check(text in result.err, f"{text} is not in\n{result}")
        check(not (folder / "out").exists(), "nothing is written")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    torch.set_num_threads(1)
    for i, case in enumerate(LOADABLE + OTHERS):
        suite.add(f"golden {case}", test_golden, case, (1, 2 + i % 4))
    suite.add("boxes", test_boxes)
    for seed in range(8):
        suite.add(f"tree {seed}", test_tree, seed)
    suite.add("safetensors", test_safetensors)
    suite.add("plans of transformers", test_plan)
    suite.add("rename", test_rename)
    suite.add("megatron", test_megatron)
    for path in sorted((DATA / "megatron_torch_dist").iterdir()):
        # Core 0.19's have no such file, and 0.16 can't read them.
        if any(path.rglob("common.pt")):
            suite.add(f"megatron and back {path.name}", test_megatron_back,
                      path.name)
    suite.add("same bytes", test_same_bytes)
    suite.add("refusals", test_refusals)
    suite.add("placement", test_placement)
    suite.add("no collectives", test_no_collectives)
    suite.add("1 process", test_topologies, 1, [(1,)])
    suite.add("3 processes", test_topologies, 3, [(3,)])
    suite.add("4 processes", test_topologies, 4, [(4,), (2, 2)])


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
