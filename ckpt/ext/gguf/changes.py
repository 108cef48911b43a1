"""The changes of llama.cpp's converter in tensors, undone while they are read: the
order of rows, a transpose, an added 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.elements.blocks import elements, in_whole_elements
from ckpt.elements.computed import PlaceInOrder, place_of
from ckpt.elements.unpacked import can_unpack, unpacked
from ckpt.ext.gguf.names import Change
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.places import Patched, Place, Reworked, Tally, cut_blocks
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

_MOST = 256 << 20
"""The most bytes of one head: all its rows are read to put them in order."""
_EXPERTS = 4096
"""The most experts of one block."""
_HEADS = 4096
"""The most heads of a tensor that is joined head by head."""
_SINGLE = BY_NAME["float32"]


class HeadRows(Reworked):
    """The rows of q or k in the order of transformers: of each head first one half of
    its rotary pairs, then the other.

    GGUF has the two rows of a pair beside each other. `row` and `head` are the bytes of
    a row and of a head.
    """

    __slots__ = ("head", "nbytes", "row")

    nbytes: int

    def __init__(self, packed: Place, row: int, head: int) -> None:
        self.packed = packed
        self.row = row
        self.head = head
        self.nbytes = packed.nbytes

    @property
    def big(self) -> bool:
        return self.packed.big

    def packed_span(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of the heads that hold the bytes `first` to `last`."""
        first_head = first // self.head
        last_head = -(-last // self.head)
        return first_head * self.head, min(last_head * self.head, self.nbytes)

    def read_blocks(
        self,
        start: int = 0,
        count: int | None = None,
        tally: Tally | None = None,
    ) -> Iterator[bytes]:
        import numpy as np

        end = self.nbytes if count is None else start + count
        begin, stop = self.packed_span(start, end)

        def ordered() -> Iterator[bytes]:
            for first in range(begin, stop, self.head):
                data = b"".join(self.packed.read_blocks(first, self.head))
                # [pairs, 2, row bytes] becomes [2, pairs, row bytes]: both halves.
                pairs = np.frombuffer(data, "u1").reshape(-1, 2, self.row)
                yield pairs.swapaxes(0, 1).tobytes()

        return cut_blocks(ordered(), start - begin, end - start)


class OneLess(PlaceInOrder):
    """The elements of a tensor of float32, each less 1."""

    __slots__ = ("of",)

    def __init__(self, of: TensorRef) -> None:
        self.of = of

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return (self.of,)

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        import numpy as np

        for block in in_whole_elements(elements(self.of), 4):
            yield (np.frombuffer(block, "<f4") - np.float32(1)).tobytes()


def undone(ref: TensorRef, change: Change, heads: int | None) -> TensorRef | None:
    """A tensor as it was before the converter changed it, or None where its shape does
    not allow that change.

    `heads` is the number of heads of q or k.
    """
    if change.startswith("rotary"):
        return _with_halves(ref, heads)
    if change == "turned":
        return _turned(ref)
    # llama.cpp has the 1 of Gemma's norms in the weight: it is added in float32.
    if change == "one-more" and ref.dtype == _SINGLE and ref.storage.place is not None:
        storage = Storage(ref.storage.id, None, _SINGLE, ref.nbytes, OneLess(ref))
        return tensor_ref(storage, _SINGLE, ref.shape, ref.stride, 0)
    if change == "one-row":
        return _with_row(ref)
    return ref if not change else None


def _with_row(ref: TensorRef) -> TensorRef:
    """Return a vector as a matrix of one row; a matrix is that already."""
    if len(ref.shape) != 1:
        return ref
    return ref._replace(shape=(1, *ref.shape), stride=(ref.numel, *ref.stride))


def experts_of(ref: TensorRef) -> list[TensorRef] | None:
    """Return the matrices of a stack, each with a storage of its own, or None for what
    is no stack.
    """
    place = ref.storage.place
    # Each expert is a range of bytes, also of blocks: these never cross a matrix.
    is_whole = place is not None and place.nbytes == ref.nbytes
    is_stack = len(ref.shape) == 3 and ref.numel and is_whole
    if not is_stack or ref.shape[0] > _EXPERTS:
        return None
    assert place is not None
    count = ref.shape[0]
    size = ref.nbytes // count
    shape = ref.shape[1:]
    rows: list[TensorRef] = []
    for number in range(count):
        part = place.part(number * size, (number + 1) * size)
        storage = Storage(f"{ref.storage.id}.{number}", None, ref.dtype, size, part)
        rows.append(tensor_ref(storage, ref.dtype, shape, contiguous(shape), 0))
    return rows


def joined_heads(keys: TensorRef, values: TensorRef) -> TensorRef | None:
    """Return kv_b of DeepSeek of its two parts, or None where their shapes do not fit.

    Of each head it has the rows of the keys, which are the columns of their part, and
    then the rows of the values.
    """
    if len(keys.shape) != 3 or len(values.shape) != 3:
        return None
    if not keys.numel or not values.numel:
        return None
    # [heads, width, height]: the keys of a head lie transposed.
    heads, width, height = keys.shape
    if (values.shape[0], values.shape[2]) != (heads, width) or heads > _HEADS:
        return None
    if not all(row.dtype.block is None or can_unpack(row) for row in (keys, values)):
        return None
    keys = unpacked(keys)
    values = unpacked(values)
    kinds = {keys.dtype, values.dtype}
    dtype = kinds.pop() if len(kinds) == 1 else _SINGLE
    pieces: list[tuple[int, Place]] = []
    end = 0
    for head in range(heads):
        key_start = head * width * height
        # A transpose by its strides: bytes are moved when they are read.
        turned = tensor_ref(
            keys.storage,
            keys.dtype,
            (height, width),
            (1, height),
            key_start,
        )
        size = values.shape[1] * width
        plain = tensor_ref(
            values.storage,
            values.dtype,
            values.shape[1:],
            (width, 1),
            head * size,
        )
        for row in (turned, plain):
            pieces.append((end, place_of(row, dtype)))
            end += dtype.nbytes(row.numel)
    shape = (heads * (height + values.shape[1]), width)
    patched = Patched(None, end, pieces)
    storage = Storage(f"{keys.storage.id}+", None, dtype, end, patched)
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)


def _with_halves(ref: TensorRef, heads: int | None) -> TensorRef | None:
    place = ref.storage.place
    rows = ref.shape[0] if ref.shape else 0
    # Two halves of each head: an odd number of rows has none.
    if not heads or not rows or rows % (2 * heads):
        return None
    if place is None or place.nbytes != ref.nbytes:
        return None
    head = ref.nbytes // heads
    if head > _MOST:
        return None
    moved = HeadRows(place, ref.nbytes // rows, head)
    storage = Storage(ref.storage.id, None, ref.dtype, ref.nbytes, moved)
    return ref._replace(storage=storage)


def _turned(ref: TensorRef) -> TensorRef | None:
    if len(ref.shape) != 2:
        return None
    ref = unpacked(ref) if can_unpack(ref) else ref
    # A block holds elements of one row: columns cannot be taken out of it.
    if ref.dtype.block is not None:
        return None
    shape = ref.shape[::-1]
    return tensor_ref(ref.storage, ref.dtype, shape, contiguous(ref.shape)[::-1], 0)
