"""`ckpt diff` as text: counts, parameters that did not change and why, the findings, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.elements.compare import Change
from ckpt.elements.histogram import Histogram
from ckpt.jobs.diff.diff import DiffReport
from ckpt.jobs.diff.reasons import ranks_of
from ckpt.jobs.diff.rows import STATUSES, Row, ValueRow, depth_that_fits, modules
from ckpt.render.bars import spark
from ckpt.render.tables import value_text
from ckpt.render.text import (
    NAME,
    Column,
    Line,
    cells,
    columns,
    findings_lines,
    flowed,
    height_of,
    hung,
    pasted_line,
    shortened,
    spread,
    whole,
)
from ckpt.text import and_more, folded, pasted, pasted_path, plural, show, show_literal
from ckpt.tree.literals import brief

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
_LEAST = 3
"""Rows of changes that are listed, whatever the screen."""
_VALUES = 12
_LOST = 8
_ROLES = {
    "parameter": "parameters",
    "unknown": "parameters (not sure)",
    "buffer": "buffers",
    "optimizer": "optimizer",
    "other": "other",
}


def diff_lines(
    report: DiffReport,
    *,
    width: int | None = None,
    height: int | None = None,
    show_rows: str = "auto",
    stat: bool = False,
    depth: int | None = None,
) -> list[Line]:
    """The report as a person reads it. `show_rows` says which tensors are listed; `stat` draws bars instead.

    Of what changed, the rows are listed that are left on a screen of `height` rows. Bars are of modules at the deepest
    place of the names that fits, or at `depth`.
    """
    out = _headline(report, width)
    for component in report.suggested:
        out += hung([], f"{component.advice}:", width, 2, "warning")
        out.append(pasted_line(_again(report, component.option), width))
    out += _counts(report, width)
    out += _still(report, width) if show_rows in ("auto", "unchanged", "frozen", "all") else []
    if report.findings:
        out += [[], *findings_lines(report.findings, width)]
    end = _values(report, width)
    notes = [*_apart(report), *(show(note, 200) for note in report.notes[:_ROWS])]
    notes += [f"not compared: {show(name, 120)} (not in the other file)" for name in report.not_compared]
    notes += [f"not compared: {show(name, 200)}" for name in report.unjoined]
    notes += [f"not compared: {text}" for text in report.lost[:_LOST]]
    if len(report.lost) > _LOST:
        notes.append(f"not compared: {len(report.lost) - _LOST:,} more that are lost (--json)")
    end += [[]] if notes else []
    end += [line for note in notes for line in hung([], note, width, 2)]
    end += hung([], _verdict(report), width, 2, "head")
    used = height_of([*out, *end], width) + 3  # a blank, how many more, and the prompt
    if stat:
        most = _BARS if height is None else max(height - used - 1, _LEAST)  # the header
        out += _bars(report, width, most, depth, everything=show_rows == "all")
    if not (stat and show_rows == "auto"):
        used = height_of([*out, *end], width) + 3
        out += _changes(report, show_rows, width, _ROWS if height is None else max(height - used, _LEAST))
    return out + end


def _again(report: DiffReport, option: str) -> str:
    """Return the command of the comparison with one more option."""
    words = ["ckpt diff", *(pasted_path(side.path) or "…" for side in (report.before, report.after))]
    if report.options.section is not None:
        words += ["--section", pasted(report.options.section) or "…"]
    return " ".join([*words, option])


def _apart(report: DiffReport) -> list[str]:
    """Return the note that the files hold other parts of tensors, which are not compared."""
    apart = [row for row in report.rows if row.apart]
    if not apart:
        return []
    numbers = ranks_of(apart)
    whose = f"rank {numbers[0]} and rank {numbers[1]} of one mesh" if numbers else "other ranks, or the whole"
    return [f"not compared: {plural(len(apart), 'tensor')} of which each file holds another part ({whose})"]


def _headline(report: DiffReport, width: int | None) -> list[Line]:
    sides = [
        sum((row.before if side == 0 else row.after) is not None for row in report.rows) for side in (0, 1)
    ]
    count = (
        f"{plural(sides[0], 'tensor')} each"
        if sides[0] == sides[1]
        else f"{sides[0]:,} and {sides[1]:,} tensors"
    )
    head = f"{show(report.before.path, None)} → {show(report.after.path, None)}   "
    pieces = [count]
    aligned = []
    for pair in report.pairs:
        for prefix, mark in zip(pair.prefixes, ("before", "after"), strict=True):
            if prefix:
                aligned.append(f"{prefix}* → * ({mark})")
        aligned += [rename.label for rename in pair.renames if rename.kind != "start"]
    pieces += [f"aligned: {and_more(list(dict.fromkeys(aligned)), 6)}"] if aligned else []
    return [
        [(text, "head" if style == "name" else style or "head") for text, style in line]
        for line in flowed([(head, "name")], pieces, width, 2)
    ]


def _counts(report: DiffReport, width: int | None) -> list[Line]:
    rows = []
    for role, label in _ROLES.items():
        counts = {status: report.count(status, role) for status in STATUSES}
        if any(counts.values()):
            parts = [f"{counts['changed']:,} changed", f"{counts['same']:,} unchanged"]
            if report.options.structure:
                parts = [f"{counts['same']:,} same"]
            parts += [f"{counts[status]:,} {status}" for status in STATUSES[1:-1] if counts[status]]
            if role == "parameter" and any(_is_by_name(row) for row in report.rows):
                parts.append("(by their names: a state dict does not mark buffers)")
            rows.append((label, "   ".join(parts)))
    size = max((len(label) for label, _ in rows), default=0)
    return [line for label, text in rows for line in hung([(label.ljust(size + 3), "name")], text, width)]


def _is_by_name(row: Row) -> bool:
    """Tell whether only the name of a tensor says that it is a parameter."""
    return row.role[:3] == ("parameter", "likely", "name")


def _still(report: DiffReport, width: int | None) -> list[Line]:
    """Parameters that did not change, by the reason; empty when no parameter changed."""
    moved = any(row.status == "changed" for row in report.rows)
    still: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status == "same" and row.reason is not None:
            still.setdefault(row.reason, []).append(row.label)
    if not still or not moved or report.options.structure:
        return []
    rows = [(folded(names), reason, len(names)) for reason, names in still.items()]
    size = min(max(cells(names) for names, _, _ in rows), _name_cells(width))
    out: list[Line] = [[], [("unchanged parameters", "head")]]
    for names, reason, count in rows:
        extra = f" ({count:,})" if count > 1 else ""
        out += _row("  ", "", names, size, reason + extra, width)
    return out


def _name_cells(width: int | None) -> int:
    return NAME if width is None else max(min(NAME, width // 2), 16)


def _row(letter: str, style: str, name: str, size: int, text: str, width: int | None) -> list[Line]:
    """A name in a column of `size` cells, and what is said of it, broken to fit."""
    name = shortened(name, size)
    pad = " " * (size - cells(name) + 2)
    return hung([(letter, style), (name + pad, "")], text, width)


def _changes(report: DiffReport, which: str, width: int | None, limit: int) -> list[Line]:
    """Return the tensors on one side or of another shape, then the changed ones, parameters first.

    `limit` rows by default.
    """
    wanted: Sequence[str] = {
        "auto": ("reshaped", "retyped", "renamed", "added", "removed"),
        "changed": ("changed", "reshaped", "retyped", "renamed", "added", "removed"),
        "unchanged": ("same",),
        "frozen": (),
        "buffers": STATUSES,
        "all": STATUSES,
    }[which]
    rows = [
        row
        for row in report.rows
        if row.status in wanted and (which != "buffers" or row.role.role == "buffer")
    ]
    if which == "auto":
        changed = [row for row in report.rows if row.status == "changed"]
        rows += sorted(changed, key=lambda row: list(_ROLES).index(row.role.role))
    if not rows:
        return []
    most = limit if which == "auto" else len(rows)
    names = [_name(row) for row in rows[:most]]
    size = min(max(map(cells, names)), _name_cells(width))
    out: list[Line] = [[]]
    shown = 0
    for row, name in zip(rows, names, strict=False):
        letter = LETTERS[row.status]
        lines = _row(f"{letter} ", _COLOURS.get(letter, ""), name, size, _what(row), width)
        if which == "auto" and shown and len(out) - 1 + len(lines) > most:
            break
        out += lines
        shown += 1
    if len(rows) > shown:
        out.append([(f"… {len(rows) - shown:,} more (--show changed, --stat)", "dim")])
    return out


_BARS = 40
_FEW = 4
"""Fewer bars say nothing about where the change is."""
_BAR_CELLS = 30
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bars(
    report: DiffReport, width: int | None, most: int, depth: int | None, *, everything: bool
) -> list[Line]:
    """One bar per module: the change of its parameters, or of everything in it, relative to the largest."""
    chosen = [row for row in report.rows if everything or row.role.role in ("parameter", "unknown")]
    chosen = chosen or list(report.rows)
    rows = modules(chosen, depth_that_fits(chosen, most) if depth is None else depth)
    if depth is None and len(rows) < _FEW:  # a screen too small for bars that say anything scrolls
        most = _BARS
        rows = modules(chosen, depth_that_fits(chosen, most))
    most = most if depth is None else len(rows)
    parts = [row for row in rows if row.rel_l2 is not None]
    largest = max((row.rel_l2 or 0.0 for row in parts), default=0.0)
    table: list[list[str]] = []
    for row in rows[:most]:
        share = (row.rel_l2 or 0.0) / largest if largest else 0.0
        number = "from 0" if row.rel_l2 is None else f"{row.rel_l2:.3g}"
        name = show(row.name, 120) or "(the root)"
        table.append([name, f"{row.tensors:,}", f"{row.changed:,}", number, _bar(share)])
    out: list[Line] = [[], *columns(_MODULE_COLUMNS, table, width=width)]
    if len(rows) > most:
        out.append([(f"… {len(rows) - most:,} more modules (--depth N)", "dim")])
    return out


_MODULE_COLUMNS = (
    Column("MODULE", gives_way=True),
    *(Column(name, right=True) for name in ("TENSORS", "CHANGED", "REL. L2")),
    Column(""),
)


def _bar(share: float) -> str:
    eighths = round(share * _BAR_CELLS * 8)
    if share and not eighths:
        eighths = 1  # a change, however small
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _name(row: Row) -> str:
    if row.status == "renamed":
        return f"{show(row.labels[0], 80)} → {show(row.labels[1], 80)}"
    return show(row.label, 120)


def _what(row: Row) -> str:
    before, after = row.before, row.after
    if before is None or after is None:
        entry = after or before
        assert entry is not None
        return f"{list(entry.tensor.shape)} {entry.tensor.dtype.name}"
    if row.status == "reshaped":
        layouts = [entry.tensor.layout for entry in (before, after)]
        marks = ["" if layouts[0] == layouts[1] else f" {layout}" for layout in layouts]
        return f"{list(before.tensor.shape)}{marks[0]} → {list(after.tensor.shape)}{marks[1]}"
    parts = []
    if row.status == "retyped":
        parts.append(f"{before.tensor.dtype.name} → {after.tensor.dtype.name}")
    change = row.change
    if change is not None:
        is_vague = (
            before.tensor.layout != "strided" and change.differing == change.numel and change.squares is None
        )
        parts.append("its parts differ" if is_vague else change_text(change))
    return ", ".join(parts) or (row.reason or "")


def change_text(change: Change) -> str:
    """`12 of 100 elements, max |Δ| 0.5 at [3, 1]`."""
    if not change.differing and change.other_bytes:
        return f"values are equal, {plural(change.other_bytes, 'element')} differ in bytes only (-0.0, NaN)"
    share = (
        f"{change.differing:,} of {plural(change.numel, 'element')}"
        if change.differing < change.numel
        else "all elements"
    )
    text = share
    if change.differing and (change.nan[0] != change.nan[1] or change.inf[0] != change.inf[1]):
        text += "".join(
            f", {label} {before:,} → {after:,}"
            for label, (before, after) in (("NaN", change.nan), ("inf", change.inf))
            if before != after
        )
    if change.max_abs is not None and change.differing:
        text += f", max |Δ| {change.max_abs:.3g}"
        if change.at is not None and change.at:
            text += f" at {list(change.at)}"
    if change.rel_l2 is not None and change.differing:
        text += f", relative L2 {change.rel_l2:.3g}"
    if change.histogram is not None and change.histogram.counts:
        text += f", {whole(_drawn(change.histogram))}"
    return text


def _drawn(histogram: Histogram) -> str:
    """`Δ -0.001 ▂▅█▅▁ 0.0008`: the counts between the least difference and the largest."""
    if histogram.low == histogram.high:
        return f"Δ {histogram.low:.3g}"
    return f"Δ {histogram.low:.3g} {spark(histogram)} {histogram.high:.3g}"


def _values(report: DiffReport, width: int | None) -> list[Line]:
    if not report.values:
        return []
    out: list[Line] = [[]]
    for row in report.values[:_VALUES]:
        letter = LETTERS[row.status]
        name = shortened(show(row.name, 80), _name_cells(width))
        head: Line = [(f"{letter} ", _COLOURS.get(letter, "")), (f"{whole(name)}  ", "")]
        out += spread([*head, *_value(row)], width, 4)
    if len(report.values) > _VALUES:
        out.append([(f"… {len(report.values) - _VALUES:,} more values (--json)", "dim")])
    return out


def _value(row: ValueRow) -> Line:
    """The old value and the new one, in the colours of git."""
    sides = [
        (value_text(side, 40) if side.fields is not None else show_literal(brief(side.node, 40)), style)
        for side, style in ((row.before, "removed"), (row.after, "added"))
        if side is not None
    ]
    return [*sides[:1], *([(" → ", ""), sides[1]] if len(sides) > 1 else [])]


def _verdict(report: DiffReport) -> str:
    if not report.differs:
        what = "same"
        if report.options.structure:
            what = "same names, shapes and dtypes; values were not compared"
        elif report.options.quick:
            what = "same sizes and checksums; values were not read"
        unchecked = report.count("unchecked")
        decided = sum(row.apart or row.unread is not None for row in report.rows)
        if unchecked > decided:
            what = f"undecided: {plural(unchecked - decided, 'tensor')} have no checksum; {what}"
        if report.unread:
            what = f"undecided: {plural(len(report.unread), 'tensor')} could not be read; {what}"
        return f"{what}: {plural(report.count('same'), 'tensor')}"
    parts = [
        f"{report.count(status):,} {status}"
        for status in STATUSES
        if report.count(status) or status in ("changed", "same")
    ]
    values = f", {plural(len(report.values), 'value')}" if report.values else ""
    return f"differ: {', '.join(parts)}{values}"


def diff_table(report: DiffReport) -> list[list[str]]:
    """One row per tensor, the header first: git's letter, names, role, elements that differ, max |Δ|."""
    rows = [["letter", "before", "after", "role", "differing", "max_abs"]]
    for row in report.rows:
        change = row.change
        rows.append(
            [
                LETTERS[row.status],
                show(row.before.name, None) if row.before is not None else "",
                show(row.after.name, None) if row.after is not None else "",
                row.role.role,
                "" if change is None else str(change.differing),
                "" if change is None or change.max_abs is None else repr(change.max_abs),
            ]
        )
    for value in report.values:
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


def name_lines(report: DiffReport) -> Sequence[Line]:
    """The names of what differs, one per line."""
    names = [row.name for row in report.rows if row.status not in ("same", "unchecked")]
    return [[(show(name, None), "")] for name in (*names, *(row.name for row in report.values))]
