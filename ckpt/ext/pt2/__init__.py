"""PT2 archives: programs of torch.export, and packages of AOTInductor."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return archive is not None and (
        archive.find("archive_format") is not None
        or "serialized_exported_program.json" in archive.records
    )


FORMAT = Format(
    "pt2",
    Traits(
        "PT2",
        "torch.export.load({path})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        names_are_code=True,
    ),
    sniff,
    reader="ckpt.ext.pt2.reader",
    suffixes=(".pt2",),
    verifier="ckpt.formats.common.records",
)
