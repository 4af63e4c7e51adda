# SPDX-License-Identifier: Apache-2.0
"""The commands, as functions. Each runs the `ckpt` binary that comes with this
package in a process of its own: a bound of memory, a crash or a signal there
is not one here, and other threads go on meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import _native, errors

Path = Union[str, os.PathLike[str]]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Written:
    """What a run wrote, or with `dry_run` would write."""

    path: str
    tensors: int
    files: list[dict[str, Any]]  # what became of each file of the source
    written: list[dict[str, Any]]  # the files of the target
    warnings: list[str]
    document: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """What verify found; true if nothing is wrong."""

    ok: bool
    problems: list[dict[str, Any]]
    document: dict[str, Any] = field(repr=False)

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Difference:
    """What diff found; true if there is a difference."""

    same: bool
    differences: list[dict[str, Any]]
    document: dict[str, Any] = field(repr=False)

    def __bool__(self) -> bool:
        return not self.same


def _words(options: dict[str, Any]) -> Iterable[str]:
    """max_mem="4G" -> --max-mem 4G; True -> the flag; a list -> repeated."""
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            yield flag
        elif isinstance(value, (list, tuple)):
            for one in value:
                yield from (flag, os.fspath(one) if isinstance(
                    one, os.PathLike) else str(one))
        else:
            yield from (flag, os.fspath(value) if isinstance(
                value, os.PathLike) else str(value))


def run(*words: Path, progress: Optional[Progress] = None,
        accept: tuple[int, ...] = (0,), **options: Any) -> dict[str, Any]:
    """Any command with --json: its document. A status that is not accepted
    raises the exception of its kind."""
    command = [_native.binary(), *(os.fspath(word) for word in words),
               *_words(options), "--json"]
    if progress:
        command += ["--progress", "json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said: list[str] = []

    def listen() -> None:
        assert process.stderr
        for raw in process.stderr:
            line = raw.decode("utf-8", "replace")
            if progress and _is_progress(line, progress):
                continue
            said.append(line)

    ear = threading.Thread(target=listen, daemon=True)
    ear.start()
    try:
        assert process.stdout
        out = process.stdout.read()
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        ear.join()
    if status not in accept:
        text = "".join(said)
        raise errors.from_json(text, 128 - status if status < 0 else status)
    document = json.loads(out) if out.strip() else {}
    document.setdefault("warnings", [
        line.strip().removeprefix("warning: ") for line in said
        if line.startswith("warning: ")])
    return document


def _is_progress(line: str, progress: Progress) -> bool:
    if not line.startswith("{"):
        return False
    try:
        event = json.loads(line)
    except ValueError:
        return False
    if not str(event.get("schema", "")).startswith("ckpt/progress"):
        return False
    progress(event["bytes_done"], event["bytes_total"])
    return True


def inspect(path: Path, **options: Any) -> dict[str, Any]:
    """`ckpt inspect --json`."""
    return run("inspect", path, **options)


def _write(command: str, source: Path, target: Path,
           progress: Optional[Progress], options: dict[str, Any]) -> Written:
    said = run(command, source, target, progress=progress, **options)
    tensors = said.get("tensors", 0)
    return Written(os.fspath(target),
                   tensors if isinstance(tensors, int) else len(tensors),
                   said.get("files", []), said.get("written", []),
                   said["warnings"], said)


def convert(source: Path, target: Path, *, to: Optional[str] = None,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """`ckpt convert`: options as the command line has them, `_` for `-`."""
    return _write("convert", source, target, progress, {"to": to, **options})


def reshard(source: Path, target: Path, *, tp: Union[int, str, None] = None,
            pp: Union[int, str, None] = None,
            dp: Union[int, str, None] = None,
            ep: Union[int, str, None] = None,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """`ckpt reshard`: another topology, the same format."""
    return _write("reshard", source, target, progress,
                  {"tp": tp, "pp": pp, "dp": dp, "ep": ep, **options})


def unshard(source: Path, target: Path, *,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """`ckpt unshard`: one file, or one folder, of whole tensors."""
    return _write("unshard", source, target, progress, options)


def verify(path: Path, other: Optional[Path] = None,
           **options: Any) -> Verdict:
    """`ckpt verify`: damage is a verdict, not an exception."""
    words = (path,) if other is None else (path, other)
    try:
        said = run("verify", *words, accept=(0, 1), **options)
    except errors.DamagedError as error:
        return Verdict(False, [{"kind": error.kind, "message": str(error)}],
                       {})
    problems = said.get("problems", []) + said.get("differences", [])
    return Verdict(bool(said.get("ok", not problems)), problems, said)


def diff(left: Path, right: Path, **options: Any) -> Difference:
    """`ckpt diff`."""
    said = run("diff", left, right, accept=(0, 1), **options)
    return Difference(bool(said.get("same")), said.get("differences", []),
                      said)


def digest(path: Path, **options: Any) -> dict[str, str]:
    """Digests by tensor; they don't depend on topology or format."""
    said = run("inspect", path, digest=True, **options)
    return {tensor["name"]: tensor["digest"] for tensor in said["tensors"]}


def scan(*paths: Path) -> Verdict:
    """`ckpt scan`: would loading these run code?"""
    said = run("scan", *paths, accept=(0, 1, 8))
    return Verdict(said["ok"], [
        {"path": file["path"], "kind": file["verdict"], **one}
        for file in said["files"]
        for one in file["globals"] or [{"message": file["problem"]}]
        if file["verdict"] not in ("safe", "no_pickle")
        and not one.get("allowed")], said)
