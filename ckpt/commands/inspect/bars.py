"""`ckpt inspect --bars`: where the bytes are. The largest parts of the tree of names,
each with a bar beside its parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ckpt.commands.inspect.tables import ROWS
from ckpt.elements.histogram import Histogram
from ckpt.model.rows import NamedTuple
from ckpt.model.text import percent_text, show, size_text
from ckpt.surface.text.folding import Fold, fold, leaves_of
from ckpt.surface.text.lines import Column, Line, cells, column_lines

if TYPE_CHECKING:
    from ckpt.commands.inspect.inspect import Inspection

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
    # the largest. Both ends are counted in bins.
    least = (histogram.low - low) / step
    largest = size - (high - unit - histogram.high) / step
    bins_per_cell = (largest - least) / width
    sums = [0.0] * width
    for index, count in enumerate(counts):
        # The begin and the end of the bin, counted in cells.
        begin = (max(index, least) - least) / bins_per_cell
        end = (min(index + 1, largest) - least) / bins_per_cell
        first_cell = min(int(begin), width - 1)
        if end - begin < _LEAST:  # all its numbers lie where it begins
            sums[first_cell] += count
            continue
        # Each cell gets as much of the count as it covers of the bin.
        for cell in range(first_cell, width):
            covered = min(end, cell + 1) - max(begin, cell)
            if covered > _LEAST:
                sums[cell] += count * covered / (end - begin)
            if cell + 1 >= end:
                break
    return draw_counts(sums)


def draw_counts(counts: Sequence[float]) -> str:
    """One character for each count, as high as its share of the largest."""
    top = max(counts, default=0)
    drawn = ""
    for count in counts:
        if count:
            level = int(8 * count / top - _LEAST)
            drawn += LEVELS[min(level, 7)]
        else:
            drawn += " "
    return drawn


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
    count = _count_parts(folds, depth)
    most = count
    shows_all = everything or depth is not None
    if not shows_all and count >= rows:
        most = max(rows - 2, 1)  # the header and the line `… more` are rows too
    parts = _largest_parts(folds, most, depth)
    names = [_part_name(part) for part in parts]
    sizes = [size_text(part.fold.nbytes) for part in parts]
    shares = [percent_text(part.fold.nbytes, whole) for part in parts]
    bar_cells = _CELLS
    if width is not None:
        used = max(map(cells, ["SIZE", *sizes])) + max(map(cells, ["SHARE", *shares]))
        used += max(map(cells, names), default=0)
        used += 6  # two blanks between each of four columns
        bar_cells = max(min(width - used, _MOST), _FEWEST)
    table: list[list[str]] = []
    for part, name, size, share in zip(parts, names, sizes, shares, strict=True):
        table.append([size, name, share, _share_bar(part.sizes, whole, bar_cells)])
    heads = (
        Column("SIZE", right=True),
        Column("NAME", gives_way=True),
        Column("SHARE", right=True),
        Column(""),
    )
    lines = column_lines(heads, table, width=width)
    for line, part in zip(lines[1:], parts, strict=True):
        if part.fold.children:
            name_text, _ = line[1]
            line[1] = (name_text, "group")
    further = count - len(parts)
    if further > 0:
        lines.append([(f"… {further:,} more (--all, --depth N)", "dim")])
    return lines


def _folded_tree(report: Inspection, everything: bool) -> tuple[Fold, ...]:
    """The tree of names, folded; the state of an optimizer is one part where the table
    shows it as one row.
    """
    tree = leaves_of(report, everything)
    folds: list[Fold] = []
    if everything:
        for name, leaf in zip(tree.names, tree.leaves, strict=True):
            folds.append(Fold(name, leaf.look, 1, leaf.numel, leaf.nbytes))
        return tuple(folds)
    folds += fold(tree.names, tree.leaves)
    for row in tree.optimizers:
        name = show(row.name, None)
        folds.append(Fold(name, None, row.tensors, row.numel, row.nbytes))
    return tuple(folds)


def _count_parts(folds: Sequence[Fold], depth: int | None) -> int:
    """All parts down to a depth."""
    count = len(folds)
    if depth is not None:
        if depth <= 0:
            return count
        depth -= 1
    for child in folds:
        count += _count_parts(child.children, depth)
    return count


def _largest_parts(folds: Sequence[Fold], most: int, depth: int | None) -> list[_Part]:
    """At most `most` parts down to a depth, those with the most bytes, in the order of
    the tree.
    """
    parts: list[_Part] = []
    # A heap gives the largest part that waits, of equal ones the first in the tree. The
    # children of a part wait once it is shown itself.
    waiting: list[tuple[int, tuple[int, ...], _Part]] = []

    def add_waiting(
        children: Sequence[Fold], place: tuple[int, ...], above: tuple[int, ...]
    ) -> None:
        by_bytes = sorted(children, key=lambda child: -child.nbytes)
        for number, child in enumerate(by_bytes):
            part = _Part((*place, number), child, (child.nbytes, *above))
            heappush(waiting, (-child.nbytes, part.place, part))

    add_waiting(folds, (), ())
    while waiting and len(parts) < most:
        _, _, part = heappop(waiting)
        parts.append(part)
        if depth is None or len(part.place) <= depth:
            add_waiting(part.fold.children, part.place, part.sizes)
    return sorted(parts, key=lambda part: part.place)


def _part_name(part: _Part) -> str:
    indent = "  " * (len(part.place) - 1)
    name = f"{indent}{part.fold.label}"
    if part.fold.times > 1 and part.fold.children:
        name += f"  ×{part.fold.times}"
    return name


def _share_bar(sizes: Sequence[int], whole: int, bar_cells: int) -> str:
    """Return the bar of a part's share of all bytes.

    Behind it, lighter shades reach to the ends of the bars above it.
    """
    bar = ""
    for level, size in enumerate(sizes):
        count = round(bar_cells * size / whole) if whole else 0
        is_own = level == 0
        if is_own and size and not count:
            bar = _SLIVER  # not nothing, though less than half a cell
        shade = _SHADES[min(level, len(_SHADES) - 1)]
        bar += shade * (count - len(bar))
    return bar
