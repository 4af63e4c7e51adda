#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Object stores and web servers that are odd, and legal or not: either the
bytes are right and all are there, or an error says what to do. Keys that expire
are looked up again, reading and writing."""

import base64
import gzip
import hashlib
import hmac
import json
import random
import re
import socket
import threading
import time
import urllib.parse

import remote_test as remote
from object_server import Objects, signer_of
from remote_servers import Handler, Http, Hub, Server
from support import DATA, HANG, Suite, check, check_equal

PART = 5 << 20


def model(folder, name="model.safetensors", tensors=None, seed=0):
    remote.write_model(folder / name, tensors or {"a": 3000, "b": 100}, seed)
    return (folder / name).read_bytes()


def run(server, *args, **env):
    return remote.run(*args, env={"CKPT_NET_RETRIES": "1", **server.env,
                                  **env})


def copied(server, folder, url="s3://b/m"):
    """What `fetch` brings."""
    run(server, "fetch", url, folder, "-q").want(0)
    return remote.files_of(folder)


# ------------------------------------------------------------------- listings
def test_pages(folder):
    """Listings of any number of pages, flat or with folders."""
    rule = random.Random(27)
    names = [f"{rule.choice(['', 'x/', 'x/y/', 'z t/'])}{i:02}.bin"
             for i in range(23)]
    want = {name: rule.randbytes(30) for name in names}
    for page in (1, 2, 7, 22, 23, 1000):
        with Objects({"m/" + k: v for k, v in want.items()},
                     page=page) as server:
            check_equal(copied(server, folder / f"out{page}"), want, page)


def test_cut_listing(folder):
    """A listing that ends without an end would be a smaller checkpoint."""
    objects = {f"m/{i}.safetensors": model(folder, f"s/{i}", {f"l.{i}": 50})
               for i in range(9)}
    for odd in ("no token", "same token", "old list"):
        with Objects(objects, odd={odd}, page=4) as server:
            for number, words in enumerate((
                    ["inspect", "s3://b/m"], ["fetch", "s3://b/m"],
                    ["convert", "s3://b/m", "--to", "dcp"])):
                out = folder / f"{odd}{number}"
                words = words[:2] + [out] * (number > 0) + words[2:]
                done = run(server, *words)
                check_equal(done.code, 6, f"{odd}: {done}")
                check("listing is cut" in done.err, str(done))
                check(not list(folder.glob(f"{odd}*/*.safetensors")), "files")
        with Objects(objects, page=4) as server:  # without the oddity
            run(server, "inspect", "s3://b/m").want(0)


def test_last_look(folder):
    """What lies in a store is looked at again in as many pages as before, all
    at once; where the server doesn't know how, one after the other. What
    changed meanwhile is found on any page."""
    objects = {f"m/{i:04}": b"%d" % i for i in range(1010)}
    words = "fetch", "--include", "*5", "--no-fsync", "s3://b/m"
    for name, odd, many in (("at once", (), 4), ("in turn", ("no start",), 6)):
        with Objects(objects, odd=odd) as server:
            run(server, *words, folder / name).want(0)
            check_equal(len(remote.files_of(folder / name)), 101, name)
            listed = [r for r in server.requests if "list-type" in r.path]
            check_equal(len(listed), many, [r.path for r in listed])
            check_equal(len(server.requests), 101 + many, "requests")

    def change(request, _):
        if "start-after" in request.path:
            server.objects["m/1005"] = (b"x", {})

    with Objects(objects) as server:
        server.fault = change
        done = run(server, *words, folder / "changed")
        check_equal(done.code, 6, str(done))
        check("changed during the run" in done.err, done.err)


def test_beside(folder):
    """What lies beside a checkpoint is listed once, and not asked for by name.
    It is no matter of the checkpoint's, however odd or large."""
    inner = {"run/model/model.safetensors": model(folder, "s", {"l.0": 50})}
    for more, page, most in (({"run/x": b"1"}, 1000, 0),
                             ({"run/model": b"x"}, 1000, 9),
                             ({f"run/{i}": b"x" for i in range(4)}, 3, 9)):
        with Objects({**inner, **more}, page=page) as server:
            run(server, "inspect", "s3://b/run/model").want(0)
            heads = [path for _, method, path, _ in server.log
                     if method == "HEAD"]
            check(len(heads) <= most, heads)
            if most == 0:
                check_equal(len(server.log), 3, [x[1:3] for x in server.log])


def test_known(folder):
    """A look at a target leaves what is known of the source: its files are not
    asked about again, each alone. What is carried is looked into at once."""
    objects = {f"r/m/{i}.txt": b"%d" % i for i in range(24)}
    objects["r/m/model.safetensors"] = model(folder)
    several = threading.Event()
    inside, lock = [], threading.Lock()

    def count(request, _):
        """None is answered before three are there."""
        if request.method == "GET" and request.path.endswith(".txt"):
            with lock:
                inside.append(request)
                if len(inside) == 3:
                    several.set()
            several.wait(HANG)

    for command in (["convert", "--to", "dcp"], ["reshard", "--to", "torch"],
                    ["fetch"]):
        for target in ("s3://b/r/out", "s3://b/other/out", "s3://b/r/m2"):
            with Objects(objects) as server:
                server.fault = count
                inside.clear()
                several.clear()
                run(server, command[0], "s3://b/r/m", target, "-q",
                    *command[1:]).want(0)
                asked = [path for _, method, path, _ in server.log
                         if method == "HEAD" and path.startswith("/b/r/m/") or
                         "list-type" in path and ".txt" in path]
                check_equal(asked, [], f"{command} {target}")
                check(several.is_set(), f"{command}: one after the other")


def test_steps(folder):
    """"." and ".." in a URL lead where they do in a path."""
    data = model(folder)
    with Objects({"x/m/model.safetensors": data}) as server:
        for url, key in (("s3://b/x/./../y", "y"), ("s3://b/./z", "z")):
            run(server, "convert", "s3://b/x/m", url, "--to",
                "safetensors").want(0)
            check(f"{key}/model.safetensors" in server.objects,
                  f"{url}: {list(server.objects)}")
            run(server, "ls", url).want(0)
        run(server, "ls", "s3://b/x/./m/../m/.").want(0)


def test_age(folder):
    """A store's steps have no age here, and none is made up."""
    golden = DATA / "runs/lightning_ckpt/ckpt"
    files = {"m/" + k: v for k, v in remote.files_of(golden).items()}
    with Objects(files) as server:
        said = run(server, "ls", "-l", "s3://b/m").want(0).out
        check(re.search(r"KiB +- +complete", said), said)


PLAIN = ["a b+c%20d.safetensors", "ü&<>'\"#?=;@,.safetensors", "a\\b.bin",
         "~$(x).bin", "%2e%2e.bin", "...", "sub/..x", ".hidden", "日本.bin"]
WRONG = ["../x.bin", "./x.bin", "s/../../x.bin", "/x.bin", "s//x.bin", "s//"]


def test_keys(folder):
    """What a path can name is copied; anything else is refused by name."""
    want = {name: name.encode() for name in PLAIN}
    objects = {"m/" + k: v for k, v in want.items()}
    markers = {"m/": b"", "m/sub/": b"", "m/sub": b"", "m/empty/": b""}
    with Objects({**objects, **markers}) as server:
        check_equal(copied(server, folder / "out"), want, "files")
        for name in PLAIN:
            out = folder / "one"
            run(server, "fetch", "s3://b/m/" + name, out, "-q").want(0)
            check_equal(remote.files_of(out), {
                name.split("/")[-1]: want[name]}, name)
            (out / name.split("/")[-1]).unlink()
    data = model(folder)
    for page in (1000, 1):
        for name in WRONG:
            with Objects({"m/model.safetensors": data, "m/" + name: b"x"},
                         page=page) as server:
                done = run(server, "fetch", "s3://b/m", folder / "no")
                check_equal(done.code, 4, f"{name}: {done}")
                check("is not a part of a path" in done.err and
                      "s3://b/m" in done.err,
                      f"{name}: {done}")
                check(not (folder / "no/model.safetensors").exists(), name)
    # Beside a checkpoint they are no matter of its.
    for beside in (WRONG, ["a", "a/b"]):
        for page in (1000, 1):
            with Objects({"m/model.safetensors": data,
                          **{name: b"x" for name in beside}},
                         page=page) as server:
                run(server, "verify", "s3://b/m").want(0)
                done = run(server, "fetch", "s3://b", folder / "no")
                check_equal(done.code, 4, f"{beside}: {done}")
    with Objects({"m/model.safetensors": data, "m/a": b"x", "m/a/b": b"y"}) \
            as server:
        done = run(server, "fetch", "s3://b/m", folder / "both")
        check_equal(done.code, 4, str(done))
        check("s3://b/m/a" in done.err and "rename" in done.err, str(done))


def test_versions(folder):
    """No ETag or a weak one: sizes are compared, and all works."""
    data = model(folder)
    for odd in ("no etag", "weak"):
        with Objects({"m/model.safetensors": data}, odd={odd}) as server:
            check_equal(copied(server, folder / odd), {
                "model.safetensors": data}, odd)


def test_not_there(folder):
    """What isn't there: which part of the URL, and what is beside it."""
    objects = {"r/run/step_10/model.safetensors": model(folder), "r/x.bin": b""}
    with Objects(objects) as server:
        for words, text in (
                (["inspect", "s3://none/x"], 'there is no bucket "none"'),
                (["ls", "s3://none"], 's3://none: there is no bucket "none"'),
                (["inspect", "gs://none/x"], 'there is no bucket "none"'),
                (["inspect", "s3://b/r/run/step_1"],
                 "did you mean s3://b/r/run/step_10?"),
                (["verify", "s3://b/r/else/"], "below s3://b/r are: run, x.bin"),
                (["inspect", "s3://b/q"], "look at its spelling")):
            done = run(server, *words, GS_ENDPOINT_URL=server.url)
            check_equal(done.code, 3, str(done))
            check(text in done.err, f"{text}: {done}")
        for words, text in (
                (["doctor", "s3://b/r"], "a directory of this machine"),
                (["fetch", "s3://b/r/x.bin", folder / "y.bin"],
                 "fetch s3://b/r/x.bin . puts x.bin here")):
            done = run(server, *words)
            check_equal(done.code, 2, str(done))
            check(text in done.err, f"{text}: {done}")
        done = run(server, "fetch", "s3://b/r", folder / "y", "--include", "*.pt")
        check_equal(done.code, 3, str(done))
        check("none of its 2 files is wanted" in done.err and
              "a name here: " in done.err, str(done))
        run(server, "fetch", "s3://b/r/x.bin", f"{folder}/y.bin/").want(0)
        # Nothing lies below an object: it isn't asked for.
        server.forget()
        run(server, "inspect", "s3://b/r/run/step_10/model.safetensors").want(0)
        below = [one.path for one in server.requests
                 if "model.safetensors%2F" in one.path]
        check(len(below) == 1, f"{below}")


# -------------------------------------------------------------------- targets
def test_late_error(folder):
    """HTTP 200 with an error inside, or with nothing: an object that stood
    there before is not taken for the new one."""
    model(folder, "new/m.safetensors", {"a": 2 * PART}, 2)
    remote.ok("convert", folder / "new/m.safetensors", folder / "t.safetensors",
              "--to", "safetensors")
    want = (folder / "t.safetensors").read_bytes()
    old = want[:-1] + bytes([want[-1] ^ 1])
    words = ["convert", folder / "new/m.safetensors", "s3://b/t.safetensors",
             "--to", "safetensors"]
    for odd in ("late error", "empty answer"):
        for before in ({}, {"t.safetensors": old}):
            spool = folder / f"{odd}{len(before)}"
            spool.mkdir()
            env = {"CKPT_NET_PART_MIB": "5", "CKPT_NET_BACKOFF_MS": "1",
                   "CKPT_SPOOL": str(spool)}
            with Objects(before, odd={odd}) as server:
                over = ["--overwrite"] * len(before)
                done = run(server, *words, *over, **env)
                check_equal(done.code, 6, f"{odd}: {done}")
                check("--resume" in done.err, str(done))
                server.odd.clear()
                run(server, *words, *over, "--resume", **env).want(0)
                check(server.objects["t.safetensors"][0] == want, odd)


def profile(folder, key):
    (folder / "new keys").write_text(
        f"[default]\naws_access_key_id = {key}\n"
        f"aws_secret_access_key = hunter2\naws_session_token = of-{key}\n")
    (folder / "new keys").replace(folder / "keys")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "keys"),
            "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


def expiring(folder, server, at):
    """From the at-th request on, the keys AKID1 have expired; a program has
    written others by then: before any request is refused, and several are
    answered at a time."""
    lock = threading.Lock()
    others = []

    def fault(request, number):
        if number < at:
            return None
        with lock:
            if not others:
                others.append(profile(folder, "AKID2"))
        return ("code", 400, "ExpiredToken") if signer_of(request) == "AKID1" \
            else None
    server.fault = fault


def test_expired(folder):
    """Keys that expire at any request of a run, reading or writing: others are
    looked up, and the run goes on."""
    model(folder, "m.safetensors", {f"l.{i}": PART // 2 for i in range(5)})
    data = (folder / "m.safetensors").read_bytes()
    (folder / "spool").mkdir()
    for name, words, objects in (
            ("write", ["convert", folder / "m.safetensors", "s3://b/t", "--to",
                       "safetensors"], {}),
            ("copy", ["fetch", "s3://b/m", folder / "out"], {"m/m.bin": data}),
            ("read", ["convert", "s3://b/m/m.safetensors", folder / "out",
                      "--to", "safetensors", "--overwrite"],
             {"m/m.safetensors": data})):
        env = {"CKPT_NET_PART_MIB": "5", "CKPT_SPOOL": str(folder / "spool")}
        at = requests = 0
        want = None
        while at <= requests:  # all at one key; then at each request
            with Objects(objects) as server:
                keys = profile(folder, "AKID1")
                if at:
                    expiring(folder, server, at)
                done = run(server, *words, **env, **keys)
                check_equal(done.code, 0, f"{name}, request {at}: {done}")
                check("hunter2" not in done.err, "a secret")
                got = ({k: v[0] for k, v in server.objects.items()
                        if "manifest" not in k} if name == "write" else
                       remote.files_of(folder / "out"))
                want = want or got
                check(got == want, f"{name}, request {at}: other bytes")
                requests = requests or len(server.requests)
                if at and at < requests:
                    check_equal(signer_of(server.requests[-1]), "AKID2", "who")
                for path in (folder / "out").glob("*.bin"):
                    path.unlink()
            at += 1 if at < 12 else 3
    # No others: it says so, and the same command goes on later.
    with Objects() as server:
        keys = profile(folder, "AKID1")
        server.fault = lambda request, number: ("code", 400, "ExpiredToken") \
            if number > 6 and signer_of(request) == "AKID1" else None
        words = ["convert", folder / "m.safetensors", "s3://b/t", "--to",
                 "safetensors"]
        done = run(server, *words, **env, **keys)
        check_equal(done.code, 6, str(done))
        check("expired" in done.err and "--resume" in done.err, str(done))
        profile(folder, "AKID2")
        run(server, *words, "--resume", **env, **keys).want(0)


TORN = ["", "[default]\n", "[default]\naws_access_key_id = AKID2\n",
        "[default]\naws_access_key_id = AKID1.5\naws_secret_access_key = x\n"]


def test_late_keys(folder):
    """Keys that are written only after some requests were refused, not in one
    go: the run waits for them as between tries, once, whoever was refused."""
    data = model(folder, "m.safetensors",
                 {f"l.{i}": PART for i in range(8)})
    words = ["convert", "s3://b/m/m.safetensors", folder / "out", "--to",
             "safetensors", "--overwrite"]
    env = {"CKPT_NET_RETRIES": "16", "CKPT_NET_BACKOFF_MS": "100"}
    at = 9  # the second of six for payload, which are answered at once
    for torn in TORN:
        with Objects({"m/m.safetensors": data}) as server:
            keys = profile(folder, "AKID1")

            def write(torn=torn):
                (folder / "keys").write_text(torn)
                threading.Timer(0.4, profile, (folder, "AKID2")).start()
            writer = threading.Timer(0.2, write)

            def fault(request, number, writer=writer):
                if number < at or signer_of(request) == "AKID2":
                    return None
                with server.lock:
                    if not writer.ident:
                        writer.start()
                code = "ExpiredToken" if signer_of(request) == "AKID1" \
                    else "AccessDenied"
                return ("code", 400 + 3 * (code[0] == "A"), code)
            server.fault = fault
            run(server, *words, **keys, **env).want(0)
            check(signer_of(server.requests[-1]) == "AKID2", "who")
            check(all(signer_of(one) for one in server.requests), "unsigned")
    # None come: one wait for all of them, and the message.
    with Objects({"m/m.safetensors": data}) as server:
        keys = profile(folder, "AKID1")
        server.fault = lambda request, number: (
            ("code", 400, "ExpiredToken") if number >= at else None)
        start = time.monotonic()
        done = run(server, *words, **keys, **{**env, "CKPT_NET_RETRIES": "4"})
        check_equal(done.code, 6, str(done))
        check("expired" in done.err, str(done))
        check(time.monotonic() - start > 1.5, "did not wait")
        refused = sum(1 for one in server.requests[at - 1:])
        check(refused < 12, f"{refused} requests with keys that expired")


def test_aws_keys(folder):
    """Which keys AWS's own tools would take; what ckpt does not do is said."""
    data = model(folder, "m.safetensors")
    (folder / "keys").write_text(
        "[default]\naws_access_key_id = FILE\naws_secret_access_key = x\n"
        "[half]\naws_access_key_id = HALF\n"
        "[sso]\nsso_session = work\n")
    base = {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "keys"),
            "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    own = {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "x"}
    (folder / "jwt").write_text("token")
    with Objects({"m.safetensors": data}) as server:
        web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "jwt"),
               "AWS_ROLE_ARN": "arn:r", "AWS_ENDPOINT_URL_STS": server.url}
        server.fault = lambda request, _: (
            ("text", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
             b"<R><AccessKeyId>WEB</AccessKeyId><SecretAccessKey>x"
             b"</SecretAccessKey><SessionToken>t</SessionToken></R>")
            if "AssumeRole" in request.path else None)
        for env, who in (({}, "FILE"), (own, "ENV"), (web, "WEB"),
                         ({**own, "AWS_PROFILE": "sso"}, "ENV"),
                         ({**own, **web}, "ENV")):
            server.forget()
            run(server, "inspect", "s3://b/m.safetensors",
                **{**base, **env}).want(0)
            check_equal(signer_of(server.requests[-1]), who, str(env))
        for env, text in (
                ({"AWS_PROFILE": "half"}, "no secret access key"),
                ({"AWS_ACCESS_KEY_ID": "X"}, "the environment has an AWS"),
                ({"AWS_PROFILE": "none"}, "no such profile"),
                ({"AWS_PROFILE": "sso"}, "not in ~/.aws/config")):
            server.forget()
            done = run(server, "inspect", "s3://b/m.safetensors",
                       **{**base, **env})
            check_equal(done.code, 2, str(done))
            check(text in done.err and not server.requests, str(done))


def signature(request, secret, service):
    """AWS's Signature Version 4 of a GET, from its documentation."""
    line = request.headers["authorization"]
    names = re.search(r"SignedHeaders=([^,]*)", line)[1].split(";")
    date = request.headers["x-amz-date"]
    region = re.search(r"Credential=[^/]*/[^/]*/([^/]*)/", line)[1]
    path, _, query = request.path.partition("?")
    canonical = "\n".join(
        ["GET", path, "&".join(sorted(query.split("&")))] +
        [f"{n}:{request.headers[n].strip()}" for n in names] +
        ["", ";".join(names), request.headers.get(
            "x-amz-content-sha256", hashlib.sha256(b"").hexdigest())])
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope,
                      hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in (date[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def test_aws_profiles(folder):
    """A profile's role, program and login give keys, as in AWS's own tools."""
    data = model(folder, "m.safetensors")
    program = folder / "program"
    program.write_text('#!/bin/sh\necho "{\\"Version\\": 1, \\"AccessKeyId\\": '
                       '\\"$1\\", \\"SecretAccessKey\\": \\"x\\"}"\n')
    program.chmod(0o755)
    aws = folder / ".aws"
    (aws / "sso/cache").mkdir(parents=True)
    start = "https://acme.awsapps.com/start"
    login = {"sso_account_id": "12", "sso_role_name": "trainer"}

    def section(name, **lines):
        return f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items())

    keys = {"aws_access_key_id": "OWN", "aws_secret_access_key": "own secret"}
    (aws / "config").write_text(
        section("default", **keys) +
        section("profile role", role_arn="arn:1", source_profile="default",
                external_id="e/1", region="eu-west-3") +
        section("profile self", role_arn="arn:2", source_profile="self", **keys) +
        section("profile chain", role_arn="arn:3", source_profile="role") +
        section("profile env", role_arn="arn:4",
                credential_source="Environment") +
        section("profile ring", role_arn="arn:5", source_profile="knot") +
        section("profile knot", role_arn="arn:6", source_profile="ring") +
        section("profile lost", role_arn="arn:7", source_profile="nobody") +
        section("profile code", role_arn="arn:8", source_profile="default",
                mfa_serial="arn:mfa") +
        section("profile odd", role_arn="arn:9", credential_source="Sky") +
        section("profile program", credential_process=f"{program} PROG") +
        section("profile failing", credential_process="exit 3") +
        section("profile silent", credential_process="echo secret=hunter3") +
        section("profile work", sso_session="acme", **login) +
        section("sso-session acme", sso_start_url=start, sso_region="eu-west-1") +
        section("profile old", sso_start_url=start + "2", sso_region="eu-west-1",
                **login) +
        section("profile nowhere", sso_session="acme"))
    for name, url, expires, token in (
            ("1", start, "2026-01-01T00:00:00Z", "stale"),
            ("2", start, "2027-01-01T00:00:00Z", "fresh"),
            ("3", start + "3", "2028-01-01T00:00:00Z", "another's")):
        (aws / f"sso/cache/{name}.json").write_text(json.dumps(
            {"startUrl": url, "expiresAt": expires, "accessToken": token}))
    (aws / "sso/cache/4.json").write_text("{")

    def sts(request, _):
        query = dict(urllib.parse.parse_qsl(request.path.partition("?")[2]))
        if query.get("Action") == "AssumeRole":
            secret = {"OWN": "own secret"}.get(signer_of(request), "x")
            good = signature(request, secret, "sts") in \
                request.headers["authorization"]
            who = query["RoleArn"] + query.get("ExternalId", "").replace("/", "+")
            body = (f"<R><AccessKeyId>{who if good else 'BAD'}</AccessKeyId>"
                    "<SecretAccessKey>x</SecretAccessKey>"
                    "<SessionToken>t</SessionToken></R>")
        elif "federation" in request.path:
            if request.headers["x-amz-sso_bearer_token"] != "fresh":
                return ("code", 401, "Unauthorized")
            body = json.dumps({"roleCredentials": {
                "accessKeyId": f"SSO{query['account_id']}{query['role_name']}",
                "secretAccessKey": "x", "sessionToken": "t", "expiration": 1}})
        else:
            return None
        return ("text", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" +
                body.encode())

    with Objects({"m.safetensors": data}) as server:
        server.fault = sts
        base = {"HOME": str(folder), "AWS_CONFIG_FILE": "", "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": "",
                "AWS_ENDPOINT_URL_STS": server.url,
                "AWS_ENDPOINT_URL_SSO": server.url}
        for name, who in (("role", "arn:1e+1"), ("self", "arn:2"),
                          ("chain", "arn:3"), ("program", "PROG"),
                          ("work", "SSO12trainer")):
            server.forget()
            done = run(server, "inspect", "s3://b/m.safetensors",
                       **{**base, "AWS_PROFILE": name}).want(0)
            used = re.search(r"Credential=(.*?)/\d{8}/",
                             server.requests[-1].headers["authorization"])[1]
            check_equal(used, who, name)
        for name, code, text, hint in (
                ("env", 2, "no keys", ""), ("ring", 2, "a circle", ""),
                ("lost", 2, "no profile nobody", ""),
                ("code", 2, "one-time code", "export-credentials"),
                ("odd", 2, "credential_source = Sky", "expected Environment"),
                ("failing", 6, "failed", "exit 3"),
                ("silent", 6, "no keys in JSON", "by hand"),
                ("old", 2, "nobody is logged in", "aws sso login --profile old"),
                ("nowhere", 2, "without sso_account_id", "")):
            done = run(server, "inspect", "s3://b/m.safetensors",
                       **{**base, "AWS_PROFILE": name})
            check_equal(done.code, code, str(done))
            check(text in done.err and hint in done.err and
                  "hunter3" not in done.err.replace("echo secret=hunter3", ""),
                  str(done))
        (aws / "sso/cache/2.json").unlink()
        done = run(server, "inspect", "s3://b/m.safetensors",
                   **{**base, "AWS_PROFILE": "work"})
        check_equal(done.code, 6, str(done))
        check("has expired" in done.err and "aws sso login" in done.err,
              str(done))


class LyingHub(Hub):
    """Names files that are not in the repository."""

    def api(self, handler, parts, query):
        if parts[4] == "revision":
            return super().api(handler, parts, query)
        handler.reply(200, json.dumps([
            {"type": "file", "path": self.named, "size": 3,
             "oid": "0" * 40}]).encode())


def test_hub_names(folder):
    """A hub can't name what lies above its cache: a file of this machine."""
    model(folder / "hub/org/model")
    (folder / "secret").write_text("abc")
    sha = Hub.SHA
    (folder / f"cache/models--org--model/snapshots/{sha}").mkdir(parents=True)
    with Server(folder) as cdn, LyingHub(folder / "hub", cdn) as hub:
        hub.env = {"HF_ENDPOINT": hub.url,
                   "HF_HUB_CACHE": str(folder / "cache")}
        for hub.named in ("../../../../secret", "/etc/hostname", "a/../b",
                          "a//b", "."):
            for words in (["fetch", "hf://org/model", folder / "out"],
                          ["ls", "hf://org/model"]):
                done = run(hub, *words)
                check_equal(done.code, 4, f"{hub.named}: {done}")
                check("not a path in the repository" in done.err, str(done))


def test_hub_revisions(folder):
    """References with slashes, as the hub's own client takes them."""
    data = model(folder / "hub/org/model")
    with Server(folder) as cdn, Hub(folder / "hub", cdn) as hub:
        hub.env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(folder / "c")}
        for at, file in (("refs/pr/7", ""), ("refs%2Fpr%2F7", ""),
                         ("refs/pr/7", "/model.safetensors"), ("v1", "")):
            out = folder / at.replace("/", "_") / f"{len(file)}"
            run(hub, "fetch", f"hf://org/model@{at}{file}", out, "-q").want(0)
            check_equal(remote.files_of(out), {"model.safetensors": data}, at)
        done = run(hub, "inspect", "hf://org/model@")
        check_equal(done.code, 2, str(done))
        check("no revision behind the @" in done.err, str(done))
        for folders, text in ((["c"], "HF_HUB_CACHE names another"),
                              (["c/models--org--model"], "other revisions")):
            for one in folders:
                (folder / one).mkdir()
            done = run(hub, "inspect", "hf://org/model", HF_HUB_OFFLINE="1")
            check_equal(done.code, 3, str(done))
            check(text in done.err, str(done))


# ------------------------------------------------------------- what it means
def test_clock(folder):
    """A wrong clock is named where signatures are refused for it."""
    with Objects({"m/x.bin": b"x"}) as server:
        server.fault = lambda *_: (
            "code", 403, "RequestTimeTooSkewed",
            {"Date": "Fri, 27 Nov 2020 00:00:00 GMT"})
        done = run(server, "inspect", "s3://b/m")
        check_equal(done.code, 6, str(done))
        check("the clock of this machine" in done.err and
              "set the clock" in done.err, str(done))


class Packing(Server):
    """Packs everything, whether or not that was asked for."""

    def serve(self, handler, file, path, fault=None, extra=()):
        if not file.is_file():
            return super().serve(handler, file, path, fault, extra)
        handler.reply(200, gzip.compress(file.read_bytes()),
                      {"Content-Encoding": "gzip"})


def test_packed(folder):
    """Bytes that a web server packs unasked are others; a store's label is
    only a label."""
    data = model(folder, "m/model.safetensors")
    (folder / "m/config.json").write_text("{}")
    with Packing(folder) as server:
        server.env = {}
        for words in (["fetch", server.url + "/m", folder / "out"],
                      ["inspect", server.url + "/m/model.safetensors"],
                      ["convert", server.url + "/m", folder / "out", "--to",
                       "dcp"]):
            done = run(server, *words)
            check_equal(done.code, 6, str(done))
            check("packed" in done.err and "Content-Encoding: gzip" in
                  done.err, str(done))
            check(not list(folder.glob("out/*.*")), "files")
    with Objects({"m/model.safetensors": data}) as server:
        server.objects["m/model.safetensors"] = (
            data, {"Content-Encoding": "aws-chunked"})
        check_equal(copied(server, folder / "s3"), {
            "model.safetensors": data}, "as stored")


class Pages(Server):
    """Shows a directory in a way of its own."""

    def list(self, handler, folder, path):
        if not path.endswith("/"):
            return handler.reply(301, b"", {"Location": path + "/"})
        links = "".join(self.link.format(
            name=one.name, entities=one.name.replace("-", "&#45;"),
            url=self.url) for one in sorted(folder.iterdir()))
        handler.reply(200, self.page.format(links).encode(),
                      {"Content-Type": "text/html"})


LINKS = ['<a href="{name}">', "<A HREF = '{name}' >", "<a href={name}>",
         '<a href="/m/{name}">', '<a href="{url}/m/{name}">',
         '<a class="x"\n href="./{name}?download=1#x">', '<a href="{entities}">',
         '<a data-href="old" href="{name}">', '<!-- <a href="old"> -->'
         '<a href="{name}"></a><a href="{name}">', '<link href="a.css">'
         '<a href="mailto:a@b"><a href="https://h/x"><a href="?C=N">'
         '<a href="../m/old/x"><a href="{name}">']


def test_pages_of_links(folder):
    """Links in all ways that servers write them. A page that no server made
    may leave files out: what it doesn't link to is asked for."""
    (folder / "m").mkdir()
    files = {"model.safetensors": model(folder / "m"), "a-b.txt": b"x",
             "config.json": b'{"model_type": "llama", "hidden_size": 5}'}
    for name, data in files.items():
        (folder / "m" / name).write_bytes(data)
    with Pages(folder) as server:
        server.env = {}
        for at, server.link in enumerate(LINKS):
            server.page = "<html><h1>Index of /m</h1>{}</html>"
            out = folder / f"out{at}"
            run(server, "fetch", server.url + "/m", out, "-q").want(0)
            check_equal(remote.files_of(out), files, server.link)
        server.link = ""
        for page, asked in (
                ('<title>Index of /</title>{}<a href="model.safetensors">',
                 False),
                ('{}<a href="/">up</a><a href="model.safetensors">', False),
                ('Our model: {}<a href="model.safetensors">', True)):
            server.page = f"<html>{page}</html>"
            server.forget()
            run(server, "inspect", server.url + "/m").want(0)
            paths = [one.path for one in server.requests]
            check_equal("/m/config.json" in paths, asked, f"{page}: {paths}")


class Proxy(Server):
    """Wants to know who asks, then serves the files itself."""

    def answer(self, handler, request, fault):
        want = "Basic " + base64.b64encode(b"me:hunter2").decode()
        if request.headers.get("proxy-authorization") != want:
            return handler.reply(407, b"", {
                "Proxy-Authenticate": 'Basic realm="x"'})
        super().answer(handler, request, fault)


def test_proxy(folder):
    """A proxy's user and password are sent to it and never shown; without
    them the message says how to give them."""
    model(folder, "m.safetensors")
    with Proxy(folder) as server:
        host = server.url.removeprefix("http://")
        env = {"no_proxy": "", "CKPT_NET_RETRIES": "0"}
        url = "http://127.0.0.1:9/m.safetensors"
        done = remote.run("verify", url, "-vv", env={
            **env, "http_proxy": f"http://me:hunter2@{host}"})
        check_equal(done.code, 0, str(done))
        check("hunter2" not in done.out + done.err, "a secret")
        for scheme in ("http", "https"):
            done = remote.run("verify", url.replace("http", scheme), env={
                **env, f"{scheme}_proxy": f"http://me:hunter3@{host}"})
            check_equal(done.code, 6, str(done))
            check(f"{scheme}_proxy" in done.err and "HTTP 407" in done.err and
                  "hunter" not in done.err, str(done))


def test_redirected(folder):
    """To another scheme: refused. Only a relative place is another one here."""
    model(folder, "m.safetensors")
    model(folder, "x/y.safetensors")
    with Server(folder) as server:
        for there in ("ftp://127.0.0.1/x", "file:///etc/passwd",
                      "gopher://127.0.0.1/"):
            server.fault = lambda *_, there=there: ("to", there)
            done = remote.run("inspect", server.url + "/m.safetensors")
            check_equal(done.code, 8, str(done))
            check("is redirected from http to " + there[:4] in done.err and
                  "hint" in done.err, str(done))
        server.fault = lambda request, _: (
            ("to", "x/y.safetensors")
            if request.path == "/z.safetensors" else None)
        remote.ok("verify", server.url + "/z.safetensors")


def test_endpoints(_):
    """Half an address is refused: what it means would be guessed, by http.
    Tokens, which are secrets, don't go there."""
    for url, name in (("s3://b/x", "AWS_ENDPOINT_URL"),
                      ("s3://b/x", "AWS_ENDPOINT_URL_S3"),
                      ("hf://a/b", "HF_ENDPOINT"),
                      ("az://a/b", "AZURE_STORAGE_BLOB_ENDPOINT")):
        for value in ("localhost:9000", "//h", "https://", "ftp://h"):
            done = remote.run("inspect", url, env={name: value})
            check_equal(done.code, 2, str(done))
            check("expected https://HOST" in done.err and
                  name in done.err and "hint" in done.err, str(done))
    for url, env in (("hf://a/b", {"HF_ENDPOINT": "http://h.invalid",
                                   "HF_TOKEN": "hunter2"}),
                     ("gs://a/b", {"GS_ENDPOINT_URL": "http://h.invalid",
                                   "GOOGLE_OAUTH_ACCESS_TOKEN": "hunter2"})):
        done = remote.run("inspect", url, env=env)
        check_equal(done.code, 8, str(done))
        check("CKPT_NET_ALLOW_HTTP=1" in done.err, str(done))


class Six(Http):
    address_family = socket.AF_INET6


def test_ipv6(folder):
    """An address in brackets is a host like others."""
    data = model(folder, "m/model.safetensors")
    try:
        http = Six(("::1", 0), Handler)
    except OSError:
        return  # this machine has no such addresses
    with Server(folder) as server:
        http.owner = server
        server.http.shutdown()
        server.http.server_close()
        server.http = http
        threading.Thread(target=http.serve_forever, args=(0.05,),
                         daemon=True).start()
        url = f"http://[::1]:{http.server_address[1]}/m"
        remote.ok("fetch", url, folder / "out", "-q")
        check_equal(remote.files_of(folder / "out"), {
            "model.safetensors": data}, "files")


def main():
    suite = Suite(__doc__)
    for test in (test_pages, test_cut_listing, test_last_look, test_beside,
                 test_known, test_steps, test_age,
                 test_keys, test_versions,
                 test_not_there, test_hub_revisions,
                 test_hub_names, test_late_error, test_expired, test_late_keys,
                 test_aws_keys, test_aws_profiles, test_clock, test_packed,
                 test_pages_of_links, test_endpoints,
                 test_proxy, test_redirected, test_ipv6):
        suite.add(test.__name__.removeprefix("test_"), test)

    def prepare(_, ckpt):
        remote.CKPT = ckpt
        remote.need_net(ckpt)
    suite.main(prepare)


if __name__ == "__main__":
    main()
