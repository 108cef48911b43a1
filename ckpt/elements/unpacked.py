"""Tensors whose elements come in blocks, as tensors of float32: decoded while they are
read, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from ckpt.model.dtypes import BY_NAME, DType, contiguous
from ckpt.model.errors import UnsupportedError
from ckpt.model.places import Passed, Place, Reworked, StreamedPlace, Tally
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SINGLE = BY_NAME["float32"]
_WIDTH = 4
"""Bytes of one decoded element."""
PIECE = 1 << 17
"""Elements that are decoded at once: few enough for the cache."""
READ = 1 << 20
"""Packed bytes of one read."""


class Decoder(Protocol):
    """The module that a block of a type names: what makes numbers of blocks."""

    def can_decode(self, name: str, big: bool) -> bool:
        """Tell whether blocks of this type can be decoded, in this order of bytes."""
        ...

    def swap_fields(self, name: str, blocks: Array) -> Array:
        """Return the blocks of a big-endian machine with their fields little-endian."""
        ...

    def decode(self, name: str, blocks: Array, big: bool) -> Array:
        """Return the elements of `blocks`, an array of bytes with a row per block, as
        float32 with a row per block.
        """
        ...


@lru_cache(maxsize=8)
def decoder_of(module: str) -> Decoder:
    """The module that decodes."""
    # Named as text by the type itself: the core imports no extension.
    return cast("Decoder", import_module(module))


def can_unpack(ref: TensorRef) -> bool:
    """Tell whether the elements of a tensor come in blocks that can be decoded."""
    block = ref.dtype.block
    if block is None:
        return False
    place = ref.storage.place
    is_big = place is not None and place.big
    return decoder_of(block.decoder).can_decode(ref.dtype.name, is_big)


def unpacked(ref: TensorRef) -> TensorRef:
    """A tensor in blocks as a tensor of float32, which is decoded while it is read. Any
    other tensor is itself.

    Raises UnsupportedError where the blocks cannot be decoded.
    """
    if ref.dtype.block is None:
        return ref
    place = ref.storage.place
    if not can_unpack(ref):
        order = " of big-endian machines" if place is not None and place.big else ""
        raise UnsupportedError(f"no numbers are read of {ref.dtype.name}{order}")
    numbers = None if place is None else Unpacked(place, ref.dtype, ref.numel)
    storage = Storage(
        ref.storage.id, ref.storage.device, SINGLE, SINGLE.nbytes(ref.numel), numbers
    )
    return tensor_ref(
        storage, SINGLE, ref.shape, contiguous(ref.shape), 0, ref.requires_grad
    )


def packed_blocks(ref: TensorRef) -> Iterator[bytes]:
    """Yield the bytes of a tensor in blocks as they are stored, little-endian where the
    order of bytes is known.
    """
    place = ref.storage.place
    block = ref.dtype.block
    assert place is not None
    assert block is not None
    # Blocks that cannot be decoded cannot be swapped either: they stay as stored.
    if not place.big or not can_unpack(ref):
        yield from place.read_blocks(*ref.extent)
        return
    import numpy as np

    decoder = decoder_of(block.decoder)
    step = max(1, READ // block.nbytes) * block.nbytes  # whole blocks
    for first in range(0, ref.nbytes, step):
        # A place yields its bytes in pieces that may end inside of a block.
        data = b"".join(place.read_blocks(first, min(step, ref.nbytes - first)))
        rows = np.frombuffer(data, "u1").reshape(-1, block.nbytes)
        yield decoder.swap_fields(ref.dtype.name, rows).tobytes()


class Unpacked(StreamedPlace, Reworked):
    """The elements of blocks as float32, little-endian. `packed` is the place of the
    blocks, `count` counts elements.
    """

    __slots__ = ("count", "dtype")

    def __init__(self, packed: Place, dtype: DType, count: int) -> None:
        self.packed = packed
        self.dtype = dtype
        self.count = count

    @property
    def nbytes(self) -> int:
        return self.count * _WIDTH

    def packed_span(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of the blocks that hold the decoded bytes `first` to `last`: first,
        and one past the last.
        """
        block = self.dtype.block
        assert block is not None
        decoded_width = block.elements * _WIDTH
        first_block = first // decoded_width
        end_block = -(-last // decoded_width)  # rounded up
        return first_block * block.nbytes, end_block * block.nbytes

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[memoryview]:
        end = start + count
        if end <= start:
            return
        block = self.dtype.block
        assert block is not None
        begin, stop = self.packed_span(start, end)
        # Blocks are decoded whole: what was not asked for is cut off at both ends.
        position = begin // block.nbytes * block.elements * _WIDTH
        for data in self._decoded(begin, stop):
            first = max(0, start - position)
            last = min(len(data), end - position)
            position += len(data)
            is_wanted_whole = (first, last) == (0, len(data))
            yield data if is_wanted_whole else data[first:last]

    def _decoded(self, begin: int, stop: int) -> Iterator[memoryview]:
        """Yield the elements of the packed bytes `begin` to `stop`, which are whole
        blocks.
        """
        import numpy as np

        block = self.dtype.block
        assert block is not None
        decoder = decoder_of(block.decoder)
        is_big = self.packed.big
        rows_at_once = max(1, PIECE // block.elements)
        step = rows_at_once * block.nbytes
        read = max(1, READ // step) * step
        for first in range(begin, stop, read):
            data = b"".join(self.packed.read_blocks(first, min(read, stop - first)))
            rows = np.frombuffer(data, "u1").reshape(-1, block.nbytes)
            for row in range(0, len(rows), rows_at_once):
                piece = rows[row : row + rows_at_once]
                # What is too large for float32 becomes infinite, without a warning.
                with np.errstate(all="ignore"):
                    numbers = decoder.decode(self.dtype.name, piece, is_big)
                numbers = np.ascontiguousarray(numbers, "<f4")
                yield numbers.reshape(-1).view("u1").data
