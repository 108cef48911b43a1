"""Tensors of one dimension, whose elements are too few to say much one by one: found in
runs, or as the weight beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ckpt.ext.layouts.fibres import mix_bits
from ckpt.ext.layouts.pieces import (
    Cover,
    Loop,
    Piece,
    cover_of,
    flat_steps,
    nest_places,
)
from ckpt.ext.layouts.proof import Leaf, cast_elements, is_proved, read_elements
from ckpt.ext.layouts.search import dtype_of_search
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WINDOW = 8
"""Elements in a row that are looked for: fewer stand in many places."""
LONGEST = 1 << 24
"""The most elements of a tensor that is looked at element by element."""


LEAVES = (
    (".weight", ".bias"),
    ("_weight", "_bias"),
    ("/kernel", "/bias"),
    (".kernel", ".bias"),
    ("", "_bias"),
    ("", ".bias"),
)
"""The last parts of the names of a weight and of the bias beside it."""


def bias_beside(
    target: Leaf,
    weight: Leaf,
    pieces: Sequence[Piece],
    sources: Mapping[str, Leaf],
) -> list[Piece] | None:
    """Return the pieces of a bias that follow the weight beside it, some of whose axes
    the bias has.

    It is None where the weight is not made of whole rows of weights that have a bias
    beside them.
    """
    for axes in _axes_of(weight.shape, target.shape):
        rows = [_bias_piece(piece, weight, axes, sources) for piece in pieces]
        out = list(dict.fromkeys([row for row in rows if row is not None]))
        # A row that is None is in the set: all of the weight must have a bias.
        if len(out) != len(set(rows)):
            continue
        if not all(is_proved(piece, target, sources) for piece in out):
            continue
        if cover_of(out, target.ref.numel) == Cover(0, 0):
            return out
    return None


def _axes_of(shape: Sequence[int], wanted: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The axes of a weight that have the shape of a bias, in order; the last ones of
    several come last.
    """
    # Dimensions of 1 are no axis, but where the bias has no other.
    kept = tuple([size for size in wanted if size > 1]) or tuple(wanted)
    for axes in combinations(range(len(shape)), len(kept)):
        if tuple([shape[axis] for axis in axes]) == kept and len(axes) < len(shape):
            yield axes


def _bias_piece(
    piece: Piece,
    weight: Leaf,
    axes: tuple[int, ...],
    sources: Mapping[str, Leaf],
) -> Piece | None:
    """The piece of the bias for a piece of its weight, whose `axes` are the bias's."""
    if piece.source is None:
        return None
    source = sources[piece.source]
    for old, new in LEAVES:
        if not source.name.endswith(old):
            continue
        bias = sources.get(source.name.removesuffix(old) + new)
        if bias is None:
            continue
        for own in _axes_of(source.shape, bias.shape):
            row = _project_piece(
                piece,
                weight.shape,
                axes,
                source.shape,
                own,
                bias.name,
            )
            if row is not None:
                return row
    return None


def _project_piece(
    piece: Piece,
    shape: Sequence[int],
    axes: tuple[int, ...],
    source_shape: Sequence[int],
    source_axes: tuple[int, ...],
    name: str,
) -> Piece | None:
    """Return a piece without all axes but some of each side, or None if one side loses
    an axis that the other one keeps.
    """
    steps = flat_steps(shape)
    source_steps = flat_steps(source_shape)
    # The steps of the kept axes, in the weight and in the bias that has them alone.
    kept_steps = flat_steps([shape[axis] for axis in axes])
    kept_source_steps = flat_steps([source_shape[axis] for axis in source_axes])
    to_steps = dict(zip(axes, kept_steps, strict=True))
    at_steps = dict(zip(source_axes, kept_source_steps, strict=True))
    loops: list[Loop] = []
    for loop in _split_loops(piece.loops, steps, source_steps):
        axis = _axis_of(loop.to, steps)
        source_axis = _axis_of(abs(loop.at), source_steps)
        if (axis in to_steps) != (source_axis in at_steps):
            return None
        if axis in to_steps:
            to = loop.to // steps[axis] * to_steps[axis]
            at = abs(loop.at) // source_steps[source_axis] * at_steps[source_axis]
            loops.append(Loop(loop.size, to, at if loop.at > 0 else -at))
    # The index of the first element along each kept axis says where the bias begins.
    start = 0
    for axis, step in to_steps.items():
        start += piece.to // steps[axis] % shape[axis] * step
    first = 0
    for axis, step in at_steps.items():
        first += piece.at // source_steps[axis] % source_shape[axis] * step
    formula = piece.formula
    return Piece(name, start, first, tuple(loops), formula=formula).normalized()


def _axis_of(step: int, steps: Sequence[int]) -> int:
    """The axis that a step moves along."""
    for axis, own in enumerate(steps):
        if step >= own > 0:
            return axis
    return len(steps) - 1


def _split_loops(
    loops: Sequence[Loop],
    steps: Sequence[int],
    source_steps: Sequence[int],
) -> list[Loop]:
    """The loops of a piece, cut where they run on from one axis into the next one on
    either side.
    """
    todo = list(loops)
    out: list[Loop] = []
    while todo:
        loop = todo.pop()
        cuts: list[int] = []
        for own_steps, step in ((steps, loop.to), (source_steps, loop.at)):
            width = abs(step)
            for own in own_steps:
                if width and width < own < width * loop.size and own % width == 0:
                    cuts.append(own // width)
        fits = [cut for cut in cuts if loop.size % cut == 0]
        if not fits:
            out.append(loop)
            continue
        # The smallest cut first: what is left of the loop is split again.
        cut = min(fits)
        todo += [
            Loop(cut, loop.to, loop.at),
            Loop(loop.size // cut, loop.to * cut, loop.at * cut),
        ]
    return out


class Windows(NamedTuple):
    """The runs of WINDOW elements in flat tensors of A, sorted by what is in them."""

    keys: Array
    owners: Array
    places: Array
    leaves: tuple[Leaf, ...]


def windows_of(leaves: Sequence[Leaf], target: Leaf) -> Windows:
    """The runs of elements of flat tensors, read as the dtype of a target."""
    import numpy as np

    keys: list[Array] = []
    owners: list[Array] = []
    places: list[Array] = []
    kept: list[Leaf] = []
    for leaf in leaves:
        fits = dtype_of_search(leaf.dtype, target.dtype) is not None
        # Each element has a window: a matrix of 1 GB would have 250 million.
        if fits and WINDOW <= leaf.ref.numel <= LONGEST:
            own = window_keys(_raw_elements(leaf, target))
            keys.append(own)
            owners.append(np.full(len(own), len(kept), np.int32))
            places.append(np.arange(len(own), dtype=np.int64))
            kept.append(leaf)
    if not keys:
        none = np.zeros(0, np.int64)
        return Windows(none.astype(np.uint64), none, none, ())
    joined = np.concatenate(keys)
    # Stable, so among equal windows the earlier tensor and place comes first.
    order = np.argsort(joined, kind="stable")
    return Windows(
        joined[order],
        np.concatenate(owners)[order],
        np.concatenate(places)[order],
        tuple(kept),
    )


def _raw_elements(leaf: Leaf, target: Leaf) -> Array:
    """The raw elements of a flat tensor, as the dtype of a target."""
    raw = read_elements(leaf.flat, 0, ((leaf.ref.numel, 1),))
    if leaf.dtype == target.dtype:
        return raw
    return cast_elements(raw, leaf.dtype, target.dtype)


def window_keys(bits: Array) -> Array:
    """The content of each run of WINDOW elements, as one number."""
    import numpy as np

    hashes = mix_bits(bits)
    count = len(bits) - WINDOW + 1
    # The order counts, other than in a sum: each element is multiplied once more.
    keys = np.zeros(count, np.uint64)
    for number in range(WINDOW):
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys += hashes[number : number + count]
    return keys


def joined_runs(target: Leaf, windows: Windows) -> list[Piece] | None:
    """The pieces of a flat tensor that is put together from runs of flat tensors of A;
    None if some of it is in none.
    """
    import numpy as np

    count = target.ref.numel
    if not WINDOW <= count <= LONGEST or not len(windows.keys):
        return None
    own = _raw_elements(target, target)
    keys = window_keys(own)
    lows = np.searchsorted(windows.keys, keys, "left")
    highs = np.searchsorted(windows.keys, keys, "right")
    owners, places = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    held: dict[int, Array] = {}
    position = 0
    while position < count:
        # The last elements are too few for a window: they are looked for in the one
        # that ends with them.
        start = min(position, count - WINDOW)
        low = int(lows[start])
        high = min(int(highs[start]), low + WINDOW)
        best = (0, 0, 0)
        for number in range(low, high):
            owner = int(windows.owners[number])
            if owner not in held:
                held[owner] = _raw_elements(windows.leaves[owner], target)
            place = int(windows.places[number]) + position - start
            theirs = held[owner][place:]
            length = min(len(theirs), count - position)
            wanted = own[position : position + length]
            differs = np.flatnonzero(theirs[:length] != wanted)
            equal = int(differs[0]) if len(differs) else length
            # The longest run; of several the one of the first tensor, at its beginning.
            best = max(best, (equal, -owner, -place))
        length, owner, place = best[0], -best[1], -best[2]
        if not length:
            return None
        owners[position : position + length] = owner
        places[position : position + length] = np.arange(place, place + length)
        position += length
    pieces: list[Piece] = []
    for nest in nest_places(owners.tolist(), places.tolist()):
        name = windows.leaves[nest.key].name
        pieces.append(Piece(name, nest.first, nest.at, nest.loops).normalized())
    return pieces
