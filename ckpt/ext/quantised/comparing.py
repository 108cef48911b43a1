"""`ckpt diff` of weights and their quantised form: each is judged by the error that its
scheme makes, and the rest is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ckpt.bytes.executor import Local, Task, run_bundled
from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.findings import without_training
from ckpt.commands.diff.rows import DIFFERS, Row, ValueRow
from ckpt.elements.lines import LineTest
from ckpt.evidence.survey import Survey
from ckpt.ext.quantised.edit import plain_checkpoint
from ckpt.ext.quantised.find import Logical
from ckpt.ext.quantised.judge import (
    Judged,
    Sample,
    factor_text,
    judge,
    likeness,
    read_sample,
    with_lines,
)
from ckpt.ext.quantised.unpacking import as_rows, read_rows
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import (
    Json,
    be_verb,
    counted_noun,
    show,
    show_folded_names,
    show_name,
)
from ckpt.surface.text.lines import Line, hanging_lines

_NAMES = 6
"""Names that are listed in one line."""
_ROUNDING = 2.0**-8
"""The error of a cast to bfloat16, beside the weights."""
_EXPLAINED = 16
"""The wrong weights of which it is looked what they are."""
_CANDIDATES = 512
"""The tensors of the base that one of them may be."""
_VALUE = 40
"""Columns of a value that differs."""
_SET_BY_QUANTISERS = frozenset(
    ("torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache")
)
"""Settings in a config.json that the program which quantises writes anew."""
_WORDS = {
    "factors": "with factors of rows or columns, which its layers before take back",
    "scale": "with scales that are not those of these weights",
    "other": "other weights",
}


class Judging(NamedTuple):
    """Two checkpoints whose quantised weights are plain, and what these are, by their
    names on either side.
    """

    before: Survey
    after: Survey
    logical: tuple[dict[str, Logical], dict[str, Logical]]
    stays: tuple[str, ...] = ()

    def line_test(self, row: Row) -> LineTest | None:
        """Return the test of the rows and columns of a weight that is judged, or None
        for any other tensor.
        """
        pair = _pair_of(row, self)
        if pair is None:
            return None
        side, _ = pair
        mine = (row.before, row.after)[side]
        assert mine is not None
        matrix = self.logical[side][mine.name].planned.matrix
        # One process reads and judges a weight: each that starts has numpy to load.
        return LineTest(1 - side, matrix.column_groups, _task_of(row, *pair, self))


def judging_of(before: Survey, after: Survey, limits: Limits) -> Judging | None:
    """Return two checkpoints with plain weights, where one has quantised ones that the
    other has not in that form.

    Raises CkptError.
    """
    sides = [_plain(side, limits) for side in (before, after)]
    rows: list[set[tuple[str, str]]] = []
    for _, found in sides:
        rows.append({(row.name, row.planned.text) for row in found.values()})
    # Both have the same codes: these are compared as they are.
    if rows[0] == rows[1]:
        return None
    return Judging(sides[0][0], sides[1][0], (sides[0][1], sides[1][1]))


def _plain(side: Survey, limits: Limits) -> tuple[Survey, dict[str, Logical]]:
    checkpoint, found = plain_checkpoint(side.checkpoint, limits)
    if not found.logical:
        return side, {}
    return Survey(checkpoint, side.model), {row.name: row for row in found.logical}


class Judgement(NamedTuple):
    """The verdicts on quantised weights, and what else differs: the names, and how."""

    base: str
    quantised: str
    rows: tuple[Judged, ...]
    others: tuple[tuple[str, str], ...]
    casts: int
    moved: tuple[str, ...] = ()
    """Vectors that differ beside weights with factors."""
    equal: int = 0
    """The other tensors that both sides have alike."""
    settings: tuple[ValueRow, ...] = ()
    """Values of both sides that differ, but for those that a quantiser sets."""
    lonely: tuple[str, ...] = ()
    """The names of values that one side alone has, but for the same."""

    @property
    def wrong(self) -> list[Judged]:
        """The weights that the base does not have in their place."""
        return [row for row in self.rows if row.verdict in ("scale", "lines", "other")]

    @property
    def differs(self) -> bool:
        return bool(self.wrong or self.others or self.settings)

    def to_json(self) -> dict[str, Json]:
        return {
            "quantised": {
                "base": self.base,
                "weights": [
                    {
                        "name": row.name,
                        "base": row.base,
                        "text": row.text,
                        "verdict": row.verdict,
                        "error": _finite(row.error),
                        "times": _finite(row.times),
                        "factor": row.factor,
                        "like": row.like or None,
                        "what": row.what or None,
                    }
                    for row in self.rows
                ],
                "others": [
                    {"name": name, "status": status} for name, status in self.others
                ],
                "cast": self.casts,
            }
        }

    def lines(self, width: int | None) -> list[Line]:
        out: list[Line] = []
        for text, rows in self._by_scheme().items():
            right = [row for row in rows if row.verdict in ("within", "factors")]
            verb = be_verb(right)
            line = (
                f"{len(right):,} of {counted_noun(len(rows), 'weight')} {verb} within "
                f"{text} of {show(self.base, None)}"
            )
            if right:
                error = median([row.error for row in right])
                line += (
                    f": error {100 * error:.2f} % of the weights, "
                    f"{median([row.times for row in right]):.2g} × rounding"
                )
            out += hanging_lines([], line, width, 2, "head")
        for text in self._groups():
            out += hanging_lines([("  ", "")], text, width, 4)
        if self.moved:
            text = (
                f"moved with the factors: {show_folded_names(list(self.moved), _NAMES)}"
            )
            out += hanging_lines([], text, width, 2)
        if self.casts:
            text = f"cast: {counted_noun(self.casts, 'tensor')}"
            text = f"{text}, within the rounding of a cast"
            out += hanging_lines([], text, width, 2)
        if self.equal:
            text = f"equal: {counted_noun(self.equal, 'other tensor')}"
            out += hanging_lines([], text, width, 2)
        for value in self.settings[:_NAMES]:
            out += hanging_lines([], _setting_text(value), width, 2)
        rest = len(self.settings) - _NAMES
        if rest > 0:
            text = f"also changed: {counted_noun(rest, 'more value')} (--json)"
            out += hanging_lines([], text, width, 2)
        if self.lonely:
            text = f"on one side only: {counted_noun(len(self.lonely), 'value')}: "
            text += show_folded_names(list(self.lonely), _NAMES)
            out += hanging_lines([], text, width, 2)
        groups: dict[str, list[str]] = {}
        for name, status in self.others:
            groups.setdefault(status, []).append(name)
        for status, names in groups.items():
            text = (
                f"also {status}: {counted_noun(len(names), 'tensor')}: "
                f"{show_folded_names(names, _NAMES)}"
            )
            out += hanging_lines([], text, width, 2)
        return out

    def _by_scheme(self) -> dict[str, list[Judged]]:
        groups: dict[str, list[Judged]] = {}
        for row in self.rows:
            groups.setdefault(row.text, []).append(row)
        return groups

    def _groups(self) -> Iterator[str]:
        """Yield what is to be said of weights, those together of which the same is."""
        groups: dict[str, list[str]] = {}
        for row in self.rows:
            text = _words(row)
            if text:
                groups.setdefault(text, []).append(row.name)
        for text, names in groups.items():
            yield f"{text}: {show_folded_names(names, _NAMES)}"


def _setting_text(row: ValueRow) -> str:
    """The words for a value that both sides have, and otherwise."""
    from ckpt.commands.diff.text import value_change  # `inspect` has no need of it

    sides = "".join(text for text, _ in value_change(row, _VALUE))
    return f"also changed: {show_name(row.name)}: {sides}"


def _is_setting(row: ValueRow) -> bool:
    """Tell whether a value is one that a quantiser leaves alone."""
    steps = row.name.split(".")
    return "quantization_config" not in steps and steps[-1] not in _SET_BY_QUANTISERS


def _words(row: Judged) -> str:
    """The words for a weight, or `` where there is nothing to say."""
    if row.verdict == "within":
        return ""
    if row.like:
        return f"the weights of {show_name(row.like)}"
    if row.what:
        return row.what
    if row.factor is not None:
        return f"scales are {factor_text(row.factor)} those of the base"
    return _WORDS[row.verdict]


def _finite(number: float) -> float | None:
    return number if abs(number) < float("inf") else None


def judged(report: DiffReport, judging: Judging) -> DiffReport:
    """Return the report with verdicts in the place of numbers, where quantised weights
    met plain ones.

    Raises UnreadableError.
    """
    pairs: list[tuple[Row, int, TensorRef]] = []
    for row in report.rows:
        pair = _pair_of(row, judging)
        if pair is not None:
            pairs.append((row, *pair))
    if not pairs:
        return report

    rows: list[Judged] = []
    executor = report.options.executor or Local()
    # A weight that was compared by its lines was judged by the same process.
    seen = [None if row.change is None else row.change.seen for row, *_ in pairs]
    tasks: list[Task[Judged]] = []
    for (row, side, base), verdict in zip(pairs, seen, strict=True):
        if verdict is None:
            tasks.append(_task_of(row, side, base, judging))
    rest = iter(run_bundled(executor, tasks))
    for (row, *_), verdict in zip(pairs, seen, strict=True):
        odd = None if row.change is None else row.change.odd
        known = verdict if isinstance(verdict, Judged) else next(rest)
        rows.append(with_lines(known, odd))
    # All pairs have their quantised weights on one side: the other is the base.
    side = pairs[0][1]
    rows = _named(rows, [pair[0] for pair in pairs], judging, side)
    asked = {id(pair[0]) for pair in pairs}
    has_factors = any(row.verdict == "factors" for row in rows)
    others: list[tuple[str, str]] = []
    moved: list[str] = []
    casts = 0
    equal = 0
    for row in report.rows:
        if id(row) in asked:
            continue
        if row.status not in DIFFERS:
            equal += row.status in ("same", "renamed")
            continue
        entry = row.after or row.before
        if _is_cast(row):
            casts += 1
        # The layer before has the factors back: its vectors moved with them.
        elif (
            has_factors
            and row.status != "reshaped"
            and entry is not None
            and len(entry.tensor.shape) == 1
        ):
            moved.append(row.name)
        else:
            others.append((row.name, row.status))
    on_both: list[ValueRow] = []
    lonely: list[str] = []
    for value in filter(_is_setting, report.values):
        if value.before is None or value.after is None:
            lonely.append(value.name)
        else:
            on_both.append(value)
    paths = (judging.before.path, judging.after.path)
    account = Judgement(
        paths[1 - side],
        paths[side],
        tuple(rows),
        tuple(others),
        casts,
        tuple(moved),
        equal,
        tuple(on_both),
        tuple(lonely),
    )
    # Codes say nothing of a training: what did not change is no finding.
    findings = without_training(report.findings)
    return report._replace(account=account, findings=findings)


def _task_of(row: Row, side: int, base: TensorRef, judging: Judging) -> Task[Judged]:
    """Return the task of judging a weight."""
    entries = (row.before, row.after)
    mine, other = entries[side], entries[1 - side]
    assert mine is not None and other is not None
    logical = judging.logical[side][mine.name]
    return Task(judge, (logical, base, other.name), logical.nbytes + base.nbytes)


def _is_cast(row: Row) -> bool:
    """Tell whether a tensor differs by its dtype alone, and by what a cast rounds."""
    change = row.change
    if row.status != "retyped" or change is None or not change.is_finite_alike:
        return False
    if not change.differing:
        return True
    return change.rel_l2 is not None and change.rel_l2 <= _ROUNDING


def _pair_of(row: Row, judging: Judging) -> tuple[int, TensorRef] | None:
    """Return the side of a row that is quantised, and the plain tensor of the other
    side.
    """
    entries = (row.before, row.after)
    if entries[0] is None or entries[1] is None or row.unread is not None:
        return None
    sides = [side for side in (0, 1) if entries[side].name in judging.logical[side]]  # type: ignore[union-attr]
    if len(sides) != 1:
        return None
    mine, other = entries[sides[0]], entries[1 - sides[0]]
    assert mine is not None and other is not None
    is_plain = (
        isinstance(other.tensor, TensorRef) and other.tensor.dtype.kind == "float"
    )
    if not is_plain or other.tensor.shape != mine.tensor.shape:
        return None
    assert isinstance(other.tensor, TensorRef)
    return sides[0], other.tensor


def _named(
    rows: Sequence[Judged],
    pairs: Sequence[Row],
    judging: Judging,
    side: int,
) -> list[Judged]:
    """Return the verdicts with the tensor of the base that a wrong weight is, where one
    is found.
    """
    bases: dict[tuple[int, ...], list[tuple[str, TensorRef]]] = {}
    for pair in pairs:
        entry = (pair.before, pair.after)[1 - side]
        if entry is not None and isinstance(entry.tensor, TensorRef):
            bases.setdefault(entry.tensor.shape, []).append((entry.name, entry.tensor))
    named: list[Judged] = []
    explained = 0
    for row in rows:
        if row.verdict == "other" and explained < _EXPLAINED:
            explained += 1
            logical = judging.logical[side][row.name]
            candidates = bases.get(logical.shape, [])
            row = row._replace(like=_like(logical, candidates, row.base))
        named.append(row)
    return named


def _like(logical: Logical, bases: Sequence[tuple[str, TensorRef]], own: str) -> str:
    """Return the name of the tensor of the base that a weight is, or ``."""
    matrix = logical.planned.matrix
    # A few rows are enough: other weights have nothing in common with them.
    fitting = max(1, (1 << 16) // max(1, matrix.columns))
    rows = min(matrix.rows, matrix.fixed_step or fitting)
    planned = logical.planned._replace(matrix=matrix._replace(rows=rows))
    few = logical._replace(planned=planned)
    if matrix.rows * matrix.columns != logical.numel:
        return ""
    try:
        sample: Sample | None = None
        # A cosine of one half: weights of two layers have one near 0.
        best = ("", 0.5)
        for name, ref in bases[:_CANDIDATES]:
            if name == own:
                continue
            part = as_rows(ref, matrix.rows, matrix.columns)
            if sample is None:
                # The sample of the quantised weight is read once, beside any base.
                numel = rows * matrix.columns
                top = ref._replace(shape=(rows, matrix.columns), numel=numel)
                sample = read_sample(few, top)
            found = likeness(sample, read_rows(part, 0, len(sample.values)))
            if found > best[1]:
                best = (name, found)
    # An unreadable tensor has its own lines in the report.
    except CkptError:
        return ""
    return best[0]
