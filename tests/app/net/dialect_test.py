#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The targets of upload_test.py on a second S3 server, moto, which differs
where servers may: parts without If-None-Match, other replies for what is gone,
listings with more in them."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import remote_test as remote
import upload_test as upload
from remote_test import KEY, SECRET
from support import DATA, ROOT, Skip, Suite, await_port, check, held_port


def moto():
    """Its command and environment; raises Skip if it isn't installed."""
    found = os.environ.get("CKPT_MOTO_SERVER") or shutil.which("moto_server")
    if found:
        return [found], {}
    for above in (Path(sys.prefix), ROOT / ".venv"):
        if (above / "moto" / "moto").is_dir():
            return ([sys.executable, "-m", "moto.server"],
                    {"PYTHONPATH": str(above / "moto")})
    raise Skip("no moto (pip install --target .venv/moto 'moto[s3,server]')")


class Moto:
    """Accepts any key. A bucket must be created before it is written to."""

    def __init__(self, folder):
        command, env = moto()
        port = held_port()
        self.log = open(folder / "moto.log", "wb")
        self.child = subprocess.Popen(
            [*command, "-H", "127.0.0.1", "-p", str(port)], stdout=self.log,
            stderr=self.log, cwd=folder, env={**os.environ, **env})
        self.url = f"http://127.0.0.1:{port}"
        self.env = {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY,
                    "AWS_SECRET_ACCESS_KEY": SECRET}
        await_port(port, "moto", self.child)

    def put(self, path, key):
        done = subprocess.run(
            ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
             "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
             f"{KEY}:{SECRET}", "-X", "PUT",
             *(["-T", str(path)] if path else []), f"{self.url}/{key}"],
            capture_output=True, text=True)
        check(done.stdout in ("200", "204"), done.stdout + done.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.log.close()


def test_read(folder):
    """Objects are listed page by page and read by ranges; missing ones are
    reported."""
    with upload.Place(folder) as place:
        source = DATA / "dcp/fsdp2_w2_adamw/ckpt"
        for path in source.rglob("*"):
            if path.is_file():
                upload.SERVER.put(path, f"bucket/{place.base}old/"
                                  f"{path.relative_to(source)}")
        env = place.env
        here = upload.run("inspect", source, "--json", env=env).want(0).json()
        there = upload.run("inspect", place.url("old"), "--json",
                           env=env).want(0).json()
        check(here["tensors"] == there["tensors"], "tensors differ")
        upload.run("verify", source, place.url("old"), env=env).want(0)
        done = upload.run("inspect", place.url("nothing"), env=env)
        check(done.code == 3, str(done))
        done = upload.run("inspect", "s3://nobucket/x", env=env)
        check(done.code == 3, str(done))


def main():
    suite = Suite(__doc__)
    for case, form in upload.CONVERSIONS:
        suite.add("convert " + case, upload.test_convert, case, form)
    suite.add("read", test_read)
    for test in (upload.test_parts, upload.test_cleared, upload.test_exists,
                 upload.test_raced, upload.test_interrupt, upload.test_gs,
                 upload.test_commands):
        suite.add(test.__name__.removeprefix("test_"), test)
    for form in ("safetensors", "torch"):
        suite.add("streamed " + form, upload.test_streamed, form)
        suite.add("killed " + form, upload.test_killed, form, "proven")
    suite.add("killed, lost", upload.test_killed, "dcp", "lost")
    for name in upload.PASSING:
        suite.add("passing " + name, upload.test_passing, name)
    for name in ("403", "flip", "complete refused"):
        suite.add("lasting " + name, upload.test_lasting, name)

    def prepare(_, ckpt):
        remote.CKPT = ckpt
        probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                         env={"CKPT_NET_RETRIES": "0"})
        if probe.code == 7 or not shutil.which("curl"):
            print("skipped: " + probe.err.strip())
            sys.exit(77)
        try:
            upload.SERVER = Moto(Path(home))
            upload.SERVER.put(None, "bucket")
        except Skip as why:
            print(f"skipped: {why}")
            sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ckpt_test_") as home:
        try:
            suite.main(prepare)
        finally:
            if upload.SERVER:
                upload.SERVER.__exit__()


if __name__ == "__main__":
    main()
