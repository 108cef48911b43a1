"""Objects on web servers, with the standard library: reading them needs no package."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urljoin, urlsplit

from ckpt.bytes import far
from ckpt.ext.remote.connections import (
    Reply,
    Server,
    basic_login,
    request_path,
    server_of,
)
from ckpt.ext.remote.store import WHOLE, Answer, BusyError, ChangedError
from ckpt.model.errors import NotOpenedError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

LISTING = 64 << 20
_whole = threading.Lock()
"""Whole files are received one after the other: they are large."""
_REDIRECTS = 10
_MOVED = frozenset((301, 302, 303, 307, 308))
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})$")
_SIZE = re.compile(r"[0-9]{1,18}")
_SAFE = "%/:=&?~#+!$,;'@()*[]|"
"""Characters that stay as they are in the path or the query of a redirect."""
BROKEN = (http.client.HTTPException, OSError, ValueError, OverflowError)
"""The errors of the standard library for a server that does not answer, or does not
answer with HTTP.
"""


class _Target(NamedTuple):
    """The URL that is asked in the end. `is_first` says that no redirect led there."""

    url: str
    is_first: bool
    is_public: bool = False
    """True if a redirect from a public address led there: then it must be
    public too.
    """


class HttpObject:
    """A file on a web server. Where a redirect led is asked again at once, until that
    fails.
    """

    tails = True

    def __init__(self, url: str, token: str | None = None) -> None:
        url, user = _split_login(url)
        self._first = _Target(url, is_first=True)
        self._login = f"Bearer {token}" if token is not None else user
        self._target = self._first

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        span = f"bytes=-{count}"
        if begin is not None:
            span = f"bytes={begin}-{begin + count - 1}"
        headers = {"Range": span}
        # Another server may not know the ETag, so `RangeSource` alone compares it.
        if etag.startswith('"') and self._target.is_first:
            headers["If-Match"] = etag
        reply = self._ask_server(headers)
        try:
            # An empty file has no range: the server says 416 and its size.
            if reply.status == 416 and not etag:
                size = reply.headers.get("Content-Range", "").replace(" ", "")
                if size == "bytes*/0":
                    return Answer(
                        memoryview(b""), 0, 0, reply.headers.get("ETag") or ""
                    )
            # The file has become shorter.
            if reply.status == 416 and etag:
                raise ChangedError
            _refuse_status(reply, self._target)
            return _read_answer(reply, begin, count)
        except BROKEN as error:
            raise translate_error(error, self._target.url) from None
        finally:
            reply.close()

    def document(self) -> tuple[bytes, str | None]:
        """The whole of a small document, and the URL of its next page. Raises
        BusyError, NotOpenedError.
        """
        reply = self._ask_server({})
        try:
            _refuse_status(reply, self._target)
            # Long lists come in pages.
            more = re.search(r'<([^>]+)>;\s*rel="next"', reply.headers.get("Link", ""))
            return bytes(reply.read(LISTING)), more and more[1]
        except BROKEN as error:
            raise translate_error(error, self._target.url) from None
        finally:
            reply.close()

    def _ask_server(self, headers: Mapping[str, str]) -> Reply:
        """The answer of the server that has the file. Where the last one does not give
        it, the first one is asked.
        """
        target = self._target
        # The target of a redirect is asked right away: a signed URL holds for a while.
        if not target.is_first:
            try:
                reply = self._follow_redirects(target, headers)
                # 412 and 416 are answers about the file, 429 is one about the server.
                if reply.status < 400 or reply.status in (412, 416, 429):
                    return reply
                reply.close()
            except (BusyError, NotOpenedError):
                pass
            # The first server may have another ETag for the file.
            headers = {
                name: value for name, value in headers.items() if name != "If-Match"
            }
        # From here on the redirects are followed anew.
        self._target = self._first
        return self._follow_redirects(self._first, headers)

    def _follow_redirects(self, target: _Target, headers: Mapping[str, str]) -> Reply:
        for _ in range(_REDIRECTS + 1):
            try:
                server, is_private, reply = self._request_target(target, headers)
                where = reply.headers.get("Location")
                if reply.status not in _MOVED or where is None:
                    self._target = target
                    return reply
                reply.close()
                # A server with a public address may not lead to a private one.
                target = _redirected_target(
                    target, urljoin(target.url, where), is_public=is_private is False
                )
                if is_private is None and server_of(target.url).host != server.host:
                    far.tell(
                        f"{server.name} leads to another server through a proxy: its "
                        "address is not checked"
                    )
            except BROKEN as error:
                raise translate_error(error, target.url) from None
            # The next server may not know the ETag.
            if "If-Match" in headers:
                headers = {
                    name: value for name, value in headers.items() if name != "If-Match"
                }
        raise NotOpenedError("the server leads from one URL to the next without end")

    def _request_target(
        self, target: _Target, headers: Mapping[str, str]
    ) -> tuple[Server, bool | None, Reply]:
        server = server_of(target.url)
        is_same = _scheme_and_server(target.url) == _scheme_and_server(self._first.url)
        # A login goes to no other server.
        if self._login is not None and is_same:
            headers = {**headers, "Authorization": self._login}
        parts = urlsplit(target.url)
        path = quote(parts.path or "/", safe=_SAFE)
        if parts.query:
            path += f"?{quote(parts.query, safe=_SAFE)}"
        reply, is_private = request_path(
            server, path, headers, is_public=target.is_public
        )
        return server, is_private, reply

    @property
    def server(self) -> str:
        """The server that is asked, for people."""
        return urlsplit(self._target.url).netloc


def _scheme_and_server(url: str) -> tuple[str, str]:
    """The scheme and the server of a URL: a login goes to no other."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _redirected_target(target: _Target, url: str, *, is_public: bool) -> _Target:
    """The target of a redirect. Raises NotOpenedError for one that leads away from web
    servers, or out of https.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        raise NotOpenedError(
            "the server leads to a "
            f"{'file' if scheme in ('file', 'ftp', 'data') else 'program'}"
        )
    # A secret in the URL would go on in the clear.
    if scheme == "http" and target.url.lower().startswith("https:"):
        raise NotOpenedError("the server leads from https to http")
    # A redirect's user is not sent: it is the server's, not ours.
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    return _Target(plain, is_first=False, is_public=is_public or target.is_public)


def _split_login(url: str) -> tuple[str, str | None]:
    """A URL without its user, and what a server is told of the user."""
    parts = urlsplit(url)
    user, separator, server = parts.netloc.rpartition("@")
    login = basic_login(user) if separator else None
    return parts._replace(netloc=server).geturl(), login


def _read_answer(reply: Reply, begin: int | None, count: int) -> Answer:
    etag = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    length = reply.headers.get("Content-Length", "")
    if length and not _SIZE.fullmatch(length):
        raise NotOpenedError("the server's answer is no HTTP")
    # Ranges of compressed bytes would be other bytes.
    encoding = reply.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise NotOpenedError(
            f"the server sends its files compressed ({show(encoding, 20)}), though it "
            "is asked not to"
        )
    size = int(length) if length else None
    if reply.status != 206:  # Range was ignored: the whole file comes
        if size is not None and size > WHOLE:
            raise NotOpenedError(
                f"the server ignores Range, and the file has {size:,} bytes"
            )
        with _whole:
            # One byte more than the limit shows a file that is too long.
            data = reply.read(WHOLE + 1, spooled=True)
        if len(data) > WHOLE:
            raise NotOpenedError(
                f"the server ignores Range, and the file has more than {WHOLE:,} bytes"
            )
        if size is not None and len(data) != size:
            raise BusyError("the server cuts its answers off")
        return Answer(data, 0, len(data), etag)
    match = _RANGE.match(reply.headers.get("Content-Range", ""))
    if match is None:
        raise NotOpenedError("the server does not say which bytes it sends")
    first, last, size = map(int, match.groups())
    # Fewer bytes than asked for are an answer, other ones are not.
    wanted = max(0, size - count) if begin is None else begin
    if first != wanted or not first <= last < min(first + count, size):
        raise NotOpenedError(
            "the server sends other bytes than those that were asked for"
        )
    # One byte more than it says, to see that the body ends there.
    data = reply.read(last - first + 2)
    if len(data) != last - first + 1:
        raise BusyError("the server cuts its answers off")
    return Answer(data, first, size, etag)


def _refuse_status(reply: Reply, target: _Target) -> None:
    """Raise the error of a status that is none of success."""
    status = reply.status
    if 200 <= status < 300:
        return
    reason = http.client.responses.get(status, "")
    server = "the server" if target.is_first else _server_in(target.url)
    said = f"{server} answers {status}"
    if reason:
        said += f" {reason}"
    # These may pass: the request is tried again.
    if status in _PASSING or status >= 500:
        raise BusyError(
            said,
            _retry_seconds(reply.headers.get("Retry-After", "")),
            is_overload=status in (429, 503),
        )
    if status in (404, 410):
        raise NotOpenedError("no such file")
    if status in (401, 403):
        raise NotOpenedError(f"no permission to read it: {said}")
    raise ChangedError() if status == 412 else NotOpenedError(said)


def _server_in(url: str) -> str:
    """The server of a URL, for people."""
    return show(urlsplit(url).netloc, 80)


def _retry_seconds(text: str) -> float:
    """The seconds of a header Retry-After: a number, or a date. 0 without one."""
    if _SIZE.fullmatch(text.strip()):
        return float(text)
    if not text:
        return 0.0
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def translate_error(error: Exception, url: str) -> Exception:
    """Translate an error of the standard library. It says the server, for a redirect
    may have led to another one.
    """
    server = _server_in(url)
    if isinstance(error, socket.gaierror):
        return NotOpenedError(f"unknown host {server}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotOpenedError(
            f"the certificate of {server} is not valid: "
            f"{show(error.verify_message, 80)}"
        )
    if isinstance(error, ssl.SSLError):
        return NotOpenedError(
            f"{server} does not answer with TLS",
            hint="http:// in the place of https://?",
        )
    if isinstance(error, ConnectionRefusedError):
        return BusyError(f"{server} refuses the connection")
    if isinstance(error, http.client.IncompleteRead):
        return BusyError("the server cuts its answers off")
    if isinstance(error, (ValueError, OverflowError)) and not isinstance(
        error, OSError
    ):
        return NotOpenedError("the server's answer is no HTTP")
    if isinstance(error, TimeoutError):
        return BusyError(f"{server} does not answer")
    if isinstance(error, OSError):
        return BusyError(f"{server} does not answer")
    return BusyError("the server's answer is no HTTP")
