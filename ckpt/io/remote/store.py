"""What a server or an object store must be able to do, and what it answers. Adapters are http.py and objects.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import md5
from typing import Protocol

from ckpt.errors import NotOpenedError, WriteError
from ckpt.io.source import open_address
from ckpt.io.target import BLOCK
from ckpt.rows import NamedTuple

WHOLE = 64 << 20
"""The most bytes that are taken from a server that ignores Range."""


class Answer(NamedTuple):
    """The bytes from `begin` on of an object of `size` bytes, and what identifies this state of it."""

    data: bytes
    begin: int
    size: int
    etag: str


class Known(NamedTuple):
    """What a listing says of an object."""

    size: int
    etag: str


class BusyError(Exception):
    """The server failed in a way that may pass: 5xx, a cut body, a lost connection. The text is for people."""


class ChangedError(NotOpenedError):
    """The object is another one than that of the first answer."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__("the object changed while it was read", path=path, hint="still being written?")


class Store(Protocol):
    """One object. Several threads may ask at once."""

    tails: bool
    """Whether it answers for the last bytes without knowing the size."""

    def get(self, begin: int | None, count: int, etag: str) -> Answer:
        """At most `count` bytes at `begin`, or the last ones for None. `etag` is that of the first answer, or empty.

        Raises BusyError, ChangedError, NotOpenedError.
        """
        ...


Sleep = Callable[[float], None]
"""Waits for seconds."""


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class _Hash(Protocol):
    def update(self, data: memoryview) -> None: ...

    def digest(self) -> bytes: ...


def compares(scheme: str) -> bool:
    """Whether it is for us to compare what a store of this scheme received."""
    return scheme == "s3" and any(map(os.environ.get, _ENDPOINTS))


def _fresh() -> _Hash:
    return md5(usedforsecurity=False)


class Sums:
    """The MD5 of each part of `part` bytes of an object that is sent."""

    def __init__(self, part: int, size: int) -> None:
        self._part = part
        self._size = size
        self._done: list[bytes] = []
        self._hash = _fresh()
        self._left = part

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        while data:
            piece = data[: self._left]
            self._hash.update(piece)
            self._left -= len(piece)
            data = data[len(piece) :]
            if not self._left:
                self._next()

    def _next(self) -> None:
        self._done.append(self._hash.digest())
        self._hash, self._left = _fresh(), self._part

    def check(self, url: str, etag: str) -> None:
        """Raise WriteError where an object with this ETag does not hold these bytes, UnreadableError as reading does."""
        if self._left < self._part or not self._done:
            self._next()
        count = len(self._done)
        whole = self._done[0].hex() if self._size <= self._part else f"{_of(self._done).hex()}-{count}"
        if etag.strip('"') == whole:
            return
        source = open_address(url)
        try:
            if str(source.identity[1]).strip('"') != etag.strip('"'):
                raise WriteError("another object took its place meanwhile", path=url)
            for number, sum in enumerate(self._done):
                begin, found = number * self._part, _fresh()
                end = min(begin + self._part, source.size)
                for at in range(begin, end, BLOCK):
                    found.update(memoryview(source.read(at, min(BLOCK, end - at))))
                if found.digest() != sum:
                    raise WriteError(
                        f"part {number + 1:,} of {count:,} did not arrive as it was sent", path=url
                    )
        finally:
            source.close()


def _of(sums: list[bytes]) -> bytes:
    return md5(b"".join(sums), usedforsecurity=False).digest()
