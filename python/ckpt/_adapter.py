# SPDX-License-Identifier: Apache-2.0
"""Adapters: what one is, and a base with some added (ckpt/adapter.h)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_double, c_int
from dataclasses import dataclass
from typing import Any, Optional

from . import _native, errors
from ._commands import Path


@dataclass(frozen=True)
class Adapter:
    """What an adapter's configuration says, and its tensors where it says
    nothing. A rank or an alpha that no file says is None."""

    kind: str  # as PEFT calls it: "LORA", "LOHA" …
    names: str  # whose: "peft", "kohya", "mlx" …
    base: str  # the model that it was trained on, or ""
    rank: Optional[int]
    alpha: Optional[float]
    rslora: bool
    dora: bool
    targets: tuple[str, ...]
    saved: tuple[str, ...]  # modules that are whole in it


class _Use(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("weight", c_double)]


class _Options(ctypes.Structure):
    _fields_ = [("alpha", POINTER(c_double)), ("allow_nonfinite", c_int),
                ("family", c_char_p), ("config_from", c_char_p)]


def described(handle: int) -> Optional[Adapter]:
    found = _native.call("ckpt_adapter", handle)
    if not found:
        return None
    try:
        said = json.loads(ctypes.string_at(found))
    finally:
        _native.library().ckpt_free(found)
    return Adapter(**dict(said, targets=tuple(said["targets"]),
                          saved=tuple(said["saved"])))


def asked(paths: Iterable[Path], weights: Optional[Iterable[float]],
          **options: Any) -> dict[str, Any]:
    """A step of a checkpoint's, which may be pickled."""
    given = [_native.path_text(path) for path in paths]
    times = [float(one) for one in weights] if weights is not None else \
        [1.0] * len(given)
    if len(times) != len(given):
        raise errors.UsageError(f"{len(times)} weights for {len(given)} "
                                "adapters")
    return {"paths": given, "weights": times, **options}


def options_of(what: dict[str, Any]) -> Any:
    alpha = what.get("alpha")
    family, config = what.get("family"), what.get("config_from")
    return ctypes.byref(_Options(
        None if alpha is None else ctypes.pointer(c_double(alpha)),
        bool(what.get("allow_nonfinite")),
        _native.text(family, "family") if family else None,
        _native.text(_native.path_text(config), "config_from")
        if config else None))


def arguments(what: dict[str, Any]) -> tuple[Any, ...]:
    rows = [_Use(_native.text(path, "a path"), weight)
            for path, weight in zip(what["paths"], what["weights"])]
    return ((_Use * max(1, len(rows)))(*rows), len(rows), options_of(what))

