"""A histogram as one row of characters: the higher, the more."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.elements.histogram import Histogram

CELLS = 16
LEVELS = "▁▂▃▄▅▆▇█"
_LEAST = 1e-9
"""A smaller part of a bin comes from rounding."""


def spark(histogram: Histogram, width: int = CELLS) -> str:
    """The counts from the least number to the largest, in at most `width` cells. Only a cell without numbers is blank."""
    counts = histogram.counts
    if len(counts) <= width:
        return drawn(counts)
    size = len(counts)
    low, high = histogram.edges
    step = (high - low) / size
    unit = 1 if isinstance(histogram.high, int) else 0
    # The first bin and the last one may begin before the least number, and end behind the largest.
    lead, last = (histogram.low - low) / step, size - (high - unit - histogram.high) / step
    cell = (last - lead) / width
    sums = [0.0] * width
    for index, count in enumerate(counts):
        begin, end = (max(index, lead) - lead) / cell, (min(index + 1, last) - lead) / cell
        if end - begin < _LEAST:  # all its numbers lie where it begins
            sums[min(int(begin), width - 1)] += count
            continue
        for at in range(min(int(begin), width - 1), width):
            part = min(end, at + 1) - max(begin, at)
            if part > _LEAST:
                sums[at] += count * part / (end - begin)
            if at + 1 >= end:
                break
    return drawn(sums)


def drawn(counts: Sequence[float]) -> str:
    """One character for each count, as high as its share of the largest."""
    top = max(counts, default=0)
    return "".join(LEVELS[min(int(8 * each / top - _LEAST), 7)] if each else " " for each in counts)
