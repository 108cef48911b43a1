"""Lines of styled text, and columns of them. Never prints, never asks how wide the screen is."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width

Span = tuple[str, str]
"""Text and the name of its style, `` for plain."""
Line = list[Span]


def plain_text(lines: Sequence[Line]) -> str:
    """The lines without their styles, each ended by a newline."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def columns(
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
    styles: dict[int, str] | None = None,
    width: int | None = None,
    give: int = 0,
) -> list[Line]:
    """Rows as aligned columns; the first row is the header. Column `give` gives way to fit `width`."""
    widths = [max((cells(row[i]) for row in rows), default=0) for i in range(len(rows[0]))]
    if width is not None:
        rest = sum(widths) - widths[give] + 2 * (len(widths) - 1)
        widths[give] = max(min(widths[give], width - rest), 16)
    lines: list[Line] = []
    for number, row in enumerate(rows):
        line: Line = []
        for i, text in enumerate(row):
            if i == give:
                text = cut(text, widths[i])
            pad = " " * (widths[i] - cells(text))
            style = "head" if number == 0 else (styles or {}).get(i, "")
            padded = pad + text if i in right else text + pad
            line.append((padded + ("  " if i < len(row) - 1 else ""), style))
        lines.append(line)
    return lines


def cells(text: str) -> int:
    """Cells of a terminal that a text takes: two for wide characters."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int) -> str:
    """A text of at most `width` cells, its middle left out, because names differ at their ends."""
    if cells(text) <= width:
        return text
    head = (width - 1) // 2
    tail = width - 1 - head
    while cells(text[:head]) + 1 + cells(text[len(text) - tail :]) > width and head > 1:
        head, tail = head - 1, tail - 1
    return f"{text[:head]}…{text[len(text) - tail :]}"


def wrapped(text: str, width: int | None, indent: int = 2) -> list[str]:
    """A text broken at spaces into lines of at most `width` cells, those after the first to be indented.

    A word that is longer than a line stays whole. Without a width there is one line.
    """
    if width is None or cells(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        room = width - (indent if len(lines) > 1 else 0)
        if lines and cells(lines[-1]) + 1 + cells(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
