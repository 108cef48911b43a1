"""Errors of DistributedDataParallel before the first step: the processes built
different models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import counted_noun, show

# reducer.cpp of torch; the number of the rank stands in front of the second one.
_COUNTS = (
    r"DDP expects same model across all ranks, but Rank (\d{1,6}) has (\d{1,9}) params,"
    r" while rank (\d{1,6}) has inconsistent (\d{1,9}) params"
)
_SIZES = (
    r"params\[(\d{1,9})\] in this process with sizes \[([\d, ]{0,200})\] appears not to"
    r" match (sizes|strides) of the same param in process 0"
)
_CAUSES = (
    "They build different models: code that asks for the rank, a size taken from the "
    "part of the data that a rank sees, or layers that are drawn, frozen or loaded in "
    "one process alone. Build, freeze and load in every process alike, before the "
    "model is given to DDP."
)


def _take_whole(message: Message, text: str, start: int) -> Message:
    """The message, with the end of a line that a terminal wrapped."""
    end = text.find("\n\n", start)
    return message._replace(text=text[start : None if end < 0 else end])


def _statements(message: Message, case: Case) -> Iterator[Statement]:
    text = " ".join(message.text.split())
    models = _list_parameters(case)
    counts = re.search(_COUNTS, text)
    sizes = re.search(_SIZES, text)
    if counts is not None:
        yield Statement(
            f"Rank {counts[1]} has {counted_noun(int(counts[2]), 'parameter')} that "
            f"require a gradient, and rank {counts[3]} has {int(counts[4]):,}. "
            f"{_CAUSES}"
        )
        yield from _counted(models, {int(counts[2]), int(counts[4])})
    if sizes is not None and sizes[3] == "strides":
        yield Statement(
            f"params[{int(sizes[1])}] has the same sizes in both processes, and "
            "another order in memory: model.to(memory_format=torch.channels_last) or a "
            "transposed weight in one process alone. No checkpoint is its cause."
        )
    elif sizes is not None:
        yield Statement(f"Two processes do not have the same parameters. {_CAUSES}")
        shape = tuple(int(size) for size in re.findall(r"\d{1,18}", sizes[2]))
        yield from _numbered(models, int(sizes[1]), shape)


def _list_parameters(case: Case) -> list[list[tuple[str, tuple[int, ...]]]]:
    """The names and shapes of the parameters of each model of the file, in its
    order.
    """
    survey = case.survey
    roles = survey.roles
    return [
        [
            (survey.tensors[index].name, survey.tensors[index].tensor.shape)
            for index in model.indices
            if roles[index].role == "parameter"
        ]
        for model in survey.candidates
    ]


def _counted(
    models: list[list[tuple[str, tuple[int, ...]]]], counts: set[int]
) -> Iterator[Statement]:
    """Say which of two numbers of parameters the file has, where it has one of them."""
    for parameters in models:
        if len(parameters) in counts and len(counts) == 2:
            other = next(iter(counts - {len(parameters)}))
            yield Statement(
                f"The file has {len(parameters):,} parameters: the rank with "
                f"{other:,} built another model than the one that was saved, or "
                "froze other layers."
            )


def _numbered(
    models: list[list[tuple[str, tuple[int, ...]]]], number: int, shape: tuple[int, ...]
) -> Iterator[Statement]:
    """Say what the file has at the place of a parameter, or that nothing in it has its
    sizes.
    """
    for parameters in models:
        # Frozen parameters are not counted, so that it stands there or later.
        fitting = [name for name, held in parameters[number:] if held == shape]
        if not fitting:
            yield Statement(
                f"No parameter of the file from the place {number} on has the sizes "
                f"{list(shape)}: the process that stopped built another model "
                "than the one that was saved."
            )
        elif number < len(parameters) and parameters[number][1] == shape:
            yield Statement(
                f"If nothing is frozen, params[{number}] is {show(fitting[0])}, and "
                "the file has it with these sizes: process 0 built another model than "
                "the one that was saved."
            )


FAMILIES = (
    Family(
        "unequal-ranks",
        (_COUNTS, _SIZES),
        answer_from_statements(_statements),
        _take_whole,
    ),
)
