"""The zip format that torch 1.4 had as an option: storages are `tensors/KEY`. No other
torch reads it.
"""

from __future__ import annotations

from ckpt.formats.format import TORCH, Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    archive = probe.archive
    return (
        archive is not None
        and archive.find("data.pkl") is not None
        and archive.records.any_below(f"{archive.root}/tensors/")
    )


FORMAT = Format(
    "torch-zip-1.4",
    Traits(
        "PyTorch 1.4 zip",
        "torch.load({path}, {options})",
        is_pickle=True,
        keeps_devices=True,
        has_checksums=True,
    ),
    sniff,
    reader="ckpt.formats.torch_zip.opt_in_reader",
    suffixes=TORCH,
    verifier="ckpt.formats.common.records",
)
