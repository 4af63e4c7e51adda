# SPDX-License-Identifier: Apache-2.0
"""An open checkpoint: its headers were read, but not its payload."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _adapter, _index, _native, errors
from ._array import Array, Computes
from ._commands import Path, place, run
from ._plain import shown_value
from ._table import html_of

Key = Any  # what numpy takes
Numbers = Union[str, int, Iterable[int]]  # "0-3,8", 3, range(4)


@dataclass(frozen=True, eq=False)
class Tensor(Computes):
    """A tensor as the headers describe it. Indexing it reads that part, and
    torch(), numpy() and arithmetic read all of it."""

    name: str
    dtype: str  # "bf16", as `ckpt inspect` prints it
    shape: tuple[int, ...]  # global
    kind: str  # "model" or "optim"
    nbytes: int
    _checkpoint: "Checkpoint"

    def __repr__(self) -> str:
        return f"ckpt.Tensor({self.name}: {self.dtype} {list(self.shape)})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} is a scalar, which has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # it is there, however many rows it has

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for one in self.shape:
            count *= one
        return count

    def read(self) -> Array:
        """The whole tensor."""
        return self._checkpoint._read(self, None)

    def __getitem__(self, key: Key) -> Array:
        """Rows, columns, boxes …: integers, slices, lists, None and `...`, with
        the meaning that they have for numpy. Reads what is asked for."""
        picked = _index.pick(key, self.shape, self.name)
        if picked.simple:
            box, shown = _index.box_of(picked, self.shape)
            return self._checkpoint._read(self, box, shown)
        if self.size and self.nbytes % self.size:
            raise errors.UsageError(f"elements of {self.dtype} are no whole "
                                    "bytes: only slices of step 1 are read",
                                    tensor=self.name)
        return _index.gathered(
            picked, self.shape, self.nbytes // max(1, self.size) or 1,
            lambda box: self._checkpoint._read(self, box, tuple(box[1])))

    def torch(self, device: Any = None) -> Any:
        """All of it as a torch.Tensor."""
        return self.read().torch(device)

    def numpy(self) -> Any:
        """All of it as a numpy array; bf16 and f8 have dtypes of ml_dtypes."""
        return self.read().numpy()

    def tolist(self) -> Any:
        return self.read().tolist()

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


# What no directory goes before: libckpt says which URLs it opens.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


# What is done to a checkpoint after it is opened: ckpt_in_dialect with a name,
# ckpt_select with a selection, ckpt_add_adapters …
_Step = tuple[str, Any]


class Checkpoint(Mapping[str, Tensor]):
    """Tensors by name. Close it, or use it in a `with`, to free what its
    headers take. A copy, pickled or not, opens the same path again."""

    def __init__(self, path: Path, step: Optional[int] = None,
                 device: Optional[str] = None, *,
                 format: Optional[str] = None,
                 family: Optional[str] = None) -> None:
        asked = _native.path_text(path if step is None else
                                  _step_of(path, step))
        self.device = None if device is None else str(device)
        # The working directory may change.
        self._asked = asked if not asked or _URL.match(asked) else \
            os.path.join(os.getcwd(), asked)
        self._handle = _native.Handle(_native.call(
            "ckpt_open", os.fsencode(self._asked),
            _native.text(format, "format") if format else None,
            _native.text(family, "family") if family else None), "ckpt_close")
        self._options: dict[str, Any] = {"format": format,
                                        "family": family}
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
        other.device = self.device
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
               layers: Numbers = "", experts: Numbers = "",
               model_only: bool = False, optim_only: bool = False,
               part: str = "") -> "Checkpoint":
        """Some of the tensors: those that match a glob of `keys` and none of
        `exclude`; of numbered layers and experts, those in "0-3,8" or
        range(4); of several state dicts in a file, `part`."""
        lists = {name: [keys] if isinstance(keys, str) else list(keys)
                 for name, keys in (("keys", keys), ("exclude", exclude))}
        return self._then(("ckpt_select", {
            **lists, "layers": _numbers(layers, "layers"),
            "experts": _numbers(experts, "experts"),
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
            return _reopen, (self._asked, self._options, self._steps,
                             self.device)

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

    def _read(self, tensor: Tensor, box: Optional[_index.Box],
              shown: Optional[tuple[int, ...]] = None) -> Array:
        name = tensor.name.encode("utf-8", "surrogateescape")
        with self._use() as handle:
            data = _native.call(
                "ckpt_read", handle, name,
                _native.numbers(box[0]) if box else None,
                _native.numbers(box[1]) if box else None)
        return Array(data, tensor.dtype,
                     tensor.shape if shown is None else shown, self.device)

    def get_tensor(self, name: str) -> Any:
        """A torch.Tensor, as safetensors' safe_open() has it."""
        return self[name].torch()

    def get_slice(self, name: str) -> Tensor:
        """What reads the part that it is indexed with."""
        return self[name]

    def read_into(self, name: str, tensor: Any) -> None:
        """Reads a tensor into one of torch, or into an array of numpy, which
        keeps its dtype and its place: pinned memory, a device. What is between
        takes no more than 64 MiB, or a row of the first dimension."""
        source = self[name]
        if tuple(tensor.shape) != source.shape:
            raise errors.UsageError(
                f"{list(source.shape)} can't be read into "
                f"{list(tensor.shape)}", path=self.path, tensor=name)
        copy = _copier(tensor)
        if not source.shape or not source.size:
            return copy(tensor, source.read())
        rows = max(1, _AT_ONCE * source.shape[0] // max(1, source.nbytes))
        for begin in range(0, source.shape[0], rows):
            copy(tensor[begin:begin + rows], source[begin:begin + rows])

    def state_dict(self, *, optimizer: bool = False) -> dict[str, Any]:
        """The model's tensors as torch's, for load_state_dict(); with
        `optimizer`, those of its state too."""
        return {name: tensor.torch() for name, tensor in self.items()
                if optimizer or tensor.kind == "model"}

    def metadata(self) -> dict[str, str]:
        """The texts that a safetensors file has beside its tensors, which are
        none in other formats."""
        found = self.objects.get("__metadata__")
        return dict(found) if isinstance(found, dict) else {}

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
                        found = _next_shard(walk, self.device)
                    if found is None:
                        return
                    yield found
            finally:
                _native.library().ckpt_shards_close(walk)

    @property
    def document(self) -> dict[str, Any]:
        """`ckpt inspect --json --objects`, read once."""
        if self._document is None:
            self._document = run(
                "inspect", self._asked, objects=True,
                from_=self._options["format"], family=self._options["family"])
        return self._document

    @property
    def objects(self) -> dict[str, Any]:
        """Values that are not tensors, by name: steps, arguments, schedulers.
        They are plain values: 0.001, tuples, dicts; an instance of any other
        class is a ckpt.Opaque, which says what it was."""
        return {one["name"]: shown_value(one["value"])
                for one in self.document.get("objects", [])}

    @property
    def facts(self) -> Any:
        """What the configuration says about the model's function."""
        return self.document.get("facts")

    @property
    def family(self) -> Optional[str]:
        """The family of models: "llama", "qwen3_moe" …"""
        found = self.document.get("family")
        return None if found is None else str(found)

    @property
    def topology(self) -> dict[str, int]:
        """The sizes that it was saved with: {"tp": 2, "pp": 1 …}."""
        return dict(self.document.get("topology") or {})

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return int(self.document.get("parameters") or 0)

    @property
    def trainer(self) -> Optional[dict[str, Any]]:
        """Who wrote the run, and its step."""
        return self.document.get("trainer")

    @property
    def step(self) -> Optional[int]:
        """The step that was opened, where the run or its folder says so."""
        return (self.trainer or {}).get("step")

    def _repr_html_(self) -> str:
        return html_of(self)

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


def _numbers(given: Any, what: str) -> str:
    """Numbers as --layers has them; a choice of none is an error."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Iterable):
        given = [given]
    found = ",".join(str(_native.number(one, what)) for one in given)
    if not found:
        raise errors.UsageError(f"{what}: none is chosen")
    return found


def _grid(least: int, **numbers: Any) -> _native.Grid:
    return _native.Grid(*[_native.number(value, name, least, 32)
                          for name, value in numbers.items()])


def _next_shard(walk: int, device: Optional[str]) -> Optional[tuple[str, Array]]:
    name, dtype = ctypes.c_char_p(), ctypes.c_char_p()
    shape, dims = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_size_t()
    data = _native.call("ckpt_shards_next", walk, ctypes.byref(name),
                        ctypes.byref(dtype), ctypes.byref(shape),
                        ctypes.byref(dims))
    if not data:
        return None
    return ((name.value or b"").decode("utf-8", "surrogateescape"),
            Array(data, (dtype.value or b"").decode(),
                  tuple(shape[:dims.value]), device))


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


def _reopen(path: str, options: dict[str, Any],
            steps: tuple[_Step, ...],
            device: Optional[str] = None) -> Checkpoint:
    checkpoint = Checkpoint(path, device=device, **options)
    for step in steps:
        checkpoint = checkpoint._then(step)
    return checkpoint


_AT_ONCE = 64 << 20  # bytes that read_into() has in memory


def _copier(target: Any) -> Callable[[Any, Array], None]:
    def of_torch(part: Any, read: Array) -> None:
        part.detach().copy_(read.torch("cpu"))

    def of_numpy(part: Any, read: Array) -> None:
        part[...] = read.numpy()

    return of_torch if hasattr(target, "copy_") else of_numpy


def _step_of(root: Path, step: int) -> str:
    """The folder of a step below a training root."""
    where = _native.path_text(root)
    number = _native.number(step, "step")
    rows = run("ls", place(where))["entries"]
    steps = {row["step"]: row["name"] for row in rows if "step" in row}
    if number not in steps:
        near = ", ".join(map(str, sorted(steps)))
        raise errors.MissingError(
            f"no step {number} here", path=where,
            hint=f"it has {near}" if steps else
            "`ckpt ls` lists the steps of a training root")
    return where.rstrip("/") + "/" + str(steps[number])


def open_checkpoint(path: Path, step: Optional[int] = None,
                    device: Optional[str] = None, *,
                    format: Optional[str] = None,
                    family: Optional[str] = None) -> Checkpoint:
    """Reads only headers; no tensor is in memory until it is requested. Of a
    training root, `step` is opened, or the newest; tensors of torch are made on
    `device`."""
    return Checkpoint(path, step, device, format=format, family=family)


def load(path: Path, dialect: Optional[str] = None, tp: int = 1,
         tp_rank: int = 0, *, pp: int = 1, pp_rank: int = 0, dp: int = 1,
         dp_rank: int = 0, ep: int = 1, ep_rank: int = 0,
         step: Optional[int] = None, device: Optional[str] = None,
         dtype: Any = None, keys: Iterable[str] = (),
         exclude: Iterable[str] = (), layers: Numbers = "",
         experts: Numbers = "",
         optimizer: bool = False, format: Optional[str] = None,
         family: Optional[str] = None) -> dict[str, Any]:
    """The model's tensors as torch's, for load_state_dict(): in the names of
    `dialect` (hf, mcore, meta, fairseq2, olmo_core), and of one rank if `tp`,
    `pp`, `dp` or `ep` are more than 1. `dtype` is one of torch's, for floating
    point numbers; `optimizer` adds the optimizer's state."""
    with open_checkpoint(path, step, device, format=format,
                         family=family) as source:
        chosen = source
        if not optimizer and any(
                tensor.kind != "model" for tensor in source.values()):
            chosen = chosen.select(model_only=True)
        if keys or exclude or layers != "" or experts != "":
            chosen = chosen.select(keys=keys, exclude=exclude, layers=layers,
                                   experts=experts)
        if dialect is not None:
            chosen = chosen.in_dialect(dialect)
        parts: Iterator[tuple[str, Any]]
        if max(tp, pp, dp, ep) > 1:
            parts = chosen.shards(tp=tp, pp=pp, dp=dp, ep=ep, rank=tp_rank,
                                  pp_rank=pp_rank, dp_rank=dp_rank,
                                  ep_rank=ep_rank)
        else:
            parts = iter(chosen.items())
        found = {}
        for name, part in parts:
            tensor = part.torch(device)
            found[name] = tensor if dtype is None or not (
                tensor.is_floating_point()) else tensor.to(dtype)
        return found
