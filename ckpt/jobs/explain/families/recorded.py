"""The settings of a run that a checkpoint records, where a model was built with others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.jobs.explain.case import Case, Statement
from ckpt.jobs.explain.message import Mismatch
from ckpt.text import and_more, show

_OF_SETTINGS = re.compile(
    r"(?:^|[._])(?:config|configs|cfg|args|model_args|opt|opts|options|hparams|hyper_parameters|hyperparameters|params_model|model_cfg"
    r"|model_config|dims|settings)(?:$|[._])"
)
"""The keys below which programs keep the settings of a run."""
_OF_TRAINING = re.compile(
    r"batch|seed|step|epoch|iter|interval|freq|every|port|warm|worker|thread|log|save|eval|accum|buffer|prefetch|steps|time|date|count|samples|version"
)
"""Words of settings of a run that give no size of its model."""
_LEAST = 8
"""Sizes below it stand for many things: layers, heads, channels of a picture."""
_MOST = 3
"""Settings of one value that are named: with more of them the value says little."""


def settings_of(rows: Sequence[Mismatch], case: Case) -> Iterator[Statement]:
    """Name the settings of a file whose value is a size that differs."""
    sizes = list(
        dict.fromkeys(
            (ours, theirs)
            for row in rows
            for ours, theirs in zip(row.checkpoint, row.model, strict=False)
            if ours != theirs
        )
    )
    if len(sizes) != 1:
        return
    ((ours, theirs),) = sizes
    named = [
        value.name
        for value in case.survey.checkpoint.values
        if type(value.node) is int
        and value.node == ours
        and _OF_SETTINGS.search(_above(value.name))
        and not _OF_TRAINING.search(value.name.rpartition(".")[2].lower())
    ]
    if ours < _LEAST or not 0 < len(named) <= _MOST:
        return
    yield Statement(
        f"{ours:,} stands among the settings of this checkpoint: {and_more([show(name, 120) for name in named], _MOST)}. Build the model with it, in place"
        f" of {theirs:,}."
    )


def settings_places(case: Case) -> list[str]:
    """The places of the settings in a file, the outermost ones."""
    found: dict[str, None] = {}
    for value in case.survey.checkpoint.values:
        match = _OF_SETTINGS.search(f"{_above(value.name)}.")
        if match is not None:
            found[value.name[: match.end()].rstrip("._")] = None
    return list(found)


def _above(name: str) -> str:
    """The name of what holds a value."""
    return name.rpartition(".")[0]
