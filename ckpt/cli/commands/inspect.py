"""`ckpt inspect`: open, one call, one form, a code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ckpt.cli import output
from ckpt.cli.options import (
    Arg,
    Exclude,
    FailOn,
    Include,
    Json,
    LimitOption,
    Model,
    NoHeader,
    Paths,
    SectionOption,
    Table,
    Tsv,
    check_table,
    codes_of,
    limits_of,
    model_of,
    opened,
)
from ckpt.errors import CkptError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.jobs.inspect.inspect import InspectReport, inspect
from ckpt.names import Globs
from ckpt.render import inspect as render
from ckpt.render import tables
from ckpt.text import show


def command(
    paths: Paths,
    json: Json = False,
    tsv: Tsv = False,
    table: Table = None,
    no_header: NoHeader = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every tensor on a line of its own, nothing folded.")
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option("--depth", metavar="N", min=0, max=64, help="Open the tree of names N levels deep."),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    storages: Annotated[
        bool, typer.Option("--storages", help="A row a storage: device, bytes, kind, who shares it.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Everything that is no tensor.")] = False,
    imports: Annotated[
        bool, typer.Option("--imports", help="Every name that the pickles import, and where.")
    ] = False,
    indices: Annotated[
        str | None,
        typer.Option("--index", metavar="N,N-N", help="Name the parameters of these numbers in a DDP error."),
    ] = None,
    model: Model = None,
    arg: Arg = None,
    fail_on: FailOn = None,
    limit: LimitOption = None,
) -> int:
    """What a checkpoint holds: tensors, devices, sharing, prefixes, values, imports; and how to load it.

    Nothing in the file is run, and no tensor data is read.

    \b
    ckpt inspect runs/epoch_12.pth
    ckpt inspect model/ --include '*.bias' --tsv
    ckpt inspect snapshot.pth --index 6,7-9
    """
    limits = limits_of(limit)
    codes = codes_of(fail_on, "inspect")
    select = Globs(include or (), exclude or ())
    views = [
        make
        for asked, make in (
            (storages, tables.storage_table),
            (values, tables.value_table),
            (imports, tables.import_table),
        )
        if asked
    ]
    if sum((json, tsv, table is not None)) > 1:
        raise UsageError("--json, --tsv and --table exclude each other")
    if (tsv and len(views) > 1) or (json and views):
        raise UsageError(
            "one form at a time",
            hint="--json holds everything; --tsv takes one of --storages --values --imports",
        )
    check_table(table)
    asked = None
    if indices is not None:
        from ckpt.jobs.inspect.index import index, numbers  # here: inspect alone does not pay for it

        asked = numbers(indices)
    if asked is not None and (views or tsv or table is not None):
        raise UsageError("--index goes alone, or with --json")
    live = model_of(model, arg)
    worst = 0
    shown = 0
    for path in paths:
        try:
            with about(path), opened(path, limits) as checkpoint:
                survey = Survey(checkpoint, live)
                report = inspect(survey, select, section)
                found = None if asked is None else index(survey, asked, section)
                if json:
                    document = report.to_json()
                    if found is not None:
                        document["index"] = found.to_json()
                    output.write_json(document, one_line=len(paths) > 1)
                elif found is not None:
                    output.write_lines(render.index_lines(found))
                elif tsv or table is not None:
                    rows = (views[0] if views else tables.tensor_table)(report)
                    if len(paths) > 1:
                        name = show(path, None)
                        rows = [["file", *rows[0]], *([name, *row] for row in rows[1:])]
                    header = not no_header and (not shown or table is not None)
                    output.write_table(rows, tsv=tsv, table=table, header=header)
                else:
                    _write_text(report, views, depth, everything, first=not shown)
        except CkptError as error:
            output.fail(error)
            worst = 2
            continue
        shown += 1
        if codes & {finding.code for finding in report.findings}:
            worst = max(worst, 1)
    return worst


def _write_text(
    report: InspectReport,
    views: Sequence[Callable[[InspectReport], Sequence[Sequence[str]]]],
    depth: int | None,
    everything: bool,
    *,
    first: bool,
) -> None:
    width = output.screen_width()
    if not first:
        output.write_lines([[]])
    if not views:
        output.write_lines(render.inspect_lines(report, width=width, depth=depth, everything=everything))
        return
    output.write_lines([*render.headline(report, width), *render.calls(report, width)])
    for make in views:
        output.write_lines([[]])
        output.write_table(make(report), tsv=False, table=None)
