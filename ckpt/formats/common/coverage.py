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
    if len(full) == 1 or not shape:
        if len(full) > 1:
            return Fault("overlap", format_box(*full[1], shape))
        return None if volume == prod(shape) else Fault("hole", _find_hole(shape, full))
    if volume == prod(shape) and (not full or _is_grid(full)):
        return None
    twice = _find_overlap(full)
    if twice is not None:
        return Fault("overlap", format_box(*twice, shape))
    return None if volume == prod(shape) else Fault("hole", _find_hole(shape, full))


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
    cuts = [sorted({box[0][dim] for box in boxes}) for dim in range(len(boxes[0][0]))]
    if prod(map(len, cuts)) != len(boxes) or len(
        {offsets for offsets, _ in boxes}
    ) != len(boxes):
        return False
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
    dims = range(len(boxes[0][0])) if boxes else range(0)
    along = max(
        dims, key=lambda dim: len({offsets[dim] for offsets, _ in boxes}), default=0
    )
    active: list[BoxShape] = []
    compared = 0
    for box in sorted(boxes, key=lambda box: box[0][along]):
        active = [
            other
            for other in active
            if other[0][along] + other[1][along] > box[0][along]
        ]
        compared += len(active)
        for other in active:
            shared = _shared_box(other, box)
            if shared is not None:
                return shared
        if compared > _PAIRS:
            return box  # no saver cuts a tensor like this; nothing of it is read
        active.append(box)
    return None


def _shared_box(box: BoxShape, another: BoxShape) -> BoxShape | None:
    offsets = tuple(map(max, box[0], another[0]))
    ends = [
        min(first + size, second + other)
        for first, size, second, other in zip(*box, *another, strict=True)
    ]
    sizes = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
    return (offsets, sizes) if all(size > 0 for size in sizes) else None


def _find_hole(shape: Sequence[int], boxes: Sequence[BoxShape]) -> str:
    """Return one hole as indices. Boxes do not overlap."""
    low, high = [0] * len(shape), list(shape)
    inside = list(boxes)
    for dim in range(len(shape)):
        cut = low[dim]
        # A layer of this dimension, between two cuts, that the boxes do not fill.
        cuts = sorted(
            {
                0,
                shape[dim],
                *(o[dim] for o, _ in inside),
                *(o[dim] + s[dim] for o, s in inside),
            }
        )
        for cut, end in pairwise(cuts):
            layer = [
                box
                for box in inside
                if box[0][dim] < end and box[0][dim] + box[1][dim] > cut
            ]
            rest = prod(high[dim + 1 :]) if dim + 1 < len(shape) else 1
            filled = sum(prod(sizes[dim + 1 :]) for _, sizes in layer)
            if filled < rest:
                low[dim], high[dim] = cut, end
                inside = layer
                break
        else:
            break
    sizes = [end - start for start, end in zip(low, high, strict=True)]
    return format_box(low, sizes, shape)
