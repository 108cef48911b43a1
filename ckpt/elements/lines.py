"""The rows and columns in which two matrices have nothing in common, which are alike
otherwise.

A norm over all of a matrix does not see one row of thousands that is zero, negated or
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from math import log, prod, sqrt
from typing import TYPE_CHECKING, Any

from ckpt.elements.blocks import elements
from ckpt.elements.cast import as_numbers, thread_rows
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
_TURNED = 0.3
"""The cosine, below 0, of a line that is turned around."""
_SURE = 5.0
"""The least such cosine in multiples of what chance makes of a line of its length."""
_ALIKE = 0.5
"""The cosine of lines that say what error is usual."""
_FEWEST = 4
"""The fewest lines that say what error is usual."""
_TIMES = 4.0
"""The multiple of the usual error, as a square. Rounding to zero makes three times the
usual one.
"""
_GONE = 1e-4
"""The share of its base, as a square, below which a line is gone: all of it is zero,
or nearly so.
"""
_NEARLY = 0.5
"""The share of a small usual line, as a square, that a line has which is not small."""
_EVEN = 16.0
"""The largest line beside the middle of all, as a square, where no line can have taken
the scale of others, which rounds these to zero.
"""
_IN_STEP = 0.9
"""The least cosine of a line that is its base times a factor."""
_FACTOR = log(1.8)
"""The least logarithm of such a factor beside the one that is usual."""
_FACTOR_SHARE = 0.44
"""The least error of such a line, as a share of its norm."""
_SMALL = 1e-3
"""The size of a line beside the middle of all, below which its scale has few bits."""
_MANY = 16
"""The fewest elements that make the norm of a line, were they alike."""
_WINDOW = 16
"""Neighbouring columns, which have one scale in all that quantises by groups."""
_LISTED = 6
_ROW = 17
"""The first of the rows of the thread that nobody else takes."""


class OddLines(NamedTuple):
    """The numbers of rows and columns in which two matrices are not alike, and how many
    there are of both.
    """

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    shape: tuple[int, int] = (0, 0)
    scaled: tuple[int, ...] = ()
    """The rows that are alike but for a factor."""

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.columns and not self.scaled

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
        if self.scaled:
            verb = "has another scale" if len(self.scaled) == 1 else "have other scales"
            listed = and_more([str(number) for number in self.scaled], _LISTED)
            share = f"{len(self.scaled):,} of {self.shape[0]:,} rows"
            texts.append(f"{share} {verb}: {listed}")
        return ", ".join(texts)


class LineTest(NamedTuple):
    """A request for the lines in which a tensor is not its base. `base` is the side of
    the base, 0 or 1.

    `read_groups` returns the number of the group of each column that has one scale,
    where these columns do not lie beside each other. `look` returns what else is to be
    known of the tensor, with the same pass over it. Both may be called in another
    process. With `sees_factors` a row that is its base times a factor is odd too.
    """

    base: int
    read_groups: Callable[[], Array | None] | None = None
    look: Callable[[], object] | None = None
    sees_factors: bool = False

    def has_lines(self, shape: tuple[int, ...]) -> bool:
        """Tell whether a shape has lines that are long enough, and enough of them.
        Vectors and small matrices have none.
        """
        return len(shape) > 1 and min(prod(shape[:-1]), shape[-1]) >= _LEAST


class LineSums:
    """The sums of squares over the rows and columns of a matrix, added up block by
    block: of the differences of two tensors, and of the tensor on the side `base`.

    With `has_both` the sums of the other tensor too. `by_row` and `by_column` have for
    each line the sums of the differences, of the first and of the second tensor, and
    zeros for a tensor that is not added up.
    """

    def __init__(
        self, rows: int, columns: int, base: int, *, has_both: bool = False
    ) -> None:
        import numpy as np

        # A row is added up in a few pieces; a column gets a sum from every block.
        self.by_row = np.zeros((3, rows), "<f4")
        self.by_column = np.zeros((3, columns))
        self._places = (0, 1, 2) if has_both else (0, 1 + base)
        self._base = 1 + base
        self._columns = columns
        self._at = 0

    def add(self, before: Array, after: Array) -> Array:
        """Add the next elements of both, as numbers in the order of the shape.

        Return their differences in float32, which are valid until the thread's next
        block.
        """
        import numpy as np

        # What each array is made in is kept by the thread: new memory costs more.
        error = thread_rows().row("<f4", _ROW + 1, len(before))
        with np.errstate(all="ignore"):
            np.subtract(after, before, out=error, casting="unsafe")
            parts = (error, before, after)
            begin = 0
            while begin < len(before):
                row, column = divmod(self._at, self._columns)
                left = len(before) - begin
                # A block may begin inside of a row: its rest first, then whole rows.
                width = min(left, self._columns - column)
                height = left // self._columns if width == self._columns else 1
                end = begin + height * width
                for place in self._places:
                    matrix = parts[place][begin:end].reshape(height, width)
                    self._add_rows(place, matrix, row, column)
                begin = end
                self._at += height * width
        return error

    def _add_rows(self, place: int, matrix: Array, row: int, column: int) -> None:
        """Add the squares of rows that begin at a column, or of a part of one row."""
        import numpy as np

        height, width = matrix.shape
        squares = thread_rows().row("<f4", _ROW, matrix.size).reshape(height, width)
        np.multiply(matrix, matrix, out=squares, casting="unsafe")
        self.by_row[place, row : row + height] += np.einsum("ij->i", squares)
        self.by_column[place, column : column + width] += squares.sum(0)

    def may_be_odd(self, test: LineTest) -> bool:
        """Tell whether a line has an error as large as one that has nothing in common
        with the base: the others need no sums of both tensors.
        """
        of_rows = _FACTOR_SHARE if test.sees_factors else _SHARE
        for sums, share in (
            (self.by_row.astype("<f8"), of_rows),
            (self.by_column, _SHARE),
        ):
            error, base = sums[0], sums[self._base]
            if bool((_is_far(error, base, share)).any()):
                return True
        return False


def _is_far(error: Array, base: Array, share: float = _SHARE) -> Array:
    """Tell of lines whether their squared error is as large as an odd one's."""
    # An error beside a line of zeros is no share of anything.
    is_far: Array = (error > share**2 * base) & (base > 0)
    return is_far


class Sums(NamedTuple):
    """The sums of some lines: of the squared differences, and of the squares of either
    side.
    """

    error: Array
    ours: Array
    theirs: Array

    def odd_lines(self, groups: Array | None, length: int) -> list[int]:
        """Return the lines of some length that have nothing in common, by an error that
        is not usual in their group, or that are turned around.

        `groups` has the number of the group of each line; without it all are of one.
        """
        import numpy as np

        with np.errstate(all="ignore"):
            both = np.sqrt(self.ours * self.theirs)
            # |a - b|^2 = |a|^2 + |b|^2 - 2 a b: the product follows from three sums.
            products = (self.ours + self.theirs - self.error) / 2
            cosines = np.where(both > 0, products / both, 0)
            is_apart = (cosines < _APART) & _is_far(self.error, self.theirs)
        if not is_apart.any():
            return []
        # No error of 2 bits is so large that it turns a line around.
        least = max(_TURNED, _SURE / sqrt(length))
        odd = set(np.nonzero(is_apart & (cosines < -least))[0].tolist())
        is_gone = is_apart & (self.ours <= _GONE * self.theirs)
        groups = np.zeros(len(cosines), np.intp) if groups is None else groups
        for group in np.unique(groups[is_apart]):
            members = groups == group
            usual_ones = members & (cosines >= _ALIKE)
            usual = self.error[usual_ones]
            if len(usual) >= _FEWEST:
                # Not the largest one: an odd line may look alike by chance.
                most = _TIMES * float(np.quantile(usual, 0.95))
                is_odd = members & is_apart & (self.error > most)
                is_odd |= is_gone & self._cannot_go(members, usual_ones)
                odd.update(np.nonzero(is_odd)[0].tolist())
        return sorted(odd)

    def scaled_lines(self) -> list[int]:
        """Return the lines that are their base times a factor, which few others
        have.
        """
        import numpy as np

        with np.errstate(all="ignore"):
            products = (self.ours + self.theirs - self.error) / 2
            cosines = products / np.sqrt(self.ours * self.theirs)
            sizes = np.log(products / self.theirs)
        is_alike = (cosines >= _IN_STEP) & np.isfinite(sizes)
        if np.count_nonzero(is_alike) < _FEWEST:
            return []
        least = _SMALL**2 * float(np.median(self.theirs[is_alike]))
        is_odd = is_alike & (self.theirs >= least)
        is_odd &= np.abs(sizes - np.median(sizes[is_alike])) > _FACTOR
        lines: list[int] = np.nonzero(is_odd)[0].tolist()
        return lines

    def _cannot_go(self, members: Array, usual: Array) -> Array:
        """Tell which members of a group have the size of the usual ones, and so no
        reason to become zero.
        """
        import numpy as np

        sizes = self.theirs[members]
        if float(sizes.max()) > _EVEN * float(np.median(sizes)):
            return np.zeros(len(members), bool)
        least = _NEARLY * float(np.quantile(self.theirs[usual], 0.05))
        cannot: Array = members & (self.theirs >= least)
        return cannot


def odd_lines(sums: LineSums, base: TensorRef, test: LineTest) -> OddLines:
    """Return the rows and columns in which two tensors of one shape are not alike, by
    the sums of all of their elements.

    Where there are some the base is read once more. Raises UnreadableError.
    """
    import numpy as np

    rows = prod(base.shape[:-1])
    columns = base.shape[-1]
    # The sums of the error come first, then those of both sides: the base stands last.
    order = (0, 2 - test.base, 1 + test.base)
    groups = None if test.read_groups is None else test.read_groups()
    if groups is None:
        groups = np.arange(columns) // _WINDOW
    of_rows = Sums(*[sums.by_row[index].astype("<f8") for index in order])
    of_columns = Sums(*[sums.by_column[index] for index in order])
    odd_rows = of_rows.odd_lines(None, columns)
    odd_columns = of_columns.odd_lines(groups, rows)
    scaled = of_rows.scaled_lines() if test.sees_factors else []
    if not odd_rows and not odd_columns and not scaled:
        return OddLines()
    found = OddLines(
        tuple(odd_rows), tuple(odd_columns), (rows, columns), tuple(scaled)
    )
    return _of_many_elements(found, base, max(1, CHUNK // columns))


def _of_many_elements(odd: OddLines, base: TensorRef, step: int) -> OddLines:
    """Return the lines that have many elements in their norms: chance turns a few. The
    base is read again.
    """
    import numpy as np

    columns = list(odd.columns)
    by_row: list[Array] = []
    of_columns = np.zeros((2, len(columns)))
    with np.errstate(all="ignore"):
        for matrix in _matrices(base, odd.shape[1], step):
            squares = np.square(matrix)
            fourths = np.square(squares)
            by_row.append(np.stack([squares.sum(1), fourths.sum(1)]))
            of_columns[0] += squares[:, columns].sum(0)
            of_columns[1] += fourths[:, columns].sum(0)
    of_rows = np.concatenate(by_row, axis=1).astype("<f8")
    are_kept = has_many_elements(of_rows[0], of_rows[1])
    are_columns_kept = has_many_elements(of_columns[0], of_columns[1])
    return odd._replace(
        rows=tuple([row for row in odd.rows if are_kept[row]]),
        columns=tuple(compress(columns, are_columns_kept)),
        scaled=tuple([row for row in odd.scaled if are_kept[row]]),
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
        # Blocks end anywhere: what is left of a row waits for the next one.
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
