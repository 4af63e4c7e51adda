#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt sync`: afterwards both sides are the same, what was the same was not
touched, and nothing half-copied has a step's name. Object stores are on
loopback; what they are asked for is counted."""

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support import Suite, check, check_equal, until

sys.path.append(str(Path(__file__).parents[1] / "net"))

from object_server import Objects  # noqa: E402
from remote_servers import Server  # noqa: E402
from remote_test import CLEAN, layers, write_model  # noqa: E402

CKPT = None  # set by prepare
MIB = 1 << 20


def sync(source, target, *words, code=0, env=None):
    done = CKPT.run("sync", source, target, *words, "--json",
                    env={**CLEAN, **(env or {})}).want(code)
    return json.loads(done.out) if code <= 1 else done


def fates(document):
    return {f["path"]: f["fate"] for f in document["files"]}


def tree(path):
    """Names with contents, links as links; not what a run keeps meanwhile."""
    return {str(p.relative_to(path)):
            f"-> {os.readlink(p)}" if p.is_symlink() else p.read_bytes()
            for p in sorted(path.rglob("*"))
            if p.is_symlink() or p.is_file()}


def make_run(folder, steps=(10, 20, 30), size=40_000):
    """As Hugging Face's Trainer leaves it, with a link and a tracker."""
    root = folder / "run"
    for step in steps:
        path = root / f"checkpoint-{step}"
        write_model(path / "model.safetensors", layers(2, size), step)
        (path / "config.json").write_text('{"model_type": "notes"}')
        (path / "trainer_state.json").write_text(
            json.dumps({"global_step": step, "log_history": []}))
    (root / "newest").symlink_to(f"checkpoint-{steps[-1]}")
    (root / "log.txt").write_text("step 10\n")
    return root


def touched(path):
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns)
            for p in path.rglob("*") if p.is_file()}


def test_here(folder):
    """Everything comes once; the second time nothing is written."""
    root, out = make_run(folder), folder / "deep/er/out"
    said = sync(root, out, "-n")
    check_equal(set(fates(said).values()), {"new"}, "fates")
    check(not out.exists(), "a dry run wrote")
    said = sync(root, out)
    check_equal(tree(out), tree(root), "tree")
    sizes = sum(p.stat().st_size for p in root.rglob("*")
                if p.is_file() and "newest" not in p.parts)
    check_equal((said["bytes"], said["bytes_copied"]), (sizes, sizes), "bytes")
    before = touched(out)
    said = sync(root, out)
    check_equal(set(fates(said).values()), {"same"}, "fates")
    check_equal(touched(out), before, "what was the same")
    check(not list(out.parent.glob(".*")) and not list(out.glob(".*")), "left")


def test_differs(folder):
    """A byte is enough, whatever size and times say; the rest is not touched."""
    root, out = make_run(folder), folder / "out"
    sync(root, out)
    draw = random.Random(1)
    files = [p for p in sorted(root.rglob("*"))
             if p.is_file() and "newest" not in p.parts]
    for path in files:
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        other = out / path.relative_to(root)
        then = other.stat()
        other.write_bytes(data)
        os.utime(other, ns=(then.st_atime_ns, then.st_mtime_ns))
        before = touched(out)
        name = str(path.relative_to(root))
        for words, same in ((("-n",), True), ((), False)):
            want = {f: "same" for f in fates(sync(root, root.parent / "no", "-n"))}
            check_equal(fates(sync(root, out, *words)),
                        {**want, name: "replaced"}, name)
            check_equal(other.read_bytes() == bytes(data), same, name)
        now = touched(out)
        check_equal({p for p in now if now[p] != before[p]}, {other}, "written")
    check_equal(tree(out), tree(root), "tree")


def test_changes(folder):
    """New, longer, shorter and renamed files, a new step, a moved link."""
    root, out = make_run(folder), folder / "out"
    sync(root, out)
    (root / "log.txt").write_text("step 10\nstep 20\n")
    (root / "checkpoint-20/config.json").write_text("{}")
    shutil.copytree(root / "checkpoint-30", root / "checkpoint-40")
    (root / "newest").unlink()
    (root / "newest").symlink_to("checkpoint-40")
    (root / "checkpoint-10/trainer_state.json").rename(
        root / "checkpoint-10/state.json")
    said = fates(sync(root, out))
    check_equal(said.pop("checkpoint-10/trainer_state.json"), "extra", "extra")
    check_equal({k: v for k, v in said.items() if v != "same"}, {
        "log.txt": "replaced", "checkpoint-20/config.json": "replaced",
        "newest": "replaced", "checkpoint-10/state.json": "new",
        **{f"checkpoint-40/{name}": "new" for name in
           ("config.json", "model.safetensors", "trainer_state.json")}}, "fates")
    extra = out / "checkpoint-10/trainer_state.json"
    check(extra.exists(), "deleted unasked")
    extra.unlink()
    check_equal(tree(out), tree(root), "tree")


def test_delete(folder):
    """What the source lacks goes when asked, but for what is excluded, links,
    and what their folders hold."""
    root, out = make_run(folder), folder / "out"
    sync(root, out)
    shutil.rmtree(root / "checkpoint-10")
    (root / "log.txt").unlink()
    (out / "mine").mkdir()
    (out / "mine/keep.md").write_text("precious")
    (out / "mine/old.txt").write_text("old")
    (out / "away").symlink_to(folder)
    said = fates(sync(root, out, "-n", "--delete-extra", "--exclude", "*.md"))
    gone = {"log.txt", "mine/old.txt", *(
        f"checkpoint-10/{n}" for n in
        ("config.json", "model.safetensors", "trainer_state.json"))}
    check_equal({k for k, v in said.items() if v == "extra"}, gone, "extra")
    said = fates(sync(root, out, "--delete-extra", "--exclude", "*.md"))
    check_equal({k for k, v in said.items() if v == "deleted"}, gone, "deleted")
    check(not (out / "checkpoint-10").exists(), "an empty step stays")
    check_equal((out / "mine/keep.md").read_text(), "precious", "excluded")
    check((out / "away").is_symlink() and root.exists(), "a link was followed")
    check(not [p for p in out.iterdir() if p.name.startswith(".")], "left over")


def test_chosen(folder):
    root, out = make_run(folder), folder / "out"
    sync(root, out, "--include", "*.json", "--exclude", "checkpoint-10/*")
    check_equal(sorted(tree(out)), sorted(
        f"checkpoint-{n}/{name}" for n in (20, 30)
        for name in ("config.json", "trainer_state.json")), "names")


def test_file(folder):
    root, out = make_run(folder), folder / "out"
    sync(root / "log.txt", out)
    check_equal(tree(out), {"log.txt": b"step 10\n"}, "tree")


def test_links(folder):
    """Files behind links are copied; of folders only what is in the source."""
    root, out = folder / "run", folder / "out"
    root.mkdir()
    blobs = folder / "blobs"
    blobs.mkdir()
    (blobs / "1").write_text("content")
    (root / "file.txt").symlink_to("../blobs/1")
    (root / "outside").symlink_to("../blobs")
    (root / "rooted").symlink_to(root / "sub")
    (root / "sub").mkdir()
    (root / "sub/a").write_text("a")
    (root / "again").symlink_to("sub")
    said = sync(root, out, code=1)
    check_equal(tree(out), {"file.txt": b"content", "sub/a": b"a",
                            "again": "-> sub"}, "tree")
    left = left_out(said)
    check_equal(set(left), {"outside", "rooted"}, "left out")
    check("not in SRC" in left["outside"], str(left))
    for name in ("outside", "rooted"):
        (root / name).unlink()
    check_equal(sync(root, out)["complete"], True, "nothing is left out")


def left_out(said):
    check_equal(said["complete"], False, "complete")
    return {f["path"]: f["why"] for f in said["files"]
            if f["fate"] == "left_out"}


def test_odd(folder):
    """What is no file is named and left out, all else is copied, and the status
    says so; what DST has of it stays."""
    root, out = folder / "run", folder / "out"
    (root / "sub").mkdir(parents=True)
    (root / "a").write_text("a")
    (root / "sub/b").write_text("b")
    (root / "broken").symlink_to("nowhere")
    (root / "round").symlink_to("round")
    os.mkfifo(root / "sub/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(root)
        bound.bind("socket")
        os.chdir(here)
    want = {"broken": "a link that leads nowhere",
            "round": "a link that leads nowhere", "sub/pipe": "a pipe",
            "socket": "a socket"}
    check_equal(left_out(sync(root, out, "-n", code=1)), want, "dry run")
    check_equal(left_out(sync(root, out, code=1)), want, "left out")
    check_equal(tree(out), {"a": b"a", "sub/b": b"b"}, "tree")
    text = CKPT.run("sync", root, out).want(1).out
    check("left out  broken: a link that leads nowhere" in text, text)
    quiet = CKPT.run("sync", root, out, "-q").want(1)
    check_equal((quiet.out, sorted(quiet.err.split("\n"))[-1]),
                ("", "left out  sub/pipe: a pipe"), "quiet: why it ends with 1")
    check_equal(sync(root, out, "--exclude", "broken", "--exclude", "round",
                     "--exclude", "*pipe", "--exclude", "socket")["complete"],
                True, "excluded")
    (root / "outside").symlink_to(folder)
    (out / "outside").mkdir()
    for path in (out / "broken", out / "outside/x", out / "extra"):
        path.write_text("an older copy")
    said = sync(root, out, "--delete-extra", code=1)
    check_equal(fates(said)["extra"], "deleted", "extra")
    check_equal(set(tree(out)), {"a", "sub/b", "broken", "outside/x"}, "stays")
    with Objects() as server:
        (root / "again").symlink_to("sub")
        said = sync(root, "s3://b/r", code=1, env=server.env)
        check_equal(set(left_out(said)), {*want, "outside", "again"}, "store")
        for name in (*want, "outside"):
            (root / name).unlink()
        said = sync(root, "s3://b/r", env=server.env)
        check_equal((fates(said)["again"], said["complete"]),
                    ("left_out", True), "a link into SRC")


def test_through_links(folder):
    """Nothing is written through a link of the target: into another step, or
    somewhere else. Below it, nothing is deleted."""
    root, out = folder / "run", folder / "out"
    for where in ("newest", "a/newest"):
        for lead in ("step", folder / "away"):
            (root / where).mkdir(parents=True)
            (root / where / "f").write_text("new")
            (out / where).parent.mkdir(parents=True, exist_ok=True)
            place = (out / where).parent / lead
            place.mkdir(parents=True)
            (place / "f").write_text("old")
            (out / where).symlink_to(lead)
            done = sync(root, out, code=5)
            check("is a link" in done.err, done.err)
            check_equal((place / "f").read_text(), "old", f"{where} {lead}")
            sync(root, out, "--exclude", "*newest/*", code=3)
            (root / "other").write_text("x")
            sync(root, out, "--exclude", "*newest/*", "--delete-extra")
            check((out / where).is_symlink(), "the link was deleted")
            if place.parent == folder:
                check_equal((place / "f").read_text(), "old", "deleted")
            (out / where).unlink()
            sync(root, out)
            check_equal((out / where / "f").read_text(), "new", "without it")
            for path in (root, out, place):
                shutil.rmtree(path, ignore_errors=True)


def test_refused(folder):
    root = make_run(folder)
    (folder / "odd").mkdir()
    os.mkfifo(folder / "odd/pipe")  # and no file beside it
    (folder / "a.txt").write_text("a")
    (folder / "clash/log.txt").mkdir(parents=True)
    for source, target, words, code, text in (
            (root, root, (), 2, "SRC itself"),
            (root, root / "checkpoint-10/x", (), 2, "into itself"),
            (root, folder, (), 2, "SRC lies in it"),
            (root, folder / "a.txt", (), 2, "is a file"),
            (root, "https://127.0.0.1:1/x", (), 2, "not written"),
            (root, "s3://b/x", ("--delete-extra",), 2, "this machine"),
            (root, "host:/x", (), 2, "gs://BUCKET/PATH, not over ssh"),
            (root, "me@host:x", (), 2, "path on another machine"),
            (root, "s3:bucket/x", (), 2, "did you mean s3://bucket/x?"),
            (root, "gs:/bucket/x", (), 2, "did you mean gs://bucket/x?"),
            (folder / "none", folder / "o", (), 3, "does not exist"),
            (root / "log.txt", folder / "o.txt", (), 2, "named like"),
            (folder / "odd", folder / "o", (), 3, "lists no files"),
            (root, folder / "clash", (), 5, "is a directory"),
            (root, folder / "o", ("--include", "*.nothing"), 3, "wanted")):
        done = sync(source, target, *words, code=code)
        check(text in done.err, f"{text!r} is not in {done.err}")
        check(not (folder / "o").exists(), f"{text}: something was written")
    sync(folder / "odd", folder / "o2", "--exclude", "pipe", code=3)


def test_listed(folder):
    """A file that is not as a list beside it says comes nowhere."""
    root, out = make_run(folder, (10,)), folder / "out"
    path = root / "checkpoint-10/model.safetensors"
    data = path.read_bytes()
    (root / "checkpoint-10/SHA256SUMS").write_text(
        hashlib.sha256(data).hexdigest() + "  model.safetensors\n")
    sync(root, folder / "sound")
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = sync(root, out, code=4)
    check("SHA256SUMS" in done.err, done.err)
    check(not (out / "checkpoint-10").exists(), "published")


def test_changed_meanwhile(folder):
    """A step that changes while it is copied gets no name; the next run copies
    it as it is then."""
    root, out = make_run(folder, (10,), 24 * MIB), folder / "out"
    path = root / "checkpoint-10/model.safetensors"
    child = subprocess.Popen([CKPT.path, "sync", root, out, "-q"],
                             stderr=subprocess.PIPE, text=True)
    until(lambda: list(folder.rglob("*.part")), "it began", child)
    child.send_signal(signal.SIGSTOP)
    (root / "checkpoint-10/config.json").write_text('{"model_type": "other"}')
    data = path.read_bytes()
    child.send_signal(signal.SIGCONT)
    said = child.communicate()[1]
    if child.returncode != 0:  # else it had been copied before
        check("changed" in said or "replaced" in said, said)
        check(not (out / "checkpoint-10").exists(), "published")
    sync(root, out)
    check_equal(tree(out), tree(root), "tree")
    check_equal(path.read_bytes(), data, "source")


def test_killed(folder):
    """At any moment: a step that is there is whole, and the next run goes on."""
    root, out = make_run(folder, (10, 20, 30), 6 * MIB), folder / "out"
    want, draw = tree(root), random.Random(2)
    for _ in range(12):
        child = subprocess.Popen([CKPT.path, "sync", root, out, "-q"])
        try:
            child.wait(draw.random() * 0.2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for step in out.glob("checkpoint-*"):
            check_equal(tree(step), tree(root / step.name), step.name)
        if draw.random() < 0.3:
            shutil.rmtree(out, ignore_errors=True)
    sync(root, out)
    check_equal(tree(out), want, "tree")


# ------------------------------------------------------------- object stores
def asked(server, method):
    return [path for _, verb, path, _ in server.log if verb == method]


def bodies(server):
    """Keys whose content was read."""
    return {path for _, verb, path, _ in server.log
            if verb == "GET" and "?" not in path}


def test_up(folder):
    """The second time nothing is sent, nor read: the store's MD5s prove it."""
    root = make_run(folder)
    (root / "newest").unlink()
    want = {f"r/{k}": v for k, v in tree(root).items()}
    with Objects() as server:
        def up(*words):
            server.log.clear()
            return fates(sync(root, "s3://b/r", *words, env=server.env))

        def there():
            return {k: v for k, (v, _) in server.objects.items()}

        check_equal(set(up("-n").values()), {"new"}, "dry run")
        check_equal(there(), {}, "dry run")
        check_equal(set(up().values()), {"new"}, "first")
        check_equal(there(), want, "objects")
        check_equal(set(up().values()), {"same"}, "second")
        check(not asked(server, "PUT") + asked(server, "POST"), "sent again")
        check(not bodies(server), f"read {bodies(server)}")
        path = root / "checkpoint-20/config.json"
        path.write_text('{"model_type": "motes"}')
        want["r/checkpoint-20/config.json"] = path.read_bytes()
        server.objects["r/old"] = (b"old", {})
        said = up()
        check_equal({k: v for k, v in said.items() if v != "same"},
                    {"checkpoint-20/config.json": "replaced", "old": "extra"},
                    "fates")
        check_equal(there(), {**want, "r/old": b"old"}, "objects")
        sent = asked(server, "PUT")
        check(all("checkpoint-20/config.json" in p or ".ckpt-upload" in p
                  for p in sent), str(sent))


def test_parts(folder):
    """Objects that came in parts, of whatever size, too."""
    root = folder / "run"
    write_model(root / "model.safetensors", layers(1, 20 * MIB))
    data = (root / "model.safetensors").read_bytes()
    for part in (8 * MIB, 16 * MIB):
        sums = [hashlib.md5(data[i:i + part]).digest()
                for i in range(0, len(data), part)]
        tag = f"{hashlib.md5(b''.join(sums)).hexdigest()}-{len(sums)}"
        with Objects({"r/model.safetensors": data}) as server:
            server.tags["r/model.safetensors"] = tag
            server.log.clear()
            said = fates(sync(root, "s3://b/r", env=server.env))
            check_equal(set(said.values()), {"same"}, str(part))
            check(not bodies(server), f"read {bodies(server)}")


def test_down(folder):
    root, out = make_run(folder), folder / "out"
    (root / "newest").unlink()
    objects = {f"r/{k}": v for k, v in tree(root).items()}
    with Objects(objects) as server:
        sync("s3://b/r", out, env=server.env)
        check_equal(tree(out), tree(root), "tree")
        before = touched(out)
        server.log.clear()
        said = fates(sync("s3://b/r", out, env=server.env))
        check_equal(set(said.values()), {"same"}, "fates")
        check_equal(touched(out), before, "files")
        check(len(bodies(server)) <= 3, f"read again: {bodies(server)}")
        path = out / "checkpoint-10/config.json"
        path.write_bytes(path.read_bytes()[::-1])
        said = fates(sync("s3://b/r", out, env=server.env))
        check_equal(said["checkpoint-10/config.json"], "replaced", "fate")
        check_equal(tree(out), tree(root), "tree")
        sync("s3://b/r", "s3://b/s", env=server.env)
        check_equal({k[2:]: v for k, (v, _) in server.objects.items()
                     if k.startswith("s/")}, tree(root), "store to store")


def test_web(folder):
    """A server without listings of objects, and without checksums."""
    root, out = make_run(folder), folder / "out"
    (root / "newest").unlink()
    with Server(folder) as server:
        sync(server.url + "/run", out)
        check_equal(tree(out), tree(root), "tree")
        said = fates(sync(server.url + "/run", out))
        check_equal(set(said.values()), {"same"}, "fates")


def prepare(suite, ckpt):
    global CKPT
    import remote_test
    CKPT = remote_test.CKPT = ckpt
    for test in (test_here, test_differs, test_changes, test_delete,
                 test_chosen, test_file, test_links, test_odd,
                 test_through_links, test_refused, test_listed,
                 test_changed_meanwhile, test_killed, test_up, test_parts,
                 test_down, test_web):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
