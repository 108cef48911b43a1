"""One checkpoint in several files: `*.safetensors.index.json` or `*.bin.index.json`, and the shards that it names.

Only files beside the index are opened, by plain names. Of shards of safetensors one header each is read, and none of them is a
checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ckpt.checkpoint import Checkpoint, Container, Entry, Notice, RecordedFile, Refusal, Value, names_of
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.formats.common.pickled import incomplete_in
from ckpt.formats.common.safetensors import TRAITS, Header, Maker, is_usual, read_header, values_of
from ckpt.formats.format import HEAD_BYTES, INDEXES, Check, ChecksumReport, List, Probe
from ckpt.formats.sharded import FORMAT
from ckpt.io.executor import Executor
from ckpt.io.location import Location, is_plain_name, opening, read_file
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits, parse_json
from ckpt.names import Path, natural
from ckpt.nodes import Dict
from ckpt.rows import NamedTuple, replace
from ckpt.tensors import Storage
from ckpt.text import and_more, plural, show
from ckpt.tree.find import METADATA, metadata_node, metadata_of
from ckpt.tree.view import look


class Shard(NamedTuple):
    """A file of safetensors, and its header. `mark` is the prefix of the ids of its storages."""

    name: str
    mark: str
    source: Source
    header: Header


def read_shards(
    folder: Location, places: Mapping[str, Location], marks: Sequence[str], limits: Limits, budget: Budget
) -> list[Shard] | None:
    """Read all shards, each at its place. Return None if one is unusual or damaged.

    Reading each alone then says what is wrong.
    """
    shards: list[Shard] = []
    trial = budget.copy()
    for name, mark in zip(opening(folder, places), marks, strict=True):
        shard = _read(name, mark, places[name], limits, trial)
        if shard is None:
            for other in shards:
                other.source.close()
            return None
        shards.append(shard)
    budget.become(trial)
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


def of_headers(path: str, shards: Sequence[Shard], notices: Sequence[Notice]) -> Checkpoint:
    """Return one checkpoint over shards."""
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
        format=FORMAT.name,
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


def merged(
    path: str, format: str, shards: Sequence[tuple[str, Checkpoint]], notices: Sequence[Notice]
) -> Checkpoint:
    """Merge shards by their file names. The ids of their storages are distinct already."""
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
        nbytes=sum(part.nbytes for part in every),
        root=root,
        tensors=tuple(weights),
        storages=tuple(storage for part in every for storage in part.storages),
        values=tuple(_values(every)),
        containers=only or (Container((), "", "dict", names, 0, len(weights), node=root),),
        imports=tuple(row for part in every for row in part.imports),
        byteorder=every[0].byteorder,
        weights_only=_refusals(every),
        encoding=next((part.encoding for part in every if part.encoding), None),
        not_loadable=next((part.not_loadable for part in every if part.not_loadable), None),
        notices=(*notices, *(notice for part in every for notice in part.notices)),
        parts=tuple(name for name, _ in shards),
        sources=tuple(source for part in every for source in part.sources),
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
    if all(shard.weights_only is None for shard in every):
        return None
    return tuple(row for shard in every for row in shard.weights_only or ())


_LISTED = 10


class Layout(NamedTuple):
    """The content of an index: the shards, and the shard of each tensor. `folder` holds all of them."""

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
    layout = _listed(probe, limits)
    marks = [mark(probe, number) for number in range(len(layout.places))]
    usual = read_shards(layout.folder, layout.places, marks, limits, probe.budget)
    if usual is not None:
        try:
            held = [(shard.name, shard.header.tensors) for shard in usual]
            notices = [*layout.lost, *_compare(layout.weight_map, held)]
        except BaseException:
            for part in usual:
                part.source.close()
            raise
        return replace(of_headers(probe.path, usual, notices), index_bytes=layout.total_size)
    layout = _present(probe, layout)
    shards: list[tuple[str, Checkpoint]] = []
    try:
        for name, prefix in zip(opening(layout.folder, layout.places), marks, strict=False):
            try:
                shards.append((name, probe.open(layout.places[name], prefix)))
            except (LimitError, NotOpenedError):
                raise
            except CkptError as error:
                if not probe.partial:
                    raise
                layout = _without(layout, name, error)
        if not shards:
            raise UnreadableError("none of the shards can be read")
        cut = {name for _, shard in shards for name in incomplete_in(shard)}
        there = {name for _, shard in shards for name in names_of(shard.tensors)}
        listed = {name: file for name, file in layout.weight_map.items() if name in there or name not in cut}
        named = [(name, names_of(shard.tensors)) for name, shard in shards]
        notices = [*layout.lost, *_compare(listed, named)]
        return replace(merged(probe.path, FORMAT.name, shards, notices), index_bytes=layout.total_size)
    except BaseException:
        for _, shard in shards:
            shard.close()
        raise


def _without(layout: Layout, name: str, error: CkptError) -> Layout:
    """The layout without a shard that cannot be read, and with a notice of its tensors, which the index names."""
    gone = tuple(tensor for tensor, shard in layout.weight_map.items() if shard == name)
    text = f"{show(name, 80)} was not read: {error.advice}: {plural(len(gone), 'tensor')} lost"
    rest = {tensor: shard for tensor, shard in layout.weight_map.items() if shard != name}
    return layout._replace(
        weight_map=rest, total_size=None, lost=(*layout.lost, Notice("incomplete", text, gone))
    )


def layout_of(probe: Probe, limits: Limits) -> Layout:
    """The files of an index. Raises UnreadableError when shards are missing or the index is invalid."""
    return _present(probe, _listed(probe, limits))


def _listed(probe: Probe, limits: Limits) -> Layout:
    """The files that an index names, whether they are there or not. Raises UnreadableError."""
    folder = probe.location.parent()
    weight_map, locations, total_size = _read_index(probe.location, folder, limits, probe.budget)
    places = {name: locations[name] for name in sorted(locations, key=natural)}
    return Layout(folder, weight_map, places, total_size)


def _present(probe: Probe, layout: Layout) -> Layout:
    """The files that are there, of which some are missing with `partial` only. Raises UnreadableError."""
    places, weight_map = layout.places, layout.weight_map
    missing = [name for name in opening(layout.folder, places) if not places[name].is_file()]
    if not missing:
        return layout
    listed = and_more([show(name, 80) for name in missing], _LISTED)
    lost = set(missing)
    gone = tuple(name for name, shard in weight_map.items() if shard in lost)
    text = f"{len(missing)} of {len(places)} shards missing, with {len(gone):,} tensors: {listed}"
    if not probe.partial or len(missing) == len(places):
        raise UnreadableError(text, hint="an unfinished download?")
    return layout._replace(
        weight_map={name: shard for name, shard in weight_map.items() if shard not in lost},
        places={name: place for name, place in places.items() if name not in lost},
        total_size=None,
        lost=(Notice("incomplete", text, gone),),
    )


def _read_index(
    location: Location, folder: Location, limits: Limits, budget: Budget
) -> tuple[dict[str, str], dict[str, Location], int | None]:
    """Read an index: (tensor -> shard, shard -> its place, bytes of all tensors). Raises UnreadableError."""
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


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    layout = layout_of(probe, limits)
    reports = [
        check(layout.places[name], mark(probe, number)).about(name)
        for number, name in enumerate(opening(layout.folder, layout.places))
    ]
    return ChecksumReport.together(reports)


def recorded(probe: Probe, limits: Limits, executor: Executor, inner: List) -> list[RecordedFile]:
    layout = layout_of(probe, limits)
    names = opening(layout.folder, layout.places)
    shards = [file for name in names for file in inner(layout.places[name], name)]
    return [*shards, *_of_index(probe, limits)]


def _of_index(probe: Probe, limits: Limits) -> list[RecordedFile]:
    """The index. It is read whole, so the CRC-32 is of its bytes."""
    from ckpt.formats.common.recorded import of_text  # here: who reads the tensors pays nothing for it

    name = probe.path.replace("\\", "/").rpartition("/")[2]
    return [] if probe.is_folder else [of_text(probe.location, name, limits)]
