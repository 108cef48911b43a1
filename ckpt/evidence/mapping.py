"""The mapping between the names of two models: which prefixes, words and dialects of
packages make their tensors meet.

A tensor meets another one by name *and* shape. The mapping with the most elements is
used when it is the only best one and names speak for it; what shapes alone suggest is a
doubt, which only the user can accept. No search is quadratic in the number of names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from shlex import quote
from typing import Literal

from ckpt.evidence.adapters import AdapterTranslation, adapter_translation
from ckpt.evidence.dialects import (
    COPIES,
    LAID_OUT,
    LEAVES,
    ONE_SIDED,
    OPPOSITES,
    REPARAMETRIZED,
    SYNONYMS,
    Translation,
    dialect_translations,
)
from ckpt.evidence.substitutions import order_renames
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, is_number, show

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Kind = Literal["start", "words", "dialect", "shape"]
"""`start`: another beginning. `words`: other words, wherever they stand. `dialect`: the
names of another package. `shape`: the place of a module by shapes and numbers alone.
"""

ENOUGH = 95
"""Percent of the names of the smaller side that make any search needless."""
_WORTH = 50
"""Percent of the names or elements of the smaller side that make a beginning worth a
thought.
"""
_DEPTH = 8
"""Parts of a name that a beginning may have."""
_BEST = 4
"""Beginnings that are tried to the end."""
_RUN = 3
"""Parts of a name that one rename of words may replace."""
_MANY = 4_000
"""Names without their numbers, of both sides, beyond which one rename of words replaces
one part.
"""
_ALIKE = 16
"""Names with one context that are told apart; with more of them the context says too
little.
"""
_ROUNDS = 8
"""Times that words are looked for: a rename shows others."""
_PARTS = 12
"""Dots in a name that takes part in the search for words."""
_RULES = 32
"""Renames that one search gives: a mapping of more rules is none that people would
write.
"""
_PLAIN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*\.)*")
_PLAIN_WORDS = re.compile(
    r"[A-Za-z0-9_#][A-Za-z0-9_#-]*(?:\.[A-Za-z0-9_#][A-Za-z0-9_#-]*)*"
)


_LEAVES = frozenset(
    ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
)
"""Names of tensors that torch itself gives: one of them is no other one."""


class Rename(NamedTuple):
    """One rule of a mapping: `one` becomes `two`. With it `met` tensors meet, of the
    `of` names of the smaller side.

    For a start both end with a dot or are empty (`backbone.`). In words, `#` is a
    number that stays.
    """

    one: str
    two: str
    met: int
    of: int
    kind: Kind = "start"
    note: str = ""
    is_exact: bool = True
    """A flag: with the other rules of its mapping, as substitutions one after the
    other, it gives exactly the names that meet.
    """

    def rule(self, name: str) -> str:
        """Return the name that the other side gives a tensor of the first side."""
        if self.kind == "start":
            return (
                self.two + name[len(self.one) :] if name.startswith(self.one) else name
            )
        if self.kind != "words" or self.one.partition("#")[0] not in name:
            return name
        pattern, new = _word_pattern(self.one, self.two)
        return re.sub(pattern, new, name)

    def best(self, name: str, wanted: Container[str]) -> str:
        """As `rule`; where that is not wanted, the words are replaced in one place
        only, if the result is.
        """
        new = self.rule(name)
        if self.kind != "words" or new in wanted:
            return new
        old, words = self.one.split("."), self.two.split(".")
        single = (
            _reword_name(name, old, words, only=index)
            for index in range(name.count(".") + 1)
        )
        other = next((text for text in single if text in wanted), None)
        return (new if self.has_letters else name) if other is None else other

    @property
    def has_letters(self) -> bool:
        """Tell whether both sides have a word: a number alone stands in many places of
        a name.
        """
        return self.kind == "start" or all(text.strip("#.") for text in self[:2])

    @property
    def turned(self) -> Rename:
        """The rule from the second side to the first one."""
        return self._replace(one=self.two, two=self.one)

    @property
    def substitution(self) -> str:
        """`rule` as `--sub` takes it."""
        pattern, new = self.pattern
        return f"s/{pattern}/{new}/" if self.kind == "start" else f"s/{pattern}/{new}/g"

    @property
    def pattern(self) -> tuple[str, str]:
        """A regular expression and its replacement, which `re.sub` makes of the
        rule.
        """
        if self.kind == "start":
            return begin_pattern(self.one, self.two)
        return _word_pattern(self.one, self.two)

    @property
    def is_plain(self) -> bool:
        """Tell whether substitutions, of it and of the other rules of its mapping, say
        the same and are plain to read.
        """
        if self.kind == "start":
            return self.is_exact and bool(
                _PLAIN.fullmatch(self.one) and _PLAIN.fullmatch(self.two)
            )
        return (
            self.kind == "words"
            and self.is_exact
            and self.has_letters
            and bool(
                _PLAIN_WORDS.fullmatch(self.one) and _PLAIN_WORDS.fullmatch(self.two)
            )
        )

    @property
    def text(self) -> tuple[str, str]:
        """Both sides as people write them: `backbone.*` and `*`, `layer<n>` and
        `<n>`.
        """
        if self.kind == "start":
            return f"{self.one}*", f"{self.two}*"
        return self.one.replace("#", "<n>"), self.two.replace("#", "<n>")

    @property
    def label(self) -> str:
        """The rule in one line, as it is printed."""
        one, two = (show(text, 80) for text in self.text)
        return f"{one} → {two}"

    def to_json(self) -> dict[str, Json]:
        """Return both sides of the rule, and how many names meet."""
        return {"from": self.text[0], "to": self.text[1], "count": self.met}

    def suggestion(self) -> dict[str, Json]:
        """Return the rule that would be used, and the substitution for it."""
        return {**self.to_json(), "of": self.of, "sub": self.substitution}

    @property
    def advice(self) -> str:
        """The sentence that `option` ends."""
        return (
            f"not aligned: {self.met:,} of {counted_noun(self.of, 'name')} match with"
        )

    @property
    def option(self) -> str:
        """The option that uses it, as a shell takes it."""
        return f"--sub {quote(self.substitution)}"


@lru_cache(maxsize=64)
def _word_pattern(one: str, two: str) -> tuple[str, str]:
    """A regular expression and its replacement, which put words in the place of others,
    wherever these stand.
    """
    numbers = iter(range(2, 100))
    # A lookahead leaves the dot behind the words to the next match.
    old = re.escape(one).replace(r"\#", "([0-9]+)")
    new = re.sub("#", lambda _: rf"\g<{next(numbers)}>", two)
    return rf"(^|\.){old}(?=\.|$)", rf"\g<1>{new}"


def begin_pattern(one: str, two: str) -> tuple[str, str]:
    """A regular expression and its replacement, which put one beginning in the place of
    another one.
    """
    return f"^{re.escape(one)}", two.replace("\\", r"\\")


class Match(NamedTuple):
    """The tensors of two sides that are one another's. `partners` maps the names of
    `two` to the names of `one`.

    `joins` maps a name of `two` to the three names of `one` that it holds; `cuts` maps
    a name of `two` to the name of `one` that holds it, with its third. `renames` were
    used. `doubts` are rules for which the names do not speak enough.
    """

    partners: dict[str, str]
    renames: tuple[Rename, ...] = ()
    doubts: tuple[Rename, ...] = ()
    joins: Mapping[str, Sequence[str]] = {}
    cuts: Mapping[str, tuple[str, int]] = {}
    layout: str = ""
    """The reason why tensors of equal shapes hold other values."""

    @property
    def turned(self) -> Match:
        """The same match from the second side to the first one."""
        joins: dict[str, list[str]] = {}
        for name, (whole, third) in self.cuts.items():
            joins.setdefault(whole, ["", "", ""])[third] = name
        return Match(
            {one: two for two, one in self.partners.items()},
            tuple(rename.turned for rename in self.renames),
            tuple(rename.turned for rename in self.doubts),
            {whole: parts for whole, parts in joins.items() if all(parts)},
            {
                part: (whole, third)
                for whole, parts in self.joins.items()
                for third, part in enumerate(parts)
            },
            self.layout,
        )


def match(
    one: Shapes,
    two: Shapes,
    *,
    by_shape: bool = False,
    layouts: bool = True,
    keep: Sequence[str] = (),
) -> Match:
    """Match the tensors of two sides by their names and shapes. The two sides may
    change places.

    With `by_shape` doubtful renames are used too, and then the places of modules by
    shapes and numbers alone. Without `layouts` the names of a package that keeps values
    in another layout are not translated. Substitutions run on further names of the
    first side, `keep`, too: they must leave these as they are.
    """
    if _sort_key(two) < _sort_key(one):
        found = _match_sides(two, one, by_shape, layouts).turned
    else:
        found = _match_sides(one, two, by_shape, layouts)
    partners = {name: name for name in keep} | found.partners
    return found._replace(
        renames=order_renames(found.renames, partners, [*one, *keep], _words_rule)
    )


def _words_rule(one: str, two: str) -> Rename:
    return Rename(one, two, 0, 0, "words")


def _sort_key(names: Shapes) -> tuple[int, list[str]]:
    return len(names), sorted(names)


def _match_sides(one: Shapes, two: Shapes, by_shape: bool, layouts: bool) -> Match:
    plain = _Draft(one, two)
    if len(plain.partners) == plain.least:
        return plain.match()
    known: list[Translation | AdapterTranslation] = [
        row for row in dialect_translations(one, two) if layouts or not row.layout
    ]
    adapter = adapter_translation(one, two)
    known += [adapter] if adapter is not None else []
    drafts = []
    for translation in (None, *known):
        for begins in (True, False):
            draft = _Draft(one, two, translation)
            draft.search(begins=begins, by_shape=by_shape)
            drafts.append(draft)
            if draft.outside == ("", "") or (
                len(draft.met()) == draft.least and len(draft.renames) < 2
            ):
                break
    best = max(drafts, key=lambda draft: draft.score)
    best.doubts += [
        rename
        for draft in drafts
        if draft.translation is best.translation
        for rename in draft.doubts
    ]
    return best.match()


class _Draft:
    """A mapping in the making. `names` maps the names of `one` to what they are called
    by the rules so far.
    """

    def __init__(
        self,
        one: Shapes,
        two: Shapes,
        translation: Translation | AdapterTranslation | None = None,
    ) -> None:
        self.one = one
        self.two = two
        self.least = min(len(one), len(two))
        self.translation = translation
        self.names = {name: name for name in one}
        if translation is not None:
            self.names.update(translation.names)
        self.renames: list[Rename] = []
        self.doubts: list[Rename] = []
        self.outside = ("", "")
        """The beginning that was taken off, and the one that was put on: tensors
        outside of it may keep their names.
        """
        self.partners = self._pair_names()

    def search(self, *, begins: bool, by_shape: bool) -> None:
        """Find rules, each step for what the one before it has left: beginnings where
        wanted, words, shapes.
        """
        if begins:
            self._rename_beginnings()
        self._rename_words(by_shape=by_shape)
        if by_shape:
            self._shapes()

    def match(self) -> Match:
        """Return what was found."""
        doubts = tuple({rename[:2]: rename for rename in self.doubts}.values())
        if self.translation is None:
            return Match(self.partners, tuple(self.renames), doubts)
        sides = self.translation.one.text, self.translation.two.text
        used = {name for name, new in self.translation.names.items() if new != name}
        met = sum(name in used for name in self.met().values())
        joins = {
            name: parts
            for name, parts in self.translation.joins.items()
            if name in self.two
        }
        cuts = {
            name: place
            for name, place in self.translation.cuts.items()
            if name in self.two
        }
        first = Rename(*sides, met + len(joins) + len(cuts), self.least, "dialect")
        renames = (first, *self.renames)
        return Match(
            self.partners, renames, doubts, joins, cuts, self.translation.layout
        )

    @property
    def score(self) -> tuple[int, int]:
        """The elements that meet, then the fewest rules."""
        meeting = set(self.met())
        if self.translation is not None:
            meeting |= (
                self.translation.joins.keys() | self.translation.cuts.keys()
            ) & self.two.keys()
        # An empty tensor and a number count too.
        return sum(prod(self.two[name]) + 1 for name in meeting), -len(self.renames)

    def met(self) -> dict[str, str]:
        """The partners of equal shape."""
        return {
            two: one
            for two, one in self.partners.items()
            if self.one[one] == self.two[two]
        }

    def _pair_names(self) -> dict[str, str]:
        """The partner of each name of `two`: tensors of equal shape first, by their new
        names before their own ones.
        """
        start, other = self.outside
        ways = [self.names]
        if start or other:
            ways.append({name: name for name in self.names})
            ways.append(
                {
                    name: name[len(start) :]
                    for name in self.names
                    if name.startswith(start)
                }
            )
            ways.append(
                {
                    name: other + name
                    for name in self.names
                    if not start or not name.startswith(start)
                }
            )
        partners: dict[str, str] = {}
        used: set[str] = set()
        for exact in (True, False):
            for way in ways:
                for name, new in way.items():
                    if new not in self.two or new in partners or name in used:
                        continue
                    if not exact or self.one[name] == self.two[new]:
                        partners[new] = name
                        used.add(name)
        return partners

    def _left(self) -> tuple[dict[str, str], dict[str, Shape]]:
        """The tensors without a partner: the new names of `one` -> their own ones, and
        the names of `two` with their shapes.
        """
        used = set(self.partners.values())
        one = {new: name for name, new in self.names.items() if name not in used}
        return one, {
            name: shape for name, shape in self.two.items() if name not in self.partners
        }

    def _use_rename(self, rename: Rename, names: Mapping[str, str]) -> None:
        """Call some names of `one` otherwise, and keep the rule where more tensors meet
        by it.
        """
        before = len(self.met())
        self.names.update(names)
        self.partners = self._pair_names()
        met = len(self.met()) - before
        if met > 0:
            self.renames.append(rename._replace(met=met, of=self.least))

    # --- leaves ---

    def _rename_leaves(self) -> None:
        """Give the leaves of norms the names of the other side: gamma and beta, or
        weight and bias.
        """
        one, two = self._left()
        for pair in (LEAVES, tuple((new, old) for old, new in LEAVES)):
            for old, leaf in pair:
                found = {}
                for name, own in one.items():
                    module, _, last = name.rpartition(".")
                    if last == old and two.get(f"{module}.{leaf}") == self.one[own]:
                        found[own] = f"{module}.{leaf}"
                if found:
                    self._use_rename(Rename(old, leaf, 0, 0, "words"), found)
        self._rename_reparametrized()

    def _rename_reparametrized(self) -> None:
        """Give the tensors of weight_norm and spectral_norm their names as
        parametrizations, or their old ones.
        """
        left, two = self._left()
        one = {new: self.one[own] for new, own in left.items()}
        pairs = [
            *reparametrized_names(one, two),
            *((name, old) for old, name in reparametrized_names(two, one)),
        ]
        found: dict[tuple[str, str], dict[str, str]] = {}
        for name, new in pairs:
            same = (
                name.rpartition(".")[0]
                if len(name) < len(new)
                else new.rpartition(".")[0]
            )
            leaves = (
                name[len(same) :].removeprefix("."),
                new[len(same) :].removeprefix("."),
            )
            found.setdefault(leaves, {})[left[name]] = new
        for (before, after), names in found.items():
            self._use_rename(Rename(before, after, 0, 0, "words"), names)

    # --- beginnings ---

    def _rename_beginnings(self) -> None:
        """Use the beginnings by which most elements meet, when they are the only best
        ones.
        """
        one = {new: self.one[name] for name, new in self.names.items()}
        if (
            len(one) < len(self.names)
            or 100 * len(self.partners) >= ENOUGH * self.least
        ):
            return
        tried: list[tuple[int, Rename, _Draft]] = []
        for start in sorted(
            component_renames(one, self.two), key=lambda start: -start.met
        )[:_BEST]:
            draft = _Draft(self.one, self.two, self.translation)
            draft.names = {name: start.rule(new) for name, new in self.names.items()}
            draft.outside = start[:2]
            draft.partners = draft._pair_names()
            if draft.score[0] > self.score[0]:
                tried.append((draft.score[0], start, draft))
        best = [row for row in tried if row[0] == max(row[0] for row in tried)]
        chosen = best[0] if len(best) == 1 else _preferred_beginning(best)
        if (
            chosen is None
            or not _is_model(chosen[1], one, self.two)
            or _are_opposite(*chosen[1][:2])
        ):
            self.doubts += [rename for _, rename, _ in tried]
            return
        others = ", ".join(
            rename.text[0 if rename.one != chosen[1].one else 1]
            for _, rename, _ in best
            if rename is not chosen[1]
        )
        draft = chosen[2]
        self.names, self.outside, self.partners = (
            draft.names,
            draft.outside,
            draft.partners,
        )
        self.renames.append(
            chosen[1]._replace(
                note=f"{others} fits as well; the optimizer trains the one that is used"
                if others
                else ""
            )
        )

    # --- words ---

    def _rename_words(self, *, by_shape: bool) -> None:
        """Use the renames of words that are certain, round after round; the others are
        doubts.
        """
        for _ in range(_ROUNDS):
            self._rename_leaves()
            one, two = self._left()
            rules = _word_rules({new: self.one[name] for new, name in one.items()}, two)
            chosen = [rule for rule, is_sure in rules if is_sure or by_shape]
            before = len(self.partners)
            for rule in chosen:
                left, wanted = self._left()
                self._use_rename(
                    rule, {own: rule.best(new, wanted) for new, own in left.items()}
                )
            if len(self.partners) == before:
                self.doubts += [
                    rule for rule, is_sure in rules if not (is_sure or by_shape)
                ]
                return

    # --- shapes ---

    def _shapes(self) -> None:
        """Pair modules by the shapes of their tensors, their numbers and their
        order.
        """
        one, two = self._left()
        pairs = _match_by_shape({new: self.one[name] for new, name in one.items()}, two)
        self.names.update({one[new]: target for new, target in pairs.items()})
        self.partners = self._pair_names()
        met = self.met()
        modules: Counter[tuple[str, str]] = Counter()
        for new, target in pairs.items():
            if met.get(target) == one[new]:
                old, place = (
                    _split_numbers(name.rpartition(".")[0])[0] for name in (new, target)
                )
                modules[old, place] += 1
        for (old, place), count in modules.items():
            self.renames.append(Rename(old, place, count, self.least, "shape"))


# --- beginnings -----------------------------------------------------------------------


def component_renames(one: Shapes, two: Shapes) -> Iterator[Rename]:
    """The beginnings without which at least half of the names, or elements, of the
    smaller side meet, with equal shapes.

    None that says the same as a shorter one: `layer1.` and `backbone.layer1.` are ``
    and `backbone.`.
    """
    is_turned = len(two) < len(one)
    small, large = (two, one) if is_turned else (one, two)
    whole = min(sum(map(prod, side.values())) for side in (small, large))
    for mine in _likely_components(small, whole):
        rests = {
            name[len(mine) :]: shape
            for name, shape in small.items()
            if name.startswith(mine)
        }
        met: Counter[str] = Counter()
        elements: Counter[str] = Counter()
        for name, shape in large.items():
            for offset in _rest_offsets(name):
                if rests.get(name[offset:]) == shape:
                    met[name[:offset]] += 1
                    elements[name[:offset]] += prod(shape)
        for other, count in met.items():
            is_longer = (
                mine.split(".")[-2:] == other.split(".")[-2:]
                if mine and other
                else mine == other
            )
            is_worth = (
                100 * count >= _WORTH * len(small)
                or 100 * elements[other] >= _WORTH * whole > 0
            )
            if not is_longer and is_worth:
                yield Rename(
                    *((other, mine) if is_turned else (mine, other)), count, len(small)
                )


def common_component(names: Sequence[str]) -> str:
    """The first component that all names have, with its dot; `` when there is none, or
    one module below it.
    """
    first = names[0].partition(".")[0] + "." if names else ""
    is_common = all(name.startswith(first) and name != first for name in names)
    modules = {name[len(first) :].rpartition(".")[0] for name in names}
    return first if is_common and len(modules) > 1 and _PLAIN.fullmatch(first) else ""


def _likely_components(names: Shapes, whole: int) -> list[str]:
    """The beginnings below which so many names, or of so many elements, lie that one of
    them may be the component.
    """
    shared: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for name, shape in names.items():
        for offset in _rest_offsets(name):
            shared[name[:offset]] += 1
            elements[name[:offset]] += prod(shape)
    return [
        text
        for text, count in shared.items()
        if 100 * count >= _WORTH * len(names)
        or 100 * elements[text] >= _WORTH * whole > 0
    ]


def _rest_offsets(name: str) -> Iterator[int]:
    """Yield the places where the rest of a name may begin: 0, and behind each of its
    first dots.
    """
    offset = 0
    for _ in range(_DEPTH):
        yield offset
        offset = name.find(".", offset) + 1
        if not 0 < offset < len(name):
            return


def _is_model(start: Rename, one: Shapes, two: Shapes) -> bool:
    """Tell whether the names below a component are more than a layer like any other
    one.

    `0.` and `1.`, `layer1.` and `layer2.` are layers. `weight` alone says nothing,
    unless both sides have nothing else.
    """
    inside = [start.rule(name) for name in one if name.startswith(start.one)]
    ends = {name.rpartition(".")[0] for name in inside if name in two}
    ends -= {start.two[:-1]}
    if not start.one or not start.two:
        return bool(ends) or start.met == len(one) == len(two)
    letters = [_split_numbers(text)[0].replace("#", "") for text in start[:2]]
    return len(ends) > 1 and letters[0] != letters[1]


def _preferred_beginning(
    rows: Sequence[tuple[int, Rename, _Draft]],
) -> tuple[int, Rename, _Draft] | None:
    """The one of several equal beginnings that the optimizer trained, where the others
    are its moving averages.
    """
    if rows and all(row[2].met() == rows[0][2].met() for row in rows):
        return rows[0]
    for trained, average in COPIES:
        words = [{*row[1].one.split("."), *row[1].two.split(".")} for row in rows]
        first = [
            row for row, parts in zip(rows, words, strict=True) if trained in parts
        ]
        if (
            len(first) == 1
            and sum(average in parts for parts in words) == len(rows) - 1
        ):
            return first[0]
    return None


def reparametrized_names(old: Shapes, new: Shapes) -> Iterator[tuple[str, str]]:
    """Yield the tensors of weight_norm and spectral_norm in `old`, each with its name
    as a parametrization in `new`.

    All tensors of a parameter are on both sides, with equal shapes.
    """
    for name in old:
        for form in REPARAMETRIZED:
            first = form[0][0]
            if not name.endswith(first):
                continue
            base = name.removesuffix(first)
            module, dot, parameter = base.rpartition(".")
            pairs = [
                (base + end, f"{module}{dot}{text.format(parameter)}")
                for end, text in form
            ]
            if all(one in old and old[one] == new.get(two) for one, two in pairs):
                yield from pairs


# --- words ----------------------------------------------------------------------------

Numbers = tuple[str, ...]
_Templates = dict[str, dict[Numbers, Shape]]
"""A name without its numbers -> the numbers that it comes with, and the shapes."""


def _split_numbers(name: str) -> tuple[str, Numbers]:
    """A name with `#` for each number, and the numbers: `layer1.0.conv` ->
    (`layer#.#.conv`, (`1`, `0`)).
    """
    pieces = re.split("([0-9]+)", name)
    return "#".join(pieces[::2]), tuple(pieces[1::2])


def _templates_of(names: Shapes) -> _Templates:
    found: _Templates = {}
    for name, shape in names.items():
        if "#" not in name and name.count(".") < _PARTS:
            template, numbers = _split_numbers(name)
            found.setdefault(template, {})[numbers] = shape
    return found


def _reword_name(
    name: str, old: Sequence[str], new: Sequence[str], only: int | None = None
) -> str:
    """The name with one run of parts in place of another one, wherever it stands, or
    `only` at a part; numbers stay.
    """
    parts, out = name.split("."), list[str]()
    index = 0
    while index < len(parts):
        run = _split_numbers(".".join(parts[index : index + len(old)]))
        if run[0] == ".".join(old) and only in (None, index):
            numbers = iter(run[1])
            out += [
                "".join(
                    next(numbers, "") if letter == "#" else letter for letter in part
                )
                for part in new
            ]
            index += len(old)
        else:
            out.append(parts[index])
            index += 1
    return ".".join(out)


class _Candidate:
    """A rename of words, with the pairs of templates that it would make equal."""

    def __init__(self, rename: Rename, kinship: int) -> None:
        self.rename = rename
        self.kinship = kinship
        self.pairs: list[tuple[str, str]] = []
        self.below: set[str] = set()
        """The modules below the words, in the pairs."""
        self.elements = 0
        self.met = 0

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.kinship, len(self.below), self.elements

    @property
    def is_sure(self) -> bool:
        """Tell whether names speak for it: the words are akin, or several modules below
        them keep their names.
        """
        least = 0 if self.kinship >= _AKIN else 1 if self.rename.kind == "start" else 2
        if _are_opposite(*self.rename[:2]) or _is_one_sided(self.rename):
            return False
        return self.met > 1 and len(self.below) >= least


def _word_rules(one: Shapes, two: Shapes) -> list[tuple[Rename, bool]]:
    """The renames of words by which templates of both sides become equal, the best
    first, and whether names speak for them.

    A rename that another one contradicts, which explains as much, is left out.
    """
    mine, other = _templates_of(one), _templates_of(two)
    candidates: dict[tuple[str, str, Kind], _Candidate] = {}
    of_template: dict[tuple[int, str], list[_Candidate]] = {}
    for (first, second), (start, size, count) in _differing_runs(mine, other).items():
        met = [
            shape
            for numbers, shape in mine[first].items()
            if other[second].get(numbers) == shape
        ]
        common = mine[first].keys() & other[second].keys()
        if (
            not met
            or len(met) < len(common)
            or 2 * len(common) < min(len(mine[first]), len(other[second]))
        ):
            continue
        rule = _rename_of_run(first.split("."), second.split("."), start, size, count)
        if _is_laid_out(rule):
            continue
        key = rule.one, rule.two, rule.kind
        candidate = candidates.get(key)
        if candidate is None:
            candidate = candidates[key] = _Candidate(
                rule, _rename_kinship(rule) if rule.kind == "words" else 0
            )
        candidate.pairs.append((first, second))
        candidate.elements += sum(prod(shape) + 1 for shape in met)
        candidate.met += len(met)
        below = first.split(".")[start + size : -1]
        candidate.below |= (
            {".".join(below)} if any(part.strip("#") for part in below) else set()
        )
        for side in ((0, first), (1, second)):
            of_template.setdefault(side, []).append(candidate)
    used: set[tuple[int, str]] = set()
    rules: list[tuple[Rename, bool]] = []
    for candidate in sorted(
        candidates.values(), key=lambda row: row.rank, reverse=True
    ):
        if len(rules) == _RULES:
            break
        sides = [
            (side, text) for pair in candidate.pairs for side, text in enumerate(pair)
        ]
        free = [
            pair
            for pair in candidate.pairs
            if (0, pair[0]) not in used and (1, pair[1]) not in used
        ]
        rivals = [
            row for side in sides for row in of_template[side] if row is not candidate
        ]
        is_doubtful = any(row.rank == candidate.rank for row in rivals)
        used.update(sides)
        if free and not is_doubtful:
            rename = candidate.rename._replace(
                met=candidate.met, of=min(len(one), len(two))
            )
            rules.append((rename, candidate.is_sure))
    return rules


def _differing_runs(
    one: _Templates, two: _Templates
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Pairs of templates that are equal but for one run of parts: where it begins, and
    its parts on either side.

    A beginning and an end that many templates have pair nothing.
    """
    longest = _RUN if len(one) + len(two) <= _MANY else 1
    runs: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for second in two:
        for key, _, count in _template_runs(second, longest):
            runs.setdefault(key, []).append((second, count))
    used = Counter(
        key
        for first in one
        for key, _, _ in _template_runs(first, longest)
        if key in runs
    )
    best: dict[tuple[str, str], tuple[int, int, int]] = {}
    for first in one:
        for key, start, size in _template_runs(first, longest):
            if not 0 < used[key] <= _ALIKE or len(runs[key]) > _ALIKE:
                continue
            for second, count in runs[key]:
                if (
                    size + count
                    and first != second
                    and first.count("#") == second.count("#")
                ):
                    old = best.get((first, second))
                    if old is None or size < old[1]:
                        best[first, second] = start, size, count
    return best


def _template_runs(
    text: str, longest: int
) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each run of parts of a template: what stands before and behind it, where it
    begins, and its parts.

    The last part is never in a run: a weight is no bias.
    """
    ends = [0, *(found.end() for found in re.finditer(r"\.", text))]
    for start, begin in enumerate(ends):
        for size, end in enumerate(ends[start : start + longest + 1]):
            yield (text[:begin], text[end:]), start, size


def _rename_of_run(
    one: list[str], two: list[str], start: int, size: int, count: int
) -> Rename:
    """The rename of one run of parts. An empty run takes the part before it with it, or
    is a beginning.
    """
    if not (size and count):
        if not start:
            old, new = (
                "".join(f"{part}." for part in row) for row in (one[:size], two[:count])
            )
            return Rename(old, new, 0, 0)
        start, size, count = start - 1, size + 1, count + 1
    return Rename(
        ".".join(one[start : start + size]),
        ".".join(two[start : start + count]),
        0,
        0,
        "words",
    )


def _words_of(text: str) -> list[str]:
    """The words of some parts of a name, in small letters."""
    broken = re.sub("(?<=[a-z])(?=[A-Z])", "_", text)
    return [word for word in re.split("[^a-z]+", broken.lower()) if word]


_AKIN = 2
"""The kinship of words that is enough: sharing one word is not, for `self_attn` and
`cross_attn` share one.
"""


def _rename_kinship(rule: Rename) -> int:
    """The kinship of both sides of a rename of words: 3 for the same in other words, 2
    for a part of it, 1 for a common word.
    """
    sides = [text.split(".") for text in rule[:2]]
    if len(sides[0]) == len(sides[1]):
        return min(
            3 if one == two else _part_kinship(one, two)
            for one, two in zip(*sides, strict=True)
        )
    ends = [parts[-min(map(len, sides)) :] for parts in sides]
    by_part = min(
        _part_kinship(one, two) if _words_of(one) and _words_of(two) else 0
        for one, two in zip(*ends, strict=True)
    )
    return min(max(by_part, _part_kinship(*rule[:2])), 2)


def _part_kinship(one: str, two: str) -> int:
    mine, other = _words_of(one), _words_of(two)
    texts = {"_".join(mine), "_".join(other)}
    if sorted(mine) == sorted(other) or any(texts <= group for group in SYNONYMS):
        return 3
    if set(mine) <= set(other) or set(other) <= set(
        mine
    ):  # one of them may be a number alone
        return 2
    short, long = sorted((mine[-1], other[-1]), key=len)
    if len(mine) == len(other) == 1 and long.startswith(short):
        return 2
    return int(not set(mine).isdisjoint(other))


def _are_opposite(one: str, two: str) -> bool:
    """Tell whether two texts have words for parts of a model that are twins, and none
    in common.
    """
    mine, other = set(_words_of(one)), set(_words_of(two))
    for group in OPPOSITES:
        first, second = (
            [number for number, words in enumerate(group) if words & side]
            for side in (mine, other)
        )
        if first and second and set(first).isdisjoint(second):
            return True
    return False


def _is_one_sided(rule: Rename) -> bool:
    """Tell whether words have a part only on one side that makes a module another one:
    `norm` and `norm_cross`.
    """
    sides = [ONE_SIDED.intersection(_words_of(text)) for text in rule[:2]]
    return rule.kind == "words" and sides[0] != sides[1]


def _is_laid_out(rule: Rename) -> bool:
    """Tell whether both sides are names of tensors that different code lays out in
    different ways.
    """
    ends = {text.rpartition(".")[2].lower() for text in rule[:2]}
    return any(len(ends & group) > 1 for group in LAID_OUT)


# --- numbers --------------------------------------------------------------------------

_NUMBERED = 48
"""Modules of one name beyond which no substitutions are written for each."""


class Shift(NamedTuple):
    """Numbered modules that fit better one or more numbers farther: `one` begins with
    `begins[0]`, `two` with `begins[1]`.
    """

    one: str
    two: str
    begins: tuple[int, int]
    last: int
    """The last number of the first side."""

    @property
    def reason(self) -> str:
        """The sentence that says so."""
        one, two = (
            show(f"{text[:-1].replace('#', '<n>')}{number}", 60)
            for text, number in zip(self[:2], self.begins, strict=True)
        )
        return (
            f"{one} is the first in PRETRAINED and {two} in the target, so the numbers "
            "are probably shifted"
        )

    @property
    def substitutions(self) -> list[str]:
        """The texts for `--sub` that shift the numbers; empty where there are too many,
        or where a slash is in the way.
        """
        first, last, step = self.begins[0], self.last, self.begins[1] - self.begins[0]
        if last - first >= _NUMBERED or "/" in self.one or first + step < 0:
            return []
        numbers = range(first, last + 1) if step < 0 else range(last, first - 1, -1)
        begin = re.escape(self.one[:-1]).replace(r"\#", "[0-9]+")
        return [
            f"s/^({begin}){number}(?![0-9])/\\g<1>{number + step}/"
            for number in numbers
        ]


def shift_of(one: Shapes, two: Shapes, partners: Mapping[str, str]) -> Shift | None:
    """The modules that meet by number, and of which more would meet, all, if one side
    counted from another number on.
    """
    mine, other = _templates_of(one), _templates_of(two)
    groups: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
    pairs = dict.fromkeys(
        (_split_numbers(partner)[0], _split_numbers(name)[0])
        for name, partner in partners.items()
    )
    for first, second in pairs:
        places = first.count("#")
        if places == second.count("#") and first in mine and second in other:
            ends = [
                [found.end() for found in re.finditer("#", text)]
                for text in (first, second)
            ]
            for place in range(places):
                key = first[: ends[0][place]], second[: ends[1][place]], place
                groups.setdefault(key, []).append((first, second))
    for (first, second, place), templates in groups.items():
        sides = [
            [numbers[place] for pair in templates for numbers in side[pair[index]]]
            for index, side in enumerate((mine, other))
        ]
        if not all(map(is_number, chain(*sides))):
            continue  # no list of modules is as long
        begins = min(map(int, sides[0])), min(map(int, sides[1]))
        if begins[0] == begins[1]:
            continue
        now = moved = least = 0
        for old, new in templates:
            for numbers, shape in mine[old].items():
                number = str(int(numbers[place]) + begins[1] - begins[0])
                now += other[new].get(numbers) == shape
                moved += (
                    other[new].get((*numbers[:place], number, *numbers[place + 1 :]))
                    == shape
                )
            least += min(len(mine[old]), len(other[new]))
        if 0 < now < moved == least:
            return Shift(first, second, begins, max(map(int, sides[0])))
    return None


# --- shapes ---------------------------------------------------------------------------


def _match_by_shape(one: Shapes, two: Shapes) -> dict[str, str]:
    """Names of `one` -> names of `two`, by their last parts, shapes and numbers, then
    by their order alone.
    """
    pairs: dict[str, str] = {}
    groups: list[dict[object, list[str]]] = []
    templates = _templates_of(one), _templates_of(two)
    for side in templates:
        group: dict[object, list[str]] = {}
        for text, shapes in side.items():
            group.setdefault(
                (text.rpartition(".")[2], frozenset(shapes.items())), []
            ).append(text)
        groups.append(group)
    for key, mine in groups[0].items():
        other = groups[1].get(key, [])
        for first, second in (
            zip(mine, other, strict=True) if len(mine) == len(other) else ()
        ):
            if _may_pair(first, second):
                for numbers in templates[0][first]:
                    pairs[_fill_template(first, numbers)] = _fill_template(
                        second, numbers
                    )
    taken = set(pairs.values())
    rest = (
        [name for name in one if name not in pairs],
        [name for name in two if name not in taken],
    )
    if len(rest[0]) != len(rest[1]):  # old files of BatchNorm lack its counter
        rest = (_without_counters(rest[0]), _without_counters(rest[1]))
    for first, second in zip(*rest, strict=False):  # a head at the end has no partner
        leaves = {first.rpartition(".")[2], second.rpartition(".")[2]}
        if one[first] != two[second] or (len(leaves) > 1 and leaves <= _LEAVES):
            break
        if _may_pair(first, second):
            pairs[first] = second
    return pairs


def _may_pair(one: str, two: str) -> bool:
    """Tell whether the words of two names do not forbid what their shapes and places
    propose.
    """
    modules = one.rpartition(".")[0], two.rpartition(".")[0]
    return not _are_opposite(*modules) and not _is_laid_out(Rename(*modules, 0, 0))


def _without_counters(names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith("num_batches_tracked")]


def _fill_template(template: str, numbers: Numbers) -> str:
    rest = iter(numbers)
    return "".join(next(rest) if letter == "#" else letter for letter in template)
