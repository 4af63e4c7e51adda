#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A flipped bit in any file that ckpt wrote is found by `ckpt verify`."""

import json
import random
import shutil
import struct
import zlib

from files_test import ONE_OF_EACH
from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
FULL = False  # every golden, every record: --full
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
    check_equal(done.json()["values_proven"], False, "values proven")
    done = CKPT.ok("verify", a, "--quick", "--json")
    check_equal(done.json()["checked"]["bytes"], 0, "bytes read with --quick")
    check_equal(CKPT.run("verify", a, "--quick", "--deep").code, 2, "both")


def test_no_checksums_is_said(folder):
    """zarr has none, whatever torch objects are beside the arrays."""
    done = CKPT.ok("verify", DATA / "megatron_zarr" / "gpt_zarr_tp2_pp2_v0090"
                   / "ckpt")
    check("values not proven: no checksums" in done.out, done.out)


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


def test_carried_items(folder):
    """An object's item of a .distcp file that is carried unopened, and whose
    archive has lost its end, is damaged for what carries it."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    source = folder / "source"
    shutil.copytree(DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt", source)
    step = next(source.rglob(".metadata")).parent
    metadata = FileSystemReader(str(step)).read_metadata()
    tried = 0
    for index, place in metadata.storage_data.items():
        kind = metadata.state_dict_metadata[index.fqn]
        if not isinstance(kind, BytesStorageMetadata):
            continue
        path = step / place.relative_path
        data = bytearray(path.read_bytes())
        if data[place.offset:place.offset + 4] != b"PK\3\4":
            continue
        data[place.offset + place.length - 22] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        done = CKPT.run("reshard", source, folder / "out", "--tp", 2)
        check_equal(done.code, 4, f"{index.fqn}: {done.err}")
        data[place.offset + place.length - 22] ^= 1
        path.write_bytes(data)
        tried += 1
        if tried == 3:
            break
    check(tried, "no item of an object")


# ------------------------------------------------ records that have a checksum
# Of these, some records in the first run; of every golden, all with --full.
RECORD_CASES = (
    "torch_pt/container_variants", "torch_pt/dtypes",
    "fairseq2_native/llama_tp2dp2_fsdp2", "megatron_legacy/llama_te_tp2_pp2",
    "megatron_torch_dist/gpt_flat_optim_model_space_v0140",
    "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "megatron_zarr/gpt_zarr_tp2_pp2_v0090", "dcp/fsdp2_w2_adamw",
    "deepspeed/zero2_dp4", "meta/llama", "olmo_core_dcp/direct_flat_w4",
    "runs/hf_trainer_qwen2", "runs/accelerate_fsdp2_w2",
    "runs/verl_fsdp2_w2", "runs/torchtitan_w2", "runs/lightning_ckpt",
)
MOST_RECORDS = 5  # of a golden, in the first run
# What torch says about the archive. Nobody reads them inside of a .distcp file.
ABOUT = ("version", ".format_version", ".storage_alignment", "serialization_id")


def archive_records(data, base):
    """(name, begin, end) of the records of the zip that ends `data`."""
    end = data.rfind(b"PK\5\6")
    count, size, at = struct.unpack_from("<HII", data, end + 10)
    if at == 0xffffffff or count == 0xffff:
        end64 = data.rfind(b"PK\6\6", 0, end)
        count, size, at = struct.unpack_from("<QQQ", data, end64 + 32)
    for _ in range(count):
        crc, packed, _ = struct.unpack_from("<III", data, at + 16)
        name, extra, note = struct.unpack_from("<HHH", data, at + 28)
        (head,) = struct.unpack_from("<I", data, at + 42)
        if packed == 0xffffffff or head == 0xffffffff:
            return  # no golden is that large
        begin = head + 30 + sum(struct.unpack_from("<HH", data, head + 26))
        # The last bits of a deflated record may mean nothing.
        end = begin + packed - (data[at + 10] != 0)
        if crc and packed:
            yield (data[at + 46:at + 46 + name].decode(), base + begin,
                   base + end)
        at += 46 + name + extra + note


def records(path):
    """The same of all archives in a file, one after another in a .distcp."""
    data = path.read_bytes()
    if data[:4] != b"PK\3\4":
        return
    begin, at = 0, 0
    while (at := data.find(b"PK\5\6", at)) >= 0:
        (note,) = struct.unpack_from("<H", data, at + 20)
        size, offset = struct.unpack_from("<II", data, at + 12)
        after = data[at + 22 + note:at + 26 + note]
        if after in (b"", b"PK\3\4") and begin + offset + size <= at:
            yield from archive_records(data[begin:at + 22 + note], begin)
            begin = at + 22 + note
        at += 4


def contents(top):
    """path -> bytes of what a target holds, but for its manifest."""
    if top.is_file():
        return {"": top.read_bytes()}
    return {str(p.relative_to(top)): p.read_bytes()
            for p in sorted(top.rglob("*"))
            if p.is_file() and not p.name.endswith("manifest.json")}


def opened_below(top):
    """What ckpt opens of a golden: itself, or its files one by one."""
    if CKPT.run("inspect", top, "-q").code == 0:
        return [top]
    return [p for p in sorted(top.iterdir()) if p.is_file() and
            CKPT.run("inspect", p, "-q").code == 0]


def write(source, target):
    """Into the same format, as whoever reshards it in place would."""
    if source.is_file():
        target = target.with_suffix(source.suffix)
    done = CKPT.run("reshard", source, target, "-q", "--no-fsync")
    return done, target


def test_records(folder, case):
    """One flipped bit in a record that has a checksum: verify finds it, nothing
    makes a new checksum over it, and salvage never calls it whole."""
    original = DATA / case / "ckpt"
    rng = random.Random(case)
    for opened in opened_below(original):
        source = folder / "source" / opened.name
        source.parent.mkdir(exist_ok=True)
        (shutil.copytree if opened.is_dir() else shutil.copy)(opened, source)
        sound, target = write(source, folder / "sound")
        check(sound.code in (0, 5), f"{sound}")
        expected = contents(target) if sound.code == 0 else {}
        if CKPT.run("verify", source).code:
            continue
        files = [source] if source.is_file() else sorted(
            p for p in source.rglob("*") if p.is_file())
        found = [(path, *record) for path in files for record in records(path)
                 if path.suffix != ".distcp" or not record[0].endswith(ABOUT)]
        if not FULL and len(found) > MOST_RECORDS:
            # Values first: of tensors there are more, and an engine checks them
            kinds = {}
            for record in found:
                key = (record[0].name.split("_")[0], record[1].split("/")[-1])
                kinds.setdefault(key, record)
            found = rng.sample(sorted(kinds.values(), key=str),
                               min(MOST_RECORDS, len(kinds)))
        for path, name, begin, end in found:
            at, bit = rng.randrange(begin, end), rng.randrange(8)
            flip(path, at, bit)
            try:
                one_record(folder, source, path, name, expected)
            finally:
                flip(path, at, bit)
        for left in (folder / "source", target):
            if left.is_dir():
                shutil.rmtree(left)
            elif left.exists():
                left.unlink()


def one_record(folder, source, path, name, expected):
    what = f"{path.relative_to(folder)}: {name}"
    done = CKPT.run("verify", source)
    check_equal(done.code, 1, f"{what}: {done}")
    done, target = write(source, folder / "out")
    if done.code == 0:  # it takes nothing of that record, or of the file
        now, left_out = contents(target), dict(expected)
        if now != expected:
            left_out.pop(path.name, None)
        check(now == left_out, f"{what}: {done} wrote it")
    else:
        check(done.code in (4, 5), f"{what}: {done}")
        check(not target.exists(), f"{what}: {done} left something")
    remove(target)
    if name.endswith((*ABOUT, "byteorder")):
        return  # salvage makes them anew, by their checksums
    saved = folder / ("saved" + (source.suffix if source.is_file() else ""))
    done = CKPT.run("salvage", source, saved, "--json", "--no-fsync")
    if done.code == 0:
        # Found again in a copy, or of no importance: as it was.
        again, twice = write(saved, folder / "twice")
        check_equal(again.code, 0, f"{what}: {again}")
        check(contents(twice) == expected, f"{what}: {done} calls it whole")
        remove(twice)
    else:
        check(done.code in (4, 5), f"{what}: {done}")
        check(not saved.exists(), f"{what}: {done} left something")
    remove(saved)


def manifest_of(path):
    if path.is_dir():
        return json.loads((path / ".ckpt-manifest.json").read_text())
    return json.loads(path.with_name(
        path.name + ".ckpt-manifest.json").read_text())


def flip_tensor(path):
    """In the longest record of a file that is a tensor's."""
    _, begin, end = max((r for r in records(path) if "/data/" in r[0]),
                        key=lambda record: record[2] - record[1])
    flip(path, (begin + end) // 2, 3)


def test_unproven(folder):
    """What was let through has no digest, and is never called sound again."""
    source = folder / "a.pt"
    shutil.copy(DATA / "torch_pt" / "dtypes" / "ckpt" / "model.pt", source)
    flip_tensor(source)
    made = folder / "b.pt"
    CKPT.run("convert", source, made).want(4)
    done = CKPT.ok("convert", source, made, "--ignore-checksums")
    tensors = manifest_of(made)["tensors"]
    marked = [name for name, entry in tensors.items() if "unproven" in entry]
    check(marked and len(marked) < len(tensors), f"{tensors}")
    check(all("digest" not in tensors[name] for name in marked), f"{tensors}")
    check(marked[0] in done.err.splitlines()[-1], done.err)
    for more in ((), ("--quick",)):
        done = CKPT.run("verify", made, *more).want(1)
        check("unproven" in done.out and marked[0] in done.out, done.out)
    again = folder / "c.pt"
    CKPT.ok("convert", made, again)
    check_equal([name for name, entry in manifest_of(again)["tensors"].items()
                 if "unproven" in entry], marked, "of a copy of the copy")
    CKPT.run("verify", again).want(1)


def test_unproven_copies(folder):
    """The same of copies that differ, and of a file that is carried."""
    source = folder / "source"
    shutil.copytree(DATA / "fairseq2_native" / "llama_tp2dp2_fsdp2" / "ckpt",
                    source)
    state = next(source.rglob("trainer/rank_00.pt"))
    flip_tensor(state)
    made = folder / "made"
    CKPT.run("reshard", source, made).want(4)
    done = CKPT.ok("reshard", source, made, "--ignore-checksums")
    marked = [name for name, entry in manifest_of(made)["contents"].items()
              if "unproven" in entry]
    check_equal([name.split("/")[-1] for name in marked], ["rank_00.pt"], made)
    check(marked[0] in done.err.splitlines()[-1], done.err)
    CKPT.run("verify", made).want(1)


def reseal(path, name, begin, at):
    """Changes a byte of a record, and its checksum in the directory."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    entry = data.find(b"PK\1\2")
    while data[entry + 46:entry + 46 + len(name)] != name.encode():
        entry = data.index(b"PK\1\2", entry + 4)
    (size,) = struct.unpack_from("<I", data, entry + 24)
    struct.pack_into("<I", data, entry + 16,
                     zlib.crc32(data[begin:begin + size]))
    path.write_bytes(data)


def test_values_are_compared(folder):
    """Values inside objects are equal to the last byte, or they differ."""
    original = (DATA / "megatron_torch_dist" /
                "gpt_flat_optim_model_space_v0140" / "ckpt")
    changed = folder / "changed"
    shutil.copytree(original, changed)
    name, begin, end = next(r for r in records(changed / "common.pt")
                            if "/data/" in r[0])
    reseal(changed / "common.pt", name, begin, end - 1)
    CKPT.ok("verify", changed)
    CKPT.ok("diff", original, original)
    CKPT.ok("verify", original, original)
    done = CKPT.run("diff", original, changed).want(1)
    check("bytes differ" in done.out, f"{name}: {done.out}")
    CKPT.run("verify", original, changed).want(1)


def test_files_are_compared(folder):
    """So are files beside the tensors: random states, trainers' states."""
    original = DATA / "runs" / "hf_trainer_qwen2" / "ckpt"
    for pattern in ("rng_state*.pth", "scheduler.pt", "trainer_state.json"):
        changed = folder / "changed"
        shutil.copytree(original, changed)
        path = next(changed.rglob(pattern))
        if path.read_bytes()[:2] == b"PK":
            name, begin, end = max(records(path), key=lambda r: r[2] - r[1])
            reseal(path, name, begin, (begin + end) // 2)
        else:
            path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
        for command in ("diff", "verify"):
            CKPT.ok(command, original, original)
            done = CKPT.run(command, original, changed)
            check(done.code in (1, 4), f"{pattern}: {done}")
        shutil.rmtree(changed)


def remove(path):
    for one in (path, path.with_name(path.name + ".ckpt-manifest.json")):
        if one.is_dir():
            shutil.rmtree(one)
        elif one.exists():
            one.unlink()


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
                                "--no-fsync")
                # convert compares shapes with config.json before it reads.
                done.want(5 if done.code == 5 and command == "convert" else 4)
                # By the number that the expert would have in what is written.
                anew = name.replace(".experts.1.", ".experts.0.")
                check(name in done.err or done.code == 5 and anew in done.err,
                      done.err)
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


def every_golden():
    return [f"{case.parent.parent.name}/{case.parent.name}"
            for case in sorted(DATA.glob("*/*/case.json"))
            if case.parts[-3] != "bad" and (case.parent / "ckpt").is_dir()]


def main():
    suite = Suite(__doc__)
    for name, case in CASES.items():
        suite.add(f"flips: {name}", test_flips, name, case)
    for test in (test_flips_single, test_manifest_of_another_file,
                 test_manifest_of_another_step, test_manifest_itself,
                 test_overwrite_without_manifest, test_old_manifest,
                 test_plain_files_are_read, test_no_checksums_is_said,
                 test_carried_records, test_carried_items, test_header_shapes,
                 test_disk_numbers, test_unproven, test_unproven_copies,
                 test_values_are_compared, test_files_are_compared):
        suite.add(test.__name__.removeprefix("test_"), test)

    def prepare(suite, ckpt):
        global CKPT, FULL
        CKPT, FULL = ckpt, suite.full
        for case in every_golden() if FULL else RECORD_CASES:
            suite.add(f"records: {case}", test_records, case)
    suite.main(prepare)


if __name__ == "__main__":
    main()
