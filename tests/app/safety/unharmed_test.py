#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No checkpoint that its writer left whole is ever called damaged.

Every golden is the work of its own writer, so whatever `verify` and
`verify --deep` hold against one is a false alarm.
"""

from support import DATA, Suite, check

CKPT = None  # set by prepare

# Folders of several checkpoints: each file is one.
APART = ("torch_legacy/", "torch_pt/", "safetensors/odd_but_valid",
         "safetensors/all_dtypes")


# Not whole, or not checkpoints.
OTHERS = ("torch_pt/dtensor_per_rank/", "torch_pt/whole_module/ckpt/torchscript")


def look(path, wrong, apart):
    """Whether it was opened."""
    for options in ((), ("--deep",)):
        result = CKPT.run("verify", path, "--json", *options)
        if result.code == 3 and apart:
            return False
        # A pickle that runs code is one of exactly such a writer.
        kinds = {one["kind"] for one in result.json()["problems"]
                 if one["severity"] == "damage"} if result.out else {result.err}
        kinds -= {"no_tensors"} if apart else set()
        if kinds - {"executes"} or (result.code and not kinds and not apart):
            wrong.append(f"{path.relative_to(DATA)}: {result}")
    return True


def test_unharmed(folder, cases):
    wrong, opened = [], 0
    for case in cases:
        if not str(case.relative_to(DATA)).startswith(APART):
            opened += look(case, wrong, False)
            continue
        for path in sorted(p for p in case.iterdir() if p.is_file()):
            if not str(path.relative_to(DATA)).startswith(OTHERS):
                opened += look(path, wrong, True)
    check(not wrong, "\n".join(wrong))
    check(opened, "nothing was opened")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    formats = sorted(p for p in DATA.iterdir()
                     if p.is_dir() and p.name not in ("bad", "zip"))
    for format in formats:
        cases = sorted(format.glob("*/ckpt"))
        # The last one of a long list, and each second before it.
        if not suite.full and len(cases) > 20:
            cases = cases[::-2][::-1]
        if cases:
            suite.add(format.name, test_unharmed, cases)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
