"""Parameters without a gradient, as findings: from an optimizer's state, a snapshot, or
a live model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from ckpt.evidence.gradients import GradientUse, known_indices, without_gradient
from ckpt.evidence.matching import by_order
from ckpt.evidence.record import LooseModule
from ckpt.evidence.roles import RecordMatch
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.findings import Finding, Level
from ckpt.model.text import (
    and_more,
    be_verb,
    counted_noun,
    show,
    show_folded_names,
    show_names,
)

UNUSED = "Not used in forward, outside the loss, or detached."
"""The reason why a parameter gets no gradient, as far as files can tell."""
STOPS = "DDP stops on this."
UNLESS_FROZEN = 'Unless frozen, DDP stops: "Expected to have finished reduction".'
"""The consequence if files cannot tell unused parameters from frozen ones."""


def unused_findings(survey: Survey) -> Iterable[Finding]:
    """Report the parameters that never, or not always, had a gradient, as far as the
    file knows.
    """
    none: tuple[int, ...] = ()
    if survey.record is not None:
        none = without_gradient(survey.record)
        yield from _recorded_findings(survey, survey.record, none)
    mixed = survey.mixed
    for use in survey.uses:
        yield from _by_state(
            survey, use, none, frozenset() if mixed is None else mixed.steps
        )
    if mixed is not None:
        yield Finding("mixed-steps", mixed.text)


def _recorded_findings(
    survey: Survey, match: RecordMatch, none: tuple[int, ...]
) -> Iterable[Finding]:
    """Parameters that had no gradient when a snapshot was taken."""
    # The tensors that had a gradient in some step, by the state of their optimizers.
    held: set[int] = set()
    for use in survey.uses:
        if not use.steps and not use.never:
            continue
        for number, index in enumerate(use.match.indices):
            if number not in use.never and index is not None:
                held.add(index)
    earlier = [index for index in none if index in held]
    never = [index for index in none if index not in held]
    if never:
        text, names = _tensors_text(survey, match.section, never)
        # The tensors that no optimizer has seen a gradient of.
        before: set[int | None] = set()
        for use in survey.uses:
            before.update(use.match.indices[number] for number in use.never)
        also = ", and never before" if before.issuperset(never) else ""
        yield Finding(
            "unused",
            f"{text} had no gradient when the snapshot was taken{also}.",
            names,
            raised="warning",
            consequence=f"{UNUSED} {STOPS}",
        )
    zero = [
        match.indices[name]
        for name in match.record.numbered
        if name in match.indices and match.record.tensors[name].gradient == 0
    ]
    if zero:
        text, names = _tensors_text(survey, match.section, zero)
        message = f"{text} had a gradient of zero when the snapshot was taken."
        yield Finding("zero-gradient", message, names, consequence=_NO_STOP)
    if earlier:
        text, names = _tensors_text(survey, match.section, earlier)
        yield Finding(
            "sometimes-unused",
            (
                f"{text} had no gradient when the snapshot was taken, but had one in "
                "an earlier step."
            ),
            names,
        )


def _by_state(
    survey: Survey, use: GradientUse, none: tuple[int, ...], mixed: frozenset[float]
) -> Iterable[Finding]:
    """Parameters for which an optimizer holds no state while it does for others, or
    whose counters are behind.

    A counter at one of the steps `mixed` says something of its file, and not of its
    parameter.
    """
    match = survey.record
    recorded = match.known() if match is not None else {}
    # A live model says which parameters are frozen, so these are not reported.
    frozen = {index for index, row in recorded.items() if not row.requires_grad}
    skip = frozen.union(none)
    never = [number for number in use.never if use.match.indices[number] not in skip]
    behind = [
        row
        for row in use.lagging
        if use.match.indices[row[0]] not in skip and row[1] not in mixed
    ]
    # (number of the parameter, its counter): behind, with moments that are not zero.
    lagging = [row for row in behind if row[0] not in use.zero]
    zero = [row for row in behind if row[0] in use.zero]
    name = use.match.optimizer.name
    which = "the optimizer" if name in ("", "optimizer") else show(name, 60)
    if never and not (match is not None and match.record.has_gradients):
        text, names = _parameters_text(survey, use, never)
        level: Level | None = None
        message = f"{text} never had a gradient in {which}."
        if match is None:
            follows = UNLESS_FROZEN
            # Names by the model's order alone hold only if the optimizer got that
            # order.
            if not by_order(survey.checkpoint, use.match).isdisjoint(never):
                ordered = f"{which} got model.parameters()"
                if use.match.groups > 1:
                    ordered = (
                        f"each group of {which} has its parameters in the order of "
                        "the model"
                    )
                message = f"If {ordered}, {text} never had a gradient."
        else:
            follows, level = f"{UNUSED} {STOPS}", "warning"
        yield Finding("unused", message, names, raised=level, consequence=follows)
    # A resume makes state with a counter of 1; a counter of more was made by steps.
    yield from _zero_findings(survey, use, [row for row in zero if row[1] > 1], which)
    resumed = [row for row in zero if row[1] <= 1]
    if resumed:
        text, names = _parameters_text(survey, use, [number for number, _ in resumed])
        message = (
            f"{text} had no gradient but zeros in {which}: "
            f"{_steps_text(resumed, use)}, and all moments are zero."
        )
        follows = f"A resume makes such state without a gradient. {UNLESS_FROZEN}"
        yield Finding("unused", message, names, consequence=follows)
    if lagging:
        text, names = _parameters_text(survey, use, [number for number, _ in lagging])
        reason = (
            f"Sometimes there was no gradient, {which} got them later, or their state "
            "began anew."
        )
        yield Finding(
            "sometimes-unused",
            f"{text} took {_steps_text(lagging, use)}.",
            names,
            consequence=reason,
        )


_NO_STOP = (
    "DDP does not stop on a gradient of zero. Its output is multiplied by zero, or "
    "masked."
)


def _zero_findings(
    survey: Survey, use: GradientUse, rows: Sequence[tuple[int, float]], which: str
) -> Iterable[Finding]:
    """Parameters whose moments are zero after several steps: each of their gradients
    was zero.
    """
    if rows:
        text, names = _parameters_text(survey, use, [number for number, _ in rows])
        message = (
            f"{text} had gradients of zero only in {which}: {_steps_text(rows, use)}, "
            "and all moments are zero."
        )
        yield Finding("zero-gradient", message, names, consequence=_NO_STOP)


def _steps_text(rows: Sequence[tuple[int, float]], use: GradientUse) -> str:
    """`3 of 5 steps`, or a range of them."""
    # Parameters may have been left out of different numbers of steps.
    steps = sorted({step for _, step in rows})
    took = f"{steps[0]:,.0f}"
    if len(steps) > 1:
        took += f" to {steps[-1]:,.0f}"
    return f"{took} of {use.steps:,.0f} steps"


def _parameters_text(
    survey: Survey, use: GradientUse, numbers: Sequence[int]
) -> tuple[str, tuple[str, ...]]:
    """Parameters of an optimizer as text, by their names where these are known, and all
    of the names.
    """
    # The indices of tensors that are sure, and how many parameters have none.
    indices, unknown = known_indices(use, numbers)
    named = [
        str(slot.name)
        for slot in map(use.match.slots.__getitem__, numbers)
        if slot.name
    ]
    # The model is not in this file.
    if not use.match.models and len(named) == len(numbers):
        return _names_with_count(named), ()
    other = ""
    if unknown:
        unnamed = [number for number in numbers if use.match.indices[number] is None]
        among = _candidate_indices(use, unnamed)
        # The order of the two does not matter.
        if len(among) == len(unnamed) and not among.intersection(indices):
            return _tensors_text(survey, use.match.model, sorted(among.union(indices)))
        other = (
            f"{counted_noun(unknown, 'unknown parameter')} "
            f"({_candidates_text(survey, use, unnamed)})"
        )
    return _tensors_text(survey, use.match.model, indices, other)


def _candidates_text(survey: Survey, use: GradientUse, numbers: Sequence[int]) -> str:
    """Name the tensors that unknown parameters can be, else their numbers in the
    optimizer.
    """
    match = use.match
    indices = sorted(_candidate_indices(use, numbers))
    if not match.models or not indices:
        which = "number" if len(numbers) == 1 else "numbers"
        return (
            f"{which} {and_more([str(number) for number in numbers], 8)} in the "
            "optimizer"
        )
    names = [survey.tensors[index].name for index in indices]
    if match.model:
        names = [match.model.relative(name) for name in names]
    count = "one" if len(numbers) == 1 else str(len(numbers))
    return f"{count} of {show_folded_names(names)}"


def _candidate_indices(use: GradientUse, numbers: Sequence[int]) -> set[int]:
    """The indices of the tensors that some parameters can be; empty where the file does
    not say it of each.
    """
    match = use.match
    if not match.candidates:
        return set()
    possible = [match.candidates[number] for number in numbers]
    return set(chain.from_iterable(possible)) if all(possible) else set()


def _tensors_text(
    survey: Survey, model: Section | None, indices: Sequence[int], other: str = ""
) -> tuple[str, tuple[str, ...]]:
    """`fc3.{weight,bias} (2 parameters, 330 elements)`, with what cannot be named, and
    all of the names.

    Where there are several models the text names the one that holds them.
    """
    names = tuple(survey.tensors[index].name for index in indices)
    inside = model if len(survey.models) == 1 else None
    shown = [inside.relative(name) if inside else name for name in names]
    if not other:
        return _names_with_count(shown) if names else "", names
    if not names:
        return other, names
    # The count stands behind the names that it counts: the others have their own.
    return f"{_names_with_count(shown)} and {other}", names


def _names_with_count(names: Sequence[str]) -> str:
    """Return names of parameters, and how many they are: `fc.{weight,bias}
    (2 parameters)`. `layers.0-3.bias ×4` says that already.
    """
    text = show_folded_names(names)
    if text.endswith(f" ×{len(names):,}"):
        return text
    return f"{text} ({counted_noun(len(names), 'parameter')})"


def loose_findings(rows: Sequence[LooseModule]) -> Iterable[Finding]:
    """One finding for what nothing registers, one for what is registered elsewhere."""
    lost = [row for row in rows if row.registered is None]
    if lost:
        kinds = {row.kind for row in lost}
        noun = "object"
        instead = "nn.ModuleList or nn.ModuleDict"
        if kinds == {"module"}:
            noun = "module"
        elif kinds == {"parameter"}:
            noun = "Parameter"
            instead = "nn.ParameterList"
        count = counted_noun(sum(row.parameters for row in lost), "parameter")
        objects = counted_noun(len(lost), noun)
        them = "it" if len(lost) == 1 else "them"
        yield Finding(
            "list-modules",
            f"{_places_text(lost)} {be_verb(lost)} not registered "
            f"({objects}, {count}).",
            where=tuple(row.place for row in lost),
            consequence=(
                f"state_dict, .to(), the optimizer and DataParallel miss {them}. Use "
                f"{instead}."
            ),
        )
    again = [row for row in rows if row.registered is not None]
    if again:
        yield Finding(
            "list-modules",
            f"{_places_text(again)} {be_verb(again)} registered as "
            f"{_registered_text(again)} too.",
            where=tuple(row.place for row in again),
            consequence=(
                "Replicas of DataParallel fail: the list holds the modules of device 0."
            ),
        )


def _registered_text(rows: Sequence[LooseModule]) -> str:
    return show_names([str(row.registered) for row in rows], limit=60)


def _places_text(rows: Sequence[LooseModule]) -> str:
    """`cells[0..3] (Linear)`: places, numbered runs in one, with the classes."""
    runs: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        match = re.fullmatch(r"(.*)\[(\d+)\]", row.place)
        cls = row.cls.rpartition(".")[2]
        if match is None:
            runs[row.place, cls] = []
        else:
            runs.setdefault((match[1], cls), []).append(int(match[2]))
    texts = []
    for (place, cls), numbers in runs.items():
        run = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
        inside = f"{numbers[0]}..{numbers[-1]}" if run else ",".join(map(str, numbers))
        texts.append(
            f"{show(place, 80)}{f'[{inside}]' if numbers else ''} ({show(cls, 40)})"
        )
    return and_more(texts, 4)
