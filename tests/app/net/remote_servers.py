# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for servers on loopback: files by ranges, the hub's API, and the
faults that networks and servers have. Nothing here leaves the machine."""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from pathlib import Path

from support import HANG, until


class Request:
    """What was received, for assertions."""

    def __init__(self, handler):
        self.method = handler.command
        self.path = handler.path
        self.headers = {k.lower(): v for k, v in handler.headers.items()}
        self.sent = 0  # bytes of the body
        self.status = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = HANG
    # Head and body are two packets: the second would wait for the client's
    # kernel to acknowledge the first, 40 ms.
    disable_nagle_algorithm = True
    most = None  # bytes of a body without a length

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def do_GET(self):
        server = self.server.owner
        request = Request(self)
        with server.lock:
            server.requests.append(request)
            number = len(server.requests)
        self.request_ = request
        fault = server.fault(request, number) if server.fault else None
        server.answer(self, request, fault)

    do_HEAD = do_PUT = do_CONNECT = do_GET

    def reply(self, status, body=b"", headers=(), length=None):
        self.request_.status = status
        if self.most is not None:
            body, length = body[:self.most], False
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if length is not False:
            self.send_header("Content-Length",
                             str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.send(body)
        if self.most is not None:
            self.drop()

    def send(self, body):
        for at in range(0, len(body), 1 << 16):
            part = body[at:at + (1 << 16)]
            # Before: with the last of them a client may end.
            self.request_.sent += len(part)
            with self.server.owner.lock:
                self.server.owner.bytes += len(part)
            self.wfile.write(part)

    def reset(self):
        """Resets the connection, like a machine that doesn't know it."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                   struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        raise ConnectionResetError

    def drop(self):
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client has gone
            self.connection.shutdown(socket.SHUT_RDWR)


def hold(handler, stop, seconds=HANG):
    """Answers nothing until the client leaves, or that time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.is_set():
        if select.select([handler.connection], [], [], 0.05)[0]:
            return  # its end: while it waits, a client says nothing


class Http(http.server.ThreadingHTTPServer):
    # Beyond it, connections start a second later, then three: the client's
    # kernel retries them.
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, *args):
        self.met, self.open = set(), set()  # clients' addresses
        super().__init__(*args)

    def process_request(self, request, client_address):
        self.open.add(client_address)
        self.met.add(client_address)
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.open.discard(client_address)

    def settle(self):
        """Returns once all has been done that ended processes asked for: what
        they had sent may be on its way, or wait to be accepted."""
        with socket.create_connection(self.server_address) as last:
            name = last.getsockname()  # accepted after those before it
            until(lambda: name in self.met, "a connection is accepted")
        until(lambda: not self.open, "no connection is open")

    def handle_error(self, *_):
        pass  # a connection that a test ended


class Server:
    """Serves a folder. `fault(request, number)` names what goes wrong with a
    request: None, ("status", 503, {headers}), ("cut", bytes), ("stall",
    bytes), ("etag", text), ("whole",), ("shifted",), ("long",), ("short",),
    ("to", url), ("circle",), ("reset", bytes), ("slow", bytes at once), ("text", of no
    protocol), ("empty",), ("open", bytes: the end is the connection's)."""

    def __init__(self, folder, tls=None, page=True):
        self.folder = Path(folder)
        self.lock = threading.Lock()
        self.requests, self.bytes = [], 0
        self.fault = None
        # Directories are listed: True, False; "ranges" of the page (Apache,
        # lighttpd); only by their name with a "slash" (rclone); "open": by
        # their name without it, too (aiohttp).
        self.page = page
        self.stop = threading.Event()
        self.http = Http(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.port = self.http.server_address[1]
        scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.http.socket = context.wrap_socket(self.http.socket,
                                                   server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,),
                         daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.http.shutdown()
        self.http.server_close()

    def forget(self):
        self.requests, self.bytes = [], 0

    def answer(self, handler, request, fault):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        self.serve(handler, self.folder / path.lstrip("/"), path, fault)

    def serve(self, handler, file, path, fault=None, extra=()):
        kind = fault[0] if fault else None
        if kind == "status":
            return handler.reply(fault[1], b"<Error><Code>Said</Code></Error>",
                                 fault[2] if len(fault) > 2 else {})
        if kind == "circle":
            return handler.reply(302, b"", {"Location": handler.path})
        if kind == "to":
            return handler.reply(302, b"", {"Location": fault[1]})
        if kind == "text":
            handler.wfile.write(fault[1])
            return handler.drop()
        if kind == "empty":
            return handler.reply(200, b"")
        handler.most = fault[1] if kind == "open" else None
        if file.is_dir():
            return self.list(handler, file, path)
        if not file.is_file():
            return handler.reply(404, b"not here", {"X-Request-Id": "r404"})
        data, etag = bytes_of(str(file), file.stat().st_mtime_ns)
        if kind == "etag":
            etag = fault[1]
        headers = {"ETag": etag, "Accept-Ranges": "bytes",
                   "Content-Type": "application/octet-stream", **dict(extra)}
        wanted = handler.headers.get("If-Match")
        if wanted and wanted != etag:
            return handler.reply(412, b"", headers)
        asked = handler.headers.get("Range")
        if not asked or kind == "whole":
            return handler.reply(200, data, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last), len(data) - 1)
        if first >= len(data):
            return handler.reply(416, b"", headers if self.page == "ranges" else {
                **headers, "Content-Range": f"bytes */{len(data)}"})
        if kind == "shifted":
            first += 1
        if kind == "short":
            last = min(last, first + 9)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        body = data[first:last + 1]
        if kind == "long":
            return handler.reply(206, bytes(body) + b"more", headers)
        if kind == "slow":
            return self.trickle(handler, body, headers, fault[1])
        if kind in ("cut", "stall", "reset"):
            handler.request_.status = 206
            handler.reply(206, body[:fault[1]], headers, length=len(body))
            if kind == "stall":
                hold(handler, self.stop)
            return handler.reset() if kind == "reset" else handler.drop()
        handler.reply(206, body, headers)

    def trickle(self, handler, body, headers, step):
        """In four parts, with a pause after each."""
        handler.request_.status = 206
        handler.reply(206, b"", headers, length=len(body))
        for at in range(0, len(body), max(1, len(body) // 4)):
            handler.send(body[at:at + max(1, len(body) // 4)])
            self.stop.wait(step)

    def list(self, handler, folder, path):
        if not self.page:
            return handler.reply(403, b"no listing")
        if not path.endswith("/") and self.page == "slash":
            return handler.reply(404, b"rclone serve http")
        if not path.endswith("/") and self.page != "open":
            # Caddy writes a space as it is.
            where = urllib.parse.quote(path + "/", safe="/ &+()")
            return handler.reply(301, b"", {"Location": where})
        below = "" if self.page != "open" else \
            urllib.parse.quote(path.rstrip("/")) + "/"
        rows = "".join(
            f'<a href="{below}{urllib.parse.quote(one.name)}'
            f'{"/" if one.is_dir() else ""}">{one.name}</a>\n'
            for one in sorted(folder.iterdir()))
        body = f'<html><a href="../">../</a>{rows}'.encode()
        headers = {"Content-Type": "text/html"}
        asked = handler.headers.get("Range")
        if self.page != "ranges" or not asked:
            return handler.reply(200, body, headers)
        # Apache and lighttpd do so.
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = body[first:last + 1]
        headers["Content-Range"] = \
            f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        handler.reply(206, part, headers)


@functools.lru_cache(maxsize=32)
def bytes_of(path, _):
    """A file's bytes and its ETag."""
    data = Path(path).read_bytes()
    return memoryview(data), '"%s"' % hashlib.md5(data).hexdigest()


def sums_of(full):
    """Git's hash of a file, and its SHA-256."""
    return sums_of_version(str(full), full.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def sums_of_version(path, _):
    data = Path(path).read_bytes()
    return (hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            hashlib.sha256(data).hexdigest())


class Hub(Server):
    """The hub's answers about repositories, each a folder ORG/NAME below
    `folder`; large files are on another server under signed URLs, like those of
    LFS and Xet. Trees come in pages of four. A `mirror` tells less: "unhashed"
    (no hash of any file), "flat" (no trees: what the revision lists), "names"
    (the same, without sizes and hashes), "stuck" (the first page for each, and
    the hub's own URL of the next: olah 0.5)."""

    SHA = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, folder, cdn, large=4096, token=None, mirror=None):
        super().__init__(folder)
        self.cdn, self.large, self.token = cdn, large, token
        self.mirror = mirror
        self.signature = "Signature=first"

    def answer(self, handler, request, fault):
        parts = urllib.parse.urlsplit(request.path)
        path = urllib.parse.unquote(parts.path).lstrip("/")
        query = urllib.parse.parse_qs(parts.query)
        if fault:
            return self.serve(handler, self.folder, "/", fault)
        if self.token and request.headers.get("authorization") != \
                "Bearer " + self.token:
            return handler.reply(401, b"{}", {"X-Error-Code": "GatedRepo"})
        if path.startswith("api/"):
            return self.api(handler, path.split("/"), query)
        kind = "" if not path.startswith("datasets/") else "datasets/"
        owner, name, _, sha, file = path.removeprefix(kind).split("/", 4)
        full = self.folder / kind / owner / name / file
        if sha != self.SHA or not full.is_file():
            return handler.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        extra = {"X-Repo-Commit": self.SHA, "ETag": '"etag"'}
        if full.stat().st_size < self.large:
            return self.serve(handler, full, path, None,
                              {"X-Repo-Commit": self.SHA})
        sha256 = sums_of(full)[1]
        where = full.relative_to(self.folder)
        handler.reply(302, b"", {
            **extra, "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(full.stat().st_size),
            "Location": f"{self.cdn.url}/{where}?X-Amz-{self.signature}"})

    def api(self, handler, parts, query):
        _, kind, owner, name, what = parts[:5]
        root = self.folder / ("" if kind == "models" else kind) / owner / name
        if not root.is_dir():
            return handler.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if what == "revision":
            if "/".join(parts[5:]) not in ("main", "v1", "refs/pr/7",
                                           self.SHA):
                return handler.reply(404, b"{}",
                                     {"X-Error-Code": "RevisionNotFound"})
            told = {"sha": self.SHA}
            if self.mirror in ("flat", "names", "stuck"):
                told["siblings"] = self.siblings(root, "blobs" in query)
            return handler.reply(200, json.dumps(told).encode())
        if self.mirror in ("flat", "names"):
            return handler.reply(404, b"not served")
        rows = []
        for full in sorted(root.rglob("*")):
            path = str(full.relative_to(root))
            if full.is_dir():
                rows.append({"type": "directory", "path": path, "size": 0,
                             "oid": "0" * 40})
                continue
            size, (oid, sha256) = full.stat().st_size, sums_of(full)
            row = {"type": "file", "path": path, "size": size}
            if self.mirror != "unhashed":
                row["oid"] = oid
            if size >= self.large and self.mirror != "unhashed":
                row["lfs"] = {"oid": sha256, "size": size, "pointerSize": 130}
            rows.append(row)
        at = int(query.get("cursor", ["0"])[0])
        headers = {}
        if at + 4 < len(rows):
            url = f"{self.url}/{'/'.join(parts)}?recursive=true&cursor={at + 4}"
            headers["Link"] = f'<{url}>; rel="next"'
        if self.mirror == "stuck":
            headers = {"Link": "<https://huggingface.co/" + "/".join(parts)
                               + '?cursor=4>; rel="next"'}
            at = 0
        handler.reply(200, json.dumps(rows[at:at + 4]).encode(), headers)

    def siblings(self, root, blobs):
        rows = []
        for full in sorted(root.rglob("*")):
            if full.is_dir():
                continue
            row = {"rfilename": str(full.relative_to(root))}
            size, (oid, sha256) = full.stat().st_size, sums_of(full)
            if blobs and self.mirror != "names":
                row |= {"size": size, "blobId": oid}
                if size >= self.large:
                    row["lfs"] = {"sha256": sha256, "size": size,
                                  "pointerSize": 130}
            rows.append(row)
        return rows
