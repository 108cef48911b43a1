"""Verdicts on quantised weights beside their base, by the error that their schemes
make.

The measure is the error of a scheme at its own codes: half of the distance to the next
code, evenly spread. Rounding makes it once. GPTQ moves the error of a column into the
next columns, and makes up to twice as much. Weights of another layer or model are much
farther away. Scales of other weights show in the sizes of blocks, which stray from the
base. Rows of some places of each tensor are read.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

from ckpt.ext.quantised.find import Logical
from ckpt.ext.quantised.matrix import Cells, Matrix, decode_rows, widen_words
from ckpt.ext.quantised.unpacking import as_rows, read_rows
from ckpt.model.dtypes import BY_NAME
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Verdict = Literal["within", "factors", "scale", "other"]
"""`factors`: within, but for factors of rows and columns, which AWQ and SmoothQuant
move into the layer before.
"""

_BANDS = 4
"""Places of a tensor whose rows are read."""
_ELEMENTS = 1 << 18
"""Elements that are read at each place."""
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
_LEAST_CELLS = 8
"""The fewest blocks that say whether sizes stray."""
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


class Sample(NamedTuple):
    """Rows of a quantised weight and of its base as numbers, the error of rounding of
    each, and its cell.
    """

    values: Array
    base: Array
    steps: Array
    cells: Array


def judge(logical: Logical, base: TensorRef, base_name: str) -> Judged:
    """Return how a quantised weight stands to a tensor of the same shape. Raises
    UnreadableError.
    """
    import numpy as np

    sample = read_sample(logical, base)
    figures = _figures(sample)
    verdict, factor = _verdict(sample, figures)
    scaled = float("inf")
    if factor is not None:
        scaled = _figures(sample._replace(base=sample.base * np.float32(factor)))[1]
        if scaled > _TIMES:
            verdict, factor = "other", None  # one factor for all does not explain it
    if verdict != "within" and logical.scheme in _FACTORED:
        with np.errstate(all="ignore"):
            # A factor of a row is a stale scale where that is for the whole row.
            has_rows = logical.planned.group[-1] < logical.planned.matrix.columns
            fitted = sample._replace(
                base=_with_factors(sample.base, sample.values, has_rows=has_rows)
            )
        fitted_figures = _figures(fitted)
        is_near = _correlation(fitted) > _SAME and fitted_figures[1] < _BETTER * scaled
        if is_near and _verdict(fitted, fitted_figures)[0] == "within":
            verdict, figures, factor = "factors", fitted_figures, None
    return Judged(
        logical.name, base_name, logical.planned.text, verdict, *figures, factor
    )


def read_sample(logical: Logical, base: TensorRef) -> Sample:
    """Return rows of some places of a weight and of its base. Raises
    UnreadableError.
    """
    import numpy as np

    matrix = logical.planned.matrix
    reader = matrix.make_reader()
    is_blocks = matrix.rows * matrix.columns != base.numel
    flat = (
        as_rows(base, 1, base.numel)
        if is_blocks
        else as_rows(base, matrix.rows, matrix.columns)
    )
    parts: list[Sample] = []
    begin_cell = 0
    for first, last in _bands(matrix):
        words = decode_rows(matrix, reader, first, last, BY_NAME["float32"]).words
        values = widen_words(words, BY_NAME["float32"]).reshape(
            last - first, matrix.columns
        )
        if is_blocks:
            rows = _block_rows(flat, first, last, matrix.columns)
            values = values[: len(rows)]
        else:
            rows = read_rows(flat, first, last).astype("<f4")
        cells = reader.read_cells(first, last)
        steps = _steps(matrix, reader.read_codes(first, last), cells)[: len(rows)]
        across = cells.parameters[0].shape[1]
        numbers = cells.row_of[:, None] * across + cells.column_of + begin_cell
        begin_cell += cells.parameters[0].size
        parts.append(Sample(values, rows, steps, numbers[: len(rows)]))
    if len(parts) == 1:
        return parts[0]
    return Sample(*[np.concatenate(rows) for rows in zip(*parts, strict=True)])


def _bands(matrix: Matrix) -> list[tuple[int, int]]:
    """The rows from first to last of each place, which the reader takes at once."""
    size = matrix.fixed_step or max(
        1, min(matrix.rows, _ELEMENTS // max(1, matrix.columns))
    )
    if _BANDS * size >= matrix.rows:
        return [
            (first, min(first + size, matrix.rows))
            for first in range(0, matrix.rows, size)
        ]
    last = (matrix.rows - size) // size
    starts = sorted({last * place // (_BANDS - 1) * size for place in range(_BANDS)})
    return [(first, first + size) for first in starts]


def _block_rows(flat: TensorRef, first: int, last: int, width: int) -> Array:
    """Return elements of a flat tensor in rows, without a last row that is short."""
    from ckpt.ext.quantised.unpacking import read_part

    end = min(last * width, flat.numel) // width * width
    part = read_part(flat, range(1), range(first * width, max(end, first * width)))
    return part.astype("<f4").reshape(-1, width)


def _steps(matrix: Matrix, codes: Array, cells: Cells) -> Array:
    """Return the error that rounding makes at each code, as a square."""
    import numpy as np

    levels = np.arange(matrix.levels, dtype="u1")
    rest = [np.zeros((1, 1), "<f4") for _ in cells.parameters[1:]]
    with np.errstate(all="ignore"):
        units = np.asarray(
            matrix.formula(levels[None], np.ones((1, 1), "<f4"), *rest), "<f8"
        ).reshape(-1)
        finite = np.isfinite(units)
        numbers = np.unique(units[finite])
        gaps = np.diff(numbers)
        edges = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
        squares = np.zeros(len(units))
        squares[finite] = edges[np.searchsorted(numbers, units[finite])] ** 2 / 12
        scales = cells.parameters[0].astype("<f8") ** 2
        spread: Array = squares[codes] * scales[np.ix_(cells.row_of, cells.column_of)]
    return spread


Figures = tuple[float, float]
"""The error beside the weights, and beside the error of rounding."""


def _figures(sample: Sample) -> Figures:
    """Return the error of a sample. It is infinite where numbers are not finite."""
    import numpy as np

    with np.errstate(all="ignore"):
        wide = sample.base.astype("<f8")
        error = float(np.square(sample.values - wide).sum())
        size, least = float(np.square(wide).sum()), float(sample.steps.sum())
    if not np.isfinite(error) or not np.isfinite(size):
        return float("inf"), float("inf")
    if error == 0:
        return 0.0, 0.0
    return sqrt(error / size) if size else float("inf"), sqrt(
        error / least
    ) if least else float("inf")


def _verdict(sample: Sample, figures: Figures) -> tuple[Verdict, float | None]:
    """Return the verdict on a sample, and the factor by which all of its scales are
    off.
    """
    error, times = figures
    if error == 0:
        return "within", None
    strays, middle, most = _strays(sample)
    cosine = _correlation(sample)
    if (
        cosine > _ALIKE
        and times <= _TIMES
        and strays <= _STRAYS
        and abs(middle) <= most
    ):
        return "within", None
    if cosine < _SAME:
        return "other", None
    if strays > _STRAYS:
        return "scale", None
    return "scale", exp(middle)  # unless that does not explain it


def _correlation(sample: Sample) -> float:
    """The cosine between a weight and its base; blocks count alike, whatever their
    scales.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        count = int(sample.cells.max()) + 1
        cells = sample.cells.reshape(-1)
        both = np.bincount(cells, (sample.values * sample.base).reshape(-1), count)
        one = np.bincount(cells, np.square(sample.values).reshape(-1), count)
        other = np.bincount(cells, np.square(sample.base).reshape(-1), count)
        cosines = both / np.sqrt(one * other)
    cosines = cosines[np.isfinite(cosines)]
    return float(np.median(cosines)) if len(cosines) else 0.0


def _strays(sample: Sample) -> tuple[float, float, float]:
    """Return how far the sizes of blocks stray from the base, in errors; their middle,
    and the most it may be.

    The size of a block is the root of the sum of squares; the middle is a logarithm.
    """
    import numpy as np

    cells = sample.cells.reshape(-1)
    count = int(cells.max()) + 1
    with np.errstate(all="ignore"):
        numel = np.bincount(cells, minlength=count)
        ours = np.bincount(
            cells, np.square(sample.values.reshape(-1), dtype="<f8"), count
        )
        theirs = np.bincount(
            cells, np.square(sample.base.reshape(-1), dtype="<f8"), count
        )
        error = (sample.values - sample.base).reshape(-1).astype("<f8")
        relative = np.bincount(cells, np.square(error), count) / theirs
        # What is left of the sum of weight times error, whose signs are as they come:
        # few large weights may be most of it.
        crossed = np.bincount(
            cells, np.square(error * sample.base.reshape(-1)), count
        ) / np.square(theirs)
        ratios = np.log(ours / theirs) / 2
        spread = np.sqrt(crossed + np.square(relative / 2)) + 1e-4
    usable = np.isfinite(ratios) & (numel > 1)
    if not usable.any():
        return 0.0, 0.0, float("inf")
    ratios, spread, relative = ratios[usable], spread[usable], relative[usable]
    middle = float(np.median(ratios))
    strays = float(np.median(np.abs(ratios - middle) / spread)) * 1.48
    if len(ratios) < _LEAST_CELLS:
        return 0.0, middle, _SINGLE * float(np.median(spread))
    return strays, middle, _MIDDLE * float(np.median(spread))


def _with_factors(base: Array, values: Array, *, has_rows: bool) -> Array:
    """Return the base with the factors of rows and columns that bring it nearest to the
    values. None is negative.

    Nobody moves a sign into the layer before.
    """
    import numpy as np

    wide = base.astype("<f8")
    columns = np.maximum(
        (wide * values).sum(0) / np.maximum(np.square(wide).sum(0), 1e-300), 0
    )
    wide = wide * columns
    if not has_rows:
        return np.asarray(wide, "<f4")
    rows = np.maximum(
        (wide * values).sum(1) / np.maximum(np.square(wide).sum(1), 1e-300), 0
    )
    fitted: Array = (wide * rows[:, None]).astype("<f4")
    return fitted


def likeness(one: Sample, other: Array) -> float:
    """Return the cosine between a weight and rows of another tensor, which is 1 for the
    same direction.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        both = float((one.values * other).sum(dtype="<f8"))
        size = float(
            np.square(one.values, dtype="<f8").sum()
            * np.square(other, dtype="<f8").sum()
        )
    return both / sqrt(size) if size > 0 and size != float("inf") else 0.0


def factor_text(factor: float) -> str:
    """Return the words for scales that are off alike: `1.50 ×`."""
    return f"{factor:.3g} ×" if abs(log(factor)) < log(1000) else f"{factor:.1e} ×"
