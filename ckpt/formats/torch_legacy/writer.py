"""Writing the stream that torch.save wrote before 1.6."""

from __future__ import annotations

from struct import pack

from ckpt.bytes.far import iterate_ahead
from ckpt.bytes.target import Sink
from ckpt.elements.blocks import pour
from ckpt.elements.computed import little_endian_storage
from ckpt.formats.common.stream import needs_data
from ckpt.formats.common.writing import (
    Draft,
    Keys,
    compare,
    compare_bytes,
    storage_numel,
    stream_of,
)
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.limits import Limits
from ckpt.model.text import show
from ckpt.pickle.calls import is_typed, storage_class
from ckpt.pickle.judge.imports import names_and_calls
from ckpt.tree.find import places_of

__all__ = ["compare", "compare_bytes", "draft", "losses", "unfit"]


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The stream of a checkpoint. Raises LimitError."""
    head, storages = stream_of(checkpoint.root, Keys(checkpoint.storages), limits)

    def write(sink: Sink) -> None:
        sink.write(head)
        for storage in iterate_ahead(storages):
            # The number of elements, then the elements, little-endian on every machine.
            sink.write(pack("<Q", storage_numel(storage, storage_class(storage))))
            pour(little_endian_storage(storage), sink, crc=False)

    return Draft(len(head) + sum(8 + storage.nbytes for storage in storages), write)


def losses(checkpoint: Checkpoint) -> list[str]:
    """Return the parts that the format cannot hold, one line each.

    They are untyped storages, and objects that torch makes from data that comes after
    the pickle.
    """
    untyped = [
        f"storage {show(storage.id, 80)} (untyped)"
        for storage in checkpoint.storages
        if storage.place is not None and not is_typed(storage)
    ]
    _, calls = names_and_calls(checkpoint.root)
    kinds: dict[int, str] = {}
    for call in calls:
        kind = needs_data(call)
        if kind is not None:
            kinds[id(call)] = kind
    names = places_of(checkpoint.root, set(kinds)) if kinds else {}
    early = [
        f"{show(names.get(place) or 'the root', 80)} ({kind})"
        for place, kind in kinds.items()
    ]
    return [*untyped, *early]


def unfit(entry: Entry) -> str | None:
    """Return None: the format holds every tensor."""
    return None
