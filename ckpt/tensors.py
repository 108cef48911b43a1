"""Storages, the tensors that look into them, and where their bytes are. Nothing here reads a byte of tensor data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ckpt.dtypes import DType
from ckpt.io.source import Source


class Range(NamedTuple):
    """Bytes of a source: `size` of them at `offset`, deflated when `inflated` is not None (their true size).

    `big` says that their elements are big-endian.
    """

    source: Source
    offset: int
    size: int
    inflated: int | None = None
    big: bool = False


class Computed:
    """Bytes that are made when they are written: the elements of a tensor in the order of its shape, as `dtype`.

    Little-endian, conjugation and negation done.
    """

    __slots__ = ("dtype", "of")

    def __init__(self, of: TensorRef, dtype: DType) -> None:
        self.of = of
        self.dtype = dtype

    @property
    def size(self) -> int:
        return self.dtype.nbytes(self.of.numel)


class Overlaid:
    """The elements of a tensor in the order of its shape, as its dtype, with the block that `over` has in common with it
    taken from there: the elements whose index lies within both shapes, which have as many dimensions.
    """

    __slots__ = ("of", "over")

    def __init__(self, of: TensorRef, over: TensorRef) -> None:
        self.of = of
        self.over = over

    @property
    def size(self) -> int:
        return self.of.nbytes


class Patched:
    """The bytes of a place with pieces of it taken from elsewhere; where pieces overlap, the later one counts.

    `pieces` are (first byte, place); `base` is None where nothing is left of it.
    """

    __slots__ = ("base", "pieces", "size")

    def __init__(self, base: Place | None, size: int, pieces: Sequence[tuple[int, Place]]) -> None:
        self.base = base
        self.size = size
        self.pieces = tuple(pieces)


Place = Range | Computed | Overlaid | Patched


def sources_of(place: Place | None) -> Iterator[Source]:
    """The sources that the bytes of a place come from."""
    todo = [place]
    while todo:
        each = todo.pop()
        if isinstance(each, Range):
            yield each.source
        elif isinstance(each, Patched):
            todo += [each.base, *(piece for _, piece in each.pieces)]
        elif isinstance(each, Overlaid):
            todo += [each.of.storage.place, each.over.storage.place]
        elif each is not None:
            todo.append(each.of.storage.place)


class Storage(NamedTuple):
    """A block of elements that tensors look into. **Identity is sharing**: one object, one memory.

    `id` is unique in its checkpoint. `device` is the tag as the file has it (`cuda:0`), or None where the
    format keeps none. `nbytes` is what its tensors see, `place` where it lies (None: nowhere, as on `meta`),
    `crc` the checksum that the container recorded.
    """

    id: str
    device: str | None
    dtype: DType | None
    nbytes: int
    place: Place | None
    crc: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


Geometry = tuple[DType, tuple[int, ...], tuple[int, ...], int, bool, bool]
"""dtype, shape, stride, offset, pending conjugation, pending negation."""


class TensorRef(NamedTuple):
    """A strided view of a storage; `tensor_ref` makes one. Compared by identity.

    `offset` and `stride` count elements. `nbytes` are the bytes of its elements, counted once each: what a
    contiguous copy would take. `extent` are the bytes of the storage that it looks at, first and one past the
    last; they lie within the storage. `requires_grad` is what the file records, None where it records nothing.
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

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def geometry(self) -> Geometry:
        """How it looks at its storage: equal for two tensors that would see the same elements in one storage."""
        return self.dtype, self.shape, self.stride, self.offset, self.conj, self.neg

    @property
    def view(self) -> tuple[Storage, Geometry]:
        """The storage and the geometry: equal for tensors that are one and the same memory."""
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
    """A view with its sizes worked out; whether its extent lies within the storage is the caller's to check."""
    numel = prod(shape)
    bits = dtype.bits
    if numel:
        last = offset
        for size, step in zip(shape, stride, strict=True):
            last += (size - 1) * step
        extent = (offset * bits // 8, ((last + 1) * bits + 7) // 8)
    else:
        extent = (0, 0)
    return TensorRef(
        storage, dtype, shape, stride, offset, numel, (numel * bits + 7) // 8, extent, requires_grad
    )


@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """A tensor that is made of others: sparse, quantized, nested, a wrapper subclass, a bare storage.

    `layout` says which (`sparse_coo`, `quantized`, `nested`, `wrapper`, `storage` …), `detail` what the
    parts do not (the quantization scheme, the subclass). `device` is the tag recorded beside the parts.
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
    """Elements, where the shape does not tell (ragged rows)."""

    @property
    def numel(self) -> int:
        return prod(self.shape) if self.elements is None else self.elements

    @property
    def nbytes(self) -> int:
        """Bytes of its parts; without parts in storages, those of its elements."""
        if self.parts:
            return sum(part.nbytes for _, part in self.parts)
        return self.dtype.nbytes(self.numel)

    @property
    def device(self) -> str | None:
        return self.own_device or (self.parts[0][1].device if self.parts else None)


Tensor = TensorRef | Composite


def parts_of(tensor: Tensor) -> tuple[TensorRef, ...]:
    """The tensors in storages that a tensor is made of: itself, where it is one."""
    return (tensor,) if isinstance(tensor, TensorRef) else tuple(part for _, part in tensor.parts)
