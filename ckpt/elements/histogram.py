"""Histograms in one pass: bins whose width is a power of two, so that narrow ones join
without a remainder.
"""

from __future__ import annotations

from functools import cache
from math import copysign, floor, frexp, isfinite, ldexp
from sys import float_info
from typing import TYPE_CHECKING, Any

from ckpt.elements.cast import as_numbers, thread_rows
from ckpt.elements.double import abs_difference
from ckpt.model.dtypes import DType
from ckpt.model.text import Json

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BINS = 64
"""The most bins of a histogram."""
_FINEST = -1074
"""The exponent of the smallest number in float64."""
_ROW = 7
"""The rows of `scratch` that nobody else takes."""
_FEW = 1 << 12
"""Below so many numbers a table of pairs costs more than it saves."""
_FULL = 1 << 31
"""The most numbers that are counted in 32 bits."""


class Histogram:
    """The counts of finite numbers in at most `BINS` bins of one width. Plain numbers:
    it pickles in 1 KiB.

    The width is 2 ** `power`, the smallest with which `BINS` bins hold all numbers;
    whole for integers, and nothing that float64 cannot tell apart. Bin i holds `(first
    + i) * width <= x < (first + i + 1) * width`. So the counts follow from the numbers
    alone, whatever the parts and the order in which they are added. `power` is None
    while all numbers are equal.
    """

    def __init__(self) -> None:
        self.low: float = 0.0
        self.high: float = 0.0
        self.power: int | None = None
        self.first = 0
        self.counts: list[int] = []

    _table: Array | None = None
    """The count of each pair of places since `counts` was brought up to date.

    The index of a pair is the first place plus 256 times the second one.
    """
    _held = 0

    def add(self, values: Array, low: float, high: float) -> None:
        """Count finite numbers. All that were added, these included, reach from `low`
        to `high`.
        """
        import numpy as np

        self._cover_range(low, high)
        count = len(values)
        if self.power is None:
            self.counts[0] += count
            return
        places = _bin_places(values, self.power, self.first)
        # The numbers that are counted two by two; the others are counted one by one.
        paired = 0 if count < _FEW else count & ~1
        if paired:
            self._add_pairs(places[:paired])
        if paired < count:
            added = np.bincount(places[paired:], minlength=len(self.counts)).tolist()
            self.counts = [
                old + more for old, more in zip(self.counts, added, strict=True)
            ]

    def _add_pairs(self, places: Array) -> None:
        """Count two neighbours at once, which takes half the time."""
        import numpy as np

        if self._table is None:
            self._table = np.zeros(BINS * 256, "u4")
        indices = thread_rows().row("p", _ROW, len(places) // 2)
        np.copyto(indices, places.view("<u2"))
        if has_fast_at():
            np.add.at(self._table, indices, np.uint32(1))
        else:
            self._table += np.bincount(indices, minlength=BINS * 256).astype("u4")
        self._held += len(places)
        if self._held > _FULL:
            self._bring_up()

    def _bring_up(self) -> None:
        """Bring `counts` up to date."""
        if self._table is None or not self._held:
            return
        # Rows are the second places of pairs, columns the first ones.
        square = self._table.reshape(BINS, 256)[:, :BINS].astype("i8")
        added = (square.sum(axis=0) + square.sum(axis=1)).tolist()
        # The table has rows for all bins that there may be, which are more.
        self.counts = [
            old + more for old, more in zip(self.counts, added, strict=False)
        ]
        self._table[:] = 0
        self._held = 0

    def settle(self) -> None:
        """Take over what was counted, after the last numbers: then it merges, and
        pickles.
        """
        self._bring_up()
        self.__dict__.pop("_table", None)
        self.__dict__.pop("_held", None)

    def add_change(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        dtypes: tuple[DType, DType],
    ) -> None:
        """Count the finite differences of the next elements of both: as numpy subtracts
        them, of integers exactly.

        float32 and narrower floats are subtracted in float32. Complex numbers count by
        the magnitude of the difference.
        """
        import numpy as np

        with np.errstate(all="ignore"):
            values = _element_deltas(before, after, dtypes)
            if not len(values):
                return
            low, high = values.min().item(), values.max().item()
            if not (isfinite(low) and isfinite(high)):
                values = values[np.isfinite(values)]
                if not len(values):
                    return
                low, high = values.min().item(), values.max().item()
            self.add(values, *self._joint_range(low, high))

    def merge(self, other: Histogram) -> None:
        """Add the counts of other numbers."""
        if not other.counts:
            return
        self._cover_range(*self._joint_range(other.low, other.high))
        for index, count in enumerate(other.counts):
            if self.power is None:
                place = 0
            elif other.power is None:
                place = self._bin_index(other.low)
            else:
                # Bins of the other one are never wider: their number loses its last
                # bits.
                wide_number = (other.first + index) >> (self.power - other.power)
                place = wide_number - self.first
            self.counts[place] += count

    @staticmethod
    def of(low: float, high: float, counts: list[int]) -> Histogram:
        """The histogram of finite numbers from `low` to `high`, with the counts of its
        bins: all else follows from them.

        Raises ValueError for other than its bins.
        """
        whole = Histogram()
        if counts:
            if low > high or isinstance(low, int) != isinstance(high, int):
                raise ValueError
            whole._cover_range(low, high)
        if len(whole.counts) != len(counts):
            raise ValueError
        whole.counts = counts
        return whole

    def repeated(self, times: int) -> None:
        """Count every number `times` times."""
        self.counts = [count * times for count in self.counts]

    @property
    def edges(self) -> tuple[float, float]:
        """Return the beginning of the first bin and the end of the last one.

        Both are the number itself if all numbers are equal.
        """
        if self.power is None:
            return self.low, self.high
        first = self.first
        last = self.first + len(self.counts)
        if isinstance(self.low, int):
            return first << self.power, last << self.power
        return _bin_edge(first, self.power), _bin_edge(last, self.power)

    def to_json(self) -> dict[str, Json] | None:
        """The field `histogram`; docs/json.md is its contract. None where no number is
        finite.
        """
        if not self.counts:
            return None
        low, high = self.edges
        return {"low": low, "high": high, "counts": list(self.counts)}

    def _joint_range(self, low: float, high: float) -> tuple[float, float]:
        """The range of these numbers and of those that were added before."""
        if not self.counts:
            return low, high
        return min(self.low, low), max(self.high, high)

    def _bin_index(self, value: float) -> int:
        """The index in `counts` of the bin of a number."""
        return 0 if self.power is None else _bin_number(value, self.power) - self.first

    def _cover_range(self, low: float, high: float) -> None:
        """Make the bins reach from `low` to `high`. All earlier numbers lie within."""
        if self.counts and low == self.low and high == self.high:
            return
        self._bring_up()
        old_counts = self.counts
        old_first = self.first
        old_power = self.power
        old_low = self.low
        self.low = low
        self.high = high
        if low == high:
            self.counts = old_counts or [0]
            return
        power = _width_power(low, high)
        self.power = power
        self.first = _bin_number(low, power)
        self.counts = [0] * (_bin_number(high, power) - self.first + 1)
        for index, count in enumerate(old_counts):
            if old_power is None:  # all numbers so far are equal
                number = _bin_number(old_low, power)
            else:
                number = (old_first + index) >> (power - old_power)
            self.counts[number - self.first] += count


@cache
def has_fast_at() -> bool:
    """Tell whether `add.at` of numpy is faster than `bincount`, as it is from
    1.25 on.
    """
    import numpy as np

    return np.lib.NumpyVersion(np.__version__) >= "1.25.0"


def join_histograms(
    first: Histogram | None, second: Histogram | None
) -> Histogram | None:
    """The histogram of the numbers of both."""
    if first is not None and second is not None:
        first.merge(second)
        return first
    return first or second


def _bin_number(value: float, power: int) -> int:
    """The number of the bin of the width 2 ** `power` that a value lies in, counted
    from 0.
    """
    if isinstance(value, int):
        return value >> power
    number = floor(ldexp(value, -power))
    # A number that is tiny beside the width may have become -0.0.
    return min(number, -1) if value < 0 else number


def _width_power(low: float, high: float) -> int:
    """The power of two that is the width of the bins for numbers between `low` and
    `high`, which are not equal.
    """
    if isinstance(low, int) and isinstance(high, int):
        power = max((high - low).bit_length() - 7, 0)
    else:
        spread = frexp(high / 2 - low / 2)[1] - 7
        # Below this the edges would not be numbers of float64.
        power = max(spread, frexp(max(abs(low), abs(high)))[1] - 53, _FINEST)
    while _bin_number(high, power) - _bin_number(low, power) >= BINS:
        power += 1
    return power


def _bin_edge(number: int, power: int) -> float:
    """The beginning of a bin, or the largest number of float64 that is not beyond."""
    try:
        return ldexp(number, power)
    except OverflowError:  # no number lies between the largest of float64 and this edge
        return copysign(float_info.max, number)


_FRACTION = {"f4": 23, "f8": 52}
"""Bits of the fraction of a float. In 2 to this power the last bit is 1."""


def _bin_places(values: Array, power: int, first: int) -> Array:
    """The number of the bin of each number, from 0, as bytes. All numbers lie
    in a bin.
    """
    import numpy as np

    places = thread_rows().row("u1", _ROW, len(values))
    kind = values.dtype.str[1:]
    bits = _FRACTION.get(kind, 0)
    # With a width of at most 1 nothing underflows; the other bounds keep every step
    # exact.
    is_exact = bits > 0 and -5 * bits < power <= 0 and abs(first) < 1 << (bits - 2)
    if is_exact:
        scaled = thread_rows().row(kind, _ROW, len(values))
        number = scaled.dtype.type
        np.multiply(values, number(ldexp(1.0, -power)), out=scaled)
        np.floor(scaled, out=scaled)
        # From 2 ** bits on, the last bits of a float are those of a whole number: the
        # place is read from them.
        np.add(scaled, number((1 << bits) - first), out=scaled)
        np.copyto(places, scaled.view(f"u{scaled.itemsize}"), casting="unsafe")
    elif values.dtype.kind in "iu":
        shifted = np.right_shift(values, values.dtype.type(power)).astype("u8")
        offset = np.uint64(first % (1 << 64))  # both wrap around
        np.copyto(places, shifted - offset, casting="unsafe")
    else:
        with np.errstate(all="ignore"):
            wide = np.floor(np.ldexp(values.astype("f8"), -power))
        # As in `_bin_number`: a small negative number may have become -0.0.
        np.minimum(wide, -1.0, out=wide, where=values < 0)
        np.copyto(places, wide - float(first), casting="unsafe")
    return places


def _element_deltas(
    before: bytes | memoryview, after: bytes | memoryview, dtypes: tuple[DType, DType]
) -> Array:
    """The difference of each element, after less before."""
    import numpy as np

    old = as_numbers(before, dtypes[0], 0)
    new = as_numbers(after, dtypes[1], 1)
    kinds = {old.dtype.kind, new.dtype.kind}
    if "c" in kinds:
        sizes: Array = np.abs(np.subtract(new, old))
        return sizes
    if kinds <= {"i", "u"}:
        if max(old.itemsize, new.itemsize) < 8:
            return np.subtract(new, old, dtype="i8")
        # The difference of two numbers of 64 bits may not fit into 64 bits.
        signs = np.where(new >= old, 1.0, -1.0)
        far: Array = abs_difference(old, new) * signs
        return far
    if old.dtype == new.dtype:
        row = thread_rows().row(old.dtype.str[1:], _ROW + 1, len(old))
        return np.subtract(new, old, out=row)
    apart: Array = np.subtract(new, old)
    return apart
