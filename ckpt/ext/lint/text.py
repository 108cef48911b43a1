"""`ckpt lint` as text, and in the forms that CI systems read: annotations for GitHub,
SARIF 2.1.0, JUnit XML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ckpt import __version__
from ckpt.ext.lint.lint import FileReport, LintReport
from ckpt.model.findings import CATALOGUE, LEVELS, Finding
from ckpt.model.text import Json, counted_noun, show, show_line
from ckpt.surface.text.lines import (
    Line,
    findings_lines,
    hanging_lines,
    safe_sentence,
    wrap_text,
)

_MARKS = {"error": "error", "warning": "warning", "info": "notice"}
"""The levels of findings -> the levels of GitHub."""
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/"
"""Bytes that stand for themselves in a URI (RFC 3986), and the slash."""
_SARIF = {"error": "error", "warning": "warning", "info": "note"}


def lint_lines(reports: Iterable[FileReport], width: int | None) -> list[Line]:
    """The findings under the name of their file: level, code, sentence. What follows is
    said the first time.
    """
    out: list[Line] = []
    explained: set[str] = set()
    for report in reports:
        if not report.findings:
            continue
        out.append([(show(report.path, None), "head")])
        for finding in report.findings:
            head = f"  {finding.level.ljust(7)}  {finding.code}  "
            # Below 30 columns a sentence would be one word per line.
            room = None if width is None else max(width - len(head), 30)
            first, *more = wrap_text(safe_sentence(finding.message), room, 0)
            out.append(
                [
                    (f"  {finding.level.ljust(7)}  ", ""),
                    (finding.code, finding.level),
                    (f"  {first}", ""),
                ]
            )
            # A run of a hundred files would repeat it a hundred times.
            if finding.consequence and finding.consequence not in explained:
                explained.add(finding.consequence)
                more += wrap_text(safe_sentence(finding.consequence), room, 0)
            out += [[(" " * len(head) + line, "")] for line in more]
    return out


def statistics_lines(reports: Sequence[FileReport], width: int | None) -> list[Line]:
    """Return how often each code was found, and in how many files, the most serious
    first.
    """
    counts = Counter(finding.code for report in reports for finding in report.findings)
    files = Counter(
        code
        for report in reports
        for code in {finding.code for finding in report.findings}
        # The model is no file, and is named beside the count.
        if not report.is_model
    )
    in_model = {
        finding.code
        for report in reports
        if report.is_model
        for finding in report.findings
    }
    size = max((len(f"{count:,}") for count in counts.values()), default=0)
    out: list[Line] = []
    by_level = sorted(CATALOGUE.items(), key=lambda item: LEVELS.index(item[1].level))
    for code, row in by_level:
        if counts[code]:
            head: Line = [
                (f"{counts[code]:>{size},}  ", ""),
                (code, row.level),
                ("  ", ""),
            ]
            places = [counted_noun(files[code], "file")] if files[code] else []
            places += ["the model"] if code in in_model else []
            out += hanging_lines(
                head, f"in {' and '.join(places)}: {row.title}", width, size + 4
            )
    return out


def lint_summary(reports: Sequence[FileReport]) -> str:
    """Return the sum of all findings: `3 findings (1 error, 2 warnings) in 2 of 5 files
    · 1 unreadable`.
    """
    levels = Counter(finding.level for report in reports for finding in report.findings)
    parts = [_count_text(levels[level], level) for level in LEVELS if levels[level]]
    checked = [report for report in reports if report.was_read]
    files = [report for report in checked if not report.is_model]
    models = [report for report in checked if report.is_model]
    everywhere = [counted_noun(len(files), "file")] if files or not models else []
    text = (
        "no finding in "
        f"{' and '.join([*everywhere, *(['the model'] if models else [])])}"
    )
    if parts:
        hit = sum(bool(report.findings) for report in files)
        places = [f"{hit:,} of {counted_noun(len(files), 'file')}"] if files else []
        places += ["the model"] if any(report.findings for report in models) else []
        text = (
            f"{counted_noun(sum(levels.values()), 'finding')} ({', '.join(parts)}) in "
            f"{' and '.join(places)}"
        )
    if any(report.lacks_values for report in files):
        text += " · values not read (--read-values)"
    unread = sum(report.error is not None for report in reports)
    return text + (f" · {unread:,} unreadable" if unread else "")


def _count_text(count: int, level: str) -> str:
    return f"{count:,} info" if level == "info" else counted_noun(count, level)


def github_lines(reports: Iterable[FileReport]) -> list[str]:
    """Workflow commands of GitHub, with line ends and percent signs escaped."""
    out = []
    for report in reports:
        # GitHub reads `%` as an escape in a value, and `:` and `,` as the end of one.
        name = (
            show_line(show(report.path, None))
            .replace("%", "%25")
            .replace(":", "%3A")
            .replace(",", "%2C")
        )
        rows = [
            (_MARKS[finding.level], f"{finding.code} {safe_sentence(finding.message)}")
            for finding in report.findings
        ]
        if report.error is not None:
            rows.append(("error", f"unreadable {safe_sentence(str(report.error))}"))
        for mark, text in rows:
            out.append(f"::{mark} file={name}::{show_line(text).replace('%', '%25')}")
    return out


def sarif_log(
    reports: Sequence[FileReport], others: Mapping[str, int] | None = None
) -> dict[str, Json]:
    """A SARIF log (OASIS, version 2.1.0). Files that cannot be read are notifications
    of the run.
    """
    # SARIF lists each rule once, and results point to its index.
    codes = list(
        dict.fromkeys(finding.code for report in reports for finding in report.findings)
    )
    rules: list[Json] = [
        {
            "id": code,
            "shortDescription": {"text": CATALOGUE[code].title},
            "defaultConfiguration": {"level": _SARIF[CATALOGUE[code].level]},
        }
        for code in codes
    ]
    results: list[Json] = [
        {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": _SARIF[finding.level],
            "message": {"text": safe_sentence(finding.message)},
            "locations": [_sarif_location(report.path)],
        }
        for report in reports
        for finding in report.findings
    ]
    unread: list[Json] = [
        {
            "level": "error",
            "message": {"text": safe_sentence(str(report.error))},
            "locations": [_sarif_location(report.path)],
        }
        for report in reports
        if report.error is not None
    ]
    run: dict[str, Json] = {
        "tool": {"driver": {"name": "ckpt", "version": __version__, "rules": rules}},
        # False where a file has no answer, so that no viewer takes the log for whole.
        "invocations": [
            {"executionSuccessful": not unread, "toolExecutionNotifications": unread}
        ],
        "results": results,
    }
    if others:
        run["properties"] = {"notLookedAt": dict(others)}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [run],
    }


def _sarif_location(path: str) -> dict[str, Json]:
    # A name that is no UTF-8 keeps its bytes, as `%FF`.
    data = path.encode("utf-8", "surrogateescape")
    uri = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    return {"physicalLocation": {"artifactLocation": {"uri": uri}}}


def junit_lines(
    reports: Sequence[FileReport], others: Mapping[str, int] | None = None
) -> list[str]:
    """A JUnit report: a test for each file, which fails with the first finding of level
    error or warning.
    """
    # Here: it imports the HTTP of the standard library, 6 ms that no other form needs.
    from xml.sax.saxutils import quoteattr

    # A skipped file is no test, neither passed nor failed.
    checked = [report for report in reports if report.skipped is None]
    failed = sum(bool(_failed_findings(report)) for report in checked)
    errors = sum(report.error is not None for report in checked)
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    out.append(
        f'<testsuite name="ckpt lint" tests="{len(checked)}" failures="{failed}" '
        f'errors="{errors}">'
    )
    if others:
        counts = [
            (
                f"<property name={quoteattr(f'not looked at: *{show(ending, 20)}')} "
                f'value="{count}"/>'
            )
            for ending, count in others.items()
        ]
        out += ["<properties>", *counts, "</properties>"]
    for report in checked:
        opening = (
            f"<testcase classname={quoteattr('ckpt.lint')} "
            f"name={quoteattr(show(report.path, None))}"
        )
        failures = _failed_findings(report)
        told: list[str] = []
        if report.error is not None:
            message = quoteattr(safe_sentence(str(report.error)))
            told.append(f"<error message={message}/>")
        if failures:
            texts = [
                f"{finding.level} {finding.code} {safe_sentence(finding.message)}"
                for finding in failures
            ]
            # JUnit has one failure per test, so all findings stand in its message.
            kind, message = quoteattr(failures[0].code), quoteattr(" | ".join(texts))
            told.append(f"<failure type={kind} message={message}/>")
        out += [f"{opening}>", *told, "</testcase>"] if told else [f"{opening}/>"]
    out += ["</testsuite>", "</testsuites>"]
    # `##[` is a command to GitHub Actions.
    return [line.replace("##", "#&#35;") for line in out]


def _failed_findings(report: FileReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.level != "info"]


def html_lint(report: LintReport) -> str:
    """Return the findings of each file with their commands, the files that cannot be
    read, and the sum.
    """
    from ckpt.surface.text.notebook import (
        WIDTH,
        html_of,
    )  # here: only a notebook pays for it

    lines: list[Line] = []
    for file in report.files:
        if file.findings:
            lines += [
                [(safe_sentence(file.path), "name")],
                *findings_lines(file.findings, WIDTH),
                [],
            ]
        if file.error is not None:
            lines += [
                *hanging_lines(
                    [(safe_sentence(file.path), "name"), (": ", "")],
                    safe_sentence(str(file.error)),
                    WIDTH,
                ),
                [],
            ]
    return html_of([*lines, [(lint_summary(report.files), "head")]])
