"""`ckpt lint`: one gate for every file: one line per finding, 1 when one is left."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from ckpt import formats
from ckpt.cli import output
from ckpt.cli.inputs import (
    TROUBLE,
    Found,
    empty,
    endings,
    found,
    is_concern,
    listed,
    many,
    nothing_in,
    others_text,
    parted,
    worst,
)
from ckpt.cli.options import (
    Arg,
    FailOn,
    FilesFrom,
    Gate,
    Ignore,
    Jobs,
    LevelOption,
    LimitOption,
    Others,
    Paths,
    Quiet,
    RewriteJson,
    Select,
    SkipUnreadable,
    explained,
    gate_of,
    limits_of,
    model_of,
    planning,
    refuse_factory,
    rules_of,
)
from ckpt.cli.signature import GATE, OUTPUT, Exclusion, excluding
from ckpt.errors import CkptError, LimitError, UnreadableError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.findings import CATALOGUE, LEVELS, Finding, Level, Rules
from ckpt.io.executor import Task
from ckpt.io.location import locate
from ckpt.io.source import read_limited
from ckpt.jobs.check.lint import FileGate, LintReport, document, lint, lint_model
from ckpt.limits import Limits
from ckpt.names import natural, nearest
from ckpt.render.lint import github, junit, lint_lines, sarif, statistics_lines, summary
from ckpt.rows import NamedTuple
from ckpt.text import show, show_literal

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
    quiet: Quiet = False,
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
    command_gate = gate_of("lint", select, ignore, level, fail_on, default=None)
    settings = LintSettings() if no_config else lint_settings(os.getcwd())
    gate = FileGate(_with_settings(command_gate.rules, settings, level), command_gate.rules)
    live = model_of(model, arg)
    names = listed(paths, files_from) if paths or files_from or live is None else []
    reading = _Reading(limits, gate, read_values or settings.values, form == "json")
    reports, ignored = _reports(names, reading, jobs, picked=skip_others)
    if model is not None and live is not None:
        reports.append(_judged(model, gate, lint_model(live)))
    reports.sort(key=lambda report: natural(report.path))
    for report in reports:
        if report.error is not None and form == "text":
            output.talk(f"ckpt: {show(report.path, None)}: {show_literal(str(report.error))}")
        elif report.skipped is not None:
            output.skip(report.path, report.skipped)
    _tell_switched_off(settings.path, reports)
    if others:
        output.list_others(ignored)
    _write(reports, ignored, form, statistics=statistics)
    if form == "text" and not quiet:
        more = f" · {others_text(ignored)}" + ("" if others else " (--others)")
        output.conclude(summary(reports) + (more if ignored else ""))
    return worst(_code(report, command_gate, skip_unreadable) for report in reports)


def _write(reports: Sequence[LintReport], ignored: Sequence[str], form: str, *, statistics: bool) -> None:
    others = endings(ignored)
    if form == "json":
        output.write_json(document(reports, others))
    elif form == "sarif":
        output.write_json(sarif(reports, others))
    elif form in ("github", "junit"):
        lines = github(reports) if form == "github" else junit(reports, others)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    elif statistics:
        output.write_lines(statistics_lines(reports, output.screen_width()))
    else:
        output.write_lines(lint_lines(reports, output.screen_width()))


def _tell_switched_off(path: str, reports: Sequence[LintReport]) -> None:
    """Name on stderr what a file switched off: who typed the command may not know that file."""
    counts = Counter(finding.code for report in reports for finding in report.switched_off)
    if counts:
        codes = ", ".join(f"{counts[code]:,} {code}" for code in CATALOGUE if counts[code])
        output.talk(f"ckpt: {show(path, None)}: switches off {codes} (--no-config shows them)")


def _code(report: LintReport, gate: Gate, skip_unreadable: bool) -> int:
    if report.error is not None:
        return 0 if skip_unreadable else TROUBLE
    if gate.fails:
        return gate.code(report.findings)
    return int(any(finding.level != "info" for finding in report.findings))


def _with_settings(rules: Rules, settings: LintSettings, level: str | None) -> Rules:
    """Return the rules of the command line, completed by the rules of a file."""
    file, lowest = "[tool.ckpt.lint] ", level or settings.level
    own = rules_of("lint", settings.select, settings.ignore, lowest, None, origin=file)
    return Rules(rules.select or own.select, rules.ignore or own.ignore, own.level)


class _Reading(NamedTuple):
    """The settings for reading and judging each file. Only JSON has the commands that help."""

    limits: Limits
    gate: FileGate
    values: bool
    commands: bool


def _reports(
    names: Sequence[str], reading: _Reading, jobs: int | None, *, picked: bool = False
) -> tuple[list[LintReport], list[str]]:
    """The reports on what the names lead to, which several processes make when there are many, and all other files."""
    for name in names:
        refuse_factory(name, "--model")
    items, others = parted(found(names, picked=picked))
    tasks = [Task(_report, (item, reading), 1) for item in items]
    with output.progress("checking", len(tasks), "files") as progress:
        reports = many(tasks, jobs).run(tasks, progress)
    bare = empty(names, [report.path for report in reports])
    reports += [LintReport(name, (), nothing_in(name).failure(name)) for name in bare]
    return reports, others


def _judged(path: str, gate: FileGate, findings: Sequence[Finding]) -> LintReport:
    kept, switched_off = gate.kept(findings)
    return LintReport(path, kept, switched_off=switched_off)


def _report(item: Found, reading: _Reading) -> LintReport:
    """The findings of one file. A file in a folder that never was a checkpoint is skipped."""
    if item.error is not None or item.skipped is not None:
        error = None if item.error is None else item.error.failure(item.path)
        return LintReport(item.path, (), error, skipped=item.skipped)
    try:
        with about(item.path), formats.open(item.path, reading.limits) as checkpoint:
            survey = Survey(checkpoint)
            plan = planning(survey) if reading.commands else None
            report = _judged(item.path, reading.gate, lint(survey, values=reading.values, plan=plan))
            checkpoint.check_unchanged()
            return report
    except CkptError as error:
        if is_concern(item, error):
            return LintReport(item.path, (), explained(error, item.path).failure(item.path))
        return LintReport(item.path, (), skipped=error.problem)


_NAME = "[tool.ckpt.lint]"
_BYTES = 1_000_000
"""The largest pyproject.toml that is read."""
_PARTS = 100
"""Parts of one dotted key: the time that tomllib takes for a key grows with their square."""
_DEEP = re.compile(
    rf"""(?<![\w"'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?=([ \t]*))\1\.(?=([ \t]*))\2){{{_PARTS}}}"""
)  # `(?=(x))\1` gives nothing back, as `x++` does from Python 3.11 on
_KEYS = ("select", "ignore", "level", "read-values")


class LintSettings(NamedTuple):
    """The settings of `ckpt lint`, and the file that they stand in."""

    path: str = ""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    level: Level | None = None
    values: bool = False


def lint_settings(folder: str) -> LintSettings:
    """The table of the nearest pyproject.toml, from a folder upwards. Raises UsageError for a wrong one."""
    path = _nearest(folder)
    if path is None:
        return LintSettings()
    table = _table(path)
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        alike = nearest(unknown[0], _KEYS, 1) or (["read-values"] if unknown[0] == "values" else [])
        hint = f"did you mean {alike[0]}?" if alike else f"it takes {', '.join(_KEYS[:-1])} and {_KEYS[-1]}"
        raise UsageError(f"{_NAME} has an unknown key: {show(unknown[0], 40)}", path=path, hint=hint)
    level = next((level for level in LEVELS if level == table.get("level")), None)
    if level is None and "level" in table:
        raise UsageError(f"{_NAME} level is one of {' '.join(LEVELS)}", path=path)
    values = table.get("read-values", False)
    if not isinstance(values, bool):
        raise UsageError(f"{_NAME} read-values is true or false", path=path)
    return LintSettings(path, _codes(path, table, "select"), _codes(path, table, "ignore"), level, values)


def _nearest(folder: str) -> str | None:
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _table(path: str) -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        file = locate(path).open()
        try:
            text = read_limited(file, _BYTES, "", "the file").decode("utf-8")
        finally:
            file.close()
        if _DEEP.search(text):
            raise UsageError(f"cannot be read: a key of more than {_PARTS} parts", path=path)
        table: object = tomllib.loads(text)
    except LimitError:
        raise UsageError(f"cannot be read: more than {_BYTES:,} bytes", path=path) from None
    except UnreadableError as error:
        raise UsageError(f"cannot be read: {error.problem}", path=path) from None
    except RecursionError:
        raise UsageError("cannot be read: nested too deeply", path=path) from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of more digits than Python converts
        raise UsageError(f"cannot be read: {show(str(error), 120)}", path=path) from None
    for key in ("tool", "ckpt", "lint"):
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"{_NAME} is not a table", path=path)
    return table


def _codes(path: str, table: dict[str, object], key: str) -> tuple[str, ...]:
    codes = table.get(key, [])
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise UsageError(f"{_NAME} {key} is a list of codes", path=path)
    return tuple(codes)
