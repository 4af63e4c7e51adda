# SPDX-License-Identifier: Apache-2.0
"""The checkpoints under tests/data, with the expected result of each.

A Unit is one thing that ckpt opens: a file of a case, or its whole ckpt folder.
The expectations come from files that the peers wrote.
"""

import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from support import DATA, Tensor, check, read_safetensors

FORMATS = {"safetensors": "safetensors", "torch_pt": "torch",
           "torch_legacy": "torch", "fairseq2_native": "fairseq2"}

# dtypes that one of the two containers can't hold.
NOT_SAFETENSORS = {"c128", "c32", "f4x2"}
NOT_TORCH = {"f4", "f6_e2m3", "f6_e3m2"}
# Quantized tensors become integers in safetensors, with a warning.
QUANTIZED = {"qu8": "u8", "qi8": "i8"}


@dataclass
class Unit:
    name: str  # format/case[/file]
    case: Path
    path: Path
    format: str
    info: dict  # case.json
    model: dict  # name -> Tensor, from expected.safetensors
    optim: dict = field(default_factory=dict)
    # The peer's object tree in canonical JSON, or None.
    objects: object = None
    # True: the reader invents names for these tensors, so contents and the last
    # parts of the names are compared.
    own_names: bool = False
    # Tensors that are listed but can't be read: --exclude them.
    unreadable: tuple = ()

    @property
    def all(self):
        return {**self.model, **self.optim}


def load(path):
    return json.loads(path.read_text())


def expected(case, name="expected.safetensors"):
    path = case / name
    return read_safetensors(path) if path.exists() else {}


def safetensors_units(case, info):
    table = case / "expected_tensors.json"
    if not table.exists():
        yield Unit("", case, case / "ckpt", "", info, expected(case))
        return
    for name, rows in load(table).items():
        path = case / "ckpt" / name
        tensors = read_safetensors(path)
        # The reference parser's view of the file, against ours.
        for key, row in rows.items():
            got = tensors[key]
            same = (got.dtype, list(got.shape), zlib.crc32(got.data)) == (
                row["dtype"].lower(), row["shape"], row["crc32"])
            check(same, f"the test's own parser misreads {key} of {path}")
        check(len(rows) == len(tensors), f"the test misreads {path}")
        yield Unit(name, case, path, "", info, tensors)


def with_raw(tensors, notes):
    """expected.safetensors holds dtypes that it can't name as U8; these are the
    real dtypes and shapes."""
    names = {"complex128": "c128", "complex32": "c32",
             "float4_e2m1fn_x2": "f4x2"}
    out = dict(tensors)
    for key, note in notes.items():
        dtype, _, shape = note.partition(":")
        dims = [int(n) for n in shape.split(",") if n]
        out[key] = Tensor(names[dtype], dims, tensors[key].data)
    return out


def quantized(tensors):
    """expected.safetensors holds the integers of quantized tensors."""
    out = dict(tensors)
    for key, dtype in (("quint8", "qu8"), ("qint8_channel", "qi8")):
        out[key] = Tensor(dtype, tensors[key].shape, tensors[key].data)
    return out


def torch_units(case, info):
    tensors = with_raw(expected(case), info.get("expected_raw", {}))
    objects = {}
    if (case / "expected_objects.json").exists():
        objects = load(case / "expected_objects.json")
    if case.name == "special_tensors":
        tensors = quantized(tensors)
    if case.name == "sharded_bin":
        yield Unit("", case, case / "ckpt", "", info, tensors)
        return
    if case.name == "dtensor_per_rank":
        return  # each file holds one rank's part: test_dtensor
    for path in sorted((case / "ckpt").iterdir()):
        if path.name == "torchscript.pt":
            continue  # not a state dict: test_torchscript
        unit = Unit(path.name, case, path, "", info, tensors,
                    objects=objects.get(path.name))
        unit.own_names = case.name == "whole_module"
        if case.name == "basic":
            unit.model = legacy_basic(path.name, tensors)
        elif path.name == "ckpt.tar":  # {"model": …}
            unit.model = {f"model.{k}": v for k, v in tensors.items()}
        elif path.name == "legacy.pt":  # without what old files can't hold
            unit.model = {k: v for k, v in tensors.items() if k != "f8"}
        yield unit


def legacy_basic(name, tensors):
    new = {k: tensors[k] for k in ("f8", "u16")}
    old = {k: v for k, v in tensors.items() if k not in new}
    return {
        "legacy_nested.pth": {f"model.{k}": v for k, v in old.items()},
        "legacy_tensor.pt": {"tensor": tensors["w"]},  # a bare tensor
        "legacy_new_dtypes.pt": new,
    }.get(name, old)


def fairseq2_units(case, info):
    yield Unit("", case, case / "ckpt", "", info, expected(case),
               optim=expected(case, "expected_optim.safetensors"))


MAKERS = {"safetensors": safetensors_units, "torch_pt": torch_units,
          "torch_legacy": torch_units, "fairseq2_native": fairseq2_units}


def all_units():
    units = []
    for folder, make in MAKERS.items():
        for case in sorted((DATA / folder).iterdir()):
            for unit in make(case, load(case / "case.json")):
                unit.name = "/".join(
                    filter(None, (folder, case.name, unit.name)))
                unit.format = FORMATS[folder]
                units.append(unit)
    check(len(units) >= 60, f"only {len(units)} goldens: tests/data is cut")
    return units


# ------------------------------------------------- fairseq2's rules, by hand
@dataclass(frozen=True)
class Topology:
    tp: int
    dp: int
    pp: int = 1

    @property
    def options(self):
        return ("--tp", self.tp, "--pp", self.pp, "--dp", self.dp)


def topology_of(name):
    """"tp2sdp3_fsdp2" -> tp 2, dp 3; None for other renderings ("hf")."""
    sizes = dict(re.findall(r"(tp|sdp|rdp|dp)(\d+)", name.split("_")[0]))
    if "tp" not in sizes:
        return None
    # Replicas (rdp) have no files; "dp1" means unsharded.
    return Topology(int(sizes["tp"]), int(sizes.get("sdp", 1)))


def cut(tensor, tp_dim, buffer, topology, t, s):
    """The part of a full tensor that rank (t, s) holds in its file."""
    shape, data = list(tensor.shape), tensor.data
    if tp_dim is not None and topology.tp > 1:
        n = shape[tp_dim] // topology.tp
        check(n * topology.tp == shape[tp_dim], "the test cuts unevenly")
        shape, data = narrow(shape, data, tp_dim, t * n, n)
    if topology.dp > 1 and not buffer:
        rows = -(-shape[0] // topology.dp)
        begin = min(s * rows, shape[0])
        end = min(begin + rows, shape[0])
        shape, data = narrow(shape, data, 0, begin, end - begin)
    return Tensor(tensor.dtype, shape, data)


def narrow(shape, data, dim, begin, count):
    import numpy as np

    size = len(data)
    total = 1
    for n in shape:
        total *= n
    item = size // total if total else 1
    array = np.frombuffer(data, np.uint8).reshape(*shape, item)
    index = [slice(None)] * len(shape)
    index[dim] = slice(begin, begin + count)
    part = array[tuple(index)]
    return list(part.shape[:-1]), part.tobytes()


# ----------------------------------------------------- canonical object trees
def children(node):
    """(key, child) of a container in canonical JSON; None for a leaf."""
    if isinstance(node, list):
        return [(str(i), child) for i, child in enumerate(node)]
    if not isinstance(node, dict):
        return None
    for kind in ("!dict", "!OrderedDict", "!Counter"):
        if kind in node:
            return [(str(k) if not isinstance(k, bool) else str(k), v)
                    for k, v in node[kind]]
    if "!tuple" in node:
        return [(str(i), child) for i, child in enumerate(node["!tuple"])]
    if any(key.startswith("!") for key in node):
        return None
    return list(node.items())


def find(node, path):
    """The node at a dotted path; keys may hold dots themselves."""
    if path == "":
        return node
    for key, child in children(node) or ():
        if path == key:
            return child
        if path.startswith(key + "."):
            try:
                return find(child, path[len(key) + 1:])
            except KeyError:
                pass
    raise KeyError(path)


def value_leaves(node, path=()):
    """Paths of all leaves that are not tensors."""
    below = children(node)
    if below:
        for key, child in below:
            yield from value_leaves(child, (*path, key))
    elif not (isinstance(node, dict) and
              {"!tensor", "!ref", "!sparse", "!nested", "!meta"} & set(node)):
        yield ".".join(path)


def same_value(got, want):
    """Equal, except that `got` may leave out what is too long to show."""
    if isinstance(got, dict) and "!elided" in got:
        return True
    if isinstance(want, dict) and "!ref" in want:
        return True  # paths of shared values depend on where one starts
    if isinstance(got, dict) and "!ref" in got:
        return True
    if isinstance(got, dict) and isinstance(want, dict):
        if "!bytes" in got and "size" in got and "!bytes" in want:
            return want["!bytes"].startswith(got["!bytes"])
        ignored = {"!tensor"}  # the name depends on where one starts too
        keys = set(want) - ignored
        return keys == set(got) - ignored and all(
            same_value(got[k], want[k]) for k in keys)
    if isinstance(got, list) and isinstance(want, list):
        return len(got) == len(want) and all(
            same_value(a, b) for a, b in zip(got, want))
    if isinstance(got, float) and isinstance(want, float):
        return got == want
    return type(got) is type(want) and got == want




