# SPDX-License-Identifier: Apache-2.0
"""The bytes that make_sparse.py writes: items of torch.save without their
payload, and the pickle of a .metadata file.

An item is a zip whose only large record is one tensor of zeros:

    | head: data.pkl …, the local header of data/0 | payload | tail |

so a file system with holes stores only head and tail. Records, their order,
alignment and checksums are those of torch 2.13. The pickle is written opcode by
opcode, with the memo as CPython's pickler keeps it: objects for a million
chunks would cost gigabytes.
"""

import functools
import io
import pickle
import struct
import zlib

STORAGE = {"float32": ("Float", 4), "bfloat16": ("BFloat16", 2),
           "int64": ("Long", 8)}
ALIGNMENT = 64


def number(n):
    """The shortest opcode for an int."""
    if 0 <= n < 256:
        return b"K" + bytes([n])
    if 0 <= n < 65536:
        return b"M" + n.to_bytes(2, "little")
    if -2**31 <= n < 2**31:
        return b"J" + n.to_bytes(4, "little", signed=True)
    size = n.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + n.to_bytes(size, "little", signed=True)


@functools.cache
def crc_of_zeros(count):
    block, crc = bytes(1 << 20), 0
    while count:
        take = min(count, len(block))
        crc = zlib.crc32(memoryview(block)[:take], crc)
        count -= take
    return crc


class Zip:
    """A zip as PyTorch's writer makes it; one record may be zeros that count
    but are not stored."""

    def __init__(self, top):
        self.top, self.out, self.skipped, self.records = top, io.BytesIO(), 0, []
        self.hole = 0  # bytes before the payload

    def at(self):
        return self.out.tell() + self.skipped

    def add(self, name, data=b"", zeros=None):
        name = f"{self.top}/{name}".encode()
        size = len(data) if zeros is None else zeros
        crc = zlib.crc32(data) if zeros is None else crc_of_zeros(zeros)
        if size >= 2**32 or self.at() >= 2**32:
            raise ValueError(f"an item of {size} bytes needs 64-bit records")
        begin = self.at()
        fill = -(begin + 30 + len(name) + 4) % ALIGNMENT
        flags = 0x0808 if size else 0x0800
        self.records.append((name, crc, size, begin, flags))
        self.out.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0,
                                   0, 0, 0, 0, len(name), fill + 4))
        self.out.write(name + b"FB" + fill.to_bytes(2, "little") + b"Z" * fill)
        if zeros is None:
            self.out.write(data)
        else:
            self.hole = self.at()
            self.skipped += zeros
        if size:
            self.out.write(struct.pack("<IIII", 0x08074B50, crc, size, size))

    def finish(self):
        """(head, payload bytes, tail)"""
        begin = self.at()
        for name, crc, size, at, flags in self.records:
            self.out.write(struct.pack(
                "<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, crc,
                size, size, len(name), 0, 0, 0, 0, 0, at) + name)
        size, count = self.at() - begin, len(self.records)
        end = self.at()
        self.out.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45,
                                   0, 0, count, count, size, begin))
        self.out.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self.out.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count,
                                   size, begin, 0))
        data = self.out.getvalue()
        return data[:self.hole], self.skipped, data[self.hole:]


def archive(pickled, zeros=None, top="archive"):
    made = Zip(top)
    made.add("data.pkl", pickled)
    made.add(".format_version", b"1")
    made.add(".storage_alignment", b"64")
    made.add("byteorder", b"little")
    if zeros is not None:
        made.add("data/0", zeros=zeros)
    made.add("version", b"3\n")
    made.add(".data/serialization_id", b"%040d" % zlib.crc32(pickled))
    return made.finish()


def tuple_of(numbers):
    if len(numbers) > 3:
        return b"(" + b"".join(map(number, numbers)) + b"t"
    return b"".join(map(number, numbers)) + b")\x85\x86\x87"[len(numbers):][:1]


@functools.cache
def tensor_item(dtype, shape):
    """torch.save of a contiguous tensor of zeros: (head, payload, tail)."""
    storage, size = STORAGE[dtype]
    count, strides = 1, []
    for n in reversed(shape):
        strides.insert(0, count)
        count *= n
    text = lambda s: b"X" + len(s).to_bytes(4, "little") + s
    pickled = (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\0((" +
               text(b"storage") + b"q\1ctorch\n" + storage.encode() +
               b"Storage\nq\2" + text(b"0") + b"q\3" + text(b"cpu") + b"q\4" +
               number(count) + b"tq\5QK\0" + tuple_of(shape) + b"q\6" +
               tuple_of(strides) + b"q\7\x89ccollections\nOrderedDict\nq\x08)R"
               b"q\x09tq\nRq\x0b.")
    return archive(pickled, count * size)


@functools.cache
def object_item(pickled):
    head, _, tail = archive(pickled)
    return head + tail, 0, b""


def saved(value):
    """Plain Python values as torch.save pickles them."""
    return pickle.dumps(value, protocol=2)


class Metadata:
    """Writes the pickle of a torch.distributed.checkpoint Metadata."""

    D = "torch.distributed.checkpoint.metadata"

    def __init__(self, file):
        self.file, self.frame, self.memos, self.known = file, bytearray(), 0, {}
        file.write(b"\x80\x04")

    def put(self, data, memos=0):
        self.frame += data
        self.memos += memos
        if len(self.frame) >= 65536:
            self.flush()

    def flush(self):
        self.file.write(b"\x95" + len(self.frame).to_bytes(8, "little"))
        self.file.write(self.frame)
        self.frame.clear()

    def get(self, index):
        return (b"h" + bytes([index]) if index < 256 else
                b"j" + index.to_bytes(4, "little"))

    def text(self, value):
        """A string that occurs once."""
        data = value.encode()
        if len(data) < 256:
            return b"\x8c" + bytes([len(data)]) + data + b"\x94"
        return b"X" + len(data).to_bytes(4, "little") + data + b"\x94"

    def word(self, value):
        """A string that the pickler meets repeatedly as the same object."""
        if value in self.known:
            self.put(self.get(self.known[value]))
        else:
            self.known[value] = self.memos
            self.put(self.text(value), 1)

    def name(self, module, name):
        if (module, name) in self.known:
            self.put(self.get(self.known[module, name]))
            return
        self.word(module)
        self.word(name)
        self.known[module, name] = self.memos
        self.put(b"\x93\x94", 1)

    def new(self, module, name):
        self.name(module, name)
        self.put(b")\x81\x94", 1)

    def size(self, dims):
        self.name("torch", "Size")
        self.put(tuple_of(dims) + (b"\x94" if dims else b"") + b"\x85\x94R\x94",
                 3 if dims else 2)

    def batches(self, items, one, many):
        """Elements of a list or dict, 1000 per batch."""
        for at in range(0, len(items), 1000):
            batch = items[at:at + 1000]
            if len(batch) > 1:
                self.put(b"(")
            for item in batch:
                yield item
            self.put(many if len(batch) > 1 else one)

    def properties(self, dtype):
        self.new(self.D, "TensorProperties")
        self.put(b"(")
        self.name("torch", dtype)
        if "layout" in self.known:
            self.put(self.get(self.known["layout"]))
        else:
            self.name("torch.serialization", "_get_layout")
            self.put(self.text("torch.strided") + b"\x85\x94R\x94", 4 - 1)
            self.known["layout"] = self.memos - 1
        self.put(b"\x89")
        if "format" in self.known:
            self.put(self.get(self.known["format"]))
        else:
            self.name(self.D, "_MEM_FORMAT_ENCODING")
            self.put(b"K\0\x85\x94R\x94", 2)
            self.known["format"] = self.memos - 1
        self.put(b"\x89t\x94b", 1)

    def tensor(self, name, dtype, shape, chunks):
        self.put(self.text(name), 1)
        self.new(self.D, "TensorStorageMetadata")
        self.put(b"}\x94(", 1)
        self.word("properties")
        self.properties(dtype)
        self.word("size")
        self.size(shape)
        self.word("chunks")
        self.put(b"]\x94", 1)
        for offsets, sizes in self.batches(chunks, b"a", b"e"):
            self.new(self.D, "ChunkStorageMetadata")
            self.put(b"}\x94(", 1)
            self.word("offsets")
            self.size(offsets)
            self.word("sizes")
            self.size(sizes)
            self.put(b"ub")
        self.put(b"ub")

    def stored(self, name, index, offsets, path, offset, length):
        self.new(self.D, "MetadataIndex")
        self.put(b"}\x94(", 1)
        self.word("fqn")
        self.put(self.text(name), 1)
        self.word("index")
        self.put(b"N" if index is None else number(index))
        if offsets is not None:
            self.word("offset")
            self.size(offsets)
        self.put(b"ub")
        self.new("torch.distributed.checkpoint.filesystem", "_StorageInfo")
        self.put(b"}\x94(", 1)
        self.word("relative_path")
        self.word(path)
        self.word("offset")
        self.put(number(offset))
        self.word("length")
        self.put(number(length) + b"ub")

    def write(self, tensors, objects, planner, items):
        """tensors: (name, dtype, shape, [(offsets, sizes)]); items: (name,
        chunk's number and offsets or None, path, offset, length); planner:
        {name: path} or None."""
        self.new(self.D, "Metadata")
        self.put(b"}\x94(", 1)
        self.word("state_dict_metadata")
        self.put(b"}\x94", 1)
        for entry in self.batches(tensors + objects, b"s", b"u"):
            if isinstance(entry, tuple):
                self.tensor(*entry)
            else:
                self.put(self.text(entry), 1)
                self.new(self.D, "BytesStorageMetadata")
        self.word("planner_data")
        if planner is None:
            self.put(b"N")
        else:
            self.put(b"}\x94", 1)
            for name, path in self.batches(list(planner.items()), b"s", b"u"):
                self.put(self.text(name), 1)
                self.put(b"(")
                for element in path:
                    self.put(self.text(element), 1)
                self.put(b"t\x94", 1)
        self.word("storage_data")
        self.put(b"}\x94", 1)
        for item in self.batches(items, b"s", b"u"):
            self.stored(*item)
        self.word("storage_meta")
        self.new(self.D, "StorageMeta")
        self.put(b"}\x94(", 1)
        for key, value in (("checkpoint_id", "ckpt"), ("save_id", "0" * 32)):
            self.word(key)
            self.put(self.text(value), 1)
        self.word("load_id")
        self.put(b"N")
        self.word("modules")
        self.put(b"]\x94ub", 1)
        self.word("version")
        self.put(self.text("1.0.0") + b"ub.", 1)
        self.flush()
