#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources on other machines, looked at from the wire: how many requests there
are and how many at once, which bytes come twice, and where a secret may never
be. Servers are on loopback."""

import base64
import json
import re
import shutil
import sys
import time
import urllib.parse
import zipfile

import remote_test as remote
from remote_servers import Hub, Server, bytes_of
from remote_test import CLEAN, layers, ok, run, write_model
from support import Suite, check, check_equal, read_safetensors

FULL = False
# Seconds that a server takes for an answer. A client that looks at its own rate
# sees what else the machine does, unless answers take longer than that does.
SLOWER = (0.25, 1, 4)


class Counting(Server):
    """Answers after a while, and counts how many wait. Refuses more than
    `limit` at once as S3 does. A request is counted until its answer begins: a
    client that has the end of one may send the next before this thread gets the
    processor again, and that would be one too many."""

    def __init__(self, folder, seconds=0.25, limit=1000):
        super().__init__(folder)
        self.seconds, self.limit = seconds, limit
        self.running = self.most = self.refused = 0

    def answer(self, handler, request, fault):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            many = self.running > self.limit
            self.refused += many
        time.sleep(self.seconds)  # noqa: TID251  a slow server
        with self.lock:
            self.running -= 1
        super().answer(handler, request, ("status", 503) if many else fault)


def most_at_once(folder, path, seconds, **env):
    """Of the requests for a file or a folder, each answered after that time."""
    out = folder / f"out{seconds}{len(env)}"
    with Counting(folder, seconds) as server:
        ok("fetch", f"{server.url}/{path}", out, "-q", "--no-fsync", env=env)
    want = folder / path
    check(remote.files_of(out) == (remote.files_of(want) if want.is_dir() else
                                   {path: want.read_bytes()}), "bytes")
    return server.most


def test_grows(folder):
    """More requests at once as long as that moves more, within the limit."""
    for i in range(48):
        write_model(folder / f"d/{i}.safetensors", layers(1, 2 << 20))
    check(any(most_at_once(folder, "d", s) > 8 for s in SLOWER),
          "no more than 8 at once")
    write_model(folder / "m.safetensors", layers(24, 4 << 20))
    few = [most_at_once(folder, "m.safetensors", s, CKPT_NET_CONNECTIONS="3")
           for s in SLOWER[:2]]
    check_equal(max(few), 3, "at once")


def test_shrinks(folder):
    """A server that accepts four at a time is not constantly asked for eight:
    refusals cease, and the run goes on."""
    for i in range(24):
        write_model(folder / f"d/{i}.safetensors", layers(1, 64 << 10))
    told = []
    for seconds in (0.1, *SLOWER):
        out = folder / f"out{seconds}"
        with Counting(folder, seconds, limit=4) as server:
            ok("fetch", server.url + "/d", out, "-q", "--no-fsync")
        check_equal(remote.files_of(out), remote.files_of(folder / "d"),
                    "files")
        check(server.refused > 0, "nothing was refused")
        good = len(server.requests) - server.refused
        if server.refused < good / 2:
            return
        told.append(f"{server.refused} refused of {good + server.refused}")
    check(False, "; ".join(told))


def ranges(server, name):
    return [r for r in server.requests if r.path.endswith(name)
            and r.status == 206]


def test_zip(folder):
    """A zip's directory: first what follows it, then all of it. A small one
    comes with the first request."""
    for count, most in ((300, 1), (12_000, 2)):
        name = f"m{count}.pt"
        write_model(folder / "m.safetensors",
                    {f"layers.{i}.some.longer.name.weight": 64
                     for i in range(count)})
        ok("convert", folder / "m.safetensors", folder / name, "-q")
        size = (folder / name).stat().st_size
        with Server(folder) as server:
            ok("inspect", server.url + "/" + name, "-q")
            seen = ranges(server, name)
            first = [r.headers["range"].removeprefix("bytes=").split("-")
                     for r in seen]
            with zipfile.ZipFile(folder / name) as archive:
                directory = archive.start_dir
            # A small one is within the first read at the end.
            behind = [int(b) for b, e in first if int(e) > directory]
            check(0 < len(behind) <= most, f"{len(behind)} for the directory "
                  f"of {count} records: {first}")
            check(len(server.requests) <= most + 10, first)
            print(f"  zip of {count} records, {size >> 10} KiB: "
                  f"{len(behind)} requests for its directory, "
                  f"{len(server.requests)} in all, {server.bytes >> 10} KiB",
                  flush=True)


def test_records(folder):
    """Looks at a zip's records don't wait for each other, whether they lie
    apart or close together."""
    for size, count in ((1 << 20, 24), (2 << 10, 600)):
        write_model(folder / "m.safetensors", layers(count, size))
        name = f"m{count}.pt"
        ok("convert", folder / "m.safetensors", folder / name, "-q")
        for seconds in (0.02, *SLOWER):
            with Counting(folder, seconds) as server:
                ok("scan", server.url + "/" + name, "-q")
            seen = ranges(server, name)
            if server.most > 4 or len(seen) <= 10:
                break
        else:
            check(False, f"{len(seen)} requests, {server.most} at once")
        check(len(seen) <= 24 + 8, f"{len(seen)} requests")
        # In a step that nobody waits for: all but the heads is skipped.
        check(count > 24 or server.bytes < 4 << 20, f"{server.bytes >> 10} KiB")


# What many small tensors are stored in, and how that is written.
SMALL = {"m.pt": (), "st": ("--to", "safetensors"),
         "dcp": ("--to", "dcp", "--dp", "2")}


def test_small(folder, name):
    """Whoever reads all bytes asks for ranges over the borders of small
    tensors: not for each of them."""
    write_model(folder / "m.safetensors",
                {f"layers.{i}.w": 100 << 10 for i in range(200)})
    kept = folder / name
    ok("convert", folder / "m.safetensors", kept, *SMALL[name], "-q",
       "--no-fsync", "--no-manifest")
    files = [p for p in ([kept] if kept.is_file() else kept.rglob("*"))
             if p.is_file()]
    mib = sum(p.stat().st_size for p in files) >> 20
    with Server(folder) as server:
        url = f"{server.url}/{name}"
        for args in (("verify", url), ("diff", url, kept),
                     ("convert", url, folder / "out", "--to", "safetensors",
                      "-q", "--no-fsync")):
            server.forget()
            ok(*args)
            # Once for the payload, and of archives once for their heads.
            most = 3 * mib + 12 * (1 + len(files))
            if name == "st":
                most = mib // 2 + 12
            check(len(server.requests) <= most,
                  f"{args[0]}: {len(server.requests)} requests for {mib} MiB "
                  f"in {len(files)} files")


def test_evil_storage(folder):
    """`verify` looks for pickles in storages as their bytes pass, and tells the
    same in the same order as where it reads their fronts before that; where
    bytes are damaged or left out, too."""
    evil = b"\x80\x02cos\nsystem\nX\4\0\0\0true\x85R."
    model = folder / "m.safetensors"
    write_model(model, {f"layers.{i}.w": 70 << 10 for i in range(12)})
    data = bytearray(model.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    for i in (2, 7):
        at = begin + i * (70 << 10)
        data[at:at + len(evil)] = evil
    model.write_bytes(data)
    for to, name in (("torch", "m.pt"), ("dcp", "dcp"), ("torch", "rotten.pt"),
                     ("torch", "cut.pt"), ("torch", "dir/model.pt")):
        kept = folder / name
        kept.parent.mkdir(exist_ok=True)
        ok("convert", model, kept, "--to", to, "-q", "--no-fsync",
           "--no-manifest")
    for name, change in (("rotten.pt", lambda d: d.replace(evil, evil[:-1] + b"0")),
                         ("cut.pt", lambda d: d[:-400])):
        kept = folder / name
        kept.write_bytes(change(kept.read_bytes()))
    counts = {}
    with Server(folder) as server:
        for name in ("m.pt", "dcp", "rotten.pt", "cut.pt", "dir"):
            for more in ((), ("--deep",), ("--quick",), ("--keys", "layers.7.*")):
                here = run("verify", folder / name, "--json", *more)
                there = run("verify", f"{server.url}/{name}", "--json", *more)
                check_equal(there.code, here.code, str(there))
                check_equal(there.json()["problems"], json.loads(
                    here.out.replace(f"{folder}/", f"{server.url}/"))["problems"],
                    f"{name} {more}")
                counts[name] = here.out.count('"executes"')
    # Those of one name in several archives count once.
    check_equal(counts, {"m.pt": 2, "dcp": 1, "rotten.pt": 2, "cut.pt": 0,
                         "dir": 2}, "found")


def test_salvage(folder):
    """What a damaged checkpoint at a URL gives is what its files here give; they
    come once, whatever the result."""
    sound, broken = folder / "sound", folder / "broken"
    sound.mkdir()
    for i in range(2):
        write_model(folder / "n.safetensors", layers(3, 1 << 20), seed=i)
        ok("convert", folder / "n.safetensors", sound / f"m{i}.pt", "-q",
           "--no-manifest")
    shutil.copytree(sound, broken)
    for path in (broken / "m0.pt", broken / "m1.pt"):
        with open(path, "r+b") as file:  # a zip without its directory
            file.truncate(path.stat().st_size - 600)
    with open(broken / "m1.pt", "r+b") as file:
        file.seek(1 << 20)
        file.write(b"lost" * 1000)
    with Server(folder) as server:
        url = server.url + "/broken"
        here, there = folder / "here.pt", folder / "there.pt"
        ok("salvage", broken / "m0.pt", here, "--no-manifest")
        server.forget()
        left = folder / ".there.pt.ckpt-source"  # by a run that was killed
        left.mkdir()
        (left / "m0.pt").write_bytes(b"another")
        ok("salvage", url + "/m0.pt", there, "--no-manifest")
        check(here.read_bytes() == there.read_bytes(), "other bytes")
        size = (broken / "m0.pt").stat().st_size
        check(server.bytes < 1.02 * size, f"{server.bytes} of {size} bytes")
        check(not list(folder.glob(".*")), "something is left")
        # Where nothing can be written, nothing is fetched.
        server.forget()
        run("salvage", url + "/m0.pt", there).want(5)
        run("salvage", url + "/m0.pt", folder / "none/there.pt").want(3)
        check(server.bytes < 1 << 16 and not (folder / "none").exists(),
              f"{server.bytes} bytes fetched")
        # What can't be rebuilt is refused, and need not come again.
        lost = run("salvage", url + "/m1.pt", there, "--overwrite")
        check(lost.code in (1, 5) and url in lost.err and
              "ckpt-source" in lost.err, str(lost))
        server.forget()
        lost = run("salvage", url + "/m1.pt", there, "--overwrite", "--partial",
                   "zeros").want(1)
        check(server.bytes < 1 << 16, f"{server.bytes} bytes came again")
        check(not list(folder.glob(".*")), "something is left")
        # Another step there tells the same as here.
        said = [run("salvage", broken / "m1.pt", folder / "like.pt", "--like",
                    like, "--dry-run", "--partial", "nan", "--json")
                for like in (sound / "m1.pt", server.url + "/sound/m1.pt")]
        check_equal(said[1].out, said[0].out, str(said))


def test_blind(folder):
    """Bytes that nothing has to see are asked for ahead, too: a server's can't
    be cloned."""
    write_model(folder / "m.safetensors", layers(12, 4 << 20))
    with Server(folder) as server:
        for to in ("safetensors", "torch", "dcp"):
            server.forget()
            ok("convert", server.url + "/m.safetensors", folder / to, "--to", to,
               "-q", "--no-fsync", "--no-manifest")
            check(len(server.requests) <= 24,
                  f"{to}: {len(server.requests)} requests for 48 MiB")


def etag_of(path):
    return bytes_of(str(path), path.stat().st_mtime_ns)[1]


class Listed(Server):
    """A bucket's objects by ListObjectsV2, 1000 per page."""

    PAGE = 1000

    def answer(self, handler, request, fault):
        parts = urllib.parse.urlsplit(request.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(
            parts.query, keep_blank_values=True).items()}
        if "list-type" not in query:
            return super().answer(handler, request, fault)
        root = self.folder / parts.path.strip("/")
        prefix = query["prefix"]
        below = (root / prefix).rglob("*") if "delimiter" not in query else \
            (root / prefix).iterdir() if (root / prefix).is_dir() else []
        all_of = {str(p.relative_to(root / prefix)): p.is_dir() for p in below}
        names = sorted(n for n in all_of
                       if not all_of[n] or "delimiter" in query)
        at = int(query.get("continuation-token", 0))
        rows = "".join(
            f"<CommonPrefixes><Prefix>{prefix}{n}/</Prefix></CommonPrefixes>"
            if all_of[n] else f"<Contents><Key>{prefix}{n}</Key><ETag>{etag_of(root / prefix / n)}"
            f"</ETag><Size>{(root / prefix / n).stat().st_size}</Size>"
            "</Contents>" for n in names[at:at + self.PAGE])
        more = at + self.PAGE < len(names)
        rows += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        if more:
            rows += "<NextContinuationToken>" \
                f"{at + self.PAGE}</NextContinuationToken>"
        handler.reply(200, "<ListBucketResult><EncodingType>url</EncodingType>"
                      f"{rows}</ListBucketResult>".encode())


def test_index(folder):
    """A DCP of many files: reads its index and the listing's pages, but no
    file."""
    count = 16_384 if FULL else 2_048
    write_model(folder / "m.safetensors", {"w": count * 4})
    (folder / "b").mkdir()
    ok("convert", folder / "m.safetensors", folder / "b" / "step", "--to",
       "dcp", "--dp", str(count), "-q", "--no-fsync", "--no-manifest")
    files = len(list((folder / "b" / "step").glob("*.distcp")))
    check_equal(files, count, "files")
    index = (folder / "b" / "step" / ".metadata").stat().st_size
    pages = count // Listed.PAGE + 1
    with Listed(folder) as server:
        started = time.monotonic()
        ok("inspect", "s3://b/step", "-q", env={
            "AWS_ENDPOINT_URL": server.url, "AWS_NO_SIGN_REQUEST": "1"})
        seconds = time.monotonic() - started
        seen = [r.path for r in server.requests]
        whole = [r for r in server.requests if r.path.endswith(".metadata")]
        print(f"  DCP of {count} files, index of {index >> 10} KiB: "
              f"{len(seen)} requests ({pages} pages of the listing, "
              f"{len(whole)} for the index), {server.bytes >> 10} KiB, "
              f"{seconds:.1f} s", flush=True)
        check(not [p for p in seen if ".distcp" in p], "files were asked for")
        check(len(whole) <= 3 + (index >> 20), [r.headers.get("range")
                                                for r in whole])
        check(len(seen) <= pages + len(whole) + 14, seen)


def test_one_listing(folder):
    """A tree of folders is listed once, not folder by folder; and once more
    at the end, where its files would be asked for one by one."""
    names = [f"{a}/{b}/{c}" for a in "xyz" for b in ("s t", "u") for c in "vw"]
    for name in ("top", *names):
        write_model(folder / "b/run" / f"{name}.safetensors", layers(1, 100))
    with Listed(folder) as server:
        env = {"AWS_ENDPOINT_URL": server.url, "AWS_NO_SIGN_REQUEST": "1"}
        ok("fetch", "s3://b/run", folder / "out", "-q", env=env)
        listed = [r.path for r in server.requests if "list-type" in r.path]
        check_equal(len(listed), 2, listed)
        check_equal(len(server.requests), 2 + len(names) + 1, "requests")
        server.forget()
        ok("fetch", "s3://b/run/x/u", folder / "flat", "-q", env=env)
        listed = [r.path for r in server.requests if "list-type" in r.path]
        check_equal(len(listed), 1, listed)
    got, want = ({str(p.relative_to(at)): p.read_bytes() for p in
                  at.rglob("*") if p.is_file()}
                 for at in (folder / "out", folder / "b/run"))
    check_equal(got, want, "files")


def llama(folder, hidden=1024, layers=1):
    """A Hugging Face model with its published names."""
    heads, ffn, vocab = hidden // 128, 256, 64
    shapes = {"model.embed_tokens.weight": (vocab, hidden),
              "model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        for q in "qkvo":
            shapes[f"{p}self_attn.{q}_proj.weight"] = (hidden, hidden)
        for m in ("gate", "up"):
            shapes[f"{p}mlp.{m}_proj.weight"] = (ffn, hidden)
        shapes[p + "mlp.down_proj.weight"] = (hidden, ffn)
        for n in ("input", "post_attention"):
            shapes[f"{p}{n}_layernorm.weight"] = (hidden,)
    write_model(folder / "model.safetensors",
                {n: 2 * s[0] * (s[1] if len(s) > 1 else 1)
                 for n, s in shapes.items()})
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    for name, entry in header.items():
        entry["dtype"], entry["shape"] = "BF16", list(shapes[name])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Finite: exponents stay in the middle.
    raw = bytearray(data[8 + size:])
    raw[1::2] = bytes(b & 0x81 | 0x3C for b in raw[1::2])
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": 128, "vocab_size": vocab,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "hidden_act": "silu"}))


def test_once(folder):
    """Tensors whose rows are permuted are read once over the wire, though the
    plan reads them in overlapping rows."""
    llama(folder / "hf")
    (folder / "s").mkdir()
    ok("convert", folder / "hf", folder / "s" / "f2", "--to",
       "fairseq2", "-q", "--no-fsync", "--no-manifest", "--tp", "2")
    with Server(folder / "s") as server:
        for keys, wanted in (("*.q_proj.*", 1), ("*.[qk]_proj.*", 2)):
            server.forget()
            ok("convert", server.url + "/f2", folder / f"out{wanted}",
               "--keys", keys, "--to", "safetensors", "-q", "--no-fsync")
            bytes_wanted = wanted * 1024 * 1024 * 2
            payload = sum(r.sent for r in server.requests
                          if r.path.endswith(".pt") and r.sent > 1 << 17)
            print(f"  {keys}: {server.bytes / bytes_wanted:.3f} of "
                  f"{bytes_wanted} bytes, {len(server.requests)} requests",
                  flush=True)
            check(payload <= bytes_wanted * 1.02,
                  f"{payload} bytes of payload for {bytes_wanted}")


def problems_of(done, root):
    """What verify found, with paths below the checkpoint."""
    document = json.loads(done.out)
    return sorted((p["kind"], p["file"].removeprefix(str(root)), p["tensor"],
                   p["message"].replace(str(root), ""))
                  for p in document["problems"])


def test_verified_once(folder):
    """Stored checksums, a manifest's digests and copies are compared in one
    pass over the wire, with the answer that local files get."""
    llama(folder / "hf", layers=4)
    (folder / "s").mkdir()
    ok("convert", folder / "hf", folder / "s/m", "--to", "fairseq2", "-q",
       "--no-fsync", "--tp", "2")
    files = [p for p in (folder / "s/m").rglob("*.pt")]
    size = sum(p.stat().st_size for p in files)
    with Server(folder / "s") as server:
        url = server.url + "/m"
        for more in ((), ("--deep",), ("--finite",)):
            server.forget()
            ok("verify", url, "--max-mem", "48MiB", *more)
            check(size <= server.bytes <= size * 1.02,
                  f"verify {more}: {server.bytes} bytes of {size}")
        # A tensor's byte, and one of a record that no tensor has.
        for file, at in ((files[0], "tensor"), (files[1], "version")):
            data = file.read_bytes()
            place = len(data) // 2
            if at == "version":
                with zipfile.ZipFile(file) as archive:
                    place = next(i.header_offset for i in archive.infolist()
                                 if i.filename.endswith("/version"))
                place = data.index(b"\n", place + 30)  # "3\n"
            file.write_bytes(data[:place] + bytes([data[place] ^ 1])
                             + data[place + 1:])
            for more in ((), ("--deep",)):
                here = run("verify", folder / "s/m", "--json", *more)
                there = run("verify", url, "--json", *more)
                check_equal((there.code, here.code), (1, 1), there.err)
                check_equal(problems_of(there, url),
                            problems_of(here, folder / "s/m"), at)
                kinds = {p[0] for p in problems_of(there, url)}
                # One that readers look at ends it.
                check(kinds == {"damaged"} if at == "version" else
                      "crc32" in kinds, there.out)
            file.write_bytes(data)


class Expiring(Server):
    """Accepts the key AKIDOLD for the first bytes only, as S3 does."""

    def __init__(self, folder, renew):
        super().__init__(folder)
        self.renew = renew
        self.expired = 0

    def answer(self, handler, request, fault):
        if "list-type" in request.path:
            return handler.reply(404, b"")
        old = "Credential=AKIDOLD/" in request.headers.get("authorization", "")
        if old and self.bytes > 8 << 20:
            self.expired += 1
            self.renew()
            return handler.reply(400, b"<Error><Code>ExpiredToken</Code>"
                                      b"</Error>", {"x-amz-request-id": "r9"})
        super().answer(handler, request, fault)


def test_expired(folder):
    """Keys that expire during a run are looked up again where they came from.
    If they are unchanged, that is reported."""
    write_model(folder / "b" / "m.safetensors", layers(12, 4 << 20))

    def profile(key):
        (folder / "aws").write_text(
            f"[default]\naws_access_key_id = {key}\n"
            "aws_secret_access_key = hunter2\n")
    for renews in (True, False):
        profile("AKIDOLD")
        with Expiring(folder, lambda: renews and profile("AKIDNEW")) as server:
            done = run("convert", "s3://b/m.safetensors",
                       folder / f"out{renews}", "--to", "safetensors", "-q",
                       env={**AWS, "AWS_ENDPOINT_URL": server.url,
                            "AWS_SHARED_CREDENTIALS_FILE":
                            str(folder / "aws")})
            check(server.expired, "nothing expired")
        if renews:
            done.want(0)
            got = read_safetensors(next((folder / "outTrue").glob("*.s*")))
            check_equal(got, read_safetensors(folder / "b/m.safetensors"),
                        "tensors")
        else:
            check_equal(done.code, 6, done.err)
            # Whichever request comes first: an answer to HEAD says no reason.
            check("the credentials have expired (HTTP 400 ExpiredToken, "
                  "request id r9)" in done.err or
                  "(HTTP 400, request id r9): the credentials may have expired"
                  in done.err, done.err)
            check(not (folder / "outFalse").exists(), "a target")


class Boasting(Server):
    """Says that every file has `size` bytes, and sends zeros."""

    def __init__(self, folder, size):
        super().__init__(folder)
        self.size = size

    def answer(self, handler, request, fault):
        asked = re.match(r"bytes=(\d+)-(\d*)",
                         request.headers.get("range", ""))
        if not asked:
            return handler.reply(200, b"\0" * 64)
        first = int(asked[1])
        last = min(int(asked[2] or self.size) + 1, first + (1 << 20),
                   self.size) - 1
        handler.reply(206, b"\0" * (last - first + 1), {
            "ETag": '"boast"', "Accept-Ranges": "bytes",
            "Content-Range": f"bytes {first}-{last}/{self.size}"})


def test_claimed_size(folder):
    """A size that the disk has no room for is refused before the first byte,
    and its pieces are not counted out in memory."""
    free = shutil.disk_usage(folder).free
    for size in (2 * free, 10**15, 9 * 10**18, 2**63 - 1):
        with Boasting(folder, size) as server:
            done = run("fetch", f"{server.url}/m.safetensors", folder / "out")
            check_equal(done.code, 6, done.err)
            check("are free there" in done.err, done.err)
            # It begins with what this process has.
            check(done.rss < 1 << 30, f"{done.rss} bytes of memory")
        check(not (folder / "out").exists(), "something was written")


def test_own_folder(folder):
    """Links in the place of what a fetch keeps are not followed; a file with
    such a name is not taken."""
    write_model(folder / "b/m.safetensors", layers(2, 1024))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "precious"
    precious.write_bytes(b"precious")
    for name, to in ((".ckpt-fetch", elsewhere),
                     (".ckpt-fetch/journal", precious),
                     (".ckpt-fetch/m.safetensors.part", precious)):
        link = folder / "out" / name
        link.parent.mkdir(parents=True)
        link.symlink_to(to)
        with Server(folder) as server:
            done = run("fetch", f"{server.url}/b/m.safetensors",
                       folder / "out")
        check_equal(done.code, 8, done.err)
        check(name in done.err, done.err)
        check_equal(precious.read_bytes(), b"precious", name)
        check_equal([p.name for p in elsewhere.iterdir()], ["precious"], name)
        shutil.rmtree(folder / "out")
    write_model(folder / "c/m.safetensors", layers(1, 1024))
    write_model(folder / "c/.ckpt-fetch/m.safetensors", layers(1, 1024))
    with Server(folder) as server:
        done = run("fetch", f"{server.url}/c/", folder / "out")
    check(done.code == 5 or (folder / "out/m.safetensors").exists(), done.err)


def test_long_names(folder):
    """Paths whose names have all the bytes that a file system takes."""
    names = ["a" * 255, "b" * 254, "/".join(["d" * 100] * 3 + ["e"]),
             "%" * 90]
    for name in names:
        (folder / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "b" / name).write_bytes(name.encode())
    write_model(folder / "b/m.safetensors", layers(2, 1024))
    with Server(folder) as server:
        ok("fetch", f"{server.url}/b/", folder / "out")
    for name in names[:2] + names[3:]:
        check_equal((folder / "out" / name).read_bytes(), name.encode(), name)


# --------------------------------------------------------------------- secrets
SECRET = "hunter2"
SIGNED = "X-Amz-Signature=hunter2&sig=hunter2"
AWS = {"AWS_REGION": "us-east-1"}


def aws_files(folder, server):
    (folder / "aws").write_text(
        "[work]\naws_access_key_id = AKID\naws_secret_access_key = "
        "hunter2-key\naws_session_token = hunter2-session\n")
    return {**AWS, "AWS_PROFILE": "work", "AWS_ENDPOINT_URL": server.url,
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "aws")}


def token_file(folder, server):
    (folder / "token").write_text("hunter2-file\n")
    return {"HF_ENDPOINT": server.url, "HF_TOKEN_PATH": str(folder / "token")}


# Ways for a secret to come in: (URL, environment) for a server.
SOURCES = {
    "user and password": lambda f, s: (
        s.url.replace("//", "//me:hunter2@") + "/b/m.safetensors", {}),
    "signed query": lambda f, s: (s.url + "/b/m.safetensors?" + SIGNED, {}),
    "HF_TOKEN": lambda f, s: ("hf://org/model", {
        "HF_ENDPOINT": s.url, "HF_TOKEN": "hunter2-hf"}),
    "HF_TOKEN_PATH": lambda f, s: ("hf://org/model", token_file(f, s)),
    "HF_ENDPOINT with a password": lambda f, s: ("hf://org/model", {
        "HF_ENDPOINT": s.url.replace("//", "//me:hunter2@")}),
    "AWS keys": lambda f, s: ("s3://b/m.safetensors", {
        **AWS, "AWS_ENDPOINT_URL": s.url, "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "hunter2-key",
        "AWS_SESSION_TOKEN": "hunter2-session"}),
    "AWS profile": lambda f, s: ("s3://b/m.safetensors", aws_files(f, s)),
    "AWS container": lambda f, s: ("s3://b/m.safetensors", {
        **AWS, "AWS_ENDPOINT_URL": s.url,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": s.url + "/keys.json",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hunter2-container"}),
    "AWS machine": lambda f, s: ("s3://b/m.safetensors", {
        **AWS, "AWS_ENDPOINT_URL": s.url, "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": s.url}),
    "GS bearer": lambda f, s: ("gs://b/m.safetensors", {
        "GS_ENDPOINT_URL": s.url,
        "GOOGLE_OAUTH_ACCESS_TOKEN": "hunter2-oauth"}),
    "GS HMAC": lambda f, s: ("gs://b/m.safetensors", {
        "GS_ENDPOINT_URL": s.url, "GS_ACCESS_KEY_ID": "GOOG",
        "GS_SECRET_ACCESS_KEY": "hunter2-hmac"}),
    "GCE machine": lambda f, s: ("gs://b/m.safetensors", {
        "GS_ENDPOINT_URL": s.url,
        "GCE_METADATA_HOST": s.url.removeprefix("http://")}),
    "Azure key": lambda f, s: ("az://b/m.safetensors", {
        "AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY":
        base64.b64encode(b"hunter2-azure").decode(),
        "AZURE_STORAGE_BLOB_ENDPOINT": s.url}),
    "Azure SAS": lambda f, s: ("az://b/m.safetensors", {
        "AZURE_STORAGE_ACCOUNT": "a",
        "AZURE_STORAGE_SAS_TOKEN": "?" + SIGNED,
        "AZURE_STORAGE_BLOB_ENDPOINT": s.url}),
    "Azure bearer": lambda f, s: ("az://b/m.safetensors", {
        "AZURE_STORAGE_ACCOUNT": "a",
        "AZURE_STORAGE_AUTH_TOKEN": "hunter2-bearer",
        "AZURE_STORAGE_BLOB_ENDPOINT": s.url}),
    "a proxy's password": lambda f, s: (s.url + "/b/m.safetensors", {
        "http_proxy": s.url.replace("//", "//me:hunter2@"), "no_proxy": ""}),
}

# What must not show: the secret, and what is derived from it.
SHOWN = [SECRET, base64.b64encode(b"hunter2").decode()[:8],
         base64.b64encode(b"me:hunter2").decode(),
         base64.b64encode(b"hunter2-azure").decode()[:12]]


class Keys(Hub):
    """Files, the hub's API, and the services that issue keys. Bucket listings
    are refused; objects are looked up by name."""

    def __init__(self, folder):
        self.cdn = Server(folder)
        super().__init__(folder, self.cdn, large=300)
        self.broken = None

    def __exit__(self, *_):
        super().__exit__()
        self.cdn.__exit__()

    def answer(self, handler, request, fault):
        path = request.path
        if path.startswith("http://"):  # as a proxy
            path = "/" + path.split("/", 3)[3]
        request.path = path
        if "x-ms-range" in request.headers:
            del handler.headers["Range"]
            handler.headers["Range"] = request.headers["x-ms-range"]
        keys = json.dumps({"AccessKeyId": "AKID", "Token": "hunter2-session",
                           "SecretAccessKey": "hunter2-secret"}).encode()
        if path == "/keys.json":
            check_equal(request.headers.get("authorization"),
                        "hunter2-container", "container's token")
            return handler.reply(200, keys)
        if path == "/latest/api/token":
            return handler.reply(200, b"hunter2-imds")
        if path.startswith("/latest/meta-data/iam/security-credentials/"):
            check_equal(request.headers.get("x-aws-ec2-metadata-token"),
                        "hunter2-imds", "machine's token")
            return handler.reply(200, keys if path.endswith("/role")
                                 else b"role\n")
        if path.startswith("/computeMetadata/"):
            check_equal(request.headers.get("metadata-flavor"), "Google", "")
            return handler.reply(200, b'{"access_token": "hunter2-gce"}')
        if "list-type" in path or "comp=list" in path:
            return handler.reply(404, b"")
        if self.broken and not path.startswith("/api/"):
            return handler.reply(*self.broken)
        if path.startswith(("/api/", "/org/")):
            return super().answer(handler, request, fault)
        return Server.answer(self, handler, request, fault)



def said_by(folder, url, env):
    """Everything that commands print and write about a URL."""
    said = []
    out = folder / "out"

    def note(*args, **more):
        done = run(*args, env={**env, "CKPT_NET_RETRIES": "0", **more})
        said.extend((done.out, done.err))
        return done
    check_equal(note("inspect", url, "-vv", "--json").code, 0, said[-1])
    note("verify", url, "-vv", "--ndjson")
    note("inspect", url, "--html", out / "page.html")
    note("convert", url, out / "new", "--to", "dcp", "-vv", "--trace",
         out / "trace.json", "--progress", "json", "--json")
    check((out / "new").is_dir(), said[-1])
    note("convert", url, out / "planned", "--to", "dcp", "-n", "-vv", "-o",
         out / "plan.json")
    note("fetch", url, out / "fetched", "-vv", "--progress", "always")
    note("convert", url, out / "small", "--to", "gguf", "-vv")
    return said


BROKEN = {
    403: (403, b"<Error><Code>SignatureDoesNotMatch</Code><Message>hunter2"
               b"</Message></Error>", {"x-request-id": "r1"}),
    404: (404, b"hunter2"),
    429: (429, b"hunter2"),
    400: (400, b"<Error><Code>ExpiredToken</Code><T>hunter2</T></Error>"),
    301: (301, b"", {"Location": "http://me:hunter2@127.0.0.1:1/x?sig=hunter2"}),
    200: (200, b"<html>not a model", {"Content-Type": "text/html"}),
}


def test_secrets(folder, name):
    """No secret gets out: not by -vv, JSON, progress, manifests, journals,
    plans, traces, pages or error messages."""
    write_model(folder / "s" / "b" / "m.safetensors", layers(2, 1000))
    write_model(folder / "s" / "org/model" / "m.safetensors", layers(2, 1000))
    (folder / "out").mkdir()
    with Keys(folder / "s") as server:
        url, env = SOURCES[name](folder, server)
        said = said_by(folder, url, env)
        check(server.requests, "nobody was asked")
        # All of them with --full, otherwise two for each source.
        at = list(SOURCES).index(name)
        statuses = list(BROKEN)
        for status in statuses if FULL else (statuses[at % 6],
                                             statuses[(at + 3) % 6]):
            server.broken = BROKEN[status]
            for args in (("convert", url, folder / "out" / "half", "--to",
                          "dcp", "-vv"),
                         ("fetch", url, folder / "out" / "half2", "--json")):
                done = run(*args, env={**env, "CKPT_NET_RETRIES": "0"})
                said += [done.out, done.err]
        server.broken = None
    # The server is gone.
    done = run("inspect", url, "-vv", env={**env, "CKPT_NET_RETRIES": "0"})
    check(done.code in (3, 6), f"{done.code}: {done.err}")
    said += [done.out, done.err]
    said += [p.name + p.read_text("utf-8", "replace")
             for p in (folder / "out").rglob("*") if p.is_file()]
    for text in said:
        for secret in SHOWN:
            at = text.find(secret)
            check(at < 0, f"shown: {text[max(0, at - 200):at + 20]}")


def main():
    suite = Suite(__doc__)
    for test in (test_grows, test_shrinks, test_zip, test_records, test_index,
                 test_one_listing, test_once, test_verified_once,
                 test_expired, test_claimed_size, test_own_folder,
                 test_long_names):
        suite.add(test.__name__.removeprefix("test_"), test)
    suite.add("blind", test_blind)
    suite.add("evil storage", test_evil_storage)
    suite.add("salvage", test_salvage)
    for name in SMALL:
        suite.add("small " + name, test_small, name)
    for name in SOURCES:
        suite.add("secrets " + name, test_secrets, name)

    def prepare(which, ckpt):
        global FULL
        FULL = which.full
        remote.CKPT = ckpt
        probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                         env={**CLEAN, "CKPT_NET_RETRIES": "0"})
        if probe.code == 7:
            print("skipped: " + probe.err.strip())
            sys.exit(77)
    suite.main(prepare)


if __name__ == "__main__":
    main()
