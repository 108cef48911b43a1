"""Columns of numbers that are added and compared all at once. One integer holds each number in 64 of its bits.

A hundred thousand additions take a millisecond so; `map(add, ...)` makes as many objects and takes ten.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache

_WIDTH, _TOP = 8, 0x80
"""Bytes of a number, and the highest bit of the last of them."""


def packed(column: array[int]) -> bytes:
    """The bytes of each number, the lowest first."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def unpacked(code: str, raw: bytes | bytearray) -> array[int]:
    """The numbers whose bytes these are, the lowest first."""
    column = array(code, bytes(raw))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def field(data: bytes, offset: int, width: int, stride: int) -> bytes:
    """So many bytes at an offset of each `stride` bytes, one behind the other."""
    fields = bytearray(len(data) // stride * width)
    for byte in range(width):
        fields[byte::width] = data[offset + byte :: stride]
    return bytes(fields)


class Lanes:
    """Whole numbers from 0 to 2**63 - 1. Sums must stay below that too."""

    __slots__ = ("_count", "_value")

    def __init__(self, count: int, value: int) -> None:
        self._count = count
        self._value = value

    @classmethod
    def of(cls, raw: bytes | bytearray, width: int) -> Lanes:
        """Those in bytes, the lowest first, so many for each number."""
        count = len(raw) // width
        if width < _WIDTH:
            wide = bytearray(count * _WIDTH)
            for byte in range(width):
                wide[byte::_WIDTH] = raw[byte::width]
            raw = wide
        return cls(count, int.from_bytes(raw, "little"))

    @classmethod
    def of_array(cls, column: array[int]) -> Lanes:
        """Those of an array of the type Q."""
        return cls.of(packed(column), _WIDTH)

    def __len__(self) -> int:
        return self._count

    def __add__(self, other: Lanes | int) -> Lanes:
        return Lanes(self._count, self._value + self._like(other))

    def are_at_most(self, other: Lanes | int) -> bool:
        """Whether each number is at most the other one."""
        one = _one(self._count)
        # The highest bit is set where it is more.
        above = self._value + ((_TOP << 56) - 1) * one - self._like(other)
        return above.to_bytes(self._count * _WIDTH, "little")[_WIDTH - 1 :: _WIDTH].isascii()

    def from_second(self) -> Lanes:
        """All but the first."""
        return Lanes(self._count - 1, self._value >> 64)

    def to_last_but_one(self) -> Lanes:
        """All but the last."""
        return Lanes(self._count - 1, self._value & ((1 << 64 * (self._count - 1)) - 1))

    def array(self) -> array[int]:
        """The numbers, as an array of the type Q."""
        return unpacked("Q", self._value.to_bytes(self._count * _WIDTH, "little"))

    def _like(self, other: Lanes | int) -> int:
        return other * _one(self._count) if isinstance(other, int) else other._value


@lru_cache(maxsize=4)
def _one(count: int) -> int:
    """A one in each of so many numbers."""
    return int.from_bytes((b"\1" + bytes(_WIDTH - 1)) * count, "little")
