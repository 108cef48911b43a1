"""`ckpt diff` as text: counts, parameters that did not change and why, the findings,
the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from math import isnan

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.order import backwards, is_counter
from ckpt.commands.diff.reasons import ranks_of
from ckpt.commands.diff.rows import (
    STATUSES,
    Bars,
    Row,
    Tied,
    ValueRow,
    bars_that_fit,
    modules,
)
from ckpt.commands.inspect.bars import CELLS, spark_text
from ckpt.commands.inspect.tables import value_text
from ckpt.elements.compare import Change, merge_changes
from ckpt.elements.histogram import Histogram
from ckpt.evidence.adapters import piece_of
from ckpt.evidence.weights import valueless
from ckpt.hooks import has_command
from ckpt.model.checkpoint import Checkpoint, Value
from ckpt.model.text import (
    and_more,
    brace_siblings,
    common_begin,
    counted_noun,
    merge_alike_rows,
    pasted_path,
    shell_word,
    show,
    show_folded_names,
    show_literal,
    show_name,
    show_names,
    size_text,
)
from ckpt.surface.text.lines import (
    NAME,
    Column,
    Line,
    break_line,
    cells,
    column_lines,
    cut,
    drop_siblings,
    findings_lines,
    flowing_lines,
    hanging_lines,
    height_of,
    pasted_line,
    whole,
)
from ckpt.tree.literals import brief_text

LETTERS = {
    "changed": "M",
    "reshaped": "M",
    "retyped": "M",
    "added": "A",
    "removed": "D",
    "renamed": "R",
    "unchecked": "?",
    "same": "=",
}
"""git's letters."""
_COLOURS = {"M": "changed", "A": "added", "D": "removed", "R": "renamed"}
_ROWS = 20
_NOTE = 3000
"""The letters of a note, of which each name in it has at most 200."""
_STANDS_FOR = "… stands for "
_LEAST_NAME = 16
"""The fewest cells that a name is shortened to, so that its row is one line."""
Texts = tuple[str, ...]
"""One thing said at several lengths, the longest first. A row shows the first that fits
its line.
"""
_LEAST = 3
"""Rows of changes that are listed, whatever the screen."""
_SMALL = 12
"""Rows for changes, of which fewer have no room for bars beside what was added, removed
and reshaped.
"""
_VALUES = 12
_VALUE_CELLS = 40
"""Characters of a value that are shown."""
_LONG_VALUE = 400
"""Characters of a value in which its end is looked for."""
_STILL = 24
"""Names of parameters that did not change, with siblings in braces."""
_MERGED = 5000
"""Rows of which the same may be said, and that are compared for it."""
_LOST = 8
_LONE = 8
_TIED = 4
_ROLES = {
    "parameter": "parameters",
    "unknown": "parameters (not sure)",
    "buffer": "buffers",
    "optimizer": "optimizer",
    "other": "other",
}
_MOST_OF_A_CAST = 0.004
"""The relative L2 that no rounding to bfloat16 or float16 makes of usual weights."""


def diff_lines(
    report: DiffReport,
    *,
    width: int | None = None,
    height: int | None = None,
    show_rows: str = "auto",
    stat: bool = False,
    depth: int | None = None,
) -> list[Line]:
    """The report as a person reads it. `show_rows` says which tensors are listed;
    `stat` draws bars instead.

    Of what changed, the rows are listed that are left on a screen of `height` rows.
    Bars are of modules at the deepest place of the names that fits, or at `depth`.
    """
    out = _headline_lines(report, width) + _counter_lines(report, width)
    if backwards(report):
        text = (
            f"{show(report.before.path, 80)} is of a later epoch or step: if both are "
            "saves of one run, the older one comes first:"
        )
        out += hanging_lines([], text, width, 2, "warning")
        out.append(pasted_line(_swapped(report), width))
    for component in report.suggested:
        out += hanging_lines([], f"{component.advice}:", width, 2, "warning")
        out.append(pasted_line(_command_with(report, component.option), width))
    out += _count_lines(report, width)
    if show_rows in ("auto", "unchanged", "frozen", "all"):
        out += _still_lines(report, width, show_rows)
    if report.findings:
        out += [[], *findings_lines(report.findings, width)]
    # The end is made before the rows of tensors, which get what is left of the screen.
    end = _changed_value_lines(report, width)
    notes = [
        *_tied_notes(report),
        *_apart_notes(report),
        *(show(note, _NOTE) for note in report.notes[:_ROWS]),
    ]
    if len(report.notes) > _ROWS:
        notes.append(f"… {len(report.notes) - _ROWS:,} more (--json)")
    notes += _lone_notes(report)
    notes += [f"not compared: {show(name, 200)}" for name in report.unjoined]
    notes += [f"not compared: {text}" for text in report.lost[:_LOST]]
    if len(report.lost) > _LOST:
        notes.append(
            f"not compared: {len(report.lost) - _LOST:,} more that are lost (--json)"
        )
    if notes:
        end.append([])
    for note in notes:
        end += hanging_lines([], note, width, 2)
    end += _adapter_lines(report, width)
    end += hanging_lines([], _verdict_text(report), width, 2, "head")
    used = height_of([*out, *end], width) + 3  # a blank, how many more, and the prompt
    if stat:
        # Two more lines: the header, and what is folded.
        most = _BARS if height is None else min(height - used - 2, _BARS)
        # The bars of buffers and optimizers would hide those of the parameters.
        chosen: Sequence[Row] = [
            row
            for row in report.rows
            if show_rows == "all" or row.role.role in ("parameter", "unknown")
        ]
        # A file may hold no parameters, such as the state of an optimizer.
        chosen = chosen or report.rows
        out += [[], *_bar_lines(chosen, width, most, depth)]
        left = _counts_not_drawn(report, chosen)
        if left:
            text = f"… {', '.join(left)} changed too (--show all)"
            out += hanging_lines([], text, width, 2, "dim")
    # Bars alone are the answer to --stat, unless --show asks for rows too.
    if not (stat and show_rows == "auto"):
        used = height_of([*out, *end], width) + 3
        limit = _ROWS if height is None else max(height - used, _LEAST)
        least_bars = _FEW if height is None else _LEAST_BARS
        out += _change_lines(report, show_rows, width, limit, least_bars)
    return out + end


def _counts_not_drawn(report: DiffReport, drawn: Sequence[Row]) -> list[str]:
    """Count the changed tensors of each group of roles of which no bar is drawn."""
    drawn_roles = {row.role.role for row in drawn}
    texts = []
    for label, roles in _GROUPS.items():
        if drawn_roles.intersection(roles):
            continue
        changed = [
            row
            for row in report.rows
            if row.status == "changed" and row.role.role in roles
        ]
        if changed:
            texts.append(_counted_label(len(changed), label))
    return texts


def _counted_label(count: int, label: str) -> str:
    """Return `14 tensors of the optimizer`, or `1 buffer`."""
    if count == 1:
        # A label is a plural, or has one for its first word but `other`.
        label = re.sub(r"^(other )?(\w+)s\b", r"\1\2", label)
    return f"{count:,} {label}"


def _counter_lines(report: DiffReport, width: int | None) -> list[Line]:
    """The line of the epochs and steps that differ: `epoch 0 → 1 · step 500 →
    1,000`.
    """
    pieces = []
    for row in report.values:
        if is_counter(row):
            change = "".join(text for text, _ in value_change(row))
            pieces.append(f"{show(row.name, 80)} {change}")
    return flowing_lines([], pieces[:_VALUES], width, 2) if pieces else []


def _swapped(report: DiffReport) -> str:
    """Return the command of the comparison the other way round."""
    # A path that no line of a shell can hold is shown as …
    paths = [pasted_path(side.path) or "…" for side in (report.after, report.before)]
    return " ".join(["ckpt diff", *paths])


def _command_with(report: DiffReport, option: str) -> str:
    """Return the command of the comparison with one more option."""
    paths = [pasted_path(side.path) or "…" for side in (report.before, report.after)]
    words = ["ckpt diff", *paths]
    # Without it the pasted command would compare other parts of the files.
    if report.options.section is not None:
        words += ["--section", shell_word(report.options.section) or "…"]
    return " ".join([*words, option])


def _lone_notes(report: DiffReport) -> list[str]:
    """Return one note for each file about what it alone has: sections and values."""
    notes: list[str] = []
    rest = list(report.not_compared)
    # Each path once: a file may be compared with itself.
    for path in dict.fromkeys((report.before.path, report.after.path)):
        ending = f" of {path}"
        names = [name.removesuffix(ending) for name in rest if name.endswith(ending)]
        rest = [name for name in rest if not name.endswith(ending)]
        if names:
            whose = show(path, 80)
            notes.append(
                f"not compared: {show_names(names, _LONE)} of {whose} (not in the "
                "other file)"
            )
    return notes + [
        f"not compared: {show(name, 120)} (not in the other file)" for name in rest
    ]


def _adapter_lines(report: DiffReport, width: int | None) -> list[Line]:
    """Return the note that one file is an adapter, where nothing of the two meets,
    and the command that merges it.
    """
    ours = [row.before for row in report.rows if row.before is not None]
    theirs = [row.after for row in report.rows if row.after is not None]
    # A row with both sides counts twice: then some tensors of the two do meet.
    if not ours or not theirs or len(ours) + len(theirs) != len(report.rows):
        return []
    places = [report.before.path, report.after.path]
    are_adapters = [
        all(piece_of(entry.name) is not None for entry in side)
        for side in (ours, theirs)
    ]
    if sum(are_adapters) != 1:
        return []
    # `ckpt merge` takes the base first.
    if are_adapters[0]:
        places.reverse()
    base, adapter = [pasted_path(place) or "FILE" for place in places]
    text = f"{show(places[1], 80)} is an adapter: its weights are added to a base"
    lines = hanging_lines([], text, width, 2)
    if has_command("merge"):
        lines.append(pasted_line(f"ckpt merge {base} {adapter} -o OUT", width))
    return lines


def _tied_notes(report: DiffReport) -> list[str]:
    """Return one note for each name of one file that is another name of a tensor that
    both files hold.
    """
    notes = []
    for row in report.tied[:_TIED]:
        side, other = (show(side.path, 80) for side in _tied_sides(report, row))
        one, two = show(row.name, 80), show(row.of, 80)
        notes.append(f"tied: {one} is {two} in {side}; {other} has it under one name")
    if len(report.tied) > _TIED:
        notes.append(f"tied: {len(report.tied) - _TIED:,} more (--json)")
    return notes


def _tied_sides(report: DiffReport, row: Tied) -> tuple[Checkpoint, Checkpoint]:
    """Return the file that has both names of a tied tensor, and the other file."""
    if row.is_before:
        return report.before, report.after
    return report.after, report.before


def _apart_notes(report: DiffReport) -> list[str]:
    """Return the note that the files hold other parts of tensors, which are not
    compared.
    """
    apart = [row for row in report.rows if row.apart]
    if not apart:
        return []
    numbers = ranks_of(apart)
    # Without the ranks one file may hold a part and the other the whole tensor.
    whose = "other ranks, or the whole"
    if numbers:
        whose = f"rank {numbers[0]} and rank {numbers[1]} of one mesh"
    count = counted_noun(len(apart), "tensor")
    return [f"not compared: {count} of which each file holds another part ({whose})"]


def _headline_lines(report: DiffReport, width: int | None) -> list[Line]:
    count_before = sum(row.before is not None for row in report.rows)
    count_after = sum(row.after is not None for row in report.rows)
    count = f"{count_before:,} and {count_after:,} tensors"
    if count_before == count_after:
        count = f"{counted_noun(count_before, 'tensor')} each"
    head = f"{show(report.before.path, None)} → {show(report.after.path, None)}   "
    pieces = [count]
    aligned = []
    for pair in report.pairs:
        for prefix, mark in zip(pair.prefixes, ("before", "after"), strict=True):
            if prefix:
                aligned.append(f"{prefix}* → * ({mark})")
        # A renamed start of the names is such a prefix, and is said above.
        aligned += [rename.label for rename in pair.renames if rename.kind != "start"]
    if aligned:
        # Several pairs of sections may be aligned in the same way.
        pieces.append(f"aligned: {and_more(list(dict.fromkeys(aligned)), 6)}")
    lines: list[Line] = []
    # All of it is a headline, but for what has a style of its own.
    for line in flowing_lines([(head, "name")], pieces, width, 2):
        lines.append(
            [(text, "head" if style in ("name", "") else style) for text, style in line]
        )
    return lines


def _count_lines(report: DiffReport, width: int | None) -> list[Line]:
    rows = []
    for role, label in _ROLES.items():
        counts = {status: report.count(status, role) for status in STATUSES}
        if not any(counts.values()):
            continue
        # These two are said even when they are 0.
        parts = [f"{counts['changed']:,} changed", f"{counts['same']:,} unchanged"]
        if report.options.structure:
            # Values are not compared: nothing is known to be unchanged.
            parts = [f"{counts['same']:,} same"]
        for status in STATUSES[1:-1]:
            if counts[status]:
                parts.append(f"{counts[status]:,} {status}")
        # No line ends between a number and its word.
        parts = list(map(whole, parts))
        if role == "parameter" and any(_is_by_name(row) for row in report.rows):
            parts.append("(by their names: a state dict does not mark buffers)")
        rows.append((label, "   ".join(parts)))
    size = max((len(label) for label, _ in rows), default=0)
    out: list[Line] = []
    for label, text in rows:
        out += hanging_lines([(label.ljust(size + 3), "name")], text, width)
    return out


def _is_by_name(row: Row) -> bool:
    """Tell whether only the name of a tensor says that it is a parameter."""
    return row.role[:3] == ("parameter", "likely", "name")


def _still_lines(report: DiffReport, width: int | None, which: str) -> list[Line]:
    """Parameters that did not change, by the reason; empty when no parameter changed.

    By default the findings say it of most of them, and it is not said again.
    """
    moved = any(row.status == "changed" for row in report.rows)
    # That finding says already that no parameter changed.
    if which == "auto" and any(row.code == "step-skipped" for row in report.findings):
        return []
    # The finding `frozen` names these.
    told = set(report.frozen) if which == "auto" else set()
    still: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status != "same" or row.reason is None or row.name in told:
            continue
        still.setdefault(row.reason, []).append(row.label)
    if not still or not moved or report.options.structure:
        return []
    out: list[Line] = [[], [("unchanged parameters", "head")]]
    for reason, names in still.items():
        out += hanging_lines([("  ", "")], f"{reason} ({len(names):,}):", width, 2)
        if which == "auto":
            text = show_folded_names(names, _STILL, 200)
            if len(names) > _STILL and " more" in text:
                text += " (--show unchanged)"
        else:
            # `whole` keeps a name on one line, so that it can be copied.
            shown_names = brace_siblings([show(name, None) for name in names])
            text = ", ".join(map(whole, shown_names))
        out += hanging_lines([("    ", "")], text, width, 4)
    return out


def _name_size(rows: Sequence[tuple[str, Texts]], width: int | None) -> int:
    """Cells of the column of names beside some texts: as many as the longest one, if
    all short texts fit beside it.
    """
    longest = max((cells(name) for name, _ in rows), default=0)
    if width is None:
        return min(longest, NAME)
    # The last text of a row is its shortest one.
    widest = max((cells(texts[-1]) for _, texts in rows), default=0)
    # 4 cells: git's letter and a blank before the name, two blanks behind it.
    beside_texts = width - 4 - widest
    return min(longest, max(min(NAME, width // 2), _LEAST_NAME, beside_texts))


def _laid_out(
    rows: Sequence[tuple[str, str, Texts]],
    size: int,
    width: int | None,
    *,
    is_whole: bool = False,
) -> list[list[Line]]:
    """Return the lines of each row: git's letter, a name, and what is said of it at
    several lengths.

    Rows below each other leave out the same, and where names are too long, what all of
    these begin with. A line before the first row says what that is.
    """
    pairs = [(name, texts) for _, name, texts in rows]
    first: list[Line] = []
    if width is not None and not is_whole:
        too_long = [
            name for name, texts in pairs if cells(name) + 4 + cells(texts[-1]) > width
        ]
        begin = common_begin(too_long)
        if begin:
            # Also in names that fit: … means the same in all rows.
            shortened: list[tuple[str, Texts]] = []
            for name, texts in pairs:
                if name.startswith(begin):
                    name = "…" + name.removeprefix(begin)
                shortened.append((name, texts))
            pairs = shortened
            size = _name_size(pairs, width)
            first = [[(cut(f"{_STANDS_FOR}{begin}", width), "dim")]]
    blocks: list[list[Line]] = []
    shown_texts = _in_one_length(pairs, size, width)
    for row, (name, _), texts in zip(rows, pairs, shown_texts, strict=True):
        letter = row[0]
        lines = _row_lines(letter, name, size, texts, width, is_whole=is_whole)
        blocks.append([*first, *lines])
        first = []
    return blocks


def _in_one_length(
    rows: Sequence[tuple[str, Texts]], size: int, width: int | None
) -> list[Texts]:
    """The texts of rows, without those that not all rows of as many texts can show
    beside a name of `size` cells.
    """
    if width is None:
        return [texts for _, texts in rows]
    # By the number of texts of a row: the index of the longest one that fits all rows.
    fitting: dict[int, int] = {}
    room = width - 4 - size
    for name, texts in rows:
        # A longer name gets a line of its own, and its texts the next one.
        if cells(name) > size:
            continue
        first = len(texts) - 1
        for index, text in enumerate(texts):
            if cells(text) <= room:
                first = index
                break
        fitting[len(texts)] = max(fitting.get(len(texts), 0), first)
    return [texts[fitting.get(len(texts), 0) :] for _, texts in rows]


def _row_lines(
    letter: str,
    name: str,
    size: int,
    texts: Texts,
    width: int | None,
    *,
    is_whole: bool = False,
) -> list[Line]:
    """One line: a name in a column of `size` cells, and the longest of the texts that
    fits beside it.

    Where none does, the middle of the name is left out. Only a name that is to be whole
    has then a line of its own.
    """
    head: Line = [(f"{letter} ", _COLOURS.get(letter, ""))]
    beside = max(cells(name), size) + 2
    if width is None:
        return [[*head, (_pad_name(name, size), ""), (texts[0], "")]]
    for text in texts:
        if 2 + beside + cells(text) <= width:
            return [[*head, (_pad_name(name, size), ""), (text, "")]]
    # No text fits beside the whole name: the shortest one beside a shorter name.
    room = width - 4 - cells(texts[-1])
    if room >= _LEAST_NAME and not is_whole:
        short_name = _pad_name(_fit_name(name, room), min(size, room))
        return [[*head, (short_name, ""), (texts[-1], "")]]
    # Two lines: the text stands below the name, indented by 4 cells.
    shown = name if is_whole else _fit_name(name, width - 2)
    text = next((text for text in texts if 4 + cells(text) <= width), texts[-1])
    below = hanging_lines([("    ", "")], text, width) if text else []
    return [[*head, (shown, "")], *below]


def _pad_name(name: str, size: int) -> str:
    return name + " " * (max(size - cells(name), 0) + 2)


def _fit_name(name: str, width: int) -> str:
    """A name of at most `width` cells: fewer siblings in its braces, else its middle
    left out, but no part of braces.
    """
    short = drop_siblings(name, width)
    if short is not None:
        return short
    without_braces = re.sub(r"\{[^{}]*\}", "*", name)
    return cut(without_braces, width)


def _wanted_rows(report: DiffReport, which: str) -> list[Row]:
    """The tensors that `--show` lists, in the order of the file."""
    differing = STATUSES[: STATUSES.index("unchecked")]
    wanted: Sequence[str] = {
        "auto": differing,
        "changed": differing,
        "unchanged": ("same",),
        "frozen": (),
        "buffers": STATUSES,
        "all": STATUSES,
    }[which]
    return [
        row
        for row in report.rows
        if row.status in wanted and (which != "buffers" or row.role.role == "buffer")
    ]


def _change_lines(
    report: DiffReport, which: str, width: int | None, limit: int, least_bars: int = 0
) -> list[Line]:
    """Return the tensors that differ: new NaN first, then parameters, buffers and the
    rest.

    By default there are about `limit` lines. An optimizer that one file alone has is
    one of them, and where more parameters changed than fit, their modules are drawn in
    place of them. What is left out is counted.
    """
    rows = _wanted_rows(report, which)
    if which != "auto":
        # --show asks for these rows: all of them, with whole names.
        if not rows:
            return []
        ranked = sorted(rows, key=_rank_key)
        return [[], *_listing_lines(ranked, width, is_whole=True)]
    # Each row goes into one of: optimizers of one file, new NaN and Inf, casts of a
    # whole role, other rows that no bar can show, and the groups of roles.
    entire = _entire_optimizers(report.rows)
    rows = [row for row in rows if id(row) not in entire]
    bad = [row for row in rows if _is_bad(row)]
    retyped = _wholly_retyped(report.rows)
    others = [
        row
        for row in rows
        if not _is_bad(row)
        and id(row) not in retyped
        and (row.status != "changed" or not _is_drawn(row))
    ]
    said = {*retyped, *(id(row) for row in (*bad, *others))}
    # Tensors that do not meet are more important than tensors that changed.
    weight = {"added": 0, "removed": 0, "reshaped": 0}
    others.sort(key=lambda row: (weight.get(row.status, 1), *_rank_key(row)))
    groups = {
        label: sorted(
            (row for row in rows if row.role.role in roles and id(row) not in said),
            key=_rank_key,
        )
        for label, roles in _GROUPS.items()
    }
    parameters = groups["parameters"]
    first = _merge_rows(bad)
    then = _merge_rows(others)
    # What is added, removed and reshaped comes before the bars, and on a small screen
    # in place of them.
    least = min(len(parameters), _LEAST_BARS + 2) + 1 if any(groups.values()) else 0
    has_bars = not then or limit >= _SMALL or len(first) + len(then) + least <= limit
    least = least if has_bars else 1
    # The column of names is as wide as what will be listed in all blocks needs.
    listed = [(name, texts) for _, name, texts, _ in (*first, *then)]
    room = limit - len(listed) - 1
    for group in groups.values():
        if len(group) <= room:
            listed += [(_row_name(row), _row_texts(row)) for row in group]
            room -= len(group)
    size = _name_size(listed, width)
    out = _block_lines(first, len(bad), size, width, max(limit // 2, _LEAST))
    retyped_rows = [("M", *row) for row in dict.fromkeys(retyped.values())]
    for_all = list(chain.from_iterable(_laid_out(retyped_rows, size, width)))
    most = max(limit - len(out) - len(for_all) - least, limit // 2, _LEAST)
    out += _block_lines(then, len(others), size, width, most) + for_all
    left: list[str] = []
    for label, group in groups.items():
        least = _LEAST if label == "parameters" and not out else 0
        room = max(limit - 1 - len(out), least)  # a line for what is left
        lines = _listing_lines(group, width, size) if len(group) <= room else []
        if label != "parameters" and group and not out:
            merged = _merge_rows(group)  # nothing else differs
            size = _name_size([(name, texts) for _, name, texts, _ in merged], width)
            lines = _block_lines(merged, len(group), size, width, limit)
        elif (not lines and group) or len(lines) > room:
            # Too many rows: bars of modules, but only of parameters.
            lines = []
            if label == "parameters" and has_bars:
                most = max(min(room - 3, _FEW), least_bars)
                lines = _bar_lines(group, width, most, only_changed=True)
            left.append(_counted_label(len(group), label))
        out += lines
    entire_rows = list(dict.fromkeys(entire.values()))
    out += chain.from_iterable(_laid_out(entire_rows, 0, width))
    if left:
        out += hanging_lines(
            [], f"… {', '.join(left)} (--show changed)", width, 2, "dim"
        )
    return [[], *_without_repeats(out)] if out else []


def _without_repeats(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without those that say again what … stands for."""
    kept: list[Line] = []
    said: Line = []
    for line in lines:
        is_begin = bool(line) and line[0][0].startswith(_STANDS_FOR)
        if is_begin and line == said:
            continue
        said = line if is_begin else said
        kept.append(line)
    return kept


_GROUPS = {
    "parameters": ("parameter", "unknown"),
    "buffers": ("buffer",),
    "tensors of the optimizer": ("optimizer",),
    "other tensors": ("other",),
}


def _is_bad(row: Row) -> bool:
    """Tell whether a tensor has NaN or Inf that it had not before."""
    if row.change is None:
        return False
    nan_before, nan_after = row.change.nan
    inf_before, inf_after = row.change.inf
    return nan_after > nan_before or inf_after > inf_before


def _is_drawn(row: Row) -> bool:
    """Tell whether a bar can hold the change of a tensor."""
    return row.change is not None and row.change.squares is not None


_Merged = tuple[str, str, Texts, int]
"""Rows that are shown as one: git's letter, their names, what is said of all of them,
and how many they are.
"""


def _merge_rows(rows: Sequence[Row]) -> list[_Merged]:
    """Return the first rows, those as one of which the same is said."""
    looks = [(row.status, row.role.role, _row_texts(row)) for row in rows[:_MERGED]]
    # Not strict: `looks` ends after the first rows.
    named_looks = [
        (_row_name(row), look) for row, look in zip(rows, looks, strict=False)
    ]
    out: list[_Merged] = []
    for name, indices in merge_alike_rows(named_looks):
        status, _, texts = looks[indices[0]]
        times = f"  ×{len(indices)}" if len(indices) > 1 else ""
        texts = tuple((text + times).lstrip() for text in texts)
        out.append((LETTERS[status], name, texts, len(indices)))
    return out


def _block_lines(
    merged: Sequence[_Merged], count: int, size: int, width: int | None, most: int
) -> list[Line]:
    """Return the lines of some of `count` rows, at most `most`, and how many rows are
    left out.
    """
    # One row more than fits, to see that some are left out.
    rows = [(letter, name, texts) for letter, name, texts, _ in merged[: most + 1]]
    blocks = _laid_out(rows, size, width)
    shown = sum(times for *_, times in merged)
    line_count = sum(map(len, blocks))
    if line_count <= most and len(merged) == len(blocks) and shown >= count:
        return list(chain.from_iterable(blocks))
    # The first block in any case, then those that leave a line for the count.
    out: list[Line] = []
    shown = 0
    for block, (*_, times) in zip(blocks, merged, strict=False):
        if out and len(out) + len(block) > most - 1:
            break
        out += block
        shown += times
    return [*out, [(f"… {count - shown:,} more (--show changed)", "dim")]]


def _wholly_retyped(rows: Sequence[Row]) -> dict[int, tuple[str, Texts]]:
    """Return the rows of a dtype that all tensors of a role gave up for one other.

    They stand by their id, each with the name and the texts of the row for all of them.
    """
    sides = [
        (row, row.before.tensor.dtype.name, row.after.tensor.dtype.name)
        for row in rows
        if row.before and row.after
    ]
    lines: dict[int, tuple[str, Texts]] = {}
    for label, roles in _GROUPS.items():
        pairs: dict[str, dict[str, list[Row]]] = {}
        for row, before, after in sides:
            if row.role.role in roles:
                pairs.setdefault(before, {}).setdefault(after, []).append(row)
        for before, by_dtype in pairs.items():
            after, inside = next(iter(by_dtype.items()))
            group = [row for row in inside if row.status == "retyped"]
            if before == after or len(by_dtype) > 1 or len(group) < 2:
                continue
            changes = [row.change for row in group if row.change is not None]
            dtypes = f"{before} → {after}"
            texts: Texts = (dtypes,)
            # Rows whose values were not compared have no change.
            if len(changes) == len(group):
                merged_texts = change_texts(merge_changes(changes))
                texts = tuple(f"{dtypes}, {text}" for text in merged_texts)
            lines |= {
                id(row): (_counted_label(len(group), label), texts) for row in group
            }
    return lines


def _rank_key(row: Row) -> tuple[bool, int, bool]:
    """The place of a row in a list: new NaN and Inf first, then by the role, and in it
    names and shapes before values.
    """
    return not _is_bad(row), list(_ROLES).index(row.role.role), row.status == "changed"


def _entire_optimizers(rows: Sequence[Row]) -> dict[int, tuple[str, str, Texts]]:
    """Return the rows of optimizers that one file alone has, by their id, each with the
    row for all of them.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    # An optimizer is of one file alone where the other file has no tensor of it.
    here: set[tuple[str, str]] = set()
    for row in rows:
        if row.role.role != "optimizer":
            continue
        # `optimizer.state.0.exp_avg`: the state dict of torch.optim.Optimizer.
        name = row.name.partition(".state.")[0]
        if row.status in ("added", "removed"):
            groups.setdefault((row.status, name), []).append(row)
        if row.after is not None:
            here.add(("removed", name))
        if row.before is not None:
            here.add(("added", name))
    lines: dict[int, tuple[str, str, Texts]] = {}
    for (status, name), group in groups.items():
        if (status, name) not in here and len(group) > 1:
            entries = [row.before or row.after for row in group]
            nbytes = sum(entry.tensor.nbytes for entry in entries if entry is not None)
            text = f"{counted_noun(len(group), 'tensor')}, {size_text(nbytes)}"
            lines |= {
                id(row): (LETTERS[status], show(name, 120), (text,)) for row in group
            }
    return lines


def _listing_lines(
    rows: Sequence[Row],
    width: int | None,
    size: int | None = None,
    *,
    is_whole: bool = False,
) -> list[Line]:
    """Return the rows, one below the other. Names have `size` cells, by default as many
    as the longest one.
    """
    named = [(LETTERS[row.status], _row_name(row), _row_texts(row)) for row in rows]
    if size is None:
        size = _name_size([(name, texts) for _, name, texts in named], width)
    return list(chain.from_iterable(_laid_out(named, size, width, is_whole=is_whole)))


_BARS, _FEW = 40, 16
"""The most bars of --stat where no screen says how many fit, and the most beside other
rows.
"""
_LEAST_BARS = 4
_FEWEST_CELLS, _BAR_CELLS = 10, 30
"""Cells of the longest bar: a screen that is too narrow for the names has
shorter bars.
"""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bar_lines(
    chosen: Sequence[Row],
    width: int | None,
    most: int,
    depth: int | None = None,
    *,
    only_changed: bool = False,
) -> list[Line]:
    """One bar per module: the change of its tensors, relative to the largest.

    `only_changed`: the rows are those that changed, for without --stat no norm of the
    others is known.
    """
    if depth is None:
        bars = bars_that_fit(chosen, max(most, _LEAST_BARS))
    else:
        rows = modules(chosen, depth)
        bars = Bars(rows, depth, len(rows))
    # A norm that is missing or NaN gets no bar: it would be the largest of all.
    shares = [
        0.0 if row.rel_l2 is None or isnan(row.rel_l2) else row.rel_l2
        for row in bars.modules
    ]
    largest = max(shares, default=0.0)
    # The norm of a module, or that of its tensors that changed: the two differ.
    norm = "THEIR REL. L2"
    heads = ["TENSORS CHANGED"]
    if not only_changed:
        norm = "REL. L2"
        heads = ["TENSORS", "CHANGED"]
        if any(row.retyped for row in bars.modules):
            heads.append("RETYPED")
    table: list[list[str]] = []
    for row in bars.modules:
        # A relative norm lacks where all values were 0 before: any change is infinite.
        none = "-" if row.is_unmeasured else "from 0"
        number = none if row.rel_l2 is None else f"{row.rel_l2:.3g}"
        counts = [row.tensors, row.changed, row.retyped]
        counts = [row.changed] if only_changed else counts[: len(heads)]
        name = show_name(row.name, 120)
        table.append([name, *(f"{count:,}" for count in counts), number])
    numbers = [Column(name, right=True) for name in (*heads, norm)]
    titles = ["MODULE", *heads, norm]
    sizes = [max(map(cells, column)) for column in zip(titles, *table, strict=True)]
    room = _BAR_CELLS
    if width is not None:
        # Two blanks between columns.
        left_over = width - sum(sizes) - 2 * len(sizes)
        room = min(max(left_over, _FEWEST_CELLS), _BAR_CELLS)
    for table_row, change in zip(table, shares, strict=True):
        table_row.append(_bar_text(change, largest, room))
    # A pipe gets the whole names.
    module_column = Column("MODULE", gives_way=width is not None)
    out = column_lines([module_column, *numbers, Column("")], table, width=width)
    if len(bars.modules) < bars.total:
        every = f"{'--stat ' if only_changed else ''}--depth {bars.depth}"
        text = f"… {bars.total:,} modules in {len(bars.modules):,} rows ({every})"
        out.append([(text, "dim")])
    return out


def _bar_text(change: float, largest: float, room: int) -> str:
    """The bar of a change beside the largest one, which has `room` cells.

    The largest may be infinite: a sum of squares that float64 does not hold.
    """
    if not change:
        return ""
    # inf / inf is NaN.
    share = 1.0 if change == largest else change / largest
    eighths = max(1, round(share * room * 8))  # a change, however small
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _row_name(row: Row) -> str:
    if row.status == "renamed":
        return " → ".join([show(label) or "(the root)" for label in row.labels])
    return show(row.label) or "(the root)"


def _row_texts(row: Row) -> Texts:
    before, after = row.before, row.after
    if before is None or after is None:
        entry = after or before
        assert entry is not None
        return (f"{list(entry.tensor.shape)} {entry.tensor.dtype.name}",)
    if row.status == "reshaped":
        # A sparse tensor and a dense one are reshaped too, with the same numbers.
        layouts = [entry.tensor.layout for entry in (before, after)]
        marks = ["" if layouts[0] == layouts[1] else f" {layout}" for layout in layouts]
        old = f"{list(before.tensor.shape)}{marks[0]}"
        new = f"{list(after.tensor.shape)}{marks[1]}"
        return (f"{old} → {new}",)
    texts: Texts = ()
    change = row.change
    if change is not None:
        # If the indices of sparse tensors differ, elements cannot be compared.
        is_vague = (
            before.tensor.layout != "strided"
            and change.differing == change.numel
            and change.squares is None
        )
        texts = ("its parts differ",) if is_vague else change_texts(change)
    if row.status == "retyped":
        dtypes = f"{before.tensor.dtype.name} → {after.tensor.dtype.name}"
        return tuple(f"{dtypes}, {text}" for text in texts) or (dtypes,)
    if texts or row.reason is None:
        return texts or ("",)
    # The reason stands above the rows too.
    return (row.reason, "unchanged") if row.status == "same" else (row.reason,)


def change_texts(change: Change) -> Texts:
    """`12 of 100 elements, max |Δ| 0.5 at [3, 1], relative L2 0.02`, and shorter.

    The place of the largest change goes first, then `all elements`, then the cells of a
    histogram and the norm. A share of the elements, and new NaN, are never left out.
    """
    if not change.differing and not change.other_bytes:
        return ("values are equal",)
    if not change.differing:
        verb = "differs" if change.other_bytes == 1 else "differ"
        differ = f"{counted_noun(change.other_bytes, 'element')} {verb} in bytes only"
        return (f"values are equal, {differ} (-0.0, NaN)", differ)
    is_all = change.differing >= change.numel
    share = f"{change.differing:,} of {counted_noun(change.numel, 'element')}"
    if is_all:
        share = "all elements"
    new_bad: list[str] = []
    for label, (before, after) in (("NaN", change.nan), ("inf", change.inf)):
        if before != after:
            new_bad.append(f"{label} {before:,} → {after:,}")
    bad = ", ".join(new_bad)
    largest = "" if change.max_abs is None else f"max |Δ| {change.max_abs:.3g}"
    place = f" at {list(change.at)}" if largest and change.at else ""
    norm = "" if change.rel_l2 is None else f"relative L2 {change.rel_l2:.3g}"
    # In a short text the absence of a share says that all elements differ.
    kept = "" if is_all else share
    drawn = change.histogram is not None and bool(change.histogram.counts)
    full = ""
    if change.histogram is not None and drawn:
        full = _histogram_text(change.histogram)
    lengths: list[tuple[str, ...]] = [
        (share, bad, largest + place, norm, full),
        (share, bad, largest, norm, full),
        (kept, bad, largest, norm, full),
    ]
    if change.histogram is not None and drawn:
        # Its ends say what the largest change is.
        small = _histogram_text(change.histogram, CELLS // 2)
        lengths += [
            (kept, bad, largest, norm, small),
            (kept, bad, norm, small),
            (kept, bad, small),
        ]
    else:
        lengths.append((kept, bad, largest) if largest else (share, bad))
    return tuple(", ".join(filter(None, pieces)) or share for pieces in lengths)


def _histogram_text(histogram: Histogram, room: int = CELLS) -> str:
    """`Δ -0.001 ▂▅█▅▁ 0.0008`: the counts between the least difference and the
    largest.
    """
    if histogram.low == histogram.high:
        return f"Δ {histogram.low:.3g}"
    return f"Δ {histogram.low:.3g} {spark_text(histogram, room)} {histogram.high:.3g}"


def _changed_value_lines(report: DiffReport, width: int | None) -> list[Line]:
    rows = [row for row in report.values if not is_counter(row)]
    if not rows:
        return []
    out: list[Line] = [[]]
    for row in rows[:_VALUES]:
        letter = LETTERS[row.status]
        out += _value_lines([(f"{letter} ", _COLOURS.get(letter, ""))], row, width)
    if len(rows) > _VALUES:
        out.append([(f"… {len(rows) - _VALUES:,} more values (--json)", "dim")])
    return out


def _value_lines(head: Line, row: ValueRow, width: int | None) -> list[Line]:
    """A name with the old value and the new one, on one line.

    Where they do not fit, the values are cut as long as they can be told apart, then
    the middle of the name is left out.
    """
    name = show(row.name)
    sides = value_change(row)
    if width is None:
        return [[*head, (f"{name}  ", ""), *sides]]
    # Two values that look the same would not say what changed.
    for limit in (_VALUE_CELLS, _VALUE_CELLS // 2):
        shorter = value_change(row, limit)
        if not _are_apart(shorter):
            break
        sides = shorter
        if cells(name) + 4 + _line_cells(sides) <= width:
            return [[*head, (f"{name}  ", ""), *sides]]
    room = width - 4 - _line_cells(sides)
    if room >= _LEAST_NAME:
        return [[*head, (f"{_fit_name(name, room)}  ", ""), *sides]]
    return break_line([*head, (f"{whole(name)}  ", ""), *sides], width, 4)


def _line_cells(line: Line) -> int:
    return sum(cells(text) for text, _ in line)


def _are_apart(sides: Line) -> bool:
    """Tell whether the two values look different."""
    return len({text for text, _ in sides}) == len(sides)


def value_change(row: ValueRow, limit: int = _VALUE_CELLS) -> Line:
    """The old value and the new one, in the colours of git.

    Long lists are counted if that differs, and values that begin alike are without
    their middles.
    """

    def show_start(side: Value) -> str:
        if side.fields is not None:
            return value_text(side, limit)
        return show_literal(brief_text(side.node, limit))

    def show_ends(side: Value) -> str:
        return cut(show_literal(brief_text(side.node, _LONG_VALUE)), limit)

    sides = _two_sides(row, show_start)
    is_cut = any(text.endswith("…") for text, _ in sides)
    if len(sides) < 2 or not is_cut:
        return sides
    # Of the ways to show long values the first that tells them apart.
    counted = _two_sides(row, lambda side: value_text(side, limit))
    ends = _two_sides(row, show_ends)
    for ways in (counted, sides, ends):
        if _are_apart(ways):
            return ways
    return sides


def _two_sides(row: ValueRow, text_of: Callable[[Value], str]) -> Line:
    sides: Line = []
    for side, style in ((row.before, "removed"), (row.after, "added")):
        if side is not None:
            sides.append((text_of(side), style))
    # A value that one file alone has stands without an arrow.
    if len(sides) > 1:
        sides.insert(1, (" → ", ""))
    return sides


def _verdict_text(report: DiffReport) -> str:
    if not report.differs:
        what = "same"
        if report.options.structure:
            what = "same names, shapes and dtypes; values were not compared"
        elif report.options.quick:
            what = "same sizes and checksums; values were not read"
        # Parts of other ranks and unread tensors are unchecked too, and are said apart.
        unchecked = report.count("unchecked")
        decided = sum(row.apart or row.unread is not None for row in report.rows)
        if unchecked > decided:
            count = counted_noun(unchecked - decided, "tensor")
            what = f"undecided: {count} have no checksum; {what}"
        empty = [] if report.options.structure else _valueless(report)
        if empty:
            what = (
                f"same, but for the values of {counted_noun(len(empty), 'tensor')} on "
                "the device meta, which neither file holds"
            )
        if report.unread:
            what = (
                f"undecided: {counted_noun(len(report.unread), 'tensor')} could not be "
                f"read; {what}"
            )
        return f"{what}: {counted_noun(report.count('same'), 'tensor')}"
    parts = [
        f"{report.count(status):,} {status}"
        for status in STATUSES
        if report.count(status) or status in ("changed", "same")
    ]
    values = f", {counted_noun(len(report.values), 'value')}" if report.values else ""
    way = " (--ignore-dtype compares the values)" if _hides_values(report) else ""
    return f"differ: {', '.join(parts)}{values}{way}"


def _hides_values(report: DiffReport) -> bool:
    """Tell whether all that differs is of another dtype, and more than a cast: then no
    row says which parameters were trained.
    """
    options = report.options
    if options.structure or options.quick or report.count("changed"):
        return False
    moved = [row.change for row in report.rows if row.status == "retyped"]
    return any(
        change is not None and (change.rel_l2 or 0) > _MOST_OF_A_CAST
        for change in moved
    )


def _valueless(report: DiffReport) -> list[Row]:
    """Return the rows of tensors that count as the same, and of which neither side has
    values.
    """
    empty_before = set(valueless(report.before))
    empty_after = set(valueless(report.after))
    if not empty_before or not empty_after:
        return []
    rows = []
    for row in report.rows:
        if row.status != "same" or row.before is None or row.after is None:
            continue
        if row.before.name in empty_before and row.after.name in empty_after:
            rows.append(row)
    return rows


def diff_table(report: DiffReport, show_rows: str = "auto") -> list[list[str]]:
    """One row per tensor, the header first: git's letter, names, role, elements that
    differ, max |Δ|.

    All of them have one, unless `show_rows` asks for some.
    """
    rows = [["letter", "before", "after", "role", "differing", "max_abs"]]
    wanted: Sequence[Row] = report.rows
    if show_rows not in ("auto", "frozen"):
        wanted = _wanted_rows(report, show_rows)
    for row in wanted:
        before, after, change = row.before, row.after, row.change
        largest = None if change is None else change.max_abs
        rows.append(
            [
                LETTERS[row.status],
                "" if before is None else show(before.name, None),
                "" if after is None else show(after.name, None),
                row.role.role,
                "" if change is None else str(change.differing),
                "" if largest is None else repr(largest),
            ]
        )
    for value in report.values if show_rows not in ("unchanged", "buffers") else ():
        name = show(value.name, None)
        rows.append(
            [
                LETTERS[value.status],
                name if value.before else "",
                name if value.after else "",
                "value",
                "",
                "",
            ]
        )
    return rows


def name_lines(report: DiffReport, show_rows: str = "auto") -> Sequence[Line]:
    """The names of what differs, or of the tensors that `show_rows` asks for, one per
    line.
    """
    if show_rows in ("auto", "frozen"):
        wanted: Sequence[Row] = [
            row for row in report.rows if row.status not in ("same", "unchecked")
        ]
    else:
        wanted = _wanted_rows(report, show_rows)
    names = [row.name for row in wanted]
    if show_rows not in ("unchanged", "buffers"):
        names += [row.name for row in report.values]
    return [[(show_name(name, None), "")] for name in names]


def html_diff(report: DiffReport) -> str:
    """Return the lines of `ckpt diff`."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    return html_of(diff_lines(report, width=WIDTH))
