"""A TorchScript archive. What reads it is loaded when a file is one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.torchscript import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and all(
        archive.find(name) is not None for name in ("data.pkl", "constants.pkl")
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.torchscript.reader import read

    return read(probe, limits)
