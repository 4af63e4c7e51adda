# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of a checkpoint."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

_ROWS = 50


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def html_of(checkpoint: Any) -> str:
    """A line for the whole and a row for each of the first tensors, with a bar
    as long as its share of the largest."""
    tensors: Mapping[str, Any] = checkpoint.tensors
    most = max((one.nbytes for one in tensors.values()), default=0) or 1
    total = sum(one.nbytes for one in tensors.values())
    rows = [f"<b>{html.escape(checkpoint.path)}</b> {checkpoint.format}, "
            f"{len(tensors)} tensors, {_size(total)}", "<table><tr>"
            "<th>name<th>dtype<th>shape<th>size<th></tr>"]
    for name, one in list(tensors.items())[:_ROWS]:
        width = round(100 * one.nbytes / most)
        rows.append(
            f"<tr><td style='text-align:left'><code>{html.escape(name)}</code>"
            f"<td>{one.dtype}<td>{list(one.shape)}<td>{_size(one.nbytes)}"
            f"<td><div style='background:#4a90d9;height:8px;width:{width}px'>"
            "</div></tr>")
    rows.append("</table>")
    if len(tensors) > _ROWS:
        rows.append(f"… and {len(tensors) - _ROWS} more")
    return "".join(rows)
