"""Counts in one row of characters: as high as they are many, and blank only where there is nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.render.spark import CELLS, LEVELS, spark


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [
        ([], ""),
        ([5], "█"),
        ([8, 7, 6, 5, 4, 3, 2, 1, 0], "█▇▆▅▄▃▂▁ "),
        ([1, 1_000_000], "▁█"),
        ([1] * 16, "█" * 16),
        ([1] * 64, "█" * 16),
        ([1] * 33, "█" * 16),
        ([0] * 31 + [1] + [0] * 32, "       █        "),
        ([1] + [0] * 62 + [1], "█              █"),
    ],
)
def test_counts_are_drawn(counts: list[int], drawn: str) -> None:
    assert spark(counts) == drawn


@given(st.lists(st.integers(0, 1 << 40), max_size=64), st.integers(1, 20))
def test_a_blank_is_nothing_and_the_highest_is_full(counts: list[int], width: int) -> None:
    drawn = spark(counts, width)

    assert len(drawn) == min(len(counts), width) and set(drawn) <= {*LEVELS, " "}
    assert ("█" in drawn) == any(counts)
    for at, char in enumerate(drawn):
        first, last = at * len(counts) // len(drawn), -(-(at + 1) * len(counts) // len(drawn))
        assert (char == " ") == (not any(counts[first:last]))


def test_a_bin_between_two_cells_adds_to_both() -> None:
    assert spark([0, 6, 0], 2) == "██"
    assert spark([4, 2, 0], 2) == "█▂"
    assert CELLS == 16
