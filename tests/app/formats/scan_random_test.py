#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt scan` beside Python's own unpicklers, the one in C and the one in Python.

Small pickles are put together at random and mutated. Both unpicklers load them
with a find_class() that hands out recorders for whatever would do harm, so that
none is done: what one of them imported or called that is not on scan's list must
not be called safe, whatever the file's name.
"""

import argparse
import collections
import functools
import io
import itertools
import pickle
import random
import re
import shutil
import struct
import types
import warnings

from support import DATA, Suite, check

CKPT = None
EVIL_BYTES = b"cos\nsystem\n(S'true'\ntR."
LOAD = ("torch.storage", "_load_from_bytes")
OPTIONS = ("transformers.training_args", "TrainingArguments")
GETATTR = ("builtins", "getattr")
EVIL = ("os", "system")

REAL = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "dict"): dict,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "list"): list,
    ("builtins", "set"): set,
    ("builtins", "tuple"): tuple,
    ("builtins", "len"): len,
    ("collections", "Counter"): collections.Counter,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "deque"): collections.deque,
    ("functools", "partial"): functools.partial,
    ("types", "SimpleNamespace"): types.SimpleNamespace,
}


# ------------------------------------------------------------- recorders
class Record:
    """What one unpickler did that nobody allowed."""

    def __init__(self):
        self.imported = []
        self.called = []

    def find_class(self, module, name):
        if (module, name) in REAL:
            return REAL[module, name]
        if (module, name) == LOAD:
            return lambda *args: self.called.append(("load", args))
        if (module, name) == GETATTR:
            return self.getattr
        if (module, name) == OPTIONS:
            return self.options()
        # No module's file has such a name, and "" is refused.
        if re.fullmatch(r"[\w.-]+", module):
            self.imported.append((module, name))
        return lambda *args: self.called.append((module, name))

    def getattr(self, *args):
        self.called.append(("getattr", args))

    def options(self):
        record = self

        class TrainingArguments:
            def __init__(self, *args, **kwargs):
                record.called.append(("TrainingArguments", args))
        return TrainingArguments


def unpickle(base, data):
    record = Record()

    class Unpickler(base):
        def find_class(self, module, name):
            return record.find_class(module, name)

        def persistent_load(self, pid):
            return None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Unpickler(io.BytesIO(data)).load()
    except (Exception, RecursionError):  # noqa: BLE001
        pass
    return record


def record_of(data):
    """The records of both unpicklers, which differ in what they refuse."""
    one, two = (unpickle(base, data)
                for base in (pickle._Unpickler, pickle.Unpickler))
    return one.imported + two.imported, one.called + two.called


# --------------------------------------------------------------- opcodes
def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def glob(pair):
    return b"c%s\n%s\n" % (pair[0].encode(), pair[1].encode())


def stack_global(pair):
    return text(pair[0]) + text(pair[1]) + b"\x93"


def long_bytes(data):
    return b"B" + struct.pack("<I", len(data)) + data


def numbers(rng):
    """A memo index that int() reads, or almost."""
    n = rng.choice([0, 1, 2, 10, 11, 300, 5000, 2**64 + 1])
    digits = str(n)
    form = rng.randrange(10)
    if form == 0 and len(digits) > 1:
        digits = digits[0] + "_" + digits[1:]
    return (("+" if form == 1 else "-" if form == 2 else "") +
            ("0" if form == 3 else "0_" if form == 9 else "") +
            (" \t" if form == 4 else "") + digits +
            (" \r" if form == 5 else "\0x" if form == 6 else "")).encode()


def tokens(rng):
    """One token of a pickle."""
    names = [*REAL, EVIL, LOAD, OPTIONS, GETATTR]
    pick = rng.choice
    return pick([
        lambda: pick([b"N", b")", b"]", b"}", b"\x8f", b"\x88", b"K\x01",
                      b"I1\n", b"L5L\n", b"F1.5\n", b"J\1\0\0\0", b"\x8a\1\5",
                      b"\x8b\0\0\0\0", b"G" + bytes(8), b"S'a'\n", b"Va\n",
                      b"U\1a", b"T\1\0\0\0a", b"C\1a", text("keys"),
                      text("append"), text("__setstate__"), text("x"),
                      b"\x95" + struct.pack("<Q", pick([0, 1, 9, 60]))]),
        lambda: pick([b"(", b"(", b"0", b"1", b"2", b"\x94"]),
        lambda: pick([b"t", b"l", b"d", b"\x91", b"\x85", b"\x86", b"\x87"]),
        lambda: pick([b"a", b"s", b"e", b"u", b"\x90", b"b", b"b", b"Nb0", b"Nb",
                      b"))\x86b", b"}" + text("keys") + b"Nsb"]),
        lambda: pick([b"R", b"\x81", b"\x92", b"o", b")R", b")\x81", b"Q",
                      b"Pid\n", b"\x98", b"\x97"]),
        lambda: pick([b"p", b"g"]) + numbers(rng) + b"\n",
        lambda: pick([b"q\1", b"h\1", b"r\1\0\0\0", b"j\1\0\0\0", b"h\0", b"q\0"]),
        lambda: pick([glob, stack_global])(pick(names)),
        lambda: b"i" + glob(pick(names))[1:],
        lambda: pick([glob, stack_global])(EVIL) + text("true") + b"\x85R",
        lambda: glob(("functools", "partial")) + glob(pick(names)) +
                long_bytes(EVIL_BYTES) + b"\x86R",
        lambda: b"\x80" + bytes([pick([0, 2, 4, 5, 5])]),
    ])()


def sound(rng):
    """A token that Python accepts anywhere."""
    put = numbers(random.Random(rng.randrange(6)))
    return rng.choice([
        b"N0", b"]Nb0", b")Nb0", b"}Nb0", b"\x8fNb0", b"K\1Nb0", b"S'a'\nNb0",
        b"C\1aNb0", b"Np" + put + b"\n0", b"Np" + put + b"\ng" + put + b"\n00",
        b"N20" b"0", b"(1", b"((01", b"(0", b"](NNe0", b"}(NNu0", b"]((ll0",
        b"\x8f(K\1\x900", b"}))\x86b0", b"]}b0", b"I0_1\n0", b"F 1\n0",
        b"V\\u0041\n0", b"\x95" + bytes(8), b"\x8b\0\0\0\0" b"0",
        b"N" + b" " * 0 + b"r\0\x10\0\0" b"0", b"(NNd0", b"(K\1K\2\x910",
        b"(N0N1", b"\x80\4", b"L1L\n0", b"\x88\x89\x86" b"0",
        glob(("collections", "OrderedDict")) + b")RNb0",
        glob(("argparse", "Namespace")) + b")\x81}b0"])


def pickles(rng, count):
    for i in range(count):
        if i % 2:  # reaches the call, if the tracer follows what Python accepts
            parts = [sound(rng) for _ in range(rng.randrange(8))]
            parts.append(glob(EVIL) + b"(" + text("x") + b"tR" if i % 4 == 1
                         else b"\x80\x04N")
        else:
            parts = [tokens(rng) for _ in range(rng.randrange(1, 14))]
            if rng.random() < .5:
                parts.insert(0, b"\x80\x04")
        data = b"".join(parts)
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            at = rng.randrange(max(1, len(data)))
            data = rng.choice([
                data[:at] + data[at + 1:], data[:at] + data[at:at + 4] + data[at:],
                data[:at] + bytes([rng.randrange(128)]) + data[at + 1:],
                data[:at + 1]])
        yield data + rng.choice([b".", b".", b"", b"\xff"])


def is_text(data):
    try:
        return not re.search("[\0-\x08\x0b\x0c\x0e-\x1f]", data.decode())
    except UnicodeDecodeError:
        return False


def verdicts(folder, datas):
    """The verdict on each, under a meaningless name and under a pickle's."""
    for i, data in enumerate(datas):
        (folder / f"{i:05}").write_bytes(data)
        (folder / f"{i:05}.pkl").write_bytes(data)
    rows = CKPT.run("scan", folder, "--json").json()["files"]
    found = {row["path"].rsplit("/", 1)[1]: row["verdict"] for row in rows}
    return [(found[f"{i:05}"], found[f"{i:05}.pkl"]) for i in range(len(datas))]


NOT_SAFE = ("executes", "unreadable")


def test_random(folder, seed, count):
    rng = random.Random(seed)
    datas = list(pickles(rng, count))
    records = [record_of(data) for data in datas]
    harmful = safe = 0
    for data, (imported, called), (bare, named) in zip(
            datas, records, verdicts(folder, datas), strict=True):
        what = f"{data!r}: Python imported {imported}, called {called}"
        safe += named == "safe"
        if imported or called:
            harmful += 1
            check(named in NOT_SAFE, f"{what}; scan: {named}")
            # A text that merely begins like a pickle may import.
            check(bare in NOT_SAFE or (is_text(data) and not called),
                  f"{what}; scan without a suffix: {bare}")
    check(harmful > count // 5 and safe > count // 20,
          f"{harmful} of {count} would do harm, {safe} are safe")


def test_beside_a_model(folder, seed, count):
    """In a folder beside a model, verify takes for another program's what no
    unpickler gets anything out of, and nothing else."""
    path = folder / "m"
    shutil.copytree(DATA / "safetensors" / "hf_sharded" / "ckpt", path)
    (path / "openvino").mkdir()
    datas = list(pickles(random.Random(seed), count))
    for i, data in enumerate(datas):
        (path / "openvino" / f"{i}.bin").write_bytes(data)
    found = CKPT.run("verify", path, "--json").want(1).json()["problems"]
    mild, bad = ({p["file"] for p in found if (p["severity"] == "damage") == is_bad}
                 for is_bad in (False, True))
    harmful = 0
    for i, data in enumerate(datas):
        imported, called = record_of(data)
        name = str(path / "openvino" / f"{i}.bin")
        if called or imported:
            harmful += 1
            check(name in bad or (is_text(data) and not called),
                  f"{data!r}: Python imported {imported}, called {called}")
    check(harmful > count // 5, f"{harmful} of {count} would do harm")
    check(mild - bad, "none is another program's")


# ------------------------------------- callables in the state of instances
def hidden(way):
    """A value that does harm when called."""
    partial = glob(("functools", "partial"))
    data = long_bytes(EVIL_BYTES)
    return {
        "load": glob(LOAD),
        "options": stack_global(OPTIONS),
        "getattr": glob(GETATTR),
        "partial": partial + glob(LOAD) + data + b"\x86R",
        "twice": partial + partial + glob(LOAD) + b"\x85R" + data + b"\x86R",
        "state": partial + glob(("builtins", "len")) + b"\x85R("
                 + glob(LOAD) + data + b"\x85}Ntb",
        "memo": glob(LOAD) + b"p1_0\n0g+10\n",
        "new": partial + glob(LOAD) + data + b"\x86\x81",
        "obj": b"(" + partial + glob(LOAD) + data + b"o",
        "inst": b"(" + glob(LOAD) + data + b"ifunctools\npartial\n",
    }[way]


WAYS = ("load", "options", "getattr", "partial", "twice", "state", "memo", "new",
        "obj", "inst")
ATTRIBUTES = ("keys", "items", "append", "extend", "add", "update",
              "__setstate__", "__reduce_ex__")


def holders(value, attribute):
    """Everything that may hold it."""
    name = text(attribute)
    for cls in (("argparse", "Namespace"), ("collections", "OrderedDict"),
                ("collections", "Counter"), ("collections", "deque"),
                ("types", "SimpleNamespace"), ("functools", "partial"),
                ("torch.nn.modules.linear", "Linear"), OPTIONS):
        args = glob(("builtins", "len")) + b"\x85" if cls[1] == "partial" else b")"
        made = glob(cls) + args + b"\x81"
        yield made + b"}" + name + value + b"sb"
        yield made + b"N}" + name + value + b"s\x86b"
        yield made + b"}(" + name + value + b"ub"
        yield (made if cls[1] == "partial" else
               glob(("copyreg", "_reconstructor")) + b"(" + glob(cls)
               + glob(("builtins", "object")) + b"NtR") + b"(" + name + value + b"db"
    yield glob(("collections", "OrderedDict")) + b")R" + name + value + b"s"
    yield glob(("collections", "OrderedDict")) + b"(" + name + value + b"t\x85\x85R"
    yield glob(("collections", "defaultdict")) + value + b"\x85R"
    yield glob(("builtins", "set")) + b"(" + value + b"l\x85R"
    yield b"](NN" + value + b"e"
    yield b"]" + value + b"a"
    yield b"(" + value + b"l"
    yield b"(NNN" + value + b"t"
    yield b"NN" + value + b"\x87"
    yield b"\x8f(" + value + b"\x90"
    yield b"(" + value + b"\x91"
    yield b"}" + name + value + b"s"
    yield glob(("argparse", "Namespace")) + b")}" + name + value + b"s\x92"
    yield value + b"\x85Q"


TRIGGERS = {
    "kept": b"", "dict": b"\x85R", "OrderedDict": b"\x85R", "Counter": b"\x85R",
    "APPEND": b"Na", "APPENDS": b"(Ne", "ADDITEMS": b"(N\x90", "BUILD": b"K\1b",
}
CLASSES = {"dict": ("builtins", "dict"), "Counter": ("collections", "Counter"),
           "OrderedDict": ("collections", "OrderedDict")}


def test_hidden(folder, way, attributes):
    datas, called = [], 0
    for attribute, (trigger, tail) in itertools.product(attributes, TRIGGERS.items()):
        front = glob(CLASSES[trigger]) if trigger in CLASSES else b""
        for holder in holders(hidden(way), attribute):
            datas.append(b"\x80\x04" + front + holder + tail + b".")
    for data, (bare, named) in zip(datas, verdicts(folder, datas), strict=True):
        called += bool(record_of(data)[1])
        check(bare == named == "executes", f"{data!r}: {bare}, {named}")
    check(called > 10, f"{called} of {len(datas)} call what is hidden")


# ------------------------------------------------------ numpy's own dtypes
def npy(descr, data):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}"
    header = header.encode("latin1").ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def test_npy(folder):
    """Whatever numpy would unpickle is scanned."""
    import numpy

    letters = [chr(c) for c in range(33, 127) if chr(c) not in "'\\\""]
    types_ = [order + letter + size for order in ("", "<", ">", "|", "=")
              for letter in letters for size in ("", "8")]
    types_ += ["object", "object_", "O,O", "i4,O", "(2,)O", "int64", "float32"]
    descrs = [repr(t) for t in types_]
    descrs += [f"[('a', {d})]" for d in ("'O'", "'<O'", "'f4'", "'T'")]
    descrs += ["('O', (1,))", "[('O', '<f4')]", "[('a', [('b', 'O')])]",
               "[(('t', 'O'), 'f4')]", "[(('t', 'n'), 'O')]", "'\\x4f'",
               "['xO']", "[('xO'), ('b', '<f4')]", "[('a', ('O', (1,)))]",
               "'' 'O'", "'i4' ',O'", "[('f4', 'O', (1,))]", "'''O'''",
               "[('Offset', '<i4'), ('Object', '<f4')]"]
    harmful, datas = [], []
    for descr in descrs:
        data = npy(descr, EVIL_BYTES)
        called = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                numpy.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except ValueError as error:
            if "allow_pickle" in str(error):
                called.append(descr)
        except Exception:  # noqa: BLE001, S110
            pass
        harmful.append(bool(called))
        datas.append(data)
    for descr, bad, (bare, _) in zip(descrs, harmful, verdicts(folder, datas),
                                     strict=True):
        check(bare == "executes" or not bad, f"{descr}: {bare}")
    check(sum(harmful) > 10, f"{sum(harmful)} of {len(descrs)} hold objects")
    plain = ["'<f4'", "'|S10'", "'|b1'", "'<m8[ns]'", "[('Offset', '<i4'), ('O', '<f4')]",
             "[('a', '<f4', (2, 3))]", "('<f4', (2,))", "[('a', [('b', '<i8')])]"]
    found = verdicts(folder, [npy(d, b"\x80\4abcd") for d in plain])
    for descr, (bare, _) in zip(plain, found, strict=False):
        check(bare not in NOT_SAFE, f"{descr}: {bare}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    count = 20_000 if suite.full else 600
    for seed in range(2):
        suite.add(f"random {seed}", test_random, seed, count)
        suite.add(f"beside a model {seed}", test_beside_a_model, seed, count)
    for way in WAYS:
        every = way == "partial" or suite.full
        suite.add(f"hidden: {way}", test_hidden, way,
                  ATTRIBUTES if every else ("keys",))
    suite.add("npy", test_npy)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
