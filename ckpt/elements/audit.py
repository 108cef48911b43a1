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
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef, parts_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_STEP = 1 << 18
"""Bytes of one read: few enough that they are still in the cache when they are
summed.
"""


CrcResult = tuple[int, str | None]
"""A CRC-32, or 0 and the reason why there is none."""


def crc_of_bytes(place: Range, first: int, count: int) -> int:
    """The CRC-32 of `count` bytes of a place from byte `first`. Raises
    UnreadableError.
    """
    crc = 0
    if place.inflated is not None:
        for block in place.read_blocks(first, count):
            crc = zlib.crc32(block, crc)
        return crc
    begin = place.offset + first
    end = begin + count
    # Anything smaller than a step needs no buffer: one read takes all of it.
    view = memoryview(thread_buffer(0, _STEP)) if count >= _STEP else memoryview(b"")
    with reading_ahead_at_once([(place.source, begin, end)]):
        while end - begin >= _STEP:
            place.source.read_into(begin, view)
            crc = zlib.crc32(view, crc)
            begin += _STEP
        return zlib.crc32(place.source.read(begin, end - begin), crc)


def crc_of(place: Range) -> CrcResult:
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
    if place.inflated is None:
        return split_spans(place.size, 1, 1)
    return [(0, place.size)]


def join_crcs(
    parts: Sequence[tuple[int, int]], results: Sequence[CrcResult]
) -> CrcResult:
    """Merge the CRCs of the parts of a record, or return (0, the reason why its data
    does not inflate).
    """
    crc = 0
    for (first, last), (part_crc, problem) in zip(parts, results, strict=True):
        if problem is not None:
            return 0, problem
        # Most records are of one part, of which nothing has to be joined.
        crc = combine_crcs(crc, part_crc, last - first) if first else part_crc
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
    lost_names = set(checkpoint.account.lost_names)
    reasons: dict[str, str] = {}
    found: list[Entry] = []
    for entry in checkpoint.tensors:
        if entry.name in lost_names:
            continue
        try:
            _find_bytes(entry.tensor)
        except (LimitError, NotOpenedError):
            # These say something of the limits or of the file, and not of the tensor.
            raise
        except CkptError as error:
            reasons[entry.name] = error.problem
        else:
            found.append(entry)
    bad = are_damaged([entry.tensor for entry in found], executor, far=far)
    for entry, is_bad in zip(found, bad, strict=True):
        if is_bad:
            reasons[entry.name] = DAMAGED
    return reasons


def _find_bytes(tensor: Tensor) -> None:
    """Find where all bytes of a tensor are. Raises CkptError where some are not."""
    for part in parts_of(tensor):
        for place in _tensor_places(part):
            # Listing the checksums opens the files of a place that lies in several.
            deque(place.list_checksums(), 0)


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
    recorded: dict[Range, Checksum] = {}
    places_of: list[list[Range]] = []
    for tensor in tensors:
        checksums = _checksums_of(tensor, far)
        recorded.update((checksum.place, checksum) for checksum in checksums)
        places_of.append([checksum.place for checksum in checksums])
    cuts = {place: parts_of_record(place) for place in recorded}
    tasks: list[Task[CrcResult]] = []
    for place, spans in cuts.items():
        for first, last in spans:
            part = place.slice_stored(first, last)
            tasks.append(Task(crc_of, (part,), last - first))
    results = iter(run_each(executor, tasks))
    bad: set[Range] = set()
    for place, spans in cuts.items():
        answers = [next(results) for _ in spans]
        crcs = [answer for answer in answers if not isinstance(answer, Failed)]
        if len(crcs) < len(answers):
            continue
        if join_crcs(spans, crcs) != (recorded[place].crc, None):
            bad.add(place)
    return [not bad.isdisjoint(places) for places in places_of]


def _checksums_of(tensor: Tensor, far: bool) -> list[Checksum]:
    """The checksums of the records of a tensor that are compared."""
    checksums: list[Checksum] = []
    for part in parts_of(tensor):
        if part.numel:
            with suppress(CkptError):
                checksums += part.storage.list_checksums()
    if far:
        return checksums
    return [checksum for checksum in checksums if checksum.place.source.far is None]


def unguarded_bytes(tensors: Sequence[Tensor]) -> list[int]:
    """Return for each tensor how many of its bytes no recorded checksum covers. What
    several tensors share counts for the first.
    """
    seen: set[tuple[int, tuple[int, int]]] = set()
    counts: list[int] = []
    for tensor in tensors:
        count = 0
        for part in parts_of(tensor):
            key = (id(part.storage), part.extent)
            if key in seen or _checksums_of(part, far=True):
                continue
            seen.add(key)
            count += part.nbytes
        counts.append(count)
    return counts


class _Begun(NamedTuple):
    """A record that threads compare: its parts, and the CRC of each part to come."""

    checksum: Checksum
    parts: list[tuple[int, int]]
    futures: list[Future[CrcResult]]


class Audit:
    """Compares records with their checksums, each once, in threads beside the copying.

    A record that cannot be shared by threads, or is small, is read at once. Leaving the
    block stops it.
    """

    def __init__(self) -> None:
        self._known: set[Range] = set()
        self._begun: list[_Begun] = []
        self._found: list[Checksum] = []
        self._pool: ThreadPoolExecutor | None = None

    def check(self, place: Place | None) -> None:
        """Compare the records that the bytes of a place come from with their checksums,
        now or beside other work.
        """
        if place is None:
            return
        for checksum in place.list_checksums():
            record = checksum.place
            if record in self._known:
                continue
            self._known.add(record)
            # A small record takes less time than handing it to a thread.
            if record.size <= SMALL and record.inflated is None:
                self._compare_crc(checksum, crc_of(record))
                continue
            parts = parts_of_record(record)
            pool = self._thread_pool()
            futures = [
                pool.submit(crc_of, record.slice_stored(first, last))
                for first, last in parts
            ]
            self._begun.append(_Begun(checksum, parts, futures))

    def passed(self, checksum: Checksum, crc: int) -> None:
        """Note the CRC of a record whose bytes were read for another purpose."""
        self._known.add(checksum.place)
        self._compare_crc(checksum, (crc, None))

    def damaged(self) -> list[Checksum]:
        """The checksums that the bytes contradict, of all records so far. Raises
        UnreadableError.
        """
        for begun in self._begun:
            results = [future.result() for future in begun.futures]
            self._compare_crc(begun.checksum, join_crcs(begun.parts, results))
        self._begun.clear()
        return self._found

    def _compare_crc(self, checksum: Checksum, result: CrcResult) -> None:
        if result != (checksum.crc, None):
            self._found.append(checksum)

    def _thread_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # Here: most files have nothing to compare.
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(min(8, count_cpus()))
        return self._pool

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            # After an error nobody asks for what is left in the queue.
            self._pool.shutdown(cancel_futures=True)
