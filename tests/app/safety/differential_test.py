#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch or safetensors load from a mutant is what ckpt loads from it, or
ckpt refuses.

Mutants are made deterministically from sound files: a header's JSON, a pickle's
opcodes, a zip's fields, a legacy stream, a tar, .metadata and .distcp files of
a distributed checkpoint, changed in bytes, numbers and texts. ckpt may load
what the peer refuses, but must not crash or take long. Both load the sound
file. --full makes 50 times as many.
"""

import collections
import concurrent.futures
import functools
import json
import multiprocessing
import random
import re
import shutil
import struct
import zlib

from peer_mutants import (
    item_mutants, legacy_mutants, load_dcp, load_tar, metadata_mutants,
    tar_mutants)
from support import DATA, HANG, Suite, check, digest, from_torch, torch_tensors

CKPT = None
MUTANTS = 60  # per kind and file; more with --full
REFUSALS = {1, 3, 4, 5, 7, 8}
POOL = None
COUNTS = collections.Counter()


# ------------------------------------------------------------------ the peers
def peer_load(kind, path):
    """name -> (dtype, shape, digest), or why the peer refuses."""
    import warnings

    warnings.simplefilter("ignore")
    try:
        if kind == "safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as f:
                tensors = {n: from_torch(f.get_tensor(n)) for n in f.keys()}
        elif kind == "torch":
            import torch

            tensors = torch_tensors(torch.load(
                path, map_location="cpu", weights_only=True))
        else:
            load = {"tar": load_tar, "dcp": load_dcp}[kind]
            tensors = torch_tensors(load(path))
        return {name: (t.dtype, t.shape, digest(t.data))
                for name, t in tensors.items()}
    except Exception as refused:  # whatever it is, it isn't an answer
        return f"{type(refused).__name__}: {str(refused)[:100]}"


def ask_peer(kind, path):
    """Asks in a separate process: a mutant may crash the peer."""
    global POOL
    if POOL is None:
        POOL = concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("fork"))
    try:
        return POOL.submit(peer_load, kind, str(path)).result(timeout=HANG)
    except (concurrent.futures.process.BrokenProcessPool,
            concurrent.futures.TimeoutError) as died:
        POOL.shutdown(wait=False, cancel_futures=True)
        POOL = None
        return f"died: {died}"


def ours(path):
    result = CKPT.run("inspect", path, "--json", "--digest")
    check(result.code == 0 or result.code in REFUSALS, f"{result}")
    if result.code:
        return None
    return {t["name"]: (t["dtype"], tuple(t["shape"]), t["digest"])
            for t in result.json()["tensors"]}


# ------------------------------------------------------------------- mutants
def header_mutants(data, rng):
    """safetensors: the JSON's numbers, names and punctuation; the length."""
    (size,) = struct.unpack("<Q", data[:8])
    header, payload = data[8:8 + size], data[8 + size:]
    numbers = [m.span() for m in re.finditer(rb"\d+", header)]
    texts = [m.span() for m in re.finditer(rb'"[^"]*"', header)]
    while True:
        new, kind = header, rng.randrange(6)
        if kind == 0:
            begin, end = rng.choice(numbers)
            other = rng.choice([b"0", b"-1", b"1e1", b"1.0", b"007", b"4",
                                b"18446744073709551616", b"9" * 19])
            new = header[:begin] + other + header[end:]
        elif kind == 1:
            begin, end = rng.choice(texts)
            other = header[slice(*rng.choice(texts))]
            new = header[:begin] + other + header[end:]
        elif kind == 2:
            at = rng.randrange(len(header))
            new = header[:at] + bytes([rng.randrange(256)]) + header[at + 1:]
        elif kind == 3:
            at = rng.randrange(len(header))
            new = header[:at] + rng.choice(
                [b" ", b",", b"{}", b"null", b"\0", b"\\u0041", b"\xff", b"//"]
            ) + header[at:]
        elif kind == 4:
            begin, end = sorted(rng.sample(range(len(header)), 2))
            new = header[:begin] + header[end:]
        else:
            yield struct.pack("<Q", rng.choice(
                [0, 1, size - 1, size + 1, size + 8, 1 << 63])) + data[8:]
            continue
        yield struct.pack("<Q", len(new)) + new + payload


def repack(records, root):
    """A stored zip with correct checksums: what is wrong is in the records."""
    out, directory = b"", b""
    for name, content in records:
        name = f"{root}/{name}".encode()
        fields = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, 0, zlib.crc32(content),
                             len(content), len(content), len(name), 0)
        directory += b"PK\1\2" + struct.pack("<H", 0) + fields[:22] + (
            struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, len(out)) + name)
        out += b"PK\3\4" + fields + name + content
    count = len(records)
    return out + directory + b"PK\5\6" + struct.pack(
        "<HHHHIIH", 0, 0, count, count, len(directory), len(out), 0)


def records_of(path):
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return [(n.split("/", 1)[1], archive.read(n))
                for n in archive.namelist()]


def pickle_mutants(path, rng):
    """data.pkl: one opcode, argument or text is changed."""
    import pickletools

    records = records_of(path)
    text = dict(records)["data.pkl"]
    at = [pos for _, _, pos in pickletools.genops(text)]
    spans = list(zip(at, at[1:] + [len(text)]))
    names = sorted({r[0] for r in records})
    while True:
        begin, end = rng.choice(spans)
        kind = rng.randrange(6)
        if kind == 0:
            new = text[:begin] + text[end:]
        elif kind == 1:
            other = rng.choice(spans)
            new = text[:begin] + text[slice(*other)] + text[end:]
        elif kind == 2:
            other = rng.choice(spans)
            new = text[:begin] + text[slice(*other)] + text[begin:]
        elif kind == 3:
            where = rng.randrange(len(text))
            new = text[:where] + bytes([rng.randrange(256)]) + text[where + 1:]
        elif kind == 4 and end - begin > 1:
            where = rng.randrange(begin + 1, end)
            new = text[:where] + bytes([text[where] ^ (1 << rng.randrange(8))]
                                       ) + text[where + 1:]
        else:
            drop = rng.choice(names)
            keep = [(n, text if n == "data.pkl" else c)
                    for n, c in records if n != drop]
            yield repack(keep, "archive")
            continue
        yield repack([(n, new if n == "data.pkl" else c)
                      for n, c in records], "archive")


def zip_mutants(data, rng):
    """The fields of headers, directory and end records."""
    places = [m.start() for m in re.finditer(rb"PK[\1-\7][\2-\x08]", data)]
    while True:
        new = bytearray(data)
        at = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0:
            where = min(len(new) - 1, at + rng.randrange(4, 46))
            new[where] ^= 1 << rng.randrange(8)
        elif kind == 1:
            where = min(len(new) - 4, at + 4 + 2 * rng.randrange(21))
            new[where:where + 4] = rng.choice(
                [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0"])
        elif kind == 2:
            other = rng.choice(places)
            new[at:at + 30] = data[other:other + 30]
        else:
            new[at:] = data[at + rng.randrange(1, 40):]
        yield bytes(new)


# --------------------------------------------------------------------- tests
def same(got, want):
    if got.keys() == want.keys():
        return got == want
    # Names of keys that aren't strings may be spelled differently.
    return (len(got) == len(want) and
            sorted(map(repr, got.values())) == sorted(map(repr, want.values())))


def test_mutants(folder, kind, path, make):
    rng = random.Random(f"{path.name} {make.__name__}")
    by_path = (pickle_mutants, legacy_mutants, tar_mutants)
    mutants = make(path if make in by_path else path.read_bytes(), rng)
    ask_all(kind, path, folder / f"m{path.suffix}", path, make.__name__,
            mutants)


def test_dcp_mutants(folder, case, name, make):
    sound = DATA / "dcp" / case / "ckpt"
    rng = random.Random(f"{case} {name}")
    shutil.copytree(sound, folder / "m")
    ask_all("dcp", sound, folder / "m", folder / "m" / name,
            f"{case} {name}", make((sound / name).read_bytes(), rng))


def ask_all(kind, sound, opened, written, about, mutants):
    """Writes each mutant to `written` in turn, and loads `opened`."""
    mine, theirs = ours(sound), ask_peer(kind, sound)
    check(mine and not isinstance(theirs, str) and same(mine, theirs),
          f"{sound}, which is sound: ckpt loads {mine}, the peer {theirs}")
    written = opened if written == sound else written
    counts = collections.Counter()
    for number in range(MUTANTS):
        mutant = next(mutants)
        written.write_bytes(mutant)
        mine = ours(opened)
        if mine is None:
            counts["we refuse"] += 1
            continue
        theirs = ask_peer(kind, opened)
        if isinstance(theirs, str):
            counts["only the peer refuses"] += 1
            continue
        counts["both load"] += 1
        check(same(mine, theirs),
              f"mutant {number} of {sound}, {about}: "
              f"{differences(mine, theirs)}")
    COUNTS.update(counts)
    print(f"  {sound.parent.parent.name}/{sound.name} {about}: "
          f"{json.dumps(counts)}", flush=True)


def differences(mine, theirs):
    return "; ".join(
        f"{name}: ckpt loads {mine.get(name)}, the peer {theirs.get(name)}"
        for name in sorted({*mine, *theirs}, key=str)
        if mine.get(name) != theirs.get(name))[:1000]


def prepare(suite, ckpt):
    global CKPT, MUTANTS
    CKPT = ckpt
    MUTANTS *= 50 if suite.full else 1
    safetensors = [
        DATA / "safetensors/hf_sharded/ckpt/model-00001-of-00003.safetensors",
        DATA / "safetensors/all_dtypes/ckpt/reference_writer.safetensors"]
    for path in safetensors:
        suite.add(f"header {path.name}", test_mutants, "safetensors", path,
                  header_mutants)
    variants = DATA / "torch_pt/container_variants/ckpt"
    for path in (variants / "default.pt", DATA / "torch_pt/views/ckpt/views.pt",
                 DATA / "torch_pt/dtypes/ckpt/model.pt"):
        if not path.exists():
            continue
        suite.add(f"pickle {path.name}", test_mutants, "torch", path,
                  pickle_mutants)
        suite.add(f"zip {path.name}", test_mutants, "torch", path, zip_mutants)
    legacy = DATA / "torch_legacy"
    for name in ("legacy_p2.pt", "legacy_nested.pth"):
        suite.add(f"legacy {name}", test_mutants, "torch",
                  legacy / "basic/ckpt" / name, legacy_mutants)
    suite.add("tar old.pth", test_mutants, "tar", legacy / "tar/ckpt/old.pth",
              tar_mutants)
    for case in ("ddp_w4", "tp4_fsdp2_w8_empty"):
        suite.add(f"metadata {case}", test_dcp_mutants, case, ".metadata",
                  metadata_mutants)
    for case in ("ddp_w4", "torch2.4.1_w2"):
        suite.add(f"items {case}", test_dcp_mutants, case, "__1_0.distcp",
                  functools.partial(item_mutants, zip_mutants=zip_mutants))


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
