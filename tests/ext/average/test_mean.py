"""The mean of tensors: every float dtype against torch, any part of it, and nothing
that depends on spans or threads.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import refs
import rewriting
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt import formats
from ckpt.bytes import executor
from ckpt.elements import cast
from ckpt.ext.average import mean
from ckpt.ext.average.mean import Mean
from ckpt.model.dtypes import BY_NAME
from ckpt.model.places import Checksum, Range
from ckpt.model.tensors import TensorRef

NAMES = sorted(cast.AVERAGED)


@pytest.fixture(params=[(5, 1), (64, executor.AHEAD), (mean.ELEMENTS, executor.AHEAD)])
def spans(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    elements, ahead = request.param
    monkeypatch.setattr(mean, "ELEMENTS", elements)
    monkeypatch.setattr(executor, "AHEAD", ahead)
    monkeypatch.setattr(executor, "count_cpus", lambda: 3)
    yield


def dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def expected(tensors: list[torch.Tensor], shares: list[float], name: str) -> bytes:
    """The mean as torch makes it: added in float64, and cast."""
    total = tensors[0].double() * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total = total + tensor.double() * share
    return refs.expected(total.to(dtype(name)))


def made(place: Mean) -> bytes:
    return b"".join(place.read_blocks())


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize("name", NAMES)
def test_a_mean_is_what_torch_computes_in_float64_and_casts(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    shares = [0.5, 0.3, 0.2]
    for other in NAMES:
        for shape in ((7, 13), (300,), (), (0, 3)):
            tensors = [
                torch.randn(shape, generator=generator).to(dtype(each))
                for each in (other, "float32", name)
            ]

            place = Mean([refs.ref_of(each) for each in tensors], shares, BY_NAME[name])

            assert made(place) == expected(tensors, shares, name), (other, shape)


@pytest.mark.slow
@pytest.mark.parametrize("most", [math.inf, 3.4028e38, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_rounded_as_torch_rounds(name: str, most: float) -> None:
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    numbers = bits.to(torch.int32).view(torch.float32).double()
    numbers = torch.cat(
        [
            numbers,
            numbers * (1 + 2**-40),
            torch.tensor([1e300, -1e300, 0.1, 65519.9, 65520.0]),
        ]
    )
    if most < math.inf:  # then no block holds NaN or Inf
        numbers = numbers[numbers.abs() < most]
    told: list[int] = []

    ours = b"".join(
        Mean([refs.ref_of(numbers)], [1.0], BY_NAME[name]).read_blocks(
            tally=told.append
        )
    )

    theirs = numbers.to(dtype(name))
    width = theirs.element_size()
    ours_of = torch.frombuffer(bytearray(ours), dtype=torch.uint8).view(-1, width)
    same = (ours_of == theirs.view(torch.uint8).view(-1, width)).all(1)
    is_nan = theirs.double().isnan()
    assert bool((same | is_nan).all())
    again = ours_of.flatten().view(dtype(name)).double()
    assert bool((again.isnan() == is_nan).all())
    if (
        name == "float8_e4m3fn"
    ):  # it has no infinity, and torch takes the largest number
        assert sum(told) == int(
            ((numbers.float().abs() > 464) & numbers.isfinite()).sum()
        )
    elif name != "float64":
        assert sum(told) == int((~theirs.double().isfinite()).sum()) - int(
            (~numbers.isfinite()).sum()
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_the_mean_of_copies_is_the_tensor_bit_for_bit(name: str, count: int) -> None:
    tensor = torch.randn(
        999, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(dtype(name))
    tensor[:3] = torch.tensor([0.0, -0.0, 0.1]).to(dtype(name))

    place = Mean([refs.ref_of(tensor)] * count, [1 / count] * count, BY_NAME[name])

    assert made(place) == refs.expected(tensor)


def test_nan_and_infinity_spread_as_in_torch() -> None:
    inf, nan = math.inf, math.nan
    one = torch.tensor([nan, inf, inf, -inf, 1.0])
    two = torch.tensor([1.0, 2.0, -inf, -inf, 2.0])

    got = made(
        Mean([refs.ref_of(one), refs.ref_of(two)], [0.5, 0.5], BY_NAME["float32"])
    )

    found = torch.frombuffer(bytearray(got), dtype=torch.float32)
    assert torch.equal(
        found.nan_to_num(7.0), torch.tensor([nan, inf, nan, -inf, 1.5]).nan_to_num(7.0)
    )


LAYOUTS: dict[str, Callable[[torch.Tensor], TensorRef]] = {
    "as it is": lambda tensor: refs.ref_of(tensor),
    "big-endian": lambda tensor: refs.ref_of(tensor, big=True),
    "deflated": lambda tensor: refs.ref_of(tensor, is_deflated=True),
    "transposed": lambda tensor: refs.ref_of(tensor.t().contiguous().t()),
    "a slice": lambda tensor: refs.ref_of(
        torch.cat([tensor, tensor, tensor])[len(tensor) : 2 * len(tensor)]
    ),
}


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_any_layout_and_any_part_is_averaged(layout: str, name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = [
        torch.randn(31, 17, generator=generator).to(dtype(name)) for _ in range(3)
    ]
    given_refs = [
        refs.ref_of(tensors[0]),
        LAYOUTS[layout](tensors[1]),
        refs.ref_of(tensors[2]),
    ]
    place = Mean(given_refs, [0.25, 0.25, 0.5], BY_NAME[name])
    whole = expected(tensors, [0.25, 0.25, 0.5], name)

    assert made(place) == whole
    for start, count in (
        (0, 0),
        (0, 1),
        (1, 2),
        (3, 100),
        (64, 64),
        (len(whole) - 3, 3),
        (len(whole), 0),
    ):
        assert b"".join(place.read_blocks(start, count)) == whole[start : start + count]


def recorded(tensor: torch.Tensor) -> TensorRef:
    """A tensor over a record with a checksum."""
    ref = refs.ref_of(tensor)
    return ref._replace(storage=ref.storage._replace(crc=zlib.crc32(refs.raw(tensor))))


def test_a_mean_pickles(tmp_path: Path) -> None:
    paths = [
        rewriting.saved({"a": torch.full((9,), number)}, tmp_path / f"{number}.pt")
        for number in (1.0, 4.0)
    ]
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        tensors = [opened.tensors[0].tensor for opened in (one, two)]
        place = Mean(
            [ref for ref in tensors if isinstance(ref, TensorRef)],
            [0.5, 0.5],
            BY_NAME["float32"],
        )

        assert made(pickle.loads(pickle.dumps(place))) == refs.expected(
            torch.full((9,), 2.5)
        )


def test_every_source_and_every_checksum_of_a_mean_is_known() -> None:
    tensors = [torch.randn(300) for _ in range(3)]
    given_refs = [recorded(each) for each in tensors]
    place = Mean(given_refs, [0.2, 0.3, 0.5], BY_NAME["float32"])
    ranges = [ref.storage.place for ref in given_refs]

    assert {id(source) for source in place.list_sources()} == {
        id(each.source) for each in ranges if isinstance(each, Range)
    }
    assert {row.place for row in place.list_checksums()} == set(ranges)


@pytest.mark.usefixtures("spans")
def test_the_checksums_of_records_are_computed_while_they_are_added() -> None:
    tensors = [torch.randn(300), torch.randn(300).bfloat16(), torch.randn(900)[300:600]]
    given_refs = [recorded(each) for each in tensors]
    place = Mean(given_refs, [0.2, 0.3, 0.5], BY_NAME["float32"])
    passed: list[tuple[Checksum, int]] = []

    whole = b"".join(
        map(
            bytes,
            place.stream_blocks(
                0, place.nbytes, None, lambda row, crc: passed.append((row, crc))
            ),
        )
    )

    assert whole == made(place)
    assert [(row.crc, crc) for row, crc in passed] == [
        (ref.storage.crc, ref.storage.crc) for ref in given_refs[:2]
    ]
    passed.clear()
    list(place.stream_blocks(0, 8, None, lambda row, crc: passed.append((row, crc))))
    assert not passed  # of a part nothing is known


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_means(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    count = data.draw(st.integers(1, 4))
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=count, max_size=count))
    ratios = data.draw(st.lists(st.floats(0.01, 100), min_size=count, max_size=count))
    shares = [ratio / math.fsum(ratios) for ratio in ratios]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tensors = [
        torch.randn(shape, generator=generator).mul(10).to(dtype(name))
        for name in names
    ]
    target = data.draw(st.sampled_from([name for name in NAMES if name != "float64"]))

    place = Mean([refs.ref_of(each) for each in tensors], shares, BY_NAME[target])

    assert made(place) == expected(tensors, shares, target)
