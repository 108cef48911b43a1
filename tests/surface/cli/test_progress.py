"""The progress bar: one line on a terminal, after a while, and gone at the end,
whatever the end is.
"""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from process import SAMPLES

from ckpt.surface.cli import output
from ckpt.surface.cli.app import program
from ckpt.surface.cli.start import Signal

CLEAR = "\r\033[K"
Screen = Callable[[], str]


class _Sys:
    """`sys` with another stderr, for pytest replaces the real one before each test."""

    def __init__(self, stderr: TextIO) -> None:
        self.stderr = stderr

    def __getattr__(self, name: str) -> object:
        return getattr(sys, name)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """stderr as a terminal of 80 columns, and what was written to it so far."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(output, "sys", _Sys(stream))

        def read() -> str:
            stream.write("\0")
            stream.flush()
            data = b""
            while not data.endswith(b"\0"):
                data += os.read(ours, 1 << 16)
            return data[:-1].decode()

        yield read
    os.close(ours)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(output, "_clock", lambda: now[0])
    return now


def test_the_line(screen: Screen, clock: list[float]) -> None:
    with output.progress("comparing", 4 << 30) as advance:
        assert advance is not None
        clock[0] += 0.49
        advance(1 << 29)
        assert screen() == ""
        clock[0] += 0.51
        advance(1 << 29)
        assert screen() == (
            f"\rcomparing {'━' * 6}{'·' * 18}  25%  1.00 GiB of 4.00 GiB, 1.00 "
            "GiB/s\033[K"
        )
        clock[0] += 0.05
        advance(1 << 29)
        assert screen() == ""  # not at each call
    assert screen() == CLEAR


def test_quiet_has_no_bar(screen: Screen, clock: list[float]) -> None:
    with (
        output.silenced_output(all=True),
        output.progress("comparing", 4 << 30) as advance,
    ):
        assert advance is None
    assert screen() == ""


def test_files_are_counted(screen: Screen, clock: list[float]) -> None:
    with output.progress("checking", 1200, "files") as advance:
        assert advance is not None
        clock[0] += 9
        advance(1100)
        assert screen().endswith("  92%  1,100 of 1,200 files\033[K")


def test_the_file_in_work_stands_beside_the_count(
    screen: Screen, clock: list[float]
) -> None:
    with output.progress(
        "checking", 3, "files", ["Epoch-100", "Epoch-105\x1b", "Epoch-110"]
    ) as advance:
        assert advance is not None
        clock[0] += 9
        advance(1)
        assert screen().endswith("  33%  1 of 3 files  Epoch-105\\x1b\033[K")
        clock[0] += 9
        advance(2)
        assert screen().endswith(" 100%  3 of 3 files\033[K")


def test_one_bar_for_all_threads(screen: Screen, clock: list[float]) -> None:
    with output.progress("checking", 80) as advance:
        assert advance is not None
        clock[0] += 1
        threads = [threading.Thread(target=advance, args=(10,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert screen().count("checking") == 1
    assert screen() == CLEAR


@pytest.mark.parametrize("error", [Signal, ValueError, KeyboardInterrupt])
def test_what_ends_the_work_takes_the_bar_away(
    error: type[BaseException], screen: Screen, clock: list[float]
) -> None:
    with pytest.raises(error), output.progress("copying", 80) as advance:
        assert advance is not None
        clock[0] += 1
        advance(8)
        raise error
    assert screen().endswith(CLEAR)


def test_a_line_takes_the_place_of_the_bar(screen: Screen, clock: list[float]) -> None:
    with output.progress("copying", 80) as advance:
        assert advance is not None
        clock[0] += 1
        advance(8)
        output.write_talk("ckpt: something")
        assert screen().endswith(f"{CLEAR}ckpt: something\r\n")
    assert screen() == ""


def test_short_work_writes_nothing(screen: Screen, clock: list[float]) -> None:
    with output.progress("copying", 80) as advance:
        assert advance is not None
        advance(80)
    assert screen() == ""


def test_a_narrow_screen_is_kept(
    screen: Screen, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with output.progress("comparing", 4 << 30) as advance:
        assert advance is not None
        clock[0] += 1
        advance(1 << 30)
        assert len(screen().removeprefix("\r").removesuffix("\033[K")) == 39


def test_no_bar_on_a_dumb_terminal(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with output.progress("copying", 80) as advance:
        assert advance is None


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        (("diff", "ddp_before.pth", "ddp_after.pth"), "comparing"),
        (("stats", "ddp_after.pth"), "measuring"),
        (("sum", "ddp_after.pth"), "hashing"),
        (("verify", "ddp_after.pth"), "checking"),
        (("lint", "ddp_after.pth"), "checking"),
        (("ls", "ddp_after.pth"), "reading"),
        (("report", "ddp_before.pth", "ddp_after.pth", "-o", "OUT.html"), "comparing"),
        (("rehome", "train_cuda.pth", "-o", "OUT.pth"), "copying"),
        (("convert", "ddp_after.pth", "-o", "OUT.safetensors"), "copying"),
    ],
)
def test_every_long_command_says_what_it_does(
    words: tuple[str, ...],
    doing: str,
    screen: Screen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(output, "_PATIENCE", 0.0)
    monkeypatch.chdir(SAMPLES)
    arguments = [word.replace("OUT", str(tmp_path / "out")) for word in words]
    program([words[0]])(arguments, standalone_mode=False, prog_name="ckpt")

    shown = screen()
    assert (
        f"\r{doing} " in shown and shown.rpartition(f"\r{doing} ")[2].count(CLEAR) == 1
    )
    assert "\n" not in shown.rpartition(CLEAR)[0]


@pytest.mark.needs("page")
def test_the_page_of_a_series_has_one_bar_of_bytes(
    screen: Screen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(output, "_PATIENCE", 0.0)
    monkeypatch.setattr(output, "_PAUSE", 0.0)
    names = [f"epoch_{number}.pth" for number in range(3)]
    for name, source in zip(
        names, ("ddp_before.pth", "ddp_after.pth", "ddp_after.pth"), strict=True
    ):
        (tmp_path / name).write_bytes((SAMPLES / source).read_bytes())
    monkeypatch.chdir(tmp_path)
    program(["report"])(
        ["report", *names, "-o", "out.html"], standalone_mode=False, prog_name="ckpt"
    )

    sizes = [(tmp_path / name).stat().st_size for name in names]
    total = output.size_text(
        2 * sum(sizes) + sizes[1]
    )  # each is measured, and compared with the one before
    drawn = [
        line.partition(CLEAR)[0]
        for line in screen().split("\r")
        if f" of {total}" in line
    ]
    shares = [int(line.partition("%")[0].split()[-1]) for line in drawn]
    assert shares == sorted(shares) and shares[-1] == 100 and len(set(shares)) > 4


def test_a_terminal_of_0_columns_is_80_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 hands on what such a terminal says, in CI and in containers."""
    none = os.terminal_size((0, 0))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: none)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        assert output.screen_width(stream) == 80
        monkeypatch.setattr(output, "sys", _Sys(stream))
        monkeypatch.setattr(sys, "stdout", stream)
        assert output.screen_height() == 24
    os.close(ours)
