"""A convolution whose input has another number of channels than its weight takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.loading import load_of, string_literal
from ckpt.ext.explain.case import Case, Statement, trust_text
from ckpt.model.text import and_more, show

OF_CHANNELS = re.compile(
    r"Given groups=1, weight of size \[(?P<weight>[\d, ]{1,60})\],\s{1,4}expected "
    r"input\s?\[(?P<input>[\d, ]{1,80})\]\s{1,4}to\s{1,4}have\s{1,4}\d{1,6} "
    r"channels, but got \d{1,9}"
)
_COLOURS = 3
_WITH_ALPHA = 4
_OF_PICTURES = 4
"""The dimensions of a batch of pictures."""
_SHOWN = 3


def of_channels(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Name the layer that a forward stopped at, where the file has it, and print what
    gives its input the channels that it takes.
    """
    weight, given = (
        tuple(int(word) for word in found[name].split(",") if word.strip())
        for name in ("weight", "input")
    )
    if len(weight) < 2 or len(given) < 2:
        return
    for section in case.survey.candidates[:1]:
        names = [
            name
            for name, entry in zip(section.names(), section.entries, strict=True)
            if entry.tensor.shape == weight
        ]
        if not names:
            yield Statement(
                f"No tensor of this file has the shape {list(weight)}: the model was "
                "built without it, or another file was loaded.",
                refutes=True,
            )
            return
        takes, got = weight[1], given[1]
        layers = and_more([show(name, 80) for name in names], _SHOWN)
        yield Statement(
            f"The weight of {list(weight)} is {layers} of this file: it takes "
            f"{takes:,} channels, and the input has {got:,} (its second dimension). So "
            "the model has the sizes of the file, and the input is of another form."
            f"{_reason_text(weight, given)}",
            (),
            _line_for(weight, given),
        )
        load = load_of(case.survey.checkpoint, [section])
        if got == 1 and takes == _COLOURS and len(names) == 1 and load.expression:
            name = string_literal(names[0])
            yield Statement(
                "Or the model is built for one channel, with the weights of all three "
                f"added, which gives the same result{trust_text(load)}:",
                (),
                f"state = {load.expression}; state[{name}] = "
                f"state[{name}].sum(1, keepdim=True)",
            )


def _is_last(weight: tuple[int, ...], given: tuple[int, ...]) -> bool:
    """Tell whether the channels stand last, as in arrays of pictures."""
    return len(given) == _OF_PICTURES and given[-1] == weight[1]


def _reason_text(weight: tuple[int, ...], given: tuple[int, ...]) -> str:
    """The sentence on the form of an input."""
    if _is_last(weight, given):
        return " Its channels stand last, and torch has them second:"
    if weight[1] == _COLOURS and given[1] == 1:
        return " Gray pictures go in as three equal channels:"
    if weight[1] == _COLOURS and given[1] == _WITH_ALPHA:
        return " A fourth channel is mostly the transparency of a PNG, and is left out:"
    return (
        " Build the model with the number of channels that the data have, and load "
        "what fits, or give it the data that the run that saved had."
    )


def _line_for(weight: tuple[int, ...], given: tuple[int, ...]) -> str | None:
    """The line that gives an input the form that a layer takes, or None."""
    if _is_last(weight, given):
        return "x = x.permute(0, 3, 1, 2)"
    if len(given) != _OF_PICTURES or weight[1] != _COLOURS:
        return None
    if given[1] == 1:
        return "x = x.expand(-1, 3, -1, -1)"
    return "x = x[:, :3]" if given[1] == _WITH_ALPHA else None
