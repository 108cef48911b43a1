"""The code that writers of checkpoints share: the plan of a file, the keys of its
storages, the stream of a nested checkpoint, and the comparison of the written file with
the plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from struct import pack

from ckpt.bytes.source import Memory
from ckpt.bytes.target import Sink
from ckpt.elements.blocks import same_bytes
from ckpt.elements.computed import little_endian_storage
from ckpt.formats.common.heads import MAGIC, PROTOCOL
from ckpt.model.checkpoint import Checkpoint, Value
from ckpt.model.errors import WriteError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Global, Node, PersistentId
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef, parts_of
from ckpt.model.text import show
from ckpt.pickle.calls import storage_class
from ckpt.pickle.emit import StorageId, emit_pickle
from ckpt.tree.find import aliases_to_note
from ckpt.tree.view import look

_PLAIN = r"[A-Za-z0-9_.-]{1,64}"


class Draft(NamedTuple):
    """A file that is ready to be written: its bytes, and what writes them to a sink at
    position 0.
    """

    size: int
    write: Callable[[Sink], None]


class Relisting(NamedTuple):
    """Other names for the items of a folder: the file that lists them, its new bytes,
    and new files for items that change.

    `unused` are data files of which the new list names nothing.
    """

    name: str
    content: bytes
    files: Sequence[tuple[str, Draft]]
    unused: Sequence[str]


class Keys:
    """Gives the storages of one file their keys, in the order of the pickle. `storages`
    keeps that order.

    A storage keeps its key when that is plain, or one of `kept`, and free; else it gets
    a number.
    """

    def __init__(self, storages: Iterable[Storage], kept: Container[str] = ()) -> None:
        self._kept = kept
        self.storages: dict[str, Storage] = {}
        self._ids: dict[int, StorageId] = {}
        self._reserved = {storage.id for storage in storages}
        self._next = 0

    def __call__(self, storage: Storage, persistent: PersistentId | None) -> StorageId:
        storage_id = self._ids.get(id(storage))
        if storage_id is not None:
            return storage_id
        pid = persistent.pid if persistent is not None else None
        if storage.nbytes:
            key = self._free_key(storage)
        else:
            key = self._key_of_empty(storage, pid)
        # The class as the file had it: `torch.cuda.FloatStorage` stays what it was.
        if type(pid) is tuple and type(pid[1]) is Global:
            cls = pid[1]
        else:
            cls = storage_class(storage)
        storage_id = StorageId(
            cls,
            key,
            "cpu" if storage.device is None else storage.device,
            storage_numel(storage, cls),
        )
        self._ids[id(storage)] = storage_id
        self.storages.setdefault(key, storage)
        return storage_id

    def _free_key(self, storage: Storage) -> str:
        key = storage.id
        is_usable = re.fullmatch(_PLAIN, key) is not None or key in self._kept
        if is_usable and key not in self.storages:
            return key
        # No number that a later storage may keep.
        while str(self._next) in self._reserved or str(self._next) in self.storages:
            self._next += 1
        return str(self._next)

    def _key_of_empty(self, storage: Storage, pid: Node) -> str:
        """The key of an empty storage that another dtype sees too, as torch writes it,
        else a free one.
        """
        named = pid[2] if type(pid) is tuple and len(pid) > 2 else None
        other = self.storages.get(str(named)) if isinstance(named, str) else None
        if other is None or other.nbytes or other.dtype == storage.dtype:
            return self._free_key(storage)
        return str(named)


def storage_numel(storage: Storage, cls: Global) -> int:
    """Count the elements of a storage as its class does.

    Untyped storages and elements below one byte count bytes.
    """
    if storage.dtype is None or cls.name.endswith("UntypedStorage"):
        return storage.nbytes
    return storage.nbytes // max(1, storage.dtype.bits // 8)


# --- the stream of torch.save before 1.6 ----------------------------------------------


def to_bytes(root: Node) -> bytes:
    """The stream of a checkpoint inside a pickle."""
    head, storages = stream_of(root, Keys(()), Limits())
    parts = [head]
    for storage in storages:
        assert storage.place is not None
        parts += (
            pack("<Q", storage_numel(storage, storage_class(storage))),
            *storage.place.read_blocks(),
        )
    return b"".join(parts)


def stream_of(root: Node, keys: Keys, limits: Limits) -> tuple[bytes, list[Storage]]:
    """The stream without its data, and the storages in the order of the data."""
    pickle = emit_pickle(root, keys, to_bytes, limits, legacy=True)
    order = sorted(keys.storages, key=lambda key: (*_place_of(keys.storages[key]), key))
    system = Dict()
    sizes = Dict()
    sizes.set(["short", "int", "long"], [2, 4, 4])
    # The sizes that torch writes on any machine of today. No torch reads them.
    system.set(
        ["protocol_version", "little_endian", "type_sizes"], [PROTOCOL, True, sizes]
    )
    parts = [
        emit_pickle(node, keys, to_bytes, limits) for node in (MAGIC, PROTOCOL, system)
    ]
    parts += (pickle, emit_pickle([*order], keys, to_bytes, limits))
    return b"".join(parts), [keys.storages[key] for key in order]


def _place_of(storage: Storage) -> tuple[int, int]:
    """A sort key: storages in the order of their file, then the new ones."""
    place = storage.place
    # No other place has an offset of its own.
    if isinstance(place, Range) and not isinstance(place.source, Memory):
        return 0, place.offset
    return 1, 0


# --- what was written, and what was planned -------------------------------------------


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written pickle has the tensors, the sharing and the
    values of the plan.
    """
    if len(planned.tensors) != len(written.tensors):
        raise difference_error(
            f"{len(written.tensors):,} tensors instead of {len(planned.tensors):,}"
        )
    ours: dict[Storage, int] = {}
    theirs: dict[Storage, int] = {}
    for entry, copy in zip(planned.tensors, written.tensors, strict=True):
        if (entry.name, entry.path) != (copy.name, copy.path):
            raise difference_error(
                f"{show(copy.name, 80)} instead of {show(entry.name, 80)}"
            )
        for mine, other in zip(
            parts_of(entry.tensor), parts_of(copy.tensor), strict=True
        ):
            # Storages are numbered as they are met: equal numbers mean equal sharing.
            our_number = ours.setdefault(mine.storage, len(ours))
            their_number = theirs.setdefault(other.storage, len(theirs))
            if our_number != their_number or not _is_same_tensor(mine, other):
                raise difference_error(f"tensor {show(entry.name, 80)} differs")
    if len(planned.values) != len(written.values):
        raise difference_error(
            f"{len(written.values):,} values instead of {len(planned.values):,}"
        )
    for before, after in zip(planned.values, written.values, strict=True):
        if not same_value(before, after):
            raise difference_error(f"value {show(before.name, 80)} differs")


def _is_same_tensor(mine: TensorRef, other: TensorRef) -> bool:
    """Tell whether a written tensor is as planned, but for where its storage lies."""
    # The storage is another one, and without a flag nothing requires a gradient.
    ours = mine._replace(storage=other.storage, requires_grad=bool(mine.requires_grad))
    theirs = other._replace(requires_grad=bool(other.requires_grad))
    # As plain tuples: tensors themselves are compared by identity.
    if ours[:] != theirs[:]:
        return False
    if mine.device not in (other.device, None):
        return False
    return mine.storage.nbytes == other.storage.nbytes


def compare_bytes(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless every byte of a storage in a written pickle equals its
    source.
    """
    seen: set[Storage] = set()
    for entry, other in zip(planned.tensors, written.tensors, strict=True):
        for part, copy in zip(
            parts_of(entry.tensor), parts_of(other.tensor), strict=True
        ):
            if part.storage in seen or part.storage.place is None:
                continue
            seen.add(part.storage)
            if not same_bytes(
                _storage_blocks(part.storage), _storage_blocks(copy.storage)
            ):
                raise difference_error(
                    f"the bytes of {show(entry.name, 80)} differ from the source"
                )


def _storage_blocks(storage: Storage) -> Iterator[bytes]:
    place = little_endian_storage(storage).place
    assert place is not None
    return place.read_blocks(0, storage.nbytes)


def same_value(value: Value, copy: Value) -> bool:
    """Tell whether two values have the same path and the same content."""
    if (value.path, value.fields, value.same_as) != (
        copy.path,
        copy.fields,
        copy.same_as,
    ):
        return False
    mine, other = look(value.node), look(copy.node)
    if mine.kind != other.kind:
        return False
    if mine.kind == "scalar":
        if mine.type != other.type:
            return False
        if _scalar_type(mine.value) is not _scalar_type(other.value):
            return False
        # NaN is not equal to itself.
        return mine.value == other.value or mine.value != mine.value
    return len(mine.children) == len(other.children)


def _scalar_type(value: object) -> type:
    """The type of a scalar. A bytearray may be written as a call, whose value reads as
    bytes.
    """
    return bytes if type(value) is bytearray else type(value)


def difference_error(what: str) -> WriteError:
    """The error for a written file that differs from the plan."""
    return WriteError(
        f"the written file differs from the plan and was not kept: {what}",
        hint="a bug in ckpt",
    )


# --- tensors under several names ------------------------------------------------------


def tensors_and_aliases(
    checkpoint: Checkpoint,
) -> tuple[list[tuple[str, TensorRef]], dict[str, str]]:
    """Return (the tensors of a file of the checkpoint, the other names of tied
    tensors).

    Tied tensors occur once, under their first name.
    The other names go into the metadata, as `safetensors.torch.save_model` writes them.
    """
    others = aliases_to_note(checkpoint.tensors)
    tensors: list[tuple[str, TensorRef]] = []
    for entry in checkpoint.tensors:
        ref = entry.tensor
        assert isinstance(ref, TensorRef)
        if entry.name not in others:
            tensors.append((entry.name, ref))
    return tensors, others
