# SPDX-License-Identifier: Apache-2.0
"""Elements in memory that anything with DLPack can use without a copy."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
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

# Names of torch, and of ml_dtypes where numpy has none of its own.
TORCH = {"f64": "float64", "f32": "float32", "f16": "float16",
         "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
         "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
         "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
         "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
         "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
         "bool": "bool", "c128": "complex128", "c64": "complex64",
         "c32": "complex32"}

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


def _of(value: Any) -> Any:
    return value._values() if isinstance(value, Computes) else value


def _two(call: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def here(self: Any, other: Any) -> Any:
        return call(_of(self), _of(other))

    def there(self: Any, other: Any) -> Any:
        return call(_of(other), _of(self))
    return here, there


class Computes:
    """Arithmetic, by torch or else numpy: the result is theirs."""

    __slots__ = ()

    def _values(self) -> Any:
        try:
            return self.torch()  # type: ignore[attr-defined]
        except ImportError:
            return self.numpy()  # type: ignore[attr-defined]

    __add__, __radd__ = _two(operator.add)
    __sub__, __rsub__ = _two(operator.sub)
    __mul__, __rmul__ = _two(operator.mul)
    __truediv__, __rtruediv__ = _two(operator.truediv)
    __matmul__, __rmatmul__ = _two(operator.matmul)

    def __neg__(self) -> Any:
        return -_of(self)

    def __abs__(self) -> Any:
        return abs(_of(self))


class Array(Computes):
    """Part of a tensor, row-major and packed, in its own memory.

    `torch.from_dlpack(a)`, `numpy.from_dlpack(a)` and `jax.dlpack.from_dlpack(a)`
    share that memory, and so do `memoryview(a.bytes)`, `a.numpy()` and
    `numpy.asarray(a)`. `a.torch(device)` puts it on a device.
    """

    __slots__ = ("_handle", "_owner", "_device", "dtype", "shape", "_address",
                 "nbytes", "__weakref__")

    def __init__(self, data: int, dtype: str, shape: tuple[int, ...],
                 device: Optional[str] = None) -> None:
        self._handle: Optional[_native.Handle] = _native.Handle(
            data, "ckpt_data_close")
        self._owner: Any = None
        self._device = device
        self.dtype = dtype
        self.shape = shape
        size = ctypes.c_size_t()
        self._address = _native.library().ckpt_data_bytes(
            data, ctypes.byref(size)) or 0
        self.nbytes: int = size.value

    @classmethod
    def _of_memory(cls, owner: Any, address: int, like: "Array",
                   shape: tuple[int, ...], size: int) -> "Array":
        """Elements that `owner`, an array of numpy or torch, keeps alive."""
        made = cls.__new__(cls)
        made._handle, made._owner, made._device = None, owner, like._device
        made.dtype, made.shape = like.dtype, shape
        made._address, made.nbytes = address, size
        return made

    def __reduce__(self) -> NoReturn:
        _native.no_copy(self)

    def __repr__(self) -> str:
        text = f"ckpt.Array({self.dtype} {list(self.shape)}"
        if 0 < _count(self.shape) <= 16:
            try:
                return f"{text}: {self.tolist()})"
            except (ImportError, TypeError, BufferError):
                pass
        return text + ")"

    def tolist(self) -> Any:
        """The values as numbers in lists."""
        try:
            return self.torch("cpu").tolist()
        except (ImportError, BufferError):
            return self.numpy().tolist()

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
        if self._handle is None:  # memory of torch or numpy
            return _sharing(self).__dlpack__()
        shape = _native.numbers(self.shape)
        with self._handle.use("the array is closed") as data:
            pointer = _native.call("ckpt_data_dlpack", data,
                                   self.dtype.encode(), shape,
                                   len(self.shape))
        return _capsule_new(pointer, _NAME, ctypes.cast(_drop,
                                                        ctypes.c_void_p))

    def numpy(self) -> Any:
        """As a numpy array that shares the memory; bf16 and f8 have the dtypes
        of ml_dtypes, without which bits() has their codes."""
        if self.dtype in _NUMPY:
            return self.bits()
        name = TORCH.get(self.dtype)
        try:
            import ml_dtypes
            kind = getattr(ml_dtypes, name or "", None)
        except ImportError:
            kind = None
        if kind is None:
            raise TypeError(
                f"numpy has no dtype for {self.dtype}: "
                f"{'`pip install ml_dtypes` adds it; ' if name else ''}torch() "
                "has the values, bits() their codes")
        return self.bits().view(kind)

    def bits(self) -> Any:
        """As a numpy array of numpy's own dtypes that shares the memory: of
        bf16 and f8, which numpy lacks, the codes."""
        import numpy
        kind = "<u2" if self.dtype == "bf16" else _NUMPY.get(self.dtype, "|u1")
        flat = numpy.frombuffer(self.bytes, dtype=kind)
        return flat.reshape(self.shape) if flat.size == _count(
            self.shape) else flat

    def __array__(self, dtype: Any = None,
                  copy: Optional[bool] = None) -> Any:
        value = self.numpy()
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"{dtype} of {self.dtype} takes a copy")
            return value.astype(dtype)
        return value.copy() if copy else value

    def torch(self, device: Any = None) -> Any:
        """A torch.Tensor of the same memory, for every dtype that torch has;
        on `device`, or the one that the checkpoint was opened for, a copy."""
        import torch
        dtype = getattr(torch, TORCH.get(self.dtype, ""), None)
        if dtype is None:
            raise BufferError(f"torch has no dtype for {self.dtype}")
        if self.nbytes:
            made = torch.frombuffer(self.bytes, dtype=dtype).reshape(self.shape)
        else:
            made = torch.empty(self.shape, dtype=dtype)
        place = device if device is not None else self._device
        return made if place is None else made.to(place)


def _sharing(array: Array) -> Any:
    """What exports the memory of an array that libckpt does not own."""
    try:
        return array.torch("cpu")
    except ImportError:
        return array.numpy()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
