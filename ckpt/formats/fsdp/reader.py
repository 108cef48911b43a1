"""Reading the files of the ranks of a run as one checkpoint: the pickle of each, and no tensor data.

The tree is that of the first rank, with the whole tensors in place of its pieces. Where a piece lies follows from its
placements alone, never from its values. What lies on several ranks is read from the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import prod

from ckpt.checkpoint import Checkpoint, Import, Notice, Origin
from ckpt.elements.blocks import elements, same_bytes
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.formats.common import pickled
from ckpt.formats.common.pickled import Contents, counters_of, refuse_mixed
from ckpt.formats.format import Check, ChecksumReport, Damage
from ckpt.formats.fsdp import FORMAT
from ckpt.formats.fsdp.pieces import Copies, Whole, copies_of, from_pieces, from_shards, refuse_flat, swapped
from ckpt.formats.fsdp.sets import RankSet, sets_of
from ckpt.formats.probe import Probe
from ckpt.io.executor import Executor, Failed, Task, run_each
from ckpt.limits import TENSOR_MEMORY, Limits
from ckpt.names import Path, dotted
from ckpt.nodes import Dict, Node
from ckpt.pickles.sharded import DTENSORS, is_sharded
from ckpt.rows import dataclass, replace
from ckpt.tensors import Boxes, Composite, Piece, Shards, Tensor, TensorRef, parts_of
from ckpt.text import plural, show

_LISTED = 5


@dataclass(frozen=True, slots=True, eq=False)
class RanksOrigin(Origin):
    """What several ranks hold, for the verifier."""

    copies: tuple[Copies, ...]
    marks: tuple[tuple[str, str], ...]
    """Each file, and the prefix of the ids of its storages."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    found = sets_of(probe)
    assert found is not None
    chosen, others = found
    opened: list[_Set] = []
    try:
        for each in chosen:
            opened.append(_Set(each, probe, limits, several=len(chosen) > 1))
            opened[-1].open()
        return _checkpoint(probe, opened, others, limits)
    except BaseException:
        for each_set in opened:
            each_set.close()
        raise


def _checkpoint(probe: Probe, sets: Sequence[_Set], others: Sequence[RankSet], limits: Limits) -> Checkpoint:
    contents = Contents((), None, probe.mark, probe.budget)
    for each in others:
        first = show(next(iter(each.files.values())), 80)
        several = len(each.files) > 1
        what = f"{first} and {plural(len(each.files) - 1, 'more file')}" if several else first
        why = f"{'hold' if several else 'holds'} no parts of tensors"
        if any(each.stem == one.set.stem for one in sets):
            why = f"{'are' if several else 'is'} of another number of ranks"
        text = f"{what} {why} and {'were' if several else 'was'} not read"
        contents.notices.append(Notice("unread-file", text))
    copies: list[Copies] = []
    roots = [each.whole(contents.notices, copies) for each in sets]
    root = roots[0]
    if len(sets) > 1:
        root = Dict()
        root.set([each.key for each in sets], roots)
    every = [file for each in sets for file in each.files.values()]
    checkpoint = pickled.checkpoint(
        probe.path,
        FORMAT.name,
        FORMAT.traits,
        root,
        contents,
        limits,
        origin=RanksOrigin(tuple(copies), tuple(mark for each in sets for mark in each.marks())),
        byteorder=every[0].byteorder,
        refusals=(),
        not_loadable="torch.load opens the file of one rank; ckpt convert puts all of them together",
    )
    names = [name for each in sets for name in each.set.files.values()]
    return replace(
        checkpoint,
        nbytes=sum(file.nbytes for file in every),
        imports=tuple(_imports(sets)),
        weights_only=None,
        parts=tuple(names),
        sources=tuple(source for file in every for source in file.sources),
    )


def _imports(sets: Sequence[_Set]) -> Iterator[Import]:
    """What the files import: known names once, all others with their file."""
    seen: set[tuple[str, str]] = set()
    for each in sets:
        for rank, file in each.files.items():
            for row in file.imports:
                if row.group != "known":
                    yield row._replace(file=each.set.files[rank])
                elif (row.module, row.name) not in seen:
                    seen.add((row.module, row.name))
                    yield row


def _tensors_of(file: Checkpoint, first: dict[Path, Tensor]) -> Checkpoint:
    """A file without its tree, which is as large as the number of ranks: lists of shards are those of the first rank."""
    made: dict[int, Tensor] = {}  # what was one object stays one
    for entry in file.tensors:
        tensor, like = entry.tensor, first.get(entry.path)
        shards, other = _shards(tensor), _shards(like)
        if id(tensor) in made:
            continue
        if isinstance(tensor, Composite) and shards and other and shards.listed == other.listed:
            made[id(tensor)] = replace(tensor, shards=shards._replace(listed=other.listed))
    entries = [row._replace(tensor=made.get(id(row.tensor), row.tensor)) for row in file.tensors]
    return replace(file, root=None, tensors=entries, values=(), containers=(), origin=None)


class _Set:
    """The files of one set, open. `files` are those that were read, by their ranks."""

    def __init__(self, set: RankSet, probe: Probe, limits: Limits, several: bool) -> None:
        self.set = set
        self.key = (set.stem.strip("._-") or "ranks") if several else ""
        self.files: dict[int, Checkpoint] = {}
        self._probe = probe
        self._limits = limits
        self._mark = f"{probe.mark}{self.key}:" if several else probe.mark

    def open(self) -> None:
        """Open the files. Raises CkptError."""
        found = self.set
        if found.repeated is not None:
            raise UnreadableError(f"two files are of one rank: {show(found.repeated, 80)}")
        if len(found.files) > self._limits.shards:
            raise LimitError("the folder holds too many files", "shards", self._limits.shards)
        headers: list[tuple[str, dict[str, Node]]] = []
        for rank, name in found.files.items():
            used = self._probe.budget.used
            file = self._probe.open(self._probe.location.child(name, "no"), self._mark_of(rank))
            headers.append((show(name, 80), counters_of(file.values)))
            refuse_mixed(headers)
            del headers[1:]
            if not self.files:
                first = {entry.path: entry.tensor for entry in file.tensors}
            else:
                file = _tensors_of(file, first)
                kept = len(file.tensors) * TENSOR_MEMORY
                self._probe.budget.release(max(0, self._probe.budget.used - used - kept))
            self.files[rank] = file

    def _mark_of(self, rank: int) -> str:
        return f"{self._mark}rank-{rank}:"

    def marks(self) -> list[tuple[str, str]]:
        return [(name, self._mark_of(rank)) for rank, name in self.set.files.items()]

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def whole(self, notices: list[Notice], copies: list[Copies]) -> Node:
        """The tree of the first rank with whole tensors. Raises UnreadableError where the ranks disagree."""
        tensors = {
            rank: {entry.path: entry.tensor for entry in file.tensors} for rank, file in self.files.items()
        }
        first = min(tensors)
        refuse_flat(self.files[first].tensors)
        names = {entry.path: entry.name for entry in self.files[first].tensors}
        self._same_names(tensors, first)
        missing = self._missing(tensors)
        made: dict[int, TensorRef] = {}
        kept: dict[int, list[Tensor]] = {}
        lost: list[tuple[str, str]] = []
        differ: list[Copies] = []
        for path, tensor in tensors[first].items():
            name = self._full(names[path])
            every = {rank: each[path] for rank, each in tensors.items()}
            if id(tensor) in kept:
                if any(one is not two for one, two in zip(kept[id(tensor)], every.values(), strict=True)):
                    raise UnreadableError(
                        f"the ranks disagree on what {show(name, 80)} shares its memory with"
                    )
                continue
            kept[id(tensor)] = list(every.values())
            if path[-1] == "step":
                refuse_mixed((show(self.set.files[rank], 80), {name: one}) for rank, one in every.items())
            found = self._merged(name, every)
            if found.ref is not None and found.ref is not tensor:
                made[id(tensor)] = found.ref
            if found.hole is not None:
                lost.append((name, found.hole))
            copies += found.copies
            differ += [row for row in found.copies if row.surely_differ][:1]
        notices += [*_lacking(self.set, missing, lost), *_differing(differ)]
        return swapped(self.files[first].root, made)

    def _full(self, name: str) -> str:
        return f"{dotted((self.key,))}.{name}" if self.key else name

    def _same_names(self, tensors: dict[int, dict[Path, Tensor]], first: int) -> None:
        """Raise UnreadableError where the ranks hold different tensors."""
        for rank, each in tensors.items():
            for one, two, there, lacks in (
                (each, tensors[first], rank, first),
                (tensors[first], each, first, rank),
            ):
                if one.keys() - two.keys():
                    path = next(path for path in one if path not in two)
                    raise UnreadableError(
                        f"the files of the ranks hold different tensors: rank {there} has"
                        f" {show(self._full(dotted(path)), 80)}, rank {lacks} lacks it"
                    )

    def _missing(self, tensors: dict[int, dict[Path, Tensor]]) -> tuple[list[int], int]:
        """The ranks without a file, the first few of them, and how many ranks there are. Raises UnreadableError."""
        self._check_world(self.set.world, "its name says")
        known: set[tuple[int, ...] | range] = set()
        worlds: dict[int, int] = {}
        for rank, each in tensors.items():
            for path, tensor in each.items():
                place = _place(tensor)
                if place is None:
                    continue
                if place.rank not in (None, rank):
                    name = show(self.set.files[rank], 80)
                    raise UnreadableError(f"{name}: {show(dotted(path), 80)} was saved by rank {place.rank}")
                if isinstance(place, Piece):
                    known.add(place.ranks or range(prod(place.mesh)))
                elif place.world is not None:
                    worlds.setdefault(place.world, rank)
                else:
                    known.add(tuple(shard.rank for shard in place.listed if shard.rank is not None))
        world = self._world(worlds)
        self._check_world(world, "the files say")
        expected: Sequence[int] = range(world) if world is not None else sorted(set(self.files).union(*known))
        some = islice((rank for rank in expected if rank not in self.files), _LISTED)
        return list(some), len(expected) - len(self.files)

    def _check_world(self, world: int | None, says: str) -> None:
        """Raise UnreadableError where a file is of a rank that a run of `world` ranks has not."""
        if world is not None and max(self.files) >= world:
            name = show(self.set.files[max(self.files)], 80)
            raise UnreadableError(f"{name}: {says} that there are {world} ranks")

    def _world(self, worlds: dict[int, int]) -> int | None:
        """How many ranks there are, as the names say, and as ShardedTensors record (world -> a rank that says so)."""
        if not worlds:
            return self.set.world
        (world, rank), *others = worlds.items()
        if others:
            raise UnreadableError(
                f"rank {rank} was one of {world} ranks, rank {others[0][1]} one of {others[0][0]}:"
                " the files are of different runs"
            )
        if self.set.world not in (None, world):
            name = show(self.set.files[rank], 80)
            raise UnreadableError(f"{name} was saved by one of {world} ranks, its name says {self.set.world}")
        return world

    def _merged(self, name: str, every: dict[int, Tensor]) -> Whole:
        """The whole of a tensor from those of the ranks. One that is no DTensor stays that of the first rank."""
        what = show(name, 80)
        first = next(iter(every.values()))
        for rank, tensor in every.items():
            if isinstance(tensor, Composite) and tensor.piece is None and tensor.shards is None:
                if tensor.detail in DTENSORS or is_sharded(tensor):
                    kind = "DTensor" if tensor.detail in DTENSORS else "ShardedTensor"
                    raise UnreadableError(f"{what} of rank {rank} is a {kind} that ckpt cannot place")
        kinds = {(tensor.layout, tensor.dtype, tensor.shape, _kind(tensor)) for tensor in every.values()}
        if len(kinds) > 1:
            raise UnreadableError(f"the ranks disagree on the dtype, the size or the kind of {what}")
        if isinstance(first, TensorRef):
            refs = {rank: tensor for rank, tensor in every.items() if isinstance(tensor, TensorRef)}
            return Whole(first, copies_of(name, first.storage.id, refs), None)
        if _kind(first) == "other":
            return Whole(None, _copies_of_parts(name, every), None)
        parts = {rank: tensor for rank, tensor in every.items() if isinstance(tensor, Composite)}
        gather = from_pieces if _kind(first) == "piece" else from_shards
        return gather(name, f"{self._mark}{name}", parts)


def _kind(tensor: Tensor) -> str:
    if not isinstance(tensor, Composite):
        return "other"
    return "piece" if tensor.piece is not None else "shards" if tensor.shards is not None else "other"


def _shards(tensor: Tensor | None) -> Shards | None:
    return tensor.shards if isinstance(tensor, Composite) else None


def _place(tensor: Tensor) -> Piece | Shards | None:
    return (tensor.piece or tensor.shards) if isinstance(tensor, Composite) else None


def _copies_of_parts(name: str, every: dict[int, Tensor]) -> list[Copies]:
    """The copies of the parts of a quantized tensor, or another that consists of some."""
    found: list[Copies] = []
    for parts in zip(*map(parts_of, every.values()), strict=False):
        found += copies_of(name, parts[0].storage.id, dict(zip(every, parts, strict=True)))
    return found


def _lacking(
    set: RankSet, missing: tuple[list[int], int], lost: Sequence[tuple[str, str]]
) -> Iterator[Notice]:
    """The files that are missing, and the tensors that lack parts of them."""
    some, gone = missing
    names = tuple(name for name, _ in lost)
    more = f", and {plural(len(lost) - 1, 'more tensor')} lack parts too" if len(lost) > 1 else ""
    said = f"{lost[0][1]}{more}" if lost else "the other ranks hold all of every tensor"
    if gone > 0:
        listed = ", ".join(map(str, some)) + (f" and {gone - len(some):,} more" if gone > len(some) else "")
        files = f"the file of rank {listed} is" if gone == 1 else f"the files of ranks {listed} are"
        yield Notice("incomplete", f"{files} missing: {said}", names)
    elif lost:
        yield Notice("incomplete", said, names)


def _differing(differ: Sequence[Copies]) -> Iterator[Notice]:
    """What lies on several ranks with different values, in one notice."""
    if differ:
        more = f", and {plural(len(differ) - 1, 'more tensor')} differ" if len(differ) > 1 else ""
        text = f"{differ[0].text}{more}: rank {differ[0].ranks[0]} is read"
        yield Notice("ranks-differ", text, tuple(row.name for row in differ))


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    with read(probe, limits) as checkpoint:
        assert isinstance(checkpoint.origin, RanksOrigin)
        owners = dict(_owners(checkpoint))
        reports = [
            _about(check(probe.location.child(name, "no"), mark).about(name), owners)
            for name, mark in checkpoint.origin.marks
        ]
        asked = [copies for copies in checkpoint.origin.copies if not copies.surely_differ]  # else it is said
        tasks = [
            Task(_same, (copies.one, copies.two), copies.one.nbytes + copies.two.nbytes) for copies in asked
        ]
        found = list(zip(asked, run_each(executor, tasks), strict=True))
    damage = [Damage(copies.text, copies.id) for copies, same in found if same is False]
    unread = [
        f"{show(copies.name, 80)}: {same.problem}" for copies, same in found if isinstance(same, Failed)
    ]
    return ChecksumReport.together([*reports, ChecksumReport(0, tuple(damage), 0, tuple(unread))])


def _same(one: TensorRef, two: TensorRef) -> bool | None:
    """Whether two ranks hold the same elements; None where the checksums of its file say that it is damaged."""
    try:
        return same_bytes(elements(one), elements(two))
    except (LimitError, NotOpenedError):
        raise
    except CkptError:
        return None


def _owners(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """The id of each storage of a rank, and that of the whole tensor that it is a part of."""
    assert isinstance(checkpoint.origin, RanksOrigin)
    for copies in checkpoint.origin.copies:
        yield copies.one.storage.id, copies.id
        yield copies.two.storage.id, copies.id
    for storage in checkpoint.storages:
        for box in storage.place.boxes if isinstance(storage.place, Boxes) else ():
            yield box.tensor().storage.id, storage.id


def _about(report: ChecksumReport, owners: dict[str, str]) -> ChecksumReport:
    """A report on the file of a rank, about the whole tensors."""
    rows = [row._replace(storage=owners.get(row.storage or "", row.storage)) for row in report.damage]
    return report._replace(damage=tuple(rows))
