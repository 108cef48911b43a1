"""One checkpoint over several files: the weights at the root, the other files under their own names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Container, Entry, Notice, Refusal, Value
from ckpt.names import Path, natural
from ckpt.nodes import Dict
from ckpt.tree.metadata import METADATA, metadata_node, metadata_of
from ckpt.tree.view import look


class Part(NamedTuple):
    """A file of the checkpoint by its name. Its content gets the key `section`, which is empty for a shard."""

    name: str
    section: str
    checkpoint: Checkpoint

    def name_of(self, name: str) -> str:
        """A name of this part in the whole checkpoint."""
        return ".".join(filter(None, (self.section, name)))

    def path_of(self, path: Path) -> Path:
        return (self.section, *path) if self.section else path


def merged(path: str, format: str, parts: Sequence[Part], notices: Sequence[Notice]) -> Checkpoint:
    """One checkpoint over all parts. The ids of their storages are distinct already."""
    shards = [part.checkpoint for part in parts if not part.section]
    others = [part for part in parts if part.section]
    weights = [entry for shard in shards for entry in shard.tensors]
    if not shards[0].traits.keeps_order:
        weights.sort(key=lambda entry: natural(entry.name))
    rest = [_moved(part, entry) for part in others for entry in part.checkpoint.tensors]
    root = _root(shards, others, weights)
    every = [part.checkpoint for part in parts]
    traits = shards[0].traits
    return Checkpoint(
        path=path,
        format=format,
        traits=traits._replace(in_place=False),
        nbytes=sum(one.nbytes for one in every),
        root=root,
        tensors=(*weights, *rest),
        storages=tuple(storage for one in every for storage in one.storages),
        values=tuple(_values(parts)),
        containers=tuple(_containers(shards, others, weights, root)),
        imports=tuple(row for one in every for row in one.imports),
        byteorder=shards[0].byteorder,
        weights_only=_refusals(every),
        encoding=next((one.encoding for one in every if one.encoding), None),
        not_loadable=next((one.not_loadable for one in every if one.not_loadable), None),
        notices=(*notices, *(notice for one in every for notice in one.notices)),
        parts=tuple(part.name for part in parts),
        sources=tuple(source for one in every for source in one.sources),
    )


def _moved(part: Part, entry: Entry) -> Entry:
    return entry._replace(path=part.path_of(entry.path), name=part.name_of(entry.name))


def _root(shards: Sequence[Checkpoint], others: Sequence[Part], weights: Sequence[Entry]) -> Dict:
    """The tree: the content of the shards side by side in the order of `weights`, and their metadata once."""
    root = Dict()
    metadata: dict[str, str] = {}
    if not shards[0].traits.keeps_order:  # nothing but tensors
        root.set([entry.name for entry in weights], [entry.tensor for entry in weights])
    for shard in shards:
        metadata.update(metadata_of(shard.root))
        if shard.traits.keeps_order:
            view = look(shard.root)
            root.set(list(view.keys), list(view.children))
    for part in others:
        root.set([part.section], [part.checkpoint.root])
    if metadata:  # each shard has some, mostly the same
        root.set([METADATA], [metadata_node(metadata)])
    return root


def _values(parts: Sequence[Part]) -> list[Value]:
    """The values of all parts. Each shard repeats the metadata, so a value that an earlier shard has is left out."""
    values: list[Value] = []
    paths: set[Path] = set()
    for part in parts:
        for value in part.checkpoint.values:
            if part.section or value.path not in paths:
                path, name = part.path_of(value.path), part.name_of(value.name)
                values.append(value._replace(path=path, name=name))
        paths.update(value.path for value in part.checkpoint.values)
    return values


def _containers(
    shards: Sequence[Checkpoint], others: Sequence[Part], weights: Sequence[Entry], root: Dict
) -> list[Container]:
    """The containers of the files beside the weights, then the root: inner containers come before outer ones."""
    rows: list[Container] = []
    first = len(weights)
    for part in others:
        for row in part.checkpoint.containers:
            name = part.name_of(row.name) if row.name else part.section
            path = part.path_of(row.path)
            rows.append(row._replace(path=path, name=name, first=row.first + first, last=row.last + first))
        first += len(part.checkpoint.tensors)
    only = shards[0].containers if len(shards) == 1 else ()
    names = tuple(entry.name for entry in weights)
    return [*rows, *(only or [Container((), "", "dict", names, 0, len(weights), node=root)])]


def _refusals(every: Sequence[Checkpoint]) -> tuple[Refusal, ...] | None:
    if all(one.weights_only is None for one in every):
        return None
    return tuple(row for one in every for row in one.weights_only or ())
