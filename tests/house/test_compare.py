"""`make compare` runs every option of every command, and every public function, at
least once.
"""

from __future__ import annotations

import shlex
import sys

import pytest
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
        "each line of tools/compare.txt is a command that `make compare` runs"
    )


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
