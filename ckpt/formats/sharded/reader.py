"""One checkpoint in several files: `*.safetensors.index.json` or `*.bin.index.json`, and the shards that it names.

Only files beside the index are opened, by plain names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.checkpoint import Checkpoint, Notice, names_of
from ckpt.errors import LimitError, UnreadableError
from ckpt.formats.probe import Probe
from ckpt.formats.sharded import INDEXES, NAME, headers
from ckpt.formats.sharded.merge import merged
from ckpt.io.location import Location, is_plain_name, read_file
from ckpt.limits import Budget, Limits
from ckpt.names import natural
from ckpt.parse import parse_json
from ckpt.rows import NamedTuple, replace
from ckpt.text import and_more, show

_LISTED = 10


class Layout(NamedTuple):
    """What an index says: the shards, and which tensor lies in which. `folder` is where all of them are."""

    folder: Location
    weight_map: dict[str, str]
    """Name of a tensor -> name of its shard."""
    places: dict[str, Location]
    """Name of a shard -> where it is."""
    total_size: int | None = None
    """Bytes of all tensors."""
    lost: tuple[Notice, ...] = ()
    """The shards that are missing, where the others are read."""


def mark(probe: Probe, number: int) -> str:
    """The prefix of the storage ids of a shard, in the checkpoint over all of them."""
    return f"{probe.mark}shard-{number + 1}:"


def read(probe: Probe, limits: Limits) -> Checkpoint:
    layout = layout_of(probe, limits)
    marks = [mark(probe, number) for number in range(len(layout.places))]
    usual = headers.read_shards(layout.places, marks, limits, probe.budget)
    if usual is not None:
        try:
            held = [(shard.name, shard.header.tensors) for shard in usual]
            notices = [*layout.lost, *_compare(layout.weight_map, held)]
        except BaseException:
            for each in usual:
                each.source.close()
            raise
        return replace(headers.merged(probe.path, usual, notices), index_bytes=layout.total_size)
    shards: list[tuple[str, Checkpoint]] = []
    try:
        for (name, place), prefix in zip(layout.places.items(), marks, strict=True):
            shards.append((name, probe.open(place, prefix)))
        named = [(name, names_of(shard.tensors)) for name, shard in shards]
        notices = [*layout.lost, *_compare(layout.weight_map, named)]
        return replace(merged(probe.path, NAME, shards, notices), index_bytes=layout.total_size)
    except BaseException:
        for _, shard in shards:
            shard.close()
        raise


def layout_of(probe: Probe, limits: Limits) -> Layout:
    """The files of an index. Raises UnreadableError when shards are missing or the index is invalid."""
    folder = probe.location.parent()
    weight_map, found, total_size = _read_index(probe.location, folder, limits, probe.budget)
    names = sorted(found, key=natural)
    missing = {name for name in names if not found[name].is_file()}
    if missing:
        listed = and_more([show(name, 80) for name in names if name in missing], _LISTED)
        lost = sum(name in missing for name in weight_map.values())
        text = f"{len(missing)} of {len(names)} shards missing, with {lost:,} tensors: {listed}"
        if not probe.partial or len(missing) == len(names):
            raise UnreadableError(text, hint="an unfinished download?")
        gone = tuple(name for name, shard in weight_map.items() if shard in missing)
        weight_map = {name: shard for name, shard in weight_map.items() if shard not in missing}
        places = {name: found[name] for name in names if name not in missing}
        return Layout(folder, weight_map, places, None, (Notice("incomplete", text, gone),))
    return Layout(folder, weight_map, {name: found[name] for name in names}, total_size)


def _read_index(
    location: Location, folder: Location, limits: Limits, budget: Budget
) -> tuple[dict[str, str], dict[str, Location], int | None]:
    """(tensor -> shard, shard -> where it is, bytes of all tensors), as the index says. Raises UnreadableError."""
    index = parse_json(read_file(location, limits, "the index"), "index", budget)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableError("the index has no weight_map")
    files: dict[str, str] = {}
    places: dict[str, Location] = {}
    for name, shard in weight_map.items():
        if isinstance(shard, str) and shard in places:
            files[name] = shard
            continue
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise UnreadableError(
                f"the index puts {show(name, 80)} into {show(str(shard), 80)}, which is not a plain file name"
            )
        files[name] = shard
        if len(places) == limits.shards:
            raise LimitError("the index names too many files", "shards", limits.shards)
        if shard.endswith(INDEXES):
            raise UnreadableError(f"the index names {show(shard, 80)}, which is an index itself")
        try:
            places[shard] = folder.child(shard)
        except UnreadableError:
            raise UnreadableError(
                f"the index names {show(shard, 80)}, which is not a file beside it"
            ) from None
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return files, places, size if type(size) is int and size >= 0 else None


def _compare(weight_map: dict[str, str], shards: Sequence[tuple[str, Iterable[str]]]) -> list[Notice]:
    """Compare the index with the shards and the names in each. Raises UnreadableError when no shard holds a listed tensor."""
    holds: dict[str, list[str]] = {}
    for file, names in shards:
        for name in names:
            holds.setdefault(name, []).append(file)
    lost = [name for name in weight_map if name not in holds]
    if lost:
        listed = and_more([show(name, 80) for name in lost], _LISTED)
        raise UnreadableError(f"the index lists {len(lost):,} tensors that no shard holds: {listed}")
    twice = [name for name, files in holds.items() if len(files) > 1]
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
