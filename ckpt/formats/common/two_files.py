"""A file that is two: what another loader would find in bytes that ckpt reads as one
checkpoint.

A zip archive is found from its end, a stream of gzip, bzip2, xz or zlib and a
flatbuffer by their first bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.bytes.source import Source, underlying_file
from ckpt.formats.common.archive import FLATBUFFERS, TRAILING
from ckpt.formats.common.packed import is_packed, packing
from ckpt.formats.common.zip_layout import (
    CENTRAL,
    CENTRAL_MAGIC,
    END,
    END64,
    END_MAGIC,
    LOCAL_MAGIC,
    LOCATOR,
    MARK32,
    EndRecord64,
    end_record,
    end_record64,
    iterate_entries,
    locator_before,
)
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Limits

_LOOKED_AT = 64
"""The most end records that are looked at."""
_DIRECTORY = 1 << 20
"""The most bytes of a directory that are searched for names."""
_BY_ZIPFILE = (b".pth", b"serialized_exported_program.json")
"""Endings of the records that loaders find by zipfile of Python: Stable-Baselines3, and
torch.export of torch 2.1 to 2.7.
"""


def refuse_second(head: bytes, source: Source, limits: Limits) -> None:
    """Raise UnreadableError where a file that is no pickle is another one too, by its
    first bytes or from its end.
    """
    if packing(head) is not None and is_packed(head, source, limits):
        raise UnreadableError(
            "two files in one: behind a header of a compressed stream lies a pickle, "
            "which joblib runs"
        )
    refuse_end(source)


def refuse_end(source: Source) -> None:
    """Raise UnreadableError where torch finds a zip archive from the end of a file, or
    a flatbuffer in its first bytes.
    """
    # The mark of a flatbuffer stands behind the four bytes of an offset.
    if source.read(0, min(source.size, 8))[4:] in FLATBUFFERS:
        raise UnreadableError(
            "two files in one: torch.jit.load reads a flatbuffer of the mobile "
            "interpreter"
        )
    for begin, size, is_shifted in directories(source):
        # torch finds a directory where its numbers lead. zipfile finds the others too,
        # and some loaders look for records of these names by it.
        names = names_of(source, begin, size) if is_shifted else ()
        if not is_shifted or any(name.endswith(_BY_ZIPFILE) for name in names):
            raise UnreadableError(
                "two files in one: a zip archive lies in its last bytes, and torch "
                "finds it"
            )


def directories(source: Source) -> Iterator[tuple[int, int, bool]]:
    """Yield (offset, bytes, whether its own numbers lead elsewhere) of each directory
    of an archive near the end.

    torch goes by the numbers, zipfile of Python by where the directory lies. Behind a
    URL nothing is asked for: the loaders of archives read files.
    """
    if underlying_file(source, 0)[0].far is not None:
        return
    # A file that begins as an archive is read as one: that is no second file.
    if source.size < END.size or source.read(0, 4) == LOCAL_MAGIC:
        return
    span = min(source.size, TRAILING + END.size)
    # An end record lies before at most a comment and a few bytes more.
    tail = source.read(source.size - span, span)
    position = tail.rfind(END_MAGIC)
    for _ in range(_LOOKED_AT):
        if position < 0:
            return
        # A mark at the very end has no room for its record.
        if position + END.size <= span:
            record = end_record(tail, position)
            yield from _directories_at(
                source, source.size - span + position, record.size, record.offset
            )
        position = tail.rfind(END_MAGIC, 0, position)


def _directories_at(
    source: Source, end: int, size: int, offset: int
) -> Iterator[tuple[int, int, bool]]:
    places: list[tuple[int, EndRecord64 | None]] = [*_end_records64(source, end)]
    # Without zip64 a directory ends where its end record begins.
    for begin, wide in places or [(end, None)]:
        if wide is not None:
            size, offset = wide.size, wide.offset
        if _is_directory(source, offset, size):
            yield offset, size, False
        elif _is_directory(source, begin - size, size):
            yield begin - size, size, True


def _end_records64(source: Source, end: int) -> list[tuple[int, EndRecord64]]:
    """(offset, record) of the end records of zip64 where the locator before an end
    record says, and right before that.
    """
    locator = locator_before(source, end)
    if locator is None:
        return []
    places = dict.fromkeys((locator.end64, end - LOCATOR.size - END64.size))
    records = ((place, end_record64(source, place)) for place in places)
    return [(place, record) for place, record in records if record is not None]


def _is_directory(source: Source, begin: int, size: int) -> bool:
    is_inside = begin >= 0 and size >= CENTRAL.size and begin + size <= source.size
    return is_inside and source.read(begin, 4) == CENTRAL_MAGIC


def names_of(source: Source, begin: int, size: int) -> Iterator[bytes]:
    """Yield the names in a directory, as far as it is one."""
    data = source.read(begin, min(size, _DIRECTORY))
    for position, entry in iterate_entries(data):
        yield entry.name_in(data, position)


def headers_of(source: Source, begin: int, size: int) -> list[bool]:
    """Tell of each record in a directory, by its place in the file, whether a header
    lies where the directory says.
    """
    data = source.read(begin, min(size, _DIRECTORY))
    places = sorted(
        entry.header for _, entry in iterate_entries(data) if entry.header != MARK32
    )
    return [
        place + 4 <= source.size and source.read(place, 4) == LOCAL_MAGIC
        for place in places
    ]
