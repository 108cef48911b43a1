"""Lines of styled text, and columns of them. Never prints, never asks how wide the
screen is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ckpt.model.findings import Finding
from ckpt.model.names import are_series, short_labels
from ckpt.model.rows import NamedTuple
from ckpt.model.text import FORMULA, show_cell, show_literal

Span = tuple[str, str]
"""Text and the name of its style, `` for plain."""
Line = list[Span]
NAME = 60
"""Cells of a name in a table, where no screen says how wide it may be."""
_LEAST, _HANGS = 16, 4
_WIDE = "\u1100"
"""The first character that takes two cells."""


def plain_text(lines: Sequence[Line]) -> str:
    """The lines without their styles, each ended by a newline."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


class Column(NamedTuple):
    """A column of a text table: its title, and how it behaves where the screen is
    narrow.
    """

    name: str
    right: bool = False
    """Numbers stand at the right."""
    style: str = ""
    gives_way: bool = False
    """Its cells are shortened to fit."""
    least: int | None = None
    """The most cells that it insists on, before others are given up for it."""
    is_file: bool = False
    """Its cells are the names of files. They are shortened so that they can be found
    again, and without a width not at all.
    """
    given_up: int = 0
    """The place in the order of the columns that a narrow screen does without; 0 is
    never given up.
    """


def narrow_columns(
    heads: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[Column], list[Sequence[str]]]:
    """Return the columns that fit `width` cells, and their rows. Columns go in the
    order of `given_up`, equal ones together.
    """
    kept = list(range(len(heads)))
    sizes = [
        max(cells(text) for text in (head.name, *column))
        for head, column in _columns_with_cells(heads, rows)
    ]
    wanted = [
        size if head.least is None else min(size, head.least)
        for head, size in zip(heads, sizes, strict=True)
    ]
    for rank in sorted({head.given_up for head in heads if head.given_up}):
        if width is None or sum(wanted[i] for i in kept) + 2 * (len(kept) - 1) <= width:
            break
        kept = [i for i in kept if heads[i].given_up != rank]
    return [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]


def given_up_lines(
    heads: Sequence[Column], kept: Sequence[Column], width: int | None
) -> list[Line]:
    """The line below a table that names the columns for which the screen has no room;
    no line where all are shown.
    """
    names = [head.name for head in heads if head not in kept]
    if not names:
        return []
    return hanging_lines(
        [],
        f"… no room for {', '.join(names)} (--tsv, or a wider screen)",
        width,
        2,
        "dim",
    )


def _columns_with_cells(
    heads: Sequence[Column], rows: Sequence[Sequence[str]]
) -> Iterable[tuple[Column, Sequence[str]]]:
    """Yield each column with its cells."""
    return zip(
        heads, zip(*rows, strict=True) if rows else ((),) * len(heads), strict=True
    )


def column_lines(
    heads: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None = None
) -> list[Line]:
    """Return aligned columns below their titles. Columns that give way are shortened to
    fit `width`, the widest first.

    Without a width they take at most `NAME` cells: nobody's long key pushes the numbers
    away.
    """
    widths = [
        max(cells(text) for text in (head.name, *column))
        for head, column in _columns_with_cells(heads, rows)
    ]
    give = [i for i, head in enumerate(heads) if head.gives_way]
    if width is None:
        level = NAME
    else:
        room = (
            width
            - 2 * (len(widths) - 1)
            - sum(size for i, size in enumerate(widths) if i not in give)
        )
        level = max(_fair_width([widths[i] for i in give], room), _LEAST)
    texts = [list(row) for row in rows]
    for i in give:
        if heads[i].is_file and width is None:
            continue
        names = [row[i] for row in texts]
        if heads[i].is_file:
            names = fit_file_names(names, min(widths[i], level))
            widths[i] = max(map(cells, (heads[i].name, *names)))
        else:
            widths[i] = min(widths[i], level)
            names = _tell_apart(
                names, [shorten_name(name, widths[i]) for name in names], widths[i]
            )
        for row, name in zip(texts, names, strict=True):
            row[i] = name
    lines: list[Line] = []
    for number, row in enumerate([[head.name for head in heads], *texts]):
        line: Line = []
        for i, (head, text) in enumerate(zip(heads, row, strict=True)):
            pad = " " * (widths[i] - cells(text))
            padded = pad + text if head.right else text + pad
            line.append(
                (
                    padded + ("  " if i < len(row) - 1 else ""),
                    head.style if number else "head",
                )
            )
        lines.append(line)
    return lines


def _tell_apart(names: Sequence[str], short: Sequence[str], width: int) -> list[str]:
    """Shortened names. Two that became the same keep their begins too, and are without
    their middles.
    """
    whose: dict[str, set[str]] = {}
    for name, text in zip(names, short, strict=True):
        whose.setdefault(text, set()).add(name)
    return [
        text if len(whose[text]) == 1 else cut(name, width)
        for name, text in zip(names, short, strict=True)
    ]


def _fair_width(widths: Sequence[int], room: int) -> int:
    """The most cells that each of some columns may take, so that all together take
    `room`.
    """
    for index, size in enumerate(sorted(widths)):
        if size * (len(widths) - index) >= room:
            return room // (len(widths) - index)
        room -= size
    return max(widths)


def ragged_lines(
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
    width: int | None = None,
) -> list[Line]:
    """Rows as columns in which no text is shortened; the first row is the header.

    Where they do not all fit, a column is as wide as most of its cells, and a wider
    cell moves what is behind it, or is broken at blanks.
    """
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])] or [0]
    rows, right = (
        [[row[i] for i in kept] for row in rows],
        frozenset(kept.index(i) for i in right if i in kept),
    )
    widths = _ragged_widths(
        [[cells(row[i]) for row in rows] for i in range(len(kept))], width
    )
    lines: list[Line] = []
    for number, row in enumerate(rows):
        style = "" if number else "head"
        line, used, start = "", 0, 0
        for i, text in enumerate(row):
            size = cells(text)
            begin = max(
                start + (widths[i] - size if i in right else 0), used + 2 if used else 0
            )
            start += widths[i] + 2
            if not text:
                continue
            if width is None or begin + size <= width:
                line, used = line + " " * (begin - used) + text, begin + size
                continue
            if not number:
                # no room for the names of columns whose texts have lines of their own
                break
            hangs = (
                begin if begin + max(map(cells, text.split(" "))) <= width else _HANGS
            )
            first, *more = wrap_text(text, width - hangs, 0)
            if hangs == begin:
                first = line + " " * (begin - used) + first
            else:
                lines += [[(line, style)]] if line else []
                first = " " * hangs + first
            *full, line = [first, *(" " * hangs + further for further in more)]
            lines += [[(further, style)] for further in full]
            used = cells(line)
        lines.append([(line, style)])
    return lines


def lined_up(
    rows: Sequence[Sequence[str]],
    name: int,
    *,
    right: frozenset[int] = frozenset(),
    width: int | None = None,
) -> list[Line]:
    """Rows as columns that always line up; the first row is the header. No text is
    shortened or broken.

    Where the columns do not fit, the column of names, `name`, comes last: a long name
    is whole, and moves nothing.
    """
    sizes = [
        max(cells(row[i]) for row in rows) if any(row[i] for row in rows[1:]) else 0
        for i in range(len(rows[0]))
    ]
    kept = [i for i, size in enumerate(sizes) if size]
    fits = (
        sizes[name] <= NAME
        if width is None
        else sum(sizes) + 2 * (len(kept) - 1) <= width
    )
    if fits or name not in kept:
        return ragged_lines(rows, right=right, width=width)
    order = [*(i for i in kept if i != name), name]
    lines: list[Line] = []
    for number, row in enumerate(rows):
        text = ""
        for i in order[:-1]:
            blanks = " " * (sizes[i] - cells(row[i]))
            text += f"{blanks}{row[i]}  " if i in right else f"{row[i]}{blanks}  "
        lines.append([(text + row[name], "" if number else "head")])
    return lines


def _ragged_widths(sizes: Sequence[Sequence[int]], width: int | None) -> list[int]:
    """Widths of columns, whose cells have these sizes: all of each, or where that is
    too much, what most of it needs.
    """
    widest = [max(column) for column in sizes]
    if width is None:
        return [min(size, NAME) for size in widest]
    most = [
        size if size <= _LEAST else max(_usual_size(column[1:]), column[0])
        for column, size in zip(sizes, widest, strict=True)
    ]
    room = width - sum(most) - 2 * (len(most) - 1)
    for i, size in enumerate(widest):
        more = max(min(size - most[i], width // 2 - most[i], room), 0)
        most[i], room = most[i] + more, room - more
    return [min(size, width) for size in most]


def _usual_size(sizes: Sequence[int]) -> int:
    """Return the size that three of four sizes do not exceed. Sizes of 0 do not
    count.
    """
    some = sorted(size for size in sizes if size)
    return some[(3 * len(some)) // 4 - (len(some) % 4 == 0)] if some else 0


class Written:
    """The function that gives a text as stdout will write it, where its encoding lacks
    characters; or None.
    """

    form: Callable[[str], str] | None = None


def as_written(text: str) -> str:
    """Return a text with the stand-ins and escapes of what the encoding of stdout
    lacks.
    """
    return text if Written.form is None or text.isascii() else Written.form(text)


def cells(text: str) -> int:
    """Cells of a terminal that a text takes when it is written: two for wide
    characters.
    """
    if text.isascii():
        return len(text)
    text = as_written(text)
    far = [char for char in text if char >= _WIDE]
    if not far:
        return len(text)
    from unicodedata import (
        east_asian_width,
    )  # here: a tenth of what inspect adds to the start

    return len(text) + sum(east_asian_width(char) in "WF" for char in far)


def cut(text: str, width: int) -> str:
    """A text of at most `width` cells, its middle left out, because names differ at
    their ends.
    """
    if cells(text) <= width:
        return text
    head = (width - 1) // 2
    tail = width - 1 - head
    while cells(text[:head]) + 1 + cells(text[len(text) - tail :]) > width and head > 1:
        head, tail = head - 1, tail - 1
    return f"{text[:head]}…{text[len(text) - tail :]}"


def shorten_name(name: str, width: int) -> str:
    """A dotted name of at most `width` cells: fewer siblings in its braces, or
    shortened from the left, at a dot.

    What tells names apart is at their ends. Blanks before the name, which show its
    level, stay.
    """
    if cells(name) <= width:
        return name
    bare = name.lstrip(" ")
    indent, room = name[: len(name) - len(bare)], width - (len(name) - len(bare))
    short = drop_siblings(bare, room)
    if short is not None:
        return indent + short
    room = max(room - 1, 1)
    kept = bare[-room:]
    while cells(kept) > room:
        kept = kept[1:]
    behind = kept.partition(".")[2]
    return f"{indent}…{behind if 2 * cells(behind) >= room else kept}"


def drop_siblings(name: str, width: int) -> str | None:
    """A name of at most `width` cells with fewer siblings in its braces, or None where
    that is not enough.
    """
    head, _, rest = name.partition("{")
    inside, _, tail = rest.partition("}")
    items = inside.split(",")
    for count in range(len(items) - 1, 0, -1):
        short = f"{head}{{{','.join(items[:count])},…}}{tail}"
        if cells(short) <= width:
            return short
    return None


def fit_file_names(names: Sequence[str], width: int) -> list[str]:
    """Names of files that stand together, in at most `width` cells each: those that fit
    are whole.

    Of a series each has its label, `Epoch-100`, for what they share stands above them.
    Else a long name loses its first folders, then its middle, its end or its begin,
    unless two would be the same: what is shown can be found again.
    """
    if max(map(cells, names), default=0) <= width:
        return list(names)
    is_series = are_series(names)
    short = short_labels(names) if is_series else names
    for way in (cut if is_series else _last_folders, cut, _keep_head, _keep_tail):
        texts = [way(name, width) for name in short]
        if len(set(texts)) == len(set(names)):
            return texts
    return list(short)


def _last_folders(path: str, width: int) -> str:
    """The end of a path from a folder on, in at most `width` cells:
    `…/run_a/epoch_1.pth`. Cut where the name is longer.
    """
    if cells(path) <= width:
        return path
    start = path.find("/")
    while start >= 0:
        if cells(path) - cells(path[:start]) + 1 <= width:
            return f"…{path[start:]}"
        start = path.find("/", start + 1)
    return cut(path, width)


def _keep_head(text: str, width: int) -> str:
    """The begin of a text, in at most `width` cells."""
    kept = text
    while cells(kept) > width - (kept != text):
        kept = kept[:-1]
    return kept if kept == text else f"{kept}…"


def _keep_tail(text: str, width: int) -> str:
    """The end of a text, in at most `width` cells."""
    kept = text
    while cells(kept) > width - (kept != text):
        kept = kept[1:]
    return kept if kept == text else f"…{kept}"


def hanging_lines(
    head: Line, text: str, width: int | None, indent: int | None = None, style: str = ""
) -> list[Line]:
    """A text behind `head`, broken at spaces to fit `width`; the lines after the first
    are indented.

    The indent is the width of the head, unless another is given.
    """
    size = sum(cells(part) for part, _ in head)
    indent = size if indent is None else indent
    # The first line is as if the head were a word of it.
    first, *more = wrap_text("x" * size + text if text else "", width, indent)
    return [
        [*head, (first[size:], style)],
        *([(" " * indent, ""), (line, style)] for line in more),
    ]


def flowing_lines(
    head: Line, pieces: Sequence[str], width: int | None, indent: int | None = None
) -> list[Line]:
    """Pieces behind `head`, with dots between them, in lines of at most `width` cells;
    no piece that fits is broken.
    """
    size = sum(cells(part) for part, _ in head)
    indent = size if indent is None else indent
    out: list[Line] = []
    line, used = [*head], size
    is_new = True
    for piece in pieces:
        dot = "" if is_new else " · "
        if (
            width is not None
            and not (is_new and out)
            and used + cells(dot + piece) > width
            and used > indent
        ):
            out.append(line)
            line, used, dot, is_new = [(" " * indent, "")], indent, "", True
        if width is not None and used + cells(dot + piece) > width:
            *lines, line = hanging_lines(line, piece, width, indent)
            out += lines
        else:
            line.append((dot + piece, ""))
        used = sum(cells(part) for part, _ in line)
        is_new = False
    return [*out, line]


def height_of(lines: Sequence[Line], width: int | None) -> int:
    """The rows that lines take on a screen, which breaks those that are too long."""
    if width is None:
        return len(lines)
    return sum(
        max(-(-sum(cells(text) for text, _ in line) // max(width, 1)), 1)
        for line in lines
    )


def pasted_line(command: str, width: int | None, indent: int = 2) -> Line:
    """A command or an expression on its own line, whole, to be copied; indented less
    where it would not fit.
    """
    if width is not None and indent + cells(command) > width:
        indent = min(indent, 2)
    return [(" " * indent, ""), (command, "command")]


_KEPT = "\0"
"""Stands for a blank where no line is broken. No text that is safe to print
holds it.
"""


def whole(text: str) -> str:
    """A text that is not broken at its blanks: a path, a name, a command. For
    `wrap_text`, `hanging_lines` and `break_line`.
    """
    return text.replace(" ", _KEPT)


def break_line(line: Line, width: int | None, indent: int = 2) -> list[Line]:
    """A line broken at blanks to fit `width`, with its styles; the lines after the
    first are indented.
    """
    if width is None or sum(cells(text) for text, _ in line) <= width:
        return [[(text.replace(_KEPT, " "), style) for text, style in line]]
    words: list[Line] = [[]]
    for text, style in line:
        for number, part in enumerate(text.split(" ")):
            if number:
                words.append([])
            if part:
                words[-1].append((part.replace(_KEPT, " "), style))
    out: list[Line] = [[]]
    used = blanks = 0
    for number, word in enumerate(words):
        blanks += bool(number)
        size = sum(cells(text) for text, _ in word)
        if not size:
            # more blanks: between columns they stay, at the begin of a line they do not
            continue
        if used and used + blanks + size > width:
            out.append([(" " * indent, "")])
            used, blanks = indent, 0
        out[-1] += [(" " * blanks, ""), *word] if blanks else word
        used, blanks = used + blanks + size, 0
    return out


def wrap_text(text: str, width: int | None, indent: int = 2) -> list[str]:
    """A text broken at spaces into lines of at most `width` cells, those after the
    first to be indented.

    A word that is longer than a line stays whole. Without a width there is one line.
    """
    return [line.replace(_KEPT, " ") for line in _break_text(text, width, indent)]


def _break_text(text: str, width: int | None, indent: int) -> list[str]:
    if width is None or cells(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        room = width - (indent if len(lines) > 1 else 0)
        if lines and cells(lines[-1]) + 1 + cells(word) <= room:
            lines[-1] += f" {word}"
        elif word or not lines:  # blanks between columns do not begin a line
            lines.append(word)
    return lines


_LIMIT = 2000
"""Characters of one sentence that are shown."""
_CODES = 8
"""Cells for the codes. A longer one takes its own, and the lines below it are indented
as all others.
"""


def findings_lines(findings: Sequence[Finding], width: int | None) -> list[Line]:
    """Findings, broken to fit `width`, their texts below each other. Commands stay
    whole.
    """
    size = max(
        (len(finding.code) for finding in findings if len(finding.code) <= _CODES),
        default=6,
    )
    return [
        line for finding in findings for line in finding_lines(finding, width, size)
    ]


def finding_lines(finding: Finding, width: int | None, size: int = 0) -> list[Line]:
    """A finding: the fact, the consequence, the command. Its code takes `size` cells at
    least.
    """
    indent = (size or len(finding.code)) + 4
    head: Line = [
        ("! ", ""),
        (finding.code, finding.level),
        (" " * max(size - len(finding.code), 0) + "  ", ""),
    ]
    lines = hanging_lines(head, safe_sentence(finding.message), width, indent)
    return lines + follow_lines(finding, width, indent)


def follow_lines(finding: Finding, width: int | None, indent: int) -> list[Line]:
    """The consequence of a finding and the command that helps, which stays whole."""
    lines: list[Line] = []
    if finding.consequence is not None:
        lines += hanging_lines(
            [(" " * indent, "")], safe_sentence(finding.consequence), width
        )
    if finding.hint is not None:
        lines.append(pasted_line(finding.hint, width, indent))
    return lines


def safe_sentence(text: str) -> str:
    """A sentence made safe. Parts that came from a file may be escaped already: a
    backslash is not doubled again.
    """
    return show_literal(text[:_LIMIT])


_TABLES = {"unsafehtml": "html", "latex_raw": "latex"}
"""Formats of tabulate that leave markup as it is -> those that escape it."""
_NAMES = frozenset(("file", "name", "before", "after"))
"""Columns whose text is no number, whatever it looks like."""
_OWN = frozenset(("letter",))
"""Columns that hold nothing of the file."""
_NO_MARKUP = r"(?:[^\W_]|[ .,;/()=+%'…×-]|:(?=[0-9 ])|_(?=[^\W_]))*"


def table_lines(
    rows: Iterable[Sequence[str]], *, tsv: bool, table: str | None, header: bool = True
) -> Iterator[str]:
    """Rows, the first of them the header, as TSV or in a format of tabulate."""
    rows = iter(rows)
    head = next(rows)
    table = _TABLES.get(table or "", table)
    if tsv:
        if header:
            yield "\t".join(head)
        risky = re.compile(f"(?:^|\t){FORMULA}")
        for row in rows:
            line = "\t".join(row)
            yield "\t".join(map(_cell_text, head, row)) if risky.search(line) else line
        return
    from tabulate import tabulate

    if table == "tsv":
        rows = ([*map(_cell_text, head, row)] for row in rows)
    elif table in ("github", "pipe"):
        head, rows = (
            [*map(_markdown_cell, head)],
            ([*map(_markdown_cell, row)] for row in rows),
        )
    elif table in ("jira", "orgtbl", "pretty", "psql", "presto"):
        rows = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    text: str = tabulate(
        [*rows],
        headers=head if header else (),
        tablefmt=table or "plain",
        disable_numparse=True,
    )
    yield from text.split("\n")


def _cell_text(column: str, text: str) -> str:
    return text if column in _OWN else show_cell(text, name=column in _NAMES)


def _markdown_cell(text: str) -> str:
    """A cell of a Markdown table: as code where it holds markup, a link, or a
    mention.
    """
    if re.fullmatch(_NO_MARKUP, text) and "www." not in text.lower():
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


_INDENT = 6
"""Cells of `ckpt: `, below which the further lines hang."""
_COMMAND = r"(?:^|(?<=: ))ckpt [a-z]+ .+"


def talk_lines(text: str, hint: str | None, width: int | None) -> list[str]:
    """A sentence with its hint on one line where that fits; else broken at words, and a
    command on a line of its own.
    """
    line = text if hint is None else f"{text} ({hint})"
    if hint is None or width is None or cells(line) <= width:
        return _text_lines(line, width)
    command = re.search(_COMMAND, hint)
    if command is None:
        return _text_lines(
            f"{text} {whole(f'({hint})') if 2 * cells(hint) <= width else f'({hint})'}",
            width,
        )
    lines = _text_lines(text, width)
    if command.start():
        lead = hanging_lines(
            [(" " * _INDENT, "")], hint[: command.start()].rstrip(), width
        )
        lines += plain_text(lead).splitlines()
    return lines + plain_text([pasted_line(command[0], width, _INDENT)]).splitlines()


def _text_lines(text: str, width: int | None) -> list[str]:
    return plain_text(hanging_lines([], text, width, _INDENT)).splitlines()
