# SPDX-License-Identifier: Apache-2.0
"""Values that are not tensors, from the JSON that `ckpt inspect --objects`
prints: {"!tuple": [1]} is (1,)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "!int": int, "!float": float, "!bytes": bytes.fromhex,
    "!bytearray": bytearray.fromhex}
_OF_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "!tuple": tuple, "!set": set, "!frozenset": frozenset}


def plain_value(value: Any) -> Any:
    """The value; a ValueError if the JSON does not have all of it, as for
    instances of classes and what is too long to be shown."""
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    tags = [key for key in value if key.startswith("!")]
    if not tags:
        return {key: plain_value(one) for key, one in value.items()}
    tag = tags[0]
    if len(value) != 1:
        raise ValueError(f"not whole: {sorted(value)}")
    body = value[tag]
    if tag in _OF_TEXT:
        return _OF_TEXT[tag](body)
    if tag in _OF_ITEMS:
        return _OF_ITEMS[tag]([plain_value(one) for one in body])
    if tag == "!dict":
        return {plain_value(key): plain_value(one) for key, one in body}
    if tag == "!complex":
        return complex(*[float(part) for part in body])
    raise ValueError(f"{tag} is of no built-in class")
