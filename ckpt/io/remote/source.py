"""An object that is read by ranges. What is read once is kept for a while, so small neighbours are one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TypeVar

from ckpt.errors import CkptError, NotOpenedError
from ckpt.io.far import Claim, Far
from ckpt.io.remote.store import Answer, BusyError, ChangedError, Known, Sleep, Store
from ckpt.io.source import BaseSource, Identity

TAIL, HEAD = 128 << 10, 64 << 10
"""Bytes of the first request: from the end, where zip archives have their directory, or from the beginning."""
_HEADED = (".safetensors", ".sft", ".json", ".metadata", ".txt", ".yaml", ".distcp", ".pkl", ".sha256")
"""Endings of files whose beginning says what they hold."""
_NEAR, _GAP = 8 << 10, 64 << 10
"""A read that begins this close behind an earlier one goes on with it; ranges this close are one request."""
_AHEAD, _BLOCK, _KEPT = 8 << 20, 8 << 20, 16 << 20
"""The most bytes that are read ahead, of one block that is kept, and of all blocks."""
_FASTER, _LEAST = 4, 256 << 10
"""The factor by which a read ahead exceeds the last one, and its least bytes."""
_START = 4 << 10
"""Bytes of a larger answer that are kept."""
_TRIES = 4
_PAUSE = 0.25
"""Seconds before the second try; each further pause is twice as long."""

_T = TypeVar("_T")


class RangeSource(BaseSource):
    """One state of an object: every request asks for the ETag of the first answer. Raises NotOpenedError."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        state: Known | None = None,
        ahead: bool = True,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.name = name
        self.requests = self.bytes_read = 0
        self._store = store
        self._sleep = sleep
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._coming: list[tuple[int, int]] = []
        self._blocks: list[tuple[int, bytes]] = []
        self._ends: list[tuple[int, int]] = []
        self._claims: list[Claim] = []
        self._etag = ""
        self.size = -1
        if state is None:
            tail = store.tails and not name.endswith(_HEADED)
            self._ask(None if tail else 0, TAIL if tail else HEAD)
        else:
            self.size, self._etag = state
        if ahead and self.size > TAIL and not name.endswith(_HEADED):
            self._open_ahead()

    def _open_ahead(self) -> None:
        """Read what opening a zip archive is going to need, in as few requests as that takes."""
        if self._kept(self.size - 22, 22) is None:
            self._ask(self.size - TAIL, TAIL)
        tail = self._blocks[-1][1]
        for begin, count in first_ranges(tail, self.size, self._bytes):
            self._ask(begin, count)
        self._ends.clear()

    @property
    def far(self) -> Far | None:
        return self

    @property
    def claims(self) -> Sequence[Claim]:
        return self._claims

    def claim(self, claim: Claim) -> None:
        self._claims.append(claim)

    @property
    def address(self) -> str | None:
        return self.name

    @property
    def identity(self) -> Identity:
        return (self.size, self._etag)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        from ckpt.io.source import reopened

        return reopened, (self.address, self.identity)

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()

    # --- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        lead = offset
        for claim in self._claims:
            lead = min(lead, claim.lead(offset))
        data = self._bytes(lead, offset + count - lead)
        for claim in self._claims:
            claim.check(offset, offset + count, self._bytes)
        return data[offset - lead :] if lead < offset else data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for offset, count in ranges:
            self._check_range(offset, count, self.name)
        pieces: dict[tuple[int, int], bytes] = {}
        group: list[tuple[int, int]] = []
        end = 0
        for offset, count in [*sorted(set(ranges)), (-1, 0)]:
            if group and (offset < 0 or offset > end + _GAP or offset + count - group[0][0] > _AHEAD):
                first = group[0][0]
                data = self.read(first, end - first)
                pieces |= {row: data[row[0] - first : row[0] - first + row[1]] for row in group}
                group = []
            end = max(end, offset + count) if group else offset + count
            group.append((offset, count))
        return [pieces[row] for row in ranges]

    def _bytes(self, offset: int, count: int) -> bytes:
        """Bytes that are kept, on their way to another thread, or asked for: as few requests as their gaps need."""
        end, position = offset + count, offset
        parts: list[bytes] = []
        while position < end:
            with self._lock:
                while (part := self._kept(position, end - position)) is None and any(
                    a <= position < b for a, b in self._coming
                ):
                    self._arrived.wait()
                if part is None:
                    run, needed = self._run(position, end - position)
                    self._coming.append(run)
            if part is None:
                part = self._fetch(run)[:needed]
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _kept(self, offset: int, count: int) -> bytes | None:
        """Return the first of `count` bytes, at least one, from a block that is kept, or None."""
        for index in range(len(self._blocks) - 1, -1, -1):
            begin, data = self._blocks[index]
            if begin <= offset < begin + len(data):
                self._blocks.append(self._blocks.pop(index))
                return data[offset - begin : offset - begin + count]
        return None

    def _run(self, offset: int, count: int) -> tuple[tuple[int, int], int]:
        """(begin and end of what to ask for, how many of its bytes are needed).

        It is more than what is needed where reading goes on from an earlier read, and ends where something else is kept
        or coming.
        """
        kept = (begin - offset for begin, _ in self._blocks if offset < begin < offset + count)
        count = min(kept, default=count)
        before = max((many for end, many in self._ends if 0 <= offset - end <= _NEAR), default=0)
        wanted = min(max(_FASTER * before, _LEAST), _AHEAD) if before else 0
        wanted = max(wanted, count, HEAD if offset == 0 else 0)
        coming = (begin for begin, _ in self._coming if begin > offset)
        end = min(offset + wanted, self.size, *coming)
        return (offset, end), min(count, end - offset)

    def _fetch(self, run: tuple[int, int]) -> bytes:
        """Ask the server for a range that is marked as coming, and remove the mark."""
        begin, end = run
        try:
            return self._ask(begin, end - begin).data
        finally:
            with self._lock:
                self._coming.remove(run)
                self._arrived.notify_all()

    def _ask(self, begin: int | None, count: int) -> Answer:
        self._forget(count)
        answer = retried(lambda: self._request(begin, count), self.name, self._sleep)
        if self.size < 0:
            self.size, self._etag = answer.size, answer.etag
        elif (answer.size, answer.etag) != (self.size, self._etag):
            raise ChangedError(self.name)
        end = answer.begin + len(answer.data)
        with self._lock:
            self.bytes_read += len(answer.data)
            self._ends = [*self._ends[-15:], (end, len(answer.data))]
            if 0 < len(answer.data) <= _BLOCK or answer.size == len(answer.data):
                self._blocks.append((answer.begin, answer.data))
            elif answer.data:  # what claims look at, which a second request would bring again
                self._blocks.append((answer.begin, answer.data[:_START]))
        return answer

    def _forget(self, more: int) -> None:
        """Make room for that many bytes before they arrive."""
        with self._lock:
            while len(self._blocks) > 1 and sum(len(data) for _, data in self._blocks) + more > _KEPT:
                del self._blocks[0]

    def _request(self, begin: int | None, count: int) -> Answer:
        with self._lock:
            self.requests += 1
        return self._store.get(begin, count, self._etag)


def retried(step: Callable[[], _T], name: str, sleep: Sleep) -> _T:
    """Return the result of a request, after a few tries with longer and longer pauses.

    Raises NotOpenedError with the name.
    """
    pause = _PAUSE
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            return step()
        except BusyError as error:
            if not tries_left:
                raise NotOpenedError(f"{error}, {_TRIES} times in a row", path=name) from None
        except CkptError as error:
            error.path = error.path or name
            raise
        sleep(pause)
        pause *= 2
    raise AssertionError


_END = Struct("<4s4H2IH")
_END64 = Struct("<4sQ2H2I4Q")
_CENTRAL = Struct("<4s4xHH4xIIIHHHH2xII")
_MOST = 64 << 20
"""The most bytes of a directory or a pickle that are read ahead; more only when the reader asks."""
_BEFORE = 4096
"""Small records lie between the last storage and the directory: the version, the byte order."""
_AFTER = 1536
"""Bytes of the local header of the pickle with its padding, and of the small records of torch that follow it."""
_HEAD = 4096
"""Bytes at the beginning that every format is asked about."""
_FRONT = 64 << 10
"""A pickle that begins before is read together with the beginning of the file."""


def first_ranges(tail: bytes, size: int, read: Callable[[int, int], bytes]) -> Iterator[tuple[int, int]]:
    """The (offset, count) of the directory and of the pickle, of an object of `size` bytes that ends with `tail`.

    `read` gives bytes of the object. Nothing for what does not look like an archive.
    """
    place = _directory(tail, size)
    if place is None:
        return
    offset, count = place
    first = max(0, offset - _BEFORE)
    if first < size - len(tail):
        yield first, size - len(tail) - first
    directory = read(offset, count)
    position = directory.find(b"/data.pkl")
    entry = directory.rfind(b"PK\1\2", 0, position) if position >= 0 else -1
    if entry < 0 or entry + _CENTRAL.size > len(directory):
        return
    fields = _CENTRAL.unpack_from(directory, entry)
    stored, names, header = fields[4], fields[6], fields[11]
    begin = 0 if header <= _FRONT else header
    end = min(max(_HEAD, header + names + stored + _AFTER), offset)
    if header < offset and 0 < end - begin <= _MOST:
        yield begin, end - begin


def _directory(tail: bytes, size: int) -> tuple[int, int] | None:
    """Return (offset, bytes) of the directory of an archive with this end, or None."""
    position = len(tail) - _END.size
    if position < 0 or tail[position : position + 4] != b"PK\5\6":
        return None
    count, offset = _END.unpack_from(tail, position)[5:7]
    if 0xFFFFFFFF in (count, offset) or tail[position - 20 : position - 16] == b"PK\6\7":
        position -= 20 + _END64.size
        if position < 0 or tail[position : position + 4] != b"PK\6\6":
            return None
        count, offset = _END64.unpack_from(tail, position)[8:10]
    return (offset, count) if offset + count == size - len(tail) + position and count <= _MOST else None
