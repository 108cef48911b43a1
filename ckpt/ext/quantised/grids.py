"""The blocks of a matrix of codes, each of which has parameters of its own: a scale, a
zero point.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.ext.quantised.matrix import Cells
from ckpt.ext.quantised.schemes import Given, MisfitError
from ckpt.ext.quantised.unpacking import as_rows, power_of, read_part, read_small
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_TILE = 128
"""The rows and columns of a block of DeepSeek-V3, which most others took over."""


class Grid:
    """The blocks that cut a matrix, or several matrices of `height` rows one behind the
    other, whose last block may be short.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        block: tuple[int, int],
        height: int | None = None,
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.block = block
        # Experts in one tensor are cut each by itself: a block does not run over.
        self._height = rows if height is None or block[0] >= rows else height
        self._down = -(-self._height // block[0])
        self.across = -(-columns // block[1])
        self.down = rows // self._height * self._down

    def fit(self, ref: TensorRef) -> TensorRef:
        """Return a part as rows and columns of blocks. Raises MisfitError where it has
        another number of elements.
        """
        if ref.numel != self.down * self.across:
            raise MisfitError(
                f"{ref.numel:,} elements for {self.down * self.across:,} blocks"
            )
        return as_rows(ref, self.down, self.across)

    def rows_of(self, first: int, last: int) -> tuple[Array, int, int]:
        """Return the number of the block row of each of some rows, less the first one,
        and the block rows from first to last.
        """
        import numpy as np

        rows = np.arange(first, last)
        above = rows // self._height * self._down
        numbers = above + rows % self._height // self.block[0]
        begin = int(numbers[0])
        end = int(numbers[-1]) + 1
        return numbers - begin, begin, end

    def cells(
        self,
        first: int,
        last: int,
        read: Callable[[int, int], tuple[Array, ...]],
    ) -> Cells:
        """Return the cells of some rows. `read` gives the parameters of some block
        rows.
        """
        import numpy as np

        numbers, begin, end = self.rows_of(first, last)
        columns = np.arange(self.columns) // self.block[1]
        return Cells(numbers, columns, read(begin, end))


def read_scales(ref: TensorRef, begin: int, end: int) -> Array:
    """Return rows of scales as float32; bytes are exponents. Raises UnreadableError."""
    scales = read_part(ref, range(begin, end), range(ref.shape[1]))
    return power_of(scales) if ref.dtype.name == "uint8" else scales


def block_of(
    shape: tuple[int, ...],
    scale: TensorRef,
    named: tuple[int, int] | None,
) -> tuple[int, int]:
    """Return the rows and columns that one scale stands for. Raises MisfitError where
    the shapes do not say it.
    """
    height, width = shape[-2], shape[-1]
    rows, lead = prod(shape[:-1]), prod(shape[:-2])
    given = scale.shape
    is_grid = len(given) == len(shape) and given[:-2] == shape[:-2]
    # From what the config names to what shapes say of themselves.
    if is_grid and named is not None and _cut((height, width), named) == given[-2:]:
        return named
    if scale.numel == 1:
        return rows, width
    # One scale for each matrix of several, as experts have them.
    by_matrix = (shape[:-2], (*shape[:-2], 1), (*shape[:-2], 1, 1))
    if len(shape) > 2 and scale.numel == lead and given in by_matrix:
        return height, width
    by_row = (shape[:-1], (*shape[:-1], 1), (rows, 1))
    if scale.numel == rows and given in by_row:
        return 1, width
    if is_grid and scale.numel:
        block = _block_in((height, width), (given[-2], given[-1]))
        if block is not None:
            return block
    raise MisfitError(
        f"a scale of {_times(given)} does not fit codes of {_times(shape)}"
    )


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "no dimension"


def _block_in(size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int] | None:
    """Return the size of a block, where the shapes leave only one way to cut that
    anybody writes.
    """
    ways: list[tuple[int, int]] = []
    tile = (_TILE, _TILE)
    if _cut(size, tile) == grid:
        ways.append(tile)
    if size[0] % grid[0] == 0 and size[1] % grid[1] == 0:
        even = (size[0] // grid[0], size[1] // grid[1])
        # Nobody writes blocks of 100 rows: an odd size is how a last block is short, or
        # no block at all.
        is_usual = all(
            not number & number - 1 or count == 1
            for number, count in zip(even, grid, strict=True)
        )
        # Both ways may cut alike: then they are one.
        if is_usual and not (ways and all(map(_is_same_cut, size, tile, even))):
            ways.append(even)
    return ways[0] if len(ways) == 1 else None


def _cut(size: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // block[0]), -(-size[1] // block[1])


def _is_same_cut(size: int, one: int, other: int) -> bool:
    """Tell whether two sizes of blocks cut a dimension alike."""
    return one == other or min(one, other) >= size


def blocks_text(
    block: tuple[int, int],
    shape: tuple[int, ...],
    scale: TensorRef,
    named: tuple[int, int] | None = None,
) -> str:
    """Return the words for what one scale stands for. `named` are the blocks of
    config.json: a matrix that is smaller than one has the scheme of the others.
    """
    rows, width = prod(shape[:-1]), shape[-1]
    if block == named and block[0] > 1:
        return f"blocks of {block[0]} × {block[1]}"
    is_single = scale.numel == 1 and len(scale.shape) != len(shape)
    is_all = block[0] >= rows and block[1] >= width
    if is_single or (is_all and block != (_TILE, _TILE)):
        return "with one scale"
    if block == (1, width):
        return "with a scale for each row"
    if block == (shape[-2], width):
        return "with a scale for each matrix"
    if block[0] == 1:
        return f"in groups of {block[1]}"
    return f"blocks of {block[0]} × {block[1]}"


def is_zero(given: Given, name: str) -> bool:
    """Tell whether all elements of a part are 0, where they may be read. Raises
    UnreadableError.
    """
    return given.can_read and not any(read_small(given.parts[name]))
