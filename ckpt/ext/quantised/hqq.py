"""The weights of HQQ: groups of codes, packed along the first dimension, beside tensors
that say how.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import cast
from ckpt.elements.blocks import is_dense
from ckpt.ext.quantised.matrix import Cells, Matrix, rounded
from ckpt.ext.quantised.schemes import SCALES, Given, MisfitError, Planned
from ckpt.ext.quantised.unpacking import as_rows, read_part, read_rows, read_small
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS, TensorRef
from ckpt.model.text import show

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_PACKINGS = {
    "8bit_u8": (8, "uint8", 1),
    "4bit_u8": (4, "uint8", 2),
    "3bit_32": (3, "int32", 10),
    "2bit_u8": (2, "uint8", 4),
    "1bit_u8": (1, "uint8", 8),
}
"""The name of a packing -> the bits of a code, the dtype of a word, the codes of a
word. Source: hqq, core/bitpack.py.
"""
_NOTE = 64
"""The most bytes of a tensor that says how codes are packed."""


class _Layout(NamedTuple):
    """The codes as rows and columns, of which each row (axis 1) or each column (axis 0)
    is a group.
    """

    bits: int
    per_word: int
    axis: int
    rows: int
    columns: int


class _Groups:
    """Codes that lie in words along the rows: the first word holds the first row in its
    highest bits, and later rows below.
    """

    def __init__(self, given: Given, layout: _Layout) -> None:
        self._layout = layout
        self._words = given.parts["codes"]
        # Each row of codes is a group along axis 1, each column along axis 0.
        shape = (layout.rows, 1) if layout.axis else (1, layout.columns)
        self._scale = as_rows(given.parts["scale"], *shape)
        self._zero = as_rows(given.parts["zero"], *shape)

    def read_codes(self, first: int, last: int) -> Array:
        import numpy as np

        layout = self._layout
        height = self._words.shape[0]
        parts: list[Array] = []
        while first < last:
            # Row `place × height + begin` of the codes lies in row `begin` of the
            # words.
            place, begin = divmod(first, height)
            end = min(height, begin + last - first)
            # HQQ packs the first rows into the highest bits.
            shift = (layout.per_word - 1 - place) * layout.bits
            words = read_rows(self._words, begin, end) >> shift
            parts.append((words & ((1 << layout.bits) - 1)).astype("u1"))
            first += end - begin
        return np.concatenate(parts)

    def read_cells(self, first: int, last: int) -> Cells:
        import numpy as np

        columns = self._layout.columns
        both = (self._scale, self._zero)
        if not self._layout.axis:
            parts = tuple([read_rows(ref, 0, 1) for ref in both])
            return Cells(np.zeros(last - first, np.intp), np.arange(columns), parts)
        rows = range(first, last)
        parts = tuple([read_part(ref, rows, range(1)) for ref in both])
        return Cells(np.arange(last - first), np.zeros(columns, np.intp), parts)


def _less_zero(own: DType, codes: Array, scale: Array, zero: Array) -> Array:
    """The formula of HQQ: code less zero point, which is rounded, times scale."""
    apart = rounded(codes.astype("<f4") - zero, own)
    product: Array = apart * scale
    return product


def plan_hqq(given: Given) -> Planned:
    """Plan a weight of HQQ. Raises MisfitError."""
    codes = given.require("codes")
    scale = given.require("scale")
    zero = given.require("zero")
    if not given.can_read:
        raise MisfitError("its shape is in a tensor that was not read")
    packing = _text_of(given, "packing")
    if packing not in _PACKINGS:
        raise MisfitError(f"its packing {show(packing, 40)} is not known")
    bits, words, per_word = _PACKINGS[packing]
    # Scales that are quantised themselves have parts in a file of their own.
    for name in ("view_as_float", "quant_scale", "quant_zero"):
        if name in given.parts and _numbers_of(given, name) != [0]:
            raise MisfitError(f"{name} is set, which is not read")
    if codes.dtype.name != words or len(codes.shape) != 2 or not is_dense(codes):
        raise MisfitError(f"its codes are no matrix of {words}")
    axis = _numbers_of(given, "axis")
    group = _numbers_of(given, "group_size")
    shape = _numbers_of(given, "shape")
    if _numbers_of(given, "nbits") != [bits]:
        raise MisfitError(f"nbits is not the {bits} of its packing")
    if axis not in ([0], [1]) or len(group) != 1 or group[0] < 1:
        raise MisfitError("its axis or group_size is none that HQQ writes")
    if not 0 < len(shape) <= DIMENSIONS or min(shape) < 1:
        raise MisfitError("its shape is none of a weight")
    numel = prod(shape)
    # Sizes of a stranger's file: each is checked before one divides by it.
    if numel % group[0]:
        raise MisfitError(f"{numel:,} weights are not groups of {group[0]:,}")
    count = numel // group[0]
    rows, columns = group[0], count
    if axis[0]:
        rows, columns = count, group[0]
    # Three bits leave the last word of a column partly empty.
    is_full = bits == 3 or rows % per_word == 0
    if codes.shape != (-(-rows // per_word), columns) or not is_full:
        raise MisfitError(f"its shape says {numel:,} weights, and its codes do not")
    own = _own_dtype(given, scale, zero, count)
    layout = _Layout(bits, per_word, axis[0], rows, columns)
    formula = partial(_less_zero, own)
    make = partial(_Groups, given, layout)
    matrix = Matrix(rows, columns, 1 << bits, own, formula, make)
    across = "" if axis[0] else " along axis 0"
    text = f"{bits} bits (HQQ, groups of {group[0]}{across})"
    return Planned(tuple(shape), bits, (group[0],), text, own, matrix)


def _own_dtype(given: Given, scale: TensorRef, zero: TensorRef, count: int) -> DType:
    """Return the dtype of a weight, in which HQQ computes. Raises MisfitError."""
    for name, ref in (("scale", scale), ("zero", zero)):
        if ref.numel != count or not is_dense(ref):
            raise MisfitError(f"{name} has {ref.numel:,} elements for {count:,} groups")
        if ref.dtype.name not in SCALES:
            raise MisfitError(f"its {name} is {ref.dtype.name}")
    named = scale.dtype.name
    if "compute_dtype" in given.parts:
        named = _text_of(given, "compute_dtype").removeprefix("torch.")
    if not scale.dtype == zero.dtype == BY_NAME.get(named):
        raise MisfitError("its scale, zero and compute_dtype are of several dtypes")
    return scale.dtype


def _text_of(given: Given, name: str) -> str:
    """Return the text that a tensor of bytes holds. Raises MisfitError."""
    ref = given.require(name)
    if ref.nbytes > _NOTE or ref.dtype.name != "uint8":
        raise MisfitError(f"{name} is no short text")
    return read_small(ref).decode("ascii", "backslashreplace")


def _numbers_of(given: Given, name: str) -> list[int]:
    """Return the integers that a small tensor holds. Raises MisfitError."""
    ref = given.require(name)
    if ref.nbytes > _NOTE or ref.dtype.kind != "int":
        raise MisfitError(f"{name} holds no few integers")
    numbers = cast.few(read_small(ref), ref.dtype)
    return [number for number in numbers if isinstance(number, int)]
