# SPDX-License-Identifier: Apache-2.0
"""ckpt: open, verify and rewrite the checkpoints of large models.

    import ckpt

    with ckpt.open("step_5000") as c:
        rows = c["model.embed_tokens.weight"][0:128]   # reads 128 rows
        tensor = rows.torch()
    state = ckpt.load("step_5000", dialect="hf")       # for load_state_dict()

    ckpt.convert("step_5000", "out", to="safetensors", dtype="bf16")

Every command is a function, and `ckpt.aio` has the same for asyncio.
`ckpt.dcp.Reader` loads any format into a live model with torch.distributed, and
`ckpt.safe_open` is that of safetensors for any format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _functions, errors
from ._adapter import Adapter
from ._array import Array
from ._checkpoint import Checkpoint, Tensor, load
from ._checkpoint import open_checkpoint as open
from ._commands import (Delta, Difference, Served, Verdict, Written, digest,
                        fingerprint, run)
from ._functions import *  # noqa: F403  the commands
from ._plain import Opaque
from ._safe_open import safe_open
from ._save import PendingSave, begin_save, save, save_async
from .errors import Error

if TYPE_CHECKING:
    __version__: str

__all__ = ["Adapter", "Array", "Checkpoint", "Delta", "Difference", "Error",
           "Opaque", "PendingSave", "Served", "Tensor", "Verdict", "Written",
           "__version__", "begin_save", "digest", "errors", "fingerprint",
           "load", "open", "run", "safe_open", "save", "save_async", "version"]
__all__ += _functions.__all__


def version() -> str:
    """The version of the loaded library."""
    from . import _native
    return str(_native.library().ckpt_version().decode())


def __getattr__(name: str) -> Any:
    """What is looked up late: the version, and modules that few need."""
    if name == "__version__":
        return version()
    if name in ("aio", "dcp"):
        import importlib
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _main() -> None:
    """The command `ckpt` of a wheel: runs the binary that it contains."""
    import os
    import sys

    from . import _native
    binary = _native.binary()
    os.execv(binary, ["ckpt", *sys.argv[1:]])
