"""Other bytes in the tensors of a checkpoint, which keep their structure, order,
strides and sharing.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.elements.blocks import is_dense, memory_order, permute_dims
from ckpt.elements.computed import little_endian_storage
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits
from ckpt.model.nodes import Node
from ckpt.model.places import Patched, Place
from ckpt.model.tensors import Storage, TensorRef
from ckpt.pickle.edit import Edit


def lies_close(ref: TensorRef) -> bool:
    """Tell whether the elements fill a range of the storage, in whatever order."""
    return is_dense(permute_dims(ref, memory_order(ref)))


class Filling:
    """The bytes that tensors get, one after the other, as load_state_dict copies."""

    def __init__(self) -> None:
        self._pieces: dict[Storage, list[tuple[int, Place]]] = {}
        self._made: dict[Storage, Storage] = {}

    def put(self, ref: TensorRef, place: Place) -> None:
        """Give a tensor that lies close its bytes, in the order in which they lie
        there.
        """
        self._pieces.setdefault(ref.storage, []).append((ref.extent[0], place))
        self._made.pop(ref.storage, None)

    def storage(self, old: Storage) -> Storage:
        """The storage that takes the place of another one; the same where it gets no
        bytes.
        """
        pieces = self._pieces.get(old)
        if pieces is None:
            return old
        if old not in self._made:
            begin, place = pieces[-1]
            if begin or place.nbytes != old.nbytes:
                place = Patched(little_endian_storage(old).noted, old.nbytes, pieces)
            device = "cpu" if old.device == "meta" else old.device
            self._made[old] = old._replace(place=place, crc=None, device=device)
        return self._made[old]

    def current(self, ref: TensorRef) -> TensorRef:
        """The tensor over what is there by now."""
        return ref._replace(storage=self.storage(ref.storage))

    def root_of(self, checkpoint: Checkpoint) -> Node:
        """The tree of a checkpoint over the new storages."""
        return Restored(self.storage).copy(checkpoint.root)

    def checkpoint(self, checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
        """The checkpoint over the new storages. Raises LimitError."""
        if self._pieces:
            return edited_checkpoint(checkpoint, self.root_of(checkpoint), limits)
        return checkpoint


class Restored(Edit):
    """Storages in the place of others, as a function gives them."""

    def __init__(self, storage: Callable[[Storage], Storage]) -> None:
        super().__init__()
        self._storage = storage

    def storage(self, storage: Storage) -> Storage:
        return self._storage(storage)
