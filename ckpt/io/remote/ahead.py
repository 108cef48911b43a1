"""What opening a zip archive is going to read, guessed from its end. A wrong guess costs a request and changes nothing:
the reader of archives checks every byte that it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

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
    at = directory.find(b"/data.pkl")
    entry = directory.rfind(b"PK\1\2", 0, at) if at >= 0 else -1
    if entry < 0 or entry + _CENTRAL.size > len(directory):
        return
    fields = _CENTRAL.unpack_from(directory, entry)
    stored, names, header = fields[4], fields[6], fields[11]
    begin = 0 if header <= _FRONT else header
    end = min(max(_HEAD, header + names + stored + _AFTER), offset)
    if header < offset and 0 < end - begin <= _MOST:
        yield begin, end - begin


def _directory(tail: bytes, size: int) -> tuple[int, int] | None:
    """(offset, bytes) of the directory of an archive with this end; None for anything else."""
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\5\6":
        return None
    count, offset = _END.unpack_from(tail, at)[5:7]
    if 0xFFFFFFFF in (count, offset) or tail[at - 20 : at - 16] == b"PK\6\7":
        at -= 20 + _END64.size
        if at < 0 or tail[at : at + 4] != b"PK\6\6":
            return None
        count, offset = _END64.unpack_from(tail, at)[8:10]
    return (offset, count) if offset + count == size - len(tail) + at and count <= _MOST else None
