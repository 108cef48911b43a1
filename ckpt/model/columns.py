"""Rows that exist by the hundred thousand, of which few are looked at: each is made
when it is asked for, once.

And columns of numbers in bytes, cut out and read at once.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

R = TypeVar("R")
C = TypeVar("C", bound="Column")  # type: ignore[type-arg]


class Column(Sequence[R]):
    """Rows that `make(first, last)` gives. A row that was asked for stays the same
    object.

    `looks` has for each row one that looks the same: it has all that many rows share.
    Rows that look the same have the same object there.
    """

    __slots__ = ("_all", "_base", "_count", "_first", "_make", "_some", "looks")

    def __init__(
        self, count: int, make: Callable[[int, int], list[R]], looks: Sequence[R] = ()
    ) -> None:
        self.looks = looks
        self._count = count
        self._make = make
        # Rows that were made one by one; `_all` once all of them are.
        self._some: dict[int, R] = {}
        self._all: list[R] | None = None
        self._base: Column[R] | None = None
        self._first = 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(
        self, index: slice[int | None, int | None, int | None]
    ) -> Sequence[R]: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> R | Sequence[R]:
        if isinstance(index, slice):
            span = range(*index.indices(self._count))
            # Most of the rows are made faster all at once than one by one.
            if 2 * len(span) > self._count:
                return self.rows()[index]
            return [self[position] for position in span]
        if self._all is not None:
            return self._all[index]
        position = range(self._count)[index]  # also counts from the end
        if self._base is not None:
            return self._base[self._first + position]
        row = self._some.get(position)
        if row is None:
            new_row = self._make(position, position + 1)[0]
            row = self._some.setdefault(position, new_row)
        return row

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows())

    def rows(self) -> list[R]:
        """All rows, made at once."""
        if self._all is None:
            if self._base is not None:
                last = self._first + self._count
                rows = list(self._base[self._first : last])
            else:
                rows = self._make(0, self._count)
                # An object that was asked for before stays the same.
                for index, row in self._some.items():
                    rows[index] = row
            self._all = rows
        return self._all

    @property
    def made(self) -> list[R]:
        """The rows that were asked for so far."""
        base = self if self._base is None else self._base
        first, last = self._first, self._first + self._count
        if base._all is not None:
            return base._all[first:last]
        return [row for index, row in base._some.items() if first <= index < last]

    def cut(self, first: int, last: int) -> Column[R]:
        """The rows from one index up to another: the same objects."""
        column = Column(last - first, self._make, self.looks[first:last])
        return self._cut(column, first)

    def _cut(self, column: C, first: int) -> C:
        """A column of the rows from `first` on: they are the same objects."""
        # The base is never a cut itself, so a cut of a cut asks one column, not two.
        column._base = self if self._base is None else self._base
        column._first = self._first + first
        return column


class NumberedTexts(Sequence[str]):
    """The texts `begin0`, `begin1` … up to as many as `numbers` has. Each is made when
    it is asked for: a million of them would take as much memory as the names of their
    tensors.
    """

    __slots__ = ("_begin", "_numbers")

    def __init__(self, begin: str, numbers: range) -> None:
        self._begin = begin
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice[int | None, int | None, int | None]) -> Self: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> str | Self:
        if isinstance(index, slice):
            return type(self)(self._begin, self._numbers[index])
        return f"{self._begin}{self._numbers[index]}"

    def __iter__(self) -> Iterator[str]:
        return map(self._begin.__add__, map(str, self._numbers))


class Chain(Sequence[R]):
    """Rows one after the other, some of them in columns."""

    __slots__ = ("_ends", "parts")

    def __init__(self, *parts: Iterable[R]) -> None:
        self.parts: list[list[R] | Column[R]] = []
        self._ends: list[int] = []
        for part in parts:
            self.extend(part)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(
        self, index: slice[int | None, int | None, int | None]
    ) -> Sequence[R]: ...

    def __getitem__(
        self, index: int | slice[int | None, int | None, int | None]
    ) -> R | Sequence[R]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step == 1:
                return self._cut(first, last)
            return [self[position] for position in range(first, last, step)]
        position = range(len(self))[index]  # also counts from the end
        # The first part that ends behind the position.
        number = bisect_right(self._ends, position)
        return self.parts[number][position - self._ends[number]]

    def __iter__(self) -> Iterator[R]:
        return chain.from_iterable(self.parts)

    def append(self, row: R) -> None:
        """Add a row."""
        # Single rows gather in one list behind a column.
        last = self.parts[-1] if self.parts else None
        if type(last) is list:
            last.append(row)
            self._ends[-1] += 1
        else:
            self.parts.append([row])
            self._ends.append(len(self) + 1)

    def extend(self, rows: Iterable[R]) -> None:
        """Add rows. A column stays one."""
        if isinstance(rows, Chain):
            for part in rows.parts:
                self.extend(part)
            return
        part = rows if isinstance(rows, Column) else list(rows)
        if len(part):
            self.parts.append(part)
            self._ends.append(len(self) + len(part))

    def _cut(self, first: int, last: int) -> Chain[R]:
        """The rows from one index up to another. Columns stay columns."""
        if (first, last) == (0, len(self)):
            return self
        rows: Chain[R] = Chain()
        begin = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            low = max(first, begin) - begin
            high = min(last, end) - begin
            if low < high:
                if (low, high) == (0, len(part)):
                    rows.extend(part)
                elif isinstance(part, Column):
                    rows.extend(part.cut(low, high))
                else:
                    rows.extend(part[low:high])
            begin = end
        return rows


def row_parts(rows: Sequence[R]) -> Sequence[Sequence[R]]:
    """The columns and the lists that rows consist of."""
    return rows.parts if isinstance(rows, Chain) else (rows,)


def row_looks(rows: Sequence[R]) -> Sequence[R]:
    """For each row one that looks the same, as `Column.looks` has it; the row itself
    outside of columns.
    """
    examples: list[R] = []
    for part in row_parts(rows):
        examples += part.looks if isinstance(part, Column) else part
    return examples


# --- columns of numbers in bytes ------------------------------------------------------


def pack_numbers(column: array[int]) -> bytes:
    """The bytes of each number, the lowest first."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def unpack_numbers(code: str, raw: bytes | bytearray) -> array[int]:
    """The numbers whose bytes these are, the lowest first."""
    column = array(code, bytes(raw))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def field_bytes(data: bytes, offset: int, width: int, stride: int) -> bytes:
    """So many bytes at an offset of each `stride` bytes, one behind the other."""
    # One slice with a step takes the same byte of every row at once, in C. A loop over
    # the rows would run in Python, once for each tensor.
    fields = bytearray(len(data) // stride * width)
    for byte in range(width):
        fields[byte::width] = data[offset + byte :: stride]
    return bytes(fields)
