"""TorchScript archives of torch 1.0 to 1.2."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    if (
        archive is None
        or archive.find("model.json") is None
        # With a data.pkl the archive is one of torch.save or of a later torch.jit.save.
        or archive.find("data.pkl") is not None
    ):
        return False
    return any(
        name.startswith((f"{archive.root}/tensors/", f"{archive.root}/code/"))
        for name in archive.records
    )


FORMAT = Format(
    "torchscript-1.0",
    Traits(
        "TorchScript 1.0",
        'torch.jit.load({path}, map_location="cpu")',
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
        names_are_code=True,
    ),
    sniff,
    reader="ckpt.ext.torchscript.reader_1_0",
    suffixes=(".pt",),
    verifier="ckpt.formats.common.records",
)
