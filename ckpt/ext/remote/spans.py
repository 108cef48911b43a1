"""Spans of bytes by their first byte: those at a byte, between two, behind one. Several
threads may use them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Span(Protocol):
    """Bytes `begin` to `end` of a source."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...


S = TypeVar("S", bound=Span)
_begin = attrgetter("begin")


class Spans(Generic[S]):
    """The spans of one source. They may overlap."""

    # In the order of their first bytes.
    def __init__(self) -> None:
        self._rows: list[S] = []
        # The most bytes of a span, so that `between` knows how far back to look.
        self._longest = 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __iter__(self) -> Iterator[S]:
        with self._lock:
            return iter(self._rows[:])

    def copy(self) -> Spans[S]:
        """The same spans, with a lock of their own."""
        other: Spans[S] = Spans()
        other._rows, other._longest = self._rows[:], self._longest
        return other

    def add(self, span: S) -> None:
        with self._lock:
            insort(self._rows, span, key=_begin)
            self._longest = max(self._longest, span.end - span.begin)

    def remove(self, span: S) -> None:
        """Take a span out, if it is still there."""
        with self._lock:
            index = bisect_right(self._rows, span.begin, key=_begin) - 1
            while index >= 0 and self._rows[index].begin == span.begin:
                if self._rows[index] is span:
                    del self._rows[index]
                    # The longest is not looked for anew: a bound that is too high costs
                    # some steps.
                    self._longest = self._longest if self._rows else 0
                    return
                index -= 1

    def between(self, begin: int, end: int) -> list[S]:
        """The spans that hold some of these bytes, the last one first."""
        if not self._rows:
            return []
        found: list[S] = []
        with self._lock:
            index = bisect_right(self._rows, end - 1, key=_begin) - 1
            while index >= 0 and self._rows[index].begin + self._longest > begin:
                if self._rows[index].end > begin:
                    found.append(self._rows[index])
                index -= 1
        return found

    def at(self, position: int) -> S | None:
        """A span that holds a byte, or None."""
        return next(iter(self.between(position, position + 1)), None)

    def after(self, position: int, end: int) -> int:
        """The first byte of a span that begins behind a byte and before `end`, else
        `end`.
        """
        with self._lock:
            index = bisect_right(self._rows, position, key=_begin)
            return min(end, self._rows[index].begin) if index < len(self._rows) else end
