"""Errors on a terminal: broken at words, with the command that helps whole and on a
line of its own.
"""

from __future__ import annotations

import pytest

from ckpt.surface.text.lines import talk_lines

TEXT = "ckpt: hostile.pth: loading the result would run posix.system('echo')"


def test_what_fits_is_one_line_and_so_is_all_in_a_pipe() -> None:
    hint = (
        "--keep-code writes it; for the weights alone: ckpt slim hostile.pth -o "
        "hostile.slim.pth"
    )

    assert talk_lines(TEXT, hint, None) == [f"{TEXT} ({hint})"]
    assert talk_lines(TEXT, None, 80) == [TEXT]
    assert talk_lines("ckpt: a", "b c", 13) == ["ckpt: a (b c)"]


@pytest.mark.parametrize(
    ("hint", "below"),
    [
        (
            "for the weights alone: ckpt slim a b.pth",
            ["      for the weights alone:", "      ckpt slim a b.pth"],
        ),
        ("ckpt inspect a.pth --section x", ["      ckpt inspect a.pth --section x"]),
    ],
)
def test_a_command_has_a_line_of_its_own(hint: str, below: list[str]) -> None:
    assert talk_lines(TEXT, hint, 80) == [TEXT, *below]


def test_a_command_wider_than_the_terminal_is_whole() -> None:
    command = f"ckpt slim {'long' * 20}.pth -o out.pth"

    assert command in [line.strip() for line in talk_lines(TEXT, command, 80)]


def test_a_short_hint_is_not_broken_and_a_long_one_is() -> None:
    assert talk_lines("ckpt: index.pth: a Git LFS pointer", "git lfs pull", 40) == [
        "ckpt: index.pth: a Git LFS pointer",
        "      (git lfs pull)",
    ]
    assert talk_lines("ckpt: index.pth: a pointer", "one two three four five", 40) == [
        "ckpt: index.pth: a pointer (one two",
        "      three four five)",
    ]
