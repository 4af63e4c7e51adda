#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens to a run from outside: names that come to stand where it
publishes, second writers, sources that change. Windows of microseconds are
held open by stopping the process at a system call (tests/support/faults.cc).
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from files_test import ONE_OF_EACH
from resume_test import make_source
from support import DATA, HANG, state_of, until

CKPT = SHIM = None
FULL = False  # every golden: --full
PASSED = FAILED = 0


def check(name, good, detail=""):
    global PASSED, FAILED
    PASSED += bool(good)
    FAILED += not good
    if not good:
        print(f"FAIL {name}: {detail}", flush=True)


def tree(path):
    """All files below, with their contents."""
    if not path.exists():
        return None
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return {str(p.relative_to(path)): hashlib.sha256(
        p.read_bytes()).hexdigest() for p in sorted(path.rglob("*"))
        if p.is_file() and not p.name.endswith("manifest.json")}


def argv(source, target, *more):
    to = "torch" if target.suffix == ".pt" else "safetensors"
    return [CKPT, "convert", source, target, "--to", to, "-j", "2", *more]


def run(words, **more):
    return subprocess.run(list(map(str, words)), capture_output=True,
                          text=True, timeout=HANG, **more)


class NeverStopped(Exception):
    """The run ended without such a call."""


class Stopped:
    """A run that stops itself at a call until it is told to continue."""

    def __init__(self, words, root, fault):
        self.child = subprocess.Popen(
            list(map(str, words)), stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LD_PRELOAD": str(SHIM), "FAULTS": fault,
                 "FAULTS_ROOT": str(root)})
        until(lambda: state_of(self.child.pid) == "T" or
              self.child.poll() is not None, f"it stops at {fault}, or ends")
        if self.child.returncode is not None:
            raise NeverStopped(f"ended without {fault}")

    def go_on(self):
        self.child.send_signal(signal.SIGCONT)
        _, err = self.child.communicate(timeout=HANG)
        return self.child.returncode, err


def dst_appears_during_run(folder, source, want):
    """Whatever appears there is left alone, and what was written is kept for
    --resume."""
    for kind in ("directory", "file", "link", "checkpoint"):
        for suffix in ("", ".pt"):
            name = f"dst_appears_during_run: {kind}, DST{suffix}"
            place = folder / f"{kind}{suffix}"
            place.mkdir()
            target = place / f"out{suffix}"
            stopped = Stopped(argv(source, target), place, "rename@2=stop")
            if kind == "directory":
                target.mkdir()
                (target / "mine").write_text("mine")
            elif kind == "file":
                target.write_text("mine")
            elif kind == "link":
                target.symlink_to(folder)
            else:
                shutil.copytree(want[""], target)
            before = tree(target) if kind != "link" else os.readlink(target)
            status, err = stopped.go_on()
            check(name, status == 5, f"{status} {err}")
            check(f"{name}: says so", "already exists" in err
                  and "--resume" in err, err)
            after = tree(target) if kind != "link" else os.readlink(target)
            check(f"{name}: left as it is", before == after)
            target.rename(place / "mine")
            again = run(argv(source, target, "--resume"))
            check(f"{name}: resumed", again.returncode == 0, again.stderr)
            check(f"{name}: whole", tree(target) == tree(want[suffix]))
            check(f"{name}: nothing beside", sorted(
                p.name for p in place.iterdir()
                if "manifest" not in p.name) == ["mine", target.name],
                list(place.iterdir()))


def empty_dst_during_run(folder, source, want):
    target = folder / "out"
    stopped = Stopped(argv(source, target), folder, "rename@2=stop")
    target.mkdir()
    status, err = stopped.go_on()
    check("empty directory is filled", status == 0, err)
    check("empty directory: whole", tree(target) == tree(want[""]))


def second_writer_during_publish(folder, source, want):
    """However far the first run is, the second is refused and touches
    nothing."""
    other = folder / "other.safetensors"
    make_source(other, 2)
    for suffix in ("", ".pt"):
        for more in ([], ["--overwrite"]):
            calls = ["rename@1", "rename@2", "unlink@2", "fsync@1", "fsync@2",
                     "unlink@3"]
            for fault in calls:
                place = folder / f"{fault}{suffix}{len(more)}"
                place.mkdir()
                target = place / f"out{suffix}"
                name = f"second_writer_during_publish: {fault} {target.name} "
                if more:  # another checkpoint is replaced
                    run(argv(other, target))
                try:
                    first = Stopped(argv(source, target, *more), place,
                                    f"{fault}=stop")
                except NeverStopped:
                    continue  # this way of publishing has no such call
                second = run(argv(source, target, "--overwrite"))
                check(f"{name}: refused", second.returncode == 6,
                      f"{second.returncode} {second.stderr}")
                resumed = run(argv(source, target, "--resume",
                                   "--overwrite"))
                check(f"{name}: --resume is refused",
                      resumed.returncode == 6, resumed.stderr)
                status, err = first.go_on()
                check(f"{name}: first is done", status == 0, err)
                check(f"{name}: whole", tree(target) == tree(want[suffix]))
                rest = [p.name for p in place.iterdir()
                        if "manifest" not in p.name]
                check(f"{name}: nothing beside", rest == [target.name], rest)


def two_writers_race(folder, source, want):
    """Many at once, all with --overwrite: DST is whole at any time."""
    target = folder / "out"
    run(argv(source, target))
    # A different file is replaced.
    odd = folder / "odd.safetensors"
    make_source(odd, 2)
    for _ in range(6):
        run(argv(odd, target, "--overwrite"))
        children = [subprocess.Popen(
            list(map(str, argv(source, target, "--overwrite", "-q"))),
            stderr=subprocess.PIPE, text=True) for _ in range(4)]
        for child in children:
            _, err = child.communicate(timeout=HANG)
            check("two_writers_race: done or refused",
                  child.returncode == 0 or "another process" in err,
                  f"{child.returncode} {err}")
        check("two_writers_race: whole", tree(target) == tree(want[""]))
    rest = sorted(p.name for p in folder.iterdir())
    check("two_writers_race: nothing beside",
          rest == ["odd.safetensors", "out"], rest)


def overwrite_of_no_checkpoint(folder, source, want):
    def make(name, files):
        for file in files:
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("precious")
        return folder / name

    places = {
        "src": make("src", ["src/main.c", "notes.txt"]),
        "home": make("home", [".bashrc", ".ssh/id", "thesis.tex"]),
        "runs": make("runs", ["a/model.txt", "b/model.txt"]),
    }
    repository = folder / "repository"
    shutil.copytree(want[""], repository)
    (repository / ".ckpt-manifest.json").unlink(missing_ok=True)
    (repository / ".git").mkdir()
    (repository / ".git" / "HEAD").write_text("ref")
    places[".git"] = repository
    for name, place in places.items():
        before = tree(place)
        for more in (["--overwrite"], ["--overwrite", "-n"],
                     ["--if-exists", "replace"]):
            done = run(argv(source, place, *more))
            what = f"overwrite_of_no_checkpoint: {name} {more}"
            check(what, done.returncode == 5,
                  f"{done.returncode} {done.stderr}")
            check(f"{what}: left", tree(place) == before)
            check(f"{what}: names it", any(
                p.name in done.stderr for p in place.iterdir()), done.stderr)
    # A checkpoint that something else wrote counts as one.
    foreign = folder / "foreign"
    shutil.copytree(want[""], foreign)
    (foreign / ".ckpt-manifest.json").unlink(missing_ok=True)
    done = run(argv(source, foreign, "--overwrite"))
    check("a checkpoint is replaced", done.returncode == 0, done.stderr)


STRANGERS = ["train.py", "src/main.c", "thesis.pt", "run1/model.safetensors"]


def refused(words, place, stranger, what, *options):
    """Exit status 5, dry or not, with its name, and everything stays."""
    path = place / stranger
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"precious")
    before = tree(place)
    for more in options:
        done = run([*words, "--overwrite", *more])
        check(f"{what} {stranger} {more}", done.returncode == 5,
              f"{done.returncode} {done.stderr}")
        named = stranger.split("/")[0]
        check(f"{what} {stranger}: named", named in done.stderr, done.stderr)
    check(f"{what} {stranger}: left", tree(place) == before)
    path.unlink()
    if path.parent != place:
        path.parent.rmdir()


def overwrite_of_own_output(folder, source, want):
    """A job script that runs again over its own output, in every format, with
    and without a manifest. A single foreign file is refused."""
    cases = [(name, ["convert", DATA / case / "ckpt"],
              ["--to", name.split(",")[0]])
             for name, case in ONE_OF_EACH.items()]
    cases += [(case.name, ["reshard", case / "ckpt"], ["--dp", "2"])
              for case in sorted((DATA / "runs").iterdir())
              if (case / "ckpt").is_dir()][::1 if FULL else 4]
    for number, (name, words, more) in enumerate(cases):
        what = f"overwrite_of_own_output: {name}"
        out = folder / f"out{number}"
        command = [CKPT, *words, out, *more, "-q", "--no-fsync"]
        first = run(command)
        if first.returncode and "runs" in str(words[1]):
            continue  # no other job writes it either
        check(what, first.returncode == 0, first.stderr)
        if not out.is_dir():
            continue
        stranger = STRANGERS[number % len(STRANGERS)]
        refused(command, out, stranger, what, ["-n"], [])
        for option in ([], ["--no-manifest"], []):
            again = run([*command, "--overwrite", *option])
            check(f"{what} {option}", again.returncode == 0, again.stderr)
        (out / ".ckpt-manifest.json").unlink(missing_ok=True)
        refused(command, out, STRANGERS[(number + 1) % len(STRANGERS)], what,
                ["-n"])


def overwrite_of_what_others_wrote(folder, source, want):
    """The goldens: everything that their frameworks leave belongs to a
    checkpoint."""
    for case in sorted(DATA.glob("*/*/case.json")):
        place = case.parent / "ckpt"
        if case.parts[-3] == "bad" or not place.is_dir():
            continue
        opened = run([CKPT, "inspect", place, "-q"])
        if opened.returncode:
            continue  # opened file by file
        if not FULL and int(hashlib.sha256(
                str(place).encode()).hexdigest(), 16) % 12:
            continue
        # In a folder of many models only one is read.
        many = case.parts[-2] in ("all_dtypes", "container_variants")
        done = run(argv(source, place, "--overwrite", "-n"))
        check(f"overwrite_of_what_others_wrote: {place}",
              done.returncode == (5 if many else 0),
              f"{done.returncode} {done.stderr}")


def overwrite_of_a_file(folder, source, want):
    """A file that no reader knows is not replaced; an empty one is."""
    for name, text in (("thesis.pt", b"Chapter 1"), ("a.pt", b"PK no zip")):
        place = folder / name
        place.write_bytes(text)
        for more in ([], ["-n"]):
            done = run([CKPT, "unshard", source, place, "--overwrite", *more])
            check(f"overwrite_of_a_file: {name} {more}",
                  done.returncode == 5 and name in done.stderr,
                  f"{done.returncode} {done.stderr}")
        check(f"overwrite_of_a_file: {name}: left",
              place.read_bytes() == text)
    place = folder / "empty.pt"
    place.touch()
    for _ in range(2):
        done = run(argv(source, place, "--overwrite"))
        check("overwrite_of_a_file: empty, own", done.returncode == 0,
              done.stderr)
    device = run([CKPT, "convert", source, "/dev/full", "--to", "dcp"])
    check("overwrite_of_a_file: a device", device.returncode == 2
          and "device" in device.stderr, device.stderr)


def overwrite_of_a_parent(folder, source, want):
    """Nothing is staged where the source or the working directory is."""
    inner = folder / "projects" / "one" / "work"
    inner.mkdir(parents=True)
    shutil.copy(source, inner / "model.safetensors")
    shutil.copy(source, inner.parent / "model.safetensors")
    shutil.copy(source, inner.parent.parent / "model.safetensors")
    before = tree(folder)
    for target in ("..", ".", "../..", inner.parent, inner.parent.parent):
        for more in (["--overwrite"], ["--overwrite", "-n"], []):
            for what, status in ((source, 5), ("model.safetensors", 2)):
                done = run(argv(what, Path(target), *more), cwd=inner)
                check(f"overwrite_of_a_parent: {what} {target} {more}",
                      done.returncode == status,
                      f"{done.returncode} {done.stderr}")
            # The other step is in it, seen from elsewhere.
            if Path(target).is_absolute():
                done = run([CKPT, "salvage", source, target, "--like",
                            inner / "model.safetensors", *more], cwd="/")
                check(f"overwrite_of_a_parent: {target} {more}, --like",
                      done.returncode == 5, f"{done.returncode} {done.stderr}")
    check("overwrite_of_a_parent: left", tree(folder) == before)
    check("overwrite_of_a_parent: nothing staged",
          not list(folder.rglob("*ckpt-*")), list(folder.rglob("*ckpt-*")))


def if_exists(folder, source, want):
    target = folder / "out"
    target.mkdir()
    (target / "mine").write_text("mine")
    fail = run(argv(source, target, "--if-exists", "fail"))
    check("if_exists fail", fail.returncode == 5, fail.stderr)
    skip = run(argv(source, target, "--if-exists", "skip"))
    check("if_exists skip", skip.returncode == 0 and str(target) in
          skip.stderr, f"{skip.returncode} {skip.stderr}")
    check("if_exists skip: left", (target / "mine").exists())
    other = folder / "other"
    made = run(argv(source, other, "--if-exists", "skip"))
    check("if_exists skip: written where nothing is", made.returncode == 0
          and tree(other) == tree(want[""]), made.stderr)
    replaced = run(argv(source, other, "--if-exists", "replace"))
    check("if_exists replace", replaced.returncode == 0, replaced.stderr)
    wrong = run(argv(source, other, "--if-exists", "maybe"))
    check("if_exists: usage", wrong.returncode == 2, wrong.stderr)


def staging_is_a_link(folder, source, want):
    """Nothing behind a link is touched, and the link is named."""
    precious = folder / "precious"
    precious.mkdir()
    (precious / "mine").write_text("mine")
    for kind in ("staging", "lock"):
        target = folder / kind
        link = folder / f".{kind}.ckpt-{kind}"
        link.symlink_to(precious if kind == "staging" else precious / "mine")
        for more in ([], ["--resume"], ["--overwrite"]):
            done = run(argv(source, target, *more))
            check(f"staging_is_a_link: {kind} {more}",
                  done.returncode in (6, 8), f"{done.returncode}")
            check("staging_is_a_link: named", link.name in done.stderr,
                  done.stderr)
        check("staging_is_a_link: left",
              (precious / "mine").read_text() == "mine")
        check("staging_is_a_link: no target", not target.exists())
    # Also inside a staging directory that is resumed.
    target = folder / "inside"
    staging = folder / ".inside.ckpt-staging"
    stopped = Stopped(argv(source, target), folder, "rename@1=stop")
    stopped.child.kill()
    stopped.child.wait()
    file = next(p for p in staging.rglob("*.safetensors"))
    size = file.stat().st_size
    file.unlink()
    outside = folder / "outside"
    outside.write_bytes(b"x" * size)
    os.link(outside, file)
    done = run(argv(source, target, "--resume"))
    check("a hard link in the staging", done.returncode == 0, done.stderr)
    check("a hard link: whole", tree(target) == tree(want[""]))
    check("a hard link: left", outside.read_bytes() == b"x" * size)


def source_changes(folder, source, want):
    """No mixture, from reading its headers to the rename."""
    def rewrite(path):
        data = bytearray(path.read_bytes())
        data[-4] ^= 1
        path.write_bytes(data)

    def rewrite_same_time(path):
        facts = path.stat()
        rewrite(path)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def replace(path):
        other = path.with_suffix(".new")
        shutil.copy2(path, other)
        rewrite_same_time(other)
        os.replace(other, path)

    def cut(path):
        os.truncate(path, path.stat().st_size // 2)

    # Whatever changes after the last check was not read: no mixture.
    calls = {"early": "mkdir@1", "late": "fdatasync@1"}
    for when, call in calls.items():
        for harm in (rewrite, rewrite_same_time, replace, cut, os.unlink):
            for victim in ("model.safetensors", "config.json"):
                name = f"source_changes: {when} {harm.__name__} {victim}"
                place = folder / name.replace(" ", "_").replace(":", "")
                (place / "in").mkdir(parents=True)
                shutil.copy2(source, place / "in" / "model.safetensors")
                (place / "in" / "config.json").write_text("{\"a\": 1}")
                target = place / "to" / "out"
                target.parent.mkdir()
                stopped = Stopped(argv(place / "in", target), place / "to",
                                  f"{call}=stop")
                harm(place / "in" / victim)
                status, err = stopped.go_on()
                check(name, status == 6, f"{status} {err}")
                check(f"{name}: says so", "source changed" in err
                      and victim in err, err)
                check(f"{name}: nothing is left",
                      not list(target.parent.iterdir()),
                      list(target.parent.iterdir()))


def faulty(words, root, fault):
    return run(words, env={**os.environ, "LD_PRELOAD": str(SHIM),
                           "FAULTS": fault, "FAULTS_ROOT": str(root)})


def plain_renames_only(folder, source, want):
    """File systems that know neither RENAME_NOREPLACE nor RENAME_EXCHANGE
    (EINVAL)."""
    for suffix in ("", ".pt"):
        place = folder / f"new{suffix}"
        place.mkdir()
        target = place / f"out{suffix}"
        done = faulty(argv(source, target), place, "rename@2=22")
        check(f"plain_renames_only: new {target.name}", done.returncode == 0,
              done.stderr)
        check("plain_renames_only: whole", tree(target) == tree(want[suffix]))
    other = folder / "other.safetensors"
    make_source(other, 2)
    for number, fault in enumerate(
            ("rename@4=22", "rename@4=22,rename@5=5",
             "rename@4=22,rename@6=5", "rename@4=22,rename@6=kill",
             "rename@4=22,rename@5=kill")):
        place = folder / str(number)
        place.mkdir()
        target = place / "out"
        run(argv(other, target))
        before = tree(target)
        name = f"plain_renames_only: {fault}"
        done = faulty(argv(source, target, "--overwrite"), place, fault)
        if number == 0:
            check(name, done.returncode == 0, done.stderr)
            check(f"{name}: whole", tree(target) == tree(want[""]))
            continue
        check(name, done.returncode in (6, -9), done.stderr)
        # The old one is there, or the next run puts it back.
        refused = run(argv(source, target))
        check(f"{name}: refused", refused.returncode == 5, refused.stderr)
        check(f"{name}: the old one", tree(target) == before)
        again = run(argv(source, target, "--overwrite", "--resume"))
        check(f"{name}: replaced", again.returncode == 0, again.stderr)
        check(f"{name}: whole", tree(target) == tree(want[""]))
        rest = [p.name for p in place.iterdir()]
        check(f"{name}: nothing beside", rest == ["out"], rest)


def after_the_rename(folder, source, want):
    """DST is in place. Later failures are reported, but are no reason to doubt
    it."""
    for name, suffix, more, fault, status, said in (
            ("nfs_leftovers", ".pt", [], "rmdir@1+=39", 0, "not be removed"),
            ("nfs_leftovers, replaced", "", ["--overwrite"],
             "rmdir@1+=39", 0, "not be removed"),
            ("parent_sync_fails", ".pt", [], "fsync@2=5", 6, "in its place"),
            ("parent_sync_fails", "", [], "fsync@2=5", 6, "in its place"),
            ("parent_sync_fails, replaced", "", ["--overwrite"], "fsync@2=5",
             6, "in its place")):
        place = folder / f"{name}{suffix}".replace(" ", "_")
        place.mkdir()
        target = place / f"out{suffix}"
        if more:
            run(argv(source, target))
        done = faulty(argv(source, target, *more), place, fault)
        check(f"{name} {target.name}", done.returncode == status,
              f"{done.returncode} {done.stderr}")
        check(f"{name} {target.name}: says so", said in done.stderr,
              done.stderr)
        check(f"{name} {target.name}: whole",
              tree(target) == tree(want[suffix]))
        check(f"{name} {target.name}: no advice to resume",
              "--resume" not in done.stderr, done.stderr)


def rotted_source_is_found(folder, source, want):
    """A source that ckpt wrote, with a bit flipped since, is found whatever
    happens to its names and row order on the way."""
    data = DATA / "hf"
    for case, to in (("deepseek_v2_bf16", "megatron_torch_dist"),
                     ("gemma2_f32", "olmo_core"),
                     ("gemma2_f32", "safetensors"),
                     ("gemma2_f32", "megatron_torch_dist")):
        name = f"rotted_source_is_found: {case} to {to}"
        own = folder / f"{case}_{to}"
        done = run([CKPT, "convert", data / case / "ckpt", own, "--to",
                    "safetensors"])
        check(f"{name}: made", done.returncode == 0, done.stderr)
        words = [CKPT, "convert", own, folder / f"{own.name}_out", "--to", to]
        sound = run([*words, "-n"])
        if sound.returncode == 5:
            continue  # no rules for this pair
        file = next(own.glob("*.safetensors"))
        data_bytes = file.read_bytes()
        begin = 8 + int.from_bytes(data_bytes[:8], "little")
        for at in (begin, (begin + len(data_bytes)) // 2,
                   len(data_bytes) - 1):
            rotten = bytearray(data_bytes)
            rotten[at] ^= 1
            file.write_bytes(rotten)
            done = run(words)
            check(f"{name}, byte {at}", done.returncode in (4, 5),
                  f"{done.returncode} {done.stderr}")
            check(f"{name}, byte {at}: nothing is written",
                  not (folder / f"{own.name}_out").exists())
            # When told to, it copies what is there.
        done = run([*words, "--ignore-checksums"])
        check(f"{name}: --ignore-checksums", done.returncode in (0, 5),
              done.stderr)
        shutil.rmtree(folder / f"{own.name}_out", ignore_errors=True)
        file.write_bytes(data_bytes)
        done = run(words)
        check(f"{name}: sound", done.returncode == 0, done.stderr)


def target_is_a_link(folder, source, want):
    """What a target's name links to is never written, replaced or unlinked, and
    the refusal comes before the work is done."""
    precious = folder / "precious"
    precious.mkdir()
    (folder / "empty").mkdir()
    (precious / "mine").write_text("mine")
    for name, to in (("directory", precious), ("empty_one", folder / "empty"),
                     ("file.pt", precious / "mine"), ("nothing", "nowhere"),
                     ("nothing.pt", "nowhere")):
        link = folder / name
        link.symlink_to(to)
        for more in ([], ["--overwrite"], ["-n"], ["--resume"]):
            done = run(argv(source, link, *more))
            what = f"target_is_a_link: {name} {more}"
            check(what, done.returncode == 5, f"{done.returncode}")
            check(f"{what}: says so", "is a link to" in done.stderr and
                  "hint: " in done.stderr, done.stderr)
            check(f"{what}: stays", link.is_symlink() and
                  str(link.readlink()) == str(to))
    check("target_is_a_link: left",
          (precious / "mine").read_text() == "mine")
    check("target_is_a_link: nothing beside", not list(
        folder.glob(".*.ckpt-staging")), list(folder.iterdir()))
    done = run([CKPT, "convert", source, "", "--to", "safetensors"])
    check("no name", done.returncode == 2 and "empty" in done.stderr,
          done.stderr)


def main():
    global CKPT, SHIM, FULL
    import argparse
    import tempfile
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--faults", required=True)
    parser.add_argument("-k", default="")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    FULL = args.full
    CKPT, SHIM = Path(args.ckpt).resolve(), Path(args.faults).resolve()
    if not SHIM.exists():
        sys.exit(f"no {SHIM}: build the target ckpt_faults")
    with tempfile.TemporaryDirectory(prefix="ckpt_publish_") as temp:
        folder = Path(temp)
        source = folder / "source.safetensors"
        make_source(source, 1)
        (folder / "want").mkdir()
        want = {"": folder / "want" / "out", ".pt": folder / "want" / "out.pt"}
        for target in want.values():
            done = run(argv(source, target))
            check("plain run", done.returncode == 0, done.stderr)
        for test in (dst_appears_during_run, empty_dst_during_run,
                     second_writer_during_publish, two_writers_race,
                     overwrite_of_no_checkpoint, overwrite_of_own_output,
                     overwrite_of_what_others_wrote, overwrite_of_a_file,
                     overwrite_of_a_parent, if_exists,
                     staging_is_a_link, target_is_a_link, source_changes,
                     plain_renames_only, after_the_rename,
                     rotted_source_is_found):
            if args.k not in test.__name__:
                continue
            place = folder / test.__name__
            place.mkdir()
            begin = time.monotonic()
            try:
                test(place, source, want)
            except Exception as error:  # the others still run
                check(test.__name__, False, repr(error))
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s",
                  flush=True)
    print(f"{PASSED} passed, {FAILED} failed, 0 skipped")
    sys.exit(FAILED != 0)


if __name__ == "__main__":
    main()
