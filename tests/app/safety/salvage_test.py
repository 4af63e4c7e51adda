#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every golden, damaged in each of its files, goes through `ckpt salvage`.

What comes back is bit-equal to what the peers say, what does not is listed:
together they are everything. Expectations are the goldens' own; torch and
the tests' own parsers read the results. A byte that no checksum covers may be
wrong without anybody knowing: such flips are only made where there is one.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import time
import zlib
from pathlib import Path

from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None
FULL = False  # every golden and every damage: --full
MANIFEST = ".ckpt-manifest.json"

# Format, case, what is opened below ckpt/ ("": the folder).
CASES = [
    ("safetensors", "hf_sharded", ""),
    ("safetensors", "odd_but_valid", "long_padding.safetensors"),
    ("hf", "llama", ""),
    ("torch_pt", "dtypes", "model.pt"),
    ("torch_pt", "container_variants", "default.pt"),
    ("torch_pt", "container_variants", "rezipped_stored.pt"),
    ("torch_pt", "container_variants", "rezipped_deflated.pt"),
    ("torch_pt", "torch1.13.1", "ckpt.pt"),
    ("torch_pt", "sharded_bin", ""),
    ("fairseq2_native", "llama_tp2dp2_fsdp2", ""),
    ("fairseq2_native", "llama_hsdp_rdp2sdp2", ""),
    ("megatron_legacy", "llama_te_tp2_pp2", ""),
    ("megatron_torch_dist", "gpt_tp2_pp2_v0161", ""),
    ("megatron_zarr", "gpt_zarr_tp2_pp2_v0090", ""),
    ("dcp", "fsdp2_w2_adamw", ""),
    ("dcp", "hf_sharded_2files_w4", ""),
    ("meta", "llama", ""),
    ("modelopt", "sharded_llama_tied_w2", ""),
    ("deepspeed", "zero2_dp4", ""),
    ("olmo_core_v1", "fsdp_olmo_w2", ""),
    ("vllm", "tp2", ""),
    ("runs", "hf_trainer_qwen2", ""),
    ("runs", "nanotron_tp2", ""),
]


def source_of(format, case, name):
    path = DATA / format / case / "ckpt"
    return path / name if name else path


def copy(path, to):
    if path.is_dir():
        shutil.copytree(path, to)
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    return to


def files_of(path):
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file())


def one_of_each(files):
    """One file of each kind, by name without numbers; at most five."""
    kinds = {}
    for file in files:
        kinds.setdefault(re.sub(r"\d+", "#", file.name), file)
    return list(kinds.values())[:5]


def digests(path):
    """name -> (dtype, shape, digest), as any of ckpt's readers sees it."""
    return {t["name"]: (t["dtype"], tuple(t["shape"]), t.get("digest"))
            for t in CKPT.inspect(path, "--digest")["tensors"]}


# ------------------------------------------------------------------- damage
def delete(path):
    path.unlink()
    return True


def cut(part):
    def apply(path):
        size = path.stat().st_size
        if size < 2:
            return False
        with open(path, "r+b") as f:
            f.truncate(int(size * part))
        return True
    return apply


def cut_tail(path):
    size = path.stat().st_size
    if size < 3:
        return False
    with open(path, "r+b") as f:
        f.truncate(size - 1)
    return True


def flip(part):
    def apply(path):
        data = bytearray(path.read_bytes())
        if not data:
            return False
        data[int((len(data) - 1) * part)] ^= 0x10
        path.write_bytes(data)
        return True
    return apply


def zero_page(path):
    data = bytearray(path.read_bytes())
    begin = len(data) // 2 // 4096 * 4096
    page = data[begin:begin + 4096]
    if not any(page):
        return False
    data[begin:begin + 4096] = bytes(len(page))
    path.write_bytes(data)
    return True


DAMAGE = {
    "deleted": delete, "cut to nothing": cut(0), "cut at half": cut(0.5),
    "cut at 0.9": cut(0.9), "last byte cut": cut_tail,
    "first byte flipped": flip(0), "flipped at a third": flip(0.33),
    "flipped at 0.7": flip(0.7), "last byte flipped": flip(1),
    "a page of zeros": zero_page,
}


def has_checksum(path):
    """True for torch.save zips, also inside .distcp files."""
    return b"PK\x01\x02" in path.read_bytes()


# ------------------------------------------------------------------- checks
def salvage(source, target, *more):
    result = CKPT.run("salvage", source, target, "--json", "--no-fsync", *more)
    check(result.code in (0, 1, 4, 5, 8), f"{result}")
    report = None
    # What its own reader refuses (a rank's file alone) has no report.
    if result.code in (0, 1) or (result.code == 5 and result.out):
        report = json.loads(result.out)
        check_equal(report["schema"], "ckpt/salvage/1", "schema")
    return result, report


def gone_tensors(report):
    return {part["tensor"] for part in report["gone"]}


def same_but_listed(want, got, report, what):
    """Recovered plus listed must be everything."""
    gone = gone_tensors(report)
    listed = " ".join(note["what"] for note in report["lost"])
    for name, value in want.items():
        if name in gone:
            check(name in got, f"{what}: {name} is listed and not written")
            check_equal(got[name][:2], value[:2], f"{what}: {name}")
        elif name in got:
            check_equal(got[name], value, f"{what}: {name}")
        else:
            check(name in listed or report["lost"],
                  f"{what}: {name} is neither recovered nor listed")
    # Without common.pt, optimizer buckets have the names they are stored under.
    check(report["lost"] or not set(got) - set(want),
          f"{what}: {set(got) - set(want)} is new")


def try_one(folder, source, file, damage, like, want, counts):
    """One damage to one file."""
    broken, out = folder / source.name, folder / f"out_{source.name}"
    copy(source, broken)
    inside = broken / file.relative_to(source) if source.is_dir() else broken
    what = f"{file.name}: {damage}"
    certain = has_checksum(inside)
    if not DAMAGE[damage](inside):
        return
    structural = damage.startswith(("deleted", "cut", "last byte cut"))
    more = ["--like", like] if like else []
    if not broken.exists():
        CKPT.run("salvage", broken, out).want(3)
        return
    before = {p: p.read_bytes() for p in files_of(broken)}
    result, report = salvage(broken, out, *more)
    counts[result.code] = counts.get(result.code, 0) + 1
    check({p: p.read_bytes() for p in files_of(broken)} == before,
          f"{what}: the source was changed")
    if result.code in (4, 5, 8):
        check(not out.exists(), f"{what}: something was written\n{result}")
        check("hint: " in result.err or '"hint"' in result.err,
              f"{what}: no next step\n{result}")
    elif certain or structural:
        same_but_listed(want, digests(out), report, what)
    if result.code == 5 and report:
        check(report["gone"] or report["lost"], f"{what}: nothing is listed")
        result, report = salvage(broken, out, *more, "--partial", "zeros")
        if result.code == 1 and (certain or structural):
            check(out.exists(), f"{what}: --partial wrote nothing")
            same_but_listed(want, digests(out), report, what)
    left = [p.name for p in folder.iterdir() if p.name not in (
        broken.name, out.name, out.name + MANIFEST)]
    check(not left, f"{what}: {left} is left behind")


def test_damage(folder, format, case, name, with_like):
    source = source_of(format, case, name)
    like = source if with_like else None
    want = digests(source)
    counts, tried = {}, 0
    files = one_of_each(files_of(source))
    for file in files:
        for damage in DAMAGE:
            # It determines the names of the optimizer's states.
            if format == "runs" and file.name == "config.json":
                continue
            if not FULL and len(files) > 2 and zlib.crc32(
                    f"{case} {file.name} {damage}".encode()) % 2:
                continue  # half of them: time
            place = folder / f"t{tried}"
            place.mkdir()
            try_one(place, source, file, damage, like, want, counts)
            shutil.rmtree(place)
            tried += 1
    print(f"  {format}/{case}/{name}: {tried} damages; exit {counts}",
          flush=True)


def test_sound(folder, format, case, name):
    """A sound source is copied unchanged."""
    source = source_of(format, case, name)
    out = folder / source.name
    _, report = salvage(source, out)
    check(report["whole"] and not report["gone"], f"{report}")
    want = {p.relative_to(source): p.read_bytes() for p in files_of(source)}
    got = {p.relative_to(out): p.read_bytes() for p in files_of(out)}
    for path, data in want.items():
        check(got.pop(path, None) == data, f"{path} is not as it was")
    check(set(map(str, got)) <= {"model.safetensors.index.json", MANIFEST},
          f"{set(got)} is new")
    manifest = out / MANIFEST if out.is_dir() else Path(f"{out}{MANIFEST}")
    want = json.loads(manifest.read_text())["tensors"]
    check_equal(set(want), set(digests(source)), "tensors of the manifest")
    CKPT.run("verify", out, "-q").want(CKPT.run("verify", source, "-q").code)


def test_last_line(folder):
    """What a run would write, and what it cost and what comes next."""
    source, out = DATA / "hf/llama/ckpt", folder / "out"
    size = sum(p.stat().st_size for p in files_of(source))
    said = CKPT.ok("salvage", source, out, "-n").out
    check(f"{out}: safetensors, 21 tensors in 3 files, {size / 1024:.1f} KiB, "
          "whole\ndry run: nothing was written\n" in said, said)
    check(not out.exists(), "a dry run wrote")
    said = CKPT.ok("salvage", source, out).err
    check(re.search(r"^wrote \S+: safetensors, 21 tensors in 3 files, "
                    r"[\d.]+ KiB in [\d.]+ s \([\d.]+ .iB/s\), peak memory "
                    r"[\d.]+ MiB, whole; next: ckpt verify \S+$", said, re.M),
          said)


# --------------------------------------------------- what exactly is listed
def test_cut_safetensors(folder):
    """Each element of a truncated file is either right or listed."""
    source = DATA / "hf/llama/ckpt/model.safetensors"
    if not source.exists():
        source = sorted((DATA / "hf/llama/ckpt").glob("*.safetensors"))[0]
    want = read_safetensors(source)
    data = source.read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    for at in (len(data) - 3, (8 + header + len(data)) // 2, 8 + header):
        broken, out = folder / "broken.safetensors", folder / "out.safetensors"
        broken.write_bytes(data[:at])
        salvage(broken, out)[0].want(5)
        result, report = salvage(broken, out, "--partial", "nan")
        result.want(1)
        got = read_safetensors(out)
        holes = {}
        for part in report["gone"]:
            holes.setdefault(part["tensor"], []).append(part["elements"])
        for name, tensor in want.items():
            size = max(1, len(tensor.data) // max(1, count(tensor.shape)))
            expect = bytearray(tensor.data)
            for begin, end in holes.get(name, []):
                expect[begin * size:end * size] = nan(tensor.dtype) * (
                    end - begin)
            check_equal(got[name].data, bytes(expect), f"cut at {at}: {name}")
        lost = sum(part["bytes"] for part in report["gone"])
        check(len(data) - at <= lost < len(data) - at + 8,
              f"{lost} bytes listed, {len(data) - at} were cut")
        out.unlink()


def count(shape):
    total = 1
    for dim in shape:
        total *= dim
    return total


def nan(dtype):
    return {"f32": b"\0\0\xc0\x7f", "bf16": b"\xc0\x7f", "f16": b"\0\x7e"}[
        dtype]


def test_lost_directory(folder):
    """torch loads what is rebuilt from a file without its directory."""
    import torch

    source = DATA / "torch_pt/container_variants/ckpt/default.pt"
    want = torch.load(source, weights_only=True)
    data = source.read_bytes()
    broken, out = folder / "broken.pt", folder / "out.pt"
    broken.write_bytes(data[:data.index(b"PK\x01\x02")])
    result, report = salvage(broken, out)
    result.want(0)
    check(report["rebuilt"], "nothing is said")
    got = torch.load(out, weights_only=True)
    check(str(got) == str(want), "torch reads something else")


def test_lost_pickle(folder):
    """Without data.pkl nothing can be known, which is reported."""
    source = DATA / "torch_pt/container_variants/ckpt/default.pt"
    data = bytearray(source.read_bytes())
    at = data.index(b"data.pkl") + 200
    data[at] ^= 1
    broken = folder / "broken.pt"
    broken.write_bytes(data)
    result, _ = salvage(broken, folder / "out.pt")
    result.want(4)
    check("data.pkl" in result.err, f"{result}")


def test_index(folder):
    """A lost index is rebuilt with the same weight map."""
    source = DATA / "safetensors/hf_sharded/ckpt"
    name = next(p.name for p in source.glob("*.index.json"))
    want = json.loads((source / name).read_text())
    broken, out = copy(source, folder / "broken"), folder / "out"
    for damage in ("deleted", "cut at half", "cut to nothing"):
        (broken / name).write_bytes((source / name).read_bytes())
        DAMAGE[damage](broken / name)
        result, report = salvage(broken, out, "--overwrite")
        result.want(0)
        got = json.loads((out / name).read_text())
        check_equal(got["weight_map"], want["weight_map"], damage)
        check(any(name in note["file"] for note in report["rebuilt"]),
              f"{report}")


INDEX = "model.safetensors.index.json"
INDEXED = ["safetensors/hf_sharded", "hf/llama", "hf/deepseek_v2_bf16",
           "modelopt/sharded_llama_tied_w2"]


def sharded(folder, case):
    """A copy with an index over several shards, without a manifest."""
    source = DATA / case / "ckpt"
    if (source / INDEX).exists():
        return copy(source, folder / "sharded")
    size = sum(p.stat().st_size for p in source.glob("*.safetensors"))
    CKPT.ok("convert", source, folder / "sharded", "--to", "safetensors",
            "--max-shard-size", f"{size // 3}B", "--no-manifest")
    return folder / "sharded"


def holders(folder):
    """tensor -> the shards that have it: a tied one may be in two."""
    found = {}
    for path in sorted(folder.glob("model-*-of-*.safetensors")):
        for name in read_safetensors(path):
            found.setdefault(name, set()).add(path.name)
    return found


def check_map(got, want, what):
    """Each tensor of `want` (from holders) is in a shard that has it."""
    check_equal(set(got), set(want), what)
    for name, shard in got.items():
        check(shard in want[name], f"{what}: {name} in {shard}")


def test_index_and_shard(folder, case):
    """Without the index, a set's numbers show what is missing."""
    source = sharded(folder, case)
    want = holders(source)
    shards = sorted(set().union(*want.values()))
    check(len(shards) > 1, f"{shards}")
    broken, out = folder / "broken", folder / "out"
    for number, shard in enumerate(shards):
        for damage in ("deleted", "cut at half", "cut to nothing"):
            if number and damage != "deleted" and not FULL:
                continue
            shutil.rmtree(broken, ignore_errors=True)
            copy(source, broken)
            DAMAGE[damage](broken / INDEX)
            (broken / shard).unlink()
            what = f"{shard}, index {damage}"
            result, report = salvage(broken, out)
            check(result.code in (4, 5), f"{what}: {result}")
            check(not out.exists(), f"{what}: something was written")
            if not report:
                check(shard in result.err, f"{what}: {result}")
                continue
            check(shard in {note["file"] for note in report["lost"]},
                  f"{what}: {report['lost']}")
            result, report = salvage(broken, out, "--partial", "zeros")
            if result.code != 1:  # what is left is not readable
                continue
            CKPT.run("verify", out, "-q").want(1)  # it says what is unproven
            got = json.loads((out / INDEX).read_text())["weight_map"]
            check_map(got, holders(broken), what)
            shutil.rmtree(out)
    # If another step has it, the index has it too.
    result, report = salvage(broken, out, "--like", source)
    if result.code == 0:
        got = json.loads((out / INDEX).read_text())["weight_map"]
        check_map(got, want, "with --like")
        shutil.rmtree(out)


def test_foreign_beside(folder, case):
    """Files beside the set don't become part of the rebuilt index."""
    source = sharded(folder, case)
    want = holders(source)
    shards = sorted(set().union(*want.values()))
    for name in ("model.fp16.safetensors", "consolidated.safetensors",
                 "adapter_model.safetensors",
                 "model.fp16-00001-of-00002.safetensors", "a.safetensors"):
        broken, out = folder / f"b_{name}", folder / f"o_{name}"
        copy(source, broken)
        shutil.copy(broken / shards[0], broken / name)
        for damage in ("deleted", "cut at half"):
            (broken / INDEX).write_bytes((source / INDEX).read_bytes())
            DAMAGE[damage](broken / INDEX)
            result, report = salvage(broken, out, "--overwrite")
            result.want(0)
            got = json.loads((out / INDEX).read_text())["weight_map"]
            check_map(got, want, f"{name}, index {damage}")
            check((out / name).exists(), f"{name} is not carried")


def test_index_is_completed(folder, case):
    """Tensors that an index omits, misplaces or makes up."""
    source = sharded(folder, case)
    whole = json.loads((source / INDEX).read_text())
    want, named = holders(source), whole["weight_map"]
    shards = sorted(set(named.values()))
    first = next(name for name in sorted(want) if len(want[name]) == 1)
    other = next(s for s in shards if s not in want[first])
    for name, change, code in (
            ("lacks one", lambda m: m.pop(first), 0),
            ("lacks a shard", lambda m: [m.pop(k) for k, v in named.items()
                                         if v == shards[-1]], 0),
            ("elsewhere", lambda m: m.update({first: other}), 0),
            ("made up", lambda m: m.update({"ghost.weight": other}), 5)):
        broken, out = folder / name, folder / f"out {name}"
        copy(source, broken)
        index = json.loads(json.dumps(whole))
        change(index["weight_map"])
        (broken / INDEX).write_text(json.dumps(index))
        result, report = salvage(broken, out)
        result.want(code)
        if code:
            check("ghost.weight" in str(report["lost"]), f"{report}")
            salvage(broken, out, "--partial", "zeros")[0].want(1)
        got = json.loads((out / INDEX).read_text())
        check_map(got["weight_map"], want, name)
        check(any(note["file"] == INDEX for note in report["rebuilt"]),
              f"{name}: {report['rebuilt']}")
        # What is not whole is not certified.
        CKPT.run("verify", out, "-q").want(1 if code else 0)


def test_layers_of_config(folder):
    """One file and a truncated index: config.json gives the number of
    layers."""
    source = DATA / "hf/llama/ckpt"
    broken = folder / "broken"
    CKPT.ok("convert", source, broken, "--to", "safetensors", "--keys", "*",
            "--exclude", "*.layers.1.*", "--no-manifest")
    (broken / INDEX).write_text("{")
    result, report = salvage(broken, folder / "out")
    result.want(5)
    check_equal([note["file"] for note in report["lost"]], ["config.json"],
                f"{report}")


def test_like_of_another_layout(folder):
    """One file of a whole model is no file that a sharded one lost."""
    shards = DATA / "safetensors" / "hf_sharded" / "ckpt"
    CKPT.ok("convert", shards, folder / "one", "--max-shard-size", "1GB", "--no-manifest")
    broken = folder / "broken"
    for source, like in ((shards, folder / "one"), (folder / "one", shards)):
        shutil.copytree(source, broken)
        file = max(broken.glob("*.safetensors"))
        os.truncate(file, file.stat().st_size - 8)
        result = CKPT.run("salvage", broken, folder / "out", "--like", like,
                          "--partial", "nan")
        said = result.want(2).err
        check("of the same run" in said and "--partial" in said, said)
        check(not (folder / "out").exists(), "written nevertheless")
        CKPT.run("salvage", broken, folder / "out", "--partial", "nan").want(1)
        shutil.rmtree(folder / "out")
        shutil.rmtree(broken)


def test_like_is_a_fifo(folder):
    source = copy(DATA / "hf/llama/ckpt", folder / "source")
    os.mkfifo(folder / "pipe")
    result = CKPT.run("salvage", source, folder / "out", "--like",
                      folder / "pipe").want(2)
    check("pipe" in result.err and str(source) not in result.err, result.err)


def test_manifest(folder):
    """A flipped bit in a file without checksums is found by the manifest, and
    another step with the same digest heals it."""
    source = DATA / "hf/llama/ckpt"
    whole, broken, out = (folder / n for n in ("whole", "broken", "out"))
    CKPT.ok("convert", source, whole, "--to", "safetensors", "-q")
    copy(whole, broken)
    file = sorted(broken.glob("*.safetensors"))[0]
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    result, report = salvage(broken, out)
    result.want(5)
    check_equal(len(gone_tensors(report)), 1, "tensors listed")
    salvage(broken, out, "--like", source)[0].want(0)
    check_equal(digests(out), digests(source), "healed")


def test_own_manifest(folder):
    """A whole result is certified by a manifest, so that a flipped byte in it
    is found. An incomplete one has none."""
    source = DATA / "hf/llama/ckpt"
    broken, out = copy(source, folder / "broken"), folder / "out"
    file = sorted(broken.glob("*.safetensors"))[0]
    data = file.read_bytes()
    salvage(broken, out)[0].want(0)
    CKPT.run("verify", out, "-q").want(0)
    for name in (file.name, "config.json"):
        bytes_ = bytearray((out / name).read_bytes())
        bytes_[-5] ^= 4
        (out / name).write_bytes(bytes_)
        CKPT.run("verify", out, "-q").want(1)
        salvage(broken, out, "--overwrite")[0].want(0)
    file.write_bytes(data[:-7])
    salvage(broken, out, "--overwrite", "--partial", "zeros")[0].want(1)
    tensors = json.loads((out / MANIFEST).read_text())["tensors"].values()
    check(any("unproven" in entry and "digest" not in entry
              for entry in tensors), "what is not whole is certified")
    CKPT.run("verify", out).want(1)
    file.write_bytes(data)
    salvage(broken, out, "--overwrite", "--no-manifest")[0].want(0)
    check(not (out / MANIFEST).exists(), "--no-manifest wrote one")


def test_tied(folder):
    """Two names of one tensor: the manifest has the same digest for both, and
    the sound one heals the other."""
    from safetensors.torch import load_file, save_file

    plain = folder / "plain.safetensors"
    weights = load_file(sorted((DATA / "hf/llama/ckpt").glob(
        "*.safetensors"))[0])
    name = "a.copy"  # is first in the file
    weights[name] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, plain)
    broken, out = folder / "broken.safetensors", folder / "out.safetensors"
    CKPT.ok("convert", plain, broken, "--to", "safetensors", "-q")
    want = read_safetensors(broken)
    data = bytearray(broken.read_bytes())
    at = data.index(want[name].data)
    data[at + 5] ^= 4
    broken.write_bytes(data)
    result, report = salvage(broken, out)
    result.want(0)
    check(any("same digest" in note["what"] for note in report["rebuilt"]),
          f"{report}")
    got = read_safetensors(out)
    for tensor, value in want.items():
        check_equal(got[tensor].data, value.data, tensor)


# What no other file of a checkpoint tells, and the word that reports it.
UNKNOWN = [
    ("dcp", "fsdp2_w2_adamw", ".metadata", "names"),
    ("megatron_torch_dist", "gpt_tp2_pp2_v0161", ".metadata", "names"),
    # Its chunks are packed, so their sizes tell nothing.
    ("megatron_zarr", "zarr_v2_variants_emulated", ".zarray", "shape"),
]


def test_unknown(folder, format, case, name, word):
    """Lost, with no other step to tell: the file is named with what only it
    knew, and nothing is written."""
    broken = copy(DATA / format / case / "ckpt", folder / "broken")
    lost = sorted(broken.rglob(name))[0]
    lost.unlink()
    result, report = salvage(broken, folder / "out")
    check(result.code in (4, 5), f"{result}")
    said = result.err + result.out
    check(name in said and word in said, f"{word}: {result}")
    check("--like" in said, f"{result}")
    check(not (folder / "out").exists(), f"{result}")


# Source, format to write and how, where ckpt's manifest identifies items.
METADATA = [
    ("dcp/fsdp2_w2_adamw", "dcp", "--dp", "2"),
    ("dcp/fsdp2_w2_adamw", "dcp", "--dp", "3"),
    ("hf/llama", "dcp", "--dp", "4"),
    ("megatron_torch_dist/gpt_tp2_pp2_v0161", "megatron_torch_dist",
     "--tp", "2"),
    ("megatron_torch_dist/gpt_optim_qknorm_vpp2_v0161", "megatron_torch_dist",
     "--tp", "2"),
    ("megatron_torch_dist/moe_tp1_ep2_pp2_v0161", "megatron_torch_dist",
     "--ep", "2"),
    ("olmo_core_v1/fsdp_olmo_w2", "olmo_core"),
]


def test_lost_metadata(folder, source, to, *layout):
    """A lost .metadata of ckpt's own output: the manifest's digests prove which
    items make up which tensor; objects are listed."""
    whole, broken, out = (folder / n for n in ("whole", "broken", "out"))
    CKPT.ok("convert", DATA / source / "ckpt", whole, "--to", to, *layout, "-q")
    want = digests(whole)
    objects = [o for o in CKPT.inspect(whole)["objects"]
               if o.get("file", "").endswith(".distcp")]
    for damage in ("deleted", "cut at half"):
        copy(whole, broken)
        (metadata,) = broken.rglob(".metadata")
        DAMAGE[damage](metadata)
        result, report = salvage(broken, out)
        if report["lost"]:
            result.want(5)
            check(all("objects" in n["what"] for n in report["lost"]),
                  f"{report['lost']}")
            result, report = salvage(broken, out, "--partial", "zeros")
            result.want(1)
        else:
            check(not objects, f"{objects} are not listed")
            result.want(0)
        check_equal(digests(out), want, damage)
        check(any(n["file"].endswith(".metadata") and not n["inferred"]
                  for n in report["rebuilt"]), f"{report}")
        shutil.rmtree(broken)
        if to == "dcp" and damage == "deleted":
            torch_reads_it(whole, out, folder)
        shutil.rmtree(out)


def torch_reads_it(whole, out, folder):
    """torch finds the same tensors with both .metadata files."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    def load(path):
        file = folder / "all.pt"
        dcp_to_torch_save(path, file)
        return dict(flat(torch.load(file, weights_only=False)))

    def flat(value, name=""):
        if isinstance(value, (dict, list)):
            pairs = (value.items() if isinstance(value, dict)
                     else enumerate(value))
            for key, inner in pairs:
                yield from flat(inner, f"{name}.{key}" if name else str(key))
        elif isinstance(value, torch.Tensor):
            yield name, value

    want, got = load(whole), load(out)
    check_equal(set(got), set(want), "names")
    for name, tensor in want.items():
        check(torch.equal(got[name], tensor), name)


def test_other_grid(folder):
    """A tensor that no combination of items adds up to is listed, not
    guessed."""
    whole, out = folder / "whole", folder / "out"
    CKPT.ok("convert", DATA / "hf/llama/ckpt", whole, "--to", "dcp", "--dp",
            "2", "-q")
    (whole / ".metadata").unlink()
    file = whole / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.index(b"archive/data/0", len(data) // 2) + 64
    data[at] ^= 1  # in some payload
    file.write_bytes(data)
    result, report = salvage(whole, out)
    result.want(5)
    said = " ".join(n["what"] for n in report["lost"])
    check("no file holds it" in said and "no tensor whose digest" in said,
          said)


def test_linked_directory(folder):
    """A directory that is a link is refused, not passed over."""
    broken = copy(DATA / "fairseq2_native/llama_tp2dp2_fsdp2/ckpt",
                  folder / "broken")
    (rank,) = sorted(broken.rglob("tp_01"))[:1]
    elsewhere = folder / "elsewhere"
    shutil.move(rank, elsewhere)
    rank.symlink_to(elsewhere, target_is_directory=True)
    result, _ = salvage(broken, folder / "out")
    result.want(8)
    check("tp_01" in result.err and "link" in result.err, f"{result}")
    check(not (folder / "out").exists(), "something was written")


def test_lost_array(folder, case):
    """Each .zarray of a zarr checkpoint in turn, from names and sizes of
    chunks, arrays of the same shape and the args: restored verbatim, or listed.
    """
    source = DATA / "megatron_zarr" / case / "ckpt"
    want, rebuilt, unknown = digests(source), 0, []
    arrays = [a for a in sorted(source.rglob(".zarray"))
              if a.stat().st_size]  # others are locks
    for array in arrays[::1 + len(arrays) // 12]:
        broken, out = folder / "broken", folder / "out"
        copy(source, broken)
        name = array.relative_to(source)
        (broken / name).unlink()
        result, report = salvage(broken, out)
        if result.code == 0:
            check((out / name).read_bytes() == array.read_bytes(), f"{name}")
            check(any(n["inferred"] and n["file"] == str(name)
                      for n in report["rebuilt"]), f"{report}")
            check_equal(digests(out), want, f"{name}")
            shutil.rmtree(out)
            rebuilt += 1
        else:
            check(not out.exists() and str(name) in result.out + result.err,
                  f"{result}")
            unknown.append(array.parent.name)
        shutil.rmtree(broken)
    print(f"  {case}: {rebuilt} inferred; not {unknown}", flush=True)
    check(rebuilt > len(unknown), f"{unknown}")


# Args of the goldens that tensors or grids of objects determine.
TOLD = ("tensor_model_parallel_size", "pipeline_model_parallel_size",
        "num_layers", "hidden_size", "padded_vocab_size", "swiglu",
        "num_attention_heads", "num_query_groups", "kv_channels",
        "untie_embeddings_and_output_weights", "ffn_hidden_size",
        "add_bias_linear", "params_dtype", "bf16", "fp16", "num_experts",
        "world_size", "data_parallel_size", "qk_layernorm")


COMMONS = [
    ("megatron_torch_dist", "gpt_tp2_pp2_v0161"),
    ("megatron_torch_dist", "moe_tp1_ep2_pp2_v0161"),
    ("megatron_torch_dist", "gpt_optim_qknorm_vpp2_v0161"),
    ("megatron_zarr", "gpt_zarr_tp2_pp2_v0090"),
]


def args_of(path):
    import torch

    state = torch.load(next(path.rglob("common.pt")), weights_only=False)
    args = state.get("args")
    return {} if args is None else vars(args)


def test_lost_common(folder, format, case):
    """Megatron's common.pt: topology and args that the tensors determine are
    inferred, with the original values. What is recorded nowhere else is
    listed."""
    source = DATA / format / case / "ckpt"
    broken, out = copy(source, folder / "broken"), folder / "out"
    next(broken.rglob("common.pt")).unlink()
    result, report = salvage(broken, out)
    result.want(5)
    check(not out.exists(), "written without --partial")
    result, report = salvage(broken, out, "--partial", "zeros")
    result.want(1)
    check(any(n["inferred"] and "common.pt" in n["file"]
              for n in report["rebuilt"]), f"{report}")
    check(any("param_groups" in n["what"] for n in report["lost"]), f"{report}")
    got, want = args_of(out), args_of(source)
    check(set(got) <= {*TOLD, "iteration"}, f"{set(got)}")
    check("num_layers" in got and "hidden_size" in got, f"{got}")
    for name, value in got.items():
        if name in want and want[name] is not None:
            check_equal(value, want[name], name)
    for file in files_of(source):
        if file.name != "common.pt":
            check((out / file.relative_to(source)).read_bytes() ==
                  file.read_bytes(), f"{file}")


def test_link_to_nothing(folder):
    """A half-deleted cache: the link is there, the file is not."""
    source = DATA / "safetensors/hf_sharded/ckpt"
    broken, out = copy(source, folder / "broken"), folder / "out"
    shard = broken / "model-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to("../../blobs/0123")
    result, report = salvage(broken, out)
    result.want(5)
    check(any("broken symlink" in note["what"] for note in report["lost"]),
          f"{report}")
    result, report = salvage(broken, out, "--like", source)
    result.want(5)
    want = set(read_safetensors(source / shard.name))
    check_equal(gone_tensors(report), want, "listed")


def test_bad(folder):
    """Malicious files: an answer, and never that of a bug."""
    (folder / "out").mkdir()
    for path in sorted((DATA / "bad").glob("*/*")):
        if path.parent.name not in ("safetensors", "torch_pt", "dcp", "index"):
            continue
        for more in ((), ("--partial", "zeros")):
            result = CKPT.run("salvage", path, folder / "out" / path.name,
                              "--no-fsync", "-q", *more)
            check(result.code in (0, 1, 4, 5, 7, 8), f"{result}")
            if result.code in (0, 1):
                break


def test_dry_run(folder):
    source = DATA / "safetensors/hf_sharded/ckpt"
    result, report = salvage(source, folder / "out", "-n")
    result.want(0)
    check(report["dry_run"] and not report["written"], f"{report}")
    check(not list(folder.iterdir()), "a dry run wrote")


def every_case():
    """All goldens, with what is opened of each: the folder or files in it."""
    for folder in sorted(DATA.glob("*/*/ckpt")):
        format, case = folder.relative_to(DATA).parts[:2]
        if CKPT.run("inspect", folder, "--digest", "-q").code == 0:
            yield format, case, ""
            continue
        for file in sorted(p for p in folder.iterdir() if p.is_file()):
            if CKPT.run("inspect", file, "--digest", "-q").code == 0:
                yield format, case, file.name


def test_killed(folder):
    """What a killed run left is gone after the next one, and nothing is in the
    way of a name that somebody else took."""
    source = folder / "a.pt"
    shutil.copyfile(DATA / "torch_pt" / "dtypes" / "ckpt" / "model.pt", source)
    cut_tail(source)
    beside = folder / ".b.pt.ckpt-salvage"
    (beside / "deep").mkdir(parents=True)
    (beside / "deep" / "a.pt").write_bytes(b"of a killed run")
    (folder / ".b.pt.ckpt-salvage.ckpt-lock").touch()
    (beside / "link").symlink_to(source)
    CKPT.ok("salvage", source, folder / "b.pt")
    check_equal(sorted(p.name for p in folder.iterdir()),
                ["a.pt", "b.pt", "b.pt" + MANIFEST], "what is left")
    check(source.exists(), "the link was followed")
    (folder / ".c.pt.ckpt-salvage").write_bytes(b"somebody's")
    CKPT.run("salvage", source, folder / "c.pt").want(8)


def test_killed_at_once(folder):
    """At most one copy is left, however often it is killed."""
    source = folder / "a.pt"
    shutil.copyfile(DATA / "torch_pt" / "dtypes" / "ckpt" / "model.pt", source)
    cut_tail(source)
    for delay in (0, 0.002, 0.005, 0.01, 0.02):
        child = subprocess.Popen(
            [CKPT.path, "salvage", source, folder / "b.pt", "--overwrite"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)  # noqa: TID251  any moment will do
        child.kill()
        child.wait()
        left = [p.name for p in folder.iterdir()
                if ".ckpt-salvage" in p.name and p.is_dir()]
        check(left in ([], [".b.pt.ckpt-salvage"]), left)
    CKPT.ok("salvage", source, folder / "b.pt", "--overwrite")
    check(not [p for p in folder.iterdir() if ".ckpt-" in p.name
               and not p.name.endswith(MANIFEST)], list(folder.iterdir()))


def prepare(suite, ckpt):
    global CKPT, FULL
    CKPT, FULL = ckpt, suite.full
    for test in (test_last_line, test_cut_safetensors, test_lost_directory, test_lost_pickle,
                 test_index, test_layers_of_config, test_like_is_a_fifo,
                 test_like_of_another_layout,
                 test_manifest, test_own_manifest, test_tied,
                 test_link_to_nothing, test_bad, test_dry_run,
                 test_other_grid, test_linked_directory, test_killed,
                 test_killed_at_once):
        suite.add(test.__name__[5:], test)
    indexed = set(INDEXED)
    if FULL:
        indexed |= {f"hf/{case.name}" for case in (DATA / "hf").iterdir()}
    for case in sorted(indexed):
        for test in (test_index_and_shard, test_foreign_beside,
                     test_index_is_completed):
            suite.add(f"{test.__name__[5:]}: {case}", test, case)
    for case in ("gpt_zarr_tp2_pp2_v0090", "gpt_zarr_optim_model_space_v0090"):
        suite.add(f"lost .zarray: {case}", test_lost_array, case)
    for case in METADATA:
        suite.add("lost .metadata: " + " ".join(case), test_lost_metadata,
                  *case)
    for case in COMMONS:
        suite.add("lost common.pt: " + "/".join(case), test_lost_common, *case)
    for case in UNKNOWN:
        suite.add("unknown " + "/".join(case[:3]), test_unknown, *case)
    for format, case, name in every_case() if FULL else CASES:
        if not source_of(format, case, name).exists():
            continue
        label = f"{format}/{case}/{name}".rstrip("/")
        suite.add(f"sound {label}", test_sound, format, case, name)
        suite.add(f"alone {label}", test_damage, format, case, name, False)
        suite.add(f"like {label}", test_damage, format, case, name, True)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
