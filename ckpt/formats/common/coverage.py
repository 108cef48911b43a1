"""The check that the boxes of a tensor cover each of its elements once. torch's loader
does not look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal

from ckpt.elements.boxes import Box
from ckpt.model.rows import NamedTuple

BoxShape = tuple[tuple[int, ...], tuple[int, ...]]
"""(first index in each dimension, size in each dimension)"""

_PAIRS = 2_000_000
"""The most pairs of boxes that are compared, where they form no grid."""


class Fault(NamedTuple):
    """Elements that no box holds, or that two boxes hold; `where` names them as
    indices: `[8:12, :]`.
    """

    kind: Literal["hole", "overlap"]
    where: str


def find_fault(shape: Sequence[int], boxes: Sequence[BoxShape]) -> Fault | None:
    """Return the first fault of boxes within a shape, or None if each element is in
    exactly one box.
    """
    full = [box for box in boxes if prod(box[1])]
    volume = sum(prod(sizes) for _, sizes in full)
    is_volume_right = volume == prod(shape)
    if len(full) == 1 or not shape:
        if len(full) > 1:
            return Fault("overlap", format_box(*full[1], shape))
        twice = None
    elif is_volume_right and (not full or _is_grid(full)):
        # The usual case, which needs no comparison of pairs.
        return None
    else:
        twice = _find_overlap(full)
    if twice is not None:
        return Fault("overlap", format_box(*twice, shape))
    # Without an overlap the volume says whether anything is missing.
    return None if is_volume_right else Fault("hole", _find_hole(shape, full))


def format_box(
    offsets: Sequence[int], sizes: Sequence[int], shape: Sequence[int]
) -> str:
    """A box as Python indices: `[8:12, :]`."""
    parts = [
        ":" if size == whole else f"{offset}:{offset + size}"
        for offset, size, whole in zip(offsets, sizes, shape, strict=True)
    ]
    return f"[{', '.join(parts)}]"


def grid_of(boxes: Sequence[Box]) -> tuple[int, ...]:
    """The number of cuts of each dimension, as `Boxes` takes it."""
    full = [box.offsets for box in boxes if prod(box.sizes)]
    return tuple(len(set(row)) for row in zip(*full, strict=True))


def _is_grid(boxes: Sequence[BoxShape]) -> bool:
    """Tell whether the boxes are the cells of a grid, each cell once. Meshes cut
    tensors like this.
    """
    dims = range(len(boxes[0][0]))
    # The different beginnings in each dimension: a grid has a cell for each
    # combination.
    cuts = [sorted({offsets[dim] for offsets, _ in boxes}) for dim in dims]
    if prod(map(len, cuts)) != len(boxes):
        return False
    if len({offsets for offsets, _ in boxes}) != len(boxes):
        return False
    # The end of a cell is the beginning of the next one. The last has none.
    ends = [[*row[1:], None] for row in cuts]
    for offsets, sizes in boxes:
        for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            end = ends[dim][bisect_left(cuts[dim], offset)]
            if end is not None and offset + size > end:
                return False
    return True


def _find_overlap(boxes: Sequence[BoxShape]) -> BoxShape | None:
    """Return the part that two boxes share, or None.

    The search runs along the dimension with the most different beginnings.
    """
    if not boxes:
        return None
    dims = range(len(boxes[0][0]))
    along = max(
        dims, key=lambda dim: len({offsets[dim] for offsets, _ in boxes}), default=0
    )
    # Boxes that reach to the one that is looked at, along that dimension.
    active: list[BoxShape] = []
    compared = 0
    for box in sorted(boxes, key=lambda box: box[0][along]):
        begin = box[0][along]
        active = [
            (offsets, sizes)
            for offsets, sizes in active
            if offsets[along] + sizes[along] > begin
        ]
        compared += len(active)
        for other in active:
            shared = _shared_box(other, box)
            if shared is not None:
                return shared
        # No saver cuts a tensor like this; nothing of it is read.
        if compared > _PAIRS:
            return box
        active.append(box)
    return None


def _shared_box(first: BoxShape, second: BoxShape) -> BoxShape | None:
    """Return the elements that two boxes share, or None."""
    offsets = tuple(map(max, first[0], second[0]))
    ends = map(min, _end_of(first), _end_of(second))
    sizes = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
    return (offsets, sizes) if all(size > 0 for size in sizes) else None


def _end_of(box: BoxShape) -> list[int]:
    """The index behind the last one of a box, in each dimension."""
    return [offset + size for offset, size in zip(*box, strict=True)]


def _find_hole(shape: Sequence[int], boxes: Sequence[BoxShape]) -> str:
    """Return one hole as indices. Boxes do not overlap."""
    low = [0] * len(shape)
    high = list(shape)
    inside = list(boxes)
    # Dimension by dimension: in the first layer that is not full there is a hole, and
    # the search goes on among the boxes of that layer.
    for dim in range(len(shape)):
        cuts = {0, shape[dim]}
        for offsets, sizes in inside:
            cuts.add(offsets[dim])
            cuts.add(offsets[dim] + sizes[dim])
        whole = prod(high[dim + 1 :])
        for begin, end in pairwise(sorted(cuts)):
            layer = [
                (offsets, sizes)
                for offsets, sizes in inside
                if offsets[dim] < end and offsets[dim] + sizes[dim] > begin
            ]
            filled = sum(prod(sizes[dim + 1 :]) for _, sizes in layer)
            if filled < whole:
                low[dim] = begin
                high[dim] = end
                inside = layer
                break
        else:
            break
    extent = [end - begin for begin, end in zip(low, high, strict=True)]
    return format_box(low, extent, shape)
