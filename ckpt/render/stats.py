"""`ckpt stats` as text: one line per tensor, dead channels, the share of zeros."""

from __future__ import annotations

from ckpt.jobs.check.stats import Row, StatsReport
from ckpt.render.text import Line, columns, wrapped
from ckpt.text import percent, plural, show, show_literal

_ROWS = 60
_HEADER = ["name", "dtype", "shape", "min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "dead"]


def stats_lines(
    report: StatsReport, *, width: int | None = None, everything: bool = False, modules: bool = False
) -> list[Line]:
    """The report as a person reads it."""
    count = plural(len(report.rows), "tensor")
    section = f" of {show(report.section.name, 60)}" if report.section.name else ""
    out: list[Line] = [[(f"{show(report.checkpoint.path, None)}  {count}{section}", "head")], []]
    rows = report.rows if everything else report.rows[:_ROWS]
    with_channels = report.threshold is not None
    bad = [any(row.found is not None and getter(row) for row in report.rows) for getter in (_nan, _inf)]
    header = ["NAME", "SHAPE", "MIN", "MAX", "MEAN", "STD", "RMS", "ZEROS"]
    header += [name for name, shown in zip(("NAN", "INF"), bad, strict=True) if shown]
    header += ["DEAD"] if with_channels else []
    table = [header]
    for row in rows:
        cells = [show(row.label, None) or "(the root)", str(list(row.entry.tensor.shape))]
        found = row.found
        if found is None:
            table.append([*cells, *[""] * (len(header) - 3), show(row.why, 60)])
            continue
        cells += [_number(value) for value in (found.low, found.high, row.mean, row.std, row.rms)]
        cells.append(percent(found.zeros, found.numel))
        cells += [f"{count:,}" for count, shown in zip((found.nan, found.inf), bad, strict=True) if shown]
        cells += [_dead(row)] if with_channels else []
        table.append(cells)
    out += columns(table, right=frozenset(range(2, len(header))), styles={1: "dim"}, width=width)
    if len(report.rows) > len(rows):
        out.append([(f"… {len(report.rows) - len(rows):,} more (--all, --tsv, --json)", "dim")])
    if modules:
        sparse = sorted(report.modules(), key=lambda row: -(row[1] / row[2] if row[2] else 0))
        body = [
            [show(name, 80) or "(the root)", f"{numel:,}", percent(zeros, numel)]
            for name, zeros, numel in sparse
        ]
        out += [[], *columns([["MODULE", "NUMEL", "ZEROS"], *body], right=frozenset((1, 2)), width=width)]
    out.append([])
    for finding in report.findings:
        first, *more = wrapped(f"! {finding.code}: {show_literal(finding.message)}", width)
        head = f"! {finding.code}"
        out.append([(head, finding.level), (first[len(head) :], "")])
        out += [[(f"  {line}", "")] for line in more]
    ambiguous = [row.label for row in report.rows if row.channels is not None and row.channels.axis is None]
    if ambiguous:
        listed = ", ".join(show(name, 60) for name in ambiguous[:4]) + (", …" if len(ambiguous) > 4 else "")
        out.append([(f"ambiguous, perhaps transposed convolutions: {listed}", "dim")])
    zeros, numel = report.sparsity
    out.append([(f"zeros: {percent(zeros, numel)} of {plural(numel, 'element')}", "head")])
    return out


def _nan(row: Row) -> int:
    return row.found.nan if row.found else 0


def _inf(row: Row) -> int:
    return row.found.inf if row.found else 0


def _dead(row: Row) -> str:
    if row.channels is None:
        return ""
    return "?" if row.channels.axis is None else f"{len(row.channels.dead):,}/{row.channels.total:,}"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def stats_table(report: StatsReport) -> list[list[str]]:
    """One row per tensor, exact, the header first."""
    rows = [list(_HEADER)]
    for row in report.rows:
        tensor, found = row.entry.tensor, row.found
        cells = [show(row.entry.name, None), tensor.dtype.name, "x".join(map(str, tensor.shape)) or "()"]
        if found is None:
            rows.append([*cells, *[""] * 9])
            continue
        numbers = (found.low, found.high, row.mean, row.std, row.rms)
        cells += ["" if value is None else repr(value) for value in numbers]
        cells += [str(found.zeros), str(found.nan), str(found.inf)]
        dead = row.channels.dead if row.channels is not None and row.channels.axis is not None else None
        rows.append([*cells, "" if dead is None else str(len(dead))])
    return rows
