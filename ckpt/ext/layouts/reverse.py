"""The way back of a recipe, derived from its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.ext.layouts.formulas import inverse_of, is_exact
from ckpt.ext.layouts.pieces import Loop, Piece, cover_of, whole_piece
from ckpt.ext.layouts.rules import Expanded, Target, Wanted
from ckpt.model.errors import LossError, UnreadableError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show_name


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
        is_once = not cover_of(backs, numel).doubled
        for row, back in zip(rows, backs, strict=True):
            is_repeated = any(
                loop.at == 0 and loop.size > 1 for loop in row.piece.loops
            )
            back = _computed_back(back, name)
            is_new = is_once or _is_new(turned[name], back, numel)
            if is_new:
                turned[name].append(back)
                used[row.target].append(back.turned(name))
            if is_repeated or not is_new:
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


def _is_new(pieces: Sequence[Piece], piece: Piece, numel: int) -> bool:
    """Tell whether a piece makes elements that no other piece makes."""
    if not pieces:
        return True
    if any(other.numel == numel for other in pieces):
        return False
    return not cover_of([*pieces, piece], numel).doubled


def _pieces_back(
    row: Wanted, own: Sequence[Piece], turned: dict[str, list[Piece]]
) -> list[Piece] | None:
    """The pieces that make a tensor of A, or None if it is dropped. Raises
    UnreadableError if some of it is lost.
    """
    numel = prod(row.shape)
    if row.equal_to is not None and not own:
        return list(turned.get(row.equal_to, ())) or None
    if not row.dropped:
        return list(own)
    if row.constant is not None:
        rest = _rest_of(own, numel)
        return [*own, *[piece._replace(constant=row.constant) for piece in rest]]
    if row.dropped == numel:
        return None
    raise UnreadableError(
        f"--reverse: the recipe drops {row.dropped:,} elements of {show_name(row.name)}"
    )


def _rest_of(pieces: Sequence[Piece], numel: int) -> list[Piece]:
    """Pieces of a constant for the elements that other pieces leave, whole runs of
    elements each.
    """
    if not pieces:
        return [
            whole_piece("", numel)._replace(source=None, loops=(Loop(numel, 1, 0),))
        ]
    ends = sorted([(piece.to, piece.last[0] + 1) for piece in pieces])
    rest: list[Piece] = []
    position = 0
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
    numel = prod(target.shape)
    return Wanted(
        target.name,
        target.shape,
        dtype,
        cover_of(list(used), numel).missing if numel else 0,
    )
