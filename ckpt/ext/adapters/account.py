"""The account of a merge: each adapter with all of its tensors, and each layer with the
tensors of the base that it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.ext.adapters.base import Shift
from ckpt.ext.adapters.plan import Pair, Plan
from ckpt.ext.adapters.reader import Adapter
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, show, show_folded_names
from ckpt.surface.text.lines import Line, hanging_lines

_GROUPS = 12
_NAMES = 6


class Merged(NamedTuple):
    """A layer of an adapter, the tensors that it changed, and its scale with the weight
    of the adapter in it.
    """

    adapter: int
    layer: str
    tensors: tuple[str, ...]
    rank: int
    scale: float
    method: str

    def to_json(self) -> dict[str, Json]:
        """An object of `merged` of the document `ckpt.rewrite`."""
        return {
            "adapter": self.adapter,
            "layer": self.layer,
            "tensors": list(self.tensors),
            "rank": self.rank,
            "scale": self.scale,
            "method": self.method,
        }


class Source(NamedTuple):
    """An adapter in the account. All of its `tensors` were used; `copies` equal tensors
    of the base.
    """

    path: str
    names: str
    tensors: int
    layers: int
    weight: float
    ranks: tuple[int, ...]
    scale_from: tuple[str, ...]
    shifts: tuple[Shift, ...]
    replaced: tuple[str, ...]
    tokens: tuple[str, ...]
    copies: int
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """An object of `adapters` of the document `ckpt.rewrite`."""
        return {
            "path": self.path,
            "names": self.names,
            "tensors": self.tensors,
            "layers": self.layers,
            "weight": self.weight,
            "ranks": list(self.ranks),
            "scale_from": list(self.scale_from),
            "aligned": [[shift.before, shift.after] for shift in self.shifts],
            "replaced": list(self.replaced),
            "tokens": list(self.tokens),
            "copies": self.copies,
            "left_out": list(self.left),
        }


class MergeAccount(NamedTuple):
    """All that a merge did, layer by layer."""

    sources: tuple[Source, ...]
    merged: tuple[Merged, ...]

    def to_json(self) -> dict[str, Json]:
        """The fields of the document `ckpt.rewrite` that only a merge has."""
        return {
            "adapters": [source.to_json() for source in self.sources],
            "merged": [row.to_json() for row in self.merged],
        }

    def lines(self, width: int | None) -> list[Line]:
        """The account as a person reads it."""
        out: list[Line] = []
        for index, source in enumerate(self.sources):
            rows = [row for row in self.merged if row.adapter == index]
            out += hanging_lines(
                [("adapter: ", "")],
                self._source_headline(source),
                width,
                2,
            )
            for text in [*_layer_texts(rows), *_source_notes(source)]:
                out += hanging_lines([("  ", "")], text, width, 4)
        return out

    def _source_headline(self, source: Source) -> str:
        of = source.tensors
        text = (
            f"{show(source.path, None)}: {source.names}, "
            f"{counted_noun(source.layers, 'layer')}"
        )
        if source.weight != 1:
            text += f", weight {source.weight:g}"
        return f"{text}, {of:,} of {counted_noun(of, 'tensor')} used"


def _layer_texts(rows: Sequence[Merged]) -> list[str]:
    """The tensors that were changed, those with one rank and one scale together."""
    groups: dict[tuple[str, int, float], list[str]] = {}
    for row in rows:
        groups.setdefault((row.method, row.rank, row.scale), []).extend(row.tensors)
    texts = []
    # Many layers have one rank and one scale: they are one line.
    for (method, rank, scale), names in list(groups.items())[:_GROUPS]:
        unique = list(dict.fromkeys(names))
        texts.append(
            f"{method} of rank {rank}, scale {scale:g}: "
            f"{show_folded_names(unique, _NAMES)}"
        )
    if len(groups) > _GROUPS:
        texts.append(f"{len(groups) - _GROUPS:,} more ranks and scales (--json)")
    return texts


def _source_notes(source: Source) -> list[str]:
    """The rest that is to be known of an adapter."""
    notes = [f"names: {shift.before}* → {shift.after}*" for shift in source.shifts]
    # The source of alpha is said only where nobody expects it.
    unusual = [
        text
        for text in source.scale_from
        if text not in ("alpha", "adapter_config.json")
    ]
    notes += [f"alpha: {text}" for text in unusual]
    if source.replaced:
        notes.append(f"replaced: {show_folded_names(source.replaced, _NAMES)}")
    if source.tokens:
        notes.append(f"rows of tokens: {show_folded_names(source.tokens, _NAMES)}")
    if source.copies:
        notes.append(
            f"{counted_noun(source.copies, 'tensor')} in it equal those of BASE"
        )
    if source.left:
        notes.append(
            f"left out: {counted_noun(len(source.left), 'tensor')}: "
            f"{show_folded_names(source.left, 3)}"
        )
    return notes


def account_of(
    plan: Plan,
    weights: Sequence[float] | None,
    copies: Sequence[int],
) -> MergeAccount:
    """The account of a plan. `copies` counts the tensors beside each adapter that equal
    tensors of the base.
    """
    sources = []
    for index, adapter in enumerate(plan.adapters):
        pairs = [pair for pair in plan.pairs if pair.adapter == index]
        # The weight is in the scale that is shown, as it is in the numbers that are
        # added.
        weight = 1.0 if weights is None else weights[index]
        source = _make_source(adapter, pairs, weight, plan.shifts[index], copies[index])
        sources.append(source)
    rows = [
        _merged_row(pair, 1.0 if weights is None else weights[pair.adapter])
        for pair in plan.pairs
    ]
    return MergeAccount(tuple(sources), tuple(rows))


def _merged_row(pair: Pair, weight: float) -> Merged:
    assert pair.scale.value is not None
    scale = pair.scale.value * weight
    return Merged(
        pair.adapter,
        pair.layer.module,
        pair.targets,
        pair.rank,
        scale,
        pair.method,
    )


def _make_source(
    adapter: Adapter,
    pairs: Sequence[Pair],
    weight: float,
    shifts: Sequence[Shift],
    copies: int,
) -> Source:
    return Source(
        adapter.path,
        names_text(adapter),
        adapter.total,
        len(adapter.layers),
        weight,
        tuple(sorted({pair.rank for pair in pairs})),
        tuple(dict.fromkeys(pair.scale.source for pair in pairs)),
        tuple(shifts),
        tuple(adapter.wholes),
        tuple(adapter.tokens),
        copies,
        tuple(entry.name for entry in adapter.left),
    )


def names_text(adapter: Adapter) -> str:
    """The method of an adapter and the program whose names it has."""
    method = "DoRA" if adapter.has_magnitudes else "LoRA"
    return f"{method} in names of {adapter.style}"
