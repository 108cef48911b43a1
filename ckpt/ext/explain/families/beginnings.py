"""The beginnings of names: what all names of a file share, copies of a model side by
side, and loads that found nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.evidence.loading import string_literal
from ckpt.evidence.survey import Survey
from ckpt.ext.explain.case import Case, Statement, shared_beginning
from ckpt.model.text import and_more, counted_noun, show

_NOTHING_LOADED_TEXT = (
    # Read `The pretrained weights "m.pth" cannot be loaded, please check the key names
    # manually`.
    r"cannot be loaded, please check the key names"
    r"|\b[Nn]o (?:matching|matched) (?:keys?|layers?|parameters?|weights?"
    r"|params)\b[^\n]{0,80}(?:checkpoint|state_?dict|weights|pre-?trained|load)"
    r"|\b(?:[Nn]one|0|zero) of the (?:keys|weights|parameters|layers"
    r"|tensors)[^\n]{0,80}(?:match|loaded)"
)
NOTHING_LOADED = re.compile(_NOTHING_LOADED_TEXT)
"""Words of programs that load what has the same name and shape, and found nothing."""


def nothing_loaded(case: Case) -> Iterator[Statement]:
    """Say how the names of the weights begin, where a program found none of its own,
    and how to load them all the same.
    """
    # With several models in the file it is not known which one was meant.
    chosen = case.survey.candidates[0] if len(case.survey.candidates) == 1 else None
    if chosen is None:
        return
    names = chosen.names()
    beginning = shared_beginning(names)
    place = f" in {show(chosen.name, 80)}" if chosen.path else ""
    if not beginning:
        shown = and_more([show(name, 80) for name in names[:3]], 3)
        yield Statement(
            "The program has no layer of the names and shapes of this file. Its "
            f"{counted_noun(len(names), 'name')}{place} share no beginning: {shown} "
            "and so on. It is of another architecture, or in the names of another "
            "library."
        )
    else:
        yield Statement(
            "No layer of the program has a name and a shape of this file. All "
            f"{len(names):,} names{place} begin with {show(beginning, 80)}: most often "
            "that is what differs."
        )
        rule = ("--sub", f"s/^{re.escape(beginning)}//")
        section = ("--section", chosen.name) if chosen.path else ()
        way = case.plan(("rename", *rule, *section))
        # If no command renames a section by itself, one may rename all names.
        if way.command is None:
            way = case.plan(("rename", *rule))
        if way.command is not None:
            yield Statement("The same weights without it:", (), way.command)
    yield load_into_statement(
        case.survey, "Or let ckpt find the names, and say what it could not place:"
    )


def whole_beginnings(here: Sequence[str], missing: Sequence[str]) -> list[str]:
    """The beginnings of names below each of which a file has all missing keys, where it
    has them more than once.
    """
    # Every layer has a weight: one bare name tells no part of a model.
    if not missing or set(missing) <= {"weight", "bias"}:
        return []
    names = set(here)
    # One name finds the beginnings, and all the others test them.
    first = min(missing, key=len)
    beginnings = [
        name.removesuffix(first) for name in here if name.endswith(f".{first}")
    ]
    whole = [
        begin
        for begin in beginnings
        if all(f"{begin}{name}" in names for name in missing)
    ]
    return whole if len(whole) > 1 else []


def each_beginning(
    beginnings: Sequence[str], here: Sequence[str], missing: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Name the copies of a model in a file, and print the line that takes each
    of them.
    """
    shown = [show(begin, 60) for begin in beginnings]
    count = (
        "The missing key is"
        if len(missing) == 1
        else f"All {len(missing):,} missing keys are"
    )
    times = "twice" if len(beginnings) == 2 else f"{len(beginnings)} times"
    averaged = [begin for begin in beginnings if _OF_AVERAGES.search(begin)]
    text = (
        f"{count} in this file {times}, below {', '.join(shown[:-1])} and {shown[-1]}: "
        "each has all that the model asks for."
    )
    if averaged and len(averaged) < len(beginnings):
        text += (
            f" {show(averaged[0], 60)} has the running averages (EMA), which programs "
            "use for inference."
        )
    others = [name for name in here if not name.startswith(tuple(beginnings))]
    if others:
        text += (
            f" The model has no place for {counted_noun(len(others), 'other key')}: "
            f"{and_more([show(name, 80) for name in others], 4)}."
        )
    yield Statement(text)
    load = case.survey.load.expression
    # Print the averages first, which programs use for inference.
    for begin in [*averaged, *(begin for begin in beginnings if begin not in averaged)][
        :4
    ]:
        if load is not None and len(case.survey.candidates) == 1:
            yield Statement(
                f"Those below {show(begin, 60)}:", (), taken_part(load, begin)
            )


_OF_AVERAGES = re.compile(r"(?:^|[._])(?:ema|avg|average|averaged|shadow)(?:$|[._])")


def taken_part(load: str, beginning: str) -> str:
    """The line that loads the tensors below a beginning of names, without it."""
    return (
        f"state = {load}; "
        f"model.load_state_dict({{name.removeprefix({string_literal(beginning)}): "
        "value for name, value in state.items() if "
        f"name.startswith({string_literal(beginning)})}})"
    )


def load_into_statement(survey: Survey, text: str) -> Statement:
    return Statement(
        text,
        (),
        f"import ckpt; ckpt.open({string_literal(survey.path)}).load_into(model)",
    )
