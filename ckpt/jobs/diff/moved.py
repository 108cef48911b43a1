"""Tensors that moved to another name: on one side only each, and equal byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from ckpt.checkpoint import Entry
from ckpt.elements.blocks import slice_of
from ckpt.elements.compare import kind_of
from ckpt.elements.spans import cuts
from ckpt.io.executor import Executor, Failed, Task, run_each
from ckpt.jobs.check.sums import digest
from ckpt.jobs.diff.rows import Row
from ckpt.tensors import Composite, Tensor, TensorRef, parts_of

_UNFOLDED = 1 << 30
"""Bytes to which a view of few may unfold and still be looked for."""
_DEPTH = 32
"""Parts of a name that are compared, from its end."""


def with_moves(rows: list[Row], executor: Executor) -> list[Row]:
    """The rows with each tensor that moved to another name as one row, at the place of the new name.

    Equal tensors are paired by the end of their names, the longest first; ambiguous ones stay unpaired. What they are is
    told by SHA-256, so each is read once, and no two must be read side by side.
    """
    gone = {index: row.before for index, row in enumerate(rows) if row.status == "removed" and row.before}
    come = {index: row.after for index, row in enumerate(rows) if row.status == "added" and row.after}
    gone, come = _movable(gone), _movable(come)
    shapes = {_geometry(entry.tensor) for entry in gone.values()}
    shapes &= {_geometry(entry.tensor) for entry in come.values()}
    if not shapes:
        return rows
    gone = {index: entry for index, entry in gone.items() if _geometry(entry.tensor) in shapes}
    come = {index: entry for index, entry in come.items() if _geometry(entry.tensor) in shapes}
    every = gone | come
    content, unread = _contents({index: entry.tensor for index, entry in every.items()}, executor)
    rows = [row._replace(unread=unread[index]) if index in unread else row for index, row in enumerate(rows)]
    gone = {index: entry for index, entry in gone.items() if index in content}
    come = {index: entry for index, entry in come.items() if index in content}
    pairs: list[tuple[int, int]] = []
    deepest = max(entry.name.count(".") + 1 for entry in every.values())
    for depth in range(min(deepest, _DEPTH), -1, -1):

        def key(index: int, depth: int = depth) -> Hashable:
            return content[index], _end(every[index].name, depth)

        found = _unique(gone, come, key)
        pairs += found
        gone = {index: entry for index, entry in gone.items() if index not in {old for old, _ in found}}
        come = {index: entry for index, entry in come.items() if index not in {new for _, new in found}}
    moves = {new: old for old, new in pairs}
    dropped = set(moves.values())
    return [
        _moved(rows[moves[index]], row) if index in moves else row
        for index, row in enumerate(rows)
        if index not in dropped
    ]


def _moved(old: Row, new: Row) -> Row:
    labels, indices = (old.labels[0], new.labels[1]), (old.indices[0], new.indices[1])
    held = old.in_optimizer[0], new.in_optimizer[1]
    return new._replace(
        status="renamed", before=old.before, labels=labels, indices=indices, in_optimizer=held
    )


def _movable(entries: dict[int, Entry]) -> dict[int, Entry]:
    """Those with elements to look for."""
    return {index: entry for index, entry in entries.items() if _can_move(entry)}


def _unique(
    gone: Iterable[int], come: Iterable[int], key_of: Callable[[int], Hashable]
) -> list[tuple[int, int]]:
    """The pairs of one row of each side that alone have a key."""
    sides: list[dict[Hashable, list[int]]] = [{}, {}]
    for indices, side in zip((gone, come), sides, strict=True):
        for index in indices:
            side.setdefault(key_of(index), []).append(index)
    return [
        (old[0], sides[1][key][0])
        for key, old in sides[0].items()
        if len(old) == len(sides[1].get(key, ())) == 1
    ]


def _end(name: str, depth: int) -> str:
    """The last `depth` parts of a name."""
    return ".".join(name.split(".")[-depth:]) if depth else ""


def _can_move(entry: Entry) -> bool:
    return bool(entry.tensor.numel) and all(
        part.storage.place is not None and part.nbytes <= max(part.storage.nbytes, _UNFOLDED)
        for part in parts_of(entry.tensor)
    )


def _geometry(tensor: Tensor) -> tuple[Hashable, ...]:
    return (tensor.dtype, tensor.shape, tensor.layout)


def _contents(tensors: dict[int, Tensor], executor: Executor) -> tuple[dict[int, Hashable], dict[int, str]]:
    """What tensors hold, equal for equal ones, and why some cannot be read."""
    alike: dict[Hashable, list[TensorRef]] = {}
    for tensor in tensors.values():
        if isinstance(tensor, TensorRef):
            alike.setdefault(_geometry(tensor), []).append(tensor)
    spans = {geometry: cuts(*refs) for geometry, refs in alike.items()}  # one cut for all that may be equal
    tasks: dict[int, list[Task[str]]] = {}
    for index, tensor in tensors.items():
        if isinstance(tensor, TensorRef):
            parts = [slice_of(tensor, first, last) for first, last in spans[_geometry(tensor)]]
            tasks[index] = [Task(digest, (part,), part.nbytes) for part in parts]
        else:
            tasks[index] = [Task(digest, (tensor,), tensor.nbytes)]
    results = iter(run_each(executor, [task for row in tasks.values() for task in row]))
    found: dict[int, Hashable] = {}
    unread: dict[int, str] = {}
    for index, tensor in tensors.items():
        digests: list[str] = []
        for result in [next(results) for _ in tasks[index]]:
            if isinstance(result, Failed):
                unread.setdefault(index, result.problem)
            else:
                digests.append(result)
        if index not in unread:
            found[index] = (*_geometry(tensor), _detail(tensor), *digests)
    return found, unread


def _detail(tensor: Tensor) -> Hashable:
    """What its bytes mean beside its dtype."""
    return kind_of(tensor) if isinstance(tensor, Composite) else None
