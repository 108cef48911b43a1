"""Figures of blocks in float32, beside the plain formula in float64: counts, places,
maxima and verdicts are equal.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ckpt.elements import double, single
from ckpt.elements.cast import as_numbers
from ckpt.elements.measure import Difference, Summary
from ckpt.model.dtypes import BY_NAME

NAMES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int64",
    "uint64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "complex32",
)
COUNT = 20_011
TOLERANCE = 1e-6
"""The relative error of sums of squares in float32."""


def blocks(name: str, seed: int, how: str) -> bytes:
    """Elements of a type: any bits, or numbers with small differences."""
    random = np.random.default_rng(seed)
    width = BY_NAME[name].bits // 8
    if how == "any":
        return random.integers(0, 256, COUNT * width, "u1").tobytes()
    kind = BY_NAME[name].kind
    if kind in ("int", "bool"):
        return (
            random.integers(0, 2 if kind == "bool" else 100, COUNT)
            .astype(f"i{width}")
            .tobytes()
        )
    if name.startswith(("float8", "bfloat16", "complex32")):
        return random.integers(0x30, 0x38, COUNT * width, "u1").tobytes()
    parts = random.random(COUNT * (2 if kind == "complex" else 1))
    return parts.astype(f"f{width // (2 if kind == 'complex' else 1)}").tobytes()


def plain(one: bytes, two: bytes, name: str, other: str) -> dict[str, object]:
    """The formula over whole arrays."""
    dtypes = BY_NAME[name], BY_NAME[other]
    a, b = (
        as_numbers(data, dtype, row).copy()
        for row, (data, dtype) in enumerate(zip((one, two), dtypes, strict=True))
    )
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if a.dtype.kind in "iu" and a.dtype == b.dtype:
            delta = np.array(
                [float(abs(int(y) - int(x))) for x, y in zip(a, b, strict=True)]
            )
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
        pieces = [
            data[at * w : (at + step) * w]
            for data, w in zip((one, two), widths, strict=True)
        ]
        made.add(pieces[0], pieces[1], (BY_NAME[name], BY_NAME[other]), tolerance)  # type: ignore[arg-type]
    made.settle()
    return made


@pytest.mark.slow
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
        assert found[key] == (
            value if exact else pytest.approx(value, rel=TOLERANCE)
        ), key


@pytest.mark.parametrize("step", [COUNT, 999])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("float8_e4m3fn", "float8_e5m2"),
        ("int8", "uint8"),
        ("bool", "float8_e4m3fnuz"),
        ("float32", "float64"),
        ("float16", "bfloat16"),
        ("int64", "int32"),
        ("complex64", "float32"),
    ],
)
def test_two_types_are_compared_by_their_values(
    name: str, other: str, step: int
) -> None:
    one, two = blocks(name, 1, "any"), blocks(other, 2, "any")

    found = vars(difference(one, two, name, other, step))

    for key, value in plain(one, two, name, other).items():
        exact = key not in ("squares", "reference")
        assert found[key] == (
            value if exact else pytest.approx(value, rel=TOLERANCE)
        ), key


@pytest.mark.parametrize("step", [COUNT, 999])
@pytest.mark.parametrize(
    "name",
    ["float32", "float16", "float8_e4m3fn", "int64", "int8", "uint8", "complex64"],
)
def test_one_element_beyond_the_tolerance_is_enough(name: str, step: int) -> None:
    one = bytearray(blocks(name, 1, "near"))
    width = BY_NAME[name].bits // 8
    two = bytearray(one)
    values = as_numbers(bytes(one), BY_NAME[name]).astype("c16")
    other = blocks(name, 3, "near")
    place = int(
        np.argmax(np.abs(as_numbers(other, BY_NAME[name]).astype("c16") - values))
    )
    two[place * width : (place + 1) * width] = other[
        place * width : (place + 1) * width
    ]
    apart = abs(
        as_numbers(bytes(two), BY_NAME[name]).astype("c16")[place] - values[place]
    )

    assert apart > 0
    assert difference(
        bytes(one), bytes(two), name, name, step, (float(apart), 0.0)
    ).close
    assert not difference(
        bytes(one), bytes(two), name, name, step, (float(apart) * 0.99, 0.0)
    ).close
    whole = apart / abs(values[place])
    assert difference(
        bytes(one), bytes(two), name, name, step, (0.0, float(whole) * 1.01)
    ).close
    assert not difference(
        bytes(one), bytes(two), name, name, step, (0.0, float(whole) * 0.99)
    ).close


def test_the_first_of_several_largest_changes_is_named() -> None:
    for name in ("float8_e5m2", "int8", "int64", "complex64", "float16"):
        zero = bytes(COUNT * BY_NAME[name].bits // 8)
        width = BY_NAME[name].bits // 8
        two = bytearray(zero)
        for at in (5, 7, 18_500, 3):
            two[at * width + width - 1] = 0x40 if at > 3 else 0x3F
        found = difference(zero, bytes(two), name, name, 999)
        assert (found.differing, found.at) == (4, 5), name


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float16", "int8", "int64", "complex64", "float64"]
)
@pytest.mark.parametrize("step", [COUNT, 17_000, 999])
def test_a_larger_change_may_come_later(name: str, step: int) -> None:
    width = BY_NAME[name].bits // 8
    two = bytearray(COUNT * width)
    for at, high in ((4, 0x3C), (17_500, 0x40), (19_000, 0x3C)):
        two[at * width + width - 1] = high

    found = difference(bytes(len(two)), bytes(two), name, name, step)

    assert (found.differing, found.at) == (3, 17_500)


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int8", "uint8", "bool"]
)
@pytest.mark.parametrize("step", [COUNT, 17_000, 999])
@pytest.mark.parametrize("how", ["any", "near"])
def test_summaries_of_bytes_are_those_of_their_values(
    name: str, step: int, how: str
) -> None:
    data = blocks(name, 4, how)
    values = as_numbers(data, BY_NAME[name]).astype("f8")
    finite = values[np.isfinite(values)]

    found = Summary()
    for at in range(0, COUNT, step):
        found.add(data[at : at + step], BY_NAME[name])
    found.settle()

    assert (found.numel, found.finite) == (COUNT, len(finite))
    assert (found.nan, found.inf) == (
        int(np.isnan(values).sum()),
        int(np.isinf(values).sum()),
    )
    assert (found.low, found.high) == (finite.min(), finite.max())
    assert type(found.low) is (float if name.startswith("float") else int)
    assert found.zeros == int((values == 0).sum())
    deviation = max(finite.std(), 2.0**-24 * abs(finite).max())
    assert found.mean == pytest.approx(
        math.fsum(finite) / len(finite), abs=TOLERANCE * deviation
    )
    assert found.squares == pytest.approx(math.fsum(finite**2), rel=TOLERANCE)
    assert math.sqrt(found.spread / len(finite)) == pytest.approx(
        finite.std(), abs=TOLERANCE * deviation
    )


# --- where float32 would lose something -----------------------------------------------


SINGLES = {
    "normal": lambda chance, count: chance.normal(size=count),
    "a mean of 1000, a deviation of 0.1": lambda chance, count: (
        1000 + 0.1 * chance.normal(size=count)
    ),
    "a mean of -1e7, a deviation of 1": lambda chance, count: (
        chance.integers(0, 5, count) - 1e7
    ),
    "squares of gradients": lambda chance, count: (
        chance.normal(size=count) ** 8 * 1e-12
    ),
    "one last bit": lambda chance, count: 1 + (chance.random(count) < 1e-4) * 2.0**-23,
    "two last bits": lambda chance, count: 1 + chance.integers(0, 3, count) * 2.0**-23,
    "equal": lambda chance, count: np.full(count, 0.1),
    "equal but for one": lambda chance, count: np.r_[np.full(count - 1, 0.1), 3],
    "zeros": lambda chance, count: np.zeros(count),
    "subnormal": lambda chance, count: chance.normal(size=count) * 1e-40,
    "squares below float32": lambda chance, count: chance.normal(size=count) * 1e-22,
    "squares beyond float32": lambda chance, count: chance.normal(size=count) * 1e19,
    "everything": lambda chance, count: np.exp(chance.normal(size=count) * 15),
    "a spread below float32": lambda chance, count: (
        4e-18 * (1 + chance.random(count) * 1e-6)
    ),
}


@pytest.mark.parametrize("how", SINGLES)
@pytest.mark.parametrize("step", [1 << 16, 1000])
def test_figures_of_float32_are_those_of_float64(how: str, step: int) -> None:
    one, two = (
        SINGLES[how](np.random.default_rng(seed), 70_000).astype("f4")
        for seed in (1, 2)
    )
    dtype = BY_NAME["float32"]
    found, apart = Summary(), Difference()
    for at in range(0, len(one), step):
        found.add(one[at : at + step].tobytes(), dtype)
        apart.add(
            one[at : at + step].tobytes(),
            two[at : at + step].tobytes(),
            (dtype, dtype),
            None,
        )

    wide, other = one.astype("f8"), two.astype("f8")
    mean = math.fsum(wide) / len(wide)
    std = math.sqrt(math.fsum((wide - mean) ** 2) / len(wide))
    allowed = TOLERANCE * max(std, 2.0**-24 * float(np.abs(wide).max()))
    assert found.mean == pytest.approx(mean, rel=0, abs=allowed)
    assert math.sqrt(found.spread / len(wide)) == pytest.approx(std, rel=0, abs=allowed)
    assert math.sqrt(found.squares) == pytest.approx(
        math.sqrt(math.fsum(wide**2)), rel=TOLERANCE, abs=0
    )
    assert (found.low, found.high, found.zeros) == (
        wide.min(),
        wide.max(),
        int((wide == 0).sum()),
    )
    delta = np.abs(other - wide)
    assert math.sqrt(apart.squares) == pytest.approx(
        math.sqrt(math.fsum(delta**2)), rel=TOLERANCE, abs=0
    )
    assert math.sqrt(apart.reference) == pytest.approx(
        math.sqrt(math.fsum(wide**2)), rel=TOLERANCE, abs=0
    )
    assert (apart.differing, apart.largest) == (int((delta > 0).sum()), delta.max())
    assert apart.at == (int(delta.argmax()) if delta.max() else None)


@pytest.mark.parametrize("how", SINGLES)
def test_the_norm_before_is_that_of_float64_whatever_comes_after(how: str) -> None:
    chance = np.random.default_rng(3)
    one, two = (
        SINGLES[how](chance, 5000).astype("f4"),
        chance.normal(size=5000).astype("f4"),
    )
    dtypes = (BY_NAME["float32"],) * 2

    for before, after in ((one, two), (two, one)):
        found = Difference()
        found.add(before.tobytes(), after.tobytes(), dtypes, None)
        wide, delta = before.astype("f8"), after.astype("f8") - before
        assert found.reference == pytest.approx(
            math.fsum(wide**2), rel=2 * TOLERANCE, abs=0
        )
        assert found.squares == pytest.approx(
            math.fsum(delta**2), rel=2 * TOLERANCE, abs=0
        )


def test_the_largest_change_is_told_from_one_that_float32_rounds_to_it() -> None:
    """1 + 2^-30 and 1 + 2^-29 are both 1 in float32."""
    one = np.array([0, -(2.0**-30), -(2.0**-29), -(2.0**-31)] * 2, "f4")
    two = np.array([0, 1, 1, 1] * 2, "f4")
    dtypes = (BY_NAME["float32"],) * 2

    for step in (8, 4, 1):
        found = Difference()
        for at in range(0, 8, step):
            found.add(
                one[at : at + step].tobytes(),
                two[at : at + step].tobytes(),
                dtypes,
                None,
            )
        assert (found.largest, found.at) == (1 + 2.0**-29, 2), step


@pytest.mark.parametrize("tolerance", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_the_verdict_of_a_tolerance_is_that_of_float64(
    tolerance: tuple[float, float],
) -> None:
    """|Δ| is 1 in float32 where it is a little more or less."""
    dtypes = (BY_NAME["float32"],) * 2
    one = np.full(4000, 1, "f4")
    for tiny, expected in ((2.0**-40, True), (-(2.0**-40), False)):
        two = np.full(4000, 1.5, "f4")
        two[1234] = tiny
        found = Difference()
        found.add(two.tobytes(), one.tobytes(), dtypes, (tolerance[0], 0.0))
        apart = 1 - float(np.float32(tiny))
        assert found.close == (max(apart, 0.5) <= tolerance[0])
        found = Difference()
        found.add(one.tobytes(), two.tobytes(), dtypes, tolerance)
        assert found.close is expected


def test_blocks_of_float32_are_measured_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All the types that it holds, but for blocks with NaN or an infinity, and for
    numbers out of its reach.
    """
    used: list[str] = []
    for name in ("measure_delta", "measure_moments"):
        shipped = getattr(double, name)
        monkeypatch.setattr(
            double,
            name,
            lambda *words, shipped=shipped: used.append("double") or shipped(*words),
        )
    for name in set(NAMES) - {
        "float8_e8m0fnu"
    }:  # 2 to so low powers that the squares are lost
        used.clear()
        one, two = blocks(name, 1, "near"), blocks(name, 2, "near")
        difference(one, two, name, name, COUNT)
        if not name.startswith("complex"):
            Summary().add(one, BY_NAME[name])
        is_single = (
            BY_NAME[name].bits <= (32 if BY_NAME[name].kind == "float" else 16)
            and "complex" not in name
        )
        assert bool(used) is not is_single, name
        assert single.is_held_by_float32(BY_NAME[name]) is is_single


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e4m3fnuz", "int8", "uint8", "bool"]
)
def test_differences_that_float32_is_said_to_hold_are_exact(name: str) -> None:
    codes = np.arange(2 if name == "bool" else 256, dtype="u1")
    values = as_numbers(codes.tobytes(), BY_NAME[name]).astype("f8")
    values = values[np.isfinite(values)]
    apart = values[:, None] - values[None, :]

    assert single.has_exact_differences(BY_NAME[name], BY_NAME[name])
    assert (apart.astype("f4") == apart).all()


def test_float32_does_not_hold_the_differences_of_all_types_that_it_holds() -> None:
    for one, two in (
        ("float16", "float16"),
        ("bfloat16", "int8"),
        ("float8_e4m3fn", "int16"),
    ):
        assert not single.has_exact_differences(BY_NAME[one], BY_NAME[two])
    assert single.has_exact_differences(BY_NAME["int16"], BY_NAME["uint16"])


@pytest.mark.parametrize("share", [1.0, 0.01])
@pytest.mark.parametrize(
    "name",
    ["float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "int16", "int8"],
)
def test_of_many_changes_that_are_equal_in_float32_the_largest_is_named(
    name: str, share: float
) -> None:
    random = np.random.default_rng(7)
    old = as_numbers(blocks(name, 1, "near"), BY_NAME[name]).copy()
    moved = random.random(COUNT) < share
    new = (old + moved).astype(
        old.dtype
    )  # float32 rounds: the changes differ in float64
    if old.dtype == np.float32 and name != "float32":
        new = np.where(moved, old * 2, old)  # exact in each of the narrow floats
    expected = np.abs(new.astype("f8") - old.astype("f8"))

    is_exact = single.has_exact_differences(BY_NAME[name])

    found = single.measure_delta(old, new, 0.0, None, is_exact=is_exact)

    assert found is not None
    assert (found.largest, found.at) == (expected.max(), int(expected.argmax()))
    again = single.measure_delta(old, new, found.largest, None, is_exact=is_exact)
    assert again is not None
    assert (again.largest, again.at) == (expected.max(), None)


@pytest.mark.parametrize(
    ("first", "rest", "spread"),
    [
        (0.0, 1000.0, 0.1),
        (1000.0, 0.0, 0.1),
        (1000.0, 1000.0, 0.1),
        (-5.0, 5.0, 1.0),
        (0.5, 0.5, 0.28),
        (1e20, 1.0, 0.1),
        (1.0, 1e14, 1e13),
        (3e-16, 3e-16, 1e-16),
        (0.0, 1.1, 0.0),
        (0.0, 1.7, 0.0),
        (0.0, 0.3, 0.0),  # the squares of equal numbers are all rounded one way
    ],
)
def test_the_first_numbers_of_a_block_may_mislead(
    first: float, rest: float, spread: float
) -> None:
    random = np.random.default_rng(3)
    values = (random.standard_normal(COUNT) * spread + rest).astype("f4")
    values[:1024] += np.float32(first - rest)
    wide = values.astype("f8")
    summary = Summary()

    summary.add(values.tobytes(), BY_NAME["float32"])

    assert math.sqrt(summary.squares) == pytest.approx(
        math.sqrt(float(wide @ wide)), rel=1e-6
    )
    deviation = float(wide.std())
    assert math.sqrt(summary.spread / COUNT) == pytest.approx(
        deviation, abs=1e-6 * max(deviation, 2**-24)
    )
    assert summary.mean == pytest.approx(
        float(wide.mean()), abs=1e-6 * max(deviation, 2**-24 * abs(rest))
    )
