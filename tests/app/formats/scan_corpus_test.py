#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt scan` over a corpus that the libraries themselves write.

A hostile file is loaded in a process of its own by the loader that takes such
files, and counts only if a marker shows that it ran: none may be missed. A
sound file is loaded by its loader, too, and none may be called hostile. Files
are combinations: what is called, what carries it, and who loads it.
"""

import os
import signal
import sys
import warnings
from pathlib import Path

from support import Suite, check

warnings.simplefilter("ignore")
for peer in ("loaders", "sklearn", "transformers_*"):
    sys.path.extend(map(str, Path(sys.prefix).glob(peer)))
os.environ["KERAS_BACKEND"] = "torch"
# A fork has no threads but its own, and would wait for those of a pool.
os.environ["OMP_NUM_THREADS"] = "1"

import scan_hostile  # noqa: E402
import scan_sound  # noqa: E402

CKPT = None
SECONDS = 30


def loaded(path, load):
    """Loads a file in a fork; what went wrong, "" if nothing did."""
    error = path.with_name(path.name + ".error")
    child = os.fork()
    if child == 0:
        try:
            os.environ["MARKER"] = str(path) + ".ran"
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            signal.alarm(SECONDS)
            load(path)
        except BaseException as fault:
            error.write_text(f"{type(fault).__name__}: {fault}")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        return f"status {status}"
    if not error.exists():
        return ""
    text = error.read_text()
    error.unlink()
    return text


def ran(path):
    marker = Path(str(path) + ".ran")
    if not marker.exists():
        return False
    marker.unlink()
    return True


def verdicts(folder):
    """What scan says of each file below; one run."""
    files = CKPT.run("scan", folder, "--json").json()["files"]
    said = {Path(file["path"]): file for file in files}

    def of(path):
        found = [said[path]] if path in said else [
            file for name, file in said.items() if path in name.parents]
        worst = [file for file in found
                 if file["verdict"] in ("executes", "unreadable")]
        return worst[0] if worst else found[0]
    return of


def short(file):
    return str({key: file[key] for key in ("verdict", "problem")}) + str(
        [[g["module"], g["name"], *g["uses"], g["where"]]
         for g in file["globals"] if not g["allowed"]][:4])


def test_hostile(folder, loader, make):
    """Each file that runs is found."""
    hostile, idle = [], []
    for name, path, load in make(folder):
        error = loaded(path, load)
        if ran(path):
            hostile.append((name, path))
        else:
            idle.append(f"{name}: {error}")
    of = verdicts(folder)
    missed = [f"{name}: {short(of(path))}" for name, path in hostile
              if of(path)["verdict"] != "executes"]
    print(f"{loader:36}{len(hostile):5} ran {len(hostile) - len(missed):5} found")
    check(not missed, f"missed {len(missed)} of {len(hostile)}: {missed}")
    check(hostile and len(idle) <= len(hostile) // 3,
          f"{len(idle)} ran nothing: {idle[:5]}")


def test_sound(folder, loader, make):
    """Each file is loaded by its loader, and called safe."""
    sound, broken = [], []
    for name, path, load in make(folder):
        error = loaded(path, load)
        sound.append((name, path))
        if error:
            broken.append(f"{name}: {error}")
    of = verdicts(folder)
    alarms = [f"{name}: {short(of(path))}" for name, path in sound
              if of(path)["verdict"] not in ("safe", "no_pickle")]
    print(f"{loader:36}{len(sound):5} sound {len(sound) - len(alarms):5} safe")
    check(sound and not broken, f"not loaded: {broken[:5]} of {len(sound)}")
    check(not alarms, f"{len(alarms)} of {len(sound)}: {alarms[:5]}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    try:
        import torch
        torch.set_num_threads(1)
    except ImportError:
        pass
    for loader, make in scan_hostile.groups():
        suite.add(f"hostile: {loader}", test_hostile, loader, make)
    for loader, make in scan_sound.groups():
        suite.add(f"sound: {loader}", test_sound, loader, make)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
