#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How bytes travel: what --trace reports about a run, and what a file system
that shares blocks (XFS) holds afterwards. Never how long it takes.
"""

import json
import os
import shutil
import struct
import subprocess

from support import DATA, Skip, Suite, check, check_equal

CKPT = None  # set by prepare
SIZE = 6 << 20


def safetensors(path, pad, size=SIZE):
    """One tensor whose data begin at byte 8 + pad; returns the data."""
    text = json.dumps({"w": {"dtype": "U8", "shape": [size],
                             "data_offsets": [0, size]}}).encode()
    data = bytes(os.urandom(1 << 16)) * (size >> 16)
    path.write_bytes(struct.pack("<Q", pad) + text.ljust(pad) + data)
    return data


def test_trace(folder):
    """Complete events with a few known names; reads add up to the payload."""
    source, trace = folder / "a.safetensors", folder / "trace.json"
    safetensors(source, 504)
    CKPT.ok("convert", source, folder / "b.pt", "--to", "torch", "--trace",
            trace)
    document = json.loads(trace.read_text())
    events = document["traceEvents"]
    check_equal(document["otherData"], {"maker": "ckpt", "dropped": "0"},
                "otherData")
    for event in events:
        check_equal(event["ph"], "X", "a complete event")
        check(event["ts"] >= 0 and event["dur"] >= 0, f"times: {event}")
        check(event["pid"] == 1 and event["tid"] >= 1, f"thread: {event}")
    moved = {kind: sum(e["args"]["bytes"] for e in events
                       if e["name"] == kind) for kind in ("read", "write")}
    check_equal(moved, {"read": SIZE, "write": SIZE}, "bytes by the events")


def test_trace_unwritable(folder):
    """A trace that can't be created stops the run before it begins."""
    source = folder / "a.safetensors"
    safetensors(source, 504)
    done = CKPT.run("convert", source, folder / "b.pt", "--to", "torch",
                    "--trace", folder / "no" / "trace.json")
    check(done.code in (3, 6), "a trace in no directory")
    check(not (folder / "b.pt").exists(), "the target was made")


def mount_xfs(folder):
    image, mount = folder / "xfs.img", folder / "xfs"
    mount.mkdir()
    with open(image, "wb") as f:
        f.truncate(320 << 20)
    if os.geteuid() != 0 or not shutil.which("mkfs.xfs"):
        raise Skip("needs root and mkfs.xfs")
    for argv in (["mkfs.xfs", "-q", "-m", "reflink=1", image],
                 ["mount", "-o", "loop", image, mount]):
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            raise Skip(f"{argv[0]} does not work here")
    return mount


def used(mount):
    os.sync()
    facts = os.statvfs(mount)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def test_reflink(folder):
    """Blocks are shared where offsets agree; bytes are right at any offset, and
    writing to the target later doesn't change the source."""
    mount = mount_xfs(folder)
    try:
        for pad in (112, 504, 4088, 8184, 117):
            source, target = mount / f"s{pad}.safetensors", mount / f"t{pad}"
            data = safetensors(source, pad)
            before = used(mount)
            CKPT.ok("convert", source, target, "--to", "safetensors")
            grown = used(mount) - before
            file = next(target.glob("*.safetensors"))
            text = file.read_bytes()
            begin = 8 + struct.unpack("<Q", text[:8])[0]
            check(text[begin:] == data, f"pad {pad}: bytes differ")
            alike = (8 + pad) % 4096 == begin % 4096
            check(alike == (pad != 117), f"pad {pad}: data at {begin}")
            check(grown < SIZE // 4 if alike else grown >= SIZE,
                  f"pad {pad}, data at {begin}: {grown} bytes more in use")
            with open(file, "r+b") as f:
                f.seek(begin + 8192)
                f.write(b"changed")
            check(source.read_bytes()[8 + pad:] == data,
                  f"pad {pad}: the source changed")
    finally:
        subprocess.run(["umount", mount], check=False)


def test_unread(folder):
    """Shared bytes aren't read unless digests are asked for."""
    mount = mount_xfs(folder)
    try:
        source, trace = mount / "s.safetensors", folder / "trace.json"
        data = safetensors(source, 504)
        CKPT.ok("convert", source, mount / "t", "--to", "safetensors",
                "--no-manifest", "--trace", trace)
        read = sum(e["args"]["bytes"]
                   for e in json.loads(trace.read_text())["traceEvents"]
                   if e["name"] == "read")
        check(read <= 2 * 4096, f"{read} bytes were read")
        file = next((mount / "t").glob("*.safetensors"))
        check(file.read_bytes().endswith(data), "bytes differ")
        CKPT.ok("convert", source, mount / "u", "--to", "safetensors",
                "--no-manifest", "--verify")
    finally:
        subprocess.run(["umount", mount], check=False)


def test_shards_of_ours(folder):
    """Whatever it was made from, each file's data begin on a block, so that
    files with the tensors of several of them share all of those."""
    mount = mount_xfs(folder)
    try:
        tensors = {f"w{i}": ("U8", [SIZE // 4 - 4096 * i]) for i in range(4)}
        entries, at = {}, 0
        for name, (dtype, shape) in tensors.items():
            entries[name] = {"dtype": dtype, "shape": shape,
                             "data_offsets": [at, at + shape[0]]}
            at += shape[0]
        text = json.dumps(entries).encode()
        text += b" " * ((3 - len(text)) % 8)  # not a multiple of 8
        data = os.urandom(at)
        (folder / "a.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + data)
        limit = ("--max-shard-size", str(SIZE // 4))
        CKPT.ok("convert", folder / "a.safetensors", mount / "b", "--to",
                "safetensors", *limit)
        shards = sorted((mount / "b").glob("*.safetensors"))
        check_equal(len(shards), 4, "files")
        for shard in shards:
            begin = 8 + struct.unpack("<Q", shard.read_bytes()[:8])[0]
            check_equal(begin % 4096, 0, f"{shard.name}: data at {begin}")
        before = used(mount)
        CKPT.ok("convert", mount / "b", mount / "c", "--to", "safetensors")
        check(used(mount) - before < SIZE // 4, "blocks were copied")
        file = next((mount / "c").glob("*.safetensors"))
        check(file.read_bytes().endswith(data), "bytes differ")
    finally:
        subprocess.run(["umount", mount], check=False)


def test_no_size(folder):
    """A file system that does not say how much is free has not none: ramfs, and
    some that are served through FUSE."""
    mount = folder / "ramfs"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(
            ["mount", "-t", "ramfs", "ramfs", mount], capture_output=True,
            check=False).returncode:
        raise Skip("mounting ramfs needs root")
    try:
        source = folder / "a.safetensors"
        safetensors(source, 504)
        target = mount / "b.safetensors"
        plan = CKPT.ok("convert", source, target, "-n", "--json").json()
        check("free_space" not in plan, "free space that is not known")
        CKPT.ok("convert", source, target)
        CKPT.ok("verify", source, target)
        said = CKPT.ok("doctor", mount).out
        check(any(line.split()[:3] == ["free", "space", "unknown"]
                  for line in said.splitlines()), said)
    finally:
        subprocess.run(["umount", mount], check=False)


def test_no_digests(folder):
    """--no-manifest: the same bytes; what needs digests still gets them."""
    source = folder / "a.safetensors"
    safetensors(source, 504)
    CKPT.ok("convert", source, folder / "a", "--to", "torch")
    CKPT.ok("convert", source, folder / "b", "--to", "torch", "--no-manifest")
    name = next(p.name for p in (folder / "a").iterdir()
                if not p.name.startswith("."))
    check((folder / "a" / name).read_bytes() ==
          (folder / "b" / name).read_bytes(), "bytes differ")
    CKPT.ok("convert", source, folder / "c", "--to", "torch", "--no-manifest",
            "--verify")
    # The manifest of /a is trusted, whatever is written.
    with open(folder / "a" / name, "r+b") as f:
        f.seek(SIZE // 2)
        f.write(b"changed")
    done = CKPT.run("convert", folder / "a", folder / "d", "--to",
                    "safetensors", "--no-manifest")
    check_equal(done.code, 4, "a source that has changed")


def test_only_replicas(folder):
    """--no-manifest: copies of a tensor are compared, and nothing else is
    digested; one that differs is still found."""
    shutil.copytree(DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
                    folder / "tp4")
    trace = folder / "trace.json"
    CKPT.ok("convert", folder / "tp4", folder / "a", "--to", "safetensors")
    CKPT.ok("convert", folder / "tp4", folder / "b", "--to", "safetensors",
            "--no-manifest", "--trace", trace)
    names = [p.name for p in (folder / "a").glob("*.safetensors")]
    check(names, "nothing was written")
    for name in names:
        check((folder / "a" / name).read_bytes() ==
              (folder / "b" / name).read_bytes(), f"{name}: bytes differ")
    rows = json.loads(CKPT.ok("inspect", folder / "tp4",
                              "--json").out)["tensors"]
    copies = sum(4 * r["bytes"] for r in rows if "layer_norm" in r["name"])
    digested = sum(e["args"]["bytes"]
                   for e in json.loads(trace.read_text())["traceEvents"]
                   if e["name"] == "digest")
    check_equal(digested, copies, "bytes digested")

    import errors_test

    errors_test.change_norm(folder)
    done = CKPT.run("convert", folder / "tp4", folder / "c", "--to",
                    "safetensors", "--no-manifest", "--ignore-checksums")
    check_equal(done.code, 4, "a copy that differs")
    check(not (folder / "c").exists(), "a target was left")


def cached(path):
    """How many bytes of a file are in the page cache."""
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "--output",
                           "RES", path], capture_output=True, text=True,
                          check=True)
    return int(done.stdout)


def make_cold(path):
    """Drops a file from the page cache, or raises Skip."""
    if not shutil.which("fincore"):
        raise Skip("needs fincore")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path):
        raise Skip("this file system keeps what it is told to drop")


def has_direct_reads(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_read_modes(folder):
    """--io: the same bytes in every mode; direct reads add nothing to the page
    cache, and what was there stays."""
    source = folder / "a.safetensors"
    data = safetensors(source, 504)
    modes = ["auto", "buffered"]
    if has_direct_reads(source):
        modes += ["direct", "uring"]
    for mode in modes:
        make_cold(source)
        target = folder / mode
        done = CKPT.run("convert", source, target, "--to", "safetensors",
                        "--io", mode)
        if mode == "uring" and done.code == 7:
            check("--io direct" in done.err, "a hint")
            continue
        check_equal(done.code, 0, f"--io {mode}: {done.err}")
        check(next(target.glob("*.safetensors")).read_bytes().endswith(data),
              f"--io {mode}: bytes differ")
        if mode in ("direct", "uring"):
            check(cached(source) <= SIZE // 8, f"--io {mode}: in the cache")
        else:
            check(cached(source) >= SIZE, f"--io {mode}: not in the cache")
        CKPT.ok("verify", target, "--io", mode)
        CKPT.ok("verify", source, target, "--io", mode)
    source.read_bytes()
    CKPT.ok("convert", source, folder / "again", "--to", "torch", "--io",
            modes[-1])
    check(cached(source) >= SIZE, "what was in the cache was dropped")


def test_auto_mode(folder):
    """auto: cold bytes of a rewritten source stay out of the page cache, warm
    ones in it; verify leaves them there."""
    source = folder / "a.safetensors"
    size = 13 * SIZE  # small runs are read through the page cache
    data = safetensors(source, 504, size)
    if not has_direct_reads(source):
        raise Skip("no direct reads here")

    def convert(name, *options):
        target = folder / name
        CKPT.ok("convert", source, target, "--to", "safetensors", *options)
        check(next(target.glob("*.safetensors")).read_bytes().endswith(data),
              "bytes differ")

    make_cold(source)
    if CKPT.run("convert", source, folder / "ring", "--to", "safetensors",
                "--io", "uring").code == 7:
        raise Skip("no io_uring here")
    make_cold(source)
    convert("once")
    check(cached(source) <= size // 8, "a source read once is in the cache")
    # A kernel short of memory reclaims some pages.
    most = size // 2
    convert("little", "--max-mem", "16MiB", "-j", "2")
    check(cached(source) >= most, "there is no memory for direct reads")
    source.read_bytes()
    convert("again")
    check(cached(source) >= most, "what was in the cache was dropped")
    make_cold(source)
    CKPT.ok("verify", folder / "again", source)
    check(cached(source) >= most, "verify leaves nothing for what comes next")


def test_no_direct_reads(folder):
    """A file system without O_DIRECT: refused by name, and auto works."""
    mount = folder / "ramfs"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(
            ["mount", "-t", "ramfs", "ramfs", mount], capture_output=True,
            check=False).returncode:
        raise Skip("can't mount a ramfs")
    try:
        source = mount / "a.safetensors"
        safetensors(source, 504)
        if has_direct_reads(source):
            raise Skip("this ramfs has direct reads")
        done = CKPT.run("convert", source, folder / "b", "--to", "safetensors",
                        "--io", "direct")
        check_equal(done.code, 7, "exit status")
        check("a.safetensors" in done.err and
              "--io buffered" in done.err, done.err)
        check(not (folder / "b").exists(), "the target was made")
        CKPT.ok("convert", source, folder / "b", "--to", "safetensors")
    finally:
        subprocess.run(["umount", mount], check=False)


def mount_on_full(folder):
    """ext4 without a journal, on a device that takes 40 MiB and then fails."""
    store, mount = folder / "store", folder / "mount"
    store.mkdir()
    mount.mkdir()
    image = store / "image"
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        raise Skip("needs root and mkfs.ext4")
    for argv in (["mount", "-t", "tmpfs", "-o", "size=40m", "none", store],
                 ["truncate", "-s", "256M", image],
                 ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E",
                  "nodiscard", image],
                 ["mount", "-o", "loop", image, mount]):
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            raise Skip(f"{argv[0]} does not work here")
    return store, mount


def test_full_store(folder):
    """What is written while nothing can be flushed is not there after the next
    mount: not the tensors, and not the files that a resumed run writes into
    inodes of that time."""
    store, mount = folder / "store", folder / "mount"
    source, target = folder / "s", mount / "out"
    source.mkdir()
    try:
        mount_on_full(folder)
        for i in range(10):
            safetensors(source / f"model-{i}.safetensors", 504)
            (source / f"model-{i}.safetensors").write_bytes(
                (source / f"model-{i}.safetensors").read_bytes().replace(
                    b'"w"', b'"%d"' % i, 1))
        argv = ["convert", source, target, "--to", "dcp"]
        broken = CKPT.run(*argv)
        check(broken.code == 6 and "--resume" in broken.err, str(broken))
        subprocess.run(["mount", "-o", "remount,size=400m", store], check=True)
        told = CKPT.ok(*argv, "--resume")
        check("copied to new ones" in told.err, told.err)
        subprocess.run(["umount", mount], check=True)
        subprocess.run(["mount", "-o", "loop", store / "image", mount],
                       check=True)
        for file in target.iterdir():
            check(file.read_bytes().strip(b"\0"), f"{file.name} is zeros")
        CKPT.ok("verify", target)
        CKPT.ok("verify", source, target)
    finally:
        for place in (mount, store):
            subprocess.run(["umount", place], capture_output=True, check=False)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("--trace: events add up", test_trace)
    suite.add("--trace: in no directory", test_trace_unwritable)
    suite.add("XFS: blocks are shared", test_reflink)
    suite.add("XFS: what is shared is not read", test_unread)
    suite.add("XFS: tensors of several files of ours", test_shards_of_ours)
    suite.add("--io: the same bytes, other caches", test_read_modes)
    suite.add("--io auto: what is read once", test_auto_mode)
    suite.add("--io: a file system without direct reads", test_no_direct_reads)
    suite.add("a file system without a size", test_no_size)
    suite.add("ext4 whose device runs full", test_full_store)
    suite.add("--no-manifest: no digests but where needed", test_no_digests)
    suite.add("--no-manifest: replicas are compared", test_only_replicas)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
