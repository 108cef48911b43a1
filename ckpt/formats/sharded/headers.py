"""Shards of safetensors as one checkpoint: one header of each is read, and none of them is a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt.checkpoint import Checkpoint, Container, Entry, Notice, Value
from ckpt.errors import CkptError
from ckpt.formats.probe import HEAD_BYTES
from ckpt.formats.safetensors.read import TRAITS, Header, Maker, is_usual, read_header, values_of
from ckpt.formats.sharded import NAME
from ckpt.io.location import Location
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits
from ckpt.names import natural
from ckpt.nodes import Dict
from ckpt.rows import NamedTuple
from ckpt.tensors import Storage
from ckpt.tree.metadata import METADATA, metadata_node


class Shard(NamedTuple):
    """A file of safetensors, and its header. `mark` is the prefix of the ids of its storages."""

    name: str
    mark: str
    source: Source
    header: Header


def read_shards(
    places: Mapping[str, Location], marks: Sequence[str], limits: Limits, budget: Budget
) -> list[Shard] | None:
    """All shards, each at its place; None where one is not usual or damaged. Reading each alone says what is wrong."""
    shards: list[Shard] = []
    left = budget.copy()
    for (name, location), mark in zip(places.items(), marks, strict=True):
        shard = _read(name, mark, location, limits, left)
        if shard is None:
            for other in shards:
                other.source.close()
            return None
        shards.append(shard)
    budget.become(left)
    return shards


def _read(name: str, mark: str, location: Location, limits: Limits, budget: Budget) -> Shard | None:
    source = None
    try:
        source = location.open()
        head = source.read(0, min(HEAD_BYTES, source.size))
        if is_usual(head):
            header = read_header(source, head, limits, budget, is_shard=True)
            source.check_unchanged()
            return Shard(name, mark, source, header)
    except CkptError:
        pass
    if source is not None:
        source.close()
    return None


def merged(path: str, shards: Sequence[Shard], notices: Sequence[Notice]) -> Checkpoint:
    """One checkpoint over shards."""
    pairs = [(natural(name), name, shard) for shard in shards for name in shard.header.tensors]
    pairs.sort(key=lambda pair: pair[0])
    makers = {shard.mark: Maker(shard.source, shard.header) for shard in shards}
    entries: list[Entry] = []
    for _, name, shard in pairs:
        make = makers[shard.mark]
        entries.append(make(f"{shard.mark}{len(make.storages)}", name))
    names = [entry.name for entry in entries]
    root = Dict()
    root.set(names, [entry.tensor for entry in entries])
    texts: dict[str, str] = {}
    values: dict[str, Value] = {}
    for shard in shards:  # each has some, mostly the same
        if shard.header.texts.items() - texts.items():
            texts.update(shard.header.texts)
            for value in values_of(shard.header.texts):
                values.setdefault(value.name, value)
    if texts:
        root.set([METADATA], [metadata_node(texts)])
    storages: list[Storage] = [storage for make in makers.values() for storage in make.storages]
    return Checkpoint(
        path=path,
        format=NAME,
        traits=TRAITS._replace(in_place=False),
        nbytes=sum(shard.source.size for shard in shards),
        root=root,
        tensors=tuple(entries),
        storages=tuple(storages),
        values=tuple(values.values()),
        containers=(Container((), "", "dict", tuple(names), 0, len(entries), node=root),),
        notices=tuple(notices),
        parts=tuple(shard.name for shard in shards),
        sources=tuple(shard.source for shard in shards),
    )
