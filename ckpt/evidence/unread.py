"""The parts of a checkpoint that could not be read, and that a command therefore says
nothing about.
"""

from __future__ import annotations

from ckpt.evidence.sections import Section
from ckpt.model.account import Absence
from ckpt.model.checkpoint import Checkpoint, names_of


def unread_parts(checkpoint: Checkpoint, section: Section) -> tuple[Absence, ...]:
    """Return the parts that a section may lack. Of the tensors that it has, reading
    them tells.

    A file of a folder that is not of the model is missed only where everything is asked
    for. The same weights in another precision lack nothing.
    """
    if section.name in checkpoint.copies:
        return ()
    is_everything = section.kind == "other" and not section.path
    unread = checkpoint.account.unread if is_everything else ()
    return (*unlisted_parts(checkpoint), *unread)


def unlisted_parts(checkpoint: Checkpoint) -> list[Absence]:
    """Return the lost tensors that `tensors` does not have."""
    if not checkpoint.account.is_partial:
        return []
    return checkpoint.account.unlisted(set(names_of(checkpoint.tensors)))
