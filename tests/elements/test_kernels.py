"""The fast ways to difference blocks, beside the plain formula over any bits: counts, places and maxima are equal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ckpt.dtypes import BY_NAME
from ckpt.elements import pairs as kernels
from ckpt.elements.cast import numbers
from ckpt.elements.measure import Difference, Summary

NAMES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "int64", "uint64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "complex32"),
)
COUNT = 20_011


def blocks(name: str, seed: int, how: str) -> bytes:
    """Elements of a type: any bits, or numbers with small differences."""
    random = np.random.default_rng(seed)
    width = BY_NAME[name].bits // 8
    if how == "any":
        return random.integers(0, 256, COUNT * width, "u1").tobytes()
    kind = BY_NAME[name].kind
    if kind in ("int", "bool"):
        return random.integers(0, 2 if kind == "bool" else 100, COUNT).astype(f"i{width}").tobytes()
    if name.startswith(("float8", "bfloat16", "complex32")):
        return random.integers(0x30, 0x38, COUNT * width, "u1").tobytes()
    parts = random.random(COUNT * (2 if kind == "complex" else 1))
    return parts.astype(f"f{width // (2 if kind == 'complex' else 1)}").tobytes()


def plain(one: bytes, two: bytes, name: str, other: str) -> dict[str, object]:
    """The formula over whole arrays."""
    dtypes = BY_NAME[name], BY_NAME[other]
    a, b = (
        numbers(data, dtype, row).copy()
        for row, (data, dtype) in enumerate(zip((one, two), dtypes, strict=True))
    )
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if a.dtype.kind in "iu" and a.dtype == b.dtype:
            delta = np.array([float(abs(int(y) - int(x))) for x, y in zip(a, b, strict=True)])
        else:
            kind = "c16" if "c" in a.dtype.kind + b.dtype.kind else "f8"
            delta = np.abs(b.astype(kind) - a.astype(kind))
        delta[~np.isfinite(delta)] = 0
        codes = [np.frombuffer(data, "u1").reshape(COUNT, -1) for data in (one, two)]
        raw = int((codes[0] != codes[1]).any(1).sum()) if name == other else 0
        size = np.abs(a.astype("c16" if a.dtype.kind == "c" else "f8"))
        size[~np.isfinite(size)] = 0
        squares, reference = float(np.dot(delta, delta)), float(np.dot(size, size))
    differing = int((~same).sum())
    return {
        "numel": COUNT,
        "differing": differing,
        "other_bytes": raw - differing if name == other else 0,
        "largest": delta.max(),
        "at": int(delta.argmax()) if delta.max() else None,
        "squares": squares,
        "reference": reference,
        "nan": [int(np.isnan(x).sum()) if x.dtype.kind in "fc" else 0 for x in (a, b)],
        "inf": [int(np.isinf(x).sum()) if x.dtype.kind in "fc" else 0 for x in (a, b)],
    }


def difference(
    one: bytes, two: bytes, name: str, other: str, step: int, tolerance: object = None
) -> Difference:
    widths = BY_NAME[name].bits // 8, BY_NAME[other].bits // 8
    made = Difference()
    for at in range(0, COUNT, step):
        pieces = [data[at * w : (at + step) * w] for data, w in zip((one, two), widths, strict=True)]
        made.add(pieces[0], pieces[1], (BY_NAME[name], BY_NAME[other]), tolerance)  # type: ignore[arg-type]
    made.settle()
    return made


@pytest.mark.parametrize("how", ["any", "near", "few"])
@pytest.mark.parametrize("step", [COUNT, 17_000, 999])
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_counts_as_the_formula_does(name: str, step: int, how: str) -> None:
    one, two = blocks(name, 1, how), blocks(name, 2, how)
    if how == "few":  # the first and the last third are equal
        third = len(one) // 3 // 16 * 16
        two = one[:third] + two[third : 2 * third] + one[2 * third :]
    expected = plain(one, two, name, name)

    found = vars(difference(one, two, name, name, step))

    for key, value in expected.items():
        exact = key not in ("squares", "reference")
        assert found[key] == (value if exact else pytest.approx(value, rel=1e-12)), key


@pytest.mark.parametrize("step", [COUNT, 999])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("float8_e4m3fn", "float8_e5m2"), ("int8", "uint8"), ("bool", "float8_e4m3fnuz")),
        *(("float32", "float64"), ("float16", "bfloat16"), ("int64", "int32"), ("complex64", "float32")),
    ],
)
def test_two_types_are_compared_by_their_values(name: str, other: str, step: int) -> None:
    one, two = blocks(name, 1, "any"), blocks(other, 2, "any")

    found = vars(difference(one, two, name, other, step))

    for key, value in plain(one, two, name, other).items():
        exact = key not in ("squares", "reference")
        assert found[key] == (value if exact else pytest.approx(value, rel=1e-12)), key


@pytest.mark.parametrize("step", [COUNT, 999])
@pytest.mark.parametrize(
    "name", ["float32", "float16", "float8_e4m3fn", "int64", "int8", "uint8", "complex64"]
)
def test_one_element_beyond_the_tolerance_is_enough(name: str, step: int) -> None:
    one = bytearray(blocks(name, 1, "near"))
    width = BY_NAME[name].bits // 8
    two = bytearray(one)
    values = numbers(bytes(one), BY_NAME[name]).astype("c16")
    other = blocks(name, 3, "near")
    place = int(np.argmax(np.abs(numbers(other, BY_NAME[name]).astype("c16") - values)))
    two[place * width : (place + 1) * width] = other[place * width : (place + 1) * width]
    apart = abs(numbers(bytes(two), BY_NAME[name]).astype("c16")[place] - values[place])

    assert apart > 0
    assert difference(bytes(one), bytes(two), name, name, step, (float(apart), 0.0)).close
    assert not difference(bytes(one), bytes(two), name, name, step, (float(apart) * 0.99, 0.0)).close
    whole = apart / abs(values[place])
    assert difference(bytes(one), bytes(two), name, name, step, (0.0, float(whole) * 1.01)).close
    assert not difference(bytes(one), bytes(two), name, name, step, (0.0, float(whole) * 0.99)).close


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_complex_numbers_whose_squares_are_lost_have_a_difference(factor: float) -> None:
    one = np.array([3 + 4j, 1, 2j] * 100)
    two = one.copy()
    two[7] += 3 - 4j

    found = Difference()
    found.add((one * factor).tobytes(), (two * factor).tobytes(), (BY_NAME["complex128"],) * 2, None)

    assert (found.differing, found.at) == (1, 7) and found.largest == pytest.approx(5 * factor)


def test_the_first_of_several_largest_changes_is_named() -> None:
    for name in ("float8_e5m2", "int8", "int64", "complex64", "float16"):
        zero = bytes(COUNT * BY_NAME[name].bits // 8)
        width = BY_NAME[name].bits // 8
        two = bytearray(zero)
        for at in (5, 7, 18_500, 3):
            two[at * width + width - 1] = 0x40 if at > 3 else 0x3F
        found = difference(zero, bytes(two), name, name, 999)
        assert (found.differing, found.at) == (4, 5), name


def test_squares_that_are_lost_do_not_decide_which_change_is_the_largest() -> None:
    """Its |Δ|² is 1.4 of the smallest numbers, which rounds to 1; the other's is 0.6 twice, which rounds to 2."""
    two = np.zeros(9, "c16")
    two[2], two[5] = 1.72e-162 * (1 + 1j), 2.63e-162

    found = Difference()
    found.add(bytes(two.nbytes), two.tobytes(), (BY_NAME["complex128"],) * 2, None)

    assert (found.differing, found.at, found.largest) == (2, 5, 2.63e-162)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float16", "int8", "int64", "complex64", "float64"])
@pytest.mark.parametrize("step", [COUNT, 17_000, 999])
def test_a_larger_change_may_come_later(name: str, step: int) -> None:
    width = BY_NAME[name].bits // 8
    two = bytearray(COUNT * width)
    for at, high in ((4, 0x3C), (17_500, 0x40), (19_000, 0x3C)):
        two[at * width + width - 1] = high

    found = difference(bytes(len(two)), bytes(two), name, name, step)

    assert (found.differing, found.at) == (3, 17_500)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int8", "uint8", "bool"])
@pytest.mark.parametrize("step", [COUNT, 17_000, 999])
@pytest.mark.parametrize("how", ["any", "near"])
def test_summaries_of_bytes_are_those_of_their_values(name: str, step: int, how: str) -> None:
    data = blocks(name, 4, how)
    values = numbers(data, BY_NAME[name]).astype("f8")
    finite = values[np.isfinite(values)]

    found = Summary()
    for at in range(0, COUNT, step):
        found.add(data[at : at + step], BY_NAME[name])
    found.settle()

    assert (found.numel, found.finite) == (COUNT, len(finite))
    assert (found.nan, found.inf) == (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    assert (found.low, found.high) == (finite.min(), finite.max())
    assert type(found.low) is (float if name.startswith("float") else int)
    assert found.zeros == int((values == 0).sum())
    assert found.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-12)
    assert found.squares == pytest.approx(math.fsum(finite**2), rel=1e-12)
    assert found.spread == pytest.approx(math.fsum((finite - finite.mean()) ** 2), rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.1, 3.0, 1e3, 1e7, -1e7])
def test_the_spread_keeps_its_digits(shift: float) -> None:
    values = np.random.default_rng(5).normal(size=COUNT) + shift
    found = Summary()

    found.add(values.tobytes(), BY_NAME["float64"])

    mean = math.fsum(values) / COUNT
    assert found.spread == pytest.approx(math.fsum((values - mean) ** 2), rel=1e-12)


def test_a_constant_has_no_spread() -> None:
    found = Summary()
    found.add(np.full(COUNT, 0.1).tobytes(), BY_NAME["float64"])
    assert found.spread == pytest.approx(0, abs=1e-20) and (found.low, found.high, found.zeros) == (
        0.1,
        0.1,
        0,
    )


def test_counts_beyond_32_bits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpt.elements import pairs

    monkeypatch.setattr(pairs, "_FULL", 1 << 16)
    for fast in (True, False):
        monkeypatch.setattr(pairs, "has_fast_at", lambda fast=fast: fast)
        counter = pairs.Counter()
        codes = np.random.default_rng(1).integers(0, 1 << 16, 50_000).astype("u2")
        for _ in range(4):
            counter.add(codes)
        assert (counter.counts == 4 * np.bincount(codes, minlength=1 << 16)).all()
        assert int(counter.recent.sum()) == 50_000


@pytest.mark.parametrize("name", ["int8", "uint8"])
def test_equal_blocks_have_the_sum_of_their_squares_and_no_difference(name: str) -> None:
    data = np.array([1, -2, 3], "i1").tobytes() if name == "int8" else bytes([1, 2, 3])
    assert kernels._octets(data, data, BY_NAME[name], 0.0) == kernels.Delta(0, 0.0, None, 0.0, 14.0)
