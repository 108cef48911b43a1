"""Errors about the epoch of a run that goes on: of another number than the file's name,
or with none left to train.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import show

RESUMED = re.compile(r"\bresumed (?:from )?epoch:? (\d{1,9})\b")
"""The words of mmcv for the epoch with which a run goes on."""
NO_EPOCH = re.compile(
    r"UnboundLocalError: (?:local variable 'epoch' referenced before"
    r"|cannot access local variable 'epoch')"
)
"""The words of Python for a loop over epochs that never ran."""
_ASKED = re.compile(
    r"(?:\bfor (\d{1,9}) epochs\b|--epochs[ =](\d{1,9})\b|\bepochs=(\d{1,9})\b)"
)
_IN_NAME = re.compile(r"epoch[_=-]?(\d{1,9})(?!\d)")


def _recorded_epochs(case: Case) -> list[tuple[str, int]]:
    """The numbers of epochs that stand at the root of a file, or in its meta, with
    their places.
    """
    return [
        (name, int(node))
        for name, node in case.finds_value(("epoch",))
        # mmcv keeps its counters in meta. True and False are ints for isinstance.
        if name in ("epoch", "meta.epoch") and type(node) is int
    ]


def of_resumed(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say which epoch stands in the file, where its name has another one."""
    epochs = _recorded_epochs(case)
    named = _IN_NAME.search(os.path.basename(case.survey.path))
    if len(epochs) != 1:
        return
    ((place, epoch),) = epochs
    resumed = int(found[1])
    # A run goes on at the recorded epoch or at the next one, as its program counts.
    if epoch not in (resumed, resumed - 1):
        yield Statement(
            f"{place} is {epoch} in this file: the run went on from another file."
        )
        return
    # A program that counts from 0 may name its files from 1.
    if named is None or int(named[1]) in (epoch, epoch + 1):
        return
    steps = [
        f"{name} {node}"
        for name, node in case.finds_value(("iter",))
        if name in ("iter", "meta.iter")
    ]
    beside = f", and {steps[0].replace(' ', ' is ')}" if steps else ""
    yield Statement(
        f"{place} is {epoch} in this file{beside}: the program says what stands there. "
        f"{named[0]} is in its name alone. The file was renamed or copied over another "
        "one, or the run that saved counted its epochs from another start. If it "
        f"should be of epoch {named[1]}, this is not it."
    )


def of_no_epoch(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a loop over epochs that never ran, for the file has as many epochs as were
    asked for.
    """
    epochs = [(place, epoch) for place, epoch in _recorded_epochs(case) if epoch > 0]
    if len(epochs) != 1:
        return
    ((place, epoch),) = epochs
    asked = [
        int(next(filter(None, match.groups())))
        # The last number before the error is that of this run.
        for match in _ASKED.finditer(found.string, 0, found.end())
    ]
    wanted = asked[-1] if asked else None
    if wanted is not None and wanted > epoch + 1:
        return
    begin = (
        (
            f"{show(place, 40)} is {epoch} in this file, so a run that goes on begins "
            f"at epoch {epoch + 1}"
        )
        if wanted is None
        else (
            f"{show(place, 40)} is {epoch} in this file, and {wanted} epochs were "
            "asked for, which are done"
        )
    )
    yield Statement(
        f"{begin}. The loop over epochs never runs where none is left, so the variable "
        f"has no value. Ask for more than {epoch + 1} epochs (--epochs), or begin a "
        "new training from the weights, without --resume."
    )
