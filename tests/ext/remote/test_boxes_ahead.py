"""Tensors in boxes are read ahead by the rows that a task needs: each byte once, within
the room.
"""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest
from webs import Kept

from ckpt.bytes.executor import Serial, Task
from ckpt.bytes.source import Memory, Source
from ckpt.elements.blocks import elements, slice_of
from ckpt.elements.boxes import Box, Boxes
from ckpt.ext.remote import ahead
from ckpt.ext.remote.source import RangeSource
from ckpt.ext.remote.store import Known
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

F32 = BY_NAME["float32"]


def cut(source: Source, shape: tuple[int, ...], sizes: tuple[int, ...]) -> TensorRef:
    """A tensor in boxes of these sizes, which lie one after the other in the source."""
    boxes: list[Box] = []
    offset = 0
    for index in np.ndindex(
        *(size // part for size, part in zip(shape, sizes, strict=True))
    ):
        begin = tuple(
            int(number) * part for number, part in zip(index, sizes, strict=True)
        )
        nbytes = 4 * prod(sizes)
        storage = Storage(str(offset), None, F32, nbytes, Range(source, offset, nbytes))
        boxes.append(
            Box(begin, sizes, tensor_ref(storage, F32, sizes, contiguous(sizes), 0))
        )
        offset += nbytes
    place = Boxes(F32, shape, lambda: boxes, (source,))
    return tensor_ref(
        Storage("whole", None, F32, place.nbytes, place),
        F32,
        shape,
        contiguous(shape),
        0,
    )


def read(ref: TensorRef) -> bytes:
    return b"".join(elements(ref))


CUTS = [
    ((64, 96), (64, 8)),
    ((64, 96), (8, 96)),
    ((64, 96), (16, 24)),
    ((8, 16, 12), (4, 16, 6)),
    ((96,), (12,)),
]


@pytest.mark.parametrize(("shape", "sizes"), CUTS)
def test_what_is_foreseen_is_what_is_read(
    shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    read_ranges: list[tuple[int, int]] = []

    class Noting(Memory):
        def read(self, offset: int, count: int) -> bytes:
            read_ranges.append((offset, offset + count))
            return super().read(offset, count)

        def read_into(self, offset: int, buffer: memoryview) -> None:
            read_ranges.append((offset, offset + len(buffer)))
            super().read_into(offset, buffer)

    numel = prod(shape)
    source = Noting(np.arange(numel, dtype="f4").tobytes())
    ref = cut(source, shape, sizes)
    row = numel // shape[0]
    for first, last in (
        (0, numel),
        (0, row * 8),
        (row * 8, row * 16),
        (row * 24, numel),
    ):
        if first >= last or last > numel:
            continue
        read_ranges.clear()
        read(slice_of(ref, first, last))
        needed = {byte for begin, end in read_ranges for byte in range(begin, end)}
        foreseen = {
            byte
            for _, begin, end in slice_of(ref, first, last).reads()
            for byte in range(begin, min(end, source.size))
        }
        assert needed <= foreseen


@pytest.mark.parametrize("seed", range(10))
def test_the_boxes_between_two_bytes_are_those_of_a_list(seed: int) -> None:
    dice = random.Random(seed)
    shape, sizes = dice.choice(CUTS)
    place = cut(Memory(bytes(4 * prod(shape))), shape, sizes).storage.place
    assert isinstance(place, Boxes)
    for _ in range(40):
        first = dice.randrange(place.nbytes)
        last = dice.randrange(first, place.nbytes) + 1
        spans = [(place.span_of(box), box) for box in place.boxes]
        expected = [
            box.offsets for (begin, end), box in spans if begin < last and end > first
        ]
        assert sorted(
            box.offsets for box in place.boxes_between(first, last)
        ) == sorted(expected)


def test_a_tensor_of_columns_is_read_within_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its boxes were foreseen whole for each task: all of the tensor was held, and
    asked for row by row after that.
    """
    monkeypatch.setattr(ahead._Room, "most", 1_000_000)
    shape, sizes = (512, 64 * 40), (512, 64)
    data = random.Random(1).randbytes(4 * prod(shape))
    store = Kept(data)
    source = RangeSource(
        store, "s3://b/x.distcp", state=Known(len(data), '"1"'), ahead=False
    )
    monkeypatch.setattr("ckpt.elements.boxes._EDGE", 0)
    monkeypatch.setattr(ahead, "PIECE", 64 * 64 * 4)
    ref, local = cut(source, shape, sizes), cut(Memory(data), shape, sizes)
    most: list[int] = []

    def measured(part: TensorRef) -> bytes:
        found = read(part)
        most.append(ahead._Room.used)
        return found

    step = 64 * shape[1]
    tasks = [
        Task(measured, (slice_of(ref, at, at + step),), 4 * step)
        for at in range(0, prod(shape), step)
    ]
    assert b"".join(Serial().run(tasks)) == read(local)
    assert sum(count for _, count in store.asked) == len(data)
    assert len(store.asked) == 40 * len(tasks)
    assert max(most) <= 1_000_000 + 4 * step and ahead._Room.used == 0


def test_one_wide_group_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead._Room, "most", 100_000)
    store = Kept(bytes(2_000_000))
    source = RangeSource(store, "s3://b/x", state=Known(2_000_000, '"1"'), ahead=False)
    made = ahead.Ahead(
        [(source, at, at + 5_000) for at in range(0, 2_000_000, 100_000)]
        for _ in range(1)
    )
    with made.turn(0):
        assert ahead._wide._is_owned()  # type: ignore[attr-defined]
    made.close()
    few = ahead.Ahead(
        [(source, at, at + 5_000) for at in range(0, 1_000_000, 100_000)]
        for _ in range(1)
    )
    with few.turn(0):
        assert not ahead._wide._is_owned()  # type: ignore[attr-defined]
    few.close()


def test_what_was_read_through_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a group that goes on are let go when another is needed and there is no
    room.
    """
    monkeypatch.setattr(ahead._Room, "most", 250_000)
    data = random.Random(2).randbytes(2_000_000)
    store = Kept(data)
    source = RangeSource(store, "s3://b/x", state=Known(len(data), '"1"'), ahead=False)
    spans = [(source, at, at + 100_000) for at in range(0, 2_000_000, 200_000)]
    made = ahead.Ahead([spans])
    with made.turn(0):
        for _, begin, end in spans:
            assert source.read(begin, end - begin) == data[begin:end]
            assert ahead._Room.used <= 350_000
    made.close()
    assert sum(count for _, count in store.asked) == 1_000_000 and ahead._Room.used == 0
