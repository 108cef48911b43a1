"""The pickle of `.metadata`: the objects that torch.distributed.checkpoint reads, from torch 2.1 to 2.13.

Only these classes are written, with the opcodes that torch writes, so that a large one is read in columns. `TensorProperties`
is written as a call with its fields: its state names an enum, whose class torch 2.4 moved, while the class itself has been
in this module all along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckpt.dtypes import DType
from ckpt.errors import LimitError
from ckpt.formats.dcp.metadata.content import Item
from ckpt.limits import Limits
from ckpt.nodes import Dict, Global, Node, Opaque, PersistentId
from ckpt.pickles.emit import StorageId, emit
from ckpt.rows import NamedTuple
from ckpt.tensors import Storage

_METADATA = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class Chunk(NamedTuple):
    """A box of a tensor, and the item that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item: Item


class Row(NamedTuple):
    """A tensor in chunks, or an object in one item; an object has no dtype. `path` is its place in the state dict."""

    name: str
    path: tuple[str | int, ...]
    chunks: Sequence[Chunk] = ()
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    item: Item | None = None


def record(rows: Iterable[Row], limits: Limits, *, is_flattened: bool) -> bytes:
    """The bytes of `.metadata`. Raises LimitError where it would be longer than ckpt reads."""
    state, planner, storage = Dict(), Dict(), Dict()
    layout = _call("torch.serialization", "_get_layout", "torch.strided")  # one object, as in torch
    for row in rows:
        planner.set([row.name], [row.path])
        if row.item is not None:
            state.set([row.name], [_object(_METADATA, "BytesStorageMetadata", {})])
            storage.set([_index(row.name, None, None)], [_info(row.item)])
            continue
        assert row.dtype is not None
        chunks: list[Node] = []
        for number, chunk in enumerate(row.chunks):
            fields = {"offsets": _size(chunk.offsets), "sizes": _size(chunk.sizes)}
            chunks.append(_object(_METADATA, "ChunkStorageMetadata", fields))
            storage.set([_index(row.name, _size(chunk.offsets), number)], [_info(chunk.item)])
        known: dict[str, Node] = {
            "properties": _call(
                _METADATA, "TensorProperties", Global("torch", row.dtype.name), layout, row.requires_grad
            ),
            "size": _size(row.shape),
            "chunks": chunks,
        }
        state.set([row.name], [_object(_METADATA, "TensorStorageMetadata", known)])
    whole = {
        "state_dict_metadata": state,
        "planner_data": planner if is_flattened else None,
        "storage_data": storage,
    }
    found = emit(_object(_METADATA, "Metadata", whole), _no_storage, _no_nested, limits, protocol=4)
    if len(found) > limits.metadata_bytes:
        raise LimitError(".metadata would be too long", "metadata-bytes", limits.metadata_bytes)
    return found


def _object(module: str, name: str, fields: Mapping[str, Node]) -> Opaque:
    made = Opaque("newobj", Global(module, name), (), None, 0)
    state = Dict()
    state.set(list(fields), list(fields.values()))
    made.build(state)
    return made


def _call(module: str, name: str, *args: Node) -> Opaque:
    return Opaque("reduce", Global(module, name), args, None, 0)


def _size(numbers: tuple[int, ...]) -> Opaque:
    own = (*numbers,)  # of its own: no size is written as the same tuple again
    return _call("torch", "Size", own)


def _index(name: str, offsets: Node, number: int | None) -> Opaque:
    return _object(_METADATA, "MetadataIndex", {"fqn": name, "index": number, "offset": offsets})


def _info(item: Item) -> Opaque:
    fields: dict[str, Node] = {
        "relative_path": item.file,
        "offset": item.offset,
        "length": item.length,
    }
    if item.codecs:  # torch before 2.7 neither writes nor reads them
        fields["transform_descriptors"] = list(item.codecs)
    return _object(_FILESYSTEM, "_StorageInfo", fields)


def _no_storage(storage: Storage, persistent: PersistentId | None) -> StorageId:
    raise AssertionError("a storage in .metadata")


def _no_nested(node: Node) -> bytes:
    raise AssertionError("a checkpoint in .metadata")
