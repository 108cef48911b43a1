"""`ckpt inspect` as HTML for a notebook."""

from __future__ import annotations

from ckpt.commands.inspect.api import with_description
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError
from ckpt.surface.api.advice import planning
from ckpt.surface.text.notebook import WIDTH, html_of


def html_checkpoint(survey: Survey) -> str | None:
    """Return the lines of `ckpt inspect` on an open checkpoint, or None when it can no
    longer be read.
    """
    try:
        return html_inspect(
            with_description(inspect(survey, plan=planning(survey)), None)
        )
    except CkptError:
        return None


def html_inspect(report: Inspection) -> str:
    """Return the lines of `ckpt inspect`."""
    return html_of(inspect_lines(report, width=WIDTH))
