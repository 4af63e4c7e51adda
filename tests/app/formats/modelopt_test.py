#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt on ModelOpt's checkpoints: its own files for other world sizes, which
ckpt must write byte for byte; block files; owners of blocks; breakages.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from peer import Peer
from support import (
    DATA, Skip, Suite, check, check_equal, compare, digest, from_torch,
    load_pt, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "modelopt"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def sources(case):
    """The peer's renderings of one model: its own and those under other/."""
    found = {"ckpt": GOLDENS / case / "ckpt"}
    for path in sorted((GOLDENS / case / "other").glob("*")):
        found[path.name] = path
    return found


def info_of(case):
    return json.loads((GOLDENS / case / "case.json").read_text())


def is_blocks(path):
    return (path / "subblocks_safetensors").exists()


def expected(case, path):
    """Block files of a tied model leave the head out."""
    tensors = read_safetensors(GOLDENS / case / "expected.safetensors")
    if is_blocks(path) and info_of(case).get("tied"):
        del tensors[HEAD]
    return tensors


def world_of(path):
    return len(list(path.glob("model-*-of-*")))


def options_of(path):
    return ["--block-files"] if is_blocks(path) else ["--pp", world_of(path)]


def files_of(path):
    return {str(p.relative_to(path)): p for p in sorted(path.rglob("*"))
            if p.is_file() and p.name != ".ckpt-manifest.json"}


def plain_hf(case, folder):
    """The model as Hugging Face stores it: one file, no head if tied."""
    import torch
    from safetensors.torch import load_file, save_file

    assert torch
    out = folder / "hf"
    out.mkdir()
    tensors = load_file(GOLDENS / case / "expected.safetensors")
    if info_of(case).get("tied"):
        del tensors[HEAD]
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    shutil.copy(GOLDENS / case / "ckpt" / "config.json", out)
    return out


# ------------------------------------------------------------------- reading
def test_inspect(folder, case, path):
    document = CKPT.inspect(path, "--digest")
    hf = path.name.startswith("hf_")
    check_equal(document["format"], "safetensors" if hf else "modelopt",
                "format")
    if not hf:
        check_equal(document["topology"]["pp"],
                    1 if is_blocks(path) else world_of(path), "pp")
    check_equal(document["problems"], [], "problems")
    want = expected(case, path)
    got = {t["name"]: (t["dtype"], t["shape"], t["digest"])
           for t in document["tensors"]}
    check_equal(got, {n: (t.dtype, list(t.shape), digest(t.data))
                      for n, t in want.items()}, "tensors")


def test_unshard(folder, case, path):
    out = folder / "model.safetensors"
    CKPT.ok("unshard", path, out)
    compare(read_safetensors(out), expected(case, path), "one file")
    CKPT.ok("verify", path, "--deep")
    CKPT.ok("verify", path, out)
    CKPT.ok("unshard", path, folder / "model.pt")
    got = {k: from_torch(v) for k, v in load_pt(folder / "model.pt").items()}
    compare(got, expected(case, path), "torch file")


# ------------------------------------------------------------------- writing
def same_files(ours, peer, what):
    """Byte for byte what the peer wrote."""
    got, want = files_of(ours), files_of(peer)
    check_equal(sorted(got), sorted(want), f"files of {what}")
    for name, path in want.items():
        check(got[name].read_bytes() == path.read_bytes(),
              f"{what}: {name} differs from the peer's")


def test_like_peer(folder, case, source, target):
    """Any rendering converted to any other is what the peer wrote."""
    CKPT.ok("reshard", source, folder / "out", "--to", "modelopt",
            *options_of(target))
    same_files(folder / "out", target, target.name)
    CKPT.ok("verify", folder / "out")
    CKPT.ok("verify", target, folder / "out")


def test_from_hf(folder, case, target):
    CKPT.ok("reshard", plain_hf(case, folder), folder / "out", "--to",
            "modelopt", *options_of(target), "--verify")
    same_files(folder / "out", target, target.name)


def test_own_loader(folder, case, ranks):
    """ModelOpt's load_and_shard_model, on as many processes as it was written
    for: each has its blocks, and everything they have is the model's."""
    import torch

    if not (Path(sys.prefix) / "modelopt").is_dir():
        raise Skip("nvidia-modelopt is not installed")
    family = info_of(case)["family"]
    CKPT.ok("reshard", plain_hf(case, folder), folder / "out", "--to",
            "modelopt", "--pp", ranks)
    wrong = PEER.ask(dict(family=family, path=str(folder / "out"),
                          ranks=ranks, out=str(folder / "held")))
    check(wrong is None, wrong)
    want = {name: torch.frombuffer(bytearray(t.data), dtype=getattr(
                torch, {"bf16": "bfloat16", "f32": "float32"}[t.dtype])
            ).reshape(t.shape) for name, t in read_safetensors(
                GOLDENS / case / "expected.safetensors").items()}
    found = torch.load(f"{folder}/held.all")
    tied = info_of(case).get("tied")
    check_equal(sorted(set(found) | ({HEAD} if tied else set())),
                sorted(want), "names of load_sharded_state_dict")
    for name, tensor in found.items():
        check(torch.equal(tensor, want[name]), f"{name} differs")
    seen, layers = set(), []
    for rank in range(ranks):
        held = torch.load(f"{folder}/held.{rank}")
        layers.append({name.split(".")[2] for name in held
                       if name.startswith("model.layers.")})
        for name, tensor in held.items():
            check(torch.equal(tensor, want[name].to(tensor.dtype)),
                  f"rank {rank}: {name} differs")
        seen.update(held)
    check_equal(sorted(seen | ({HEAD} if tied else set())), sorted(want),
                "what the ranks hold")
    check(all(layers) and sum(map(len, layers)) == len(set.union(*layers)),
          f"layers of ranks: {layers}")


def test_converter(folder):
    """The converter's files have no __metadata__; their tensors are ours."""
    case = GOLDENS / "converter_qwen2_w1"
    CKPT.ok("convert", case / "other/hf_w1", folder / "out", "--to",
            "modelopt", "--block-files")
    got, want = files_of(folder / "out"), files_of(case / "ckpt")
    check_equal(sorted(got), sorted(want), "files")
    for name in want:
        if name.endswith(".safetensors"):
            compare(read_safetensors(got[name]), read_safetensors(want[name]),
                    name)
    maps = [json.loads(f["model.safetensors.index.json"].read_text())
            ["weight_map"] for f in (got, want)]
    check_equal(maps[0], maps[1], "weight_map")


def test_sidecars(folder):
    """What is beside the weights comes along; index and config last."""
    source = plain_hf("sharded_llama_hetero_w2", folder)
    for name in ("tokenizer.json", "generation_config.json", "block_config.py",
                 "modeling_llama.py"):
        (source / name).write_text("{}")
    CKPT.ok("reshard", source, folder / "out", "--to", "modelopt", "--pp", 2)
    for name in ("tokenizer.json", "generation_config.json", "block_config.py",
                 "modeling_llama.py", "config.json"):
        check((folder / "out" / name).exists(), f"{name} is not copied")
    document = CKPT.ok("reshard", source, folder / "dry", "--to", "modelopt",
                       "--pp", 2, "--dry-run", "--json").json()
    check_equal([f["path"] for f in document["written"]][-2:],
                ["model.safetensors.index.json", "config.json"], "last files")


# -------------------------------------------------------------------- blocks
def owned(tensors, blocks, count, tied=False):
    """What the peer's rank that owns these blocks keeps."""
    out = {}
    for name, tensor in tensors.items():
        if name.startswith("model.layers."):
            keep = int(name.split(".")[2]) in blocks
        elif name == EMBEDDING:
            keep = 0 in blocks
        elif name == HEAD and tied:
            keep = 0 in blocks or count - 1 in blocks
        else:
            keep = count - 1 in blocks
        if keep:
            out[name] = tensor
    return out


def test_blocks(folder, case, lists):
    """--blocks: explicit owners, also of blocks that aren't adjacent."""
    info = info_of(case)
    count, tied = info["num_hidden_layers"], info.get("tied", False)
    tensors = read_safetensors(GOLDENS / case / "expected.safetensors")
    texts = [",".join(map(str, blocks)) for blocks in lists]
    for source in (GOLDENS / case / "ckpt", plain_hf(case, folder)):
        out = folder / f"out_{source.name}"
        CKPT.ok("reshard", source, out, "--to", "modelopt",
                *[o for text in texts for o in ("--blocks", text)])
        again = folder / f"again_{source.name}"
        CKPT.ok("reshard", source, again, "--to", "modelopt", "--blocks",
                "/".join(texts))
        same_files(again, out, "both spellings")
        check_equal(world_of(out), len(lists), "files")
        for rank, blocks in enumerate(lists):
            name = f"model-{rank + 1:05}-of-{len(lists):05}.safetensors"
            compare(read_safetensors(out / name),
                    owned(tensors, blocks, count, tied), name)
        CKPT.ok("verify", out)


def test_even(folder):
    """Without --blocks: runs as cut by numpy.array_split, and a file even for
    ranks that have none."""
    import numpy
    import torch
    from safetensors.torch import save_file

    hf = folder / "hf"
    hf.mkdir()
    names = [EMBEDDING, HEAD, "model.norm.weight"] + [
        f"model.layers.{b}.mlp.up_proj.weight" for b in range(11)]
    save_file({n: torch.full((3,), i) for i, n in enumerate(names)},
              hf / "model.safetensors", {"format": "pt"})
    tensors = read_safetensors(hf / "model.safetensors")
    for world in (1, 2, 3, 4, 7, 11, 14):
        out = folder / str(world)
        CKPT.ok("reshard", hf, out, "--to", "modelopt", "--pp", world)
        for rank, blocks in enumerate(
                numpy.array_split(numpy.arange(11), world)):
            name = f"model-{rank + 1:05}-of-{world:05}.safetensors"
            compare(read_safetensors(out / name),
                    owned(tensors, set(map(int, blocks)), 11), name)
        check_equal(world_of(out), world, "files")
        CKPT.ok("verify", hf, out)


def test_select(folder):
    """--blocks of other commands: what the owner keeps."""
    case = "sharded_llama_tied_w2"
    tensors = read_safetensors(GOLDENS / case / "expected.safetensors")
    for blocks in ([0], [1, 2], [3]):
        out = folder / f"{blocks[0]}.safetensors"
        CKPT.ok("unshard", GOLDENS / case / "ckpt", out, "--blocks",
                ",".join(map(str, blocks)))
        compare(read_safetensors(out), owned(tensors, blocks, 4, True),
                f"blocks {blocks}")
    # Removed blocks can be requested: nothing is there.
    case = "subblocks_qwen2_w1"
    document = CKPT.inspect(GOLDENS / case / "ckpt", "--blocks", "0-1")
    names = {t["name"] for t in document["tensors"]}
    want = owned(read_safetensors(GOLDENS / case / "expected.safetensors"),
                 {0, 1}, 3)
    check_equal(names, set(want), "names")
    CKPT.run("inspect", GOLDENS / case / "ckpt", "--blocks", "3").want(2)


# ----------------------------------------------------------------- breakages
def break_index(path, change):
    index = next(path.glob("*.index.json"))
    document = json.loads(index.read_text())
    change(document)
    index.write_text(json.dumps(document, indent=2))


def edit_config(path, change):
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def rewrite(path, name, change):
    """One safetensors file with other tensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / name)
    change(tensors)
    save_file(tensors, path / name, {"format": "pt"})


SECOND = "model-00002-of-00002.safetensors"


def missing_file(path):
    (path / SECOND).unlink()


def missing_tensor(path):
    rewrite(path, SECOND, lambda t: t.pop("model.norm.weight"))


def wrong_total(path):
    break_index(path, lambda d: d["metadata"].update(total_size=7))


def escape(path):
    break_index(path, lambda d: d["weight_map"].update(
        {HEAD: "../" + SECOND}))


def unlike_copies(path):
    def negate(tensors):
        tensors[HEAD] = -tensors[HEAD]
    rewrite(path, SECOND, negate)


def unlike_shapes(path):
    def cut(tensors):
        tensors[HEAD] = tensors[HEAD][:-1].clone()
    rewrite(path, SECOND, cut)


def cut_file(path):
    data = (path / SECOND).read_bytes()
    (path / SECOND).write_bytes(data[:-10])


def lost_half(path):
    gone = [f"model.layers.3.self_attn.{x}_proj.weight" for x in "qkvo"]
    gone.append("model.layers.3.input_layernorm.weight")
    rewrite(path, SECOND, lambda t: [t.pop(n) for n in gone])
    break_index(path, lambda d: [d["weight_map"].pop(n) for n in gone])


def other_heads(path):
    edit_config(path, lambda c: c["block_configs"][2]["attention"].update(
        num_key_value_heads=c["num_attention_heads"] * 3))


def few_configs(path):
    edit_config(path, lambda c: c["block_configs"].pop())


def lost_rank(path):
    """Only two of a set of three are there; the index doesn't show it."""
    for number in (1, 2):
        (path / f"model-{number:05}-of-00002.safetensors").rename(
            path / f"model-{number:05}-of-00003.safetensors")
    break_index(path, lambda d: d["weight_map"].update(
        {k: v.replace("of-00002", "of-00003")
         for k, v in d["weight_map"].items()}))


def unseen_shard(path):
    """A tensor in a rank's file that the index doesn't name."""
    lost_rank(path)
    from safetensors.torch import save_file
    import torch
    save_file({"extra": torch.zeros(3)},
              path / "model-00003-of-00003.safetensors", {"format": "pt"})


# name, exit status of verify, kinds or words that it must print
BREAKAGES = [
    (missing_file, 1, SECOND), (missing_tensor, 1, "model.norm.weight"),
    (wrong_total, 1, "total_size"), (escape, 8, "lead out"),
    (unlike_copies, 1, HEAD), (unlike_shapes, 1, HEAD),
    (cut_file, 1, "cut off"), (lost_half, 1, "block 3 has no attention"),
    (other_heads, 1, "num_key_value_heads"), (few_configs, 1, "block_configs"),
    (lost_rank, 1, "missing"), (unseen_shard, 1, "extra"),
]


def test_broken(folder, damage, code, word):
    path = folder / "ckpt"
    shutil.copytree(GOLDENS / "sharded_llama_tied_w2/ckpt", path)
    os.chmod(path, 0o755)
    for file in path.iterdir():
        os.chmod(file, 0o644)
    damage(path)
    result = CKPT.run("verify", path, "--deep", "--from", "modelopt")
    result.want(code)
    check(word in result.out + result.err, f"does not say {word}\n{result}")


def test_flipped(folder, source):
    """Any tensor byte that changes after writing is found."""
    out = folder / "out"
    CKPT.ok("reshard", source, out, "--to", "modelopt", *options_of(source))
    path = max((out / p for p in files_of(out) if p.endswith("tensors")),
               key=lambda p: p.stat().st_size)
    names = list(read_safetensors(path))
    with open(path, "r+b") as f:
        f.seek(-1, 2)
        byte = f.read(1)[0]
        f.seek(-1, 2)
        f.write(bytes([byte ^ 1]))
    result = CKPT.run("verify", out).want(1)
    check(any(n in result.out for n in names), f"no tensor is named\n{result}")


def test_untied(folder):
    """config.json says tied, but the head differs: block files would lose
    it."""
    path = folder / "ckpt"
    shutil.copytree(GOLDENS / "sharded_llama_tied_w2/other/sharded_w1", path)
    os.chmod(path, 0o755)
    for file in path.iterdir():
        os.chmod(file, 0o644)

    def negate(tensors):
        tensors[HEAD] = -tensors[HEAD]
    rewrite(path, "model-00001-of-00001.safetensors", negate)
    result = CKPT.run("reshard", path, folder / "out", "--block-files")
    check(result.code in (4, 5), f"an untied head is dropped\n{result}")
    check(not (folder / "out").exists(), "something was written")


def test_refused(folder):
    source = GOLDENS / "sharded_llama_hetero_w2/ckpt"
    for options, code in (
            (("--tp", 2), 5), (("--blocks", "0-1/1-2"), 2),
            (("--blocks", "7"), 2), (("--blocks", "x"), 2),
            (("--blocks", "0", "--pp", 2), 2),
            (("--block-files", "--pp", 2), 2),
            (("--max-shard-size", "1MB"), 2)):
        CKPT.run("reshard", source, folder / "out", *options).want(code)
        check(not (folder / "out").exists(), "something was written")
    result = CKPT.run("convert", DATA / "fairseq2_native/qwen25_tp4dp1_mixed"
                      "/ckpt", folder / "out", "--to", "modelopt",
                      "--dialect", "keep")
    result.want(5)
    check("hint:" in result.err, f"no hint\n{result}")


def test_detection(folder):
    """An ordinary Hugging Face folder stays one, whether cut between blocks or
    not; block_configs or whole blocks in the peer's index make it
    ModelOpt's."""
    for path in sorted((DATA / "safetensors").glob("hf*/ckpt")):
        check_equal(CKPT.inspect(path)["format"], "safetensors", path)
    path = folder / "ckpt"
    shutil.copytree(GOLDENS / "sharded_llama_hetero_w2/ckpt", path)
    (path / "config.json").chmod(0o644)
    path.chmod(0o755)
    edit_config(path, lambda c: c.pop("block_configs"))
    check_equal(CKPT.inspect(path)["format"], "modelopt", "without configs")
    index = path / "model.safetensors.index.json"
    index.chmod(0o644)
    index.write_text(index.read_text() + "\n")
    check_equal(CKPT.inspect(path)["format"], "safetensors", "as HF writes")


def prepare(suite, ckpt):
    global CKPT, PEER
    CKPT = ckpt
    PEER = Peer("modelopt_peer.py")
    cases = sorted(p.name for p in GOLDENS.iterdir())
    check(len(cases) == 6, f"{len(cases)} goldens: tests/data is cut")
    for case in cases:
        for name, path in sources(case).items():
            suite.add(f"{case}/{name}: inspect", test_inspect, case, path)
            suite.add(f"{case}/{name}: unshard", test_unshard, case, path)
        if case.startswith("converter") or "pth" in case:
            continue
        for name, target in sources(case).items():
            suite.add(f"{case}: hf to {name}", test_from_hf, case, target)
            for other, source in sources(case).items():
                suite.add(f"{case}: {other} to {name}", test_like_peer, case,
                          source, target)
            suite.add(f"{case}/{name}: flipped byte", test_flipped, target)
    for ranks in (1, 2, 4):
        suite.add(f"ModelOpt's own loader, {ranks} ranks", test_own_loader,
                  "sharded_llama_tied_w2", ranks)
    suite.add("ModelOpt's own loader, qwen2", test_own_loader,
              "converter_qwen2_w1", 2)
    suite.add("the converter's files", test_converter)
    suite.add("sidecars", test_sidecars)
    for case, lists in (
            ("sharded_llama_hetero_w2", [[0, 2], [1, 3, 4]]),
            ("sharded_llama_hetero_w2", [[4, 0]]),
            ("sharded_llama_tied_w2", [[3], [0, 2]]),
            ("sharded_llama_tied_w2", [[1, 3]])):
        suite.add(f"{case}: blocks {lists}", test_blocks, case, lists)
    suite.add("even runs of blocks", test_even)
    suite.add("--blocks selects", test_select)
    for damage, code, word in BREAKAGES:
        suite.add(f"broken: {damage.__name__}", test_broken, damage, code, word)
    suite.add("an untied head", test_untied)
    suite.add("what is refused", test_refused)
    suite.add("detection", test_detection)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
