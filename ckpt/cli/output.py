"""The two streams: the answer goes to stdout, talk to stderr. Colour and width are decided once, here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from ckpt.names import show
from ckpt.render.text import Line, columns, plain_text

_STYLES = {
    "head": "bold",
    "name": "bold cyan",
    "dim": "dim",
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
}


def prepare() -> None:
    """Make both streams take any text: what their encoding lacks is escaped, never an exception."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def coloured() -> bool:
    """Whether stdout gets colour: NO_COLOR wins, then FORCE_COLOR, then whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def screen_width() -> int | None:
    """Columns of the terminal, None in a pipe: there nothing is cut."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def write_lines(lines: Sequence[Line]) -> None:
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


def write_json(documents: Sequence[dict[str, Any]]) -> None:
    """One document with a row a line, several documents a line each."""
    if len(documents) != 1:
        for document in documents:
            sys.stdout.write(f"{_compact(document)}\n")
        return
    fields = []
    for key, value in documents[0].items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            rows = ",\n    ".join(map(_compact, value))
            fields.append(f"  {_compact(key)}: [\n    {rows}\n  ]")
        else:
            fields.append(f"  {_compact(key)}: {_compact(value)}")
    sys.stdout.write("{\n" + ",\n".join(fields) + "\n}\n")


def _compact(value: Any) -> str:
    # Without indent: only then is json's encoder the fast one.
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def write_table(rows: Sequence[Sequence[str]], *, tsv: bool, table: str | None, header: bool = True) -> None:
    """Rows, the first of them the header, as TSV, in a format of tabulate, or as aligned columns."""
    if tsv:
        sys.stdout.writelines("\t".join(row) + "\n" for row in rows[0 if header else 1 :])
    elif table is not None:
        from tabulate import tabulate

        bars = table in ("github", "pipe", "jira", "orgtbl", "pretty", "psql", "presto")
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows] if bars else rows
        sys.stdout.write(
            tabulate(cells[1:], headers=cells[0] if header else (), tablefmt=table, disable_numparse=True)
            + "\n"
        )
    else:
        numbers = frozenset(i for i, name in enumerate(rows[0]) if name in ("bytes", "used", "numel"))
        write_lines(columns([[cell.upper() for cell in rows[0]], *rows[1:]], right=numbers))


def talk(text: str) -> None:
    """One line on stderr. `text` was made safe by whoever made it."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fail(error: Exception) -> None:
    """An error in one line on stderr, safe whatever the file put into it."""
    talk(f"ckpt: {show(str(error), 2000)}")
