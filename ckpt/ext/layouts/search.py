"""The search: for each tensor of B the pieces of A that it is made of, proposed by
fingerprints and proved by bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.ext.layouts.fibres import Axes, Fibres, mix_bits, mixed_number
from ckpt.ext.layouts.pieces import (
    MOST,
    Loop,
    Nest,
    Piece,
    flat_steps,
    matched_dims,
    nest_places,
)
from ckpt.ext.layouts.proof import (
    Leaf,
    are_proved,
    cast_elements,
    is_proved,
    read_elements,
)
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_CANDIDATES = 16
"""The places of A that are looked at where several have the same fingerprint."""
_SAMPLED = 32
"""The slices that are read to find how columns were permuted."""
_INNER = 1 << 20
"""The most elements of a slice of which the permutation is looked for."""
_DIMS = 4
"""The most dimensions inside of a slice whose orders are tried."""

Dims = Sequence[tuple[int, int]]
"""Dimensions as (size, step) each."""


class Index(NamedTuple):
    """The slices of tensors of A by their sums, in the order of the sums: of which
    tensor, which family, from which element on.
    """

    keys: Array
    owners: Array
    families: Array
    places: Array
    kinds: tuple[Axes, ...]
    """The families by their number; the first one is the whole tensor."""

    def part(self, chosen: Array) -> Index:
        """The slices that a mask chooses."""
        return Index(
            self.keys[chosen],
            self.owners[chosen],
            self.families[chosen],
            self.places[chosen],
            self.kinds,
        )

    def joined(self, other: Index) -> Index:
        """The slices of both."""
        import numpy as np

        if not len(other.keys):
            return self
        # The numbers of families are of one index alone: the other one's are
        # translated.
        kinds = list(dict.fromkeys([*self.kinds, *other.kinds]))
        numbers = np.array([kinds.index(kind) for kind in other.kinds], np.int16)
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")
        families = np.concatenate([self.families, numbers[other.families]])
        return Index(
            keys[order],
            np.concatenate([self.owners, other.owners])[order],
            families[order],
            np.concatenate([self.places, other.places])[order],
            tuple(kinds),
        )


def isin(numbers: Array, others: Sequence[int]) -> Array:
    """A mask of the numbers that are among others."""
    import numpy as np

    mask: Array = np.isin(numbers, np.array(others, np.int32))
    return mask


def key_offset(numel: int) -> int:
    """The number that is added to the sum of a slice with so many elements, so that
    slices of other sizes are other keys.
    """
    return numel * 0x9E3779B97F4A7C15 % (1 << 64)


def keys_in(fibres: Iterable[Fibres]) -> Array:
    """The keys of all slices of tensors, each once, in their order."""
    import numpy as np

    keys = _joined_keys(fibres)
    keys.sort()
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys[is_first]


def _joined_keys(fibres: Iterable[Fibres]) -> Array:
    """The keys of all slices of tensors, family by family, one after the other."""
    import numpy as np

    rows = list(fibres)
    keys = np.empty(sum([_slice_count(row) for row in rows]), np.uint64)
    position = 0
    for row in rows:
        for values in _families_with_whole(row).values():
            end = position + values.size
            offset = np.uint64(key_offset(row.numel // values.size))
            np.add(values.reshape(-1), offset, out=keys[position:end])
            position = end
    return keys


def _slice_count(row: Fibres) -> int:
    """The number of slices of a tensor of which there are sums."""
    return 1 + sum([values.size for values in row.families.values()])


def _families_with_whole(row: Fibres) -> dict[Axes, Array]:
    import numpy as np

    return {(): np.array([row.total], np.uint64)} | row.families


def index_of(fibres: Mapping[int, Fibres], wanted: Array) -> Index:
    """The index of the slices of tensors of A whose keys are wanted, by the numbers of
    the tensors.

    Constant tensors are in none: their values say nothing.
    """
    import numpy as np

    kinds: dict[Axes, int] = {(): 0}
    # One empty column each, so that the columns have a type where nothing is wanted.
    none: list[Array] = [np.zeros(0, kind) for kind in ("u8", "i4", "i2", "i8")]
    rows = [none]
    given = [(number, row) for number, row in fibres.items() if not row.is_constant]
    joined = _joined_keys([row for _, row in given])
    # One look-up for all tensors: most of them have nothing that is wanted.
    is_wanted = _are_among(joined, wanted)
    ends = np.cumsum([0, *[_slice_count(row) for _, row in given]])
    holders = np.searchsorted(ends, np.flatnonzero(is_wanted), "right") - 1
    # A tensor holds several wanted slices, of several families: each is looked at once.
    for holder in np.unique(holders).tolist():
        number, row = given[holder]
        steps = flat_steps(row.shape)
        position = int(ends[holder])
        for family, values in _families_with_whole(row).items():
            own = slice(position, position + values.size)
            position += values.size
            chosen = np.flatnonzero(is_wanted[own])
            if not len(chosen):
                continue
            kind = kinds.setdefault(family, len(kinds))
            owners = np.full(len(chosen), number, np.int32)
            families = np.full(len(chosen), kind, np.int16)
            places = _slice_starts(row.shape, steps, family)[chosen]
            rows.append([joined[own][chosen], owners, families, places])
    keys, owners, families, places = [
        np.concatenate(column) for column in zip(*rows, strict=True)
    ]
    index = Index(keys, owners, families, places, tuple(kinds))
    return index.part(np.argsort(keys, kind="stable"))


def _are_among(keys: Array, wanted: Array) -> Array:
    """A mask of the keys that are among others, which are in ascending order."""
    import numpy as np

    mask = np.zeros(len(keys), bool)
    if not len(wanted):
        return mask
    # Keys in order are found several times faster: neighbours lie in the cache.
    order = np.argsort(keys)
    in_order = keys[order]
    at = np.searchsorted(wanted, in_order)
    # `searchsorted` gives the end for a key above all others, which is no place.
    at[at == len(wanted)] = 0
    mask[order] = wanted[at] == in_order
    return mask


def _slice_starts(shape: Sequence[int], steps: Sequence[int], family: Axes) -> Array:
    """The first element of each slice of a family, in the order of the kept axes."""
    import numpy as np

    # `starts` has one axis for each kept axis: `[axis 0, axis 1, …]`.
    starts = np.zeros((), np.int64)
    for axis in family:
        starts = (
            starts[..., None] + np.arange(shape[axis], dtype=np.int64) * steps[axis]
        )
    return starts.reshape(-1)


class Found(NamedTuple):
    """The pieces of a tensor of B, and the other ways that fit as well, each a list of
    pieces.
    """

    pieces: tuple[Piece, ...]
    others: tuple[tuple[Piece, ...], ...] = ()


class Search:
    """The search in one A. `fibres` has the sums of each tensor of A by its number,
    read as the dtype of B's tensor.
    """

    def __init__(self, leaves: Sequence[Leaf], likeness: Likeness) -> None:
        self._leaves = leaves
        self._by_name = {leaf.name: leaf for leaf in leaves}
        self._likeness = likeness

    def is_made(self, target: Leaf, pieces: Sequence[Piece]) -> bool:
        """Tell whether all pieces are proved."""
        return are_proved(pieces, target, self._by_name)

    def whole(self, target: Leaf, fibres: Fibres, index: Index) -> Found | None:
        """The pieces of a tensor that is one slice of A, or all of one tensor: in the
        same order, or with its axes permuted.
        """
        import numpy as np

        # The sum of all elements, wherever it stands in A: as a whole tensor, or as a
        # slice of a larger one.
        key = np.uint64((fibres.total + key_offset(fibres.numel)) % (1 << 64))
        first = int(np.searchsorted(index.keys, key, "left"))
        last = int(np.searchsorted(index.keys, key, "right"))
        ways: list[tuple[Piece, ...]] = []
        for number in range(first, min(last, first + _CANDIDATES)):
            owner = self._leaves[int(index.owners[number])]
            family = index.kinds[int(index.families[number])]
            piece = self._slice_piece(target, owner, family, int(index.places[number]))
            if piece is not None and (piece,) not in ways:
                ways.append((piece,))
        if not ways:
            return None
        return Found(ways[0], tuple(ways[1:]))

    def _slice_piece(
        self,
        target: Leaf,
        owner: Leaf,
        family: Axes,
        start: int,
    ) -> Piece | None:
        """The piece of a target that has the elements of one slice, proved; None if
        their order is another one.
        """
        ours = dims_without(target.shape, ())
        theirs = dims_without(owner.shape, family)
        for loops in loop_orders(ours, theirs):
            piece = Piece(owner.name, 0, start, tuple(loops)).normalized()
            if is_proved(piece, target, self._by_name):
                return piece
        return None

    def assembled(
        self,
        target: Leaf,
        fibres: Fibres,
        index: Index,
    ) -> tuple[Found | None, str]:
        """The pieces of a tensor that is put together from slices of A along one or two
        axes, or why there are none.
        """
        import numpy as np

        plans: list[_Plan] = []
        why = ""
        most = 0
        for family, sums in fibres.families.items():
            flat = sums.reshape(-1)
            inner = fibres.numel // len(flat)
            keys = flat + np.uint64(key_offset(inner))
            lows = np.searchsorted(index.keys, keys, "left")
            highs = np.searchsorted(index.keys, keys, "right")
            # Slices of zeros are equal everywhere, and say nothing of their place.
            mixed_zero = mixed_number(0, target.dtype.bits // 8)
            zero = np.uint64((mixed_zero * inner + key_offset(inner)) % (1 << 64))
            found = (highs > lows) & ~(keys == zero)
            count = int(found.sum())
            if not count:
                continue
            if count > most:
                most = count
                noun = "rows" if family == (0,) else "slices"
                why = f"{count:,} of {len(flat):,} {noun} are in A"
            chosen = self._choose_slices(target, index, lows, highs, found)
            missing = ~found
            if missing.any() and not self._fill_gaps(target, family, chosen, missing):
                continue
            nests = _nests_of(chosen, [target.shape[axis] for axis in family])
            if len(nests) <= MOST:
                plans.append(_Plan(family, nests, chosen.constants))
        # The plan of the fewest loops is the plainest rule.
        plans.sort(key=lambda plan: len(plan.nests))
        for plan in plans:
            pieces = self._made(target, plan.family, plan.nests, plan.constants, index)
            if pieces is not None:
                return Found(pieces), ""
            why = "slices of A in an order that ckpt does not find"
        return None, why

    def _choose_slices(
        self,
        target: Leaf,
        index: Index,
        lows: Array,
        highs: Array,
        found: Array,
    ) -> Chosen:
        """The slice of A for each slice of a target. Where several have its sum, it is
        of the tensor with the most of them.
        """
        import numpy as np

        kinds = len(index.kinds)
        # `sources` has a tensor and a family of A as one number. Slices that A has not
        # get any, which the mask at the end takes away.
        numbers = np.minimum(lows, max(len(index.keys) - 1, 0))
        owners = index.owners[numbers].astype(np.int64)
        sources = owners * kinds + index.families[numbers]
        places = index.places[numbers].copy()
        times = highs - lows
        several = np.flatnonzero(found & (times > 1))
        if len(several):
            options = _slice_options(several, index, lows, highs)
            single = sources[found & (times == 1)]
            tally = _tally_sources(single, options)
            ranks = self._rank_sources(target, tally, kinds)
            # In order: the place of a slice follows the places chosen before it.
            for number, rows in options.items():
                best = min(ranks[source] for source, _ in rows)[2]
                own = [place for source, place in rows if source == best]
                places[number] = _next_place(own, places, sources, number, best)
                sources[number] = best
        return Chosen(np.where(found, sources, -1), places, [])

    def _rank_sources(
        self,
        target: Leaf,
        tally: Mapping[int, int],
        kinds: int,
    ) -> dict[int, tuple[int, float, int]]:
        """The rank of each source: the one with the most slices comes first, then the
        one whose name is most alike, then the first one.
        """
        ranks: dict[int, tuple[int, float, int]] = {}
        for source, times in tally.items():
            owner = self._leaves[source // kinds]
            likeness = self._likeness(target.name, owner.name)
            ranks[source] = (-times, -likeness, source)
        return ranks

    def _fill_gaps(
        self,
        target: Leaf,
        family: Axes,
        chosen: Chosen,
        missing: Array,
    ) -> bool:
        """Make the slices that A has not constants, if all of them are; tell whether
        they are.
        """
        import numpy as np

        # More gaps than rows is no padding, but another layout.
        if len(family) > 1 or 2 * int(missing.sum()) > len(missing):
            return False
        step = flat_steps(target.shape)[family[0]]
        inner = tuple(dims_without(target.shape, family))
        for number in np.flatnonzero(missing).tolist():
            row = read_elements(target.flat, number * step, inner).reshape(-1)
            if not bool((row == row[0]).all()):
                return False
            # Numbers below 0 are constants: -1 is the first one of the list.
            bits = int.from_bytes(row[:1].tobytes(), "little")
            if bits not in chosen.constants:
                chosen.constants.append(bits)
            chosen.keys[number] = -1 - chosen.constants.index(bits)
            chosen.places[number] = 0
        return True

    def _made(
        self,
        target: Leaf,
        family: Axes,
        nests: Sequence[Nest],
        constants: Sequence[int],
        index: Index,
    ) -> tuple[Piece, ...] | None:
        """The proved pieces of slices that were found, or None if the order inside of
        the slices is not found.
        """
        kinds = len(index.kinds)
        steps = flat_steps(target.shape)
        ours = dims_without(target.shape, family)
        # The order inside of a slice is looked for once for each source, and holds for
        # all.
        inner_parts: dict[int, list[_Inner] | None] = {}
        pieces: list[Piece] = []
        for nest in nests:
            outer = _outer_loops(nest, family, target.shape, steps)
            if nest.key < 0:
                # A loop that does not move in the source takes one constant everywhere.
                still = [Loop(size, step, 0) for size, step in ours]
                loops = (*outer.loops, *still)
                bits = constants[-1 - nest.key]
                piece = Piece(None, outer.first, 0, loops, bits)
                pieces.append(piece.normalized())
                continue
            owner = self._leaves[nest.key // kinds]
            if nest.key not in inner_parts:
                theirs = dims_without(owner.shape, index.kinds[nest.key % kinds])
                own = [row for row in nests if row.key == nest.key]
                inner_parts[nest.key] = self._inner_loops(
                    target,
                    owner,
                    ours,
                    theirs,
                    own,
                    family,
                )
            parts = inner_parts[nest.key]
            if parts is None:
                return None
            for part in parts:
                loops = (*outer.loops, *part.loops)
                piece = Piece(
                    owner.name,
                    outer.first + part.to,
                    nest.at + part.at,
                    loops,
                )
                pieces.append(piece.normalized())
            if len(pieces) > MOST:
                return None
        return tuple(pieces) if self.is_made(target, pieces) else None

    def _inner_loops(
        self,
        target: Leaf,
        owner: Leaf,
        ours: Dims,
        theirs: Dims,
        nests: Sequence[Nest],
        family: Axes,
    ) -> list[_Inner] | None:
        """The loops over the elements inside of a slice: in the same order, with
        permuted axes, or permuted in any way.
        """
        # Orders of axes first: they are few, and one slice shows whether they are
        # right.
        outer = _outer_loops(nests[0], family, target.shape, flat_steps(target.shape))
        for loops in loop_orders(ours, theirs):
            piece = Piece(
                owner.name,
                outer.first,
                nests[0].at,
                tuple(loops),
            ).normalized()
            if is_proved(piece, target, self._by_name):
                return [_Inner(0, 0, tuple(loops))]
        # Any other permutation is looked for along one dimension that fits into memory.
        merged = merged_dims(ours)
        if len(merged) != 1 or merged[0][0] > _INNER:
            return None
        pairs = _slice_pairs(nests, family, target.shape)
        return _find_permutation(target, owner, merged[0], theirs, pairs)


class _Inner(NamedTuple):
    """Elements inside of each slice: where they begin in it on both sides, and the
    loops over them.
    """

    to: int
    at: int
    loops: tuple[Loop, ...]


Likeness = Callable[[str, str], float]
"""The likeness of a name of B and a name of A."""


class Chosen(NamedTuple):
    """For each slice of a target: the number of the tensor and the family of A, or
    below 0 a constant; and where it begins.
    """

    keys: Array
    places: Array
    constants: list[int]


class _Outer(NamedTuple):
    first: int
    loops: tuple[Loop, ...]


class _Plan(NamedTuple):
    """Slices of one family as loops, and the constants that some of them are."""

    family: Axes
    nests: list[Nest]
    constants: list[int]


def _slice_options(
    several: Array,
    index: Index,
    lows: Array,
    highs: Array,
) -> dict[int, list[tuple[int, int]]]:
    """The slices of A, as (source, place), that have the sum of each of these slices of
    a target.
    """
    kinds = len(index.kinds)
    options: dict[int, list[tuple[int, int]]] = {}
    for number in several.tolist():
        low = int(lows[number])
        # If many slices of A are equal, a few of them stand for all.
        high = min(int(highs[number]), low + _CANDIDATES)
        rows: list[tuple[int, int]] = []
        for row in range(low, high):
            source = int(index.owners[row]) * kinds + int(index.families[row])
            rows.append((source, int(index.places[row])))
        options[number] = rows
    return options


def _tally_sources(
    single: Array, options: Mapping[int, Sequence[tuple[int, int]]]
) -> dict[int, int]:
    """The number of slices that each source has: those that only it has, and those that
    it has among others.
    """
    import numpy as np

    sources, counts = np.unique(single, return_counts=True)
    tally: dict[int, int] = dict(zip(sources.tolist(), counts.tolist(), strict=True))
    for rows in options.values():
        # Several places in one source are one vote for it.
        for source in {source for source, _ in rows}:
            tally[source] = tally.get(source, 0) + 1
    return tally


def _next_place(
    own: Sequence[int],
    places: Array,
    sources: Array,
    number: int,
    source: int,
) -> int:
    """The place that goes on as the slices before do, if one of them does; else the
    nearest to the last one, or the first one.
    """
    before = _run_before(places, sources, number, source)
    if len(before) > 1:
        step = before[-1] - before[-2]
        # One odd step is no run: rows that repeat others would be taken anywhere.
        is_run = len(before) == 2 or before[-2] - before[-3] == step
        if is_run and before[-1] + step in own:
            return before[-1] + step
    if before:
        return min(own, key=lambda place: (abs(place - before[-1]), -place))
    return min(own)


def _run_before(places: Array, sources: Array, number: int, source: int) -> list[int]:
    """The places of up to three slices before one, those that are of a source."""
    first = max(0, number - 3)
    while first < number and not (sources[first:number] == source).all():
        first += 1
    run: list[int] = places[first:number].tolist()
    return run


def _nests_of(chosen: Chosen, counts: Sequence[int]) -> list[Nest]:
    """The slices of a family as nested loops, of which none crosses an index of the
    first of two axes in part.
    """
    if len(counts) == 1:
        return nest_places(chosen.keys, chosen.places)
    rows, width = counts
    keys = chosen.keys.reshape(rows, width)
    places = chosen.places.reshape(rows, width)
    steps = places[1:] - places[:-1]
    # All rows alike, each moved on as the one before it: one loop around one row.
    if rows > 1 and (keys == keys[0]).all() and (steps == steps[0]).all():
        return _nests_of_equal_rows(keys[0], places[0], steps[0], rows)
    nests: list[Nest] = []
    for number in range(rows):
        inner = nest_places(keys[number], places[number])
        nests += [nest._replace(first=nest.first + number * width) for nest in inner]
    return nests


def _nests_of_equal_rows(
    keys: Array,
    places: Array,
    moves: Array,
    rows: int,
) -> list[Nest]:
    """The loops of so many rows: the first one has these keys and places, and each
    entry moves on by its own step from row to row.
    """
    width = len(keys)
    # Entries belong to one inner loop only where their source and their step agree.
    joint = keys.astype(object) * (1 << 64) + moves.astype(object)
    numbers: dict[object, int] = {}
    row = [numbers.setdefault(value, len(numbers)) for value in joint.tolist()]
    nests: list[Nest] = []
    for nest in nest_places(row, places):
        column = row.index(nest.key)
        outer = Loop(rows, width, int(moves[column]))
        key = int(keys[column])
        nests.append(nest._replace(key=key, loops=(outer, *nest.loops)))
    return nests


def _outer_loops(
    nest: Nest,
    family: Axes,
    shape: Sequence[int],
    steps: Sequence[int],
) -> _Outer:
    """The loops over slices, with steps in elements of the target."""
    width = shape[family[-1]]
    last = steps[family[-1]]
    if len(family) == 1:
        loops = tuple([Loop(loop.size, loop.to * last, loop.at) for loop in nest.loops])
        return _Outer(nest.first * last, loops)
    row, column = divmod(nest.first, width)
    first_step = steps[family[0]]
    outer: list[Loop] = []
    for loop in nest.loops:
        # A loop over a multiple of the width moves along the first of both axes.
        if loop.to % width == 0:
            to = loop.to // width * first_step
        else:
            to = loop.to * last
        outer.append(Loop(loop.size, to, loop.at))
    return _Outer(row * first_step + column * last, tuple(outer))


def dims_without(shape: Sequence[int], family: Axes) -> list[tuple[int, int]]:
    """The dimensions of a shape that a family does not keep, as (size, step)."""
    steps = flat_steps(shape)
    return [
        (size, steps[axis])
        for axis, size in enumerate(shape)
        if axis not in family and size > 1
    ]


def merged_dims(dims: Dims) -> list[tuple[int, int]]:
    """Dimensions of which each that lies directly around the next one is joined with
    it.
    """
    merged: list[tuple[int, int]] = []
    for size, step in dims:
        if merged and merged[-1][1] == size * step:
            merged[-1] = (merged[-1][0] * size, step)
        else:
            merged.append((size, step))
    return merged or [(1, 1)]


def loop_orders(ours: Dims, theirs: Dims) -> Iterator[list[Loop]]:
    """The loops over as many elements on both sides: in the order of both, then with
    the axes of A in other orders.
    """
    seen: list[list[Loop]] = []
    # Five dimensions have 120 orders: they are not tried.
    variants: Iterable[Dims] = [tuple(theirs)]
    if 1 < len(theirs) <= _DIMS:
        variants = permutations(theirs)
    for order in variants:
        dims = matched_dims(list(ours), list(order))
        if dims is None:
            continue
        loops = [Loop(*dim) for dim in dims]
        if loops not in seen:
            seen.append(loops)
            yield loops


def _slice_pairs(
    nests: Sequence[Nest],
    family: Axes,
    shape: Sequence[int],
) -> list[tuple[int, int]]:
    """The beginnings of some slices, in the target and in their source."""
    steps = flat_steps(shape)
    pairs: list[tuple[int, int]] = []
    for nest in nests:
        outer = _outer_loops(nest, family, shape, steps)
        total = prod([loop.size for loop in outer.loops])
        for number in range(0, total, max(1, total // _SAMPLED)):
            # Digits of `number` are the indices of the loops, the innermost first.
            to, at, rest = outer.first, nest.at, number
            for loop in reversed(outer.loops):
                rest, index = divmod(rest, loop.size)
                to += index * loop.to
                at += index * loop.at
            pairs.append((to, at))
        if len(pairs) >= _SAMPLED:
            break
    return pairs[:_SAMPLED]


def _find_permutation(
    target: Leaf,
    owner: Leaf,
    dim: tuple[int, int],
    theirs: Dims,
    pairs: Sequence[tuple[int, int]],
) -> list[_Inner] | None:
    """The loops over the elements of a slice that were permuted in the same way in all
    slices, as some of them show.
    """
    import numpy as np

    size, step = dim
    # Each column gets one number, made of its elements in all sampled slices.
    ours = np.zeros(size, np.uint64)
    other = np.zeros(size, np.uint64)
    for to, at in pairs:
        wanted = read_elements(target.flat, to, ((size, step),))
        given = read_elements(owner.flat, at, tuple(theirs)).reshape(-1)
        if owner.dtype != target.dtype:
            given = cast_elements(given, owner.dtype, target.dtype)
        for row, bits in ((ours, wanted), (other, given)):
            row *= np.uint64(0x9E3779B97F4A7C15)
            row ^= mix_bits(bits)
    # Equal columns are taken one after the other.
    order = np.argsort(other, kind="stable")
    turn = np.argsort(ours, kind="stable")
    if not bool((other[order] == ours[turn]).all()):
        return None
    taken = np.empty(size, np.int64)
    taken[turn] = order
    # `taken[column]` is the column of the source; `starts` say where each one lies.
    starts = np.zeros((), np.int64)
    for count, width in theirs:
        starts = starts[..., None] + np.arange(count, dtype=np.int64) * width
    parts: list[_Inner] = []
    for nest in nest_places([0] * size, starts.reshape(-1)[taken]):
        loops = [Loop(loop.size, loop.to * step, loop.at) for loop in nest.loops]
        parts.append(_Inner(nest.first * step, nest.at, tuple(loops)))
    return parts


def dtype_of_search(source: DType, target: DType) -> DType | None:
    """The dtype as which a source is read to be found in a target: its own, or the
    target's where that is a cast.
    """
    from ckpt.elements.cast import can_cast

    if source == target:
        return target
    is_cast = source.kind == target.kind == "float" and can_cast(source, target)
    return target if is_cast else None
