#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers whose fused projections have parts of different sizes: gated delta
nets and state space mixers, from transformers to Megatron's names and back.

Tiny models, every parameter random, on 1, 2 and 4 tensor-parallel ranks: each
rank holds what the cut of Megatron's module gives it, computed here with torch;
back bit for bit; the same logits in transformers with a config.json made from
Megatron's args alone.
"""

import importlib.util
import os
import sys

from peer import Peer
from support import Skip, Suite, check, check_equal, compare, from_torch, load_any
from tiny_peer import config_of, models_of, same_function, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
PEER = Peer("hybrid_peer.py")
PARTS = {"mixer.in_proj.weight": ["z", "x", "B", "C", "dt"],
         "mixer.conv1d.weight": ["x", "B", "C"],
         "mixer.conv1d.bias": ["x", "B", "C"],
         "self_attention.in_proj.weight": ["query", "key", "value", "z", "beta",
                                           "alpha"],
         "self_attention.conv1d.weight": ["query", "key", "value"]}


def models():
    return models_of("hybrid_models")


def allowed(model_type):
    return [word for fact in models().UNSAID.get(model_type, ())
            for word in ("--allow-unsaid", fact)]


def save(folder, model_type, mtp=False):
    """A model as on the hub: config, class and tensors."""
    from safetensors.torch import load_file, save_file

    tiny = models()
    config = tiny.config_of(model_type)
    model = tiny.model_of(config)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if mtp:
        tensors.update(tiny.mtp_of(config, tensors))
    odd = "backbone.embedding.weight"  # transformers 5 only; it reads both
    if odd in tensors:
        tensors["backbone.embeddings.weight"] = tensors.pop(odd)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path,
              metadata={"format": "pt"})
    return config, type(model), tensors


def step_of(folder):
    return next(p.parent for p in folder.rglob(".metadata"))


def parts_of(name):
    return next((parts for ending, parts in PARTS.items()
                 if name.endswith(ending)), None)


def local_parts(folder, tp):
    """By rank: the parts of a distributed checkpoint that make up a module's
    parameter, joined as by Megatron's loader."""
    import torch
    from dist_readers import boxes, read_dcp

    step = step_of(folder)
    tensors, _ = read_dcp(step)
    held = boxes(step)

    def shares(key):
        whole = tensors[key]
        flat = torch.frombuffer(bytearray(whole.data), dtype=torch.float32)
        value = flat.reshape(whole.shape)
        places = sorted(held[key])
        check(len(places) in (1, tp), f"{key} is in {len(places)} boxes")
        cut = [value[tuple(slice(o, o + n) for o, n in zip(*place))]
               for place in places]
        return cut if len(cut) == tp else cut * tp

    return tensors, shares


def check_dist(folder, config, state, tp):
    import torch

    tensors, shares = local_parts(folder, tp)
    for rank, wanted in enumerate(models().ranks_of(config, state, tp)):
        for name, value in wanted.items():
            parts = parts_of(name)
            check(not parts or name not in tensors, f"{name} is in one key")
            keys = [f"{name}.{p}" for p in parts] if parts else [name]
            got = torch.cat([shares(key)[rank] for key in keys])
            check(torch.equal(got, value), f"{name}, rank {rank} of {tp}")


def there_and_back(folder, model_type):
    tiny = models()
    config, kind, state = save(folder / "source", model_type)
    want = tensors_of(folder / "source")
    for tp in (1, 2, 4):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        result = CKPT.ok("convert", folder / "source", there, "--to",
                         "megatron_torch_dist", "--tp", tp, "--strict-config",
                         "--no-fsync", *allowed(model_type))
        check(result.err.count("warning") <= 1 + ("rounds" in result.err),
              result.err)
        check_dist(there, config, state, tp)
        CKPT.ok("verify", folder / "source", there)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")
        check_equal(config_of(back), config_of(folder / "source"),
                    "config.json")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    alone = folder / "alone"
    CKPT.ok("convert", there, alone, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(alone), want, "without config.json")
    same_function(tiny, kind, folder / "source", alone)


def legacy_ranks(folder, tp):
    found = sorted(folder.rglob("mp_rank_*"))
    check_equal(len(found), tp, "ranks")
    return [load_any(path / "model_optim_rng.pt")["model"] for path in found]


def ranks_files(folder, model_type):
    """The form with one file per rank: its modules' own tensors."""
    import torch

    config, kind, state = save(folder / "source", model_type)
    want = tensors_of(folder / "source")
    before = folder / "source"
    for tp in (2, 4, 1):
        there = folder / f"ranks{tp}"
        CKPT.ok("convert" if tp == 2 else "reshard", before, there,
                *(("--to", "megatron_legacy", *allowed(model_type))
                  if tp == 2 else ()), "-q", "--tp", tp, "--no-fsync")
        for rank, (held, wanted) in enumerate(zip(
                legacy_ranks(there, tp), models().ranks_of(config, state, tp))):
            for name, value in wanted.items():
                check(torch.equal(held[name], value), f"{name}, {rank} of {tp}")
        before = there
    dist, back = folder / "dist", folder / "back"
    CKPT.ok("convert", folder / "ranks4", dist, "-q", "--to",
            "megatron_torch_dist", "--tp", 2, "--no-fsync")
    check_dist(dist, config, state, 2)
    again = folder / "again"
    CKPT.ok("convert", dist, again, "-q", "--to", "megatron_legacy", "--tp", 4,
            "--no-fsync")
    for held, wanted in zip(legacy_ranks(again, 4),
                            models().ranks_of(config, state, 4)):
        compare({n: from_torch(held[n]) for n in wanted},
                {n: from_torch(v) for n, v in wanted.items()}, "again")
    CKPT.ok("convert", folder / "ranks4", back, "-q", "--to", "safetensors",
            "--no-fsync")
    compare(tensors_of(back), want, "home from ranks")


def too_many_ranks(folder, model_type):
    """A Mamba group, or a delta net's key head, belongs to one rank: MambaMixer
    asserts it (megatron-core 0.16.1), although the rows divide."""
    config, _, _ = save(folder / "source", model_type)
    count = getattr(config, "linear_num_key_heads", None) or config.n_groups
    tp = 2 * count
    run = CKPT.run("convert", folder / "source", folder / "no", "--to",
                   "megatron_legacy", "--tp", tp, *allowed(model_type)).want(5)
    check(f"{count} " in run.err and f"tp={tp}" in run.err, run.err)
    check(not (folder / "no").exists(), "something was written")
    CKPT.ok("convert", folder / "source", folder / "ranks", "-q", "--to",
            "megatron_legacy", "--tp", count, *allowed(model_type))
    run = CKPT.run("reshard", folder / "ranks", folder / "no", "--tp", tp)
    check("tp=" in run.want(5).err, run.err)
    # Its keys are whole: any job can load them, except one with so many ranks.
    run = CKPT.ok("convert", folder / "source", folder / "dist", "--to",
                  "megatron_torch_dist", "--tp", tp, *allowed(model_type))
    check("builds no such model" in run.err, run.err)


def further_tokens(folder, model_type):
    """The module that predicts a further token comes along."""
    save(folder / "source", model_type, mtp=True)
    want = tensors_of(folder / "source")
    check(any(name.startswith("mtp.") for name in want), "no mtp")
    for tp in (1, 2):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        CKPT.ok("convert", folder / "source", there, "-q", "--to",
                "megatron_torch_dist", "--tp", tp, "--no-fsync")
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")


def other_containers(folder, model_type):
    """transformers' names in other containers need no rules."""
    save(folder / "source", model_type)
    want = tensors_of(folder / "source")
    before = folder / "source"
    for form in ("dcp", "torch", "safetensors"):
        CKPT.ok("convert", before, folder / form, "-q", "--to", form,
                "--no-fsync")
        before = folder / form
    compare(tensors_of(before), want, "names kept")


def megatrons_loader(folder, model_type):
    """Megatron's own module takes its layer from the checkpoint."""
    from safetensors.torch import save_file

    tiny = models()
    config, _, state = save(folder / "source", model_type)
    kind, prefix, numbers = tiny.layer_of(config)
    for tp in (1, 2):
        there = folder / f"there{tp}"
        CKPT.ok("convert", folder / "source", there, "-q", "--to",
                "megatron_torch_dist", "--tp", tp, "--no-fsync",
                *allowed(model_type))
        paths = []
        for rank, parts in enumerate(tiny.ranks_of(config, state, tp)):
            paths.append(str(folder / f"rank{rank}of{tp}.safetensors"))
            save_file({n: v.contiguous() for n, v in parts.items()}, paths[-1])
        wrong = PEER.ask(dict(path=str(step_of(there)), kind=kind,
                              prefix=prefix, numbers=numbers, expected=paths))
        check(wrong is None, wrong)


def has_megatron():
    return importlib.util.find_spec("megatron.core") is not None


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    try:
        types = list(models().TYPES)
    except Skip as skip:
        print("skipped:", skip)
        sys.exit(77)
    for model_type in types:
        suite.add(model_type, there_and_back, model_type)
        suite.add("ranks " + model_type, ranks_files, model_type)
        # Without a norm the mixer is another one, built by Megatron-Bridge.
        if has_megatron() and model_type != "falcon_h1":
            suite.add("megatron " + model_type, megatrons_loader, model_type)
        suite.add("containers " + model_type, other_containers, model_type)
        if model_type in ("mamba2", "qwen3_next"):
            suite.add("groups " + model_type, too_many_ranks, model_type)
        if model_type.startswith("qwen3"):
            suite.add("mtp " + model_type, further_tokens, model_type)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
