#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing in the way is overwritten: every file that any command writes, by the
parser's own list of options, and every file that comes beside a target."""

import json
import os
import re
import shutil

import torch
from safetensors.torch import load_file

from remote_servers import Server
from support import DATA, Suite, check, check_equal

CKPT = None
LLAMA = DATA / "hf/llama/ckpt"
FOREIGN = b'{"mine": true, "traceEvents": []}\n' + b"x" * 600
# Options that write a file, and the commands that have them with the words
# before the option. A new option is in one of these lists or in READ.
WRITTEN = {"--trace", "--html", "--plan-file", "--draft", "--dir",
           "--plot"}
READ = {"--shard-dims", "--flat-params", "--rename", "--family-file",
        "--assume-order", "--config-from", "--adapter", "--like",
        "--against", "--trainer-file", "--tokenizer-from", "--base",
        "--delta",
        "--state"}  # of watch: refused unless it is one of its own


def options_of_commands():
    """{command: options that take a path}, from the parser's own list."""
    command, found = "", {}
    for line in CKPT.ok("completion", "bash").out.splitlines():
        if named := re.fullmatch(r"    ([a-z]+)\)", line):
            command = named[1]
        elif named := re.fullmatch(r" +(?:-.\|)?(--[\w-]+)\) kind=file ;;",
                                   line):
            found.setdefault(command, []).append(named[1])
    return found


def words_of(command, option, folder):
    """A command line that comes to write what the option names."""
    source, out = folder / "m", folder / "out"
    plan = ["--dry-run"] if option in ("--html", "--plan-file") else []
    return {"convert": ["convert", source, out, "--to", "safetensors", *plan],
            "reshard": ["reshard", folder / "tp4", out, "--tp", "2", *plan],
            "unshard": ["unshard", source, out, "--to", "safetensors", *plan],
            "merge": ["merge", source, source, out, *plan],
            "salvage": ["salvage", source, out, "-n"],
            "diff": ["diff", source, source],
            "family": ["family", "infer", folder / "own"],
            "man": ["man"],
            "show": ["show", source, "lm_head.weight"],
            "scan": ["scan", source], "ls": ["ls", source],
            "view": ["view", source],
            "inspect": ["inspect", source, "--digest"],
            "verify": ["verify", source]}[command]


def written_options():
    found = []
    for command, options in sorted(options_of_commands().items()):
        for option in options:
            check(option in WRITTEN or option in READ,
                  f"{command} {option}: does it write or read what it names?")
            if option in WRITTEN:
                found.append((command, option))
    check_equal({option for _, option in found}, WRITTEN, "options")
    return found


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def scene(folder):
    shutil.copytree(LLAMA, folder / "m")
    shutil.copytree(DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
                    folder / "tp4")
    shutil.copytree(LLAMA, folder / "own")
    config = json.loads((folder / "own/config.json").read_text())
    config["model_type"] = "mine"
    config["architectures"] = ["MineForCausalLM"]
    (folder / "own/config.json").write_text(json.dumps(config))


def place_for(option, folder, name):
    """Where a file is in the way, and the value that leads to it."""
    if option == "--dir":
        (folder / "man").mkdir(exist_ok=True)
        return folder / "man/ckpt.1", folder / "man"
    return folder / name, folder / name


def test_options(folder):
    """A foreign file stays, read-only or not, unless --overwrite is given; one
    of what is read stays in any case; ckpt's own is replaced."""
    scene(folder)
    for command, option in written_options():
        words = words_of(command, option, folder)
        told = f"{command} {option}"
        for mode in (0o644, 0o444):
            path, value = place_for(option, folder, "taken")
            path.write_bytes(FOREIGN)
            path.chmod(mode)
            before = snapshot(folder)
            done = CKPT.run(*words, option, value).want(5)
            check_equal(snapshot(folder), before, told)
            check(path.name in done.err and "--overwrite" in done.err,
                  f"{told}: {done}")
            if command == "view":  # serves until it is stopped
                path.unlink()
                continue
            done = CKPT.run(*words, option, value, "--overwrite")
            check(done.code in (0, 1), f"{told}: {done}")
            made = path.read_bytes()
            check(made != FOREIGN and made, f"{told}: nothing was written")
            shutil.rmtree(folder / "out", ignore_errors=True)
            # what ckpt made is replaced, but for drafts, which people edit
            done = CKPT.run(*words, option, value)
            check_equal(done.code in (0, 1), option != "--draft", str(done))
            shutil.rmtree(folder / "out", ignore_errors=True)
            path.unlink()
        check_equal([p.name for p in folder.iterdir() if ".ckpt-" in p.name],
                    [], f"{told}: left behind")


def test_sources(folder):
    """What is read is never replaced: by its own name, another name of the
    file, or a link; with --overwrite either."""
    scene(folder)
    for command, option in written_options():
        if command in ("man", "reshard", "family"):
            continue
        words = words_of(command, option, folder)
        source = folder / "m/model.safetensors"
        if not source.exists():
            source = next((folder / "m").glob("*.safetensors"))
        hard, soft = folder / "hard", folder / "soft"
        os.link(source, hard)
        soft.symlink_to(source)
        before = snapshot(folder)
        for path in (source, source.parent / "config.json", hard, soft):
            for more in ([], ["--overwrite"]):
                if path == hard and more:
                    continue  # the name goes, the file of the source stays
                done = CKPT.run(*words, option, path, *more).want(5)
                check_equal(snapshot(folder), before, f"{done}")
        hard.unlink()
        soft.unlink()


def test_devices(folder):
    """Into /dev/null, and into an empty file that mktemp made."""
    scene(folder)
    empty = folder / "empty"
    empty.touch()
    for path in ("/dev/null", empty):
        CKPT.ok("inspect", folder / "m", "--html", path)
    check(b"<!doctype html>" in empty.read_bytes(), "the page")
    done = CKPT.run("verify", folder / "m", "--trace", folder).want(2)
    check("directory" in done.err, str(done))


def test_outputs_apart(folder):
    """Two outputs of one run don't meet."""
    scene(folder)
    for option in ("--html", "--plan-file"):
        CKPT.run("convert", folder / "m", folder / "out", "--to",
                 "safetensors", "-n", option, folder / "x", "--trace",
                 folder / "x").want(2)
        CKPT.run("convert", folder / "m", folder / "out.pt", "-n", option,
                 folder / "out.pt").want(2)
    check(not (folder / "x").exists(), "x")


SIDE = ("config.json", "generation_config.json")


def beside(folder, command, words, more=()):
    return CKPT.run(command, folder / "src", folder / "dst/x.safetensors",
                    *words, *more)


def test_beside(folder):
    """A file in the way of one that comes beside a single-file target stays."""
    for name in SIDE:
        for mode in (0o644, 0o444):
            for command, words in (("convert", ["--dtype", "bf16"]),
                                   ("convert", ["--to", "safetensors"]),
                                   ("unshard", []),
                                   ("convert", ["-n", "--dtype", "bf16"]),
                                   ("convert", ["--if-exists", "skip",
                                                "--dtype", "bf16"]),
                                   ("convert", ["--no-manifest"])):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(LLAMA, folder / "src")
                (folder / "src/generation_config.json").write_text("{}")
                (folder / "dst").mkdir()
                taken = folder / "dst" / name
                taken.write_text('{"of": "another model"}')
                taken.chmod(mode)
                before = snapshot(folder / "dst")
                done = beside(folder, command, words)
                after = snapshot(folder / "dst")
                check_equal({path: after.get(path) for path in before}, before,
                            str(done))
                if done.code == 0 and "--dtype" not in words:
                    continue  # such a file gets none of this name
                if done.code == 0 and name != "config.json":
                    continue
                check_equal(done.code, 5, str(done))
                check_equal(after, before, str(done))
                check(name in done.err and "--overwrite" in done.err,
                      str(done))
                if "-n" in words or "--if-exists" in words:
                    continue
                beside(folder, command, words, ["--overwrite"]).want(0)
                check(taken.read_bytes() != before.popitem()[1], str(done))
                load_file(folder / "dst/x.safetensors")
                # the same bytes are not in the way
                (folder / "dst/x.safetensors").unlink()
                beside(folder, command, words).want(0)


def test_beside_source(folder):
    """The source's own config.json beside it is never replaced."""
    shutil.copytree(LLAMA, folder / "src")
    source = next((folder / "src").glob("*.safetensors"))
    before = snapshot(folder)
    for more in ([], ["--overwrite"]):
        done = CKPT.run("convert", source, folder / "src/x.safetensors",
                        "--dtype", "bf16", *more)
        if done.code == 0:  # a file alone has no configuration
            check_equal({p: b for p, b in snapshot(folder).items()
                         if p in before}, before, str(done))
            for path in (folder / "src").glob("x.*"):
                path.unlink()
            continue
        check_equal(done.code, 5, str(done))
        check_equal(snapshot(folder), before, str(done))


def test_fetch(folder):
    """A file that differs stays, unless --overwrite is given; it is replaced
    by the whole one."""
    for at, mine in enumerate((b"mine", b"theirs?")):  # also of the same size
        there, here = folder / f"there{at}", folder / f"here{at}"
        there.mkdir()
        here.mkdir()
        (there / "config.json").write_bytes(b"theirs!")
        (here / "config.json").write_bytes(mine)
        with Server(folder) as server:
            words = ["fetch", server.url + f"/there{at}/config.json", here]
            done = CKPT.run(*words).want(5)
            check_equal((here / "config.json").read_bytes(), mine, str(done))
            check("--overwrite" in done.err, str(done))
            CKPT.ok(*words, "--overwrite")
        check_equal((here / "config.json").read_bytes(), b"theirs!", "bytes")


def test_manifest_in_the_way(folder):
    """A manifest of another maker's stays; one that ckpt left is replaced."""
    shutil.copytree(LLAMA, folder / "src")
    taken = folder / "x.pt.ckpt-manifest.json"
    taken.write_text('{"mine": 1}')
    CKPT.run("convert", folder / "src", folder / "x.pt").want(5)
    check_equal(taken.read_text(), '{"mine": 1}', "the file in the way")
    CKPT.ok("convert", folder / "src", folder / "x.pt", "--no-manifest")
    check_equal(taken.read_text(), '{"mine": 1}', "the file in the way")
    taken.unlink()
    (folder / "x.pt").unlink()
    CKPT.ok("convert", folder / "src", folder / "x.pt")
    (folder / "x.pt").unlink()
    CKPT.ok("convert", folder / "src", folder / "x.pt")
    torch.load(folder / "x.pt", weights_only=True)


def test_journals(folder):
    """Files that have the names of ckpt's own, and are not, stay."""
    shutil.copytree(LLAMA, folder / "src")
    for name in (".x.pt.ckpt-lock", ".x.pt.ckpt-journal"):
        (folder / name).write_text("mine")
        before = snapshot(folder)
        done = CKPT.run("convert", folder / "src", folder / "x.pt").want(8)
        check_equal(snapshot(folder), before, str(done))
        check(name in done.err, str(done))
        (folder / name).unlink()


def test_written_list(folder):
    """The line and "written" name every file that is new or another."""
    scene(folder)
    runs = (("convert", folder / "m", folder / "one.safetensors"),
            ("convert", folder / "m", folder / "one.pt"),
            ("unshard", folder / "tp4", folder / "u.safetensors"),
            ("convert", folder / "m", folder / "dir", "--to", "safetensors"),
            ("convert", folder / "m", folder / "nom", "--to", "torch",
             "--no-manifest"),
            ("convert", folder / "m", folder / "t.pt", "--trace",
             folder / "trace.json"),
            ("convert", folder / "m", folder / "n", "--to", "dcp", "-n",
             "--html", folder / "p.html", "-o", folder / "plan.json"))
    for words in runs:
        for form in ("json", "text"):
            before = snapshot(folder)
            done = CKPT.ok(*words, "--overwrite",
                           *(["--json"] if form == "json" else []))
            after = snapshot(folder)
            new = {p for p in after if after[p] != before.get(p)}
            target = words[2].relative_to(folder)
            if form == "text":
                for path in new:
                    check(target in path.parents or path.name in done.err + done.out,
                          f"{path} is not named: {done}")
                continue
            dry = "-n" in words
            base = target if after and any(
                target in p.parents for p in after) else target.parent
            listed = {}
            for one in done.json()["written"]:
                path = os.path.relpath(one["path"], folder) if os.path.isabs(
                    one["path"]) else str(base / one["path"])
                listed[path] = one["bytes"]
            if dry:
                listed = {p: n for p, n in listed.items()
                          if (folder / p).exists()}
            for path in new:
                check(str(path) in listed, f"{path} is not in {listed}")
            for path, size in listed.items():
                check_equal((folder / path).stat().st_size, size, path)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("options that write a file", test_options)
    suite.add("a file of the source", test_sources)
    suite.add("devices, empty files, directories", test_devices)
    suite.add("outputs of one run", test_outputs_apart)
    suite.add("files beside a single file", test_beside)
    suite.add("files beside a single file, of the source", test_beside_source)
    suite.add("fetch", test_fetch)
    suite.add("a manifest in the way", test_manifest_in_the_way)
    suite.add("locks and journals", test_journals)
    suite.add("what was written is listed", test_written_list)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
