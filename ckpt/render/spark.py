"""Counts as one row of characters: the higher, the more."""

from __future__ import annotations

from collections.abc import Sequence

CELLS = 16
LEVELS = "▁▂▃▄▅▆▇█"


def spark(counts: Sequence[int], width: int = CELLS) -> str:
    """Counts of equal bins in at most `width` cells. A bin between two cells adds to both. Only an empty cell is blank."""
    size = len(counts)
    cells = min(width, size)
    sums = [0] * cells  # in parts of 1 / cells
    for index, count in enumerate(counts):
        begin, end = index * cells, (index + 1) * cells
        while begin < end:
            cell = begin // size
            part = min(end, (cell + 1) * size) - begin
            sums[cell] += count * part
            begin += part
    top = max(sums, default=0)
    return "".join(LEVELS[-(-8 * each // top) - 1] if each else " " for each in sums)
