"""How far each module moved: counts, norms, and the depth at which names are cut."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from rewriting import compared

from ckpt.jobs.diff.rows import depth_that_fits, modules

pytestmark = oracle.QUIET
BEFORE = {
    "a.x.weight": torch.full((4,), 2.0),
    "a.y.weight": torch.full((4,), 2.0),
    "b.x.weight": torch.zeros(4),
    "b.y.weight": torch.ones(4),
}


def test_a_module_counts_its_tensors_and_adds_their_squares(tmp_path: Path) -> None:
    after = {**BEFORE, "a.x.weight": torch.full((4,), 3.0), "b.x.weight": torch.ones(4)}
    after["b.y.weight"] = after["b.y.weight"].double()
    rows = compared(BEFORE, after, tmp_path, norms=True).rows

    found = {row.name: row for row in modules(rows, 1)}
    assert list(found) == ["a", "b"]
    assert (found["a"].tensors, found["a"].changed) == (2, 1)
    assert found["a"].rel_l2 == pytest.approx((4 / 32) ** 0.5)
    assert (found["b"].tensors, found["b"].changed) == (2, 2)  # of the other dtype, and moved

    deep = {row.name: row for row in modules(rows)}
    assert deep["a.y"].rel_l2 == 0.0
    assert deep["b.x"].rel_l2 is None, "there was nothing before to measure it by"


def test_names_are_cut_at_the_deepest_place_that_leaves_few_enough(tmp_path: Path) -> None:
    rows = compared(BEFORE, BEFORE, tmp_path, norms=True).rows
    assert [depth_that_fits(rows, most) for most in (5, 4, 3, 2, 1)] == [2, 2, 1, 1, 1]
