"""Reading the files of the ranks of a run as one checkpoint: the pickle of each, and no tensor data.

The tree is that of the first rank, with the whole tensors in place of its pieces. Where a piece lies follows from its
placements alone, never from its values. What lies on several ranks is read from the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import NamedTuple

from ckpt.checkpoint import Checkpoint, Import, Notice, Origin
from ckpt.dtypes import contiguous
from ckpt.errors import LimitError, UnreadableError
from ckpt.formats import pickled
from ckpt.formats.dcp.coverage import fault, grid_of
from ckpt.formats.fsdp import NAME, TRAITS
from ckpt.formats.fsdp.names import RankSet
from ckpt.formats.fsdp.places import boxes_of
from ckpt.formats.fsdp.sets import sets_of
from ckpt.formats.fsdp.swap import swapped
from ckpt.formats.pickled import Contents
from ckpt.formats.probe import Probe
from ckpt.limits import Limits
from ckpt.names import Path, dotted
from ckpt.nodes import Dict, Node
from ckpt.pickles.sharded.dtensor import DTENSORS
from ckpt.tensors import (
    Box,
    Boxes,
    Composite,
    Piece,
    Storage,
    Tensor,
    TensorRef,
    parts_of,
    sources_of,
    tensor_ref,
)
from ckpt.text import plural, show

_LISTED = 5
_TOO_MANY = 2**63


class Copies(NamedTuple):
    """The same elements on two ranks, which should be equal. `id` is that of the storage of the whole tensor."""

    name: str
    id: str
    ranks: tuple[int, int]
    one: TensorRef
    two: TensorRef

    @property
    def surely_differ(self) -> bool:
        """Whether the checksums that the files record tell them apart."""
        one, two = self.one, self.two
        if one.geometry != two.geometry or None in (one.storage.crc, two.storage.crc):
            return False
        whole = all(ref.extent == (0, ref.storage.nbytes) for ref in (one, two))
        return whole and one.storage.crc != two.storage.crc

    @property
    def text(self) -> str:
        return f"{show(self.name, 80)} differs between rank {self.ranks[0]} and rank {self.ranks[1]}"


@dataclass(frozen=True, slots=True)
class RanksOrigin(Origin):
    """What several ranks hold, for the verifier."""

    copies: tuple[Copies, ...]
    marks: tuple[tuple[str, str], ...]
    """Each file, and the prefix of the ids of its storages."""


class _Whole(NamedTuple):
    """A tensor of the run: the whole of it, None for one of several parts, its copies, and what it lacks."""

    ref: TensorRef | None
    copies: list[Copies]
    hole: str | None


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
        rest = f" and {plural(len(each.files) - 1, 'more file')}" if len(each.files) > 1 else ""
        text = f"{first}{rest} hold no parts of tensors and were not read"
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
        NAME,
        TRAITS,
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
        for rank, name in found.files.items():
            location = self._probe.location.child(name, "no")
            self.files[rank] = self._probe.open(location, self._mark_of(rank))

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
        pieces = [piece for each in tensors.values() for tensor in each.values() if (piece := _piece(tensor))]
        expected: Sequence[int]
        if self.set.world is not None:
            expected = range(self.set.world)
            if max(self.files) >= self.set.world:
                name = show(self.set.files[max(self.files)], 80)
                raise UnreadableError(f"{name}: its name says that there are {self.set.world} ranks")
        else:
            meshes = {piece.ranks or tuple(range(prod(piece.mesh))) for piece in pieces}
            expected = sorted(set(self.files).union(*meshes))
        for rank, each in tensors.items():
            for path, tensor in each.items():
                piece = _piece(tensor)
                if piece is not None and piece.rank not in (None, rank):
                    name = show(self.set.files[rank], 80)
                    raise UnreadableError(f"{name}: {show(dotted(path), 80)} was saved by rank {piece.rank}")
        some = islice((rank for rank in expected if rank not in self.files), _LISTED)
        return list(some), len(expected) - len(self.files)

    def _merged(self, name: str, every: dict[int, Tensor]) -> _Whole:
        """The whole of a tensor from those of the ranks. One that is no DTensor stays that of the first rank."""
        what = show(name, 80)
        first = next(iter(every.values()))
        for rank, tensor in every.items():
            if isinstance(tensor, Composite) and tensor.piece is None and tensor.detail in DTENSORS:
                raise UnreadableError(f"{what} of rank {rank} is a DTensor that ckpt cannot place")
        kinds = {
            (tensor.layout, tensor.dtype, tensor.shape, _piece(tensor) is None) for tensor in every.values()
        }
        if len(kinds) > 1:
            raise UnreadableError(f"the ranks disagree on the dtype, the size or the kind of {what}")
        if isinstance(first, TensorRef):
            refs = {rank: tensor for rank, tensor in every.items() if isinstance(tensor, TensorRef)}
            return _Whole(first, _copies(name, first.storage.id, refs), None)
        if _piece(first) is None:
            return _Whole(None, _copies_of_parts(name, every), None)
        assert isinstance(first, Composite)
        return self._gathered(
            name, {rank: tensor for rank, tensor in every.items() if isinstance(tensor, Composite)}
        )

    def _gathered(self, name: str, every: dict[int, Composite]) -> _Whole:
        first = next(iter(every.values()))
        if first.dtype.nbytes(prod(first.shape)) >= _TOO_MANY:
            raise UnreadableError(f"{show(name, 80)} has more than 2^63 bytes")
        meshes = {(tensor.piece.mesh, tensor.piece.placements) for tensor in every.values() if tensor.piece}
        if len(meshes) > 1:
            raise UnreadableError(f"the ranks disagree on the mesh or the placements of {show(name, 80)}")
        held: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[int, TensorRef]] = {}
        boxes: list[Box] = []
        copies: list[Copies] = []
        taken: dict[tuple[int, ...], int] = {}
        id = f"{self._mark}{name}"
        for rank, tensor in every.items():
            piece, local = tensor.piece, tensor.parts[0][1]
            assert piece is not None
            what = f"{show(name, 80)} of rank {rank}"
            if local.dtype != tensor.dtype:
                raise UnreadableError(f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}")
            coordinate = _coordinate(piece, rank, what)
            other = taken.setdefault(coordinate, rank)
            if other != rank and prod(piece.mesh) >= max(len(piece.ranks), max(every) + 1):
                raise UnreadableError(
                    f"{show(name, 80)}: ranks {other} and {rank} are at one place of the mesh"
                )
            own = boxes_of(tensor, piece, coordinate, what)
            key = tuple((box.offsets, box.sizes) for box in own)
            if key in held:
                copies += _copies(name, id, dict([held[key], (rank, local)])) if own else []
            else:
                held[key] = rank, local
                boxes += own
        found = fault(first.shape, [(box.offsets, box.sizes) for box in boxes])
        if found is not None and found.kind == "overlap":
            raise UnreadableError(f"two ranks hold {found.where} of {show(name, 80)}")
        problem = f"{show(name, 80)} lacks {found.where}" if found is not None else None
        places = [box.tensor().storage.place for box in boxes]
        sources = tuple(dict.fromkeys(source for place in places for source in sources_of(place)))
        place = Boxes(first.dtype, first.shape, lambda: boxes, sources, problem, grid_of(boxes))
        storage = Storage(id, first.device, first.dtype, place.size, place)
        ref = tensor_ref(storage, first.dtype, first.shape, contiguous(first.shape), 0, first.requires_grad)
        ref = ref._replace(is_parameter=first.is_parameter, is_buffer=first.is_buffer)
        return _Whole(ref, copies, problem)


def _piece(tensor: Tensor) -> Piece | None:
    return tensor.piece if isinstance(tensor, Composite) else None


def _coordinate(piece: Piece, rank: int, what: str) -> tuple[int, ...]:
    """The place of a rank in the mesh. Raises UnreadableError."""
    if piece.ranks and len(piece.ranks) == prod(piece.mesh):
        if rank not in piece.ranks:
            raise UnreadableError(f"{what}: its mesh has no rank {rank}")
        rest = piece.ranks.index(rank)
        found: list[int] = []
        for size in reversed(piece.mesh):
            rest, at = divmod(rest, size)
            found.append(at)
        computed = tuple(reversed(found))
        if piece.coordinate not in (None, computed):
            raise UnreadableError(f"{what}: its place in the mesh is not that of its rank")
        return computed
    if piece.coordinate is None:
        raise UnreadableError(f"{what}: its place in the mesh is not recorded")
    return piece.coordinate


def _copies(name: str, id: str, refs: dict[int, TensorRef]) -> list[Copies]:
    (first, one), *others = refs.items()
    return [
        Copies(name, id, (first, rank), one, two)
        for rank, two in others
        if None not in (one.storage.place, two.storage.place)
    ]


def _copies_of_parts(name: str, every: dict[int, Tensor]) -> list[Copies]:
    """The copies of the parts of a quantized tensor, or another that consists of some."""
    found: list[Copies] = []
    for parts in zip(*map(parts_of, every.values()), strict=False):
        found += _copies(name, parts[0].storage.id, dict(zip(every, parts, strict=True)))
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
