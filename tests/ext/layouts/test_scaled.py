"""Which tensors may be another one but for a number: found in tables, as looking at each
pair finds them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.ext.layouts.scaled import _Tables

SLACK = 2.0**-6
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -4.0, 0.25, 1e30, np.inf])
"""Few numbers, so that rows are multiples of each other, and moved by 1."""


@st.composite
def rows_of_numbers(
    draw: st.DrawFn,
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    width = draw(st.integers(2, 4))
    rows = st.lists(NUMBERS, min_size=width, max_size=width)
    return np.array(draw(st.lists(rows, min_size=2, max_size=12)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(rows_of_numbers())
@settings(max_examples=300, deadline=None)
def test_tables_find_what_each_pair_says(
    rows: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    own, others = rows[0], rows[1:]
    fits: list[int] = []
    most = int(np.abs(own).argmax())
    for number, row in enumerate(others):
        factor = own[most] / row[most]
        is_multiple = np.abs(row * factor - own) <= SLACK * np.abs(own)
        if not own.any():
            is_multiple = row == 0
        is_moved = np.abs(np.abs(row - own) - 1) <= SLACK * 2
        if is_multiple.all() or is_moved.all():
            fits.append(number)
    assert _Tables(others, SLACK).fitting(own) == fits
