"""The plan of a run beside what it did: the steps that are left, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.content import of_finished
from ckpt.ext.explain.families.runs import counts_statements, recorded_counters
from ckpt.ext.explain.questions.measures import of_best
from ckpt.model.text import and_more, counted_noun, show

# --- what is left ---------------------------------------------------------------------

ASKS_OF_REST = (
    r"\bhow (?:much|many|long)\b[^\n]{0,40}\b(?:longer|left|remain\w{0,3}|to go|more)\b"
    r"|\b(?:epochs?|steps?|iterations?) (?:are |is )?(?:left|remain\w{0,3})\b"
    r"|\bremaining (?:epochs?|steps?|iterations?|time)\b|\bwhen (?:will|does)\b"
    r"[^\n]{0,40}\b(?:finish|end|done|complete|stop)\w{0,2}\b"
    r"|\b(?:is|was|has|did) (?:the |this |my )?(?:training|run)\b[^\n]{0,20}"
    r"\b(?:finish\w{0,2}|done|complet\w{1,3}|over|to the end)\b|还(?:要|剩|需)多"
    r"|\b(?:final|last) (?:checkpoint|save|epoch|state) of\b"
    r"|\b(?:end|middle|start|beginning) of (?:the |its |my )?(?:training|run)\b"
)
"""Words of a question for the part of a run that is still to come."""
_STEPS = re.compile(r"(?:^|_)(?:steps?|iters?|iterations?|updates?)$|^n_?iters?$")
_EPOCHS = re.compile(r"(?:^|_)epochs?$")
_IN_ALL = re.compile(r"^(?:max|total|num|n|train|training)_?|^(?:epochs|steps|iters)$")
"""The beginning of a key for the whole length of a run."""
_OTHER = re.compile(r"warm|save|log|eval|accum|val|decay|interval|freq|every|start|cur")
"""Words of keys that count something else in steps or epochs."""


def of_remaining(text: str, case: Case) -> Iterator[Statement]:
    """Say how far a run was and how long it was to be, as far as its file records
    both.
    """
    finished = list(of_finished(case))
    if finished:
        yield from finished
        return
    planned = _planned_lengths(case)
    if not planned:
        yield from counts_statements(case)
        yield Statement(
            "No setting in this file says how many epochs or steps the run was to "
            "have: its command line or its config does."
        )
        return
    done = recorded_counters(case)
    said = and_more([f"{show(name, 60)} is {count:,}" for name, count in planned], 4)
    counted = and_more([f"{show(name, 60)} is {count:,}" for name, count in done], 4)
    own = f" It counts: {counted}." if counted else " It counts nothing itself."
    yield Statement(f"The run was to have, by its settings: {said}.{own}")
    for kind, unit in ((_STEPS, "step"), (_EPOCHS, "epoch")):
        ends = {count for name, count in planned if _has_last(name, kind)}
        now = {count for name, count in done if _has_last(name, kind)}
        # Two lengths of one kind may be of two runs.
        if len(ends) == 1 and len(now) == 1:
            yield Statement(_rest_text(now.pop(), ends.pop(), unit))
            break
    yield Statement(
        "The time that a step takes is in the log of the run alone, if in any file."
    )


def _rest_text(done: int, whole: int, unit: str) -> str:
    """The sentence on what is left of a run."""
    if done >= whole:
        return f"So it is at its end: {done:,} of {counted_noun(whole, unit)}."
    left = whole - done
    # Programs count an epoch before or after they save it.
    count = counted_noun(left, unit)
    either = f"{count}, or one fewer, are" if unit == "epoch" else f"{count} are"
    if left == 1:
        either = f"{count} or none is" if unit == "epoch" else f"{count} is"
    return f"So it is at {done:,} of {counted_noun(whole, unit)}: {either} left."


def _planned_lengths(case: Case) -> list[tuple[str, int]]:
    """The settings of a file that say how long its run was to be."""
    found = []
    for value in case.survey.checkpoint.values:
        if not value.path or type(value.node) is not int or value.node < 1:
            continue
        key = str(value.path[-1])
        is_length = _STEPS.search(key) or _EPOCHS.search(key)
        if is_length and _IN_ALL.search(key) and not _OTHER.search(key):
            found.append((value.name, value.node))
    return found


def _has_last(name: str, kind: re.Pattern[str]) -> bool:
    """Tell whether the last key of a name is of a kind."""
    return kind.search(name.rpartition(".")[2]) is not None


# --- why it ended ---------------------------------------------------------------------

ASKS_WHY_ENDED = (
    r"\bwhy (?:did|has|is|was) (?:the |my |this )?(?:training|run|it)\b[^\n]{0,40}"
    r"\b(?:stop\w{0,3}|end\w{0,2}|finish\w{0,2}|abort\w{0,2}|terminat\w{1,2})\b"
    r"|\b(?:stopped|ended|finished|terminated) (?:too )?early\b"
    r"|\bearly[ _-]?stop\w{0,4}"
    r"|为什么[^\n]{0,10}(?:停|结束)"
)
"""Words of a question why a run ended."""


def of_end(text: str, case: Case) -> Iterator[Statement]:
    """Say what a file records of the end of its run: early stopping, or its length."""
    finished = list(of_finished(case))
    yield from finished
    stops = list(_of_early_stops(case))
    yield from stops
    if finished or stops:
        return
    planned = _planned_lengths(case)
    done = recorded_counters(case)
    if planned and done:
        said = and_more([f"{show(name, 60)} {count:,}" for name, count in planned], 4)
        counted = and_more([f"{show(name, 60)} {count:,}" for name, count in done], 4)
        yield Statement(
            f"The run was to have {said}, and this file counts {counted}. It records "
            "no early stopping."
        )
    else:
        yield Statement(
            "This file records no early stopping, and not how long its run was to be: "
            "a save holds the state of one moment, and no reason why nothing came "
            "after it. The last lines of the log say it."
        )
    yield from of_best(text, case)


_COUNTED = (
    "wait_count",
    "early_stopping_patience_counter",
    "num_bad_epochs",
    "counter",
)
_PATIENCE = ("patience", "early_stopping_patience")


def _of_early_stops(case: Case) -> Iterator[Statement]:
    """Say how far early stopping had counted, with its patience."""
    patience = {_holder_of(name): node for name, node in case.finds_value(_PATIENCE)}
    for name, node in case.finds_value(_COUNTED):
        holder = _holder_of(name)
        if "stop" not in holder.lower() or type(node) is not int:
            continue
        most = patience.get(holder)
        if type(most) is not int:
            continue
        place = show(holder, 80)
        begin = (
            f"{place} counted {counted_noun(node, 'check')} in a row without a better "
            f"value, and its patience is {most:,}"
        )
        if node >= most:
            yield Statement(f"{begin}: that ended the run.")
        else:
            yield Statement(f"{begin}: at this save it had not ended the run.")


def _holder_of(name: str) -> str:
    """The name of the callback that a value belongs to."""
    # transformers keeps args and attributes of a callback apart.
    return re.sub(r"\.(?:args|attributes)$", "", name.rpartition(".")[0])
