"""One metadata of those of several ranks (`save(use_collectives=False)` leaves one file for each), and the state dict that was
saved, put together again from the paths of its leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ckpt.errors import UnreadableError
from ckpt.formats.dcp.metadata import Chunks, Copy, Item, Metadata, TensorRow
from ckpt.names import Path
from ckpt.nodes import Dict, Node
from ckpt.text import show


def merged(ranks: Sequence[Metadata]) -> Metadata:
    """The union of the chunks; of what several ranks hold the first is taken, the others are its copies.

    Raises UnreadableError where the ranks give a tensor two sizes or types.
    """
    if len(ranks) == 1:
        return ranks[0]
    tensors: dict[str, TensorRow] = {}
    objects: dict[str, Item | None] = {}
    paths: dict[str, Path] = {}
    files: dict[str, int] = {}
    copies: list[Copy] = []
    places: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], int]] = {}
    for rank in ranks:
        paths |= {name: path for name, path in rank.paths.items() if name not in paths}
        for name, item in rank.objects.items():
            if objects.setdefault(name, item) is not item and item is not None:
                copies.append(Copy(name, None, item))
        for name, row in rank.tensors.items():
            own = tensors.setdefault(name, row._replace(chunks=Chunks(len(row.shape))))
            if name in objects or (own.dtype, own.shape) != (row.dtype, row.shape):
                raise UnreadableError(f"the metadata of two ranks disagree on {show(name, 80)}")
            known = places.setdefault(name, {})
            for index, (offsets, sizes) in enumerate(row.chunks.boxes()):
                item = rank.item(row, index) if row.chunks.files[index] >= 0 else None
                at = known.get((offsets, sizes))
                if at is not None and own.chunks.files[at] >= 0:
                    if item is not None and 0 not in sizes:
                        copies.append(Copy(name, at, item))
                    continue
                if at is None:
                    at = known[offsets, sizes] = len(own.chunks)
                    own.chunks.add(offsets, sizes)
                if item is not None:
                    own.chunks.place(at, files.setdefault(item.file, len(files)), item)
    for item in (*objects.values(), *(copy.item for copy in copies)):
        if item is not None:
            files.setdefault(item.file, len(files))
    first = ranks[0]
    return Metadata(
        tensors,
        objects,
        paths,
        tuple(files),
        sum(rank.unused for rank in ranks),
        first.version,
        tuple(pickle for rank in ranks for pickle in rank.pickles),
        tuple(copies),
    )


def shared_spans(metadata: Metadata) -> dict[str, str]:
    """Tensors and objects whose items share bytes with another item, by name, and what they share."""
    spans: list[tuple[int, int, int, str]] = []
    numbers = {file: number for number, file in enumerate(metadata.files)}
    for name, row in metadata.tensors.items():
        chunks = row.chunks
        spans += [
            (file, begin, begin + length, name)
            for file, begin, length in zip(chunks.files, chunks.begins, chunks.lengths, strict=True)
            if file >= 0
        ]
    further = [*metadata.objects.items(), *((copy.name, copy.item) for copy in metadata.copies)]
    spans += [
        (numbers[item.file], item.offset, item.offset + item.length, name)
        for name, item in further
        if item is not None
    ]
    spans.sort()
    found: dict[str, str] = {}
    for one, two in pairwise(spans):
        if one[0] == two[0] and two[1] < one[2]:
            names = f"{show(one[3], 80)} and {show(two[3], 80)}"
            text = f"the items of {names} share bytes of {show(metadata.files[one[0]], 80)}"
            found.setdefault(one[3], text)
            found.setdefault(two[3], text)
    return found


_GAPS = 10_000
"""Positions of lists that may be left out, since torch saves no empty dict."""


class _Branch:
    """A dict or a list that is being put together. It is a list when its keys are the first numbers."""

    __slots__ = ("below",)

    def __init__(self) -> None:
        self.below: dict[str | int, Node | _Branch] = {}


def tree_of(leaves: Sequence[tuple[str, Path, Node]]) -> Node:
    """The tree of (name, path, node) leaves.

    Raises UnreadableError where one path leads through another leaf, or to a position that no list has.
    """
    root = _Branch()
    for name, path, node in leaves:
        far = max((step for step in path if type(step) is int), default=0)
        if far >= len(leaves) + _GAPS:  # torch makes a list of as many
            held = f"position {far:,} of a list, and the checkpoint has {len(leaves):,} values"
            raise UnreadableError(f".metadata: {show(name, 80)} lies at {held}")
        branch = root
        for step in path[:-1]:
            inner = branch.below.setdefault(step, _Branch())
            if not isinstance(inner, _Branch):
                raise UnreadableError(f".metadata: the path of {show(name, 80)} leads through a value")
            branch = inner
        if path[-1] in branch.below:
            raise UnreadableError(f".metadata: the path of {show(name, 80)} is that of another value")
        branch.below[path[-1]] = node
    return _built(root)


def _built(root: _Branch) -> Node:
    """The nodes, without recursion: a path may be long."""
    made: dict[int, Node] = {}
    todo = [root]
    while todo:
        branch = todo[-1]
        missing = [
            inner for inner in branch.below.values() if isinstance(inner, _Branch) and id(inner) not in made
        ]
        if missing:
            todo += missing
            continue
        todo.pop()
        rows = {
            key: made[id(inner)] if isinstance(inner, _Branch) else inner
            for key, inner in branch.below.items()
        }
        made[id(branch)] = _node(rows)
    return made[id(root)]


def _node(rows: dict[str | int, Node]) -> Node:
    if rows and all(type(key) is int for key in rows) and set(rows) == set(range(len(rows))):
        return [rows[index] for index in range(len(rows))]
    node = Dict()
    node.set(list(rows), list(rows.values()))
    return node
