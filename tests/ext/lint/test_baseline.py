"""What of lint is known, ignored per glob, or ruled by a file that was named:
`--baseline`, `--config`, `--exit-zero`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from inside import inside
from process import SAMPLES, Done, check_error

import ckpt


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A project with four checkpoints, of which three have findings."""
    for name in ("runs/dp.pth", "runs/old/dp.pth"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"module.a.weight": torch.ones(2, 2), "module.a.bias": torch.ones(2)},
            tmp_path / name,
        )
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "runs/hostile.pth")
    torch.save({"a.weight": torch.ones(2, 2)}, tmp_path / "runs/good.pth")
    return tmp_path


def lint(folder: Path, *words: str) -> Done:
    return inside("lint", *words, cwd=folder)


def codes(done: Done) -> list[str]:
    return [line.split()[1] for line in done.lines if line.startswith("  ")]


def test_what_is_known_does_not_count(runs: Path) -> None:
    assert lint(runs, "runs").code == 1
    written = lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    assert (written.code, written.out) == (0, b"")
    assert (
        "ckpt: wrote base.json, which holds 4 findings of these files"
        in written.complaints
    )

    done = lint(runs / "runs", ".", "--baseline", "../base.json")

    assert (done.code, done.out) == (0, b"")
    assert "ckpt: ../base.json: 4 findings known and left out" in done.complaints
    assert ckpt.lint(runs / "runs", baseline=runs / "base.json").exit_code == 0


def test_what_is_new_counts(runs: Path) -> None:
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    shutil.copy(runs / "runs/dp.pth", runs / "runs/new.pth")

    done = lint(runs, "runs", "--baseline", "base.json")

    assert (
        done.code == 1 and done.lines[0] == "runs/new.pth" and codes(done) == ["prefix"]
    )


class Command:
    """An object whose loading runs a command."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.line,)


def test_another_danger_at_the_same_place_is_new(runs: Path) -> None:
    """The file is another one, which runs another command where the known one
    ran one.
    """
    torch.save({"version": Command("echo known")}, runs / "runs/hostile.pth")
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    assert lint(runs, "runs", "--baseline", "base.json").code == 0
    torch.save({"version": Command("echo other")}, runs / "runs/hostile.pth")

    done = lint(runs, "runs", "--baseline", "base.json")

    assert done.code == 1 and codes(done) == ["called-on-load"]


def test_entries_that_are_stale_are_said_and_dropped(runs: Path) -> None:
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    shutil.copy(runs / "runs/good.pth", runs / "runs/dp.pth")
    (runs / "runs/old/dp.pth").unlink()

    done = lint(runs, "runs", "--baseline", "base.json")

    assert done.code == 0
    stale = (
        "no longer found: runs/dp.pth: prefix, runs/old/dp.pth: prefix "
        "(--write-baseline drops stale entries)"
    )
    assert f"ckpt: base.json: {stale}" in done.complaints
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    rows = json.loads((runs / "base.json").read_text())["findings"]
    assert {row["path"] for row in rows} == {"runs/hostile.pth"}


@pytest.mark.parametrize("code", ["of-another-release", "\\ud800", ""])
def test_an_entry_of_another_release_is_stale(runs: Path, code: str) -> None:
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    text = (runs / "base.json").read_text()
    (runs / "base.json").write_text(text.replace('"prefix"', f'"{code}"'))
    done = lint(runs, "runs", "--baseline", "base.json")
    assert done.code == 1, done
    assert any("no longer found: " in line for line in done.complaints), done


def test_entries_of_files_that_were_not_looked_at_stay(runs: Path) -> None:
    lint(runs, "runs", "--baseline", "base.json", "--write-baseline")
    before = (runs / "base.json").read_bytes()

    assert not any(
        "no longer" in line
        for line in lint(runs, "runs/old", "--baseline", "base.json").complaints
    )
    lint(runs, "runs/old", "--baseline", "base.json", "--write-baseline")

    assert (runs / "base.json").read_bytes() == before


@pytest.mark.parametrize(
    "narrow",
    [
        ("--level", "error"),
        ("--select", "called-on-load"),
        ("--ignore", "prefix,weights-only,nan"),
        ("--per-file-ignores", "*:prefix,weights-only,nan"),
        (),
    ],
)
def test_what_a_run_cannot_see_is_not_gone(runs: Path, narrow: tuple[str, ...]) -> None:
    """A level, a selection, and values that nobody reads hide findings that are
    there.
    """
    torch.save({"a.weight": torch.full((2, 2), torch.nan)}, runs / "runs/nan.pth")
    words = ("runs", "--baseline", "base.json")
    lint(runs, *words, "--write-baseline", "--read-values")
    before = (runs / "base.json").read_bytes()
    assert b'"nan"' in before

    done = lint(runs, *words, *narrow)

    assert not any("no longer" in line for line in done.complaints)
    lint(runs, *words, *narrow, "--write-baseline")
    assert (runs / "base.json").read_bytes() == before


def test_a_value_that_was_mended_is_gone_only_where_values_are_read(runs: Path) -> None:
    torch.save({"a.weight": torch.full((2, 2), torch.nan)}, runs / "runs/nan.pth")
    words = ("runs", "--baseline", "base.json", "--read-values")
    lint(runs, *words, "--write-baseline")
    shutil.copy(runs / "runs/good.pth", runs / "runs/nan.pth")

    assert not any("no longer" in line for line in lint(runs, *words[:-1]).complaints)
    assert any(
        "no longer found: runs/nan.pth: nan" in line
        for line in lint(runs, *words).complaints
    )


def test_a_new_baseline_replaces_no_other_file(runs: Path) -> None:
    data = (runs / "runs/good.pth").read_bytes()

    check_error(
        lint(runs, "runs", "--baseline", "runs/good.pth", "--write-baseline"),
        "baseline",
    )

    assert (runs / "runs/good.pth").read_bytes() == data


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "damaged baseline"),
        ("[]", "not a baseline of ckpt lint"),
        (
            '{"schema": {"name": "ckpt.lint", "version": 2}}',
            "not a baseline of ckpt lint (--write-baseline writes one)",
        ),
        (
            '{"schema": {"name": "ckpt.baseline", "version": 9}}',
            "a baseline of version 9",
        ),
        (
            '{"schema": {"name": "ckpt.baseline", "version": 1}, "findings": [{}]}',
            "damaged baseline",
        ),
        (
            '{"schema": {"name": "ckpt.baseline", "version": 1}, "findings": [3]}',
            "damaged baseline",
        ),
        (" " * (1 << 24) + "{}", "more than 16,777,216 bytes"),
    ],
    ids=["json", "list", "other", "version", "fields", "row", "size"],
)
def test_a_file_that_is_no_baseline(text: str, says: str, runs: Path) -> None:
    (runs / "base.json").write_text(text)

    check_error(lint(runs, "runs/good.pth", "--baseline", "base.json"), says)


def test_a_baseline_that_is_missing(runs: Path) -> None:
    check_error(
        lint(runs, "runs", "--baseline", "none.json"), "none.json: no such file"
    )
    check_error(
        lint(runs, "runs", "--write-baseline"),
        "needs a file to write (--baseline file)",
    )


@pytest.mark.parametrize(
    ("glob", "left"),
    [
        ("old/*", ["runs/dp.pth"]),  # as in the folder of the work, which holds no old/
        ("*/old/*", ["runs/dp.pth"]),
        ("runs/dp*", ["runs/old/dp.pth"]),
        ("dp.pth", []),
        ("*", []),
    ],
)
def test_ignores_per_glob(glob: str, left: list[str], runs: Path) -> None:
    words = ("runs", "--select", "prefix")
    if glob == "old/*":
        done = inside(
            "lint",
            ".",
            "--select",
            "prefix",
            "--per-file-ignores",
            f"{glob}:prefix",
            cwd=runs / "runs",
        )
        left = ["dp.pth"]
    else:
        done = lint(runs, *words, "--per-file-ignores", f"{glob}:prefix")

    assert [line for line in done.lines if not line.startswith(" ")] == left


def test_rules_of_the_nearest_file(runs: Path) -> None:
    """As ruff: ckpt.toml before pyproject.toml, and a pyproject.toml of other tools is
    passed over.
    """
    (runs / "ckpt.toml").write_text(
        '[lint.per-file-ignores]\n"runs/old/*" = ["prefix"]\n'
    )
    (runs / "pyproject.toml").write_text('[tool.ckpt.lint]\nignore = ["prefix"]\n')
    (runs / "runs/pyproject.toml").write_text('[project]\nname = "x"\n')

    done = inside("lint", ".", "--select", "prefix", cwd=runs / "runs")

    assert [line for line in done.lines if not line.startswith(" ")] == ["dp.pth"]
    assert any("ckpt.toml: switches off 1 prefix" in line for line in done.complaints)


def test_rules_in_a_folder_that_is_checked_are_not_read_and_said(runs: Path) -> None:
    """They may be a stranger's; who wrote them himself has to learn how they count."""
    (runs / "runs/ckpt.toml").write_text('[lint]\nignore = ["prefix"]\n')

    done = inside("lint", "runs", "--select", "prefix", cwd=runs)

    assert done.lines
    line = (
        "ckpt: runs/ckpt.toml: not read: rules count from the current folder upwards "
        "(--config runs/ckpt.toml)"
    )
    assert line in done.complaints
    for words in (["--config", "runs/ckpt.toml"], ["--no-config"], ["--quiet"]):
        assert line not in inside("lint", "runs", *words, cwd=runs).complaints


def test_rules_of_a_file_that_was_named(runs: Path) -> None:
    (runs / "pyproject.toml").write_text('[tool.ckpt.lint]\nignore = ["prefix"]\n')
    (runs / "strict.toml").write_text('[lint]\nselect = ["prefix"]\n')

    assert codes(lint(runs, "runs/dp.pth")) == []
    assert codes(lint(runs, "runs/dp.pth", "--config", "strict.toml")) == ["prefix"]
    assert codes(lint(runs, "runs/dp.pth", "--no-config")) == ["prefix"]
    assert ckpt.lint(runs / "runs/dp.pth", config=runs / "strict.toml").config == str(
        runs / "strict.toml"
    )
    check_error(
        lint(runs, "runs", "--config", "strict.toml", "--no-config"),
        "exclude each other",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[lnt]\n", "unknown key: lnt (did you mean lint?)"),
        ("[lint]\nignor = []\n", "unknown key: ignor (did you mean ignore?)"),
        ("[lint]\nvalues = true\n", "did you mean read-values?"),
        ("[lint]\nper-file-ignores = []\n", "per-file-ignores is a table"),
        ('[lint.per-file-ignores]\n"a" = 3\n', "a is a list of codes"),
        (
            '[lint.per-file-ignores]\n"a" = ["predix"]\n',
            "[lint] a predix: not a finding of lint (did you mean prefix?",
        ),
        (
            "[lint.per-file-ignores]\n" + "\n".join(f"a{n} = []" for n in range(501)),
            "has over 500 globs",
        ),
        (f"[lint.per-file-ignores]\n{'a' * 501} = []", "or one over 500 letters"),
        ("lint = 3\n", "[lint] is not a table"),
        ("[tool.ckpt.lint]\n", "unknown key: tool (it takes lint)"),
    ],
)
def test_rules_that_are_wrong(text: str, says: str, runs: Path) -> None:
    (runs / "ckpt.toml").write_text(text)

    check_error(lint(runs, "runs"), says)
    check_error(lint(runs, "runs", "--config", "ckpt.toml"), says)


def test_a_file_of_rules_hides_no_error_per_glob(runs: Path) -> None:
    (runs / "ckpt.toml").write_text(
        '[lint.per-file-ignores]\n"*" = ["called-on-load", "weights-only"]\n'
    )

    assert codes(lint(runs, "runs/hostile.pth")) == ["called-on-load"]
    assert (
        codes(
            lint(
                runs,
                "runs/hostile.pth",
                "--per-file-ignores",
                "*:called-on-load,weights-only",
            )
        )
        == []
    )


def test_exit_zero(runs: Path) -> None:
    assert lint(runs, "runs", "--exit-zero").code == 0
    assert codes(lint(runs, "runs", "--exit-zero")) == codes(lint(runs, "runs"))
    (runs / "runs/cut.pth").write_bytes(b"PK\x03\x04")
    assert lint(runs, "runs", "--exit-zero").code == 2


@pytest.mark.parametrize("value", ["prefix", ":prefix", "a:predix"])
def test_ignores_that_cannot_be_taken(value: str, runs: Path) -> None:
    check_error(lint(runs, "runs", "--per-file-ignores", value))
