#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OLMo-core itself, on CPUs: loads a checkpoint on several processes and
compares every element with the truth. Its jobs:

    {"kind": "load", "path": checkpoint, "world": 3, "flattened": true,
     "expected": [safetensors…]}
    {"kind": "unshard", "path": checkpoint, "out": folder}
    {"kind": "logits", "path": checkpoint, "tokens": [[…]], "out": file}

load     a model sharded by FSDP2 and its AdamW, by load_model_and_optim_state
unshard  unshard_checkpoint: model.pt, and optim.pt if there is an optimizer
logits   what its transformer computes, built from config.json
"""

import json
import sys
import tempfile
import types
import warnings
from pathlib import Path

from peer import on_processes, serve

warnings.filterwarnings("ignore")


def know_the_rest():
    """Stands in for packages that OLMo-core imports but this doesn't use:
    progress bars, the clients of remote files, YAML."""

    class Kind(type):
        def __getattr__(cls, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything

    class Anything(Exception, metaclass=Kind):
        def __init__(self, *args, **options):
            pass

        def __init_subclass__(cls, **options):
            pass

        def __class_getitem__(cls, item):
            return cls

        def __call__(self, *args, **options):
            return args[0] if args else None

    class Module(types.ModuleType):
        __path__ = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything

    for name in ("rich", "rich.progress", "rich.console", "rich.highlighter",
                 "rich.text", "rich.traceback", "rich.pretty", "rich.syntax",
                 "rich.table",
                 "rich.logging", "cached_path", "cached_path.schemes",
                 "requests", "requests.adapters", "requests.exceptions",
                 "bettermap", "dataclass_extensions", "yaml", "omegaconf"):
        sys.modules[name] = module = Module(name)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    sys.modules["rich.progress"].track = lambda items, **_: items
    sys.modules["bettermap"].ordered_map_per_thread = (
        lambda function, items, **_: map(function, items))
    sys.modules["cached_path"].cached_path = lambda path, **_: Path(path)
    sys.modules["cached_path.schemes"].add_scheme_client = lambda client: None


def checkpointing():
    know_the_rest()
    import olmo_core.distributed.checkpoint as peer

    return peer


def build_model(shapes, dtypes):
    """Modules without a forward, with parameters of these dotted names."""
    import torch
    from torch import nn

    root = nn.Module()
    for name, shape in shapes.items():
        module = root
        *path, last = name.split(".")
        for word in path:
            if not hasattr(module, word):
                setattr(module, word, nn.Module())
            module = getattr(module, word)
        value = torch.full(shape, 7.0).to(dtypes[name])
        setattr(module, last, nn.Parameter(value))
    return root


def truth(job):
    """Parameters and their states, from the expectations."""
    from safetensors.torch import load_file

    tensors = {}
    for path in job["expected"]:
        tensors |= load_file(path)
    states = {n: t for n, t in tensors.items() if n.startswith("state.")}
    return {n: t for n, t in tensors.items() if n not in states}, states


def objects_of(path):
    """The optimizer's options, by key."""
    from dist_readers import read_dcp

    return read_dcp(Path(path))[1]


def groups_of(objects, model, flattened):
    """Groups of parameter names, and the options of the groups."""
    groups, options = [], set()
    while not flattened and (
            f"optim.param_groups.{len(groups)}.params" in objects):
        groups.append(objects[f"optim.param_groups.{len(groups)}.params"])
    for key in objects:
        if key.startswith("optim.param_groups."):
            options.add(key.rsplit(".", 1)[1])
    everything = [name for name, _ in model.named_parameters()]
    return groups or [everything], options - {"params"}


def make_optimizer(groups, options):
    """An optimizer with the same entries as the saved one for each parameter
    and group, but other values."""
    import torch

    class Saved(torch.optim.Optimizer):
        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    self.state[param] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(param),
                        "exp_avg_sq": torch.zeros_like(param)}

    return Saved(groups, {option: 0.5 for option in options})


def load(rank, job, store):
    peer = checkpointing()
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    params, states = truth(job)
    model = build_model({n: t.shape for n, t in params.items()},
                        {n: t.dtype for n, t in params.items()})
    objects = objects_of(job["path"])
    groups, options = groups_of(objects, model, job["flattened"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=job["world"])
    mesh = dist.init_device_mesh("cpu", (job["world"],))
    fully_shard(model, mesh=mesh)
    optim = None
    if states:
        sharded = dict(model.named_parameters())
        optim = make_optimizer(
            [{"params": [sharded[n] for n in g]} for g in groups], options)
    peer.load_model_and_optim_state(
        job["path"], model, optim, flatten_optimizer_state=job["flattened"],
        thread_count=1)
    found = 0
    for name, param in model.named_parameters():
        found += same(param, params[name], name)
        for state, value in (optim.state[param] if states else {}).items():
            key = f"state.{name}.{state}"
            found += same(value, states.pop(key), key)
    assert found == len(params) + 3 * (len(params) if optim else 0), found
    assert not states, f"not loaded: {sorted(states)}"
    if optim:
        check_options(job, optim, model, objects)
    dist.destroy_process_group()


def check_options(job, optim, model, objects):
    names = {p: n for n, p in model.named_parameters()}
    for number, group in enumerate(optim.param_groups):
        for option, value in group.items():
            if option == "params":
                continue
            owner = names[group["params"][0]] if job["flattened"] else number
            want = objects[f"optim.param_groups.{owner}.{option}"]
            assert value == want, f"group {number}: {option} is {value}"


def same(got, want, name):
    import torch

    whole = got.full_tensor() if hasattr(got, "full_tensor") else got
    assert whole.dtype == want.dtype, f"{name}: {whole.dtype}"
    assert torch.equal(whole.detach(), want), f"{name} differs"
    return 1


def unshard(_, job):
    peer = checkpointing()
    keys = peer.get_checkpoint_metadata(job["path"]).state_dict_metadata
    peer.unshard_checkpoint(
        job["path"], job["out"], quiet=True,
        optim=any(key.startswith("optim.") for key in keys))


def logits(_, job):
    import torch

    # This package reads its configurations; the modules imported so far have
    # the stand-in for it.
    for name in [n for n in sys.modules if n.split(".")[0] in (
            "olmo_core", "dataclass_extensions")]:
        del sys.modules[name]
    sys.path.insert(0, str(Path(sys.prefix) / "dataclass_extensions"))
    from olmo_core.distributed.checkpoint import load_state_dict
    from olmo_core.nn.transformer import TransformerConfig

    path = Path(job["path"])
    config = json.loads((path / "config.json").read_text())["model"]
    model = TransformerConfig.from_dict(config).build(init_device="cpu").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    state = {"model": model.state_dict()}
    load_state_dict(str(path / "model_and_optim"), state)
    model.load_state_dict(state["model"], strict=True)
    with torch.no_grad():
        torch.save(model(torch.tensor(job["tokens"])), job["out"])


def loaded(path, dtype=None):
    """All tensors of a checkpoint, by OLMo-core's own loader."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    peer = checkpointing()
    found = {
        key: torch.empty(meta.size, dtype=dtype or meta.properties.dtype)
        for key, meta in peer.get_checkpoint_metadata(
            path).state_dict_metadata.items()
        if isinstance(meta, TensorStorageMetadata)}
    peer.load_state_dict(path, found)
    return found


def scale(_, job):
    """Saves a checkpoint again, with other numbers."""
    peer = checkpointing()
    parts = {"model": {}, "optim": {}}
    for key, tensor in loaded(job["source"]).items():
        part, _, name = key.partition(".")
        parts[part][name] = (tensor * job["by"] if tensor.is_floating_point()
                             and tensor.numel() > 1 else tensor)
    peer.save_state_dict(job["out"], {k: v for k, v in parts.items() if v},
                         save_overwrite=True)


def average(_, job):
    """As OLMo-core's scripts average: x / n of each is added up in f32."""
    import torch

    sums = {}
    for path in job["sources"]:
        for key, tensor in loaded(path, torch.float32).items():
            sums.setdefault(key, torch.zeros_like(tensor)).add_(
                tensor, alpha=1 / len(job["sources"]))
    merged = loaded(job["merged"])
    lost = [k for k in sums if k.startswith("model.") and k not in merged]
    assert not lost, lost[:3]
    for key, tensor in merged.items():
        want = sums[key].to(tensor.dtype)
        if not tensor.is_floating_point() or key.endswith(".step"):
            continue
        off = (tensor.double() - want.double()).abs().max() if tensor.numel() \
            else 0
        assert off <= job["off"] * sums[key].abs().max(), f"{key}: {off}"


def run_job(job):
    """None, or what went wrong."""
    if job["kind"] == "unshard":
        return on_processes(unshard, 1, job)
    if job["kind"] in ("scale", "average"):
        return on_processes({"scale": scale, "average": average}[job["kind"]],
                            1, job)
    if job["kind"] == "logits":
        return on_processes(logits, 1, job)
    with tempfile.TemporaryDirectory() as folder:
        return on_processes(load, job["world"], job, folder + "/store")


if __name__ == "__main__":
    serve(checkpointing, run_job)
