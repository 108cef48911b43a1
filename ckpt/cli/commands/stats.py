"""`ckpt stats`: open, one call, one form, a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ckpt.api.keywords import gate_of
from ckpt.api.reading import stats
from ckpt.api.walk import Found, looked
from ckpt.cli import output
from ckpt.cli.inputs import Answer, Cluster, failure, listed, look, working, worst
from ckpt.cli.options import (
    Exclude,
    FailOn,
    FilesFrom,
    Ignore,
    Include,
    Jobs,
    Json,
    LevelOption,
    LimitOption,
    NoHeader,
    Paths,
    SectionOption,
    Select,
    Table,
    Tsv,
    check_table,
    limits_of,
    notices,
    opened,
    plugins_allowed,
    unread,
)
from ckpt.cli.signature import FILTER, OUTPUT, Exclusion, excluding
from ckpt.render.stats import stats_lines, stats_table
from ckpt.text import plural


@excluding(
    Exclusion(("--json", "--tsv", "--table")),
    Exclusion(("--histogram",), ("--tsv", "--table")),
    Exclusion(("--cluster", "--jobs")),
)
def command(
    paths: Paths = None,
    json: Json = False,
    tsv: Tsv = False,
    table: Table = None,
    no_header: NoHeader = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show every tensor of the file on its own line.", rich_help_panel=FILTER),
    ] = False,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    channels: Annotated[
        bool,
        typer.Option(
            "--channels", help="Show the dead output channels of each layer.", rich_help_panel=OUTPUT
        ),
    ] = False,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold",
            metavar="X",
            min=0,
            max=1,
            help="Call a channel dead below X times the largest channel of its layer.",
        ),
    ] = 1e-3,
    modules: Annotated[
        bool, typer.Option("--modules", help="Show the share of zeros per module.", rich_help_panel=OUTPUT)
    ] = False,
    histogram: Annotated[
        bool,
        typer.Option(
            "--histogram",
            help="Draw the histogram of each tensor, from its min to its max.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="Sort by name, min, max, mean, std, rms, zeros, nan, inf or numel.",
            rich_help_panel=OUTPUT,
        ),
    ] = "name",
    select: Select = None,
    ignore: Ignore = None,
    level: LevelOption = None,
    fail_on: FailOn = None,
    files_from: FilesFrom = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    limit: LimitOption = None,
) -> int:
    """Measure tensors: min, max, mean, std, RMS, zeros, NaN, Inf, and dead channels.

    Without --section or --all, the model is measured, or of a file without a model, every tensor. Mean, std and RMS are over finite elements.

    \b
    ckpt stats model.pth --channels
    ckpt stats runs/ --fail-on nan,inf -q
    ckpt stats model.safetensors --sort rms --tsv
    """
    limits = limits_of(limit)
    names = listed(paths, files_from)
    gate_of("stats", select, ignore, level, fail_on)
    check_table(table)
    items = looked(names, limits, plugins=plugins_allowed())
    several = len(items) > 1 or items[0].path not in names
    rows = output.Tables(several, tsv=tsv, table=table, header=not no_header)

    def answer(item: Found) -> Answer:
        if item.error is not None:
            raise item.error
        with opened(item.path, limits, tell=False) as checkpoint, output.meter("measuring") as progress:
            report = stats(
                checkpoint,
                include=include,
                exclude=exclude,
                section=section,
                all=everything,
                channels=channels,
                threshold=threshold,
                histogram=histogram,
                sort=sort,
                select=select,
                ignore=ignore,
                level=level,
                fail_on=fail_on,
                progress=progress,
            )
            doubtful = notices(checkpoint)
        lost = [(row.entry.name, row.why) for row in report.unread]
        gone = unread(item.path, "measured", [*lost, *report.missing])
        result = Answer(report.exit_code, talk=[*doubtful, *gone])
        if json:
            return result._replace(document=report.to_json())
        if rows.asked:
            return result._replace(rows=stats_table(report))
        width = output.screen_width()
        return result._replace(lines=stats_lines(report, width=width, everything=everything, modules=modules))

    failed = failure("ckpt.stats") if json else None
    with working(cluster, names) as is_cluster:
        codes = look(
            names,
            items,
            answer,
            json=failed,
            jobs=1 if is_cluster else jobs,  # a process that talks to a cluster is not copied
            doing="measuring",
            tables=rows,
            apart=True,
        )
    if len(codes) > 1 and not json:
        output.conclude(_summary(codes))
    return worst(codes)


def _summary(codes: Sequence[int]) -> str:
    """`5 files: 4 measured, 1 unreadable`."""
    failed = codes.count(2)
    parts = [f"{len(codes) - failed:,} measured", *([f"{failed:,} unreadable"] if failed else [])]
    return f"{plural(len(codes), 'file')}: {', '.join(parts)}"
