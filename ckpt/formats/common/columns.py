"""The directory of an archive of many storages, in columns. Most headers have one
length, one behind the other: their fields are cut out with strides. What is unusual is
looked at alone, by `formats.directory`.

What opening a large archive will read is foreseen here too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import repeat
from operator import add, sub

from ckpt.bytes.far import Far
from ckpt.bytes.source import BaseSource, Source, underlying_file
from ckpt.formats.common.directory import FOLDER, REFUSED_FLAGS, Records, data_offset
from ckpt.formats.common.zip_layout import (
    CENTRAL,
    CENTRAL_AT,
    CENTRAL_MAGIC,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_AT,
    LOCAL_MAGIC,
    MARK32,
    LocalHeader,
    central_header,
    read_zip64,
)
from ckpt.model.columns import field_bytes, unpack_numbers
from ckpt.model.errors import UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

_LEAST, _FIRST, _MOST = 8, 8, 16_384
"""Headers of one length that are worth columns, that are compared first, and the most
that are cut at once.
"""
_NEAR, _BLOCK = 4_096, 256 * 1024
"""Local headers this close are read together, up to this many bytes at once."""


def read_alike(
    records: Records,
    source: Source,
    data: bytes,
    position: int,
    most: int,
    directory: int,
) -> tuple[int, int]:
    """See `directory.ReadAlike`."""
    run, stride = _find_run(data, position, most)
    if run >= _LEAST and _add_run(
        records, source, data[position : position + run * stride], run, directory
    ):
        return position + run * stride, 0
    return position, max(run, 1)


def _find_run(data: bytes, position: int, most: int) -> tuple[int, int]:
    """Return (the number of headers that follow an offset and are alike, the bytes of
    each).

    They have the signature and the lengths of the first.
    """
    lengths = data[position + CENTRAL_AT["names"] : position + CENTRAL_AT["disk"]]
    stride = CENTRAL.size + sum(
        int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2, 4)
    )
    most = min(most, _MOST, (len(data) - position) // stride)
    # Few are compared first, then twice as many: headers that differ soon cost no more
    # than they hold.
    run, tried = 0, min(most, _FIRST)
    while True:
        run += _count_alike(data, position + run * stride, tried - run, stride, lengths)
        if run < tried or tried == most:
            return run, stride
        tried = min(2 * tried, most)


def _count_alike(
    data: bytes, position: int, most: int, stride: int, lengths: bytes
) -> int:
    """Count the headers from an offset on that have the signature and these lengths, up
    to `most`.
    """
    span = data[position : position + most * stride]
    for offset, wanted in (
        *enumerate(CENTRAL_MAGIC),
        *enumerate(lengths, CENTRAL_AT["names"]),
    ):
        column = span[offset::stride]
        most = min(most, len(column) - len(column.lstrip(bytes((wanted,)))))
        span = span[: most * stride] if most < len(column) else span
    return most


def _has_mark(fields: bytes) -> bool:
    """Tell whether one of these fields of four bytes says that zip64 holds the
    number.
    """
    return 0xFF in fields[3::4] and MARK32 in unpack_numbers("I", fields)


def _add_run(
    records: Records, source: Source, data: bytes, run: int, directory: int
) -> bool:
    """Add headers of one length; False, and nothing, where one of them has to be looked
    at alone.
    """
    stride = len(data) // run
    first = central_header(data, 0)
    assert first is not None
    length, extras = first.names, first.extras
    begin, width = CENTRAL.size, LOCAL.size + length
    flags, methods, disks = (
        field_bytes(data, CENTRAL_AT[name], 2, stride)
        for name in ("flags", "method", "disk")
    )
    stored, full, starts = (
        field_bytes(data, CENTRAL_AT[name], 4, stride)
        for name in ("stored", "full", "header")
    )
    if (
        disks.strip(b"\0")
        or methods.strip(b"\0")
        or stored != full
        or _has_mark(full)
        or directory < width
    ):
        return False
    for position, refused in enumerate(REFUSED_FLAGS.to_bytes(2, "little")):
        if any(flag & refused for flag in set(flags[position::2])):
            return False
    if any(mark & FOLDER for mark in set(data[CENTRAL_AT["attributes"] :: stride])):
        return False
    headers = array("Q", unpack_numbers("I", starts))
    if _has_mark(starts):
        # Beyond 4 GiB: one field of zip64 with the offset alone, which all of them
        # have.
        extra = begin + length
        if extras != 12 or starts.strip(b"\xff") or data[extra::stride].strip(b"\1"):
            return False
        if any(
            data[extra + byte :: stride].strip(bytes((wanted,)))
            for byte, wanted in ((1, 0), (2, 8), (3, 0))
        ):
            return False
        starts = field_bytes(data, extra + 4, 8, stride)
        if not starts[7::8].isascii():  # 2**63 and more
            return False
        headers = unpack_numbers("Q", starts)
    letters = [data[begin + index :: stride] for index in range(length)]
    joined = bytearray(run * (length + 1))
    for position, column in enumerate(letters):
        joined[position :: length + 1] = column
    if max(headers) > directory - width or joined.count(0) != run:
        return False
    try:
        names = joined[:-1].decode("utf-8").split("\0")
    except UnicodeDecodeError:
        return False
    local = _local_headers(source, headers, width)
    usual = (
        *enumerate(LOCAL_MAGIC),
        *enumerate(bytes(2), LOCAL_AT["method"]),
        *enumerate(length.to_bytes(2, "little"), LOCAL_AT["names"]),
    )
    if any(
        local[position::width].strip(bytes((wanted,))) for position, wanted in usual
    ):
        return False
    for name in ("stored", "full"):
        here = field_bytes(local, LOCAL_AT[name], 4, width)
        if here == stored:
            continue
        # With a data descriptor (bit 3) the sizes follow the data, and 0 is here.
        if here.strip(b"\0") or not all(
            flag & HAS_DESCRIPTOR for flag in set(flags[::2])
        ):
            rows = zip(
                unpack_numbers("I", here),
                unpack_numbers("I", stored),
                flags[::2],
                strict=True,
            )
            if any(
                recorded != real and (recorded or not flag & HAS_DESCRIPTOR)
                for recorded, real, flag in rows
            ):
                return False
    if any(
        local[LOCAL.size + index :: width] != column
        for index, column in enumerate(letters)
    ):
        return False
    extras_here = unpack_numbers("H", field_bytes(local, LOCAL_AT["extras"], 2, width))
    offsets = array("Q", map(add, map(add, headers, repeat(width)), extras_here))
    sizes = array("Q", unpack_numbers("I", stored))
    if max(map(add, offsets, sizes)) > directory:
        return False
    records.names += names
    records.offsets += offsets
    records.stored += sizes
    records.sizes += sizes
    records.headers += headers
    records.methods += unpack_numbers("H", methods)
    records.checksums += unpack_numbers(
        "I", field_bytes(data, CENTRAL_AT["crc"], 4, stride)
    )
    records.flags += unpack_numbers("H", flags)
    return True


def _local_headers(source: Source, starts: array[int], count: int) -> bytes:
    """The first `count` bytes of each local header, in order. Neighbours are read
    together.
    """
    headers: list[bytes] = []
    total = len(starts)
    gaps = array("q", map(sub, starts[1:], starts))
    is_near = not gaps or (min(gaps) >= 0 and max(gaps) <= _NEAR)
    index = 0
    while index < total:
        first = starts[index]
        if is_near:
            end = bisect_left(starts, first + _BLOCK, index + 1)
        else:
            end = index + 1
            while (
                end < total
                and 0 <= starts[end] - starts[end - 1] <= _NEAR
                and starts[end] - first < _BLOCK
            ):
                end += 1
        block = source.read(first, starts[end - 1] - first + count)
        headers += [
            block[start - first : start - first + count] for start in starts[index:end]
        ]
        index = end
    return b"".join(headers)


_ALIGNED = 64
_BEHIND = frozenset((0, 12, 16, 20, 24))
"""Bytes between data and the next local header: nothing, or a data descriptor."""
_LEAD = 4096
"""A local header at most this far before its data is read together with it."""


class _Row(NamedTuple):
    """The fields of a record in the directory, and the offset where its data is
    foreseen.
    """

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
    """An archive whose local headers are those that its directory foretells; the rest
    of a span is empty.

    A header that cannot be foretold is read. The others are checked when the data
    behind them is read.
    """

    def __init__(
        self, source: Source, far: Far, rows: list[_Row], directory: int
    ) -> None:
        self.name, self.size = source.name, source.size
        rows = sorted(rows, key=lambda row: row.header)
        after = [row.header for row in rows[1:]] + [directory]
        sure = [
            row
            for row, end in zip(rows, after, strict=True)
            if row.data > 0 and end - row.data - row.stored in _BEHIND
        ]
        certain = {row.header for row in sure}
        others = [
            (row.header, LOCAL.size + len(row.raw))
            for row in rows
            if row.header not in certain
        ]
        texts = {row.header: _expected_header(row) for row in sure}
        texts |= {
            header: data
            for (header, _), data in zip(others, source.read_many(others), strict=True)
        }
        self._begins = sorted(texts)
        self._texts = texts
        self._set_rows(sure, underlying_file(source, 0)[1], directory)
        far.claim(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle a claim: another process checks the headers, it does not open the
        archive again.
        """
        return _make_foreseen, (
            self.name,
            self.size,
            self._base,
            self._directory,
            self._rows,
        )

    def _set_rows(self, rows: list[_Row], base: int, directory: int) -> None:
        self._rows, self._base, self._directory = rows, base, directory
        self.begin, self.end = base, base + directory
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
                header = read(row.header + self._base, LOCAL.size + len(row.raw))
                if data_offset(_Bytes(header), *row[:-1], self._directory) != row.data:
                    name = show(row.raw.decode("utf-8", "replace"), 80)
                    raise UnreadableError(
                        (
                            f"record {name} does not begin where the directory of the "
                            "archive foretells"
                        ),
                        path=self.name,
                        hint="ckpt reads a local copy of it",
                    )
                self._is_checked[index] = True
            index += 1


def _make_foreseen(
    name: str, size: int, base: int, directory: int, rows: list[_Row]
) -> Foreseen:
    """Make the source that checks the headers of an archive in another process."""
    source = Foreseen.__new__(Foreseen)
    source.name, source.size = name, size
    source._set_rows(rows, base, directory)
    return source


def _expected_header(row: _Row) -> bytes:
    extra = row.data - row.header - LOCAL.size - len(row.raw)
    sizes = (min(row.stored, MARK32), min(row.full, MARK32))
    header = LocalHeader(
        LOCAL_MAGIC, 0, row.flags, row.method, 0, 0, *sizes, len(row.raw), extra
    )
    return header.as_bytes() + row.raw


def foreseen(source: Source, data: bytes, count: int, directory: int) -> Source:
    """Return a `Foreseen` to read the local headers from.

    Return the source itself if its reads are cheap or its directory is damaged.
    """
    far = underlying_file(source, 0)[0].far
    if far is None:
        return source
    rows: list[_Row] = []
    position = 0
    for _ in range(count):
        entry = central_header(data, position)
        if entry is None:
            return source
        raw = entry.name_in(data, position)
        full, stored, header = entry.full, entry.stored, entry.header
        if MARK32 in (stored, full, header):
            full, stored, header = read_zip64(
                entry.extra_in(data, position), full, stored, header, ""
            )
        position += entry.nbytes
        # The padding is a field with a head of its own.
        start = header + LOCAL.size + entry.names + 4
        if stored >= MARK32 or header >= MARK32:
            start += 4 + 16 * (stored >= MARK32) + 8 * (header >= MARK32)
        place = -(-start // _ALIGNED) * _ALIGNED
        if place + stored > directory:
            place = -1
        rows.append(_Row(raw, entry.flags, entry.method, stored, full, header, place))
    if any(row.header + LOCAL.size + len(row.raw) > directory for row in rows):
        return source
    return Foreseen(source, far, rows, directory)
