"""Whether boxes cover a tensor: against counting how often each element is held."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from ckpt.formats.common import coverage
from ckpt.formats.common.coverage import BoxShape, find_fault


def chunks_of(count: int) -> Any:
    """The chunks of a tensor with so many dimensions, as a DCP lists them."""
    from ckpt.ext.dcp.metadata import Chunks

    return Chunks(count)


def grid(shape: tuple[int, ...], rng: random.Random) -> list[BoxShape]:
    """A shape cut at some edges, with an empty box here and there."""
    edges = [
        sorted({0, size, *rng.choices(range(size + 1), k=rng.choice((0, 1, 2)))})
        for size in shape
    ]
    cells = product(*(list(pairwise(row)) for row in edges))
    boxes = [
        (tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in cells
    ]
    if shape and rng.random() < 0.3:
        boxes.append((tuple(shape), (0,) * len(shape)))
    return boxes


def brick(shape: tuple[int, ...], rng: random.Random) -> list[BoxShape]:
    """Cut again and again at random: no grid."""
    boxes: list[BoxShape] = [((0,) * len(shape), shape)]
    for _ in range(5):
        offsets, sizes = boxes.pop(rng.randrange(len(boxes)))
        dim = rng.randrange(len(shape))
        at = rng.randrange(sizes[dim] + 1)
        for first, last in ((0, at), (at, sizes[dim])):
            boxes.append(
                (
                    tuple(o + first * (d == dim) for d, o in enumerate(offsets)),
                    tuple(last - first if d == dim else s for d, s in enumerate(sizes)),
                )
            )
    return boxes


def broken(boxes: list[BoxShape], rng: random.Random) -> list[BoxShape]:
    """One box gone, twice, moved or longer."""
    at = rng.randrange(len(boxes))
    offsets, sizes = boxes[at]
    what = rng.randrange(4)
    if what == 0:
        return boxes[:at] + boxes[at + 1 :]
    if what == 1:
        return [*boxes, boxes[at]]
    if not sizes:
        return boxes
    dim = rng.randrange(len(sizes))
    if what == 2 and offsets[dim]:
        moved = tuple(o - (d == dim) for d, o in enumerate(offsets))
        return [*boxes[:at], (moved, sizes), *boxes[at + 1 :]]
    if sizes[dim]:
        shorter = tuple(s - (d == dim) for d, s in enumerate(sizes))
        return [*boxes[:at], (offsets, shorter), *boxes[at + 1 :]]
    return boxes


def counted(
    shape: tuple[int, ...], boxes: list[BoxShape]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    held = np.zeros(shape, dtype=int)
    for offsets, sizes in boxes:
        held[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] += 1
    return held


def test_a_fault_is_found_where_there_is_one_and_named_right() -> None:
    rng = random.Random(0)
    kinds = set()
    for _ in range(3000):
        shape = tuple(
            rng.choice((1, 2, 3, 5)) for _ in range(rng.choice((0, 1, 2, 2, 3)))
        )
        boxes = (
            grid(shape, rng) if not shape or rng.random() < 0.5 else brick(shape, rng)
        )
        if rng.random() < 0.6:
            boxes = broken(boxes, rng)
        rng.shuffle(boxes)
        held = counted(shape, boxes)
        found = find_fault(shape, boxes)
        if found is None:
            assert (held == 1).all(), (shape, boxes)
            kinds.add("none")
            continue
        kinds.add(found.kind)
        inside = held[eval(f"np.s_{found.where}")] if shape else held
        assert (
            inside.size and (inside > 1).all()
            if found.kind == "overlap"
            else (inside == 0).all()
        ), (
            shape,
            boxes,
            found,
        )
    assert kinds == {"none", "hole", "overlap"}


def lines(rng: random.Random) -> tuple[tuple[int, ...], list[BoxShape]]:
    """A shape cut along one dimension."""
    shape = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.choice((0, 1, 2, 2, 3))))
    if not shape:
        return shape, [((), ())]
    dim = rng.randrange(len(shape))
    edges = sorted({0, shape[dim], *rng.choices(range(shape[dim] + 1), k=2)})
    cells = [
        (
            tuple(first * (d == dim) for d in range(len(shape))),
            tuple(last - first if d == dim else size for d, size in enumerate(shape)),
        )
        for first, last in pairwise(edges)
    ]
    return shape, cells


def test_chunks_in_a_line_are_seen_without_boxes() -> None:
    """What `line` believes is what counting finds, and the number of parts is that of
    `grid`.
    """
    rng = random.Random(1)
    seen = {True: 0, False: 0}
    for number in range(4000):
        shape, boxes = lines(rng)
        if number % 2:
            shape = tuple(
                rng.choice((0, 1, 2, 3)) for _ in range(rng.choice((0, 1, 2, 3)))
            )
            boxes = grid(shape, rng)
        if boxes and rng.random() < 0.5:
            boxes = broken(boxes, rng)
        rng.shuffle(boxes)
        chunks = chunks_of(len(shape))
        for offsets, sizes in boxes:
            chunks.add(offsets, sizes)
        found = chunks.line(shape)
        seen[found is not None] += 1
        if found is not None:
            assert (counted(shape, boxes) == 1).all() and find_fault(
                shape, boxes
            ) is None, (shape, boxes)
            assert found == chunks.grid()
    assert min(seen.values()) > 800, seen


@pytest.mark.parametrize("shape", [(6,), (6, 4), (2, 6)])
def test_a_line_is_never_missed(shape: tuple[int, ...]) -> None:
    """Also where the chunks are listed in another order: a fall back to boxes is right,
    and slow.
    """
    chunks, dim = chunks_of(len(shape)), shape.index(6)
    for first, last in ((4, 6), (0, 1), (1, 4)):
        chunks.add(
            [first * (d == dim) for d in range(len(shape))],
            [last - first if d == dim else size for d, size in enumerate(shape)],
        )
    assert chunks.line(shape) == tuple(3 if d == dim else 1 for d in range(len(shape)))


def test_a_diagonal_is_no_line() -> None:
    """Each dimension alone looks covered."""
    chunks = chunks_of(2)
    chunks.add((0, 0), (1, 1))
    chunks.add((1, 1), (1, 1))
    assert chunks.line((2, 2)) is None


def test_an_empty_tensor_needs_no_box() -> None:
    assert find_fault((0, 4), []) is None
    assert find_fault((0, 4), [((0, 0), (0, 4))]) is None


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long boxes side by side are no grid, and each is compared with all: beyond a
    bound nothing is read.
    """
    rows = [((number, number % 7), (1, 1000)) for number in range(400)]
    columns = [((0, 2000 + number), (400, 1)) for number in range(400)]
    rows.append(((399, 1500), (1, 1500 - 399 + 1898)))
    monkeypatch.setattr(coverage, "_PAIRS", 100)
    found = find_fault((400, 3000), [*rows, *columns])
    assert found is not None
