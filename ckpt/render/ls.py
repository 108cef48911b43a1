"""`ckpt ls` as text: one row per checkpoint, and a line that sums them up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.findings import Finding
from ckpt.jobs.inspect.ls import RUNS_CODE, UNREADABLE, LsRow
from ckpt.render.text import Line, cells, columns, wrapped
from ckpt.text import count_text, plural, show, show_literal, size_text

_ELSEWHERE = frozenset(("weights-only", "unknown-import", "optimizer-heavy", "tied"))
"""Findings that other columns tell, or that most checkpoints have; JSON has all."""
_HEAD = ["NAME", "FORMAT", "SIZE", "PARAMS", "DTYPE", "DEVICE", "LOADS", "FINDINGS"]
_NUMBERS, _LOADS, _ALWAYS = (2, 3), 6, (0, 6, 7)
_GIVEN_UP = (1, 4, 5, 3, 2)
"""Columns that a narrow screen does without, the first of them first."""
_NAME, _LAST = 24, 18
"""The least cells for a name, and for the findings."""
_STYLES = {RUNS_CODE: "error", UNREADABLE: "warning"}


def ls_lines(rows: Sequence[LsRow], width: int | None = None, folder: str = "") -> list[Line]:
    """The rows as a table of at most `width` cells. Names are shown below `folder`.

    Columns that are empty are left out, and those that least matter where the screen is narrow.
    """
    table = [_HEAD, *(_cells(row, folder) for row in rows)]
    kept = [i for i, _ in enumerate(_HEAD) if i in _ALWAYS or any(row[i] for row in table[1:])]
    sizes = [max(cells(row[i]) for row in table) for i in range(len(_HEAD))]
    for i in _GIVEN_UP:
        if width is not None and i in kept and _needed(sizes, kept) > width:
            kept.remove(i)
    *others, last = kept
    left = columns(
        [[row[i] for i in others] for row in table],
        right=frozenset(others.index(i) for i in _NUMBERS if i in others),
        width=None if width is None else max(width - 2 - min(sizes[last], _LAST), 0),
    )
    out: list[Line] = [[*left[0], ("  FINDINGS", "head")]]
    for line, cell, row in zip(left[1:], (row[last] for row in table[1:]), rows, strict=True):
        at = others.index(_LOADS)
        line[at] = (line[at][0], _STYLES.get(row.loads, ""))
        if row.error is not None:  # its other columns are empty
            line, cell = [line[0], (UNREADABLE, _STYLES[UNREADABLE])], show_literal(str(row.error))
        indent = sum(cells(text) for text, _ in line) + 2
        first, *more = wrapped(cell, None if width is None else max(width - indent, _LAST), 0)
        out.append([*line, (f"  {first}", "")])
        out += [[(" " * indent + text, "")] for text in more]
    return out


def _cells(row: LsRow, folder: str) -> list[str]:
    name = show(os.path.relpath(row.path, folder) if folder else row.path, None)
    if row.error is not None:
        return [name, "", "", "", "", "", UNREADABLE, ""]
    parameters = count_text(row.parameters) if row.parameters else ""
    dtype, device = _first(row.dtypes), _first(row.devices)
    codes = " ".join(codes_of(row.findings))
    return [name, row.format, size_text(row.nbytes), parameters, dtype, device, show(row.loads, 40), codes]


def _needed(sizes: Sequence[int], kept: Sequence[int]) -> int:
    """The width of a table with these columns, its names cut and its last column wrapped as far as can be."""
    *others, last = kept
    wanted = [min(sizes[0], _NAME), *(sizes[i] for i in others[1:]), min(sizes[last], _LAST)]
    return sum(wanted) + 2 * (len(wanted) - 1)


def _first(names: Sequence[str]) -> str:
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return show(names[0], 20) + more if names else ""


def codes_of(findings: Sequence[Finding]) -> list[str]:
    """The codes that the column of findings shows, each once."""
    return [code for code in dict.fromkeys(row.code for row in findings) if code not in _ELSEWHERE]


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
    parts += [f"{len(others):,} not looked at (--others)"] if others else []
    return " · ".join(parts)


def ls_table(rows: Sequence[LsRow]) -> list[list[str]]:
    """One checkpoint a row, exact: `--tsv` and `--table`."""
    table = [["file", "format", "bytes", "parameters", "dtypes", "devices", "loads", "findings", "error"]]
    for row in rows:
        known = row.error is None
        table.append(
            [
                show(row.path, None),
                row.format,
                str(row.nbytes) if known else "",
                str(row.parameters) if known else "",
                ",".join(row.dtypes),
                show(",".join(row.devices), None),
                show(row.loads, None),
                ",".join(dict.fromkeys(finding.code for finding in row.findings)),
                "" if row.error is None else show_literal(str(row.error)),
            ]
        )
    return table
