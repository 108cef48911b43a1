"""One checkpoint in several files: `*.safetensors.index.json`, `*.bin.index.json`, or a folder as Hugging Face
lays it out. Only files beside the index are opened, by plain names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Notice, Traits
from ckpt.errors import LimitError, NotOpenedError, UnreadableError
from ckpt.formats.probe import Probe
from ckpt.formats.safetensors.read import parse_json
from ckpt.formats.sharded.merge import Part, merged
from ckpt.io.location import Location, is_plain_name, read_file
from ckpt.limits import Budget, Limits
from ckpt.names import natural
from ckpt.text import and_more, show

NAME = "sharded"
SUFFIXES: tuple[str, ...] = (".index.json",)
TRAITS = Traits("shards")
"""The traits of the index; a checkpoint has those of its shards."""
WRITER = ""
VERIFIER = "ckpt.formats.sharded.verify"

_INDEXES = (".safetensors.index.json", ".bin.index.json")
_SINGLE = (
    "model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_LISTED = 10


class Layout(NamedTuple):
    """The files of a path: an index or a single file of weights, the shards, and the files beside them."""

    folder: Location
    chosen: str
    weight_map: dict[str, str] | None
    """Name of a tensor -> name of its shard, from the index; None without an index."""
    shards: tuple[str, ...]
    beside: tuple[str, ...]
    total_size: int | None = None
    """Bytes of all tensors, from the index."""

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.shards, *self.beside)

    def mark(self, number: int) -> str:
        """The prefix of the storage ids of a file, in the checkpoint over all files."""
        if len(self.files) == 1:
            return ""
        if number >= len(self.shards):
            return f"{_stem(self.files[number])}:"
        return f"shard-{number + 1}:"


def sniff(probe: Probe) -> bool:
    return _find(probe) is not None


def read(probe: Probe, limits: Limits) -> Checkpoint:
    layout = layout_of(probe, limits)
    parts: list[Part] = []
    try:
        for number, name in enumerate(layout.files):
            section = _stem(name) if name in layout.beside else ""
            opened = probe.open(layout.folder.child(name), layout.mark(number))
            parts.append(Part(name, section, opened))
        notices: list[Notice] = []
        if layout.weight_map is not None:
            notices += _compare(layout.weight_map, parts[: len(layout.shards)])
        notices += _unread(probe, layout.chosen)
        if layout.weight_map is None and len(parts) == 1:  # a folder with one file is that file
            whole = parts[0].checkpoint
            return replace(whole, notices=(*whole.notices, *notices))
        whole_checkpoint = merged(probe.path, NAME, parts, notices)
        return replace(whole_checkpoint, index_bytes=layout.total_size)
    except BaseException:
        for part in parts:
            part.checkpoint.close()
        raise


def layout_of(probe: Probe, limits: Limits) -> Layout:
    """The files of a path. Raises UnreadableError when shards are missing or the index is invalid."""
    chosen = _find(probe)
    assert chosen is not None
    folder = probe.location if probe.is_folder else probe.location.parent()
    here = _files(folder) if probe.is_folder else ()
    beside = tuple(name for name in _OPTIMIZERS if name in here)[:1]
    if not chosen.endswith(_INDEXES):
        return Layout(folder, chosen, None, (chosen,), beside)
    index = probe.location if not probe.is_folder else folder.child(chosen)
    weight_map, total_size = _read_index(index, folder, limits, probe.budget)
    names = tuple(sorted(set(weight_map.values()), key=natural))
    missing = {name for name in names if not folder.child(name).is_file()}
    if missing:
        listed = and_more([show(name, 80) for name in names if name in missing], _LISTED)
        lost = sum(name in missing for name in weight_map.values())
        raise UnreadableError(
            f"{len(missing)} of {len(names)} shards missing, with {lost:,} tensors: {listed}",
            hint="an unfinished download?",
        )
    return Layout(folder, chosen, weight_map, names, beside, total_size)


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _find(probe: Probe) -> str | None:
    """The name of the index of a path, or of its single file of weights."""
    if not probe.is_folder:
        return os.path.basename(probe.path) if probe.path.endswith(_INDEXES) else None
    names = _files(probe.location)
    # transformers chooses in this order: safetensors before pickles, one file before shards.
    indexes = [name for name in names if name.endswith(_INDEXES)]
    singles = [name for name in _SINGLE if name in names]
    for pick in (
        [name for name in singles if name.endswith(".safetensors")],
        [name for name in indexes if "safetensors" in name],
        singles,
        indexes,
    ):
        if len(pick) == 1:
            return pick[0]
        if len(pick) > 1:
            listed = ", ".join(show(name, 80) for name in pick)
            raise UnreadableError(f"the directory holds {len(pick)} checkpoints: {listed}", hint="name one")
    return None


def _files(folder: Location) -> list[str]:
    """The names of the files in a folder; an empty list when it cannot be read."""
    try:
        return [name for name in folder.names() if not name.endswith("/")]
    except NotOpenedError:
        return []


def _unread(probe: Probe, chosen: str) -> list[Notice]:
    if not probe.is_folder:
        return []
    others = [
        name
        for name in _files(probe.location)
        if name != chosen and (name.endswith(_INDEXES) or name in _SINGLE)
    ]
    return [Notice("shards", f"{show(name, 80)} is beside {chosen} and was not read") for name in others]


def _read_index(
    location: Location, folder: Location, limits: Limits, budget: Budget
) -> tuple[dict[str, str], int | None]:
    """(tensor -> shard, bytes of all tensors), both from the index. Raises UnreadableError."""
    index = parse_json(read_file(location, limits, "the index"), "index", budget)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableError("the index has no weight_map")
    files: dict[str, str] = {}
    checked: set[str] = set()
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise UnreadableError(
                f"the index puts {show(name, 80)} into {show(str(shard), 80)}, which is not a plain file name"
            )
        files[name] = shard
        if shard in checked:
            continue
        checked.add(shard)
        if len(checked) > limits.shards:
            raise LimitError("the index names too many files", "shards", limits.shards)
        if shard.endswith(_INDEXES):
            raise UnreadableError(f"the index names {show(shard, 80)}, which is an index itself")
        try:
            folder.child(shard)
        except UnreadableError:
            raise UnreadableError(
                f"the index names {show(shard, 80)}, which is not a file beside it"
            ) from None
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return files, size if type(size) is int and size >= 0 else None


def _compare(weight_map: dict[str, str], parts: Sequence[Part]) -> list[Notice]:
    """Compare the index with the shards. Raises UnreadableError when no shard holds a listed tensor."""
    holds: dict[str, list[str]] = {}
    for part in parts:
        for entry in part.checkpoint.tensors:
            holds.setdefault(entry.name, []).append(part.name)
    lost = [name for name in weight_map if name not in holds]
    if lost:
        listed = and_more([show(name, 80) for name in lost], _LISTED)
        raise UnreadableError(f"the index lists {len(lost):,} tensors that no shard holds: {listed}")
    twice = [name for name, shards in holds.items() if len(shards) > 1]
    if twice:
        raise UnreadableError(
            f"tensor {show(twice[0], 80)} is in several shards: {and_more(holds[twice[0]], 3)}"
        )
    wrong = tuple(name for name, shard in weight_map.items() if shard not in holds[name])
    unlisted = tuple(name for name in holds if name not in weight_map)
    notices = []
    if wrong:
        places = [
            f"{show(name, 80)} is in {show(holds[name][0], 60)}, the index says {show(weight_map[name], 60)}"
            for name in wrong
        ]
        text = f"tensors are in other shards than the index says: {and_more(places, 1)}"
        notices.append(Notice("shards", text, wrong))
    if unlisted:
        listed = and_more([show(name, 80) for name in unlisted], 3)
        notices.append(Notice("shards", f"the index does not list {listed}", unlisted))
    return notices
