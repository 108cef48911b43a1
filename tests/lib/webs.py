"""A web server in a thread, which misbehaves as it is told: it answers 503, cuts
bodies, ignores Range, changes files.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ckpt.ext.remote.store import Answer


class Asked(NamedTuple):
    """One request: its path with query, its Range and its Authorization, and how many
    bytes went out.
    """

    path: str
    range: str
    login: str
    sent: int


class Kept:
    """An object in memory, as a store hands it out. `failures` are raised first, one
    for each request.
    """

    def __init__(self, data: bytes, etag: str = '"1"', *, tails: bool = True) -> None:
        self.data, self.etag, self.tails, self.server = data, etag, tails, "memory"
        self.failures: list[Exception] = []
        self.asked: list[tuple[int, int]] = []

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        from ckpt.ext.remote.store import Answer

        first = max(0, len(self.data) - count) if begin is None else begin
        self.asked.append((first, count))
        if self.failures:
            raise self.failures.pop(0)
        return Answer(
            memoryview(self.data)[first : first + count],
            first,
            len(self.data),
            self.etag,
        )


class Web:
    """Files by their paths. `asked` are the requests so far."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        """More headers of each answer."""
        self.links: dict[str, str] = {}
        """The header `Link` of the answer to a path."""
        self.asked: list[Asked] = []
        self.fail: list[int] = []
        """Status codes for the next requests."""
        self.cut: list[int] = []
        """How many bytes of the next bodies are sent."""
        self.ranges = self.etags = self.if_match = True
        self.keeps: int | None = 0
        """The requests after which a connection is closed, from its second one on; None
        for never.
        """
        self.hangs_up = False
        """The server closes a kept connection when the next request comes, without an
        answer.
        """
        self.connections = 0
        self.gather = 0
        """So many requests for shards wait for each other. It is 0 once they
        are there.
        """
        self.now = self.most = 0
        """The requests at the same time, and the most of them."""
        self.changed = threading.Condition()
        self.claims: int | None = None
        self.url = ""

    def put(self, path: str, data: bytes) -> str:
        self.files[path] = data
        return f"{self.url}{path}"

    @property
    def sent(self) -> int:
        return sum(row.sent for row in self.asked)

    def answer(self, call: BaseHTTPRequestHandler) -> None:
        with self.changed:
            if "-of-" in call.path:
                if self.now >= self.gather:
                    self.gather = 0
                    self.changed.notify_all()
                self.changed.wait_for(lambda: not self.gather, 60)
        wanted = call.headers.get("Range", "")
        data = self.files.get(call.path.partition("?")[0])
        etag = '"' + hashlib.sha256(data or b"").hexdigest()[:16] + '"'
        status, headers, body = 200, {"ETag": etag} if self.etags else {}, data or b""
        span = re.match(r"bytes=(\d*)-(\d*)$", wanted)
        if self.fail:
            status, body = self.fail.pop(0), b"busy"
        elif call.path in self.moved:
            status, body, headers = 302, b"", {"Location": self.moved[call.path]}
        elif data is None:
            status = 404
        elif self.if_match and call.headers.get("If-Match") not in (None, etag):
            status, body = 412, b""
        elif span and self.ranges and not data:
            status, headers["Content-Range"] = 416, "bytes */0"
        elif span and self.ranges:
            first = int(span[1]) if span[1] else max(0, len(data) - int(span[2]))
            last = min(int(span[2]), len(data) - 1) if span[1] else len(data) - 1
            status, body = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        if call.path in self.links:
            headers["Link"] = self.links[call.path]
        sent = body[: self.cut.pop(0)] if self.cut and status in (200, 206) else body
        self.asked.append(
            Asked(call.path, wanted, call.headers.get("Authorization", ""), len(sent))
        )
        call.send_response(status)
        for name, value in {
            **headers,
            **self.headers,
            "Content-Length": str(self.claims or len(body)),
        }.items():
            call.send_header(name, value)
        call.end_headers()
        call.wfile.write(sent)
        if len(sent) < len(body) or self.claims is not None:
            call.close_connection = True


@contextmanager
def served() -> Iterator[Web]:
    """A server on a free port of this machine, until the end of the block."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        count = 0

        def do_GET(self) -> None:
            self.count += 1
            web.connections += self.count == 1
            if web.hangs_up and self.count > 1:
                self.close_connection = True
                return
            with web.changed:
                web.now += 1
                web.most = max(web.most, web.now)
            try:
                web.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with web.changed:
                    web.now -= 1
            if web.keeps is not None and self.count > web.keeps:
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # a kept connection may stay open
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
