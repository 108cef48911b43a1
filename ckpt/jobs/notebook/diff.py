"""A comparison as HTML for a notebook: the verdict, what was found, and where in the tree it changed."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING

from ckpt.jobs.diff.rows import STATUSES, Row
from ckpt.jobs.notebook.markup import code, findings, folded, legend, outline, page, table
from ckpt.jobs.notebook.treemap import Tile, tree, treemap
from ckpt.render.palette import ALARM, KINDS, NONE, PALE, RAMP
from ckpt.text import plural, size_text

if TYPE_CHECKING:
    from ckpt.jobs.diff.diff import DiffReport

ROWS = 40
"""Tensors that are shown."""
_LEVELS = ("below 0.0001", "0.0001 to 0.001", "0.001 to 0.01", "0.01 to 0.1", "0.1 and more")
"""The change of a tensor: the norm of the difference, over the norm before."""
_COLOURS = {
    "did not change": ALARM,
    **dict(zip(_LEVELS, RAMP, strict=True)),
    "same": PALE,
    "not compared": NONE,
    "added": KINDS[2],
    "removed": KINDS[6],
    "reshaped": KINDS[3],
    "changed, without a norm": KINDS[7],
}


def html_diff(report: DiffReport) -> str:
    """The verdict, the findings, counts by role, and a treemap: areas are bytes, colours how far the values moved.

    A parameter that did not change while others did has the colour of an alarm.
    """
    frozen = set(report.frozen)
    unread = report.options.structure
    tiles = [_tile(row, frozen, unread) for row in report.rows]
    weights: dict[str, int] = {}
    for tile in tiles:
        weights[tile.word] = weights.get(tile.word, 0) + tile.nbytes
    root = tree(tiles)
    picture = treemap(root, _COLOURS)
    counts = {status: report.count(status) for status in STATUSES}
    verdict = "same" if report.same else "differ" if report.differs else "not all was compared"
    said = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    moved = [row for row in report.rows if row.status not in ("same", "unchecked")]
    rows = [(row.name, row.status, row.role.role, _number(row)) for row in moved[:ROWS]]
    more = f"… {len(moved) - ROWS:,} more" if len(moved) > ROWS else ""
    names = f"<b>{code(report.before.path, 200)} → {code(report.after.path, 200)}</b>"
    return page(
        [
            f"{names} {code(f'{verdict}: {said}' if said else verdict, 200)}",
            findings(report.findings),
            picture,
            f"relative change (L2): {legend(weights, _COLOURS)}" if picture else "",
            outline(root),
            folded(
                f"{plural(len(moved), 'tensor')} that differ",
                table(("name", "status", "role", "relative L2"), rows) + more,
            )
            if moved
            else "",
        ]
    )


def _tile(row: Row, frozen: set[str], unread: bool) -> Tile:
    entry = row.after or row.before
    assert entry is not None
    word = "did not change" if row.name in frozen else _word(row, unread)
    nbytes = entry.tensor.nbytes

    def about() -> str:
        number = _number(row)
        return (
            f"{word}, relative L2 {number}, {size_text(nbytes)}" if number else f"{word}, {size_text(nbytes)}"
        )

    return Tile(row.name, nbytes, word, about)


def _word(row: Row, unread: bool) -> str:
    if row.status == "unchecked" or (unread and row.status == "same"):
        return "not compared"
    if row.status in ("same", "renamed"):
        return "same"
    if row.status in ("added", "removed", "reshaped"):
        return row.status
    share = row.change.rel_l2 if row.change is not None else None
    if share is None:
        return "changed, without a norm"
    return _LEVELS[min(max(int(log10(share) // 1) + 5, 0), 4)] if share else _LEVELS[0]


def _number(row: Row) -> str:
    share = row.change.rel_l2 if row.change is not None else None
    return "" if share is None else f"{share:.3g}"
