#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Targets on other machines: s3:// and gs:// on a real server, with a proxy
between that does harm. What is there is read back by curl."""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import remote_test as remote
from json_test import faults, schema_of
from remote_servers import Hub, Server
from remote_test import KEY, S3, SECRET, layers, write_model
from support import (
    DATA, HANG, Failure, Skip, Suite, check, check_equal, interrupt, until)
from upload_proxy import Proxy

SERVER = None  # one for all cases
CASES = 0  # each has a folder in one bucket: buckets take up server space
PART = 5 << 20


def run(*args, env):
    return remote.run(*args, env=env)


class Place:
    """A bucket behind a proxy."""

    def __init__(self, folder):
        global CASES
        CASES += 1
        self.base = f"case{CASES}/"
        self.proxy = Proxy(SERVER.url)
        spool = folder / "spool"
        spool.mkdir()
        self.spool = spool
        self.env = {**remote.CLEAN, **SERVER.env,
                    "AWS_ENDPOINT_URL": self.proxy.url,
                    "CKPT_SPOOL": str(spool), "CKPT_NET_PART_MIB": "5",
                    "CKPT_NET_RETRIES": "3", "CKPT_NET_STALL": "3600"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proxy.__exit__()

    def curl(self, *args):
        return subprocess.run(
            ["curl", "-sSf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
             f"{KEY}:{SECRET}", *args], capture_output=True)

    def keys(self, prefix=""):
        done = self.curl(f"{SERVER.url}/bucket?list-type=2&prefix="
                         + urllib.parse.quote(self.base + prefix, safe=""))
        text = done.stdout.decode()
        return sorted(k.removeprefix(self.base)
                      for k in re.findall("<Key>(.*?)</Key>", text)
                      if not k.endswith("/"))

    def get(self, key):
        done = self.curl(f"{SERVER.url}/bucket/{self.base}{key}")
        check(done.returncode == 0, f"{key}: {done.stderr}")
        return done.stdout

    def uploads(self):
        done = self.curl(f"{SERVER.url}/bucket?uploads=")
        return [u for u in re.findall("<Upload>(.*?)</Upload>",
                                      done.stdout.decode(), re.DOTALL)
                if f"<Key>{self.base}" in u]

    def url(self, key):
        return f"s3://bucket/{self.base}{key}"

    def left(self):
        return [p for p in self.spool.rglob("*") if p.is_file()]


def same_as(place, prefix, folder):
    """What is below a prefix equals a directory, byte for byte. The manifest,
    which names its source, only has to be there."""
    want = {str(p.relative_to(folder)): p for p in folder.rglob("*")
            if p.is_file()}
    got = [k.removeprefix(prefix + "/") for k in place.keys(prefix + "/")]
    check_equal(got, sorted(want), "objects")
    for name, path in want.items():
        if not name.endswith(".ckpt-manifest.json"):
            check(place.get(f"{prefix}/{name}") == path.read_bytes(),
                  f"{name} differs")


CONVERSIONS = [("safetensors/hf_sharded", "dcp"),
               ("dcp/fsdp2_w2_adamw", "safetensors"),
               ("torch_pt/sharded_bin", "torch"),
               ("megatron_torch_dist/gpt_tp2_pp2_v0161",
                "megatron_torch_dist")]


def test_convert(folder, case, form):
    """A target is the same as on this machine, and verifies there."""
    with Place(folder) as place:
        source = DATA / case / "ckpt"
        rest = ("--to", form, "--allow-replica-mismatch", "-q")
        run("convert", source, folder / "new", *rest, env=place.env).want(0)
        run("convert", source, place.url("runs/new"), *rest,
            env=place.env).want(0)
        same_as(place, "runs/new", folder / "new")
        run("verify", place.url("runs/new"), env=place.env).want(0)
        run("verify", source, place.url("runs/new"), env=place.env).want(0)
        run("convert", place.url("runs/new"), place.url("runs/again"), *rest,
            env=place.env).want(0)
        run("verify", place.url("runs/new"), place.url("runs/again"),
            env=place.env).want(0)
        check(not place.uploads() and not place.left(), "leavings")
        check("hunter2" not in str(place.proxy.seen), "a secret in a URL")


def big(folder, count=3, size=4 << 20):
    path = folder / "src" / "model.safetensors"
    write_model(path, layers(count, size))
    return path


def send(place, source, key="new", *rest, **extra):
    return run("convert", source, place.url(key), "--to", "safetensors",
               "-q", *rest, env={**place.env, **extra})


def test_parts(folder):
    """Large files go in parts, bytes are sent once, and nothing shows
    before."""
    with Place(folder) as place:
        source = big(folder)
        early = []

        def look(what, number, path):
            if what == "part":
                early.extend(place.keys("new/"))
        place.proxy.fault = look
        send(place, source).want(0)
        check(not early, f"seen before all parts stood: {early}")
        run("convert", source, folder / "new", "--to", "safetensors", "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "new")
        size = sum(p.stat().st_size for p in (folder / "new").iterdir())
        check(place.proxy.count["part"] == -(-(source.stat().st_size) // PART),
              place.proxy.count)
        check(place.proxy.sent < size * 1.02, f"{place.proxy.sent} of {size}")
        order = [w for w, _ in place.proxy.seen]
        last = max(i for i, w in enumerate(order) if w == "part")
        check(order.index("complete") > last, "completed before all parts")
        puts = [p for w, p in place.proxy.seen if w == "put"]
        check(puts[-1].endswith(".ckpt-manifest.json"), f"last: {puts}")
        one = run("convert", source, place.url("one.safetensors"), "--to",
                  "safetensors", env=place.env).want(0)
        check(place.get("one.safetensors") ==
              next((folder / "new").glob("*.safetensors")).read_bytes(),
              str(one))


# what goes wrong, with which requests, for how many of them at first
PASSING = {
    "503 in a part": ("part", 2, ("status", 503, "SlowDown")),
    "429 in a part": ("part", 2, ("status", 429, "TooMany")),
    "500 at the begin": ("begin", 1, ("status", 500, "InternalError")),
    "500 at the end": ("complete", 1, ("status", 500, "InternalError")),
    "a part is cut": ("part", 2, ("cut",)),
    "a part's answer is lost": ("part", 2, ("lost",)),
    "a part stalls": ("part", 1, ("stall",)),
    "a part's byte flips": ("part", 1, ("flip",)),
    "an object's byte flips": ("put", 1, ("flip",)),
    "another ETag": ("part", 2, ("etag", '"' + "0" * 32 + '"')),
    "the last answer is lost": ("complete", 1, ("lost",)),
    "an object's answer is lost": ("put", 3, ("lost",)),
}


def stalls(fault):
    """What is to be waited for ends; anything else may take its time, on a
    machine with other work."""
    return {"CKPT_NET_STALL": "3"} if fault[0] == "stall" else {}


def test_passing(folder, name):
    """Passing faults are retried; the result is right."""
    with Place(folder) as place:
        source = big(folder)
        kind, most, fault = PASSING[name]
        place.proxy.fault = lambda what, number, path: (
            fault if what == kind and number <= most else None)
        send(place, source, **stalls(fault)).want(0)
        place.proxy.fault = None
        run("convert", source, folder / "new", "--to", "safetensors", "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "new")
        check(not place.uploads(), "uploads left")


LASTING = {
    "503": ("part", ("status", 503, "SlowDown"), 6, "HTTP 503 SlowDown"),
    "403": ("part", ("status", 403, "AccessDenied"), 6, "access is refused"),
    "404": ("begin", ("status", 404, "NoSuchBucket"), 3, "NoSuchBucket"),
    "expired": ("part", ("status", 400, "ExpiredToken"), 6, "expired"),
    "cut": ("part", ("cut",), 6, "after 4 tries"),
    "stall": ("part", ("stall",), 6, "1 KiB/s"),
    "flip": ("part", ("flip",), 6, "other bytes"),
    "etag": ("part", ("etag", '"' + "0" * 32 + '"'), 6, "other bytes"),
    "complete fails": ("complete", ("body", b"<?xml?><Error><Code>Internal"
                                    b"Error</Code></Error>"), 6,
                       "InternalError"),
    "complete refused": ("complete", ("status", 403, "AccessDenied"), 6,
                         "access is refused"),
}


def test_lasting(folder, name):
    """A lasting fault ends the run with its own message. Nothing of the model
    is published, and --resume continues from the parts already there."""
    with Place(folder) as place:
        source = big(folder)
        kind, fault, code, words = LASTING[name]
        place.proxy.fault = lambda what, number, path: (
            fault if what == kind and (kind != "part" or number > 2) else None)
        done = send(place, source, CKPT_NET_CONNECTIONS="1", **stalls(fault))
        check_equal(done.code, code, done.err)
        check(words in done.err, done.err)
        check("hunter2" not in done.err, "a secret")
        seen = [k for k in place.keys("new/") if ".ckpt-upload" not in k]
        check(not seen, f"published: {seen}")
        place.proxy.fault = None
        if code == 3:
            check(not place.left(), "staging left")
            return
        check("--resume" in done.err, done.err)
        place.proxy.forget()
        send(place, source, "new", "--resume").want(0)
        check(place.proxy.count.get("parts"), "nobody asked for the parts")
        if kind == "complete":
            check("part" not in place.proxy.count, "parts again")
        run("convert", source, folder / "new", "--to", "safetensors", "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "new")
        check(not place.uploads() and not place.left(), "leavings")


def test_abandoned(folder):
    """Without --resume an earlier run's uploads are aborted."""
    with Place(folder) as place:
        source = big(folder)
        place.proxy.fault = lambda what, number, path: (
            ("status", 403, "AccessDenied") if what == "complete" else None)
        check_equal(send(place, source).code, 6, "status")
        check_equal(len(place.uploads()), 1, "uploads kept")
        place.proxy.fault = None
        # other options: --resume refuses, and keeps
        done = send(place, source, "new", "--resume", "--keys", "layers.0.*")
        check(done.code not in (0, 70), str(done))
        check_equal(len(place.uploads()), 1, "uploads after a refusal")
        # a fresh run: the dead one's claim is in the way, and is named
        done = send(place, source)
        check_equal(done.code, 5, done.err)
        check_equal(place.keys("new/"), ["new/.ckpt-upload"], "objects")
        send(place, source, "new", "--resume").want(0)
        check(not place.uploads() and not place.left(), "leavings")


def test_cleared(folder):
    """A fresh run aborts what an earlier one began, and starts over."""
    with Place(folder) as place:
        source = big(folder)
        place.proxy.fault = lambda what, number, path: (
            ("status", 403, "AccessDenied") if what == "part" and number > 1
            else None)
        check_equal(send(place, source, CKPT_NET_CONNECTIONS="1").code, 6,
                    "status")
        check_equal(len(place.uploads()), 1, "uploads kept")
        place.proxy.fault = None
        place.proxy.forget()
        send(place, source).want(0)
        check_equal(place.proxy.count.get("abort"), 1, "aborts")
        check_equal(place.proxy.count.get("part"), 3, "parts")
        check(not place.uploads() and not place.left(), "leavings")


def test_exists(folder):
    """Existing objects stay, except with --overwrite."""
    with Place(folder) as place:
        source = big(folder, 1, 1000)
        send(place, source).want(0)
        before = {k: place.get(k) for k in place.keys("new/")}
        done = send(place, source)
        check_equal(done.code, 5, done.err)
        check("already exists" in done.err, done.err)
        done = send(place, source, "new", "--dry-run")
        check_equal(done.code, 5, done.err)
        check_equal({k: place.get(k) for k in place.keys("new/")}, before,
                    "objects")
        other = folder / "other" / "model.safetensors"
        write_model(other, layers(3, 3000), 7)
        run("convert", other, place.url("new"), "--to", "dcp", "-q",
            "--overwrite", env=place.env).want(0)
        run("convert", other, folder / "want", "--to", "dcp", "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "want")
        # what is not a checkpoint is not removed
        (folder / "x").write_text("x")
        SERVER.put(folder / "x", f"bucket/{place.base}notes/x")
        done = send(place, source, "notes", "--overwrite")
        check_equal(done.code, 5, done.err)
        check_equal(place.keys("notes/"), ["notes/x"], "notes")


def test_raced(folder):
    """What appears there during the run is left alone."""
    with Place(folder) as place:
        source = big(folder)

        def put(what, number, path):
            if what == "part" and number == 1:
                SERVER.put(source, f"bucket/{place.base}new/model.safetensors")
        place.proxy.fault = put
        done = send(place, source)
        check_equal(done.code, 5, done.err)
        check_equal(place.keys("new/"), ["new/model.safetensors"], "objects")
        check(place.get("new/model.safetensors") == source.read_bytes(),
              "it was changed")


def test_claimed(folder):
    """Of two runs that end together, one wins."""
    with Place(folder) as place:
        source = big(folder, 1, 1000)
        first = send(place, source, "probe")
        first.want(0)
        (folder / "claim").write_text("another")

        def put(what, number, path):
            if what == "put" and path.endswith("/.ckpt-upload"):
                SERVER.put(folder / "claim",
                           f"bucket/{place.base}new/.ckpt-upload")
                return ("status", 412, "PreconditionFailed")
        place.proxy.fault = put
        done = send(place, source)
        check_equal(done.code, 6, done.err)
        check("another run" in done.err, done.err)
        check_equal(place.keys("new/"), ["new/.ckpt-upload"], "objects")


def hold_parts(place, count):
    """So many parts are answered, and none after them."""
    place.proxy.fault = lambda what, number, _: (
        ("stall",) if what == "part" and number > count else None)


def test_interrupt(folder):
    """Ctrl-C in the middle of an upload: nothing appears, --resume
    continues."""
    with Place(folder) as place:
        source = big(folder, 9)
        hold_parts(place, 3)
        child = subprocess.Popen(
            [remote.CKPT.path, "convert", str(source), place.url("new"),
             "--to", "safetensors", "-q"], env={
                 **os.environ, **place.env, "CKPT_NET_CONNECTIONS": "1"},
            stderr=subprocess.PIPE, text=True)
        until(lambda: place.proxy.count.get("part", 0) == 4, "a fourth part",
              child)
        interrupt(child)
        err = child.communicate(timeout=HANG)[1]
        check_equal(child.returncode, 130, err)
        check("--resume" in err, err)
        place.proxy.http.settle()
        check(not place.keys("new/"), "objects")
        place.proxy.fault = None
        place.proxy.forget()
        send(place, source, "new", "--resume").want(0)
        all_of = -(-source.stat().st_size // PART)
        check_equal(place.proxy.count["part"], all_of - 3, "parts sent then")
        run("verify", source, place.url("new"), env=place.env).want(0)


def blocks(folder):
    """Bytes of disk that the files below it use."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:  # it went away
            pass
    return total


def begin(place, source, form, key="new", *rest, **extra):
    return subprocess.Popen(
        [remote.CKPT.path, "convert", str(source), place.url(key), "--to", form,
         "-q", "--threads", "2", *rest],
        env={**os.environ, **place.env, **extra}, stderr=subprocess.PIPE,
        text=True)


def test_streamed(folder, form):
    """Parts are sent while others are written, so the disk holds only a few.
    Each is sent once, although checksums in them are known late."""
    with Place(folder) as place:
        source = big(folder, 30)
        place.proxy.delay = 0.05
        child = begin(place, source, form, CKPT_NET_CONNECTIONS="2")
        most = 0
        while child.poll() is None:
            most = max(most, blocks(place.spool))
            time.sleep(0.01)  # noqa: TID251  looks at the disk
        check_equal(child.returncode, 0, child.stderr.read())
        size = source.stat().st_size
        check(most < 0.6 * size, f"{most} of {size} on the disk")
        check(place.proxy.sent < size * 1.02, f"{place.proxy.sent} of {size}")
        sent = [p for w, p in place.proxy.seen if w == "part"]
        check(len(sent) == len(set(sent)), "a part was sent twice")
        order = [w for w, _ in place.proxy.seen]
        check(order.index("complete") > max(
            i for i, w in enumerate(order) if w == "part"), "early")
        run("convert", source, folder / "new", "--to", form, "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "new")
        run("verify", source, place.url("new"), env=place.env).want(0)
        check(not place.uploads() and not place.left(), "leavings")


def test_killed(folder, form, how):
    """What a dead run sent still counts, though its bytes are gone here:
    --resume sends the rest. If the server has lost it, everything is sent
    again."""
    with Place(folder) as place:
        source = big(folder, 20)
        hold_parts(place, 8)
        child = begin(place, source, form, CKPT_NET_CONNECTIONS="2")
        until(lambda: place.proxy.count.get("part", 0) == 10, "two more parts",
              child)
        child.kill()
        child.communicate()
        place.proxy.http.settle()
        check(not place.keys("new/"), "objects")
        place.proxy.fault = None
        place.proxy.forget()
        if how == "lost":
            for upload in place.uploads():
                key = re.search("<Key>(.*?)</Key>", upload)[1]
                number = re.search("<UploadId>(.*?)</UploadId>", upload)[1]
                place.curl("-X", "DELETE",
                           f"{SERVER.url}/bucket/{key}?uploadId={number}")
            check(not place.uploads(), "uploads")
        rest = ["--trust-staging"] if how != "proven" else []
        run("convert", source, place.url("new"), "--to", form, "-q", "--resume",
            *rest, env=place.env).want(0)
        most = -(-source.stat().st_size // PART) + 1
        if how == "lost":
            check(place.proxy.count["part"] >= most - 1, place.proxy.count)
        else:
            check(place.proxy.count["part"] <= most - 8, place.proxy.count)
        run("convert", source, folder / "new", "--to", form, "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "new")
        check(not place.uploads() and not place.left(), "leavings")


def test_rclone(folder):
    """The dialect of `rclone serve s3`: ETags of a listing without quotes, and a
    range under status 200, which counts only if it says which range it is."""
    with Place(folder) as place:
        source = big(folder)
        place.proxy.fault = lambda *_: ("rclone",)
        for again in range(2):
            more = ["--overwrite"] if again else []
            run("convert", source, place.url("new"), "--to", "safetensors",
                "-q", *more, env=place.env).want(0)
            run("verify", source, place.url("new"), env=place.env).want(0)
        run("fetch", place.url("new"), folder / "copy", "-q",
            env=place.env).want(0)
        same_as(place, "new", folder / "copy")
        data = place.get("new/model.safetensors")
        for named, sent in ((f"bytes 0-9/{len(data)}", data),
                            (f"bytes 5-{len(data) + 4}/{len(data)}", data),
                            (f"bytes 0-9/{len(data)}", data[10:20]),
                            ("bytes 9-0/10", data)):
            whole = ("whole", named, sent)
            place.proxy.fault = lambda what, number, path, fault=whole: \
                fault if what == "get" and "model." in path else None
            done = run("verify", place.url("new"), "--deep", env=place.env)
            check(done.code in (4, 6), f"{named}: {done.code}")


def test_gs(folder):
    """gs:// by HMAC."""
    with Place(folder) as place:
        source = big(folder)
        env = {**place.env, "GS_ENDPOINT_URL": place.proxy.url,
               "GS_ACCESS_KEY_ID": KEY, "GS_SECRET_ACCESS_KEY": SECRET,
               "AWS_ACCESS_KEY_ID": ""}
        url = f"gs://bucket/{place.base}new"
        run("convert", source, url, "--to", "safetensors", "-q",
            env=env).want(0)
        run("verify", source, url, env=env).want(0)
        run("convert", source, folder / "new", "--to", "safetensors", "-q",
            env=env).want(0)
        same_as(place, "new", folder / "new")


def test_commands(folder):
    """reshard, unshard and salvage write there, and read back their output."""
    with Place(folder) as place:
        source = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt"
        for words in (["reshard", "--tp", "1", "--verify"],
                      ["unshard", "--model-only", "--verify"],
                      ["salvage"]):
            name = words[0]
            here = folder / "file.safetensors"
            there = "file.safetensors"
            if name != "unshard":
                here, there = folder / name, name
            for target in (here, place.url(there)):
                run(name, source, target, *words[1:], "-q",
                    env=place.env).want(0)
            if name == "unshard":
                check(place.get(there) == here.read_bytes(), "one file")
            else:
                same_as(place, name, here)
        done = run("convert", source, place.url("x"), "--to", "dcp", "-n",
                   "--json", env=place.env).want(0).json()
        check(done["upload"]["parts"] >= len(done["written"]) - 1, done)
        check(not place.left(), "leavings")


def hub_with(folder):
    """A repository of a large file, a small one and an index."""
    root = folder / "hub/org/model"
    write_model(root / "model.safetensors", layers(3, 4 << 20))
    write_model(root / "sub" / "small.safetensors", layers(2, 100))
    (root / "model.safetensors.index.json").write_text("{}")
    cdn = Server(folder / "hub")
    return Hub(folder / "hub", cdn, large=1000), cdn, root


def fetched_as(place, key, root):
    got = place.keys(key + "/")
    want = sorted(str(p.relative_to(root)) for p in root.rglob("*")
                  if p.is_file())
    check_equal([k.removeprefix(key + "/") for k in got], want, "objects")
    for name in want:
        check(place.get(f"{key}/{name}") == (root / name).read_bytes(), name)


def test_fetch(folder):
    """From the hub to a bucket, and from there to another place: unchanged,
    each byte once, the index last, nothing left over."""
    hub, cdn, root = hub_with(folder)
    size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    with Place(folder) as place, hub, cdn:
        env = {**place.env, "HF_ENDPOINT": hub.url}
        done = run("fetch", "hf://org/model", place.url("new"), "--json",
                   env=env).want(0).json()
        check_equal(faults(done, schema_of("fetch")), [], "schema")
        fetched_as(place, "new", root)
        check(cdn.bytes + hub.bytes < size * 1.02 + 4096, "bytes that came")
        check(place.proxy.sent < size * 1.02 + 4096, "bytes that were sent")
        check(done["bytes_on_wire"] < 2.04 * size + 8192, done)
        puts = [p for w, p in place.proxy.seen if w == "put"]
        check("index.json" in puts[-1], puts)
        check(not place.uploads() and not place.left(), "leavings")
        check_equal(run("fetch", "hf://org/model", place.url("new"),
                        env=env).code, 5, "what stands there")
        run("fetch", place.url("new"), place.url("again"), env=env).want(0)
        fetched_as(place, "again", root)
        run("fetch", place.url("new/model.safetensors"),
            place.url("one.safetensors"), env=env).want(0)
        run("fetch", place.url("new/model.safetensors"), place.url("in/"),
            env=env).want(0)
        data = (root / "model.safetensors").read_bytes()
        for key in ("one.safetensors", "in/model.safetensors"):
            check(place.get(key) == data, key)
        check(not place.uploads() and not place.left(), "leavings")
        for args, code in ((("--verify",), 2), (("--include", "no*"), 3)):
            check_equal(run("fetch", "hf://org/model", place.url("x"), *args,
                            env=env).code, code, args)
        check_equal(run("fetch", "hf://org/model", "hf://org/new",
                        env=env).code, 2, "a target that can't be")


def test_fetch_resumes(folder):
    """What was sent is neither fetched nor sent again, unless its bytes are
    needed for a sha256. A changed source starts over."""
    write_model(folder / "s" / "m.safetensors", layers(5, 6 << 20))
    with Place(folder) as place, Server(folder / "s") as server:
        url = server.url + "/m.safetensors"
        env = {**place.env, "CKPT_NET_RETRIES": "1"}
        fail = lambda what, number, path: (  # noqa: E731
            ("status", 503, "SlowDown") if what == "part" and number > 3
            else None)
        place.proxy.fault = fail
        done = run("fetch", url, place.url("new/m"),
                   env={**env, "CKPT_NET_CONNECTIONS": "1"})
        check_equal(done.code, 6, done.err)
        check("HTTP 503 SlowDown" in done.err, done.err)
        check_equal(place.keys("new/"), [], "seen early")
        place.proxy.fault = None
        place.proxy.forget()
        server.forget()
        run("fetch", url, place.url("new/m"), env=env).want(0)
        size = (folder / "s" / "m.safetensors").stat().st_size
        check(server.bytes < size - 2 * PART, f"{server.bytes} came again")
        check(place.proxy.sent < size - 2 * PART, "parts were sent again")
        check(place.get("new/m") ==
              (folder / "s" / "m.safetensors").read_bytes(), "bytes")
        place.proxy.fault = fail
        run("fetch", url, place.url("two"), env={
            **env, "CKPT_NET_CONNECTIONS": "1"}).want(6)
        write_model(folder / "s" / "m.safetensors", layers(5, 6 << 20), 9)
        place.proxy.fault = None
        run("fetch", url, place.url("two"), env=env).want(0)
        check(place.get("two") ==
              (folder / "s" / "m.safetensors").read_bytes(), "a mixture")
        check(not place.uploads() and not place.left(), "leavings")


def test_fetch_lies(folder):
    """Bytes that differ from what the hub promises never appear, and are not
    resumed."""
    hub, cdn, root = hub_with(folder)
    with Place(folder) as place, hub, cdn:
        env = {**place.env, "HF_ENDPOINT": hub.url}
        cdn.folder = folder / "lies"
        write_model(folder / "lies/org/model/model.safetensors",
                    layers(3, 4 << 20), 5)
        args = ("fetch", "hf://org/model", place.url("new"), "--include",
                "model.safetensors")
        done = run(*args, env=env)
        check_equal(done.code, 4, done.err)
        check("the hub promises" in done.err, done.err)
        check_equal(place.keys("new/"), [], "objects")
        check(not place.uploads() and not place.left(), "leavings")
        cdn.folder = folder / "hub"
        run(*args, env=env).want(0)
        check(place.get("new/model.safetensors") ==
              (root / "model.safetensors").read_bytes(), "bytes")


def test_plan(folder):
    """A plan may name URLs: it runs as made, and is refused if they changed."""
    with Place(folder) as place:
        source = big(folder)
        SERVER.put(source, f"bucket/{place.base}src/model.safetensors")
        plan = folder / "plan.json"
        args = ("convert", place.url("src"), place.url("new"), "--to", "dcp")
        run(*args, "-n", "-o", plan, env=place.env).want(0)
        check("hunter2" not in plan.read_text(), "a secret")
        run("run", plan, env=place.env).want(0)
        run("verify", source, place.url("new"), env=place.env).want(0)
        write_model(source, layers(3, 4 << 20), 3)
        SERVER.put(source, f"bucket/{place.base}src/model.safetensors")
        done = run("run", plan, env=place.env)
        check(done.code not in (0, 70) and "src" in done.err, str(done))


def test_refused(folder):
    """What can't be written is refused with a reason."""
    source = big(folder, 1, 1000)
    with Place(folder) as place:
        for url in ("hf://org/model", "https://host/x", "az://c/x"):
            done = run("convert", source, url, "--to", "dcp", env=place.env)
            check_equal(done.code, 2, url + done.err)
            check("s3://" in done.err, done.err)
        for url in ("s3://bucket", "s3://", "gs:///x"):
            done = run("convert", source, url, "--to", "dcp", env=place.env)
            check_equal(done.code, 2, url + done.err)
        run("convert", source, f"file://{folder}/filed", "--to", "dcp",
            env=place.env).want(0)
        done = send(place, source, "new",
                    AWS_SECRET_ACCESS_KEY="hunter3hunter3")
        check_equal(done.code, 6, done.err)
        check("HTTP 403" in done.err and "hunter" not in done.err, done.err)
        place.env["CKPT_NET_PART_MIB"] = "1"
        check_equal(send(place, source).code, 2, "parts of 1 MiB")


def test_dry_run(folder):
    """--dry-run says what would be sent, and sends nothing."""
    with Place(folder) as place:
        source = big(folder)
        done = run("convert", source, place.url("new"), "--to", "safetensors",
                   "-n", env=place.env).want(0)
        text = done.out + done.err
        check(re.search(r"3 parts of .*5\.0 MiB", text), text)
        check("requests" in text, text)
        check(not [w for w, _ in place.proxy.seen
                   if w in ("put", "part", "begin")], place.proxy.seen)


# How a request may end, and whether it is retried.
FAULTS = {
    "500": (("status", 500, "InternalError"), True),
    "503": (("status", 503, "SlowDown"), True),
    "cut": (("cut",), True), "lost": (("lost",), True),
    # Longer than CKPT_NET_STALL; an upload's end has minutes.
    "stall": (("stall", 5), True),
    "403": (("status", 403, "AccessDenied"), False),
    "expired": (("status", 400, "ExpiredToken"), False),
    "nothing in it": (("body", b""), False),
    "an error in it": (("body", b"<Error><Code>InternalError</Code></Error>"),
                       False),
}
SENDS = {
    "convert": ["convert", "{src}", "{dst}", "--to", "safetensors", "-q"],
    "one file": ["convert", "{src}", "{dst}.safetensors", "-q"],
    "archives": ["convert", "{src}", "{dst}", "--to", "dcp", "-q"],
    "reshard": ["reshard", "{ranks}", "{dst}", "--tp", "4", "-q"],
    "unshard": ["unshard", "{ranks}", "{dst}", "-q"],
    "overwrite": ["convert", "{src}", "{dst}", "--to", "safetensors", "-q",
                  "--overwrite"],
    "fetch": ["fetch", "{web}", "{dst}", "-q"],
}


class Sending:
    def __init__(self, folder, place, web, command):
        self.place, self.command = place, command
        self.src, self.ranks = big(folder), folder / "ranks"
        shutil.copytree(DATA / "fairseq2_native/llama_tp2dp1_blocking/ckpt",
                        self.ranks)
        self.web = f"{web.url}/src"
        self.env = {**place.env, "CKPT_NET_RETRIES": "2",
                    "CKPT_NET_CONNECTIONS": "2"}
        # What is there before: nothing, or what the run replaces.
        self.old = {}
        self.send("want").want(0)
        self.kinds = [w for w, _ in place.proxy.seen]
        self.want = self.there("want")

    def send(self, name, fault=None, *more, **env):
        self.place.proxy.forget()
        self.place.proxy.fault = fault
        done = run(*[a.format(src=self.src, ranks=self.ranks, web=self.web,
                              dst=self.place.url(name))
                     for a in SENDS[self.command]], *more,
                   env={**self.env, **env})
        self.place.proxy.fault = None
        return done

    def there(self, name):
        return {k.removeprefix(name): self.place.get(k)
                for k in self.place.keys(name)
                if not k.endswith(".ckpt-manifest.json")}

    def before(self, name):
        """What --overwrite replaces."""
        if self.command != "overwrite":
            return {}
        run("convert", self.ranks, self.place.url(name), "--to", "dcp", "-q",
            env=self.env).want(0)
        return self.there(name)

    def judge(self, name, done, old):
        """Whole, or unchanged, or marked as unfinished."""
        now = self.there(name)
        if done.code == 0:
            check(now == self.want, f"{sorted(now)}: {done}")
            return
        check(done.code in (3, 5, 6), str(done))
        check("error: s3://bucket/" in done.err, str(done))
        check("hunter2" not in done.err, "a secret")
        if now in (old, self.want):
            return
        check("/.ckpt-upload" in now or ".ckpt-upload" in str(sorted(now)),
              f"{sorted(now)} stands half done: {done}")

    def goes_on(self, name):
        more = [] if self.command == "fetch" else ["--resume"]
        done = self.send(name, None, *more)
        if done.code == 3 and "--resume" in str(done):  # nothing had begun
            done = self.send(name)
        if done.code != 0 and self.there(name) == self.want:
            return
        check_equal(done.code, 0, str(done))
        check(self.there(name) == self.want, f"not gone on with: {done}")


def test_any(folder, command, every):
    """Any request of any command that sends or resumes: however it ends,
    nothing half-done looks whole, and --resume continues."""
    with Place(folder) as place, Server(folder) as web:
        case = Sending(folder, place, web, command)
        rule = random.Random(command)
        kinds = sorted(set(case.kinds))
        # For these, an empty 200 is a full answer.
        rows = [(k, f) for k in kinds for f in FAULTS
                if k not in ("delete", "abort", "head")
                or FAULTS[f][0][0] != "body"]
        if not every:
            rows = rule.sample(rows, 5)
        wrong = []
        for number, (kind, fault) in enumerate(rows):
            what, passing = FAULTS[fault]
            last = case.kinds.count(kind)
            at = rule.randint(1, last)
            for how in ("once", "from there on"):
                name = f"t{number}{how[0]}"
                old = case.before(name)

                def harm(got, n, _, kind=kind, at=at, what=what, how=how):
                    hit = n == at if how == "once" else n >= at
                    return what if got == kind and hit else None
                try:
                    done = case.send(name, harm, **stalls(what))
                    if how == "once" and passing:
                        check_equal(done.code, 0, str(done))
                    case.judge(name, done, old)
                    if done.code != 0:
                        # The resumed run meets a fault, too.
                        more = [] if command == "fetch" else ["--resume"]
                        case.judge(name, case.send(
                            name, harm, *more, **stalls(what)), old)
                        case.goes_on(name)
                except Failure as failure:
                    wrong.append(f"{fault} for {kind} {at}, {how}: {failure}")
        check(not wrong, f"{len(wrong)} of {2 * len(rows)}\n"
              + "\n".join(wrong))


def main():
    suite = Suite(__doc__)
    for case, form in CONVERSIONS:
        suite.add("convert " + case, test_convert, case, form)
    for test in (test_fetch, test_fetch_resumes, test_fetch_lies, test_plan,
                 test_parts, test_abandoned, test_cleared, test_exists, test_raced,
                 test_claimed, test_interrupt, test_gs, test_rclone, test_commands,
                 test_refused, test_dry_run):
        suite.add(test.__name__.removeprefix("test_"), test)
    for form, how in (("safetensors", "proven"), ("torch", "lost"),
                      ("dcp", "trusted")):
        suite.add("streamed " + form, test_streamed, form)
        suite.add(f"killed {form} {how}", test_killed, form, how)
    every = "--full" in sys.argv
    for command in SENDS:
        suite.add("any " + command, test_any, command, every)
    for name in PASSING:
        suite.add("passing " + name, test_passing, name)
    for name in LASTING:
        suite.add("lasting " + name, test_lasting, name)

    def prepare(_, ckpt):
        global SERVER
        remote.CKPT = ckpt
        probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                         env={"CKPT_NET_RETRIES": "0"})
        if probe.code == 7 or not shutil.which("curl"):
            print("skipped: " + probe.err.strip())
            sys.exit(77)
        try:
            SERVER = S3(Path(home))
            SERVER.put(None, "bucket")
        except Skip as why:
            print(f"skipped: {why}")
            sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ckpt_test_") as home:
        try:
            suite.main(prepare)
        finally:
            if SERVER:
                SERVER.__exit__()


if __name__ == "__main__":
    main()
