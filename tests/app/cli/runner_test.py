#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/run.py: which suites run when, what is named of their costs, and how a
suite that fails, hangs on or leaves files behind is told."""

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

from support import ROOT, Suite, check, check_equal

RUN = ROOT / "tests/run.py"
CKPT = None  # set by prepare


def load():
    spec = importlib.util.spec_from_file_location("tests_run", RUN)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    return run


def options(**given):
    usual = dict(names=[], R=None, all=False, whole=False, k=[], turn=None)
    return types.SimpleNamespace(**{**usual, **given})


def names(chosen):
    return {row.name for row, _ in chosen}


def tiers(folder):
    """The turns together run all that the first tier leaves out, once each,
    beside the first tier; --all runs everything but what needs a GPU."""
    run = load()
    rows = run.read_table()
    for sanitized in (False, True):
        build = types.SimpleNamespace(sanitized=sanitized)
        first = run.choose(rows, build, options())
        check(first and not any(whole for _, whole in first), "first tier")
        check(all(row.tier != "gpu" for row, _ in first), "a GPU is needed")
        seen = []
        for turn in range(run.TURNS):
            chosen = run.choose(rows, build, options(turn=turn))
            check(names(first) <= names(chosen), f"turn {turn}")
            seen += [row.name for row, whole in chosen if whole]
        check_equal(sorted(seen), sorted(
            row.name for row in rows if row.takes_turns(sanitized)), "turns")
    everything = run.choose(rows, types.SimpleNamespace(sanitized=False),
                            options(all=True))
    check_equal(names(everything),
                {row.name for row in rows if row.tier != "gpu"}, "--all")
    check(all(whole for _, whole in everything), "--all leaves out cases")


def turns_are_balanced(folder):
    run = load()
    for sanitized in (False, True):
        rows = [row for row in run.read_table() if row.takes_turns(sanitized)]
        check(rows, "no suite takes turns")
        costs = [sum(row.whole for row in group) for group in run.turns(rows)]
        largest = max(row.whole for row in rows)
        check(max(costs) - min(costs) <= largest, f"turns cost {costs}")


def table(folder):
    """The table has each suite, once."""
    check_equal(load().check_table(), [], "tests/suites.txt")


def costs(folder):
    """A suite that doubles is named, on a machine of any speed; a busy one
    names none."""
    run = load()
    for speed in (0.5, 1, 3):
        jobs = [types.SimpleNamespace(
            name=f"suite{n}", status="passed", cpu=speed * (20 + n),
            whole=False, row=types.SimpleNamespace(cost=20 + n))
            for n in range(40)]
        check_equal(run.compare_costs(jobs), [], f"machine {speed}")
        jobs[7].cpu *= 2.5
        said = run.compare_costs(jobs)
        check(len(said) == 1 and said[0].startswith("suite7 took"), str(said))


def run_on(folder, suite, *more, binary="not run"):
    """tests/run.py over a tree of one suite."""
    tree = folder / "tree"
    app = tree / "tests/app/one"
    app.mkdir(parents=True, exist_ok=True)
    (tree / "tests/run.py").write_text(RUN.read_text())
    (tree / "tests/suites.txt").write_text("one first 1 1 first\n")
    (app / "one_test.py").write_text(suite)
    build = folder / "build"
    (build / "bin").mkdir(parents=True, exist_ok=True)
    (build / "bin/ckpt").write_text(binary)
    (build / "CMakeCache.txt").write_text("CKPT_SANITIZE:STRING=\n")
    done = subprocess.run(
        [sys.executable, "-B", tree / "tests/run.py", "--build", build,
         "--bare", *more],
        capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout + done.stderr


ENDS = {
    "passed": ("print('well')", 0, "suites: 1 passed, 0 failed, 0 skipped"),
    "failed": ("print('why'); raise SystemExit(1)", 1, "why"),
    "raised": ("1 / 0", 1, "ZeroDivisionError"),
    "killed": ("import os; os.kill(os.getpid(), 9)", 1, "ended with -9"),
    "skipped": ("print('no peer'); raise SystemExit(77)", 0, "no peer"),
    "leaves": ("import tempfile; tempfile.mkdtemp(prefix='mine')", 0,
               "note: one left behind mine"),
}


def ends(folder, name):
    suite, code, said = ENDS[name]
    got, text = run_on(folder, suite)
    check_equal(got, code, text)
    check(said in text, text)


def children_end(folder):
    """What a suite started and left running is gone when it has ended."""
    code, text = run_on(folder, "import subprocess\n"
                        "child = subprocess.Popen(['sleep', '1000'])\n"
                        f"open({str(folder / 'pid')!r}, 'w').write("
                        "str(child.pid))\n")
    check_equal(code, 0, text)
    pid = int((folder / "pid").read_text())
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return
    check(text.split()[2] == "Z", text)


def resumed(folder):
    """--all --resume runs what has not passed over the same binary."""
    count = folder / "count"
    suite = f"open({str(count)!r}, 'a').write('x')\n"
    for expected, more in ((1, ["--all"]), (1, ["--all", "--resume"]),
                           (2, ["--all"])):
        code, text = run_on(folder, suite, *more)
        check_equal(code, 0, text)
        check_equal(len(count.read_text()), expected, f"{more}: {text}")
    run_on(folder, suite, "--all", "--resume", binary="another")
    check_equal(len(count.read_text()), 3, "another binary")


def last(folder):
    """The last run's costs are kept for whoever edits the table."""
    run_on(folder, "pass")
    said = json.loads((folder / "build/tests/last.json").read_text())
    check_equal(sorted(said["one"]), ["cpu", "seconds", "status"], "last.json")


def prepare(suite, ckpt):
    for function in (tiers, turns_are_balanced, table, costs, children_end,
                     resumed, last):
        suite.add(function.__name__, function)
    for name in ENDS:
        suite.add(f"a suite that {name}", ends, name)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
