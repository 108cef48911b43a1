"""The tensors of A with elements that no piece takes, and whether that is padding or a
copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckpt.ext.layouts.findings import Made, Unused
from ckpt.ext.layouts.neighbours import is_of_other_rank, name_in_rank
from ckpt.ext.layouts.pieces import (
    Piece,
    Repeat,
    cover_of,
    flat_steps,
    is_along,
    loops_in_axes,
    whole_piece,
)
from ckpt.ext.layouts.proof import Leaf, are_proved, is_proved, read_elements
from ckpt.ext.layouts.search import dims_without
from ckpt.ext.layouts.sums import Sums
from ckpt.model.rows import NamedTuple

_PADDING = 1 << 16
"""The most slices that are looked at as padding."""


class Leftovers:
    """The tensors of A beside the tensors of B that are made of them."""

    def __init__(self, sources: Sequence[Leaf], sums: Sums) -> None:
        self._sources = sources
        self._by_name = {leaf.name: leaf for leaf in sources}
        self._numbers = {leaf.name: number for number, leaf in enumerate(sources)}
        self._sums = sums

    def unused_tensors(self, made: Iterable[Made]) -> list[Unused]:
        """The tensors of A with elements that are used nowhere."""
        pieces: dict[str, list[Piece]] = {}
        whole: set[str] = set()
        for row in made:
            for piece in row.pieces or ():
                # Constants take nothing of A.
                if piece.source is None:
                    continue
                # A tensor that one piece takes whole has nothing left.
                if piece.numel == self._by_name[piece.source].ref.numel:
                    whole.add(piece.source)
                else:
                    pieces.setdefault(piece.source, []).append(piece)
        rows: list[Unused] = []
        # Copies are looked for among the tensors that are used as a whole.
        equal: dict[tuple[object, ...], list[str]] = {}
        for name in sorted(whole, key=self._numbers.__getitem__):
            equal.setdefault(self._copy_key(self._by_name[name]), []).append(name)
        for leaf in self._sources:
            if leaf.name in whole or not leaf.ref.numel:
                continue
            own = [piece.turned(leaf.name) for piece in pieces.get(leaf.name, ())]
            missing = cover_of(own, leaf.ref.numel).missing
            if missing:
                constant = _padding_bits(leaf, own, missing) if own else None
                # A tensor that is used nowhere has no slices: it is one number or not.
                if not own and self._sums.is_one_number(leaf):
                    first = read_elements(leaf.flat, 0, ((1, 1),))
                    constant = int.from_bytes(first.tobytes(), "little")
                copy = self._copy_of(leaf, equal)
                is_apart = bool(own) and constant is None
                repeats = self._repeated_slices(leaf, own, missing) if is_apart else ()
                counts = missing, leaf.ref.numel
                rows.append(Unused(leaf.name, *counts, copy, constant, repeats))
        return rows

    def _repeated_slices(
        self,
        leaf: Leaf,
        used: Sequence[Piece],
        missing: int,
    ) -> tuple[Repeat, ...]:
        """The slices that pieces leave of a tensor as slices that they use, proved.

        There are none where one of the slices that are left is no slice that is used.
        """
        unused = _unused_slices(leaf, used, missing)
        fibres = self._sums.of_source(leaf)
        if unused is None or fibres is None:
            return ()
        sums = fibres.families.get((unused.axis,))
        if sums is None:
            return ()
        left = unused.indices
        is_left = set(left)
        # The sums of the slices that are used say which of them a slice may equal.
        known: dict[int, int] = {}
        for index, total in enumerate(sums.tolist()):
            if index not in is_left:
                known.setdefault(total, index)
        others = [known.get(int(sums[index]), -1) for index in left]
        if min(others) < 0:
            return ()
        repeats: list[Repeat] = []
        first = 0
        # Slices in a row that equal slices in a row are one repeat.
        while first < len(others):
            last = first + 1
            step = others[last] - others[first] if last < len(others) else 0
            while (
                last < len(others)
                and left[last] == left[last - 1] + 1
                and others[last] - others[last - 1] == step
            ):
                last += 1
            repeats.append(
                Repeat(unused.axis, left[first], others[first], last - first, step)
            )
            first = last
        pieces = [repeat.piece(leaf.name, leaf.shape) for repeat in repeats]
        return tuple(repeats) if are_proved(pieces, leaf, self._by_name) else ()

    def _copy_key(self, leaf: Leaf) -> tuple[object, ...]:
        """The properties that a tensor of A and its copies have in common."""
        # Constants are many, and their bytes say nothing: only those with the name for
        # another rank are compared with each other.
        name = name_in_rank(leaf.name) if self._sums.is_one_number(leaf) else ""
        sample = self._sums.read_sample(leaf, leaf.dtype)
        if sample is not None:
            return leaf.shape, leaf.dtype, name, sample
        fibres = self._sums.of_source(leaf)
        total = fibres.total if fibres is not None else leaf.name
        return leaf.shape, leaf.dtype, name, total

    def _copy_of(
        self,
        leaf: Leaf,
        equal: Mapping[tuple[object, ...], Sequence[str]],
    ) -> str | None:
        """A used tensor of A with the same bytes as one that is used nowhere."""
        if self._sums.is_one_number(leaf) and name_in_rank(leaf.name) is None:
            return None
        for name in equal.get(self._copy_key(leaf), ()):
            # Constants are equal by chance, unless they are what each rank has.
            is_rank = is_of_other_rank(leaf.name, name)
            is_alike = is_rank or not self._sums.is_one_number(leaf)
            piece = whole_piece(name, leaf.ref.numel)
            if is_alike and is_proved(piece, leaf, self._by_name):
                return name
        return None


def _padding_bits(leaf: Leaf, used: Sequence[Piece], missing: int) -> int | None:
    """The bits of each element that pieces of a tensor leave.

    It is None where they leave no whole slices, or slices of several numbers.
    """
    unused = _unused_slices(leaf, used, missing)
    if unused is None:
        return None
    inner = tuple(dims_without(leaf.shape, (unused.axis,)))
    step = flat_steps(leaf.shape)[unused.axis]
    # One number in all slices is padding; two are values that nothing takes.
    first = read_elements(leaf.flat, unused.indices[0] * step, ((1, 1),))
    for index in unused.indices:
        if not bool((read_elements(leaf.flat, index * step, inner) == first).all()):
            return None
    return int.from_bytes(first.tobytes(), "little")


class _Slices(NamedTuple):
    """Slices of a tensor along one axis."""

    axis: int
    indices: list[int]


def _unused_slices(leaf: Leaf, used: Sequence[Piece], missing: int) -> _Slices | None:
    """The slices along one axis that pieces leave of a tensor.

    It is None where they leave other elements than all of some slices.
    """
    import numpy as np

    steps = flat_steps(leaf.shape)
    for axis, size in enumerate(leaf.shape):
        inner = leaf.ref.numel // size
        # The elements that are left must be whole slices of this axis.
        if missing % inner or missing // inner > _PADDING:
            continue
        is_used = np.zeros(size, bool)
        for piece in used:
            # The indices along the axis: those of each loop that moves along it.
            indices = np.array(piece.to // steps[axis] % size)
            for loop in loops_in_axes(piece.loops, steps):
                if is_along(loop, axis, leaf.shape):
                    step = loop.to // steps[axis]
                    indices = indices[..., None] + np.arange(loop.size) * step
            is_used[indices.reshape(-1) % size] = True
        left: list[int] = np.flatnonzero(~is_used).tolist()
        if left and len(left) == missing // inner:
            return _Slices(axis, left)
    return None
