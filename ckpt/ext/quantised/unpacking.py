"""Codes out of the words that they are packed in, and the parts of a logical tensor by
rows and columns.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import blocks, cast, fill
from ckpt.elements.blocks import is_dense
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnsupportedError
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

HELD = 32 << 20
"""The most bytes of packed codes of one tensor that are held whole while it is read by
columns.
"""
PIECE = 256
"""The columns of a larger one that are read at once: runs of one KiB."""
_PIECES = 3
"""The pieces that are held: threads are ahead of what is written by a few spans."""


def as_rows(ref: TensorRef, rows: int, columns: int) -> TensorRef:
    """Return a tensor as a matrix of rows and columns. Raises UnsupportedError where
    its elements do not lie in a row.
    """
    if ref.shape == (rows, columns):
        return ref
    assert prod(ref.shape) == rows * columns
    if not is_dense(ref):
        raise UnsupportedError("a part of a quantised weight does not lie in one piece")
    return ref._replace(shape=(rows, columns), stride=(columns, 1))


def as_bytes(ref: TensorRef) -> TensorRef:
    """Return elements of 8 bits as unsigned bytes, whatever they mean."""
    return ref._replace(dtype=BY_NAME["uint8"])


def read_part(ref: TensorRef, rows: range, columns: range) -> Array:
    """Return rows and columns of a matrix as numbers, of float32 where they are floats.
    Raises UnreadableError.
    """
    import numpy as np

    array = fill.array(ref, (rows, columns))
    is_float = array.dtype.kind == "f"
    return array.astype("<f4") if is_float and array.dtype != np.dtype("<f4") else array


def read_rows(ref: TensorRef, first: int, last: int) -> Array:
    """Return rows of a matrix as numbers. Raises UnreadableError."""
    return read_part(ref, range(first, last), range(ref.shape[1]))


class Columns:
    """A matrix that is read by columns. A small one is read once and held, of a large
    one a few pieces.
    """

    def __init__(self, ref: TensorRef) -> None:
        self._ref = ref
        columns = ref.shape[1]
        self._width = columns if ref.nbytes <= HELD else min(columns, PIECE)
        self._held: OrderedDict[int, Array] = OrderedDict()
        self._lock = threading.Lock()

    def read_columns(self, first: int, last: int) -> Array:
        """Return columns as rows. Raises UnreadableError."""
        import numpy as np

        parts: list[Array] = []
        for number in range(first // self._width, -(-last // self._width)):
            begin = number * self._width
            piece = self._piece(number)
            parts.append(piece[:, max(first - begin, 0) : last - begin])
        if len(parts) == 1:
            return np.ascontiguousarray(parts[0].T)
        return np.concatenate([part.T for part in parts])

    def _piece(self, number: int) -> Array:
        """Return some columns, which threads that read those next to them need too."""
        rows, columns = self._ref.shape
        # Threads decode neighbouring spans, which lie in one piece: it is read once.
        with self._lock:
            if number not in self._held:
                begin = number * self._width
                end = min(begin + self._width, columns)
                while len(self._held) >= _PIECES:
                    self._held.popitem(last=False)
                self._held[number] = read_part(
                    self._ref,
                    range(rows),
                    range(begin, end),
                )
            return self._held[number]


def unpack_bits(words: Array, bits: int, count: int) -> Array:
    """Return the first `count` codes of each row, which lie bit by bit from the lowest
    one on.
    """
    import numpy as np

    flat = np.ascontiguousarray(words).view("u1")
    # Whole bytes are taken in a few steps; any other number of bits, bit by bit.
    if bits == 8:
        return flat[:, :count]
    if bits == 4:
        return unpack_halves(flat)[:, :count]
    if bits == 2:
        # Four codes of a byte are moved into the four bytes of a word.
        wide = flat.astype("<u4")
        wide |= wide << 12
        wide |= wide << 6
        wide &= 0x03030303
        return wide.view("u1")[:, :count]
    # [rows, codes, bits]: the lowest bit of a code comes first.
    loose = np.unpackbits(flat, axis=1, bitorder="little")
    loose = loose[:, : loose.shape[1] // bits * bits].reshape(len(flat), -1, bits)
    codes = np.zeros(loose.shape[:2], "u1")
    for bit in range(bits):
        codes |= loose[:, :, bit] << bit
    return codes[:, :count]


def unpack_halves(flat: Array, *, high_first: bool = False) -> Array:
    """Return the two codes of each byte of rows, the lower half first."""
    # Both halves of a byte are moved into the two bytes of a word, the lower one first.
    wide = flat.astype("<u2")
    if high_first:
        wide = (wide >> 4) | (wide << 8)
    else:
        wide |= wide << 4
    wide &= 0x0F0F
    codes: Array = wide.view("u1")
    return codes


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of float4 e2m1, whose highest bit is the sign. Source: OCP Microscaling
Formats.
"""


def read_small(ref: TensorRef) -> bytes:
    """Return all bytes of a small part, without numpy, whose import takes longer.
    Raises UnreadableError.
    """
    return b"".join(blocks.elements(ref))


@cache
def _fp4_table() -> Array:
    """The numbers of the 16 codes of float4."""
    import numpy as np

    return np.array([*FP4, *[-number for number in FP4]], "<f4")


@cache
def _float8_table(name: str) -> Array:
    """The numbers of the 256 codes of an 8-bit float."""
    import numpy as np

    return np.array(cast.as_numbers(bytes(range(256)), BY_NAME[name]), "<f4")


def power_of(codes: Array, bias: int = 127) -> Array:
    """Return the scales of bytes that are exponents of two, with the bias that the OCP
    has.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        powers = np.ldexp(np.float32(1), codes.astype("<i4") - bias)
        scales: Array = powers.astype("<f4")
    return scales


Formula = Callable[..., "Array"]


def of_fp4(codes: Array, scale: Array) -> Array:
    """The formula of float4: its number times scale."""
    return look_up(_fp4_table(), codes, scale)


def of_doubled_fp4(codes: Array, scale: Array) -> Array:
    """The formula of float4 with half of a scale, which may be beyond float32: twice
    its number times half the scale.
    """
    return look_up(_fp4_table() * 2, codes, scale)


def of_float8(name: str) -> Formula:
    """Return the formula of an 8-bit float: its number times scale."""
    return partial(_of_float8, name)


def _of_float8(name: str, codes: Array, scale: Array) -> Array:
    return look_up(_float8_table(name), codes, scale)


def look_up(table: Array, codes: Array, scale: Array) -> Array:
    """Return the numbers that a table gives codes, times the scales of their cells."""
    import numpy as np

    product: Array = np.take(table, codes) * scale
    return product


def shifted(codes: Array, scale: Array, zero: Array) -> Array:
    """The formula of integers: code less zero point, times scale."""
    import numpy as np

    product: Array = (codes.astype("<f4") - zero.astype("<f4")) * scale
    return np.asarray(product, "<f4")
