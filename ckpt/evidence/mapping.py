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
            if not name.startswith(self.one):
                return name
            return self.two + name[len(self.one) :]
        # Looking for the words before the first number is far cheaper than the pattern.
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
        old_parts = self.one.split(".")
        new_parts = self.two.split(".")
        for index in range(name.count(".") + 1):
            reworded = _reword_name(name, old_parts, new_parts, only=index)
            if reworded in wanted:
                return reworded
        return new if self.has_letters else name

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
        if not self.is_exact:
            return False
        if self.kind == "start":
            pattern = _PLAIN
        elif self.kind == "words" and self.has_letters:
            pattern = _PLAIN_WORDS
        else:
            return False
        is_one_plain = pattern.fullmatch(self.one) is not None
        is_two_plain = pattern.fullmatch(self.two) is not None
        return is_one_plain and is_two_plain

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
    # The first group is the beginning or the dot, so numbers count from the second.
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
        # A third of a whole becomes a part of a join when the sides change places.
        for name, (whole, third) in self.cuts.items():
            joins.setdefault(whole, ["", "", ""])[third] = name
        cuts: dict[str, tuple[str, int]] = {}
        for whole, parts in self.joins.items():
            for third, part in enumerate(parts):
                cuts[part] = (whole, third)
        return Match(
            {one: two for two, one in self.partners.items()},
            tuple(rename.turned for rename in self.renames),
            tuple(rename.turned for rename in self.doubts),
            # A join needs all three: one that a side lacks is no tensor to write.
            {whole: parts for whole, parts in joins.items() if all(parts)},
            cuts,
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
    # Always searching from the same side gives one answer for both directions.
    if _sort_key(two) < _sort_key(one):
        result = _match_sides(two, one, by_shape, layouts).turned
    else:
        result = _match_sides(one, two, by_shape, layouts)
    partners = {name: name for name in keep} | result.partners
    renames = order_renames(result.renames, partners, [*one, *keep], _words_rule)
    return result._replace(renames=renames)


def _words_rule(one: str, two: str) -> Rename:
    return Rename(one, two, 0, 0, "words")


def _sort_key(names: Shapes) -> tuple[int, list[str]]:
    return len(names), sorted(names)


def _match_sides(one: Shapes, two: Shapes, by_shape: bool, layouts: bool) -> Match:
    """Search with each dialect that may be meant, and without any. The mapping by which
    most elements meet is the answer.
    """
    plain = _Draft(one, two)
    # All names of the smaller side meet: no rule can add one.
    if len(plain.partners) == plain.least:
        return plain.match()
    translations: list[Translation | AdapterTranslation | None] = [None]
    for dialect in dialect_translations(one, two):
        if layouts or not dialect.layout:
            translations.append(dialect)
    adapter = adapter_translation(one, two)
    if adapter is not None:
        translations.append(adapter)
    drafts: list[_Draft] = []
    for translation in translations:
        draft = _Draft(one, two, translation)
        draft.search(begins=True, by_shape=by_shape)
        drafts.append(draft)
        # Words may explain what a beginning seemed to: both are tried, and compared.
        # Where no beginning was used the second search would be the first one again.
        if draft.outside == ("", "") or draft.is_simple:
            continue
        draft = _Draft(one, two, translation)
        draft.search(begins=False, by_shape=by_shape)
        drafts.append(draft)
    best = max(drafts, key=lambda draft: draft.score)
    doubts: list[Rename] = []
    for draft in drafts:
        if draft.translation is best.translation:
            doubts += draft.doubts
    best.doubts += doubts
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
            self._pair_by_shape()

    def match(self) -> Match:
        """Return what was found."""
        # Both drafts of a translation may doubt one rule.
        doubts = tuple({(rule.one, rule.two): rule for rule in self.doubts}.values())
        if self.translation is None:
            return Match(self.partners, tuple(self.renames), doubts)
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
        translated = {
            name for name, new in self.translation.names.items() if new != name
        }
        met = sum(name in translated for name in self.met().values())
        dialect = Rename(
            self.translation.one.text,
            self.translation.two.text,
            met + len(joins) + len(cuts),
            self.least,
            "dialect",
        )
        renames = (dialect, *self.renames)
        return Match(
            self.partners, renames, doubts, joins, cuts, self.translation.layout
        )

    @property
    def score(self) -> tuple[int, int]:
        """The elements that meet, then the fewest rules."""
        meeting = set(self.met())
        if self.translation is not None:
            held = self.translation.joins.keys() | self.translation.cuts.keys()
            meeting |= held & self.two.keys()
        # An empty tensor and a number count too.
        elements = sum(prod(self.two[name]) + 1 for name in meeting)
        return elements, -len(self.renames)

    @property
    def is_simple(self) -> bool:
        """Tell whether all tensors of the smaller side meet by one rule at most."""
        return len(self.met()) == self.least and len(self.renames) < 2

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
        ways = [self.names, *self._outside_names()]
        partners: dict[str, str] = {}
        used: set[str] = set()
        # Equal shapes first: else a head of another size would take the name.
        for is_exact in (True, False):
            for way in ways:
                for name, new in way.items():
                    if new not in self.two or new in partners or name in used:
                        continue
                    if not is_exact or self.one[name] == self.two[new]:
                        partners[new] = name
                        used.add(name)
        return partners

    def _outside_names(self) -> list[dict[str, str]]:
        """Further names for the tensors of `one`, where a beginning was changed: a head
        may stand outside of the part that has it.
        """
        start, other = self.outside
        if not start and not other:
            return []
        as_they_are = {name: name for name in self.names}
        without_start: dict[str, str] = {}
        with_other: dict[str, str] = {}
        for name in self.names:
            if name.startswith(start):
                without_start[name] = name[len(start) :]
            if not start or not name.startswith(start):
                with_other[name] = other + name
        return [as_they_are, without_start, with_other]

    def _left(self) -> tuple[dict[str, str], dict[str, Shape]]:
        """The tensors without a partner: the new names of `one` -> their own ones, and
        the names of `two` with their shapes.
        """
        used = set(self.partners.values())
        one = {new: name for name, new in self.names.items() if name not in used}
        two = {
            name: shape for name, shape in self.two.items() if name not in self.partners
        }
        return one, two

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
        # A file may be on either side of the change, so both directions are tried.
        turned_leaves = tuple((new, old) for old, new in LEAVES)
        for old, new in (*LEAVES, *turned_leaves):
            renamed: dict[str, str] = {}
            for name, own in one.items():
                module, _, last = name.rpartition(".")
                if last == old and two.get(f"{module}.{new}") == self.one[own]:
                    renamed[own] = f"{module}.{new}"
            if renamed:
                self._use_rename(Rename(old, new, 0, 0, "words"), renamed)
        self._rename_reparametrized()

    def _rename_reparametrized(self) -> None:
        """Give the tensors of weight_norm and spectral_norm their names as
        parametrizations, or their old ones.
        """
        left, two = self._left()
        one = {new: self.one[own] for new, own in left.items()}
        pairs = list(reparametrized_names(one, two))
        pairs += [(name, old) for old, name in reparametrized_names(two, one)]
        by_rule: dict[tuple[str, str], dict[str, str]] = {}
        for name, new in pairs:
            # The old name is the shorter one, and stands in the module itself:
            # `conv.weight_g` became `conv.parametrizations.weight.original0`.
            module = min(name, new, key=len).rpartition(".")[0]
            rule = (
                name[len(module) :].removeprefix("."),
                new[len(module) :].removeprefix("."),
            )
            by_rule.setdefault(rule, {})[left[name]] = new
        for (before, after), names in by_rule.items():
            self._use_rename(Rename(before, after, 0, 0, "words"), names)

    # --- beginnings ---

    def _rename_beginnings(self) -> None:
        """Use the beginnings by which most elements meet, when they are the only best
        ones.
        """
        # If a translation gives two tensors one name, the dict loses one of them.
        one = {new: self.one[name] for name, new in self.names.items()}
        has_collision = len(one) < len(self.names)
        if has_collision or 100 * len(self.partners) >= ENOUGH * self.least:
            return
        trials = self._try_beginnings(one)
        most = max((trial.elements for trial in trials), default=0)
        best = [trial for trial in trials if trial.elements == most]
        chosen = best[0] if len(best) == 1 else _preferred_beginning(best)
        if chosen is None or not _is_trustworthy(chosen.rename, one, self.two):
            self.doubts += [trial.rename for trial in trials]
            return
        self.names = chosen.draft.names
        self.outside = chosen.draft.outside
        self.partners = chosen.draft.partners
        note = _note_of_others(chosen, best)
        self.renames.append(chosen.rename._replace(note=note))

    def _try_beginnings(self, one: Shapes) -> list[_Trial]:
        """Try the beginnings by which most names meet, and return those by which more
        elements meet than without them. `one` has the new names.
        """
        renames = sorted(component_renames(one, self.two), key=lambda row: -row.met)
        trials: list[_Trial] = []
        for rename in renames[:_BEST]:
            draft = _Draft(self.one, self.two, self.translation)
            draft.names = {name: rename.rule(new) for name, new in self.names.items()}
            draft.outside = (rename.one, rename.two)
            draft.partners = draft._pair_names()
            elements = draft.score[0]
            # Strictly more: a beginning that only keeps what meets is no rule.
            if elements > self.score[0]:
                trials.append(_Trial(elements, rename, draft))
        return trials

    # --- words ---

    def _rename_words(self, *, by_shape: bool) -> None:
        """Use the renames of words that are certain, round after round; the others are
        doubts.
        """
        for _ in range(_ROUNDS):
            self._rename_leaves()
            one, two = self._left()
            rules = _word_rules({new: self.one[name] for new, name in one.items()}, two)
            certain = [rule for rule, is_sure in rules if is_sure or by_shape]
            doubtful = [rule for rule, is_sure in rules if not (is_sure or by_shape)]
            before = len(self.partners)
            for rule in certain:
                left, wanted = self._left()
                self._use_rename(
                    rule, {own: rule.best(new, wanted) for new, own in left.items()}
                )
            if len(self.partners) == before:
                self.doubts += doubtful
                return

    # --- shapes ---

    def _pair_by_shape(self) -> None:
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
                old_module, _ = _split_numbers(new.rpartition(".")[0])
                new_module, _ = _split_numbers(target.rpartition(".")[0])
                modules[old_module, new_module] += 1
        for (old_module, new_module), count in modules.items():
            self.renames.append(
                Rename(old_module, new_module, count, self.least, "shape")
            )


class _Trial(NamedTuple):
    """A beginning that was tried, with the elements that meet by it."""

    elements: int
    rename: Rename
    draft: _Draft


# --- beginnings -----------------------------------------------------------------------


def component_renames(one: Shapes, two: Shapes) -> Iterator[Rename]:
    """The beginnings without which at least half of the names, or elements, of the
    smaller side meet, with equal shapes.

    None that says the same as a shorter one: `layer1.` and `backbone.layer1.` are ``
    and `backbone.`.
    """
    is_turned = len(two) < len(one)
    small, large = (two, one) if is_turned else (one, two)
    whole = min(_count_elements(small), _count_elements(large))
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
            if _have_common_end(mine, other):
                continue
            if _is_worth(count, len(small), elements[other], whole):
                beginnings = (other, mine) if is_turned else (mine, other)
                yield Rename(*beginnings, count, len(small))


def _count_elements(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


def _have_common_end(one: str, two: str) -> bool:
    """Tell whether two beginnings end with the same part, so that a shorter pair says
    the same.
    """
    # If one is empty they are alike only where both are, which renames nothing.
    if one and two:
        # Both end with a dot, so the last part stands before an empty text.
        return one.split(".")[-2:] == two.split(".")[-2:]
    return one == two


def _is_worth(names: int, of_names: int, elements: int, of_elements: int) -> bool:
    """Tell whether names, or their elements, are so many of the smaller side that their
    beginning is worth a thought.
    """
    if 100 * names >= _WORTH * of_names:
        return True
    return of_elements > 0 and 100 * elements >= _WORTH * of_elements


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
    them may be the component. `whole` is the number of elements of the smaller side.
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
        if _is_worth(count, len(names), elements[text], whole)
    ]


def _rest_offsets(name: str) -> Iterator[int]:
    """Yield the places where the rest of a name may begin: 0, and behind each of its
    first dots.
    """
    offset = 0
    for _ in range(_DEPTH):
        yield offset
        offset = name.find(".", offset) + 1
        # A dot at the very end leaves no rest.
        if not 0 < offset < len(name):
            return


def _is_trustworthy(start: Rename, one: Shapes, two: Shapes) -> bool:
    """Tell whether a beginning may be used: it leads to a model, and not to a twin."""
    return _is_model(start, one, two) and not are_opposite(start.one, start.two)


def _is_model(start: Rename, one: Shapes, two: Shapes) -> bool:
    """Tell whether the names below a component are more than a layer like any other
    one.

    `0.` and `1.`, `layer1.` and `layer2.`, `encoder.layer1.` and `layer2.` are layers.
    `weight` alone says nothing, unless both sides have nothing else.
    """
    inside = [start.rule(name) for name in one if name.startswith(start.one)]
    modules = {name.rpartition(".")[0] for name in inside if name in two}
    # A tensor directly below the beginning lies in no module of it.
    modules.discard(start.two[:-1])
    if not start.one or not start.two:
        return bool(modules) or start.met == len(one) == len(two)
    if _letters_of(start.one) == _letters_of(start.two):
        return False
    last_of_one = start.one[:-1].rpartition(".")[2]
    last_of_two = start.two[:-1].rpartition(".")[2]
    letters = _letters_of(last_of_one)
    if letters and letters == _letters_of(last_of_two) and last_of_one != last_of_two:
        return False
    return len(modules) > 1


def _letters_of(text: str) -> str:
    """Return a text without its numbers."""
    return _split_numbers(text)[0].replace("#", "")


def _preferred_beginning(trials: Sequence[_Trial]) -> _Trial | None:
    """The one of several equal beginnings that the optimizer trained, where the others
    are its moving averages.
    """
    if not trials:
        return None
    met = trials[0].draft.met()
    # All make the same tensors meet, so it does not matter by which rule.
    if all(trial.draft.met() == met for trial in trials):
        return trials[0]
    words = [
        {*trial.rename.one.split("."), *trial.rename.two.split(".")} for trial in trials
    ]
    for trained, average in COPIES:
        with_trained = [
            trial
            for trial, parts in zip(trials, words, strict=True)
            if trained in parts
        ]
        averages = sum(average in parts for parts in words)
        if len(with_trained) == 1 and averages == len(trials) - 1:
            return with_trained[0]
    return None


def _note_of_others(chosen: _Trial, best: Sequence[_Trial]) -> str:
    """The sentence about the other beginnings by which as many elements meet, or ``."""
    others: list[str] = []
    for trial in best:
        if trial.rename is chosen.rename:
            continue
        # The side that is shown is the one in which the two differ.
        old, new = trial.rename.text
        others.append(old if trial.rename.one != chosen.rename.one else new)
    listed = ", ".join(others)
    if not listed:
        return ""
    return f"{listed} fits as well; the optimizer trains the one that is used"


def reparametrized_names(old: Shapes, new: Shapes) -> Iterator[tuple[str, str]]:
    """Yield the tensors of weight_norm and spectral_norm in `old`, each with its name
    as a parametrization in `new`.

    All tensors of a parameter are on both sides, with equal shapes.
    """
    for name in old:
        for form in REPARAMETRIZED:
            first_end = form[0][0]
            if not name.endswith(first_end):
                continue
            base = name.removesuffix(first_end)
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
    """The names by their templates. Those with a `#` of their own, or too many parts,
    are left out.
    """
    templates: _Templates = {}
    for name, shape in names.items():
        if "#" not in name and name.count(".") < _PARTS:
            template, numbers = _split_numbers(name)
            templates.setdefault(template, {})[numbers] = shape
    return templates


def _reword_name(
    name: str, old: Sequence[str], new: Sequence[str], only: int | None = None
) -> str:
    """The name with one run of parts in place of another one, wherever it stands, or
    `only` at a part; numbers stay.
    """
    parts = name.split(".")
    old_template = ".".join(old)
    new_template = ".".join(new)
    reworded: list[str] = []
    index = 0
    while index < len(parts):
        run = ".".join(parts[index : index + len(old)])
        template, numbers = _split_numbers(run)
        if template == old_template and only in (None, index):
            reworded.append(_fill_template(new_template, numbers))
            index += len(old)
        else:
            reworded.append(parts[index])
            index += 1
    return ".".join(reworded)


class _Candidate:
    """A rename of words, with the pairs of templates that it would make equal."""

    def __init__(self, rename: Rename) -> None:
        self.rename = rename
        self.kinship = _rename_kinship(rename) if rename.kind == "words" else 0
        self.pairs: list[tuple[str, str]] = []
        self.below: set[str] = set()
        """The modules below the words, in the pairs."""
        self.elements = 0
        self.met = 0

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.kinship, len(self.below), self.elements

    @property
    def sides(self) -> list[tuple[int, str]]:
        """The templates of all pairs, each with the number of its side."""
        sides: list[tuple[int, str]] = []
        for first, second in self.pairs:
            sides += [(0, first), (1, second)]
        return sides

    @property
    def is_sure(self) -> bool:
        """Tell whether names speak for it: the words are akin, or several modules below
        them keep their names.
        """
        # Twins have equal shapes and neighbours: only their words tell them apart.
        if are_opposite(self.rename.one, self.rename.two):
            return False
        if _is_one_sided(self.rename):
            return False
        if self.kinship >= _AKIN:
            least = 0
        elif self.rename.kind == "start":
            least = 1
        else:
            least = 2
        return self.met > 1 and len(self.below) >= least

    def add_pair(
        self, first: str, second: str, run: _Run, shapes: Sequence[Shape]
    ) -> None:
        """Count two templates that differ in a run of parts, with the shapes of the
        tensors that meet.
        """
        self.pairs.append((first, second))
        self.elements += sum(prod(shape) + 1 for shape in shapes)
        self.met += len(shapes)
        modules = first.split(".")[run.start + run.size : -1]
        if any(part.strip("#") for part in modules):
            self.below.add(".".join(modules))


def _word_rules(one: Shapes, two: Shapes) -> list[tuple[Rename, bool]]:
    """The renames of words by which templates of both sides become equal, the best
    first, and whether names speak for them.

    A rename that another one contradicts, which explains as much, is left out.
    """
    candidates = _word_candidates(_templates_of(one), _templates_of(two))
    by_template: dict[tuple[int, str], list[_Candidate]] = {}
    for candidate in candidates:
        for side in candidate.sides:
            by_template.setdefault(side, []).append(candidate)
    used: set[tuple[int, str]] = set()
    rules: list[tuple[Rename, bool]] = []
    for candidate in sorted(candidates, key=lambda row: row.rank, reverse=True):
        if len(rules) == _RULES:
            break
        has_free_pair = any(
            (0, first) not in used and (1, second) not in used
            for first, second in candidate.pairs
        )
        # A doubtful candidate uses its templates up too: none of lower rank may have
        # what two better ones contend for.
        used.update(candidate.sides)
        if has_free_pair and not _has_equal_rival(candidate, by_template):
            rename = candidate.rename._replace(
                met=candidate.met, of=min(len(one), len(two))
            )
            rules.append((rename, candidate.is_sure))
    return rules


def _has_equal_rival(
    candidate: _Candidate, by_template: Mapping[tuple[int, str], Sequence[_Candidate]]
) -> bool:
    """Tell whether another candidate explains one of the same templates as well."""
    rank = candidate.rank
    for side in candidate.sides:
        for rival in by_template[side]:
            if rival is not candidate and rival.rank == rank:
                return True
    return False


def _word_candidates(mine: _Templates, other: _Templates) -> list[_Candidate]:
    """The renames of words that make templates equal, whose tensors all meet where both
    sides have a number.
    """
    candidates: dict[tuple[str, str, Kind], _Candidate] = {}
    for (first, second), run in _differing_runs(mine, other).items():
        common = mine[first].keys() & other[second].keys()
        shapes = [
            shape
            for numbers, shape in mine[first].items()
            if other[second].get(numbers) == shape
        ]
        # A number that both sides have, with another shape, speaks against the rename.
        if not shapes or len(shapes) < len(common):
            continue
        # Too few common numbers: other layers that happen to have one name.
        if 2 * len(common) < min(len(mine[first]), len(other[second])):
            continue
        rename = _rename_of_run(first.split("."), second.split("."), run)
        if _is_laid_out(rename):
            continue
        key = rename.one, rename.two, rename.kind
        if key not in candidates:
            candidates[key] = _Candidate(rename)
        candidates[key].add_pair(first, second, run, shapes)
    return list(candidates.values())


class _Run(NamedTuple):
    """The run of parts in which two templates differ: the number of its first part, and
    its parts on the first side and on the second one.
    """

    start: int
    size: int
    other_size: int


def _differing_runs(one: _Templates, two: _Templates) -> dict[tuple[str, str], _Run]:
    """Pairs of templates that are equal but for one run of parts, the shortest one.

    A beginning and an end that many templates have pair nothing.
    """
    longest = _RUN if len(one) + len(two) <= _MANY else 1
    # What stands around a run -> the templates of `two` that have such a run. Looking
    # the same up for `one` finds pairs without comparing each with each.
    around: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for second in two:
        for context, _, size in _template_runs(second, longest):
            around.setdefault(context, []).append((second, size))
    used: Counter[tuple[str, str]] = Counter()
    # Many names of `one` with one context make it as useless as many of `two`.
    for first in one:
        for context, _, _ in _template_runs(first, longest):
            if context in around:
                used[context] += 1
    runs: dict[tuple[str, str], _Run] = {}
    for first in one:
        numbers = first.count("#")
        for context, start, size in _template_runs(first, longest):
            if not 0 < used[context] <= _ALIKE or len(around[context]) > _ALIKE:
                continue
            for second, other_size in around[context]:
                if first == second or not size + other_size:
                    continue
                # Each number of a name must have a place in the other one.
                if second.count("#") != numbers:
                    continue
                shortest = runs.get((first, second))
                if shortest is None or size < shortest.size:
                    runs[first, second] = _Run(start, size, other_size)
    return runs


def _template_runs(
    text: str, longest: int
) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each run of parts of a template: what stands before and behind it, the
    number of its first part, and its parts.

    The last part is never in a run: a weight is no bias.
    """
    ends = [0, *(dot.end() for dot in re.finditer(r"\.", text))]
    for start, begin in enumerate(ends):
        for size, end in enumerate(ends[start : start + longest + 1]):
            yield (text[:begin], text[end:]), start, size


def _rename_of_run(one: list[str], two: list[str], run: _Run) -> Rename:
    """The rename of one run of parts. An empty run takes the part before it with it, or
    is a beginning.
    """
    # A run without parts cannot be found again in a name: its neighbour stands for it.
    start, size, other_size = run
    if not size or not other_size:
        if not start:
            old = "".join(f"{part}." for part in one[:size])
            new = "".join(f"{part}." for part in two[:other_size])
            return Rename(old, new, 0, 0)
        start -= 1
        size += 1
        other_size += 1
    old = ".".join(one[start : start + size])
    new = ".".join(two[start : start + other_size])
    return Rename(old, new, 0, 0, "words")


def words_in(text: str) -> list[str]:
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
    parts_of_one = rule.one.split(".")
    parts_of_two = rule.two.split(".")
    if len(parts_of_one) == len(parts_of_two):
        return min(
            3 if one == two else _part_kinship(one, two)
            for one, two in zip(parts_of_one, parts_of_two, strict=True)
        )
    # Where one side is deeper its last parts count: the first ones only lead there.
    least = min(len(parts_of_one), len(parts_of_two))
    by_part = 2
    for one, two in zip(parts_of_one[-least:], parts_of_two[-least:], strict=True):
        have_words = words_in(one) and words_in(two)
        by_part = min(by_part, _part_kinship(one, two) if have_words else 0)
    return min(max(by_part, _part_kinship(rule.one, rule.two)), 2)


def _part_kinship(one: str, two: str) -> int:
    mine = words_in(one)
    other = words_in(two)
    texts = {"_".join(mine), "_".join(other)}
    if sorted(mine) == sorted(other) or any(texts <= group for group in SYNONYMS):
        return 3
    # One of them may be a number alone, which has no words: it is a part of any.
    if set(mine) <= set(other) or set(other) <= set(mine):
        return 2
    short, long = sorted((mine[-1], other[-1]), key=len)
    # `enc` and `encoder`.
    if len(mine) == len(other) == 1 and long.startswith(short):
        return 2
    return int(not set(mine).isdisjoint(other))


def are_opposite(one: str, two: str) -> bool:
    """Tell whether two texts have words for parts of a model that are twins, and none
    in common.
    """
    mine = set(words_in(one))
    other = set(words_in(two))
    for group in OPPOSITES:
        first = {number for number, words in enumerate(group) if words & mine}
        second = {number for number, words in enumerate(group) if words & other}
        if first and second and first.isdisjoint(second):
            return True
    return False


def _is_one_sided(rule: Rename) -> bool:
    """Tell whether words have a part only on one side that makes a module another one:
    `norm` and `norm_cross`.
    """
    if rule.kind != "words":
        return False
    words_of_one = ONE_SIDED.intersection(words_in(rule.one))
    words_of_two = ONE_SIDED.intersection(words_in(rule.two))
    return words_of_one != words_of_two


def _is_laid_out(rule: Rename) -> bool:
    """Tell whether both sides are names of tensors that different code lays out in
    different ways.
    """
    ends = {side.rpartition(".")[2].lower() for side in (rule.one, rule.two)}
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
        one = _shown_module(self.one, self.begins[0])
        two = _shown_module(self.two, self.begins[1])
        return (
            f"{one} is the first in PRETRAINED and {two} in the target, so the numbers "
            "are probably shifted"
        )

    @property
    def substitutions(self) -> list[str]:
        """The texts for `--sub` that shift the numbers; empty where there are too many,
        or where a slash is in the way.
        """
        first = self.begins[0]
        last = self.last
        step = self.begins[1] - first
        # A substitution for `--sub` is written with slashes.
        if last - first >= _NUMBERED or "/" in self.one:
            return []
        # In this order no substitution meets a number that one before it made.
        numbers = range(first, last + 1) if step < 0 else range(last, first - 1, -1)
        begin = re.escape(self.one[:-1]).replace(r"\#", "[0-9]+")
        return [
            f"s/^({begin}){number}(?![0-9])/\\g<1>{number + step}/"
            for number in numbers
        ]


def _shown_module(template: str, number: int) -> str:
    """A template that ends with `#`, as text with the number there."""
    return show(f"{template[:-1].replace('#', '<n>')}{number}", 60)


def shift_of(one: Shapes, two: Shapes, partners: Mapping[str, str]) -> Shift | None:
    """The modules that meet by number, and of which more would meet, all, if one side
    counted from another number on.
    """
    mine = _templates_of(one)
    other = _templates_of(two)
    groups = _paired_lists(mine, other, partners)
    for (first, second, place), templates in groups.items():
        numbers_of_one: list[str] = []
        numbers_of_two: list[str] = []
        for old, new in templates:
            numbers_of_one += [numbers[place] for numbers in mine[old]]
            numbers_of_two += [numbers[place] for numbers in other[new]]
        if not all(is_number(text) for text in numbers_of_one + numbers_of_two):
            continue  # no list of modules is as long
        begins = min(map(int, numbers_of_one)), min(map(int, numbers_of_two))
        step = begins[1] - begins[0]
        if not step:
            continue
        now = moved = least = 0
        for old, new in templates:
            for numbers, shape in mine[old].items():
                number = str(int(numbers[place]) + step)
                shifted = (*numbers[:place], number, *numbers[place + 1 :])
                now += other[new].get(numbers) == shape
                moved += other[new].get(shifted) == shape
            least += min(len(mine[old]), len(other[new]))
        # Some may meet by chance now; the shift must make all of them meet.
        if 0 < now < moved == least:
            return Shift(first, second, begins, max(map(int, numbers_of_one)))
    return None


def _paired_lists(
    mine: _Templates, other: _Templates, partners: Mapping[str, str]
) -> dict[tuple[str, str, int], list[tuple[str, str]]]:
    """The lists of modules that both sides have: the templates of their names up to a
    number, and which number of a name that is -> the pairs of templates below them.
    """
    pairs: dict[tuple[str, str], None] = {}
    for name, partner in partners.items():
        pairs[_split_numbers(partner)[0], _split_numbers(name)[0]] = None
    lists: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
    for first, second in pairs:
        if first not in mine or second not in other:
            continue
        ends_of_first = [number.end() for number in re.finditer("#", first)]
        ends_of_second = [number.end() for number in re.finditer("#", second)]
        if len(ends_of_first) != len(ends_of_second):
            continue
        ends = zip(ends_of_first, ends_of_second, strict=True)
        for place, (first_end, second_end) in enumerate(ends):
            key = first[:first_end], second[:second_end], place
            lists.setdefault(key, []).append((first, second))
    return lists


# --- shapes ---------------------------------------------------------------------------


def _match_by_shape(one: Shapes, two: Shapes) -> dict[str, str]:
    """Names of `one` -> names of `two`, by their last parts, shapes and numbers, then
    by their order alone.
    """
    pairs = _pair_alike_templates(_templates_of(one), _templates_of(two))
    taken = set(pairs.values())
    rest_of_one = [name for name in one if name not in pairs]
    rest_of_two = [name for name in two if name not in taken]
    if len(rest_of_one) != len(rest_of_two):  # old files of BatchNorm lack its counter
        rest_of_one = _without_counters(rest_of_one)
        rest_of_two = _without_counters(rest_of_two)
    # A head at the end has no partner, so the two may be of unequal length.
    for first, second in zip(rest_of_one, rest_of_two, strict=False):
        leaves = {first.rpartition(".")[2], second.rpartition(".")[2]}
        are_other_leaves = len(leaves) > 1 and leaves <= _LEAVES
        # Order alone is the evidence here: behind the first mismatch it says nothing.
        if one[first] != two[second] or are_other_leaves:
            break
        if _may_pair(first, second):
            pairs[first] = second
    return pairs


def _pair_alike_templates(mine: _Templates, other: _Templates) -> dict[str, str]:
    """Names of `one` -> names of `two`, where both sides have as many templates of one
    last part, the same numbers and the same shapes: these pair in their order.
    """
    alike_of_two = _group_alike(other)
    pairs: dict[str, str] = {}
    for key, firsts in _group_alike(mine).items():
        seconds = alike_of_two.get(key, [])
        # Another count: nothing tells which of them lacks a partner.
        if len(firsts) != len(seconds):
            continue
        for first, second in zip(firsts, seconds, strict=True):
            if _may_pair(first, second):
                for numbers in mine[first]:
                    name = _fill_template(first, numbers)
                    pairs[name] = _fill_template(second, numbers)
    return pairs


def _group_alike(templates: _Templates) -> dict[object, list[str]]:
    """The templates by their last part, and the numbers and shapes below them."""
    groups: dict[object, list[str]] = {}
    for template, shapes in templates.items():
        key = template.rpartition(".")[2], frozenset(shapes.items())
        groups.setdefault(key, []).append(template)
    return groups


def _may_pair(one: str, two: str) -> bool:
    """Tell whether the words of two names do not forbid what their shapes and places
    propose.
    """
    modules = one.rpartition(".")[0], two.rpartition(".")[0]
    return not are_opposite(*modules) and not _is_laid_out(Rename(*modules, 0, 0))


def _without_counters(names: list[str]) -> list[str]:
    """The names without the counters that BatchNorm keeps."""
    return [name for name in names if not name.endswith("num_batches_tracked")]


def _fill_template(template: str, numbers: Numbers) -> str:
    """The template with a number in place of each `#`; a `#` without a number goes."""
    rest = iter(numbers)
    return "".join(next(rest, "") if letter == "#" else letter for letter in template)
