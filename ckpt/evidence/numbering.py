"""The parameters behind the numbers in an error of DDP.

DDP numbers the parameters that require a gradient in the order of `model.parameters()`
(torch/nn/parallel/ distributed.py `_build_params_for_reducer`): the order of the state
dict, without buffers, each tied one once. Its error lists every parameter that got no
gradient in the step, so all numbers of a rank are one question: a parameter without
state never had a gradient, and is either frozen or among the numbers. A number has a
name when every choice of frozen parameters that fits the file and the numbers agrees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from math import inf, isqrt
from typing import Literal

from ckpt.evidence.gradients import GradientUse, says_gradients
from ckpt.evidence.matching import Match, by_order, each_once
from ckpt.evidence.optimizers import Optimizer, optimizer_facts
from ckpt.evidence.order import disorder_reason, may_be_sorted
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.roles import RecordMatch, Trust
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, be_verb, counted_noun, show

_MOST = 10_000
"""Numbers in one range."""
_LISTED = 100_000
"""Candidates of all numbers together that are listed."""
_SHOWN = 8
"""Numbers that an error repeats."""

_COMPLETE = "these are all numbers that DDP printed"
_NO_SEARCH = "find_unused_parameters is off"
_NO_FIRST = "no parameter got its first gradient in that step"
_IN_OPTIMIZER = "each parameter that requires a gradient is in the optimizer"
_NEVER = "no parameter with a gradient in an earlier step is among the numbers"
_IN_ORDER = "the optimizer got model.parameters()"
_IN_ORDER_OF_GROUPS = (
    "each group of the optimizer has its parameters in the order of the model"
)
_EXACT = "the numbers are the parameters that never had a gradient"
"""Both: none got its first gradient in that step, and none with an earlier gradient is
among the numbers.
"""
_NOT_SORTED = "the names are in the order of the model, not of the alphabet"
_ALL_CHANGED = "each parameter that had a gradient changed"
_NONE_FROZEN = "no parameter is frozen (requires_grad is not recorded)"


class Numbers(NamedTuple):
    """Numbers of an error of DDP. `ranks` has the numbers of each rank; the rank is
    None where the text has none.

    They are `without` a gradient: all of them that the rank has. Of a `line` without
    the message around it that holds if `find_unused_parameters` is off: else DDP lists
    what its search did not find (`found`). `some` may be any of them. Parameters that
    were ready `twice` had a gradient.
    """

    ranks: tuple[tuple[int | None, tuple[int, ...]], ...]
    kind: Literal["without", "line", "found", "some", "twice"] = "some"

    @property
    def all(self) -> list[int]:
        """Every number once, in the order of the text."""
        return list(
            dict.fromkeys(number for _, numbers in self.ranks for number in numbers)
        )


_LINE = re.compile(
    r"indices which did not receive grad for rank (\d{1,9}): ?((?:\d{1,12} "
    r")*\d{1,12})(?!\d)"
)
_TWICE = re.compile(
    r"Parameter at index (\d{1,12})(?: with name (\S+))? has been marked as ready twice"
)


_SEARCHED = "`find_unused_parameters=True` is enabled"
_NOT_SEARCHED = "You can enable unused parameter detection"
"""The words of DDP about its search for unused parameters
(torch/csrc/distributed/c10d/reducer.cpp).
"""


def pasted_numbers(text: str) -> Numbers | None:
    """The numbers of a message of DDP, also of several ranks, or None where the text
    has none. The last of a rank counts.
    """
    ranks: dict[int | None, tuple[int, ...]] = {}
    for match in _LINE.finditer(text):
        ranks[int(match[1])] = tuple(dict.fromkeys(map(int, match[2].split())))
    if ranks:
        kind: Literal["without", "line", "found"] = "line"
        if _SEARCHED in text:
            kind = "found"
        elif _NOT_SEARCHED in text:
            kind = "without"
        return Numbers(tuple(sorted(ranks.items(), key=lambda row: row[0] or 0)), kind)
    twice = [int(match[1]) for match in _TWICE.finditer(text)]
    return Numbers(((None, tuple(dict.fromkeys(twice))),), "twice") if twice else None


def numbers(text: str) -> Numbers:
    """The numbers of `6,7-9`, of `6 7 8 9`, or of a message of DDP. Raises
    UsageError.
    """
    pasted = pasted_numbers(text)
    if pasted is not None:
        return pasted
    parsed: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None:
            raise UsageError(
                f"--index {show(text, 60)}: not numbers", hint="as in 6,7-9"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST:
            raise UsageError(
                f"--index {show(part, 60)}: not a range", hint="as in 6,7-9"
            )
        parsed += range(first, last + 1)
    return Numbers(((None, tuple(dict.fromkeys(parsed))),))


class Numbered(NamedTuple):
    """A number and the tensors that it can be: none where these are too many to list.

    `ranks` are the ranks that print it. `had_gradient` says of each tensor whether it
    had a gradient in an earlier step; None means that the file cannot tell. `by_order`
    says it where the order of the optimizer alone tells.
    """

    number: int
    entries: tuple[Entry, ...]
    had_gradient: tuple[bool | None, ...]
    ranks: tuple[int, ...] = ()
    by_order: tuple[bool | None, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """One row of `names` in the object `index`."""
        name = self.entries[0].name if len(self.entries) == 1 else None
        # Candidates that disagree about their gradients say nothing of the number.
        answers = set(self.had_gradient)
        had_gradient = answers.pop() if len(answers) == 1 else None
        return {
            "index": self.number,
            "name": name,
            "candidates": [entry.name for entry in self.entries],
            "ranks": list(self.ranks),
            "had_gradient": had_gradient,
        }


class Numbering(NamedTuple):
    """Parameters by their numbers: `rows` are those that were asked for.

    DDP counts `least` to `parameters` parameters. A name follows from the file where a
    row has one tensor and `assumes` is None; else it follows from what `assumes` says
    too. `ordered` is the assumption that gradients by order rest on.
    """

    rows: tuple[Numbered, ...]
    section: Section
    parameters: int
    trust: Trust
    why: str
    assumes: str | None
    least: int
    ordered: str = ""

    def to_json(self) -> dict[str, Json]:
        """The object `index` of the documents `ckpt.inspect` and `ckpt.explain`."""
        return {
            "parameters": self.parameters,
            "section": self.section.name,
            "evidence": {"trust": self.trust, "source": "order", "note": self.why},
            "assumes": self.assumes,
            "names": [row.to_json() for row in self.rows],
        }


def numbered_parameters(
    survey: Survey, asked: Numbers, section: str | None = None
) -> Numbering:
    """The parameters of these numbers, or the tensors that each can be, with how sure
    that is.

    Raises UsageError for a number that no parameter has, where no choice of frozen
    parameters fits, and where the file keeps no order.
    """
    record = survey.record
    if record is None or section not in (None, record.section.name):
        return _numbered_by_file(survey, asked, section)
    built = _numbered_by_record(survey, asked, record)
    if built.assumes is None or not _trains_more(survey, record, asked):
        return built
    try:
        return _numbered_beside_record(survey, asked, built)
    except UsageError:
        return built


def _numbered_beside_record(
    survey: Survey, asked: Numbers, built: Numbering
) -> Numbering:
    """Return the answer of the file alone, where the model that was `built` has more
    trainable parameters than the run had.

    Most often the run froze a part and the factory does not. The built model then has
    other parameters under the numbers.
    """
    by_file = _numbered_by_file(survey, asked, built.section.name)
    why = (
        f"{by_file.why}; the model that --model builds has {built.parameters:,} that "
        "require a gradient, so its numbers count only if it freezes what the run froze"
    )
    trust: Trust = "likely" if by_file.trust == "certain" else by_file.trust
    return by_file._replace(why=why, trust=trust)


def _numbered_by_file(survey: Survey, asked: Numbers, section: str | None) -> Numbering:
    """Return the parameters of these numbers by the file alone. Raises UsageError as
    `numbered_parameters` does.
    """
    checkpoint = survey.checkpoint
    model = survey.only_model(section)
    _refuse_disorder(checkpoint, model)
    # From facts that the file says for sure to what names suggest.
    count = (
        _by_parameters(survey, model)
        or _by_optimizer(survey, model)
        or _by_names(survey, model)
    )
    is_known = not any(place.out for place in count.places)
    for number in asked.all:
        _refuse_beyond(checkpoint, number, len(count.places), is_known=is_known)
    solved, assumes = _best_solution(count, asked)
    if solved is None:
        listed = ", ".join(map(str, asked.all[:_SHOWN]))
        if len(asked.all) > _SHOWN:
            listed += " …"
        raise UsageError(
            f"no choice of frozen parameters gives these numbers: {listed}",
            path=checkpoint.path,
            hint="is it a checkpoint of the run that stopped?",
        )
    if not _is_module(model) and may_be_sorted(_names_by_dtype(model)):
        assumes = ", and ".join(filter(None, (_NOT_SORTED, assumes)))
    trust: Trust = count.trust if assumes is None else "likely"
    sure: set[int] = set()
    for candidates in solved.candidates.values():
        if len(candidates) == 1:
            sure.add(candidates[0])
    is_ordered = count.unordered is None or count.ordered in (assumes or "")
    had = _had_gradients(survey, model, None if is_ordered else sure)
    by_order = {} if is_ordered else _had_gradients(survey, model)
    # The assumption about the numbers holds for each tensor that one can be.
    if any(text in (assumes or "") for text in (_EXACT, _NEVER)):
        had = {
            index: False for listed in solved.candidates.values() for index in listed
        }
    rows = [
        _numbered_row(survey, asked, number, solved.candidates[number], had, by_order)
        for number in asked.all
    ]
    return Numbering(
        tuple(rows),
        model,
        solved.most,
        trust,
        count.why,
        assumes,
        solved.least,
        count.ordered,
    )


def numbered_by_change(
    survey: Survey,
    asked: Numbers,
    unchanged: Set[str],
    section: str | None = None,
    stepped: Set[str] = frozenset(),
    *,
    all_seen: bool = False,
    small_steps: bool = False,
) -> Numbering | None:
    """The parameters of these numbers among those that are `unchanged` since an older
    save, or None if they do not fit.

    The `stepped` are the same too, but the optimizer says that they had a gradient:
    they count as the changed ones do. With `all_seen` it says that no other one had a
    step that was too small to see. A parameter that changed had a gradient, so DDP
    counts it, and it is none of the numbers. Of the unchanged ones DDP counts those
    that are not frozen, and each of these is a number. So the first number is the count
    of changed parameters before it, the second is one more than that, and so on: this
    says between which changed ones each lies. With `small_steps` an unchanged one may
    also be counted and be no number, which leaves more candidates. Where more changed
    than the optimizers hold, a change says nothing of a gradient: None.

    Raises UsageError where the file keeps no order.
    """
    if len({numbers for _, numbers in asked.ranks}) > 1 or asked.kind == "twice":
        return None
    model = survey.only_model(section)
    _refuse_disorder(survey.checkpoint, model)
    order, doubt = _ordered_parameters(survey, model, unchanged)
    # A gap is the place between two changed parameters, called by how many changed ones
    # stand before it.
    gaps: dict[int, list[int]] = {}
    changed = 0
    for index in order:
        if survey.tensors[index].name in unchanged:
            gaps.setdefault(changed, []).append(index)
        else:
            changed += 1
    # Of the parameters before a number, `before` are numbers too; the others changed.
    wanted: dict[int, list[int]] = {}
    for before, number in enumerate(sorted(asked.all)):
        wanted.setdefault(number - before, []).append(number)
    if changed > _most_with_gradients(survey, model):
        return None
    candidates = _candidates_in_gaps(gaps, wanted)
    doubts: list[str] = []
    least = most = changed + len(asked.all)
    if candidates is not None:
        # A bias in front of BatchNorm has a gradient of nearly zero: DDP counts it, and
        # it is no number.
        if not all_seen and sum(map(len, gaps.values())) > len(asked.all):
            doubts.append(_ALL_CHANGED)
    elif small_steps and not all_seen:
        is_same = [survey.tensors[index].name in unchanged for index in order]
        candidates, least, most = _candidates_with_small_steps(
            order, is_same, asked.all
        )
    if not candidates:
        return None
    if not _is_module(model) and may_be_sorted(_names_by_dtype(model)):
        doubts.insert(0, _NOT_SORTED)
    assumes = ", and ".join(doubts) or None
    is_sure = assumes is None and not doubt
    rows = [
        _numbered_row(survey, asked, number, candidates[number], {})
        for number in asked.all
    ]
    same = sum(survey.tensors[index].name in stepped for index in order)
    why = f"{counted_noun(changed - same, 'parameter')} changed since the older save, "
    if same:
        verb = be_verb(same)
        why += f"{same:,} {verb} the same although the optimizer stepped, "
    why += "and these did not"
    if doubt:
        why += f"; {doubt}"
    return Numbering(
        tuple(rows),
        model,
        least,
        "strong" if is_sure else "likely",
        why,
        assumes,
        most,
    )


def changes_without_step(
    survey: Survey, changed: int, section: str | None = None
) -> bool:
    """Tell whether more parameters changed than the optimizers can have changed.

    The program changed the others, as averages of the weights (EMA) are, so a change
    says nothing of a gradient.
    """
    return changed > _most_with_gradients(survey, survey.only_model(section))


def numbered_among(numbering: Numbering, unchanged: Set[str]) -> Numbering:
    """Return a numbering without the candidates that changed since an older save, where
    others are left.
    """
    rows = []
    for row in numbering.rows:
        kept = [
            place for place, entry in enumerate(row.entries) if entry.name in unchanged
        ]
        if kept:
            row = row._replace(
                entries=tuple(row.entries[place] for place in kept),
                had_gradient=tuple(row.had_gradient[place] for place in kept),
                by_order=tuple(row.by_order[place] for place in kept),
            )
        rows.append(row)
    return numbering._replace(rows=tuple(rows))


def _most_with_gradients(survey: Survey, model: Section) -> float:
    """Return how many parameters of a model had a gradient at most, by its optimizers:
    those with state, or all that they hold where the state does not tell.

    Infinity where no optimizer of the model is in the file.
    """
    mine = _uses_of_model(survey, model)
    if not mine:
        return inf
    most = 0
    for use in mine:
        numbers_of_use = _numbers_of(use, model)
        if says_gradients(use):
            numbers_of_use -= _stateless_numbers(use)
        most += len(numbers_of_use)
    return most


def _candidates_in_gaps(
    gaps: dict[int, list[int]], wanted: dict[int, list[int]]
) -> dict[int, tuple[int, ...]] | None:
    """Return the parameters that each number may be, where each unchanged one that DDP
    counts is a number, or None if they do not fit.
    """
    candidates: dict[int, tuple[int, ...]] = {}
    for gap, numbers in wanted.items():
        inside = gaps.get(gap, [])
        if len(inside) < len(numbers):
            return None
        # With more unchanged ones than numbers some are frozen, and nobody knows which.
        # The numbers keep the order: before the second one at least one stands.
        frozen = len(inside) - len(numbers)
        for position, number in enumerate(numbers):
            candidates[number] = tuple(inside[position : position + frozen + 1])
    return candidates


def _candidates_with_small_steps(
    order: Sequence[int], same: Sequence[bool], numbers: Sequence[int]
) -> tuple[dict[int, tuple[int, ...]], int, int]:
    """Return the parameters that each number may be, where an unchanged one may also be
    frozen or have had a step that was too small to see, and the least and the largest
    count of parameters. Where none fit, no number has any.

    DDP counts a changed one, and it is no number. It leaves a frozen one out. Bit N of
    `reached[position]` says that N parameters may be counted before that position, and
    of `ends[position]` that the numbers behind it fit from there.
    """
    asked = sum(1 << number for number in set(numbers))
    most = max(numbers)
    reached = [1]
    for is_same in same:
        counts = reached[-1]
        moved = (counts if is_same else counts & ~asked) << 1
        reached.append(moved | counts if is_same else moved)
    # All numbers are counted where more than the last one are.
    counted = reached[-1] >> (most + 1) << (most + 1)
    if not counted:
        return {}, 0, 0
    ends = [counted]
    for is_same in reversed(same):
        counts = ends[-1]
        moved = counts >> 1
        ends.append(moved | counts if is_same else moved & ~asked)
    ends.reverse()
    candidates: dict[int, tuple[int, ...]] = {}
    for number in numbers:
        candidates[number] = tuple(
            index
            for position, index in enumerate(order)
            if same[position]
            and reached[position] >> number & 1
            and ends[position + 1] >> (number + 1) & 1
        )
    least = (counted & -counted).bit_length() - 1
    return candidates, least, counted.bit_length() - 1


def _ordered_parameters(
    survey: Survey, model: Section, unchanged: Set[str]
) -> tuple[list[int], str]:
    """Return the indices of the parameters in order, and why they are a guess: "" where
    they are none.

    A buffer that is taken for a changed parameter would shift every number behind it,
    and so would the reverse. An optimizer that holds as many parameters rules both out.
    """
    count = _by_parameters(survey, model) or _by_names(survey, model)
    every: list[int] = []
    likely: list[int] = []
    for place in count.places:
        every += place.indices
        if not place.out:
            likely += place.indices
    known = [index for index in likely if survey.roles[index].role == "parameter"]
    held = sum(len(_numbers_of(use, model)) for use in _uses_of_model(survey, model))
    # As many in the optimizer as in one of these lists: then they are that list.
    for indices in (every, likely, known):
        if held == len(indices):
            return indices, ""
    # A guess that did not change shifts no number: only changed ones are counted.
    guessed = set(likely) - set(known)
    guessed_changed = any(
        survey.tensors[index].name not in unchanged for index in guessed
    )
    is_doubtful = likely != every or guessed_changed
    return likely, count.why if is_doubtful else ""


def numbered_by_names(
    survey: Survey, asked: Numbers, names: Sequence[str]
) -> Numbering | None:
    """The parameters of these numbers, by the names that DDP prints too, or None if
    each model of the file lacks some.

    Both lists hold the same parameters, so the numbers in their order are the names in
    the order of the model.
    """
    for model in survey.candidates:
        own = {
            unwrapped_name(name): index
            for name, index in zip(model.names(), model.indices, strict=True)
        }
        keys = set(map(unwrapped_name, names))
        indices = sorted(own[key] for key in keys if key in own)
        if len(indices) == len(names) == len(asked.all):
            had = _had_gradients(survey, model)
            rows = [
                _numbered_row(survey, asked, number, (index,), had)
                for number, index in zip(sorted(asked.all), indices, strict=True)
            ]
            counted = max(asked.all) + 1
            return Numbering(
                tuple(rows),
                model,
                model.tensors,
                "certain",
                "DDP prints the names",
                None,
                counted,
            )
    return None


def _numbered_row(
    survey: Survey,
    asked: Numbers,
    number: int,
    candidates: Sequence[int],
    had: dict[int, bool],
    by_order: Mapping[int, bool] = {},
) -> Numbered:
    entries = tuple(survey.tensors[index] for index in candidates)
    ranks = tuple(
        rank for rank, numbers in asked.ranks if rank is not None and number in numbers
    )
    return Numbered(
        number,
        entries,
        tuple(had.get(index) for index in candidates),
        ranks,
        tuple(by_order.get(index) for index in candidates),
    )


def count_unnamed(survey: Survey, found: Numbering) -> tuple[int, bool]:
    """Return how many parameters never had a gradient and are none of the numbers, all
    of which had one before; and whether DDP counts all that the optimizer holds.

    It is 0 where one of the numbers may be a parameter without a gradient.
    """
    for row in found.rows:
        had = zip(row.had_gradient, row.by_order, strict=True)
        if not row.entries or not all(one or other for one, other in had):
            return 0, False
    uses = [use for use in _uses_of_model(survey, found.section) if says_gradients(use)]
    held = sum(len(use.match.slots) for use in uses)
    return sum(len(use.never) for use in uses), found.least >= held


def _had_gradients(
    survey: Survey, model: Section, sure: Set[int] | None = None
) -> dict[int, bool]:
    """Tell of tensors whether they had a gradient in some step, where an optimizer says
    so.

    Where only its order says which tensors had none, all of them must be among `sure`,
    the tensors that have a number. Without `sure` the order is taken as the model's.
    """
    had: dict[int, bool] = {}
    for use in _uses_of_model(survey, model):
        if not says_gradients(use):
            continue
        stateless = _stateless_numbers(use)
        doubtful: Set[int] = frozenset()
        if sure is not None:
            doubtful = by_order(survey.checkpoint, use.match)
            questioned = doubtful & stateless
            if all(use.match.indices[number] in sure for number in questioned):
                doubtful = frozenset()  # the numbers say the same as the order
        for number, index in enumerate(use.match.indices):
            if index is not None and number not in doubtful:
                had[index] = number not in stateless
    return had


# --- the numbers and the file are one question ----------------------------------------


class _Place(NamedTuple):
    """A parameter in order: the tensors that it can be, and what it can be in the run.

    It is live, so that DDP counts it, after a gradient (`had`), before its first one
    (`never`), or nobody knows (`open`); or it is not counted: `frozen`, or no parameter
    at all (`out`). `outside` means live and in no optimizer.
    """

    indices: tuple[int, ...]
    had: bool = False
    never: bool = False
    open: bool = False
    outside: bool = False
    frozen: bool = False
    out: bool = False


class _Count(NamedTuple):
    """The parameters that DDP may count: `places` in order.

    An optimizer holds `held` parameters, of which `stateless` have no state: each that
    counts is among the numbers. Where each live parameter is in the optimizer, `slots`
    is sharper. `unordered` are the places if the order of the optimizer may be another
    one, or None if it does not matter.
    """

    places: Sequence[_Place]
    trust: Trust
    why: str
    held: int | None = None
    stateless: int = 0
    slots: Sequence[_Place] | None = None
    unordered: Sequence[_Place] | None = None
    ordered: str = _IN_ORDER
    """The assumption that the order of the optimizer is the model's."""

    def bounds(self, asked: Numbers, rules: _Rules) -> tuple[int, int]:
        """Return the least and the greatest number of parameters that DDP counts."""
        least, most = max(asked.all) + 1, len(self.places)
        if self.held is None:
            return least, most
        # DDP counts each parameter with state; of those without, each may be frozen.
        with_state = self.held - self.stateless
        least = max(least, with_state)
        # Those without state that count are numbers of every rank; with `never_only`
        # there are no others.
        of_ranks = [set(numbers) for _, numbers in asked.ranks]
        fit = len(set.intersection(*of_ranks))
        tells_all = self.stateless > 0 and rules.is_complete
        if tells_all and rules.never_only:
            least = max(least, with_state + fit)
        if not rules.in_optimizer:
            return least, most
        most = min(most, self.held)
        if tells_all:
            most = min(most, self.held - max(0, self.stateless - fit))
        return least, most


class _Solved(NamedTuple):
    """The tensors that each number can be, by number, and how many parameters DDP
    counts.
    """

    candidates: dict[int, tuple[int, ...]]
    least: int
    most: int


_ALL: dict[str, list[str]] = {"without": [], "line": [_NO_SEARCH], "some": [_COMPLETE]}
"""Kinds of numbers that may be all parameters without a gradient -> the assumption of
that.
"""


class _Rules(NamedTuple):
    """The assumptions about the run."""

    is_complete: bool
    in_optimizer: bool
    never_only: bool
    none_frozen: bool
    in_order: bool = True

    def text(self, asked: Numbers, count: _Count) -> str | None:
        """The assumptions that matter, as one condition."""
        assumed: list[str] = []
        if self.is_complete:
            assumed += _ALL[asked.kind]
            if not self.never_only:
                assumed.append(_NO_FIRST)
        if self.in_order and count.unordered is not None:
            assumed.append(count.ordered)
        if self.in_optimizer and any(place.outside for place in count.places):
            assumed.append(_IN_OPTIMIZER)
        if self.never_only:
            assumed.append(_EXACT if self.is_complete else _NEVER)
        if self.none_frozen:
            assumed.append(_NONE_FROZEN)
        return ", and ".join(assumed) or None


def _best_solution(count: _Count, asked: Numbers) -> tuple[_Solved | None, str | None]:
    """The answer that names most numbers, or lists the fewest candidates, with the
    fewest assumptions as text.
    """
    best: tuple[tuple[int, int], _Solved, str | None] | None = None
    for rules in _rules_to_try(count, asked):
        solved = _solve_numbers(count, asked, rules)
        if solved is None:
            continue
        # A number whose candidates are too many to list may be any place.
        sizes = [
            len(candidates) or len(count.places)
            for candidates in solved.candidates.values()
        ]
        score = sizes.count(1), -sum(sizes)
        # The rules come with the weakest first, so an equal score keeps those.
        if best is None or score > best[0]:
            best = score, solved, rules.text(asked, count)
        # Each number has one tensor: stronger assumptions cannot say more.
        if score[0] == len(sizes):
            break
    return (None, None) if best is None else best[1:]


def _rules_to_try(count: _Count, asked: Numbers) -> Iterator[_Rules]:
    """The assumptions that can matter, the weakest first."""
    tells = any(place.never for place in count.places) and asked.kind != "twice"
    may_be_frozen = any(place.open and place.frozen for place in count.places)
    complete = (False, True) if tells and asked.kind in _ALL else (False,)
    inside: tuple[bool, ...] = (count.held is not None,)
    if any(place.outside for place in count.places):
        inside = (False, True)
    orders = (True,) if count.unordered is None else (False, True)
    for never_only, none_frozen in ((False, False), (True, False), (False, True)):
        # An assumption about what the file does not have changes nothing.
        if never_only and not tells:
            continue
        if none_frozen and not may_be_frozen:
            continue
        for in_order, in_optimizer, is_complete in product(orders, inside, complete):
            # Never a gradient says something only of all numbers, or of those that
            # DDP's own search found.
            if not never_only or is_complete or asked.kind == "found":
                yield _Rules(
                    is_complete, in_optimizer, never_only, none_frozen, in_order
                )


def _solve_numbers(count: _Count, asked: Numbers, rules: _Rules) -> _Solved | None:
    """Every choice of parameters that do not count, as sets of how many do not before
    each place.

    A place that counts has the number `place - f`, where `f` places before it do not
    count. So a pass from the first place to the last one collects which `f` are
    possible before each, and a pass back drops those that lead to no fitting end. Sets
    are integers: bit `f` stands for `f` parameters that do not count. Returns None
    where nothing fits.
    """
    places = count.places
    if not rules.in_order and count.unordered is not None:
        places = count.unordered
    elif rules.in_optimizer and count.slots is not None:
        places = count.slots
    total = len(places)
    of_ranks = [set(numbers) for _, numbers in asked.ranks]
    of_every_rank = set.intersection(*of_ranks)
    if max(asked.all) >= total:
        return None
    # Bit `total - number`, so that a shift by the place gives the counts that make the
    # place that number.
    in_all = _set_of(total - number for number in of_every_rank)
    steps = [_rules_of_place(place, rules) for place in places]

    def counted(number: int, before: int) -> int:
        """The part of a set for which this place may count."""
        step = steps[number]
        if step.counts == "never":
            return 0
        asked_here = in_all >> (total - number)
        if step.counts == "if asked":
            return before & asked_here
        if step.counts == "if not asked":
            return before & ~asked_here
        return before

    def forward(number: int, before: int) -> int:
        """The set before the next place."""
        after = counted(number, before)
        return after | before << 1 if steps[number].may_stay_out else after

    # Every set is worked out twice, in blocks, so that a large model needs little
    # memory: all sets of 100,000 places would take 600 MB.
    size = isqrt(total) + 1
    kept = [1]  # before the first place none is left out: bit 0
    for first in range(0, total, size):
        now = kept[-1]
        for number in range(first, min(first + size, total)):
            now = forward(number, now)
        kept.append(now)
    low, high = count.bounds(asked, rules)
    ends = kept[-1] & _set_of(range(max(0, total - high), max(0, total - low + 1)))
    if not ends:
        return None
    wanted = _set_of(total - number for number in asked.all)
    most_each = max(2, _LISTED // len(asked.all))
    candidates: dict[int, dict[int, None]] = {number: {} for number in asked.all}
    after = ends
    for block in range((total - 1) // size, -1, -1):
        first = block * size
        befores = [kept[block]]
        for number in range(first, min(first + size, total) - 1):
            befores.append(forward(number, befores[-1]))
        for number in range(first + len(befores) - 1, first - 1, -1):
            here = counted(number, befores[number - first])
            for shift in _bit_numbers(here & after & (wanted >> (total - number))):
                asked_number = number - shift
                listed = candidates[asked_number]
                listed.update(dict.fromkeys(places[number].indices))
                # With too many candidates a number is looked for no further.
                if len(listed) > most_each:
                    wanted &= ~(1 << (total - asked_number))
            before = counted(number, after)
            after = before | after >> 1 if steps[number].may_stay_out else before
    found: dict[int, tuple[int, ...]] = {}
    for number, listed in candidates.items():
        found[number] = tuple(sorted(listed)) if len(listed) <= most_each else ()
    # The lowest bit of the ends is the fewest that do not count, the highest the most.
    fewest_out = (ends & -ends).bit_length() - 1
    most_out = ends.bit_length() - 1
    return _Solved(found, total - most_out, total - fewest_out)


class _Step(NamedTuple):
    """The rules of a place under some assumptions: when it may count, and whether it
    `may_stay_out` of the count.
    """

    counts: Literal["always", "if asked", "if not asked", "never"]
    may_stay_out: bool


def _rules_of_place(place: _Place, rules: _Rules) -> _Step:
    """Return when a parameter counts: in any case, only as a number of the error, only
    as none of them, or never.
    """
    is_frozen = place.frozen and not rules.none_frozen
    is_outside = place.outside and rules.in_optimizer
    may_stay_out = place.out or is_frozen or is_outside
    is_unbound = place.open or (place.outside and not rules.in_optimizer)
    # An error that lists all parameters without a gradient lists each that never had
    # one; one that had may be listed too, unless only the others are.
    never_is_asked = place.never and rules.is_complete
    had_may_be_asked = place.had and not rules.never_only
    if is_unbound or had_may_be_asked or (place.never and not never_is_asked):
        return _Step("always", may_stay_out)
    if place.had and never_is_asked:
        return _Step("always", may_stay_out)  # asked if never, not asked if had
    if never_is_asked:
        return _Step("if asked", may_stay_out)
    if place.had:
        return _Step("if not asked", may_stay_out)
    return _Step("never", may_stay_out)


def _set_of(numbers: Iterable[int]) -> int:
    """An integer with these bits."""
    # Setting bits of one large int would copy it each time.
    held = bytearray()
    for number in numbers:
        byte = number >> 3
        if byte >= len(held):
            held.extend(bytes(byte + 1 - len(held)))
        held[byte] |= 1 << (number & 7)
    return int.from_bytes(held, "little")


def _bit_numbers(value: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while value:
        lowest = value & -value
        yield lowest.bit_length() - 1
        value ^= lowest


# --- the tensors that may be parameters, and what the file says of them ---------------


def _numbered_by_record(
    survey: Survey, asked: Numbers, match: RecordMatch
) -> Numbering:
    """The parameters as a live model numbers them. Raises UsageError for one that it
    does not have.
    """
    checkpoint = survey.checkpoint
    record = match.record
    names = record.numbered
    had = _had_gradients(survey, match.section)
    rows = []
    for number in asked.all:
        _refuse_beyond(checkpoint, number, len(names))
        index = match.indices.get(names[number])
        if index is None:
            raise UsageError(
                f"number {number}: the file does not hold {show(names[number], 80)}",
                path=checkpoint.path,
            )
        rows.append(_numbered_row(survey, asked, number, (index,), had))
    why = _reason_of_record(record)
    if record.source == "snapshot":
        return Numbering(
            tuple(rows), match.section, len(names), "certain", why, None, len(names)
        )
    assumes = _assumption_of_model(survey, match, asked, had)
    if assumes is None and not _is_confirmed(survey, match, asked, had):
        frozen = len(record.parameters) - len(names)
        why += f", if the run froze {'the same' if frozen else 'nothing either'}"
    return Numbering(
        tuple(rows),
        match.section,
        len(names),
        "certain" if assumes is None else "likely",
        why,
        assumes,
        len(names),
    )


def _reason_of_record(record: ModelRecord) -> str:
    """Say which live model gives the numbers, and how many parameters it leaves out."""
    why = "the model that --model builds"
    if record.source == "snapshot":
        why = "recorded by ckpt.snapshot"
    if record.world_size > 1:
        why += f" on rank {record.rank} of {record.world_size}"
    frozen = len(record.parameters) - len(record.numbered)
    if frozen:
        why += f", without {counted_noun(frozen, 'frozen or ignored parameter')}"
    return why


def _assumption_of_model(
    survey: Survey, match: RecordMatch, asked: Numbers, had: dict[int, bool]
) -> str | None:
    """Return the condition for the numbers of a model that was built, where the file
    speaks against it, or None.
    """
    record = match.record
    names = record.numbered
    held = _held_counts(survey)
    # Scripts pass all parameters, or those that require a gradient.
    if held and held.isdisjoint((len(names), len(record.parameters))):
        return (
            "the factory freezes what the run froze: the optimizer holds "
            f"{min(held):,} parameters, this model {len(names):,}"
        )
    never = _never_beside(match, asked, had)
    if never:
        count = counted_noun(len(never), "other parameter")
        return (
            f"the factory freezes what the run froze: {count} never had a gradient, "
            "and DDP does not name them"
        )
    return None


def _never_beside(
    match: RecordMatch, asked: Numbers, had: dict[int, bool]
) -> list[int]:
    """Return the tensors that a built model trains, that never had a gradient, and that
    are not among the numbers.

    DDP names every parameter without a gradient that it counts. So the run froze these,
    where all its numbers are known, or where another one of them had a gradient.
    """
    if asked.kind == "twice":
        return []
    names = match.record.numbered
    indices = [match.indices.get(name) for name in names]
    wanted = {indices[number] for number in asked.all}
    is_complete = asked.kind in ("without", "line")
    had_earlier = any(had.get(index) for index in wanted if index is not None)
    if not is_complete and not had_earlier:
        return []
    return [
        index
        for index in indices
        if index is not None and index not in wanted and had.get(index) is False
    ]


def _is_confirmed(
    survey: Survey, match: RecordMatch, asked: Numbers, had: dict[int, bool]
) -> bool:
    """Tell whether the file or the numbers show that the run trained what a built
    model trains.
    """
    record = match.record
    names = record.numbered
    if len(names) < len(record.parameters):
        return _held_counts(survey) == {len(names)}
    if max(asked.all, default=-1) == len(names) - 1:
        return True  # the last of all: none before it was frozen
    indices = [match.indices.get(name) for name in names]
    wanted = {indices[number] for number in asked.all}
    return all(
        index is not None and bool(had.get(index))
        for index in indices
        if index not in wanted
    )


def _held_counts(survey: Survey) -> set[int]:
    """Return how many parameters each optimizer of the file holds."""
    held: set[int] = set()
    for section in survey.sections:
        facts = _optimizer_of(section)
        if facts is not None:
            held.add(facts.parameters)
    return held


def _trains_more(survey: Survey, match: RecordMatch, asked: Numbers) -> bool:
    """Tell whether a built model trains more parameters than the run did: each
    optimizer holds fewer, or some that DDP does not name never had a gradient.
    """
    held = _held_counts(survey)
    names = match.record.numbered
    if held and max(held) < len(names):
        return True
    # An optimizer that holds what the model trains, and not what it freezes: the run
    # froze the same.
    if held == {len(names)} and len(names) < len(match.record.parameters):
        return False
    return bool(_never_beside(match, asked, _had_gradients(survey, match.section)))


def _optimizer_of(section: Section) -> Optimizer | None:
    """The content of the only optimizer of torch in a section that is one, or None."""
    return optimizer_facts(section) if section.kind == "optimizer" else None


def _refuse_beyond(
    checkpoint: Checkpoint, number: int, count: int, *, is_known: bool = True
) -> None:
    """Raise UsageError for a number that no parameter has. Where the count is not
    `is_known`, some of its tensors may be buffers, or no parameters that DDP counts.
    """
    if number < count:
        return
    there = "it has no parameters"
    if count:
        most = "" if is_known else "at most "
        there = f"it has {most}{counted_noun(count, 'parameter')}, 0 to {count - 1}"
    raise UsageError(
        f"no parameter has the number {number}: {there}", path=checkpoint.path
    )


def _refuse_disorder(checkpoint: Checkpoint, model: Section) -> None:
    """Raise UsageError where the tensors do not stand in the order of a model."""
    why: str | None = None
    if model.kind not in ("model", "ema", "other"):
        why = f"{model.name} is not a model"
    elif not checkpoint.traits.keeps_order:
        why = f"{checkpoint.traits.label} keeps no order"
    elif not _is_module(model):
        why = disorder_reason(model.names(), _names_by_dtype(model))
    if why is None:
        return
    hint = "use the checkpoint that training saved"
    # The folder itself is all that training saved, so only a record can help there.
    if checkpoint.members or checkpoint.traits.is_folder:
        hint = "ckpt.snapshot keeps it"
    raise UsageError(f"no number has a name: {why}", path=checkpoint.path, hint=hint)


def _is_module(model: Section) -> bool:
    """Tell whether modules list all of its tensors, so that names say nothing of their
    order.

    A dict of Parameters says what each is, and not the order. Tensors that no module
    registers have no number.
    """
    return all(
        entry.kind and entry.source != "Parameter"
        for entry in model.entries
        if entry.registered
    )


def _names_by_dtype(model: Section) -> list[list[str]]:
    """The names of each dtype."""
    blocks: dict[str, list[str]] = {}
    for name, entry in zip(model.names(), model.entries, strict=True):
        blocks.setdefault(entry.tensor.dtype.name, []).append(name)
    return list(blocks.values())


def _parameter_order(survey: Survey, model: Section) -> list[int]:
    """The indices of what may be a parameter, in order."""

    def may_be_parameter(index: int, entry: Entry) -> bool:
        role = survey.roles[index]
        return entry.registered and (role.role != "buffer" or role.trust == "likely")

    rows = zip(model.indices, model.entries, strict=True)
    return each_once(row for row in rows if may_be_parameter(*row))


def _by_parameters(survey: Survey, model: Section) -> _Count | None:
    """Return the count by the file itself: its modules and Parameters say which require
    a gradient.
    """
    indices = [
        index
        for index in _parameter_order(survey, model)
        if survey.roles[index].role != "buffer"
    ]
    tensors = [survey.tensors[index].tensor for index in indices]
    if not indices or not all(tensor.is_parameter for tensor in tensors):
        return None
    # DDP leaves out what is frozen; a file that does not record it freezes nothing.
    counted = [
        index
        for index, tensor in zip(indices, tensors, strict=True)
        if tensor.requires_grad is not False
    ]
    why = "each parameter was saved as a Parameter"
    if _is_module(model):
        why = "the module lists its parameters"
    return _Count([_Place((index,), open=True) for index in counted], "certain", why)


def _by_names(survey: Survey, model: Section) -> _Count:
    """Return the count by names and dtypes, for a file without an optimizer of the
    model.
    """
    places: list[_Place] = []
    for index in _parameter_order(survey, model):
        is_doubtful = survey.roles[index].role == "buffer"
        places.append(
            _Place((index,), open=True, frozen=not is_doubtful, out=is_doubtful)
        )
    why = "every tensor that is not known as a buffer counts as a parameter"
    if any(place.out for place in places):
        why = "some buffers are known only by their names"
    return _Count(places, "likely", why)


def _by_optimizer(survey: Survey, model: Section) -> _Count | None:
    """Return the count by the optimizers of a model: how many parameters they hold, and
    which had a gradient.

    A parameter without state may be frozen or unused. DDP counts only the unused one.
    """
    mine = _uses_of_model(survey, model)
    order = _parameter_order(survey, model)
    numbers = [_numbers_of(use, model) for use in mine]
    held = sum(map(len, numbers))
    # With more than the model has, it is the optimizer of another one too.
    if not mine or held > len(order):
        return None
    if any(_fits_no_model(use) for use in mine):
        why = "the parameters of the optimizer do not fit the order of the model"
        open_places = [_Place((index,), open=True, frozen=True) for index in order]
        return _Count(open_places, "likely", why)
    possible = _possible_states(mine)
    if possible is not None and len(set(order) & possible.keys()) < held:
        possible = None  # two optimizers that may hold the same parameters
    is_exact = held == len(order)
    # SGD without momentum keeps no state, with a gradient or without one.
    telling = all(says_gradients(use) for use in mine)
    stateless: list[set[int]] = [set() for _ in mine]
    if telling:
        stateless = [
            _stateless_numbers(use) & numbers_of_use
            for use, numbers_of_use in zip(mine, numbers, strict=True)
        ]
    without = sum(map(len, stateless))
    inside: set[int | None] = set()
    for use in mine:
        inside.update(use.match.indices)
    places = [
        _place_of_tensor(index, possible, is_exact or index in inside, telling)
        for index in order
    ]
    why = f"the optimizer holds {held} of the model's {len(order)} parameters"
    # A name such as `mean` does not say whether it is a parameter.
    if any(survey.roles[index].role != "parameter" for index in order):
        why = (
            f"the optimizer holds {held} of {len(order)} tensors of the model that may "
            "be parameters"
        )
    if is_exact:
        why = f"the optimizer holds as many parameters as the model ({held})"
    if without:
        why += (
            f", and {without} of them had no gradient yet; DDP does not count those "
            "that are frozen"
        )
    count = _Count(places, "strong", why, held, without if telling else held)
    if not is_exact:
        count = count._replace(slots=_places_of_slots(mine, telling))
    is_ordered = without > 0 and any(
        _is_ordered(survey, use, rows)
        for use, rows in zip(mine, stateless, strict=True)
    )
    if is_ordered:
        unordered = [_without_order(place) for place in places]
        count = count._replace(unordered=unordered)
        if any(use.match.groups > 1 for use in mine):
            count = count._replace(ordered=_IN_ORDER_OF_GROUPS)
    return count


def _fits_no_model(use: GradientUse) -> bool:
    """Tell whether an optimizer has state of shapes that no model has in its order."""
    return not use.match.models and any(slot.shape for slot in use.match.slots)


def _is_ordered(survey: Survey, use: GradientUse, stateless: set[int]) -> bool:
    """Tell whether only the order of an optimizer says which tensors have no state."""
    match = use.match
    if match.by_name:
        return False
    ordered = by_order(survey.checkpoint, match)
    if match.exact:
        return bool(ordered & stateless)
    return bool(ordered) or None in match.indices


def _without_order(place: _Place) -> _Place:
    """A place where nobody knows which parameter of the optimizer it is."""
    return place._replace(had=False, never=False, open=True, frozen=True)


def _numbers_of(use: GradientUse, model: Section) -> set[int]:
    """The numbers of the parameters of an optimizer that belong to a model: all of
    them, but for a chain of models.
    """
    match = use.match
    if not match.by_name and len(match.models) < 2:
        return set(range(len(match.slots)))
    numbers: set[int] = set()
    for number in range(len(match.indices)):
        possible = _possible_indices(match, number)
        if any(tensor_index in model.indices for tensor_index in possible):
            numbers.add(number)
    return numbers


def _place_of_tensor(
    index: int, possible: dict[int, set[bool]] | None, is_inside: bool, telling: bool
) -> _Place:
    """A tensor by what the optimizers hold: `possible` says of tensors whether they may
    have state, or not.
    """
    states = {True, False}
    if possible is not None:
        states = possible.get(index, set())
    is_outside = not is_inside
    if not telling:
        return _Place(
            (index,),
            open=bool(states),
            frozen=bool(states),
            outside=is_outside,
            out=is_outside,
        )
    return _Place(
        (index,),
        had=True in states,
        never=False in states,
        frozen=False in states,
        outside=is_outside,
        out=is_outside,
    )


def _places_of_slots(uses: Sequence[GradientUse], telling: bool) -> list[_Place] | None:
    """The parameters of the only optimizer in its own order, which is the model's where
    it has one group.
    """
    if len(uses) != 1:
        return None
    use = uses[0]
    match = use.match
    # Groups put parameters into another order than the model's, and names into none.
    if match.by_name or match.groups != 1 or len(match.models) != 1:
        return None
    stateless = _stateless_numbers(use)
    places = []
    for number in range(len(match.indices)):
        indices = _possible_indices(match, number)
        if not indices:
            return None
        is_never = number in stateless
        if telling:
            place = _Place(indices, had=not is_never, never=is_never, frozen=is_never)
        else:
            place = _Place(indices, open=True, frozen=True)
        places.append(place)
    return places


def _uses_of_model(survey: Survey, model: Section) -> list[GradientUse]:
    """Return the optimizers of a model. One that fits no order belongs to the only
    model.
    """
    mine = [
        use
        for use in survey.uses
        if any(part.path == model.path for part in use.match.models)
    ]
    if mine:
        return mine
    paths = [section.path for section in survey.models]
    is_alone = len(survey.uses) == 1 and paths == [model.path]
    return list(survey.uses) if is_alone else []


def _stateless_numbers(use: GradientUse) -> set[int]:
    """The numbers of the parameters that may never have had a gradient."""
    numbers = set(use.never)
    for number, slot in enumerate(use.match.slots):
        if not slot.has_state:
            numbers.add(number)
    return numbers


def _possible_indices(match: Match, number: int) -> tuple[int, ...]:
    """The indices of the tensors that a parameter of an optimizer can be; none where
    that is unknown.
    """
    index = match.indices[number]
    if index is not None:
        return (index,)
    return match.candidates[number] if match.candidates else ()


def _possible_states(uses: Sequence[GradientUse]) -> dict[int, set[bool]] | None:
    """Return for each tensor whether a parameter of the optimizers that it can be has
    state, or None if that is unknown.
    """
    possible: dict[int, set[bool]] = {}
    for use in uses:
        stateless = _stateless_numbers(use)
        for number in range(len(use.match.indices)):
            indices = _possible_indices(use.match, number)
            if not indices and not use.match.by_name:
                return None
            for possible_index in indices:
                possible.setdefault(possible_index, set()).add(number not in stateless)
    return possible
