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
    with np.errstate(all="ignore"):
        rows = np.stack([_some_numbers(leaf) for leaf in known])
        slack = 2.0 ** -_mantissa_bits(targets[0].dtype) * 2
        for target in targets:
            own = _some_numbers(target)
            most = int(np.abs(own).argmax())
            factors = own[most] / rows[:, most]
            is_multiple = np.abs(rows * factors[:, None] - own) <= slack * np.abs(own)
            moves = np.abs(np.abs(rows - own) - 1) <= slack * 2
            fits = np.flatnonzero(is_multiple.all(axis=1) | moves.all(axis=1))
            yield target, [known[number] for number in fits.tolist()]


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
        ours, theirs = (
            cast.as_numbers(
                read_elements(leaf.flat, first, ((count, 1),)).tobytes(), leaf.dtype
            ).astype("f8")
            for leaf in (target, source)
        )
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return []
    for shift in (1.0, -1.0):
        if (
            np.abs(ours - theirs - shift).max()
            <= 2.0 ** -(_mantissa_bits(target.dtype)) * 4
        ):
            return [f"+{shift!r}"]
    return _fitting_factors(ours, theirs, target)


def _mantissa_bits(dtype: DType) -> int:
    """The bits of the mantissa of a dtype that are stored."""
    return {"float64": 52, "float32": 23, "float16": 10}.get(dtype.name, 7)


def _fitting_factors(ours: Array, theirs: Array, target: Leaf) -> list[str]:
    """The factors that fit all of some numbers within rounding, those that people use
    first.
    """
    import numpy as np

    used = np.abs(theirs) > np.abs(theirs).max() * 1e-3
    if not used.any() or not theirs.any():
        return []
    ratios = ours[used] / theirs[used]
    slack = np.abs(ratios) * 2.0 ** -(_mantissa_bits(target.dtype) + 1) * 1.01
    low, high = float((ratios - slack).max()), float((ratios + slack).min())
    if low > high or (low <= 1.0 <= high and bool((ours == theirs).all())):
        return []
    middle = (low + high) / 2
    kept = np.float64 if target.dtype.name == "float64" else np.float32

    def fits(ratio: float) -> bool:
        return low <= ratio <= high

    usual: list[str] = []
    sign = -1.0 if middle < 0 else 1.0
    for size in sorted({*target.shape, *_SIZES}):
        for number in (sign * sqrt(size), sign * float(size)):
            # The number that is computed with is one of the dtype: it has a little more
            # or less than the root.
            usual += [
                f"*{factor!r}"
                for factor in (1 / number, number)
                if fits(float(kept(factor)))
            ]
            usual += [f"/{number!r}"] if fits(1 / float(kept(number))) else []
    exponent = frexp(middle)[1]
    powers = (sign * 2.0 ** (exponent - 1), sign * 2.0**exponent)
    usual = [*[f"*{power!r}" for power in powers if fits(power)], *usual]
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
