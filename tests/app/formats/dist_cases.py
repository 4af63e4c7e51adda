# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many ranks under tests/data, as units of golden_cases: DCP,
Megatron, OLMo-core.

Objects of these cases come in two dialects of tagged JSON: torch's own files
in the one that ckpt prints ({"!tuple": […]}), Megatron's in {"$tuple": […]}.
Both become one form here.
"""

import re
import struct

from golden_cases import Unit, expected, load
from support import DATA, Tensor, check

FORMATS = ("dcp", "megatron_torch_dist", "megatron_zarr", "megatron_legacy",
           "olmo_core_dcp")
# Folders that aren't named after the format.
NAMES = {"olmo_core_dcp": "olmo_core"}

# Whole tensors with an index: an ordinary Hugging Face folder.
SAFETENSORS = {"dcp/hf_rank0_w1"}


def flat_parameters(info, model):
    """FSDP1's flat parameters: only the trainer knows which tensors are in
    them, so ckpt shows them as they are."""
    out, gone = dict(model), set()
    for unit in info["flat_units"][0]:
        prefix = "model." + unit["key"].removesuffix("_flat_param")
        names = [prefix + fqn for fqn in unit["fqns"]]
        data = b"".join(model[name].data for name in names)
        gone.update(names)
        out["model." + unit["key"]] = Tensor("f32", [len(data) // 4], data)
    return {name: t for name, t in out.items() if name not in gone}


def dist_units():
    units = []
    for folder in FORMATS:
        for case in sorted((DATA / folder).iterdir()):
            info = load(case / "case.json")
            name = f"{folder}/{case.name}"
            unit = Unit(name, case, case / "ckpt", NAMES.get(folder, folder),
                        info, expected(case),
                        optim=expected(case, "expected_optim.safetensors"))
            if name in SAFETENSORS:
                unit.format = "safetensors"
            if "flat_units" in info:
                unit.model = flat_parameters(info, unit.model)
            if (case / "expected_objects.json").exists():
                unit.objects = wanted_objects(
                    load(case / "expected_objects.json"))
            units.append(unit)
    check(len(units) >= 71, f"only {len(units)} goldens: tests/data is cut")
    return units


# ------------------------------------------------------------------- objects
def wanted_objects(document):
    """Object name -> value in the common form."""
    if set(document) != {"common", "objects"}:
        return {name: plain(value) for name, value in document.items()}
    common = document["common"]
    pairs = common["$dict"] if "$dict" in common else list(common.items())
    out = {str(key): plain(value) for key, value in pairs}
    out |= {name: plain(v) for name, v in document["objects"].items()}
    return out


def plain(node):
    """A value of either dialect as nested tuples: ("dict", pairs), ("object",
    name, args, state), ("tensor", dtype, shape, bytes or None) …"""
    if isinstance(node, list):
        return ("list", [plain(v) for v in node])
    if not isinstance(node, dict):
        return node
    tag = next((k for k in node if k[:1] in "!$"), None)
    if tag is None:
        return ("dict", [(k, plain(v)) for k, v in node.items()])
    kind, value = tag[1:], node[tag]
    if kind in ("dict", "odict", "OrderedDict"):
        return ("dict", [(plain(k), plain(v)) for k, v in value])
    if kind in ("tuple", "size", "Size"):
        return ("tuple", [plain(v) for v in value])
    if kind == "set":
        return ("set", sorted((plain(v) for v in value), key=repr))
    if kind == "float":
        return ("float", struct.pack("<d", float(value)))
    if kind == "complex":
        return ("complex", [float(v) for v in value])
    if kind == "object":
        return plain_object(node, value)
    if kind == "tensor":
        return plain_tensor(node, value)
    if kind == "ndarray":
        array = value if isinstance(value, dict) else node | {"dtype": value}
        return ("ndarray", array["dtype"].strip("<|"), list(array["shape"]),
                array.get("hex"))
    return (kind, value)  # bytes, int, dtype …


def plain_object(node, name):
    args = node.get("args") or []
    if isinstance(args, dict):
        args = args["!tuple"]
    return ("object", name.replace(" ", "."), [plain(v) for v in args],
            plain(node.get("state")))


def plain_tensor(node, value):
    if isinstance(value, dict):
        return ("tensor", value["dtype"], value["shape"], value["hex"])
    return ("tensor", node["dtype"], node["size"], node.get("hex"))


def object_difference(got, want, path=""):
    """Where two values in the common form differ; None if they don't. What ckpt
    leaves out for its length, or shows elsewhere, isn't a difference."""
    if isinstance(got, tuple) and got[0] in ("elided", "ref"):
        return None
    if isinstance(want, tuple) and want[0] == "ref":
        return None
    if isinstance(got, tuple) and isinstance(want, tuple) and (
            got[0] == want[0]):
        if want[0] in ("list", "tuple"):
            return sequence_difference(got[1], want[1], path)
        if want[0] == "dict":
            keys = [k for k, _ in got[1]], [k for k, _ in want[1]]
            if keys[0] != keys[1]:
                return f"{path}: keys {keys[0]}, expected {keys[1]}"
            return sequence_difference([v for _, v in got[1]],
                                       [v for _, v in want[1]], path)
        if want[0] == "object" and got[1] == want[1]:
            return (sequence_difference(got[2], want[2], path + ".args")
                    or object_difference(got[3], want[3], path + ".state"))
        if want[0] in ("tensor", "ndarray"):
            same = got[1:3] == want[1:3] and got[3] in (None, want[3])
            return None if same else f"{path}: {got}, expected {want}"
        if want[0] == "bytes" and isinstance(got[1], str):
            return (None if want[1].startswith(got[1].rstrip("…"))
                    else f"{path}: {got}, expected {want}")
    same = type(got) is type(want) and got == want
    return None if same else f"{path}: {got!r}, expected {want!r}"


def sequence_difference(got, want, path):
    if len(got) != len(want):
        return f"{path}: {len(got)} items, expected {len(want)}"
    for i, (a, b) in enumerate(zip(got, want)):
        if found := object_difference(a, b, f"{path}.{i}"):
            return found
    return None


# ---------------------------------------------------------------- topologies
def sizes_of(name):
    """"tp2_pp1_dp2_ep2" -> {"tp": 2, …}; {} for other renderings."""
    sizes = dict(re.findall(r"(?:^|_)(tp|pp|dp|ep)(\d+)(?=_|$)", name))
    return {key: int(n) for key, n in sizes.items()}


def topology_options(sizes):
    return [o for key, n in sizes.items() for o in (f"--{key}", n)]
