"""Numbers of a question that are sizes of tensors in a file: rows of classes, of words
or of speakers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.evidence.loading import load_of, string_literal
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement, trust_text
from ckpt.model.text import and_more, counted_noun, show

_NUMBER = re.compile(
    r"(?<![\w.:/\\@#%+-])(\d{1,3}(?:,\d{3})+|\d{2,7})(?![\w.:/\\%-]*[\w%])"
)
"""A whole number that stands alone: no part of a name, a version, a time or a share."""
_THINGS = (
    r"(?:class(?:es)?|labels?|categor(?:y|ies)|speakers?|vocab\w*|tokens?|words?"
    r"|symbols?|characters?|outputs?|num_\w+|rows?|dim\w*|shape|类)"
)
ASKS_OF_NUMBERS = (
    rf"(?:\b{_THINGS}\b[^\n]{{0,80}}\b\d{{2,7}}\b|\b\d{{2,7}} {_THINGS}\b)"
    rf"(?=[\s\S]*(?:\?|\uff1f))"
)
"""Words of a question with a number of things of which a model has a row each."""
_TAKES = re.compile(
    r"(?i)\b(?:extract|keep|select|subset|pick|cut|reduc|remov|tak(?:e|ing)|only)\w{0,3}\b"
)
"""Words of a question for some of the rows."""
_WHY = re.compile(r"(?i)\bwhy\b|\binstead of\b|\bnot\b|\brather than\b|为什么|而不是")
_MOST_TENSORS = 6
"""Tensors with one number among their sizes. More of them have the width of a model."""
_MOST_TIMES = 12
_SHOWN = 3


def of_numbers_asked(text: str, case: Case) -> Iterator[Statement]:
    """Say which tensors of a file have a number of the question as their rows, and how
    some of these rows are taken.
    """
    numbers = [int(word.replace(",", "")) for word in _NUMBER.findall(text)]
    for section in case.survey.candidates[:1]:
        for number in dict.fromkeys(numbers):
            names = [
                name
                for name, entry in zip(section.names(), section.entries, strict=True)
                if entry.tensor.shape[:1] == (number,)
            ]
            if 0 < len(names) <= _MOST_TENSORS:
                yield from _of_rows(number, names, numbers, section, text, case)
                return


def _of_rows(
    number: int,
    names: Sequence[str],
    numbers: Sequence[int],
    section: Section,
    text: str,
    case: Case,
) -> Iterator[Statement]:
    """Say what has so many rows, with what another number of the question is to it."""
    shapes = {
        name: list(entry.tensor.shape)
        for name, entry in zip(section.names(), section.entries, strict=True)
    }
    told = and_more([f"{show(name, 80)} ({shapes[name]})" for name in names], _SHOWN)
    yield Statement(
        f"{number:,} is the number of rows of {told}: one for each thing that the "
        "training told apart."
    )
    parts = [other for other in numbers if 1 < other < number]
    for part in parts:
        times, rest = divmod(number, part)
        if rest == 0 and times <= _MOST_TIMES and _WHY.search(text):
            yield Statement(
                f"{number:,} is {times} times {part:,}: the training had {times} rows "
                "for each of these, as where changed copies of the data count as "
                "classes of their own (a recording at other speeds, a picture that is "
                "turned). No name in a file says what the rows are: the list of the "
                "run that saved does."
            )
            return
    if not parts or _TAKES.search(text) is None:
        return
    load = load_of(case.survey.checkpoint, [section])
    if load.expression is None:
        return
    part = parts[0]
    listed = ", ".join(string_literal(name) for name in names)
    yield Statement(
        f"Of some of them, the rows are taken by their numbers in the list of the run "
        f"that saved (its labels or ids, which are in a file of the program). With the "
        f"{counted_noun(part, 'number')} in the place of range({part}), the model is "
        f"then built for {part:,}{trust_text(load)}:",
        (),
        f"state = {load.expression}; rows = list(range({part})); "
        f"state.update((name, state[name][rows]) for name in [{listed}])",
    )
