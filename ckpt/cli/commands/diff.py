"""`ckpt diff`: two files, one call, one form; 0 same, 1 differ, 2 trouble."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt.checkpoint import Checkpoint
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
    PartOption,
    RewriteJson,
    SectionOption,
    Select,
    Tsv,
    gate_of,
    limits_of,
    model_of,
    opened,
    refuse_factory,
)
from ckpt.cli.signature import GATE, OUTPUT, Exclusion, excluding
from ckpt.cli.work import executor, is_shared
from ckpt.errors import UnreadableError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats.listing import open_listing
from ckpt.jobs.diff.diff import DiffReport, comparison, diff
from ckpt.limits import Limits
from ckpt.render.diff import diff_lines, diff_table, name_lines
from ckpt.text import Json as JsonValue
from ckpt.text import listed, plural, show

if TYPE_CHECKING:
    from ckpt.cli.commands.report import Page


_DIFFER = "differ"
"""The word that `--fail-on` takes beside the codes of findings."""
_SHOW = ("auto", "changed", "unchanged", "frozen", "buffers", "all")


@excluding(
    Exclusion(("--json", "--tsv", "--name-only", "--quiet")),
    Exclusion(("--structure", "--quick", "--stat")),
    Exclusion(("--structure", "--quick"), ("--close", "--atol", "--rtol")),
    Exclusion(("--histogram",), ("--structure", "--quick", "--tsv", "--name-only", "--quiet")),
    Exclusion(("--structure",), ("--fail-on",)),
    Exclusion(("--close",), ("--atol", "--rtol")),
    Exclusion(("--structure", "--quick"), ("--cluster",)),
    Exclusion(
        ("--part",),
        (
            *("--json", "--tsv", "--name-only", "--quiet", "--show", "--structure", "--quick"),
            *("--histogram", "--html", "--force", "--depth", "--cluster"),
            *("--model", "--select", "--ignore", "--level", "--fail-on"),
        ),
    ),
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
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print nothing; the exit code answers.", rich_help_panel=OUTPUT),
    ] = False,
    which: Annotated[
        str,
        typer.Option(
            "--show",
            metavar="WHAT",
            help="List changed, unchanged, frozen, buffers or all tensors.",
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
    part: PartOption = None,
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
    how: dict[str, JsonValue] = {
        **{"include": include, "exclude": exclude, "section": section, "no_align": no_align, "sub": sub},
        **{"atol": atol, "rtol": rtol, "close": close, "stat": stat, "strict": strict},
    }
    if part is not None:
        from ckpt.cli.parts import write_part  # here: who runs no part needs no other command

        return write_part(part, "diff", [before, after], limits, how)
    gate = gate_of("diff", select, ignore, level, fail_on, also=(_DIFFER,))
    if which not in _SHOW:
        raise UsageError(f"--show {which}: not one of {' '.join(_SHOW)}")
    if depth is not None and not stat:
        raise UsageError("--depth is for --stat", hint="--stat --depth N")
    request = comparison(how)._replace(structure=structure, quick=quick, histogram=histogram)
    request = request._replace(once=is_shared())
    live = model_of(model, arg)
    schema = "ckpt.diff" if json else None
    if force and html is None:
        raise UsageError("--force goes with --html")
    if html == "-" and (json or tsv or name_only):
        raise UsageError("--html - writes to stdout, as --json, --tsv and --name-only do")
    page = None if html is None else _page(html, force)
    quiet = quiet or html == "-"

    def side(path: str) -> Checkpoint:
        with documented(path, schema), nullcontext() if page is None else page.told(path, "ckpt.diff"):
            checkpoint = _opened(path, limits, structure)
            if page is not None:
                page.drawn_from(checkpoint)
            return checkpoint

    with (
        working(cluster, (before, after)) as workers,
        side(before) as first,
        side(after) as second,
        documented(before, schema),
    ):
        with output.progress("comparing", first.nbytes + second.nbytes) as progress:
            sides = Survey(first, live), Survey(second, live)
            for compared in sides:
                mixed = compared.mixed
                if mixed is not None:
                    output.talk(f"ckpt: {show(compared.path, None)}: {mixed.text}")
            report = diff(*sides, request._replace(progress=progress, executor=workers or executor()))
        for checkpoint in (first, second):
            checkpoint.check_unchanged()
    report = report._replace(findings=gate.rules.kept(report.findings))
    if page is not None:
        page.write([report.to_json()])
    if json:
        output.write_json(report.to_json())
    elif tsv:
        output.write_table(diff_table(report), tsv=True, table=None, header=not no_header)
    elif name_only:
        output.write_lines(name_lines(report))
    elif not quiet:
        width, height = output.screen_width(), output.screen_height()
        output.write_lines(
            diff_lines(report, width=width, height=height, show_rows=which, stat=stat, depth=depth)
        )
    if page is not None and not quiet:
        page.tell(1)
    _refuse_damage(report)
    report.check_read()
    differs = report.differs and (not gate.fails or _DIFFER in gate.fails)
    if differs or gate.code(report.findings):
        return 1
    _refuse_doubt(report)
    return 0


def _page(out: str, force: bool) -> Page:
    from ckpt.cli.commands.report import Page  # here: only --html pays for what writes

    return Page(out, force=force)


def _refuse_damage(report: DiffReport) -> None:
    """Raise UnreadableError where bytes do not match the checksums: no exit code would be true."""
    before, after = report.before.path, report.after.path
    if report.damaged:
        names = listed(report.damaged, 5)
        problem = f"damaged, it or {show(before, None)}: the bytes do not match the checksums: {names}"
        raise UnreadableError(problem, path=after)


def _refuse_doubt(report: DiffReport) -> None:
    """Raise UsageError where what was asked cannot be decided: without checksums, or of parts of several ranks."""
    after = report.after.path
    apart = sum(row.apart for row in report.rows)
    if apart:
        problem = f"{plural(apart, 'tensor')} cannot be compared: each file holds another part"
        raise UsageError(problem, path=after, hint="the folder with the files of all ranks is one checkpoint")
    if report.options.quick and report.count("unchecked"):
        raise UsageError("--quick cannot decide: checksums are missing", path=after, hint="without --quick")


def _opened(path: str, limits: Limits, structure: bool) -> Checkpoint:
    """The checkpoint at a path; with `--structure` also what was stored of one."""
    listed = open_listing(path, limits) if structure else None
    refuse_factory(path, "--model")
    return opened(path, limits) if listed is None else listed
