"""Which bytes go where: the items of a distributed checkpoint that is to be written, and the files that they fill.

Items of a checkpoint that is read are taken as they are, in files that stay whole (a rename) or one by one (a
selection); all other tensors are cut into rows, one chunk for each rank, and written anew.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from itertools import count

from ckpt.checkpoint import Checkpoint
from ckpt.dtypes import contiguous
from ckpt.elements.blocks import is_dense, place_of
from ckpt.errors import UnreadableError
from ckpt.formats.dcp import DATA
from ckpt.formats.dcp.items import Bytes, Placement, TensorItem
from ckpt.formats.dcp.metadata.content import Item
from ckpt.formats.dcp.writer.record import Chunk, Row
from ckpt.formats.torch_zip.write import archive_of
from ckpt.io.commit import Sink
from ckpt.io.source import Source
from ckpt.limits import Limits
from ckpt.nodes import Node, tensor_of
from ckpt.rows import NamedTuple
from ckpt.tensors import Boxes, Storage, TensorRef, tensor_ref
from ckpt.tree.flat.leaves import Leaf, Parts, parts_of


class NewFile:
    """A file of items, written one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self._pieces: list[Callable[[Sink], None]] = []

    def add(self, size: int, pour: Callable[[Sink], None]) -> Item:
        """Where the next item lies: `size` bytes, which `pour` writes."""
        item = Item(self.name, self.size, size)
        self.size += size
        self._pieces.append(pour)
        return item

    def write(self, sink: Sink) -> None:
        """Write the items."""
        for pour in self._pieces:
            pour(sink)


class Plan(NamedTuple):
    """The content of a folder: what `.metadata` lists, new files, and files that stay as they are."""

    rows: list[Row]
    files: list[NewFile]
    whole: list[tuple[str, Source]]
    link: bool
    is_flattened: bool

    @property
    def data_bytes(self) -> int:
        return sum(file.size for file in self.files) + sum(source.size for _, source in self.whole)


def placement_of(checkpoint: Checkpoint) -> Placement:
    """How the data of a checkpoint is to lie."""
    return checkpoint.origin if isinstance(checkpoint.origin, Placement) else Placement()


def flattened(checkpoint: Checkpoint, limits: Limits) -> Parts:
    """The tensors and objects of a checkpoint as `.metadata` lists them."""
    return parts_of(checkpoint.root, limits, whole=not placement_of(checkpoint).is_flattened)


def plan(checkpoint: Checkpoint, limits: Limits) -> Plan:
    """The files of a checkpoint that has no losses. Raises CkptError where a part of its source is missing."""
    return _Planner(placement_of(checkpoint), limits).run(flattened(checkpoint, limits).leaves)


_Found = tuple[tuple[int, ...], tuple[int, ...], Bytes]
"""The first index and the size of a chunk, and where its item lies."""


class _Planner:
    def __init__(self, files: Placement, limits: Limits) -> None:
        self._given = files
        self._limits = limits
        self._stays: dict[int, str] = {}
        self._kept: dict[int, tuple[str, Source]] = {}
        self._copied: dict[int, NewFile] = {}
        self._new: dict[int, NewFile] = {}
        self._taken = {name for _, name in files.names}
        self._objects: dict[tuple[bytes, tuple[int, ...]], deque[Bytes]] = {}
        """The items of each object, in their order: two equal ones have an item each, for items share no bytes."""
        for node, item in files.objects:
            self._objects.setdefault(self._pickled(node), deque()).append(item)

    def run(self, leaves: list[Leaf]) -> Plan:
        again = [self._found(leaf.node) for leaf in leaves]
        used: dict[int, int] = {}
        for _, _, at in (row for found in again for row in found or ()):
            used[id(at.source)] = used.get(id(at.source), 0) + at.length
        # A file that is mostly dead bytes by now is not worth keeping.
        self._stays = {
            id(source): name
            for source, name in self._given.names
            if used.get(id(source), 0) * 2 >= source.size
        }
        rows = [self._row(leaf, found) for leaf, found in zip(leaves, again, strict=True)]
        made = [*self._copied.values(), *(self._new[rank] for rank in sorted(self._new))]
        whole = list(self._kept.values())
        return Plan(rows, made, whole, self._given.link, self._given.is_flattened)

    def _row(self, leaf: Leaf, found: list[_Found] | None) -> Row:
        name, path, node = leaf
        tensor = tensor_of(node)
        items = None if found is None else [(offsets, sizes, self._again(at)) for offsets, sizes, at in found]
        if tensor is None:
            if items is not None:
                return Row(name, path, item=items[0][2])
            layout, _, _ = archive_of(node, self._limits)
            return Row(name, path, item=self._file(0).add(layout.size, layout.write))
        assert isinstance(tensor, TensorRef)
        if items is not None:
            chunks = [Chunk(*item) for item in items]
        else:
            chunks = [
                Chunk(offsets, part.shape, self._tensor(rank, part))
                for rank, offsets, part in _cut(tensor, self._given.ranks or 1)
            ]
        requires_grad = bool(tensor.requires_grad)
        return Row(name, path, chunks, tensor.dtype, tensor.shape, requires_grad)

    def _found(self, node: Node) -> list[_Found] | None:
        """The items of a distributed checkpoint that hold a tensor or an object as it is; None without them."""
        if self._given.ranks is not None:
            return None
        tensor = tensor_of(node)
        if tensor is None:
            known = self._objects.get(self._pickled(node)) if self._objects else None
            return [((), (), known.popleft())] if known else None
        place = tensor.storage.place if isinstance(tensor, TensorRef) else None
        if not isinstance(tensor, TensorRef) or not isinstance(place, Boxes) or tensor.conj or tensor.neg:
            return None
        if (
            (tensor.dtype, tensor.shape) != (place.dtype, place.shape)
            or tensor.offset
            or not is_dense(tensor)
        ):
            return None
        if place.problem is not None:
            raise UnreadableError(place.problem)
        found: list[_Found] = []
        for box in place.boxes:
            if not isinstance(box.part, TensorItem):
                return None
            found.append((box.offsets, box.sizes, box.part.find()))
        return found

    def _again(self, at: Bytes) -> Item:
        """Where an item lies that is taken as it is: in its own file, which stays whole, or copied."""
        source = at.source
        stays = self._stays.get(id(source))
        if stays is not None:
            self._kept[id(source)] = (stays, source)
            return Item(stays, at.offset, at.length, at.codecs)
        file = self._copied.get(id(source))
        if file is None:
            file = self._copied[id(source)] = NewFile(self._free(source.name.rpartition("/")[2]))
        offset, length = at.offset, at.length
        item = file.add(length, lambda sink: sink.copy(source, offset, length))
        return item._replace(codecs=at.codecs)

    def _pickled(self, node: Node) -> tuple[bytes, tuple[int, ...]]:
        """What makes two objects the same: the pickle, and the storages in it."""
        _, pickle, storages = archive_of(node, self._limits)
        return pickle, tuple(map(id, storages))

    def _tensor(self, rank: int | None, part: TensorRef) -> Item:
        """A new item for a chunk, in the file of a rank; of the one with the fewest bytes without one."""
        if rank is None:
            ranks = range(self._given.ranks or 1)
            rank = min(ranks, key=lambda each: self._new[each].size if each in self._new else 0)
        layout, _, _ = archive_of(_alone(part), self._limits)
        return self._file(rank).add(layout.size, layout.write)

    def _file(self, rank: int) -> NewFile:
        if rank not in self._new:
            self._new[rank] = NewFile(self._free(f"__{rank}_0{DATA}"))
        return self._new[rank]

    def _free(self, name: str) -> str:
        """The name, or one like it that no other file has."""
        if not re.fullmatch(r"__\d+_\d+\.distcp", name) or name in self._taken:
            own = (f"__{rank}_0{DATA}" for rank in count())
            name = next(each for each in own if each not in self._taken)
        self._taken.add(name)
        return name


def _cut(ref: TensorRef, ranks: int) -> list[tuple[int | None, tuple[int, ...], TensorRef]]:
    """(rank, first index, part) of the chunks of a tensor: rows as `torch.chunk` cuts them, for Shard(0).

    A tensor of fewer rows than ranks is one chunk, of any rank.
    """
    rows = ref.shape[0] if ref.shape else 0
    if ranks == 1 or rows < ranks or not ref.numel or ref.dtype.bits < 8:
        return [(None, (0,) * len(ref.shape), ref)]
    step = -(-rows // ranks)
    rest = (0,) * (len(ref.shape) - 1)
    return [
        (rank, (first, *rest), _rows(ref, first, min(rows, first + step)))
        for rank, first in enumerate(range(0, rows, step))
    ]


def _rows(ref: TensorRef, first: int, last: int) -> TensorRef:
    """Rows `first` to `last` of a tensor."""
    begin = ref.offset + first * ref.stride[0]
    made = tensor_ref(ref.storage, ref.dtype, (last - first, *ref.shape[1:]), ref.stride, begin)
    return made._replace(conj=ref.conj, neg=ref.neg)


def _alone(ref: TensorRef) -> TensorRef:
    """A contiguous tensor with the same elements, over a storage of its own. They are read when they are written."""
    made = Storage("0", None, ref.dtype, ref.nbytes, place_of(ref))
    return tensor_ref(made, ref.dtype, ref.shape, contiguous(ref.shape), 0)
