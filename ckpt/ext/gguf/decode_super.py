"""The K types, and IQ4_XS: blocks of 256 elements whose groups have scales of
few bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt.ext.gguf.decode_small import _UNEVEN, chosen
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


def _scaled(codes: Array, scales: Array, least: Array | None = None) -> Array:
    """The codes of 256 elements times the scales of their groups, less what is `least`
    in each group.
    """
    groups = scales.shape[1]
    numbers = times(codes.reshape(len(codes), groups, -1), scales[:, :, None])
    if least is not None:
        numbers -= least[:, :, None]
    return numbers.reshape(len(codes), 256)


def _q2_k(blocks: Array) -> Array:
    # [blocks, groups of 128, 4, 32]: two bits for each element.
    codes = split_pairs(blocks[:, 16:80], 32)
    # A byte for each group: the scale in its lower half, the least in its upper one.
    scales = read_half(blocks, 80) * (blocks[:, :16] & 15)
    least = read_half(blocks, 82) * (blocks[:, :16] >> 4)
    return _scaled(codes, scales, least)


def _q3_k(blocks: Array) -> Array:
    import numpy as np

    low = split_pairs(blocks[:, 32:96], 32).reshape(len(blocks), 8, 32)
    # The bit of a mask is 0 where 4 is taken off: mask byte l has the bits of element l
    # of all eight groups.
    high = split_bits(blocks[:, :32]).transpose(0, 2, 1)
    codes = (low | (high << 2)).view("i1")
    codes -= 4
    packed = blocks[:, 96:108]
    scales = split_nibbles(packed[:, :8], 8).reshape(len(blocks), 16)
    scales |= split_pairs(packed[:, 8:], 4).reshape(len(blocks), 16) << 4
    steps = scales.view("i1") - np.int8(32)
    return _scaled(codes, read_half(blocks, 108) * steps)


def _scales_and_mins(packed: Array) -> tuple[Array, Array]:
    """The 6-bit scales and mins of eight groups, from 12 bytes: the first four of each
    lie in the low bits of 8 bytes.

    The others have their low nibbles in the last 4 bytes, and their two high bits above
    the first four.
    """
    import numpy as np

    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, mins


def _q4_k(blocks: Array) -> Array:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = split_nibbles(blocks[:, 16:], 32)
    return _scaled(codes, read_half(blocks, 0) * scales, read_half(blocks, 2) * mins)


def _q5_k(blocks: Array) -> Array:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = split_nibbles(blocks[:, 48:], 32).reshape(len(blocks), 8, 32)
    # The fifth bits lie as the masks of Q3_K: a bit of a byte for each group.
    codes |= split_bits(blocks[:, 16:48]).transpose(0, 2, 1) << 4
    return _scaled(codes, read_half(blocks, 0) * scales, read_half(blocks, 2) * mins)


def _q6_k(blocks: Array) -> Array:
    low = split_nibbles(blocks[:, :128], 64).reshape(len(blocks), 256)
    high = split_pairs(blocks[:, 128:192], 32).reshape(len(blocks), 256)
    high <<= 4
    low |= high
    codes = low.view("i1")
    codes -= 32
    return _scaled(codes, read_half(blocks, 208) * blocks[:, 192:208].view("i1"))


def _iq4_xs(blocks: Array) -> Array:
    import numpy as np

    low = split_nibbles(blocks[:, 4:8], 1).reshape(len(blocks), 8)
    high = (view_as(blocks, 2, 4, "<u2") >> np.arange(0, 16, 2, dtype="<u2")) & 3
    # Four low bits of each scale in `scales_l`, two high ones in `scales_h`.
    steps = (low | high << 4).astype("i1") - np.int8(32)
    codes = split_nibbles(blocks[:, 8:], 16).reshape(len(blocks), 8, 32)
    numbers = chosen(_UNEVEN, codes)
    numbers *= (read_half(blocks, 0) * steps)[:, :, None]
    return numbers.reshape(len(blocks), 256)


DECODERS = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
