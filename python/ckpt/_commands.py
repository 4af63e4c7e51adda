# SPDX-License-Identifier: Apache-2.0
"""The commands, as functions. Each runs the `ckpt` binary that comes with this
package in a separate process: a memory bound, a crash or a signal there does
not affect this one, and other threads continue meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import _native, errors

Path = Union[str, bytes, os.PathLike[Any]]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Written:
    """What a run wrote or, with `dry_run`, would write."""

    path: str
    tensors: int
    files: list[dict[str, Any]]  # what became of each file of the source
    written: list[dict[str, Any]]  # the files of the target
    warnings: list[str]
    document: dict[str, Any] = field(repr=False)
    skipped: bool = False  # the target existed: if_exists="skip"


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


def _word(value: Any) -> str:
    """Popen would not cut it short, but its ValueError names nothing."""
    text = os.fsdecode(value) if isinstance(
        value, (bytes, os.PathLike)) else str(value)
    if "\0" in text:
        raise errors.UsageError(f"an argument holds a NUL: {text!r}")
    return text


def _place(path: Path) -> str:
    """A path as a word that can't be taken for an option."""
    text = _word(path)
    return "./" + text if text.startswith("-") else text


def _words(options: dict[str, Any]) -> Iterator[str]:
    """max_mem="4G" -> --max-mem=4G; True -> the flag; several -> repeated. One
    word each, so that a value may begin with "-"."""
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            yield flag
            continue
        one_value = isinstance(value, (str, bytes, Mapping)) or \
            not isinstance(value, Iterable)
        for one in (value,) if one_value else value:
            yield f"{flag}={_word(one)}"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Lets the process clean up; if that takes long, kills it."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:  # a second Ctrl-C
        process.kill()
        process.wait()
        raise


class _Ear(threading.Thread):
    """Reads a process's stderr to the end: a pipe that nobody empties would
    block the process. What `progress` raises ends the process and is raised by
    the caller."""

    def __init__(self, process: "subprocess.Popen[bytes]",
                 progress: Optional[Progress]) -> None:
        super().__init__(daemon=True)
        self.said: list[str] = []
        self.raised: Optional[BaseException] = None
        self._process, self._progress = process, progress

    def run(self) -> None:
        assert self._process.stderr
        for raw in self._process.stderr:
            line = raw.decode("utf-8", "replace")
            event = _progress_of(line) if self._progress else None
            if event is None:
                self.said.append(line)
            elif self.raised is None and self._progress:
                try:
                    self._progress(*event)
                except BaseException as error:
                    self.raised = error
                    self._process.terminate()


def run(*words: Path, progress: Optional[Progress] = None,
        accept: tuple[int, ...] = (0,), **options: Any) -> dict[str, Any]:
    """Runs any command with --json and returns its document. A status that is
    not accepted raises the exception for it. A word of type str may be an
    option; pass a path that begins with "-" as a pathlib.Path. `progress` is
    called by a thread; what it raises ends the command and is raised here."""
    command = [_native.binary(), *(
        _word(word) if isinstance(word, str) else _place(word)
        for word in words), *_words(options), "--json"]
    if progress is not None:
        command += ["--progress", "json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ear = _Ear(process, progress)
    try:
        ear.start()
        assert process.stdout
        out = process.stdout.read()
        status = process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        if ear.ident is not None:
            ear.join()
    if ear.raised is not None:
        raise ear.raised
    if status not in accept:
        raise errors.from_json("".join(ear.said),
                               128 - status if status < 0 else status)
    document: dict[str, Any] = json.loads(out) if out.strip() else {}
    document.setdefault("warnings", [
        line.strip().removeprefix("warning: ") for line in ear.said
        if line.startswith("warning: ")])
    return document


def _progress_of(line: str) -> Optional[tuple[int, int]]:
    """Bytes done and in all, from a line that says so."""
    try:
        event = json.loads(line) if line.startswith("{") else {}
        if str(event.get("schema", "")).startswith("ckpt/progress"):
            return int(event["bytes_done"]), int(event["bytes_total"])
    except (ValueError, KeyError, TypeError):
        pass
    return None


def inspect(path: Path, **options: Any) -> dict[str, Any]:
    """`ckpt inspect --json`."""
    return run("inspect", _place(path), **options)


def _write(command: str, source: Path, target: Path,
           progress: Optional[Progress], options: dict[str, Any]) -> Written:
    said = run(command, _place(source), _place(target), progress=progress, **options)
    tensors = said.get("tensors", 0)
    return Written(_word(target),
                   tensors if isinstance(tensors, int) else len(tensors),
                   said.get("files", []), said.get("written", []),
                   said["warnings"], said, bool(said.get("skipped")))


def convert(source: Path, target: Path, *, to: Optional[str] = None,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """`ckpt convert`: options as on the command line, with `_` for `-`."""
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
    """`ckpt unshard`: one file or folder of whole tensors."""
    return _write("unshard", source, target, progress, options)


def verify(path: Path, other: Optional[Path] = None,
           **options: Any) -> Verdict:
    """`ckpt verify`: damage is a verdict, not an exception."""
    words = [_place(one) for one in (path, other) if one is not None]
    try:
        said = run("verify", *words, accept=(0, 1), **options)
    except errors.DamagedError as error:
        return Verdict(False, [{
            "kind": error.kind, "severity": "damage", "file": error.path or "",
            "tensor": error.tensor or "", "message": error.message,
            "hint": error.hint or ""}], {})
    problems = said.get("problems", []) + said.get("differences", [])
    return Verdict(bool(said.get("ok", not problems)), problems, said)


def diff(left: Path, right: Path, **options: Any) -> Difference:
    """`ckpt diff`."""
    said = run("diff", _place(left), _place(right), accept=(0, 1), **options)
    return Difference(bool(said.get("same")), said.get("differences", []),
                      said)


def digest(path: Path, **options: Any) -> dict[str, str]:
    """Digests by tensor; independent of topology and format."""
    said = run("inspect", _place(path), digest=True, **options)
    return {tensor["name"]: tensor["digest"] for tensor in said["tensors"]}


def scan(*paths: Path) -> Verdict:
    """`ckpt scan`: would loading these run code?"""
    said = run("scan", *map(_place, paths), accept=(0, 1, 8))
    return Verdict(said["ok"], [
        {"path": file["path"], "kind": file["verdict"], **one}
        for file in said["files"]
        for one in file["globals"] or [{"message": file["problem"]}]
        if file["verdict"] not in ("safe", "no_pickle")
        and not one.get("allowed")], said)
