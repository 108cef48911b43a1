"""The exponents of growth, and the tables that show them. One small run looks whether
the commands work.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth, timing
from benchmarks.growth import Curve, Point, cells, curves_of, document, exponent, lines
from benchmarks.setting import Setting, Sizes
from benchmarks.timing import Job, Result

MACHINE: dict[str, str | int] = {
    "processor": "a processor",
    "cpus": 2,
    "memory_gb": 24,
    "file_system": "xfs",
    "python": "3.11",
    "torch": "2.13",
    "typer": "0.28",
    "numpy": "2.4",
}


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_what_the_start_leaves(power: float) -> None:
    points = [(count, 0.1 + 3e-4 * count**power) for count in (1_000, 10_000, 100_000)]
    assert exponent(points, 0.1) == pytest.approx(power)
    assert exponent(points, 0.0) != pytest.approx(power)


def test_the_line_is_the_nearest_one() -> None:
    assert exponent([(1, 1.0), (10, 10.0), (100, 1000.0)], 0.0) == pytest.approx(1.5)


def test_noise_beside_the_start_is_no_growth() -> None:
    assert exponent(
        [(1, 1.0), (10, 1.05), (100, 2.0), (1000, 11.0)], 1.0
    ) == pytest.approx(1.0)
    assert exponent([(1, 1.0), (10, 0.9), (100, 2.0)], 1.0) is None
    assert exponent([], 1.0) is None


def curve(unit: str = "tensors") -> Curve:
    start = Point(1, 0.1, 20.0, 3)
    return Curve(
        "`ckpt x`", unit, start, [Point(10, 0.2, 20.0, 3), Point(100, 1.1, 1020.0, 1)]
    )


def test_a_row_shows_each_point_and_the_rounds() -> None:
    assert cells(curve()) == [
        "`ckpt x`",
        "0.1 s, 20 MB",
        "0.2 s, 20 MB",
        "1.1 s, 1,020 MB",
        "n^1.00",
        "–",
        "3 / 3 / 1",
    ]
    steady = curve()._replace(points=[Point(10, 0.2, 20.0, 3)])
    assert cells(steady)[-1] == "3"


def test_a_point_that_would_take_too_long_is_not_run_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[int, list[str]]] = []

    def interleaved(jobs: list[Job], runs: int) -> list[Result]:
        name = next(word for word in jobs[0].command if "before_" in word)
        count = int(name.rpartition("before_")[2].partition(".")[0].partition("_")[0])
        ran.append((count, [job.name for job in jobs]))
        return [
            Result(job.name, 1, 30, (4.0 if "stats" in job.name else 0.1) * count, runs)
            for job in jobs
        ]

    monkeypatch.setattr(timing, "interleaved", interleaved)
    setting = Setting(Sizes(runs=1), tmp_path, tmp_path)
    found = list(growth.curves(setting, [2, 20], [7]))
    every = [
        "`ckpt inspect`",
        "`ckpt inspect --tsv`",
        "`ckpt diff --quick`",
        "`ckpt stats`",
    ]
    shards = [*every[:2], "`ckpt diff`", every[3]]
    assert ran == [(1, every), (2, every), (20, every[:3]), (1, shards), (7, shards)]
    stats = found[3]
    assert [(point.cpu, point.rounds) for point in stats.points] == [
        (8.0, 1),
        (80.0, 0),
    ]
    assert cells(stats)[3] == "not run: about 80 s"
    assert stats.cpu_exponent is None and found[0].cpu_exponent == pytest.approx(
        1.28, abs=0.01
    )


def test_the_document_gives_the_tables_again() -> None:
    found = [curve(), curve("shards")]
    text = json.dumps(document(MACHINE, 3, found))
    assert curves_of(text) == (MACHINE, 3, found)
    first = json.loads(text)["curves"][0]
    assert (first["cpu_exponent"], first["memory_exponent"]) == (
        pytest.approx(1.0),
        None,
    )
    page = lines(*curves_of(text))
    assert (
        growth.plural(1, "shards") == "1 shard"
        and growth.plural(2000, "shards") == "2,000 shards"
    )
    assert (
        "10 tensors" in page and "100 shards" in page and "Medians of 3 rounds" in page
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "ckpt.growth", "version": 2}']
)
def test_no_document(text: str) -> None:
    with pytest.raises(SystemExit, match="this is no document"):
        curves_of(text)


@pytest.mark.slow
def test_a_small_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["growth", "--json", "--tensors", "5,70", "--shards", "2", "--runs", "1"],
    )
    growth.main()
    machine, runs, found = curves_of(capsys.readouterr().out)
    assert runs == 1 and machine["cpus"]
    assert [(row.unit, [point.count for point in row.points]) for row in found] == (
        [("tensors", [5, 70])] * 4 + [("shards", [2])] * 4
    )
    assert all(
        point.cpu > 0 and point.peak_mb > 1
        for row in found
        for point in (row.start, *row.points)
    )
