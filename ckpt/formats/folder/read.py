"""A folder as one checkpoint. What reads it is loaded for folders only."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.folder import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


_FILES = (".metadata", ".distcp", "metadata.json", "latest_checkpointed_iteration.txt")
"""Endings of files that may lead to the folder around them; any other file is one of its own."""


def sniff(probe: Probe) -> bool:
    if not probe.is_folder and not probe.path.endswith(_FILES):
        return False
    from ckpt.formats.folder.plan import plan_of

    return plan_of(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.folder.reader import read

    return read(probe, limits)
