"""The judgement of each tensor of a GGUF file by the error that its type makes: it is
the base, or it is something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckpt.elements.compare import compare
from ckpt.ext.gguf.meeting import Renamed
from ckpt.ext.gguf.names import MADE
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import CkptError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef
from ckpt.model.text import Json, counted_noun, show, show_folded_names, show_name
from ckpt.surface.text.lines import Line, hanging_lines

if TYPE_CHECKING:
    from ckpt.commands.diff.diff import DiffReport
    from ckpt.commands.diff.rows import Row

MOST_ERROR = {
    "float64": 1e-6,
    "float32": 1e-4,
    "float16": 2e-3,
    "bfloat16": 6e-3,
    "Q8_K": 0.03,
    "Q8_0": 0.03,
    "Q6_K": 0.08,
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), 0.16),
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS"), 0.30),
    **dict.fromkeys(("MXFP4", "NVFP4"), 0.40),
    "Q3_K": 0.45,
    **dict.fromkeys(("IQ3_S", "IQ3_XXS"), 0.55),
    **dict.fromkeys(("Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS"), 0.75),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "Q1_0"), 0.92),
}
"""The most that the norm of an error is of the norm of a tensor, for each type.

It is four times what rounding to the type makes of weights with a normal distribution,
which leaves room for long tails, and at most 0.92 for the types of one or two bits: a
tensor that has nothing in common with the base differs by 1.4, and by 1 where it is
small.
"""
_MOSTLY = 0.9
"""The relative error of what is mostly the base, and may have a few rows that
are not.
"""
_LOOKED = 12
"""The wrong tensors of which it is looked at what they are."""
_OTHERS = 400
"""The tensors of the base that one wrong tensor is compared with."""
_SAMPLE = 1 << 16
"""Elements that are compared to see what a tensor is."""


_UNSEEN = "It was not compared."
"""The verdict on a tensor that was not read, or that is damaged."""


class Verdict(NamedTuple):
    """The judgement of a tensor: its names in both files, its type, the relative error,
    and what it is instead, if known.

    `by` is the type that rounds the most, its own or the type of the base. It is None
    if neither is known.
    """

    name: str
    stored: str
    type: str
    by: str | None
    error: float | None
    is_within: bool
    what: str | None = None

    def to_json(self) -> dict[str, Json]:
        """An object of `gguf.tensors` of the document `ckpt.diff`."""
        return {
            "name": self.name,
            "stored": self.stored,
            "type": self.type,
            "relative_error": self.error,
            "within": self.is_within,
            "what": self.what,
        }


class GgufAccount(NamedTuple):
    """The judgement of all tensors of a GGUF file, and the tensors of one side
    alone.
    """

    base: str
    gguf: str
    architecture: str
    verdicts: tuple[Verdict, ...]
    lacking: tuple[str, ...]
    more: tuple[str, ...]
    made: tuple[str, ...]

    @property
    def wrong(self) -> list[Verdict]:
        return [row for row in self.verdicts if not row.is_within]

    @property
    def is_other_model(self) -> bool:
        """Tell whether most of the tensors that can tell are of something else."""
        return 2 * len(self.wrong) > len(self.verdicts)

    @property
    def differs(self) -> bool:
        """Tell whether a tensor is not within its type, or is on one side alone."""
        return bool(self.wrong or self.lacking or self.more)

    def to_json(self) -> dict[str, Json]:
        """The field of the document `ckpt.diff` that only a quantised side has."""
        return {
            "gguf": {
                "architecture": self.architecture,
                "within": not self.differs,
                "other_model": self.is_other_model,
                "tensors": [row.to_json() for row in self.verdicts],
                "lacking": list(self.lacking),
                "more": list(self.more),
            }
        }

    def lines(self, width: int | None) -> list[Line]:
        """The judgement as a person reads it: the answer first, then each type, then
        what is wrong.
        """
        head: Line = [(show(self.gguf, None), "name"), (" ", "")]
        out = hanging_lines(head, self._answer(), width, 2)
        for text in self._by_type():
            out += hanging_lines([("  ", "")], text, width, 4)
        for row in self.wrong[:_LOOKED]:
            out += hanging_lines([("! ", "error")], _wrong_text(row), width, 4)
        if len(self.wrong) > _LOOKED:
            out.append([(f"… {len(self.wrong) - _LOOKED:,} more (--json)", "dim")])
        lists = (
            (f"only in {self.base}", self.lacking),
            (f"only in {self.gguf}", self.more),
            ("made by the converter, in no base", self.made),
        )
        for label, names in lists:
            if names:
                text = f"{label}: {show_folded_names(names, 6)}"
                out += hanging_lines([("  ", "")], text, width, 4)
        return out

    def _answer(self) -> str:
        base = show(self.base, None)
        count = counted_noun(len(self.verdicts), "tensor")
        if self.is_other_model:
            return (
                f"is not {base}: {len(self.wrong):,} of {count} are other weights "
                f"(names of {self.architecture} paired)"
            )
        if self.wrong:
            return f"is {base}, but for {len(self.wrong):,} of {count}"
        within = "are within what their types make"
        if len(self.verdicts) == 1:
            within = "is within what its type makes"
        if self.lacking or self.more:
            return f"is {base} as far as both hold it: {count} {within}"
        every = "" if len(self.verdicts) == 1 else "all "
        return f"is {base}: {every}{count} {within}"

    def _by_type(self) -> Iterator[str]:
        """Yield a line for each type: how many tensors are within it, and their errors;
        last those that are equal.
        """
        equal = 0
        rows: dict[str, list[Verdict]] = {}
        for row in self.verdicts:
            if row.is_within:
                rows.setdefault(row.by or row.type, []).append(row)
        # The type of most tensors comes first.
        for name, verdicts in sorted(rows.items(), key=lambda item: -len(item[1])):
            errors = [row.error for row in verdicts if row.error is not None]
            # Without any error they are equal, whatever their type could make.
            if not any(errors):
                equal += len(verdicts)
                continue
            text = f"within {name} of the base: {counted_noun(len(verdicts), 'tensor')}"
            yield (
                f"{text}, relative error {_range_text(errors)} (at most "
                f"{MOST_ERROR[name] * 100:.2g} %)"
            )
        if equal:
            yield f"equal: {counted_noun(equal, 'tensor')}"


def _range_text(errors: Sequence[float]) -> str:
    low = f"{min(errors) * 100:.2g} %"
    high = f"{max(errors) * 100:.2g} %"
    # Errors that are shown alike are one.
    return low if low == high else f"{low} to {high}"


def _wrong_text(row: Verdict) -> str:
    if row.what == _UNSEEN:
        return f"{show_name(row.stored)} was not compared with {show_name(row.name)}"
    # A reason stands in the place of an error that was not measured.
    if row.error is None and row.what is not None:
        return f"{show_name(row.stored)} is not {show_name(row.name)}. {row.what}"
    error = f"relative error {(row.error or 0) * 100:.3g} %"
    if row.error is None:
        error = "no relative error (one side is zero, or has NaN)"
    most = ""
    if row.by is not None:
        most = f", {row.by} makes {MOST_ERROR[row.by] * 100:.2g} % at most"
    text = f"{show_name(row.stored)} is not {show_name(row.name)}: {error}{most}"
    return text if row.what is None else f"{text}. {row.what}"


def account_of(report: DiffReport, gguf: Renamed, *, is_before: bool) -> GgufAccount:
    """Judge the rows of a comparison."""
    side = 0 if is_before else 1
    pairs: list[tuple[Row, Entry, Entry]] = []
    alone: tuple[list[str], list[str]] = [], []
    made: list[str] = []
    for row in report.rows:
        entry, base = (row.before, row.after) if is_before else (row.after, row.before)
        if entry is None or base is None:
            # Tables of the converter, and a head that is the embedding, are not missed.
            if entry is not None and entry.name in MADE:
                made.append(entry.name)
            elif entry is not None or not _is_tied(row, report):
                alone[entry is not None].append(row.name)
            continue
        # The type is that of the file: what was compared may be decoded already.
        index = row.indices[side]
        given = gguf.given[index] if index is not None else entry
        pairs.append((row, given, base))

    verdicts: list[Verdict] = []
    for row, given, base in pairs:
        types = given.tensor.dtype.name, base.tensor.dtype.name
        verdict = _judged(row, base.name, given.name, types, is_before=is_before)
        verdicts.append(verdict)
    wrong: list[tuple[int, Row]] = []
    for number, judged in enumerate(verdicts):
        if not judged.is_within:
            wrong.append((number, pairs[number][0]))
    # Of another model each tensor is something else: nothing is looked for.
    is_other = 2 * len(wrong) > len(verdicts)
    for number, row in [] if is_other else wrong[:_LOOKED]:
        what = verdicts[number].what
        if not what:
            what = _what_it_is(row, report, gguf, is_before=is_before)
        verdicts[number] = verdicts[number]._replace(what=what)
    paths = [report.before.path, report.after.path]
    return GgufAccount(
        paths[1 - side],
        paths[side],
        gguf.architecture,
        tuple(verdicts),
        tuple(alone[0]),
        tuple(alone[1]),
        tuple(made),
    )


def _is_tied(row: Row, report: DiffReport) -> bool:
    """Tell whether a tensor of the base is the head of a model that shares it with the
    embedding, which GGUF leaves out.
    """
    end = "lm_head.weight"
    if not row.name.endswith(end):
        return False
    for other in report.rows:
        if other.name.endswith(end) and other is not row:
            return False
    return _equals_embedding(row, report)


def _equals_embedding(row: Row, report: DiffReport) -> bool:
    head = row.before or row.after
    if head is None:
        return False
    for other in report.rows:
        for entry in (other.before, other.after):
            if entry is None or not entry.name.endswith(_EMBEDDINGS):
                continue
            tensor = entry.tensor
            # Of the same dtype: the embedding of the GGUF is rounded.
            if tensor.dtype == head.tensor.dtype and tensor.shape == head.tensor.shape:
                return _error_between(head.tensor, tensor) == 0
    return False


_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
"""The ends of the names of embeddings that a head may share."""


def _judged(
    row: Row,
    name: str,
    stored: str,
    types: tuple[str, str],
    *,
    is_before: bool,
) -> Verdict:
    """The judgement of a pair. `types` are its own type and the type of the base, which
    may be rounded more.
    """
    # Both sides may be rounded: the coarser type says how far they may be apart.
    known = [type for type in types if type in MOST_ERROR]
    by = max(known, key=MOST_ERROR.__getitem__, default=None)
    if row.status == "reshaped":
        return Verdict(
            name,
            stored,
            types[0],
            by,
            None,
            False,
            "Its shape is another one.",
        )
    if row.unread is not None or row.damaged or row.status == "unchecked":
        return Verdict(name, stored, types[0], by, None, False, _UNSEEN)
    change = row.change
    error = 0.0 if change is None or not change.differing else change.rel_l2
    # NaN has no distance: a tensor with some is wrong unless the base has the same.
    if change is not None and not change.is_finite_alike:
        mine = 0 if is_before else 1
        numbers = [change.nan[side] + change.inf[side] for side in (mine, 1 - mine)]
        what = (
            f"{counted_noun(numbers[0], 'element')} of it and {numbers[1]:,} of the "
            "base are NaN or infinite."
        )
        return Verdict(name, stored, types[0], by, None, False, what)
    is_within = False
    if error is not None:
        is_within = error == 0 or (by is not None and error <= MOST_ERROR[by])
    verdict = Verdict(name, stored, types[0], by, error, is_within)
    # Rows that differ much stand out only where the rest is the base.
    is_mostly = error is not None and 0 < error < _MOSTLY
    odd = None if change is None else change.odd
    if not is_mostly or odd is None or odd.is_empty:
        return verdict
    return verdict._replace(is_within=False, what=f"Of it {odd.text}.")


def _what_it_is(
    row: Row,
    report: DiffReport,
    gguf: Renamed,
    *,
    is_before: bool,
) -> str | None:
    """The sentence on a wrong tensor: rows in another order, or the tensor of the base
    that it is. None if neither is found.
    """
    entry, base = (row.before, row.after) if is_before else (row.after, row.before)
    index = row.indices[0 if is_before else 1]
    if entry is None or base is None or index is None:
        return None
    given = gguf.given[index]
    most = MOST_ERROR.get(given.tensor.dtype.name, 0.0)
    # As the file has it, before what the converter does is undone.
    if given.tensor is not entry.tensor and _is_like(given.tensor, base.tensor, most):
        return (
            "It is in transformers' own order: the converter did not change it, and "
            "llama.cpp needs that."
        )
    others = report.after if is_before else report.before
    # Layers of one kind have one shape: another one may be in its place.
    same: list[Entry] = []
    for other in others.tensors:
        if other.tensor.shape == base.tensor.shape and other.name != base.name:
            same.append(other)
    for other in same[:_OTHERS]:
        if _is_like(entry.tensor, other.tensor, most):
            return f"It is {show_name(other.name)} of the base."
    return None


def _is_like(tensor: object, base: object, most: float) -> bool:
    error = _error_between(base, tensor)
    return error is not None and error <= most


def _error_between(base: object, tensor: object) -> float | None:
    """The relative error of a tensor in its first elements, or None where they cannot
    be compared.
    """
    if not isinstance(base, TensorRef) or not isinstance(tensor, TensorRef):
        return None
    if base.shape != tensor.shape:
        return None
    try:
        change = compare(_beginning(base), _beginning(tensor))
    except CkptError:
        return None
    return 0.0 if change is None else change.rel_l2


def _beginning(ref: TensorRef) -> TensorRef:
    """The first rows of a tensor, as its numbers."""
    from ckpt.elements.blocks import is_dense, slice_of
    from ckpt.elements.unpacked import can_unpack, unpacked

    ref = unpacked(ref) if can_unpack(ref) else ref
    if not is_dense(ref):
        return ref
    return slice_of(ref, 0, min(ref.numel, _SAMPLE))
