"""A tar archive of torch 0.1. What reads it is loaded when a file may be one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.torch_tar import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    if probe.source is None or probe.head[257:262] != b"ustar":
        return False
    from ckpt.formats.torch_tar.reader import is_known

    return is_known(probe)


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.torch_tar.reader import read

    return read(probe, limits)
