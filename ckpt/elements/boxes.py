"""A tensor that is cut into boxes: its elements in the order of its shape, gathered band by band."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from ckpt.errors import UnreadableError, UnsupportedError
from ckpt.rows import NamedTuple
from ckpt.tensors import Box, Boxes, Patched, Place, Range, TensorRef, flat

BAND = 1 << 20
"""The most bytes that are gathered at once, unless one row of the last dimension has more: they stay in the cache."""

Fill = Callable[[TensorRef, int, int, memoryview], None]
"""Fills a buffer with the elements of a tensor from the first number to the last, in the order of its shape."""


def as_ranges(place: Boxes, place_of: Callable[[TensorRef], Place]) -> Place:
    """The same bytes as a range or as ranges; the boxes themselves where some are not runs of bytes in a file.

    Raises UnreadableError where a part is missing or damaged, NotOpenedError.
    """
    if place.problem is not None:
        raise UnreadableError(place.problem)
    if place.straight is None:
        runs = _runs(place, place_of)
        if runs is None:
            place.straight = place
        else:
            place.straight = runs[0][1] if len(runs) == 1 else Patched(None, place.size, runs)
    return place.straight


def _runs(place: Boxes, place_of: Callable[[TensorRef], Place]) -> list[tuple[int, Range]] | None:
    """(first byte, range) of each box in order, when every box is one run of bytes in a file; else None."""
    runs: list[tuple[int, Range]] = []
    for box in place.boxes:
        if not prod(box.sizes):
            continue
        if not box.is_run(place.shape):
            return None
        extent = place_of(box.tensor())
        if not isinstance(extent, Range):
            return None
        runs.append((place.dtype.nbytes(flat(box.offsets, place.shape)), extent))
    return sorted(runs, key=lambda run: run[0])


def gathered(place: Boxes, start: int, count: int, fill: Fill) -> Iterator[memoryview]:
    """`count` bytes from byte `start`, in blocks that are valid until the next one.

    Memory stays at two bands and what `fill` takes. Raises UnsupportedError.
    """
    width = place.dtype.bits // 8
    if not width:
        raise UnsupportedError(f"{place.dtype.name} in several parts: elements of less than a byte")
    boxes = [box for box in place.boxes if prod(box.sizes)]
    end = start + count
    held = _Buffers()
    for band in _bands(place.shape, width, start // width, -(-end // width)):
        data = _filled(band, place.shape, width, boxes, fill, held)
        begin = band.start * width
        yield data[max(0, start - begin) : end - begin]


class _Buffers:
    """Memory for a band and for the part of a box. Each next one takes the place of the last one."""

    def __init__(self) -> None:
        self._band = self._part = bytearray()

    def band(self, size: int) -> memoryview:
        if len(self._band) < size:
            self._band = bytearray(size)
        return memoryview(self._band)[:size]

    def part(self, size: int) -> memoryview:
        if len(self._part) < size:
            self._part = bytearray(size)
        return memoryview(self._part)[:size]


class _Band(NamedTuple):
    """Rows `first` to `last` of one dimension, with the indices `outer` in those before it. `start` is their element."""

    outer: tuple[int, ...]
    first: int
    last: int
    start: int


def _bands(shape: tuple[int, ...], width: int, start: int, end: int) -> Iterator[_Band]:
    """The bands with the elements `start` to `end`."""
    level = 0
    while level < len(shape) - 1 and prod(shape[level + 1 :]) * width > BAND:
        level += 1
    row = prod(shape[level + 1 :])
    step = max(1, BAND // (row * width))
    rows = shape[level] if shape else 1
    row_number = start // row
    while row_number * row < end:
        rest, first = divmod(row_number, rows)
        last = min(rows, first + step, -(-end // row) - rest * rows)
        outer: list[int] = []
        for size in reversed(shape[:level]):
            rest, index = divmod(rest, size)
            outer.append(index)
        yield _Band(tuple(reversed(outer)), first, last, row_number * row)
        row_number += last - first


def _filled(
    band: _Band, shape: tuple[int, ...], width: int, boxes: Sequence[Box], fill: Fill, held: _Buffers
) -> memoryview:
    """The bytes of a band. The boxes cover all of it."""
    level = len(band.outer)
    inner = shape[level + 1 :]
    row = prod(inner) * width
    data = held.band((band.last - band.first) * row)
    for box in boxes:
        if not all(
            offset <= index < offset + size
            for index, offset, size in zip(band.outer, box.offsets, box.sizes, strict=False)
        ):
            continue
        offset, size = (box.offsets[level], box.sizes[level]) if shape else (0, 1)
        low, high = max(band.first, offset), min(band.last, offset + size)
        if low >= high:
            continue
        begins = tuple(index - offset for index, offset in zip(band.outer, box.offsets, strict=False))
        sizes = box.sizes[level + 1 :]
        inner_numel = prod(sizes)
        first = flat((*begins, low - offset), (*box.sizes[:level], size)) * inner_numel
        last = first + (high - low) * inner_numel
        if sizes == inner:
            fill(box.tensor(), first, last, data[(low - band.first) * row : (high - band.first) * row])
            continue
        part = held.part((last - first) * width)
        fill(box.tensor(), first, last, part)
        begins_inside = (low - band.first, *box.offsets[level + 1 :])
        _scatter(data, (band.last - band.first, *inner), part, (high - low, *sizes), width, begins_inside)
    return data


def _scatter(
    data: memoryview,
    shape: tuple[int, ...],
    part: memoryview,
    sizes: tuple[int, ...],
    width: int,
    offsets: tuple[int, ...],
) -> None:
    """Put the elements of a box at its place among the elements of a shape."""
    import numpy as np

    kind = f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"
    whole = np.frombuffer(data, kind).reshape(shape)
    box_slices = tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    whole[box_slices] = np.frombuffer(part, kind).reshape(sizes)
