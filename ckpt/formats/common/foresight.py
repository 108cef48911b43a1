"""The local headers of an archive on another machine, foreseen from its directory: torch places data by a rule.

Thousands of small reads would be thousands of requests. So the place of a record is foreseen, and its real local header is
compared when its data is read: the promise that offsets come from local headers holds for every byte that is used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from ckpt.errors import UnreadableError
from ckpt.formats.common.directory import (
    CENTRAL,
    CENTRAL_MAGIC,
    LOCAL_HEADER,
    LOCAL_MAGIC,
    data_offset,
    zip64,
)
from ckpt.io.far import Far
from ckpt.io.source import BaseSource, Source, grounded
from ckpt.rows import NamedTuple
from ckpt.text import show

_ALIGNED = 64
_MARK = 0xFFFFFFFF
_BEHIND = frozenset((0, 12, 16, 20, 24))
"""Bytes between data and the next local header: nothing, or a data descriptor."""
_LEAD = 4096
"""A local header at most this far before its data is read together with it."""


class _Row(NamedTuple):
    """What the directory says of a record, and where its data is foreseen."""

    raw: bytes
    flags: int
    method: int
    stored: int
    full: int
    header: int
    data: int


class _Bytes(BaseSource):
    """The bytes of one local header, at its offset."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, count: int) -> bytes:
        return self._data[:count]


class Foreseen(BaseSource):
    """An archive whose local headers are those that its directory foretells; the rest of a span is empty.

    A header that cannot be foretold is read. The others are checked when the data behind them is read.
    """

    def __init__(self, source: Source, far: Far, rows: list[_Row], directory: int) -> None:
        self.name, self.size = source.name, source.size
        rows = sorted(rows, key=lambda row: row.header)
        after = [row.header for row in rows[1:]] + [directory]
        sure = [
            row
            for row, end in zip(rows, after, strict=True)
            if row.data > 0 and end - row.data - row.stored in _BEHIND
        ]
        known = {row.header for row in sure}
        others = [(row.header, LOCAL_HEADER.size + len(row.raw)) for row in rows if row.header not in known]
        texts = {row.header: _header(row) for row in sure}
        texts |= {header: data for (header, _), data in zip(others, source.read_many(others), strict=True)}
        self._begins = sorted(texts)
        self._texts = texts
        self._claim(sure, grounded(source, 0)[1], directory)
        far.claim(self)

    def __reduce__(self) -> tuple[object, ...]:
        """As a claim: another process checks the headers, it does not open the archive again."""
        return _claimed, (self.name, self.size, self._base, self._directory, self._rows)

    def _claim(self, rows: list[_Row], base: int, directory: int) -> None:
        self._rows, self._base, self._directory = rows, base, directory
        self._data = [row.data for row in rows]
        self._is_checked = bytearray(len(rows))

    def read(self, offset: int, count: int) -> bytes:
        out = bytearray(count)
        first = bisect_left(self._begins, offset)
        for begin in self._begins[first : bisect_left(self._begins, offset + count)]:
            text = self._texts[begin][: offset + count - begin]
            out[begin - offset : begin - offset + len(text)] = text
        return bytes(out)

    def lead(self, offset: int) -> int:
        index = bisect_left(self._data, offset - self._base)
        if index == len(self._rows) or self._is_checked[index]:
            return offset
        row = self._rows[index]
        return (
            row.header + self._base
            if row.data + self._base == offset <= row.header + self._base + _LEAD
            else offset
        )

    def check(self, offset: int, end: int, read: Callable[[int, int], bytes]) -> None:
        offset, end = offset - self._base, end - self._base
        index = max(0, bisect_right(self._data, offset) - 1)
        while index < len(self._rows) and self._data[index] < end:
            row = self._rows[index]
            if not self._is_checked[index] and offset < row.data + row.stored:
                header = read(row.header + self._base, LOCAL_HEADER.size + len(row.raw))
                if data_offset(_Bytes(header), *row[:-1], self._directory) != row.data:
                    name = show(row.raw.decode("utf-8", "replace"), 80)
                    raise UnreadableError(
                        f"record {name} does not begin where the directory of the archive foretells",
                        path=self.name,
                        hint="ckpt reads a local copy of it",
                    )
                self._is_checked[index] = True
            index += 1


def _claimed(name: str, size: int, base: int, directory: int, rows: list[_Row]) -> Foreseen:
    """What checks the headers of an archive in another process."""
    made = Foreseen.__new__(Foreseen)
    made.name, made.size = name, size
    made._claim(rows, base, directory)
    return made


def _header(row: _Row) -> bytes:
    extra = row.data - row.header - LOCAL_HEADER.size - len(row.raw)
    sizes = (min(row.stored, _MARK), min(row.full, _MARK))
    start = LOCAL_HEADER.pack(LOCAL_MAGIC, row.flags, row.method, *sizes, len(row.raw), extra)
    return start + row.raw


def foreseen(source: Source, data: bytes, count: int, directory: int) -> Source:
    """What to read the local headers from: the source itself where reads are cheap, or its directory is damaged."""
    far = grounded(source, 0)[0].far
    if far is None:
        return source
    rows: list[_Row] = []
    at = 0
    for _ in range(count):
        if at + CENTRAL.size > len(data):
            return source
        magic, flags, method, _, stored, full, names, extras, comment, _, _, header = CENTRAL.unpack_from(
            data, at
        )
        begin = at + CENTRAL.size
        at = begin + names + extras + comment
        if magic != CENTRAL_MAGIC or at > len(data):
            return source
        raw = data[begin : begin + names]
        if _MARK in (stored, full, header):
            full, stored, header = zip64(
                data[begin + names : begin + names + extras], full, stored, header, ""
            )
        start = header + LOCAL_HEADER.size + names + 4  # the padding is a field with a head of its own
        if stored >= _MARK or header >= _MARK:
            start += 4 + 16 * (stored >= _MARK) + 8 * (header >= _MARK)
        place = -(-start // _ALIGNED) * _ALIGNED
        if place + stored > directory:
            place = -1
        rows.append(_Row(raw, flags, method, stored, full, header, place))
    if any(row.header + LOCAL_HEADER.size + len(row.raw) > directory for row in rows):
        return source
    return Foreseen(source, far, rows, directory)
