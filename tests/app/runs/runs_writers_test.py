#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps that trainers' own code wrote: the cases of tests/data/writers
(generators/runs_automodel.py, runs_composer.py).

What is opened is compared with the live model and optimizer. Every file of a
step is accounted for, and each is removed in turn: what the loader asks for is
damage, the rest is in the case's "spare".
"""

import fnmatch
import json
import shutil

from support import DATA, Suite, check, check_equal, digest, read_safetensors

CKPT = None  # set by prepare
CASES = sorted(path.parent
               for path in (DATA / "writers").glob("*/*/case.json"))


def facts_of(case):
    return json.loads((case / "case.json").read_text())


def root_of(case, folder):
    """A root with the trainer's links, which the data don't have."""
    root = folder / "run"
    shutil.copytree(case / "ckpt", root)
    for name, target in facts_of(case).get("links", {}).items():
        (root / name).symlink_to(target)
    return root


def wanted(case):
    found = {}
    for what in ("expected", "expected_optim"):
        path = case / f"{what}.safetensors"
        if path.exists():
            found.update(read_safetensors(path))
    return {name: (tensor.shape, digest(tensor.data))
            for name, tensor in found.items()}


def check_live(case, path):
    found = CKPT.inspect(path, "--digest")
    got = {t["name"]: (tuple(t["shape"]), t["digest"])
           for t in found["tensors"]}
    # Composer has torch's random numbers beside the states.
    got.pop("rng.0.torch", None)
    check_equal(got, wanted(case), "tensors")
    said = [p for p in found["problems"] if p["severity"] != "note"]
    check_equal(said, [], "problems")
    return found


def test_open(folder, case):
    facts = facts_of(case)
    root = root_of(case, folder)
    step = root / facts["newest"]
    for path in (root, step):
        found = check_live(case, path)
        check_equal(found["trainer"]["name"], facts["name"], "trainer")
        check(found["trainer"]["step"] in (facts["step"], None), f"{path}")
    check_equal(CKPT.inspect(root)["trainer"]["step"], facts["step"], "step")
    CKPT.ok("verify", root)
    if step.is_dir():
        files = {p.relative_to(step).as_posix() for p in step.rglob("*")
                 if p.is_file()}
        check_equal({f["path"] for f in CKPT.inspect(step)["file_list"]},
                    files, "files")


def test_loss(folder, case):
    facts = facts_of(case)
    root = root_of(case, folder)
    step = root / facts["newest"]
    for path in sorted(p for p in step.rglob("*") if p.is_file()):
        name = path.relative_to(step).as_posix()
        spare = any(fnmatch.fnmatch(name, one) for one in facts["spare"])
        path.rename(folder / "aside")
        result = CKPT.run("verify", step)
        check((result.code == 0) == spare, f"{name}: {result}")
        (folder / "aside").rename(path)


def test_reshard(folder, case):
    facts = facts_of(case)
    root = root_of(case, folder)
    for ranks in (1, 3):
        out = folder / str(ranks) / facts["newest"]
        out.parent.mkdir()
        CKPT.ok("reshard", root, out, "--dp", ranks)
        check_live(case, out)
        CKPT.ok("verify", out)
        for pattern in facts["ranks"]:
            check_equal(len(list(out.glob(pattern))), ranks, pattern)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        name = f"{case.parent.name}, {case.name}"
        suite.add(name, test_open, case)
        if (case / "ckpt" / facts_of(case)["newest"]).is_dir():
            suite.add(f"{name}: what is lost", test_loss, case)
            suite.add(f"{name}: for other ranks", test_reshard, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
