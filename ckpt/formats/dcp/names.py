"""The files of a distributed checkpoint by their names, and the folder that a path into it leads to."""

from __future__ import annotations

import re

from ckpt.errors import NotOpenedError
from ckpt.formats.dcp import DATA, METADATA
from ckpt.formats.probe import Probe
from ckpt.io.location import Location

_OF_A_RANK = r"__\d+\.metadata"
"""What each rank writes where `save` uses no collectives."""


def is_metadata(name: str) -> bool:
    """Whether a file of this name says what a distributed checkpoint holds."""
    return name == METADATA or re.fullmatch(_OF_A_RANK, name) is not None


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
