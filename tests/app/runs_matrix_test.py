#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each cell of the table "From one trainer to another" of docs/formats/runs.md:
what the page says is what happens, and torch's own loader finds in DCP what the
trainer's live objects had.
"""

import re
from pathlib import Path

from support import (
    DATA, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "runs.md"
TARGETS = ["dcp", "torch", "safetensors", "megatron_torch_dist", "run"]


def table():
    text = PAGE.read_text().split("## From one trainer to another")[1]
    text = text.split("\n## ")[0]
    rows = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        # A golden's row; the page also has tables of trainers and their steps.
        if re.match(r"\| `\w+` \|", line) and (
                GOLDENS / cells[0].strip("`")).is_dir() and len(
                    cells) == len(TARGETS) + 1:
            rows[cells[0].strip("`")] = cells[1:]
    return rows


def by_torch(path):
    """All tensors of a directory of DCP, by name."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = dcp.FileSystemReader(str(path)).read_metadata()
    wanted = {name: torch.empty(one.size, dtype=one.properties.dtype)
              for name, one in stored.state_dict_metadata.items()
              if isinstance(one, TensorStorageMetadata)}
    dcp.load(wanted, checkpoint_id=str(path), no_dist=True)
    return {name: digest(t.view(-1).view(torch.uint8).numpy().tobytes())
            for name, t in wanted.items()}


def test_cell(folder, case, to, says):
    source, target = GOLDENS / case / "ckpt", folder / "out"
    if case == "lightning_ckpt" and to == "run":
        target = folder / "out.ckpt"  # a file, and named like one
    result = CKPT.run("convert", source, target, "--to", to)
    if says == "no":
        result.want(5)
        check("error" in result.err and not target.exists(), f"{result}")
        return
    result.want(0)
    found = {t["name"]: t["digest"]
             for t in CKPT.inspect(target, "--digest")["tensors"]}
    model, optim = (read_safetensors(GOLDENS / case / f"{what}.safetensors")
                    for what in ("expected", "expected_optim"))
    if to == "dcp":
        loaded = by_torch(target)
        for prefix, tensors in (("", model), ("optimizer.state.", optim)):
            for name, tensor in tensors.items():
                check_equal(loaded.get(prefix + name), digest(tensor.data),
                            f"torch reads {name}")
    if says == "model":
        check_equal(sorted(found), sorted(model), "model alone")
        check("optimizer" in result.err, f"it goes unsaid: {result}")
        return
    want = sorted(digest(t.data) for t in [*model.values(), *optim.values()])
    got = sorted(found.values())
    if to in ("dcp", "torch", "run"):
        for one in set(want):
            check(one in got, "a tensor of the live objects is not there")
    same = CKPT.run("verify", source, target)
    check(to != "dcp" or same.code == 0, f"{same}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    rows = table()
    check_equal(sorted(rows), sorted(p.name for p in GOLDENS.iterdir()),
                "rows of the table")
    for case, cells in rows.items():
        for to, says in zip(TARGETS, cells):
            suite.add(f"{case} to {to}: {says}", test_cell, case, to, says)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
