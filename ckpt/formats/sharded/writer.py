"""Writing safetensors in several files with an index, as Hugging Face lays them out.

The index decides which shards are the checkpoint. A set that takes the place of another
one gets shards of other names, so that both are whole until the index is replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import count

from ckpt.bytes.far import is_url, url_writer
from ckpt.bytes.location import Location, locate, read_file
from ckpt.formats.common.writing import Draft, tensors_and_aliases
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import index_of, is_index
from ckpt.model.nodes import Dict
from ckpt.model.rows import NamedTuple, replace
from ckpt.tree.find import metadata_of, with_metadata

FORMAT = "safetensors"
"""The format of each shard."""


def split_checkpoint(checkpoint: Checkpoint, shard_bytes: int) -> list[Checkpoint]:
    """Split a checkpoint for safetensors into parts of at most `shard_bytes` bytes of
    tensors, in its order.

    A larger tensor gets a part of its own. The names of a tied tensor stay together.
    """
    tensors, others = tensors_and_aliases(checkpoint)
    shard_of: dict[str, int] = {}
    shard = 0
    used = 0
    for name, ref in tensors:
        # A tensor is never cut, so that one alone may be larger than a shard.
        if used and used + ref.nbytes > shard_bytes:
            shard += 1
            used = 0
        shard_of[name] = shard
        used += ref.nbytes
    groups: list[list[Entry]] = [[] for _ in range(shard + 1)]
    for entry in checkpoint.tensors:
        # A tied tensor is written once, under its first name.
        first_name = others.get(entry.name, entry.name)
        groups[shard_of[first_name]].append(entry)
    parts = []
    for entries in groups:
        root = Dict()
        root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
        root = with_metadata(root, metadata_of(checkpoint.root))
        parts.append(replace(checkpoint, root=root, tensors=tuple(entries)))
    return parts


def index_name(stem: str) -> str:
    """The name of the index: `model.safetensors.index.json`, and for the stem
    `model.fp16` the one that transformers looks for.
    """
    return index_of(f"{stem}.safetensors")


def shard_names(stem: str, of: int, taken: Collection[str] = ()) -> list[str]:
    """Return names for shards in the style of Hugging Face, none taken:
    `model-00001-of-00003.safetensors`.

    Where one of these is taken, all are `model-r2-00001-of-00003.safetensors`, and so
    on.
    """
    for revision in count(1):
        mark = "" if revision == 1 else f"-r{revision}"
        # Hugging Face counts shards from 1, with five digits.
        names = [
            f"{stem}{mark}-{number:05}-of-{of:05}.safetensors"
            for number in range(1, of + 1)
        ]
        if not any(name in taken for name in names):
            break
    return names


def set_pattern(stem: str) -> str:
    """A regular expression for the names of the shards that `shard_names` gives."""
    return rf"{re.escape(stem)}(?:-r\d+)?-\d{{5,}}-of-\d{{5,}}\.safetensors"


class OldSet(NamedTuple):
    """The files at the place of a new set: all names, the shards in its index, the
    shards in no index.
    """

    taken: frozenset[str]
    shards: tuple[str, ...]
    stray: tuple[str, ...]


def old_set(folder: str, stem: str, limits: Limits) -> OldSet:
    """The set of a stem in a folder. Shards have the names that ckpt and Hugging Face
    give them.

    A file that another index names, or an index that cannot be read may name, is
    neither a shard of it nor stray.
    """
    location = locate(folder)
    names = url_writer().names(folder) if is_url(folder) else location.names()
    taken = [name.removesuffix("/") for name in names]
    # All that look like shards of this stem, whoever wrote them.
    mine = [name for name in taken if re.fullmatch(set_pattern(stem), name)]
    own: frozenset[str] = frozenset()
    for name in taken:
        if not is_index(name):
            continue
        named = _files_in_index(location, name, limits)
        if name == index_name(stem):
            own = named or own
        elif named is None:
            # It may name any of them.
            mine = []
        else:
            mine = [shard for shard in mine if shard not in named]
    shards = tuple(name for name in mine if name in own)
    stray = tuple(name for name in mine if name not in own)
    return OldSet(frozenset(taken), shards, stray)


def _files_in_index(
    folder: Location, index: str, limits: Limits
) -> frozenset[str] | None:
    """Return the files that an index names, or None if it cannot be read."""
    try:
        data = read_file(folder.child(index), limits, "the index")
        document = parse_json(data, "index", Budget(limits))
    except CkptError:
        return None
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict):
        return None
    return frozenset(name for name in weight_map.values() if isinstance(name, str))


def index_draft(parts: list[Checkpoint], names: list[str]) -> Draft:
    """The index of shards: the bytes of all tensors, and the shard of each."""
    weight_map: dict[str, str] = {}
    total = 0
    for part, name in zip(parts, names, strict=True):
        for tensor, ref in tensors_and_aliases(part)[0]:
            weight_map[tensor] = name
            total += ref.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    # As Hugging Face writes it: indented, and with the size of all tensors.
    text = (json.dumps(index, indent=2, ensure_ascii=True) + "\n").encode()
    return Draft(len(text), lambda sink: sink.write(text))
