"""An object by ranges: how many requests and bytes a read costs, what is tried again,
what is pinned.
"""

from __future__ import annotations

import pickle
import random
import threading

import pytest
from webs import Kept

from ckpt.ext.remote import source as module
from ckpt.ext.remote.source import HEAD, TAIL, RangeSource
from ckpt.ext.remote.store import Answer, BusyError, ChangedError, Known
from ckpt.model.errors import NotOpenedError

NAME = "https://host/a.bin"
DATA = random.Random(1).randbytes(3 << 20)


def opened(
    store: Kept, name: str = NAME, **options: object
) -> tuple[RangeSource, list[float]]:
    pauses: list[float] = []
    return RangeSource(store, name, sleep=pauses.append, **options), pauses  # type: ignore[arg-type]


def test_the_end_comes_first_or_the_beginning_where_it_says_more() -> None:
    for name, asked in (
        (NAME, (len(DATA) - TAIL, TAIL)),
        ("s3://b/a.safetensors", (0, HEAD)),
    ):
        store = Kept(DATA)
        source, _ = opened(store, name)
        assert (store.asked, source.size, source.identity) == (
            [asked],
            len(DATA),
            (len(DATA), '"1"'),
        )


def test_a_store_without_tails_is_asked_for_the_beginning() -> None:
    store = Kept(DATA, tails=False)
    opened(store)
    assert store.asked == [(0, HEAD), (len(DATA) - TAIL, TAIL)]


def test_what_a_listing_says_costs_no_request() -> None:
    store = Kept(DATA)
    source, _ = opened(store, "s3://b/__0_0.distcp", state=Known(len(DATA), '"1"'))
    assert (store.asked, source.size) == ([], len(DATA))
    assert source.read(1 << 20, 10) == DATA[1 << 20 : (1 << 20) + 10]
    assert store.asked == [(1 << 20, 10)]


def test_what_is_kept_is_not_asked_for_again() -> None:
    store = Kept(DATA)
    source, _ = opened(store)
    assert source.read(len(DATA) - 1000, 1000) == DATA[-1000:]
    assert len(store.asked) == 1
    begin = len(DATA) - TAIL - 500
    assert source.read(begin, 1000) == DATA[begin : begin + 1000]
    assert store.asked[1:] == [(begin, 500)], "only what is missing"


def test_neighbours_are_one_request() -> None:
    store = Kept(DATA)
    source, _ = opened(store)
    ranges = [(1 << 20, 10), ((1 << 20) + 2000, 30), (2 << 20, 5), ((1 << 20) + 20, 5)]
    assert source.read_many(ranges) == [DATA[at : at + count] for at, count in ranges]
    assert store.asked[1:] == [(1 << 20, 2030), (2 << 20, 5)]


def test_reading_on_reads_ahead() -> None:
    store = Kept(DATA)
    source, _ = opened(store)
    at, parts = 100_000, []
    while at < 1_500_000:
        parts.append(source.read(at, 10_000))
        at += 10_000
    assert b"".join(parts) == DATA[100_000:at]
    assert len(store.asked) <= 5
    assert source.bytes_read < len(DATA) + TAIL


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> module._Kept:
    """What is kept, with room for 100,000 bytes."""
    monkeypatch.setattr(module, "_KEPT", 100_000)
    monkeypatch.setattr(module, "_HELD", 300_000)
    shelf = module._Kept()
    monkeypatch.setattr(module, "kept", shelf)
    return shelf


def test_little_is_kept_of_all_sources_together(shelf: module._Kept) -> None:
    sources = [
        opened(
            Kept(DATA), f"s3://b/{n}.bin", state=Known(len(DATA), '"1"'), ahead=False
        )[0]
        for n in "ab"
    ]
    for at in range(200_000, 2_000_000, 200_000):
        for source in sources:
            assert source.read(at, 20_000) == DATA[at : at + 20_000]
    blocks = [block for source in sources for block in source._blocks]
    assert sum(len(block.data) for block in blocks) == shelf._loose.nbytes == 100_000
    assert {bool(list(source._blocks)) for source in sources} == {True}


def test_what_was_read_last_is_kept(shelf: module._Kept) -> None:
    store = Kept(DATA)
    source, _ = opened(store, state=Known(len(DATA), '"1"'), ahead=False)
    for at in (1_000_000, 1_500_000, 1_000_000, 2_000_000, 2_500_000, 1_000_000):
        source.read(at, 30_000)
    assert [begin for begin, _ in store.asked] == [
        1_000_000,
        1_500_000,
        2_000_000,
        2_500_000,
    ]


def test_what_opening_needs_is_held_until_it_was_read(shelf: module._Kept) -> None:
    store = Kept(DATA)
    source, _ = opened(store, state=Known(len(DATA), '"1"'), ahead=False)
    source._hold(0, 150_000)
    source.read(1_000_000, 90_000)
    assert source.read(0, 100_000) == DATA[:100_000]
    assert shelf._held.nbytes == 150_000
    assert source.read(100_000, 40_000) == DATA[100_000:140_000]
    assert shelf._held.nbytes == 0, "it was read, and has no room among the others"
    assert store.asked == [(0, 150_000), (1_000_000, 90_000)]


def test_what_is_held_has_a_limit_too(shelf: module._Kept) -> None:
    source, _ = opened(Kept(DATA), state=Known(len(DATA), '"1"'), ahead=False)
    for at in range(0, 2_000_000, 100_000):
        source._hold(at, at + 100_000)
    assert shelf._held.nbytes == 300_000 and shelf._loose.nbytes == 100_000
    source.close()
    assert shelf._held.nbytes == shelf._loose.nbytes == 0 and not source._blocks


def test_a_server_that_ignores_ranges_is_asked_once(shelf: module._Kept) -> None:
    class Whole(Kept):
        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            return super().get(0, len(self.data), etag)

    stores = [Whole(DATA[:400_000]) for _ in range(3)]
    sources = [opened(store, ahead=False)[0] for store in stores]
    for at in range(0, 400_000, 50_000):
        assert {source.read(at, 50_000) for source in sources} == {
            DATA[at : at + 50_000]
        }
    assert [len(store.asked) for store in stores] == [1, 1, 1]
    for source in sources:
        source.close()
        assert not source._blocks


def test_a_large_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 10_000)
    store = Kept(DATA)
    source, _ = opened(store)
    assert source.read(500_000, 1_000_000) == DATA[500_000:1_500_000]
    before = len(store.asked)
    assert source.read(1_400_000, 10) == DATA[1_400_000:1_400_010]
    assert len(store.asked) == before + 1


def test_the_size_of_a_listing_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Kept(DATA)
    source, _ = opened(store, "hf://o/m/a.bin", state=Known(len(DATA), ""), ahead=False)
    assert source.read(5, 5) == DATA[5:10] and source.identity == (len(DATA), '"1"')
    store.etag = '"2"'
    with pytest.raises(ChangedError):
        source.read(1_000_000, 5)
    other, _ = opened(Kept(DATA), state=Known(len(DATA), ""), ahead=False)
    assert other.identity == (len(DATA), '"1"'), "it is asked for"
    wrong, _ = opened(Kept(DATA), state=Known(len(DATA) - 1, ""), ahead=False)
    with pytest.raises(ChangedError):
        wrong.read(0, 5)


@pytest.mark.parametrize(
    ("after", "pauses"), [(0.0, [0.25]), (7.0, [7.0]), (60.0, [60.0])]
)
def test_a_server_says_how_long_to_wait(after: float, pauses: list[float]) -> None:
    store = Kept(DATA)
    store.failures = [BusyError("429", after)]
    assert opened(store)[1] == pauses


def test_a_server_that_asks_for_more_than_patience_is_an_error() -> None:
    store = Kept(DATA)
    store.failures = [BusyError("the server answers 429", 60.5)]
    with pytest.raises(NotOpenedError, match="asks to come back in 60 seconds"):
        opened(store)
    assert len(store.asked) == 1


def test_what_fails_is_tried_again_with_longer_pauses() -> None:
    store = Kept(DATA)
    store.failures = [BusyError("the server answers 503")] * 3
    source, pauses = opened(store)
    assert (source.size, source.requests, pauses) == (len(DATA), 4, [0.25, 0.5, 1.0])


def test_what_fails_again_and_again_is_one_error() -> None:
    store = Kept(DATA)
    store.failures = [BusyError("the server answers 503")] * 9
    with pytest.raises(NotOpenedError) as error:
        opened(store)
    assert str(error.value) == f"{NAME}: the server answers 503, 4 times in a row"
    assert len(store.asked) == 4


def test_a_refusal_is_not_tried_again() -> None:
    store = Kept(DATA)
    store.failures = [NotOpenedError("no such file")] * 2
    with pytest.raises(NotOpenedError) as error:
        opened(store)
    assert (str(error.value), len(store.asked)) == (f"{NAME}: no such file", 1)


@pytest.mark.parametrize("change", ["etag", "size"])
def test_another_state_of_the_object_is_one_error(change: str) -> None:
    store = Kept(DATA)
    source, _ = opened(store)
    if change == "etag":
        store.etag = '"2"'
    else:
        store.data += b"more"
    with pytest.raises(ChangedError) as error:
        source.read(10, 10)
    assert (
        str(error.value)
        == f"{NAME}: the object changed while it was read (still being written?)"
    )


def test_pickled_is_an_address_without_bytes() -> None:
    source, _ = opened(Kept(DATA))
    data = pickle.dumps(source.__reduce__()[1])
    assert pickle.loads(data) == (NAME, (len(DATA), '"1"'))


class Slow(Kept):
    """Requests from the second on are answered when another one is made or `goes_on` is
    set.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.goes_on, self.asking = threading.Event(), threading.Event()
        self.slow = False

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        if self.slow and self.asking.is_set():
            self.goes_on.set()
        elif self.slow:
            self.asking.set()
            assert self.goes_on.wait(60)
        return super().get(begin, count, etag)


def beside(
    source: RangeSource, store: Slow, first: tuple[int, int], second: tuple[int, int]
) -> list[bytes | str]:
    """What two threads read, of which the second begins while the request of the first
    is under way.
    """

    class Seen(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            store.goes_on.set()
            return super().wait(timeout)

    source._arrived = Seen(source._lock)
    store.slow = True
    got: list[bytes | str] = ["", ""]

    def read(index: int, run: tuple[int, int]) -> None:
        try:
            got[index] = source.read(*run)
        except NotOpenedError as error:
            got[index] = str(error)

    threads = [
        threading.Thread(target=read, args=each) for each in enumerate((first, second))
    ]
    threads[0].start()
    assert store.asking.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    return got


@pytest.mark.parametrize(
    ("second", "asked"),
    [
        ((10_000, 500), []),
        ((10_900, 300), [(11_000, 256 << 10)]),
        ((9_500, 1_000), [(9_500, 500)]),
        ((11_000, 10), [(11_000, 10)]),
        ((10_000, 1_000), []),
    ],
)
def test_what_another_thread_has_asked_for_is_waited_for(
    second: tuple[int, int], asked: list[tuple[int, int]]
) -> None:
    store = Slow(DATA)
    source, _ = opened(store)
    expected: list[bytes | str] = [DATA[10_000:11_000], DATA[second[0] : sum(second)]]
    assert beside(source, store, (10_000, 1_000), second) == expected
    assert sorted(store.asked[1:]) == sorted([(10_000, 1_000), *asked])


def test_a_request_that_fails_leaves_nobody_waiting() -> None:
    store = Slow(DATA)
    source, _ = opened(store)
    store.failures = [NotOpenedError("gone")]
    got = beside(source, store, (10_000, 1_000), (10_000, 10))
    assert got == [f"{NAME}: gone", DATA[10_000:10_010]]
    assert not source._coming


def test_what_is_read_ahead_ends_where_another_request_begins() -> None:
    store = Slow(DATA)
    source, _ = opened(store)
    source.read(100_000, 10_000)
    assert beside(source, store, (150_000, 5_000), (110_000, 5_000)) == [
        DATA[150_000:155_000],
        DATA[110_000:115_000],
    ]
    assert sorted(store.asked[1:]) == [
        (100_000, 10_000),
        (110_000, 40_000),
        (150_000, 5_000),
    ]
