"""Recognising the files of the ranks of a run. What reads them is loaded for such a folder only."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.fsdp import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.fsdp.sets import sets_of
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sets_of", "sniff"]


def sniff(probe: Probe) -> bool:
    """Whether a folder holds files of ranks with pieces. A file alone is a file of torch.save."""
    return sets_of(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.fsdp.reader import read

    return read(probe, limits)
