"""The bytes of tensors of another size: rows below rows, and grids of numbers between
the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.elements.blocks import elements, in_whole_elements
from ckpt.elements.computed import Computed, PlaceInOrder
from ckpt.ext.resizing.grids import Resampling
from ckpt.model.dtypes import DType
from ckpt.model.places import Tally
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Stacked(PlaceInOrder):
    """The rows of two tensors, one below the other, as `dtype`."""

    __slots__ = ("_parts", "dtype")

    def __init__(self, upper: TensorRef, lower: TensorRef, dtype: DType) -> None:
        self._parts = (upper, lower)
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        return sum(self.dtype.nbytes(part.numel) for part in self._parts)

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return self._parts

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        for part in self._parts:
            yield from Computed(part, self.dtype).read_blocks(tally=tally)


class WithMeans(PlaceInOrder):
    """The rows of a tensor, and below them their mean, `more` times. The mean is added
    up as float64 and rounded once.
    """

    __slots__ = ("more", "of")

    def __init__(self, of: TensorRef, more: int) -> None:
        self.of = of
        self.more = more

    @property
    def nbytes(self) -> int:
        row = self.of.dtype.nbytes(prod(self.of.shape[1:]))
        return self.of.nbytes + self.more * row

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return (self.of,)

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        yield from elements(self.of, tally)
        row = self._mean()
        for _ in range(self.more):
            yield row

    def _mean(self) -> bytes:
        """The mean of the rows, as bytes of the type of the tensor."""
        import numpy as np

        ref = self.of
        width = prod(ref.shape[1:])
        total = np.zeros(width, np.float64)
        # Whole rows at a time, so that a matrix of a vocabulary is not held.
        size = max(1, ref.dtype.nbytes(width))
        for block in in_whole_elements(elements(ref), size):
            rows = cast.as_numbers(block, ref.dtype).reshape(-1, width)
            total += rows.sum(axis=0, dtype=np.float64)
        total /= ref.shape[0]
        return bytes(cast.round_numbers(total, ref.dtype, cast.Rows())[0])


class Resampled(PlaceInOrder):
    """The elements of a tensor on another grid. All of it is held in memory: such
    tensors are small.
    """

    __slots__ = ("how", "of")

    def __init__(self, of: TensorRef, how: Resampling) -> None:
        self.of = of
        self.how = how

    @property
    def nbytes(self) -> int:
        return self.of.dtype.nbytes(prod(self.how.shape))

    @property
    def tensors(self) -> tuple[TensorRef, ...]:
        return (self.of,)

    def _blocks(self, tally: Tally | None) -> Iterator[bytes]:
        import numpy as np

        data = b"".join(elements(self.of, tally))
        numbers = np.array(cast.as_numbers(data, self.of.dtype), np.float64)
        values = self.how.apply(numbers.reshape(self.of.shape))
        # Rounded once, to the dtype of PRETRAINED.
        result = np.ascontiguousarray(values, np.float64).reshape(-1)
        rounded, overflowed = cast.round_numbers(result, self.of.dtype, cast.Rows())
        if overflowed and tally is not None:
            tally(overflowed)
        yield bytes(rounded)
