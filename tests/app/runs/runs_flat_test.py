#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP1's optimizers with several groups of parameters, frozen ones and
meshes of two dimensions: random models, which torch's own FSDP cuts.

A process is each rank in turn (torch's fake process group: nothing needs to be
sent), and its live optimizer says which state belongs to which parameter. ckpt
has every state under that name, or leaves the numbers and says so.
"""

import random
import warnings

from support import Suite, check, check_equal, digest

CKPT = None  # set by prepare
NAMED = {"named": 0, "numbered": 0}


def model_of(rng):
    """Layers of a few modules. Sizes often coincide."""
    import torch

    width = rng.choice((4, 6))

    def module():
        kind = rng.choice(("linear", "bias", "norm"))
        if kind == "norm":
            return torch.nn.LayerNorm(width, bias=rng.random() < 0.5)
        return torch.nn.Linear(width, rng.choice((width, 5, 9)),
                               bias=kind == "bias")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for i in range(rng.randint(1, 4)):
                self.add_module(f"part{i}", module())

    root = torch.nn.Module()
    root.embed = torch.nn.Embedding(rng.choice((7, 11)), width)
    root.layers = torch.nn.ModuleList(
        Layer() for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.7:
        root.norm = torch.nn.LayerNorm(width, bias=False)
    return root, Layer


def groups_of(rng):
    """A rule by which a script makes groups, from a parameter's name."""
    kind = rng.choice(("one", "decay", "layers", "any", "any"))
    count = {"one": 1, "any": rng.choice((2, 3))}.get(kind, 2)
    salt = rng.random()

    def group(name):
        if kind == "one":
            return 0
        if kind == "decay":
            return int("norm" in name or name.endswith("bias"))
        if kind == "layers":
            return int("layers" in name)
        return random.Random(f"{salt}{name}").randrange(count)
    return group, count


def clean(name):
    return name.replace("_fsdp_wrapped_module.", "").replace("_flat_param", "")


class Case:
    """What a rank of a job has, saved as verl's manager saves it."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.seed = seed
        self.world = rng.choice((2, 3, 4, 4))
        self.rows = 2 if self.world == 4 and rng.random() < 0.5 else self.world
        self.original = rng.random() < 0.6
        self.freeze = rng.random() < 0.3
        self.skip_frozen = rng.random() < 0.5
        self.rule, self.count = groups_of(rng)
        self.states = []  # of each rank: {(name, state): flat tensor}
        self.shapes = {}
        self.units = {}  # of flat parameters: their names and shapes

    def model(self):
        import torch

        rng = random.Random(f"model {self.seed}")
        torch.manual_seed(self.seed)
        model, layer = model_of(rng)
        frozen = rng.randrange(len(model.layers) + 1)
        if self.freeze and frozen < len(model.layers):
            model.layers[frozen].requires_grad_(False)
        elif self.freeze:
            model.embed.requires_grad_(False)
            if hasattr(model, "norm"):
                model.norm.requires_grad_(False)
        return model, layer

    def job(self, rank, world, rows):
        """The mesh, the wrapped model's optimizer, and its names."""
        import functools

        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            FullyShardedDataParallel, ShardingStrategy)
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        model, layer = self.model()
        hybrid = rows < world
        mesh = init_device_mesh(
            "cpu", (world // rows, rows) if hybrid else (world,),
            mesh_dim_names=("ddp", "fsdp") if hybrid else ("fsdp",))
        plain = {name: tensor.clone()
                 for name, tensor in model.state_dict().items()}
        model = FullyShardedDataParallel(
            model, use_orig_params=self.original, device_mesh=mesh,
            auto_wrap_policy=functools.partial(
                transformer_auto_wrap_policy, transformer_layer_cls={layer}),
            device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid
            else ShardingStrategy.FULL_SHARD)
        groups = [{"params": [], "weight_decay": 0.1 * i}
                  for i in range(self.count)]
        names = {}
        for name, one in model.named_parameters():
            names[one] = clean(name)
            if not self.original:
                self.units[clean(name)] = list(zip(one._fqns, one._shapes))
            if one.requires_grad or not self.skip_frozen:
                groups[self.rule(clean(name))]["params"].append(one)
        groups = [g for g in groups if g["params"]]
        inside = self.units if not self.original else {}
        self.groups = [
            {clean(names[one]) + inner for one in group["params"]
             for inner, _ in inside.get(names[one], [("", None)])}
            for group in groups]
        optimizer = torch.optim.AdamW(groups)
        return plain, mesh, optimizer, names

    def save(self, folder, rank):
        import torch
        from torch.distributed.tensor import DTensor, Replicate, Shard

        plain, mesh, optimizer, names = self.job(rank, self.world, self.rows)
        part = rank % self.rows
        saved = {}
        for name, tensor in plain.items():
            self.shapes[name] = tuple(tensor.shape)
            rows = torch.chunk(tensor, self.rows)
            local = rows[part] if part < len(rows) else tensor[:0]
            saved[name] = DTensor.from_local(
                local.clone(), mesh, [Replicate()] * (mesh.ndim - 1) +
                [Shard(0)], run_check=False, shape=tensor.shape,
                stride=tensor.stride())
        torch.save(saved, folder /
                   f"model_world_size_{self.world}_rank_{rank}.pt")
        for at, one in enumerate(names):
            if one.requires_grad and one.numel():
                draw = torch.Generator().manual_seed(1000 * at + part)
                one.grad = torch.randn(one.shape, generator=draw)
        optimizer.step()
        torch.save(optimizer.state_dict(), folder /
                   f"optim_world_size_{self.world}_rank_{rank}.pt")
        self.states.append(states_of(optimizer, names))

    def load(self, folder, rank, world, rows):
        """A job of other ranks loads what ckpt wrote."""
        import torch

        _, mesh, optimizer, names = self.job(rank, world, rows)
        optimizer.load_state_dict(torch.load(
            folder / f"optim_world_size_{world}_rank_{rank}.pt",
            weights_only=False))
        for one, state in optimizer.state.items():
            check_equal(state["exp_avg"].shape, one.shape, names[one])
        model = torch.load(folder / f"model_world_size_{world}_rank_{rank}.pt",
                           weights_only=False)
        for name, tensor in model.items():
            check(tensor.device_mesh == mesh, f"mesh of {name}")
            check_equal(tensor.device_mesh._dim_group_names,
                        mesh._dim_group_names, f"groups of {name}")
        self.states.append(states_of(optimizer, names))

    def live(self, rows):
        """{name: (shape, digest)} of all states, from the live optimizers."""
        import torch

        whole = {}
        for key in sorted({k for one in self.states for k in one}):
            parts = [one[key] for one in self.states[:rows] if key in one]
            whole[key] = parts[0] if parts[0].dim() == 0 else torch.cat(parts)
        out = {}
        for (name, state), tensor in whole.items():
            inside = ([("", self.shapes[name])] if self.original
                      else self.units[name])
            at = 0
            for inner, shape in inside:
                size = torch.Size(shape).numel()
                mine = tensor if tensor.dim() == 0 else tensor[at:at + size]
                at += size
                out[f"{name}{inner}.{state}"] = (
                    tuple(shape) if tensor.dim() else (),
                    digest(mine.contiguous().numpy().tobytes()))
        return out


def states_of(optimizer, names):
    return {(names[one], key): value.clone()
            for one, state in optimizer.state.items()
            for key, value in state.items() if one.numel()}


def as_ranks(world, do):
    """Calls do(rank) as each rank of a job in turn."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world,
                                store=FakeStore())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                do(rank)
        finally:
            dist.destroy_process_group()


def test_random(folder, seeds):
    for seed in seeds:
        step = folder / f"{seed}/global_step_1/actor"
        step.mkdir(parents=True)
        case = Case(seed)
        as_ranks(case.world, lambda rank: case.save(step, rank))
        what = (f"seed {seed}: {case.world} ranks in rows of {case.rows}, "
                f"use_orig_params={case.original}, {case.count} groups")
        found = CKPT.inspect(step, "--digest")
        want = case.live(case.rows)
        got = {t["name"]: (tuple(t["shape"]), t["digest"])
               for t in found["tensors"] if t["kind"] == "optim"}
        if any(p["kind"] == "numbered_state" for p in found["problems"]):
            check(all(n.startswith("optimizer.state.") for n in got), what)
            NAMED["numbered"] += 1
            continue
        NAMED["named"] += 1
        check_equal(got, want, what)
        if len(case.groups) > 1:
            shown = CKPT.inspect(step, "--objects")["objects"]
            shown = next(o["value"] for o in shown
                         if o["name"].endswith("param_groups"))
            check_equal([set(g["params"]) for g in shown], case.groups, what)
        if seed % 3:
            continue
        world, rows = random.Random(seed).choice(((3, 3), (5, 5), (6, 3),
                                                  (4, 2)))
        out = folder / f"{seed}/out"
        result = CKPT.run("reshard", step, out, "--dp", world, "--fsdp-size",
                          rows)
        if result.code == 5:  # units of one parameter each, cut evenly
            check("nothing proves" in result.err
                  and len(case.shapes) <= 1 + 3, f"{what}: {result}")
            continue
        case.states = []
        as_ranks(world, lambda rank: case.load(out, rank, world, rows))
        check_equal(case.live(rows), want, f"{what}, for {world} in {rows}")
    check(NAMED["named"] > NAMED["numbered"], f"{NAMED}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    count = 400 if suite.full else 12
    suite.add(f"{count} random optimizers", test_random, range(count))


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
