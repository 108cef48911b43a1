"""Filling memory with the elements of a tensor, or with those that an index takes:
nothing else is read, nothing twice.

Elements go from the source into the memory of the result. Small runs pass through a
block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.bytes.source import Source
from ckpt.elements import blocks, cast
from ckpt.elements.boxes import Box, boxes_shown
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError
from ckpt.model.places import Place, Range
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

GAP = 1 << 10
"""Runs that are this close, in bytes, are read together with what lies between them."""
_LINE = 64
"""Bytes of the result that lie beside each other and are filled at once."""
_CROWDED = 1024
"""Rows whose beginnings lie a multiple of so many bytes apart share few lines of the
cache.
"""
PIECE = 1 << 20
"""Bytes that pass through a block at once."""
_AHEAD = 8
"""The pieces that one call asks of a source for which each read costs a request."""
_RUNS = 1 << 12
"""Runs that one call asks of a source."""
_WIDEN = 1 << 16
"""Elements that are widened at once: they stay in the cache."""

Region = tuple[range, ...]
"""The indices that are taken of each dimension, all ascending."""


def whole_region(ref: TensorRef) -> Region:
    """The region with all elements."""
    return tuple(range(size) for size in ref.shape)


def fill_buffer(
    ref: TensorRef, buffer: memoryview, sources: list[Source] | None = None
) -> None:
    """Fill a buffer with all elements of a tensor in the order of its shape, as
    `blocks.elements` gives them.

    `sources` gets the sources that were read. Raises UnreadableError.
    """
    import numpy as np

    out = np.frombuffer(buffer, _raw_dtype(ref.dtype)).reshape(ref.shape)
    _gather(ref, whole_region(ref), out, [] if sources is None else sources)


def fill_array(ref: TensorRef, out: Array) -> None:
    """Fill an array of raw elements, of any strides, with all elements of a tensor.
    Raises UnreadableError.
    """
    _gather(ref, whole_region(ref), out, [])


def array(
    ref: TensorRef,
    region: Region | None = None,
    flipped: Sequence[int] = (),
    sources: list[Source] | None = None,
) -> Array:
    """The elements of a region as a new array in the order of memory, with the
    `flipped` dimensions backwards.

    Floats narrower than float16 become float32 and complex32 becomes complex64 in the
    memory of the result. `sources` gets the sources that were read. The type must have
    numbers. Raises UnreadableError.
    """
    import numpy as np

    region = whole_region(ref) if region is None else region
    shape = tuple(len(taken) for taken in region)
    # The result lies in memory as the tensor does in the file, so that it is filled in
    # one go; `back` gives its dimensions their own order again.
    order = blocks.memory_order(ref)
    shape_in_memory = tuple(shape[dim] for dim in order)
    back = tuple(order.index(dim) for dim in range(len(order)))
    raw = np.dtype(_raw_dtype(ref.dtype))
    result = np.empty(prod(shape), array_kind(ref.dtype))
    # Elements that will be widened lie at the end of the memory of the result.
    narrow = result.view("u1")[result.nbytes - result.size * raw.itemsize :]
    target = narrow.view(raw).reshape(shape_in_memory).transpose(back)
    mirrored = [
        slice(None, None, -1 if dim in flipped else 1) for dim in range(len(shape))
    ]
    target = _array_view(target, mirrored)
    _gather(ref, region, target, [] if sources is None else sources)
    if result.nbytes > narrow.nbytes:
        # From the first to the last, what is written never reaches what is not yet
        # read.
        for first in range(0, result.size, _WIDEN):
            last = min(first + _WIDEN, result.size)
            block = narrow[first * raw.itemsize : last * raw.itemsize].data
            result[first:last] = cast.as_numbers(block, ref.dtype)
    return result.reshape(shape_in_memory).transpose(back)


def array_kind(dtype: DType) -> str:
    """The type of numpy that holds the elements of a type exactly. The type must have
    numbers.
    """
    if dtype.kind == "bool":
        return "?"
    if dtype.kind == "complex":
        return f"<c{max(8, dtype.bits // 8)}"  # numpy has no complex32
    if dtype.kind == "float":
        if dtype.name in ("float64", "float32", "float16"):
            return f"<f{dtype.bits // 8}"
        return "<f4"
    sign = "u" if dtype.name.startswith("u") else "i"
    return f"<{sign}{dtype.bits // 8}"


def _array_view(array: Array, index: Sequence[int | slice]) -> Array:
    """The view of an array at an index of its first dimensions. An array of no
    dimensions is one too.
    """
    view: Array = array[(*index, ...)]
    return view


def _raw_dtype(dtype: DType) -> str:
    """The type of numpy for elements as they are stored, without their meaning."""
    width = dtype.bits // 8
    return f"<u{width}" if width in (1, 2, 4, 8) else f"V{width}"


# --- a region into an array of raw elements -------------------------------------------


def _gather(ref: TensorRef, region: Region, out: Array, sources: list[Source]) -> None:
    """Fill an array of raw elements, of any strides, with a region of a tensor."""
    if not out.size:
        return
    shown = boxes_shown(ref)
    if shown is None:
        _gather_stored(ref, region, out, sources)
    else:
        for box in shown.boxes:
            _gather_box(box, region, out, sources)
    if ref.conj or ref.neg:
        _resolve_conj_and_neg(out, ref)


def _gather_box(box: Box, region: Region, out: Array, sources: list[Source]) -> None:
    """Fill the part of an array that a box of a tensor in parts holds, if any."""
    cut = _region_within(region, box)
    if cut is None:
        return
    inner, places = cut
    if not isinstance(box.part, TensorRef):
        sources.append(box.part.source)
    _gather(box.tensor(), inner, _array_view(out, places), sources)


def _gather_stored(
    ref: TensorRef, region: Region, out: Array, sources: list[Source]
) -> None:
    """Fill an array with a region of a tensor whose storage is in one place."""
    place = ref.storage.place
    assert place is not None
    sources += place.list_sources()
    is_whole = out.shape == ref.shape and blocks.is_dense(ref)
    if is_whole and out.flags.c_contiguous:  # the usual case
        reader = _reader_of_place(place, out.nbytes)
        first_byte = ref.offset * (ref.dtype.bits // 8)
        reader.read_into(first_byte, out.reshape(-1).view("u1").data)
        reader.finish()
    else:
        _read_view(ref, region, out, place)
    if place.big:
        _swap_bytes(out, ref.dtype)


def _read_view(ref: TensorRef, region: Region, out: Array, place: Place) -> None:
    """Fill an array with a region of a tensor whose bytes have these strides."""
    first = ref.offset
    strides: list[int] = []
    for stride, taken in zip(ref.stride, region, strict=True):
        first += stride * taken.start
        strides.append(stride * taken.step)
    _read_strided(place, ref.dtype.bits // 8, first, tuple(strides), out)


def _region_within(region: Region, box: Box) -> tuple[Region, list[slice]] | None:
    """(the indices of a region inside a box, counted from there, their places in the
    result), or None.
    """
    inner: list[range] = []
    places: list[slice] = []
    for taken, offset, size in zip(region, box.offsets, box.sizes, strict=True):
        # The least numbers n for which start + n * step reaches the beginning of the
        # box, and its end: -(-a // b) rounds a / b up.
        first = max(0, -((taken.start - offset) // taken.step))
        last = min(len(taken), -((taken.start - offset - size) // taken.step))
        if first >= last:
            return None
        part = taken[first:last]
        inner.append(range(part.start - offset, part.stop - offset, part.step))
        places.append(slice(first, last))
    return tuple(inner), places


def _swap_bytes(out: Array, dtype: DType) -> None:
    """Give elements the other byte order, where they are."""
    if dtype.kind == "complex":
        half = f"<u{dtype.bits // 16}"
        for part in _complex_halves(out, half):
            part.byteswap(inplace=True)
    elif dtype.bits > 8:
        out.byteswap(inplace=True)


def _complex_halves(out: Array, kind: str) -> tuple[Array, Array]:
    """The real and the imaginary parts of complex elements, as views."""
    pairs = out.view([("real", kind), ("imag", kind)])
    return pairs["real"], pairs["imag"]


def _resolve_conj_and_neg(out: Array, ref: TensorRef) -> None:
    """Resolve conjugation and negation of elements, where they are."""
    import numpy as np

    dtype = ref.dtype
    if dtype.kind == "complex":
        real, imag = _complex_halves(out, f"<f{dtype.bits // 16}")
        if ref.neg:
            np.negative(real, out=real)
        if ref.conj != ref.neg:
            np.negative(imag, out=imag)
    elif ref.neg and dtype.kind == "int":
        numbers = out.view(array_kind(dtype))
        np.negative(numbers, out=numbers)
    elif ref.neg:  # the sign is one bit
        np.bitwise_xor(out, 1 << (dtype.bits - 1), out=out)


def _read_strided(
    place: Place, width: int, first: int, stride: tuple[int, ...], out: Array
) -> None:
    """Fill an array with the elements of a place from the element `first` on, with
    these strides in elements. An element has `width` bytes.
    """
    import numpy as np

    sizes = out.shape
    # A dimension of stride 0 (`expand`) shows the same elements again: they are read
    # once.
    shape_once = tuple(
        size if step else 1 for size, step in zip(sizes, stride, strict=True)
    )
    if prod(shape_once) < out.size:
        held = np.empty(shape_once, out.dtype)
        _read_strided(place, width, first, stride, held)
        out[...] = held
        return
    dims = [dim for dim, size in enumerate(sizes) if size > 1]
    dims.sort(key=lambda dim: -stride[dim])  # as it lies in the file
    single_dims = [dim for dim, size in enumerate(sizes) if size == 1]
    in_file_order = out.transpose((*single_dims, *dims))
    target = _array_view(in_file_order, [0] * len(single_dims))
    steps = [stride[dim] * width for dim in dims]
    reader = _reader_of_place(place, out.size * width)
    _Gathering(reader, width, target, steps).run(first * width)
    reader.finish()


class _Gathering:
    """The reads that fill an array, whose dimensions are in the order of the file.
    `steps` are its strides there, in bytes.
    """

    def __init__(
        self, reader: _Reader, width: int, out: Array, steps: list[int]
    ) -> None:
        self._reader = reader
        self._out = out
        self._steps = steps
        self._shape = out.shape
        dims = len(steps)
        self._extents: list[int] = [width] * (dims + 1)
        """Bytes in the file from the first to the last element of the dimensions from
        one on.
        """
        sizes = [width] * (dims + 1)  # the bytes of these elements alone
        for dim in range(dims - 1, -1, -1):
            size = self._shape[dim]
            self._extents[dim] = self._extents[dim + 1] + (size - 1) * steps[dim]
            sizes[dim] = sizes[dim + 1] * size
        # the first dimension from which on each part lies directly behind the one
        # before
        dense = dims
        while dense and self._extents[dense - 1] == sizes[dense - 1]:
            dense -= 1
        self._level = dims
        while self._level and self._is_one_run(self._level - 1, sizes):
            self._level -= 1
        """The first dimension of what is read as one run: most of its bytes are
        needed.
        """
        self._is_dense = self._level >= dense
        self._ranges: list[tuple[int, int]] = []
        self._targets: list[tuple[Array, int]] = []
        self._waiting = 0

    def _is_one_run(self, dim: int, sizes: list[int]) -> bool:
        """Tell whether a dimension is read as one run: half of it is needed, or little
        lies between its parts.
        """
        if self._extents[dim] <= 2 * sizes[dim]:
            return True
        return self._steps[dim] - self._extents[dim + 1] < GAP

    def run(self, first: int) -> None:
        """Read all, from this byte of the place on."""
        level = self._level
        extent = self._extents[level]
        one_run = _array_view(self._out, [0] * level)
        is_large = not level or extent >= PIECE // 16
        if self._is_dense and one_run.flags.c_contiguous and is_large:
            # Nothing lies between, so each run goes straight into the result.
            for index, offset in self._outer_indices(level):
                run = _array_view(self._out, index).reshape(-1)
                self._reader.read_into(first + offset, run.view("u1").data)
        elif extent > PIECE:
            while level < len(self._steps) - 1 and self._steps[level] > PIECE:
                level += 1
            self._read_rows(first, level, max(1, PIECE // self._steps[level]))
        else:
            self._read_runs(first, level)

    def _outer_indices(self, level: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the indices in the dimensions before one, each with its byte."""
        for index in product(*map(range, self._shape[:level])):
            offset = sum(
                number * step for number, step in zip(index, self._steps, strict=False)
            )
            yield index, offset

    def _read_rows(self, first: int, dim: int, count: int) -> None:
        """Read so many rows of a dimension at once, with what lies between their
        elements.
        """
        step = self._steps[dim]
        for index, offset in self._outer_indices(dim):
            for low in range(0, self._shape[dim], count):
                high = min(low + count, self._shape[dim])
                begin = first + offset + low * step
                size = (high - low - 1) * step + self._extents[dim + 1]
                [data] = self._reader.read_many([(begin, size)])
                self._put_elements(self._out[index][low:high], data, self._steps[dim:])

    def _read_runs(self, first: int, level: int) -> None:
        """Read runs, several in one call."""
        size = self._extents[level]
        most = PIECE * _AHEAD if self._reader.is_far else PIECE
        count = max(1, min(PIECE // size, _RUNS))
        # Without an outer dimension there is one run: all of the array.
        rows, step = 1, 0
        row_dim = max(level - 1, 0)
        if level:
            rows, step = self._shape[row_dim], self._steps[row_dim]
        for index, offset in self._outer_indices(row_dim):
            begin = first + offset
            for low in range(0, rows, count):
                high = min(low + count, rows)
                self._ranges += [(begin + row * step, size) for row in range(low, high)]
                target = self._out[index][low:high] if level else self._out[None]
                self._targets.append((target, high - low))
                self._waiting += (high - low) * size
                if self._waiting >= most or len(self._ranges) >= _RUNS:
                    self._flush_runs(level)
        self._flush_runs(level)

    def _flush_runs(self, level: int) -> None:
        """Read what waits, and put it into the array."""
        runs = self._reader.read_many(self._ranges)
        # In the bytes of several runs these lie end to end, not as in the file.
        steps = [self._extents[level], *self._steps[level:]]
        position = 0
        for target, count in self._targets:
            data = runs[position]
            if count > 1:
                data = b"".join(runs[position : position + count])
            self._put_elements(target, data, steps)
            position += count
        self._ranges = []
        self._targets = []
        self._waiting = 0

    def _put_elements(self, target: Array, data: bytes, steps: list[int]) -> None:
        """Put elements that lie in data with these strides into an array."""
        import numpy as np

        given = np.ndarray(target.shape, target.dtype, data, 0, tuple(steps))
        dense = [dim for dim, size in enumerate(target.shape) if size > 1]
        inner = min(dense, key=lambda dim: target.strides[dim], default=0)
        count = _LINE // target.itemsize
        if not dense or inner == dense[-1] or target.shape[inner] <= count:
            target[...] = given
            return
        # Transposed: whole lines of the cache are filled, not one element of each.
        before = (slice(None),) * inner
        is_crowded = target.itemsize <= 4 and given.strides[inner] % _CROWDED == 0
        for low in range(0, target.shape[inner], count):
            part = (*before, slice(low, low + count))
            target[part] = _spread_rows(given[part]) if is_crowded else given[part]


def _spread_rows(rows: Array) -> Array:
    """Return a copy of rows that lie a line of the cache further apart.

    Rows of most models begin a power of two apart: the elements of one column share a
    few lines of the cache then, and push each other out of it.
    """
    import numpy as np

    *outer, size = rows.shape
    room = np.empty((*outer, size + _LINE // rows.itemsize), rows.dtype)[..., :size]
    room[...] = rows
    return room


# --- the bytes of places --------------------------------------------------------------


class _Reader:
    """The bytes of a place, at any offset."""

    is_far = False
    """True if each call costs a request."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read_into(self, offset: int, buffer: memoryview) -> None:
        position = 0
        for block in self._place.read_blocks(offset, len(buffer)):
            buffer[position : position + len(block)] = block
            position += len(block)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [
            b"".join(self._place.read_blocks(offset, count)) for offset, count in ranges
        ]

    def finish(self) -> None:
        """Check what can be checked once all has been read."""


class _RangeReader(_Reader):
    """A range of a source."""

    def __init__(self, place: Range) -> None:
        self._source = place.source
        self._offset = place.offset
        self.is_far = place.source.far is not None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._source.read_into(self._offset + offset, buffer)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._source.read_many(
            [(self._offset + offset, count) for offset, count in ranges]
        )


class _HeldReader(_Reader):
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self._data[offset : offset + len(buffer)]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(self._data[offset : offset + count]) for offset, count in ranges]


class _Stream(_Reader):
    """Bytes that come in order only: deflated or computed ones. Reading forward costs
    one pass.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._size = place.nbytes
        self._begin_stream()

    def _begin_stream(self) -> None:
        self._blocks = self._place.read_blocks()
        self._block: bytes | memoryview = b""
        self._first = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < self._first:  # views that overlap themselves
            self._begin_stream()
        position = 0
        while position < len(buffer):
            start = offset + position - self._first
            if start >= len(self._block):
                self._first += len(self._block)
                block = next(self._blocks, None)
                if block is None:
                    raise UnreadableError("a storage holds less than its tensors need")
                self._block = block
                continue
            part = memoryview(self._block)[start : start + len(buffer) - position]
            buffer[position : position + len(part)] = part
            position += len(part)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        runs = [bytearray(count) for _, count in ranges]
        for run, (offset, _) in zip(runs, ranges, strict=True):
            self.read_into(offset, memoryview(run))
        return runs  # type: ignore[return-value]  # they are read as bytes

    def finish(self) -> None:
        # Where all bytes were taken: the end of deflated data has its own check.
        if self._first + len(self._block) >= self._size:
            for _ in self._blocks:
                pass


def _reader_of_place(place: Place, needed: int) -> _Reader:
    """The reader of a place of which so many bytes are needed."""
    run = place.run
    if run is not None:
        return _RangeReader(run)
    if place.can_seek:
        return _Reader(place)
    data = place.kept_bytes() if 2 * needed < place.nbytes else None
    return _Stream(place) if data is None else _HeldReader(data)
