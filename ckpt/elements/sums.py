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
        if len(first) == rest:
            return last
        return dot_product(first[:-rest], second[:-rest]) + last
    # One call for all pieces, because each call gives up the GIL.
    products = np.matmul(first.reshape(-1, 1, size), second.reshape(-1, size, 1))
    total = 0.0
    # One after the other: `sum` has other digits from Python 3.12 on.
    for product in products.ravel().tolist():
        total += product
    return total


def total(values: Array) -> float:
    """The sum of a row, in a third of the time of numpy's own."""
    # A row of ones is kept for each power of two, so that few are made.
    length = 1 << (len(values) - 1).bit_length() if len(values) else 1
    ones = _ones_row(values.dtype.str, length)
    return dot_product(values, ones[: len(values)])


PRODUCTS = 1 << 18
"""The most products of two numbers that one call adds up for a matrix.

OpenBLAS starts threads above: on a busy machine each call then waits for them 10 ms.
"""
ROWS = 24
"""The rows of a tile of high rank: the fastest kernels of BLAS take so many."""
ROWS_IN_ORDER = 2
"""The rows of a tile of low rank. OpenBLAS adds the products of two or three rows in
their order, each rounded once, as torch does. For more rows it may begin several sums:
its kernels for AVX2 do, those for AVX-512 do not.
"""
RANK_IN_ORDER = 32
"""The highest rank whose tiles have so few rows, unless higher ones have the same
digits. They take 1.4 times as long at rank 16, 2 times at 32 and 5 times at 128.
"""
_PROBED_RANK = 32
"""The rank of the products that show the order of sums."""
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it have fractions that never repeat."""
_LEAST = 16
"""The fewest columns of a tile that are worth so many rows."""


def matrix_product(left: Array, right: Array, out: Array) -> None:
    """Fill `out` with left @ right, tile by tile: the same for any number of threads.

    All three are contiguous, and of one type.
    """
    rest = right.shape[1] % _LEAST
    if rest:
        _multiply_last_columns(left, right[:, -rest:], out[:, -rest:])
    whole = right.shape[1] - rest
    _multiply_columns(left, right[:, :whole], out[:, :whole])


def _multiply_last_columns(left: Array, right: Array, out: Array) -> None:
    """Fill `out` with the product for fewer columns than a tile has, with the last one
    repeated.

    OpenBLAS has a kernel of its own for the last columns, which for some processors
    adds in another order than the one beside them.
    """
    import numpy as np

    count = right.shape[1]
    # Zeros would make NaN of infinite numbers, with a warning.
    wide = np.pad(right, ((0, 0), (0, _LEAST - count)), mode="edge")
    product = np.empty((len(left), _LEAST), out.dtype)
    _multiply_columns(left, wide, product)
    out[:] = product[:, :count]


def _multiply_columns(left: Array, right: Array, out: Array) -> None:
    """Fill `out` with left @ right, for a multiple of _LEAST columns."""
    rows, columns = _tile_size(
        left.shape[0], left.shape[1], right.shape[1], left.dtype.str
    )
    rest = len(left) % rows
    # A single row has another order of adding, so the tile before joins it.
    if rest == 1 and rows > 1:
        rest = min(len(left), rows + 1)
    whole_rows = len(left) - rest
    whole_columns = right.shape[1] - right.shape[1] % max(1, columns)
    # One call for all tiles of one size, because each call gives up the GIL.
    for upper, height in ((slice(0, whole_rows), rows), (slice(whole_rows, None), 0)):
        for side, width in (
            (slice(0, whole_columns), columns),
            (slice(whole_columns, None), 0),
        ):
            _multiply_tiles(
                left[upper], right[:, side], out[upper, side], height, width
            )


def _tile_size(rows: int, rank: int, columns: int, kind: str) -> tuple[int, int]:
    """The rows and columns of a tile of the product of two matrices of a kind."""
    rank = max(1, rank)
    is_low = rank <= RANK_IN_ORDER and not has_order_of_pairs(kind)
    usual = ROWS_IN_ORDER if is_low else ROWS
    # The last tile may have a row more.
    height = max(1, min(rows, usual, PRODUCTS // (_LEAST * rank) - 1))
    # A single row is a product with a vector, for which threads begin earlier.
    most = PRODUCTS // ((height + 1) * rank) if height > 1 else PIECE // rank
    if most < _LEAST:
        return height, max(1, min(columns, most))
    count = -(-columns // (most - most % _LEAST))
    return height, -(-columns // (max(1, count) * _LEAST)) * _LEAST


@cache
def has_order_of_pairs(kind: str) -> bool:
    """Tell whether tiles of any height that is used have the digits of tiles of two
    rows, with the kernels that BLAS chose for this processor.

    Numbers without a pattern show it: another order changes most of their sums. Those
    of numpy.random take longer to import than all else.
    """
    import numpy as np

    rows, columns = 2 * ROWS, 5 * _LEAST
    numbers = np.arange(1, _PROBED_RANK * (rows + columns) + 1) * _GOLDEN % 1 - 0.5
    left, right = np.split(numbers.astype(kind), [rows * _PROBED_RANK])
    left, right = left.reshape(rows, -1), right.reshape(-1, columns)
    expected = np.empty((len(left), columns), kind)
    _multiply_tiles(left, right, expected, 2, 0)
    for height in range(2, ROWS + 2):  # the last tile may have a row more
        if not np.array_equal(np.matmul(left[:height], right), expected[:height]):
            return False
    return True


def _multiply_tiles(
    left: Array, right: Array, out: Array, height: int, width: int
) -> None:
    """Fill `out` with the product of two matrices, which consists of tiles of one size.
    0 is all rows or columns.
    """
    import numpy as np

    if not out.size:
        return
    height, width = height or len(left), width or right.shape[1]
    rank = right.shape[0]
    down, across = len(left) // height, right.shape[1] // width
    step, line, wide = left.itemsize, right.strides[0], out.strides[0]
    view = np.lib.stride_tricks.as_strided
    lefts = left.reshape(down, 1, height, rank)
    rights = view(right, (across, rank, width), (width * step, line, step))
    tiles = view(
        out, (down, across, height, width), (height * wide, width * step, wide, step)
    )
    np.matmul(lefts, rights, out=tiles)


@cache
def _ones_row(kind: str, count: int) -> Array:
    import numpy as np

    return np.ones(count, kind)
