"""The names by which the tensors of two models are paired."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ckpt.evidence.mapping import ENOUGH, Match, Rename, match
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import (
    base_name,
    inner_modules,
    is_adapted,
    names_below,
    unwrapped_name,
    usual_prefix,
    without_modules,
)
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

Rule = Callable[[str], str]
"""A name -> the name to compare."""


_SUGGESTED = 4
_NOTABLE = 10
"""Percent of the names of the smaller side that doubtful words must make meet before
they are worth a line.
"""


def as_it_is(name: str) -> str:
    return name


def in_turn(rules: Sequence[Rule]) -> Rule:
    """One rule after the other."""

    def rule(name: str) -> str:
        for each in rules:
            name = each(name)
        return name

    return rule


def indices_by_name(
    section: Section, rule: Rule, path: str, keep: Callable[[Entry], bool] | None = None
) -> dict[str, int]:
    """Name inside a section, by a rule -> index in `Checkpoint.tensors`. Raises
    UsageError when two names become one.

    `keep` says which tensors count.
    """
    indices: dict[str, int] = {}
    for index, entry in zip(section.indices, section.entries, strict=True):
        if keep is not None and not keep(entry):
            continue
        name = rule(section.relative(entry.name))
        if name in indices:
            other = section.entries[indices[name] - section.first]
            raise UsageError(both_called(other.name, entry.name, name), path=path)
        indices[name] = index
    return indices


def both_called(one: str, two: str, name: str) -> str:
    """The problem when two names become one."""
    return f"{show(one, 80)} and {show(two, 80)} would both be called {show(name, 80)}"


class Alignment:
    """The tensors of a section by each name that they may have: their own, the one
    without wrappers, the one without what PEFT adds, where it has added anything, and
    those without a wrapper around a part of the model, where there may be one.

    `rule` is applied to all. A way is None when two tensors would get one name.
    """

    def __init__(
        self,
        section: Section,
        path: str,
        rule: Rule = as_it_is,
        keep: Callable[[Entry], bool] | None = None,
    ) -> None:
        self._section = section
        self._path = path
        self._keep = keep
        self._rule = rule
        names = section.names()
        plain: list[Rule] = [
            as_it_is,
            unwrapped_name,
            *([_bare_name] if is_adapted(names) else []),
        ]
        inner = inner_modules(names)
        self._places: dict[int, tuple[str, ...]] = {}
        for places in dict.fromkeys(
            (inner.sure, inner.sure + inner.possible, inner.every)
        ):
            if places:
                self._places[len(plain)] = places
                plain.append(without_modules(places))
        self._plain = plain
        self._rules: list[Rule] = [_chain_rules(each, rule) for each in plain]
        self.ways = tuple(self._indices_or_none(each) for each in self._rules)

    def _indices_or_none(self, rule: Rule) -> dict[str, int] | None:
        try:
            return indices_by_name(self._section, rule, self._path, self._keep)
        except UsageError:
            return None

    def require(self, way: int) -> dict[str, int]:
        """The names of a way. Raises UsageError when two tensors would become one."""
        return self.ways[way] or indices_by_name(
            self._section, self._rules[way], self._path, self._keep
        )

    def then(self, rule: Rule) -> Alignment:
        """The same tensors by a further rule."""
        return Alignment(
            self._section, self._path, lambda name: rule(self._rule(name)), self._keep
        )

    def shapes_of(self, indices: dict[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by its name."""
        entries, first = self._section.entries, self._section.first
        return {
            name: tuple(entries[index - first].tensor.shape)
            for name, index in indices.items()
        }

    def prefix(self, way: int) -> str:
        """The prefix that a way removes from most names."""
        if way in self._places:
            way = 1  # the wrappers around all of the model
        return usual_prefix(self._section.names(), self._plain[way]) if way else ""

    def parts(self, way: int) -> list[Rename]:
        """The parts of the model that lose their own wrapper in a way, each with the
        number of their tensors.
        """
        names = self._section.names()
        rows: dict[tuple[str, str], int] = {}
        for place, count in names_below(names, self._places.get(way, ())).items():
            one, two = (
                re.sub("[0-9]+", "#", unwrapped_name(f"{text}x")).removesuffix(".x")
                for text in (place, place.removesuffix("module."))
            )
            rows[one, two] = rows.get((one, two), 0) + count
        return [
            Rename(*pair, count, len(names), "words") for pair, count in rows.items()
        ]

    def is_inner(self, way: int) -> bool:
        """Tell whether a way takes the wrapper of a part away."""
        return way in self._places


def _chain_rules(first: Rule, second: Rule) -> Rule:
    return lambda name: second(first(name))


def _bare_name(name: str) -> str:
    return base_name(unwrapped_name(name))


def best_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """The ways of both sides with the most common names; on a tie, the ways that change
    the least.
    """
    best, most = (0, 0), -1
    for first, mine in enumerate(one.ways):
        for second, other in enumerate(two.ways):
            if (
                mine is not None
                and other is not None
                and len(mine.keys() & other.keys()) > most
            ):
                best, most = (first, second), len(mine.keys() & other.keys())
    return best


class Paired(NamedTuple):
    """The names of two sides, with their indices. `partners` maps the names of `two` to
    the names of `one`.

    `prefixes` were taken off the names of each side. `renames` are the other rules of
    the mapping. `suggested` are the rules for which names do not speak enough, that a
    substitution of the names of `one` would use.
    """

    one: dict[str, int]
    two: dict[str, int]
    partners: dict[str, str]
    prefixes: tuple[str, str] = ("", "")
    renames: tuple[Rename, ...] = ()
    suggested: tuple[Rename, ...] = ()
    match: Match = Match({})
    """The mapping itself: tensors that hold others, and another layout."""

    @property
    def component(self) -> Rename | None:
        """The first component that was aligned."""
        return next((rename for rename in self.renames if rename.kind == "start"), None)


def pair_tensors(
    one: Alignment,
    two: Alignment,
    *,
    align: bool = True,
    suggest: bool = True,
    strict: bool = False,
    by_shape: bool = False,
    layouts: bool = False,
) -> Paired:
    """The tensors of two sides by their names: without wrappers where that is better,
    then by a mapping of the names.

    Without `align` names are compared as they are, without `suggest` nothing is
    suggested. `layouts` allows a mapping to tensors that hold the values in another
    layout. Raises UsageError when two names would become one; `strict` also raises it
    where the names without wrappers would be needed.
    """
    if not align:
        return _as_they_are(one, two, (0, 0))
    ways = _asked_ways(one, two) if strict else best_ways(one, two)
    plain = _as_they_are(one, two, ways)
    if len(plain.partners) == min(len(plain.one), len(plain.two)):
        return plain
    if 100 * len(plain.partners) < ENOUGH * min(len(plain.one), len(plain.two)):
        ways = _bare_ways(one, two, ways)
    bare = _as_they_are(one, two, ways)
    shapes = one.shapes_of(bare.one), two.shapes_of(bare.two)
    found = match(*shapes, by_shape=by_shape, layouts=layouts)
    if found.renames or found.joins or found.cuts:
        start = next(
            (rename for rename in found.renames if rename.kind == "start"), None
        )
        first, second = start[:2] if start is not None else ("", "")
        prefixes = (bare.prefixes[0] + first, bare.prefixes[1] + second)
        renames = (*bare.renames, *found.renames)
        result = bare._replace(
            partners=found.partners, prefixes=prefixes, renames=renames, match=found
        )
    else:
        result = plain._replace(match=found)
    if not suggest:
        return result
    least = min(len(plain.one), len(plain.two)) * _NOTABLE / 100
    doubts = sorted(found.doubts, key=lambda rename: -rename.met)[:_SUGGESTED]
    doubts = [
        rename for rename in doubts if rename.kind == "start" or rename.met >= least
    ]
    plans = [
        _planned_rename(one, two, rename, len(result.partners), strict=strict)
        for rename in doubts
    ]
    return result._replace(
        suggested=tuple(rename for rename in plans if rename is not None)
    )


def _bare_ways(
    one: Alignment, two: Alignment, best: tuple[int, int]
) -> tuple[int, int]:
    """The ways without wrappers, also without a part's own wrapper if more names are
    common so.
    """
    sides = zip((one, two), best, strict=True)
    first, second = (
        way if side.is_inner(way) else int(side.ways[1] is not None)
        for side, way in sides
    )
    return first, second


def _asked_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """`best_ways`. Raises UsageError where the names ask for those without wrappers,
    and two would become one.
    """
    first, second = one.require(0), two.require(0)
    if first.keys() == second.keys():
        return 0, 0
    # Names that only one side has, and that would go together, ask for it.
    odd = [
        {unwrapped_name(name) for name in mine.keys() - other.keys()}
        for mine, other in ((first, second), (second, first))
    ]
    if odd[0] & odd[1]:
        one.require(1)
        two.require(1)
    return best_ways(one, two)


def _as_they_are(one: Alignment, two: Alignment, ways: tuple[int, int]) -> Paired:
    first, second = one.require(ways[0]), two.require(ways[1])
    partners = {name: name for name in second if name in first}
    parts = (*one.parts(ways[0]), *(rename.turned for rename in two.parts(ways[1])))
    return Paired(
        first, second, partners, (one.prefix(ways[0]), two.prefix(ways[1])), parts
    )


def _planned_rename(
    one: Alignment, two: Alignment, rename: Rename, partners: int, *, strict: bool
) -> Rename | None:
    """Return the rule with all names that meet by its substitution.

    None when that fails or helps nothing, or when the substitution is not plain to
    write.
    """
    if not rename.is_plain:
        return None
    renamed = one.then(rename.rule)
    try:
        plan = pair_tensors(renamed, two, suggest=False, strict=strict)
    except UsageError:
        return None
    first, second = renamed.shapes_of(plan.one), two.shapes_of(plan.two)
    met = sum(first[other] == second[mine] for mine, other in plan.partners.items())
    return (
        rename._replace(met=met, of=min(len(first), len(second)))
        if met > partners
        else None
    )
