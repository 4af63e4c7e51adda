# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint for any format that ckpt reads.

    state = {"model.embed_tokens.weight": parameter, ...}
    torch.distributed.checkpoint.load(state, storage_reader=ckpt.dcp.Reader(path))

Each rank reads only the parts that its own shards need.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union, cast

import torch
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata,
                                                   ChunkStorageMetadata,
                                                   Metadata,
                                                   TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan,
                                                  LoadPlanner)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ._checkpoint import Checkpoint
from ._commands import Path
from ._plain import plain_value
from .errors import UnfaithfulError

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16",
           "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
           "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
           "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
           "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
           "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
           "bool": "bool", "c128": "complex128", "c64": "complex64",
           "c32": "complex32"}


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
    """Reads tensors by the checkpoint's names; `rename` maps names of the live
    model to them, several to one where weights are tied."""

    def __init__(self, path: Path, *, rename: Optional[dict[str, str]] = None,
                 **options: Any) -> None:
        super().__init__()
        self._options = options
        self._path = path
        self._rename = dict(rename or {})
        self._open()

    def _open(self) -> None:
        self._source = Checkpoint(self._path, **self._options)
        self._values: Optional[dict[str, Any]] = None

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None
              ) -> None:
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
                            for one in self._source.objects or []}
        return self._values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for here, there in self._live(self._source.tensors).items():
            tensor = self._source[there]
            dtype = getattr(torch, _DTYPES.get(tensor.dtype, ""), None)
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
        part = (tensor[box] if box else tensor.read()).torch()
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
