#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the dynamic loader reads of an ELF file: what it needs, and where it
looks. As a program: names the files of directories that make it look in the
current directory.

  tests/install/elf.py DIRECTORY...
"""

import struct
import sys
from pathlib import Path

NEEDED, STRTAB, RPATH, RUNPATH = 1, 5, 15, 29
LOAD, DYNAMIC = 1, 2


def is_elf(path):
    with open(path, "rb") as f:
        return f.read(5) == b"\x7fELF\x02"  # 64 bits


def dynamic(path):
    """tag -> texts, of those tags whose values are texts."""
    data = path.read_bytes()
    (at,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    heads = [struct.unpack_from("<IIQQQQ", data, at + i * size)
             for i in range(count)]
    entries = []
    for kind, _, offset, _, _, length in heads:
        if kind == DYNAMIC:
            entries = [struct.unpack_from("<qQ", data, offset + i)
                       for i in range(0, length, 16)]
    table = dict(entries).get(STRTAB, 0)
    begin = next((offset + table - address
                  for kind, _, offset, address, _, length in heads
                  if kind == LOAD and address <= table < address + length), 0)
    texts = {}
    for tag, value in entries:
        if tag == 0:
            break
        if tag in (NEEDED, RPATH, RUNPATH):
            end = data.index(b"\0", begin + value)
            texts.setdefault(tag, []).append(data[begin + value:end].decode())
    return texts


def odd_paths(path):
    """Entries that depend on the current directory."""
    found = dynamic(path)
    lists = found.get(RPATH, []) + found.get(RUNPATH, [])
    return [(one, entry) for one in lists for entry in one.split(":")
            if not entry.startswith(("/", "$ORIGIN", "${ORIGIN}"))]


def files_below(directory):
    return [path for path in sorted(Path(directory).rglob("*"))
            if path.is_file() and not path.is_symlink() and is_elf(path)]


def main():
    files = [path for top in sys.argv[1:] for path in files_below(top)]
    bad = 0
    for path in files:
        for paths, entry in odd_paths(path):
            print(f"{path}: RUNPATH {paths}: '{entry}'", file=sys.stderr)
            bad += 1
    if not files:
        sys.exit("no ELF file")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
