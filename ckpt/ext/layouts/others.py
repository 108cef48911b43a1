"""The rules of the first layers, followed to the names of all others. Bytes prove what
they propose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ckpt.ext.layouts.findings import Findings, Made
from ckpt.ext.layouts.pieces import Piece
from ckpt.ext.layouts.proof import Leaf
from ckpt.ext.layouts.rules import Rule, recipe_of
from ckpt.ext.layouts.templates import Template
from ckpt.model.errors import UnreadableError

_NUMBER = re.compile(r"\d+")


def proposed_pieces(
    made: Sequence[Made],
    leaves: Mapping[str, Leaf],
    targets: Sequence[Leaf],
    sources: Mapping[str, Leaf],
) -> Iterator[tuple[Leaf, tuple[Piece, ...]]]:
    """Yield the pieces that targets would have if the rules of others went on.

    `made` are tensors of B whose pieces are known, `leaves` has them by their names.
    Nothing is read.
    """
    kinds: dict[str, list[Leaf]] = {}
    for target in targets:
        kinds.setdefault(_kind_of(target.name), []).append(target)
    # Only rules that lead to an open tensor are worth following.
    known = [row for row in made if row.pieces and _kind_of(row.name) in kinds]
    own = [leaves[row.name] for row in known]
    recipe = recipe_of(Findings(tuple(known), ()), list(sources.values()), own)
    for rule in recipe.rules:
        first = next(rule.cases())
        pattern = re.compile(_pattern_of(rule.target))
        for target in kinds[_kind_of(rule.target.name(first))] if first else ():
            match = pattern.fullmatch(target.name)
            # `rule[2:4]` is its shape and its dtype.
            if match is not None and rule[2:4] == (target.shape, target.dtype):
                pieces = _pieces_for(rule, target, match, sources)
                if pieces is not None:
                    yield target, pieces


def _kind_of(name: str) -> str:
    """A name with a mark in the place of each number."""
    return _NUMBER.sub("#", name)


def _pattern_of(template: Template) -> str:
    """The expression for all names of a template, a group for each of its numbers."""
    first, *rest = map(re.escape, template.texts)
    return first + "".join([f"(\\d{{1,9}}){text}" for text in rest])


def _pieces_for(
    rule: Rule,
    target: Leaf,
    match: re.Match[str],
    sources: Mapping[str, Leaf],
) -> tuple[Piece, ...] | None:
    """The pieces of a target by a rule, or None where the rule does not fit."""
    places = {
        number.factors[0][0]: int(digits)
        for number, digits in zip(rule.target.numbers, match.groups(), strict=True)
    }
    try:
        if rule.target.name(places) != target.name:
            return None
        pieces = rule.pieces(places)
    # A rule of `n - 1` names no layer before the first one.
    except UnreadableError:
        return None
    parts = [part for part in rule.parts for _ in range(part.times)]
    for piece, part in zip(pieces, parts, strict=True):
        if piece.source is None:
            continue
        source = sources.get(piece.source)
        if source is None or (source.shape, source.dtype) != (part.shape, part.dtype):
            return None
    return tuple(pieces)
