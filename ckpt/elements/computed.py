"""The places whose bytes are computed from the elements of tensors, and the place of
the elements of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ckpt.bytes.far import Reading
from ckpt.bytes.source import Source
from ckpt.elements import cast
from ckpt.elements.blocks import (
    elements,
    in_whole_elements,
    is_all,
    is_big,
    is_dense,
    slice_of,
)
from ckpt.elements.unpacked import unpacked
from ckpt.model.dtypes import DType
from ckpt.model.places import (
    BasePlace,
    Checksum,
    Passed,
    Place,
    StreamedPlace,
    Tally,
    cut_blocks,
)
from ckpt.model.tensors import Storage, TensorRef, tensor_ref


class PlaceOfTensors(BasePlace):
    """The bytes that are computed from the elements of `tensors`, while they are
    written.
    """

    __slots__ = ()

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        raise NotImplementedError

    def list_sources(self) -> Iterator[Source]:
        sources = (
            source
            for ref in reversed(self.tensors)
            for source in ref.storage.list_sources()
        )
        # Codes and scales lie in one file.
        yield from {id(source): source for source in sources}.values()

    def list_readings(self, first: int, last: int) -> Iterator[Reading]:
        for ref in self.tensors:
            yield from ref.reads()

    def list_checksums(self) -> Iterator[Checksum]:
        for ref in reversed(self.tensors):
            yield from ref.storage.list_checksums()

    def lacks_bytes(self, first: int, last: int) -> bool:
        return first < last and any(map(lacks_bytes, self.tensors))

    def widened(self) -> Place | None:
        """Return a place with the same numbers as float32, where that takes less than a
        cast of them, else None.
        """
        return None


class PlaceInOrder(PlaceOfTensors):
    """The bytes that are computed from first to last: `_blocks` yields all of them."""

    __slots__ = ()

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        raise NotImplementedError

    def read_blocks(
        self, start: int = 0, count: int | None = None, tally: Tally | None = None
    ) -> Iterator[bytes]:
        size = self.nbytes - start if count is None else count
        return cut_blocks(self._blocks(tally), start, size)


class PlaceInSpans(StreamedPlace, PlaceOfTensors):
    """The bytes that threads compute span by span, from any byte on."""

    __slots__ = ()

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[memoryview]:
        """Yield `count` bytes from byte `start`, in blocks that are valid until the
        next one.
        """
        raise NotImplementedError


def lacks_bytes(ref: TensorRef) -> bool:
    """Tell whether bytes of a tensor are known to be missing. Opens nothing."""
    place = ref.storage.place
    return place is not None and place.lacks_bytes(*ref.extent)


class Computed(PlaceInOrder):
    """The elements of a tensor in the order of its shape, as `dtype`.

    They are little-endian, with conjugation and negation resolved. Elements in blocks
    are decoded for another dtype.
    """

    __slots__ = ("dtype", "of")

    def __init__(self, of: TensorRef, dtype: DType) -> None:
        self.of = of if dtype == of.dtype else unpacked(of)
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.of.numel)

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return (self.of,)

    def resolved(self) -> Place:
        storage = self.of.storage
        if self.dtype != self.of.dtype or not is_all(self.of) or is_big(storage):
            return self
        # The elements as they are stored: ranges of a file can be copied by the kernel.
        return storage.noted or self

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        if self.dtype == self.of.dtype:
            yield from elements(self.of, tally)
            return
        width = max(1, self.of.dtype.bits // 8)
        for block in in_whole_elements(elements(self.of, tally), width):
            converted, overflowed, vanished = cast.cast_and_count(
                block, self.of.dtype, self.dtype
            )
            if (overflowed or vanished) and tally is not None:
                tally(overflowed, vanished)
            yield converted


class Overlaid(PlaceInOrder):
    """The elements of a tensor in the order of its shape, with the elements whose index
    is also within the shape of `over` taken from `over`. Both have the same number of
    dimensions.
    """

    __slots__ = ("of", "over")

    def __init__(self, of: TensorRef, over: TensorRef) -> None:
        self.of = of
        self.over = over if over.dtype == of.dtype else unpacked(over)

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return self.of, self.over

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        """The elements in one block. Both tensors are held in memory."""
        base, over = (
            b"".join(elements(self.of, tally)),
            b"".join(elements(self.over, tally)),
        )
        if self.over.dtype != self.of.dtype:
            over, overflowed = cast.cast(over, self.over.dtype, self.of.dtype)
            if overflowed and tally is not None:
                tally(overflowed)
        yield cast.overlay_elements(
            base, self.of.shape, over, self.over.shape, self.of.dtype
        )


# --- the elements of a tensor as a place ----------------------------------------------


def place_of(ref: TensorRef, dtype: DType | None = None) -> Place:
    """Return the place of the elements of a tensor, in the order of its shape.

    It is a range, or consists of ranges, if the elements are contiguous as stored. Else
    it is computed. Raises UnreadableError where boxes are missing or damaged,
    NotOpenedError.
    """
    place = ref.storage.noted
    if place is not None:
        # First, because this raises where bytes are missing.
        stored = place.as_stored(*ref.extent)
        is_own_dtype = dtype is None or dtype == ref.dtype
        # Elements of one byte have no order of bytes.
        is_turned = ref.conj or ref.neg or (place.big and ref.dtype.bits > 8)
        if stored is not None and is_own_dtype and not is_turned and is_dense(ref):
            return stored
    return Computed(ref, dtype or ref.dtype)


def little_endian_storage(storage: Storage) -> Storage:
    """A storage with little-endian bytes. An untyped storage stays as it is, because
    torch never swaps it.
    """
    if not is_big(storage) or storage.dtype is None:
        return storage
    count = storage.nbytes * 8 // storage.dtype.bits
    whole = tensor_ref(storage, storage.dtype, (count,), (1,), 0)
    # The checksum is of the bytes before they were swapped.
    return storage._replace(place=Computed(whole, storage.dtype), crc=None)


def can_cut(ref: TensorRef) -> bool:
    """Tell whether any span of the elements can be read by itself, as bytes."""
    place = ref.storage.place
    # Spans are counted in bytes, and an element of 4 bits may begin inside of one.
    return ref.dtype.bits >= 8 and place is not None and place.can_cut and is_dense(ref)


def fill_span(ref: TensorRef, first: int, last: int, into: memoryview) -> None:
    """Fill a buffer with the elements `first` to `last` of a tensor in the order of its
    shape.
    """
    if not is_dense(ref):
        width = ref.dtype.bits // 8
        data = memoryview(_gather_elements(ref))
        into[:] = data[first * width : last * width]
        return
    part = slice_of(ref, first, last)
    run = place_of(part).run
    # Straight into the buffer, without a block in between.
    if run is not None:
        run.source.read_into(run.offset, into)
        return
    position = 0
    for block in elements(part):
        into[position : position + len(block)] = block
        position += len(block)


@lru_cache(maxsize=1)
def _gather_elements(ref: TensorRef) -> bytes:
    """The elements of a part with other strides, gathered once for all that is read of
    it.
    """
    return b"".join(elements(ref))
