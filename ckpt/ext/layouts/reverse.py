"""The way back of a recipe, derived from its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.ext.layouts.formulas import inverse_of, is_exact
from ckpt.ext.layouts.pieces import (
    Loop,
    Piece,
    cover_of,
    flat_steps,
    is_along,
    loops_in_axes,
    whole_piece,
)
from ckpt.ext.layouts.rules import Expanded, Target, Wanted
from ckpt.model.errors import LossError, UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show_name

_MOST_SLICES = 1 << 16
"""The most slices of a tensor that are there a second time."""


class Copy(NamedTuple):
    """A piece of B whose source another piece makes already: what it has must be equal,
    for it is dropped.
    """

    target: str
    piece: Piece


class Reversed(NamedTuple):
    """A recipe turned: the tensors of A made of B, what is not made, and what must be
    equal.
    """

    expanded: Expanded
    copies: tuple[Copy, ...]
    not_made: tuple[str, ...]
    """The tensors of A that a recipe drops, so that nothing can make them."""


def reversed_recipe(whole: Expanded) -> Reversed:
    """The way back of a recipe. Raises UnreadableError where some of a tensor of A
    cannot be made of B.
    """
    turned: dict[str, list[Piece]] = {name: [] for name in whole.wanted}
    used: dict[str, list[Piece]] = {target.name: [] for target in whole.targets}
    copies: list[Copy] = []
    for name, rows in _copies_by_source(whole).items():
        numel = prod(whole.wanted[name].shape)
        backs = [row.piece.turned(row.target) for row in rows]
        # Nearly always each element of A is in B once, and all pieces are new.
        is_once = not cover_of(backs, numel).doubled
        for row, back in zip(rows, backs, strict=True):
            back = _computed_back(back, name)
            new = [back] if is_once else _new_parts(turned[name], back, numel)
            turned[name] += new
            used[row.target] += [part.turned(name) for part in new]
            # Elements that another piece makes already are dropped, so they must be
            # equal.
            made = sum([part.numel for part in new])
            if made < row.piece.numel:
                copies.append(row)
    targets: list[Target] = []
    not_made: list[str] = []
    for name, wanted in whole.wanted.items():
        pieces = _pieces_back(wanted, turned[name], turned)
        if pieces is None:
            not_made.append(name)
        else:
            targets.append(Target(name, wanted.shape, wanted.dtype, tuple(pieces)))
    taken = {
        target.name: _wanted_back(target, used[target.name], whole)
        for target in whole.targets
    }
    return Reversed(Expanded(tuple(targets), taken), tuple(copies), tuple(not_made))


def _computed_back(piece: Piece, name: str) -> Piece:
    """A piece of the way back with the inverse of its formula. Raises LossError for one
    that rounds.
    """
    if not piece.formula:
        return piece
    if not is_exact(piece.formula):
        problem = (
            f"--reverse: {show_name(name)} went through {piece.formula} and was "
            "rounded: that is not taken back"
        )
        raise LossError(problem)
    return piece._replace(formula=inverse_of(piece.formula))


def _copies_by_source(whole: Expanded) -> dict[str, list[Copy]]:
    """The pieces that take something of each tensor of A, and their targets."""
    takers: dict[str, list[Copy]] = {}
    for target in whole.targets:
        for piece in target.pieces:
            if piece.source is not None:
                takers.setdefault(piece.source, []).append(Copy(target.name, piece))
    return takers


def _new_parts(pieces: Sequence[Piece], piece: Piece, numel: int) -> list[Piece]:
    """The parts of a piece whose elements no other piece makes."""
    # A piece that is all of the tensor leaves nothing: no elements need be counted.
    if any(other.numel == numel for other in pieces):
        return []
    doubled = cover_of([*pieces, piece], numel).doubled
    if not doubled:
        return [piece]
    if doubled == piece.numel or not piece.loops:
        return []
    # It is new in part: both halves are looked at, until each is new or is none.
    first, last = piece.halves()
    out = _new_parts(pieces, first, numel)
    return [*out, *_new_parts([*pieces, *out], last, numel)]


def _pieces_back(
    row: Wanted,
    own: Sequence[Piece],
    turned: dict[str, list[Piece]],
) -> list[Piece] | None:
    """The pieces that make a tensor of A, or None if it is dropped. Raises
    UnreadableError if some of it is lost.
    """
    numel = prod(row.shape)
    # A copy is made as the tensor that it equals; that one may be dropped in its turn.
    if row.equal_to is not None and not own:
        return list(turned.get(row.equal_to, ())) or None
    if not row.dropped:
        return list(own)
    if row.constant is not None:
        rest = _rest_of(own, numel)
        return [*own, *[piece._replace(constant=row.constant) for piece in rest]]
    if row.repeats:
        return [*own, *_repeated_pieces(row, own)]
    if row.dropped == numel:
        return None
    raise UnreadableError(
        f"--reverse: the recipe drops {row.dropped:,} elements of {show_name(row.name)}"
    )


def _repeated_pieces(row: Wanted, own: Sequence[Piece]) -> list[Piece]:
    """Pieces of the slices that a tensor has a second time, made as `own` make them.

    Raises UnreadableError for too many slices.
    """
    # A recipe of a few words may name millions of slices.
    if sum([repeat.size for repeat in row.repeats]) > _MOST_SLICES:
        problem = f"{show_name(row.name)} repeats more than {_MOST_SLICES:,} slices"
        raise UnreadableError(f"--reverse: {problem}")
    out: list[Piece] = []
    for repeat in row.repeats:
        for number in range(repeat.size):
            at = repeat.at + number * repeat.step
            to = repeat.to + number
            for piece in own:
                cut = _slice_in(piece, row.shape, repeat.axis, at)
                if cut is not None:
                    shift = (to - at) * flat_steps(row.shape)[repeat.axis]
                    out.append(cut._replace(to=cut.to + shift).normalized())
    return out


def _slice_in(
    piece: Piece,
    shape: Sequence[int],
    axis: int,
    index: int,
) -> Piece | None:
    """The elements of a piece in one slice of its target, or None if it has none."""
    steps = flat_steps(shape)
    rest: list[Loop] = []
    along: list[Loop] = []
    for loop in loops_in_axes(piece.loops, steps):
        if is_along(loop, axis, shape):
            along.append(loop)
        else:
            rest.append(loop)
    # The index that is left to reach, from the outermost loop along the axis inwards.
    left = index - piece.to // steps[axis] % shape[axis]
    to = piece.to
    at = piece.at
    for loop in sorted(along, key=lambda loop: -loop.to):
        own = min(max(0, left * steps[axis] // loop.to), loop.size - 1)
        to += own * loop.to
        at += own * loop.at
        left -= own * loop.to // steps[axis]
    return None if left else piece._replace(to=to, at=at, loops=tuple(rest))


def _rest_of(pieces: Sequence[Piece], numel: int) -> list[Piece]:
    """Pieces of a constant for the elements that other pieces leave, whole runs of
    elements each.
    """
    if not pieces:
        all_of_it = (Loop(numel, 1, 0),)
        return [whole_piece("", numel)._replace(source=None, loops=all_of_it)]
    ends = sorted([(piece.to, piece.last[0] + 1) for piece in pieces])
    rest: list[Piece] = []
    position = 0
    # The end stands as a last piece, so that what is left before it counts.
    for first, last in [*ends, (numel, numel)]:
        if first > position:
            rest.append(Piece(None, position, 0, (Loop(first - position, 1, 0),)))
        position = max(position, last)
    return rest


def _wanted_back(target: Target, used: Sequence[Piece], whole: Expanded) -> Wanted:
    """A tensor of B that the way back takes, and how many of its elements it drops."""
    sources = [
        whole.wanted[piece.source]
        for piece in target.pieces
        if piece.source is not None
    ]
    dtype = sources[0].dtype if sources else target.dtype
    # A recipe has one dtype of sources for each tensor.
    numel = prod(target.shape)
    dropped = cover_of(list(used), numel).missing if numel else 0
    return Wanted(target.name, target.shape, dtype, dropped)
