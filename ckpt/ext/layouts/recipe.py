"""`ckpt.recipe`: find how one checkpoint is made of another one, or prove a recipe on a
pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ckpt.bytes.executor import current_executor
from ckpt.bytes.location import with_home
from ckpt.bytes.target import (
    Target,
    input_refusal,
    make_parents,
    refuse_inputs,
    target,
    writing_file,
)
from ckpt.commands.rewriting.edited import with_ties
from ckpt.ext.layouts.checking import check_recipe
from ckpt.ext.layouts.document import parsed_mapping, read_recipe, recipe_text
from ckpt.ext.layouts.find import find_layout
from ckpt.ext.layouts.ranks import ranks_of
from ckpt.ext.layouts.report import RecipeReport
from ckpt.ext.layouts.rules import recipe_of
from ckpt.ext.layouts.several import names_several, open_several
from ckpt.ext.layouts.sides import Side, entries_of, side_of
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.text import show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.handle import Handle
from ckpt.surface.api.keywords import Path, Texts, keyword_texts, limits_only, text_only
from ckpt.surface.api.opening import Input, at_hand, path_of
from ckpt.surface.api.progress import Progress, metered_reading


def recipe(
    before: Input,
    after: Input,
    *,
    out: Path | None = None,
    check: Path | None = None,
    assume: Texts = (),
    section: str | None = None,
    force: bool = False,
    parents: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> RecipeReport:
    """Find how each tensor of `after` is made of `before`, prove it byte by byte, and
    return the report of `ckpt recipe`.

    A side may be a pattern such as `ranks/tp*.pt`: files of ranks that are one
    checkpoint. `out` gets the recipe, which `ckpt.convert` takes. With `check`, the
    path of a recipe, nothing is searched: that recipe is proved on this pair. `assume`
    are texts such as `NAME_IN_B=NAME_IN_A`, where two ways fit. Raises CkptError.
    """
    text_only(section=section)
    limits_only(limits)
    assumed = parsed_mapping(keyword_texts(assume))
    if check is not None and (out is not None or assumed):
        raise UsageError("--check proves a recipe: it goes without -o and --assume")
    # Before anything is read: a path that cannot be written is said at once.
    place = None
    if out is not None:
        if not force:
            refuse_inputs(os.fsdecode(out), (path_of(before), path_of(after)))
        place = target(os.fsdecode(out), force=force, parents=parents)
    given = (
        None if check is None else read_recipe(os.fsdecode(check), limits or Limits())
    )
    with ExitStack() as stack:
        opened = [
            stack.enter_context(opened_side(side, limits, plugins=plugins))
            for side in (before, after)
        ]
        if place is not None:
            for side in opened:
                _refuse_part(side, place)
        sides = [
            side_of(with_ties(side.survey, side.limits), section) for side in opened
        ]
        with metered_reading(progress, *opened) as meter:
            if given is not None:
                findings = check_recipe(
                    given,
                    sides[0],
                    sides[1],
                    current_executor(),
                    meter,
                )
                made = given
            else:
                _refuse_unknown(assumed, sides[0], sides[1])
                findings = find_layout(
                    sides[0].leaves,
                    sides[1].leaves,
                    assumed,
                    current_executor(),
                    meter,
                )
                ranks = [
                    ranks_of(side.survey, entries_of(side.survey, section))
                    for side in opened
                ]
                found = recipe_of(findings, sides[0].leaves, sides[1].leaves)
                made = found._replace(before=ranks[0], after=ranks[1])
        for side in opened:
            # A file that changed while it was searched proves nothing.
            side.check_unchanged()
    report = RecipeReport(
        sides[0].path,
        sides[1].path,
        findings,
        made,
        (*sides[0].passed, *sides[1].passed),
        (sides[0].beside, sides[1].beside),
        check is not None,
        is_coded=sides[0].is_coded != sides[1].is_coded,
    )
    if place is None:
        return report
    if parents:
        make_parents(place)
    data = recipe_text(made).encode()
    with writing_file(place, len(data)) as sink:
        sink.write(data)
    return report._replace(path=place.path)


def _refuse_part(side: Checkpoint, place: Target) -> None:
    """Raise UsageError where the recipe would replace a file of a side, as a shard."""
    from ckpt.formats import save  # here: only who writes a recipe pays for it

    if place.is_replacing and save.is_source(side.survey.checkpoint, place.real):
        raise input_refusal(place.path)


def open_pattern(
    given: Input,
    limits: Limits | None = None,
    *,
    plugins: bool = False,
) -> Checkpoint | None:
    """Open the files that a pattern names, or return None for a path that is none.
    Raises CkptError.
    """
    if not isinstance(given, (str, os.PathLike)) or not names_several(given):
        return None
    path = with_home(os.fsdecode(given))
    whole = open_several(path, limits or Limits(), plugins=plugins)
    return Checkpoint(Handle(whole), limits, plugins=plugins)


@contextmanager
def opened_side(
    given: Input,
    limits: Limits | None,
    *,
    plugins: bool,
) -> Iterator[Checkpoint]:
    """Open a checkpoint for a block, or the files that a pattern names. Raises
    CkptError.
    """
    # A pattern is opened here, so it is closed here; an open checkpoint stays open.
    opened = open_pattern(given, limits, plugins=plugins)
    if opened is None:
        with at_hand(given, limits, plugins=plugins) as known:
            yield known
        return
    with opened:
        yield opened


def _refuse_unknown(assumed: object, before: Side, after: Side) -> None:
    """Raise UsageError for an assumption about tensors that are not there."""
    assert isinstance(assumed, dict)
    ours, theirs = (
        {leaf.name for leaf in after.leaves},
        {leaf.name for leaf in before.leaves},
    )
    for name, source in assumed.items():
        if name not in ours:
            raise UsageError(f"--assume {show(name, 60)}: no tensor of B")
        if source not in theirs:
            raise UsageError(f"--assume {show(source, 60)}: no tensor of A")
