"""What `.metadata` says: the tensors, their chunks, and where the bytes of each chunk are.

The pickle is read without being run, and only these names may occur in it: the classes of
torch/distributed/checkpoint/metadata.py and `_StorageInfo` of filesystem.py, in their forms from torch 2.1 to 2.13.
Every number in it is checked here, since torch checks none on load.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from ckpt.dtypes import BY_NAME, DType
from ckpt.errors import UnreadableError
from ckpt.names import Path
from ckpt.nodes import Dict, Global, Node, Opaque, is_tuple
from ckpt.pickles.machine import Pickle
from ckpt.text import show

_DIMENSIONS = 64
"""The most dimensions of a tensor in torch."""
_MOST = 2**63


class Item(NamedTuple):
    """The bytes of one item: `length` bytes at `offset` of a file. `codecs` encode them, the last applied first."""

    file: str
    offset: int
    length: int
    codecs: tuple[str, ...] = ()


class Chunks:
    """The chunks of one tensor, as columns: their first index and their size in each dimension, and their items.

    `files` are indices of `Metadata.files`, -1 for a chunk whose item is not recorded.
    """

    __slots__ = ("begins", "codecs", "dims", "files", "lengths", "offsets", "sizes")

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.offsets = array("q")
        self.sizes = array("q")
        self.files = array("l")
        self.begins = array("q")
        self.lengths = array("q")
        self.codecs: dict[int, tuple[str, ...]] = {}
        """Of the chunks whose items are encoded."""

    def __len__(self) -> int:
        return len(self.files)

    def add(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Add a chunk without an item."""
        self.offsets.extend(offsets)
        self.sizes.extend(sizes)
        self.files.append(-1)
        self.begins.append(0)
        self.lengths.append(0)

    def place(self, index: int, file: int, item: Item) -> None:
        """Say where the item of a chunk lies; `file` is the index of its file."""
        self.files[index], self.begins[index], self.lengths[index] = file, item.offset, item.length
        if item.codecs:
            self.codecs[index] = item.codecs

    def box(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(first index in each dimension, size in each dimension) of a chunk."""
        at = index * self.dims
        return tuple(self.offsets[at : at + self.dims]), tuple(self.sizes[at : at + self.dims])

    def boxes(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """`box` of each chunk."""
        return map(self.box, range(len(self)))


class TensorRow(NamedTuple):
    """A tensor of the checkpoint. `requires_grad` is True only where a Parameter was saved as it is."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    requires_grad: bool
    chunks: Chunks


class Copy(NamedTuple):
    """A further item of the chunk with number `chunk`, or of an object, which has no chunks."""

    name: str
    chunk: int | None
    item: Item


class Metadata(NamedTuple):
    """The tensors and objects of a checkpoint by their names, in the order of the file."""

    tensors: dict[str, TensorRow]
    objects: dict[str, Item | None]
    paths: dict[str, Path]
    """The path of each name in the state dict that was saved. Names without one were not taken apart."""
    files: tuple[str, ...]
    unused: int
    """Items that no tensor and no object names."""
    version: str | None
    pickles: tuple[Pickle, ...]
    copies: tuple[Copy, ...] = ()
    """What a further rank wrote of a chunk or of an object that is there already."""

    def item(self, row: TensorRow, index: int) -> Item:
        """The item of a chunk that has one."""
        chunks = row.chunks
        return Item(
            self.files[chunks.files[index]],
            chunks.begins[index],
            chunks.lengths[index],
            chunks.codecs.get(index, ()),
        )


def metadata_of(pickle: Pickle) -> Metadata:
    """The content of a `.metadata` file. Raises UnreadableError where it contradicts itself."""
    fields = _fields(pickle.root, "Metadata", "the pickle")
    tensors: dict[str, TensorRow] = {}
    objects: dict[str, Item | None] = {}
    for key, row in _pairs(fields.get("state_dict_metadata"), "state_dict_metadata"):
        name = _text(key, "a name")
        if name in tensors or name in objects:
            raise UnreadableError(f".metadata: {show(name, 80)} is listed twice")
        if _class(row) == "BytesStorageMetadata":
            objects[name] = None
        else:
            tensors[name] = _tensor(name, row)
    files, unused = _items(fields.get("storage_data"), tensors, objects)
    version = fields.get("version")
    return Metadata(
        tensors,
        objects,
        _paths(fields.get("planner_data")),
        files,
        unused,
        version if type(version) is str else None,
        (pickle,),
    )


def _tensor(name: str, node: Node) -> TensorRow:
    what = f"tensor {show(name, 80)}"
    fields = _fields(node, "TensorStorageMetadata", what)
    shape = _size(fields.get("size"), what)
    dtype, requires_grad = _properties(fields.get("properties"), what)
    if dtype.nbytes(prod(shape)) >= _MOST:
        raise UnreadableError(f".metadata: {what} has an impossible size")
    chunks = Chunks(len(shape))
    listed = fields.get("chunks")
    if type(listed) is not list:
        raise UnreadableError(f".metadata: {what} has no list of chunks")
    for chunk in listed:
        parts = _fields(chunk, "ChunkStorageMetadata", what)
        offsets, sizes = _size(parts.get("offsets"), what), _size(parts.get("sizes"), what)
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise UnreadableError(f".metadata: a chunk of {what} has other dimensions than the tensor")
        for offset, size, whole in zip(offsets, sizes, shape, strict=True):
            if offset + size > whole:
                raise UnreadableError(
                    f".metadata: a chunk of {what} reaches index {offset + size:,} of a dimension of {whole:,}"
                )
        chunks.add(offsets, sizes)
    return TensorRow(name, dtype, shape, requires_grad, chunks)


def _properties(node: Node, what: str) -> tuple[DType, bool]:
    """(dtype, requires_grad) of a `TensorProperties`: from its state, a tuple, or from the arguments of a call."""
    state: Node = None
    if type(node) is Opaque and _class(node, node.how) == "TensorProperties":
        if node.how == "newobj" and len(node.states) == 1:
            state = node.states[0]
        elif node.how == "reduce" and node.args and not node.states and not node.kwargs:
            state = (*node.args, *(None, None, None)[len(node.args) :])  # as ckpt writes it
    if not is_tuple(state) or len(state) < 3:
        raise UnreadableError(f".metadata: {what} has no properties")
    dtype = state[0]
    found = BY_NAME.get(dtype.name) if type(dtype) is Global and dtype.module == "torch" else None
    if found is None:
        raise UnreadableError(f".metadata: {what} has an unknown dtype")
    return found, state[2] is True


def _items(
    node: Node, tensors: dict[str, TensorRow], objects: dict[str, Item | None]
) -> tuple[tuple[str, ...], int]:
    """Put the items into their chunks and objects; return the files, and the number of items that nothing names."""
    files: dict[str, int] = {}
    numbers: dict[str, dict[tuple[int, ...], int]] = {}
    unused = 0
    for key, value in _pairs(node, "storage_data"):
        index = _fields(key, "MetadataIndex", "storage_data")
        name = _text(index.get("fqn"), "a name")
        what = f"the item of {show(name, 80)}"
        item = _item(value, what)
        number = files.setdefault(item.file, len(files))
        row = tensors.get(name)
        if row is None:
            if name not in objects:
                unused += 1
            elif objects[name] is not None:
                raise UnreadableError(f".metadata: {what} is recorded twice")
            else:
                objects[name] = item
            continue
        chunks = row.chunks
        if name not in numbers:  # an empty chunk may begin where another one does
            boxes = sorted(enumerate(chunks.boxes()), key=lambda row: prod(row[1][1]) > 0)
            numbers[name] = {offsets: place for place, (offsets, _) in boxes}
        at = index.get("offset")
        offsets = _size(at, what) if at is not None else (0,) * chunks.dims
        place = numbers[name].get(offsets, -1)
        if place < 0:
            unused += 1
            continue
        if chunks.files[place] >= 0:
            raise UnreadableError(f".metadata: {what} is recorded twice")
        chunks.place(place, number, item)
    return tuple(files), unused


def _item(node: Node, what: str) -> Item:
    fields = _fields(node, "_StorageInfo", what)
    codecs = fields.get("transform_descriptors")
    if codecs is not None and (type(codecs) is not list or not all(type(each) is str for each in codecs)):
        raise UnreadableError(f".metadata: {what} has an invalid encoding")
    return Item(
        _text(fields.get("relative_path"), what),
        _count(fields.get("offset"), what),
        _count(fields.get("length"), what),
        tuple(map(str, codecs)) if type(codecs) is list else (),
    )


def _paths(node: Node) -> dict[str, Path]:
    """The paths that `planner_data` gives; none where the state dict was not taken apart."""
    paths: dict[str, Path] = {}
    if type(node) is not Dict:
        return paths
    for key, value in zip(node.keys, node.values, strict=True):
        name = _text(key, "a name")
        path: list[str | int] = []
        for step in value if is_tuple(value) else ():
            if type(step) is int and 0 <= step < _MOST:
                path.append(step)
            else:
                path.append(_text(step, f"the path of {show(name, 80)}"))
        if not path or name in paths:
            raise UnreadableError(f".metadata: {show(name, 80)} has no valid path")
        paths[name] = tuple(path)
    return paths


# --- nodes ------------------------------------------------------------------------------------------------------------

_MODULES = (
    "torch.distributed.checkpoint.metadata.",
    "torch.distributed.checkpoint.filesystem.",
    "torch.distributed._shard.sharded_tensor.metadata.",
)


def _class(node: Node, how: str = "newobj") -> str:
    """The name of the class of a node, where it is one of the classes of a `.metadata` file; else empty."""
    if type(node) is not Opaque or node.how not in ("newobj", "reduce") or node.how != how:
        return ""
    name = node.class_name
    return next((name.removeprefix(module) for module in _MODULES if name.startswith(module)), "")


def _fields(node: Node, name: str, what: str) -> dict[str, Node]:
    """The attributes of an object of a class. Raises UnreadableError for anything else."""
    if _class(node) != name or type(node) is not Opaque or len(node.states) > 1:
        raise UnreadableError(f".metadata: {what} is not a {name} of torch.distributed.checkpoint")
    (state,) = node.states or (None,)
    return {str(key): value for key, value in _pairs(state, what)} if node.states else {}


def _pairs(node: Node, what: str) -> Iterator[tuple[Node, Node]]:
    if type(node) is not Dict:
        raise UnreadableError(f".metadata: {what} is not a dict")
    return zip(node.keys, node.values, strict=True)


def _size(node: Node, what: str) -> tuple[int, ...]:
    """The numbers of a `torch.Size`, none of them negative."""
    numbers: Node = node
    if type(node) is Opaque and node.class_name == "torch.Size" and len(node.args) == 1:
        numbers = node.args[0]
    if not is_tuple(numbers) or len(numbers) > _DIMENSIONS:
        raise UnreadableError(f".metadata: {what} has an invalid size")
    return tuple(_count(number, what) for number in numbers)


def _count(node: Node, what: str) -> int:
    if type(node) is not int or not 0 <= node < _MOST:
        raise UnreadableError(f".metadata: {what} has an invalid number")
    return node


def _text(node: Node, what: str) -> str:
    if type(node) is not str:
        raise UnreadableError(f".metadata: {what} is not a text")
    return node
