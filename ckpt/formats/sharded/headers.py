"""Shards of safetensors by their headers alone: none of them is a checkpoint of its
own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ckpt.bytes.location import Location, names_opened_ahead
from ckpt.bytes.source import Source
from ckpt.formats.common.safetensors import (
    TRAITS,
    Header,
    Maker,
    is_usual,
    read_header,
    values_of,
)
from ckpt.formats.format import HEAD_BYTES
from ckpt.formats.sharded import FORMAT
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Container, Entry, Value
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_order
from ckpt.model.nodes import Dict
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage
from ckpt.tree.find import METADATA, metadata_node

Copies = Collection[tuple[str, str]]
"""The tensors that are not read, for the index has them in another shard: the shard,
and the name.
"""


class Shard(NamedTuple):
    """A file of safetensors, and its header. `mark` is the prefix of the ids of its
    storages.
    """

    name: str
    mark: str
    source: Source
    header: Header


def read_shards(
    folder: Location,
    places: Mapping[str, Location],
    marks: Sequence[str],
    limits: Limits,
    budget: Budget,
) -> list[Shard] | None:
    """Read all shards, each at its place. Return None if one is unusual or damaged.

    Reading each alone then says what is wrong.
    """
    shards: list[Shard] = []
    # Given up for the slow way, what was charged here must not count twice.
    trial = budget.copy()
    for name, mark in zip(names_opened_ahead(folder, places), marks, strict=True):
        shard = read_shard(name, mark, places[name], limits, trial)
        if shard is None:
            for other in shards:
                other.source.close()
            return None
        shards.append(shard)
    budget.become(trial)
    return shards


def read_shard(
    name: str, mark: str, location: Location, limits: Limits, budget: Budget
) -> Shard | None:
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


def of_headers(
    path: str,
    shards: Sequence[Shard],
    notices: Sequence[Notice],
    copies: Copies = frozenset(),
) -> Checkpoint:
    """Return one checkpoint over shards, without the `copies`."""
    rows: list[tuple[Shard, int]] = []
    row_names: list[str] = []
    for shard in shards:
        for row, name in enumerate(shard.header.tensors.names):
            if not copies or (shard.name, name) not in copies:
                rows.append((shard, row))
                row_names.append(name)
    # One for each file: it counts the storages that it makes.
    makers = {shard.mark: Maker(shard.source, shard.header) for shard in shards}
    entries: list[Entry] = []
    # safetensors sorts its tensors by their types: the order of the model is lost.
    for index in natural_order(row_names):
        shard, row = rows[index]
        make = makers[shard.mark]
        entries.append(make(f"{shard.mark}{len(make.storages)}", row))
    names = [entry.name for entry in entries]
    root = Dict()
    root.set(names, [entry.tensor for entry in entries])
    texts: dict[str, str] = {}
    values: dict[str, Value] = {}
    for shard in shards:
        # Each has some, mostly the same.
        if shard.header.texts.items() - texts.items():
            texts.update(shard.header.texts)
            for value in values_of(shard.header.texts):
                values.setdefault(value.name, value)
    if texts:
        root.set([METADATA], [metadata_node(texts)])
    storages: list[Storage] = []
    for make in makers.values():
        storages += make.storages
    return Checkpoint(
        path=path,
        format=FORMAT.name,
        traits=TRAITS._replace(in_place=False),
        nbytes=sum(shard.source.size for shard in shards),
        root=root,
        tensors=tuple(entries),
        storages=tuple(storages),
        values=tuple(values.values()),
        containers=(
            Container((), "", "dict", tuple(names), 0, len(entries), node=root),
        ),
        account=Account(tuple(notices)),
        parts=tuple(shard.name for shard in shards),
        sources=tuple(shard.source for shard in shards),
    )
