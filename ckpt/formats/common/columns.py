"""The directory of an archive of many storages, in columns. Most headers have one length, one behind the other: their fields
are cut out with strides. What is unusual is looked at alone, by `formats.directory`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import repeat
from operator import add, sub

from ckpt.columns import field, unpacked
from ckpt.formats.common.directory import (
    CENTRAL,
    CENTRAL_MAGIC,
    FOLDER,
    LOCAL_HEADER,
    LOCAL_MAGIC,
    MARK,
    REFUSED_FLAGS,
    Records,
)
from ckpt.io.source import Source

_LEAST, _FIRST, _MOST = 8, 8, 16_384
"""Headers of one length that are worth columns, that are compared first, and the most that are cut at once."""
_NEAR, _BLOCK = 4_096, 256 * 1024
"""Local headers this close are read together, up to this many bytes at once."""


def read_alike(
    records: Records, source: Source, data: bytes, at: int, most: int, directory: int
) -> tuple[int, int]:
    """See `directory.ReadAlike`."""
    run, stride = _run(data, at, most)
    if run >= _LEAST and _add_run(records, source, data[at : at + run * stride], run, directory):
        return at + run * stride, 0
    return at, max(run, 1)


def _run(data: bytes, at: int, most: int) -> tuple[int, int]:
    """(how many headers from an offset on have the signature and the lengths of the first, the bytes of each)."""
    lengths = data[at + 28 : at + 34]
    stride = CENTRAL.size + sum(int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2, 4))
    most = min(most, _MOST, (len(data) - at) // stride)
    # Few are compared first, then twice as many: headers that differ soon cost no more than they hold.
    run, tried = 0, min(most, _FIRST)
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


def _has_mark(fields: bytes) -> bool:
    """Whether one of these fields of four bytes says that zip64 holds the number."""
    return 0xFF in fields[3::4] and MARK in unpacked("I", fields)


def _add_run(records: Records, source: Source, data: bytes, run: int, directory: int) -> bool:
    """Add headers of one length; False, and nothing, where one of them has to be looked at alone."""
    stride = len(data) // run
    length = int.from_bytes(data[28:30], "little")
    extras = int.from_bytes(data[30:32], "little")
    begin, each = CENTRAL.size, LOCAL_HEADER.size + length
    flags, methods, disks = (field(data, offset, 2, stride) for offset in (8, 10, 34))
    stored, full, starts = (field(data, offset, 4, stride) for offset in (20, 24, 42))
    if disks.strip(b"\0") or methods.strip(b"\0") or stored != full or _has_mark(full) or directory < each:
        return False
    for at, refused in enumerate(REFUSED_FLAGS.to_bytes(2, "little")):
        if any(flag & refused for flag in set(flags[at::2])):
            return False
    if any(mark & FOLDER for mark in set(data[38::stride])):
        return False
    headers = array("Q", unpacked("I", starts))
    if _has_mark(starts):
        # Beyond 4 GiB: one field of zip64 with the offset alone, which all of them have.
        extra = begin + length
        if extras != 12 or starts.strip(b"\xff") or data[extra::stride].strip(b"\1"):
            return False
        if any(
            data[extra + byte :: stride].strip(bytes((wanted,))) for byte, wanted in ((1, 0), (2, 8), (3, 0))
        ):
            return False
        starts = field(data, extra + 4, 8, stride)
        if not starts[7::8].isascii():  # 2**63 and more
            return False
        headers = unpacked("Q", starts)
    letters = [data[begin + at :: stride] for at in range(length)]
    joined = bytearray(run * (length + 1))
    for at, column in enumerate(letters):
        joined[at :: length + 1] = column
    if max(headers) > directory - each or joined.count(0) != run:
        return False
    try:
        names = joined[:-1].decode("utf-8").split("\0")
    except UnicodeDecodeError:
        return False
    local = _local_headers(source, headers, each)
    usual = (*enumerate(LOCAL_MAGIC), (8, 0), (9, 0), *enumerate(data[28:30], 26))
    if any(local[at::each].strip(bytes((wanted,))) for at, wanted in usual):
        return False
    for at in (18, 22):
        here = field(local, at, 4, each)
        if here == stored:
            continue
        # With a data descriptor (bit 3) the sizes follow the data, and 0 is here.
        if here.strip(b"\0") or not all(flag & 8 for flag in set(flags[::2])):
            rows = zip(unpacked("I", here), unpacked("I", stored), flags[::2], strict=True)
            if any(said != real and (said or not flag & 8) for said, real, flag in rows):
                return False
    if any(local[LOCAL_HEADER.size + at :: each] != column for at, column in enumerate(letters)):
        return False
    extras_here = unpacked("H", field(local, 28, 2, each))
    offsets = array("Q", map(add, map(add, headers, repeat(each)), extras_here))
    sizes = array("Q", unpacked("I", stored))
    if max(map(add, offsets, sizes)) > directory:
        return False
    records.names += names
    records.offsets += offsets
    records.stored += sizes
    records.sizes += sizes
    records.headers += headers
    records.methods += unpacked("H", methods)
    records.checksums += unpacked("I", field(data, 16, 4, stride))
    records.flags += unpacked("H", flags)
    return True


def _local_headers(source: Source, starts: array[int], count: int) -> bytes:
    """The first `count` bytes of each local header, in order. Neighbours are read together."""
    found: list[bytes] = []
    total = len(starts)
    gaps = array("q", map(sub, starts[1:], starts))
    is_near = not gaps or (min(gaps) >= 0 and max(gaps) <= _NEAR)
    at = 0
    while at < total:
        first = starts[at]
        if is_near:
            end = bisect_left(starts, first + _BLOCK, at + 1)
        else:
            end = at + 1
            while (
                end < total and 0 <= starts[end] - starts[end - 1] <= _NEAR and starts[end] - first < _BLOCK
            ):
                end += 1
        block = source.read(first, starts[end - 1] - first + count)
        found += [block[start - first : start - first + count] for start in starts[at:end]]
        at = end
    return b"".join(found)
