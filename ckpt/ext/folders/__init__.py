"""A folder as one checkpoint: the weights, what training needs besides, and the
documents about both.
"""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import FolderError, UnsupportedError

_FILES = (".metadata", ".distcp", "metadata.json", "latest_checkpointed_iteration.txt")
"""Endings of files that may lead to the folder around them; any other file is one of
its own.
"""


def sniff(probe: Probe) -> bool:
    if not probe.is_folder and not probe.path.endswith(_FILES):
        return False
    from ckpt.ext.folders.plan import plan_of

    return plan_of(probe) is not None


def files(probe: Probe) -> tuple[str, ...] | None:
    from ckpt.ext.folders.layouts import files_of
    from ckpt.ext.folders.plan import plan_of

    try:
        plan = plan_of(probe)
    except FolderError:  # several checkpoints, which are looked at one by one
        return None
    except UnsupportedError:  # one item, whose error says what is not read
        from ckpt.ext.folders.distributed import unread_in

        return unread_in(probe.location)
    if plan is None:
        return None
    return tuple(file for part in plan.parts for file in files_of(part))


FORMAT = Format(
    "folder",
    Traits("a folder"),
    sniff,
    files,
    reader="ckpt.ext.folders.reader",
    verifier="ckpt.ext.folders.reader",
)

"""The format of a folder. Its traits are for the table; a checkpoint has the traits of
its weights.
"""
