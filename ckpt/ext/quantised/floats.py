"""Weights of small floats: FP8 with scales, NVFP4 and MXFP4."""

from __future__ import annotations

import threading
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import fill
from ckpt.ext.quantised.grids import Grid, block_of, blocks_text, is_zero, read_scales
from ckpt.ext.quantised.matrix import BFLOAT16, ELEMENTS, Cells, Matrix
from ckpt.ext.quantised.schemes import (
    EXPONENTS,
    SCALES,
    Given,
    MisfitError,
    Planned,
    own_dtype,
)
from ckpt.ext.quantised.unpacking import (
    HELD,
    as_bytes,
    as_rows,
    of_doubled_fp4,
    of_float8,
    of_fp4,
    power_of,
    read_part,
    read_rows,
    unpack_halves,
)
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class _Bytes:
    """Codes of a byte each, in blocks with a scale."""

    def __init__(self, codes: TensorRef, scale: TensorRef, grid: Grid) -> None:
        self._codes = as_rows(as_bytes(codes), grid.rows, grid.columns)
        self._scale = scale
        self._grid = grid

    def read_codes(self, first: int, last: int) -> Array:
        return read_rows(self._codes, first, last)

    def read_cells(self, first: int, last: int) -> Cells:
        return self._grid.cells(
            first,
            last,
            lambda begin, end: (read_scales(self._scale, begin, end),),
        )


def plan_float8(given: Given) -> Planned:
    """Plan a weight of 8-bit floats with scales. Raises MisfitError."""
    codes, scale = given.require("codes"), given.require("scale")
    # Floats have no zero points; compressed-tensors may store some, all of them 0.
    if "zero_point" in given.parts and not is_zero(given, "zero_point"):
        raise MisfitError("8-bit floats have zero points that are not 0")
    if len(codes.shape) < 2 or not codes.numel:
        raise MisfitError("8-bit floats are no matrix")
    if scale.dtype.name not in SCALES | EXPONENTS:
        raise MisfitError(f"its scale is {scale.dtype.name}")
    block = block_of(codes.shape, scale, given.facts.blocks)
    rows, columns = prod(codes.shape[:-1]), codes.shape[-1]
    grid = Grid(rows, columns, block, codes.shape[-2])
    make = partial(_Bytes, codes, grid.fit(scale), grid)
    own = own_dtype(given, scale, BFLOAT16)
    matrix = Matrix(rows, columns, 256, own, of_float8(codes.dtype.name), make)
    what = blocks_text(block, codes.shape, scale, given.facts.blocks)
    return Planned(codes.shape, 8, block, f"float8 {what}", own, matrix)


# --- four bits ------------------------------------------------------------------------


class _Halves:
    """Codes of four bits, the lower half of a byte first, with one scale for each group
    of columns.
    """

    def __init__(self, given: Given, scale: TensorRef, grid: Grid) -> None:
        halves = as_bytes(given.parts["codes"])
        self._codes = as_rows(halves, grid.rows, grid.columns // 2)
        self._given = given
        self._scale = scale
        self._grid = grid

    def read_codes(self, first: int, last: int) -> Array:
        return unpack_halves(read_rows(self._codes, first, last))

    def read_cells(self, first: int, last: int) -> Cells:
        return self._grid.cells(first, last, self._read_scales)

    def _read_scales(self, begin: int, end: int) -> tuple[Array, ...]:
        import numpy as np

        scales = read_scales(self._scale, begin, end)
        # ModelOpt multiplies by its second scale, compressed-tensors divides by it.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if "factor" in self._given.parts:
                scales = scales * self._number("factor")
            if "divisor" in self._given.parts:
                scales = scales / self._number("divisor")
        return (scales,)

    def _number(self, name: str) -> Array:
        """Return the one number of a part."""
        return read_part(as_rows(self._given.parts[name], 1, 1), range(1), range(1))


def _four_bits(given: Given, name: str, group: int) -> Planned:
    """Plan codes of four bits in groups along the columns. Raises MisfitError."""
    codes, scale = given.require("codes"), given.require("scale")
    for part in ("factor", "divisor"):
        ref = given.parts.get(part)
        if ref is not None and (ref.numel != 1 or ref.dtype.name != "float32"):
            raise MisfitError("its second scale is not one float32")
    if len(codes.shape) < 2 or not codes.numel or scale.shape[:-1] != codes.shape[:-1]:
        raise MisfitError("the scales do not have the rows of the codes")
    # torch counts pairs of float4 in a shape, safetensors single ones.
    columns = 2 * codes.shape[-1] if codes.nbytes == codes.numel else codes.shape[-1]
    if scale.shape[-1] * group != columns:
        raise MisfitError(
            f"{scale.shape[-1]} scales for {columns} columns are not {name}"
        )
    rows = prod(codes.shape[:-1])
    grid = Grid(rows, columns, (1, group))
    own = own_dtype(given, scale, BFLOAT16)
    make = partial(_Halves, given, grid.fit(scale), grid)
    matrix = Matrix(rows, columns, 16, own, of_fp4, make)
    shape = (*codes.shape[:-1], columns)
    text = f"4 bits ({name}, groups of {group})"
    return Planned(shape, 4, (1, group), text, own, matrix)


def plan_nvfp4(given: Given) -> Planned:
    """Plan a weight of NVFP4: groups of 16 with scales of float8, and one more scale.
    Raises MisfitError.
    """
    if given.require("scale").dtype.name != "float8_e4m3fn":
        raise MisfitError("its scales are not float8_e4m3fn")
    return _four_bits(given, "NVFP4", 16)


def plan_mxfp4(given: Given) -> Planned:
    """Plan a weight of MXFP4: groups of 32 with a power of two each. Raises
    MisfitError.
    """
    if given.require("scale").dtype.name not in EXPONENTS:
        raise MisfitError("its scales are no exponents")
    return _four_bits(given, "MXFP4", 32)


# --- the experts of gpt-oss -----------------------------------------------------------

_BLOCK = 32


class _Experts:
    """The experts of gpt-oss: each is the transposed matrix of codes, in blocks of 32
    along its rows.
    """

    def __init__(
        self,
        codes: TensorRef,
        scale: TensorRef,
        shape: tuple[int, int, int],
    ) -> None:
        # Codes are [experts, columns, blocks, 16], of two codes a byte.
        self._codes = codes
        self._scale = scale
        self._shape = shape
        self._held: dict[int, Array] = {}
        self._lock = threading.Lock()

    def read_codes(self, first: int, last: int) -> Array:
        import numpy as np

        expert, low, high = self._place(first, last)
        groups = range(low // _BLOCK, -(-high // _BLOCK))
        block = self._read_expert(expert, groups)
        rows = np.ascontiguousarray(block.reshape(self._shape[2], -1))
        # Codes lie by columns of the weight: they are turned.
        codes = unpack_halves(rows)
        begin = low - groups.start * _BLOCK
        return np.ascontiguousarray(codes.T[begin : begin + high - low])

    def _read_expert(self, expert: int, groups: range) -> Array:
        """Return the blocks of an expert. A small one is read once, and held until the
        next but one.
        """
        _, columns, blocks, width = self._codes.shape
        rows = range(columns)
        one = range(expert, expert + 1)
        if columns * blocks * width > HELD:
            region = (one, rows, groups, range(width))
            whole: Array = fill.array(self._codes, region)
            return whole.reshape(whole.shape[1:])
        # Under the lock: threads that decode one expert read it once.
        with self._lock:
            if expert not in self._held:
                while len(self._held) > 1:
                    del self._held[next(iter(self._held))]
                region = (one, rows, range(blocks), range(width))
                self._held[expert] = fill.array(self._codes, region)[0]
            part: Array = self._held[expert][:, groups.start : groups.stop]
            return part

    def read_cells(self, first: int, last: int) -> Cells:
        import numpy as np

        expert, low, high = self._place(first, last)
        columns = self._shape[2]
        groups = range(low // _BLOCK, -(-high // _BLOCK))
        region = (range(expert, expert + 1), range(columns), groups)
        scales = fill.array(self._scale, region)[0].T
        # An exponent of 255 is 2^128, which is beyond float32: half of it is not, and
        # the formula has twice the number.
        if self._scale.dtype.name == "uint8":
            scales = power_of(scales, 128)
        block_rows = np.arange(low, high) // _BLOCK - groups.start
        return Cells(block_rows, np.arange(columns), (scales,))

    def _place(self, first: int, last: int) -> tuple[int, int, int]:
        """Return the expert of some rows, and their numbers in it. They are of one
        expert.
        """
        height = self._shape[1]
        expert = first // height
        return expert, first - expert * height, last - expert * height


def plan_experts(given: Given) -> Planned:
    """Plan the experts of gpt-oss, which transformers transposes when it reads them.
    Raises MisfitError.
    """
    codes, scale = given.require("codes"), given.require("scale")
    is_blocked = len(codes.shape) == 4 and codes.shape[-1] == 16
    if not is_blocked or scale.shape != codes.shape[:-1] or not codes.numel:
        raise MisfitError(
            "the blocks are not experts × rows × blocks × 16 with one scale for each "
            "block"
        )
    if scale.dtype.name not in EXPONENTS:
        raise MisfitError("its scales are no exponents")
    experts, columns, blocks, _ = codes.shape
    height = blocks * _BLOCK
    shape = (experts, height, columns)
    make = partial(_Experts, codes, scale, shape)
    # Rows are decoded in whole blocks that divide an expert: none runs into the next
    # one.
    step = _BLOCK * _dividing_step(blocks, ELEMENTS // (_BLOCK * columns))
    formula = of_doubled_fp4 if scale.dtype.name == "uint8" else of_fp4
    matrix = Matrix(experts * height, columns, 16, BFLOAT16, formula, make, step)
    text = "4 bits (MXFP4, groups of 32)"
    return Planned(shape, 4, (_BLOCK, 1), text, BFLOAT16, matrix)


def _dividing_step(count: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`, or 1."""
    limit = min(count, max(1, most))
    return max([step for step in range(1, limit + 1) if count % step == 0])
