#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch and safetensors load what ckpt writes, and random checkpoints survive
every change of topology."""

import collections
import filecmp
import json
import random
import re
import shutil
import zipfile

import torch
from safetensors import safe_open
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file, save_file

from golden_cases import Topology, cut
from support import (
    DATA, TORCH_NAMES, Ckpt, Skip, Suite, check, check_equal, compare, digest,
    from_torch, load_pt, read_header, read_safetensors, torch_tensors)

CKPT = None
QWEN = DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt"


# ----------------------------------------------------------- random contents
def random_tensor(rng, dtype, shape):
    """For most types any bytes are a value; bool has two values."""
    count = 1
    for n in shape:
        count *= n
    item = torch.empty(0, dtype=dtype).element_size()
    data = rng.randbytes(count * item)
    if dtype == torch.bool:
        data = bytes(b & 1 for b in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(
        dtype).reshape(shape)


def random_shape(rng):
    return tuple(rng.choice((0, 1, 2, 3, 5, 8, 33))
                 for _ in range(rng.randrange(4)))


def random_dict(rng, dtypes, count):
    return {f"layer.{i}.{rng.choice(('w', 'b', 'é', 'x y'))}": random_tensor(
        rng, getattr(torch, rng.choice(dtypes)), random_shape(rng))
        for i in range(count)}


def as_tensors(tensors):
    return {name: from_torch(tensor) for name, tensor in tensors.items()}


BOTH = [n for n in TORCH_NAMES if not n.startswith("q")
        and n not in ("complex128", "complex32", "float4_e2m1fn_x2")]


# --------------------------------------------------------------- containers
def check_pt_layout(path):
    """Every record is stored, and begins at a multiple of 64."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as f:
        check_equal(archive.testzip(), None, "records with a wrong CRC")
        for record in archive.infolist():
            check_equal(record.compress_type, 0, "compression")
            f.seek(record.header_offset + 26)
            sizes = f.read(4)
            begin = record.header_offset + 30 + int.from_bytes(
                sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
            check_equal(begin % 64, 0, f"alignment of {record.filename}")


def test_torch_loads(folder, seed):
    """safetensors -> .pt -> torch.load(weights_only=True, mmap=True)."""
    rng = random.Random(seed)
    tensors = random_dict(rng, BOTH, 40)
    source, out = folder / "in.safetensors", folder / "out.pt"
    save_file(tensors, source)
    CKPT.ok("unshard", source, out)
    for mmap in (False, True):
        loaded = load_pt(out, mmap=mmap)
        compare(torch_tensors(loaded), as_tensors(tensors), f"mmap={mmap}")
    check_pt_layout(out)


def test_same_as_save_file(folder, seed):
    """.pt -> .safetensors gives the bytes that save_file gives."""
    rng = random.Random(seed)
    tensors = random_dict(rng, BOTH, 30)
    source, out = folder / "in.pt", folder / "out.safetensors"
    peer = folder / "peer.safetensors"
    torch.save(tensors, source)
    CKPT.ok("unshard", source, out)
    metadata = read_header(out)[0].get("__metadata__")
    check(metadata in (None, {"format": "pt"}), f"metadata {metadata}")
    save_file(tensors, peer, metadata=metadata)
    check_equal(out.read_bytes(), peer.read_bytes(), "bytes of the file")
    compare(as_tensors(load_file(out)), as_tensors(tensors), "load_file")


def test_numpy_loads(folder):
    """safetensors.numpy reads the file too."""
    names = ["float32", "float64", "float16", "int64", "uint8", "bool"]
    tensors = random_dict(random.Random(7), names, 20)
    source, out = folder / "in.pt", folder / "out.safetensors"
    torch.save(tensors, source)
    CKPT.ok("unshard", source, out)
    got = load_numpy(out)
    check_equal(set(got), set(tensors), "names")
    for name, array in got.items():
        check_equal(array.tobytes(), from_torch(tensors[name]).data, name)
        check_equal(array.shape, tuple(tensors[name].shape), name)


def test_metadata_kept(folder):
    """__metadata__ goes from safetensors to safetensors."""
    source, out = folder / "in.safetensors", folder / "out.safetensors"
    metadata = {"format": "pt", "note": "é \"q\" \\ \n", "": "empty key"}
    save_file({"w": torch.arange(6)}, source, metadata=metadata)
    CKPT.ok("convert", source, out, "--to", "safetensors")
    with safe_open(out, "pt") as opened:
        check_equal(opened.metadata(), metadata, "__metadata__")


def test_many_tensors(folder):
    """More than the 1000 entries of a pickle batch; names in order."""
    tensors = {f"t{i}": torch.tensor([i]) for i in range(2500)}
    source, out = folder / "in.pt", folder / "out.pt"
    torch.save(tensors, source)
    CKPT.ok("unshard", source, out)
    loaded = load_pt(out)
    check_equal(list(loaded), list(tensors), "names and their order")
    compare(as_tensors(loaded), as_tensors(tensors), "torch.load")


def test_training_checkpoint(folder):
    """A trainer's nested file keeps its nesting, values and tied tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    source, out = folder / "in.pt", folder / "out.pt"
    torch.save({
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "step": 7, "betas": (0.9, 0.95), "name": "é", "big": 2**80,
        "none": None, "nested": {"list": [1, [2.5, {"a": True}]]},
        "order": collections.OrderedDict(z=1, a=2),
    }, source)
    CKPT.ok("convert", source, out, "--to", "torch")
    got, want = load_pt(out), load_pt(source)
    check_equal(list(got), list(want), "keys")
    compare(torch_tensors(got), torch_tensors(want), "tensors")
    for key in ("step", "betas", "name", "big", "none", "nested", "order"):
        check_equal(got[key], want[key], key)
        check_equal(type(got[key]), type(want[key]), f"type of {key}")
    check_equal(got["optimizer"]["param_groups"],
                want["optimizer"]["param_groups"], "param_groups")
    check_equal(list(got["optimizer"]["state"]), [0, 1, 2], "int keys")
    check_equal(got["model"]["0.weight"].data_ptr(),
                got["model"]["1.weight"].data_ptr(), "the tied storage")


def test_keys_of_other_kinds(folder):
    """Names are what torch's own flattening (DCP) makes of such keys."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    state = {("a", 1): 0, ("a",): 0, (1, None, True, 2.5): 0, (): 0, 3: 0,
             2.5: 0, None: 0, True: 0, "b": 0}
    state = {key: torch.tensor([i]) for i, key in enumerate(state)}
    source = folder / "in.pt"
    torch.save(state, source)
    CKPT.ok("convert", source, folder / "out.safetensors")
    CKPT.ok("convert", source, folder / "out.pt")
    with safe_open(folder / "out.safetensors", "pt") as opened:
        got = {name: opened.get_tensor(name) for name in opened.keys()}
    want, _ = flatten_state_dict(state)
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(torch.equal(got[name], tensor), name)
    # Nested deeply, each twice: 2^12 words if all were spelled.
    deep = ("x",)
    for _ in range(12):
        deep = (deep, deep)
    torch.save({deep: torch.ones(1), (("a", 1), "b"): torch.ones(2)},
               folder / "deep.pt")
    said = CKPT.ok("ls", folder / "deep.pt").out.split("\n")
    check("key#0" in said[0] and "(('a', 1), 'b')" in said[1], f"{said}")
    again = load_pt(folder / "out.pt")
    check_equal(list(again), list(state), "keys of a .pt file")
    check(all(torch.equal(again[key], state[key]) for key in state), "values")


# -------------------------------------------------------------------- casts
# Types of eight bits need scales: --dtype refuses them (asked_test.py).
CASTS = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16,
         "bf16": torch.bfloat16}


def test_cast(folder, name):
    """--dtype rounds as torch does, without needing a module; integers stay as
    they are."""
    alone = Ckpt(shutil.copy(CKPT.path, folder))
    if not re.search(r"torch .*not available", alone.ok("--version").out):
        raise Skip("the module is found elsewhere")
    rng = random.Random(name)
    scale = torch.logspace(-12, 12, 4000, dtype=torch.float64)
    sign = torch.tensor([rng.choice((-1, 1)) for _ in range(4000)])
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0,
                        1e-45, 448, 464, 480, 57344, 61440, 65504, 65520])
    tensors = {"f64": scale * sign * rng.random(), "odd": odd,
               "bf16": (scale * sign).to(torch.bfloat16),
               "f16": odd.to(torch.float16), "empty": torch.empty(0, 3),
               "large": torch.linspace(-3, 3, 1 << 21),
               "int": torch.arange(5), "bool": torch.tensor([True, False])}
    source, out = folder / "in.safetensors", folder / "out.safetensors"
    save_file(tensors, source)
    if any((t.to(CASTS[name]).double().isinf() & t.isfinite()).any()
           for t in tensors.values() if t.is_floating_point()):
        alone.run("unshard", source, out, "--dtype", name).want(5)
    alone.ok("unshard", source, out, "--dtype", name, "--allow-overflow",
             "inf")
    compare(read_safetensors(out), as_tensors({
        k: t.to(CASTS[name]) if t.is_floating_point() else t
        for k, t in tensors.items()}), f"--dtype {name}")


# ----------------------------------------------------------------- manifests
def test_manifest(folder):
    """The manifest holds what docs/digest.md says, computed independently."""
    tensors = random_dict(random.Random(5), BOTH, 30)
    source, out = folder / "in.pt", folder / "out.safetensors"
    torch.save(tensors, source)
    CKPT.ok("unshard", source, out)
    manifest = json.loads(
        (folder / "out.safetensors.ckpt-manifest.json").read_text())
    check_equal(manifest["files"], {out.name: out.stat().st_size}, "files")
    want = {name: {"dtype": t.dtype, "shape": list(t.shape),
                   "digest": digest(t.data)}
            for name, t in as_tensors(tensors).items()}
    check_equal(manifest["tensors"], want, "tensors")
    CKPT.ok("unshard", source, folder / "bare.pt", "--no-manifest")
    check_equal(sorted(p.name for p in folder.glob("bare*")), ["bare.pt"],
                "with --no-manifest")


# ------------------------------------------------------------ sharded output
def sharded_names(count, stem, suffix):
    return [f"{stem}-{i + 1:05}-of-{count:05}.{suffix}" for i in range(count)]


def check_sharded(out, stem, suffix, limit, load, tensors):
    index = json.loads((out / f"{stem}.{suffix}.index.json").read_text())
    files = sorted(p.name for p in out.glob(f"*.{suffix}"))
    check(len(files) > 2, f"only {files}")
    check_equal(files, sharded_names(len(files), stem, suffix), "file names")
    got = {}
    for name in files:
        part = as_tensors(load(out / name))
        size = sum(len(t.data) for t in part.values())
        check(size <= limit or len(part) == 1, f"{name} holds {size} bytes")
        for key in part:
            check_equal(index["weight_map"][key], name, f"place of {key}")
        got.update(part)
    check_equal(len(index["weight_map"]), len(tensors), "weight_map")
    check_equal(index["metadata"]["total_size"],
                sum(len(t.data) for t in tensors.values()), "total_size")
    compare(got, tensors, "all shards together")


def test_sharded_safetensors(folder):
    rng = random.Random(11)
    tensors = random_dict(rng, BOTH, 60)
    source, out = folder / "in.pt", folder / "out"
    torch.save(tensors, source)
    CKPT.ok("convert", source, out, "--to", "safetensors",
            "--max-shard-size", "2KB")
    check_sharded(out, "model", "safetensors", 2000, load_file,
                  as_tensors(tensors))
    CKPT.ok("verify", out)
    CKPT.ok("verify", source, out)


def test_sharded_torch(folder):
    rng = random.Random(12)
    tensors = random_dict(rng, BOTH, 60)
    source, out = folder / "in.safetensors", folder / "out"
    save_file(tensors, source)
    CKPT.ok("convert", source, out, "--to", "torch",
            "--max-shard-size", "2KiB")
    check_sharded(out, "pytorch_model", "bin", 2048, load_pt,
                  as_tensors(tensors))
    CKPT.ok("verify", source, out)


# --------------------------------------------------------- random topologies
def llama(rng):
    """(config lines, name -> (shape, tp dim)) of a small random llama."""
    dim, heads = rng.choice((24, 36, 48)), 12
    ffn, vocab = rng.choice((24, 60, 84)), rng.choice((36, 60, 72))
    layers = rng.choice((1, 2, 3))
    names = {"decoder_frontend.embed.weight": ((vocab, dim), 0)}
    for i in range(layers):
        p = f"decoder.layers.{i}."
        names[p + "self_attn_layer_norm.weight"] = ((dim,), None)
        for q in "qkv":
            names[f"{p}self_attn.{q}_proj.weight"] = ((dim, dim), 0)
        names[p + "self_attn.output_proj.weight"] = ((dim, dim), 1)
        names[p + "ffn_layer_norm.weight"] = ((dim,), None)
        names[p + "ffn.gate_proj.weight"] = ((ffn, dim), 0)
        names[p + "ffn.inner_proj.weight"] = ((ffn, dim), 0)
        names[p + "ffn.output_proj.weight"] = ((dim, ffn), 1)
    names["decoder.layer_norm.weight"] = ((dim,), None)
    names["final_proj.weight"] = ((vocab, dim), 0)
    config = {"model_dim": dim, "max_seq_len": 64, "vocab_size": vocab,
              "tied_embeddings": "false", "num_layers": layers,
              "num_attn_heads": heads, "num_key_value_heads": heads,
              "ffn_inner_dim": ffn, "shard_embed_dim": "false"}
    return config, names


def write_fairseq2(base, config, tensors, names, topology):
    """As fairseq2 does: one flat dict per rank, by torch.save."""
    base.mkdir()
    lines = ["name: checkpoint", "model_family: llama", "model_config:"]
    lines += [f"  {key}: {value}" for key, value in config.items()]
    (base / "model.yaml").write_text("\n".join(lines) + "\n")
    for t in range(topology.tp):
        for s in range(topology.dp):
            part = collections.OrderedDict()
            for name, tensor in tensors.items():
                piece = cut(from_torch(tensor), names[name][1], False,
                            topology, t, s)
                part[name] = torch.frombuffer(
                    bytearray(piece.data) or bytearray(1), dtype=torch.uint8)[
                        :len(piece.data)].view(tensor.dtype).reshape(
                            piece.shape).clone()
            path = base / f"step_9/model/pp_00/tp_{t:02}/sdp_{s:02}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as f:
                torch.save(part, f, pickle_protocol=2)


def digests(path):
    rows = CKPT.inspect(path, "--digest")["tensors"]
    return {r["name"]: r["digest"] for r in rows}


def same_files(a, b):
    left = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    right = sorted(p.relative_to(b) for p in b.rglob("*") if p.is_file())
    check_equal(right, left, f"files of {b.name} against {a.name}")
    for name in left:
        if name.name.endswith("ckpt-manifest.json"):
            continue  # it names the source
        check(filecmp.cmp(a / name, b / name, shallow=False),
              f"{name} differs between {a.name} and {b.name}")


def test_round_trip(folder, seed):
    """A -> B -> A is byte-identical; digests don't depend on the topology."""
    rng = random.Random(seed)
    config, names = llama(rng)
    dtype = getattr(torch, rng.choice(("bfloat16", "float32", "float16",
                                       "float8_e4m3fn")))
    tensors = {name: random_tensor(rng, dtype, shape)
               for name, (shape, _) in names.items()}
    tps, dps = (1, 2, 3, 4, 6, 12), (1, 2, 3, 5, 7)
    a = Topology(rng.choice(tps), rng.choice(dps))
    b = Topology(rng.choice(tps), rng.choice(dps))
    write_fairseq2(folder / "src", config, tensors, names, a)
    steps = (("src", "A", a), ("A", "B", b), ("B", "A2", a))
    for source, target, topology in steps:
        CKPT.ok("reshard", folder / source, folder / target,
                *topology.options, "--no-fsync")
    same_files(folder / "A", folder / "A2")
    want = {n: digest(t.data) for n, t in as_tensors(tensors).items()}
    for name in ("src", "A", "B", "A2"):
        check_equal(digests(folder / name), want, f"digests of {name}")
    out = folder / "full.safetensors"
    CKPT.ok("unshard", folder / "B", out)
    compare(read_safetensors(out), as_tensors(tensors), f"{a} -> {b} -> 1")
    check_equal(digests(out), want, "digests of the whole")


def test_optimizer_round_trip(folder, case):
    """FSDP1 and FSDP2 optimizer files through another topology and back."""
    source = DATA / "fairseq2_native" / case / "ckpt"
    want = digests(source)
    CKPT.ok("reshard", source, folder / "B", "--tp", 1, "--dp", 1)
    check_equal(digests(folder / "B"), want, "digests at dp 1")
    CKPT.ok("reshard", folder / "B", folder / "C", "--dp", 4)
    check_equal(digests(folder / "C"), want, "digests at dp 4")
    CKPT.ok("verify", source, folder / "C")


def test_tiny_memory(folder, seed):
    """The bytes don't depend on --max-mem, -j or the size of a tensor."""
    rng = random.Random(seed)
    big = {"w": random_tensor(rng, torch.float32, (3000, 2999)),
           "v": random_tensor(rng, torch.uint8, (1 << 24,))}
    source = folder / "in.pt"
    torch.save(big, source)
    outs = []
    for i, options in enumerate((("-j", 1, "--max-mem", "16MiB"), ("-j", 7),
                                 ("--max-mem", "64MiB"))):
        outs.append(folder / f"out{i}.safetensors")
        result = CKPT.ok("unshard", source, outs[-1], *options)
        if "16MiB" in options and not CKPT.sanitized:
            # This process is large, and its size at the fork counts.
            check(result.rss < 1 << 30, f"{result.rss >> 20} MiB used")
    for out in outs[1:]:
        check(filecmp.cmp(outs[0], out, shallow=False), f"{out.name} differs")
    compare(read_safetensors(outs[0]), as_tensors(big), "contents")


# ------------------------------------------------------------------ dry runs
def test_dry_run(folder, name, options):
    """--dry-run names the files and sizes that the real run writes."""
    out = folder / "out"
    args = (*options[:1], QWEN, out, *options[1:])
    document = CKPT.ok(*args, "--dry-run", "--json").json()
    check(not out.exists(), "a dry run wrote its target")
    planned = {re.sub(r"^\./", "", f["path"]): f["bytes"]
               for f in document["written"]}
    CKPT.ok(*args)
    real = {str(p.relative_to(out)): p.stat().st_size
            for p in out.rglob("*") if p.is_file()
            and not p.name.endswith("ckpt-manifest.json")}
    planned = {k: v for k, v in planned.items()
               if not k.endswith("ckpt-manifest.json")}
    check_equal(planned, real, f"files and sizes of {name}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for seed in range(4):
        suite.add(f"torch.load #{seed}", test_torch_loads, seed)
        suite.add(f"save_file #{seed}", test_same_as_save_file, seed)
    suite.add("safetensors.numpy", test_numpy_loads)
    suite.add("__metadata__", test_metadata_kept)
    suite.add("2500 tensors", test_many_tensors)
    suite.add("training checkpoint", test_training_checkpoint)
    suite.add("keys of other kinds", test_keys_of_other_kinds)
    for name in CASTS:
        suite.add(f"cast to {name}", test_cast, name)
    suite.add("manifest", test_manifest)
    suite.add("sharded safetensors", test_sharded_safetensors)
    suite.add("sharded torch", test_sharded_torch)
    for seed in range(12):
        suite.add(f"round trip #{seed}", test_round_trip, seed)
    for case in ("qwen3_dp3_uneven_fsdp1", "qwen3_dp3_uneven_fsdp2",
                 "llama_tp2dp2_fsdp2", "llama_hsdp_rdp2sdp2"):
        suite.add(f"optimizer round trip {case}", test_optimizer_round_trip,
                  case)
    suite.add("tiny memory", test_tiny_memory, 3)
    for name, options in (
            ("reshard", ("reshard", "--tp", 8)),
            ("unshard", ("unshard",)),
            ("sharded", ("convert", "--to", "safetensors",
                         "--max-shard-size", "4KB"))):
        suite.add(f"dry run: {name}", test_dry_run, name, options)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
