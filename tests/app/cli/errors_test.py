#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ckpt says when something is wrong: substance, exit status, and that
docs/errors.md shows exactly that. `--update` rewrites the page."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import (
    DATA, Ckpt, Failure, Skip, Suite, check, check_equal, read_safetensors)

CKPT = None
PAGE = Path(__file__).resolve().parents[3] / "docs/errors.md"
NOBODY = 65534


@dataclass
class Scene:
    """One command in a prepared folder, and what must come of it."""

    title: str
    args: str  # split at spaces; SRC is a 4-way tensor-parallel checkpoint
    code: object  # exit status, or several that are accepted
    says: tuple  # each must be in stderr (or stdout for status 0 and 1)
    about: str = ""  # a sentence for the page
    prepare: object = None  # prepare(folder) makes it fail
    after: object = None  # after(folder) checks what is left
    user: object = None  # run as this user
    shown: bool = True  # on the page


def first_file(folder, pattern):
    return sorted(folder.glob(pattern))[0]


def cut_short(folder):
    path = first_file(folder, "tp4/step_100/model/pp_00/tp_02/*.pt")
    os.truncate(path, path.stat().st_size - 2000)


def cut_safetensors(folder):
    path = folder / "model.safetensors"
    shutil.copy(DATA / "safetensors/hf_sharded/other/single_file" / path.name,
                path)
    os.truncate(path, path.stat().st_size - 4)


def lose_rank(folder):
    shutil.rmtree(folder / "tp4/step_100/model/pp_00/tp_02")


def change_norm(folder):
    """One rank's copy of a replicated tensor differs in one byte."""
    import zipfile

    path = first_file(folder, "tp4/step_100/model/pp_00/tp_01/*.pt")
    want = read_safetensors(
        DATA / "fairseq2_native/qwen25_tp4dp1_mixed/expected.safetensors")
    with zipfile.ZipFile(path) as archive:
        record = next(
            r for r in archive.infolist()
            if archive.read(r) == want["decoder.layer_norm.weight"].data)
    data = bytearray(path.read_bytes())
    at = data.index(want["decoder.layer_norm.weight"].data,
                    record.header_offset)
    data[at + 2] ^= 1
    path.write_bytes(data)


def flip_middle(folder):
    CKPT.ok("reshard", "tp4", "tp8", "--tp", 8, cwd=folder)
    path = first_file(folder, "tp8/step_100/model/pp_00/tp_05/*.pt")
    want = read_safetensors(
        DATA / "fairseq2_native/qwen25_tp4dp1_mixed/expected.safetensors")
    rows = want["decoder.layers.1.ffn.gate_proj.weight"].data
    part = rows[5 * len(rows) // 8:6 * len(rows) // 8]
    data = bytearray(path.read_bytes())
    data[data.index(part) + len(part) // 2] ^= 0x10
    path.write_bytes(data)


def make_target(folder):
    (folder / "tp8").mkdir()
    (folder / "tp8/precious").write_text("keep me")


def target_kept(folder):
    check_equal((folder / "tp8/precious").read_text(), "keep me",
                "the existing target")


def lock(folder):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "archive").mkdir()
    (folder / "archive").chmod(0o555)


def small_disk(folder):
    (folder / "disk").mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder / "disk"],
        stderr=subprocess.DEVNULL).returncode == 0
    if not mounted:
        raise Skip("mounting a small tmpfs needs root")


def free_disk(folder):
    left = list((folder / "disk").iterdir())
    subprocess.run(["umount", folder / "disk"], check=True)
    check_equal(left, [], "left on the full disk")


def no_yaml(folder):
    """Names that no family explains, so nothing says how they are split."""
    import torch

    (folder / "tp4/model.yaml").unlink()
    for path in sorted((folder / "tp4").rglob("*.pt")):
        part = torch.load(path)
        torch.save({"my." + name: tensor for name, tensor in part.items()},
                   path)


def bring(folder, name, case):
    """A golden under a short name."""
    shutil.copytree(DATA / case / "ckpt", folder / name)
    return folder / name


def bring_gpt(folder):
    return bring(folder, "gpt", "megatron_torch_dist/gpt_tp2_pp2_v0161")


def bring_fsdp(folder):
    return bring(folder, "fsdp", "dcp/fsdp2_w2_adamw")


def cut_index(folder):
    (bring_gpt(folder) / "iter_0000007/metadata.json").unlink()


def other_backend(folder):
    path = bring_gpt(folder) / "iter_0000007/metadata.json"
    path.write_text(path.read_text().replace("torch_dist", "stone_tablets"))


def flip_item(folder):
    """Flips one bit of a weight inside a .distcp file."""
    path = bring_fsdp(folder) / "__1_0.distcp"
    tensors = read_safetensors(
        DATA / "dcp/fsdp2_w2_adamw/expected.safetensors")
    rows = tensors["model.out.weight"].data  # of 11, rank 1 has the last 5
    data = bytearray(path.read_bytes())
    data[data.index(rows[-5 * 6 * 4:]) + 50] ^= 0x10
    path.write_bytes(data)


def lie_about_weight(folder):
    """A weight that isn't its rounded fp32 main weight."""
    case = "megatron_zarr/gpt_zarr_optim_bucket_space_v0090"
    path = bring(folder, "old", case)
    chunk = path / "decoder.layers.mlp.linear_fc2.weight/1.0.0"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 0x10
    chunk.write_bytes(data)


def too_large(folder):
    """Two values that f16 has no room for."""
    import struct
    data = struct.pack("<4f", 1.0, 70000.0, -1e6, 2.0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4],
                               "data_offsets": [0, 16]}}).encode()
    (folder / "big.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + data)


def no_target(folder):
    check(not (folder / "small.safetensors").exists(), "published")


def nothing_left(folder):
    check_equal(sorted(p.name for p in folder.iterdir()
                       if p.name not in KEPT), [],
                "left behind")


KEPT = ("tp4", "archive", "disk", "gpt", "fsdp", "old", "llama")
TP8 = "reshard tp4 tp8 --tp 8"


def change_llama(folder, change=None, tie=False, model_type=None,
                 without=None):
    """The Hugging Face model `llama`, with something wrong."""
    from safetensors.torch import load_file, save_file

    source = DATA / "hf/llama"
    (folder / "llama").mkdir()
    config = json.loads((source / "ckpt/config.json").read_text())
    state = load_file(str(source / "expected.safetensors"))
    if change:
        change(state)
    if tie:
        config["tie_word_embeddings"] = True
    if model_type:
        config["model_type"] = model_type
        config["architectures"] = [model_type]
    if without:
        config.pop(without)
    (folder / "llama/config.json").write_text(json.dumps(config))
    save_file(state, str(folder / "llama/model.safetensors"),
              {"format": "pt"})


def add_sinks(state):
    import torch

    state["model.layers.1.self_attn.sinks"] = torch.ones(8)


def cut_keys(state):
    name = "model.layers.1.self_attn.k_proj.weight"
    state[name] = state[name][:-1].clone()


SCENES = [
    Scene("A wrong path", "inspect tp5", 3, ("tp5", "hint:"),
          "The hint names a neighbour that is spelt alike, if there is one."),
    Scene("An empty directory", "inspect empty", 3, ("empty", "hint:"),
          prepare=lambda f: (f / "empty").mkdir()),
    Scene("A file that is not a checkpoint", "inspect notes.txt", 3,
          ("notes.txt",),
          prepare=lambda f: (f / "notes.txt").write_text("hello\n")),
    Scene("A truncated shard", "inspect tp4", 4, ("tp_02/sdp_00.pt",),
          "Headers and directories are checked against the size of the file "
          "whenever it is opened, so `inspect` finds this too.",
          prepare=cut_short),
    Scene("A truncated safetensors file", "inspect model.safetensors", 4,
          ("model.safetensors", "byte"), prepare=cut_safetensors),
    Scene("A missing rank", TP8, (3, 4), ("tp_02",),
          "The peer's own loader stops at the gap and takes what it has "
          "found for the whole model.",
          prepare=lose_rank, after=nothing_left),
    Scene("Ranks that disagree", "verify tp4", 1,
          ("decoder.layer_norm.weight", "tp_01"),
          "A replicated tensor is stored once per rank; the copies are "
          "compared.", prepare=change_norm),
    Scene("Damaged data", "verify tp4 tp8", 1,
          ("decoder.layers.1.ffn.gate_proj.weight",),
          "One flipped bit in one of eight shards.", prepare=flip_middle),
    Scene("A dimension that does not divide", "reshard tp4 tp3 --tp 3", 5,
          ("3", "hint:"),
          "Nothing is padded or dropped. All tensors are checked before the "
          "first byte is written, with `--dry-run` too.", after=nothing_left),
    Scene("A wrong idea of the source", "reshard tp4 tp8 --tp 2:8", 2,
          ("tp=4", "2"),
          "`--tp 2:8` (also `2->8` and `2→8`) says what the source is "
          "believed to be; a wrong belief is an error.", after=nothing_left),
    Scene("The target exists", TP8, (2, 5, 6), ("tp8", "--overwrite"),
          "With `--overwrite` the old one is replaced when the new one is "
          "whole.", prepare=make_target, after=target_kept),
    Scene("What is not a checkpoint is not overwritten", TP8 + " --overwrite", 5,
          ("tp8", "precious"), prepare=make_target, after=target_kept),
    Scene("A read-only target", "reshard tp4 archive/tp8 --tp 8", 6,
          ("archive", "Permission denied"), prepare=lock, user=NOBODY,
          after=nothing_left),
    Scene("A full disk", "reshard tp4 disk/tp8 --tp 8", (6, 7),
          ("disk", "free|left|available|space"),
          "Space is checked before the first byte is written.",
          prepare=small_disk, after=free_disk),
    Scene("No rule for a tensor", TP8, 5, ("my.decoder", "--shard-dims"),
          "How a tensor is split is never guessed from its values: norms "
          "start as all ones on every rank.", prepare=no_yaml,
          after=nothing_left),
    Scene("A target inside the source", "reshard tp4 tp4/tp8 --tp 8", 2,
          ("tp4/tp8",), after=nothing_left),
    Scene("A misspelt option", "reshard tp4 tp8 --overwrit", 2,
          ("--overwrite",)),
    Scene("A misspelt command", "inspct tp4", 2, ("inspect",)),
    Scene("A misspelt format", "convert tp4 out --to safetensor", 2,
          ("safetensors",)),
    Scene("Too little memory", "reshard tp4 tp8 --tp 8 --max-mem 1MiB", (2, 7),
          ("1MiB",), after=nothing_left),
    Scene("A save that did not finish", "inspect gpt", (3, 4),
          ("metadata.json",),
          "`gpt` is a checkpoint of Megatron-Core (tp=2 pp=2). Its "
          "`metadata.json` is written last.", prepare=cut_index),
    Scene("An unsupported backend", "inspect gpt", 4,
          ("stone_tablets", "torch_dist"), prepare=other_backend),
    Scene("Ranks that do not divide layers and heads",
          "reshard gpt out --tp 8 --pp 1", 5, ("linear_fc1", "1, 2, 4"),
          prepare=bring_gpt, after=nothing_left),
    Scene("A layer that is not there", "unshard gpt out --layers 2-4", 5,
          ("layer 4", "0 to 3"),
          "Megatron-Core stacks layers along axis 0; `--layers` takes rows.",
          prepare=bring_gpt, after=nothing_left),
    Scene("A rank's file is gone", "verify fsdp", 1, ("__1_0.distcp",),
          "`fsdp` is a checkpoint of torch's DCP, written by two ranks.",
          prepare=lambda f: (bring_fsdp(f) / "__1_0.distcp").unlink()),
    Scene("One flipped bit", "verify fsdp", 1,
          ("model.out.weight", "__1_0.distcp"),
          "Every piece is a torch archive with a checksum.",
          prepare=flip_item),
    Scene("A damaged source", "reshard fsdp out --dp 4", 4,
          ("model.out.weight", "__1_0.distcp", "--ignore-checksums"),
          "Checksums are compared while bytes pass by, so damage is not "
          "copied as if it were sound.", prepare=flip_item,
          after=nothing_left),
    Scene("No place for a tensor",
          "convert fsdp out --to megatron_zarr --dialect keep", 5,
          ("0-d", "--exclude"), prepare=bring_fsdp, after=nothing_left),
    Scene("A weight that contradicts its optimizer",
          "convert old out --to megatron_torch_dist "
          "--optim fully_reshardable", 5, ("linear_fc2.weight",),
          "`old` has its optimizer state in flat buffers, whose order is not "
          "stored. It is inferred, and proven: each fp32 main weight has to "
          "round to the weight. Here one bit of a weight was flipped, in a "
          "format without checksums.", prepare=lie_about_weight,
          after=nothing_left),
    Scene("A tensor that the family does not know",
          "convert llama out --to megatron_torch_dist --tp 2", 5,
          ("layers.1.self_attn.sinks", "--drop"),
          "`llama` was saved by transformers; somebody added a tensor to it.",
          prepare=lambda f: change_llama(f, add_sinks), after=nothing_left),
    Scene("A tensor of another size",
          "convert llama out --to megatron_torch_dist --tp 2", 5,
          ("k_proj.weight", "[7, 32]", "would be 8"),
          prepare=lambda f: change_llama(f, cut_keys), after=nothing_left),
    Scene("Two heads where the configuration has one",
          "convert llama out --to megatron_torch_dist", 5,
          ("lm_head.weight", "model.embed_tokens.weight", "tie"),
          "Its config.json says that the output layer is the embedding.",
          prepare=lambda f: change_llama(f, tie=True), after=nothing_left),
    Scene("A model of an unknown family",
          "convert llama out --to megatron_torch_dist", 5,
          ("mamba3000", "--family"),
          prepare=lambda f: change_llama(f, model_type="mamba3000"),
          after=nothing_left),
    Scene("A number that nothing says",
          "convert llama out --to megatron_torch_dist", 5,
          ("num_attention_heads", "--set nh="),
          prepare=lambda f: change_llama(f, without="num_attention_heads"),
          after=nothing_left),
    Scene("Values too large for the new type",
          "convert big.safetensors small.safetensors --to safetensors "
          "--dtype f16", 5,
          ("w: 2 values", "largest", "--allow-overflow"),
          "They would become infinite. Values that round to zero are said "
          "with `-v`.",
          prepare=too_large, after=no_target),
    Scene("Two wishes that exclude each other",
          "unshard tp4 out.safetensors --model-only --optim-only", 2,
          ("only",), shown=False),
    Scene("No command", "", 2, ("inspect",), shown=False),
    Scene("A misspelt family", "reshard tp4 tp8 --tp 8 --family quen", 2,
          ("qwen",), shown=False),
    Scene("A number that is none", "reshard tp4 tp8 --tp four", 2,
          ("four",), shown=False),
    Scene("Nothing selected", "unshard tp4 out.safetensors --keys nothing.*",
          (2, 3, 5), ("nothing",), shown=False, after=nothing_left),
]


def play(folder, scene, ckpt):
    """Runs a scene. Returns the Result, and its transcript for the page."""
    shutil.copytree(DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
                    folder / "tp4")
    if scene.prepare:
        scene.prepare(folder)
    if scene.user is not None and os.geteuid() == 0:
        open_up(folder)
        result = ckpt.run(*scene.args.split(), cwd=folder, user=scene.user)
    else:
        result = ckpt.run(*scene.args.split(), cwd=folder)
    try:
        codes = scene.code if isinstance(scene.code, tuple) else (scene.code,)
        check(result.code in codes,
              f"exit status {result.code}, expected {codes}\n{result}")
        said = result.err + (result.out if result.code == 1 else "")
        for text in scene.says:
            check(re.search(text.replace(".", r"\."), said),
                  f"does not say {text!r}\n{result}")
        errors = [l for l in result.err.splitlines()
                  if l.startswith("error: ")]
        check_equal(len(errors), 0 if result.code in (0, 1) else 1,
                    f"number of error lines\n{result}\n")
    finally:
        if scene.after:
            scene.after(folder)
    return result, transcript(scene, result)


def open_up(folder):
    """Lets another user reach the folder."""
    for parent in folder.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(parent.stat().st_mode | 0o055)


def transcript(scene, result):
    said = (result.out + result.err).strip()
    return (f"```\n$ ckpt {scene.args}\n{said}\n```\n"
            f"Exit status {result.code}.\n")


def steady(text):
    """Free space depends on the file system's own blocks."""
    return re.sub(r"\d+ are free", "N are free", text)


def test_scene(folder, scene):
    _, text = play(folder, scene, CKPT)
    if scene.shown and not CKPT.sanitized:
        page = PAGE.read_text() if PAGE.exists() else ""
        check(steady(text) in steady(page),
              f"docs/errors.md shows something else than\n{text}"
              f"(errors_test.py --update writes the page anew)")


def test_closed_pipe(folder):
    """`ckpt inspect | head -1` is quiet and not a failure."""
    source = DATA / "torch_pt/training_objects/ckpt/ckpt_p2.pt"
    end = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" inspect "$1" --json --objects '
         "| head -c 1 >/dev/null", CKPT.path, source],
        stderr=subprocess.PIPE, text=True)
    check_equal((end.returncode, end.stderr), (0, ""), "status and stderr")


def test_overwrite(folder):
    """--overwrite replaces, but only with a whole new target."""
    shutil.copytree(DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
                    folder / "tp4")
    make_target(folder)
    CKPT.run("reshard", "tp4", "tp8", "--tp", 3, "--overwrite",
             cwd=folder).want(5)
    target_kept(folder)
    CKPT.run("reshard", "tp4", "tp8", "--tp", 8, "--overwrite",
             cwd=folder).want(5)  # it isn't a checkpoint
    target_kept(folder)
    shutil.copytree(folder / "tp4", folder / "tp8", dirs_exist_ok=True)
    CKPT.run("reshard", "tp4", "tp8", "--tp", 8, "--overwrite",
             cwd=folder).want(5)  # it is one, but holds something else
    target_kept(folder)
    (folder / "tp8/precious").unlink()
    CKPT.ok("reshard", "tp4", "tp8", "--tp", 8, "--overwrite", cwd=folder)
    CKPT.ok("verify", "tp4", "tp8", cwd=folder)
    check_equal(sorted(p.name for p in folder.iterdir()), ["tp4", "tp8"],
                "left behind")


def test_help(folder):
    """Every command has help with an example, on stdout."""
    for command in ("", "inspect", "convert", "reshard", "unshard", "verify",
                    "diff"):
        result = CKPT.ok(*filter(None, (command, "--help")))
        check("ckpt " + (command or "inspect") in result.out,
              f"no example\n{result}")
        check_equal(result.err, "", "stderr")
    check("0.1" in CKPT.ok("--version").out, "no version")


HEAD = """# What goes wrong, and what ckpt says

Each of these is a real run, in a folder with `tp4`, a small checkpoint that
fairseq2 wrote with 4-way tensor parallelism. Errors go to stderr and name
the file or tensor, the numbers, and what to do next. (This page is made and
checked by `tests/app/cli/errors_test.py`.)

| exit status | meaning |
|---|---|
| 0 | done, same, valid |
| 1 | check failed: `verify` found damage, `diff` found differences |
| 2 | wrong usage |
| 3 | input missing, or not a recognized checkpoint |
| 4 | input damaged |
| 5 | can't be done faithfully |
| 6 | an I/O operation failed |
| 7 | a resource or an optional module is missing |
| 8 | refused as unsafe |
| 70 | a bug in ckpt: please report it |
| 130, 143 | interrupted, terminated |
"""


def update(binary):
    import tempfile

    text = HEAD
    for scene in SCENES:
        if not scene.shown:
            continue
        with tempfile.TemporaryDirectory() as folder:
            _, said = play(Path(folder), scene, Ckpt(binary))
        text += f"\n## {scene.title}\n\n"
        text += f"{scene.about}\n\n" if scene.about else ""
        text += said
    PAGE.write_text(text)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for scene in SCENES:
        suite.add(f"{scene.title}: ckpt {scene.args}", test_scene, scene)
    suite.add("closed pipe", test_closed_pipe)
    suite.add("--overwrite", test_overwrite)
    suite.add("--help", test_help)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--update"]:
        CKPT = Ckpt(sys.argv[2] if len(sys.argv) > 2 else "build/bin/ckpt")
        try:
            update(CKPT.path)
        except (Failure, Skip) as failure:
            sys.exit(f"error: {failure}")
    else:
        Suite(__doc__).main(prepare)
