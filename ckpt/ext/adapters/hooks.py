"""The answers that the core asks of this extension: if an adapter explains a comparison, and what an adapter is."""

from __future__ import annotations

import os

from ckpt.api.opening import Input, at_hand
from ckpt.errors import CkptError, about
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.checks import check_merge
from ckpt.ext.adapters.description import Description, described
from ckpt.ext.adapters.reader import read_adapter
from ckpt.jobs.diff.diff import DiffReport
from ckpt.limits import Limits


def explained_by(
    report: DiffReport, adapter: Input, limits: Limits | None, *, plugins: bool = False
) -> DiffReport:
    """The report of a comparison with what an adapter explains of it. Raises CkptError."""
    with at_hand(adapter, limits, plugins=plugins) as opened:
        with about(opened.path):
            found = read_adapter(opened.survey, limits or Limits())
        return check_merge(report, found)


def description_of(
    survey: Survey, limits: Limits | None, base: Input | None, *, plugins: bool = False
) -> Description | None:
    """Return what an adapter is, and whether it fits a base where one is given; or None for what is no adapter.

    Beside a file nothing is read; a folder has its settings. Raises CkptError where a base is given and nothing is known of the
    adapter.
    """
    try:
        with about(survey.path):
            adapter = read_adapter(
                survey, limits or Limits(), is_alone=base is None and not os.path.isdir(survey.path)
            )
    except CkptError:
        if base is not None:
            raise
        return None
    if base is None:
        return described(adapter, None)
    with at_hand(base, limits, plugins=plugins) as opened:
        return described(adapter, opened.survey)
