"""The directory of a zip archive in columns. Most records of a checkpoint have headers of one length, one behind the other:
their fields are cut out with strides, and a Record is made when it is asked for.

Layout: PKWARE APPNOTE 6.3; what torch accepts: caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from operator import add, le, sub
from struct import Struct

from ckpt.errors import CutOffError, UnreadableError
from ckpt.io.source import Source, grounded
from ckpt.rows import NamedTuple
from ckpt.tensors import Range
from ckpt.text import show

LOCAL_HEADER = Struct("<4s2xHH8xIIHH")  # signature, flags, method, stored, full, name length, extra length
CENTRAL = Struct(
    "<4s4xHH4xIIIHHHH2xII"
)  # the same with crc, comment length, disk, offset of the local header
LOCAL_MAGIC, CENTRAL_MAGIC = b"PK\x03\x04", b"PK\x01\x02"
_FOLDER = 0x10
"""The bit of the external attributes that marks a folder to torch (miniz, `mz_zip_reader_is_file_a_directory`)."""
_REFUSED_FLAGS = 0x2061  # encrypted, patched, strongly encrypted, masked headers
_LEAST, _MOST = 8, 65_536
"""Headers of one length that are worth columns, and how many are cut at once."""
_AROUND = 16
"""Records that an archive has besides its storages, or somewhat more."""
_MARK = 0xFFFFFFFF
_NEAR, _BLOCK = 4_096, 256 * 1024
"""Local headers this close are read together, up to this many bytes at once."""


class Record(NamedTuple):
    """One file of the archive. Its data begins at `offset` and takes `stored` bytes there."""

    name: str
    offset: int
    stored: int
    size: int
    deflated: bool
    crc: int | None
    header: int
    flags: int = 0

    def place(self, source: Source, *, big: bool = False) -> Range:
        file, offset = grounded(source, self.offset)
        return Range(file, offset, self.stored, self.size if self.deflated else None, big)


class Records(Mapping[str, Record]):
    """The records of an archive by name, in the order of its directory. Sizes and offsets are in bytes.

    A checksum of 0 of a record with data is none: torch writes it when it computes no CRC
    (set_crc32_options(False)).
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.offsets, self.stored, self.sizes, self.headers = (array("Q") for _ in range(4))
        self.methods, self.checksums, self.flags = array("H"), array("I"), array("H")
        self._index: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __getitem__(self, name: str) -> Record:
        return self.at(self.index[name])

    @property
    def index(self) -> dict[str, int]:
        """The position of each name. Of two equal names, which no reader accepts, the last."""
        if self._index is None or len(self._index) != len(self.names):
            self._index = dict(zip(self.names, range(len(self.names)), strict=True))
        return self._index

    def any_below(self, folder: str) -> bool:
        """Whether a name begins with that of a folder, which ends with a slash."""
        return f"\0{folder}" in "\0".join(["", *self.names])

    def find(self, name: str, near: int) -> int:
        """The position of a name, looked for a little behind `near` and at the end at first; -1 where there is none."""
        names, count = self.names, len(self.names)
        for at in chain(range(near, min(near + _AROUND, count)), range(max(count - _AROUND, 0), count)):
            if names[at] == name:
                return at
        if self._index is None and name not in names:  # an index of all costs more than a few looks
            return -1
        return self.index.get(name, -1)

    def run(self, names: str, near: int) -> int:
        """Where records with these names follow each other; -1 where they do not. The first is looked for as in `find`.

        `names` has a NUL between two names.
        """
        first, count = self.find(names.partition("\0")[0], near), names.count("\0") + 1
        return first if first >= 0 and "\0".join(self.names[first : first + count]) == names else -1

    def at(self, position: int) -> Record:
        """The record at a position of the directory."""
        size, crc = self.sizes[position], self.checksums[position]
        return Record(
            self.names[position],
            self.offsets[position],
            self.stored[position],
            size,
            self.methods[position] == 8,
            crc if crc or not size else None,
            self.headers[position],
            self.flags[position],
        )

    def add(self, record: Record) -> None:
        """Add a record at the end."""
        self.names.append(record.name)
        self.offsets.append(record.offset)
        self.stored.append(record.stored)
        self.sizes.append(record.size)
        self.headers.append(record.header)
        self.methods.append(8 if record.deflated else 0)
        self.checksums.append(record.crc or 0)
        self.flags.append(record.flags)

    def overlapping(self) -> tuple[str, str] | None:
        """The names of two records of which one begins before the other ends."""
        ends = list(map(add, self.offsets, self.stored))
        if all(map(le, ends, self.headers[1:])):
            return None
        order = sorted(range(len(self)), key=self.headers.__getitem__)
        for before, after in pairwise(order):
            if self.headers[after] < ends[before]:
                return self.names[before], self.names[after]
        return None


def read_records(source: Source, data: bytes, count: int, directory: int) -> Records:
    """The records of a directory of `data` at the offset `directory`. Raises UnreadableError where it is damaged."""
    records = Records()
    at, size = 0, len(data)
    while len(records) < count:
        if at + CENTRAL.size > size:
            raise UnreadableError(f"the zip directory holds fewer records than its count of {count:,}")
        run, stride = _run(data, at, count - len(records))
        if run >= _LEAST and _add_run(records, source, data[at : at + run * stride], run, directory):
            at += run * stride
        else:
            for _ in range(max(run, 1)):
                record, at = _record(source, data, at, directory)
                records.add(record)
    if at != size:
        raise UnreadableError(f"the zip directory holds more records than its count of {count:,}")
    return records


def _run(data: bytes, at: int, most: int) -> tuple[int, int]:
    """(how many headers from an offset on have the signature and the lengths of the first, the bytes of each)."""
    lengths = data[at + 28 : at + 34]
    stride = CENTRAL.size + sum(int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2, 4))
    most = min(most, _MOST, (len(data) - at) // stride)
    # Few are compared first, then twice as many: headers that differ soon cost no more than they hold.
    run, tried = 0, min(most, _LEAST)
    while True:
        run += _like(data, at + run * stride, tried - run, stride, lengths)
        if run < tried or tried == most:
            return run, stride
        tried = min(2 * tried, most)


def _like(data: bytes, at: int, most: int, stride: int, lengths: bytes) -> int:
    """How many headers from an offset on have the signature and these lengths, of at most `most`."""
    span = data[at : at + most * stride]
    for offset, wanted in (*enumerate(CENTRAL_MAGIC), *enumerate(lengths, 28)):
        column = span[offset::stride]
        most = min(most, len(column) - len(column.lstrip(bytes((wanted,)))))
        span = span[: most * stride] if most < len(column) else span
    return most


def _column(code: str, data: bytes, offset: int, stride: int) -> array[int]:
    """The numbers at an offset of each header."""
    width = array(code).itemsize
    raw = bytearray(len(data) // stride * width)
    for byte in range(width):
        raw[byte::width] = data[offset + byte :: stride]
    column = array(code, bytes(raw))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _add_run(records: Records, source: Source, data: bytes, run: int, directory: int) -> bool:
    """Add headers of one length; False, and nothing, where one of them has to be looked at alone."""
    stride = len(data) // run
    length = int.from_bytes(data[28:30], "little")
    extras = int.from_bytes(data[30:32], "little")
    begin = CENTRAL.size
    flags, methods = _column("H", data, 8, stride), _column("H", data, 10, stride)
    stored, full = (_column("I", data, offset, stride) for offset in (20, 24))
    headers: array[int] = _column("I", data, 42, stride)
    if any(_column("H", data, 34, stride)) or any(methods) or stored != full or max(full) == _MARK:
        return False
    if any(flag & _REFUSED_FLAGS for flag in set(flags)) or any(
        mark & _FOLDER for mark in set(data[38::stride])
    ):
        return False
    if max(headers) == _MARK:
        # Beyond 4 GiB: one field of zip64 with the offset alone, which all of them have.
        field = begin + length
        if extras != 12 or min(headers) != _MARK or data[field::stride].strip(b"\1"):
            return False
        if any(
            data[field + byte :: stride].strip(bytes((wanted,))) for byte, wanted in ((1, 0), (2, 8), (3, 0))
        ):
            return False
        headers = _column("Q", data, field + 4, stride)
    raws = [data[at : at + length] for at in range(begin, len(data), stride)]
    joined = b"\0".join(raws)
    if max(headers) + LOCAL_HEADER.size + length > directory or joined.count(b"\0") != run - 1:
        return False
    try:
        names = joined.decode("utf-8").split("\0")
    except UnicodeDecodeError:
        return False
    local = _local_headers(source, headers, LOCAL_HEADER.size + length)
    each = LOCAL_HEADER.size + length
    usual = (*enumerate(LOCAL_MAGIC), (8, 0), (9, 0), *enumerate(data[28:30], 26))
    if any(local[at::each].strip(bytes((wanted,))) for at, wanted in usual):
        return False
    for at in (18, 22):
        sizes = _column("I", local, at, each)
        # With a data descriptor (bit 3) the sizes follow the data, and 0 is here.
        described = not any(sizes) and all(flag & 8 for flag in set(flags))
        if (
            sizes != stored
            and not described
            and any(
                here != real and (here or not flag & 8)
                for here, real, flag in zip(sizes, stored, flags, strict=True)
            )
        ):
            return False
    if any(local[LOCAL_HEADER.size + at :: each] != data[begin + at :: stride] for at in range(length)):
        return False
    offsets = array("Q", map(add, map(each.__add__, headers), _column("H", local, 28, each)))
    if max(map(add, offsets, stored)) > directory:
        return False
    records.names += names
    records.offsets += offsets
    records.stored += array("Q", stored)
    records.sizes += array("Q", full)
    records.headers += array("Q", headers)
    records.methods += methods
    records.checksums += _column("I", data, 16, stride)
    records.flags += flags
    return True


def _local_headers(source: Source, headers: array[int], count: int) -> bytes:
    """The first `count` bytes of each local header, in order. Neighbours are read together."""
    found: list[bytes] = []
    total = len(headers)
    gaps = array("q", map(sub, headers[1:], headers))
    is_near = not gaps or (min(gaps) >= 0 and max(gaps) <= _NEAR)
    at = 0
    while at < total:
        first = headers[at]
        if is_near:
            end = bisect_left(headers, first + _BLOCK, at + 1)
        else:
            end = at + 1
            while end < total and 0 <= gaps[end - 1] <= _NEAR and headers[end] - first < _BLOCK:
                end += 1
        block = source.read(first, headers[end - 1] - first + count)
        found += [block[start - first : start - first + count] for start in headers[at:end]]
        at = end
    return b"".join(found)


def _record(source: Source, data: bytes, at: int, directory: int) -> tuple[Record, int]:
    """The record whose header lies at an offset, and the offset after it. Raises UnreadableError."""
    if at + CENTRAL.size > len(data):
        raise UnreadableError("the zip directory is damaged")
    signature, flags, method, crc, stored, full, names, extras, comment, disk, attributes, header = (
        CENTRAL.unpack_from(data, at)
    )
    begin = at + CENTRAL.size
    at = begin + names + extras + comment
    if signature != CENTRAL_MAGIC or at > len(data):
        raise UnreadableError("the zip directory is damaged")
    raw = data[begin : begin + names]
    name = _decode(raw)
    if disk == 0xFFFF or _MARK in (stored, full, header):
        extra = data[begin + names : begin + names + extras]
        full, stored, header = zip64(extra, full, stored, header, name)
    elif disk:
        raise UnreadableError("the zip archive is split into several parts")
    if flags & _REFUSED_FLAGS:
        raise _refusal(name, " is encrypted or patched")
    if full and attributes & _FOLDER:
        raise _refusal(name, " is marked as a folder but holds data: torch reads it differently")
    if method not in (0, 8):
        raise _refusal(name, f" uses compression method {method}, torch reads only 0 and 8")
    if method == 0 and stored != full:
        raise _refusal(name, " is not compressed but has two sizes")
    checksum = crc if crc or not full else None
    offset = data_offset(source, raw, flags, method, stored, full, header, directory)
    return Record(name, offset, stored, full, method == 8, checksum, header, flags), at


def data_offset(
    source: Source,
    raw: bytes,
    flags: int,
    method: int,
    stored: int,
    full: int,
    header: int,
    directory: int,
) -> int:
    """Where the data of a record begins, after its local header agreed with the directory. Raises UnreadableError."""
    name = raw.decode("utf-8", "replace")
    length = LOCAL_HEADER.size + len(raw)
    if header + length > directory:
        raise _refusal(name, f" begins at byte {header:,}, beyond the data of the archive")
    local = source.read(header, length)
    signature, local_flags, local_method, local_stored, local_full, names, extras = LOCAL_HEADER.unpack_from(
        local
    )
    if signature != LOCAL_MAGIC or names != len(raw) or local_method != method or not local.endswith(raw):
        raise _refusal(name, ": its local header and the directory disagree")
    if local_stored != stored or local_full != full:
        # With a data descriptor (bit 3) the sizes come after the data, and 0 or a zip64 mark is here.
        unknown = (0, _MARK) if (local_flags | flags) & 8 else (_MARK,)
        if local_stored not in (stored, *unknown) or local_full not in (full, *unknown):
            raise _refusal(name, ": its local header and the directory give different sizes")
    offset = header + length + int(extras)
    if offset + stored > directory:
        needed = f"needs bytes {offset:,} to {offset + stored:,}"
        problem = f": cut off, {needed}, the data of the archive ends at {directory:,}"
        raise CutOffError(f"record {show(name, 80)}{problem}")
    return offset


def _refusal(name: str, problem: str) -> UnreadableError:
    return UnreadableError(f"record {show(name, 80)}{problem}")


def _decode(raw: bytes) -> str:
    if b"\0" in raw:
        raise UnreadableError("a record name contains a NUL byte")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(f"a record name is not UTF-8: {show(raw.decode('latin-1'), 80)}") from None


def zip64(extra: bytes, full: int, stored: int, header: int, name: str) -> tuple[int, int, int]:
    """(size, stored size, offset of the local header) with what the field of zip64 holds. Raises UnreadableError."""
    at = 0
    while at + 4 <= len(extra):
        tag, length = (
            int.from_bytes(extra[at : at + 2], "little"),
            int.from_bytes(extra[at + 2 : at + 4], "little"),
        )
        field = extra[at + 4 : at + 4 + length]
        if tag == 1:
            values = [int.from_bytes(field[i : i + 8], "little") for i in range(0, len(field) - 7, 8)]
            wanted = sum(value == _MARK for value in (full, stored, header))
            if len(values) < wanted:
                break
            left = iter(values)
            full = next(left) if full == _MARK else full
            stored = next(left) if stored == _MARK else stored
            header = next(left) if header == _MARK else header
            return full, stored, header
        at += 4 + length
    raise _refusal(name, ": its zip64 field is missing or too short")
