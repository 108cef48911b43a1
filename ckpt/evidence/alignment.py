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


# Rules that are planned to the end: each plan pairs all names again.
_SUGGESTED = 4
_NOTABLE = 10
"""Percent of the names of the smaller side that doubtful words must make meet before
they are worth a line.
"""


def as_it_is(name: str) -> str:
    return name


def in_turn(rules: Sequence[Rule]) -> Rule:
    """One rule after the other."""

    def apply_all(name: str) -> str:
        for rule in rules:
            name = rule(name)
        return name

    return apply_all


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
        # The number of a way is its place here. `prefix` and `_bare_ways` rely on the
        # first two.
        own_rules: list[Rule] = [as_it_is, unwrapped_name]
        if is_adapted(names):
            own_rules.append(_bare_name)
        inner = inner_modules(names)
        self._places: dict[int, tuple[str, ...]] = {}
        """A way -> the places of the wrappers around parts that it takes away."""
        # From the surest to the boldest: on a tie `best_ways` takes the first one.
        choices = (inner.sure, inner.sure + inner.possible, inner.every)
        for places in dict.fromkeys(choices):
            if places:
                self._places[len(own_rules)] = places
                own_rules.append(without_modules(places))
        self._own_rules = own_rules
        self._rules: list[Rule] = [
            _chain_rules(own_rule, rule) for own_rule in own_rules
        ]
        self.ways = tuple(self._indices_or_none(way_rule) for way_rule in self._rules)

    def _indices_or_none(self, rule: Rule) -> dict[str, int] | None:
        try:
            return indices_by_name(self._section, rule, self._path, self._keep)
        except UsageError:
            # Two tensors of one name: nobody can take this way, and `require` says why.
            return None

    def require(self, way: int) -> dict[str, int]:
        """The names of a way. Raises UsageError when two tensors would become one."""
        # A way that is None is built again for the text of its error.
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
        if not way:
            return ""
        return usual_prefix(self._section.names(), self._own_rules[way])

    def parts(self, way: int) -> list[Rename]:
        """The parts of the model that lose their own wrapper in a way, each with the
        number of their tensors.
        """
        names = self._section.names()
        counts: dict[tuple[str, str], int] = {}
        for place, count in names_below(names, self._places.get(way, ())).items():
            pair = _template_of(place), _template_of(place.removesuffix("module."))
            counts[pair] = counts.get(pair, 0) + count
        return [
            Rename(one, two, count, len(names), "words")
            for (one, two), count in counts.items()
        ]

    def is_inner(self, way: int) -> bool:
        """Tell whether a way takes the wrapper of a part away."""
        return way in self._places


def _template_of(place: str) -> str:
    """A beginning of names, which ends with a dot, without it and outer wrappers, and
    with `#` for each number.
    """
    # `x` stands for the rest of a name: rules take whole names.
    name = unwrapped_name(f"{place}x")
    return re.sub("[0-9]+", "#", name).removesuffix(".x")


def _chain_rules(first: Rule, second: Rule) -> Rule:
    return lambda name: second(first(name))


def _bare_name(name: str) -> str:
    return base_name(unwrapped_name(name))


def best_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """The ways of both sides with the most common names; on a tie, the ways that change
    the least.
    """
    best = (0, 0)
    most = -1
    for first, mine in enumerate(one.ways):
        for second, other in enumerate(two.ways):
            if mine is None or other is None:
                continue
            common = len(mine.keys() & other.keys())
            if common > most:
                best = (first, second)
                most = common
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
    smaller = min(len(plain.one), len(plain.two))
    if len(plain.partners) == smaller:
        return plain
    # Below ENOUGH a mapping is looked for, among names without wrappers.
    if 100 * len(plain.partners) < ENOUGH * smaller:
        ways = _bare_ways(one, two, ways)
    bare = _as_they_are(one, two, ways)
    mapping = match(
        one.shapes_of(bare.one),
        two.shapes_of(bare.two),
        by_shape=by_shape,
        layouts=layouts,
    )
    if mapping.renames or mapping.joins or mapping.cuts:
        result = _with_mapping(bare, mapping)
    else:
        result = plain._replace(match=mapping)
    if not suggest:
        return result
    least = smaller * _NOTABLE / 100
    plans: list[Rename] = []
    # Four of them are looked at, whether or not they turn out to be worth a line.
    doubts = sorted(mapping.doubts, key=lambda rename: -rename.met)[:_SUGGESTED]
    for doubt in doubts:
        if doubt.kind != "start" and doubt.met < least:
            continue
        plan = _planned_rename(one, two, doubt, len(result.partners), strict=strict)
        if plan is not None:
            plans.append(plan)
    return result._replace(suggested=tuple(plans))


def _with_mapping(bare: Paired, mapping: Match) -> Paired:
    """The names without wrappers, paired by a mapping between them."""
    starts = [rename for rename in mapping.renames if rename.kind == "start"]
    prefix_of_one, prefix_of_two = bare.prefixes
    if starts:
        prefix_of_one += starts[0].one
        prefix_of_two += starts[0].two
    return bare._replace(
        partners=mapping.partners,
        prefixes=(prefix_of_one, prefix_of_two),
        renames=(*bare.renames, *mapping.renames),
        match=mapping,
    )


def _bare_ways(
    one: Alignment, two: Alignment, best: tuple[int, int]
) -> tuple[int, int]:
    """The ways without wrappers, also without a part's own wrapper if more names are
    common so.
    """
    return _bare_way(one, best[0]), _bare_way(two, best[1])


def _bare_way(side: Alignment, best: int) -> int:
    if side.is_inner(best):
        return best
    # Where two tensors would get one name without wrappers, all keep their own.
    return 0 if side.ways[1] is None else 1


def _asked_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """`best_ways`. Raises UsageError where the names ask for those without wrappers,
    and two would become one.
    """
    first = one.require(0)
    second = two.require(0)
    # Equal names need no way, even where wrappers stand in them.
    if first.keys() == second.keys():
        return 0, 0
    # Names that only one side has, and that would go together, ask for it.
    only_first = {unwrapped_name(name) for name in first.keys() - second.keys()}
    only_second = {unwrapped_name(name) for name in second.keys() - first.keys()}
    if only_first & only_second:
        one.require(1)
        two.require(1)
    return best_ways(one, two)


def _as_they_are(one: Alignment, two: Alignment, ways: tuple[int, int]) -> Paired:
    """The names of two ways, paired where they are equal."""
    way_of_one, way_of_two = ways
    first = one.require(way_of_one)
    second = two.require(way_of_two)
    partners = {name: name for name in second if name in first}
    prefixes = one.prefix(way_of_one), two.prefix(way_of_two)
    parts_of_two = [rename.turned for rename in two.parts(way_of_two)]
    renames = (*one.parts(way_of_one), *parts_of_two)
    return Paired(first, second, partners, prefixes, renames)


def _planned_rename(
    one: Alignment, two: Alignment, rename: Rename, partners: int, *, strict: bool
) -> Rename | None:
    """Return the rule with all names that meet by its substitution.

    None when that fails or helps nothing, or when the substitution is not plain to
    write. `partners` is the number of names that meet without it.
    """
    if not rename.is_plain:
        return None
    renamed = one.then(rename.rule)
    try:
        plan = pair_tensors(renamed, two, suggest=False, strict=strict)
    except UsageError:
        return None
    shapes_of_one = renamed.shapes_of(plan.one)
    shapes_of_two = two.shapes_of(plan.two)
    met = 0
    for name, partner in plan.partners.items():
        # A name that meets a tensor of another shape helps nobody.
        if shapes_of_one[partner] == shapes_of_two[name]:
            met += 1
    if met <= partners:
        return None
    return rename._replace(met=met, of=min(len(shapes_of_one), len(shapes_of_two)))
