"""An object in parts: which bytes are sent when, how many at once, and what is left
when something fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from ckpt.bytes.source import Memory
from ckpt.ext.remote import target as module
from ckpt.ext.remote import target as put_module
from ckpt.ext.remote.credentials import looked_at
from ckpt.ext.remote.target import (
    PART,
    ObjectSink,
    StoppedError,
    StoredTarget,
    Upload,
    part_bytes,
)
from ckpt.ext.remote.url import parse_url
from ckpt.model.errors import UsageError, WriteError

URL = "s3://b/a.pth"
DATA = random.Random(7).randbytes(5000)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "part_bytes", lambda size: 64)
    monkeypatch.setattr(module, "_HELD", 3 * 64)
    monkeypatch.setattr(module, "_AHEAD", 64)


class Kept:
    """An object that is taken as obstore takes it. `failures` are raised when that
    group is asked to be there.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.groups: list[int] = []
        self.data: bytes | None = None
        self.events: list[str] = []
        self.failures: dict[int, Exception] = {}

    def put(self, data: Any, *, create: bool) -> str:
        self.events.append("put" if create else "replace")
        self.data = bytes(data)
        return '"1"'

    def put_parts(self, groups: Iterator[Any], part_bytes: int) -> str:
        rest = b""
        for group in groups:
            if not len(group):
                number = len(self.groups)
                if number in self.failures:
                    raise self.failures[number]
                self.events.append("there")
                continue
            rest += bytes(group)
            self.groups.append(len(group))
            while len(rest) >= part_bytes:
                self.parts.append(rest[:part_bytes])
                rest = rest[part_bytes:]
        self.events.append("completed")
        self.data = b"".join(self.parts) + rest
        return '"1"'

    def look(self) -> str | None:
        return None

    def remove(self) -> None: ...


def sink_of(
    store: Any,
    size: int,
    *,
    create: bool = True,
    look: Callable[[], None] = lambda: None,
) -> ObjectSink:
    return ObjectSink(store, URL, size, look, create=create)


def test_parts_are_larger_only_where_10_000_would_not_do() -> None:
    assert PART == 16 << 20
    assert [
        part_bytes(size) >> 20
        for size in (0, 1, 10_000 * PART, 10_000 * PART + 1, 5 << 40)
    ] == [
        16,
        16,
        16,
        17,
        525,
    ]
    for size in (10_000 * PART, 10_000 * PART + 1, 5 << 40):
        assert -(-size // part_bytes(size)) <= 10_000


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 191, 192, 193, 384, 385, 5000])
@pytest.mark.parametrize("piece", [1, 7, 64, 100, 5000])
def test_the_bytes_are_those_that_were_written(size: int, piece: int) -> None:
    store = Kept()
    sink = sink_of(store, size)
    for at in range(0, size, piece):
        assert sink.position == at
        if at % 2:
            sink.copy(Memory(DATA), at, min(piece, size - at))
        else:
            sink.write(DATA[at : min(at + piece, size)])
    assert store.data is None and not sink.is_placed and sink.etag is None
    sink.complete()
    assert store.data == DATA[:size] and sink.is_placed and sink.etag == '"1"'
    assert all(len(part) == 64 for part in store.parts)
    assert max(store.groups, default=0) <= 3 * 64
    sink.complete()
    sink.stop()
    assert store.events.count("completed") + store.events.count("put") == 1


def test_what_fits_one_part_is_one_request() -> None:
    for size, create in ((64, True), (0, False)):
        store = Kept()
        sink = sink_of(store, size, create=create)
        sink.write(DATA[:size])
        sink.complete()
        assert store.events == ["put" if create else "replace"]


def test_the_second_look_comes_when_all_parts_are_there_and_before_the_completion() -> (
    None
):
    store = Kept()
    sink = sink_of(store, 200, look=lambda: store.events.append("look"))
    sink.write(DATA[:200])
    sink.complete()
    assert store.events == ["there", "there", "look", "completed"]


def test_a_look_that_finds_something_completes_nothing() -> None:
    def look() -> None:
        raise UsageError("already exists", path=URL)

    store = Kept()
    sink = sink_of(store, 200, look=look)
    sink.write(DATA[:200])
    with pytest.raises(UsageError):
        sink.complete()
    sink.stop()
    assert store.data is None and sink.etag is None


@pytest.mark.parametrize("group", [1, 2, 3])
def test_what_fails_in_the_thread_comes_up_here_with_the_url(group: int) -> None:
    store = Kept()
    store.failures[group] = WriteError("no")
    sink = sink_of(store, 500)
    with pytest.raises(WriteError) as error:
        sink.write(DATA[:500])
        sink.complete()
    assert str(error.value) == f"{URL}: no"
    sink.stop()
    assert store.data is None and len(store.groups) == group


@pytest.mark.parametrize("written", [0, 10, 64, 300])
def test_stopped_is_no_object(written: int) -> None:
    store = Kept()
    sink = sink_of(store, 500)
    sink.write(DATA[:written])
    sink.stop()
    assert store.data is None and sink.etag is None and "completed" not in store.events


def test_stopped_before_it_began() -> None:
    upload = Upload(Kept(), URL)
    upload.stop()
    assert upload.etag is None


class _Interrupted:
    """A queue whose last word is lost to a signal that comes right after it."""

    def __init__(self) -> None:
        self._words: SimpleQueue[bool] = SimpleQueue()
        self._is_lost = False

    def put(self, word: bool) -> None:
        self._words.put(word)

    def get(self) -> bool:
        if self._is_lost:
            return self._words.get_nowait()  # an error, in the place of a wait
        word = self._words.get()
        if not word:
            self._is_lost = True
            raise KeyboardInterrupt
        return word


@pytest.mark.parametrize("is_whole", [True, False])
def test_stopped_by_a_signal_right_after_the_end(is_whole: bool) -> None:
    store = Kept()
    upload = Upload(store, URL)
    upload._told = _Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        if is_whole:
            upload.whole(DATA[:64], create=True)
        else:
            upload.start(64)
            upload.finish()
    upload.stop()
    assert upload.etag is not None and not upload._thread.is_alive()  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [50, 500])
def test_too_few_and_too_many_bytes(size: int) -> None:
    sink = sink_of(Kept(), size)
    sink.write(DATA[: size - 1])
    with pytest.raises(
        AssertionError, match=f"{size - 1} bytes were written, {size} were planned"
    ):
        sink.complete()
    sink.write(b"x")
    with pytest.raises(AssertionError, match=f"more than the {size} bytes"):
        sink.write(b"x")
    sink.stop()


def test_progress_and_what_is_filled_while_others_are_sent() -> None:
    seen: list[int] = []
    store = Kept()
    sink = ObjectSink(store, URL, 1000, lambda: None, create=True, progress=seen.append)
    sink.write(DATA[:192])
    sink.write(DATA[192:256])
    assert not sink._is_sending or sink._used <= 64
    sink.write(DATA[256:257])
    assert not sink._is_sending, (
        "no more than that is filled before the others are there"
    )
    sink.stop()
    assert sum(seen) == 257


# --- obstore --------------------------------------------------------------------------


@pytest.fixture
def memory() -> Any:
    stores = pytest.importorskip(
        "obstore.store", reason="obstore, the extra [cloud], is not installed"
    )
    return stores.MemoryStore()


@pytest.mark.parametrize("size", [0, 64, 65, 192, 193, 640, 5000])
def test_obstore_takes_the_same_bytes(size: int, memory: Any) -> None:
    to = StoredTarget(memory, parse_url("s3://b/run/a.pth"))
    assert to.look() is None
    sink = sink_of(to, size)
    sink.write(DATA[:size])
    sink.complete()
    assert bytes(memory.get("run/a.pth").bytes()) == DATA[:size]
    assert sink.etag == to.look() is not None
    to.remove()
    assert to.look() is None
    to.remove()


@pytest.mark.parametrize("written", [64, 200, 5000])
def test_obstore_is_stopped(written: int, memory: Any) -> None:
    to = StoredTarget(memory, parse_url("s3://b/a.pth"))
    sink = sink_of(to, 5000)
    sink.write(DATA[:written])
    sink.stop()
    assert to.look() is None


def test_an_object_that_is_there_is_refused_by_the_store(memory: Any) -> None:
    memory.put("a.pth", b"old")
    to = StoredTarget(memory, parse_url("s3://b/a.pth"))
    with pytest.raises(UsageError) as error:
        to.put(b"new", create=True)
    assert error.value.advice == "already exists (force=True to replace)"
    assert bytes(memory.get("a.pth").bytes()) == b"old"
    to.put(b"new", create=False)
    assert bytes(memory.get("a.pth").bytes()) == b"new"


def test_the_name_of_an_object(memory: Any) -> None:
    with pytest.raises(UsageError, match="not the name of an object"):
        StoredTarget(memory, parse_url("s3://b/a//b")).put(b"", create=True)


class PermissionDeniedError(Exception): ...


class GenericError(Exception): ...


class NotSupportedError(Exception): ...


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            PermissionDeniedError("sig=1"),
            "no permission to write it (credentials come from HERE)",
        ),
        (FileNotFoundError("sig=1"), "no such bucket"),
        (
            GenericError("sig=1 status code: 400 Bad"),
            "the object store does not answer, 4 times in a row",
        ),
        (OSError("sig=1"), "the object store does not answer, 4 times in a row"),
        (NotSupportedError("sig=1"), "the object store fails: NotSupportedError"),
    ],
)
def test_errors_repeat_nothing_of_obstore(error: Exception, says: str) -> None:
    assert put_module.translate_write_error(error, "s3").advice == says.replace(
        "HERE", looked_at("s3")
    )


def test_an_iterator_that_stops_is_no_error_of_the_store(memory: Any) -> None:
    def groups() -> Iterator[bytes]:
        yield b"x" * 64
        raise StoppedError

    with pytest.raises(StoppedError):
        StoredTarget(memory, parse_url("s3://b/a")).put_parts(groups(), 64)
