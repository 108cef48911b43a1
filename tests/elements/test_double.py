"""Figures of blocks in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ckpt.elements.measure import Difference, Summary
from ckpt.model.dtypes import BY_NAME

COUNT = 20_011


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_complex_numbers_whose_squares_are_lost_have_a_difference(
    factor: float,
) -> None:
    one = np.array([3 + 4j, 1, 2j] * 100)
    two = one.copy()
    two[7] += 3 - 4j

    found = Difference()
    found.add(
        (one * factor).tobytes(),
        (two * factor).tobytes(),
        (BY_NAME["complex128"],) * 2,
        None,
    )

    assert (found.differing, found.at) == (1, 7) and found.largest == pytest.approx(
        5 * factor
    )


def test_squares_that_are_lost_do_not_decide_which_change_is_the_largest() -> None:
    """Its |Δ|² is 1.4 of the smallest numbers, which rounds to 1; the other's is 0.6
    twice, which rounds to 2.
    """
    two = np.zeros(9, "c16")
    two[2], two[5] = 1.72e-162 * (1 + 1j), 2.63e-162

    found = Difference()
    found.add(bytes(two.nbytes), two.tobytes(), (BY_NAME["complex128"],) * 2, None)

    assert (found.differing, found.at, found.largest) == (2, 5, 2.63e-162)


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
    assert found.spread == pytest.approx(0, abs=1e-20) and (
        found.low,
        found.high,
        found.zeros,
    ) == (
        0.1,
        0.1,
        0,
    )
