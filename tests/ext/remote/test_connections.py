"""Connections are kept, closed ones are made again, redirects are remembered, proxies
are asked.
"""

from __future__ import annotations

import errno
import os
import random
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from webs import Web, served

from ckpt.bytes import far
from ckpt.ext.remote import connections, http
from ckpt.ext.remote.connections import Server, server_of
from ckpt.ext.remote.http import HttpObject, _retry_seconds, translate_error
from ckpt.ext.remote.store import BusyError
from ckpt.model.errors import NotOpenedError

DATA = random.Random(4).randbytes(200_000)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with served() as web:
        web.keeps = None
        yield web


def get(found: HttpObject, begin: int = 0, count: int = 10, etag: str = "") -> bytes:
    return bytes(found.get(begin, count, etag).data)


def test_one_connection_serves_many_requests_and_objects(web: Web) -> None:
    for name in ("/a", "/b"):
        found = HttpObject(web.put(name, DATA))
        for at in range(0, 50_000, 5_000):
            assert get(found, at, 5_000) == DATA[at : at + 5_000]
    assert (len(web.asked), web.connections) == (20, 1)


def test_an_answer_of_no_use_leaves_the_connection_usable(web: Web) -> None:
    """What is left of a body is read, as long as it is short."""
    web.put("/a", DATA)
    for _ in range(3):
        with pytest.raises(NotOpenedError):
            HttpObject(f"{web.url}/none").get(0, 10, "")
        assert get(HttpObject(f"{web.url}/a")) == DATA[:10]
    assert web.connections == 1


def test_a_connection_that_was_cut_off_is_not_used_again(web: Web) -> None:
    found = HttpObject(web.put("/a", DATA))
    web.cut = [5]
    with pytest.raises(BusyError, match="cuts its answers off"):
        get(found)
    assert get(found) == DATA[:10] and web.connections == 2


def test_who_interrupts_waits_for_no_body(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says nothing more would be waited for until its time is over."""
    readinto, room = connections._Received.readinto, connections.allocate_memory
    interrupts: list[bool] = []
    monkeypatch.setattr(
        connections,
        "allocate_memory",
        lambda size: (interrupts.append(False), room(size))[1],
    )

    def interrupted(self: connections._Received, buffer: Any) -> int | None:
        if interrupts:
            interrupts.append(True)
            raise KeyboardInterrupt
        return readinto(self, buffer)

    monkeypatch.setattr(connections._Received, "readinto", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(HttpObject(web.put("/a", DATA)), 0, len(DATA))
    assert interrupts == [False, True]


@pytest.mark.parametrize("way", ["closes", "hangs up"])
def test_a_kept_connection_that_the_server_closes_is_no_failure(
    way: str, web: Web
) -> None:
    found = HttpObject(web.put("/a", DATA))
    if way == "closes":
        web.keeps = 2
    else:
        web.hangs_up = True
    for at in range(0, 70, 10):
        assert get(found, at) == DATA[at : at + 10]
    assert len(web.asked) == 7 and web.connections > 1


def test_a_copy_of_the_process_has_connections_of_its_own(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = HttpObject(web.put("/a", DATA))
    get(found)
    monkeypatch.setattr(connections._links, "_pid", -1)
    get(found)
    assert web.connections == 2


def test_where_a_redirect_led_is_asked_at_once_until_it_fails(web: Web) -> None:
    with served() as other:
        other.keeps = None
        web.moved["/a"] = other.put("/b?signature=1", DATA)
        other.files["/b"] = DATA
        found = HttpObject(f"{web.url}/a")
        for at in range(0, 50, 10):
            assert get(found, at, etag='"x"' if at else "") == DATA[at : at + 10]
        assert (len(web.asked), len(other.asked)) == (1, 5)
        other.fail = [403]
        assert get(found, 100) == DATA[100:110], "a signature that has expired"
        assert (len(web.asked), len(other.asked)) == (2, 7)
        other.fail = [429]
        with pytest.raises(
            BusyError, match=r"127.0.0.1:\d+ answers 429 Too Many Requests"
        ):
            get(found)
        assert len(web.asked) == 2, "a server that is overloaded is not asked twice"
        other.fail = [403, 403]
        with pytest.raises(NotOpenedError, match="no permission to read it"):
            get(found)


def test_a_redirect_that_leads_nowhere(web: Web) -> None:
    web.moved["/a"] = "/a"
    with pytest.raises(NotOpenedError, match="without end"):
        get(HttpObject(f"{web.url}/a"))
    assert len(web.asked) == http._REDIRECTS + 1


def test_a_redirect_with_a_name_that_is_no_ascii(web: Web) -> None:
    web.put("/%C3%BC%20x", DATA)
    web.moved["/a"] = "/\u00fc x".encode().decode("latin-1")
    web.files[web.moved["/a"]] = DATA
    assert [
        row
        for row in (http.quote(web.moved["/a"], safe=http._SAFE),)
        if not row.isascii()
    ] == []


@pytest.mark.parametrize("encoding", ["gzip", "br"])
def test_a_server_that_compresses_is_refused(encoding: str, web: Web) -> None:
    web.put("/a", DATA)
    web.headers["Content-Encoding"] = encoding
    with pytest.raises(
        NotOpenedError, match=rf"sends its files compressed \({encoding}\)"
    ):
        get(HttpObject(f"{web.url}/a"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("7", 7),
        ("nonsense", 0),
        ("-5", 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("1" * 30, 0),
    ],
)
def test_how_long_a_server_asks_to_wait(text: str, seconds: float) -> None:
    assert _retry_seconds(text) == seconds
    assert _retry_seconds("Fri, 01 Jan 2100 00:00:00 GMT") > 1e9


def test_an_overload_says_how_long_to_wait(web: Web) -> None:
    web.put("/a", DATA)
    web.headers["Retry-After"] = "7"
    for status, is_overload in ((429, True), (503, True), (500, False)):
        web.fail = [status]
        with pytest.raises(BusyError, match=f"the server answers {status}") as caught:
            get(HttpObject(f"{web.url}/a"))
        assert (caught.value.after, caught.value.is_overload) == (7, is_overload)


def test_a_proxy_is_asked_but_for_hosts_without_one(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url.replace("://", "://me:p%40ss@"))
    monkeypatch.setenv("no_proxy", "direct.example,127.0.0.1")
    web.put("http://far.example/a", DATA)
    assert get(HttpObject("http://far.example/a")) == DATA[:10]
    assert web.asked[-1].path == "http://far.example/a"
    assert (
        server_of("http://direct.example/a").proxy
        == ""
        == server_of("http://127.0.0.1:1/a").proxy
    )
    assert server_of("https://far.example/a").proxy == "", "it is one for http only"
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    assert server_of("https://far.example/a") == Server(
        "https", "far.example", 443, "proxy.example:3128"
    )


@pytest.mark.parametrize("scheme", ["https", "socks5", "socks5h"])
@pytest.mark.parametrize("kind", ["http", "https"])
def test_no_password_goes_in_the_clear_to_a_proxy_of_another_kind(
    kind: str, scheme: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        f"{kind}_proxy", web.url.replace("http://", f"{scheme}://me:secret@")
    )
    with pytest.raises(
        NotOpenedError, match=f"the proxy for {kind} is no http:// one"
    ) as caught:
        get(HttpObject(f"{kind}://far.example/a"))
    assert "secret" not in str(caught.value) and not web.connections


def test_behind_a_proxy_the_address_is_not_checked_and_that_is_said(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(far.Told, "tell", told.append)
    monkeypatch.setenv("http_proxy", web.url)
    web.moved["http://a.example/x"] = "http://b.example/x"
    web.put("http://b.example/x", DATA)
    assert get(HttpObject("http://a.example/x")) == DATA[:10]
    assert told == [
        "a.example leads to another server through a proxy: its address is not checked"
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (http.socket.gaierror(-2, "Name or service not known"), "unknown host h.example:81"),
        (ConnectionRefusedError(), "h.example:81 refuses the connection"),
        (TimeoutError(), "h.example:81 does not answer"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), (
            "h.example:81 does not answer with TLS (http:// in the place of https://?)"
        )),
        (OSError(113, "No route to host"), "h.example:81 does not answer"),
        (ValueError("no port"), "the server's answer is no HTTP"),
    ],
)  # fmt: skip
def test_why_a_server_is_not_reached(error: Exception, says: str) -> None:
    assert str(translate_error(error, "https://h.example:81/a?secret=1")) == says


def test_a_certificate_that_is_not_valid() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    says = "the certificate of h.example is not valid: self-signed certificate"
    assert str(translate_error(error, "https://h.example/a")) == says


def test_tls_where_there_is_none(web: Web) -> None:
    with pytest.raises(NotOpenedError, match="does not answer with TLS"):
        get(HttpObject(web.url.replace("http:", "https:") + "/a"))


def test_a_connection_that_rested_for_long_is_not_used(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have dropped it without a word."""
    found = HttpObject(web.put("/a", DATA))
    get(found)
    monkeypatch.setattr(connections, "_REST", 0)
    get(found)
    assert web.connections == 2


def test_an_answer_that_nobody_needs_is_not_waited_for(web: Web) -> None:
    web.files["/long"] = bytes(connections._LEFT + 1)
    web.moved["/a"] = "/b"
    web.put("/b", DATA)
    reply, _ = connections.request_path(server_of(web.url), "/long", {})
    reply.close()
    assert get(HttpObject(f"{web.url}/a")) == DATA[:10]
    assert web.connections == 2, "the long one is ended"


def test_whole_files_lie_on_the_disk(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.ranges = False
    spooled: list[int] = []
    spool = connections.allocate_disk
    monkeypatch.setattr(
        connections, "allocate_disk", lambda size: spooled.append(size) or spool(size)
    )
    assert bytes(HttpObject(web.put("/a", DATA)).get(0, 10, "").data) == DATA
    assert spooled == [len(DATA)]
    view = spool(100_000)
    view[-3:] = b"end"
    assert bytes(view[-4:]) == b"\0end" and len(spool(10)) == 10


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="macOS reserves nothing")
def test_a_full_disk_leaves_a_whole_file_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def refuse(file: int, offset: int, size: int) -> None:
        asked.append(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    view = connections.allocate_disk(100_000)
    view[-3:] = b"end"
    assert asked == [100_000] and bytes(view[-4:]) == b"\0end"


def test_connections_to_servers_that_are_not_asked_again_are_closed(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = connections._Links()
    monkeypatch.setattr(connections, "_links", links)
    with served() as other:
        other.keeps = None
        get(HttpObject(other.put("/a", DATA)))
        [(link, _)] = links._idle[server_of(other.url)]
        monkeypatch.setattr(connections, "_REST", 0)
        get(HttpObject(web.put("/a", DATA)))
        assert link.sock is None and list(links._idle) == [server_of(web.url)]
    links.close()
    assert not links._idle
