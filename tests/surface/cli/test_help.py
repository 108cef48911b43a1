"""The help: commands by what they are for, examples first, options by what they do, the
exit codes.

`-h` shows the frequent options, and `--help-all` all of them with those that exclude
each other.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from inside import inside
from needs import all_commands
from process import ckpt
from typer.main import get_command

from ckpt.surface.cli.app import COMMANDS, program
from ckpt.surface.cli.options import OPTIONS, exclusions_of, options_of
from ckpt.surface.cli.signature import EXCLUSIONS

GROUPS = {
    "Look": ["inspect", "ls", "get", "diff", "stats", "report", "explain", "recipe"],
    "Check": ["lint", "verify", "sum"],
    "Change": [
        "rehome",
        "strip",
        "rename",
        "set",
        "slim",
        "convert",
        "salvage",
        "warmstart",
        "average",
        "merge",
        "prune",
    ],
    "Shell": ["completion"],
    "Exit codes": ["0", "1", "2", "128+N"],
}
TITLES = ["Arguments", "Options", "Output", "Filter", "Gate", "Limits", EXCLUSIONS]
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


LINES = 45
"""Lines of a help at 100 columns that a screen has room for."""


def help_of(*words: str, columns: int = 100) -> str:
    return inside(*words, cwd=Path(), COLUMNS=str(columns)).out.decode()


def groups_of(text: str) -> dict[str, list[str]]:
    """The groups of a help, and the lines that begin a row of each."""
    titles = re.split(r"^(\S[^\n]*):\n", text, flags=re.MULTILINE)
    return {
        title: re.findall(r"^  (\S.*)$", rows, re.MULTILINE)
        for title, rows in zip(titles[1::2], titles[2::2], strict=True)
    }


def options_in(text: str) -> dict[str, str]:
    """The options that a help explains, and the group of each."""
    return {
        name: title
        for title, rows in groups_of(text).items()
        for row in rows
        if title != EXCLUSIONS
        for name in re.findall(r"(?<![\w-])--[a-z-]+", row.partition("  ")[0])
    }


def command_of(name: str) -> Any:
    return get_command(program([name])).commands[name]  # type: ignore[attr-defined]


def names_of_options(name: str) -> set[str]:
    """The long options of a command by their first names, but for --help, which typer
    adds.
    """
    named = [
        [option for option in param.opts if option[:2] == "--"]
        for param in command_of(name).params
    ]
    return {options[0] for options in named if options}


def test_commands_are_grouped_and_exit_codes_shown() -> None:
    groups = groups_of(help_of("--help"))
    del groups["Options"]
    gone = {*all_commands()} - {*COMMANDS}

    assert {
        title: [row.split()[0] for row in rows] for title, rows in groups.items()
    } == {
        title: [name for name in names if name not in gone]
        for title, names in GROUPS.items()
    }
    assert [
        name for title in ("Look", "Check", "Change") for name in GROUPS[title]
    ] == all_commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_grouped(command: str) -> None:
    text = help_of(command, "--help-all")
    groups, shown = groups_of(text), options_in(text)

    assert list(groups) == [title for title in TITLES if title in groups]
    assert {name: shown[name] for name in HOMES if name in shown} == {
        name: title for name, title in HOMES.items() if name in shown
    }


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_help_has_examples_first_and_no_rare_option(
    command: str, columns: int
) -> None:
    text = help_of(command, "-h", columns=columns)
    usage, _, examples, *_ = text.split("\n\n")
    shown = set(options_in(text))

    assert usage.startswith(f"Usage: ckpt {command} ")
    assert re.search(rf"^  .*\bckpt {command} ", examples, re.MULTILINE), (
        "examples follow the first sentence"
    )
    assert text.endswith(f"\n\nMore options: ckpt {command} --help-all\n")
    assert (
        re.search(r"\bexcludes? (--|each other)", text) is None
        and EXCLUSIONS not in text
    )
    rare = {row.name for row in options_of(command) if command in row.rare_in}
    assert shown - {"--help"} == names_of_options(command) - rare
    used = {
        word
        for line in re.findall(rf"(?<=ckpt {command} )[^;|&>]*", examples)
        for word in shlex.split(line)
        if word.startswith("--")
    }
    assert used <= shown, "an example needs no rare option"
    assert columns < 100 or text.count("\n") <= LINES, (
        "a star behind the command in the row of an option leaves it to --help-all"
    )
    others = {other for row in options_of(command) for other in row.other_names}
    assert all(f"also {other}" in " ".join(text.split()) for other in others)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_whole_help_has_all_options_and_exclusions(
    command: str, columns: int
) -> None:
    short, whole = (
        help_of(command, "-h", columns=columns),
        help_of(command, "--help-all", columns=columns),
    )
    exclusions = whole.partition(f"\n{EXCLUSIONS}:\n")[2]

    assert whole.startswith(short.partition("\nArguments:\n")[0])
    assert set(options_in(whole)) - {"--help"} == names_of_options(command)
    assert exclusions.split() == " ".join(map(str, exclusions_of(command))).split()
    assert "More options" not in whole


@pytest.mark.parametrize(
    "command",
    ["inspect", "diff", "stats", "verify", "lint", "sum", "report", "warmstart"],
)
def test_who_has_exclusions_lists_them(command: str) -> None:
    text = " ".join(
        help_of(command, "--help-all").partition(f"\n{EXCLUSIONS}:\n")[2].split()
    )

    assert len(re.findall(r"exclude each other\.|excludes? --", text)) >= 1 + (
        command in ("diff", "inspect")
    )


def test_the_whole_help_needs_no_argument_and_reads_none() -> None:
    whole = help_of("diff", "--help-all")

    for words in (
        ["no.pth", "no.pth", "--atol", "x", "--help-all"],
        ["--help-all", "no.pth"],
        ["--help-all", "--json", "--tsv"],
    ):
        done = inside("diff", *words, cwd=Path(), COLUMNS="100")
        assert (done.code, done.out.decode(), done.err) == (0, whole, b"")


def test_the_table_names_commands_and_no_option_of_one_twice() -> None:
    for row in OPTIONS:
        assert {*row.rare_in} <= {*row.commands} <= {*all_commands()}, row.name
    for command in COMMANDS:
        names = [row.name for row in options_of(command)]
        assert len(names) == len({*names}), command
        for exclusion in exclusions_of(command):
            assert {*exclusion.options, *exclusion.others} <= {*names}, exclusion


@pytest.mark.parametrize(
    "option", ["--histogram", "--limit", "--help-all", "--no-align"]
)
def test_a_shell_completes_rare_options(option: str) -> None:
    words = f"ckpt diff {option[:-2]}"
    done = ckpt(_CKPT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="2")

    assert option in done.lines
