"""A histogram in one row of characters: as high as its counts are many, and blank only
where there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.commands.inspect.bars import LEVELS, draw_counts, spark_text
from ckpt.elements.histogram import Histogram


def of(values: Sequence[float], kind: str = "f8") -> Histogram:
    found = Histogram()
    held = np.array(values, kind)
    if len(held):
        found.add(held, held.min().item(), held.max().item())
    found.settle()
    return found


@pytest.mark.parametrize(
    ("counts", "picture"),
    [
        ([], ""),
        ([5], "█"),
        ([8, 7, 6, 5, 4, 3, 2, 1, 0], "█▇▆▅▄▃▂▁ "),
        ([1, 1_000_000], "▁█"),
        ([0.1, 0.3], "▃█"),
    ],
)
def test_counts_are_drawn(counts: list[float], picture: str) -> None:
    assert draw_counts(counts) == picture


@pytest.mark.parametrize(
    ("values", "picture"),
    [
        ([], ""),
        ([3.0, 3.0], "█"),
        (np.linspace(-0.148, 0.148, 100_000), "█" * 16),
        (np.linspace(0.9, 7.3, 100_000), "█" * 16),
        ([0.0, 1.0], "█              █"),
        ([0.0] * 4 + [1.0] + [2.0] * 8, "▄       ▁      █"),
        (
            np.concatenate([np.linspace(0, 1, 40_000), np.linspace(1, 2, 80_000)]),
            "▄▄▄▄▄▄▄▄████████",
        ),
    ],
)
def test_cells_reach_from_the_least_number_to_the_largest(
    values: Sequence[float], picture: str
) -> None:
    assert spark_text(of(values)) == picture


def test_integers_fill_their_bins() -> None:
    assert spark_text(of([0, 1, 1, 3], "i4")) == "▄█ ▄"
    assert spark_text(of(list(range(32)), "i4")) == "█" * 16
    assert spark_text(of(list(range(100)), "i4")) == "█" * 16


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.integers(1, 20))
def test_a_blank_is_nothing_and_the_highest_is_full(
    values: list[float], width: int
) -> None:
    found = of(values)
    picture = spark_text(found, width)

    assert len(picture) == min(len(found.counts), width) and set(picture) <= {
        *LEVELS,
        " ",
    }
    assert "█" in picture and picture[0] != " " and picture[-1] != " "
