"""The place of a tensor that is changed span by span while it is read, with the
elements of other tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ckpt.bytes.executor import in_order
from ckpt.elements import crc as crcs
from ckpt.elements.blocks import elements
from ckpt.elements.computed import PlaceInSpans, can_cut, fill_span, place_of
from ckpt.model.dtypes import DType
from ckpt.model.places import Passed, Tally, cut_blocks
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef


class Made(NamedTuple):
    """A span of a derived place: its elements as bytes, and the number of finite ones
    beyond the range of their type.

    The bytes are valid until `close` is called.
    """

    data: memoryview
    overflowed: int
    close: Callable[[], None]


class Change(Protocol):
    """Computes a span of a derived place. Threads call it for several spans at once.
    Raises UnreadableError.
    """

    def __call__(self, block: memoryview, first: int) -> Made:
        """Return the new elements for the bytes of some elements, of which `first` is
        the number of the first one.
        """
        ...


class _Span(NamedTuple):
    """A span that was made, the CRC of what was read of the tensor that is changed, and
    the memory that it was read into.
    """

    made: Made
    crc: int
    held: bytearray


class Derived(PlaceInSpans):
    """Elements that are computed, span by span, from one tensor and from others that it
    is changed with.

    They have the order of the shape of `of`, and the type `dtype`. Spans begin at
    multiples of `step` elements. `change` computes one of them from the elements of
    `of`; it reads `others` by itself.
    """

    __slots__ = ("change", "dtype", "of", "others", "step")

    def __init__(
        self,
        of: TensorRef,
        others: Sequence[TensorRef],
        step: int,
        change: Change,
        dtype: DType,
    ) -> None:
        self.of = of
        self.others = tuple(others)
        self.step = step
        self.change = change
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.of.numel)

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return (self.of, *self.others)

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[memoryview]:
        """Yield `count` bytes from byte `start`, in blocks that are valid until the
        next one.

        Threads read and change its spans. `passed` is told of the record of the tensor
        that is changed, where it was read whole.
        """
        width, read_width = self.dtype.bits // 8, self.of.dtype.bits // 8
        first = start // width // self.step * self.step
        # Whole spans around the bytes that are asked for: their sums depend on nothing
        # else.
        last = min(-(-(start + count) // width // self.step) * self.step, self.of.numel)
        spans = [
            (begin, min(begin + self.step, last))
            for begin in range(first, last, self.step)
        ]
        # The CRC of what is read on the way is compared with that of the file, if all
        # is read.
        checksum = None
        if can_cut(self.of):
            if passed is not None and count == self.nbytes:
                checksum = place_of(self.of).checksum_of(0, self.of.nbytes)
            is_summed = checksum is not None
            parts = in_order(lambda ends: self._make_span(ends, is_summed), spans)
        else:
            # Such a tensor is read in order: threads would wait for each other.
            parts = self._spans_in_turn(spans)
        total = 0
        begin = first * width
        for part in parts:
            made = part.made
            if made.overflowed and tally is not None:
                tally(made.overflowed)
            total = (
                crcs.combine_crcs(total, part.crc, len(made.data) // width * read_width)
                if begin
                else part.crc
            )
            yield made.data[max(start - begin, 0) : start + count - begin]
            begin += len(made.data)
            made.close()
            # The memory is let go only after the block was taken.
            _IDLE.append(part.held)
        if checksum is not None and passed is not None:
            passed(checksum, total)

    def _make_span(self, ends: tuple[int, int], is_summed: bool) -> _Span:
        """Read a span and change it. It may lie in the memory that it was read into."""
        first, last = ends
        size = (last - first) * (self.of.dtype.bits // 8)
        held = _taken_memory(size)
        block = memoryview(held)[:size]
        fill_span(self.of, first, last, block)
        crc = zlib.crc32(block) if is_summed else 0
        return _Span(self.change(block, first), crc, held)

    def _spans_in_turn(self, spans: Sequence[tuple[int, int]]) -> Iterator[_Span]:
        """The spans of a tensor that is read from its beginning only."""
        if not spans:
            return
        stream = self._read_in_steps(spans[0][0], spans[-1][1])
        for (first, _), held in zip(spans, stream, strict=True):
            yield _Span(self.change(memoryview(held), first), 0, held)

    def _read_in_steps(self, first: int, last: int) -> Iterator[bytearray]:
        """The elements `first` to `last` of the tensor that is changed, in steps."""
        width = self.of.dtype.bits // 8
        size = self.step * width
        rest = bytearray()
        for block in cut_blocks(
            elements(self.of),
            first * width,
            (last - first) * width,
        ):
            rest += block
            while len(rest) >= size:
                yield rest[:size]
                del rest[:size]
        if rest:
            yield rest


_IDLE: list[bytearray] = []
"""Memory that no span uses: new memory costs more than reading into it."""


def _taken_memory(size: int) -> bytearray:
    """Memory of at least `size` bytes."""
    try:
        held = _IDLE.pop()
    except IndexError:
        return bytearray(size)
    return held if len(held) >= size else bytearray(size)
