"""The weights of bitsandbytes: four bits (NF4, FP4), whose statistics may be quantised
too, and LLM.int8.
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements import fill
from ckpt.elements.blocks import is_dense
from ckpt.ext.quantised.grids import Grid, read_scales
from ckpt.ext.quantised.matrix import FLOAT16, Cells, Matrix
from ckpt.ext.quantised.schemes import SCALES, Given, MisfitError, Planned, own_dtype
from ckpt.ext.quantised.unpacking import (
    as_rows,
    look_up,
    read_rows,
    read_small,
    unpack_halves,
)
from ckpt.model.dtypes import BY_NAME
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS, TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_STATE = 1 << 16
"""The most bytes of a state of quantisation that are read."""
_LARGEST = 3.4028234663852886e38
"""The largest float32."""
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The sizes of blocks that bitsandbytes has kernels for."""


class State(NamedTuple):
    """The content of `quant_state`: the kind of the codes, the size of a block, the
    dtype and the shape of the weight.
    """

    kind: str
    block: int
    dtype: str
    shape: tuple[int, ...]
    nested_block: int | None
    nested_offset: float


def read_state(ref: TensorRef) -> State:
    """Read the JSON in the bytes of a tensor. Raises MisfitError, UnreadableError."""
    # Before it is parsed: JSON of a stranger may be as long as it likes.
    if ref.nbytes > _STATE or ref.dtype.bits != 8:
        raise MisfitError("its quant_state is too long")
    try:
        fields = json.loads(read_small(ref))
    except (ValueError, RecursionError):
        raise MisfitError("its quant_state is not JSON") from None
    if not isinstance(fields, dict):
        raise MisfitError("its quant_state is not an object")
    shape = fields.get("shape")
    block = fields.get("blocksize")
    nested = fields.get("nested_blocksize")
    dtype = fields.get("dtype")
    kind = fields.get("quant_type")
    if not isinstance(shape, list) or not 0 < len(shape) <= DIMENSIONS:
        raise MisfitError("its quant_state names no shape")
    # `type(…) is int`: JSON's true is a number in Python.
    if not all(type(size) is int and 0 < size < 1 << 40 for size in shape):
        raise MisfitError("its quant_state names no shape")
    if kind not in ("nf4", "fp4") or type(block) is not int or block not in _BLOCKS:
        raise MisfitError("its quant_state names no kind or block size that is known")
    if not isinstance(dtype, str) or dtype not in SCALES:
        raise MisfitError("its quant_state names no dtype that is known")
    if nested is not None and (type(nested) is not int or not 0 < nested <= 1 << 20):
        raise MisfitError("its quant_state names no size of nested blocks")
    # A larger number is infinite in float32, in which it is added.
    offset = fields.get("nested_offset", 0.0)
    if type(offset) not in (int, float) or abs(offset) > _LARGEST:
        raise MisfitError("its nested_offset is not a number of float32")
    return State(kind, block, dtype, tuple(shape), nested, float(offset))


class FourBits:
    """Codes of four bits, the upper half of a byte first, in blocks over all elements
    of the weight in a row.
    """

    def __init__(self, given: Given, state: State, blocks: int) -> None:
        self._given = given
        self._state = state
        self._blocks = blocks
        self._codes = given.parts["codes"]
        self._numel = prod(state.shape)
        # Codes may be stored as other types, such as bfloat16: their bytes count.
        nbytes = self._codes.nbytes
        self._bytes = self._codes._replace(
            dtype=BY_NAME["uint8"],
            shape=(1, nbytes),
            stride=(nbytes, 1),
            numel=nbytes,
        )

    def read_codes(self, first: int, last: int) -> Array:
        import numpy as np

        block = self._state.block
        # Two codes lie in a byte, and blocks are even: each begins with a byte.
        begin = first * block // 2
        end = min(last * block // 2, self._codes.nbytes)
        packed = fill.array(self._bytes, (range(1), range(begin, end)))
        codes = unpack_halves(packed, high_first=True).reshape(-1)
        # The last block may be short: its rest is filled with codes that nobody takes.
        whole = np.zeros((last - first) * block, "u1")
        whole[: len(codes)] = codes
        return whole.reshape(last - first, block)

    def read_cells(self, first: int, last: int) -> Cells:
        import numpy as np

        scales = self._read_scales(first, last)
        # Each row is a block with one scale: `scales` is [rows, 1].
        columns = np.zeros(self._state.block, np.intp)
        return Cells(np.arange(last - first), columns, (scales[:, None],))

    def _read_scales(self, first: int, last: int) -> Array:
        """Return the scales of some blocks, which may be codes of a table with scales
        themselves.
        """
        import numpy as np

        absmax = _part(self._given.parts["absmax"], first, last)
        if self._state.nested_block is None:
            return absmax
        size = self._state.nested_block
        begin = first // size
        outer = _part(self._given.parts["nested_absmax"], begin, -(-last // size))
        table = _part(self._given.parts["nested_quant_map"], 0, 256)
        # The product is rounded before the offset is added, as in bitsandbytes.
        numbers = np.take(table, absmax.astype(np.intp))
        scaled = numbers * outer[np.arange(first, last) // size - begin]
        scales: Array = scaled + np.float32(self._state.nested_offset)
        return scales


def _part(ref: TensorRef, first: int, last: int) -> Array:
    """Return some elements of a vector."""
    array: Array = fill.array(ref, (range(first, last),))
    return array


def _of_table(table: TensorRef, codes: Array, scale: Array) -> Array:
    """The formula of codes that a part of the weight gives their numbers: the number
    times scale.
    """
    return look_up(fill.array(table).astype("<f4"), codes, scale)


def plan_four_bits(given: Given) -> Planned:
    """Plan a weight of bitsandbytes in NF4 or FP4. Raises MisfitError."""
    codes = given.require("codes")
    absmax = given.require("absmax")
    table = given.require("quant_map")
    if not given.can_read:
        raise MisfitError("its shape is in quant_state, which was not read")
    state = read_state(given.require("state"))
    numel = prod(state.shape)
    if codes.nbytes != -(-numel // 2):
        raise MisfitError(
            f"quant_state says {numel:,} weights, and there are {2 * codes.nbytes:,} "
            "codes"
        )
    blocks = -(-numel // state.block)
    is_nested = state.nested_block is not None
    if not is_dense(codes) or absmax.shape != (blocks,) or table.shape != (16,):
        raise MisfitError(f"absmax and quant_map do not fit {blocks:,} blocks")
    absmax_dtype = "uint8" if is_nested else "float32"
    if absmax.dtype.name != absmax_dtype or table.dtype.name != "float32":
        raise MisfitError(f"absmax is {absmax.dtype.name}")
    if is_nested:
        assert state.nested_block is not None
        outer = given.require("nested_absmax")
        inner = given.require("nested_quant_map")
        if outer.shape != (-(-blocks // state.nested_block),) or inner.shape != (256,):
            raise MisfitError("nested_absmax and nested_quant_map do not fit absmax")
        if outer.dtype.name != "float32" or inner.dtype.name != "float32":
            raise MisfitError("nested_absmax is not float32")
    own = BY_NAME[state.dtype]
    make = partial(FourBits, given, state, blocks)
    matrix = Matrix(blocks, state.block, 16, own, partial(_of_table, table), make)
    nested = ", nested" if is_nested else ""
    text = f"4 bits ({state.kind.upper()}, groups of {state.block}{nested})"
    return Planned(state.shape, 4, (state.block,), text, own, matrix)


# --- eight bits -----------------------------------------------------------------------


class _EightBits:
    """Signed bytes with a largest value for each row."""

    def __init__(self, codes: TensorRef, scale: TensorRef, grid: Grid) -> None:
        signless = codes._replace(dtype=BY_NAME["uint8"])
        self._codes = as_rows(signless, grid.rows, grid.columns)
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


def _of_largest(codes: Array, scale: Array) -> Array:
    """The formula of LLM.int8: the code times the largest value of the row, then times
    1/127.
    """
    import numpy as np

    # In this order, for each product is rounded: 1/127 is a float32.
    numbers = codes.view("i1").astype("<f4")
    product: Array = (numbers * scale) * np.float32(7.874015718698502e-3)
    return product


def plan_eight_bits(given: Given) -> Planned:
    """Plan a weight of LLM.int8. Raises MisfitError."""
    codes, scale = given.require("codes"), given.require("scale")
    _require_row_order(given)
    is_matrix = len(codes.shape) == 2
    if not is_matrix or scale.shape != (codes.shape[0],):
        raise MisfitError("SCB is not one float32 for each row")
    if scale.dtype.name != "float32":
        raise MisfitError("SCB is not one float32 for each row")
    if not codes.numel:
        raise MisfitError("there are no codes")
    rows, columns = codes.shape
    grid = Grid(rows, columns, (1, columns))
    own = own_dtype(given, scale, FLOAT16)
    make = partial(_EightBits, codes, grid.fit(scale), grid)
    matrix = Matrix(rows, columns, 256, own, _of_largest, make)
    text = "8 bits (LLM.int8, a scale for each row)"
    return Planned(codes.shape, 8, (1, columns), text, own, matrix)


def _require_row_order(given: Given) -> None:
    """Raise MisfitError where the codes lie as a GPU wanted them, and not by rows."""
    order = given.parts.get("format")
    if order is None or not given.can_read:
        return
    if order.numel != 1 or order.dtype.name != "uint8":
        raise MisfitError("weight_format is not one byte")
    number = read_small(order)[0]
    if number:
        raise MisfitError(f"weight_format {number} is an order of a GPU")
