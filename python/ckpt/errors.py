# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as exceptions with the fields of ckpt's errors."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection
from typing import Any, Optional


def _shown(text: str) -> str:
    """Escapes a name, which may be anything: a message is one line of text."""
    return "".join(one if one.isprintable() else
                   one.encode("unicode_escape").decode() for one in text)


class Error(Exception):
    """Base class of all. `status` is the command line's exit status."""

    status: int = 70
    kind: str = "bug"

    def __init__(self, message: str, *, path: Optional[str] = None,
                 tensor: Optional[str] = None, hint: Optional[str] = None,
                 status: Optional[int] = None) -> None:
        where = ": ".join(_shown(part) for part in (path, tensor) if part)
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text} (hint: {hint})" if hint else text)
        self.message = message
        self.path = path
        self.tensor = tensor
        self.hint = hint
        if status is not None:
            self.status = status


class NegativeError(Error):
    """A negative answer where a positive one was required."""

    status, kind = 1, "negative"


class UsageError(Error, ValueError):
    """Arguments that don't describe anything that can be done."""

    status, kind = 2, "usage"


class MissingError(Error, FileNotFoundError):
    """No such path, or no known checkpoint there."""

    status, kind = 3, "missing"


class NoTensorError(Error, KeyError):
    """A name that no tensor of a checkpoint has. What is near is looked for
    when it is asked for: that takes a second among many names."""

    status, kind = 3, "missing"

    def __init__(self, name: str, path: str, names: Collection[str]) -> None:
        self._names = names
        super().__init__(f"none of the {len(names)} tensors has this name",
                         path=path, tensor=name)

    @property
    def hint(self) -> Optional[str]:
        near = difflib.get_close_matches(str(self.tensor), self._names, 1)
        return f"did you mean {near[0]}?" if near else None

    @hint.setter
    def hint(self, _: Optional[str]) -> None:
        pass

    def __str__(self) -> str:
        hint = self.hint
        return str(self.args[0]) + (f" (hint: {hint})" if hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tensor, self.path, tuple(self._names))


class DamagedError(Error):
    """Bytes that contradict themselves."""

    status, kind = 4, "damaged"


class UnfaithfulError(Error):
    """It can't be done without changing what the checkpoint means."""

    status, kind = 5, "unfaithful"


class IoError(Error, OSError):
    """A disk or file system failed."""

    status, kind = 6, "io"


class ResourceError(Error, MemoryError):
    """Memory, threads, or an optional module are missing."""

    status, kind = 7, "resource"


class UnsafeError(Error):
    """Refused: loading the result would run code."""

    status, kind = 8, "unsafe"


class BugError(Error):
    """An invariant of ckpt does not hold."""


class Interrupted(Error, KeyboardInterrupt):
    """Stopped by a signal."""

    status, kind = 130, "interrupted"


_BY_STATUS: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (NegativeError, UsageError, MissingError, DamagedError,
                 UnfaithfulError, IoError, ResourceError, UnsafeError,
                 BugError, Interrupted)
}


def _local(path: Optional[str]) -> Optional[str]:
    """A path of a document, which is UTF-8, as this process spells paths."""
    return path and os.fsdecode(path.encode("utf-8", "surrogateescape"))


def from_json(text: str, status: int = 70) -> Error:
    """The exception for an error document or for other text."""
    for line in reversed(text.strip().splitlines()):
        try:
            said = json.loads(line)["error"]
        except (ValueError, KeyError, TypeError):
            continue
        kind = _BY_STATUS.get(said["status"], Interrupted
                              if said["status"] > 128 else BugError)
        return kind(said["message"], path=_local(said.get("path")),
                    tensor=said.get("tensor"), hint=said.get("hint"),
                    status=said["status"])
    return _BY_STATUS.get(status, BugError)(text.strip() or
                                            f"exit status {status}",
                                            status=status)
