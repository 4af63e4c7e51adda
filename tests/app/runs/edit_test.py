#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt edit`: metadata as safetensors' and ggml's own readers see it, with the
tensors' bytes and the manifests as they should be."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import DATA, HANG, Suite, check, check_equal

sys.path.append(str(Path(sys.prefix) / "loaders"))  # gguf

CKPT = SHIM = None
GGUF = sorted(p for p in (DATA / "gguf").rglob("*.gguf"))
SHARDED = DATA / "safetensors/hf_sharded/ckpt"


def edit(path, *words, code=0):
    result = CKPT.run("edit", path, *words, "--json").want(code)
    return json.loads(result.out)


def header_of(path):
    """The JSON of a safetensors file, and the bytes behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    check(size % 8 == 0, f"{size} bytes of header")
    return json.loads(data[8:8 + size]), data[8 + size:]


def loaded(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata(), {
            name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_plain(folder):
    """Keys come, change and go; the tensors are the same for the reader."""
    import torch

    source = min(SHARDED.glob("*.safetensors"))
    path = folder / "m.safetensors"
    shutil.copy(source, path)
    path.chmod(0o640)
    before, payload = header_of(path)
    old, tensors = loaded(path)
    old = old or {}
    long = "x" * 5000
    for words, want in (
            (("--set", "a=1"), {**old, "a": "1"}),
            (("--set", "a=2", "--set", "b:c=d=e", "--set", "é=\"\n\\"),
             {**old, "a": "2", "b:c": "d=e", "é": "\"\n\\"}),
            (("--set", "long=" + long, "--unset", "b:c"),
             {**old, "a": "2", "é": "\"\n\\", "long": long}),
            (("--unset", "long", "--unset", "a", "--unset", "é"), old),
            (("--unset", "nothing"), old)):
        shown = edit(path, *words, "-n")
        check_equal(loaded(path)[0] or {}, got := loaded(path)[0] or {}, got)
        said = edit(path, *words)
        check_equal(said["files"], shown["files"], "-n")
        check_equal(loaded(path)[0] or {}, want, str(words))
        check_equal(path.stat().st_size, said["files"][0]["bytes"], "bytes")
        check_equal(header_of(path)[1], payload, "the tensors' bytes")
        for name, value in loaded(path)[1].items():
            check(torch.equal(value, tensors[name]), name)
    check_equal(path.stat().st_mode & 0o777, 0o640, "mode")
    after, _ = header_of(path)
    check_equal({k: v for k, v in after.items() if k != "__metadata__"},
                {k: v for k, v in before.items() if k != "__metadata__"},
                "entries")
    check_equal([p.name for p in folder.iterdir()], ["m.safetensors"],
                "left over")


def sealed(folder):
    path = folder / "model"
    shutil.copytree(SHARDED, path)
    CKPT.ok("verify", path, "--seal", "--quiet")
    return path


def test_manifest(folder):
    """Every shard is edited, and what a manifest says of the folder, of a folder
    above it and of a file stays true."""
    path = sealed(folder)
    shards = sorted(path.glob("*.safetensors"))
    before = json.loads((path / ".ckpt-manifest.json").read_text())
    for value in ("short", "l" * 3000, "short"):
        said = edit(path, "--set", f"note={value}")
        check_equal([f["path"] for f in said["files"]], list(map(str, shards)),
                    "files")
        check_equal({loaded(shard)[0]["note"] for shard in shards}, {value},
                    "values")
        said = json.loads(CKPT.ok("verify", path, "--deep", "--json").out)
        check_equal((said["ok"], said["problems"]), (True, []), "verdict")
    after = json.loads((path / ".ckpt-manifest.json").read_text())
    check_equal(after["tensors"], before["tensors"], "digests")
    # One of its files, by itself: the folder's manifest follows.
    edit(shards[0], "--set", "note=other")
    CKPT.ok("verify", path, "--deep")
    single = folder / "one.safetensors"
    CKPT.ok("convert", SHARDED, single, "--to", "safetensors", "-q")
    check(Path(f"{single}.ckpt-manifest.json").exists(), "no manifest")
    edit(single, "--set", "note=" + "l" * 9000)
    CKPT.ok("verify", single, "--deep")
    # Rot is still found.
    data = bytearray(single.read_bytes())
    data[-1] ^= 1
    single.write_bytes(data)
    CKPT.run("verify", single).want(1)


def test_rotten_header(folder):
    """A header that its manifest contradicts gets no new checksum."""
    path = sealed(folder)
    shard = min(path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    at = data.index(b" " if data[8:].find(b" ") > 0 else b"pt")
    data[at:at + 1] = b"\t" if data[at:at + 1] == b" " else b"q"
    shard.write_bytes(data)
    done = CKPT.run("edit", path, "--set", "a=b")
    check_equal(done.code, 4, done.err)
    check("header is not the one" in done.err, done.err)
    check_equal(shard.read_bytes(), bytes(data), "the file")


def fields_of(path):
    import gguf

    reader = gguf.GGUFReader(path)
    return {name: ([t.name for t in field.types], field.contents())
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")}, {
        t.name: (t.tensor_type, tuple(t.shape), t.data.tobytes())
        for t in reader.tensors}


def test_ggml(folder, source):
    """As gguf-py reads it: a key keeps its type, new ones have theirs, all
    others and the tensors are the same."""
    path = folder / "m.gguf"
    shutil.copy(source, path)
    fields, tensors = fields_of(path)
    edit(path, "--set", "general.name=Ünï name", "--set", "x.n:u32=7", "--set",
         "x.f:f32=0.5", "--set", "x.b:bool=true", "--set",
         'x.l:arr:str=["a", "b,c"]', "--set", "x.i:arr:i32=[1, -2]", "--set",
         "x.big:u64=18446744073709551615")
    got, after = fields_of(path)
    check_equal(after, tensors, "tensors")
    news = {"x.n": (["UINT32"], 7), "x.f": (["FLOAT32"], 0.5),
            "x.b": (["BOOL"], True), "x.l": (["ARRAY", "STRING"], ["a", "b,c"]),
            "x.i": (["ARRAY", "INT32"], [1, -2]),
            "x.big": (["UINT64"], 2**64 - 1),
            "general.name": (["STRING"], "Ünï name")}
    check_equal(got, {**fields, **news}, "keys")
    edit(path, "--set", "x.n=8", "--unset", "x.f", "--unset", "x.b", "--unset",
         "x.l", "--unset", "x.i", "--unset", "x.big")
    got, after = fields_of(path)
    check_equal(got, {**fields, "x.n": (["UINT32"], 8),
                      "general.name": news["general.name"]}, "second")
    check_equal(after, tensors, "tensors")
    CKPT.ok("inspect", path)


def test_shown(folder):
    """Values are said as --set takes them, and a change in the last item of a
    long list is one."""
    path = folder / "m.gguf"
    shutil.copy(GGUF[0], path)
    many = list(range(20))
    for word, value in (("f:f32", "0.5"), ("g:f64", "0.1"), ("h:f32", "0.1"),
                        ("b:bool", "true"), ("u:u64", "18446744073709551615"),
                        ("l:arr:f32", "[0.5,0.25]"), ("s:arr:str", '["a","b"]'),
                        ("n:arr:i32", json.dumps(many, separators=(",", ":")))):
        said = edit(path, "--set", f"{word}={value}")
        shown = said["files"][0]["changes"][0]["after"]
        want = "[0,1,2,3,4,5,6,7, 12 more]" if word.startswith("n:") else value
        check_equal(shown, want, word)
        check_equal(edit(path, "--set", f"{word}={value}")["files"][0]["changes"],
                    [], f"{word} again")
    text = CKPT.ok("edit", path, "--set", "f=0.75").out
    check("f: '0.75', was '0.5'" in text, text)
    many[-1] = 7
    edit(path, "--set", f"n={many}")
    check_equal(fields_of(path)[0]["n"][1], many, "the list")


def test_root(folder):
    """Of a run the newest step is edited, which is said."""
    root = folder / "run"
    for number in (10, 20):
        shutil.copytree(DATA / "runs/hf_trainer_qwen2/ckpt/checkpoint-10",
                        root / f"checkpoint-{number}")
    done = CKPT.ok("edit", root, "--set", "a=b", "-n")
    check("holds 2 steps; this is checkpoint-20" in done.err, done.err)
    check("1 of 1 file of checkpoint-20 would change" in done.out, done.out)
    said = edit(root, "--set", "a=b")
    check_equal(said["step"], "checkpoint-20", "step")
    check_equal(said["files"][0]["path"],
                str(root / "checkpoint-20/model.safetensors"), "file")
    said = edit(root / "checkpoint-10", "--set", "a=b")
    check_equal(said["step"], None, "of a step itself")
    check("holds" not in CKPT.ok("edit", root / "checkpoint-10", "--set",
                                 "a=c").err, "told of a step itself")


def test_mistakes(folder):
    path = folder / "m.safetensors"
    shutil.copy(min(SHARDED.glob("*.safetensors")), path)
    ggml = folder / "m.gguf"
    shutil.copy(GGUF[0], ggml)
    link = folder / "link.safetensors"
    link.symlink_to(path)
    for words, code, said in (
            ((path,), 2, "nothing says what to change"),
            ((path, "--set", "a"), 2, "expected KEY=VALUE"),
            ((path, "--set", "=a"), 2, "is empty"),
            ((path, "--set", "a=1", "--unset", "a"), 2, "given twice"),
            ((folder / "no", "--set", "a=1"), 3, "no such file"),
            ((link, "--set", "a=1"), 5, "is a link"),
            (("s3://b/m.safetensors", "--set", "a=1"), 2, "on a server"),
            ((DATA / "dcp/fsdp2_w2_adamw/ckpt", "--set", "a=1"), 2,
             "no safetensors or GGUF"),
            ((ggml, "--set", "new=1"), 2, "has no type"),
            ((ggml, "--set", "a:u8=256"), 2, "is no u8"),
            ((ggml, "--set", "a:u8=x"), 2, "not a value of type u8"),
            ((ggml, "--set", "a:bool=1"), 2, "not a value of type bool"),
            ((ggml, "--set", "a:f32="), 2, "not a value of type f32"),
            ((ggml, "--set", "a:arr:u8=1"), 2, "not a value of type arr:u8"),
            ((ggml, "--set", "a:x=1"), 2, "no value of type x"),
            ((ggml, "--set", "general.alignment=64"), 2, "no file can be read"),
            ((ggml, "--unset", "general.architecture"), 2,
             "no file can be read")):
        before = path.read_bytes(), ggml.read_bytes()
        done = CKPT.run("edit", *words)
        check_equal(done.code, code, f"{words}: {done.err}")
        check(said in done.err, f"{said!r} is not in {done.err!r}")
        check_equal((path.read_bytes(), ggml.read_bytes()), before, "files")


def test_faults(folder):
    """Each call fails once, and kills once: a shard is the old or the new one,
    the manifest says at most that the edit did not finish, and the same command
    finishes it."""
    failed = 0
    for call in ("open", "write", "truncate", "fsync", "rename", "unlink",
                 "copy_file_range", "mkdir"):
        for at in (1, 3, 7):
            for stop in ("5", "kill"):
                place = folder / f"{call}{at}{stop}"
                place.mkdir()
                path = sealed(place)
                done = subprocess.run(
                    [CKPT.path, "edit", path, "--set", "note=new"],
                    env={**os.environ, "LD_PRELOAD": str(SHIM),
                         "FAULTS_ROOT": str(place),
                         "FAULTS": f"{call}@{at}={stop}"},
                    capture_output=True, text=True, timeout=HANG, check=False)
                failed += done.returncode != 0
                check(done.returncode in (0, 6, -9),
                      f"{call}@{at}={stop}: {done.returncode} {done.stderr}")
                said = json.loads(CKPT.run("verify", path, "--json").out)
                bad = [one for one in said["problems"]
                       if one["severity"] != "note"]
                check(all("ckpt edit did not finish" in one["message"] or
                          one["kind"] == "file_size" for one in bad) and
                      (not bad or any(one["kind"] == "unproven"
                                      for one in bad)),
                      f"{call}@{at}={stop}: {said['problems']}")
                edit(path, "--set", "note=new")
                CKPT.ok("verify", path, "--deep")
                for shard in path.glob("*.safetensors"):
                    check_equal(loaded(shard)[0]["note"], "new", shard.name)
                shutil.rmtree(place)
    check(failed > 10, f"only {failed} runs failed")


def test_shared_blocks(folder):
    """The tensors' bytes are shared where the file system can, else copied by
    the kernel; only a header that grows moves them."""
    path = folder / "m.safetensors"
    shutil.copy(min(SHARDED.glob("*.safetensors")), path)
    payload = header_of(path)[1]

    def calls(value, faults=""):
        subprocess.run(
            [CKPT.path, "edit", path, "--set", f"note={value}", "-q"],
            env={**os.environ, "LD_PRELOAD": str(SHIM),
                 "FAULTS_ROOT": str(folder), "FAULTS": faults,
                 "FAULTS_COUNT": f"{folder}.counts"},
            timeout=HANG, check=True)
        check_equal(header_of(path)[1], payload, "the tensors' bytes")
        check_equal(loaded(path)[0]["note"], value, "value")
        count = dict(line.split() for line in
                     Path(f"{folder}.counts").read_text().splitlines())
        return int(count["clone"]), int(count["copy_file_range"])

    check_equal(calls("l" * 3000), (0, 1), "a header that grows")
    check_equal(calls("short", "clone@1=95"), (1, 1), "no shared blocks")
    check_equal(calls("other", "clone@1=copy"), (1, 0), "shared blocks")


def prepare(suite, ckpt):
    global CKPT, SHIM
    CKPT = ckpt
    SHIM = Path(ckpt.path).parent / "libckpt_faults.so"
    for case in (test_plain, test_manifest, test_rotten_header, test_shown,
                 test_root, test_mistakes):
        suite.add(case.__name__, case)
    for source in GGUF:
        suite.add(f"ggml: {source.relative_to(DATA / 'gguf')}", test_ggml, source)
    if SHIM.exists():
        suite.add("test_faults", test_faults)
        suite.add("test_shared_blocks", test_shared_blocks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
