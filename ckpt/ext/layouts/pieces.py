"""Pieces: which elements of one tensor are which elements of another, as nested loops
over both.

A piece is symmetric: `turned` is the way back. The pieces of one side make a grid,
which says whether they overlap and whether they are all of a tensor. Reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.model.errors import UnsupportedError
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MOST = 1 << 16
"""The most pieces of one tensor."""
_CELLS = 1 << 22
"""The most cells of a grid that is counted cell by cell."""


class Loop(NamedTuple):
    """A dimension of a piece: its size, and how many elements lie between two of its
    indices on either side.
    """

    size: int
    to: int
    at: int


class Piece(NamedTuple):
    """Elements of a target that are elements of a source, or that are all one constant.

    The element `to + the sum of index × loop.to` of the target is the element `at + the
    sum of index × loop.at` of the source, both counted in the order of their shapes.
    `source` is a name or a number; None says that each element has the bits `constant`.
    """

    source: str | None
    to: int
    at: int
    loops: tuple[Loop, ...]
    constant: int = 0
    formula: str = ""
    """The computation on each element, as `*0.125` or `+1.0`."""

    @property
    def numel(self) -> int:
        """The number of its elements."""
        return prod([loop.size for loop in self.loops])

    def turned(self, target: str) -> Piece:
        """The same elements from the other side: the source becomes the target. What is
        taken several times is taken once.

        The formula stays what it is: who computes the way back inverts it.
        """
        to, at = self.at, self.to
        loops: list[Loop] = []
        for loop in self.loops:
            # Loops that do not move in the source (`at` 0) repeat one element there:
            # the way back takes it once.
            if loop.at < 0:
                # The last index of a loop that goes backwards is the first one of the
                # source: both sides begin there, and steps of targets stay positive.
                to += (loop.size - 1) * loop.at
                at += (loop.size - 1) * loop.to
                loops.append(Loop(loop.size, -loop.at, -loop.to))
            elif loop.at > 0:
                loops.append(Loop(loop.size, loop.at, loop.to))
        return Piece(target, to, at, tuple(loops), formula=self.formula).normalized()

    @property
    def last(self) -> tuple[int, int]:
        """The last element that it takes on each side: of the target, and of the
        source.
        """
        to = self.to + sum([(loop.size - 1) * loop.to for loop in self.loops])
        at = self.at + sum([(loop.size - 1) * loop.at for loop in self.loops])
        return to, at

    def halves(self) -> tuple[Piece, Piece]:
        """The piece in two, cut in the middle of its outermost loop."""
        outer, *inner = self.loops
        half = outer.size // 2
        first = outer._replace(size=half)
        last = outer._replace(size=outer.size - half)
        front = self._replace(loops=(first, *inner))
        back = self._replace(
            to=self.to + half * outer.to,
            at=self.at + half * outer.at,
            loops=(last, *inner),
        )
        return front.normalized(), back.normalized()

    def normalized(self) -> Piece:
        """The same piece with its loops in the order of the target, joined where two
        are one, and without single ones.
        """
        loops: list[Loop] = []
        for loop in sorted(self.loops, key=lambda loop: -loop.to):
            if loop.size == 1:
                continue
            outer = loops[-1] if loops else None
            # Two loops are one where the outer one goes on where the inner one ends, on
            # both sides.
            is_one = (
                outer is not None
                and outer.to == loop.size * loop.to
                and outer.at == loop.size * loop.at
            )
            if outer is not None and is_one:
                loops[-1] = Loop(outer.size * loop.size, loop.to, loop.at)
            else:
                loops.append(loop)
        return self._replace(loops=tuple(loops))


class Repeat(NamedTuple):
    """Slices of a tensor along one axis that are other slices of it.

    The slice `to + i` is the slice `at + i × step`, for i below `size`.
    """

    axis: int
    to: int
    at: int
    size: int
    step: int

    def piece(self, name: str, shape: Sequence[int]) -> Piece:
        """The same as a piece of the tensor, which has this shape, from itself."""
        steps = flat_steps(shape)
        own = steps[self.axis]
        inner = [
            Loop(size, step, step)
            for axis, (size, step) in enumerate(zip(shape, steps, strict=True))
            if axis != self.axis
        ]
        outer = Loop(self.size, own, self.step * own)
        return Piece(name, self.to * own, self.at * own, (outer, *inner)).normalized()


def flat_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """The number of elements between two indices of each dimension, in the order of a
    shape.
    """
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def whole_piece(source: str, numel: int) -> Piece:
    """The piece that is all of a source, as it is."""
    return Piece(source, 0, 0, (Loop(numel, 1, 1),)).normalized()


def matched_dims(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]] | None:
    """Two lists of dimensions (size, step) over as many elements, as one list of (size,
    first step, second step).

    It is None where the sizes of one do not divide the sizes of the other.
    """
    ones = [row for row in first if row[0] != 1]
    twos = [row for row in second if row[0] != 1]
    dims: list[tuple[int, int, int]] = []
    # From the innermost dimension outwards: of the larger of two, what the smaller one
    # leaves is matched with the next one.
    while ones and twos:
        size, step = ones.pop()
        other_size, other_step = twos.pop()
        least = min(size, other_size)
        if max(size, other_size) % least:
            return None
        dims.append((least, step, other_step))
        if size > least:
            ones.append((size // least, step * least))
        if other_size > least:
            twos.append((other_size // least, other_step * least))
    if ones or twos:
        return None
    return dims[::-1]


def loops_in_axes(loops: Sequence[Loop], steps: Sequence[int]) -> list[Loop]:
    """The loops of a piece, cut where they run on into the next axis of the target.

    `steps` are the elements between two indices of each axis of the target.
    """
    out: list[Loop] = []
    todo = list(loops)
    while todo:
        loop = todo.pop()
        # A loop that begins inside of an axis and ends behind it is cut at the axis.
        cuts = [
            step // loop.to
            for step in steps
            if loop.to and loop.to < step < loop.to * loop.size and step % loop.to == 0
        ]
        fits = [cut for cut in cuts if loop.size % cut == 0]
        if not fits:
            out.append(loop)
            continue
        cut = min(fits)
        todo.append(Loop(cut, loop.to, loop.at))
        todo.append(Loop(loop.size // cut, loop.to * cut, loop.at * cut))
    return out


def is_along(loop: Loop, axis: int, shape: Sequence[int]) -> bool:
    """Tell whether a loop moves along an axis of the target, which has this shape."""
    step = flat_steps(shape)[axis]
    return step <= loop.to < step * shape[axis]


def row_loops(loops: Sequence[Loop], width: int) -> list[Loop] | None:
    """The loops over whole rows of so many elements, counted in rows of the target;
    None if there are none.
    """
    rows: list[Loop] = []
    for loop in loops:
        if loop.to >= width and loop.to % width == 0:
            rows.append(Loop(loop.size, loop.to // width, loop.at))
            continue
        # A loop inside of one row is no loop over rows.
        if loop.size * loop.to <= width:
            continue
        if width % loop.to or loop.size * loop.to % width:
            return None
        inner = width // loop.to
        rows.append(Loop(loop.size // inner, 1, loop.at * inner))
    return rows


# --- the pieces of one side as a grid -------------------------------------------------


class Cell(NamedTuple):
    """A piece as a box of a grid: its first index and its sizes, and the steps of these
    dimensions on the other side.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    piece: Piece


class Grid(NamedTuple):
    """The elements `first` to `last` of a tensor as a shape of their own, in which each
    piece is a box.
    """

    first: int
    last: int
    shape: tuple[int, ...]
    cells: tuple[Cell, ...]

    @property
    def numel(self) -> int:
        """The number of its elements."""
        return self.last - self.first


def grids_of(pieces: Sequence[Piece], numel: int) -> list[Grid]:
    """The grids of the pieces of a target with so many elements, in order; together
    they have all pieces.

    Where pieces fit into no grid they are cut along their outermost loops. Raises
    UnsupportedError for too many of them.
    """
    # Nearly all tensors are one grid. The others are cut into groups that lie apart.
    whole = _make_grid(pieces, 0, numel)
    if whole is not None:
        return [whole]
    grids: list[Grid] = []
    groups = _disjoint_groups(pieces)
    # Gaps before, between and behind the groups belong to a grid, or they went
    # uncounted.
    starts = [0, *[min(piece.to for piece in group) for group in groups[1:]], numel]
    for number, group in enumerate(groups):
        first, last = starts[number], starts[number + 1]
        grid = _make_grid(group, first, last)
        if grid is not None:
            grids.append(grid)
        else:
            grids += _cut_grids(group, first, last)
    return grids


def _cut_grids(group: Sequence[Piece], first: int, last: int) -> list[Grid]:
    """The grids of pieces that lie among each other and fit into no grid as
    they are.
    """
    parts = list(group)
    while True:
        steps: list[int] = []
        for part in parts:
            steps += [loop.to for loop in part.loops]
        widest = max(steps, default=0)
        unrolled: list[Piece] = []
        for part in parts:
            unrolled += _unroll_piece(part, widest)
        parts = unrolled
        # A few loops of a recipe may stand for millions of pieces.
        if widest == 0 or len(parts) > MOST:
            raise UnsupportedError(f"a layout of more than {MOST:,} pieces")
        grid = _make_grid(parts, first, last)
        if grid is not None:
            return [grid]
        apart = _disjoint_groups(parts)
        if len(apart) > 1:
            # A grid counts its elements from 0.
            shifted = [part._replace(to=part.to - first) for part in parts]
            grids = grids_of(shifted, last - first)
            return [_shifted_grid(grid, first) for grid in grids]


def _shifted_grid(grid: Grid, first: int) -> Grid:
    """The same grid so many elements later."""
    cells = tuple(
        [
            cell._replace(piece=cell.piece._replace(to=cell.piece.to + first))
            for cell in grid.cells
        ]
    )
    return Grid(grid.first + first, grid.last + first, grid.shape, cells)


def _unroll_piece(piece: Piece, step: int) -> list[Piece]:
    """A piece as one piece for each index of its loop with this step in the target."""
    for number, loop in enumerate(piece.loops):
        if loop.to == step:
            rest = (*piece.loops[:number], *piece.loops[number + 1 :])
            return [
                piece._replace(
                    to=piece.to + index * loop.to,
                    at=piece.at + index * loop.at,
                    loops=rest,
                )
                for index in range(loop.size)
            ]
    return [piece]


def _disjoint_groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in groups whose ranges of elements in the target do not overlap, in
    order.
    """
    groups: list[list[Piece]] = []
    end = -1
    for piece in sorted(pieces, key=lambda piece: piece.to):
        if groups and piece.to <= end:
            groups[-1].append(piece)
        else:
            groups.append([piece])
        end = max(end, piece.last[0])
    return groups


def _make_grid(pieces: Sequence[Piece], first: int, last: int) -> Grid | None:
    """The grid of pieces in the elements `first` to `last`, or None if their steps do
    not divide each other.
    """
    numel = last - first
    steps = {loop.to for piece in pieces for loop in piece.loops if loop.size > 1}
    # Elements are counted as with digits: a box has a first index and a size in each.
    # That needs steps of which each divides the next one.
    chain = sorted(steps | {1, numel})
    if numel < 1 or chain[0] < 1 or chain[-1] != numel:
        return None
    if any(larger % smaller for smaller, larger in pairwise(chain)):
        return None
    radices = [larger // smaller for smaller, larger in pairwise(chain)]
    digits = {step: number for number, step in enumerate(chain[:-1])}
    cells: list[Cell] = []
    for piece in pieces:
        cell = _make_cell(piece, piece.to - first, chain, radices, digits)
        if cell is None:
            return None
        cells.append(cell)
    return Grid(first, last, tuple(reversed(radices)), tuple(cells))


def _make_cell(
    piece: Piece,
    start: int,
    chain: Sequence[int],
    radices: Sequence[int],
    digits: dict[int, int],
) -> Cell | None:
    """A piece as a box of the digits, of which the last one counts single elements;
    None if it is none.
    """
    offsets: list[int] = []
    for step, radix in zip(chain, radices, strict=False):
        offsets.append(start // step % radix)
    sizes, steps = [1] * len(radices), [0] * len(radices)
    todo = [loop for loop in piece.loops if loop.size > 1]
    while todo:
        size, to, at = todo.pop()
        digit = digits.get(to)
        # Two loops in one digit are no box, and neither is a step that is no digit.
        if digit is None or digit >= len(radices) or sizes[digit] > 1:
            return None
        room = radices[digit]
        if offsets[digit] + size > room:
            # A loop that runs over carries into the next digit: only whole ones can.
            if offsets[digit] or size % room:
                return None
            todo.append(Loop(size // room, to * room, at * room))
            size = room
        sizes[digit], steps[digit] = size, at
    return Cell(
        tuple(reversed(offsets)),
        tuple(reversed(sizes)),
        tuple(reversed(steps)),
        piece,
    )


class Cover(NamedTuple):
    """The elements of a tensor that no piece takes, and the elements that more than one
    takes.
    """

    missing: int
    doubled: int


def cover_of(pieces: Sequence[Piece], numel: int) -> Cover:
    """The cover of a target with so many elements by its pieces. Raises
    UnsupportedError for too many pieces.
    """
    # A recipe is a stranger's file: what it takes is checked before it is counted.
    outside = [piece for piece in pieces if piece.to < 0 or piece.last[0] >= numel]
    if outside:
        raise UnsupportedError("a piece lies outside of its tensor")
    if not pieces:
        return Cover(numel, 0)
    covers = [_grid_cover(grid) for grid in grids_of(pieces, numel)]
    return Cover(
        sum([cover.missing for cover in covers]),
        sum([cover.doubled for cover in covers]),
    )


def _grid_cover(grid: Grid) -> Cover:
    """The cover of a grid by its boxes, counted over the cuts that they make."""
    import numpy as np

    cuts: list[list[int]] = []
    for dim, size in enumerate(grid.shape):
        marks = {0, size}
        for cell in grid.cells:
            marks |= {cell.offsets[dim], cell.offsets[dim] + cell.sizes[dim]}
        cuts.append(sorted(marks))
    # Cells between the cuts are few, whatever the sizes: elements are never counted.
    shape = tuple([len(marks) - 1 for marks in cuts])
    if prod(shape) > _CELLS:
        return _cover_in_parts(grid)
    counts = np.zeros(shape, np.int32)
    places = [{mark: number for number, mark in enumerate(marks)} for marks in cuts]
    for cell in grid.cells:
        box: list[slice] = []
        for place, offset, size in zip(places, cell.offsets, cell.sizes, strict=True):
            box.append(slice(place[offset], place[offset + size]))
        counts[tuple(box)] += 1
    missing = counts == 0
    doubled = counts > 1
    sizes = [np.diff(marks) for marks in cuts]
    return Cover(_count_elements(missing, sizes), _count_elements(doubled, sizes))


def _cover_in_parts(grid: Grid) -> Cover:
    """As `_grid_cover`, for a grid with too many cells: along its first dimension with
    several cuts, one part after the other.
    """
    dim = next(dim for dim, size in enumerate(grid.shape) if size > 1)
    marks = {0, grid.shape[dim]}
    for cell in grid.cells:
        marks |= {cell.offsets[dim], cell.offsets[dim] + cell.sizes[dim]}
    cuts = sorted(marks)
    total = Cover(0, 0)
    for low, high in pairwise(cuts):
        # Between two cuts all indices of this dimension are alike: one stands for them.
        flat: list[Cell] = []
        for cell in grid.cells:
            offset, size = cell.offsets[dim], cell.sizes[dim]
            if offset <= low and high <= offset + size:
                offsets = _with_value(cell.offsets, dim, 0)
                sizes = _with_value(cell.sizes, dim, 1)
                flat.append(cell._replace(offsets=offsets, sizes=sizes))
        cover = _grid_cover(Grid(0, 0, _with_value(grid.shape, dim, 1), tuple(flat)))
        total = Cover(
            total.missing + (high - low) * cover.missing,
            total.doubled + (high - low) * cover.doubled,
        )
    return total


def _with_value(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    """The same numbers with another one at one place."""
    return (*values[:dim], value, *values[dim + 1 :])


def _count_elements(mask: Array, sizes: Sequence[Array]) -> int:
    """The number of elements in the cells of a mask, whose cells have these sizes along
    each dimension.
    """
    import numpy as np

    weights = mask.astype(np.int64)
    # The last dimension is summed first, until one number is left.
    for size in reversed(sizes):
        weights = weights @ size.astype(np.int64)
    return int(weights)


# --- sequences as loops ---------------------------------------------------------------


class Nest(NamedTuple):
    """Entries of a sequence as nested loops: the first one, its source, where it lies
    there, and the loops over both.
    """

    first: int
    key: int
    at: int
    loops: tuple[Loop, ...]


def nest_places(
    keys: Sequence[int] | Array, places: Sequence[int] | Array
) -> list[Nest]:
    """A sequence of places in sources, as few nested loops. `keys` number the
    sources.
    """
    import numpy as np

    return _nest_arrays(np.asarray(keys, np.int64), np.asarray(places, np.int64), 0)


_DEPTH = 12
"""Loops inside of each other at most."""


def _nest_arrays(keys: Array, places: Array, depth: int) -> list[Nest]:
    import numpy as np

    count = len(keys)
    is_one = bool((keys == keys[0]).all())
    if is_one:
        run = _single_loop(places)
        if run is not None:
            return [Nest(0, int(keys[0]), int(places[0]), run)]
    period = _find_period(keys, places) if depth < _DEPTH else None
    if period is not None:
        repeated = _nest_repeats(keys, places, period, depth)
        if not is_one or 2 * period < count:
            return repeated
        # Any two halves of one source are a period: runs may say it better.
        runs = _nest_runs(int(keys[0]), places.tolist())
        return runs if len(runs) <= len(repeated) else repeated
    if not is_one:
        # Without a period, each run of one source is nested by itself.
        ends = [*(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), count]
        nests: list[Nest] = []
        first = 0
        for end in ends:
            inner = _nest_arrays(keys[first:end], places[first:end], depth + 1)
            nests += [nest._replace(first=nest.first + first) for nest in inner]
            first = end
        return nests
    return _nest_runs(int(keys[0]), places.tolist())


def _single_loop(places: Array) -> tuple[Loop, ...] | None:
    """The loop of places with one step between them, or None."""
    import numpy as np

    if len(places) == 1:
        return ()
    steps = np.diff(places)
    if not bool((steps == steps[0]).all()):
        return None
    return (Loop(len(places), 1, int(steps[0])),)


def _find_period(keys: Array, places: Array) -> int | None:
    """The length of the shortest part of which a sequence consists, each one so much
    later than the one before it.
    """
    count = len(keys)
    for period in range(2, count // 2 + 1):
        # One look at two numbers spares the comparison of arrays for most lengths.
        if count % period or keys[0] != keys[period]:
            continue
        if not (keys[:-period] == keys[period:]).all():
            continue
        steps = (places[period:] - places[:-period]).reshape(-1, period)
        if (steps == steps[0]).all():
            return period
    return None


def _nest_repeats(keys: Array, places: Array, period: int, depth: int) -> list[Nest]:
    """The loops of a sequence that consists of parts of this length."""
    import numpy as np

    times = len(keys) // period
    steps = places[period : 2 * period] - places[:period]
    # Entries are of one inner loop only if they move on alike.
    pairs, joint = np.unique(
        np.stack([keys[:period], steps], axis=1),
        axis=0,
        return_inverse=True,
    )
    inner = _nest_arrays(joint.reshape(-1), places[:period], depth + 1)
    nests: list[Nest] = []
    for nest in inner:
        key, step = pairs[nest.key].tolist()
        nests.append(
            nest._replace(key=key, loops=(Loop(times, period, step), *nest.loops))
        )
    return nests


def _nest_runs(key: int, places: Sequence[int]) -> list[Nest]:
    """Places of one source without a common period: runs of one step, joined where they
    repeat.
    """
    nests: list[Nest] = []
    first = 0
    while first < len(places):
        last = first + 1
        step = 1
        if last < len(places):
            step = places[last] - places[first]
        while last < len(places) and places[last] - places[last - 1] == step:
            last += 1
        loops: tuple[Loop, ...] = ()
        if last - first > 1:
            loops = (Loop(last - first, 1, step),)
        nests.append(Nest(first, key, places[first], loops))
        first = last
    # Joined runs may repeat in their turn: until nothing joins any more.
    joined = _join_nests(nests)
    while len(joined) < len(nests):
        nests, joined = joined, _join_nests(joined)
    return joined


def _join_nests(nests: Sequence[Nest]) -> list[Nest]:
    """The loops of which several in a row differ in their beginnings only, by one step,
    as one loop around them.
    """
    joined: list[Nest] = []
    number = 0
    while number < len(nests):
        nest = nests[number]
        last = number + 1
        if last < len(nests) and nests[last].loops == nest.loops:
            far = nests[last].first - nest.first
            step = nests[last].at - nest.at
            while (
                last < len(nests)
                and nests[last].loops == nest.loops
                and nests[last].first - nests[last - 1].first == far
                and nests[last].at - nests[last - 1].at == step
            ):
                last += 1
            nest = nest._replace(loops=(Loop(last - number, far, step), *nest.loops))
        joined.append(nest)
        number = last
    return joined
