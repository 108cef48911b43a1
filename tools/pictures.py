"""Draws the pictures of the docs: docs/img/NAME-dark.svg and NAME-light.svg, which
`make docs` writes.

Each command runs in a copy of the samples on a terminal of 100 × 40, and rich draws
what it printed. The same screen gives the same bytes: no random ids, and no font or
script of another host.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from select import select
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "docs/img"
COMMANDS = {
    "inspect": "ckpt inspect llama_bf16.pth",
    "hostile": "ckpt inspect hostile.pth",
    "diff": "ckpt diff ddp_before.pth ddp_after.pth",
    "ls": "ckpt ls .",
}
"""Name of a picture -> the command that it shows."""
WIDTH, HEIGHT = 100, 40


def _rgb(*colours: str) -> list[tuple[int, int, int]]:
    return [
        (int(text[:2], 16), int(text[2:4], 16), int(text[4:], 16)) for text in colours
    ]


def _theme(back: str, fore: str, normal: str, bright: str) -> TerminalTheme:
    return TerminalTheme(
        *_rgb(back, fore), _rgb(*normal.split()), _rgb(*bright.split())
    )


THEMES = {
    "dark": _theme(
        "0d1117",
        "e6edf3",
        "484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4",
        "6e7681 ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd ffffff",
    ),
    "light": _theme(
        "ffffff",
        "1f2328",
        "24292f cf222e 116329 7d4e00 0969da 8250df 1b7c83 6e7781",
        "57606a a40e26 1a7f37 633c01 218bff a475f9 3192aa 8c959f",
    ),
}
"""GitHub's colours, on which pages of both schemes are read."""
# Nothing cuts off the underscores of the last line.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 15px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{height}"/></clipPath>
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def pictures() -> dict[str, str]:
    """Every picture as its command prints it today, by its path below the root."""
    made = {}
    for name, command in COMMANDS.items():
        shown = screen(command)
        for scheme in THEMES:
            made[f"{FOLDER}/{name}-{scheme}.svg"] = drawn(shown, command, name, scheme)
    return made


def drawn(shown: str, command: str, name: str, scheme: str) -> str:
    """A screen with its colours as SVG."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    for line in shown.splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(
        title=f"$ {command}",
        theme=THEMES[scheme],
        code_format=_FORMAT,
        unique_id=f"{name}-{scheme}",
    )
    svg = re.sub(
        r' clip-path="url\(#[^)]*-line-\d+\)"', "", svg
    )  # it would cut underscores and underlines
    svg = _underlined(svg)
    return "".join(f"{line.strip()}\n" for line in svg.splitlines() if line.strip())


def _underlined(svg: str) -> str:
    """The picture with each underline as a line of its own: that of a browser hides
    underscores.
    """
    styles = re.findall(r"\.(\S+) { fill: (\S+?);[^}]*text-decoration: underline;", svg)
    for style, colour in styles:
        svg = re.sub(
            rf'(<text class="{style}" x="(\S+)" y="(\S+)" textLength="(\S+)">)',
            lambda found, fill=colour: (
                f'<rect x="{found[2]}" y="{float(found[3]) + 5.5:g}" '
                f'width="{found[4]}" height="1" fill="{fill}"/>{found[1]}'
            ),
            svg,
        )
    return svg.replace("text-decoration: underline;", "")


def screen(command: str) -> str:
    """What a command writes to a terminal: its answer, then what it says on stderr."""
    program, *words = command.split()
    assert program == "ckpt", command
    terminal, end = pty.openpty()
    ioctl(end, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    settings = ("NO_COLOR", "FORCE_COLOR", "CKPT_DEBUG", "COLUMNS", "LINES", "LC_ALL")
    env = {name: value for name, value in os.environ.items() if name not in settings}
    env |= {
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "CKPT_NO_PLUGINS": "1",
    }
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryFile() as talk:
        folder = Path(temporary) / "samples"
        shutil.copytree(ROOT / "sample_checkpoints", folder)
        # stderr is a file: a progress bar would show on a slow machine alone.
        with subprocess.Popen(
            [sys.executable, "-m", "ckpt", *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=talk,
        ) as process:
            answer = _read(terminal, process)
        os.close(terminal)
        os.close(end)
        talk.seek(0)
        return (answer + talk.read()).decode().replace("\r\n", "\n")


def _read(terminal: int, process: subprocess.Popen[bytes]) -> bytes:
    """What comes out of a terminal until a process has ended. The other end is still
    open here, so nothing is lost.
    """
    found = bytearray()
    while True:
        has_ended = process.poll() is not None
        if select([terminal], [], [], 0 if has_ended else 0.05)[0]:
            found += os.read(terminal, 1 << 16)
        elif has_ended:
            return bytes(found)


def write() -> None:
    """Write docs/img/."""
    (ROOT / FOLDER).mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (ROOT / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    write()
