"""The verdicts on the pairs of an adapter in a merge of somebody else, and
their words.
"""

from __future__ import annotations

import math
from typing import Literal

from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, be_verb, counted_noun, show, show_folded_names
from ckpt.surface.text.lines import Line, hanging_lines

Verdict = Literal[
    "merged", "missing", "scaled", "twice", "transposed", "part", "other", "lacking"
]
"""`missing`: as in BASE. `part`: some of its parts are merged. `lacking`: MERGED has no
such tensor.
"""
WORDS: dict[Verdict, str] = {
    "missing": "as in BASE",
    "scaled": "with another scale",
    "twice": "applied twice",
    "transposed": "transposed",
    "part": "in part",
    "other": "something else",
    "lacking": "not in MERGED",
}
_NAMES = 6
_CLOSE = 0.01
"""The error of a scale, and of a product in a lower precision, relative to what is
added.
"""
_SURE = 5.0
"""Standard errors within which two scales are the same."""


class Sums(NamedTuple):
    """Sums over the elements that a pair changes: of what changed, and of what a merge
    changes.

    `units` are those in the last place. `visible` elements differ after a merge, `kept`
    ones are as in BASE, `beyond` ones are more than one unit away from a merge.
    """

    number: int = 0
    changed: float = 0.0
    product: float = 0.0
    wanted: float = 0.0
    units: float = 0.0
    weighted: float = 0.0
    visible: int = 0
    kept: int = 0
    beyond: int = 0

    def plus(self, other: Sums) -> Sums:
        """The sums over both."""
        return Sums(
            self.number + other.number,
            self.changed + other.changed,
            self.product + other.product,
            self.wanted + other.wanted,
            self.units + other.units,
            self.weighted + other.weighted,
            self.visible + other.visible,
            self.kept + other.kept,
            self.beyond + other.beyond,
        )


def verdict_of(sums: Sums, *, is_free: bool) -> tuple[Verdict, float]:
    """Return the verdict on a pair, and the factor of what was added. With `is_free`
    any factor is right: none is recorded.
    """
    # A merge changes nothing that the dtype shows, as with a tiny scale in bfloat16.
    if not sums.visible and not sums.beyond:
        return "merged", 1.0
    if sums.kept == sums.number or not sums.wanted:
        return "missing", 0.0
    # With Inf or NaN in a sum no scale can be told.
    if not math.isfinite(sums.wanted + sums.changed):
        return ("other", 0.0) if sums.beyond else ("merged", 1.0)
    # The factor with the least squares, and the error that rounding leaves in it:
    # rounding is uniform over a unit, with a variance of 1 / 12 on either side.
    factor = sums.product / sums.wanted
    error = _SURE * math.sqrt(sums.weighted / 6) / sums.wanted + _CLOSE
    rest = max(0.0, sums.changed - sums.product * factor)
    most = sums.units / 2 + (_CLOSE * factor) ** 2 * sums.wanted
    if not math.isfinite(rest) or rest > most:
        return "other", factor
    # A small factor that is not 1 within its error: nothing was added.
    if abs(factor) <= error and abs(factor - 1) > error:
        return "missing", 0.0
    if is_free or abs(factor - 1) <= error:
        return "merged", factor
    if abs(factor - 2) <= 2 * error:
        return "twice", factor
    return "scaled", factor


class PairCheck(NamedTuple):
    """A pair of an adapter. `scale` is that which is recorded, `found` that which
    MERGED has.

    `parts` are how many of its parts are merged, of how many: experts, or query, key
    and value.
    """

    layer: str
    tensors: tuple[str, ...]
    verdict: Verdict
    scale: float
    found: float
    parts: tuple[int, int]

    def to_json(self) -> dict[str, Json]:
        """An object of `adapter.pairs` of the document `ckpt.diff`."""
        has_scale = self.verdict in ("merged", "scaled", "twice")
        return {
            "layer": self.layer,
            "tensors": list(self.tensors),
            "verdict": self.verdict,
            "scale": self.scale,
            "found": self.found if has_scale and math.isfinite(self.found) else None,
            "parts": list(self.parts),
        }


class MergeCheck(NamedTuple):
    """The verdict on the merge of an adapter. `wholes` are the tensors that it
    replaces, and whether MERGED has them.

    `others` changed too, with the status of each. `casts` have another dtype alone,
    from and to `types`.
    """

    path: str
    pairs: tuple[PairCheck, ...]
    wholes: tuple[tuple[str, bool], ...]
    others: tuple[tuple[str, str], ...]
    casts: int
    types: tuple[tuple[str, str], ...]
    is_free: bool
    packing: tuple[str, ...] = ()
    """The packings that MERGED has, where BASE may hold layers in several ways."""
    left: tuple[str, ...] = ()
    """The tensors of the adapter that --exclude leaves out."""

    @property
    def differs(self) -> bool:
        """Tell whether MERGED is anything else than BASE with the adapter."""
        is_merged = all(pair.verdict == "merged" for pair in self.pairs)
        # Anything else that changed makes MERGED another model.
        has_wholes = all(is_there for _, is_there in self.wholes)
        return not is_merged or not has_wholes or bool(self.others)

    def to_json(self) -> dict[str, Json]:
        """The field `adapter` of the document `ckpt.diff`."""
        return {
            "adapter": {
                "path": self.path,
                "merged": sum(pair.verdict == "merged" for pair in self.pairs),
                "pairs": [pair.to_json() for pair in self.pairs],
                "replaced": [
                    {"name": name, "found": is_there} for name, is_there in self.wholes
                ],
                "others": [
                    {"name": name, "status": status} for name, status in self.others
                ],
                "cast": self.casts,
                "packing": list(self.packing),
            }
        }

    def lines(self, width: int | None) -> list[Line]:
        """The report as a person reads it."""
        out = hanging_lines([], self._merge_headline(), width, 2, "head")
        for text in self._group_texts():
            out += hanging_lines([("  ", "")], text, width, 4)
        if self.packing:
            out += hanging_lines([], f"packing: {', '.join(self.packing)}", width, 2)
        if self.wholes:
            lost = [name for name, is_there in self.wholes if not is_there]
            verb = "is that" if len(self.wholes) == 1 else "are those"
            text = (
                f"replaced: {len(self.wholes) - len(lost)} of "
                f"{counted_noun(len(self.wholes), 'tensor')} {verb} of the adapter"
            )
            if lost:
                text = f"{text}; not: {show_folded_names(lost, _NAMES)}"
            out += hanging_lines([], text, width, 2)
        if self.casts:
            types = ", ".join(f"{one} → {two}" for one, two in self.types)
            out += hanging_lines(
                [],
                f"cast: {counted_noun(self.casts, 'tensor')}, {types}",
                width,
                2,
            )
        if self.left:
            text = (
                f"left out: {counted_noun(len(self.left), 'tensor')}: "
                f"{show_folded_names(self.left, _NAMES)}"
            )
            out += hanging_lines([], text, width, 2)
        out += self._other_lines(width)
        return out

    def _merge_headline(self) -> str:
        """`54 of 57 pairs are merged; 3 are not: 2 as in BASE, 1 applied twice`."""
        total = len(self.pairs)
        merged = sum(pair.verdict == "merged" for pair in self.pairs)
        verb = be_verb(merged)
        text = f"{merged:,} of {counted_noun(total, 'pair')} {verb} merged"
        # An adapter may be rows of tokens and whole tensors alone.
        if not total:
            return "the adapter has no pairs"
        if merged == total:
            return f"{text}: {show(self.path, None)}"
        counts = {
            word: sum(pair.verdict == verdict for pair in self.pairs)
            for verdict, word in WORDS.items()
        }
        listed = ", ".join(
            f"{count:,} {word}" for word, count in counts.items() if count
        )
        rest = total - merged
        verb = be_verb(rest)
        return f"{text}; {rest:,} {verb} not: {listed}"

    def _group_texts(self) -> list[str]:
        """The pairs with one verdict and one scale together."""
        groups: dict[str, list[str]] = {}
        for pair in self.pairs:
            text = _text_of(pair, is_free=self.is_free)
            if text:
                groups.setdefault(text, []).append(pair.layer)
        return [
            f"{text}: {show_folded_names(names, _NAMES)}"
            for text, names in groups.items()
        ]

    def _other_lines(self, width: int | None) -> list[Line]:
        """The lines about other changes, by their status."""
        groups: dict[str, list[str]] = {}
        for name, status in self.others:
            groups.setdefault(status, []).append(name)
        out: list[Line] = []
        for status, names in groups.items():
            out += hanging_lines(
                [],
                (
                    f"also {status}: {counted_noun(len(names), 'tensor')}: "
                    f"{show_folded_names(names, _NAMES)}"
                ),
                width,
                2,
            )
        return out


def _text_of(pair: PairCheck, *, is_free: bool) -> str:
    """The words for a pair, or `` where there is nothing to say."""
    if pair.verdict == "merged":
        if not is_free:
            return ""
        return f"scale {_format_scale(pair.found)}, where none is recorded"
    if pair.verdict == "scaled":
        text = (
            f"with scale {_format_scale(pair.found)} instead of "
            f"{_format_scale(pair.scale)}"
        )
        if pair.found < 0:
            return f"{text}, subtracted"
        # A scale of 1 is what a program does that forgets alpha / rank.
        is_plain = abs(pair.found - 1) <= 2 * _CLOSE
        return f"{text}, as without alpha" if is_plain else text
    if pair.verdict == "part":
        return f"in part, {pair.parts[0]} of {pair.parts[1]}"
    return WORDS[pair.verdict]


def _format_scale(value: float) -> str:
    """A scale that was measured, without digits that nobody can know: those that the
    rounding of a narrow dtype makes would tell layers of one scale apart.
    """
    short = f"{value:.2g}"
    is_close = abs(float(short) - value) <= _CLOSE / 2 * abs(value)
    return short if is_close else f"{value:.3g}"
