"""`ckpt stats`: open, one call, one form, a code."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import (
    Exclude,
    FailOn,
    Include,
    Json,
    LimitOption,
    NoHeader,
    Paths,
    SectionOption,
    Table,
    Tsv,
    check_table,
    codes_of,
    limits_of,
    opened,
)
from ckpt.errors import CkptError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.jobs.check.stats import stats
from ckpt.names import Globs
from ckpt.render.stats import stats_lines, stats_table
from ckpt.text import show


def command(
    paths: Paths,
    json: Json = False,
    tsv: Tsv = False,
    table: Table = None,
    no_header: NoHeader = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every tensor of the file, on a line of its own.")
    ] = False,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    channels: Annotated[
        bool, typer.Option("--channels", help="Which output channels are dead, layer by layer.")
    ] = False,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold",
            metavar="X",
            min=0,
            max=1,
            help="Dead below X times the largest channel of its layer.",
        ),
    ] = 1e-3,
    modules: Annotated[bool, typer.Option("--modules", help="How sparse each module is.")] = False,
    sort: Annotated[
        str,
        typer.Option(
            "--sort", metavar="KEY", help="Order by name, min, max, mean, std, rms, zeros, nan, inf or numel."
        ),
    ] = "name",
    fail_on: FailOn = None,
    limit: LimitOption = None,
) -> int:
    """The numbers inside: min, max, mean, std, RMS, zeros, NaN, Inf of each tensor; dead channels.

    Of the model, or of a section. Numbers are those of finite elements.

    \b
    ckpt stats model.pth --channels
    ckpt stats last.ckpt --fail-on nan,inf
    ckpt stats model.safetensors --sort rms --tsv
    """
    limits = limits_of(limit)
    codes = codes_of(fail_on, "stats")
    if sum((json, tsv, table is not None)) > 1:
        raise UsageError("--json, --tsv and --table exclude each other")
    check_table(table)
    select = Globs(include or (), exclude or ())
    asked = threshold if channels or "dead-channels" in codes else None
    worst = shown = 0
    for path in paths:
        try:
            with about(path), opened(path, limits) as checkpoint:
                whole = everything and section is None
                with output.progress(checkpoint.nbytes) as progress:
                    report = stats(
                        Survey(checkpoint),
                        select,
                        section,
                        threshold=asked,
                        sort=sort,
                        everything=whole,
                        progress=progress,
                    )
                checkpoint.check_unchanged()
                if json:
                    output.write_json(report.to_json(), one_line=len(paths) > 1)
                elif tsv or table is not None:
                    rows = stats_table(report)
                    if len(paths) > 1:
                        rows = [["file", *rows[0]], *([show(path, None), *row] for row in rows[1:])]
                    header = not no_header and (not shown or table is not None)
                    output.write_table(rows, tsv=tsv, table=table, header=header)
                else:
                    output.write_lines([[]] if shown else [])
                    width = output.screen_width()
                    output.write_lines(
                        stats_lines(report, width=width, everything=everything, modules=modules)
                    )
        except CkptError as error:
            output.fail(error)
            worst = 2
            continue
        shown += 1
        if codes & {finding.code for finding in report.findings}:
            worst = max(worst, 1)
    return worst
