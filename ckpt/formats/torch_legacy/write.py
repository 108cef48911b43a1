"""Writing the stream that torch.save wrote before 1.6."""

from __future__ import annotations

from struct import pack

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements.blocks import blocks, little, pour
from ckpt.formats.draft import Draft, Keys, numel
from ckpt.formats.torch_legacy.read import MAGIC, PROTOCOL, needs_data
from ckpt.formats.written import compare, compare_bytes
from ckpt.io.commit import Sink
from ckpt.io.source import Memory
from ckpt.limits import Limits
from ckpt.nodes import Dict, Node
from ckpt.pickles.calls import is_typed, storage_class
from ckpt.pickles.emit import emit
from ckpt.pickles.imports import reached
from ckpt.tensors import Range, Storage
from ckpt.text import show
from ckpt.tree.find import places_of

__all__ = ["compare", "compare_bytes", "draft", "losses", "to_bytes", "unfit"]


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The stream of a checkpoint. Raises LimitError."""
    head, storages = _stream(checkpoint.root, Keys(checkpoint.storages), limits)

    def write(sink: Sink) -> None:
        sink.write(head)
        for storage in storages:
            sink.write(pack("<Q", numel(storage, storage_class(storage))))
            pour(little(storage), sink, crc=False)

    return Draft(len(head) + sum(8 + storage.nbytes for storage in storages), write)


def losses(checkpoint: Checkpoint) -> list[str]:
    """What the format cannot hold: untyped storages, and what torch makes from data that comes after the pickle."""
    untyped = [
        f"storage {show(storage.id, 80)} (untyped)"
        for storage in checkpoint.storages
        if storage.place is not None and not is_typed(storage)
    ]
    early = {id(call): kind for call in reached(checkpoint.root)[1] if (kind := needs_data(call)) is not None}
    names = places_of(checkpoint.root, set(early)) if early else {}
    return [*untyped, *(f"{show(names.get(at) or 'the root', 80)} ({kind})" for at, kind in early.items())]


def unfit(entry: Entry) -> str | None:
    """Always None: the format holds every tensor."""
    return None


def to_bytes(root: Node) -> bytes:
    """The stream of a checkpoint inside a pickle."""
    head, storages = _stream(root, Keys(()), Limits())
    parts = [head]
    for storage in storages:
        assert storage.place is not None
        parts += (pack("<Q", numel(storage, storage_class(storage))), *blocks(storage.place))
    return b"".join(parts)


def _stream(root: Node, keys: Keys, limits: Limits) -> tuple[bytes, list[Storage]]:
    """The stream without its data, and the storages in the order of the data."""
    pickle = emit(root, keys, to_bytes, limits, legacy=True)
    order = sorted(keys.storages, key=lambda key: (*_place_of(keys.storages[key]), key))
    system = Dict()
    sizes = Dict()
    sizes.set(["short", "int", "long"], [2, 4, 4])
    system.set(["protocol_version", "little_endian", "type_sizes"], [PROTOCOL, True, sizes])
    parts = [emit(node, keys, to_bytes, limits) for node in (MAGIC, PROTOCOL, system)]
    parts += (pickle, emit([*order], keys, to_bytes, limits))
    return b"".join(parts), [keys.storages[key] for key in order]


def _place_of(storage: Storage) -> tuple[int, int]:
    """A sort key: storages in the order of their file, then the new ones."""
    if isinstance(storage.place, Range) and not isinstance(storage.place.source, Memory):
        return 0, storage.place.offset
    return 1, 0
