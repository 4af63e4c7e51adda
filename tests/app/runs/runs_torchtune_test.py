#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders that torchtune's own checkpointers write: each form that they have.

What torchtune trains has other names than transformers' and other rows of
queries and keys. A state is named by what it is of, or it stays numbered.
"""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

from peer import find
from support import (
    HANG, Skip, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "torchtune"
MADE = []  # the peer's folder, once it exists
ONE = threading.Lock()


def made(suite_folder):
    if not (PEER / "torchtune").is_dir():
        raise Skip("torchtune is not installed (scripts/test.sh does it)")
    with ONE:
        if not MADE:
            root = suite_folder / "peer"
            done = subprocess.run(
                [sys.executable, "-B", "-W", "ignore",
                 find("runs_torchtune_peer.py"), root],
                capture_output=True, text=True, timeout=HANG, check=False)
            check(done.returncode == 0, done.stderr[-3000:])
            MADE.append(root)
    return MADE[0]


def tensors(found, kind):
    return {t["name"]: t for t in found["tensors"] if t["kind"] == kind}


def is_state(name):
    return name.endswith((".exp_avg", ".exp_avg_sq", ".step"))


def numbered(found):
    names = sorted(tensors(found, "optim"))
    check(names and all(n.startswith("optimizer.state.") for n in names),
          f"{names[:5]}")
    check([p for p in found["problems"] if p["kind"] == "numbered_state"],
          f"{found['problems']}")


def same_states(found, live):
    got = tensors(found, "optim")
    want = {n: t for n, t in live.items() if is_state(n)}
    check_equal(sorted(got), sorted(want), "states")
    for name, tensor in want.items():
        check_equal(got[name]["digest"], digest(tensor.data), name)


def same_model(found, want):
    got = tensors(found, "model")
    check_equal(sorted(got), sorted(want), "model")
    for name, tensor in want.items():
        check_equal(got[name]["digest"], digest(tensor.data), name)


def test_form(folder, name, own, by_name):
    """`own`: the model has the names and rows that are trained."""
    peer = made(folder.parent)
    live = read_safetensors(peer / name / "live.safetensors")
    found = CKPT.inspect(peer / name, "--digest")
    check(found["trainer"]["name"].startswith("torchtune"), found["trainer"])
    check_equal(found["trainer"]["step"], 0, "step")
    if own:
        same_model(found, {n: t for n, t in live.items() if not is_state(n)})
    elif name.startswith("adapter"):
        same_model(found, read_safetensors(
            peer / name / "epoch_0" / "adapter_model.safetensors"))
    else:
        same_model(found, read_safetensors(peer / "base/model.safetensors"))
    if by_name:
        same_states(found, live)
    else:
        numbered(found)
    CKPT.ok("verify", peer / name)
    for file in found["file_list"]:
        check(file["part"], file)


def test_meta(folder):
    """Meta's names, torchtune's rows: the pickle has the modules' order."""
    peer = made(folder.parent)
    live = read_safetensors(peer / "meta/live.safetensors")
    found = CKPT.inspect(peer / "meta", "--digest")
    got = sorted((t["digest"], t["state"])
                 for t in found["tensors"] if t["kind"] == "optim")
    check_equal(got, sorted((digest(t.data), n.rsplit(".", 1)[1])
                            for n, t in live.items() if is_state(n)),
                "states")
    model = {t["digest"]: t["name"] for t in found["tensors"]
             if t["kind"] == "model"}
    states = {(t["param"], t["state"]): t["digest"]
              for t in found["tensors"] if t["kind"] == "optim"}
    for name, tensor in live.items():
        if not is_state(name):
            param = model[digest(tensor.data)]
            check_equal(states[param, "exp_avg"],
                        digest(live[name + ".exp_avg"].data), param)


def test_last(folder):
    """The last epoch has no state; the state of the one before isn't its
    own."""
    found = CKPT.inspect(made(folder.parent) / "last")
    check_equal(found["trainer"]["step"], 1, "step")
    check_equal(tensors(found, "optim"), {}, "states")
    check([p for p in found["problems"] if p["kind"] == "stale_part"],
          f"{found['problems']}")


def test_adapter_said(folder):
    found = CKPT.inspect(made(folder.parent) / "lora")
    said = [Path(p["file"]).name for p in found["problems"]
            if p["kind"] == "second_copy"]
    check_equal(sorted(said), ["adapter_model.pt", "adapter_model.safetensors"],
                "copies")


def test_steps(folder):
    """torchtune's main branch (0.7): the state is in the step's folder."""
    peer = made(folder.parent)
    root = folder / "out"
    for step in (5, 10):
        shutil.copytree(peer / "named/epoch_0", root / f"step_{step}")
    shutil.copy(peer / "named/recipe_state/recipe_state.pt", root / "step_5")
    for at, step, states in ((root, 10, 0), (root / "step_5", 5, 63)):
        found = CKPT.inspect(at)
        check_equal(found["trainer"], {"name": "torchtune", "step": step},
                    "trainer")
        check_equal(len(tensors(found, "optim")), states, "states")
        check_equal(len(tensors(found, "model")), 21, "model")


def test_resume(folder):
    """torchtune's DistributedCheckpointer resumes what ckpt reshards."""
    peer = made(folder.parent)
    (folder / "out").mkdir()
    CKPT.ok("reshard", peer / "dist", folder / "out/dist_epoch_0", "--dp", 3)
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", find("runs_torchtune_peer.py"),
         peer, folder / "out", folder / "got.safetensors"],
        capture_output=True, text=True, timeout=HANG, check=False)
    check(done.returncode == 0, done.stderr[-3000:])
    got = read_safetensors(folder / "got.safetensors")
    want = read_safetensors(peer / "dist/live.safetensors")
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(got[name].data == tensor.data, name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, own, by_name in (
            ("named", False, True), ("numbered", False, False),
            ("bin", False, False), ("tune", True, True),
            ("lora", False, True), ("lora_numbered", False, False),
            ("adapter", False, True), ("adapter_numbered", False, False),
            ("dist", True, True), ("dist_numbered", True, False)):
        suite.add(f"torchtune: {name}", test_form, name, own, by_name)
    suite.add("torchtune: meta", test_meta)
    suite.add("torchtune: the last epoch", test_last)
    suite.add("torchtune: an adapter beside its merged model",
              test_adapter_said)
    suite.add("torchtune: steps of the main branch", test_steps)
    suite.add("torchtune: resumes for 3 ranks", test_resume)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
