# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: running ckpt, independent readers, a harness.

Nothing here uses ckpt to judge ckpt: safetensors files are parsed below from
the format's description, torch files are loaded by torch, the digest is
computed from its definition.
"""

import argparse
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# torch warns about a DeviceMesh unpickled without its process group.
logging.disable(logging.WARNING)

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
ROOT = HERE.parents[1]

# Seconds after which a process or a server hangs. Where others have the
# processors, two ranks of torch took more than 600.
HANG = 1800

# Whose account and shell this is must not matter: neither to ckpt, nor to the
# peers that run here.
FOREIGN = re.compile(
    r"(AWS|AZURE|CKPT_NET|GOOGLE|GS|OMPI|PMI|PMIX|SLURM)_.*|.*_proxy|.*_PROXY|"
    r"CKPT_(FAMILY_PATH|LAUNCHER|MODULE_PATH|SPOOL)|COLUMNS|HF_(ENDPOINT|HOME|"
    r"HUB_CACHE|TOKEN)|NO_COLOR|SSL_CERT_FILE|XDG_CONFIG_HOME")
for name in filter(FOREIGN.fullmatch, list(os.environ)):
    del os.environ[name]
os.umask(0o022)

# In what a shell runs in the background these are ignored, and would be in
# every process that is started here.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler
                      if number == signal.SIGINT else signal.SIG_DFL)


class Failure(Exception):
    """A failed check; the text is for the reader of the log."""


class Skip(Exception):
    """The case can't be run here; the text says why."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def check_equal(got, want, what):
    if got != want:
        raise Failure(f"{what}: got {short(got)}, expected {short(want)}")


def short(value, limit=300):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


# ------------------------------------------------------------------ waiting
def until(condition, what, child=None):
    """What the condition returns, as soon as that is true. Fails if it hangs, or
    if the process ends that was to bring it about."""
    end, pause = time.monotonic() + HANG, 0.001
    while True:
        # In this order: what a process did last counts.
        ended = child is not None and child.poll() is not None
        if found := condition():
            return found
        check(not ended, f"it ended ({child and child.returncode}) before "
                         f"{what}")
        check(time.monotonic() < end, f"never came: {what}")
        time.sleep(pause)  # noqa: TID251  is until() itself
        pause = min(2 * pause, 0.05)


def state_of(pid):
    """"R", "S", "T" when it is stopped ...; "" for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rsplit(")", 1)[1].split()[0]


def handles(child, number):
    """The process has got so far that it ends in its own way at a signal:
    before, the kernel ends it."""
    try:
        status = Path(f"/proc/{child.pid}/status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def interrupt(child, number=signal.SIGINT):
    """Sends a signal to a process that handles it."""
    until(lambda: handles(child, number), "it handles the signal", child)
    child.send_signal(number)


HELD = []  # sockets


def held_port():
    """A port for a server that chooses none itself. The kernel chose it and gives
    it to nobody else while this process lives: it is bound, and as nothing
    listens, a server may bind it as well (all of them set SO_REUSEADDR)."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    HELD.append(held)
    return held.getsockname()[1]


def await_port(port, what, child=None):
    """Returns once something listens there."""
    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
    until(listens, f"{what} listens", child)


# ------------------------------------------------------------- running ckpt
class Result:
    """How a command ended: exit status, output, cost."""

    def __init__(self, argv, code, out, err, seconds, rss, cpu=0.0):
        self.argv, self.code, self.out, self.err = argv, code, out, err
        self.seconds = seconds  # by the clock: no less, for what waits
        self.cpu = cpu  # seconds of processor, whatever else runs
        self.rss = rss  # peak, in bytes

    @property
    def line(self):
        return "ckpt " + " ".join(map(str, self.argv[1:]))

    def __str__(self):
        said = (self.err or self.out).strip()
        return f"$ {self.line}\n[exit {self.code}] {said[:2000]}"

    def want(self, code):
        if self.code != code:
            raise Failure(f"exit status {self.code}, expected {code}\n{self}")
        return self

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failure(f"stdout is not JSON ({error})\n{self}") from error


MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "--quiet")
# What uses the processes of a job.
OF_RANKS = ("convert", "reshard", "unshard", "merge", "verify", "diff")


class Ckpt:
    """The binary under test. With `ranks`, commands that can be are jobs of that
    many processes."""

    ranks = 0

    def __init__(self, path):
        self.path = str(Path(path).resolve())
        with open(self.path, "rb") as f:
            self.sanitized = b"__asan_init" in f.read()
        self.results = []  # (seconds, bytes, command) of all runs

    def run(self, *args, timeout=HANG, cwd=None, env=None, user=None):
        argv = [self.path, *map(str, args)]
        if self.ranks and args[0] in OF_RANKS:
            argv = [*MPIRUN, "-n", str(self.ranks), *argv]
        environment = dict(os.environ, NO_COLOR="1", **(env or {}))
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.monotonic()
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd=cwd, env=environment, user=user)
            late = threading.Timer(timeout, child.kill)
            late.start()
            _, status, usage = os.wait4(child.pid, 0)
            late.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - start
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "backslashreplace"))
        code = child.returncode
        if code == -9 and seconds >= timeout:
            raise Failure(f"no end after {timeout} s: {' '.join(argv)}")
        result = Result(argv, code, *texts, seconds, usage.ru_maxrss * 1024,
                        usage.ru_utime + usage.ru_stime)
        self.results.append((seconds, result.rss, result.line))
        return result

    def ok(self, *args, **options):
        return self.run(*args, **options).want(0)

    def inspect(self, path, *args, **options):
        return self.ok("inspect", path, "--json", *args, **options).json()


# ------------------------------------------------------ tensors and readers
class Tensor:
    """dtype as ckpt spells it ("bf16"), shape, row-major content."""

    __slots__ = ("dtype", "shape", "data")

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), data

    def __eq__(self, other):
        return (self.dtype, self.shape, self.data) == (
            other.dtype, other.shape, other.data)

    def __repr__(self):
        return f"{self.dtype}{list(self.shape)}"


def read_header(path):
    """(header, where the data begins) of a safetensors file."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(size).decode()), 8 + size


def read_safetensors(path):
    """name -> Tensor, in the order of the data; "__metadata__" left out."""
    header, base = read_header(path)
    header.pop("__metadata__", None)
    with open(path, "rb") as f:
        f.seek(base)
        data = f.read()
    rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
    return {
        name: Tensor(row["dtype"].lower(), row["shape"],
                     data[slice(*row["data_offsets"])])
        for name, row in rows
    }


TORCH_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2",
    "float8_e4m3fnuz": "f8_e4m3fnuz", "float8_e5m2fnuz": "f8_e5m2fnuz",
    "float8_e8m0fnu": "f8_e8m0", "float4_e2m1fn_x2": "f4x2",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
    "bool": "bool", "complex128": "c128", "complex64": "c64",
    "complex32": "c32", "quint8": "qu8", "qint8": "qi8",
}


def from_torch(tensor):
    """The Tensor for a torch tensor."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    dtype = TORCH_NAMES[str(tensor.dtype).split(".")[-1]]
    shape = tuple(tensor.shape)
    if tensor.numel() == 0:
        return Tensor(dtype, shape, b"")
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.reshape(-1).view(torch.uint8)
    return Tensor(dtype, shape, flat.numpy().tobytes())


def parts_of(tensor):
    """The plain tensors that a special one consists of."""
    import torch

    if tensor.device.type == "meta":
        return []
    if tensor.is_nested:
        return [(("buffer",), tensor.values())]
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return [(("indices",), tensor.indices()),
                (("values",), tensor.values())]
    if tensor.layout == torch.sparse_csr:
        return [((n,), getattr(tensor, n)())
                for n in ("crow_indices", "col_indices", "values")]
    return [((), tensor)]


def torch_tensors(value, path=(), found=None, above=()):
    """dotted path -> Tensor for each tensor in what torch.load returned."""
    import torch

    found = {} if found is None else found
    if id(value) in above:
        return found  # a cycle
    above = (*above, id(value))
    if isinstance(value, torch.Tensor):
        for name, tensor in parts_of(value):
            found[".".join((*path, *name))] = from_torch(tensor)
    elif isinstance(value, (Stub, torch.nn.Module)):
        torch_tensors(value.__dict__, path, found, above)
    elif isinstance(value, dict):
        for key, child in value.items():
            torch_tensors(child, (*path, str(key)), found, above)
    elif isinstance(value, (list, tuple)) and not isinstance(
            value, torch.Size):
        for index, child in enumerate(value):
            torch_tensors(child, (*path, str(index)), found, above)
    return found


class Stub:
    """Stands in for any class that is not installed here."""

    def __init__(self, *args, **kwargs):
        self.items = []

    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __setstate__(self, state):
        self.state = state

    def __setitem__(self, key, value):
        pass

    def append(self, item):
        pass

    extend = append


def load_any(path):
    """torch.load of a file whose classes may be unknown."""
    import pickle
    import types

    import torch

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                return type(name, (Stub,), {})

    module = types.SimpleNamespace(
        Unpickler=Unpickler, load=pickle.load, __name__="stubbed")
    return torch.load(path, map_location="cpu", weights_only=False,
                      pickle_module=module)


def load_pt(path, weights_only=True, mmap=False):
    import torch

    return torch.load(path, map_location="cpu", weights_only=weights_only,
                      mmap=mmap)


def compare(got, want, what, ignore_extra=()):
    """Checks that two dicts of Tensors are the same, bit for bit."""
    missing = [n for n in want if n not in got]
    extra = [n for n in got if n not in want and n not in ignore_extra]
    problems = []
    if missing:
        problems.append(f"missing {short(sorted(missing))}")
    if extra:
        problems.append(f"not expected {short(sorted(extra))}")
    for name in want:
        if name not in got or got[name] == want[name]:
            continue
        if repr(got[name]) != repr(want[name]):
            problems.append(f"{name}: {got[name]}, expected {want[name]}")
        else:
            at = next(i for i, (a, b) in enumerate(
                zip(got[name].data, want[name].data)) if a != b)
            problems.append(f"{name}: differs from byte {at}")
    if problems:
        raise Failure(f"{what}: " + "\n  ".join(problems[:12]))


# ------------------------------------------------------------------- digest
def digest(data):
    """The topology-independent content hash, from its definition."""
    import numpy as np

    data = data + bytes(-len(data) % 4)
    words = np.frombuffer(data, "<u4").astype(np.uint64)
    blocks = -(-len(words) // 1024)
    words = np.concatenate(
        [words, np.zeros(blocks * 1024 - len(words), np.uint64)])
    words = words.reshape(blocks, 1024)

    def mix(x):
        z = x + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    text = ""
    with np.errstate(over="ignore"):
        for a in range(2):
            i = np.arange(1024, dtype=np.uint64)
            t = (mix(np.uint64(1024 * (a + 1)) + i) >> np.uint64(32)) | (
                np.uint64(1))
            b = np.arange(blocks, dtype=np.uint64)
            m = mix(np.uint64((a + 1) << 32) + b) | np.uint64(1)
            inner = (words * t).sum(axis=1, dtype=np.uint64)
            text += f"{int((inner * m).sum(dtype=np.uint64)):016x}"
    return text


# ------------------------------------------------------------------ harness
class Suite:
    """Named cases, run one after the other; a failure doesn't stop the rest."""

    def __init__(self, about):
        self.about = about
        self.cases = []
        self.always = ()  # names of cases that --one-in does not leave out
        self.full = False

    def add(self, name, function, *args):
        self.cases.append((name, function, args))

    def choose(self, options):
        """The cases that the options ask for. The cases of one function are a
        class: one of each is run, however few are drawn."""
        named = [case for case in self.cases
                 if all(text in case[0] for text in options.k)]
        lots = {name: random.Random(name).randrange(options.one_in)
                for name, _, _ in named}
        chosen = {name for name in lots
                  if lots[name] == 0 or name in self.always}
        classes = {}
        for name, function, _ in named:
            kind = getattr(function, "__qualname__", repr(function))
            classes.setdefault(kind, []).append(name)
        for names in classes.values():
            if not chosen.intersection(names):
                chosen.add(min(names, key=lots.get))
        return [case for case in named if case[0] in chosen]

    def main(self, prepare):
        """prepare(suite, ckpt) adds the cases. Exits with 0 or 1."""
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("--ckpt", default="build/bin/ckpt",
                            help="the binary under test")
        parser.add_argument("-k", metavar="TEXT", action="append", default=[],
                            help="only cases whose name contains TEXT")
        parser.add_argument("--one-in", metavar="N", type=int, default=1,
                            help="only some of the cases, always the same, and "
                            "one at least of each function")
        parser.add_argument("-v", action="store_true", help="name each case")
        parser.add_argument("--full", action="store_true",
                            help="what takes too long for every day, too")
        parser.add_argument("--jobs", metavar="N", type=int, default=1,
                            help="cases side by side: for those that wait")
        parser.add_argument("--ranks", metavar="N", type=int, default=0,
                            help="commands of N processes, under mpirun")
        parser.add_argument("--shuffle", metavar="SEED",
                            help="another order of the cases for each seed")
        options = parser.parse_args()
        if not Path(options.ckpt).exists():
            print(f"no binary at {options.ckpt}: run scripts/build.sh")
            sys.exit(1)
        self.full = options.full
        if options.ranks and not shutil.which("mpirun"):
            print("skipped: there is no mpirun")
            sys.exit(77)
        ckpt = Ckpt(options.ckpt)
        ckpt.ranks = options.ranks
        prepare(self, ckpt)
        chosen = self.choose(options)
        if options.shuffle is not None:
            random.Random(options.shuffle).shuffle(chosen)
        failed = skipped = 0
        costs = []
        with tempfile.TemporaryDirectory(prefix="ckpt_test_") as temp:
            def one(index):
                name, function, args = chosen[index]
                folder = Path(temp) / str(index)
                folder.mkdir()
                if options.v:
                    print(name, flush=True)
                begun = time.monotonic()
                try:
                    return name, run_case(function, folder, args), None
                except Skip as skip:
                    return name, None, skip
                finally:
                    costs.append((time.monotonic() - begun, name))

            with ThreadPoolExecutor(options.jobs) as pool:
                for name, message, skip in pool.map(one, range(len(chosen))):
                    if skip is not None:
                        skipped += 1
                        print(f"skipped {name}: {skip}", flush=True)
                    elif message is not None:
                        failed += 1
                        print(f"FAIL {name}\n  "
                              + message.replace("\n", "\n  "), flush=True)
        if ckpt.results:
            seconds, _, line = max(ckpt.results)
            print(f"{len(ckpt.results)} runs of ckpt; the slowest took "
                  f"{seconds:.2f} s: {line[:150]}")
        for seconds, name in sorted(costs)[-3:]:
            print(f"{seconds:6.1f} s: {name}")
        passed = len(chosen) - failed - skipped
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        sys.exit(1 if failed or not chosen else 0)


def run_case(function, folder, args):
    """None, or why the case failed."""
    try:
        function(folder, *args)
    except Skip:
        raise
    except Failure as failure:
        return str(failure)
    except Exception:  # a bug in a test is a failure of that case only
        return traceback.format_exc(limit=-4)
    return None
