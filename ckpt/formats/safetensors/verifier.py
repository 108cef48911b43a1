"""What is left of a safetensors file that is cut off. The format has no checksums."""

from __future__ import annotations

from ckpt.formats.format import Salvage, no_checksums
from ckpt.formats.probe import Probe
from ckpt.limits import Budget
from ckpt.parse import parse_json
from ckpt.tree.metadata import METADATA

checksums = no_checksums


def salvage(probe: Probe) -> Salvage | None:
    if probe.is_folder:
        return None
    source, limits = probe.file, probe.limits
    if source.size < 9 or source.read(8, 1) != b"{":
        return None
    length = int.from_bytes(source.read(0, 8), "little")
    if length > min(limits.header_bytes, source.size - 8):
        return None
    header = parse_json(source.read(8, length), "safetensors header", Budget(limits), b'"data_offsets"')
    if not isinstance(header, dict):
        return None
    left = source.size - 8 - length
    ends: dict[str, int] = {}
    for name, fields in header.items():
        offsets = fields.get("data_offsets") if isinstance(fields, dict) and name != METADATA else None
        if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int:
            ends[name] = offsets[1] if offsets[0] != offsets[1] else 0
    return Salvage(
        tuple(name for name, end in ends.items() if end <= left),
        tuple(name for name, end in ends.items() if end > left),
    )
