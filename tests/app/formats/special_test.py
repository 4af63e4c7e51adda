#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is not a regular file: each file of a checkpoint of each format becomes a
FIFO, a device, a socket, a directory or a link to nothing. The answer comes
at once, with a message."""

import os
import random
import shutil
import socket

from files_test import ONE_OF_EACH
from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
MOST = 8  # files of a case


def fifo(path):
    os.mkfifo(path)


def zero(path):
    path.symlink_to("/dev/zero")


def sock(path):
    # A socket's address has at most 108 bytes.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def directory(path):
    path.mkdir()


def dangling(path):
    path.symlink_to("nothing-here")


KINDS = (fifo, zero, sock, directory, dangling)


def some_files(case):
    files = sorted(p.relative_to(case) for p in case.rglob("*") if p.is_file())
    first = {}  # one per folder and kind of name: readers look for each
    for path in files:
        key = (path.parent, path.suffix, path.name.split("_")[0])
        first.setdefault(key, path)
    chosen = sorted(first.values())
    return random.Random(str(case)).sample(chosen, min(MOST, len(chosen)))


def test_special(folder, case):
    source = DATA / case / "ckpt"
    for name in some_files(source):
        for kind in KINDS:
            copy = folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            (copy / name).unlink()
            kind(copy / name)
            what = f"{name} is a {kind.__name__}"
            done = CKPT.run("convert", copy, folder / "out", "--to",
                            "safetensors", "--dry-run", "--json")
            check(done.code in (0, 2, 3, 4, 5, 6, 8),
                  f"{what}: {done.code} {done.err}")
            if done.code:
                check('"error":' in done.err, f"{what}: no message: {done.err}")
                continue
            # What was not needed is named, or is no longer a file.
            fates = {row["path"]: row for row in done.json()["files"]}
            row = fates.get(str(name))
            check(kind is directory or (row and row["fate"] == "left_out"),
                  f"{what}: {row}")


# What a snapshot of the hub holds: how inspect, verify and convert end if it
# is a link whose blob was pruned. The tensors are readable without a document;
# a copy lacks it.
DOCUMENT, PART = (0, 1, 3), (3, 3, 3)
SNAPSHOT = {
    "config.json": PART, "model-00001-of-00003.safetensors": PART,
    "model-00003-of-00003.safetensors": PART,
    "model.safetensors.index.json": PART, "adapter_config.json": PART,
    "hf_quant_config.json": PART, "tokenizer.json": DOCUMENT,
    "tokenizer_config.json": DOCUMENT, "merges.txt": DOCUMENT,
    "spiece.model": DOCUMENT, "chat_template.jinja": DOCUMENT,
    "generation_config.json": DOCUMENT, "modeling_own.py": DOCUMENT,
    "training_args.bin": DOCUMENT, "README.md": DOCUMENT,
    "LICENSE": DOCUMENT, ".gitattributes": (0, 0, 0)}


def test_pruned(folder):
    source = DATA / "safetensors/hf_sharded/ckpt"
    want = CKPT.inspect(source, "--digest")["tensors"]
    for name, (inspect, verify, convert) in SNAPSHOT.items():
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
        (copy / name).unlink(missing_ok=True)
        (copy / name).symlink_to("../../blobs/0a1b")
        done = CKPT.run("inspect", copy, "--json", "--digest").want(inspect)
        if inspect == 0:
            check_equal(done.json()["tensors"], want, name)
            check((name in done.err) == (verify == 1), f"{name}: {done.err}")
            CKPT.ok("diff", source, copy)
            CKPT.ok("ls", copy)
        done = CKPT.run("verify", copy, "--json")
        if inspect:
            check(done.code in (1, 3), f"{name}: {done}")
            check(f"/{name}" in done.out + done.err, f"{name}: {done}")
        else:
            said = done.want(verify).json()["problems"]
            check_equal([(p["kind"], p["file"]) for p in said],
                        [("missing_file" if verify else "broken_link",
                          str(copy / name))], name)
        done = CKPT.run("convert", copy, folder / "out", "--to", "torch",
                        "--dry-run").want(convert)
        check(name in done.err, f"{name}: {done.err}")
        if inspect == 0 and convert:
            check("remove the link" in done.err, f"{name}: {done.err}")
            CKPT.ok("convert", copy, folder / "one.safetensors", "--dry-run")


def main():
    suite = Suite(__doc__)
    suite.add("pruned blobs", test_pruned)
    for name, case in ONE_OF_EACH.items():
        suite.add(name, test_special, case)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
