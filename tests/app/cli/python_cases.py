# SPDX-License-Identifier: Apache-2.0
"""Handles, threads and commands at their edges; cases of python_test.py."""

import copy
import gc
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import ckpt
import numpy as np
import torch

from object_server import Objects
from python_values import refused
from remote_servers import Server
from support import DATA, HANG, check, check_equal

LLAMA = DATA / "hf/llama/ckpt"
USAGE = ckpt.errors.UsageError


@contextmanager
def working_in(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def checkpoint_of(folder, **tensors):
    ckpt.save(tensors or {"w": np.arange(6, dtype="f4").reshape(2, 3)},
              folder / "model.safetensors")
    return folder


# ------------------------------------------------------- handles and threads
def closing(folder):
    """close() amid reads: reads in progress return whole, later ones raise."""
    want = np.arange(1 << 16, dtype="i4")
    source = checkpoint_of(folder, w=want)
    for at in range(20):
        opened, kept, wrong = ckpt.open(source), [], []
        begun = threading.Barrier(4)

        def read():
            begun.wait()
            try:
                while True:
                    kept.append(opened["w"].read())
                    kept.append(dict(opened.shards(tp=1))["w"])
            except USAGE:
                pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        time.sleep(at * 0.0005)  # noqa: TID251  any moment will do
        opened.close()
        for thread in threads:
            thread.join()
        check(not wrong, f"{wrong}")
        check(all((part.numpy() == want).all() for part in kept), "values")
    for call in (opened["w"].read, lambda: opened["w"][0], opened.shards,
                 lambda: np.asarray(opened["w"]), lambda: copy.copy(opened),
                 lambda: pickle.dumps(opened)):
        refused(None, USAGE, call)
    opened.close()


def walks(folder):
    """A walk over shards whose checkpoint is closed and forgotten."""
    source = ckpt.open(checkpoint_of(folder, a=np.ones(2), b=np.ones(2)))
    walk = source.shards()
    name, part = next(walk)
    source.close()
    refused(None, USAGE, next, walk)
    check((np.asarray(part) == 1).all(), "what it gave before")
    source = ckpt.open(folder)
    walk = source.shards()
    next(walk)
    del source, walk
    gc.collect()
    with ckpt.open(folder) as source:
        for numbers in ({"tp": 2**32 + 1}, {"tp": 2**32}, {"pp": 0},
                        {"dp": -1}, {"rank": -1}, {"ep_rank": 2**32}):
            refused(None, USAGE, source.shards, **numbers)
        for numbers in ({"tp": 1.0}, {"tp": "1"}, {"tp": None},
                        {"rank": True}):
            refused(None, TypeError, source.shards, **numbers)


def views(folder):
    """Each view of an array outlives everything it came from."""
    source = ckpt.open(checkpoint_of(folder))
    part = source["w"].read()
    kept = [part.numpy(), np.asarray(part), np.from_dlpack(part), part.torch(),
            torch.from_dlpack(part), np.frombuffer(part.bytes, "f4"),
            np.asarray(source["w"])]
    source.close()
    del source, part
    gc.collect()
    junk = [np.full(6, 7.0, "f4") for _ in range(100)]
    for at, view in enumerate(kept):
        check_equal(np.asarray(view).ravel().tolist(), list(range(6)),
                    f"view {at}")
    del junk


# How a DataLoader's worker starts: with nothing but what was pickled.
WORKER = """
import pickle, sys
source, tensor = pickle.load(sys.stdin.buffer)
print(list(source), [bytes(one.read().bytes).hex() for one in (
    source["w"], tensor)])
"""


def python(script, **options):
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(
            os.environ, PYTHONPATH=str(Path(ckpt.__file__).parents[1])),
        **options)


def copies(folder):
    """A copy of a checkpoint is independent; arrays, saves and walks can't be
    copied."""
    with working_in(folder):
        source = ckpt.open(checkpoint_of(Path(".")), format="safetensors")
    makers = (copy.copy, copy.deepcopy,
              lambda value: pickle.loads(pickle.dumps(value)))
    for make in makers:
        other = make(source)
        check(other._handle is not source._handle, "a shared handle")
        other.close()
        check_equal(np.asarray(source["w"]).shape, (2, 3), "the first one")
        del other
        gc.collect()
        tensor = make(source["w"])
        check_equal(np.asarray(tensor).tolist(), [[0, 1, 2], [3, 4, 5]],
                    "a tensor")
        pending = ckpt.begin_save({"a": np.ones(1)}, folder / "pending.pt")
        for value in (source["w"].read(), pending, source.shards(),
                      source._handle):
            refused(None, TypeError, make, value)
        pending.drop()
    check_equal(len({source, source["w"], source["w"]}), 2, "hashes")
    check(source["w"] == source["w"] and source == source and
          source != ckpt.open(folder), "equal is the same")
    out, err = python(WORKER, cwd="/").communicate(
        pickle.dumps((source, source["w"])))
    want = source["w"].read().bytes.hex()
    check_equal(out.decode().strip(), f"{['w']} {[want, want]}", err.decode())


def saves_once(folder):
    """Threads that finish and drop one save: one of them succeeds."""
    for at in range(5):
        pending = ckpt.begin_save({"a": np.ones(9)}, folder / f"{at}.pt")
        ended = []

        def finish():
            try:
                pending.finish()
                ended.append("finished")
            except USAGE:
                pass

        threads = [threading.Thread(target=call) for call in (
            finish, finish, *[pending.written] * 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check_equal(ended, ["finished"], "who finished")
        check(pending.written(), "written")
        check(torch.load(folder / f"{at}.pt"), "the file")


def indices(folder):
    """What is not an index is a TypeError, as with a list."""
    with ckpt.open(checkpoint_of(folder)) as source:
        tensor = source["w"]
        for key in ("a", 1.5, True, ["a"], {}, (0, "a"), [[0], [1]],
                    slice("a", "b"), torch.ones(2), 1j, [0, True]):
            refused(None, TypeError, tensor.__getitem__, key)
        for key in (2, -3, (0, 0, 0), (..., ...), [2], [True], (0, [3])):
            refused(None, IndexError, tensor.__getitem__, key)
        for key in (np.int64(1), np.array(1), torch.tensor(1), (..., 0), ...):
            check((np.asarray(tensor[key]) == np.asarray(tensor)[key]).all(),
                  f"{key!r}")


def arrays(folder):
    """numpy.asarray shares, converts and copies as numpy 2 asks for."""
    tensors = {"f": np.arange(6, dtype="f4").reshape(2, 3), "s": np.array(3),
               "e": np.zeros((0, 2)), "b": np.array([True, False]),
               "bf": torch.ones(2).bfloat16()}
    with ckpt.open(checkpoint_of(folder, **tensors)) as source:
        for name in "fseb":
            part, want = source[name].read(), tensors[name]
            for one in (part, source[name]):
                got = np.asarray(one)
                check_equal((got.dtype, got.tolist()),
                            (want.dtype, want.tolist()), name)
                check_equal(np.asarray(one, dtype="c16").tolist(),
                            want.astype("c16").tolist(), name)
            check(not part.nbytes or
                  np.shares_memory(np.asarray(part), part.numpy()) and
                  not np.shares_memory(np.array(part), part.numpy()), "memory")
            if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
                np.asarray(part, copy=False)
                refused(None, ValueError, np.asarray, part, dtype="c16",
                        copy=False)
                refused(None, ValueError, np.asarray, source[name], copy=False)
        check_equal(source["bf"].read().bits().tolist(), [0x3f80] * 2, "bits")


# ------------------------------------------------------------------ commands
@contextmanager
def as_binary(folder, script):
    """Commands run this shell script."""
    path = folder / "stand-in"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    before = os.environ["CKPT_BINARY"]
    os.environ["CKPT_BINARY"] = str(path)
    try:
        yield
    finally:
        os.environ["CKPT_BINARY"] = before


EVENT = json.dumps({"schema": "ckpt/progress/1", "bytes_done": 1,
                    "bytes_total": 2})
# Prints more than a pipe holds. Its file shows that it ended as told.
LOUD = f"""trap 'touch "$0.stopped"; exit 130' TERM
echo '{EVENT}' >&2
head -c 300000 /dev/zero | tr '\\0' '\\n' >&2
while :; do sleep 0.05; done
"""


# A shell's background job ignores Ctrl-C unless it asks for it.
INTERRUPTED = """
import ckpt, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
ckpt.convert("a", "b", progress=lambda *_: print("told", flush=True))
"""


def callbacks(folder):
    """An exception from a callback ends the command and propagates, and so does
    Ctrl-C. Neither leaves a process behind."""
    for kind in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        def raises(done, total, kind=kind):
            raise kind(f"{done} of {total}")

        with as_binary(folder, LOUD):
            error = refused(None, kind, ckpt.convert, "a", "b",
                            progress=raises)
        check_equal(error.args, ("1 of 2",), "which error")
        (folder / "stand-in.stopped").unlink()
    refused(None, ZeroDivisionError, ckpt.convert, LLAMA, folder / "out",
            to="dcp", progress=lambda *_: 1 // 0)

    with as_binary(folder, LOUD):
        child = python(INTERRUPTED)
        check_equal(child.stdout.readline(), b"told\n", "progress")
        child.send_signal(signal.SIGINT)
        err = child.communicate(timeout=HANG)[1].decode()
    check("KeyboardInterrupt" in err, err)
    check((folder / "stand-in.stopped").exists(), "it goes on")


def later(folder):
    """Later look-ups use the path and format of the open."""
    place = folder / "here"
    place.mkdir()
    for name in ("model.safetensors", "config.json"):
        (place / name).write_bytes((LLAMA / name).read_bytes())
    for path, options in (("here", {}), ("here", {"format": "safetensors"}),
                          ("here/model.safetensors", {}),
                          ("here", {"family": "llama"})):
        with working_in(folder):
            source = ckpt.open(path, **options)
        with working_in("/"):
            check_equal(source.config["model_type"], "llama", "config")
            check(source.facts, "no facts")
            source.objects  # noqa: B018
            name = next(iter(source))
            check_equal(source[name].read().nbytes, source[name].nbytes, name)
    config = place / "config.json"
    for text in (b"{", b"\xff\xfe", b"[]", b"7", b"", b"[" * 100000):
        config.write_bytes(text)
        error = refused(None, ckpt.errors.DamagedError,
                        lambda: source.config)
        check_equal(error.path, str(config), "which file")
    config.unlink()
    check_equal(source.config, None, "none")
    config.mkdir()
    refused(None, ckpt.errors.DamagedError, lambda: source.config)


def dashes(folder):
    """Paths and values that begin with "-" are not options."""
    with working_in(folder):
        checkpoint_of(Path("."))
        os.rename("model.safetensors", "-x.safetensors")
        for kind in (str, Path, os.fsencode):
            path = kind("-x.safetensors")
            check(ckpt.verify(path) and ckpt.verify(path, path) and
                  ckpt.scan(path) and not ckpt.diff(path, path), "reads")
            check_equal(list(ckpt.digest(path)), ["w"], "digest")
            check(ckpt.inspect(path)["tensors"], "inspect")
            check(ckpt.open(path).facts is not False, "facts")
        check(ckpt.run("inspect", Path("-x.safetensors")), "run")
        for at, call in enumerate((ckpt.convert, ckpt.reshard, ckpt.unshard)):
            options = ({"to": "torch"}, {"tp": 1}, {})[at]
            done = call("-x.safetensors", f"-out{at}.safetensors" if at else
                        "-out", **options)
            check_equal((done.path, Path(done.path).exists()),
                        ("-out" + (f"{at}.safetensors" if at else ""), True),
                        "written")
        Path("-rules.json").write_text('{"w": "--to"}')
        done = ckpt.convert("-x.safetensors", "named.safetensors",
                            rename="-rules.json")
        check_equal(list(ckpt.open("named.safetensors")), ["--to"], "a value")


def verdicts(folder):
    """Damage says where; a target that was left alone says so."""
    bad = folder / "bad.safetensors"
    bad.write_bytes((LLAMA / "model.safetensors").read_bytes()[:-100])
    for words in ((bad,), (LLAMA, bad), (bad, LLAMA)):
        found = ckpt.verify(*words)
        check(not found and found.problems, f"{found}")
        check_equal({(one["kind"], one["severity"], one["file"], one["tensor"])
                     for one in found.problems},
                    {("damaged", "damage", str(bad), "")}, f"{words}")
        check(all("64028" in one["message"] and str(bad) not in one["message"]
                  for one in found.problems), f"{found.problems}")
    for skipped in (False, True):
        done = ckpt.convert(LLAMA, folder / "out", to="dcp", if_exists="skip")
        check_equal((done.skipped, bool(done.written)), (skipped, not skipped),
                    "skipped")


FORKS = """
import os, sys, ckpt
target = sys.argv[1]
source = ckpt.open(target + "/source.safetensors")
array = source["w"].read()
want = bytes(array.bytes)
ckpt.save_async({"a": array}, target + "/first.pt").result()

def child(task):
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        task()
        sys.exit(0)  # with destructors, as os._exit has none
    assert os.waitpid(process, 0)[1] == 0, task

def reads():
    assert bytes(source["w"].read().bytes) == want
    assert sum(part.nbytes for _, part in source.shards()) == len(want)
    source.close()

def saves():
    ckpt.save_async({"a": array}, target + "/child.pt").result()

def pending_of_parent():
    for call in (pending.finish, pending.written):
        try:
            call()
        except ckpt.errors.UsageError:
            continue
        raise AssertionError(call)
    pending.drop()

def nothing():
    pass

pending = ckpt.begin_save({"a": array}, target + "/parent.pt")
for task in (reads, saves, pending_of_parent, nothing):
    child(task)
pending.finish()
for name in ("first", "child", "parent"):
    assert bytes(ckpt.open(f"{target}/{name}.pt")["a"].read().bytes) == want
"""


def forks(folder):
    """A fork's child reads and saves as before; how it ends is no matter to the
    parent's save."""
    os.rename(checkpoint_of(folder) / "model.safetensors",
              folder / "source.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(folder)], capture_output=True,
        text=True, timeout=HANG, env=dict(
            os.environ, PYTHONPATH=str(Path(ckpt.__file__).parents[1])))
    check_equal(done.returncode, 0, done.stderr)


SPELLED = """
import os, sys, ckpt
folder = sys.argv[1]
assert ckpt.open(folder).path == folder
assert ckpt.verify(folder) and os.path.exists(
    ckpt.convert(folder, folder + ".pt").path)
for call in (ckpt.open, ckpt.verify):
    try:
        call(folder + "/none")
    except ckpt.Error as error:
        assert error.path == folder + "/none", ascii(error.path)
        continue
    raise AssertionError(call)
"""


def spelled(folder):
    """Paths are spelled as this process does, whatever its locale."""
    for name in ("d\xfc".encode(), b"d\xfc", b"a\nb \xff"):
        place = os.path.join(os.fsencode(folder), name)
        os.mkdir(place)
        ckpt.save({"w": np.ones(1)}, place + b"/model.safetensors")
        for env in ({}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0",
                         "PYTHONUTF8": "0"}):
            done = subprocess.run(
                [sys.executable, "-c", SPELLED, place], capture_output=True,
                text=True, env={**os.environ, **env, "PYTHONPATH": str(
                    Path(ckpt.__file__).parents[1])})
            check_equal(done.returncode, 0, done.stderr)
            os.unlink(place + b".pt")


# ---------------------------------------------------------------------- places
class Signed(Server):
    """Serves who has a user, a password and a signature."""

    def answer(self, handler, request, fault):
        if "sig=hunter2" not in request.path or \
                not request.headers.get("authorization", "").startswith("Basic"):
            return handler.reply(403, b"")
        super().answer(handler, request, fault)


def places(folder):
    """Paths and URLs mean what they do on the command line."""
    tensors = {"w": np.arange(6, dtype="f4")}
    ckpt.save(tensors, f"file://{folder}/a%20b.safetensors")
    check_equal((folder / "a b.safetensors").is_file(), True, "file://")
    for url in (f"file://{folder}/a%20b.safetensors",
                f"file://localhost{folder}/a b.safetensors"):
        with ckpt.open(url) as c, pickle.loads(pickle.dumps(c)) as again:
            check_equal(c["w"][2:].numpy().tolist(), [2, 3, 4, 5], url)
            check_equal(again.path, str(folder / "a b.safetensors"), url)
    for name in ("m.pt", "m.pth", "m.bin", "m.ckpt"):
        ckpt.save(tensors, folder / name)
        check_equal(torch.load(folder / name)["w"].tolist(), [*range(6)], name)
    with working_in(folder):
        before = sorted(os.listdir())
        for place in ("", "-", "/dev/stdout", "m.onnx", "m.h5", "m.SAFETENSORS",
                      "hf://a/b", "https://h/x", "az://c/x", "S3://b/x",
                      "ftp://h/x", "file://other/x"):
            for save in (ckpt.save, ckpt.begin_save):
                refused(None, USAGE, save, tensors, place)
        for place in ("", "S3://b/x", "ftp://h/x", "file://other/x"):
            refused(None, USAGE, ckpt.open, place)
        check_equal(sorted(os.listdir()), before, "files")
        for keys in ({"w"}, iter(["w"]), dict.fromkeys(["w"]).keys()):
            done = ckpt.convert("m.pt", "k.safetensors", keys=keys,
                                overwrite=True)
            check_equal(done.tensors, 1, "keys")
    with Signed(folder) as server:
        url = server.url.replace("//", "//me:hunter2@") + "/m.pt?sig=hunter2"
        with ckpt.open(url) as c:
            check_equal(c["w"].read().numpy().tolist(), [*range(6)],
                        "signed")
            check("hunter2" not in c.path + repr(c), c.path)
        try:
            ckpt.open(url.replace("m.pt", "none.pt"))
        except ckpt.Error as error:
            check("hunter2" not in str(error) + str(error.path), "a secret")


SENT = """
import sys
import ckpt, numpy as np
tensors = {"w": np.arange(3 << 20, dtype="f4"), "b": np.ones(3, "f4")}
ckpt.save(tensors, "s3://b/run/a.safetensors")
with ckpt.begin_save(tensors, "s3://b/run/b", "dcp") as pending:
    tensors["w"][:] = 0  # it was copied
tensors["w"][:] = np.arange(3 << 20)
ckpt.save_async(tensors, "s3://b/run/c.pt").result()
ckpt.begin_save(tensors, "s3://b/run/d", "dcp").drop()
try:
    ckpt.begin_save(tensors, "s3://b/run/c.pt")
except ckpt.errors.UnfaithfulError as error:
    print(error.message)
for name in "a.safetensors", "b", "c.pt":
    with ckpt.open("s3://b/run/" + name) as c:
        assert c["w"].read().numpy().tolist() == tensors["w"].tolist(), name
"""


def sent(folder):
    """All ways to save go to an object store, too, and leave nothing here."""
    spool = folder / "spool"
    spool.mkdir()
    with Objects() as server:
        done = subprocess.run(
            [sys.executable, "-c", SENT], capture_output=True, text=True,
            env={**os.environ, **server.env, "CKPT_SPOOL": str(spool),
                 "CKPT_NET_PART_MIB": "5", "PYTHONPATH": str(
                     Path(ckpt.__file__).parents[1])})
        check_equal(done.returncode, 0, done.stderr)
        check_equal(done.stdout, "already exists\n", "a second one")
        keys = {k.split("/")[1].removesuffix(".ckpt-manifest.json")
                for k in server.objects}
        check_equal(keys, {"a.safetensors", "b", "c.pt"}, "objects")
        (folder / "c.pt").write_bytes(server.objects["run/c.pt"][0])
        check_equal(server.uploads, {}, "uploads that were left")
    check_equal(torch.load(folder / "c.pt")["w"].tolist(),
                [*range(3 << 20)], "torch")
    check_equal([p for p in spool.rglob("*") if p.is_file()], [], "spool")


CASES = (closing, walks, views, copies, saves_once, indices, arrays, callbacks,
         later, dashes, verdicts, forks, spelled, places, sent)
