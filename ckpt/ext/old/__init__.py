"""The format of torch 0.1: a tar archive."""

from __future__ import annotations

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    if probe.source is None or not probe.is_tar:
        return False
    from ckpt.ext.old.kinds import is_known, other_kind

    return is_known(probe) or other_kind(probe) is not None


FORMAT = Format(
    "torch-tar",
    Traits(
        "PyTorch 0.1 tar",
        "torch.load({path}, {options})",
        is_pickle=True,
        keeps_devices=True,
    ),
    sniff,
    reader="ckpt.ext.old.torch_tar",
    suffixes=(".pth", ".pt", ".tar"),
)
