"""The shards of a checkpoint: those that its index names, or those that the numbers in
their names put together.

An index that names shards which are not there is stale if the shards that are there
hold each of its tensors once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ckpt.bytes.far import is_url
from ckpt.bytes.location import Location, is_plain_name, names_opened_ahead, read_file
from ckpt.bytes.source import lost_blob
from ckpt.formats.common.sets import ShardSet, kind_of
from ckpt.formats.common.zip_layout import LOCAL_MAGIC
from ckpt.formats.format import Probe
from ckpt.formats.sharded.headers import read_shard
from ckpt.model.account import Notice
from ckpt.model.checkpoint import names_of
from ckpt.model.errors import (
    UNFINISHED,
    CkptError,
    LimitError,
    NotOpenedError,
    UnreadableError,
)
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import index_of, is_index, natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

LISTED = 10
"""The most names in one line."""


class Layout(NamedTuple):
    """The shards of a checkpoint, and the shard of each tensor as an index says.
    `folder` holds all of them.
    """

    folder: Location
    weight_map: dict[str, str]
    """Name of a tensor -> name of its shard. Empty without an index."""
    places: dict[str, Location]
    """Name of a shard -> where it is."""
    total_size: int | None = None
    """Bytes of all tensors."""
    notices: tuple[Notice, ...] = ()
    """The shards that are missing, where the others are read, or an index that does not
    fit them.
    """
    is_indexed: bool = True


def unindexed(probe: Probe, shards: ShardSet, limits: Limits) -> Layout:
    """The files of a set without an index, with notices of what is missing. Raises
    LimitError.
    """
    if len(shards.files) > limits.shards:
        raise LimitError("the folder holds too many shards", "shards", limits.shards)
    names = sorted(shards.files.values(), key=natural_sort_key)
    places = {name: probe.location.child(name) for name in names}
    index = index_of(f"{shards.stem}{shards.ending}")
    text = (
        f"{show(shards.label, 80)} has no index: transformers and diffusers look for "
        f"{show(index, 80)}"
    )
    notices = [Notice("no-index", text)]
    # The numbers in the names say how many shards there were.
    if shards.gone:
        listed = and_more(
            [show(name, 80) for name in shards.lost(LISTED)], LISTED, total=shards.gone
        )
        text = f"{shards.gone:,} of {shards.claimed:,} shards missing: {listed}"
        what = "what it holds" if shards.gone == 1 else "what they hold"
        notices.append(
            Notice("incomplete", f"{text}; without an index nothing says {what}")
        )
    return Layout(probe.location, {}, places, None, tuple(notices), is_indexed=False)


def listed(probe: Probe, limits: Limits) -> Layout:
    """The files that an index names, whether they are there or not. Raises
    UnreadableError.
    """
    folder = probe.location.parent()
    weight_map, locations, total_size = _read_index(
        probe.location, folder, limits, probe.budget
    )
    places = {name: locations[name] for name in sorted(locations, key=natural_sort_key)}
    return Layout(folder, weight_map, places, total_size)


def present_layout(probe: Probe, layout: Layout, limits: Limits) -> Layout:
    """The files that are there, if they hold all or with `partial`. Raises
    UnreadableError.
    """
    places = layout.places
    missing = [
        name
        for name in names_opened_ahead(layout.folder, places)
        if not places[name].is_file()
    ]
    if not missing:
        return layout
    there = {name: place for name, place in places.items() if name not in missing}
    beside = {**there, **files_beside(layout)}
    holds = _shards_by_name(probe, beside, limits)
    files: dict[str, str] = {}
    for name in layout.weight_map:
        # A tensor in two files could be of either save.
        if len(holds.get(name, ())) == 1:
            files[name] = holds[name][0]
    if len(files) == len(layout.weight_map):
        return _stale_layout(probe, layout, missing, beside, files)
    lost = set(missing)
    # The shard that holds a tensor really, where one that is there does.
    now = {
        name: next((file for file in holds.get(name, ()) if file in there), shard)
        for name, shard in layout.weight_map.items()
    }
    gone = tuple(name for name, shard in now.items() if shard in lost)
    names = and_more([show(name, 80) for name in missing], LISTED)
    text = (
        f"{len(missing)} of {len(places)} shards missing, with {len(gone):,} tensors: "
        f"{names}"
    )
    if not probe.partial or not there:
        downloads = (lost_blob(places[name].name) for name in missing)
        download = next(filter(None, downloads), None)
        if download is not None:
            text += ": the Hugging Face cache has lost their blobs"
        raise UnreadableError(text, hint=download or UNFINISHED)
    return layout._replace(
        weight_map={
            name: shard if shard in there else now[name]
            for name, shard in layout.weight_map.items()
            if now[name] not in lost
        },
        places=there,
        total_size=None,
        notices=(Notice("incomplete", text, gone),),
    )


def _stale_layout(
    probe: Probe,
    layout: Layout,
    missing: Sequence[str],
    beside: Mapping[str, Location],
    files: dict[str, str],
) -> Layout:
    """The layout of an index of another split: the shards that hold its tensors, which
    are all there.
    """
    held = set(files.values())
    name = show(probe.path.replace("\\", "/").rpartition("/")[2], 80)
    verb = be_verb(missing)
    text = (
        f"{name} is stale: {len(missing):,} of {len(layout.places):,} shards that it "
        f"names {verb} not there"
    )
    names = and_more([show(file, 80) for file in sorted(held, key=natural_sort_key)], 3)
    notice = Notice(
        "stale-index",
        f"{text}, and each of its {counted_noun(len(files), 'tensor')} is in {names}",
    )
    places = {file: beside[file] for file in sorted(held, key=natural_sort_key)}
    return Layout(layout.folder, files, places, None, (notice,))


def _shards_by_name(
    probe: Probe, places: Mapping[str, Location], limits: Limits
) -> dict[str, list[str]]:
    """The shards that hold each tensor. A shard that cannot be read holds none."""
    holds: dict[str, list[str]] = {}
    if not places:
        return holds
    folder = next(iter(places.values())).parent()
    for file in names_opened_ahead(folder, places):
        for name in names_in(probe, places[file], limits) or ():
            holds.setdefault(name, []).append(file)
    return holds


def names_in(probe: Probe, location: Location, limits: Limits) -> list[str] | None:
    """The names of the tensors in a file, or None if it cannot be read. Raises
    LimitError.
    """
    shard = read_shard("", "", location, limits, probe.budget.copy())
    if shard is not None:
        shard.source.close()
        return list(shard.header.tensors.names)
    try:
        with probe.open(location, f"{probe.mark}beside:") as checkpoint:
            return names_of(checkpoint.tensors)
    except (LimitError, NotOpenedError):
        raise
    except CkptError:
        return None


def files_beside(layout: Layout) -> dict[str, Location]:
    """The files beside an index that are called as its shards are, and that it does not
    name.
    """
    # A list of names is a request of its own, and many servers give none.
    if is_url(layout.folder.name):
        return {}
    kinds = {kind_of(name) for name in layout.places} - {None}
    try:
        names = layout.folder.names() if kinds else []
    except NotOpenedError:
        return {}
    places: dict[str, Location] = {}
    for name in sorted(names, key=natural_sort_key):
        if name in layout.places or kind_of(name) not in kinds:
            continue
        # A link that leads elsewhere is none of them.
        with suppress(UnreadableError):
            places[name] = layout.folder.child(name)
    return places


def is_one(folder: Location, shards: ShardSet, limits: Limits) -> bool:
    """Tell whether files that are numbered as shards look like parts of one checkpoint.

    The first two of safetensors share no name; other files begin as a pickle or an
    archive does. Many programs number files of data so, or files that each hold a
    whole.
    """
    names = sorted(shards.files.values(), key=natural_sort_key)[:2]
    # Two files with one name in both are two checkpoints.
    seen: set[str] = set()
    for name in names:
        try:
            location = folder.child(name)
            if not shards.ending.endswith(".safetensors"):
                if not _begins_well(location):
                    return False
                continue
        except CkptError:
            return False
        shard = read_shard(name, "", location, limits, Budget(limits))
        if shard is not None:
            shard.source.close()
            if not seen.isdisjoint(shard.header.tensors.names):
                return False
            seen.update(shard.header.tensors.names)
    return True


_BEGINNINGS = (LOCAL_MAGIC, b"\x80")


def _begins_well(location: Location) -> bool:
    source = location.open()
    try:
        return source.read(0, min(4, source.size)).startswith(_BEGINNINGS)
    finally:
        source.close()


# --- the index ------------------------------------------------------------------------


def _read_index(
    location: Location, folder: Location, limits: Limits, budget: Budget
) -> tuple[dict[str, str], dict[str, Location], int | None]:
    """Read an index: (tensor -> shard, shard -> its place, bytes of all tensors).
    Raises UnreadableError.
    """
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
        # A path in an index would open any file of the reader's machine.
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise UnreadableError(
                f"the index puts {show(name, 80)} into {show(str(shard), 80)}, which "
                "is not a plain file name"
            )
        files[name] = shard
        if len(places) == limits.shards:
            raise LimitError("the index names too many files", "shards", limits.shards)
        # It could name the first one, and so on without end.
        if is_index(shard):
            raise UnreadableError(
                f"the index names {show(shard, 80)}, which is an index itself"
            )
        try:
            places[shard] = folder.child(shard)
        except UnreadableError:
            raise UnreadableError(
                f"the index names {show(shard, 80)}, which is not a file beside it"
            ) from None
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return files, places, size if type(size) is int and size >= 0 else None
