"""`ckpt explain` as text: a page wrapped at words, and the list of pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.commands.inspect.numbering import numbering_lines
from ckpt.ext.explain import Explanation, Page, has_error, has_warning
from ckpt.ext.explain.asking import is_asking
from ckpt.ext.explain.case import Answer, Shapes, Statement
from ckpt.model.text import and_more, show
from ckpt.surface.text.lines import (
    Line,
    expression_lines,
    hanging_lines,
    lined_up,
    wrap_text,
)

_WIDEST = 100
"""Columns beyond which a paragraph is hard to read."""
_PIPE = 80
_MOST_NAMES = 12
"""Names below a statement that are shown."""
_NO_PAGE = "No page knows this error. The file itself says:"
_QUESTION = "A question. The file itself says:"
_NO_ERROR = "No error in this text that a page knows. The file itself says:"


def page_lines(page: Page, width: int | None) -> list[Line]:
    """One page: what it is, its paragraphs, and commands on lines of their own."""
    width = min(width or _PIPE, _WIDEST)
    out: list[Line] = []
    if page.code is not None:
        commands = and_more(page.code.by, len(page.code.by))
        out.append(
            [
                (page.code.code, page.code.level),
                (f"  {page.code.level}, made by ckpt {commands}", ""),
            ]
        )
    else:
        out.append([(page.title, "head")])
        for message in page.messages:
            out.append([])
            out += [
                [(f"  {line}", "")]
                for text in message.splitlines()
                for line in _hanging_lines(text.strip(), width - 2)
            ]
    return [*out, *_body_lines(page, width)]


def _body_lines(page: Page, width: int, *, commands: bool = True) -> list[Line]:
    """The paragraphs of a page, with or without its commands."""
    out: list[Line] = []
    last = ""
    for block in page.body:
        if not commands:
            if block.kind == "command":
                continue
            if block.text.endswith(":"):  # the command that it introduces is not shown
                block = block._replace(text=block.text[: block.text.rfind(". ") + 1])
            if not block.text:
                continue
        # Items of one list follow each other without an empty line.
        if last != "item" or block.kind != "item":
            out.append([])
        if block.kind == "command":
            out.append([(f"  {block.text}", "command")])
        else:
            lead = "- " if block.kind == "item" else ""
            first, *more = wrap_text(lead + block.text, width, len(lead))
            out.append([(first, "")])
            out += [[(" " * len(lead) + line, "")] for line in more]
        last = block.kind
    return out


def answer_lines(found: Explanation, width: int | None) -> list[Line]:
    """The answer of a checkpoint to an error first, then the cause as the page tells
    it.

    Without a checkpoint the page has the commands, and what the names of the error say
    stands before them.
    """
    answer = found.answer
    assert answer is not None
    narrow = min(width or _PIPE, _WIDEST)
    head = show(f"{answer.path}: ", None) if answer.path else ""
    is_error = has_error(found.text) or has_warning(found.text)
    title = _NO_PAGE if is_error else _NO_ERROR
    if not is_error and is_asking(found.text):
        title = _QUESTION
    if found.page is not None:
        title = found.page.title
    rows = answer.statements
    if found.page is not None and rows and rows[0].refutes:
        # The title says what the error means, which is not so of this file.
        rows = (rows[0]._replace(text=f"{head}{rows[0].text}"), *rows[1:])
        head = ""
    out: list[Line] = [[(f"{head}{title}", "head")]]
    if answer.numbering is not None:
        out += [[], *numbering_lines(answer.numbering, width)]
    if answer.shapes:
        out += [[], *_shape_lines(answer, width)]
    for statement in rows:
        out += [[], *_statement_lines(statement, narrow, width)]
    if found.page is not None and found.page.code is None:
        # The commands of a page are for any file; the answer has those for this one.
        has_own = bool(answer.path) or any(row.command for row in answer.statements)
        out += _body_lines(found.page, narrow, commands=not has_own)
    return out


def _shape_lines(answer: Answer, width: int | None) -> list[Line]:
    rows = [["NAME", "CHECKPOINT", "MODEL"]]
    for row in _fold_layers(answer.shapes):
        in_file = "not there" if row.file is None else str(list(row.file))
        rows.append([show(row.name, None), in_file, str(list(row.model))])
    return lined_up(rows, 0, width=width)


_MANY_NAMES = 8
"""Names from which on layers fold into one line."""
_NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.)")
"""The number of a layer between the dots of a name."""


def _fold_layers(shapes: Sequence[Shapes]) -> list[Shapes]:
    """Shapes with the layers that differ in their number alone as one row:
    `layers.0-17.norm.weight`.
    """
    groups: dict[tuple[object, ...], list[Shapes]] = {}
    for row in shapes:
        # Layers of other shapes stay rows of their own.
        groups.setdefault((_NUMBER.sub("#", row.name), row.file, row.model), []).append(
            row
        )
    out: list[Shapes] = []
    for rows in groups.values():
        name = _name_of_layers([row.name for row in rows])
        out += rows if name is None else [rows[0]._replace(name=name)]
    return out


def _name_of_layers(names: Sequence[str]) -> str | None:
    """One name for layers whose numbers follow each other at one place of their names,
    or None.
    """
    # All names are one template here, so each has as many numbers.
    numbers = [[int(match[0]) for match in _NUMBER.finditer(name)] for name in names]
    varying = [
        place
        for place, values in enumerate(zip(*numbers, strict=True))
        if len(set(values)) > 1
    ]
    # Two numbers that vary, as of blocks and of layers in them, are no range.
    if len(varying) != 1:
        return None
    values = [row[varying[0]] for row in numbers]
    # A range with a gap would name layers that do not differ.
    if values != list(range(values[0], values[0] + len(values))):
        return None
    match = [*_NUMBER.finditer(names[0])][varying[0]]
    return (
        f"{names[0][: match.start()]}{values[0]}-{values[-1]}{names[0][match.end() :]}"
    )


def _statement_lines(
    statement: Statement, narrow: int, width: int | None
) -> list[Line]:
    """A statement, its names one per line, and its command."""
    out = (
        [[(line, "")] for line in wrap_text(statement.text, narrow, 0)]
        if statement.text
        else []
    )
    out += [[(f"  {line}", "")] for line in _name_lines(statement.names)]
    if statement.command is not None:
        out += expression_lines(statement.command, width)
    return out


def _name_lines(names: Sequence[str]) -> Iterator[str]:
    """Names for a screen, one per line. Of many, those that differ by the number of
    their layer alone are one line, and the rest is counted.
    """
    rows = [(name, 1) for name in names]
    if len(names) > _MANY_NAMES:
        rows = _fold_names(names)
    for name, count in rows[:_MOST_NAMES]:
        yield show(name, None) if count == 1 else f"{show(name, None)}  ×{count:,}"
    left = sum(count for _, count in rows[_MOST_NAMES:])
    if left:
        yield f"and {left:,} more (--json lists all)"


def _fold_names(names: Sequence[str]) -> list[tuple[str, int]]:
    """Names with the layers that differ in their number alone as one, and how many
    each stands for.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("#", name), []).append(name)
    rows: list[tuple[str, int]] = []
    for group in groups.values():
        folded = _name_of_layers(group)
        if folded is None:
            rows += [(name, 1) for name in group]
        else:
            rows.append((folded, len(group)))
    return rows


def _hanging_lines(text: str, width: int) -> list[str]:
    first, *more = wrap_text(text, width)
    return [first, *(f"  {line}" for line in more)]


def list_lines(pages: Sequence[Page], width: int | None) -> list[Line]:
    """Every page: the codes with their levels, then the errors."""
    codes = [page.code for page in pages if page.code is not None]
    size = max((len(row.code) for row in codes), default=4) + 2
    out: list[Line] = [[(f"{'CODE':<{size}}{'LEVEL':<9}FINDING", "head")]]
    for row in codes:
        head: Line = [
            (row.code, row.level),
            (" " * (size - len(row.code)), ""),
            (f"{row.level:<9}", ""),
        ]
        out += hanging_lines(head, row.title, width)
    out += [[], [("ERRORS OF PYTORCH", "head")]]
    for page in pages:
        if page.code is None:
            out += hanging_lines([], page.word, width, 2)
    return out
