# SPDX-License-Identifier: Apache-2.0
"""A small object store on loopback that speaks S3's API from memory, and can be
as odd as real ones: pages of any length, keys that no path has, old objects
that stay, answers that are errors inside. It checks no signature."""

import hashlib
import re
import time
import urllib.parse
from xml.sax.saxutils import escape

from remote_servers import Handler, Server


QUOTE = {'"': "&quot;"}


def etag_of(data):
    return hashlib.md5(data).hexdigest()


def signer_of(request):
    """The key that a request is signed with."""
    found = re.search(r"Credential=([^/]*)",
                      request.headers.get("authorization", ""))
    return found[1] if found else None


class ObjectHandler(Handler):
    def do_PUT(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    do_POST = do_DELETE = do_PUT


class Objects(Server):
    """Bucket "b". `page`: keys on a page of a listing. `odd`: names of
    oddities (each is explained where it is looked at). `fault(request,
    number)` as for Server, and ("code", status, code, headers)."""

    def __init__(self, objects=(), odd=(), page=1000, delay=0.0):
        super().__init__("/nonexistent")
        self.http.RequestHandlerClass = ObjectHandler
        self.objects = {k: (bytes(v), {}) for k, v in dict(objects).items()}
        self.uploads, self.odd, self.tags = {}, set(odd), {}
        self.page_keys, self.delay = page, delay
        self.log = []  # (seconds, method, path, range)
        self.env = {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "AKID1",
                    "AWS_SECRET_ACCESS_KEY": "hunter2"}

    def answer(self, handler, request, fault):
        if self.delay:
            time.sleep(self.delay)  # noqa: TID251  a slow server
        self.log.append((time.monotonic(), handler.command, request.path,
                         request.headers.get("range", "")))
        if fault and fault[0] == "code":
            body = f"<Error><Code>{fault[2]}</Code></Error>".encode()
            return handler.reply(fault[1], body, *fault[3:])
        if fault and fault[0] in ("status", "text"):
            return self.serve(handler, self.folder, "/", fault)
        parts = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(parts.query, True))
        bucket, _, key = urllib.parse.unquote(
            parts.path.removeprefix("/")).partition("/")
        if bucket != "b":
            return self.error(handler, 404, "NoSuchBucket")
        if not key:
            return handler.reply(200, self.listing(query).encode(),
                                 {"Content-Type": "application/xml"})
        method = {"GET": self.get, "HEAD": self.get, "PUT": self.put,
                  "POST": self.post, "DELETE": self.delete}
        method[handler.command](handler, key, query)

    def error(self, handler, status, code):
        handler.reply(status, f"<Error><Code>{code}</Code></Error>".encode())

    # ------------------------------------------------------------- listings
    def listing(self, query):
        prefix, rows, seen = query.get("prefix", ""), [], set()
        after = query.get("continuation-token", "")
        if "start-after" in query and "no start" not in self.odd:
            after = query["start-after"]
        # Servers that know only the first version of listings go on by marker.
        if "old list" in self.odd:
            after = query.get("marker", "")
        quote = urllib.parse.quote_plus if "encoding-type" in query else escape
        for key in sorted(self.objects, key=str.encode):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix):]
            if query.get("delimiter") and "/" in rest:
                name = prefix + rest.split("/")[0] + "/"
                row = f"<Prefix>{quote(name)}</Prefix>"
                row = f"<CommonPrefixes>{row}</CommonPrefixes>"
            else:
                name, data = key, self.objects[key][0]
                row = (f"<Contents><Key>{quote(key)}</Key><Size>{len(data)}"
                       f"</Size><ETag>{escape(self.tag(key), QUOTE)}</ETag>"
                       "</Contents>")
                if "no etag" in self.odd:
                    row = re.sub("<ETag>.*</ETag>", "", row)
            if name not in seen and name > after:
                seen.add(name)
                rows.append((name, row))
        page, more = rows[:self.page_keys], len(rows) > self.page_keys
        next_one = ""
        if more and "no token" not in self.odd and "old list" not in self.odd:
            token = page[-1][0] if "same token" not in self.odd else "m"
            next_one = (f"<NextContinuationToken>{escape(token)}"
                        "</NextContinuationToken>")
        return ('<?xml version="1.0"?><ListBucketResult xmlns="http://s3.'
                'amazonaws.com/doc/2006-03-01/">'
                + ("<EncodingType>url</EncodingType>"
                   if "encoding-type" in query else "")
                + f"<IsTruncated>{str(more).lower()}</IsTruncated>{next_one}"
                + "".join(row for _, row in page) + "</ListBucketResult>")

    def tag(self, key):
        """An object's ETag: `tags` has those of objects that came in parts."""
        tag = self.tags.get(key, etag_of(self.objects[key][0]))
        return ("W/" if "weak" in self.odd else "") + f'"{tag}"'

    # -------------------------------------------------------------- objects
    def get(self, handler, key, query):
        if "uploadId" in query:
            return self.list_parts(handler, query["uploadId"])
        if key not in self.objects:
            return self.error(handler, 404, "NoSuchKey")
        data, headers = self.objects[key]
        etag = self.tag(key)
        headers = {**headers, "ETag": etag}
        if "no etag" in self.odd:
            del headers["ETag"]
        wanted = handler.headers.get("If-Match")
        if wanted and wanted != etag:
            return handler.reply(412, b"", headers)
        asked = handler.headers.get("Range")
        if handler.command == "HEAD" or not asked:
            return handler.reply(200, data, headers)
        first, last = (int(n) for n in
                       asked.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        handler.reply(206, data[first:last + 1], {
            **headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def metadata(self, handler):
        return {k: v for k, v in handler.headers.items()
                if k.lower().startswith("x-amz-meta-")}

    def put(self, handler, key, query):
        data = handler.body
        if "partNumber" in query:
            if query["uploadId"] not in self.uploads:
                return self.error(handler, 404, "NoSuchUpload")
            parts = self.uploads[query["uploadId"]][1]
            parts[int(query["partNumber"])] = data
        elif handler.headers.get("If-None-Match") == "*" and \
                key in self.objects:
            return self.error(handler, 412, "PreconditionFailed")
        else:
            self.objects[key] = data, self.metadata(handler)
        handler.reply(200, b"", {"ETag": f'"{etag_of(data)}"'})

    def post(self, handler, key, query):
        if "uploads" in query:
            number = f"u{len(self.uploads)}"
            self.uploads[number] = (self.metadata(handler), {}, key)
            return handler.reply(200, (
                f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
                "</InitiateMultipartUploadResult>").encode())
        # The status is sent before the parts are put together.
        if "late error" in self.odd:
            return handler.reply(200, b'<?xml version="1.0"?>\n\n<Error xmlns="'
                                 b'x"><Code>InternalError</Code></Error>')
        if "empty answer" in self.odd:
            return handler.reply(200, b"\n\n\n")
        if query["uploadId"] not in self.uploads:
            return self.error(handler, 404, "NoSuchUpload")
        headers, parts, _ = self.uploads.pop(query["uploadId"])
        self.objects[key] = b"".join(
            data for _, data in sorted(parts.items())), headers
        sums = b"".join(hashlib.md5(data).digest()
                        for _, data in sorted(parts.items()))
        handler.reply(200, (
            "<CompleteMultipartUploadResult><ETag>&quot;"
            f"{hashlib.md5(sums).hexdigest()}-{len(parts)}&quot;</ETag>"
            "</CompleteMultipartUploadResult>").encode())

    def list_parts(self, handler, number):
        if number not in self.uploads:
            return self.error(handler, 404, "NoSuchUpload")
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{etag_of(data)}"
            f"&quot;</ETag><Size>{len(data)}</Size></Part>"
            for n, data in sorted(self.uploads[number][1].items()))
        handler.reply(200, f"<ListPartsResult>{rows}</ListPartsResult>"
                      .encode())

    def delete(self, handler, key, query):
        if "uploadId" in query:
            self.uploads.pop(query["uploadId"], None)
        else:
            self.objects.pop(key, None)
        handler.reply(204)
