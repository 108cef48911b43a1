"""`ckpt prune` as text: one row per checkpoint, with what happens to it and why."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.ext.prune.report import PruneReport, PruneRow
from ckpt.model.text import counted_noun, shown_apart, size_text
from ckpt.surface.text.lines import (
    Column,
    Line,
    cells,
    column_lines,
    given_up_lines,
    narrow_columns,
    wrap_text,
)

_HEADS = (
    Column("NAME", gives_way=True, is_file=True, least=24),
    Column("EPOCH", right=True, given_up=2),
    Column("STEP", right=True, given_up=2),
    Column("SIZE", right=True, given_up=1),
    Column("", least=7),
)
_LEAST = 30
"""Cells of the reasons that other columns are given up for."""


_ENDS, _FEW = 3, 6
"""Rows that are shown at both ends of a run of alike ones, and the fewest between that
one line stands for.
"""


def prune_lines(report: PruneReport, width: int | None) -> list[Line]:
    """The rows as a table of at most `width` cells; the reasons are broken at
    blanks.
    """
    rows = report.rows
    names = shown_apart([os.path.basename(row.path) for row in rows])
    table = [[name, *_cells(row)] for name, row in zip(names, rows, strict=True)]
    # A column that is empty in all rows is not drawn.
    kept = [
        i
        for i, head in enumerate(_HEADS)
        if head.name in ("NAME", "") or any(row[i] for row in table)
    ]
    heads = [_HEADS[i] for i in kept]
    whys = [
        "; ".join(row.why if row.problem is None else (row.problem,)) for row in rows
    ]
    # The reasons get some room before names are cut for them.
    least = min(max(map(cells, whys), default=0), _LEAST)
    room = None if width is None else max(width - 2 - least, 0)
    shown, texts = narrow_columns(
        heads, [[row[i] for i in kept] for row in table], room
    )
    first, *lines = column_lines(shown, texts, width=room)
    out: list[Line] = [[*first, ("  WHY", "head")]]
    folded = _folded_runs(rows, whys)
    for index, (line, why, row) in enumerate(zip(lines, whys, rows, strict=True)):
        if index in folded:
            if folded[index]:
                text = f"… {folded[index]:,} more stay for the same reason (--json)"
                out.append([(text, "dim")])
            continue
        text, _ = line[-1]
        line[-1] = (text, "" if row.stays else "removed")
        # Further lines of the reasons begin below the first.
        indent = sum(cells(part) for part, _ in line) + 2
        begin, *more = wrap_text(
            why, None if width is None else max(width - indent, least), 0
        )
        out.append([*line, (f"  {begin}", "")])
        out += [[(" " * indent + part, "")] for part in more]
    return out + given_up_lines(heads, shown, width, "--json")


def _folded_runs(rows: Sequence[PruneRow], whys: Sequence[str]) -> dict[int, int]:
    """Return the indices of the rows that are not shown, each with the number of rows
    that the line in its place stands for, or 0.

    Only neighbours that stay for one reason are folded: what may go is always named.
    """
    folded: dict[int, int] = {}
    begin = 0
    for index in range(1, len(rows) + 1):
        is_alike = (
            index < len(rows)
            and rows[index].stays
            and rows[begin].stays
            and whys[index] == whys[begin]
        )
        if is_alike:
            continue
        hidden = range(begin + _ENDS, index - _ENDS)
        if len(hidden) >= _FEW:
            folded |= dict.fromkeys(hidden, 0)
            folded[hidden[0]] = len(hidden)
        begin = index
    return folded


def _cells(row: PruneRow) -> list[str]:
    counts = {kind: f"{count:,.15g}" for kind, count in row.counts}
    word = "may go"
    if row.stays or row.problem is not None:
        word = "stays"
    if row.is_deleted:
        word = "deleted"
    # A row that was passed over was not measured.
    size = size_text(row.nbytes) if row.state is not None or not row.stays else ""
    return [counts.get("epoch", ""), counts.get("step", ""), size, word]


def summary(report: PruneReport) -> str:
    """Return the closing line: how many may go, and how many went."""
    going = report.may_go
    gone = [row for row in going if row.is_deleted]
    many = counted_noun(len(report.rows), "checkpoint")
    if gone:
        return f"{len(gone):,} of {many} deleted, {_bytes(gone)}"
    if not going:
        return f"none of {many} may go"
    return f"{len(going):,} of {many} may go, {_bytes(going)}"


def _bytes(rows: Sequence[PruneRow]) -> str:
    return size_text(sum(row.nbytes for row in rows))


def html_prune(report: PruneReport) -> str:
    """Return the table of `ckpt prune` and its closing line."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    lines = prune_lines(report, WIDTH) if report.rows else []
    return html_of([*lines, [(summary(report), "head")]])
