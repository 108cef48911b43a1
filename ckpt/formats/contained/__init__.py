"""Archives of a library that hold checkpoints as members: Stable-Baselines3, NeMo."""

from __future__ import annotations

from ckpt.checkpoint import Traits
from ckpt.formats.format import Format, Probe


def sniff(probe: Probe) -> bool:
    if probe.archive is None and not probe.is_tar:
        return False
    from ckpt.formats.contained.layouts import is_known

    return is_known(probe)


FORMAT = Format(
    "archive",
    Traits("archive of checkpoints", is_pickle=True, keeps_devices=True, has_checksums=True, is_archive=True),
    sniff,
    reader="ckpt.formats.contained.reader",
    suffixes=(".zip", ".nemo"),
    verifier="ckpt.formats.contained.reader",
)
