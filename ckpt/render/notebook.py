"""A report as HTML for a notebook: the lines of the text report in their colours.

Notebooks drop scripts and style sheets, so styles are inline. A text of a file is text and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from ckpt.api.advice import planning
from ckpt.errors import CkptError
from ckpt.evidence.survey import Survey
from ckpt.jobs.check.lint import LintReport
from ckpt.jobs.diff.diff import DiffReport
from ckpt.jobs.inspect.inspect import Inspection, inspect
from ckpt.render.diff import diff_lines
from ckpt.render.inspect import inspect_lines
from ckpt.render.lint import summary
from ckpt.render.text import Line, findings_lines, hung, safe
from ckpt.text import show_literal

WIDTH = 100
"""Cells of a line, as of a terminal."""
_MOST = 200_000
"""Characters of the lines as HTML, which a notebook keeps in its file."""
# Each colour has a contrast of 3.8 with white and at least 3 with the blacks of dark notebooks.
_RED, _GREEN, _YELLOW, _CYAN = "color:#e54949", "color:#089637", "color:#b47305", "color:#098da8"
_BOLD = "font-weight:bold"
_STYLES = {
    "head": _BOLD,
    "name": f"{_BOLD};{_CYAN}",
    "dim": "opacity:0.7",
    "error": f"{_BOLD};{_RED}",
    "warning": _YELLOW,
    "info": _CYAN,
    "command": "text-decoration:underline;text-underline-offset:0.3em",  # else it hides underscores
    "group": _BOLD,
    "good": _GREEN,
    "added": _GREEN,
    "removed": _RED,
    "changed": _YELLOW,
    "renamed": _CYAN,
}


def html_checkpoint(survey: Survey) -> str | None:
    """Return the lines of `ckpt inspect` on an open checkpoint, or None when it can no longer be read."""
    try:
        return html_inspect(inspect(survey, plan=planning(survey)))
    except CkptError:
        return None


def html_inspect(report: Inspection) -> str:
    """Return the lines of `ckpt inspect`."""
    return html_of(inspect_lines(report, width=WIDTH))


def html_diff(report: DiffReport) -> str:
    """Return the lines of `ckpt diff`."""
    return html_of(diff_lines(report, width=WIDTH))


def html_lint(report: LintReport) -> str:
    """Return the findings of each file with their commands, the files that cannot be read, and the sum."""
    lines: list[Line] = []
    for file in report.files:
        if file.findings:
            lines += [[(safe(file.path), "name")], *findings_lines(file.findings, WIDTH), []]
        if file.error is not None:
            lines += [*hung([(safe(file.path), "name"), (": ", "")], safe(str(file.error)), WIDTH), []]
    return html_of([*lines, [(summary(report.files), "head")]])


def html_of(lines: Sequence[Line]) -> str:
    """Return lines as one block in which no notebook looks for formulas. Lines that have no room are counted."""
    rows: list[str] = []
    room = _MOST
    for number, line in enumerate(lines):
        row = "".join(
            _span("".join(text for text, _ in spans), style)
            for style, spans in groupby(line, lambda span: span[1])
        )
        room -= len(row) + 1
        if room < 0:
            rows.append(_span(f"… {len(lines) - number:,} more lines in a terminal", "dim"))
            break
        rows.append(row)
    # Both classes are of MathJax, for its versions 2 and 3.
    pre = '<pre style="white-space:pre;overflow-x:auto">'
    return f'<div class="tex2jax_ignore mathjax_ignore">{pre}{chr(10).join(rows)}</pre></div>'


def _span(text: str, style: str) -> str:
    shown = escape(show_literal(text))
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
