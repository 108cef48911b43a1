"""Reading a distributed checkpoint: `.metadata`, the small objects beside the tensors,
and no tensor data.

Only files of its folder are opened, by plain names, and no links are followed. A file
that is missing, or a chunk, is a notice: the tensors that it lacks cannot be read, all
others can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from ckpt.bytes.far import is_url, iterate_ahead
from ckpt.bytes.location import Location, is_plain_name
from ckpt.bytes.source import Source, read_limited
from ckpt.elements.boxes import Box, Boxes
from ckpt.ext.dcp import FORMAT
from ckpt.ext.dcp.alike import Alike
from ckpt.ext.dcp.file_names import (
    DATA,
    METADATA,
    UNFINISHED,
    folder_of,
    is_metadata,
    is_part,
    is_unfinished,
    names_beside,
    ranks_of,
    ranks_text,
)
from ckpt.ext.dcp.items import Bytes, Placement, TensorItem, part_itself, read_object
from ckpt.ext.dcp.metadata import Chunks, Copy, Item, Metadata, TensorRow
from ckpt.ext.dcp.skim import read_metadata
from ckpt.formats.common import pickled
from ckpt.formats.common.coverage import Fault, find_fault, format_box
from ckpt.formats.common.early import is_early
from ckpt.formats.common.file_set import FileSet
from ckpt.formats.common.heads import is_pickle
from ckpt.formats.common.members import Member
from ckpt.formats.common.mixed_steps import refuse_mixed
from ckpt.formats.common.pickled import Contents
from ckpt.formats.common.stream import read_nested
from ckpt.formats.common.zip_layout import LOCAL_MAGIC
from ckpt.formats.format import Probe
from ckpt.model.account import Absence, Notice
from ckpt.model.checkpoint import Checkpoint, Import
from ckpt.model.dtypes import contiguous
from ckpt.model.errors import (
    CkptError,
    CutOffError,
    LimitError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import Path, natural_sort_key
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import Storage, TensorRef, tensor_ref
from ckpt.model.text import and_more, be_verb, counted_noun, pasted_path, show
from ckpt.pickle.branches import Branches
from ckpt.pickle.machine import Pickle
from ckpt.tree.find import is_counter

_LISTED = 5
_HEAD = 4096
"""The first bytes of a data file, which say whether it is a pickle."""
_ENTRY = 40
"""Bytes of `.metadata` that allow the memory of a tensor. The machine takes up to 54
for each byte of what ckpt writes.
"""


class Files(FileSet[Source]):
    """The files of a distributed checkpoint and what their metadata says. Data files
    that cannot be opened are `unread`.

    `names_from` is another save, after which the items are named if there is no
    metadata.
    """

    def __init__(
        self,
        folder: Location,
        limits: Limits,
        budget: Budget,
        names_from: Location | None = None,
    ) -> None:
        super().__init__(
            folder, self._open_source, lambda error: isinstance(error, NotOpenedError)
        )
        self.folder = folder
        self.unfinished: tuple[str, ...] = ()
        """The metadata of a save that was killed before it got its name."""
        self.is_named = False
        """A flag: the names come from another save."""
        self._names_from = names_from
        self.names = folder.names()
        self.alike = Alike()
        self.limits = limits
        # The files that are open already are closed where a later one fails.
        with self.closing_on_errors():
            self.metadata = self._read(budget)
            # A descriptor is needed for each file.
            if len(self.metadata.files) > limits.shards:
                raise LimitError(
                    f"{METADATA} names too many files", "shards", limits.shards
                )
            self.open_all(self.metadata.files)
            self.opened = tuple(self.files.values())
            self._sizes = {name: source.size for name, source in self.files.items()}

    def _read(self, budget: Budget) -> Metadata:
        names = sorted(filter(is_metadata, self.names), key=natural_sort_key)
        if METADATA not in names:
            self.unfinished = tuple(
                sorted(_unfinished_names(self.names), key=natural_sort_key)
            )
        try:
            # A save that is finished has one file, or one for each rank.
            names = [METADATA] if METADATA in names else [*names, *self.unfinished]
            ranks: list[Metadata] = []
            if names or self._names_from is None:
                ranks = self._read_ranks(names, budget)
        except (LimitError, NotOpenedError):
            raise
        except UnreadableError:
            if not self.unfinished and self._names_from is None:
                raise
            # The save was killed while it wrote the metadata, or that is damaged.
            ranks = []
        if ranks:
            return merge_ranks(ranks)
        if self._names_from is None:
            raise _interrupted_error(self.folder, self.names, self.limits)
        return self._read_named(self._names_from, budget)

    def _read_named(self, location: Location, budget: Budget) -> Metadata:
        """The metadata with the names of another save. Raises UnreadableError."""
        from ckpt.ext.dcp.named import (
            named,
        )  # here: only an interrupted save pays for it

        self.unfinished, self.is_named = (), True
        folder = location if location.is_folder() else location.parent()
        other = Files(folder, self.limits, budget)
        try:
            name = show(location.name, 80)
            return named(self.folder, other.metadata, name, self.limits)
        finally:
            other.close()

    def _read_ranks(self, names: Sequence[str], budget: Budget) -> list[Metadata]:
        """The metadata in each of these files. Raises UnreadableError."""
        ranks: list[Metadata] = []
        for name in names:
            source = self.files[name] = self.folder.child(name, "cache").open()
            data = read_limited(
                source, self.limits.metadata_bytes, "metadata-bytes", name
            )
            budget.hold(len(data))
            # The memory of the tensors follows from the bytes: it is claimed before any
            # is made.
            budget.claim(len(data) // _ENTRY)
            rank = read_metadata(data, self.limits, budget)
            budget.charge_names([*rank.tensors, *rank.objects], METADATA)
            ranks.append(rank)
        return ranks

    def _open_source(self, file: str) -> Source:
        *folders, name = file.split("/")
        folder = self.folder
        # torch follows any path, so each part is checked here.
        if not all(is_plain_name(part) for part in (*folders, name)):
            raise UnreadableError(
                f".metadata names {show(file, 80)}, which is not a file in this folder"
            )
        for part in folders:
            folder = folder.child(part, "no")
        return folder.child(name, "cache").open()

    def find(self, item: Item, what: str) -> Bytes:
        """Return the place of an item. Raises UnreadableError if its file is missing or
        ends before it.
        """
        source = self.files.get(item.file)
        if source is None:
            raise UnreadableError(
                f"{what} was in {show(item.file, 80)}: {self.unread[item.file].problem}"
            )
        end = item.offset + item.length
        # A file may be cut off behind other items, which are whole.
        if end > source.size:
            needs = f"needs bytes {item.offset:,} to {end:,} of {show(item.file, 80)}"
            raise CutOffError(f"{what} {needs}, which ends at {source.size:,}")
        return Bytes(source, item.offset, item.length, what, item.codecs)

    def chunk(self, row: TensorRow, index: int) -> Bytes:
        """Return the place of the item of a chunk. Raises as `find` does."""
        chunks = row.chunks
        what = show(row.name, 80)
        if len(chunks) > 1:
            what += f" {format_box(*chunks.box(index), row.shape)}"
        if chunks.files[index] < 0:
            raise UnreadableError(f"no file is recorded for {what}")
        return self.find(self.metadata.item(row, index), what)

    def is_lost(self, row: TensorRow) -> bool:
        """Tell whether the file of any chunk is missing or ends too early."""
        # A quick look at the columns: no box is made, for there may be a million.
        names, sizes = self.metadata.files, self._sizes
        chunks = row.chunks
        return any(
            file < 0 or begin + length > sizes.get(names[file], -1)
            for file, begin, length in zip(
                chunks.files, chunks.begins, chunks.lengths, strict=True
            )
        )


def _unfinished_names(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of metadata that did not get its name: of all of the save, or of
    ranks whose own is not there.
    """
    if f"{METADATA}{UNFINISHED}" in names:
        yield f"{METADATA}{UNFINISHED}"
        return
    for name in names:
        if is_unfinished(name) and name.removesuffix(UNFINISHED) not in names:
            yield name


_BESIDE = _ITEMS = 1000
"""The most folders beside an interrupted save that are looked at, and the most items of
it that count.
"""


def _interrupted_error(
    folder: Location, names: Sequence[str], limits: Limits
) -> UnreadableError:
    from ckpt.ext.dcp.remains import (
        remains,
        summary,
    )  # here: only an interrupted save pays for it

    # A look at the items, so that the error can say what is left of the save.
    data = [name for name in names if name.endswith(DATA)]
    try:
        files = list(remains(folder, limits, _ITEMS))
    except CkptError:
        files = []
    # Rank 0 writes `.metadata`, so its folder is another one.
    ranks = ranks_of(data)
    if ranks and 0 not in ranks:
        return _of_one_machine(ranks, summary(files, _ITEMS, are_lost=False))
    text = (
        f"an interrupted save: {counted_noun(len(data), 'data file')} without "
        f"{METADATA}, which is written last"
    )
    account = summary(files, _ITEMS)
    text += f": {account}" if account else ""
    own = folder.name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    # The newest one before this save is what training can go on from.
    whole = [name for name in _checkpoints_beside(folder) if name != own]
    earlier = [name for name in whole if natural_sort_key(name) < natural_sort_key(own)]
    newest = (earlier or whole)[-1:]
    return UnreadableError(
        text,
        hint=f"{show(newest[0], 80)} beside it has its {METADATA}" if newest else None,
    )


def _of_one_machine(ranks: Sequence[int], account: str) -> UnreadableError:
    """The error for files of some ranks, of which rank 0 is none: that one saves
    `.metadata`.

    Where rank 0 alone is missing, its process may have been killed before it wrote.
    """
    what = "a part of a checkpoint that several machines wrote"
    if ranks[0] == 1:
        what += ", or a save that was killed before rank 0 wrote"
    text = (
        f"{what}: the files of {ranks_text(ranks)} only; {METADATA} is where rank 0 "
        "saved"
    )
    hint = "copy the folders of all machines into one"
    return UnreadableError(
        f"{text}; {account}, and {METADATA} has their names" if account else text,
        hint=hint,
    )


def _checkpoints_beside(folder: Location) -> Iterator[str]:
    """The names of the distributed checkpoints in the folder around one, in natural
    order.
    """
    try:
        around = folder.parent()
        names = [
            name.removesuffix("/") for name in around.names() if name.endswith("/")
        ]
    except UnreadableError:
        return
    # A folder of runs may hold thousands of others.
    for name in sorted(names, key=natural_sort_key)[-_BESIDE:]:
        try:
            if any(map(is_metadata, around.child(name).names())):
                yield name
        except UnreadableError:
            continue


Layout = Callable[[Metadata], dict[str, Path]]
"""Gives names their paths, where `.metadata` has none."""


def read(probe: Probe, limits: Limits, layout: Layout | None = None) -> Checkpoint:
    folder = folder_of(probe)
    assert folder is not None
    files = Files(folder, limits, probe.budget, probe.names_from)
    if probe.names_from is not None and not files.is_named:
        files.close()
        # Such names could only contradict the ones that are there.
        raise UsageError(
            "--names-from goes with a save without .metadata", path=probe.path
        )
    probe.names_from = None
    with files.closing_on_errors():
        # Paths that a layout gives are not in the saved order.
        keeps_order = bool(files.metadata.paths)
        if layout is not None and not keeps_order:
            files.metadata = files.metadata._replace(paths=layout(files.metadata))
        return _build_checkpoint(probe, files, limits, keeps_order)


def _build_checkpoint(
    probe: Probe, files: Files, limits: Limits, keeps_order: bool
) -> Checkpoint:
    metadata = files.metadata
    contents = Contents((), read_nested, probe.mark, probe.budget)
    contents.pickles += metadata.pickles
    probe.budget.claim(len(metadata.tensors))
    # Before anything is built: ranks of two steps are refused.
    refuse_mixed(_read_counters(files, limits))
    leaves: dict[str, Node] = {}
    lost: list[str] = []
    faults: dict[str, list[Notice]] = {}
    shared = shared_spans(metadata)
    for name, row in metadata.tensors.items():
        # Tensors that are cut along one dimension are the usual case, and are checked
        # without a box.
        grid = row.chunks.line(row.shape)
        defect = None
        if grid is None:
            defect = find_fault(row.shape, list(row.chunks.boxes()))
        problem = shared.get(name)
        if defect is not None:
            notice = _fault_notice(name, defect)
            problem = notice.message
            faults.setdefault(notice.code, []).append(notice)
        elif files.is_lost(row):
            lost.append(name)
        leaves[name] = _tensor_of_row(
            row, grid or row.chunks.grid(), probe.mark, files, problem, limits
        )
    gone: list[Absence] = []
    unread: list[Absence] = []
    objects: list[tuple[Node, Bytes]] = []
    places = [
        (name, item, _find_object(files, name, item))
        for name, item in metadata.objects.items()
    ]
    # Objects are small and many: behind a URL they are read ahead.
    for name, item, part in iterate_ahead(places):
        # The notice about the missing file counts it.
        if item is not None and item.file in files.unread:
            gone.append(Absence(name, f"it was in {show(item.file, 80)}"))
            continue
        try:
            if isinstance(part, CkptError):
                raise part
            leaves[name] = read_object(part, contents, limits, f"{probe.mark}{name}:")
            objects.append((leaves[name], part))
        # A limit, or a server that fails, is no damage of this object.
        except (LimitError, NotOpenedError):
            raise
        except CkptError as error:
            unread.append(Absence(name, error.problem))
            faults.setdefault("unread", []).append(
                Notice("incomplete", f"{show(name, 80)} was not read: {error.problem}")
            )
    contents.notices += map(_join_notices, faults.values())
    contents.notices += _lost_notices(files, lost, len(gone))
    if shared:
        contents.notices.append(
            Notice("overlap", next(iter(shared.values())), tuple(shared))
        )
    contents.notices += _dead_notices(files)
    strangers = _judge_strangers(probe, files)
    contents.notices += strangers.notices
    # Only a save that lacks nothing can be finished by hand.
    if files.unfinished and not (lost or gone or faults):
        contents.notices.append(_unfinished_notice(files))
    if metadata.unused:
        text = (
            f"{counted_noun(metadata.unused, 'item')} of {METADATA} belong to nothing "
            "that it lists"
        )
        contents.notices.append(Notice("container", text))
    order = [name for name in _saved_order(metadata) if name in leaves]
    # Without a path a name is one key, whatever dots it has.
    rows = [(name, metadata.paths.get(name, (name,)), leaves[name]) for name in order]
    beside = names_beside(files.folder)
    facts: tuple[tuple[str, Node], ...] = ()
    if beside:
        facts = (("beside it", and_more([show(name, 80) for name in beside], 6)),)
    checkpoint = pickled.make_checkpoint(
        probe.path if probe.is_folder else files.folder.name,
        FORMAT.name,
        FORMAT.traits._replace(keeps_order=keeps_order),
        tree_of(rows),
        contents,
        limits,
        origin=Placement(
            (
                (source, name)
                for name, source in files.files.items()
                if name.endswith(DATA) and "/" not in name
            ),
            objects,
            is_flattened=bool(metadata.paths),
        ),
        refusals=(),
        not_loadable=_no_metadata(files),
    )
    return replace(
        checkpoint,
        nbytes=sum(source.size for source in files.files.values()),
        # torch loads it with `dcp.load`, to which weights_only means nothing.
        weights_only=None,
        imports=(*checkpoint.imports, *strangers.imports),
        facts=facts,
        account=checkpoint.account.without_values([*gone, *unread]),
        parts=tuple(
            file
            for file in sorted(metadata.files, key=natural_sort_key)
            if file in files.files
        ),
        sources=tuple(files.files.values()),
    )


def _find_object(files: Files, name: str, item: Item | None) -> Bytes | CkptError:
    """The place of an object, or why it has none."""
    try:
        if item is None:
            raise UnreadableError("no file is recorded for it")
        return files.find(item, show(name, 80))
    except CkptError as error:
        return error


_COPIES = 8
"""The most counters of a file that are compared: a file is written by one save."""


def _read_counters(
    files: Files, limits: Limits
) -> Iterator[tuple[str, dict[str, Node]]]:
    """The counters that several ranks wrote, each with its file. What cannot be read is
    said elsewhere.
    """
    metadata = files.metadata
    seen: dict[str, int] = {}
    found: list[tuple[Copy, TensorRow | None, Item, Bytes]] = []
    for copy in metadata.copies:
        row = metadata.tensors.get(copy.name)
        first = metadata.objects.get(copy.name)
        if row is not None and copy.chunk is not None:
            first = metadata.item(row, copy.chunk)
        # Only counters: other values of ranks may differ, such as random states.
        if first is None or not is_counter(metadata.paths.get(copy.name, (copy.name,))):
            continue
        seen[copy.item.file] = seen.get(copy.item.file, 0) + 1
        items = (first, copy.item) if seen[copy.item.file] <= _COPIES else ()
        for item in items:
            try:
                found.append((copy, row, item, files.find(item, show(copy.name, 80))))
            except CkptError:
                continue
    for copy, row, item, part in iterate_ahead(found):
        try:
            node: Node
            if row is not None:
                node = TensorItem(
                    partial(part_itself, part), row.dtype, row.shape, limits
                ).tensor()
            else:
                node = read_object(
                    part, Contents((), read_nested, "", Budget(limits)), limits, ""
                )
        except (LimitError, NotOpenedError):
            raise
        except CkptError:
            continue
        yield show(item.file, 80), {copy.name: node}


def _saved_order(metadata: Metadata) -> Iterator[str]:
    """The names in the order of the state dict that was saved; `.metadata` has the
    order of the ranks.
    """
    for name in metadata.paths:
        if name in metadata.tensors or name in metadata.objects:
            yield name
    for name in (*metadata.tensors, *metadata.objects):
        if name not in metadata.paths:
            yield name


def _tensor_of_row(
    row: TensorRow,
    grid: tuple[int, ...],
    mark: str,
    files: Files,
    problem: str | None,
    limits: Limits,
) -> TensorRef:
    """The tensor of a row, whose boxes are opened when its bytes are needed."""

    def cut() -> list[Box]:
        boxes: list[Box] = []
        for index, (offsets, sizes) in enumerate(row.chunks.boxes()):
            # Each chunk is opened when its bytes are read: there may be thousands.
            boxes.append(
                Box(
                    offsets,
                    sizes,
                    TensorItem(
                        partial(files.chunk, row, index),
                        row.dtype,
                        sizes,
                        limits,
                        files.alike,
                    ),
                )
            )
        return boxes

    place = Boxes(row.dtype, row.shape, cut, files.opened, problem, grid)
    storage = Storage(mark + row.name, None, row.dtype, place.nbytes, place)
    # False in the file says nothing: `state_dict()` detaches parameters.
    requires_grad = True if row.requires_grad else None
    return tensor_ref(
        storage, row.dtype, row.shape, contiguous(row.shape), 0, requires_grad
    )


def _no_metadata(files: Files) -> str | None:
    """Return the reason why torch does not load a save that has no `.metadata`, or
    None.
    """
    if files.unfinished:
        return (
            f"torch reads {METADATA}, which is "
            f"{and_more([show(name, 80) for name in files.unfinished], 2)} here"
        )
    return f"it has no {METADATA}" if files.is_named else None


def _unfinished_notice(files: Files) -> Notice:
    names = files.unfinished
    items = len(files.metadata.tensors) + len(files.metadata.objects)
    verb = be_verb(names)
    text = (
        "The save was killed before its last step: "
        f"{and_more([show(name, 80) for name in names], 2)} {verb} complete"
    )
    text += f", and all {items:,} tensors and values are there."
    folder = files.folder.name.rstrip("/")
    moves = [_move_command(f"{folder}/{name}") for name in names]
    # One name that no shell takes leaves the whole command out.
    hint = " && ".join(move for move in moves if move is not None)
    return Notice(
        "unfinished", text, (), None if is_url(folder) or None in moves else hint
    )


def _move_command(path: str) -> str | None:
    """The command that gives metadata its name, or None where no shell takes it."""
    old, new = pasted_path(path), pasted_path(path.removesuffix(UNFINISHED))
    return None if old is None or new is None else f"mv {old} {new}"


def _fault_notice(name: str, defect: Fault) -> Notice:
    if defect.kind == "hole":
        return Notice(
            "incomplete",
            f"{show(name, 80)} lacks {defect.where}: no file holds it",
            (name,),
        )
    return Notice(
        "overlap", f"two chunks of {show(name, 80)} hold {defect.where}", (name,)
    )


def _join_notices(notices: Sequence[Notice]) -> Notice:
    """One notice for all of a kind: the first, and how many more there are."""
    first = notices[0]
    more = f", and {len(notices) - 1:,} more like it" if len(notices) > 1 else ""
    names: list[str] = []
    for notice in notices:
        names += notice.tensors
    return Notice(first.code, first.message + more, tuple(names))


def _lost_notices(files: Files, lost: Sequence[str], gone: int) -> Iterator[Notice]:
    """Yield notices about missing files, and about the tensors that lack parts
    in them.
    """
    if files.unread:
        rows = [
            (name, files.unread[name].problem)
            for name in sorted(files.unread, key=natural_sort_key)
        ]
        usual = "no such file"
        listed = and_more(
            [
                show(name, 80) + ("" if why == usual else f" ({why})")
                for name, why in rows
            ],
            _LISTED,
        )
        text = (
            f"{len(files.unread)} of "
            f"{counted_noun(len(files.metadata.files), 'data file')} missing: {listed}"
        )
        # All files of some ranks, rank 0 not among them, were probably saved elsewhere.
        elsewhere = set(ranks_of(files.unread)) - {0, *ranks_of(files.files)}
        if elsewhere == set(ranks_of(files.unread)):
            text += (
                f" (all files of {ranks_text(sorted(elsewhere))}, perhaps on another "
                "machine)"
            )
        held = [f"parts of {counted_noun(len(lost), 'tensor')}"] if lost else []
        held += [counted_noun(gone, "value")] if gone else []
        yield Notice(
            "incomplete",
            f"{text}, with {' and '.join(held)}" if held else text,
            tuple(lost),
        )
    elif lost:
        listed = and_more([show(name, 80) for name in lost], _LISTED)
        yield Notice(
            "incomplete",
            f"parts of {counted_noun(len(lost), 'tensor')} are missing: {listed}",
            tuple(lost),
        )


def _is_empty(folder: Location, name: str) -> bool:
    try:
        source = folder.child(name, "cache").open()
    except UnreadableError:
        return False
    try:
        return not source.size
    finally:
        source.close()


def _dead_notices(files: Files) -> Iterator[Notice]:
    """Files that nothing names: an earlier save left them behind. A rank with nothing
    to write leaves an empty one.
    """
    unnamed = [
        name
        for name in files.names
        if name.endswith(DATA) and name not in files.metadata.files
    ]
    dead = [name for name in unnamed if not _is_empty(files.folder, name)]
    if dead:
        listed = and_more([show(name, 80) for name in dead], _LISTED)
        yield Notice("dead-files", f"{METADATA} names nothing in {listed}")


class _Strangers(NamedTuple):
    """The imports of files that the checkpoint does not read, and notices about those
    that cannot be judged.
    """

    imports: list[Import]
    notices: list[Notice]


def _judge_strangers(probe: Probe, files: Files) -> _Strangers:
    """Judge each file that has the name of a part and that `.metadata` does not name,
    by what loading it alone does.

    A data file that is named is judged too if it begins as a pickle: its items are
    archives. Behind a URL that would be a request for each file.
    """
    out = _Strangers([], [])
    is_far = is_url(files.folder.name)
    for name in files.names:
        source = files.files.get(name)
        is_named = source is not None
        # Metadata that was read is judged already, and so are items behind a URL.
        is_judged = is_named and (is_far or not name.endswith(DATA))
        if not is_part(name) or is_judged:
            continue
        try:
            judged = source or files.folder.child(name, "cache").open()
        except UnreadableError:
            continue  # a link, or what cannot be read: said where it matters
        try:
            # An empty file has nothing to begin with.
            if not judged.size:
                continue
            if source is None or _begins_as_pickle(judged, files.limits):
                _judge_file(probe, name, judged, out)
        finally:
            if source is None:
                judged.close()
    return out


def _begins_as_pickle(source: Source, limits: Limits) -> bool:
    # An item is a zip archive, which is judged when it is read.
    if source.read(0, min(source.size, len(LOCAL_MAGIC))) == LOCAL_MAGIC:
        return False
    head = source.read(0, min(source.size, _HEAD))
    return is_pickle(head) or is_early(head, source, limits)


def _judge_file(probe: Probe, name: str, source: Source, out: _Strangers) -> None:
    """Add what loading one file does. Whole items of an earlier save, and what is no
    checkpoint, do nothing.
    """
    try:
        # Under another name: its own leads to the folder around it.
        member = Member(source, f"{name} alone", 0, source.size)
        with probe.open(member, f"{probe.mark}{name}:") as opened:
            strange = [row for row in opened.imports if row.group != "known"]
            out.imports.extend(row._replace(where=(), file=name) for row in strange)
            out.notices.extend(opened.account.noticed("code-inside", "out-of-bounds"))
    except (LimitError, NotOpenedError):
        raise
    except UnsupportedError:
        return
    # Damaged: its first opcodes may run before the fault.
    except CkptError as error:
        if _begins_as_pickle(source, probe.limits):
            text = (
                f"DANGER: {show(name, 80)} is a pickle that cannot be judged: "
                f"{error.problem}."
            )
            out.notices.append(Notice("code-inside", text))


def merge_ranks(ranks: Sequence[Metadata]) -> Metadata:
    """The union of the chunks; of what several ranks hold the first is taken, the
    others are its copies.

    Raises UnreadableError where the ranks give a tensor two sizes or types.
    """
    if len(ranks) == 1:
        return ranks[0]
    tensors: dict[str, TensorRow] = {}
    objects: dict[str, Item | None] = {}
    paths: dict[str, Path] = {}
    files: dict[str, int] = {}
    copies: list[Copy] = []
    places: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], int]] = {}
    """Name -> (offsets, sizes) -> the number of the chunk in the union."""
    for rank in ranks:
        paths |= {name: path for name, path in rank.paths.items() if name not in paths}
        for name, item in rank.objects.items():
            # Each rank may write an object of its own under one name.
            if objects.setdefault(name, item) is not item and item is not None:
                copies.append(Copy(name, None, item))
        for name, row in rank.tensors.items():
            own = tensors.setdefault(name, row._replace(chunks=Chunks(len(row.shape))))
            if name in objects or (own.dtype, own.shape) != (row.dtype, row.shape):
                raise UnreadableError(
                    f"the metadata of two ranks disagree on {show(name, 80)}"
                )
            chunks = places.setdefault(name, {})
            for index, (offsets, sizes) in enumerate(row.chunks.boxes()):
                item = rank.item(row, index) if row.chunks.files[index] >= 0 else None
                chunk = chunks.get((offsets, sizes))
                # An empty chunk has no elements to compare.
                if chunk is not None and own.chunks.files[chunk] >= 0:
                    if item is not None and 0 not in sizes:
                        copies.append(Copy(name, chunk, item))
                    continue
                if chunk is None:
                    chunk = chunks[offsets, sizes] = len(own.chunks)
                    own.chunks.add(offsets, sizes)
                if item is not None:
                    own.chunks.place(
                        chunk, files.setdefault(item.file, len(files)), item
                    )
    # Files of copies are opened too, for `verify`.
    for item in (*objects.values(), *(copy.item for copy in copies)):
        if item is not None:
            files.setdefault(item.file, len(files))
    first = ranks[0]
    pickles: list[Pickle] = []
    for rank in ranks:
        pickles += rank.pickles
    return Metadata(
        tensors,
        objects,
        paths,
        tuple(files),
        sum(rank.unused for rank in ranks),
        first.version,
        tuple(pickles),
        tuple(copies),
    )


def shared_spans(metadata: Metadata) -> dict[str, str]:
    """Tensors and objects whose items share bytes with another item, by name, and what
    they share.
    """
    # (number of the file, first byte, end, name) of each item.
    spans: list[tuple[int, int, int, str]] = []
    numbers = {file: number for number, file in enumerate(metadata.files)}
    for name, row in metadata.tensors.items():
        chunks = row.chunks
        spans += [
            (file, begin, begin + length, name)
            for file, begin, length in zip(
                chunks.files, chunks.begins, chunks.lengths, strict=True
            )
            if file >= 0
        ]
    further = [
        *metadata.objects.items(),
        *((copy.name, copy.item) for copy in metadata.copies),
    ]
    spans += [
        (numbers[item.file], item.offset, item.offset + item.length, name)
        for name, item in further
        if item is not None
    ]
    spans.sort()
    texts: dict[str, str] = {}
    # Sorted by file and first byte: an item that is shared overlaps its neighbour.
    for first, second in pairwise(spans):
        if first[0] == second[0] and second[1] < first[2]:
            names = f"{show(first[3], 80)} and {show(second[3], 80)}"
            text = (
                f"the items of {names} share bytes of "
                f"{show(metadata.files[first[0]], 80)}"
            )
            texts.setdefault(first[3], text)
            texts.setdefault(second[3], text)
    return texts


_GAPS = 10_000
"""Positions of lists that may be left out, since torch saves no empty dict."""


def tree_of(leaves: Sequence[tuple[str, Path, Node]]) -> Node:
    """The tree of (name, path, node) leaves.

    Raises UnreadableError where one path leads through another leaf, or to a position
    that no list has.
    """
    branches = Branches()
    for name, path, node in leaves:
        far = max((step for step in path if type(step) is int), default=0)
        if far >= len(leaves) + _GAPS:  # torch makes a list of as many
            held = (
                f"position {far:,} of a list, and the checkpoint has {len(leaves):,} "
                "values"
            )
            raise UnreadableError(f".metadata: {show(name, 80)} lies at {held}")
        if not branches.put(path, node):
            conflict = "leads through a value"
            if branches.holds(path):
                conflict = "is that of another value"
            raise UnreadableError(f".metadata: the path of {show(name, 80)} {conflict}")
    return branches.tree()
