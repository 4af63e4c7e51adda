#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that doesn't give a file has said nothing about the checkpoint:
each command x each lasting fault x each file. What can't be read is neither
damage, nor a difference, nor a smaller checkpoint."""

import os
import random
import re
import shutil
import subprocess
import time
import urllib.request

import remote_test as remote
from remote_servers import Server
from support import DATA, HANG, Result, Suite, check, check_equal

# What a server, or the way to it, does every time it is asked, with the exit
# statuses that report it.
FAULTS = {
    "401": (("status", 401), (6,)),
    "403": (("status", 403), (6,)),
    "418": (("status", 418), (6,)),
    "429": (("status", 429), (6,)),
    "500": (("status", 500), (6,)),
    "503": (("status", 503), (6,)),
    "cut": (("cut", 0), (6,)),
    "reset": (("reset", 0), (6,)),
    "stall": (("stall", 0), (6,)),
    "no answer": (("text", b""), (6,)),
    "another protocol": (("text", b"SSH-2.0-x\r\n\r\n"), (6,)),
    "a circle": (("to", "{path}"), (6,)),
    "nobody there": (("to", "http://127.0.0.1:1/"), (6,)),
    "no TLS there": (("to", "https://127.0.0.1:{port}/"), (6,)),
    "another range": (("shifted",), (6,)),
    "no bytes": (("empty",), (6,)),
}
# {url} is behind the server, {twin} is the same on this machine.
COMMANDS = {
    "inspect": ["inspect", "{url}", "--json", "--shards", "--objects"],
    "digest": ["inspect", "{url}", "--json", "--digest"],
    "stats": ["inspect", "{url}", "--json", "--stats"],
    "page": ["inspect", "{url}", "--html", "{out}"],
    "ls": ["ls", "{url}"],
    "ls -l": ["ls", "-l", "{url}"],
    "show": ["show", "{url}", "{tensor}"],
    "verify": ["verify", "{url}", "--json"],
    "verify quick": ["verify", "{url}", "--quick", "--json"],
    "verify deep": ["verify", "{url}", "--deep", "--finite", "--json"],
    "verify A B": ["verify", "{url}", "{twin}", "--json"],
    "verify B A": ["verify", "{twin}", "{url}", "--json"],
    "diff": ["diff", "{url}", "{twin}", "--json"],
    "diff back": ["diff", "{twin}", "{url}", "--json"],
    "scan": ["scan", "{url}", "--json"],
    "convert": ["convert", "{url}", "{out}", "--to", "dcp", "-q",
                "--allow-replica-mismatch"],
    "dry run": ["convert", "{url}", "{out}", "--to", "dcp", "-n", "--json"],
    "unshard": ["unshard", "{url}", "{out}", "-q",
                "--allow-replica-mismatch"],
    "merge": ["merge", "{twin}", "{url}", "{out}", "-q"],
    "run": ["run", "{plan}", "-q"],
    "view": ["view", "{url}"],
    "fetch": ["fetch", "{url}", "{out}", "-q"],
    "fetch verify": ["fetch", "{url}", "{out}", "--verify", "-q"],
}
GOLDENS = {
    "safetensors/hf_sharded": "safetensors", "dcp/fsdp2_w2_adamw": "dcp",
    "torch_pt/sharded_bin": "torch", "megatron_torch_dist/"
    "gpt_tp2_pp2_v0161": "torch_dist", "megatron_legacy/llama_te_tp2_pp2":
    "legacy", "deepspeed/zero1_dp2": "deepspeed",
}
QUICK = {"CKPT_NET_RETRIES": "1", "CKPT_NET_BACKOFF_MS": "1"}


class Case:
    def __init__(self, folder, case):
        self.folder = folder
        self.twin = folder / "twin"
        shutil.copytree(DATA / case / "ckpt", self.twin)
        self.server = Server(folder)
        self.url = self.server.url + "/twin"
        names = remote.ok("ls", self.twin).out.split("\n")
        self.tensor = names[0]
        self.plan = folder / "plan.json"

    def run(self, command, name, fault=None, file=None):
        out = self.folder / name
        argv = [a.format(url=self.url, twin=self.twin, out=out,
                         plan=self.plan, tensor=self.tensor)
                for a in COMMANDS[command]]
        if command == "run":
            out = self.folder / "planned"
            shutil.rmtree(out, ignore_errors=True)
        self.server.forget()
        self.server.fault = None
        if fault:
            what = tuple(f.format(path=f"/twin/{file}", port=self.server.port)
                         if isinstance(f, str) else f for f in fault)
            self.server.fault = lambda request, _: (
                what if request.path == "/twin/" + file
                # The HEAD reply is right: nothing else can tell.
                and (fault[0], request.method) != ("empty", "HEAD") else None)
        env = dict(QUICK)
        if fault and fault[0] == "stall":
            env["CKPT_NET_STALL"] = "1"
        done = (view_once(argv, env) if command == "view" else
                remote.run(*argv, env=env))
        self.server.fault = None
        got = None
        if out.is_dir():
            got = remote.files_of(out)
        elif out.exists():
            got = out.read_bytes()
        return done, (self.neutral(done.out, name), got), out

    def neutral(self, text, name):
        """The text without what differs between runs."""
        return re.sub(rf'{name}|"seconds":[0-9.]+|"age":[^,]*', "", text)

    def asked(self):
        """The files that a command asks for."""
        return sorted({r.path.removeprefix("/twin/") for r in
                       self.server.requests if r.status in (200, 206)
                       and not r.path.endswith("/")})


def view_once(argv, env):
    """`ckpt view` runs until it is stopped: its first page, or its error."""
    start = time.monotonic()
    child = subprocess.Popen([remote.CKPT.path, *argv], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**os.environ, **remote.CLEAN, **env})
    url, page = child.stdout.readline().strip(), ""
    if url:
        with urllib.request.urlopen(url) as answer:
            # Each page has words of its own, for its scripts.
            page = re.sub("[0-9a-f]{32}", "", answer.read().decode())
        child.kill()
    err = child.communicate(timeout=HANG)[1]
    return Result(argv, 0 if url else child.returncode, page, err,
                  time.monotonic() - start, 0)


def test_command(folder, command, golden, every):
    case = Case(folder, golden)
    with case.server:
        if command == "run":
            remote.ok("convert", case.url, folder / "planned", "--to", "dcp",
                      "--allow-replica-mismatch", "-n", "-o", case.plan)
        done, want, _ = case.run(command, "want")
        check_equal(done.code, 0, str(done))
        rule = random.Random(f"{command} {golden}")
        files = case.asked()
        pairs = [(f, x) for f in FAULTS for x in files]
        if not every:
            pairs = ([("403", x) for x in rule.sample(files, min(3, len(
                files)))] + [(f, rule.choice(files)) for f in
                             rule.sample(sorted(FAULTS), 3)])
        wrong = []
        for number, (name, file) in enumerate(pairs):
            fault, codes = FAULTS[name]
            done, got, out = case.run(command, f"out{number}", fault, file)
            what = f"{name} for {file}: {done}"
            if done.code == 0:
                if got != want:
                    wrong.append(f"another answer: {what}")
            elif done.code not in codes:
                wrong.append(f"exit status {done.code}: {what}")
            elif case.server.url not in done.err:
                wrong.append(f"not named: {what}")
            elif out.exists() and not command.startswith("fetch"):
                wrong.append(f"a target: {what}")
        check(not wrong, f"{len(wrong)} of {len(pairs)}\n" + "\n".join(wrong))


class Unlisted(Server):
    """Refuses to list, and answers 403 for what is absent, as S3 then does."""

    def serve(self, handler, file, path, fault=None, extra=()):
        if not file.is_file():
            return handler.reply(403, b"<Error><Code>AccessDenied</Code>")
        super().serve(handler, file, path, fault, extra)


def test_unlisted(folder, scheme):
    """Absent or refused is unknown, so it is an error until the user says
    which."""
    remote.write_model(folder / "b/model.safetensors", {"a": 1000})
    with Unlisted(folder) as server:
        url, env = server.url + "/b", QUICK
        if scheme == "s3":
            url, env = "s3://b", {**QUICK, "AWS_ENDPOINT_URL": server.url}
        for number, words in enumerate((
                ["inspect"], ["verify"], ["ls"], ["scan"], ["show", "a"],
                ["convert", folder / f"out{scheme}", "--to", "dcp"])):
            words.insert(1, url + "/model.safetensors")
            done = remote.run(*words, env=env)
            if words[0] not in ("scan", "show"):  # they need no other file
                check_equal(done.code, 6, str(done))
                check("CKPT_NET_FORBIDDEN=absent" in done.err, str(done))
            remote.ok(*words, env={**env, "CKPT_NET_FORBIDDEN": "absent"})
        # Nothing is assumed about what was asked for by name.
        done = remote.run("inspect", url + "/other.safetensors",
                          env={**env, "CKPT_NET_FORBIDDEN": "absent"})
        check_equal(done.code, 6, str(done))


class Lengthless(Server):
    """Bodies end with the connection; HEAD may know the length."""

    knows, most = False, 1 << 20

    def serve(self, handler, file, path, fault=None, extra=()):
        data = file.read_bytes() if file.is_file() else None
        if data is None:
            return handler.reply(404)
        if handler.command == "HEAD":
            return handler.reply(200, length=len(data) if self.knows
                                 else False)
        handler.reply(200, data[:self.most], length=False)
        handler.drop()


def test_lengthless(folder):
    """A body that may have been cut is not accepted."""
    remote.write_model(folder / "m.safetensors", {"a": 3000})
    size = (folder / "m.safetensors").stat().st_size
    with Lengthless(folder) as server:
        for knows, most, want in ((True, size, 0), (True, size - 1, 6),
                                  (True, 0, 6), (False, size, 6),
                                  (False, 0, 6)):
            server.knows, server.most = knows, most
            for command in ("inspect", "verify", "fetch"):
                rest = [folder / f"o{knows}{most}"] * (command == "fetch")
                done = remote.run(command, server.url + "/m.safetensors",
                                  *rest, env=QUICK)
                check_equal(done.code, want, f"{knows} {most} {done}")
                check(want == 0 or "cut" in done.err or f"of {size}" in
                      done.err, str(done))


def test_empty(folder):
    """An empty file is an empty file."""
    remote.write_model(folder / "m/model.safetensors", {"a": 3000})
    (folder / "m/empty").touch()
    with Server(folder) as server:
        remote.ok("fetch", server.url + "/m", folder / "out", env=QUICK)
        check_equal((folder / "out/empty").stat().st_size, 0, "bytes")
        (folder / "m/model.safetensors").write_bytes(b"")
        done = remote.run("verify", server.url + "/m", env=QUICK)
        check_equal(done.code, 1, str(done))


# Options that take a path: what they name, and what stands before them.
READ = {"--shard-dims": "file", "--flat-params": "file", "--rename": "file",
        "--family-file": "file", "--trainer-file": "file",
        "--assume-order": "order",
        "--config-from": "directory", "--adapter": "directory",
        "--like": "either", "--against": "file", "--base": "either",
        "--tokenizer-from": "either"}
WRITTEN = {"--trace", "--html", "--plan-file", "--draft", "--dir", "--state",
           "--plot"}


def path_options():
    """{option: a command}, from the parser's own list."""
    command, found = "", {}
    for line in remote.ok("completion", "bash").out.splitlines():
        if named := re.fullmatch(r"    ([a-z]+)\)", line):
            command = named[1]
        elif named := re.fullmatch(r" +(?:-.\|)?(--[\w-]+)\) kind=file ;;", line):
            found.setdefault(named[1], command)
            if command == "convert":
                found[named[1]] = command
    return found


def test_path_options(folder):
    """What an option names is there, or the error says the same of a path and
    of a URL, with a next step, whether or not the command would have come to
    need it. What is written is a file of this machine."""
    options = path_options()
    check_equal(sorted(options), sorted({*READ, *WRITTEN}), "options")
    shutil.copytree(DATA / "hf/llama/ckpt", folder / "m")
    (folder / "file").write_text("{}")

    def refuse(request, _):
        known = {"401.json": 401, "403.json": 403}
        status = known.get(request.path.split("/")[-1])
        return ("status", status) if status else None
    with Server(folder) as server:
        server.fault = refuse
        places = {"absent": [folder / "no.json", server.url + "/no.json"],
                  "401": [server.url + "/401.json"],
                  "403": [server.url + "/403.json"],
                  "none": ["http://127.0.0.1:1/x.json"],
                  "file": [folder / "file", server.url + "/file"],
                  "directory": [folder / "m", server.url + "/m"]}
        wants = {"absent": 3, "401": 6, "403": 6, "none": 6}
        for option, command in sorted(options.items()):
            words = [command, folder / "m"]
            if command == "man":
                words = [command]
            if command == "salvage":
                words += [folder / "out", "-n"]
            if command == "convert":
                words += [folder / "out", "--to", "safetensors", "-n"]
            if command == "family":
                words[1:1] = ["infer"]
            if command == "merge":
                words += [folder / "m", folder / "out", "-n", "--method",
                          "task_arithmetic"]
            if command == "watch":
                words += ["--once", "--do", "true"]
            for kind, where in places.items():
                for at in where:
                    is_url = "://" in str(at)
                    want = wants.get(kind, 2)
                    if option in WRITTEN:
                        if not is_url:
                            continue
                        want = 2
                    elif kind == READ[option] or kind in (
                            "file", "directory") and READ[option] in (
                            "order", "either"):
                        continue
                    elif READ[option] == "order" and not is_url:
                        want = 2  # it may be a rule, too
                    elif option == "--adapter" and kind == "file":
                        want = 3  # of a folder that has no adapter, too
                    done = remote.run(*words, option, at,
                                      env={"CKPT_NET_RETRIES": "0"})
                    told = f"{option} {at}: {done}"
                    check_equal(done.code, want, told)
                    check(option == "--adapter" and kind == "file"
                          or "hint: " in done.err, told)
    check(not (folder / "out").exists(), "something was written")


def main():
    suite = Suite(__doc__)
    for scheme in ("https", "s3"):
        suite.add("unlisted " + scheme, test_unlisted, scheme)
    suite.add("lengthless", test_lengthless)
    suite.add("empty", test_empty)
    suite.add("options that name paths", test_path_options)

    def prepare(_, ckpt):
        remote.CKPT = ckpt
        remote.need_net(ckpt)
        rule = random.Random(27)
        for command in COMMANDS:
            goldens = list(GOLDENS)
            if not suite.full:
                goldens = [rule.choice(goldens)]
            for golden in goldens:
                suite.add(f"{command}: {GOLDENS[golden]}", test_command,
                          command, golden, suite.full)
    suite.main(prepare)


if __name__ == "__main__":
    main()
