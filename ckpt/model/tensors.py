"""Storages, and the tensors that view them. Nothing here reads tensor data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Literal

from ckpt.bytes.far import Reading
from ckpt.bytes.source import Source
from ckpt.model.dtypes import DType
from ckpt.model.places import Checksum, Place
from ckpt.model.rows import NamedTuple, dataclass

DIMENSIONS = 64
"""The most dimensions of a tensor in torch."""


class Storage(NamedTuple):
    """A block of elements that tensors view. **Identity is sharing**: tensors with the
    same object share memory.

    `id` is unique in its checkpoint. `device` is the tag in the file (`cuda:0`), or
    None when the format has no tags. `nbytes` is its size, `place` says where its bytes
    are (None without bytes, as on `meta`), `crc` is the checksum that the container
    recorded.
    """

    id: str
    device: str | None
    dtype: DType | None
    nbytes: int
    place: Place | None
    crc: int | None = None

    @property
    def noted(self) -> Place | None:
        """The place, with the checksum of its record noted in it."""
        if self.place is None or self.crc is None:
            return self.place
        return self.place.noting(self.crc)

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for all of it."""
        if self.place is not None:
            yield from self.place.list_readings(0, self.nbytes)

    def list_sources(self) -> Iterator[Source]:
        """Yield the sources of its bytes."""
        return iter(()) if self.place is None else self.place.list_sources()

    def list_checksums(self) -> Iterator[Checksum]:
        """Yield the recorded checksums of all records that its bytes come from. Raises
        UnreadableError, NotOpenedError.
        """
        place = self.noted
        return iter(()) if place is None else place.list_checksums()


Geometry = tuple[DType, tuple[int, ...], tuple[int, ...], int, bool, bool]
"""dtype, shape, stride, offset, pending conjugation, pending negation."""


class TensorRef(NamedTuple):
    """A strided view of a storage, made by `tensor_ref` and compared by identity.

    `offset` and `stride` count elements. `nbytes` is the size of a contiguous copy.
    `extent` gives the bytes of the storage that it views: first, and one past the last;
    they lie within the storage. `requires_grad` is None when the file does not record
    it.
    """

    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    numel: int
    nbytes: int
    extent: tuple[int, int]
    requires_grad: bool | None = None
    is_parameter: bool = False
    is_buffer: bool = False
    conj: bool = False
    neg: bool = False

    @property
    def geometry(self) -> Geometry:
        """The geometry of its view: equal for two tensors that would see the same
        elements in one storage.
        """
        return self.dtype, self.shape, self.stride, self.offset, self.conj, self.neg

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for its elements."""
        if self.numel and self.storage.place is not None:
            yield from self.storage.place.list_readings(*self.extent)

    @property
    def view(self) -> tuple[Storage, Geometry]:
        """The storage and the geometry: equal for tensors that are one and the same
        memory.
        """
        return self.storage, self.geometry

    @property
    def device(self) -> str | None:
        return self.storage.device

    @property
    def layout(self) -> str:
        return "strided"

    @property
    def parts(self) -> tuple[tuple[str, TensorRef], ...]:
        return ()


def tensor_ref(
    storage: Storage,
    dtype: DType,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool | None = None,
) -> TensorRef:
    """A view with its sizes computed. The caller must check that its extent lies within
    the storage.

    A tensor whose elements come in blocks is contiguous, and all of its storage.
    """
    numel = prod(shape)
    bits = dtype.bits
    # Elements are counted by whole blocks.
    if dtype.block is not None:
        nbytes = dtype.nbytes(numel)
        return TensorRef(
            storage,
            dtype,
            shape,
            stride,
            offset,
            numel,
            nbytes,
            (0, nbytes),
            requires_grad,
        )
    # From the first element to the last one that strides reach, in whole bytes.
    if numel:
        # torch has no negative strides, so the last element lies farthest.
        last = offset
        for size, step in zip(shape, stride, strict=True):
            last += (size - 1) * step
        extent = (offset * bits // 8, ((last + 1) * bits + 7) // 8)
    else:
        extent = (0, 0)
    return TensorRef(
        storage,
        dtype,
        shape,
        stride,
        offset,
        numel,
        (numel * bits + 7) // 8,
        extent,
        requires_grad,
    )


def is_countable(shape: Sequence[int]) -> bool:
    """Tell whether torch and the library of safetensors can count the elements of a
    shape. Both multiply one size after another in 64 bits, and refuse `[2**62, 8, 0]`
    before they see the 0.
    """
    numel = 1
    for size in shape:
        numel *= size
        if numel >= 2**64:
            return False
    return numel < 2**63


def blocks_in(tensors: Iterable[Tensor]) -> list[str]:
    """Return the names of the types whose elements come in blocks, in the order of the
    tensors.
    """
    return list(
        dict.fromkeys(
            tensor.dtype.name for tensor in tensors if tensor.dtype.block is not None
        )
    )


def is_same_view(tensor: object, other: object) -> bool:
    """Tell whether both are strided tensors over the same elements in the same order.

    Then one is the other once more.
    """
    return (
        type(tensor) is TensorRef
        and type(other) is TensorRef
        and tensor.view == other.view
    )


def overlapping_groups(refs: Sequence[TensorRef]) -> list[list[TensorRef]]:
    """Views of one storage that have elements, those together whose extents overlap, in
    the order of their first bytes.
    """
    groups: list[list[TensorRef]] = []
    end = 0
    # By their first bytes, so that each can only overlap the last group.
    for ref in sorted((ref for ref in refs if ref.numel), key=lambda ref: ref.extent):
        if groups and ref.extent[0] < end:
            groups[-1].append(ref)
        else:
            groups.append([ref])
        end = max(end, ref.extent[1])
    return groups


def moved(
    ref: TensorRef, storage: Storage, offset: int, stride: tuple[int, ...]
) -> TensorRef:
    """The same tensor at another place of another storage. The caller must check that
    it lies within the storage.
    """
    extent = tensor_ref(storage, ref.dtype, ref.shape, stride, offset).extent
    return ref._replace(storage=storage, offset=offset, stride=stride, extent=extent)


def unexpanded_view(ref: TensorRef) -> TensorRef:
    """The view without the dimensions that show the same elements again, as `expand`
    makes them.
    """
    if 0 not in ref.stride:
        return ref
    # A dimension of size 0 stays: without it the view would have elements.
    kept = [
        (size, step)
        for size, step in zip(ref.shape, ref.stride, strict=True)
        if step or not size
    ]
    shape, stride = tuple(size for size, _ in kept), tuple(step for _, step in kept)
    return tensor_ref(ref.storage, ref.dtype, shape, stride, ref.offset)


# By identity; a method in Python would be called for each of many.
for _type in (Storage, TensorRef):
    _type.__eq__, _type.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]


class Placement(NamedTuple):
    """The place of a distributed tensor along one dimension of the mesh of ranks.

    `shard` cuts dimension `dim` as torch.chunk does, `strided` cuts each of `split`
    chunks of it.
    """

    kind: Literal["shard", "strided", "replicate", "partial"]
    dim: int = 0
    split: int = 1

    @property
    def text(self) -> str:
        if self.kind == "strided":
            return f"_StridedShard({self.dim}, {self.split})"
        return f"Shard({self.dim})" if self.kind == "shard" else self.kind.capitalize()


class Piece(NamedTuple):
    """The part of a distributed tensor on one rank: the mesh of ranks, and one
    placement per mesh dimension.

    `rank`, `coordinate` (its place in the mesh) and `ranks` (all ranks of the run) are
    None or empty where the file does not record them. Without `in_order` a dimension is
    cut by a later dimension of the mesh first.
    """

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]
    rank: int | None = None
    coordinate: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()
    in_order: bool = True

    @property
    def is_cut(self) -> bool:
        """Tell whether it is less than the tensor."""
        return any(
            placement.kind != "replicate" and count > 1
            for placement, count in zip(self.placements, self.mesh, strict=True)
        )

    @property
    def place(self) -> tuple[int, ...] | None:
        """The coordinates that choose the elements: equal for copies. None where they
        are not recorded.
        """
        # Replicated dimensions do not choose: their ranks hold copies.
        if self.coordinate is None:
            return None
        pairs = zip(self.placements, self.coordinate, strict=True)
        return tuple(
            index for placement, index in pairs if placement.kind != "replicate"
        )


class Shard(NamedTuple):
    """A box of a ShardedTensor, and the rank of the run that holds it, or None if no
    rank is recorded.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int | None


class Shards(NamedTuple):
    """The part of a ShardedTensor on one rank: the offsets of its parts, and all shards
    that its group has.

    `rank` and `world` belong to the run, `group_rank` and `group` to the ranks that
    share one copy of the tensor. They are None where the file does not record them.
    """

    offsets: tuple[tuple[int, ...], ...]
    listed: tuple[Shard, ...]
    rank: int | None = None
    world: int | None = None
    group_rank: int | None = None
    group: int | None = None

    @property
    def cut(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """The cut of the tensor: equal for all ranks of a run."""
        return tuple((shard.offsets, shard.sizes) for shard in self.listed)


@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """A tensor that consists of others: sparse, quantized, nested, a wrapper subclass,
    a bare storage.

    `layout` names its kind (`sparse_coo`, `quantized`, `nested`, `wrapper`, `storage`
    …), `detail` adds the quantization scheme or the subclass. `own_device` is the tag
    recorded beside the parts.
    """

    layout: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[tuple[str, TensorRef], ...]
    own_device: str | None = None
    requires_grad: bool | None = None
    is_parameter: bool = False
    is_buffer: bool = False
    detail: str | None = None
    elements: int | None = None
    """The number of elements, when the shape does not give it (ragged rows, the piece
    of one rank).
    """
    piece: Piece | None = None
    """The part of it in the DTensor of one rank. Then `shape` is the shape of the whole
    tensor.
    """
    shards: Shards | None = None
    """The same for the ShardedTensor of one rank, whose parts are its shards."""

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for its parts."""
        for _, part in self.parts:
            yield from part.reads()

    @property
    def numel(self) -> int:
        return prod(self.shape) if self.elements is None else self.elements

    @property
    def nbytes(self) -> int:
        """The bytes of its parts, or of its elements when it has no parts."""
        if self.parts:
            return sum(part.nbytes for _, part in self.parts)
        return self.dtype.nbytes(self.numel)

    @property
    def device(self) -> str | None:
        return self.own_device or (self.parts[0][1].device if self.parts else None)


Tensor = TensorRef | Composite


class Sharding(NamedTuple):
    """The cut of a tensor: the number of parts, and the dimensions that are cut."""

    parts: int
    dims: tuple[int, ...]


def sharding_of(tensor: Tensor) -> Sharding | None:
    """Return how a tensor is cut, or None for a whole one. Opens nothing."""
    # Only places in boxes have a grid, and making one opens no file.
    place = tensor.storage.place if isinstance(tensor, TensorRef) else None
    grid = () if place is None else place.grid
    if prod(grid) < 2:
        return None
    return Sharding(prod(grid), tuple(dim for dim, cuts in enumerate(grid) if cuts > 1))


def unwrap_dtensor(tensor: Tensor) -> Tensor:
    """The elements of a DTensor of which its rank holds all, as a strided tensor. Any
    other tensor is itself.
    """
    if (
        isinstance(tensor, TensorRef)
        or tensor.piece is None
        or tensor.piece.is_cut
        or len(tensor.parts) != 1
    ):
        return tensor
    # If nothing was cut, the part has the shape of the whole.
    local = tensor.parts[0][1]
    return (
        local if (local.shape, local.dtype) == (tensor.shape, tensor.dtype) else tensor
    )


def parts_of(tensor: Tensor) -> tuple[TensorRef, ...]:
    """The strided tensors of a tensor: its parts, or the tensor itself."""
    if isinstance(tensor, TensorRef):
        return (tensor,)
    return tuple(part for _, part in tensor.parts)


def is_cut(tensor: Tensor) -> bool:
    """Tell whether the file of one rank has less than the tensor.

    A summand (Partial) is no part: the files of all ranks do not give the tensor.
    """
    if not isinstance(tensor, Composite):
        return False
    if tensor.piece is not None:
        kinds = {placement.kind for placement in tensor.piece.placements}
        return tensor.piece.is_cut and "partial" not in kinds
    shards = tensor.shards
    return shards is not None and len(shards.offsets) < len(shards.listed)


def rank_of(tensor: Tensor) -> int | None:
    """The rank whose part of a tensor a file has, or None where it is not recorded."""
    assert isinstance(tensor, Composite)
    if tensor.piece is not None:
        return tensor.piece.rank
    return None if tensor.shards is None else tensor.shards.rank
