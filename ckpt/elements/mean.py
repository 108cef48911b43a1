"""Adding elements of several tensors as float64, span by span, and rounding the sum. Reads no file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckpt.dtypes import DType
from ckpt.elements import cast

if TYPE_CHECKING:
    from ckpt.elements.cast import Array

ELEMENTS = 1 << 17
"""Elements per step: few enough for the cache, and enough that threads do not wait for each other."""


class Rows:
    """The memory for one span: the bytes of a tensor, its elements, and the sum. It is used for one span after the other."""

    __slots__ = ("_block", "_floats")

    def __init__(self) -> None:
        import numpy as np

        self._block = bytearray()
        self._floats: Array = np.empty((2, 0))

    def block(self, size: int) -> memoryview:
        """Memory for `size` bytes."""
        if len(self._block) < size:
            self._block = bytearray(size)
        return memoryview(self._block)[:size]

    def floats(self, count: int) -> Array:
        """Two rows of `count` float64."""
        import numpy as np

        if self._floats.shape[1] < count:
            self._floats = np.empty((2, count))
        return self._floats[:, :count]


_IDLE: list[Rows] = []
"""Rows that no thread uses: new memory costs more than the arithmetic, and threads come and go."""


def with_rows(work: Callable[[Rows], tuple[bytes, int, list[int]]]) -> tuple[bytes, int, list[int]]:
    """Do a span of work with rows of its own."""
    try:
        rows = _IDLE.pop()
    except IndexError:
        rows = Rows()
    try:
        return work(rows)
    finally:
        _IDLE.append(rows)


class Total:
    """The sum of spans of `count` elements, each times its share.

    As float64, elements on which all spans agree stay as they are: the sum of their shares would change the last bit.
    """

    def __init__(self, rows: Rows, count: int, dtype: DType) -> None:
        self._dtype = dtype
        self._term, self._total = rows.floats(count)
        self._is_empty = True
        self._first: Array | None = None
        self._agree: Array | None = None

    def add(self, block: bytes | memoryview, dtype: DType, share: float) -> None:
        """Add a span of elements of a type."""
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(self._term, cast.numbers(block, dtype))
            if self._dtype.name == "float64":
                self._compare(self._term)
            if self._is_empty:
                np.multiply(self._term, share, out=self._total)
            else:
                self._term *= share
                self._total += self._term
        self._is_empty = False

    def _compare(self, numbers: Array) -> None:
        bits = numbers.view("<u8")
        if self._first is None:
            self._first = bits.copy()
        elif self._agree is None:
            self._agree = bits == self._first
        else:
            self._agree &= bits == self._first

    def rounded(self) -> tuple[bytes, int]:
        """(the mean as its dtype, how many finite elements are beyond the range of that)."""
        if self._first is not None and self._agree is not None:
            self._total.view("<u8")[self._agree] = self._first[self._agree]
        elif self._first is not None:
            self._total.view("<u8")[:] = self._first
        return cast.rounded(self._total, self._dtype)
