"""The table of the benchmarks: what is met, what is missed, and that the JSON document
gives the same table again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth, page
from benchmarks.__main__ import GROUPS
from benchmarks.setting import QUICK, TYPES, Sizes
from benchmarks.table import (
    HEADINGS,
    Cost,
    Row,
    cells,
    document,
    left_out_line,
    lines,
    missed_line,
    rows_of,
    table,
    times,
)
from benchmarks.targets import QUANTISED, TARGETS, Target

MACHINE: dict[str, str | int] = {
    "processor": "a processor",
    "cpus": 2,
    "memory_gb": 24,
    "system": "Linux 6",
    "file_system": "xfs",
    "python": "3.11",
    "torch": "2.13",
    "typer": "0.28",
    "numpy": "2.4",
    "safetensors": "0.8",
    "ckpt": "the console script",
}
PEER = Cost("`peer | x`", 2.0, 4.0, 50.0, 5)


def row(key: str, wall: float = 1.0, cpu: float = 1.0, peak: float = 20.0) -> Row:
    return Row(key, Cost("`ckpt x`", wall, cpu, peak, 5), PEER)


def cell(given: Row, heading: str) -> str:
    return cells(given)[HEADINGS.index(heading)]


@pytest.mark.parametrize(
    ("target", "given", "missed"),
    [
        (Target(wall=0.5), row("k", wall=1.0), []),
        (Target(wall=0.5), row("k", wall=1.01), ["wall"]),
        (Target(cpu=0.5), row("k", wall=9, cpu=2.0), []),
        (Target(cpu=0.5), row("k", wall=0.1, cpu=2.1), ["CPU"]),
        (Target(more_ms=60), row("k", wall=2.059), []),
        (Target(more_ms=60), row("k", wall=2.061), ["time"]),
        (Target(more_cpu_ms=60), row("k", cpu=4.059), []),
        (Target(more_cpu_ms=60), row("k", cpu=4.061), ["CPU"]),
        (Target(memory_mb=25), row("k", peak=25.0), []),
        (Target(memory_mb=25), row("k", peak=25.1), ["memory"]),
        (Target(wall=0.1, memory_mb=1), row("k"), ["wall", "memory"]),
        (Target(wall=0.5), row("k", wall=float("nan")), ["wall"]),
        (Target(wall=0.5), row("k")._replace(peer=None), ["wall"]),
    ],
)
def test_met_and_missed(
    monkeypatch: pytest.MonkeyPatch, target: Target, given: Row, missed: list[str]
) -> None:
    monkeypatch.setitem(TARGETS, "k", target)
    assert given.missed == missed
    assert cell(given, "met") == (f"missed: {', '.join(missed)}" if missed else "yes")


def test_the_row_shows_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "k", Target(cpu=1.2, memory_mb=60))
    assert cells(row("k")) == [
        "`ckpt x`",
        "`peer | x`",
        "1.000",
        "2.000",
        "1.000",
        "4.000",
        "1/4 CPU, 20 MB",
        "≤ 1.20 × CPU, ≤ 60 MB",
        "yes",
        "20.0",
        "50.0",
        "5",
    ]


def test_the_row_says_how_many_rounds_each_side_ran() -> None:
    given = row("k")
    assert cell(given, "rounds") == "5"
    assert cell(given._replace(peer=PEER._replace(rounds=1)), "rounds") == "5 / 1"
    assert cell(given._replace(peer=None), "rounds") == "5"


def test_no_target_is_neither_met_nor_missed() -> None:
    given = row("nothing wants this")
    assert (cell(given, "target"), cell(given, "met"), cell(given, "result")) == (
        "–",
        "–",
        "1/2 wall",
    )


def test_a_bar_in_a_name_breaks_no_row() -> None:
    lines = table([row("a"), row("b")]).splitlines()
    assert len(lines) == 4
    assert all(
        line.replace("\\|", "").count("|") == len(HEADINGS) + 1 for line in lines
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.15, "1.15 ×"),
        (0.8, "0.80 ×"),
        (0.5, "1/2"),
        (1 / 14, "1/14"),
        (0.0, "0.00 ×"),
    ],
)
def test_ratios_as_people_read_them(ratio: float, text: str) -> None:
    assert times(ratio) == text


def test_what_is_missed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "a", Target(wall=1))
    monkeypatch.setitem(TARGETS, "b", Target(wall=0.1))
    rows = [row("a"), row("b"), row("nothing wants this")]
    assert missed_line(rows) == "1 of 2 targets are met. Missed: b."
    assert missed_line(rows[:1]) == "1 of 1 targets are met."


def test_targets_without_a_row_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("diff/f32", "rehome/copy", "rehome/shared", "dcp/items")
    monkeypatch.setattr(
        "benchmarks.table.TARGETS", {key: Target(wall=1) for key in wanted}
    )
    rows = [row("diff/f32"), row("rehome/shared")]
    assert left_out_line(rows) == "Not measured: dcp/items."
    assert left_out_line([*rows, row("dcp/items")]) == ""
    assert lines(rows).endswith("\n\nNot measured: dcp/items.")
    assert "Not measured" not in lines(rows, whole=False)


def test_the_document_gives_the_rows_again() -> None:
    rows = [
        row("verify/zip"),
        Row("inspect/million", Cost("`ckpt inspect`", 3.0, 3.0, 1700.0, 3), None),
    ]
    text = json.dumps(document(MACHINE, Sizes()._asdict(), rows))
    read = json.loads(text)
    assert read["machine"] == MACHINE
    assert [
        (one["key"], one["wall_ratio"], one["cpu_ratio"], one["missed"])
        for one in read["rows"]
    ] == [
        ("verify/zip", 0.5, 0.25, []),
        ("inspect/million", None, None, ["memory"]),
    ]
    assert read["rows"][0]["target"]["wall"] == TARGETS["verify/zip"].wall
    machine, sizes, again = rows_of(text)
    assert (machine, sizes["runs"], again) == (MACHINE, 5, rows)


OTHER = json.dumps(
    {"schema": "ckpt.diff", "version": 1, "machine": {}, "sizes": {}, "rows": []}
)
LATER = json.dumps(
    {"schema": "ckpt.benchmarks", "version": 3, "machine": {}, "sizes": {}, "rows": []}
)


@pytest.mark.parametrize("text", ["", "[]", "{}", OTHER, LATER])
def test_no_document(text: str) -> None:
    with pytest.raises(SystemExit, match="this is no document"):
        rows_of(text)


def test_the_page_gets_the_table_between_its_marks() -> None:
    rows = [row("verify/zip")]
    mark, text = page.block(json.dumps(document(MACHINE, Sizes()._asdict(), rows)))
    assert mark == "bench"
    assert table(rows) in text
    assert "a processor, 2 CPUs, 24 GB of memory, xfs; python 3.11" in text
    assert "Medians of 5 rounds" in text
    before = (
        "before\n<!-- bench -->\nold\n<!-- /bench -->\n<!-- growth -->\nother\n<!-- "
        "/growth -->\n"
    )
    once = page.put(before, mark, text)
    assert once == before.replace("old", text)
    assert page.put(once, mark, text) == once
    with pytest.raises(SystemExit, match="lacks <!-- growth -->"):
        page.put("no marks", "growth", text)


def test_each_document_goes_to_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "speed.md")
    marks = "".join(f"<!-- {mark} -->\n<!-- /{mark} -->\n" for mark in page.MARKS)
    page.PAGE.write_text(marks, encoding="utf-8")
    point = growth.Point(1, 0.1, 20.0, 3)
    curve = growth.Curve("`ckpt grows`", "tensors", point, [point._replace(count=10)])
    speed, growing = tmp_path / "speed.json", tmp_path / "growth.json"
    speed.write_text(
        json.dumps(document(MACHINE, Sizes()._asdict(), [row("verify/zip")])),
        encoding="utf-8",
    )
    growing.write_text(
        json.dumps(growth.document(MACHINE, 3, [curve])), encoding="utf-8"
    )
    monkeypatch.setattr("sys.argv", ["page", str(growing), str(speed)])
    page.main()
    bench, _, grown = page.PAGE.read_text(encoding="utf-8").partition("<!-- /bench -->")
    assert "`ckpt x`" in bench and "grows" not in bench
    assert "`ckpt grows`" in grown


def test_docs_speed_has_the_marks() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for mark in page.MARKS:
        assert text.count(f"<!-- {mark} -->") == text.count(f"<!-- /{mark} -->") == 1


def test_every_type_has_its_targets() -> None:
    assert {
        f"{job}/{name}" for job in ("diff", "stats") for name in TYPES
    } <= TARGETS.keys()
    assert {f"stats/{name}-torch" for name in TYPES} <= TARGETS.keys()
    assert set(QUICK.types) <= set(TYPES)


def test_every_target_is_measured_somewhere() -> None:
    """The keys of the modules' cases: a row that nobody makes would be a target without
    a number.
    """
    import benchmarks

    folder = Path(benchmarks.__file__).parent
    text = "".join(
        (folder / f"{group}.py").read_text(encoding="utf-8") for group in GROUPS
    )
    computed = {f"{job}/{name}" for job in ("diff", "stats") for name in TYPES}
    computed |= {f"stats/{name}-torch" for name in TYPES}
    computed |= {
        f"average/{name}{peer}" for name in ("f32", "bf16") for peer in ("", "-torch")
    }
    computed |= {
        f"{job}/{kind}" for job in ("recipe", "layout") for kind in ("rows", "columns")
    }
    computed |= {
        f"quantised/{name}{what}" for name in QUANTISED for what in ("", "-diff")
    }
    computed |= {
        f"{job}/{how}" for job in ("rehome", "strip") for how in ("copy", "shared")
    }
    assert [
        key for key in TARGETS if key not in computed and f'"{key}"' not in text
    ] == []
