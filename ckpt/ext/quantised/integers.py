"""Weights of bytes with scales: the integers of compressed-tensors, quanto, and the
tensors of torchao.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.ext.quantised.floats import plan_float8
from ckpt.ext.quantised.grids import Grid, block_of, blocks_text, read_scales
from ckpt.ext.quantised.matrix import BFLOAT16, Cells, Matrix
from ckpt.ext.quantised.schemes import (
    FLOAT8,
    SCALES,
    Given,
    MisfitError,
    Planned,
    own_dtype,
)
from ckpt.ext.quantised.unpacking import as_rows, read_part, read_rows
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class _Signed:
    """Signed bytes in blocks with a scale and a zero point."""

    def __init__(
        self,
        codes: TensorRef,
        scale: TensorRef,
        zero: TensorRef | None,
        grid: Grid,
    ) -> None:
        # Unsigned bytes are places in a table of all codes; the formula gives the sign.
        signless = codes._replace(dtype=BY_NAME["uint8"])
        self._codes = as_rows(signless, grid.rows, grid.columns)
        self._scale = scale
        self._zero = zero
        self._grid = grid

    def read_codes(self, first: int, last: int) -> Array:
        return read_rows(self._codes, first, last)

    def read_cells(self, first: int, last: int) -> Cells:
        return self._grid.cells(first, last, self._read)

    def _read(self, begin: int, end: int) -> tuple[Array, ...]:
        import numpy as np

        scales = read_scales(self._scale, begin, end)
        if self._zero is None:
            return scales, np.zeros(scales.shape, "<f4")
        columns = range(self._grid.across)
        zeros = read_part(self._zero, range(begin, end), columns)
        return scales, zeros.astype("<f4")


def _signed(codes: Array, scale: Array, zero: Array) -> Array:
    """The formula of signed bytes: code less zero point, times scale."""
    product: Array = (codes.view("i1").astype("<f4") - zero) * scale
    return product


def _plan(
    given: Given,
    codes: TensorRef,
    name: str,
    own: DType | None = None,
) -> Planned:
    """Plan signed bytes with scales, and perhaps zero points of the same shape. Raises
    MisfitError.
    """
    scale, zero = given.require("scale"), given.parts.get("zero_point")
    if len(codes.shape) < 2 or not codes.numel or codes.dtype.name != "int8":
        raise MisfitError("the codes are no matrix of int8")
    if scale.dtype.name not in SCALES:
        raise MisfitError(f"its scale is {scale.dtype.name}")
    if zero is not None and (
        zero.numel != scale.numel or zero.dtype.kind not in ("int", "float")
    ):
        raise MisfitError("the zero points do not have the shape of the scales")
    block = block_of(codes.shape, scale, None)
    rows, columns = prod(codes.shape[:-1]), codes.shape[-1]
    grid = Grid(rows, columns, block, codes.shape[-2])
    fitted = None if zero is None else grid.fit(zero)
    make = partial(_Signed, codes, grid.fit(scale), fitted, grid)
    own = own or own_dtype(given, scale, BFLOAT16)
    matrix = Matrix(rows, columns, 256, own, _signed, make)
    groups = blocks_text(block, codes.shape, scale)
    # Within brackets the words have no preposition.
    groups = groups.removeprefix("with ").removeprefix("in ")
    text = f"8 bits ({name}, {groups})"
    return Planned(codes.shape, 8, block, text, own, matrix)


def plan_int8(given: Given) -> Planned:
    """Plan a weight of int8 with scales. Raises MisfitError."""
    return _plan(given, given.require("codes"), "int8")


def plan_quanto(given: Given) -> Planned:
    """Plan a weight of quanto with 8 bits: integers, or floats. Raises MisfitError."""
    codes = given.require("codes")
    return plan_float8(given) if codes.dtype.name in FLOAT8 else plan_int8(given)


def plan_packed_quanto(given: Given) -> Planned:
    """Raise MisfitError: the parts that quanto packs 2 and 4 bits in have lost the
    shape of the weight.
    """
    raise MisfitError(
        "its file does not say the shape of a weight of 2 or 4 bits "
        "(optimum.quanto.requantize gives it a model)"
    )


def plan_torchao(given: Given, own: DType | None = None) -> Planned:
    """Plan a weight of a tensor class of torchao: bytes, or 8-bit floats. Raises
    MisfitError.
    """
    codes = given.require("codes")
    if codes.dtype.name in FLOAT8:
        planned = plan_float8(given)
    else:
        planned = _plan(given, codes, "torchao")
    if own is None:
        return planned
    return planned._replace(own=own, matrix=planned.matrix._replace(own=own))
