"""The names by which the tensors of two models are paired."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.checkpoint import Entry
from ckpt.errors import UsageError
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import base_name, is_adapted, unwrapped_name, usual_prefix
from ckpt.text import show

Rule = Callable[[str], str]
"""A name -> the name to compare."""


def as_it_is(name: str) -> str:
    return name


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
