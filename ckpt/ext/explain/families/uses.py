"""Questions about what to do with a checkpoint behind the training: which of its parts
are the weights, and how a program that only predicts gets them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    keys_text,
    shared_beginning,
)
from ckpt.ext.explain.families.averages import of_named_averages, of_own_averages
from ckpt.model.text import show

_FILE = r"(?:checkpoints?|ckpts?|(?:(?<!\w)\.)?(?:ckpt|chkpt|pth?|pt)|files?)"
_ASKS_OF_USE = re.compile(
    rf"(?i)\b(?:extract|get|take|pull|obtain)\b[^\n]{{0,60}}?\b(?:weights?|model"
    rf"|state_?dict)\b[^\n]{{0,60}}?\b{_FILE}\b"
    rf"|\b{_FILE}[^\n]{{0,120}}?\b(?:for|in|during|as) (?:the )?(?:inference|deployment"
    r"|deploying|production|predictions?|final (?:result|model))\b"
    rf"|\b{_FILE}\b[^\n]{{0,60}}?\bthe final (?:result|model|weights?)\b"
    rf"|\b(?:inference|predict\w{{0,4}}|deploy\w{{0,4}})\b[^\n]{{0,120}}?\b{_FILE}\b"
    rf"|\b{_FILE} (?:in)?to (?:the )?weights?\b"
    r"|\b(?:extract|get|take|pull|obtain)\b[^\n]{0,40}?\b(?:weights?|model|state_?dict)"
    r"\b (?:out of|from) (?:it|this|that|there)\b"
)
_ASKS = re.compile(
    r"(?i)\bhow\b|\bcan (?:i|you|we)\b|\b(?:is|are|do|does|should|would) (?:i|it|this"
    r"|there|the|we)\b|\bwhich\b|\bwhat\b|\bwant to\b|\bneed to\b"
)


def asks_of_use(text: str) -> bool:
    """Tell whether a text asks how to use a checkpoint behind its training."""
    return "?" in text and bool(_ASKS_OF_USE.search(text) and _ASKS.search(text))


def of_use(text: str, case: Case) -> Iterator[Statement]:
    """Say which part of a file has the weights, and how to take them alone."""
    if not asks_of_use(text) or len(case.survey.candidates) != 1:
        return
    chosen = case.survey.candidates[0]
    if not chosen.path:
        yield Statement(
            "This file is the weights themselves, by their names: a program that "
            "predicts needs nothing more of it than a model of the same layers."
        )
        yield from of_named_averages(case)
        return
    rest = (
        " The optimizer in it is for a run that goes on, and no prediction needs it."
        if case.optimizers
        else ""
    )
    yield Statement(
        f"This file is a checkpoint of a training, a dict of {keys_text(case)}. The "
        f"trained weights are in {show(chosen.name, 80)}, and they are all that a "
        f"program which only predicts takes from it.{rest}"
    )
    yield from of_own_averages(case)
    beginning = shared_beginning(chosen.names())
    if beginning:
        yield Statement(
            f"All their names begin with {show(beginning, 60)}, the attribute of the "
            "class that trained them. A model of its own, without that class, has the "
            "names behind it."
        )
        yield from command_statements(
            "With these names:",
            case.plan(("rename", "--sub", f"s/^{re.escape(beginning)}//")),
        )
    yield from command_statements(
        "In a file of their own, without the rest:", case.plan(("slim",))
    )
