"""Archives of a library that hold checkpoints as members: Stable-Baselines3, NeMo."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    if probe.archive is None and not probe.is_tar:
        return False
    from ckpt.ext.archives.layouts import is_known

    return is_known(probe)


FORMAT = Format(
    "archive",
    Traits(
        "archive of checkpoints",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        is_archive=True,
    ),
    sniff,
    reader="ckpt.ext.archives.reader",
    suffixes=(".zip", ".nemo"),
    verifier="ckpt.ext.archives.reader",
)
