"""Tensors that moved to another name: on one side only each, and equal byte for byte."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence

from ckpt.checkpoint import Entry
from ckpt.elements.blocks import elements
from ckpt.elements.compare import compare, in_threads
from ckpt.jobs.diff.rows import Row
from ckpt.tensors import parts_of

_Pairs = list[tuple[Row, Row]]
_UNFOLDED = 1 << 30
"""Bytes to which a view of few may unfold and still be looked for."""


def renamed(rows: list[Row]) -> list[Row]:
    """The rows with each tensor that moved to another name as one row.

    Two that are equal are told apart by the end of their names, the longest first; where that leaves a choice,
    nothing is paired. Reads the tensors of one side only, once.
    """
    gone = [row for row in rows if row.status == "removed" and _can_move(row.before)]
    come = [row for row in rows if row.status == "added" and _can_move(row.after)]
    shapes = {_geometry(row.before) for row in gone} & {_geometry(row.after) for row in come}
    if not shapes:
        return rows
    gone = [row for row in gone if _geometry(row.before) in shapes]
    come = [row for row in come if _geometry(row.after) in shapes]
    sums = in_threads(_checksum, [*gone, *come])
    content = {id(row): key for row, key in zip([*gone, *come], sums, strict=True)}
    pairs: _Pairs = []
    deepest = max(row.name.count(".") + 1 for row in (*gone, *come))
    for depth in range(min(deepest, 32), -1, -1):
        found = _unique(gone, come, lambda row: (content[id(row)], _end(row.name, depth)))  # noqa: B023
        pairs += found
        taken = {id(row) for pair in found for row in pair}
        gone = [row for row in gone if id(row) not in taken]
        come = [row for row in come if id(row) not in taken]
    moved: dict[int, Row] = {}
    for old, new in pairs:
        assert old.before is not None and new.after is not None
        if compare(old.before.tensor, new.after.tensor) is None:
            labels = (old.labels[0], new.labels[1])
            moved[id(new)] = new._replace(status="renamed", before=old.before, labels=labels)
            moved[id(old)] = old
    return [moved.get(id(row), row) for row in rows if moved.get(id(row)) is not row]


def _unique(gone: Sequence[Row], come: Sequence[Row], key_of: Callable[[Row], Hashable]) -> _Pairs:
    """The pairs of one row of each side that alone have a key."""
    sides: list[dict[Hashable, list[Row]]] = [{}, {}]
    for rows, side in zip((gone, come), sides, strict=True):
        for row in rows:
            side.setdefault(key_of(row), []).append(row)
    return [
        (old[0], sides[1][key][0])
        for key, old in sides[0].items()
        if len(old) == len(sides[1].get(key, ())) == 1
    ]


def _end(name: str, depth: int) -> str:
    """The last `depth` parts of a name."""
    return ".".join(name.split(".")[-depth:]) if depth else ""


def _can_move(entry: Entry | None) -> bool:
    return (
        entry is not None
        and bool(entry.tensor.numel)
        and all(
            part.storage.place is not None and part.nbytes <= max(part.storage.nbytes, _UNFOLDED)
            for part in parts_of(entry.tensor)
        )
    )


def _geometry(entry: Entry | None) -> tuple[object, ...]:
    return () if entry is None else (entry.tensor.dtype, entry.tensor.shape, entry.tensor.layout)


def _checksum(row: Row) -> tuple[object, ...]:
    """What two equal tensors have in common: their geometry, and a checksum of their elements."""
    entry = row.before or row.after
    assert entry is not None
    found = 0
    for part in parts_of(entry.tensor):
        for block in elements(part):
            found = zlib.crc32(block, found)
    return (*_geometry(entry), found)
