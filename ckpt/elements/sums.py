"""Sums of products by BLAS, piece by piece: the same for any number of its threads.
Reads no file.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PIECE = 8192
"""The most float64 of one call of BLAS. OpenBLAS starts threads above 10,000, and each
number of threads has last digits of its own.
"""
SINGLE_PIECE = 1024
"""The most float32 of one call. The sum of so many equal squares is off by 5e-7 of
itself at most, where BLAS adds in 32 lanes.
"""


def dot_product(first: Array, second: Array) -> float:
    """The sum of the products of two rows of one type, float32 or float64. Each piece
    is added in it, the pieces in float64.
    """
    import numpy as np

    size = PIECE if first.itemsize == 8 else SINGLE_PIECE
    rest = len(first) % size
    if rest:
        last = float(first[-rest:].dot(second[-rest:]))
        return (
            dot_product(first[:-rest], second[:-rest]) + last
            if len(first) > rest
            else last
        )
    total = 0.0
    # One call for all pieces, because each call gives up the GIL. `sum` has other
    # digits from Python 3.12 on.
    for piece in (
        np.matmul(first.reshape(-1, 1, size), second.reshape(-1, size, 1))
        .ravel()
        .tolist()
    ):
        total += piece
    return total


def total(values: Array) -> float:
    """The sum of a row, in a third of the time of numpy's own."""
    return dot_product(
        values,
        _ones_row(
            values.dtype.str, 1 << (len(values) - 1).bit_length() if len(values) else 1
        )[: len(values)],
    )


@cache
def _ones_row(kind: str, count: int) -> Array:
    import numpy as np

    return np.ones(count, kind)
