#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command that writes (writers.py), through the same harm.

What a killed run leaves is found by killing it, so that no list of working
directories can be short of one: each name that is left becomes a link to
something precious, and each file that is left gets another byte."""

import os
import random
import re
import shutil
from pathlib import Path

from support import Suite, check, check_equal
from writers import READERS, WRITERS, put_old, run, tree

CKPT = SHIM = None  # set by prepare
KINDS = ["write", "truncate", "fsync", "fdatasync", "rename", "unlink", "mkdir",
         "copy_file_range", "open", "link"]
ERRORS = {"EIO": 5, "ENOSPC": 28}


class Place:
    """A folder with a source, and the targets of runs beside each other."""

    def __init__(self, folder, writer):
        self.folder, self.writer, self.count = folder, writer, 0
        self.server = None
        self.source = writer.make(folder)
        if writer.served:
            from remote_servers import Server
            self.server = Server(self.source)
            self.server.__enter__()

    def close(self):
        if self.server:
            self.server.__exit__()

    def fresh(self):
        """A target's path, in a directory of its own."""
        if self.writer.inside:  # the file says where it is
            at = self.folder / "sealed"
            shutil.rmtree(at, ignore_errors=True)
            shutil.copytree(self.source, at)
            return at / self.writer.base
        self.count += 1
        at = self.folder / str(self.count)
        at.mkdir()
        target = at / self.writer.base
        if self.writer.old:
            put_old(target)
        if self.writer.command == "run":
            done = run([CKPT, "convert", self.source, target, "--to",
                        "safetensors", "-n", "-o", at / "plan.json"])
            check_equal(done.returncode, 0, done.stderr)
        if "DELTA" in self.writer.words:
            done = run([CKPT, "diff", self.source / "a", self.source / "b",
                        "--write", at / "delta", "--lossless"])
            check_equal(done.returncode, 0, done.stderr)
        return target

    def words(self, target, *more):
        source = target.parent if self.writer.inside else \
            self.server.url if self.server else self.source
        named = {"SRC": source, "DST": target,
                 "PLAN": target.parent / "plan.json",
                 "DELTA": target.parent / "delta"}
        words = [named.get(word, source / word[4:] if word.startswith("SRC/")
                           else word) for word in self.writer.words]
        return [CKPT, *words, *more]

    def run(self, target, *more, **settings):
        return run(self.words(target, *more), SHIM,
                   target.parent if settings else None, **settings)

    def again(self, target):
        """As a user goes on: with --resume where there is one."""
        has = "--resume" in run([CKPT, self.writer.command, "--help"]).stdout
        return self.run(target, *(["--resume"] if has else []))

    def counts(self):
        target = self.fresh()
        file = self.folder / "counts"
        done = self.run(target, FAULTS_COUNT=str(file))
        check_equal(done.returncode, self.writer.status, done.stderr)
        lines = [line.split() for line in file.read_text().splitlines()]
        return tree(target), {name: int(n) for name, n in lines}

    def left(self, target):
        """What is beside the target, and what is in it before it is whole."""
        return sorted(p for p in target.parent.iterdir()
                      if p.name.startswith(".") and p != target)


def picked(counts, seed, most):
    """Calls that write, spread over a run."""
    rng = random.Random(seed)
    all_calls = [(kind, n) for kind in KINDS
                 for n in range(1, counts.get(kind, 0) + 1)]
    return rng.sample(all_calls, min(most, len(all_calls)))


def is_whole(place, target, want, before):
    """Absent, as before, or whole; fetch and the manual publish by the file."""
    now = tree(target)
    if now in (None, before, want):
        return True
    if place.writer.command not in ("fetch", "man"):
        return False
    return all(want.get(name) == sum for name, sum in now.items()
               if not name.startswith(".ckpt-fetch"))


def goes_on(place, target, want, what):
    done = place.again(target)
    if done.returncode != place.writer.status and \
            "exists" in done.stderr and tree(target) == want:
        return  # killed after it was published
    check_equal(done.returncode, place.writer.status,
                f"{what}: {done.stderr}")
    check_equal(tree(target), want, f"{what}: bytes")
    check(not place.left(target), f"{what}: left {place.left(target)}")


def each_harm(place, most, harm):
    """harm(what, target, fault) for some of a run's calls."""
    want, counts = place.counts()
    for kind, n in picked(counts, place.writer.name, most):
        harm(want, f"{kind}@{n}")


def test_kills(folder, writer, most):
    place = Place(folder, writer)

    def kill(want, call):
        target = place.fresh()
        before = tree(target)
        place.run(target, FAULTS=f"{call}=kill")
        check(is_whole(place, target, want, before), f"{call}: {tree(target)}")
        goes_on(place, target, want, f"killed at {call}")

    each_harm(place, most, kill)
    place.close()


def test_faults(folder, writer, most):
    place = Place(folder, writer)

    def fail(want, call):
        for name, error in ERRORS.items():
            target = place.fresh()
            before = tree(target)
            done = place.run(target, FAULTS=f"{call}={error}")
            what = f"{call} {name}"
            check(is_whole(place, target, want, before),
                  f"{what}: {tree(target)}")
            check(done.returncode == writer.status or "error:" in done.stderr
                  or "damaged" in done.stdout, f"{what}: {done.stderr}")
            if tree(target) != want:
                goes_on(place, target, want, what)

    each_harm(place, most, fail)
    place.close()


def precious(folder):
    path = folder / "precious"
    path.mkdir(exist_ok=True)
    (path / "file").write_text("precious")
    return path


def test_links(folder, writer, most):
    """Each name that a killed run left, as a link: to nothing of this run."""
    place = Place(folder, writer)
    guarded = precious(folder)
    tried = set()

    def link(want, call):
        target = place.fresh()
        before = tree(target)
        place.run(target, FAULTS=f"{call}=kill")
        beside = [name for top in place.left(target)
                  for name in (top, *top.rglob("*"))]
        for path in beside:
            known = path.relative_to(target.parent)
            if known in tried or not os.path.lexists(path):
                continue
            tried.add(known)
            if path.is_dir():
                shutil.rmtree(path)
                path.symlink_to(guarded)
            else:
                path.unlink()
                path.symlink_to(guarded / "file")
            done = place.again(target)
            check_equal(tree(guarded), tree(precious(folder)), "precious")
            check((guarded / "file").read_text() == "precious",
                  f"{known} is a link: written through")
            check(is_whole(place, target, want, before),
                  f"{known} is a link: {done.stderr}")
            break

    each_harm(place, most, link)
    place.close()


def test_rot(folder, writer, most):
    """Another byte in each file that a killed run left: the next run either
    says so or writes the same bytes."""
    place = Place(folder, writer)
    rng = random.Random(writer.name)

    def rot(want, call):
        target = place.fresh()
        before = tree(target)
        place.run(target, FAULTS=f"{call}=kill")
        for top in place.left(target):
            for path in (top, *top.rglob("*")):
                if path.is_symlink() or not path.is_file() or \
                        path.stat().st_size == 0:
                    continue
                data = bytearray(path.read_bytes())
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
        done = place.again(target)
        check(tree(target) == want or (
            done.returncode not in (0, 1) and
            is_whole(place, target, want, before)),
              f"rot after a kill at {call}: {done.returncode} {done.stderr}")

    each_harm(place, most, rot)
    place.close()


def test_table(folder):
    """Each command of `ckpt --help` writes, and is in the table, or does not."""
    text = run([CKPT, "--help"]).stdout
    text = text[text.index("\nCommands\n"):text.index("\nExamples\n")]
    commands = set(re.findall(r"^  (\S+)  ", text, re.MULTILINE))
    writers = {writer.command for writer in WRITERS}
    check(not writers & READERS, f"both: {writers & READERS}")
    check_equal(commands, writers | READERS, "commands and the table")
    places = re.compile(r"--(html|dir|draft|seal|output|target)\b|\bDST\b")
    for command in sorted(READERS):
        said = run([CKPT, command, "--help"]).stdout
        said = said[:said.find("\nExamples")]
        check(not places.search(said), f"{command} writes: {said}")


def prepare(suite, ckpt):
    global CKPT, SHIM
    CKPT = Path(ckpt.path)
    SHIM = CKPT.parent / "libckpt_faults.so"
    check(SHIM.exists(), f"no {SHIM}: build the target ckpt_faults")
    most = 60 if suite.full else 12
    suite.add("table", test_table)
    for writer in WRITERS:
        for test in (test_kills, test_faults, test_links, test_rot):
            suite.add(f"{test.__name__[5:]}: {writer.name}", test, writer,
                      most // 4 if writer.slow else most)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
