"""TorchScript archives (torch.jit.save since 1.3), also for the mobile interpreter."""

from __future__ import annotations

from ckpt.checkpoint import Traits
from ckpt.formats.format import Format, Probe


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and all(
        archive.find(name) is not None for name in ("data.pkl", "constants.pkl")
    )


FORMAT = Format(
    "torchscript",
    Traits(
        "TorchScript",
        'torch.jit.load({path}, map_location="cpu")',
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        names_are_code=True,
        tags_are_apart=True,
        in_place=True,
    ),
    sniff,
    reader="ckpt.formats.torchscript.reader",
    suffixes=(".pt", ".ptl", ".ts"),
    writer="ckpt.formats.torchscript.writer",
    verifier="ckpt.formats.common.records",
)
