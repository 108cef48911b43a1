"""`ckpt ls` as text: one row per checkpoint, and a line that sums them up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.jobs.inspect.ls import RUNS_CODE, UNREADABLE, LsRow
from ckpt.render.text import Column, Line, cells, columns, narrowed, wrapped
from ckpt.text import count_text, plural, show, show_literal, size_text

_COLUMNS = (
    Column("NAME", gives_way=True, least=24),
    Column("FORMAT", given_up=1),
    Column("SIZE", right=True, given_up=5),
    Column("PARAMS", right=True, given_up=4),
    Column("DTYPE", given_up=2),
    Column("DEVICE", given_up=3),
    Column("LOADS"),
    Column("FINDINGS", least=18),
)
_ALWAYS = ("NAME", "LOADS", "FINDINGS")
_STYLES = {RUNS_CODE: "error", UNREADABLE: "warning"}


def ls_lines(rows: Sequence[LsRow], width: int | None = None, folder: str = "") -> list[Line]:
    """The rows as a table of at most `width` cells. Names are shown below `folder`.

    Columns that are empty are left out, and those that least matter where the screen is narrow.
    """
    table = [_cells(row, folder) for row in rows]
    filled = [i for i, head in enumerate(_COLUMNS) if head.name in _ALWAYS or any(row[i] for row in table)]
    (*others, last), texts = narrowed(
        [_COLUMNS[i] for i in filled], [[row[i] for i in filled] for row in table], width
    )
    findings = [row[-1] for row in texts]
    least = min(max(cells(text) for text in (last.name, *findings)), last.least or 0)
    lines = columns(
        others, [row[:-1] for row in texts], width=None if width is None else max(width - 2 - least, 0)
    )
    position = [head.name for head in others].index("LOADS")
    out: list[Line] = [[*lines[0], ("  FINDINGS", "head")]]
    for line, cell, row in zip(lines[1:], findings, rows, strict=True):
        line[position] = (line[position][0], _STYLES.get(row.loads, ""))
        if row.error is not None:  # its other columns are empty
            line, cell = [line[0], (UNREADABLE, _STYLES[UNREADABLE])], show_literal(str(row.error))
        indent = sum(cells(text) for text, _ in line) + 2
        first, *more = wrapped(cell, None if width is None else max(width - indent, last.least or 0), 0)
        out.append([*line, (f"  {first}", "")])
        out += [[(" " * indent + text, "")] for text in more]
    return out


def _cells(row: LsRow, folder: str) -> list[str]:
    name = show(os.path.relpath(row.path, folder) if folder else row.path, None)
    if row.error is not None:
        return [name, "", "", "", "", "", UNREADABLE, ""]
    parameters = count_text(row.parameters) if row.parameters else ""
    if row.unknown and not row.parameters:
        parameters = f"{count_text(row.unknown)}?"
    dtype, device = _first(row.dtypes), _first(row.devices)
    codes = " ".join(row.codes)
    return [name, row.format, size_text(row.nbytes), parameters, dtype, device, show(row.loads, 40), codes]


def _first(names: Sequence[str]) -> str:
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return show(names[0], 20) + more if names else ""


def summary(rows: Sequence[LsRow], others: Sequence[str] = ()) -> str:
    """Return the sum of the rows. `others` are the files of folders that are no checkpoint.

    It reads `3 checkpoints, 587 MiB · 1 runs code (ckpt lint --level error) · 2 not looked at (--others)`.
    """
    read = [row for row in rows if row.error is None]
    parts = [f"{plural(len(read), 'checkpoint')}, {size_text(sum(row.nbytes for row in read))}"]
    runs = sum(row.loads == RUNS_CODE for row in read)
    unread = len(rows) - len(read)
    parts += [f"{runs:,} {'runs' if runs == 1 else 'run'} code"] if runs else []
    parts += [f"{unread:,} unreadable"] if unread else []
    if runs or unread:
        parts[-1] += " (ckpt lint --level error)"
    unused = sum(any(finding.code == "unused" for finding in row.findings) for row in read)
    parts += [f"{unused:,} with unused parameters: DDP stops unless they are frozen"] if unused else []
    parts += [f"{len(others):,} not looked at (--others)"] if others else []
    return " · ".join(parts)


def ls_table(rows: Sequence[LsRow]) -> list[list[str]]:
    """One checkpoint a row, exact: `--tsv` and `--table`."""
    table = [["file", "format", "bytes", "parameters", "dtypes", "devices", "loads", "findings", "error"]]
    for row in rows:
        is_readable = row.error is None
        table.append(
            [
                show(row.path, None),
                row.format,
                str(row.nbytes) if is_readable else "",
                str(row.parameters) if is_readable else "",
                ",".join(row.dtypes),
                show(",".join(row.devices), None),
                show(row.loads, None),
                ",".join(dict.fromkeys(finding.code for finding in row.findings)),
                "" if row.error is None else show_literal(str(row.error)),
            ]
        )
    return table
