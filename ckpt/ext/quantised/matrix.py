"""A logical tensor as rows and columns of codes, each in a cell that has parameters,
and the numbers that they stand for.

A scheme says how codes and parameters are read, and has one formula. Where a cell has
many codes, the formula is worked out once for each code that there can be, and its
results are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ckpt.elements.cast import thread_rows
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

ELEMENTS = 1 << 19
"""Elements that are decoded at once: their indices fit into the cache of a core."""
_ROW = 19
"""The row of the thread that nobody else takes."""
WORTH = 2
"""A table is made where it has this many times fewer entries than there are codes."""


class Cells(NamedTuple):
    """The cells of some rows: the cell row of each row, the cell column of each column,
    and the parameters of each cell.
    """

    row_of: Array
    column_of: Array
    parameters: tuple[Array, ...]


class Reader(Protocol):
    """Reads a logical tensor from its parts. It may hold what it has read, so each
    stream has its own.
    """

    def read_codes(self, first: int, last: int) -> Array:
        """Return the codes of some rows as unsigned bytes. Raises UnreadableError."""
        ...

    def read_cells(self, first: int, last: int) -> Cells:
        """Return the cells of some rows. Raises UnreadableError."""
        ...


class Matrix(NamedTuple):
    """A logical tensor as rows and columns in the order of its shape.

    `own` is the type of the numbers that the scheme computes with and rounds to. Codes
    are below `levels`. `fixed_step` is the number of rows that are decoded at once
    where the reader asks for one.
    """

    rows: int
    columns: int
    levels: int
    own: DType
    formula: Callable[..., Array]
    """Takes codes and the parameters of their cells, and returns float32 before they
    are rounded.
    """
    make_reader: Callable[[], Reader]
    fixed_step: int = 0

    def column_groups(self) -> Array | None:
        """Return the number of the group of each column, where groups do not lie in a
        row. Raises UnreadableError.
        """
        import numpy as np

        # One row is enough: the groups of columns are the same in all.
        places = self.make_reader().read_cells(0, min(1, self.rows)).column_of
        return None if np.all(places[1:] >= places[:-1]) else places

    @property
    def step(self) -> int:
        """The number of rows that are decoded at once."""
        return self.fixed_step or max(1, ELEMENTS // max(1, self.columns))


class Numbers(NamedTuple):
    """Decoded elements as the raw words of their type, the number that overflowed, and
    the number that became 0.
    """

    words: Array
    overflowed: int
    vanished: int


def decode_rows(
    matrix: Matrix,
    reader: Reader,
    first: int,
    last: int,
    to: DType,
) -> Numbers:
    """Return the elements of some rows as `to`, one after the other. Raises
    UnreadableError.
    """
    import numpy as np

    codes = reader.read_codes(first, last)
    cells = reader.read_cells(first, last)
    shape = cells.parameters[0].shape
    # With few codes in a cell, each element is worked out by itself.
    if WORTH * shape[0] * shape[1] * matrix.levels > codes.size:
        index = np.ix_(cells.row_of, cells.column_of)
        spread = [row[index] for row in cells.parameters]
        return _narrowed(_values(matrix, codes, spread), to)
    # Else the table of all codes of all cells: `[cell rows, cell columns, levels]`.
    levels = np.arange(matrix.levels, dtype="u1")
    table = _values(matrix, levels, [row[:, :, None] for row in cells.parameters])
    entries = _narrowed(table.reshape(-1), to)
    # New memory for each span would cost more than what is put into it.
    places = thread_rows().row("p", _ROW, codes.size).reshape(codes.shape)
    np.copyto(places, codes)
    _add_cells(places, cells, matrix.levels, shape[1])
    # All places lie within the table, so numpy has none to check.
    words = np.take(entries.words, places, mode="wrap").reshape(-1)
    if not (entries.overflowed or entries.vanished):
        return Numbers(words, 0, 0)
    # Few files lose numbers in a cast, so only these count them element by element.
    lost, gone = _lost(table.reshape(-1), entries.words, to)
    return Numbers(
        words,
        int(np.take(lost, places).sum()),
        int(np.take(gone, places).sum()),
    )


def _add_cells(places: Array, cells: Cells, levels: int, across: int) -> None:
    """Add to each code the place in the table where the codes of its cell begin."""
    import numpy as np

    rows, columns = places.shape
    step = len(cells.column_of) // max(1, across)
    is_regular = across > 1 and step * across == columns and step > 1
    if across == 1:
        places += (cells.row_of * levels)[:, None]
    elif is_regular and np.array_equal(cells.column_of, np.arange(columns) // step):
        # Groups of one size side by side: one sum for each group, not for each column.
        above = (cells.row_of * (across * levels))[:, None]
        begins = above + np.arange(across) * levels
        grouped = places.reshape(rows, across, step)
        grouped += begins[:, :, None]
    else:
        places += (cells.row_of * (across * levels))[:, None]
        places += cells.column_of * levels


def _values(matrix: Matrix, codes: Array, parameters: list[Array]) -> Array:
    """Return the numbers of codes, rounded as the scheme rounds them, as float32."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        values = matrix.formula(codes, *parameters)
        return rounded(values, matrix.own)


def rounded(values: Array, to: DType) -> Array:
    """Return float32 numbers, each rounded to one that another type holds."""
    return values if to.name == "float32" else widen_words(_words(values, to), to)


def _narrowed(values: Array, to: DType) -> Numbers:
    """Return float32 numbers as another type."""
    import numpy as np

    flat = values.reshape(-1)
    words = _words(flat, to)
    if to.name == "float32":
        return Numbers(words, 0, 0)
    lost, gone = _lost(flat, words, to)
    return Numbers(words, int(np.count_nonzero(lost)), int(np.count_nonzero(gone)))


def _words(values: Array, to: DType) -> Array:
    """Return float32 numbers as the words of another type, rounded to nearest, ties to
    even.
    """
    import numpy as np

    values = np.ascontiguousarray(values, "<f4")
    if to.name == "float32":
        return values.view("<u4")
    if to.name == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype("<f2").view("<u2")
    # bfloat16: half of the last place is added, less one where the upper half is even,
    # and the upper half is taken. So ties go to the even one.
    bits = values.view("<u4")
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    words: Array = rounded.astype("<u2")
    # The carry would turn some NaN into infinity, or into 0.
    is_nan = np.isnan(values)
    if is_nan.any():
        words[is_nan] = 0x7FC0
    return words


def widen_words(words: Array, dtype: DType) -> Array:
    """Return the words of a type as float32."""
    if dtype.name == "float32":
        return words.view("<f4")
    if dtype.name == "float16":
        return words.view("<f2").astype("<f4")
    wide: Array = words.astype("<u4")
    wide <<= 16
    return wide.view("<f4")


def _lost(values: Array, words: Array, to: DType) -> tuple[Array, Array]:
    """Return masks of the finite numbers that became infinite, and of those that became
    0.
    """
    import numpy as np

    infinity = 0x7F80 if to.name == "bfloat16" else 0x7C00
    sizes = words & 0x7FFF
    lost = (sizes == infinity) & np.isfinite(values)
    gone = (sizes == 0) & (values != 0)
    return lost, gone


FLOAT32, FLOAT16, BFLOAT16 = BY_NAME["float32"], BY_NAME["float16"], BY_NAME["bfloat16"]
