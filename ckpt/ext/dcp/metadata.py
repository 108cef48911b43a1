"""The content of `.metadata`: the tensors, their chunks, and the place of the bytes of
each chunk.

The pickle is read without being run, and only these names may occur in it: the classes
of torch/distributed/checkpoint/metadata.py and `_StorageInfo` of filesystem.py, in
their forms from torch 2.1 to 2.13. Every number in it is checked here, since torch
checks none on load.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from ckpt.formats.common.pickled import unknown_names
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.errors import UnreadableError
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Dict, Global, Node, Opaque, is_tuple
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS
from ckpt.model.text import show
from ckpt.pickle.machine import Pickle

_MOST = 2**63


class Item(NamedTuple):
    """The bytes of one item: `length` bytes at `offset` of a file. `codecs` encode
    them, the last applied first.
    """

    file: str
    offset: int
    length: int
    codecs: tuple[str, ...] = ()


class Chunks:
    """The chunks of one tensor, as columns: their first index and their size in each
    dimension, and their items.

    `files` are indices of `Metadata.files`, -1 for a chunk whose item is not recorded.
    """

    __slots__ = ("begins", "codecs", "dims", "files", "lengths", "offsets", "sizes")

    def __init__(self, dims: int) -> None:
        # Columns, not objects: a run of a thousand ranks has millions of chunks.
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

    def fill(self, offsets: Sequence[int], sizes: Sequence[int], count: int) -> None:
        """Add `count` chunks without items at once; their indices and sizes follow each
        other.
        """
        self.offsets.extend(offsets)
        self.sizes.extend(sizes)
        self.files.extend([-1] * count)
        self.begins.extend([0] * count)
        self.lengths.extend([0] * count)

    def add(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Add a chunk without an item."""
        self.fill(offsets, sizes, 1)

    def place(self, index: int, file: int, item: Item) -> None:
        """Say where the item of a chunk lies; `file` is the index of its file."""
        self.files[index] = file
        self.begins[index] = item.offset
        self.lengths[index] = item.length
        if item.codecs:
            self.codecs[index] = item.codecs

    def box(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (first index in each dimension, size in each dimension) of a chunk."""
        begin = index * self.dims
        end = begin + self.dims
        return tuple(self.offsets[begin:end]), tuple(self.sizes[begin:end])

    def line(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """`grid`, where parts with elements lie in a line along one dimension and cover
        the shape; None elsewhere.

        It makes no box: a large run has a million such chunks.
        """
        count, grid = len(self), [1] * self.dims
        cut = -1
        if not count:
            return None
        for dim, whole in enumerate(shape):
            # Column of this dimension: [first index of each chunk], [size of each].
            offsets = self.offsets[dim :: self.dims]
            sizes = self.sizes[dim :: self.dims]
            # No chunk is cut along this dimension.
            if whole and sizes.count(whole) == count == offsets.count(0):
                continue
            # Cut along a second dimension, or a chunk without elements.
            if cut >= 0 or 0 in sizes:
                return None
            cut, position = dim, 0
            for offset, size in sorted(zip(offsets, sizes, strict=True)):
                if offset != position:
                    return None
                position += size
            if position != whole:
                return None
            grid[dim] = count
        # Several chunks that are not cut at all are the same box twice.
        return tuple(grid) if count == 1 or cut >= 0 else None

    def grid(self) -> tuple[int, ...]:
        """Count the beginnings of parts with elements along each dimension."""
        if len(self) == 1:
            return (1,) * self.dims
        full = [offsets for offsets, sizes in self.boxes() if 0 not in sizes]
        return tuple(
            len({offsets[dim] for offsets in full}) for dim in range(self.dims)
        )

    def boxes(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the `box` of each chunk."""
        return map(self.box, range(len(self)))


class TensorRow(NamedTuple):
    """A tensor of the checkpoint. `requires_grad` is True only where a Parameter was
    saved as it is.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    requires_grad: bool
    chunks: Chunks


class Copy(NamedTuple):
    """A further item of the chunk with number `chunk`, or of an object, which has no
    chunks.
    """

    name: str
    chunk: int | None
    item: Item


class Metadata(NamedTuple):
    """The tensors and objects of a checkpoint by their names, in the order of
    the file.
    """

    tensors: dict[str, TensorRow]
    objects: dict[str, Item | None]
    paths: dict[str, Path]
    """The path of each name in the state dict that was saved. Names without one were
    not taken apart.
    """
    files: tuple[str, ...]
    unused: int
    """Items that no tensor and no object names."""
    version: str | None
    pickles: tuple[Pickle, ...]
    copies: tuple[Copy, ...] = ()
    """The items that a further rank wrote of a chunk or of an object that is there
    already.
    """

    def item(self, row: TensorRow, index: int) -> Item:
        """The item of a chunk that has one."""
        chunks = row.chunks
        return Item(
            self.files[chunks.files[index]],
            chunks.begins[index],
            chunks.lengths[index],
            chunks.codecs.get(index, ()),
        )


class FoundItem(NamedTuple):
    """An entry of `storage_data`: the name, the index of a chunk (None for an object),
    and where the item lies.
    """

    name: str
    offsets: tuple[int, ...] | None
    file: str
    begin: int
    length: int
    codecs: tuple[str, ...] = ()

    @property
    def item(self) -> Item:
        return Item(self.file, self.begin, self.length, self.codecs)


def metadata_of(pickle: Pickle) -> Metadata:
    """The content of a `.metadata` file, of which `skim` may have read parts. Raises
    UnreadableError where it contradicts itself.
    """
    # The root says what the file is: any other class leaves nothing to read.
    try:
        fields = _object_fields(pickle.root, "Metadata", "the pickle")
    except UnreadableError as error:
        error.hint = unknown_names(pickle.globals.values())
        raise
    tensors: dict[str, TensorRow] = {}
    objects: dict[str, Item | None] = {}
    for key, row in _dict_pairs(
        fields.get("state_dict_metadata"), "state_dict_metadata"
    ):
        name = _parse_text(key, "a name")
        if name in tensors or name in objects:
            raise UnreadableError(f".metadata: {show(name, 80)} is listed twice")
        # An object has one item, which `storage_data` names.
        if class_of(row) == "BytesStorageMetadata":
            objects[name] = None
        elif isinstance(row, TensorRow):  # skimmed
            tensors[name] = check_row(row)
        else:
            tensors[name] = _parse_tensor(name, row)
    files, unused = _place_items(
        _found_items(fields.get("storage_data")), tensors, objects
    )
    version = fields.get("version")
    return Metadata(
        tensors,
        objects,
        _parse_paths(fields.get("planner_data")),
        files,
        unused,
        version if type(version) is str else None,
        (pickle,),
    )


def _parse_tensor(name: str, node: Node) -> TensorRow:
    what = f"tensor {show(name, 80)}"
    fields = _object_fields(node, "TensorStorageMetadata", what)
    shape = _parse_size(fields.get("size"), what)
    dtype, requires_grad = _parse_properties(fields.get("properties"), what)
    chunks = Chunks(len(shape))
    listed = fields.get("chunks")
    if type(listed) is not list:
        raise UnreadableError(f".metadata: {what} has no list of chunks")
    for chunk in listed:
        parts = _object_fields(chunk, "ChunkStorageMetadata", what)
        offsets = _parse_size(parts.get("offsets"), what)
        sizes = _parse_size(parts.get("sizes"), what)
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise UnreadableError(
                f".metadata: a chunk of {what} has other dimensions than the tensor"
            )
        chunks.add(offsets, sizes)
    return check_row(TensorRow(name, dtype, shape, requires_grad, chunks))


def check_row(row: TensorRow) -> TensorRow:
    """The row. Raises UnreadableError where it is larger than memory can be, or a chunk
    leaves the tensor.
    """
    what = f"tensor {show(row.name, 80)}"
    if len(row.shape) > DIMENSIONS or row.dtype.nbytes(prod(row.shape)) >= _MOST:
        raise UnreadableError(f".metadata: {what} has an impossible size")
    chunks, dims = row.chunks, len(row.shape)
    # By columns, which are much faster than boxes.
    for dim, whole in enumerate(row.shape):
        for offset, size in zip(
            chunks.offsets[dim::dims], chunks.sizes[dim::dims], strict=True
        ):
            if offset + size > whole:
                raise UnreadableError(
                    f".metadata: a chunk of {what} reaches index {offset + size:,} of "
                    f"a dimension of {whole:,}"
                )
    return row


def _parse_properties(node: Node, what: str) -> tuple[DType, bool]:
    """Return (dtype, requires_grad) of a `TensorProperties`.

    They are in its state, a tuple, or in the arguments of a call.
    """
    state: Node = None
    if type(node) is Opaque and class_of(node, node.how) == "TensorProperties":
        if node.how == "newobj" and len(node.states) == 1:
            state = node.states[0]
        elif node.how == "reduce" and node.args and not node.states and not node.kwargs:
            # As ckpt writes it.
            # The fields after requires_grad are a memory format and a flag.
            state = (*node.args, *(None, None, None)[len(node.args) :])
    if not is_tuple(state) or len(state) < 3:
        raise UnreadableError(f".metadata: {what} has no properties")
    dtype = state[0]
    known_dtype = None
    if type(dtype) is Global and dtype.module == "torch":
        known_dtype = BY_NAME.get(dtype.name)
    if known_dtype is None:
        raise UnreadableError(f".metadata: {what} has an unknown dtype")
    return known_dtype, state[2] is True


def _found_items(node: Node) -> Iterator[FoundItem]:
    for key, value in _dict_pairs(node, "storage_data"):
        if isinstance(value, FoundItem):  # skimmed
            yield value
            continue
        # `index` in it is a hint for torch's loader, and is not used here.
        index = _object_fields(key, "MetadataIndex", "storage_data")
        name = _parse_text(index.get("fqn"), "a name")
        what = f"the item of {show(name, 80)}"
        offset = index.get("offset")
        yield FoundItem(
            name,
            None if offset is None else _parse_size(offset, what),
            *_parse_item(value, what),
        )


def _place_items(
    items: Iterable[FoundItem],
    tensors: dict[str, TensorRow],
    objects: dict[str, Item | None],
) -> tuple[tuple[str, ...], int]:
    """Put the items into their chunks and objects; return the files, and the number of
    items that nothing names.
    """
    files: dict[str, int] = {}
    numbers: dict[str, dict[tuple[int, ...], int]] = {}
    unused = 0
    for entry in items:
        # Unpacked at once: this loop runs for each of up to millions of items.
        name, offsets, file, begin, length, codecs = entry
        number = files.get(file)
        if number is None:
            number = files[file] = len(files)
        row = tensors.get(name)
        if row is None:
            if name not in objects:
                unused += 1
            elif objects[name] is not None:
                raise UnreadableError(
                    f".metadata: the item of {show(name, 80)} is recorded twice"
                )
            else:
                objects[name] = entry.item
            continue
        chunks = row.chunks
        by_offsets = numbers.get(name)
        if by_offsets is None:
            by_offsets = numbers[name] = _by_offsets(chunks)
        # An item without an offset is the one of a whole tensor.
        place = by_offsets.get((0,) * chunks.dims if offsets is None else offsets)
        if place is None:
            unused += 1
            continue
        if chunks.files[place] >= 0:
            raise UnreadableError(
                f".metadata: the item of {show(name, 80)} is recorded twice"
            )
        chunks.files[place] = number
        chunks.begins[place] = begin
        chunks.lengths[place] = length
        if codecs:
            chunks.codecs[place] = codecs
    return tuple(files), unused


def _by_offsets(chunks: Chunks) -> dict[tuple[int, ...], int]:
    """The number of the chunk at each index. An empty chunk may begin where another one
    does: that one counts.
    """
    # The usual case, without a box: the offsets of each chunk follow each other in one
    # column.
    if chunks.dims and 0 not in chunks.sizes:
        columns = [iter(chunks.offsets)] * chunks.dims
        return dict(zip(zip(*columns, strict=True), range(len(chunks)), strict=True))
    boxes = list(enumerate(chunks.boxes()))
    places = {offsets: place for place, (offsets, sizes) in boxes if 0 in sizes}
    places.update(
        (offsets, place) for place, (offsets, sizes) in boxes if 0 not in sizes
    )
    return places


def _parse_item(node: Node, what: str) -> Item:
    fields = _object_fields(node, "_StorageInfo", what)
    codecs = fields.get("transform_descriptors")
    # The names of codecs alone; what they are is asked when the item is read.
    if codecs is not None and (
        type(codecs) is not list or not all(type(codec) is str for codec in codecs)
    ):
        raise UnreadableError(f".metadata: {what} has an invalid encoding")
    return Item(
        _parse_text(fields.get("relative_path"), what),
        _parse_count(fields.get("offset"), what),
        _parse_count(fields.get("length"), what),
        tuple(map(str, codecs)) if type(codecs) is list else (),
    )


def _parse_paths(node: Node) -> dict[str, Path]:
    """The paths that `planner_data` gives; none where the state dict was not taken
    apart.
    """
    paths: dict[str, Path] = {}
    if type(node) is not Dict:
        return paths
    for key, value in zip(node.keys, node.values, strict=True):
        name = _parse_text(key, "a name")
        path: list[str | int] = []
        # An int is a position in a list, a text the key of a dict.
        for step in value if is_tuple(value) else ():
            if type(step) is int and 0 <= step < _MOST:
                path.append(step)
            else:
                path.append(_parse_text(step, f"the path of {show(name, 80)}"))
        if not path or name in paths:
            raise UnreadableError(f".metadata: {show(name, 80)} has no valid path")
        # torch.distributed.checkpoint.load finds an item by its name, and format_utils
        # by its path.
        if dotted_name(path) != name:
            place = show(dotted_name(path), 80)
            raise UnreadableError(
                f".metadata: {show(name, 80)} has the path {place}, so loaders give it "
                "two names"
            )
        paths[name] = tuple(path)
    return paths


# --- nodes ----------------------------------------------------------------------------

_MODULES = (
    "torch.distributed.checkpoint.metadata.",
    "torch.distributed.checkpoint.filesystem.",
    "torch.distributed._shard.sharded_tensor.metadata.",
)


def class_of(node: Node, how: str = "newobj") -> str:
    """The name of the class of a node, where it is one of the classes of a `.metadata`
    file; else empty.
    """
    if (
        type(node) is not Opaque
        or node.how not in ("newobj", "reduce")
        or node.how != how
    ):
        return ""
    # torch has moved some of these classes between the modules.
    name = node.class_name
    for module in _MODULES:
        if name.startswith(module):
            return name.removeprefix(module)
    return ""


def _object_fields(node: Node, name: str, what: str) -> dict[str, Node]:
    """The attributes of an object of a class. Raises UnreadableError for
    anything else.
    """
    if class_of(node) != name or type(node) is not Opaque or len(node.states) > 1:
        raise UnreadableError(
            f".metadata: {what} is not a {name} of torch.distributed.checkpoint"
        )
    if not node.states:
        return {}
    (state,) = node.states
    return {str(key): value for key, value in _dict_pairs(state, what)}


def _dict_pairs(node: Node, what: str) -> Iterator[tuple[Node, Node]]:
    if type(node) is not Dict:
        raise UnreadableError(f".metadata: {what} is not a dict")
    return zip(node.keys, node.values, strict=True)


def _parse_size(node: Node, what: str) -> tuple[int, ...]:
    """The numbers of a `torch.Size`, none of them negative."""
    numbers: Node = node
    if type(node) is Opaque and node.class_name == "torch.Size" and len(node.args) == 1:
        numbers = node.args[0]
    if not is_tuple(numbers) or len(numbers) > DIMENSIONS:
        raise UnreadableError(f".metadata: {what} has an invalid size")
    return tuple(_parse_count(number, what) for number in numbers)


def _parse_count(node: Node, what: str) -> int:
    if type(node) is not int or not 0 <= node < _MOST:
        raise UnreadableError(f".metadata: {what} has an invalid number")
    return node


def _parse_text(node: Node, what: str) -> str:
    if type(node) is not str:
        raise UnreadableError(f".metadata: {what} is not a text")
    return node
