"""The types with small blocks: one scale for 32 elements or so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt.ext.gguf.fields import (
    read_half,
    split_bits,
    split_nibbles,
    split_pairs,
    times,
    view_as,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_FOUR_BIT_FLOATS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The doubled numbers of the float with 2 bits of exponent and 1 of mantissa. Its
negative zero is a plain zero here.
"""
_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of IQ4_NL and IQ4_XS."""


def chosen(levels: tuple[int, ...], codes: Array) -> Array:
    """The levels that codes choose, as float32."""
    import numpy as np

    return np.array(levels, "<f4")[codes]


# Each decoder takes blocks as `[blocks, bytes]` and gives `[blocks, elements]`. What a
# byte holds is in llama.cpp's ggml-common.h, what is made of it in ggml-quants.c.


def _q4_0(blocks: Array) -> Array:
    codes = split_nibbles(blocks[:, 2:], 16).reshape(len(blocks), 32).view("i1")
    codes -= 8
    return times(codes, read_half(blocks, 0))


def _q4_1(blocks: Array) -> Array:
    codes = split_nibbles(blocks[:, 4:], 16).reshape(len(blocks), 32)
    numbers = times(codes, read_half(blocks, 0))
    numbers += read_half(blocks, 2)
    return numbers


def _five_bits(blocks: Array, high: int) -> Array:
    """The 5-bit codes of 32 elements: the fifth bits at byte `high`, the nibbles behind
    them.
    """
    codes = split_nibbles(blocks[:, high + 4 :], 16).reshape(len(blocks), 32)
    codes |= split_bits(blocks[:, high : high + 4]).reshape(len(blocks), 32) << 4
    return codes


def _q5_0(blocks: Array) -> Array:
    codes = _five_bits(blocks, 2).view("i1")
    codes -= 16
    return times(codes, read_half(blocks, 0))


def _q5_1(blocks: Array) -> Array:
    numbers = times(_five_bits(blocks, 4), read_half(blocks, 0))
    numbers += read_half(blocks, 2)
    return numbers


def _q8_0(blocks: Array) -> Array:
    return times(blocks[:, 2:].view("i1"), read_half(blocks, 0))


def _q1_0(blocks: Array) -> Array:
    import numpy as np

    scale = read_half(blocks, 0)
    bits = split_bits(blocks[:, 2:]).reshape(len(blocks), 128)
    return np.where(bits != 0, scale, -scale)


def _iq4_nl(blocks: Array) -> Array:
    codes = split_nibbles(blocks[:, 2:], 16).reshape(len(blocks), 32)
    numbers = chosen(_UNEVEN, codes)
    numbers *= read_half(blocks, 0)
    return numbers


def _mxfp4(blocks: Array) -> Array:
    import numpy as np

    exponents = blocks[:, :1].astype("<u4")
    # Half of 2^(e - 127), for the numbers are doubled. The two smallest are subnormal.
    words = np.where(
        exponents < 2,
        np.uint32(0x00200000) << np.minimum(exponents, 1),
        (exponents - 1) << 23,
    )
    codes = split_nibbles(blocks[:, 1:], 16).reshape(len(blocks), 32)
    numbers = chosen(_FOUR_BIT_FLOATS, codes)
    numbers *= words.astype("<u4").view("<f4")
    return numbers


def _nvfp4(blocks: Array) -> Array:
    # Four scales for 64 elements: `[blocks, 4]`.
    scales = _scales_of_8_bits()[blocks[:, :4]]
    nibbles = split_nibbles(blocks[:, 4:], 8)
    numbers = chosen(_FOUR_BIT_FLOATS, nibbles)
    numbers *= scales.reshape(len(blocks), 4, 1, 1)
    return numbers.reshape(len(blocks), 64)


def _scales_of_8_bits() -> Array:
    """Half of each float with 4 bits of exponent and 3 of mantissa. The highest bit is
    not looked at; 0x7f is 0.
    """
    import numpy as np

    codes = np.arange(256)
    exponent = (codes >> 3) & 15
    mantissa = (codes & 7).astype("<f4")
    # Without an exponent a number is subnormal: it has no leading 1.
    small = np.ldexp(mantissa, -9)
    usual = np.ldexp(1 + mantissa / 8, exponent - 7)
    halves = np.where(exponent == 0, small, usual) / 2
    halves[[0, 0x7F]] = 0
    scales: Array = halves.astype("<f4")
    return scales


def _tq2_0(blocks: Array) -> Array:
    codes = split_pairs(blocks[:, :64], 32).reshape(len(blocks), 256).view("i1")
    codes -= 1
    return times(codes, read_half(blocks, 64))


def _tq1_0(blocks: Array) -> Array:
    import numpy as np

    # Five digits a byte for most elements, four for the last ones.
    parts = [
        _ternary(blocks[:, :32], 5),
        _ternary(blocks[:, 32:48], 5),
        _ternary(blocks[:, 48:52], 4),
    ]
    return times(np.concatenate(parts, axis=1), read_half(blocks, 52))


def _ternary(codes: Array, digits: int) -> Array:
    """The first digits of bytes that hold five digits of base 3 as a fraction of 256,
    less 1: of all bytes the first, then the next.
    """
    import numpy as np

    powers = np.array([1, 3, 9, 27, 81][:digits], "u1").reshape(digits, 1)
    # The digits before go out of the byte, and the next one is its highest part.
    fractions = codes[:, None, :] * powers
    levels: Array = (fractions.astype("<u2") * 3 >> 8).astype("i1") - 1
    return levels.reshape(len(codes), -1)


def _q8_k(blocks: Array) -> Array:
    return times(blocks[:, 4:260].view("i1"), view_as(blocks, 0, 4, "<f4"))


DECODERS = {
    "Q1_0": _q1_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q8_K": _q8_k,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
