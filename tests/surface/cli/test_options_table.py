"""The table of options: the command line that it spells again is the one that was
typed.
"""

from __future__ import annotations

import pytest

from ckpt.surface.cli.options import OPTIONS, Option, options_of, typed_options


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
