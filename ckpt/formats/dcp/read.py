"""Recognising a distributed checkpoint by any path into it. What reads it is loaded for one only."""

from __future__ import annotations

import re

from ckpt.checkpoint import Checkpoint
from ckpt.errors import NotOpenedError
from ckpt.formats.dcp import DATA, METADATA, NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.probe import Probe
from ckpt.io.location import Location
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "folder_of", "is_part", "read", "sniff"]

_OF_A_RANK = re.compile(r"__\d+\.metadata")
"""What each rank writes where `save` uses no collectives."""


def is_metadata(name: str) -> bool:
    """Whether a file of this name says what a distributed checkpoint holds."""
    return name == METADATA or _OF_A_RANK.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Whether a file of this name belongs to a distributed checkpoint."""
    return is_metadata(name) or name.endswith(DATA)


def folder_of(probe: Probe) -> Location | None:
    """The folder of the checkpoint that a path leads to: the folder, its `.metadata`, or a file of its data."""
    if probe.is_folder:
        folder = probe.location
    else:
        name = probe.path.replace("\\", "/").rpartition("/")[2]
        if not is_part(name):
            return None
        folder = probe.location.parent()
    try:
        names = folder.names()
    except NotOpenedError:
        return None
    return folder if any(map(is_part, names)) else None


def sniff(probe: Probe) -> bool:
    return folder_of(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.dcp.reader import read

    return read(probe, limits)
