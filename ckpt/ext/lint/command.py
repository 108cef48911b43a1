"""`ckpt lint`: one gate for every file: one line per finding, 1 when one is left."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from ckpt.ext.lint.api import lint
from ckpt.ext.lint.lint import LintReport
from ckpt.ext.lint.settings import LintSettings, settings_at
from ckpt.ext.lint.text import github, junit, lint_lines, sarif, statistics_lines, summary
from ckpt.model.errors import UsageError
from ckpt.model.findings import CATALOGUE
from ckpt.model.limits import Limits
from ckpt.model.names import endings
from ckpt.model.text import show
from ckpt.surface.api.keywords import model_of
from ckpt.surface.api.walk import others_text
from ckpt.surface.cli import output
from ckpt.surface.cli.fencing import fence_in
from ckpt.surface.cli.inputs import TROUBLE, gate_given, may_be_many, named_paths, refuse_factory
from ckpt.surface.cli.start import NothingListedError

_FORMS = ("text", "json", "github", "sarif", "junit")


def command(
    paths: list[str],
    *,
    read_values: bool,
    model: str | None,
    arg: list[str] | None,
    files_from: list[str] | None,
    skip_unreadable: bool,
    skip_others: bool,
    require: bool,
    json: bool,
    output_format: str | None,
    others: bool,
    statistics: bool,
    jobs: int | None,
    config: bool,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Check files and print their findings. Exit code 1 for a warning or an error, 2 for a file that cannot be read.

    Findings of level info are left out, unless --level or --select asks for them. Tensors are read only with
    --read-values. The table [tool.ckpt.lint] of the nearest pyproject.toml may set select, ignore, level and read-values.
    It cannot switch off findings of level error.

    \b
    ckpt lint runs/ --ignore cuda
    ckpt lint --model model.py:build --select list-modules
    """
    form = output_format or ("json" if json else "text")
    if form not in _FORMS:
        raise UsageError(f"--output-format {show(form, 40)}: not one of {' '.join(_FORMS)}")
    gate_given("lint", keywords, default=None)
    nearest = _nearest(os.getcwd()) if config else None
    settings = LintSettings() if nearest is None else settings_at(nearest)
    live = model_of(model, arg)
    names = _names(paths, files_from, require=require) if paths or files_from or live is None else []
    for name in names:
        refuse_factory(name, "--model")
    reads_tensors = read_values or settings.values
    fence_in(names, workers=reads_tensors or may_be_many(names, jobs), own_code=live is not None)
    with output.meter("checking", "files") as progress:
        report = lint(
            names,
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
            **keywords,
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


def _names(paths: list[str], files_from: list[str] | None, *, require: bool) -> list[str]:
    """The PATHs. A list without a name is said, and gives a report of nothing: SARIF and JUnit are files that others read."""
    try:
        return named_paths(paths, files_from, require=require)
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
