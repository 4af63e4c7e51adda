# SPDX-License-Identifier: Apache-2.0
"""ckpt: open, verify and rewrite the checkpoints of large models.

    import ckpt

    with ckpt.open("step_5000") as c:
        rows = c["model.embed_tokens.weight"][0:128]   # reads 128 rows
        tensor = torch.from_dlpack(rows)

    ckpt.convert("step_5000", "out", to="safetensors", dtype="bf16")

`ckpt.dcp.Reader` loads any format into a live model with torch.distributed.
"""

from __future__ import annotations

from . import errors
from ._adapter import Adapter
from ._array import Array
from ._checkpoint import Checkpoint, Tensor
from ._checkpoint import open_checkpoint as open
from ._commands import (Difference, Verdict, Written, convert, diff, digest,
                        inspect, reshard, run, scan, unshard, verify)
from ._save import PendingSave, begin_save, save, save_async
from .errors import Error

__all__ = ["Adapter", "Array", "Checkpoint", "Difference", "Error", "PendingSave",
           "Tensor", "Verdict", "Written", "begin_save", "convert", "diff",
           "digest", "errors", "inspect", "open", "reshard", "run", "save",
           "save_async", "scan", "unshard", "verify", "version"]


def version() -> str:
    """The version of the loaded library."""
    from . import _native
    return str(_native.library().ckpt_version().decode())


def _main() -> None:
    """The command `ckpt` of a wheel: runs the binary that it contains."""
    import os
    import sys

    from . import _native
    binary = _native.binary()
    os.execv(binary, ["ckpt", *sys.argv[1:]])
