"""A PT2 archive. What reads it is loaded when a file is one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.pt2 import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and (
        archive.find("archive_format") is not None or "serialized_exported_program.json" in archive.records
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.pt2.reader import read

    return read(probe, limits)
