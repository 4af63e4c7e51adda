# SPDX-License-Identifier: Apache-2.0
"""What ckpt.save takes and what it refuses, kind by kind; cases of
python_test.py. The expected values come from numpy and torch themselves."""

import ctypes
import os
import warnings

import ckpt
import numpy as np
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from support import check, check_equal


def refused(tensor, kind, call, *args, **options):
    """An error of that kind for that tensor, whose text names it."""
    try:
        call(*args, **options)
    except kind as error:
        if isinstance(error, ckpt.Error):
            check_equal(error.tensor, tensor, f"which tensor: {error}")
            check("\0" not in str(error), f"a raw NUL: {error!r}")
        return error
    raise AssertionError(f"no {kind.__name__} of {tensor!r}")


def saved(folder, value):
    path = folder / "one.safetensors"
    ckpt.save({"a": value}, path, overwrite=True)
    return load_file(path)["a"]


def numpy_kinds(folder):
    """Any byte order and any strides; no numbers without their meaning."""
    numbers = np.arange(-6, 6).reshape(3, 4)
    arrays = {}
    for kind in "i2 i4 i8 u2 u4 u8 f2 f4 f8 c8 c16 i1 u1 b1".split():
        for order in "<>=":
            array = numbers.astype(order + kind)
            for at, one in enumerate((array, array.T, array[::2, ::-1],
                                      array[1, 2], array[0:0])):
                arrays[f"{order}{kind} {at}"] = one
    ckpt.save(arrays, folder / "all.pt")
    for name, got in torch.load(folder / "all.pt").items():
        want, got = arrays[name], got.numpy()
        check_equal((got.dtype, got.shape),
                    (want.dtype.newbyteorder("="), want.shape), name)
        check((got == want).all(), f"{name}: {got}, not {want}")
    file = np.memmap(folder / "map", dtype=">f4", mode="w+", shape=(2, 3))
    file[:] = 1.5
    check((saved(folder, file) == 1.5).all(), "memmap")
    floats = numbers.astype("f4")
    for value in (np.ma.masked_less(floats, 0), np.ma.masked_array([1.0]),
                  np.array([1, "a", None], dtype=object),
                  np.array([(1, 2.0)], dtype="i4,f4"),
                  np.array([(1, 2.0)], dtype="i4,f4")[0],
                  np.rec.array([(1, 2.0)], dtype="i4,f4"),
                  np.matrix([[1.0]]), floats.view(type("Mine", (np.ndarray,),
                                                       {})),
                  np.array(["a"]), np.array([b"a"]), np.zeros(1, "V4"),
                  np.array(["2026-01-01"], "M8[D]"), np.zeros(1, "m8[s]"),
                  np.zeros(1, np.longdouble), np.zeros(1, np.clongdouble)):
        refused("a", ckpt.errors.UsageError, ckpt.save, {"a": value},
                folder / "no.safetensors")
    check(not (folder / "no.safetensors").exists(), "something was written")


class Plain(torch.Tensor):
    """A subclass in name only: its bytes are its values."""


class Parameter(torch.nn.Parameter):
    pass


class Wrapper(torch.Tensor):
    """A subclass that computes, like torchao's, without memory of its own."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


def torch_views(folder):
    """Lazy views and subclasses of plain memory are saved as their values."""
    complexes = torch.randn(3, 4, dtype=torch.complex64)
    real = torch.randn(3, 4)
    views = dict(enumerate((
        complexes, complexes.conj(), complexes.conj().T,
        complexes.conj()[1:, ::2], complexes.mH, complexes.conj()[0, 0],
        complexes.conj().imag, complexes.conj().imag.T,
        torch.view_as_real(complexes)[..., 1], real.expand(2, 3, 4),
        real[:, 1], real.requires_grad_(), torch.randn(2).as_subclass(Plain),
        Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(3)))))
    ckpt.save({str(at): view for at, view in views.items()}, folder / "all.pt")
    for at, got in torch.load(folder / "all.pt").items():
        want = views[int(at)].detach().as_subclass(torch.Tensor)
        check_equal(got.tolist(), want.resolve_conj().resolve_neg().tolist(),
                    f"view {at}")
    if torch.cuda.is_available():
        check(torch.equal(saved(folder, real.cuda()), real), "on a GPU")


def sparse_kinds():
    dense = torch.eye(4)
    yield dense.to_sparse()
    for layout in ("csr", "csc", "bsr", "bsc"):
        block = ((2, 2),) if layout.startswith("b") else ()
        yield getattr(dense, "to_sparse_" + layout)(*block)


def no_memory_kinds():
    """Tensors with a shape but no values here."""
    yield torch.empty(3, device="meta")
    yield torch.nn.Linear(2, 2, device="meta").weight
    yield torch.nn.LazyLinear(2).weight
    with FakeTensorMode() as mode:
        yield torch.empty(3)
    yield mode.from_tensor(torch.ones(3))
    yield torch._efficientzerotensor(3)
    freed = torch.ones(8)
    part = freed[4:]
    freed.untyped_storage().resize_(0)
    yield freed
    yield part
    yield Wrapper()
    yield torch.nn.Parameter(Wrapper(), requires_grad=False)


def dtensors():
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        yield DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
        yield torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh))
    finally:
        dist.destroy_process_group()


def wrapped(save):
    """Calls save() of the wrappers that transforms pass to functions."""
    def of(value):
        save(value)
        return value.sum()
    torch.func.vmap(of)(torch.ones(2, 3))
    torch.func.grad(of)(torch.ones(3))
    torch.func.functionalize(of)(torch.ones(3))


def torch_kinds(folder):
    """Each kind whose bytes are not its values is refused by name. Taking the
    address of some of them is a segmentation fault."""
    def save(value):
        for call in (ckpt.save, ckpt.begin_save):
            error = refused("w", ckpt.errors.UsageError, call,
                            {"fine": np.ones(1), "w": value},
                            folder / "no.safetensors")
            check("w: " in str(error), f"{error}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = [*sparse_kinds(), *no_memory_kinds(),
                 torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                 torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2),
                                            torch.zeros(2), 0, torch.quint8),
                 torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                 torch.nested.nested_tensor([torch.ones(2), torch.ones(3)],
                                            layout=torch.jagged),
                 torch.masked.masked_tensor(torch.ones(2),
                                            torch.tensor([True, False]))]
        if torch.backends.mkldnn.is_available():
            kinds.append(torch.ones(2).to_mkldnn())
        for value in kinds:
            save(value)
        wrapped(save)
    for value in dtensors():
        save(value)
    check(not list(folder.iterdir()), f"left: {list(folder.iterdir())}")


class OfDlpack:
    """Another library's array."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **_):
        check(self.device == 1, "elements of another device were asked for")
        return self.array.__dlpack__()


def others(folder):
    """DLPack of other libraries, and arrays of ours."""
    array = np.arange(6, dtype="f4").reshape(2, 3)
    for one in (array, array[:0], array[:, :0].T):
        got = saved(folder, OfDlpack(one))
        check_equal((got.tolist(), got.shape), (one.tolist(), one.shape), "")
    for value in (OfDlpack(array, 2), OfDlpack(array.T), OfDlpack(array > 1, 7),
                  object(), [1.0], 2.5, None, b"abc", "abc"):
        refused("a", ckpt.errors.UsageError, ckpt.save, {"a": value},
                folder / "no.pt")
    with ckpt.open(folder / "one.safetensors") as source:
        ckpt.save(source, folder / "again.pt")
        ckpt.save({"a": source["a"].read()}, folder / "array.pt")
    # One of ours that nobody took is released as before.
    names = [b"dltensor"]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object,
                                                  ctypes.c_char_p]
    ckpt.save({"a": array}, folder / "n.safetensors")
    with ckpt.open(folder / "n.safetensors") as source:
        capsule = source["a"].__dlpack__()
        check(get(capsule, names[0]), "no capsule")
        del capsule


def names_and_paths(folder):
    """No text reaches C truncated at a NUL; no number loses bits."""
    one = {"a": np.ones(1)}
    usage = ckpt.errors.UsageError
    for name in ("a\0", "\0", "a\0b", "\ud800"):
        error = refused(name, usage, ckpt.save, {name: np.ones(1)},
                        folder / "x.pt")
        check(repr(name)[1:-1] in str(error), f"which name: {error}")
    for name in (3, None, b"a", ("a",), 1.5):
        for call in (ckpt.save, ckpt.begin_save):
            refused(name, TypeError, call, {name: np.ones(1)}, folder / "x.pt")
        check(isinstance(ckpt.save_async({name: np.ones(1)}, folder / "x.pt"
                                         ).exception(), TypeError), "async")
    for tensors in ([("a", np.ones(1))], np.ones(1), None):
        refused(None, TypeError, ckpt.save, tensors, folder / "x.pt")
    for call in (ckpt.save, ckpt.begin_save):
        refused(None, usage, call, {}, folder / "x.pt")
    refused(None, usage, ckpt.save, one, f"{folder}/x\0y.pt")
    refused(None, usage, ckpt.save, one, folder / "x.pt", "torch\0")
    refused(None, TypeError, ckpt.save, one, folder / "x.pt", 7)
    refused(None, TypeError, ckpt.save, one, 7)
    for size in (-1, 2**64, 2**65):
        refused(None, usage, ckpt.save, one, folder / "x.pt",
                max_shard_size=size)
    for size in (1.5, "4G", True):
        refused(None, TypeError, ckpt.save, one, folder / "x.pt",
                max_shard_size=size)
    check(not list(folder.iterdir()), f"left: {list(folder.iterdir())}")
    for at, path in enumerate((str(folder / "s.pt"), folder / "p.pt",
                               os.fsencode(folder / "b.pt"))):
        ckpt.save(one, path)
        check_equal(list(ckpt.open(path)), ["a"], f"path {at}")
    check(torch.load(folder / "b.pt"), "bytes that end in .pt")
    for path in ("a\0b", b"a\0b"):
        for call in (ckpt.open, ckpt.inspect, ckpt.verify):
            refused(None, usage, call, path)
    for options in ({"format": "a\0"}, {"family": "a\0"}):
        refused(None, usage, ckpt.open, folder / "s.pt", **options)


def nul_twins(folder):
    """Tensors whose names C would cut at a NUL don't come under another
    name."""
    import json
    for names in (("a", "a\0b"), ("a\0b",), ("\0",)):
        rows = {name: {"dtype": "F32", "shape": [1],
                       "data_offsets": [4 * at, 4 * at + 4]}
                for at, name in enumerate(names)}
        header = json.dumps(rows).encode()
        path = folder / "twins.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header +
                         bytes(4 * len(names)))
        try:
            ckpt.open(path)
        except ckpt.errors.UnfaithfulError as error:
            check("\\x00" in error.tensor, f"which tensor: {error}")
        else:
            check(False, f"{names} was opened")


CASES = (numpy_kinds, torch_views, torch_kinds, others, names_and_paths,
         nul_twins)
