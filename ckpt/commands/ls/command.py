"""`ckpt ls`: one row per checkpoint, folders walked."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from ckpt.commands.ls.api import Listing
from ckpt.commands.ls.ls import LsReport
from ckpt.commands.ls.text import gate_hint, ls_lines, ls_table, summary_text
from ckpt.model.errors import UsageError
from ckpt.model.findings import Gate, Rules
from ckpt.model.limits import Limits
from ckpt.model.text import show
from ckpt.surface.cli import output
from ckpt.surface.cli.fencing import fence_in
from ckpt.surface.cli.inputs import (
    check_table,
    gate_given,
    may_be_many,
    named_paths,
    plugins_allowed,
)
from ckpt.surface.cli.start import TROUBLE, Signal


def command(
    paths: list[str],
    *,
    sort: str,
    json: bool,
    tsv: bool,
    table: str | None,
    header: bool,
    files_from: list[str] | None,
    others: bool,
    skip_unreadable: bool,
    require: bool,
    jobs: int | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """List checkpoints, one row each: format, size, parameters, dtype, device, how to
    load them, findings.

    Folders are searched, without a PATH the current one; the first bytes of a file say
    what it is, and links to folders are skipped. Exit code 2 when a file cannot be
    read.

    \b
    ckpt ls
    ckpt ls runs/
    ckpt ls . --sort size
    ckpt ls models/ --tsv --fail-on called-on-load
    """
    gate = gate_given("ls", keywords)
    check_table(table, tsv=tsv, header=header)
    # As the ls of every shell does.
    here = [os.curdir] if not paths and not files_from else paths
    names = named_paths(here, files_from, require=require)
    fence_in(names, workers=may_be_many(names, jobs))
    listing = Listing(
        names,
        gate,
        sort,
        skip_unreadable=skip_unreadable,
        # The table has no room for commands: only the documents show hints.
        hints=json,
        limits=limits,
        plugins=plugins_allowed(),
    )

    def write() -> None:
        _write_report(
            listing.report, names, json=json, tsv=tsv, table=table, header=header
        )

    try:
        _read_listing(listing, jobs)
    except Signal:  # who interrupts sees the rows so far
        write()
        sys.stdout.flush()
        raise
    report = listing.report
    if not report.rows:
        raise UsageError(
            f"no checkpoint in {', '.join(show(name, 80) for name in names[:3])}"
        )
    write()
    if others:
        output.list_others(report.others)
    output.write_conclusion(
        summary_text(report.rows, report.others, are_listed=others),
        gate_hint(report.rows, names),
    )
    return report.exit_code


def show_folder(path: str, limits: Limits, *, json: bool) -> int:
    """Print the list of a folder that is no checkpoint itself; the exit code."""
    gate = Gate(Rules(level="info"))
    listing = Listing(
        [path],
        gate,
        "name",
        skip_unreadable=False,
        hints=json,
        limits=limits,
        plugins=plugins_allowed(),
    )
    _read_listing(listing, None)
    _write_report(listing.report, [path], json=json, tsv=False, table=None, header=True)
    output.write_conclusion(
        summary_text(listing.report.rows, listing.report.others),
        gate_hint(listing.report.rows, [path]),
    )
    return listing.report.exit_code


def _read_listing(listing: Listing, jobs: int | None) -> None:
    """Read the files of a listing, and name those that are not opened."""
    with output.progress_meter("reading", "files") as progress:
        listing.read(jobs, progress, output.write_skipped)


def _write_report(
    report: LsReport,
    names: Sequence[str],
    *,
    json: bool,
    tsv: bool,
    table: str | None,
    header: bool,
) -> None:
    if json:
        for document in report.to_json():
            output.write_json(document)
    elif tsv or table is not None:
        output.write_table(ls_table(report.rows), tsv=tsv, table=table, header=header)
    elif output.is_silent():
        # With -q only an error is said, where it makes the exit code.
        for row in report.rows if report.exit_code == TROUBLE else ():
            if row.error is not None:
                output.write_complaint(output.unread_line(row.path, row.error))
    elif report.rows:
        folder = names[0] if len(names) == 1 and os.path.isdir(names[0]) else ""
        if any(os.path.relpath(row.path, folder or ".") == "." for row in report.rows):
            folder = ""  # a checkpoint itself: its name says more than `.`
        output.write_lines(ls_lines(report.rows, output.screen_width(), folder))
