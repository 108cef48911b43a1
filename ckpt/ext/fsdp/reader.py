"""The reader of the files of a run's ranks as one checkpoint: the pickle of each, and
no tensor data.

The tree comes from the first rank, with the whole tensors in place of its pieces. The
place of a piece follows from its placements alone, never from its values. Elements on
several ranks are read from the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice, product
from math import prod

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.bytes.source import Source
from ckpt.elements.blocks import elements, is_permuted, same_bytes
from ckpt.elements.boxes import Box, Boxes, boxes_in
from ckpt.ext.fsdp import FORMAT, RankSet, sets_of
from ckpt.formats.common import pickled
from ckpt.formats.common.coverage import find_fault, format_box, grid_of
from ckpt.formats.common.file_set import CheckpointFiles
from ckpt.formats.common.mixed_steps import counters_of, find_strays, refuse_mixed
from ckpt.formats.common.pickled import Contents
from ckpt.formats.common.swap import Swap
from ckpt.formats.format import Check, ChecksumReport, Damage, List, Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Entry, Import, Origin, RecordedFile
from ckpt.model.dtypes import contiguous
from ckpt.model.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.model.limits import TENSOR_MEMORY, Limits
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Dict, Node, tensor_of
from ckpt.model.rows import NamedTuple, dataclass, replace
from ckpt.model.tensors import (
    Composite,
    Piece,
    Shard,
    Shards,
    Storage,
    Tensor,
    TensorRef,
    parts_of,
    tensor_ref,
)
from ckpt.model.text import and_more, counted_noun, show
from ckpt.pickle.sharded import DTENSORS, is_flat, is_sharded
from ckpt.tree.find import counter

_LISTED = 5


@dataclass(frozen=True, slots=True, eq=False)
class RanksOrigin(Origin):
    """The elements that several ranks hold, for the verifier."""

    copies: tuple[Copies, ...]
    marks: tuple[tuple[str, str], ...]
    """Each file, and the prefix of the ids of its storages."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    sets = sets_of(probe)
    assert sets is not None
    chosen, others = sets
    opened = [_Set(ranks, probe, limits, several=len(chosen) > 1) for ranks in chosen]
    # One of the sets may fail after others are open: all of them are closed then.
    with ExitStack() as stack:
        for ranks in opened:
            stack.enter_context(ranks.closing_on_errors())
        for ranks in opened:
            ranks.open_ranks()
        return _build_checkpoint(probe, opened, others, limits)


def _build_checkpoint(
    probe: Probe, sets: Sequence[_Set], others: Sequence[RankSet], limits: Limits
) -> Checkpoint:
    contents = Contents((), None, probe.mark, probe.budget)
    stems = {opened.set.stem for opened in sets}
    for other in others:
        text = _text_of_unread(other, is_same_stem=other.stem in stems)
        contents.notices.append(Notice("unread-file", text))
    copies: list[Copies] = []
    roots = []
    for opened in sets:
        contents.notices += opened.notices
        roots.append(opened.whole(contents.notices, copies))
    # One set is the checkpoint itself. Several become the entries of one tree, each
    # below its stem: `model`, `optim`.
    root = roots[0]
    if len(sets) > 1:
        root = Dict()
        root.set([opened.key for opened in sets], roots)
    every: list[Checkpoint] = []
    marks: list[tuple[str, str]] = []
    sources: list[Source] = []
    for opened in sets:
        every += opened.by_rank.values()
        marks += opened.marks()
    for file in every:
        sources += file.sources
    checkpoint = pickled.make_checkpoint(
        probe.path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        origin=RanksOrigin(tuple(copies), tuple(marks)),
        byteorder=every[0].byteorder,
        refusals=(),
        not_loadable=(
            "torch.load opens the file of one rank; ckpt convert puts all of them "
            "together"
        ),
    )
    return replace(
        checkpoint,
        nbytes=sum(file.nbytes for file in every),
        imports=tuple(_list_imports(sets)),
        # No torch.load reads the set as it is, so there is no answer for
        # `weights_only`.
        weights_only=None,
        parts=tuple(name for name, _ in marks),
        sources=tuple(sources),
    )


def _text_of_unread(other: RankSet, *, is_same_stem: bool) -> str:
    """Return the sentence about a set that is no part of the checkpoint."""
    first = show(next(iter(other.files.values())), 80)
    further = len(other.files) - 1
    if further:
        files, holds, is_, was = (
            f"{first} and {counted_noun(further, 'more file')}",
            "hold",
            "are",
            "were",
        )
    else:
        files, holds, is_, was = first, "holds", "is", "was"
    why = f"{holds} no parts of tensors"
    if is_same_stem:
        why = f"{is_} of another number of ranks"
    return f"{files} {why} and {was} not read"


def _list_imports(sets: Sequence[_Set]) -> Iterator[Import]:
    """Yield the imports of the files: known names once, all others with their file."""
    seen: set[tuple[str, str]] = set()
    for opened in sets:
        for rank, file in opened.by_rank.items():
            for row in file.imports:
                # An import that ckpt does not know is a finding about one file, which
                # is named.
                if row.group != "known":
                    yield row._replace(file=opened.set.files[rank])
                elif (row.module, row.name) not in seen:
                    seen.add((row.module, row.name))
                    yield row


def _tensors_of(file: Checkpoint, first: dict[Path, Tensor]) -> Checkpoint:
    """Return a file without its tree, which grows with the number of ranks.

    Equal lists of shards are shared with the first rank.
    """
    slim: dict[int, Tensor] = {}  # what was one object stays one
    for entry in file.tensors:
        tensor = entry.tensor
        like = first.get(entry.path)
        if id(tensor) in slim or not isinstance(tensor, Composite):
            continue
        # The file of each rank lists the shards of all ranks: the lists of a set grow
        # with the square of the number of ranks.
        shards, other = _tensor_shards(tensor), _tensor_shards(like)
        if shards and other and shards.listed == other.listed:
            shared = shards._replace(listed=other.listed)
            slim[id(tensor)] = replace(tensor, shards=shared)
    entries = [
        row._replace(tensor=slim.get(id(row.tensor), row.tensor))
        for row in file.tensors
    ]
    return replace(
        file, root=None, tensors=entries, values=(), containers=(), origin=None
    )


class _Set(CheckpointFiles):
    """The files of one set, open."""

    def __init__(
        self, set: RankSet, probe: Probe, limits: Limits, several: bool
    ) -> None:
        super().__init__(probe.location, self._open_rank, partial=probe.partial)
        self.set = set
        self.key = (set.stem.strip("._-") or "ranks") if several else ""
        self._ranks = {name: rank for rank, name in set.files.items()}
        self._gone: dict[int, frozenset[str]] = {}
        """Names of tensors whose bytes a file lacks, by the rank of the file."""
        self._base = -1
        """The rank whose tree is kept."""
        self._probe = probe
        self._limits = limits
        self._mark = f"{probe.mark}{self.key}:" if several else probe.mark

    @property
    def by_rank(self) -> dict[int, Checkpoint]:
        """The files that were read, by their ranks."""
        return {
            rank: self.files[name]
            for rank, name in self.set.files.items()
            if name in self.files
        }

    def _open_rank(self, name: str) -> Checkpoint:
        return self._probe.open(
            self._probe.location.child(name, "no"), self._mark_of(self._ranks[name])
        )

    def open_ranks(self) -> None:
        """Open the files. Raises CkptError."""
        ranks = self.set
        if ranks.repeated is not None:
            raise UnreadableError(
                f"two files are of one rank: {show(ranks.repeated, 80)}"
            )
        if len(ranks.files) > self._limits.shards:
            raise LimitError(
                "the folder holds too many files", "shards", self._limits.shards
            )
        is_partial = self._probe.partial
        counts: dict[int, dict[str, Node]] = {}
        # The budget counts what is kept: `_keep_file` gives back what a tree took.
        used = self._probe.budget.used
        for name, file in self.open_each(ranks.files.values()):
            rank = self._ranks[name]
            counts[rank] = counters_of(file.values)
            if not is_partial:
                # Ranks of two steps are refused at the first file that differs, before
                # thousands more are opened. One rank stays to compare with.
                refuse_mixed(
                    (show(ranks.files[other], 80), row) for other, row in counts.items()
                )
                counts = dict(islice(counts.items(), 1))
            self._keep_file(rank, file, used)
            used = self._probe.budget.used
        self.refuse_nothing()
        if is_partial:
            self._drop_strays(counts)

    def _keep_file(self, rank: int, file: Checkpoint, used: int) -> None:
        """Keep a file: all of the first one that is whole, and the tensors alone of any
        other.
        """
        name = self.set.files[rank]
        self._gone[rank] = frozenset(self.cut_in(name))
        # Another rank may hold the same elements: `whole` names what is lost.
        self.notices += [
            Notice("incomplete", f"{show(name, 80)}: {message}")
            for message in file.account.messages(("incomplete",))
        ]
        # The tree comes from one rank, the base. A later file takes its place only
        # where it is whole and the base is not.
        base = self.files.get(self.set.files.get(self._base, ""))
        if base is not None and (self._gone[rank] or not self._gone[self._base]):
            self.files[name] = _tensors_of(
                file, {entry.path: entry.tensor for entry in base.tensors}
            )
            kept = len(file.tensors) * TENSOR_MEMORY
            self._probe.budget.release(max(0, self._probe.budget.used - used - kept))
        else:
            self._base = rank

    def _drop_strays(self, counts: dict[int, dict[str, Node]]) -> None:
        """Leave out the files of another step than most have. Where there is no
        majority, `whole` refuses them.
        """
        values: dict[int, dict[str, float]] = {}
        # With `--partial` a minority of another step is left out, and a tie is refused.
        for rank, file in self.by_rank.items():
            nodes = dict(counts[rank])
            nodes |= {
                entry.name: entry.tensor
                for entry in file.tensors
                if entry.path[-1] == "step" and entry.name not in self._gone[rank]
            }
            every = {name: counter(node) for name, node in nodes.items()}
            values[rank] = {
                name: value for name, value in every.items() if value is not None
            }
        odd = find_strays(values)
        refuse_mixed(
            (show(self.set.files[rank], 80), counts[rank])
            for rank in self.by_rank
            if rank not in odd
        )
        for rank in sorted(odd):
            self.leave_out(self.set.files[rank], "most")
        if self._base in odd:  # its tree has gone with it
            # The others have no tree any more (`_tensors_of`): one is opened again.
            self._base = min(
                self.by_rank, key=lambda rank: (bool(self._gone[rank]), rank)
            )
            name = self.set.files[self._base]
            self.drop(name)
            self.files[name] = self._open_rank(name)

    def _mark_of(self, rank: int) -> str:
        return f"{self._mark}rank-{rank}:"

    def marks(self) -> list[tuple[str, str]]:
        return [
            (name, self._mark_of(rank))
            for rank, name in self.set.files.items()
            if name in self.files
        ]

    def whole(self, notices: list[Notice], copies: list[Copies]) -> Node:
        """The tree of the first rank with whole tensors. Raises UnreadableError where
        the ranks disagree.
        """
        files = self.by_rank
        tensors = {
            rank: {entry.path: entry.tensor for entry in file.tensors}
            for rank, file in files.items()
        }
        first = self._base
        # The base is read first where it is not the lowest rank: else the tree and the
        # tensors would come from different files.
        if self._gone[first] or first != min(tensors):
            tensors = {first: tensors.pop(first), **tensors}
        refuse_flat(files[first].tensors)
        names = {entry.path: entry.name for entry in files[first].tensors}
        self._same_names(tensors, first)
        missing = self._missing_ranks(tensors)
        wholes: dict[int, TensorRef] = {}
        """Whole tensors, by the `id` of the tensor of the first rank."""
        seen: dict[int, dict[int, Tensor]] = {}
        """The tensors of all ranks, by the `id` of the tensor of the first rank."""
        lost: list[tuple[str, str]] = []
        """(name of a tensor, sentence about what it lacks)"""
        differ: list[Copies] = []
        for path, tensor in tensors[first].items():
            name = self._full_name(names[path])
            every = {
                rank: entries[path]
                for rank, entries in tensors.items()
                if path in entries and names[path] not in self._gone[rank]
            }
            if not every:
                lost.append((name, f"no file holds all of {show(name, 80)}"))
                continue
            # A tied tensor is one object under several names, and is merged once. It
            # must be tied in the files of all ranks.
            if id(tensor) in seen:
                before = seen[id(tensor)]
                if any(
                    before[rank] is not other
                    for rank, other in every.items()
                    if rank in before
                ):
                    raise UnreadableError(
                        f"the ranks disagree on what {show(name, 80)} shares its "
                        "memory with"
                    )
                continue
            seen[id(tensor)] = every
            # The counters of torch's optimizers are tensors since torch 1.12.
            if path[-1] == "step":
                refuse_mixed(
                    (show(self.set.files[rank], 80), {name: counted})
                    for rank, counted in every.items()
                )
            whole = self._merge_tensor(name, every)
            if whole.ref is not None and whole.ref is not tensor:
                wholes[id(tensor)] = whole.ref
            if whole.hole is not None:
                lost.append((name, whole.hole))
            elif whole.ref is None and first not in every:
                lost.append((name, f"{show(name, 80)} is cut off"))
            copies += whole.copies
            # Only the checksums that the files record are compared here: no tensor data
            # is read.
            differ += [row for row in whole.copies if row.surely_differ][:1]
        # Tensors that the first rank lacks can only be cut off in it: `_same_names` has
        # refused all others.
        beside: dict[str, None] = {}
        for file in files.values():
            for entry in file.tensors:
                if entry.path not in tensors[first]:
                    beside[self._full_name(entry.name)] = None
        lost += [(name, f"no file holds all of {show(name, 80)}") for name in beside]
        notices += [
            *_missing_notices(self.set, missing, lost),
            *_differing_notices(differ),
        ]
        return swap_tensors(files[first].root, wholes)

    def _full_name(self, name: str) -> str:
        return f"{dotted_name((self.key,))}.{name}" if self.key else name

    def _same_names(self, tensors: dict[int, dict[Path, Tensor]], first: int) -> None:
        """Raise UnreadableError where the ranks hold different tensors."""
        for rank, paths in tensors.items():
            # Each direction once: a name that this rank has and the first one lacks,
            # and the other way round. A file that was cut off may lack names.
            for own, others, there, lacks in (
                (paths, tensors[first], rank, first),
                (tensors[first], paths, first, rank),
            ):
                path = next((path for path in own if path not in others), None)
                if path is not None and dotted_name(path) not in self._gone[lacks]:
                    raise UnreadableError(
                        f"the files of the ranks hold different tensors: rank {there} "
                        f"has {show(self._full_name(dotted_name(path)), 80)}, rank "
                        f"{lacks} lacks it"
                    )

    def _missing_ranks(
        self, tensors: dict[int, dict[Path, Tensor]]
    ) -> tuple[list[int], int]:
        """The ranks without a file, the first few of them, and how many ranks there
        are. Raises UnreadableError.
        """
        self._check_world(self.set.world, "its name says")
        # A DTensor names the ranks of its mesh. A ShardedTensor records the number of
        # ranks with its process group; without one, only the owners of its shards are
        # known.
        claims: set[tuple[int, ...] | range] = set()
        worlds: dict[int, int] = {}
        for rank, entries in tensors.items():
            for path, tensor in entries.items():
                place = _tensor_place(tensor)
                if place is None:
                    continue
                # torch 2.13 stores the rank in the mesh of a DTensor. Older files leave
                # it out.
                if place.rank not in (None, rank):
                    name = show(self.set.files[rank], 80)
                    raise UnreadableError(
                        f"{name}: {show(dotted_name(path), 80)} was saved by rank "
                        f"{place.rank}"
                    )
                if isinstance(place, Piece):
                    claims.add(place.ranks or range(prod(place.mesh)))
                elif place.world is not None:
                    worlds.setdefault(place.world, rank)
                else:
                    claims.add(
                        tuple(
                            shard.rank
                            for shard in place.listed
                            if shard.rank is not None
                        )
                    )
        world = self._world(worlds)
        self._check_world(world, "the files say")
        # Without a number of ranks, the ranks that any tensor names are expected.
        expected: Sequence[int] = (
            range(world) if world is not None else sorted(set(tensors).union(*claims))
        )
        some = islice((rank for rank in expected if rank not in tensors), _LISTED)
        return list(some), len(expected) - len(tensors)

    def _check_world(self, world: int | None, says: str) -> None:
        """Raise UnreadableError where a file is of a rank that a run of `world` ranks
        has not.
        """
        last = max(self.by_rank)
        if world is not None and last >= world:
            name = show(self.set.files[last], 80)
            raise UnreadableError(f"{name}: {says} that there are {world} ranks")

    def _world(self, worlds: dict[int, int]) -> int | None:
        """Return the number of ranks, as the names say and as ShardedTensors record.

        `worlds` has a rank for each number that a ShardedTensor records. Raises
        UnreadableError if the numbers disagree.
        """
        if not worlds:
            return self.set.world
        (world, rank), *others = worlds.items()
        if others:
            raise UnreadableError(
                f"rank {rank} was one of {world} ranks, rank {others[0][1]} one of "
                f"{others[0][0]}: the files are of different runs"
            )
        if self.set.world not in (None, world):
            name = show(self.set.files[rank], 80)
            raise UnreadableError(
                f"{name} was saved by one of {world} ranks, its name says "
                f"{self.set.world}"
            )
        return world

    def _merge_tensor(self, name: str, every: dict[int, Tensor]) -> Whole:
        """Return the whole tensor made of the tensors of the ranks.

        A tensor without pieces or shards is taken from the first rank. Raises
        UnreadableError.
        """
        what = show(name, 80)
        first = next(iter(every.values()))
        for rank, tensor in every.items():
            if not isinstance(tensor, Composite):
                continue
            if tensor.piece is not None or tensor.shards is not None:
                continue
            is_dtensor = tensor.detail in DTENSORS
            # Such a tensor holds a part that may lie anywhere: it is never taken for
            # the whole.
            if is_dtensor or is_sharded(tensor):
                kind = "DTensor" if is_dtensor else "ShardedTensor"
                raise UnreadableError(
                    f"{what} of rank {rank} is a {kind} that ckpt cannot place"
                )
        kinds = {
            (tensor.layout, tensor.dtype, tensor.shape, _tensor_kind(tensor))
            for tensor in every.values()
        }
        if len(kinds) > 1:
            raise UnreadableError(
                f"the ranks disagree on the dtype, the size or the kind of {what}"
            )
        # A plain tensor among DTensors is replicated: a buffer, or a parameter that the
        # sharding leaves out. It is read once, never joined from the ranks.
        if isinstance(first, TensorRef):
            refs = {
                rank: tensor
                for rank, tensor in every.items()
                if isinstance(tensor, TensorRef)
            }
            return Whole(first, copies_of(name, first.storage.id, refs), None)
        if _tensor_kind(first) == "other":
            return Whole(None, _copies_of_parts(name, every), None)
        parts = {
            rank: tensor
            for rank, tensor in every.items()
            if isinstance(tensor, Composite)
        }
        if _tensor_kind(first) == "piece":
            return from_pieces(name, f"{self._mark}{name}", parts)
        return from_shards(name, f"{self._mark}{name}", parts)


def _tensor_kind(tensor: Tensor) -> str:
    if not isinstance(tensor, Composite):
        return "other"
    if tensor.piece is not None:
        return "piece"
    if tensor.shards is not None:
        return "shards"
    return "other"


def _tensor_shards(tensor: Tensor | None) -> Shards | None:
    return tensor.shards if isinstance(tensor, Composite) else None


def _tensor_place(tensor: Tensor) -> Piece | Shards | None:
    return (tensor.piece or tensor.shards) if isinstance(tensor, Composite) else None


def _copies_of_parts(name: str, every: dict[int, Tensor]) -> list[Copies]:
    """The copies of the parts of a quantized tensor, or another that consists
    of some.
    """
    copies: list[Copies] = []
    for parts in zip(*map(parts_of, every.values()), strict=False):
        copies += copies_of(
            name, parts[0].storage.id, dict(zip(every, parts, strict=True))
        )
    return copies


def _missing_notices(
    set: RankSet, missing: tuple[list[int], int], lost: Sequence[tuple[str, str]]
) -> Iterator[Notice]:
    """The files that are missing, and the tensors that lack parts of them."""
    some, gone = missing
    names = tuple(name for name, _ in lost)
    account = "the other ranks hold all of every tensor"
    if lost:
        account = lost[0][1]
    if len(lost) > 1:
        further = counted_noun(len(lost) - 1, "more tensor")
        account += f", and {further} lack parts too"
    if gone > 0:
        listed = and_more([*map(str, some)], len(some), total=gone)
        files = f"the files of ranks {listed} are"
        if gone == 1:
            files = f"the file of rank {listed} is"
        yield Notice("incomplete", f"{files} missing: {account}", names)
    elif lost:
        yield Notice("incomplete", account, names)


def _differing_notices(differ: Sequence[Copies]) -> Iterator[Notice]:
    """Yield one notice about the elements that several ranks hold with different
    values.
    """
    if not differ:
        return
    more = ""
    if len(differ) > 1:
        more = f", and {counted_noun(len(differ) - 1, 'more tensor')} differ"
    text = f"{differ[0].text}{more}: rank {differ[0].ranks[0]} is read"
    yield Notice("ranks-differ", text, tuple(row.name for row in differ))


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    # The reader's checkpoint stays open: its storages are read below.
    with read(probe, limits) as checkpoint:
        assert isinstance(checkpoint.origin, RanksOrigin)
        owners = dict(_storage_owners(checkpoint))
        reports = [
            _with_owners(
                check(probe.location.child(name, "no"), mark).about(name), owners
            )
            for name, mark in checkpoint.origin.marks
        ]
        # Copies whose recorded checksums differ are in a notice already.
        pairs = [
            copies for copies in checkpoint.origin.copies if not copies.surely_differ
        ]
        tasks = [
            Task(
                _has_same_elements,
                (copies.one, copies.two),
                copies.one.nbytes + copies.two.nbytes,
            )
            for copies in pairs
        ]
        results = list(zip(pairs, run_each(executor, tasks), strict=True))
    damage = [
        Damage(copies.text, copies.id) for copies, same in results if same is False
    ]
    unread = [
        f"{show(copies.name, 80)}: {same.problem}"
        for copies, same in results
        if isinstance(same, Failed)
    ]
    return ChecksumReport.together(
        [*reports, ChecksumReport(0, tuple(damage), 0, tuple(unread))]
    )


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    with read(probe, limits) as checkpoint:
        assert isinstance(checkpoint.origin, RanksOrigin)
        names = [name for name, _ in checkpoint.origin.marks]
    files: list[RecordedFile] = []
    for name in names:
        files += inner(probe.location.child(name, "no"), name)
    return files


def _has_same_elements(first: TensorRef, second: TensorRef) -> bool | None:
    """Tell whether two ranks hold the same elements. Return None if checksums say that
    a file is damaged.
    """
    try:
        return same_bytes(elements(first), elements(second))
    except (LimitError, NotOpenedError):
        # A limit, or a storage that is not open, says nothing about the bytes.
        raise
    except CkptError:
        # The report on the file itself names the damage.
        return None


def _storage_owners(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the id of each storage of a rank, and the id of the whole tensor that it is
    a part of.
    """
    assert isinstance(checkpoint.origin, RanksOrigin)
    # Copies are not read for the whole tensor, so its boxes do not name their storages.
    for copies in checkpoint.origin.copies:
        yield copies.one.storage.id, copies.id
        yield copies.two.storage.id, copies.id
    for storage in checkpoint.storages:
        for box in boxes_in(storage):
            yield box.tensor().storage.id, storage.id


def _with_owners(report: ChecksumReport, owners: dict[str, str]) -> ChecksumReport:
    """A report on the file of a rank, about the whole tensors."""
    rows = [
        row._replace(storage=owners.get(row.storage or "", row.storage))
        for row in report.damage
    ]
    return report._replace(damage=tuple(rows))


# torch counts the bytes of a tensor in 64 signed bits.
_TOO_MANY = 2**63


class Copies(NamedTuple):
    """The same elements on two ranks, which should be equal. `id` names the storage of
    the whole tensor.
    """

    name: str
    id: str
    ranks: tuple[int, int]
    one: TensorRef
    two: TensorRef

    @property
    def surely_differ(self) -> bool:
        """Tell whether the checksums that the files record tell them apart."""
        first, second = self.one, self.two
        checksums = (first.storage.crc, second.storage.crc)
        if first.geometry != second.geometry or None in checksums:
            return False
        # A checksum is of the whole storage. A tensor that leaves elements out says
        # nothing about them, so its copies are compared by `verify` alone.
        fill_storages = all(
            ref.extent == (0, ref.storage.nbytes) and is_permuted(ref)
            for ref in (first, second)
        )
        return fill_storages and first.storage.crc != second.storage.crc

    @property
    def text(self) -> str:
        return (
            f"{show(self.name, 80)} differs between rank {self.ranks[0]} and rank "
            f"{self.ranks[1]}"
        )


class Whole(NamedTuple):
    """A tensor of the run: the whole of it, None for one of several parts, its copies,
    and what it lacks.
    """

    ref: TensorRef | None
    copies: list[Copies]
    hole: str | None


def copies_of(name: str, id: str, refs: dict[int, TensorRef]) -> list[Copies]:
    (first, tensor), *others = refs.items()
    # A tensor on meta has no bytes to compare.
    return [
        Copies(name, id, (first, rank), tensor, other)
        for rank, other in others
        if None not in (tensor.storage.place, other.storage.place)
    ]


def join_boxes(
    name: str, id: str, like: Composite, boxes: Sequence[Box], copies: list[Copies]
) -> Whole:
    """Join the boxes that the ranks hold into one tensor.

    `like` is the tensor of one rank, `id` names the storage of the whole. Raises
    UnreadableError where two boxes share elements, or where the tensor is larger than
    memory can be.
    """
    what = show(name, 80)
    if like.dtype.nbytes(prod(like.shape)) >= _TOO_MANY:
        raise UnreadableError(f"{what} has more than 2^63 bytes")
    defect = find_fault(like.shape, [(box.offsets, box.sizes) for box in boxes])
    if defect is not None and defect.kind == "overlap":
        raise UnreadableError(f"two ranks hold {defect.where} of {what}")
    # A hole is told, not refused: what the other ranks hold can still be read.
    problem = f"{what} lacks {defect.where}" if defect is not None else None
    sources = chain.from_iterable(box.tensor().storage.list_sources() for box in boxes)
    place = Boxes(
        like.dtype,
        like.shape,
        lambda: boxes,
        tuple(dict.fromkeys(sources)),
        problem,
        grid_of(boxes),
    )
    storage = Storage(id, like.device, like.dtype, place.nbytes, place)
    ref = tensor_ref(
        storage, like.dtype, like.shape, contiguous(like.shape), 0, like.requires_grad
    )
    ref = ref._replace(is_parameter=like.is_parameter, is_buffer=like.is_buffer)
    return Whole(ref, copies, problem)


Run = tuple[int, int]
"""(first index, number of indices)"""

_MOST = 100_000
"""The most boxes of the piece of one rank."""


def boxes_of(
    tensor: Composite, piece: Piece, coordinate: Sequence[int], what: str
) -> list[Box]:
    """The boxes of the whole tensor that a piece holds. Raises UnreadableError where
    its shape is another.
    """
    local = tensor.parts[0][1]
    if not piece.in_order:
        raise UnreadableError(f"{what} is cut in an order that ckpt does not know")
    # For each dimension of the whole tensor, the runs of indices that this rank holds.
    # Each dimension of the mesh cuts them further, the outermost one first.
    along: list[list[Run]] = [[(0, size)] for size in tensor.shape]
    for placement, position, count in zip(
        piece.placements, coordinate, piece.mesh, strict=True
    ):
        # Partial tensors are added up over the ranks: elements of the sum lie nowhere.
        if placement.kind == "partial":
            raise UnreadableError(
                f"{what} is one summand of each rank (Partial), no part of a tensor"
            )
        if placement.kind != "replicate":
            along[placement.dim] = _cut_runs(
                along[placement.dim], placement.split, position, count
            )
    sizes: tuple[int, ...] = tuple(sum(size for _, size in runs) for runs in along)
    # A rank past the end of a small tensor has an empty piece, of any shape.
    if local.shape != sizes and (0 not in sizes or local.numel):
        raise UnreadableError(
            f"{what} has the shape {list(local.shape)}, its placements say "
            f"{list(sizes)}"
        )
    if not prod(sizes):
        return []
    # Strided shards have many runs. The boxes are their product over the dimensions,
    # and a file may claim any split.
    if prod(map(len, along)) > _MOST:
        raise UnreadableError(f"{what} is cut into too many parts")
    if all(len(runs) == 1 for runs in along):
        offsets = tuple(runs[0][0] for runs in along)
        return [Box(offsets, sizes, local)]
    return [Box(*box) for box in _piece_boxes(local, along)]


def _cut_runs(runs: list[Run], split: int, index: int, count: int) -> list[Run]:
    """The indices that one of `count` ranks has, when each of `split` chunks of the
    indices is cut.
    """
    size = sum(length for _, length in runs)
    # torch.chunk's rule: rounded up, so the last chunks are short or empty.
    outer = -(-size // split)
    cut: list[Run] = []
    # A split above 1 is a `_StridedShard` (FSDP beside tensor parallelism on one
    # dimension): each of its chunks is cut for itself.
    for number in range(split if outer else 0):
        first = min(size, outer * number)
        length = min(size, outer * (number + 1)) - first
        if not length:
            break
        inner = -(-length // count)
        begin, end = min(length, inner * index), min(length, inner * (index + 1))
        cut += _take_runs(runs, first + begin, first + end)
        if len(cut) > _MOST:
            raise UnreadableError("a dimension is cut into too many parts")
    return cut or [(0, 0)]


def _take_runs(runs: Sequence[Run], begin: int, end: int) -> Iterator[Run]:
    """The indices from the position `begin` to the position `end` of runs of
    indices.
    """
    position = 0
    for first, length in runs:
        low, high = max(begin, position), min(end, position + length)
        if low < high:
            yield first + low - position, high - low
        position += length


def _piece_boxes(
    local: TensorRef, along: Sequence[Sequence[Run]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], TensorRef]]:
    """Each box of a piece that is several, and its view of what the rank holds."""
    # For each dimension, rows of (first index in the whole tensor, number of indices,
    # first index in what the rank holds).
    placed: list[list[tuple[int, int, int]]] = []
    for runs in along:
        position = 0
        rows: list[tuple[int, int, int]] = []
        for first, length in runs:
            rows.append((first, length, position))
            position += length
        placed.append(rows)
    for box in product(*placed):
        # One box for each combination of runs: its view begins `shift` elements behind
        # the local tensor.
        sizes = tuple(length for _, length, _ in box)
        shift = sum(
            position * step
            for (_, _, position), step in zip(box, local.stride, strict=True)
        )
        part = tensor_ref(
            local.storage, local.dtype, sizes, local.stride, local.offset + shift
        )
        yield (
            tuple(first for first, _, _ in box),
            sizes,
            part._replace(conj=local.conj, neg=local.neg),
        )


def from_pieces(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the pieces of the ranks. Raises UnreadableError where
    they contradict each other.
    """
    first = next(iter(every.values()))
    meshes = {
        (tensor.piece.mesh, tensor.piece.placements)
        for tensor in every.values()
        if tensor.piece
    }
    if len(meshes) > 1:
        raise UnreadableError(
            f"the ranks disagree on the mesh or the placements of {show(name, 80)}"
        )
    held: dict[
        tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[int, TensorRef]
    ] = {}
    """(offsets, sizes) of the boxes of a piece -> the first rank that holds them."""
    boxes: list[Box] = []
    copies: list[Copies] = []
    taken: dict[tuple[int, ...], int] = {}
    """Coordinate in the mesh -> rank."""
    for rank, tensor in every.items():
        piece, local = tensor.piece, tensor.parts[0][1]
        assert piece is not None
        what = f"{show(name, 80)} of rank {rank}"
        if local.dtype != tensor.dtype:
            raise UnreadableError(
                f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}"
            )
        coordinate = _mesh_coordinate(piece, rank, what)
        other = taken.setdefault(coordinate, rank)
        # A mesh of fewer ranks than the run stands in it several times: then two
        # ranks may have one coordinate.
        if other != rank and prod(piece.mesh) >= max(len(piece.ranks), max(every) + 1):
            raise UnreadableError(
                f"{show(name, 80)}: ranks {other} and {rank} are at one place of the "
                "mesh"
            )
        own = boxes_of(tensor, piece, coordinate, what)
        # Ranks along a replicated dimension of the mesh hold equal boxes (HSDP). The
        # first is read, the others are compared by `verify`.
        key = tuple((box.offsets, box.sizes) for box in own)
        if key not in held:
            held[key] = rank, local
            boxes += own
        elif own:
            copies += copies_of(name, id, dict([held[key], (rank, local)]))
    return join_boxes(name, id, first, boxes, copies)


def _mesh_coordinate(piece: Piece, rank: int, what: str) -> tuple[int, ...]:
    """The place of a rank in the mesh. Raises UnreadableError."""
    if piece.ranks and len(piece.ranks) == prod(piece.mesh):
        if rank not in piece.ranks:
            raise UnreadableError(f"{what}: its mesh has no rank {rank}")
        # The ranks of a mesh are listed row by row: the position of this one, written
        # with the sizes of the mesh as digits, is its coordinate.
        rest = piece.ranks.index(rank)
        reversed_coordinate: list[int] = []
        for size in reversed(piece.mesh):
            rest, index = divmod(rest, size)
            reversed_coordinate.append(index)
        computed = tuple(reversed(reversed_coordinate))
        # torch 2.13 records the coordinate too. Both must agree.
        if piece.coordinate not in (None, computed):
            raise UnreadableError(
                f"{what}: its place in the mesh is not that of its rank"
            )
        return computed
    if piece.coordinate is None:
        raise UnreadableError(f"{what}: its place in the mesh is not recorded")
    return piece.coordinate


def refuse_flat(entries: Iterable[Entry]) -> None:
    """Raise UnreadableError where a tensor is a flat parameter, of which nobody but the
    model knows what is in it.

    Beside them lie plain tensors that are slices of parameters, where FSDP keeps the
    original ones (dinov2).
    """
    for entry in entries:
        if is_flat((entry.path or ("",))[-1], entry.tensor):
            raise UnreadableError(
                f"{show(entry.name, 80)} is all parameters of a module in one "
                "(LOCAL_STATE_DICT of FSDP 1): the files record neither their names "
                "nor their shapes",
                hint=(
                    "the training code can load it on as many ranks, and save "
                    "StateDictType.FULL_STATE_DICT"
                ),
            )


def from_shards(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the shards of the ranks. Raises UnreadableError where
    they contradict each other.
    """
    what = show(name, 80)
    first = next(iter(every.values()))
    cuts = {tensor.shards.cut for tensor in every.values() if tensor.shards is not None}
    if len(cuts) > 1:
        raise UnreadableError(f"the ranks disagree on the shards of {what}")
    owners: dict[
        tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Shards, TensorRef]
    ] = {}
    """(offsets, sizes) of a shard -> the rank that holds it, and its list of shards."""
    boxes: list[Box] = []
    copies: list[Copies] = []
    for rank, tensor in every.items():
        assert tensor.shards is not None
        for box, local in _held_shards(
            f"{what} of rank {rank}", rank, tensor, tensor.shards
        ):
            place = box.offsets, box.sizes
            if place not in owners:
                owners[place] = rank, tensor.shards, local
                boxes.append(box)
                continue
            other, theirs, first_local = owners[place]
            # Only HYBRID_SHARD has a shard on several ranks. Elsewhere two files of one
            # save would be mixed up.
            if not _are_replicas(theirs, tensor.shards):
                raise UnreadableError(
                    f"ranks {other} and {rank} hold {format_box(*place, first.shape)} "
                    f"of {what}"
                )
            copies += copies_of(name, id, {other: first_local, rank: local})
    return join_boxes(name, id, first, boxes, copies)


def _held_shards(
    what: str, rank: int, tensor: Composite, shards: Shards
) -> list[tuple[Box, TensorRef]]:
    """Return the shards with elements that a rank holds. Raises UnreadableError if the
    list has others.
    """
    listed: dict[tuple[tuple[int, ...], tuple[int, ...]], Shard] = {}
    for shard in shards.listed:
        # Ranks past the end of a small tensor have shards without elements.
        if 0 in shard.sizes:
            continue
        if (shard.offsets, shard.sizes) in listed:
            raise UnreadableError(
                f"{what} lists {format_box(shard.offsets, shard.sizes, tensor.shape)} "
                "twice"
            )
        if shards.world is not None and (shard.rank or 0) >= shards.world:
            raise UnreadableError(
                f"{what} lists a shard of rank {shard.rank}, there are {shards.world} "
                "ranks"
            )
        listed[shard.offsets, shard.sizes] = shard
    boxes: list[tuple[Box, TensorRef]] = []
    for offsets, (_, local) in zip(shards.offsets, tensor.parts, strict=True):
        # The bytes would be read as another type than the whole tensor has.
        if local.dtype != tensor.dtype:
            raise UnreadableError(
                f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}"
            )
        if not local.numel:
            continue
        place = offsets, local.shape
        own = listed.pop(place) if place in listed else None
        if own is None or own.rank not in (None, rank):
            whose = "is not in its list of shards"
            if own is not None:
                whose = f"belongs to rank {own.rank}"
            raise UnreadableError(f"{what}: {format_box(*place, tensor.shape)} {whose}")
        boxes.append((Box(*place, local), local))
    # Entries that are left were not found in the file. The shards of other ranks belong
    # there, its own do not.
    for shard in listed.values():
        if shard.rank == rank:
            where = format_box(shard.offsets, shard.sizes, tensor.shape)
            raise UnreadableError(
                f"{what} lacks {where}, its list of shards says that it holds it"
            )
    return boxes


def _are_replicas(first: Shards, second: Shards) -> bool:
    """Tell whether two ranks have the same place in two groups that each hold the
    tensor (HYBRID_SHARD).
    """
    # One group of all ranks has no replicas. Without the fields of the process group
    # nothing proves that two shards are replicas.
    if (
        None in (first.group, first.world, first.group_rank)
        or first.group == first.world
    ):
        return False
    return (first.group, first.group_rank) == (second.group, second.group_rank)


def swap_tensors(root: Node, replacements: dict[int, TensorRef]) -> Node:
    """Return a tree in which other tensors stand for the tensors of `replacements`, by
    the ids of theirs.

    The nodes are changed.
    """

    def instead(node: Node) -> Node | None:
        tensor = tensor_of(node)
        return None if tensor is None else replacements.get(id(tensor))

    return Swap(instead).copy(root)
