"""Running averages of weights (EMA) that a program or a question asks a file for."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, command_statements, is_one_set
from ckpt.ext.explain.origins import config_of
from ckpt.model.text import and_more, counted_noun, pasted_path, show

AVERAGES = re.compile(r"(?i)(?:^|[_. -])ema(?:[_. -]|$)")
"""The word for averages in a key or in the name of a file."""
_ASKED = re.compile(
    r"(?i)\b(?:where|is|are|does|do|has|have|restor\w{1,4}|sav(?:e|ed|ing|es)|lost"
    r"|get|find|extract|use|load(?:s|ed|ing)?|missing|lacks?)\b"
)
# The name of a file with the word asks for nothing: `v2-1_512-ema-pruned.ckpt`.
_WORD = re.compile(
    r"(?<![\w./\\-])(?:EMA|ema)(?![\w/\\-]|\.\w)"
    r"|(?i:\b(?:exponential )?moving averages?\b)"
)


def of_no_averages(case: Case) -> Iterator[Statement]:
    """Say that a file has no averages, where its keys name none."""
    own = os.path.basename(case.survey.path.rstrip("/"))
    is_one = is_one_set(case.survey) or AVERAGES.search(own) is not None
    if is_one and not case.optimizers and not _among_weights(case):
        yield Statement(_one_set_text(case))
        return
    kinds = {section.kind for section in case.survey.sections}
    models = [section for section in case.survey.candidates if section.name]
    if "ema" in kinds or len(models) != 1 or _among_weights(case):
        return
    label = show(models[0].name, 60)
    yield Statement(
        f"By its keys this file has no running averages (EMA): {label} has the weights "
        "of the training itself. They load in their place, and a program that was "
        "measured with averages gives other results with them, mostly worse ones. "
        "Averages that a run kept in memory alone, or in a file of their own, are not "
        "here: a run that goes on from this file begins them anew from the weights."
    )


_OF_EMA_MODEL = ("decay", "optimization_step", "update_after_step")
"""Settings that the averages of diffusers (EMAModel) write into their config.json."""


def has_name_of_averages(path: str) -> bool:
    """Tell whether a file or a folder is called one of averages."""
    return AVERAGES.search(os.path.basename(path.rstrip("/"))) is not None


def of_named_averages(case: Case) -> Iterator[Statement]:
    """Say that the name of a file, or the config.json beside it, tells that it holds
    averages.
    """
    config = config_of(case.survey)
    settings = [
        f"{key} {value:,}"
        for key in _OF_EMA_MODEL
        if isinstance(value := config.get(key), (int, float))
    ]
    is_written = len(settings) == len(_OF_EMA_MODEL)
    own = os.path.basename(case.survey.path.rstrip("/"))
    signs = []
    if has_name_of_averages(own):
        signs.append(f"its name ({show(own, 80)})")
    if is_written:
        signs.append(
            f"its config.json ({and_more(settings, 3)}: EMAModel of diffusers wrote it)"
        )
    if signs and is_one_set(case.survey):
        yield Statement(
            f"By {' and '.join(signs)} this has the running averages (EMA) of the "
            "weights: they are for samples and evaluation. A training goes on from the "
            "weights themselves and the state of its optimizer."
        )


def _one_set_text(case: Case) -> str:
    """The sentence on a file of one set of weights, which may be the averages."""
    own = os.path.basename(case.survey.path.rstrip("/"))
    count = counted_noun(len(case.survey.tensors), "tensor")
    name = (
        f" Its name ({show(own, 80)}) says that they are the averages."
        if AVERAGES.search(own)
        else ""
    )
    return (
        f"This file has one set of weights ({count}), and nothing in it says whether "
        "they are running averages (EMA) or the weights of the last step: both have "
        f"the same names and shapes.{name} Weights that are published to be used are "
        "often the averages, without the key ema around them. Who published them can "
        "say. A checkpoint of the same run that has both tells it too: ckpt diff of "
        "this file and each of the two, which is the same where nothing differs."
    )


_IN_NAMES = re.compile(
    r"^((?:[^.\d][^.]{0,59}\.){0,3}(?:\w{0,40}_)?(?:ema|averaged)(?:_\w{0,40})?\.)"
)
"""A beginning of names for averages that stand among the weights: `model_ema.`. No
number is in it, for a layer may compute averages of its own (Mega: `layers.0.ema.`).
"""


def _among_weights(case: Case) -> dict[str, int]:
    """The beginnings of names that mean averages in a state dict, with the counts of
    their tensors.
    """
    names = (name for part in case.survey.candidates for name in part.names())
    # Few files have such a name among many.
    alike = (name for name in names if "ema" in name or "averaged" in name)
    found = (match[1] for name in alike if (match := _IN_NAMES.match(name)))
    return dict(Counter(found))


def asks_of_averages(text: str) -> bool:
    """Tell whether a text asks for the averages of a file."""
    return _WORD.search(text) is not None and _ASKED.search(text) is not None


def of_averages(text: str, case: Case) -> Iterator[Statement]:
    """Say where the averages of a file are, or that it has none, where a question asks
    for them.
    """
    if not asks_of_averages(text):
        return
    averages = [row for row in case.survey.sections if row.kind == "ema"]
    if not averages and not _among_weights(case):
        yield from of_no_averages(case)
        return
    yield from of_own_averages(case)


def of_own_averages(case: Case) -> Iterator[Statement]:
    """Say where the averages of a file are, where it has some."""
    averages = [row for row in case.survey.sections if row.kind == "ema"]
    among = _among_weights(case)
    if not averages and among:
        shown = [f"{show(begin, 60)} ({count:,})" for begin, count in among.items()]
        yield Statement(
            "This file has running averages (EMA) among its weights, below "
            f"{and_more(shown, 3)}. The others are the weights of the training itself. "
            "A program that loads the state dict and calls the model computes with the "
            "latter: it has to copy the averages over them (ema_scope() in "
            "latent-diffusion, copy_to() of its EMA)."
        )
        yield from command_statements(
            "With the names of the model the averages are written so:",
            case.plan(("slim", "--ema")),
        )
        return
    if not averages:
        return
    places = [show(row.name, 80) or "the root" for row in averages]
    yield Statement(
        f"This file has running averages (EMA), in {and_more(places, 4)}. A program "
        "that loads the model alone does not use them."
    )
    yield from command_statements(
        "They are written under the names of the model by:",
        case.plan(("slim", "--ema")),
    )


ASKS_OF_DISTANCE = (
    r"\b(?:far|distance|close|differ\w{0,8}|same|equal|compare\w?|identical)\b[^\n]{0,60}"
    r"\bema\b|\bema\b[^\n]{0,60}\b(?:far|distance|close|differ\w{0,8}|same|equal|compare"
    r"|identical)\b"
)
"""Words of a question for the difference of averages and weights."""


def of_distance(text: str, case: Case) -> Iterator[Statement]:
    """Print the commands that compare the averages of a file with its weights."""
    del text
    averages = [row for row in case.survey.sections if row.kind == "ema" and row.name]
    models = [row for row in case.survey.models if row.kind == "model"]
    path = pasted_path(case.survey.path)
    way = case.plan(("slim", "--ema"))
    if len(averages) != 1 or len(models) != 1 or path is None or way.command is None:
        return
    out = way.command.rpartition(" -o ")[2]
    yield Statement(
        f"{show(averages[0].name, 60)} holds running averages of "
        f"{show(models[0].name, 60) or 'the weights'}. To compare both, the averages "
        "are written under the names of the model first:",
        (),
        way.command,
    )
    yield Statement(
        "Then the change of each module, relative to its size:",
        (),
        f"ckpt diff {path} {out} --stat",
    )
