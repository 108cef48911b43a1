"""`make compare` runs every option of every command, and every public function, at
least once.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from inside import inside
from process import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import compare
import compare_api

sys.path.remove(str(ROOT / "tools"))

import typer

import ckpt
from ckpt.surface.cli.app import COMMANDS, program

COMMAND_OF = typer.main.get_command(program()).commands
LINES = [
    shlex.split(line)
    for line in (
        *(line for lines in compare.stories() for line in lines),
        *compare.lines_of_options(),
        *compare.READERS,
        *compare.WRITERS,
        *compare.FOLDER,
        *compare.OF_PAIRS,
    )
]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_a_line(name: str) -> None:
    used = {word for words in LINES if words[0] == name for word in words[1:]}
    options = [
        param for param in COMMAND_OF[name].params if param.param_type_name == "option"
    ]
    assert options
    missing = [
        param.opts
        for param in options
        if not used & {*param.opts, *param.secondary_opts}
    ]
    assert missing == [["--help-all"]], (
        "each line of tools/compare.txt is a command that `make compare` runs: add one "
        "with a value of this option"
    )


def test_an_option_in_no_line_is_added_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "stories", lambda: [["diff a b --strict"]])
    added = compare.lines_of_options()
    base = compare.BASES["diff"]
    assert f"{base} --ignore-dtype" in added
    assert f"{base} --depth 1" in added
    assert f"{base} --atol 0" in added
    assert f"{compare.BASES['convert']} --adapter-names peft" in added
    assert f"{base} --strict" not in added  # the story has it
    assert f"{base} --stat" not in added  # a line for each pair has it
    assert not [line for line in added if "--help-all " in line or "--section" in line]


@pytest.mark.parametrize("line", compare.BASES.values())
def test_options_are_added_to_lines_that_work(line: str, tmp_path: Path) -> None:
    with compare._copy_of_samples(tmp_path) as folder:
        done = inside(*shlex.split(line), cwd=folder)
    # The answer of these may be 1, or 2 where one of all files cannot be read.
    most = {"diff": 1, "ls": 2, "lint": 2, "salvage": 1}.get(line.split()[0], 0)
    assert done.code <= most, done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_has_options_of_its_command(name: str) -> None:
    """A line with a wrong option compares two errors."""
    known = {
        spelling
        for param in COMMAND_OF[name].params
        for spelling in (*param.opts, *param.secondary_opts)
    }
    lines = [words for words in LINES if words[0] == name]
    spelled = {
        word
        for words in lines
        for word in words[1:]
        if word.startswith("-") and word != "-"
    }
    assert spelled - known - {"--nope"} == set()


def test_every_public_function_is_called() -> None:
    functions = {name for name in dir(ckpt) if name in compare_api.functions()}
    assert {"open", "inspect", "diff", "convert", "average"} <= functions
    assert "snapshot" not in functions
