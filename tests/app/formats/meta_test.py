#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt on Meta's checkpoints: torch.save files for 1, 2 and more ranks; ranks
that share key/value heads, proven by attention itself; breakages.
"""

import hashlib
import json
import random
import zipfile

from support import (
    DATA, Skip, Suite, check, check_equal, compare, digest, from_torch,
    load_pt, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "meta"
EMBEDDING = "tok_embeddings.weight"
ROPE = "rope.freqs"


def renderings(case):
    found = {"ckpt": GOLDENS / case / "ckpt"}
    for path in sorted((GOLDENS / case / "other").glob("*")):
        found[path.name] = path
    return found


def expected(case, path):
    """The whole tensors; rope.freqs is in every file of Llama 1 and 2."""
    tensors = read_safetensors(GOLDENS / case / "expected.safetensors")
    first = load_pt(path / "consolidated.00.pth")
    if ROPE in first:
        tensors[ROPE] = from_torch(first[ROPE])
    return tensors


def kind_of(name):
    last = name.split(".")[-2]
    if name == EMBEDDING:
        return "embedding"
    if last in ("wo", "w2"):
        return "columns"
    if last in ("wk", "wv"):
        return "keys"
    return "rows" if last in ("wq", "w1", "w3", "output") else "whole"


def cut(name, tensor, rank, ranks, kv_heads, embedding=0):
    """What Meta's model-parallel layers hold on one rank."""
    kind = kind_of(name)
    if kind == "whole":
        return tensor
    if kind == "keys" and ranks > kv_heads:
        return tensor.chunk(kv_heads, 0)[rank * kv_heads // ranks]
    dim = {"embedding": embedding, "columns": 1}.get(kind, 0)
    return tensor.chunk(ranks, dim)[rank].contiguous()


def load_ranks(folder):
    """As llama's loader does: every *.pth, sorted, one per rank; also
    memory-mapped, and without classes."""
    paths = sorted(folder.glob("*.pth"))
    return [load_pt(path, weights_only=True, mmap=True) for path in paths]


def as_torch(tensor):
    import torch

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16,
             "f16": torch.float16}[tensor.dtype]
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(
        tensor.shape)


# ------------------------------------------------------------------ goldens
def test_inspect(folder, case, path):
    document = CKPT.inspect(path, "--digest")
    ranks = len(list(path.glob("*.pth")))
    check_equal(document["format"], "meta", "format")
    check_equal(document["dialect"], "meta", "dialect")
    check_equal(document["family"], "llama", "family")
    check_equal(document["topology"]["tp"], ranks, "tp")
    check_equal(document["problems"], [], "problems")
    want = expected(case, path)
    check_equal({t["name"]: (t["dtype"], t["shape"], t["digest"])
                 for t in document["tensors"]},
                {n: (t.dtype, list(t.shape), digest(t.data))
                 for n, t in want.items()}, "tensors")
    check_equal({t["name"] for t in document["tensors"]
                 if t["kind"] == "other"}, set(want) & {ROPE}, "other")


def test_unshard(folder, case, path):
    CKPT.ok("verify", path, "--deep")
    out = folder / "model.safetensors"
    CKPT.ok("unshard", path, out)
    compare(read_safetensors(out), expected(case, path), "one file")
    CKPT.ok("unshard", path, folder / "model.pt")
    got = load_pt(folder / "model.pt")
    compare({k: from_torch(v) for k, v in got.items()}, expected(case, path),
            "torch file")
    CKPT.ok("verify", path, out)


def test_same_records(folder, case, path):
    """Files for the same number of ranks have torch's records again, byte for
    byte; only the pickle memoizes less."""
    CKPT.ok("reshard", path, folder / "out")
    check((folder / "out/params.json").read_bytes()
          == (path / "params.json").read_bytes(), "params.json")
    for file in sorted(path.glob("*.pth")):
        told = zipfile.ZipFile(file)
        got = zipfile.ZipFile(folder / "out" / file.name)
        check_equal(got.namelist(), told.namelist(), "records")
        for name in told.namelist():
            if not name.endswith(("/data.pkl", "/serialization_id")):
                check(got.read(name) == told.read(name), name)


def test_ranks(folder, case, path, ranks):
    """With any number of ranks, each holds what Meta's layers cut."""
    info = json.loads((GOLDENS / case / "case.json").read_text())
    out = folder / "out"
    CKPT.ok("reshard", path, out, "--tp", ranks, "--verify")
    want = expected(case, path)
    params = json.loads((path / "params.json").read_text())
    held = len(list(path.glob("*.pth")))
    old = params["vocab_size"] == -1
    dim = 1 if old else 0
    if held > 1:
        part = load_pt(path / "consolidated.00.pth")[EMBEDDING]
        dim = 0 if part.shape[1] == params["dim"] else 1
    files = load_ranks(out)
    check_equal(len(files), ranks, "files")
    for rank, got in enumerate(files):
        check_equal(list(got), list(load_pt(path / "consolidated.00.pth")),
                    "order of keys")
        compare({k: from_torch(v) for k, v in got.items()},
                {k: from_torch(cut(k, as_torch(v), rank, ranks,
                                   info["n_kv_heads"], dim))
                 for k, v in want.items()}, f"rank {rank}")
    check((out / "params.json").read_bytes()
          == (path / "params.json").read_bytes(), "params.json")
    CKPT.ok("verify", out, "--deep")
    CKPT.ok("verify", path, out)
    CKPT.ok("reshard", out, folder / "back", "--tp", held)
    CKPT.ok("verify", path, folder / "back")


# ------------------------------------------------------- models of our making
class Model:
    """A random model and its whole tensors, in Meta's order."""

    def __init__(self, seed, *, dim=32, heads=16, kv_heads=4, hidden=48,
                 vocab=96, layers=2, dtype="bfloat16", head_dim=None):
        import torch

        generator = torch.Generator().manual_seed(seed)
        head_dim = head_dim or dim // heads
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim

        def new(*shape):
            return torch.randn(*shape, generator=generator).to(
                getattr(torch, dtype))

        t = {EMBEDDING: new(vocab, dim), "norm.weight": new(dim),
             "output.weight": new(vocab, dim)}
        for layer in range(layers):
            p = f"layers.{layer}."
            a, f = p + "attention.", p + "feed_forward."
            t[a + "wq.weight"] = new(heads * head_dim, dim)
            t[a + "wk.weight"] = new(kv_heads * head_dim, dim)
            t[a + "wv.weight"] = new(kv_heads * head_dim, dim)
            t[a + "wo.weight"] = new(dim, heads * head_dim)
            t[f + "w1.weight"] = new(hidden, dim)
            t[f + "w2.weight"] = new(dim, hidden)
            t[f + "w3.weight"] = new(hidden, dim)
            t[p + "attention_norm.weight"] = new(dim)
            t[p + "ffn_norm.weight"] = new(dim)
        self.tensors = t
        self.params = {"dim": dim, "n_layers": layers, "n_heads": heads,
                       "n_kv_heads": kv_heads, "vocab_size": vocab,
                       "multiple_of": 16, "norm_eps": 1e-5,
                       # Without it, Meta's class has wider layers.
                       "ffn_dim_multiplier": hidden / int(8 * dim / 3)}

    def write(self, folder, ranks, embedding=0):
        import torch

        folder.mkdir()
        for rank in range(ranks):
            torch.save({k: cut(k, v, rank, ranks, self.kv_heads,
                               embedding).clone()
                        for k, v in self.tensors.items()},
                       folder / f"consolidated.{rank:02}.pth")
        (folder / "params.json").write_text(json.dumps(self.params))
        return folder

    def check(self, folder, ranks, embedding=0):
        files = load_ranks(folder)
        check_equal(len(files), ranks, "files")
        for rank, got in enumerate(files):
            check_equal(list(got), list(self.tensors), "order of keys")
            compare({k: from_torch(v) for k, v in got.items()},
                    {k: from_torch(cut(k, v, rank, ranks, self.kv_heads,
                                       embedding))
                     for k, v in self.tensors.items()}, f"rank {rank}")


def attend(x, part, heads, kv_heads, head_dim):
    """One rank's attention, and the part of the output that it contributes."""
    import torch

    q = (x @ part["wq"].T).view(-1, heads, head_dim).transpose(0, 1)
    k = (x @ part["wk"].T).view(-1, kv_heads, head_dim).transpose(0, 1)
    v = (x @ part["wv"].T).view(-1, kv_heads, head_dim).transpose(0, 1)
    k = k.repeat_interleave(heads // kv_heads, 0)
    v = v.repeat_interleave(heads // kv_heads, 0)
    scores = torch.softmax(q @ k.transpose(1, 2) / head_dim ** 0.5, -1)
    return (scores @ v).transpose(0, 1).reshape(len(x), -1) @ part["wo"].T


def test_attention(folder, ranks):
    """The ranks' attention adds up to the model's: each has the key/value heads
    that its query heads use, repeated or not."""
    import torch

    model = Model(3, dtype="float32")
    out = folder / "out"
    CKPT.ok("reshard", model.write(folder / "src", 1), out, "--tp", ranks)
    x = torch.randn(5, model.params["dim"], dtype=torch.float64)

    def weights(tensors):
        return {n: tensors[f"layers.1.attention.{n}.weight"].double()
                for n in ("wq", "wk", "wv", "wo")}

    want = attend(x, weights(model.tensors), model.heads, model.kv_heads,
                  model.head_dim)
    got = sum(attend(x, weights(part), model.heads // ranks,
                     max(1, model.kv_heads // ranks), model.head_dim)
              for part in load_ranks(out))
    check(torch.allclose(got, want, rtol=0, atol=1e-9),
          f"differs by {(got - want).abs().max()}")


def test_random(folder, seed):
    """A -> B -> A over random models and numbers of ranks."""
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 4, 8])
    heads = kv_heads * rng.choice([1, 2, 4])
    model = Model(seed, heads=heads, kv_heads=kv_heads, vocab=64 * 3,
                  dim=heads * 4, hidden=64, head_dim=rng.choice([None, 6]),
                  dtype=rng.choice(["bfloat16", "float32", "float16"]))
    if model.head_dim == 6:
        model.params["head_dim"] = 6
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if heads % n == 0]
    a, b = rng.choice(sizes), rng.choice(sizes)
    dim = rng.choice([0, 1]) if a > 1 else 0
    source = model.write(folder / "a", a, dim)
    CKPT.ok("reshard", source, folder / "b", "--tp", b)
    model.check(folder / "b", b, dim)
    CKPT.ok("reshard", folder / "b", folder / "c", "--tp", a)
    model.check(folder / "c", a, dim if b > 1 else 0)
    CKPT.ok("verify", source, folder / "c")
    CKPT.ok("verify", folder / "b", "--deep")


def test_embedding(folder):
    """Which way embeddings are cut, and the option that decides it."""
    model = Model(5)
    source = model.write(folder / "a", 1)
    rules = folder / "rules.json"
    rules.write_text(json.dumps({EMBEDDING: 1}))
    CKPT.ok("reshard", source, folder / "rows", "--tp", 2)
    model.check(folder / "rows", 2, 0)
    CKPT.ok("reshard", source, folder / "columns", "--tp", 2, "--shard-dims",
            rules)
    model.check(folder / "columns", 2, 1)
    CKPT.ok("verify", folder / "rows", folder / "columns")
    model.params["vocab_size"] = -1  # Llama 1 and 2
    (source / "params.json").write_text(json.dumps(model.params))
    CKPT.ok("reshard", source, folder / "old", "--tp", 4)
    model.check(folder / "old", 4, 1)


def test_partial(folder):
    """--keys and --layers: what remains isn't a model, but its files load."""
    model = Model(6)
    source = model.write(folder / "a", 4)
    CKPT.ok("reshard", source, folder / "keys", "--tp", 2, "--keys",
            "*.wk.weight")
    for part in load_ranks(folder / "keys"):
        check_equal(list(part), [f"layers.{i}.attention.wk.weight"
                                 for i in range(2)], "keys")
    CKPT.ok("unshard", source, folder / "one.safetensors", "--layers", "1",
            "--keys", "layers.*")
    got = read_safetensors(folder / "one.safetensors")
    check(all(n.startswith("layers.") for n in got) and len(got) == 9,
          f"layers: {list(got)}")


def test_files_beside(folder):
    """params.json in {"model": …}, tokenizer, checklist."""
    model = Model(7)
    source = model.write(folder / "a", 2)
    (source / "params.json").write_text(json.dumps({"model": model.params}))
    (source / "tokenizer.model").write_bytes(b"\0\1")
    lists = source / "checklist.chk"
    lists.write_text("0" * 32 + "  consolidated.00.pth\n")
    CKPT.run("reshard", source, folder / "b", "--tp", 8).want(4)
    lists.write_text(hashlib.md5((source / "consolidated.00.pth").read_bytes())
                     .hexdigest() + "  consolidated.00.pth\n")
    result = CKPT.ok("reshard", source, folder / "b", "--tp", 8, "-v")
    check("MD5" in result.err, "checklist.chk was left out in silence")
    model.check(folder / "b", 8)
    check_equal(sorted(p.name for p in (folder / "b").iterdir()
                       if not p.name.startswith(".")
                       and not p.name.endswith(".pth")),
                ["params.json", "tokenizer.model"], "files")
    check_equal(json.loads((folder / "b/params.json").read_text()),
                {"model": model.params}, "params.json")


def test_mistral(folder):
    """One consolidated.safetensors stays one; ranks are .pth files."""
    from safetensors.torch import save_file

    model = Model(8, head_dim=6)
    source = folder / "a"
    source.mkdir()
    save_file(model.tensors, source / "consolidated.safetensors")
    params = {k: v for k, v in model.params.items() if k != "multiple_of"}
    params.update(head_dim=6, hidden_dim=48)
    (source / "params.json").write_text(json.dumps(params))
    document = CKPT.inspect(source)
    check_equal((document["format"], document["family"]),
                ("meta", "mistral"), "format")
    CKPT.ok("reshard", source, folder / "same")
    compare(read_safetensors(folder / "same/consolidated.safetensors"),
            {k: from_torch(v) for k, v in model.tensors.items()}, "one file")
    CKPT.ok("reshard", source, folder / "b", "--tp", 8)
    files = load_ranks(folder / "b")
    for rank, got in enumerate(files):
        compare({k: from_torch(v) for k, v in got.items()},
                {k: from_torch(cut(k, v, rank, 8, 4))
                 for k, v in model.tensors.items()}, f"rank {rank}")


def test_other_names(folder):
    """Tensors that no rule covers: whole in one file, else --shard-dims."""
    import torch

    model = Model(9)
    source = model.write(folder / "a", 2)
    for path in source.glob("*.pth"):
        tensors = torch.load(path)
        tensors["adapter.down"] = torch.full((2, 8), 1.0)
        torch.save(tensors, path)
    result = CKPT.run("inspect", source).want(5)
    check("--shard-dims" in result.err, result.err)
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"adapter.*": 0}))
    CKPT.ok("reshard", source, folder / "b", "--tp", 1, "--shard-dims", rules)
    got = load_ranks(folder / "b")[0]
    check_equal(list(got["adapter.down"].shape), [4, 8], "adapter")
    CKPT.run("reshard", folder / "b", folder / "c", "--tp", 4).want(5)
    CKPT.ok("reshard", folder / "b", folder / "c", "--tp", 4, "--shard-dims",
            rules)
    check_equal(list(load_ranks(folder / "c")[0]["adapter.down"].shape),
                [1, 8], "adapter of 4")


def test_from_flat(folder):
    """A flat file with Meta's names becomes ranks; the order is Meta's."""
    from safetensors.torch import save_file

    model = Model(10)
    source = folder / "a"
    source.mkdir()
    save_file(model.tensors, source / "weights.safetensors")
    (source / "params.json").write_text(json.dumps(model.params))
    CKPT.ok("convert", source, folder / "b", "--to", "meta", "--tp", 4)
    model.check(folder / "b", 4)


def test_from_hf(folder, case, ranks):
    """From Hugging Face's names: rotary rows in pairs, params.json. Embeddings
    are cut as in Llama 3, whatever the source."""
    source = DATA / "hf" / case / "ckpt"
    if not source.exists():
        raise Skip("no such golden here")
    CKPT.ok("convert", source, folder / "out", "--to", "meta", "--tp", ranks)
    want = read_safetensors(GOLDENS / case / "expected.safetensors")
    info = json.loads((GOLDENS / case / "case.json").read_text())
    for rank, got in enumerate(load_ranks(folder / "out")):
        compare({k: from_torch(v) for k, v in got.items()},
                {k: from_torch(cut(k, as_torch(v), rank, ranks,
                                   info["n_kv_heads"]))
                 for k, v in want.items()}, f"rank {rank}")
    params = json.loads((folder / "out/params.json").read_text())
    check_equal((params["dim"], params["n_heads"]), (32, info["n_heads"]),
                "params.json")
    CKPT.ok("convert", folder / "out", folder / "hf", "--to", "safetensors")
    CKPT.ok("verify", folder / "hf", source)


def test_fairseq2_files(folder):
    """Files with fairseq2's converter's names, and no params.json."""
    base = DATA / "fairseq2_native/llama_tp1dp1_bf16"
    source = base / "other/consolidated_tp2"
    if not source.exists():
        raise Skip("no such golden here")
    names = {"decoder_frontend.embed": "tok_embeddings",
             "decoder.layer_norm": "norm", "final_proj": "output"}
    parts = {"self_attn.q_proj": "attention.wq",
             "self_attn.k_proj": "attention.wk",
             "self_attn.v_proj": "attention.wv",
             "self_attn.output_proj": "attention.wo",
             "ffn.gate_proj": "feed_forward.w1",
             "ffn.output_proj": "feed_forward.w2",
             "ffn.inner_proj": "feed_forward.w3",
             "self_attn_layer_norm": "attention_norm",
             "ffn_layer_norm": "ffn_norm"}

    def meta_name(name):
        stem = name.removesuffix(".weight")
        if stem in names:
            return names[stem] + ".weight"
        _, _, layer, rest = stem.split(".", 3)
        return f"layers.{layer}.{parts[rest]}.weight"

    want = {meta_name(k): v for k, v in
            read_safetensors(base / "expected.safetensors").items()}
    CKPT.ok("unshard", source, folder / "one.safetensors")
    compare(read_safetensors(folder / "one.safetensors"), want, "one file")
    CKPT.run("reshard", source, folder / "four", "--tp", 4).want(5)
    CKPT.ok("reshard", source, folder / "one", "--tp", 1)


# ---------------------------------------------------------------- what breaks
def change(path, edit):
    import torch

    tensors = torch.load(path)
    edit(tensors)
    torch.save({k: v.clone() for k, v in tensors.items()}, path)


def copy_model(folder, ranks=4, **options):
    model = Model(11, **options)
    return model, model.write(folder / "src", ranks)


def wants(result, code, *words):
    result.want(code)
    for word in words:
        check(word in result.err + result.out, f"no '{word}' in\n{result}")


def test_missing_file(folder):
    _, source = copy_model(folder)
    (source / "consolidated.02.pth").unlink()
    wants(CKPT.run("inspect", source), 4, "consolidated.02.pth", "missing")
    wants(CKPT.run("verify", source), 1, "consolidated.02.pth")
    wants(CKPT.run("reshard", source, folder / "out"), 4, "missing")
    # The last one: the numbers no longer fit.
    again = folder / "again"
    again.mkdir()
    _, source = copy_model(again)
    (source / "consolidated.03.pth").unlink()
    wants(CKPT.run("inspect", source), 4, "params.json")
    check(not (folder / "out").exists(), "something was written")


def test_unequal_copies(folder):
    """Norms, and heads that two ranks hold, are the same in each file."""
    for name, ranks in (("layers.1.ffn_norm.weight", 4),
                        ("layers.0.attention.wv.weight", 8)):
        base = folder / name
        base.mkdir()
        _, source = copy_model(base, ranks)
        CKPT.ok("verify", source, "--deep")

        def edit(tensors):
            tensors[name].view(-1)[3] += 1

        change(source / f"consolidated.{ranks - 1:02}.pth", edit)
        wants(CKPT.run("verify", source, "--deep"), 1, name)
        wants(CKPT.run("reshard", source, base / "out", "--tp", 1), 4, name)
        check(not (base / "out").exists(), "something was written")


def test_unlike_files(folder):
    import torch

    edits = {
        "is not in this file": lambda t: t.pop("layers.1.ffn_norm.weight"),
        "f32 [96]": lambda t: t.update({"norm.weight": torch.ones(96)}),
        "bf16 [7, 32]": lambda t: t.update(
            {"output.weight": torch.ones(7, 32, dtype=torch.bfloat16)}),
    }
    for index, (word, edit) in enumerate(edits.items()):
        base = folder / str(index)
        base.mkdir()
        _, source = copy_model(base)
        change(source / "consolidated.01.pth", edit)
        wants(CKPT.run("inspect", source), 4, word, "consolidated.01.pth")
        wants(CKPT.run("verify", source), 1, word)


def test_wrong_numbers(folder):
    """params.json that contradicts the files, or itself."""
    rows = [
        ({"n_heads": 8}, 4, "in params.json it is 16"),
        ({"n_kv_heads": 8}, 4, "n_kv_heads"),
        ({"n_kv_heads": 3}, 4, "not a multiple"),
        ({"n_heads": 0}, 4, "expected a count"),
        ({"n_heads": "x" * 1000}, 4, "expected a count"),
        ({"n_heads": 1 << 63}, 4, "expected a count"),
        ({"dim": 33}, 4, "not a multiple"),
        ({"vocab_size": 97}, 4, "vocab_size"),
        ({"vocab_size": -2}, 4, "expected a count"),
    ]
    model, source = copy_model(folder)
    for change_of, code, word in rows:
        (source / "params.json").write_text(
            json.dumps({**model.params, **change_of}))
        wants(CKPT.run("inspect", source), code, word)
    for text in ("", "[]", "{", '{"dim": 1} x', "\0", "[" * 100000,
                 '{"model": {"model": {"dim": []}}}'):
        (source / "params.json").write_text(text)
        wants(CKPT.run("inspect", source), 4, "params.json")
    (source / "params.json").unlink()
    document = CKPT.inspect(source)
    check_equal([p["kind"] for p in document["problems"]], ["no_params"],
                "problems")


def test_refused(folder):
    """What can't be done faithfully, and how ckpt says so."""
    _, source = copy_model(folder)  # 16 heads, 4 of keys
    out = folder / "out"
    for args, code, word in [
            (["--tp", 3], 5, "heads"), (["--tp", 32], 5, "heads"),
            (["--tp", 6], 5, "heads"), (["--pp", 2], 5, "pp=2"),
            (["--dp", 2], 5, "dp=2"), (["--tp", 1000000], 2, "1024"),
            (["--max-shard-size", "1MB"], 2, "--tp")]:
        wants(CKPT.run("reshard", source, out, *args), code, word)
        check(not out.exists(), "something was written")
    hf = DATA / "safetensors/hf_sharded/ckpt"
    wants(CKPT.run("convert", hf, out, "--to", "meta"), 5)
    wants(CKPT.run("inspect", source / "consolidated.00.pth", "--from",
                   "meta"), 2, "--from torch")


def test_hostile(folder):
    """Names and contents that no checkpoint has."""
    base = folder / "a"
    base.mkdir()
    (base / "consolidated.4294967295.pth").write_bytes(b"x")
    wants(CKPT.run("inspect", base), 4, "missing")
    for index, content in enumerate(
            [b"", b"x" * 100, b"PK\3\4" + bytes(60), b"\x80\x02}."]):
        path = folder / f"b{index}"
        path.mkdir()
        (path / "consolidated.00.pth").write_bytes(content)
        result = CKPT.run("inspect", path)
        check(result.code in (3, 4), str(result))
    _, source = copy_model(folder)
    data = (source / "consolidated.01.pth").read_bytes()
    rng = random.Random(1)
    for _ in range(40):
        broken = bytearray(data)
        if rng.random() < 0.3:
            broken = broken[:rng.randrange(len(broken))]
        else:
            for _ in range(rng.randrange(1, 8)):
                broken[rng.randrange(min(len(broken), 6000))] ^= (
                    1 << rng.randrange(8))
        (source / "consolidated.01.pth").write_bytes(broken)
        result = CKPT.run("verify", source, "--deep")
        check(result.code in (0, 1, 8), str(result))


def test_distributed_ranks(folder):
    """405B's 16 ranks of 8 key/value heads: to 8 and back."""
    model = Model(12, heads=32, kv_heads=8, dim=64, hidden=64, vocab=64)
    source = model.write(folder / "a", 16)
    document = CKPT.inspect(source, "--digest")
    shape = {t["name"]: t["shape"] for t in document["tensors"]}
    check_equal(shape["layers.0.attention.wk.weight"], [16, 64], "keys")
    for ranks in (8, 1, 32, 2):
        CKPT.ok("reshard", source, folder / str(ranks), "--tp", ranks)
        model.check(folder / str(ranks), ranks)
        CKPT.ok("reshard", folder / str(ranks), folder / f"b{ranks}", "--tp",
                16)
        model.check(folder / f"b{ranks}", 16)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in ("llama", "llama_mha_f16"):
        for name, path in renderings(case).items():
            suite.add(f"inspect {case} {name}", test_inspect, case, path)
            suite.add(f"unshard {case} {name}", test_unshard, case, path)
            for ranks in (1, 2, 4):
                suite.add(f"{case} {name} to {ranks}", test_ranks, case, path,
                          ranks)
    suite.add("same records", test_same_records, "llama",
              GOLDENS / "llama/ckpt")
    suite.add("same records of one", test_same_records, "llama",
              GOLDENS / "llama/other/mp1")
    for case in ("llama", "llama_mha_f16"):
        for ranks in (1, 2, 4):
            suite.add(f"from hf {case} {ranks}", test_from_hf, case, ranks)
    for ranks in (1, 2, 4, 8, 16):
        suite.add(f"attention of {ranks}", test_attention, ranks)
    for seed in range(12):
        suite.add(f"random {seed}", test_random, seed)
    suite.add("embedding", test_embedding)
    suite.add("partial", test_partial)
    suite.add("files beside", test_files_beside)
    suite.add("mistral", test_mistral)
    suite.add("other names", test_other_names)
    suite.add("from flat", test_from_flat)
    suite.add("fairseq2's files", test_fairseq2_files)
    suite.add("16 ranks of 8 heads", test_distributed_ranks)
    suite.add("missing file", test_missing_file)
    suite.add("unequal copies", test_unequal_copies)
    suite.add("unlike files", test_unlike_files)
    suite.add("wrong numbers", test_wrong_numbers)
    suite.add("refused", test_refused)
    suite.add("hostile", test_hostile)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
