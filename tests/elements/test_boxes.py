"""Tensors cut into boxes: their bytes in the order of the shape, whatever the cut, the
strides and the block.
"""

from __future__ import annotations

import itertools
import random
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckpt.bytes import executor
from ckpt.bytes.source import File, Memory
from ckpt.elements import boxes
from ckpt.elements.blocks import elements, pour
from ckpt.elements.boxes import Box, Boxes
from ckpt.elements.computed import place_of
from ckpt.elements.spans import cut_spans
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnreadableError, UnsupportedError
from ckpt.model.places import Patched, Range
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

Array = np.ndarray[Any, Any]
KINDS = {
    "uint8": "u1",
    "bfloat16": "u2",
    "float32": "u4",
    "float64": "u8",
    "complex128": "V16",
}


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def ref_of(values: Array, name: str, *, turned: bool, before: int = 0) -> TensorRef:
    """A tensor with these values, after some other bytes; `turned` puts the last
    dimension outermost in memory.
    """
    data = values.transpose().tobytes() if turned else values.tobytes()
    place = Range(Memory(b"x" * before + data), before, len(data))
    storage = Storage("0", None, BY_NAME[name], len(data), place)
    stride = (
        tuple(reversed(contiguous(values.shape[::-1])))
        if turned
        else contiguous(values.shape)
    )
    return tensor_ref(storage, BY_NAME[name], values.shape, stride, 0)


def cut(
    values: Array, name: str, edges: list[list[int]], *, turned: bool = False
) -> TensorRef:
    """The tensor cut at these edges of each dimension."""
    made = []
    for cell in product(*(range(len(row) - 1) for row in edges)):
        low = tuple(row[at] for row, at in zip(edges, cell, strict=True))
        high = tuple(row[at + 1] for row, at in zip(edges, cell, strict=True))
        part = values[
            tuple(slice(first, last) for first, last in zip(low, high, strict=True))
        ]
        part = np.ascontiguousarray(part).reshape(part.shape)
        made.append(
            Box(low, part.shape, ref_of(part, name, turned=turned, before=len(made)))
        )
    random.Random(0).shuffle(made)
    place = Boxes(BY_NAME[name], values.shape, lambda: made, ())
    storage = Storage("whole", None, BY_NAME[name], place.nbytes, place)
    return tensor_ref(storage, BY_NAME[name], values.shape, contiguous(values.shape), 0)


def tensors() -> list[tuple[Array, str, list[list[int]], bool]]:
    found = []
    rng = random.Random(1)
    for number in range(60):
        name = rng.choice(list(KINDS))
        shape = tuple(
            rng.choice((1, 2, 3, 5, 8)) for _ in range(rng.choice((0, 1, 2, 2, 3, 4)))
        )
        count = int(np.prod(shape, dtype=int))
        raw = np.random.default_rng(number).integers(
            0, 256, count * BY_NAME[name].bits // 8, dtype=np.uint8
        )
        values = raw.view(KINDS[name]).reshape(shape)
        edges = [
            sorted({0, size, *rng.choices(range(size + 1), k=rng.choice((0, 1, 2)))})
            for size in shape
        ]
        found.append((values, name, edges, rng.random() < 0.3))
    return found


TENSORS = tensors()


@pytest.mark.parametrize("band", [16, 64, 4 << 20])
def test_the_bytes_are_those_of_the_whole(
    band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "BAND", band)
    rng = random.Random(2)
    for values, name, edges, turned in TENSORS:
        ref = cut(values, name, edges, turned=turned)
        place, whole = ref.storage.place, values.tobytes()
        assert isinstance(place, Boxes)
        assert b"".join(elements(ref)) == whole
        assert b"".join(place.read_blocks()) == whole
        for _ in range(5):
            start = rng.randrange(len(whole))
            count = rng.randrange(len(whole) - start + 1)
            assert (
                b"".join(place.read_blocks(start, count))
                == whole[start : start + count]
            ), (
                name,
                values.shape,
            )


class _Sink:
    """What `pour` needs of one."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def tally(self, count: int) -> None:
        raise AssertionError

    copy = None
    audit = None


@pytest.mark.parametrize("crc", [False, True])
def test_pour_writes_the_whole(crc: bool) -> None:
    for values, name, edges, turned in TENSORS:
        sink = _Sink()
        found = pour(cut(values, name, edges, turned=turned).storage, sink, crc=crc)  # type: ignore[arg-type]
        assert sink.data == values.tobytes()
        assert found == (zlib.crc32(sink.data) if crc else 0)


def test_rows_are_copied_from_their_files(tmp_path: Path) -> None:
    """In the order of the tensor, whatever the order of the boxes, without passing
    through this process.
    """
    dtype, copied = BY_NAME["uint8"], []
    made = []
    for number, name in enumerate("ba"):
        (tmp_path / name).write_bytes(b"??" + name.encode() * 6)
        place = Range(File(str(tmp_path / name)), 2, 6)
        storage = Storage(name, None, dtype, 6, place)
        made.append(
            Box(
                (2 - 2 * number, 0),
                (2, 3),
                tensor_ref(storage, dtype, (2, 3), (3, 1), 0),
            )
        )
    whole = Boxes(dtype, (4, 3), lambda: made, ())

    class Sink(_Sink):
        def copy(self, source: File, offset: int, count: int) -> None:  # type: ignore[override]
            copied.append((source.read(offset, count), offset))

    storage = Storage("w", None, dtype, 12, whole)
    assert pour(storage, Sink(), crc=False) == 0  # type: ignore[arg-type]
    assert copied == [(b"aaaaaa", 2), (b"bbbbbb", 2)]

    ref = tensor_ref(storage, dtype, (4, 3), (3, 1), 0)
    rows = tensor_ref(storage, dtype, (2, 3), (3, 1), 3)
    for part, wanted in (
        (ref, [(b"aaaaaa", 2), (b"bbbbbb", 2)]),
        (rows, [(b"aaa", 5), (b"bbb", 2)]),
    ):
        copied.clear()
        new = Storage("n", None, dtype, part.nbytes, place_of(part))
        assert pour(new, Sink(), crc=False) == 0  # type: ignore[arg-type]
        assert copied == wanted


def test_a_part_across_ranges_is_their_bytes() -> None:
    values = np.arange(48, dtype="u4").reshape(8, 6)
    ref = cut(values, "float32", [[0, 2, 5, 8], [0, 6]])
    raw = values.tobytes()
    for first, last in itertools.combinations(range(0, 193, 4), 2):
        count = (last - first) // 4
        part = tensor_ref(ref.storage, ref.dtype, (count,), (1,), first // 4)
        place = place_of(part)
        assert isinstance(place, (Range, Patched)) and place.nbytes == last - first
        assert isinstance(place, Range) == any(
            low <= first and last <= high
            for low, high in ((0, 48), (48, 120), (120, 192))
        )
        assert b"".join(place.read_blocks()) == raw[first:last]
        if isinstance(place, Patched):  # none reaches into the next one
            assert sum(piece.size for _, piece in place.pieces) == place.nbytes


def test_columns_are_gathered_into_the_same_memory() -> None:
    """A block is read, put in its place and written without a copy of its own."""
    values = np.arange(1 << 20, dtype="u4").reshape(1024, 1024)
    place = cut(values, "float32", [[0, 1024], [0, 256, 1024]]).storage.place
    assert isinstance(place, Boxes)
    seen: list[memoryview] = []

    class Sink(_Sink):
        def write(self, data: bytes) -> None:
            assert isinstance(data, memoryview)
            seen.append(data)
            super().write(data)

    sink = Sink()
    pour(Storage("w", None, place.dtype, place.nbytes, place), sink, crc=False)  # type: ignore[arg-type]
    assert sink.data == values.tobytes()
    assert len(seen) == 4 and len({id(block.obj) for block in seen}) == 1
    kept = list(place.read_blocks())
    assert b"".join(kept) == sink.data and all(type(block) is bytes for block in kept)


def test_rows_are_ranges_of_their_files() -> None:
    """Then the kernel copies them, and any part within one box is one range."""
    values = np.arange(48, dtype="u4").reshape(8, 6)
    ref = cut(values, "float32", [[0, 2, 5, 8], [0, 6]])
    assert isinstance(ref.storage.place, Boxes)
    found = ref.storage.place.resolved()
    assert isinstance(found, Patched) and [first for first, _ in found.pieces] == [
        0,
        48,
        120,
    ]
    one = ref._replace(
        shape=(6,), stride=(1,), offset=12, numel=6, nbytes=24, extent=(48, 72)
    )
    inside = place_of(one)
    assert (
        isinstance(inside, Range)
        and inside.source.read(inside.offset, inside.size) == values[2].tobytes()
    )
    across = place_of(one._replace(extent=(40, 64)))
    assert not isinstance(across, Range)
    assert isinstance(
        cut(values, "float32", [[0, 8], [0, 6]]).storage.place.resolved(), Range
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("edges", [[[0, 8], [0, 2, 6]], [[0, 4, 8], [0, 1, 6]]])
def test_columns_are_not(edges: list[list[int]]) -> None:
    ref = cut(np.arange(48, dtype="u4").reshape(8, 6), "float32", edges)
    place = ref.storage.place
    assert isinstance(place, Boxes) and place.resolved() is place
    assert place_of(ref) is place


def test_a_problem_is_raised_and_nothing_is_read() -> None:
    def refuse() -> list[Box]:
        raise AssertionError

    place = Boxes(BY_NAME["float32"], (4,), refuse, (), "x lacks [2:4]")
    ref = tensor_ref(
        Storage("x", None, BY_NAME["float32"], 16, place),
        BY_NAME["float32"],
        (4,),
        (1,),
        0,
    )
    for read in (
        lambda: list(elements(ref)),
        lambda: place_of(ref),
        lambda: list(place.read_blocks()),
    ):
        with pytest.raises(UnreadableError, match=r"x lacks \[2:4\]"):
            read()


def test_less_than_a_byte_is_not_gathered() -> None:
    dtype = next(each for each in BY_NAME.values() if each.bits < 8)
    whole = Storage("p", None, dtype, 1, Range(Memory(b"ab"), 0, 1))
    part = tensor_ref(whole, dtype, (2, 1), (1, 1), 0)
    place = Boxes(
        dtype,
        (2, 2),
        lambda: [Box((0, 0), (2, 1), part), Box((0, 1), (2, 1), part)],
        (),
    )
    with pytest.raises(UnsupportedError):
        list(place.read_blocks())


def test_tasks_may_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "SPAN", 1 << 21)
    ref = cut(np.zeros((600, 1000), dtype="u8"), "float64", [[0, 600], [0, 500, 1000]])
    assert cut_spans(ref) == [(0, 262144), (262144, 524288), (524288, 600000)]
