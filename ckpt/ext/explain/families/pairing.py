"""Pairs of names that no rule of words gives: modules with the same names below them,
numbers that begin elsewhere, heads, layers in one order.

The shapes of the model are unknown here. A pair is a fact where names speak for it, and
is called a guess where the place of a layer alone does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.evidence.dialects import HEADS, SYNONYMS
from ckpt.evidence.mapping import Match, Rename, are_opposite, words_in
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.renaming import (
    SAFE_NAME,
    Template,
    fill_template,
    short_modules,
    templates_of,
)
from ckpt.ext.explain.message import Message
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

Shape = tuple[int, ...]
_COUNTER = "num_batches_tracked"


# --- rules that names alone do not carry ----------------------------------------------


class Settled(NamedTuple):
    """The rules of a mapping that names speak for, and the pairs of heads that are but
    a guess: the module of a file -> the one of the model.
    """

    rules: Match
    heads: Mapping[str, str] = {}


def settle_rules(rules: Match, here: Sequence[str], missing: Sequence[str]) -> Settled:
    """Take off a mapping what its words do not prove: a number for a named layer, and
    the head of another task; and count again where numbers begin elsewhere.
    """
    rules = _without_pooled_norms(rules)
    # The rules of a dialect come from the tables of packages, and need no proof.
    if not rules.renames or any(rule.kind == "dialect" for rule in rules.renames):
        return Settled(rules)
    shifted = _shift_numbers(rules, here, missing)
    if shifted is not None:
        return Settled(shifted)
    rules = _without_numbers(rules, here, missing)
    rules = _without_other_blocks(rules, here, missing)
    return _without_heads(_sharpen_start(rules), here)


_POOLED = ("fc_norm", "norm")
"""The norm behind the mean of all tokens in timm and its kin, and the one before it."""


def _without_pooled_norms(rules: Match) -> Match:
    """Take off a rule that makes the norm of the tokens the norm of their mean: they
    stand at two places of a network, and fine-tuning begins the second anew.
    """
    pooled, plain = _POOLED
    wrong = [rule for rule in rules.renames if (rule.one, rule.two) == (plain, pooled)]
    if not wrong:
        return rules
    left = {
        new: old
        for new, old in rules.partners.items()
        if new.split(".")[-2:-1] != [pooled] or old.split(".")[-2:-1] != [plain]
    }
    kept = tuple(rule for rule in rules.renames if rule not in wrong)
    return Match(left, kept) if left and kept else Match({})


def _sharpen_start(rules: Match) -> Match:
    """Give the only rule of a mapping the longest beginning that its names share, where
    the short one would change other names too.
    """
    if len(rules.renames) != 1 or rules.renames[0].is_exact:
        return rules
    (rule,) = rules.renames
    changed = {new: old for new, old in rules.partners.items() if new != old}
    if rule.kind != "start" or not changed:
        return rules
    begin = _shared_begin(list(changed.values()))
    rest = begin.removeprefix(rule.one)
    if not begin.startswith(rule.one) or not rest:
        return rules
    if not all(new.startswith(rule.two + rest) for new in changed):
        return rules
    # With the longer beginning the rule changes no other name of the file.
    sharp = rule._replace(one=begin, two=rule.two + rest, is_exact=True)
    return rules._replace(renames=(sharp,))


def _shared_begin(names: Sequence[str]) -> str:
    """The parts that all names begin with, with a dot behind them."""
    # Parts that the first and the last name in order share are in all of them.
    shortest, longest = min(names), max(names)
    end = 0
    for index, (one, two) in enumerate(zip(shortest, longest, strict=False)):
        if one != two:
            break
        if one == ".":
            end = index + 1
    return shortest[:end]


def _without_numbers(
    rules: Match, here: Sequence[str], missing: Sequence[str]
) -> Match:
    """Take off the rules that make a word of a number, where they leave names on both
    sides.
    """
    # A number for a word is doubted where names of both sides stay without a partner.
    bare = [rule for rule in rules.renames if _is_bare_number(rule)]
    met = len(rules.partners)
    is_left = met < len(missing) and met < len(_without_counters(here))
    if not bare or not is_left:
        return rules
    if len(bare) == len(rules.renames):
        return Match({})
    kept = {
        new: old
        for new, old in rules.partners.items()
        if not any(_is_changed(rule, old, new) for rule in bare)
    }
    renames = tuple(rule for rule in rules.renames if rule not in bare)
    return rules._replace(partners=kept, renames=renames)


def _without_other_blocks(
    rules: Match, here: Sequence[str], missing: Sequence[str]
) -> Match:
    """Take off the only rule of a mapping where it names one layer in modules that have
    more layers without a partner than with one: a block of other layers has another
    one by a word that both share, as `qkv_conv` and `conv`.
    """
    if len(rules.renames) != 1 or len(rules.partners) >= len(missing):
        return rules
    (rule,) = rules.renames
    met = set(rules.partners.values())
    if rule.kind != "words" or not _is_part(rule.one, rule.two):
        return rules
    parents = {_parent_of(_parent_of(name)) for name in met}
    left = [
        name
        for name in _without_counters(here)
        if name not in met and any(name.startswith(f"{row}.") for row in parents)
    ]
    if "" in parents or len(left) <= len(met):
        return rules
    return Match({})


def _is_part(one: str, two: str) -> bool:
    """Tell whether one of two words has the other one at its end, behind more."""
    return one != two and (one.endswith(f"_{two}") or two.endswith(f"_{one}"))


def _parent_of(name: str) -> str:
    return name.rpartition(".")[0]


def _is_bare_number(rule: Rename) -> bool:
    """Tell whether a rule gives a number a word, or takes it."""
    sides = [text.strip("#.") for text in (rule.one, rule.two)]
    return rule.kind == "words" and any(sides) and not all(sides)


def _is_changed(rule: Rename, old: str, new: str) -> bool:
    """Tell whether a name has become another by the words of a rule."""
    pattern = re.escape(rule.two).replace(r"\#", "[0-9]+")
    return old != new and re.search(rf"(?:^|\.){pattern}(?=\.|$)", new) is not None


def _without_counters(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.endswith(_COUNTER)]


def _without_heads(rules: Match, here: Sequence[str]) -> Settled:
    """Take off the pairs of single layers that both have the word of a head, and not
    the same one.
    """
    heads: dict[str, str] = {}
    for new, old in rules.partners.items():
        module, other = old.rpartition(".")[0], new.rpartition(".")[0]
        words = module.rpartition(".")[2], other.rpartition(".")[2]
        if words[0] != words[1] and all(word in HEADS for word in words):
            heads[module] = other
    # A word of many layers is no head, and a head is one layer.
    if len(heads) != 1:
        return Settled(rules)
    ((module, other),) = heads.items()
    kept = {
        new: old
        for new, old in rules.partners.items()
        if old.rpartition(".")[0] != module
    }
    word = other.rpartition(".")[2]
    # The rule goes with its pair, or a command would rename the layer all the same.
    renames = tuple(
        rule
        for rule in rules.renames
        if not (rule.kind == "words" and rule.two.rpartition(".")[2] == word)
    )
    if not kept:
        return Settled(Match({}), heads)
    return Settled(rules._replace(partners=kept, renames=renames), heads)


# --- numbers that begin elsewhere -----------------------------------------------------


def _shift_numbers(
    rules: Match, here: Sequence[str], missing: Sequence[str]
) -> Match | None:
    """The mapping with the numbers of one of its rules counted on, where more names
    meet so: `layers.0` is `layer1`. None where none does.
    """
    if len(rules.renames) != 1:
        return None
    (rule,) = rules.renames
    if rule.kind != "words" or rule.one.count("#") != 1 or rule.two.count("#") != 1:
        return None
    if not rule.has_letters:
        return None
    ours = _numbers_of(rule.one, here)
    theirs = _numbers_of(rule.two, missing)
    if not ours or not theirs or len(ours) != len(theirs):
        return None
    # Both sides must have the same blocks, counted from another number on.
    step = min(theirs) - min(ours)
    if not step or {number + step for number in ours} != theirs:
        return None
    wanted = set(missing)
    partners: dict[str, str] = {}
    for name in here:
        new = _counted_on(rule, name, step)
        if new in wanted:
            partners[new] = name
    if len(partners) <= len(rules.partners):
        return None
    # A substitution cannot add, so each number has a rule of its own.
    renames = tuple(
        Rename(
            rule.one.replace("#", str(number)),
            rule.two.replace("#", str(number + step)),
            sum(
                _has_words(rule.one.replace("#", str(number)), old)
                for old in partners.values()
            ),
            len(missing),
            "words",
        )
        for number in sorted(ours)
    )
    return Match(partners, renames)


def _numbers_of(words: str, names: Sequence[str]) -> set[int]:
    counted = re.escape(words).replace(r"\#", "([0-9]{1,6})")
    pattern = re.compile(rf"(?:^|\.){counted}(?=\.|$)")
    return {int(found[1]) for name in names if (found := pattern.search(name))}


def _has_words(words: str, name: str) -> bool:
    return f".{words}." in f".{name}."


def _counted_on(rule: Rename, name: str, step: int) -> str:
    counted = re.escape(rule.one).replace(r"\#", "([0-9]{1,6})")
    return re.sub(
        rf"(^|\.){counted}(?=\.|$)",
        lambda found: found[1] + rule.two.replace("#", str(int(found[2]) + step)),
        name,
    )


# --- layers that the model has more than once -----------------------------------------

_MOST_REPEATED = 8
"""Names of one module in a model: of an agent and its targets."""


class Repeated(NamedTuple):
    """Modules of a model that have the same names below them as one of the file, which
    has its place: the new module -> the one of the file.
    """

    modules: Mapping[str, str]

    def statement(self, load: str | None) -> Statement:
        """Say so, with the line that gives the model's modules the same values."""
        olds = dict.fromkeys(self.modules.values())
        news = and_more([show(new, 60) for new in self.modules], 4)
        held = and_more([show(old, 60) for old in olds], 3)
        text = (
            f"The model asks for the layers of {held} once more, under {news}, with "
            "the same names below. A program that shares one module under several "
            "names, or copies it when it is built (a target, a teacher), saves it "
            "again since some version: the values are in this file under the one name. "
            "Take the version that saved, or give each name the same values:"
        )
        names = [*self.modules, *olds]
        # The names go into a line of Python between quotes, so they must be plain.
        if load is None or not all(SAFE_NAME.fullmatch(name) for name in names):
            return Statement(
                text.removesuffix(", or give each name the same values:") + "."
            )
        pairs = ", ".join(f'("{new}.", "{old}.")' for new, old in self.modules.items())
        return Statement(
            text,
            (),
            f"state = {load}; state.update((new + name[len(old):], state[name]) for "
            f"new, old in ({pairs},) for name in list(state) if name.startswith(old)); "
            "model.load_state_dict(state)",
        )


def find_repeated(absent: Sequence[str], names: Collection[str]) -> Repeated | None:
    """Find the modules that hold all missing keys and are named after a module of the
    file with the same names below it. Return None where one is not.
    """
    news = list(dict.fromkeys(name.partition(".")[0] for name in absent))
    if len(news) > _MOST_REPEATED:
        return None
    ours, theirs = _below(list(names)), _below(absent)
    modules: dict[str, str] = {}
    for new in news:
        below = set(theirs.get(new, ()))
        # The new name has the words of the old one, and more: pi_features_extractor.
        fits = [
            old
            for old, held in ours.items()
            if old and "." not in old
            if {name for name in held if not name.endswith(_COUNTER)} == below
            if set(words_in(old)) < set(words_in(new))
        ]
        if not below or len(fits) != 1:
            return None
        modules[new] = fits[0]
    return Repeated(modules) if modules else None


# --- modules with the same names below them -------------------------------------------


class Placed(NamedTuple):
    """Modules of a file -> modules of a model, with the names that meet, and whether
    the place of a layer alone speaks for one of them.
    """

    modules: Mapping[str, str] = {}
    partners: Mapping[str, str] = {}
    is_guess: bool = False


_LEAST_BELOW = 4
"""Names below a module from which on they tell one module from another."""
# Nearly every layer has these, so they tell none from another.
_PLAIN = frozenset(("weight", "bias"))
# The work grows with both lists, so longer ones are left unpaired.
_MOST_MODULES = 20_000


def pair_modules(
    absent: Sequence[str],
    rest: Sequence[str],
    shapes: Mapping[str, Shape],
    message: Message,
    *,
    keeps_order: bool,
) -> Placed:
    """Pair what is left of two lists: modules with the same names below them first,
    then all layers in their order. Empty where nothing speaks for a pair.
    """
    rest = _without_counters(rest)
    if not absent or not rest or len(absent) + len(rest) > _MOST_MODULES:
        return Placed()
    # A number of a list that both have is the same block, so the list is counted from
    # another number on, and no block pairs with one at the other end of it.
    if renumbered_lists(absent, rest, shapes):
        return Placed()
    placed = _pair_subtrees(absent, rest)
    if 0 < len(placed.partners) < len(absent) == len(rest):
        # In the order of all layers a few of one kind have their place, too.
        whole = _pair_in_order(absent, rest, shapes, message, keeps_order=keeps_order)
        if all(whole.partners.get(new) == old for new, old in placed.partners.items()):
            return whole
    lost = [name for name in absent if name not in placed.partners]
    taken = set(placed.partners.values())
    left = [name for name in rest if name not in taken]
    if lost and left and len(lost) == len(left):
        ordered = _pair_in_order(lost, left, shapes, message, keeps_order=keeps_order)
        if ordered.partners:
            # The rest goes by its order alone, so the whole result is a guess.
            placed = Placed(
                {**placed.modules, **ordered.modules},
                {**placed.partners, **ordered.partners},
                is_guess=True,
            )
    return placed


_NUMBERED = re.compile(r"(?<![^.])\d{1,6}(?=\.)")


def renumbered_lists(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> set[str]:
    """The lists of modules that have other numbers on each side, and some that both
    have: `blocks.`.
    """
    left = set(rest)
    # A list counts if one of its names has its place: both sides then have this list.
    shared = {
        name[: found.start()]
        for name in _without_counters(list(names))
        if name not in left
        for found in _NUMBERED.finditer(name)
    }
    ours, theirs = (
        {name[: found.start()] for name in side for found in _NUMBERED.finditer(name)}
        for side in (rest, absent)
    )
    both = shared & ours & theirs
    return {place for place in both if _are_numbers_apart(place, absent, rest)}


class Counted(NamedTuple):
    """A list of blocks that a file counts from another number than a model."""

    place: str
    numbers: tuple[int, ...]
    step: int
    partners: Mapping[str, str]

    @property
    def modules(self) -> dict[str, str]:
        """Each block of the file -> the one of the model, in an order in which no
        rename meets what one before it made.
        """
        numbers = self.numbers[::-1] if self.step > 0 else self.numbers
        return {
            f"{self.place}{number}": f"{self.place}{number + self.step}"
            for number in numbers
        }

    def statement(self, command: str | None) -> Statement:
        """Say from which number each side counts."""
        first, last = self.numbers[0], self.numbers[-1]
        return Statement(
            f"{show(self.place.rstrip('.'), 80)} has {len(self.numbers):,} blocks of "
            f"the same names in both, {first} to {last} in the file and "
            f"{first + self.step} to {last + self.step} in the model: one of them "
            "counts from another number. With strict=False each block would get the "
            "weights of another one. By the numbers of the model, where nothing else "
            "changed between both programs:",
            (),
            command,
        )


def counted_elsewhere(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> Counted | None:
    """Find the list of blocks that holds all that two lists differ in, and has as many
    blocks in both, from another number on.
    """
    places = renumbered_lists(absent, rest, names)
    if len(places) != 1:
        return None
    (place,) = places
    if not all(name.startswith(place) for name in (*absent, *rest)):
        return None
    left = set(rest)
    ours = _blocks_below(place, names)
    # The model has the blocks of the file that have their place, and the missing ones.
    theirs = _blocks_below(place, [*(set(names) - left), *absent])
    step = min(theirs) - min(ours)
    is_alike = len(ours) == len(theirs) and all(
        theirs.get(number + step) == parts for number, parts in ours.items()
    )
    if not step or not is_alike:
        return None
    partners = {
        f"{place}{number + step}.{part}": f"{place}{number}.{part}"
        for number, parts in ours.items()
        for part in parts
    }
    return Counted(place, tuple(sorted(ours)), step, partners)


def _blocks_below(place: str, names: Collection[str]) -> dict[int, set[str]]:
    """The blocks of a list by their numbers, each with the names below it."""
    found: dict[int, set[str]] = {}
    for name in names:
        number, _, part = name[len(place) :].partition(".")
        is_block = name.startswith(place) and number.isdecimal() and part
        if is_block and not part.endswith(_COUNTER):
            # int refuses the thousands of digits that a hostile name may have.
            found.setdefault(int(number[:18]), set()).add(part)
    return found


def _are_numbers_apart(place: str, absent: Sequence[str], rest: Sequence[str]) -> bool:
    """Tell whether no number of a list is on both sides."""
    ours, theirs = (
        {
            name[len(place) :].partition(".")[0]
            for name in side
            if name.startswith(place)
        }
        for side in (rest, absent)
    )
    return ours.isdisjoint(theirs)


def _below(names: Sequence[str]) -> dict[str, list[str]]:
    """Each module around some names, and the root -> the names below it."""
    found: dict[str, list[str]] = {"": list(names)}
    for name in names:
        end = name.find(".")
        while end >= 0:
            found.setdefault(name[:end], []).append(name[end + 1 :])
            end = name.find(".", end + 1)
    return found


def _pair_subtrees(absent: Sequence[str], rest: Sequence[str]) -> Placed:
    """Pair the modules below which both lists have the same names, where no other
    module has these.
    """
    by_names = _by_names_below(_below(rest))
    wanted = _by_names_below(_below(absent))
    modules: dict[str, str] = {}
    partners: dict[str, str] = {}
    used: set[str] = set()
    # Larger modules first: what is below them has its place then.
    for word, key in sorted(wanted, key=lambda row: len(row[1]), reverse=True):
        news = [
            name for name in wanted[word, key] if not _is_taken(name, key, partners)
        ]
        olds = [
            name
            for name in by_names.get((word, key), ())
            if not _is_taken(name, key, used)
        ]
        for old, new in _pairs_of_modules(olds, news):
            modules[old] = new
            for name in key:
                partners[_joined(new, name)] = _joined(old, name)
                used.add(_joined(old, name))
    return Placed(modules, partners)


_LEAST_UNSAID = 8
"""Names below a module that pair it where the text does not say which keys of the file
have no place.
"""


def pair_unsaid(absent: Sequence[str], names: Collection[str]) -> Placed:
    """Pair modules of a model with modules of a file by the names below them, where a
    message lists nothing but what is missing: only large ones.
    """
    wanted = set(absent)
    left = [name for name in _without_counters(list(names)) if name not in wanted]
    if len(absent) + len(left) > _MOST_MODULES:
        return Placed()
    placed = _pair_subtrees(absent, left)
    if len(placed.partners) < _LEAST_UNSAID or "" in placed.modules.values():
        return Placed()
    return placed


def _by_names_below(
    below: Mapping[str, Sequence[str]],
) -> dict[tuple[str, frozenset[str]], list[str]]:
    """The names below modules -> the modules. Where these tell too little the last word
    of the module counts too.
    """
    found: dict[tuple[str, frozenset[str]], list[str]] = {}
    for module, names in below.items():
        word = ""
        if not _tell_apart(names):
            word = module.rpartition(".")[2]
            # A number is no word that tells two modules apart.
            if word.isdecimal() or len(names) < _LEAST_BELOW:
                continue
        found.setdefault((word, frozenset(names)), []).append(module)
    return found


def _tell_apart(names: Sequence[str]) -> bool:
    """Tell whether the names below a module are enough to know it by them: a weight and
    a bias are not, nor are layers by number that have nothing else.
    """
    if len(names) < _LEAST_BELOW:
        return False
    words = {part for name in names for part in name.split(".")}
    return any(not word.isdecimal() for word in words - _PLAIN)


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _is_taken(module: str, key: Collection[str], taken: Collection[str]) -> bool:
    return any(_joined(module, name) in taken for name in key)


def _pairs_of_modules(
    olds: Sequence[str], news: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the modules of equal names below them that are one another's: the only ones
    of both sides, or those that share a word with no other one.
    """
    # An encoder and a decoder may have the same names below them, and are never one.
    if len(olds) == 1 and len(news) == 1:
        if not are_opposite(olds[0], news[0]):
            yield olds[0], news[0]
        return
    if not olds or len(olds) != len(news):
        return
    # Blocks that are alike pair by the number at their end.
    numbers = {_last_number(new): new for new in news}
    is_numbered = len(numbers) == len(news) and "" not in numbers
    if is_numbered and {_last_number(old) for old in olds} == set(numbers):
        for old in olds:
            yield old, numbers[_last_number(old)]
        return
    akin = {old: [new for new in news if _share_word(old, new)] for old in olds}
    chosen = [rows[0] for rows in akin.values() if len(rows) == 1]
    if len(chosen) == len(olds) and len(set(chosen)) == len(olds):
        yield from zip(akin, chosen, strict=True)


def _last_number(module: str) -> str:
    """The number at the end of a module, or an empty text."""
    found = re.search(r"\d+$", module)
    return "" if found is None else found[0]


_LEAST_LETTERS = 3


def _share_word(one: str, other: str) -> bool:
    """Tell whether two modules have a word in common, or the beginning of one: enc and
    encoder.
    """
    for word in words_in(one):
        for theirs in words_in(other):
            short, long = sorted((word, theirs), key=len)
            if short == long or (
                len(short) >= _LEAST_LETTERS and long.startswith(short)
            ):
                return True
    return False


# --- all layers in their order --------------------------------------------------------

_CONVOLUTION = re.compile(r"(?:^|[._])conv\w{0,10}$", re.IGNORECASE)
_LINEAR = re.compile(r"(?:^|[._])(?:fc|linear|lin|dense)_?\d{0,3}$", re.IGNORECASE)
_NORM = re.compile(r"(?:^|[._])(?:\w{0,20}norm|ln|bn|gn)_?\d{0,3}$", re.IGNORECASE)
_LEAST_KINDS = 2
_LEAST_LAYERS = 2
"""Layers that have an order."""


def _pair_in_order(
    absent: Sequence[str],
    rest: Sequence[str],
    shapes: Mapping[str, Shape],
    message: Message,
    *,
    keeps_order: bool,
) -> Placed:
    """Pair all layers of two lists in their order, where both have the same kinds of
    layers in it, of more than one kind, and no name or shape speaks against it.
    """
    ours, theirs = _layers_of(rest), _layers_of(absent)
    if len(ours) < _LEAST_LAYERS:
        return Placed()
    kinds = [leaves for _, leaves in ours]
    if kinds != [leaves for _, leaves in theirs]:
        return Placed()
    # A file that does not keep the order has only the numbers of its layers to go by.
    if not keeps_order and not all(_is_counted(module) for module, _ in ours):
        return Placed()
    sizes = {row.name: row.model for row in message.mismatched}
    # `told` counts weights that fit their word, and `akin` layers of one place.
    akin = 0
    told = 0
    for (old, leaves), (new, _) in zip(ours, theirs, strict=True):
        if are_opposite(old, new):
            return Placed()
        fits = _fits_word(new, shapes.get(f"{old}.weight"))
        if fits is False:
            return Placed()
        if not _may_be_one(old, new):
            return Placed()
        told += fits is True
        akin += _share_place(old, new)
        for leaf in leaves:
            name, partner = _joined(new, leaf), _joined(old, leaf)
            # One shape of the message that differs contradicts the whole order.
            if sizes.get(name, shapes[partner]) != shapes[partner]:
                return Placed()
    # Layers of one kind in a row have no order that the kinds would prove.
    is_told = 2 * told >= len(ours) or 2 * akin >= len(ours)
    if len({tuple(row) for row in kinds}) < _LEAST_KINDS and not is_told:
        return Placed()
    modules = {
        old: new for (old, _), (new, _) in zip(ours, theirs, strict=True) if old != new
    }
    partners = {
        _joined(new, leaf): _joined(old, leaf)
        for (old, leaves), (new, _) in zip(ours, theirs, strict=True)
        for leaf in leaves
    }
    return Placed(modules, partners, is_guess=True)


def _share_place(old: str, new: str) -> bool:
    """Tell whether two layers lie in one module, or share the last word that is no
    number.
    """
    if old.rpartition(".")[0] == new.rpartition(".")[0]:
        return True
    # Numbers at the end say the place of a layer, and not its kind.
    ours, theirs = (re.sub(r"(?:\.\d+)+$", "", name) for name in (old, new))
    words = ours.rpartition(".")[2], theirs.rpartition(".")[2]
    return words[0] == words[1] and not words[0].isdecimal()


def share_last_word(one: str, other: str) -> bool:
    """Tell whether the last parts of two modules have a word in common."""
    return _share_word(one.rpartition(".")[2], other.rpartition(".")[2])


def _may_be_one(old: str, new: str) -> bool:
    """Tell whether the last words of two layers have a word in common, or one of them
    is a number, which says nothing.
    """
    ours, theirs = (words_in(name.rpartition(".")[2]) for name in (old, new))
    if not ours or not theirs or share_last_word(old, new):
        return True
    return any(
        not group.isdisjoint(ours) and not group.isdisjoint(theirs)
        for group in SYNONYMS
    )


def _layers_of(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The layers of some tensors in their order, with the last words of each."""
    layers: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        layers.setdefault(module, []).append(leaf)
    return [(module, tuple(sorted(leaves))) for module, leaves in layers.items()]


def _is_counted(module: str) -> bool:
    return module.isdecimal()


def _fits_word(module: str, shape: Shape | None) -> bool | None:
    """Tell whether a weight has as many dimensions as the word of a layer says, or
    return None where the word says nothing.
    """
    if shape is None:
        return None
    if _NORM.search(module):
        return len(shape) == 1
    if _CONVOLUTION.search(module):
        return len(shape) > 2
    if _LINEAR.search(module):
        return len(shape) == 2
    return None


# --- statements -----------------------------------------------------------------------


def placed_statement(
    placed: Placed,
    missing: int,
    command: str | None,
    *,
    is_more: bool,
    is_choice: bool = False,
) -> Statement:
    """Say which modules are one another's, and whether that is a guess. With
    `is_choice` another way was said before.
    """
    # The text goes on behind part_alone, which says what the file is.
    if is_choice and list(placed.modules) == [""]:
        return Statement("Or by the names that the model has:", (), command)
    moved = [
        show(text, 120) + (f" ({len(rows):,} times)" if len(rows) > 1 else "")
        for text, rows in _shown_modules(placed.modules).items()
    ]
    count = counted_noun(missing, "missing key")
    begin = (
        f"{len(placed.partners):,} more of the {count}"
        if is_more
        else f"{len(placed.partners):,} of the {count}"
    )
    verb = be_verb(placed.partners)
    if placed.is_guess:
        text = (
            f"{begin} {verb} perhaps there by other names: in their order the layers "
            "that are left of both lists are one for one, with the same tensors in "
            f"each: {and_more(moved, 6)}. That is by their places and kinds alone, for "
            "the message has no shapes of the model. Load the result with strict=True, "
            "which compares the shapes, and then compare one output:"
        )
    else:
        text = (
            f"{begin} {verb} there below other modules, which have the same names "
            f"below them: {and_more(moved, 6)}."
        )
    if command is None:
        text = text.removesuffix(":") + ("." if text.endswith(":") else "")
    return Statement(text, (), command)


def _shown_modules(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """The parts in which many modules differ, or few modules by their whole names."""
    # Many modules that differ in one part are one row of the text.
    if len(modules) > _FEW:
        short = short_modules(modules)
        templates = templates_of(modules)
        if 0 < len(templates) < len(short):
            return {_shown_template(row): list(row.modules) for row in templates}
        if len(short) < len(modules):
            return short
    root = "the root"
    return {f"{old or root} is {new or root}": [old] for old, new in modules.items()}


def _shown_template(row: Template) -> str:
    if row.places is None:
        ((old, new),) = row.modules.items()
        return f"{old} is {new}"
    new = fill_template(row, lambda place: "<n>" if isinstance(place, int) else place)
    return f"{row.old.replace('#', '<n>')} is {new}"


_FEW = 6
"""Modules that are listed one by one."""


def part_alone(placed: Placed, case: Case) -> Statement | None:
    """Say that a file is the state of one module of the model, with the line that loads
    it there. Return None where it is not.
    """
    if list(placed.modules) != [""]:
        return None
    new = placed.modules[""]
    load = case.survey.load.expression
    if (
        # The place goes into a line of Python, so it has to be a plain name.
        re.fullmatch(r"[\w.]{1,200}", new) is None
        or load is None
        or len(case.survey.candidates) != 1
    ):
        return None
    # A ModuleList and a Sequential take their numbers in brackets.
    place = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", new)
    return Statement(
        f"The file is the state of one part of the model, {show(new, 80)}: its names "
        f"are those below it, and {len(placed.partners):,} of the missing keys. Load "
        "it there:",
        (),
        f"model.{place}.load_state_dict({load})",
    )


def head_statement(
    heads: Mapping[str, str],
    shapes: Mapping[str, Shape],
    command: str | None,
) -> Statement:
    """Say that one layer may be the head by another name."""
    ((old, new),) = heads.items()
    shape = shapes.get(f"{old}.weight")
    sized = f", with a weight of {list(shape)}" if shape is not None else ""
    text = (
        f"{show(new, 80)} is missing, and {show(old, 80)} of this file has no place"
        f"{sized}: by their words both are the head. They are one only where the "
        "model has as many outputs, and the message has no shapes of it; a head for "
        "other classes is trained anew."
    )
    if command is None:
        return Statement(text)
    return Statement(f"{text} With it:", (), command)
