"""`ckpt warmstart` as text: how much is loaded, module by module, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.jobs.rewrite.coverage import Coverage, Pairing
from ckpt.render.folding import alike
from ckpt.render.text import Line, columns, hung, shortened, whole, wrapped
from ckpt.text import and_more, folded, percent, plural, show

_LISTED = 6
_MODULES = 40


def coverage_lines(coverage: Coverage, *, width: int | None = None) -> list[Line]:
    """The report as a person reads it."""
    tensors, of = coverage.tensors
    loaded, whole = coverage.elements
    parts = [f"loads {tensors:,} of {plural(of, 'tensor')}, {percent(loaded, whole)} of elements"]
    in_part = (
        ("cast", coverage.of("cast")),
        ("in part", coverage.of("sliced")),
        ("tied", coverage.of("tied")),
        ("kept", coverage.of("kept")),
    )
    parts += [f"{label}: {_by_reason(rows)}" for label, rows in in_part if rows]
    parts += [f"{len(coverage.of('missing')):,} missing", f"{len(coverage.of('unexpected')):,} unexpected"]
    first, *more = wrapped("; ".join(parts), width)
    out: list[Line] = [[(first, "head")], *([(f"  {line}", "head")] for line in more)]
    aligned = [
        f"{prefix}* → * ({side})"
        for prefix, side in zip(coverage.aligned, ("pretrained", "target"), strict=True)
        if prefix
    ]
    if aligned:
        met = coverage.component
        count = f", {plural(met.met, 'tensor')}" if met is not None else ""
        out += hung([], f"aligned: {', '.join(aligned)}{count}", width, 2, "dim")
    for each in coverage.suggested:
        out += hung([], each.advice, width, 2, "warning")
    modules = coverage.modules()
    if len(modules) > 1:
        table = [["MODULE", "TENSORS", "ELEMENTS"]]
        for name, some, all_, part, numel in modules[:_MODULES]:
            table.append([show(name, 60) or "(the root)", f"{some:,} of {all_:,}", percent(part, numel)])
        out += [[], *columns(table, right=frozenset((1, 2)), width=width)]
        if len(modules) > _MODULES:
            out.append([(f"… {len(modules) - _MODULES:,} more (--json)", "dim")])
    out += _listed("not in PRETRAINED, kept as they were", coverage.of("missing"), width)
    out += _listed("not in the target, ignored", coverage.of("unexpected"), width)
    for note in coverage.notes:
        out += hung([("! ", "")], note, width, 2, "warning")
    return out


def _by_reason(rows: Sequence[Pairing]) -> str:
    """`fc.{weight,bias} [1000] → [10]`, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(_why(row), []).append(row.name)
    texts = []
    for why, names in reasons.items():
        texts.append(f"{folded(names, _LISTED)} {why}".rstrip())
    return and_more(texts, _LISTED)


def _why(row: Pairing) -> str:
    if row.status == "cast" and row.source is not None and row.target is not None:
        return f"{row.source.tensor.dtype.name} → {row.target.tensor.dtype.name}"
    if row.status == "sliced" and row.target is not None:
        return f"{row.why} ({percent(row.copied, row.target.tensor.numel)})"
    return row.why


def _listed(title: str, rows: Sequence[Pairing], width: int | None) -> list[Line]:
    if not rows:
        return []
    names = [name for name, _ in alike([(show(row.name, 80), None) for row in rows])]
    if width is not None:
        names = [shortened(name, max(width - 3, 16)) for name in names]  # the indent, and a comma
    return hung([], f"{title}: {and_more(list(map(whole, names)), _LISTED)}", width, 2)
