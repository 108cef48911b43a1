"""`ckpt get`: one value, as text that a shell can use."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import LimitOption, OnePath, limits_of, opened
from ckpt.cli.paths import documented
from ckpt.cli.signature import OUTPUT
from ckpt.errors import UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.jobs.inspect.get import get
from ckpt.render.get import get_text
from ckpt.render.tables import row_table
from ckpt.text import pasted, pasted_path


def command(
    path: OnePath,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Dotted names.", show_default=False)],
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one line per NAME.", rich_help_panel=OUTPUT)
    ] = False,
    limit: LimitOption = None,
) -> int:
    """Print values of a checkpoint as text or JSON. The name of a tensor prints its row.

    Objects are read without their classes.

    \b
    step=$(ckpt get last.ckpt global_step)
    ckpt get train.pth args.lr epoch
    """
    limits = limits_of(limit)
    swapped = next((name for name in names if os.path.isfile(name)), None)
    if swapped is not None and not os.path.exists(path):
        words = [pasted_path(swapped), *(pasted(name) for name in (path, *names) if name != swapped)]
        hint = None if None in words else f"ckpt get {' '.join(word or '' for word in words)}"
        raise UsageError("no such file", path=path, hint=hint)
    with about(path), documented(path, "ckpt.get" if json else None), opened(path, limits) as checkpoint:
        found = get(Survey(checkpoint), names, limits)
        for item in found:
            if json:
                output.write_json(item.to_json())
            elif item.row is not None and item.role is not None:
                output.write_table(row_table([item.row], [item.role]), tsv=True, table=None, header=False)
            else:
                output.write_text(get_text(item.node))
    return 0
