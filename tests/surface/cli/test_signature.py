"""Options that exclude each other are a table: the command refuses them. Its help is
the same with every typer.
"""

from __future__ import annotations

import itertools
import re

import pytest
from process import ROOT, ckpt, python

from ckpt.surface.cli.app import COMMANDS
from ckpt.surface.cli.options import OPTIONS, Exclusion, exclusions_of, options_of


@pytest.mark.parametrize(
    ("exclusion", "given", "expected"),
    [
        (Exclusion(("--a", "--b", "--c")), {"--a"}, None),
        (Exclusion(("--a", "--b", "--c")), {"--c", "--b"}, ("--b", "--c")),
        (Exclusion(("--a",), ("--x", "--y")), {"--x", "--y"}, None),
        (Exclusion(("--a", "--b"), ("--x",)), {"--a", "--b"}, None),
        (Exclusion(("--a", "--b"), ("--x", "--y")), {"--b", "--y"}, ("--b", "--y")),
    ],
)
def test_what_is_broken(
    exclusion: Exclusion, given: set[str], expected: tuple[str, str] | None
) -> None:
    assert exclusion.broken(frozenset(given)) == expected


def test_the_words() -> None:
    assert (
        str(Exclusion(("--a", "--b", "--c"))) == "--a, --b and --c exclude each other."
    )
    assert str(Exclusion(("--a",), ("--x", "--y"))) == "--a excludes --x and --y."
    assert str(Exclusion(("--a", "--b"), ("--x",))) == "--a and --b exclude --x."


VALUES = {
    "--atol": "1",
    "--rtol": "1",
    "--fail-on": "frozen",
    "--table": "github",
    "--sums": "x",
    "--index": "1",
}


@pytest.mark.parametrize(
    ("command", "pair"),
    [
        *(
            ("diff", pair)
            for pair in itertools.combinations(
                ("--json", "--tsv", "--name-only", "--quiet"), 2
            )
        ),
        *(
            ("diff", pair)
            for pair in itertools.combinations(("--structure", "--quick", "--stat"), 2)
        ),
        *(
            ("diff", (one, two))
            for one in ("--structure", "--quick")
            for two in ("--close", "--atol", "--rtol")
        ),
        ("diff", ("--structure", "--fail-on")),
        ("diff", ("--close", "--atol")),
        *(
            ("inspect", (one, two))
            for one in ("--json", "--index")
            for two in ("--storages", "--values")
        ),
        *(("inspect", ("--index", two)) for two in ("--tsv", "--table")),
        ("stats", ("--json", "--table")),
        ("verify", ("--json", "--quiet")),
    ],
)
def test_both_are_refused(command: str, pair: tuple[str, str]) -> None:
    words = [
        word
        for option in pair
        for word in (option, *([VALUES[option]] if option in VALUES else []))
    ]
    done = ckpt(command, "a", *(["b"] if command == "diff" else []), *words)

    assert done.code == 2 and done.out == b""
    (line,) = done.complaints
    assert "exclude each other" in line and all(option in line for option in pair)


def test_what_a_function_of_python_refuses_is_a_row_of_the_help_too() -> None:
    """Options that a function refuses together are said by --help-all."""
    refused = {
        tuple(words)
        for path in sorted((ROOT / "ckpt").rglob("*.py"))
        for text in re.findall(
            r'"(-[\w -]+) exclude each other"', path.read_text(encoding="utf-8")
        )
        if len(words := re.findall(r"-[\w-]+", text.replace("-o ", "--output "))) > 1
    }
    tables = [row for command in COMMANDS for row in exclusions_of(command)]

    assert len(refused) >= 4
    for first, *others in refused:
        for other in others:
            pair = frozenset((first, other))
            assert any(row.broken(pair) is not None for row in tables), pair


def test_the_help_names_no_option_that_the_command_lacks() -> None:
    for row in OPTIONS:
        for command in row.commands:
            names = {
                name
                for own in options_of(command)
                for name in (own.name, *own.other_names)
            }
            # `ckpt sum --root` is an option of another command.
            text = re.sub(r"`[^`]*`|ckpt \w+ --[\w-]+", "", row.help)
            text = re.sub(r"inspect --json", "", text)
            assert set(re.findall(r"--[a-z][\w-]+", text)) <= names, (command, row.name)


def test_a_value_of_zero_is_given() -> None:
    done = ckpt("diff", "a", "b", "--close", "--atol", "0")
    assert (done.code, done.complaints) == (
        2,
        ["ckpt: --close and --atol exclude each other"],
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_is_that_of_the_page_whichever_typer_prints_it(command: str) -> None:
    done = ckpt(command, "--help-all", COLUMNS="100")

    text = (ROOT / "docs" / "commands" / f"{command}.md").read_text(encoding="utf-8")
    shown = text.partition(f"```console\n$ ckpt {command} --help-all\n")[2].partition(
        "\n```\n"
    )[0]
    assert (done.code, done.out.decode().rstrip()) == (0, shown), "make docs"


@pytest.mark.parametrize(
    ("command", "usage", "arguments"),
    [
        (
            "inspect",
            "ckpt inspect [OPTIONS] [PATH...]",
            ["PATH...  Checkpoint files, indexes of shards, or folders."],
        ),
        (
            "diff",
            "ckpt diff [OPTIONS] BEFORE AFTER",
            ["BEFORE  A checkpoint.  [required]", "AFTER   A checkpoint.  [required]"],
        ),
        (
            "ls",
            "ckpt ls [OPTIONS] [PATH...]",
            ["PATH...  Checkpoint files, indexes of shards, or folders."],
        ),
    ],
)
def test_arguments_are_shown_by_their_metavar(
    command: str, usage: str, arguments: list[str]
) -> None:
    lines = ckpt(command, "--help", COLUMNS="100").out.decode().splitlines()

    at = lines.index("Arguments:") + 1
    assert lines[0] == f"Usage: {usage}"
    assert [line.strip() for line in lines[at : at + len(arguments)]] == arguments
    assert lines[at + len(arguments)] == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["inspect", "--help"],
        ["inspect", "train_cuda.pth", "--include", "*", "--depth", "1", "--json"],
        ["diff", "ddp_after.pth", "ddp_after.pth", "--atol", "0.5"],
        ["get", "train_cuda.pth", "epoch"],
    ],
    ids=" ".join,
)
def test_no_command_imports_pydantic(words: list[str]) -> None:
    """typer 0.29 and later import it for every parameter that they check themselves,
    which doubles the start.
    """
    done = python(
        "-X", "importtime", "-m", "ckpt", *words, cwd=ROOT / "sample_checkpoints"
    )

    imported = {line.rpartition("|")[2].strip() for line in done.complaints}
    assert done.code == 0 and "ckpt.surface.cli.values" in imported
    assert [
        name for name in imported if name.partition(".")[0].startswith("pydantic")
    ] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("diff a b --atol x", "diff: --atol: 'x' is not a number that fits"),
        ("diff a b --atol nan", "diff: --atol: 'nan' is not a number that fits"),
        ("diff a b --atol -1", "diff: --atol: -1.0 is not in the range x>=0"),
        ("inspect a --depth 1.5", "inspect: --depth: '1.5' is not a number that fits"),
        ("inspect a --depth 65", "inspect: --depth: 65 is not in the range 0<=x<=64"),
        (
            "stats a --threshold 2",
            "stats: --threshold: 2.0 is not in the range 0<=x<=1",
        ),
    ],
)
def test_a_number_that_does_not_fit_is_said_alike_by_every_typer(
    words: str, said: str
) -> None:
    command = words.partition(" ")[0]
    assert ckpt(*words.split()).complaints == [f"ckpt: {said} (ckpt {command} --help)"]
