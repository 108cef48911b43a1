"""`ckpt diff`: two files, one call, one form; 0 same, 1 differ, 2 trouble."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt.api.checkpoint import Checkpoint
from ckpt.api.keywords import gate_of, model_of
from ckpt.api.reading import diff
from ckpt.cli import output
from ckpt.cli.inputs import Cluster, documented, working
from ckpt.cli.options import (
    Arg,
    Exclude,
    Ignore,
    Include,
    LevelOption,
    LimitOption,
    Model,
    NoAlign,
    NoHeader,
    RewriteJson,
    SectionOption,
    Select,
    Tsv,
    limits_of,
    opened,
    refuse_factory,
)
from ckpt.cli.signature import GATE, OUTPUT, Exclusion, excluding
from ckpt.errors import UsageError
from ckpt.jobs.diff.diff import DIFFER
from ckpt.render.diff import diff_lines, diff_table, name_lines
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.cli.commands.report import Page


_SHOW = ("auto", "changed", "unchanged", "buffers", "all")
_REASONS = "frozen"
"""The older word for the reasons of unchanged parameters alone. It still works."""


@excluding(
    Exclusion(("--json", "--tsv", "--name-only")),
    Exclusion(("--structure", "--quick", "--stat")),
    Exclusion(("--structure", "--quick"), ("--close", "--atol", "--rtol", "--ignore-dtype")),
    Exclusion(("--histogram",), ("--structure", "--quick", "--tsv", "--name-only")),
    Exclusion(("--structure",), ("--fail-on",)),
    Exclusion(("--close",), ("--atol", "--rtol")),
    Exclusion(("--structure", "--quick"), ("--cluster",)),
)
def command(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A checkpoint.", show_default=False)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="A checkpoint.", show_default=False)],
    json: RewriteJson = False,
    tsv: Tsv = False,
    no_header: NoHeader = False,
    name_only: Annotated[
        bool,
        typer.Option("--name-only", help="Print only the names of what differs.", rich_help_panel=OUTPUT),
    ] = False,
    which: Annotated[
        str,
        typer.Option(
            "--show",
            metavar="WHAT",
            help="List changed, unchanged, buffers or all tensors.",
            rich_help_panel=OUTPUT,
        ),
    ] = "auto",
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    no_align: NoAlign = False,
    sub: Annotated[
        list[str] | None,
        typer.Option(
            "--sub", metavar="S/A/B/", help="Rename tensors of BEFORE, as ckpt rename does. Repeatable."
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option("--atol", metavar="X", min=0, help="Absolute tolerance: treat |Δ| <= X as equal."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol", metavar="X", min=0, help="Relative tolerance: treat |Δ| <= X * |before| as equal."
        ),
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Use the tolerances of torch.testing for each dtype.")
    ] = False,
    stat: Annotated[
        bool,
        typer.Option(
            "--stat", help="Draw one bar per module: its change relative to its norm.", rich_help_panel=OUTPUT
        ),
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            metavar="N",
            min=1,
            max=64,
            help="Cut the names of modules after N parts, with --stat.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    histogram: Annotated[
        bool,
        typer.Option(
            "--histogram",
            help="Draw the histogram of the differences of each tensor.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="OUT",
            help="Draw the comparison as a page too, - for stdout and no text.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the page of --html if it exists.", rich_help_panel=OUTPUT),
    ] = False,
    structure: Annotated[
        bool,
        typer.Option(
            "--structure",
            help="Compare names, shapes and dtypes only. Also reads what inspect --json printed.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Compare sizes and the checksums in the files; read no values."),
    ] = False,
    ignore_dtype: Annotated[
        bool,
        typer.Option("--ignore-dtype", help="Compare values only, as check_dtype=False of torch.testing."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Count devices, strides, renames and sections of one side as differences."
        ),
    ] = False,
    model: Model = None,
    arg: Arg = None,
    select: Select = None,
    ignore: Ignore = None,
    level: LevelOption = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="CODE",
            help="Exit 1 on this finding only, also where the files differ; differ adds the difference. Repeatable,"
            " or comma-separated.",
            rich_help_panel=GATE,
        ),
    ] = None,
    cluster: Cluster = None,
    limit: LimitOption = None,
) -> int:
    """Compare two checkpoints. Exit code 0 same, 1 differ, 2 trouble.

    Formats, devices, wrappers, nesting and the first part of all names may differ. Every byte counts, unless a
    tolerance is given.

    \b
    ckpt diff before.pth after.pth
    ckpt diff base.safetensors tuned.pth --stat
    ckpt diff a.pth b.pth --close -q && echo same
    ckpt diff before.pth after.pth --fail-on frozen
    ckpt diff before.pth after.pth --html report.html
    """
    limits = limits_of(limit)
    gate_of("diff", select, ignore, level, fail_on, also=(DIFFER,))
    if which not in (*_SHOW, _REASONS):
        raise UsageError(f"--show {which}: not one of {' '.join(_SHOW)}")
    if depth is not None and not stat:
        raise UsageError("--depth is for --stat", hint="--stat --depth N")
    live = model_of(model, arg)
    schema = "ckpt.diff" if json else None
    if force and html is None:
        raise UsageError("--force goes with --html")
    if html == "-" and (json or tsv or name_only):
        raise UsageError("--html - writes to stdout, as --json, --tsv and --name-only do")
    page = None if html is None else _page(html, force)

    def side(path: str) -> Checkpoint:
        with documented(path, schema), nullcontext() if page is None else page.told(path, "ckpt.diff"):
            refuse_factory(path, "--model")
            checkpoint = opened(path, limits, structure=structure)
            if page is not None:
                page.drawn_from(checkpoint.checkpoint)
            return checkpoint

    with (
        working(cluster, (before, after)),
        side(before) as first,
        side(after) as second,
        documented(before, schema),
    ):
        for compared in (first, second):
            mixed = compared.survey.mixed
            if mixed is not None:
                output.talk(f"ckpt: {show(compared.path, None)}: {mixed.text}")
        with output.meter("comparing") as progress:
            report = diff(
                first,
                second,
                include=include,
                exclude=exclude,
                section=section,
                align=not no_align,
                sub=sub,
                atol=atol,
                rtol=rtol,
                close=close,
                stat=stat,
                structure=structure,
                quick=quick,
                strict=strict,
                ignore_dtype=ignore_dtype,
                histogram=histogram,
                model=live,
                select=select,
                ignore=ignore,
                level=level,
                fail_on=fail_on,
                check=False,
                progress=progress,
            )
    if page is not None:
        page.write([report.to_json()])
    if json:
        output.write_json(report.to_json())
    elif tsv:
        output.write_table(diff_table(report), tsv=True, table=None, header=not no_header)
    elif name_only:
        output.write_lines(name_lines(report))
    elif html != "-" and not output.is_silent():
        width, height = output.screen_width(), output.screen_height()
        output.write_lines(
            diff_lines(report, width=width, height=height, show_rows=which, stat=stat, depth=depth)
        )
    if page is not None:
        page.tell()
    report.check()
    return report.exit_code


def _page(out: str, force: bool) -> Page:
    from ckpt.cli.commands.report import Page  # here: only --html pays for what writes

    return Page(out, force=force)
