"""What is left of a file of torch.save before 1.6 that is cut off. The format has no checksums."""

from __future__ import annotations

from ckpt.formats.common.stream import is_legacy, salvaged
from ckpt.formats.format import Salvage, no_checksums
from ckpt.formats.probe import Probe
from ckpt.tensors import Range, parts_of
from ckpt.tree.walk import flatten

checksums = no_checksums


def salvage(probe: Probe) -> Salvage | None:
    if not is_legacy(probe.head):
        return None
    root = salvaged(probe.file, probe.limits)
    whole: list[str] = []
    lost: list[str] = []
    for entry in flatten(root, probe.limits).tensors:
        places = [part.storage.place for part in parts_of(entry.tensor) if part.nbytes]
        is_cut = any(isinstance(place, Range) and place.offset + place.size > probe.size for place in places)
        (lost if is_cut else whole).append(entry.name)
    return Salvage(tuple(whole), tuple(lost))
