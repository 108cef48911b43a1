"""The two streams: the answer goes to stdout, talk to stderr. Colour and width are decided once, here."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ckpt.render.text import Line, cells, columns, cut, plain_text
from ckpt.text import TEXT_LIMIT, Json, show, show_cell, show_line, show_literal

if TYPE_CHECKING:
    from rich.progress import Progress

_STYLES = {
    "head": "bold",
    "name": "bold cyan",
    "dim": "dim",
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "command": "underline",
    "group": "bold",
    "good": "green",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "renamed": "cyan",
}


def prepare() -> None:
    """Make both streams take any text: what their encoding lacks is escaped, never an exception."""
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = _prepared(sys.stderr)


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by whoever started us
        return open(os.devnull, "w")  # until the process ends
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if isinstance(stream.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: a raw stream drops what a pipe does not take at once.
        stream = io.TextIOWrapper(io.BufferedWriter(stream.buffer), encoding=stream.encoding)
    stream.reconfigure(errors="backslashreplace")
    return stream


def discard() -> None:
    """Drop what is still buffered for stdout, so that it cannot fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def coloured(stream: TextIO | None = None) -> bool:
    """Whether a stream, by default stdout, gets colour: NO_COLOR wins, then FORCE_COLOR, then whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def screen_width() -> int | None:
    """Columns of the terminal, None in a pipe: there nothing is cut."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def screen_height() -> int | None:
    """Rows of the terminal, None in a pipe."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().lines


def write_lines(lines: Sequence[Line]) -> None:
    lines = list(map(_shown, lines))
    if not coloured():
        sys.stdout.write(plain_text(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=sys.stdout,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        soft_wrap=True,
        emoji=False,
    )
    for line in lines:
        text = Text(no_wrap=True)
        for part, style in line:
            text.append(part, _STYLES.get(style, ""))
        text.rstrip()
        console.print(text, soft_wrap=True)


def _shown(line: Line) -> Line:
    """As `show_line`, for styled text. What a report forgot to escape is escaped here."""
    text = "".join(text for text, _ in line)
    if show_line(show_literal(text)) == text:
        return line
    shown = [(show_literal(part).replace("##", "\\x23#"), style) for part, style in line]
    if text.lstrip().startswith("::"):
        number = next(number for number, (part, _) in enumerate(shown) if ":" in part)
        part, style = shown[number]
        shown[number] = (part.replace(":", "\\x3a", 1), style)
    return shown


def write_text(line: str) -> None:
    """One line of text, made safe already."""
    sys.stdout.write(f"{show_line(line)}\n")


def write_json(document: dict[str, Json], *, one_line: bool = False) -> None:
    """A document with one row per line, or all of it on one line."""
    if one_line:
        sys.stdout.write(f"{_compact(document)}\n")
        return
    opening = "{\n"
    for key, value in document.items():
        sys.stdout.write(f"{opening}  {_compact(key)}: ")
        opening = ",\n"
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            for index, row in enumerate(value):  # a row at a time: all of them may be as large as the file
                sys.stdout.write(f"{',' if index else '['}\n    {_compact(row)}")
            sys.stdout.write("\n  ]")
        else:
            sys.stdout.write(_compact(value))
    sys.stdout.write("\n}\n")


def _compact(value: Json) -> str:
    # Without indent: only then is json's encoder the fast one.
    # The same text without `##[`, which is a command to GitHub Actions: `#` is only found inside of strings.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("##", "#\\u0023")


_TABLES = {"unsafehtml": "html", "latex_raw": "latex"}
"""Formats of tabulate that leave markup as it is -> those that escape it."""
_NAMES = frozenset(("file", "name", "before", "after"))
"""Columns whose text is no number, whatever it looks like."""
_OWN = frozenset(("letter",))
"""Columns that hold nothing of the file."""
_NO_MARKUP = re.compile(r"(?:[^\W_]|[ .,;/()=+%'…×-]|:(?=[0-9 ])|_(?=[^\W_]))*")


def write_table(rows: Sequence[Sequence[str]], *, tsv: bool, table: str | None, header: bool = True) -> None:
    """Rows, the first of them the header, as TSV, in a format of tabulate, or as aligned columns."""
    table = _TABLES.get(table or "", table)
    if tsv or table == "tsv":
        rows = [rows[0], *([*map(_cell, rows[0], row)] for row in rows[1:])]
    if tsv:
        for row in rows[0 if header else 1 :]:
            write_text("\t".join(row))
    elif table is not None:
        from tabulate import tabulate

        if table in ("github", "pipe"):
            rows = [[_markdown(cell) for cell in row] for row in rows]
        elif table in ("jira", "orgtbl", "pretty", "psql", "presto"):
            rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        text = tabulate(rows[1:], headers=rows[0] if header else (), tablefmt=table, disable_numparse=True)
        for line in text.split("\n"):
            write_text(line)
    else:
        numbers = frozenset(i for i, name in enumerate(rows[0]) if name in ("bytes", "used", "numel"))
        shown = [[cut(cell, 2 * TEXT_LIMIT) for cell in row] for row in rows[1:]]
        sizes = [max((cells(row[i]) for row in shown), default=0) for i in range(len(rows[0]))]
        head = [cell.upper() for cell in rows[0]]
        write_lines(
            columns([head, *shown], right=numbers, width=screen_width(), give=sizes.index(max(sizes)))
        )


def _cell(column: str, text: str) -> str:
    return text if column in _OWN else show_cell(text, name=column in _NAMES)


def _markdown(text: str) -> str:
    """A cell of a Markdown table: as code where it holds markup, a link, or a mention."""
    if _NO_MARKUP.fullmatch(text) and "www." not in text.lower():
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


class Tables:
    """The rows of several files as one table: a header once, and the file before each row.

    In a format of tabulate each file has a table of its own, with its header.
    """

    def __init__(self, several: bool, *, tsv: bool, table: str | None, header: bool) -> None:
        self.asked = tsv or table is not None
        self._several = several
        self._tsv = tsv
        self._table = table
        self._header = header
        self._shown = False

    def write(self, path: str, rows: Sequence[Sequence[str]]) -> None:
        """Write the rows of one file; the first is the header."""
        if self._several:
            name = show(path, None)
            rows = [["file", *rows[0]], *([name, *row] for row in rows[1:])]
        header = self._header and (not self._shown or self._table is not None)
        self._shown = True
        write_table(rows, tsv=self._tsv, table=self._table, header=header)


_LONGEST = 2000
"""Characters of one line of an error that are shown."""
_texts = 0


def between() -> None:
    """An empty line between the reports of several files."""
    global _texts
    if _texts:
        write_lines([[]])
    _texts += 1


_PATIENCE = 0.5
"""Seconds of work without a progress bar."""


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr, in bytes, for work that takes a while; only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    begin = time.monotonic()
    done = 0
    bar: Progress | None = None

    def advance(count: int) -> None:
        nonlocal done, bar
        done += count
        if bar is None and time.monotonic() - begin > _PATIENCE:
            bar = _bar(total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=min(done, total))

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=total)
    bar.start()
    return bar


def talk(text: str) -> None:
    """Lines on stderr, made safe by whoever made them."""
    for line in text.split("\n"):
        sys.stderr.write(f"{show_line(show_literal(line))}\n")
    sys.stderr.flush()


def conclude(text: str) -> None:
    """The line on stderr that sums up what stdout shows, after it."""
    sys.stdout.flush()
    talk(text)


def alarm(text: str) -> None:
    """One line on stderr, in red where it gets colour."""
    if coloured(sys.stderr):
        sys.stderr.write(f"\033[1;31m{show_line(show_literal(text))}\033[0m\n")
        sys.stderr.flush()
    else:
        talk(text)


def talk_foreign(text: str) -> None:
    """Lines on stderr that somebody else composed, such as Python or the parser of the command line."""
    for line in text.rstrip("\n").split("\n"):
        talk(line[:_LONGEST])


def talk_traceback(error: BaseException) -> None:
    """The traceback of an error on stderr, safe whatever the file put into it."""
    import traceback

    talk_foreign("".join(traceback.format_exception(error)))


def fail(error: Exception) -> None:
    """An error in one line on stderr, safe whatever the file put into it; CKPT_DEBUG shows where it arose."""
    if os.environ.get("CKPT_DEBUG"):
        talk_traceback(error)
    talk(f"ckpt: {show_literal(str(error)[:_LONGEST])}")
