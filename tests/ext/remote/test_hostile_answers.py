"""Answers of servers that mean harm, and names that are to mislead one: one line each,
never a bug in ckpt.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from inside import inside
from webs import served

from ckpt.ext.remote import connections, http
from ckpt.ext.remote.http import HttpObject
from ckpt.ext.remote.location import RemotePath
from ckpt.ext.remote.store import BusyError
from ckpt.ext.remote.url import parse_url, shown, typed_url
from ckpt.model.errors import NotOpenedError, UsageError

DIGITS = b"1" * 5_000
ANSWERS: dict[str, bytes] = {
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: "
    + DIGITS
    + b"\r\n\r\nx",
    "a range of 5,000 digits": b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/"
    + DIGITS
    + b"\r\n\r\nx",
    "a range in superscripts": (
        "HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/²³\r\n\r\nx"
    ).encode("latin-1"),
    "a length in superscripts": "HTTP/1.1 200 OK\r\nContent-Length: ²\r\n\r\nx".encode(
        "latin-1"
    ),
    "a chunk of less than nothing": b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Range: bytes 0-9/10\r\n\r\n-5\r\nx\r\n0\r\n\r\n",
    "a chunk of much less than nothing": b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Range: bytes 0-9/10\r\n\r\n-" + b"9" * 40 + b"\r\nx\r\n0\r\n\r\n",
    "a whole file in a chunk of much less than nothing": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-"
    )
    + b"9" * 40
    + b"\r\nx\r\n0\r\n\r\n",
    "a chunk of 5,000 digits": b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Range: bytes 0-9/10\r\n\r\n" + DIGITS + b"\r\nx\r\n0\r\n\r\n",
    "a status of 5,000 digits": b"HTTP/1.1 " + DIGITS + b" OK\r\n\r\n",
    "a redirect to half an address": (
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1/\r\n\r\n"
    ),
    "a redirect to a port that is none": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999999/\r\n\r\n"
    ),
    "a redirect to ftp": b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n",
    "a redirect to a file": (
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"
    ),
    "a redirect to itself": b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2_000,
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives every request this answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65_536)
                        connection.sendall(answer)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x.pth"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_is_one_error(name: str) -> None:
    with answering(ANSWERS[name]) as url, pytest.raises((NotOpenedError, BusyError)):
        HttpObject(url).get(0, 10, "")


@pytest.mark.parametrize(
    "name", ["a length in superscripts", "a chunk of much less than nothing"]
)
def test_what_is_no_http_is_not_asked_for_again(name: str) -> None:
    with (
        answering(ANSWERS[name]) as url,
        pytest.raises(NotOpenedError, match="no HTTP"),
    ):
        HttpObject(url).get(0, 10, "")


@pytest.mark.parametrize("way", ["an answer that nobody asked for", "a reset"])
def test_a_kept_connection_on_which_something_came_is_not_used_again(way: str) -> None:
    head = (
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.pth"
        more = threading.Barrier(2)

        def serve() -> None:
            first, _ = server.accept()
            first.recv(65_536)
            first.sendall(head + b"0123456789")
            more.wait(60)
            if way == "a reset":
                first.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                first.close()
            else:
                first.sendall(head + b"x" * 10)
            more.wait(60)
            second, _ = server.accept()
            with first, second:
                second.recv(65_536)
                second.sendall(head + b"abcdefghij")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert bytes(HttpObject(url).get(0, 10, "").data) == b"0123456789"
        more.wait(60)
        more.wait(60)
        assert bytes(HttpObject(url).get(0, 10, "").data) == b"abcdefghij"
        thread.join(60)


def test_a_range_without_a_byte_is_refused() -> None:
    """Else the same bytes would be asked for again without end."""
    answer = (
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 5-4/10\r\nContent-Length: 0\r\n\r\n"
    )
    with answering(answer) as url, pytest.raises(NotOpenedError, match="other bytes"):
        HttpObject(url).get(5, 3, "")


def test_a_hint_before_an_answer_is_passed_over() -> None:
    """Else the answer would be the one to the next request."""
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    answer = (
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n"
        b"0123456789"
    )
    with answering(hint * 3 + answer) as url:
        assert bytes(HttpObject(url).get(0, 10, "").data) == b"0123456789"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a chunk of 5,000 digits", "a redirect to half an address"]
)
def test_the_command_says_one_line(name: str, tmp_path: Path) -> None:
    with answering(ANSWERS[name]) as url:
        done = inside("inspect", url, cwd=tmp_path)
    assert (
        done.code == 2 and len(done.complaints) == 1 and "bug" not in done.complaints[0]
    )


@pytest.mark.parametrize(
    "url", ["http://[x", "https://user:secret@[::1/x?token=secret"]
)
def test_a_url_that_is_none_is_named_without_its_secrets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        shown(url)
    assert caught.value.path is not None and "[" in caught.value.path
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["%2f..%2fx", "a?b", "a#b", "a b", "ä", "a%"])
def test_names_of_an_index_reach_the_server_as_names(name: str) -> None:
    from urllib.parse import quote

    folder = RemotePath(parse_url("https://host/models/"), "https://host/models/")
    assert (
        typed_url(folder.child(name).name)
        == f"https://host/models/{quote(name, safe='')}"
    )


class Link:
    """A connection to an address."""

    def __init__(self, address: str) -> None:
        self.sock = self
        self.address = address

    def getpeername(self) -> tuple[str, int]:
        return self.address, 80


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("93.184.216.34", False),
        ("2606:2800:220:1::1", False),
        ("10.0.0.7", True),
        ("127.0.0.1", True),
        ("169.254.169.254", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("192.168.1.1", True),
        ("::ffff:10.0.0.7", True),
        ("0.0.0.0", True),
    ],
)
def test_private_addresses(address: str, private: bool) -> None:
    assert connections._is_private(Link(address)) is private  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("public", "way", "problem"),
    [
        ("a", "ab", "private address"),
        ("ab", "abc", "private address"),
        ("ab", "ab", None),
        ("", "ab", None),
        ("abc", "abc", None),
    ],
)
def test_a_stranger_leads_to_no_private_address(
    public: str, way: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is connected to counts, whatever the name says; an inner server
    may lead to another one.
    """
    with served() as a, served() as b, served() as c:
        servers = {"a": a, "b": b, "c": c}
        for first, second in pairwise(way):
            servers[first].moved["/x"] = f"{servers[second].url}/x"
        servers[way[-1]].put("/x", b"0123456789")
        ports = {int(servers[name].url.rpartition(":")[2]) for name in public}
        monkeypatch.setattr(
            connections, "_is_private", lambda link: link.port not in ports
        )
        found = HttpObject(f"{a.url}/x")
        for _ in range(2):
            if problem is None:
                assert bytes(found.get(0, 10, "").data) == b"0123456789"
            else:
                with pytest.raises(NotOpenedError, match=problem):
                    found.get(0, 10, "")
                assert not servers[way[-1]].asked


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("http://public.example/x", "from https to http"),
        ("ftp://127.0.0.1/x", "leads to a file"),
        ("data:,x", "leads to a file"),
        ("file:///etc/passwd", "leads to a file"),
        ("javascript:x", "leads to a program"),
    ],
)
def test_a_redirect_leads_to_web_servers_only(target: str, problem: str) -> None:
    with pytest.raises(NotOpenedError, match=problem):
        http._redirected_target(
            http._Target("https://public.example/x", is_first=True),
            target,
            is_public=False,
        )


@pytest.mark.parametrize("calls", range(1, 8))
def test_status_headers_and_body_have_deadlines(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps a socket alive, not an answer: wherever time runs out,
    the request ends.
    """
    answer = (
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n"
        b"0123456789"
    )
    times = iter([0.0] * calls)
    monkeypatch.setattr(connections.time, "monotonic", lambda: next(times, 1e9))
    monkeypatch.setattr(
        connections._Received, "readinto", one_byte(connections._Received.readinto)
    )
    with answering(answer) as url, pytest.raises(BusyError, match="too slowly"):
        HttpObject(url).get(0, 10, "")


def one_byte(readinto: Any) -> Any:
    """Each reading of a socket gives one byte."""

    def slow(self: Any, buffer: Any) -> Any:
        return readinto(self, memoryview(buffer)[:1])

    return slow
