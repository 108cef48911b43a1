"""What each command takes is a table in docs/scripting.md; the commands themselves are
compared with it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from needs import all_commands
from process import ROOT
from typer.main import get_command

from ckpt.model.findings import CATALOGUE
from ckpt.surface.cli.app import COMMANDS, program

COLUMNS = (
    "-r",
    "--files-from",
    "-j",
    "--no-summary",
    "--json",
    "--include",
    "--section",
    "--fail-on",
)
TOGETHER = ("average", "merge")
"""Commands that make one result of all their PATHs."""
BEHIND = ("explain",)
"""Commands that take two PATHs at most behind what they are about."""
GATE = ("--select", "--ignore", "--level", "--fail-on")


@cache
def parameters(command: str) -> list[Any]:
    made = get_command(program([command]))
    return list(getattr(made, "commands", {command: made})[command].params)


def options(command: str) -> set[str]:
    return {
        name
        for row in parameters(command)
        for name in row.opts
        if row.param_type_name == "option"
    }


def paths(command: str) -> str:
    """How many checkpoints a command takes as arguments."""
    rows = [row for row in parameters(command) if row.param_type_name == "argument"]
    if command in BEHIND:
        return "up to two"
    if command in TOGETHER:
        return "several"
    if any(row.name == "paths" and row.nargs == -1 for row in rows):
        return "many"
    return ("none", "one", "two")[
        sum(row.name not in ("names", "words", "files", "assignments") for row in rows)
    ]


def documented() -> dict[str, list[str]]:
    """The rows of the table: how many PATHs, then a cell for each of COLUMNS."""
    text = (ROOT / "docs" / "scripting.md").read_text()
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (none|up to two|one|two|several|many) \|(.*)\|$",
        text,
        re.MULTILINE,
    )
    return {
        name: [count, *(cell.strip() for cell in cells.split("|"))]
        for name, count, cells in rows
    }


def test_every_command_is_in_the_table() -> None:
    assert list(documented()) == all_commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_is_true(command: str) -> None:
    own = options(command)

    assert documented()[command] == [
        paths(command),
        *("yes" if name in own else "" for name in COLUMNS),
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_who_makes_findings_has_the_whole_gate(command: str) -> None:
    makers = {name for row in CATALOGUE.values() for name in row.by} | {"ls"}

    assert {name for name in GATE if name in options(command)} == (
        set(GATE) if command in makers else set()
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_what_belongs_together(command: str) -> None:
    own = options(command)

    assert ("--files-from" in own) == (paths(command) == "many")
    assert ("--include" in own) == ("--exclude" in own)
    # `report` writes one page, whatever its PATHs hold.
    assert ("-r" in own) == (
        paths(command) == "many" and "-o" in own and command != "report"
    )
    assert "--limit" in own or paths(command) == "none"
