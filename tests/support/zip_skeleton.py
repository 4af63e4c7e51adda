# SPDX-License-Identifier: Apache-2.0
"""Writes zip archives with torch's own writer and keeps all but their payload.

    python zip_skeleton.py DIRECTORY       (needs torch, 5 GB of memory, 13 GB of disk)

Archives beyond 4 GiB are where zip64 begins, and too large to keep. Their
payload is zeros, so the rest is enough: tests/lib/zip_test.cc plans the same
records and compares.

    size BYTES                  of the archive
    record NAME SIZE [HEX]      in order; HEX is its content if it isn't zeros
    bytes OFFSET HEX            each run of bytes that is not payload
"""
import os
import sys
import tempfile

import torch

MAX = 0xFFFFFFFF
# A header takes 30 bytes, a name of 14 ("archive/data/0") and 4 of "FB": the first
# record's data begin at byte 64, and a descriptor of 16 follows.
HEADER_AT_MAX = MAX - 64 - 16
CASES = {
    "large_records": [5, MAX, 7, 0, MAX + 6, 3, 0],
    "one_byte_less": [MAX - 1, 1],
    "header_at_limit": [HEADER_AT_MAX, 1, 0, 2],
    "header_below_limit": [HEADER_AT_MAX - 1, 1, 2],
    "small": [0, 1, 63, 64, 65],
}


def skeleton(path, sizes, zeros):
    writer = torch._C.PyTorchFileWriter(path)
    for key, size in enumerate(sizes):
        writer.write_record("data/%d" % key, zeros.data_ptr(), size)
    writer.write_end_of_file()
    reader = torch._C.PyTorchFileReader(path)
    total, at, runs = os.path.getsize(path), 0, []
    lines = ["size %d" % total]
    for index, name in enumerate(reader.get_all_records()):
        size = sizes[index] if index < len(sizes) else None
        if size is None:  # version, byteorder, .data/serialization_id
            content = reader.get_record(name)
            lines.append("record %s %d %s" % (name, len(content), content.hex()))
        else:
            lines.append("record %s %d" % (name, size))
            if size:
                begin = reader.get_record_offset(name)
                runs.append((at, begin))
                at = begin + size
    runs.append((at, total))
    with open(path, "rb") as file:
        for begin, end in runs:
            file.seek(begin)
            lines.append("bytes %d %s" % (begin, file.read(end - begin).hex()))
    return "# torch %s\n%s\n" % (torch.__version__, "\n".join(lines))


def main(out):
    zeros = torch.zeros(MAX + 6, dtype=torch.uint8)
    for case, sizes in CASES.items():
        with tempfile.TemporaryDirectory(dir=out) as directory:
            text = skeleton(os.path.join(directory, "archive.pt"), sizes, zeros)
        with open(os.path.join(out, case + ".txt"), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
