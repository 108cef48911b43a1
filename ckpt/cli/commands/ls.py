"""`ckpt ls`: one row per checkpoint, folders walked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.inputs import TROUBLE, Found, found, is_concern, listed, many, parted, unskipped, worst
from ckpt.cli.options import (
    FailOn,
    FilesFrom,
    Gate,
    Ignore,
    Jobs,
    LevelOption,
    LimitOption,
    NoHeader,
    Others,
    Paths,
    Quiet,
    Select,
    SkipUnreadable,
    Table,
    Tsv,
    check_table,
    gate_of,
    limits_of,
    opened,
    planning,
    plugins_allowed,
)
from ckpt.cli.signature import OUTPUT, Exclusion, excluding
from ckpt.cli.start import Signal
from ckpt.errors import CkptError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.findings import LEVELS, Rules
from ckpt.io.executor import Task
from ckpt.jobs.inspect.ls import RUNS_CODE, LsRow, ls
from ckpt.limits import Limits
from ckpt.names import natural
from ckpt.render.ls import codes_of as shown_codes
from ckpt.render.ls import ls_lines, ls_table, summary
from ckpt.text import show

_ORDERS: dict[str, Callable[[LsRow], tuple[object, object]]] = {
    "name": lambda row: (0, natural(row.path)),
    "size": lambda row: (-row.nbytes, natural(row.path)),
    "params": lambda row: (-row.parameters - row.unknown, natural(row.path)),
    "findings": lambda row: (_worst(row), natural(row.path)),
}
"""Words of `--sort` -> the key of a row: the largest first, then by name."""


@excluding(Exclusion(("--json", "--tsv", "--table")))
def command(
    paths: Paths = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort", metavar="BY", help="Sort by name, size, params or findings.", rich_help_panel=OUTPUT
        ),
    ] = "name",
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per checkpoint.", rich_help_panel=OUTPUT)
    ] = False,
    tsv: Tsv = False,
    table: Table = None,
    no_header: NoHeader = False,
    files_from: FilesFrom = None,
    others: Others = False,
    skip_unreadable: SkipUnreadable = False,
    select: Select = None,
    ignore: Ignore = None,
    level: LevelOption = None,
    fail_on: FailOn = None,
    quiet: Quiet = False,
    jobs: Jobs = None,
    limit: LimitOption = None,
) -> int:
    """List checkpoints, one row each: format, size, parameters, dtype, device, how to load them, findings.

    Folders are searched; the first bytes of a file say what it is, and links to folders are skipped. Exit code 2 when a file
    cannot be read.

    \b
    ckpt ls runs/
    ckpt ls . --sort size
    ckpt ls models/ --tsv --fail-on called-on-load
    """
    limits = limits_of(limit)
    gate = gate_of("ls", select, ignore, level, fail_on)
    check_table(table)
    if sort not in _ORDERS:
        raise UsageError(f"--sort {show(sort, 40)}: not one of {' '.join(_ORDERS)}")
    names = listed(paths, files_from)
    listing = _Listing(limits, gate.rules, commands=json)
    order = _ORDERS[sort]

    def write() -> None:
        rows = sorted(listing.rows, key=order)
        _write(rows, names, json=json, tsv=tsv, table=table, header=not no_header)

    try:
        listing.read(names, jobs)
    except Signal:  # who interrupts sees the rows so far
        write()
        sys.stdout.flush()
        raise
    if not listing.rows:
        raise UsageError(f"no checkpoint in {', '.join(show(name, 80) for name in names[:3])}")
    write()
    if others:
        output.list_others(listing.others)
    if not quiet:
        output.conclude(summary(listing.rows, listing.others))
    return worst(_code(row, gate, skip_unreadable) for row in listing.rows)


def show_folder(path: str, limits: Limits) -> int:
    """Print the list of a folder that is no checkpoint itself; the exit code."""
    listing = _Listing(limits, Rules(level="info"))
    listing.read([path])
    rows = sorted(listing.rows, key=_ORDERS["name"])
    _write(rows, [path], json=False, tsv=False, table=None, header=True)
    output.conclude(summary(rows, listing.others))
    return worst(TROUBLE if row.error is not None else 0 for row in rows)


def _worst(row: LsRow) -> tuple[int, int, int]:
    """Return the sort key of a row: files that run code come first, unreadable files last.

    Between them the most serious finding decides, then how many codes there are.
    """
    levels = [LEVELS.index(finding.level) for finding in row.findings]
    first = 2 if row.error is not None else 0 if row.loads == RUNS_CODE else 1
    return first, min(levels, default=len(LEVELS)), -len(shown_codes(row.findings))


class _Listing:
    """The row of each checkpoint with the findings that count, in the order in which they are found.

    `others` are the files of folders that are none. With `commands` findings name the commands that help, as JSON has them.
    """

    def __init__(self, limits: Limits, rules: Rules, *, commands: bool = False) -> None:
        self.rows: list[LsRow] = []
        self.others: list[str] = []
        self._limits = limits
        self._rules = rules
        self._commands = commands

    def read(self, names: Sequence[str], jobs: int | None = None) -> None:
        """Add what the names lead to. Whoever interrupts this has the rows so far."""
        items, self.others = parted(found(names, plugins=plugins_allowed()))
        items = unskipped(items)
        tasks = [Task(_row, (item, self._limits, self._commands)) for item in items]
        with output.progress("reading", len(tasks), "files") as progress:
            for item, row in zip(items, many(tasks, jobs).each(tasks), strict=True):
                if progress is not None:
                    progress(1)
                if row is None:
                    self.others.append(item.path)
                else:
                    self.rows.append(row._replace(findings=self._rules.kept(row.findings)))


def _row(item: Found, limits: Limits, commands: bool) -> LsRow | None:
    """Return the row of one file, or None for a file in a folder that is no checkpoint."""
    if item.error is not None:
        return LsRow(item.path, error=item.error.failure(item.path))
    try:
        with about(item.path), opened(item.path, limits, tell=False) as checkpoint:
            survey = Survey(checkpoint)
            row = ls(survey, planning(survey) if commands else None)
            checkpoint.check_unchanged()
            return row
    except CkptError as error:
        return LsRow(item.path, error=error.failure(item.path)) if is_concern(item, error) else None


def _write(
    rows: Sequence[LsRow], names: Sequence[str], *, json: bool, tsv: bool, table: str | None, header: bool
) -> None:
    if json:
        for row in rows:
            output.write_json(row.to_json())
    elif tsv or table is not None:
        output.write_table(ls_table(rows), tsv=tsv, table=table, header=header)
    elif rows:
        folder = names[0] if len(names) == 1 and os.path.isdir(names[0]) else ""
        output.write_lines(ls_lines(rows, output.screen_width(), folder))


def _code(row: LsRow, gate: Gate, skip_unreadable: bool) -> int:
    if row.error is not None:
        return 0 if skip_unreadable else TROUBLE
    return gate.code(row.findings)
