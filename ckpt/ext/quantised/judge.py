"""Verdicts on quantised weights beside their base, by the error that their schemes
make.

The measure is the error of a scheme at its own codes: half of the distance to the next
code, evenly spread. Rounding makes it once. GPTQ moves the error of a column into the
next columns, and makes up to twice as much. Weights of another layer or model are much
farther away. Scales of other weights show in the sizes of blocks, which stray from the
base. Rows of some places of each tensor are read.
"""

from __future__ import annotations

from math import exp, isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

from ckpt.elements.lines import OddLines, has_many_elements
from ckpt.ext.quantised.find import Logical
from ckpt.ext.quantised.matrix import Cells, Matrix, Reader, decode_rows, widen_words
from ckpt.ext.quantised.unpacking import as_rows, read_rows
from ckpt.model.dtypes import BY_NAME
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Verdict = Literal["within", "factors", "scale", "lines", "other"]
"""`factors`: within, but for factors of rows and columns, which AWQ and SmoothQuant
move into the layer before. `lines`: within, but for some rows or columns.
"""

_BANDS = 4
"""Places of a tensor whose rows are read."""
_ELEMENTS = 1 << 16
"""Elements that are read at each place."""
_MOST_BANDS = 256
"""The same where rows share scales: rows of each block, as far as there are no more."""
_TIMES = 3.0
"""Errors of rounding that a quantised weight may have. Of 396 honest ones of 2 to 8
bits the largest was 2.0, of GPTQ.
"""
_ALIKE = 0.25
"""The least cosine of most blocks of a weight and its base. It is near 0 for other
weights, 0.4 for GPTQ with 2 bits.
"""
_SAME = 0.7
"""The cosine from which on it is the same weight, whatever its scales are."""
_STRAYS = 2.2
"""Errors of the size of a block, beyond which its scale is of other weights. Of the
honest ones the largest was 1.2.
"""
_MIDDLE = 2.0
"""Errors of the size of a block that the middle of all may have. Of the honest ones the
largest was 1.1.
"""
_SINGLE = 5.0
"""The same of a few blocks, whose own error has no others beside it."""
_BETTER = 0.6
"""The share of an error that is left where factors of rows and columns explain it, and
one factor for all does not.
"""
_MOSTLY = 0.9
"""The most error, beside the weights, of what is mostly the base. Other weights are 1.4
away.
"""
_STALE = 3.5
"""Errors of rounding of a block whose scale is not its own. Of the honest ones the
largest was 2.6.
"""
_STALE_FACTOR = 0.2
"""The least logarithm of the factor by which such a scale is off."""
_STALE_ALIKE = 1.5
"""Errors of rounding that such a block has beside the factor, at most: its codes are
right. GPTQ makes more where it is as far off.
"""
_STALE_SIZE = 1e-3
"""The least size of such a block beside the middle of all: a scale of float16 has few
bits for less.
"""
_APART = 0.2
"""The cosine below which a column has nothing in common with the same one of
the base.
"""
_REST = 0.5
"""The most that is left of an error, as a square, where one factor for all is the
cause.
"""
_STALE_CELLS = 16
"""The fewest elements of a block that is looked at by itself."""
_SPREAD = 0.5
"""The share of the spread of factors of columns that lies inside of blocks. Scales that
are off spread between blocks.
"""
_LEAST_CELLS = 8
"""The fewest blocks that say whether sizes stray."""
_RUN = 4
"""The fewest elements of a run, in the middle, that are summed by runs."""
_FACTORED = frozenset(("AWQ", "int8", "compressed-tensors", "FP8"))
"""The schemes before which factors may have been moved."""


class Judged(NamedTuple):
    """A quantised weight, and how it stands to its base.

    `error` is relative to the weights, `times` counts errors of rounding. `factor` is
    the size of the scales beside the right ones, where they are off alike. `like` is
    the tensor of the base that it is instead, where that is found.
    """

    name: str
    base: str
    text: str
    verdict: Verdict
    error: float
    times: float
    factor: float | None = None
    like: str = ""
    what: str = ""
    """The words for rows, columns or blocks that are wrong."""


class Sample(NamedTuple):
    """Rows of a quantised weight and of its base as numbers, and the error of rounding
    of each as a square.

    `row_cells` and `column_cells` are the cells of the first column and of the
    first row.
    """

    values: Array
    base: Array
    steps: Array
    row_cells: Array
    column_cells: Array
    runs: Runs


class Runs(NamedTuple):
    """Elements of a sample that follow each other and are of one cell: where each run
    starts, its cell, and the number of all cells.

    Sums over runs are many times faster than sums over single elements.
    """

    starts: Array
    cells: Array
    total: int

    def sum_cells(self, elements: Array) -> Array:
        """Return the sum of the elements of each cell."""
        import numpy as np

        flat = elements.reshape(-1)
        # Long runs are added where they lie; short ones cost less element by element.
        if _RUN * len(self.starts) <= len(flat):
            flat = np.add.reduceat(flat, self.starts, dtype="<f8")
            return np.bincount(self.cells, flat, self.total)
        lengths = np.diff(self.starts, append=len(flat))
        return np.bincount(np.repeat(self.cells, lengths), flat, self.total)

    def count_elements(self, numel: int) -> Array:
        """Return the number of elements of each cell, of `numel` in all."""
        import numpy as np

        return np.bincount(self.cells, np.diff(self.starts, append=numel), self.total)


class Sums(NamedTuple):
    """The sums over the cells of a sample: of the products of both sides, of the
    squares of the weight, of the base and of the error, and of the error of rounding.

    `crossed` are the sums of the squared products of base and error.
    """

    numel: Array
    both: Array
    ours: Array
    theirs: Array
    errors: Array
    crossed: Array
    steps: Array


def _sums_of(sample: Sample) -> Sums:
    """Return the sums over the cells of a sample, in float64."""
    import numpy as np

    runs, values, base = sample.runs, sample.values, sample.base
    # One product at a time, in one buffer: a sample has a quarter of a million
    # elements.
    with np.errstate(all="ignore"):
        error = np.subtract(values, base, dtype="<f8")
        squared_error = runs.sum_cells(np.square(error))
        np.multiply(error, base, out=error)
        crossed = runs.sum_cells(np.square(error, out=error))
        return Sums(
            numel=runs.count_elements(values.size),
            both=runs.sum_cells(np.multiply(values, base, dtype="<f8")),
            ours=runs.sum_cells(np.square(values, dtype="<f8")),
            theirs=runs.sum_cells(np.square(base, dtype="<f8")),
            errors=squared_error,
            crossed=crossed,
            steps=runs.sum_cells(sample.steps),
        )


def judge(logical: Logical, base: TensorRef, base_name: str) -> Judged:
    """Return how a quantised weight stands to a tensor of the same shape. Raises
    UnreadableError.
    """
    plain = sample = read_sample(logical, base)
    sums = _sums_of(sample)
    figures = _figures(sums)
    verdict, factor = _verdict(sums, figures)
    scaled = float("inf")
    if factor is not None:
        scaled = _figures(_scaled_sums(sums, factor))[1]
        # One factor for all does not explain the error: then it is no scale.
        if scaled > _TIMES:
            verdict, factor = "other", None
    if verdict != "within" and logical.scheme in _FACTORED:
        # A factor of a row is a stale scale where that is for the whole row.
        has_rows = logical.planned.group[-1] < logical.planned.matrix.columns
        fitted = _with_factors(sample, has_rows=has_rows)
        if fitted is not None:
            fitted_sums = _sums_of(fitted)
            fitted_figures = _figures(fitted_sums)
            fitted_times = fitted_figures[1]
            is_near = (
                _correlation(fitted_sums) > _SAME and fitted_times < _BETTER * scaled
            )
            if is_near and _verdict(fitted_sums, fitted_figures)[0] == "within":
                verdict, figures, factor = "factors", fitted_figures, None
                sums = fitted_sums
    row = Judged(
        logical.name,
        base_name,
        logical.planned.text,
        verdict,
        *figures,
        factor,
    )
    return _with_few(row, logical, plain, sums)


def _with_few(row: Judged, logical: Logical, plain: Sample, sums: Sums) -> Judged:
    """Return the verdict, which a few columns or scales of the sample change that are
    wrong by themselves.

    `plain` is the sample as it was read, `sums` are with the factors of the verdict.
    """
    if not _is_mostly(row):
        return row
    # Columns first: a column of other weights makes the scales of its blocks look
    # stale.
    odd = _odd_columns(plain) if _is_matrix(logical) else ()
    if odd:
        columns = logical.planned.matrix.columns
        what = OddLines((), odd, (0, columns)).text
        return row._replace(verdict="lines", factor=None, what=what)
    # If most scales are wrong, the verdict on the whole weight says it.
    stale, count = _stale_cells(sums)
    if not stale or 2 * stale > count:
        return row
    blocks = "1 block" if stale == 1 else f"{stale:,} blocks"
    what = f"of {count:,} scales looked at, those of {blocks} are not of these weights"
    return row._replace(verdict="scale", factor=None, what=what)


def _is_mostly(row: Judged) -> bool:
    """Tell whether a weight is mostly the base, so that a few lines or scales may be
    what is wrong with it.
    """
    if row.verdict in ("within", "factors"):
        return True
    return row.verdict == "other" and row.error < _MOSTLY


def _is_matrix(logical: Logical) -> bool:
    """Tell whether the codes have the rows and columns of the weight, and are not
    blocks in a row.
    """
    matrix = logical.planned.matrix
    return (
        matrix.columns == logical.shape[-1]
        and matrix.rows * matrix.columns == logical.numel
    )


def with_lines(row: Judged, odd: OddLines | None) -> Judged:
    """Return the verdict, which rows and columns change that the base does not have."""
    if odd is None or odd.is_empty or not _is_mostly(row) or row.error == 0:
        return row
    return row._replace(verdict="lines", what=odd.text)


def read_sample(logical: Logical, base: TensorRef) -> Sample:
    """Return rows of some places of a weight and of its base. Raises
    UnreadableError.
    """
    import numpy as np

    matrix = logical.planned.matrix
    reader = matrix.make_reader()
    # bitsandbytes has blocks over all elements in a row: its rows are no rows of the
    # weight.
    is_blocks = matrix.rows * matrix.columns != base.numel
    if is_blocks:
        flat = as_rows(base, 1, base.numel)
    else:
        flat = as_rows(base, matrix.rows, matrix.columns)
    squares = _squares_of_steps(matrix, reader)
    group = logical.planned.group
    parts: list[tuple[Array, ...]] = []
    # Runs and cells of all places are numbered one after the other.
    begin = begin_cell = 0
    for first, last in _bands(matrix, group[0] if len(group) > 1 else 1):
        words = decode_rows(matrix, reader, first, last, BY_NAME["float32"]).words
        decoded = widen_words(words, BY_NAME["float32"])
        values = decoded.reshape(last - first, matrix.columns)
        if is_blocks:
            rows = _block_rows(flat, first, last, matrix.columns)
            values = values[: len(rows)]
        else:
            rows = read_rows(flat, first, last).astype("<f4", copy=False)
        count = len(rows)
        cells = reader.read_cells(first, last)
        codes = reader.read_codes(first, last)[:count]
        steps = _steps(squares, codes, cells)
        row_cells, starts, numbers = _runs_of(cells, count)
        row_cells += begin_cell
        starts += begin
        numbers += begin_cell
        parts.append((values, rows, steps, row_cells, starts, numbers))
        begin += count * matrix.columns
        begin_cell += cells.parameters[0].size
        if not first:
            column_cells = cells.row_of[0] * _across(cells) + cells.column_of
    values, rows, steps, row_cells, starts, numbers = [
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    ]
    runs = Runs(starts, numbers, begin_cell)
    return Sample(values, rows, steps, row_cells, column_cells, runs)


def _across(cells: Cells) -> int:
    """Return the number of cells in a row of cells."""
    count: int = cells.parameters[0].shape[1]
    return count


def _runs_of(cells: Cells, rows: int) -> tuple[Array, Array, Array]:
    """Return the cell in which each of some rows begins, where the runs of elements of
    one cell start, and the cell of each run.
    """
    import numpy as np

    # `places` has the cell of each column: a run ends where it changes.
    places = cells.column_of
    firsts = np.flatnonzero(np.diff(places, prepend=places[:1] - 1))
    above = cells.row_of[:rows] * _across(cells)
    starts = (np.arange(rows) * len(places))[:, None] + firsts
    numbers = above[:, None] + places[firsts]
    return above + places[:1], starts.reshape(-1), numbers.reshape(-1)


def _bands(matrix: Matrix, block: int) -> list[tuple[int, int]]:
    """The rows from first to last of each place, which the reader takes at once.

    Where a `block` of rows has one scale, each block has a place, so that no scale goes
    unseen.
    """
    # A few rows of a wide matrix are as many elements as many of a narrow one.
    fitting = min(matrix.rows, _ELEMENTS // max(1, matrix.columns))
    size = matrix.fixed_step or max(1, fitting)
    if 1 < block < matrix.rows and not matrix.fixed_step:
        return _bands_of_blocks(matrix, block)
    if _BANDS * size >= matrix.rows:
        return [
            (first, min(first + size, matrix.rows))
            for first in range(0, matrix.rows, size)
        ]
    # From the first rows to the last ones, at equal distances, in whole steps.
    last = (matrix.rows - size) // size
    starts = sorted({last * place // (_BANDS - 1) * size for place in range(_BANDS)})
    return [(first, first + size) for first in starts]


def _bands_of_blocks(matrix: Matrix, block: int) -> list[tuple[int, int]]:
    """The first rows of each block of rows, or of so many of them as are looked at."""
    starts = range(0, matrix.rows, block)
    step = -(-len(starts) // _MOST_BANDS)
    whole = _BANDS * _ELEMENTS // max(1, matrix.columns * len(starts[::step]))
    size = min(block, max(1, whole))
    return [(first, min(first + size, matrix.rows)) for first in starts[::step]]


def _block_rows(flat: TensorRef, first: int, last: int, width: int) -> Array:
    """Return elements of a flat tensor in rows, without a last row that is short."""
    from ckpt.ext.quantised.unpacking import read_part

    end = min(last * width, flat.numel) // width * width
    begin = first * width
    part = read_part(flat, range(1), range(begin, max(end, begin)))
    return part.astype("<f4").reshape(-1, width)


def _squares_of_steps(matrix: Matrix, reader: Reader) -> Array:
    """Return the error that rounding makes at each code of scale 1, as a square."""
    import numpy as np

    # The codes at scale 1, with all other parameters 0: as far apart as they ever are.
    levels = np.arange(matrix.levels, dtype="u1")
    count = len(reader.read_cells(0, min(1, matrix.rows)).parameters)
    rest = [np.zeros((1, 1), "<f4") for _ in range(count - 1)]
    with np.errstate(all="ignore"):
        scale = np.ones((1, 1), "<f4")
        units = np.asarray(matrix.formula(levels[None], scale, *rest), "<f8")
        units = units.reshape(-1)
        finite = np.isfinite(units)
        # Some codes of floats are NaN, and two of them may be one number.
        numbers = np.unique(units[finite])
        gaps = np.diff(numbers)
        edges = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
        squares = np.zeros(len(units))
        # An error that is spread evenly over a gap has a square of gap² / 12.
        squares[finite] = edges[np.searchsorted(numbers, units[finite])] ** 2 / 12
    return squares


def _steps(squares: Array, codes: Array, cells: Cells) -> Array:
    """Return the error that rounding makes at each code, as a square."""
    import numpy as np

    with np.errstate(all="ignore"):
        scales = cells.parameters[0].astype("<f8") ** 2
        by_row = np.take(scales, cells.row_of[: len(codes)], axis=0)
        spread: Array = np.take(squares, codes)
        spread *= np.take(by_row, cells.column_of, axis=1)
    return spread


Figures = tuple[float, float]
"""The error beside the weights, and beside the error of rounding."""


def _figures(sums: Sums) -> Figures:
    """Return the error of a sample. It is infinite where numbers are not finite."""
    error, size = float(sums.errors.sum()), float(sums.theirs.sum())
    least = float(sums.steps.sum())
    if not isfinite(error) or not isfinite(size):
        return float("inf"), float("inf")
    if error == 0:
        return 0.0, 0.0
    beside_weights = sqrt(error / size) if size else float("inf")
    beside_rounding = sqrt(error / least) if least else float("inf")
    return beside_weights, beside_rounding


def _scaled_sums(sums: Sums, factor: float) -> Sums:
    """Return the sums of a sample whose base is multiplied by a factor, but for
    `crossed`.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        both, theirs = factor * sums.both, factor**2 * sums.theirs
        errors = np.maximum(sums.ours - 2 * both + theirs, 0)
        return sums._replace(both=both, theirs=theirs, errors=errors)


def _verdict(sums: Sums, figures: Figures) -> tuple[Verdict, float | None]:
    """Return the verdict on a sample, and the factor by which all of its scales are
    off.
    """
    error, times = figures
    if error == 0:
        return "within", None
    common = _common_factor(sums)
    if common is not None:
        return "scale", common
    strays, middle, most = _strays(sums)
    cosine = _correlation(sums)
    # Near enough, with sizes of blocks that neither stray nor are off together.
    is_near = cosine > _ALIKE and times <= _TIMES
    if is_near and strays <= _STRAYS and abs(middle) <= most:
        return "within", None
    if cosine < _SAME:
        return "other", None
    if strays > _STRAYS:
        return "scale", None
    # Unless that factor does not explain it, which the caller sees.
    return "scale", exp(middle)


def _common_factor(sums: Sums) -> float | None:
    """Return the factor that is most of the error of a weight, or None where no factor
    is.
    """
    both, theirs = float(sums.both.sum()), float(sums.theirs.sum())
    ours, error = float(sums.ours.sum()), float(sums.errors.sum())
    if not both > 0 or not isfinite(error + ours):
        return None
    # The factor of the least squares, and the square of what it leaves.
    factor = both / theirs
    beside = ours - both * factor
    is_factor = abs(log(factor)) > _STALE_FACTOR and beside < _REST * error
    return factor if is_factor else None


def _correlation(sums: Sums) -> float:
    """The cosine between a weight and its base; blocks count alike, whatever their
    scales.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        cosines = sums.both / np.sqrt(sums.ours * sums.theirs)
    cosines = cosines[np.isfinite(cosines)]
    return float(np.median(cosines)) if len(cosines) else 0.0


def _strays(sums: Sums) -> tuple[float, float, float]:
    """Return how far the sizes of blocks stray from the base, in errors; their middle,
    and the most it may be.

    The size of a block is the root of the sum of squares; the middle is a logarithm.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        relative = sums.errors / sums.theirs
        # What is left of the sum of weight times error, whose signs are as they come:
        # few large weights may be most of it.
        crossed = sums.crossed / np.square(sums.theirs)
        ratios = np.log(sums.ours / sums.theirs) / 2
        spread = np.sqrt(crossed + np.square(relative / 2)) + 1e-4
    usable = np.isfinite(ratios) & (sums.numel > 1)
    if not usable.any():
        return 0.0, 0.0, float("inf")
    ratios, spread = ratios[usable], spread[usable]
    middle = float(np.median(ratios))
    # 1.48 times the median of distances is the spread of a normal distribution.
    strays = float(np.median(np.abs(ratios - middle) / spread)) * 1.48
    if len(ratios) < _LEAST_CELLS:
        return 0.0, middle, _SINGLE * float(np.median(spread))
    return strays, middle, _MIDDLE * float(np.median(spread))


def _stale_cells(sums: Sums) -> tuple[int, int]:
    """Return how many blocks have codes of the base and a scale of something else, and
    of how many.

    Such a block is the base times a factor, and far beyond the error of rounding.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        # The product of both sides, from the three squares.
        both = (sums.ours + sums.theirs - sums.errors) / 2
        factors = np.abs(np.log(both / sums.theirs))
        beside = sums.ours - np.square(both) / sums.theirs
        sizes = np.sqrt(sums.theirs / sums.numel)
        is_looked = (sums.numel >= _STALE_CELLS) & (
            sizes > _STALE_SIZE * np.median(sizes[sums.numel > 0])
        )
        is_stale = is_looked & (factors > _STALE_FACTOR)
        is_stale &= beside < _STALE_ALIKE**2 * sums.steps
        is_stale &= sums.errors > _STALE**2 * sums.steps
    return int(np.count_nonzero(is_stale)), int(np.count_nonzero(is_looked))


def _odd_columns(sample: Sample) -> tuple[int, ...]:
    """Return the columns that have nothing in common with the base, far beyond the
    error of rounding.
    """
    import numpy as np

    # Few rows say nothing of a column.
    if len(sample.values) < _STALE_CELLS:
        return ()
    with np.errstate(all="ignore"):
        sides = (sample.values - sample.base, sample.values, sample.base)
        error, ours, theirs = [
            np.einsum("ij,ij->j", side, side, dtype="<f8") for side in sides
        ]
        both = (ours + theirs - error) / 2
        cosines = np.nan_to_num(both / np.sqrt(ours * theirs))
        is_far = error > _STALE**2 * sample.steps.sum(0)
        is_odd = (cosines < _APART) & is_far & (theirs > 0)
    # A column of a few large weights is decided by these alone.
    if is_odd.any():
        squares = np.square(sample.base, dtype="<f8")
        is_odd &= has_many_elements(squares.sum(0), np.square(squares).sum(0))
    return tuple(np.nonzero(is_odd)[0].tolist())


def _with_factors(sample: Sample, *, has_rows: bool) -> Sample | None:
    """Return a sample whose base has the factors of rows and columns that bring it
    nearest to the values.

    None is negative: nobody moves a sign into the layer before. Factors that are alike
    inside of blocks and not between them are scales that are off: then there is no such
    sample.
    """
    import numpy as np

    values = sample.values
    with np.errstate(all="ignore"):
        # The factor of each column by the least squares, then of each row of the rest.
        wide = sample.base.astype("<f8")
        columns = _least_factors(wide, values, axis=0)
        if _is_of_blocks(columns, sample.column_cells):
            return None
        wide = wide * columns
        if has_rows:
            rows = _least_factors(wide, values, axis=1)
            if _is_of_blocks(rows, sample.row_cells):
                return None
            wide = wide * rows[:, None]
        return sample._replace(base=wide.astype("<f4"))


def _least_factors(base: Array, values: Array, axis: int) -> Array:
    """Return the factors that bring a base nearest to the values, along an axis; none
    is negative.
    """
    import numpy as np

    products = (base * values).sum(axis)
    squares = np.maximum(np.square(base).sum(axis), 1e-300)
    factors: Array = np.maximum(products / squares, 0)
    return factors


def _is_of_blocks(factors: Array, blocks: Array) -> bool:
    """Tell whether factors differ by blocks: more between them than inside."""
    import numpy as np

    numbers, places = np.unique(blocks, return_inverse=True)
    # One block, or blocks of one factor each, cannot be told from single factors.
    if len(numbers) < 2 or 2 * len(numbers) > len(factors):
        return False
    sizes = np.log(np.maximum(factors, 1e-30))
    whole = float(np.var(sizes))
    means = np.bincount(places, sizes) / np.bincount(places)
    inside = float(np.mean(np.square(sizes - means[places])))
    return inside < _SPREAD * whole


def likeness(one: Sample, other: Array) -> float:
    """Return the cosine between a weight and rows of another tensor, which is 1 for the
    same direction.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        both = float((one.values * other).sum(dtype="<f8"))
        ours = np.square(one.values, dtype="<f8").sum()
        theirs = np.square(other, dtype="<f8").sum()
        size = float(ours * theirs)
    if not 0 < size < float("inf"):
        return 0.0
    return both / sqrt(size)


def factor_text(factor: float) -> str:
    """Return the words for scales that are off alike: `1.50 ×`."""
    return f"{factor:.3g} ×" if abs(log(factor)) < log(1000) else f"{factor:.1e} ×"
