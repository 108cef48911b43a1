"""Numbers of tensors, gathered block by block: wherever a block ends, they are those of
torch in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import refs
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt.elements.blocks import slice_of
from ckpt.elements.cast import as_numbers
from ckpt.elements.compare import Change, compare
from ckpt.elements.computed import PlaceInSpans
from ckpt.elements.double import Moments
from ckpt.elements.measure import (
    ChannelLayout,
    Channels,
    Difference,
    Measurement,
    Summary,
    measure_span,
    measure_tasks,
    merge_measurements,
)
from ckpt.elements.spans import cut_spans, numbered_blocks
from ckpt.model.dtypes import BY_NAME
from ckpt.model.tensors import Storage, tensor_ref

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)

SIZED = [
    *(("64 bytes", dtype) for dtype in DTYPES),
    *(
        ("shipped", dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64)
    ),
]
"""What `nbytes` is made of, and a dtype: all of them where that is quick."""


def tolerance_of(dtype: torch.dtype) -> float:
    """The relative error of sums, which float32 adds for types that it holds."""
    return 1e-6 if dtype.itemsize < 4 or dtype is torch.float32 else 1e-9


def change(
    before: torch.Tensor,
    after: torch.Tensor,
    tolerance: tuple[float, float] | None = None,
) -> Change:
    found = compare(
        refs.ref_of(before),
        refs.ref_of(after),
        None if tolerance is None else lambda dtype: tolerance,
    )
    assert found is not None
    return found


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


# --- what two differ in ---------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "dtype"), SIZED, indirect=["nbytes"], ids=str)
def test_differences_are_those_of_torch(dtype: torch.dtype, nbytes: int) -> None:
    before, after = refs.values(dtype, nbytes), refs.values(dtype, nbytes, 1)
    after[::3] = before[::3]

    found = change(before, after)

    delta = (wide(after) - wide(before)).abs()
    assert found.numel == len(before) and found.differing == int((delta > 0).sum())
    assert found.max_abs == pytest.approx(delta.max().item(), rel=1e-14)
    assert found.at is not None and delta[found.at].item() == pytest.approx(
        delta.max().item(), rel=1e-14
    )
    close = tolerance_of(dtype)
    assert found.squares == pytest.approx(delta.square().sum().item(), rel=close)
    assert found.reference == pytest.approx(
        wide(before).abs().square().sum().item(), rel=close
    )
    assert found.other_bytes == 0 and found.nan == found.inf == (0, 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.float64, torch.complex64], ids=str
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_block_that_is_not_close_is_enough(
    place: str, dtype: torch.dtype, nbytes: int
) -> None:
    before = refs.values(dtype, nbytes)
    after = before * 1.001
    at = {"first": 0, "middle": len(before) // 2, "last": len(before) - 1}[place]
    assert change(before, after, (1e-1, 1e-2)).close
    after[at] += 5

    found = change(before, after, (1e-1, 1e-2))

    assert not found.close and found.at == (at,)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_nan_in_one_block_is_not_close_to_a_number(place: str, nbytes: int) -> None:
    before = refs.values(torch.float32, nbytes)
    after = before * 1.001
    at = {"first": 0, "middle": len(before) // 2, "last": len(before) - 1}[place]
    after[at] = math.nan
    both = before.clone()
    both[at] = math.nan

    assert not change(before, after, (1e-1, 1e-2)).close
    assert change(both, after, (1e-1, 1e-2)).close, "NaN on both sides is no difference"


def test_what_is_no_number_is_counted_and_left_out_of_sums(nbytes: int) -> None:
    before, after = (
        refs.values(torch.float32, nbytes),
        refs.values(torch.float32, nbytes, 1),
    )
    for at, (one, two) in {
        0: (math.nan, 1.0),
        1: (math.inf, math.inf),
        len(before) // 2: (math.inf, -math.inf),
        len(before) // 2 + 1: (math.nan, math.nan),
        len(before) - 3: (2.0, -math.inf),
        len(before) - 1: (0.0, -0.0),
    }.items():
        before[at], after[at] = one, two

    found = change(before, after)

    delta = (after.double() - before.double()).abs()
    finite = delta[delta.isfinite()]
    assert found.nan == (2, 1) and found.inf == (2, 3)
    assert found.differing == len(before) - 3 and found.other_bytes == 1
    assert found.max_abs == finite.max().item()
    assert found.squares == pytest.approx(finite.square().sum().item(), rel=1e-6)
    known = before.double()[before.isfinite()]
    assert found.reference == pytest.approx(known.square().sum().item(), rel=1e-6)


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float32", "float8_e5m2", "int32", "int64", "complex64"],
)
@pytest.mark.parametrize("elements", [1, 7, 16, 999, 1000, 1001])
def test_numbers_do_not_depend_on_where_a_block_ends(
    elements: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (torch.randn(1000) * 20).to(getattr(torch, dtype))
    after = before.clone()
    after[::3] = (torch.randn(1000) * 20).to(before.dtype)[::3]
    whole = change(before, after)

    for span in (1, 64, 1 << 26):
        monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", elements)
        monkeypatch.setattr("ckpt.bytes.executor.SPAN", span)
        found = change(before, after)
        assert (found.differing, found.at, found.max_abs) == (
            whole.differing,
            whole.at,
            whole.max_abs,
        )
        assert found.rms == pytest.approx(whole.rms) and found.rel_l2 == pytest.approx(
            whole.rel_l2
        )


def test_integers_that_differ_are_never_nothing_apart() -> None:
    """In float64 they would be equal."""
    before = torch.tensor([2**62, -(2**63), 2**63 - 1, 5])
    after = torch.tensor([2**62 + 1, 2**63 - 1, 2**63 - 1, 5])

    found = change(before, after)

    assert (
        found.differing == 2 and found.max_abs == float(2**64 - 1) and found.at == (1,)
    )


def test_merging_is_adding_what_follows() -> None:
    dtype = BY_NAME["float32"]
    before, after = (
        refs.values(torch.float32, 4000),
        refs.values(torch.float32, 4000, 1),
    )
    after[700] += 100
    one, two = refs.expected(before), refs.expected(after)
    whole = Difference()
    whole.add(one, two, (dtype, dtype), (0.1, 0.1))
    for cut in (4, 400, 2800, 2804, 3996):
        parts = []
        for piece in (slice(0, cut), slice(cut, None)):
            part = Difference()
            part.add(one[piece], two[piece], (dtype, dtype), (0.1, 0.1))
            parts.append(part)
        parts[0].merge(parts[1])
        for name, value in vars(whole).items():
            if name in ("histogram", "lines", "odd", "seen"):  # not asked for
                continue
            assert vars(parts[0])[name] == pytest.approx(value, rel=1e-6), (cut, name)


# --- what one holds -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("nbytes", "dtype"), SIZED, indirect=["nbytes"], ids=str)
@pytest.mark.parametrize("how", ["little", "big", "deflated"])
def test_summaries_are_those_of_torch(
    how: str, dtype: torch.dtype, nbytes: int
) -> None:
    tensor = refs.values(dtype, nbytes)
    tensor[::5] = 0
    odd = 0
    if dtype.is_floating_point and dtype is not torch.float8_e4m3fn:
        for at in (0, len(tensor) // 2, len(tensor) - 1):
            tensor[at] = math.nan
            tensor[at - 2] = math.inf
        odd = 3

    tasks = measure_tasks(
        refs.ref_of(tensor, big=how == "big", is_deflated=how == "deflated")
    )
    found = merge_measurements([task() for task in tasks]).summary

    values = tensor.abs().double() if tensor.is_complex() else tensor.double()
    finite = values[values.isfinite()]
    assert (found.numel, found.finite, found.nan, found.inf) == (
        len(tensor),
        len(finite),
        odd,
        odd,
    )
    assert found.zeros == int((values == 0).sum())
    close = 1e-5 if tensor.is_complex() else tolerance_of(dtype)
    exact = close if tensor.is_complex() else 0
    assert found.low == pytest.approx(finite.min().item(), rel=exact, abs=0)
    assert found.high == pytest.approx(finite.max().item(), rel=exact, abs=0)
    assert found.mean == pytest.approx(
        finite.mean().item(), rel=close, abs=close * finite.std().item()
    )
    assert found.squares == pytest.approx(finite.square().sum().item(), rel=close)
    assert found.spread == pytest.approx(
        (finite - finite.mean()).square().sum().item(), rel=close
    )


def test_a_mean_far_from_zero_keeps_its_spread(nbytes: int) -> None:
    tensor = refs.values(torch.float64, nbytes) / 9 + 1e8

    found = merge_measurements(
        [task() for task in measure_tasks(refs.ref_of(tensor))]
    ).summary

    assert found.spread / (len(tensor) - 1) == pytest.approx(
        tensor.var().item(), rel=1e-6
    )


def test_nothing_has_no_numbers() -> None:
    assert measure_tasks(refs.ref_of(torch.zeros(0))) == []
    found = merge_measurements([]).summary
    assert (found.numel, found.low, found.high) == (0, None, None)
    empty = Summary()
    empty.merge(Summary())
    assert empty.finite == 0


def test_the_summary_has_every_figure_of_a_block() -> None:
    """Those that are sums are added in `_add_figures`, for blocks and for spans."""
    assert vars(Summary()).keys() == {*Moments._fields, "numel", "histogram"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_that_are_there_several_times(dtype: torch.dtype) -> None:
    """No field is forgotten: all are those of a tensor that holds its elements thrice,
    block by block and span by span.
    """
    tensor = refs.values(dtype, 24 * dtype.itemsize)
    if dtype.is_floating_point:
        tensor[3], tensor[5] = math.nan, -math.inf
    once = measure_span(refs.ref_of(tensor), None, 0).summary
    repeated = measure_span(refs.ref_of(tensor.repeat(3)), None, 0).summary
    joined, part = Summary(), measure_span(refs.ref_of(tensor), None, 0).summary
    for _ in range(3):
        joined.merge(part)
    once.repeated(3)

    expected = vars(repeated)
    for found in (vars(once), vars(joined)):
        for name in ("mean", "spread", "squares"):
            assert found.pop(name) == pytest.approx(expected[name], rel=1e-5)
        assert found.items() <= expected.items()


@pytest.mark.parametrize(
    "shape", [(4, 37), (37, 4), (3, 5, 7), (1, 150), (150, 1), (2, 3, 5, 5)]
)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("elements", [1, 7, 16, 37, 1000])
def test_channels_are_sums_of_magnitudes(
    elements: int, dim: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", elements)
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 2 * 4 * elements)
    tensor = refs.values(torch.float32, 4 * math.prod(shape)).reshape(shape)
    layout = ChannelLayout(shape[dim], math.prod(shape[dim + 1 :]))

    found = merge_measurements(
        [task() for task in measure_tasks(refs.ref_of(tensor), layout)]
    ).channels

    assert found is not None
    others = [other for other in range(len(shape)) if other != dim]
    assert found.sums == pytest.approx(
        tensor.double().abs().sum(others).numpy(), rel=1e-12
    )


def test_channels_of_several_megabytes(nbytes: int) -> None:
    inner = 1000 if nbytes > 10_000 else 10
    tensor = refs.values(torch.float32, nbytes)
    tensor = tensor[: len(tensor) // inner * inner].reshape(-1, inner)

    found = merge_measurements(
        [
            task()
            for task in measure_tasks(
                refs.ref_of(tensor), ChannelLayout(len(tensor), inner)
            )
        ]
    )

    assert found.channels is not None
    assert found.channels.sums == pytest.approx(
        tensor.double().abs().sum(1).numpy(), rel=1e-12
    )


def test_the_parts_of_a_measurement_may_begin_anywhere() -> None:
    tensor = refs.values(torch.float32, 400)
    ref, layout = refs.ref_of(tensor), ChannelLayout(4, 25)
    whole = measure_span(ref, layout, 0)
    for cut in range(1, 100):
        parts = [
            measure_span(slice_of(ref, 0, cut), layout, 0),
            measure_span(slice_of(ref, cut, 100), layout, cut),
        ]
        found: Measurement = merge_measurements(parts)
        assert found.channels is not None and whole.channels is not None
        assert found.channels.sums == pytest.approx(whole.channels.sums, rel=1e-12), cut
        assert found.summary.spread == pytest.approx(whole.summary.spread, rel=1e-6)


def test_channels_are_added_in_blocks_of_any_size() -> None:
    data = refs.values(torch.float32, 4 * 90)
    for size in (1, 4, 9, 10, 45, 89, 90):
        channels = Channels(9, 10)
        for at in range(0, 90, size):
            channels.add(refs.expected(data[at : at + size]), BY_NAME["float32"])
        assert channels.sums == pytest.approx(
            data.double().abs().reshape(9, 10).sum(1).numpy(), rel=1e-12
        )


# --- the elements, block by block -----------------------------------------------------


@pytest.mark.parametrize("how", ["little", "big", "deflated"])
@pytest.mark.parametrize(("nbytes", "dtype"), SIZED, indirect=["nbytes"], ids=str)
def test_numbered_blocks_are_the_elements_once_each(
    how: str, dtype: torch.dtype, nbytes: int
) -> None:
    from ckpt.elements import spans

    tensor = refs.values(dtype, nbytes)
    ref = refs.ref_of(tensor, big=how == "big", is_deflated=how == "deflated")

    found = [bytes(block) for block in numbered_blocks(ref, 0)]

    assert b"".join(found) == refs.expected(tensor)
    assert {len(block) for block in found[:-1]} <= {spans.ELEMENTS * dtype.itemsize}
    assert 0 < len(found[-1]) <= spans.ELEMENTS * dtype.itemsize


class Pieces(PlaceInSpans):
    """Bytes that come in pieces of some sizes, which lie in one buffer."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data, self.sizes = data, sizes

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def stream_blocks(
        self,
        start: int,
        count: int,
        tally: object = None,
        passed: object = None,
    ) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(max(self.sizes)))
        end = start + count
        for size in itertools.cycle(self.sizes):
            part = self.data[start : min(start + size, end)]
            if not part:
                return
            buffer[: len(part)] = part
            start += len(part)
            yield buffer[: len(part)]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(1, 200))
def test_numbered_blocks_are_whole_whatever_the_pieces(
    sizes: list[int], numel: int
) -> None:
    data = bytes(number % 251 for number in range(4 * numel))
    dtype = BY_NAME["float32"]
    storage = Storage("a", None, dtype, len(data), Pieces(data, sizes))
    ref = tensor_ref(storage, dtype, (numel,), (1,), 0)
    with mock.patch("ckpt.elements.spans.ELEMENTS", 16):
        found = [bytes(block) for block in numbered_blocks(ref, 0)]

    assert found == [data[start : start + 64] for start in range(0, len(data), 64)]


def test_slices_are_the_elements_that_they_say(small_blocks: None) -> None:
    base = refs.values(torch.bfloat16, 900)
    ref = refs.ref_of(base[5:405].reshape(20, 20))

    assert len(cut_spans(ref)) > 3 and cut_spans(ref)[-1][1] == 400
    for first, last in [*cut_spans(ref), (0, 1), (399, 400), (0, 400)]:
        found = b"".join(
            bytes(block) for block in numbered_blocks(slice_of(ref, first, last), 0)
        )
        assert found == refs.expected(base[5 + first : 5 + last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_those_of_torch(dtype: torch.dtype) -> None:
    tensor = refs.values(dtype, 640)

    found = as_numbers(
        refs.expected(tensor), BY_NAME[str(dtype).removeprefix("torch.")]
    )

    assert np.array_equal(
        found.astype("c16"), wide(tensor).to(torch.complex128).numpy()
    )
