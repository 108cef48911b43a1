"""`ckpt ls` as text: one row per checkpoint, and a line that sums them up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ckpt.commands.ls.ls import RUNS_CODE, UNREADABLE, LsReport, LsRow
from ckpt.hooks import has_command
from ckpt.model.dtypes import short_dtype
from ckpt.model.errors import NotOpenedError, UnsupportedError
from ckpt.model.names import are_series, common_pattern, short_labels
from ckpt.model.text import (
    count_text,
    counted_noun,
    pasted_path,
    show,
    show_literal,
    shown_apart,
    size_text,
)
from ckpt.surface.text.lines import (
    NAME,
    Column,
    Line,
    cells,
    column_lines,
    cut,
    flowing_lines,
    given_up_lines,
    narrow_columns,
    wrap_text,
)

_COLUMNS = (
    Column("NAME", gives_way=True, is_file=True),
    Column("EPOCH", right=True, given_up=6),
    Column("STEP", right=True, given_up=2),
    Column("FORMAT", given_up=1),
    Column("SIZE", right=True, given_up=7),
    Column("PARAMS", right=True, given_up=5),
    Column("DTYPE", given_up=3),
    Column("DEVICE", given_up=4),
    Column("LOADS"),
    Column("FINDINGS", least=18),
)
_ALIKE = {
    "EPOCH": "epoch {}",
    "STEP": "step {}",
    "SIZE": "{} each",
    "PARAMS": "{} parameters",
    "FINDINGS": "each with {}",
}
"""Columns -> the words in the headline for their cell, where all rows have the same
one.
"""
_COUNTERS = ("EPOCH", "STEP")
_NAMES = [head.name for head in _COLUMNS]
_LOADS = _NAMES.index("LOADS")
_FINDINGS = _NAMES.index("FINDINGS")
_FEW = 3
"""Rows of which a headline says what they have in common."""
_LEAST = 30
"""Cells of a path that columns are given up for: what 80 columns leave beside SIZE,
LOADS and FINDINGS. A longer path loses its first folders or its middle.
"""
_LEAST_LABEL = 24
"""The same, of a label in a series."""
_BELOW = 4
"""Cells before a reason that stands below its row."""
_ABSENT = (NotOpenedError.code, UnsupportedError.code)
_STYLES = {RUNS_CODE: "error", UNREADABLE: "warning"}


def ls_lines(
    rows: Sequence[LsRow], width: int | None = None, folder: str = ""
) -> list[Line]:
    """The rows as a table of at most `width` cells. Names are shown below `folder`.

    A column that says the same of every checkpoint stands in a headline above the
    table. Columns that are empty are left out, and those that least matter where the
    screen is narrow. Names that do not fit are shortened at a folder, or in their
    middle.
    """
    names = [row.path for row in rows]
    if folder:
        names = [os.path.relpath(path, folder) for path in names]
    shown = shown_apart(names)
    table = [[name, *_row_cells(row)] for name, row in zip(shown, rows, strict=True)]
    alike = _common_cells(rows, table)
    always = {0} if alike else {0, _LOADS, _FINDINGS}
    kept = []
    for i in range(len(_COLUMNS)):
        is_filled = i in always or any(row[i] for row in table)
        if i not in alike and is_filled:
            kept.append(i)
    heads = [_COLUMNS[i] for i in kept]
    if width is not None:  # else no column is given up
        labels, least = shown, _LEAST
        if are_series(names):
            labels, least = short_labels(names), _LEAST_LABEL
        widest = max(map(cells, labels), default=0)
        heads[0] = heads[0]._replace(least=min(widest, least))
    kept_cells = [[row[i] for i in kept] for row in table]
    heads_shown, texts = narrow_columns(heads, kept_cells, width)
    out, is_short = _table_lines(rows, heads_shown, texts, width)
    out += given_up_lines(heads, heads_shown, width)
    # A headline also says where names lie that are shortened.
    if not alike and not is_short:
        return out
    return [*_headline(names, folder, alike, width), *out]


def _headline(
    names: Sequence[str], folder: str, alike: dict[int, str], width: int | None
) -> list[Line]:
    """The line of all that the rows have in common: the beginning of their paths, and
    the cells of the columns that are left out.
    """
    said = []
    for i, text in alike.items():
        words = _ALIKE.get(_COLUMNS[i].name, "{}").format(text)
        if words not in said:
            said.append(words)
    shared = common_pattern(names)
    where = show(os.path.join(folder, "" if shared == "*" else shared), None)
    if width is not None:
        where = cut(where, min(max(NAME, width // 2), width))
    if not where and not said:
        return []
    head: Line = [(f"{where or 'all'}   ", "head")]
    return flowing_lines(head, said, width, 2)


def _common_cells(
    rows: Sequence[LsRow], table: Sequence[Sequence[str]]
) -> dict[int, str]:
    """Return the columns in which all checkpoints have one cell, and that cell. Danger
    stays in its rows.
    """
    read = [cells for row, cells in zip(rows, table, strict=True) if row.error is None]
    if len(read) < _FEW:
        return {}
    exact = [_exact_values(row) for row in rows if row.error is None]
    alike = {}
    for i in range(1, len(_COLUMNS)):  # but for the names
        text = read[0][i]
        if not text or text == RUNS_CODE:
            continue
        if all(values[i] == exact[0][i] for values in exact):
            alike[i] = text
    return alike


def _exact_values(row: LsRow) -> tuple[object, ...]:
    """The values behind the cells of a row, which may be rounded or cut: one for each
    column.
    """
    return (
        row.path,
        row.highest("epoch"),
        row.highest("step"),
        row.format,
        row.nbytes,
        (row.parameters, row.unknown),
        row.dtypes,
        row.devices,
        row.loads,
        row.codes,
    )


def _table_lines(
    rows: Sequence[LsRow],
    heads: Sequence[Column],
    texts: Sequence[Sequence[str]],
    width: int | None,
) -> tuple[list[Line], bool]:
    """Return the table, and a flag: names are shortened. The last column is broken at
    its blanks.
    """
    findings = [""] * len(rows)
    title: Line = []
    room, least = width, 0
    if heads[-1].name == "FINDINGS":
        *heads, last = heads
        findings = [row[-1] for row in texts]
        texts = [row[:-1] for row in texts]
        widest = max(cells(text) for text in (last.name, *findings))
        least = min(widest, last.least or 0)
        room = None if width is None else max(width - 2 - least, 0)
        title = [("  FINDINGS", "head")]
    first, *lines = column_lines(heads, texts, width=room)
    is_short = any(
        line[0][0].rstrip() != row[0] for line, row in zip(lines, texts, strict=True)
    )
    loads = next((i for i, head in enumerate(heads) if head.name == "LOADS"), None)
    out: list[Line] = [[*first, *title]]
    for line, cell, row in zip(lines, findings, rows, strict=True):
        if row.error is not None:  # its other columns are empty
            padded_name, _ = line[0]
            # The word is no epoch and no step.
            counters = sum(head.name in _COUNTERS for head in heads)
            blanks = sum(len(text) for text, _ in line[: counters + 1])
            blanks -= len(padded_name.rstrip())
            if len(heads) == counters + 1:  # the last cell has no blanks behind it
                blanks += 2
            name = padded_name.rstrip() + " " * blanks
            line = [(name, ""), (UNREADABLE, _STYLES[UNREADABLE])]
            cell = show_literal(str(row.error))
        elif loads is not None:
            line[loads] = (line[loads][0], _STYLES.get(row.loads, ""))
        if not cell:
            out.append(line)
            continue
        indent = sum(cells(text) for text, _ in line) + 2
        if row.error is not None and width is not None and indent + cells(cell) > width:
            # A reason beside a long name would be a column of single words.
            out.append(line)
            reason = wrap_text(cell, max(width - _BELOW, least), 0)
            out += [[(" " * _BELOW + text, "")] for text in reason]
            continue
        room_of_cell = None if width is None else max(width - indent, least)
        begin, *more = wrap_text(cell, room_of_cell, 0)
        out.append([*line, (f"  {begin}", "")])
        out += [[(" " * indent + text, "")] for text in more]
    return out, is_short


def _row_cells(row: LsRow) -> list[str]:
    """The cells of a row but for its name."""
    if row.error is not None:
        return [""] * (_LOADS - 1) + [UNREADABLE, ""]
    return [
        _counter_cell(row.highest("epoch")),
        _counter_cell(row.highest("step")),
        row.format,
        size_text(row.nbytes),
        _parameters_cell(row),
        _first_and_more([short_dtype(name) for name in row.dtypes]),
        _first_and_more(row.devices),
        show(row.loads, 40),
        " ".join(row.codes),
    ]


def _parameters_cell(row: LsRow) -> str:
    """Return the number of parameters, with a question mark where a state dict does not
    say of some tensors that they are parameters, and the number would be another one
    without them.
    """
    sure = count_text(row.parameters) if row.parameters else ""
    if not row.unknown:
        return sure
    most = count_text(row.parameters + row.unknown)
    return sure if most == sure else f"{most}?"


def _counter_cell(count: float | None) -> str:
    # A float keeps 15 digits of any decimal number.
    return "" if count is None else f"{count:,.15g}"


def _first_and_more(names: Sequence[str]) -> str:
    """The first of some names, and the number of the others."""
    if not names:
        return ""
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return show(names[0], 20) + more


def gate_hint(rows: Sequence[LsRow], names: Sequence[str]) -> str | None:
    """Return the command that says more of files that run code or cannot be read, among
    what the `names` lead to, behind the word for those; or None.
    """
    if not has_command("lint"):
        return None
    about = []
    running = [row for row in rows if row.loads == RUNS_CODE]
    if running:
        about.append("code")
    if any(_has_more_to_say(row) for row in rows):
        about.append("unreadable")
    if not about:
        return None
    paths = [pasted_path(name) for name in names]
    is_short = 0 < len(paths) <= _FEW and None not in paths
    what = "PATH..."
    if is_short:
        what = " ".join(path for path in paths if path is not None)
    # An operator that ckpt does not know is a warning.
    level = " --level error"
    if not all(_has_error(row) for row in running):
        level = ""
    return f"{' and '.join(about)}: ckpt lint {what}{level}"


def _has_error(row: LsRow) -> bool:
    return any(finding.level == "error" for finding in row.findings)


def _has_more_to_say(row: LsRow) -> bool:
    """Tell whether `ckpt lint` is a way to go on with a path that is unreadable: not
    where nothing is there, or no checkpoint.
    """
    return row.error is not None and row.error.code not in _ABSENT


def summary_text(
    rows: Sequence[LsRow], others: Sequence[str] = (), *, are_listed: bool = False
) -> str:
    """Return the sum of the rows. `others` are the files of folders that are no
    checkpoint, which are listed with `are_listed`.

    It reads `3 checkpoints, 587 MiB · 1 runs code · 2 not looked at (--others)`.
    """
    read = [row for row in rows if row.error is None]
    size = size_text(sum(row.nbytes for row in read))
    parts = [f"{counted_noun(len(read), 'checkpoint')}, {size}"]
    runs = sum(row.loads == RUNS_CODE for row in read)
    unread = len(rows) - len(read)
    if runs:
        parts.append(f"{runs:,} {'runs' if runs == 1 else 'run'} code")
    if unread:
        parts.append(f"{unread:,} unreadable")
    unused = 0
    for row in read:
        unused += any(finding.code == "unused" for finding in row.findings)
    if unused:
        parts.append(
            f"{unused:,} with unused parameters: DDP stops unless they are frozen"
        )
    if others:
        way = "" if are_listed else " (--others)"
        parts.append(f"{len(others):,} not looked at{way}")
    return " · ".join(parts)


def ls_table(rows: Sequence[LsRow]) -> list[list[str]]:
    """One checkpoint a row, exact: `--tsv` and `--table`."""
    table = [
        [
            "file",
            "format",
            "bytes",
            "parameters",
            "dtypes",
            "devices",
            "loads",
            "findings",
            "error",
            "epoch",
            "step",
            "unknown",  # behind the others: scripts cut columns by their numbers
        ]
    ]
    for row in rows:
        is_readable = row.error is None
        codes = dict.fromkeys(finding.code for finding in row.findings)
        table.append(
            [
                show(row.path, None),
                row.format,
                str(row.nbytes) if is_readable else "",
                str(row.parameters) if is_readable else "",
                ",".join(row.dtypes),
                show(",".join(row.devices), None),
                show(row.loads, None),
                ",".join(codes),
                "" if row.error is None else show_literal(str(row.error)),
                _exact_counter(row.highest("epoch")),
                _exact_counter(row.highest("step")),
                str(row.unknown) if is_readable else "",
            ]
        )
    return table


def _exact_counter(count: float | None) -> str:
    # 17 digits give each float back exactly.
    return "" if count is None else f"{count:.17g}"


def html_ls(report: LsReport) -> str:
    """Return the table of `ckpt ls` and its closing line."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    rows = report.rows
    folders = {os.path.dirname(row.path) for row in rows}
    folder = folders.pop() if len(folders) == 1 else ""
    lines = ls_lines(rows, WIDTH, folder) if rows else []
    return html_of([*lines, [(summary_text(rows), "head")]])
