# SPDX-License-Identifier: Apache-2.0
"""Mutants of legacy streams, tars and distributed checkpoints, and the peers
that load them. Used by differential_test.py.
"""

import io
import pickle
import pickletools
import struct
import tarfile


class Careful:
    """pickle, but a mutant may only call what is torch's or makes a dict."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if (module.split(".")[0] == "torch" or
                    (module, name) in (("collections", "OrderedDict"),
                                       ("pathlib", "PosixPath"))):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"{module}.{name}")

    @staticmethod
    def load(file, **options):
        return Careful.Unpickler(file, **options).load()


def load_tar(path):
    """torch refuses tars with weights_only=True, whatever is in them."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=False,
                      pickle_module=Careful)


def load_dcp(folder):
    """The tensors that .metadata names, as torch.distributed.checkpoint loads
    them. Refused if torch leaves an element as it was."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import CheckpointException, filesystem

    filesystem.pickle = Careful
    reader = dcp.FileSystemReader(folder)
    states = []
    rows = reader.read_metadata().state_dict_metadata
    for fill in (0, 1):
        state = {}
        for name, row in rows.items():
            if not hasattr(row, "chunks"):
                continue
            count = torch.Size(row.size).numel()
            if count > 1 << 20:
                raise ValueError(f"{name}: {count} elements")
            state[name] = torch.full(row.size, fill, dtype=torch.uint8).to(
                row.properties.dtype)
        try:
            dcp.load(state, storage_reader=dcp.FileSystemReader(folder),
                     no_dist=True)
        except CheckpointException as refused:  # not an Exception
            raise ValueError(str(refused)[-100:]) from refused
        states.append(state)
    for name, tensor in states[0].items():
        other = states[1][name]
        if tensor.numel() and not torch.equal(
                tensor.reshape(-1).contiguous().view(torch.uint8),
                other.reshape(-1).contiguous().view(torch.uint8)):
            raise ValueError(f"{name}: torch leaves elements as they were")
    return states[0]


# ------------------------------------------------------------------- mutants
def opcodes(data, begin, count=None):
    """[(begin, end)] of the opcodes of consecutive pickles, and where the last
    one ends."""
    spans = []
    while begin < len(data) and count != 0:
        file = io.BytesIO(data)
        file.seek(begin)
        try:
            at = [pos for _, _, pos in pickletools.genops(file)]
        except ValueError:
            break
        # genops counts from the file's position, which tell() gives.
        spans += list(zip(at, [*at[1:], file.tell()]))
        begin = file.tell()
        count = None if count is None else count - 1
    return spans, begin


def edit(text, spans, rng):
    """Changes one opcode, argument or byte of a pickle."""
    begin, end = rng.choice(spans)
    kind = rng.randrange(7)
    if kind == 0:
        return text[:begin] + text[end:]
    if kind == 1:
        return text[:begin] + text[slice(*rng.choice(spans))] + text[end:]
    if kind == 2:
        return text[:begin] + text[slice(*rng.choice(spans))] + text[begin:]
    if kind < 6 and end - begin > 1:
        at = rng.randrange(begin + 1, end)
        new = rng.choice([text[at] ^ (1 << rng.randrange(8)), 0, 1, 255,
                          (text[at] + 1) % 256, (text[at] - 1) % 256])
        return text[:at] + bytes([new]) + text[at + 1:]
    at = rng.choice(spans)[0]
    return text[:at] + bytes([rng.randrange(256)]) + text[at + 1:]


def edit_bytes(data, begin, rng):
    """After `begin`: a count, a cut, extra bytes."""
    kind = rng.randrange(4)
    at = rng.randrange(begin, max(begin + 1, len(data) - 8))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + bytes(rng.randrange(1, 20))
    if kind == 2:
        return data[:at] + struct.pack("<q", rng.choice(
            [0, 1, -1, 1 << 40, 3])) + data[at + 8:]
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]
                             ) + data[at + 1:]


def legacy_mutants(path, rng):
    """Magic, protocol, system, object and keys are pickles; then storages."""
    data = path.read_bytes()
    spans, end = opcodes(data, 0, 5)
    while True:
        yield (edit(data, spans, rng) if rng.randrange(4) else
               edit_bytes(data, end, rng))


def tar_mutants(path, rng):
    """Its members are pickles with arrays between them; headers stay sound."""
    members = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            members.append((member.name, file.read() if file else None))
    files = [m for m in members if m[1]]
    while True:
        name, text = rng.choice(files)
        if rng.randrange(3) == 0:
            new = edit_bytes(text, 0, rng)
        else:
            new = edit(text, opcodes(text, 0)[0], rng)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w",
                          format=tarfile.USTAR_FORMAT) as archive:
            for other, content in members:
                info = tarfile.TarInfo(other)
                if content is None:
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                    continue
                content = new if other == name else content
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        yield out.getvalue()


def metadata_mutants(text, rng):
    """.metadata: names, boxes, dtypes, files, offsets and lengths."""
    spans, _ = opcodes(text, 0, 1)
    while True:
        yield edit(text, spans, rng)


def item_mutants(text, rng, zip_mutants):
    """.distcp: the fields of the items' archives; bytes; two places swapped."""
    archives = zip_mutants(text, rng)
    while True:
        kind = rng.randrange(4)
        if kind < 2:
            yield next(archives)
        elif kind == 2:
            yield edit_bytes(text, 0, rng)
        else:
            size = rng.choice([64, 512])
            a, b = sorted(rng.randrange(max(1, len(text) - size))
                          for _ in range(2))
            new = bytearray(text)
            new[a:a + size], new[b:b + size] = (text[b:b + size],
                                                text[a:a + size])
            yield bytes(new[:len(text)])
