# SPDX-License-Identifier: Apache-2.0
"""An open checkpoint: its headers were read, its payload was not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _native, errors
from ._array import Array
from ._commands import inspect

Key = Union[int, slice, Any]


@dataclass(frozen=True)
class Tensor:
    """A tensor as the headers describe it. Indexing it reads that part."""

    name: str
    dtype: str  # "bf16", as `ckpt inspect` prints it
    shape: tuple[int, ...]  # global
    kind: str  # "model" or "optim"
    nbytes: int
    _checkpoint: "Checkpoint"

    def __repr__(self) -> str:
        return f"ckpt.Tensor({self.name}: {self.dtype} {list(self.shape)})"

    def read(self) -> Array:
        """All of it."""
        return self._checkpoint._read(self, None)

    def __getitem__(self, key: Key) -> Array:
        """Rows, columns …: integers, slices of step 1, and `...`."""
        return self._checkpoint._read(self, _box(self, key))

    def __dlpack__(self, **options: Any) -> Any:
        return self.read().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@dataclass(frozen=True)
class _Box:
    offsets: list[int]
    shape: list[int]
    shown: tuple[int, ...]  # without the dimensions that an integer takes


def _box(tensor: Tensor, key: Key) -> _Box:
    keys = key if isinstance(key, tuple) else (key,)
    dims = len(tensor.shape)
    if keys.count(...) > 1:
        raise IndexError("more than one `...`")
    if ... in keys:
        at = keys.index(...)
        rest = dims - (len(keys) - 1)
        keys = keys[:at] + (slice(None),) * rest + keys[at + 1:]
    if len(keys) > dims:
        raise IndexError(f"{tensor.name} has {dims} dimensions, "
                         f"{len(keys)} are asked for")
    keys += (slice(None),) * (dims - len(keys))
    offsets, shape, shown = [], [], []
    for dim, (one, size) in enumerate(zip(keys, tensor.shape, strict=True)):
        if isinstance(one, slice):
            begin, end, step = one.indices(size)
            if step != 1:
                raise IndexError(f"{tensor.name}: step {step} in dimension "
                                 f"{dim}; only steps of 1 are read")
            count = max(0, end - begin)
            offsets.append(min(begin, size))
            shape.append(count)
            shown.append(count)
        else:
            index = one.__index__()
            if not -size <= index < size:
                raise IndexError(f"{tensor.name}: {index} in dimension {dim}, "
                                 f"which has {size}")
            offsets.append(index % size)
            shape.append(1)
    return _Box(offsets, shape, tuple(shown))


class Checkpoint(Mapping[str, Tensor]):
    """Tensors by name. Close it, or use it in a `with`, to give back what its
    headers take."""

    def __init__(self, path: Union[str, os.PathLike[str]], *,
                 format: Optional[str] = None,
                 family: Optional[str] = None) -> None:
        self._handle: Optional[int] = None
        self._handle = _native.call(
            "ckpt_open", os.fsencode(path),
            format.encode() if format else None,
            family.encode() if family else None)
        library = _native.library()
        self.path: str = os.fsdecode(library.ckpt_path(self._handle))
        self.format: str = library.ckpt_format(self._handle).decode()
        self._asked = os.fspath(path)
        self._options = {"format": format, "family": family}
        self._document: Optional[dict[str, Any]] = None
        self.tensors: dict[str, Tensor] = {}
        row = _native.TensorRow()
        for index in range(library.ckpt_tensor_count(self._handle)):
            library.ckpt_tensor_at(self._handle, index, ctypes.byref(row))
            name = row.name.decode("utf-8", "surrogateescape")
            self.tensors[name] = Tensor(
                name, row.dtype.decode(), tuple(row.shape[:row.dims]),
                "optim" if row.optimizer else "model", row.bytes, self)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            _native.library().ckpt_close(handle)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"ckpt.Checkpoint({self.path!r}, {self.format}, "
                f"{len(self.tensors)} tensors)")

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def _open(self) -> int:
        if self._handle is None:
            raise errors.UsageError("the checkpoint is closed",
                                    path=self.path)
        return self._handle

    def _read(self, tensor: Tensor, box: Optional[_Box]) -> Array:
        name = tensor.name.encode("utf-8", "surrogateescape")
        data = _native.call(
            "ckpt_read", self._open(), name,
            _native.numbers(box.offsets) if box else None,
            _native.numbers(box.shape) if box else None)
        return Array(data, tensor.dtype, box.shown if box else tensor.shape)

    def shards(self, *, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1,
               rank: int = 0, pp_rank: int = 0, dp_rank: int = 0,
               ep_rank: int = 0) -> Iterator[tuple[str, Array]]:
        """What one rank of a topology holds, tensor by tensor; reads each part
        when it is asked for. `rank` is the one of `tp`. Layers and experts
        spread as Megatron has them, rows over `dp` as fairseq2 cuts them."""
        walk = _native.call(
            "ckpt_shards_open", self._open(),
            ctypes.byref(_native.Grid(tp, pp, dp, ep)),
            ctypes.byref(_native.Grid(rank, pp_rank, dp_rank, ep_rank)))
        try:
            while True:
                name, dtype = ctypes.c_char_p(), ctypes.c_char_p()
                shape = ctypes.POINTER(ctypes.c_uint64)()
                dims = ctypes.c_size_t()
                data = _native.call("ckpt_shards_next", walk,
                                    ctypes.byref(name), ctypes.byref(dtype),
                                    ctypes.byref(shape), ctypes.byref(dims))
                if not data:
                    return
                yield ((name.value or b"").decode("utf-8", "surrogateescape"),
                       Array(data, (dtype.value or b"").decode(),
                             tuple(shape[:dims.value])))
        finally:
            _native.library().ckpt_shards_close(walk)

    @property
    def document(self) -> dict[str, Any]:
        """`ckpt inspect --json --objects`, read once."""
        if self._document is None:
            self._document = inspect(self._asked, objects=True,
                                     **{name: value for name, value
                                        in self._options.items() if value})
        return self._document

    @property
    def objects(self) -> Any:
        """Values that are not tensors: steps, arguments, schedulers."""
        return self.document.get("objects")

    @property
    def facts(self) -> Any:
        """What the configuration says of the model's function."""
        return self.document.get("facts")

    @property
    def config(self) -> Optional[dict[str, Any]]:
        """config.json beside the tensors, if there is one."""
        import json
        folder = self.path if os.path.isdir(self.path) else os.path.dirname(
            self.path)
        try:
            with open(os.path.join(folder, "config.json"), "rb") as file:
                value = json.load(file)
        except FileNotFoundError:
            return None
        return value if isinstance(value, dict) else None


def open_checkpoint(path: Union[str, os.PathLike[str]], *,
                    format: Optional[str] = None,
                    family: Optional[str] = None) -> Checkpoint:
    """Reads headers alone; no tensor is in memory until it is asked for."""
    return Checkpoint(path, format=format, family=family)
