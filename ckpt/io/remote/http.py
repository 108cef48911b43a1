"""Objects on web servers, and files on Hugging Face, with the standard library: reading them needs no package."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from ckpt.errors import NotOpenedError, UnreadableError
from ckpt.io.remote.store import WHOLE, Answer, BusyError, ChangedError, Known
from ckpt.io.remote.url import Url, escaped, typed

if TYPE_CHECKING:
    import socket
    from urllib.request import _HTTPConnectionProtocol

    from _typeshed import WriteableBuffer

_TIMEOUT = 60
"""Seconds until a server that does not answer counts as failed."""
_LISTING, _PAGES = 64 << 20, 1000
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})$")
_SIZE = re.compile(r"[0-9]{1,18}")
_SLOWEST = 10_000
"""Bytes a second below which an answer counts as failed, after `_TIMEOUT` seconds."""
_PIECE = 1 << 20
BROKEN = (http.client.HTTPException, OSError, ValueError, OverflowError)
"""The errors of the standard library for a server that does not answer, or does not answer with HTTP."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web servers only, and hands a token or a password to no other server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            if req.type == "https" and request.type != "https":
                raise NotOpenedError("the server leads from https to http")
            if is_private(request.host) and not is_private(req.host):
                raise NotOpenedError("the server leads to a private address")
            if request.host != req.host:
                request.remove_header("Authorization")
        return request


def is_private(server: str | None) -> bool:
    """Tell whether a server is this machine or in a private network. A stranger must not redirect there."""
    import socket
    from ipaddress import ip_address

    try:
        host = urlsplit(f"//{server}").hostname or ""
        addresses = {str(row[4][0]).partition("%")[0] for row in socket.getaddrinfo(host, None)}
        return not all(ip_address(address).is_global for address in addresses)
    except (OSError, ValueError):
        return False  # it cannot be asked


class _NoFiles(urllib.request.BaseHandler):
    """Refuses what is no web server: `file:` or `ftp:` in a redirect."""

    handler_order = 0  # before the handlers of urllib

    def file_open(self, req: urllib.request.Request) -> None:
        raise NotOpenedError("the server leads to a file")

    ftp_open = data_open = file_open


class _Received(io.RawIOBase):
    """The bytes of an answer, as its socket receives them until a time of `time.monotonic`."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.until = until
        self._inner = sock.makefile("rb", 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        if time.monotonic() > self.until:
            raise BusyError("the server answers too slowly")
        return self._inner.readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer with one deadline for its status and headers, and one for its body, however the bytes drip."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.received = _Received(sock, time.monotonic() + _TIMEOUT)
        self.fp.close()
        self.fp = io.BufferedReader(self.received)


class _Timely(urllib.request.AbstractHTTPHandler):
    def do_open(
        self, http_class: _HTTPConnectionProtocol, req: urllib.request.Request, **options: object
    ) -> http.client.HTTPResponse:
        def connection(host: str, **more: object) -> http.client.HTTPConnection:
            link = http_class(host, **more)  # type: ignore[arg-type]
            link.response_class = _Response
            return link

        return super().do_open(connection, req, **options)


class _Http(_Timely, urllib.request.HTTPHandler):
    """Web servers, whose answers have deadlines."""


class _Https(_Timely, urllib.request.HTTPSHandler):
    """The same behind TLS."""


class HttpObject:
    """A file on a web server."""

    tails = True

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._password = _apart(url)
        self._token = token
        self._is_redirected = False
        """True if another server answers.

        The first server may not know the ETag of the other one, so `RangeSource` alone compares it.
        """
        self._opener = urllib.request.build_opener(_Redirects, _NoFiles, _Http, _Https)

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        headers = {"Range": f"bytes=-{count}" if begin is None else f"bytes={begin}-{begin + count - 1}"}
        if etag.startswith('"') and not self._is_redirected:
            headers["If-Match"] = etag
        try:
            with self._open(headers) as answer:
                self._is_redirected = answer.url != self._url
                return _answer(answer, begin, count)
        except urllib.error.HTTPError as error:
            code, size = error.code, error.headers.get("Content-Range", "")
            error.close()
            if code == 416 and not etag and size.replace(" ", "") == "bytes*/0":
                return Answer(b"", 0, 0, error.headers.get("ETag") or "")
            if code == 416 and etag:
                raise ChangedError from None
            raise _failure(code) from None
        except BROKEN as error:
            raise _lost(error) from None

    def document(self) -> tuple[bytes, str | None]:
        """The whole of a small document, and the URL of its next page. Raises BusyError, NotOpenedError."""
        try:
            with self._open({}) as answer:
                more = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
                return _read(answer, _LISTING), more and more[1]
        except urllib.error.HTTPError as error:
            error.close()
            raise _failure(error.code) from None
        except BROKEN as error:
            raise _lost(error) from None

    def _open(self, headers: dict[str, str]) -> _Response:
        request = urllib.request.Request(self._url)
        request.add_header("Accept-Encoding", "identity")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        elif self._password is not None:
            request.add_header("Authorization", self._password)
        for name, value in headers.items():
            request.add_header(name, value)
        opened: _Response = self._opener.open(request, timeout=_TIMEOUT)
        return opened


def _apart(url: str) -> tuple[str, str | None]:
    """A URL without its user, and what a server is told of the user."""
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    user, separator, server = server.rpartition("@")
    if not separator:
        return url, None
    from base64 import b64encode
    from urllib.parse import unquote

    return f"{scheme}://{server}{slash}{path}", "Basic " + b64encode(unquote(user).encode()).decode()


def _answer(answer: _Response, begin: int | None, count: int) -> Answer:
    etag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    length = answer.headers.get("Content-Length", "")
    if length and not _SIZE.fullmatch(length):
        raise NotOpenedError("the server's answer is no HTTP")
    size = int(length) if length else None
    if answer.status != 206:  # Range was ignored: the whole file comes
        if size is not None and size > WHOLE:
            raise NotOpenedError(f"the server ignores Range, and the file has {size:,} bytes")
        data = _read(answer, WHOLE + 1)
        if len(data) > WHOLE:
            raise NotOpenedError(f"the server ignores Range, and the file has more than {WHOLE:,} bytes")
        if size is not None and len(data) != size:
            raise BusyError("the server cuts its answers off")
        return Answer(data, 0, len(data), etag)
    match = _RANGE.match(answer.headers.get("Content-Range", ""))
    if match is None:
        raise NotOpenedError("the server does not say which bytes it sends")
    first, last, size = map(int, match.groups())
    wanted = max(0, size - count) if begin is None else begin
    if first != wanted or last - first >= count or last >= size:
        raise NotOpenedError("the server sends other bytes than those that were asked for")
    data = _read(answer, last - first + 2)
    if len(data) != last - first + 1:
        raise BusyError("the server cuts its answers off")
    return Answer(data, first, size, etag)


def _read(answer: _Response, count: int) -> bytes:
    """At most `count` bytes of an answer, which has one deadline for all of them. Raises BusyError."""
    answer.received.until = time.monotonic() + _TIMEOUT + count / _SLOWEST
    pieces: list[bytes] = []
    remaining = count
    while remaining > 0 and (piece := answer.read1(min(remaining, _PIECE))):
        pieces.append(piece)
        remaining -= len(piece)
    if remaining > 0 and answer.length:  # http.client says so only of `read`
        raise BusyError("the server cuts its answers off")
    return b"".join(pieces)


def _failure(code: int) -> Exception:
    if code in _PASSING or code >= 500:
        return BusyError(f"the server answers {code}")
    if code in (404, 410):
        return NotOpenedError("no such file")
    if code in (401, 403):
        return NotOpenedError(f"no permission to read it: the server answers {code}")
    return ChangedError() if code == 412 else NotOpenedError(f"the server answers {code}")


def _lost(error: Exception) -> Exception:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NotOpenedError("the certificate of the server is not valid")
    if isinstance(error, http.client.IncompleteRead):
        return BusyError("the server cuts its answers off")
    if isinstance(error, (ValueError, OverflowError)) and not isinstance(error, OSError):
        return NotOpenedError("the server's answer is no HTTP")
    return BusyError(
        "the server does not answer" if isinstance(reason, OSError) else "the server's answer is no HTTP"
    )


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def _hub(url: Url) -> tuple[str, str, str, str | None]:
    """(server, model, revision, token)."""
    server = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    model, _, revision = url.host.partition("@")
    return server.rstrip("/"), model, revision or "main", os.environ.get("HF_TOKEN") or None


def web_object(url: Url, name: str) -> HttpObject:
    """The file of an http, https or hf URL. `name` is the shown one."""
    if url.scheme != "hf":
        return HttpObject(typed(name))
    server, model, revision, token = _hub(url)
    return HttpObject(typed(f"{server}/{model}/resolve/{revision}/{escaped(url.path)}"), token)


def hub_names(url: Url) -> dict[str, Known | None]:
    """Return the names in a folder of a model. The names of folders end with `/`.

    Raises BusyError, NotOpenedError, UnreadableError.
    """
    server, model, revision, token = _hub(url)
    path = url.path.strip("/")
    page = f"{server}/api/models/{model}/tree/{revision}" + (f"/{escaped(path)}" if path else "")
    names: dict[str, Known | None] = {}
    for _ in range(_PAGES):
        data, more = HttpObject(typed(page), token).document()
        try:
            for row in json.loads(data):
                name = str(row["path"]).rpartition("/")[2]
                names[name + "/" if row["type"] == "directory" else name] = None
        except (ValueError, KeyError, TypeError):
            raise UnreadableError("the server's list of files is damaged") from None
        if more is None:
            return names
        if not more.startswith(f"{server}/"):
            break  # a token goes to no other server
        page = more
    raise UnreadableError("the server's list of files is too long")
