"""The whole of a tensor from what the ranks hold: pieces of a DTensor, or shards of a ShardedTensor.

Where a piece lies follows from its placements alone. A shard says where it begins, and each rank lists all shards with the rank
that holds each; both must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import cast

from ckpt.checkpoint import Entry
from ckpt.dtypes import contiguous
from ckpt.errors import UnreadableError
from ckpt.formats.common.coverage import fault, grid_of, indices
from ckpt.nodes import Dict, Node, Opaque, is_tuple, tensor_of
from ckpt.pickles.sharded import is_flat
from ckpt.rows import NamedTuple
from ckpt.tensors import (
    Box,
    Boxes,
    Composite,
    Piece,
    Shard,
    Shards,
    Storage,
    TensorRef,
    sources_of,
    tensor_ref,
)
from ckpt.text import show

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


class Whole(NamedTuple):
    """A tensor of the run: the whole of it, None for one of several parts, its copies, and what it lacks."""

    ref: TensorRef | None
    copies: list[Copies]
    hole: str | None


def copies_of(name: str, id: str, refs: dict[int, TensorRef]) -> list[Copies]:
    (first, one), *others = refs.items()
    return [
        Copies(name, id, (first, rank), one, two)
        for rank, two in others
        if None not in (one.storage.place, two.storage.place)
    ]


def joined(name: str, id: str, like: Composite, boxes: Sequence[Box], copies: list[Copies]) -> Whole:
    """The tensor of boxes that the ranks hold. `like` is that of one rank, `id` names the storage of the whole.

    Raises UnreadableError where two boxes share elements, or where the tensor is larger than memory can be.
    """
    what = show(name, 80)
    if like.dtype.nbytes(prod(like.shape)) >= _TOO_MANY:
        raise UnreadableError(f"{what} has more than 2^63 bytes")
    found = fault(like.shape, [(box.offsets, box.sizes) for box in boxes])
    if found is not None and found.kind == "overlap":
        raise UnreadableError(f"two ranks hold {found.where} of {what}")
    problem = f"{what} lacks {found.where}" if found is not None else None
    places = [box.tensor().storage.place for box in boxes]
    sources = tuple(dict.fromkeys(source for place in places for source in sources_of(place)))
    place = Boxes(like.dtype, like.shape, lambda: boxes, sources, problem, grid_of(boxes))
    storage = Storage(id, like.device, like.dtype, place.size, place)
    ref = tensor_ref(storage, like.dtype, like.shape, contiguous(like.shape), 0, like.requires_grad)
    ref = ref._replace(is_parameter=like.is_parameter, is_buffer=like.is_buffer)
    return Whole(ref, copies, problem)


Run = tuple[int, int]
"""(first index, number of indices)"""

_MOST = 100_000
"""The most boxes of the piece of one rank."""


def boxes_of(tensor: Composite, piece: Piece, coordinate: Sequence[int], what: str) -> list[Box]:
    """The boxes of the whole tensor that a piece holds. Raises UnreadableError where its shape is another."""
    local = tensor.parts[0][1]
    if not piece.in_order:
        raise UnreadableError(f"{what} is cut in an order that ckpt does not know")
    along: list[list[Run]] = [[(0, size)] for size in tensor.shape]
    for placement, at, count in zip(piece.placements, coordinate, piece.mesh, strict=True):
        if placement.kind == "partial":
            raise UnreadableError(f"{what} is one summand of each rank (Partial), no part of a tensor")
        if placement.kind != "replicate":
            along[placement.dim] = _cut(along[placement.dim], placement.split, at, count)
    sizes: tuple[int, ...] = tuple(sum(size for _, size in runs) for runs in along)
    if local.shape != sizes and (0 not in sizes or local.numel):
        raise UnreadableError(f"{what} has the shape {list(local.shape)}, its placements say {list(sizes)}")
    if not prod(sizes):
        return []
    if prod(map(len, along)) > _MOST:
        raise UnreadableError(f"{what} is cut into too many parts")
    if all(len(runs) == 1 for runs in along):
        return [Box(tuple(runs[0][0] for runs in along), sizes, local)]
    return [Box(*box) for box in _parts(local, along)]


def _cut(runs: list[Run], split: int, at: int, count: int) -> list[Run]:
    """The indices that one of `count` ranks has, when each of `split` chunks of the indices is cut."""
    size = sum(length for _, length in runs)
    outer = -(-size // split)
    found: list[Run] = []
    for number in range(split if outer else 0):
        first = min(size, outer * number)
        length = min(size, outer * (number + 1)) - first
        if not length:
            break
        inner = -(-length // count)
        begin, end = min(length, inner * at), min(length, inner * (at + 1))
        found += _taken(runs, first + begin, first + end)
        if len(found) > _MOST:
            raise UnreadableError("a dimension is cut into too many parts")
    return found or [(0, 0)]


def _taken(runs: Sequence[Run], begin: int, end: int) -> Iterator[Run]:
    """The indices from the position `begin` to the position `end` of runs of indices."""
    at = 0
    for first, length in runs:
        low, high = max(begin, at), min(end, at + length)
        if low < high:
            yield first + low - at, high - low
        at += length


def _parts(
    local: TensorRef, along: Sequence[Sequence[Run]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], TensorRef]]:
    """Each box of a piece that is several, and its view of what the rank holds."""
    placed: list[list[tuple[int, int, int]]] = []
    for runs in along:
        at = 0
        rows: list[tuple[int, int, int]] = []
        for first, length in runs:
            rows.append((first, length, at))
            at += length
        placed.append(rows)
    for box in product(*placed):
        sizes = tuple(length for _, length, _ in box)
        shift = sum(at * step for (_, _, at), step in zip(box, local.stride, strict=True))
        part = tensor_ref(local.storage, local.dtype, sizes, local.stride, local.offset + shift)
        yield tuple(first for first, _, _ in box), sizes, part._replace(conj=local.conj, neg=local.neg)


def from_pieces(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the pieces of the ranks. Raises UnreadableError where they contradict each other."""
    first = next(iter(every.values()))
    meshes = {(tensor.piece.mesh, tensor.piece.placements) for tensor in every.values() if tensor.piece}
    if len(meshes) > 1:
        raise UnreadableError(f"the ranks disagree on the mesh or the placements of {show(name, 80)}")
    held: dict[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[int, TensorRef]] = {}
    boxes: list[Box] = []
    copies: list[Copies] = []
    taken: dict[tuple[int, ...], int] = {}
    for rank, tensor in every.items():
        piece, local = tensor.piece, tensor.parts[0][1]
        assert piece is not None
        what = f"{show(name, 80)} of rank {rank}"
        if local.dtype != tensor.dtype:
            raise UnreadableError(f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}")
        coordinate = _coordinate(piece, rank, what)
        other = taken.setdefault(coordinate, rank)
        if other != rank and prod(piece.mesh) >= max(len(piece.ranks), max(every) + 1):
            raise UnreadableError(f"{show(name, 80)}: ranks {other} and {rank} are at one place of the mesh")
        own = boxes_of(tensor, piece, coordinate, what)
        key = tuple((box.offsets, box.sizes) for box in own)
        if key in held:
            copies += copies_of(name, id, dict([held[key], (rank, local)])) if own else []
        else:
            held[key] = rank, local
            boxes += own
    return joined(name, id, first, boxes, copies)


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


def refuse_flat(entries: Iterable[Entry]) -> None:
    """Raise UnreadableError where a tensor is a flat parameter, of which nobody but the model knows what is in it.

    Beside them lie plain tensors that are slices of parameters, where FSDP keeps the original ones (dinov2).
    """
    for entry in entries:
        if is_flat((entry.path or ("",))[-1], entry.tensor):
            raise UnreadableError(
                f"{show(entry.name, 80)} is all parameters of a module in one (LOCAL_STATE_DICT of FSDP 1):"
                " the files record neither their names nor their shapes",
                hint="the training code can load it on as many ranks, and save StateDictType.FULL_STATE_DICT",
            )


def from_shards(name: str, id: str, every: dict[int, Composite]) -> Whole:
    """The whole of a tensor from the shards of the ranks. Raises UnreadableError where they contradict each other."""
    what = show(name, 80)
    first = next(iter(every.values()))
    cuts = {tensor.shards.cut for tensor in every.values() if tensor.shards is not None}
    if len(cuts) > 1:
        raise UnreadableError(f"the ranks disagree on the shards of {what}")
    owners: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Shards, TensorRef]] = {}
    boxes: list[Box] = []
    copies: list[Copies] = []
    for rank, tensor in every.items():
        assert tensor.shards is not None
        for box, local in _held(f"{what} of rank {rank}", rank, tensor, tensor.shards):
            at = box.offsets, box.sizes
            if at not in owners:
                owners[at] = rank, tensor.shards, local
                boxes.append(box)
                continue
            other, theirs, one = owners[at]
            if not _are_replicas(theirs, tensor.shards):
                raise UnreadableError(f"ranks {other} and {rank} hold {indices(*at, first.shape)} of {what}")
            copies += copies_of(name, id, {other: one, rank: local})
    return joined(name, id, first, boxes, copies)


def _held(what: str, rank: int, tensor: Composite, shards: Shards) -> list[tuple[Box, TensorRef]]:
    """The shards with elements that a rank holds. Raises UnreadableError where they are not those of the list."""
    listed: dict[tuple[tuple[int, ...], tuple[int, ...]], Shard] = {}
    for shard in shards.listed:
        if 0 in shard.sizes:
            continue
        if (shard.offsets, shard.sizes) in listed:
            raise UnreadableError(f"{what} lists {indices(shard.offsets, shard.sizes, tensor.shape)} twice")
        if shards.world is not None and (shard.rank or 0) >= shards.world:
            raise UnreadableError(
                f"{what} lists a shard of rank {shard.rank}, there are {shards.world} ranks"
            )
        listed[shard.offsets, shard.sizes] = shard
    found: list[tuple[Box, TensorRef]] = []
    for offsets, (_, local) in zip(shards.offsets, tensor.parts, strict=True):
        if local.dtype != tensor.dtype:
            raise UnreadableError(f"{what} is {local.dtype.name}, the tensor is {tensor.dtype.name}")
        if not local.numel:
            continue
        at = offsets, local.shape
        own = listed.pop(at) if at in listed else None
        if own is None or own.rank not in (None, rank):
            whose = "is not in its list of shards" if own is None else f"belongs to rank {own.rank}"
            raise UnreadableError(f"{what}: {indices(*at, tensor.shape)} {whose}")
        found.append((Box(*at, local), local))
    for shard in listed.values():
        if shard.rank == rank:
            where = indices(shard.offsets, shard.sizes, tensor.shape)
            raise UnreadableError(f"{what} lacks {where}, its list of shards says that it holds it")
    return found


def _are_replicas(one: Shards, two: Shards) -> bool:
    """Whether two ranks have the same place in two groups that hold a copy of the tensor each (HYBRID_SHARD)."""
    if None in (one.group, one.world, one.group_rank) or one.group == one.world:
        return False
    return (one.group, one.group_rank) == (two.group, two.group_rank)


def swapped(root: Node, made: dict[int, TensorRef]) -> Node:
    """A tree in which other tensors stand for those of `made`, by the ids of theirs. The nodes are changed."""
    return _Swap(made).run(root)


class _Swap:
    def __init__(self, made: dict[int, TensorRef]) -> None:
        self._made = made
        self._seen: set[int] = set()
        self._tuples: dict[int, tuple[Node, Node]] = {}

    def run(self, node: Node) -> Node:
        """The node that stands in place of a node. Trees are at most as deep as the limit `depth`."""
        tensor = tensor_of(node)
        if tensor is not None:
            return self._made.get(id(tensor), node)
        if is_tuple(node):
            if id(node) not in self._tuples:
                parts = tuple(map(self.run, node))
                same = all(one is two for one, two in zip(parts, node, strict=True))
                self._tuples[id(node)] = node, node if same else parts
            return self._tuples[id(node)][1]
        if type(node) is list:
            if self._is_new(node):
                node[:] = [self.run(each) for each in node]
        elif type(node) is Dict:
            if self._is_new(node):
                node.values = [self.run(each) for each in node.values]
        elif type(node) is Opaque and self._is_new(node):
            node.args = cast("tuple[Node, ...]", tuple(map(self.run, node.args)))
            node.states = [self.run(each) for each in node.states]
            node.items = [self.run(each) for each in node.items]
            node.values = [self.run(each) for each in node.values]
        return node

    def _is_new(self, node: Node) -> bool:
        if id(node) in self._seen:
            return False
        self._seen.add(id(node))
        return True
