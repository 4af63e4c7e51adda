#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A flipped bit in any file that ckpt wrote is found by `ckpt verify`."""

import json
import random
import shutil
import struct

from files_test import ONE_OF_EACH
from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
MOST = 10  # files of a target
PLACES = 5  # of a file

# Cases that carry states of trainers, readers and the like unchanged.
CASES = {**ONE_OF_EACH,
         "fairseq2, same grid": "fairseq2_native/llama_tp2dp2_fsdp2",
         "olmo_core, trainers": "olmo_core_dcp/direct_flat_w4"}


def flip(path, at, bit):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ (1 << bit)]))


def places(path, rng):
    size = path.stat().st_size
    chosen = {0, size - 1} | {rng.randrange(size) for _ in range(PLACES - 2)}
    return sorted(chosen)


def flip_all(top, opened, rng):
    files = sorted(p for p in top.rglob("*") if p.is_file() and
                   p.stat().st_size and not p.is_symlink())
    # The small ones first, as the tensors' digests don't cover them.
    files.sort(key=lambda p: p.stat().st_size)
    few = files[:MOST // 2] + rng.sample(files[MOST // 2:],
                                         max(0, min(MOST // 2,
                                             len(files) - MOST // 2)))
    for path in few:
        for at in places(path, rng):
            bit = rng.randrange(8)
            flip(path, at, bit)
            done = CKPT.run("verify", opened)
            flip(path, at, bit)
            check_equal(done.code, 1, f"verify with bit {bit} of byte {at} of "
                        f"{path.relative_to(top)} flipped: {done.out}"
                        f"{done.err}")


def test_flips(folder, name, case):
    out = folder / "out"
    to = "deepspeed" if name == "deepspeed" else name.split(",")[0]
    CKPT.ok("convert", DATA / case / "ckpt", out, "--to", to)
    (folder / "out").is_dir()
    CKPT.ok("verify", out)
    flip_all(out, out, random.Random(name))
    CKPT.ok("verify", out)


def test_flips_single(folder):
    """Single files and the manifest beside them."""
    for end, to in (("safetensors", "safetensors"), ("pt", "torch")):
        top = folder / end
        top.mkdir()
        out = top / f"a.{end}"
        CKPT.ok("convert", DATA / "safetensors" / "hf_sharded" / "ckpt", out,
                "--to", to)
        flip_all(top, out, random.Random(end))
        CKPT.ok("verify", out)


def safetensors(path, data):
    text = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (
        len(data), len(data))
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_manifest_of_another_file(folder):
    """A manifest is ignored once another file has replaced its own."""
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    safetensors(a, bytes(range(256)) * 64)
    CKPT.ok("convert", a, b, "--to", "safetensors")
    safetensors(b, bytes(reversed(range(256))) * 64)
    done = CKPT.ok("verify", b)
    check("ignored" in done.err, done.err)
    CKPT.ok("convert", b, folder / "c.safetensors", "--to", "safetensors")


def layered(path, blocks):
    """A file with the same header whatever is in its tensors."""
    header, data = {}, b"".join(blocks)
    for number, block in enumerate(blocks):
        header[f"w{number}"] = {
            "dtype": "U8", "shape": [len(block)],
            "data_offsets": [number * len(block), (number + 1) * len(block)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_manifest_of_another_step(folder):
    """A later step whose first and last tensors are frozen is another file. A
    flip, a torn page or a hole in this one is damage."""
    rng = random.Random(1)
    for size in (1000, 1 << 14, 1 << 20):
        a, b = folder / f"a{size}.safetensors", folder / f"b{size}.safetensors"
        blocks = [rng.randbytes(size) for _ in range(8)]
        layered(a, blocks)
        CKPT.ok("convert", a, b, "--to", "safetensors")
        whole = b.read_bytes()
        middle = len(whole) // 2
        for name, at, new in (
                ("flip", middle, bytes([whole[middle] ^ 1])),
                ("last byte", len(whole) - 1, bytes([whole[-1] ^ 1])),
                ("sector", middle, rng.randbytes(512)),
                ("hole", size, bytes(5 * size))):
            b.write_bytes(whole[:at] + new + whole[at + len(new):])
            done = CKPT.run("verify", b)
            check_equal(done.code, 1, f"{name} in {size}: {done.out}")
        for trained in (range(1, 7), range(3, 5)):
            layered(a, [rng.randbytes(size) if i in trained else block
                        for i, block in enumerate(blocks)])
            CKPT.ok("convert", a, folder / "new.safetensors", "--to",
                    "safetensors", "--no-manifest")
            (folder / "new.safetensors").replace(b)
            done = CKPT.run("verify", b)
            if size > 1000 or len(trained) > 2:
                check_equal(done.code, 0, f"{trained} in {size}: {done.out}")
                check("ignored" in done.err, done.err)
                CKPT.ok("convert", b, folder / "c.safetensors", "--to",
                        "safetensors", "--overwrite")


def test_manifest_itself(folder):
    """Things under a manifest's name that aren't one, and files that it doesn't
    list."""
    a, b = folder / "a.safetensors", folder / "b"
    safetensors(a, b"1" * 4096)
    CKPT.ok("convert", a, b, "--to", "safetensors")
    (b / "notes.txt").write_text("later")
    done = CKPT.ok("verify", b)
    check("notes.txt" in done.out and "unlisted_file" in done.out, done.out)
    (b / "notes.txt").unlink()
    path = b / ".ckpt-manifest.json"
    path.unlink()
    path.mkdir()
    check_equal(CKPT.run("verify", b).code, 1, "a directory")
    path.rmdir()
    path.symlink_to("nowhere")
    done = CKPT.run("verify", b).want(1)  # like any dangling link
    check_equal(done.out.count("broken symlink"), 1, done.out)
    check(path.name in done.out and "unreadable" not in done.out, done.out)


def test_overwrite_without_manifest(folder):
    """--overwrite --no-manifest removes the old manifest."""
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    safetensors(a, b"1" * 4096)
    CKPT.ok("convert", a, b, "--to", "safetensors")
    manifest = folder / "b.safetensors.ckpt-manifest.json"
    check(manifest.exists(), "a manifest")
    safetensors(a, b"2" * 4096)
    CKPT.ok("convert", a, b, "--to", "safetensors", "--overwrite",
            "--no-manifest")
    check(not manifest.exists(), "the manifest of what stood there before")
    CKPT.ok("verify", b)


def test_old_manifest(folder):
    """Manifests from before contents and identity are read as ever."""
    a, b = folder / "a.safetensors", folder / "b"
    safetensors(a, b"1" * 4096)
    CKPT.ok("convert", a, b, "--to", "safetensors")
    path = b / ".ckpt-manifest.json"
    text = path.read_text()
    cut = text.index(',\n "contents"')
    path.write_text(text[:cut] + "\n}\n")
    CKPT.ok("verify", b)
    flip(b / "model.safetensors", (b / "model.safetensors").stat().st_size - 1,
         0)
    check_equal(CKPT.run("verify", b).code, 1, "verify of a flipped payload")


def test_plain_files_are_read(folder):
    """Without checksums the payload is still read, except with --quick."""
    a = folder / "a.safetensors"
    safetensors(a, b"1" * 65536)
    done = CKPT.ok("verify", a, "--json")
    check_equal(done.json()["checked"]["bytes"], 65536, "bytes read")
    check("no checksums" in done.err, done.err)
    done = CKPT.ok("verify", a, "--quick", "--json")
    check_equal(done.json()["checked"]["bytes"], 0, "bytes read with --quick")
    check_equal(CKPT.run("verify", a, "--quick", "--deep").code, 2, "both")


def test_no_checksums_is_said(folder):
    """zarr has none, whatever torch objects are beside the arrays."""
    done = CKPT.ok("verify", DATA / "megatron_zarr" / "gpt_zarr_tp2_pp2_v0090"
                   / "ckpt")
    check("no checksums" in done.err, done.err)


def test_carried_records(folder):
    """The CRCs of a carried pickle are checked, by verify and by whatever
    carries it."""
    source = folder / "source"
    shutil.copytree(DATA / CASES["fairseq2"] / "ckpt", source)
    state = next(source.rglob("trainer/rank_00.pt"))
    data = bytearray(state.read_bytes())
    at = data.index(b"PK\x03\x04", 4) - 80  # the end of a record's data
    tried = 0
    for back in range(0, 64):
        data[at - back] ^= 1
        state.write_bytes(data)
        done = CKPT.run("verify", source)
        data[at - back] ^= 1
        if done.code == 1:
            tried += 1
            data[at - back] ^= 1
            state.write_bytes(data)
            done = CKPT.run("convert", source, folder / "out", "--to",
                            "fairseq2")
            check_equal(done.code, 4, done.err)
            break
    check(tried, "no flip was found")


def reshape(path, name):
    """Reverses a shape in the header; the bytes stay."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    shape = header[name]["shape"]
    check(shape != shape[::-1], f"{name} is {shape}")
    header[name]["shape"] = shape[::-1]
    text = json.dumps(header, separators=(",", ":")).encode()
    check(len(text) <= size, "the header grew")
    path.write_bytes(data[:8] + text.ljust(size) + data[8 + size:])


SELECTED = ((), ("--layers", "0-1"), ("--layers", "1,0"), ("--layers", "0"),
            ("--experts", "0-1"), ("--experts", "1-2"),
            ("--layers", "1,0", "--experts", "0-1"))


def test_header_shapes(folder):
    """The bytes match the manifest but the shape doesn't, for a tensor that is
    copied, counted anew or cut."""
    whole = folder / "whole"
    CKPT.ok("convert", DATA / "hf/mixtral_f32/ckpt", whole, "--to", "safetensors")
    header = read_safetensors(whole / "model.safetensors")
    head = "model.layers.0."
    gates = [n for n in header if n.startswith(head) and n.endswith(
        "gate.weight")]
    experts = [n for n in header if n.startswith(head) and ".experts." in n]
    check(gates and experts, f"{sorted(header)}")
    commands = [("reshard",), ("convert", "--to", "safetensors"),
                ("convert", "--to", "torch"), ("unshard",)]
    out = folder / "out"
    for options in SELECTED:
        for command, *to in commands:
            CKPT.ok(command, whole, out, *to, *options, "-q", "--no-fsync")
            shutil.rmtree(out)
    CKPT.ok("verify", whole, *SELECTED[2])
    kept = [n for n in experts if ".1." in n.split(".experts")[1]]
    for name in (gates[0], kept[0], "model.embed_tokens.weight"):
        bad = folder / "bad"
        shutil.copytree(whole, bad)
        reshape(bad / "model.safetensors", name)
        for options in SELECTED:
            for command, *to in commands:
                done = CKPT.run(command, bad, out, *to, *options, "-q",
                                "--no-fsync").want(4)
                check(name in done.err, done.err)
                check(not out.exists(), f"{done}\nwrote it")
        shutil.rmtree(bad)


def test_disk_numbers(folder):
    """Zip fields that torch refuses are damage."""
    source = next((DATA / "torch_pt" / "container_variants" / "ckpt").glob(
        "*.pt"))
    whole = bytearray(source.read_bytes())
    end = whole.rindex(b"PK\x05\x06")
    entry = whole.index(b"PK\x01\x02")
    path = folder / "a.pt"
    for at in (end + 4, end + 6, entry + 34):
        data = bytearray(whole)
        data[at] = 3
        path.write_bytes(data)
        check_equal(CKPT.run("verify", path).code, 1, f"byte {at} is 3")


def main():
    suite = Suite(__doc__)
    for name, case in CASES.items():
        suite.add(f"flips: {name}", test_flips, name, case)
    for test in (test_flips_single, test_manifest_of_another_file,
                 test_manifest_of_another_step, test_manifest_itself,
                 test_overwrite_without_manifest, test_old_manifest,
                 test_plain_files_are_read, test_no_checksums_is_said,
                 test_carried_records, test_header_shapes,
                 test_disk_numbers):
        suite.add(test.__name__.removeprefix("test_"), test)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
