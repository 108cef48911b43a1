"""The help: commands by what they are for, options by what they do, the exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inside import inside
from typer.main import get_command

from ckpt.cli.app import COMMANDS, program

GROUPS = {
    "Look": ["inspect", "ls", "get", "diff", "stats", "report", "explain"],
    "Check": ["lint", "verify", "sum", "merge-parts"],
    "Change": ["rehome", "strip", "rename", "slim", "convert", "salvage", "warmstart", "average"],
    "Exit codes": ["0", "1", "2", "128+N"],
}
TITLES = ["Arguments", "Options", "Output", "Filter", "Gate", "Limits"]
HOMES = {
    "--json": "Output",
    "--output": "Output",
    "--dry-run": "Output",
    "--include": "Filter",
    "--section": "Filter",
    "--fail-on": "Gate",
    "--limit": "Limits",
    "--help": "Options",
}
"""Options -> their group in the help of every command that has them."""


def groups_of(*words: str) -> dict[str, list[str]]:
    """The groups of a help, and the lines that begin a row of each."""
    text = inside(*words, "--help", cwd=Path()).out.decode()
    titles = re.split(r"^(\S[^\n]*):\n", text, flags=re.MULTILINE)
    return {
        title: re.findall(r"^  (\S.*)$", rows, re.MULTILINE)
        for title, rows in zip(titles[1::2], titles[2::2], strict=True)
    }


def test_commands_are_grouped_and_exit_codes_shown() -> None:
    groups = groups_of()
    del groups["Options"]

    assert {title: [row.split()[0] for row in rows] for title, rows in groups.items()} == GROUPS
    assert [name for title in ("Look", "Check", "Change") for name in GROUPS[title]] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_grouped(command: str) -> None:
    groups = groups_of(command)
    shown = {
        name: title
        for title, rows in groups.items()
        for row in rows
        for name in re.findall(r"(?<![\w-])--[a-z-]+", row.partition("  ")[0])
    }

    assert list(groups) == [title for title in TITLES if title in groups]
    assert {name: shown[name] for name in HOMES if name in shown} == {
        name: title for name, title in HOMES.items() if name in shown
    }
    known = get_command(program([command])).commands[command].params  # type: ignore[attr-defined]
    assert set(shown) - {"--help"} == {name for param in known for name in param.opts if name[:2] == "--"}
