# SPDX-License-Identifier: Apache-2.0
"""Elements in memory that anything with DLPack takes without a copy."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from . import _native

# Names of the CPU and of DLPack's capsules.
_CPU = (1, 0)
_NAME, _USED = b"dltensor", b"used_dltensor"

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.restype = ctypes.c_int
_capsule_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule: int) -> None:
    """Of a capsule that nobody has taken."""
    if _capsule_valid(capsule, _NAME):
        _native.library().ckpt_dlpack_close(_capsule_pointer(capsule, _NAME))


class Array:
    """Part of a tensor, row-major and packed, in memory of its own.

    `torch.from_dlpack(a)`, `numpy.from_dlpack(a)` and `jax.dlpack.from_dlpack(a)`
    share that memory; `memoryview(a.bytes)` and `a.numpy()` too.
    """

    __slots__ = ("_data", "dtype", "shape", "_address", "nbytes",
                 "__weakref__")

    def __init__(self, data: int, dtype: str, shape: tuple[int, ...]) -> None:
        self._data: Optional[int] = data
        self.dtype = dtype
        self.shape = shape
        size = ctypes.c_size_t()
        self._address = _native.library().ckpt_data_bytes(
            data, ctypes.byref(size)) or 0
        self.nbytes: int = size.value

    def __del__(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            _native.library().ckpt_data_close(data)

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
        pointer = _native.call("ckpt_data_dlpack", self._data,
                               self.dtype.encode(), shape, len(self.shape))
        return _capsule_new(pointer, _NAME, ctypes.cast(_drop,
                                                        ctypes.c_void_p))

    def numpy(self) -> Any:
        """As numpy has it; bf16 and f8, which it lacks, as their bits."""
        import numpy
        names = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2",
                 "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1",
                 "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "|u1",
                 "bool": "|b1", "c64": "<c8", "c128": "<c16"}
        kind = names.get(self.dtype, "|u1")
        flat = numpy.frombuffer(self.bytes, dtype=kind)
        return flat.reshape(self.shape) if flat.size == _count(
            self.shape) else flat

    def torch(self) -> Any:
        """A torch.Tensor of the same memory, of every dtype that torch has."""
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
