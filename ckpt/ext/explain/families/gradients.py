"""Errors of DistributedDataParallel about gradients: parameters that got none, and
parameters that got two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from ckpt.commands.inspect.unused import UNUSED
from ckpt.evidence.numbering import (
    Numbering,
    Numbers,
    changes_without_step,
    count_unnamed,
    numbered_among,
    numbered_by_change,
    numbered_by_names,
    numbered_parameters,
    pasted_numbers,
)
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Older,
    Statement,
    counted_parameters,
    finding_statements,
)
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.message import MOST_NAMES, Message
from ckpt.model.text import be_verb, counted_noun, pasted_path, show

_NAMES = re.compile(
    r"Parameters which did not receive grad for rank (\d{1,9}): ([^\n]+)"
)
_TWICE_NAME = re.compile(
    r"Parameter at index \d{1,12} with name (\S{1,2000}) has been marked as ready twice"
)


def _take_numbers(message: Message, text: str, start: int) -> Message:
    """The numbers of all ranks, and the names that DDP prints itself with
    TORCH_DISTRIBUTED_DEBUG.
    """
    del start
    # Each rank prints its own list, and several may have the same name.
    names = dict.fromkeys(
        name for row in _NAMES.finditer(text) for name in row[2].split(", ")
    )
    names.update(dict.fromkeys(row[1] for row in _TWICE_NAME.finditer(text)))
    return message._replace(
        numbers=pasted_numbers(text), names=tuple(names)[:MOST_NAMES]
    )


def _answer_gradients(message: Message, case: Case) -> Answer:
    survey = case.survey
    rows: list[Statement] = []
    numbers = message.numbers
    names = _own_names(message.names, survey)
    if names:
        rows.append(Statement("DDP names the parameters itself.", tuple(names)))
    if names and numbers is None:
        rows += _state_statements(names, survey)
    if numbers is None:
        if not names:
            rows.append(
                Statement(
                    "The text has no numbers of parameters. This is what the "
                    "checkpoint says:"
                )
            )
            # Without numbers only the findings tell of unused parameters.
            for code in ("unused", "sometimes-unused"):
                found = list(finding_statements(case.found(code)))
                rows += found or [
                    Statement(f"This file does not have the finding {code}.")
                ]
        return Answer(survey.path, tuple(rows))
    # With TORCH_DISTRIBUTED_DEBUG DDP prints names too, in the order of the numbers.
    certain = (
        numbered_by_names(survey, numbers, message.names)
        if case.section is None
        else None
    )
    # The numbering lists these names itself.
    if certain is not None:
        rows.clear()
    # The code of the model (--model) comes next, where it is certain.
    if certain is None and survey.record is not None:
        by_model = numbered_parameters(survey, numbers, case.section)
        certain = by_model if by_model.trust == "certain" else None
    # An older save tells which parameters did not change, if it tells of all of them.
    by_change = None
    if certain is None and case.older is not None and not case.older.untold:
        by_change = _numbered_by_older(numbers, case, case.older)
    found_numbers = certain or by_change
    if found_numbers is None:
        found_numbers = numbered_parameters(survey, numbers, case.section)
        if case.older is not None and _has_other_changes(case):
            unchanged = set(case.older.unchanged)
            found_numbers = numbered_among(found_numbers, unchanged)
    rows += _reason_statements(numbers, found_numbers, survey)
    if case.older is not None:
        misfit = None
        if certain is None and by_change is None:
            misfit = _misfit_reason(case, case.older, found_numbers)
        rows += _unchanged_statements(case.older, misfit)
    # A certain numbering with one name for each number needs no further way.
    if found_numbers.trust == "likely" or any(
        len(row.entries) != 1 for row in found_numbers.rows
    ):
        is_guess = found_numbers.trust == "likely"
        rows += _certain_ways(
            numbers, case, is_guess=is_guess, has_older=case.older is not None
        )
    return Answer(survey.path, tuple(rows), numbering=found_numbers)


def _numbered_by_older(numbers: Numbers, case: Case, older: Older) -> Numbering | None:
    """Return the parameters of the numbers by what an older save says of gradients, or
    None where it says nothing of them.
    """
    by_change = partial(
        numbered_by_change,
        case.survey,
        numbers,
        set(older.unchanged),
        case.section,
        set(older.stepped),
        all_seen=older.is_sure,
    )
    found = by_change()
    if found is not None or not older.changed:
        return found
    alone = numbered_parameters(case.survey, numbers, case.section)
    named = {entry.name for row in alone.rows for entry in row.entries}
    # Names by the file alone may be wrong: a parameter that changed had a gradient.
    return by_change(small_steps=True) if named - set(older.unchanged) else None


def _state_statements(names: Sequence[str], survey: Survey) -> Iterator[Statement]:
    """Say which of some parameters have a state in the optimizer of the file, which
    tells whether they ever had a gradient.
    """
    stepped: dict[str, bool] = {}
    for match in survey.matches:
        for slot, index in zip(match.slots, match.indices, strict=True):
            if index is not None and slot.keeps_state:
                stepped[survey.checkpoint.tensors[index].name] = slot.has_state
    known = [name for name in names if name in stepped]
    had = tuple(name for name in known if stepped[name])
    # With names that no optimizer of the file has, nothing is known of the others.
    if not known or len(known) < len(names):
        return
    if len(had) == len(names):
        yield Statement(
            "The optimizer of this file has a state for each of them, so they had a "
            "gradient in an earlier step: forward did not take this branch in the step "
            "that stopped. Layers that are dropped at random (layerdrop) and branches "
            "that depend on the data do so. Set find_unused_parameters=True, or let "
            "each step use them."
        )
    elif had:
        yield Statement(
            f"The optimizer of this file has a state for {len(had):,} of them, which "
            "had a gradient in an earlier step. The others never had one.",
            tuple(name for name in names if not stepped[name]),
        )
    else:
        yield Statement(f"Never a gradient: {UNUSED[:1].lower()}{UNUSED[1:]}")


def _unchanged_statements(older: Older, misfit: str | None) -> Iterator[Statement]:
    """The parameters that did not change since an older save, and those that are the
    same although they had a step. `misfit` says why the numbers of DDP do not fit them.
    """
    since = f"since {show(older.path, 80)}"
    if older.untold:
        yield _untold_statement(older)
    if older.unchanged:
        why = (
            "they had no gradient, or are frozen"
            if older.is_sure
            else "they had no gradient, are frozen, or their step was too small"
        )
        unsure = len(older.unsure.intersection(older.unchanged))
        counted = counted_parameters(len(older.unchanged), unsure)
        text = f"{counted} did not change {since}: {why}."
        if misfit is not None:
            text += f" {misfit}"
        yield Statement(text, older.unchanged)
    elif older.stepped:
        yield Statement(f"No parameter lacked a gradient {since}.")
    elif not older.untold:
        yield Statement(
            f"Every parameter changed {since}, so each of them had a gradient in "
            "between."
        )
    if older.stepped:
        verb = be_verb(older.stepped)
        unsure = len(older.unsure.intersection(older.stepped))
        count = counted_parameters(len(older.stepped), unsure)
        text = (
            f"{count} {verb} the same although the optimizer stepped: a zero gradient, "
            "lr 0, or too small a step."
        )
        yield Statement(text, older.stepped)


def _untold_statement(older: Older) -> Statement:
    """Say how many parameters the older save tells nothing about, and which."""
    unsure = len(older.unsure.intersection(older.untold))
    count = counted_parameters(len(older.untold), unsure)
    return Statement(
        f"{show(older.path, 80)} tells nothing about {count}: not there, of another "
        "shape or dtype, or not readable. Is it a save of the run that stopped?",
        older.untold,
    )


def _has_other_changes(case: Case) -> bool:
    """Tell whether the program changed parameters since the older save without a step
    of the optimizer.
    """
    older = case.older
    if older is None or older.untold:
        return False
    return changes_without_step(case.survey, older.changed, case.section)


def _misfit_reason(case: Case, older: Older, found: Numbering) -> str:
    """The reason why the numbers of DDP, which the file alone found, do not fit the
    parameters that did not change.
    """
    if _has_other_changes(case):
        return (
            f"{counted_noun(older.changed, 'other parameter')} changed, more than the "
            "optimizer stepped: the program changed some itself (averages of the "
            "weights, EMA), so a change does not tell which ones DDP counts."
        )
    named: set[str] = set()
    for row in found.rows:
        named.update(entry.name for entry in row.entries)
    moved = named.difference(older.unchanged, older.stepped, older.untold)
    still = named - moved
    if moved and still and still <= set(older.unchanged):
        count = len(moved)
        took = "took it in a step" if count == 1 else "took them in steps"
        return (
            f"{count:,} of the {len(named):,} that the numbers name changed in "
            f"between: forward {took} before the one that stopped, or the saves are of "
            "another run."
        )
    if older.is_sure:
        return "The numbers do not fit them: are the saves of the run that stopped?"
    if not older.changed and not older.stepped:
        return (
            "Nothing changed, so these saves do not tell which parameters had a "
            "gradient."
        )
    # A bias in front of BatchNorm has a gradient of nearly zero.
    if named < set(older.unchanged):
        rest = len(older.unchanged) - len(named)
        others = "the other one" if rest == 1 else f"the other {rest:,}"
        return (
            f"The numbers name {len(named):,} of them, and the step of {others} was "
            "zero or too small to see."
        )
    return (
        "The numbers do not fit them: a step was too small to see, or the saves are of "
        "another run."
    )


def _certain_ways(
    numbers: Numbers, case: Case, *, is_guess: bool, has_older: bool
) -> Iterator[Statement]:
    """Say that names are a guess, or that several fit a number, and by which ways they
    are certain.
    """
    survey = case.survey
    path = pasted_path(survey.path)
    # Both commands have the path in them, so it must be one that a shell takes.
    if path is None:
        return
    every = ",".join(map(str, numbers.all))
    doubt = "These names are a guess" if is_guess else "Several names fit a number"
    way = "With the code of the model, frozen as in the run, they are certain:"
    if survey.record is not None:
        way = (
            "Where the factory of --model freezes exactly what the run froze, they are "
            "certain:"
        )
    yield Statement(
        f"{doubt}: the file does not say which parameters DDP counts. {way}",
        (),
        f"ckpt inspect {path} --model {case.model} --index {every}",
    )
    if has_older:
        return
    facts = [optimizer_facts(section) for section in case.optimizers]
    if facts and all(fact is not None and not fact.has_begun for fact in facts):
        yield Statement(
            (
                "This file was saved before the first step of the optimizer. A later "
                "one says more: a parameter that changed had a gradient."
            ),
            (),
            f"ckpt explain MESSAGE {path} LATER",
        )
        return
    yield Statement(
        (
            "An older checkpoint of the run says more: a parameter that changed had a "
            "gradient."
        ),
        (),
        f"ckpt explain MESSAGE OLDER {path}",
    )


def _own_names(names: Sequence[str], survey: Survey) -> list[str]:
    """The names that the file gives the parameters of a message: DDP leaves its own
    prefix out.
    """
    if not names:
        return []
    known = {name: name for name in (entry.name for entry in survey.tensors)}
    ends: dict[str, str] = {}
    for section in survey.candidates:
        for entry, relative in zip(section.entries, section.names(), strict=True):
            # A name without module. is left to a tensor that has it itself.
            ends[relative] = entry.name
            ends.setdefault(relative.removeprefix("module."), entry.name)
    return [ends.get(name, known.get(name, name)) for name in names]


def _reason_statements(
    numbers: Numbers, found: Numbering, survey: Survey
) -> Iterator[Statement]:
    """Say why parameters had no gradient, and where the message and the file are hardly
    of one run.
    """
    if numbers.kind == "twice":
        yield Statement(
            "Its gradient was ready twice: it is used outside of forward, in several "
            "activation checkpoints, or in several backward passes of one step."
        )
        return
    had = {flag for row in found.rows for flag in row.had_gradient}
    if False in had:
        yield Statement(f"Never a gradient: {UNUSED[:1].lower()}{UNUSED[1:]}")
    if True in had:
        yield Statement(
            "A gradient in an earlier step: forward did not take this branch in the "
            "step that stopped."
        )
    unnamed, are_counted = count_unnamed(survey, found)
    if unnamed and numbers.kind in ("without", "line"):
        is_one = unnamed == 1
        it, its = ("it", "its") if is_one else ("them", "their")
        whys = [f"{'it is' if is_one else 'they are'} frozen"]
        if are_counted:
            whys = [
                f"DDP counts all, and {its} first one came in the step that stopped"
            ]
        if numbers.kind == "line":
            whys.append(f"DDP's own search found {it} (find_unused_parameters=True)")
        yield Statement(
            f"By this file {counted_noun(unnamed, 'other parameter')} never had a "
            f"gradient, and the message does not name {it}: {', or '.join(whys)}, or "
            "the message and the file are not of one run."
        )
    ranks = {row.ranks for row in found.rows}
    if len(ranks) > 1:
        yield Statement(
            "The ranks list different parameters, so a branch depends on the data of a "
            "rank."
        )


FAMILIES = (
    Family(
        "ddp",
        # torch 1.4 prints no numbers, and 1.8 and later list the indices of each rank.
        (
            r"Expected to have finished reduction",
            r"indices which did not receive grad for rank \d",
            r"Parameters which did not receive grad for rank \d",
        ),
        _answer_gradients,
        _take_numbers,
        needs_open=True,
    ),
    Family(
        "twice",
        (
            (
                r"Parameter at index \d{1,12}(?: with name \S{1,2000})? has been "
                r"marked as ready twice"
            ),
            r"Expected to mark a variable ready only once",
        ),
        _answer_gradients,
        _take_numbers,
        needs_open=True,
    ),
)
OF_GRADIENTS = frozenset(family.kind for family in FAMILIES)
"""The kinds of errors that an older save of the run helps to answer."""
