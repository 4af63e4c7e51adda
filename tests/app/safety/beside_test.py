#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checksums that lie beside a checkpoint are compared with it.

Each kind is made by its own tool where that is installed (huggingface_hub, the
coreutils, git), else from its owner's description. One bit is flipped at places
all over each file: found, with the file and the algorithm. What is sound is
sound, and what verify compared is said.
"""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support import DATA, Skip, Suite, check, check_equal

CKPT = None
MODEL = DATA / "safetensors" / "hf_sharded" / "ckpt"
META = DATA / "meta" / "llama" / "ckpt"
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
COMMIT = "c0ffee" + 34 * "0"


def model(folder, name="m"):
    """A copy of a model, and its files with tensors."""
    at = folder / name
    shutil.copytree(MODEL, at)
    return at, sorted(at.glob("*.safetensors"))


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at if at >= 0 else path.stat().st_size + at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


def places(path):
    """A place in the header's values, and some in the tensors."""
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        begin = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
        return [begin, (begin + size) // 2, size - 1]
    return [size // 2]


def sound(path, *words, count=None):
    done = CKPT.run("verify", path, "--json")
    check(done.code == 0 and done.json()["ok"], f"{path}: {done}")
    notes = [p["message"] for p in done.json()["problems"]
             if p["kind"] == "checksums"]
    for word in words:
        check(any(word in note for note in notes), f"{word!r} in {notes}")
    if count is not None:
        check_equal(len(notes), count, f"notes {notes}")
    check("values_proven" not in done.json() or not words,
          f"proven: {done.json()}")
    return done


def damaged(path, file, *words):
    done = CKPT.run("verify", path, "--json")
    check(done.code == 1 and done.json()["ok"] is False, f"{path}: {done}")
    found = [p for p in done.json()["problems"] if p["kind"] == "checksum"]
    check(any(Path(p["file"]).name == Path(file).name
              and all(word in p["message"] for word in words) for p in found),
          f"{file}, {words} in {found}")


def each_bit(path, files, *words, target=None):
    """A bit flipped in each of the files, one after the other."""
    sound(path, *words)
    for file in files:
        for at in places(file):
            flip(file, at)
            damaged(path, target(file) if target else file, words[0])
            flip(file, at)
    sound(path, *words)


# ------------------------------------------------------------------- lists
def sums(tool, files, *options):
    return subprocess.run([tool, *options, *[f.name for f in files]],
                          cwd=files[0].parent, check=True, text=True,
                          capture_output=True).stdout


def test_list(folder, name, tool, algorithm, options):
    path, files = model(folder)
    (path / name).write_text(sums(tool, files, *options))
    each_bit(path, files, algorithm, name)


def test_one(folder, ending, tool, algorithm, bare):
    """FILE.sha256 beside FILE, with its name or without."""
    path, files = model(folder)
    for file in files:
        text = sums(tool, [file])
        Path(str(file) + ending).write_text(text.split()[0] if bare else text)
    each_bit(path, files, algorithm, ending)


def test_not_carried(folder, target):
    """Lists of the source's files say nothing of the target's, whose own
    verify would call them damaged."""
    path = folder / "m"
    shutil.copytree(DATA / "hf/llama/ckpt", path)
    files = sorted(path.glob("*.safetensors"))
    (path / "SHA256SUMS").write_text(sums(
        "sha256sum", [*files, path / "config.json"]))
    (path / "md5sum.txt").write_text(sums("md5sum", files))
    for name, tool in (("SHA512SUMS", "sha512sum"), ("b2sums.txt", "b2sum"),
                       ("sha384sum.txt", "sha384sum")):
        (path / name).write_text(sums(tool, files))
    for file in files:
        Path(f"{file}.sha256").write_text(sums("sha256sum", [file]))
        Path(f"{file}.sha512").write_text(sums("sha512sum", [file]))
    warned = CKPT.run("verify", path)
    check("a checksum of 128 digits" in warned.out, str(warned))
    out = folder / "out"
    done = CKPT.ok("convert", path, out, "--to", target, "--dtype", "bf16",
                   "-v")
    left = [p.name for p in out.rglob("*")
            if "sum" in p.name.lower() or p.suffix in (".sha256", ".sha512")]
    check_equal(left, [], "lists in the target")
    check("checksums of the source's files" in done.err, done.err)
    CKPT.ok("verify", out)


def test_meta(folder):
    """Meta's checklist.chk: MD5 of each file."""
    path = folder / "meta"
    shutil.copytree(META, path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    (path / "checklist.chk").write_text(sums("md5sum", files))
    target = path if len(files) > 1 else files[0]
    sound(target, "MD5", "checklist.chk")
    flip(files[0], files[0].stat().st_size // 2)
    damaged(target, files[0], "MD5", "checklist.chk")


def test_single_file(folder):
    """A file that is opened alone has its sum in the list of all."""
    path, files = model(folder)
    (path / "SHA256SUMS").write_text(sums("sha256sum", files))
    sound(files[0], "SHA-256", count=1)
    flip(files[0], -1)
    damaged(files[0], files[0], "SHA-256", "SHA256SUMS")
    sound(files[1], "SHA-256", count=1)


def test_not_copied(folder):
    """What a list beside the source contradicts is no model to write: one flipped
    bit of each file, in each verb that writes."""
    path, files = model(folder)
    (path / "SHA256SUMS").write_text(sums("sha256sum", files))
    whole = folder / "whole"
    shutil.copytree(path, whole)
    for file in files:
        flip(file, -1)
        for verb in (("convert", path), ("convert", file), ("reshard", path),
                     ("unshard", path), ("merge", whole, path)):
            out = folder / "out"
            done = CKPT.run(*verb, out).want(4)
            check(file.name in done.err and "SHA256SUMS" in done.err, done.err)
            check(not out.exists(), f"{verb}")
            CKPT.ok(*verb, out, "--ignore-checksums")
            done = CKPT.run("verify", out).want(1)
            check("unproven" in done.out, f"{verb}: {done}")
            shutil.rmtree(out) if out.is_dir() else out.unlink()
        computed_with(path, whole, folder / "delta", "SHA256SUMS")
        flip(file, -1)
    CKPT.ok("convert", path, folder / "out")


def computed_with(path, whole, out, *words):
    """A difference is of what was stored, on either side, or is not written."""
    for a, b in ((path, whole), (whole, path)):
        for options in ((), ("--as-lora", "2"), ("--lossless",)):
            done = CKPT.run("diff", a, b, "--write", out, *options).want(4)
            check(all(word in done.err for word in words)
                  and "--ignore-checksums" not in done.err, done.err)
            check(not out.exists(), f"{options}")


def test_manifest_of_a_difference(folder):
    path, _ = model(folder)
    CKPT.ok("convert", path, folder / "whole")
    shutil.copytree(folder / "whole", folder / "rotten")
    flip(sorted((folder / "rotten").glob("*.safetensors"))[0], -1)
    computed_with(folder / "rotten", folder / "whole", folder / "delta", "digest")


def test_hub_names_by_verify(folder):
    """--verify compares what the hub's cache names a file by, too."""
    path, files = model(folder)
    download = path / ".cache/huggingface/download"
    download.mkdir(parents=True)
    for file in files:
        (download / f"{file.name}.metadata").write_text(
            "\n".join([40 * "a", hashlib.sha256(file.read_bytes()).hexdigest(),
                       "1700000000.0"]) + "\n")
    CKPT.ok("convert", path, folder / "sound", "--verify")
    flip(files[0], -1)
    CKPT.ok("convert", path, folder / "unasked")
    done = CKPT.run("convert", path, folder / "out", "--verify").want(4)
    check(files[0].name in done.err and "SHA-256" in done.err, done.err)


def test_not_a_list(folder):
    """What can't be read as a list is said, and proves nothing."""
    path, files = model(folder)
    for text in ("not sums\n", "", "abc  model.safetensors\n",
                 64 * "0" + "  ../../etc/passwd\n", 128 * "a" + f"  {files[0].name}\n"):
        (path / "SHA256SUMS").write_text(text)
        done = CKPT.run("verify", path, "--json")
        check_equal(done.code, 0, f"{text!r}: {done}")
        kinds = {p["kind"] for p in done.json()["problems"]}
        check("checksums" not in kinds, f"{text!r}: {kinds}")


def test_against(folder):
    """A list or a manifest that lies elsewhere."""
    path, files = model(folder)
    sums_file = folder / "elsewhere.txt"
    sums_file.write_text(sums("sha256sum", files))
    CKPT.ok("verify", path, "--against", sums_file)
    flip(files[0], -1)
    done = CKPT.run("verify", path, "--against", sums_file)
    check(done.code == 1 and "SHA-256" in done.out, f"{done}")
    flip(files[0], -1)
    files[1].rename(folder / "gone")
    done = CKPT.run("verify", files[0], "--against", sums_file)
    check(done.code == 1 and files[1].name in done.out, f"{done}")
    (folder / "gone").rename(files[1])
    CKPT.ok("convert", path, folder / "out", "--to", "safetensors")
    manifest = folder / "manifest.json"
    (folder / "out" / ".ckpt-manifest.json").rename(manifest)
    CKPT.ok("verify", folder / "out", "--against", manifest)
    flip(sorted((folder / "out").glob("*.safetensors"))[0], -1)
    done = CKPT.run("verify", folder / "out", "--against", manifest)
    check_equal(done.code, 1, f"{done}")
    done = CKPT.run("verify", path, "--against", folder / "none")
    check_equal(done.code, 3, f"{done}")
    sums_file.write_text("nothing\n")
    check(CKPT.run("verify", path, "--against", sums_file).code in (1, 4),
          "no list")


def test_quick(folder):
    """--quick says what it left out."""
    path, files = model(folder)
    (path / "SHA256SUMS").write_text(sums("sha256sum", files))
    done = CKPT.ok("verify", path, "--quick")
    check("not compared" in done.err, done.err)


# --------------------------------------------------------------------- hub
class Hub:
    """As much of the hub as its client asks for one file."""

    def __init__(self, folder):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self, False)

            def do_GET(self):
                hub.answer(self, True)

        self.folder = folder
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler, body):
        path = handler.path.split("?")[0]
        name = path.split("/resolve/", 1)[-1].split("/", 1)[-1]
        file = self.folder / name
        if "/resolve/" not in path or not file.is_file():
            handler.send_response(404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        data = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("ETag", f'"{git}"')
        if file.suffix == ".safetensors":
            sha = hashlib.sha256(data).hexdigest()
            handler.send_header("X-Linked-Etag", f'"{sha}"')
            handler.send_header("X-Linked-Size", str(len(data)))
        handler.end_headers()
        if body:
            handler.wfile.write(data)


DOWNLOAD = """
import sys
import huggingface_hub
url, target, local, *names = sys.argv[1:]
where = {"local_dir": target} if local == "1" else {"cache_dir": target}
for name in names:
    huggingface_hub.hf_hub_download("org/tiny", name, endpoint=url, **where)
"""


def download(folder, local):
    if not (TRANSFORMERS / "huggingface_hub").is_dir():
        raise Skip("no huggingface_hub")
    path, _ = model(folder, "source")
    hub = Hub(path)
    target = folder / "hub"
    env = {**os.environ, "PYTHONPATH": str(TRANSFORMERS), "HF_HUB_DISABLE_XET":
           "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(folder / "home")}
    env.pop("HF_HUB_OFFLINE", None)
    names = [p.name for p in sorted(path.iterdir()) if p.is_file()]
    done = subprocess.run([sys.executable, "-c", DOWNLOAD, hub.url, target,
                           str(int(local)), *names], env=env, check=False,
                          capture_output=True, text=True)
    hub.server.shutdown()
    check_equal(done.returncode, 0, done.stderr)
    return target


def test_cache(folder):
    """A cache that huggingface_hub made: blobs, a repository, all of them."""
    hub = download(folder, False)
    repo = hub / "models--org--tiny"
    snapshot = repo / "snapshots" / COMMIT
    blobs = sorted(p.resolve() for p in snapshot.iterdir())
    sound(repo, "SHA-256", "hub cache")
    sound(snapshot, "SHA-256", "hub cache")
    sound(hub, "SHA-256", "hub cache")
    for blob in blobs:
        algorithm = "SHA-256" if len(blob.name) == 64 else "git SHA-1"
        at = places(next(p for p in snapshot.iterdir()
                         if p.resolve() == blob))[-1]
        flip(blob, at)
        for path in (repo, snapshot, hub):
            done = CKPT.run("verify", path, "--json")
            check(done.code == 1, f"{blob}: {done}")
            check(any(p["kind"] == "checksum" and algorithm in p["message"]
                      for p in done.json()["problems"]), f"{blob}: {done.out}")
        flip(blob, at)
    sound(hub, "SHA-256", "hub cache")


def test_header_bit(folder):
    """A bit in the header: the file can't be opened, and the sum says why."""
    hub = download(folder, False)
    snapshot = hub / "models--org--tiny" / "snapshots" / COMMIT
    file = next(snapshot.glob("*.safetensors"))
    for at in (7, 8):
        flip(file.resolve(), at)
        damaged(hub / "models--org--tiny", file.name, "SHA-256")
        flip(file.resolve(), at)


def test_other_blobs(folder):
    """What belongs to another revision, ended early, or is gone."""
    hub = download(folder, False)
    repo = hub / "models--org--tiny"
    blobs = repo / "blobs"
    text = b"an older README"
    old = blobs / hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    old.write_bytes(text)
    sound(repo)
    old.write_bytes(text + b"!")
    damaged(repo, old, "git SHA-1")
    old.unlink()
    (blobs / f"{64 * 'a'}.incomplete").write_bytes(b"half")
    done = CKPT.run("verify", hub, "--json")
    check(done.code == 0 and "unfinished_download" in done.out, f"{done}")
    gone = repo / "snapshots" / COMMIT / "gone.safetensors"
    gone.symlink_to(f"../../blobs/{64 * 'b'}")
    done = CKPT.run("verify", hub, "--json")
    check(done.code == 1 and "gone.safetensors" in done.out, f"{done}")


def test_several_repos(folder):
    """Each repository of a cache is looked at; data sets are no failure."""
    hub = download(folder, False)
    data = hub / "datasets--org--text"
    (data / "snapshots" / COMMIT).mkdir(parents=True)
    (data / "blobs").mkdir()
    text = b"rows"
    name = hashlib.sha256(text).hexdigest()
    (data / "blobs" / name).write_bytes(text)
    (data / "snapshots" / COMMIT / "a.txt").symlink_to(f"../../blobs/{name}")
    done = CKPT.run("verify", hub, "--json")
    check_equal(done.code, 0, f"{done}")
    repos = [p for p in done.json()["problems"] if p["kind"] == "repository"]
    check_equal(len(repos), 2, f"{repos}")
    (data / "blobs" / name).write_bytes(b"rowz")
    damaged(hub, name, "SHA-256")


def test_local_dir(folder):
    """hf download --local-dir."""
    path = download(folder, True)
    files = sorted(path.glob("*.safetensors"))
    each_bit(path, files, "SHA-256", "ETag")
    config = path / "config.json"
    if config.is_file():
        flip(config, -3)
        damaged(path, config, "git SHA-1")


# --------------------------------------------------------------------- git
def test_lfs(folder):
    """An object in git-lfs's store, which checkouts link to."""
    path, files = model(folder)
    store = folder / ".git" / "lfs" / "objects"
    for file in files:
        name = hashlib.sha256(file.read_bytes()).hexdigest()
        place = store / name[:2] / name[2:4]
        place.mkdir(parents=True)
        file.rename(place / name)
        file.symlink_to(place / name)
    each_bit(path, [f.resolve() for f in files], "SHA-256", "git-lfs",
             target=lambda f: next(x.name for x in files if x.resolve() == f))


# ------------------------------------------------------------------ header
def adapter(folder, extra):
    """What kohya-ss/sd-scripts' save_weights does: the sum of what follows the
    header."""
    import torch
    from safetensors.torch import save, save_file

    tensors = {"lora_unet_a.lora_down.weight": torch.randn(4, 320),
               "lora_unet_a.lora_up.weight": torch.randn(320, 4),
               "lora_unet_a.alpha": torch.tensor(4.0)}
    data = save(tensors, {"ss_network_dim": "4"})
    payload = data[8 + struct.unpack("<Q", data[:8])[0]:]
    digest = hashlib.sha256(payload).hexdigest()
    file = folder / "style.safetensors"
    save_file(tensors, file, {"ss_network_dim": "4",
                              **{k: v.format(digest) for k, v in extra.items()}})
    return file


def test_kohya(folder):
    file = adapter(folder, {"sshs_model_hash": "{}"})
    each_bit(file, [file], "SHA-256", "sshs_model_hash")


def test_modelspec(folder):
    """Writers disagree over this one: where it fits, it proves."""
    file = adapter(folder, {"modelspec.hash_sha256": "0x{}"})
    sound(file, "modelspec.hash_sha256")
    flip(file, -1)
    done = CKPT.run("verify", file, "--json")
    check("other_checksum" in done.out, f"{done}")
    file = adapter(folder, {"modelspec.hash_sha256": "0x" + 64 * "1"})
    done = CKPT.run("verify", file, "--json")
    check(done.json()["ok"] and "other_checksum" in done.out, f"{done}")


def test_written_without(folder):
    """What ckpt writes has none of the source's sums in its headers."""
    file = adapter(folder, {"sshs_model_hash": "{}", "sshs_legacy_hash": "1" * 8,
                            "modelspec.hash_sha256": "0x{}"})
    CKPT.ok("convert", file, folder / "out", "--to", "safetensors", "--dtype",
            "bf16")
    written = next((folder / "out").glob("*.safetensors"))
    data = written.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    check_equal(sorted(header["__metadata__"]), ["ss_network_dim"],
                "metadata")
    (folder / "out" / ".ckpt-manifest.json").unlink()
    check(CKPT.run("verify", folder / "out").code == 0, "sound")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, tool, algorithm, options in (
            ("SHA256SUMS", "sha256sum", "SHA-256", ()),
            ("sha256sum.txt", "sha256sum", "SHA-256", ("-b",)),
            ("SHA256SUMS.txt", "sha256sum", "SHA-256", ("--tag",)),
            ("SHA1SUMS", "sha1sum", "SHA-1", ()),
            ("checksums.txt", "md5sum", "MD5", ()),
            ("md5sum.txt", "md5sum", "MD5", ("--tag",))):
        suite.add(f"list: {name} {' '.join(options)}", test_list, name, tool,
                  algorithm, options)
    for ending, tool, algorithm in ((".sha256", "sha256sum", "SHA-256"),
                                    (".md5", "md5sum", "MD5"),
                                    (".sha1", "sha1sum", "SHA-1")):
        for bare in (False, True):
            suite.add(f"one: {ending} {'bare' if bare else 'named'}", test_one,
                      ending, tool, algorithm, bare)
    for target in ("safetensors", "torch", "dcp", "vllm",
                   "megatron_torch_dist"):
        suite.add(f"not carried to {target}", test_not_carried, target)
    suite.add("checklist.chk", test_meta)
    suite.add("a single file", test_single_file)
    suite.add("not copied", test_not_copied)
    suite.add("a difference", test_manifest_of_a_difference)
    suite.add("hub: by --verify", test_hub_names_by_verify)
    suite.add("no list", test_not_a_list)
    suite.add("against", test_against)
    suite.add("quick", test_quick)
    suite.add("hub: cache", test_cache)
    suite.add("hub: a bit in the header", test_header_bit)
    suite.add("hub: other blobs", test_other_blobs)
    suite.add("hub: several repositories", test_several_repos)
    suite.add("hub: local directory", test_local_dir)
    suite.add("git-lfs", test_lfs)
    suite.add("kohya", test_kohya)
    suite.add("modelspec", test_modelspec)
    suite.add("written without", test_written_without)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
