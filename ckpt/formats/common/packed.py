"""Streams of gzip, zlib, bzip2 and xz around a pickle, as joblib and people write them.

A compressed pickle is recognised by what it holds. Streams are read as Python's own
modules read them, also where other programs refuse them: what a loader would unpickle
is what counts.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from struct import unpack_from
from typing import Protocol

from ckpt.bytes.source import Source
from ckpt.formats.common.early import (
    LOOKED,
    OPCODES,
    is_pickle_or_runs,
    look_at_bytes,
    skipped_bytes,
)
from ckpt.formats.common.heads import is_pickle
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple

_FIRST = 1 << 12
"""Bytes of a stream that are read first, because many short ones may follow each
other.
"""
_STEP = 1 << 20
"""Bytes of a stream that are read at once in the end."""
_STREAMS = 100_000
"""The most streams that follow each other. bgzip begins one every 64 KiB, pbzip2 every
900 kB.
"""
_HEAD = 13
"""The most of the first bytes that say how a file is compressed."""
# The modules of Python raise these for damaged streams.
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


_ZLIB = Packing("zlib", "")
_ZF = Packing("ZF", "")
_LZMA = Packing("lzma", "lzma.open({path})")
_MAGICS = {
    b"\x1f\x8b": Packing("gzip", "gzip.open({path})"),
    b"BZh": Packing("bzip2", "bz2.open({path})"),
    b"\xfd7zXZ\0": Packing("xz", "lzma.open({path})"),
    b"ZF": _ZF,
}
_ZF_HEADER = 21
"""Bytes before the stream of zlib in joblib's oldest container: its magic and the size
of its content as text.
"""


def packing(head: bytes) -> Packing | None:
    """Return the compression of a file that begins with these bytes, or None for any
    other file.
    """
    for magic, how in _MAGICS.items():
        if head.startswith(magic):
            return how
    # These two have no magic, so they come last.
    if _is_zlib(head):
        return _ZLIB
    return _LZMA if _is_lzma(head) else None


def _is_zlib(head: bytes) -> bool:
    """Tell whether these bytes begin a stream of zlib, with a window of any size."""
    if len(head) < 2:
        return False
    # Source: RFC 1950. The method is 8, and both bytes as a number are divisible by 31.
    return head[0] & 0x8F == 8 and (head[0] * 256 + head[1]) % 31 == 0


def _is_lzma(head: bytes) -> bool:
    """Tell whether these bytes are the header of a .lzma file that liblzma takes among
    xz files. It has no magic.
    """
    if len(head) < _HEAD:
        return False
    properties, window, size = unpack_from("<BIQ", head)
    # The lowest bit: a window is a power of two, or that and a half.
    low = window & -window
    is_window = window in (0, low, 3 * low, 2**32 - 1)
    # 9 * 5 * 5 sets of properties; liblzma takes no size of 256 GiB or more.
    return properties < 225 and is_window and (size < 2**38 or size == 2**64 - 1)


def beginning(source: Source, how: Packing, size: int) -> bytes | None:
    """The first `size` bytes inside or somewhat more; fewer where the stream ends or is
    damaged.

    None where the first megabyte of a file holds nothing.
    """
    content = bytearray()
    try:
        for piece, position in _unpack_pieces(source, how):
            content += piece
            if len(content) >= size or position > _STEP:
                return bytes(content) or None
    except (UnreadableError, *_ERRORS):
        pass  # reading it whole says what is wrong
    return bytes(content)


def is_broken(source: Source, how: Packing) -> bool:
    """Tell whether a file that begins as a stream holds nothing because it is
    damaged.
    """
    try:
        return any(piece for piece, _ in _unpack_pieces(source, how))
    except (UnreadableError, *_ERRORS):
        return True


class Unpacked(NamedTuple):
    """The bytes inside a file, and how many bytes of the file follow its last
    stream.
    """

    data: bytes
    left: int


def unpack_all(source: Source, how: Packing, budget: Budget) -> Unpacked:
    """All bytes inside, of all streams that follow each other, as Python reads them.

    Raises UnreadableError for a damaged stream, LimitError for one that holds too much.
    """
    content = bytearray()
    end = 0
    try:
        for piece, position in _unpack_pieces(source, how):
            end = position
            # Piece by piece: a small stream can hold gigabytes.
            budget.charge(len(piece), "the pickle")
            content += piece
            budget.check(len(content))
    except _ERRORS:
        raise UnreadableError(f"damaged {how.name} stream") from None
    return Unpacked(bytes(content), source.size - end)


def _unpack_pieces(source: Source, how: Packing) -> Iterator[tuple[bytes, int]]:
    """Yield the content piece by piece, each with the offset up to which the file was
    read.

    The last pair has the offset where the last stream ends. Only zeros follow it, which
    writers add as padding: raises UnreadableError for any other bytes that are no
    further stream.
    """
    position = _first_stream(source, how)
    zeros = _Zeros(source)
    for _ in range(_STREAMS):
        machine = _make_decompressor(how)
        step = _FIRST
        while not machine.eof:
            data = b""
            if machine.needs_input:
                data = source.read(position, min(step, source.size - position))
                if not data:
                    raise UnreadableError(
                        f"cut off: the {how.name} stream does not end, the file does "
                        f"at {position:,} bytes"
                    )
            position += len(data)
            # No more than that at once: Python's modules too give what comes before a
            # wrong checksum.
            piece = machine.decompress(data, step)
            step = min(2 * step, _STEP)
            yield piece, position
        position -= len(machine.unused_data)
        following = zeros.end(position)
        if following == source.size:
            yield b"", position
            return
        # Python's module passes over zeros between streams of gzip, and of no other.
        if how.name == "gzip":
            position = following
        head = source.read(position, min(_HEAD, source.size - position))
        if not _goes_on_with(head, how):
            left = source.size - position
            raise UnreadableError(
                f"{left:,} bytes follow the {how.name} stream, and ckpt cannot tell "
                "what they are"
            )
    raise UnreadableError(f"over {_STREAMS:,} {how.name} streams follow each other")


def _first_stream(source: Source, how: Packing) -> int:
    """The offset of the first stream. Python 2 wrote the size in a ZF container with a
    space more.
    """
    if how is not _ZF:
        return 0
    head = source.read(0, min(source.size, _ZF_HEADER + 1))
    has_space = head[_ZF_HEADER:] == b" "
    return min(source.size, _ZF_HEADER + has_space)


def _goes_on_with(head: bytes, how: Packing) -> bool:
    """Tell whether Python takes these bytes for one more stream. `lzma.open` takes both
    of its kinds in one file.
    """
    other = packing(head)
    if how.name in ("xz", "lzma"):
        return _is_lzma(head) or (other is not None and other.name == "xz")
    return other == how and how is not _ZF


_PADDING = 64 << 20
"""Bytes of zeros that are looked through behind a stream."""


class _Zeros:
    """Runs of zeros in a file, each looked through once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._end = 0

    def end(self, position: int) -> int:
        """The offset of the first byte from a position on that is not zero, or the size
        of the file.

        Nobody pads with more than _PADDING: a sparse file has zeros without end.
        """
        self._end = max(self._end, position)
        while self._end < min(self._source.size, position + _PADDING):
            data = self._source.read(
                self._end, min(_FIRST, self._source.size - self._end)
            )
            other = data.lstrip(b"\0")
            self._end += len(data) - len(other)
            if other:
                break
        return self._end


class _Zlib:
    """zlib's machine with the face of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()

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


class _Gzip:
    """One member of a gzip file, as Python's module reads it.

    zlib itself checks the sum of the header and refuses reserved flags, which Python
    does not look at. Python gives the content before it compares the sum of it, so that
    fails one step later.
    """

    def __init__(self) -> None:
        self.eof = False
        self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
        self._head: bytes | None = b""
        self._tail = b""
        self._sum = self._size = 0

    @property
    def needs_input(self) -> bool:
        if self._inner.eof:
            return len(self._tail) < _SUMS
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._tail[_SUMS:]

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        if self._head is not None:
            self._head += data
            end = _gzip_header(self._head)
            if end is None:
                return b""
            data = self._head[end:]
            self._head = None
        if self._inner.eof:
            self._tail += data
            if len(self._tail) >= _SUMS:
                # The size of more than 4 GiB is recorded without its higher bits.
                if unpack_from("<II", self._tail) != (self._sum, self._size % 2**32):
                    raise ValueError("the checksum of a member differs")
                self.eof = True
            return b""
        piece = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._sum = zlib.crc32(piece, self._sum)
        self._size += len(piece)
        self._tail = self._inner.unused_data
        return piece


_SUMS = 8
"""Bytes behind a member of gzip: the CRC and the size of its content."""
# Flags of a gzip header, in the order in which the parts lie: the sum comes last.
_EXTRA = 4
_NAME = 8
_COMMENT = 16
_HEADER_SUM = 2


def _gzip_header(data: bytes) -> int | None:
    """The size of a gzip header, or None where it goes on behind `data`. Raises
    ValueError for none.
    """
    if len(data) < 10:
        return None
    if data[:3] != b"\x1f\x8b\x08":
        raise ValueError("no header of gzip")
    flags = data[3]
    end = 10
    if flags & _EXTRA:
        end += 2 + int.from_bytes(data[10:12], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            zero = data.find(b"\0", end)
            if zero < 0 and len(data) > _STEP:
                raise ValueError("a name in a header is too long")
            # One past the end says that more bytes are needed.
            end = zero + 1 if zero >= 0 else len(data) + 1
    if flags & _HEADER_SUM:
        end += 2
    return end if end <= len(data) else None


def _make_decompressor(how: Packing) -> _Machine:
    if how.name == "gzip":
        return _Gzip()
    if how.name in ("zlib", "ZF"):
        return _Zlib()
    if how.name == "bzip2":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor()


_INSIDE = 1 << 16


def is_packed(head: bytes, source: Source, limits: Limits) -> bool:
    """Tell whether a file that begins with these bytes is a compressed pickle."""
    how = packing(head)
    inside = b"" if how is None else beginning(source, how, _INSIDE)
    if not inside:
        # A megabyte that becomes nothing: no honest file, and it may go on. Zeros alone
        # are an unfinished write.
        return inside is None and _Zeros(source).end(0) < min(source.size, 2 * _STEP)
    if is_pickle(inside):
        return True
    if inside[0] not in OPCODES:
        return False
    verdict = is_pickle_or_runs(inside, len(inside), limits)
    # None: what was looked at may go on to be a pickle.
    if verdict is None and how is not None:
        return _goes_on(source, how, limits)
    return verdict is True


def _goes_on(source: Source, how: Packing, limits: Limits) -> bool:
    """Tell whether a pickle that goes on behind the first bytes inside a file is one,
    as far as that is known.
    """
    inside = beginning(source, how, LOOKED) or b""
    verdict, offset = look_at_bytes(inside, len(inside), limits)
    length = None if verdict is not None else skipped_bytes(inside, offset)
    if verdict is not None or len(inside) < LOOKED:
        return verdict is True
    return length is None or _holds_bytes(source, how, offset + length)


def _holds_bytes(source: Source, how: Packing, size: int) -> bool:
    """Tell whether a file holds as many bytes inside. They are counted and not kept."""
    count = 0
    try:
        for piece, _ in _unpack_pieces(source, how):
            count += len(piece)
            if count >= size:
                return True
    except (UnreadableError, *_ERRORS):
        pass
    return False
