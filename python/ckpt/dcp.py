# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over any format that ckpt reads.

    state = {"model.embed_tokens.weight": parameter, ...}
    torch.distributed.checkpoint.load(state, storage_reader=ckpt.dcp.Reader(path))

Each rank reads the parts that its own shards need, and no more.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata,
                                                   Metadata,
                                                   TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan,
                                                  LoadPlanner)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ._checkpoint import Checkpoint
from .errors import UsageError

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16",
           "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn",
           "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
           "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
           "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
           "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
           "bool": "bool", "c128": "complex128", "c64": "complex64",
           "c32": "complex32"}


class Reader(StorageReader):
    """Reads tensors by the names that the checkpoint has; `rename` maps the
    names of the live model to them."""

    def __init__(self, path: Union[str, os.PathLike[str]], *,
                 rename: Optional[dict[str, str]] = None,
                 **options: Any) -> None:
        super().__init__()
        self._options = options
        self._path = path
        self._source = Checkpoint(path, **options)
        self._names = {there: here for here, there in (rename or {}).items()}

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None
              ) -> None:
        if checkpoint_id and os.fspath(checkpoint_id) != os.fspath(self._path):
            self._path = checkpoint_id
            self._source = Checkpoint(checkpoint_id, **self._options)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for name, tensor in self._source.tensors.items():
            dtype = getattr(torch, _DTYPES.get(tensor.dtype, ""), None)
            if dtype is None:
                continue  # asked for, it is "missing" in torch's words
            size = torch.Size(tensor.shape)
            whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            found[self._names.get(name, name)] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), size, [whole])
        return Metadata(state_dict_metadata=found)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool,
                              *args: Any, **kwargs: Any) -> None:
        self._there = {here: there for there, here in self._names.items()}

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            here = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                raise UsageError("a value that is not a tensor", tensor=here,
                                 path=self._source.path)
            tensor = self._source[self._there.get(here, here)]
            box = tuple(slice(begin, begin + size) for begin, size in zip(
                item.storage_offsets, item.lengths, strict=True))
            part = tensor[box] if box else tensor.read()
            target = planner.resolve_tensor(item).detach()
            target.copy_(part.torch().reshape(target.shape))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(
            cls, checkpoint_id: Union[str, os.PathLike[str]]) -> bool:
        return os.path.exists(checkpoint_id)
