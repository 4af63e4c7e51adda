# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, by the protocol of its own tools over two pipes.

Messages are JSON, each ended by a zero byte (--remote-debugging-pipe). Only the
standard library is needed.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from support import HANG, Failure, Skip

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser",
         "google-chrome")


class Browser:
    """One page. Records what it logs, throws or requests from the network."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise Skip("no Chromium (Debian: chromium-headless-shell)")
        self.logged, self.requests, self.events = [], [], []
        self.folder = tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True)
        to_child, self.out = os.pipe()
        self.back, from_child = os.pipe()

        def wire():
            # The browser reads from 3 and writes to 4.
            low, high = os.dup(to_child), os.dup(from_child)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.child = subprocess.Popen(
            [program, "--headless", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-sandbox",  # its set-uid helper is not for root, as CI is
             "--hide-scrollbars",
             f"--user-data-dir={self.folder.name}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=wire, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.buffer, self.last = b"", 0
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", flatten=True,
                                 targetId=page["targetId"])["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        os.close(self.out)
        os.close(self.back)
        self.folder.cleanup()

    def receive(self, limit=HANG):
        end = time.monotonic() + limit
        while b"\0" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.back], [], [], left)[0]:
                raise Failure(f"the browser said nothing for {limit} s")
            more = os.read(self.back, 1 << 20)
            if not more:
                raise Failure("the browser ended")
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message:
            self.note(message["method"], message["params"])
        return message

    def note(self, method, params):
        self.events.append(method)
        if method == "Log.entryAdded":
            self.logged.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.logged.append(json.dumps(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.logged.append(json.dumps(params["exceptionDetails"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, **params):
        self.last += 1
        request = {"id": self.last, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise Failure(f"{method}: {answer['error']}")
                return answer["result"]

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme",
             "value": "dark" if dark else "light"}])

    def open(self, where):
        url = where if "://" in str(where) else Path(where).as_uri()
        self.events.clear()
        self.call("Page.navigate", url=url)
        end = time.monotonic() + HANG
        while "Page.loadEventFired" not in self.events:
            if time.monotonic() > end:
                raise Failure(f"{url} did not load")
            self.receive()

    def eval(self, code):
        result = self.call("Runtime.evaluate", expression=code,
                           returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise Failure(f"{code}: {json.dumps(result)[:2000]}")
        return result["result"].get("value")

    def worked(self):
        """Seconds of processor that the page's thread has taken."""
        self.call("Performance.enable", timeDomain="threadTicks")
        rows = self.call("Performance.getMetrics")["metrics"]
        return next(r["value"] for r in rows if r["name"] == "TaskDuration")

    def press(self, key):
        text = {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38,
                "ArrowRight": 39, "ArrowDown": 40}[key]
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **more)

    def picture(self, path):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))
