"""Storages, the tensors that view them, and where their bytes are. Nothing here reads tensor data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Reversible, Sequence
from itertools import accumulate
from math import prod
from typing import Literal, Protocol

from ckpt.dtypes import DType
from ckpt.io.far import Reading
from ckpt.io.source import Source
from ckpt.rows import NamedTuple, dataclass

DIMENSIONS = 64
"""The most dimensions of a tensor in torch."""


class Range(NamedTuple):
    """`size` bytes of a source at `offset`. They are deflated when `inflated`, their full size, is not None.

    `big` says that their elements are big-endian. `recorded` is the checksum of the record that holds them, where they
    were taken out of a storage, which knows its own.
    """

    source: Source
    offset: int
    size: int
    inflated: int | None = None
    big: bool = False
    recorded: Checksum | None = None

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read of it."""
        yield self.source, self.offset, self.offset + self.size

    def part(self, first: int, last: int) -> Range:
        """Bytes `first` to `last` of it. The bytes of a deflated one have no part but the whole."""
        if (first, last) == (0, self.size):
            return self
        assert self.inflated is None
        return self._replace(offset=self.offset + first, size=last - first, recorded=None)


class Checksum(NamedTuple):
    """The CRC-32 that an archive recorded of all bytes of a record, inflated."""

    place: Range
    crc: int


class Computed:
    """Bytes computed at the time of writing: the elements of a tensor in the order of its shape, as `dtype`.

    They are little-endian, with conjugation and negation resolved.
    """

    __slots__ = ("dtype", "of")

    def __init__(self, of: TensorRef, dtype: DType) -> None:
        self.of = of
        self.dtype = dtype

    @property
    def size(self) -> int:
        return self.dtype.nbytes(self.of.numel)


class Overlaid:
    """The elements of a tensor in the order of its shape, with the elements whose index is also within the shape of
    `over` taken from `over`. Both have the same number of dimensions.
    """

    __slots__ = ("of", "over")

    def __init__(self, of: TensorRef, over: TensorRef) -> None:
        self.of = of
        self.over = over

    @property
    def size(self) -> int:
        return self.of.nbytes


class Mean:
    """The weighted mean of tensors of one shape, element by element in the order of that shape, as `dtype`.

    `of` are the tensors, `shares` the weight of each; they are added as float64 in this order.
    """

    __slots__ = ("dtype", "of", "shares")

    def __init__(self, of: Sequence[TensorRef], shares: Sequence[float], dtype: DType) -> None:
        self.of = tuple(of)
        self.shares = tuple(shares)
        self.dtype = dtype

    @property
    def size(self) -> int:
        return self.dtype.nbytes(self.of[0].numel)


class Made(NamedTuple):
    """A span of a derived place: its elements as bytes, and the number of finite ones beyond the range of their type.

    The bytes are valid until `close` is called.
    """

    data: memoryview
    overflowed: int
    close: Callable[[], None]


class Change(Protocol):
    """Computes a span of a derived place. Threads call it for several spans at once. Raises UnreadableError."""

    def __call__(self, block: memoryview, first: int) -> Made:
        """Return the new elements for the bytes of some elements, of which `first` is the number of the first one."""
        ...


class Derived:
    """Elements that are computed, span by span, from one tensor and from others that it is changed with.

    They have the order of the shape of `of`, and the type `dtype`. Spans begin at multiples of `step` elements. `change`
    computes one of them from the elements of `of`; it reads `others` by itself.
    """

    __slots__ = ("change", "dtype", "of", "others", "step")

    def __init__(
        self, of: TensorRef, others: Sequence[TensorRef], step: int, change: Change, dtype: DType
    ) -> None:
        self.of = of
        self.others = tuple(others)
        self.step = step
        self.change = change
        self.dtype = dtype

    @property
    def size(self) -> int:
        return self.dtype.nbytes(self.of.numel)


class Patched:
    """The bytes of a place with pieces from other places. Where pieces overlap, the later one counts.

    `pieces` are (first byte, place), which may be made when they are asked for. `base` is None when the pieces cover
    all of it.
    """

    __slots__ = ("base", "pieces", "size")

    def __init__(self, base: Place | None, size: int, pieces: Reversible[tuple[int, Place]]) -> None:
        self.base = base
        self.size = size
        self.pieces = tuple(pieces) if isinstance(pieces, list) else pieces


class Part(Protocol):
    """A tensor that is opened when its bytes are needed."""

    @property
    def source(self) -> Source:
        """The file that holds it. Raises UnreadableError, NotOpenedError."""
        ...

    def tensor(self) -> TensorRef:
        """The tensor. Raises UnreadableError, NotOpenedError."""
        ...

    def reads(self) -> Iterator[Reading]:
        """The bytes that opening and reading it takes. Raises UnreadableError."""
        ...


class Box(NamedTuple):
    """The elements of a tensor from the index `offsets` on, `sizes` of them in each dimension, and where they are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    part: TensorRef | Part

    def tensor(self) -> TensorRef:
        """The tensor of shape `sizes` with its elements. Raises UnreadableError, NotOpenedError."""
        return self.part if isinstance(self.part, TensorRef) else self.part.tensor()

    def is_run(self, shape: Sequence[int]) -> bool:
        """Tell whether its elements follow each other in a tensor of this shape."""
        inner = len(shape)
        while inner and self.sizes[inner - 1] == shape[inner - 1]:
            inner -= 1
        return all(size == 1 for size in self.sizes[: max(0, inner - 1)])


class Boxes:
    """The elements of a tensor in the order of its shape, cut into boxes that do not overlap.

    `cut` makes the boxes when they are needed, `grid` is the number of cuts of each dimension. `problem` says
    why the elements cannot be read, as where a box is missing. `sources` are the sources of all boxes.
    """

    __slots__ = (
        "_boxes",
        "_order",
        "cut",
        "dtype",
        "grid",
        "problem",
        "shape",
        "size",
        "sources",
        "straight",
    )

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        cut: Callable[[], Sequence[Box]],
        sources: Sequence[Source],
        problem: str | None = None,
        grid: Sequence[int] = (),
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.cut = cut
        self.grid = tuple(grid)
        self.sources = sources
        self.problem = problem
        self.size = dtype.nbytes(prod(shape))
        self.straight: Place | None = None
        """The same bytes as ranges, once they are known to be some."""
        self._boxes: Sequence[Box] | None = None
        self._order: tuple[list[tuple[int, int, Box]], list[int]] | None = None

    @property
    def boxes(self) -> Sequence[Box]:
        if self._boxes is None:
            self._boxes = self.cut()
        return self._boxes

    def between(self, first: int, last: int) -> Iterator[Box]:
        """The boxes with elements between two bytes, and those around them."""
        if self._order is None:
            rows = sorted(
                ((*self.span(box), box) for box in self.boxes if prod(box.sizes)), key=lambda row: row[0]
            )
            self._order = rows, [*accumulate((end for _, end, _ in rows), max)]
        rows, ends = self._order
        for begin, end, box in rows[bisect_right(ends, first) :]:
            if begin >= last:
                return
            if end > first:
                yield box

    def span(self, box: Box) -> tuple[int, int]:
        """The first byte of a box, and the one behind its last."""
        far = [offset + size - 1 for offset, size in zip(box.offsets, box.sizes, strict=True)]
        width = self.dtype.nbytes
        return width(flat(box.offsets, self.shape)), width(flat(far, self.shape) + 1)

    def __reduce__(self) -> tuple[object, ...]:
        boxes = () if self.problem is not None else tuple(self.boxes)  # without them there is nothing to read
        return _boxes, (self.dtype, self.shape, boxes, self.problem, self.grid)


def _boxes(
    dtype: DType, shape: tuple[int, ...], boxes: Sequence[Box], problem: str | None, grid: tuple[int, ...]
) -> Boxes:
    """The boxes in another process, which only reads them: who made the tasks looks after their sources."""
    return Boxes(dtype, shape, lambda: boxes, (), problem, grid)


Place = Range | Computed | Overlaid | Mean | Derived | Patched | Boxes


def flat(index: Sequence[int], shape: Sequence[int]) -> int:
    """The number of an element in the order of a shape."""
    number = 0
    for coordinate, size in zip(index, shape, strict=True):
        number = number * size + coordinate
    return number


_EDGE = 8 << 10
"""More bytes than lie before the elements in the item of a tensor."""


def reads_of(place: Place | None, first: int, last: int) -> Iterator[Reading]:
    """The bytes that are read for bytes `first` to `last` of a place, as far as they are known without reading."""
    if isinstance(place, Range):
        yield from place.reads() if place.inflated is not None else place.part(first, last).reads()
    elif isinstance(place, Boxes):
        if place.problem is None:
            for box in place.between(first, last):
                yield from _reads_of_box(box, place, first, last)
    elif isinstance(place, Patched):
        yield from reads_of(place.base, first, last)
        for begin, piece in place.pieces:
            size = piece.inflated if isinstance(piece, Range) and piece.inflated is not None else piece.size
            if begin < last and begin + size > first:
                yield from reads_of(piece, max(0, first - begin), min(size, last - begin))
    elif isinstance(place, Overlaid):
        yield from (*place.of.reads(), *place.over.reads())
    elif isinstance(place, Mean):
        for ref in place.of:
            yield from ref.reads()
    elif isinstance(place, Derived):
        for ref in (place.of, *place.others):
            yield from ref.reads()
    elif isinstance(place, Computed):
        yield from place.of.reads()


def _reads_of_box(box: Box, place: Boxes, first: int, last: int) -> Iterator[Reading]:
    """The bytes of a box that are among these of the whole: those alone where they are one run, else whole rows."""
    begin, end = place.span(box)
    low, high = max(0, first - begin), min(end, last) - begin
    if not box.is_run(place.shape):
        row, own = (place.dtype.nbytes(prod(shape[1:])) for shape in (place.shape, box.sizes))
        top = box.offsets[0] if box.offsets else 0
        rows = box.sizes[0] if box.sizes else 1
        low = max(0, first // row - top) * own
        high = min(rows, -(-last // row) - top) * own
    is_part = low > 0 or high < place.dtype.nbytes(prod(box.sizes))
    for source, start, stop in box.part.reads():
        yield (source, start + low, min(stop, start + high + _EDGE)) if is_part else (source, start, stop)


def sources_of(place: Place | None) -> Iterator[Source]:
    """The sources of the bytes of a place."""
    todo = [place]
    while todo:
        layer = todo.pop()
        if isinstance(layer, Range):
            yield layer.source
        elif isinstance(layer, Boxes):
            yield from layer.sources
        elif isinstance(layer, Patched):
            todo += [layer.base, *(piece for _, piece in layer.pieces)]
        elif isinstance(layer, Overlaid):
            todo += [layer.of.storage.place, layer.over.storage.place]
        elif isinstance(layer, Mean):
            todo += [ref.storage.place for ref in layer.of]
        elif isinstance(layer, Derived):
            todo += [ref.storage.place for ref in (layer.of, *layer.others)]
        elif layer is not None:
            todo.append(layer.of.storage.place)


def first_source(place: Place | None) -> Source | None:
    """The source of the first bytes of a place, or None without any. Opens no part of boxes."""
    if isinstance(place, Boxes) and place.problem is None:
        for box in place.boxes[:1]:
            part = box.part
            return first_source(part.storage.place) if isinstance(part, TensorRef) else part.source
    return next(sources_of(place), None)


class Storage(NamedTuple):
    """A block of elements that tensors view. **Identity is sharing**: tensors with the same object share memory.

    `id` is unique in its checkpoint. `device` is the tag in the file (`cuda:0`), or None when the format has no
    tags. `nbytes` is its size, `place` says where its bytes are (None without bytes, as on `meta`), `crc` is the
    checksum that the container recorded.
    """

    id: str
    device: str | None
    dtype: DType | None
    nbytes: int
    place: Place | None
    crc: int | None = None

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for all of it."""
        yield from reads_of(self.place, 0, self.nbytes)


def noted(storage: Storage) -> Place | None:
    """The place of a storage, with the checksum of its record noted in it."""
    place = storage.place
    if storage.crc is None or not isinstance(place, Range) or place.recorded is not None:
        return place
    return place._replace(recorded=Checksum(place, storage.crc))


Geometry = tuple[DType, tuple[int, ...], tuple[int, ...], int, bool, bool]
"""dtype, shape, stride, offset, pending conjugation, pending negation."""


class TensorRef(NamedTuple):
    """A strided view of a storage, made by `tensor_ref` and compared by identity.

    `offset` and `stride` count elements. `nbytes` is the size of a contiguous copy. `extent` gives the bytes of the
    storage that it views: first, and one past the last; they lie within the storage. `requires_grad` is None when
    the file does not record it.
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
        """The geometry of its view: equal for two tensors that would see the same elements in one storage."""
        return self.dtype, self.shape, self.stride, self.offset, self.conj, self.neg

    def reads(self) -> Iterator[Reading]:
        """The bytes that are read for its elements."""
        if self.numel:
            yield from reads_of(self.storage.place, *self.extent)

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
    """A view with its sizes computed. The caller must check that its extent lies within the storage."""
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


def is_same_view(tensor: object, other: object) -> bool:
    """Tell whether both are strided tensors over the same elements in the same order.

    Then one is the other once more.
    """
    return type(tensor) is TensorRef and type(other) is TensorRef and tensor.view == other.view


def overlapping(refs: Sequence[TensorRef]) -> list[list[TensorRef]]:
    """Views of one storage that have elements, those together whose extents overlap, in the order of their first bytes."""
    groups: list[list[TensorRef]] = []
    end = 0
    for ref in sorted((ref for ref in refs if ref.numel), key=lambda ref: ref.extent):
        if groups and ref.extent[0] < end:
            groups[-1].append(ref)
        else:
            groups.append([ref])
        end = max(end, ref.extent[1])
    return groups


def moved(ref: TensorRef, storage: Storage, offset: int, stride: tuple[int, ...]) -> TensorRef:
    """The same tensor at another place of another storage. The caller must check that it lies within the storage."""
    extent = tensor_ref(storage, ref.dtype, ref.shape, stride, offset).extent
    return ref._replace(storage=storage, offset=offset, stride=stride, extent=extent)


def dense(ref: TensorRef) -> TensorRef:
    """The view without the dimensions that show the same elements again, as `expand` makes them."""
    if 0 not in ref.stride:
        return ref
    kept = [(size, step) for size, step in zip(ref.shape, ref.stride, strict=True) if step or not size]
    shape, stride = tuple(size for size, _ in kept), tuple(step for _, step in kept)
    return tensor_ref(ref.storage, ref.dtype, shape, stride, ref.offset)


for _type in (Storage, TensorRef):  # by identity; a method in Python would be called for each of many
    _type.__eq__, _type.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]


class Placement(NamedTuple):
    """The place of a distributed tensor along one dimension of the mesh of ranks.

    `shard` cuts dimension `dim` as torch.chunk does, `strided` cuts each of `split` chunks of it.
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
    """The part of a distributed tensor on one rank: the mesh of ranks, and one placement per mesh dimension.

    `rank`, `coordinate` (its place in the mesh) and `ranks` (all ranks of the run) are None or empty where
    the file does not record them. Without `in_order` a dimension is cut by a later dimension of the mesh
    first.
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
        """The coordinates that choose the elements: equal for copies. None where they are not recorded."""
        if self.coordinate is None:
            return None
        pairs = zip(self.placements, self.coordinate, strict=True)
        return tuple(index for placement, index in pairs if placement.kind != "replicate")


class Shard(NamedTuple):
    """A box of a ShardedTensor, and the rank of the run that holds it, or None if no rank is recorded."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int | None


class Shards(NamedTuple):
    """The part of a ShardedTensor on one rank: the offsets of its parts, and all shards that its group has.

    `rank` and `world` belong to the run, `group_rank` and `group` to the ranks that share one copy of the
    tensor. They are None where the file does not record them.
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
    """A tensor that consists of others: sparse, quantized, nested, a wrapper subclass, a bare storage.

    `layout` names its kind (`sparse_coo`, `quantized`, `nested`, `wrapper`, `storage` …), `detail` adds the
    quantization scheme or the subclass. `own_device` is the tag recorded beside the parts.
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
    """The number of elements, when the shape does not give it (ragged rows, the piece of one rank)."""
    piece: Piece | None = None
    """The part of it in the DTensor of one rank. Then `shape` is the shape of the whole tensor."""
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
    place = tensor.storage.place if isinstance(tensor, TensorRef) else None
    if not isinstance(place, Boxes) or prod(place.grid) < 2:
        return None
    return Sharding(prod(place.grid), tuple(dim for dim, cuts in enumerate(place.grid) if cuts > 1))


def unwrapped(tensor: Tensor) -> Tensor:
    """The elements of a DTensor of which its rank holds all, as a strided tensor. Any other tensor is itself."""
    if isinstance(tensor, TensorRef) or tensor.piece is None or tensor.piece.is_cut or len(tensor.parts) != 1:
        return tensor
    local = tensor.parts[0][1]
    return local if (local.shape, local.dtype) == (tensor.shape, tensor.dtype) else tensor


def parts_of(tensor: Tensor) -> tuple[TensorRef, ...]:
    """The strided tensors of a tensor: its parts, or the tensor itself."""
    return (tensor,) if isinstance(tensor, TensorRef) else tuple(part for _, part in tensor.parts)
