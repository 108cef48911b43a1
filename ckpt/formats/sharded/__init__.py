"""One checkpoint in several files, with an index."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.names import is_index


def sniff(probe: Probe) -> bool:
    return not probe.is_folder and is_index(probe.path)


def files(probe: Probe) -> None:
    """Return None: the folder around an index is no checkpoint of its own."""
    return


FORMAT = Format(
    "sharded",
    Traits("shards"),
    sniff,
    files,
    reader="ckpt.formats.sharded.reader",
    suffixes=(".index.json",),
    verifier="ckpt.formats.sharded.reader",
)

"""The format of an index. Its traits are for the index; a checkpoint has the traits of
its shards.
"""
