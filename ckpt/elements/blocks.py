"""The bytes of storages: read in blocks, inflated, swapped, gathered or cast, or copied by the kernel."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from ckpt.dtypes import DType
from ckpt.elements import boxes, cast, mean
from ckpt.elements import crc as crcs
from ckpt.elements.pieces import between, shown, size_of
from ckpt.errors import DamagedDataError
from ckpt.io.executor import in_order
from ckpt.io.far import foreseen_at_once
from ckpt.io.source import Source
from ckpt.rows import NamedTuple
from ckpt.tensors import (
    Boxes,
    Checksum,
    Computed,
    Derived,
    Made,
    Mean,
    Overlaid,
    Patched,
    Place,
    Range,
    Storage,
    TensorRef,
    noted,
    tensor_ref,
)
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.io.target import Sink

BLOCK = 1 << 20
"""Bytes of one read."""
SMALL = 64 << 10
"""Records up to this size are read in passing, because combining the CRCs of two costs more than computing one."""


class Tally(Protocol):
    """Is told how many finite elements a cast made infinite, and how many it made 0."""

    def __call__(self, overflowed: int, vanished: int = 0) -> None: ...


def blocks(
    place: Place, start: int = 0, count: int | None = None, tally: Tally | None = None
) -> Iterator[bytes]:
    """The bytes of a place, or `count` of them from byte `start`, in order. Raises UnreadableError."""
    if isinstance(place, Patched):
        yield from _patched(place, start, place.size if count is None else start + count, tally)
    elif isinstance(place, Boxes):
        ranges = boxes.as_ranges(place, place_of)
        size = place.size - start if count is None else count
        if isinstance(ranges, Boxes):
            yield from map(bytes, boxes.gathered(place, start, size, _fill))
        else:
            yield from blocks(ranges, start, size, tally)
    elif isinstance(place, Mean):
        yield from map(bytes, _mean(place, start, place.size - start if count is None else count, tally))
    elif isinstance(place, Derived):
        yield from map(bytes, _derived(place, start, place.size - start if count is None else count, tally))
    elif isinstance(place, (Computed, Overlaid)):
        stream = _made(place, tally) if isinstance(place, Computed) else _overlaid(place, tally)
        yield from _part(stream, start, place.size - start if count is None else count)
    elif place.inflated is None:
        end = place.size if count is None else start + count
        if start < end <= start + BLOCK:
            yield place.source.read(place.offset + start, end - start)
            return
        with foreseen_at_once(place.part(start, end).reads()):
            for offset in range(start, end, BLOCK):
                yield place.source.read(place.offset + offset, min(BLOCK, end - offset))
    else:
        yield from _part(_inflated(place), start, place.inflated - start if count is None else count)


def slice_of(ref: TensorRef, first: int, last: int) -> TensorRef:
    """The elements `first` to `last` of a contiguous tensor. The whole tensor is returned as it is."""
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


def _fill(ref: TensorRef, first: int, last: int, into: memoryview) -> None:
    """Fill a buffer with the elements `first` to `last` of a tensor in the order of its shape."""
    if not is_dense(ref):
        width = ref.dtype.bits // 8
        into[:] = memoryview(_gathered(ref))[first * width : last * width]
        return
    part = slice_of(ref, first, last)
    place = place_of(part)
    if isinstance(place, Range):
        place.source.read_into(place.offset, into)
        return
    position = 0
    for block in elements(part):
        into[position : position + len(block)] = block
        position += len(block)


@lru_cache(maxsize=1)
def _gathered(ref: TensorRef) -> bytes:
    """The elements of a part with other strides, gathered once for all that is read of it."""
    return b"".join(elements(ref))


def _patched(place: Patched, start: int, end: int, tally: Tally | None) -> Iterator[bytes]:
    """Bytes `start` to `end` of a patched place."""
    for piece, begin, count in shown(place, start, end):
        yield from blocks(piece, begin, count, tally)


def _overlaid(place: Overlaid, tally: Tally | None) -> Iterator[bytes]:
    """The elements of a tensor with a block of another tensor. Both are held in memory."""
    base, over = b"".join(elements(place.of, tally)), b"".join(elements(place.over, tally))
    if place.over.dtype != place.of.dtype:
        over, overflowed = cast.cast(over, place.over.dtype, place.of.dtype)
        if overflowed and tally is not None:
            tally(overflowed)
    yield cast.overlaid(base, place.of.shape, over, place.over.shape, place.of.dtype)


Passed = Callable[[Checksum, int], None]
"""Is told of a record whose bytes went by whole, and of their CRC."""


class _Averaged(NamedTuple):
    """A span of a mean: its elements as bytes, how many overflowed, and the CRC of what was read of each tensor."""

    span: mean.Span
    data: memoryview
    overflowed: int
    sums: list[int]


def _mean(
    place: Mean, start: int, count: int, tally: Tally | None, passed: Passed | None = None
) -> Iterator[memoryview]:
    """`count` bytes of a mean from byte `start`, in blocks that are valid until the next one.

    Threads read and add its spans. `passed` is told of each record that was read whole on the way.
    """
    width = place.dtype.bits // 8
    first, last = start // width, -(-(start + count) // width)
    is_cut = all(map(can_cut, place.of))
    is_whole = is_cut and passed is not None and count == place.size
    checksums = [recorded_of(place_of(ref), 0, ref.nbytes) if is_whole else None for ref in place.of]
    if is_cut:
        summed = [checksum is not None for checksum in checksums]
        spans = [(begin, min(begin + mean.ELEMENTS, last)) for begin in range(first, last, mean.ELEMENTS)]
        parts = in_order(partial(_mean_of, place, summed), spans)
    else:
        parts = _mean_in_turn(place, first, last)
    totals: list[int] = []
    begin = first * width
    for part in parts:
        if part.overflowed and tally is not None:
            tally(part.overflowed)
        sizes = [len(part.data) // width * (ref.dtype.bits // 8) for ref in place.of]
        totals = list(map(crcs.combined, totals, part.sums, sizes)) if totals else part.sums
        yield part.data[max(start - begin, 0) : start + count - begin]
        begin += len(part.data)
        part.span.close()
    for checksum, crc in zip(checksums, totals, strict=False):
        if checksum is not None and passed is not None:
            passed(checksum, crc)


def _mean_of(place: Mean, summed: Sequence[bool], elements: tuple[int, int]) -> _Averaged:
    """A span of a mean, with the CRC of what was read of the tensors that are `summed`, and 0 for the others."""
    first, last = elements
    span = mean.Span(last - first, place.dtype)
    sums: list[int] = []
    for ref, share, is_summed in zip(place.of, place.shares, summed, strict=True):
        block = span.block((last - first) * (ref.dtype.bits // 8))
        _fill(ref, first, last, block)
        sums.append(zlib.crc32(block) if is_summed else 0)
        span.add(block, ref.dtype, share)
    return _Averaged(span, *span.rounded(), sums)


def _mean_in_turn(place: Mean, first: int, last: int) -> Iterator[_Averaged]:
    """The spans of a mean of tensors that are read from their beginning only."""
    streams = [_in_steps(ref, first, last, mean.ELEMENTS) for ref in place.of]
    for begin in range(first, last, mean.ELEMENTS):
        span = mean.Span(min(mean.ELEMENTS, last - begin), place.dtype)
        for ref, share, stream in zip(place.of, place.shares, streams, strict=True):
            span.add(next(stream), ref.dtype, share)
        yield _Averaged(span, *span.rounded(), [])


def _in_steps(ref: TensorRef, first: int, last: int, count: int) -> Iterator[bytes]:
    """The elements `first` to `last` of a tensor, in steps of `count` elements."""
    width = ref.dtype.bits // 8
    step = count * width
    rest = bytearray()
    for block in _part(elements(ref), first * width, (last - first) * width):
        rest += block
        while len(rest) >= step:
            yield bytes(memoryview(rest)[:step])
            del rest[:step]
    if rest:
        yield bytes(rest)


def _derived(
    place: Derived, start: int, count: int, tally: Tally | None, passed: Passed | None = None
) -> Iterator[memoryview]:
    """`count` bytes of a derived place from byte `start`, in blocks that are valid until the next one.

    Threads read and change its spans. `passed` is told of the record of the tensor that is changed, where it was read whole.
    """
    width, read = place.dtype.bits // 8, place.of.dtype.bits // 8
    step = place.step
    first = start // width // step * step
    last = min(-(-(start + count) // width // step) * step, place.of.numel)
    spans = [(begin, min(begin + step, last)) for begin in range(first, last, step)]
    is_whole = passed is not None and count == place.size
    checksum = recorded_of(place_of(place.of), 0, place.of.nbytes) if is_whole else None
    if can_cut(place.of):
        parts = in_order(partial(_derived_of, place, checksum is not None), spans)
    else:
        parts = _derived_in_turn(place, spans)
        checksum = None
    total = 0
    begin = first * width
    for made, crc, held in parts:
        if made.overflowed and tally is not None:
            tally(made.overflowed)
        total = crcs.combined(total, crc, len(made.data) // width * read) if begin else crc
        yield made.data[max(start - begin, 0) : start + count - begin]
        begin += len(made.data)
        made.close()
        _IDLE.append(held)
    if checksum is not None and passed is not None:
        passed(checksum, total)


_IDLE: list[bytearray] = []
"""Memory of spans of derived places that no span uses: new memory costs more than reading into it."""


def _taken(size: int) -> bytearray:
    """Memory of at least `size` bytes."""
    try:
        held = _IDLE.pop()
    except IndexError:
        return bytearray(size)
    return held if len(held) >= size else bytearray(size)


def _derived_of(place: Derived, is_summed: bool, elements: tuple[int, int]) -> tuple[Made, int, bytearray]:
    """A span of a derived place, and the CRC of what was read of the tensor that is changed, or 0 where it is not summed.

    The span may lie in the memory that it was read into, which comes with it.
    """
    first, last = elements
    size = (last - first) * (place.of.dtype.bits // 8)
    held = _taken(size)
    block = memoryview(held)[:size]
    _fill(place.of, first, last, block)
    crc = zlib.crc32(block) if is_summed else 0
    return place.change(block, first), crc, held


def _derived_in_turn(
    place: Derived, spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[Made, int, bytearray]]:
    """The spans of a derived place of a tensor that is read from its beginning only."""
    if not spans:
        return
    stream = _in_steps(place.of, spans[0][0], spans[-1][1], place.step)
    for (first, _), block in zip(spans, stream, strict=True):
        held = bytearray(block)
        yield place.change(memoryview(held), first), 0, held


def _part(whole: Iterator[bytes], start: int, count: int) -> Iterator[bytes]:
    for block in whole:
        if count <= 0:
            return
        if start >= len(block):
            start -= len(block)
            continue
        piece = block[start : start + count] if start or count < len(block) else block
        start = 0
        count -= len(piece)
        yield piece


def _inflated(place: Range) -> Iterator[bytes]:
    """The bytes of a deflated record. Their number must be the one in the directory."""
    machine = zlib.decompressobj(-15)
    remaining = place.inflated or 0
    try:
        for data in blocks(place._replace(inflated=None)):
            while data and not machine.eof:
                inflated = machine.decompress(data, BLOCK)
                remaining -= len(inflated)
                if remaining < 0:
                    raise DamagedDataError("a deflated record holds more than the archive records")
                if inflated:
                    yield inflated
                data = machine.unconsumed_tail
    except zlib.error:
        raise DamagedDataError("the deflate data of a record is damaged") from None
    if remaining or not machine.eof:
        raise DamagedDataError("a deflated record holds less than the archive records")


_CACHED = 64 << 20


def kept(place: Range) -> bytes | None:
    """Return a deflated record, inflated once for the several views of it, or None for a large one."""
    return None if place.inflated is None or place.inflated > _CACHED else _whole(place)


@lru_cache(maxsize=1)
def _whole(place: Range) -> bytes:
    return b"".join(_inflated(place))


def _read(place: Place, start: int, count: int, tally: Tally | None) -> Iterator[bytes]:
    """`blocks` for a tensor, which may share its storage with others."""
    data = kept(place) if isinstance(place, Range) else None
    if data is not None:
        yield data[start : start + count]
    else:
        yield from blocks(place, start, count, tally)


def elements(ref: TensorRef, tally: Tally | None = None) -> Iterator[bytes]:
    """The elements of a tensor in the order of its shape, little-endian, with conjugation and negation resolved.

    `tally` is told how many finite elements a cast of the storage made infinite.
    """
    if not ref.numel:
        return
    place = ref.storage.place
    assert place is not None
    first, last = ref.extent
    width = ref.dtype.bits // 8
    big = isinstance(place, Range) and place.big
    if is_dense(ref):
        stream = _read(place, first, last - first, tally)
        if big or ref.conj or ref.neg:
            stream = _whole_elements(stream, max(width, 1))
    else:
        data = bytearray(last - first)
        position = 0
        for block in _read(place, first, last - first, tally):
            data[position : position + len(block)] = block
            position += len(block)
        stream = cast.gathered(data, ref.dtype, ref.shape, ref.stride)
    for block in stream:
        if big:
            block = cast.swapped(block, ref.dtype)
        if ref.conj or ref.neg:
            block = cast.resolved(block, ref.dtype, conj=ref.conj, neg=ref.neg)
        yield block


def _whole_elements(stream: Iterator[bytes], width: int) -> Iterator[bytes]:
    """The same bytes in blocks of whole elements."""
    rest = b""
    for block in stream:
        block = rest + block if rest else block
        cut = len(block) - len(block) % width
        rest = block[cut:]
        yield block[:cut]


def same_bytes(first: Iterator[bytes], second: Iterator[bytes]) -> bool:
    """Tell whether two streams hold the same bytes, in blocks of any size. Stops at the first difference."""
    first, second = filter(None, first), filter(None, second)
    first_rest = second_rest = b""
    while True:
        first_rest = first_rest or next(first, b"")
        second_rest = second_rest or next(second, b"")
        if not first_rest or not second_rest:
            return first_rest == second_rest
        count = min(len(first_rest), len(second_rest))
        if first_rest[:count] != second_rest[:count]:
            return False
        first_rest, second_rest = first_rest[count:], second_rest[count:]


def can_cut(ref: TensorRef) -> bool:
    """Tell whether any span of the elements can be read by itself, as bytes."""
    if ref.dtype.bits < 8 or not is_dense(ref):
        return False
    return isinstance(ref.storage.place, Boxes) or isinstance(place_of(ref), Range)


def is_dense(ref: TensorRef) -> bool:
    """Tell whether the elements are contiguous in the order of the shape."""
    step = 1
    for size, stride in zip(reversed(ref.shape), reversed(ref.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_permuted(ref: TensorRef) -> bool:
    """Tell whether the elements are contiguous in some order of the dimensions, so that none is seen twice."""
    return is_dense(permuted(ref, memory_order(ref)))


def memory_order(ref: TensorRef) -> tuple[int, ...]:
    """The dimensions in the order of memory, the outermost first."""
    return tuple(
        sorted(range(len(ref.shape)), key=lambda place: (-ref.stride[place], -ref.shape[place], place))
    )


def permuted(ref: TensorRef, order: tuple[int, ...]) -> TensorRef:
    """The same elements with the dimensions in another order."""
    return ref._replace(
        shape=tuple(ref.shape[place] for place in order), stride=tuple(ref.stride[place] for place in order)
    )


def _made(place: Computed, tally: Tally | None) -> Iterator[bytes]:
    if place.dtype == place.of.dtype:
        yield from elements(place.of, tally)
        return
    for block in _whole_elements(elements(place.of, tally), max(1, place.of.dtype.bits // 8)):
        converted, overflowed, vanished = cast.counted(block, place.of.dtype, place.dtype)
        if (overflowed or vanished) and tally is not None:
            tally(overflowed, vanished)
        yield converted


def place_of(ref: TensorRef, dtype: DType | None = None) -> Place:
    """Return the place of the elements of a tensor, in the order of its shape.

    It is a range, or consists of ranges, if the elements are contiguous as stored. Else it is computed.
    """
    first, last = ref.extent
    place = ref.storage.place
    same = dtype in (None, ref.dtype) and not (ref.conj or ref.neg) and is_dense(ref)
    if isinstance(place, Boxes) and ref.numel:
        place = boxes.as_ranges(place, place_of)
        if same and not isinstance(place, Boxes):
            return between(place, first, last)
        if same and _is_all(ref):
            return place
    if same and isinstance(place, Patched) and _is_all(ref):
        return place
    if (
        same
        and isinstance(place, Range)
        and place.inflated is None
        and not (place.big and ref.dtype.bits > 8)
    ):
        recorded = place.recorded
        if recorded is None and ref.storage.crc is not None:
            recorded = Checksum(place, ref.storage.crc)
        return Range(place.source, place.offset + first, last - first, None, False, recorded)
    return Computed(ref, dtype or ref.dtype)


def _is_all(ref: TensorRef) -> bool:
    """Tell whether the bytes of a storage are the elements of a tensor, in the order of its shape."""
    return not (ref.conj or ref.neg) and is_dense(ref) and ref.extent == (0, ref.storage.nbytes)


def is_big(storage: Storage) -> bool:
    """Tell whether the bytes of a storage are big-endian and its elements have more than one byte."""
    place = storage.place
    return isinstance(place, Range) and place.big and (storage.dtype is None or storage.dtype.bits > 8)


def little(storage: Storage) -> Storage:
    """A storage with little-endian bytes. An untyped storage stays as it is, because torch never swaps it."""
    if not is_big(storage) or storage.dtype is None:
        return storage
    count = storage.nbytes * 8 // storage.dtype.bits
    whole = tensor_ref(storage, storage.dtype, (count,), (1,), 0)
    return storage._replace(place=Computed(whole, storage.dtype), crc=None)


def pour(storage: Storage, sink: Sink, *, crc: bool) -> int:
    """Write the bytes of a storage, and return their CRC-32 if `crc` is set, else 0.

    The kernel copies ranges. A record that is copied whole keeps its recorded CRC, and the CRCs of several in
    a row are combined. All other bytes get a new CRC, or none: the audit of the sink is told of them, and of
    records that pass here whole and do not match. Without an audit these raise DamagedDataError. Raises
    UnreadableError.
    """
    place = noted(storage)
    assert place is not None
    if isinstance(place, Boxes) and storage.nbytes:
        place = boxes.as_ranges(place, place_of)
    if isinstance(place, Computed) and place.dtype == place.of.dtype and _is_all(place.of):
        whole = place.of.storage
        place = place if is_big(whole) or whole.place is None else noted(whole) or place
    pieces = shown(place, 0, storage.nbytes) if isinstance(place, Patched) else [(place, 0, storage.nbytes)]
    total = 0
    for piece, begin, count in pieces:
        recorded = recorded_of(piece, begin, count)
        if isinstance(piece, Range) and piece.inflated is None and piece.source.status is not None:
            if not crc or (recorded is not None and (count > SMALL or len(pieces) == 1)):
                sink.copy(piece.source, piece.offset + begin, count)
                if crc and recorded is not None:
                    total = crcs.combined(total, recorded.crc, count) if total else recorded.crc
                elif sink.audit is not None:
                    sink.audit.check(piece)
                continue
        own = 0
        passed = None if sink.audit is None else sink.audit.passed
        for block in _passing(piece, begin, count, sink.tally, passed):
            if recorded is not None:
                own = zlib.crc32(block, own)
            elif crc:
                total = zlib.crc32(block, total)
            sink.write(block)
        if recorded is not None:
            _passed(recorded, own, storage, sink)
            total = crcs.combined(total, recorded.crc, count) if total else recorded.crc
        elif sink.audit is not None:
            sink.audit.check(piece)
    return total if crc else 0


def recorded_of(place: Place, begin: int, count: int) -> Checksum | None:
    """The recorded checksum of exactly these bytes of a place, if there is one."""
    if not isinstance(place, Range) or place.recorded is None:
        return None
    whole = place.recorded.place
    is_whole = (place.offset, place.size, place.inflated) == (whole.offset, whole.size, whole.inflated)
    return place.recorded if is_whole and begin == 0 and count == size_of(whole) else None


def _passed(checksum: Checksum, crc: int, storage: Storage, sink: Sink) -> None:
    """Note that a record passed whole, with this CRC. Raises DamagedDataError where nobody keeps account."""
    if sink.audit is not None:
        sink.audit.passed(checksum, crc)
    elif crc != checksum.crc:
        raise DamagedDataError(
            f"storage {show(storage.id, 80)} is damaged: its bytes do not match the recorded checksum"
        )


def _passing(
    place: Place, start: int, count: int, tally: Tally, passed: Passed | None
) -> Iterator[bytes | memoryview]:
    """The same bytes as `blocks`. A block may be valid until the next one only. `passed` is told what a mean reads whole."""
    if isinstance(place, Boxes):
        place = boxes.as_ranges(place, place_of)
    if isinstance(place, Boxes):
        yield from boxes.gathered(place, start, count, _fill)
    elif isinstance(place, Patched):
        for piece, begin, size in shown(place, start, start + count):
            yield from _passing(piece, begin, size, tally, passed)
    elif isinstance(place, Mean):
        yield from _mean(place, start, count, tally, passed)
    elif isinstance(place, Derived):
        yield from _derived(place, start, count, tally, passed)
    elif isinstance(place, Range) and place.inflated is None and count >= BLOCK:
        held = memoryview(bytearray(BLOCK))
        for position in range(0, count, BLOCK):
            block = held[: min(BLOCK, count - position)]
            place.source.read_into(place.offset + start + position, block)
            yield block
    else:
        yield from blocks(place, start, count, tally)


class _Buffers(threading.local):
    """The buffers of each thread. The same memory is used each time."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], bytearray] = {}

    def take(self, side: int, size: int) -> bytearray:
        """A buffer of exactly `size` bytes."""
        held = self._held.get((side, size))
        if held is None:
            if len(self._held) > 8:
                self._held.clear()
            held = self._held[side, size] = bytearray(size)
        return held


_BUFFERS = _Buffers()


def buffer(side: int, size: int) -> bytearray:
    """A buffer of exactly `size` bytes. Each thread has one per `side` and uses the same memory each time."""
    return _BUFFERS.take(side, size)


def same_ranges(source: Source, first: int, other: Source, second: int, count: int) -> bool:
    """Tell whether `count` bytes from `first` in one source equal `count` bytes from `second` in the other.

    Stops early.
    """
    if count >= BLOCK:
        first_buffer, second_buffer = buffer(0, BLOCK), buffer(1, BLOCK)
        views = memoryview(first_buffer), memoryview(second_buffer)
        for position in range(0, count - count % BLOCK, BLOCK):
            source.read_into(first + position, views[0])
            other.read_into(second + position, views[1])
            # whole buffers, because Python compares memoryviews item by item
            if first_buffer != second_buffer:
                return False
    rest = count % BLOCK
    return not rest or source.read(first + count - rest, rest) == other.read(second + count - rest, rest)
