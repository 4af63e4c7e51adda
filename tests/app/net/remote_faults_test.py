#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each fault of a server at any request of each command: a right result, or
the error's own status and words; in bounded time, and never a wrong byte."""

import json
import os
import random
import subprocess
import threading

import remote_test as remote
from remote_servers import Server
from remote_test import CLEAN, write_model
from support import HANG, Suite, check, check_equal, interrupt

CKPT = None  # set by prepare

# What is retried, and what is not.
PASSING = {
    "500": ("status", 500), "503": ("status", 503), "cut": ("cut", 1000),
    "cut at once": ("cut", 0), "reset": ("reset", 3000),
    "stall": ("stall", 700), "slow": ("slow", 0.02),
    "no answer": ("text", b""), "another range": ("shifted",),
    "more bytes": ("long",), "fewer bytes": ("short",),
    "429 with a time": ("status", 429, {"Retry-After": "1"}),
}
LASTING = {
    "403": ("status", 403), "418": ("status", 418), "no length": ("open", 90),
    "another etag": ("etag", '"new"'), "no ranges": ("whole",),
    "another protocol": ("text", b"SSH-2.0-x\r\n\r\n"),
    "a circle": ("circle",),
}
COMMANDS = {
    "inspect": ["inspect", "{url}", "--json"],
    "verify": ["verify", "{url}", "--deep", "--json"],
    "convert": ["convert", "{url}", "{out}", "--to", "safetensors", "-q"],
    "fetch": ["fetch", "{url}", "{out}", "-q"],
}
WRITES = ("convert", "fetch")
TRIES = 3
QUICK = {"CKPT_NET_RETRIES": str(TRIES - 1)}


def model(folder, seed):
    names = ["model-00001-of-00002.safetensors",
             "model-00002-of-00002.safetensors"]
    write_model(folder / names[0], {"a": 700_000, "b": 100}, seed)
    write_model(folder / names[1], {"c": 1_500_000, "d": 100}, seed + 1)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {t: names[t > "b"] for t in "abcd"}}))


class Case:
    """One command, and what it does when all goes well."""

    def __init__(self, folder, server, command):
        self.folder, self.server, self.command = folder, server, command
        self.url = server.url + "/m"
        self.requests = 1000
        self.code, self.text, self.want = self.run("want")
        check_equal(self.code, 0, self.text)
        self.requests = len(server.requests)

    def argv(self, name):
        return [a.format(url=self.url, out=self.folder / name)
                for a in COMMANDS[self.command]]

    def run(self, name, fault=None, more=()):
        self.server.http.settle()
        self.server.forget()
        self.server.fault = fault
        stall = {"CKPT_NET_STALL": "3"} if name.startswith("stall") else {}
        done = remote.run(*self.argv(name), *more, env={**QUICK, **stall})
        self.server.fault = None
        asked = len(self.server.requests)
        check(asked <= TRIES * self.requests, f"{asked} requests: {done}")
        if done.code == 0:
            return 0, done.out, self.files(name) or done.out
        return done.code, done.err, None

    def files(self, name):
        if self.command not in WRITES:
            return None
        return remote.files_of(self.folder / name)

    def judge(self, name, code, text, got, codes):
        """The result is right, or an error with a message, after which the same
        command can continue."""
        if code == 0:
            check(got == self.want, f"{name}: another result: {text[:300]}")
            return
        check(code in codes, f"{name}: exit status {code}: {text}")
        if self.command in WRITES:
            check(f"error: {self.server.url}" in text, text)
            self.check_rest(name, text)
        else:
            check(f'"path":"{self.server.url}' in text, text)

    def check_rest(self, name, text):
        target = self.folder / name
        if self.command == "convert":
            check(not target.exists(), "a target")
        elif target.exists():
            for file, data in self.files(name).items():
                check(file.startswith(".ckpt-fetch/") or
                      self.want[file] == data, f"{file} stands, and differs")
        more = ["--resume"] if "--resume" in text else []
        code, text, got = self.run(name, None, more)
        # A file that arrived whole was of the other version.
        if name.startswith("another_etag") and "already exists" in text:
            return
        check(code == 0 and got == self.want, f"not gone on with: {text}")


def places(case, name, count):
    rule = random.Random(f"{case.command} {name}")
    return rule.sample(range(1, case.requests + 1), min(count, case.requests))


def test_faults(folder, command):
    model(folder / "srv/m", 1)
    with Server(folder / "srv") as server:
        case = Case(folder, server, command)
        lasting = (0, 3, 6)
        # For a file that is listed: a target may not be made from less.
        gone = {"404": ("status", 404)} if command in WRITES else {}
        for name, fault in {**PASSING, **LASTING, **gone}.items():
            waits = name in ("stall", "429 with a time")
            most = 9 if name in gone else 1 if waits else 2
            for number in places(case, name, most):
                out = f"{name} at {number}".replace(" ", "_")
                once = case.run(out, lambda _, i, n=number, f=fault:
                                f if i == n else None)
                codes = (0,) if name in PASSING else lasting
                case.judge(out, *once, (*codes, 4) if name in gone else codes)
            for number in places(case, name + " on", 1):
                out = f"{name} from {number}".replace(" ", "_")
                case.judge(out, *case.run(out, lambda _, i, n=number, f=fault:
                                          f if i >= n else None),
                           (*lasting, 4) if name in gone else lasting)


def versions_of(case, name):
    """The version of each file of a copy, or of each tensor of a target."""
    if case.command == "fetch":
        return {file: data for file, data in case.files(name).items()}
    tensors = {}
    for path in (case.folder / name).glob("*.safetensors"):
        tensors.update(remote.read_safetensors(path))
    return {n: t.data for n, t in tensors.items()}


def test_replaced(folder, command, redirected):
    """Files replaced during a run: all of one version, or an error, also when
    redirected to another host."""
    model(folder / "old/m", 1)
    model(folder / "new/m", 7)
    with Server(folder / "old") as far, Server(folder / "old") as near:
        asked = far if redirected else near
        if redirected:
            near.fault = lambda request, _: (
                ("to", far.url + request.path)
                if request.path.endswith(".safetensors") else None)
        url = near.url + "/m"
        known = {}
        for side in ("old", "new"):
            asked.folder = folder / side
            case = Case.__new__(Case)
            case.folder, case.server, case.command = folder, near, command
            case.url = url
            check_equal(remote.run(*case.argv(side + "_out"), env=QUICK).code,
                        0, side)
            known[side] = versions_of(case, side + "_out")
            if side == "old":
                requests = len(asked.requests)
        for number in range(1, requests + 1):
            asked.folder = folder / "old"
            asked.forget()

            def swap(request, index, number=number):
                if index >= number:
                    asked.folder = folder / "new"
                return near_fault(request, index)
            near_fault = (near.fault if redirected and asked is near
                          else lambda *_: None)
            asked.fault = swap
            name = f"out{number}"
            done = remote.run(*case.argv(name), env=QUICK)
            asked.fault = None
            if done.code != 0:
                check_equal(done.code, 6, done.err)
                check("changed during the run" in done.err, done.err)
                stands = remote.files_of(folder / name)
                check(all(f.startswith(".ckpt-fetch/") for f in stands),
                      f"{number}: {sorted(stands)}")
                continue
            got = versions_of(case, name)
            check(got in known.values(), f"{number}: a mixture")


def test_interrupted(folder, command):
    """Ctrl-C while a server does not answer: ends at once, and can be
    resumed."""
    model(folder / "srv/m", 1)
    with Server(folder / "srv") as server:
        case = Case(folder, server, command)
        for number in places(case, "signal", 4):
            out = f"stopped{number}"
            reached = threading.Event()

            def hold(_, index, number=number, reached=reached):
                if index < number:
                    return None
                reached.set()
                return "stall", 0
            server.http.settle()
            server.forget()
            server.fault = hold
            child = subprocess.Popen(
                [CKPT.path, *case.argv(out)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
                env={**os.environ, **CLEAN})
            check(reached.wait(HANG), "the request never came")
            interrupt(child)
            # It doesn't wait for the server, which would go on.
            _, text = child.communicate(timeout=HANG)
            check_equal(child.returncode, 130, text)
            server.http.settle()
            server.fault = None
            if command in WRITES:
                case.check_rest(out, text)


def main():
    suite = Suite(__doc__)
    for command in COMMANDS:
        suite.add("faults " + command, test_faults, command)
        suite.add("interrupted " + command, test_interrupted, command)
    for command in WRITES:
        for way in (False, True):
            suite.add(f"replaced {command}{' elsewhere' if way else ''}",
                      test_replaced, command, way)

    def prepare(_, ckpt):
        global CKPT
        CKPT = remote.CKPT = ckpt
        remote.need_net(ckpt)
    suite.main(prepare)


if __name__ == "__main__":
    main()
