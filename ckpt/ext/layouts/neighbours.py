"""Names as evidence: which tensor of A a tensor of B is made of, where values cannot
tell, by those whose values did.

Names decide only between tensors that fit by their bytes, and what they decide is
listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice

from ckpt.evidence.dialects import dialect_translations
from ckpt.model.rows import NamedTuple

_NUMBER = re.compile(r"\d+")
_WORDS = re.compile(r"[A-Za-z]+")
_RANK = re.compile(r"(?:mp_)?rank_\d+(?:_\d+)*\.")
"""The beginnings of the names in a set of the files of ranks."""
_MANY = 512
"""Candidates that are compared one by one; of more of them those with the same numbers
are.
"""
_MOST_PAIRS = 64
"""Pairs of one form of names that are compared with a candidate."""


class Form(NamedTuple):
    """A name without its numbers, and its numbers."""

    text: str
    numbers: tuple[int, ...]


@lru_cache(maxsize=1 << 13)
def form_of(name: str) -> Form:
    """The form of a name."""
    return Form(
        _NUMBER.sub("#", name), tuple([int(digits) for digits in _NUMBER.findall(name)])
    )


def name_likeness(name: str, other: str) -> float:
    """The likeness of two names, by their numbers and their words."""
    numbers, others = Counter(_NUMBER.findall(name)), Counter(_NUMBER.findall(other))
    words, other_words = set(_WORDS.findall(name)), set(_WORDS.findall(other))
    shared = sum((numbers & others).values()) / max(
        1, max(sum(numbers.values()), sum(others.values()))
    )
    return shared + len(words & other_words) / max(1, len(words | other_words))


@lru_cache(maxsize=1 << 13)
def parents_of(name: str) -> list[str]:
    """The modules around a tensor, the innermost first; the last one is all of the
    checkpoint.
    """
    parts = re.split(r"[./]", name)
    return [".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1)]


class Decisions(NamedTuple):
    """The decisions of names: the tensor of A of each decided tensor of B, and for the
    others the tensors that still fit.
    """

    chosen: dict[str, str]
    ways: dict[str, tuple[str, ...]]


class Evidence:
    """The pairs of names that values have decided."""

    def __init__(self, names: Sequence[str], sources: Sequence[str]) -> None:
        self._names = list(names)
        self._sources = list(sources)
        self._waiting: list[tuple[str, Sequence[str]]] = []
        """Pairs that are not counted yet: most pairs of checkpoints ask nothing of
        names.
        """
        self._forms: dict[str, list[tuple[Form, Form]]] = {}
        self._votes: dict[str, Counter[str]] = {}
        self._totals: Counter[str] = Counter()
        self._dialects: dict[str, set[str]] | None = None

    def add(self, name: str, sources: Sequence[str]) -> None:
        """Note that values say that a tensor of B is made of these tensors of A."""
        self._waiting.append((name, sources))

    def _count_waiting(self) -> None:
        """Count the pairs that are not counted yet."""
        for name, sources in self._waiting:
            own = list(dict.fromkeys(sources))
            modules = {parent for source in own for parent in parents_of(source)}
            for parent in parents_of(name):
                self._totals[parent] += 1
                self._votes.setdefault(parent, Counter()).update(modules)
            self.add_pair(name, own)
        self._waiting.clear()

    def add_pair(self, name: str, sources: Iterable[str]) -> None:
        """Note a pair of names alone, whatever decided it."""
        form = form_of(name)
        for source in sources:
            pairs = self._forms.setdefault(form.text, [])
            if len(pairs) < _MOST_PAIRS:
                pairs.append((form, form_of(source)))

    def decided(self, name: str, candidates: Sequence[str]) -> str | None:
        """The one of several tensors of A that names give a tensor of B, or None where
        they do not say it.
        """
        self._count_waiting()
        return self._one_of(name, _narrow_candidates(name, candidates, {}))

    def decisions(self, candidates: Mapping[str, Sequence[str]]) -> Decisions:
        """The decisions of names on several tensors of B, each with the tensors of A
        that fit by their bytes.
        """
        self._count_waiting()
        chosen: dict[str, str] = {}
        known: dict[int, _Numbered] = {}
        narrow = {
            name: _narrow_candidates(name, fitting, known)
            for name, fitting in candidates.items()
        }
        while True:
            before = len(chosen)
            for name, fitting in narrow.items():
                if name not in chosen:
                    one = self._one_of(name, fitting)
                    if one is not None:
                        chosen[name] = one
                        self.add_pair(name, [one])
            rest = {
                name: self._deepest_candidates(name, fitting)
                for name, fitting in narrow.items()
                if name not in chosen
            }
            wanted = Counter(chain.from_iterable(rest.values()))
            for name, best in rest.items():
                first = best[0] if len(best) == 1 else _of_ranks(best)
                is_alone = all(wanted[way] == 1 for way in best)
                if (
                    first is not None
                    and is_alone
                    and self._count_shared_modules(name, first) > 1
                ):
                    chosen[name] = first
                    self.add_pair(name, [first])
            if len(chosen) == before:
                return Decisions(
                    chosen, {name: tuple(best) for name, best in rest.items()}
                )

    def _one_of(self, name: str, candidates: Sequence[str]) -> str | None:
        """The candidate that stands to a name as other pairs do, or that a table, a
        role or the end of its name says.
        """
        best = self._deepest_candidates(name, candidates)
        fitting = self._by_form(name, best)
        if len(fitting) == 1:
            return fitting[0]
        translated = self._translated_names(name)
        role = role_of(name)
        narrower = [
            [candidate for candidate in best if candidate == name],
            [candidate for candidate in best if candidate in translated],
            [candidate for candidate in best if role and role_of(candidate) == role],
        ]
        if len(candidates) == 1 or self._count_shared_modules(name, best[0]) > 0:
            tail = re.split(r"[./]", name)[-2:]
            narrower.append(
                [
                    candidate
                    for candidate in best
                    if re.split(r"[./]", candidate)[-2:] == tail
                ]
            )
        for rows in narrower:
            one = rows[0] if len(rows) == 1 else _of_ranks(rows)
            if one is not None:
                return one
        return None

    def _deepest_candidates(
        self, name: str, candidates: Sequence[str]
    ) -> Sequence[str]:
        """The candidates that lie deepest in the modules of A of which the module
        around a name is made.
        """
        votes = self._votes_around(name)
        if votes is None:
            return candidates
        modules, total = votes
        scores = [
            sum([modules[module] == total for module in parents_of(candidate)])
            for candidate in candidates
        ]
        most = max(scores, default=0)
        return [
            candidate
            for candidate, score in zip(candidates, scores, strict=True)
            if score == most
        ]

    def _by_form(self, name: str, candidates: Sequence[str]) -> list[str]:
        """The candidates that stand to a name as the pairs of names of its form do."""
        form = form_of(name)
        pairs = self._forms.get(form.text, ())
        fitting = []
        for candidate in candidates if pairs else ():
            other = form_of(candidate)
            alike = [(one, two) for one, two in pairs if two.text == other.text]
            if alike and _moves_alike(form, other, alike):
                fitting.append(candidate)
        return fitting

    def _count_shared_modules(self, name: str, candidate: str) -> int:
        """The number of modules around a candidate that are around all sources of the
        innermost known module around a name.
        """
        votes = self._votes_around(name)
        if votes is None:
            return 0
        modules, total = votes
        return sum([modules[module] == total for module in parents_of(candidate)])

    def _votes_around(self, name: str) -> tuple[Counter[str], int] | None:
        """The votes of the innermost known module around a name, and how many voted."""
        for parent in parents_of(name):
            votes = self._votes.get(parent)
            if votes:
                return votes, self._totals[parent]
        return None

    def _translated_names(self, name: str) -> set[str]:
        """The names of A that a table of names says of a name of B."""
        if self._dialects is None:
            self._dialects = {}
            for translation in dialect_translations(self._sources, self._names):
                for source, target in translation.names.items():
                    self._dialects.setdefault(target, set()).add(source)
        return self._dialects.get(name, set())


_Numbered = dict[tuple[int, ...], dict[str, None]]
"""Names by the numbers in them, in order."""


def _narrow_candidates(
    name: str, candidates: Sequence[str], known: dict[int, _Numbered]
) -> Sequence[str]:
    """The candidates with the numbers of a name, where there are many candidates and
    some of these.

    `known` has the candidates by their numbers, by the ids of the sequences: many names
    share one.
    """
    if len(candidates) <= _MANY:
        return candidates
    numbered = known.get(id(candidates))
    if numbered is None:
        numbered = known[id(candidates)] = {}
        for candidate in candidates:
            numbered.setdefault(form_of(candidate).numbers, {})[candidate] = None
    same = numbered.get(form_of(name).numbers)
    if same is None:
        return candidates[:_MANY]
    first = list(islice(same, _MANY))
    return [*first[:-1], name] if name in same and name not in first else first


_ROLES = (
    (
        "attention norm",
        r"input_layernorm|attention_norm|ln_1\b|norm1\b|sa_norm|layernorm_before"
        r"|linear_qkv\.layer_norm|self_attn_layer_norm"
        r"|attn_norm|ln_attn|pre_attention_layernorm",
    ),
    (
        "feed-forward norm",
        r"post_attention_layernorm|ffn_norm|ln_2\b|norm2\b|mlp_norm|layernorm_after"
        r"|linear_fc1\.layer_norm|pre_mlp_layernorm"
        r"|pre_feedforward_layernorm|ln_mlp|post_attention_norm",
    ),
)
"""The words of several packages for the two norms of a layer, which are equal before a
training.
"""


def role_of(name: str) -> str | None:
    """The role that the words of a name say, or None."""
    found = [role for role, words in _ROLES if re.search(words, name)]
    return found[0] if len(found) == 1 else None


def name_in_rank(name: str) -> str | None:
    """The name of a tensor of the file of a rank without the name of its file, or None
    for another.
    """
    rank = _RANK.match(name)
    return None if rank is None else name[rank.end() :]


def is_of_other_rank(name: str, other: str) -> bool:
    """Tell whether two names in a set of the files of ranks differ by the first number
    of their rank alone.
    """
    one, two = _RANK.match(name), _RANK.match(other)
    if one is None or two is None or name[one.end() :] != other[two.end() :]:
        return False
    return (
        one[0].split("_")[-1:] == two[0].split("_")[-1:]
        or one[0].count("_") == two[0].count("_") < 3
    )


def _of_ranks(candidates: Sequence[str]) -> str | None:
    """The first of several tensors whose names differ by the rank of their file alone:
    each rank has a copy of it.
    """
    if len(candidates) < 2 or not all(map(_RANK.match, candidates)):
        return None
    plain = {_RANK.sub("", candidate) for candidate in candidates}
    return candidates[0] if len(plain) == 1 else None


def _moves_alike(form: Form, other: Form, pairs: Sequence[tuple[Form, Form]]) -> bool:
    """Tell whether the numbers of a candidate follow the numbers of a name as in all
    pairs of these forms.

    One pair says it only of a number that is one of the name's, for it shows no step. A
    number of the name that the candidate does not follow must be the same in all pairs:
    another one makes it the name of something else.
    """
    is_one = len(pairs) == 1
    followed: set[int] = set()
    for number, value in enumerate(other.numbers):
        places = [
            place
            for place, own in enumerate(form.numbers)
            if {two.numbers[number] - one.numbers[place] for one, two in pairs}
            == {value - own}
            and (not is_one or value == own)
        ]
        is_fixed = all(two.numbers[number] == value for _, two in pairs)
        if not places and not (is_fixed and (not is_one or not form.numbers)):
            return False
        followed.update(places)
    rest = [place for place in range(len(form.numbers)) if place not in followed]
    return all(
        one.numbers[place] == form.numbers[place] for place in rest for one, _ in pairs
    )
