"""Histograms: the counts are numpy's between the same edges, whatever the blocks, the
parts and their order.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import refs
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ckpt.bytes.executor import Serial, Threads
from ckpt.elements import histogram as module
from ckpt.elements.cast import as_numbers
from ckpt.elements.compare import compare, compare_all, plan_comparison
from ckpt.elements.histogram import BINS, Histogram, join_histograms
from ckpt.elements.measure import measure_tasks, merge_measurements
from ckpt.model.dtypes import BY_NAME

FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
)
DTYPES = (
    *FLOATS,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def measured(tensor: torch.Tensor) -> Histogram:
    """The histogram of a tensor, as `ckpt stats` makes it."""
    found = merge_measurements(
        [task() for task in measure_tasks(refs.ref_of(tensor), histogram=True)]
    ).summary
    assert found.histogram is not None
    return found.histogram


def moved(before: torch.Tensor, after: torch.Tensor) -> Histogram:
    """The histogram of a difference, as `ckpt diff` makes it."""
    found = compare_all(
        [plan_comparison(refs.ref_of(before), refs.ref_of(after), histogram=True)]
    )[0]
    assert found is not None and found.histogram is not None
    return found.histogram


def array(tensor: torch.Tensor) -> np.ndarray:
    dtype = BY_NAME[str(tensor.dtype).removeprefix("torch.")]
    made = as_numbers(refs.expected(tensor), dtype).copy()
    return np.abs(made) if made.dtype.kind == "c" else made


def check(found: Histogram, values: np.ndarray) -> None:
    """Whether a histogram is that of some numbers, by numpy and by its own words."""
    values = (
        values[np.isfinite(values)].astype("f8") if values.dtype.kind == "f" else values
    )
    low, high = found.edges
    assert (found.low, found.high) == (values.min(), values.max())
    assert sum(found.counts) == len(values) and len(found.counts) <= BINS
    assert found.to_json() == {"low": low, "high": high, "counts": found.counts}
    if found.power is None:
        assert (values == low).all() and low == high and found.counts == [len(values)]
        return
    width = Fraction(2) ** found.power
    edges = [float((found.first + i) * width) for i in range(len(found.counts) + 1)]
    assert (edges[0], edges[-1]) == (low, high)
    assert edges[0] <= values.min() < edges[1] and edges[-2] <= values.max() < edges[-1]
    assert np.histogram(values.astype("f8"), edges)[0].tolist() == found.counts
    is_whole = values.dtype.kind != "f"
    half = width / 2
    if not (is_whole and found.power == 0):
        assert (
            Fraction(values.max().item()) // half
            - Fraction(values.min().item()) // half
            >= BINS
        )
    assert type(low) is (int if is_whole else float)


# --- of one tensor --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [0, 100])
def test_counts_are_those_of_numpy(dtype: torch.dtype, shift: int, nbytes: int) -> None:
    torch.manual_seed(shift)
    wide = torch.randn(nbytes // dtype.itemsize | 1, dtype=torch.float64) * 20 + shift
    if shift:  # from narrow to wide: the bins grow on the way
        wide[: len(wide) // 2] = shift + wide[: len(wide) // 2].sign()
    if dtype in (torch.uint8, torch.bool):
        wide = wide.abs()
    tensor = (wide * (1 + 1j) if dtype.is_complex else wide).to(dtype)

    check(measured(tensor), array(tensor))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize(
    ("scale", "shift"),
    [(1e-3, 1.0), (1e-6, 1.0), (1e4, 0.0), (3e-39, 0.0), (1e-7, 1e-7)],
    ids=str,
)
def test_numbers_of_any_size(
    dtype: torch.dtype, scale: float, shift: float, nbytes: int
) -> None:
    torch.manual_seed(0)
    tensor = (
        torch.randn(nbytes // dtype.itemsize, dtype=torch.float64) * scale + shift
    ).to(dtype)
    found = measured(tensor)
    values = array(tensor)

    low, high = found.edges
    edges = np.linspace(low, high, len(found.counts) + 1)
    if low < high:
        assert np.histogram(values.astype("f8"), edges)[0].tolist() == found.counts
    assert sum(found.counts) == np.isfinite(values).sum()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_only_finite_numbers_are_counted(dtype: torch.dtype, nbytes: int) -> None:
    tensor = (torch.randn(nbytes // dtype.itemsize) * 3).to(dtype)
    tensor[::7] = float("nan")
    if dtype != torch.float8_e4m3fn:
        tensor[1::7] = float("-inf")

    check(measured(tensor), array(tensor))


@pytest.mark.parametrize(
    "tensor", [torch.full((5,), torch.nan), torch.tensor([torch.inf])], ids=str
)
def test_without_a_finite_number_there_is_none(tensor: torch.Tensor) -> None:
    assert measured(tensor).to_json() is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [0, 3])
def test_all_of_it_follows_from_its_range_and_its_counts(
    dtype: torch.dtype, scale: int, nbytes: int
) -> None:
    found = measured((torch.rand(nbytes // dtype.itemsize) * scale).to(dtype))
    assert vars(Histogram.of(found.low, found.high, [*found.counts])) == vars(found)
    assert vars(Histogram.of(0.0, 0.0, [])) == vars(Histogram())
    for low, high, counts in (
        (found.low, found.high, [*found.counts, 0]),
        (found.high + 1, found.high, found.counts),
        (int(found.low), float(found.high), found.counts),
    ):
        with pytest.raises(ValueError):
            Histogram.of(low, high, counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_equal_numbers_are_one_bin(dtype: torch.dtype, nbytes: int) -> None:
    tensor = torch.full((nbytes // dtype.itemsize,), 7, dtype=dtype)

    assert measured(tensor).to_json() == {"low": 7, "high": 7, "counts": [len(tensor)]}


def test_integers_have_whole_bins() -> None:
    found = measured(torch.tensor([-1, 3, 3, 4], dtype=torch.int16))
    assert found.to_json() == {"low": -1, "high": 5, "counts": [1, 0, 0, 0, 2, 1]}

    ends = torch.tensor([-(2**63), 2**63 - 1, 0, -1])
    assert measured(ends).to_json() == {
        "low": -(2**63),
        "high": 2**63,
        "counts": [1, *[0] * 30, 1, 1, *[0] * 30, 1],
    }


def test_a_repeated_row_counts_each_time() -> None:
    row = torch.tensor([[1.0, 2.0, 2.0]])

    change = compare(refs.ref_of(row.expand(5, 3)), refs.ref_of((row * 2).expand(5, 3)))
    found = compare_all(
        [
            plan_comparison(
                refs.ref_of(row.expand(5, 3)),
                refs.ref_of((row * 2).expand(5, 3)),
                histogram=True,
            )
        ]
    )

    assert change is not None and change.histogram is None, "it was not asked for"
    assert found[0] is not None and found[0].histogram is not None
    assert sum(found[0].histogram.counts) == 15 and found[0].histogram.counts[-1] == 10


# --- of a difference ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_differences_are_those_of_numpy(dtype: torch.dtype, nbytes: int) -> None:
    before, after = refs.values(dtype, nbytes), refs.values(dtype, nbytes, 1)
    after[::3] = before[::3]
    if dtype.is_complex:
        one, two = (
            as_numbers(
                refs.expected(side), BY_NAME[str(dtype).removeprefix("torch.")]
            ).copy()
            for side in (before, after)
        )
        delta = np.abs(two - one)
    else:
        one, two = array(before), array(after)
        delta = (
            two - one
            if dtype.is_floating_point
            else two.astype("i8") - one.astype("i8")
        )
    if dtype == torch.int64:  # which float64 does not hold
        delta = np.array(
            [float(int(b) - int(a)) for a, b in zip(one, two, strict=True)]
        )
    with np.errstate(all="ignore"):
        check(moved(before, after), delta)


def test_differences_between_dtypes() -> None:
    before, after = torch.randn(500), torch.randn(500)

    check(moved(before, after.double()), after.double().numpy() - before.numpy())
    check(
        moved(before.bfloat16(), after),
        after.numpy() - before.bfloat16().float().numpy(),
    )
    check(moved(before.int(), after), after.numpy() - before.int().numpy())


def test_differences_that_are_not_finite_are_not_counted() -> None:
    before = torch.tensor([1.0, torch.inf, torch.nan, 3e38, 0.0])
    after = torch.tensor([2.0, torch.inf, 1.0, -3e38, 5.0])

    found = moved(before, after)

    assert (found.low, found.high, sum(found.counts)) == (1.0, 5.0, 2)


def test_equal_parts_of_a_tensor_that_changed_count_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", 16)
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 64)
    before = torch.arange(100.0)
    after = before.clone()
    after[50] += 1

    assert sum(moved(before, after).counts) == 100


# --- laws -----------------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NARROW = st.floats(allow_nan=False, allow_infinity=False, width=32)


def of(values: Sequence[float], kind: str = "f8") -> Histogram:
    found = Histogram()
    numbers_ = np.array(values, kind)
    if len(numbers_):
        found.add(numbers_, numbers_.min().item(), numbers_.max().item())
    found.settle()
    return found


def state(found: Histogram) -> tuple[object, ...]:
    return (
        found.power,
        found.first if found.power is not None else 0,
        found.counts,
        found.edges,
    )


def exact(values: Sequence[float]) -> dict[int, int]:
    """Bin -> count, in fractions."""
    power = of(values).power
    assert power is not None
    width = Fraction(2) ** power
    return dict(sorted(Counter(Fraction(value) // width for value in values).items()))


@given(
    st.lists(
        st.one_of(FINITE, st.sampled_from([0.0, -0.0, -5e-324, 1.7e308])), min_size=2
    )
)
@example([-5e-324, 1e300])
@example([1.7e308, -1.7e308])
@example([0.0, 5e-324])
@example([1.0, 1.0 + 2**-52])
def test_bins_are_exact(values: list[float]) -> None:
    found = of(values)
    if found.power is None:
        assert len(set(values)) == 1
        return

    assert {
        found.first + i: count for i, count in enumerate(found.counts) if count
    } == exact(values)
    assert found.counts[0] and found.counts[-1] and len(found.counts) <= BINS


@given(st.lists(NARROW, min_size=1, max_size=200), st.integers(0, 30))
def test_float32_gives_what_float64_gives(values: list[float], scale: int) -> None:
    small = np.array(values, "f4") / np.float32(2**scale)

    assert state(of(small.tolist(), "f4")) == state(of(small.tolist(), "f8"))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.sampled_from([0, 20, 50, 60]),
)
def test_integers_are_exact(values: list[int], less: int) -> None:
    small = [value >> less for value in values]
    found = of(small, "i8")

    assert found.power is None or {
        found.first + i: count for i, count in enumerate(found.counts) if count
    } == dict(sorted(Counter(value >> found.power for value in small).items()))


@given(
    st.lists(
        st.lists(st.one_of(FINITE, st.sampled_from([0.0, 1.0])), max_size=5), min_size=1
    )
)
def test_any_parts_in_any_order_give_the_same(parts: list[list[float]]) -> None:
    whole = of([value for part in parts for value in part])
    left = Histogram()
    for part in parts:
        left.merge(of(part))
    right = Histogram()
    for part in reversed(parts):
        other = of(part)
        other.merge(right)
        right = other
    one = Histogram()
    seen: list[float] = []
    for part in parts:
        seen += part
        if part:
            one.add(np.array(part), min(seen), max(seen))
    one.settle()

    assert state(left) == state(right) == state(one) == state(whole)


def test_nothing_joins_nothing() -> None:
    assert join_histograms(None, None) is None
    only = of([1.0, 2.0])
    assert join_histograms(only, None) is only and join_histograms(None, only) is only


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_the_same_for_any_executor(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = refs.values(dtype, 1 << 16)
    whole = state(measured(tensor))
    monkeypatch.setattr("ckpt.elements.spans.ELEMENTS", 1 << 8)
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 1 << 12)
    tasks = measure_tasks(refs.ref_of(tensor), histogram=True)
    assert len(tasks) > 3

    for executor in (Serial(), Threads(2), Threads(3)):
        found = merge_measurements(executor.run(tasks)).summary.histogram
        assert found is not None and state(found) == whole


def test_a_result_is_small_and_pickles() -> None:
    tensor = torch.randn(1 << 20)
    result = measure_tasks(refs.ref_of(tensor), histogram=True)[0]()
    found = pickle.loads(pickle.dumps(result))

    assert state(found.summary.histogram) == state(measured(tensor))
    result.summary.histogram.counts = [1 << 40] * BINS
    assert len(pickle.dumps(result)) <= 1024


def test_old_numpy_counts_the_same() -> None:
    tensor = torch.randn(1 << 17)
    with mock.patch.object(module, "has_fast_at", lambda: False):
        old = state(measured(tensor))

    assert old == state(measured(tensor))


def test_a_table_that_is_full_is_emptied() -> None:
    tensor = torch.randn(1 << 18)
    found = Histogram()
    with mock.patch.object(module, "_FULL", 1 << 16):
        check(measured(tensor), tensor.numpy())
        found.add(tensor.numpy(), tensor.min().item(), tensor.max().item())

    assert found._held == 0 and sum(found.counts) == 1 << 18


def test_neighbours_in_float32_are_told_apart() -> None:
    for begin in (-2.0, 1.0, -(2.0**-100), 3e38):
        start = np.array([begin], "f4").view("u4")[0] - np.uint32(9)
        near = (start + np.arange(8, dtype="u4").repeat(2)).view("f4")
        found = of(near.tolist(), "f4")

        check(found, near)
        assert [count for count in found.counts if count] == [2] * 8
