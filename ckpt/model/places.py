"""Places: where the bytes of a storage are, or what makes them. A new kind of place is
one class with these methods.
"""

from __future__ import annotations

import zlib
from bisect import bisect
from collections.abc import Callable, Iterator, Reversible, Sequence
from functools import lru_cache
from typing import Protocol

from ckpt.bytes.far import Reading, reading_ahead_at_once
from ckpt.bytes.source import Source
from ckpt.model.errors import DamagedDataError
from ckpt.model.rows import NamedTuple

BLOCK = 1 << 20
"""Bytes of one read."""
_CACHED = 64 << 20
"""The most bytes of a deflated record that are kept inflated."""


class Checksum(NamedTuple):
    """The CRC-32 that an archive recorded of all bytes of a record, inflated."""

    place: Range
    crc: int


class Tally(Protocol):
    """Is told how many finite elements a cast made infinite, and how many it made 0."""

    def __call__(self, overflowed: int, vanished: int = 0) -> None: ...


Passed = Callable[[Checksum, int], None]
"""Is told of a record whose bytes went by whole, and of their CRC."""


class Place(Protocol):
    """The bytes of a storage. `first`, `last` and `start` count bytes of the place;
    `last` is the one behind the last.

    What reads bytes, or opens what says where they are, raises UnreadableError,
    NotOpenedError.
    """

    @property
    def nbytes(self) -> int:
        """The number of bytes, inflated."""
        ...

    @property
    def big(self) -> bool:
        """True if the elements are big-endian."""
        ...

    @property
    def run(self) -> Range | None:
        """The one run of bytes in a source that it is, as they lie there, or None."""
        ...

    @property
    def can_seek(self) -> bool:
        """True if any bytes can be read without those before them."""
        ...

    @property
    def can_cut(self) -> bool:
        """True if many tasks that read a part each take no longer than one that reads
        all.
        """
        ...

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of cuts of each dimension of a tensor that is cut into boxes;
        empty for any other place.
        """
        ...

    def list_sources(self) -> Iterator[Source]:
        """Yield the sources of the bytes."""
        ...

    def first_source(self) -> Source | None:
        """The source of the first bytes, or None without any. Opens no part of
        boxes.
        """
        ...

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        """Yield the bytes of sources that are read for a part, as far as they are known
        without reading.
        """
        ...

    def list_stretches(self, first: int, last: int) -> Sequence[Stretch]:
        """The stretches of other places that make a part, in order; of the place itself
        where it is no patchwork.
        """
        ...

    def list_checksums(self) -> Iterator[Checksum]:
        """Yield the recorded checksums of all records that the bytes come from."""
        ...

    def checksum_of(self, start: int, count: int) -> Checksum | None:
        """The recorded checksum of exactly these bytes, if there is one."""
        ...

    def noting(self, crc: int) -> Place:
        """The place with the checksum of its record noted in it, where it is one
        record.
        """
        ...

    def lacks_bytes(self, first: int, last: int) -> bool:
        """Tell whether bytes of a part are known to be missing. Opens nothing."""
        ...

    def part(self, first: int, last: int) -> Place:
        """A part as a place of its own."""
        ...

    def as_stored(self, first: int, last: int) -> Place | None:
        """A part as a range, as ranges or as this place itself, or None where its bytes
        must be computed or inflated.
        """
        ...

    def resolved(self) -> Place:
        """The simpler place that has the same bytes, or the place itself."""
        ...

    def kept_bytes(self) -> bytes | None:
        """All bytes, made once for the several views of them, or None where each view
        reads its own.
        """
        ...

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        """Yield `count` bytes from byte `start`, or all from there, in order. `tally`
        is told what casts lose.
        """
        ...

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[bytes | memoryview]:
        """Yield the same in blocks that may be valid until the next one only.

        `passed` is told of the records that are read whole on the way to other bytes.
        """
        ...


class Stretch(NamedTuple):
    """`size` bytes of a place from byte `start`."""

    place: Place
    start: int
    size: int


# --- a run of bytes in a source -------------------------------------------------------


class Range(NamedTuple):
    """`size` bytes of a source at `offset`. They are deflated when `inflated`, their
    full size, is not None.

    `big` says that their elements are big-endian. `recorded` is the checksum of the
    record that holds them, where they were taken out of a storage, which knows its own.
    """

    source: Source
    offset: int
    size: int
    inflated: int | None = None
    big: bool = False
    recorded: Checksum | None = None

    @property
    def nbytes(self) -> int:
        return self.size if self.inflated is None else self.inflated

    @property
    def run(self) -> Range | None:
        return self if self.inflated is None else None

    @property
    def can_seek(self) -> bool:
        return self.inflated is None

    @property
    def can_cut(self) -> bool:
        return self.inflated is None

    @property
    def grid(self) -> tuple[int, ...]:
        return ()

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read of it."""
        yield self.source, self.offset, self.offset + self.size

    def slice_stored(self, first: int, last: int) -> Range:
        """Bytes `first` to `last` as they are stored. The bytes of a deflated one have
        no part but the whole.
        """
        if (first, last) == (0, self.size):
            return self
        assert self.inflated is None
        # The checksum is of the whole record.
        return self._replace(
            offset=self.offset + first, size=last - first, recorded=None
        )

    def list_sources(self) -> Iterator[Source]:
        yield self.source

    def first_source(self) -> Source | None:
        return self.source

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        if self.inflated is not None:
            return self.reads()
        return iter([(self.source, self.offset + first, self.offset + last)])

    def list_stretches(self, first: int, last: int) -> Sequence[Stretch]:
        return [Stretch(self, first, last - first)]

    def list_checksums(self) -> Iterator[Checksum]:
        if self.recorded is not None:
            yield self.recorded

    def checksum_of(self, start: int, count: int) -> Checksum | None:
        if self.recorded is None:
            return None
        # A part of a record has no checksum of its own.
        whole = self.recorded.place
        is_whole = (self.offset, self.size, self.inflated) == (
            whole.offset,
            whole.size,
            whole.inflated,
        )
        return (
            self.recorded if is_whole and start == 0 and count == whole.nbytes else None
        )

    def noting(self, crc: int) -> Place:
        if self.recorded is not None:
            return self
        return Range(
            self.source,
            self.offset,
            self.size,
            self.inflated,
            self.big,
            Checksum(self, crc),
        )

    def lacks_bytes(self, first: int, last: int) -> bool:
        return False

    def part(self, first: int, last: int) -> Place:
        if (first, last) == (0, self.nbytes):
            return self
        if self.inflated is not None:
            # A piece may begin before the place: its first bytes are passed over.
            return Patched(None, last - first, [(-first, self)])
        return self._replace(offset=self.offset + first, size=last - first)

    def as_stored(self, first: int, last: int) -> Place | None:
        if self.inflated is not None:
            return None
        return Range(
            self.source, self.offset + first, last - first, None, False, self.recorded
        )

    def resolved(self) -> Place:
        return self

    def kept_bytes(self) -> bytes | None:
        # Otherwise each view of a deflated record would inflate it again.
        if self.inflated is None or self.inflated > _CACHED:
            return None
        return _inflated_whole(self)

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        end = self.nbytes if count is None else start + count
        if self.inflated is not None:
            yield from cut_blocks(_inflated_blocks(self), start, end - start)
            return
        # Most tensors fit into one block, and are read by one call.
        if start < end <= start + BLOCK:
            yield self.source.read(self.offset + start, end - start)
            return
        with reading_ahead_at_once(self.list_readings(start, end)):
            for position in range(start, end, BLOCK):
                yield self.source.read(
                    self.offset + position, min(BLOCK, end - position)
                )

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[bytes | memoryview]:
        # Less than a block is one read, for which no buffer is worth it.
        if self.inflated is not None or count < BLOCK:
            yield from self.read_blocks(start, count)
            return
        # One buffer for all blocks: it stays in the processor's cache.
        held = memoryview(bytearray(BLOCK))
        for position in range(0, count, BLOCK):
            block = held[: min(BLOCK, count - position)]
            self.source.read_into(self.offset + start + position, block)
            yield block


# One is enough: the views of a storage are read one after the other.
@lru_cache(maxsize=1)
def _inflated_whole(place: Range) -> bytes:
    return b"".join(_inflated_blocks(place))


def _inflated_blocks(place: Range) -> Iterator[bytes]:
    """The bytes of a deflated record. Their number must be the one in the directory."""
    # -15: deflate without a header, as a zip archive has it.
    machine = zlib.decompressobj(-15)
    remaining = place.inflated or 0
    try:
        for data in place._replace(inflated=None).read_blocks():
            while data and not machine.eof:
                # At most a block at once: a few bytes may inflate to gigabytes.
                inflated = machine.decompress(data, BLOCK)
                remaining -= len(inflated)
                if remaining < 0:
                    raise DamagedDataError(
                        "a deflated record holds more than the archive records"
                    )
                if inflated:
                    yield inflated
                data = machine.unconsumed_tail
    except zlib.error:
        raise DamagedDataError("the deflate data of a record is damaged") from None
    # Data that end early would read as a shorter tensor.
    if remaining or not machine.eof:
        raise DamagedDataError("a deflated record holds less than the archive records")


def cut_blocks(whole: Iterator[bytes], start: int, count: int) -> Iterator[bytes]:
    """Yield `count` bytes from byte `start` of a stream of blocks."""
    for block in whole:
        if count <= 0:
            return
        if start >= len(block):
            start -= len(block)
            continue
        piece = block[start : start + count] if start or count < len(block) else block
        start = 0
        count -= len(piece)
        yield piece


# --- any other place ------------------------------------------------------------------


class BasePlace:
    """A place that says its size, its sources, readings and checksums, and makes
    blocks. The rest of the contract uses these.
    """

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def list_sources(self) -> Iterator[Source]:
        raise NotImplementedError

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        raise NotImplementedError

    def list_checksums(self) -> Iterator[Checksum]:
        raise NotImplementedError

    def lacks_bytes(self, first: int, last: int) -> bool:
        raise NotImplementedError

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        raise NotImplementedError

    @property
    def big(self) -> bool:
        return False

    @property
    def run(self) -> Range | None:
        return None

    @property
    def can_seek(self) -> bool:
        return False

    @property
    def can_cut(self) -> bool:
        return False

    @property
    def grid(self) -> tuple[int, ...]:
        return ()

    def first_source(self) -> Source | None:
        return next(self.list_sources(), None)

    def list_stretches(self, first: int, last: int) -> Sequence[Stretch]:
        return [Stretch(self, first, last - first)]

    def checksum_of(self, start: int, count: int) -> Checksum | None:
        return None

    def noting(self, crc: int) -> Place:
        return self

    def part(self, first: int, last: int) -> Place:
        return Patched(None, last - first, [(-first, self)])

    def as_stored(self, first: int, last: int) -> Place | None:
        return None

    def resolved(self) -> Place:
        return self

    def kept_bytes(self) -> bytes | None:
        return None

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[bytes | memoryview]:
        return self.read_blocks(start, count, tally)


class StreamedPlace(BasePlace):
    """A place whose blocks are views of one buffer: `stream_blocks` yields them, and
    `read_blocks` copies each.
    """

    __slots__ = ()

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        size = self.nbytes - start if count is None else count
        return map(bytes, self.stream_blocks(start, size, tally))


class Reworked(BasePlace):
    """A place that is made of another one, `packed`, stretch by stretch."""

    __slots__ = ("packed",)

    packed: Place

    def packed_span(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of `packed` that the bytes `first` to `last` are made of: first,
        and one past the last.
        """
        raise NotImplementedError

    @property
    def can_seek(self) -> bool:
        return self.packed.can_seek

    @property
    def can_cut(self) -> bool:
        return self.packed.can_cut

    def list_sources(self) -> Iterator[Source]:
        return self.packed.list_sources()

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        return self.packed.list_readings(*self.packed_span(first, last))

    def list_checksums(self) -> Iterator[Checksum]:
        return self.packed.list_checksums()

    def lacks_bytes(self, first: int, last: int) -> bool:
        return first < last and self.packed.lacks_bytes(*self.packed_span(first, last))


class Patched(BasePlace):
    """The bytes of a place with pieces from other places. Where pieces overlap, the
    later one counts.

    `pieces` are (first byte, place), which may be made when they are asked for. `base`
    is None when the pieces cover all of it.
    """

    __slots__ = ("base", "nbytes", "pieces")

    nbytes: int

    def __init__(
        self, base: Place | None, nbytes: int, pieces: Reversible[tuple[int, Place]]
    ) -> None:
        self.base = base
        self.nbytes = nbytes
        # A list may change later; other sequences make their pieces when asked.
        self.pieces = tuple(pieces) if isinstance(pieces, list) else pieces

    def _list_layers(self) -> Iterator[Place]:
        """Yield all places that it consists of, the last piece first."""
        for _, piece in reversed(self.pieces):
            yield piece
        if self.base is not None:
            yield self.base

    @property
    def can_seek(self) -> bool:
        return all(layer.can_seek for layer in self._list_layers())

    def list_sources(self) -> Iterator[Source]:
        for layer in self._list_layers():
            yield from layer.list_sources()

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        if self.base is not None:
            yield from self.base.list_readings(first, last)
        for begin, piece in self.pieces:
            if begin < last and begin + piece.nbytes > first:
                yield from piece.list_readings(
                    max(0, first - begin), min(piece.nbytes, last - begin)
                )

    def list_stretches(self, first: int, last: int) -> Sequence[Stretch]:
        # The spans that no piece covers yet. The last piece comes first, because later
        # pieces cover earlier ones.
        free = [(first, last)]
        rows: list[tuple[int, Stretch]] = []
        for begin, piece in reversed(self.pieces):
            end = begin + piece.nbytes
            rest: list[tuple[int, int]] = []
            for low, high in free:
                if high <= begin or end <= low:
                    rest.append((low, high))
                    continue
                start, stop = max(low, begin), min(high, end)
                rows.append((start, Stretch(piece, start - begin, stop - start)))
                rest += [
                    span for span in ((low, begin), (end, high)) if span[0] < span[1]
                ]
            free = rest
        if self.base is not None:
            rows += [(low, Stretch(self.base, low, high - low)) for low, high in free]
        return [stretch for _, stretch in sorted(rows, key=lambda row: row[0])]

    def list_checksums(self) -> Iterator[Checksum]:
        for stretch in reversed(self.list_stretches(0, self.nbytes)):
            yield from stretch.place.list_checksums()

    def lacks_bytes(self, first: int, last: int) -> bool:
        stretches = self.list_stretches(first, last) if first < last else ()
        return any(
            place.lacks_bytes(start, start + count) for place, start, count in stretches
        )

    def as_stored(self, first: int, last: int) -> Place | None:
        return self if (first, last) == (0, self.nbytes) else None

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        end = self.nbytes if count is None else start + count
        for place, begin, size in self.list_stretches(start, end):
            yield from place.read_blocks(begin, size, tally)

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[bytes | memoryview]:
        for place, begin, size in self.list_stretches(start, start + count):
            yield from place.stream_blocks(begin, size, tally, passed)


class Runs(Patched):
    """Ranges that follow each other: `ranges` are (first byte, range), in order, none
    of them deflated.
    """

    __slots__ = ("ranges",)

    def __init__(self, nbytes: int, ranges: Sequence[tuple[int, Range]]) -> None:
        super().__init__(None, nbytes, ranges)
        self.ranges = tuple(ranges)

    def part(self, first: int, last: int) -> Place:
        # The range with the first byte, then those behind it.
        index = bisect(self.ranges, first, key=lambda row: row[0]) - 1
        parts: list[tuple[int, Range]] = []
        while index < len(self.ranges) and self.ranges[index][0] < last:
            begin, piece = self.ranges[index]
            low, high = max(first, begin), min(last, begin + piece.size)
            part = piece._replace(offset=piece.offset + low - begin, size=high - low)
            parts.append((low - first, part))
            index += 1
        return parts[0][1] if len(parts) == 1 else Runs(last - first, parts)

    def as_stored(self, first: int, last: int) -> Place | None:
        return self.part(first, last)
