"""`ckpt lint`: one gate for every file: one line per finding, 1 when one is left."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Annotated

import typer

from ckpt.api.keywords import gate_of, model_of
from ckpt.api.listing import lint
from ckpt.api.settings import LintSettings, settings_at
from ckpt.api.walk import others_text
from ckpt.cli import output
from ckpt.cli.fencing import fence_in
from ckpt.cli.inputs import TROUBLE, listed, may_be_many
from ckpt.cli.options import (
    Arg,
    FailOn,
    FilesFrom,
    Ignore,
    Jobs,
    LevelOption,
    LimitOption,
    Others,
    Paths,
    Require,
    RewriteJson,
    Select,
    SkipUnreadable,
    limits_of,
    refuse_factory,
)
from ckpt.cli.signature import GATE, OUTPUT, Exclusion, excluding
from ckpt.cli.start import NothingListedError
from ckpt.errors import UsageError
from ckpt.findings import CATALOGUE
from ckpt.jobs.check.lint import LintReport
from ckpt.names import endings
from ckpt.render.lint import github, junit, lint_lines, sarif, statistics_lines, summary
from ckpt.text import show

_FORMS = ("text", "json", "github", "sarif", "junit")


@excluding(
    Exclusion(("--json", "--output-format")), Exclusion(("--statistics",), ("--json", "--output-format"))
)
def command(
    paths: Paths = None,
    select: Select = None,
    ignore: Ignore = None,
    level: LevelOption = None,
    fail_on: FailOn = None,
    read_values: Annotated[
        bool, typer.Option("--read-values", help="Read the tensors too, for NaN, Inf and dead channels.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="FILE.py:FACTORY", help="Check a live model too, built with your own code."
        ),
    ] = None,
    arg: Arg = None,
    files_from: FilesFrom = None,
    skip_unreadable: SkipUnreadable = False,
    require: Require = False,
    json: RewriteJson = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--output-format",
            metavar="FORM",
            help=f"Print {', '.join(_FORMS[:-1])} or {_FORMS[-1]}.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    others: Others = False,
    skip_others: Annotated[
        bool,
        typer.Option(
            "--skip-others",
            help="Count PATHs that are no checkpoint, as in a folder; without it they are errors.",
            rich_help_panel=GATE,
        ),
    ] = False,
    statistics: Annotated[
        bool,
        typer.Option("--statistics", help="Print how often each code was found.", rich_help_panel=OUTPUT),
    ] = False,
    jobs: Jobs = None,
    no_config: Annotated[
        bool,
        typer.Option(
            "--no-config", help="Ignore the table [tool.ckpt.lint] of pyproject.toml.", rich_help_panel=GATE
        ),
    ] = False,
    limit: LimitOption = None,
) -> int:
    """Check files and print their findings. Exit code 1 for a warning or an error, 2 for a file that cannot be read.

    Findings of level info are left out, unless --level or --select asks for them. Tensors are read only with
    --read-values. The table [tool.ckpt.lint] of the nearest pyproject.toml may set select, ignore, level and read-values.
    It cannot switch off findings of level error.

    \b
    ckpt lint runs/ --ignore cuda
    ckpt lint --model model.py:build --select list-modules
    """
    limits = limits_of(limit)
    form = form or ("json" if json else "text")
    if form not in _FORMS:
        raise UsageError(f"--output-format {show(form, 40)}: not one of {' '.join(_FORMS)}")
    gate_of("lint", select, ignore, level, fail_on, default=None)
    config = None if no_config else _nearest(os.getcwd())
    settings = LintSettings() if config is None else settings_at(config)
    live = model_of(model, arg)
    names = _names(paths, files_from, require=require) if paths or files_from or live is None else []
    for name in names:
        refuse_factory(name, "--model")
    reads_tensors = read_values or settings.values
    fence_in(names, workers=reads_tensors or may_be_many(names, jobs), own_code=live is not None)
    with output.meter("checking", "files") as progress:
        report = lint(
            names,
            select=select,
            ignore=ignore,
            level=level,
            fail_on=fail_on,
            read_values=read_values,
            model=live,
            model_name=model,
            skip_unreadable=skip_unreadable,
            skip_others=skip_others,
            require=require,
            config=settings,
            hints=form == "json",
            jobs=jobs,
            progress=progress,
            limits=limits,
        )
    say = output.complain if report.exit_code == TROUBLE else output.talk
    for row in report.files:
        if row.error is not None and form == "text":
            say(output.unread(row.path, row.error))
        elif row.skipped is not None:
            output.skip(row.path, row.skipped)
    _tell_switched_off(report)
    if others:
        output.list_others(report.others)
    _write(report, form, statistics=statistics)
    if form == "text":
        more = f" · {others_text(report.others)}" + ("" if others else " (--others)")
        output.conclude(summary(report.files) + (more if report.others else ""))
    return report.exit_code


def _names(paths: list[str] | None, files_from: str | None, *, require: bool) -> list[str]:
    """The PATHs. A list without a name is said, and gives a report of nothing: SARIF and JUnit are files that others read."""
    try:
        return listed(paths, files_from, require=require)
    except NothingListedError as nothing:
        output.conclude(f"ckpt: {nothing}")
        return []


def _write(report: LintReport, form: str, *, statistics: bool) -> None:
    others = endings(report.others)
    if form == "json":
        output.write_json(report.to_json())
    elif form == "sarif":
        output.write_json(sarif(report.files, others))
    elif form in ("github", "junit"):
        lines = github(report.files) if form == "github" else junit(report.files, others)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    elif statistics:
        output.write_lines(statistics_lines(report.files, output.screen_width()))
    else:
        output.write_lines(lint_lines(report.files, output.screen_width()))


def _tell_switched_off(report: LintReport) -> None:
    """Name on stderr what a file switched off: who typed the command may not know that file."""
    counts = Counter(finding.code for row in report.files for finding in row.switched_off)
    if counts:
        codes = ", ".join(f"{counts[code]:,} {code}" for code in CATALOGUE if counts[code])
        output.talk(f"ckpt: {show(report.config, None)}: switches off {codes} (--no-config shows them)")


def _nearest(folder: str) -> str | None:
    """Return the path of the nearest pyproject.toml, from a folder upwards."""
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
