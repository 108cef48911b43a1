"""A TorchScript archive of torch 1.0 to 1.2. What reads it is loaded when a file is one."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.formats.probe import Probe
from ckpt.formats.torchscript_1_0 import NAME, SUFFIXES, TRAITS, VERIFIER, WRITER
from ckpt.limits import Limits

__all__ = ["NAME", "SUFFIXES", "TRAITS", "VERIFIER", "WRITER", "read", "sniff"]


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    if archive is None or archive.find("model.json") is None or archive.find("data.pkl") is not None:
        return False
    return any(
        name.startswith((f"{archive.root}/tensors/", f"{archive.root}/code/")) for name in archive.records
    )


def read(probe: Probe, limits: Limits) -> Checkpoint:
    from ckpt.formats.torchscript_1_0.reader import read

    return read(probe, limits)
