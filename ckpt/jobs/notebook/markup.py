"""Pieces of HTML for notebooks. They drop scripts and styles, so there are none; what a file says is text and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ckpt.findings import Finding
from ckpt.jobs.notebook.treemap import Branch
from ckpt.render.palette import NONE
from ckpt.text import plural, show, size_text

_FINDINGS = 10
_BRANCHES = 120
"""Parts of the tree that are shown, and those below one part."""
_BELOW = 24


def legend(weights: Mapping[str, int], colours: Mapping[str, str]) -> str:
    """A line that says what the colours mean, and the bytes of each."""
    words = sorted(weights, key=lambda word: -weights[word])
    items = [
        f'<svg width="11" height="11"><rect width="11" height="11" fill="{colours[word]}"/></svg>'
        f" {text(word)} {size_text(weights[word])}"
        for word in words[:12]
    ]
    if len(words) > 12:
        items.append(f"… {len(words) - 12:,} more")
    if len(words) > 1:
        items.append(
            f'<svg width="11" height="11"><rect width="11" height="11" fill="{NONE}"/></svg> several'
        )
    return " &nbsp; ".join(items)


def code(text_: str, limit: int = 60) -> str:
    """As `text`. Notebooks look for formulas in text, but not inside of <code>: a name may hold `$`."""
    return f"<code>{text(text_, limit)}</code>"


def text(name: str, limit: int = 60) -> str:
    """A text of a file as HTML that is text and no more, of a few hundred bytes at most."""
    shown = show(name, limit)
    return escape(shown if len(shown) <= 2 * limit else f"{shown[: 2 * limit]}…")


def page(parts: Iterable[str]) -> str:
    """Parts below each other, in which no notebook looks for formulas."""
    return f'<div class="tex2jax_ignore mathjax_ignore">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], limit: int = 60) -> str:
    """A table of texts."""
    lines = [_row(head, "th", limit), *(_row(row, "td", limit) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str, limit: int) -> str:
    return f"<tr>{''.join(f'<{tag}>{code(cell, limit)}</{tag}>' for cell in cells)}</tr>"


def folded(title: str, inside: str) -> str:
    """What is shown by a click."""
    return f"<details><summary>{text(title)}</summary>{inside}</details>"


def findings(found: Sequence[Finding]) -> str:
    """The first findings as a table."""
    if not found:
        return ""
    rows = [(row.level, row.code, row.message) for row in found[:_FINDINGS]]
    more = f"… {len(found) - _FINDINGS:,} more" if len(found) > _FINDINGS else ""
    return table(("level", "finding", "message"), rows, 300) + more


def outline(root: Branch) -> str:
    """The tree of names with sizes, in file order, opened by clicks: the parts that are near to the root."""
    shown: dict[int, list[Branch]] = {}
    todo = deque([root])
    left = _BRANCHES
    while todo and left > 0:
        at = todo.popleft()
        below = [each.joined() for each in at.below.values()][: min(_BELOW, left)]
        left -= len(below)
        shown[id(at)] = below
        todo += below
    return _listed(root, shown)


def _listed(branch: Branch, shown: Mapping[int, Sequence[Branch]]) -> str:
    below = shown.get(id(branch), ())
    items = [_item(each, shown) for each in below]
    if len(branch.below) > len(below):
        items.append(f"<li>… {len(branch.below) - len(below):,} more</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _item(branch: Branch, shown: Mapping[int, Sequence[Branch]]) -> str:
    about = f"{code(branch.label)} "
    if branch.tile is not None:
        about += text(branch.tile.about(), 80)
    if not branch.below:
        return f"<li>{about}</li>"
    counted = f"{plural(branch.tensors, 'tensor')}, {size_text(branch.nbytes)}"
    about += f" {counted}" if branch.tile is not None else counted
    return f"<li><details><summary>{about}</summary>{_listed(branch, shown)}</details></li>"
