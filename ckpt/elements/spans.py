"""Reading only what is needed of a tensor: each element once, in spans for tasks and
blocks for computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ckpt.bytes import executor
from ckpt.elements.blocks import elements, is_dense, thread_buffer
from ckpt.elements.computed import can_cut, place_of
from ckpt.model.errors import UnsupportedError
from ckpt.model.tensors import TensorRef

ELEMENTS = 1 << 16
"""Elements per step of computing: few enough for the cache, and enough that threads do
not wait for each other.
"""
UNFOLDED = 1 << 36
"""The most bytes beyond its storage of a tensor with repeating strides that is still
read.
"""


def cut_spans(*refs: TensorRef) -> list[tuple[int, int]]:
    """The (first, last) elements of each task for tensors of one shape. They depend on
    the tensors alone.
    """
    numel = refs[0].numel
    spans = executor.split_spans(
        numel, max(ref.dtype.bits for ref in refs) // 8, ELEMENTS
    )
    return spans if len(spans) == 1 or all(map(can_cut, refs)) else [(0, numel)]


# --- the same elements with fewer reads -----------------------------------------------


def without_repeats(
    before: TensorRef, after: TensorRef
) -> tuple[TensorRef, TensorRef, int]:
    """Both tensors without the repetitions (stride 0) that they share, and the number
    of repetitions.
    """
    repeated = [
        size > 1 and first == second == 0
        for size, first, second in zip(
            before.shape, before.stride, after.stride, strict=True
        )
    ]
    if not any(repeated):
        return before, after, 1
    shape = tuple(
        1 if again else size for size, again in zip(before.shape, repeated, strict=True)
    )
    return (
        _with_shape(before, shape),
        _with_shape(after, shape),
        before.numel // prod(shape),
    )


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
    size = ELEMENTS * (ref.dtype.bits // 8)
    run = place_of(ref).run
    if run is not None:
        whole = (
            memoryview(thread_buffer(side, size))
            if ref.nbytes >= size
            else memoryview(b"")
        )
        for position in range(0, ref.nbytes, size):
            if ref.nbytes - position < size:
                yield run.source.read(run.offset + position, ref.nbytes - position)
            else:
                run.source.read_into(run.offset + position, whole)
                yield whole
        return
    rest = bytearray()
    for block in _stream_elements(ref):
        # What is whole goes on as it is: each copy would cost as much as a computation.
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
