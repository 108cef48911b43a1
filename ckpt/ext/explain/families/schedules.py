"""Errors of schedulers whose schedule is over: OneCycleLR counts its steps, and a
checkpoint brings the count along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import show

_STEPPED = re.compile(
    r"Tried to step (\d{1,12}) times\. The specified number of total steps is "
    r"(\d{1,12})"
)
_SCHEDULES = ("total_steps", "last_epoch")


def _answer_schedule(message: Message, case: Case) -> Iterator[Statement]:
    """Answer OneCycleLR, which was stepped more often than it was built for."""
    found = _STEPPED.search(message.text)
    total = None if found is None else int(found[2])
    held: dict[str, dict[str, int]] = {}
    # Only a OneCycleLR has total_steps beside last_epoch.
    for name, node in case.finds_value(_SCHEDULES):
        place, _, key = name.rpartition(".")
        if type(node) is int:
            held.setdefault(place, {})[key] = node
    cycles = {place: row for place, row in held.items() if len(row) == len(_SCHEDULES)}
    for place, row in cycles.items():
        label = show(place, 80) or "The root of this file"
        steps, last = row["total_steps"], row["last_epoch"]
        # A run may have several schedulers, and the error is of one of them.
        if steps != total:
            yield Statement(
                f"{label} is the state of a OneCycleLR of {steps:,} steps, and the "
                f"message is of another one ({total:,})."
            )
            continue
        # last_epoch counts from 0.
        done = "all are done" if last + 1 >= steps else f"{last:,} are done"
        yield Statement(
            f"{label} is the state of a OneCycleLR of {steps:,} steps, of which {done} "
            f"(last_epoch {last:,}). load_state_dict of a scheduler takes total_steps "
            "and the phases from the checkpoint, whatever the new scheduler was built "
            "with: a longer run ends at the same step."
        )
    if any(row["total_steps"] == total for row in cycles.values()):
        yield Statement(
            "To train longer, leave the load of its state out and build a new schedule "
            "for the steps that are to come: the optimizer keeps its own state. To end "
            "as planned, step the scheduler once for each batch, and not after the "
            "last one."
        )
    elif not cycles:
        yield Statement(
            "No state of a OneCycleLR is in this file: the program built it for too "
            "few steps. total_steps is the number of epochs times the number of "
            "batches, of the whole run, and each call of step counts."
        )
    yield from load_statements(case)


FAMILIES = (
    Family(
        "schedule",
        (_STEPPED.pattern,),
        answer_from_statements(_answer_schedule),
        needs_open=True,
    ),
)
