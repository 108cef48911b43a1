"""How far each module moved: counts, norms, and the depth at which names are cut."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from rewriting import compared

from ckpt.commands.diff.rows import Row, bars_that_fit, modules

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
    assert (found["b"].tensors, found["b"].changed, found["b"].retyped) == (2, 1, 1)

    deep = {row.name: row for row in modules(rows)}
    assert deep["a.y"].rel_l2 == 0.0
    assert deep["b.x"].rel_l2 is None, "there was nothing before to measure it by"


def test_the_counts_of_modules_are_those_of_the_report(tmp_path: Path) -> None:
    after = {
        **BEFORE,
        "a.x.weight": torch.full((4,), 3.0),
        "b.x.weight": -torch.zeros(4),
    }
    after["b.y.weight"] = after["b.y.weight"].double()
    report = compared(BEFORE, after, tmp_path, norms=True)
    parts = modules(report.rows)

    assert sum(part.changed for part in parts) == report.count("changed") == 2
    assert sum(part.retyped for part in parts) == report.count("retyped") == 1
    assert sum(part.tensors for part in parts) == 4


def test_a_change_without_numbers_is_counted_and_is_no_nan(tmp_path: Path) -> None:
    def state(value: float, sparse: torch.Tensor) -> dict[str, torch.Tensor]:
        dense = torch.full((2,), value)
        return {
            "a.weight": sparse.to_sparse(),
            "b.weight": sparse.to_sparse(),
            "b.bias": dense,
        }

    rows = compared(
        state(1.0, torch.ones(2, 2)), state(2.0, torch.eye(2)), tmp_path, norms=True
    ).rows
    found = {row.name: row for row in modules(rows)}

    assert found["a"].rel_l2 is None and found["a"].is_unmeasured
    assert (found["b"].changed, found["b"].unmeasured, found["b"].rel_l2) == (2, 1, 1.0)
    assert not found["b"].is_unmeasured


def moved(names: list[str], folder: Path) -> tuple[Row, ...]:
    """The rows of tensors that moved, the later ones more."""
    before = {f"{name}.weight": torch.ones(2) for name in names}
    after = {
        name: tensor * (2 + number)
        for number, (name, tensor) in enumerate(before.items())
    }
    return compared(before, after, folder, norms=True).rows


def test_names_are_cut_at_the_deepest_place_that_leaves_few_enough(
    tmp_path: Path,
) -> None:
    rows = compared(BEFORE, BEFORE, tmp_path, norms=True).rows
    assert [len(bars_that_fit(rows, most).modules) for most in (5, 4, 3, 2)] == [
        4,
        4,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("layers", "most", "ranges"),
    [
        (16, 16, [str(number) for number in range(16)]),
        (24, 16, [f"{number}-{number + 1}" for number in range(0, 24, 2)]),
        (32, 14, [f"{number}-{number + 3}" for number in range(0, 32, 4)]),
        (80, 14, [f"{number}-{number + 9}" for number in range(0, 80, 10)]),
        (80, 4, ["0-19", "20-39", "40-59", "60-79"]),
        (61, 14, [*(f"{number}-{number + 4}" for number in range(0, 60, 5)), "60"]),
        (41, 40, [*(f"{number}-{number + 1}" for number in range(0, 40, 2)), "40"]),
    ],
)
def test_numbered_modules_become_ranges_of_one_size(
    layers: int, most: int, ranges: list[str], tmp_path: Path
) -> None:
    rows = moved([f"model.layers.{number}" for number in range(layers)], tmp_path)
    bars = bars_that_fit(rows, most)

    assert [bar.name for bar in bars.modules] == [
        f"model.layers.{text}" for text in ranges
    ]
    assert (bars.depth, bars.total) == (3, layers)
    assert sum(bar.changed for bar in bars.modules) == layers


def test_several_numbered_lists_have_ranges_of_one_size(tmp_path: Path) -> None:
    names = [
        f"{part}.block{number}"
        for part in ("encoder", "decoder")
        for number in range(40)
    ]
    bars = bars_that_fit(moved([*names, "fc", "fc1"], tmp_path), 10)

    shown = [
        f"{part}.block{text}"
        for part in ("encoder", "decoder")
        for text in ("0-9", "10-19", "20-29", "30-39")
    ]
    assert [bar.name for bar in bars.modules] == [*shown, "fc", "fc1"]


def test_modules_without_numbers_are_the_largest_and_one_row(tmp_path: Path) -> None:
    names = [f"model.part_{one}{two}x" for one in "abcdefgh" for two in "abcdefgh"]
    rows = moved(names, tmp_path)
    bars = bars_that_fit(rows, 16)

    assert [bar.name for bar in bars.modules] == [*names[-15:], "(49 others)"]
    assert bars.modules[-1].changed == 49 and (bars.depth, bars.total) == (2, 64)
    assert sum(bar.squares for bar in bars.modules) == pytest.approx(
        modules(rows, 1)[0].squares
    )


def test_a_few_bars_stay_where_the_next_depth_has_too_many(tmp_path: Path) -> None:
    names = [
        f"{part}.part_{one}{two}x"
        for part in "uvwxyz"
        for one in "abcde"
        for two in "abcde"
    ]

    assert [bar.name for bar in bars_that_fit(moved(names, tmp_path), 16).modules] == [
        *"uvwxyz"
    ]
