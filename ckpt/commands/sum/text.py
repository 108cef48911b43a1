"""`ckpt sum` as text."""

from __future__ import annotations

from ckpt.commands.sum.recorded import SumReport
from ckpt.surface.text.lines import safe_sentence


def html_sum(report: SumReport) -> str:
    """Return the lines of `ckpt sum`."""
    from ckpt.surface.text.notebook import html_of  # here: only a notebook pays for it

    return html_of([[(safe_sentence(line), "")] for line in report.lines()])
