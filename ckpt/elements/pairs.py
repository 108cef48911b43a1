"""Elements of one byte, counted by their codes. All numbers of a span follow from the counts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt.dtypes import DType
from ckpt.elements.cast import numbers, scratch
from ckpt.elements.kernels import dot
from ckpt.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FEWEST = 1 << 14
"""Below so many elements the tables of 65,536 pairs cost more than the elements."""
_STEP = 1 << 16
_FULL = 1 << 31
"""How many elements are counted in 32 bits."""


def counts_codes(*dtypes: DType) -> bool:
    """Whether elements of these types are compared by their codes. Integers of one type are faster by arithmetic."""
    is_float = any(dtype.kind == "float" for dtype in dtypes)
    return all(dtype.bits == 8 for dtype in dtypes) and (is_float or len(set(dtypes)) > 1)


class Counter:
    """How often each of the numbers below 65,536 occurs."""

    def __init__(self) -> None:
        import numpy as np

        self.recent = np.zeros(1 << 16, "u4")
        """The counts since `_whole` was brought up to date: 32 bits, so that the table stays in the cache."""
        self._whole = np.zeros(1 << 16, "i8")
        self._held = 0

    def add(self, codes: Array) -> None:
        """Count an array of uint16 of at most a few million elements."""
        import numpy as np

        if self._held + len(codes) > _FULL:
            self._whole += self.recent
            self.recent[:] = 0
            self._held = 0
        indices = scratch().row("p", 0, len(codes))
        np.copyto(indices, codes)
        if has_fast_at():
            np.add.at(self.recent, indices, np.uint32(1))
        else:
            self.recent += np.bincount(indices, minlength=1 << 16).astype("u4")
        self._held += len(codes)

    @property
    def counts(self) -> Array:
        """All counts, in int64."""
        whole: Array = self._whole + self.recent
        return whole


@cache
def has_fast_at() -> bool:
    """Whether `add.at` of numpy is faster than `bincount`, as it is from 1.25 on."""
    import numpy as np

    return np.lib.NumpyVersion(np.__version__) >= "1.25.0"


# --- two tensors ------------------------------------------------------------------------------------------------------


class _Tables(NamedTuple):
    """What each pair of codes means, in float64. The code of the first tensor counts 256 times."""

    one: Array
    two: Array
    unequal: Array
    delta: Array
    """|Δ| over finite values, else 0."""


@cache
def _tables(first: DType, second: DType) -> _Tables:
    import numpy as np

    with np.errstate(all="ignore"):
        one = np.repeat(_values(first), 256)
        two = np.tile(_values(second), 256)
        unequal = (one != two) & ~(np.isnan(one) & np.isnan(two))
        delta = np.abs(two - one)
    delta[~np.isfinite(delta)] = 0.0
    return _Tables(one, two, unequal, delta)


def _values(dtype: DType) -> Array:
    """The value of each code, in float64."""
    made: Array = numbers(bytes(range(256)), dtype).astype("f8")
    return made


class PairResult(NamedTuple):
    """The numbers of `Difference`."""

    differing: int
    other_bytes: int
    squares: float
    reference: float
    nan: tuple[int, int]
    inf: tuple[int, int]
    close: bool


class Pairs:
    """How often each pair of codes occurs in two tensors. `largest` and `at` are those of `Difference`.

    `first` is the number of the first element that is added.
    """

    def __init__(
        self, dtypes: tuple[DType, DType], tolerance: tuple[float, float] | None, first: int = 0
    ) -> None:
        self._dtypes = dtypes
        self._tolerance = tolerance
        self._counter = Counter()
        self.largest = 0.0
        self.at: int | None = None
        self._numel = first
        self._larger = _tables(*dtypes).delta > 0
        """Which pairs have a |Δ| above `largest`."""

    def add(self, before: bytes | memoryview, after: bytes | memoryview) -> None:
        """Count the next elements of both."""
        import numpy as np

        one, two = np.frombuffer(before, "u1"), np.frombuffer(after, "u1")
        for start in range(0, len(one), _STEP):
            codes = scratch().row("u2", 0, min(_STEP, len(one) - start))
            np.copyto(codes, one[start : start + _STEP])
            codes <<= 8
            codes |= two[start : start + _STEP]
            self._counter.add(codes)
            self._find_larger(codes)
            self._numel += len(codes)

    def _find_larger(self, codes: Array) -> None:
        """Look for a larger |Δ| in the elements that were just counted."""
        import numpy as np

        found = np.flatnonzero((self._counter.recent != 0) & self._larger)
        if not len(found):
            return
        delta = _tables(*self._dtypes).delta
        self.largest = float(delta[found].max())
        self.at = self._numel + int(np.argmax(np.isin(codes, found[delta[found] == self.largest])))
        self._larger = delta > self.largest

    def result(self) -> PairResult:
        """The numbers of all elements that were counted."""
        import numpy as np

        counts = self._counter.counts
        held = np.flatnonzero(counts)
        counts, tables = counts[held], _tables(*self._dtypes)
        one, two, unequal, delta = (table[held] for table in tables)
        differing = int(counts[unequal].sum())
        other = 0
        if self._dtypes[0] == self._dtypes[1]:
            other = int(counts[held >> 8 != held & 255].sum()) - differing
        is_finite = np.isfinite(one)
        weights = counts.astype("f8")
        with np.errstate(all="ignore"):
            close = True
            if self._tolerance is not None:
                allowed = self._tolerance[0] + self._tolerance[1] * np.abs(one)
                within = np.isfinite(two - one) & (delta <= allowed)
                close = not bool(np.any(unequal & ~within))
            return PairResult(
                differing,
                other,
                dot(weights, delta * delta),
                dot(weights[is_finite], one[is_finite] ** 2),
                (int(counts[np.isnan(one)].sum()), int(counts[np.isnan(two)].sum())),
                (int(counts[np.isinf(one)].sum()), int(counts[np.isinf(two)].sum())),
                close,
            )


# --- one tensor -------------------------------------------------------------------------------------------------------


class Codes:
    """How often each code occurs in one tensor. Two neighbours are counted at once, which takes half the time."""

    def __init__(self, dtype: DType) -> None:
        import numpy as np

        self._dtype = dtype
        self._counter = Counter()
        self._odd = np.zeros(256, "i8")

    def add(self, block: bytes | memoryview) -> None:
        """Count the next elements."""
        import numpy as np

        even = len(block) & ~1
        if even < len(block):
            self._odd[block[-1]] += 1
        both = np.frombuffer(block, "<u2", even // 2)
        for start in range(0, len(both), _STEP):
            self._counter.add(both[start : start + _STEP])

    def counts(self) -> tuple[Array, Array]:
        """(the values that occur, as `numbers` has them, and how often)."""
        import numpy as np

        square = self._counter.counts.reshape(256, 256)
        counts = square.sum(axis=0) + square.sum(axis=1) + self._odd
        held = np.flatnonzero(counts)
        return numbers(bytes(range(256)), self._dtype)[held], counts[held]
