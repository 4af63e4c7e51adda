#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds for the fuzzers, made from tests/data: corpus.py OUT.

One folder per target. Inputs that once went wrong are in tests/data/bad and are
seeds too, so that a fuzzer sees them in every run.
"""

import io
import sys
import tarfile
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
FAMILIES = DATA.parents[1] / "models/families"
LARGEST = 32 * 1024


def files(*patterns):
    """Small files of tests/data, at most 40 for each pattern."""
    for pattern in patterns:
        found = [p for p in sorted(DATA.rglob(pattern))
                 if p.is_file() and 0 < p.stat().st_size <= LARGEST]
        yield from found[::max(1, len(found) // 40)]


def header(path):
    """The JSON of a safetensors file behind the byte that the target wants: the
    size of what follows it, none in a file that ends early."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    left = max(0, len(data) - 8 - size)
    return bytes([min(255, left)]) + data[8:8 + size]


# Pickles that Python runs, and that something here once stopped at or choked
# on: calls hidden in instances' state, memo indices as int() reads them, BUILD
# with None, lines ended by the end of the file, callables that call their
# arguments.
PICKLES = [
    b"\x80\x04X\7\0\0\0copyregX\x0e\0\0\0_reconstructor\x93(]X\1\0\0\0aX\1\0\0\0b"
    b"\x93NtR.",
    b"ccopyreg\n__newobj__\n(cargparse\nNamespace\ntR}b.",
    b"ccopyreg\n_reconstructor\n(cargparse\nNamespace\ncbuiltins\nobject\nNtR}b.",
    b"\x80\x04ctorch._tensor\n_rebuild_from_type_v2\n(]ctorch\nTensor\n)NtR.",
    b"cnumpy.random._pickle\n__generator_ctor\n(Nctorch.storage\n"
    b"_load_from_bytes\ntR.",
    b"\x80\x04cbuiltins\ndict\ncargparse\nNamespace\n)\x81}\x8c\x04keyscfunctools\n"
    b"partial\nctorch.storage\n_load_from_bytes\nC\x02N.\x86Rsb\x85R.",
    b"ctorch.storage\n_load_from_bytes\nC\x02N.\x85R.",
    b"Np1_0\n0Np 2 \n0g+10\n0]Nb0cos\nsystem\n(S'true'\ntR.",
    b"(S'true'\nios\nsystemx",
    b"cbuiltins\ngetattr\nccollections\nOrderedDict\n\x8c\x01x\x86R.",
    b"U\x0f\0\0\0\0\0\0{}}}}}}}}0]Nb0cos\nsystem\n(S'true'\ntR.",
]


def seeds():
    """(target, bytes)"""
    for data in PICKLES:
        yield "pickle", data
    for path in files("*.gguf"):
        yield "gguf", path.read_bytes()[:4096]
    for path in files("*.safetensors"):
        yield "safetensors", header(path)
    for path in files("*.index.json"):
        yield "index", path.read_bytes()
    for path in files("*.json"):
        yield "json", path.read_bytes()
    for path in files("*.pt", "*.pth", "*.bin"):
        yield "torch", path.read_bytes()
        yield "zip", path.read_bytes()
    for path in files("*.pkl", "pickle/*"):
        yield "pickle", path.read_bytes()
    for path in files(".metadata"):
        yield "pickle", path.read_bytes()
        yield "dcp", b"\0" + path.read_bytes()
    for path in files("*.distcp"):
        data = path.read_bytes()
        end = data.find(b"PK\5\6")
        if end > 0:
            yield "dcp", b"\1" + data[:end + 22]
    for path in files(".zarray"):
        yield "zarr", path.read_bytes()
    for path in files("*.yaml"):
        yield "yaml", path.read_bytes()
    for path in sorted(FAMILIES.glob("*.json")):
        yield "rules", b"\0" + path.read_bytes()
    yield "rules", b'\1{"*.weight": 0, "*.bias": null}'
    for path in files("config.json"):
        yield "rules", b"\2" + path.read_bytes()
    for path in files("adapter_config.json"):
        yield "rules", b"\3" + path.read_bytes()
    for path in files("config.json"):
        if b"quantization_config" in path.read_bytes():
            yield "rules", b"\4" + path.read_bytes()
    yield "rules", b'\4{"quantization\\u005fconfig": {"bits": 4}, "a": 1}'
    for i, text in enumerate((
            b"https://user:pass@host:8443/a%20b//c.safetensors?sig=a%2Fb",
            b"<ListBucketResult><Contents><Key>a&amp;b</Key><Size>1</Size>"
            b"</Contents><NextContinuationToken>x</NextContinuationToken>"
            b"</ListBucketResult>",
            b"[profile a]\nregion = eu\n[default]\naws_access_key_id=A\n",
            b"//host/a?b", b"/a?b=https://c", b"c/../d")):
        yield "net", bytes([min(i, 3)]) + text
    digest = b"f738b9d6a91d19a825813aec5ef226f8"
    yield "manifest", (
        b'\0{"ckpt_manifest": 1, "format": "torch", "source": {"path": "a", '
        b'"format": "dcp"}, "files": {"a.pt": 9}, "tensors": {"w": {"dtype": '
        b'"f32", "shape": [2, 3], "digest": "' + digest + b'"}}}')
    yield "manifest", (b"\1ckpt-journal 1 0000000000001234 x\n0 s 0 " +
                       digest + b" t 0 " + digest + b" c 0 0 1234 .\n")
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:", format=form) as tar:
            for name in ("./model_config.yaml", "./" + "d/" * 90 + "f"):
                member = tarfile.TarInfo(name)
                member.size = 3
                tar.addfile(member, io.BytesIO(b"a:1"))
        yield "tar", packed.getvalue()
    for codec in range(6):
        yield "codec", bytes([codec]) + b"\x4b\x04\x00"
    for golden in range(0, 250, 3):
        for file in range(3):
            yield "whole", bytes([golden, file, 3, 0, 128, 1, 255])
            yield "whole", bytes([golden, file, 0, 0, 128, 0])


def main(out):
    count = {}
    for target, data in seeds():
        folder = Path(out) / target
        folder.mkdir(parents=True, exist_ok=True)
        count[target] = count.get(target, 0) + 1
        (folder / f"seed_{count[target]:04}").write_bytes(data)
    print(", ".join(f"{name} {n}" for name, n in sorted(count.items())))


if __name__ == "__main__":
    main(sys.argv[1])
