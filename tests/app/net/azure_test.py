#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""az:// against a stand-in for the Blob service, since no server of it is
available. Its answers follow the service's documentation; Azure's own client
(azure-storage-blob) reads from it, and gives the signatures to expect."""

import base64
import shutil
import sys
import urllib.parse
from pathlib import Path
from xml.sax.saxutils import escape

import remote_test as remote
from remote_servers import Server, bytes_of
from remote_test import CLEAN, layers, same_as_local, write_model
from support import DATA, ROOT, Suite, check, check_equal

ACCOUNT = "devstore"
KEY = base64.b64encode(b"hunter2" * 9).decode()
SAS = "sv=2021-08-06&ss=b&srt=sco&sp=rl&se=2030-01-01T00%3A00%3A00Z&sig=hunter2"
PAGE = 1  # names on a page of a listing

for above in (Path(sys.prefix), ROOT / ".venv"):
    if (above / "azure" / "azure" / "storage").is_dir():
        sys.path.append(str(above / "azure"))
try:
    from azure.core.pipeline import PipelineRequest
    from azure.core.pipeline.transport import HttpRequest
    from azure.storage.blob import ContainerClient
    from azure.storage.blob._shared.authentication import \
        SharedKeyCredentialPolicy
except ImportError:
    ContainerClient = None


class Blobs(Server):
    """GET /ACCOUNT/CONTAINER/NAME, like an emulator's addresses."""

    def __init__(self, folder, sas=False):
        super().__init__(folder)
        self.sas = sas
        self.endpoint = f"{self.url}/{ACCOUNT}"

    def error(self, handler, status, code):
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>' \
            f"hunter2</Message></Error>"
        handler.reply(status, body.encode(), {
            "x-ms-error-code": code, "x-ms-request-id": "r-77"})

    def is_allowed(self, handler, request):
        query = urllib.parse.urlsplit(request.path).query
        said = request.headers.get("authorization")
        if self.sas:
            return said is None and query.endswith(SAS)
        if not ContainerClient:
            return said and said.startswith(f"SharedKey {ACCOUNT}:")
        asked = HttpRequest(handler.command, self.url + request.path,
                            headers={k: v for k, v in handler.headers.items()
                                     if k != "Authorization"})
        policy = SharedKeyCredentialPolicy(ACCOUNT, KEY)
        # It signs for its own transport, which has added this by then.
        wrapped = PipelineRequest(asked, type("Context", (), {
            "transport": None, "options": {}})())
        policy.on_request(wrapped)
        return said == asked.headers["Authorization"]

    def answer(self, handler, request, fault):
        parts = urllib.parse.urlsplit(request.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(
            parts.query, keep_blank_values=True).items()}
        if fault and fault[0] == "code":
            return self.error(handler, *fault[1:])
        check("x-ms-version" in request.headers, "no version")
        if not self.is_allowed(handler, request):
            return self.error(handler, 403, "AuthenticationFailed")
        path = urllib.parse.unquote(parts.path).removeprefix(f"/{ACCOUNT}/")
        container, _, name = path.partition("/")
        root = self.folder / container
        if not root.is_dir():
            return self.error(handler, 404, "ContainerNotFound")
        if "x-ms-range" in request.headers:
            del handler.headers["Range"]
            handler.headers["Range"] = request.headers["x-ms-range"]
        if query.get("comp") == "list":
            return handler.reply(200, self.listing(root, query).encode(),
                                 {"Content-Type": "application/xml"})
        if not (root / name).is_file():
            return self.error(handler, 404, "BlobNotFound")
        self.serve(handler, root / name, path, fault,
                   {"x-ms-blob-type": "BlockBlob"})

    def listing(self, root, query):
        prefix, rows = query.get("prefix", ""), []
        names = sorted(str(p.relative_to(root)) for p in root.rglob("*")
                       if p.is_file())
        seen = set()
        for name in names:
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix):]
            if query.get("delimiter") and "/" in rest:
                folder = prefix + rest.split("/")[0] + "/"
                if folder not in seen:
                    seen.add(folder)
                    rows.append(f"<BlobPrefix><Name>{escape(folder)}</Name>"
                                "</BlobPrefix>")
                continue
            file = root / name
            etag = bytes_of(str(file), file.stat().st_mtime_ns)[1].strip('"')
            rows.append(
                f"<Blob><Name>{escape(name)}</Name><Properties>"
                "<Last-Modified>Wed, 25 Nov 2026 18:00:00 GMT</Last-Modified>"
                f"<Etag>{etag}</Etag><Content-Length>{file.stat().st_size}"
                "</Content-Length><BlobType>BlockBlob</BlobType></Properties>"
                "</Blob>")
        at = int(query.get("marker") or 0)
        more = str(at + PAGE) if at + PAGE < len(rows) else ""
        return ('<?xml version="1.0" encoding="utf-8"?><EnumerationResults '
                f'ServiceEndpoint="{self.endpoint}/" ContainerName="c">'
                f"<Blobs>{''.join(rows[at:at + PAGE])}</Blobs>"
                f"<NextMarker>{more}</NextMarker></EnumerationResults>")


UNSET = {name: "" for name in (
    "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_AUTH_TOKEN",
    "AZURE_STORAGE_BLOB_ENDPOINT")}


def by_key(server):
    return {**UNSET, "AZURE_STORAGE_ACCOUNT": ACCOUNT,
            "AZURE_STORAGE_KEY": KEY,
            "AZURE_STORAGE_BLOB_ENDPOINT": server.endpoint}


WAYS = {
    "key": by_key,
    "connection": lambda server: {
        **UNSET, "AZURE_STORAGE_CONNECTION_STRING":
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={server.endpoint};"},
    "sas": lambda server: {
        **UNSET, "AZURE_STORAGE_ACCOUNT": ACCOUNT,
        "AZURE_STORAGE_SAS_TOKEN": "?" + SAS,
        "AZURE_STORAGE_BLOB_ENDPOINT": server.endpoint},
}


def test_reads(folder, way):
    """A checkpoint in a container reads as it does here, whatever the
    credentials; listings have pages, names have blanks, ranges are signed."""
    case = DATA / "dcp/fsdp2_w2_adamw/ckpt"
    shutil.copytree(case, folder / "c" / "runs" / "step 5")
    write_model(folder / "c" / "m & n.safetensors", layers(3, 3 << 20))
    with Blobs(folder, sas=way == "sas") as server:
        env = WAYS[way](server)
        copy = folder / "copy"
        remote.ok("fetch", "az://c", copy, "--include", "m*", "-q", env=env)
        check((copy / "m & n.safetensors").read_bytes() ==
              (folder / "c" / "m & n.safetensors").read_bytes(), "bytes")
        if way == "key":
            same_as_local("az://c/runs/step 5", case, folder, env)
            check(any("marker=" in r.path for r in server.requests), "pages")
        check(all(r.status != 403 for r in server.requests),
              [r.path for r in server.requests if r.status == 403])


def test_stand_in(folder):
    """Azure's own client reads the same bytes from the stand-in."""
    if not ContainerClient:
        return
    write_model(folder / "c" / "a" / "m & n.safetensors", layers(3, 1000))
    write_model(folder / "c" / "x.safetensors", layers(3, 1000))
    with Blobs(folder) as server:
        client = ContainerClient(
            server.endpoint, "c",
            credential={"account_name": ACCOUNT, "account_key": KEY})
        names = [blob.name for blob in client.walk_blobs()]
        check_equal(sorted(names), ["a/", "x.safetensors"], "names")
        for name in ("a/m & n.safetensors", "x.safetensors"):
            got = client.download_blob(name).readall()
            check(got == (folder / "c" / name).read_bytes(), name)


REFUSED = {
    "wrong key": ({"AZURE_STORAGE_KEY": "aHVudGVyMw=="}, None, 6,
                  ["HTTP 403 AuthenticationFailed, request id r-77",
                   "AZURE_STORAGE_KEY"]),
    "no key": ({"AZURE_STORAGE_KEY": ""}, None, 6,
               ["HTTP 403 AuthenticationFailed"]),
    "not base 64": ({"AZURE_STORAGE_KEY": "hunter2"}, None, 2,
                    ["AZURE_STORAGE_KEY is not in base 64"]),
    "no account": ({"AZURE_STORAGE_ACCOUNT": "",
                    "AZURE_STORAGE_BLOB_ENDPOINT": ""}, None, 2,
                   ["needs the name of a storage account",
                    "AZURE_STORAGE_ACCOUNT"]),
    "not loopback": ({"AZURE_STORAGE_BLOB_ENDPOINT": "http://192.0.2.1/a"},
                     None, 8, ["CKPT_NET_ALLOW_HTTP"]),
    "busy": ({}, ("code", 503, "ServerBusy"), 6,
             ["HTTP 503 ServerBusy, request id r-77", "after 1 tries"]),
    "gone": ({}, ("code", 404, "BlobNotFound"), 3, ["az://c/m.safetensors"]),
}


def test_refused(folder, name):
    """Each refusal says what is wrong, and shows no secret."""
    write_model(folder / "c" / "m.safetensors", layers(2, 1000))
    change, fault, code, texts = REFUSED[name]
    with Blobs(folder) as server:
        if fault:
            server.fault = lambda *_: fault
        if "key" in name and not ContainerClient:
            return
        done = remote.run("inspect", "az://c/m.safetensors", "-vv",
                          env={**by_key(server), "CKPT_NET_RETRIES": "0",
                               **change})
        check_equal(done.code, code, done.err)
        for text in texts:
            check(text in done.err, f"{text!r} is not in {done.err}")
        check("hunter2" not in done.err and KEY not in done.err, done.err)


def test_target(folder):
    """az:// is not written, and the message says what to do."""
    write_model(folder / "m.safetensors", layers(2, 1000))
    done = remote.run("convert", folder / "m.safetensors", "az://c/out",
                      "--to", "safetensors", env=UNSET)
    check_equal(done.code, 2, done.err)
    check("can be read, not written" in done.err and "azcopy" in done.err,
          done.err)


def main():
    suite = Suite(__doc__)
    for way in WAYS:
        suite.add("reads by " + way, test_reads, way)
    for name in REFUSED:
        suite.add("refused " + name, test_refused, name)
    suite.add("stand_in", test_stand_in)
    suite.add("target", test_target)

    def prepare(_, ckpt):
        remote.CKPT = ckpt
        probe = ckpt.run("inspect", "http://127.0.0.1:1/x",
                         env={**CLEAN, "CKPT_NET_RETRIES": "0"})
        if probe.code == 7:
            print("skipped: " + probe.err.strip())
            sys.exit(77)
    suite.main(prepare)


if __name__ == "__main__":
    main()
