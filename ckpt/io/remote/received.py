"""Whether a store received what was sent: its ETag is the MD5 of the bytes, or else they are read back.

Amazon compares the SHA-256 of each request itself, which the signature covers, and its ETag is no MD5 where it encrypts
with KMS. Other stores that speak S3 may compare nothing. Google and Azure give other ETags.
"""

from __future__ import annotations

import os
from hashlib import md5
from typing import Protocol

from ckpt.errors import WriteError
from ckpt.io.source import open_address
from ckpt.io.target import BLOCK

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
