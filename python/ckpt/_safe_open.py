# SPDX-License-Identifier: Apache-2.0
"""safetensors' safe_open, for every format."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Optional

from ._checkpoint import Checkpoint, Tensor
from ._commands import Path
from .errors import UsageError

# How safetensors calls dtypes, where it does not write ours in capitals.
_DTYPES = {"f8_e4m3": "F8_E4M3", "f8_e5m2": "F8_E5M2", "f8_e8m0": "F8_E8M0",
           "bool": "BOOL", "f4": "F4", "f6_e2m3": "F6_E2M3",
           "f6_e3m2": "F6_E3M2", "bf16": "BF16"}
_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch",
               "np": "numpy", "numpy": "numpy", "flax": "jax", "jax": "jax",
               "mlx": "mlx"}


def _as(framework: str, value: Any, device: Optional[str]) -> Any:
    """A Tensor or Array as an array of the framework."""
    if framework == "torch":
        return value.torch(device)
    if framework == "numpy":
        return value.numpy()
    if framework == "jax":
        import jax.numpy
        return jax.numpy.asarray(value.numpy())
    import mlx.core
    return mlx.core.array(value.numpy())


class Slice:
    """A tensor that is read where it is indexed."""

    def __init__(self, tensor: Tensor, framework: str,
                 device: Optional[str]) -> None:
        self._tensor, self._framework, self._device = tensor, framework, device

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return _DTYPES.get(self._tensor.dtype, self._tensor.dtype.upper())

    def __getitem__(self, key: Any) -> Any:
        return _as(self._framework, self._tensor[key], self._device)


class safe_open:  # noqa: N801  the name that others import
    """Opens a checkpoint as safetensors' function of this name opens a file:
    one of safetensors, or any other that ckpt reads.

        with ckpt.safe_open(path, framework="pt", device="cpu") as f:
            f.get_tensor("model.norm.weight")

    `framework` is pt, np, jax (flax) or mlx. `dialect` gives other names, as
    Checkpoint.in_dialect() does."""

    def __init__(self, filename: Path, framework: str = "pt",
                 device: Any = "cpu", *, dialect: Optional[str] = None,
                 format: Optional[str] = None,
                 family: Optional[str] = None) -> None:
        kind = _FRAMEWORKS.get(framework)
        if kind is None:
            raise UsageError(f"no framework {framework!r}",
                             hint="pt, np, jax, flax or mlx")
        self._framework = kind
        device = f"cuda:{device}" if isinstance(device, int) else str(device)
        self._device = None if device == "cpu" else device
        if self._device is not None and kind != "torch":
            raise UsageError(f"{kind} reads to the CPU, and not to {device}")
        self._source = Checkpoint(filename, format=format, family=family)
        if dialect is not None:
            self._source = self._source.in_dialect(dialect)

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def keys(self) -> list[str]:
        return sorted(self._source)

    def offset_keys(self) -> list[str]:
        """Names in the order in which a file of safetensors has them; of
        others, in that of the checkpoint."""
        places = _header(self._source.path)
        names = list(self._source)
        if not all(name in places for name in names):
            return names
        return sorted(names, key=lambda name: (places[name]["data_offsets"],
                                               name))

    def metadata(self) -> Optional[dict[str, str]]:
        """The texts beside the tensors, or None."""
        return self._source.metadata() or None

    def get_tensor(self, name: str) -> Any:
        return _as(self._framework, self._source[name], self._device)

    def get_slice(self, name: str) -> Slice:
        return Slice(self._source[name], self._framework, self._device)


def _header(path: str) -> dict[str, Any]:
    """The header of a file of safetensors, which libckpt has checked."""
    if not path.endswith(".safetensors") or not os.path.isfile(path):
        return {}
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        found: dict[str, Any] = json.loads(file.read(size))
    return found
