#!/usr/bin/env python3
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


def make_source(path, mib):
    """A safetensors file of random bytes, in tensors of some MiB each."""
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
        """Kills a run as soon as its journal has that many lines; a run that
        was too fast is run again."""
        journal = target.parent / f".{target.name}.ckpt-staging" / "journal"
        for _ in range(50):
            target.unlink(missing_ok=True)
            child = subprocess.Popen(list(map(str, argv)),
                                     stderr=subprocess.DEVNULL)
            while child.poll() is None:
                if self.lines_of(journal) >= lines:
                    child.kill()
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
        kills = 0
        for attempt in range(200):
            how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            before = self.size_of(staging / "journal")
            status, err = self.kill_after(self.argv(target, "--resume"),
                                          rng.uniform(0.02, 0.4) * whole, how)
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
        self.check("done in the end", status == 0, err)
        self.check("was killed on the way", kills >= 1, f"{kills} kills")
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
        """A last line that was cut in the middle does not count."""
        target = self.folder / "torn.pt"
        journal = self.kill_at(self.argv(target), target, 3)
        text = journal.read_bytes()
        journal.write_bytes(text[:-20])
        result = self.run(self.argv(target, "--resume"))
        self.check("torn line", result.returncode == 0, result.stderr)
        self.check("torn line: same bytes", digest(target) == expected)

    def all(self, mib):
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
        # The stem of a file is in its records' names.
        self.torn_journal(digest(plain.parent / "torn.pt"))
        self.refuses_other_work()
        self.check("the source is as it was", digest(self.source) == before)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--mib", type=int, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ckpt_resume_") as folder:
        tests = Tests(args.ckpt, Path(folder))
        tests.all(args.mib)
    print(f"{tests.passed} passed, {tests.failed} failed, 0 skipped")
    sys.exit(tests.failed != 0)


if __name__ == "__main__":
    main()
