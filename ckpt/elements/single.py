"""The figures of a block in float32, for numbers that it holds: half as wide as
float64, and so twice as fast.

What must be exact is: counts, max |Δ| and its place, whether all are close. Sums of
squares, means and spreads have a relative error of 1e-6 at most. A block where float32
cannot keep that has no figures here.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from ckpt.elements.cast import thread_rows
from ckpt.elements.double import Delta, Moments, abs_difference
from ckpt.elements.sums import SINGLE_PIECE, dot_product, total
from ckpt.model.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_LEAST = 1e-30
_MOST = 1e30
"""The bounds of a sum of squares between which none that counts was lost, or infinite,
in float32.
"""
_ROUNDING = 1e-6
"""More than the relative error of one number, and of |Δ|, in float32."""
_CENTRED = 4
"""The most that a sum of squares may be beside the spread that is left of it: each
doubling costs a bit.
"""
_FEW = 8
"""The share of a block, 1 of so many, that is picked out of it in the time that all of
it takes.
"""
_EVEN = ("float8_e4m3fn", "float8_e4m3fnuz")
"""Floats whose numbers are multiples of 2^-10 below 2^9: their differences need 20 of
the 24 bits.
"""
_ROW = 10
"""The first of the rows of `scratch` that nobody else takes."""


def is_held_by_float32(dtype: DType) -> bool:
    """Tell whether float32 holds all numbers of a type."""
    if dtype.kind == "float":
        return dtype.bits <= 32
    return dtype.kind in ("int", "bool") and dtype.bits <= 16


def has_exact_differences(*dtypes: DType) -> bool:
    """Tell whether float32 holds all differences of numbers of these types, each of
    which it holds.
    """
    if all(dtype.kind != "float" for dtype in dtypes):
        return True
    return all(dtype.name in _EVEN for dtype in dtypes)


def measure_delta(
    old: Array,
    new: Array,
    peak: float,
    tolerance: tuple[float, float] | None,
    *,
    is_exact: bool = False,
    apart: Array | None = None,
) -> Delta | None:
    """The difference of two blocks of numbers that float32 holds, or None;
    `double.measure_delta` has the rest.

    `peak` is the largest |Δ| of the blocks before; `tolerance` is (absolute, relative).
    `is_exact` is what `has_exact_differences` says of their types. `apart` are their
    differences in float32, if they are known; they may be changed.
    """
    import numpy as np

    # Each array below is a row of memory that the thread keeps: a block must not cost
    # an allocation.
    old = _to_float32(old, 0)
    new = _to_float32(new, 1)
    if apart is None:
        row = thread_rows().row("<f4", _ROW + 2, len(old))
        apart = np.subtract(new, old, out=row)
    reference = dot_product(old, old)
    squares = dot_product(apart, apart)
    if not (_is_kept(reference, old) and _is_kept(squares, apart)):
        return None
    if not squares:
        return Delta(0, 0.0, reference)
    # The difference of unequal numbers is never rounded to 0.
    differing = int(np.count_nonzero(apart != 0))
    rounded = largest = max(float(apart.max()), -float(apart.min()))
    at = None
    may_round_above = not is_exact and largest >= peak * (1 - _ROUNDING)
    if largest > peak or may_round_above:
        # Rounding keeps the order: the largest |Δ| is among those that are the largest
        # in float32.
        sizes = np.abs(apart, out=apart)
        candidates = np.flatnonzero(sizes == rounded)
        place = int(candidates[0])
        if not is_exact:
            largest, place = _largest_delta(old, new, candidates)
        at = place if largest > peak else None
    is_close = True
    # Where max |Δ| is within the absolute tolerance no element needs a look.
    if tolerance is not None and not rounded * (1 + _ROUNDING) <= tolerance[0]:
        wide = old.astype("f8")
        allowed = tolerance[0] + tolerance[1] * np.abs(wide)
        is_close = bool((np.abs(new - wide) <= allowed).all())
    return Delta(differing, squares, reference, largest, at, is_close)


def _largest_delta(old: Array, new: Array, candidates: Array) -> tuple[float, int]:
    """Max |Δ| in float64 and its first index, which is one of the candidates."""
    if len(candidates) * _FEW > len(old):
        exact = abs_difference(old, new)
        place = int(exact.argmax())
        return float(exact[place]), place
    exact = abs_difference(old[candidates], new[candidates])
    place = int(exact.argmax())
    return float(exact[place]), int(candidates[place])


def measure_moments(values: Array) -> Moments | None:
    """The figures of a block of numbers that float32 holds, or None;
    `double.measure_moments` has the rest.
    """
    import numpy as np

    single = _to_float32(values, 0)
    count = len(values)
    low = values.min().item()
    high = values.max().item()
    zeros = int(np.count_nonzero(single == 0)) if low <= 0 <= high else 0
    if low == high and isfinite(low):
        mean = float(low)
        return Moments(
            finite=count,
            low=low,
            high=high,
            zeros=zeros,
            mean=mean,
            squares=count * mean**2,
        )
    # Squares are summed around a number near the mean: far from it float32 would lose
    # the digits that the spread is made of.
    centre = _guess_mean(single[:SINGLE_PIECE])
    apart = single
    if centre:
        row = thread_rows().row("<f4", _ROW + 2, count)
        apart = np.subtract(single, np.float32(centre), out=row)
    squares_around = dot_product(apart, apart)
    sum_around = total(apart)
    offset = sum_around / count  # from the centre to the mean
    spread = squares_around - sum_around * offset
    if not _is_kept(squares_around, apart) or spread * _CENTRED < squares_around:
        return None
    squares = squares_around + 2 * centre * sum_around + count * centre**2
    return Moments(
        finite=count,
        low=low,
        high=high,
        zeros=zeros,
        mean=centre + offset,
        spread=spread,
        squares=squares,
    )


def _guess_mean(first: Array) -> float:
    """A number near the mean where the mean is large beside the spread, judged by some
    of the numbers; else 0.
    """
    import numpy as np

    mean = total(first) / len(first)
    if not isfinite(mean):
        return 0.0
    mean_square = dot_product(first, first) / len(first)
    if not 2 * mean * mean > mean_square:
        return 0.0
    # As float32 has it: it is subtracted from numbers of float32.
    return float(np.float32(mean))


def _to_float32(values: Array, row: int) -> Array:
    """The numbers in float32: themselves, or in a row of the thread."""
    import numpy as np

    if values.dtype == np.float32:
        return values
    single = thread_rows().row("<f4", _ROW + row, len(values))
    np.copyto(single, values)
    return single


def _is_kept(squares: float, values: Array) -> bool:
    """Tell whether a sum of squares in float32 lost none that counts."""
    return _LEAST < squares < _MOST or (squares == 0 and not values.any())
