"""The elements of tensors as a stream of blocks, and the bytes of storages on their way
into a file.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpt.bytes.source import Source
from ckpt.elements import cast
from ckpt.elements import crc as crcs
from ckpt.model.errors import DamagedDataError
from ckpt.model.places import BLOCK, Checksum, Place, Tally
from ckpt.model.tensors import Storage, TensorRef
from ckpt.model.text import show

if TYPE_CHECKING:
    from ckpt.bytes.target import Sink

SMALL = 64 << 10
"""Records up to this size are read in passing, because combining the CRCs of two costs
more than computing one.
"""


def slice_of(ref: TensorRef, first: int, last: int) -> TensorRef:
    """The elements `first` to `last` of a contiguous tensor. The whole tensor is
    returned as it is.
    """
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


def _read_part(
    place: Place, start: int, count: int, tally: Tally | None
) -> Iterator[bytes]:
    """`count` bytes of a place for one of the tensors that may share it."""
    # Deflated bytes are kept: each tensor would inflate all of them again.
    data = place.kept_bytes()
    if data is None:
        return place.read_blocks(start, count, tally)
    return iter([data[start : start + count]])


def elements(ref: TensorRef, tally: Tally | None = None) -> Iterator[bytes]:
    """The elements of a tensor in the order of its shape, little-endian, with
    conjugation and negation resolved.

    `tally` is told how many finite elements a cast of the storage made infinite.
    """
    if not ref.numel:
        return
    place = ref.storage.place
    assert place is not None
    first, last = ref.extent
    width = ref.dtype.bits // 8
    big = place.big
    if is_dense(ref):
        stream = _read_part(place, first, last - first, tally)
        # An element that two blocks share could not be turned in either.
        if big or ref.conj or ref.neg:
            stream = in_whole_elements(stream, max(width, 1))
    else:
        # Strides may lead back and forth, so all that the view spans is read first.
        data = bytearray(last - first)
        position = 0
        for block in _read_part(place, first, last - first, tally):
            data[position : position + len(block)] = block
            position += len(block)
        stream = cast.gathered(data, ref.dtype, ref.shape, ref.stride)
    for block in stream:
        if big:
            block = cast.swapped(block, ref.dtype)
        if ref.conj or ref.neg:
            block = cast.resolve_conj_and_neg(
                block, ref.dtype, conj=ref.conj, neg=ref.neg
            )
        yield block


def in_whole_elements(stream: Iterator[bytes], width: int) -> Iterator[bytes]:
    """The same bytes in blocks of whole elements."""
    rest = b""
    for block in stream:
        block = rest + block if rest else block
        cut = len(block) - len(block) % width
        rest = block[cut:]
        yield block[:cut]


def same_bytes(first: Iterator[bytes], second: Iterator[bytes]) -> bool:
    """Tell whether two streams hold the same bytes, in blocks of any size. Stops at the
    first difference.
    """
    # An empty block would look like the end.
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
        first_rest = first_rest[count:]
        second_rest = second_rest[count:]


def is_dense(ref: TensorRef) -> bool:
    """Tell whether the elements are contiguous in the order of the shape."""
    step = 1
    for size, stride in zip(reversed(ref.shape), reversed(ref.stride), strict=True):
        # The stride of a dimension of size 1 leads nowhere: torch writes any number.
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_permuted(ref: TensorRef) -> bool:
    """Tell whether the elements are contiguous in some order of the dimensions, so that
    none is seen twice.
    """
    return is_dense(permute_dims(ref, memory_order(ref)))


def memory_order(ref: TensorRef) -> tuple[int, ...]:
    """The dimensions in the order of memory, the outermost first."""
    # Of equal strides, as of a dimension of size 1, the larger dimension is outside.
    dims = range(len(ref.shape))
    return tuple(sorted(dims, key=lambda dim: (-ref.stride[dim], -ref.shape[dim], dim)))


def permute_dims(ref: TensorRef, order: tuple[int, ...]) -> TensorRef:
    """The same elements with the dimensions in another order."""
    return ref._replace(
        shape=tuple(ref.shape[dim] for dim in order),
        stride=tuple(ref.stride[dim] for dim in order),
    )


def is_all(ref: TensorRef) -> bool:
    """Tell whether the bytes of a storage are the elements of a tensor, in the order of
    its shape.
    """
    return (
        not (ref.conj or ref.neg)
        and is_dense(ref)
        and ref.extent == (0, ref.storage.nbytes)
    )


def is_big(storage: Storage) -> bool:
    """Tell whether the bytes of a storage are big-endian and its elements have more
    than one byte.
    """
    place = storage.place
    if place is None or not place.big:
        return False
    return storage.dtype is None or storage.dtype.bits > 8


def pour(storage: Storage, sink: Sink, *, crc: bool) -> int:
    """Write the bytes of a storage, and return their CRC-32 if `crc` is set, else 0.

    The kernel copies ranges. A record that is copied whole keeps its recorded CRC, and
    the CRCs of several in a row are combined. All other bytes get a new CRC, or none:
    the audit of the sink is told of them, and of records that pass here whole and do
    not match. Without an audit these raise DamagedDataError. Raises UnreadableError.
    """
    place = storage.noted
    assert place is not None
    if storage.nbytes:
        place = place.resolved()
    stretches = place.list_stretches(0, storage.nbytes)
    total = 0
    for piece, begin, count in stretches:
        recorded = piece.checksum_of(begin, count)
        run = piece.run
        # The kernel copies from a file only. It shows no bytes, so their CRC must be
        # known, if one is asked for.
        is_file = run is not None and run.source.status is not None
        is_crc_known = recorded is not None and (count > SMALL or len(stretches) == 1)
        if run is not None and is_file and (is_crc_known or not crc):
            sink.copy(run.source, run.offset + begin, count)
            if crc and recorded is not None:
                total = _append_crc(total, recorded, count)
            elif sink.audit is not None:
                sink.audit.check(piece)
            continue
        own_crc = 0
        passed = None if sink.audit is None else sink.audit.passed
        for block in piece.stream_blocks(begin, count, sink.tally, passed):
            if recorded is not None:
                own_crc = zlib.crc32(block, own_crc)
            elif crc:
                total = zlib.crc32(block, total)
            sink.write(block)
        if recorded is not None:
            _note_passed(recorded, own_crc, storage, sink)
            # The recorded one, also where it does not match: damage must stay visible
            # in the copy.
            total = _append_crc(total, recorded, count)
        elif sink.audit is not None:
            sink.audit.check(piece)
    return total if crc else 0


def _append_crc(total: int, recorded: Checksum, count: int) -> int:
    """Return the CRC of what was written with a record of `count` bytes behind it."""
    # Nothing was written yet, or bytes with the CRC 0: combining is the same for both.
    return crcs.combine_crcs(total, recorded.crc, count) if total else recorded.crc


def _note_passed(checksum: Checksum, crc: int, storage: Storage, sink: Sink) -> None:
    """Note that a record passed whole, with this CRC. Raises DamagedDataError where
    nobody keeps account.
    """
    if sink.audit is not None:
        sink.audit.passed(checksum, crc)
    elif crc != checksum.crc:
        raise DamagedDataError(
            f"storage {show(storage.id, 80)} is damaged: its bytes do not match the "
            "recorded checksum"
        )


class _Buffers(threading.local):
    """The buffers of each thread. The same memory is used each time."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], bytearray] = {}

    def take(self, side: int, size: int) -> bytearray:
        """A buffer of exactly `size` bytes."""
        held = self._held.get((side, size))
        if held is None:
            # Few sizes are used again and again; another one would keep its memory.
            if len(self._held) > 8:
                self._held.clear()
            held = bytearray(size)
            self._held[side, size] = held
        return held


_BUFFERS = _Buffers()


def thread_buffer(side: int, size: int) -> bytearray:
    """A buffer of exactly `size` bytes. Each thread has one per `side` and uses the
    same memory each time.
    """
    return _BUFFERS.take(side, size)


def same_ranges(
    source: Source, first: int, other: Source, second: int, count: int
) -> bool:
    """Tell whether `count` bytes from `first` in one source equal `count` bytes from
    `second` in the other.

    Stops early.
    """
    rest = count % BLOCK
    if count >= BLOCK:
        first_buffer = thread_buffer(0, BLOCK)
        second_buffer = thread_buffer(1, BLOCK)
        first_view = memoryview(first_buffer)
        second_view = memoryview(second_buffer)
        for position in range(0, count - rest, BLOCK):
            source.read_into(first + position, first_view)
            other.read_into(second + position, second_view)
            # Whole buffers, because Python compares memoryviews item by item.
            if first_buffer != second_buffer:
                return False
    if not rest:
        return True
    last = count - rest
    return source.read(first + last, rest) == other.read(second + last, rest)
