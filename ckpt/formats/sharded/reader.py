"""One checkpoint in several files: `*.safetensors.index.json` or `*.bin.index.json`,
and the shards that it names.

Only files beside the index are opened, by plain names. Of shards of safetensors one
header each is read, and none of them is a checkpoint of its own. The index says which
file a tensor is read from: a second copy in another one is left alone.

Without an index the numbers in the names say which shards are one checkpoint. An index
that names shards which are not there is stale if the shards that are there hold each of
its tensors once; they are read then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ckpt.bytes.executor import Executor
from ckpt.bytes.location import names_opened_ahead
from ckpt.formats.common.file_set import CheckpointFiles, check_files
from ckpt.formats.common.sets import ShardSet
from ckpt.formats.format import Check, ChecksumReport, List, Probe
from ckpt.formats.sharded import FORMAT
from ckpt.formats.sharded.headers import Copies, of_headers, read_shards
from ckpt.formats.sharded.index import LISTED, Layout, listed, present_layout, unindexed
from ckpt.formats.sharded.strays import with_strays
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import (
    Checkpoint,
    Container,
    Entry,
    RecordedFile,
    Refusal,
    Value,
    names_of,
)
from ckpt.model.errors import CkptError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.names import Path, natural_sort_key
from ckpt.model.nodes import Dict
from ckpt.model.rows import replace
from ckpt.model.tensors import parts_of
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.find import METADATA, metadata_node, metadata_of, without_keys
from ckpt.tree.view import look


def merge_shards(
    path: str,
    format: str,
    shards: Sequence[tuple[str, Checkpoint]],
    notices: Sequence[Notice],
) -> Checkpoint:
    """Merge shards by their file names. The ids of their storages are distinct
    already.

    Raises UnreadableError for shards of several formats: no loader reads them as one.
    """
    _refuse_mixture(shards)
    every = [shard for _, shard in shards]
    traits = every[0].traits
    weights = list(chain.from_iterable(shard.tensors for shard in every))
    # safetensors sorts by types: the natural order of names is nearest to the model's.
    if not traits.keeps_order:
        weights.sort(key=lambda entry: natural_sort_key(entry.name))
    root = _merge_trees(every, weights)
    names = tuple(entry.name for entry in weights)
    # Several pickles have no container in common but the root.
    containers: tuple[Container, ...] = ()
    if len(every) == 1:
        containers = every[0].containers
    if not containers:
        containers = (Container((), "", "dict", names, 0, len(weights), node=root),)
    encodings = [part.encoding for part in every if part.encoding]
    # One shard that torch cannot load is enough.
    reasons = [part.not_loadable for part in every if part.not_loadable]
    own_notices = chain.from_iterable(part.account.notices for part in every)
    return Checkpoint(
        path=path,
        format=format,
        traits=traits._replace(in_place=False),
        nbytes=sum(part.nbytes for part in every),
        root=root,
        tensors=tuple(weights),
        storages=tuple(chain.from_iterable(part.storages for part in every)),
        values=tuple(_merge_values(every)),
        containers=containers,
        imports=tuple(chain.from_iterable(part.imports for part in every)),
        byteorder=every[0].byteorder,
        weights_only=_merge_refusals(every),
        encoding=encodings[0] if encodings else None,
        not_loadable=reasons[0] if reasons else None,
        account=Account((*notices, *own_notices)),
        parts=tuple(name for name, _ in shards),
        sources=tuple(chain.from_iterable(part.sources for part in every)),
    )


def _refuse_mixture(shards: Sequence[tuple[str, Checkpoint]]) -> None:
    """Raise UnreadableError where two shards need different loaders."""
    first_name, first = shards[0]
    for name, shard in shards[1:]:
        has_same_loader = shard.traits.load == first.traits.load
        if has_same_loader and shard.traits.keeps_order == first.traits.keeps_order:
            continue
        raise UnreadableError(
            f"its shards are of several formats: {show(first_name, 80)} is "
            f"{first.traits.label}, {show(name, 80)} is {shard.traits.label}",
            hint="give their paths one by one",
        )


def _merge_trees(shards: Sequence[Checkpoint], weights: Sequence[Entry]) -> Dict:
    """The tree: the content of the shards side by side in the order of `weights`, and
    their metadata once.
    """
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


def _merge_values(shards: Sequence[Checkpoint]) -> list[Value]:
    """The values of all shards. Each shard repeats the metadata, so a value that an
    earlier shard has is left out.
    """
    values: list[Value] = []
    paths: set[Path] = set()
    for shard in shards:
        values += [value for value in shard.values if value.path not in paths]
        paths.update(value.path for value in shard.values)
    return values


def _merge_refusals(every: Sequence[Checkpoint]) -> tuple[Refusal, ...] | None:
    if all(shard.weights_only is None for shard in every):
        return None
    return tuple(chain.from_iterable(shard.weights_only or () for shard in every))


def shard_mark(probe: Probe, number: int) -> str:
    """The prefix of the storage ids of a shard, in the checkpoint over all of them."""
    return f"{probe.mark}shard-{number + 1}:"


def read(probe: Probe, limits: Limits) -> Checkpoint:
    return _read_layout(probe, listed(probe, limits), limits)


def read_set(probe: Probe, shards: ShardSet, limits: Limits) -> Checkpoint:
    """The checkpoint in shards without an index. `probe` is their folder. Raises
    CkptError.
    """
    return _read_layout(probe, unindexed(probe, shards, limits), limits)


def _read_layout(probe: Probe, layout: Layout, limits: Limits) -> Checkpoint:
    marks = [shard_mark(probe, number) for number in range(len(layout.places))]
    # The fast way: headers alone. Anything unusual is read again, shard by shard.
    usual = read_shards(layout.folder, layout.places, marks, limits, probe.budget)
    if usual is not None:
        try:
            # Names are enough to hold the index against the shards.
            held = [(shard.name, shard.header.tensors.names) for shard in usual]
            notices, copies = _compare_index(layout, held)
            checkpoint = of_headers(
                probe.path, usual, (*layout.notices, *notices), copies
            )
            return with_strays(
                replace(checkpoint, index_bytes=layout.total_size),
                layout,
                probe,
                limits,
            )
        except BaseException:
            # The checkpoint would have closed them.
            for part in usual:
                part.source.close()
            raise
    return _read_each_shard(probe, present_layout(probe, layout, limits), limits)


def _read_each_shard(probe: Probe, layout: Layout, limits: Limits) -> Checkpoint:
    """Read each shard as a checkpoint of its own. Shards of safetensors are read by
    their headers alone where that is enough.
    """
    places = layout.places
    prefixes = {name: shard_mark(probe, number) for number, name in enumerate(places)}
    files = CheckpointFiles(
        layout.folder,
        lambda name: probe.open(places[name], prefixes[name]),
        partial=probe.partial,
    )
    with files.closing_on_errors():
        files.open_all(places)
        # With --partial a shard that cannot be read is left out.
        for name, error in files.unread.items():
            layout = _without_shard(layout, name, error)
        shards = list(files.files.items())
        if not shards:
            raise UnreadableError("none of the shards can be read")
        named = [(name, names_of(shard.tensors)) for name, shard in shards]
        there = set(chain.from_iterable(names for _, names in named))
        # The tensors that a cut-off shard lacks are told already.
        cut = set(chain.from_iterable(map(files.cut_in, files.files)))
        listed = {
            name: file
            for name, file in layout.weight_map.items()
            if name in there or name not in cut
        }
        notices, copies = _compare_index(layout._replace(weight_map=listed), named)
        kept = [(name, _without_copies(name, shard, copies)) for name, shard in shards]
        checkpoint = merge_shards(
            probe.path, FORMAT.name, kept, (*layout.notices, *notices)
        )
        return with_strays(
            replace(checkpoint, index_bytes=layout.total_size), layout, probe, limits
        )


def _without_copies(file: str, shard: Checkpoint, copies: Copies) -> Checkpoint:
    """A shard without the tensors that are read from another one. Raises
    UnreadableError for one below the root.
    """
    gone = {name for other, name in copies if other == file}
    if not gone:
        return shard
    # Only names at the root can be taken out of the tree.
    deep = next(
        (row.name for row in shard.tensors if row.name in gone and len(row.path) > 1),
        None,
    )
    if deep is not None:
        raise UnreadableError(f"tensor {show(deep, 80)} is in several shards")
    entries = [entry for entry in shard.tensors if entry.name not in gone]
    held = {part.storage.id for entry in entries for part in parts_of(entry.tensor)}
    storages = tuple(storage for storage in shard.storages if storage.id in held)
    return replace(
        shard,
        root=without_keys(shard.root, gone),
        tensors=tuple(entries),
        storages=storages,
        is_edited=True,
    )


def _without_shard(layout: Layout, name: str, error: CkptError) -> Layout:
    """The layout without a shard that cannot be read, and with a notice of its tensors,
    which the index names.
    """
    gone: list[str] = []
    rest: dict[str, str] = {}
    for tensor, shard in layout.weight_map.items():
        if shard == name:
            gone.append(tensor)
        else:
            rest[tensor] = shard
    text = f"{show(name, 80)} was not read: {error.advice}"
    if layout.is_indexed:
        text += f": {counted_noun(len(gone), 'tensor')} lost"
    notice = Notice("incomplete", text, tuple(gone))
    return layout._replace(
        weight_map=rest, total_size=None, notices=(*layout.notices, notice)
    )


def layout_of(probe: Probe, limits: Limits) -> Layout:
    """The files of an index. Raises UnreadableError when shards are missing or the
    index is invalid.
    """
    return present_layout(probe, listed(probe, limits), limits)


def _compare_index(
    layout: Layout, shards: Sequence[tuple[str, Iterable[str]]]
) -> tuple[list[Notice], set[tuple[str, str]]]:
    """Compare the index with the shards and the names in each. Return notices, and the
    copies that are not read.

    Raises UnreadableError when no shard holds a listed tensor, or when nothing says
    which of two tensors is meant.
    """
    weight_map = layout.weight_map
    # The shards of each tensor, in their order.
    holds: dict[str, list[str]] = {}
    for file, names in shards:
        for name in names:
            holds.setdefault(name, []).append(file)
    lost = [name for name in weight_map if name not in holds]
    if lost:
        listed = and_more([show(name, 80) for name in lost], LISTED)
        raise UnreadableError(
            f"the index lists {counted_noun(len(lost), 'tensor')} that no shard holds: "
            f"{listed}"
        )
    twice = [name for name, files in holds.items() if len(files) > 1]
    copies: set[tuple[str, str]] = set()
    for name in twice:
        # Loaders differ: one takes the shard that the index names, another all files in
        # turn.
        if weight_map.get(name) not in holds[name]:
            text = (
                f"tensor {show(name, 80)} is in several shards: "
                f"{and_more(holds[name], 3)}"
            )
            if not layout.is_indexed:
                text += ", and no index says which is meant"
            raise UnreadableError(text)
        copies |= {(file, name) for file in holds[name] if file != weight_map[name]}
    notices: list[Notice] = []
    if copies:
        notices.append(_copies_notice(twice, weight_map, holds))
    if layout.is_indexed:
        notices += _index_notices(weight_map, holds)
    return notices, copies


def _copies_notice(
    twice: Sequence[str], weight_map: Mapping[str, str], holds: Mapping[str, list[str]]
) -> Notice:
    """The notice on tensors that are in several shards."""
    first = twice[0]
    other = next(file for file in holds[first] if file != weight_map[first])
    verb = be_verb(twice)
    what = f"{counted_noun(len(twice), 'tensor')} {verb} in several shards"
    where = (
        f"{show(first, 80)} is read from {show(weight_map[first], 60)}, not from "
        f"{show(other, 60)}"
    )
    text = (
        f"{what}, and the index decides: {where}; a loader that takes all of each "
        "file may take the other"
    )
    return Notice("unassigned", text, tuple(twice))


def _index_notices(
    weight_map: Mapping[str, str], holds: Mapping[str, list[str]]
) -> Iterator[Notice]:
    """The notices on tensors that are in other shards than the index says, and on those
    that it does not list.
    """
    wrong = tuple(
        name for name, shard in weight_map.items() if shard not in holds[name]
    )
    if wrong:
        places = [
            (
                f"{show(name, 80)} is in {show(holds[name][0], 60)}, the index says "
                f"{show(weight_map[name], 60)}"
            )
            for name in wrong
        ]
        text = f"tensors are in other shards than the index says: {and_more(places, 1)}"
        yield Notice("shards", text, wrong)
    unlisted = tuple(name for name in holds if name not in weight_map)
    if unlisted:
        listed = and_more([show(name, 80) for name in unlisted], 3)
        yield Notice("unassigned", f"the index does not list {listed}", unlisted)


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    return checksums_of(probe, layout_of(probe, limits), check)


def checksums_of(probe: Probe, layout: Layout, check: Check) -> ChecksumReport:
    """Check each shard of a layout."""
    prefixes = {
        name: shard_mark(probe, number) for number, name in enumerate(layout.places)
    }
    names = names_opened_ahead(layout.folder, layout.places)
    return check_files(names, lambda name: check(layout.places[name], prefixes[name]))


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    layout = layout_of(probe, limits)
    names = names_opened_ahead(layout.folder, layout.places)
    shards: list[RecordedFile] = []
    for name in names:
        shards += inner(layout.places[name], name)
    return [*shards, *_of_index(probe, limits)]


def _of_index(probe: Probe, limits: Limits) -> list[RecordedFile]:
    """The index. It is read whole, so the CRC-32 is of its bytes."""
    # A folder of shards without an index.
    if probe.is_folder:
        return []
    # Here: who reads the tensors pays nothing for it.
    from ckpt.formats.common.recorded import of_text

    name = probe.path.replace("\\", "/").rpartition("/")[2]
    return [of_text(probe.location, name, limits)]
