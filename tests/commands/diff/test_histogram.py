"""`ckpt diff --histogram`: the differences of each tensor in bins, in the document and
on the screen.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import rewriting
import torch
from process import check_error, ckpt
from rewriting import compared

pytestmark = oracle.QUIET
BEFORE = {
    "a.weight": torch.zeros(4),
    "b.weight": torch.zeros(4),
    "c.weight": torch.zeros(4),
    "d.bias": torch.zeros(3),
}
AFTER = {
    "a.weight": torch.tensor([-1.0, 0.0, 1.0, 1.0]),
    "b.weight": torch.full((4,), 0.5),
    "c.weight": torch.zeros(4),
    "d.bias": torch.zeros(5),
}


def test_the_document_has_the_bins_of_what_changed(tmp_path: Path) -> None:
    rows = compared(BEFORE, AFTER, tmp_path, histogram=True).to_json()["tensors"]
    plain = compared(BEFORE, AFTER, tmp_path).to_json()["tensors"]

    changes = [row["change"] for row in rows]  # type: ignore[index, union-attr]
    counts = [0] * 33
    counts[0], counts[16], counts[32] = 1, 1, 2
    assert changes[0]["histogram"] == {"low": -1.0, "high": 1.0625, "counts": counts}
    assert changes[1]["histogram"] == {"low": 0.5, "high": 0.5, "counts": [4]}
    assert changes[2] is None and changes[3] is None
    assert "histogram" not in plain[0]["change"]  # type: ignore[index, call-overload]


def test_equal_tensors_have_one_bin_where_norms_are_asked_for(tmp_path: Path) -> None:
    rows = compared(BEFORE, AFTER, tmp_path, histogram=True, norms=True).to_json()[
        "tensors"
    ]

    assert rows[2]["change"]["histogram"] == {"low": 0.0, "high": 0.0, "counts": [4]}  # type: ignore[index, call-overload]


def test_parts_that_are_not_compared_one_by_one_have_none(tmp_path: Path) -> None:
    dense = torch.eye(3)
    moved = dense.roll(1, 0)
    (row,) = compared(
        {"w": dense.to_sparse()}, {"w": moved.to_sparse()}, tmp_path, histogram=True
    ).rows

    assert row.change is not None and row.change.histogram is None


@pytest.mark.parametrize(
    "other", ["--tsv", "--name-only", "--quiet", "--structure", "--quick"]
)
def test_forms_without_a_place_for_it_refuse_it(other: str, tmp_path: Path) -> None:
    paths = [
        rewriting.saved(thing, tmp_path / name)
        for thing, name in ((BEFORE, "a.pt"), (AFTER, "b.pt"))
    ]

    check_error(
        ckpt("diff", *paths, "--histogram", other),
        f"--histogram and {other} exclude each other",
    )


def test_rows_end_with_the_picture(tmp_path: Path) -> None:
    paths = [
        rewriting.saved(thing, tmp_path / name)
        for thing, name in ((BEFORE, "a.pt"), (AFTER, "b.pt"))
    ]
    text = ckpt("diff", *paths, "--histogram").out.decode()

    assert (
        "M a.weight  3 of 4 elements, max |Δ| 1 at [0], Δ -1 ▄       ▄      █ 1\n"
        in text
    )
    assert "M b.weight  all elements, max |Δ| 0.5 at [0], Δ 0.5\n" in text
    assert json.loads(ckpt("diff", *paths, "--histogram", "--json").out)["tensors"][0][
        "change"
    ]["histogram"]
