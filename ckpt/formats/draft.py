"""What the writers of pickle formats share: the plan of a file, and the keys of its storages."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable

from ckpt.io.commit import Sink
from ckpt.nodes import Global, PersistentId
from ckpt.pickles.calls import storage_class
from ckpt.pickles.emit import StorageId
from ckpt.rows import NamedTuple
from ckpt.tensors import Storage

_PLAIN = r"[A-Za-z0-9_.-]{1,64}"


class Draft(NamedTuple):
    """A file that is ready to be written: its bytes, and what writes them to a sink at position 0."""

    size: int
    write: Callable[[Sink], None]


class Keys:
    """Gives the storages of one file their keys, in the order of the pickle. `storages` keeps that order.

    A storage keeps its key when that is plain, or one of `kept`, and free; else it gets a number.
    """

    def __init__(self, storages: Iterable[Storage], kept: Container[str] = ()) -> None:
        self._kept = kept
        self.storages: dict[str, Storage] = {}
        self._ids: dict[int, StorageId] = {}
        self._reserved = {storage.id for storage in storages}
        self._next = 0

    def __call__(self, storage: Storage, persistent: PersistentId | None) -> StorageId:
        storage_id = self._ids.get(id(storage))
        if storage_id is None:
            key = storage.id
            if (re.fullmatch(_PLAIN, key) is None and key not in self._kept) or key in self.storages:
                while str(self._next) in self._reserved or str(self._next) in self.storages:
                    self._next += 1
                key = str(self._next)
            pid = persistent.pid if persistent is not None else None
            cls = pid[1] if type(pid) is tuple and type(pid[1]) is Global else storage_class(storage)
            storage_id = self._ids[id(storage)] = StorageId(
                cls, key, "cpu" if storage.device is None else storage.device, numel(storage, cls)
            )
            self.storages[key] = storage
        return storage_id


def numel(storage: Storage, cls: Global) -> int:
    """Elements of a storage as its class counts them. Untyped storages and elements below one byte count bytes."""
    if storage.dtype is None or cls.name.endswith("UntypedStorage"):
        return storage.nbytes
    return storage.nbytes // max(1, storage.dtype.bits // 8)
