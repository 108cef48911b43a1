"""The comparison with stored ratios: what counts as a loss. Nothing is measured
here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import check
from benchmarks.targets import TARGETS

MACHINE: dict[str, str | int] = {
    "processor": "one",
    "cpus": 2,
    "python": "3.11",
    "torch": "2",
    "typer": "0",
}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (1.0, 1.0, False),
        (1.0, 0.5, False),
        (1.0, 1.19, False),
        (1.0, 1.21, True),
        (0.05, 0.0601, True),
        (0.05, 0.0599, False),
        (1.0, float("nan"), True),
    ],
)
def test_a_loss_of_more_than_a_fifth(before: float, after: float, lost: bool) -> None:
    rows, found = check.compare(
        {"diff/f32": before, "other": 1.0}, {"diff/f32": after, "other": 1.0}
    )
    assert found == (["diff/f32"] if lost else [])
    assert [row[-1] for row in rows] == ["slower" if lost else "ok", "ok"]


def test_the_change_is_that_of_the_ratio() -> None:
    rows, _ = check.compare({"k": 1.0}, {"k": 1.25})
    assert rows == [["k", "1.00 ×", "1.25 ×", "+25%", "slower"]]


def test_a_key_on_one_side_is_named() -> None:
    rows, lost = check.compare({"old": 1.0}, {"new": 1.5})
    assert rows == [
        ["new", "–", "1.50 ×", "–", "not stored"],
        ["old", "1.00 ×", "–", "–", "not measured"],
    ]
    assert lost == []


def test_another_machine_is_named() -> None:
    assert check.elsewhere(MACHINE, MACHINE) == []
    assert check.elsewhere(MACHINE, {**MACHINE, "cpus": 8}) == [
        "cpus: stored with 2, here 8."
    ]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stored.json"
    monkeypatch.setattr(check, "STORED", path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, ratio: float, *options: str) -> None:
    monkeypatch.setattr("sys.argv", ["check", *options])
    monkeypatch.setattr(check, "measured", lambda: (MACHINE, {"diff/f32": ratio}))
    check.main()


def test_update_stores_and_a_later_loss_fails(
    stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, 1.0, "--update")
    assert json.loads(stored.read_text()) == {
        "machine": MACHINE,
        "cpu_ratios": {"diff/f32": 1.0},
    }
    run(monkeypatch, 1.1)
    assert "+10%" in capsys.readouterr().out
    with pytest.raises(
        SystemExit, match=r"More than 20% slower beside the peer: diff/f32\."
    ):
        run(monkeypatch, 1.3)
    assert json.loads(stored.read_text())["cpu_ratios"] == {"diff/f32": 1.0}


def test_nothing_stored_yet(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="--update"):
        run(monkeypatch, 1.0)


def test_what_is_compared_has_a_target() -> None:
    assert set(check.KEYS) <= TARGETS.keys()
