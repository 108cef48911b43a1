"""`ckpt verify` as text: one line per file, the verdict first, broken to fit a
screen.
"""

from __future__ import annotations

from ckpt.commands.verify.verify import UNREAD, Problem, VerifyReport
from ckpt.model.text import and_more, counted_noun, show, show_literal, show_names
from ckpt.surface.text.lines import Line, break_line, pasted_line, whole

_LISTED = 6
_STYLES = {"intact": "name", "damaged": "error", "unreadable": "warning"}


def verify_lines(report: VerifyReport, width: int | None = None) -> list[Line]:
    """The report in one line, broken where it does not fit `width`."""
    line = [
        (f"{whole(show(report.path, None))}: ", ""),
        (report.verdict, _STYLES[report.verdict]),
        (f": {show_literal(_report_text(report))}", ""),
    ]
    rows = break_line(line, width)
    return rows if report.hint is None else [*rows, pasted_line(report.hint, width)]


def _report_text(report: VerifyReport) -> str:
    if report.verdict == "unreadable":
        return and_more(
            [_problem_text(problem, is_cut=False) for problem in report.problems],
            _LISTED,
            "; ",
        )
    if report.verdict == "intact":
        unchecked = ""
        if report.not_checked:
            unchecked = f"; not checked: {', '.join(report.not_checked)}"
        runs = ""
        if report.called:
            runs = f"; not safe: loading it calls {and_more(list(report.called), 1)}"
        doubts = f"; doubtful: {'; '.join(report.doubts)}" if report.doubts else ""
        return f"{', '.join(report.checked)}{unchecked}{doubts}{runs}"
    # A file that is cut off names its lost tensors once, at the end.
    is_cut = report.lost is not None
    text = and_more(
        [_problem_text(problem, is_cut=is_cut) for problem in report.problems],
        _LISTED,
        "; ",
    )
    if report.whole is not None and report.lost is not None:
        count = len(report.whole) + len(report.lost)
        # Without their checksums tensors are there, and nothing proves them whole.
        state = "there" if UNREAD in report.not_checked else "whole"
        text += (
            f"; {len(report.whole):,} of {counted_noun(count, 'tensor')} are {state}"
        )
        text += f", lost: {show_names(report.lost, _LISTED, 60)}" if report.lost else ""
        text += (
            f"; not checked: {', '.join(report.not_checked)}"
            if UNREAD in report.not_checked
            else ""
        )
    return text


def _problem_text(problem: Problem, *, is_cut: bool) -> str:
    names = "" if is_cut else show_names(problem.tensors, _LISTED, 60)
    return f"{problem.what} ({names})" if names else problem.what


def html_verify(report: VerifyReport) -> str:
    """Return the lines of `ckpt verify`."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    return html_of(verify_lines(report, WIDTH))
