"""The IQ types whose codes choose points of a grid: 256 elements in 50 to 110 bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt.ext.gguf import grids
from ckpt.ext.gguf.fields import read_half, split_nibbles, view_as

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@cache
def _signs() -> Array:
    """The signs of eight elements for each byte: -1 where its bit is set."""
    import numpy as np

    bits = np.unpackbits(np.arange(256, dtype="u1")[:, None], axis=1, bitorder="little")
    signs: Array = 1 - 2 * bits.astype("<f4")
    return signs


@cache
def _even_signs() -> Array:
    """The signs of eight elements for each code of 7 bits. The eighth sign makes the
    number of minuses even.
    """
    import numpy as np

    codes = np.arange(128, dtype="u1")
    parity = np.unpackbits(codes[:, None], axis=1).sum(axis=1) & 1
    signs: Array = _signs()[codes | (parity << 7)]
    return signs


def _joined(points: Array, scales: Array, signs: Array | None = None) -> Array:
    """The points of a grid times the scales of their groups, with their signs, as rows
    of 256 elements.
    """
    count, groups = scales.shape
    numbers = points.reshape(count, groups, -1) * scales[:, :, None]
    if signs is not None:
        numbers *= signs.reshape(count, groups, -1)
    return numbers.reshape(count, 256)


def _signs_of_7_bits(words: Array) -> Array:
    """The signs of 32 elements for each word: four codes of 7 bits, the lowest
    first.
    """
    import numpy as np

    codes = (words[:, :, None] >> np.array([0, 7, 14, 21], "<u4")) & 127
    signs: Array = _even_signs()[codes]
    return signs


def _iq2_xxs(blocks: Array) -> Array:
    # Two words for 32 elements: four codes, then four signs of 7 bits and a scale.
    words = view_as(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    codes = words[:, :, 0].copy().view("u1").reshape(len(blocks), 8, 4)
    steps = (words[:, :, 1] >> 28).astype("<f4")
    scales = read_half(blocks, 0) * (0.5 + steps) * 0.25
    signs = _signs_of_7_bits(words[:, :, 1])
    return _joined(grids.points_of(grids.TWO_XXS)[codes], scales, signs)


def _iq2_xs(blocks: Array) -> Array:
    # Nine bits choose the point, seven the signs.
    codes = view_as(blocks, 2, 66, "<u2")
    points = grids.points_of(grids.TWO_XS)[codes & 511]
    return _joined(points, _fine_scales(blocks, 66), _even_signs()[codes >> 9])


def _fine_scales(blocks: Array, place: int) -> Array:
    """The scales of 16 groups in 8 bytes, of two groups in each, the low nibble
    first.
    """
    nibbles = split_nibbles(blocks[:, place : place + 8], 1).reshape(len(blocks), 16)
    return read_half(blocks, 0) * (0.5 + nibbles.astype("<f4")) * 0.25


def _high_bits(codes: Array, width: int, count: int) -> Array:
    """The `count` codes of `width` bits in each byte, the lowest first."""
    import numpy as np

    shifts = np.arange(0, width * count, width, dtype="u1")
    return ((codes[:, :, None] >> shifts) & ((1 << width) - 1)).astype("<u2")


def _iq2_s(blocks: Array) -> Array:
    # Two high bits of each code lie apart from its low byte.
    high = _high_bits(blocks[:, 66:74], 2, 4).reshape(len(blocks), 32)
    codes = blocks[:, 2:34] | high << 8
    points = grids.points_of(grids.TWO_S)[codes]
    return _joined(points, _fine_scales(blocks, 74), _signs()[blocks[:, 34:66]])


def _iq3_xxs(blocks: Array) -> Array:
    words = view_as(blocks, 66, 98, "<u4")
    scales = read_half(blocks, 0) * (0.5 + (words >> 28).astype("<f4")) * 0.5
    points = grids.points_of(grids.THREE_XXS)[blocks[:, 2:66]]
    return _joined(points, scales, _signs_of_7_bits(words))


def _iq3_s(blocks: Array) -> Array:
    # The ninth bit of each code lies apart.
    high = _high_bits(blocks[:, 66:74], 1, 8).reshape(len(blocks), 64)
    codes = blocks[:, 2:66] | high << 8
    steps = split_nibbles(blocks[:, 106:110], 1).reshape(len(blocks), 8)
    scales = read_half(blocks, 0) * (1 + 2 * steps.astype("<f4"))
    points = grids.points_of(grids.THREE_S)[codes]
    return _joined(points, scales, _signs()[blocks[:, 74:106]])


_DELTA = 0.125
"""The distance by which the points of IQ1_S and IQ1_M are moved."""


def _moved(points: Array, scales: Array, is_down: Array) -> Array:
    """The points, each moved up or down by the delta, times the scales of their
    groups.
    """
    import numpy as np

    deltas = np.where(is_down, np.float32(-_DELTA), np.float32(_DELTA))
    return _joined(points + deltas[:, :, None], scales)


def _iq1_s(blocks: Array) -> Array:
    import numpy as np

    # A word has four times three high bits of codes, the scale, and where points move.
    words = view_as(blocks, 34, 50, "<u2")
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], "<u2")) & 7
    codes = blocks[:, 2:34] | high.reshape(len(blocks), 32) << 8
    scales = read_half(blocks, 0) * (2 * ((words >> 12) & 7) + 1).astype("<f4")
    is_down = np.repeat(words & 0x8000 != 0, 4, axis=1)
    return _moved(grids.points_of(grids.ONE)[codes], scales, is_down)


def _iq1_m(blocks: Array) -> Array:
    import numpy as np

    nibbles = split_nibbles(blocks[:, 32:48], 1).reshape(len(blocks), 32)
    codes = blocks[:, :32] | (nibbles & 7).astype("<u2") << 8
    words = view_as(blocks, 48, 56, "<u2")
    # The scale of the block lies in the highest four bits of the four words.
    parts = (words >> 12) << np.array([0, 4, 8, 12], "<u2")
    bits = np.bitwise_or.reduce(parts, axis=1, keepdims=True)
    scale = bits.astype("<u2").view("<f2").astype("<f4")
    steps = (words[:, :, None] >> np.array([0, 3, 6, 9], "<u2")) & 7
    scales = scale * (2 * steps.reshape(len(blocks), 16) + 1).astype("<f4")
    return _moved(grids.points_of(grids.ONE)[codes], scales, nibbles & 8 != 0)


DECODERS = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
