# SPDX-License-Identifier: Apache-2.0
"""Values that are not tensors, from the JSON that `ckpt inspect --objects`
prints: {"!tuple": [1]} is (1,)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "!int": int, "!float": float, "!bytes": bytes.fromhex,
    "!bytearray": bytearray.fromhex}
_OF_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "!tuple": tuple, "!set": set, "!frozenset": frozenset}
# Of other libraries, with values that Python has as well.
_LIKE_ITEMS: dict[str, Callable[[list[Any]], Any]] = {**_OF_ITEMS,
                                                      "!Size": tuple}
_LIKE_DICTS = ("!dict", "!OrderedDict", "!Counter")


@dataclass(frozen=True)
class Opaque:
    """A value of a class that no plain value stands for, or more of one than
    was read: nothing of a pickle is run. `kind` is the class, and `state` what
    was found of its members."""

    kind: str
    state: Any

    def __repr__(self) -> str:
        return f"<{self.kind}>"

    def __getattr__(self, name: str) -> Any:
        """A member of the instance, as its class has it: args.num_layers."""
        members = self.__dict__.get("state", {}).get("state")
        if isinstance(members, dict) and name in members:
            return members[name]
        raise AttributeError(f"{self!r} has no member {name!r} that was read")


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


def shown_value(value: Any) -> Any:
    """The value as far as plain values can say it; the rest is Opaque."""
    if isinstance(value, list):
        return [shown_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    tags = [key for key in value if key.startswith("!")]
    if not tags:
        return {key: shown_value(one) for key, one in value.items()}
    tag, body = tags[0], value[tags[0]]
    try:
        if tag in _OF_TEXT and len(value) == 1:
            return _OF_TEXT[tag](body)
        if tag in _LIKE_ITEMS and len(value) == 1:
            return _LIKE_ITEMS[tag]([shown_value(one) for one in body])
        if tag in _LIKE_DICTS and len(value) == 1:
            return {shown_value(key): shown_value(one) for key, one in body}
        if tag == "!complex" and len(value) == 1:
            return complex(*[float(part) for part in body])
        if tag == "!np_scalar" and "value" in value:
            return shown_value(value["value"])
    except (TypeError, ValueError):  # a key that can't be hashed
        pass
    kind = body.replace(" ", ".") if tag in (
        "!object", "!global") and isinstance(body, str) else tag[1:]
    return Opaque(kind, {key.lstrip("!"): shown_value(one)
                         for key, one in value.items()})
