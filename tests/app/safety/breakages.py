# SPDX-License-Identifier: Apache-2.0
"""Ways to break a checkpoint of many files, each on a copy of a golden.

A breakage changes the copy in place and returns a Wound: what was hit, and why
it can't be found if nothing in the checkpoint shows it. None: it does not apply
to this checkpoint.
"""

import json
import pickle
import re
import shutil
import zipfile
from dataclasses import dataclass

from dist_readers import items, payload, read_index, record
from golden_test import flip


@dataclass
class Wound:
    names: tuple  # at least one of these must be named
    # Not empty: why the checkpoint alone doesn't show it. `verify GOOD BROKEN`
    # finds it anyway, unless the breakage changes nothing.
    unseen: str = ""
    # The checkpoint still holds everything: it may be read as before.
    harmless: bool = False
    # Must be reported all the same.
    said: str = ""
    # Found only by `verify --deep`, which reads everything.
    deep: bool = False


def root_of(path):
    below = [p for p in sorted(path.iterdir())
             if p.name.startswith("iter_")
             or p.name in ("release", "model_and_optim")]
    return below[0] if below else path


def kind_of(root):
    if (root / ".metadata").exists() or list(root.glob("__*.metadata")):
        return "dcp"
    if list(root.glob("*.safetensors")):
        return "safetensors"
    return "legacy" if list(root.glob("mp_rank_*")) else "zarr"


def indexed(root):
    """The index file of a DCP directory."""
    one = root / ".metadata"
    return one if one.exists() else sorted(root.glob("__*.metadata"))[0]


def data_files(root):
    """Files with payload, the biggest first."""
    kind = kind_of(root)
    if kind == "dcp":
        found = list(root.glob("*.distcp"))
    elif kind == "safetensors":
        found = list(root.glob("*.safetensors"))
    elif kind == "legacy":
        found = list(root.glob("mp_rank_*/model_optim_rng.pt"))
    else:
        found = [p for p in root.glob("*/*") if p.name[0].isdigit()
                 and not p.parent.name.endswith(".sync")]
        # Optimizer buckets have gaps that nothing reads.
        found = [p for p in found if ".gbuf_idx_" not in p.parent.name]
    found = [p for p in found if p.is_file() and p.stat().st_size]
    return sorted(found, key=lambda p: (-p.stat().st_size, p))


def named(path):
    """What a message may call a file: legacy files all have the same name, and
    a rank may be named without its pipeline stage."""
    return (path.name,) if path.name != "model_optim_rng.pt" else (
        path.parent.name[:10],)


# -------------------------------------------------------------- whole files
def missing_file(root):
    kind, path = kind_of(root), data_files(root)[0]
    path.unlink()
    if kind == "safetensors" and path.name.startswith("shard-"):
        return Wound((path.name, "a rank's file is missing"),
                     "a tensor ends where its last shard does", said=path.name)
    if kind == "legacy":
        return Wound((*named(path), "missing mp_rank_"))
    return Wound((*named(path), path.parent.name))


def missing_rank(root):
    """A rank's whole folder (legacy), or all of an array (zarr)."""
    path = data_files(root)[0].parent
    if path == root:
        return None
    shutil.rmtree(path)
    if kind_of(root) == "zarr":
        return Wound((path.name,), "an array that is gone leaves no trace")
    if re.fullmatch(r"mp_rank_\d\d_\d\d\d(_\d\d\d)?", path.name):
        return Wound(("mp_rank", "rank"))
    return Wound((path.name, "mp_rank", "tp"))


def cut(root, size):
    path = data_files(root)[0]
    with open(path, "r+b") as f:
        f.truncate(size(path.stat().st_size))
    names = named(path)
    return Wound((*names, path.parent.name) if kind_of(root) == "zarr"
                 else names)


def cut_in_half(root):
    return cut(root, lambda n: n // 2)


def cut_by_one(root):
    return cut(root, lambda n: n - 1)


def emptied(root):
    return cut(root, lambda n: 0)


def swapped(root):
    """Two files swap names."""
    files = data_files(root)
    if len(files) < 2:
        return None
    a = files[0]
    b = next((p for p in files[1:] if p.parent == a.parent), files[1])
    other = a.with_name("swap")
    a.rename(other)
    b.rename(a)
    other.rename(b)
    names = (*named(a), *named(b), a.parent.name)
    return Wound(names, "pieces of one shape: nothing in a piece says whose "
                        "it is")


def extra_rank_file(root):
    """A file that looks like another rank's."""
    path = data_files(root)[0]
    kind = kind_of(root)
    if kind == "dcp":
        shutil.copy(path, root / "__99_0.distcp")
        return Wound(("__99_0.distcp",), harmless=True)
    if kind == "safetensors":
        name = re.sub(r"shard-\d+", "shard-00099", path.name)
        if name == path.name:
            return None
        shutil.copy(path, root / name)
        return Wound((name,), "a shard more at the same place: a replica")
    if kind == "zarr":
        stray = path.with_name(".".join("99" for _ in path.name.split(".")))
        shutil.copy(path, stray)
        return Wound((stray.name, path.parent.name), harmless=True)
    stray = path.parent.with_name(
        re.sub(r"rank_\d\d", "rank_77", path.parent.name))
    shutil.copytree(path.parent, stray)
    return Wound((stray.name, "77"), harmless=True)


# ------------------------------------------------------------------ payload
def biggest_item(root):
    """Not one of a bucket, if there is another: buckets have gaps."""
    return max(items(root), key=lambda i: (".gbuf_idx_" not in i.tensor,
                                           i.length))


def flipped_payload(root):
    kind, path = kind_of(root), data_files(root)[0]
    if kind == "dcp" and (root / ".metadata").exists():
        item = biggest_item(root)
        begin, size = (item.offset, item.length) if item.packed else payload(
            root, item)
        flip(root / item.file, begin + size // 2)
        return Wound((item.tensor, item.file))
    if kind == "dcp":
        return None  # no index of the whole: see replica_changed
    if kind == "legacy":
        begin, size = biggest_tensor(path)
        flip(path, begin + size // 2)
        return Wound((*named(path), path.name))
    flip(path, path.stat().st_size - 2)
    return Wound(named(path), "raw numbers without a checksum")


def biggest_tensor(path):
    """(position, size) of a rank file's biggest model record; random states,
    which aren't among the tensors, have 5056 bytes."""
    with zipfile.ZipFile(path) as archive:
        sizes = {i.filename: i.file_size for i in archive.infolist()
                 if "/data/" in i.filename and i.file_size != 5056}
    name = max(sizes, key=sizes.get)
    return record(path, lambda n: n == name)


def flipped_header(root):
    """Flips one of the first bytes of the first archive or header."""
    kind, path = kind_of(root), data_files(root)[0]
    if kind == "zarr":
        path = path.parent / ".zarray"
    flip(path, 4 if kind in ("dcp", "legacy") else 1)
    why = {"dcp": "a byte that no reader needs: the central directory counts",
           "legacy": "a byte that no reader needs"}
    names = (*named(path), path.parent.name)
    return Wound(names, why.get(kind, ""))


def replica_changed(root):
    """A second copy of the same elements differs, with a right checksum."""
    if kind_of(root) != "legacy":
        return None
    ranks = sorted(root.glob("mp_rank_*/model_optim_rng.pt"))
    twin = next((p for p in ranks[1:] if p.parent.name[8:10] != "00"
                 and p.parent.name[10:] == ranks[0].parent.name[10:]), None)
    if twin is None:
        return None
    import torch

    from support import load_any

    tree = load_any(twin)
    model = tree.get("model", tree.get("model0"))
    found = []

    def walk(node, path):
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{path}{key}.")
            elif isinstance(value, torch.Tensor) and value.ndim == 1 and (
                    "norm" in f"{path}{key}"):
                found.append((f"{path}{key}", value))

    walk(model, "")
    name, tensor = found[0]
    begin, size = storage_bytes(twin, tensor)
    raw = bytearray(twin.read_bytes())
    raw[begin + 1] ^= 0x01
    twin.write_bytes(raw)
    restore_checksums(twin)
    return Wound((name.split(".")[-2], twin.parent.name), deep=True)


def storage_bytes(path, tensor):
    """Finds a tensor's elements in a zip by their bytes."""
    from support import from_torch

    data = from_torch(tensor).data
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if "/data/" in info.filename:
                at = archive.read(info).find(data)
                if at >= 0:
                    begin, _ = record(path, lambda n: n == info.filename)
                    return begin + at, len(data)
    raise AssertionError("the test finds no storage")


def restore_checksums(path, change=lambda name, data: data):
    """Rewrites the zip so that each CRC is right; `change` edits records."""
    entries = []
    with zipfile.ZipFile(path) as archive:
        archive._decompresser_check = False
        for info in archive.infolist():
            with open(path, "rb") as f:
                begin, size = record(path, lambda n: n == info.filename)
                f.seek(begin)
                entries.append((info.filename, change(info.filename,
                                                      f.read(size))))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            archive.writestr(name, data)


# ------------------------------------------------------------------ indexes
def index_cut(root):
    kind = kind_of(root)
    if kind == "dcp":
        path = indexed(root)
    elif kind == "zarr":
        path = data_files(root)[0].parent / ".zarray"
    elif kind == "safetensors" and (
            root / "model.safetensors.index.json").exists():
        path = root / "model.safetensors.index.json"
    else:
        return None
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size // 2)
    return Wound((path.name, path.parent.name))


def edit_index(root, change):
    """Changes the object in .metadata; its class names stay."""
    path = indexed(root)
    index = read_index(path)
    names = change(index)
    path.write_bytes(pickle.dumps(index, protocol=4))
    return Wound(names)


def biggest(index):
    tensors = {n: m for n, m in index.state_dict_metadata.items()
               if getattr(m, "chunks", None)}
    def size(name):
        n = 1
        for d in tensors[name].size:
            n *= d
        return n
    name = max(sorted(tensors), key=size)
    key = max((k for k in index.storage_data if k.fqn == name),
              key=lambda k: index.storage_data[k].length)
    return name, key


def wrong_shape(root):
    """One more row than there is data for."""
    kind = kind_of(root)
    if kind == "dcp":
        import torch

        def change(index):
            name, _ = biggest(index)
            meta = index.state_dict_metadata[name]
            meta.size = torch.Size([meta.size[0] + 1, *meta.size[1:]])
            return (name,)

        return edit_index(root, change)
    if kind == "zarr":
        path = data_files(root)[0].parent
        about = json.loads((path / ".zarray").read_text())
        about["shape"][0] += about["chunks"][0]
        (path / ".zarray").write_text(json.dumps(about))
        unseen = "" if about["fill_value"] is None else (
            "chunks that are missing are full of fill_value")
        return Wound((path.name,), unseen)
    return None


def wrong_dtype(root):
    kind = kind_of(root)
    if kind == "dcp":
        import torch

        def change(index):
            name, key = biggest(index)
            properties = index.state_dict_metadata[name].properties
            properties.dtype = (torch.int64 if properties.dtype != torch.int64
                                else torch.float32)
            return (name, key.fqn, index.storage_data[key].relative_path)

        return edit_index(root, change)
    if kind == "zarr":
        path = data_files(root)[0].parent
        about = json.loads((path / ".zarray").read_text())
        about["dtype"] = "<c16"
        (path / ".zarray").write_text(json.dumps(about))
        return Wound((path.name,))
    return None


def wrong_offset(root):
    kind = kind_of(root)
    if kind == "dcp":
        def change(index):
            name, key = biggest(index)
            index.storage_data[key].offset += 7
            return (name, index.storage_data[key].relative_path)

        return edit_index(root, change)
    if kind == "safetensors":
        path = data_files(root)[0]
        return edit_sharding(path)
    return None


def edit_sharding(path):
    """DCP_SHARDING_INFO that puts a shard where none belongs."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    about = header.get("__metadata__", {})
    if "DCP_SHARDING_INFO" not in about:
        return None
    info = json.loads(about["DCP_SHARDING_INFO"])
    name = next((n for n in sorted(info) if info[n]["saved_offsets"]), None)
    if name is None:
        return None
    if path.name.startswith("model-"):
        return None  # whole tensors: their offsets mean nothing
    info[name]["saved_offsets"][0] += 100
    about["DCP_SHARDING_INFO"] = json.dumps(info)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    return Wound((name,))


def wrong_length(root):
    if kind_of(root) == "dcp":
        def change(index):
            name, key = biggest(index)
            index.storage_data[key].length -= 10
            return (name, index.storage_data[key].relative_path)

        return edit_index(root, change)
    if kind_of(root) == "zarr":
        path = data_files(root)[0].parent
        about = json.loads((path / ".zarray").read_text())
        if not about["chunks"] or about["chunks"][-1] < 2:
            return None
        about["chunks"][-1] -= 1
        (path / ".zarray").write_text(json.dumps(about))
        return Wound((path.name,))
    return None


def wrong_args(root):
    """args that promise twice the tensor-parallel ranks."""
    if kind_of(root) != "legacy":
        return None
    key = b"tensor_model_parallel_size"

    def change(name, data):
        at = data.find(key)
        if not name.endswith("data.pkl") or at < 0:
            return data
        at += len(key)
        match = re.compile(rb"(?:q.|r....)?K(.)", re.DOTALL).match(data, at)
        if not match:
            raise AssertionError("the test finds no size in args")
        place = match.start(1)
        return data[:place] + bytes([data[place] * 2]) + data[place + 1:]

    for path in root.glob("mp_rank_*/model_optim_rng.pt"):
        restore_checksums(path, change)
    return Wound(("tp", "tensor", "mp_rank"))


# ------------------------------------------------------- above the checkpoint
def edit_json(root, change):
    path = root / "metadata.json"
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    wound = change(document)
    path.write_text(json.dumps(document))
    return wound


def unknown_backend(root):
    def change(document):
        document["sharded_backend"] = "stone_tablets"
        return Wound(("stone_tablets",))

    return edit_json(root, change)


def unknown_version(root):
    def change(document):
        document["sharded_backend_version"] = 2
        return Wound(("version 2", "version"))

    return edit_json(root, change)


def unfinished(root):
    """The last file that a save writes is missing."""
    path = root / "metadata.json"
    if not path.exists():
        path = root / ".metadata"
    if not path.exists():
        return None
    path.unlink()
    return Wound((path.name, "finish", "interrupted"))


def wrong_tracker(root):
    """Names a step that doesn't exist: the one that does is read."""
    tracker = root.parent / "latest_checkpointed_iteration.txt"
    if not tracker.exists():
        return None
    tracker.write_text("9999999")
    return Wound(("9999999",), harmless=True, said="names iter_9999999")


def odd_tracker(root):
    tracker = root.parent / "latest_checkpointed_iteration.txt"
    if not tracker.exists():
        return None
    tracker.write_text("../7")
    return Wound((tracker.name, "../7"))


ALL = (missing_file, missing_rank, cut_in_half, cut_by_one, emptied, swapped,
       extra_rank_file, flipped_payload, flipped_header, replica_changed,
       index_cut, wrong_shape, wrong_dtype, wrong_offset, wrong_length,
       wrong_args, unknown_backend, unknown_version, unfinished,
       wrong_tracker, odd_tracker)
