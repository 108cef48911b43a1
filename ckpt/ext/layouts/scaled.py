"""Looking for a number that all elements of a tensor of B share beside a tensor of A: a
factor, or the 1 of a norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import frexp, sqrt
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.ext.layouts.formulas import COMPUTED
from ckpt.ext.layouts.proof import Leaf, read_elements
from ckpt.model.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_FEW = 8
"""Elements that say which tensors are worth more of them."""
_SAMPLE = 1 << 14
"""Elements that say which factor it may be."""


def multiples(
    targets: Sequence[Leaf], sources: Sequence[Leaf]
) -> Iterator[tuple[Leaf, list[Leaf]]]:
    """Yield targets, each with the sources that may be it but for a number.

    All have one dtype and as many elements. A few elements say it.
    """
    import numpy as np

    known = [leaf for leaf in sources if leaf.dtype.name in COMPUTED]
    if not known or targets[0].dtype.name not in COMPUTED:
        return
    # Quotients by 0 are infinite or NaN, which fit nothing.
    with np.errstate(all="ignore"):
        rows = np.stack([_some_numbers(leaf) for leaf in known])
        tables = _Tables(rows, 2.0 ** -_mantissa_bits(targets[0].dtype) * 2)
        for target in targets:
            fits = tables.fitting(_some_numbers(target))
            yield target, [known[number] for number in fits]


class _Tables:
    """Rows of a few numbers, found by one row that is a multiple of theirs, or theirs
    moved by 1.

    One number of a row finds those that may fit: not each row is looked at for each
    other row.
    """

    def __init__(self, rows: Array, slack: float) -> None:
        self._rows = rows
        self._slack = slack
        self._ratios: dict[tuple[int, int], tuple[Array, Array]] = {}
        """For two columns: the quotients of the second by the first in ascending order,
        and the numbers of their rows.
        """
        # Rows by their first number: those that are moved by 1 are found by it.
        self._firsts = _in_order(rows[:, 0])

    def fitting(self, own: Array) -> list[int]:
        """The numbers of the rows that one row fits, in ascending order."""
        import numpy as np

        # The largest number is the divisor: it is 0 only where all are.
        sizes = np.abs(own)
        most = int(sizes.argmax())
        near = self._moved(own)
        if own[most] != 0 and len(own) > 1:
            near = [*near, *self._with_ratio(own, most)]
        elif own[most] == 0:
            # Zeros are a multiple of zeros alone.
            near = [*near, *_between(self._firsts, 0.0, 0.0)]
        numbers = np.unique(np.concatenate(near)) if near else np.zeros(0, np.int64)
        # `rows` are `[candidates, numbers]`; each is held against its own factor.
        rows = self._rows[numbers]
        factors = own[most] / rows[:, most]
        if own[most] == 0:
            is_multiple = rows == 0
        else:
            off = np.abs(rows * factors[:, None] - own)
            is_multiple = off <= self._slack * sizes
        moves = np.abs(np.abs(rows - own) - 1) <= self._slack * 2
        chosen = is_multiple.all(axis=1) | moves.all(axis=1)
        fits: list[int] = numbers[chosen].tolist()
        return fits

    def _moved(self, own: Array) -> list[Array]:
        """Return the numbers of rows whose first number is 1 above or below its own."""
        slack = self._slack * 2
        near: list[Array] = []
        for move in (1.0, -1.0):
            middle = float(own[0]) + move
            # The reach covers the rounding of the dtype, and that of float64 beside it.
            reach = slack + abs(middle) * 1e-15
            near += _between(self._firsts, middle - reach, middle + reach)
        return near

    def _with_ratio(self, own: Array, most: int) -> list[Array]:
        """Return the numbers of rows with the same quotient of two of their numbers."""
        # A factor changes both numbers, and not their quotient.
        other = (most + 1) % len(own)
        table = self._ratios.get((most, other))
        if table is None:
            quotients = self._rows[:, other] / self._rows[:, most]
            table = self._ratios[most, other] = _in_order(quotients)
        middle = float(own[other] / own[most])
        reach = abs(middle) * (self._slack + 1e-12)
        return _between(table, middle - reach, middle + reach)


def _in_order(values: Array) -> tuple[Array, Array]:
    """Values in ascending order, and the numbers that they had; NaN comes last."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    return values[order], order


def _between(table: tuple[Array, Array], low: float, high: float) -> list[Array]:
    """The numbers of the values in a closed range, as a list of one array if there are
    some.
    """
    import numpy as np

    values, order = table
    first = int(np.searchsorted(values, low, "left"))
    last = int(np.searchsorted(values, high, "right"))
    return [order[first:last]] if last > first else []


def _some_numbers(leaf: Leaf) -> Array:
    """Some elements of a tensor as numbers."""
    count = min(_FEW, leaf.ref.numel)
    raw = read_elements(leaf.flat, (leaf.ref.numel - count) // 2, ((count, 1),))
    numbers: Array = cast.as_numbers(raw.tobytes(), leaf.dtype).astype("f8")
    return numbers


def formulas_between(target: Leaf, source: Leaf, first: int = 0) -> list[str]:
    """The formulas that may make a target of a source, as some of their
    elements say.
    """
    import numpy as np

    count = min(_SAMPLE, target.ref.numel)
    if target.dtype != source.dtype or target.dtype.name not in COMPUTED or not count:
        return []
    with np.errstate(invalid="ignore"):
        ours = _first_numbers(target, first, count)
        theirs = _first_numbers(source, first, count)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return []
    return formulas_of_numbers(ours, theirs, target.dtype, target.shape)


def _first_numbers(leaf: Leaf, first: int, count: int) -> Array:
    """So many elements of a tensor from one on, as numbers."""
    raw = read_elements(leaf.flat, first, ((count, 1),))
    numbers: Array = cast.as_numbers(raw.tobytes(), leaf.dtype).astype("f8")
    return numbers


def formulas_of_numbers(
    ours: Array,
    theirs: Array,
    dtype: DType,
    shape: Sequence[int],
) -> list[str]:
    """The formulas that make finite numbers of others within the rounding of a dtype.

    A tensor of this shape has them; roots of its sizes are tried first.
    """
    import numpy as np

    most_off = 2.0 ** -_mantissa_bits(dtype) * 4
    for shift in (1.0, -1.0):
        if np.abs(ours - theirs - shift).max() <= most_off:
            return [f"+{shift!r}"]
    return _fitting_factors(ours, theirs, dtype, shape)


def _mantissa_bits(dtype: DType) -> int:
    """The bits of the mantissa of a dtype that are stored."""
    return {"float64": 52, "float32": 23, "float16": 10}.get(dtype.name, 7)


def _fitting_factors(
    ours: Array,
    theirs: Array,
    dtype: DType,
    shape: Sequence[int],
) -> list[str]:
    """The factors that fit all of some numbers within rounding, those that people use
    first.
    """
    import numpy as np

    used = np.abs(theirs) > np.abs(theirs).max() * 1e-3
    if not used.any() or not theirs.any():
        return []
    ratios = ours[used] / theirs[used]
    # Each quotient leaves a range of factors; all of them must leave one in common.
    slack = np.abs(ratios) * 2.0 ** -(_mantissa_bits(dtype) + 1) * 1.01
    low = float((ratios - slack).max())
    high = float((ratios + slack).min())
    if low > high or (low <= 1.0 <= high and bool((ours == theirs).all())):
        return []
    middle = (low + high) / 2
    kept = np.float64 if dtype.name == "float64" else np.float32

    def fits(ratio: float) -> bool:
        return low <= ratio <= high

    usual: list[str] = []
    sign = -1.0 if middle < 0 else 1.0
    for size in sorted({*shape, *_SIZES}):
        for number in (sign * sqrt(size), sign * float(size)):
            # The number that is computed with is one of the dtype: it has a little more
            # or less than the root.
            for factor in (1 / number, number):
                if fits(float(kept(factor))):
                    usual.append(f"*{factor!r}")
            if fits(1 / float(kept(number))):
                usual.append(f"/{number!r}")
    # Powers of two come first: they round nothing, so they can be taken back.
    exponent = frexp(middle)[1]
    powers = (sign * 2.0 ** (exponent - 1), sign * 2.0**exponent)
    exact = [f"*{power!r}" for power in powers if fits(power)]
    usual = [*exact, *usual]
    return list(dict.fromkeys([*usual, f"*{float(kept(middle))!r}"]))


_SIZES = frozenset(
    [
        *[2**power for power in range(1, 15)],
        *range(16, 257, 8),
        768,
        1152,
        1536,
        3072,
        5120,
    ]
)
"""The sizes of heads and of models whose roots are folded into weights."""
