"""Lines of styled text, and columns of them. Never prints, never asks how wide the
screen is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ckpt.model.findings import Finding
from ckpt.model.names import LazyPattern, are_series, short_labels
from ckpt.model.rows import NamedTuple
from ckpt.model.text import FORMULA, shared_prefix_length, show_cell, show_literal

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
    texts: list[str] = []
    for line in lines:
        text = "".join(span for span, _ in line)
        texts.append(f"{text.rstrip()}\n")
    return "".join(texts)


def line_cells(line: Line) -> int:
    """Cells of a terminal that a line takes when it is written."""
    return sum(cells(text) for text, _ in line)


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
    # The cells that each column insists on.
    wanted: list[int] = []
    for head, size in zip(heads, _column_widths(heads, rows), strict=True):
        wanted.append(size if head.least is None else min(size, head.least))
    for rank in sorted({head.given_up for head in heads if head.given_up}):
        if width is None or _table_width([wanted[i] for i in kept]) <= width:
            break
        kept = [i for i in kept if heads[i].given_up != rank]
    kept_rows: list[Sequence[str]] = [[row[i] for i in kept] for row in rows]
    return [heads[i] for i in kept], kept_rows


def given_up_lines(
    heads: Sequence[Column],
    kept: Sequence[Column],
    width: int | None,
    form: str = "--tsv",
) -> list[Line]:
    """The line below a table that names the columns for which the screen has no room.

    `form` is the option that prints all of them. No line where all are shown.
    """
    names = [head.name for head in heads if head not in kept]
    if not names:
        return []
    text = f"… no room for {', '.join(names)} ({form}, or a wider screen)"
    return hanging_lines([], text, width, 2, "dim")


def _column_widths(heads: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """The cells that the widest text of each column takes, its title included."""
    columns = zip(*rows, strict=True) if rows else [()] * len(heads)
    widths: list[int] = []
    for head, texts in zip(heads, columns, strict=True):
        widths.append(max(map(cells, (head.name, *texts))))
    return widths


def _table_width(widths: Sequence[int]) -> int:
    """The cells of a table with columns of these widths, two blanks between each."""
    return sum(widths) + 2 * (len(widths) - 1)


def column_lines(
    heads: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None = None
) -> list[Line]:
    """Return aligned columns below their titles. Columns that give way are shortened to
    fit `width`, the widest first.

    Without a width they take at most `NAME` cells: nobody's long key pushes the numbers
    away.
    """
    widths = _column_widths(heads, rows)
    giving = [i for i, head in enumerate(heads) if head.gives_way]
    if width is None:
        level = NAME
    else:
        room = width - _table_width(widths) + sum(widths[i] for i in giving)
        # The most cells of a column that gives way.
        level = max(_fair_width([widths[i] for i in giving], room), _LEAST)
    texts = [list(row) for row in rows]
    for i in giving:
        if heads[i].is_file and width is None:
            continue
        names = [row[i] for row in texts]
        if heads[i].is_file:
            names = fit_file_names(names, min(widths[i], level))
            widths[i] = max(map(cells, (heads[i].name, *names)))
        else:
            widths[i] = min(widths[i], level)
            names = shorten_apart(names, widths[i])
        for row, name in zip(texts, names, strict=True):
            row[i] = name
    titles = [head.name for head in heads]
    lines = [_padded_line(heads, titles, widths, ["head"] * len(heads))]
    styles = [head.style for head in heads]
    lines += [_padded_line(heads, row, widths, styles) for row in texts]
    return lines


def _padded_line(
    heads: Sequence[Column],
    row: Sequence[str],
    widths: Sequence[int],
    styles: Sequence[str],
) -> Line:
    """A row of a table, its cells filled up to the widths of their columns."""
    line: Line = []
    for head, text, size, style in zip(heads, row, widths, styles, strict=True):
        blanks = " " * (size - cells(text))
        padded = f"{blanks}{text}" if head.right else f"{text}{blanks}"
        is_last = len(line) == len(row) - 1
        if not is_last:
            padded += "  "
        line.append((padded, style))
    return line


def shorten_apart(names: Sequence[str], width: int) -> list[str]:
    """Return shortened names. Those that end as another name does keep the part that
    tells them apart, or else their begins, and are without their middles.
    """
    # Shortened from the left: the end of a name says most.
    short = {name: shorten_name(name, width) for name in names}
    if all(name == text for name, text in short.items()):
        return list(names)
    told: dict[str, str] = {}
    for alike in _names_of_one_end(short):
        told |= _with_first_difference(sorted(alike), width)
    wanted = {name: told.get(name, text) for name, text in short.items()}
    counts = Counter(wanted.values())
    alone = Counter(short.values())
    # Names that differ in numbers alone, as those of layers do.
    torn: dict[str, list[str]] = {}
    for name in names:
        if counts[wanted[name]] > 1 and alone[short[name]] > 1:
            torn.setdefault(re.sub(r"\d+", "0", name), []).append(name)
    forms: dict[str, str] = {}
    for ends_alike in torn.values():
        forms |= _with_every_difference(ends_alike, width)
    apart: list[str] = []
    for name in names:
        if counts[wanted[name]] == 1:
            apart.append(wanted[name])
        elif alone[short[name]] == 1:
            apart.append(short[name])
        else:
            apart.append(forms.get(name) or cut(name, width))
    return apart


def _names_of_one_end(short: Mapping[str, str]) -> Iterator[set[str]]:
    """Yield the names that end as one that is shortened from the left does, where these
    are several. `short` maps names to what is shown.
    """
    ends: dict[int, dict[str, set[str]]] = {}
    # Ends that begin in the middle of a part of the name, by their letters.
    torn: dict[int, dict[str, set[str]]] = {}
    for name, text in short.items():
        if text != name and text.lstrip(" ").startswith("…"):
            end = text.lstrip(" ")[1:]
            # Ends of one number of parts are looked up together, and so are torn ones
            # of one length.
            if name.endswith(f".{end}"):
                ends.setdefault(end.count(".") + 1, {}).setdefault(end, set())
            else:
                torn.setdefault(len(end), {}).setdefault(end, set())
    for count, found in ends.items():
        for name in short:
            end = ".".join(name.lstrip(" ").split(".")[-count:])
            if end in found:
                found[end].add(name)
        yield from (alike for alike in found.values() if len(alike) > 1)
    for size, found in torn.items():
        for name in short:
            if name[-size:] in found:
                found[name[-size:]].add(name)
        yield from (alike for alike in found.values() if len(alike) > 1)


def _with_first_difference(names: Sequence[str], width: int) -> dict[str, str]:
    """Give names that end alike a form of at most `width` cells that keeps the first
    parts in which they differ: `…text_model…0.attn.weight`. Those without room have
    none.
    """
    rows = [name.lstrip(" ").split(".") for name in names]
    shortest = min(map(len, rows))
    differs = [len({row[i] for row in rows}) > 1 for i in range(shortest)]
    if True not in differs:
        return {}
    first = differs.index(True)
    behind = first + 1
    while behind < shortest and differs[behind]:
        behind += 1
    # A long word may differ in its number alone: `block_number_0007`.
    begin = _words_alike([row[first] for row in rows])
    forms: dict[str, str] = {}
    for name, row in zip(names, rows, strict=True):
        indent = " " * (len(name) - len(name.lstrip(" ")))
        # All parts that differ, the first of them, or the last words of it.
        for end, skipped in ((behind, 0), (first + 1, 0), (first + 1, begin)):
            words = ".".join(row[first:end])[skipped:]
            start = indent + ("…" if first or skipped else "") + words
            form = _with_end(start, row[end:], width)
            if form is not None:
                forms[name] = form
                break
    return forms


def _with_every_difference(names: Sequence[str], width: int) -> dict[str, str]:
    """Give names that end alike a form of at most `width` cells that keeps all words in
    which they differ, also behind underscores: `…0_attentions_1…ff_net_0_proj`. None
    has one where the words are of another number, or have no room.
    """
    rows = [re.split(r"([._])", name) for name in names]
    if len({len(row) for row in rows}) > 1:
        return {}
    count = len(rows[0])
    differs = [i for i in range(count) if len({row[i] for row in rows}) > 1]
    if not differs:
        return {}
    first, behind = differs[0], differs[-1] + 1
    forms: dict[str, str] = {}
    for name, row in zip(names, rows, strict=True):
        indent = " " * (len(name) - len(name.lstrip(" ")))
        start = indent + ("…" if first else "") + "".join(row[first:behind]).lstrip(" ")
        end = "".join(row[behind:])
        room = width - cells(start)
        if len(end) > room:
            if room < 2:
                return {}
            end = f"…{end[1 - room :]}"
        forms[name] = start + end
    return forms


def _words_alike(parts: Sequence[str]) -> int:
    """Return how many letters of some parts of names are the words with which all of
    them begin, up to an underscore.
    """
    return parts[0].rfind("_", 0, shared_prefix_length(parts)) + 1


def _with_end(start: str, rest: Sequence[str], width: int) -> str | None:
    """Return a begin and as many of the last parts of a name as have room beside it, or
    None where no part has.
    """
    whole_name = ".".join((start, *rest))
    if cells(whole_name) <= width:
        return whole_name
    for count in range(len(rest) - 1, 0, -1):
        form = f"{start}…{'.'.join(rest[-count:])}"
        if cells(form) <= width:
            return form
    return None


def _fair_width(widths: Sequence[int], room: int) -> int:
    """The most cells that each of some columns may take, so that all together take
    `room`.
    """
    # From the narrowest on each column gets what it wants, as long as all the others
    # could have as much. The rest is shared by those that want more.
    for index, size in enumerate(sorted(widths)):
        columns_left = len(widths) - index
        if size * columns_left >= room:
            return room // columns_left
        room -= size
    # All fit, so none gives way.
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
    kept = _filled_columns(rows) or [0]
    rows = [[row[i] for i in kept] for row in rows]
    right = frozenset(kept.index(i) for i in right if i in kept)
    sizes = [[cells(text) for text in column] for column in zip(*rows, strict=True)]
    widths = _ragged_widths(sizes, width)
    titles, *body = rows
    # The titles of columns whose texts have lines of their own are left out: these
    # texts stand under no title.
    lines: list[Line] = [
        [(text, "head")] for text in _ragged_row(titles, widths, right, width, True)
    ]
    for row in body:
        texts = _ragged_row(row, widths, right, width, False)
        lines += [[(text, "")] for text in texts]
    return lines


def _filled_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns that have a text below their title."""
    columns = range(len(rows[0]))
    return [i for i in columns if any(row[i] for row in rows[1:])]


def _ragged_row(
    row: Sequence[str],
    widths: Sequence[int],
    right: frozenset[int],
    width: int | None,
    ends_early: bool,
) -> list[str]:
    """The lines of one row in ragged columns. With `ends_early` it is one line, and the
    first text without room ends it.
    """
    lines: list[str] = []
    line, used = "", 0
    column_start = 0
    for i, text in enumerate(row):
        size = cells(text)
        begin = column_start
        if i in right:
            begin += widths[i] - size
        # A wider cell before it moves the text to the right.
        begin = max(begin, used + 2 if used else 0)
        column_start += widths[i] + 2
        if not text:
            continue
        if width is None or begin + size <= width:
            line += " " * (begin - used) + text
            used = begin + size
            continue
        if ends_early:
            break
        longest_word = max(map(cells, text.split(" ")))
        if begin + longest_word <= width or begin == _HANGS:
            # It is broken at blanks, and its lines stand below each other.
            hangs = begin
            line += " " * (begin - used)
        else:
            # Not even one word fits behind the others, so it has lines of its own.
            hangs = _HANGS
            if line:
                lines.append(line)
            line = " " * hangs
        first, *further = wrap_text(text, width - hangs, 0)
        broken = [line + first]
        broken += [" " * hangs + part for part in further]
        lines += broken[:-1]
        line = broken[-1]
        used = cells(line)
    lines.append(line)
    return lines


def lined_up(
    rows: Sequence[Sequence[str]],
    name: int,
    *,
    right: frozenset[int] = frozenset(),
    width: int | None = None,
) -> list[Line]:
    """Rows as columns that always line up; the first row is the header. No text is
    shortened.

    Where the columns do not fit, the column of names, `name`, comes last: a long name
    is whole, and moves nothing. A list of names is broken at its spaces.
    """
    sizes = {i: max(cells(row[i]) for row in rows) for i in _filled_columns(rows)}
    if name not in sizes:
        return ragged_lines(rows, right=right, width=width)
    if width is None:
        fits = sizes[name] <= NAME
    else:
        fits = _table_width(list(sizes.values())) <= width
    if fits:
        return ragged_lines(rows, right=right, width=width)
    lines: list[Line] = []
    for row in rows:
        text = ""
        for i, size in sizes.items():
            if i == name:
                continue
            blanks = " " * (size - cells(row[i]))
            text += f"{blanks}{row[i]}  " if i in right else f"{row[i]}{blanks}  "
        style = "" if lines else "head"
        # A list of names goes on below its column; one long name is left whole.
        is_list = " " in row[name]
        lines += hanging_lines(
            [(text, style)], row[name], width if is_list else None, style=style
        )
    return lines


def _ragged_widths(sizes: Sequence[Sequence[int]], width: int | None) -> list[int]:
    """Widths of columns, whose cells have these sizes: all of each, or where that is
    too much, what most of it needs.
    """
    widest = [max(column) for column in sizes]
    if width is None:
        return [min(size, NAME) for size in widest]
    usual: list[int] = []
    for column, size in zip(sizes, widest, strict=True):
        if size <= _LEAST:
            usual.append(size)
        else:
            usual.append(max(_usual_size(column[1:]), column[0]))
    room = width - _table_width(usual)
    widths: list[int] = []
    for size, usual_size in zip(widest, usual, strict=True):
        # No column takes more than half of the screen from the others.
        more = max(min(size - usual_size, width // 2 - usual_size, room), 0)
        room -= more
        widths.append(min(usual_size + more, width))
    return widths


def _usual_size(sizes: Sequence[int]) -> int:
    """Return the size that three of four sizes do not exceed. Sizes of 0 do not
    count.
    """
    filled = sorted(size for size in sizes if size)
    if not filled:
        return 0
    # The largest of three quarters of the sizes, rounded up: of 4 sizes the third, of 5
    # the fourth.
    quarters = -(-3 * len(filled) // 4)
    return filled[quarters - 1]


class Written:
    """The function that gives a text as stdout will write it, where its encoding lacks
    characters; or None.
    """

    form: Callable[[str], str] | None = None


def as_written(text: str) -> str:
    """Return a text with the stand-ins and escapes of what the encoding of stdout
    lacks.
    """
    if Written.form is None or text.isascii():
        return text
    return Written.form(text)


def cells(text: str) -> int:
    """Cells of a terminal that a text takes when it is written: two for wide
    characters.
    """
    if text.isascii():
        return len(text)
    text = as_written(text)
    maybe_wide = [character for character in text if character >= _WIDE]
    if not maybe_wide:
        return len(text)
    # Imported here: it takes a tenth of what inspect adds to the start.
    from unicodedata import east_asian_width

    wide = sum(east_asian_width(character) in "WF" for character in maybe_wide)
    return len(text) + wide


def cut(text: str, width: int) -> str:
    """A text of at most `width` cells, its middle left out, because names differ at
    their ends.
    """
    if cells(text) <= width:
        return text
    head = (width - 1) // 2
    tail = width - 1 - head
    # Wide characters take two cells, so that a slice may be too long.
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
    indent = " " * (len(name) - len(bare))
    room = width - len(indent)
    short = drop_siblings(bare, room)
    if short is not None:
        return indent + short
    room = max(room - 1, 1)  # one cell for the ellipsis
    kept = bare[-room:]
    while cells(kept) > room:
        kept = kept[1:]
    # It begins at a dot, unless that would throw away more than half of the room.
    behind_dot = kept.partition(".")[2]
    if 2 * cells(behind_dot) >= room:
        kept = behind_dot
    return f"{indent}…{kept}"


def drop_siblings(name: str, width: int) -> str | None:
    """A name of at most `width` cells with fewer siblings in its braces, or None where
    that is not enough.
    """
    head, _, rest = name.partition("{")
    inside, _, tail = rest.partition("}")
    items = inside.split(",")
    for count in range(len(items) - 1, 0, -1):
        siblings = ",".join(items[:count])
        short = f"{head}{{{siblings},…}}{tail}"
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
    ways = [_last_folders, _outer_folders, cut, _keep_head, _keep_tail]
    short = list(names)
    if are_series(names):
        # Labels have no folders to lose.
        ways = [way for way in ways if way not in (_last_folders, _outer_folders)]
        short = short_labels(names)
    for shorten in ways:
        texts = [shorten(name, width) for name in short]
        if len(set(texts)) == len(set(names)):
            return texts
    apart = _shorten_in_several_ways(short, ways, width)
    return [apart[name] for name in short]


def _shorten_in_several_ways(
    names: Sequence[str], ways: Sequence[Callable[[str, int], str]], width: int
) -> dict[str, str]:
    """Return a text for each name: the first of the ways that no other name shares, or
    the whole name.
    """
    texts: dict[str, str] = {}
    left = list(dict.fromkeys(names))
    for shorten in ways:
        tried = {name: shorten(name, width) for name in left}
        counts = Counter([*tried.values(), *texts.values()])
        texts |= {name: text for name, text in tried.items() if counts[text] == 1}
        left = [name for name in left if name not in texts]
    return texts | {name: name for name in left}


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


def _outer_folders(path: str, width: int) -> str:
    """The first folder of a path and its end, in at most `width` cells:
    `run_a/…/epoch_1.pth`. Cut where these are longer.
    """
    first, slash, rest = path.partition("/")
    if not slash or cells(path) <= width:
        return cut(path, width)
    room = width - cells(first) - 1
    end = _last_folders(rest, room) if room > 1 else ""
    return f"{first}/{end}" if end.startswith("…/") else cut(path, width)


def _keep_head(text: str, width: int) -> str:
    """The begin of a text, in at most `width` cells."""
    if cells(text) <= width:
        return text
    kept = text[:-1]
    while cells(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def _keep_tail(text: str, width: int) -> str:
    """The end of a text, in at most `width` cells."""
    if cells(text) <= width:
        return text
    kept = text[1:]
    while cells(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}"


def hanging_lines(
    head: Line, text: str, width: int | None, indent: int | None = None, style: str = ""
) -> list[Line]:
    """A text behind `head`, broken at spaces to fit `width`; the lines after the first
    are indented.

    The indent is the width of the head, unless another is given.
    """
    size = line_cells(head)
    if indent is None:
        indent = size
    # Letters stand for the head, so that the text is broken as if the head were a part
    # of its first word.
    stand_in = "x" * size if text else ""
    first, *further = wrap_text(stand_in + text, width, indent)
    lines: list[Line] = [[*head, (first[size:], style)]]
    for line in further:
        lines.append([(" " * indent, ""), (line, style)])
    return lines


def flowing_lines(
    head: Line, pieces: Sequence[str], width: int | None, indent: int | None = None
) -> list[Line]:
    """Pieces behind `head`, with dots between them, in lines of at most `width` cells;
    no piece that fits is broken.
    """
    used = line_cells(head)
    if indent is None:
        indent = used
    lines: list[Line] = []
    line = [*head]
    dot = ""
    for piece in pieces:
        needed = used + cells(dot + piece)
        # A line that has nothing but its indent is not ended: a piece that does not fit
        # there fits nowhere.
        if width is not None and needed > width and used > indent:
            lines.append(line)
            line, dot = [(" " * indent, "")], ""
            needed = indent + cells(piece)
        if width is not None and needed > width:
            *broken, line = hanging_lines(line, piece, width, indent)
            lines += broken
        else:
            line.append((dot + piece, ""))
        used = line_cells(line)
        dot = " · "
    return [*lines, line]


def height_of(lines: Sequence[Line], width: int | None) -> int:
    """The rows that lines take on a screen, which breaks those that are too long."""
    if width is None:
        return len(lines)
    height = 0
    for line in lines:
        rows = -(-line_cells(line) // max(width, 1))  # rounded up
        height += max(rows, 1)
    return height


def pasted_line(command: str, width: int | None, indent: int = 2) -> Line:
    """A command or an expression on its own line, whole, to be copied; indented less
    where it would not fit.
    """
    if width is not None and indent + cells(command) > width:
        indent = min(indent, 2)
    return [(" " * indent, ""), (command, "command")]


def expression_lines(expression: str, width: int | None, indent: int = 2) -> list[Line]:
    """An expression of Python to be copied: whole on a line, or where none is that
    wide, broken inside of its brackets.

    What is broken is the same expression for Python; what cannot be broken stays whole.
    """
    whole_line = pasted_line(expression, width, indent)
    if width is None or sum(cells(text) for text, _ in whole_line) <= width:
        return [whole_line]
    from ckpt.surface.text.expressions import break_expression  # few are that wide

    code, mark, note = expression.partition("  # ")
    rows = break_expression(code, width - indent, cells)
    if len(rows) == 1 and not mark:
        return [whole_line]
    rows += [f"# {note}"] if mark else []
    return [[(" " * indent, ""), (row, "command")] for row in rows]


_KEPT = "\0"
"""Stands for a blank where no line is broken. No text that is safe to print
holds it.
"""


def whole(text: str) -> str:
    """A text that is not broken at its blanks: a path, a name, a command. For
    `wrap_text`, `hanging_lines` and `break_line`.
    """
    return text.replace(" ", _KEPT)


_TOGETHER = LazyPattern(
    r"(?:\d(?= (?:[%×]|[KMGT]i?B\b|B\b))|(?:^|(?<=[ (]))(?:-o"
    r"|--[a-z][a-z-]*)(?= [^ -])) "
)
"""A number and its unit, an option and its value: the blank between them is no place to
break a line.
"""


def _keep_together(text: str) -> str:
    return _TOGETHER.sub(lambda found: found[0][:-1] + _KEPT, text)


def break_line(line: Line, width: int | None, indent: int = 2) -> list[Line]:
    """A line broken at blanks to fit `width`, with its styles; the lines after the
    first are indented.
    """
    if width is None or line_cells(line) <= width:
        return [[(text.replace(_KEPT, " "), style) for text, style in line]]
    lines: list[Line] = [[]]
    used = blanks = 0
    for number, word in enumerate(_styled_words(line)):
        if number:
            blanks += 1
        size = line_cells(word)
        if not size:
            # Several blanks stand between two columns. They are counted here, and
            # written before the next word, unless it begins a line.
            continue
        if used and used + blanks + size > width:
            lines.append([(" " * indent, "")])
            used, blanks = indent, 0
        if blanks:
            lines[-1].append((" " * blanks, ""))
        lines[-1] += word
        used += blanks + size
        blanks = 0
    return lines


def _styled_words(line: Line) -> list[Line]:
    """The words between the blanks of a line. A word may have parts of several styles,
    or none between two blanks.
    """
    words: list[Line] = [[]]
    for text, style in line:
        for number, part in enumerate(_keep_together(text).split(" ")):
            if number:
                words.append([])
            if part:
                words[-1].append((part.replace(_KEPT, " "), style))
    return words


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
    for word in _keep_together(text).split(" "):
        room = width
        if len(lines) > 1:
            room -= indent
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
    sizes = [len(finding.code) for finding in findings]
    size = max((size for size in sizes if size <= _CODES), default=6)
    lines: list[Line] = []
    for finding in findings:
        lines += finding_lines(finding, width, size)
    return lines


def finding_lines(finding: Finding, width: int | None, size: int = 0) -> list[Line]:
    """A finding: the fact, the consequence, the command. Its code takes `size` cells at
    least.
    """
    indent = (size or len(finding.code)) + 4
    blanks = max(size - len(finding.code), 0) + 2
    head: Line = [("! ", ""), (finding.code, finding.level), (" " * blanks, "")]
    lines = hanging_lines(head, safe_sentence(finding.message), width, indent)
    return lines + follow_lines(finding, width, indent)


def follow_lines(finding: Finding, width: int | None, indent: int) -> list[Line]:
    """The consequence of a finding and the command that helps, which stays whole."""
    lines: list[Line] = []
    if finding.consequence is not None:
        head: Line = [(" " * indent, "")]
        lines += hanging_lines(head, safe_sentence(finding.consequence), width)
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
        # One search in the whole line: hardly any row needs a look at each of its
        # cells, and there may be a million rows.
        formula_cell = re.compile(f"(?:^|\t){FORMULA}")
        for row in rows:
            line = "\t".join(row)
            if formula_cell.search(line):
                line = "\t".join(map(_cell_text, head, row))
            yield line
        return
    from tabulate import tabulate

    body = [list(row) for row in rows]
    if table == "tsv":
        body = [list(map(_cell_text, head, row)) for row in body]
    elif table in ("github", "pipe"):
        head = list(map(_markdown_cell, head))
        body = [list(map(_markdown_cell, row)) for row in body]
    elif table in ("jira", "orgtbl", "pretty", "psql", "presto"):
        # These formats draw `|` between their columns.
        body = [[cell.replace("|", "\\|") for cell in row] for row in body]
    text: str = tabulate(
        body,
        headers=head if header else (),
        tablefmt=table or "plain",
        # tabulate would round and align texts that look like numbers.
        disable_numparse=True,
    )
    yield from text.split("\n")


def _cell_text(column: str, text: str) -> str:
    if column in _OWN:
        return text
    return show_cell(text, name=column in _NAMES)


def _markdown_cell(text: str) -> str:
    """A cell of a Markdown table: as code where it holds markup, a link, or a
    mention.
    """
    if re.fullmatch(_NO_MARKUP, text) and "www." not in text.lower():
        return text
    # Markdown ends code at as many backticks as began it, so there is one more than the
    # text holds in a row. Then a blank keeps them apart from those of the text.
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
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
        in_brackets = f"({hint})"
        # A short hint is not broken inside of its brackets.
        if 2 * cells(hint) <= width:
            in_brackets = whole(in_brackets)
        return _text_lines(f"{text} {in_brackets}", width)
    lines = _text_lines(text, width)
    if command.start():
        introduction = hint[: command.start()].rstrip()
        hung = hanging_lines([(" " * _INDENT, "")], introduction, width)
        lines += plain_text(hung).splitlines()
    pasted = pasted_line(command[0], width, _INDENT)
    return lines + plain_text([pasted]).splitlines()


def _text_lines(text: str, width: int | None) -> list[str]:
    return plain_text(hanging_lines([], text, width, _INDENT)).splitlines()
