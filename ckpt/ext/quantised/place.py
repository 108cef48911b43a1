"""The place of the elements of a logical tensor, which are decoded span by span while
they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.bytes.executor import in_order
from ckpt.elements.computed import PlaceInSpans
from ckpt.ext.quantised.matrix import FLOAT32, Matrix, decode_rows
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.places import Passed, Tally
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef, tensor_ref


class _Span(NamedTuple):
    """Decoded rows as bytes, and what a cast lost in them."""

    data: memoryview
    overflowed: int
    vanished: int


class Decoded(PlaceInSpans):
    """The elements of a logical tensor as `dtype`, decoded from its parts."""

    __slots__ = ("dtype", "matrix", "parts")

    def __init__(
        self,
        matrix: Matrix,
        parts: Sequence[TensorRef],
        dtype: DType,
    ) -> None:
        self.matrix = matrix
        self.parts = tuple(parts)
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.matrix.rows * self.matrix.columns)

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return self.parts

    def widened(self) -> Decoded | None:
        # The numbers are rounded to `own` before they are those of `dtype`.
        is_own = self.dtype == self.matrix.own
        is_narrow = self.dtype.name == "float16"
        return (
            Decoded(self.matrix, self.parts, FLOAT32) if is_own and is_narrow else None
        )

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: Tally | None = None,
        passed: Passed | None = None,
    ) -> Iterator[memoryview]:
        """Yield `count` bytes from byte `start`. Threads decode the spans ahead."""
        matrix, step = self.matrix, self.matrix.step
        row = self.dtype.nbytes(matrix.columns)
        if not count or not row:
            return
        # Spans begin at the same rows for any part that is read: their sums are the
        # same.
        first = start // row // step * step
        last = min(matrix.rows, -(-(start + count) // row))
        spans = [
            (begin, min(begin + step, matrix.rows))
            for begin in range(first, last, step)
        ]
        reader = matrix.make_reader()

        def decode(ends: tuple[int, int]) -> _Span:
            numbers = decode_rows(matrix, reader, *ends, self.dtype)
            return _Span(
                numbers.words.view("u1").data,
                numbers.overflowed,
                numbers.vanished,
            )

        begin = first * row
        for span in in_order(decode, spans):
            if tally is not None and (span.overflowed or span.vanished):
                tally(span.overflowed, span.vanished)
            yield span.data[max(start - begin, 0) : start + count - begin]
            begin += len(span.data)


def decoded_tensor(
    name: str,
    shape: tuple[int, ...],
    matrix: Matrix,
    parts: Sequence[TensorRef],
    dtype: DType,
) -> TensorRef:
    """Return a logical tensor as a plain one, whose elements are decoded when they are
    read.
    """
    place = Decoded(matrix, parts, dtype)
    device = next((part.device for part in parts if part.device is not None), None)
    storage = Storage(name, device, dtype, place.nbytes, place)
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)
