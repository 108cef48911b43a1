"""The order of two saves of one run, as their counters tell it: which of them is of an
earlier epoch.
"""

from __future__ import annotations

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.diff.rows import ValueRow
from ckpt.model.text import show
from ckpt.tree.find import counter, is_run_counter


def is_counter(row: ValueRow) -> bool:
    """Tell whether a value is an epoch or a step of the run on both sides."""
    sides = [
        side
        for side in (row.before, row.after)
        if side is not None and is_run_counter(side.path)
    ]
    return len(sides) == 2 and all(counter(side.node) is not None for side in sides)


def backwards(report: DiffReport) -> str:
    """Return the counters by which the first save is the later one, as `epoch 3 → 1`,
    or nothing.

    All counters that differ must agree. They do not prove that both are saves of one
    run.
    """
    texts = []
    for row in report.values:
        if not is_counter(row) or row.before is None or row.after is None:
            continue
        before, after = counter(row.before.node), counter(row.after.node)
        if before is None or after is None or before == after:
            continue
        # NaN is neither before nor after, so it ends the search as well.
        if not before > after:
            return ""
        texts.append(f"{show(row.name, 40)} {before:,g} → {after:,g}")
    return ", ".join(texts[:3])
