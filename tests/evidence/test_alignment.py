"""Names that go together: as they are where that is as good, without wrappers where
that is better.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from rewriting import compared, statuses

from ckpt import formats
from ckpt.evidence.alignment import Alignment, best_ways
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError

pytestmark = oracle.QUIET


def alignment(state: Any, folder: Path, name: str, **options: Any) -> Alignment:
    with formats.open(str(rewriting.saved(state, folder / name))) as checkpoint:
        return Alignment(Survey(checkpoint).models[-1], checkpoint.path, **options)


def tensors(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2,), float(number)) for number, name in enumerate(names)}


def test_names_stay_as_they_are_where_all_ways_are_as_good(tmp_path: Path) -> None:
    one = alignment(tensors("module.a.weight", "module.a.bias"), tmp_path, "a.pt")
    two = alignment(tensors("module.a.weight", "module.a.bias"), tmp_path, "b.pt")
    assert best_ways(one, two) == (0, 0)
    assert (one.prefix(0), one.prefix(1)) == ("", "module.")


def test_each_side_gives_up_its_own_wrapper(tmp_path: Path) -> None:
    one = alignment(tensors("module.a.weight", "module.a.bias"), tmp_path, "a.pt")
    two = alignment(tensors("_orig_mod.a.weight", "_orig_mod.a.bias"), tmp_path, "b.pt")
    plain = alignment(tensors("a.weight", "a.bias"), tmp_path, "c.pt")
    assert best_ways(one, two) == (1, 1)
    assert best_ways(one, plain) == (1, 0)
    assert best_ways(plain, two) == (0, 1)


def test_names_are_those_inside_of_the_section_and_indices_those_of_the_file(
    tmp_path: Path,
) -> None:
    state = {
        "ema": tensors("a.weight", "a.bias"),
        "model": tensors("module.a.weight", "module.a.bias"),
    }
    found = alignment(state, tmp_path, "a.pt")
    assert found.require(1) == {"a.weight": 2, "a.bias": 3}


def test_two_tensors_that_would_become_one_are_named(tmp_path: Path) -> None:
    state = {
        "ema": tensors("a.bias", "b.bias"),
        "model": tensors("a.weight", "module.a.weight"),
    }
    found = alignment(state, tmp_path, "a.pt")
    assert found.ways[1] is None
    with pytest.raises(UsageError) as caught:
        found.require(1)
    assert "model.a.weight" in str(caught.value) and "model.module.a.weight" in str(
        caught.value
    )


def test_only_what_counts_is_aligned(tmp_path: Path) -> None:
    state = tensors("a.weight", "a.bias")
    found = alignment(
        state, tmp_path, "a.pt", keep=lambda entry: entry.name != "a.bias"
    )
    assert found.require(0) == {"a.weight": 0}


def test_a_diff_refuses_names_that_only_alignment_would_make_one(
    tmp_path: Path,
) -> None:
    before = tensors("a.weight", "module.a.weight", "module.b.weight")
    with pytest.raises(UsageError):
        compared(before, tensors("a.weight", "b.weight"), tmp_path)
    report = compared(
        before, tensors("a.weight", "c.weight"), tmp_path
    )  # nothing asks for it
    assert statuses(report)["a.weight"] == "same"


def test_averaged_weights_are_aligned_as_the_model_is(tmp_path: Path) -> None:
    state = tensors("module.a.weight", "module.a.bias")
    plain = {name.removeprefix("module."): value for name, value in state.items()}
    report = compared(
        {"model": plain, "ema": state}, {"model": plain, "ema": plain}, tmp_path
    )
    assert {row.status for row in report.rows} == {"same"}
