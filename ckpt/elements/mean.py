"""Adding elements of several tensors as float64, span by span, and rounding the sums. Reads no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.dtypes import DType
from ckpt.elements import cast
from ckpt.elements.cast import Rows

if TYPE_CHECKING:
    from ckpt.elements.cast import Array

ELEMENTS = 1 << 17
"""Elements per span: few enough for the cache, and enough that threads do not wait for each other."""
_IDLE: list[Rows] = []
"""Rows that no span uses. Threads come and go."""


class Span:
    """A span of `count` elements of a mean: the sum of spans of tensors, each times its share.

    As float64, elements on which all tensors agree stay as they are: the sum of their shares would change the last bit.
    `close` lets the next span use its memory.
    """

    def __init__(self, count: int, dtype: DType) -> None:
        try:
            self._rows = _IDLE.pop()
        except IndexError:
            self._rows = Rows()
        self._dtype = dtype
        self._term, self._total = self._rows.wide(0, count), self._rows.wide(1, count)
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
            np.copyto(self._term, cast.numbers(block, dtype, 0, self._rows))
            if self._dtype.name == "float64":
                self._compare(self._term.view("<u8"))
            if self._is_empty:
                np.multiply(self._term, share, out=self._total)
            else:
                self._term *= share
                self._total += self._term
        self._is_empty = False

    def _compare(self, bits: Array) -> None:
        if self._first is None:
            self._first = bits.copy()
            self._agree = bits == bits
        else:
            self._agree &= bits == self._first

    def rounded(self) -> tuple[memoryview, int]:
        """(the mean as its dtype, how many finite elements are beyond the range of that)."""
        if self._first is not None and self._agree is not None:
            self._total.view("<u8")[self._agree] = self._first[self._agree]
        return cast.rounded(self._total, self._dtype, self._rows)

    def close(self) -> None:
        """End the use of its memory, and of the bytes that `rounded` gave."""
        _IDLE.append(self._rows)
