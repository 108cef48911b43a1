"""A proxy between clients and servers, which counts and delays: for clients that are
told of it, or in front of one server.
"""

from __future__ import annotations

import http.client
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.parse import urlsplit

from hubs import started

_PASSED_ON = (
    "connection",
    "proxy-connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
)


class Asked(NamedTuple):
    """One request: as in `GET http://host/path` or `CONNECT host:443`, and its
    Range.
    """

    what: str
    range: str


class Proxy:
    """What stands between: `asked` are the requests since the last `clear`, a tunnel is
    one.
    """

    def __init__(self, behind: str = "") -> None:
        self.behind = behind
        self.url = ""
        self.delay = 0.0
        """Milliseconds before each request is passed on."""
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Count from nothing."""
        self.asked: list[Asked] = []
        self.sent = 0
        """Bytes of bodies, or of all that comes back through a tunnel."""
        self.at_once = self.most_at_once = 0
        """Requests and tunnels that are open at the same time."""

    @contextmanager
    def _counted(self, what: str, span: str) -> Iterator[None]:
        with self._lock:
            self.asked.append(Asked(what, span))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.delay / 1000)
            yield
        finally:
            with self._lock:
                self.at_once -= 1

    def pass_on(self, call: BaseHTTPRequestHandler) -> None:
        """Ask the server, and hand its answer back."""
        parts = urlsplit(call.path)
        server = self.behind or parts.netloc
        path = parts._replace(scheme="", netloc="").geturl()
        body = call.rfile.read(int(call.headers.get("Content-Length") or 0))
        headers = {
            name: value
            for name, value in call.headers.items()
            if name.lower() not in _PASSED_ON
        }
        with self._counted(
            f"{call.command} {call.path}", call.headers.get("Range", "")
        ):
            line = http.client.HTTPConnection(server)
            try:
                line.request(call.command, path, body or None, headers)
                answer = line.getresponse()
                data = answer.read()
            except OSError:
                call.send_error(502)
                return
            finally:
                line.close()
        with self._lock:
            self.sent += len(data)
        call.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _PASSED_ON:
                call.send_header(name, value)
        size = (
            answer.getheader("Content-Length", "0")
            if call.command == "HEAD"
            else str(len(data))
        )
        call.send_header("Content-Length", size)
        call.end_headers()
        call.wfile.write(data)

    def tunnel(self, call: BaseHTTPRequestHandler) -> None:
        """Pass bytes both ways until one side closes."""
        host, _, port = call.path.rpartition(":")
        with self._counted(f"CONNECT {call.path}", ""):
            try:
                far = socket.create_connection((host.strip("[]"), int(port)))
            except OSError:
                call.send_error(502)
                return
            with far, selectors.DefaultSelector() as waiting:
                call.send_response_only(200)
                call.end_headers()
                near = call.connection
                waiting.register(near, selectors.EVENT_READ, far)
                waiting.register(far, selectors.EVENT_READ, near)
                while True:
                    for key, _ in waiting.select():
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        if not data:
                            call.close_connection = True
                            return
                        key.data.sendall(data)
                        if key.fileobj is far:
                            with self._lock:
                                self.sent += len(data)


@contextmanager
def proxy(behind: str = "") -> Iterator[Proxy]:
    """Run a proxy on a free port until the end of the block; with `behind`, a URL, one
    in front of that server.
    """
    made = Proxy(urlsplit(behind).netloc)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _any(self) -> None:
            try:
                made.pass_on(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any

        def do_CONNECT(self) -> None:
            try:
                made.tunnel(self)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with started(Handler) as url:
        made.url = url
        yield made
