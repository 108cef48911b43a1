"""Options that exclude each other are a table: the command refuses them, and its help lists them."""

from __future__ import annotations

import itertools

import pytest
from process import ckpt

from ckpt.cli.app import COMMANDS
from ckpt.cli.signature import Exclusion


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
def test_what_is_broken(exclusion: Exclusion, given: set[str], expected: tuple[str, str] | None) -> None:
    assert exclusion.broken(frozenset(given)) == expected


def test_the_words() -> None:
    assert str(Exclusion(("--a", "--b", "--c"))) == "--a, --b and --c exclude each other."
    assert str(Exclusion(("--a",), ("--x", "--y"))) == "--a excludes --x and --y."
    assert str(Exclusion(("--a", "--b"), ("--x",))) == "--a and --b exclude --x."


def exclusions_of(command: str) -> list[str]:
    text = " ".join(ckpt(command, "--help").out.decode().split())
    return [part for part in text.split(". ") if " exclude" in part]


@pytest.mark.parametrize("command", ["inspect", "diff", "stats", "verify", "lint"])
def test_help_lists_them(command: str) -> None:
    assert exclusions_of(command)


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
            for pair in itertools.combinations(("--json", "--tsv", "--name-only", "--quiet"), 2)
        ),
        *(("diff", pair) for pair in itertools.combinations(("--structure", "--quick", "--stat"), 2)),
        *(
            ("diff", (one, two))
            for one in ("--structure", "--quick")
            for two in ("--close", "--atol", "--rtol")
        ),
        ("diff", ("--structure", "--fail-on")),
        ("diff", ("--close", "--atol")),
        *(("inspect", (one, two)) for one in ("--json", "--index") for two in ("--storages", "--values")),
        *(("inspect", ("--index", two)) for two in ("--tsv", "--table")),
        ("stats", ("--json", "--table")),
        ("verify", ("--quick", "--sums")),
    ],
)
def test_both_are_refused(command: str, pair: tuple[str, str]) -> None:
    words = [word for option in pair for word in (option, *([VALUES[option]] if option in VALUES else []))]
    done = ckpt(command, "a", *(["b"] if command == "diff" else []), *words)

    assert done.code == 2 and done.out == b""
    (line,) = done.complaints
    assert "exclude each other" in line and all(option in line for option in pair)


def test_every_command_has_its_help() -> None:
    for command in COMMANDS:
        done = ckpt(command, "--help")
        assert done.code == 0 and f"ckpt {command}" in done.out.decode()
