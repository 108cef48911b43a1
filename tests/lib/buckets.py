"""An object store that speaks S3, with a front that counts what it is asked, and
misbehaves as it is told.
"""

from __future__ import annotations

import http.client
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

_LOGIN = "AWS4-HMAC-SHA256 Credential=key-id/20260101/us-east-1/s3/aws4_request"
_NUMBERS = count(1)


class Asked(NamedTuple):
    """One request: what is asked for, as in `PUT run/a.pth?partNumber=1`, the bytes of
    its body, and its headers.
    """

    what: str
    size: int
    headers: dict[str, str]

    @property
    def is_part(self) -> bool:
        return "?partNumber=" in self.what


class Front:
    """What stands before the store: `asked` are the requests since the last `clear`."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.url = ""
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Behave well again."""
        self.asked: list[Asked] = []
        self.fail: list[tuple[str, int]] = []
        """A part of what is asked for, and the status of the answer, each for one
        request.
        """
        self.flip: list[str] = []
        """A part of what is asked for, of which a bit is changed on the way, each for
        one request.
        """
        self.at_once = self.most_at_once = 0
        """Parts that are sent at the same time."""
        self.held: str | None = None
        """A part of what is asked for that is not answered before `released` is set.
        `arrived` is set when it comes.
        """
        self.arrived, self.released = threading.Event(), threading.Event()
        self.before: dict[str, Any] = {}
        """What is called once, before such a request is passed on."""
        self.keeps: dict[str, Holes] = {}
        """Objects that the front answers for itself, without their zeros."""

    def whats(self) -> list[str]:
        """What was asked, without the names of the buckets."""
        return [row.what for row in self.asked]

    def answer(self, call: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        body = call.rfile.read(int(call.headers.get("Content-Length") or 0))
        parts = urlsplit(call.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        shown = "&".join(
            f"{name}={query[name]}" if name in ("partNumber", "prefix") else name
            for name in ("uploads", "partNumber", "prefix", "uploadId")
            if name in query and not (name == "uploadId" and "partNumber" in query)
        )
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        what = f"{call.command} {key}" + (f"?{shown}" if shown else "")
        if "delete" in query:
            what = "DELETE " + " ".join(re.findall(r"<Key>(.*?)</Key>", body.decode()))
        asked = Asked(
            what,
            len(body),
            {name.lower(): value for name, value in call.headers.items()},
        )
        with self.lock:
            self.asked.append(asked)
            self.at_once += asked.is_part
            self.most_at_once = max(self.most_at_once, self.at_once)
            row = next((row for row in self.fail if row[0] in what), None)
            if row is not None:
                self.fail.remove(row)
            flip = next((text for text in self.flip if text in what), None)
            if flip is not None:
                self.flip.remove(flip)
            before = next(
                (self.before.pop(text) for text in list(self.before) if text in what),
                None,
            )
        try:
            if before is not None:
                before()
            if self.held is not None and self.held in what:
                self.arrived.set()
                assert self.released.wait(600)
            if row is not None:
                return (
                    row[1],
                    {},
                    b"<Error><Code>Refused</Code><Message>secret-of-the-server</Message></Error>",
                )
            if flip is not None:
                body = (
                    body[: len(body) // 2]
                    + bytes([body[len(body) // 2] ^ 1])
                    + body[len(body) // 2 + 1 :]
                )
            if key in self.keeps:
                return self.keeps[key].answer(
                    call.command, query, body, asked.headers.get("range", "")
                )
            return self._passed(call, body)
        finally:
            with self.lock:
                self.at_once -= asked.is_part

    def _passed(
        self, call: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        line = http.client.HTTPConnection(self.behind)
        line.request(call.command, call.path, body, dict(call.headers))
        answer = line.getresponse()
        data = answer.read()
        dropped = ("connection", "transfer-encoding", "content-length")
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in dropped
        }
        if call.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length", "0")
        line.close()
        return answer.status, headers, data


class Holes:
    """One object, of which parts that are all zeros take no memory."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes | int] = {}
        self.sums: dict[int, bytes] = {}
        self.etag = ""

    @property
    def size(self) -> int:
        return sum(
            part if isinstance(part, int) else len(part) for part in self.parts.values()
        )

    def answer(
        self, command: str, query: dict[str, str], body: bytes, span: str
    ) -> tuple[int, dict[str, str], bytes]:
        if command == "POST" and "uploads" in query:
            return 200, {}, _xml("InitiateMultipartUploadResult", UploadId="id")
        if command == "PUT":
            number = int(query["partNumber"])
            self.parts[number] = body if body.count(0) < len(body) else len(body)
            self.sums[number] = md5(body).digest()
            return 200, {"ETag": f'"{self.sums[number].hex()}"'}, b""
        if command == "POST":
            sums = b"".join(sum for _, sum in sorted(self.sums.items()))
            self.etag = f"{md5(sums).hexdigest()}-{len(self.sums)}"
            return (
                200,
                {},
                _xml("CompleteMultipartUploadResult", ETag=f"&quot;{self.etag}&quot;"),
            )
        if not self.etag:
            return 404, {}, b""
        first, last = 0, self.size - 1
        found = re.match(r"bytes=(\d*)-(\d*)$", span)
        if found and found[1]:
            first, last = int(found[1]), min(int(found[2]), last)
        elif found:
            first = max(0, self.size - int(found[2]))
        headers = {
            "ETag": f'"{self.etag}"',
            "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT",
            "Content-Range": f"bytes {first}-{last}/{self.size}",
        }
        return 206, headers, self._bytes(first, last + 1)

    def _bytes(self, first: int, end: int) -> bytes:
        found, at = b"", 0
        for _, part in sorted(self.parts.items()):
            size = part if isinstance(part, int) else len(part)
            low, high = max(first - at, 0), min(end - at, size)
            if low < high:
                found += bytes(high - low) if isinstance(part, int) else part[low:high]
            at += size
        return found


def _xml(name: str, **fields: str) -> bytes:
    inside = "".join(f"<{field}>{value}</{field}>" for field, value in fields.items())
    return f"<{name}><Bucket>b</Bucket><Key>k</Key>{inside}</{name}>".encode()


class Bucket:
    """An empty bucket of the store."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.name = f"bucket-{next(_NUMBERS)}"
        self.url = f"s3://{self.name}"
        call = urllib.request.Request(
            f"http://{front.behind}/{self.name}", method="PUT"
        )
        call.add_header("Authorization", _LOGIN)
        urllib.request.urlopen(call).close()

    def _held(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"].buckets[self.name]

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects by their names."""
        return {name: key.value for name, key in self._held().keys.items()}

    @property
    def uploads(self) -> int:
        """How many uploads are unfinished, as ListMultipartUploads says it."""
        call = urllib.request.Request(f"http://{self.front.behind}/{self.name}?uploads")
        call.add_header("Authorization", _LOGIN)
        with urllib.request.urlopen(call) as answer:
            return int(answer.read().count(b"<UploadId>"))

    def put(self, name: str, data: bytes) -> str:
        """Put an object past the front; its URL."""
        call = urllib.request.Request(
            f"http://{self.front.behind}/{self.name}/{name}", data, method="PUT"
        )
        call.add_header("Authorization", _LOGIN)
        call.add_header(
            "Content-Type", "application/octet-stream"
        )  # a form's is the default, which has no body
        urllib.request.urlopen(call).close()
        return f"{self.url}/{name}"

    def variables(self) -> dict[str, str]:
        """What the environment must say."""
        return {
            "AWS_ENDPOINT_URL": self.front.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key-id",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "no_proxy": "127.0.0.1",
        }


@contextmanager
def fronted() -> Iterator[Front]:
    """A store with its front on free ports of this machine, until the end of
    the block.
    """
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    front = Front(f"{host}:{port}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                status, headers, data = front.answer(self)
                self.send_response(status)
                for name, value in {
                    "Content-Length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    front.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        store.stop()
