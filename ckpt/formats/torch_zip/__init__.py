"""torch.save since 1.6: a zip archive."""

from __future__ import annotations

from ckpt.formats.format import TORCH, Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return (
        archive is not None
        and archive.find("data.pkl") is not None
        and not archive.records.any_below(f"{archive.root}/tensors/")
    )


FORMAT = Format(
    "torch-zip",
    Traits(
        "PyTorch zip",
        "torch.load({path}, {options})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        in_place=True,
    ),
    sniff,
    reader="ckpt.formats.torch_zip.reader",
    suffixes=TORCH,
    writer="ckpt.formats.torch_zip.writer",
    verifier="ckpt.formats.common.records",
)
