"""Elements of a tensor in another order as the bytes of a source, which gathers them
block by block when they are read.
"""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

from ckpt.bytes.source import BaseSource, Source
from ckpt.ext.layouts.fibres import raw_kind
from ckpt.ext.layouts.formulas import computed_elements
from ckpt.ext.layouts.proof import read_elements
from ckpt.model.dtypes import DType
from ckpt.model.errors import CutOffError
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BLOCK = 24 << 20
"""Bytes that are gathered at once: whole matrices, for columns of many rows are short
runs.
"""
HELD = 72 << 20
"""Bytes of the blocks of all sources that are held."""


class _Blocks:
    """The blocks that were gathered last, of all sources."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._blocks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()

    def take(self, key: tuple[int, int]) -> memoryview | None:
        """A block that is held."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def hold(self, key: tuple[int, int], block: memoryview) -> None:
        """Hold a block in the place of the one that was not used for longest."""
        self._blocks[key] = block
        while len(self._blocks) > 1 and sum(map(len, self._blocks.values())) > HELD:
            self._blocks.popitem(last=False)

    def drop(self, owner: int) -> None:
        """Hold no block of a source any more."""
        for key in [key for key in self._blocks if key[0] == owner]:
            del self._blocks[key]


_BLOCKS = _Blocks()


class Gathered(BaseSource):
    """The elements of a flat tensor from `first` on, in the order of (size, step) loops
    over it. Steps may be negative.
    """

    def __init__(
        self,
        flat: TensorRef,
        first: int,
        loops: tuple[tuple[int, int], ...],
    ) -> None:
        place = flat.storage.place
        source = None if place is None else place.first_source()
        self.name = BaseSource.name if source is None else source.name
        self._flat = flat
        self._first = first
        self._loops = loops
        self._width = flat.dtype.bits // 8
        self.size = prod([size for size, _ in loops]) * self._width
        # The innermost loops that fit into a block are gathered together.
        level = 0
        while level < len(loops):
            inner = prod([size for size, _ in loops[level:]])
            if inner * self._width <= BLOCK:
                break
            level += 1
        self._level = level
        self._inner = prod([size for size, _ in loops[level:]])
        """Elements of one index of the loop that blocks cut."""
        self._rows = loops[level - 1][0] if level else 1
        self._count = max(1, BLOCK // (self._inner * self._width)) if level else 1

    def __del__(self) -> None:
        # The id of a source that is gone may be another one's: its blocks must not
        # stay.
        with _BLOCKS.lock:
            _BLOCKS.drop(id(self))

    def read(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise CutOffError("a layout ends before the bytes that are read")
        position = 0
        while position < len(buffer):
            start, block = self._block_at((offset + position) // self._width)
            low = offset + position - start * self._width
            part = block[low : low + len(buffer) - position]
            buffer[position : position + len(part)] = part
            position += len(part)

    def _block_at(self, element: int) -> tuple[int, memoryview]:
        """The block with an element: its first element, and its bytes."""
        # `row` counts in the loop that blocks cut, `outer` in all loops around it.
        outer, row = divmod(element // self._inner, self._rows)
        low = row // self._count * self._count
        start = (outer * self._rows + low) * self._inner
        # Under the lock: threads of a writer that need one block gather it once.
        with _BLOCKS.lock:
            held = _BLOCKS.take((id(self), start))
            if held is None:
                held = self._gather_block(outer, low)
                _BLOCKS.hold((id(self), start), held)
        return start, held

    def _gather_block(self, outer: int, low: int) -> memoryview:
        """The elements from row `low` on of the loop that is cut, at one index of the
        loops around it.
        """
        # The digits of `outer` are the indices of the loops around, the innermost
        # first.
        first, rest = self._first, outer
        for size, step in reversed(self._loops[: max(0, self._level - 1)]):
            rest, index = divmod(rest, size)
            first += index * step
        loops = self._loops[self._level :]
        if self._level:
            step = self._loops[self._level - 1][1]
            first += low * step
            loops = ((min(self._count, self._rows - low), step), *loops)
        elements: Array = read_elements(self._flat, first, loops)
        return memoryview(elements.reshape(-1).view("u1").data).toreadonly()

    def check_unchanged(self) -> None:
        place = self._flat.storage.place
        source = None if place is None else place.first_source()
        if source is not None:
            source.check_unchanged()


class Calculated(BaseSource):
    """The elements of another source after a formula."""

    def __init__(
        self,
        source: Source,
        offset: int,
        dtype: DType,
        formula: str,
        count: int,
    ) -> None:
        self.name = source.name
        self._source = source
        self._offset = offset
        self._dtype = dtype
        self._formula = formula
        self.size = count * (dtype.bits // 8)

    def read(self, offset: int, count: int) -> bytes:
        import numpy as np

        width = self._dtype.bits // 8
        # Whole elements around the bytes that are asked for.
        first = offset // width
        last = -(-(offset + count) // width)
        data = self._source.read(self._offset + first * width, (last - first) * width)
        raw = np.frombuffer(data, raw_kind(width))
        made = computed_elements(raw, self._dtype, self._formula).tobytes()
        skipped = offset - first * width
        return made[skipped : skipped + count]

    def check_unchanged(self) -> None:
        self._source.check_unchanged()


class Repeated(BaseSource):
    """The bytes of one element, so many times."""

    def __init__(self, element: bytes, count: int) -> None:
        self._element = element
        self.size = len(element) * count

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        width = len(self._element)
        first = offset % width
        times = -(-(first + count) // width)
        return (self._element * times)[first : first + count]
