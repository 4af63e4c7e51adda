#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank's file or directory is lost entirely: `ckpt salvage` gets all of its
elements from elsewhere, or says that they are gone.

Each golden that is cut over ranks loses the last file and the last directory of
every kind, one at a time. What ckpt calls whole has the golden's digests.
"""

import re
import shutil

from support import DATA, Suite, check, check_equal

CKPT = None
FORMATS = ("deepspeed", "fairseq2_native", "megatron_legacy",
           "megatron_torch_dist", "olmo_core_v1", "vllm")
HOLDS_TENSORS = (".pt", ".safetensors", ".distcp")
# vLLM's files don't say how many ranks there were, and this case has no
# config.json: what is left may be whole, and a warning says that this is
# unknown.
UNTOLD = ["vllm/tp2/ckpt/model-rank-1-part-0.safetensors"]


def digests(path):
    """name -> (dtype, shape, digest); None if refused."""
    result = CKPT.run("inspect", path, "--json", "--digest")
    check(result.code in (0, 3, 4, 5), f"{result}")
    if result.code:
        return None
    return {t["name"]: (t["dtype"], tuple(t["shape"]), t.get("digest"))
            for t in result.json()["tensors"]}


def last_of_each(source):
    """The last of each set of paths that differ only in numbers."""
    kinds = {}
    for file in sorted(source.rglob("*")):
        if file.is_dir() or file.suffix in HOLDS_TENSORS:
            path = str(file.relative_to(source))
            kinds.setdefault((file.is_dir(), re.sub(r"\d+", "#", path)),
                             []).append(path)
    return [paths[-1] for paths in kinds.values() if len(paths) > 1]


def test_lost(folder, source, lost, untold):
    want = digests(source)
    if want is None:
        return  # can't be opened as it is
    broken, out = folder / "s", folder / "d"
    shutil.copytree(source, broken)
    if (broken / lost).is_dir():
        shutil.rmtree(broken / lost)
    else:
        (broken / lost).unlink()
    result = CKPT.run("salvage", broken, out)
    check(result.code in (0, 4, 5), f"{result}")
    check_equal(out.exists(), result.code == 0, "DST is there")
    if untold:
        for said in (result, CKPT.run("verify", broken)):
            check(re.search("ranks are missing can't be told",
                            said.out + said.err), f"{said}")
        return
    for path in (broken, out) if result.code == 0 else (broken,):
        check(digests(path) in (None, want),
              f"what is left is called whole: {path.name}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for form in FORMATS:
        for case in sorted((DATA / form).iterdir()):
            source = case / "ckpt"
            for lost in last_of_each(source):
                name = f"{form}/{case.name}/ckpt/{lost}"
                suite.add(name, test_lost, source, lost, name in UNTOLD)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
