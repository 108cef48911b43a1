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


def beginning(head: bytes, how: Packing, size: int) -> bytes:
    """At most `size` of the first bytes inside; empty where the stream is damaged."""
    try:
        return _machine(how).decompress(head, size)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        return b""


def unpacked(source: Source, how: Packing, budget: Budget) -> bytes:
    """All bytes inside. Raises UnreadableError for a damaged stream, LimitError for one that holds too much."""
    machine, made, at = _machine(how), bytearray(), 0
    rest = b""
    try:
        while not machine.eof:
            data = rest or source.read(at, min(_STEP, source.size - at))
            at += 0 if rest else len(data)
            if not data:
                raise UnreadableError(
                    f"cut off: the {how.name} stream does not end, the file does at {at:,} bytes"
                )
            piece = machine.decompress(data, _STEP)
            rest = _left(machine)
            budget.charge(len(piece), "the pickle")
            made += piece
            budget.check(len(made))
            if not piece and not rest and at >= source.size and not machine.eof:
                raise UnreadableError(
                    f"cut off: the {how.name} stream does not end, the file does at {at:,} bytes"
                )
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        raise UnreadableError(f"damaged {how.name} stream") from None
    return bytes(made)


class _Zlib:
    """zlib's machine with the face of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(47)  # zlib or gzip
        self.rest = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        made = self._inner.decompress(data, max_length)
        self.rest = self._inner.unconsumed_tail
        return made


def _machine(how: Packing) -> _Machine:
    if how.name in ("gzip", "zlib"):
        return _Zlib()
    return bz2.BZ2Decompressor() if how.name == "bzip2" else lzma.LZMADecompressor()


def _left(machine: _Machine) -> bytes:
    return machine.rest if isinstance(machine, _Zlib) else b""
