"""Streams of gzip, zlib, bzip2 and xz around a pickle, as joblib and people write them.

A compressed pickle is recognised by what it holds.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Protocol

from ckpt.errors import UnreadableError
from ckpt.formats.common.early import LOOKED, OPCODES, is_pickle_or_runs, look, skipped
from ckpt.formats.common.pickled import is_pickle
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.rows import NamedTuple

_FIRST, _STEP = 1 << 12, 1 << 20
"""Bytes of a stream that are read first, because many short ones may follow each other, and in the end."""
_STREAMS = 100_000
"""The most streams that follow each other. bgzip begins one every 64 KiB, pbzip2 every 900 kB."""
_HEAD = 6
"""The longest of the first bytes that say how a file is compressed."""
_ERRORS = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error)


class _Machine(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class Packing(NamedTuple):
    """A compression of files: its name, and the Python that opens such a file."""

    name: str
    opener: str


_MAGICS = {
    b"\x1f\x8b": Packing("gzip", "gzip.open({path})"),
    b"BZh": Packing("bzip2", "bz2.open({path})"),
    b"\xfd7zXZ\0": Packing("xz", "lzma.open({path})"),
    b"]\0\0": Packing("lzma", "lzma.open({path})"),
}
_ZLIB = Packing("zlib", "")


def packing(head: bytes) -> Packing | None:
    """Return the compression of a file that begins with these bytes, or None for any other file."""
    magic_packing = next((how for magic, how in _MAGICS.items() if head.startswith(magic)), None)
    is_zlib = len(head) > 1 and head[0] == 0x78 and not (head[0] * 256 + head[1]) % 31
    return magic_packing or (_ZLIB if is_zlib else None)


def beginning(source: Source, how: Packing, size: int) -> bytes | None:
    """The first `size` bytes inside or somewhat more; fewer where the stream ends or is damaged.

    None where the first megabyte of a file holds nothing.
    """
    content = bytearray()
    try:
        for piece, position in _pieces(source, how):
            content += piece
            if len(content) >= size or position > _STEP:
                return bytes(content) or None
    except (UnreadableError, *_ERRORS):
        pass  # reading it whole says what is wrong
    return bytes(content)


class Unpacked(NamedTuple):
    """The bytes inside a file, and how many bytes of the file follow its last stream."""

    data: bytes
    left: int


def unpacked(source: Source, how: Packing, budget: Budget) -> Unpacked:
    """All bytes inside, of all streams that follow each other, as Python reads them.

    Raises UnreadableError for a damaged stream, LimitError for one that holds too much.
    """
    content, end = bytearray(), 0
    try:
        for piece, position in _pieces(source, how):
            end = position
            budget.charge(len(piece), "the pickle")
            content += piece
            budget.check(len(content))
    except _ERRORS:
        raise UnreadableError(f"damaged {how.name} stream") from None
    return Unpacked(bytes(content), source.size - end)


def _pieces(source: Source, how: Packing) -> Iterator[tuple[bytes, int]]:
    """Yield the content piece by piece, each with the offset up to which the file was read.

    The last pair has the offset where the last stream ends.
    """
    position = 0
    for _ in range(_STREAMS):
        machine, step = _machine(how), _FIRST
        while not machine.eof:
            data = source.read(position, min(step, source.size - position)) if machine.needs_input else b""
            if machine.needs_input and not data:
                raise UnreadableError(
                    f"cut off: the {how.name} stream does not end, the file does at {position:,} bytes"
                )
            position += len(data)
            step = min(2 * step, _STEP)
            yield machine.decompress(data, _STEP), position
        position -= len(machine.unused_data)
        if packing(source.read(position, min(_HEAD, source.size - position))) != how:
            yield b"", position
            return
    raise UnreadableError(f"over {_STREAMS:,} {how.name} streams follow each other")


class _Zlib:
    """zlib's machine with the face of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(47)  # zlib or gzip

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _machine(how: Packing) -> _Machine:
    if how.name in ("gzip", "zlib"):
        return _Zlib()
    return bz2.BZ2Decompressor() if how.name == "bzip2" else lzma.LZMADecompressor()


_INSIDE = 1 << 16


def is_packed(head: bytes, source: Source, limits: Limits) -> bool:
    """Tell whether a file that begins with these bytes is a compressed pickle."""
    how = packing(head)
    inside = b"" if how is None else beginning(source, how, _INSIDE)
    if not inside:
        return inside is None  # a megabyte that becomes nothing: no honest file, and it may go on
    if is_pickle(inside):
        return True
    if inside[0] not in OPCODES:
        return False
    verdict = is_pickle_or_runs(inside, len(inside), limits)
    return verdict is True or (verdict is None and how is not None and _goes_on(source, how, limits))


def _goes_on(source: Source, how: Packing, limits: Limits) -> bool:
    """Tell whether a pickle that goes on behind the first bytes inside a file is one, as far as that is known."""
    inside = beginning(source, how, LOOKED) or b""
    verdict, offset = look(inside, len(inside), limits)
    length = None if verdict is not None else skipped(inside, offset)
    if verdict is not None or len(inside) < LOOKED:
        return verdict is True
    return length is None or _holds(source, how, offset + length)


def _holds(source: Source, how: Packing, size: int) -> bool:
    """Tell whether a file holds as many bytes inside. They are counted and not kept."""
    count = 0
    try:
        for piece, _ in _pieces(source, how):
            count += len(piece)
            if count >= size:
                return True
    except (UnreadableError, *_ERRORS):
        pass
    return False
