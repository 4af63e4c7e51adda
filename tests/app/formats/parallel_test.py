#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt/parallel.h under mpirun: what 2, 3 and 4 processes saved, each from its
own memory, is what torch's own DCP loads and what one process reads; what they
load is what was saved; a save that does not come to its second phase leaves
nothing where the checkpoint would be."""

import os
import shutil
import subprocess
import sys
import warnings

import numpy
import torch
import torch.distributed.checkpoint
from object_server import Objects
from ranks_test import MPIRUN, job_environment
from seal_test import unlike_copies
from support import HANG, Suite, check, check_equal, read_safetensors

CKPT = None
TOOL = None
WANT = (numpy.arange(12)[:, None] * 1000 + numpy.arange(24)[None]).astype("f4")
NAMES = {"rows.weight", "columns.weight", "whole.weight"}


def job(count, *words, timeout=HANG, env=None):
    return subprocess.run(
        [*MPIRUN, "-n", str(count), TOOL, *map(str, words)], text=True,
        capture_output=True, timeout=timeout,
        env={**job_environment(), **(env or {})})


def ok(count, *words):
    result = job(count, *words)
    check_equal(result.returncode, 0, f"{words}: {result.stderr}")
    return result.stdout


def alone(path):
    """The tensors as one process reads them."""
    CKPT.ok("verify", path, "--deep")
    out = path.with_name(path.name + ".one.safetensors")
    CKPT.ok("unshard", path, out, "--if-exists", "replace")
    return read_safetensors(out)


def check_tensors(path):
    got = alone(path)
    check_equal(set(got), NAMES, "names")
    for name, tensor in got.items():
        check_equal(bytes(tensor.data), WANT.tobytes(), name)


def test_save(folder, count):
    """Saved with other numbers of files than processes, and changed
    meanwhile."""
    path = folder / "dcp"
    ok(count, "save", path, "dcp", "--between", "change")
    check_tensors(path)
    state = {name: torch.zeros(12, 24) for name in NAMES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about being one process
        torch.distributed.checkpoint.load(state, checkpoint_id=str(path),
                                          no_dist=True)
    for name, tensor in state.items():
        check(torch.equal(tensor, torch.from_numpy(WANT)), f"torch: {name}")
    files = list(path.glob("*.distcp"))
    check_equal(len(files), count, "a file for each process")
    # What only one rank has is cut evenly; of what all have, each writes a
    # part, or one of them all of it.
    ok(count, "save", folder / "one.safetensors", "safetensors")
    check_tensors(folder / "one.safetensors")
    ok(count, "load", path, folder / "got")
    for rank in range(count):
        check_equal((folder / f"got.{rank}").read_text().split(), ["same"] * 4,
                    f"what rank {rank} loaded")


def nothing_left(folder, name):
    check(not (folder / name).exists(), f"{name} is there")


def test_between(folder):
    path = folder / "step"
    ok(2, "save", path, "dcp", "--between", "drop")
    nothing_left(folder, "step")
    check_equal(list(folder.glob(".step.*staging*")), [], "what was staged")
    killed = job(2, "save", path, "dcp", "--between", "kill")
    check(killed.returncode != 0, f"{killed}")
    nothing_left(folder, "step")
    failed = job(3, "save", path, "dcp", "--between", "fail")
    check(failed.returncode != 0 and "rank 2 of 3" in failed.stderr,
          f"{failed.stderr}")
    nothing_left(folder, "step")
    # The next save replaces what the killed one left.
    ok(2, "save", path, "dcp")
    check_tensors(path)
    check_equal([p.name for p in folder.glob(".step*") if p.is_dir()], [],
                "what the killed save left")
    again = job(2, "save", path, "dcp")
    check("exists" in again.stderr, f"{again.stderr}")
    check_tensors(path)


def test_copies_that_differ(folder, count):
    """What a rule calls replicated and is not, written by several processes: as
    by one, it is refused, or the difference is said once and the manifest keeps
    it."""
    rules = unlike_copies(folder)

    def unshard(name, *words):
        return subprocess.run(
            [*MPIRUN, "-n", str(count), CKPT.path, "unshard", folder / "run",
             folder / name, "--shard-dims", rules, *words],
            text=True, capture_output=True, timeout=HANG, env=job_environment())

    refused = unshard("no.pt")
    check(refused.returncode == 4 and "norm.weight" in refused.stderr,
          f"{refused}")
    nothing_left(folder, "no.pt")
    done = unshard("out.pt", "--allow-replica-mismatch")
    check_equal(done.returncode, 0, done.stderr)
    told = (done.stderr + done.stdout).count("by at most 0.5 in 1 of 8")
    check_equal(told, 1, done.stderr)
    manifest = (folder / "out.pt.ckpt-manifest.json").read_text()
    check("its copies differ, by at most 0.5 in 1 of 8" in manifest, manifest)
    verdict = CKPT.run("verify", folder / "out.pt", "--json").want(1).json()
    check(verdict["verdict"] != "ok", f"{verdict}")


def test_store(folder):
    """To an object store: what two processes wrote into one spool is sent in
    the second phase, and nothing without one."""
    spool = folder / "spool"
    spool.mkdir()
    with Objects() as server:
        env = {**server.env, "CKPT_SPOOL": str(spool)}
        dropped = job(2, "save", "s3://b/step", "dcp", "--between", "drop",
                      env=env)
        check_equal(dropped.returncode, 0, dropped.stderr)
        check_equal(sorted(server.objects), [], "objects of a dropped save")
        done = job(2, "save", "s3://b/step", "dcp", "--between", "change",
                   env=env)
        check_equal(done.returncode, 0, done.stderr)
        check_equal([p for p in spool.rglob("*") if p.is_file()], [], "spool")
        for key, (data, *_) in server.objects.items():
            path = folder / key
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        check_equal(server.uploads, {}, "uploads that were left")
        again = job(2, "save", "s3://b/step", "dcp", env=env)
        check("exists" in again.stderr, again.stderr)
    check_tensors(folder / "step")


def prepare(suite, ckpt):
    global CKPT, TOOL
    CKPT = ckpt
    TOOL = os.path.join(os.path.dirname(ckpt.path), "parallel_tool")
    if not shutil.which("mpirun") or not os.path.exists(TOOL):
        print("skipped: mpirun or parallel_tool is missing")
        sys.exit(77)
    for count in (2, 3, 4):
        suite.add(f"save and load by {count}", test_save, count)
    suite.add("between the phases", test_between)
    for count in (2, 3):
        suite.add(f"copies that differ, of {count}", test_copies_that_differ,
                  count)
    suite.add("to an object store", test_store)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
