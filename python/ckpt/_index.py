# SPDX-License-Identifier: Apache-2.0
"""What `tensor[key]` reads, and what is made of it.

A key means what it means to numpy. Of each dimension, the indices that it needs
are read and no others, but for gaps that are cheaper to read than to skip; the
key is then applied, by numpy or torch, to what was read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from ._array import Array

# A gap of so many bytes is read along with what is around it.
_CHEAP = 64 << 10

Box = tuple[list[int], list[int]]  # offsets, shape
Runs = list[tuple[int, int]]  # [begin, end) of a dimension's indices


@dataclass(frozen=True)
class Pick:
    """A key, made plain: of each dimension, an integer, a slice of step 1 or
    more, or a list of indices; None where a dimension of one is put in."""

    keys: list[Any]
    simple: bool  # integers and slices of step 1 alone: one box is the answer


def _integer(value: Any) -> Optional[int]:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _indices(value: Any, dim: int, name: str) -> Optional[list[Any]]:
    """A list of indices, or of booleans."""
    if hasattr(value, "tolist"):  # of numpy, torch …
        value = value.tolist()
    if not isinstance(value, (list, tuple, range)):
        return None
    items = list(value)
    if items and all(isinstance(one, bool) for one in items):
        return items
    if any(_integer(one) is None for one in items):
        return None
    return [operator.index(one) for one in items]


def _checked(index: int, dim: int, size: int, name: str) -> int:
    if not -size <= index < size:
        raise IndexError(f"{name}: {index} in dimension {dim}, which has "
                         f"{size}")
    return index % size


def _one(value: Any, dim: int, size: int, name: str) -> Any:
    if isinstance(value, slice):
        begin, end, step = value.indices(size)
        if step > 0:
            return slice(begin, max(begin, end), step)
        return list(range(begin, end, step))
    index = _integer(value)
    if index is not None:
        return _checked(index, dim, size, name)
    found = _indices(value, dim, name)
    if found is None:
        raise TypeError(f"{name}: {value!r} in dimension {dim}; integers, "
                        "slices, lists of integers or booleans, None and "
                        "`...` are read")
    if found and isinstance(found[0], bool):
        if len(found) != size:
            raise IndexError(f"{name}: {len(found)} booleans in dimension "
                             f"{dim}, which has {size}")
        return [at for at, take in enumerate(found) if take]
    return [_checked(at, dim, size, name) for at in found]


def pick(key: Any, shape: tuple[int, ...], name: str) -> Pick:
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, one in enumerate(keys) if one is ...]
    if len(dots) > 1:
        raise IndexError("more than one `...`")
    given = sum(one is not None and one is not ... for one in keys)
    if given > len(shape):
        raise IndexError(f"{name} has {len(shape)} dimensions, {given} are "
                         "asked for")
    rest = [slice(None)] * (len(shape) - given)
    at = dots[0] if dots else len(keys)
    keys = keys[:at] + rest + keys[at + len(dots):]
    found: list[Any] = []
    dim = 0
    for one in keys:
        if one is None:
            found.append(None)
            continue
        found.append(_one(one, dim, shape[dim], name))
        dim += 1
    return Pick(found, not any(
        isinstance(one, list) or isinstance(one, slice) and one.step != 1
        for one in found))


def box_of(picked: Pick, shape: tuple[int, ...]) -> tuple[Box, tuple[int, ...]]:
    """The box of a simple key, and the shape of the answer."""
    offsets, sizes, shown, dim = [], [], [], 0
    for one in picked.keys:
        if one is None:
            shown.append(1)
            continue
        if isinstance(one, slice):
            count = one.stop - one.start
            offsets.append(min(one.start, shape[dim]))
            sizes.append(count)
            shown.append(count)
        else:
            offsets.append(one)
            sizes.append(1)
        dim += 1
    return (offsets, sizes), tuple(shown)


def _runs(needed: Sequence[int], gap: int) -> Runs:
    """Runs that hold sorted indices, and gaps of less than `gap` of others."""
    runs: Runs = []
    for at in needed:
        if runs and at - runs[-1][1] <= gap:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def gathered(picked: Pick, shape: tuple[int, ...], item: int,
             read: Callable[[Box], Array]) -> Array:
    """The answer to a key that is not simple. Elements have `item` bytes."""
    dims = [one for one in picked.keys if one is not None]
    needed: list[Union[range, list[int]]] = []
    for one in dims:
        if isinstance(one, slice):
            needed.append(range(one.start, one.stop, one.step))
        else:
            needed.append(sorted(set(one)) if isinstance(one, list) else [one])
    # One dimension is read in runs: where that leaves out the most.
    spans = [(some[0], some[-1] + 1) if len(some) else (0, 0)
             for some in needed]
    split, runs, saved = 0, [spans[0]] if spans else [], 0
    for dim, some in enumerate(needed):
        inner = item
        for begin, end in spans[dim + 1:]:
            inner *= max(1, end - begin)
        parts = _runs(some, max(0, _CHEAP // inner))
        skipped = (spans[dim][1] - spans[dim][0] -
                   sum(end - begin for begin, end in parts))
        if skipped * inner > saved:
            split, runs, saved = dim, parts, skipped * inner
    boxes = []
    for begin, end in runs:
        mine = [*spans]
        mine[split] = (begin, end)
        boxes.append(read(([b for b, _ in mine], [e - b for b, e in mine])))
    # Where an index of the tensor is in what was read.
    places = [{at: at - begin for at in some} if dim != split else {}
              for dim, ((begin, _), some) in enumerate(zip(spans, needed))]
    start = 0
    for begin, end in runs:
        for at in range(begin, end):
            places[split][at] = start + at - begin
        start += end - begin
    keys: list[Any] = []
    dim = 0
    for one in picked.keys:
        if one is None:
            keys.append(None)
            continue
        if isinstance(one, slice):
            one = list(needed[dim])
            places_of = [places[dim][at] for at in one]
            step = places_of[1] - places_of[0] if len(one) > 1 else 1
            even = all(b - a == step for a, b in zip(places_of, places_of[1:]))
            keys.append(slice(places_of[0], places_of[-1] + 1, step)
                        if one and even else
                        places_of if one else slice(0, 0))
        elif isinstance(one, list):
            keys.append([places[dim][at] for at in one])
        else:
            keys.append(places[dim][one])
        dim += 1
    return _applied(boxes, split, tuple(keys), item)


def _applied(boxes: list[Array], split: int, key: tuple[Any, ...],
             item: int) -> Array:
    """The key on the boxes, joined along a dimension. Elements are moved as
    integers of their size, whatever they mean."""
    try:
        import numpy
    except ImportError:
        return _by_torch(boxes, split, key)
    kind = numpy.dtype(f"V{item}")
    parts = [numpy.frombuffer(box.bytes, dtype=kind).reshape(box.shape)
             for box in boxes]
    whole = parts[0] if len(parts) == 1 else numpy.concatenate(parts, split)
    made = numpy.ascontiguousarray(whole[_whole_lists(key, numpy)])
    return Array._of_memory(made, made.ctypes.data, boxes[0],
                            tuple(made.shape), made.nbytes)


def _whole_lists(key: tuple[Any, ...], numpy: Any) -> tuple[Any, ...]:
    """An empty list is one of integers."""
    return tuple(numpy.array(one, dtype="i8") if isinstance(one, list) else one
                 for one in key)


def _by_torch(boxes: list[Array], split: int, key: tuple[Any, ...]) -> Array:
    import torch
    parts = [box.torch("cpu") for box in boxes]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, split)
    made = whole[tuple(torch.tensor(one, dtype=torch.int64)
                       if isinstance(one, list) else one
                       for one in key)].contiguous()
    return Array._of_memory(made, made.data_ptr(), boxes[0],
                            tuple(made.shape),
                            made.numel() * made.element_size())
