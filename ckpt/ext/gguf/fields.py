"""The fields of blocks: halves, words, nibbles and scales as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def read_half(blocks: Array, place: int) -> Array:
    """The float16 that begins at byte `place` of each block, as a column of float32."""
    return view_as(blocks, place, place + 2, "<f2").astype("<f4")


def view_as(blocks: Array, first: int, last: int, kind: str) -> Array:
    """The bytes `first` to `last` of each block as numbers of a kind, as numpy names
    it.
    """
    import numpy as np

    return np.ascontiguousarray(blocks[:, first:last]).view(kind)


def split_nibbles(codes: Array, group: int) -> Array:
    """The 4-bit codes of bytes: of each `group` of bytes in a row first the low halves,
    then the high halves.

    The result has the shape (blocks, groups, 2, group).
    """
    import numpy as np

    count = len(codes)
    groups = codes.reshape(count, -1, group)
    nibbles = np.empty((count, groups.shape[1], 2, group), "u1")
    # Both halves go straight into the result: no array of one of them is made.
    np.bitwise_and(groups, 15, out=nibbles[:, :, 0])
    np.right_shift(groups, 4, out=nibbles[:, :, 1])
    return nibbles


def split_pairs(codes: Array, group: int) -> Array:
    """The 2-bit codes of bytes: of each `group` of bytes in a row first the lowest two
    bits of all, then the next two.

    The result has the shape (blocks, groups, 4, group).
    """
    import numpy as np

    count = len(codes)
    groups = codes.reshape(count, -1, 1, group)
    shifts = np.array([0, 2, 4, 6], "u1").reshape(4, 1)
    pairs: Array = (groups >> shifts) & np.uint8(3)
    return pairs


def split_bits(codes: Array) -> Array:
    """The bits of bytes, the lowest first: shape (blocks, bytes, 8)."""
    import numpy as np

    return np.unpackbits(codes, axis=1, bitorder="little").reshape(len(codes), -1, 8)


def times(numbers: Array, scales: Array) -> Array:
    """The numbers as float32, multiplied by scales of a fitting shape."""
    import numpy as np

    # Without the dtype, numpy would make float64 of int32 and float32.
    return np.multiply(numbers, scales, dtype="<f4")
