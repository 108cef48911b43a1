"""TorchScript archives (torch.jit.save since 1.3), also for the mobile interpreter."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    if archive is None or archive.find("data.pkl") is None:
        return False
    if archive.is_partial and archive.records.any_below(f"{archive.root}/code/"):
        return True  # the file may end before its constants
    return archive.find("constants.pkl") is not None


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
    reader="ckpt.ext.torchscript.reader",
    suffixes=(".pt", ".ptl", ".ts"),
    writer="ckpt.ext.torchscript.writer",
    verifier="ckpt.formats.common.records",
)
