"""The account of a recipe on a checkpoint: each element of A is used or dropped by
name, each of B comes from one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ckpt.ext.layouts.pieces import Piece, cover_of, whole_piece
from ckpt.ext.layouts.proof import Leaf, is_proved
from ckpt.ext.layouts.rules import Expanded, Target, Wanted
from ckpt.model.errors import CkptError, LossError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show_name

_MOST_TIMES = 64
"""The most elements that a recipe makes of each element that it takes."""
_SMALL = 1 << 20
"""The elements that may be made of nothing."""
_SHOWN = 3
"""The problems that one line names."""


class Problem(NamedTuple):
    """A tensor of which something does not add up: its name, whether it is one of B,
    and the text.
    """

    name: str
    is_target: bool
    text: str


def problems_of(expanded: Expanded, sources: Mapping[str, Leaf]) -> list[Problem]:
    """All that does not add up between a recipe and the tensors of A. Reads only what
    must be equal. Raises UnreadableError.
    """
    problems = _source_problems(expanded.wanted, sources)
    # A recipe of a stranger may make terabytes of a few bytes.
    given = sum([leaf.ref.numel for leaf in sources.values()])
    made = sum([prod(target.shape) for target in expanded.targets])
    if made > _MOST_TIMES * given + _SMALL:
        size = f"and the others would have {made:,} elements, made of {given:,}"
        problems = [*problems, Problem(expanded.targets[0].name, True, size)]
    if problems:
        return problems
    # From here on all tensors of A are there, in the shapes of the recipe.
    taken: dict[str, list[Piece]] = {}
    for target in expanded.targets:
        text = _target_problem(target, sources)
        if text is not None:
            problems.append(Problem(target.name, True, text))
            continue
        for piece in target.pieces:
            if piece.source is not None:
                taken.setdefault(piece.source, []).append(piece)
    if problems:
        return problems
    # Bytes are read last, when all else adds up.
    for row in expanded.wanted.values():
        text = _unused_problem(row, taken.get(row.name, ()))
        text = (
            text
            or _unequal_problem(row, sources, expanded.wanted)
            or _repeat_problem(row, sources)
        )
        if text is not None:
            problems.append(Problem(row.name, False, text))
    return problems


def refuse_problems(problems: Sequence[Problem], path: str) -> None:
    """Raise LossError for problems, by the names of their tensors."""
    if problems:
        listed = and_more(
            [f"{show_name(row.name)} {row.text}" for row in problems],
            _SHOWN,
            "; ",
        )
        raise LossError(f"the recipe does not fit: {listed}", path=path)


def _source_problems(
    wanted: Mapping[str, Wanted], sources: Mapping[str, Leaf]
) -> list[Problem]:
    """The tensors of A that lack, are too many, or have another shape."""
    problems: list[Problem] = []
    for row in wanted.values():
        leaf = sources.get(row.name)
        if leaf is None:
            problems.append(Problem(row.name, False, "is not there"))
        elif leaf.shape != row.shape:
            text = (
                f"has the shape {list(leaf.shape)}, the recipe says {list(row.shape)}"
            )
            problems.append(Problem(row.name, False, text))
    extra = [name for name in sources if name not in wanted]
    return [
        *problems,
        *[Problem(name, False, "is in no rule of the recipe") for name in extra],
    ]


def _target_problem(target: Target, sources: Mapping[str, Leaf]) -> str | None:
    """Return the text on the pieces of a tensor of B that do not add up, or None."""
    numel = prod(target.shape)
    for piece in target.pieces:
        # Loops may go backwards in the source, so both ends are looked at.
        leaf = None if piece.source is None else sources[piece.source]
        lows = piece.at + sum(
            [(loop.size - 1) * min(0, loop.at) for loop in piece.loops]
        )
        highs = piece.at + sum(
            [(loop.size - 1) * max(0, loop.at) for loop in piece.loops]
        )
        if leaf is not None and numel and not 0 <= lows <= highs < leaf.ref.numel:
            return f"takes elements that {show_name(leaf.name)} has not"
        if piece.to + sum([(loop.size - 1) * loop.to for loop in piece.loops]) >= max(
            numel, 1
        ):
            return "has pieces beyond its end"
    if not numel:
        return None
    try:
        cover = cover_of(target.pieces, numel)
    except CkptError as error:
        return f"has {error.problem}"
    if cover.missing or cover.doubled:
        what = f"{cover.missing:,} elements that nothing makes" if cover.missing else ""
        twice = (
            f"{cover.doubled:,} elements that are made twice" if cover.doubled else ""
        )
        return f"has {' and '.join(filter(None, (what, twice)))}"
    return None


def _unused_problem(row: Wanted, pieces: Sequence[Piece]) -> str | None:
    """Return the text on the used elements of a tensor of A that do not add up, or
    None.
    """
    numel = prod(row.shape)
    # One piece that is all of the tensor leaves nothing: it need not be counted.
    if any(piece.numel == numel and not _has_repeats(piece) for piece in pieces):
        missing = 0
    else:
        missing = (
            cover_of([piece.turned(row.name) for piece in pieces], numel).missing
            if numel
            else 0
        )
    if missing == row.dropped:
        return None
    return (
        f"has {missing:,} elements that nothing uses, and {row.dropped:,} are dropped "
        "by name"
    )


def _has_repeats(piece: Piece) -> bool:
    """Tell whether a piece takes an element of its source several times."""
    return any(loop.at == 0 and loop.size > 1 for loop in piece.loops)


def _unequal_problem(
    row: Wanted,
    sources: Mapping[str, Leaf],
    wanted: Mapping[str, Wanted],
) -> str | None:
    """Return the text for a tensor of A that must equal another one and does not, else
    None.
    """
    if row.equal_to is None:
        return None
    kept = wanted.get(row.equal_to)
    # Of two copies one must stay.
    if kept is None or kept.dropped == prod(kept.shape):
        return f"is dropped as a copy of {show_name(row.equal_to)}, which nothing keeps"
    leaf, other = sources[row.name], sources.get(row.equal_to)
    if other is None or (other.shape, other.dtype) != (leaf.shape, leaf.dtype):
        return f"must equal {show_name(row.equal_to)}, which is another one"
    if is_proved(whole_piece(other.name, leaf.ref.numel), leaf, sources):
        return None
    return f"must equal {show_name(row.equal_to)}, and has other values"


def _repeat_problem(row: Wanted, sources: Mapping[str, Leaf]) -> str | None:
    """Return the text for dropped slices that are not what they repeat, else None."""
    repeats = [repeat.piece(row.name, row.shape) for repeat in row.repeats]
    if repeats and sum([piece.numel for piece in repeats]) != row.dropped:
        return "is dropped where it does not repeat itself"
    if all(is_proved(piece, sources[row.name], sources) for piece in repeats):
        return None
    return "must repeat some of its slices, and has other values"
