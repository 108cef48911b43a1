"""Fingerprints of tensors that no change of layout changes: sums over slices of the
mixed bits of each element.

The bits of an element become 64 bits, and the 64 bits of all elements of a slice are
added modulo 2^64. So the sum of a slice is the same in any order of its elements, and
sums of parts add up. A fingerprint only proposes; it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.elements.blocks import elements
from ckpt.model.dtypes import DType
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

STEP = 1 << 16
"""Elements that are mixed at once: their 64 bits stay in the cache."""
LEAST = 4
"""The fewest elements of a slice that is worth a sum."""
LEAST_OF_PAIRS = 16
"""The same for slices that keep two dimensions, of which there are many."""

Axes = tuple[int, ...]
"""The dimensions of a tensor that the slices of one family keep; none for the whole
tensor.
"""


class Fibres(NamedTuple):
    """The sums of one tensor, read as one dtype. `families` has the sums of each
    family, in the order of the kept axes.

    `first` are the bits of its first element. `is_constant` says that all elements have
    these bits, as the sum tells.
    """

    shape: tuple[int, ...]
    first: int
    total: int
    is_constant: bool
    families: dict[Axes, Array]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)


def families_of(shape: Sequence[int]) -> list[Axes]:
    """The families of slices of a shape that are worth a sum: one kept dimension, or
    two of three and more.
    """
    numel = prod(shape)
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    if len(wide) < 2:
        return []
    # A sum over a few elements is equal by chance, and costs more than they do.
    single = [(axis,) for axis in wide if numel // shape[axis] >= LEAST]
    pairs = combinations(wide, 2) if 3 <= len(wide) <= 4 else ()
    double = [
        pair
        for pair in pairs
        if numel // (shape[pair[0]] * shape[pair[1]]) >= LEAST_OF_PAIRS
    ]
    return [*single, *double]


def mix_bits(bits: Array, out: Array | None = None) -> Array:
    """The bits of elements as 64 mixed bits each."""
    import numpy as np

    # A number of 16 bits is looked up: a table of all of them is half a megabyte.
    if bits.dtype.itemsize <= 2:
        return np.take(_mixed_table(), bits, out=out, mode="clip")
    if bits.dtype.itemsize == 16:
        # Elements of 16 bytes are two halves: `[…, 2]`. Both must count.
        halves = bits.view(np.uint64).reshape(*bits.shape, 2)
        low = _scramble_numbers(halves[..., 0].copy())
        return _scramble_numbers(low ^ halves[..., 1])
    wide = np.empty(bits.shape, np.uint64) if out is None else out
    np.copyto(wide, bits)
    return _scramble_numbers(wide)


@cache
def _mixed_table() -> Array:
    """The mixed bits of each number of 16 bits."""
    import numpy as np

    return _scramble_numbers(np.arange(1 << 16, dtype=np.uint64))


def _scramble_numbers(wide: Array) -> Array:
    """Numbers of 64 bits, mixed where they are: small changes of one change all of its
    sum.
    """
    import numpy as np

    # numpy's numbers of 64 bits overflow in silence, which is the sum modulo 2^64.
    wide += np.uint64(0x9E3779B97F4A7C15)
    wide *= np.uint64(0xBF58476D1CE4E5B9)
    wide ^= wide >> np.uint64(29)
    wide *= np.uint64(0x94D049BB133111EB)
    wide ^= wide >> np.uint64(32)
    return wide


def mixed_number(bits: int, width: int) -> int:
    """The mixed bits of one element of so many bytes."""
    import numpy as np

    data = np.frombuffer(bits.to_bytes(width, "little"), raw_kind(width))
    return int(mix_bits(data)[0])


def raw_kind(width: int) -> str:
    """The numpy type of elements of so many bytes as bits."""
    return f"<u{width}" if width in (1, 2, 4, 8) else f"V{width}"


def fibres_of(ref: TensorRef, dtype: DType) -> Fibres:
    """The sums of a tensor whose elements are read as `dtype`. Raises
    UnreadableError.
    """
    import numpy as np

    shape = ref.shape
    families = families_of(shape)
    sums = {
        family: np.zeros([shape[axis] for axis in family], np.uint64)
        for family in families
    }
    total = 0
    first = None
    for block in blocks_in_rows(ref, dtype):
        if first is None:
            first = int.from_bytes(block.bits[:1].tobytes(), "little")
        hashes = mix_bits(block.bits)
        rows = hashes.reshape(block.shape)
        # The rows of a block are added once for all families that do not keep them.
        below = np.add.reduce(rows, axis=0)
        total += int(np.add.reduce(below, axis=None))
        for family in families:
            _add_block(sums[family], family, block, rows, below)
    total %= 1 << 64
    # A tensor is constant if its sum is that of its first element, so many times.
    width = dtype.bits // 8
    is_constant = (
        first is not None
        and ref.numel * mixed_number(first, width) % (1 << 64) == total
    )
    return Fibres(shape, first or 0, total, is_constant, sums)


class Rows(NamedTuple):
    """Elements in order: of the indices `outer`, the rows `low` to `high` of the next
    dimension, all of the rest.
    """

    outer: tuple[int, ...]
    low: int
    high: int
    shape: tuple[int, ...]
    bits: Array


def _add_block(
    sums: Array,
    family: Axes,
    block: Rows,
    rows: Array,
    below: Array,
) -> None:
    """Add the elements of a block to the sums of a family."""
    import numpy as np

    # A block has one index of each outer axis, some rows of the axis at `level`, and
    # all of the inner ones.
    level = len(block.outer)
    place: list[int | slice] = [block.outer[axis] for axis in family if axis < level]
    keeps_rows = level in family
    part = rows if keeps_rows else below
    if keeps_rows:
        place.append(slice(block.low, block.high))
    # `below` lacks the axis of the rows: its first axis is the next one.
    start = level if keeps_rows else level + 1
    kept = {axis - start for axis in family if axis >= start}
    others = tuple([axis for axis in range(part.ndim) if axis not in kept])
    target = sums[(*place, ...)]
    own = np.add.reduce(part, axis=others) if others else part
    np.add(target, own, out=target)


def blocks_in_rows(ref: TensorRef, dtype: DType) -> Iterator[Rows]:
    """The elements of a tensor in blocks of whole rows of one of its dimensions."""
    import numpy as np

    if not ref.numel:
        return
    shape = ref.shape or (1,)
    # The outermost axis of which one index fits into a block: its rows are cut.
    level = 0
    while level < len(shape) - 1 and prod(shape[level + 1 :]) > STEP:
        level += 1
    inner = prod(shape[level + 1 :])
    width = dtype.bits // 8
    kind = raw_kind(width)
    most = max(1, STEP // inner)
    stream = _Stream(ref, dtype)
    for number in range(prod(shape[:level])):
        outer: tuple[int, ...] = ()
        if level:
            indices = np.unravel_index(number, shape[:level])
            outer = tuple([int(index) for index in indices])
        for low in range(0, shape[level], most):
            high = min(low + most, shape[level])
            bits = np.frombuffer(stream.take((high - low) * inner * width), kind)
            yield Rows(outer, low, high, (high - low, *shape[level + 1 :]), bits)


class _Stream:
    """The elements of a tensor as bytes of a dtype, taken from first to last."""

    def __init__(self, ref: TensorRef, dtype: DType) -> None:
        self._blocks = (
            self._cast_blocks(ref, dtype) if ref.dtype != dtype else elements(ref)
        )
        self._rest = memoryview(b"")

    @staticmethod
    def _cast_blocks(ref: TensorRef, dtype: DType) -> Iterator[bytes]:
        width = ref.dtype.bits // 8
        rest = b""
        for block in elements(ref):
            block = rest + block
            # Blocks of a file may end inside of an element: what is left waits for the
            # next one.
            whole = len(block) - len(block) % width
            rest = block[whole:]
            yield cast.cast_and_count(block[:whole], ref.dtype, dtype)[0]

    def take(self, count: int) -> bytes | memoryview:
        """The next `count` bytes."""
        # The common case copies nothing: a view of the block that is there.
        if len(self._rest) >= count:
            taken, self._rest = self._rest[:count], self._rest[count:]
            return taken
        parts: list[bytes | memoryview] = [self._rest]
        missing = count - len(self._rest)
        while missing:
            block = memoryview(next(self._blocks))
            parts.append(block[:missing])
            self._rest = block[missing:]
            missing -= min(missing, len(block))
        return b"".join(parts)
