"""Web servers that answer well, badly, and otherwise than they are asked."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from webs import Web, served

from ckpt.ext.remote import http, hub
from ckpt.ext.remote.http import HttpObject
from ckpt.ext.remote.location import store_of
from ckpt.ext.remote.source import RangeSource
from ckpt.ext.remote.store import WHOLE, BusyError, ChangedError
from ckpt.ext.remote.url import parse_url, shown
from ckpt.model.errors import NotOpenedError, UnreadableError

DATA = random.Random(2).randbytes(300_000)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with served() as web:
        monkeypatch.setenv("HF_ENDPOINT", web.url)
        yield web


def source(url: str) -> tuple[RangeSource, list[float]]:
    pauses: list[float] = []
    return RangeSource(HttpObject(url), url, sleep=pauses.append), pauses


def test_ranges(web: Web) -> None:
    found, _ = source(web.put("/a.bin", DATA))
    assert (
        found.read(0, 10) == DATA[:10]
        and found.read(100_000, 7) == DATA[100_000:100_007]
    )
    assert [row.range for row in web.asked] == [
        "bytes=-131072",
        "bytes=0-65535",
        "bytes=100000-100006",
    ]
    assert web.sent == found.bytes_read == 131_072 + 65_536 + 7


def test_an_empty_file(web: Web) -> None:
    assert source(web.put("/a.bin", b""))[0].size == 0


def test_503_and_a_cut_body_are_tried_again(web: Web) -> None:
    url = web.put("/a.bin", DATA)
    web.fail, web.cut = [503, 500], [1000]
    found, pauses = source(url)
    assert (found.read(200_000, 100_000), len(pauses), len(web.asked)) == (
        DATA[200_000:],
        3,
        4,
    )


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (404, "no such file"),
        (403, "no permission to read it: the server answers 403 Forbidden"),
        (418, "the server answers 418"),
    ],
)
def test_other_failures_are_final(status: int, problem: str, web: Web) -> None:
    web.fail = [status]
    with pytest.raises(NotOpenedError, match=problem):
        source(web.put("/a.bin", DATA))
    assert len(web.asked) == 1


def test_no_server(web: Web) -> None:
    with pytest.raises(BusyError, match="refuses the connection"):
        HttpObject("http://127.0.0.1:1/x").get(0, 1, "")


@pytest.mark.parametrize("has_match", [True, False], ids=["If-Match", "compared"])
def test_a_changed_object(has_match: bool, web: Web) -> None:
    web.if_match = has_match
    url = web.put("/a.bin", DATA)
    found, _ = source(url)
    web.put("/a.bin", DATA[::-1])
    with pytest.raises(ChangedError):
        found.read(0, 10)
    assert web.asked[-1].sent == (0 if has_match else 65_536)


def test_a_server_without_ranges_gives_a_small_file_whole(web: Web) -> None:
    web.ranges = False
    found, _ = source(web.put("/a.bin", DATA))
    assert found.read(0, len(DATA)) == DATA
    assert len(web.asked) == 1


def test_a_server_without_ranges_is_refused_for_a_large_file(web: Web) -> None:
    web.ranges, web.claims = False, WHOLE + 1
    with pytest.raises(
        NotOpenedError, match="ignores Range, and the file has 67,108,865 bytes"
    ):
        source(web.put("/a.bin", DATA))


def test_a_server_without_ranges_that_does_not_say_how_much(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "WHOLE", 1000)
    web.ranges = False
    with pytest.raises(NotOpenedError, match="ignores Range"):
        source(web.put("/a.bin", DATA))


def test_a_password_goes_to_the_server_and_nowhere_else(web: Web) -> None:
    with served() as other:
        host = web.url.partition("//")[2]
        web.moved["/a"] = other.put("/b", DATA)
        name = shown(f"http://me:p%40ss@{host}/a?key=1")
        web.moved["/a?key=1"] = web.moved["/a"]
        found = store_of(parse_url(name), name).get(0, 10, "")
        assert found.data == DATA[:10]
        assert [row.login for row in web.asked] == ["Basic bWU6cEBzcw=="]
        assert [(row.login, row.range) for row in other.asked] == [("", "bytes=0-9")]


def test_a_redirect_leads_to_no_file(web: Web) -> None:
    web.moved["/a"] = "file:///etc/hostname"
    with pytest.raises(NotOpenedError):
        HttpObject(f"{web.url}/a").get(0, 10, "")


def test_hugging_face(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    web.put("/org/model/resolve/v1/sub/a.bin", DATA)
    url = parse_url("hf://org/model@v1/sub/a.bin")
    assert store_of(url, str(url)).get(5, 5, "").data == DATA[5:10]
    assert web.asked[0].login == "Bearer secret"


def test_names_on_hugging_face(web: Web) -> None:
    rows = [
        {"path": "sub/a.bin", "type": "file"},
        {"path": "sub/in", "type": "directory"},
    ]
    web.put("/api/models/org/model/tree/main/sub", json.dumps(rows).encode())
    assert sorted(hub.names_in(parse_url("hf://org/model/sub/"))) == ["a.bin", "in/"]
    web.put("/api/models/org/model/tree/main/sub", b"[{}]")
    with pytest.raises(UnreadableError):
        hub.names_in(parse_url("hf://org/model/sub"))


LISTING = "/api/models/org/model/tree/main"


def page(*names: str) -> bytes:
    """A page of the list of files of a model."""
    return json.dumps([{"path": name, "type": "file"} for name in names]).encode()


def test_a_listing_of_several_pages_is_one(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_ENDPOINT", f"{web.url}/")
    web.put(LISTING, page("a.bin", "b.bin"))
    web.put("/second", page("c.bin"))
    web.put("/third", page("d.bin"))
    web.links[LISTING] = (
        f'<{web.url}/none>; rel="prev", <{web.url}/second?cursor=1>; rel="next"'
    )
    web.links["/second?cursor=1"] = f'<{web.url}/third>;rel="next"'
    web.links["/third"] = f'<{web.url}/second>; rel="prev"'

    assert list(hub.names_in(parse_url("hf://org/model"))) == [
        "a.bin",
        "b.bin",
        "c.bin",
        "d.bin",
    ]
    assert [row.path for row in web.asked] == [LISTING, "/second?cursor=1", "/third"]
    assert {row.login for row in web.asked} == {"Bearer secret"}


def test_a_listing_without_end_is_refused(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_PAGES", 3)
    web.put(LISTING, page("a.bin"))
    web.links[LISTING] = f'<{web.url}{LISTING}>; rel="next"'
    with pytest.raises(UnreadableError, match="list of files is too long"):
        hub.names_in(parse_url("hf://org/model"))
    assert len(web.asked) == 3


@pytest.mark.parametrize(
    "next_page", ["{other}/page", "{web}@{host}/page", "//{host}/page", "/page"]
)
def test_the_token_goes_to_no_other_server_that_a_listing_names(
    next_page: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with served() as other:
        other.put("/page", page("b.bin"))
        web.put(LISTING, page("a.bin"))
        host = other.url.partition("//")[2]
        link = next_page.format(other=other.url, web=web.url, host=host)
        web.links[LISTING] = f'<{link}>; rel="next"'
        with pytest.raises(UnreadableError, match="list of files is too long"):
            hub.names_in(parse_url("hf://org/model"))
        assert other.asked == [] and len(web.asked) == 1


@pytest.mark.parametrize("path", [LISTING, "/org/model/resolve/main/a.bin"])
def test_the_token_does_not_follow_a_redirect_to_another_server(
    path: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hugging Face sends who reads a file to the server that stores it."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    with served() as other:
        web.moved[path] = other.put("/b", page("b.bin"))
        if path == LISTING:
            assert list(hub.names_in(parse_url("hf://org/model"))) == ["b.bin"]
        else:
            url = parse_url("hf://org/model/a.bin")
            assert store_of(url, str(url)).get(0, 1, "").data == b"["
        assert [row.login for row in web.asked] == ["Bearer secret"]
        assert [row.login for row in other.asked] == [""]


def test_without_a_token_none_is_sent(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    web.put(LISTING, page("a.bin"))
    assert list(hub.names_in(parse_url("hf://org/model"))) == ["a.bin"]
    assert [row.login for row in web.asked] == [""]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, BusyError), (429, BusyError), (404, NotOpenedError), (401, NotOpenedError)],
)
def test_a_listing_that_fails(status: int, kind: type[Exception], web: Web) -> None:
    web.put(LISTING, page("a.bin"))
    web.fail = [status]
    with pytest.raises(kind):
        hub.names_in(parse_url("hf://org/model"))


def test_a_listing_that_is_cut_off_is_busy(web: Web) -> None:
    web.put(LISTING, page("a.bin"))
    web.cut = [5]
    with pytest.raises(BusyError, match="cuts its answers off"):
        hub.names_in(parse_url("hf://org/model"))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"3", b'["a"]', b'[{"path": "a"}]', b'[{"type": "file"}]']
)
def test_a_damaged_listing(data: bytes, web: Web) -> None:
    web.put(LISTING, data)
    with pytest.raises(UnreadableError, match="list of files is damaged"):
        hub.names_in(parse_url("hf://org/model"))
