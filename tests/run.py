#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites of tests/suites.txt over a build. scripts/test.sh calls it.

    tests/run.py [NAME...] [-R REGEX]              the first tier, or those named
    tests/run.py --all [--resume]                  every case of every suite
    tests/run.py --turn COMMIT                     the first tier, and its turn
    tests/run.py --stress 20 --times 5             beside 20 busy processes
    tests/run.py NAME -k CASE -v                   cases of one suite, aloud

Suites in Python are forked from one process that has imported torch: importing
it takes two seconds of processor, and there are over a hundred suites. ctest,
which this replaces, starts each from nothing, knows no tiers, and measures the
clock, which says more about what else runs on the machine than about the suite.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "tests/app"
TIERS = ("first", "turn", "gpu")
TURNS = 8  # groups of the suites that take turns in CI
HANG = 3600  # seconds, so that only what hangs reaches it
# Suites that read the largest resident set of a child. It begins with that of
# the process that forked it, so these are given one of their own.
MEASURES = re.compile(r"\.rss\b|ru_maxrss")
# How a program with a peer in it ends: see peer.py.
ENDS = re.compile(r"^ *(serve|program)\(", re.M)
# What a suite may cost, in seconds of processor, before it is named.
GROWN = 2.0
SMALL = 10  # below this many seconds it is noise
FEW = 20  # suites that a median takes


class Row:
    """One suite, as tests/suites.txt says it."""

    def __init__(self, line):
        words = line.split(None, 5)
        self.name, self.tier, cost, whole, self.sanitized = words[:5]
        self.cost, self.whole = int(cost), int(whole)
        self.rest = words[5] if len(words) > 5 else ""
        self.command = self.rest.startswith("$ ")
        self.part, _, self.all = self.rest.partition(" | ")
        if (self.tier not in TIERS or self.cost > self.whole
                or self.sanitized not in ("first", "turn", "-")):
            raise ValueError(f"tests/suites.txt: {line}")

    def takes_turns(self, sanitized):
        """Whether the first tier leaves out some of it."""
        if sanitized:
            return self.sanitized == "turn"
        return self.tier == "turn" or (
            self.tier == "first" and self.whole > self.cost)


def read_table():
    lines = (ROOT / "tests/suites.txt").read_text().splitlines()
    return [Row(line) for line in lines if line and line[0] != "#"]


def python_suites():
    """name -> file, for each suite in Python."""
    return {path.name.removesuffix("_test.py"): path
            for path in sorted(APP.rglob("*_test.py"))}


def check_table():
    """What is wrong: suites that the table lacks or has in vain, and peers that
    could fall while they end."""
    rows, suites = read_table(), python_suites()
    names = [row.name for row in rows]
    wrong = [f"{name} is listed twice" for name in sorted(set(names))
             if names.count(name) > 1]
    wrong += [f"{name}: no tests/app/*/{name}_test.py" for name in names
              if name not in suites and not any(
                  row.name == name and row.command for row in rows)]
    wrong += [f"{path.relative_to(ROOT)} is not listed, so nothing runs it"
              for name, path in suites.items() if name not in names
              and not any(path.name in row.rest for row in rows)]
    wrong = [f"tests/suites.txt: {line}" for line in wrong]
    for path in sorted(APP.rglob("*_peer.py")):
        source = path.read_text()
        if "init_process_group" in source and not ENDS.search(source):
            wrong.append(f"{path.relative_to(ROOT)}: its ranks end by neither "
                         "serve() nor program()")
    return wrong


def folders():
    """Where suites find what they share."""
    return sorted({str(path.parent) for path in APP.rglob("*.py")})


class Build:
    def __init__(self, path):
        self.path = path.resolve()
        self.bin = self.path / "bin"
        cache = self.path / "CMakeCache.txt"
        if not cache.exists():
            sys.exit(f"error: no build at {path}: run scripts/build.sh")
        text = cache.read_text()
        found = re.search(r"^CKPT_SANITIZE:\w+=(.*)$", text, re.M)
        self.sanitized = bool(found and found[1])
        self.state = self.path / "tests"
        self.state.mkdir(exist_ok=True)


class Job:
    """A suite that runs, or has run."""

    def __init__(self, row, whole, build, options):
        self.row, self.build, self.options = row, build, options
        self.name, self.whole = row.name, whole
        self.log = build.state / f"{row.name}.log"
        self.status = self.seconds = self.cpu = None
        self.leftovers = []

    def words(self):
        """What the suite is run with."""
        row, values = self.row, dict(
            bin=self.build.bin, build=self.build.path, python=sys.executable)
        if row.command:
            return shlex.split(row.part.removeprefix("$ ").format(**values))
        words = shlex.split(row.part.format(**values))
        source = python_suites()[self.name].read_text()
        if self.build.sanitized:  # a process takes ten times as long
            words = without(without(words, "--faults"), "--one-in")
            words += ["--one-in", "4"] if "Suite(" in source else []
        elif self.whole:
            words = (shlex.split(row.all.format(**values)) if row.all
                     else without(words, "--one-in"))
        if self.options.all and takes_full(source):
            words += ["--full"]
        if self.options.shuffle is not None and "Suite(" in source:
            words += ["--shuffle", str(self.options.shuffle)]
        for text in self.options.k:
            words += ["-k", text]
        return words + (["-v"] if self.options.v else [])

    def start(self):
        self.begun = time.monotonic()
        # A folder of its own shows what a suite leaves behind.
        self.temp = tempfile.mkdtemp(prefix=f"ckpt_{self.name}_")
        os.chmod(self.temp, 0o755)  # some cases run as another user
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.child()
            except BaseException:  # the fork must not go on as its parent
                import traceback
                traceback.print_exc()
            finally:
                os._exit(70)

    def child(self):
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        # A case that is looked at by hand talks to the terminal.
        if not self.options.v:
            log = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
        os.environ["TMPDIR"] = self.temp
        if self.options.profile:
            os.environ["LLVM_PROFILE_FILE"] = str(
                Path(self.options.profile).resolve() / f"{self.name}-%m.profraw")
        tempfile.tempdir = None
        os.chdir(ROOT)
        words = self.words()
        if self.row.command:
            os.execvp(words[0], words)
        path = python_suites()[self.name]
        if MEASURES.search(path.read_text()):
            os.execv(sys.executable, [
                sys.executable, "-B", str(path), "--ckpt",
                str(self.build.bin / "ckpt"), *words])
        sys.argv = [str(path), "--ckpt", str(self.build.bin / "ckpt"), *words]
        sys.path[0] = str(path.parent)
        status = 0
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            status = end.code
            if isinstance(status, str):
                print(status)
                status = 77 if status.startswith("skipped: ") else 1
        sys.stdout.flush()
        sys.stderr.flush()
        end_children()
        # Threads of a suite that has ended hold nobody up.
        os._exit(status or 0)

    def ended(self, status, usage):
        self.seconds = time.monotonic() - self.begun
        self.cpu = usage.ru_utime + usage.ru_stime
        code = os.waitstatus_to_exitcode(status)
        text = self.text()
        self.status = ("skipped" if code == 77 or (
            self.row.tier == "gpu" and "skipped: " in text) else
            "passed" if code == 0 else "FAILED")
        self.code = code
        kill_group(self.pid)
        self.leftovers = sorted(os.listdir(self.temp))
        shutil.rmtree(self.temp, ignore_errors=True)

    def text(self):
        if self.options.v or not self.log.exists():
            return ""
        return self.log.read_text(errors="replace")


def end_children():
    """Kills what a suite has left running, and waits for it: what is not waited
    for is missing in what the suite is said to cost."""
    while True:
        for path in Path("/proc/self/task").glob("*/children"):
            for pid in path.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def takes_full(source):
    return "Suite(" in source or '"--full"' in source


def without(words, option):
    """The words without an option and its value."""
    while option in words:
        at = words.index(option)
        words = words[:at] + words[at + 2:]
    return words


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def choose(rows, build, options):
    """(suite, whether all of its cases are wanted), the longest first."""
    if options.names:
        known = {row.name: row for row in rows}
        absent = [name for name in options.names if name not in known]
        if absent:
            sys.exit(f"error: no suite {', '.join(absent)} in tests/suites.txt")
        chosen = [known[name] for name in options.names]
    elif options.R:
        chosen = [row for row in rows if re.search(options.R, row.name)]
    elif options.all:
        chosen = [row for row in rows if row.tier != "gpu"
                  and not (build.sanitized and row.sanitized == "-")]
    else:
        tiers = ("first", "turn") if options.whole else ("first",)
        chosen = [row for row in rows if (
            row.sanitized if build.sanitized else row.tier) in tiers]
    turn = []
    if options.turn is not None:
        turn = turns([row for row in rows if row.takes_turns(build.sanitized)]
                     )[options.turn]
    chosen += [row for row in turn if row not in chosen]
    whole = options.all or options.whole or bool(options.k)
    pairs = [(row, whole or row in turn) for row in chosen]
    return sorted(pairs, key=lambda pair: -expected(*pair))


def expected(row, whole):
    """Seconds of processor."""
    return row.whole if whole else row.cost


def turns(rows):
    """The rows in groups of about the same cost."""
    groups = [[] for _ in range(TURNS)]
    for row in sorted(rows, key=lambda row: (-row.whole, row.name)):
        min(groups, key=lambda group: sum(r.whole for r in group)).append(row)
    return groups


def fingerprint(build, row):
    """Changes when a suite would test something else."""
    sha = hashlib.sha256((build.bin / "ckpt").read_bytes())
    path = python_suites().get(row.name)
    sha.update(path.read_bytes() if path else b"")
    sha.update(row.rest.encode())
    return sha.hexdigest()


def preload(bare):
    """Imports in the parent what most suites import."""
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    os.environ["PYTHONPATH"] = os.pathsep.join(folders())
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.dont_write_bytecode = True
    sys.path[1:1] = folders()
    if bare:
        return
    peers = sorted(map(str, Path(sys.prefix).glob("transformers_*")))
    sys.path[1:1] = peers
    for name in ("numpy", "torch", "safetensors.torch",
                 "transformers.modeling_utils"):
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"note: Python has no {name}; what needs it is skipped")
    # A suite says for itself which peers it finds.
    del sys.path[1:1 + len(peers)]


class Runner:
    def __init__(self, build, options):
        self.build, self.options = build, options
        self.running = {}
        self.done = []
        self.passed = {}  # name -> fingerprint, for --resume

    def run(self, rows):
        rows = list(rows)
        total = len(rows)
        try:
            while rows or self.running:
                while rows and len(self.running) < self.options.j:
                    job = Job(*rows.pop(0), self.build, self.options)
                    job.start()
                    self.running[job.pid] = job
                self.reap(total)
        except KeyboardInterrupt:
            for pid in self.running:
                kill_group(pid)
            sys.exit(130)
        return self.done

    def reap(self, total):
        """Waits for one to end, and says how."""
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            for job in self.running.values():
                if time.monotonic() - job.begun > HANG:
                    kill_group(job.pid)
            time.sleep(0.02)
            return
        job = self.running.pop(pid, None)
        if job is None:
            return
        job.ended(status, usage)
        self.done.append(job)
        self.record(job)
        print(f"[{len(self.done):3}/{total}] {job.status:7} {job.name:22} "
              f"{job.seconds:7.1f} s, {job.cpu:6.1f} of processor", flush=True)
        if job.status == "FAILED":
            print(f"--- {job.name} ended with {job.code}:")
            print("\n".join(line[:500] for line in
                            job.text().splitlines()[-100:]))
            print(f"--- all of it: {job.log}", flush=True)
        elif job.status == "skipped":
            print("\n".join(job.text().splitlines()[-1:]), flush=True)

    def record(self, job):
        """Hours of a night are not lost with the machine."""
        if self.options.all and job.status == "passed":
            self.passed[job.name] = fingerprint(self.build, job.row)
            state_file(self.build).write_text(json.dumps(self.passed, indent=1))


def state_file(build):
    return build.state / "all.json"


def busy(count):
    """Processes that take the processors from the suites."""
    loop = [sys.executable, "-c", "while True: pass"]
    return [subprocess.Popen(loop) for _ in range(count)]


def compare_costs(jobs):
    """Names suites that have grown. Another machine is slower or faster as a
    whole, so what counts is a suite's share: its seconds over the table's,
    beside the median of all suites."""
    known = [(job, expected(job.row, job.whole)) for job in jobs
             if job.status == "passed"]
    if len(known) < FEW:
        return []
    median = statistics.median(job.cpu / cost for job, cost in known)
    return [f"{job.name} took {job.cpu:.0f} s of processor, where "
            f"{cost * median:.0f} were expected: tests/suites.txt says {cost}"
            for job, cost in known
            if job.cpu > SMALL and job.cpu > GROWN * median * cost]


def summary(jobs, build, options):
    counts = {status: sum(job.status == status for job in jobs)
              for status in ("passed", "FAILED", "skipped")}
    if not (options.k or options.all or build.sanitized):
        for line in compare_costs(jobs):
            print(f"note: {line}")
    for job in jobs:
        if job.leftovers:
            print(f"note: {job.name} left behind {', '.join(job.leftovers[:3])}")
    failed = [job.name for job in jobs if job.status == "FAILED"]
    if failed:
        print(f"FAILED: {' '.join(failed)}. One alone, in full: "
              f"scripts/test.sh -v {failed[0]}")
    print(f"suites: {counts['passed']} passed, {counts['FAILED']} failed, "
          f"{counts['skipped']} skipped", flush=True)
    return bool(failed)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="suites, whatever their tier")
    add("-R", metavar="REGEX", help="suites whose name matches")
    add("-k", metavar="TEXT", action="append", default=[],
        help="only cases whose name contains TEXT")
    add("-v", action="store_true", help="output of the suites as it comes")
    add("-j", type=int, default=(os.cpu_count() or 1) + 1, metavar="N",
        help="suites side by side (one more than there are processors, as they "
        "wait for servers, ranks and disks)")
    add("--build", type=Path, default=ROOT / "build", metavar="DIR")
    add("--whole", action="store_true",
        help="all cases, not the first tier's part of them: an hour")
    add("--all", action="store_true",
        help="every suite, and what takes too long for every day: hours")
    add("--resume", action="store_true",
        help="with --all: not what has passed before over the same binary")
    add("--turn", type=int, choices=range(TURNS), metavar="N",
        help=f"also group N of {TURNS} of the suites that take turns")
    add("--stress", type=int, metavar="N", default=0,
        help="beside N busy processes, in random order")
    add("--times", type=int, metavar="N", default=1, help="run it N times")
    add("--shuffle", type=int, metavar="SEED",
        help="suites and their cases in another order")
    add("--profile", metavar="DIR",
        help="where a build for coverage writes what each suite ran")
    add("--bare", action="store_true",
        help="import nothing beforehand: for one suite that needs no peer")
    add("--check", action="store_true",
        help="only hold the table against the suites that there are")
    add("--list", action="store_true", help="the suites, without running them")
    options = parser.parse_intermixed_args()
    if options.v:
        options.j = 1
    return options


def main():
    options = arguments()
    if options.check:
        wrong = check_table()
        print(*wrong or ["suites: ok"], sep="\n")
        return bool(wrong)
    build = Build(options.build)
    rows = choose(read_table(), build, options)
    passed = {}
    if options.all and options.resume and state_file(build).exists():
        passed = json.loads(state_file(build).read_text())
        rows = [(row, whole) for row, whole in rows
                if passed.get(row.name) != fingerprint(build, row)]
    if options.list:
        for row, whole in rows:
            print(f"{row.name:22} {expected(row, whole):5} s  {row.rest}")
        return 0
    if not options.bare and importlib.util.find_spec("torch") is None:
        absent = [row.name for row, _ in rows if not row.command]
        rows = [(row, whole) for row, whole in rows if row.command]
        print(f"note: this Python has no torch, which {len(absent)} suites "
              f"need; skipped: {' '.join(absent)}")
    if not rows:
        print("note: nothing to run, or all of it passed over this build")
        return 0
    preload(options.bare)
    loops = busy(options.stress)
    failed = False
    try:
        for round_number in range(options.times):
            if options.stress or options.shuffle is not None:
                seed = (options.shuffle or 0) + round_number
                random.Random(seed).shuffle(rows)
                print(f"round {round_number + 1} of {options.times}, "
                      f"seed {seed}", flush=True)
            runner = Runner(build, options)
            runner.passed = passed
            jobs = runner.run(rows)
            failed = summary(jobs, build, options) or failed
    finally:
        for loop in loops:
            loop.kill()
    (build.state / "last.json").write_text(json.dumps(
        {job.name: dict(status=job.status, seconds=round(job.seconds, 1),
                        cpu=round(job.cpu, 1)) for job in jobs}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
