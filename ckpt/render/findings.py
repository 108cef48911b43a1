"""Findings as lines: the code in the colour of its level, the sentence, the command that helps."""

from __future__ import annotations

from shlex import quote

from ckpt.findings import Finding
from ckpt.render.text import Line, wrapped
from ckpt.text import show, show_literal

_LIMIT = 2000
"""Characters of one sentence that are shown."""


def finding_lines(finding: Finding, width: int | None, path: str | None = None) -> list[Line]:
    """A finding, broken to fit `width`; with the file's path, the command of its hint too."""
    head = f"! {finding.code}"
    first, *more = wrapped(f"{head}: {safe(finding.message)}", width)
    lines: list[Line] = [[(head, finding.level), (first[len(head) :], "")]]
    lines += [[(f"  {line}", "")] for line in more]
    if path is not None and finding.hint is not None and finding.hint.startswith("ckpt "):
        lines.append([(f"  ({command(finding.hint, path)})", "dim")])
    return lines


def safe(text: str) -> str:
    """A sentence made safe. Parts that came from a file may be escaped already: a backslash is not doubled again."""
    return show_literal(text[:_LIMIT])


def command(hint: str, path: str) -> str:
    """The command of a hint with the file's own path, ready to paste."""
    return hint.replace("FILE", show(quote(path), None), 1)
