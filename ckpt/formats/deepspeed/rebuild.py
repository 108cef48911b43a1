"""Which elements of which partitions are which parameter: the arithmetic of ZeRO, without reading a byte.

ZeRO 1 and 2 flatten each group into one vector, which the ranks share in equal parts. ZeRO-3 shares each parameter: rank
r holds elements r·k to (r+1)·k of it, k being its size divided by the ranks, rounded up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ckpt.dtypes import DType, contiguous
from ckpt.errors import UnreadableError
from ckpt.tensors import Patched, Place, Range, Storage, TensorRef, noted, tensor_ref


class Vector:
    """Elements that lie in several flat tensors, each from its own element `starts` on. There may be gaps."""

    __slots__ = ("ends", "places", "starts", "width")

    def __init__(self, parts: Sequence[tuple[int, TensorRef]]) -> None:
        rows = [(start, ref) for start, ref in parts if ref.numel]
        self.starts = [start for start, _ in rows]
        self.ends = [start + ref.numel for start, ref in rows]
        self.places = [_place(ref) for _, ref in rows]
        self.width = rows[0][1].dtype.bits // 8 if rows else 0

    @property
    def numel(self) -> int:
        return self.ends[-1] if self.ends else 0

    def cut(self, first: int, count: int) -> Iterator[tuple[int, int, Place]]:
        """(element within the cut, elements, place) of what is there of `count` elements from `first` on."""
        index = max(bisect_right(self.starts, first) - 1, 0)
        last = first + count
        while index < len(self.starts) and self.starts[index] < last:
            low, high = max(first, self.starts[index]), min(last, self.ends[index])
            if low < high:
                begin = (low - self.starts[index]) * self.width
                yield (
                    low - first,
                    high - low,
                    _part(self.places[index], begin, (high - low) * self.width),
                )
            index += 1

    def holds(self, first: int, count: int) -> bool:
        """Whether all of `count` elements from `first` on are there."""
        return sum(elements for _, elements, _ in self.cut(first, count)) == count


def _place(ref: TensorRef) -> Place:
    place = noted(ref.storage)
    assert place is not None
    first, last = ref.extent
    return _part(place, first, last - first)


def _part(place: Place, begin: int, size: int) -> Place:
    """Bytes `begin` to `begin + size` of a place."""
    if isinstance(place, Range) and place.inflated is None:
        return place._replace(offset=place.offset + begin, size=size)
    return Patched(None, size, [(-begin, place)])


class Pieces:
    """The pieces of one parameter, as `Patched` takes them: `step` elements from `first` on of each vector.

    They are made when they are asked for, because a thousand ranks have a thousand pieces of each parameter.
    """

    __slots__ = ("_first", "_numel", "_step", "_vectors")

    def __init__(self, vectors: Sequence[Vector], first: int, step: int, numel: int) -> None:
        self._vectors = vectors
        self._first = first
        self._step = step
        self._numel = numel

    def _made(self) -> list[tuple[int, Place]]:
        return [(at * vector.width, place) for at, vector, place in self._spans()]

    def _spans(self) -> Iterator[tuple[int, Vector, Place]]:
        for rank, vector in enumerate(self._vectors):
            begin = rank * self._step
            count = min(self._step, self._numel - begin)
            if count <= 0:
                return
            for at, _, place in vector.cut(self._first, count):
                yield begin + at, vector, place

    def is_whole(self) -> bool:
        """Whether every element is there."""
        held = 0
        for rank, vector in enumerate(self._vectors):
            count = min(self._step, self._numel - rank * self._step)
            if count <= 0:
                break
            held += sum(elements for _, elements, _ in vector.cut(self._first, count))
        return held == self._numel

    def __iter__(self) -> Iterator[tuple[int, Place]]:
        return iter(self._made())

    def __reversed__(self) -> Iterator[tuple[int, Place]]:
        return reversed(self._made())


def rebuilt(
    storage_id: str, device: str | None, dtype: DType, shape: tuple[int, ...], pieces: Pieces
) -> TensorRef:
    """A parameter of its own storage, whose bytes are the pieces."""
    numel = 1
    for size in shape:
        numel *= size
    size = dtype.nbytes(numel)
    found = list(pieces) if numel else []
    only = found[0][1] if len(found) == 1 else None
    place: Place = only if isinstance(only, Range) else Patched(None, size, pieces if numel else ())
    storage = Storage(storage_id, device, dtype, size, place)
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)


class Cut:
    """Where each parameter lies: the first element in its vectors, and the elements of one step."""

    __slots__ = ("first", "group", "numel", "step")

    def __init__(self, group: int, first: int, step: int, numel: int) -> None:
        self.group = group
        self.first = first
        self.step = step
        self.numel = numel


def whole_cuts(
    shapes: Sequence[dict[str, tuple[int, ...]]], alignments: Sequence[Sequence[int]] | None
) -> tuple[dict[str, Cut], list[int]]:
    """The cuts of ZeRO 1 and 2, and the elements that each group needs. Raises UnreadableError."""
    cuts: dict[str, Cut] = {}
    ends: list[int] = []
    for group, rows in enumerate(shapes):
        paddings = alignments[group] if alignments is not None and group < len(alignments) else ()
        if paddings and len(paddings) != len(rows):
            raise UnreadableError(
                f"group {group} has {len(rows):,} parameters and {len(paddings):,} alignment paddings"
            )
        at = 0
        for number, (name, shape) in enumerate(rows.items()):
            numel = _numel(shape)
            cuts[name] = Cut(group, at, max(numel, 1), numel)
            at += numel + (paddings[number] if paddings else 0)
        ends.append(at)
    return cuts, ends


def shared_cuts(shapes: Sequence[dict[str, tuple[int, ...]]], ranks: int) -> tuple[dict[str, Cut], int]:
    """The cuts of ZeRO-3, and the elements that each rank needs."""
    cuts: dict[str, Cut] = {}
    at = 0
    for rows in shapes:
        for name, shape in rows.items():
            numel = _numel(shape)
            step = -(-numel // ranks)
            cuts[name] = Cut(0, at, max(step, 1), numel)
            at += step
    return cuts, at


def _numel(shape: tuple[int, ...]) -> int:
    numel = 1
    for size in shape:
        numel *= size
    return numel
