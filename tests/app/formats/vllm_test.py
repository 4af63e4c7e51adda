#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over vLLM's sharded_state: against an emulation of what vLLM's layers
take from a Hugging Face model, and of how its loader reads the files.

vLLM itself needs a GPU's build. `Rank` below repeats the arithmetic of its
weight loaders (one narrow of the checkpoint's tensor into one narrow of the
parameter for each shard id), `load_state` that of ShardedStateLoader.
"""

import glob
import json
import random
import shutil

from support import (
    DATA, Suite, check, check_equal, compare, digest, from_torch,
    read_header, read_safetensors)

CKPT = None  # set by prepare
GOLDEN = DATA / "vllm/tp2"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
SCALES = ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")


class Model:
    """A random model with Hugging Face's names."""

    def __init__(self, seed, *, kind="llama", hidden=32, heads=8, kv_heads=2,
                 head_dim=None, inner=48, vocab=100, layers=2, tied=None,
                 bias=False, dtype="bfloat16"):
        import torch

        generator = torch.Generator().manual_seed(seed)
        self.head_dim = head_dim or hidden // heads
        self.heads, self.kv_heads, self.layers = heads, kv_heads, layers
        self.hidden, self.inner, self.vocab = hidden, inner, vocab
        self.tied, self.kind, self.bias = tied, kind, bias

        def new(*shape):
            return torch.randn(*shape, generator=generator).to(
                getattr(torch, dtype))

        t = {EMBEDDING: new(vocab, hidden)}
        q, kv = heads * self.head_dim, kv_heads * self.head_dim
        for layer in range(layers):
            p = f"model.layers.{layer}."
            a = p + "self_attn."
            if kind == "phi3":
                t[a + "qkv_proj.weight"] = new(q + 2 * kv, hidden)
                t[p + "mlp.gate_up_proj.weight"] = new(2 * inner, hidden)
            else:
                for part, rows in (("q", q), ("k", kv), ("v", kv)):
                    t[a + part + "_proj.weight"] = new(rows, hidden)
                    if bias:
                        t[a + part + "_proj.bias"] = new(rows)
                t[p + "mlp.gate_proj.weight"] = new(inner, hidden)
                t[p + "mlp.up_proj.weight"] = new(inner, hidden)
            t[a + "o_proj.weight"] = new(hidden, q)
            if kind == "qwen3":
                t[a + "q_norm.weight"] = new(self.head_dim)
                t[a + "k_norm.weight"] = new(self.head_dim)
            t[p + "mlp.down_proj.weight"] = new(hidden, inner)
            t[p + "input_layernorm.weight"] = new(hidden)
            t[p + "post_attention_layernorm.weight"] = new(hidden)
            if kind == "gemma2":
                for norm in ("pre", "post"):
                    t[p + f"{norm}_feedforward_layernorm.weight"] = new(hidden)
        t["model.norm.weight"] = new(hidden)
        if not (tied or (tied is None and kind.startswith("gemma"))):
            t[HEAD] = new(vocab, hidden)
        self.tensors = t
        self.config = {
            "model_type": kind, "hidden_size": hidden,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "vocab_size": vocab, "intermediate_size": inner,
            "num_hidden_layers": layers}
        if head_dim:
            self.config["head_dim"] = head_dim
        if tied is not None:
            self.config["tie_word_embeddings"] = tied

    def write(self, folder):
        from safetensors.torch import save_file

        folder.mkdir()
        save_file(self.tensors, folder / "model.safetensors",
                  {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "tokenizer.json").write_text("{}")
        return folder

    def rank(self, tp, rank, scales=True):
        return Rank(self, tp, rank, scales).state


class Rank:
    """One rank's parameters, filled as vLLM's weight loaders do."""

    def __init__(self, model, tp, rank, scales):
        import torch

        self.model, self.tp, self.rank = model, tp, rank
        self.state = {}
        q = model.heads * model.head_dim
        kv = model.kv_heads * model.head_dim
        # QKVParallelLinear: num_kv_heads, num_kv_head_replicas
        replicas = max(1, tp // model.kv_heads)
        my_q, my_kv = q // tp, kv * replicas // tp
        rows = {"q": (0, my_q, rank), "k": (my_q, my_kv, rank // replicas),
                "v": (my_q + my_kv, my_kv, rank // replicas)}
        self.vocabulary()
        for layer in range(model.layers):
            p = f"model.layers.{layer}."
            a = p + "self_attn."
            for what in ("weight", "bias"):
                if what == "bias" and not model.bias:
                    continue
                whole = self.parts(a + "qkv_proj." + what,
                                   [a + f"{x}_proj.{what}" for x in "qkv"],
                                   [q, kv, kv])
                out = torch.empty(my_q + 2 * my_kv, *whole[0].shape[1:],
                                  dtype=whole[0].dtype)
                for loaded, (at, size, shard) in zip(whole, rows.values()):
                    out.narrow(0, at, size).copy_(
                        loaded.narrow(0, shard * size, size))
                self.state[a + "qkv_proj." + what] = out
            self.columns(a + "o_proj.weight")
            whole = self.parts(p + "mlp.gate_up_proj.weight",
                               [p + "mlp.gate_proj.weight",
                                p + "mlp.up_proj.weight"],
                               [model.inner, model.inner])
            size = model.inner // tp
            self.state[p + "mlp.gate_up_proj.weight"] = torch.cat(
                [w.narrow(0, rank * size, size) for w in whole])
            self.columns(p + "mlp.down_proj.weight")
            if scales:
                for scale in SCALES:
                    self.state[a + "attn." + scale] = torch.tensor(1.0)
        for name, tensor in model.tensors.items():
            if "norm" in name:
                self.state[name] = tensor

    def parts(self, fused, names, sizes):
        t = self.model.tensors
        if fused in t:
            return list(t[fused].split(sizes))
        return [t[n] for n in names]

    def columns(self, name):
        self.state[name] = self.model.tensors[name].chunk(
            self.tp, 1)[self.rank].contiguous()

    def vocabulary(self):
        """VocabParallelEmbedding: padded to 64 rows, then even parts."""
        import torch

        t = self.model.tensors
        padded = -(-self.model.vocab // 64) * 64
        for name in (EMBEDDING, HEAD):
            if name not in t:
                continue
            full = torch.zeros(padded, self.model.hidden, dtype=t[name].dtype)
            full[:self.model.vocab] = t[name]
            # Tied: two keys for one memory, of which the smaller is kept.
            gemma = self.model.kind.startswith("gemma")
            key = name if HEAD in t or gemma else HEAD
            self.state[key] = full.chunk(self.tp)[self.rank].contiguous()


def load_state(folder, rank, expected):
    """ShardedStateLoader.load_weights into parameters of those shapes."""
    import torch
    from safetensors import safe_open

    state = {k: torch.full_like(v, 7) for k, v in expected.items()}
    loaded = dict(state)
    paths = glob.glob(str(folder / f"model-rank-{rank}-part-*.safetensors"))
    check(paths, f"no parts of rank {rank}")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():
                tensor = file.get_tensor(key)
                param = state[key].data  # another key is a KeyError
                for dim, size in enumerate(tensor.shape):
                    if size < param.shape[dim]:
                        param = param.narrow(dim, 0, size)
                param.copy_(tensor)
                state.pop(key)
    check(not state, f"Missing keys {tuple(state)} in loaded state!")
    return loaded


def check_ranks(folder, model, tp, scales=True):
    import torch

    for rank in range(tp):
        want = model.rank(tp, rank, scales)
        got = load_state(folder, rank, want)
        for name, tensor in want.items():
            check(torch.equal(got[name], tensor), f"rank {rank}: {name}")
        stored = {}
        for path in sorted(folder.glob(f"model-rank-{rank}-part-*")):
            check("__metadata__" not in read_header(path)[0], "metadata")
            part = read_safetensors(path)
            check(not set(part) & set(stored), "a tensor is in two parts")
            stored.update(part)
        compare(stored, {k: from_torch(v) for k, v in want.items()},
                f"rank {rank}")
    check(not list(folder.glob(f"model-rank-{tp}-*")), "another rank")


def write_ranks(folder, model, tp):
    """As vLLM's save_model does."""
    from safetensors.torch import save_file

    folder.mkdir()
    for rank in range(tp):
        save_file(model.rank(tp, rank),
                  folder / f"model-rank-{rank}-part-0.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config))
    return folder


def write_stages(folder, model, tp, pp, word="tp"):
    """What save_model does in each stage: PPMissingLayer keeps the layers'
    numbers, the first stage has the embeddings and the last one norm and head;
    the last one also has tied embeddings, as its head."""
    from safetensors.torch import save_file

    folder.mkdir()
    layers = [model.layers * s // pp for s in range(pp + 1)]
    for rank in range(tp):
        state = model.rank(tp, rank)
        for stage in range(pp):
            part = {}
            for name, tensor in state.items():
                if name.startswith("model.layers."):
                    layer = int(name.split(".")[2])
                    if layers[stage] <= layer < layers[stage + 1]:
                        part[name] = tensor
                elif name == HEAD and model.tied:
                    if stage == 0:
                        part[EMBEDDING] = tensor
                    if stage == pp - 1:
                        part[HEAD] = tensor
                elif stage == (0 if name == EMBEDDING else pp - 1):
                    part[name] = tensor
            save_file(part, folder / f"model-pp-{stage}-{word}-{rank}-part-0"
                                     ".safetensors")
    (folder / "config.json").write_text(json.dumps(model.config))
    return folder


def wants(result, code, *words):
    result.want(code)
    for word in words:
        check(word in result.err + result.out, f"no '{word}' in\n{result}")


# ------------------------------------------------------------------- golden
def test_golden(folder):
    path = GOLDEN / "ckpt"
    document = CKPT.inspect(path, "--digest")
    check_equal(document["format"], "vllm", "format")
    check_equal(document["topology"]["tp"], 2, "tp")
    check_equal([p["kind"] for p in document["problems"]], ["no_config"],
                "problems")
    want = read_safetensors(GOLDEN / "expected.safetensors")
    check_equal({t["name"]: (t["dtype"], t["shape"], t["digest"])
                 for t in document["tensors"]},
                {n: (t.dtype, list(t.shape), digest(t.data))
                 for n, t in want.items()}, "tensors")
    CKPT.ok("verify", path, "--deep")
    CKPT.ok("unshard", path, folder / "one.safetensors")
    compare(read_safetensors(folder / "one.safetensors"), want, "one file")
    CKPT.ok("reshard", path, folder / "one", "--tp", 1)
    compare(read_safetensors(
        folder / "one/model-rank-0-part-0.safetensors"), want, "one rank")
    CKPT.ok("reshard", path, folder / "two")
    for rank in range(2):
        got, told = {}, {}
        for part in (folder / "two").glob(f"model-rank-{rank}-*"):
            got.update(read_safetensors(part))
        for part in path.glob(f"model-rank-{rank}-*"):
            told.update(read_safetensors(part))
        compare(got, told, f"rank {rank}")


def test_golden_settled(folder):
    """Without config.json, heads are not cut unless told how."""
    path = GOLDEN / "ckpt"
    wants(CKPT.run("reshard", path, folder / "four", "--tp", 4), 5,
          "config.json")
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"*.qkv_proj.*": {"dim": 0, "groups": 3}}))
    # 10 rows of an unpadded vocabulary.
    CKPT.ok("reshard", path, folder / "four", "--tp", 4, "--shard-dims",
            rules, "--exclude", "{lm_head,*embed_tokens}.weight")
    want = read_safetensors(GOLDEN / "expected.safetensors")
    qkv = want["model.layers.0.self_attn.qkv_proj.weight"].data
    row = len(qkv) // 12
    for rank in range(4):
        got = read_safetensors(
            folder / f"four/model-rank-{rank}-part-0.safetensors")
        check_equal(got["model.layers.0.self_attn.qkv_proj.weight"].data,
                    b"".join(qkv[(g * 4 + rank) * row:][:row]
                             for g in range(3)), "qkv")


# ---------------------------------------------------------- from Hugging Face
MODELS = {
    "llama": dict(),
    "llama tied": dict(tied=True),
    "mistral": dict(kind="mistral", head_dim=6, vocab=128),
    "qwen2": dict(kind="qwen2", bias=True, tied=True, vocab=65),
    "qwen3": dict(kind="qwen3", head_dim=8, dtype="float32"),
    "phi3": dict(kind="phi3", kv_heads=8),
    "gemma": dict(kind="gemma", kv_heads=1, dtype="float16"),
}


def test_fuse(folder, name, tp):
    model = Model(1, **MODELS[name])
    hf, out = model.write(folder / "hf"), folder / "out"
    CKPT.ok("convert", hf, out, "--to", "vllm", "--tp", tp, "--verify")
    check_ranks(out, model, tp)
    for file in ("config.json", "tokenizer.json"):
        check((out / file).read_bytes() == (hf / file).read_bytes(), file)
    CKPT.ok("verify", out, "--deep")


def test_between(folder, a, b):
    """From vLLM's ranks to others: A -> B -> A."""
    model = Model(2, bias=True, kind="qwen2")
    source = write_ranks(folder / "a", model, a)
    CKPT.ok("verify", source, "--deep")
    CKPT.ok("reshard", source, folder / "b", "--tp", b)
    check_ranks(folder / "b", model, b)
    CKPT.ok("reshard", folder / "b", folder / "c", "--tp", f"{b}->{a}")
    check_ranks(folder / "c", model, a)
    CKPT.ok("verify", source, folder / "c")
    CKPT.ok("verify", source, folder / "b")


def test_random(folder, seed):
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 4, 8])
    heads = kv_heads * rng.choice([1, 2, 4])
    sizes = [n for n in (1, 2, 4, 8, 16) if heads % n == 0]
    model = Model(seed, heads=heads, kv_heads=kv_heads, hidden=heads * 4,
                  head_dim=rng.choice([None, 2, 6]), inner=64,
                  vocab=rng.choice([64, 90, 1]),
                  kind=rng.choice(["llama", "qwen3", "phi3", "gemma2"]),
                  dtype=rng.choice(["bfloat16", "float32", "float16"]))
    a, b = rng.choice(sizes), rng.choice(sizes)
    CKPT.ok("convert", model.write(folder / "hf"), folder / "a", "--to",
            "vllm", "--tp", a)
    check_ranks(folder / "a", model, a)
    CKPT.ok("reshard", folder / "a", folder / "b", "--tp", b)
    check_ranks(folder / "b", model, b)


def test_parts(folder):
    """--max-shard-size: parts from 0, in order, none without tensors."""
    model = Model(3)
    hf = model.write(folder / "hf")
    CKPT.ok("convert", hf, folder / "out", "--to", "vllm", "--tp", 2,
            "--max-shard-size", "3KB")
    check_ranks(folder / "out", model, 2)
    parts = sorted((folder / "out").glob("model-rank-1-*"))
    check(len(parts) > 3, f"{len(parts)} parts")
    for number in range(len(parts)):
        path = folder / f"out/model-rank-1-part-{number}.safetensors"
        part = read_safetensors(path)
        check(part, "a part without tensors")
        check(len(part) == 1 or sum(len(t.data) for t in part.values()) <= 3000,
              "a part is too large")
    CKPT.ok("reshard", folder / "out", folder / "four", "--tp", 4)
    check_ranks(folder / "four", model, 4)


def test_old(folder):
    """Older versions have no scale buffers: --exclude leaves them out."""
    model = Model(4)
    CKPT.ok("convert", model.write(folder / "hf"), folder / "new", "--to",
            "vllm", "--tp", 2)
    CKPT.ok("reshard", folder / "new", folder / "old", "--exclude",
            "*.attn._*")
    check_ranks(folder / "old", model, 2, scales=False)


def test_partial(folder):
    model = Model(5)
    source = write_ranks(folder / "a", model, 4)
    CKPT.ok("unshard", source, folder / "one.safetensors", "--layers", "1",
            "--keys", "model.layers.*", "--exclude", "*.attn._*")
    got = read_safetensors(folder / "one.safetensors")
    check_equal(sorted(got), sorted(
        f"model.layers.1.{n}.weight" for n in (
            "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
            "mlp.down_proj", "input_layernorm", "post_attention_layernorm")),
        "names")
    whole = model.rank(1, 0)
    compare(got, {n: from_torch(whole[n]) for n in got}, "layer 1")
    CKPT.ok("reshard", source, folder / "b", "--tp", 8, "--keys",
            "*.qkv_proj.*")
    for rank in range(8):
        got = read_safetensors(
            folder / f"b/model-rank-{rank}-part-0.safetensors")
        want = model.rank(8, rank)
        compare(got, {n: from_torch(want[n]) for n in want if "qkv" in n},
                f"rank {rank}")


def test_experts(folder):
    """w13 [experts, gate | up, …] and w2 [experts, …, columns]."""
    import torch
    from safetensors.torch import save_file

    w13, w2 = torch.randn(4, 32, 8), torch.randn(4, 8, 16)
    router = torch.randn(4, 8)
    p = "model.layers.0.mlp."

    def state(tp, rank):
        size = 16 // tp
        return {p + "experts.w13_weight": torch.cat(
                    [w13[:, :16].narrow(1, rank * size, size),
                     w13[:, 16:].narrow(1, rank * size, size)], 1),
                p + "experts.w2_weight": w2.narrow(
                    2, rank * size, size).contiguous(),
                p + "gate.weight": router}

    source = folder / "a"
    source.mkdir()
    for rank in range(2):
        save_file(state(2, rank),
                  source / f"model-rank-{rank}-part-0.safetensors")
    (source / "config.json").write_text(json.dumps(
        {"model_type": "qwen3_moe", "hidden_size": 8, "num_experts": 4}))
    for tp in (1, 2, 8, 16):
        out = folder / str(tp)
        CKPT.ok("reshard", source, out, "--tp", tp)
        for rank in range(tp):
            compare(read_safetensors(
                out / f"model-rank-{rank}-part-0.safetensors"),
                {k: from_torch(v) for k, v in state(tp, rank).items()},
                f"rank {rank} of {tp}")
    (source / "config.json").write_text(json.dumps({"num_experts": 10}))
    wants(CKPT.run("inspect", source), 5, "4 experts of 10")


# ---------------------------------------------------------------- what breaks
def change(path, edit):
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_missing(folder):
    model = Model(6)
    source = write_ranks(folder / "a", model, 4)
    for rank, code in ((1, 4), (3, 4)):
        copy = folder / f"copy{rank}"
        shutil.copytree(source, copy)
        (copy / f"model-rank-{rank}-part-0.safetensors").unlink()
        wants(CKPT.run("inspect", copy), code,
              f"model-rank-{rank}" if rank == 1 else "config.json")
        CKPT.run("verify", copy).want(1)
        CKPT.run("reshard", copy, folder / "out", "--tp", 2).want(code)
    CKPT.ok("reshard", source, folder / "parts", "--max-shard-size", "2KB")
    last = sorted((folder / "parts").glob("model-rank-2-*"),
                  key=lambda p: int(p.stem.split("-")[-1]))
    last[-1].unlink()
    wants(CKPT.run("inspect", folder / "parts"), 4, "rank 2")
    last[1].unlink()
    wants(CKPT.run("inspect", folder / "parts"), 4, last[1].name)


def test_unequal(folder):
    """Norms, and heads that two ranks hold, are the same on each."""
    for name, at in (("model.norm.weight", 3),
                     ("model.layers.0.self_attn.qkv_proj.weight", -1)):
        base = folder / name
        base.mkdir()
        source = write_ranks(base / "a", Model(7), 8)

        def edit(tensors):
            tensors[name].view(-1)[at] += 1

        change(source / "model-rank-7-part-0.safetensors", edit)
        wants(CKPT.run("verify", source, "--deep"), 1, name)
        wants(CKPT.run("reshard", source, base / "out", "--tp", 1), 4, name)
        check(not (base / "out").exists(), "something was written")


def test_unlike(folder):
    import torch

    edits = {
        "is not among the tensors of rank 1":
            lambda t: t.pop("model.norm.weight"),
        "on rank 0": lambda t: t.update({"model.norm.weight": torch.ones(3)}),
        "rank 0, though": lambda t: t.update({"more": torch.ones(3)}),
    }
    for index, (word, edit) in enumerate(edits.items()):
        source = write_ranks(folder / str(index), Model(8), 2)
        change(source / "model-rank-1-part-0.safetensors", edit)
        wants(CKPT.run("inspect", source), 4, word)
    source = write_ranks(folder / "twice", Model(8), 2)
    shutil.copy(source / "model-rank-1-part-0.safetensors",
                source / "model-rank-1-part-1.safetensors")
    wants(CKPT.run("inspect", source), 4, "is in model-rank-1-part-0")


def test_config(folder):
    """config.json that contradicts the files, or itself."""
    model = Model(9)
    source = write_ranks(folder / "a", model, 2)
    rows = [
        ({"num_attention_heads": 4, "head_dim": 4}, 4, "num_attention_heads"),
        ({"num_key_value_heads": 4}, 4, "num_key_value_heads"),
        ({"num_key_value_heads": 3}, 4, "not a multiple"),
        ({"num_attention_heads": 0}, 4, "expected a count"),
        ({"num_attention_heads": 1 << 63}, 4, "expected a count"),
        ({"vocab_size": 1000}, 4, "vocab_size"),
        ({"hidden_size": 64, "head_dim": 4}, 5, "hidden_size"),
    ]
    for edit, code, word in rows:
        (source / "config.json").write_text(
            json.dumps({**model.config, **edit}))
        wants(CKPT.run("inspect", source), code, word)
    for text in ("", "[]", "{", "\0", "[" * 100000):
        (source / "config.json").write_text(text)
        wants(CKPT.run("inspect", source), 4, "config.json")
    (source / "config.json").write_text(json.dumps(
        {"text_config": model.config}))
    CKPT.ok("reshard", source, folder / "b", "--tp", 4)
    check_ranks(folder / "b", model, 4)


def test_refused(folder):
    model = Model(10)
    hf, out = model.write(folder / "hf"), folder / "out"
    ranks = write_ranks(folder / "a", model, 2)
    rows = [
        (hf, {}, ["--tp", 3], 5, "heads"), (hf, {}, ["--tp", 16], 5, "heads"),
        (hf, {}, ["--pp", 2], 5, "pp=2"), (hf, {}, ["--tp", 5000], 2, "4096"),
        (ranks, {}, ["--tp", 3], 5, "heads"),
        (hf, {"model_type": "falcon", "ffn_hidden_size": 48, "num_kv_heads": 2,
              "new_decoder_architecture": True}, [], 5,
         "the model has no place for"),
        (hf, {"quantization_config": {}}, [], 5, "quantization_config"),
        (hf, {"quantization_config": {
            "quant_method": "compressed-tensors", "config_groups": {},
            "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, [], 5,
         "no weight is quantized"),
        (hf, {}, ["--exclude", "*.k_proj.*"], 5, "vLLM joins them"),
    ]
    for source, edit, args, code, word in rows:
        (source / "config.json").write_text(
            json.dumps({**model.config, **edit}))
        wants(CKPT.run("convert", source, out, "--to", "vllm", *args), code,
              word)
        check(not out.exists(), "something was written")
    (hf / "config.json").unlink()
    wants(CKPT.run("convert", hf, out, "--to", "vllm"), 5, "config.json")


def test_quantized(folder):
    """Weights that vLLM packed are not cut, only kept as they are."""
    import torch

    def edit(tensors):
        name = "model.layers.0.mlp.down_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    source = write_ranks(folder / "a", Model(11), 2)
    for rank in range(2):
        change(source / f"model-rank-{rank}-part-0.safetensors", edit)
    wants(CKPT.run("reshard", source, folder / "out", "--tp", 1), 5,
          "--shard-dims")
    one = write_ranks(folder / "b", Model(11), 1)
    change(one / "model-rank-0-part-0.safetensors", edit)
    CKPT.ok("reshard", one, folder / "same")
    wants(CKPT.run("reshard", one, folder / "out", "--tp", 2), 5,
          "--shard-dims")


def test_tied_head(folder):
    """A head beside tied embeddings must be the same."""
    import torch

    model = Model(12, tied=True)
    model.tensors[HEAD] = model.tensors[EMBEDDING].clone()
    hf = model.write(folder / "hf")
    CKPT.ok("convert", hf, folder / "out", "--to", "vllm", "--tp", 2)
    del model.tensors[HEAD]
    check_ranks(folder / "out", model, 2)
    model.tensors[HEAD] = torch.zeros_like(model.tensors[EMBEDDING])
    other = model.write(folder / "other")
    wants(CKPT.run("convert", other, folder / "no", "--to", "vllm"), 5, HEAD)


def test_stages(folder, word, tied, tp, pp):
    """Pipelines: the names of vLLM and of SGLang."""
    model = Model(21, layers=4, tied=tied)
    source = write_stages(folder / "a", model, tp, pp, word)
    shown = json.loads(CKPT.ok("inspect", source, "--json").out)
    check_equal(shown["topology"]["pp"], pp, "stages")
    CKPT.ok("reshard", source, folder / "out", "--tp", 4, "--pp", 1)
    check_ranks(folder / "out", model, 4)
    CKPT.ok("convert", source, folder / "hf", "--to", "safetensors",
            "--dialect", "hf")
    compare(read_safetensors(folder / "hf/model.safetensors"),
            {k: from_torch(v) for k, v in model.tensors.items()}, "HF")


def test_stages_refused(folder):
    import torch
    from safetensors.torch import load_file, save_file

    model = Model(22, layers=4, tied=True)
    source = write_stages(folder / "a", model, 2, 2)
    last = source / "model-pp-1-tp-1-part-0.safetensors"
    state = load_file(last)
    state[HEAD] = torch.zeros_like(state[HEAD])
    save_file(state, last)
    wants(CKPT.run("convert", source, folder / "no", "--to", "safetensors"),
          4, "this copy differs")
    last.rename(source / "model-pp-1-tp-1-part-1.safetensors")
    wants(CKPT.run("inspect", source), 4, "missing",
          "model-pp-1-tp-1-part-0.safetensors")
    (source / "model-pp-1-tp-1-part-1.safetensors").unlink()
    wants(CKPT.run("inspect", source), 4, "missing",
          "model-pp-1-tp-1-part-0.safetensors")
    save_file(state, source / "model-rank-1-part-0.safetensors")
    wants(CKPT.run("inspect", source), 4, "are of two checkpoints")
    lone = folder / "lone"
    lone.mkdir()
    (lone / "model-pp-4294967295-tp-4294967295-part-4294967295.safetensors"
     ).write_bytes(b"x")
    wants(CKPT.run("inspect", lone), 4, "missing")


def test_hostile(folder):
    base = folder / "names"
    base.mkdir()
    (base / "model-rank-4294967295-part-4294967295.safetensors").write_bytes(
        b"x")
    wants(CKPT.run("inspect", base), 4, "missing")
    source = write_ranks(folder / "a", Model(13), 2)
    path = source / "model-rank-1-part-0.safetensors"
    data = path.read_bytes()
    rng = random.Random(2)
    for _ in range(60):
        broken = bytearray(data)
        if rng.random() < 0.3:
            broken = broken[:rng.randrange(len(broken))]
        else:
            for _ in range(rng.randrange(1, 8)):
                broken[rng.randrange(2500)] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        result = CKPT.run("verify", source, "--deep")
        check(result.code in (0, 1), str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("golden", test_golden)
    suite.add("golden settled", test_golden_settled)
    for name, options in MODELS.items():
        for tp in (1, 2, 4, 8):
            suite.add(f"fuse {name} {tp}", test_fuse, name, tp)
    for a in (1, 2, 4, 8):
        for b in (1, 2, 4, 8):
            suite.add(f"between {a} {b}", test_between, a, b)
    for seed in range(12):
        suite.add(f"random {seed}", test_random, seed)
    for word, tied, tp, pp in (("tp", False, 1, 2), ("tp", True, 2, 2),
                               ("tp", None, 2, 4), ("rank", True, 1, 3)):
        suite.add(f"stages {word} {tied} {tp} {pp}", test_stages, word, tied,
                  tp, pp)
    for test in (test_stages_refused, test_parts, test_old, test_partial, test_experts,
                 test_missing, test_unequal, test_unlike, test_config,
                 test_refused, test_quantized, test_tied_head, test_hostile):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
