# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries as one block of numbers each, or a refusal.

What is saved is bytes at an address. A kind of array whose bytes are not its
values (a lazy view, a wrapper, a mask beside them), or that has none here, is
refused by its tensor's name before its address is taken.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from . import _native
from ._array import Array
from ._checkpoint import Tensor
from .errors import UsageError

# Names in numpy, ml_dtypes and torch.
_NAMES = {"float64": "f64", "float32": "f32", "float16": "f16",
          "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3",
          "float8_e5m2": "f8_e5m2", "float8_e4m3fnuz": "f8_e4m3fnuz",
          "float8_e5m2fnuz": "f8_e5m2fnuz", "float8_e8m0fnu": "f8_e8m0",
          "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
          "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
          "bool": "bool", "complex32": "c32", "complex64": "c64",
          "complex128": "c128"}

# DLPack's code and bits.
_CODES = {(0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
          (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
          (2, 16): "f16", (2, 32): "f32", (2, 64): "f64", (4, 16): "bf16",
          (5, 32): "c32", (5, 64): "c64", (5, 128): "c128", (6, 8): "bool",
          (10, 8): "f8_e4m3", (11, 8): "f8_e4m3fnuz", (12, 8): "f8_e5m2",
          (13, 8): "f8_e5m2fnuz", (14, 8): "f8_e8m0"}


class _Capsule(ctypes.Structure):
    """DLTensor, the first member of DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32),
                ("index", ctypes.c_int32), ("dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


_pointer_of = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.py_object,
    ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@dataclass(frozen=True)
class _Block:
    """Row-major elements; `owner` keeps them alive."""

    dtype: str
    shape: tuple[int, ...]
    address: int
    size: int
    owner: Any


def _refuse(name: str, problem: str, hint: str) -> NoReturn:
    raise UsageError(problem, tensor=name, hint=hint)


def _kind(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}'s {kind.__qualname__}"


def _dtype(name: str, text: str) -> str:
    found = _NAMES.get(text.removeprefix("torch."))
    if found is None:
        raise UsageError(f"no dtype for {text}", tensor=name)
    return found


# --------------------------------------------------------------------- torch
def _torch_kind(name: str, value: Any, torch: Any) -> None:
    """Refuses tensors whose bytes, if there are any, are not their values.
    Looks at no data."""
    if torch.nn.parameter.is_lazy(value):
        _refuse(name, f"a {type(value).__name__} has no values yet",
                "run the module once")
    if _is_wrapped(value, torch):
        _refuse(name, "a wrapper that a transform of torch.func has made",
                "save what the transform returns")
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        if type(value).__name__ == "DTensor":
            _refuse(name, "this process has only its shard of a DTensor",
                    "full_tensor() gathers it, to_local() is the shard; "
                    "torch.distributed.checkpoint saves all shards")
        _refuse(name, f"{_kind(value)} is a sub-class that computes its values",
                "save the plain tensors that it consists of")
    if value.is_nested or value.layout != torch.strided:
        _refuse(name, "a nested tensor" if value.is_nested else
                f"a tensor of layout {value.layout}",
                "save the parts that it consists of, or a dense one")
    if value.is_quantized:
        _refuse(name, "a quantized tensor: its scales would be lost",
                "save int_repr() and the scales, or dequantize()")
    if value.device.type == "meta":
        _refuse(name, "a tensor on the meta device has no values",
                "give it some with to_empty() and a load")


def _is_wrapped(value: Any, torch: Any) -> bool:
    functorch = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return bool((is_wrapped is not None and is_wrapped(value)) or
                torch._is_functional_tensor(value))


def _check_storage(name: str, plain: Any) -> None:
    """FSDP frees a parameter by resizing its storage to 0; its shape stays."""
    if not plain.numel():
        return
    last = plain.storage_offset() + sum(
        (size - 1) * stride
        for size, stride in zip(plain.shape, plain.stride()))
    held = plain.untyped_storage().nbytes()
    if (last + 1) * plain.element_size() > held:
        _refuse(name, f"its memory was freed: {held} bytes are left",
                "gather the parameter first")


def _of_torch(name: str, value: Any, torch: Any) -> _Block:
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        _torch_kind(name, value, torch)
        dtype = _dtype(name, str(value.dtype))
        try:
            plain = value.detach().as_subclass(torch.Tensor)
            _check_storage(name, plain)
            plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
            address = plain.data_ptr()
        except (RuntimeError, NotImplementedError) as error:
            raise UsageError(f"torch can't lay it out in memory: {error}",
                             tensor=name) from error
        if type(plain) is not torch.Tensor or (plain.numel() and not address):
            _refuse(name, f"{_kind(value)} here has no memory",
                    "save a clone() of it")
        size = plain.numel() * plain.element_size()
    return _Block(dtype, tuple(plain.shape), address, size, plain)


# --------------------------------------------------------------------- numpy
def _of_numpy(name: str, value: Any, numpy: Any) -> _Block:
    if isinstance(value, numpy.ma.MaskedArray):
        _refuse(name, "a masked array: its mask would be lost",
                "save filled(), or data and mask")
    if not (isinstance(value, numpy.generic) or
            type(value) in (numpy.ndarray, numpy.memmap)):
        _refuse(name, f"{_kind(value)} is a sub-class: only its numbers would "
                "be saved", "save numpy.asarray() of it")
    dtype = _dtype(name, value.dtype.name)
    # The name says nothing about the byte order.
    native = (value.dtype if value.dtype.isnative
              else value.dtype.newbyteorder("="))
    array = numpy.asarray(value, dtype=native, order="C")
    return _Block(dtype, array.shape, array.ctypes.data, array.nbytes, array)


# -------------------------------------------------------------------- DLPack
def _of_dlpack(name: str, value: Any) -> _Block:
    device = getattr(value, "__dlpack_device__", None)
    if device is not None and int(device()[0]) != 1:
        _refuse(name, f"{_kind(value)} is not in the memory of the CPU",
                "copy it there")
    try:
        capsule = value.__dlpack__()
        tensor = _Capsule.from_address(_pointer_of(capsule, b"dltensor"))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{_kind(value)} gives no DLPack: {error}",
                         tensor=name) from error
    if tensor.device != 1 or tensor.lanes != 1:
        raise UsageError("not in the memory of the CPU", tensor=name)
    dtype = _CODES.get((tensor.code, tensor.bits))
    if dtype is None:
        raise UsageError(f"no dtype for DLPack's {tensor.code} of "
                         f"{tensor.bits} bits", tensor=name)
    shape = tuple(tensor.shape[:tensor.dims])
    count = 1
    for one in shape:
        count *= one
    if tensor.strides and count:
        _check_strides(name, shape, tensor.strides)
    if count and not tensor.data:
        raise UsageError(f"{_kind(value)} has no memory", tensor=name)
    return _Block(dtype, shape, (tensor.data or 0) + tensor.offset,
                  count * tensor.bits // 8, capsule)


def _check_strides(name: str, shape: tuple[int, ...], strides: Any) -> None:
    expected = 1
    for at in reversed(range(len(shape))):
        if shape[at] > 1 and strides[at] != expected:
            raise UsageError("not row-major", tensor=name)
        expected *= shape[at]


def _of_own(value: Array) -> _Block:
    return _Block(value.dtype, value.shape, value._address, value.nbytes,
                  value)


def _block(name: str, value: Any) -> _Block:
    # The library of an array is already loaded.
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(value, Tensor):
        value = value.read()
    if isinstance(value, Array):
        return _of_own(value)
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(name, value, torch)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _of_numpy(name, value, numpy)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(name, value)
    raise UsageError(f"a {type(value).__name__} is not an array: it is neither "
                     "torch's nor numpy's and has no DLPack", tensor=name)


def row(name: Any, value: Any) -> tuple[_native.ArrayRow, Any]:
    """A row for ckpt_save, and what must live as long."""
    text = _native.text(name, "the name of a tensor", tensor=name)
    block = _block(name, value)
    dims, kind = _native.numbers(block.shape), block.dtype.encode()
    made = _native.ArrayRow(text, kind, dims, len(block.shape),
                            block.address or None, block.size)
    return made, (block.owner, dims, text, kind)
