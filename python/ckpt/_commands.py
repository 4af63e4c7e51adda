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
from contextvars import ContextVar
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


@dataclass(frozen=True)
class Delta:
    """What diff(write=...) wrote or, with `dry_run`, would write."""

    path: str
    written: list[dict[str, Any]]  # its files; of lossless=True not yet: at most
    document: dict[str, Any] = field(repr=False)
    tensors: int = 0  # of a difference
    # Of a LoRA: name, rank, norm and the part of it that is left (error), the
    # largest error first; and modules that are whole in it.
    modules: list[dict[str, Any]] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    files: int = 0  # of B, which lossless=True packs: so many,
    bytes: int = 0  # of so many bytes
    xored: int = 0  # of those, the ones that A is needed for


def _word(value: Any) -> str:
    """Popen would not cut it short, but its ValueError names nothing."""
    text = os.fsdecode(value) if isinstance(
        value, (bytes, os.PathLike)) else str(value)
    if "\0" in text:
        raise errors.UsageError(f"an argument holds a NUL: {text!r}")
    return text


def place(path: Path) -> str:
    """A path as a word that can't be taken for an option."""
    text = _word(path)
    return "./" + text if text.startswith("-") else text


def _words(options: dict[str, Any]) -> Iterator[str]:
    """max_mem="4G" -> --max-mem=4G; True -> the flag; several -> repeated; of a
    mapping, --set takes its pairs and every other option its JSON. One word
    each, so that a value may begin with "-"."""
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if isinstance(value, Mapping):
            value = [f"{key}={one}" for key, one in value.items()] \
                if flag == "--set" else json.dumps(dict(value))
        if value is None or value is False:
            continue
        if value is True:
            yield flag
            continue
        one_value = isinstance(value, (str, bytes)) or \
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


class Running:
    """Processes that another thread may end: those of a task of asyncio. One
    that begins after the end is ended, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: "list[subprocess.Popen[bytes]]" = []
        self._ended = False

    def add(self, process: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._processes.append(process)
            if self._ended:
                process.terminate()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()


running: ContextVar[Optional[Running]] = ContextVar("running", default=None)


def run(*words: Path, progress: Any = None,
        accept: tuple[int, ...] = (0,), **options: Any) -> dict[str, Any]:
    """Runs any command with --json and returns its document; a lone path is a
    plan to run. A status that is not accepted raises the exception for it. A
    word of type str may be an option; pass a path that begins with "-" as a
    pathlib.Path. `progress` is called by a thread, with the bytes that are done
    and all, or is a bar of tqdm; what it raises ends the command and is raised
    here."""
    if len(words) == 1 and (not isinstance(words[0], str) or
                            os.path.isfile(words[0])):
        words = ("run", words[0])
    progress = _callable(progress)
    command = [_native.binary(), *(
        _word(word) if isinstance(word, str) else place(word)
        for word in words), *_words(options), "--json"]
    if progress is not None:
        command += ["--progress", "json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ear = _Ear(process, progress)
    mine = running.get()
    if mine is not None:
        mine.add(process)
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
    if status and not out.strip():  # accepted as an answer, and there is none
        raise errors.from_json("".join(ear.said), status)
    document: dict[str, Any] = json.loads(out) if out.strip() else {}
    document.setdefault("warnings", [
        line.strip().removeprefix("warning: ") for line in ear.said
        if line.startswith("warning: ")])
    return document


def _callable(progress: Any) -> Optional[Progress]:
    """A bar of tqdm, as the function that moves it."""
    if progress is None or not hasattr(progress, "update"):
        return progress  # type: ignore[no-any-return]

    def move(done: int, total: int) -> None:
        progress.total = total
        progress.update(done - progress.n)
    return move


def _progress_of(line: str) -> Optional[tuple[int, int]]:
    """Bytes done and in all, from a line that says so."""
    try:
        event = json.loads(line) if line.startswith("{") else {}
        if str(event.get("schema", "")).startswith("ckpt/progress"):
            return int(event["bytes_done"]), int(event["bytes_total"])
    except (ValueError, KeyError, TypeError):
        pass
    return None


# Positional arguments that are paths: one that begins with "-" is no option.
_PATHS = ("source", "target", "path", "paths", "other", "left", "right", "plan",
          "dir", "root")


def called(command: str, given: dict[str, Any], positional: tuple[str, ...],
           accept: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Runs a command with the arguments that a function of _functions.py was
    given: its positional ones, in this order, and its options."""
    words: list[Path] = [command]
    for name in positional:
        value = given.pop(name)
        if value is None:
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            words.append(place(one) if name in _PATHS else _word(one))
    progress = given.pop("progress", None)
    return run(*words, progress=progress, accept=accept, **given)


def document_of(command: str, given: dict[str, Any],
                positional: tuple[str, ...]) -> dict[str, Any]:
    """The document of a command whose negative answer is one, too."""
    return called(command, given, positional, (0, 1))


def written_of(command: str, given: dict[str, Any],
               positional: tuple[str, ...]) -> Written:
    target = given.get("target", given.get("dir"))
    # What sync leaves out is in its document.
    accept = (0, 1) if command == "sync" else (0,)
    said = called(command, given, positional, accept)
    tensors = said.get("tensors", 0)
    return Written(_word(said.get("target", "") if target is None else target),
                   tensors if isinstance(tensors, int) else len(tensors),
                   said.get("files", []), said.get("written", []),
                   said["warnings"], said, bool(said.get("skipped")))


def verdict_of(command: str, given: dict[str, Any],
               positional: tuple[str, ...]) -> Verdict:
    """Damage is a verdict, not an exception."""
    try:
        said = called(command, given, positional,
                      (0, 1, 8) if command == "scan" else (0, 1))
    except errors.DamagedError as error:
        return Verdict(False, [{
            "kind": error.kind, "severity": "damage", "file": error.path or "",
            "tensor": error.tensor or "", "message": error.message,
            "hint": error.hint or ""}], {})
    if command == "scan":
        return Verdict(said["ok"], _unsafe(said), said)
    problems = said.get("problems", []) + said.get("differences", [])
    return Verdict(bool(said.get("ok", not problems)), problems, said)


def _unsafe(said: dict[str, Any]) -> list[dict[str, Any]]:
    """What scan found that would run."""
    return [{"path": file["path"], "kind": file["verdict"], **one}
            for file in said["files"]
            for one in file["globals"] or [{"message": file["problem"]}]
            if file["verdict"] not in ("safe", "no_pickle")
            and not one.get("allowed")]


def difference_of(command: str, given: dict[str, Any],
                  positional: tuple[str, ...]) -> Union[Difference, Delta]:
    said = called(command, given, positional, (0, 1))
    if "written" in said:
        lora, packed = said.get("lora", {}), said.get("lossless", {})
        return Delta(said["path"], said["written"], said,
                     said.get("tensors", 0), lora.get("modules", []),
                     lora.get("saved", []), packed.get("files", 0),
                     packed.get("bytes", 0), packed.get("xored", 0))
    return Difference(bool(said.get("same")), said.get("differences", []),
                      said)


class Served:
    """A page that `ckpt view` serves on this machine, until close()."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self._process, self.url = process, url

    def __repr__(self) -> str:
        return f"ckpt.Served({self.url!r})"

    def _repr_html_(self) -> str:
        return f"<a href='{self.url}' target='_blank'>{self.url}</a>"

    def close(self) -> None:
        if self._process.poll() is None:
            _stop(self._process)

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def served(command: str, given: dict[str, Any],
           positional: tuple[str, ...]) -> Served:
    """Starts a server and returns once it says where."""
    given.pop("progress", None)
    words = [place(given.pop(name)) for name in positional]
    process = subprocess.Popen(
        [_native.binary(), command, *words, *_words(given), "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    ear = _Ear(process, None)
    ear.start()
    assert process.stdout
    said = b""
    for line in process.stdout:
        said += line
        try:
            found = json.loads(said)
        except ValueError:
            continue
        return Served(process, found["url"])
    status = process.wait()
    ear.join()
    raise errors.from_json("".join(ear.said), status)


def digest(path: Path, **options: Any) -> dict[str, str]:
    """Digests by tensor; independent of topology and format."""
    said = run("inspect", place(path), digest=True, **options)
    return {tensor["name"]: tensor["digest"] for tensor in said["tensors"]}


def fingerprint(path: Path, **options: Any) -> str:
    """One sha256 of the model's tensors, names, dtypes and shapes: the same
    for the same model in any format and topology."""
    said = run("inspect", place(path), digest=True, **options)
    return str(said["fingerprint"])
