"""Recognising a distributed checkpoint. What reads it is loaded for one only."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.dcp import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.dcp.names import plain_folder_of
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    return plain_folder_of(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.dcp.reader import read

    return read(probe, limits)
