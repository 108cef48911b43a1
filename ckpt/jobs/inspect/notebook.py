"""A report of `ckpt.inspect` as HTML for a notebook: short, without styles, and safe whatever the names are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ckpt.jobs.inspect.inspect import InspectReport
from ckpt.text import plural, show, size_text

ROWS = 40
"""Tensors that are shown."""


def html_report(report: InspectReport) -> str:
    """A headline, the findings, and the first tensors as a table."""
    checkpoint = report.checkpoint
    nbytes = sum(row.tensor.nbytes for row in report.rows)
    head = f"{checkpoint.traits.label}, {plural(len(report.rows), 'tensor')}, {size_text(nbytes)}"
    parts = [f"<b>{_text(checkpoint.path)}</b> {_text(head)}"]
    if report.findings:
        rows = [(finding.level, finding.code, finding.message) for finding in report.findings]
        parts.append(_table(("level", "finding", "message"), rows))
    tensors = [
        (
            row.entry.name,
            row.tensor.dtype.name,
            str(list(row.tensor.shape)),
            row.tensor.device or "",
            size_text(row.tensor.nbytes),
        )
        for row in report.rows[:ROWS]
    ]
    parts.append(_table(("name", "dtype", "shape", "device", "size"), tensors))
    if len(report.rows) > ROWS:
        parts.append(f"… {len(report.rows) - ROWS:,} more")
    return f"<div>{'<br>'.join(parts)}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head, "th"), *(_row(row, "td") for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    # Notebooks look for formulas in text, but not inside of <code>: a name may hold `$`.
    return f"<code>{escape(show(text))}</code>"
