#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `ckpt fetch` believes: nothing of what an earlier run left, a server
claims or a list beside the files says, that it can look at. Servers are on
loopback; what they are asked for is counted."""

import hashlib
import os
import random
import shutil
import subprocess

import remote_test as remote
from object_server import Objects
from remote_servers import Server
from remote_test import CLEAN, certificate, layers, ok, run, write_model
from support import Suite, check, check_equal, until

CKPT = None  # set by prepare
MIB = 1 << 20


class Plain(Server):
    """A server that says less: without "versions", or without "ranges"."""

    def __init__(self, folder, lacks, tls=None):
        super().__init__(folder, tls)
        self.lacks = lacks

    def serve(self, handler, file, path, fault=None, extra=()):
        say = handler.send_header
        hidden = set()
        if "versions" in self.lacks:
            hidden |= {"etag", "last-modified"}
        if "ranges" in self.lacks:
            hidden |= {"accept-ranges"}
            if not fault and file.is_file():
                fault = ("whole",)
        handler.send_header = lambda name, value: (
            None if name.lower() in hidden else say(name, value))
        super().serve(handler, file, path, fault, extra)


# ------------------------------------------------------- what earlier runs left
def flip(data, at):
    data[at] ^= 1


def zero(data, at):
    data[at // 4096 * 4096:at // 4096 * 4096 + 4096] = bytes(4096)


def shorten(data, at):
    del data[at:]


ROT = {"flipped": flip, "zeroed": zero, "cut": shorten}


def test_rot(folder, kind, place):
    """A part that changed since it came is fetched again, wherever it did."""
    want = random.Random(1).randbytes(48 * MIB)
    (folder / "m.bin").write_bytes(want)
    with Server(folder) as server:
        out = remote.killed(folder, server, "out")
        part = out / ".ckpt-fetch/m.bin.part"
        data = bytearray(part.read_bytes())
        ROT[kind](data, place)
        part.write_bytes(data)
        ok("fetch", server.url + "/m.bin", out, "-q")
        check((out / "m.bin").read_bytes() == want, "other bytes")
        # What was right is not asked for again.
        check(server.bytes < 48 * MIB + 9000, f"{server.bytes} bytes again")


def test_rot_in_place(folder):
    """So is a file that has its name already, whatever the journal says."""
    want = random.Random(1).randbytes(48 * MIB)
    (folder / "m.bin").write_bytes(want)
    for at in (None, 5, 40 * MIB):
        with Server(folder) as server:
            out = remote.killed(folder, server, f"out{at}")
            data = bytearray(want)
            if at is not None:
                data[at] ^= 1
            (out / "m.bin").write_bytes(data)
            done = run("fetch", server.url + "/m.bin", out, "-q")
            check_equal(done.code, 0 if at is None else 5, str(done))


def test_unversioned(folder):
    """Nobody says that it is another version: nothing that came is used with
    what comes, neither by the next run nor by the next try."""
    old, new = (random.Random(i).randbytes(40 * MIB) for i in range(2))
    file = folder / "m.bin"
    for sync in ((), ("--no-fsync",)):
        file.write_bytes(old)
        with Plain(folder, {"versions"}) as server:
            server.fault = lambda request, _: (
                ("stall", 30 * MIB)
                if request.headers.get("range", "").endswith(
                    str(40 * MIB - 1)) else None)
            out = folder / f"out{len(sync)}"
            child = subprocess.Popen(
                [CKPT.path, "fetch", server.url + "/m.bin", out, "-q", *sync],
                env={**os.environ, **CLEAN})
            journal = out / ".ckpt-fetch/journal"
            until(lambda journal=journal: journal.exists() and
                  "came" in journal.read_text(), "some of it is there", child)
            child.kill()
            child.wait()
            server.fault = None
            file.write_bytes(new)
            ok("fetch", server.url + "/m.bin", out, "-q")
            check((out / "m.bin").read_bytes() == new, "a mixture")

    def replaced(request, _):
        if request.headers.get("range") != f"bytes=0-{40 * MIB - 1}" or \
                file.read_bytes() == new:
            return None
        file.write_bytes(new)
        return ("cut", 9 * MIB)
    file.write_bytes(old)
    with Plain(folder, {"versions"}) as server:
        server.fault = replaced
        ok("fetch", server.url + "/m.bin", folder / "tries", "-q")
        check((folder / "tries/m.bin").read_bytes() == new, "a mixture")


def test_salvage_copy(folder):
    """The copy of a source that salvage keeps is proven as well."""
    write_model(folder / "m/m.safetensors", layers(2, 3000))
    want = (folder / "m/m.safetensors").read_bytes()
    with Server(folder) as server:
        ok("salvage", server.url + "/m", folder / "out", "-n")
        copy = folder / ".out.ckpt-source/m.safetensors"
        data = bytearray(copy.read_bytes())
        data[-5] ^= 1
        copy.write_bytes(data)
        ok("salvage", server.url + "/m", folder / "out", "-q")
        check_equal((folder / "out/m.safetensors").read_bytes(), want, "bytes")


# ---------------------------------------------------------- what servers claim
def test_without_ranges(folder, size):
    """A server that sends whole files only is good enough for whole files; a
    reply that was cut begins again."""
    want = random.Random(size).randbytes(size)
    (folder / "s").mkdir()
    (folder / "s/m.bin").write_bytes(want)
    for lacks in ({"ranges"}, {"ranges", "versions"}):
        with Plain(folder / "s", lacks) as server:
            out = folder / f"out{len(lacks)}"
            ok("fetch", server.url + "/m.bin", out, "-q")
            check((out / "m.bin").read_bytes() == want, "bytes")
        check(not (out / ".ckpt-fetch").exists(), "left over")


class Endless(Objects):
    """Pages that bring nothing, each with a new place to go on at."""

    def listing(self, query):
        at = int(query.get("continuation-token", "0")) + 1
        return ("<ListBucketResult><IsTruncated>true</IsTruncated>"
                f"<NextContinuationToken>{at}</NextContinuationToken>"
                "</ListBucketResult>")


class Deep(Server):
    """Every directory has a directory."""

    def serve(self, handler, file, path, fault=None, extra=()):
        if not path.endswith("/"):
            return handler.reply(301, b"", {"Location": path + "/"})
        name = "d" * 200
        handler.reply(200, f'<html><title>Index of /</title><a href="{name}/">'
                      f'{name}</a></html>'.encode(),
                      {"Content-Type": "text/html"})


class Wide(Server):
    """A listing of so many bytes."""

    def __init__(self, folder, size):
        super().__init__(folder)
        row = '<a href="{:07}.safetensors">x</a>\n'
        count = size // len(row.format(0))
        self.page_text = ("<html><title>Index of /</title>" + "".join(
            row.format(i) for i in range(count)) + "</html>").encode()

    def serve(self, handler, file, path, fault=None, extra=()):
        if not path.endswith("/"):
            return handler.reply(404)
        handler.reply(200, self.page_text, {"Content-Type": "text/html"})


def test_endless(folder):
    """Listings without an end end with an error, before any file."""
    with Endless(page=1) as server:
        done = run("fetch", "s3://b/m", folder / "out", env=server.env)
        check_equal(done.code, 4, str(done))
        check("has no end" in done.err, done.err)
    with Deep(folder) as server:
        done = run("fetch", server.url + "/m/", folder / "out")
        check_equal(done.code, 4, str(done))
        check("in each other" in done.err, done.err)
        check(len(server.requests) < 200, len(server.requests))
    with Wide(folder, 65 * MIB) as server:
        done = run("fetch", server.url + "/m/", folder / "out")
        check_equal(done.code, 4, str(done))
        check("more than the 64.0 MiB" in done.err, done.err)
        check(len(server.requests) < 5, len(server.requests))
    check(not (folder / "out").exists(), "something was written")


COMMANDS = {
    "inspect": ("inspect", "{url}"), "verify": ("verify", "{url}"),
    "diff": ("diff", "{url}", "{url}2/"),
    "convert": ("convert", "{url}", "{out}", "--to", "dcp"),
}


def test_memory(folder, command):
    """A listing that --max-mem has no room for ends with 7, in whichever
    thread it arrives: none ends the process."""
    with Wide(folder, 50 * MIB) as server:
        for limit in (16, 24):
            argv = [word.format(url=server.url + "/m/", out=folder / "out")
                    for word in COMMANDS[command]]
            done = run(*argv, "--max-mem", f"{limit}MiB")
            check_equal(done.code, 7, str(done))
            check("--max-mem" in done.err, done.err)
    check(not (folder / "out").exists(), "something was written")


def test_plain_after_secure(folder):
    """What was asked for by https never comes by http, wherever from."""
    cert, key = certificate(folder)
    write_model(folder / "s/m.safetensors", layers(2, 1000))
    with Server(folder / "s", tls=(cert, key)) as server, \
            Server(folder / "s") as plain:
        for host in ("127.0.0.1", "localhost"):
            server.fault = lambda *_, host=host: (
                "to", f"http://{host}:{plain.port}/m.safetensors")
            for argv in (("inspect", server.url + "/m.safetensors"),
                         ("fetch", server.url + "/m.safetensors",
                          folder / "out")):
                done = run(*argv, env={"SSL_CERT_FILE": str(cert)})
                check_equal(done.code, 8, str(done))
                check("from https to http" in done.err, done.err)
        check_equal(plain.requests, [], "requests")
        check(not (folder / "out").exists(), "something was written")


# ------------------------------------------------------ lists beside the files
def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lists(data):
    """Name: what it says of m.safetensors."""
    sha256, sha1, md5 = (hashlib.new(name, data).hexdigest()
                         for name in ("sha256", "sha1", "md5"))
    metadata = ".cache/huggingface/download/m.safetensors.metadata"
    return {
        "SHA256SUMS": f"{sha256}  m.safetensors\n",
        "sha1sum.txt": f"{sha1} *m.safetensors\n",
        "checklist.chk": f"{md5}  m.safetensors\n",
        "checksums": f"SHA256 (m.safetensors) = {sha256}\n",
        "m.safetensors.sha256": f"{sha256}\n",
        "m.safetensors.md5": f"{md5}  m.safetensors\n",
        metadata: f"{'c' * 40}\n{git_sum(data)}\n1.5\n",
        metadata + " ": f"{'c' * 40}\n{sha256}\n1.5\n",
    }


def test_lists(folder, where):
    """What a list says of a file is compared before the file gets its name; the
    way around a wrong list is in the message."""
    write_model(folder / "m.safetensors", layers(2, 3000))
    data = (folder / "m.safetensors").read_bytes()
    other = lists(bytes(data[:-1]) + bytes([data[-1] ^ 1]))
    for number, (name, text) in enumerate(lists(data).items()):
        for right in (True, False):
            said = text if right else other[name]
            objects = {"m/m.safetensors": data,
                       "m/" + name.strip(): said.encode()}
            with Objects(objects) as server:
                out = folder / f"{number}{right}" if where == "here" \
                    else f"s3://b/{number}{right}"
                done = run("fetch", "s3://b/m", out, env=server.env)
                if right:
                    check_equal(done.code, 0, f"{name}: {done}")
                    check("1 file had the checksum of a list" in done.out,
                          done.out)
                    continue
                check_equal(done.code, 4, f"{name}: {done}")
                base = name.strip().rsplit("/", 1)[-1]
                check(f"by {base} it is" in done.err, done.err)
                check("--exclude" in done.err, done.err)
                if where == "here":
                    check(not (out / "m.safetensors").exists(), "published")
                else:
                    check(not [key for key in server.objects
                               if not key.startswith("m/")], "published")
                ok("fetch", "s3://b/m", out, "--exclude", "*" + base,
                   env=server.env)


def test_unread_list(folder):
    """A list that can't be read stops nothing, and is named."""
    write_model(folder / "m/m.safetensors", layers(2, 3000))
    (folder / "m/SHA256SUMS").write_bytes(b"\xff\xfe not a list\n")
    with Server(folder) as server:
        done = ok("fetch", server.url + "/m", folder / "out")
        check("SHA256SUMS" in done.err, done.err)


# ------------------------------------------------------------------ once more
def test_again(folder):
    """What is complete is done, from any server; what differs is kept."""
    write_model(folder / "m/m.safetensors", layers(3, 3 * MIB))
    (folder / "m/config.json").write_text("{}")
    files = {f"m/{p.name}": p.read_bytes() for p in (folder / "m").iterdir()}
    with Objects(files) as store, Server(folder) as web, \
            Plain(folder, {"versions"}) as bare:
        for number, (url, env) in enumerate((
                ("s3://b/m", store.env), (web.url + "/m", {}),
                (bare.url + "/m", {}))):
            out = folder / str(number)
            ok("fetch", url, out, env=env)
            before = {p: p.stat().st_ino for p in out.iterdir()}
            ok("fetch", url, out, env=env)
            check_equal({p: p.stat().st_ino for p in out.iterdir()}, before,
                        "files")
            path = out / "m.safetensors"
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            done = run("fetch", url, out, env=env)
            check_equal(done.code, 5, str(done))
            check("it differs" in done.err, done.err)
            check_equal(path.read_bytes(), bytes(data), "bytes")
            check(not (out / ".ckpt-fetch").exists(), "left over")
            ok("fetch", url, out, "--overwrite", env=env)
            check_equal(path.read_bytes(), files["m/m.safetensors"], "bytes")
            shutil.rmtree(out)


def prepare(suite, ckpt):
    global CKPT
    CKPT = remote.CKPT = ckpt
    for kind in ROT:
        for place in (5, 9 * MIB):
            suite.add(f"{kind} at {place}", test_rot, kind, place)
    for size in (0, 100, 5 * MIB, 65 * MIB):
        suite.add(f"without ranges: {size}", test_without_ranges, size)
    for command in COMMANDS:
        suite.add("memory: " + command, test_memory, command)
    for where in ("here", "there"):
        suite.add("lists: " + where, test_lists, where)
    for test in (test_rot_in_place, test_unversioned, test_salvage_copy,
                 test_endless, test_plain_after_secure, test_unread_list,
                 test_again):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
