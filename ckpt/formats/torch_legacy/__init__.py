"""torch.save before 1.6: a stream of pickles."""

from __future__ import annotations

from ckpt.formats.common.heads import is_legacy
from ckpt.formats.format import TORCH, Format, Probe
from ckpt.model.checkpoint import Traits


def sniff(probe: Probe) -> bool:
    return is_legacy(probe.head) and not probe.is_tar


FORMAT = Format(
    "torch-legacy",
    Traits(
        "PyTorch legacy",
        "torch.load({path}, {options})",
        is_pickle=True,
        keeps_devices=True,
        has_views=True,
    ),
    sniff,
    reader="ckpt.formats.torch_legacy.reader",
    suffixes=TORCH,
    writer="ckpt.formats.torch_legacy.writer",
    verifier="ckpt.formats.torch_legacy.reader",
    salvager="ckpt.formats.torch_legacy.reader",
)
