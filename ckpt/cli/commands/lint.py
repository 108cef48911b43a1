"""`ckpt lint`: one gate for every file: one line per finding, 1 when one is left."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from ckpt import formats
from ckpt.cli import output
from ckpt.cli.options import Arg, LimitOption, RewriteJson, limits_of, model_of, planning, refuse_factory
from ckpt.cli.paths import TROUBLE, worst
from ckpt.cli.settings import LintSettings, lint_settings
from ckpt.cli.signature import Exclusion, excluding
from ckpt.errors import CkptError, UnsupportedError, UsageError, about
from ckpt.evidence.survey import Survey
from ckpt.findings import CATALOGUE, LEVELS, Finding
from ckpt.jobs.check.lint import Gate, LintReport, Rules, checked_codes, document, lint, lint_model
from ckpt.limits import Limits
from ckpt.names import natural
from ckpt.render.findings import row_lines, safe
from ckpt.text import show, show_line, show_literal

_SUFFIXES = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".index.json")
_SHARD = re.compile(r"-\d{5,}-of-\d{5,}\.(?:safetensors|bin)$")
_MARKS = {"error": "error", "warning": "warning", "info": "notice"}


@excluding(Exclusion(("--json", "--annotate")))
def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Files, or folders of files.", show_default=False),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="CODE",
            help="Report only these findings, of any level. Repeatable, or comma-separated.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="CODE", help="Ignore these findings. Repeatable, or comma-separated."
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="Report this level and above: error, warning or info.  [default: warning]",
        ),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Read the tensors too, for NaN, Inf and dead channels.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="FILE.py:FACTORY", help="Check a live model too, built with your own code."
        ),
    ] = None,
    arg: Arg = None,
    json: RewriteJson = False,
    annotate: Annotated[
        str | None,
        typer.Option("--annotate", metavar="github", help="Print annotations for GitHub."),
    ] = None,
    no_config: Annotated[
        bool, typer.Option("--no-config", help="Ignore the table [tool.ckpt.lint] of pyproject.toml.")
    ] = False,
    limit: LimitOption = None,
) -> int:
    """Check files and print one line per finding. Exit code 1 when a warning or an error is left.

    Tensors are read only with --values. The table [tool.ckpt.lint] of the nearest pyproject.toml may set select,
    ignore, level and values. It cannot switch off findings of level error.

    \b
    ckpt lint runs/ --ignore cuda
    ckpt lint --model model.py:build --select list-modules
    """
    limits = limits_of(limit)
    if annotate not in (None, "github"):
        raise UsageError(f"--annotate {annotate}: only github")
    settings = LintSettings() if no_config else lint_settings(os.getcwd())
    gate = Gate(_rules(settings, select, ignore, level), _rules(LintSettings(), select, ignore, level))
    deep = values or settings.values
    live = model_of(model, arg)
    if not paths and live is None:
        raise UsageError("nothing to check", hint="PATH..., or --model FILE.py:FACTORY")
    reading = _Reading(limits, gate, deep, json)
    reports = [report for path in paths or () for report in _reports(path, reading)]
    if model is not None and live is not None:
        reports.append(_judged(model, gate, lint_model(live)))
    reports.sort(key=lambda report: natural(report.path))
    for report in reports:
        if report.error is not None:
            output.talk(f"ckpt: {show(report.path, None)}: {show_literal(report.error)}")
    _tell_switched_off(settings.path, reports)
    if json:
        output.write_json(document(reports))
    elif annotate:
        sys.stdout.writelines(_annotation(r.path, finding) + "\n" for r in reports for finding in r.findings)
    else:
        output.write_lines([line for report in reports for line in row_lines(report.path, report.findings)])
    return worst(map(_code, reports))


def _tell_switched_off(path: str, reports: Sequence[LintReport]) -> None:
    """Name on stderr what a file switched off: who typed the command may not know that file."""
    counts = Counter(finding.code for report in reports for finding in report.switched_off)
    if counts:
        codes = ", ".join(f"{counts[code]:,} {code}" for code in CATALOGUE if counts[code])
        output.talk(f"ckpt: {show(path, None)}: switches off {codes} (--no-config shows them)")


def _code(report: LintReport) -> int:
    if report.error is not None:
        return TROUBLE
    return int(any(finding.level != "info" for finding in report.findings))


def _annotation(path: str, finding: Finding) -> str:
    """A workflow command of GitHub, with line ends and percent signs escaped."""
    text = show_line(f"{finding.code} {safe(finding.message)}").replace("%", "%25")
    name = show_line(show(path, None)).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{_MARKS[finding.level]} file={name}::{text}"


def _rules(
    settings: LintSettings, select: list[str] | None, ignore: list[str] | None, level: str | None
) -> Rules:
    chosen = _split(select) or settings.select
    left = _split(ignore) or settings.ignore
    asked = level or settings.level
    lowest = next((known for known in LEVELS if known == asked), None)
    if lowest is None:
        raise UsageError(f"--level {show(str(asked), 40)}: not one of {' '.join(LEVELS)}")
    return Rules(
        checked_codes(chosen, "--select" if select else "[tool.ckpt.lint] select"),
        checked_codes(left, "--ignore" if ignore else "[tool.ckpt.lint] ignore"),
        lowest,
    )


def _split(values: list[str] | None) -> list[str]:
    return [code.strip() for value in values or [] for code in value.split(",") if code.strip()]


class _Reading(NamedTuple):
    """How each file is read and judged; only JSON has the commands that help."""

    limits: Limits
    gate: Gate
    values: bool
    commands: bool


def _reports(path: str, reading: _Reading) -> Iterator[LintReport]:
    refuse_factory(path, "--model")
    if not os.path.isdir(path):
        yield _report(path, reading)
        return
    refused: list[LintReport] = []
    files = list(_walked(path, refused))
    if not files and not refused:
        yield LintReport(path, (), "no checkpoint in this folder")
    for file in files:
        yield _report(file, reading, found=True)
    yield from refused


def _judged(path: str, gate: Gate, findings: Sequence[Finding]) -> LintReport:
    kept, switched_off = gate.kept(findings)
    return LintReport(path, kept, switched_off=switched_off)


def _walked(folder: str, refused: list[LintReport]) -> Iterator[str]:
    """The files of a folder that may be checkpoints; of shards their index.

    `refused` gets each folder that cannot be read: an error, not a folder without findings.
    """

    def refuse(error: OSError) -> None:
        path = os.path.normpath(os.fsdecode(error.filename))
        refused.append(LintReport(path, (), f"cannot be read: {(error.strerror or '').lower()}"))

    for at, folders, names in os.walk(folder, onerror=refuse):
        folders.sort(key=natural)
        for name in folders:
            if os.path.islink(os.path.join(at, name)):
                output.talk(f"ckpt: {show(os.path.join(at, name), None)}: skipped: a link to a folder")
        indexed = any(name.endswith(".index.json") for name in names)
        for name in sorted(names, key=natural):
            shard = indexed and _SHARD.search(name)
            if name.endswith(_SUFFIXES) and not shard and not name.startswith("."):
                yield os.path.normpath(os.path.join(at, name))


def _report(path: str, reading: _Reading, *, found: bool = False) -> LintReport:
    """The findings of one file. A file in a folder that is not a checkpoint is skipped."""
    try:
        with about(path), formats.open(path, reading.limits) as checkpoint:
            with output.progress(checkpoint.nbytes) as progress:
                survey = Survey(checkpoint)
                plan = planning(survey) if reading.commands else None
                every = lint(survey, values=reading.values, plan=plan, progress=progress)
                report = _judged(path, reading.gate, every)
            checkpoint.check_unchanged()
            return report
    except UnsupportedError as error:
        if found:
            output.talk(f"ckpt: {show(path, None)}: skipped: {show_literal(error.problem)}")
            return LintReport(path, ())
        return LintReport(path, (), error.advice)
    except CkptError as error:
        return LintReport(path, (), error.said_of(path))
