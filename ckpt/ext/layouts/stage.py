"""The share of layouts in `ckpt convert`: a model, and with it an optimizer, by the
recipe in a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.apply import convert_layout, plan_of
from ckpt.ext.layouts.document import read_recipe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import about
from ckpt.model.limits import Limits


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
) -> Callable[[Survey], RewriteReport]:
    """The change of a checkpoint by the recipe in a file; the result is plain tensors
    in a format with these traits.

    With `optimizer` its state goes the same way, and the result is a dict of both.
    Raises UnreadableError for a recipe that is none.
    """
    text = os.fsdecode(path)
    recipe = read_recipe(text, limits)

    def change(survey: Survey) -> RewriteReport:
        with about(survey.path):
            report = convert_layout(
                survey, recipe, text, format, traits, reverse=reverse, section=section
            )
            if not optimizer:
                return report
            from ckpt.ext.layouts.moments import with_optimizer  # here: few ask for it

            plan = plan_of(recipe, reverse=reverse)
            in_order = optimizer_keys == "order"
            return with_optimizer(
                report, survey, plan, section, limits, in_order=in_order
            )

    return change
