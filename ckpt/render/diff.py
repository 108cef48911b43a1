"""`ckpt diff` as text: counts, parameters that did not change and why, the findings, the verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isnan

from ckpt.elements.compare import Change, together
from ckpt.elements.histogram import Histogram
from ckpt.jobs.diff.diff import DiffReport
from ckpt.jobs.diff.reasons import ranks_of
from ckpt.jobs.diff.rows import STATUSES, Bars, Row, ValueRow, bars_that_fit, modules
from ckpt.render.bars import spark
from ckpt.render.tables import value_text
from ckpt.render.text import (
    NAME,
    Column,
    Line,
    cells,
    columns,
    cut,
    fewer,
    findings_lines,
    flowed,
    height_of,
    hung,
    pasted_line,
    spread,
    whole,
)
from ckpt.text import (
    alike,
    and_more,
    braced,
    folded,
    pasted,
    pasted_path,
    plural,
    show,
    show_literal,
    size_text,
)
from ckpt.tree.find import counter, is_run_counter
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
_SMALL = 12
"""Rows for changes, of which fewer have no room for bars beside what was added, removed and reshaped."""
_VALUES = 12
_STILL = 24
"""Names of parameters that did not change, with siblings in braces."""
_MERGED = 5000
"""Rows of which the same may be said, and that are compared for it."""
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
    out = _headline(report, width) + _counters(report, width)
    for component in report.suggested:
        out += hung([], f"{component.advice}:", width, 2, "warning")
        out.append(pasted_line(_again(report, component.option), width))
    out += _counts(report, width)
    out += _still(report, width, show_rows) if show_rows in ("auto", "unchanged", "frozen", "all") else []
    if report.findings:
        out += [[], *findings_lines(report.findings, width)]
    end = _values(report, width)
    notes = [*_apart(report), *(show(note, 200) for note in report.notes[:_ROWS])]
    if len(report.notes) > _ROWS:
        notes.append(f"… {len(report.notes) - _ROWS:,} more (--json)")
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
        most = _BARS if height is None else min(height - used - 2, _BARS)  # the header, and what is folded
        chosen = [
            row for row in report.rows if show_rows == "all" or row.role.role in ("parameter", "unknown")
        ]
        out += [[], *_bars(chosen or report.rows, width, most, depth)]
        drawn = {row.role.role for row in chosen or report.rows}
        rest = {
            label: sum(row.status == "changed" and row.role.role in roles for row in report.rows)
            for label, roles in _GROUPS.items()
            if not drawn.intersection(roles)
        }
        left = [f"{count:,} {label}" for label, count in rest.items() if count]
        if left:
            out += hung([], f"… {', '.join(left)} changed too (--show all)", width, 2, "dim")
    if not (stat and show_rows == "auto"):
        used = height_of([*out, *end], width) + 3
        limit = _ROWS if height is None else max(height - used, _LEAST)
        out += _changes(report, show_rows, width, limit, _FEW if height is None else _LEAST_BARS)
    return out + end


def _is_counter(row: ValueRow) -> bool:
    """Tell whether a value is an epoch or a step of the run on both sides."""
    sides = [side for side in (row.before, row.after) if side is not None and is_run_counter(side.path)]
    return len(sides) == 2 and all(counter(side.node) is not None for side in sides)


def _counters(report: DiffReport, width: int | None) -> list[Line]:
    """The line of the epochs and steps that differ: `epoch 0 → 1 · step 500 → 1,000`."""
    pieces = [
        f"{show(row.name, 80)} {''.join(text for text, _ in _value(row))}"
        for row in report.values
        if _is_counter(row)
    ]
    return flowed([], pieces[:_VALUES], width, 2) if pieces else []


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


def _still(report: DiffReport, width: int | None, which: str) -> list[Line]:
    """Parameters that did not change, by the reason; empty when no parameter changed.

    By default the findings say it of most of them, and it is not said again.
    """
    moved = any(row.status == "changed" for row in report.rows)
    if which == "auto" and any(row.code == "step-skipped" for row in report.findings):
        return []
    told = {name for row in report.findings if row.code == "frozen" for name in row.tensors}
    still: dict[str, list[str]] = {}
    for row in report.rows:
        if row.status == "same" and row.reason is not None and (which != "auto" or row.name not in told):
            still.setdefault(row.reason, []).append(row.label)
    if not still or not moved or report.options.structure:
        return []
    out: list[Line] = [[], [("unchanged parameters", "head")]]
    for reason, names in still.items():
        out += hung([("  ", "")], f"{reason} ({len(names):,}):", width, 2)
        if which == "auto":
            text = folded(names, _STILL, 200)
            text += " (--show frozen)" if len(names) > _STILL and " more" in text else ""
        else:
            text = ", ".join(map(whole, braced([show(name, None) for name in names])))
        out += hung([("    ", "")], text, width, 4)
    return out


def _name_size(rows: Sequence[tuple[str, str]], width: int | None) -> int:
    """Cells of the column of names beside some texts: as many as the longest one, unless a text would be broken for it."""
    longest = max((cells(name) for name, _ in rows), default=0)
    if width is None:
        return min(longest, NAME)
    widest = max((cells(text) for _, text in rows), default=0)
    return min(longest, max(min(NAME, width // 2), 16, width - 4 - widest))


def _row(
    letter: str, name: str, size: int, text: str, width: int | None, *, is_whole: bool = False
) -> list[Line]:
    """A name in a column of `size` cells, and what is said of it, broken to fit. A longer name has its own line."""
    head: Line = [(f"{letter} ", _COLOURS.get(letter, ""))]
    if cells(name) <= size or width is None or cells(name) + 4 + cells(text) <= width:
        return hung([*head, (name + " " * (max(size - cells(name), 0) + 2), "")], text, width)
    shown = name if is_whole else _fitting(name, width - 2)
    return [[*head, (shown, "")], *(hung([("    ", "")], text, width) if text else [])]


def _fitting(name: str, width: int) -> str:
    """A name of at most `width` cells: fewer siblings in its braces, else its middle left out, but no part of braces."""
    short = fewer(name, width)
    return short if short is not None else cut(re.sub(r"\{[^{}]*\}", "*", name), width)


def _changes(
    report: DiffReport, which: str, width: int | None, limit: int, least_bars: int = 0
) -> list[Line]:
    """Return the tensors that differ: new NaN first, then parameters, buffers and the rest.

    By default there are about `limit` lines. An optimizer that one file alone has is one of them, and where more
    parameters changed than fit, their modules are drawn in place of them. What is left out is counted.
    """
    differing = STATUSES[: STATUSES.index("unchecked")]
    wanted: Sequence[str] = {
        "auto": differing,
        "changed": differing,
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
    if which != "auto":
        return [[], *_listing(sorted(rows, key=_rank), width, is_whole=True)] if rows else []
    entire = _entire(report.rows)
    rows = [row for row in rows if id(row) not in entire]
    bad = [row for row in rows if _is_bad(row)]
    retyped = _wholly_retyped(report.rows)
    others = [
        row
        for row in rows
        if not _is_bad(row) and id(row) not in retyped and (row.status != "changed" or not _is_drawn(row))
    ]
    said = {*retyped, *(id(row) for row in (*bad, *others))}
    weight = {"added": 0, "removed": 0, "reshaped": 0}
    others.sort(key=lambda row: (weight.get(row.status, 1), *_rank(row)))
    groups = {
        label: sorted((row for row in rows if row.role.role in roles and id(row) not in said), key=_rank)
        for label, roles in _GROUPS.items()
    }
    parameters = groups["parameters"]
    first, then = _merged(bad), _merged(others)
    # What is added, removed and reshaped comes before the bars, and on a small screen in place of them.
    least = min(len(parameters), _LEAST_BARS + 2) + 1 if any(groups.values()) else 0
    has_bars = not then or limit >= _SMALL or len(first) + len(then) + least <= limit
    least = least if has_bars else 1
    listed = [(name, text) for _, name, text, _ in (*first, *then)]
    room = limit - len(listed) - 1
    for group in groups.values():
        if len(group) <= room:
            listed += [(_name(row), _what(row)) for row in group]
            room -= len(group)
    size = _name_size(listed, width)
    out = _blocks(first, len(bad), size, width, max(limit // 2, _LEAST))
    for_all = [
        line for name, text in dict.fromkeys(retyped.values()) for line in _row("M", name, size, text, width)
    ]
    most = max(limit - len(out) - len(for_all) - least, limit // 2, _LEAST)
    out += _blocks(then, len(others), size, width, most) + for_all
    left: list[str] = []
    for label, group in groups.items():
        room = max(limit - 1 - len(out), _LEAST if label == "parameters" else 0)  # a line for what is left
        lines = _listing(group, width, size) if len(group) <= room else []
        if label != "parameters" and group and not out:
            merged = _merged(group)  # nothing else differs
            size = _name_size([(name, text) for _, name, text, _ in merged], width)
            lines = _blocks(merged, len(group), size, width, limit)
        elif (not lines and group) or len(lines) > room:
            most = max(min(room - 3, _FEW), least_bars)
            is_drawn = label == "parameters" and has_bars
            lines = _bars(group, width, most, only_changed=True) if is_drawn else []
            left.append(f"{len(group):,} {label}")
        out += lines
    out += [line for text in dict.fromkeys(entire.values()) for line in hung([], text, width, 4)]
    if left:
        out += hung([], f"… {', '.join(left)} (--show changed)", width, 2, "dim")
    return [[], *out] if out else []


_GROUPS = {
    "parameters": ("parameter", "unknown"),
    "buffers": ("buffer",),
    "tensors of the optimizer": ("optimizer",),
    "other tensors": ("other",),
}


def _is_bad(row: Row) -> bool:
    """Tell whether a tensor has NaN or Inf that it had not before."""
    change = row.change
    return change is not None and (change.nan[1] > change.nan[0] or change.inf[1] > change.inf[0])


def _is_drawn(row: Row) -> bool:
    """Tell whether a bar can hold the change of a tensor."""
    return row.change is not None and row.change.squares is not None


_Merged = tuple[str, str, str, int]
"""Rows that are shown as one: git's letter, their names, what is said of all of them, and how many they are."""


def _merged(rows: Sequence[Row]) -> list[_Merged]:
    """Return the first rows, those as one of which the same is said."""
    looks = [(row.status, row.role.role, _what(row)) for row in rows[:_MERGED]]
    out: list[_Merged] = []
    for name, indices in alike([(_name(row), look) for row, look in zip(rows, looks, strict=False)]):
        status, _, text = looks[indices[0]]
        times = f"  ×{len(indices)}" if len(indices) > 1 else ""
        out.append((LETTERS[status], name, (text + times).lstrip(), len(indices)))
    return out


def _blocks(merged: Sequence[_Merged], count: int, size: int, width: int | None, most: int) -> list[Line]:
    """Return the lines of some of `count` rows, at most `most`, and how many rows are left out."""
    blocks = [_row(letter, name, size, text, width) for letter, name, text, _ in merged[: most + 1]]
    shown = sum(times for *_, times in merged)
    if sum(map(len, blocks)) <= most and len(merged) == len(blocks) and shown >= count:
        return [line for block in blocks for line in block]
    out: list[Line] = []
    shown = 0
    for block, (*_, times) in zip(blocks, merged, strict=False):
        if out and len(out) + len(block) > most - 1:
            break
        out, shown = out + block, shown + times
    return [*out, [(f"… {count - shown:,} more (--show changed)", "dim")]]


def _wholly_retyped(rows: Sequence[Row]) -> dict[int, tuple[str, str]]:
    """Return the rows of a dtype that all tensors of a role gave up for one other.

    They stand by their id, each with the name and the text of the row for all of them.
    """
    sides = [
        (row, row.before.tensor.dtype.name, row.after.tensor.dtype.name)
        for row in rows
        if row.before and row.after
    ]
    lines: dict[int, tuple[str, str]] = {}
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
            said = f"{before} → {after}"
            if len(changes) == len(group):
                said += f", {change_text(together(changes))}"
            lines |= {id(row): (f"{len(group):,} {label}", said) for row in group}
    return lines


def _rank(row: Row) -> tuple[bool, int, bool]:
    """The place of a row in a list: new NaN and Inf first, then by the role, and in it names and shapes before values."""
    return not _is_bad(row), list(_ROLES).index(row.role.role), row.status == "changed"


def _entire(rows: Sequence[Row]) -> dict[int, str]:
    """Return the rows of optimizers that one file alone has, by their id, each with the line for all of them."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.role.role == "optimizer" and row.status in ("added", "removed"):
            groups.setdefault((row.status, row.name.partition(".state.")[0]), []).append(row)
    here = {
        (side, row.name.partition(".state.")[0])
        for row in rows
        if row.role.role == "optimizer"
        for side, entry in (("removed", row.after), ("added", row.before))
        if entry is not None
    }
    lines: dict[int, str] = {}
    for (status, name), group in groups.items():
        if (status, name) not in here and len(group) > 1:
            nbytes = sum(entry.tensor.nbytes for row in group for entry in (row.before, row.after) if entry)
            text = f"{LETTERS[status]} {whole(show(name, 120))}  {plural(len(group), 'tensor')}, {size_text(nbytes)}"
            lines |= {id(row): text for row in group}
    return lines


def _listing(
    rows: Sequence[Row], width: int | None, size: int | None = None, *, is_whole: bool = False
) -> list[Line]:
    """Return the rows, one below the other. Names have `size` cells, by default as many as the longest one."""
    names = [_name(row) for row in rows]
    texts = [_what(row) for row in rows]
    if size is None:
        size = _name_size(list(zip(names, texts, strict=True)), width)
    return [
        line
        for row, name, text in zip(rows, names, texts, strict=True)
        for line in _row(LETTERS[row.status], name, size, text, width, is_whole=is_whole)
    ]


_BARS, _FEW = 40, 16
"""The most bars of --stat where no screen says how many fit, and the most beside other rows."""
_LEAST_BARS = 4
_BAR_CELLS = 30
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bars(
    chosen: Sequence[Row],
    width: int | None,
    most: int,
    depth: int | None = None,
    *,
    only_changed: bool = False,
) -> list[Line]:
    """One bar per module: the change of its tensors, relative to the largest.

    `only_changed`: the rows are those that changed, for without --stat no norm of the others is known.
    """
    if depth is None:
        bars = bars_that_fit(chosen, max(most, _LEAST_BARS))
    else:
        rows = modules(chosen, depth)
        bars = Bars(rows, depth, len(rows))
    shares = [0.0 if row.rel_l2 is None or isnan(row.rel_l2) else row.rel_l2 for row in bars.modules]
    largest = max(shares, default=0.0)
    retypes = any(row.retyped for row in bars.modules)
    heads = ["TENSORS CHANGED"] if only_changed else ["TENSORS", "CHANGED", *(["RETYPED"] if retypes else [])]
    table: list[list[str]] = []
    for row, change in zip(bars.modules, shares, strict=True):
        none = "-" if row.is_unmeasured else "from 0"
        number = none if row.rel_l2 is None else f"{row.rel_l2:.3g}"
        counts = [row.tensors, row.changed, row.retyped]
        counts = [row.changed] if only_changed else counts[: len(heads)]
        name = show(row.name, 120) or "(the root)"
        table.append([name, *(f"{count:,}" for count in counts), number, _bar(change, largest)])
    columns_ = [Column(name, right=True) for name in (*heads, "REL. L2")]
    out = columns([Column("MODULE", gives_way=True, is_file=True), *columns_, Column("")], table, width=width)
    if len(bars.modules) < bars.total:
        every = f"{'--stat ' if only_changed else ''}--depth {bars.depth}"
        out.append([(f"… {bars.total:,} modules in {len(bars.modules):,} rows ({every})", "dim")])
    return out


def _bar(change: float, largest: float) -> str:
    """The bar of a change beside the largest one, which may be infinite: a sum of squares that float64 does not hold."""
    if not change:
        return ""
    share = 1.0 if change == largest else change / largest
    eighths = max(1, round(share * _BAR_CELLS * 8))  # a change, however small
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _name(row: Row) -> str:
    if row.status == "renamed":
        return f"{show(row.labels[0])} → {show(row.labels[1])}"
    return show(row.label)


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
    if not change.differing and not change.other_bytes:
        return "values are equal"
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
    rows = [row for row in report.values if not _is_counter(row)]
    if not rows:
        return []
    out: list[Line] = [[]]
    for row in rows[:_VALUES]:
        letter = LETTERS[row.status]
        name = show(row.name)
        head: Line = [(f"{letter} ", _COLOURS.get(letter, "")), (f"{whole(name)}  ", "")]
        out += spread([*head, *_value(row)], width, 4)
    if len(rows) > _VALUES:
        out.append([(f"… {len(rows) - _VALUES:,} more values (--json)", "dim")])
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
