"""The two streams: the answer goes to stdout, talk to stderr. Colour, width and
encoding are decided once, here.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import TextIO

from ckpt.model.errors import CkptError, Failure, UsageError
from ckpt.model.text import (
    STAND_INS,
    TEXT_LIMIT,
    Json,
    show,
    show_line,
    show_literal,
    size_text,
)
from ckpt.surface.text.lines import (
    Line,
    Written,
    as_written,
    cut,
    plain_text,
    ragged_lines,
    table_lines,
    talk_lines,
)

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


_ASCII = STAND_INS
_HANDLER = "ckpt.ascii"
_when = "auto"
"""The value of `--color`."""


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return the stand-in of a character that an encoding lacks, or its escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # One character at a time, for the next one may have a stand-in.
    char = error.object[error.start]
    if char in _ASCII:
        return _ASCII[char], error.start + 1
    # One character, so that the next one may have a stand-in.
    error.end = error.start + 1
    return codecs.backslashreplace_errors(error)


def set_color(when: str | None) -> None:
    """Decide on colour for both streams: `always`, `never`, or `auto`. Raises
    UsageError for another word.
    """
    global _when
    if when not in (None, *COLORS):
        raise UsageError(
            f"--color {show(str(when), 60)}: not a choice",
            hint=f"choices: {' '.join(COLORS)}",
        )
    _when = when or "auto"


COLORS = ("auto", "always", "never")
_is_silent = _is_unsummed = False
"""The values of `--quiet`, and of `--no-summary`."""


def is_silent() -> bool:
    """Tell whether `--quiet` drops all lines but errors. A command need not make what
    is dropped.
    """
    return _is_silent


@contextmanager
def silenced_output(*, all: bool = False, summary: bool = False) -> Iterator[None]:
    """Drop all lines but errors and alarms, or the closing line on stderr."""
    global _is_silent, _is_unsummed
    before = _is_silent, _is_unsummed
    _is_silent, _is_unsummed = all, summary
    try:
        yield
    finally:
        _is_silent, _is_unsummed = before


def prepare_streams() -> None:
    """Make both streams take any text: what their encoding lacks has a stand-in or is
    escaped, never an exception. A stdin that is closed is an empty one.
    """
    codecs.register_error(_HANDLER, _stand_in)
    # Whoever started us may have closed them. An answer that goes nowhere is trouble,
    # and a file that is opened later must not get the number of stdout; talk is
    # dropped.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = _prepare_stream(sys.stdout or _null_stream(os.O_RDONLY))
    sys.stderr = _prepare_stream(sys.stderr or _null_stream(os.O_WRONLY))
    # A caller may have put another stream there.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # Columns are measured as they are written: a stand-in may be longer than its
    # character.
    if not codecs.lookup(encoding).name.startswith("utf"):
        Written.form = lambda text: text.encode(encoding, _HANDLER).decode(encoding)


def _null_stream(flags: int) -> TextIO:
    """A stream to /dev/null, open until the process ends. Opened for reading, it takes
    nothing.
    """
    return os.fdopen(os.open(os.devnull, flags), "w")


def _prepare_stream(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if isinstance(stream.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: a raw stream drops what a pipe does not take at once.
        stream = io.TextIOWrapper(
            io.BufferedWriter(stream.buffer), encoding=stream.encoding
        )
    stream.reconfigure(errors=_HANDLER)
    return stream


_nowhere: int | None = None
"""/dev/null, open for writing before the process may open nothing for writing
any more.
"""


def keep_nowhere() -> None:
    """Open what `discard_stdout` needs, before the fence is up."""
    global _nowhere
    _nowhere = os.open(os.devnull, os.O_WRONLY)


def discard_stdout() -> None:
    """Drop what is still buffered for stdout, so that it cannot fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY) if _nowhere is None else _nowhere
    os.dup2(nowhere, sys.stdout.fileno())


def has_colour(stream: TextIO | None = None) -> bool:
    """Tell whether a stream gets colour, by default stdout.

    `--color` decides, then NO_COLOR, then FORCE_COLOR, then a terminal.
    """
    if _when != "auto":
        return _when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def screen_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal that a stream writes to, by default stdout; None in a
    pipe: there nothing is cut.
    """
    size = _screen_size(stream or sys.stdout)
    return None if size is None else size.columns


def screen_height() -> int | None:
    """Rows of the terminal, None in a pipe."""
    size = _screen_size(sys.stdout)
    return None if size is None else size.lines


def _screen_size(stream: TextIO) -> os.terminal_size | None:
    if not stream.isatty():
        return None
    from shutil import get_terminal_size

    # The size of this stream, not of stdout, which may be a file.
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, rows = 0, 0
    size = get_terminal_size((columns or 80, rows or 24))
    # A terminal may say that it has 0 columns, and Python 3.10 hands that on.
    return os.terminal_size((size.columns or 80, size.lines or 24))


def write_lines(lines: Sequence[Line]) -> None:
    if _is_silent:
        return
    _clear_bar()
    lines = list(map(_escape_line, lines))
    if not has_colour():
        sys.stdout.write(plain_text(lines))
        return
    # Here: only colour pays for it.
    from rich.console import Console
    from rich.text import Text

    # Colours, but no markup and no links: names come from files.
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


def _escape_line(line: Line) -> Line:
    """As `show_line`, for styled text. What a report forgot to escape is
    escaped here.
    """
    # `show_line` looks at whole lines: `::` and `##` are commands in logs of CI.
    text = "".join(text for text, _ in line)
    # Nearly all lines are safe, and keep their parts.
    if show_line(show_literal(text)) == text:
        return line
    shown = [
        (show_literal(part).replace("##", "\\x23#"), style) for part, style in line
    ]
    if text.lstrip().startswith("::"):
        number = next(number for number, (part, _) in enumerate(shown) if ":" in part)
        part, style = shown[number]
        shown[number] = (part.replace(":", "\\x3a", 1), style)
    return shown


def write_text(line: str) -> None:
    """One line of exact text, made safe already: what the encoding lacks is escaped,
    and has no stand-in.
    """
    if _is_silent:
        return
    line = show_line(line)
    if not line.isascii():
        encoding = sys.stdout.encoding or "utf-8"
        line = line.encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(f"{line}\n")


def write_json(document: dict[str, Json]) -> None:
    """A document on one line; on a terminal it is indented, with one row per line."""
    # A pipe gets one line, which tools that read lines can take.
    is_screen = sys.stdout.isatty()
    new, inner, row_at = ("\n", "\n  ", "\n    ") if is_screen else ("", "", "")
    after = "," if is_screen else ", "
    opening = f"{{{inner}"
    for key, value in document.items():
        sys.stdout.write(f"{opening}{_compact_json(key)}: ")
        opening = f"{after}{inner}"
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            # A row at a time: all of them may be as large as the file.
            for index, row in enumerate(value):
                sys.stdout.write(
                    f"{after if index else '['}{row_at}{_compact_json(row)}"
                )
            sys.stdout.write(f"{inner}]")
        else:
            sys.stdout.write(_compact_json(value))
    sys.stdout.write(f"{new}}}\n")


def _compact_json(value: Json) -> str:
    import json  # here: most output is text

    # Without indent json's encoder is fast. `##[` is a command to GitHub Actions; `#`
    # is only found in strings.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace(
        "##", "#\\u0023"
    )


def write_table(
    rows: Iterable[Sequence[str]], *, tsv: bool, table: str | None, header: bool = True
) -> None:
    """Rows, the first of them the header, as TSV, in a format of tabulate, or as
    aligned columns.
    """
    if tsv or table is not None:
        if not tsv:  # which tabulate measures
            rows = ([as_written(cell) for cell in row] for row in rows)
        for line in table_lines(rows, tsv=tsv, table=table, header=header):
            write_text(line)
        return
    # For people, so long cells are cut and numbers stand at the right.
    names, *others = rows
    numbers = frozenset(
        i for i, name in enumerate(names) if name in ("bytes", "used", "numel")
    )
    shown = [[cut(cell, 2 * TEXT_LIMIT) for cell in row] for row in others]
    head = [cell.upper() for cell in names]
    write_lines(ragged_lines([head, *shown], right=numbers, width=screen_width()))


class Tables:
    """The rows of several files as one table: a header once, and the file before each
    row.

    In a format of tabulate each file has a table of its own, with its header.
    """

    def __init__(
        self, several: bool, *, tsv: bool, table: str | None, header: bool
    ) -> None:
        self.asked = tsv or table is not None
        self._several = several
        self._tsv = tsv
        self._table = table
        self._header = header
        self._shown = False

    def write(self, path: str, rows: Iterable[Sequence[str]]) -> None:
        """Write the rows of one file; the first is the header."""
        if self._several:
            files = chain(["file"], repeat(show(path, None)))
            rows = ([file, *row] for file, row in zip(files, rows, strict=False))
        # TSV has one header for all files, so that a script reads one table.
        header = self._header and (not self._shown or self._table is not None)
        self._shown = True
        write_table(rows, tsv=self._tsv, table=self._table, header=header)


_LONGEST = 2000
"""Characters of one line of an error that are shown."""
_texts = 0


def separate_reports() -> None:
    """An empty line between the reports of several files."""
    global _texts
    if _texts:
        write_lines([[]])
    _texts += 1


_PATIENCE, _PAUSE = 0.5, 0.1
"""Seconds of work without a progress bar, and those between two drawings of it."""
_CELLS = 24
"""Columns of the bar itself."""
_clock = time.monotonic


class _Bar:
    """One line on stderr that is drawn over and over. It is made before any thread,
    which then only advances it.
    """

    # work inside of other work, also in a copy of this process, has none of its own
    is_open = False
    shown: _Bar | None = None
    """The bar that is on the screen."""

    def __init__(self, doing: str, total: int, unit: str, names: Sequence[str]) -> None:
        self._doing, self._total, self._unit, self._names = doing, total, unit, names
        self._done = 0
        self._begin = _clock()
        # Work that ends soon shows no bar.
        self._next = self._begin + _PATIENCE
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Count work that is done; any thread may call it."""
        with self._lock:
            self._update_done(min(self._done + count, self._total))

    def reach(self, done: int, total: int) -> None:
        """Set the work that is done, and all work; any thread may call it."""
        with self._lock:
            self._total = total
            self._update_done(done)

    def _update_done(self, done: int) -> None:
        self._done = done
        now = _clock()
        # Threads advance it thousands of times in a second.
        if now >= self._next:
            self._next = now + _PAUSE
            self._draw_bar(now - self._begin)

    def _draw_bar(self, seconds: float) -> None:
        share = self._done / self._total if self._total else 1.0
        # Characters that every encoding has, where stderr is not UTF-8.
        full, empty = (
            ("━", "·") if "utf" in (sys.stderr.encoding or "").lower() else ("=", ".")
        )
        cells = int(share * _CELLS)
        if self._unit:
            rest = f"{self._done:,} of {self._total:,} {self._unit}"
            rest += (
                f"  {show(self._names[self._done])}"
                if self._done < len(self._names)
                else ""
            )
        else:
            speed = size_text(int(self._done / seconds)) if seconds > 0 else "0 B"
            rest = f"{size_text(self._done)} of {size_text(self._total)}, {speed}/s"
        line = (
            f"{self._doing} {full * cells}{empty * (_CELLS - cells)} {share:4.0%}  "
            f"{rest}"
        )
        _Bar.shown = self
        # `\r` to the begin of the line, and `\033[K` for what a longer line left
        # behind.
        width = screen_width(sys.stderr) or 80
        sys.stderr.write(f"\r{line[: width - 1]}\033[K")
        sys.stderr.flush()


def _clear_bar() -> None:
    """Take the bar off the screen, before a line is written or when the work
    has ended.
    """
    if _Bar.shown is not None:
        _Bar.shown = None
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


@contextmanager
def progress(
    doing: str, total: int, unit: str = "", names: Sequence[str] = ()
) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr for work that takes a while; only on a terminal. Without a unit
    it counts bytes.

    `doing` is a word such as `copying`. The name of the next file, one of `names`,
    stands beside the count. Whatever ends the work takes the bar off the screen.
    """
    with _bar_on_screen(doing, total, unit, names) as bar:
        yield None if bar is None else bar.advance


@contextmanager
def progress_meter(
    doing: str, unit: str = ""
) -> Iterator[Callable[[int, int], None] | None]:
    """As `progress`, for work that tells how much of it is done, and how much
    there is.
    """
    with _bar_on_screen(doing, 0, unit, ()) as bar:
        yield None if bar is None else bar.reach


@contextmanager
def _bar_on_screen(
    doing: str, total: int, unit: str, names: Sequence[str]
) -> Iterator[_Bar | None]:
    if (
        _is_silent
        or _Bar.is_open
        or not sys.stderr.isatty()
        or os.environ.get("TERM") == "dumb"
    ):
        yield None
        return
    bar = _Bar(doing, total, unit, names)
    _Bar.is_open = True
    try:
        yield bar
    finally:
        _Bar.is_open = False
        _clear_bar()


def write_skipped(path: str, why: str) -> None:
    """Name a file of a folder that is not opened, on stderr."""
    write_talk(f"ckpt: {show(path, None)}: skipped: {show_literal(why)}")


def list_others(paths: Sequence[str]) -> None:
    """Name the files of folders that are no checkpoints, on stderr."""
    from ckpt.bytes.far import (
        is_url,
    )  # here: only a folder with other files pays for it

    for path in paths:
        is_file = os.path.isfile(path) or is_url(path)
        why = (
            "its first bytes are of no checkpoint" if is_file else "not a regular file"
        )
        write_talk(f"ckpt: {show(path, None)}: not looked at: {why}")


def write_talk(text: str, hint: str | None = None) -> None:
    """Lines on stderr, made safe by whoever made them, broken at words where they do
    not fit the terminal.
    """
    if not _is_silent:
        write_complaint(text, hint)


def write_complaint(text: str, hint: str | None = None) -> None:
    """As `write_talk`, about trouble: `--quiet` does not drop it."""
    width = screen_width(sys.stderr)
    parts = [talk_lines(line, hint, width) for line in text.split("\n")]
    _write_stderr(list(chain.from_iterable(parts)))


def _write_stderr(lines: Sequence[str]) -> None:
    _clear_bar()
    for line in lines:
        sys.stderr.write(f"{show_line(show_literal(line))}\n")
    sys.stderr.flush()


def unread_line(path: str, error: Failure) -> str:
    """The line about a file of several that cannot be read."""
    return f"ckpt: {show(path, None)}: {show_literal(str(error))}"


def write_conclusion(text: str, hint: str | None = None) -> None:
    """The line on stderr that sums up what stdout shows, after it."""
    # Both streams may be one terminal, and the sum belongs behind the report.
    sys.stdout.flush()
    if not _is_unsummed:
        write_talk(text, hint)


def write_alarm(text: str) -> None:
    """A sentence on stderr, in red where it gets colour. `--quiet` does not drop it."""
    is_red = has_colour(sys.stderr)
    sys.stderr.write("\033[1;31m" if is_red else "")
    write_complaint(text)
    sys.stderr.write("\033[0m" if is_red else "")
    sys.stderr.flush()


def talk_foreign(text: str) -> None:
    """Lines on stderr that somebody else composed, such as Python or the parser of the
    command line.
    """
    _write_stderr([line[:_LONGEST] for line in text.rstrip("\n").split("\n")])


def talk_traceback(error: BaseException) -> None:
    """The traceback of an error on stderr, safe whatever the file put into it."""
    import traceback

    talk_foreign("".join(traceback.format_exception(error)))


def write_error(error: Exception) -> None:
    """An error in one line on stderr, safe whatever the file put into it; CKPT_DEBUG
    shows where it arose.
    """
    if os.environ.get("CKPT_DEBUG"):
        talk_traceback(error)
    text, hint = str(error), error.hint if isinstance(error, CkptError) else None
    # The hint has a line of its own.
    text = text.removesuffix(f" ({hint})")
    # A file can put megabytes into a name.
    if len(text) + len(hint or "") > _LONGEST:
        text, hint = str(error)[:_LONGEST], None
    write_complaint(f"ckpt: {show_literal(text)}", hint and show_literal(hint))
