"""Reading only what is needed of a tensor: each element once, in spans for tasks and
blocks for computing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from ckpt.bytes import executor
from ckpt.elements.blocks import elements, is_dense, thread_buffer
from ckpt.elements.computed import can_cut, place_of
from ckpt.model.errors import UnsupportedError
from ckpt.model.places import Range
from ckpt.model.tensors import Tensor, TensorRef, parts_of

ELEMENTS = 1 << 16
"""Elements per step of computing: few enough for the cache, and enough that threads do
not wait for each other.
"""
UNFOLDED = 1 << 36
"""The most bytes beyond its storage of a tensor with repeating strides that is still
read.
"""

_SHOWN = 1 << 34
_TIMES = 8
"""A job reads at most so many bytes, and so many times the storages of its tensors.

Ties are a few names of one tensor. Views that repeat or overlap by the hundred make
hours of a small file.
"""


def cut_spans(*refs: TensorRef) -> list[tuple[int, int]]:
    """The (first, last) elements of each task for tensors of one shape. They depend on
    the tensors alone.
    """
    numel = refs[0].numel
    width = max(ref.dtype.bits for ref in refs) // 8
    spans = executor.split_spans(numel, width, ELEMENTS)
    if len(spans) == 1 or all(map(can_cut, refs)):
        return spans
    # Every task would read all that lies before its span.
    return [(0, numel)]


# --- the same elements with fewer reads -----------------------------------------------


def without_repeats(
    before: TensorRef, after: TensorRef
) -> tuple[TensorRef, TensorRef, int]:
    """Both tensors without the repetitions (stride 0) that they share, and the number
    of repetitions.
    """
    dims = zip(before.shape, before.stride, after.stride, strict=True)
    is_repeated = [size > 1 and one == two == 0 for size, one, two in dims]
    # A tensor without elements repeats none.
    if not any(is_repeated) or not before.numel:
        return before, after, 1
    shape = tuple(
        1 if again else size
        for size, again in zip(before.shape, is_repeated, strict=True)
    )
    times = before.numel // prod(shape)
    return _with_shape(before, shape), _with_shape(after, shape), times


def refuse_unfolded(ref: TensorRef) -> None:
    """Raise UnsupportedError for a view that expands far beyond its storage."""
    if ref.nbytes > ref.storage.nbytes + UNFOLDED:
        raise UnsupportedError(
            (
                f"a view of {ref.storage.nbytes:,} bytes expands to {ref.nbytes:,} "
                "bytes, too many to read"
            ),
            hint="leave it out with --exclude, or use --structure where it exists",
        )


def refuse_overlaps(tensors: Iterable[Tensor], nbytes: int) -> None:
    """Raise UnsupportedError where a job would read `nbytes` bytes of tensors, far more
    than their storages have.
    """
    if nbytes <= _SHOWN:
        return
    storages = {part.storage for tensor in tensors for part in parts_of(tensor)}
    stored = sum(storage.nbytes for storage in storages)
    if nbytes > _SHOWN + _TIMES * stored:
        raise UnsupportedError(
            f"its views show {nbytes:,} bytes of storages of {stored:,}, too many to "
            "read",
            hint="choose some with --include",
        )


def drop_repeats(ref: TensorRef) -> tuple[TensorRef, int]:
    """A tensor without its repetitions (stride 0), and the number of repetitions."""
    tensor, _, times = without_repeats(ref, ref)
    return tensor, times


def _with_shape(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    numel = prod(shape)
    return ref._replace(shape=shape, numel=numel, nbytes=ref.dtype.nbytes(numel))


# --- elements to compute with ---------------------------------------------------------


def numbered_blocks(ref: TensorRef, side: int) -> Iterator[bytes | memoryview]:
    """The elements of a tensor in blocks of ELEMENTS. Each is valid until the thread's
    next block of that `side`.
    """
    # Blocks begin at the same elements for every kind of place, so that sums of floats,
    # which depend on the order of adding, are the same for all.
    size = ELEMENTS * (ref.dtype.bits // 8)
    run = place_of(ref).run
    if run is not None:
        yield from _blocks_of_range(run, ref.nbytes, size, side)
        return
    rest = bytearray()
    for block in _stream_elements(ref):
        # A whole block goes on as it is: a copy would cost as much as a computation.
        view = memoryview(block)
        if rest:
            wanted = size - len(rest)
            rest += view[:wanted]
            view = view[wanted:]
            if len(rest) == size:
                yield memoryview(rest)
                rest = bytearray()
        cut = len(view) // size * size
        for start in range(0, cut, size):
            yield view[start : start + size]
        rest += view[cut:]
    if rest:
        yield memoryview(rest)


def _blocks_of_range(
    run: Range, nbytes: int, size: int, side: int
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a range in blocks of `size`, which are read into one
    buffer.
    """
    whole = memoryview(b"")
    if nbytes >= size:
        whole = memoryview(thread_buffer(side, size))
    for position in range(0, nbytes, size):
        left = nbytes - position
        if left < size:
            yield run.source.read(run.offset + position, left)
        else:
            run.source.read_into(run.offset + position, whole)
            yield whole


def _stream_elements(ref: TensorRef) -> Iterator[bytes | memoryview]:
    """Yield the elements of a tensor as `elements` does, in blocks that may be valid
    until the next one only.
    """
    place = ref.storage.place
    is_plain = is_dense(ref) and not (ref.conj or ref.neg)
    if place is None or place.big or not is_plain or place.kept_bytes() is not None:
        return elements(ref)
    first, last = ref.extent
    return place.stream_blocks(first, last - first)
