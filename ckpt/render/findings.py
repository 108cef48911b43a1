"""Findings as lines: the code in the colour of its level, the fact, the consequence, the command that helps."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.findings import Finding
from ckpt.render.text import Line, hung, pasted_line
from ckpt.text import show_literal

_LIMIT = 2000
"""Characters of one sentence that are shown."""
_CODES = 8
"""Cells for the codes. A longer one takes its own, and the lines below it are indented as all others."""


def findings_lines(findings: Sequence[Finding], width: int | None) -> list[Line]:
    """Findings, broken to fit `width`, their texts below each other. Commands stay whole."""
    size = max((len(finding.code) for finding in findings if len(finding.code) <= _CODES), default=6)
    return [line for finding in findings for line in finding_lines(finding, width, size)]


def finding_lines(finding: Finding, width: int | None, size: int = 0) -> list[Line]:
    """A finding: the fact, the consequence, the command. Its code takes `size` cells at least."""
    indent = (size or len(finding.code)) + 4
    head: Line = [
        ("! ", ""),
        (finding.code, finding.level),
        (" " * max(size - len(finding.code), 0) + "  ", ""),
    ]
    lines = hung(head, safe(finding.message), width, indent)
    return lines + follow_lines(finding, width, indent)


def follow_lines(finding: Finding, width: int | None, indent: int) -> list[Line]:
    """The consequence of a finding and the command that helps, which stays whole."""
    lines: list[Line] = []
    if finding.consequence is not None:
        lines += hung([(" " * indent, "")], safe(finding.consequence), width)
    if finding.hint is not None:
        lines.append(pasted_line(finding.hint, width, indent))
    return lines


def safe(text: str) -> str:
    """A sentence made safe. Parts that came from a file may be escaped already: a backslash is not doubled again."""
    return show_literal(text[:_LIMIT])
