"""A report as HTML for a notebook: the lines of the text report in their colours.

Notebooks drop scripts and style sheets, so styles are inline. A text of a file is text and no more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from itertools import groupby

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.text import diff_lines
from ckpt.commands.inspect.api import with_description
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.commands.ls.ls import LsReport
from ckpt.commands.ls.text import ls_lines
from ckpt.commands.ls.text import summary as ls_summary
from ckpt.commands.rewriting.report import Coverage, RewriteReport
from ckpt.commands.rewriting.text import coverage_lines, rewrite_lines
from ckpt.commands.stats.stats import StatsReport
from ckpt.commands.stats.text import stats_lines
from ckpt.commands.sum.recorded import SumReport
from ckpt.commands.verify.text import verify_lines
from ckpt.commands.verify.verify import VerifyReport
from ckpt.evidence.survey import Survey
from ckpt.ext.lint.lint import LintReport
from ckpt.ext.lint.text import summary
from ckpt.model.errors import CkptError
from ckpt.model.text import show_literal
from ckpt.surface.api.advice import planning
from ckpt.surface.text.lines import Line, findings_lines, hung, safe

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
        return html_inspect(with_description(inspect(survey, plan=planning(survey)), None))
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


def html_ls(report: LsReport) -> str:
    """Return the table of `ckpt ls` and its closing line."""
    rows = report.rows
    folders = {os.path.dirname(row.path) for row in rows}
    lines = ls_lines(rows, WIDTH, folders.pop() if len(folders) == 1 else "") if rows else []
    return html_of([*lines, [(ls_summary(rows), "head")]])


def html_stats(report: StatsReport) -> str:
    """Return the table of `ckpt stats`."""
    return html_of(stats_lines(report, width=WIDTH, modules=False))


def html_verify(report: VerifyReport) -> str:
    """Return the lines of `ckpt verify`."""
    return html_of(verify_lines(report, WIDTH))


def html_sum(report: SumReport) -> str:
    """Return the lines of `ckpt sum`."""
    return html_of([[(safe(line), "")] for line in report.lines()])


def html_coverage(coverage: Coverage) -> str:
    """Return the lines of `ckpt warmstart` on what is loaded into a model."""
    return html_of(coverage_lines(coverage, width=WIDTH))


def html_rewrite(report: RewriteReport) -> str:
    """Return the lines of a command that writes."""
    return html_of(rewrite_lines(report, WIDTH))


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
    pre = '<pre style="white-space:pre;overflow-x:auto;font-family:monospace;line-height:1.25">'
    return f'<div class="tex2jax_ignore mathjax_ignore">{pre}{chr(10).join(rows)}</pre></div>'


def _span(text: str, style: str) -> str:
    shown = escape(show_literal(text))
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
