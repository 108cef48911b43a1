"""Comparing weights that are no values as they stand: codes with scales, and files
without weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import scaled
import torch
from process import ckpt
from rewriting import compared

import ckpt as package


@pytest.mark.parametrize("kind", scaled.LAYERS)
def test_the_numbers_of_codes_are_before_scaling(kind: str, tmp_path: Path) -> None:
    before = scaled.model(scaled.LAYERS[kind][0]())
    codes = next(iter(scaled.LAYERS[kind][0]()))
    name = f"layers.1.{codes}"
    after = before | {
        name: before[name].view(torch.uint8).bitwise_xor(1).view(before[name].dtype)
    }
    report = compared(before, after, tmp_path)
    (row,) = [row for row in report.findings if row.code == "scaled"]
    assert (
        row.tensors == (name,)
        and row.message == f"The numbers of {name} are of codes, before scaling."
    )
    assert row.level == "info"


def test_equal_codes_are_not_mentioned(tmp_path: Path) -> None:
    before = scaled.model(scaled.deepseek())
    after = before | {"layers.0.norm.weight": torch.zeros(16)}
    assert [
        row
        for row in compared(before, after, tmp_path).findings
        if row.code == "scaled"
    ] == []


def test_codes_that_became_values(tmp_path: Path) -> None:
    before = scaled.model(scaled.deepseek())
    after = {
        name: value.float()
        for name, value in before.items()
        if not name.endswith("_scale_inv")
    }
    for one, two in ((before, after), (after, before)):
        (row,) = [
            row for row in compared(one, two, tmp_path).findings if row.code == "scaled"
        ]
        assert row.tensors == ("layers.0.a.weight", "layers.1.a.weight")


def test_the_text_says_so_beside_bars(tmp_path: Path) -> None:
    before = scaled.model(scaled.deepseek())
    after = before | {"layers.0.a.weight": scaled.eight_bits(256, 384)}
    for name, tensors in (("a.pt", before), ("b.pt", after)):
        torch.save(tensors, tmp_path / name)
    said = ckpt("diff", "--stat", tmp_path / "a.pt", tmp_path / "b.pt").out.decode()
    assert "The numbers of layers.0.a.weight are of codes, before scaling." in said


@pytest.mark.parametrize("is_first", [True, False])
def test_a_side_without_weights_is_an_error(is_first: bool, tmp_path: Path) -> None:
    whole = {f"layers.{i}.q_proj.weight": torch.randn(4, 4) for i in range(4)}
    empty = {name: torch.empty(0) for name in whole}
    sides = (empty, whole) if is_first else (whole, empty)
    report = compared(*sides, tmp_path)
    (row,) = [row for row in report.findings if row.code == "no-weights"]
    path = tmp_path / ("a.pt" if is_first else "b.pt")
    assert row.level == "error" and row.message.startswith(
        f"{path}: The file holds no weights"
    )


def test_numbers_of_codes_in_stats(tmp_path: Path) -> None:
    """Channels of codes are as large as their scale lets them be, so none is dead."""
    tensors = scaled.by_row()
    weight = tensors["a.weight"].float()
    weight[0] = 0.0
    torch.save(tensors | {"a.weight": weight.to(scaled.FP8)}, tmp_path / "a.pt")
    report = package.stats(str(tmp_path / "a.pt"), channels=True)
    assert [row.code for row in report.findings] == ["scaled"]
    torch.save({"a.weight": weight.to(scaled.FP8)}, tmp_path / "a.pt")
    report = package.stats(str(tmp_path / "a.pt"), channels=True)
    assert [row.code for row in report.findings] == ["dead-channels"]


def test_lint_says_once_what_holds_codes(tmp_path: Path) -> None:
    torch.save(scaled.by_row(), tmp_path / "a.pt")
    said = ckpt(
        "lint", "--read-values", "--select", "scaled", tmp_path / "a.pt"
    ).out.decode()
    assert said.count("scaled") == 1 + said.count("findings (scaled")
