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
    """The difference of two blocks of numbers as `cast.as_numbers` has them. NaN on
    both sides does not differ.

    `peak` is the largest |Δ| of the blocks before; `tolerance` is (absolute, relative).
    Call it below `np.errstate`.
    """
    import numpy as np

    unequal = old != new
    wide = widen_numbers(old, 0)
    apart = abs_difference(old, new)
    finite: Array | None = None
    nan = inf = (0, 0)
    reference = _sum_squares(wide)
    squares = dot_product(apart, apart)
    # Two sums tell whether any element needs a closer look.
    if not isfinite(reference + squares):
        # NaN, an infinity, or numbers whose squares are too large
        old_nan, new_nan = np.isnan(old), np.isnan(new)
        nan = _count_true(old_nan), _count_true(new_nan)
        inf = _count_true(np.isinf(old)), _count_true(np.isinf(new))
        unequal &= ~(old_nan & new_nan)
        finite = np.isfinite(apart)
        apart[~finite] = 0.0
        squares = dot_product(apart, apart)
        sizes = np.abs(wide)
        sizes[~np.isfinite(sizes)] = 0.0
        reference = dot_product(sizes, sizes)
    largest = float(apart.max(initial=0.0))
    is_close = True
    if tolerance is not None:
        within = apart <= tolerance[0] + tolerance[1] * np.abs(wide)
        if finite is not None:
            within &= finite
        is_close = not bool(np.any(unequal & ~within))
    # Finding the index takes another pass, so only a new peak is looked for.
    at = int(np.argmax(apart)) if largest > peak else None
    differing = _count_true(unequal)
    return Delta(differing, squares, reference, largest, at, is_close, nan, inf)


def _count_true(flags: Array) -> int:
    import numpy as np

    return int(np.count_nonzero(flags))


def abs_difference(old: Array, new: Array) -> Array:
    """|Δ| of each element in float64. Integers are subtracted exactly, so that
    different ones never have a |Δ| of 0.

    It is valid until the thread calls again.
    """
    import numpy as np

    rows = thread_rows()
    count = len(old)
    sizes = rows.row("f8", _ROW + 2, count)
    if old.dtype.kind in "iu" and old.dtype == new.dtype:
        kind = old.dtype.str
        exact = np.maximum(old, new, out=rows.row(kind, _ROW, count))
        smaller = np.minimum(old, new, out=rows.row(kind, _ROW + 1, count))
        # The difference may need the bit of the sign: it wraps around, and is right
        # once it is read without a sign.
        np.subtract(exact, smaller, out=exact)
        np.copyto(sizes, exact.view(exact.dtype.str.replace("i", "u")))
        return sizes
    old_wide = widen_numbers(old, 0)
    new_wide = widen_numbers(new, 1)
    is_complex = "c" in (old_wide.dtype.kind, new_wide.dtype.kind)
    apart = rows.row("c16" if is_complex else "f8", _ROW + 2, count)
    return np.abs(np.subtract(new_wide, old_wide, out=apart), out=sizes)


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
    # A complex number counts as its two parts.
    parts = wide.view("f8")
    return dot_product(parts, parts)


class Moments(NamedTuple):
    """The figures of the finite numbers of a block. `Summary.add` adds each to its
    field of the same name.
    """

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
    """The figures of a block of real numbers as `cast.as_numbers` has them."""
    import numpy as np

    wide = widen_numbers(values, 0)
    added = total(wide)
    nan = inf = 0
    if not isfinite(added):
        is_nan = np.isnan(wide)
        is_inf = np.isinf(wide)
        nan = _count_true(is_nan)
        inf = _count_true(is_inf)
        values = wide = wide[~(is_nan | is_inf)]
        added = float(wide.sum())
    if not len(values):
        return Moments(0, nan, inf)
    # Of the numbers as they are stored: float64 cannot hold each int64.
    low = values.min().item()
    high = values.max().item()
    # If the bounds leave no room for zeros none are counted.
    zeros = _count_true(values == 0) if low <= 0 <= high else 0
    squares = dot_product(wide, wide)
    mean = added / len(wide)
    # The sum of the squared distances from the mean. Where the mean is large beside
    # them, this loses digits.
    spread = squares - added * mean
    # Written with `not`, because NaN, of squares that are too large, compares false.
    if not spread > squares / 64:
        row = thread_rows().row("f8", _ROW + 1, len(wide))
        apart = np.subtract(wide, mean, out=row)
        spread = dot_product(apart, apart)
    return Moments(
        finite=len(wide),
        nan=nan,
        inf=inf,
        low=low,
        high=high,
        zeros=zeros,
        mean=mean,
        spread=spread,
        squares=squares,
    )
