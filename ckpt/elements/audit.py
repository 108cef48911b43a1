"""Comparing records with their recorded checksums, beside what is done with their
bytes.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ckpt.bytes.executor import (
    Executor,
    Failed,
    Task,
    count_cpus,
    run_each,
    split_spans,
)
from ckpt.bytes.far import reading_ahead_at_once
from ckpt.elements.blocks import SMALL, thread_buffer
from ckpt.elements.crc import combine_crcs
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import CkptError, DamagedDataError, LimitError, NotOpenedError
from ckpt.model.places import Checksum, Place, Range
from ckpt.model.tensors import Tensor, TensorRef, parts_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_STEP = 1 << 18
"""Bytes of one read: few enough that they are still in the cache when they are
summed.
"""


def crc_of_bytes(place: Range, first: int, count: int) -> int:
    """The CRC-32 of `count` bytes of a place from byte `first`. Raises
    UnreadableError.
    """
    crc = 0
    if place.inflated is not None:
        for block in place.read_blocks(first, count):
            crc = zlib.crc32(block, crc)
        return crc
    begin, end = place.offset + first, place.offset + first + count
    view = memoryview(thread_buffer(0, _STEP)) if count >= _STEP else memoryview(b"")
    with reading_ahead_at_once([(place.source, begin, end)]):
        while end - begin >= _STEP:
            place.source.read_into(begin, view)
            crc = zlib.crc32(view, crc)
            begin += _STEP
        return zlib.crc32(place.source.read(begin, end - begin), crc)


def crc_of(place: Range) -> tuple[int, str | None]:
    """The CRC-32 of a record or of a part of one, or (0, why its data does not
    inflate).
    """
    try:
        return crc_of_bytes(place, 0, place.nbytes), None
    except DamagedDataError as error:
        return 0, error.problem


def parts_of_record(place: Range) -> list[tuple[int, int]]:
    """The (first, last) bytes of each task. What is deflated is inflated from its
    start.
    """
    return (
        split_spans(place.size, 1, 1) if place.inflated is None else [(0, place.size)]
    )


def join_crcs(
    parts: Sequence[tuple[int, int]], results: Sequence[tuple[int, str | None]]
) -> tuple[int, str | None]:
    """Merge the CRCs of the parts of a record, or return (0, the reason why its data
    does not inflate).
    """
    crc = 0
    for (first, last), (part, problem) in zip(parts, results, strict=True):
        if problem is not None:
            return 0, problem
        crc = combine_crcs(crc, part, last - first) if first else part
    return crc, None


DAMAGED = "its bytes do not match the recorded checksum"


def unsound(
    checkpoint: Checkpoint, executor: Executor, *, far: bool = False
) -> dict[str, str]:
    """The tensors whose bytes cannot be found, or do not match a recorded checksum, and
    why.

    Those that the reader knows to be lost are not looked at. All records with a
    checksum are read, with `far` those behind a URL too.
    """
    gone = set(checkpoint.account.lost_names)
    whys: dict[str, str] = {}
    rest: list[Entry] = []
    for entry in checkpoint.tensors:
        if entry.name in gone:
            continue
        try:
            for part in parts_of(entry.tensor):
                for place in _tensor_places(part):
                    deque(place.list_checksums(), 0)
            rest.append(entry)
        except (LimitError, NotOpenedError):
            raise
        except CkptError as error:
            whys[entry.name] = error.problem
    bad = are_damaged([entry.tensor for entry in rest], executor, far=far)
    return whys | {
        entry.name: DAMAGED for entry, is_bad in zip(rest, bad, strict=True) if is_bad
    }


def _tensor_places(part: TensorRef) -> list[Place]:
    """The places of the bytes of a tensor. Its storage may lack others."""
    place = part.storage.noted
    if place is None or not part.numel:
        return []
    return [stretch.place for stretch in place.list_stretches(*part.extent)]


def are_damaged(
    tensors: Sequence[Tensor], executor: Executor, *, far: bool = False
) -> list[bool]:
    """Tell for each tensor whether a record that its bytes come from does not match its
    checksum.

    Each record is read once. What lies behind a URL is not read a second time for this,
    but with `far`, and what cannot be read is not damaged here.
    """
    records: dict[Range, Checksum] = {}
    over: list[list[Range]] = []
    for tensor in tensors:
        checksums: list[Checksum] = []
        for part in parts_of(tensor):
            with suppress(CkptError):
                checksums += part.storage.list_checksums() if part.numel else ()
        checksums = [
            checksum
            for checksum in checksums
            if far or checksum.place.source.far is None
        ]
        records.update((checksum.place, checksum) for checksum in checksums)
        over.append([checksum.place for checksum in checksums])
    cuts = {place: parts_of_record(place) for place in records}
    tasks = [
        Task(crc_of, (place.slice_stored(first, last),), last - first)
        for place, row in cuts.items()
        for first, last in row
    ]
    results = iter(run_each(executor, tasks))
    bad: set[Range] = set()
    for place, row in cuts.items():
        answers = [next(results) for _ in row]
        read = [answer for answer in answers if not isinstance(answer, Failed)]
        if len(read) == len(answers) and join_crcs(row, read) != (
            records[place].crc,
            None,
        ):
            bad.add(place)
    return [not bad.isdisjoint(places) for places in over]


class Audit:
    """Compares records with their checksums, each once, in threads beside the copying.

    A record that cannot be shared by threads, or is small, is read at once. Leaving the
    block stops it.
    """

    def __init__(self) -> None:
        self._known: set[Range] = set()
        self._rows: list[
            tuple[Checksum, list[tuple[int, int]], list[Future[tuple[int, str | None]]]]
        ] = []
        self._found: list[Checksum] = []
        self._pool: ThreadPoolExecutor | None = None

    def check(self, place: Place | None) -> None:
        """Compare the records that the bytes of a place come from with their checksums,
        now or beside other work.
        """
        for checksum in () if place is None else place.list_checksums():
            if checksum.place in self._known:
                continue
            self._known.add(checksum.place)
            if checksum.place.size <= SMALL and checksum.place.inflated is None:
                self._compare_crc(checksum, crc_of(checksum.place))
                continue
            parts = parts_of_record(checksum.place)
            pool = self._thread_pool()
            done = [
                pool.submit(crc_of, checksum.place.slice_stored(first, last))
                for first, last in parts
            ]
            self._rows.append((checksum, parts, done))

    def passed(self, checksum: Checksum, crc: int) -> None:
        """Note the CRC of a record whose bytes were read for another purpose."""
        self._known.add(checksum.place)
        self._compare_crc(checksum, (crc, None))

    def damaged(self) -> list[Checksum]:
        """The checksums that the bytes contradict, of all records so far. Raises
        UnreadableError.
        """
        for checksum, parts, done in self._rows:
            self._compare_crc(
                checksum, join_crcs(parts, [future.result() for future in done])
            )
        self._rows.clear()
        return self._found

    def _compare_crc(self, checksum: Checksum, result: tuple[int, str | None]) -> None:
        if result != (checksum.crc, None):
            self._found.append(checksum)

    def _thread_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import (
                ThreadPoolExecutor,
            )  # here: most files have nothing to compare

            self._pool = ThreadPoolExecutor(min(8, count_cpus()))
        return self._pool

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
