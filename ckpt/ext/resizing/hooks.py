"""The work of resizing for functions of the core: PRETRAINED with tensors of the shapes
of TARGET, for `warmstart`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.commands.rewriting.edited import edited_checkpoint, with_ties
from ckpt.commands.rewriting.report import Pairing, RewriteReport
from ckpt.elements.cast import AVERAGED
from ckpt.evidence.survey import Survey
from ckpt.ext.resizing.grids import Grids, grids_of, resampling_of
from ckpt.ext.resizing.places import Resampled, Stacked, WithMeans
from ckpt.ext.warmstart.warmstart import Options, coverage_of
from ckpt.model.dtypes import contiguous
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.places import Place
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, tensor_ref
from ckpt.model.text import counted_noun, show
from ckpt.pickle.edit import Edit
from ckpt.tree.find import node_at

_NOTES = 20
"""Lines about tensors that are resized, and about those that are not."""
_EXPANDED = 1 << 20
"""The most bytes beyond its storage of a tensor with repeating strides that is
interpolated.
"""
_TOKENS = re.compile(
    r"(?:^|[._])(?:cls|class|dist|reg|register|mask)_?(?:token|tokens|embedding|embed)$"
)
"""Names of the tokens that stand before the patches of an image."""


class Way(NamedTuple):
    """The options of a person, as typed: `name` is `pad` or `interpolate`."""

    name: str
    fill: str | None
    grid: str | None


class Fit(NamedTuple):
    """A tensor of PRETRAINED that got the shape of TARGET: `copied` elements are its
    own or computed of them.
    """

    text: str
    copied: int
    is_on_named_grid: bool = False


class Fitted(NamedTuple):
    """PRETRAINED with other tensors, and what became of each by its name in TARGET.
    `notes` say what stays, and why.
    """

    survey: Survey
    fits: dict[str, Fit]
    notes: tuple[str, ...]


def fitted(
    given: Survey,
    wanted: Survey,
    limits: Limits,
    request: Options,
    way: Way,
) -> Fitted:
    """Return PRETRAINED with the tensors resized that `way` means. Raises CkptError as
    a warm start does, and UsageError where no tensor has the grids that were named.
    """
    grids = _checked_way(way)
    # Tied tensors are one node: it is resized once, for all of its names.
    given = with_ties(given, limits)
    checkpoint = given.checkpoint
    coverage = coverage_of(given, wanted, limits, request)
    rows = [row for row in coverage.of("kept") if _is_of_another_shape(row)]
    tokens = _tokens_of(wanted)
    edit = _Resized()
    fits: dict[str, Fit] = {}
    notes: list[str] = []
    for row in rows:
        assert row.source is not None and row.target is not None
        node = node_at(checkpoint.root, row.source.path)
        if tensor_of(node) is None:
            continue
        if way.name == "pad":
            made = _padded(row, way.fill or "target")
        else:
            made = _resampled(row, tokens, grids)
        if isinstance(made, str):
            notes.append(f"{show(row.name, 80)} is not resized: {made}.")
        elif made is not None:
            edit.put(node, made[0])
            fits[row.name] = made[1]
    # A grid that nobody has is a mistake of who named it.
    if grids is not None and not any(fit.is_on_named_grid for fit in fits.values()):
        raise UsageError(
            f"--grid {grids}: no position embedding of another shape has so many "
            "positions",
            path=checkpoint.path,
            hint="; ".join(notes[:2]) or None,
        )
    if not fits:
        return Fitted(given, {}, tuple(notes))
    result = edited_checkpoint(checkpoint, edit.copy(checkpoint.root), limits)
    return Fitted(Survey(result, given.model), fits, tuple(notes))


def _checked_way(way: Way) -> Grids | None:
    """Return the grids that `way` names. Raises UsageError for words that it has not,
    and for options that do not go together.
    """
    if way.fill not in (None, "target", "mean"):
        raise UsageError(f"--fill {show(str(way.fill), 40)}: not one of target mean")
    if way.fill is not None and way.name != "pad":
        raise UsageError("--fill goes with --on-mismatch pad")
    if way.grid is None:
        return None
    if way.name != "interpolate":
        raise UsageError("--grid goes with --on-mismatch interpolate")
    return grids_of(way.grid)


def said(report: RewriteReport, done: Fitted) -> RewriteReport:
    """Return the report of a warm start that also says of each tensor how it was
    resized.
    """
    coverage = report.coverage
    if coverage is None or not (done.fits or done.notes):
        return report
    pairings: list[Pairing] = []
    lines: list[str] = []
    for row in coverage.pairings:
        fit = done.fits.get(row.name) if row.status in ("loaded", "cast") else None
        # A resized tensor is loaded like any other, and says how it was made.
        if fit is not None:
            row = row._replace(why=fit.text, copied=fit.copied)
            lines.append(f"{show(row.name, 80)}: {fit.text}.")
        pairings.append(row)
    notes = [
        *_first(lines, "resized"),
        *_first(done.notes, "not resized"),
        *coverage.notes,
    ]
    return report._replace(
        coverage=coverage._replace(pairings=tuple(pairings), notes=tuple(notes))
    )


def _first(lines: Sequence[str], what: str) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - _NOTES
    if rest <= 0:
        return list(lines)
    return [*lines[:_NOTES], f"{counted_noun(rest, 'more tensor')} {what} (--json)."]


def _is_of_another_shape(row: Pairing) -> bool:
    """Tell whether two strided tensors with data on the side of PRETRAINED differ in
    their shapes alone.
    """
    if row.source is None or row.target is None or row.rows is not None:
        return False
    mine, other = row.target.tensor, row.source.tensor
    if not isinstance(mine, TensorRef) or not isinstance(other, TensorRef):
        return False
    has_data = other.storage.place is not None and bool(other.numel and mine.numel)
    return mine.shape != other.shape and has_data


def _tokens_of(wanted: Survey) -> set[int]:
    """The numbers of tokens that the model may have before its patches: one kind alone,
    and all together.
    """
    # [1, count, width] or [count, width]; a vector is one token.
    counts: list[int] = []
    for entry in wanted.tensors:
        shape = entry.tensor.shape
        if shape and _TOKENS.search(entry.name.lower()):
            counts.append(shape[-2] if len(shape) > 1 else 1)
    return {1, *counts, sum(counts)} if counts else {1}


def _padded(row: Pairing, fill: str) -> tuple[TensorRef, Fit] | str | None:
    """The tensor of PRETRAINED with the rows that TARGET has more, the reason why not,
    or None for another mismatch.
    """
    mine, other = _sides(row)
    # Rows alone may differ: a vocabulary that grew.
    if len(mine.shape) != len(other.shape) or len(mine.shape) > 2:
        return None
    if mine.shape[1:] != other.shape[1:]:
        return None
    old, new = other.shape[0], mine.shape[0]
    if new < old:
        return (
            f"PRETRAINED has {counted_noun(old - new, 'row')} more, which pad does not "
            "cut"
        )
    more = counted_noun(new - old, "row")
    if fill == "mean":
        if other.dtype.name not in AVERAGED:
            return f"{other.dtype.name} has no mean"
        text = f"{more} of {new:,} are the mean of the others"
        place: Place = WithMeans(other, new - old)
        return _over(other, place, mine.shape), Fit(text, other.numel)
    if mine.storage.place is None:
        return (
            "TARGET has no values for the new rows; --fill mean takes the mean of the "
            "old ones"
        )
    # The rows of TARGET behind those that PRETRAINED has.
    lower = tensor_ref(
        mine.storage,
        mine.dtype,
        (new - old, *mine.shape[1:]),
        mine.stride,
        mine.offset + old * mine.stride[0],
    )
    lower = lower._replace(conj=mine.conj, neg=mine.neg)
    text = f"{more} of {new:,} are the values of TARGET"
    stacked = Stacked(other, lower, mine.dtype)
    made = _over(other._replace(dtype=mine.dtype), stacked, mine.shape)
    return made, Fit(text, other.numel)


def _resampled(
    row: Pairing,
    tokens: set[int],
    grids: Grids | None,
) -> tuple[TensorRef, Fit] | str | None:
    """The tensor of PRETRAINED on the grid of TARGET, the reason why not, or None for a
    tensor without a grid.
    """
    mine, other = _sides(row)
    how = resampling_of(row.name, other.shape, mine.shape, tokens, grids)
    if how is None or isinstance(how, str):
        return how
    if other.dtype.name not in AVERAGED:
        return f"{other.dtype.name} is not interpolated"
    # Both are in memory whole: a view of a byte may expand to terabytes.
    for tensor in (other, mine):
        if tensor.nbytes > tensor.storage.nbytes + _EXPANDED:
            return (
                f"a view of {tensor.storage.nbytes:,} bytes expands to "
                f"{tensor.nbytes:,}"
            )
    # A table of relative positions is a grid too, but not the one that was named.
    is_on_named_grid = grids is not None and how.form == "rows" and how.antialias
    fit = Fit(f"interpolated {how}", mine.numel, is_on_named_grid)
    return _over(other, Resampled(other, how), mine.shape), fit


def _sides(row: Pairing) -> tuple[TensorRef, TensorRef]:
    """(the tensor of TARGET, the tensor of PRETRAINED)."""
    assert row.target is not None and row.source is not None
    mine, other = row.target.tensor, row.source.tensor
    assert isinstance(mine, TensorRef) and isinstance(other, TensorRef)
    return mine, other


def _over(like: TensorRef, place: Place, shape: tuple[int, ...]) -> TensorRef:
    """A tensor of this shape over a storage of its own."""
    storage = like.storage._replace(
        id="",
        dtype=like.dtype,
        nbytes=place.nbytes,
        place=place,
        crc=None,
    )
    return tensor_ref(storage, like.dtype, shape, contiguous(shape), 0)


class _Resized(Edit):
    """Puts resized tensors in the place of others."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, Node] = {}

    def put(self, node: Node, tensor: TensorRef) -> None:
        """Note the tensor for a node."""
        self._made[id(node)] = tensor

    def instead(self, node: Node) -> Node | None:
        return self._made.get(id(node))
