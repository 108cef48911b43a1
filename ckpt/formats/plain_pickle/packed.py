"""Streams of gzip, zlib, bzip2 and xz around a pickle, as joblib and people write them."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Protocol

from ckpt.errors import UnreadableError
from ckpt.io.source import Source
from ckpt.limits import Budget
from ckpt.rows import NamedTuple

_STEP = 1 << 20


class _Machine(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...


class Packing(NamedTuple):
    """How a file is compressed: its name, and the Python that opens it."""

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
    """How a file that begins with these bytes is compressed; None for any other file."""
    found = next((how for magic, how in _MAGICS.items() if head.startswith(magic)), None)
    is_zlib = len(head) > 1 and head[0] == 0x78 and not (head[0] * 256 + head[1]) % 31
    return found or (_ZLIB if is_zlib else None)


def beginning(head: bytes, source: Source, how: Packing, size: int) -> bytes:
    """At most `size` of the first bytes inside; empty where the stream is damaged.

    `head` are the first bytes of the source. More is read where they are too few: bzip2 gives nothing before a block ends.
    """
    machine = _machine(how)
    try:
        made = machine.decompress(head, size)
        if not made and machine.needs_input and not machine.eof:
            made = machine.decompress(source.read(len(head), min(_STEP, source.size - len(head))), size)
        return made
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        return b""


def unpacked(source: Source, how: Packing, budget: Budget) -> bytes:
    """All bytes inside. Raises UnreadableError for a damaged stream, LimitError for one that holds too much."""
    machine, made, at = _machine(how), bytearray(), 0
    try:
        while not machine.eof:
            data = source.read(at, min(_STEP, source.size - at)) if machine.needs_input else b""
            at += len(data)
            if machine.needs_input and not data:
                raise UnreadableError(
                    f"cut off: the {how.name} stream does not end, the file does at {at:,} bytes"
                )
            piece = machine.decompress(data, _STEP)
            budget.charge(len(piece), "the pickle")
            made += piece
            budget.check(len(made))
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        raise UnreadableError(f"damaged {how.name} stream") from None
    return bytes(made)


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

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _machine(how: Packing) -> _Machine:
    if how.name in ("gzip", "zlib"):
        return _Zlib()
    return bz2.BZ2Decompressor() if how.name == "bzip2" else lzma.LZMADecompressor()
