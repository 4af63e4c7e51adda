# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory, written as a checkpoint."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

from . import _native
from ._commands import Path
from ._values import row
from .errors import UsageError

def _arguments(tensors: Mapping[str, Any], path: Path, layout: str,
               overwrite: bool, max_shard_size: int) -> tuple[list[Any], Any]:
    """Arguments for libckpt's calls, and what must live as long."""
    if not isinstance(tensors, Mapping):
        raise TypeError("tensors are a mapping from names to arrays, and here "
                        f"a {type(tensors).__name__}")
    target = _native.path_text(path)
    most = _native.number(max_shard_size, "max_shard_size")
    if not tensors:
        raise UsageError("there are no tensors to save", path=target)
    pairs = [row(name, value) for name, value in tensors.items()]
    rows = (_native.ArrayRow * len(pairs))(*[one for one, _ in pairs])
    return [rows, len(pairs), os.fsencode(target),
            _native.text(layout, "layout"), int(overwrite), most], pairs


def save(tensors: Mapping[str, Any], path: Path,
         layout: str = "", *, overwrite: bool = False,
         max_shard_size: int = 0) -> None:
    """Writes arrays (torch, numpy, or anything with DLPack) beside `path`,
    without copying them first, and renames the result into place.

    `layout` is a format's name. Without one, the ending of `path` decides
    (.safetensors; .pt, .pth, .bin, .ckpt); a folder gets safetensors.
    """
    arguments, _keep = _arguments(tensors, path, layout, overwrite,
                                  max_shard_size)
    error = ctypes.c_void_p()
    status = _native.library().ckpt_save(*arguments, ctypes.byref(error))
    if status:
        _native.check(error, status)


class PendingSave:
    """A save between its two phases: the arrays were copied, and the copies are
    being written beside the target, which is unchanged.

    finish() publishes; a save that is dropped or never finished leaves nothing.
    """

    def __init__(self, pending: int) -> None:
        self._handle = _native.Handle(pending, "ckpt_save_drop",
                                      one_process=True)

    def written(self) -> bool:
        """True if nothing is left to write: finish() will not wait long."""
        if self._handle.closed:
            return True
        with self._handle.use("the save is finished or dropped") as pending:
            return bool(_native.library().ckpt_save_written(pending))

    def finish(self) -> None:
        """Waits, then renames the whole into place. Call it once."""
        pending = self._handle.take("the save is finished or dropped already")
        error = ctypes.c_void_p()
        status = _native.library().ckpt_save_finish(pending,
                                                    ctypes.byref(error))
        if status:
            _native.check(error, status)

    def drop(self) -> None:
        self._handle.close()

    def __reduce__(self) -> NoReturn:
        _native.no_copy(self)

    def __enter__(self) -> "PendingSave":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.drop()
        elif not self._handle.closed:
            self.finish()


def begin_save(tensors: Mapping[str, Any], path: Path,
               layout: str = "", *, overwrite: bool = False,
               max_shard_size: int = 0) -> PendingSave:
    """Phase 1 of a save: copies the arrays, which may then change, and begins
    to write. Raises here if something can't be written at all."""
    arguments, _keep = _arguments(tensors, path, layout, overwrite,
                                  max_shard_size)
    return PendingSave(_native.call("ckpt_save_begin", *arguments))


def _start_threads() -> None:
    global _threads
    _threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ckpt-save")


_threads: ThreadPoolExecutor
_start_threads()
os.register_at_fork(after_in_child=_start_threads)  # a child has no threads


def save_async(tensors: Mapping[str, Any],
               path: Path, layout: str = "",
               **options: Any) -> "Future[None]":
    """Both phases: copies the arrays before it returns, after which they may
    change; a thread finishes, one save after another. result() raises any
    error."""
    future: "Future[None]" = Future()
    try:
        pending = begin_save(tensors, path, layout, **options)
    except Exception as error:
        future.set_exception(error)
        return future
    return _threads.submit(pending.finish)
