"""The rows and columns in which two matrices have nothing in common, which are alike
otherwise.

A norm over all of a matrix does not see one row of thousands that is zero, negated or
another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ckpt.elements.blocks import elements
from ckpt.elements.cast import as_numbers
from ckpt.elements.unpacked import unpacked
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CHUNK = 1 << 18
"""Elements that are looked at together."""
_LEAST = 32
"""The fewest rows and columns of a matrix that is looked at."""
_APART = 0.2
"""The cosine below which two lines have nothing in common. Lines of 2 bits by GPTQ have
0.4 and more.
"""
_SHARE = 0.8
"""The least error of such a line, as a share of its norm."""
_ALIKE = 0.5
"""The cosine of lines that say what error is usual."""
_FEWEST = 4
"""The fewest lines that say what error is usual."""
_TIMES = 4.0
"""The multiple of the usual error, as a square. Rounding to zero makes three times the
usual one.
"""
_MANY = 16
"""The fewest elements that make the norm of a line, were they alike."""
_MANY = 16
"""The fewest elements that make the norm of a line, were they alike."""
_WINDOW = 16
"""Neighbouring columns, which have one scale in all that quantises by groups."""
_LISTED = 6


class OddLines(NamedTuple):
    """The numbers of rows and columns in which two matrices are not alike, and how many
    there are of both.
    """

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    shape: tuple[int, int] = (0, 0)

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.columns

    @property
    def text(self) -> str:
        """The words for them: `1 of 4,096 rows is another one: 17`."""
        texts: list[str] = []
        kinds = (("row", self.rows), ("column", self.columns))
        for (kind, numbers), count in zip(kinds, self.shape, strict=True):
            if numbers:
                verb = "is another one" if len(numbers) == 1 else "are others"
                listed = and_more([str(number) for number in numbers], _LISTED)
                texts.append(f"{len(numbers):,} of {count:,} {kind}s {verb}: {listed}")
        return ", ".join(texts)


class Sums:
    """Sums over lines: of the squared differences, and of the squares of either
    side.
    """

    def __init__(self, error: Array, ours: Array, theirs: Array) -> None:
        self.error, self.ours, self.theirs = error, ours, theirs

    def odd_lines(self, groups: Array | None) -> list[int]:
        """Return the lines that have nothing in common, by an error that is not usual
        in their group.

        `groups` has the number of the group of each line; without it all are of one.
        """
        import numpy as np

        with np.errstate(all="ignore"):
            both = np.sqrt(self.ours * self.theirs)
            cosines = np.where(
                both > 0, (self.ours + self.theirs - self.error) / (2 * both), 0
            )
            is_apart = (cosines < _APART) & (self.error > _SHARE**2 * self.theirs)
            is_apart &= self.theirs > 0
        if not is_apart.any():
            return []
        odd: list[int] = []
        groups = np.zeros(len(cosines), np.intp) if groups is None else groups
        for group in np.unique(groups[is_apart]):
            members = groups == group
            usual = self.error[members & (cosines >= _ALIKE)]
            if len(usual) >= _FEWEST:
                most = _TIMES * float(np.quantile(usual, 0.95))
                odd += np.nonzero(members & is_apart & (self.error > most))[0].tolist()
        return sorted(odd)


def find_odd_lines(
    base: TensorRef, other: TensorRef, groups: Array | None = None
) -> OddLines:
    """Return the rows and columns in which two tensors of one shape are not alike.

    `groups` are the numbers of the groups of columns that have one scale, where these
    do not lie beside each other. Vectors and small matrices have none. Raises
    UnreadableError.
    """
    import numpy as np

    columns = base.shape[-1] if base.shape else 0
    rows = prod(base.shape[:-1])
    if len(base.shape) < 2 or min(rows, columns) < _LEAST:
        return OddLines()
    by_row: list[list[Array]] = []
    by_column = np.zeros((3, columns))
    step = max(1, CHUNK // columns)
    pairs = zip(
        _matrices(base, columns, step), _matrices(other, columns, step), strict=True
    )
    with np.errstate(all="ignore"):
        for theirs, ours in pairs:
            error = ours - theirs
            parts = (error, ours, theirs)
            by_row.append([np.einsum("ij,ij->i", part, part) for part in parts])
            for sums, part in zip(by_column, parts, strict=True):
                sums += np.einsum("ij,ij->j", part, part)
    across = Sums(*np.concatenate(by_row, axis=1).astype("<f8"))
    if groups is None:
        groups = np.arange(columns) // _WINDOW
    odd = across.odd_lines(None), Sums(*by_column).odd_lines(groups)
    if not any(odd):
        return OddLines()
    found = OddLines(tuple(odd[0]), tuple(odd[1]), (rows, columns))
    return _of_many_elements(found, base, step)


def _of_many_elements(odd: OddLines, base: TensorRef, step: int) -> OddLines:
    """Return the lines that have many elements in their norms: chance turns a few. The
    base is read again.
    """
    import numpy as np

    columns = list(odd.columns)
    by_row: list[Array] = []
    of_columns = np.zeros((2, len(columns)))
    for matrix in _matrices(base, odd.shape[1], step):
        squares = np.square(matrix)
        fourths = np.square(squares)
        by_row.append(np.stack([squares.sum(1), fourths.sum(1)]))
        of_columns += np.stack([part[:, columns].sum(0) for part in (squares, fourths)])
    of_rows = np.concatenate(by_row, axis=1).astype("<f8")[:, list(odd.rows)]
    rows = has_many_elements(of_rows[0], of_rows[1])
    across = has_many_elements(of_columns[0], of_columns[1])
    return odd._replace(
        rows=tuple(
            [number for number, is_many in zip(odd.rows, rows, strict=True) if is_many]
        ),
        columns=tuple(
            [number for number, is_many in zip(columns, across, strict=True) if is_many]
        ),
    )


def has_many_elements(squares: Array, fourths: Array) -> Array:
    """Tell of lines whether many elements make their norms, by the sums of their
    squares and of their fourth powers.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        counts: Array = np.square(squares) >= _MANY * fourths
    return counts


def _matrices(ref: TensorRef, columns: int, step: int) -> Iterator[Array]:
    """Yield the rows of a tensor, `step` at a time, as float32."""
    ref = unpacked(ref)
    size = ref.dtype.nbytes(columns * step)
    rest = b""
    for block in elements(ref):
        block = rest + block if rest else block
        cut = len(block) - len(block) % size
        for begin in range(0, cut, size):
            yield _matrix(memoryview(block)[begin : begin + size], ref, columns)
        rest = block[cut:]
    if rest:
        yield _matrix(memoryview(rest), ref, columns)


def _matrix(data: memoryview, ref: TensorRef, columns: int) -> Array:
    """Return the bytes of rows as numbers of their own."""
    import numpy as np

    numbers = as_numbers(data, ref.dtype)
    return np.array(numbers, "<f4").reshape(-1, columns)
