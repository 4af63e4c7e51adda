# SPDX-License-Identifier: Apache-2.0
"""python_test.py's cases about shards: with transformers' names, in dialects,
of a few tensors."""

import copy
import hashlib
import json
import pickle

import torch
import vllm_peer_test as vllm

import ckpt
from ckpt.errors import UnfaithfulError
from support import DATA, check, check_equal, load_pt

# Fused from several tensors: their ranks' parts, one below the other.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"),
         "gate_up_proj": ("gate_proj", "up_proj")}
# Whole experts are stacked there, norms of all heads are cut, and a vocabulary
# is padded.
OTHERS = ("experts.w13", "experts.w2", "q_norm", "k_norm", "embed_tokens",
          "lm_head")
# Names whose cut depends on the model: stacked experts.
STACKED = ["*.experts.gate_up_proj", "*.experts.down_proj",
           "*.input_linear.weight", "*.output_linear.weight"]
DIALECTS = ("hf", "mcore", "meta", "fairseq2", "olmo_core")
# Hugging Face golden -> the dialects in which two ranks can have it.
TWO = {"llama": DIALECTS, "llama_mha_f16": DIALECTS,
       "qwen3_bf16": ("hf", "mcore", "fairseq2", "olmo_core"),
       "olmo2_bf16": ("hf", "mcore", "fairseq2", "olmo_core"),
       "qwen2_f32": ("hf", "mcore", "fairseq2"), "mixtral_f32": ("hf", "mcore"),
       "qwen2_moe_bf16": ("hf", "mcore"), "gemma2_f32": ("hf", "mcore"),
       "deepseek_v3_mtp_bf16": ("hf", "mcore"), "gpt_neox_f16": ("hf", "mcore"),
       "starcoder2_bf16": ("hf", "mcore"), "phi3_bf16": ("mcore",),
       "falcon_7b_bf16": ("mcore",)}


def vllm_part(mine, name):
    """A rank's vLLM tensor from the parts under transformers' names."""
    stem, module, parameter = name.rsplit(".", 2) if name.count(".") > 1 else (
        "", *name.split("."))
    parts = [".".join(filter(None, (stem, part, parameter)))
             for part in FUSED.get(module, (module,))]
    if any(part not in mine for part in parts):
        return None
    return torch.cat([mine[part].torch() for part in parts])


def as_vllm(folder):
    """A rank's shards equal what vLLM's own model classes held of the same
    model (tests/data/vllm/models), except where it stacks, pads or repeats
    them: its four ranks share two heads of keys, which is refused here."""
    held = 0
    for path in sorted(vllm.MODELS.glob("*.json")):
        truth = json.loads(path.read_text())
        (ranks, want), *_ = truth["ranks"].items()
        source = ckpt.open(vllm.write_source(folder / path.stem, truth))
        left_out = [glob for glob in STACKED if any(
            name.endswith(glob[1:]) for name in truth["tensors"])]
        try:
            next(source.select(exclude=left_out).shards(tp=int(ranks)))
            check(False, f"{path.stem}: {ranks} ranks share its keys")
        except UnfaithfulError as error:
            check("whole heads" in str(error), str(error))
        some = source.select(exclude=[*left_out, "*.k_proj.*", "*.v_proj.*"])
        for rank in range(int(ranks)):
            mine = dict(some.shards(tp=int(ranks), rank=rank))
            for name, (dtype, shape, digests) in want.items():
                part = vllm_part(mine, name)
                if part is None or dtype != "bf16" or any(
                        word in name for word in OTHERS):
                    continue
                check_equal(list(part.shape), shape,
                            f"{path.stem} {rank}: {name}")
                digest = hashlib.sha256(part.contiguous().view(
                    torch.uint8).numpy().tobytes()).hexdigest()
                check(digest.startswith(digests[rank]),
                      f"{path.stem} {rank}: {name} differs")
                held += 1
    check(held > 150, f"{held} compared")


def joins(shards, tensor, name):
    """Checks that ranks' parts make up the whole. Returns the dimension that
    they split."""
    whole = tensor.read().torch()
    parts = [one[name].torch() for one in shards]
    dims = [d for d in range(whole.dim())
            if parts[0].shape[d] != whole.shape[d]]
    check(len(dims) < 2, f"{name}: {parts[0].shape} of {whole.shape}")
    if not dims:
        check(all(torch.equal(part, whole) for part in parts), name)
        return None
    split = torch.cat(parts, dims[0])
    if not torch.equal(split, whole):  # [gate; up]: the halves alternate
        halves = [torch.cat([part.chunk(2, dims[0])[half] for part in parts],
                            dims[0]) for half in (0, 1)]
        check(torch.equal(torch.cat(halves, dims[0]), whole), name)
    return dims[0]


def of_dialects(_):
    """Two ranks share what a dialect cuts, and only whole tensors repeat."""
    for case, dialects in TWO.items():
        with ckpt.open(DATA / "hf" / case / "ckpt") as source:
            for dialect in dialects:
                named = source.in_dialect(dialect)
                shards = [dict(source.shards(tp=2, rank=rank, dialect=dialect))
                          for rank in (0, 1)]
                check_equal(sorted(shards[1]), sorted(named), case)
                split = [name for name, tensor in named.items()
                         if joins(shards, tensor, name) is not None]
                weights = [name for name, tensor in named.items()
                           if len(tensor.shape) > 1]
                check(2 * len(split) > len(weights),
                      f"{case} as {dialect}: {len(split)} of {len(weights)} "
                      "weights are cut")


def as_meta(folder):
    """In Meta's dialect: the contents of its files, as Meta's own code loads
    them (logits_test.py)."""
    source = DATA / "hf/llama/ckpt"
    ckpt.convert(source, folder / "out", to="meta", tp=2)
    with ckpt.open(source) as opened:
        for rank in (0, 1):
            file = load_pt(folder / f"out/consolidated.0{rank}.pth")
            mine = dict(opened.shards(tp=2, rank=rank, dialect="meta"))
            check_equal(sorted(mine), sorted(file), "names")
            for name, tensor in file.items():
                check(torch.equal(mine[name].torch(), tensor), name)


def chosen(_):
    """Some tensors, under other names, in this order and in the other; copies
    give the same."""
    with ckpt.open(DATA / "hf/llama/ckpt") as source:
        some = source.in_dialect("mcore").select(
            keys=["*linear_fc1.weight"], layers="1")
        check_equal(list(some), ["decoder.layers.1.mlp.linear_fc1.weight"],
                    "names")
        want = source.in_dialect("mcore")[
            "decoder.layers.1.mlp.linear_fc1.weight"].read().torch()
        for one in (some, pickle.loads(pickle.dumps(some)),
                    copy.copy(some)):
            name, = one
            check(torch.equal(one[name].read().torch(), want), name)
        # The checkpoint that it was made from may be closed.
        shard, = dict(some.shards(tp=2, rank=1)).values()
        source.close()
        check_equal(tuple(shard.torch().shape), (want.shape[0] // 2,
                                                 want.shape[1]), "shape")
        check(torch.equal(some[name].read().torch(), want), "closed")
        keys = ["model.norm.weight"]
    with ckpt.open(DATA / "hf/llama/ckpt") as source:
        check_equal([name for name, _ in source.shards(tp=2, keys=keys)], keys,
                    "keys")
        # Layer 1 of two is on the second of two stages, whatever else is asked.
        for stage, count in enumerate((0, 9)):
            check_equal(len(list(source.shards(
                pp=2, pp_rank=stage, keys=["*layers.1.*"]))), count, "stage")
        for call, kind in (
                (lambda: source.in_dialect("klingon"), ckpt.Error),
                (lambda: source.in_dialect(3), TypeError),
                (lambda: source.select(keys=["nothing"]),
                 UnfaithfulError),
                (lambda: source.select(keys=[3]), TypeError),
                (lambda: source.select(layers="9-1"), ckpt.Error),
                (lambda: next(source.shards(keys=["nothing"])), UnfaithfulError),
                (lambda: source.shards(keys=[3]), TypeError),
                (lambda: next(source.shards(tp=3)), UnfaithfulError)):
            try:
                call()
            except kind:
                continue
            check(False, f"{kind} was to be raised")


CASES = (as_vllm, of_dialects, as_meta, chosen)
