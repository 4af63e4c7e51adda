# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory, written as a checkpoint."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path as Place
from typing import Any, NoReturn, Optional

from . import _native
from ._commands import Path
from ._values import row
from .errors import UsageError

_MOST = 256 << 20  # bytes of a tokenizer's files together


def _is_file(path: Path) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


def _config_text(config: Any) -> bytes:
    """config.json, of a mapping, a file, a folder or a configuration of
    transformers."""
    if _is_file(config):
        place = Place(os.fsdecode(config))
        return (place / "config.json" if place.is_dir() else
                place).read_bytes()
    if hasattr(config, "to_json_string"):
        return str(config.to_json_string(use_diff=False)).encode()
    if not isinstance(config, Mapping):
        raise TypeError("config is a mapping, a path or a configuration of "
                        f"transformers, and here a {type(config).__name__}")
    return (json.dumps(dict(config), indent=2) + "\n").encode()


# What a folder has of a tokenizer; chat templates and processors with it.
_TOKENIZER = ("token", "vocab", "merges.txt", "special_tokens_map.json",
              "added_tokens.json", "spiece.model", "sentencepiece",
              "chat_template", "preprocessor_config.json",
              "processor_config.json")


def _tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """A tokenizer's files, of a file, a folder, or one of transformers."""
    if not _is_file(tokenizer):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            return {one.name: one.read_bytes()
                    for one in Place(folder).iterdir() if one.is_file()}
    place = Place(os.fsdecode(tokenizer))
    files = [place] if place.is_file() else [
        one for one in sorted(place.iterdir())
        if one.is_file() and one.name.startswith(_TOKENIZER)]
    if not files:
        raise UsageError("no file of a tokenizer is here", path=str(place))
    if sum(one.stat().st_size for one in files) > _MOST:
        raise UsageError(f"more than {_MOST} bytes of a tokenizer",
                         path=str(place))
    return {one.name: one.read_bytes() for one in files}


def _beside(config: Any, metadata: Optional[Mapping[str, str]],
            tokenizer: Any) -> Optional[_native.Beside]:
    files = {} if tokenizer is None else _tokenizer_files(tokenizer)
    if config is not None:
        files["config.json"] = _config_text(config)
    if not files and metadata is None:
        return None
    values = None
    if metadata is not None:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError("metadata are texts by name, and here "
                                f"{key!r}: {value!r}")
        values = json.dumps({"__metadata__": {"format": "pt",
                                              **metadata}}).encode()
    rows = [_native.FileRow(name.encode(), text, len(text))
            for name, text in files.items()]
    return _native.Beside(values, (_native.FileRow * max(1, len(rows)))(*rows),
                          len(rows))


def _arguments(tensors: Mapping[str, Any], path: Path, layout: str,
               overwrite: bool, max_shard_size: int, config: Any,
               metadata: Optional[Mapping[str, str]], tokenizer: Any
               ) -> tuple[list[Any], Any]:
    """Arguments for libckpt's calls, and what must live as long."""
    if not isinstance(tensors, Mapping):
        raise TypeError("tensors are a mapping from names to arrays, and here "
                        f"a {type(tensors).__name__}")
    target = _native.path_text(path)
    most = _native.number(max_shard_size, "max_shard_size")
    if not tensors:
        raise UsageError("there are no tensors to save", path=target)
    pairs = [row(name, value) for name, value in tensors.items()]
    rows = (_native.ArrayRow * len(pairs))(*[one for one, _ in pairs])
    beside = _beside(config, metadata, tokenizer)
    return [rows, len(pairs), beside and ctypes.byref(beside),
            os.fsencode(target), _native.text(layout, "format"),
            int(overwrite), most], (pairs, beside)


def save(tensors: Mapping[str, Any], path: Path,
         format: str = "", *, config: Any = None,
         metadata: Optional[Mapping[str, str]] = None, tokenizer: Any = None,
         overwrite: bool = False, max_shard_size: int = 0) -> None:
    """Writes arrays (torch, numpy, or anything with DLPack) beside `path`,
    without copying them first, and renames the result into place.

    `format` is a format's name. Without one, the ending of `path` decides
    (.safetensors; .pt, .pth, .bin, .ckpt); a folder gets safetensors.

    `config` (a dict, a path, or a configuration of transformers) and
    `tokenizer` (a path, or one of transformers) make a whole folder of Hugging
    Face; `metadata` are the texts beside the tensors of safetensors.
    """
    arguments, _keep = _arguments(tensors, path, format, overwrite,
                                  max_shard_size, config, metadata, tokenizer)
    name = "ckpt_save_with"
    if arguments[2] is None:
        name, arguments = "ckpt_save", arguments[:2] + arguments[3:]
    error = ctypes.c_void_p()
    status = getattr(_native.library(), name)(*arguments, ctypes.byref(error))
    if status:
        _native.check(error, status)


class PendingSave:
    """A save between its two phases: the arrays were copied, and the copies are
    being written beside the target, which is unchanged.

    finish() publishes; a save that is dropped or never finished leaves nothing.
    """

    def __init__(self, pending: int) -> None:
        self._handle = _native.Handle(pending, "ckpt_save_drop",
                                      one_process=True)

    def written(self) -> bool:
        """True if nothing is left to write: finish() will not wait long."""
        if self._handle.closed:
            return True
        with self._handle.use("the save is finished or dropped") as pending:
            return bool(_native.library().ckpt_save_written(pending))

    def finish(self) -> None:
        """Waits, then renames the whole into place. Call it once."""
        pending = self._handle.take("the save is finished or dropped already")
        error = ctypes.c_void_p()
        status = _native.library().ckpt_save_finish(pending,
                                                    ctypes.byref(error))
        if status:
            _native.check(error, status)

    def drop(self) -> None:
        self._handle.close()

    def __reduce__(self) -> NoReturn:
        _native.no_copy(self)

    def __enter__(self) -> "PendingSave":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.drop()
        elif not self._handle.closed:
            self.finish()


def begin_save(tensors: Mapping[str, Any], path: Path,
               format: str = "", *, config: Any = None,
               metadata: Optional[Mapping[str, str]] = None,
               tokenizer: Any = None, overwrite: bool = False,
               max_shard_size: int = 0) -> PendingSave:
    """Phase 1 of a save: copies the arrays, which may then change, and begins
    to write. Raises here if something can't be written at all."""
    arguments, _keep = _arguments(tensors, path, format, overwrite,
                                  max_shard_size, config, metadata, tokenizer)
    return PendingSave(_native.call("ckpt_save_begin_with", *arguments))


def _start_threads() -> None:
    global _threads
    _threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ckpt-save")


_threads: ThreadPoolExecutor
_start_threads()
os.register_at_fork(after_in_child=_start_threads)  # a child has no threads


def save_async(tensors: Mapping[str, Any],
               path: Path, format: str = "",
               **options: Any) -> "Future[None]":
    """Both phases: copies the arrays before it returns, after which they may
    change; a thread finishes, one save after another. result() raises any
    error. Options are those of save()."""
    future: "Future[None]" = Future()
    try:
        pending = begin_save(tensors, path, format, **options)
    except Exception as error:
        future.set_exception(error)
        return future
    return _threads.submit(pending.finish)
