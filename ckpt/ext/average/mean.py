"""The mean of several tensors: adding their elements as float64, span by span, and
rounding the sums.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpt.bytes.executor import in_order
from ckpt.elements import cast
from ckpt.elements import crc as crcs
from ckpt.elements.blocks import elements
from ckpt.elements.cast import Rows
from ckpt.elements.computed import PlaceInSpans, can_cut, fill_span, place_of
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.places import Checksum, Passed, Tally, cut_blocks
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    from ckpt.elements.cast import Array

ELEMENTS = 1 << 17
"""Elements per span: few enough for the cache, and enough that threads do not wait for
each other.
"""
_IDLE: list[Rows] = []
"""Rows that no span uses. Threads come and go."""


def _number_of(dtype: DType) -> DType:
    """The dtype of the numbers of an element: a complex one is two of half its width,
    which are averaged apart.
    """
    if dtype.kind != "complex":
        return dtype
    return BY_NAME[f"float{dtype.bits // 2}"]


class Span:
    """A span of `count` elements of a mean: the sum of spans of tensors, each times its
    share.

    As float64, elements on which all tensors agree stay as they are: the sum of their
    shares would change the last bit. `close` lets the next span use its memory.
    """

    def __init__(self, count: int, dtype: DType) -> None:
        try:
            self._rows = _IDLE.pop()
        except IndexError:
            self._rows = Rows()
        count *= dtype.bits // _number_of(dtype).bits
        self._dtype = _number_of(dtype)
        self._term = self._rows.wide(0, count)
        self._total = self._rows.wide(1, count)
        self._is_empty = True
        self._first: Array | None = None
        self._agree: Array | None = None

    def block(self, size: int) -> memoryview:
        """Memory for the bytes of one tensor."""
        block: memoryview = self._rows.row("u1", 0, size).data
        return block

    def add(self, block: bytes | memoryview, dtype: DType, share: float) -> None:
        """Add elements of a type."""
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):
            # Into float64 first: products and sums of narrow types would round each
            # time.
            number = _number_of(dtype)
            np.copyto(self._term, cast.as_numbers(block, number, 0, self._rows))
            if self._dtype.name == "float64":
                self._compare_bits(self._term.view("<u8"))
            if self._is_empty:
                np.multiply(self._term, share, out=self._total)
            else:
                self._term *= share
                self._total += self._term
        self._is_empty = False

    def _compare_bits(self, bits: Array) -> None:
        if self._first is None:
            self._first = bits.copy()
            # All True at first: the bits of NaN are equal to themselves too.
            self._agree = bits == bits
        else:
            self._agree &= bits == self._first

    def rounded(self) -> tuple[memoryview, int]:
        """(the mean as its dtype, how many finite elements are beyond the range of
        that).
        """
        # If all tensors agree, the bits of the first one are the mean.
        if self._first is not None and self._agree is not None:
            self._total.view("<u8")[self._agree] = self._first[self._agree]
        return cast.round_numbers(self._total, self._dtype, self._rows)

    def close(self) -> None:
        """End the use of its memory, and of the bytes that `rounded` gave."""
        _IDLE.append(self._rows)


class Mean(PlaceInSpans):
    """The weighted mean of tensors of one shape, element by element in the order of
    that shape, as `dtype`.

    `tensors` are added as float64 in this order, each times its share of `shares`.
    """

    __slots__ = ("_tensors", "dtype", "shares")

    def __init__(
        self,
        tensors: Sequence[TensorRef],
        shares: Sequence[float],
        dtype: DType,
    ) -> None:
        self._tensors = tuple(tensors)
        self.shares = tuple(shares)
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self._tensors[0].numel)

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return self._tensors

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[memoryview]:
        """Yield `count` bytes from byte `start`, in blocks that are valid until the
        next one.

        Threads read and add its spans. `passed` is told of each record that was read
        whole on the way.
        """
        width = self.dtype.bits // 8
        first = start // width
        last = -(-(start + count) // width)
        is_cut = all(map(can_cut, self.tensors))
        # Checksums are those of whole records: a part has none.
        is_whole = is_cut and passed is not None and count == self.nbytes
        checksums: list[Checksum | None] = []
        for ref in self.tensors:
            place = place_of(ref)
            checksum = place.checksum_of(0, ref.nbytes) if is_whole else None
            checksums.append(checksum)
        if is_cut:
            summed = [checksum is not None for checksum in checksums]
            spans = [
                (begin, min(begin + ELEMENTS, last))
                for begin in range(first, last, ELEMENTS)
            ]
            parts = in_order(partial(self._averaged, summed), spans)
        else:
            parts = self._averaged_in_turn(first, last)
        totals: list[int] = []
        begin = first * width
        for part in parts:
            if part.overflowed and tally is not None:
                tally(part.overflowed)
            elements_read = len(part.data) // width
            sizes = [elements_read * (ref.dtype.bits // 8) for ref in self.tensors]
            # The CRC of all spans so far, by the length of what was read in this one.
            if totals:
                totals = list(map(crcs.combine_crcs, totals, part.sums, sizes))
            else:
                totals = part.sums
            yield part.data[max(start - begin, 0) : start + count - begin]
            begin += len(part.data)
            part.span.close()
        for checksum, crc in zip(checksums, totals, strict=False):
            if checksum is not None and passed is not None:
                passed(checksum, crc)

    def _averaged(self, summed: Sequence[bool], ends: tuple[int, int]) -> _Averaged:
        """A span, with the CRC of what was read of the tensors that are `summed`, and 0
        for the others.
        """
        first, last = ends
        span = Span(last - first, self.dtype)
        sums: list[int] = []
        for ref, share, is_summed in zip(
            self.tensors,
            self.shares,
            summed,
            strict=True,
        ):
            block = span.block((last - first) * (ref.dtype.bits // 8))
            fill_span(ref, first, last, block)
            sums.append(zlib.crc32(block) if is_summed else 0)
            span.add(block, ref.dtype, share)
        return _Averaged(span, *span.rounded(), sums)

    def _averaged_in_turn(self, first: int, last: int) -> Iterator[_Averaged]:
        """The spans of tensors that are read from their beginning only."""
        streams = [_in_steps(ref, first, last) for ref in self.tensors]
        for begin in range(first, last, ELEMENTS):
            span = Span(min(ELEMENTS, last - begin), self.dtype)
            rows = zip(self.tensors, self.shares, streams, strict=True)
            for ref, share, stream in rows:
                span.add(next(stream), ref.dtype, share)
            yield _Averaged(span, *span.rounded(), [])


class _Averaged(NamedTuple):
    """A span of a mean: its elements as bytes, how many overflowed, and the CRC of what
    was read of each tensor.
    """

    span: Span
    data: memoryview
    overflowed: int
    sums: list[int]


def _in_steps(ref: TensorRef, first: int, last: int) -> Iterator[bytes]:
    """The elements `first` to `last` of a tensor, in steps of a mean."""
    width = ref.dtype.bits // 8
    step = ELEMENTS * width
    rest = bytearray()
    # Blocks of a stream have any size: spans of all tensors must begin alike.
    for block in cut_blocks(elements(ref), first * width, (last - first) * width):
        rest += block
        while len(rest) >= step:
            yield bytes(memoryview(rest)[:step])
            del rest[:step]
    if rest:
        yield bytes(rest)
