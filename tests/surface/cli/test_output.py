"""The two streams: who gets colour, and what a terminal without Unicode sees."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from process import ROOT, SAMPLES, check_error, ckpt, terminal
from typer.main import get_command

from ckpt.surface.cli import output
from ckpt.surface.cli.app import COMMANDS, program

C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale without Unicode, which Python otherwise replaces."""


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("option", "variables", "piped", "on_terminal"),
    [
        (None, {}, False, True),
        ("auto", {}, False, True),
        ("auto", {"NO_COLOR": "1"}, False, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, True, True),
        ("never", {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_the_option_wins_then_no_color_then_force_color_then_the_terminal(
    option: str | None,
    variables: dict[str, str],
    piped: bool,
    on_terminal: bool,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(output, "_when", "auto")
    output.set_color(option)

    assert (output.has_colour(io.StringIO()), output.has_colour(Screen())) == (
        piped,
        on_terminal,
    )


def test_every_command_has_the_option() -> None:
    for name in COMMANDS:
        command = get_command(program([name]))
        command = getattr(command, "commands", {name: command})[name]
        assert "--color" in [
            option for param in command.params for option in param.opts
        ], name


def test_the_option_on_the_command_line(tmp_path: Path) -> None:
    always = ckpt(
        "inspect", SAMPLES / "train_cuda.pth", "--color", "always", NO_COLOR="1"
    )
    never = terminal("inspect", "train_cuda.pth", "--color=never", FORCE_COLOR="1")

    assert b"\x1b[" in always.out and always.code == 0
    assert "\x1b[" not in never
    check_error(
        ckpt("ls", "--color", "red\x1b", "."),
        "--color red\\x1b: not a choice (choices: auto always never)",
    )


def test_a_danger_on_stderr_has_the_colour_of_the_option(tmp_path: Path) -> None:
    words = ("rehome", SAMPLES / "hostile.pth", "--keep-code", "--dry-run")

    assert b"\x1b[1;31m" in ckpt(*words, "--color", "always", cwd=tmp_path).err
    assert (
        b"\x1b"
        not in ckpt(*words, "--color", "never", cwd=tmp_path, FORCE_COLOR="1").err
    )


COMMAND_LINES = [
    ("inspect", "train_cuda.pth"),
    ("inspect", "long.pth"),
    ("get", "train_cuda.pth", "model"),
    ("ls", "."),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--stat"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--show", "all"),
    ("stats", "train_cuda.pth"),
    ("lint", "."),
    ("verify", "."),
    ("explain", "frozen"),
    ("rehome", "train_cuda.pth", "--dry-run"),
    ("inspect", "--help"),
    ("stats", "train_cuda.pth", "--histogram"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--histogram"),
]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_a_terminal_without_unicode_sees_ascii(
    words: tuple[str, ...], folder_with_long: Path
) -> None:
    done = ckpt(*words, cwd=folder_with_long, **C)
    usual = ckpt(*words, cwd=folder_with_long)

    text = (done.out + done.err).decode("ascii")
    for char in output._ASCII:
        assert f"\\x{ord(char):02x}" not in text and f"\\u{ord(char):04x}" not in text
    assert (done.code, text.count("\n")) == (
        usual.code,
        (usual.out + usual.err).count(b"\n"),
    )


@pytest.fixture
def folder_with_long(tmp_path: Path) -> Path:
    for name in (
        "train_cuda.pth",
        "ddp_before.pth",
        "ddp_after.pth",
        "hostile.pth",
        "truncated.pth",
    ):
        (tmp_path / name).symlink_to(SAMPLES / name)
    torch.save({"note": "a" * 1000, "w" * 300: torch.ones(3, 3)}, tmp_path / "long.pth")
    return tmp_path


def test_stand_ins_are_seen_and_what_the_file_holds_is_escaped(tmp_path: Path) -> None:
    torch.save({"a→b": torch.ones(1), "é·": 1, "say": "…"}, tmp_path / "a.pt")

    assert b"12 | best_acc" in ckpt("inspect", SAMPLES / "train_cuda.pth", **C).out
    assert b"12 \xc2\xb7 best_acc" in ckpt("inspect", SAMPLES / "train_cuda.pth").out
    assert (
        ckpt("inspect", "a.pt", "--tsv", cwd=tmp_path, **C)
        .out.splitlines()[1]
        .startswith(b"a\\u2192b\t")
    )
    assert ckpt("get", "a.pt", "say", cwd=tmp_path, **C).out == b"\\u2026\n"
    assert b"\\xe9|" in ckpt("get", "a.pt", cwd=tmp_path, **C).out
    latin = ckpt("get", "a.pt", cwd=tmp_path, PYTHONIOENCODING="latin-1").out
    assert "é·".encode("latin-1") in latin and b"a->b" in latin


def test_every_character_of_our_own_has_a_stand_in() -> None:
    texts = [
        path.read_text()
        for end in ("py", "md")
        for path in (ROOT / "ckpt").rglob(f"*.{end}")
    ]
    used = {char for text in texts for char in text if not char.isascii()}
    # Words of Chinese questions are read, and never printed.
    used = {char for char in used if not "\u4e00" <= char <= "\u9fff"}

    assert used == set(output._ASCII)
    assert all(stand_in.isascii() for stand_in in output._ASCII.values())


# --- an encoding that lacks characters ------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "inspect a.pth",
        "stats a.pth",
        "ls .",
        "inspect a.pth --table github",
        "inspect a.pth --storages",
        "get a.pth",
    ],
)
def test_columns_line_up_where_names_are_escaped(words: str, tmp_path: Path) -> None:
    state = {
        "\u540d\u5b57.weight": torch.ones(2, 2),
        "\xe9mbed.bias": torch.ones(3),
        "x.weight": torch.ones(3),
    }
    torch.save(state, tmp_path / "a.pth")
    torch.save(state, tmp_path / "\u540d.pth")
    done = ckpt(*words.split(), cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.code == 0 and done.out.isascii() and b"Traceback" not in done.err
    lines = done.out.decode().split("\n")
    assert any("\\u540d" in line for line in lines)
    if "github" in words:
        assert len({len(line) for line in lines if line.startswith("|")}) == 1, lines
    column = {
        "inspect a.pth": "[",
        "stats a.pth": "[",
        "ls .": "torch-zip",
        "get a.pth": "float32",
    }.get(words)
    if column is not None:
        rows = [line for line in lines if column in line]
        assert len({line.index(column) for line in rows}) == 1, lines
