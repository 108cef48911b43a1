"""The gate: `--select`, `--ignore`, `--level` and `--fail-on` mean the same in every
command that makes findings.
"""

from __future__ import annotations

import json

import pytest
from inside import inside
from process import SAMPLES, check_error

from ckpt.model.errors import UsageError
from ckpt.model.findings import Finding
from ckpt.surface.api.keywords import gate_of

FOUND = [Finding("nan", "x"), Finding("inf", "x"), Finding("tied", "x")]
"""Two warnings and an info."""


@pytest.mark.parametrize(
    ("select", "ignore", "level", "kept"),
    [
        ([], [], None, ["nan", "inf", "tied"]),
        (["tied,nan"], [], None, ["nan", "tied"]),
        (["tied", "nan"], [], "warning", ["nan"]),
        ([], ["nan"], None, ["inf", "tied"]),
        ([], ["nan"], "warning", ["inf"]),
        (["nan"], ["nan"], None, []),
        ([], [], "error", []),
    ],
)
def test_what_counts(
    select: list[str], ignore: list[str], level: str | None, kept: list[str]
) -> None:
    gate = gate_of("lint", select, ignore, level, None)

    assert {finding.code for finding in gate.rules.kept(FOUND)} == set(kept)


def test_without_options_lint_leaves_info_out() -> None:
    gate = gate_of("lint", None, None, None, None, default=None)

    assert [finding.code for finding in gate.rules.kept(FOUND)] == ["nan", "inf"]


@pytest.mark.parametrize(
    ("fail_on", "ignore", "code"),
    [
        (["tied"], [], 1),
        (["tied"], ["tied"], 0),
        (["error"], [], 0),
        (["warning"], [], 1),
        (["warning"], ["nan,inf"], 0),
        (["any"], ["nan,inf"], 1),
        ([], [], 0),
    ],
)
def test_only_what_counts_fails(
    fail_on: list[str], ignore: list[str], code: int
) -> None:
    assert gate_of("lint", None, ignore, None, fail_on).code(FOUND) == code


@pytest.mark.parametrize("option", ["--select", "--ignore", "--fail-on"])
@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("inspect", "nan"),
        ("diff", "cuda"),
        ("stats", "cuda"),
        ("lint", "frozen"),
        ("ls", "nan"),
    ],
)
def test_a_code_that_the_command_does_not_make(
    command: str, other: str, option: str
) -> None:
    paths = ["legacy.pth"] * (2 if command == "diff" else 1)

    done = inside(command, *paths, option, other, cwd=SAMPLES)

    start = f"{option} {other}: not a finding of {command} (ckpt "
    check_error(done, start)
    (line,) = done.complaints
    assert line.endswith(("finds it)", "find it)")) and f"ckpt {command} " not in line


@pytest.mark.parametrize("command", ["inspect", "diff", "stats", "lint", "ls"])
def test_a_level_that_there_is_not(command: str) -> None:
    paths = ["legacy.pth"] * (2 if command == "diff" else 1)

    check_error(
        inside(command, *paths, "--level", "high", cwd=SAMPLES),
        "--level high: not one of",
    )


def codes(command: str, *words: str) -> tuple[list[str], int]:
    done = inside(command, *words, "--json", cwd=SAMPLES)
    document = json.loads(done.lines[0])
    rows = (
        document["files"][0]["findings"] if command == "lint" else document["findings"]
    )
    return [row["code"] for row in rows], done.code


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("inspect", ("train_cuda.pth",), "cuda"),
        ("ls", ("train_cuda.pth",), "cuda"),
        ("lint", ("train_cuda.pth", "--level", "info"), "cuda"),
        ("diff", ("ddp_before.pth", "ddp_after.pth"), "frozen"),
    ],
)
def test_every_command_has_the_gate(
    command: str, words: tuple[str, ...], code: str
) -> None:
    found, _ = codes(command, *words)
    assert code in found

    assert set(codes(command, *words, "--select", code)[0]) == {code}
    rest, _ = codes(command, *words, "--ignore", code)
    assert rest == [other for other in found if other != code]
    assert codes(command, *words, "--fail-on", code)[1] == 1
    assert codes(command, *words, "--fail-on", code, "--ignore", code)[1] == 0
    _, ended = codes(command, *words, "--fail-on", "any", "--ignore", ",".join(found))
    assert ended == 0


@pytest.mark.parametrize(
    ("words", "threshold"), [((), None), (("--select", "dead-channels"), 1e-3)]
)
def test_dead_channels_are_looked_for_when_selected(
    words: tuple[str, ...], threshold: float | None
) -> None:
    done = inside("stats", "ddp_after.pth", *words, "--json", cwd=SAMPLES)

    assert json.loads(done.out)["threshold"] == threshold


def test_a_code_of_the_settings_is_checked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text('[tool.ckpt.lint]\nselect = ["nope"]\n')

    done = inside("lint", SAMPLES / "legacy.pth", cwd=folder)

    check_error(done, "[tool.ckpt.lint] select nope: not a finding of lint")


def test_an_unknown_command_makes_no_findings() -> None:
    with pytest.raises(UsageError, match="not a finding of get"):
        gate_of("get", ["cuda"], None, None, None)
