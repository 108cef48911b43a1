"""Tensors of one dimension, whose elements are too few to say much one by one: found in runs, or as the weight beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckpt.ext.layouts.fibres import mixed
from ckpt.ext.layouts.pieces import Loop, Piece, flat_steps, nested
from ckpt.ext.layouts.proof import Leaf, cast_elements, is_proved, read_elements
from ckpt.ext.layouts.search import dtype_of_search
from ckpt.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

WINDOW = 8
"""Elements in a row that are looked for: fewer stand in many places."""
LONGEST = 1 << 24
"""The most elements of a tensor that is looked at element by element."""


def rows_beside(
    target: Leaf,
    weight: Leaf,
    pieces: Sequence[Piece],
    sources: Mapping[str, Leaf],
    leaf_names: tuple[str, str],
) -> list[Piece] | None:
    """The pieces of a bias from those of the weight beside it, whose rows lie where the bias's elements do.

    `leaf_names` are the last parts of the names of the weight and of the bias. None where the weight is not made of whole rows of
    weights that have a bias beside them.
    """
    out: list[Piece] = []
    for piece in pieces:
        row = None if piece.source is None else _row_piece(piece, weight, sources, leaf_names)
        if row is None:
            return None
        out.append(row)
    return out if all(is_proved(piece, target, sources) for piece in out) else None


def _row_piece(
    piece: Piece, weight: Leaf, sources: Mapping[str, Leaf], leaf_names: tuple[str, str]
) -> Piece | None:
    """The piece of the bias for a piece of its weight."""
    source = sources[piece.source or ""]
    old, new = leaf_names
    name = source.name.removesuffix(old) + new
    bias = sources.get(name)
    if bias is None or not source.name.endswith(old) or not weight.shape:
        return None
    width = weight.ref.numel // weight.shape[0]
    rows: list[Loop] = []
    for loop in piece.loops:
        size, to, at = loop
        if to < width and size * to > width:  # rows and what is in them in one loop
            if width % to or size % (width // to):
                return None
            inner = width // to
            size, to, at = size // inner, width, at * inner
        if to >= width:
            rows.append(Loop(size, to, at))
    for axis, step in enumerate(flat_steps(source.shape)):
        count = source.shape[axis]
        first = piece.at // step % count
        is_here = all(loop.at % step == 0 for loop in rows)
        lasts = first + sum([(loop.size - 1) * (loop.at // step) for loop in rows])
        if is_here and 0 <= lasts < count and bias.ref.numel == count and piece.to % width == 0:
            loops = tuple([Loop(loop.size, loop.to // width, loop.at // step) for loop in rows])
            return Piece(name, piece.to // width, first, loops).normalized()
    return None


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
        if fits and WINDOW <= leaf.ref.numel <= LONGEST:
            own = _window_keys(_values(leaf, target))
            keys.append(own)
            owners.append(np.full(len(own), len(kept), np.int32))
            places.append(np.arange(len(own), dtype=np.int64))
            kept.append(leaf)
    if not keys:
        none = np.zeros(0, np.int64)
        return Windows(none.astype(np.uint64), none, none, ())
    joined = np.concatenate(keys)
    order = np.argsort(joined, kind="stable")
    return Windows(joined[order], np.concatenate(owners)[order], np.concatenate(places)[order], tuple(kept))


def _values(leaf: Leaf, target: Leaf) -> Array:
    """The raw elements of a flat tensor, as the dtype of a target."""
    raw = read_elements(leaf.flat, 0, ((leaf.ref.numel, 1),))
    return cast_elements(raw, leaf.dtype, target.dtype) if leaf.dtype != target.dtype else raw


def _window_keys(bits: Array) -> Array:
    """What is in each run of WINDOW elements, as one number."""
    import numpy as np

    hashes = mixed(bits)
    count = len(bits) - WINDOW + 1
    keys = np.zeros(count, np.uint64)
    for number in range(WINDOW):
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys += hashes[number : number + count]
    return keys


def joined_runs(target: Leaf, windows: Windows) -> list[Piece] | None:
    """The pieces of a flat tensor that is put together from runs of flat tensors of A; None if some of it is in none."""
    import numpy as np

    count = target.ref.numel
    if not WINDOW <= count <= LONGEST or not len(windows.keys):
        return None
    own = _values(target, target)
    keys = _window_keys(own)
    lows = np.searchsorted(windows.keys, keys, "left")
    highs = np.searchsorted(windows.keys, keys, "right")
    owners, places = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    held: dict[int, Array] = {}
    position = 0
    while position < count:
        start = min(position, count - WINDOW)
        low, high = int(lows[start]), int(highs[start])
        best = (0, 0, 0)
        for number in range(low, min(high, low + WINDOW)):
            owner = int(windows.owners[number])
            if owner not in held:
                held[owner] = _values(windows.leaves[owner], target)
            place = int(windows.places[number]) + position - start
            theirs = held[owner][place:]
            length = min(len(theirs), count - position)
            differs = np.flatnonzero(theirs[:length] != own[position : position + length])
            best = max(best, (int(differs[0]) if len(differs) else length, -owner, -place))
        length, owner, place = best[0], -best[1], -best[2]
        if not length:
            return None
        owners[position : position + length] = owner
        places[position : position + length] = np.arange(place, place + length)
        position += length
    return [
        Piece(windows.leaves[nest.key].name, nest.first, nest.at, nest.loops).normalized()
        for nest in nested(owners.tolist(), places.tolist())
    ]
