"""One checkpoint over several shards, whose content lies side by side at the root."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.checkpoint import Checkpoint, Container, Entry, Notice, Refusal, Value
from ckpt.names import Path, natural
from ckpt.nodes import Dict
from ckpt.tree.metadata import METADATA, metadata_node, metadata_of
from ckpt.tree.view import look


def merged(
    path: str, format: str, shards: Sequence[tuple[str, Checkpoint]], notices: Sequence[Notice]
) -> Checkpoint:
    """One checkpoint over shards by their file names. The ids of their storages are distinct already."""
    every = [shard for _, shard in shards]
    traits = every[0].traits
    weights = [entry for shard in every for entry in shard.tensors]
    if not traits.keeps_order:
        weights.sort(key=lambda entry: natural(entry.name))
    root = _root(every, weights)
    names = tuple(entry.name for entry in weights)
    only = every[0].containers if len(every) == 1 else ()
    return Checkpoint(
        path=path,
        format=format,
        traits=traits._replace(in_place=False),
        nbytes=sum(one.nbytes for one in every),
        root=root,
        tensors=tuple(weights),
        storages=tuple(storage for one in every for storage in one.storages),
        values=tuple(_values(every)),
        containers=only or (Container((), "", "dict", names, 0, len(weights), node=root),),
        imports=tuple(row for one in every for row in one.imports),
        byteorder=every[0].byteorder,
        weights_only=_refusals(every),
        encoding=next((one.encoding for one in every if one.encoding), None),
        not_loadable=next((one.not_loadable for one in every if one.not_loadable), None),
        notices=(*notices, *(notice for one in every for notice in one.notices)),
        parts=tuple(name for name, _ in shards),
        sources=tuple(source for one in every for source in one.sources),
    )


def _root(shards: Sequence[Checkpoint], weights: Sequence[Entry]) -> Dict:
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
    if metadata:  # each shard has some, mostly the same
        root.set([METADATA], [metadata_node(metadata)])
    return root


def _values(shards: Sequence[Checkpoint]) -> list[Value]:
    """The values of all shards. Each shard repeats the metadata, so a value that an earlier shard has is left out."""
    values: list[Value] = []
    paths: set[Path] = set()
    for shard in shards:
        values += [value for value in shard.values if value.path not in paths]
        paths.update(value.path for value in shard.values)
    return values


def _refusals(every: Sequence[Checkpoint]) -> tuple[Refusal, ...] | None:
    if all(one.weights_only is None for one in every):
        return None
    return tuple(row for one in every for row in one.weights_only or ())
