#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt wait`: a save is played file by file, and slower than it settles."""

import json
import shutil
import subprocess
import threading
import time

from remote_test import CLEAN
from sources_test import Listed
from support import DATA, HANG, Suite, check, check_equal, interrupt

CKPT = None
SAVES = {"fairseq2": DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
         "safetensors": DATA / "safetensors/hf_sharded/ckpt"}


def play(source, target, pause, before_last):
    """Each file grows in two halves; the index or the yaml comes last. Returns
    the longest time in which nothing was written."""
    last, longest = time.monotonic(), 0.0
    files = sorted((p for p in source.rglob("*") if p.is_file()),
                   key=lambda p: p.suffix in (".json", ".yaml"))
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        with open(place, "wb") as out:
            out.write(data[:len(data) // 2])
            out.flush()
            time.sleep(pause)  # noqa: TID251  a writer's pause
            if file == files[-1]:
                before_last()
            out.write(data[len(data) // 2:])
        longest = max(longest, time.monotonic() - last)
        last = time.monotonic()
    return longest


def test_save(folder, name):
    """Ends not before the last byte, but after it. On a busy machine a writer may
    pause for longer than it settles: that says nothing."""
    for settle in (0.5, 4, 30):
        target = folder / f"save{settle}"
        ended, paused = [], []

        def save(target=target, ended=ended, paused=paused):
            time.sleep(0.3)  # noqa: TID251  a writer's pause
            paused.append(play(SAVES[name], target, 0.1,
                               lambda: ended.append(True)))

        thread = threading.Thread(target=save)
        thread.start()
        result = CKPT.run("wait", target, "--settle", f"{settle}s",
                          "--timeout", f"{HANG}s")
        early = not ended
        thread.join()
        check_equal(result.code, 0, result.err)
        check(result.out.startswith(str(target)), result.out)
        if paused[0] < settle / 2:
            break
    check(not early, "it answered while files were written")


def test_never(folder):
    """Half a checkpoint or none at all: exit status 1, and why."""
    half = folder / "half"
    shutil.copytree(SAVES["safetensors"], half)
    shard = next(half.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    for path, word in ((half, shard.name), (folder / "nothing", "nothing")):
        result = CKPT.run("wait", path, "--timeout", "1s", "--settle", "0")
        check_equal(result.code, 1, result.err)
        check(word in result.err, result.err)
        result = CKPT.run("wait", path, "--timeout", "0.1s", "--settle", "0",
                          "--json")
        document = json.loads(result.out)
        check_equal((document["finished"], document["schema"]),
                    (False, "ckpt/wait/1"), "the document")
        check(document["why"], "no reason")


def test_finished(folder):
    result = CKPT.ok("wait", SAVES["safetensors"], "--settle", "0", "--json")
    check(json.loads(result.out)["finished"], result.out)


def test_interrupted(folder):
    child = subprocess.Popen([CKPT.path, "wait", str(folder / "nothing")])
    interrupt(child)
    check_equal(child.wait(timeout=HANG), 130, "status")


def test_mistakes(folder):
    for argv in (("--timeout", "soon"), ("--timeout", "-1s"),
                 ("--settle", "3 days"), ("--settle", "nan")):
        result = CKPT.run("wait", folder, *argv)
        check(result.code == 2 and argv[0] in result.err,
              f"{argv}: {result.code} {result.err}")


def test_url(folder):
    """A store's directory: absent is no failure, a claim of an upload is not
    finished, a refusal ends it at once."""
    source, there = SAVES["safetensors"], folder / "b/run/step"
    with Listed(folder) as server:
        env = {**CLEAN, "AWS_ENDPOINT_URL": server.url,
               "AWS_NO_SIGN_REQUEST": "1", "CKPT_NET_RETRIES": "0"}
        for url in ("s3://b/run/step", server.url + "/b/run/step"):
            def wait(seconds, url=url):
                return CKPT.run("wait", url, "--settle", "0.2s", "--timeout",
                                f"{seconds}s", env=env)
            shutil.rmtree(folder / "b", ignore_errors=True)
            (folder / "b").mkdir()
            done = wait(0.5)
            check_equal(done.code, 1, done.err)
            check("there is nothing" in done.err, done.err)

            def save():
                time.sleep(0.4)  # noqa: TID251  a writer's pause
                there.mkdir(parents=True)
                (there / ".ckpt-upload").write_text("7")
                for file in source.iterdir():
                    shutil.copy(file, there)
                time.sleep(1)  # noqa: TID251  a writer's pause
                ended.append(True)
                (there / ".ckpt-upload").unlink()
            ended = []
            thread = threading.Thread(target=save)
            thread.start()
            done = wait(HANG)
            check(ended, "it answered while the claim was there")
            thread.join()
            check_equal((done.code, done.out.strip()), (0, url), done.err)
        server.fault = lambda *_: ("status", 403)
        done = wait(HANG)
        check_equal(done.code, 6, done.err)
        check("access is refused (HTTP 403" in done.err, done.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                     env={**CLEAN, "CKPT_NET_RETRIES": "0"})
    if probe.code != 7:  # built with URLs
        suite.add("test_url", test_url)
    for name in SAVES:
        suite.add(f"save: {name}", test_save, name)
    for case in (test_never, test_finished, test_interrupted, test_mistakes):
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
