# SPDX-License-Identifier: Apache-2.0
"""All commands that write, in one table: whoever adds a command adds a row, or
says in READERS that it writes nothing. writers_test.py compares the table with
`ckpt --help` and drives each row through kills, faults, links and rot;
faults_test.py takes its commands from here."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass, field

from support import DATA, HANG

# Nothing but to the terminal, whatever is asked of them. `prune` only deletes,
# `watch` writes its own state, `edit` what it reads: keeper_test.py and
# edit_test.py stop and kill them.
READERS = {"ls", "show", "view", "scan", "wait", "doctor", "completion",
           "prune", "watch", "edit"}


@dataclass
class Writer:
    """One way to write. `words` have SRC (SRC/a: what is in it), DST, PLAN and
    DELTA, beside the target, in them; `make(folder)` makes the source."""

    name: str
    words: list
    make: object
    base: str  # of the target
    status: int = 0  # of a run in which nothing fails
    inside: bool = False  # the target is a file in the source
    served: bool = False  # the source is a server's
    old: bool = False  # something is to be replaced
    slow: bool = False  # a run takes a second: fewer of them

    command: str = field(init=False)

    def __post_init__(self):
        self.command = self.words[0]


def golden(*parts):
    return lambda folder: DATA.joinpath(*parts)


def copied(*parts):
    def make(folder):
        path = folder / "source"
        shutil.copytree(DATA.joinpath(*parts), path)
        return path
    return make


def small_file(folder):
    from resume_test import make_source

    path = folder / "plain.safetensors"
    make_source(path, 1)
    return path


def without_index(folder):
    path = copied("safetensors", "hf_sharded", "ckpt")(folder)
    (path / "model.safetensors.index.json").unlink()
    return path


def cut_short(folder):
    path = copied("safetensors", "hf_sharded", "ckpt")(folder)
    shard = min(path.glob("*.safetensors"))
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size - 8)
    return path


def two_steps(folder):
    """a, and b that differs in the last bit of each element of two tensors."""
    path = folder / "steps"
    for name in "ab":
        shutil.copytree(DATA.joinpath(*LLAMA), path / name)
    file = path / "b/model.safetensors"
    data = bytearray(file.read_bytes())
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    for name in ("model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        begin, end = header[name]["data_offsets"]
        step = {"F32": 4, "BF16": 2, "F16": 2}[header[name]["dtype"]]
        for at in range(8 + size + begin, 8 + size + end, step):
            data[at] ^= 1
    file.write_bytes(data)
    return path


def of_no_family(folder):
    path = copied("hf", "llama", "ckpt")(folder)
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "notes", "architectures": ["NotesForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config))
    return path


SHARDED = ("safetensors", "hf_sharded", "ckpt")
LLAMA = ("hf", "llama", "ckpt")
WRITERS = [
    Writer("convert", ["convert", "SRC", "DST", "--to", "torch"], small_file,
           "out.pt"),
    Writer("reshard", ["reshard", "SRC", "DST", "--tp", "1"],
           golden("fairseq2_native", "llama_tp2dp1_blocking", "ckpt"), "out"),
    Writer("unshard", ["unshard", "SRC", "DST"],
           golden("dcp", "fsdp2_w2_adamw", "ckpt"), "out"),
    Writer("merge", ["merge", "SRC", "SRC", "DST"],
           golden("dcp", "fsdp2_w2_adamw", "ckpt"), "out"),
    Writer("overwrite", ["convert", "SRC", "DST", "--to", "safetensors",
                         "--overwrite"], small_file, "out", old=True),
    Writer("salvage", ["salvage", "SRC", "DST"], without_index, "out"),
    Writer("salvage partly", ["salvage", "SRC", "DST", "--partial", "zeros"],
           cut_short, "out", status=1),
    Writer("run", ["run", "PLAN"], golden("dcp", "fsdp2_w2_adamw", "ckpt"), "out"),
    Writer("demo", ["demo", "DST"], golden(*LLAMA), "out"),
    Writer("seal", ["verify", "SRC", "--seal"], copied(*SHARDED),
           ".ckpt-manifest.json", inside=True),
    Writer("fetch", ["fetch", "SRC", "DST"], golden(*SHARDED), "out",
           served=True),
    Writer("sync", ["sync", "SRC", "DST"], golden(*SHARDED), "out"),
    Writer("inspect's page", ["inspect", "SRC", "--html", "DST"],
           golden(*LLAMA), "out.html"),
    Writer("inspect's picture", ["inspect", "SRC", "--plot", "DST"],
           golden(*LLAMA), "out.svg"),
    Writer("diff's page", ["diff", "SRC", "SRC", "--html", "DST"],
           golden(*LLAMA), "out.html"),
    Writer("difference", ["diff", "SRC/a", "SRC/b", "--write", "DST"],
           two_steps, "out.safetensors"),
    Writer("difference's folder", ["diff", "SRC/a", "SRC/b", "--write", "DST"],
           two_steps, "out"),
    Writer("LoRA", ["diff", "SRC/a", "SRC/b", "--write", "DST", "--as-lora",
                    "2"], two_steps, "out", slow=True),
    Writer("lossless delta", ["diff", "SRC/a", "SRC/b", "--write", "DST",
                              "--lossless"], two_steps, "out.delta"),
    Writer("restored", ["convert", "SRC/a", "DST", "--delta", "DELTA"],
           two_steps, "out"),
    Writer("family's file", ["family", "infer", "SRC", "--draft", "DST"],
           of_no_family, "out.json"),
    Writer("manual", ["man", "--dir", "DST"], golden(*LLAMA), "out"),
]


def tree(path):
    """Everything under a name."""
    if path.is_symlink() or not path.exists():
        return None
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return {str(p.relative_to(path)): hashlib.sha256(
        p.read_bytes()).hexdigest() for p in sorted(path.rglob("*"))
        if p.is_file()}


def run(words, shim=None, root=None, **settings):
    """settings: FAULTS, FAULTS_COUNT, FAULTS_RECORD"""
    env = dict(os.environ)
    if root:
        env.update(LD_PRELOAD=str(shim), FAULTS_ROOT=str(root), **settings)
    try:
        return subprocess.run(list(map(str, words)), capture_output=True,
                              text=True, errors="replace", timeout=HANG,
                              env=env)
    except subprocess.TimeoutExpired as slow:
        return subprocess.CompletedProcess(words, -1, "", f"hangs: {slow}")


def put_old(target):
    """What --overwrite replaces."""
    target.mkdir(parents=True)
    text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (target / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"x")
