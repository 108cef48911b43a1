"""Findings as lines: the code in the colour of its level, the sentence, the command that helps."""

from __future__ import annotations

from ckpt.findings import Finding
from ckpt.render.text import Line, wrapped
from ckpt.text import show_literal

_LIMIT = 2000
"""Characters of one sentence that are shown."""


def finding_lines(finding: Finding, width: int | None) -> list[Line]:
    """A finding, broken to fit `width`, and the command that helps, which stays whole."""
    head = f"! {finding.code}"
    first, *more = wrapped(f"{head}: {safe(finding.message)}", width)
    lines: list[Line] = [[(head, finding.level), (first[len(head) :], "")]]
    lines += [[(f"  {line}", "")] for line in more]
    if finding.hint is not None:
        lines.append([(f"  ({finding.hint})", "dim")])
    return lines


def safe(text: str) -> str:
    """A sentence made safe. Parts that came from a file may be escaped already: a backslash is not doubled again."""
    return show_literal(text[:_LIMIT])
