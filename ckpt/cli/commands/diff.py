"""`ckpt diff`: two files, one call, one form; 0 same, 1 differ, 2 trouble."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpt.checkpoint import Checkpoint
from ckpt.cli import output
from ckpt.cli.options import (
    Arg,
    Exclude,
    FailOn,
    Include,
    LimitOption,
    Model,
    NoHeader,
    RewriteJson,
    SectionOption,
    Tsv,
    codes_of,
    limits_of,
    model_of,
    opened,
)
from ckpt.elements.compare import Tolerance
from ckpt.errors import UnreadableError, UsageError
from ckpt.evidence.survey import Survey
from ckpt.formats.listing import open_listing
from ckpt.jobs.diff.diff import Options, diff
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.render.diff import diff_lines, diff_table, name_lines
from ckpt.text import first_of, show

_SHOW = ("auto", "changed", "unchanged", "frozen", "buffers", "all")
_CLOSE: dict[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-5, 1.3e-6),
    "float16": (1e-5, 1e-3),
    "bfloat16": (1e-5, 1.6e-2),
    "complex32": (1e-5, 1e-3),
    "complex64": (1e-5, 1.3e-6),
    "complex128": (1e-7, 1e-7),
}
"""(absolute, relative) for each dtype, as torch.testing.assert_close has them; integers are exact."""


def command(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A checkpoint.", show_default=False)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="A checkpoint.", show_default=False)],
    json: RewriteJson = False,
    tsv: Tsv = False,
    no_header: NoHeader = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Only the names of what differs.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print nothing: the exit code answers.")
    ] = False,
    which: Annotated[
        str,
        typer.Option(
            "--show", metavar="WHAT", help="List changed, unchanged, frozen, buffers or all tensors."
        ),
    ] = "auto",
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    atol: Annotated[
        float | None,
        typer.Option("--atol", metavar="X", min=0, help="Differences up to X are none."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", metavar="X", min=0, help="Nor are those up to X times the value before."),
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Tolerances by dtype, as torch.testing has them.")
    ] = False,
    stat: Annotated[
        bool, typer.Option("--stat", help="A bar a module: how far it moved, relative to its norm.")
    ] = False,
    structure: Annotated[
        bool,
        typer.Option(
            "--structure",
            help="Compare names, shapes and dtypes; read no values. Takes what inspect --json printed, too.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Compare sizes and the CRCs that the files record; read no values."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count devices, strides, renames and sections of one side too.")
    ] = False,
    model: Model = None,
    arg: Arg = None,
    fail_on: FailOn = None,
    limit: LimitOption = None,
) -> int:
    """What changed between two checkpoints: exit code 0 same, 1 differ, 2 trouble.

    Formats, devices, wrappers and nesting may differ. Bytes are compared first: the smallest change is one.

    \b
    ckpt diff before.pth after.pth
    ckpt diff base.safetensors tuned.pth --stat
    ckpt diff a.pth b.pth --close -q && echo same
    """
    limits = limits_of(limit)
    codes = codes_of(fail_on, "diff")
    if which not in _SHOW:
        raise UsageError(f"--show {which}: not one of {' '.join(_SHOW)}")
    if sum((json, tsv, name_only, quiet)) > 1:
        raise UsageError("--json, --tsv, --name-only and --quiet exclude each other")
    if sum((structure, quick, stat)) > 1:
        raise UsageError("--structure, --quick and --stat exclude each other")
    if (structure or quick) and (close or atol is not None or rtol is not None):
        raise UsageError(
            f"--{'structure' if structure else 'quick'} reads no values: tolerances mean nothing"
        )
    if structure and codes:
        raise UsageError("--structure reads no values: it makes no findings to fail on")
    if close and (atol is not None or rtol is not None):
        raise UsageError("--close goes without --atol and --rtol")

    def tolerance(dtype: str) -> Tolerance:
        return _CLOSE.get(dtype, (0.0, 0.0)) if close else (atol or 0.0, rtol or 0.0)

    exact = not close and atol is None and rtol is None
    live = model_of(model, arg)
    options = Options(
        Globs(include or (), exclude or ()),
        section,
        None if exact else tolerance,
        structure=structure,
        quick=quick,
        strict=strict,
        norms=stat,
    )
    with _opened(before, limits, structure) as first, _opened(after, limits, structure) as second:
        with output.progress(first.nbytes + second.nbytes) as progress:
            sides = Survey(first, live), Survey(second, live)
            report = diff(*sides, options._replace(progress=progress))
        for checkpoint in (first, second):
            checkpoint.check_unchanged()
    if json:
        output.write_json(report.to_json())
    elif tsv:
        output.write_table(diff_table(report), tsv=True, table=None, header=not no_header)
    elif name_only:
        output.write_lines(name_lines(report))
    elif not quiet:
        output.write_lines(diff_lines(report, width=output.screen_width(), show_rows=which, stat=stat))
    if report.damaged:
        listed = first_of([show(name, 80) for name in report.damaged])
        problem = f"damaged, it or {show(before, None)}: bytes contradict recorded CRCs: {listed}"
        raise UnreadableError(problem, path=after)
    if codes:
        return int(bool(codes & {finding.code for finding in report.findings}))
    if quick and not report.differs and report.count("unchecked"):
        raise UsageError("--quick cannot tell: recorded CRCs are missing", path=after, hint="without --quick")
    return int(report.differs)


def _opened(path: str, limits: Limits, structure: bool) -> Checkpoint:
    """The checkpoint at a path; with `--structure` also what was stored of one."""
    listed = open_listing(path, limits) if structure else None
    return opened(path, limits) if listed is None else listed
