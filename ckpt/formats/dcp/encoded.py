"""Items that a stream of torch has encoded: `stream.zstd/1`, one zstd frame each.

What decodes zstd is a part of Python 3.14; before, it is a package, which torch needs for such a checkpoint too.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ckpt.errors import DamagedDataError, UnreadableError, UnsupportedError
from ckpt.io.source import BaseSource, Memory, Source
from ckpt.text import show

ZSTD = "stream.zstd/1"
_BLOCK = 256 << 10
_KEPT = 4
"""So many of the last blocks are kept: an archive is read from its end, and then from its start on."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


Open = Callable[[io.RawIOBase], _Stream]
"""A stream of decoded bytes over one of encoded bytes."""


def decoded(source: Source, what: str, codecs: tuple[str, ...], most: int) -> Source:
    """The decoded bytes of an item: in memory where they are few, else decoded again as they are read.

    Raises UnsupportedError where nothing decodes zstd, UnreadableError for other codecs, DamagedDataError where the bytes are no frame, or more than `most`.
    """
    if codecs != (ZSTD,):
        listed = ", ".join(show(codec, 40) for codec in codecs[:4])
        raise UnreadableError(f"{what} is encoded by {listed}")
    opened = _decoder()
    if opened is None:
        raise UnsupportedError(f"{what} is compressed with zstd: pip install zstandard to read it")
    stream = _Decoded(source, what, opened, most)
    return Memory(stream.read(0, stream.size)) if stream.size <= _BLOCK else stream


def _decoder() -> Open | None:
    """What opens a zstd stream: Python's own module, its backport, or the package that torch uses."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            try:
                import zstandard
            except ImportError:
                return None

            def opened(raw: io.RawIOBase) -> _Stream:
                stream: _Stream = zstandard.ZstdDecompressor().stream_reader(raw)
                return stream

            return opened

    def framed(raw: io.RawIOBase) -> _Stream:
        stream: _Stream = zstd.ZstdFile(raw)
        return stream

    return framed


class _Raw(io.RawIOBase):
    """The bytes of a source from its start on, as a stream."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        count = min(len(view), self._source.size - self._at)
        self._source.read_into(self._at, view[:count])
        self._at += count
        return count


class _Decoded(BaseSource):
    """What a stream decodes to. Its size is found by decoding it once; a read before the last one decodes it again."""

    def __init__(self, source: Source, what: str, opened: Open, most: int) -> None:
        self.name = source.name
        self._outer = source
        self._what = what
        self._open = opened
        self._lock = threading.Lock()
        self._most = most
        self._begin()
        while self._next():
            pass
        self.size = self._end

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count, self.name)
        parts: list[bytes] = []
        with self._lock:
            if offset < self._first:
                self._begin()
            while count:
                at = self._first
                for block in self._blocks:
                    if at <= offset < at + len(block) and count:
                        part = block[offset - at : offset - at + count]
                        parts.append(part)
                        offset += len(part)
                        count -= len(part)
                    at += len(block)
                if count and not self._next():
                    raise DamagedDataError(f"{self._what} is damaged: it decodes to fewer bytes than before")
        return b"".join(parts)

    def check_unchanged(self) -> None:
        self._outer.check_unchanged()

    def _begin(self) -> None:
        self._stream = self._open(_Raw(self._outer))
        self._blocks: deque[bytes] = deque(maxlen=_KEPT)
        self._end = 0

    @property
    def _first(self) -> int:
        """The offset of the first byte that is kept."""
        return self._end - sum(map(len, self._blocks))

    def _next(self) -> bool:
        """Decode one more block; False at the end."""
        try:
            block = self._stream.read(_BLOCK)
        except Exception as error:  # each decoder has an error of its own; those of the source are no damage
            if isinstance(error, (UnreadableError, OSError)):
                raise
            raise DamagedDataError(f"{self._what} is damaged: it is no whole zstd frame") from None
        if not block:
            return False
        self._blocks.append(block)
        self._end += len(block)
        if self._end > self._most:
            raise DamagedDataError(f"{self._what} decodes to more than {self._most:,} bytes")
        return True
