"""Reading ahead: exactly the bytes that are needed, in few requests, many at once,
within the room, each once.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest
from webs import Kept

from ckpt.bytes import far
from ckpt.bytes.executor import Bundle, Failed, Serial, Task, Threads, run_each
from ckpt.bytes.far import Reading, iterate_ahead, reading_ahead, reading_ahead_at_once
from ckpt.bytes.source import Memory, Source, Window
from ckpt.ext.remote import ahead, traffic
from ckpt.ext.remote import source as source_module
from ckpt.ext.remote.ahead import Ahead
from ckpt.ext.remote.source import RangeSource
from ckpt.ext.remote.store import Answer, Known
from ckpt.model.errors import NotOpenedError, UnreadableError

DATA = random.Random(1).randbytes(4_000_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of 100,000 bytes, and room for five of them."""
    for name, value in (
        ("PIECE", 100_000),
        ("GAP", 1_000),
        ("_BATCH", 300_000),
        ("_LOOSE", 100),
    ):
        monkeypatch.setattr(ahead, name, value)
    monkeypatch.setattr(source_module, "PIECE", 100_000)
    monkeypatch.setattr(ahead._Room, "most", 500_000)
    before = threading.active_count()
    yield
    for thread in threading.enumerate():
        if thread.name == "ahead":
            thread.join(60)
    assert ahead._Room.used == 0, "all room is given back"
    assert threading.active_count() <= before


class Counted(Kept):
    """An object that counts the most requests at once. With `hold` the first ones wait
    for each other.
    """

    def __init__(self, data: bytes = DATA, hold: int = 0) -> None:
        super().__init__(data)
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.together = threading.Barrier(hold) if hold else None
        self.holding = hold

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.holding -= 1
            is_held = self.holding >= 0
        try:
            if self.together is not None and is_held:
                self.together.wait(60)
            return super().get(begin, count, etag)
        finally:
            with self.lock:
                self.now -= 1


def opened(store: Kept) -> RangeSource:
    return RangeSource(
        store,
        "s3://b/a.bin",
        state=Known(len(store.data), '"1"'),
        ahead=False,
        sleep=lambda _: None,
    )


class Reader:
    """Reads a range of a source in steps, as a task does."""

    def __init__(self, source: Source, begin: int, end: int, step: int = 7_000) -> None:
        self.source, self.begin, self.end, self.step = source, begin, end, step

    def reads(self) -> Iterator[Reading]:
        yield self.source, self.begin, self.end

    def __call__(self) -> bytes:
        steps = range(self.begin, self.end, self.step)
        return b"".join(
            self.source.read(at, min(self.step, self.end - at)) for at in steps
        )


def read(reader: Reader) -> bytes:
    return reader()


def tasks_of(readers: list[Reader]) -> list[Task[bytes]]:
    return [Task(read, (reader,), reader.end - reader.begin) for reader in readers]


def asked(store: Kept) -> int:
    return sum(count for _, count in store.asked)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_neighbours_are_one_request_and_each_byte_is_asked_for_once(
    threads: int,
) -> None:
    store = Counted()
    readers = [Reader(opened_source := opened(store), 5_000, 15_000)]
    readers = [
        Reader(opened_source, at + 64, at + 10_000)
        for at in range(0, 1_000_000, 10_000)
    ]
    found = Threads(threads).run(tasks_of(readers))
    assert found == [DATA[row.begin : row.end] for row in readers]
    assert asked(store) == 1_000_000 - 64 - 64 * (len(store.asked) - 1)
    assert len(store.asked) <= 14
    assert not opened_source.pieces


def test_a_large_range_is_cut_evenly_and_gone_once_it_was_read() -> None:
    store = Counted()
    source = opened(store)
    used: list[int] = []

    class Watching(Reader):
        def __call__(self) -> bytes:
            data = super().__call__()
            used.append(ahead._Room.used)
            return data

    [data] = Serial().run(tasks_of([Watching(source, 123, 1_000_123, 1_000)]))
    assert data == DATA[123:1_000_123]
    assert {count for _, count in store.asked} == {100_000} and len(store.asked) == 10
    assert used == [0]


def test_many_requests_are_under_way_whatever_the_number_of_threads() -> None:
    store = Counted(hold=5)
    source = opened(store)
    Serial().run(
        tasks_of(
            [Reader(source, at, at + 100_000) for at in range(0, 2_000_000, 100_000)]
        )
    )
    assert store.most == 5, "as many as there is room for"
    assert asked(store) == 2_000_000


def test_who_needs_a_piece_at_once_does_not_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others hold all of the room, and go on only after this one."""
    store = Counted()
    source = opened(store)
    monkeypatch.setattr(ahead._Room, "most", 100_000)
    groups = [[(source, at, at + 100_000)] for at in (0, 1_000_000)]
    with reading_ahead(groups) as turns, turns.turn(0), turns.turn(1):
        assert source.read(1_000_000, 10) == DATA[1_000_000:1_000_010]
        assert source.read(0, 10) == DATA[:10]
    assert asked(store) == 200_000


def test_the_order_of_groups_need_not_be_that_of_bytes() -> None:
    store = Counted()
    source = opened(store)
    readers = [Reader(source, at, at + 1_000) for at in range(0, 200_000, 1_000)]
    random.Random(3).shuffle(readers)
    assert Serial().run(tasks_of(readers)) == [
        DATA[row.begin : row.end] for row in readers
    ]
    assert len(store.asked) == 2 and asked(store) == 200_000


def test_a_gap_is_not_read() -> None:
    store = Counted()
    source = opened(store)
    Serial().run(
        tasks_of(
            [
                Reader(source, 0, 1_000),
                Reader(source, 1_900, 3_000),
                Reader(source, 5_000, 6_000),
            ]
        )
    )
    assert sorted(store.asked) == [(0, 3_000), (5_000, 1_000)]


def test_two_groups_that_read_the_same_are_one_request() -> None:
    store = Counted()
    source = opened(store)
    readers = [
        Reader(source, 0, 50_000),
        Reader(source, 10_000, 50_000),
        Reader(source, 0, 50_000),
    ]
    assert Serial().run(tasks_of(readers)) == [
        DATA[row.begin : row.end] for row in readers
    ]
    assert store.asked == [(0, 50_000)]


def test_what_is_foreseen_already_is_not_foreseen_again() -> None:
    store = Counted()
    source = opened(store)
    inner = reading_ahead_at_once([(source, 100, 300_000)])
    with reading_ahead([[(source, 0, 400_000)]]) as turns, turns.turn(0), inner:
        assert source.read(100, 250_000) == DATA[100:250_100]
    assert asked(store) == 400_000


def test_bundles_and_windows() -> None:
    store = Counted()
    window = Window(opened(store), 1_000, 500_000, "inner")
    readers = [Reader(window, at, at + 900) for at in range(0, 90_000, 900)]
    assert run_each(Threads(2), tasks_of(readers)) == [
        DATA[1_000 + row.begin :][:900] for row in readers
    ]
    assert store.asked == [(1_000, 90_000)]
    assert list(Bundle(tasks_of(readers[:2])).reads()) == [
        (window, 0, 900),
        (window, 900, 1_800),
    ]


def test_what_cannot_be_foreseen_is_left_to_the_work() -> None:
    class Damaged(Reader):
        def reads(self) -> Iterator[Reading]:
            raise UnreadableError("no place is recorded")

        def __call__(self) -> bytes:
            raise UnreadableError("said by the work")

    store = Counted()
    source = opened(store)
    results = run_each(
        Serial(), tasks_of([Damaged(source, 0, 1), Reader(source, 0, 200_000)])
    )
    assert results[0] == Failed("said by the work") and results[1] == DATA[:200_000]


def test_a_failure_is_raised_where_it_is_read_and_tried_again() -> None:
    store = Counted()
    source = opened(store)
    store.failures = [NotOpenedError("gone")]
    results = run_each(Serial(), tasks_of([Reader(source, 0, 300_000)]))
    assert results == [DATA[:300_000]], "a task whose source fails is run again"
    store.failures = [NotOpenedError("gone")] * 9
    with pytest.raises(NotOpenedError, match="gone"):
        Serial().run(tasks_of([Reader(source, 0, 300_000)]))


def test_an_error_of_one_task_ends_the_others() -> None:
    class Failing(Reader):
        def __call__(self) -> bytes:
            raise UnreadableError("no")

    store = Counted()
    source = opened(store)
    readers = [
        Failing(source, 0, 100_000),
        *(Reader(source, at, at + 100_000) for at in range(0, 4_000_000, 100_000)),
    ]
    with pytest.raises(UnreadableError):
        Threads(2).run(tasks_of(readers))
    assert not source.pieces


def test_sources_of_this_machine_are_not_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(Memory(DATA), 0, 100_000)
    assert Serial().run(tasks_of([reader])) == [DATA[:100_000]]
    monkeypatch.setattr(far.Used, "sources", False)
    monkeypatch.setattr(ahead, "Ahead", None)
    assert list(iterate_ahead([reader])) == [reader]
    with (
        reading_ahead([[]]) as turns,
        turns.turn(0),
        reading_ahead_at_once([(Memory(DATA), 0, 10)]),
    ):
        pass


def test_a_large_read_is_many_requests_at_once() -> None:
    store = Counted(hold=4)
    source = opened(store)
    buffer = bytearray(400_000)
    source.read_into(77, memoryview(buffer))
    assert bytes(buffer) == DATA[77:400_077]
    assert (store.most, asked(store), len(store.asked)) == (4, 400_000, 4)


def test_ranges_far_apart_are_asked_for_at_once() -> None:
    store = Counted(hold=3)
    source = opened(store)
    ranges = [(at, 1_000) for at in (0, 1_000_000, 2_000_000)]
    assert source.read_many(ranges) == [DATA[at : at + count] for at, count in ranges]
    assert store.most == 3 and sorted(store.asked) == ranges
    assert source.read(1_000_000, 1_000) == DATA[1_000_000:1_001_000]
    assert len(store.asked) == 3, "what is small is kept"


def test_what_comes_is_yielded_in_order() -> None:
    store = Counted()
    source = opened(store)
    readers = [Reader(source, at, at + 50_000) for at in range(0, 1_000_000, 50_000)]
    assert [reader() for reader in iterate_ahead(readers)] == [
        DATA[row.begin : row.end] for row in readers
    ]
    assert len(store.asked) == 10 and asked(store) == 1_000_000


def test_who_stops_early_leaves_nothing() -> None:
    store = Counted()
    source = opened(store)
    for reader in iterate_ahead(
        [Reader(source, at, at + 100_000) for at in range(0, 4_000_000, 100_000)]
    ):
        reader()
        break
    assert not source.pieces


def test_the_head_that_is_kept_is_not_asked_for_again() -> None:
    store = Counted()
    source = RangeSource(store, "s3://b/a.safetensors", sleep=lambda _: None)
    [data] = Serial().run(tasks_of([Reader(source, 1_000, 300_000)]))
    assert data == DATA[1_000:300_000]
    assert asked(store) == 300_000


def test_the_tail_that_is_kept_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "TAIL", 50_000)
    store = Counted()
    source = RangeSource(store, "s3://b/a.pth", sleep=lambda _: None)
    [data] = Serial().run(tasks_of([Reader(source, 3_600_000, 4_000_000)]))
    assert data == DATA[3_600_000:]
    assert asked(store) == 400_000


@pytest.mark.parametrize("tail", [False, True])
def test_a_server_that_gives_fewer_bytes_is_asked_for_the_rest(tail: bool) -> None:
    class Sparing(Counted):
        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            return super().get(begin, min(count, 30_000), etag)

    source = opened(Sparing())
    source.read_many([(len(DATA) - 20_000, 20_000)] if tail else [])
    readers = [
        Reader(source, at, min(at + 70_000, len(DATA)))
        for at in range(3_500_000, 4_000_000, 70_000)
    ]
    assert Serial().run(tasks_of(readers)) == [
        DATA[row.begin : row.end] for row in readers
    ]


def test_who_is_interrupted_leaves_nothing_and_can_read_again() -> None:
    class Interrupted(Counted):
        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            if not self.asked:
                self.asked.append((0, 0))
                raise KeyboardInterrupt
            return super().get(begin, count, etag)

    source = opened(Interrupted())
    with (
        pytest.raises(KeyboardInterrupt),
        reading_ahead([[(source, 0, 50_000)]]) as turns,
        turns.turn(0),
    ):
        source.read(0, 10)
    assert not source.pieces
    assert source.read(0, 10) == DATA[:10]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system copies no process")
def test_a_copy_of_the_process_waits_for_no_thread_of_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traffic, "AT_ONCE", 2)
    traffic._gates.clear()
    free = threading.Event()
    all_here = threading.Barrier(3)

    class Held(Counted):
        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            if not free.is_set():
                all_here.wait(60)
                free.wait(60)
            return super().get(begin, count, etag)

    source = opened(Held())
    with (
        reading_ahead([[(source, at, at + 100_000)] for at in (0, 1_000_000)]) as turns,
        turns.turn(0),
    ):
        all_here.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends a copy that waits for ever
            free.set()
            os._exit(0 if source.read(10, 2_000_000) == DATA[10:2_000_010] else 1)
        status = os.waitpid(child, 0)[1]
        free.set()
        assert status == 0
        assert source.read(10, 2_000_000) == DATA[10:2_000_010]


def test_room_that_is_lent_is_given_back() -> None:
    with ahead.lend_room(400_000):
        assert ahead._Room.most == 100_000
    assert ahead._Room.most == 500_000


def test_closing_ends_the_threads_that_wait_for_room() -> None:
    store = Counted()
    source = opened(store)
    made = Ahead([(source, at, at + 100_000)] for at in range(0, 4_000_000, 100_000))
    with made.turn(0):
        assert source.read(0, 10) == DATA[:10]
        made.close()
    assert not source.pieces


def test_half_a_claim_comes_with_its_header() -> None:
    """The bytes that are compared with a claim are part of the request for what follows
    them.
    """

    class Claimed:
        begin, end = 0, 1_000_000
        checked: list[bytes]

        def __init__(self) -> None:
            self.checked = []

        def lead(self, offset: int) -> int:
            return offset - 64 if offset % 10_000 == 64 else offset

        def check(self, offset: int, end: int, read: object) -> None:
            assert callable(read)
            self.checked.append(read(offset - offset % 10_000, 64))

    store, claim = Counted(), Claimed()
    source = opened(store)
    source.claim(claim)
    [data] = Serial().run(tasks_of([Reader(source, 20_064, 30_000, 20_000)]))
    assert data == DATA[20_064:30_000] and claim.checked == [DATA[20_000:20_064]]
    assert store.asked == [(20_000, 10_000)]


def test_things_that_come_inside_of_others_are_asked_for_once() -> None:
    store = Counted()
    source = opened(store)
    outer = [Reader(source, at, at + 150_000) for at in range(0, 900_000, 150_000)]
    for reader in iterate_ahead(outer):
        inner = [
            Reader(source, at, at + 30_000)
            for at in range(reader.begin, reader.end, 30_000)
        ]
        assert [each() for each in iterate_ahead(inner)] == [
            DATA[each.begin : each.end] for each in inner
        ]
    assert asked(store) == 900_000


def test_a_request_that_ends_after_its_group_leaves_no_room_taken() -> None:
    class Held(Counted):
        goes_on, begun = threading.Event(), threading.Event()

        def get(self, begin: int | None, count: int, etag: str) -> Answer:
            if begin:
                self.begun.set()
                assert self.goes_on.wait(60)
            return super().get(begin, count, etag)

    store = Held()
    source = opened(store)
    with reading_ahead(
        [[(source, 0, 1_000)], [(source, 1_000_000, 1_100_000)]]
    ) as turns:
        with turns.turn(0):
            assert source.read(0, 10) == DATA[:10]
        with turns.turn(1):
            assert store.begun.wait(60)
    assert ahead._Room.used == 100_000
    store.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "ahead":
            thread.join(60)
    assert ahead._Room.used == 0 and not source.pieces


def test_beside_what_is_foreseen_nothing_is_guessed() -> None:
    store = Counted()
    source = opened(store)
    with reading_ahead([[(source, 0, 100_000)]]) as turns, turns.turn(0):
        for at in range(1_000_000, 1_050_000, 5_000):
            assert source.read(at, 5_000) == DATA[at : at + 5_000]
        assert source.read(0, 100_000) == DATA[:100_000]
    assert asked(store) == 150_000
