"""Reading ahead: the bytes that tasks are going to read are asked for in their order,
many requests at once.

All sources of the process share one budget of memory. What no task needs any more is
dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import Enum
from itertools import pairwise
from operator import attrgetter
from typing import Protocol, cast

from ckpt.bytes.far import Reading
from ckpt.bytes.source import underlying_file
from ckpt.ext.remote.spans import Spans
from ckpt.model.errors import CkptError

PIECE = 8 << 20
"""The most bytes of one request."""
GAP = 64 << 10
"""Ranges this close are one request."""
ROOM = 48 << 20
"""The most bytes of pieces in memory, of all sources of the process. Who needs a piece
at once takes it above that.
"""
REQUESTS = 32
"""The most requests that one list of tasks has under way."""
_BATCH, _GROUPS = 32 << 20, 4096
"""The bytes and the groups whose ranges are joined where they are close, whatever their
order.
"""
_FEW = 16
"""Pieces of a group that may be needed all together. Of groups with more, and many
bytes, one is read at a time.
"""
_LOOSE = 4096
"""A read that begins this close behind the last one goes on with it."""

_wide = threading.RLock()
_changed = threading.Condition()
"""Guards all pieces and the room. Told of each piece that has come or gone."""


class Ranges(Protocol):
    """A source on another machine, as it is read ahead."""

    pieces: Spans[Piece]
    size: int

    def lead(self, offset: int) -> int: ...

    def exactly(self, begin: int, end: int) -> list[memoryview]: ...


class _Room:
    """The bytes of all pieces that are in memory or on their way, and how many
    may be.
    """

    used = 0
    most = ROOM


# A fork copies locks in whatever state they are.
def forget_pieces() -> None:
    """Begin anew in a copy of the process, where no piece comes."""
    global _changed, _wide
    _changed, _wide = threading.Condition(), threading.RLock()
    _done.clear()
    _Room.used, _Room.most = 0, ROOM


@contextmanager
def lend_room(nbytes: int) -> Iterator[None]:
    """Leave some of the room to others, for the block."""
    with _changed:
        _Room.most -= nbytes
    try:
        yield
    finally:
        with _changed:
            _Room.most += nbytes
            _changed.notify_all()


class _State(Enum):
    IDLE = "idle"
    COMING = "coming"
    HERE = "here"
    GONE = "gone"


class Piece:
    """Bytes of a source that are read together. The groups that need them are its
    `users`.

    With `in_turn` they are read once, from the first to the last, and gone after that;
    else they stay until the last group has ended.
    """

    __slots__ = (
        "begin",
        "data",
        "end",
        "error",
        "first",
        "in_turn",
        "source",
        "state",
        "until",
        "users",
    )

    def __init__(
        self, source: Ranges, begin: int, end: int, users: set[int], *, in_turn: bool
    ) -> None:
        self.source = source
        self.begin = begin
        self.end = end
        self.users = users
        self.first = min(users)
        self.in_turn = in_turn
        self.until = begin
        """The bytes before it were read."""
        self.state = _State.IDLE
        self.data: list[memoryview] = []
        self.error: Exception | None = None

    def take(self) -> None:
        """Mark it as coming. `_changed` is held."""
        self.state = _State.COMING
        _Room.used += self.end - self.begin

    def fetch(self) -> None:
        """Ask for its bytes, once it is marked as coming. An error is raised where it
        is read.
        """
        error: BaseException | None = None
        data: list[memoryview] = []
        try:
            data = self.source.exactly(self.begin, self.end)
        # An interrupt too: nobody may wait for what does not come.
        except BaseException as failure:
            error = failure
        with _changed:
            self.data = data
            self.error = error if isinstance(error, Exception) else None
            self.state = _State.HERE
            # No group needs it any more, or it failed: whoever reads it asks anew.
            if error is not None or not self.users:
                self.drop(_State.IDLE if self.users else _State.GONE)
            _changed.notify_all()
        if error is not None and not isinstance(error, Exception):
            raise error

    def read(self, position: int, end: int) -> memoryview | None:
        """Its bytes from a position on, or None where it has gone. Raises what asking
        for them raised.
        """
        with _changed:
            while self.state is _State.COMING:
                _changed.wait()
            # Raised once: the next read asks for the bytes itself.
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            # No thread has begun it: the reader does so at once, over the room that
            # there is.
            is_ours = self.state is _State.IDLE
            if is_ours:
                # Pieces that were read through go first.
                _let_go(self.end - self.begin)
                self.take()
        if is_ours:
            self.fetch()
            return self.read(position, end)
        with _changed:
            if self.state is not _State.HERE:
                return None
            part = self._part(position, end)
            # A read that goes on from the last one; a little may be left out.
            if position <= self.until + _LOOSE:
                self.until = max(self.until, position + len(part))
                if self.in_turn and self.until >= self.end:
                    self.drop()
                # Its only group may read it again, so it stays while there is room.
                elif len(self.users) == 1 and self.until + _LOOSE >= self.end:
                    _done[self] = None
            return part

    def _part(self, position: int, end: int) -> memoryview:
        begin = self.begin
        for data in self.data:
            if position < begin + len(data):
                return data[position - begin : end - begin]
            begin += len(data)
        raise AssertionError("a piece is shorter than it is")

    def leave(self, user: int) -> None:
        """Note that a group has ended. `_changed` is held."""
        # A piece on its way is dropped when it arrives.
        self.users.discard(user)
        if not self.users and self.state is not _State.COMING:
            self.drop()

    def drop(self, state: _State = _State.GONE) -> None:
        """Let its bytes go. `_changed` is held."""
        if self.state is _State.HERE:
            _Room.used -= self.end - self.begin
            _done.pop(self, None)
        self.state, self.data = state, []
        if state is _State.GONE:
            self.source.pieces.remove(self)
        _changed.notify_all()


_done: dict[Piece, None] = {}
"""Pieces that were read through, of groups that go on: they stay while there is
room.
"""


def _let_go(nbytes: int) -> None:
    """Make room where pieces were read through. `_changed` is held."""
    while _done and _Room.used + nbytes > _Room.most:
        next(iter(_done)).drop()


class Ahead:
    """The ranges that groups are going to read. Threads ask for them in the order of
    the groups.

    `close` ends the threads.
    """

    def __init__(self, groups: Iterable[Iterable[Reading]]) -> None:
        self._groups = iter(groups)
        self._making = threading.Lock()
        self._made = 0
        self._is_all = self._is_closed = False
        self._queue: deque[Piece] = deque()
        self._of: dict[int, list[Piece]] = {}
        self._threads: list[threading.Thread] = []

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Read a group in the block."""
        # Groups are made in their order, whoever comes first.
        while number >= self._made and not self._is_all:
            self._make(number)
        with _changed:
            pieces = self._of.get(number, ())
            nbytes = sum(piece.end - piece.begin for piece in pieces)
            # A group that fills half of the room: two of them would wait for each
            # other.
            is_wide = len(pieces) > _FEW and nbytes > _Room.most // 2
        try:
            with _wide if is_wide else nullcontext():
                yield
        finally:
            with _changed:
                for piece in self._of.pop(number, ()):
                    piece.leave(number)

    def close(self) -> None:
        """Drop what is left. A request that is under way ends by itself."""
        with _changed:
            self._is_closed = True
            for number in list(self._of):
                for piece in self._of.pop(number):
                    piece.leave(number)
            _changed.notify_all()

    def _make(self, number: int = -1) -> None:
        """Join the ranges of the next groups to pieces. With a number, only if it is
        not made yet.
        """
        with self._making:
            if self._is_all or 0 <= number < self._made:
                return
            # (first byte, end, number of the group) by source.
            ranges: dict[Ranges, list[tuple[int, int, int]]] = {}
            total = made = 0
            for group in self._groups:
                for source, begin, end in _far_readings(group):
                    if not _is_foreseen(source, begin, end):
                        ranges.setdefault(source, []).append(
                            (begin, end, self._made + made)
                        )
                    total += end - begin
                made += 1
                if total >= _BATCH or made >= _GROUPS:
                    break
            else:
                self._is_all = True
            pieces: list[Piece] = []
            for source, rows in ranges.items():
                pieces += join_ranges(source, sorted(rows))
            # In the order of the groups that need them first.
            pieces.sort(key=attrgetter("first"))
            with _changed:
                for piece in () if self._is_closed else pieces:
                    piece.source.pieces.add(piece)
                    for user in piece.users:
                        self._of.setdefault(user, []).append(piece)
                    self._queue.append(piece)
                self._made += made
                idle = len(self._queue)
        # The reader asks for it; else one more makes the next pieces.
        alone = idle == 1 and self._is_all
        wanted = 0
        if not alone:
            wanted = min(REQUESTS - len(self._threads), idle + (not self._is_all))
        for _ in range(wanted):
            thread = threading.Thread(target=self._fetch, name="ahead", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _fetch(self) -> None:
        while True:
            piece = self._next_piece()
            if piece is None:
                return
            piece.fetch()

    def _next_piece(self) -> Piece | None:
        """Mark the next piece as coming, once there is room for it."""
        while True:
            with _changed:
                # A reader may have taken the piece before.
                while self._queue and self._queue[0].state is not _State.IDLE:
                    self._queue.popleft()
                if self._is_closed:
                    return None
                if self._queue:
                    piece = self._queue[0]
                    size = piece.end - piece.begin
                    # One piece is always taken, even if it is larger than the room.
                    if not _Room.used or _Room.used + size <= _Room.most:
                        piece.take()
                        return self._queue.popleft()
                    _changed.wait()
                    continue
                if self._is_all:
                    return None
            # Outside of the lock: finding the ranges may take long.
            self._make()


def is_worth(readings: Sequence[Reading]) -> bool:
    """Tell whether these are far bytes that are not foreseen yet, and more than one
    request brings.
    """
    rows = list(_far_readings(readings))
    if all(_is_foreseen(*row) for row in rows):
        return False
    # A single range that one request brings is read when it is needed.
    return len(rows) > 1 or rows[0][2] - rows[0][1] > PIECE


def _is_foreseen(source: Ranges, begin: int, end: int) -> bool:
    """Tell whether pieces hold all of these bytes."""
    while begin < end:
        piece = source.pieces.at(begin)
        if piece is None:
            return False
        begin = piece.end
    return True


def _far_readings(group: Iterable[Reading]) -> Iterator[tuple[Ranges, int, int]]:
    """Yield the ranges of far sources. One that cannot be foreseen is left to the work,
    which says why.
    """
    try:
        for given, first, last in group:
            # A source may be a part of another one: the outermost is asked.
            outer, begin = underlying_file(given, first)
            if outer.far is not None:
                source = cast("Ranges", outer.far)
                end = min(begin + last - first, source.size)
                if begin < end:
                    yield source, source.lead(begin), end
    except (CkptError, RecursionError):
        return


def join_ranges(
    source: Ranges, rows: Iterable[tuple[int, int, int]]
) -> Iterator[Piece]:
    """Join (begin, end, group) in order to pieces. A longer range is cut into even
    ones.
    """
    begin = end = 0
    users: set[int] = set()
    for first, last, user in rows:
        # Close ranges of several groups are one request, up to 8 MiB.
        if users and first <= end + GAP and max(end, last) - begin <= PIECE:
            end = max(end, last)
            users.add(user)
            continue
        if users:
            yield Piece(source, begin, end, users, in_turn=False)
        users = set()
        # Even pieces: the last one would else be small, and as slow.
        count = -(-(last - first) // PIECE)
        if count > 1:
            cuts = [
                first + (last - first) * number // count for number in range(count + 1)
            ]
            for one, other in pairwise(cuts):
                yield Piece(source, one, other, {user}, in_turn=True)
        else:
            begin, end, users = first, last, {user}
    if users:
        yield Piece(source, begin, end, users, in_turn=False)
