"""The share of layouts in `ckpt convert`: a model, and with it an optimizer, by the
recipe in a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ckpt.commands.rewriting.report import Leftover, RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.apply import convert_layout, plan_of
from ckpt.ext.layouts.document import read_recipe
from ckpt.ext.layouts.ranks import Ranks
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import about
from ckpt.model.limits import Limits
from ckpt.model.text import and_more

_BESIDE = "beside the tensors in the files of the example; a recipe keeps numbers alone"
"""The text on what the files of ranks had and do not get."""


def recipe_stage(
    path: str | os.PathLike[str],
    format: str,
    traits: Traits,
    limits: Limits,
    *,
    reverse: bool = False,
    section: str | None = None,
    optimizer: bool = False,
    optimizer_keys: str | None = None,
    in_ranks: bool = False,
) -> Callable[[Survey], RewriteReport]:
    """The change of a checkpoint by the recipe in a file; the result is plain tensors
    in a format with these traits.

    With `optimizer` its state goes the same way, and the result is a dict of both. With
    `in_ranks` the report names what files of ranks had besides.
    Raises UnreadableError for a recipe that is none.
    """
    text = os.fsdecode(path)
    recipe = read_recipe(text, limits)

    def change(survey: Survey) -> RewriteReport:
        with about(survey.path):
            report = convert_layout(
                survey,
                recipe,
                text,
                format,
                traits,
                reverse=reverse,
                section=section,
            )
            # Turned round, the recipe makes what was its beginning.
            ranks = recipe.before if reverse else recipe.after
            if in_ranks and ranks is not None and ranks.beside:
                row = Leftover(and_more(ranks.beside, 5), _BESIDE)
                report = report._replace(left_out=(*report.left_out, row))
            if not optimizer:
                return report
            # The optimizer goes the way of its parameters, so it comes after them.
            from ckpt.ext.layouts.moments import with_optimizer  # here: few ask for it

            plan = plan_of(recipe, reverse=reverse)
            in_order = optimizer_keys == "order"
            return with_optimizer(
                report,
                survey,
                plan,
                section,
                limits,
                in_order=in_order,
            )

    return change


def ranks_made(path: str, limits: Limits, *, reverse: bool) -> Ranks | None:
    """The files of ranks that the recipe in a file makes, or None for one that makes
    one checkpoint. Raises CkptError.
    """
    recipe = read_recipe(path, limits)
    return recipe.before if reverse else recipe.after
