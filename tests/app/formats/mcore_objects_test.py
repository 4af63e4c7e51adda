#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt/mcore.h against megatron-core 0.16.1 on CPUs: places of parts in global
tensors, keys, factories, the optimizer's state, objects, strictness. One writes
and the other loads with different cuts, in both directions, bit for bit.
"""

import importlib.util
import json
import math
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from dcp_support import run_ranks
from support import Skip, Suite, check, check_equal

warnings.filterwarnings("ignore")
CKPT = TOOL = None
ROWS, COLUMNS, LAYERS = 24, 6, 4
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Tool:
    """The program beside ckpt that drives ckpt/mcore.h."""

    def __init__(self, path):
        self.path = path
        self.child = None

    def ask(self, **job):
        """Returns its answer, or its error."""
        if self.child is None:
            self.child = subprocess.Popen(
                [self.path], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE)
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def ok(self, **job):
        answer = self.ask(**job)
        check("ok" in answer, f"{job}: {answer}")
        return answer["ok"]


def core():
    if importlib.util.find_spec("megatron") is None:
        raise Skip("megatron-core is not installed")
    if not Path(TOOL.path).exists():
        raise Skip(f"no {TOOL.path}")
    from megatron.core import dist_checkpointing
    return dist_checkpointing


# ------------------------------------------------------------------- places
def random_part(rng):
    rank = rng.randrange(4)
    prepended = rng.randrange(3)
    shape = [rng.randrange(1, 7) for _ in range(rank)]
    offsets = []
    for axis in range(rank + prepended):
        if rng.random() < 0.6:
            count = rng.randrange(1, 9)
            index = rng.randrange(count + (rng.random() < 0.05))
            offsets.append([axis, index, count])
    rng.shuffle(offsets)
    return shape, prepended, offsets


def peer_part(dc, job):
    data = torch.zeros(job["local"])
    return dc.ShardedTensor.from_rank_offsets(
        job["key"], data, *map(tuple, job["offsets"]),
        replica_id=tuple(job["replica"]), prepend_axis_num=job["prepended"],
        allow_shape_mismatch=job["allow"])


def peer_says(dc, job, narrow):
    from megatron.core.dist_checkpointing.mapping import is_main_replica

    try:
        part = peer_part(dc, job)
        if narrow:
            part, = part.narrow(*narrow)
        return {"key": part.key, "local_shape": list(part.local_shape),
                "global_shape": list(part.global_shape),
                "global_offset": list(part.global_offset),
                "axis_fragmentations": list(part.axis_fragmentations),
                "chunk": list(part.local_chunk_offset_in_global()),
                "chunks": list(part.max_allowed_chunks()),
                "main": is_main_replica(part.replica_id)}
    except (dc.core.CheckpointingException, AssertionError, RuntimeError,
            ZeroDivisionError):
        return None


def test_places(folder, seed):
    """Global shapes, offsets, fragmentations, chunks, narrowed or not."""
    dc = core()
    rng = random.Random(seed)
    refused = 0
    for _ in range(400):
        shape, prepended, offsets = random_part(rng)
        job = {"key": "decoder.w", "local": shape, "prepended": prepended,
               "offsets": offsets, "allow": rng.random() < 0.3,
               "replica": [rng.randrange(2) for _ in range(rng.randrange(4))]}
        narrow = None
        if shape and rng.random() < 0.5:
            axis = rng.randrange(len(shape))
            start = rng.randrange(shape[axis])
            narrow = [axis, start, rng.randrange(1, shape[axis] - start + 1)]
        want = peer_says(dc, job, narrow)
        got = TOOL.ask(op="describe", tensor=job,
                       **({"narrow": narrow} if narrow else {}))
        check_equal(got.get("ok"), want, f"{job} narrow {narrow}: {got}")
        refused += want is None
    check(0 < refused < 200, f"{refused} were refused")


FLAT = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from megatron.core.dist_checkpointing import ShardedTensor
answers = []
for job, narrow in json.load(sys.stdin):
    start, stop = job["range"]
    try:
        one = ShardedTensor.from_rank_offsets_flat(
            job["key"], torch.zeros(job["local"]), tuple(job["shape"]),
            *map(tuple, job["offsets"]), flattened_range=slice(start, stop),
            prepend_axis_num=job["prepended"])
        parts = one.narrow(*narrow) if narrow else [one]
        answers.append("none" if not parts else {
            "global_shape": list(parts[0].global_shape),
            "global_offset": list(parts[0].global_offset),
            "local_shape": list(parts[0].local_shape),
            "range": [parts[0].flattened_range.start,
                      parts[0].flattened_range.stop]})
    except Exception:
        answers.append(None)
print(json.dumps(answers, default=int))
"""


def test_flat(folder):
    """Flattened ranges, located by core 0.9."""
    core()
    old = Path(sys.prefix) / "megatron_core_0.9.0"
    if not old.exists():
        raise Skip("megatron-core 0.9 is not in .venv (scripts/test.sh)")
    rng = random.Random(3)
    jobs = []
    for _ in range(300):
        shape, prepended, offsets = random_part(rng)
        if not shape:  # core 0.9 fails on a mask of no dimensions
            continue
        count = math.prod(shape)
        start = rng.randrange(count + 1)
        stop = rng.randrange(start, count + 1)
        job = {"key": "w", "local": [stop - start], "shape": shape,
               "prepended": prepended, "offsets": offsets,
               "range": [start, stop]}
        narrow = None
        if shape and stop > start and rng.random() < 0.7:
            at = rng.randrange(shape[0])
            narrow = [0, at, rng.randrange(1, shape[0] - at + 1)]
        jobs.append((job, narrow))
    told = subprocess.run(
        [sys.executable, "-B", "-c", FLAT], input=json.dumps(jobs), text=True,
        capture_output=True, env=dict(os.environ, PYTHONPATH=str(old)))
    wants = json.loads(told.stdout.splitlines()[-1])
    for (job, narrow), want in zip(jobs, wants, strict=True):
        got = TOOL.ask(op="describe", tensor=job,
                       **({"narrow": narrow} if narrow else {}))
        got = got.get("ok")
        if isinstance(got, dict):
            got = {name: got[name] for name in (
                "global_shape", "global_offset", "local_shape", "range")}
        check_equal(got, want, f"{job} narrow {narrow}")
    check(sum(isinstance(want, dict) for want in wants) > 150, "few are right")


def test_keys(folder, seed):
    """Prefixes are added, replaced and mapped as the peer does."""
    dc = core()
    from megatron.core.dist_checkpointing import utils

    rng = random.Random(seed)
    words = ["a.", "a.b.", "ab", "b.", "", "decoder."]
    for _ in range(60):
        keys = ["".join(rng.choice(words[:5]) for _ in range(4)) + f"w{i}"
                for i in range(4)]
        map_ = list({rng.choice(words): rng.choice(words)
                     for _ in range(3)}.items())
        ours = {f"n{i}": {"$tensor": {"key": key, "local": [2]}}
                for i, key in enumerate(keys)}
        ours["object"] = {"$object": {"key": "a.b.rng", "at": [1],
                                      "grid": [2]}}
        for op in ("add", "replace", "map"):
            peer = {f"n{i}": dc.ShardedTensor.from_rank_offsets(
                key, torch.zeros(2)) for i, key in enumerate(keys)}
            peer["object"] = dc.mapping.ShardedObject("a.b.rng", 0, (2,), (1,))
            old, new = map_[0]
            try:
                if op == "add":
                    utils.add_prefix_for_sharding(peer, new)
                elif op == "replace":
                    utils.replace_prefix_for_sharding(peer, old, new)
                else:
                    utils.apply_prefix_mapping(peer, dict(map_))
                want = {name: getattr(one, "unique_key", one.key)
                        for name, one in peer.items()}
            except ValueError:
                want = None
            got = TOOL.ask(op="keys", state=ours, **{
                op: {"add": new, "replace": [old, new], "map": map_}[op]})
            if want is None:
                check("error" in got, f"{op} {map_} {keys}: {got}")
                got = None
            else:
                got = {name: one.get("$object") or one["$tensor"]["key"]
                       for name, one in got["ok"].items()}
            check_equal(got, want, f"{op} {map_} {keys}")


# -------------------------------------------------------------- whole states
def truth():
    """The global tensors of the model and of its optimizer."""
    generator = torch.Generator().manual_seed(5)
    def some(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype)
    model = {
        "embedding": some(ROWS, COLUMNS, dtype=torch.bfloat16),
        "decoder.norm": some(LAYERS, COLUMNS),
        "decoder.proj": some(LAYERS, COLUMNS, ROWS, dtype=torch.bfloat16),
        "decoder.fc1": some(LAYERS, 2 * ROWS, COLUMNS),
        "bias": some(COLUMNS),
        "count": torch.arange(6)}
    for state, factor in (("exp_avg", 2), ("exp_avg_sq", 3)):
        for key in list(model):
            if not key.startswith("optimizer") and key != "count":
                model[f"optimizer.state.{state}.{key}"] = (
                    model[key].float() * factor)
    return model


def places(tp, pp, world):
    """For each rank: (name, key, axis cut by tp, layer), as in Megatron's
    modules; gated ones have two halves."""
    for rank in range(world):
        t, p, d = rank % tp, rank // tp % pp, rank // (tp * pp)
        rows = [("embedding", "embedding", 0, None, False),
                ("bias", "bias", None, None, False),
                ("count", "count", None, None, False)]
        for i in range(LAYERS // pp):
            layer = p * (LAYERS // pp) + i
            rows += [(f"norm{i}", "decoder.norm", None, layer, False),
                     (f"proj{i}", "decoder.proj", 1, layer, False),
                     (f"fc1{i}", "decoder.fc1", 0, layer, True)]
        yield rank, (t, p, d), rows


def part_of(full, axis, layer, gated, t, tp):
    if layer is not None:
        full = full[layer]
    if gated:
        return torch.cat([half.chunk(tp)[t] for half in full.chunk(2)])
    return full if axis is None else full.chunk(tp, axis)[t]


class Job:
    """What a rank holds, as given to megatron-core and to the tool."""

    def __init__(self, tp, pp, world, folder=None, blank=False,
                 objects=True):
        self.tp, self.pp, self.world = tp, pp, world
        self.folder, self.blank = folder, blank
        self.objects = objects  # those of a grid of ranks have no other one
        self.full = truth()

    def rows(self, rank):
        for number, where, rows in places(self.tp, self.pp, self.world):
            if number == rank:
                return where, rows

    def spec(self, row, where, prefix=""):
        """(data, offsets, replica, prepended) of a part."""
        name, key, axis, layer, gated = row
        t, p, d = where
        data = part_of(self.full[prefix + key], axis, layer, gated, t, self.tp)
        data = torch.zeros_like(data) if self.blank else data.contiguous()
        lead = 0 if layer is None else 1
        offsets = [(0, layer, LAYERS)] if lead else []
        if axis is not None:
            offsets.append((axis + lead, t, self.tp))
        replica = (0 if layer is not None else p,
                   t if axis is None else 0, d)
        return data, offsets, replica, lead

    # ----- the peer's
    def peer_tensor(self, row, where):
        from megatron.core.dist_checkpointing import ShardedTensor
        from megatron.core.dist_checkpointing.mapping import (
            ShardedTensorFactory)

        data, offsets, replica, lead = self.spec(row, where)
        key, gated = row[1], row[4]
        if not gated:
            return ShardedTensor.from_rank_offsets(
                key, data, *offsets, replica_id=replica, prepend_axis_num=lead)

        def build(key, t, replica_id, flattened_range):
            *before, (axis, index, count) = offsets
            return [ShardedTensor.from_rank_offsets(
                key, half, *before, (axis, index + i * count, 2 * count),
                replica_id=replica_id, prepend_axis_num=lead)
                for i, half in enumerate(t.chunk(2))]

        return ShardedTensorFactory(key, data, build, torch.cat, replica)

    def peer(self, rank):
        from megatron.core.dist_checkpointing.mapping import (
            LocalNonpersistentObject, ShardedObject)
        from megatron.core.dist_checkpointing.optimizer import (
            get_param_id_to_sharded_param_map, optim_state_to_sharding_state)

        where, rows = self.rows(rank)
        t, p, d = where
        model = {row[0]: self.peer_tensor(row, where) for row in rows}
        tracked = [row for row in rows if row[1] != "count"]
        ids = get_param_id_to_sharded_param_map(
            model, (model[row[0]].data for row in tracked))
        optimizer = {
            "state": {i: {state: self.spec(
                row, where, f"optimizer.state.{state}.")[0]
                for state in ("exp_avg", "exp_avg_sq")}
                for i, row in enumerate(tracked)},
            "param_groups": [{"lr": 0.5, "betas": [0.9, 0.95],
                              "params": list(range(len(tracked)))}]}
        optim_state_to_sharding_state(optimizer, ids)
        state = {
            "model": model, "optimizer": optimizer, "iteration": 7,
            "mine": LocalNonpersistentObject(rank)}
        if self.objects:
            state["rng"] = ShardedObject(
                "rng_state", {"seed": [p, t]}, (self.pp, self.tp), (p, t),
                replica_id=d)
        return state

    # ----- the tool's
    def tool_tensor(self, row, where, rank, prefix=""):
        data, offsets, replica, lead = self.spec(row, where, prefix)
        path = self.folder / f"{rank}_{prefix}{row[0]}"
        path.write_bytes(data.reshape(-1).view(torch.uint8).numpy().tobytes())
        return {"key": row[1], "dtype": NAMES[data.dtype],
                "local": list(data.shape), "prepended": lead,
                "offsets": offsets, "replica": list(replica),
                "data": str(path)}

    def tool(self, rank):
        where, rows = self.rows(rank)
        t, p, d = where
        model = {row[0]: {"$gated" if row[4] else "$tensor":
                          self.tool_tensor(row, where, rank)} for row in rows}
        tracked = [row for row in rows if row[1] != "count"]
        states = {str(i): {state: self.tool_tensor(
            row, where, rank, f"optimizer.state.{state}.")
            for state in ("exp_avg", "exp_avg_sq")}
            for i, row in enumerate(tracked)}
        state = {
            "model": model,
            "optimizer": {"$optimizer": {
                "model": model, "states": states,
                "params": [next(iter(model[row[0]].values()))
                           for row in tracked],
                "group": {"lr": 0.5, "betas": [0.9, 0.95]}}},
            "iteration": 7, "mine": {"$local": rank}}
        if self.objects:
            state["rng"] = {"$object": {
                "key": "rng_state", "at": [p, t], "grid": [self.pp, self.tp],
                "value": {"seed": [p, t]}, "replica": [d]}}
        return state

    # ----- what either has loaded
    def check_loaded(self, rank, got, tensor_of):
        where, rows = self.rows(rank)
        t, p, d = where
        tracked = [row for row in rows if row[1] != "count"]
        full = Job(self.tp, self.pp, self.world)
        for row in rows:
            want = full.spec(row, where)[0]
            same(tensor_of(got["model"][row[0]]), want,
                 f"{row[0]} of rank {rank}")
        states = got["optimizer"]["state"]
        for i, row in enumerate(tracked):
            state = states.get(i) or states[str(i)]
            for word in ("exp_avg", "exp_avg_sq"):
                want = full.spec(row, where, f"optimizer.state.{word}.")[0]
                same(tensor_of(state[word]), want, f"{word} of {row[0]}")
        group, = plain(got["optimizer"]["param_groups"])
        check_equal(group, {"lr": 0.5, "betas": [0.9, 0.95],
                            "params": list(range(len(tracked)))}, "the group")
        check_equal(got["iteration"], 7, "iteration")
        check_equal(got["mine"], rank, "the value of this process")
        if self.objects:
            check_equal(got["rng"], {"seed": [p, t]}, "the object")


def plain(value):
    """Canonical JSON tags its floats."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        if set(value) == {"!float"}:
            return float(value["!float"])
        return {name: plain(one) for name, one in value.items()}
    return value


def same(got, want, what):
    check(got.dtype == want.dtype and got.shape == want.shape
          and torch.equal(got.reshape(-1).view(torch.uint8),
                          want.reshape(-1).view(torch.uint8)), what)


def from_file(row):
    data = bytearray(Path(row["$data"]).read_bytes())
    return torch.frombuffer(data, dtype=DTYPES[row["dtype"]]).reshape(
        row["shape"])


def ready():
    from megatron_peer import shim
    shim()


def peer_save(path, tp, pp, world):
    import torch.distributed as dist
    from megatron.core import dist_checkpointing as dc

    ready()
    path.mkdir(exist_ok=True)
    dc.save(Job(tp, pp, world).peer(dist.get_rank()), str(path))


def peer_load(path, tp, pp, world, objects):
    import torch.distributed as dist
    from megatron.core import dist_checkpointing as dc

    ready()
    job = Job(tp, pp, world, blank=True, objects=objects)
    rank = dist.get_rank()
    got = dc.load(job.peer(rank), str(path))
    job.check_loaded(rank, got, lambda tensor: tensor)


def tool_load(folder, path, tp, pp, world, objects):
    job = Job(tp, pp, world, folder, blank=True, objects=objects)
    for rank in range(world):
        out = folder / f"loaded{rank}"
        out.mkdir(exist_ok=True)
        got = TOOL.ok(op="load", path=str(path), state=job.tool(rank),
                      out=str(out))
        job.check_loaded(rank, got["state"], from_file)


def test_peer_to_tool(folder, saved, loaded):
    core()
    path = folder / "ckpt"
    world = math.prod(saved)
    run_ranks(folder, world, peer_save, [(path, *saved[:2], world)])
    CKPT.ok("verify", path, "--deep")
    tool_load(folder, path, *loaded[:2], math.prod(loaded),
              saved[:2] == loaded[:2])
    # A run of elements of one rank's rows, as older cores request it.
    flat = {"key": "embedding", "dtype": "bf16", "local": [9],
            "shape": [ROWS // 2, COLUMNS], "range": [5, 14],
            "offsets": [[0, 1, 2]]}
    out = folder / "flat"
    out.mkdir()
    got = TOOL.ok(op="load", path=str(path), out=str(out),
                  state={"w": {"$tensor": flat}})
    same(from_file(got["state"]["w"]),
         truth()["embedding"].chunk(2)[1].reshape(-1)[5:14], "a flat range")


def test_tool_to_peer(folder, saved, loaded):
    core()
    path = folder / "ckpt"
    world = math.prod(saved)
    job = Job(*saved[:2], world, folder)
    TOOL.ok(op="save", path=str(path),
            ranks=[job.tool(rank) for rank in range(world)])
    world = math.prod(loaded)
    run_ranks(folder, world, peer_load,
              [(path, *loaded[:2], world, saved[:2] == loaded[:2])])


# ---------------------------------------------------------------- strictness
WORDS = ("assume_ok_unexpected", "log_unexpected", "log_all",
         "raise_unexpected", "raise_all", "return_unexpected", "return_all",
         "ignore_all")


def odd_requests(rank):
    """One key that is stored, one that is not, one of an object."""
    return {"a": ("bias", [COLUMNS]), "b": ("nowhere", [2, 3])}


def peer_strict(path, out):
    from megatron.core import dist_checkpointing as dc
    from megatron.core.dist_checkpointing.validation import StrictHandling

    ready()
    answers = {}
    for word in WORDS:
        state = {name: dc.ShardedTensor.from_rank_offsets(
            key, torch.zeros(shape)) for name, (key, shape) in
            odd_requests(0).items()}
        try:
            got = dc.load(state, str(path), strict=word)
            missing = unexpected = ()
            if StrictHandling.requires_returning_mismatch_keys(
                    StrictHandling(word)):
                got, missing, unexpected = got
            answers[word] = [sorted(set(got) & {"a", "b"}), sorted(missing),
                             sorted(unexpected)]
        except BaseException as error:  # torch's CheckpointException is one
            # Its lists: 'missing' and 'unexpected' in one message.
            answers[word] = {"raised": sorted(set(
                re.findall(r"'([\w./]+)'", str(error))))}
    out.write_text(json.dumps(answers))


def test_strictness(folder):
    core()
    path = folder / "ckpt"
    run_ranks(folder, 1, peer_save, [(path, 1, 1, 1)])
    (folder / "init").unlink(missing_ok=True)
    run_ranks(folder, 1, peer_strict, [(path, folder / "answers")])
    want = json.loads((folder / "answers").read_text())
    state = {name: {"$tensor": {"key": key, "local": shape}}
             for name, (key, shape) in odd_requests(0).items()}
    for word in WORDS:
        got = TOOL.ask(op="load", path=str(path), state=state, strict=word,
                       out=str(folder))
        if "ok" in got:
            row = got["ok"]
            got = [sorted(set(row["state"]) & {"a", "b"}), row["missing"],
                   row["unexpected"]]
        else:
            check_equal(got["code"], 5, f"exit status of {word}: {got}")
            lists = re.findall(
                r"(?:not in the checkpoint|not requested): ([^;]*)",
                got["error"])
            got = {"raised": sorted(set(", ".join(lists).split(", ")))}
            if word == "assume_ok_unexpected":  # torch's message, not a list
                check_equal(got["raised"], ["nowhere"], word)
                want[word] = got
        check_equal(got, want[word], word)


def test_refusals(folder):
    core()
    part = {"key": "w", "dtype": "f32", "local": [2, 3], "offsets": []}
    for state, code, text in (
            ({"w": {"$tensor": dict(part, offsets=[[0, 2, 2]])}}, 2,
             "w: there is no part 2 of 2 along axis 0"),
            ({"w": {"$tensor": part}, "v": {"$tensor": dict(
                part, offsets=[[0, 0, 2]])}}, 5, "2 main replicas"),
            ({"w": {"$tensor": dict(part, replica=[1])}}, 5,
             "0 main replicas"),
            ({"w": {"$tensor": dict(part, offsets=[[0, 0, 2]])}}, 5, "w: "),
            ({"o": {"$object": {"key": "rng", "at": [0], "grid": [2]}}}, 5,
             "1 of the 2 objects"),
            ({"w": {"$tensor": dict(part, local=[4], shape=[2, 3],
                                    range=[1, 5])}}, 5,
             "w: is a flattened range"),
            ({"w": {"$tensor": dict(part, local=[4], shape=[2, 3],
                                    range=[3, 7])}}, 2,
             "w: elements 3 to 7 of a local tensor that has 6")):
        got = TOOL.ask(op="save", path=str(folder / "ckpt"), ranks=[state])
        check_equal(got.get("code"), code, f"exit status of {got}")
        check(text in got["error"], got)
        check(not (folder / "ckpt").exists(), "nothing is written")


def prepare(suite, ckpt):
    global CKPT, TOOL
    CKPT = ckpt
    TOOL = Tool(str(Path(ckpt.path).with_name("mcore_tool")))
    torch.set_num_threads(1)
    for seed in range(2):
        suite.add(f"places {seed}", test_places, seed)
        suite.add(f"keys {seed}", test_keys, seed)
    suite.add("flat", test_flat)
    for saved, loaded in (((2, 1, 1), (1, 2, 1)), ((1, 2, 2), (1, 2, 1))):
        suite.add(f"peer to tool {saved}", test_peer_to_tool, saved, loaded)
        suite.add(f"tool to peer {saved}", test_tool_to_peer, saved, loaded)
    suite.add("strictness", test_strictness)
    suite.add("refusals", test_refusals)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
