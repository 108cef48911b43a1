"""Comparing tensors: their bytes first, without numpy; numbers only of what differs. Reads in blocks, on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, prod, sqrt
from typing import NamedTuple, TypeVar

from ckpt.elements import measure
from ckpt.elements.blocks import blocks, elements, is_dense, memory_order, permuted, place_of, same_bytes
from ckpt.errors import UnsupportedError
from ckpt.io.source import File
from ckpt.tensors import Composite, Range, Storage, Tensor, TensorRef, parts_of

BLOCK = 1 << 20
"""Bytes of each side that are compared at once."""
ELEMENTS = 1 << 17
"""Elements of each side that are computed with at once: large enough that threads do not wait for each other."""
THREADS = 2
_UNFOLDED = 1 << 36
"""Bytes to which a tensor may unfold beyond its storage (strides that repeat elements) and still be compared."""


class Change(NamedTuple):
    """What changed in a tensor whose shape stayed, over its elements in the order of the shape.

    `max_abs` is over finite elements, `at` its index; `squares` are the sum of the squared differences, `reference`
    that of the elements before. None where there is nothing to compute with.
    """

    differing: int
    other_bytes: int
    numel: int
    max_abs: float | None = None
    squares: float | None = None
    reference: float | None = None
    at: tuple[int, ...] | None = None
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    close: bool = False
    """Whether all elements agree within the tolerance that was asked for."""

    @property
    def rms(self) -> float | None:
        """The root of the mean square of the difference."""
        return None if self.squares is None else sqrt(self.squares / self.numel) if self.numel else 0.0

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference over that of the tensor before; None where that is zero and something changed."""
        if self.squares is None or self.reference is None:
            return None
        if not isfinite(self.squares) or not isfinite(self.reference):
            return None
        if self.reference:
            return sqrt(self.squares / self.reference)
        return None if self.differing else 0.0


Tolerance = tuple[float, float]
"""(absolute, relative), as torch.testing.assert_close has them."""


def compare(
    before: Tensor,
    after: Tensor,
    tolerance: Callable[[str], Tolerance] | None = None,
    *,
    always: bool = False,
) -> Change | None:
    """What changed between two tensors of one shape, None when every byte is the same.

    Tensors without data (on meta) are the same. With `always` the numbers of equal ones are worked out as well.
    Raises UnreadableError when a file ends before, UnsupportedError for one that unfolds to too much.
    """
    pairs = list(zip(parts_of(before), parts_of(after), strict=False))
    same_parts = len(parts_of(before)) == len(parts_of(after)) and all(
        one.shape == two.shape for one, two in pairs
    )
    if isinstance(before, Composite) and isinstance(after, Composite) and before.detail != after.detail:
        same_parts = False  # another scale, another class: the same bytes mean something else
    if not same_parts:
        return _all_of(before)
    labels = [""] if isinstance(before, TensorRef) else [label for label, _ in before.parts]
    changes = {
        label: change
        for label, (one, two) in zip(labels, pairs, strict=False)
        if (change := _compare(one, two, tolerance, always)) is not None
    }
    if not changes:
        return None
    values = next((changes[label] for label in ("", "values", "int_repr") if label in changes), None) or (
        next(iter(changes.values())) if len(labels) == 1 else None
    )
    if values is not None and (len(changes) == 1 or always):
        return values
    # Indices differ: element by element there is nothing to compute with.
    moved = _all_of(before)
    return moved if values is None else moved._replace(nan=values.nan, inf=values.inf)


def _all_of(tensor: Tensor) -> Change:
    """Everything may differ, and there are no numbers to tell by how much."""
    return Change(tensor.numel, 0, tensor.numel)


def _compare(
    before: TensorRef, after: TensorRef, tolerance: Callable[[str], Tolerance] | None, always: bool
) -> Change | None:
    if not before.numel or before.storage.place is after.storage.place is None:
        return None
    if before.storage.place is None or after.storage.place is None:
        return _all_of(before)  # on meta on one side only
    one, two, times = _without_repeats(before, after)
    refuse_unfolded(one)
    refuse_unfolded(two)
    one, two, order = _straightened(one, two)
    if before.dtype == after.dtype and not always and _same_bytes(one, two):
        return None
    if before.dtype.bits < 8 or after.dtype.bits < 8:
        return _all_of(before)
    found = _numbers(one, two, None if tolerance is None else tolerance(after.dtype.name))
    at = None if found.at is None else _index(found.at, one.shape, order)
    # Where no two finite elements differ, there is a change and no number for it.
    is_finite = at is not None or not found.differing
    return Change(
        found.differing * times,
        found.other_bytes * times if before.dtype == after.dtype else 0,
        found.numel * times,
        found.largest if is_finite else None,
        found.squares * times if is_finite else None,
        found.reference * times,
        at,
        (found.nan[0] * times, found.nan[1] * times),
        (found.inf[0] * times, found.inf[1] * times),
        tolerance is not None and found.close,
    )


# --- the same elements with less to read ------------------------------------------------------------------------------


def _without_repeats(before: TensorRef, after: TensorRef) -> tuple[TensorRef, TensorRef, int]:
    """Both with dimensions that both only repeat (stride 0) once, and how many times they repeat."""
    repeated = [
        size > 1 and one == two == 0
        for size, one, two in zip(before.shape, before.stride, after.stride, strict=True)
    ]
    if not any(repeated):
        return before, after, 1
    shape = tuple(1 if again else size for size, again in zip(before.shape, repeated, strict=True))
    return _shaped(before, shape), _shaped(after, shape), before.numel // prod(shape)


def refuse_unfolded(ref: TensorRef) -> None:
    """Raise UnsupportedError for a view that unfolds to far more than there is to read."""
    if ref.nbytes > ref.storage.nbytes + _UNFOLDED:
        raise UnsupportedError(
            f"a view of {ref.storage.nbytes:,} bytes that unfolds to {ref.nbytes:,} is not read",
            hint="--exclude it, or --structure where there is one",
        )


def once(ref: TensorRef) -> tuple[TensorRef, int]:
    """A tensor with the dimensions that only repeat it (stride 0) once, and how many times they do."""
    one, _, times = _without_repeats(ref, ref)
    return one, times


def _shaped(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    numel = prod(shape)
    return ref._replace(shape=shape, numel=numel, nbytes=ref.dtype.nbytes(numel))


def _straightened(before: TensorRef, after: TensorRef) -> tuple[TensorRef, TensorRef, tuple[int, ...]]:
    """Both with their dimensions in the order in which they lie in memory, where that is one, and that order.

    Tensors that are channels-last, or transposed, on both sides are then read from first to last.
    """
    order = tuple(range(len(before.shape)))
    if before.stride == after.stride and not is_dense(before):
        lying = memory_order(before)
        one, two = permuted(before, lying), permuted(after, lying)
        if is_dense(one):
            return one, two, lying
    return before, after, order


# --- bytes ------------------------------------------------------------------------------------------------------------


class _Buffers(threading.local):
    """What each thread reads into, the same memory each time."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], bytearray] = {}

    def take(self, side: int, size: int) -> bytearray:
        """A buffer of exactly `size` bytes."""
        found = self._held.get((side, size))
        if found is None:
            if len(self._held) > 8:
                self._held.clear()
            found = self._held[side, size] = bytearray(size)
        return found


_BUFFERS = _Buffers()


def _same_bytes(before: TensorRef, after: TensorRef) -> bool:
    """Whether the elements are the same byte for byte."""
    if before.dtype.bits < 8:
        streams = [
            blocks(ref.storage.place, ref.extent[0], ref.extent[1] - ref.extent[0])  # type: ignore[arg-type]
            for ref in (before, after)
        ]
        return same_bytes(streams[0], streams[1])
    one, two = place_of(before), place_of(after)
    if (
        isinstance(one, Range)
        and isinstance(two, Range)
        and type(one.source) is File
        and type(two.source) is File
    ):
        return _same_ranges(one.source, one.offset, two.source, two.offset, before.nbytes)
    return same_bytes(elements(before), elements(after))


def _same_ranges(one: File, first: int, two: File, second: int, count: int) -> bool:
    if count >= BLOCK:
        left, right = _BUFFERS.take(0, BLOCK), _BUFFERS.take(1, BLOCK)
        views = memoryview(left), memoryview(right)
        for at in range(0, count - count % BLOCK, BLOCK):
            one.read_into(first + at, views[0])
            two.read_into(second + at, views[1])
            if left != right:  # compared whole: of views, Python compares item by item
                return False
    rest = count % BLOCK
    return not rest or one.read(first + count - rest, rest) == two.read(second + count - rest, rest)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _numbers(before: TensorRef, after: TensorRef, tolerance: Tolerance | None) -> measure.Difference:
    found = measure.Difference()
    for one, two in zip(counted(before, 2), counted(after, 3), strict=True):
        found.add(one, two, (before.dtype, after.dtype), tolerance)
    return found


def counted(ref: TensorRef, side: int) -> Iterator[bytes | memoryview]:
    """The elements of a tensor in blocks of ELEMENTS, each only good until the thread asks for the next of that `side`."""
    size = ELEMENTS * (ref.dtype.bits // 8)
    place = place_of(ref)
    if isinstance(place, Range) and type(place.source) is File:
        whole = memoryview(_BUFFERS.take(side, size)) if ref.nbytes >= size else memoryview(b"")
        for at in range(0, ref.nbytes, size):
            if ref.nbytes - at < size:
                yield place.source.read(place.offset + at, ref.nbytes - at)
            else:
                place.source.read_into(place.offset + at, whole)
                yield whole
        return
    rest = bytearray()
    for block in elements(ref):
        rest += block
        start = 0
        while len(rest) - start >= size:
            yield bytes(rest[start : start + size])
            start += size
        del rest[:start]
    if rest:
        yield bytes(rest)


def _index(at: int, shape: Sequence[int], order: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element, from its number in the order in which `shape` was read."""
    out = [0] * len(shape)
    for place, size in zip(reversed(order), reversed(shape), strict=True):
        at, out[place] = divmod(at, size)
    return tuple(out)


# --- what containers recorded -----------------------------------------------------------------------------------------


def recorded_same(before: Tensor, after: Tensor) -> bool | None:
    """Whether two tensors of one shape and dtype are the same by the recorded CRCs alone; None where they cannot tell.

    Reads nothing. A CRC is that of a whole storage: it tells of a tensor only where both look at theirs alike.
    """
    told = [_recorded_same(one, two) for one, two in zip(parts_of(before), parts_of(after), strict=False)]
    if len(parts_of(before)) != len(parts_of(after)) or None in told:
        return None
    return all(told)


def _recorded_same(one: TensorRef, two: TensorRef) -> bool | None:
    if not one.numel:
        return True
    alike = _view(one) == _view(two) and one.storage.nbytes == two.storage.nbytes
    if not alike or one.storage.crc is None or two.storage.crc is None:
        return None
    if one.storage.crc == two.storage.crc:
        return True
    return False if _whole(one) else None


def contradicted(before: Tensor, after: Tensor, *, same: bool) -> bool:
    """Whether the recorded CRCs say otherwise than the bytes, which were compared: then one of the files is damaged."""
    for one, two in zip(parts_of(before), parts_of(after), strict=False):
        told = _recorded_same(one, two) if _whole(one) and one.numel else None
        if told is not None and told != same and (same or len(parts_of(before)) == 1):
            return True
    return False


def _view(ref: TensorRef) -> tuple[object, ...]:
    place = ref.storage.place
    big = isinstance(place, Range) and place.big
    return ref.dtype, ref.shape, ref.stride, ref.offset, ref.conj, ref.neg, big


def _whole(ref: TensorRef) -> bool:
    """Whether a tensor looks at every byte of a storage that is all of its record."""
    return ref.extent == (0, ref.storage.nbytes) and ref.nbytes == ref.storage.nbytes and _is_all(ref.storage)


def _is_all(storage: Storage) -> bool:
    place = storage.place
    return isinstance(place, Range) and storage.nbytes == (
        place.size if place.inflated is None else place.inflated
    )


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """`work` of each item, in order, on two threads: one reads while the other compares."""
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))
