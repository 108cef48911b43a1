"""A torch.package archive. What reads it is loaded when a file is one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.torch_package import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and any(
        archive.find(name) is not None for name in (".data/extern_modules", ".data/python_version")
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.torch_package.reader import read

    return read(probe, limits)
