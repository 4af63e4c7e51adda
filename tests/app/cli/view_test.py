#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt view`: the page of inspect --html and statistics, for this machine.

Whoever is not its user is played here with raw sockets: another host's page,
who guesses tokens, who sends garbage, too much, nothing or slowly.
"""

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

from support import (
    DATA, HANG, Skip, Suite, check, check_equal, held_port, interrupt)

CKPT = None
LEGACY = DATA / "megatron_legacy/llama_te_tp2_pp2/ckpt"
SHARDED = DATA / "safetensors/hf_sharded/ckpt"


class Served:
    """A running `ckpt view`, and ways to talk to it."""

    def __init__(self, child, url):
        self.child, self.url = child, url
        parts = urllib.parse.urlsplit(url)
        self.port, self.path = parts.port, parts.path

    def get(self, path="", method="GET", host=None):
        """(status, headers, body) for a path below the token."""
        headers = {} if host is None else {"Host": host}
        while True:
            link = http.client.HTTPConnection("127.0.0.1", self.port,
                                              timeout=HANG)
            link.request(method, self.path + path, headers=headers)
            answer = link.getresponse()
            body = answer.read()
            link.close()
            if answer.status != 408:  # this process got no turn for 5 s
                return answer.status, answer.headers, body

    def stats(self, name):
        name = urllib.parse.quote(name, safe="")
        status, _, body = self.get("stats?tensor=" + name)
        return status, json.loads(body)

    def raw(self, data, timeout=HANG):
        """Returns what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port)) as link:
            link.settimeout(timeout)
            link.sendall(data)
            said = b""
            while more := link.recv(1 << 16):
                said += more
            return said

    def status_of(self, data):
        said = self.raw(data)
        return int(said.split()[1]) if said else None


@contextlib.contextmanager
def serving(*args):
    child = subprocess.Popen([CKPT.path, "view", *map(str, args)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
    try:
        yield Served(child, child.stdout.readline().strip())
    finally:
        child.kill()
        child.communicate()


def plain_page(page):
    """The page without what only a live one has."""
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^\n]*\n", "",
                  page)
    page = re.sub(r"<script nonce=\"\w+\">\n//[^\n]*\n'use strict';\n// The "
                  r"name of each .*?</script>\n", "", page, flags=re.S)
    page = re.sub(r"<script nonce=\"\w+\">", "<script>", page)
    return re.sub(r"\"first\":\"[^\"]*\",", "", page)


def test_page(folder):
    for path in (LEGACY, SHARDED):
        CKPT.ok("inspect", path, "--html", folder / "page.html", "-q")
        with serving(path) as served:
            status, headers, body = served.get()
            want = (folder / "page.html").read_text()
            check_equal(status, 200, "status")
            check_equal(plain_page(body.decode()), plain_page(want), "page")
            nonces = set(re.findall(r"nonce=\"(\w+)\"", body.decode()))
            policy = headers["Content-Security-Policy"]
            check_equal(len(nonces), 1, "nonces")
            for part in ("default-src 'none'", "connect-src 'self'",
                         f"script-src 'nonce-{nonces.pop()}'",
                         "frame-ancestors 'none'"):
                check(part in policy.split("; "), policy)
            check_equal(headers["Cache-Control"], "no-store", "caching")
            check_equal(headers["Referrer-Policy"], "no-referrer", "referrer")
            check_equal(headers["X-Content-Type-Options"], "nosniff", "type")
            check_equal(int(headers["Content-Length"]), len(body), "length")
            head = served.get(method="HEAD")
            check_equal((head[0], head[2]), (200, b""), "HEAD")
            check_equal(head[1]["Content-Length"], str(len(body)), "length")
            interrupt(served.child, signal.SIGTERM)
            out, err = served.child.communicate(timeout=HANG)
            check_equal((out, err), ("", ""), "said beside the URL")


def test_stats(folder):
    """Each tensor's stats, reading only its bytes."""
    for path in (LEGACY, SHARDED):
        tensors = CKPT.inspect(path, "--stats")["tensors"]
        tensors = tensors[:: max(1, len(tensors) // 30)]
        with serving(path, "--max-mem", "64MiB") as served:
            for tensor in tensors:
                status, got = served.stats(tensor["name"])
                check_equal(status, 200, str(got))
                check_equal(got["tensor"], tensor["name"], "tensor")
                check(got["bytes_read"] <= tensor["bytes"] * 2,
                      f"{got['bytes_read']} bytes were read")
                check_equal(got["stats"], tensor["stats"], tensor["name"])


def test_numpy(folder):
    """Against numpy, with names that need quoting."""
    import numpy
    from safetensors.numpy import save_file
    rng = numpy.random.default_rng(7)
    names = ["a b+c&d=e.w", "100%25.w", "\u00fc/\u4e16.w", "</script>#?.w"]
    arrays = {n: rng.standard_normal((33, 7 + k)).astype("f4")
              for k, n in enumerate(names)}
    save_file(arrays, folder / "a.safetensors")
    with serving(folder / "a.safetensors") as served:
        for name, array in arrays.items():
            status, got = served.stats(name)
            check_equal((status, got["tensor"]), (200, name), "tensor")
            stats, wide = got["stats"], array.astype("f8")
            want = {"min": wide.min(), "max": wide.max(), "mean": wide.mean(),
                    "std": wide.std(), "norm": numpy.sqrt((wide ** 2).sum()),
                    "zeros": 0, "nans": 0, "infs": 0}
            for key, value in want.items():
                check(abs(stats[key] - value) < 1e-9 * (1 + abs(value)),
                      f"{name}: {key}: {stats[key]}, expected {value}")


def test_rows(folder):
    """A row's `first` leads to all its tensors, and all rows to all tensors."""
    with serving(LEGACY) as served:
        page = served.get()[2].decode()
        data = re.search(r"id=\"data\">(.*?)</script>", page, re.S)[1]
        found = []
        for row in json.loads(data)["rows"]:
            first = urllib.parse.quote(row["first"], safe="")
            status, _, body = served.get("tensors?like=" + first)
            names = json.loads(body)["tensors"]
            check_equal((status, len(names)), (200, row["count"]), row["name"])
            check_equal(names[0], row["first"], "the first")
            found += names
        want = [t["name"] for t in CKPT.inspect(LEGACY)["tensors"]]
        check_equal(sorted(found), sorted(want), "tensors")
        check_equal(served.get("tensors?like=no")[0], 404, "no tensor")
        check_equal(served.stats("no")[0], 404, "no tensor")
        check_equal(served.get("stats")[0], 404, "no name")


NODE = r"""
const fail = m => { console.error(m); process.exit(1); };
function element(tag) {
  const e = { tag, children: [], attributes: {}, text: '',
    set textContent(t) { this.text = t; this.children = []; },
    get textContent() { return this.text + this.children.map(c => c.textContent ?? c).join(''); },
    setAttribute(k, v) { this.attributes[k] = v; },
    append(...c) { this.children.push(...c); }, after(c) { this.below = c; c.over = this; },
    remove() { this.over.below = null; },
    replaceChildren(...c) { this.text = ''; this.children = c; } };
  return e;
}
globalThis.document = { createElement: element };
const real = fetch;
globalThis.fetch = (what, options) => real(URL_OF_PAGE + what, options);
const settled = async place => {
  for (let i = 0; i < 500 && /^$|reading/.test(place.textContent); ++i) await new Promise(r => setTimeout(r, 20));
  return place.textContent;
};
async function main() {
  for (const row of ROWS) {
    const tr = element('tr'), b = globalThis.nameButton(row, tr);
    if (b.textContent !== row.name) fail('the name');
    b.onclick();
    const place = tr.below.children[0].children[0];
    let text = await settled(place);
    if (row.count > 1) {
      if (place.children.length !== row.count) fail(`${place.children.length} of ${row.count} names: ${text}`);
      const [button, , span] = place.children[0].children;
      button.onclick();
      text = await settled(span);
    }
    if (!/^min .*, max .*, mean .*, std .*, norm .*, zeros \d+, nans 0, infs 0$/.test(text)) fail(text);
    if (b.attributes['aria-expanded'] !== 'true') fail('not expanded');
    b.onclick();
    if (tr.below || b.attributes['aria-expanded'] !== 'false') fail('not closed');
  }
}
main().catch(e => fail(e.stack));
"""


def test_script(folder):
    """The page's own script in node: rows open and close."""
    node = shutil.which("node")
    if node is None:
        raise Skip("node is not installed")
    with serving(LEGACY, "--model-only") as served:
        page = served.get()[2].decode()
        data = re.search(r"id=\"data\">(.*?)</script>", page, re.S)[1]
        script = re.search(r"<script nonce=\"\w+\">(.*?)</script>", page,
                           re.S)[1]
        rows = json.loads(data)["rows"]
        check(any(r["count"] > 1 for r in rows), "no row of many")
        (folder / "page.js").write_text(
            f"const URL_OF_PAGE = {json.dumps(served.url)}, "
            f"ROWS = {json.dumps(rows)};\n" + script
            + NODE)
        done = subprocess.run([node, folder / "page.js"], text=True,
                              check=False, capture_output=True, timeout=HANG)
        check(done.returncode == 0, done.stderr[:2000])


def test_damage(folder):
    """A file truncated while it is served is reported, and the server lives."""
    import numpy
    from safetensors.numpy import save_file
    save_file({"w": numpy.ones(100000, "f4")}, folder / "a.safetensors")
    with serving(folder / "a.safetensors") as served:
        check_equal(served.stats("w")[0], 200, "before")
        os.truncate(folder / "a.safetensors", 1000)
        status, got = served.stats("w")
        check_equal(status, 422, str(got))
        check("a.safetensors" in got["message"], str(got))
        check_equal(served.get()[0], 200, "the page")


def test_strangers(folder):
    """A client without the token, with another host name or another request,
    learns nothing."""
    with serving(SHARDED) as served:
        port, token = served.port, served.path.strip("/")
        check(re.fullmatch(r"[0-9a-f]{32}", token), token)
        page = f"GET /{token}/ HTTP/1.1\r\n"
        host = f"Host: 127.0.0.1:{port}\r\n"
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        rows = [
            (200, page + host), (200, page + f"Host: localhost:{port}\r\n"),
            (200, f"GET /{token}/?x HTTP/1.0\r\n" + host),
            (421, page + "Host: evil.example\r\n"),
            (421, page + f"Host: evil.example:{port}\r\n"),
            (421, page + "Host: 127.0.0.1\r\n"),
            (421, page + f"Host: 127.0.0.1:{port}.evil.example\r\n"),
            (421, page + f"Host: 127.0.0.2:{port}\r\n"),
            (400, page), (400, page + host + host),
            (400, page + host + "Host: evil.example\r\n"),
            (400, page + host + "Content-Length: 5\r\n"),
            (400, page + host + "Transfer-Encoding: chunked\r\n"),
            (400, page + host + " folded: x\r\n"),
            (400, page + "Host : x\r\n"), (400, page + host + "no colon\r\n"),
            (400, page + host + "a: b\rc\r\n"),
            (400, page + host + "a: b\0c\r\n"),
            (400, f"GET http://127.0.0.1:{port}/{token}/ HTTP/1.1\r\n" + host),
            (400, f"GET /{token}/ \r\n" + host), (400, "GET\r\n" + host),
            (400, f"GET /{token}/ x HTTP/1.1\r\n" + host), (400, host),
            (400, f"GET  /{token}/ HTTP/1.1\r\n" + host),
            (505, f"GET /{token}/ HTTP/2.0\r\n" + host),
            *((405, f"{method} /{token}/ HTTP/1.1\r\n" + host) for method in
              ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get")),
            *((403, f"GET {path} HTTP/1.1\r\n" + host) for path in
              ("/", f"/{wrong}/", "/favicon.ico", f"/{token[:-1]}/",
               f"/{token}0/", f"//{token}/", f"/?{token}/",
               f"/{token.upper()}x/", f"/{wrong}/stats?tensor=lm_head.weight",
               "/../../etc/passwd")),
            *((404, f"GET /{token}{path} HTTP/1.1\r\n" + host) for path in
              ("", "/x", "/stats/", "//", "/../../../../etc/passwd",
               "/config.json", "/%2e%2e/config.json",
               "/model-00001-of-00002.safetensors")),
        ]
        for want, request in rows:
            said = served.raw((request + "\r\n").encode())
            check_equal(int(said.split()[1]), want, request)
            check(want == 200 or b"lm_head" not in said, f"told: {said}")
            check(b"\r\nCache-Control: no-store\r\n" in said, request)
            check(want != 405 or b"\r\nAllow: GET, HEAD\r\n" in said, request)


def test_too_much(folder):
    with serving(SHARDED) as served:
        host = f"Host: 127.0.0.1:{served.port}\r\n".encode()
        line = f"GET {served.path} HTTP/1.1\r\n".encode() + host
        room = 8192 - len(line) - len(b"a: \r\n\r\n")
        fits = line + b"a: " + b"x" * room + b"\r\n\r\n"
        check_equal(served.status_of(fits), 200, "8 KiB")
        over = line + b"a: " + b"x" * (room + 1) + b"\r\n\r\n"
        check_equal(served.status_of(over), 431, "a byte more")
        check_equal(served.status_of(b"GET /" + b"x" * 100000), 431, "a line")
        check_equal(served.status_of(line + b"a: b\r\n" * 20000), 431, "lines")
        tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200
        check_equal(served.status_of(tls + b"\r\n\r\n"), 400, "TLS")
        for seed in range(40):
            noise = random.Random(seed).randbytes(500)
            status = served.status_of(noise + b"\r\n\r\n")
            check_equal(status, 400, f"noise {seed}")
        check_equal(served.get()[0], 200, "afterwards")


def test_slow(folder):
    """Twice as many silent clients as are admitted: all leave, others get
    in."""
    with serving(SHARDED) as served:
        links = [socket.create_connection(("127.0.0.1", served.port))
                 for _ in range(64)]
        for link in links[::2]:
            link.sendall(b"GET / HTTP/1.1\r\n")
        check_equal(served.get()[0], 200, "behind them")
        for link in links:
            link.settimeout(HANG)
            said = b""
            with contextlib.suppress(ConnectionResetError):
                while more := link.recv(4096):
                    said += more
            check(said == b"" or b" 408 " in said, str(said))
            link.close()
        threads = int(re.search(r"Threads:\s+(\d+)", open(
            f"/proc/{served.child.pid}/status").read())[1])
        check(threads <= 4, f"{threads} threads")


def test_many(folder):
    """Browsers that ask at once, some of which leave before the answer."""
    names = [t["name"] for t in CKPT.inspect(LEGACY)["tensors"]][:20]
    with serving(LEGACY) as served:
        failures = []

        def ask(name, leave):
            try:
                if leave:
                    query = urllib.parse.quote(name, safe="")
                    with socket.create_connection(
                            ("127.0.0.1", served.port)) as link:
                        link.sendall(f"GET {served.path}stats?tensor={query} "
                                     f"HTTP/1.1\r\nHost: 127.0.0.1:"
                                     f"{served.port}\r\n\r\n".encode())
                elif served.stats(name)[0] != 200:
                    failures.append(name)
            except OSError as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=ask, args=(n, k % 3 == 0))
                   for k, n in enumerate(names * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check_equal(failures, [], "failures")
        check_equal(served.get()[0], 200, "afterwards")


def test_loopback(folder):
    """One socket listens, on 127.0.0.1, and no other kind of socket does."""
    with serving(SHARDED) as served:
        fds = f"/proc/{served.child.pid}/fd"
        ours = {match[1] for fd in os.listdir(fds) if (match := re.match(
            r"socket:\[(\d+)\]", os.readlink(f"{fds}/{fd}")))}
        check_equal(len(ours), 1, "sockets")
        found = []
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in open(f"/proc/{served.child.pid}/net/{table}"):
                if line.split()[9] in ours:
                    found.append((table, line.split()[1], line.split()[3]))
        check_equal(found, [("tcp", f"0100007F:{served.port:04X}", "0A")],
                    "what listens")


def test_end(folder):
    """A connection on which nobody asks doesn't hold up the end, as one whose
    answer is being sent does, for a second: of several tries, on a machine with
    other work, one is faster."""
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        for _ in range(30):
            with serving(SHARDED) as served:
                with socket.create_connection(("127.0.0.1", served.port)):
                    served.get()
                    start = time.monotonic()
                    interrupt(served.child, number)
                    check_equal(served.child.wait(HANG), status, "status")
                    took = time.monotonic() - start
            if took < 1:
                break
        check(took < 1, "it took a second")


def test_words(folder):
    """--json and --port; invalid ports, taken ports, and what isn't a
    checkpoint."""
    port = held_port()
    with serving(SHARDED, "--json", "--port", port) as served:
        document = json.loads(served.url)
        check_equal((document["schema"], list(document)),
                    ("ckpt/view/1", ["schema", "url"]), "the document")
        check_equal(urllib.parse.urlsplit(document["url"]).port, port, "port")
        with urllib.request.urlopen(document["url"]) as answer:
            check_equal(answer.status, 200, "status")
        result = CKPT.run("view", SHARDED, "--port", port)
        check_equal((result.code, result.out), (6, ""), str(result))
        check(f"127.0.0.1:{port}" in result.err, result.err)
    with serving(SHARDED, "--port", port) as served:  # just left
        check_equal(served.port, port, "port")
    for wrong in ("-1", "65536", "x", "1.5"):
        result = CKPT.run("view", SHARDED, "--port", wrong)
        check_equal(result.code, 2, str(result))
        check("--port" in result.err, result.err)
    check_equal(CKPT.run("view", folder / "no").code, 3, "nothing there")
    check_equal(CKPT.run("view", SHARDED, "--keys", "no").code, 5, "no keys")


def test_tokens(folder):
    tokens = set()
    for _ in range(5):
        with serving(SHARDED) as served:
            tokens.add(served.path)
    check_equal(len(tokens), 5, "tokens")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, case in sorted(globals().items()):
        if name.startswith("test_"):
            suite.add(name, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
