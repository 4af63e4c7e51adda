# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory, written as a checkpoint."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional, Union

from . import _native
from .errors import UsageError

_NUMPY = {"float64": "f64", "float32": "f32", "float16": "f16",
          "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3",
          "float8_e5m2": "f8_e5m2", "float8_e4m3fnuz": "f8_e4m3fnuz",
          "float8_e5m2fnuz": "f8_e5m2fnuz", "float8_e8m0fnu": "f8_e8m0",
          "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
          "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
          "bool": "bool", "complex64": "c64", "complex128": "c128"}


class _Capsule(ctypes.Structure):
    """DLTensor, the first member of DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32),
                ("index", ctypes.c_int32), ("dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


_CODES = {(0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
          (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
          (2, 16): "f16", (2, 32): "f32", (2, 64): "f64", (4, 16): "bf16",
          (5, 32): "c32", (5, 64): "c64", (5, 128): "c128", (6, 8): "bool",
          (10, 8): "f8_e4m3", (11, 8): "f8_e4m3fnuz", (12, 8): "f8_e5m2",
          (13, 8): "f8_e5m2fnuz", (14, 8): "f8_e8m0"}


def _contiguous(value: Any) -> Any:
    """Row-major and on the CPU, by the methods that the libraries share."""
    for method in ("detach", "cpu", "contiguous"):  # torch
        if hasattr(value, method):
            value = getattr(value, method)()
    return value


def _row(name: str, value: Any) -> tuple[_native.ArrayRow, Any]:
    """A row of ckpt_save, and what has to live as long."""
    value = _contiguous(value)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None and hasattr(value, "flags"):
        import numpy
        value = numpy.ascontiguousarray(value).reshape(value.shape)
        dtype = _NUMPY.get(value.dtype.name)
        if dtype is None:
            raise UsageError(f"no dtype for {value.dtype}", tensor=name)
        address, shape, size = (value.ctypes.data, value.shape, value.nbytes)
        keep: Any = value
    elif hasattr(value, "data_ptr"):  # torch: all of its dtypes
        dtype = _NUMPY.get(str(value.dtype).removeprefix("torch."))
        if dtype is None:
            raise UsageError(f"no dtype for {value.dtype}", tensor=name)
        address, shape = value.data_ptr(), tuple(value.shape)
        size, keep = value.numel() * value.element_size(), value
    elif hasattr(value, "__dlpack__"):
        capsule = value.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype = ctypes.c_void_p
        get.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = _Capsule.from_address(get(capsule, b"dltensor"))
        if tensor.device != 1 or tensor.lanes != 1:
            raise UsageError("not in the memory of the CPU", tensor=name)
        dtype = _CODES.get((tensor.code, tensor.bits))
        if dtype is None:
            raise UsageError(f"no dtype for DLPack's {tensor.code} of "
                             f"{tensor.bits} bits", tensor=name)
        shape = tuple(tensor.shape[:tensor.dims])
        if tensor.strides:
            expected = 1
            for at in reversed(range(tensor.dims)):
                if shape[at] > 1 and tensor.strides[at] != expected:
                    raise UsageError("not row-major", tensor=name)
                expected *= shape[at]
        size = tensor.bits // 8
        for one in shape:
            size *= one
        address, keep = (tensor.data or 0) + tensor.offset, capsule
    else:
        raise UsageError(f"a {type(value).__name__} is not an array: it has "
                         "neither DLPack nor numpy's interface", tensor=name)
    dims = _native.numbers(shape)
    text, kind = name.encode("utf-8", "surrogateescape"), dtype.encode()
    row = _native.ArrayRow(text, kind, dims, len(shape), address or None, size)
    return row, (keep, dims, text, kind)


def _arguments(tensors: Mapping[str, Any], path: Union[str, os.PathLike[str]],
               layout: str, overwrite: bool, max_shard_size: int
               ) -> tuple[list[Any], Any]:
    """What the calls of libckpt take, and what has to live as long."""
    target = os.fspath(path)
    if not layout:
        layout = "torch" if target.endswith(".pt") else "safetensors"
    pairs = [_row(name, value) for name, value in tensors.items()]
    rows = (_native.ArrayRow * max(1, len(pairs)))(*[row for row, _ in pairs])
    return [rows, len(pairs), os.fsencode(target), layout.encode(),
            int(overwrite), max_shard_size], pairs


def save(tensors: Mapping[str, Any], path: Union[str, os.PathLike[str]],
         layout: str = "", *, overwrite: bool = False,
         max_shard_size: int = 0) -> None:
    """Writes arrays (torch, numpy, or anything with DLPack), without copying
    them first, beside `path`, and renames the result into place.

    `layout` is a format's name; without one the ending of `path` decides
    (.safetensors, .pt), and a folder is of safetensors.
    """
    arguments, _keep = _arguments(tensors, path, layout, overwrite,
                                  max_shard_size)
    error = ctypes.c_void_p()
    status = _native.library().ckpt_save(*arguments, ctypes.byref(error))
    if status:
        _native.check(error, status)


class PendingSave:
    """A save between its two phases: the arrays were copied, and the copies are
    being written beside the target, which is as it was.

    finish() publishes; what is dropped, or never finished, leaves nothing.
    """

    def __init__(self, pending: int) -> None:
        self._pending: Optional[int] = pending

    def written(self) -> bool:
        """Nothing is left to write: finish() will not wait long."""
        return (self._pending is None or
                bool(_native.library().ckpt_save_written(self._pending)))

    def finish(self) -> None:
        """Waits, and renames the whole into place. Once."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise UsageError("the save is finished or dropped already")
        error = ctypes.c_void_p()
        status = _native.library().ckpt_save_finish(pending,
                                                    ctypes.byref(error))
        if status:
            _native.check(error, status)

    def drop(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            _native.library().ckpt_save_drop(pending)

    def __enter__(self) -> "PendingSave":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.drop()
        elif self._pending is not None:
            self.finish()

    def __del__(self) -> None:
        self.drop()


def begin_save(tensors: Mapping[str, Any], path: Union[str, os.PathLike[str]],
               layout: str = "", *, overwrite: bool = False,
               max_shard_size: int = 0) -> PendingSave:
    """Phase 1 of a save: copies the arrays, which may change then, and begins
    to write. What can't be written at all is raised here."""
    arguments, _keep = _arguments(tensors, path, layout, overwrite,
                                  max_shard_size)
    return PendingSave(_native.call("ckpt_save_begin", *arguments))


_threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ckpt-save")


def save_async(tensors: Mapping[str, Any],
               path: Union[str, os.PathLike[str]], layout: str = "",
               **options: Any) -> "Future[None]":
    """Both phases: the arrays are copied before this returns and may change
    then; a thread finishes, one save after the other. Errors come out of
    result()."""
    future: "Future[None]" = Future()
    try:
        pending = begin_save(tensors, path, layout, **options)
    except Exception as error:
        future.set_exception(error)
        return future
    return _threads.submit(pending.finish)
