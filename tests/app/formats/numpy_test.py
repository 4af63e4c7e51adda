#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy's files against NumPy itself, both ways: what it saved is read as it
loads it, and what is written has the bytes that numpy.save and numpy.savez
write.
"""

import io
import itertools
import json
import random
import struct
import warnings
import zipfile

import numpy

from support import DATA, Suite, check, check_equal, read_safetensors

warnings.filterwarnings("ignore")
CKPT = None

# numpy's letters, and what ckpt calls them.
DTYPES = {"?": "bool", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64",
          "u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64", "f2": "f16",
          "f4": "f32", "f8": "f64", "c8": "c64", "c16": "c128"}
SHAPES = [(), (0,), (1,), (7,), (1, 5), (4, 1), (3, 4), (2, 3, 4), (0, 7),
          (2, 0, 3), (5, 1, 2, 3)]
VERSIONS = [(1, 0), (2, 0), (3, 0)]
KINDS = ("folder", "npz", "compressed")


def numbers(letter, shape, seed):
    """Elements of all kinds, NaNs with payloads among them."""
    count = int(numpy.prod(shape, dtype=int))
    size = numpy.dtype(letter).itemsize
    raw = random.Random(seed).randbytes(count * size)
    if letter == "?":
        raw = bytes(b & 1 for b in raw)
    return numpy.frombuffer(raw, "<" + letter).reshape(shape)


def all_arrays():
    """name -> (array, version)."""
    found = {}
    for letter, shape, order, end in itertools.product(
            DTYPES, SHAPES, "CF", "<>"):
        name = f"{DTYPES[letter]}.{'x'.join(map(str, shape)) or 'scalar'}." \
               f"{order}{'le' if end == '<' else 'be'}"
        plain = numbers(letter, shape, name)
        array = numpy.array(plain.astype(end + letter), order=order)
        found[name] = array, VERSIONS[len(found) % 3]
    return found


def saved(array, version=None):
    file = io.BytesIO()
    numpy.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def write(path, kind, arrays):
    """arrays: name -> (array, version)."""
    if kind == "folder":
        for name, (array, version) in arrays.items():
            file = path / f"{name}.npy"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(saved(array, version))
        return path
    how = zipfile.ZIP_STORED if kind == "npz" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, (array, version) in arrays.items():
            archive.writestr(f"{name}.npy", saved(array, version))
    return path


def plain(array):
    """Little-endian and row-major, as numpy.save gets a copy."""
    return numpy.array(array.astype(array.dtype.newbyteorder("<")), order="C")


def same(got, want, what):
    want = plain(want)
    check_equal((got.dtype.str, got.shape), (want.dtype.str, want.shape), what)
    check(got.tobytes() == want.tobytes(), f"{what}: other elements")


def write_safetensors(path, tensors):
    """name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def as_safetensors(path, arrays):
    return write_safetensors(path, {
        name: (DTYPES[array.dtype.str[1:] if array.dtype != bool else "?"]
               .upper(), array.shape, array.tobytes())
        for name, array in arrays.items()})


# ------------------------------------------------------------------- reading
def test_read(folder, kind):
    arrays = all_arrays()
    source = write(folder / ("in" if kind == "folder" else "in.npz"), kind,
                   arrays)
    listed = {t["name"]: (t["dtype"], tuple(t["shape"]))
              for t in CKPT.inspect(source)["tensors"]}
    check_equal(listed, {n: (n.split(".")[0], a.shape)
                         for n, (a, _) in arrays.items()}, "listed")
    CKPT.ok("verify", source)
    CKPT.ok("convert", source, folder / "out.npz")
    with numpy.load(folder / "out.npz") as got:
        check_equal(list(got.files), list(listed), "names")
        for name, (array, _) in arrays.items():
            same(got[name], array, name)
    CKPT.ok("verify", source, folder / "out.npz")
    CKPT.ok("convert", source, folder / "out.safetensors", "--exclude",
            "c128.*")
    got = read_safetensors(folder / "out.safetensors")
    for name, (array, _) in arrays.items():
        if not name.startswith("c128"):
            check(got[name].data == plain(array).tobytes(), name)


def test_lone(folder):
    for name, (array, version) in itertools.islice(
            all_arrays().items(), 0, None, 23):
        source = folder / f"{name}.npy"
        source.write_bytes(saved(array, version))
        tensors = CKPT.inspect(source)["tensors"]
        check_equal([t["name"] for t in tensors], [name], "names")
        out = folder / "out" / f"{name}.npy"
        out.parent.mkdir(exist_ok=True)
        CKPT.ok("convert", source, out)
        check(out.read_bytes() == saved(plain(array)), name)


def test_nested(folder):
    arrays = {name: (numbers("f4", (2, 3), name), None)
              for name in ("Transformer/block_0/kernel", "Transformer/bias",
                           "head", "a.b/c.d")}
    source = write(folder / "in", "folder", arrays)
    (source / ".hidden.npy").write_bytes(b"not read")
    (source / "README.md").write_text("arrays")
    del arrays["head"]
    (source / "head.npy").unlink()
    CKPT.ok("convert", source, folder / "out.npz")
    with numpy.load(folder / "out.npz") as got:
        check_equal(set(got.files), set(arrays), "names")
    CKPT.ok("convert", folder / "out.npz", folder / "back", "--to", "numpy")
    for name, (array, _) in arrays.items():
        check((folder / "back" / f"{name}.npy").read_bytes() == saved(array),
              name)
    CKPT.ok("verify", folder / "out.npz", folder / "back")


def test_big_compressed(folder):
    """Elements in the other order, deflated: numpy.savez_compressed(w.T)."""
    wide = numbers("f4", (1500, 2000), 1)
    numpy.savez_compressed(folder / "in.npz", w=wide.T, v=wide)
    run = CKPT.ok("convert", folder / "in.npz", folder / "out.npz")
    with numpy.load(folder / "out.npz") as got:
        same(got["w"], wide.T, "w")
        same(got["v"], wide, "v")
    check(run.cpu < 20, f"{run.cpu} s of processor")


# ------------------------------------------------------------------- writing
def test_bytes(folder):
    """As numpy.save and numpy.savez write them."""
    arrays = {}
    for letter, shape in itertools.product(DTYPES, SHAPES):
        if letter != "c16":  # safetensors has none
            name = f"{DTYPES[letter]}/{'x'.join(map(str, shape)) or 's'}"
            arrays[name] = numbers(letter, shape, name)
    arrays["größe"] = numbers("f4", (3,), 0)
    source = as_safetensors(folder / "in.safetensors", arrays)
    order = list(read_safetensors(source))
    listed = [t["name"] for t in CKPT.inspect(source)["tensors"]]
    check_equal(set(listed), set(order), "names")
    CKPT.ok("convert", source, folder / "out.npz")
    numpy.savez(folder / "numpy.npz", **{n: arrays[n] for n in listed})
    check((folder / "out.npz").read_bytes()
          == (folder / "numpy.npz").read_bytes(), "not numpy.savez's bytes")
    CKPT.ok("convert", source, folder / "out", "--to", "numpy", "--verify")
    for name, array in arrays.items():
        check((folder / "out" / f"{name}.npy").read_bytes() == saved(array),
              f"{name}: not numpy.save's bytes")
    for out in ("out", "out.npz"):
        CKPT.ok("verify", folder / out)
        CKPT.ok("verify", source, folder / out)


def test_large(folder):
    """Several items, threads, and numpy's mapping."""
    arrays = {f"w{i}": numbers("f4", (2048, 2048 + i), i) for i in range(3)}
    source = as_safetensors(folder / "in.safetensors", arrays)
    numpy.savez(folder / "numpy.npz", **arrays)
    for threads in (1, 2):
        CKPT.ok("convert", source, folder / "out.npz", "-j", threads,
                "--overwrite")
        check((folder / "out.npz").read_bytes()
              == (folder / "numpy.npz").read_bytes(), f"-j {threads}")
    CKPT.ok("convert", source, folder / "w1.npy", "--keys", "w1")
    mapped = numpy.load(folder / "w1.npy", mmap_mode="r")
    check(isinstance(mapped, numpy.memmap), "not mapped")
    same(mapped, arrays["w1"], "w1")


def test_many(folder):
    """More members than a plain zip counts."""
    arrays = {f"t{i}": numpy.float32(i).reshape(()) for i in range(66_000)}
    source = as_safetensors(folder / "in.safetensors", arrays)
    CKPT.ok("convert", source, folder / "out.npz", "--no-fsync")
    names = [t["name"] for t in CKPT.inspect(source)["tensors"]]
    numpy.savez(folder / "numpy.npz", **{n: arrays[n] for n in names})
    check((folder / "out.npz").read_bytes()
          == (folder / "numpy.npz").read_bytes(), "not numpy.savez's bytes")
    check_equal(len(CKPT.inspect(folder / "out.npz")["tensors"]), 66_000,
                "tensors")


def test_refused_targets(folder):
    two = as_safetensors(folder / "two.safetensors",
                         {n: numbers("f4", (2,), n) for n in "ab"})
    ran = CKPT.run("convert", two, folder / "x.npy").want(5)
    check("holds one array" in ran.err and "--keys" in ran.err, f"{ran}")
    CKPT.run("convert", two, folder / "x.npz", "--max-shard-size",
             "1MB").want(2)
    half = write_safetensors(folder / "half.safetensors", {
        "w": ("BF16", (2,), b"\x80\x3f\x00\x40"),
        "f": ("F8_E4M3", (2,), b"\x38\x40")})
    for out in ("h.npz", "h.npy", "h"):
        ran = CKPT.run("convert", half, folder / out, "--to", "numpy",
                       "--keys", "w").want(5)
        check("numpy has no bf16" in ran.err and "--dtype f32" in ran.err,
              f"{ran}")
        check(not (folder / out).exists(), "a refused run left something")
    CKPT.ok("convert", half, folder / "h.npz", "--dtype", "f32")
    with numpy.load(folder / "h.npz") as got:
        check_equal({n: got[n].tolist() for n in got.files},
                    {"w": [1, 2], "f": [1, 2]}, "values")


def test_names(folder):
    """What can't be a file, and files that would be one."""
    bad = {"/a": "empty", "a//b": "empty", "a/": "empty", "../a": "dot",
           "a/./b": "dot", ".a": "dot", "a\nb": "control",
           "x" * 300: "bytes"}
    rows = [((name,), why) for name, why in bad.items()]
    rows += [(("a", "a.npy"), "file of a"), (("a", "a.npy/b"), "file of a")]
    for names, why in rows:
        source = as_safetensors(folder / "in.safetensors",
                                {n: numbers("f4", (2,), n) for n in names})
        for out in ("out.npz", "out"):
            ran = CKPT.run("convert", source, folder / out, "--to",
                           "numpy").want(5)
            check(why in ran.err and "--rename" in ran.err, f"{names}: {ran}")
            check(not (folder / out).exists(), f"{names}")
    good = ["a.npy", "a b", "A", "b.npy/c", "ä/ö", "x" * 251]
    source = as_safetensors(folder / "in.safetensors",
                            {n: numbers("f4", (2,), n) for n in good})
    for out in ("ok.npz", "ok"):
        CKPT.ok("convert", source, folder / out, "--to", "numpy")
        got = {t["name"] for t in CKPT.inspect(folder / out)["tensors"]}
        check_equal(got, set(good), out)


# ---------------------------------------------------------------- strangers
class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def strangers(folder):
    objects = numpy.empty(1, object)
    objects[0] = Evil(folder / "EXECUTED")
    yield objects, "objects"
    yield numpy.zeros(3, [("a", "f4"), ("b", "i4")]), "records"
    yield numpy.frombuffer(b"\x80\x3f" * 4, "V2"), "bfloat16"
    yield numpy.frombuffer(b"\x38" * 4, "V1"), "raw bytes"
    yield numpy.array(["one", "two"]), "text"
    yield numpy.array([b"one"]), "text"
    yield numpy.array(["2020-01-01"], "M8[D]"), "M8[D]"
    yield numpy.zeros(2, numpy.longdouble), "f16"


def test_strangers(folder):
    for number, (array, why) in enumerate(strangers(folder)):
        numpy.save(folder / "w.npy", array, allow_pickle=True)
        numpy.savez(folder / "w.npz", fine=numpy.zeros(2), w=array)
        numpy.savez_compressed(folder / "z.npz", w=array)
        for name in ("w.npy", "w.npz", "z.npz"):
            ran = CKPT.run("inspect", folder / name).want(5)
            check(why in ran.err and name in ran.err, f"{number}: {ran}")
            CKPT.run("convert", folder / name, folder / "out.pt").want(5)
    check(not (folder / "EXECUTED").exists(), "it ran")


def test_beside(folder):
    """Members that are no arrays; bytes behind one; several in a file."""
    array = numbers("f4", (3, 2), 1)
    path = write(folder / "in.npz", "npz", {"w": (array, None)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
        archive.writestr("folder/", "")
        archive.writestr("bare", saved(array))
    ran = CKPT.ok("inspect", path)
    check("notes.txt" in ran.out + ran.err, f"{ran}")
    names = [t["name"] for t in CKPT.inspect(path)["tensors"]]
    check_equal(names, ["w", "bare"], "names")
    for more, why in ((b"xyz", "3 bytes behind"),
                      (saved(array), "another array")):
        (folder / "w.npy").write_bytes(saved(array) + more)
        ran = CKPT.ok("verify", folder / "w.npy")
        check(why in ran.out + ran.err, f"{ran}")
        CKPT.run("verify", folder / "w.npy", "--strict").want(1)
    with zipfile.ZipFile(folder / "two.npz", "w") as archive:
        archive.writestr("w", saved(array))
        archive.writestr("w.npy", saved(array))
    CKPT.run("inspect", folder / "two.npz").want(4)


def test_found(folder):
    """Other checkpoints stay what they are, whatever arrays lie there."""
    (folder / "torch").mkdir()
    as_safetensors(folder / "torch/weights.safetensors",
                   {"w": numbers("f4", (2,), 1)})
    numpy.save(folder / "torch/losses.npy", numpy.zeros(3))
    check_equal(CKPT.inspect(folder / "torch")["format"], "safetensors", "it")
    (folder / "keras").mkdir()
    (folder / "keras/model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99))
    numpy.save(folder / "keras/losses.npy", numpy.zeros(3))
    CKPT.run("inspect", folder / "keras").want(3)
    numpy.save(folder / "alone.dat.npy", numpy.zeros(3))
    (folder / "alone.dat.npy").rename(folder / "alone.dat")
    check_equal(CKPT.inspect(folder / "alone.dat")["format"], "numpy", "it")


# -------------------------------------------------------------------- damage
def loads(path):
    try:
        return {"": plain(numpy.load(path))}
    except Exception:
        return None


def test_headers(folder):
    """Whatever numpy refuses is refused, and what both read is the same."""
    chance = random.Random(5)
    path = folder / "w.npy"
    array = numbers("f4", (3, 4), 1)
    spelled = ["(3, 4)", "(3,4,)", "[3, 4]", "(12,)", "(12)", "(3, -4)",
               "(3, 4.0)", "(3, 0x4)", "(3, True)", "(2**2, 3)", "()",
               "(9223372036854775807, 9223372036854775807)",
               "(18446744073709551617, 4)", "(4611686018427387904, 4)",
               "(0, 18446744073709551615)", "(3, 4), 'more': 1", "None",
               "(1,) * 12", "(3, 4", "(" + "1, " * 70 + "12)"]
    texts = [f"{{'descr': '<f4', 'fortran_order': False, 'shape': {s}, }}"
             for s in spelled]
    texts += ["", "{}", "[]", "None", "{'descr': '<f4'}",
              "{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 4)}",
              "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)} + 1",
              "{'shape': (3, 4), 'descr': '<f4', 'fortran_order': True}",
              "{'descr': '<f4', 'descr': '<i4', 'fortran_order': False, "
              "'shape': (3, 4)}",
              "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (3, 4)}",
              "{'descr': '|f4', 'fortran_order': False, 'shape': (3, 4)}",
              "__import__('os').system('touch EXECUTED')", "(" * 5000,
              "{" * 5000]
    files = []
    for text in texts:
        body = text.encode() + b" " * 9 + b"\n"
        files.append(b"\x93NUMPY\1\0" + struct.pack("<H", len(body)) + body
                     + array.tobytes())
    whole = saved(array)
    head = len(whole) - array.nbytes
    for at in range(head):
        for value in {whole[at] ^ 1 << chance.randrange(8),
                      chance.choice(b"0123456789'(),:{}TFx<>|\n ")}:
            files.append(whole[:at] + bytes([value]) + whole[at + 1:])
    files += [whole[:n] for n in range(0, len(whole), 5)]
    files.append(b"\x93NUMPY\2\0\xff\xff\xff\xff" + whole)
    read = 0
    for content in files:
        path.write_bytes(content)
        want = loads(path)
        ran = CKPT.run("convert", path, folder / "out.npy", "--overwrite",
                       "--no-fsync", cwd=folder)
        check(ran.code in (0, 3, 4, 5), f"{content[:200]}: {ran}")
        if ran.code != 0:
            continue
        check(want is not None, f"numpy refuses it: {content[:200]} {ran}")
        same(numpy.load(folder / "out.npy"), want[""], f"{content[:200]}")
        read += 1
    check(read > 10, f"only {read} of {len(files)} were read")
    check(not (folder / "EXECUTED").exists(), "it ran")


def contents(path):
    try:
        with numpy.load(path) as got:
            return {n: (got[n].dtype.str, got[n].shape, got[n].tobytes())
                    for n in got.files}
    except Exception:
        return None


def test_flips(folder, kind):
    """Each flipped bit of an archive is found, or changes nothing."""
    arrays = {n: (numbers("f4", (5, 3), n), None) for n in ("a", "b")}
    whole = write(folder / "in.npz", kind, arrays).read_bytes()
    want = contents(folder / "in.npz")
    path = folder / "flipped.npz"
    chance = random.Random(3)
    missed = 0
    for at in range(0, len(whole), 2):
        path.write_bytes(whole[:at]
                         + bytes([whole[at] ^ 1 << chance.randrange(8)])
                         + whole[at + 1:])
        ran = CKPT.run("verify", path)
        if ran.code != 0:
            check(ran.code in (1, 3, 4, 8), f"byte {at}: {ran}")
            continue
        missed += 1
        got = contents(path)
        check(got is None or got == want, f"byte {at}: {ran}")
        ran = CKPT.run("convert", path, folder / "out.npz", "--overwrite",
                       "--no-fsync")
        check(ran.code != 0 or contents(folder / "out.npz") == want,
              f"byte {at}: {ran}")
    check(missed < len(whole) / 8, f"{missed} of {len(whole)} pass")


# ------------------------------------------------------------------ commands
def test_commands(folder):
    a = {n: numbers("f4", (4, 3), n).clip(-9, 9) for n in ("x", "y")}
    a = {n: numpy.nan_to_num(v) for n, v in a.items()}
    b = {n: v + numpy.float32(1) for n, v in a.items()}
    numpy.savez(folder / "a.npz", **a)
    numpy.savez_compressed(folder / "b.npz", **b)
    CKPT.ok("ls", folder / "a.npz")
    shown = CKPT.ok("show", folder / "a.npz", "x[1]", "--json").json()
    check_equal(numpy.array(shown["values"], "f4").reshape(3).tolist(),
                a["x"][1].tolist(), "shown")
    CKPT.run("diff", folder / "a.npz", folder / "b.npz").want(1)
    CKPT.ok("merge", folder / "a.npz", folder / "b.npz", folder / "m.npz")
    with numpy.load(folder / "m.npz") as got:
        for n in a:
            check(numpy.allclose(got[n], (a[n] + b[n]) / 2, 1e-6, 0), n)
    CKPT.ok("scan", folder / "a.npz")
    out = CKPT.ok("convert", folder / "a.npz", folder / "a.pt", "--json")
    check(out.json()["written"][0]["path"].endswith("a.pt"), f"{out}")
    import torch
    for n, tensor in torch.load(folder / "a.pt").items():
        same(tensor.numpy(), a[n], n)


def test_passed_over(folder):
    """What is not read is named; what is lost can't be told without a
    configuration."""
    source = write(folder / "in", "folder", {"w": (numbers("f4", (2,), 1), None)})
    said = CKPT.ok("verify", source, "--json").json()
    check_equal((said["verdict"], said["problems"]), ("cant_tell", []), "plain")
    deep = source.joinpath(*"abcdefghijklmnopqr")
    deep.mkdir(parents=True)
    (deep / "x.npy").write_bytes(saved(numbers("f4", (2,), 2)))
    (source / "linked").symlink_to(deep)
    said = CKPT.ok("verify", source, "--json").json()
    check_equal({p["file"] for p in said["problems"]
                 if p["kind"] == "unread_file"},
                {str(source / "linked"), str(deep.parent)}, "passed over")
    CKPT.run("verify", source, "--strict").want(1)


def test_model(folder):
    """A model of transformers as a folder of arrays, and back."""
    source = DATA / "hf/llama/ckpt"
    CKPT.ok("convert", source, folder / "arrays", "--to", "numpy", "--dtype",
            "f32")
    check((folder / "arrays/config.json").is_file(), "no config.json")
    check_equal(CKPT.inspect(folder / "arrays")["family"], "llama", "family")
    CKPT.ok("convert", folder / "arrays", folder / "back", "--to",
            "safetensors", "--dialect", "hf")
    CKPT.ok("convert", source, folder / "f32", "--to", "safetensors",
            "--dtype", "f32")
    CKPT.ok("verify", folder / "f32", folder / "back")
    CKPT.ok("verify", folder / "f32", folder / "arrays")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for kind in KINDS:
        suite.add(f"read {kind}", test_read, kind)
    suite.add("read one array", test_lone)
    suite.add("read folders in folders", test_nested)
    suite.add("read a compressed transpose", test_big_compressed)
    suite.add("write numpy's bytes", test_bytes)
    suite.add("write large ones", test_large)
    suite.add("write 66,000", test_many)
    suite.add("refused targets", test_refused_targets)
    suite.add("names", test_names)
    suite.add("what is no tensor", test_strangers)
    suite.add("beside arrays", test_beside)
    suite.add("what is found", test_found)
    suite.add("headers", test_headers)
    for kind in KINDS[1:]:
        suite.add(f"flips of {kind}", test_flips, kind)
    suite.add("commands", test_commands)
    suite.add("what is passed over", test_passed_over)
    suite.add("a model", test_model)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
