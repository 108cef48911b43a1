"""`ckpt stats` as text: a line for each tensor, or for several that are alike, dead
channels, the share of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.commands.inspect.bars import CELLS, spark_text
from ckpt.commands.stats.stats import Row, StatsReport
from ckpt.model.text import (
    common_begin,
    counted_noun,
    merge_alike_rows,
    percent_text,
    show,
    show_folded_names,
    show_name,
)
from ckpt.surface.text.lines import (
    Column,
    Line,
    column_lines,
    findings_lines,
    flowing_lines,
    given_up_lines,
    hanging_lines,
    narrow_columns,
)

_ROWS = 60
_WIDE_INTEGER = 10**7
"""Integers from here on are written in three digits."""
_GIVEN_UP = {"RMS": 1, "MEAN": 3, "STD": 4, "MIN": 5, "MAX": 5}
"""The order in which a narrow screen does without columns; SHAPE is the second. MIN and
MAX go together.
"""
_HEADER = [
    "name",
    "dtype",
    "shape",
    "min",
    "max",
    "mean",
    "std",
    "rms",
    "zeros",
    "nan",
    "inf",
    "dead",
]


def stats_lines(
    report: StatsReport,
    *,
    width: int | None = None,
    everything: bool = False,
    modules: bool = False,
) -> list[Line]:
    """The report as a person reads it. Tensors of which all that is shown is equal are
    one row; `everything` parts them.
    """
    count = counted_noun(len(report.rows), "tensor")
    section = f" of {show(report.section.name, 60)}" if report.section.name else ""
    # Said once above the table, and left out of each row.
    prefix = common_begin([row.label for row in report.rows])
    pieces = [f"{count}{section}"]
    if prefix:
        pieces.append(f"names begin with {show(prefix, None)}")
    head: Line = [(f"{show(report.checkpoint.path, None)}   ", "name")]
    out = flowing_lines(head, pieces, width, 2)
    out.append([])
    out += _tensor_lines(report, prefix, width, everything=everything)
    if modules:
        out += [[], *_module_lines(report, prefix, width)]
    out.append([])
    out += findings_lines(report.findings, width)
    ambiguous = [
        row.label
        for row in report.rows
        if row.channels is not None and row.channels.axis is None
    ]
    if ambiguous:
        listed = ", ".join(show(name, 60) for name in ambiguous[:4])
        if len(ambiguous) > 4:
            listed += ", …"
        text = f"ambiguous, perhaps transposed convolutions: {listed}"
        out += hanging_lines([], text, width, 2)
    zeros, numel = report.sparsity
    share = percent_text(zeros, numel)
    text = f"zeros: {share} of {counted_noun(numel, 'element')}"
    out.append([(text, "head")])
    return out


def _heads_of(
    report: StatsReport, bad: Sequence[bool], width: int | None
) -> list[Column]:
    """The columns of the table of tensors. `bad` says whether there are columns for NaN
    and Inf.
    """
    # Names may have so much of a line before columns are given up.
    least = None if width is None else width * 5 // 8
    heads = [Column("NAME", gives_way=True, least=least), Column("SHAPE", given_up=2)]
    for name in ("MIN", "MAX", "MEAN", "STD", "RMS", "ZEROS"):
        heads.append(Column(name, True, given_up=_GIVEN_UP.get(name, 0)))
    for name, is_shown in zip(("NAN", "INF"), bad, strict=True):
        if is_shown:
            heads.append(Column(name, True))
    # Channels were looked at only with a threshold.
    if report.threshold is not None:
        heads.append(Column("DEAD", True))
    if report.histogram:
        heads.append(Column("HISTOGRAM"))
    return heads


def _tensor_lines(
    report: StatsReport, prefix: str, width: int | None, *, everything: bool
) -> list[Line]:
    """The table of tensors, whose names begin with `prefix`, and the lines on what it
    leaves out.
    """
    # Columns for NaN and Inf appear only where there are any.
    bad = [
        any(row.found is not None and getter(row) for row in report.rows)
        for getter in (_count_nan, _count_inf)
    ]
    heads = _heads_of(report, bad, width)
    body = [_row_cells(row, prefix, bad, heads, CELLS) for row in report.rows]
    # For each line of the table its name, and the indices of the rows that it shows.
    folds: list[tuple[str, tuple[int, ...]]] = [
        (row[0], (index,)) for index, row in enumerate(body)
    ]
    rest = 0
    if not everything:
        folds = merge_alike_rows([(row[0], tuple(row[1:])) for row in body])
        rest = len(body) - sum(len(indices) for _, indices in folds[:_ROWS])
        folds = folds[:_ROWS]
    body = [[name, *body[indices[0]][1:]] for name, indices in folds]
    shown, table = narrow_columns(heads, body, width)
    if width is not None and "MIN" not in [head.name for head in shown]:
        # A row without a number says nothing: names give way before the last of them.
        heads[0] = heads[0]._replace(least=width * 3 // 8)
        shown, table = narrow_columns(heads, body, width)
    # A shorter histogram goes before a column.
    if report.histogram and len(shown) < len(heads):
        rows = [report.rows[indices[0]] for _, indices in folds]
        short = [_row_cells(row, prefix, bad, heads, CELLS // 2)[-1] for row in rows]
        body = [
            [*cells[:-1], spark_] for cells, spark_ in zip(body, short, strict=True)
        ]
        heads[-1] = heads[-1]._replace(name="HIST")
        shown, table = narrow_columns(heads, body, width)
    out = column_lines(shown, table, width=width)
    out += given_up_lines(heads, shown, width)
    if rest:
        out.append([(f"… {rest:,} more (--all, --tsv, --json)", "dim")])
    out += _partial_lines(report, width)
    return out


def _partial_lines(report: StatsReport, width: int | None) -> list[Line]:
    """Say which rows have the numbers of a part of their tensor, as of the values that
    a sparse one stores.
    """
    names: dict[str, list[str]] = {}
    for row in report.rows:
        if row.found is not None and row.why and not row.unread:
            names.setdefault(row.why, []).append(row.label)
        tensor = row.entry.tensor
        if row.found is not None and tensor.dtype.kind == "complex":
            names.setdefault("magnitudes, as of all complex tensors", []).append(
                row.label
            )
    out: list[Line] = []
    for why, labels in names.items():
        text = f"the numbers are of {why}: {show_folded_names(labels)}"
        out += hanging_lines([], text, width, 2)
    return out


def _module_lines(report: StatsReport, prefix: str, width: int | None) -> list[Line]:
    """The table of modules, the one with the largest share of zeros first. The names of
    the tensors begin with `prefix`, which the line above the tables has.
    """
    rows: list[tuple[float, list[str]]] = []
    for name, zeros, numel in report.modules():
        share = zeros / numel if numel else 0
        label = name[len(prefix) :] if name.startswith(prefix) else name
        cells = [show_name(label, None), f"{numel:,}"]
        rows.append((share, [*cells, percent_text(zeros, numel)]))
    # Not `reverse`, which would turn the rows of one share around.
    rows.sort(key=lambda row: -row[0])
    heads = [
        Column("MODULE", gives_way=True),
        Column("NUMEL", True),
        Column("ZEROS", True),
    ]
    return column_lines(heads, [cells for _, cells in rows], width=width)


def _row_cells(
    row: Row, prefix: str, bad: Sequence[bool], heads: Sequence[Column], room: int
) -> list[str]:
    """The cells of a row below `heads`. `bad` says whether there are columns for NaN
    and Inf; a histogram has `room` cells.
    """
    texts = [
        show(row.label[len(prefix) :], None) or "(the root)",
        str(list(row.entry.tensor.shape)),
    ]
    summary = row.found
    if summary is None:
        # The reason stands on stderr, for here it would take the room of the numbers.
        word = "unreadable" if row.unread else row.why
        return [*texts, *[""] * (len(heads) - 3), show(word, 60)]
    texts += [
        _number_text(value)
        for value in (summary.low, summary.high, row.mean, row.std, row.rms)
    ]
    texts.append(percent_text(summary.zeros, summary.numel))
    texts += [
        f"{count:,}"
        for count, shown in zip((summary.nan, summary.inf), bad, strict=True)
        if shown
    ]
    # The columns that not every table has.
    titles = {head.name for head in heads}
    if "DEAD" in titles:
        texts.append(_dead_text(row))
    if titles & {"HISTOGRAM", "HIST"}:
        texts.append(
            spark_text(summary.histogram, room) if summary.histogram is not None else ""
        )
    return texts


def _count_nan(row: Row) -> int:
    return row.found.nan if row.found else 0


def _count_inf(row: Row) -> int:
    return row.found.inf if row.found else 0


def _dead_text(row: Row) -> str:
    if row.channels is None:
        return ""
    if row.channels.axis is None:
        return "?"
    return f"{len(row.channels.dead):,}/{row.channels.total:,}"


def _number_text(value: float | int | None) -> str:
    if value is None:
        return "-"
    # One random seed would take the room of all other numbers: --tsv has it in full.
    if isinstance(value, int) and abs(value) < _WIDE_INTEGER:
        return f"{value:,}"
    return f"{value:.3g}"


def stats_table(report: StatsReport) -> list[list[str]]:
    """One row per tensor, exact, the header first."""
    rows = [list(_HEADER)]
    for row in report.rows:
        tensor, summary = row.entry.tensor, row.found
        texts = [
            show(row.entry.name, None),
            tensor.dtype.name,
            "x".join(map(str, tensor.shape)) or "()",
        ]
        if summary is None:
            rows.append([*texts, *[""] * 9])
            continue
        numbers = (summary.low, summary.high, row.mean, row.std, row.rms)
        texts += ["" if value is None else repr(value) for value in numbers]
        texts += [str(summary.zeros), str(summary.nan), str(summary.inf)]
        if row.channels is not None and row.channels.axis is not None:
            dead = row.channels.dead
        else:
            dead = None
        rows.append([*texts, "" if dead is None else str(len(dead))])
    return rows


def _unread_lines(report: StatsReport, width: int | None) -> list[Line]:
    """The reasons why tensors could not be read, for a notebook, which has no
    stderr.
    """
    names: dict[str, list[str]] = {}
    for row in report.rows:
        if row.unread:
            names.setdefault(row.why, []).append(row.label)
    out: list[Line] = []
    for why, labels in names.items():
        text = f"{show_folded_names(labels)}: {show(why, 200)}"
        out += hanging_lines([], text, width, 2)
    return out


def html_stats(report: StatsReport) -> str:
    """Return the table of `ckpt stats`."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    lines = stats_lines(report, width=WIDTH, modules=False)
    return html_of([*lines, *_unread_lines(report, WIDTH)])
