"""Numbers for people: bytes in binary units, counts in decimal ones, three digits each; the first of many."""

from __future__ import annotations

from collections.abc import Sequence

_LISTED = 5


def size_text(nbytes: int) -> str:
    """Bytes as `12.6 GiB`; below 1 KiB exactly, as `8 B`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit < 6:
        value /= 1024
        unit += 1
    return f"{_three(value)} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[unit]}"


def count_text(count: int) -> str:
    """A count as `25.6 M`; below 1,000 exactly."""
    if count < 1000:
        return str(count)
    value, unit = float(count), 0
    while value >= 999.5 and unit < 5:
        value /= 1000
        unit += 1
    return f"{_three(value)} {('', 'K', 'M', 'B', 'T', 'Q')[unit]}"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def plural(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(texts: Sequence[str]) -> str:
    """The first of many in one line, and how many more there are: `a; b; c; d; e and 3 more`."""
    more = f" and {len(texts) - _LISTED:,} more" if len(texts) > _LISTED else ""
    return "; ".join(texts[:_LISTED]) + more
