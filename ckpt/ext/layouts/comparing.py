"""The share of layouts in `ckpt diff` and `ckpt warmstart`: one side in the layout of
the other, and notes on wrong conversions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.apply import convert_layout
from ckpt.ext.layouts.document import read_recipe
from ckpt.ext.layouts.find import find_layout
from ckpt.ext.layouts.findings import VALUES
from ckpt.ext.layouts.pieces import Piece
from ckpt.ext.layouts.proof import Leaf, leaf_of
from ckpt.ext.layouts.rules import Rule, expand_recipe, recipe_of
from ckpt.ext.layouts.sides import numeric, side_of, unread_kind
from ckpt.ext.layouts.templates import forms_of
from ckpt.ext.layouts.words import part_words
from ckpt.model.errors import CkptError, about
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import pasted_path, show, show_name

_LEAST = 64
"""The fewest elements of a tensor that tells whether values meet."""
_TARGETS, _SOURCES = 16, 256
"""The tensors of either side that are looked at to see whether values meet."""
_BYTES = 64 << 20
"""The bytes of either side that are read for that."""
_PARTS = 6
"""The parts of a wrong tensor that a line names, of each side."""
_EXPLAINED = 16
"""The wrong tensors of which it is said what they are."""


def relaid_survey(
    survey: Survey,
    recipe: str | os.PathLike[str],
    limits: Limits,
    section: str | None = None,
    *,
    as_read: bool = False,
) -> Survey:
    """A checkpoint in the other layout of the recipe in a file.

    With `as_read`, files of ranks are a dict each, as they are read; else their names
    begin with the key of the file. Raises CkptError.
    """
    text = os.fsdecode(recipe)
    rules = read_recipe(text, limits)
    checkpoint = survey.checkpoint
    with about(survey.path):
        report = convert_layout(
            survey,
            rules,
            text,
            checkpoint.format,
            checkpoint.traits,
            section=section,
        )
    result = report.result
    if as_read and rules.after is not None:
        result = rules.after.nested_checkpoint(result, limits)
    return Survey(result, survey.model)


def wrong_notes(
    before: Survey,
    after: Survey,
    recipe: str | os.PathLike[str],
    limits: Limits,
    names: Sequence[str],
) -> list[str]:
    """For tensors of B that are not what a recipe makes: a line that says what they are
    of A, where that is found.
    """
    targets = {
        target.name: target
        for target in expand_recipe(read_recipe(os.fsdecode(recipe), limits)).targets
    }
    sources = side_of(before).leaves
    # The tensors that the report calls different, as far as the recipe makes them.
    wrong = [
        leaf
        for leaf in side_of(after).leaves
        if leaf.name in names and leaf.name in targets
    ][:_EXPLAINED]
    if not wrong:
        return []
    # Only the wrong tensors are searched: the recipe explains the others.
    findings = find_layout(sources, wrong)
    rules = {
        rule.target.name({}): rule
        for rule in _single_rules(findings.made, sources, wrong)
    }
    expected = _single_rules(
        [
            row._replace(pieces=targets[row.name].pieces, by=VALUES)
            for row in findings.made
        ],
        sources,
        wrong,
    )
    right = {rule.target.name({}): rule for rule in expected}
    notes: list[str] = []
    for row in findings.made:
        # If names decided, nothing is known.
        if row.pieces and row.by == VALUES and row.name in rules:
            is_text, right_text = (
                _rule_text(rules[row.name]),
                _rule_text(right[row.name]),
            )
            notes.append(
                f"{show_name(row.name)} is {is_text}; right would be {right_text}"
            )
    return notes


def _single_rules(
    made: Sequence[object],
    sources: Sequence[Leaf],
    targets: Sequence[Leaf],
) -> list[Rule]:
    """A rule for each made tensor by itself."""
    from ckpt.ext.layouts.findings import Findings, Made

    rules: list[Rule] = []
    for row, leaf in zip(made, targets, strict=True):
        assert isinstance(row, Made)
        if row.pieces:
            rules += recipe_of(Findings((row,), ()), sources, [leaf]).rules
    return rules


def _rule_text(rule: Rule) -> str:
    """The parts of a rule in one line."""
    texts = []
    for part in rule.parts:
        words = part_words(part, rule)
        source = "" if part.source is None else show(part.source.text, 200)
        texts.append(" ".join(filter(None, (source, f"({words})" if words else ""))))
    # A layer of many experts has as many parts, and the line says what is wrong.
    if len(texts) > _PARTS:
        texts[_PARTS:] = [f"{len(texts) - _PARTS:,} more"]
    return " and ".join(texts)


# --- whether values meet --------------------------------------------------------------


def layout_note(
    before: Survey,
    after: Survey,
    removed: Sequence[str],
    added: Sequence[str],
) -> str | None:
    """Return the line about tensors of one side alone whose values the other side has
    in another layout, or None.

    Only the tensors of one layer are read.
    """
    ours, theirs = (
        _sample_leaves(after, added, _TARGETS),
        _sample_leaves(before, removed, _SOURCES),
    )
    if not ours or not theirs:
        return None
    try:
        findings = find_layout(theirs, ours)
    except CkptError:
        return None  # what cannot be read has its own lines
    made = [
        row
        for row in findings.made
        if row.pieces and row.by == VALUES and _says_much(row.pieces)
    ]
    # A few equal vectors are no layout.
    if 2 * len(made) < len(ours):
        return None
    paths = [pasted_path(side.path) or "FILE" for side in (before, after)]
    return f"same values in another layout: ckpt recipe {' '.join(paths)}"


def _says_much(pieces: Sequence[Piece]) -> bool:
    """Tell whether pieces have enough elements of A."""
    return sum([piece.numel for piece in pieces if piece.source is not None]) >= _LEAST


def _sample_leaves(survey: Survey, names: Sequence[str], most: int) -> list[Leaf]:
    """Some of the named tensors: of one layer, small ones first."""
    wanted = set(names)
    leaves: list[Leaf] = []
    for entry in survey.tensors:
        tensor = numeric(unwrap_dtensor(entry.tensor))
        if (
            entry.name in wanted
            and isinstance(tensor, TensorRef)
            and unread_kind(tensor) is None
        ):
            if prod(tensor.shape) >= _LEAST:
                leaves.append(leaf_of(entry.name, tensor))
    forms = forms_of([leaf.name for leaf in leaves])
    counts = [
        forms[leaf.name].numbers[:1] for leaf in leaves if forms[leaf.name].numbers
    ]
    # The first layer: one of them says it for all.
    first = min(counts, default=())
    layer = [leaf for leaf in leaves if forms[leaf.name].numbers[:1] in ((), first)]
    # Small ones say as much, and cost less.
    layer.sort(key=lambda leaf: leaf.ref.nbytes)
    chosen: list[Leaf] = []
    nbytes = 0
    for leaf in layer[:most]:
        nbytes += leaf.ref.nbytes
        if nbytes > _BYTES:
            break
        chosen.append(leaf)
    return chosen
