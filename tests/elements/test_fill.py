"""Filling memory: any region of a tensor in any place, with as few bytes and calls as
it needs.
"""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import oracle
import pytest
import refs
import torch
from needs import is_there

from ckpt.bytes.source import Beginning, Extended, Memory, Source, Window
from ckpt.elements import fill
from ckpt.elements.boxes import Box, Boxes
from ckpt.elements.computed import Computed, Overlaid
from ckpt.model import places as places_module
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.errors import CkptError, DamagedDataError, UnreadableError
from ckpt.model.places import Patched, Place, Range
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

pytestmark = oracle.QUIET


@pytest.fixture(params=["shipped", "small", "gaps"], autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "shipped":
        monkeypatch.setattr(fill, "PIECE", 64)
        monkeypatch.setattr(fill, "_RUNS", 3)
        monkeypatch.setattr(fill, "_AHEAD", 2)
        monkeypatch.setattr(fill, "GAP", 0 if request.param == "small" else 1 << 30)
        monkeypatch.setattr(places_module, "BLOCK", 48)
        monkeypatch.setattr(places_module, "_CACHED", 0)


def over(place: Place, like: torch.Tensor) -> TensorRef:
    """A contiguous tensor over a place."""
    dtype, shape = BY_NAME[str(like.dtype).removeprefix("torch.")], tuple(like.shape)
    return tensor_ref(
        Storage("0", None, dtype, like.nbytes, place),
        dtype,
        shape,
        contiguous(shape),
        0,
    )


def boxed(whole: torch.Tensor, chance: random.Random, **options: Any) -> TensorRef:
    """The tensor cut into boxes, in any order, with parts of other strides."""
    edges = [
        sorted({0, size, *chance.choices(range(size + 1), k=2)}) for size in whole.shape
    ]
    boxes: list[Box] = []

    def cut(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        if len(offsets) < whole.dim():
            row = edges[len(offsets)]
            for low, high in pairwise(row):
                cut((*offsets, low), (*sizes, high - low))
            return
        part = whole[
            tuple(
                slice(low, low + size) for low, size in zip(offsets, sizes, strict=True)
            )
        ].clone()
        turned = (
            part.transpose(0, -1).contiguous().transpose(0, -1)
            if chance.random() < 0.5
            else part.contiguous()
        )
        boxes.append(Box(offsets, sizes, refs.ref_of(turned, **options)))

    cut((), ())
    chance.shuffle(boxes)
    dtype = BY_NAME[str(whole.dtype).removeprefix("torch.")]
    return over(Boxes(dtype, tuple(whole.shape), lambda: boxes, ()), whole)


def places(whole: torch.Tensor, chance: random.Random) -> dict[str, TensorRef]:
    """A contiguous tensor in every place that there is."""
    data = refs.raw(whole)
    cut = len(data) // 16 * 8
    halves = [
        (0, refs.range_of(data[:cut])),
        (cut, refs.range_of(data[cut:], is_deflated=True)),
    ]
    plain = refs.ref_of(whole)
    corner = whole[:3, :2]
    return {
        "range": plain,
        "big": refs.ref_of(whole, big=True),
        "deflated": refs.ref_of(whole, is_deflated=True),
        "boxes": boxed(whole, chance),
        "big boxes": boxed(whole, chance, big=True),
        "deflated boxes": boxed(whole, chance, is_deflated=True),
        "patched": over(
            Patched(
                None,
                len(data),
                [(0, refs.range_of(data[:cut])), (cut, refs.range_of(data[cut:]))],
            ),
            whole,
        ),
        "patched deflated": over(Patched(None, len(data), halves), whole),
        "computed": over(Computed(refs.ref_of(whole, big=True), plain.dtype), whole),
        "overlaid": over(Overlaid(plain, refs.ref_of(corner.contiguous())), whole),
        "mean": mean_of(plain, whole) if whole.dtype is torch.float32 else plain,
    }


def mean_of(plain: TensorRef, whole: torch.Tensor) -> TensorRef:
    """The mean of a tensor with itself; the tensor where no means are taken."""
    if not is_there("average"):
        return plain
    from ckpt.ext.average.mean import Mean

    return over(Mean([plain, plain], [0.5, 0.5], plain.dtype), whole)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.complex128, torch.bfloat16], ids=str
)
def test_any_region_of_any_place(dtype: torch.dtype) -> None:
    chance = random.Random(3)
    whole = refs.values(dtype, 9 * 7 * 5 * dtype.itemsize).reshape(9, 7, 5)
    wanted = whole.float().numpy() if dtype is torch.bfloat16 else whole.numpy()
    for name, ref in places(whole, chance).items():
        for _ in range(12):
            region = tuple(
                range(
                    *sorted(chance.choices(range(size + 1), k=2)),
                    chance.choice((1, 1, 2, 3)),
                )
                for size in whole.shape
            )
            flipped = [dim for dim in range(3) if chance.random() < 0.3]
            index = tuple(
                list(taken)[:: -1 if dim in flipped else 1]
                for dim, taken in enumerate(region)
            )
            values = fill.array(ref, region, flipped)
            np.testing.assert_array_equal(
                values, wanted[np.ix_(*index)], err_msg=f"{name} {region} {flipped}"
            )
        buffer = bytearray(whole.nbytes)
        sources: list[Source] = []
        fill.fill_buffer(ref, memoryview(buffer), sources)
        assert bytes(buffer) == refs.expected(whole) and sources


def test_regions_of_views() -> None:
    chance = random.Random(5)
    whole = torch.arange(400.0).reshape(20, 20)
    views = [
        whole.t(),
        whole[:, 3:9],
        whole[2:18:3, ::4],
        whole[:1].expand(6, 20),
        whole.as_strided((7, 6), (2, 1)),
        whole.as_strided((50, 30), (1, 3)),
        whole[4, :],
    ]
    for view in views:
        for options in ({}, {"big": True}, {"is_deflated": True}):
            ref = refs.ref_of(view, **options)  # type: ignore[arg-type]
            for _ in range(5):
                region = tuple(
                    range(*sorted(chance.choices(range(size + 1), k=2)))
                    for size in view.shape
                )
                np.testing.assert_array_equal(
                    fill.array(ref, region), view.numpy()[np.ix_(*map(list, region))]
                )
            buffer = bytearray(view.nbytes)
            fill.fill_buffer(ref, memoryview(buffer))
            assert bytes(buffer) == refs.expected(view)


@pytest.mark.parametrize("sizes", ["shipped"], indirect=True)
@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64"])
def test_transposed_rows_that_begin_a_power_of_two_apart(dtype: str) -> None:
    """Rows of a kibibyte: they are copied before they are transposed."""
    size = 8 * 1024 // BY_NAME[dtype].bits
    numbers = torch.arange(70 * size) % 127
    whole = numbers.to(getattr(torch, dtype)).reshape(70, size)
    cube = whole.reshape(2, 35, size)
    views = [
        whole.t(),
        whole[1:68, 3 : size - 2].t(),
        whole[::2].t(),
        cube.permute(2, 0, 1),
        cube.permute(0, 2, 1),
    ]
    for view in views:
        buffer = bytearray(view.nbytes)
        fill.fill_buffer(refs.ref_of(view), memoryview(buffer))
        assert bytes(buffer) == refs.expected(view)


def test_damage_is_found_at_the_end() -> None:
    tensor = torch.arange(100.0)
    ref = refs.ref_of(tensor, is_deflated=True)
    place = ref.storage.place
    assert isinstance(place, Range)
    for size, problem in ((384, "more than"), (404, "less than")):
        storage = ref.storage._replace(place=place._replace(inflated=size), nbytes=size)
        count = min(size, 400) // 4
        wrong = tensor_ref(storage, ref.dtype, (count if size < 400 else 101,), (1,), 0)
        with pytest.raises(DamagedDataError, match=problem):
            fill.array(wrong)
    machine = zlib.compressobj(1, zlib.DEFLATED, -15)
    endless = machine.compress(refs.raw(tensor)) + machine.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(DamagedDataError, match="less than"):
        fill.array(over(Range(Memory(endless), 0, len(endless), 400), tensor))
    lost = Boxes(ref.dtype, (100,), list, (), "a part is missing")
    with pytest.raises(UnreadableError, match="a part is missing"):
        fill.array(over(lost, tensor))
    short = over(Range(Memory(bytes(40)), 0, 400), tensor)
    with pytest.raises(CkptError, match="cut off"):
        fill.array(short)


@pytest.mark.parametrize("sizes", ["shipped"], indirect=True)
def test_a_far_source_gets_few_requests() -> None:
    from webs import Kept

    from ckpt.ext.remote.source import RangeSource

    whole = torch.arange(500 * 2000.0).reshape(500, 2000)
    for view, most in (
        (whole, 2),
        (whole[:, 7], 2),
        (whole[:, 1900:], 2),
        (whole[::50, ::200], 10),
        (whole.t(), 2),
        (whole.reshape(250, 2, 2000)[:, :, 9], 2),
    ):
        store = Kept(b"x" * 16 + refs.raw(whole))
        source = RangeSource(store, "a.safetensors")
        before = source.requests
        ref = refs.ref_of(view)
        place = Range(source, 16, whole.nbytes)
        values = fill.array(ref._replace(storage=ref.storage._replace(place=place)))
        np.testing.assert_array_equal(values, view.numpy())
        assert source.requests - before <= most


@pytest.mark.parametrize("kind", ["window", "beginning", "extended"])
def test_sources_around_others_read_into_memory(kind: str) -> None:
    tensor = torch.arange(50.0)
    data = refs.raw(tensor)
    inner = Memory(b"head" + data + b"tail")
    source: Source = {
        "window": lambda: Window(inner, 4, 200, "w"),
        "beginning": lambda: Beginning(Memory(data + b"tail"), 200),
        "extended": lambda: Extended(Memory(data[:100]), data[100:]),
    }[kind]()
    np.testing.assert_array_equal(
        fill.array(over(Range(source, 0, 200), tensor)), tensor.numpy()
    )


class Item:
    """A part whose bytes were decoded into memory."""

    def __init__(self, source: Source, ref: TensorRef) -> None:
        self.source = source
        self._ref = ref

    def tensor(self) -> TensorRef:
        return self._ref


def test_the_file_of_a_part_is_told() -> None:
    whole = torch.arange(10.0)
    files = [Memory(b""), Memory(b"")]
    boxes = [
        Box(
            (5 * at,), (5,), Item(file, refs.ref_of(whole[5 * at : 5 * at + 5].clone()))
        )
        for at, file in enumerate(files)
    ]
    ref = over(Boxes(BY_NAME["float32"], (10,), lambda: boxes, files), whole)
    for region, used in (
        (range(10), files),
        (range(2, 4), files[:1]),
        (range(6, 10, 3), files[1:]),
    ):
        sources: list[Source] = []
        assert fill.array(ref, (region,), sources=sources).tolist() == list(region)
        assert [source for source in sources if source in files] == used
