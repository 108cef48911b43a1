"""The figures of a block in float64: any numbers, with NaN and infinities among
them.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from ckpt.elements.cast import thread_rows
from ckpt.elements.sums import dot_product, total
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


_ROW = 13
"""The first of the rows of `scratch` that nobody else takes."""


class Delta(NamedTuple):
    """The difference of two blocks, with the fields of `Difference`.

    `largest` is max |Δ| of the block, `at` its first index if it is above the one known
    before.
    """

    differing: int
    squares: float
    reference: float
    largest: float = 0.0
    at: int | None = None
    close: bool = True
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)


def measure_delta(
    old: Array, new: Array, peak: float, tolerance: tuple[float, float] | None
) -> Delta:
    """The difference of two blocks of numbers as `cast.numbers` has them. NaN on both
    sides does not differ.

    `peak` is the largest |Δ| of the blocks before; `tolerance` is (absolute, relative).
    Call it below `np.errstate`.
    """
    import numpy as np

    unequal = old != new
    wide, apart = widen_numbers(old, 0), abs_difference(old, new)
    finite: Array | None = None
    nan = inf = (0, 0)
    reference = _sum_squares(wide)
    squares = dot_product(apart, apart)
    if not isfinite(
        reference + squares
    ):  # NaN, an infinity, or numbers whose squares are too large
        nan, inf = (
            (int(np.count_nonzero(one)), int(np.count_nonzero(two)))
            for one, two in (
                (np.isnan(old), np.isnan(new)),
                (np.isinf(old), np.isinf(new)),
            )
        )
        unequal &= ~(np.isnan(old) & np.isnan(new))
        finite = np.isfinite(apart)
        apart[~finite] = 0.0
        squares = dot_product(apart, apart)
        size = np.abs(wide)
        size[~np.isfinite(size)] = 0.0
        reference = dot_product(size, size)
    largest = float(apart.max(initial=0.0))
    close = True
    if tolerance is not None:
        within = apart <= tolerance[0] + tolerance[1] * np.abs(wide)
        if finite is not None:
            within &= finite
        close = not bool(np.any(unequal & ~within))
    at = int(np.argmax(apart)) if largest > peak else None
    return Delta(
        int(np.count_nonzero(unequal)), squares, reference, largest, at, close, nan, inf
    )


def abs_difference(old: Array, new: Array) -> Array:
    """|Δ| of each element in float64. Integers are subtracted exactly, so that
    different ones never have a |Δ| of 0.

    It is valid until the thread calls again.
    """
    import numpy as np

    sizes = thread_rows().row("f8", _ROW + 2, len(old))
    if old.dtype.kind in "iu" and old.dtype == new.dtype:
        exact = np.maximum(
            old, new, out=thread_rows().row(old.dtype.str, _ROW, len(old))
        )
        smaller = np.minimum(
            old, new, out=thread_rows().row(old.dtype.str, _ROW + 1, len(old))
        )
        np.subtract(
            exact, smaller, out=exact
        )  # wraps around to what is right without a sign
        np.copyto(sizes, exact.view(exact.dtype.str.replace("i", "u")))
        return sizes
    one, two = widen_numbers(old, 0), widen_numbers(new, 1)
    kind = "c16" if "c" in (one.dtype.kind, two.dtype.kind) else "f8"
    return np.abs(
        np.subtract(two, one, out=thread_rows().row(kind, _ROW + 2, len(old))),
        out=sizes,
    )


def widen_numbers(values: Array, row: int) -> Array:
    """The numbers in float64, complex ones in two of them: themselves, or in a row of
    the thread.
    """
    import numpy as np

    kind = "c16" if values.dtype.kind == "c" else "f8"
    if values.dtype == np.dtype(kind):
        return values
    wide = thread_rows().row(kind, _ROW + row, len(values))
    np.copyto(wide, values)
    return wide


def _sum_squares(wide: Array) -> float:
    parts = wide.view("f8")
    return dot_product(parts, parts)


class Moments(NamedTuple):
    """The figures of the finite numbers of a block, with the fields of `Summary`."""

    finite: int
    nan: int = 0
    inf: int = 0
    low: float = 0.0
    high: float = 0.0
    zeros: int = 0
    mean: float = 0.0
    spread: float = 0.0
    squares: float = 0.0


def measure_moments(values: Array) -> Moments:
    """The figures of a block of real numbers as `cast.numbers` has them."""
    import numpy as np

    wide = widen_numbers(values, 0)
    added = total(wide)
    nan = inf = 0
    if not isfinite(added):
        is_nan, is_inf = np.isnan(wide), np.isinf(wide)
        nan, inf = int(np.count_nonzero(is_nan)), int(np.count_nonzero(is_inf))
        values = wide = wide[~(is_nan | is_inf)]
        added = float(wide.sum())
    if not len(values):
        return Moments(0, nan, inf)
    low, high = values.min().item(), values.max().item()
    zeros = int(np.count_nonzero(values == 0)) if low <= 0 <= high else 0
    squares, mean = dot_product(wide, wide), added / len(wide)
    # The sum of the squared distances from the mean. Where the mean is large beside
    # them, this loses digits.
    spread = squares - added * mean
    if not spread > squares / 64:
        apart = np.subtract(
            wide, mean, out=thread_rows().row("f8", _ROW + 1, len(wide))
        )
        spread = dot_product(apart, apart)
    return Moments(len(wide), nan, inf, low, high, zeros, mean, spread, squares)
