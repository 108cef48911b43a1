"""What is left of a file of torch.save before 1.6 that is cut off. The format has no checksums."""

from __future__ import annotations

from ckpt.formats.format import Salvage, no_checksums
from ckpt.formats.probe import HEAD_BYTES
from ckpt.formats.torch_legacy.read import is_legacy, salvaged
from ckpt.io.source import Source
from ckpt.limits import Limits
from ckpt.tensors import Range, parts_of
from ckpt.tree.walk import flatten

checksums = no_checksums


def salvage(source: Source, limits: Limits) -> Salvage | None:
    if not is_legacy(source.read(0, min(HEAD_BYTES, source.size))):
        return None
    root = salvaged(source, limits)
    whole: list[str] = []
    lost: list[str] = []
    for entry in flatten(root, limits).tensors:
        places = [part.storage.place for part in parts_of(entry.tensor) if part.nbytes]
        is_cut = any(isinstance(place, Range) and place.offset + place.size > source.size for place in places)
        (lost if is_cut else whole).append(entry.name)
    return Salvage(tuple(whole), tuple(lost))
