"""An index of shards. What reads it is loaded when a file is one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.sharded import INDEXES, NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    return not probe.is_folder and probe.path.endswith(INDEXES)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.sharded.reader import read

    return read(probe, limits)
