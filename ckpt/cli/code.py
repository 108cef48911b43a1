"""The gate of the writing commands: a result that would run code of the file is refused, unknown names are named."""

from __future__ import annotations

from ckpt.cli import output
from ckpt.errors import CodeError
from ckpt.evidence.survey import Survey
from ckpt.jobs.rewrite.report import RewriteReport
from ckpt.limits import Limits
from ckpt.pickles.code import code_of
from ckpt.text import and_more, show, show_literal


def check_code(report: RewriteReport, survey: Survey, limits: Limits, *, keep: bool) -> None:
    """Say on stderr what loading the result does beyond what ckpt knows.

    Raises CodeError where loading runs code, unless it is kept.
    """
    code = code_of(report.source, report.result)
    path = show(report.source.path, None)
    runs = and_more(list(code.runs), 1)
    if runs and not keep:
        from ckpt.cli.advice.ways import Ways  # here: only an error pays for it

        way = Ways(survey, limits).way(("weights",)).command
        weights = "" if way is None else f"; for the weights alone: {way}"
        raise CodeError(
            f"loading the result would run {runs}",
            path=report.source.path,
            hint=f"--keep-code writes it all the same{weights}",
        )
    if runs:
        output.alarm(f"ckpt: {path}: DANGER: loading the result runs {show_literal(runs)}")
    for verb, texts in (("calls", code.calls), ("imports", code.imports)):
        if texts:
            listed = show_literal(and_more(list(texts), 2))
            output.talk(f"ckpt: {path}: loading the result {verb} {listed}, which ckpt does not know")
