"""Who shares memory with whom: storages with the tensors that look into them, and the bytes they see."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ckpt.checkpoint import Checkpoint
from ckpt.tensors import Storage, TensorRef

Kind = Literal["own", "tied", "packed", "overlapping"]


class StorageUse(NamedTuple):
    """A storage and the tensors over it, in file order.

    `kind`: own (one tensor, or none), tied (all see equal ranges), packed (disjoint slices, as cuDNN keeps
    LSTM weights; some may be tied), overlapping (anything else). `used` counts the bytes that tensors see.
    """

    storage: Storage
    tensors: tuple[str, ...]
    kind: Kind
    used: int
    ties: tuple[tuple[str, ...], ...]

    @property
    def held(self) -> int:
        """Bytes that the storage keeps alive and no tensor sees."""
        return self.storage.nbytes - self.used if self.tensors else 0


def storage_uses(checkpoint: Checkpoint) -> tuple[StorageUse, ...]:
    """Every storage of a checkpoint, in the order in which the file names them."""
    users: dict[Storage, list[tuple[str, TensorRef]]] = {}
    for entry in checkpoint.tensors:
        tensor = entry.tensor
        if type(tensor) is TensorRef:
            users.setdefault(tensor.storage, []).append((entry.name, tensor))
        else:
            for label, part in tensor.parts:
                users.setdefault(part.storage, []).append((f"{entry.name}[{label}]", part))
    return tuple(_shared(storage, users.get(storage, [])) for storage in checkpoint.storages)


def _shared(storage: Storage, users: list[tuple[str, TensorRef]]) -> StorageUse:
    if len(users) == 1:
        name, ref = users[0]
        first, last = ref.extent
        return StorageUse(storage, (name,), "own", last - first, ())
    ranges: dict[tuple[int, int], list[str]] = {}
    for name, ref in users:
        ranges.setdefault(ref.extent, []).append(name)
    used, end, overlapping = 0, 0, False
    for first, last in sorted(ranges):
        overlapping = overlapping or first < end
        used += max(0, last - max(first, end))
        end = max(end, last)
    ties = tuple(tuple(names) for extent, names in ranges.items() if len(names) > 1 and extent[1] > extent[0])
    kind: Kind = "overlapping" if overlapping else "packed" if len(ranges) > 1 else "tied" if ties else "own"
    return StorageUse(storage, tuple(name for name, _ in users), kind, used, ties)
