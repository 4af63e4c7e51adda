# SPDX-License-Identifier: Apache-2.0
"""libckpt through its C interface (ckpt/c.h)."""

from __future__ import annotations

import ctypes
import ctypes.util
import operator
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (POINTER, byref, c_char_p, c_int, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from pathlib import Path
from typing import Any, NoReturn, Optional, Union

from . import errors

_HERE = Path(__file__).parent


def _file(variable: str, name: str, places: tuple[str, ...],
          find: Callable[[], Optional[str]]) -> str:
    """What the environment names, else what a wheel has in this package or
    `cmake --install` put under the same prefix, else what the system finds:
    that is asked last, for it runs ldconfig, gcc and ld."""
    named = os.environ.get(variable)
    if named:
        return named
    for above in (_HERE, *_HERE.parents[:6]):
        for place in places:
            if (above / place / name).is_file():
                return str(above / place / name)
    found = find()
    if found:
        return found
    raise ImportError(f"{name} is not installed; set {variable} to "
                      "where it is")


def binary() -> str:
    """The path of the command line tool."""
    return _file("CKPT_BINARY", "ckpt", ("bin",),
                 lambda: shutil.which("ckpt"))


class TensorRow(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p),
                ("shape", POINTER(c_uint64)), ("dims", c_size_t),
                ("bits", c_uint32), ("optimizer", c_int),
                ("bytes", c_uint64)]


class Grid(ctypes.Structure):
    """ckpt_grid: sizes of a topology, or a rank's place in it."""

    _fields_ = [(name, c_uint32) for name in ("tp", "pp", "dp", "ep")]


class ArrayRow(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p),
                ("shape", POINTER(c_uint64)), ("dims", c_size_t),
                ("bytes", c_void_p), ("size", c_uint64)]


class FileRow(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("bytes", c_char_p), ("size", c_size_t)]


class Beside(ctypes.Structure):
    """ckpt_beside: what is saved with the arrays."""

    _fields_ = [("values", c_char_p), ("files", POINTER(FileRow)),
                ("file_count", c_size_t)]


class Selection(ctypes.Structure):
    """ckpt_selection: lists of texts, each terminated by a null."""

    _fields_ = [("keys", POINTER(c_char_p)), ("exclude", POINTER(c_char_p)),
                ("layers", c_char_p), ("experts", c_char_p),
                ("model_only", c_int), ("optim_only", c_int),
                ("part", c_char_p)]


# Name -> result, arguments. Errors are texts to be freed by ckpt_free.
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "ckpt_version": (c_char_p, []),
    "ckpt_free": (None, [c_void_p]),
    "ckpt_open": (c_void_p, [c_char_p, c_char_p, c_char_p,
                             POINTER(c_void_p)]),
    "ckpt_close": (None, [c_void_p]),
    "ckpt_format": (c_char_p, [c_void_p]),
    "ckpt_path": (c_char_p, [c_void_p]),
    "ckpt_config": (c_void_p, [c_void_p, POINTER(c_char_p),
                               POINTER(c_void_p)]),
    "ckpt_tensor_count": (c_size_t, [c_void_p]),
    "ckpt_tensor_at": (c_int, [c_void_p, c_size_t, POINTER(TensorRow)]),
    "ckpt_in_dialect": (c_void_p, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "ckpt_select": (c_void_p, [c_void_p, POINTER(Selection),
                               POINTER(c_void_p)]),
    "ckpt_adapter": (c_void_p, [c_void_p, POINTER(c_void_p)]),
    "ckpt_has_adapter_inside": (c_int, [c_void_p]),
    "ckpt_add_adapters": (c_void_p, [c_void_p, c_void_p, c_size_t, c_void_p,
                                     POINTER(c_void_p)]),
    "ckpt_adapter_as_peft": (c_void_p, [c_void_p, c_void_p,
                                        POINTER(c_void_p)]),
    "ckpt_read": (c_void_p, [c_void_p, c_char_p, POINTER(c_uint64),
                             POINTER(c_uint64), POINTER(c_void_p)]),
    "ckpt_data_bytes": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "ckpt_data_close": (None, [c_void_p]),
    "ckpt_data_dlpack": (c_void_p, [c_void_p, c_char_p, POINTER(c_uint64),
                                    c_size_t, POINTER(c_void_p)]),
    "ckpt_dlpack_close": (None, [c_void_p]),
    "ckpt_shards_open_some": (c_void_p, [c_void_p, POINTER(Grid),
                                         POINTER(Grid), POINTER(c_char_p),
                                         POINTER(c_void_p)]),
    "ckpt_shards_next": (c_void_p, [c_void_p, POINTER(c_char_p),
                                    POINTER(c_char_p),
                                    POINTER(POINTER(c_uint64)),
                                    POINTER(c_size_t), POINTER(c_void_p)]),
    "ckpt_shards_close": (None, [c_void_p]),
    "ckpt_save": (c_int, [POINTER(ArrayRow), c_size_t, c_char_p, c_char_p,
                          c_int, c_uint64, POINTER(c_void_p)]),
    "ckpt_save_with": (c_int, [POINTER(ArrayRow), c_size_t, POINTER(Beside),
                               c_char_p, c_char_p, c_int, c_uint64,
                               POINTER(c_void_p)]),
    "ckpt_save_begin_with": (c_void_p, [POINTER(ArrayRow), c_size_t,
                                        POINTER(Beside), c_char_p, c_char_p,
                                        c_int, c_uint64, POINTER(c_void_p)]),
    "ckpt_save_written": (c_int, [c_void_p]),
    "ckpt_save_finish": (c_int, [c_void_p, POINTER(c_void_p)]),
    "ckpt_save_drop": (None, [c_void_p]),
}

_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """Opened once. ctypes releases the GIL while a call runs."""
    global _library
    if _library is None:
        opened = ctypes.CDLL(_file(
            "CKPT_LIBRARY", "libckpt.so",
            ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"),
            lambda: ctypes.util.find_library("ckpt")))
        for name, (result, arguments) in _CALLS.items():
            call = getattr(opened, name)
            call.restype, call.argtypes = result, arguments
        _library = opened
    return _library


def numbers(values: Any) -> Any:
    """A C array; never empty, because ctypes has no such arrays."""
    values = list(values)
    return (c_uint64 * max(1, len(values)))(*values)


def text(value: Any, what: str, tensor: Optional[str] = None) -> bytes:
    """A C string; a NUL would cut it short, to another name or path."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, and here a "
                        f"{type(value).__name__}: {value!r}")
    if "\0" in value:
        raise errors.UsageError(f"{what} holds a NUL: {value!r}",
                                tensor=tensor)
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise errors.UsageError(f"{what} is not Unicode: {value!r}",
                                tensor=tensor) from None


def texts(values: Any, what: str) -> Any:
    """A list of C strings, terminated by a null."""
    if isinstance(values, str):
        raise TypeError(f"{what} is a list of str, and here one: {values!r}")
    found = [text(value, what) for value in values]
    return (c_char_p * (len(found) + 1))(*found, None)


def path_text(path: Union[str, bytes, os.PathLike[Any]]) -> str:
    """A path in the form that libckpt and the binary take."""
    shown = os.fsdecode(path)
    if "\0" in shown:
        raise errors.UsageError(f"a path holds a NUL: {shown!r}")
    return shown


def number(value: Any, what: str, least: int = 0, bits: int = 64) -> int:
    """An integer that fits in C; ctypes would drop excess bits."""
    if isinstance(value, bool):
        raise TypeError(f"{what} is an integer, and here a bool")
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is an integer, and here a "
                        f"{type(value).__name__}: {value!r}") from None
    if not least <= found < 1 << bits:
        raise errors.UsageError(f"{what} is {found}; it is at least {least} "
                                f"and less than 2^{bits}")
    return found


def no_copy(value: object) -> NoReturn:
    """For what holds a pointer: two copies would release it twice."""
    raise TypeError(f"a ckpt.{type(value).__name__} can't be copied or "
                    "pickled")


class Handle:
    """A pointer of libckpt, released exactly once, after the last call that
    uses it: close() may come from any thread, even during a read. With
    `one_process`, a fork's child neither uses nor releases it: its threads and
    files are the parent's."""

    __slots__ = ("_closed", "_condition", "_pointer", "_process", "_release",
                 "_users", "__weakref__")

    def __init__(self, pointer: int, release: str,
                 one_process: bool = False) -> None:
        self._pointer = pointer
        self._process = os.getpid() if one_process else None
        self._release = getattr(library(), release)
        self._closed = False
        self._users = 0
        # Re-entrant: the garbage collector may close it during use().
        self._condition = threading.Condition(threading.RLock())

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def use(self, problem: str, path: Optional[str] = None) -> Iterator[int]:
        """The pointer, or a UsageError that says `problem`."""
        self._check_process()
        with self._condition:
            if self._closed:
                raise errors.UsageError(problem, path=path)
            self._users += 1
        try:
            yield self._pointer
        finally:
            with self._condition:
                self._users -= 1
                last = self._closed and not self._users
                self._condition.notify_all()
            if last and self._release is not None:
                self._release(self._pointer)

    def _elsewhere(self) -> bool:
        return self._process not in (None, os.getpid())

    def _check_process(self) -> None:
        if self._elsewhere():
            raise errors.UsageError("it belongs to the process that made it")

    def close(self) -> None:
        """Does not wait: the last call in another thread releases it."""
        if self._elsewhere():
            return  # nor may it lock: the parent's other threads are gone
        with self._condition:
            if self._closed:
                return
            self._closed = True
            if self._users:
                return
        self._release(self._pointer)

    def take(self, problem: str) -> int:
        """The pointer, once no call uses it; the caller must release it."""
        self._check_process()
        with self._condition:
            if self._closed:
                raise errors.UsageError(problem)
            self._closed, self._release = True, None
            while self._users:
                self._condition.wait()
        return self._pointer

    def __del__(self) -> None:
        if hasattr(self, "_condition"):
            self.close()

    def __reduce__(self) -> NoReturn:
        no_copy(self)


def check(error: c_void_p, status: int = 70) -> None:
    """Raises the error of a call, if there is one."""
    if not error.value:
        if status != 70:
            raise errors.from_json("", status)
        return
    text = ctypes.string_at(error.value).decode("utf-8", "surrogateescape")
    library().ckpt_free(error)
    raise errors.from_json(text)


def call(name: str, *arguments: Any) -> Any:
    """Makes a call whose last argument receives the error."""
    error = c_void_p()
    result = getattr(library(), name)(*arguments, byref(error))
    check(error)
    return result
