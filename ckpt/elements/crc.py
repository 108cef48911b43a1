"""CRC-32 of parts of a file, computed apart and combined as if the bytes had been read in one go."""

from __future__ import annotations

import zlib
from functools import cache

from ckpt.elements.blocks import blocks, buffer
from ckpt.tensors import Range

_STEP = 1 << 18
"""Bytes of one read: few enough that they are still in the cache when they are summed."""
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the highest bit is that of x to the power of 0."""


def combined(first: int, second: int, count: int) -> int:
    """The CRC-32 of bytes with the CRC `first`, followed by `count` bytes with the CRC `second`.

    As zlib's crc32_combine: the first is multiplied by x to the power of 8 × count, modulo the polynomial.
    """
    power, squared = _ONE, 3
    while count:
        if count & 1:
            power = _product(_powers()[squared % 32], power)
        count >>= 1
        squared += 1
    return _product(power, first) ^ second


@cache
def _powers() -> tuple[int, ...]:
    """x to the power of 1, 2, 4, 8 and so on, modulo the polynomial. The 33rd would be the first again."""
    found = [1 << 30]
    for _ in range(31):
        found.append(_product(found[-1], found[-1]))
    return tuple(found)


def _product(one: int, two: int) -> int:
    """The product of two polynomials over GF(2), modulo that of CRC-32."""
    made = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            made ^= two
        two = two >> 1 ^ _POLYNOMIAL if two & 1 else two >> 1
    return made


def crc_of_bytes(place: Range, first: int, count: int) -> int:
    """The CRC-32 of `count` bytes of a place from byte `first`. Raises UnreadableError."""
    crc = 0
    if place.inflated is not None:
        for block in blocks(place, first, count):
            crc = zlib.crc32(block, crc)
        return crc
    begin, end = place.offset + first, place.offset + first + count
    view = memoryview(buffer(0, _STEP)) if count >= _STEP else memoryview(b"")
    while end - begin >= _STEP:
        place.source.read_into(begin, view)
        crc = zlib.crc32(view, crc)
        begin += _STEP
    return zlib.crc32(place.source.read(begin, end - begin), crc)
