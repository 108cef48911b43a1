"""`ckpt prune`: what may go of a run, why the rest stays, and its removal."""

from __future__ import annotations

import os
import sys
from typing import Any

from ckpt.ext.prune.api import deleted, planned
from ckpt.ext.prune.report import PruneReport
from ckpt.ext.prune.text import prune_lines, summary
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.text import counted_noun, show, show_line, size_text
from ckpt.surface.cli import output
from ckpt.surface.cli.fencing import fence_in
from ckpt.surface.cli.inputs import documenting_errors, plugins_allowed


def command(
    path: str,
    *,
    keep_last: int | None,
    delete: bool,
    yes: bool,
    null: bool,
    why: bool,
    json: bool,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Say which checkpoints of a run may go, and why the others stay. --delete removes
    them.

    Of each series that lies right in the folder RUN the newest whole checkpoints stay,
    and those that another rule keeps. What is damaged or unfinished is never counted.
    In a pipe, stdout has the paths of what may go.

    \b
    ckpt prune runs/a --keep-last 3 --keep-best val_loss:min
    ckpt prune runs/a --keep-last 2 --keep-every 10000 --delete
    ckpt prune out -0 | xargs -0 -r rm -r --
    """
    if yes and not delete:
        raise UsageError("--yes goes with --delete")
    is_asking = delete and not yes
    # JSON and -0 are for programs, which cannot answer.
    is_for_program = json or null
    if is_asking and (
        is_for_program or not (sys.stdin.isatty() and sys.stdout.isatty())
    ):
        raise UsageError(
            "--delete asks on a terminal, and there is none",
            hint="--yes deletes without asking",
        )
    # Planning only reads: a fence keeps it from anything else.
    if not delete:
        fence_in([path], workers=True)
    schema = "ckpt.prune" if json else None
    with (
        documenting_errors(path, schema),
        output.progress_meter("checking") as progress,
    ):
        last = 1 if keep_last is None else keep_last
        report = planned(
            path,
            keep_last=last,
            progress=progress,
            limits=limits,
            plugins=plugins_allowed(),
            **keywords,
        )
    for text in report.warnings:
        output.write_talk(f"ckpt: {show(path, None)}: {text}")
    is_table = (why or output.screen_width() is not None) and not null
    # The question needs the rows; they are not written again behind it.
    if is_asking and report.may_go:
        output.write_lines(prune_lines(report, output.screen_width()))
        if not _is_confirmed(report):
            output.write_conclusion("nothing was deleted")
            return 0
    if delete and report.may_go:
        with documenting_errors(path, schema):
            report = deleted(report)
    if json:
        output.write_json(report.to_json())
    elif is_table:
        if not (is_asking and report.may_go):
            output.write_lines(prune_lines(report, output.screen_width()))
    else:
        _write_paths(report, null=null, only_deleted=delete)
    for row in report.rows:
        if row.problem is not None:
            output.write_complaint(f"ckpt: {show(row.path, None)}: {row.problem}")
    hint = None
    if report.may_go and not delete and is_table:
        hint = "--delete removes them"
    # A pipe has no table that gives the reasons.
    if not report.may_go and report.rows and not is_table and not json:
        hint = "--why says why"
    output.write_conclusion(summary(report), hint)
    return report.exit_code


def _is_confirmed(report: PruneReport) -> bool:
    """Ask on the terminal whether all that may go is deleted."""
    count = counted_noun(len(report.may_go), "checkpoint")
    size = size_text(sum(row.nbytes for row in report.may_go))
    sys.stdout.write(f"delete {count}, {size}, for good? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _write_paths(report: PruneReport, *, null: bool, only_deleted: bool) -> None:
    """Write the paths of what may go, or of what went, exactly. Raises UsageError for a
    name that no line can hold.
    """
    paths = [row.path for row in report.may_go if row.is_deleted or not only_deleted]
    if null:
        if not output.is_silent():
            sys.stdout.flush()
            sys.stdout.buffer.write(
                b"".join(os.fsencode(path) + b"\0" for path in paths)
            )
        return
    # All names are tried before the first is written: half a list would be taken for a
    # whole one.
    for path in paths:
        if show_line(show(path, None)) != path and not only_deleted:
            raise UsageError(
                "no line holds this name exactly", path=path, hint="-0 prints any name"
            )
    for path in paths:
        output.write_text(show(path, None))
