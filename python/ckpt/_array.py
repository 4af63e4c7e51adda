# SPDX-License-Identifier: Apache-2.0
"""Elements in memory that anything with DLPack can use without a copy."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn, Optional

from . import _native

# Names of the CPU and of DLPack's capsules.
_CPU = (1, 0)
_NAME, _USED = b"dltensor", b"used_dltensor"

# Our own prototypes: attributes of ctypes.pythonapi belong to the process, and
# anyone else who sets their types would change how a capsule is passed here.
_capsule_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
    ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_capsule_valid = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p,
    ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

# numpy's names; it lacks bf16 and f8.
_NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8",
          "i32": "<i4", "i16": "<i2", "i8": "|i1", "u64": "<u8",
          "u32": "<u4", "u16": "<u2", "u8": "|u1", "bool": "|b1",
          "c64": "<c8", "c128": "<c16"}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule: int) -> None:
    """Frees a capsule that nobody has taken."""
    if _capsule_valid(capsule, _NAME):
        _native.library().ckpt_dlpack_close(_capsule_pointer(capsule, _NAME))


class Array:
    """Part of a tensor, row-major and packed, in its own memory.

    `torch.from_dlpack(a)`, `numpy.from_dlpack(a)` and `jax.dlpack.from_dlpack(a)`
    share that memory, and so do `memoryview(a.bytes)`, `a.numpy()` and
    `numpy.asarray(a)`.
    """

    __slots__ = ("_handle", "dtype", "shape", "_address", "nbytes",
                 "__weakref__")

    def __init__(self, data: int, dtype: str, shape: tuple[int, ...]) -> None:
        self._handle = _native.Handle(data, "ckpt_data_close")
        self.dtype = dtype
        self.shape = shape
        size = ctypes.c_size_t()
        self._address = _native.library().ckpt_data_bytes(
            data, ctypes.byref(size)) or 0
        self.nbytes: int = size.value

    def __reduce__(self) -> NoReturn:
        _native.no_copy(self)

    def __repr__(self) -> str:
        return f"ckpt.Array({self.dtype}, {list(self.shape)})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    @property
    def bytes(self) -> memoryview:
        """The elements, little endian; the view keeps them alive."""
        if not self.nbytes:
            return memoryview(b"")
        block = (ctypes.c_ubyte * self.nbytes).from_address(self._address)
        setattr(block, "_owner", self)  # noqa: B010
        return memoryview(block).cast("B")

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: Any = None,
                   max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        if stream is not None or dl_device not in (None, _CPU):
            raise BufferError("the elements are in the memory of the CPU")
        if copy:
            raise BufferError("no copies are made here")
        shape = _native.numbers(self.shape)
        with self._handle.use("the array is closed") as data:
            pointer = _native.call("ckpt_data_dlpack", data,
                                   self.dtype.encode(), shape,
                                   len(self.shape))
        return _capsule_new(pointer, _NAME, ctypes.cast(_drop,
                                                        ctypes.c_void_p))

    def numpy(self) -> Any:
        """As a numpy array; bf16 and f8, which numpy lacks, as their bits."""
        import numpy
        kind = "<u2" if self.dtype == "bf16" else _NUMPY.get(self.dtype, "|u1")
        flat = numpy.frombuffer(self.bytes, dtype=kind)
        return flat.reshape(self.shape) if flat.size == _count(
            self.shape) else flat

    def __array__(self, dtype: Any = None,
                  copy: Optional[bool] = None) -> Any:
        if self.dtype not in _NUMPY:
            raise TypeError(f"numpy has no dtype for {self.dtype}: torch() "
                            "has the values, numpy() their bits")
        value = self.numpy()
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"{dtype} of {self.dtype} takes a copy")
            return value.astype(dtype)
        return value.copy() if copy else value

    def torch(self) -> Any:
        """A torch.Tensor of the same memory, for every dtype that torch has."""
        import torch
        names = {"f64": "float64", "f32": "float32", "f16": "float16",
                 "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
                 "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
                 "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
                 "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
                 "u64": "uint64", "u32": "uint32", "u16": "uint16",
                 "u8": "uint8", "bool": "bool", "c128": "complex128",
                 "c64": "complex64", "c32": "complex32"}
        dtype = getattr(torch, names.get(self.dtype, ""), None)
        if dtype is None:
            raise BufferError(f"torch has no dtype for {self.dtype}")
        if not self.nbytes:
            return torch.empty(self.shape, dtype=dtype)
        flat = torch.frombuffer(self.bytes, dtype=dtype)
        return flat.reshape(self.shape)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
