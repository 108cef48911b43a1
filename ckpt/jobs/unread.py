"""The parts of a checkpoint that could not be read, and that a command therefore says nothing about."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt.checkpoint import UNREAD, Checkpoint
from ckpt.evidence.sections import Section
from ckpt.findings import LOST


def unread(checkpoint: Checkpoint, section: Section) -> tuple[tuple[str, str], ...]:
    """Return the parts that a section may lack: names and reasons. Of the tensors that it has, reading them tells.

    A file of a folder that is not of the model is missed only where everything is asked for. The same weights in another
    precision lack nothing.
    """
    if section.name in checkpoint.copies:
        return ()
    is_all = section.kind == "other" and not section.path
    return (*unlisted(checkpoint), *(checkpoint.unread if is_all else ()))


def unlisted(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the lost tensors that `tensors` does not have, by their names, or UNREAD where no name is known; and reasons."""
    lost = [row for row in checkpoint.notices if row.code in LOST]
    listed = {entry.name for entry in checkpoint.tensors} if lost else set()
    for row in lost:
        for name in row.tensors or (UNREAD,):
            if name not in listed:
                yield name, row.message
