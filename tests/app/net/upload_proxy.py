# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback that forwards requests to an object server, and does to
them what networks and servers do."""

import http.client
import http.server
import re
import socket
import threading
import time
import urllib.parse

from remote_servers import Http, hold
from support import HANG


# What `rclone serve s3` (1.75) leaves out of listings.
UNQUOTED = re.compile(rb"<ETag>(?:&#34;|&quot;|\")(.*?)(?:&#34;|&quot;|\")</ETag>")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = HANG
    disable_nagle_algorithm = True  # as in remote_servers

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def pass_on(self):
        owner = self.server.owner
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = owner.kind(self.command, self.path)
        with owner.lock:
            owner.seen.append((what, self.path))
            owner.sent += len(body)
            owner.count[what] = number = owner.count.get(what, 0) + 1
        if owner.delay:
            time.sleep(owner.delay)  # noqa: TID251  a slow server
        fault = owner.fault(what, number, self.path) if owner.fault else None
        kind = fault[0] if fault else None
        if kind == "status":
            return self.answer(fault[1], {}, (
                f"<Error><Code>{fault[2]}</Code></Error>").encode())
        if kind == "body":
            return self.answer(200, {}, fault[1])
        if kind == "cut":  # before the server has it
            return self.drop()
        if kind == "stall":
            hold(self, owner.stop, *fault[1:])
            return self.drop()
        if kind == "flip" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        status, headers, data = owner.ask(self.command, self.path,
                                          self.headers, body)
        if kind == "lost":  # after the server has done it
            return self.drop()
        if kind == "rclone":
            data = UNQUOTED.sub(rb"<ETag>\1</ETag>", data)
            status = 200 if status == 206 else status
        if kind == "whole" and status == 206:  # all of it, and says a part
            headers["Content-Range"], data = fault[1], fault[2]
            status = 200
        if kind == "etag":
            headers["ETag"] = fault[1]
        self.answer(status, headers, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def answer(self, status, headers, data):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "date",
                                    "server", "content-length"):
                self.send_header(name, value)
        size = len(data)
        if self.command == "HEAD":
            size = headers.get("Content-Length", "0")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Proxy:
    """`fault(what, number, path)` names what goes wrong with the number-th
    request of its kind: None, ("status", 503, code), ("cut",), ("lost",),
    ("stall",) until the client leaves, or ("stall", seconds), ("flip",),
    ("etag", text), ("body", bytes),
    ("rclone",) for its dialect, ("whole", Content-Range, bytes) for a range."""

    def __init__(self, url):
        self.to = urllib.parse.urlsplit(url).netloc
        self.lock = threading.Lock()
        self.fault, self.delay = None, 0
        self.forget()
        self.stop = threading.Event()
        self.http = Http(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,),
                         daemon=True).start()

    def forget(self):
        self.seen, self.sent, self.count = [], 0, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.http.shutdown()
        self.http.server_close()

    @staticmethod
    def kind(method, path):
        query = urllib.parse.urlsplit(path).query
        if method == "POST":
            return "begin" if "uploads" in query else "complete"
        if method == "PUT":
            return "part" if "partNumber" in query else "put"
        if method == "DELETE":
            return "abort" if "uploadId" in query else "delete"
        if "uploadId" in query:
            return "parts"
        return "list" if "list-type" in query else method.lower()

    def ask(self, method, path, headers, body):
        link = http.client.HTTPConnection(self.to, timeout=HANG)
        send = {k: v for k, v in headers.items() if k.lower() != "expect"}
        link.request(method, path, body=body or None, headers=send)
        reply = link.getresponse()
        data = reply.read()
        got = dict(reply.getheaders())
        link.close()
        return reply.status, got, data
