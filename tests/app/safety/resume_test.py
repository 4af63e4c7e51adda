#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed goes on with --resume and gives the same bytes.

    resume_test.py --ckpt build/bin/ckpt
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import support  # noqa: F401  a shell's background job heeds Ctrl-C


def make_source(path, mib):
    """A safetensors file of random bytes, in tensors of a few MiB each."""
    rng = random.Random(20261121)
    header, data_end, sizes = {}, 0, []
    while data_end < mib << 20:
        rows = rng.randrange(1000, 9000)
        size = rows * 512 * 4
        header[f"layers.{len(sizes)}.weight"] = {
            "dtype": "F32", "shape": [rows, 512],
            "data_offsets": [data_end, data_end + size]}
        sizes.append(size)
        data_end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in sizes:
            file.write(rng.randbytes(size))


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(
            hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()


class Tests:
    def __init__(self, ckpt, folder):
        self.ckpt, self.folder = str(Path(ckpt).resolve()), folder
        self.source = folder / "source.safetensors"
        self.passed = self.failed = 0

    def check(self, name, good, detail=""):
        self.passed += good
        self.failed += not good
        if not good:
            print(f"FAIL {name}: {detail}")

    def argv(self, target, *more):
        return [self.ckpt, "convert", self.source, target, "--to", "torch",
                "--no-fsync", "-q", "-j", "1", "--max-mem", "16MiB", *more]

    def run(self, argv):
        return subprocess.run(list(map(str, argv)), capture_output=True,
                              text=True)

    def kill_after(self, argv, seconds, how):
        child = subprocess.Popen(list(map(str, argv)),
                                 stderr=subprocess.PIPE, text=True)
        try:
            _, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.send_signal(how)
            _, err = child.communicate()
        return child.returncode, err

    def kill_at(self, argv, target, lines):
        """Kills a slowed-down run as soon as its journal has that many lines. A
        run that was too fast is repeated."""
        argv = [*argv, "--max-rate", "64MiB"]
        journal = target.parent / f".{target.name}.ckpt-staging" / "journal"
        for _ in range(50):
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            child = subprocess.Popen(list(map(str, argv)),
                                     stderr=subprocess.DEVNULL)
            while child.poll() is None:
                if self.lines_of(journal) >= lines:
                    child.kill()
                time.sleep(0.001)  # noqa: TID251  looks at the journal
            child.wait()
            if self.lines_of(journal) >= lines and not target.exists():
                return journal
        raise AssertionError("never killed in time")

    @staticmethod
    def lines_of(path):
        try:
            return path.read_bytes().count(b"\n")
        except OSError:
            return 0

    @staticmethod
    def size_of(path):
        return path.stat().st_size if path.exists() else 0

    def killed_until_done(self, expected, whole):
        """Killed again and again, at random points, until it is done."""
        rng = random.Random(7)
        target = self.folder / "killed.pt"
        staging = self.folder / ".killed.pt.ckpt-staging"
        self.kill_at(self.argv(target), target, 1)
        kills, status, err = 1, None, ""
        for attempt in range(60):
            how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            before = self.size_of(staging / "journal")
            # Longer each time: what was done is read back first.
            most = 0.4 + 0.05 * attempt
            status, err = self.kill_after(self.argv(target, "--resume"),
                                          rng.uniform(0.02, most) * whole,
                                          how)
            if status == 0:
                break
            kills += 1
            if target.exists():
                # Killed between the rename and its end.
                self.check("no half-written target",
                           digest(target) == expected)
                status = 0
                shutil.rmtree(staging, ignore_errors=True)
                break
            # A signal before the work begins ends the process at once.
            worked = self.size_of(staging / "journal") > before
            if status in (130, 143) and worked:
                self.check("says how to go on", "--resume" in err, err)
        if status != 0:  # on a machine that has become slow, or by chance
            last = self.run(self.argv(target, "--resume"))
            status, err = last.returncode, last.stderr
        self.check("done in the end", status == 0, err)
        print(f"{kills} kills until it was done")
        self.check("same bytes", digest(target) == expected)
        self.check("nothing left beside it", not staging.exists())
        verified = self.run([self.ckpt, "verify", target])
        self.check("verify", verified.returncode == 0, verified.stdout)

    def refuses_other_work(self):
        target = self.folder / "changed.pt"
        staging = self.folder / ".changed.pt.ckpt-staging"
        self.kill_at(self.argv(target), target, 2)
        other = self.run(self.argv(target, "--resume", "--exclude",
                                   "layers.0.*"))
        self.check("other options are refused", other.returncode == 5,
                   other.stderr)
        self.check("says why", "options" in other.stderr, other.stderr)
        self.check("keeps the work", (staging / "journal").exists())
        os.utime(self.source)
        touched = self.run(self.argv(target, "--resume"))
        self.check("a changed source is refused", touched.returncode == 5,
                   touched.stderr)
        fresh = self.run(self.argv(target))
        self.check("without --resume it starts over", fresh.returncode == 0,
                   fresh.stderr)

    def torn_journal(self, expected):
        """A last line cut in the middle does not count."""
        target = self.folder / "torn.pt"
        journal = self.kill_at(self.argv(target), target, 3)
        text = journal.read_bytes()
        journal.write_bytes(text[:-20])
        result = self.run(self.argv(target, "--resume"))
        self.check("torn line", result.returncode == 0, result.stderr)
        self.check("torn line: same bytes", digest(target) == expected)

    def staged(self, target):
        return (target.parent / f".{target.name}.ckpt-staging" / target.name)

    def resume_after(self, name, harm, expected, told, *more, lines=6):
        """Killed, then `harm` damages what was staged, then --resume."""
        target = self.folder / name / "torn.pt"
        target.parent.mkdir()
        self.kill_at(self.argv(target), target, lines)
        harm(self.staged(target))
        argv = [a for a in self.argv(target, "--resume", *more) if a != "-q"]
        result = self.run(argv)
        self.check(f"{name}: done", result.returncode == 0, result.stderr)
        self.check(f"{name}: same bytes",
                   target.exists() and digest(target) == expected)
        self.check(f"{name}: says how many", told in result.stderr,
                   result.stderr)

    def staged_bytes_are_proven(self, expected):
        def flip(staged):
            with open(staged, "r+b") as file:
                file.seek(9 << 20)
                byte = file.read(1)
                file.seek(9 << 20)
                file.write(bytes([byte[0] ^ 4]))

        def cut(staged):
            os.truncate(staged, 9 << 20)

        def cut_and_grown(staged):
            size = staged.stat().st_size
            os.truncate(staged, 9 << 20)
            os.truncate(staged, size)

        again = "are not in the staged files as they were written"
        self.resume_after("staged_file_untouched", lambda staged: None,
                          expected, "")
        self.resume_after("staged_byte_flipped", flip, expected,
                          "1 of ")
        self.resume_after("staged_file_cut", cut, expected, again)
        self.resume_after("staged_file_cut_and_grown", cut_and_grown,
                          expected, again)
        self.resume_after("staged_file_deleted", os.unlink, expected, again)
        self.resume_after("trust_staging", lambda staged: None, expected, "",
                          "--trust-staging")
        self.nothing_to_compare()

    def nothing_to_compare(self):
        """Without digests a part can't be proven, so it is done again whatever
        its state."""
        target = self.folder / "no_digests" / "torn.pt"
        target.parent.mkdir()
        argv = self.argv(target, "--no-manifest")
        self.kill_at(argv, target, 6)
        os.unlink(self.staged(target))
        result = self.run([*argv, "--resume"])
        self.check("no digests: done", result.returncode == 0, result.stderr)
        verified = self.run([self.ckpt, "verify", self.source, target])
        self.check("no digests: same tensors", verified.returncode == 0,
                   verified.stdout + verified.stderr)

    def damaged_between_kills(self, kills):
        """Killed at random, with damage to what was staged before each
        --resume."""
        rng = random.Random(19)
        source = self.folder / "small.safetensors"
        make_source(source, 40)
        plain = self.folder / "small" / "small.pt"
        plain.parent.mkdir()

        def argv(target, *more):
            return [source if a == self.source else a
                    for a in self.argv(target, *more)]

        start = time.monotonic()
        self.run(argv(plain))
        whole = time.monotonic() - start
        expected = digest(plain)
        target = self.folder / "small.pt"
        staged = self.staged(target)
        journal = staged.parent / "journal"
        done = harmed = finished = 0
        while done < kills:
            status, err = self.kill_after(argv(target, "--resume"),
                                          rng.uniform(0.1, 1.3) * whole,
                                          signal.SIGKILL)
            done += 1
            if status == 0 or target.exists():
                finished += 1
                self.check("damaged_between_kills: same bytes",
                           digest(target) == expected)
                target.unlink()
                Path(f"{target}.ckpt-manifest.json").unlink(missing_ok=True)
                shutil.rmtree(staged.parent, ignore_errors=True)
                continue
            self.check("damaged_between_kills: killed", status == -9, err)
            victim = staged if rng.random() < 0.7 else journal
            size = self.size_of(victim)
            if not size:
                continue
            harmed += 1
            harm = rng.randrange(5)
            if harm == 0:
                victim.unlink()
            elif harm == 1:
                os.truncate(victim, rng.randrange(size))
            else:
                with open(victim, "r+b") as file:
                    file.seek(rng.randrange(size))
                    file.write(rng.randbytes(1 if harm < 4 else 4096))
                if victim == staged:
                    os.truncate(victim, size)
        result = self.run(argv(target, "--resume"))
        self.check("damaged_between_kills: resumed", result.returncode == 0,
                   result.stderr)
        self.check("damaged_between_kills: same bytes in the end",
                   digest(target) == expected)
        print(f"{kills} kills, {harmed} times damaged, {finished} times done")

    def source_replaced(self):
        """A different file of the same size and time under the source's
        name."""
        source = self.folder / "replaced.safetensors"
        shutil.copy2(self.source, source)
        target = self.folder / "replaced.pt"
        argv = [source if a == self.source else a for a in self.argv(target)]
        self.kill_at(argv, target, 3)
        facts = source.stat()
        other = self.folder / "other.safetensors"
        data = bytearray(source.read_bytes())
        data[-1] ^= 1
        other.write_bytes(data)
        os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.replace(other, source)
        result = self.run([*argv, "--resume"])
        self.check("source_replaced: refused", result.returncode == 5,
                   result.stderr)
        self.check("source_replaced: no target", not target.exists())

    def sidecar_replaced(self):
        """The same for a file that is only copied."""
        source = self.folder / "sidecar"
        source.mkdir()
        shutil.copy2(self.source, source / "model.safetensors")
        config = source / "config.json"
        config.write_text('{"a": 1}')
        target = self.folder / "sidecar_out"
        argv = [source if a == self.source else
                "safetensors" if a == "torch" else a
                for a in self.argv(target)]
        self.kill_at(argv, target, 3)
        facts = config.stat()
        other = self.folder / "other.json"
        other.write_text('{"a": 2}')
        os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.replace(other, config)
        result = self.run([*argv, "--resume"])
        self.check("sidecar_replaced: refused", result.returncode == 5,
                   result.stderr)
        self.check("sidecar_replaced: no target", not target.exists())

    def flush_fails(self, shim, expected):
        """The kernel could not write some pages, reports it once, and drops
        them. What was journaled then is no longer in the files."""
        for name, faults in (
                ("resume_after_failed_flush", "fdatasync@1=lost"),
                ("resume_after_failed_flush_of_all", "fdatasync@1+=lost"),
                ("resume_after_failed_writeback", "sync_file_range@3=lost"),
                ("resume_after_failed_close", "close@9=5")):
            target = self.folder / name / "torn.pt"
            target.parent.mkdir()
            argv = [a for a in self.argv(target) if a != "--no-fsync"]
            broken = subprocess.run(
                list(map(str, argv)), capture_output=True, text=True,
                env={**os.environ, "LD_PRELOAD": str(shim), "FAULTS": faults,
                     "FAULTS_ROOT": str(target.parent)})
            if broken.returncode == 0:
                # The call was not made, or did no harm.
                self.check(f"{name}: same bytes", digest(target) == expected)
                self.check(f"{name}: the fault was there", name.endswith(
                    ("writeback", "close")), broken.stderr)
                continue
            self.check(f"{name}: exit 6", broken.returncode == 6,
                       broken.stderr)
            self.check(f"{name}: no target", not target.exists())
            for more in ([], ["--trust-staging"]):
                again = self.run([*argv, "--resume", *more])
                if again.returncode == 0 or more:
                    break
            self.check(f"{name}: resumed", again.returncode == 0, again.stderr)
            self.check(f"{name}: same bytes",
                       target.exists() and digest(target) == expected)

    def flush_fails_in_folder(self, shim):
        """No inode that was there when a flush failed is published: the kernel
        may hold for written what says where its blocks are."""
        source = self.folder / "folder"
        source.mkdir()
        shutil.copy2(self.source, source / "model.safetensors")
        (source / "config.json").write_text('{"a": 1}')
        for number, (fault, inodes) in enumerate((
                ("fdatasync@1=5", "new"), ("fdatasync@1+=5", "new"),
                ("fdatasync@2=28", "new"), ("fsync@1=5", "new"),
                ("sync_file_range@1=5", "new"), ("write@40=5", "new"),
                ("write@40=28", "kept"))):
            place = self.folder / f"inodes{number}"
            place.mkdir()
            target, name = place / "out", f"inodes: {fault}"
            argv = [self.ckpt, "convert", source, target, "--to",
                    "safetensors", "-j", "1", "--max-shard-size", "8MiB",
                    "--max-mem", "16MiB"]
            broken = subprocess.run(
                list(map(str, argv)), capture_output=True, text=True,
                env={**os.environ, "LD_PRELOAD": str(shim), "FAULTS": fault,
                     "FAULTS_ROOT": str(place)})
            if broken.returncode == 0 and fault.startswith("sync_file"):
                continue  # the call was not made
            self.check(f"{name}: exit 6", broken.returncode == 6,
                       broken.stderr)
            staging = place / ".out.ckpt-staging"
            old = [staging, *(p for p in staging.rglob("*") if p.is_file())]
            # Open, so that no number is used again.
            held = [os.open(p, os.O_RDONLY) for p in old]
            before = {os.fstat(f).st_ino for f in held}
            again = self.run([*argv, "--resume"])
            self.check(f"{name}: resumed", again.returncode == 0, again.stderr)
            self.check(f"{name}: says so", inodes == "kept" or
                       "copied to new ones" in again.stderr, again.stderr)
            after = {p.stat().st_ino for p in [target, *target.rglob("*")]}
            for file in held:
                os.close(file)
            self.check(f"{name}: {inodes} inodes",
                       bool(before & after) == (inodes == "kept"),
                       f"{before & after} of {len(before)}")
            same = self.run([self.ckpt, "verify", source, target])
            self.check(f"{name}: same tensors", same.returncode == 0,
                       same.stdout + same.stderr)
            self.check(f"{name}: nothing beside it",
                       [p.name for p in place.iterdir()] == ["out"],
                       list(place.iterdir()))

    def all(self, mib, shim):
        make_source(self.source, mib)
        before = digest(self.source)
        plain = self.folder / "plain" / "killed.pt"
        plain.parent.mkdir()
        start = time.monotonic()
        result = self.run(self.argv(plain))
        plain_run = time.monotonic() - start
        self.check("plain run", result.returncode == 0, result.stderr)
        expected = digest(plain)
        start = time.monotonic()
        self.run(self.argv(plain.parent / "torn.pt"))
        whole = min(plain_run, time.monotonic() - start)
        self.killed_until_done(expected, whole)
        # A file's stem is part of its records' names.
        self.torn_journal(digest(plain.parent / "torn.pt"))
        torn = digest(plain.parent / "torn.pt")
        self.staged_bytes_are_proven(torn)
        self.damaged_between_kills(self.kills)
        self.source_replaced()
        self.sidecar_replaced()
        if shim:
            self.flush_fails(shim, torn)
            self.flush_fails_in_folder(shim)
        self.refuses_other_work()
        self.check("the source is as it was", digest(self.source) == before)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--faults", help="tests/support/faults.cc, built")
    args = parser.parse_args()
    if args.faults and not Path(args.faults).exists():
        sys.exit(f"no {args.faults}: build the target ckpt_faults")
    with tempfile.TemporaryDirectory(prefix="ckpt_resume_") as folder:
        tests = Tests(args.ckpt, Path(folder))
        tests.kills = args.kills
        tests.all(args.mib, args.faults)
    print(f"{tests.passed} passed, {tests.failed} failed, 0 skipped")
    sys.exit(tests.failed != 0)


if __name__ == "__main__":
    main()
