"""What the core asks of this extension: whether an adapter explains a comparison, and what an adapter is."""

from __future__ import annotations

from ckpt.api.opening import Input, at_hand
from ckpt.errors import about
from ckpt.ext.adapters.checks import check_merge
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
