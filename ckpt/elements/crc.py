"""CRC-32 of parts, combined as if the bytes had been read in one go."""

from __future__ import annotations

from functools import cache, lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the highest bit is the coefficient of x to the power of 0."""


@lru_cache(maxsize=1024)  # the items of a distributed checkpoint begin alike
def combine_crcs(first: int, second: int, count: int) -> int:
    """The CRC-32 of bytes with the CRC `first`, followed by `count` bytes with the CRC
    `second`.

    As zlib's crc32_combine: the first is multiplied by x to the power of 8 × count,
    modulo the polynomial.
    """
    return _multiply_polynomials(_power_of_x(count), first) ^ second


@lru_cache(maxsize=1024)
def _power_of_x(count: int) -> int:
    """x to the power of 8 × count, modulo the polynomial. Most spans, and most records
    of an archive, have one of few sizes.
    """
    # Bit k of the count is x to the power of 2**(k + 3), since a byte has 8 bits.
    power, squared = _ONE, 3
    while count:
        if count & 1:
            power = _multiply_polynomials(_squared_powers()[squared % 32], power)
        count >>= 1
        squared += 1
    return power


@cache
def _squared_powers() -> tuple[int, ...]:
    """x to the power of 1, 2, 4, 8 and so on, modulo the polynomial. The 33rd would be
    the first again.
    """
    powers = [1 << 30]
    for _ in range(31):
        powers.append(_multiply_polynomials(powers[-1], powers[-1]))
    return tuple(powers)


def _multiply_polynomials(first: int, second: int) -> int:
    """Multiply two polynomials over GF(2), modulo the polynomial of CRC-32."""
    # Bits are reflected: bit 31 is the factor of 1, bit 30 the factor of x.
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = second >> 1 ^ _POLYNOMIAL if second & 1 else second >> 1
    return product
