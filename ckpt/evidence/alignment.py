"""The names by which the tensors of two models are paired."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote

from ckpt.checkpoint import Entry
from ckpt.errors import UsageError
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import base_name, is_adapted, unwrapped_name, usual_prefix
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show

Rule = Callable[[str], str]
"""A name -> the name to compare."""


SHARE = 95
"""Percent of the names of the smaller side that must meet, with equal shapes, before a first component is aligned."""
_WORTH = 50
"""Percent of them that make a component worth a suggestion."""
_DEPTH = 8
"""Parts of a name that a component may have."""
_SUGGESTED = 4
_PLAIN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*\.)*")
_Shapes = Mapping[str, tuple[int, ...]]


def as_it_is(name: str) -> str:
    return name


def in_turn(rules: Sequence[Rule]) -> Rule:
    """One rule after the other."""

    def rule(name: str) -> str:
        for each in rules:
            name = each(name)
        return name

    return rule


def named(
    section: Section, rule: Rule, path: str, keep: Callable[[Entry], bool] | None = None
) -> dict[str, int]:
    """Name inside a section, by a rule -> index in `Checkpoint.tensors`. Raises UsageError when two names become one.

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
    """The tensors of a section by each name that they may have: their own, the one without wrappers, and the one without
    what PEFT adds, where it has added anything.

    `rule` is applied to all. A way is None when two tensors would get one name.
    """

    def __init__(
        self, section: Section, path: str, rule: Rule = as_it_is, keep: Callable[[Entry], bool] | None = None
    ) -> None:
        self._section = section
        self._path = path
        self._keep = keep
        self._rule = rule
        self._rules: tuple[Rule, ...] = (rule, lambda name: rule(unwrapped_name(name)))
        if is_adapted(section.names()):
            self._rules += (lambda name: rule(_bare_name(name)),)
        self.ways = tuple(self._try(each) for each in self._rules)

    def _try(self, rule: Rule) -> dict[str, int] | None:
        try:
            return named(self._section, rule, self._path, self._keep)
        except UsageError:
            return None

    def require(self, way: int) -> dict[str, int]:
        """The names of a way. Raises UsageError when two tensors would become one."""
        return self.ways[way] or named(self._section, self._rules[way], self._path, self._keep)

    def then(self, rule: Rule) -> Alignment:
        """The same tensors by a further rule."""
        return Alignment(self._section, self._path, lambda name: rule(self._rule(name)), self._keep)

    def shapes_of(self, indices: dict[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by its name."""
        entries, first = self._section.entries, self._section.first
        return {name: tuple(entries[index - first].tensor.shape) for name, index in indices.items()}

    def prefix(self, way: int) -> str:
        """The prefix that a way removes from most names."""
        return usual_prefix(self._section.names(), _bare_name if way > 1 else unwrapped_name) if way else ""


def _bare_name(name: str) -> str:
    return base_name(unwrapped_name(name))


def best_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """The ways of both sides with the most common names; on a tie, the ways that change the least."""
    best, most = (0, 0), -1
    for first, mine in enumerate(one.ways):
        for second, other in enumerate(two.ways):
            if mine is not None and other is not None and len(mine.keys() & other.keys()) > most:
                best, most = (first, second), len(mine.keys() & other.keys())
    return best


# --- a common first component -----------------------------------------------------------------------------------------


class Component(NamedTuple):
    """A first component of the names of a side, with its dot, or ``: `backbone.`, `model.encoder.`.

    Without it `met` names go together, with equal shapes, of the `of` names of the smaller side.
    """

    one: str
    two: str
    met: int
    of: int

    @property
    def fits(self) -> bool:
        """Tell whether enough names meet to take it for certain."""
        return 100 * self.met >= SHARE * self.of

    def rule(self, name: str) -> str:
        """Return the name that the other side gives a tensor of the first side."""
        return self.two + name[len(self.one) :] if name.startswith(self.one) else name

    @property
    def substitution(self) -> str:
        """`rule` as `--sub` takes it."""
        return f"s/^{re.escape(self.one)}/{self.two}/"

    def to_json(self) -> dict[str, Json]:
        """Return the aligned component of either side, and how many names meet."""
        return {"from": f"{self.one}*", "to": f"{self.two}*", "count": self.met}

    def suggestion(self) -> dict[str, Json]:
        """Return the component that would be aligned, and the substitution that aligns it."""
        return {**self.to_json(), "of": self.of, "sub": self.substitution}

    @property
    def advice(self) -> str:
        """The sentence with the option that aligns it."""
        meet = f"{self.met:,} of {plural(self.of, 'name')} meet with --sub"
        return f"not aligned: {meet} {quote(self.substitution)}"


class Paired(NamedTuple):
    """The names of two sides, with their indices. `partners` maps the names of `two` to the names of `one`.

    `prefixes` were taken off the names of each side. `component` is the first component that was aligned.
    `suggested` are the components that a substitution of the names of `one` would align.
    """

    one: dict[str, int]
    two: dict[str, int]
    partners: dict[str, str]
    prefixes: tuple[str, str] = ("", "")
    component: Component | None = None
    suggested: tuple[Component, ...] = ()


def paired(
    one: Alignment, two: Alignment, *, align: bool = True, suggest: bool = True, strict: bool = False
) -> Paired:
    """The tensors of two sides by their names: without wrappers where that is better, then without a first component.

    Without `align` names are compared as they are, without `suggest` nothing is suggested. Raises UsageError when two
    names would become one; `strict` also raises it where the names without wrappers would be needed.
    """
    if not align:
        return _as_they_are(one, two, (0, 0))
    ways = _asked_ways(one, two) if strict else best_ways(one, two)
    plain = _as_they_are(one, two, ways)
    if 100 * len(plain.partners) >= SHARE * min(len(plain.one), len(plain.two)):
        return plain
    bare = tuple(int(side.ways[1] is not None) for side in (one, two))
    shapes = one.shapes_of(one.require(bare[0])), two.shapes_of(two.require(bare[1]))
    found = list(components(*shapes))
    certain = [each for each in found if each.fits]
    if len(certain) == 1 and _is_model(certain[0], *shapes):
        return _by_component(one, two, (bare[0], bare[1]), certain[0])
    if not suggest:
        return plain
    found = [each for each in found if each.met > len(plain.partners)]
    found.sort(key=lambda each: -each.met)
    plans = [_planned(one, two, each, strict=strict) for each in found[:_SUGGESTED]]
    return plain._replace(suggested=tuple(each for each in plans if each is not None))


def _asked_ways(one: Alignment, two: Alignment) -> tuple[int, int]:
    """`best_ways`. Raises UsageError where the names ask for those without wrappers, and two would become one."""
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
    return Paired(first, second, partners, (one.prefix(ways[0]), two.prefix(ways[1])))


def _by_component(one: Alignment, two: Alignment, ways: tuple[int, int], component: Component) -> Paired:
    """The names that go together by a component; what lies outside of it, by its name as it is."""
    plain = _as_they_are(one, two, ways)
    partners = {}
    for name in plain.two:
        other = component.one + name[len(component.two) :]
        if name.startswith(component.two) and other in plain.one:
            partners[name] = other
    taken = set(partners.values())
    for name in plain.two:
        if name not in partners and name in plain.one and name not in taken:
            partners[name] = name
    prefixes = (plain.prefixes[0] + component.one, plain.prefixes[1] + component.two)
    return plain._replace(partners=partners, prefixes=prefixes, component=component)


def components(one: _Shapes, two: _Shapes) -> Iterator[Component]:
    """The first components without which at least half of the names of the smaller side meet, with equal shapes.

    None that says the same as a shorter one: `layer1.` and `backbone.layer1.` are `` and `backbone.`.
    """
    is_turned = len(two) < len(one)
    small, large = (two, one) if is_turned else (one, two)
    for mine in _beginnings(small):
        rests = {name[len(mine) :]: shape for name, shape in small.items() if name.startswith(mine)}
        met: Counter[str] = Counter()
        for name, shape in large.items():
            for at in _dots(name):
                if rests.get(name[at:]) == shape:
                    met[name[:at]] += 1
        for other, count in met.items():
            is_longer = mine.split(".")[-2:] == other.split(".")[-2:] if mine and other else mine == other
            if not is_longer and 100 * count >= _WORTH * len(small):
                yield Component(*((other, mine) if is_turned else (mine, other)), count, len(small))


def common_component(names: Sequence[str]) -> str:
    """The first component that all names have, with its dot; `` when there is none, or one module below it."""
    first = names[0].partition(".")[0] + "." if names else ""
    is_common = all(name.startswith(first) and name != first for name in names)
    modules = {name[len(first) :].rpartition(".")[0] for name in names}
    return first if is_common and len(modules) > 1 and _PLAIN.fullmatch(first) else ""


def _beginnings(names: _Shapes) -> list[str]:
    """The beginnings that so many names share that one of them may be the component."""
    shared = Counter(name[:at] for name in names for at in _dots(name))
    return [text for text, count in shared.items() if 100 * count >= _WORTH * len(names)]


def _dots(name: str) -> Iterator[int]:
    """Yield the places where the rest of a name may begin: 0, and behind each of its first dots."""
    at = 0
    for _ in range(_DEPTH):
        yield at
        at = name.find(".", at) + 1
        if not 0 < at < len(name):
            return


def _is_model(component: Component, one: _Shapes, two: _Shapes) -> bool:
    """Tell whether the names below a component are more than a layer like any other one.

    `0.` and `1.`, `layer1.` and `layer2.` are layers. `weight` alone says nothing, unless both sides have nothing else.
    """
    ends = {component.rule(name).rpartition(".")[0] for name in one if component.rule(name) in two}
    ends -= {component.two[:-1]}
    if not component.one or not component.two:
        return bool(ends) or component.met == len(one) == len(two)
    letters = [re.sub(r"\d+", "", text) for text in component[:2]]
    return len(ends) > 1 and letters[0] != letters[1]


def _planned(one: Alignment, two: Alignment, component: Component, *, strict: bool) -> Component | None:
    """Return the component with all names that meet by its substitution.

    None when that fails, or when the substitution is not plain to write.
    """
    if not (_PLAIN.fullmatch(component.one) and _PLAIN.fullmatch(component.two)):
        return None
    renamed = one.then(component.rule)
    try:
        plan = paired(renamed, two, suggest=False, strict=strict)
    except UsageError:
        return None
    first, second = renamed.shapes_of(plan.one), two.shapes_of(plan.two)
    met = sum(first[other] == second[mine] for mine, other in plan.partners.items())
    return component._replace(met=met) if plan.component is None and met >= component.met else None
