"""The substitutions that rename modules, and the command with them: one for all of a
template where numbers follow, else one for each module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from ckpt.evidence.mapping import Rename
from ckpt.ext.explain.case import Case
from ckpt.model.rows import NamedTuple

MOST_RULES = 32
"""Substitutions of one command: nobody would read more."""
SAFE_NAME = re.compile(r"[\w.-]{1,400}")
"""A name that stands in a substitution as it is."""


def module_rules(modules: Mapping[str, str]) -> list[str]:
    """The substitutions that rename modules from the beginning of a name."""
    rules = []
    for old, new in modules.items():
        begin = rf"{re.escape(old)}\." if old else ""
        rules.append(f"s/^{begin}/{new}./" if new else f"s/^{begin}//")
    return rules


def _differing_parts(old: str, new: str) -> tuple[str, str]:
    """The parts in which two names differ, without those that both begin and end
    with.
    """
    ours, theirs = old.split("."), new.split(".")
    # One word stays on each side, for a substitution needs something to replace.
    while len(ours) > 1 < len(theirs) and ours[0] == theirs[0]:
        del ours[0], theirs[0]
    while len(ours) > 1 < len(theirs) and ours[-1] == theirs[-1]:
        del ours[-1], theirs[-1]
    return ".".join(ours), ".".join(theirs)


def short_modules(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """The parts in which modules differ, as `old is new` -> the modules."""
    found: dict[str, list[str]] = {}
    for old, new in modules.items():
        ours, theirs = _differing_parts(old, new) if old and new else (old, new)
        found.setdefault(f"{ours} is {theirs}", []).append(old)
    return found


_DIGITS = re.compile(r"\d+")


class Template(NamedTuple):
    """The names of modules without their numbers, on both sides, and for each number of
    the new name the place of the number of the old one that it is, or the number
    itself. `places` is None where no rule gives the numbers.
    """

    old: str
    new: str
    modules: Mapping[str, str]
    places: tuple[int | str, ...] | None


def templates_of(modules: Mapping[str, str]) -> list[Template]:
    """The templates of modules. One that has no rule for its numbers stands for each of
    its modules.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for old, new in modules.items():
        # Modules of one form on both sides are one template.
        key = _DIGITS.sub("#", old), _DIGITS.sub("#", new)
        groups.setdefault(key, {})[old] = new
    found: list[Template] = []
    for (old, new), group in groups.items():
        places = _places_of(old, new, group) if len(group) > 1 else None
        if places is not None:
            found.append(Template(old, new, group, places))
            continue
        found += [Template(old, new, {one: two}, None) for one, two in group.items()]
    return found


def _places_of(
    old: str, new: str, group: Mapping[str, str]
) -> tuple[int | str, ...] | None:
    """The number of an old name that each number of a new name is, or the number that
    all new names have, or None where one is neither.
    """
    rows = [(_DIGITS.findall(one), _DIGITS.findall(two)) for one, two in group.items()]
    places: list[int | str] = []
    for index in range(new.count("#")):
        values = [theirs[index] for _, theirs in rows]
        # A place fits only where it has the number of the new name in all modules.
        same = [
            place
            for place in range(old.count("#"))
            if [ours[place] for ours, _ in rows] == values
        ]
        if same:
            places.append(_nearest_place(same, index, old, new))
        # A number that all new names share needs no place in the old one.
        elif len(set(values)) == 1:
            places.append(values[0])
        else:
            return None
    return tuple(places)


def _nearest_place(same: Sequence[int], index: int, old: str, new: str) -> int:
    """The place of a number, counted from the end of a name, which has fewer changes
    than its beginning.
    """
    behind = new.count("#") - index
    return min(same, key=lambda place: abs(old.count("#") - place - behind))


def _template_rules(modules: Mapping[str, str]) -> list[str]:
    """One substitution for each template of modules."""
    rules: list[str] = []
    for row in templates_of(modules):
        if row.places is None:
            rules += module_rules(row.modules)
            continue
        begin = re.escape(row.old).replace(r"\#", "([0-9]+)")
        rules.append(rf"s/^{begin}\./{fill_template(row, _reference)}./")
    return rules


def fill_template(row: Template, text_of: Callable[[int | str], str]) -> str:
    """The new name of a template, with a text for each number."""
    places = iter(row.places or ())
    return "".join(
        text_of(next(places)) if letter == "#" else letter for letter in row.new
    )


def _reference(place: int | str) -> str:
    return rf"\g<{place + 1}>" if isinstance(place, int) else place


def _word_rules(modules: Mapping[str, str]) -> list[str]:
    """The substitutions that rename the parts in which modules differ, wherever they
    stand.
    """
    pairs = dict.fromkeys(
        _differing_parts(old, new) for old, new in modules.items() if old and new
    )
    return [rf"s/(^|\.){re.escape(old)}(?=\.|$)/\g<1>{new}/g" for old, new in pairs]


def combined_rules(
    before: Sequence[Rename],
    modules: Mapping[str, str],
    partners: Mapping[str, str],
    names: Collection[str],
) -> tuple[str, ...]:
    """Return the substitutions of a mapping and of modules as one list, where they give
    each partner its name and no two tensors one name; nothing where they do not.
    """
    if not all(rule.is_plain for rule in before):
        return ()
    first = [rule.substitution for rule in before]
    own = "|".join(re.escape(old) for old in modules if old)
    # A rule that puts something before every name leaves these modules out.
    others = [
        f"s/^(?!(?:{own})\\.)/{rule.two}/"
        if rule.kind == "start" and not rule.one and own
        else rule.substitution
        for rule in before
    ]
    wanted = {old: new for new, old in partners.items()}
    words = _word_rules(modules)
    templates = _template_rules(modules)
    # The shortest list stands first; the later ones are plainer and fit more often.
    for rules in (
        *([[*first, *templates]] if 0 < len(templates) < len(modules) else []),
        [*first, *(words if len(words) < len(modules) else module_rules(modules))],
        [*first, *module_rules(modules)],
        [*module_rules(modules), *first],
        [*others, *module_rules(modules)],
    ):
        if len(rules) <= MOST_RULES and give_names(rules, wanted, names):
            return tuple(rules)
    return ()


def give_names(
    rules: Sequence[str],
    wanted: Mapping[str, str],
    names: Collection[str],
    *,
    others_stay: bool = False,
) -> bool:
    """Tell whether substitutions, one after the other, give each name of a file the one
    that is wanted for it, and no two of them one name.

    With `others_stay` all other names have to stay what they are.
    """
    if not all(SAFE_NAME.fullmatch(name) for pair in wanted.items() for name in pair):
        return False
    # The rules run here as `ckpt rename` runs them, before a command is printed.
    steps = [_parse_rule(rule) for rule in rules]
    taken: set[str] = set()
    for name in names:
        new = name
        for pattern, replacement, times in steps:
            new = pattern.sub(replacement, new, count=times)
        right = wanted.get(name, name if others_stay else new)
        # Two tensors of one name would be one tensor less.
        if new != right or new in taken:
            return False
        taken.add(new)
    return True


def _parse_rule(rule: str) -> tuple[re.Pattern[str], str, int]:
    """The parts of a substitution, which has no slash in its names."""
    _, pattern, replacement, flags = rule.split("/")
    return re.compile(pattern), replacement, 0 if flags else 1


def rename_line(
    rules: Sequence[str], case: Case, section: str | None = None
) -> str | None:
    """The command that renames, or None where there are no rules."""
    if not rules:
        return None
    words = [word for rule in rules for word in ("--sub", rule)]
    if section is not None:
        words += ["--section", section]
    return case.plan(("rename", *words)).command
