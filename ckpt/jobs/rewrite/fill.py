"""Other bytes for the tensors of a checkpoint: the storages that hold them, and the edit that puts these in place."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.elements.blocks import is_dense, little, memory_order, permuted, place_of
from ckpt.jobs.rewrite.report import Pairing
from ckpt.pickles.edit import Edit
from ckpt.tensors import Overlaid, Patched, Place, Storage, TensorRef, noted


def lies_close(ref: TensorRef) -> bool:
    """Tell whether the elements fill a range of the storage, in whatever order."""
    return is_dense(permuted(ref, memory_order(ref)))


def _content(row: Pairing, mine: TensorRef, other: TensorRef) -> Place:
    """The bytes that a tensor of the target gets, in the order in which they lie there."""
    order = memory_order(mine)
    if row.status == "sliced":
        return Overlaid(permuted(mine, order), permuted(other, order))
    return place_of(permuted(other, order), mine.dtype)


def filled(taken: Sequence[Pairing]) -> dict[Storage, Storage]:
    """The storages of the target that change, by the old one; in order, as load_state_dict copies."""
    pieces: dict[Storage, list[tuple[int, Place]]] = {}
    made: dict[Storage, Storage] = {}
    for row in taken:
        assert row.target is not None and row.source is not None
        mine, other = row.target.tensor, row.source.tensor
        assert isinstance(mine, TensorRef) and isinstance(other, TensorRef)
        if not mine.numel:
            continue
        old = mine.storage
        found = pieces.setdefault(old, [])
        # A block is put over what is there by then.
        place = _content(row, mine._replace(storage=made.get(old, old)), other)
        found.append((mine.extent[0], place))
        device = "cpu" if old.device == "meta" else old.device
        if mine.extent[0] == 0 and place.size == old.nbytes:
            new = old._replace(place=place, crc=None, device=device)
        else:
            patched = Patched(noted(little(old)), old.nbytes, found)
            new = old._replace(place=patched, crc=None, device=device)
        made[old] = new
    return made


class Fill(Edit):
    """Storages with other bytes."""

    def __init__(self, made: dict[Storage, Storage]) -> None:
        super().__init__()
        self._made = made

    def storage(self, storage: Storage) -> Storage:
        return self._made.get(storage, storage)
