"""Distributed checkpoints in safetensors:
`HuggingFaceStorageWriter(save_distributed=True)` of torch.

Each rank writes files of its own. The metadata of each says where its parts begin in
the whole tensors, and nothing says how large the whole is
(torch/distributed/checkpoint/hf_storage.py, _hf_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.formats.format import Format, Probe
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import NotOpenedError
from ckpt.model.rows import NamedTuple

# The numbers are padded to five digits by torch, and grow with larger ones.
_NAME = r"shard-(\d{5,9})-model-(\d{5,9})-of-(\d{5,9})\.safetensors"


class Shard(NamedTuple):
    """A file: the rank that wrote it, from 1, and which of how many files of the model
    its tensors belong to.
    """

    name: str
    rank: int
    number: int
    files: int


def shard_of(name: str) -> Shard | None:
    """Parse the name of a file. Return None for a file of another kind."""
    match = re.fullmatch(_NAME, name)
    return None if match is None else Shard(name, *map(int, match.groups()))


def shards_in(names: Iterable[str]) -> list[Shard]:
    """The files of the checkpoint among names, by rank and number."""
    # In the order of the ranks; numbers as such, for they may outgrow their padding.
    shards: list[Shard] = []
    for name in names:
        shard = shard_of(name)
        if shard is not None:
            shards.append(shard)
    return sorted(
        shards, key=lambda shard: (shard.rank, shard.number, shard.files, shard.name)
    )


def sniff(probe: Probe) -> bool:
    """Tell whether a folder is such a checkpoint.

    A file of it alone is a file of safetensors, with the part of its rank.
    """
    if not probe.is_folder:
        return False
    try:
        return bool(files(probe))
    except NotOpenedError:
        return False


def files(probe: Probe) -> tuple[str, ...] | None:
    """The names of its files. Raises NotOpenedError."""
    return tuple(shard.name for shard in shards_in(probe.location.names())) or None


_MODULE = "torch.distributed.checkpoint"
FORMAT = Format(
    "dcp-hf",
    Traits(
        "DCP in safetensors",
        (
            f"{_MODULE}.load(state, "
            f"storage_reader={_MODULE}.HuggingFaceStorageReader({{path}}))"
        ),
        keeps_order=False,
        keeps_ties=False,
        fills_a_state=True,
    ),
    sniff,
    files,
    reader="ckpt.ext.dcp.hf_reader",
    verifier="ckpt.ext.dcp.hf_reader",
)
