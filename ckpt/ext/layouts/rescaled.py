"""Tensors that are in another order and have another number in all elements at once: a
scale that a converter folded in while it turned a matrix.

No sum of mixed bits survives a factor. But a factor does not change which element is
the largest, so the sorted elements of two slices tell it in any layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.ext.layouts.fibres import LEAST_OF_PAIRS
from ckpt.ext.layouts.formulas import COMPUTED, computed_elements
from ckpt.ext.layouts.gathered import Calculated, Gathered
from ckpt.ext.layouts.pieces import flat_steps
from ckpt.ext.layouts.proof import Leaf, leaf_of, read_elements
from ckpt.ext.layouts.scaled import formulas_of_numbers
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, tensor_ref

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_LONGEST = 1 << 14
"""The most elements of a slice that is sorted."""
_SPAN = 1 << 27
"""The most bytes that the elements of a slice lie apart: a column of a large matrix
costs as much as the matrix.
"""
_TENSORS = 64
"""The tensors of each side of which slices are sorted."""
_WIDEST = 4
"""The most dimensions of a tensor of which slices are sorted."""
_FORMULAS = 4
"""The formulas that are tried on all tensors."""


class _Sorted(NamedTuple):
    """The elements of a slice in ascending order."""

    dtype: DType
    shape: tuple[int, ...]
    """The shape of its tensor, whose sizes say which roots may be folded in."""
    raw: Array
    numbers: Array
    quarter: float
    """The place of one element between the two ends, which a factor does not change."""


def _quarter_of(numbers: Array) -> float:
    """The place of the element at three quarters of sorted numbers between their ends,
    from 0 to 1.
    """
    low, high = numbers[0], numbers[-1]
    return float((numbers[len(numbers) * 3 // 4] - low) / (high - low))


def shared_formulas(targets: Sequence[Leaf], sources: Sequence[Leaf]) -> list[str]:
    """The formulas that make slices of some targets of slices of some sources, in
    whatever order their elements are; the one of most slices comes first.

    Raises UnreadableError.
    """
    # Slices of one dtype and size alone can be the same after a factor.
    by_size: dict[tuple[DType, int], list[_Sorted]] = {}
    for row in chain.from_iterable([_sorted_slices(leaf) for leaf in _few(sources)]):
        by_size.setdefault((row.dtype, len(row.numbers)), []).append(row)
    votes: Counter[str] = Counter()
    for leaf in _few(targets):
        for ours in _sorted_slices(leaf):
            for theirs in by_size.get((ours.dtype, len(ours.numbers)), ()):
                # A cheap test first: two slices rarely agree in the place of one
                # element.
                if abs(ours.quarter - theirs.quarter) < _slack(ours.dtype):
                    votes.update(_proved_formulas(ours, theirs))
    return [formula for formula, _ in votes.most_common(_FORMULAS)]


def _few(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The first tensors that are computed with."""
    able = [
        leaf
        for leaf in leaves
        if leaf.dtype.name in COMPUTED
        and leaf.ref.numel
        and 0 < len(leaf.shape) <= _WIDEST
    ]
    return able[:_TENSORS]


def _slack(dtype: DType) -> float:
    """The difference that rounding makes in a quotient of two elements."""
    return 2.0**-20 if dtype.name in ("float32", "float64") else 2.0**-6


def _sorted_slices(leaf: Leaf) -> Iterator[_Sorted]:
    """Yield the first and the last slice along each axis and each two axes, and all of
    a tensor that is small.

    The first rows of both sides are mostly the same ones, however they are turned.
    """
    import numpy as np

    steps = flat_steps(leaf.shape)
    wide = [axis for axis, size in enumerate(leaf.shape) if size > 1]
    for kept in [(), *[(axis,) for axis in wide], *combinations(wide, 2)]:
        rest = [axis for axis in wide if axis not in kept]
        loops = tuple([(leaf.shape[axis], steps[axis]) for axis in rest])
        count = prod([size for size, _ in loops])
        span = sum([(size - 1) * step for size, step in loops]) * leaf.dtype.bits // 8
        # Few elements fit by chance, and many cost too much to sort.
        if not LEAST_OF_PAIRS <= count <= _LONGEST or span > _SPAN:
            continue
        last = sum([(leaf.shape[axis] - 1) * steps[axis] for axis in kept])
        for first in sorted({0, last}):
            raw = read_elements(leaf.flat, first, loops).reshape(-1)
            numbers = cast.as_numbers(raw.tobytes(), leaf.dtype).astype("f8")
            # NaN has no order, and constants have any factor.
            if not np.isfinite(numbers).all() or numbers.min() == numbers.max():
                continue
            order = np.argsort(numbers, kind="stable")
            numbers = numbers[order]
            quarter = _quarter_of(numbers)
            yield _Sorted(leaf.dtype, leaf.shape, raw[order], numbers, quarter)


def _proved_formulas(ours: _Sorted, theirs: _Sorted) -> list[str]:
    """The formulas that make each element of a sorted slice of another one's."""
    formulas = formulas_of_numbers(ours.numbers, theirs.numbers, ours.dtype, ours.shape)
    proved: list[str] = []
    for formula in formulas:
        made = computed_elements(theirs.raw, theirs.dtype, formula)
        numbers = cast.as_numbers(made.tobytes(), ours.dtype)
        if bool((numbers == ours.numbers).all()):
            proved.append(formula)
    return proved


def rescaled_leaf(leaf: Leaf, name: str, formula: str) -> Leaf:
    """A tensor after a formula, by another name. Nothing is computed until its elements
    are read.
    """
    numel = leaf.ref.numel
    given = Gathered(leaf.flat, 0, ((numel, 1),))
    made = Calculated(given, 0, leaf.dtype, formula, numel)
    place = Range(made, 0, made.size)
    storage = Storage("", None, leaf.dtype, made.size, place)
    steps = contiguous(leaf.shape)
    return leaf_of(name, tensor_ref(storage, leaf.dtype, leaf.shape, steps, 0))
