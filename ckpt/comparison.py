"""Comparing tensors: their bytes first, without numpy; numbers only of what differs. Reads in blocks, on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple, TypeVar

from ckpt import kernels
from ckpt.checkpoint import Range, Tensor, TensorRef, parts_of
from ckpt.contents import blocks, elements, place_of, same_bytes
from ckpt.files import File

BLOCK = 1 << 20
"""Bytes of each side that are compared at once."""
THREADS = 2


class Change(NamedTuple):
    """What changed in a tensor whose shape stayed, over its elements in the order of the shape.

    `max_abs` is over finite elements, `at` its index; `rms` that of the difference, `rel_l2` its norm over that
    of the tensor before. None where there is nothing to compute with.
    """

    differing: int
    other_bytes: int
    numel: int
    max_abs: float | None
    rms: float | None
    rel_l2: float | None
    at: tuple[int, ...] | None
    nan: tuple[int, int]
    inf: tuple[int, int]
    close: bool = False
    """Whether all elements agree within the tolerance that was asked for."""


Tolerance = tuple[float, float]
"""(absolute, relative), as torch.testing.assert_close has them."""


def compare(
    before: Tensor, after: Tensor, tolerance: Callable[[str], Tolerance] | None = None
) -> Change | None:
    """What changed between two tensors of one shape, None when every byte is the same.

    Tensors without data (on meta) are the same. Raises UnreadableError when a file ends before.
    """
    pairs = list(zip(parts_of(before), parts_of(after), strict=False))
    same_parts = len(parts_of(before)) == len(parts_of(after)) and all(
        one.shape == two.shape for one, two in pairs
    )
    if not same_parts:
        return Change(before.numel, 0, before.numel, None, None, None, None, (0, 0), (0, 0))
    changes = [change for one, two in pairs if (change := _compare(one, two, tolerance)) is not None]
    return None if not changes else max(changes, key=lambda change: (change.differing, change.numel))


def _compare(
    before: TensorRef, after: TensorRef, tolerance: Callable[[str], Tolerance] | None
) -> Change | None:
    if before.storage.place is None or after.storage.place is None or not before.numel:
        return None
    if before.dtype == after.dtype and _same_bytes(before, after):
        return None
    if before.dtype.bits < 8 or after.dtype.bits < 8:
        return Change(before.numel, 0, before.numel, None, None, None, None, (0, 0), (0, 0))
    return _numbers(before, after, None if tolerance is None else tolerance(after.dtype.name))


def _same_bytes(before: TensorRef, after: TensorRef) -> bool:
    """Whether the elements are the same byte for byte."""
    if before.dtype.bits < 8:
        streams = [
            blocks(ref.storage.place, ref.extent[0], ref.extent[1] - ref.extent[0])  # type: ignore[arg-type]
            for ref in (before, after)
        ]
        return same_bytes(streams[0], streams[1])
    one, two = place_of(before), place_of(after)
    plain = isinstance(one, Range) and isinstance(two, Range)
    if plain and type(one.source) is File and type(two.source) is File:  # type: ignore[union-attr]
        return _same_ranges(one.source, one.offset, two.source, two.offset, before.nbytes)  # type: ignore[union-attr]
    return same_bytes(elements(before), elements(after))


def _same_ranges(one: File, first: int, two: File, second: int, count: int) -> bool:
    size = min(BLOCK, count)
    left, right = bytearray(size), bytearray(size)  # compared whole: of views, Python compares item by item
    views = memoryview(left), memoryview(right)
    for at in range(0, count - count % size, size):
        one.read_into(first + at, views[0])
        two.read_into(second + at, views[1])
        if left != right:
            return False
    rest = count % size
    return not rest or one.read(first + count - rest, rest) == two.read(second + count - rest, rest)


def _numbers(before: TensorRef, after: TensorRef, tolerance: Tolerance | None) -> Change:
    found = kernels.Difference()
    for one, two in zip(_counted(before), _counted(after), strict=True):
        found.add(one, two, (before.dtype, after.dtype), tolerance)
    changed = found.differing > 0
    return Change(
        found.differing,
        found.other_bytes if before.dtype == after.dtype else 0,
        found.numel,
        found.largest if changed else 0.0,
        sqrt(found.squares / found.numel) if found.numel else 0.0,
        sqrt(found.squares / found.reference) if found.reference else None if changed else 0.0,
        None if found.at is None else _index(found.at, before.shape),
        (found.nan[0], found.nan[1]),
        (found.inf[0], found.inf[1]),
        tolerance is not None and found.close,
    )


_ELEMENTS = 1 << 16


def _counted(ref: TensorRef) -> Iterator[bytes | memoryview]:
    """The elements of a tensor in blocks of `_ELEMENTS`, each only good until the next is asked for."""
    size = _ELEMENTS * (ref.dtype.bits // 8)
    place = place_of(ref)
    if isinstance(place, Range) and type(place.source) is File:
        whole = memoryview(bytearray(min(size, ref.nbytes)))
        for at in range(0, ref.nbytes, size):
            part = whole[: min(size, ref.nbytes - at)]
            place.source.read_into(place.offset + at, part)
            yield part
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


def _index(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    out: list[int] = []
    for size in reversed(shape):
        at, place = divmod(at, size)
        out.append(place)
    return tuple(reversed(out))


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """`work` of each item, in order, on two threads: one reads while the other compares."""
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))
