"""Questions about a run that began anew although it had a checkpoint, and about
averages that are worse than the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.evidence.optimizers import parts_of
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.origins import name_origin
from ckpt.model.text import and_more, show
from ckpt.tree.find import children_of, counter

# --- counters -------------------------------------------------------------------------

_ZERO = (
    r"(?:\b0(?:th)?\b|\bzero\b|\b1st\b|\bfirst\b|\bscratch\b|\bthe (?:very )?(?:start"
    r"|beginning)\b|\b(?:epoch|iter|iteration|step)\b[ =:]{0,2}[01]\b)"
)
_BEGAN_ANEW = re.compile(
    r"(?i)\b(?:re-?)?(?:start|beg[aiu]n|resum|reset|train)\w{0,5}\b[^\n.]{0,60}?"
    rf"\b(?:from|at|to|with)\b[^\n.]{{0,25}}?{_ZERO}"
    r"|\b(?:epochs?|iter(?:ation)?s?|steps?|counters?|progress|training)\b[^\n.]{0,40}"
    r"\b(?:reset\w{0,4}|restart\w{0,3}|start\w{0,3} (?:over|again|anew))\b"
)
_GOES_ON = re.compile(
    r"(?i)\b(?:resum\w{1,4}|re-?start\w{0,3}|re-?load\w{0,3}|load(?:s|ed|ing)?"
    r"|checkpoints?|continu\w{1,4})\b"
)
_RATE = re.compile(r"(?i)\blearning[ _-]?rates?\b|\blrs?\b")
_BEFORE = 40
"""Characters before the words of a new start in which its subject stands."""
_COUNTERS = (
    "epoch",
    "current_epoch",
    "last_epoch",
    "iter",
    "iteration",
    "global_step",
    "step",
    "steps",
    "num_updates",
    "updates",
    "start_epoch",
)
_DEEPEST = 2
"""Keys to a counter of a run: `epoch`, `meta.epoch`."""
_OTHER_PART = re.compile(r"(?i)optim|sched|scaler|ema|^lr_")


def asks_of_new_start(text: str) -> bool:
    """Tell whether a text says that a run began anew although it had a checkpoint."""
    found = _BEGAN_ANEW.search(text)
    if found is None or _GOES_ON.search(text) is None:
        return False
    # A learning rate that begins anew has its own answer.
    before = max(0, found.start() - _BEFORE)
    return _RATE.search(text, before, found.end()) is None


def of_new_starts(text: str, case: Case) -> Iterator[Statement]:
    """Say which epoch or step a file records, where a question is about a run that
    began anew.
    """
    if not asks_of_new_start(text):
        return
    counters = _recorded_counters(case)
    if not counters:
        yield Statement(
            "This file records no epoch, iteration or step, so a program that goes on "
            "from it begins at 0: it holds the weights of a run, and not where the run "
            "stood. Take a checkpoint that the training itself saved to go on from, or "
            "give the program the epoch by its own option."
        )
        return
    shown = and_more([f"{show(name, 60)} is {number}" for name, number in counters], 4)
    yield Statement(
        f"This file records where its run stood: {shown}. A program that begins at 0 "
        "all the same did not read it: it took the file as weights to begin a new "
        "training with (options such as pretrained, weights, load_from, finetune), and "
        "not as the run to go on with (resume), or its own code sets the counter anew "
        "after the load."
        f"{_of_parts(case)}{_of_program(case)}"
    )


def _recorded_counters(case: Case) -> list[tuple[str, int]]:
    """The counters of a run that stand near the root, with their places."""
    return [
        (value.name, int(value.node))
        for value in case.survey.checkpoint.values
        if 0 < len(value.path) <= _DEEPEST
        and str(value.path[-1]) in _COUNTERS
        # True and False are ints for isinstance.
        and type(value.node) is int
        # An optimizer, a scheduler and averages count for themselves.
        and not any(_OTHER_PART.search(str(key)) for key in value.path[:-1])
    ]


def _of_parts(case: Case) -> str:
    """A sentence on the optimizer, which a run that goes on needs as well."""
    if case.optimizers:
        return " It has the optimizer too, so a run can go on from it."
    return (
        " It has no optimizer: a run that goes on from it begins the state of its "
        "optimizer anew."
    )


def _of_program(case: Case) -> str:
    """A sentence on the way in which the program of a file finds its last save."""
    origin = name_origin(case.survey) or ""
    if "detectron2" not in origin:
        return ""
    return (
        " detectron2 goes on only from the file that last_checkpoint names, a text "
        "file in OUTPUT_DIR: without it, --resume loads MODEL.WEIGHTS as weights "
        "alone."
    )


# --- averages -------------------------------------------------------------------------

_AVERAGES = r"\b(?:\w{0,40}_)?ema(?:_\w{0,40})?\b|\bmoving averages?\b"
_WORSE = (
    r"\b(?:worse|low(?:er)?|bad|poor|random|nan|zero|drop\w{0,5}|differ\w{0,8}"
    r"|(?:not|n't)[^\n]{0,30} work\w{0,4}|wrong|garbage|noise|no better)\b"
)
_WORSE_AVERAGES = re.compile(
    rf"(?i)(?:{_AVERAGES})[^\n]{{0,200}}?(?:{_WORSE})"
    rf"|(?:{_WORSE})[^\n]{{0,200}}?(?:{_AVERAGES})"
)


def of_worse_averages(text: str, case: Case) -> Iterator[Statement]:
    """Say when averages are worse than the weights beside them."""
    averages = [row for row in case.survey.sections if row.kind == "ema" and row.name]
    models = [row for row in case.survey.models if row.kind == "model"]
    if len(averages) != 1 or len(models) != 1 or not _WORSE_AVERAGES.search(text):
        return
    ours, theirs = models[0], averages[0]
    steps = max((_steps_of(section) for section in case.optimizers), default=0)
    made = f" (the optimizer of this file has made {steps:,})" if steps else ""
    label = show(ours.name, 60) or "the weights"
    yield Statement(
        f"{show(theirs.name, 60)} holds running averages of {label}. With a decay of "
        "0.999 they follow the weights of about 1,000 steps, with 0.9999 of 10,000. "
        f"Before a run has made several times as many{made} they still hold much of "
        f"the untrained start, and are worse: take {label} then, train longer, or "
        "lower the decay."
    )
    lacking = [
        name
        for name in ours.names()
        if name.endswith(_STATISTICS) and name not in set(theirs.names())
    ]
    if lacking:
        yield Statement(
            "The averages have no running statistics of the norms "
            f"({show(lacking[0], 80)}), so a model that loads them alone keeps those "
            "of its start, and its results are wrong. Load the weights first, and the "
            "averages after them:",
            tuple(lacking),
        )


_STATISTICS = ("running_mean", "running_var")


def _steps_of(section: Section) -> int:
    """The most steps that an optimizer has counted for a parameter."""
    states = children_of(parts_of(section.node).get("state"))
    steps = [counter(dict(children_of(state)).get("step")) for _, state in states]
    return int(max((step for step in steps if step is not None), default=0))
