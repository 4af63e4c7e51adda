# SPDX-License-Identifier: Apache-2.0
"""ckpt.dcp.Reader beside torch's own reader; cases of python_test.py."""

import re
import warnings

import ckpt
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from python_cases import checkpoint_of
from python_values import Wrapper
from support import DATA, check, check_equal


def load(state, folder, **options):
    from ckpt.dcp import Reader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=Reader(folder, **options), no_dist=True)
    return state


def load_error(state, folder):
    """The error at the root of torch's exception."""
    try:
        load(state, folder)
    except dcp.api.CheckpointException as error:
        return error.failures[0][0]
    raise AssertionError("it loads")


def as_torch(_):
    """Every golden that torch's own reader accepts loads the same into the same
    state. What Megatron's optimizers keep flat has its parameters' shapes
    here."""
    from ckpt.dcp import Reader
    tried, flat = 0, set()
    for path in sorted([*DATA.glob("dcp/*/ckpt/.metadata"), *DATA.glob(
            "megatron_torch_dist/*/ckpt/**/.metadata")]):
        folder = path.parent
        if re.search(rb"megatron|olmo_core", path.read_bytes()):
            continue  # torch's reader imports what the pickle names
        known = dcp.FileSystemReader(folder).read_metadata()
        ours = Reader(folder)
        shapes = {name: entry.size
                  for name, entry in ours.read_metadata(
                      ).state_dict_metadata.items()}
        wanted = {}
        for name, entry in known.state_dict_metadata.items():
            if not hasattr(entry, "size"):
                continue
            if shapes.get(name) != entry.size:
                flat.add(name)
                continue
            wanted[name] = torch.zeros(entry.size,
                                       dtype=entry.properties.dtype)
        got = {name: tensor.clone() for name, tensor in wanted.items()}
        try:
            dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder),
                     no_dist=True)
        except dcp.api.CheckpointException as error:
            check("no module named 'zstandard'" in str(error), f"{error}")
            continue
        dcp.load(got, storage_reader=ours, no_dist=True)
        for name, tensor in wanted.items():
            check(bits(got[name]) == bits(tensor), f"{folder}: {name}")
        tried += len(wanted)
    check(tried > 500, f"{tried} tensors")
    check(all(re.match(r"flat\.|(chained_\d\.)?optimizer\.", name)
              for name in flat), f"{sorted(flat)}")


def bits(tensor):
    flat = tensor.reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def renames(folder):
    """Live names are many-to-one: tied weights, and swapped names."""
    a, b = np.arange(6, dtype="f4"), np.ones((2, 2), "f4")
    source = checkpoint_of(folder, a=a, b=b)
    for names in ({"x": "a", "y": "a"}, {"x": "a", "a": "a"}, {"a": "b",
                  "b": "a"}, {"x": "a", "b": "a", "y": "b"}, {"x": "b"}):
        wanted = {live: {"a": a, "b": b}[there]
                  for live, there in {"a": "a", "b": "b", **names}.items()}
        state = load({live: torch.zeros(want.shape)
                      for live, want in wanted.items()}, source, rename=names)
        for live, want in wanted.items():
            check_equal(state[live].tolist(), want.tolist(), f"{names}: {live}")


def plain_values(_):
    """Steps, groups and lists come back as from torch's own reader."""
    for case in ("fsdp2_w2_adamw", "torch2.1.2_w2", "torch_save_to_dcp"):
        folder = DATA / "dcp" / case / "ckpt"
        known = dcp.FileSystemReader(folder).read_metadata()
        ours, theirs = ({
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            if hasattr(entry, "size") else "to be loaded"
            for name, entry in known.state_dict_metadata.items()}
            for _ in range(2))
        load(ours, folder)
        dcp.load(theirs, storage_reader=dcp.FileSystemReader(folder),
                 no_dist=True)
        plain = {name: value for name, value in theirs.items()
                 if not isinstance(value, torch.Tensor)}
        check(plain, f"{case} has none")
        for name, value in plain.items():
            check_equal(repr(ours[name]), repr(value), f"{case}: {name}")
    # All values that JSON can't express are named.
    folder = DATA / "dcp/plain_w1/ckpt"
    check_equal(load({"int": 0, "bytes": 0, "none": 0}, folder),
                {"int": 5, "bytes": b"\0\xff", "none": None}, "values")
    error = load_error({"int": 0, "np": 0, "dtype": 0}, folder)
    check(isinstance(error, ckpt.errors.UnfaithfulError) and
          "dtype, np" in str(error), f"{error!r}")


def quantized(folder):
    """A live tensor of a class that takes no plain values is named."""
    source = checkpoint_of(folder, w=np.ones(2, "f4"))
    error = load_error({"w": Loaded()}, source)
    check(isinstance(error, ckpt.Error) and error.tensor == "w" and
          "Loaded" in str(error), f"{error!r}")


class Loaded(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            raise ValueError("args of copy_")
        return args[0]


CASES = (as_torch, renames, plain_values, quantized)
