# SPDX-License-Identifier: Apache-2.0
"""What the mistakes of mistakes_test.py are made with, and how a row of them is
judged. What is refused leaves nothing behind, takes at most four lines and one
next step, and has none of the phrases of BANNED.
"""

import pickle
import re
import shutil
import tarfile
import zipfile

from support import DATA, check, check_equal

CKPT = None  # set by prepare, as is the scene
SCENE = None
LFS = ("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64
       + "\nsize 5000000000\n")
BANNED = ("is no directory", "is no format", "is no size", "is no command",
          "no option", "holds no", "(in ", "of no format", "what is below it",
          "link to nothing", "one argument too many", "leavings", "would stand",
          "names files that are not there", "exists already", "exception",
          "std::", "terminate")


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, str):
        data = data.encode()
    path.write_bytes(data)


def make_scene(at):
    """Makes checkpoints, and things that look like one."""
    import numpy
    shutil.copytree(DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt", at / "tp4")
    shutil.copytree(DATA / "hf/llama/ckpt", at / "llama")
    shutil.copytree(DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt",
                    at / "gpt")
    for name in ("run1", "run2", "run3"):
        shutil.copytree(at / "llama", at / "runs" / name)
    shutil.copytree(at / "llama", at / "models--org--name/snapshots/abc")
    write(at / "models--org--name/refs/main", "abc")
    (at / "models--org--name/blobs").mkdir()
    shutil.copytree(at / "tp4", at / "half")
    shutil.rmtree(at / "half/step_100/model/pp_00/tp_02")
    for name in ("step_100", "step_200"):
        shutil.copytree(at / "tp4/step_100", at / "steps" / name)
    shutil.copy(at / "tp4/model.yaml", at / "steps/model.yaml")
    numpy.save(at / "a.npy", numpy.zeros(3))
    numpy.savez(at / "a.npz", x=numpy.zeros(3))
    write(at / "a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    with zipfile.ZipFile(at / "a.keras", "w") as archive:
        archive.writestr("model.weights.h5", "x")
    write(at / "a.onnx", b"\x08\x08\x12\x07pytorch" + bytes(100))
    write(at / "flax_model.msgpack", b"\x82\xa6params\x81" + bytes(50))
    write(at / "a.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 100)
    write(at / "frozen.pb", b"\x08\x01" + bytes(100))
    write(at / "orbax/_METADATA", "{}")
    write(at / "orbax/manifest.ocdbt", "x")
    write(at / "orbax1/orbax.checkpoint", "")
    write(at / "orbax1/pytree/manifest.ocdbt", "x")
    write(at / "tf/saved_model.pb", b"\x08\x01")
    write(at / "tf/variables/variables.index", "x")
    write(at / "tf1/model.ckpt.index", "x")
    write(at / "tf1/model.ckpt.data-00000-of-00001", "x")
    write(at / "config.yaml", "a: 1")
    with tarfile.open(at / "a.nemo", "w") as archive:
        archive.add(at / "config.yaml", "./model_config.yaml")
    for ending in ("safetensors", "pt", "pth", "bin", "ckpt"):
        write(at / f"lfs.{ending}", LFS)
        write(at / f"page.{ending}", "<!DOCTYPE html><html>Not found</html>")
        write(at / f"empty.{ending}", "")
    shutil.copytree(at / "llama", at / "stub")
    for file in (at / "stub").glob("*.safetensors"):
        write(file, LFS)
    write(at / "plain.pkl", pickle.dumps({"a": [1, 2]}))
    write(at / "notes.txt", "hello")
    write(at / "logs/a.log", "x")
    (at / "nothing_in_it").mkdir()
    write(at / "bad.json", '{"a":')
    write(at / "list.json", "[1]")
    write(at / "args", "tp4\n--jsn\n")
    write(at / "file", "x")
    # Cut short: a download or a full disk.
    one = next((at / "llama").glob("*.safetensors"))
    write(at / "cut.safetensors", one.read_bytes()[:-100])
    part = next((at / "tp4").rglob("*.pt"))
    write(at / "cut.pt", part.read_bytes()[:-1000])


def listing():
    return {p.relative_to(SCENE): p.stat().st_size for p in SCENE.rglob("*")}


def run(line):
    words = ["" if word == "''" else word for word in line.split()]
    return CKPT.run(*words, cwd=SCENE)


def mistake(folder, line, status, first, hint):
    before = listing()
    result = run(line).want(status)
    lines = result.err.splitlines()
    errors = [l for l in lines if l.startswith("error: ")]
    check_equal(len(errors), 1, f"errors of\n{result}")
    check(first in errors[0], f"{first!r} is not in {errors[0]!r}")
    check(line == "" or len(lines) <= 4, f"{len(lines)} lines\n{result}")
    check(line == "" or any(l.startswith("hint: ") for l in lines),
          f"no next step\n{result}")
    if hint:
        check(any(h in l for l in lines if l.startswith("hint: ")
                  for h in hint.split("|")), f"no hint {hint!r}\n{result}")
    for phrase in BANNED:
        check(phrase not in errors[0], f"{phrase!r} in {errors[0]!r}")
    check(not re.search(r"\(in [^)]*\)$", errors[0]), errors[0])
    check_equal(result.out, "", f"stdout of\n{result}")
    check_equal(listing(), before, f"what is left by\n{result}")


def clean():
    for path in SCENE.glob("out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def works(folder, line):
    result = run(line)
    clean()
    result.want(0)
