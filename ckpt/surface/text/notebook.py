"""A report as HTML for a notebook: the lines of the text report in their colours.

Notebooks drop scripts and style sheets, so styles are inline. A text of a file is text
and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from ckpt.model.text import show_literal
from ckpt.surface.text.lines import Line

WIDTH = 100
"""Cells of a line, as of a terminal."""
_MOST = 200_000
"""Characters of the lines as HTML, which a notebook keeps in its file."""
# Each colour has a contrast of 3.8 with white and at least 3 with the blacks of dark
# notebooks.
_RED = "color:#e54949"
_GREEN = "color:#089637"
_YELLOW = "color:#b47305"
_CYAN = "color:#098da8"
_BOLD = "font-weight:bold"
_STYLES = {
    "head": _BOLD,
    "name": f"{_BOLD};{_CYAN}",
    "dim": "opacity:0.7",
    "error": f"{_BOLD};{_RED}",
    "warning": _YELLOW,
    "info": _CYAN,
    # else it hides underscores
    "command": "text-decoration:underline;text-underline-offset:0.3em",
    "group": _BOLD,
    "good": _GREEN,
    "added": _GREEN,
    "removed": _RED,
    "changed": _YELLOW,
    "renamed": _CYAN,
}


def html_of(lines: Sequence[Line]) -> str:
    """Return lines as one block in which no notebook looks for formulas. Lines that
    have no room are counted.
    """
    rows: list[str] = []
    room = _MOST
    for number, line in enumerate(lines):
        row = ""
        # Neighbours of one style become one element.
        for style, spans in groupby(line, lambda span: span[1]):
            row += _html_span("".join(text for text, _ in spans), style)
        room -= len(row) + 1
        if room < 0:
            rows.append(
                _html_span(f"… {len(lines) - number:,} more lines in a terminal", "dim")
            )
            break
        rows.append(row)
    # Both classes are of MathJax, for its versions 2 and 3.
    pre = (
        "<pre "
        'style="white-space:pre;overflow-x:auto;font-family:monospace;line-height:1.25">'
    )
    return (
        '<div class="tex2jax_ignore '
        f'mathjax_ignore">{pre}{chr(10).join(rows)}</pre></div>'
    )


def _html_span(text: str, style: str) -> str:
    shown = escape(show_literal(text))
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
