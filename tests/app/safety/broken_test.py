#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each golden of many files, broken in every way that applies to it.

Required, whatever is broken: a documented exit status, bounded time and memory,
no target after a refusal, and a message that names what is broken. What a
checkpoint alone can't show is listed in the table that this test prints;
comparing it with a sound copy shows it.
"""

import atexit
import collections
import multiprocessing
import os
import shutil

import breakages
from dist_cases import dist_units
from support import Suite, check, read_safetensors

CKPT = None
# Breaks the copies in a process of its own, because the peak memory that the
# system reports for a child includes its parent's at the fork, torch and all.
WORKER = None
SECONDS = 10  # of processor
MEMORY = 200 << 20
REFUSALS = {3, 4, 5, 8}
OUTCOMES = collections.defaultdict(collections.Counter)
REASONS = collections.defaultdict(set)


def run(folder, *args):
    """Runs ckpt in an empty folder, under the limits that always apply."""
    cwd = folder / "cwd"
    cwd.mkdir(exist_ok=True)
    result = CKPT.run(*args, cwd=cwd)
    check(result.code in REFUSALS | {0, 1},
          f"exit status {result.code} is a crash or a bug\n{errors(result)}")
    check(result.cpu <= SECONDS,
          f"{result.cpu:.1f} s of processor\n{errors(result)}")
    check(CKPT.sanitized or result.rss <= MEMORY,
          f"{result.rss >> 20} MiB of memory\n{errors(result)}")
    check("Sanitizer" not in result.err, f"{result}")
    check(not list(cwd.iterdir()), f"files were written: {result}")
    return result


def errors(*results):
    """What they printed, without the documents on stdout."""
    return "\n".join(f"$ {r.line}\n[exit {r.code}] " +
                     (r.err or r.out[:200]).strip()[:600] for r in results)


def said(result):
    return result.out + result.err


def test_broken(folder, unit, breakage):
    copy = folder / "copy"
    shutil.copytree(unit.path, copy)
    wound = WORKER.apply(breakage, [breakages.root_of(copy)])
    if wound is None:
        OUTCOMES[breakage.__name__]["does not apply"] += 1
        return
    leave = [o for name in unit.unreadable for o in ("--exclude", name)]
    inspect = run(folder, "inspect", copy, "--json", "--objects")
    deep = ("--deep",) if wound.deep else ()
    verify = run(folder, "verify", copy, *leave, *deep)
    lines = verify.out.splitlines()
    check(len(lines) == len(set(lines)) and ":  (" not in verify.out,
          f"said twice: {verify.out}")
    out = folder / "target" / "out.safetensors"
    out.parent.mkdir()
    unshard = run(folder, "unshard", copy, out, "--no-fsync", *leave)
    if unshard.code:
        left = os.listdir(out.parent)
        check(not left, f"a refused unshard left {left}\n{errors(unshard)}")
    OUTCOMES[breakage.__name__][
        f"inspect {inspect.code}, verify {verify.code}, "
        f"unshard {unshard.code}"] += 1
    judge(folder, unit, copy, wound, inspect, verify, unshard, out)
    if wound.unseen and not verify.code:
        REASONS[breakage.__name__].add(f"{unit.format}: {wound.unseen}")


def judge(folder, unit, copy, wound, inspect, verify, unshard, out):
    check(inspect.code != 1 and unshard.code != 1, errors(inspect, unshard))
    if inspect.code:
        check(verify.code, f"inspect refuses, verify does not\n{errors(verify)}")
        check(unshard.code, f"inspect refuses, unshard does not\n{errors(unshard)}")
    if verify.code:
        all_said = said(inspect) + said(verify) + said(unshard)
        check(any(name in all_said for name in wound.names),
              f"none of {wound.names} is named\n{errors(inspect, verify, unshard)}")
        check(unshard.code or not is_wrong(unit, out) or inspect.code == 0,
              errors(unshard))
    if wound.said and not inspect.code:
        check(wound.said in said(inspect) and wound.said in said(verify),
              f"nothing is said\n{errors(inspect, verify, unshard)}")
    if wound.harmless:
        if not verify.code:
            check(unshard.code == 0, errors(unshard))
            check(not is_wrong(unit, out), "harmless, but other contents")
        return
    if wound.unseen:
        if not verify.code:
            check_by_comparison(folder, unit, copy, unshard, out)
        return
    check(verify.code, f"verify finds nothing\n{errors(inspect, verify, unshard)}")
    check(unshard.code, f"unshard copies what verify refuses\n"
          f"{errors(verify, unshard)}")


def check_by_comparison(folder, unit, copy, unshard, out):
    """Invisible from inside; comparing with a sound copy shows it."""
    if unshard.code:
        # Main weights prove the weights to whatever reads all of them.
        result = run(folder, "verify", copy, "--deep")
        check(result.code == 1, f"unshard refuses, verify --deep does not\n"
              f"{errors(unshard, result)}")
        return
    if not is_wrong(unit, out):
        return
    leave = [o for name in unit.unreadable for o in ("--exclude", name)]
    result = run(folder, "verify", unit.path, copy, *leave)
    check(result.code == 1, f"two that differ are called the same\n{errors(result)}")


def is_wrong(unit, out):
    """Whether the written file holds anything but the peer's tensors."""
    if not out.exists():
        return False
    got = read_safetensors(out)
    return any(name not in got or got[name] != want
               for name, want in unit.all.items()
               if name not in unit.unreadable)


def print_table():
    print("\nbreakage           exit status: how many checkpoints")
    for name in [b.__name__ for b in breakages.ALL]:
        cells = ", ".join(f"{outcome}: {n}" for outcome, n in
                          sorted(OUTCOMES[name].items()))
        print(f"  {name:17}{cells}")
        for reason in sorted(REASONS[name]):
            print(f"  {'':17}not seen in {reason}")


def prepare(suite, ckpt):
    global CKPT, WORKER
    CKPT = ckpt
    WORKER = multiprocessing.get_context("spawn").Pool(1)
    for unit in dist_units():
        for breakage in breakages.ALL:
            suite.add(f"{unit.name}: {breakage.__name__}", test_broken, unit,
                      breakage)
    atexit.register(print_table)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
