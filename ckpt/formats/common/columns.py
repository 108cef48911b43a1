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

_LEAST = 8
"""The fewest headers of one length that are worth columns."""
_FIRST = 8
"""Headers that are compared first."""
_MOST = 16_384
"""The most headers that are cut at once."""
_NEAR = 4_096
"""Local headers this close are read together."""
_BLOCK = 256 * 1024
"""The most bytes of local headers that are read together."""


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
    if run >= _LEAST:
        end = position + run * stride
        if _add_run(records, source, data[position:end], run, directory):
            return end, 0
    return position, max(run, 1)


def _find_run(data: bytes, position: int, most: int) -> tuple[int, int]:
    """Return (the number of headers that follow an offset and are alike, the bytes of
    each).

    They have the signature and the lengths of the first.
    """
    # The lengths of the name, of the extra fields and of the comment.
    lengths = data[position + CENTRAL_AT["names"] : position + CENTRAL_AT["disk"]]
    stride = CENTRAL.size + sum(unpack_numbers("H", lengths))
    most = min(most, _MOST, (len(data) - position) // stride)
    # Few are compared first, then twice as many: headers that differ soon cost no more
    # than they hold.
    run = 0
    tried = min(most, _FIRST)
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
    wanted_bytes = (
        *enumerate(CENTRAL_MAGIC),
        *enumerate(lengths, CENTRAL_AT["names"]),
    )
    # Column by column: a slice with a stride takes one byte of each header, and what
    # `lstrip` takes away are those that are as wanted.
    for offset, wanted in wanted_bytes:
        column = span[offset::stride]
        alike = len(column) - len(column.lstrip(bytes((wanted,))))
        if alike < len(column):
            most = alike
            span = span[: most * stride]
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
    columns = _Columns(data, run)
    # The local header with the name: what lies behind it is not compared.
    width = LOCAL.size + columns.name_length
    if not columns.are_plain() or directory < width:
        return False
    headers = columns.header_offsets()
    if headers is None or max(headers) > directory - width:
        return False
    letters = columns.letters_of_names()
    names = _split_names(letters, run)
    if names is None:
        return False
    local = _local_headers(source, headers, width)
    if not _agrees(local, width, columns, letters):
        return False
    extras_here = unpack_numbers("H", field_bytes(local, LOCAL_AT["extras"], 2, width))
    offsets = array("Q", map(add, map(add, headers, repeat(width)), extras_here))
    sizes = array("Q", unpack_numbers("I", columns.stored))
    if max(map(add, offsets, sizes)) > directory:
        return False
    records.names += names
    records.offsets += offsets
    records.stored += sizes
    records.sizes += sizes
    records.headers += headers
    records.methods += unpack_numbers("H", columns.methods)
    records.checksums += unpack_numbers("I", columns.read_field("crc", 4))
    records.flags += unpack_numbers("H", columns.flags)
    return True


class _Columns:
    """The fields of the entries of a directory that have one length, each field of all
    entries end to end.
    """

    def __init__(self, data: bytes, count: int) -> None:
        first = central_header(data, 0)
        assert first is not None
        self._data = data
        self._stride = len(data) // count
        self._extras = first.extras
        self.name_length = first.names
        self.flags = self.read_field("flags", 2)
        self.methods = self.read_field("method", 2)
        self.stored = self.read_field("stored", 4)

    def read_field(self, name: str, width: int) -> bytes:
        return field_bytes(self._data, CENTRAL_AT[name], width, self._stride)

    def letters_of_names(self) -> list[bytes]:
        """The letters of all names: the first ones of each, the second ones, …"""
        begin = CENTRAL.size
        return [
            self._data[begin + index :: self._stride]
            for index in range(self.name_length)
        ]

    def are_plain(self) -> bool:
        """Tell whether none of the entries is deflated, large, split or refused, and
        none is marked as a folder.
        """
        full = self.read_field("full", 4)
        if self.read_field("disk", 2).strip(b"\0") or self.methods.strip(b"\0"):
            return False
        if self.stored != full or _has_mark(full):
            return False
        for position, refused in enumerate(REFUSED_FLAGS.to_bytes(2, "little")):
            # Few flags are different: each is looked at once.
            if any(flag & refused for flag in set(self.flags[position::2])):
                return False
        marks = set(self._data[CENTRAL_AT["attributes"] :: self._stride])
        return not any(mark & FOLDER for mark in marks)

    def header_offsets(self) -> array[int] | None:
        """The offsets of the local headers, or None where an entry has to be looked at
        alone.
        """
        starts = self.read_field("header", 4)
        if not _has_mark(starts):
            return array("Q", unpack_numbers("I", starts))
        # Beyond 4 GiB: one field of zip64 with the offset alone, which all of them
        # have.
        extra = CENTRAL.size + self.name_length
        if self._extras != _OFFSET_FIELD or starts.strip(b"\xff"):
            return None
        # Its tag is 1, and its length 8.
        for index, wanted in enumerate(b"\x01\0\x08\0"):
            column = self._data[extra + index :: self._stride]
            if column.strip(bytes((wanted,))):
                return None
        wide_starts = field_bytes(self._data, extra + 4, 8, self._stride)
        # 2**63 and more: the highest byte of a number has its highest bit set.
        if not wide_starts[7::8].isascii():
            return None
        return unpack_numbers("Q", wide_starts)


_OFFSET_FIELD = 12
"""The bytes of an extra field of zip64 that has nothing but an offset."""


def _split_names(letters: list[bytes], count: int) -> list[str] | None:
    """Return the names with these letters, or None where one is not UTF-8 or has a
    NUL.
    """
    width = len(letters) + 1
    # A NUL stays behind each name.
    joined = bytearray(count * width)
    for position, column in enumerate(letters):
        joined[position::width] = column
    if joined.count(0) != count:
        return None
    try:
        return joined[:-1].decode("utf-8").split("\0")
    except UnicodeDecodeError:
        return None


def _agrees(local: bytes, width: int, columns: _Columns, letters: list[bytes]) -> bool:
    """Tell whether local headers of `width` bytes say what their entries say."""
    usual = (
        *enumerate(LOCAL_MAGIC),
        *enumerate(bytes(2), LOCAL_AT["method"]),
        *enumerate(columns.name_length.to_bytes(2, "little"), LOCAL_AT["names"]),
    )
    for position, wanted in usual:
        if local[position::width].strip(bytes((wanted,))):
            return False
    for name in ("stored", "full"):
        sizes = field_bytes(local, LOCAL_AT[name], 4, width)
        if sizes != columns.stored and not _are_open(sizes, columns):
            return False
    for index, column in enumerate(letters):
        if local[LOCAL.size + index :: width] != column:
            return False
    return True


def _are_open(sizes: bytes, columns: _Columns) -> bool:
    """Tell whether each size in a local header is the right one, or 0 where a data
    descriptor behind the data has it.
    """
    # torch writes 0 everywhere, and sets the flag everywhere but for empty records.
    low_flags = columns.flags[::2]
    if not sizes.strip(b"\0") and all(flag & HAS_DESCRIPTOR for flag in set(low_flags)):
        return True
    rows = zip(
        unpack_numbers("I", sizes),
        unpack_numbers("I", columns.stored),
        low_flags,
        strict=True,
    )
    return all(
        here == size or (here == 0 and flag & HAS_DESCRIPTOR)
        for here, size, flag in rows
    )


def _local_headers(source: Source, starts: array[int], count: int) -> bytes:
    """The first `count` bytes of each local header, in order. Neighbours are read
    together.
    """
    headers: list[bytes] = []
    total = len(starts)
    gaps = array("q", map(sub, starts[1:], starts))
    # The headers of small records: where a block ends is found by halving then.
    are_all_near = not gaps or (min(gaps) >= 0 and max(gaps) <= _NEAR)
    index = 0
    while index < total:
        first = starts[index]
        if are_all_near:
            end = bisect_left(starts, first + _BLOCK, index + 1)
        else:
            end = index + 1
            while end < total and _is_next(starts[end - 1], starts[end], first):
                end += 1
        block = source.read(first, starts[end - 1] - first + count)
        headers += [
            block[start - first : start - first + count] for start in starts[index:end]
        ]
        index = end
    return b"".join(headers)


def _is_next(before: int, start: int, first: int) -> bool:
    """Tell whether a header is read with the one before it, in a block from `first`
    on.
    """
    return 0 <= start - before <= _NEAR and start - first < _BLOCK


_ALIGNED = 64
"""torch begins the data of a record at a multiple of so many bytes."""
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
        self.name = source.name
        self.size = source.size
        rows = sorted(rows, key=lambda row: row.header)
        next_headers = [row.header for row in rows[1:]] + [directory]
        # Only where the data ends just before the next header is it certain that it
        # begins where it is foreseen.
        sure = [
            row
            for row, end in zip(rows, next_headers, strict=True)
            if row.data > 0 and end - row.data - row.stored in _BEHIND
        ]
        texts = {row.header: _expected_header(row) for row in sure}
        others = [
            (row.header, LOCAL.size + len(row.raw))
            for row in rows
            if row.header not in texts
        ]
        for (header, _), data in zip(others, source.read_many(others), strict=True):
            texts[header] = data
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
        self._rows = rows
        self._base = base
        self._directory = directory
        self.begin = base
        self.end = base + directory
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
        header = row.header + self._base
        # The header is read with the data behind it: one request brings both.
        if row.data + self._base == offset and offset - header <= _LEAD:
            return header
        return offset

    def check(self, offset: int, end: int, read: Callable[[int, int], bytes]) -> None:
        offset -= self._base
        end -= self._base
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
    # Without `__init__`, which would read headers and make a claim.
    source = Foreseen.__new__(Foreseen)
    source.name = name
    source.size = size
    source._set_rows(rows, base, directory)
    return source


def _expected_header(row: _Row) -> bytes:
    """Return the local header that the directory foretells, with the name."""
    extras = row.data - row.header - LOCAL.size - len(row.raw)
    header = LocalHeader(
        magic=LOCAL_MAGIC,
        needs=0,
        flags=row.flags,
        method=row.method,
        time=0,
        crc=0,
        stored=min(row.stored, MARK32),
        full=min(row.full, MARK32),
        names=len(row.raw),
        extras=extras,
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
            extra = entry.extra_in(data, position)
            full, stored, header = read_zip64(extra, full, stored, header, "")
        position += entry.nbytes
        place = _expected_data(entry.names, stored, header)
        # Not so: then the header is read.
        if place + stored > directory:
            place = -1
        rows.append(_Row(raw, entry.flags, entry.method, stored, full, header, place))
    if any(row.header + LOCAL.size + len(row.raw) > directory for row in rows):
        return source
    return Foreseen(source, far, rows, directory)


def _expected_data(name_length: int, stored: int, header: int) -> int:
    """Return the offset where torch begins the data of a record.

    Source: `PyTorchStreamWriter` in caffe2/serialize/inline_container.cc.
    """
    # The padding is a field with a head of its own.
    start = header + LOCAL.size + name_length + 4
    # A field of zip64 has two sizes, an offset, or all three.
    if stored >= MARK32 or header >= MARK32:
        start += 4
        if stored >= MARK32:
            start += 16
        if header >= MARK32:
            start += 8
    return -(-start // _ALIGNED) * _ALIGNED
