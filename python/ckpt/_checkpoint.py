# SPDX-License-Identifier: Apache-2.0
"""An open checkpoint: its headers were read, but not its payload."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _adapter, _native, errors
from ._array import Array
from ._commands import Path, inspect

Key = Union[int, slice, Any]


@dataclass(frozen=True, eq=False)
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
        """The whole tensor."""
        return self._checkpoint._read(self, None)

    def __getitem__(self, key: Key) -> Array:
        """Rows, columns …: integers, slices of step 1, and `...`."""
        return self._checkpoint._read(self, _box(self, key))

    def __dlpack__(self, **options: Any) -> Any:
        return self.read().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, dtype: Any = None,
                  copy: Optional[bool] = None) -> Any:
        if copy is False:
            raise ValueError(f"{self.name} is not in memory: reading it makes "
                             "a copy")
        return self.read().__array__(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor_of, (self._checkpoint, self.name)


def _tensor_of(checkpoint: "Checkpoint", name: str) -> Tensor:
    return checkpoint[name]


@dataclass(frozen=True)
class _Box:
    offsets: list[int]
    shape: list[int]
    shown: tuple[int, ...]  # without dimensions indexed by an integer


def _index(tensor: Tensor, dim: int, one: Any) -> int:
    try:
        if not isinstance(one, bool):
            return operator.index(one)
    except TypeError:
        pass
    raise TypeError(f"{tensor.name}: {one!r} in dimension {dim}; integers, "
                    "slices of step 1 and `...` are read")


def _box(tensor: Tensor, key: Key) -> _Box:
    keys = key if isinstance(key, tuple) else (key,)
    dims = len(tensor.shape)
    dots = [at for at, one in enumerate(keys) if one is ...]
    if len(dots) > 1:
        raise IndexError("more than one `...`")
    for at in dots:
        rest = dims - (len(keys) - 1)
        keys = keys[:at] + (slice(None),) * rest + keys[at + 1:]
    if len(keys) > dims:
        raise IndexError(f"{tensor.name} has {dims} dimensions, "
                         f"{len(keys)} are asked for")
    keys += (slice(None),) * (dims - len(keys))
    offsets, shape, shown = [], [], []
    for dim, (one, size) in enumerate(zip(keys, tensor.shape)):
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
            index = _index(tensor, dim, one)
            if not -size <= index < size:
                raise IndexError(f"{tensor.name}: {index} in dimension {dim}, "
                                 f"which has {size}")
            offsets.append(index % size)
            shape.append(1)
    return _Box(offsets, shape, tuple(shown))


# What no directory goes before: libckpt says which URLs it opens.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


# What is done to a checkpoint after it is opened: ckpt_in_dialect with a name,
# ckpt_select with a selection, ckpt_add_adapters …
_Step = tuple[str, Any]


class Checkpoint(Mapping[str, Tensor]):
    """Tensors by name. Close it, or use it in a `with`, to free what its
    headers take. A copy, pickled or not, opens the same path again."""

    def __init__(self, path: Path, *, format: Optional[str] = None,
                 family: Optional[str] = None) -> None:
        asked = _native.path_text(path)
        # The working directory may change.
        self._asked = asked if not asked or _URL.match(asked) else \
            os.path.join(os.getcwd(), asked)
        self._handle = _native.Handle(_native.call(
            "ckpt_open", os.fsencode(self._asked),
            _native.text(format, "format") if format else None,
            _native.text(family, "family") if family else None), "ckpt_close")
        self._options = {"format": format, "family": family}
        self._steps: tuple[_Step, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._document: Optional[dict[str, Any]] = None
        self.tensors: dict[str, Tensor] = {}
        with self._use() as handle:
            self._list(handle)

    def _then(self, step: _Step) -> "Checkpoint":
        """Another checkpoint: this one after the step."""
        other = Checkpoint.__new__(Checkpoint)
        other._asked, other._options = self._asked, self._options
        other._steps = (*self._steps, step)
        call, what = step
        with self._use() as handle:
            other._handle = _native.Handle(_native.call(
                call, handle, *_arguments(call, what)), "ckpt_close")
        other._begin()
        return other

    def in_dialect(self, dialect: str) -> "Checkpoint":
        """The same tensors under the names, and in the arrangement, of hf,
        mcore, meta, fairseq2 or olmo_core. No byte moves before it is read.
        `objects`, `facts` and `config` are still those of the files."""
        return self._then(("ckpt_in_dialect", dialect))

    def select(self, *, keys: Iterable[str] = (), exclude: Iterable[str] = (),
               layers: str = "", experts: str = "", model_only: bool = False,
               optim_only: bool = False, part: str = "") -> "Checkpoint":
        """Some of the tensors: those that match a glob of `keys` and none of
        `exclude`; of numbered layers and experts, those in "0-3,8"; of several
        state dicts in a file, `part`."""
        lists = {name: [keys] if isinstance(keys, str) else list(keys)
                 for name, keys in (("keys", keys), ("exclude", exclude))}
        return self._then(("ckpt_select", {
            **lists, "layers": layers, "experts": experts,
            "model_only": bool(model_only), "optim_only": bool(optim_only),
            "part": part}))

    @property
    def adapter(self) -> Optional[_adapter.Adapter]:
        """What the adapter is, if the checkpoint is one."""
        with self._use() as handle:
            return _adapter.described(handle)

    @property
    def has_adapter_inside(self) -> bool:
        """Whether it is a base with an adapter in it that is not added."""
        with self._use() as handle:
            return bool(_native.library().ckpt_has_adapter_inside(handle))

    def with_adapters(self, *paths: Path,
                      weights: Optional[Iterable[float]] = None,
                      alpha: Optional[float] = None,
                      allow_nonfinite: bool = False,
                      config_from: Optional[Path] = None) -> "Checkpoint":
        """This base with adapters added, one after the other; without a path,
        with the one that is inside. Sums are computed as they are read."""
        return self._then(("ckpt_add_adapters", _adapter.asked(
            paths, weights, alpha=alpha, allow_nonfinite=allow_nonfinite,
            config_from=config_from)))

    def as_peft(self, *, alpha: Optional[float] = None,
                config_from: Optional[Path] = None) -> "Checkpoint":
        """This adapter under PEFT's names. `config_from` is a directory with
        the config.json of its base, which torchtune's, litgpt's and Megatron's
        names need."""
        return self._then(("ckpt_adapter_as_peft", {
            "alpha": alpha, "config_from": config_from}))

    def _list(self, handle: int) -> None:
        library = _native.library()
        self.path: str = os.fsdecode(library.ckpt_path(handle))
        self.format: str = library.ckpt_format(handle).decode()
        row = _native.TensorRow()
        for index in range(library.ckpt_tensor_count(handle)):
            library.ckpt_tensor_at(handle, index, ctypes.byref(row))
            name = row.name.decode("utf-8", "surrogateescape")
            self.tensors[name] = Tensor(
                name, row.dtype.decode(), tuple(row.shape[:row.dims]),
                "optim" if row.optimizer else "model", row.bytes, self)

    def close(self) -> None:
        """Reads in progress in other threads end as usual; later ones raise."""
        self._handle.close()

    def _use(self) -> AbstractContextManager[int]:
        return self._handle.use("the checkpoint is closed",
                                getattr(self, "path", self._asked))

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._use():
            return _reopen, (self._asked, self._options, self._steps)

    # By identity: equal names and shapes don't mean equal values.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return (f"ckpt.Checkpoint({self.path!r}, {self.format}, "
                f"{len(self.tensors)} tensors)")

    def __getitem__(self, name: str) -> Tensor:
        found = self.tensors.get(name)
        if found is None:
            raise errors.NoTensorError(str(name), self.path, self.tensors)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def _read(self, tensor: Tensor, box: Optional[_Box]) -> Array:
        name = tensor.name.encode("utf-8", "surrogateescape")
        with self._use() as handle:
            data = _native.call(
                "ckpt_read", handle, name,
                _native.numbers(box.offsets) if box else None,
                _native.numbers(box.shape) if box else None)
        return Array(data, tensor.dtype, box.shown if box else tensor.shape)

    def shards(self, *, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1,
               rank: int = 0, pp_rank: int = 0, dp_rank: int = 0,
               ep_rank: int = 0, dialect: Optional[str] = None,
               keys: Iterable[str] = ()) -> Iterator[tuple[str, Array]]:
        """What one rank of a topology holds, tensor by tensor; reads each part
        on demand. `rank` is the rank in `tp`. Layers and experts are spread as
        in Megatron, rows over `dp` as in fairseq2. `dialect` works like
        in_dialect(). `keys` are globs of names; layers and experts are spread
        as without them (after select(), as if nothing else were there)."""
        if dialect is not None:
            return self.in_dialect(dialect).shards(
                tp=tp, pp=pp, dp=dp, ep=ep, rank=rank, pp_rank=pp_rank,
                dp_rank=dp_rank, ep_rank=ep_rank, keys=keys)
        globs = _native.texts([keys] if isinstance(keys, str) else list(keys),
                              "keys")
        sizes = _grid(1, tp=tp, pp=pp, dp=dp, ep=ep)
        place = _grid(0, rank=rank, pp_rank=pp_rank, dp_rank=dp_rank,
                      ep_rank=ep_rank)
        with self._use():  # raised here rather than by the first step
            return self._walk(sizes, place, globs)

    def _walk(self, sizes: _native.Grid, place: _native.Grid, globs: Any
              ) -> Iterator[tuple[str, Array]]:
        with self._use() as handle:
            walk = _native.call("ckpt_shards_open_some", handle,
                                ctypes.byref(sizes), ctypes.byref(place),
                                globs)
            try:
                while True:
                    with self._use():
                        found = _next_shard(walk)
                    if found is None:
                        return
                    yield found
            finally:
                _native.library().ckpt_shards_close(walk)

    @property
    def document(self) -> dict[str, Any]:
        """`ckpt inspect --json --objects`, read once."""
        if self._document is None:
            self._document = inspect(
                self._asked, objects=True, from_=self._options["format"],
                family=self._options["family"])
        return self._document

    @property
    def objects(self) -> Any:
        """Values that are not tensors: steps, arguments, schedulers."""
        return self.document.get("objects")

    @property
    def facts(self) -> Any:
        """What the configuration says about the model's function."""
        return self.document.get("facts")

    @property
    def config(self) -> Optional[dict[str, Any]]:
        """config.json of the checkpoint or beside it, if there is one; also of
        the step of a run, and of a URL."""
        if self._steps or self._handle.closed:  # that of the files
            with Checkpoint(self._asked, **self._options) as files:
                return files.config
        path = ctypes.c_char_p()
        try:
            with self._use() as handle:
                data = _native.call("ckpt_config", handle, ctypes.byref(path))
        except errors.MissingError:
            return None  # it was there when the checkpoint was opened
        if not data:
            return None
        where = os.fsdecode(path.value or b"")
        text = Array(data, "u8", ()).bytes
        try:
            value = json.loads(bytes(text))
        except (ValueError, RecursionError) as error:
            raise errors.DamagedError(f"no JSON: {error}", path=where
                                      ) from error
        if not isinstance(value, dict):
            raise errors.DamagedError("an object is expected, and here is a "
                                      f"{type(value).__name__}", path=where)
        return value


def _grid(least: int, **numbers: Any) -> _native.Grid:
    return _native.Grid(*[_native.number(value, name, least, 32)
                          for name, value in numbers.items()])


def _next_shard(walk: int) -> Optional[tuple[str, Array]]:
    name, dtype = ctypes.c_char_p(), ctypes.c_char_p()
    shape, dims = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_size_t()
    data = _native.call("ckpt_shards_next", walk, ctypes.byref(name),
                        ctypes.byref(dtype), ctypes.byref(shape),
                        ctypes.byref(dims))
    if not data:
        return None
    return ((name.value or b"").decode("utf-8", "surrogateescape"),
            Array(data, (dtype.value or b"").decode(),
                  tuple(shape[:dims.value])))


def _arguments(call: str, what: Any) -> tuple[Any, ...]:
    if call == "ckpt_select":
        return (_selection(what),)
    if call == "ckpt_add_adapters":
        return _adapter.arguments(what)
    if call == "ckpt_adapter_as_peft":
        return (_adapter.options_of(what),)
    return (_native.text(what, "dialect"),)


def _selection(chosen: dict[str, Any]) -> Any:
    return ctypes.byref(_native.Selection(
        _native.texts(chosen["keys"], "keys"),
        _native.texts(chosen["exclude"], "exclude"),
        _native.text(chosen["layers"], "layers"),
        _native.text(chosen["experts"], "experts"),
        chosen["model_only"], chosen["optim_only"],
        _native.text(chosen["part"], "part")))


def _reopen(path: str, options: dict[str, Optional[str]],
            steps: tuple[_Step, ...]) -> Checkpoint:
    checkpoint = Checkpoint(path, **options)
    for step in steps:
        checkpoint = checkpoint._then(step)
    return checkpoint


def open_checkpoint(path: Path, *,
                    format: Optional[str] = None,
                    family: Optional[str] = None) -> Checkpoint:
    """Reads only headers; no tensor is in memory until it is requested."""
    return Checkpoint(path, format=format, family=family)
