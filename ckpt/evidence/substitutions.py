"""The renames of a mapping as people run them, one after the other: in an order, and so
sharp, that they give its names.

A mapping finds its rules one by one, each for the names that the ones before it left. A
list of substitutions has no such memory: each runs on what the one before it made, and
on every name. So the list is tried on all names before it is printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt.evidence.mapping import Rename

_WIDEST = 12
"""Parts of a name before the ones that differ which a sharper rule may have."""
_MOST = 32
"""Rules of a list that is worth printing."""

Pairs = list[tuple[str, str]]
"""Names of the first side, each with its name on the second side."""


def order_renames(
    renames: Sequence[Rename],
    partners: Mapping[str, str],
    names: Sequence[str],
    make: Callable[[str, str], Rename],
) -> tuple[Rename, ...]:
    """Return the renames of a mapping in an order, and so sharp, that their words give
    each name its partner's.

    `partners` maps the names of the second side to the names of the first one, `names`
    are all of the first one. `make` makes a rule of words. `is_exact` of each rule
    tells if all rules, as substitutions of all names, give exactly these names.
    """
    if not renames or any(rename.kind not in ("start", "words") for rename in renames):
        return tuple(renames)
    pairs = [(old, new) for new, old in partners.items()]
    starts = [rename for rename in renames if rename.kind == "start"]
    if len(starts) > 1 or not pairs:
        return _mark_exactness(renames, False)
    start = starts[0] if starts else None
    words = [rename for rename in renames if rename.kind == "words"]
    orders = [tuple(renames), tuple(renames[::-1])]
    direct = [order for order in orders if not _is_chain(order)]
    chosen = next((order for order in direct if _gives_partners(order, pairs)), None)
    if chosen is None and words:
        chosen = _sharper_rules(start, pairs, make)
    if chosen is None:
        chosen = next(
            (order for order in orders if _gives_partners(order, pairs)), None
        )
    if chosen is None:
        return _mark_exactness(renames, False)
    return _mark_exactness(
        _with_counts(chosen, pairs, renames[0].of), is_exact(chosen, partners, names)
    )


def is_exact(
    renames: Sequence[Rename], partners: Mapping[str, str], names: Sequence[str]
) -> bool:
    """Tell whether the renames, as substitutions, give these names to these tensors,
    and one name to no two of all.
    """
    wanted = {old: new for new, old in partners.items()}
    rules = [_substitution_of(rename) for rename in renames]
    taken: set[str] = set()
    for name in names:
        new = name
        for rule in rules:
            new = rule(new)
        if (
            new in taken
            or wanted.get(name, new) != new
            or (name not in wanted and new in partners)
        ):
            return False
        taken.add(new)
    return True


def _mark_exactness(renames: Sequence[Rename], is_exact: bool) -> tuple[Rename, ...]:
    return tuple(rename._replace(is_exact=is_exact) for rename in renames)


def _substitution_of(rename: Rename) -> Callable[[str], str]:
    """The substitution of a rename, as `ckpt rename` makes it."""
    old, new = rename.pattern
    pattern = re.compile(old)
    times = 1 if rename.kind == "start" else 0
    return lambda name: pattern.sub(new, name, count=times)


def _is_chain(renames: Sequence[Rename]) -> bool:
    """Tell whether a rule of words changes what a rule before it made: right perhaps,
    and hard to read.
    """
    made: list[str] = []
    for rename in renames:
        if rename.kind == "words":
            rule = _substitution_of(rename)
            if any(rule(text) != text for text in made):
                return True
            made.append(rename.two.replace("#", "0"))
    return False


def _names_after_start(start: Rename | None, name: str) -> Iterator[str]:
    """Yield the names that a tensor may have after a beginning was changed: a head
    keeps its own, or is outside of both.
    """
    if start is None:
        yield name
        return
    yield start.rule(name)
    yield name
    if name.startswith(start.one):
        yield name[len(start.one) :]
    else:
        yield start.two + name


def _gives_partners(renames: Sequence[Rename], pairs: Pairs) -> bool:
    """Tell whether the renames give each name its partner's, where a beginning may stay
    or go alone.
    """
    steps = [(rename, _substitution_of(rename)) for rename in renames]
    for old, new in pairs:
        names = {old}
        for rename, rule in steps:
            if rename.kind == "start":
                names = {
                    text for name in names for text in _names_after_start(rename, name)
                }
            else:
                names = {rule(name) for name in names}
        if new not in names:
            return False
    return True


def _with_counts(renames: Sequence[Rename], pairs: Pairs, of: int) -> list[Rename]:
    """Return the renames, a rename of words with the number of names that it
    changes.
    """
    names = [old for old, _ in pairs]
    counted = []
    for rename in renames:
        rule = _substitution_of(rename)
        new = [rule(name) for name in names]
        if rename.kind == "words":
            met = sum(one != two for one, two in zip(names, new, strict=True))
            rename = rename._replace(met=met or rename.met, of=of)
        counted.append(rename)
        names = new
    return counted


# --- sharper rules --------------------------------------------------------------------


def _sharper_rules(
    start: Rename | None, pairs: Pairs, make: Callable[[str, str], Rename]
) -> tuple[Rename, ...] | None:
    """Rules of the parts that differ alone, with as few parts before them as make the
    list right; None without such a list.
    """
    runs: dict[tuple[str, str], None] = {}
    for old, new in pairs:
        begun = list(_names_after_start(start, old))
        if new in begun:
            continue
        one, two = (re.split("([0-9]+)", name) for name in (begun[0], new))
        if one[1::2] != two[1::2] or "#" in old or "#" in new:
            return None
        runs["#".join(one[::2]), "#".join(two[::2])] = None
    fallback = None
    for width in range(_WIDEST + 1):
        rules = [
            make(*pair)
            for pair in dict.fromkeys(
                _differing_run(one, two, width) for one, two in runs
            )
        ]
        ordered = _order_rules(rules) if 0 < len(rules) <= _MOST else None
        if ordered is None:
            continue
        order = (*([start] if start is not None else []), *ordered)
        if _gives_partners(order, pairs):
            if all(rule.is_plain for rule in ordered):
                return order
            fallback = fallback or order
    return fallback


def _differing_run(one: str, two: str, width: int) -> tuple[str, str]:
    """The parts in which two templates differ, with up to `width` parts before them,
    and none of the two empty.
    """
    mine, other = one.split("."), two.split(".")
    first = last = 0
    least = min(len(mine), len(other))
    while first < least and mine[first] == other[first]:
        first += 1
    while last < least - first and mine[-1 - last] == other[-1 - last]:
        last += 1
    first = max(first - width, 0)
    while not (len(mine) - last > first < len(other) - last):
        if first:
            first -= 1
        else:
            last -= 1
    return ".".join(mine[first : len(mine) - last]), ".".join(
        other[first : len(other) - last]
    )


def _order_rules(rules: Sequence[Rename]) -> list[Rename] | None:
    """Return the rules, each before any other whose result it would change, or None if
    two would change each other's.
    """
    substitutes = [_substitution_of(rule) for rule in rules]
    made = [rule.two.replace("#", "0") for rule in rules]
    # A rule waits for those that would change what it makes.
    before = [
        {
            other
            for other, substitute in enumerate(substitutes)
            if other != number and substitute(text) != text
        }
        for number, text in enumerate(made)
    ]
    order: list[int] = []
    while len(order) < len(rules):
        free = [
            number
            for number in range(len(rules))
            if number not in order and before[number] <= {*order}
        ]
        if not free:
            return None
        order += free
    return [rules[number] for number in order]
