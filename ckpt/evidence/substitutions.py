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
    # Of two beginnings one holds for each name, and a list applies all its rules.
    if len(starts) > 1 or not pairs:
        return _mark_exactness(renames, False)
    start = starts[0] if starts else None
    has_words = any(rename.kind == "words" for rename in renames)
    orders = [tuple(renames), tuple(renames[::-1])]
    # Plain lists come first: rules as they were found, of which none works on what
    # another one made. Then sharper rules, and lists that are a chain last.
    direct = [order for order in orders if not _is_chain(order)]
    chosen = _first_right_order(direct, pairs)
    if chosen is None and has_words:
        chosen = _sharper_rules(start, pairs, make)
    if chosen is None:
        chosen = _first_right_order(orders, pairs)
    if chosen is None:
        return _mark_exactness(renames, False)
    counted = _with_counts(chosen, pairs, renames[0].of)
    return _mark_exactness(counted, is_exact(chosen, partners, names))


def _first_right_order(
    orders: Sequence[tuple[Rename, ...]], pairs: Pairs
) -> tuple[Rename, ...] | None:
    """Return the first order that gives each name its partner's, or None."""
    for order in orders:
        if _gives_partners(order, pairs):
            return order
    return None


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
        if new in taken or new != wanted.get(name, new):
            return False
        # A tensor without a partner must not take the name that another one gets.
        if name not in wanted and new in partners:
            return False
        taken.add(new)
    return True


def _mark_exactness(renames: Sequence[Rename], is_exact: bool) -> tuple[Rename, ...]:
    return tuple(rename._replace(is_exact=is_exact) for rename in renames)


def _substitution_of(rename: Rename) -> Callable[[str], str]:
    """The substitution of a rename, as `ckpt rename` makes it."""
    old, new = rename.pattern
    pattern = re.compile(old)
    # `s/OLD/NEW/` changes one place, and with `g` all of them.
    times = 1 if rename.kind == "start" else 0
    return lambda name: pattern.sub(new, name, count=times)


def _is_chain(renames: Sequence[Rename]) -> bool:
    """Tell whether a rule of words changes what a rule before it made: right perhaps,
    and hard to read.
    """
    earlier_words: list[str] = []
    for rename in renames:
        if rename.kind == "words":
            rule = _substitution_of(rename)
            if any(rule(words) != words for words in earlier_words):
                return True
            earlier_words.append(_words_made_by(rename))
    return False


def _words_made_by(rename: Rename) -> str:
    """The words that a rule writes, with 0 for each number."""
    return rename.two.replace("#", "0")


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
            renamed: set[str] = set()
            for name in names:
                if rename.kind == "start":
                    renamed.update(_names_after_start(rename, name))
                else:
                    renamed.add(rule(name))
            names = renamed
        if new not in names:
            return False
    return True


def _with_counts(renames: Sequence[Rename], pairs: Pairs, of: int) -> list[Rename]:
    """Return the renames, a rename of words with the number of names that it
    changes. `of` is the number of names of the smaller side.
    """
    names = [old for old, _ in pairs]
    counted = []
    for rename in renames:
        rule = _substitution_of(rename)
        new_names = [rule(name) for name in names]
        if rename.kind == "words":
            changed = sum(old != new for old, new in zip(names, new_names, strict=True))
            rename = rename._replace(met=changed or rename.met, of=of)
        counted.append(rename)
        names = new_names
    return counted


# --- sharper rules --------------------------------------------------------------------


def _sharper_rules(
    start: Rename | None, pairs: Pairs, make: Callable[[str, str], Rename]
) -> tuple[Rename, ...] | None:
    """Rules of the parts that differ alone, with as few parts before them as make the
    list right; None without such a list.
    """
    # The pairs of names without their numbers that still differ. A dict keeps the order
    # of the file, so that the answer does not depend on hashes.
    templates: dict[tuple[str, str], None] = {}
    for old, new in pairs:
        begun = list(_names_after_start(start, old))
        if new in begun:
            continue
        if "#" in old or "#" in new:
            return None
        # Words and numbers alternate: the numbers stand at the odd places.
        pieces_of_old = re.split("([0-9]+)", begun[0])
        pieces_of_new = re.split("([0-9]+)", new)
        if pieces_of_old[1::2] != pieces_of_new[1::2]:
            return None
        template = "#".join(pieces_of_old[::2])
        templates[template, "#".join(pieces_of_new[::2])] = None
    fallback = None
    for width in range(_WIDEST + 1):
        runs = dict.fromkeys(_differing_run(one, two, width) for one, two in templates)
        rules = [make(one, two) for one, two in runs]
        ordered = _order_rules(rules) if 0 < len(rules) <= _MOST else None
        if ordered is None:
            continue
        order = tuple(ordered) if start is None else (start, *ordered)
        if _gives_partners(order, pairs):
            if all(rule.is_plain for rule in ordered):
                return order
            fallback = fallback or order
    return fallback


def _differing_run(one: str, two: str, width: int) -> tuple[str, str]:
    """The parts in which two templates differ, with up to `width` parts before them,
    and none of the two empty.
    """
    mine = one.split(".")
    other = two.split(".")
    least = min(len(mine), len(other))
    first = 0
    while first < least and mine[first] == other[first]:
        first += 1
    same_at_end = 0
    while (
        same_at_end < least - first
        and mine[-1 - same_at_end] == other[-1 - same_at_end]
    ):
        same_at_end += 1
    first = max(first - width, 0)
    # An empty run takes the part before it with it, or at the start the one behind it.
    while least - same_at_end <= first:
        if first:
            first -= 1
        else:
            same_at_end -= 1
    run_of_one = mine[first : len(mine) - same_at_end]
    run_of_two = other[first : len(other) - same_at_end]
    return ".".join(run_of_one), ".".join(run_of_two)


def _order_rules(rules: Sequence[Rename]) -> list[Rename] | None:
    """Return the rules, each before any other whose result it would change, or None if
    two would change each other's.
    """
    substitutes = [_substitution_of(rule) for rule in rules]
    # A rule waits for those that would change what it makes.
    waits_for: list[set[int]] = []
    for number, rule in enumerate(rules):
        words = _words_made_by(rule)
        waits_for.append(
            {
                other
                for other, substitute in enumerate(substitutes)
                if other != number and substitute(words) != words
            }
        )
    order: list[int] = []
    while len(order) < len(rules):
        ready = [
            number
            for number in range(len(rules))
            if number not in order and waits_for[number] <= set(order)
        ]
        if not ready:
            return None
        order += ready
    return [rules[number] for number in order]
