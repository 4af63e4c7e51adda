#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much memory metadata takes: the values of a pickle, a JSON text or a YAML
file take at most 16 bytes per byte of it, and no more than --max-mem; or the
command ends with 7 and says how much it would take.

The largest resident set is the kernel's figure for the process. A child's
starts from its parent's, so this one stays small: files are made in blocks."""

import json
import re
import shutil
import subprocess
import sys
import zipfile

from support import DATA, HERE, Suite, check

CKPT = None  # set by prepare
MIB = 1 << 20
PER_BYTE = 16


def repeated(piece, size):
    """`size` bytes of `piece` repeated, in blocks."""
    block = piece * max(1, MIB // len(piece))
    for _ in range(size // len(block)):
        yield block



# name -> (before, what is repeated, after): pickles of one list or nest.
PICKLES = {
    "empty lists": (b"\x80\x04(", b"]", b"l."),
    "memoized lists": (b"\x80\x04(", b"]\x94", b"l."),
    "memoized dicts": (b"\x80\x04(", b"}\x94", b"l."),
    "sets": (b"\x80\x04(", b"\x8f", b"l."),
    "small numbers": (b"\x80\x04(", b"K\x07", b"l."),
    "pairs": (b"\x80\x04(", b"K\x01K\x02\x86\x94", b"l."),
    "nested tuples": (b"\x80\x04N", b"\x85", b"."),
    "nested ids": (b"\x80\x04N", b"Q", b"."),
    "marks": (b"\x80\x04", b"(", b"N."),
    "copies": (b"\x80\x04N", b"2", b"."),
    "dicts of one": (b"\x80\x04(", b"}\x94\x8c\x01aK\x01s", b"l."),
    "calls with items": (b"\x80\x04cm\nc\n\x94(", b"h\x00)\x81Na", b"l."),
    "memo far out": (b"\x80\x04N", b"r\x00\x00\x00\x0f", b"."),
}


def write_zip(path, blocks):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        with archive.open("archive/data.pkl", "w") as record:
            for block in blocks:
                record.write(block)
    return path


def numbers(size):
    """A pickle of a list of different integers, which share nothing."""
    yield b"\x80\x04("
    for first in range(0, size // 5, 1 << 16):
        yield b"".join(b"J" + i.to_bytes(4, "little")
                       for i in range(first, first + (1 << 16)))
    yield b"l."


def texts(size):
    yield b"\x80\x04("
    for first in range(0, size // 10, 1 << 16):
        yield b"".join(b"\x8c\x08%08x" % i
                       for i in range(first, first + (1 << 16)))
    yield b"l."


def base():
    """What any run takes."""
    return CKPT.run("inspect", DATA / "torch_pt/dtypes/ckpt/model.pt").rss


def bounded(result, size, what):
    """The command finishes within the bound, or is refused with a figure."""
    check(result.code in (0, 4, 7), f"{what}: {result}")
    if result.code == 7:
        found = re.search(r"would take (about )?[\d.]+ [KMG]iB", result.err)
        check(found, f"{what}: no figure: {result.err}")
    # The bytes themselves are in memory along with the values.
    most = base() + (PER_BYTE + 2) * size + 16 * MIB
    check(result.rss <= most,
          f"{what}: {result.rss / MIB:.0f} MiB for {size / MIB:.0f}, "
          f"{most / MIB:.0f} is the bound; {result}")
    print(f"  {what}: {size / MIB:.0f} MiB, exit {result.code}, "
          f"{result.rss / MIB:.0f} MiB, {result.seconds:.1f} s", flush=True)


def test_pickle(folder, name, mib):
    before, piece, after = PICKLES[name]
    path = write_zip(folder / "x.pt", [
        before, *repeated(piece, mib * MIB), after])
    size = path.stat().st_size
    bounded(CKPT.run("inspect", path), size, name)
    scan = CKPT.run("scan", path)
    check(scan.code in (0, 4, 8), f"{scan}")
    check(scan.rss <= base() + (PER_BYTE + 2) * size, f"scan: {scan.rss}")


def test_values(folder, make):
    path = write_zip(folder / "x.pt", make(30 * MIB))
    size = path.stat().st_size
    done = CKPT.run("inspect", path)
    bounded(done, size, make.__name__)
    done.want(0)
    # Too little for them: the message says how much it takes, correctly.
    little = CKPT.run("inspect", path, "--max-mem", "32MiB")
    little.want(7)
    check("the limit is 32.0 MiB" in little.err, little.err)
    check(little.rss <= base() + size + 64 * MIB,
          f"{little.rss / MIB:.0f} MiB with a limit of 32")
    enough = re.search(r"--max-mem (\d+MiB)", little.err)
    check(enough, little.err)
    CKPT.run("inspect", path, "--max-mem", enough[1]).want(0)


def test_objects(folder):
    """A checkpoint of millions of values: each is listed, and takes more memory
    than its place in the pickle."""
    def entries():
        yield b"\x80\x04}("
        for first in range(0, 1 << 20, 1 << 16):
            yield b"".join(b"J" + i.to_bytes(4, "little") + b"K\x01"
                           for i in range(first, first + (1 << 16)))
        yield b"u."
    path = write_zip(folder / "x.pt", entries())
    CKPT.run("inspect", path, "--max-mem", "1GiB").want(0)
    refused = CKPT.run("inspect", path, "--max-mem", "64MiB").want(7)
    check("64.0 MiB" in refused.err and "--max-mem" in refused.err,
          refused.err)
    check(refused.rss <= base() + 160 * MIB, f"{refused.rss / MIB:.0f} MiB")


# What is repeated in a JSON array, and whether it fits in a config.json. What
# is only carried, such as an index's metadata, is a tree of our own, and fits.
JSONS = {"digits": ("1,", False), "numbers": ("12345,", True),
         "empty arrays": ("[],", False),
         "empty objects": ("{},", False), "small objects": ('{"":0},', False),
         "texts": ('"0123456789abcdefghij",', True),
         "long texts": ('"' + "x" * 4000 + '",', True)}


def test_json(folder, kind):
    """A config.json and the metadata of an index of 30 MB."""
    item, fits = JSONS[kind]
    for name in ("config.json", "model.safetensors.index.json"):
        case = "hf/llama" if name == "config.json" else "safetensors/hf_sharded"
        copy = folder / name.split(".")[0]
        shutil.copytree(DATA / case / "ckpt", copy)
        path = copy / name
        old = json.loads(path.read_text())
        if name == "config.json":
            head = json.dumps(old)[:-1] + ', "more": ['
            tail = "0]}"
        else:
            head = '{"metadata": {"more": ['
            tail = '0]}, "weight_map": ' + json.dumps(old["weight_map"]) + "}"
        with open(path, "w", encoding="ascii") as file:
            file.write(head)
            for block in repeated(item, 30 * MIB):
                file.write(block)
            file.write(tail)
        size = path.stat().st_size
        done = CKPT.run("inspect", copy)
        carried = name != "config.json"
        bounded(done, size, f"{kind} in {name}")
        check(done.code == (0 if fits or carried else 7), f"{name}: {done}")
        # In our own tree five digits take less than --max-mem here.
        if carried != (kind == "numbers") and "texts" not in kind:
            CKPT.run("inspect", copy, "--max-mem", "32MiB").want(7)


def test_yaml(folder):
    """A long key is in the paths of everything below it."""
    copy = folder / "copy"
    shutil.copytree(DATA / "fairseq2_native/olmo2_tp2dp1/ckpt", copy)
    (path,) = copy.rglob("model.yaml")
    with open(path, "a", encoding="ascii") as file:
        file.write("x" * MIB + ":\n")
        for i in range(20_000):
            file.write(f"  k{i}: 1\n")
    done = CKPT.run("inspect", copy)
    bounded(done, path.stat().st_size, "YAML")
    check(done.code in (4, 7), f"{done}")


def test_unpacked(folder):
    """scan: a compressed pickle of 100 MB is examined within --max-mem."""
    path = folder / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        with z.open("archive/data.pkl", "w") as record:
            record.write(b"\x80\x04(")
            for block in repeated(b"\x8c\x08abcdefgh", 100 * MIB):
                record.write(block)
            record.write(b"lcos\nsystem\n\x8c\x04true\x85R.")
    CKPT.run("scan", path).want(8)
    little = CKPT.run("scan", path, "--max-mem", "128MiB").want(4)
    check("unreadable" in little.out, f"{little}")
    check(little.rss <= base() + 200 * MIB, f"{little.rss / MIB:.0f} MiB")


def write_many(path, count):
    """A safetensors file of `count` tensors of four bytes."""
    header = ",".join(
        f'"layers.{i}.weight":{{"dtype":"F32","shape":[1],'
        f'"data_offsets":[{4 * i},{4 * i + 4}]}}' for i in range(count))
    text = ("{" + header + "}").encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(bytes(4 * count))
    return path


def many_tensors(folder):
    source = write_many(folder / "many.safetensors", 150_000)
    return "40MiB", ["convert", source, folder / "out.safetensors"]


def many_ranks(folder):
    source = folder / "ranks"
    subprocess.run(
        [sys.executable, HERE.parent.parent / "scripts/make_rank_files.py",
         "--kind", "fairseq2", "--model", "8b", "--tp", "8", "--pp", "1",
         "--dp", "64", source], check=True, stdout=subprocess.DEVNULL)
    return "16MiB", ["reshard", source, folder / "out", "--tp", "4", "--dp",
                     "64", "--dry-run"]


def enough_for(result):
    found = re.search(r"--max-mem (\d+MiB)", result.err)
    check(found, f"no figure: {result}")
    return found[1]


def test_plan(folder, make):
    """Headers and plan count towards --max-mem: they fit, or nothing is begun
    and the figure in the message is enough. Finding that out takes no more than
    the bound, plus what any process takes."""
    little, argv = make(folder)
    target = argv[2]
    asked = [["--dry-run"], []] if "--dry-run" not in argv else [[]]
    for more in asked:
        refused = CKPT.run(*argv, *more, "-q", "--max-mem", little).want(7)
        check(not target.exists(), f"{target} was begun")
        bound = enough_for(refused)
        print(f"  refused {little} with {refused.rss / MIB:.0f} MiB in "
              f"{refused.seconds:.1f} s", flush=True)
        most = base() + int(little[:-3]) * MIB + 64 * MIB
        check(refused.rss <= most, f"refused: {refused}")
        most = base() + int(bound[:-3]) * MIB + 64 * MIB
        done = CKPT.run(*argv, *more, "-q", "--max-mem", bound).want(0)
        print(f"  {bound} asked, {done.rss / MIB:.0f} MiB taken", flush=True)
        check(done.rss <= most, f"{done.rss / MIB:.0f} MiB: {done}")
    if target.exists():
        checked, bound = None, little
        while checked is None or checked.code == 7:
            check(checked is None or enough_for(checked) != bound, f"{checked}")
            bound = enough_for(checked) if checked else bound
            checked = CKPT.run("verify", target, "--max-mem", bound)
        checked.want(0)
        check(bound != little, "verify was content with too little")


def main():
    suite = Suite(__doc__)
    for i, name in enumerate(PICKLES):
        suite.add(f"pickle: {name}", test_pickle, name, 30 if i % 2 else 18)
    for make in (numbers, texts):
        suite.add(f"values: {make.__name__}", test_values, make)
    suite.add("objects", test_objects)
    for make in (many_tensors, many_ranks):
        suite.add(f"plan: {make.__name__}", test_plan, make)
    for kind in JSONS:
        suite.add(f"json: {kind}", test_json, kind)
    suite.add("yaml", test_yaml)
    suite.add("unpacked", test_unpacked)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
