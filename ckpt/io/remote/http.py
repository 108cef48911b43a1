"""Objects on web servers, and files on Hugging Face, with the standard library: reading them needs no package."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from typing import IO

from ckpt.errors import NotOpenedError, UnreadableError
from ckpt.io.remote.store import WHOLE, Answer, BusyError, ChangedError, Known
from ckpt.io.remote.url import Url, typed

_TIMEOUT = 60
"""Seconds until a server that does not answer counts as failed."""
_LISTING, _PAGES = 64 << 20, 1000
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")


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
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            if req.type == "https" and made.type != "https":
                raise NotOpenedError("the server leads from https to http")
            if made.host != req.host:
                made.remove_header("Authorization")
        return made


class _NoFiles(urllib.request.BaseHandler):
    """Refuses what is no web server: `file:` in a redirect."""

    def file_open(self, req: urllib.request.Request) -> None:
        raise NotOpenedError("the server leads to a file")

    ftp_open = data_open = file_open


class HttpObject:
    """A file on a web server."""

    tails = True

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._password = _apart(url)
        self._token = token
        self._is_redirected = False
        """Whether another server answers: the first one may not know its ETag, so `RangeSource` alone compares it."""
        self._opener = urllib.request.build_opener(_Redirects, _NoFiles)

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
        except (http.client.HTTPException, OSError) as error:
            raise _lost(error) from None

    def document(self) -> tuple[bytes, str | None]:
        """The whole of a small document, and the URL of its next page. Raises BusyError, NotOpenedError."""
        try:
            with self._open({}) as answer:
                more = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
                return bytes(answer.read(_LISTING)), more and more[1]
        except urllib.error.HTTPError as error:
            error.close()
            raise _failure(error.code) from None
        except (http.client.HTTPException, OSError) as error:
            raise _lost(error) from None

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url)
        request.add_header("Accept-Encoding", "identity")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        elif self._password is not None:
            request.add_header("Authorization", self._password)
        for name, value in headers.items():
            request.add_header(name, value)
        opened: http.client.HTTPResponse = self._opener.open(request, timeout=_TIMEOUT)
        return opened


def _apart(url: str) -> tuple[str, str | None]:
    """A URL without its user, and what a server is told of the user."""
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    user, at, server = server.rpartition("@")
    if not at:
        return url, None
    from base64 import b64encode
    from urllib.parse import unquote

    return f"{scheme}://{server}{slash}{path}", "Basic " + b64encode(unquote(user).encode()).decode()


def _answer(answer: http.client.HTTPResponse, begin: int | None, count: int) -> Answer:
    etag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    length = answer.headers.get("Content-Length", "")
    if answer.status != 206:  # Range was ignored: the whole file comes
        if length.isdigit() and int(length) > WHOLE:
            raise NotOpenedError(f"the server ignores Range, and the file has {int(length):,} bytes")
        data = answer.read(WHOLE + 1)
        if len(data) > WHOLE:
            raise NotOpenedError(f"the server ignores Range, and the file has more than {WHOLE:,} bytes")
        if length.isdigit() and len(data) != int(length):
            raise BusyError("the server cuts its answers off")
        return Answer(data, 0, len(data), etag)
    found = _RANGE.match(answer.headers.get("Content-Range", ""))
    if found is None:
        raise NotOpenedError("the server does not say which bytes it sends")
    first, last, size = map(int, found.groups())
    wanted = max(0, size - count) if begin is None else begin
    if first != wanted or last - first >= count or last >= size:
        raise NotOpenedError("the server sends other bytes than those that were asked for")
    data = answer.read(last - first + 2)
    if len(data) != last - first + 1:
        raise BusyError("the server cuts its answers off")
    return Answer(data, first, size, etag)


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
    return HttpObject(typed(f"{server}/{model}/resolve/{revision}/{url.path}"), token)


def hub_names(url: Url) -> dict[str, Known | None]:
    """The names in a folder of a model; those of folders end with `/`. Raises BusyError, NotOpenedError, UnreadableError."""
    server, model, revision, token = _hub(url)
    path = url.path.strip("/")
    page = f"{server}/api/models/{model}/tree/{revision}" + (f"/{path}" if path else "")
    found: dict[str, Known | None] = {}
    for _ in range(_PAGES):
        data, more = HttpObject(typed(page), token).document()
        try:
            for row in json.loads(data):
                name = str(row["path"]).rpartition("/")[2]
                found[name + "/" if row["type"] == "directory" else name] = None
        except (ValueError, KeyError, TypeError):
            raise UnreadableError("the server's list of files is damaged") from None
        if more is None:
            return found
        if not more.startswith(f"{server}/"):
            break  # a token goes to no other server
        page = more
    raise UnreadableError("the server's list of files is too long")
