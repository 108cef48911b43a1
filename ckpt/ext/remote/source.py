"""An object that is read by ranges. What is read once is kept for a while, so small
neighbours are one request.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from struct import Struct
from typing import TypeVar
from weakref import WeakSet

from ckpt.bytes import far
from ckpt.bytes.far import Claim, Far
from ckpt.bytes.source import STEP, BaseSource, Identity
from ckpt.ext.remote.ahead import PIECE, Piece
from ckpt.ext.remote.ahead import forget_pieces as forget_ahead
from ckpt.ext.remote.spans import Spans
from ckpt.ext.remote.store import Answer, BusyError, ChangedError, Known, Sleep, Store
from ckpt.ext.remote.traffic import forget_requests as forget_traffic
from ckpt.ext.remote.traffic import gate_of
from ckpt.model.errors import CkptError, NotOpenedError

TAIL, HEAD = 128 << 10, 64 << 10
"""Bytes of the first request: from the end, where zip archives have their directory, or
from the beginning.
"""
_HEADED = (
    ".safetensors",
    ".sft",
    ".json",
    ".metadata",
    ".txt",
    ".yaml",
    ".distcp",
    ".pkl",
    ".sha256",
)
"""Endings of files whose beginning says what they hold."""
_NEAR = 8 << 10
"""A read that begins this close behind an earlier one goes on with it."""
_FASTER, _LEAST = 4, 256 << 10
"""The factor by which a read ahead exceeds the last one, and its least bytes."""
_KEPT, _HELD = 16 << 20, 64 << 20
"""The most bytes that are kept of all sources of the process, and of what opening an
archive is going to read.
"""
_TRIES = 4
_PAUSE, _PATIENCE = 0.25, 60
"""Seconds before the second try, and the most that a server may ask for; each further
pause is twice as long.
"""

_T = TypeVar("_T")


class _Block:
    """Bytes of a source that are kept while there is room; those that are `held` until
    so many of them were read.
    """

    __slots__ = ("begin", "data", "end", "held", "of")

    def __init__(
        self, of: Spans[_Block], begin: int, data: memoryview, held: int = 0
    ) -> None:
        self.of = of
        self.begin = begin
        self.end = begin + len(data)
        self.data = data
        self.held = held


class _Shelf:
    """Blocks with room for `most` bytes, the one that was read last at the end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0
        self._blocks: OrderedDict[_Block, None] = OrderedDict()

    def __contains__(self, block: _Block) -> bool:
        return block in self._blocks

    def put(self, block: _Block) -> None:
        """Put a block at the end."""
        if block not in self._blocks:
            self.nbytes += len(block.data)
            self._blocks[block] = None
        self._blocks.move_to_end(block)

    def take(self, block: _Block) -> None:
        """Take a block away, if it is there."""
        if block in self._blocks:
            del self._blocks[block]
            self.nbytes -= len(block.data)

    def overflow(self) -> Iterator[_Block]:
        """Take away the first ones, until the others have room."""
        while self.nbytes > self.most:
            block = next(iter(self._blocks))
            self.take(block)
            yield block


class _Kept:
    """The blocks of all sources of the process."""

    def __init__(self) -> None:
        # One lock for both shelves: a block moves between them.
        self.begin()

    def begin(self) -> None:
        """Keep nothing."""
        self._lock = threading.RLock()
        self._held, self._loose = _Shelf(_HELD), _Shelf(_KEPT)

    def add(self, block: _Block) -> None:
        """Keep a block, and drop those that were not read for the longest time."""
        with self._lock:
            block.of.add(block)
            (self._held if block.held else self._loose).put(block)
            # Blocks that find no room among the held ones are kept like others, while
            # there is room for these.
            for other in self._held.overflow():
                self._loose.put(other)
            for other in self._loose.overflow():
                other.of.remove(other)

    def drop(self, block: _Block) -> None:
        with self._lock:
            block.of.remove(block)
            self._held.take(block)
            self._loose.take(block)

    def read(
        self, blocks: Spans[_Block], begin: int, end: int, *, count: bool = True
    ) -> memoryview | None:
        """Return the first of the bytes, at least one, or None. With `count` they count
        as read.
        """
        with self._lock:
            block = blocks.at(begin)
            if block is None:
                return None
            part = block.data[begin - block.begin : end - block.begin]
            if block in self._loose:
                self._loose.put(block)
            elif count:
                block.held -= len(part)
                if block.held <= 0:  # from now on it is one like the others
                    self.drop(block)
                    block.held = 0
                    self.add(block)
            return part


kept = _Kept()


class RangeSource(BaseSource):
    """One state of an object: every request asks for the ETag of the first answer.
    Raises NotOpenedError.

    A `state` without an ETag is the size alone: the first answer says which state it
    is.
    """

    _lock = threading.Lock()
    _arrived = threading.Condition(_lock)
    """One for all sources, of which there may be thousands."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        state: Known | None = None,
        ahead: bool = True,
        sleep: Sleep = time.sleep,
    ) -> None:
        far.Used.sources = True
        self.name = name
        self.requests = self.bytes_read = 0
        self._store = store
        self._sleep = sleep
        self._forget_bytes()
        _sources.add(self)
        self._ends: list[tuple[int, int]] = []
        self._claims: Spans[Claim] = Spans()
        self._etag = ""
        self.size = -1
        if state is None:
            # Zip archives have their directory at the end. Where a server cannot give
            # the end without knowing the size, the beginning gives the size.
            tail = store.tails and not name.endswith(_HEADED)
            begin, count = (None, TAIL) if tail else (0, HEAD)
            self._keep_answer(self._ask_range(begin, count))
        else:
            self.size, self._etag = state
        if ahead and self.size > TAIL and not name.endswith(_HEADED):
            self._open_ahead()

    def _forget_bytes(self) -> None:
        """Keep no bytes, and wait for none."""
        self.pieces: Spans[Piece] = Spans()
        self._coming: list[tuple[int, int]] = []
        self._blocks: Spans[_Block] = Spans()

    def _open_ahead(self) -> None:
        """Read what opening a zip archive is going to need, in as few requests as that
        takes.
        """
        # Without counting: looking here is no reading.
        tail = kept.read(self._blocks, self.size - TAIL, self.size, count=False)
        if tail is None or len(tail) < TAIL:
            tail = self._hold(self.size - TAIL, self.size)
        for begin, count in first_ranges(bytes(tail), self.size, self.exactly):
            self._hold(begin, begin + count)

    def open_head(self) -> None:
        """Read what opening a file of safetensors is going to need."""
        if self.name.endswith((".safetensors", ".sft")) and self.size > 8:
            first = self._blocks.at(0)
            # The server ignores ranges: all of it is there.
            if first is not None and first.held:
                return
            if first is None:
                head = memoryview(_join_parts(self.exactly(0, min(HEAD, self.size))))
            else:
                head = first.data
                kept.drop(first)
            # The first eight bytes are the length of the header.
            end = min(8 + int.from_bytes(head[:8], "little"), self.size)
            # Nine tenths of it: a reader that leaves some bytes out would else hold
            # them for ever.
            held = max(1, 9 * min(end, len(head)) // 10)
            kept.add(_Block(self._blocks, 0, head, held))
            if len(head) < end <= _MOST:
                self._hold(len(head), end)

    def _hold(self, begin: int, end: int) -> memoryview:
        """Bytes that are kept until they were read, whatever else is."""
        parts = self.exactly(begin, end)
        data = parts[0] if len(parts) == 1 else memoryview(_join_parts(parts))
        kept.add(_Block(self._blocks, begin, data, max(1, 9 * len(data) // 10)))
        return data

    @property
    def far(self) -> Far | None:
        return self

    @property
    def claims(self) -> Sequence[Claim]:
        return list(self._claims)

    def claim(self, claim: Claim) -> None:
        self._claims.add(claim)

    @property
    def address(self) -> str | None:
        return self.name

    @property
    def identity(self) -> Identity:
        # A state without an ETag: the first byte asks for it.
        if not self._etag and not self.requests and self.size:
            self.exactly(0, 1)
        return (self.size, self._etag)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # Pickled as its address: a worker opens the source anew.
        from ckpt.bytes.source import reopened

        return reopened, (self.address, self.identity)

    def close(self) -> None:
        for block in self._blocks:
            kept.drop(block)

    # --- reading ----------------------------------------------------------------------

    def read(self, offset: int, count: int) -> bytes:
        return _join_parts(self._read(offset, count))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        # Checked as a whole, so that nothing is written for a range that ends too late.
        self._check_range(offset, len(buffer), self.name)
        foreseeing: AbstractContextManager[None] = nullcontext()
        if len(buffer) > PIECE:
            foreseeing = self._foresee_ranges([(offset, len(buffer))])
        with foreseeing:
            position = 0
            while position < len(buffer):
                count = min(len(buffer) - position, STEP)
                for part in self._read(offset + position, count):
                    buffer[position : position + len(part)] = part
                    position += len(part)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for offset, count in ranges:
            self._check_range(offset, count, self.name)
        with self._foresee_ranges(ranges) if len(ranges) > 1 else nullcontext():
            found = [self.read(offset, count) for offset, count in ranges]
        for (offset, count), data in zip(ranges, found, strict=True):
            if 0 < count <= HEAD:
                kept.add(_Block(self._blocks, offset, memoryview(data)))
        return found

    def _foresee_ranges(
        self, ranges: Sequence[tuple[int, int]]
    ) -> AbstractContextManager[None]:
        return far.reading_ahead_at_once(
            [(self, offset, offset + count) for offset, count in ranges]
        )

    def _read(self, offset: int, count: int) -> list[memoryview]:
        """The bytes in one or more parts, once they are compared with what is claimed
        of them.
        """
        self._check_range(offset, count, self.name)
        lead, end = self.lead(offset), offset + count
        parts = self._collect_parts(lead, end)

        def near(begin: int, count: int) -> bytes:
            if lead <= begin and begin + count <= end:
                whole = memoryview(_join_parts(parts))
                return bytes(whole[begin - lead : begin - lead + count])
            return _join_parts(self._collect_parts(begin, begin + count))

        # A claim is what another file says about these bytes: they are compared before
        # anybody gets them.
        for claim in self._claims.between(lead, end):
            claim.check(offset, end, near)
        # The bytes before the offset were read for the claims alone.
        while parts and lead < offset:
            rest = parts[0][offset - lead :]
            lead += len(parts[0]) - len(rest)
            parts[:1] = [rest] if rest else []
        return parts

    def lead(self, offset: int) -> int:
        """Return the offset at which a read should begin, so that one request brings
        what is compared with it.
        """
        return min(
            (claim.lead(offset) for claim in self._claims.between(offset, offset + 1)),
            default=offset,
        )

    def _collect_parts(self, position: int, end: int) -> list[memoryview]:
        """Bytes that are foreseen, kept, on their way to another thread, or asked for
        now.
        """
        parts: list[memoryview] = []
        while position < end:
            piece = self.pieces.at(position)
            part = None if piece is None else piece.read(position, end)
            if part is None:
                part = self._read_unforeseen(position, self.pieces.after(position, end))
            parts.append(part)
            position += len(part)
        return parts

    def _read_unforeseen(self, position: int, end: int) -> memoryview:
        """The first of the bytes, at least one, without what is foreseen."""
        with self._lock:
            while True:
                part = kept.read(self._blocks, position, end)
                if part is not None:
                    return part
                # Another thread may have asked for these bytes: its answer is waited
                # for.
                is_coming = any(
                    begin <= position < last for begin, last in self._coming
                )
                if not is_coming:
                    break
                self._arrived.wait()
            run = (position, self._request_end(position, end))
            self._coming.append(run)
        try:
            answer = self._ask_range(run[0], run[1] - run[0])
            return self._keep_answer(answer)[: end - position]
        # Also after an error: who waits asks for the bytes itself then.
        finally:
            with self._lock:
                self._coming.remove(run)
                self._arrived.notify_all()

    def _request_end(self, position: int, end: int) -> int:
        """The end of a request for the bytes to `end`.

        It is more than what is needed where reading goes on from an earlier read and
        nothing is foreseen, and less where something is kept or coming.
        """
        before = max(
            (many for last, many in self._ends if 0 <= position - last <= _NEAR),
            default=0,
        )
        # Reading that goes on gets faster: each request is four times the last one, up
        # to a piece.
        if before and not self.pieces:
            end = max(end, position + min(max(_FASTER * before, _LEAST), PIECE))
        # The head of a file is asked for by several formats.
        if not position:
            end = max(end, HEAD)
        coming = (begin for begin, _ in self._coming if begin > position)
        return min(self._blocks.after(position, end), self.size, *coming)

    def exactly(self, begin: int, end: int) -> list[memoryview]:
        """Bytes that are kept or asked for, in parts, and none beside them. The answer
        is not kept.
        """
        parts: list[memoryview] = []
        while begin < end:
            part = kept.read(self._blocks, begin, end, count=False)
            if part is None:
                # Bytes at the end that are kept are not asked for again.
                last = self._blocks.at(end - 1)
                stop = end if last is None else max(begin + 1, last.begin)
                # Fewer bytes where a server gives no more at once.
                part = self._ask_range(begin, stop - begin).data
            parts.append(part)
            begin += len(part)
        return parts

    def _ask_range(self, begin: int | None, count: int) -> Answer:
        """The answer to a request for some bytes, and no others.

        A server that ignores ranges sends all, which stays until the source is closed:
        it would send all again.
        """
        answer = retried(lambda: self._request(begin, count), self.name, self._sleep)
        with self._lock:
            # The first answer says which state is read; all others must be of the same.
            if self.size < 0:
                self.size, self._etag = answer.size, answer.etag
            elif not self._etag and answer.size == self.size:
                self._etag = answer.etag
            elif (answer.size, answer.etag) != (self.size, self._etag):
                raise ChangedError(self.name)
            self.bytes_read += len(answer.data)
            # The last sixteen ends, so that several streams through one file are told
            # apart.
            self._ends = [
                *self._ends[-15:],
                (answer.begin + len(answer.data), len(answer.data)),
            ]
        begin = max(0, answer.size - count) if begin is None else begin
        if answer.begin == begin and len(answer.data) <= count:
            return answer
        # More than was asked for: the whole file. It is held until the source is
        # closed.
        self._blocks.add(_Block(self._blocks, answer.begin, answer.data, 1 << 62))
        first = begin - answer.begin
        return Answer(
            answer.data[first : first + count], begin, answer.size, answer.etag
        )

    def _keep_answer(self, answer: Answer) -> memoryview:
        if 0 < len(answer.data) <= PIECE:
            kept.add(_Block(self._blocks, answer.begin, answer.data))
        return answer.data

    def _request(self, begin: int | None, count: int) -> Answer:
        with self._lock:
            # The gate bounds the requests to one server, whatever number of threads
            # asks.
            self.requests += 1
        with gate_of(self._store.server).request():
            return self._store.get(begin, count, self._etag)


_sources: WeakSet[RangeSource] = WeakSet()


def _begin_copy() -> None:
    """Begin anew in a copy of the process: it has no thread that brings what was on its
    way, or releases a lock.
    """
    forget_traffic()
    forget_ahead()
    # Locks of the original may be held by threads that do not exist here.
    kept.begin()
    RangeSource._lock = threading.Lock()
    RangeSource._arrived = threading.Condition(RangeSource._lock)
    for source in list(_sources):
        source._forget_bytes()
        # A copy, as its lock may be held too.
        source._claims = source._claims.copy()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_copy)


def _join_parts(parts: Sequence[memoryview]) -> bytes:
    return b"".join(parts)


def retried(step: Callable[[], _T], name: str, sleep: Sleep) -> _T:
    """Return the result of a request, after a few tries with longer and longer pauses,
    or as the server asks for.

    Raises NotOpenedError with the name.
    """
    pause = _PAUSE
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            return step()
        except BusyError as error:
            # A longer wait is for whoever started the command to decide.
            if error.after > _PATIENCE:
                problem = (
                    f"{error}, and asks to come back in {error.after:,.0f} seconds"
                )
                raise NotOpenedError(problem, path=name) from None
            if not tries_left:
                raise NotOpenedError(
                    f"{error}, {_TRIES} times in a row", path=name
                ) from None
            wait = max(pause, error.after)
        except CkptError as error:
            error.path = error.path or name
            raise
        sleep(wait)
        pause *= 2
    raise AssertionError


_END = Struct("<4s4H2IH")
_END64 = Struct("<4sQ2H2I4Q")
_CENTRAL = Struct("<4s4xHH4xIIIHHHH2xII")
_MOST = 64 << 20
"""The most bytes of a directory or a pickle that are read ahead; more only when the
reader asks.
"""
_BEFORE = 4096
"""Small records lie between the last storage and the directory: the version, the byte
order.
"""
_AFTER = 1536
"""Bytes of the local header of the pickle with its padding, and of the small records of
torch that follow it.
"""
_HEAD = 4096
"""Bytes at the beginning that every format is asked about."""
_FRONT = 64 << 10
"""A pickle that begins before is read together with the beginning of the file."""


def first_ranges(
    tail: bytes, size: int, read: Callable[[int, int], list[memoryview]]
) -> Iterator[tuple[int, int]]:
    """The (offset, count) of the directory and of the pickle, of an object of `size`
    bytes that ends with `tail`.

    `read` gives the bytes between two offsets. Nothing for what does not look like an
    archive.
    """
    place = _find_directory(tail, size)
    if place is None:
        return
    offset, count = place
    first = max(0, offset - _BEFORE)
    # Small records of torch lie before the directory, and are read with it.
    if first < size - len(tail):
        yield first, size - len(tail) - first
    # The names of the records are searched for as bytes: the archive is parsed, and
    # checked, when it is opened.
    directory = _join_parts(read(offset, offset + count))
    position = directory.find(b"/data.pkl")
    entry = directory.rfind(b"PK\1\2", 0, position) if position >= 0 else -1
    if entry < 0 or entry + _CENTRAL.size > len(directory):
        return
    # Bytes of the record, of its name, and the offset of its local header.
    fields = _CENTRAL.unpack_from(directory, entry)
    stored, names, header = fields[4], fields[6], fields[11]
    begin = 0 if header <= _FRONT else header
    end = min(max(_HEAD, header + names + stored + _AFTER), offset)
    if header < offset and 0 < end - begin <= _MOST:
        yield begin, end - begin


def _find_directory(tail: bytes, size: int) -> tuple[int, int] | None:
    """Return (offset, bytes) of the directory of an archive with this end, or None."""
    # The end of the archive without a comment: torch writes none.
    position = len(tail) - _END.size
    if position < 0 or tail[position : position + 4] != b"PK\5\6":
        return None
    count, offset = _END.unpack_from(tail, position)[5:7]
    # A zip64 archive has a locator (20 bytes) and a longer record before the end.
    if (
        0xFFFFFFFF in (count, offset)
        or tail[position - 20 : position - 16] == b"PK\6\7"
    ):
        position -= 20 + _END64.size
        if position < 0 or tail[position : position + 4] != b"PK\6\6":
            return None
        count, offset = _END64.unpack_from(tail, position)[8:10]
    # The directory must end right before this record. Else it is not read ahead.
    if offset + count != size - len(tail) + position or count > _MOST:
        return None
    return offset, count
