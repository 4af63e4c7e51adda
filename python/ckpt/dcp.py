# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint for any format that ckpt reads.

    state = {"model.embed_tokens.weight": parameter, ...}
    torch.distributed.checkpoint.load(state, storage_reader=ckpt.dcp.Reader(path))

Each rank reads only the parts that its own shards need. With `dialect="hf"` a
checkpoint of Megatron loads into a model of Hugging Face, and with
ckpt.dcp.Writer a save becomes a checkpoint of any format that ckpt writes.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata,
                                                   ChunkStorageMetadata,
                                                   Metadata,
                                                   TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan,
                                                  LoadPlanner)
from torch.distributed.checkpoint.storage import StorageReader, WriteResult
from torch.futures import Future

from . import _native
from ._array import TORCH
from ._checkpoint import Checkpoint
from ._commands import Path
from ._functions import convert
from ._plain import plain_value
from .errors import UnfaithfulError

_ENTRY = Union[TensorStorageMetadata, BytesStorageMetadata]


class _Entries(dict[str, Any]):
    """What a checkpoint has for a state dict, by live names. Plain values are
    looked up at the first name that is not a tensor's: that means reading the
    checkpoint a second time, and most states have none."""

    def __init__(self, tensors: dict[str, Any],
                 objects: Callable[[], Iterable[str]]) -> None:
        super().__init__(tensors)
        self._objects: Optional[Callable[[], Iterable[str]]] = objects

    def _complete(self) -> None:
        if self._objects is not None:
            objects, self._objects = self._objects, None
            for name in objects():
                self.setdefault(name, BytesStorageMetadata())

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self._complete()
        return super().__contains__(name)

    def __missing__(self, name: str) -> _ENTRY:
        if name in self:
            return cast(_ENTRY, self[name])
        raise KeyError(name)


class Reader(StorageReader):
    """Reads tensors of a path, or of an open checkpoint, by its names, or by
    those of `dialect`; `rename` maps names of the live model to them, several
    to one where weights are tied."""

    def __init__(self, path: Union[Path, Checkpoint],
                 dialect: Optional[str] = None, *,
                 rename: Optional[dict[str, str]] = None,
                 **options: Any) -> None:
        super().__init__()
        self._options = options
        self._path = path
        self._dialect = dialect
        self._rename = dict(rename or {})
        self._open()

    def _open(self) -> None:
        self._source = self._path if isinstance(self._path, Checkpoint) else \
            Checkpoint(self._path, **self._options)
        if self._dialect is not None:
            self._source = self._source.in_dialect(self._dialect)
        self._values: Optional[dict[str, Any]] = None

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None
              ) -> None:
        if isinstance(self._path, Checkpoint):
            return  # it is open, whatever it is called
        if checkpoint_id and os.fspath(checkpoint_id) != os.fspath(self._path):
            self._path = checkpoint_id
            self._open()

    def _there(self, here: str) -> str:
        return self._rename.get(here, here)

    def _live(self, stored: Iterable[str]) -> dict[str, str]:
        """Live names of what the checkpoint has -> its own names."""
        names = {name: name for name in stored}
        renamed = {here: there for here, there in self._rename.items()
                   if there in names}
        return {here: there for here, there in {**names, **renamed}.items()
                if self._there(here) == there}

    def _objects(self) -> dict[str, Any]:
        """Values that are not tensors, as JSON, by the checkpoint's names."""
        if self._values is None:
            self._values = {one["name"]: one["value"]
                            for one in self._source.document.get(
                                "objects", [])}
        return self._values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for here, there in self._live(self._source.tensors).items():
            tensor = self._source[there]
            dtype = getattr(torch, TORCH.get(tensor.dtype, ""), None)
            if dtype is None:
                continue  # if requested, torch reports it as missing
            size = torch.Size(tensor.shape)
            whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            found[here] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), size, [whole])
        return Metadata(state_dict_metadata=_Entries(
            found, lambda: self._live(self._objects())))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool,
                              *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        values = self._plain_values(plan)
        for item in plan.items:
            here = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                data = io.BytesIO()
                torch.save(values[here], data)
                data.seek(0)
                planner.load_bytes(item, data)
            else:
                self._read_tensor(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _plain_values(self, plan: LoadPlan) -> dict[str, Any]:
        """The plain values, before anything is read: names all those that can't
        be converted."""
        found, unknown = {}, []
        for item in plan.items:
            if item.type != LoadItemType.BYTE_IO:
                continue
            here = item.storage_index.fqn
            try:
                found[here] = plain_value(self._objects()[self._there(here)])
            except (KeyError, ValueError, TypeError):
                unknown.append(here)
        if unknown:
            raise UnfaithfulError(
                "values that are not tensors, and more than numbers, texts and "
                f"collections of them: {', '.join(sorted(unknown))}",
                path=self._source.path,
                hint="leave them out of the state dict")
        return found

    def _read_tensor(self, item: Any, planner: LoadPlanner) -> None:
        here = item.storage_index.fqn
        tensor = self._source[self._there(here)]
        box = tuple(slice(begin, begin + size) for begin, size in zip(
            item.storage_offsets, item.lengths))
        part = (tensor[box] if box else tensor.read()).torch("cpu")
        kind: type = torch.Tensor
        try:
            target = planner.resolve_tensor(item).detach()
            kind = type(target)
            target.copy_(part.reshape(target.shape))
            planner.commit_tensor(item, target)
        except Exception as error:
            # A quantized weight only takes a quantized one, and says so in its
            # own words.
            raise UnfaithfulError(
                f"{tensor.dtype} {list(tensor.shape)} can't be copied into the "
                f"state's {kind.__module__}.{kind.__qualname__}: {error!r}",
                path=self._source.path, tensor=here) from error

    @classmethod
    def validate_checkpoint_id(
            cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return os.path.exists(checkpoint_id)


class Writer(FileSystemWriter):
    """Saves a checkpoint of any format that ckpt writes. Every rank writes its
    shards beside `path`, as torch.distributed.checkpoint does; then the
    coordinator converts the whole, which appears under its name at once.

        torch.distributed.checkpoint.save(
            state, storage_writer=ckpt.dcp.Writer("out", format="safetensors"))

    `options` are those of ckpt.convert(). Names are the state's own unless
    `dialect` says otherwise. With `format="dcp"` nothing is converted."""

    def __init__(self, path: Path, format: str = "dcp", *,
                 overwrite: bool = False, **options: Any) -> None:
        self._target = _native.path_text(path)
        self._format, self._options = format, options
        self._overwrite = overwrite
        place = self._target if format == "dcp" else _beside(self._target)
        super().__init__(place, overwrite=overwrite or format != "dcp")
        if format == "dcp" and not overwrite and os.path.exists(self._target):
            raise UnfaithfulError("already exists", path=self._target,
                                  hint="overwrite=True replaces it")

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None
              ) -> None:
        if checkpoint_id:
            self._target = _native.path_text(checkpoint_id)
            checkpoint_id = self._target if self._format == "dcp" else \
                _beside(self._target)
        super().reset(checkpoint_id)

    @property
    def checkpoint_id(self) -> Union[str, os.PathLike[str]]:
        return self._target

    def finish(self, metadata: Metadata,
               results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        if self._format == "dcp":
            return
        place = _beside(self._target)
        try:
            convert(place, self._target, to=self._format,
                    overwrite=self._overwrite,
                    **{"dialect": "keep", **self._options})
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _beside(target: str) -> str:
    """Where the shards of a save are until they are converted."""
    folder, name = os.path.split(target.rstrip("/"))
    return os.path.join(folder, f".{name}.ckpt-dcp")
