"""Writing a distributed checkpoint: the plan of its items, their files, and
`.metadata`, which comes last.

Items of a checkpoint that is read are taken as they are, in files that stay whole (a
rename) or one by one (a selection); all other tensors are cut into rows, one chunk for
each rank, and written anew.

`.metadata` holds only the classes that torch.distributed.checkpoint reads, from torch
2.1 to 2.13, with the opcodes that torch writes, so that a large one is read in columns.
`TensorProperties` is written as a call with its fields: its state names an enum, whose
class torch 2.4 moved, while the class itself has been in this module all along.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

from ckpt.bytes.far import iterate_ahead
from ckpt.bytes.source import Source
from ckpt.bytes.target import FolderSink, Sink
from ckpt.elements.blocks import elements, same_bytes
from ckpt.elements.boxes import boxes_shown
from ckpt.elements.computed import place_of
from ckpt.ext.dcp.file_names import DATA, METADATA
from ckpt.ext.dcp.items import Bytes, Placement, TensorItem
from ckpt.ext.dcp.metadata import Item
from ckpt.formats.common.layout import Layout, archive_of
from ckpt.formats.common.writing import Draft, Relisting, difference_error, same_value
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import LimitError, UnsupportedError
from ckpt.model.findings import LOST
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    Composite,
    Storage,
    Tensor,
    TensorRef,
    parts_of,
    tensor_ref,
)
from ckpt.model.text import show, show_name
from ckpt.pickle.emit import StorageId, emit_pickle
from ckpt.tree.view import look
from ckpt.tree.walk import Flat, Leaf, Parts, flatten_tree
from ckpt.tree.walk import parts_of as leaves_of

_METADATA = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class Chunk(NamedTuple):
    """A box of a tensor, and the item that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item: Item


class Row(NamedTuple):
    """A tensor in chunks, or an object in one item; an object has no dtype. `path` is
    its place in the state dict.
    """

    name: str
    path: tuple[str | int, ...]
    chunks: Sequence[Chunk] = ()
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    item: Item | None = None


def record(rows: Iterable[Row], limits: Limits, *, is_flattened: bool) -> bytes:
    """The bytes of `.metadata`. Raises LimitError where it would be longer than ckpt
    reads.
    """
    # The order of fields and opcodes is torch's, so that `skim` reads the result in
    # columns.
    state, planner, storage = Dict(), Dict(), Dict()
    # One object, as in torch.
    layout = _call_node("torch.serialization", "_get_layout", "torch.strided")
    for row in rows:
        planner.set([row.name], [row.path])
        if row.item is not None:
            state.set([row.name], [_object_node(_METADATA, "BytesStorageMetadata", {})])
            storage.set([_index_node(row.name, None, None)], [_info_node(row.item)])
            continue
        assert row.dtype is not None
        chunks: list[Node] = []
        for number, chunk in enumerate(row.chunks):
            fields = {
                "offsets": _size_node(chunk.offsets),
                "sizes": _size_node(chunk.sizes),
            }
            chunks.append(_object_node(_METADATA, "ChunkStorageMetadata", fields))
            storage.set(
                [_index_node(row.name, _size_node(chunk.offsets), number)],
                [_info_node(chunk.item)],
            )
        tensor_fields: dict[str, Node] = {
            "properties": _call_node(
                _METADATA,
                "TensorProperties",
                Global("torch", row.dtype.name),
                layout,
                row.requires_grad,
            ),
            "size": _size_node(row.shape),
            "chunks": chunks,
        }
        state.set(
            [row.name],
            [_object_node(_METADATA, "TensorStorageMetadata", tensor_fields)],
        )
    whole = {
        "state_dict_metadata": state,
        "planner_data": planner if is_flattened else None,
        "storage_data": storage,
    }
    pickle = emit_pickle(
        _object_node(_METADATA, "Metadata", whole),
        _no_storage,
        _no_nested,
        limits,
        # Python's default up to 3.13, with which torch writes it.
        protocol=4,
    )
    # Whatever ckpt writes, it must be able to read.
    if len(pickle) > limits.metadata_bytes:
        raise LimitError(
            ".metadata would be too long", "metadata-bytes", limits.metadata_bytes
        )
    return pickle


def _object_node(module: str, name: str, fields: Mapping[str, Node]) -> Opaque:
    call = Opaque("newobj", Global(module, name), (), None, 0)
    state = Dict()
    state.set(list(fields), list(fields.values()))
    call.build(state)
    return call


def _call_node(module: str, name: str, *args: Node) -> Opaque:
    return Opaque("reduce", Global(module, name), args, None, 0)


def _size_node(numbers: tuple[int, ...]) -> Opaque:
    own = (*numbers,)  # of its own: no size is written as the same tuple again
    return _call_node("torch", "Size", own)


def _index_node(name: str, offsets: Node, number: int | None) -> Opaque:
    return _object_node(
        _METADATA, "MetadataIndex", {"fqn": name, "index": number, "offset": offsets}
    )


def _info_node(item: Item) -> Opaque:
    fields: dict[str, Node] = {
        "relative_path": item.file,
        "offset": item.offset,
        "length": item.length,
    }
    if item.codecs:  # torch before 2.7 neither writes nor reads them
        fields["transform_descriptors"] = list(item.codecs)
    return _object_node(_FILESYSTEM, "_StorageInfo", fields)


def _no_storage(storage: Storage, persistent: PersistentId | None) -> StorageId:
    raise AssertionError("a storage in .metadata")


def _no_nested(node: Node) -> bytes:
    raise AssertionError("a checkpoint in .metadata")


class NewFile:
    """A file of items, written one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self._pieces: list[tuple[Callable[[Sink], None], Layout | Bytes]] = []

    def add(self, size: int, pour: Callable[[Sink], None], of: Layout | Bytes) -> Item:
        """Add an item of `size` bytes, which `pour` writes from what it is read `of`.
        Return its place.
        """
        item = Item(self.name, self.size, size)
        self.size += size
        self._pieces.append((pour, of))
        return item

    def write(self, sink: Sink) -> None:
        """Write the items."""
        # The bytes of the items are asked for ahead.
        for pour, _ in iterate_ahead(self._pieces):
            pour(sink)


class Plan(NamedTuple):
    """The content of a folder: what `.metadata` lists, new files, and files that stay
    as they are.
    """

    rows: list[Row]
    files: list[NewFile]
    whole: list[tuple[str, Source]]
    link: bool
    is_flattened: bool

    @property
    def data_bytes(self) -> int:
        return sum(file.size for file in self.files) + sum(
            source.size for _, source in self.whole
        )


def placement_of(checkpoint: Checkpoint) -> Placement:
    """Return the placement that the data of a checkpoint is to have."""
    if isinstance(checkpoint.origin, Placement):
        return checkpoint.origin
    return Placement()


def flatten_checkpoint(checkpoint: Checkpoint, limits: Limits) -> Parts:
    """The tensors and objects of a checkpoint as `.metadata` lists them."""
    return leaves_of(
        checkpoint.root, limits, whole=not placement_of(checkpoint).is_flattened
    )


def listing(checkpoint: Checkpoint) -> Source | None:
    """Return `.metadata`, or None where each rank has one of its own."""
    for source in checkpoint.sources:
        if os.path.basename(source.name) == METADATA:
            return source
    return None


def relisting(
    checkpoint: Checkpoint, names: Sequence[str], limits: Limits
) -> Relisting:
    """`.metadata` with the names of the checkpoint. Items that change go to a new file,
    and all others stay.

    Raises UnsupportedError where an item that stays lies in a file that a new
    `.metadata` cannot name.
    """
    placement = placement_of(checkpoint)
    planner = _Planner(placement, limits, in_place=names)
    layout = planner.run(flatten_checkpoint(checkpoint, limits).leaves)
    # In place no item may move: a copy would need a file that is not there.
    if planner.is_copying:
        raise UnsupportedError(
            f"its items lie in files that are not *{DATA}",
            path=checkpoint.path,
            hint="-o OUT",
        )
    content = record(layout.rows, limits, is_flattened=layout.is_flattened)
    kept = {name for name, _ in layout.whole}
    unused = [name for _, name in placement.names if name not in kept]
    return Relisting(
        METADATA,
        content,
        [(file.name, Draft(file.size, file.write)) for file in layout.files],
        unused,
    )


def plan_files(checkpoint: Checkpoint, limits: Limits) -> Plan:
    """The files of a checkpoint that has no losses. Raises CkptError where a part of
    its source is missing.
    """
    return _Planner(placement_of(checkpoint), limits).run(
        flatten_checkpoint(checkpoint, limits).leaves
    )


_Found = tuple[tuple[int, ...], tuple[int, ...], Bytes]
"""The first index and the size of a chunk, and where its item lies."""


class _Planner:
    def __init__(
        self, files: Placement, limits: Limits, in_place: Sequence[str] | None = None
    ) -> None:
        """`in_place` are the names that the folder has, where its files stay as they
        are.
        """
        self._in_place = in_place
        self._given = files
        self._limits = limits
        self._stays: dict[int, str] = {}
        self._kept: dict[int, tuple[str, Source]] = {}
        self._copied: dict[int, NewFile] = {}
        self._new: dict[int, NewFile] = {}
        # No new file may have the name of one that stays.
        self._taken = {name for _, name in files.names} | set(in_place or ())
        self._objects: dict[tuple[bytes, tuple[int, ...]], deque[Bytes]] = {}
        """The items of each object, in their order: two equal ones have an item each,
        for items share no bytes.
        """
        for node, item in files.objects:
            self._objects.setdefault(self._pickle_key(node), deque()).append(item)

    def run(self, leaves: list[Leaf]) -> Plan:
        again = [self._find_items(leaf.node) for leaf in leaves]
        # Source -> bytes of its items that are used again.
        used: dict[int, int] = {}
        for parts in again:
            for _, _, part in parts or ():
                key = id(part.source)
                used[key] = used.get(key, 0) + part.length
        # A file that is mostly dead bytes by now is not worth keeping.
        self._stays = {
            id(source): name
            for source, name in self._given.names
            if self._in_place is not None or used.get(id(source), 0) * 2 >= source.size
        }
        rows = [
            self._plan_row(leaf, parts)
            for leaf, parts in zip(leaves, again, strict=True)
        ]
        files = [
            *self._copied.values(),
            *(self._new[rank] for rank in sorted(self._new)),
        ]
        whole = list(self._kept.values())
        return Plan(rows, files, whole, self._given.link, self._given.is_flattened)

    @property
    def is_copying(self) -> bool:
        """Tell whether items were taken into new files as they are."""
        return bool(self._copied)

    def _plan_row(self, leaf: Leaf, parts: list[_Found] | None) -> Row:
        name, path, node = leaf
        tensor = tensor_of(node)
        items = None
        if parts is not None:
            items = [
                (offsets, sizes, self._reuse_item(piece))
                for offsets, sizes, piece in parts
            ]
        if tensor is None:
            if items is not None:
                return Row(name, path, item=items[0][2])
            # An object is an archive of torch.save, written by rank 0.
            layout, _, _ = archive_of(node, self._limits)
            item = self._rank_file(0).add(layout.size, layout.write, layout)
            return Row(name, path, item=item)
        assert isinstance(tensor, TensorRef)
        if items is not None:
            chunks = [Chunk(*item) for item in items]
        else:
            chunks = [
                Chunk(offsets, part.shape, self._tensor(rank, part))
                for rank, offsets, part in _cut_chunks(tensor, self._given.ranks or 1)
            ]
        requires_grad = bool(tensor.requires_grad)
        return Row(name, path, chunks, tensor.dtype, tensor.shape, requires_grad)

    def _find_items(self, node: Node) -> list[_Found] | None:
        """The items of a distributed checkpoint that hold a tensor or an object as it
        is; None without them.
        """
        # New files were asked for: nothing is taken as it is.
        if self._given.ranks is not None:
            return None
        tensor = tensor_of(node)
        if tensor is None:
            if not self._objects:
                return None
            # Of equal objects each takes the next item.
            items_of_object = self._objects.get(self._pickle_key(node))
            if not items_of_object:
                return None
            return [((), (), items_of_object.popleft())]
        # The items hold the values without the view.
        if not isinstance(tensor, TensorRef) or tensor.conj or tensor.neg:
            return None
        # None where the tensor is not made of whole boxes: a part of one needs a new
        # item.
        shown = boxes_shown(tensor)
        if shown is None or shown.dtype != tensor.dtype:
            return None
        items: list[_Found] = []
        for box in shown.boxes:
            if not isinstance(box.part, TensorItem):
                return None
            items.append((box.offsets, box.sizes, box.part.find()))
        return items

    def _reuse_item(self, part: Bytes) -> Item:
        """Take an item as it is, in its own file, which stays whole, or as a copy.
        Return its place.
        """
        source = part.source
        stays = self._stays.get(id(source))
        if stays is not None:
            self._kept[id(source)] = (stays, source)
            return Item(stays, part.offset, part.length, part.codecs)
        file = self._copied.get(id(source))
        if file is None:
            own = self._free_name(source.name.rpartition("/")[2])
            file = self._copied[id(source)] = NewFile(own)
        offset, length = part.offset, part.length
        item = file.add(length, lambda sink: sink.copy(source, offset, length), part)
        return item._replace(codecs=part.codecs)

    def _pickle_key(self, node: Node) -> tuple[bytes, tuple[int, ...]]:
        """Return the pickle of an object and the ids of its storages. Equal objects
        have the same ones.
        """
        _, pickle, storages = archive_of(node, self._limits)
        return pickle, tuple(map(id, storages))

    def _tensor(self, rank: int | None, part: TensorRef) -> Item:
        """A new item for a chunk, in the file of a rank; of the one with the fewest
        bytes without one.
        """
        if rank is None:
            ranks = range(self._given.ranks or 1)
            sizes = {rank: file.size for rank, file in self._new.items()}
            rank = min(ranks, key=lambda number: sizes.get(number, 0))
        layout, _, _ = archive_of(_with_own_storage(part), self._limits)
        return self._rank_file(rank).add(layout.size, layout.write, layout)

    def _rank_file(self, rank: int) -> NewFile:
        if rank not in self._new:
            self._new[rank] = NewFile(self._free_name(f"__{rank}_0{DATA}"))
        return self._new[rank]

    def _free_name(self, name: str) -> str:
        """The name, or one like it that no other file has."""
        # torch writes `__RANK_NUMBER.distcp`; ckpt tells ranks by it.
        if not re.fullmatch(r"__\d+_\d+\.distcp", name) or name in self._taken:
            own = (f"__{rank}_0{DATA}" for rank in count())
            name = next(candidate for candidate in own if candidate not in self._taken)
        self._taken.add(name)
        return name


def _cut_chunks(
    ref: TensorRef, ranks: int
) -> list[tuple[int | None, tuple[int, ...], TensorRef]]:
    """Cut a tensor into chunks (rank, first index, part): rows as `torch.chunk` cuts
    them, for Shard(0).

    A tensor of fewer rows than ranks is one chunk, of any rank.
    """
    rows = ref.shape[0] if ref.shape else 0
    # A packed type has no rows of whole bytes.
    if ranks == 1 or rows < ranks or not ref.numel or ref.dtype.bits < 8:
        return [(None, (0,) * len(ref.shape), ref)]
    step = -(-rows // ranks)
    rest = (0,) * (len(ref.shape) - 1)
    return [
        (rank, (first, *rest), _slice_rows(ref, first, min(rows, first + step)))
        for rank, first in enumerate(range(0, rows, step))
    ]


def _slice_rows(ref: TensorRef, first: int, last: int) -> TensorRef:
    """Return rows `first` to `last` of a tensor."""
    begin = ref.offset + first * ref.stride[0]
    rows = tensor_ref(
        ref.storage, ref.dtype, (last - first, *ref.shape[1:]), ref.stride, begin
    )
    return rows._replace(conj=ref.conj, neg=ref.neg)


def _with_own_storage(ref: TensorRef) -> TensorRef:
    """A contiguous tensor with the same elements, over a storage of its own. They are
    read when they are written.
    """
    # Each chunk is a storage of its own, as torch saves them.
    storage = Storage("0", None, ref.dtype, ref.nbytes, place_of(ref))
    return tensor_ref(storage, ref.dtype, ref.shape, contiguous(ref.shape), 0)


_TWICE = "two values of one name"


def losses(checkpoint: Checkpoint) -> list[str]:
    """Return the parts that the format cannot hold, one line each.

    They are a root that is no dict, names that occur twice, sparse tensors.
    """
    if look(checkpoint.root).kind != "mapping":
        return ["a root that is not a dict"]
    parts = flatten_checkpoint(checkpoint, Limits())
    lost = [f"{show_name(name)} (a key that is no text)" for name in parts.odd]
    seen: set[str] = set()
    for name, _, node in parts.leaves:
        tensor = tensor_of(node)
        why = None
        if name in seen:
            why = _TWICE
        elif tensor is not None:
            why = _unfit_reason(tensor)
        if why:
            lost.append(f"{show_name(name)} ({why})")
        seen.add(name)
    return lost


def unfit(entry: Entry) -> str | None:
    """Return the reason why the format cannot hold a tensor, or None."""
    return _unfit_reason(entry.tensor)


def _unfit_reason(tensor: Tensor) -> str | None:
    if isinstance(tensor, Composite):
        return tensor.layout
    return "on meta, without data" if tensor.storage.place is None else None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The folder of a checkpoint that has no losses, for a `FolderSink`. Raises
    CkptError.
    """
    layout = plan_files(checkpoint, limits)
    metadata = record(layout.rows, limits, is_flattened=layout.is_flattened)

    def write(sink: Sink) -> None:
        assert isinstance(sink, FolderSink)
        for name, source in layout.whole:
            if layout.link:
                sink.link(name, source)
            else:
                sink.clone(name, source)
        for file in layout.files:
            with sink.file(file.name, file.size) as inner:
                file.write(inner)
        # Last: a folder without `.metadata` is no checkpoint.
        with sink.file(METADATA, len(metadata)) as inner:
            inner.write(metadata)

    return Draft(layout.data_bytes + len(metadata), write)


def compare(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless a written folder has the tensors and the values of the
    plan, and nothing is missing.
    """
    for message in written.account.messages(LOST):
        raise difference_error(message)
    for leaf, copy in _pair_leaves(planned, written):
        tensor, other = tensor_of(leaf.node), tensor_of(copy.node)
        if tensor is not None or other is not None:
            if (
                tensor is None
                or other is None
                or (tensor.dtype, tensor.shape) != (other.dtype, other.shape)
            ):
                raise difference_error(f"tensor {show(leaf.name, 80)} differs")
            continue
        # Objects are compared by what is inside of them: values, and tensors by their
        # kind.
        mine, theirs = _flatten_object(leaf), _flatten_object(copy)
        same = len(mine.values) == len(theirs.values) and all(
            map(same_value, mine.values, theirs.values)
        )
        shapes = [
            [
                (entry.path, entry.tensor.dtype, entry.tensor.shape)
                for entry in flat.tensors
            ]
            for flat in (mine, theirs)
        ]
        if not same or shapes[0] != shapes[1]:
            raise difference_error(f"value {show(leaf.name, 80)} differs")


def compare_bytes(planned: Checkpoint, written: Checkpoint) -> None:
    """Raise WriteError unless every element in a written folder equals its source."""
    for leaf, copy in _pair_leaves(planned, written):
        if not same_bytes(_leaf_bytes(leaf), _leaf_bytes(copy)):
            raise difference_error(
                f"the bytes of {show(leaf.name, 80)} differ from the source"
            )


def _pair_leaves(
    planned: Checkpoint, written: Checkpoint
) -> Iterator[tuple[Leaf, Leaf]]:
    """Each leaf of the plan with the written one. Raises WriteError where their names
    differ.
    """
    limits = Limits()
    ours: Parts = flatten_checkpoint(planned, limits)
    theirs: Parts = flatten_checkpoint(written, limits)
    if len(ours.leaves) != len(theirs.leaves):
        raise difference_error(
            f"{len(theirs.leaves):,} items instead of {len(ours.leaves):,}"
        )
    for leaf, copy in zip(ours.leaves, theirs.leaves, strict=True):
        if leaf[:2] != copy[:2]:
            raise difference_error(
                f"{show(copy.name, 80)} instead of {show(leaf.name, 80)}"
            )
        yield leaf, copy


def _flatten_object(leaf: Leaf) -> Flat:
    """The tensors and values inside of an object."""
    root = Dict()
    root.set([leaf.name], [leaf.node])
    return flatten_tree(root, Limits())


def _leaf_bytes(leaf: Leaf) -> Iterator[bytes]:
    """The elements of a tensor, or of all tensors in an object."""
    tensor = tensor_of(leaf.node)
    tensors: list[Tensor] = []
    if tensor is not None:
        tensors.append(tensor)
    else:
        tensors += [entry.tensor for entry in _flatten_object(leaf).tensors]
    parts: list[TensorRef] = []
    for member in tensors:
        parts += parts_of(member)
    return chain.from_iterable(elements(part) for part in parts)
