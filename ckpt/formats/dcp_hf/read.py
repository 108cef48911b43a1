"""Recognising a distributed checkpoint in safetensors. What reads it is loaded for one only."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.errors import NotOpenedError
from ckpt.formats.dcp_hf import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.formats.dcp_hf.names import shard_of
from ckpt.formats.probe import Probe
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    """Whether a folder is one. A file of it alone is a file of safetensors, with the part of its rank."""
    if not probe.is_folder:
        return False
    try:
        names = probe.location.names()
    except NotOpenedError:
        return False
    return any(shard_of(name) is not None for name in names)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.dcp_hf.reader import read

    return read(probe, limits)
