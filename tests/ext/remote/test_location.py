"""Files behind a URL that are opened one after the other are begun before their
turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from webs import Kept

from ckpt.bytes.location import locate, names_opened_ahead
from ckpt.ext.remote import location
from ckpt.ext.remote.location import RemotePath
from ckpt.ext.remote.store import Answer
from ckpt.ext.remote.url import Url
from ckpt.model.errors import NotOpenedError

NAMES = [f"model-{number:05}.safetensors" for number in range(100)]


class Store:
    """Files of one folder. The first `hold` requests wait for each other."""

    def __init__(self, hold: int = 0) -> None:
        self.together = threading.Barrier(hold) if hold else None
        self.left = hold
        self.lock = threading.Lock()
        self.asked: list[str] = []

    def of(self, url: Url, name: str) -> Kept:
        store = self

        class Object(Kept):
            def get(self, begin: int | None, count: int, etag: str) -> Answer:
                with store.lock:
                    store.asked.append(url.last)
                    store.left -= 1
                    is_held = store.left >= 0
                if store.together is not None and is_held:
                    store.together.wait(60)
                if url.last == "none":
                    raise NotOpenedError("no such file")
                return super().get(begin, count, etag)

        made = Object((8).to_bytes(8, "little") + b"{}      " + name.encode())
        made.server = url.host  # with a gate of its own
        return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store()
    monkeypatch.setattr(location, "store_of", lambda url, name: made.of(url, name))
    yield made


def test_sixteen_are_under_way(store: Store) -> None:
    store.together, store.left = threading.Barrier(16), 16
    folder = locate("https://sixteen.example/set/")
    for name in names_opened_ahead(folder, NAMES):
        source = folder.child(name).open()
        assert source.read(0, 8) == (8).to_bytes(8, "little")
        assert source.read(16, source.size - 16).endswith(name.encode())
    assert sorted(store.asked) == NAMES, "each is asked for once"


def test_no_more_than_a_few_are_begun(store: Store) -> None:
    folder = locate("https://begun.example/set/")
    names = names_opened_ahead(folder, NAMES)
    for count in (1, 2, 3):
        next(names)
        begun = [name for name in NAMES if folder.child(name)._opened is not None]  # type: ignore[attr-defined]
        assert begun == NAMES[: location._BEFORE + count]


def test_who_stops_early_can_open_them_later(store: Store) -> None:
    folder = locate("https://begun.example/set/")
    names = names_opened_ahead(folder, NAMES)
    next(names)
    names.close()  # type: ignore[attr-defined]
    for name in NAMES:
        assert folder.child(name).open().size


def test_an_error_waits_for_its_turn_and_is_no_answer_for_ever(store: Store) -> None:
    folder = locate("https://begun.example/set/")
    for name in names_opened_ahead(
        folder, ["a.safetensors", "none", "b.safetensors", "in/c.safetensors"]
    ):
        if name == "none":
            assert not folder.child(name).is_file()
            with pytest.raises(NotOpenedError, match="no such file"):
                folder.child(name).open()
        elif "/" in name:
            assert folder.child("in").child("c.safetensors")._opened is not None  # type: ignore[attr-defined]
        else:
            assert folder.child(name).is_file() and folder.child(name).open().size
    assert store.asked.count("none") == 1
    with pytest.raises(NotOpenedError):
        folder.child("none").open()
    assert store.asked.count("none") == 2


def test_a_header_that_is_long_comes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    header = b"{" + b" " * 200_000 + b"}"
    kept = Kept(len(header).to_bytes(8, "little") + header + bytes(1_000_000))
    monkeypatch.setattr(location, "store_of", lambda url, name: kept)
    source = RemotePath(
        Url("https", "h", "a.safetensors"), "https://h/a.safetensors"
    ).open()
    assert kept.asked == [(0, 65_536), (65_536, 8 + len(header) - 65_536)]
    source.read(0, 1_000)
    source.read(0, 8 + len(header))
    assert len(kept.asked) == 2


def test_folders_of_this_machine_are_left_alone() -> None:
    assert list(names_opened_ahead(locate("/tmp"), iter(["a", "b"]))) == ["a", "b"]


def test_a_file_that_was_looked_for_is_not_opened_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next location of the same URL gets it, once, and not after a minute."""
    now = 0.0
    monkeypatch.setattr(location, "_handed", location._Handed(lambda: now))
    url = "https://handed.example/a.pth"
    assert locate(url).is_file()
    assert locate(url).open().size and store.asked == ["a.pth"]
    assert locate(url).open().size and store.asked == ["a.pth"] * 2
    place = locate(url)
    assert place.is_file() and place.open().size and store.asked == ["a.pth"] * 3
    assert locate(url).open().size and store.asked == ["a.pth"] * 4, (
        "whoever looked has taken it"
    )
    assert locate(url).is_file() and store.asked == ["a.pth"] * 5
    now = 60.0
    assert locate(url).open().size and store.asked == ["a.pth"] * 6


def test_few_are_kept_for_who_opens_them_next(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = location._Handed()
    futures = [location.Future() for _ in range(location._BEFORE + 1)]
    for number, future in enumerate(futures):
        handed.put(str(number), future)
    assert (
        handed.take("0") is None
        and handed.take("1") is futures[1]
        and handed.take("1") is None
    )


def test_a_server_that_ignores_ranges_gives_a_file_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = (8).to_bytes(8, "little") + b"{}      " + bytes(500_000)

    class Whole(Kept):
        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            self.asked.append((begin or 0, count))
            return Answer(memoryview(self.data), 0, len(self.data), self.etag)

    kept = Whole(data)
    monkeypatch.setattr(location, "store_of", lambda url, name: kept)
    source = RemotePath(
        Url("https", "h", "a.safetensors"), "https://h/a.safetensors"
    ).open()
    for at in range(0, 500_000, 50_000):
        assert source.read(at, 16) == data[at : at + 16]
    assert source.read(0, len(data)) == data and len(kept.asked) == 1
