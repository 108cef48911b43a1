"""The files of a distributed checkpoint in safetensors, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.rows import NamedTuple

_NAME = r"shard-(\d{5,9})-model-(\d{5,9})-of-(\d{5,9})\.safetensors"


class Shard(NamedTuple):
    """A file: the rank that wrote it, from 1, and which of how many files of the model its tensors belong to."""

    name: str
    rank: int
    number: int
    files: int


def shard_of(name: str) -> Shard | None:
    """What a name says; None for a file of another kind."""
    found = re.fullmatch(_NAME, name)
    return None if found is None else Shard(name, *map(int, found.groups()))


def shards_in(names: Iterable[str]) -> list[Shard]:
    """The files of the checkpoint among names, by rank and number."""
    found = [shard for name in names if (shard := shard_of(name)) is not None]
    return sorted(found, key=lambda shard: (shard.rank, shard.number, shard.files, shard.name))
