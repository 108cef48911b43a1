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
from itertools import chain, groupby, islice

from ckpt.evidence.dialects import dialect_translations
from ckpt.model.rows import NamedTuple

_NUMBER = re.compile(r"\d{1,18}")
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
    numbers = Counter(_NUMBER.findall(name))
    others = Counter(_NUMBER.findall(other))
    words = set(_WORDS.findall(name))
    other_words = set(_WORDS.findall(other))
    most_numbers = max(sum(numbers.values()), sum(others.values()))
    # Both shares are from 0 to 1: the layer counts as much as all words together.
    shared_numbers = sum((numbers & others).values()) / max(1, most_numbers)
    shared_words = len(words & other_words) / max(1, len(words | other_words))
    return shared_numbers + shared_words


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
        self._shared: dict[str, tuple[str, ...]] = {}
        self._dialects: dict[str, set[str]] | None = None

    def add(self, name: str, sources: Sequence[str]) -> None:
        """Note that values say that a tensor of B is made of these tensors of A."""
        self._waiting.append((name, sources))

    def _count_waiting(self) -> None:
        """Count the pairs that are not counted yet."""
        if self._waiting:
            # The modules that are shared change with each pair: they are found again
            # when asked for.
            self._shared.clear()
        for name, sources in self._waiting:
            # A module of A has one vote for each tensor, however many pieces come of
            # it.
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
            # A few pairs show how numbers move; all of 1,000 experts would say the
            # same.
            if len(pairs) < _MOST_PAIRS:
                pairs.append((form, form_of(source)))

    def decided(self, name: str, candidates: Sequence[str]) -> str | None:
        """The one of several tensors of A that names give a tensor of B, or None where
        they do not say it.
        """
        self._count_waiting()
        case = self._case_of(name, candidates, _Tables())
        fitting = self._by_form(name, case.best)
        return fitting[0] if len(fitting) == 1 else case.settled

    def decisions(self, candidates: Mapping[str, Sequence[str]]) -> Decisions:
        """The decisions of names on several tensors of B, each with the tensors of A
        that fit by their bytes.
        """
        self._count_waiting()
        tables = _Tables()
        # The candidates of each tensor first, as long as nothing is decided by names.
        cases = {
            name: self._case_of(name, fitting, tables)
            for name, fitting in candidates.items()
        }
        wanted = Counter(chain.from_iterable([case.best for case in cases.values()]))
        chosen: dict[str, str] = {}
        looked_at: dict[str, int] = {}
        """The pairs of its form that a name was compared with: with as many it has the
        same answer.
        """

        def choose_source(name: str, source: str) -> None:
            chosen[name] = source
            self.add_pair(name, [source])
            wanted.subtract(cases[name].best)

        # Each decision may decide others, so it goes on until a round decides nothing.
        while True:
            before = len(chosen)
            for name, case in cases.items():
                pairs = len(self._forms.get(form_of(name).text, ()))
                if name in chosen or looked_at.get(name) == pairs:
                    continue
                looked_at[name] = pairs
                fitting = self._by_form(name, case.best)
                one = fitting[0] if len(fitting) == 1 else case.settled
                if one is not None:
                    choose_source(name, one)
            # Then those whose candidates no other tensor wants any more.
            for name, case in cases.items():
                if name in chosen or case.first is None:
                    continue
                if all(wanted[way] == 1 for way in case.best):
                    choose_source(name, case.first)
            if len(chosen) == before:
                rest = [name for name in cases if name not in chosen]
                return Decisions(chosen, {name: cases[name].best for name in rest})

    def _case_of(self, name: str, candidates: Sequence[str], tables: _Tables) -> _Case:
        """The case of a tensor of B, as names tell it while no other pair is known."""
        fitting = tables.narrow_candidates(name, candidates)
        role = role_of(name)
        if role is not None:
            # A norm may lie in a module that values tie to another one: the norm of
            # Megatron's q, k, v lies beside these.
            fitting = tables.with_role(fitting, role) or fitting
        parent = self._parent_with_votes(name)
        best, shared = fitting, 0
        if parent is not None:
            best, shared = tables.deepest_candidates(
                fitting, self._shared_modules(parent)
            )
        # A set of ranks counts as one tensor.
        first = best[0] if len(best) == 1 else _of_ranks(best)
        is_near = shared > 0 or len(fitting) == 1
        settled = self._settled(name, best, tables, is_near=is_near)
        return _Case(best, settled, first if shared > 1 else None)

    def _settled(
        self,
        name: str,
        best: tuple[str, ...],
        tables: _Tables,
        *,
        is_near: bool,
    ) -> str | None:
        """The candidate that has the name itself but for a prefix, or that a table, a
        role or the end of the name says.
        """
        translated = self._translated_names(name)
        role = role_of(name)
        # From the strongest to the weakest: the first list with one candidate decides.
        narrower: list[Sequence[str]] = [
            [candidate for candidate in best if candidate == name],
            tables.with_end(best, name),
        ]
        if translated:
            narrower.append([row for row in best if row in translated])
        if role is not None:
            narrower.append(tables.with_role(best, role))
        if is_near:
            narrower.append(tables.with_tail(best, _tail_of(name)))
        for rows in narrower:
            one = _only_one(rows)
            if one is not None:
                return one
        return None

    def _by_form(self, name: str, candidates: Sequence[str]) -> list[str]:
        """The candidates that stand to a name as the pairs of names of its form do."""
        form = form_of(name)
        # The pairs by the form of their name in A: a candidate is held against its own
        # form.
        pairs: dict[str, list[tuple[Form, Form]]] = {}
        for one, two in self._forms.get(form.text, ()):
            pairs.setdefault(two.text, []).append((one, two))
        fitting = []
        for candidate in candidates if pairs else ():
            other = form_of(candidate)
            alike = pairs.get(other.text)
            if alike and _moves_alike(form, other, alike):
                fitting.append(candidate)
        return fitting

    def _parent_with_votes(self, name: str) -> str | None:
        """The innermost known module around a name."""
        # A module without a vote says nothing: the one around it may.
        for parent in parents_of(name):
            if self._votes.get(parent):
                return parent
        return None

    def _shared_modules(self, parent: str) -> tuple[str, ...]:
        """The modules of A that all tensors of a module of B take something of, the
        innermost first. With each of them come those around it.
        """
        shared = self._shared.get(parent)
        if shared is None:
            total = self._totals[parent]
            rows = [
                name for name, times in self._votes[parent].items() if times == total
            ]
            shared = tuple(sorted(rows, key=_depth_of, reverse=True))
            self._shared[parent] = shared
        return shared

    def _translated_names(self, name: str) -> set[str]:
        """The names of A that a table of names says of a name of B."""
        # Tables of names are made only where values left something open.
        if self._dialects is None:
            self._dialects = {}
            for translation in dialect_translations(self._sources, self._names):
                for source, target in translation.names.items():
                    self._dialects.setdefault(target, set()).add(source)
        return self._dialects.get(name, set())


class _Case(NamedTuple):
    """The case of a tensor of B: the candidates that names leave, the one that they
    decide, and the one that it is where no other tensor wants these candidates.
    """

    best: tuple[str, ...]
    settled: str | None
    first: str | None


class _Tables:
    """Tables over lists of candidates, made once for each list: many names share one.

    A list is known by its id, so all lists are kept as long as the tables.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Sequence[str]] = {}
        self._tuples: dict[int, tuple[str, ...]] = {}
        self._numbered: dict[int, dict[tuple[int, ...], dict[str, None]]] = {}
        self._firsts: dict[tuple[int, tuple[int, ...]], tuple[str, ...]] = {}
        self._deepest: dict[tuple[int, int], tuple[tuple[str, ...], int]] = {}
        self._inside: dict[int, dict[str, list[int]]] = {}
        """The numbers of the candidates of a list in each module."""
        self._tails: dict[int, dict[tuple[str, ...], list[str]]] = {}
        self._ends: dict[int, dict[str, list[str]]] = {}
        self._roles: dict[int, dict[str | None, tuple[str, ...]]] = {}

    def _key(self, candidates: Sequence[str]) -> int:
        """The id of a list, which is kept from now on."""
        self._kept[id(candidates)] = candidates
        return id(candidates)

    def narrow_candidates(
        self,
        name: str,
        candidates: Sequence[str],
    ) -> tuple[str, ...]:
        """The candidates with the numbers of a name, where there are many candidates
        and some of these.
        """
        key = self._key(candidates)
        if key not in self._tuples:
            self._tuples[key] = tuple(candidates[:_MANY])
        if len(candidates) <= _MANY:
            return self._tuples[key]
        numbered = self._numbered.get(key)
        if numbered is None:
            numbered = self._numbered[key] = {}
            for candidate in candidates:
                numbered.setdefault(form_of(candidate).numbers, {})[candidate] = None
        numbers = form_of(name).numbers
        same = numbered.get(numbers)
        # If no candidate has these numbers, they are no evidence.
        if same is None:
            return self._tuples[key]
        first = self._firsts.get((key, numbers))
        if first is None:
            first = self._firsts[key, numbers] = tuple(islice(same, _MANY))
        return (*first[:-1], name) if name in same and name not in first else first

    def deepest_candidates(
        self,
        candidates: tuple[str, ...],
        modules: tuple[str, ...],
    ) -> tuple[tuple[str, ...], int]:
        """The candidates that lie deepest in some modules, which come innermost first,
        and how many of these are around each of them.
        """
        key = self._key(candidates), self._key(modules)
        known = self._deepest.get(key)
        if known is None:
            known = self._deepest[key] = self._find_deepest(candidates, modules)
        return known

    def _find_deepest(
        self,
        candidates: tuple[str, ...],
        modules: tuple[str, ...],
    ) -> tuple[tuple[str, ...], int]:
        inside = self._inside.get(id(candidates))
        if inside is None:
            inside = self._inside[id(candidates)] = {}
            for number, candidate in enumerate(candidates):
                for module in parents_of(candidate):
                    inside.setdefault(module, []).append(number)
        # Modules come innermost first: at the first depth with candidates it is
        # decided.
        for depth, names in groupby(modules, _depth_of):
            numbers = [number for name in names for number in inside.get(name, ())]
            # All candidates lie in it: it narrows nothing, and none deeper did.
            if len(numbers) == len(candidates):
                return candidates, depth + 1
            if numbers:
                best = [candidates[number] for number in sorted(numbers)]
                return tuple(best), depth + 1
        return candidates, 0

    def with_tail(
        self,
        candidates: tuple[str, ...],
        tail: tuple[str, ...],
    ) -> Sequence[str]:
        """The candidates whose names end so."""
        key = self._key(candidates)
        table = self._tails.get(key)
        if table is None:
            table = self._tails[key] = {}
            for candidate in candidates:
                table.setdefault(_tail_of(candidate), []).append(candidate)
        return table.get(tail, ())

    def with_end(self, candidates: tuple[str, ...], name: str) -> Sequence[str]:
        """The candidates that are all of the end of a name, or of which a name is all
        of the end: one of both has a prefix. An end has two parts or more.
        """
        key = self._key(candidates)
        table = self._ends.get(key)
        if table is None:
            table = self._ends[key] = {}
            for candidate in candidates:
                for end in _ends_of(candidate):
                    table.setdefault(end, []).append(candidate)
        for end in _ends_of(name):
            rows = table.get(end, [])
            found = rows if end == name else [row for row in rows if row == end]
            if found:
                return found
        return ()

    def with_role(self, candidates: tuple[str, ...], role: str) -> tuple[str, ...]:
        """The candidates of a role."""
        key = self._key(candidates)
        table = self._roles.get(key)
        if table is None:
            rows: dict[str | None, list[str]] = {}
            for candidate in candidates:
                rows.setdefault(role_of(candidate), []).append(candidate)
            table = {own: tuple(names) for own, names in rows.items()}
            self._roles[key] = table
        return table.get(role, ())


def _ends_of(name: str) -> list[str]:
    """The ends of a name that have two parts or more, the longest first."""
    starts = [0, *[match.end() for match in re.finditer(r"[./]", name)]]
    return [name[start:] for start in starts[:-1]]


def _depth_of(module: str) -> int:
    """The number of modules around a module of A, 0 for all of the checkpoint."""
    return module.count(".") + 1 if module else 0


def _tail_of(name: str) -> tuple[str, ...]:
    """The last two parts of a name."""
    return tuple(re.split(r"[./]", name)[-2:])


def _only_one(candidates: Sequence[str]) -> str | None:
    """The only candidate, or the first one where they are the copies of all ranks; else
    None.
    """
    return candidates[0] if len(candidates) == 1 else _of_ranks(candidates)


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
    (
        "last norm",
        r"^(?:(?:mp_)?rank_[\d_]+\.)?[^\d]*"
        r"(?:\bln_f|final_layer_?norm|\bnorm_f|output_norm|decoder_norm)\b",
    ),
)
"""The words of several packages for the two norms of a layer and for the one after all
layers, which are equal before a training.
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
    one_parts = one[0].split("_")
    two_parts = two[0].split("_")
    # `mp_rank_TT_PPP.`: the same pipeline stage, or two ranks without stages.
    if one_parts[-1:] == two_parts[-1:]:
        return True
    return len(one_parts) == len(two_parts) < 4


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
        # The places of the name that this number keeps its distance to in all pairs.
        places: list[int] = []
        for place, own in enumerate(form.numbers):
            if is_one and value != own:
                continue
            # Most places fail at the first of the pairs, which may be thousands.
            step = value - own
            if all(
                two.numbers[number] - one.numbers[place] == step for one, two in pairs
            ):
                places.append(place)
        is_fixed = all(two.numbers[number] == value for _, two in pairs)
        # A number that follows nothing must be the same in all pairs. One pair says so
        # only of a name without numbers.
        may_be_fixed = is_fixed and (not is_one or not form.numbers)
        if not places and not may_be_fixed:
            return False
        followed.update(places)
    rest = [place for place in range(len(form.numbers)) if place not in followed]
    for place in rest:
        if any(one.numbers[place] != form.numbers[place] for one, _ in pairs):
            return False
    return True
