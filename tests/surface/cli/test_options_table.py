"""The table of options: the command line that it spells again is the one that was
typed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from process import ROOT

import ckpt
from ckpt.surface.cli.app import COMMANDS, module_of
from ckpt.surface.cli.options import OPTIONS, Option, options_of, typed_options
from ckpt.surface.cli.signature import _SHARED


def keywords_of(command: str, **given: object) -> dict[str, object]:
    """The values that a command gets, most of them not given."""
    values: dict[str, object] = {}
    for row in options_of(command):
        values[row.keyword] = row.is_negative if row.kind == "flag" else row.default
    return values | given


@pytest.mark.parametrize(
    ("command", "given", "words"),
    [
        ("warmstart", {}, []),
        ("warmstart", {"align": False}, ["--no-align"]),
        (
            "warmstart",
            {"into": "a b.pth", "force": True},
            ["--into", "a b.pth", "--force"],
        ),
        (
            "warmstart",
            {"sub": ["s/a/b/", "s/c/d/"]},
            ["--sub", "s/a/b/", "--sub", "s/c/d/"],
        ),
        ("warmstart", {"on_mismatch": "keep"}, []),
        (
            "warmstart",
            {"on_mismatch": "slice", "output": "o"},
            ["--on-mismatch", "slice", "-o", "o"],
        ),
        ("warmstart", {"min_coverage": 0.0}, ["--min-coverage", "0.0"]),
        ("stats", {"threshold": 0.5, "jobs": 2}, ["--threshold", "0.5", "-j", "2"]),
    ],
)
def test_only_what_was_given_is_typed_again(
    command: str, given: dict[str, object], words: list[str]
) -> None:
    assert typed_options(command, keywords_of(command, **given)) == words


@pytest.mark.parametrize(
    "row", OPTIONS, ids=lambda row: f"{row.name} {row.commands[0]}"
)
def test_the_name_of_a_value_is_that_of_its_option(row: Option) -> None:
    assert row.parameter.isidentifier() and row.keyword.isidentifier()
    assert row.keyword == row.parameter.removeprefix("no_" if row.is_negative else "")
    assert (row.metavar is None) == (row.kind == "flag")


FOR_ALL_WRITERS = {
    "recursive",
    "files_from",
    "partial",
    "output",
    "in_place",
    "copy",
    "force",
    "parents",
    "dry_run",
    "verify",
    "keep_damaged",
    "keep_code",
    "json",
}
"""The keywords that `surface/api/writing.py` takes for all commands that write."""
TAKEN_OUT = {"inspect": {"all"}, "report": {"stats", "output"}}
"""Command -> keywords that it takes out of all that it hands on."""


def place_of(function: Callable[..., Any]) -> str:
    file = Path(inspect.getsourcefile(function) or "").relative_to(ROOT)
    return f"{file}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_reaches_a_function(command: str) -> None:
    function = import_module(module_of(command)).command
    public = getattr(ckpt, command, None)
    doors = [function] if public is None else [function, public]
    parameters = [inspect.signature(door).parameters for door in doors]
    taken = {name for each in parameters for name in each}
    if "writing" in taken:
        taken |= FOR_ALL_WRITERS
    missing = [
        f"{place_of(doors[-1])}: {row.name} needs the keyword {row.keyword}"
        for row in options_of(command)
        if row.name not in _SHARED
        and row.keyword not in taken | TAKEN_OUT.get(command, set())
    ]

    assert missing == []


@pytest.mark.parametrize("command", COMMANDS)
def test_no_keyword_is_forgotten(command: str) -> None:
    """A function that takes a value and does nothing with it is wrong."""
    doors = [import_module(module_of(command)).command, getattr(ckpt, command, None)]
    unused = []
    for door in filter(None, doors):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(door))).body
        read = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        unused += [
            f"{place_of(door)}: {name} is not used"
            for name in inspect.signature(door).parameters
            if name not in read
        ]

    assert unused == []
