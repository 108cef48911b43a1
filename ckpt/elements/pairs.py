"""Elements of one byte, counted by their codes. All numbers of a span follow from the counts.

The kernels that compare two blocks of other elements stand here too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ckpt.dtypes import DType
from ckpt.elements.cast import numbers, scratch
from ckpt.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FEWEST = 1 << 14
"""Below so many elements the tables of 65,536 pairs cost more than the elements."""
_STEP = 1 << 16
_FULL = 1 << 31
"""The most elements that are counted in 32 bits."""


def counts_codes(*dtypes: DType) -> bool:
    """Tell whether elements of these types are compared by their codes.

    Integers of one type are faster by arithmetic.
    """
    is_float = any(dtype.kind == "float" for dtype in dtypes)
    return all(dtype.bits == 8 for dtype in dtypes) and (is_float or len(set(dtypes)) > 1)


class Counter:
    """The count of each of the numbers below 65,536."""

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
    """Tell whether `add.at` of numpy is faster than `bincount`, as it is from 1.25 on."""
    import numpy as np

    return np.lib.NumpyVersion(np.__version__) >= "1.25.0"


# --- two tensors ------------------------------------------------------------------------------------------------------


class _Tables(NamedTuple):
    """The meaning of each pair of codes, in float64. The code of the first tensor counts 256 times."""

    one: Array
    two: Array
    unequal: Array
    delta: Array
    """|Δ| over finite values, else 0."""


@cache
def _tables(first: DType, second: DType) -> _Tables:
    import numpy as np

    with np.errstate(all="ignore"):
        old = np.repeat(_values(first), 256)
        new = np.tile(_values(second), 256)
        unequal = (old != new) & ~(np.isnan(old) & np.isnan(new))
        delta = np.abs(new - old)
    delta[~np.isfinite(delta)] = 0.0
    return _Tables(old, new, unequal, delta)


def _values(dtype: DType) -> Array:
    """The value of each code, in float64."""
    values: Array = numbers(bytes(range(256)), dtype).astype("f8")
    return values


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
    """The count of each pair of codes in two tensors. `largest` and `at` mean the same as in `Difference`.

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
        """The pairs that have a |Δ| above `largest`."""

    def add(self, before: bytes | memoryview, after: bytes | memoryview) -> None:
        """Count the next elements of both."""
        import numpy as np

        old, new = np.frombuffer(before, "u1"), np.frombuffer(after, "u1")
        for start in range(0, len(old), _STEP):
            codes = scratch().row("u2", 0, min(_STEP, len(old) - start))
            np.copyto(codes, old[start : start + _STEP])
            codes <<= 8
            codes |= new[start : start + _STEP]
            self._counter.add(codes)
            self._find_larger(codes)
            self._numel += len(codes)

    def _find_larger(self, codes: Array) -> None:
        """Look for a larger |Δ| in the elements that were just counted."""
        import numpy as np

        indices = np.flatnonzero((self._counter.recent != 0) & self._larger)
        if not len(indices):
            return
        delta = _tables(*self._dtypes).delta
        self.largest = float(delta[indices].max())
        self.at = self._numel + int(np.argmax(np.isin(codes, indices[delta[indices] == self.largest])))
        self._larger = delta > self.largest

    def result(self) -> PairResult:
        """The numbers of all elements that were counted."""
        import numpy as np

        counts = self._counter.counts
        held = np.flatnonzero(counts)
        counts, tables = counts[held], _tables(*self._dtypes)
        old, new, unequal, delta = (table[held] for table in tables)
        differing = int(counts[unequal].sum())
        other = 0
        if self._dtypes[0] == self._dtypes[1]:
            other = int(counts[held >> 8 != held & 255].sum()) - differing
        is_finite = np.isfinite(old)
        weights = counts.astype("f8")
        with np.errstate(all="ignore"):
            close = True
            if self._tolerance is not None:
                allowed = self._tolerance[0] + self._tolerance[1] * np.abs(old)
                within = np.isfinite(new - old) & (delta <= allowed)
                close = not bool(np.any(unequal & ~within))
            return PairResult(
                differing,
                other,
                dot(weights, delta * delta),
                dot(weights[is_finite], old[is_finite] ** 2),
                (int(counts[np.isnan(old)].sum()), int(counts[np.isnan(new)].sum())),
                (int(counts[np.isinf(old)].sum()), int(counts[np.isinf(new)].sum())),
                close,
            )


# --- one tensor -------------------------------------------------------------------------------------------------------


class Codes:
    """The count of each code in one tensor.

    Two neighbours are counted at once, which takes half the time.
    """

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


_TINY = 1e-290
"""Squares below may have lost bits."""


PIECE = 8192
"""The most elements of one call of BLAS. OpenBLAS starts threads above 10,000, and each number of threads has last digits
of its own."""


def dot(first: Array, second: Array) -> float:
    """The sum of the products of two rows of float64: the same for any number of threads that BLAS may use."""
    import numpy as np

    rest = len(first) % PIECE
    if rest:
        last = float(first[-rest:].dot(second[-rest:]))
        return dot(first[:-rest], second[:-rest]) + last if len(first) > rest else last
    total = 0.0
    # One call for all pieces, because each call gives up the GIL. `sum` has other digits from Python 3.12 on.
    for piece in np.matmul(first.reshape(-1, 1, PIECE), second.reshape(-1, PIECE, 1)).ravel().tolist():
        total += piece
    return total


class Delta(NamedTuple):
    """The difference in a block.

    `largest` is max |Δ|, `at` its first index if it is above the one known before.
    """

    differing: int
    largest: float
    at: int | None
    squares: float
    reference: float
    close: bool = True


def delta_of(
    before: bytes | memoryview,
    after: bytes | memoryview,
    dtypes: tuple[DType, DType],
    peak: float,
    tolerance: tuple[float, float] | None,
) -> Delta | None:
    """Return the difference in a block, or None for a NaN, an infinity, or numbers too large for float64.

    `peak` is the largest |Δ| of the blocks before; `tolerance` is (absolute, relative). Call it below `np.errstate`.
    """
    old, new = dtypes
    if old == new and tolerance is None:
        if old.kind == "complex" and old.bits > 32:
            return _complex(before, after, old, peak)
        if old.bits == 8 and old.kind in ("int", "bool"):
            return _octets(before, after, old, peak)
    if old == new and old.kind == "int" and old.bits == 64:
        return _long(before, after, old, peak, tolerance)
    if _is_wide_enough(old) and _is_wide_enough(new):
        return _real(before, after, dtypes, peak, tolerance)
    return None


def _is_wide_enough(dtype: DType) -> bool:
    """Tell whether float64 holds all numbers of a type."""
    return dtype.kind != "complex" and (dtype.kind == "float" or dtype.bits < 64)


def widened(block: bytes | memoryview, dtype: DType, row: int) -> Array:
    """The elements in float64, valid until the thread takes the same `row` again."""
    import numpy as np

    if dtype.name == "float64":
        return np.frombuffer(block, "<f8")
    narrow = np.frombuffer(block, "<f2") if dtype.name == "float16" else numbers(block, dtype, row)
    wide = scratch().wide(row, len(narrow))
    np.copyto(wide, narrow)
    return wide


def _real(
    before: bytes | memoryview,
    after: bytes | memoryview,
    dtypes: tuple[DType, DType],
    peak: float,
    tolerance: tuple[float, float] | None,
) -> Delta | None:
    """Numbers that float64 holds."""
    import numpy as np

    wide = widened(before, dtypes[0], 0)
    reference = dot(wide, wide)
    if not np.isfinite(reference):
        return None
    other = widened(after, dtypes[1], 1)
    if dtypes[0] == dtypes[1] and dtypes[0].bits in (16, 32) and dtypes[0].name != "float16":
        # float32 holds these, and the narrower, the faster; bfloat16 lies there from `widened`.
        differing = int(np.count_nonzero(_narrow(before, dtypes[0], 0) != _narrow(after, dtypes[1], 1)))
    else:
        differing = int(np.count_nonzero(wide != other))
    if not differing:
        return Delta(0, 0.0, None, 0.0, reference)
    delta = np.subtract(other, wide, out=scratch().wide(1, len(wide)))
    squares = dot(delta, delta)
    if not np.isfinite(squares):
        return None
    largest = max(float(delta.max()), -float(delta.min()))
    index = int(np.argmax(np.abs(delta))) if largest > peak else None
    close = True
    if tolerance is not None:
        allowed = tolerance[0] + tolerance[1] * np.abs(wide)
        close = bool((np.abs(delta) <= allowed).all())
    return Delta(differing, largest, index, squares, reference, close)


def _narrow(block: bytes | memoryview, dtype: DType, row: int) -> Array:
    """Return the elements as `numbers` has them. The elements of bfloat16 are there already."""
    if dtype.name == "bfloat16":
        return scratch().words(row, len(block) // 2).view("<f4")
    return numbers(block, dtype)


def _octets(before: bytes | memoryview, after: bytes | memoryview, dtype: DType, peak: float) -> Delta:
    """Integers of one byte: all sums are exact, in 16 and 32 bits."""
    import numpy as np

    old, new = numbers(before, dtype), numbers(after, dtype)
    wide, delta = (scratch().row("i2", row, len(old)) for row in (0, 1))
    np.copyto(wide, old)
    reference = _squared(wide)
    differing = int(np.count_nonzero(old != new))
    if not differing:
        return Delta(0, 0.0, None, 0.0, reference)
    np.copyto(wide, old)
    np.copyto(delta, new)
    delta -= wide
    largest = float(max(int(delta.max()), -int(delta.min())))
    index = int(np.argmax(np.abs(delta))) if largest > peak else None
    return Delta(differing, largest, index, _squared(delta), reference)


def _squared(values: Array) -> float:
    """The sum of the squares of int16 from -255 to 255, which are squared in place."""
    import numpy as np

    np.multiply(values, values, out=values)
    # 65,536 squares of at most 65,025 fit into 32 bits.
    return float(values.view("u2").sum(dtype="u4" if len(values) <= 1 << 16 else "u8"))


def _long(
    before: bytes | memoryview,
    after: bytes | memoryview,
    dtype: DType,
    peak: float,
    tolerance: tuple[float, float] | None,
) -> Delta | None:
    """Integers of 64 bits. They are subtracted exactly, so that different ones never have a |Δ| of 0."""
    import numpy as np

    old, new = numbers(before, dtype), numbers(after, dtype)
    low, high = min(int(old.min()), int(new.min())), max(int(old.max()), int(new.max()))
    if high - low >= 1 << 63:
        return None
    wide = scratch().wide(0, len(old))
    np.copyto(wide, old)
    reference = dot(wide, wide)
    differing = int(np.count_nonzero(old != new))
    if not differing:
        return Delta(0, 0.0, None, 0.0, reference)
    exact = np.subtract(new.view("<i8"), old.view("<i8"), out=scratch().row("i8", 0, len(old)))
    delta = scratch().wide(1, len(old))
    np.copyto(delta, exact)
    np.abs(delta, out=delta)
    largest = float(delta.max())
    index = int(np.argmax(delta)) if largest > peak else None
    squares = dot(delta, delta)
    close = True
    if tolerance is not None:
        close = not bool(np.any((old != new) & (delta > tolerance[0] + tolerance[1] * np.abs(wide))))
    return Delta(differing, largest, index, squares, reference, close)


def _complex(
    before: bytes | memoryview, after: bytes | memoryview, dtype: DType, peak: float
) -> Delta | None:
    """Complex numbers by their parts. |Δ| is computed exactly only for those that may be the largest."""
    import numpy as np

    part = f"<f{dtype.bits // 16}"
    old, new = np.frombuffer(before, part), np.frombuffer(after, part)
    wide, delta = old, scratch().wide(1, len(old))
    if part != "<f8":
        wide = scratch().wide(0, len(old))
        np.copyto(wide, old)
        np.copyto(delta, new)
        np.subtract(delta, wide, out=delta)
    else:
        np.subtract(new, old, out=delta)
    reference, squares = dot(wide, wide), dot(delta, delta)
    if not np.isfinite(squares + reference):
        return None
    unequal = old != new
    differing = int(np.count_nonzero(unequal.view("u2")))
    if not differing:
        return Delta(0, 0.0, None, 0.0, reference)
    np.multiply(delta, delta, out=delta)
    sizes = np.add(delta[0::2], delta[1::2], out=scratch().wide(2, len(old) // 2))
    top = float(sizes.max())
    if top < _TINY:
        return None
    if top < peak * peak * (1 - 1e-14):
        return Delta(differing, 0.0, None, squares, reference)
    may = np.flatnonzero(sizes >= top * (1 - 1e-14))
    number = f"<c{dtype.bits // 8}"
    pair = (np.frombuffer(block, number)[may].astype("c16") for block in (before, after))
    exact = np.abs(np.subtract(*pair))
    place = int(np.argmax(exact))
    return Delta(differing, float(exact[place]), int(may[place]), squares, reference)


def distance(first: Array, second: Array, wide: Array) -> Array:
    """|Δ| of each element in float64. Integers are subtracted exactly, so that different ones never have a |Δ| of 0."""
    import numpy as np

    if first.dtype.kind in "iu" and first.dtype == second.dtype:
        larger, smaller = np.maximum(first, second), np.minimum(first, second)
        unsigned = first.dtype.str.replace("i", "u")
        exact: Array = (larger.view(unsigned) - smaller.view(unsigned)).astype("f8")
        return exact
    distance: Array = np.abs(wide_of(second) - wide)
    return distance


def wide_of(values: Array) -> Array:
    return values.astype("c16" if values.dtype.kind == "c" else "f8")


def unequal_bytes(before: bytes | memoryview, after: bytes | memoryview, dtype: DType) -> int:
    """Elements whose bytes differ."""
    import numpy as np

    width = dtype.bits // 8
    if width in (1, 2, 4, 8):
        return int(np.count_nonzero(np.frombuffer(before, f"u{width}") != np.frombuffer(after, f"u{width}")))
    changed = np.frombuffer(before, "u8") != np.frombuffer(after, "u8")
    return int(np.count_nonzero(changed.reshape(-1, width // 8).any(axis=1)))
