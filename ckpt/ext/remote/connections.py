"""Connections to web servers, kept for the next request: through a proxy where the
environment names one.

An answer has one deadline for its status and headers, and one for its body, however the
bytes drip.
"""

from __future__ import annotations

import atexit
import http.client
import io
import os
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from mmap import mmap
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from ckpt.ext.remote.store import BusyError
from ckpt.ext.remote.traffic import waiting
from ckpt.model.errors import NotOpenedError
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TIMEOUT = 30
"""Seconds until a server that says nothing counts as failed, and for the status and
headers of an answer.
"""
_BODY = 60
_SLOWEST = 10_000
"""Seconds for a body, and the bytes a second below which one counts as failed after
that.
"""
_IDLE = 32
"""The most connections to one server that are kept while nobody uses them."""
_LARGE, _PIECE = 32 << 10, 1 << 20
_BRIEF, _REST = 1, 60
"""Seconds for an answer that nobody needs, and for which a connection is kept that
nobody uses.
"""
_LEFT = 64 << 10
"""The most bytes of an answer that are read only so that its connection can be used
again.
"""


class Server(NamedTuple):
    """A web server: `http` or `https`, its name, its port, and the proxy on the way, or
    an empty text.
    """

    scheme: str
    host: str
    port: int
    proxy: str = ""

    @property
    def name(self) -> str:
        """Its name for people."""
        # A port that is usual for the scheme is left out, as in a URL.
        is_usual = self.port == (443 if self.scheme == "https" else 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if is_usual else f"{host}:{self.port}"


def server_of(url: str) -> Server:
    """The server of a URL. Raises NotOpenedError for what is no web server, ValueError
    for half a URL.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        raise NotOpenedError(
            f"the server leads to a {'file' if scheme == 'file' else f'{scheme}: URL'}"
        )
    host, port = parts.hostname or "", parts.port or (443 if scheme == "https" else 80)
    if not host:
        raise ValueError("no host")
    proxy = urllib.request.getproxies().get(scheme, "")
    # `no_proxy` and the like.
    if proxy and urllib.request.proxy_bypass(f"{host}:{port}"):
        proxy = ""
    # Its password would go there in the clear.
    if proxy and _proxy_parts(proxy).scheme != "http":
        raise NotOpenedError(
            f"the proxy for {scheme} is no http:// one",
            hint=f"{scheme}_proxy=http://HOST:PORT, or no_proxy={host}",
        )
    return Server(scheme, host, port, proxy)


def _proxy_parts(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


class _Received(io.RawIOBase):
    """The bytes of an answer, as its socket receives them until a time of
    `time.monotonic`.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.until = until
        self._inner = sock.makefile("rb", 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        # The socket has a timeout for each read; this is one for the whole answer.
        if time.monotonic() > self.until:
            raise BusyError("the server answers too slowly")
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer with deadlines."""

    def __init__(
        self,
        sock: socket.socket,
        debuglevel: int = 0,
        method: str | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.received = _Received(sock, time.monotonic() + TIMEOUT)
        self.fp.close()
        self.fp = io.BufferedReader(self.received)

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if 100 < status < 200 and status != 101:
            # http.client goes on after this one only, and would leave the answer to the
            # next request
            status = 100
        return version, status, reason


class Reply:
    """An answer whose body is not read yet. `close` keeps its connection for the next
    request, if it can be used again.

    Where reading the body failed or was interrupted, `close` waits for nothing more.
    """

    def __init__(
        self, server: Server, link: http.client.HTTPConnection, response: _Response
    ) -> None:
        self.status = response.status
        self.headers = response.headers
        self._server = server
        self._link = link
        self._response = response
        self._is_begun = False

    def read(
        self, most: int, *, within: float = _BODY, spooled: bool = False
    ) -> memoryview:
        """The body, or `most` bytes of it. With `spooled` it lies in a file without a
        name.

        Raises BusyError where it ends too early, or takes more than `within` seconds
        and the time of the slowest server.
        """
        self._is_begun = True
        response = self._response
        # The slowest server still has to bring 10 kB a second.
        response.received.until = time.monotonic() + within + most / _SLOWEST
        length = response.length
        size = most if length is None else min(most, length)
        view, count = allocate_disk(size) if spooled else allocate_memory(size), 0
        while count < len(view):
            # Its `readinto` takes a chunk of less than nothing for an end.
            if response.chunked:
                piece = response.read1(min(len(view) - count, _PIECE))
                view[count : count + len(piece)] = piece
                more = len(piece)
            else:
                more = response.readinto(view[count:])
            if not more:
                break
            count += more
        if count < len(view) and response.length:  # http.client says so only of `read`
            raise BusyError("the server cuts its answers off")
        return view[:count]

    def close(self) -> None:
        # An answer nobody needs must not cost its connection, nor raise anything.
        """Be done with it."""
        with suppress(Exception):
            length = self._response.length
            if not self._is_begun and length is not None and length <= _LEFT:
                self.read(length, within=_BRIEF)
            if self._response.isclosed() or self._response.length == 0:
                self._response.close()
                if not self._response.will_close:
                    _links.give(self._server, self._link)
                    return
        # which alone has the socket where the server ends the connection
        self._response.close()
        self._link.close()


def allocate_memory(size: int) -> memoryview:
    """Memory for an answer. Much of it is given back to the system as soon as nobody
    looks at it.
    """
    return memoryview(mmap(-1, size) if size >= _LARGE else bytearray(size))


def allocate_disk(size: int) -> memoryview:
    """Room on the disk: a server that ignores ranges sends whole files, which stay
    until they are closed.
    """
    if size < _LARGE:
        return allocate_memory(size)
    from tempfile import TemporaryFile  # here: few servers do so

    try:
        with TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                # A full disk says so here: a write into a hole would end the process.
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # macOS
                file.truncate(size)
            # The file has no name, so that nothing of it is left after a crash.
            return memoryview(mmap(file.fileno(), size))
    except OSError:
        # The fence, a system that is read-only and a full disk refuse to make a file.
        # The server answers all the same, so the file stays in memory.
        return allocate_memory(size)


class _Links:
    """Connections that nobody uses. A copy of this process has its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[Server, list[tuple[http.client.HTTPConnection, float]]] = {}

    def take(self, server: Server) -> http.client.HTTPConnection | None:
        with self._lock:
            # Two processes must never write to one connection.
            if self._pid != os.getpid():  # the original keeps its own
                self._close_idle(time.monotonic())
                self._pid = os.getpid()
            idle = self._idle.get(server, [])
            while idle:
                link, since = idle.pop()
                # An old connection may be closed by the server at any moment: it is not
                # tried.
                if time.monotonic() - since < _REST and _is_quiet(link):
                    return link
                link.close()
            return None

    def give(self, server: Server, link: http.client.HTTPConnection) -> None:
        with self._lock:
            self._close_idle(time.monotonic() - _REST)
            idle = self._idle.setdefault(server, [])
            if self._pid == os.getpid() and len(idle) < _IDLE:
                idle.append((link, time.monotonic()))
                return
        link.close()

    def close(self) -> None:
        """Keep none."""
        with self._lock:
            self._close_idle(time.monotonic())

    def _close_idle(self, until: float) -> None:
        """Close what nobody has used since then."""
        for server, idle in list(self._idle.items()):
            for link, since in idle:
                if since <= until:
                    link.close()
            self._idle[server] = [row for row in idle if row[1] > until]
            if not self._idle[server]:
                del self._idle[server]


def _is_quiet(link: http.client.HTTPConnection) -> bool:
    """Tell whether nothing came since the last answer: no end, and no bytes that nobody
    has asked for.
    """
    # Bytes without a request are no answer to the next one.
    assert link.sock is not None
    with selectors.DefaultSelector() as selector:
        selector.register(link.sock, selectors.EVENT_READ)
        return not selector.select(0)


_links = _Links()
atexit.register(_links.close)


def request_path(
    server: Server, path: str, headers: Mapping[str, str], *, is_public: bool = False
) -> tuple[Reply, bool | None]:
    """Ask a server for a path: its answer, and whether its address is private. None
    behind a proxy, which connects.

    With `is_public` a private address is not asked. Raises NotOpenedError for one, and
    BROKEN.
    """
    link = _links.take(server)
    # The server may have closed it since: then a new one is opened, once.
    if link is not None:
        try:
            return _request_on_link(server, link, path, headers, is_public=is_public)
        except _CLOSED:
            pass  # by the server, while nobody used it
    return _request_on_link(
        server, _open_connection(server), path, headers, is_public=is_public
    )


_CLOSED = (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError)


def _request_on_link(
    server: Server,
    link: http.client.HTTPConnection,
    path: str,
    headers: Mapping[str, str],
    *,
    is_public: bool,
) -> tuple[Reply, bool | None]:
    try:
        # Behind a proxy the address of the server is not known here.
        is_private = None if server.proxy else _is_private(link)
        if is_public and is_private:
            # A server on the internet must not lead into this network.
            raise NotOpenedError("the server leads to a private address")
        more = {}
        if server.proxy and server.scheme == "http":
            # A proxy for http is asked for the whole URL.
            path, more = f"http://{server.name}{path}", _proxy_login(server.proxy)
        with waiting(server.name):
            link.request(
                # Compressed bytes would have other offsets.
                "GET",
                path,
                headers={"Accept-Encoding": "identity", **headers, **more},
            )
            response = link.getresponse()
    # A connection with half an answer serves nothing else.
    except BaseException:
        link.close()
        raise
    assert isinstance(response, _Response)
    return Reply(server, link, response), is_private


def _is_private(link: http.client.HTTPConnection) -> bool:
    """Tell whether a connection leads to this machine or into a private network."""
    assert link.sock is not None
    # An IPv6 address may carry the name of an interface behind a `%`.
    return not ip_address(str(link.sock.getpeername()[0]).partition("%")[0]).is_global


def _open_connection(server: Server) -> http.client.HTTPConnection:
    """A new connection. Raises OSError, ValueError."""
    host, port = server.host, server.port
    link: http.client.HTTPConnection
    if server.proxy:
        proxy = _proxy_parts(server.proxy)
        host, port = proxy.hostname or "", proxy.port or 80
    if server.scheme == "https":
        link = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT, context=_tls_context()
        )
        if server.proxy:
            # https goes through the proxy in a tunnel, which sees nothing of it.
            link.set_tunnel(server.host, server.port, _proxy_login(server.proxy))
    else:
        link = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    link.response_class = _Response
    try:
        with waiting(server.name):
            link.connect()
    except BaseException:
        link.close()
        raise
    return link


def _proxy_login(proxy: str) -> dict[str, str]:
    user = _proxy_parts(proxy).netloc.rpartition("@")[0]
    return {"Proxy-Authorization": basic_login(user)} if user else {}


def basic_login(user: str) -> str:
    """Return what a server is told of `user:password`, as they stand in a URL."""
    return "Basic " + b64encode(unquote(user).encode()).decode()


# Made once: it reads all certificates of the system.
@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
