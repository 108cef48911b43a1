"""`ckpt diff`: two files, one call, one form; 0 same, 1 differ, 2 trouble."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ckpt.commands.diff.api import diff
from ckpt.commands.diff.diff import DIFFER
from ckpt.commands.diff.text import diff_lines, diff_table, name_lines
from ckpt.hooks import load_hook
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.text import show as shown
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.api.keywords import model_of
from ckpt.surface.cli import output
from ckpt.surface.cli.inputs import (
    documenting_errors,
    gate_given,
    opened,
    refuse_factory,
    using_cluster,
)

_SHOW = ("auto", "changed", "unchanged", "buffers", "all")
_REASONS = "frozen"
"""The older word for the reasons of unchanged parameters alone. It still works."""


def command(
    before: str,
    after: str,
    *,
    json: bool,
    tsv: bool,
    header: bool,
    name_only: bool,
    show: str,
    depth: int | None,
    html: str | None,
    force: bool,
    structure: bool,
    model: str | None,
    arg: list[str] | None,
    cluster: str | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Compare two checkpoints. Exit code 0 same, 1 differ, 2 trouble.

    Formats, devices, wrappers, nesting and the first part of all names may differ.
    Every byte counts, unless a tolerance is given.

    \b
    ckpt diff before.pth after.pth
    ckpt diff base.safetensors tuned.pth --stat
    ckpt diff a.pth b.pth --close -q && echo same
    ckpt diff before.pth after.pth --fail-on frozen
    ckpt diff before.pth after.pth --html report.html
    """
    # Wrong options are errors before a file is read.
    gate_given("diff", keywords, also=(DIFFER,))
    if show not in (*_SHOW, _REASONS):
        raise UsageError(f"--show {show}: not one of {' '.join(_SHOW)}")
    if depth is not None and not keywords["stat"]:
        raise UsageError("--depth is for --stat", hint="--stat --depth N")
    live = model_of(model, arg)
    schema = "ckpt.diff" if json else None
    if force and html is None:
        raise UsageError("--force goes with --html")
    if not (header or tsv):
        raise UsageError("--no-header goes with --tsv")
    if html == "-" and (json or tsv or name_only):
        raise UsageError(
            "--html - writes to stdout, as --json, --tsv and --name-only do"
        )
    page = None if html is None else _report_page(html, (before, after), force)

    def side(path: str) -> Checkpoint:
        with (
            documenting_errors(path, schema),
            nullcontext() if page is None else page.told(path, "ckpt.diff"),
        ):
            refuse_factory(path, "--model")
            in_ranks = keywords["recipe"] is not None
            checkpoint = opened(path, limits, structure=structure, in_ranks=in_ranks)
            if page is not None:
                page.drawn_from(checkpoint.checkpoint)
            return checkpoint

    with (
        using_cluster(cluster, (before, after)),
        side(before) as first,
        side(after) as second,
        documenting_errors(before, schema),
    ):
        # Said before the comparison, which may take long.
        for compared in (first, second):
            mixed = compared.survey.mixed
            if mixed is not None:
                output.write_talk(f"ckpt: {shown(compared.path, None)}: {mixed.text}")
        with output.progress_meter("comparing") as progress:
            report = diff(
                first,
                second,
                structure=structure,
                model=live,
                check=False,
                progress=progress,
                **keywords,
            )
    if page is not None:
        page.write([report.to_json()])
    if json:
        output.write_json(report.to_json())
    elif tsv:
        output.write_table(
            diff_table(report, show), tsv=True, table=None, header=header
        )
    elif name_only:
        output.write_lines(name_lines(report, show))
    elif report.account is not None:
        output.write_lines(report.account.lines(output.screen_width()))
    elif html != "-" and not output.is_silent():
        width, height = output.screen_width(), output.screen_height()
        output.write_lines(
            diff_lines(
                report,
                width=width,
                height=height,
                show_rows=show,
                stat=keywords["stat"],
                depth=depth,
            )
        )
    if page is not None:
        page.tell()
    # An error of reading comes last, so that it hides nothing of the report.
    report.check()
    return report.exit_code


def _report_page(out: str, sources: tuple[str, str], force: bool) -> Any:
    """The page of `ckpt report` that the comparison is drawn on."""
    # Here: only --html pays for what writes.
    from ckpt.bytes.target import refuse_inputs

    if out != "-" and not force:
        refuse_inputs(out, sources)
    return load_hook("page").Page(out, force=force)
