"""`ckpt inspect --bars`: where the bytes are. The largest parts of the tree of names,
each with a bar beside its parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ckpt.commands.inspect.inspect import Inspection
from ckpt.commands.inspect.tables import ROWS
from ckpt.elements.histogram import Histogram
from ckpt.model.rows import NamedTuple
from ckpt.model.text import percent_text, show, size_text
from ckpt.surface.text.folding import Fold, fold, leaves_of
from ckpt.surface.text.lines import Column, Line, cells, column_lines

CELLS = 16
LEVELS = "▁▂▃▄▅▆▇█"
_LEAST = 1e-9
"""A smaller part of a bin comes from rounding."""


def spark_text(histogram: Histogram, width: int = CELLS) -> str:
    """The counts from the least number to the largest, in at most `width` cells. Only a
    cell without numbers is blank.
    """
    counts = histogram.counts
    if len(counts) <= width:
        return draw_counts(counts)
    size = len(counts)
    low, high = histogram.edges
    step = (high - low) / size
    unit = 1 if isinstance(histogram.high, int) else 0
    # The first bin and the last one may begin before the least number, and end behind
    # the largest.
    lead, last = (
        (histogram.low - low) / step,
        size - (high - unit - histogram.high) / step,
    )
    cell = (last - lead) / width
    sums = [0.0] * width
    for index, count in enumerate(counts):
        begin, end = (
            (max(index, lead) - lead) / cell,
            (min(index + 1, last) - lead) / cell,
        )
        if end - begin < _LEAST:  # all its numbers lie where it begins
            sums[min(int(begin), width - 1)] += count
            continue
        for number in range(min(int(begin), width - 1), width):
            part = min(end, number + 1) - max(begin, number)
            if part > _LEAST:
                sums[number] += count * part / (end - begin)
            if number + 1 >= end:
                break
    return draw_counts(sums)


def draw_counts(counts: Sequence[float]) -> str:
    """One character for each count, as high as its share of the largest."""
    top = max(counts, default=0)
    return "".join(
        LEVELS[min(int(8 * count / top - _LEAST), 7)] if count else " "
        for count in counts
    )


_CELLS = 30
"""Cells of a bar, where no screen says how many there are."""
_FEWEST, _MOST = 12, 60
_SHADES = "█▓▒░"
"""The part itself, what its parent has beside it, what the parent of that has, and so
on.
"""
_SLIVER = "▏"


class _Part(NamedTuple):
    """A fold that is shown: its place among its siblings on each level, and what it and
    those above it hold.
    """

    place: tuple[int, ...]
    fold: Fold
    sizes: tuple[int, ...]
    """Bytes, its own first."""


def bar_lines(
    report: Inspection,
    *,
    width: int | None = None,
    rows: int = ROWS,
    depth: int | None = None,
    everything: bool = False,
) -> list[Line]:
    """The parts with the most bytes, in at most `rows` lines with their header; `depth`
    and `everything` ask for more.

    Names fold as in the table of tensors, and siblings stand by their bytes. A part is
    only shown below its parent.
    """
    folds = _folded_tree(report, everything)
    whole = sum(child.nbytes for child in folds)
    every = everything or depth is not None
    count = _count_parts(folds, depth)
    most = count if every or count < rows else max(rows - 2, 1)
    parts = _largest_parts(folds, most, depth)
    names = [_part_name(part) for part in parts]
    sizes = [size_text(part.fold.nbytes) for part in parts]
    shares = [percent_text(part.fold.nbytes, whole) for part in parts]
    used = (
        sum(
            max(map(cells, column), default=0)
            for column in (["SIZE", *sizes], ["SHARE", *shares])
        )
        + 6
    )
    room = _CELLS
    if width is not None:
        room = max(
            min(width - used - max(map(cells, names), default=0), _MOST), _FEWEST
        )
    table: list[list[str]] = []
    for part, name, size, share in zip(parts, names, sizes, shares, strict=True):
        table.append([size, name, share, _share_bar(part.sizes, whole, room)])
    heads = (
        Column("SIZE", right=True),
        Column("NAME", gives_way=True),
        Column("SHARE", right=True),
        Column(""),
    )
    out = column_lines(heads, table, width=width)
    for line, part in zip(out[1:], parts, strict=True):
        if part.fold.children:
            line[1] = (line[1][0], "group")
    if len(parts) < count:
        out.append([(f"… {count - len(parts):,} more (--all, --depth N)", "dim")])
    return out


def _folded_tree(report: Inspection, everything: bool) -> tuple[Fold, ...]:
    """The tree of names, folded; the state of an optimizer is one part where the table
    shows it as one row.
    """
    tree = leaves_of(report, everything)
    if everything:
        pairs = zip(tree.names, tree.leaves, strict=True)
        return tuple(
            Fold(name, leaf.look, 1, leaf.numel, leaf.nbytes) for name, leaf in pairs
        )
    own = [Fold(show(row.name, None), None, *row[1:]) for row in tree.optimizers]
    return (*fold(tree.names, tree.leaves), *own)


def _count_parts(folds: Sequence[Fold], depth: int | None) -> int:
    """All parts down to a depth."""
    if depth is not None and depth <= 0:
        return len(folds)
    return len(folds) + sum(
        _count_parts(child.children, depth and depth - 1) for child in folds
    )


def _largest_parts(folds: Sequence[Fold], most: int, depth: int | None) -> list[_Part]:
    """At most `most` parts down to a depth, those with the most bytes, in the order of
    the tree.
    """
    parts: list[_Part] = []
    waiting: list[tuple[int, tuple[int, ...], _Part]] = []

    def wait(
        children: Sequence[Fold], place: tuple[int, ...], above: tuple[int, ...]
    ) -> None:
        for number, child in enumerate(
            sorted(children, key=lambda child: -child.nbytes)
        ):
            part = _Part((*place, number), child, (child.nbytes, *above))
            heappush(waiting, (-child.nbytes, part.place, part))

    wait(folds, (), ())
    while waiting and len(parts) < most:
        part = heappop(waiting)[2]
        parts.append(part)
        if depth is None or len(part.place) <= depth:
            wait(part.fold.children, part.place, part.sizes)
    return sorted(parts, key=lambda part: part.place)


def _part_name(part: _Part) -> str:
    indent = "  " * (len(part.place) - 1)
    if part.fold.times > 1 and part.fold.children:
        return f"{indent}{part.fold.label}  ×{part.fold.times}"
    return indent + part.fold.label


def _share_bar(sizes: Sequence[int], whole: int, room: int) -> str:
    """Return the bar of a part's share of all bytes.

    Behind it, lighter shades reach to the ends of the bars above it.
    """
    bar = ""
    for level, size in enumerate(sizes):
        count = round(room * size / whole) if whole else 0
        if not level and size and not count:
            bar = _SLIVER
        bar += _SHADES[min(level, len(_SHADES) - 1)] * (count - len(bar))
    return bar
