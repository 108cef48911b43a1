"""Who shares memory with whom: storages with the tensors that look into them, and the bytes they see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ckpt.checkpoint import Checkpoint, Entries, Entry, looks_of
from ckpt.columns import Column, parts
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.rows import NamedTuple
from ckpt.tensors import Storage, Tensor, TensorRef, dense, overlapping, parts_of

Kind = Literal["own", "tied", "packed", "overlapping"]


class StorageUse(NamedTuple):
    """A storage and the tensors over it, in file order.

    `kind`: own (one tensor, or none), tied (all see equal ranges), packed (disjoint slices, as cuDNN keeps
    LSTM weights; some may be tied), overlapping (anything else). `used` counts the bytes that tensors see. Where
    different views overlap it counts those from the first to the last, which `slim` keeps: a bound.
    """

    storage: Storage
    tensors: tuple[str, ...]
    kind: Kind
    used: int
    is_bound: bool = False
    """Whether less than `used` is seen for sure."""

    @property
    def held(self) -> int:
        """Bytes that the storage keeps alive and no tensor sees."""
        return self.storage.nbytes - self.used if self.tensors else 0


def storage_uses(checkpoint: Checkpoint) -> tuple[StorageUse, ...]:
    """Every storage of a checkpoint, in the order in which the file names them."""
    users = _users(checkpoint)
    return tuple([_shared(storage, users.get(id(storage), [])) for storage in checkpoint.storages])


def holding_storages(checkpoint: Checkpoint) -> Iterator[StorageUse]:
    """The storages with bytes that no tensor sees, in the order in which the file names them."""
    if not _is_apart(checkpoint.tensors) or not all(map(_is_whole, set(looks_of(checkpoint.tensors)))):
        yield from (row for row in storage_uses(checkpoint) if row.held > 0)


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor sees all of its storage."""
    if type(tensor) is not TensorRef or 0 in tensor.stride:
        return False
    return tensor.extent[1] - tensor.extent[0] == tensor.storage.nbytes <= tensor.nbytes


def _is_apart(entries: Sequence[Entry]) -> bool:
    """Whether each tensor, and each part of one, has a storage of its own.

    Those of a column do, unless another tensor has asked for one of their storages: then it is made. And unless the dict of
    the column has a second place in the tree.
    """
    used: list[Storage] = []
    columns: set[int] = set()
    for part in parts(entries):
        if isinstance(part, Entries):
            if id(part.tensors) in columns:
                return False
            columns.add(id(part.tensors))
            storages = part.tensors.storages
            used += storages.made if isinstance(storages, Column) else storages
        else:
            used += [each.storage for entry in part for each in parts_of(entry.tensor)]
    return len(set(used)) == len(used)


def _users(checkpoint: Checkpoint) -> dict[int, list[tuple[str, TensorRef]]]:
    """The id of each storage that tensors look into -> their names, and the tensors or their parts."""
    users: dict[int, list[tuple[str, TensorRef]]] = {}
    for entry in checkpoint.tensors:
        tensor = entry.tensor
        if type(tensor) is TensorRef:
            user = (entry.name, tensor)
            same = users.setdefault(id(tensor.storage), found := [user])
            if same is not found:
                same.append(user)
        else:
            for label, part in tensor.parts:
                users.setdefault(id(part.storage), []).append((f"{entry.name}[{label}]", part))
    return users


def _shared(storage: Storage, users: list[tuple[str, TensorRef]]) -> StorageUse:
    ranges: dict[tuple[int, int], list[str]] = {}
    for name, ref in users:
        ranges.setdefault(ref.extent, []).append(name)
    used, is_bound, overlaps = 0, False, False
    for group in overlapping([ref for _, ref in users]):
        span = max(ref.extent[1] for ref in group) - group[0].extent[0]
        seen = {ref.geometry[:4]: _seen(ref) for ref in group}
        used += min(*seen.values(), span) if len(seen) == 1 else span
        is_bound |= len(seen) > 1 and sum(seen.values()) < span
        overlaps |= len({ref.extent for ref in group}) > 1
    ties = any(len(names) > 1 and last > first for (first, last), names in ranges.items())
    kind: Kind = "overlapping" if overlaps else "packed" if len(ranges) > 1 else "tied" if ties else "own"
    return StorageUse(storage, tuple(name for name, _ in users), kind, used, is_bound)


def _seen(ref: TensorRef) -> int:
    """The bytes of the elements that a view sees, each once; at most those of its extent."""
    first, last = ref.extent
    return min(dense(ref).nbytes, last - first) if ref.dtype.bits >= 8 else last - first


def tied_weights(survey: Survey) -> list[tuple[str, ...]]:
    """The names of weights that are one and the same memory, a group each.

    Averages may share buffers with their model and are compared on their own. What other sections share, the parts
    of one tensor, what a quantized layer packs and single numbers that are no parameters are no weights.
    """
    averages = [[section] for section in survey.sections if section.kind == "ema"]
    found: list[tuple[str, ...]] = []
    if _is_apart(survey.tensors):
        return found
    uses = Counter([id(part.storage) for entry in survey.tensors for part in parts_of(entry.tensor)])
    for sections in (survey.candidates, *averages):
        groups: dict[tuple[tuple[Storage, tuple[int, int]], ...], list[str]] = {}
        for index, entry in _named(sections):
            parts = parts_of(entry.tensor)
            if all(uses[id(part.storage)] < 2 for part in parts):
                continue
            if entry.tensor.shape or survey.roles[index].role == "parameter":
                memory = tuple((part.storage, part.extent) for part in parts)
                groups.setdefault(memory, []).append(entry.name)
        found += [
            tuple(names)
            for memory, names in groups.items()
            if len(names) > 1 and any(last > first for _, (first, last) in memory)
        ]
    return list(dict.fromkeys(found))


def _named(sections: Iterable[Section]) -> Iterator[tuple[int, Entry]]:
    """The tensors that state_dict() lists by a name of their own, not within the tuple of a packed layer."""
    for section in sections:
        depth = len(section.path)
        for index, entry in zip(section.indices, section.entries, strict=True):
            if entry.registered and not any(isinstance(step, int) for step in entry.path[depth:]):
                yield index, entry
