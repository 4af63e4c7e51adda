#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt scan`: what loading a file elsewhere would run.

The hostile pickles below are put together from opcodes, after the published
ways around scanners (advisories of picklescan, fickling and modelscan); none
of them is ever loaded. What sound files hold is compared with what Python's
own pickletools says of them.
"""

import bz2
import gzip
import io
import lzma
import os
import pickle
import pickletools
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

from support import DATA, Suite, check, check_equal

CKPT = None
SAFE, EXECUTES, UNREADABLE = 0, 8, 4


# ------------------------------------------------------- opcodes, by hand
def text(value):
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def glob(module, name):
    return f"c{module}\n{name}\n".encode()


def stack_global(module, name):
    return text(module) + text(name) + b"\x93"


def call(function, *args):
    """REDUCE of a global with texts."""
    return function + b"(" + b"".join(map(text, args)) + b"tR"


def proto(body, version=4):
    return b"\x80" + bytes([version]) + body + b"."


EVIL = call(glob("os", "system"), "true")
PLAIN = b"}" + text("step") + b"K\x07s"
ORDERED = glob("collections", "OrderedDict") + b")R"

# Functions called with harmful arguments. Each was once missing from a
# deny-list.
CALLS = [
    ("os", "system"), ("posix", "system"), ("nt", "system"),
    ("subprocess", "Popen"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "compile"), ("builtins", "__import__"), ("builtins", "open"),
    ("builtins", "map"), ("builtins", "type"), ("builtins", "vars"),
    ("builtins", "apply"), ("__builtin__", "execfile"),
    ("_operator", "attrgetter"), ("operator", "methodcaller"),
    ("operator", "itemgetter"), ("functools", "reduce"),
    ("importlib", "import_module"), ("importlib.util", "spec_from_loader"),
    ("pkgutil", "resolve_name"), ("pydoc", "locate"), ("pydoc", "pipepager"),
    ("runpy", "run_path"), ("runpy", "_run_code"), ("pip", "main"),
    ("pip._internal", "main"), ("ensurepip", "_run_pip"), ("venv", "create"),
    ("timeit", "timeit"), ("profile", "Profile.run"), ("cProfile", "run"),
    ("cProfile", "runctx"), ("trace", "Trace.run"), ("bdb", "Bdb.run"),
    ("pdb", "run"), ("doctest", "debug_script"), ("pty", "spawn"),
    ("code", "InteractiveInterpreter.runcode"), ("codeop", "compile_command"),
    ("idlelib.run", "Executive.runcode"), ("idlelib.pyshell", "main"),
    ("idlelib.autocomplete", "AutoComplete.get_entity"),
    ("idlelib.calltip", "get_entity"), ("idlelib.debugobj", "ObjectTreeItem"),
    ("lib2to3.pgen2.grammar", "Grammar.loads"),
    ("lib2to3.pgen2.pgen", "ParserGenerator.make_label"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start"),
    ("asyncio", "create_subprocess_shell"), ("multiprocessing", "Process"),
    ("ctypes", "CDLL"), ("ctypes.util", "_findLib_gcc"),
    ("_pyrepl.pager", "pipe_pager"), ("_osx_support", "_read_output"),
    ("_aix_support", "_read_cmd_output"), ("uuid", "_get_command_stdout"),
    ("imaplib", "IMAP4_stream"), ("shutil", "rmtree"), ("socket", "socket"),
    ("ssl", "get_server_certificate"), ("http.client", "HTTPConnection"),
    ("urllib.request", "urlopen"), ("webbrowser", "open"),
    ("logging.config", "_resolve"), ("logging.config", "valid_ident"),
    ("distutils.file_util", "write_file"), ("linecache", "getlines"),
    ("io", "FileIO"), ("_io", "open"), ("pathlib", "Path.write_text"),
    ("marshal", "loads"), ("types", "FunctionType"), ("types", "CodeType"),
    ("pickle", "loads"), ("_pickle", "loads"), ("cloudpickle", "loads"),
    ("dill", "loads"), ("joblib", "load"), ("numpy", "load"),
    ("numpy.testing._private.utils", "runstring"),
    ("numpy.f2py.crackfortran", "myeval"), ("numpy.f2py.capi_maps", "getinit"),
    ("numpy", "core.os.system"), ("pandas", "read_pickle"),
    ("torch", "load"), ("torch.hub", "load"), ("torch", "jit.load"),
    ("torch.storage", "_load_from_bytes"), ("torch.serialization", "load"),
    ("torch.utils._config_module", "ConfigModule.load_config"),
    ("torch.utils.bottleneck.__main__", "run_cprofile"),
    ("torch.utils.collect_env", "run"),
    ("torch.utils.data.datapipes.utils.decoder", "basichandlers"),
    ("torch._dynamo.guards", "GuardBuilder.get"),
    ("torch._inductor.codecache", "compile_file"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards"),
    ("torch.jit.unsupported_tensor_ops", "execWrapper"),
    ("torch.distributed.tensor_evil", "DTensor"),
    ("collections", "OrderedDict.__init__.__globals__"),
    ("transformers.training_args", "TrainingArguments"),
    ("", ""), ("sys", "modules"), ("__main__", "anything"),
]


# Name, bytes, expected exit status.
def pickles():
    yield "plain", proto(PLAIN), SAFE
    yield "os.system, protocol 0", EVIL + b".", EXECUTES
    yield "no PROTO, INST", b"(S'true'\nios\nsystem\n.", EXECUTES
    yield "OBJ", proto(b"(" + glob("os", "system") + text("true") + b"o"), EXECUTES
    yield "NEWOBJ", proto(glob("evil", "Class") + b")\x81"), EXECUTES
    yield "NEWOBJ_EX", proto(glob("evil", "Class") + b")}\x92"), EXECUTES
    yield "only imported", proto(glob("antigravity", "x") + b"0N"), EXECUTES
    yield "result is dropped", proto(EVIL + b"0" + PLAIN), EXECUTES
    yield "STACK_GLOBAL", proto(call(stack_global("os", "system"), "x")), EXECUTES
    memo = (text("os") + b"q\x05" + b"0" + text("system") + b"r\x00\x10\x00\x00"
            + b"0" + b"h\x05j\x00\x10\x00\x00\x93" + text("x") + b"\x85R")
    yield "STACK_GLOBAL from the memo", proto(memo), EXECUTES
    swapped = (text("os") + text("collections") + b"\x940" + b"\x94" +
               b"0h\x01" + text("system") + b"\x93" + text("x") + b"\x85R")
    yield "STACK_GLOBAL, memo out of order", proto(swapped), EXECUTES
    for op in (b"S'os'\nS'system'\n", b"Vos\nV\\u0073ystem\n",
               b"U\x02osU\x06system", b"T\x02\0\0\0osT\x06\0\0\0system",
               b"X\x02\0\0\0osX\x06\0\0\0system",
               b"\x8d\x02\0\0\0\0\0\0\0os\x8d\x06\0\0\0\0\0\0\0system"):
        yield f"STACK_GLOBAL of {op[:1]!r}", proto(
            op + b"\x93" + text("x") + b"\x85R"), EXECUTES
    made = glob("builtins", "str") + text("os") + b"\x85R"
    yield "STACK_GLOBAL of a computed name", proto(
        made + text("system") + b"\x93"), EXECUTES
    yield "STACK_GLOBAL of numbers", proto(b"K\x01K\x02\x93"), EXECUTES
    yield "STACK_GLOBAL of a long name", proto(
        b"X\x10\x27\0\0" + b"a" * 10000 + text("x") + b"\x93"), EXECUTES
    yield "dotted name", proto(
        stack_global("collections", "abc.sys.modules")), EXECUTES
    yield "DUP of a global", proto(
        glob("os", "system") + b"2" + text("x") + b"\x85R"), EXECUTES
    yield "marks and POP", proto(
        b"(K\x01K\x020" + glob("os", "system") + b"1(0" + PLAIN), EXECUTES
    getattr_ = glob("builtins", "getattr")
    yield "getattr of an allowed class", proto(
        getattr_ + glob("collections", "OrderedDict") + text("fromkeys")
        + b"\x86R"), EXECUTES
    yield "getattr chain", proto(
        getattr_ + getattr_ + glob("torch.serialization", "_get_layout")
        + text("__globals__") + b"\x86R" + text("os") + b"\x86R"), EXECUTES
    yield "getattr by a computed name", proto(
        getattr_ + glob("collections", "OrderedDict") + made + b"\x86R"), EXECUTES
    yield "getattr of a nested class", proto(
        getattr_
        + glob("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
        + text("ProcessGroupState") + b"\x86R)\x81}b", 2), SAFE
    yield "getattr of an instance", proto(
        getattr_ + ORDERED + text("update") + b"\x86R"), EXECUTES
    yield "a result is called", proto(ORDERED + b")R"), EXECUTES
    yield "partial is called", proto(
        glob("functools", "partial") + glob("builtins", "print") + b"\x85R"
        + b")R"), EXECUTES
    yield "partial is kept", proto(
        glob("functools", "partial") + glob("builtins", "len") + b"\x85R"), SAFE
    yield "a persistent id is called", proto(b"K\x01Q)R"), EXECUTES
    yield "PERSID", b"Pstorage\n)R.", EXECUTES
    yield "BUILD of an OrderedDict", proto(ORDERED + PLAIN + b"b"), SAFE
    yield "BUILD with a function", proto(
        ORDERED + b"}" + text("keys") + glob("os", "getcwd") + b"sb"), EXECUTES
    yield "BUILD of a class", proto(
        glob("collections", "OrderedDict") + b"N}" + text("get") +
        glob("builtins", "len") + b"s\x86b"), EXECUTES
    yield "BUILD of a function", proto(
        glob("torch._utils", "_rebuild_tensor_v2") + b"}b"), EXECUTES
    yield "BUILD of an unknown class", proto(
        glob("evil", "Class") + b")\x81" + PLAIN + b"b"), EXECUTES
    yield "BUILD of an enum", proto(
        glob("signal", "Signals") + b"K\x02\x85R}b"), EXECUTES
    yield "SETITEM on a class", proto(
        glob("collections", "OrderedDict") + text("a") + b"K\x01s"), EXECUTES
    yield "APPENDS on a global", proto(
        glob("builtins", "list") + b"(K\x01e"), EXECUTES
    yield "TrainingArguments, not called", proto(
        glob("transformers.training_args", "TrainingArguments") + b")\x81}b"), SAFE
    yield "_rebuild_from_type_v2 calls", proto(
        glob("torch._tensor", "_rebuild_from_type_v2")
        + b"(" + glob("transformers.training_args", "TrainingArguments")
        + glob("torch", "Tensor") + text("x") + b"\x85}tR"), EXECUTES
    yield "_reconstructor calls a base", proto(
        glob("copyreg", "_reconstructor")
        + b"(" + glob("argparse", "Namespace")
        + glob("transformers.training_args", "TrainingArguments")
        + text("x") + b"tR"), EXECUTES
    yield "_reconstructor", proto(
        glob("copyreg", "_reconstructor") + b"(" + glob("argparse", "Namespace")
        + glob("builtins", "object") + b"NtR}b"), SAFE
    yield "numpy calls a constructor", proto(
        glob("numpy.random._pickle", "__generator_ctor") + text("MT19937")
        + glob("transformers.training_args", "TrainingArguments")
        + b"\x86R"), EXECUTES
    for op in (b"\x82\x01", b"\x83\x01\x02", b"\x84\x01\x02\x03\x04"):
        yield f"EXT {op[0]:#x}", proto(op + b")R"), EXECUTES
    yield "Python 2's name", proto(
        call(glob("__builtin__", "execfile"), "x"), 2), EXECUTES
    yield "protocol changed on the way", proto(
        b"\x80\x02" + call(glob("__builtin__", "eval"), "1")), EXECUTES
    yield "a module of this name", proto(
        call(glob("collections.evil", "OrderedDict"))), EXECUTES

    # Where other scanners' parsers stop.
    yield "broken after the call", b"\x80\x04" + EVIL + b"\xff", EXECUTES
    yield "cut after the call", b"\x80\x04" + EVIL, EXECUTES
    yield "stack empty after the call", proto(EVIL + b"000"), EXECUTES
    yield "memo never stored", proto(EVIL + b"h\x63"), EXECUTES
    yield "a second pickle", proto(PLAIN) + proto(EVIL), EXECUTES
    yield "a tenth pickle", proto(PLAIN) * 9 + proto(EVIL), EXECUTES
    yield "junk after STOP", proto(PLAIN) + b"\xffjunk", UNREADABLE
    yield "zeros after STOP", proto(PLAIN) + b"\0" * 64, SAFE
    yield "junk, then a call", proto(PLAIN) + EVIL + b"\xff", EXECUTES
    yield "unknown protocol", b"\x80\x63" + PLAIN + b".", UNREADABLE
    yield "opcode that is none", proto(b"\xfe"), UNREADABLE
    yield "cut", proto(PLAIN)[:-2], UNREADABLE
    yield "an endless string", proto(b"X\xff\xff\xff\x7fabc"), UNREADABLE
    yield "LONG4 of 2 GiB", proto(b"\x8b\xff\xff\xff\x7f"), UNREADABLE
    yield "frames that lie", b"\x80\x04\x95" + b"\xff" * 8 + EVIL + b".", EXECUTES
    yield "next buffer", proto(b"\x97)R"), EXECUTES
    yield "a far memo index", proto(
        glob("os", "system") + b"r\xff\xff\xff\xffj\xff\xff\xff\xff)R"), EXECUTES

    # Where Python continues and others stop.
    for front in (b"Np1_0\n0", b"Np+1\n0", b"Np 1 \n0", b"Np1\ng+1\n0",
                  b"Np1\0x\ng0_1\n0", b"Np" + b" " * 60_000 + b"1\n0",
                  b"Np99999999999999999999999\n0", b"]Nb0", b")Nb0", b"}Nb0",
                  b"K\x01))\x86b0"):
        yield f"a call after {front[:12]!r}, {len(front)}", front + EVIL + b".", EXECUTES
    yield "a memo index of 70,000 characters", (
        b"Np" + b" " * 70_000 + b"1\n0" + EVIL + b"."), UNREADABLE
    yield "a name that the end of the file ends", proto(b"cposix\nsystemx")[:-1], EXECUTES
    yield "INST that the end of the file ends", (
        b"(S'true'\nios\nsystemx"), EXECUTES
    yield "GLOBAL of a long name", proto(
        b"ccollections\nOrderedDict" + b".x" * 4000 + b"\n"), EXECUTES
    # A vector of names grew during the call that reads from it.
    yield "_reconstructor of nothing known", (
        b"\x80\x04" + stack_global("copyreg", "_reconstructor")
        + b"(]" + text("a") + text("b") + b"\x93NtR."), EXECUTES

    # The words of a text are not opcodes, but this file is named as a pickle.
    yield "text", b"Cats are not pickles.\nNor dogs.\n", UNREADABLE
    yield "words, one a line", b"cat\ndog\nbird\n", UNREADABLE
    evil_bytes = b"B" + struct.pack("<I", len(proto(EVIL))) + proto(EVIL)
    good_bytes = b"B" + struct.pack("<I", len(proto(PLAIN))) + proto(PLAIN)
    load = glob("torch.storage", "_load_from_bytes")
    yield "bytes that torch loads", proto(load + evil_bytes + b"\x85R"), EXECUTES
    yield "sound bytes that torch loads", proto(
        load + good_bytes + b"\x85R"), SAFE
    # What pickle.dump makes of a tensor: its storage is a file of its own.
    for name, value, want in (("a storage", PLAIN, SAFE),
                              ("a call in a storage", EVIL, EXECUTES)):
        inner = legacy(proto(value, 2))
        yield f"{name} that torch loads", proto(
            load + b"B" + struct.pack("<I", len(inner)) + inner
            + b"\x85R"), want
    yield "computed bytes that torch loads", proto(
        load + glob("_codecs", "encode") + text("x") + b"\x85R\x85R"), EXECUTES


def test_pickle(folder, data, want):
    path = folder / "model.pkl"
    path.write_bytes(data)
    result = CKPT.run("scan", path).want(want)
    document = CKPT.run("scan", path, "--json").want(want).json()
    check_equal(document["schema"], "ckpt/scan/1", "schema")
    check_equal(document["ok"], want == SAFE, "ok")
    bad = [g for g in document["files"][0]["globals"] if not g["allowed"]]
    check((want == EXECUTES) == bool(bad), f"globals: {document}")
    for name in (g["name"] for g in bad):
        check(name in result.out or not name.isprintable(),
              f"{name} is not named\n{result}")


def test_calls(folder):
    """Every function in the list, in each way of calling it."""
    paths = []
    for index, (module, name) in enumerate(CALLS):
        for way, body in (
                ("reduce", call(glob(module, name), "x")),
                ("stack", call(stack_global(module, name), "x")),
                ("inst", b"(" + text("x") + b"i" + glob(module, name)[1:]),
                ("obj", b"(" + glob(module, name) + text("x") + b"o")):
            path = folder / f"{index}_{way}.pkl"
            path.write_bytes(proto(body))
            paths.append(path)
    document = CKPT.run("scan", folder, "--json").want(EXECUTES).json()
    verdicts = {f["path"]: f["verdict"] for f in document["files"]}
    for path in paths:
        check_equal(verdicts[str(path)], "executes",
                    f"{path.name} {CALLS[int(path.name.split('_')[0])]}")


# ------------------------------------------------------------- containers
def torch_zip(data, deflate=False, name="archive/data.pkl"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if deflate else 0) as z:
        z.writestr(name, data)
        z.writestr("archive/version", "3\n")
    return out.getvalue()


def npy(data, descr="|O"):
    header = ("{'descr': '%s', 'fortran_order': False, 'shape': (1,), }"
              % descr).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


def tar(**members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def legacy(value, sys_info=None):
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    return (magic + b"\x80\x02M\xe9\x03." + (sys_info or proto(b"}", 2))
            + value + proto(b"]", 2))


def flip_crc(data):
    at = data.index(b"PK\1\2") + 16
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


def set_flag(data, flag):
    at = data.index(b"PK\1\2") + 8
    return data[:at] + bytes([data[at] | flag]) + data[at + 1:]


def containers(bad, good):
    """File name, content, and whether it may be unreadable when sound."""
    def both(name, make, broken=False):
        yield name, make(bad), EXECUTES
        yield "sound_" + name, make(good), UNREADABLE if broken else SAFE
    yield from both("plain.pt", lambda p: p)
    yield from both("zip.pt", torch_zip)
    yield from both("zip.txt", torch_zip)
    yield from both("deflated.pt", lambda p: torch_zip(p, True))
    yield from both("other_name.pt", lambda p: torch_zip(p, name="a/x.dat"))
    yield from both("nested.zip", lambda p: torch_zip(
        torch_zip(torch_zip(p), name="inner.bin"), name="outer.dat"))
    yield from both("legacy.pt", lambda p: legacy(p))
    yield from both("legacy_info.pt", lambda p: legacy(proto(b"}", 2), p))
    yield from both("objects.npy", npy)
    yield from both("field.npy", lambda p: npy(p, "[('a', '|O')]"))
    yield from both("arrays.npz", lambda p: torch_zip(npy(p), name="a.npy"))
    yield from both("p.pkl.gz", gzip.compress)
    yield from both("p.pkl.bz2", bz2.compress)
    yield from both("p.joblib", zlib.compress)
    yield from both("p.nemo", lambda p: tar(**{"a.ckpt": torch_zip(p)}))
    yield from both("image.png", lambda p: p)
    # Some readers load each of these, others refuse it.
    yield from both("crc.pt", lambda p: flip_crc(torch_zip(p)), True)
    yield from both("encrypted.pt", lambda p: set_flag(torch_zip(p), 1), True)
    yield from both("prefix.pt", lambda p: b"#!junk\n" + torch_zip(p), True)
    yield from both("suffix.pt", lambda p: torch_zip(p) + b"junk", True)
    yield from both("cut.pt", lambda p: torch_zip(p)[:-30], True)
    yield from both("two.pt", lambda p: torch_zip(p) + torch_zip(good))
    yield from both("no_directory.pt", lambda p: torch_zip(p)[
        :torch_zip(p).index(b"PK\1\2")], True)
    yield "numbers.npy", npy(b"\x80\x04abcd", "<f4"), SAFE
    for order in ("<", ">", "=", ""):
        yield from both(f"order{ord(order or '0')}.npy",
                        lambda p, o=order: npy(p, o + "O"))
    yield "strings.npy", npy(bad, "T"), EXECUTES
    # Looks like safetensors for nine bytes, and for all of them.
    evil = b"]Nb0cos\nsystem\n(S'true'\ntR."
    shape = b"U\x0f\0\0\0\0\0\0" + b"{" + b"}" * 8 + b"0" + evil
    yield "lookalike.safetensors", shape.ljust(23 + 0xf), EXECUTES
    yield "lookalike.bin", shape.ljust(23 + 0xf), EXECUTES
    yield "lookalike_sound.bin", (
        b"U\x0f\0\0\0\0\0\0" + b"{" + b"}" * 8).ljust(40), UNREADABLE
    names = b'{"' + b"a" * 5
    header = (names + b"aaC" + b"~" + b"a" * 126 + b'0":1}').ljust(0xf55)
    yield "both.safetensors", (
        b"U\x0f\0\0\0\0\0\0" + header + b"\xff"), SAFE
    # Under a meaningless name.
    for name in ("foo", "x.dat", "notes.txt", "data.json"):
        yield from ((name, b"Np1_0\n0" + EVIL + b".", EXECUTES),
                    (name, b"K\x01" + glob("os", "system") + b"\xff", UNREADABLE),
                    (name, lzma.compress(bad, lzma.FORMAT_ALONE), EXECUTES),
                    (name, zlib.compress(bad, 2), EXECUTES))
    yield "words.txt", b"cat\ndog\nbird\n", SAFE
    yield "vocab", b"c\nR\nb\n", SAFE
    yield "packed.7z", b"7z\xbc\xaf\x27\x1c" + b"\0" * 20, UNREADABLE
    yield "packed.xz", b"\xfd7zXZ\0" + b"\0" * 20, UNREADABLE


def test_container(folder, name, data, want):
    path = folder / name
    path.write_bytes(data)
    CKPT.run("scan", path).want(want)
    CKPT.run("scan", folder).want(want)


def test_directory(folder):
    deep = folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("# A model\n")
    CKPT.run("scan", folder).want(SAFE)
    (deep / "weights").write_bytes(proto(EVIL))
    result = CKPT.run("scan", folder).want(EXECUTES)
    check("os.system" in result.out and "a/b/c/weights" in result.out,
          f"names both\n{result}")
    (deep / "weights").unlink()
    (folder / "link").symlink_to(folder / "nowhere")
    CKPT.run("scan", folder).want(UNREADABLE)
    (folder / "link").unlink()
    (folder / "link").symlink_to(folder)  # a circle
    CKPT.run("scan", folder).want(SAFE)
    CKPT.run("scan", folder / "absent").want(3)
    CKPT.run("scan").want(2)


def test_verify(folder):
    """A sound checkpoint with an evil file beside it is not whole."""
    shutil.copytree(DATA / "safetensors/hf_sharded/ckpt", folder / "c")
    CKPT.ok("verify", folder / "c")
    (folder / "c" / "training_args.bin").write_bytes(torch_zip(proto(EVIL)))
    document = CKPT.run("verify", folder / "c", "--json").want(1).json()
    kinds = [p["kind"] for p in document["problems"]]
    check_equal(kinds, ["executes"], "problems")
    check("os.system" in document["problems"][0]["message"], str(document))


def test_convert(folder):
    """A sidecar that nobody can judge is left out by name, unless asked for."""
    shutil.copytree(DATA / "safetensors/hf_sharded/ckpt", folder / "c")
    (folder / "c" / "training_args.bin").write_bytes(proto(PLAIN)[:-2])
    CKPT.run("verify", folder / "c").want(1)
    result = CKPT.ok("convert", folder / "c", folder / "d", "--to", "safetensors")
    check("training_args.bin" in result.err and "left out" in result.err, result.err)
    check(not (folder / "d/training_args.bin").exists(), "it was carried")
    CKPT.ok("verify", folder / "d")
    CKPT.ok("convert", folder / "c", folder / "e", "--to", "safetensors",
            "--keep-unknown-globals")
    check((folder / "e/training_args.bin").exists(), "it was not carried")


def test_object_with_bytes(folder):
    """It is left out by name like one without bytes of its own."""
    by_torch(folder, "held = Holder()",
             "held.bytes = torch.ones(3).untyped_storage()",
             "torch.save({'w': torch.ones(2), 'held': held}, 'a.pt')")
    result = CKPT.ok("convert", folder / "a.pt", folder / "b.pt")
    check("held: is left out" in result.err, result.err)
    by_torch(folder, "assert list(torch.load('b.pt')) == ['w']")
    CKPT.ok("convert", folder / "a.pt", folder / "c.pt",
            "--keep-unknown-globals")
    by_torch(folder, "kept = torch.load('c.pt', weights_only=False)['held']",
             "assert bytes(kept.bytes) == bytes(torch.ones(3)"
             ".untyped_storage())")


def by_torch(folder, *lines):
    """Not in this process: what it takes would count for its children."""
    code = "import torch\nclass Holder: pass\n" + "\n".join(lines)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code],
                          cwd=folder, capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)


# --------------------------------------- what Python says of sound files
def python_globals(data):
    """(module, name) of all pickles in it, by pickletools."""
    found = set()
    if data[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for record in archive.infolist():
                if "/data/" in record.filename:
                    continue
                record.CRC = None
                content = io.BytesIO(data)
                content.seek(record.header_offset + 26)
                name, extra = struct.unpack("<HH", content.read(4))
                content.seek(name + extra, 1)
                packed = content.read(record.compress_size)
                found |= python_globals(
                    zlib.decompress(packed, -15) if record.compress_type
                    else packed)
        return found
    at = io.BytesIO(data)
    try:
        while at.tell() < len(data):
            found |= globals_of(list(pickletools.genops(at)))
    except ValueError:
        pass
    return found


def globals_of(ops):
    from pickle import _compat_pickle as compat

    found, memo, last, proto_ = set(), {}, [], 0
    for op, arg, _ in ops:
        if op.name == "PROTO":
            proto_ = arg
        if op.name in ("GLOBAL", "INST"):
            pair = tuple(arg.split(" ", 1))
            if proto_ < 3:
                pair = compat.NAME_MAPPING.get(pair, pair)
                pair = (compat.IMPORT_MAPPING.get(pair[0], pair[0]), pair[1])
            found.add(pair)
        elif op.name == "STACK_GLOBAL":
            found.add(tuple(last[-2:]))
        if "PUT" in op.name or op.name == "MEMOIZE":
            memo[len(memo) if arg is None else int(arg)] = last[-1:]
        elif "GET" in op.name:
            last += memo[int(arg)]
        elif isinstance(arg, str) and op.name not in ("GLOBAL", "INST"):
            last.append(arg)
        else:
            last.append(None)
    return found


def test_differential(folder, root):
    document = CKPT.run("scan", root, "--json").json()
    compared = 0
    for row in document["files"]:
        with open(row["path"], "rb") as f:
            data = f.read()
        if not row["pickles"] or row["path"].endswith((".distcp", ".tar")):
            continue
        got = {(g["module"], g["name"]) for g in row["globals"]
               if "." not in g["name"]}
        check_equal(got, python_globals(data), row["path"])
        compared += 1
    check(compared > 0 or "safetensors" in str(root), f"nothing in {root}")


# Files that need their own project's code, which no trainer has.
OWN_CODE = {"training_objects", "whole_module"}


def test_golden(folder, case):
    want = EXECUTES if case.name in OWN_CODE else SAFE
    CKPT.run("scan", case).want(want)


# Beginnings of storages of random numbers. Of 100,000 each, these were once
# reported to call a computed value, and extension registry numbers.
NUMBERS = ["974aa03c8c8662bd34fd29bccb213ebc219f26bc707b0a3d984707bce1dac5bc",
           "84999f9ffd82cc613b95920c6f92f0928537b8f6518e43530ee1e8faaa5db1db",
           "822e7d627885e3e6e166ff0f0b5dc1efb0ddc6c74f4d4d80651ffd659c448ce1",
           "84c4ac53217d4e73803a1e8b63c25cd94dc17f4e2f5ff0f08e27a0384a2bd020"]


def test_numbers(folder):
    """A storage's elements are not a pickle just because they look like one;
    one that imports what it calls is."""
    def archive(name, storages):
        with zipfile.ZipFile(folder / name, "w") as out:
            out.writestr("archive/data.pkl", proto(PLAIN, 2))
            for i, data in enumerate(storages):
                out.writestr(f"archive/data/{i}", data)
        return CKPT.run("scan", folder / name, "--json")

    numbers = [bytes.fromhex(text) for text in NUMBERS]
    archive("numbers.pt", numbers).want(SAFE)
    for evil in (EVIL, proto(EVIL), call(glob("evil-module", "x.y"), "true"),
                 call(stack_global("os", "system"), "true")):
        archive("evil.pt", [*numbers, evil + b"\0" * 64]).want(EXECUTES)


def test_large(folder):
    """Memory is bounded, whatever the pickle: 8 bytes per value."""
    for name, body in (("ints", b"K\x01" * 4_000_000),
                       ("tuples", b")" * 8_000_000),
                       ("memo", b"N" + b"\x94" * 8_000_000),
                       ("marks", b"(" * 8_000_000)):
        path = folder / f"{name}.pkl"
        path.write_bytes(proto(b"(" + body + b"t" if name != "marks" else body))
        result = CKPT.run("scan", path)
        check(result.rss < (256 << 20) or CKPT.sanitized,
              f"{name}: {result.rss >> 20} MiB")


# ------------------------------------------------- what numpy takes for pointers
DTYPE = glob("numpy", "dtype")
ADDRESS = struct.pack("<Q", 0x4141414141410000)


def dtype(code, state=None):
    """numpy.dtype(code, False, True), and its BUILD."""
    code = text(code) if isinstance(code, str) else code
    made = DTYPE + code + b"\x89\x88\x87R"
    return made if state is None else made + b"(" + state + b"tb"


def state(flags, names=b"N", fields=b"N", subarray=b"N"):
    """(3, "|", subarray, names, fields, 8, 1, flags)"""
    return (b"K\x03" + text("|") + subarray + names + fields + b"K\x08K\x01"
            + b"K" + bytes([flags]))


def array_of(kind):
    """numpy's own way to pickle an array, whose bytes are an address."""
    return (glob("numpy.core.multiarray", "_reconstruct")
            + glob("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
            + b"(K\x01K\x01\x85" + kind + b"\x89C\x08" + ADDRESS + b"tb")


def pointers():
    """(name, pickle) of types whose elements numpy takes from the file as
    addresses."""
    fields = text("a") + b"\x85", (
        b"}" + text("a") + dtype("O8") + b"K\x00\x86s")
    hidden = {
        "flags of numbers": dtype("O8", state(0)),
        "a field": dtype("V8", state(0, *fields)),
        "a field, made twice": dtype("V8", state(0, *fields)) + b"\x94",
        "a subarray": dtype("V8", state(0, subarray=dtype("O8") + b"K\x01\x85"
                                        + b"\x86")),
        "the class": dtype(glob("builtins", "object"), state(0)),
        "a long code": dtype("object", state(0)),
        "a field behind the element": dtype("V8", state(0, text("a") + b"\x85", (
            b"}" + text("a") + dtype("f8") + b"J\0\0\0\x40\x86s"))),
        "a subarray behind the element": dtype(
            "V8", state(0, subarray=dtype("f8") + b"M\xff\xff\x85\x86")),
        "a field set after BUILD": dtype("V8", state(0, text("a") + b"\x85", (
            b"}\x94"))) + b"h\0" + text("a") + dtype("f8")
            + b"J\0\0\0\x40\x86s0",
    }
    for name, kind in hidden.items():
        yield f"array, {name}", array_of(kind)
        yield f"scalar, {name}", (
            glob("numpy.core.multiarray", "scalar") + kind + b"C\x08" + ADDRESS
            + b"\x86R")
        yield f"_frombuffer, {name}", (
            glob("numpy.core.numeric", "_frombuffer") + b"(C\x08" + ADDRESS
            + kind + b"K\x01\x85" + text("C") + b"tR")
    buffer = glob("builtins", "bytearray") + b"C\x08" + ADDRESS + b"\x85R"
    for way, body in (
            ("REDUCE", glob("numpy", "ndarray") + b"(K\x01\x85" + text("O")
             + buffer + b"tR"),
            ("NEWOBJ", glob("numpy", "ndarray") + b"(K\x01\x85" + text("O")
             + buffer + b"t\x81"),
            ("INST", b"(K\x01\x85" + text("O") + buffer + b"inumpy\nndarray\n")):
        yield f"ndarray, {way}", body


def numpy_pointers(folder):
    """None is safe; those that end a process of Python show that it matters."""
    ended = 0
    for number, (name, body) in enumerate(pointers()):
        path = folder / f"{number}.pkl"
        path.write_bytes(proto(body))
        result = CKPT.run("scan", path, "--json")
        check(result.code == EXECUTES, f"{name}\n{result}")
        done = subprocess.run(
            [sys.executable, "-c", "import pickle, sys\n"
             "print(pickle.load(open(sys.argv[1], 'rb')))", path],
            capture_output=True)
        ended += done.returncode == -signal.SIGSEGV
    check(ended >= 3, f"{ended} pickles ended Python")


def numpy_sound(folder):
    """What numpy itself writes is safe, by every protocol."""
    import numpy as np

    rng = np.random.default_rng(1)
    values = (
        np.arange(4.0), np.float32(2), np.array(["a", "bcd"]), np.array([b"x"]),
        np.array([None, "x", 3], dtype=object), np.array([], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8")]),
        np.array([([1, 2],)], dtype=[("a", "<i4", 2)]),
        np.array(["2026-01-01"], "M8[s]"), np.timedelta64(3, "s"),
        np.dtype("f4"), np.dtype(object), rng.bit_generator.state,
        np.random.RandomState(3).get_state(), np.random.RandomState(3), rng,
        np.random.SeedSequence(3), np.random.Philox(1), np.random.SFC64(1),
        np.zeros((2, 0)), np.asfortranarray(np.ones((2, 3))), np.bool_(True),
        np.array(1 + 2j), {"a": np.arange(3), "b": [np.array([{}])]})
    for number, value in enumerate(values):
        for protocol in range(6):
            path = folder / f"{number}_{protocol}.pkl"
            path.write_bytes(pickle.dumps(value, protocol))
    document = CKPT.run("scan", folder, "--json").json()
    for file in document["files"]:
        name = Path(file["path"]).stem.split("_")[0]
        check_equal(file["verdict"], "safe",
                    f"{file['path']} of {values[int(name)]!r}: {file['globals']}")
    check_equal(len(document["files"]), 6 * len(values), "files")


PACKAGE = """
import os
from torch.package import PackageExporter, PackageImporter
open("own_module.py", "w").write("open('RAN', 'w')")
import own_module
with PackageExporter("with.pt") as exporter:
    exporter.intern("own_module")
    exporter.save_module("own_module")
with PackageExporter("without.pt") as exporter:
    exporter.save_pickle("data", "d.pkl", [1])
os.unlink("RAN")
PackageImporter("with.pt").import_module("own_module")
"""


def package(folder):
    """torch.package's loader imports what lies beside the pickles."""
    done = subprocess.run(
        [sys.executable, "-c", PACKAGE], cwd=folder, capture_output=True,
        text=True, env=dict(os.environ, PYTHONPATH=str(folder)))
    check(done.returncode == 0 and (folder / "RAN").exists(),
          f"torch.package ran nothing: {done.stderr}")
    result = CKPT.run("scan", folder / "with.pt").want(EXECUTES)
    check("own_module.py" in result.out, result.out)
    CKPT.run("scan", folder / "without.pt").want(SAFE)


def native(folder):
    """A shared library in an archive is what AOTInductor's loader opens."""
    library = Path(sys.executable).resolve().read_bytes()[:4096]
    for name, content, want in (
            ("library", library, EXECUTES), ("text", b"text", SAFE)):
        path = folder / f"{name}.pt2"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("m/data/aotinductor/model/m.so", content)
            file.writestr("m/data.pkl", proto(PLAIN))
        CKPT.run("scan", path).want(want)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, data, want in pickles():
        suite.add(f"pickle: {name}", test_pickle, data, want)
    suite.add("calls", test_calls)
    for name, data, want in containers(proto(EVIL), proto(PLAIN)):
        suite.add(f"container: {name}", test_container, name, data, want)
    for function in (numpy_pointers, numpy_sound, package, native):
        suite.add(function.__name__, function)
    suite.add("directory", test_directory)
    suite.add("verify", test_verify)
    suite.add("convert", test_convert)
    suite.add("convert, an object with bytes of its own",
              test_object_with_bytes)
    suite.add("numbers", test_numbers)
    suite.add("large", test_large)
    for kind in ("dcp", "deepspeed", "fairseq2_native", "megatron_legacy",
                 "megatron_torch_dist", "megatron_zarr", "modelopt",
                 "olmo_core_dcp", "torch_legacy", "torch_pt"):
        suite.add(f"as pickletools: {kind}", test_differential, DATA / kind)
    for kind in sorted(DATA.iterdir()):
        if kind.name in ("bad", "zip") or not kind.is_dir():
            continue
        for case in sorted(p for p in kind.iterdir() if p.is_dir()):
            suite.add(f"sound: {kind.name}/{case.name}", test_golden, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
