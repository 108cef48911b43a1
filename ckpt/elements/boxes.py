"""A tensor that is cut into boxes: its elements in the order of its shape, gathered
band by band.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Protocol

from ckpt.bytes.far import Reading
from ckpt.bytes.source import Source
from ckpt.elements.blocks import is_dense
from ckpt.elements.computed import fill_span, place_of
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError, UnsupportedError
from ckpt.model.places import BasePlace, Checksum, Passed, Place, Range, Runs, Tally
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef

BAND = 1 << 20
"""The most bytes that are gathered at once, unless one row of the last dimension has
more: they stay in the cache.
"""
_EDGE = 8 << 10
"""More bytes than lie before the elements in the item of a tensor."""


class Part(Protocol):
    """A tensor that is opened when its bytes are needed."""

    @property
    def source(self) -> Source:
        """The file that holds it. Raises UnreadableError, NotOpenedError."""
        ...

    def find_file(self) -> str:
        """The name of the file that holds it. Raises UnreadableError where the file is
        missing.
        """
        ...

    def tensor(self) -> TensorRef:
        """The tensor. Raises UnreadableError, NotOpenedError."""
        ...

    def reads(self) -> Iterator[Reading]:
        """The bytes that opening and reading it takes. Raises UnreadableError."""
        ...


class Box(NamedTuple):
    """The elements of a tensor from the index `offsets` on, `sizes` of them in each
    dimension, and where they are.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    part: TensorRef | Part

    def tensor(self) -> TensorRef:
        """The tensor of shape `sizes` with its elements. Raises UnreadableError,
        NotOpenedError.
        """
        return self.part if isinstance(self.part, TensorRef) else self.part.tensor()

    def is_run(self, shape: Sequence[int]) -> bool:
        """Tell whether its elements follow each other in a tensor of this shape."""
        # Whole dimensions at the end, a part of one before, one index of all others.
        inner = len(shape)
        while inner and self.sizes[inner - 1] == shape[inner - 1]:
            inner -= 1
        return all(size == 1 for size in self.sizes[: max(0, inner - 1)])


class _Placed(NamedTuple):
    """A box, its first byte in the whole, and the one behind its last."""

    begin: int
    end: int
    box: Box


class _Order(NamedTuple):
    """Boxes by their first bytes. `ends` has for each the last byte of it and of all
    before, which never falls: boxes are found in it by halving.
    """

    placed: list[_Placed]
    ends: list[int]


class Boxes(BasePlace):
    """The elements of a tensor in the order of its shape, cut into boxes that do not
    overlap.

    `cut` makes the boxes when they are needed, `grid` is the number of cuts of each
    dimension. `problem` says why the elements cannot be read, as where a box is
    missing. `sources` are the sources of all boxes.
    """

    __slots__ = (
        "_boxes",
        "_order",
        "_resolved",
        "cut",
        "dtype",
        "grid",
        "nbytes",
        "problem",
        "shape",
        "sources",
    )

    nbytes: int
    grid: tuple[int, ...]

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        cut: Callable[[], Sequence[Box]],
        sources: Sequence[Source],
        problem: str | None = None,
        grid: Sequence[int] = (),
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.cut = cut
        self.grid = tuple(grid)
        self.sources = sources
        self.problem = problem
        self.nbytes = dtype.nbytes(prod(shape))
        self._resolved: Place | None = None
        """The same bytes as ranges, once they are known to be some."""
        self._boxes: Sequence[Box] | None = None
        self._order: _Order | None = None

    @property
    def boxes(self) -> Sequence[Box]:
        if self._boxes is None:
            self._boxes = self.cut()
        return self._boxes

    @property
    def can_seek(self) -> bool:
        return True

    @property
    def can_cut(self) -> bool:
        return True

    def list_sources(self) -> Iterator[Source]:
        return iter(self.sources)

    def first_source(self) -> Source | None:
        if self.problem is None and self.boxes:
            part = self.boxes[0].part
            if not isinstance(part, TensorRef):
                return part.source
            place = part.storage.place
            return None if place is None else place.first_source()
        return next(self.list_sources(), None)

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        if self.problem is not None:
            return
        for box in self.boxes_between(first, last):
            yield from self._readings_of(box, first, last)

    def list_checksums(self) -> Iterator[Checksum]:
        if not self.nbytes:
            return
        place = self.resolved()
        if place is not self:
            yield from place.list_checksums()
            return
        for box in reversed(self.boxes):
            yield from box.tensor().storage.list_checksums()

    def lacks_bytes(self, first: int, last: int) -> bool:
        return first < last and self.problem is not None

    def as_stored(self, first: int, last: int) -> Place | None:
        if first == last:
            return None
        place = self.resolved()
        if place is not self:
            return place.part(first, last)
        return self if (first, last) == (0, self.nbytes) else None

    def resolved(self) -> Place:
        """The same bytes as a range or as ranges; the boxes themselves where some are
        not runs of bytes in a file.

        Raises UnreadableError where a part is missing or damaged, NotOpenedError.
        """
        if self.problem is not None:
            raise UnreadableError(self.problem)
        if self._resolved is None:
            runs = self._runs()
            if runs is None:
                self._resolved = self
            elif len(runs) == 1:
                self._resolved = runs[0][1]
            else:
                self._resolved = Runs(self.nbytes, runs)
        return self._resolved

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        size = self.nbytes - start if count is None else count
        # Before `resolved`, which raises where a box is missing: no bytes are never
        # missing.
        if not size:
            return
        place = self.resolved()
        if place is self:
            yield from map(bytes, self._gather_bytes(start, size))
        else:
            yield from place.read_blocks(start, size, tally)

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[bytes | memoryview]:
        if not count:
            return
        place = self.resolved()
        if place is self:
            yield from self._gather_bytes(start, count)
        else:
            yield from place.stream_blocks(start, count, tally, passed)

    def reduce_with(self, cut: Callable[[], Sequence[Box]]) -> tuple[object, ...]:
        """Return what `__reduce__` returns for the same place with another function
        that makes its boxes.
        """
        return Boxes, (
            self.dtype,
            self.shape,
            cut,
            self.sources,
            self.problem,
            self.grid,
        )

    def __reduce__(self) -> tuple[object, ...]:
        # The boxes themselves, because the function that makes them may not pickle.
        boxes = () if self.problem is not None else tuple(self.boxes)
        return _rebuild_boxes, (self.dtype, self.shape, boxes, self.problem, self.grid)

    def _runs(self) -> list[tuple[int, Range]] | None:
        """(first byte, range) of each box in order, when every box is one run of bytes
        in a file; else None.
        """
        runs: list[tuple[int, Range]] = []
        for box in self.boxes:
            if not prod(box.sizes):
                continue
            if not box.is_run(self.shape):
                return None
            run = place_of(box.tensor()).run
            if run is None:
                return None
            first_byte = self.dtype.nbytes(flat_index(box.offsets, self.shape))
            runs.append((first_byte, run))
        return sorted(runs, key=lambda row: row[0])

    def boxes_between(self, first: int, last: int) -> Iterator[Box]:
        """The boxes with elements between two bytes, and those around them."""
        if self._order is None:
            self._order = self._sort_boxes()
        placed, ends = self._order
        # All boxes before this one end at the first byte, or earlier.
        for begin, end, box in placed[bisect_right(ends, first) :]:
            # In the order of first bytes, so no later box begins earlier.
            if begin >= last:
                return
            if end > first:
                yield box

    def _sort_boxes(self) -> _Order:
        placed = [
            _Placed(*self.span_of(box), box) for box in self.boxes if prod(box.sizes)
        ]
        placed.sort(key=lambda row: row.begin)
        # A box of columns ends far behind the beginning of those after it.
        ends = list(accumulate((row.end for row in placed), max))
        return _Order(placed, ends)

    def span_of(self, box: Box) -> tuple[int, int]:
        """The first byte of a box, and the one behind its last."""
        corner = [
            offset + size - 1
            for offset, size in zip(box.offsets, box.sizes, strict=True)
        ]
        first = flat_index(box.offsets, self.shape)
        last = flat_index(corner, self.shape)
        return self.dtype.nbytes(first), self.dtype.nbytes(last + 1)

    def _readings_of(self, box: Box, first: int, last: int) -> Iterator[Reading]:
        """The bytes of a box that are among these of the whole: those alone where they
        are one run, else whole rows.
        """
        begin, end = self.span_of(box)
        low = max(0, first - begin)
        high = min(end, last) - begin
        if not box.is_run(self.shape):
            # Rows of the first dimension: in the whole, and in the box.
            row_bytes = self.dtype.nbytes(prod(self.shape[1:]))
            box_row_bytes = self.dtype.nbytes(prod(box.sizes[1:]))
            top = box.offsets[0] if box.offsets else 0
            rows = box.sizes[0] if box.sizes else 1
            last_row = -(-last // row_bytes)
            low = max(0, first // row_bytes - top) * box_row_bytes
            high = min(rows, last_row - top) * box_row_bytes
        is_part = low > 0 or high < self.dtype.nbytes(prod(box.sizes))
        for source, start, stop in box.part.reads():
            if is_part:
                # The first of `reads` begins with the head of the item, whose length is
                # not known yet: so much more is read behind.
                yield source, start + low, min(stop, start + high + _EDGE)
            else:
                yield source, start, stop

    def _gather_bytes(self, start: int, count: int) -> Iterator[memoryview]:
        """`count` bytes from byte `start`, in blocks that are valid until the next one.

        Memory stays at two bands and what one box takes. Raises UnsupportedError.
        """
        width = self.dtype.bits // 8
        if not width:
            raise UnsupportedError(
                f"{self.dtype.name} in several parts: elements of less than a byte"
            )
        boxes = [box for box in self.boxes if prod(box.sizes)]
        end = start + count
        held = _Buffers()
        # Bands are of whole elements: bytes that were not asked for are cut off below.
        for band in _split_bands(self.shape, width, start // width, -(-end // width)):
            data = _fill_band(band, self.shape, width, boxes, held)
            begin = band.start * width
            yield data[max(0, start - begin) : end - begin]


def _rebuild_boxes(
    dtype: DType,
    shape: tuple[int, ...],
    boxes: Sequence[Box],
    problem: str | None,
    grid: tuple[int, ...],
) -> Boxes:
    """The boxes in another process, which only reads them: who made the tasks looks
    after their sources.
    """
    return Boxes(dtype, shape, lambda: boxes, (), problem, grid)


def flat_index(index: Sequence[int], shape: Sequence[int]) -> int:
    """The number of an element in the order of a shape."""
    number = 0
    for coordinate, size in zip(index, shape, strict=True):
        number = number * size + coordinate
    return number


def boxes_in(storage: Storage) -> Sequence[Box]:
    """The boxes of a storage that is cut into boxes, else none."""
    place = storage.place
    # No other place knows of indices.
    return place.boxes if isinstance(place, Boxes) else ()


def boxes_shown(ref: TensorRef) -> Boxes | None:
    """The boxes whose elements a tensor shows at their own indices, or None. Raises
    UnreadableError where they cannot be read.
    """
    place = ref.storage.place
    # No other place knows of indices.
    if not isinstance(place, Boxes):
        return None
    is_own = ref.shape == place.shape and ref.dtype.bits == place.dtype.bits
    if not is_own or ref.offset or not is_dense(ref):
        return None
    if place.problem is not None:
        raise UnreadableError(place.problem)
    return place


# --- gathering ------------------------------------------------------------------------


class _Buffers:
    """Memory for a band and for the part of a box. Each next one takes the place of the
    last one.
    """

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
    """Rows `first` to `last` of one dimension, with the indices `outer` in those before
    it. `start` is their element.
    """

    outer: tuple[int, ...]
    first: int
    last: int
    start: int


def _split_bands(
    shape: tuple[int, ...], width: int, start: int, end: int
) -> Iterator[_Band]:
    """The bands with the elements `start` to `end`."""
    # The first dimension of which one row is no larger than a band.
    level = 0
    while level < len(shape) - 1 and prod(shape[level + 1 :]) * width > BAND:
        level += 1
    row_numel = prod(shape[level + 1 :])
    rows_at_once = max(1, BAND // (row_numel * width))
    rows = shape[level] if shape else 1
    # Rows are counted on through all indices of the dimensions before them.
    row_number = start // row_numel
    end_row = -(-end // row_numel)
    while row_number * row_numel < end:
        outer_number, first = divmod(row_number, rows)
        last = min(rows, first + rows_at_once, end_row - outer_number * rows)
        outer: list[int] = []
        # The number of a row, counted through all dimensions before, as their indices.
        for size in reversed(shape[:level]):
            outer_number, index = divmod(outer_number, size)
            outer.append(index)
        yield _Band(tuple(reversed(outer)), first, last, row_number * row_numel)
        row_number += last - first


def _fill_band(
    band: _Band,
    shape: tuple[int, ...],
    width: int,
    boxes: Sequence[Box],
    held: _Buffers,
) -> memoryview:
    """The bytes of a band. The boxes cover all of it."""
    level = len(band.outer)
    inner = shape[level + 1 :]
    row_bytes = prod(inner) * width
    band_rows = band.last - band.first
    data = held.band(band_rows * row_bytes)
    for box in boxes:
        if not _reaches_band(box, band):
            continue
        # A tensor without dimensions is one row.
        offset, size = (box.offsets[level], box.sizes[level]) if shape else (0, 1)
        low = max(band.first, offset)
        high = min(band.last, offset + size)
        if low >= high:
            continue
        # The index of the first element in the box itself.
        outer_in_box = [
            index - begin for index, begin in zip(band.outer, box.offsets, strict=False)
        ]
        row_in_box = flat_index(
            (*outer_in_box, low - offset), (*box.sizes[:level], size)
        )
        inner_sizes = box.sizes[level + 1 :]
        inner_numel = prod(inner_sizes)
        first = row_in_box * inner_numel
        last = first + (high - low) * inner_numel
        if inner_sizes == inner:
            # Whole rows lie end to end in the box as in the band.
            begin = (low - band.first) * row_bytes
            end = (high - band.first) * row_bytes
            fill_span(box.tensor(), first, last, data[begin:end])
            continue
        part = held.part((last - first) * width)
        fill_span(box.tensor(), first, last, part)
        _scatter_box(
            data,
            (band_rows, *inner),
            part,
            (high - low, *inner_sizes),
            width,
            (low - band.first, *box.offsets[level + 1 :]),
        )
    return data


def _reaches_band(box: Box, band: _Band) -> bool:
    """Tell whether a box has elements at the indices of a band in the dimensions before
    its rows.
    """
    # A band has fewer indices than a box has dimensions.
    dims = zip(band.outer, box.offsets, box.sizes, strict=False)
    return all(offset <= index < offset + size for index, offset, size in dims)


def _scatter_box(
    data: memoryview,
    shape: tuple[int, ...],
    part: memoryview,
    sizes: tuple[int, ...],
    width: int,
    offsets: tuple[int, ...],
) -> None:
    """Put the elements of a box at its place among the elements of a shape."""
    import numpy as np

    # numpy has no integer of 16 bytes, as complex128 has them.
    kind = f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"
    whole = np.frombuffer(data, kind).reshape(shape)
    box_slices = tuple(
        slice(offset, offset + size)
        for offset, size in zip(offsets, sizes, strict=True)
    )
    whole[box_slices] = np.frombuffer(part, kind).reshape(sizes)
