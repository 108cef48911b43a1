"""The elements of a tensor in the least that has to be read: once each, in spans that are tasks, in blocks to compute with."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ckpt.elements.blocks import buffer, elements, is_dense, place_of
from ckpt.errors import UnsupportedError
from ckpt.io import executor
from ckpt.tensors import Range, TensorRef

ELEMENTS = 1 << 17
"""Elements that are computed with at once: large enough that threads do not wait for each other."""
UNFOLDED = 1 << 36
"""Bytes to which a tensor may unfold beyond its storage (strides that repeat elements) and still be read."""


def cuts(*refs: TensorRef) -> list[tuple[int, int]]:
    """The (first, last) elements of the tasks that tensors of one shape make. They depend on the tensors alone."""
    numel = refs[0].numel
    if not all(map(_can_cut, refs)):
        return [(0, numel)]
    return executor.spans(numel, max(ref.dtype.bits for ref in refs) // 8, ELEMENTS)


# --- the same elements with less to read ------------------------------------------------------------------------------


def without_repeats(before: TensorRef, after: TensorRef) -> tuple[TensorRef, TensorRef, int]:
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
    if ref.nbytes > ref.storage.nbytes + UNFOLDED:
        raise UnsupportedError(
            f"a view of {ref.storage.nbytes:,} bytes that unfolds to {ref.nbytes:,} is not read",
            hint="--exclude it, or --structure where there is one",
        )


def once(ref: TensorRef) -> tuple[TensorRef, int]:
    """A tensor with the dimensions that only repeat it (stride 0) once, and how many times they do."""
    one, _, times = without_repeats(ref, ref)
    return one, times


def _shaped(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    numel = prod(shape)
    return ref._replace(shape=shape, numel=numel, nbytes=ref.dtype.nbytes(numel))


def _can_cut(ref: TensorRef) -> bool:
    """Whether any span of the elements is a range of bytes."""
    return ref.dtype.bits >= 8 and is_dense(ref) and isinstance(place_of(ref), Range)


def slice_of(ref: TensorRef, first: int, last: int) -> TensorRef:
    """The elements `first` to `last` of a tensor whose elements lie side by side; all of it as it is."""
    if (first, last) == (0, ref.numel):
        return ref
    count, width = last - first, ref.dtype.bits // 8
    begin = ref.extent[0] + first * width
    return ref._replace(
        shape=(count,),
        stride=(1,),
        offset=ref.offset + first,
        numel=count,
        nbytes=count * width,
        extent=(begin, begin + count * width),
    )


# --- elements to compute with -----------------------------------------------------------------------------------------


def numbered_blocks(ref: TensorRef, side: int) -> Iterator[bytes | memoryview]:
    """The elements of a tensor in blocks of ELEMENTS, each only good until the thread asks for the next of that `side`."""
    size = ELEMENTS * (ref.dtype.bits // 8)
    place = place_of(ref)
    if isinstance(place, Range):
        whole = memoryview(buffer(side, size)) if ref.nbytes >= size else memoryview(b"")
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
