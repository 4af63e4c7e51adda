#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every call that can fail does: the n-th of each kind, in each command.

tests/support/faults.cc acts as a failing disk below ckpt. Whatever happens, the
exit status says so in plain words, DST is whole or absent, and --resume
continues to the same bytes. And power cuts: all changes of a run are recorded
and replayed up to each of them, without what was not synced.
"""

import hashlib
import random
import re
import shutil
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import writers
from resume_test import make_source
from support import DATA
from writers import tree

CKPT = SHIM = None
PASSED = FAILED = 0
ERRORS = {"EIO": 5, "ENOSPC": 28, "EDQUOT": 122, "ESTALE": 116}
WRITES = ["write", "truncate", "fsync", "fdatasync", "rename", "unlink",
          "rmdir", "mkdir", "sync_file_range", "copy_file_range", "close",
          "open", "opendir", "readdir", "link", "stat"]
TENSOR = re.compile(r"layers\.\d+\.weight")
READS = ["open", "read", "close", "opendir", "readdir", "stat"]


def check(name, good, detail=""):
    global PASSED, FAILED
    PASSED += bool(good)
    FAILED += not good
    if not good:
        print(f"FAIL {name}: {str(detail)[:600]}", flush=True)


def run(words, root=None, **settings):
    return writers.run(words, SHIM, root, **settings)


def commands(folder):
    """Name, words with SRC and DST in them, the source, DST's name: those of
    the table that publish a checkpoint in one piece."""
    for writer in writers.WRITERS:
        if writer.command in ("convert", "reshard", "unshard", "salvage") and \
                writer.status == 0 and "--delta" not in writer.words:
            place = folder / f"{writer.name} from"
            place.mkdir()
            yield writer.name, writer.words, writer.make(place), writer.base


def words_of(case, target, *more):
    _, words, source, _ = case
    return [CKPT, *(source if w == "SRC" else target if w == "DST" else w
                    for w in words), "-j", "2", *more]


def old_target(case, target):
    if "--overwrite" in case[1]:
        writers.put_old(target)


def sample(rng, count):
    """Some of the numbers up to `count`."""
    if count == 0:
        return []
    picked = {1, 2, count, *(rng.randint(1, count) for _ in range(2))}
    return sorted(n for n in picked if 1 <= n <= count)


def counts_of(words, root, folder):
    counts = folder / "counts"
    done = run(words, root, FAULTS_COUNT=str(counts))
    lines = [line.split() for line in counts.read_text().splitlines()]
    return done, {name: int(number) for name, number in lines}


def one_fault(place, case, fault, root_of, want, before):
    """A run with a fault, and --resume after it."""
    name, _, _, base = case
    target = place / base
    place.mkdir()
    old_target(case, target)
    what = f"{name}, {root_of} {fault}"
    root = place if root_of == "target" else case[2]
    broken = run(words_of(case, target), root, FAULTS=fault)
    after = tree(target)
    check(f"{what}: exit status", broken.returncode in (0, 3, 4, 6, 7),
          f"{broken.returncode} {broken.stderr}")
    check(f"{what}: says why", broken.returncode == 0 or "error:" in
          broken.stderr, broken.stderr)
    if broken.returncode == 0:
        check(f"{what}: whole", after == want, after)
        return
    stands = "in its place" in broken.stderr or after == want
    check(f"{what}: DST is as it was", after == before or stands, after)
    if after == want:
        return
    again = run(words_of(case, target, "--resume"))
    check(f"{what}: --resume", again.returncode == 0,
          f"{again.returncode} {again.stderr} (after {broken.stderr})")
    check(f"{what}: same bytes", tree(target) == want)
    rest = [p.name for p in place.iterdir() if p.name.startswith(".out")]
    check(f"{what}: nothing beside", not rest, rest)


def all_faults(folder, share):
    rng = random.Random(19)
    with ThreadPoolExecutor(4) as pool:
        jobs = []
        for case in commands(folder):
            name, _, source, base = case
            place = folder / f"{name}_plain"
            place.mkdir()
            old_target(case, place / base)
            before = tree(place / base)
            done = run(words_of(case, place / base))
            check(f"{name}: plain run", done.returncode == 0, done.stderr)
            want = tree(place / base)
            for root_of, kinds in (("target", WRITES), ("source", READS)):
                counted = folder / f"{name}_{root_of}_counted"
                counted.mkdir()
                old_target(case, counted / base)
                _, counts = counts_of(
                    words_of(case, counted / base),
                    counted if root_of == "target" else source, folder)
                for kind in kinds:
                    for n in sample(rng, counts[kind]):
                        faults = [rng.choice(list(ERRORS.values())), 4]
                        if kind in ("read", "write", "copy_file_range"):
                            faults.append("short")
                        if kind in ("fdatasync", "sync_file_range"):
                            faults.append("lost")
                        if kind in ("write", "rename", "fdatasync"):
                            faults.append(f"{rng.choice([5, 28])}+")
                        for fault in faults:
                            if rng.random() > share:
                                continue
                            plus = "+" if str(fault).endswith("+") else ""
                            text = f"{kind}@{n}{plus}={fault}".rstrip("+")
                            jobs.append(pool.submit(
                                one_fault, folder / f"f{len(jobs)}", case,
                                text, root_of, want, before))
        for job in jobs:
            job.result()
    return len(jobs)


def seals(folder, share):
    """verify --seal writes beside its source: a whole manifest or none."""
    count = 0
    rng = random.Random(7)
    plain = folder / "plain"
    shutil.copytree(DATA / "safetensors" / "hf_sharded" / "ckpt", plain)
    words = [CKPT, "verify", plain, "--seal"]
    done, counts = counts_of(words, plain, folder)
    check("seal: plain run", done.returncode == 0, done.stderr)
    want = tree(plain)
    manifest = plain / ".ckpt-manifest.json"
    for kind in WRITES:
        for n in range(1, counts[kind] + 1):
            if rng.random() > share:
                continue
            fault = f"{kind}@{n}={ERRORS['EIO']}"
            manifest.unlink(missing_ok=True)
            before = tree(plain)
            broken = run(words, plain, FAULTS=fault)
            count += 1
            check(f"seal, {fault}: says why", broken.returncode == 0
                  or "error:" in broken.stderr or "damaged" in broken.stdout,
                  f"{broken.returncode} {broken.stdout} {broken.stderr}")
            # A lock that the disk let nobody unlink; the next run does.
            there = {name: sum for name, sum in tree(plain).items()
                     if not name.endswith(".ckpt-lock")}
            check(f"seal, {fault}: whole or none",
                  there in (before, want), there)
            check(f"seal, {fault}: sealed", broken.returncode != 0
                  or "sealed: " not in broken.stdout or tree(plain) == want)
            again = run(words)
            check(f"seal, {fault}: again", again.returncode == 0
                  and tree(plain) == want, again.stderr)
    return count


# -------------------------------------------------------------- power cuts
class Node:
    """A file or directory: what is there, and what would be after a power
    cut."""

    def __init__(self, directory=False):
        self.directory = directory
        self.live = {} if directory else bytearray()
        self.kept = {} if directory else b""

    def sync(self):
        self.kept = dict(self.live) if self.directory else bytes(self.live)


class Disk:
    def __init__(self, root):
        self.root = str(root)
        self.top = self.load(Path(root))

    def load(self, path):
        node = Node(path.is_dir())
        if node.directory:
            node.live = {p.name: self.load(p) for p in path.iterdir()}
        else:
            node.live = bytearray(path.read_bytes())
        node.sync()
        return node

    def parts(self, path):
        return [p for p in path[len(self.root):].split("/") if p]

    def find(self, path):
        node = self.top
        for part in self.parts(path):
            node = node.live.get(part) if node and node.directory else None
        return node

    def above(self, path):
        return self.find(path.rsplit("/", 1)[0]), path.rsplit("/", 1)[1]

    def apply(self, kind, path, other, offset, data):
        node = self.find(path)
        if kind == 1 and node is None:
            parent, name = self.above(path)
            parent.live[name] = Node()
        elif kind == 2 and node:
            if len(node.live) < offset + len(data):
                node.live.extend(bytes(offset + len(data) - len(node.live)))
            node.live[offset:offset + len(data)] = data
        elif kind == 3 and node:
            del node.live[offset:]
            node.live.extend(bytes(offset - len(node.live)))
        elif kind == 4 and node:
            node.sync()
        elif kind in (5, 8, 9):
            (a, name), (b, other_name) = self.above(path), self.above(other)
            moved = a.live[name]
            if kind == 8:
                a.live[name] = b.live[other_name]
            elif kind == 5:
                del a.live[name]
            b.live[other_name] = moved
        elif kind == 6:
            parent, name = self.above(path)
            parent.live.pop(name, None)
        elif kind == 7:
            parent, name = self.above(path)
            parent.live[name] = Node(directory=True)

    def cut(self, base, names_kept):
        """What is under DST after a power cut: with all name changes, or only
        those whose directory was synced; of data only what was synced, the rest
        zeros."""
        def look(node):
            if not node.directory:
                data = bytes(node.kept)
                size = len(node.live) if names_kept else len(data)
                data = data[:size] + bytes(size - len(data[:size]))
                return hashlib.sha256(data).hexdigest()
            entries = node.live if names_kept else node.kept
            found = {}
            for name, below in entries.items():
                inside = look(below)
                if isinstance(inside, dict):
                    found.update({f"{name}/{k}": v
                                  for k, v in inside.items()})
                else:
                    found[name] = inside
            return found

        entries = self.top.live if names_kept else self.top.kept
        return look(entries[base]) if base in entries else None


def changes(path):
    data = path.read_bytes()
    at = 0
    while at < len(data):
        kind, a, b, offset, size = struct.unpack_from("<IIIQQ", data, at)
        at += 28
        first, at = data[at:at + a].decode(), at + a
        second, at = data[at:at + b].decode(), at + b
        body = b""
        if kind == 2:
            body, at = data[at:at + size], at + size
        yield kind, first, second, offset, body


def power_cuts(folder):
    cuts = 0
    for case in commands(folder):
        name, _, _, base = case
        # Its own directory comes from mkdtemp, which the record doesn't see;
        # the result is published as by the others.
        if name == "salvage":
            continue
        place = folder / f"{name}_cut"
        place.mkdir()
        target = place / base
        old_target(case, target)
        disk, before = Disk(place), tree(target)
        record = folder / f"{name}.record"
        done = run(words_of(case, target), place, FAULTS_RECORD=str(record))
        check(f"power_cuts: {name}", done.returncode == 0, done.stderr)
        want = tree(target)
        last = {}
        for number, change in enumerate(changes(record)):
            disk.apply(*change)
            if change[0] == 2 and number % 16:
                continue  # writes to files that have no name yet
            for names_kept in (True, False):
                found = disk.cut(base, names_kept)
                cuts += 1
                last[names_kept] = found
                check(f"power_cuts: {name}, after {number} "
                      f"({change[0]} {change[1]}), names {names_kept}",
                      found in (before, want), found)
        # At the end it is there, whatever is lost.
        check(f"power_cuts: {name}: done is done",
              last == {True: want, False: want}, last)
    return cuts


def bad_sectors(folder):
    """Failing reads: the file and the byte are named and, where elements are
    read, the tensor; nothing is written."""
    plain = folder / "plain.safetensors"
    make_source(plain, 1)
    archive = folder / "made.pt"
    run([CKPT, "convert", plain, archive, "--to", "torch", "-q"])
    commands_ = {"convert": ["--to", "dcp"], "verify": [], "salvage": []}
    tried = 0
    for source in (plain, archive):
        for command, more in commands_.items():
            target = folder / "out"
            words = [CKPT, command, source, *([target] * (command != "verify")),
                     *more, "-j", "1", "--io", "buffered"]
            done, counts = counts_of(words, source, folder)
            remove(target)
            check(f"bad_sectors: {command}", done.returncode == 0, done.stderr)
            last = counts.get("read", 0)
            check(f"bad_sectors: {command} reads", last > 2, counts)
            named = False  # payload is part of what is read
            for number in sorted({1, 2, last // 2, last - 1, last,
                                  *range(1, last, max(1, last // 24))}):
                what = f"bad_sectors: {command} {source.name}, read {number}"
                done = run(words, source, FAULTS=f"read@{number}+=5")
                tried += 1
                check(what, done.returncode == 6, f"{done.returncode} "
                      f"{done.stderr}")
                check(f"{what}: where", source.name in done.stderr and
                      re.search(r"cannot read byte \d+: Input/output error",
                                done.stderr), done.stderr)
                named = named or bool(TENSOR.search(done.stderr))
                check(f"{what}: nothing is written", not target.exists())
                remove(target)
                remove(folder / ".out.ckpt-staging")
            check(f"bad_sectors: {command} {source.name}: whose",
                  named or command == "salvage", "no tensor was named")
    return tried


def readers(folder, share, every=False):
    """Every command that only reads: where a call fails, the command fails, or
    prints what it would have printed. A truncated listing or a file that can't
    be examined is never taken for a missing one."""
    hf = DATA / "hf" / "llama" / "ckpt"
    dist = DATA / "megatron_torch_dist" / "gpt_tp2_pp2_v0161" / "ckpt"
    native = DATA / "fairseq2_native" / "llama_tp2dp2_fsdp2" / "ckpt"
    zarr = DATA / "megatron_zarr" / "gpt_zarr_tp2_pp2_v0090" / "ckpt"
    run_ = DATA / "runs" / "verl_fsdp2_w2" / "ckpt"
    lines = [("inspect", source) for source in (hf, dist, native, zarr, run_)
             if source.exists()]
    lines += [("inspect", "--digest", dist), ("inspect", "--stats", hf),
              ("inspect", "--json", "--objects", native), ("ls", run_),
              ("ls", dist), ("show", hf, "model.norm.weight[:4]"),
              ("verify", hf), ("verify", dist), ("verify", native),
              ("verify", zarr), ("verify", hf, hf), ("diff", native, native),
              ("scan", dist), ("scan", native), ("family", "check", hf),
              ("wait", hf, "--timeout", "3s", "--settle", "0s"),
              ("convert", hf, folder / "x", "--to", "dcp", "-n"),
              ("salvage", zarr, folder / "x", "-n")]
    rng = random.Random(19)
    tried = 0
    jobs = []

    def shown(done):
        # What the clock and the disk say is another thing a minute later.
        return done.returncode, re.sub(r": .* free$|^saved .* ago$", "",
                                       done.stdout, flags=re.M)

    def one(words, source, fault, plain):
        what = f"readers: {' '.join(map(str, words[1:]))}, {fault}"
        done = run(words, source, FAULTS=fault)
        same = shown(done) == shown(plain)
        if words[1] == "wait" and "not finished" in done.stderr:
            return  # it waited, and says what for
        check(f"{what}: exit status", done.returncode in (3, 4, 6, 7) or same,
              f"{done.returncode} {done.stdout[-300:]} {done.stderr}")
        check(f"{what}: says why", same or re.search(
            '^error: |"ckpt/error/1"', done.stderr, re.M), done.stderr)

    with ThreadPoolExecutor(4) as pool:
        for words in lines:
            source = next(w for w in words if isinstance(w, Path))
            if not source.exists():
                continue
            words = [CKPT, *words]
            plain, counts = counts_of(words, source, folder)
            check(f"readers: {words[1:]}", plain.returncode in (0, 1),
                  plain.stderr)
            for kind in READS:
                all_of_kind = range(1, counts[kind] + 1)
                some = sample(rng, counts[kind])
                if kind == "stat":  # what is there is looked up late, too
                    some += rng.sample(all_of_kind, min(6, counts[kind]))
                for n in all_of_kind if every else some:
                    error = rng.choice([5, 116, 13])
                    for fault in (f"{kind}@{n}={error}", f"{kind}@{n}=4"):
                        if rng.random() > share:
                            continue
                        tried += 1
                        jobs.append(pool.submit(one, words, source, fault,
                                                plain))
        for job in jobs:
            job.result()
    return tried


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def limits(folder):
    """Limits of the system, not of the disk."""
    source = folder / "many"
    source.mkdir()
    weights = {}
    for i in range(2000):
        text = (b'{"t%d":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
                % i)
        file = f"model-{i + 1:05d}-of-02000.safetensors"
        (source / file).write_bytes(struct.pack("<Q", len(text)) + text
                                    + struct.pack("<I", i))
        weights[f"t{i}"] = file
    import json
    (source / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": 8000}, "weight_map": weights}))
    plain = folder / "plain.safetensors"
    make_source(plain, 24)
    shell = {
        "few_open_files": ("ulimit -n 64", source, (0,)),
        "very_few_open_files": ("ulimit -n 16", source, (0, 7)),
        "file_size": ("ulimit -f 100", plain, (6,)),
        "no_threads": ("ulimit -v 400000", plain, (0, 7)),
    }
    for name, (limit, path, allowed) in shell.items():
        target = folder / f"{name}_out"
        words = [CKPT, "convert", path, target, "--to", "safetensors",
                 "-j", "16"]
        done = run(["bash", "-c", limit + '; exec "$@"', "x", *words])
        check(f"limits: {name}", done.returncode in allowed,
              f"{done.returncode} {done.stderr}")
        check(f"limits: {name}: whole or absent",
              target.exists() == (done.returncode == 0))
        if name == "file_size":
            check("limits: file_size says so", "ulimit -f" in done.stderr,
                  done.stderr)


def main():
    global CKPT, SHIM
    import argparse
    import tempfile
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--faults", required=True)
    parser.add_argument("--share", type=float, default=0.5,
                        help="of the sampled faults")
    parser.add_argument("--every", action="store_true",
                        help="in commands that read, every call and not a "
                        "sample: a quarter of an hour with --share 1")
    args = parser.parse_args()
    CKPT, SHIM = Path(args.ckpt).resolve(), Path(args.faults).resolve()
    if not SHIM.exists():
        sys.exit(f"no {SHIM}: build the target ckpt_faults")
    with tempfile.TemporaryDirectory(prefix="ckpt_faults_") as temp:
        for test, more in ((power_cuts, []), (limits, []),
                           (bad_sectors, []), (readers, [args.share, args.every]),
                           (seals, [args.share]), (all_faults, [args.share])):
            place = Path(temp) / test.__name__
            place.mkdir()
            begin = time.monotonic()
            number = test(place, *more)
            print(f"{test.__name__}: {number or ''} in "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
    print(f"{PASSED} passed, {FAILED} failed, 0 skipped")
    sys.exit(FAILED != 0)


if __name__ == "__main__":
    main()
