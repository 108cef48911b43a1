"""`ckpt explain` as text: a page wrapped at words, and the list of pages."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.jobs.explain import Page
from ckpt.render.text import Line, hung, wrapped
from ckpt.text import and_more

_WIDEST = 100
"""Columns beyond which a paragraph is hard to read."""
_PIPE = 80


def page_lines(page: Page, width: int | None) -> list[Line]:
    """One page: what it is, its paragraphs, and commands on lines of their own."""
    width = min(width or _PIPE, _WIDEST)
    out: list[Line] = []
    if page.code is not None:
        commands = and_more(page.code.by, len(page.code.by))
        out.append([(page.code.code, page.code.level), (f"  {page.code.level}, made by ckpt {commands}", "")])
    else:
        out.append([(page.title, "head")])
        for message in page.messages:
            out.append([])
            out += [
                [(f"  {line}", "")]
                for text in message.splitlines()
                for line in _hung(text.strip(), width - 2)
            ]
    last = ""
    for block in page.body:
        if last != "item" or block.kind != "item":
            out.append([])
        if block.kind == "command":
            out.append([(f"  {block.text}", "command")])
        else:
            lead = "- " if block.kind == "item" else ""
            first, *more = wrapped(lead + block.text, width, len(lead))
            out.append([(first, "")])
            out += [[(" " * len(lead) + line, "")] for line in more]
        last = block.kind
    return out


def _hung(text: str, width: int) -> list[str]:
    first, *more = wrapped(text, width)
    return [first, *(f"  {line}" for line in more)]


def list_lines(pages: Sequence[Page], width: int | None) -> list[Line]:
    """Every page: the codes with their levels, then the errors."""
    codes = [page.code for page in pages if page.code is not None]
    size = max((len(row.code) for row in codes), default=4) + 2
    out: list[Line] = [[(f"{'CODE':<{size}}{'LEVEL':<9}FINDING", "head")]]
    for row in codes:
        head: Line = [(row.code, row.level), (" " * (size - len(row.code)), ""), (f"{row.level:<9}", "")]
        out += hung(head, row.title, width)
    out += [[], [("ERRORS OF PYTORCH", "head")]]
    for page in pages:
        if page.code is None:
            out += hung([], page.word, width, 2)
    return out
