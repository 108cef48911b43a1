"""safetensors: a JSON header and the data."""

from __future__ import annotations

from ckpt.formats.common.safetensors import NAME, TRAITS, is_usual
from ckpt.formats.format import SAFETENSORS, Format, Probe


def sniff(probe: Probe) -> bool:
    # The content decides. The suffix decides only for a damaged file, so that its error
    # names safetensors.
    if is_usual(probe.head):
        return not probe.is_tar
    return probe.path.endswith(SAFETENSORS) and probe.head[8:9] in (b" ", b"\t", b"\n")


FORMAT = Format(
    NAME,
    TRAITS,
    sniff,
    reader="ckpt.formats.common.safetensors",
    suffixes=SAFETENSORS,
    writer="ckpt.formats.safetensors.writer",
    verifier="ckpt.formats.common.safetensors",
    salvager="ckpt.formats.common.safetensors",
)
